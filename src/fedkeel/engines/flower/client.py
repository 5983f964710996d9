"""A node's half of a round: between two messages, the serial engine trains one client."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedkeel.core.round import init_client
from fedkeel.core.rule import State
from fedkeel.core.trees import all_finite
from fedkeel.data.clients import TensorClients
from fedkeel.engines.cost import whole
from fedkeel.engines.flower.checks import FAILED
from fedkeel.engines.flower.memory import NodeMemory, keep_witness, witness_file
from fedkeel.engines.flower.mods import Mod, carry_mods
from fedkeel.engines.flower.records import NEVER, digest, pack, unpack
from fedkeel.engines.flower.site_scores import score_site, tell_few
from fedkeel.engines.machine import steady
from fedkeel.engines.rehearsal import expected_messages
from fedkeel.engines.serial import SerialEngine
from fedkeel.errors import FedkeelError, RequestError, blame_own_code
from fedkeel.problems.class_labels import check_labels, unwatch
from fedkeel.text import in_one_line

log = logging.getLogger("fedkeel")

TRAINED, LOST, SCORED = "trained", "lost", "scored"


class Node(NamedTuple):
    """Who a node is: the client whose data it has, how it trains, where it may keep a state, what it is made with."""

    client: int
    engine: SerialEngine
    folder: Path | None = None
    identity: str = ""
    side: Mapping[str, str] = MappingProxyType({})


NodeOf = Callable[[Context], Node]


def make_client_app(node_of: NodeOf, mods: Sequence[Mod] = (), *, tells: bool = False) -> ClientApp:
    """Make the app of all nodes; `node_of` tells them apart, `mods` change what is trained and sent.

    A node that `tells` errors in words is one of a simulation, whose data the server has anyway.
    """
    app = ClientApp()
    train = partial(train_under, carry_mods(mods)) if mods else train_client
    for kind, how in ((app.query(), introduce), (app.train(), train), (app.evaluate(), score_model)):
        kind(partial(answer, how, node_of, tells=tells))
    return app


def answer(
    how: Callable[[Node, Message, Context], Message],
    node_of: NodeOf,
    message: Message,
    context: Context,
    *,
    tells: bool = False,
) -> Message:
    """Answer a message; what is wrong with a node's settings, data or own code is one line in the log here.

    The words of an error may hold values, names or paths of the site, whoever raised it. They stay, and the server is
    told the error's type, unless the node tells all.
    """
    with steady():
        try:
            return how(node_of(context), message, context)
        except FedkeelError as error:
            line, reason = error.message, f"it stopped with {type(error).__name__}"
            log.error("%s", error)
        except Exception as error:
            own = blame_own_code(error)
            line = own.message if own else f"{type(error).__name__}: {in_one_line(error)}"
            log.error("%s", own or line, exc_info=own is None)
            reason = f"{'its own code' if own else 'fedkeel or PyTorch'} failed with {type(error).__name__}"
        said = ConfigRecord({"status": FAILED, "reason": line if tells else f"{reason}: see the site's log."})
        return Message(RecordDict({"config": said}), reply_to=message)


def client_number(context: Context) -> int:
    """Return the client's number. The node's own id is random and means nothing."""
    try:
        return int(context.node_config["partition-id"])
    except (KeyError, TypeError, ValueError):
        raise RequestError("this node does not say which client it is.", "--node-config 'partition-id=3 …'") from None


def introduce(node: Node, message: Message, context: Context) -> Message:
    """Answer who this node is, how much data it has, and what it is made with."""
    check_own_labels(node)
    size = int(node.engine.task.problem.data.sizes[node.client])
    said = ConfigRecord({**node.side, "client": node.client, "size": size, "identity": node.identity})
    return Message(RecordDict({"config": said}), reply_to=message)


def check_own_labels(node: Node) -> None:
    """Refuse labels of a node's own data that its network has no output for."""
    task, clients = node.engine.task, unwatch(node.engine.task.clients)
    if getattr(task.problem.clients, "own", False):
        held = [clients.rows(node.client, np.arange(clients.sizes[node.client]))]
        held += [] if task.test is None else [unwatch(task.test).rows(0, np.arange(task.test.sizes[0]))]
        check_labels(task, {"this node's data": TensorClients(held)})


def train_under(mods: Mod, node: Node, message: Message, context: Context) -> Message:
    """Train with mods around it; an error of theirs is one of the node's."""
    return mods(message, context, partial(train_client, node))


def train_client(node: Node, message: Message, context: Context) -> Message:
    """Train one round of the node's client and reply."""
    asked: Mapping[str, Any] = message.content.config_records["config"]
    round, lr, wanted, engine = int(asked["round"]), float(asked["lr"]), int(asked["state"]), node.engine
    shapes, final = expected_messages(engine.method, engine.task), bool(asked["final"])
    memory = NodeMemory(context, shapes.state, node.client, node.folder, node.identity)
    facts: dict[str, str | int | bool] = {"round": round, "client": node.client, "identity": node.identity}
    if node.folder is not None and asked.get("audit"):
        keep_witness(witness_file(node.folder, node.client, node.identity), round, str(asked["audit"]))
    start: State | None
    if any(name.startswith("state/") for name in message.content.array_records):
        start = unpack(message.content.array_records, "state/", shapes.state)
    elif wanted == NEVER or not shapes.state or asked["restart"]:
        start = init_client(engine.method, engine.task.initial, engine.task.buffers)
    else:
        start = memory.recall(wanted)
    if start is None:
        return Message(RecordDict({"config": ConfigRecord(facts | {"status": LOST})}), reply_to=message)
    received = whole(unpack(message.content.array_records, "message/", shapes.message), engine.task.initial)
    trainer = SerialEngine(engine.task, engine.method.tuning, engine.training) if final else engine
    outcome = trainer.train_one(received, round, lr, node.client, start)
    records = pack(outcome.report, "report/")
    if outcome.state:
        if not final:  # what follows the last round is scored, not remembered
            memory.keep(start, outcome.state)
        if asked["copy"]:
            records |= pack(outcome.state, "state/")
    facts |= {"status": TRAINED, "state": digest(outcome.state), "sound": all_finite(outcome.state)}
    return Message(RecordDict({**records, "config": ConfigRecord(facts)}), reply_to=message)


def score_model(node: Node, message: Message, context: Context) -> Message:
    """Score the server's model on the share of its data that this node keeps for tests."""
    task = node.engine.task
    if task.test is None:
        raise RequestError("this node keeps no share of its data for tests.", "set site-test of the app, such as 0.2")
    if (few := tell_few(int(task.test.sizes[0]))) is not None:
        log.warning("%s", few)
    like: State = {"params": task.initial} | ({} if task.buffers is None else {"buffers": task.buffers})
    model = unpack(message.content.array_records, "model/", like)
    scores = score_site(node.engine, model["params"], model.get("buffers"))
    facts = {"status": SCORED, "client": node.client, "identity": node.identity}
    facts["round"] = message.content.config_records["config"]["round"]
    return Message(RecordDict({**pack(scores, "scores/"), "config": ConfigRecord(facts)}), reply_to=message)

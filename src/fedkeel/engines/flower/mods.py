"""Flower's modifiers of messages around a node's training, as the user's client_app.py lists them.

Where a method sends only weights, as FedAvg does, a mod finds what Flower's own apps have: one record of weights in the
message and one in the reply. Of other methods it finds fedkeel's records: one for each slot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict

from fedkeel.core.contract import FACTS
from fedkeel.engines.flower.checks import FAILED
from fedkeel.errors import RequestError

App = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, App], Message]
PARAMS, DELTA, MODEL = "message/params", "report/delta", "model"
LABELS = "report/histogram"
"""Counts of labels: a privacy mod leaves them exact, so it refuses a method that sends them as one that sends more."""
NORM = "clipping_norm"
"""What Flower's clipping mods read of a message: the app's setting clipping-norm."""


def carry_mods(mods: Sequence[Mod]) -> Mod:
    """Make one mod of all: the first sees the message first, and the reply last."""
    for mod in mods:
        if "secagg" in str(getattr(mod, "__name__", type(mod).__name__)).lower():
            raise RequestError(
                "secure aggregation cannot be used here: Flower has it only for its legacy server, which sends "
                "four messages a round, and it hides single reports, which fedkeel checks one by one.",
                "leave the mod out; LocalDpMod adds noise before anything leaves a node",
            )
    return partial(run_mods, tuple(mods))


def run_mods(mods: Sequence[Mod], message: Message, context: Context, app: App) -> Message:
    """Train with all mods around it."""
    held: dict[str, Any] = {}
    chain: App = partial(train_plain, app, held)
    for mod in reversed(mods):
        chain = partial(call_mod, mod, chain)
    if NORM.replace("_", "-") in context.run_config:
        message.content.config_records["config"][NORM] = float(context.run_config[NORM.replace("_", "-")])
    reply = chain(message, context)
    return restore_report(reply, held) if held and not reply.has_error() else reply


def call_mod(mod: Mod, chain: App, message: Message, context: Context) -> Message:
    return mod(message, context, chain)


def train_plain(app: App, held: dict[str, Any], message: Message, context: Context) -> Message:
    """Train; where only weights are sent, put the model that was reached in place of the report, which is held."""
    reply = app(message, context)
    records = {} if reply.has_error() else dict(reply.content.array_records)
    facts = all(name == DELTA or name.removeprefix("report/") in FACTS for name in records)
    if list(message.content.array_records) != [PARAMS] or DELTA not in records or not facts or LABELS in records:
        return reply
    sent, delta = message.content.array_records[PARAMS], records[DELTA]
    if list(sent) != list(delta):
        return reply
    before = {name: array.numpy() for name, array in sent.items()}
    model = ArrayRecord({name: Array(before[name] + array.numpy()) for name, array in delta.items()})
    held.update(records=records, before=before, model={name: array.data for name, array in model.items()})
    return Message(RecordDict({MODEL: model, "config": reply.content["config"]}), reply_to=message)


def restore_report(reply: Message, held: dict[str, Any]) -> Message:
    """Put the report back, with the change of weights that the mods have left of it; untouched, it keeps every bit."""
    records, before = held["records"], held["before"]
    given = list(reply.content.array_records.values())
    if len(given) != 1 or list(given[0]) != list(before):
        said = {"status": FAILED, "reason": "a mod gave other records than one of the weights"}
        reply.content = RecordDict({"config": ConfigRecord(said)})
        return reply
    if any(array.data != held["model"][name] for name, array in given[0].items()):
        changed = {
            name: Array(np.asarray(array.numpy() - before[name], dtype=before[name].dtype))
            for name, array in given[0].items()
        }
        records = records | {DELTA: ArrayRecord(changed)}
    reply.content = RecordDict({**records, "config": reply.content["config"]})
    return reply

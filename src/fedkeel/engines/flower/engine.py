"""The server's half: ask the nodes of a round, check their answers, return what counts, in client order."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedkeel.core.method import Method
from fedkeel.core.rule import State
from fedkeel.core.trees import Tree, all_finite, state_bytes
from fedkeel.engines.cost import sent
from fedkeel.engines.engine import ClientOutcome, Training, known_facts
from fedkeel.engines.flower.bounds import SlotBounds
from fedkeel.engines.flower.checks import Terms, check_known, read_facts
from fedkeel.engines.flower.client import LOST, SCORED, TRAINED
from fedkeel.engines.flower.node_registry import NodeRegistry, Watch
from fedkeel.engines.flower.records import Refused, digest, pack, unpack
from fedkeel.engines.flower.reply_transport import LATE, exchange_messages
from fedkeel.engines.flower.site_ledger import SiteLedger
from fedkeel.engines.flower.site_scores import add_scores, check_scores, count_targets, empty_scores, summarise
from fedkeel.engines.rehearsal import expected_messages
from fedkeel.errors import RunError
from fedkeel.problems.gradients import Workspace
from fedkeel.problems.predictions import Scores
from fedkeel.problems.task import Task

log = logging.getLogger("fedkeel")

TICKET = "held"
"""The one slot that the server keeps of a client whose state stays on its node: the state's digest."""


class FlowerEngine:
    """Trains clients on the nodes of a grid; models are evaluated here. A `final` one has them do the final phase."""

    name = "flower"

    def __init__(
        self,
        task: Task,
        method: Method,
        training: Training,
        grid: Grid,
        registry: NodeRegistry,
        terms: Terms,
        *,
        final: bool = False,
        bounds: SlotBounds | None = None,
        sites: SiteLedger | None = None,
        watch: Watch | None = None,
        on_close: Callable[[], None] = lambda: None,
    ):
        self.task, self.method, self.training, self.grid = task, method, training, grid
        self.registry, self.terms, self.final, self.on_close = registry, terms, final, on_close
        self.watch = watch or Watch()
        self.trains = method.tuning if final else method
        self.sites, self.rounds = sites, 0
        self.lost: set[int] = set()  # clients without their state, who could not be asked once more in time
        self.refused: set[int] = set()  # clients whose reports of this round were refused
        self.workspace = Workspace(task)
        self.expected = expected_messages(method, task)
        if final:  # slots of the other phases pass through
            self.expected = expected_messages(self.trains, task)._replace(state=self.expected.state)
        self.bounds = bounds or SlotBounds(terms.norm_factor)
        # what an answer weighs, and some room for names; scores of many classes weigh more than a small model
        scored = 0 if sites is None else state_bytes(empty_scores(task))
        self.limit = 2 * max(scored, state_bytes((self.expected.report, self.expected.state))) + (1 << 20)

    # ---- a round -------------------------------------------------------------------------------------------------
    def train(
        self, message: State, round: int, lr: float, clients: Sequence[int], states: Sequence[State | None]
    ) -> list[ClientOutcome]:
        """Return the clients that answered in time and soundly; fewer than the minimum end the run."""
        self.rounds = round + 1
        self.refused.clear()
        self.watch.begin_round(round + 1, message["params"], clients)
        known = dict(zip(clients, states, strict=True))
        records = pack(sent(self.method, message), "message/")
        needed = self.terms.count_needed(len(clients))
        sound: dict[int, ClientOutcome] = {}
        for attempt in range(1, self.terms.attempts + 1):
            missing = [client for client in clients if not self.has_answered(sound.get(client))]
            sound |= self.ask_clients(records, round, lr, {client: known[client] for client in missing})
            sound = self.drop_unusual(sound, round)
            answered = sum(map(self.has_answered, sound.values()))
            if answered >= needed:
                break
            log.warning(
                "round %d: %d of %d clients answered, %d are needed (attempt %d of %d)",
                round + 1, answered, len(clients), needed, attempt, self.terms.attempts,
            )  # fmt: skip
        else:
            raise RunError(
                f"only {answered} of {len(clients)} clients answered in round {round + 1}, {needed} are needed.",
                "start again when more nodes are there, or lower the minimum; the rounds before this one are kept",
            )
        if not self.terms.diverged:
            self.bounds.remember(outcome.report for outcome in sound.values())
        counted = [client for client in clients if self.has_answered(sound.get(client))]
        self.refused.difference_update(counted)  # when they were asked again
        self.watch.note("counted", round=round + 1, clients=counted)
        return [sound[client] for client in clients if client in sound]

    def has_answered(self, outcome: ClientOutcome | None) -> bool:
        """Whether a client has answered."""
        return outcome is not None and (self.terms.diverged or all_finite((outcome.report, outcome.state)))

    def ask_clients(
        self, records: Mapping[str, Any], round: int, lr: float, states: Mapping[int, State | None]
    ) -> dict[int, ClientOutcome]:
        """Ask each client once; ask those that have lost their state once more, with what the server can give them.

        Where no time is left for that, as when another client is late, they get it when they are asked next.
        """
        began, left, sound = time.monotonic(), self.terms.deadline, dict[int, ClientOutcome]()
        contents = {}
        for client, state in states.items():
            if waited := client in self.lost and client in self.registry.nodes:
                self.lost.remove(client)
            contents[client] = (
                self.compose_restoring(records, round, lr, client, state)
                if waited
                else self.compose(records, round, lr, state_digest(state))
            )
        for again in (False, True):
            lost = []
            for client, reply in self.exchange(contents, round, left, MessageType.TRAIN):
                try:
                    if (outcome := self.read_reply(reply, client, round, lr)) is not None:
                        sound[client] = outcome
                    elif again:
                        raise Refused("it lost its state again")
                    else:
                        lost.append(client)
                except Refused as refused:
                    self.refuse(client, round, refused)
            left = None if self.terms.deadline is None else self.terms.deadline - (time.monotonic() - began)
            if left is not None and left <= 0:
                self.put_off(lost, round)
                break
            if not lost:
                break
            contents = {client: self.compose_restoring(records, round, lr, client, states[client]) for client in lost}
        return sound

    def put_off(self, lost: Sequence[int], round: int) -> None:
        """Note who lost its state and has no time left to begin from another one."""
        self.lost.update(lost)
        why = "it lost its state, and the deadline has passed"
        for client in lost:
            log.warning("round %d: node %d (client %d): %s", round + 1, self.registry.nodes[client], client, why)
            self.watch.note("absent", round=round + 1, client=client, reason=why)

    def exchange(
        self, contents: Mapping[int, RecordDict], round: int, timeout: float | None, kind: str
    ) -> Iterable[tuple[int, Message]]:
        """Return replies with the clients that were asked; the log names those that are absent or late."""
        self.registry.update(contents)
        nodes = {self.registry.nodes[client]: client for client in contents if client in self.registry.nodes}
        messages = [
            # a node that comes back later need not work on what nobody waits for
            Message(contents[client], dst_node_id=node, message_type=kind, ttl=timeout)
            for node, client in nodes.items()
        ]
        answers = exchange_messages(self.grid, messages, timeout, self.limit)
        for client in contents:
            if client not in self.registry.nodes:
                log.warning("round %d: client %d has no node", round + 1, client)
                self.watch.note("absent", round=round + 1, client=client, reason="it has no node")
            elif not isinstance(said := answers.get(node := self.registry.nodes[client]), Message):
                passed = "" if timeout is None else f": the {timeout:.3g} s of the deadline have passed"
                why = f"{LATE}{passed}" if said in (None, LATE) else said
                log.warning("round %d: node %d (client %d) did not answer in time: %s", round + 1, node, client, why)
                self.watch.note("absent", round=round + 1, client=client, reason=why)
        return [(nodes[node], reply) for node, reply in answers.items() if isinstance(reply, Message)]

    # ---- states --------------------------------------------------------------------------------------------------
    def compose(
        self, records: Mapping[str, Any], round: int, lr: float, state: int, *, restart: bool = False
    ) -> RecordDict:
        """Compose a message to a node: `state` is the digest of what it should remember; without it, it may restart."""
        facts: dict[str, Any] = {"round": round, "lr": lr, "state": state, "restart": restart}
        facts |= {"copy": self.terms.copy, "final": self.final}
        if self.watch.head:  # an empty text is none that Flower counts
            facts["audit"] = self.watch.head
        return RecordDict({**records, "config": ConfigRecord(facts)})

    def compose_restoring(
        self, records: Mapping[str, Any], round: int, lr: float, client: int, state: State | None
    ) -> RecordDict:
        """Compose a message to a node that has lost its state: the server's copy of it, or leave to begin from zero."""
        node = self.registry.nodes[client]
        if self.terms.copy and state is not None and TICKET not in state:
            log.warning("round %d: node %d (client %d) lost its state: restored", round + 1, node, client)
            return self.compose({**records, **pack(state, "state/")}, round, lr, digest(state))
        log.warning("round %d: node %d (client %d) lost its state: it restarts from zero", round + 1, node, client)
        return self.compose(records, round, lr, state_digest(state), restart=True)

    # ---- replies -------------------------------------------------------------------------------------------------
    def read_reply(self, reply: Message, client: int, round: int, lr: float) -> ClientOutcome | None:
        """Read a reply; None when its client has lost its state. Raise Refused for everything else."""
        facts = read_facts(reply, client=client, round=round, identity=self.registry.identity)
        if facts.get("status") == LOST:
            return None
        if facts.get("status") != TRAINED:
            raise Refused("it says neither that it trained nor that it could not")
        records = reply.content.array_records
        unknown = [name for name in records if not name.startswith(("report/", "state/"))]
        if unknown:
            raise Refused(f"unknown record {unknown[0][:40]!r}")
        report = self.check_facts(unpack(records, "report/", self.expected.report), client, round, lr)
        state = unpack(records, "state/", self.expected.state if self.terms.copy else {})
        if self.expected.state and not self.terms.copy:
            number, sound = facts.get("state"), facts.get("sound")
            if not isinstance(number, int) or not 0 < number < 1 << 63:
                raise Refused("it does not say which state it reached")
            state = {TICKET: torch.tensor(number if sound else math.nan)}
        if not all_finite((report, state)):
            self.refuse(client, round, "not every number is finite")  # the loop leaves it out and records that
        return ClientOutcome(client, report, state)

    def check_facts(self, report: State, client: int, round: int, lr: float) -> State:
        """Replace facts of a report by those that the server knows; refuse a report that says others."""
        known, count = known_facts(self.trains, self.task, self.training, round, lr, client), None
        known = {name: fact for name, fact in known.items() if name in report}
        if "histogram" in known and getattr(self.task.problem.data, "hidden", False):
            del known["histogram"]
            count = report["histogram"].new_tensor(float(self.task.clients.sizes[client]) * count_targets(self.task))
        return check_known(report, known, count)

    def drop_unusual(self, sound: dict[int, ClientOutcome], round: int) -> dict[int, ClientOutcome]:
        """Drop reports with a slot that is far too large; nodes of a simulation are this run's own and are believed."""
        if self.terms.diverged:
            return sound
        wrong = self.bounds.find_unusual({client: outcome.report for client, outcome in sound.items()})
        for client, reason in wrong.items():
            self.refuse(client, round, reason)
        return {client: outcome for client, outcome in sound.items() if client not in wrong}

    def refuse(self, client: int, round: int, reason: object) -> None:
        node = self.registry.nodes.get(client, 0)
        self.refused.add(client)
        log.warning("round %d: refused the reply of node %d (client %d): %s", round + 1, node, client, reason)
        self.watch.note("refused", round=round + 1, client=client, node=node, reason=str(reason))

    # ---- the rest ------------------------------------------------------------------------------------------------
    def evaluate(self, params: Tree, buffers: Tree | None, split: str) -> list[Scores]:
        if split == "test" and self.sites is not None:
            return self.ask_sites(params, buffers, self.sites)
        return [self.workspace.score(params, buffers, part) for part in self.task.parts(split)]

    def ask_sites(self, params: Tree, buffers: Tree | None, sites: SiteLedger) -> list[Scores]:
        """Have every site score a model on its own test share; their sums and counts are added in client order.

        A site whose report of the round was refused is not asked: it may have other data than it had.
        """
        model = pack({"params": params} | ({} if buffers is None else {"buffers": buffers}), "model/")
        round, like, targets = self.rounds - 1, empty_scores(self.task), count_targets(self.task)
        everyone = [int(client) for client in np.flatnonzero(self.task.clients.sizes > 0)]
        everyone = [client for client in everyone if client not in self.refused]
        content = RecordDict({**model, "config": ConfigRecord({"round": round})})
        found: dict[int, State] = {}
        for client, reply in self.exchange(
            dict.fromkeys(everyone, content), round, self.terms.deadline, MessageType.EVALUATE
        ):
            try:
                read_facts(reply, client=client, round=round, identity=self.registry.identity, status=SCORED)
                scores = unpack(reply.content.array_records, "scores/", like)
                check_scores(scores, int(self.task.clients.sizes[client]) * sites.most, targets)
                found[client] = scores
            except Refused as refused:
                self.refuse(client, round, refused)
        if not found:
            return []
        together = summarise(add_scores([found[client] for client in sorted(found)]), self.task)
        sites.write(self.rounds, {client: summarise(found[client], self.task) for client in sorted(found)}, together)
        return [together]

    def close(self) -> None:
        self.on_close()


def state_digest(state: State | None) -> int:
    """Return the digest of the client's state that the server has counted with."""
    return int(state[TICKET]) if state is not None and TICKET in state else digest(state)

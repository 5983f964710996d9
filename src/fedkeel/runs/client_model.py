"""A client's model: the one that an evaluation policy judges, and that can be taken out of a run."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch

from fedkeel.core.method import Method
from fedkeel.core.round import broadcast, deploy, start_client
from fedkeel.core.rule import State
from fedkeel.core.trees import Tree
from fedkeel.engines.engine import client_state
from fedkeel.errors import FolderError, RequestError
from fedkeel.problems.problem import Problem
from fedkeel.problems.task import Task
from fedkeel.runs import checkpoint
from fedkeel.runs.plan import Plan
from fedkeel.runs.prepare import method_of, task_maker
from fedkeel.runs.store import ClientStore
from fedkeel.typed_values import show_value

if TYPE_CHECKING:
    from fedkeel.runs.finished_run import Run

log = logging.getLogger("fedkeel")


@dataclass(frozen=True)
class ClientModels:
    """Makes a client's model of what the server and that client know; `whose` is as in `Evaluation.model`."""

    plan: Plan
    task: Task
    method: Method
    server: State
    whose: Literal["global", "local", "received"]

    @cached_property
    def message(self) -> State:
        return broadcast(self.method, self.server)

    @cached_property
    def deployed(self) -> State:
        return deploy(self.method, self.server)

    def __call__(self, own: State | None) -> tuple[Tree, Tree | None]:
        """Return the model of a client that remembers `own`, None before it first takes part, and its buffers."""
        state = client_state(self.method, self.task, own)
        params, buffers = self.deployed["params"], self.deployed.get("buffers")
        if self.whose == "local":
            params, buffers = state["kept"], state.get("buffers")
        elif self.whose == "received":
            params, state = start_client(self.method, self.message, state)
            buffers = state.get("buffers", buffers)
        elif self.plan.buffers == "keep":  # the server has none of its own
            buffers = state.get("buffers")
        return params, buffers

    def are_own(self) -> bool:
        """Whether clients have models of their own: what they trained last, or what begins with a part they keep."""
        if self.whose == "local" or (self.task.buffers is not None and self.plan.buffers == "keep"):
            return True
        return self.whose == "received" and self(None)[0] is not self.message["params"]

    def are_sent(self) -> bool:
        """Whether the server sends all clients another model than its own."""
        sent, kept = self.message["params"], self.server["params"]
        return self.whose == "received" and sent is not kept and not torch.equal(sent.buffer, kept.buffer)


def whose_model(plan: Plan) -> Literal["local", "received"]:
    """Which model of a client a run leaves: the one that it last trained, where that is judged and so is kept."""
    return "local" if plan.evaluation is not None and plan.evaluation.model == "local" else "received"


def find_client_model(run: Run, client: int, plan: Plan, problem: Problem) -> State:
    """Find a client's model at the end of a run, as "params" and "buffers": what "local" judges, where the run's
    policy is that; else what the client would begin the next round with."""
    task = task_maker(plan, torch.device("cpu"), run.server["params"].buffer.dtype)(problem)
    last, method = len(task.clients.sizes) - 1, method_of(plan, task)
    if isinstance(client, bool) or not isinstance(client, int) or not 0 <= client <= last:
        raise RequestError(f"this run has no client {show_value(client)}.", f"clients are numbered from 0 to {last}")
    server: State = {name: slot.to(task.device) for name, slot in run.server.items()}
    models = ClientModels(plan, task, method, server, whose_model(plan))
    if not models.are_own() and not models.are_sent():
        raise RequestError(
            f"clients of {method.name} keep no model of their own in this run: each begins with the server's.",
            'leave out the client; evaluation = {model = "local"} keeps what each client last trained',
        )
    own = find_state(run, client, task.device, models.whose) if models.are_own() else None
    params, buffers = models(own)
    return {"params": params} | ({} if buffers is None else {"buffers": buffers})


def find_state(run: Run, client: int, device: torch.device, whose: str) -> State | None:
    """Find what a client remembers at the end of a run; None of one that never trained, which a warning says."""
    if run.path is None:
        raise RequestError("this run has no folder: what its clients kept is gone.", 'train with out="runs/mine"')
    store = open_store(run.path, len(run.records), device)
    if store is None:
        raise FolderError(
            f"{run.path} has no checkpoint of round {len(run.records)}: what clients kept at this model is gone.",
            "load the run again, or restore checkpoint/ from a copy",
        )
    own = store.get(client)
    if own is None:
        if any(client in {*one.selected} - {*one.absent, *one.dropped} for one in run.records):
            raise FolderError(
                f"client {client} has trained, but {run.path} does not hold what it keeps: that stayed at its site.",
                "there fedkeel.federation.load_personal_model makes its model",
            )
        part = "its model" if whose == "local" else "its own part of the model"
        log.warning("client %d has never trained: %s is as the run began", client, part)
    return own


def open_store(folder: Path, round: int, device: torch.device) -> ClientStore | None:
    """Open what clients remembered after a round; None where the newest checkpoint is of another one."""
    found, _ = checkpoint.find_newest(folder / "checkpoint", device)
    if found is None or found.round != round:
        return None
    store = ClientStore(folder / "checkpoint", device)
    store.restore(found.places)
    return store

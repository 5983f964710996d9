"""Two rounds without gradients, which find what a method's rules do wrong before anything is trained."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch

from fedkeel.core.contract import name_of
from fedkeel.core.local_step import Gradient, StepInput
from fedkeel.core.method import Method
from fedkeel.core.objective import Objective
from fedkeel.core.round import (
    PhaseWork,
    broadcast,
    deploy,
    init_client,
    init_round,
    init_server,
    local_round,
    server_round,
)
from fedkeel.core.rule import Local, Rule, State
from fedkeel.core.stacking import check_alike
from fedkeel.core.trees import Tree, all_finite, stack
from fedkeel.engines.cost import sent
from fedkeel.engines.engine import client_facts
from fedkeel.engines.watched_rules import Watched, watch
from fedkeel.errors import MethodError
from fedkeel.problems.task import Task
from fedkeel.problems.try_objectives import try_objective
from fedkeel.randomness import list_gpus, read_generators


class Rehearsal(NamedTuple):
    """A message, a report and a state with the right slots, layouts and types; the numbers mean nothing."""

    message: State
    report: State
    state: State


def rehearse(method: Method, task: Task) -> None:
    """Refuse a method whose rules break their contract."""
    gpus = list_gpus(task.device)
    before = read_generators(gpus)
    rehearse_rounds(method, method.map_rules(watch), task)
    if before != read_generators(gpus):  # once more, to see which rule has drawn, if it was a rule
        rehearse_rounds(method, method.map_rules(partial(watch, looks=True)), task)


def rehearse_rounds(method: Method, watched: Method, task: Task) -> None:
    """Two rounds of a client and the server, and the final phase."""
    watched.travels(task.initial)
    for phase in watched.phases:
        phase.scale_rate(0, 0.0)
    first = rehearse_client(watched, task)
    for objective in method.objectives:
        models = find_teachers(method, task, objective, first)
        try_objective(task, method, objective, first.message | models)
    check_climbs(method, task, first)
    server = rehearse_server(watched, task, init_server(watched, task.initial, task.buffers), first)
    deploy(watched, server)
    if all_finite((server, first.state)):  # what is made of no gradient may be no number, and break the next round
        second = rehearse_client(watched, task, broadcast(watched, server), first.state, again=True)
        check_alike(first.report, second.report, lambda slot: reporters(watched, slot))
        rehearse_server(watched, task, server, second)
    if method.final is not None:
        rehearse_client(watched.tuning, task, first.message, first.state)


def check_climbs(method: Method, task: Task, client: Rehearsal) -> None:
    """Refuse a rule that begins a perturb chain and turns what it is given into a perturbation, but asks for no
    gradient: it would be given zeros, and perturb nothing. One that has something else to go by may have it later:
    a slot that is no longer zero, a model that has moved."""
    params, zero = task.initial, task.initial.scalar(0.0)
    some, whole = params.ones(), zero.to(torch.int64)

    numbers = count(1)

    def fill(slot: Any) -> Any:
        if isinstance(slot, Tree):  # each with other numbers: the difference of two slots is not zero
            number, buffer = next(numbers), slot.buffer
            some = number * torch.linspace(0.3, 0.9, buffer.numel()) ** number
            return Tree(some.to(buffer).view_as(buffer), slot.layout)
        return torch.ones_like(slot) if isinstance(slot, torch.Tensor) and slot.is_floating_point() else slot

    state = {name: fill(slot) for name, slot in (init_round(method, params) | client.state).items()}
    message = {name: fill(slot) for name, slot in client.message.items()}
    at = Local(params + some, params, message, None, zero + 1, whole, whole + 1, whole)
    for rule in (phase.perturb[0] for phase in method.phases if phase.perturb and phase.ascends is None):
        made, of_nothing = (rule.step(tree, state, at)[0].buffer for tree in (some, params.zeros()))
        if not of_nothing.any() and made.any() and not torch.equal(made, some.buffer):
            raise MethodError(
                f"{name_of(rule)} begins the perturb chain of {method.name!r}, and is given zeros there: it asks for "
                "no gradient, so it perturbs nothing.",
                "a class attribute asks for it: needs_gradient = fk.Loss()",
            )


def find_teachers(method: Method, task: Task, objective: Objective, client: Rehearsal) -> State:
    """Return the models that an objective compares with; refuse what no rule sends or keeps, or what is no model."""
    known = init_round(method, task.initial) | client.state | client.message
    for slot in objective.teachers:
        name = f"{type(objective).__name__} compares with the model {slot!r}"
        if slot not in known:
            raise MethodError(
                f"{name}, which no rule of {method.name!r} sends or keeps at a client.",
                f"add the rule whose broadcast sends {slot!r}, or that keeps it in client_slots",
            )
        if not isinstance(known[slot], Tree) or known[slot].layout != task.initial.layout:
            raise MethodError(f"{name}, which is no whole model.", f"keep it as one: {{{slot!r}: params}}")
    return {slot: known[slot] for slot in objective.teachers}


def rehearse_client(
    method: Method, task: Task, message: State | None = None, state: State | None = None, *, again: bool = False
) -> Rehearsal:
    """Run a client's round of one step in each phase, without its data: of the largest client.

    Or, `again`, one of two steps of the smallest, so that what differs between clients and rounds does so here.
    """
    if message is None:
        message = broadcast(method, init_server(method, task.initial, task.buffers))
    if state is None:
        state = init_client(method, task.initial, task.buffers)
    lr = torch.ones((), dtype=task.dtype, device=task.device)
    nothing, steps, sizes = torch.zeros((), dtype=torch.int64, device=task.device), 1 + again, task.clients.sizes
    inputs = [StepInput(None, nothing + step, nothing) for step in range(steps)]
    work = [PhaseWork(inputs, torch.ones(steps).to(lr) / steps) for _ in method.phases]
    chosen = np.where(sizes > 0, sizes, sizes.max() + 1).argmin() if again else sizes.argmax()
    facts = client_facts(task, int(chosen), steps, lr)
    report, after = local_round(method, _zero_gradient, message, state, work, lr, facts)
    return Rehearsal(message, report, after)


def rehearse_server(watched: Method, task: Task, server: State, client: Rehearsal) -> State:
    """Run the server's half of a round in which one client reported."""
    reports = stack([client.report])
    reports["population"] = reports["lr"].new_ones(())
    if watched.server_phase is not None:
        start = watched.weights.begin(reports, server)
        server_work = Method(watched.name, (watched.server_phase,), watched.weights).map_rules(watch)
        reports["learned"] = rehearse_client(server_work, task, client.message, start).state
    return server_round(watched, server, reports)


def reporters(watched: Method, slot: str) -> Sequence[Rule]:
    """The rule that gave a slot of the reports, as far as one did."""
    return [rule for rule in watched.local_rules if isinstance(rule, Watched) and slot in rule.told][-1:]


def expected_messages(method: Method, task: Task) -> Rehearsal:
    """Return the form of what nodes may send, known in advance, so that no node can make the server reserve memory."""
    message, report, _ = rehearse_client(method, task)
    return Rehearsal(sent(method, message), report, init_client(method, task.initial, task.buffers))


def _zero_gradient(params: Tree, batch: Any, objective: Objective, message: State, buffers: Tree | None) -> Gradient:
    return Gradient(params.zeros(), params.scalar(), buffers)

"""One federated round as pure functions: the only loops over steps and rules.

Engines differ in three functions that they hand to `local_round`: where gradients come from, how a function of one
client becomes one of many (`lift`), and how a step is repeated (`scan`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedkeel.core.contract import ASKED, check_kept_slots, check_same_slots, name_of
from fedkeel.core.local_step import (
    Body,
    Carry,
    GradientOf,
    Lift,
    PhaseContext,
    StepInput,
    count_drawing,
    keep_axes,
    make_local_step,
    with_own_keys,
)
from fedkeel.core.method import Method, Phase
from fedkeel.core.rule import Local, Rule, State
from fedkeel.core.trees import Tree, stack
from fedkeel.errors import MethodError


class PhaseWork(NamedTuple):
    """The work of one phase: the inputs of its steps, each step's share of the samples, and the key of its end."""

    steps: Iterable[StepInput]
    shares: Tensor
    key: Tensor | None = None  # None where no rule draws
    padded: bool = False


def lift_nothing(f: Callable[..., Any], dims: tuple[Any, ...]) -> Callable[..., Any]:
    """Return f unchanged: the lift of an engine that trains one client at a time."""
    return f


def scan_steps(
    phase: Phase, body: Body, carry: Carry, context: PhaseContext, steps: Iterable[StepInput]
) -> tuple[Carry, Tensor]:
    """Call the body for each step: the plain scan."""
    losses = []
    for step in steps:
        carry, loss = body(carry, context, step)
        losses.append(loss)
    return carry, torch.stack(losses, -1)


# ---- state ---------------------------------------------------------------------------------------------------------
def init_server(method: Method, params: Tree, buffers: Tree | None = None) -> State:
    server: State = {"params": params} | ({} if buffers is None else {"buffers": buffers})
    for rule in method.rules:
        server |= rule.server_slots(params)
    return server


def init_client(method: Method, params: Tree, buffers: Tree | None = None) -> State:
    """Make the state of a client that has not taken part yet: from w_0, so that it does not matter when it joins."""
    client: State = {} if buffers is None else {"buffers": buffers}
    for rule in method.rules:
        client |= rule.client_slots(params)
    return client


def init_round(method: Method, params: Tree) -> State:
    """Make what clients hold during a round only."""
    slots: State = {}
    for rule in method.local_rules:
        slots |= rule.round_slots(params)
    return slots


def broadcast(method: Method, server: State) -> State:
    message: State = {"params": server["params"]}
    for rule in method.rules:
        before, message = message, rule.broadcast(message, server)
        check_kept_slots(rule, "broadcast", "message", before, message)
    return message


def note_own_buffers(method: Method, client: State) -> State:
    """Where a client ends a round with a model that it does not send, note the buffers that this model had so far."""
    apart = "buffers" in client and not method.phases[-1].uploads
    return client | {"own_buffers": client["buffers"]} if apart else client


def start_client(method: Method, message: State, client: State) -> tuple[Tree, State]:
    """Return the model and state with which a client that has just received `message` would start its last phase."""
    params: Tree = message["params"]
    client = note_own_buffers(method, client)
    for rule in (*method.personal, *(rule for phase in method.phases for rule in phase.rules)):
        params, client = rule.start(params, client, message)
    return params, client


def admit_clients(method: Method, server: State, before: int, now: int) -> State:
    """Scale the server's means over all clients where their number has changed: those who join have nothing yet."""
    means = {slot for rule in method.rules for slot in rule.means}
    return server if now == before else server | {slot: before / now * server[slot] for slot in means}


# ---- the client's half ---------------------------------------------------------------------------------------------
@torch.no_grad()  # rules are never differentiated through; gradient() switches it on for itself
def local_round(
    method: Method,
    gradient: GradientOf,
    message: State,
    client: State,
    work: Iterable[PhaseWork],
    lr: Tensor,
    facts: State,
    *,
    lift: Lift = lift_nothing,
    scan: Callable[..., tuple[Carry, Tensor]] = scan_steps,
    message_axis: int | None = None,
) -> tuple[State, State]:
    """Train from `message`; return (report, client). `work` holds one item for each phase of the method.

    With `message_axis` = 0, `message` and `lr` have a client axis: stacked clients of several servers. `lr` is the rate
    of a step that no rule changes, `facts["lr"]` the mean over the client's steps.
    """
    steps = facts["steps"]
    nothing = torch.zeros((), dtype=torch.int64)
    client = client | {name: fact for name, fact in facts.items() if name in client}

    def enter(rules: tuple[Rule, ...], params: Tree, client: State) -> Carry:
        def f(params: Tree, client: State, message: State) -> Carry:
            before = client
            for rule in rules:
                params, client = rule.start(params, client, message)
            return params, keep_axes(before, client)

        return lift(f, (0, 0, message_axis))(params, client, message) if rules else (params, client)

    def leave(
        rules: tuple[Rule, ...], report: State, client: State, params: Tree, start: Tree, loss: Tensor,
        key: Tensor | None, drawing: int = 0,
    ) -> tuple[State, State]:  # fmt: skip
        def f(
            report: State, client: State, params: Tree, start: Tree, message: State, mean: Tensor, steps: Tensor,
            loss: Tensor, key: Tensor,
        ) -> tuple[State, State]:  # fmt: skip
            at = Local(params, start, message, None, mean, nothing, steps, key, loss)
            before = client
            for rule, own in with_own_keys(rules, at, drawing):
                report, client = rule.finish(report, client, own)
            return report, keep_axes(before, client)

        if not rules:
            return report, client
        finished: tuple[State, State] = lift(f, (0, 0, 0, 0, message_axis, 0, 0, 0, None if key is None else 0))(
            report, client, params, start, message, facts["lr"], steps, loss, nothing if key is None else key
        )
        return finished

    # every client begins where the server says; lifting over the facts gives stacked clients their axis
    params: Tree = lift(lambda message, steps: message["params"], (message_axis, 0))(message, steps)
    lasting, client = client.keys(), note_own_buffers(method, client)
    if any("round_slots" in rule.stages for rule in method.local_rules):
        client = client | lift(lambda params: init_round(method, params), (0,))(params)
    params, client = enter(method.personal, params, client)
    began, report, loss, sent = params, State(), torch.zeros_like(steps), client
    for phase, phase_work in zip(method.phases, work, strict=True):
        params, client = enter(phase.rules, params, client)
        start = params
        body = make_local_step(phase, gradient, lift, phase_work.padded, message_axis)
        context = PhaseContext(start, message, lr, steps)
        (params, client), losses = scan(phase, body, (params, client), context, phase_work.steps)
        # a step that only fills up has no share, and may have no loss
        mean = torch.where(phase_work.shares > 0, losses * phase_work.shares, 0.0).sum(-1)
        if phase.uploads:
            report["delta"] = lift(lambda p, m: p - m["params"], (0, message_axis))(params, message)
            loss, sent = mean, client
        report, client = leave(phase.rules, report, client, params, start, mean, phase_work.key)
    # buffers of the model that is sent are reported, those of a client's own model stay with it
    own = {"buffers": client["buffers"]} if "own_buffers" in client else {}
    client = client | {"buffers": sent["buffers"]} if own else client
    others = (*method.personal, *method.server, method.weights)
    drawing = count_drawing(method.phases[-1].rules)  # which had the same key
    report, client = leave(others, report, client, params, began, loss, phase_work.key, drawing)
    told = {name: fact for name, fact in facts.items() if name not in ASKED or name in method.sends}
    return report | told | {"loss": loss}, {name: client[name] for name in lasting} | own


def measure_moves(method: Method, reports: State) -> Tensor:
    """Return the length of each client's move, ‖w_i − w_t‖: a rule that reports more says how long the move was."""
    lengths: Tensor = reports["moved"] if any(rule.adds for rule in method.rules) else reports["delta"].norm()
    return lengths


def own_moves(method: Method, deltas: Tree, states: Sequence[State]) -> Tree:
    """Return each client's move, w_i − w_t, where rules report more; `states` are the clients' after the round."""
    for slot in (slot for rule in method.rules for slot in rule.adds):
        added: Tree = stack([state[slot] for state in states])
        deltas = deltas - added
    return deltas


# ---- the server's half ---------------------------------------------------------------------------------------------
@torch.no_grad()
def server_round(method: Method, server: State, reports: State, rate: float = 1.0) -> State:
    """Combine `reports`, which are stacked on a leading client axis, in client order; step at a share of the rate."""
    weights = method.weights(reports, server)
    if not isinstance(weights, Tensor) or weights.shape != reports["lr"].shape:
        shape = tuple(weights.shape) if isinstance(weights, Tensor) else type(weights).__name__
        line = f"{name_of(method.weights)} must give one weight for each of {len(reports['lr'])} clients, not {shape}."
        raise MethodError(line, 'for example: return reports["size"] / reports["size"].sum()')
    update = reports["delta"].average(weights)
    # the plain average, for rules that want it before others changed it
    reports = reports | {"weights": weights, "update": update}
    for rule in method.rules:
        before = server
        update, server = rule.server_step(update, server, reports)
        check_same_slots(rule, "server_step", "server", before, server)
    params: Tree = server["params"]
    return remember(method, server | {"params": params | params.only(update.layout) + method.server_lr * rate * update})


@torch.no_grad()
def remember(method: Method, server: State) -> State:
    """End a round on the server, also one in which nobody answered."""
    for rule in method.rules:
        before, server = server, rule.remember(server)
        check_same_slots(rule, "remember", "server", before, server)
    return server


def deploy(method: Method, server: State) -> State:
    """Return the model that is evaluated and exported: the server's own, unless a rule deploys another."""
    model: State = {name: server[name] for name in ("params", "buffers") if name in server}
    for rule in method.rules:
        before, model = model, rule.deploy(model, server)
        check_kept_slots(rule, "deploy", "model", before, model)
    return model

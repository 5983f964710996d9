"""What clients share with the server: buffers; and, where some layers are private, the other layers."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedkeel.core.method import Method
from fedkeel.core.rule import Local, Rule, State, Weighting
from fedkeel.core.trees import Tree
from fedkeel.errors import MethodError
from fedkeel.rules.corrections import DynamicDual
from fedkeel.rules.layers import Patterns, matcher
from fedkeel.rules.personal import OwnModel, PrivateLayers

HINT = "drop PrivateLayers, or choose another method for the shared layers"


@dataclass(frozen=True)
class ShareBuffers(Rule, stackable=True):
    """Clients begin with the server's buffers, which become the weighted average of theirs: b ← Σ p_i b_i.

    Buffers are what a model keeps besides its weights: running statistics of batch norms.
    """

    def broadcast(self, message: State, server: State) -> State:
        return message | {"buffers": server["buffers"]}

    def start(self, params: Tree, client: State, message: State) -> tuple[Tree, State]:
        return params, client | {"buffers": message["buffers"]}

    def finish(self, report: State, client: State, at: Local) -> tuple[State, State]:
        return report | {"buffers": client["buffers"]}, client

    def server_step(self, update: Tree, server: State, reports: State) -> tuple[Tree, State]:
        weights = reports["weights"] / reports["weights"].sum()
        return update, server | {"buffers": reports["buffers"].average(weights)}


@dataclass(frozen=True)
class Confined(Rule, stackable=True):
    """A rule that sees and remembers the shared layers alone; those that match `private` pass unchanged."""

    inner: Rule
    private: Patterns

    def __post_init__(self) -> None:
        for trait in ("needs_gradient", "random", "adds", "asks", "means", "reads", "stages"):
            object.__setattr__(self, trait, getattr(self.inner, trait))
        object.__setattr__(self, "stands_for", self.inner)

    def shared(self, tree: Tree) -> Tree:
        mine = matcher(self.private)
        return tree.only(lambda name: not mine(name))

    def see(self, state: State, slot: str = "params") -> State:
        """A message, report or server state as the inner rule sees it."""
        return state | {slot: self.shared(state[slot])} if slot in state else state

    def server_slots(self, params: Tree) -> State:
        return self.inner.server_slots(self.shared(params))

    def client_slots(self, params: Tree) -> State:
        return self.inner.client_slots(self.shared(params))

    def round_slots(self, params: Tree) -> State:
        return self.inner.round_slots(self.shared(params))

    def broadcast(self, message: State, server: State) -> State:
        sent = self.inner.broadcast(self.see(message), self.see(server))
        return sent | {"params": message["params"] | sent["params"]}

    def travels(self, params: Tree) -> Tree:
        return self.inner.travels(params)

    def scale_rate(self, round: int, done: float) -> float:
        return self.inner.scale_rate(round, done)

    def start(self, params: Tree, client: State, message: State) -> tuple[Tree, State]:
        begun, client = self.inner.start(self.shared(params), client, self.see(message))
        return params | begun, client

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        changed, client = self.inner.step(self.shared(tree), client, self.see_local(at))
        # a perturbation of the private layers would be their gradient
        rest = tree.zeros() if self.needs_gradient is not None else tree
        return rest | changed, client

    def finish(self, report: State, client: State, at: Local) -> tuple[State, State]:
        shared, client = self.inner.finish(self.see(report, "delta"), client, self.see_local(at))
        return shared | ({"delta": report["delta"] | shared["delta"]} if "delta" in report else {}), client

    def server_step(self, update: Tree, server: State, reports: State) -> tuple[Tree, State]:
        update, changed = self.inner.server_step(update, self.see(server), reports)
        return update, changed | {"params": server["params"]}

    def remember(self, server: State) -> State:
        return self.inner.remember(self.see(server)) | {"params": server["params"]}

    def deploy(self, model: State, server: State) -> State:
        deployed = self.inner.deploy(self.see(model), self.see(server))
        return deployed | {"params": model["params"] | deployed["params"]}

    def server_curves(self, message: State) -> State:
        return self.inner.server_curves(self.see(message))

    def client_curves(self, params: Tree, client: State) -> State:
        return self.inner.client_curves(self.shared(params), client)

    def see_local(self, at: Local) -> Local:
        gradient = None if at.gradient is None else self.shared(at.gradient)
        return at._replace(
            params=self.shared(at.params), start=self.shared(at.start), gradient=gradient, message=self.see(at.message)
        )


def confine(method: Method, params: Tree) -> Method:
    """A method with private layers: its rules that remember a whole model do so of the shared layers."""
    patterns = private(method)
    if not patterns:
        return method
    check_private_layers(method, params)
    # an optimiser moves the private layers, too, and remembers them where they are
    apart = (*method.personal, *(rule for rule in method.rules if rule.optimiser))
    others = [rule for rule in method.rules if rule not in apart and not isinstance(rule, Weighting)]
    slots_of = {rule: model_slots(rule, params) for rule in others}
    slots = set().union(*slots_of.values())
    touched = {rule for rule, own in slots_of.items() if own or slots.intersection(rule.reads)}
    return method.map_rules(lambda rule: Confined(rule, patterns) if rule in touched else rule)


def check_private_layers(method: Method, params: Tree) -> None:
    """Refuse what needs the private layers where they are not."""
    if any(rule.optimiser and rule.server_slots(params) for rule in method.rules):
        raise MethodError(
            f"{method.name}: the server averages the optimiser's moments, also those of private layers.",
            'moments = "reset", or "keep"',
        )
    if any(isinstance(rule, OwnModel) for rule in method.rules):
        raise MethodError(f"{method.name}: clients keep a whole model of their own already.", HINT)
    if any(isinstance(rule, DynamicDual) and rule.half for rule in method.rules):
        raise MethodError(f"{method.name}: half of its pull is weight decay, which is of private layers too.", HINT)
    if method.server_phase is not None:
        raise MethodError(f"{method.name}: the server runs clients' models, but lacks their private layers.", HINT)
    if any(objective.reference for objective in method.objectives):
        raise MethodError(f"{method.name}: clients run the server's model, whose private layers nobody trains.", HINT)


def model_slots(rule: Rule, params: Tree) -> set[str]:
    """Slots as large as the model, and the server's sketches of it."""
    server, client = rule.server_slots(params), rule.client_slots(params)
    sketches = {name for name, slot in server.items() if isinstance(slot, Tensor) and slot.dim() > 0}
    slots = (server | client).items()
    return sketches | {name for name, slot in slots if isinstance(slot, Tree) and slot.layout == params.layout}


def private(method: Method) -> Patterns:
    """Names of the layers that never leave a client."""
    return tuple(name for rule in method.personal if isinstance(rule, PrivateLayers) for name in rule.patterns)

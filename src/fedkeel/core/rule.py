"""The contract of a rule: one idea of a federated method, both halves of it, written for one client."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import field
from functools import cached_property, wraps
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from fedkeel.core.layout import Layout
from fedkeel.core.objective import Objective
from fedkeel.core.schedules import Schedule
from fedkeel.core.trees import Tree
from fedkeel.errors import MethodError
from fedkeel.typed_values import check_fields

State = dict[str, Any]
"""Named slots; each is a Tree or a tensor. Stacked states have the same names and a leading client axis."""


class Local(NamedTuple):
    """What a rule may read during a local step, of one client."""

    params: Tree  # w: where the client stands
    start: Tree  # where this phase began
    message: State  # what the server sent; "params" is w_t, unless a rule sends another model
    gradient: Tree | None  # the gradient at w, before the perturbation; None unless the phase ascends
    lr: Tensor  # 0-d, of this step; in `finish` the mean over the client's steps, so that lr · steps is their sum
    step: Tensor  # 0-d: 0, 1, … within the phase
    steps: Tensor  # 0-d: the local steps K_i of this client in this round
    key: Tensor  # 0-d int64: randomness of this (seed, round, client, phase, step, rule); `finish` has its own
    loss: Tensor | None = None  # 0-d: in a gradient chain, of the pass just made; in `finish`, the mean of the phase


class Setting(NamedTuple):
    """What is known once a method meets its problem: see `Rule.settled`."""

    layout: Layout  # of the model
    head: tuple[str, ...]  # names of the classifier's parameters
    epochs: float  # local epochs; the most, where they are drawn
    mean_size: float = 0.0  # samples of a client, on average; known to the server
    lr: float = 0.0  # the learning rate of the first round, before any schedule
    lr_decay: float = 1.0  # by which it is multiplied after each round
    lowered: bool = False  # whether networks compute in bfloat16
    names: Mapping[str, str] = MappingProxyType({})  # every name of a parameter, with the first


STAGES = (
    "server_slots", "client_slots", "round_slots", "broadcast", "travels", "scale_rate", "start", "step", "finish",
    "server_step", "remember", "deploy",
)  # fmt: skip
LOCAL_STAGES = frozenset({"start", "step", "finish"})
"""The stages of a client, which an engine may call for many clients at once."""


class Rule:
    """One idea of a method. Pure functions, all neutral by default; override only those the idea needs.

    A subclass is a frozen dataclass whose fields are the paper's hyper-parameters. It never sees a client axis, a
    device, a file or a generator, never branches on a tensor, and never writes into what it was given.

    What the functions are given: `params`, `tree` and `update` are Trees, values laid out like the model. `client` and
    `server` are what one client, and the server, remember: the slots that the rules of the method declare. `message` is
    what the server sends in this round, `report` what one client sends back, `reports` all of them, stacked on a
    leading client axis in the order of the clients' numbers. `at` is the moment of a local step, see `Local`.
    """

    needs_gradient: ClassVar[Objective | None] = None  # first in a perturb chain: whose gradient at w it starts from
    reads: ClassVar[tuple[str, ...]] = ()  # slots that other rules keep; checked when the method is built
    random: ClassVar[bool] = False  # reads `at.key`
    means: ClassVar[tuple[str, ...]] = ()  # server slots that are means over all clients: they shrink when some join
    adds: ClassVar[tuple[str, ...]] = ()  # client slots that `finish` adds to "delta"; "moved" is its length before
    asks: ClassVar[tuple[str, ...]] = ()  # facts of a client that are gathered only when asked for: "histogram"
    filters: ClassVar[bool] = False  # makes nothing of nothing: in a perturb chain it follows a rule that perturbs
    optimiser: ClassVar[bool] = False  # turns a direction into a step: the experiment's clip goes in front of it
    coupled_decay: ClassVar[bool] = False  # an optimiser whose weight decay is part of the direction, as SGD's is
    # every operation works along the last axis, so that start, step and finish are right for stacked clients, too;
    # counts for the class that says it, `class Mine(Rule, stackable=True)`: a subclass with a function of its own says
    # it anew
    stackable: ClassVar[bool] = False

    def __init_subclass__(cls, *, stackable: bool | None = None, **options: Any) -> None:
        """Note what a subclass declares; have its own `__post_init__` check its fields against their annotations."""
        super().__init_subclass__(**options)
        if stackable is not None:
            cls.stackable = stackable
        own = vars(cls).get("__post_init__")
        if own is not None:
            setattr(cls, "__post_init__", check_fields_before(own))  # noqa: B010 - not every subclass has one

    def __post_init__(self) -> None:
        check_fields(self, MethodError, f"rule {type(self).__name__}")

    @cached_property
    def stages(self) -> frozenset[str]:
        """The stages that this rule takes part in: those that it overrides."""
        return frozenset(name for name in STAGES if getattr(type(self), name) is not getattr(Rule, name))

    def fit_run(self, rounds: int, schedule: Schedule | None) -> Rule:
        """Return this rule fitted to the length of a run; refuse a run that it does not fit."""
        return self

    def settled(self, setting: Setting) -> Rule:
        """Return this rule fitted to its problem: which layers are the head, how many epochs there are."""
        return self

    def steps_needed(self, layout: Layout) -> int | None:
        """How many steps a measuring phase with this rule takes; None leaves it to the phase."""
        return None

    def passes_needed(self) -> int:
        """How many times a phase with this rule is repeated."""
        return 1

    def server_slots(self, params: Tree) -> State:
        """What the server remembers between rounds, at the start."""
        return {}

    def client_slots(self, params: Tree) -> State:
        """What each client remembers between rounds, before it first takes part.

        A slot called like a fact of the client, such as "size", holds that fact in every round.
        """
        return {}

    def round_slots(self, params: Tree) -> State:
        """What a client holds during a round only: made when the round begins, dropped when it is over."""
        return {}

    def broadcast(self, message: State, server: State) -> State:
        """What the server sends at the start of a round: `message` with what this rule adds.

        `message` holds "params", the model, and what the rules before added; `server` holds the server's slots.
        """
        return message

    def travels(self, params: Tree) -> Tree:
        """What of the server's model is sent to clients, who have the rest as it was first made."""
        return params

    def scale_rate(self, round: int, done: float) -> float:
        """By what a step's rate is multiplied when a share `done` of the client's steps in that round is taken.

        Numbers alone decide it, before the round begins.
        """
        return 1.0

    def start(self, params: Tree, client: State, message: State) -> tuple[Tree, State]:
        """Where a client begins a phase: the model that it steps from, and its slots.

        `params` is the model so far, in the first phase that of the message; `client` are this client's slots.
        """
        return params, client

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        """One link of a chain: a perturbation in a perturb chain, a direction in a gradient chain.

        `tree` is what the rule before has made of it, at first the gradient; a perturb chain whose first rule needs no
        gradient starts from zero. `client` are this client's slots, `at` says where it stands.
        """
        return tree, client

    def finish(self, report: State, client: State, at: Local) -> tuple[State, State]:
        """What a client sends and remembers at the end of a phase.

        `report` holds "delta", the client's model less the message's, once a phase that uploads is over, and what other
        rules add; in `at`, `params` is where the client ended and `start` where the phase began.
        """
        return report, client

    def server_step(self, update: Tree, server: State, reports: State) -> tuple[Tree, State]:
        """The server's half: what becomes of the averaged update, and what the server remembers.

        `update` is the weighted sum of the clients' deltas as the rules before left it. `reports` hold "delta" and what
        rules reported, the facts "size", "steps", "lr" and "loss", each [clients], and the plain numbers "weights"
        ([clients]), "update" (before any rule) and "population" (how many clients there are in all).
        """
        return update, server

    def remember(self, server: State) -> State:
        """What the server remembers at the end of a round, of its model as it is then."""
        return server

    def deploy(self, model: State, server: State) -> State:
        """The model that is evaluated and exported: "params", and "buffers" where there are any.

        Training goes on from the server's own.
        """
        return model

    def server_curves(self, message: State) -> State:
        """Numbers of a round's message that can be drawn, by the name that `track` asks for."""
        return {}

    def client_curves(self, params: Tree, client: State) -> State:
        """The same of a client's state at the end of a round: a number, or one for each layer of the model."""
        return {}


class Weighting(Rule, ABC):
    """How much each client's update counts: one weight per client, usually summing to 1."""

    def begin(self, reports: State, server: State) -> State:
        """What the server's own phase starts from, where the method has one; its end is `reports["learned"]`."""
        return {}

    @abstractmethod
    def __call__(self, reports: State, server: State) -> Tensor:
        """The weights of the clients that reported, [clients]: update = Σ weights_i · delta_i.

        `reports` are stacked in client order: "size" (training samples), "steps" (K_i), "lr" (their mean rate), "loss"
        (their mean), "delta" and what rules report in `finish`; facts in `asks`, such as "histogram", too. `server`
        holds the server's slots.
        """


def is_stackable(rule: Rule) -> bool:
    """Whether a rule, and every rule inside it, declares that it works along the last axis and draws nothing."""
    if rule.random or not declares_stackable(type(rule)):
        return False
    parts = [one for value in vars(rule).values() for one in (value if isinstance(value, tuple) else (value,))]
    return all(is_stackable(part) for part in parts if isinstance(part, Rule))


def declares_stackable(kind: type[Rule]) -> bool:
    """Whether the class that defines a rule's functions declares it; the declaration of a base class does not count."""
    for one in kind.__mro__:
        if "stackable" in vars(one):
            return bool(vars(one)["stackable"])
        if any(hasattr(own, "__get__") for name, own in vars(one).items() if not name.startswith("__")):
            return False  # it defines a function or a property
    return False


def check_fields_before(post_init: Callable[[Any], None]) -> Callable[[Any], None]:
    """Wrap a `__post_init__` so that the fields are checked against their annotations before it runs."""

    @wraps(post_init)
    def checked_post_init(self: Any) -> None:
        Rule.__post_init__(self)
        post_init(self)

    return checked_post_init


def newer_field(default: Any) -> Any:
    """Declare a field that older versions of the rule lack: it is saved only where changed, so fingerprints stay."""
    return field(default=default, metadata={"later": True})


def require(holds: bool, rule: Rule, what: str) -> None:
    """Refuse a hyper-parameter out of range when the rule is built."""
    if not holds:
        raise MethodError(f"{what}: {rule!r}", "see `fedkeel methods NAME` for the defaults")

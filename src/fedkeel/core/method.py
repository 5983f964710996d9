"""What a federated method is: rules, arranged in chains."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, prod
from typing import Any

from fedkeel.core.contract import check_method
from fedkeel.core.objective import Loss, Objective
from fedkeel.core.rule import Rule, Weighting
from fedkeel.core.trees import Tree
from fedkeel.errors import MethodError, explain_typos
from fedkeel.ranges import Count, NonNegative, Passes
from fedkeel.typed_values import check_fields

LOSS = Loss()


@explain_typos("a phase", MethodError)
@dataclass(frozen=True)
class Phase:
    """A part of local work: perturb, take the gradient there, pass it through a chain, step.

    `batches`: so many steps; `epochs`: so many passes over the client's data (0.5: half of one); neither: the
    experiment's local epochs. `same_batch`: every step sees the first batch. `trains` False: measures only, the model
    stays. `uploads`: the model at the end of this phase is what the client sends (the last such phase wins).
    `objective`: what the gradient is of, the problem's own loss or one of objectives.py.
    """

    perturb: tuple[Rule, ...] = ()
    gradient: tuple[Rule, ...] = ()
    batches: Count | None = None
    trains: bool = True
    uploads: bool = True
    objective: Objective = LOSS
    epochs: Passes | None = None
    same_batch: bool = False

    def __post_init__(self) -> None:
        check_fields(self, MethodError, "a phase")

    @property
    def rules(self) -> tuple[Rule, ...]:
        return (*self.perturb, *self.gradient)

    @property
    def chains(self) -> Iterator[tuple[str, tuple[Rule, ...]]]:
        yield "perturb", self.perturb
        yield "gradient", self.gradient

    @property
    def ascends(self) -> Objective | None:
        """The objective whose gradient the perturb chain starts from; None when it needs none."""
        return self.perturb[0].needs_gradient if self.perturb else None

    @property
    def backward_passes(self) -> int:
        """Backward passes per step, known before anything runs."""
        return (self.ascends is not None) + self.objective.differentiable

    @property
    def passes(self) -> int:
        """How many times the phase is repeated."""
        return max((rule.passes_needed() for rule in self.rules), default=1)

    @property
    def varies_rate(self) -> bool:
        """Whether the learning rate changes from step to step."""
        return any("scale_rate" in rule.stages for rule in self.rules)

    def scale_rate(self, round: int, done: float) -> float:
        """By what its rules together multiply the rate of a step."""
        return prod(rule.scale_rate(round, done) for rule in self.rules)

    def count_steps(self, size: int, batch_size: int, epochs: float, steps: int | None = None) -> int:
        """Count the steps of a client of that size: its own batches or epochs, else the `steps` or `epochs` given.

        A share of an epoch is at least one step; a client without data takes none.
        """
        if size == 0:
            return 0
        given = steps if self.batches is None else self.batches
        if given is not None and self.epochs is None:
            return given
        passes = epochs if self.epochs is None else self.epochs
        return max(1, ceil(passes * -(-size // batch_size) - 1e-9))


@explain_typos("a method", MethodError)
@dataclass(frozen=True)
class Method:
    """Phases of local work, a weighting of the results, and rules of the server and of personal models.

    `server_phase`: work of the server itself on proxy data, between the clients' reports and their combination.
    `final`: work of every client after the last round, of which nothing is sent.
    """

    name: str
    phases: tuple[Phase, ...]
    weights: Weighting
    server: tuple[Rule, ...] = ()
    personal: tuple[Rule, ...] = ()
    server_lr: NonNegative = 1.0
    papers: tuple[str, ...] = ()
    server_phase: Phase | None = None
    final: Phase | None = None

    def __post_init__(self) -> None:
        check_fields(self, MethodError, "a method")
        check_method(self)

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        """Every rule once, in the order in which the server calls them."""
        local = (rule for phase in (*self.phases, *filter(None, [self.final])) for rule in phase.rules)
        return tuple(dict.fromkeys((*self.personal, *local, *self.server, self.weights)))

    @property
    def all_phases(self) -> tuple[Phase, ...]:
        """The phases of the clients, the server's own and the final one."""
        return (*self.phases, *filter(None, (self.server_phase, self.final)))

    @property
    def local_rules(self) -> tuple[Rule, ...]:
        """The rules that clients call in a round: those of the server and the weighting at its end."""
        return (*self.personal, *(rule for phase in self.phases for rule in phase.rules), *self.server, self.weights)

    @cached_property
    def asks(self) -> frozenset[str]:
        """Facts of clients that this method needs and not every method does."""
        return self.sends | {fact for objective in self.objectives for fact in objective.asks}

    @property
    def sends(self) -> frozenset[str]:
        """Those facts that clients send, because a rule asks for them; what objectives ask for stays with a client."""
        return frozenset(fact for rule in self.rules for fact in rule.asks)

    @cached_property
    def objectives(self) -> frozenset[Objective]:
        """Every objective whose loss or gradient is taken."""
        taken = (one for phase in self.all_phases for one in (phase.objective, phase.ascends))
        return frozenset(one for one in taken if one is not None)

    @property
    def is_personal(self) -> bool:
        """Whether clients end with models of their own, which the server's is not."""
        return bool(self.personal) or self.final is not None or not self.phases[-1].uploads

    @property
    def deploys_another(self) -> bool:
        """Whether another model is evaluated and exported than the one that is trained."""
        return any("deploy" in rule.stages for rule in self.rules)

    def travels(self, params: Tree) -> Tree:
        """What of the server's model is sent to clients."""
        for rule in self.rules:
            params = rule.travels(params)
        return params

    @property
    def tuning(self) -> Method:
        """The final phase as a method: what every client does after the last round, from what it remembers."""
        assert self.final is not None
        method = copy(self)
        vars(method).update(phases=(replace(self.final, uploads=True),), final=None)
        for cached in ("rules", "asks", "objectives"):
            vars(method).pop(cached, None)
        return method

    def map_phases(self, change: Callable[[Phase], Phase]) -> Method:
        """Return this method with `change` applied to every phase of its clients."""
        changed: dict[Phase, Phase] = {}  # one that is repeated stays one object: its steps are captured once
        phases = tuple(changed.setdefault(phase, change(phase)) for phase in self.phases)
        return replace(self, phases=phases, final=None if self.final is None else change(self.final))

    def map_rules(self, change: Callable[[Rule], Rule]) -> Method:
        """Return this method with `change` applied to every rule."""

        def change_phase(phase: Phase) -> Phase:
            return replace(
                phase, perturb=tuple(map(change, phase.perturb)), gradient=tuple(map(change, phase.gradient))
            )

        weights = change(self.weights)
        assert isinstance(weights, Weighting)
        return replace(
            self.map_phases(change_phase),
            weights=weights,
            server=tuple(map(change, self.server)),
            personal=tuple(map(change, self.personal)),
        )

    def then(self, *rules: Rule) -> Method:
        """Return this method with `rules` appended to the gradient chain of every training phase."""
        return self.map_phases(lambda p: replace(p, gradient=(*p.gradient, *rules)) if p.trains else p)


@explain_typos("fk.method", MethodError)
def method(
    name: str,
    *,
    perturb: Rule | Sequence[Rule] = (),
    gradient: Rule | Sequence[Rule] = (),
    weights: Weighting,
    server: Rule | Sequence[Rule] = (),
    personal: Rule | Sequence[Rule] = (),
    server_lr: float = 1.0,
    papers: str | Sequence[str] = (),
    objective: Objective = LOSS,
) -> Method:
    """Build a method with one phase of local work, the common case. A single rule is a chain of one."""
    phase = Phase(_as_tuple(perturb), _as_tuple(gradient), objective=objective)
    return Method(name, (phase,), weights, _as_tuple(server), _as_tuple(personal), server_lr, _as_tuple(papers))


def _as_tuple(given: Any) -> tuple[Any, ...]:
    return tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (given,)

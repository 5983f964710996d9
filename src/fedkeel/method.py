"""What a federated method is: rules, arranged in chains."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, isfinite
from typing import Any

import torch

from fedkeel.errors import MethodError
from fedkeel.objectives import Loss, Objective
from fedkeel.rule import Rule, Weighting
from fedkeel.trees import Tree

FACTS = ("size", "steps", "lr", "population", "loss", "client", "histogram", "learned", "weights", "update", "delta")
"""What reports hold besides the slots of rules."""

LOSS = Loss()


@dataclass(frozen=True)
class Phase:
    """A stretch of local work: perturb, take the gradient there, pass it through a chain, step.

    `batches`: so many steps; `epochs`: so many passes over the client's data (0.5: half of one); neither: the
    experiment's local epochs. `same_batch`: every step sees the first batch. `trains` False: measures only, the model
    stays. `uploads`: the model at the end of this phase is what the client sends (the last such phase wins).
    `objective`: what the gradient is of, the problem's own loss or one of objectives.py.
    """

    perturb: tuple[Rule, ...] = ()
    gradient: tuple[Rule, ...] = ()
    batches: int | None = None
    trains: bool = True
    uploads: bool = True
    objective: Objective = LOSS
    epochs: float | None = None
    same_batch: bool = False

    @property
    def rules(self) -> tuple[Rule, ...]:
        return (*self.perturb, *self.gradient)

    @property
    def ascends(self) -> Objective | None:
        """The objective whose gradient the perturb chain starts from; None when it needs none."""
        return self.perturb[0].needs_gradient if self.perturb else None

    @property
    def backward_passes(self) -> int:
        """Per step: known before anything runs."""
        return (self.ascends is not None) + self.objective.differentiable

    def batches_of(self, size: int, batch_size: int) -> int | None:
        """The steps of a client of that size; None: as the experiment's local epochs say."""
        if self.epochs is None or size == 0:
            return self.batches
        return max(1, ceil(self.epochs * -(-size // batch_size) - 1e-9))


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
    server_lr: float = 1.0
    papers: tuple[str, ...] = ()
    server_phase: Phase | None = None
    final: Phase | None = None

    def __post_init__(self) -> None:
        check(self)

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        """Every rule once, in the order in which the server asks them."""
        local = (rule for phase in (*self.phases, *filter(None, [self.final])) for rule in phase.rules)
        return tuple(dict.fromkeys((*self.personal, *local, *self.server, self.weights)))

    @cached_property
    def asks(self) -> frozenset[str]:
        """Facts of clients that only some methods need."""
        wanted = {fact for objective in self.objectives for fact in objective.asks}
        return frozenset(wanted | {fact for rule in self.rules for fact in rule.asks})

    @cached_property
    def objectives(self) -> frozenset[Objective]:
        """Every objective of which a loss or a gradient is taken."""
        phases = (*self.phases, *filter(None, [self.final, self.server_phase]))
        return frozenset(one for phase in phases for one in (phase.objective, phase.ascends) if one is not None)

    @property
    def tuning(self) -> Method:
        """The final phase as a method: what every client does after the last round."""
        assert self.final is not None
        return replace(self, phases=(self.final,), final=None)

    def each_phase(self, change: Callable[[Phase], Phase]) -> Method:
        """This method with every phase of its clients changed."""
        phases = tuple(change(phase) for phase in self.phases)
        return replace(self, phases=phases, final=None if self.final is None else change(self.final))

    def each_rule(self, change: Callable[[Rule], Rule]) -> Method:
        """This method with every rule changed."""

        def changed(phase: Phase) -> Phase:
            return replace(
                phase, perturb=tuple(map(change, phase.perturb)), gradient=tuple(map(change, phase.gradient))
            )

        weights = change(self.weights)
        assert isinstance(weights, Weighting)
        return replace(
            self.each_phase(changed),
            weights=weights,
            server=tuple(map(change, self.server)),
            personal=tuple(map(change, self.personal)),
        )

    def then(self, *rules: Rule) -> Method:
        """This method with more rules at the end of every training phase's gradient chain."""
        return self.each_phase(lambda p: replace(p, gradient=(*p.gradient, *rules)) if p.trains else p)


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
    """The common case: one phase of local work. A rule alone is a chain of one."""
    phase = Phase(_several(perturb), _several(gradient), objective=objective)
    return Method(name, (phase,), weights, _several(server), _several(personal), server_lr, _several(papers))


def _several(given: Any) -> tuple[Any, ...]:
    return tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (given,)


def check(method: Method) -> None:
    """Refuse rules that do not fit together, before anything runs."""
    if not isinstance(method.name, str) or not method.name.strip():
        raise MethodError(f"a method needs a name, not {method.name!r}.", 'for example name = "mine"')
    for part, chain in _chains(method):
        wrong = chain if not isinstance(chain, tuple) else next((r for r in chain if not isinstance(r, Rule)), None)
        if wrong is not None:
            raise MethodError(
                f"{part} of {method.name!r} must hold rules, not {wrong!r}.", f"for example {part}=(Sam(0.1),)"
            )
        again = [rule for i, rule in enumerate(chain) if rule in chain[:i] and _slots_of(rule)]
        if again:
            raise MethodError(
                f"{type(again[0]).__name__} stands twice in {part} of {method.name!r}, and would keep its state twice.",
                "use it once",
            )
    if not _is_number(method.server_lr):
        raise MethodError(f"server_lr of {method.name!r} must be a finite number: {method.server_lr!r}", "1.0 is usual")
    for phase in filter(None, (*method.phases, method.server_phase, method.final)):
        if (phase.batches is not None and phase.batches < 1) or (phase.epochs is not None and not phase.epochs > 0):
            raise MethodError(
                f"a phase of {method.name!r} must take a step: batches = {phase.batches}, epochs = {phase.epochs}.",
                "batches of at least 1, epochs above 0",
            )
    if not any(phase.uploads for phase in method.phases):
        raise MethodError(
            f"no phase of {method.name!r} uploads, so its clients would send nothing.", "set uploads=True on one phase"
        )
    if not isinstance(method.weights, Weighting):
        raise MethodError(
            f"{type(method.weights).__name__} is not a weighting of clients.", "use weights=BySize() or Uniform()"
        )
    for phase in filter(None, (*method.phases, method.server_phase, method.final)):
        for what, one in (("the objective", phase.objective), ("what its first rule climbs on", phase.ascends)):
            if not isinstance(one, Objective | None):
                raise MethodError(
                    f"{what} of a phase of {method.name!r} must be an Objective, not {one!r}.",
                    "for example fk.Loss(), fk.Value() or fk.Calibrated(0.5)",
                )
    for phase in method.phases:
        for rule in phase.perturb[1:]:
            if rule.needs_gradient is not None:
                raise MethodError(
                    f"{type(rule).__name__} climbs along a gradient, but is not first in the perturb chain of "
                    f"{method.name!r}.",
                    "put it first; filters follow it",
                )
    _check_slots(method)


def _chains(method: Method) -> Iterator[tuple[str, Any]]:
    """Every chain of rules, by the name of its part."""
    for phase in filter(None, (*method.phases, method.server_phase, method.final)):
        yield "perturb", phase.perturb
        yield "gradient", phase.gradient
    yield "server", method.server
    yield "personal", method.personal


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _slots_of(rule: Rule) -> dict[str, Any]:
    sample = Tree.of({"weight": torch.zeros(2, 2), "bias": torch.zeros(2)})
    return {**rule.server_slots(sample), **rule.client_slots(sample)}


def _check_slots(method: Method) -> None:
    owners: dict[str, Rule] = {}
    for rule in method.rules:
        for slot, value in _slots_of(rule).items():
            if not isinstance(value, Tree | torch.Tensor):
                raise MethodError(
                    f"slot {slot!r} of {type(rule).__name__} must be a tree or a tensor, not {type(value).__name__}.",
                    "params.zeros(), or params.scalar(0.0) for a number",
                )
            if slot in owners:
                raise MethodError(
                    f"{type(owners[slot]).__name__} and {type(rule).__name__} of {method.name!r} both keep {slot!r}.",
                    "use one of them, or give one slot another name",
                )
            owners[slot] = rule
    for rule in method.rules:
        for slot in rule.reads:
            if slot not in owners and slot not in FACTS:
                raise MethodError(
                    f"{type(rule).__name__} reads slot {slot!r}, which no rule of {method.name!r} keeps.",
                    f"add the rule that keeps {slot!r}",
                )

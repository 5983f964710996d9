"""What a federated method is: rules, arranged in chains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from fedkeel.errors import MethodError
from fedkeel.rule import Rule, Weighting
from fedkeel.trees import Tree

FACTS = ("size", "steps", "lr", "population", "loss", "client", "weights", "update", "delta")
"""What every report holds besides the slots of rules."""


@dataclass(frozen=True)
class Phase:
    """A stretch of local work: perturb, take the gradient there, pass it through a chain, step.

    `batches`: None is the experiment's local epochs. `trains` False: measures only, the model stays.
    `uploads`: the model at the end of this phase is what the client sends (the last such phase wins).
    """

    perturb: tuple[Rule, ...] = ()
    gradient: tuple[Rule, ...] = ()
    batches: int | None = None
    trains: bool = True
    uploads: bool = True
    objective: str = "loss"

    @property
    def rules(self) -> tuple[Rule, ...]:
        return (*self.perturb, *self.gradient)

    @property
    def ascends(self) -> str:
        """The objective whose gradient the perturb chain starts from; empty when it needs none."""
        return self.perturb[0].needs_gradient if self.perturb else ""

    @property
    def backward_passes(self) -> int:
        """Per step: known before anything runs."""
        return 2 if self.ascends else 1


@dataclass(frozen=True)
class Method:
    """Phases of local work, a weighting of the results, and rules of the server and of personal models."""

    name: str
    phases: tuple[Phase, ...]
    weights: Weighting
    server: tuple[Rule, ...] = ()
    personal: tuple[Rule, ...] = ()
    server_lr: float = 1.0
    papers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check(self)

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        """Every rule once, in the order in which the server asks them."""
        local = (rule for phase in self.phases for rule in phase.rules)
        return tuple(dict.fromkeys((*self.personal, *local, *self.server, self.weights)))

    def then(self, *rules: Rule) -> Method:
        """This method with more rules at the end of every training phase's gradient chain."""
        phases = (replace(p, gradient=(*p.gradient, *rules)) if p.trains else p for p in self.phases)
        return replace(self, phases=tuple(phases))


def method(
    name: str,
    *,
    perturb: Sequence[Rule] = (),
    gradient: Sequence[Rule] = (),
    weights: Weighting,
    server: Sequence[Rule] = (),
    personal: Sequence[Rule] = (),
    server_lr: float = 1.0,
    papers: Sequence[str] = (),
) -> Method:
    """The common case: one phase of local work."""
    phase = Phase(tuple(perturb), tuple(gradient))
    return Method(name, (phase,), weights, tuple(server), tuple(personal), server_lr, tuple(papers))


def check(method: Method) -> None:
    """Refuse rules that do not fit together, before anything runs."""
    if not any(phase.uploads for phase in method.phases):
        raise MethodError(
            f"no phase of {method.name!r} uploads, so its clients would send nothing.", "set uploads=True on one phase"
        )
    if not isinstance(method.weights, Weighting):
        raise MethodError(
            f"{type(method.weights).__name__} is not a weighting of clients.", "use weights=BySize() or Uniform()"
        )
    for phase in method.phases:
        for rule in phase.perturb[1:]:
            if rule.needs_gradient:
                raise MethodError(
                    f"{type(rule).__name__} climbs along a gradient, but is not first in the perturb chain of "
                    f"{method.name!r}.",
                    "put it first; filters follow it",
                )
    _check_slots(method)


def _check_slots(method: Method) -> None:
    sample = Tree.of({"weight": torch.zeros(2, 2), "bias": torch.zeros(2)})
    owners: dict[str, Rule] = {}
    for rule in method.rules:
        for slot in {*rule.server_slots(sample), *rule.client_slots(sample)}:
            if slot in owners:
                raise MethodError(
                    f"{type(owners[slot]).__name__} and {type(rule).__name__} of {method.name!r} both keep slot {slot!r}.",
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

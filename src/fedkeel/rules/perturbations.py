"""Perturbations: where the gradient is taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedkeel.rule import Local, Rule, State, require
from fedkeel.trees import Tree


@dataclass(frozen=True)
class Sam(Rule):
    """Climb along the local gradient: ρ g / ‖g‖.  rho = 0 takes the gradient at w.  (SAM, Foret et al. 2021)"""

    rho: float
    needs_gradient: ClassVar[str] = "loss"

    def __post_init__(self) -> None:
        require(self.rho >= 0, self, "rho must not be negative")

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        return self.rho * tree.unit(), client

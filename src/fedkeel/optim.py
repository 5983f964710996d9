"""Plug-ins for training loops of one's own: SAM with any perturbation rules, and filters for gradients.

opt = fk.optim.SAM(model.parameters(), torch.optim.SGD(...), rho=0.1, perturbation=fk.HighPass(0.01))
fk.optim.filter_gradients_(model.parameters(), fk.HighPass(0.05))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from fedkeel.core.rule import Local, Rule
from fedkeel.core.trees import Tree
from fedkeel.errors import MethodError, RequestError, ask_for_object, explain_typos
from fedkeel.rules import Sam
from fedkeel.typed_values import show_value

__all__ = ["SAM", "filter_gradients_"]


def list_params(params: Any) -> list[Tensor]:
    """Parameters as a list; refuse a module, and a tensor alone: its rows have no gradients."""
    found: list[Any] = [None] if isinstance(params, Tensor) or not isinstance(params, Iterable) else list(params)
    if not all(isinstance(one, Tensor) for one in found):
        raise RequestError(f"parameters are tensors in a list, not {type(params).__name__}.", "model.parameters()")
    return found


def list_rules(rules: Iterable[Any]) -> tuple[Rule, ...]:
    """Rules as they are; refuse what is none."""
    for one in rules:
        if not isinstance(one, Rule):
            hint = ask_for_object(one) if isinstance(one, type) else "fk.HighPass(0.01)"
            raise MethodError(f"gradients pass through rules, not {show_value(one)}.", hint)
    return tuple(rules)


def gradients(params: Iterable[Tensor]) -> tuple[list[Tensor], Tree, Tree]:
    """Parameters that have a gradient, their values and their gradients."""
    held = [p for p in params if p.grad is not None]
    values = Tree.of({str(i): p.detach() for i, p in enumerate(held)})
    return held, values, Tree.of({str(i): p.grad for i, p in enumerate(held) if p.grad is not None}, values.layout)


def passed(tree: Tree, values: Tree, rules: tuple[Rule, ...]) -> Tree:
    """A tree through a chain of rules that neither remember nor draw."""
    zero = values.scalar()
    at = Local(values, values, {"params": values}, tree, zero, zero, zero, zero.to(torch.int64))
    for rule in rules:
        if any(slots(values) for slots in (rule.client_slots, rule.round_slots, rule.server_slots)) or rule.random:
            raise MethodError(
                f"{type(rule).__name__} remembers or draws something, which an optimiser of one's own cannot.",
                "take a rule that does not, such as fk.HighPass, or train with fk.run",
            )
        tree, _ = rule.step(tree, {}, at)
    return tree


@torch.no_grad()
def filter_gradients_(params: Iterable[Tensor], *rules: Rule) -> None:
    """Pass the gradients through rules, in place: call it between `backward()` and `step()`."""
    held, values, tree = gradients(list_params(params))
    rules = list_rules(rules)
    if held:
        for i, leaf in passed(tree, values, rules).items():
            grad = held[int(i)].grad
            assert grad is not None
            grad.copy_(leaf)


@explain_typos("fk.optim.SAM")
class SAM:
    """Sharpness-aware steps around another optimiser: climb by ρ g / ‖g‖ passed through `perturbation`, then step.

    Give `step` a closure that computes the loss and calls backward; or call `first_step`, compute the gradient again,
    and call `second_step`. rho = 0 is the other optimiser.  (Foret et al. 2021; FedFFT with HighPass)
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        base: torch.optim.Optimizer,
        *,
        rho: float = 0.05,
        perturbation: Rule | Sequence[Rule] = (),
    ):
        if isinstance(base, type) or not hasattr(base, "step"):
            raise RequestError(f"SAM steps with another optimiser, not {show_value(base)}.", "torch.optim.SGD(…)")
        self.params, self.base = list_params(params), base
        if not self.params:
            raise RequestError("SAM was given no parameters.", "a generator ends: call model.parameters() anew")
        rest = perturbation if isinstance(perturbation, list | tuple) else (perturbation,)
        self.rules: tuple[Rule, ...] = (Sam(rho), *list_rules(rest))
        self.before: list[tuple[Tensor, Tensor]] = []

    @torch.no_grad()
    def first_step(self) -> None:
        """Climb, and clear the gradients."""
        held, values, tree = gradients(self.params)
        # kept to be put back: subtracting the perturbation would not give the same bits
        self.before = [(p, p.detach().clone()) for p in held]
        if held:
            for i, leaf in passed(tree, values, self.rules).items():
                held[int(i)].add_(leaf)
        self.base.zero_grad()

    @torch.no_grad()
    def second_step(self) -> None:
        """Go back, and step along the gradient found above."""
        for p, value in self.before:
            p.copy_(value)
        self.before = []
        self.base.step()

    def step(self, closure: Callable[[], Tensor]) -> Tensor:
        """Both steps; `closure` is called twice and must call backward. Returns the first loss."""
        self.base.zero_grad()
        with torch.enable_grad():
            loss = closure()
        self.first_step()
        with torch.enable_grad():
            closure()
        self.second_step()
        return loss.detach()

    def zero_grad(self) -> None:
        self.base.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        return self.base.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.base.load_state_dict(state)

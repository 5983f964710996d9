"""Reports of clients, stacked as they arrive; one that is unlike the others is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor
from torch.utils import _pytree

from fedkeel.core.contract import name_of, shape_of
from fedkeel.core.method import Method
from fedkeel.core.rule import Rule, State
from fedkeel.errors import MethodError


class Stacking:
    """Stack reports as they arrive: each is copied into its row at once and can be freed; `stack` of rows is free."""

    def __init__(self, clients: int, method: Method):
        self.clients, self.method = clients, method
        self.slots: State | None = None

    def put(self, i: int, report: State) -> State:
        """Copy a report into row i and return that row; refuse one that is unlike the first."""
        if self.slots is None:
            self.first = report
            self.slots = _pytree.tree_map(lambda leaf: leaf.new_empty((self.clients, *leaf.shape)), report)
        check_alike(self.first, report, lambda _: (one for one in self.method.local_rules if "finish" in one.stages))
        row: State = _pytree.tree_map(lambda slot, leaf: slot[i].copy_(leaf), self.slots, report)
        if self.first is report:
            self.first = row  # the report itself can be freed
        return row


def check_alike(first: State, report: State, reporters: Callable[[str], Iterable[Rule]]) -> None:
    """Refuse a report with other slots than the first, or of another shape; `reporters` may have given a slot."""
    for slot in (*first, *(report.keys() - first.keys())):
        if slot in first and slot in report and shape_of(first[slot]) == shape_of(report[slot]):
            continue
        who = " or ".join(dict.fromkeys(f"{name_of(rule)}.finish" for rule in reporters(slot))) or "a rule's finish"
        if slot not in first or slot not in report:
            raise MethodError(
                f"{who} reports {slot!r} at some clients or in some rounds only, but reports are stacked.",
                "report it always: zeros where there is nothing yet",
            )
        raise MethodError(
            f"{who} reports {slot!r} in several shapes, {_written(first[slot])} and {_written(report[slot])}, but "
            "reports are stacked.",
            "give it the same length at all clients and in all rounds: fill it up with zeros",
        )


def _written(slot: Any) -> str:
    return str(tuple(slot.shape)) if isinstance(slot, Tensor) else str(slot)

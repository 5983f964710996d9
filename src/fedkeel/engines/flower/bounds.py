"""How large a report may be: each slot of it is compared with the other clients' and with what was counted before."""

from __future__ import annotations

import json
import logging
import math
import statistics
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedkeel.core.rule import State
from fedkeel.core.states import write_text
from fedkeel.core.trees import Tree

log = logging.getLogger("fedkeel")

RECENT = 50  # sizes of counted slots that a new one is compared with
MAJORITY = 3  # clients of a round whose median one of them cannot move


def slot_size(slot: Tree | Tensor) -> float:
    """Return the root of the mean square of a slot's numbers, in float64, where no finite float32 overflows."""
    numbers = slot.buffer if isinstance(slot, Tree) else slot
    numbers = numbers if numbers.is_floating_point() else numbers.double()
    length = float(torch.linalg.vector_norm(numbers, dtype=torch.float64))
    return length / math.sqrt(max(1, numbers.numel()))


class SlotBounds:
    """What was usual for each slot so far, and whether a report is unusual.

    A slot may be `factor` times as large as the largest median so far of the round's and the last counted ones, which
    a minority of nodes cannot move. Where the median is zero, or there is nothing to compare with, a slot may reach
    factor² a number. A single number may always reach 1: a cosine or a small loss is often next to zero.
    """

    def __init__(self, factor: float, file: Path | None = None):
        self.factor, self.file = factor, file
        self.recent: dict[str, deque[float]] = {}
        self.largest: dict[str, float] = {}

    def find_unusual(self, reports: Mapping[int, State]) -> dict[int, str]:
        """Find the clients with a slot that is far too large, and say which. Reports that are not finite are others'
        to judge."""
        unusual: dict[int, str] = {}
        for name in sorted({name for report in reports.values() for name in report}):
            sizes = {
                client: size for client, report in reports.items() if math.isfinite(size := slot_size(report[name]))
            }
            usual = self.usual(name, list(sizes.values()))
            for client, size in sizes.items():
                limit = self.factor * usual if usual > 0 else self.factor**2
                if not isinstance(reports[client][name], Tree) and reports[client][name].dim() == 0:
                    limit = max(limit, 1.0)
                if size > limit:
                    times = (
                        f"{size / usual:.0f} times as long as usual" if usual > 0 else f"{size:.3g} a number in size"
                    )
                    unusual.setdefault(client, f"its {name} is {times}")
        return unusual

    def usual(self, name: str, here: Sequence[float]) -> float:
        """Return what is usual for a slot, given its sizes in this round."""
        pool = [*here, *self.recent.get(name, ())]
        middle = statistics.median_low(pool) if len(pool) > 1 else 0.0
        own = statistics.median_low(here) if len(here) >= MAJORITY else 0.0
        return max(middle, own, self.largest.get(name, 0.0))

    def remember(self, reports: Iterable[State]) -> None:
        """Remember how large the counted reports were, also in the file beside the run."""
        sizes: dict[str, list[float]] = {}
        for report in reports:
            for name, slot in report.items():
                if math.isfinite(size := slot_size(slot)):
                    sizes.setdefault(name, []).append(size)
        for name, here in sizes.items():
            self.largest[name] = self.usual(name, here)
            self.recent.setdefault(name, deque(maxlen=RECENT)).extend(here)
        if self.file is not None:
            recent = {name: [*sizes] for name, sizes in self.recent.items()}
            write_text(self.file, json.dumps({"recent": recent, "largest": self.largest}))

    def restore(self) -> bool:
        """Read what an earlier session has remembered; False where there is nothing that can be read."""
        if self.file is None or not self.file.exists():
            return False
        try:
            kept: dict[str, Any] = json.loads(self.file.read_text(encoding="utf-8"))
            recent = {str(name): [check_size(size) for size in sizes] for name, sizes in kept["recent"].items()}
            largest = {str(name): check_size(size) for name, size in kept["largest"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            log.warning("%s cannot be read, so reports are compared with new ones only: %s", self.file, error)
            return False
        self.recent = {name: deque(sizes, RECENT) for name, sizes in recent.items()}
        self.largest = largest
        return True


def check_size(size: object) -> float:
    """Return a size that can be one."""
    if not isinstance(size, int | float) or not 0 <= size < math.inf:
        raise ValueError(f"{str(size)[:20]!r} is no size")
    return float(size)

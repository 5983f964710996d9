"""When checkpoints are written, and where runs that train as one stack go on after a kill."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from fedkeel.errors import FolderError
from fedkeel.runs.checkpoint import KEPT, list_checkpoints, round_of
from fedkeel.runs.folder import EXPERIMENT, RESULT, read_environment

SHARE = 20  # a checkpoint that takes long is written more seldom: a twentieth of the time at most


class SaveClock:
    """Tells once a round whether a checkpoint is due. Runs of one stack share a clock: they save in the same rounds."""

    def __init__(self) -> None:
        self.last, self.round, self.due = time.monotonic(), -1, False

    def is_due(self, round: int, seconds: float, saving: float) -> bool:
        """Whether the last checkpoint, which took `saving`, is old enough after a round; 0 asks for one every time."""
        if round != self.round:
            patience = max(seconds, SHARE * saving) if seconds else 0.0
            self.round, self.due = round, time.monotonic() - self.last >= patience
        return self.due

    def restart(self) -> None:
        self.last = time.monotonic()


def find_common_rounds(folders: Sequence[str | PathLike[str] | None]) -> list[int | None]:
    """The round from which each run has to go on so that its stack is complete; None: from its last checkpoint.

    A kill may come between the checkpoints of two runs of a stack. Alone, the one that is behind would train in a
    smaller stack, and end with other last digits. Each run has its last two checkpoints, so they have one in common.
    """
    stacks: dict[tuple[str, ...], list[int]] = {}
    found: list[int | None] = [None] * len(folders)
    kept: dict[int, set[int]] = {}
    for run, folder in enumerate(folders):
        if not isinstance(folder, str | PathLike):
            continue
        with contextlib.suppress(FolderError, OSError, RuntimeError, ValueError):  # told when the run is started
            place = Path(folder).expanduser()
            if (place / EXPERIMENT).is_file() and not (place / RESULT).exists():
                stack = read_environment(place).get("stack", ())
                kept[run] = list_rounds(place)
                stacks.setdefault(tuple(map(str, stack)), []).append(run)
    for stack, runs in stacks.items():
        if len(stack) > 1 and (common := set.intersection(*(kept[run] for run in runs))):
            for run in runs:
                found[run] = max(common)
    return found


def list_rounds(folder: Path) -> set[int]:
    """The rounds from which a run can go on: those of its checkpoints, and its start while none has been removed."""
    rounds = {round_of(path) for path in list_checkpoints(folder / "checkpoint")}
    return rounds if len(rounds) >= KEPT else {0, *rounds}

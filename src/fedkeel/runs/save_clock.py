"""When checkpoints are written, and where runs that train as one stack go on after a kill."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import NamedTuple

from fedkeel.errors import FolderError
from fedkeel.runs.checkpoint import KEPT, list_checkpoints, round_of
from fedkeel.runs.folder import DIVERGED, EXPERIMENT, RESULT, read_environment, rounds_in

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


class Unfinished(NamedTuple):
    """What a run that has no result has made so far."""

    saved: set[int]  # the rounds of its checkpoints
    made: int  # rounds, also those after its last checkpoint
    fresh: bool  # whether it was never continued
    diverged: bool

    def can_follow(self, round: int) -> bool:
        """Whether its stack can go on from a round; one that diverged before is not in it any more."""
        return round in self.saved or (self.diverged and round > max(self.saved))


def find_common_rounds(folders: Sequence[str | PathLike[str] | None]) -> list[int | None]:
    """The round from which each run has to go on so that its stack is complete; None: from its last checkpoint.

    A kill may come between the checkpoints of two runs of a stack. Alone, the one that is behind would train in a
    smaller stack, and end with other last digits.
    """
    stacks: dict[str, dict[int, Unfinished]] = {}
    for number, folder in enumerate(folders):
        if not isinstance(folder, str | PathLike):
            continue
        with contextlib.suppress(FolderError, OSError, RuntimeError, ValueError):  # told when the run is started
            place = Path(folder).expanduser()
            if (place / EXPERIMENT).is_file() and not (place / RESULT).exists():
                stack = read_environment(place).get("stack")
                if isinstance(stack, list):
                    stacks.setdefault(repr(stack), {})[number] = read_unfinished(place)
    rounds = {number: find_common(list(runs.values())) for runs in stacks.values() for number in runs}
    return [rounds.get(number) for number in range(len(folders))]


def read_unfinished(place: Path) -> Unfinished:
    saved = {round_of(path) for path in list_checkpoints(place / "checkpoint")}
    sessions = read_environment(place).get("engines")
    fresh = isinstance(sessions, list) and len(sessions) == 1
    return Unfinished(saved, len(rounds_in(place).lines), fresh, (place / DIVERGED).exists())


def find_common(runs: Sequence[Unfinished]) -> int | None:
    """The last round from which all these runs can go on. Each has its last two checkpoints, so runs that trained side
    by side have one in common, or were killed at their first; others, which failed or came later, may have none."""
    if len(runs) == 1:
        return None
    if unsaved := [run.made for run in runs if not run.saved]:
        first = max(max(run.saved, default=0) for run in runs)
        begun = all(run.fresh and len(run.saved) < KEPT for run in runs)
        return 0 if begun and first <= min(unsaved) + 1 else None
    rounds = set.union(*(run.saved for run in runs))
    return max((round for round in rounds if all(run.can_follow(round) for run in runs)), default=None)

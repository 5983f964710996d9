"""Whether a disk has room for what clients remember, asked before the first round."""

from __future__ import annotations

import errno
import logging
import shutil
from collections.abc import Sequence
from typing import NamedTuple

from fedkeel.core.round import init_client
from fedkeel.core.trees import state_bytes
from fedkeel.errors import RunError
from fedkeel.runs.checkpoint import CLIENTS, KEPT
from fedkeel.runs.loop import Loop
from fedkeel.runs.run_folder import RunFolder
from fedkeel.runs.store import count_together
from fedkeel.text import byte_size

log = logging.getLogger("fedkeel")

HINT = "free some space, or choose a folder on another disk"


class Need(NamedTuple):
    """Bytes of client states: on disk now, new after the next round, written in all rounds, of all clients once."""

    there: int
    next_round: int
    all_rounds: int
    once: int


def check_room(loops: Sequence[Loop]) -> None:
    """Warn where the states of the clients may not fit on their disk; refuse where those of the next round cannot.

    Disks that do not tell their size are not asked. A run keeps KEPT checkpoints, between which every client may have
    changed. One run at a time writes another beside them.
    """
    needs = [estimate(loop, loop.folder) for loop in loops if loop.folder is not None]
    if not needs:
        return
    path = next(loop.folder.path for loop in loops if loop.folder is not None)
    there, next_round, all_rounds, once = map(sum, zip(*needs, strict=True))
    try:
        total, _, free = shutil.disk_usage(path)
    except OSError:
        return
    if not total:
        return
    most = KEPT * once + max(need.once for need in needs)
    states = "what clients remember" if len(needs) == 1 else f"what clients of {len(needs)} runs remember"
    room = f"and {path} has {byte_size(free)} left on its disk"
    if next_round > free + there:
        # the cause says that the disk is to blame, not the method
        full = OSError(errno.ENOSPC, "No space left on device")
        raise RunError(f"{states} takes {byte_size(next_round)} after one round, {room}.", HINT) from full
    if (more := min(most - there, all_rounds)) > free:
        log.warning("%s may take %s more, %s: %s", states, byte_size(more), room, HINT)


def find_disk(loop: Loop) -> int | None:
    """The number of the disk that a run is written to."""
    return None if loop.folder is None else loop.folder.path.stat().st_dev


def estimate(loop: Loop, folder: RunFolder) -> Need:
    """Estimate what the clients of a run take, whoever of them is selected.

    Small states share a file, which is written anew if one of them changes.
    """
    size, left = state_bytes(init_client(loop.method, loop.task.initial, loop.task.buffers)), loop.left()
    there = sum(file.stat().st_size for file in folder.checkpoints.iterdir() if CLIENTS.fullmatch(file.name))
    of_all = size * loop.participation.population
    all_rounds = left.rounds * min(size * len(left.clients) * count_together(size), of_all)
    next_round = size * len(loop.participation.answering(loop.done, left.clients))
    return Need(there, next_round, all_rounds, min(there + size * left.rounds * len(left.clients), of_all))

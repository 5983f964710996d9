"""The folder of a run while it is made: held by one process, and written so that it can be killed at any moment."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import IO, Any

import tomli_w
from filelock import FileLock, Timeout

from fedkeel.core.states import write_text
from fedkeel.errors import FolderError, RunError, explain_os_errors
from fedkeel.runs.checkpoint import drop_later, find_newest, list_checkpoints, list_halves, prune, put_aside, remove
from fedkeel.runs.folder import (
    DIVERGED,
    ENVIRONMENT,
    EXPERIMENT,
    PLANNED,
    RESULT,
    ROUNDS,
    SUMS,
    TIMING,
    checksum,
    folder_of,
    line_of,
    read_environment,
    read_experiment,
    rounds_in,
)
from fedkeel.runs.record import RoundRecord


class BusyError(FolderError):
    """Another process is running in a folder."""


class RunFolder:
    """One run's files. Only one process at a time may write into a folder."""

    def __init__(self, path: Path):
        self.path = path
        self.lock = FileLock(path / "run.lock", blocking=False, thread_local=False)
        self.lines: IO[str] | None = None
        self.sums: IO[str] | None = None
        self.total = 0  # the checksum of all lines so far

    @staticmethod
    def of(out: str | os.PathLike[str]) -> RunFolder:
        return RunFolder(folder_of(out, "out", 'out="runs/first"'))

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoint"

    # ---- opening -------------------------------------------------------------------------------------------------
    def open(self) -> None:
        """Create the folder if need be, and hold it until `close` (or the end of the process, however it comes)."""
        with explain_os_errors(
            f"cannot write into {self.path}", "let it be written, or choose another folder: --out of `fedkeel run`"
        ):
            self.path.mkdir(parents=True, exist_ok=True)
            if not (self.path / EXPERIMENT).exists() and any(map(is_foreign, self.path.iterdir())):
                raise FolderError(
                    f"{self.path} holds something that is not a run.", "choose another folder: nothing was written here"
                )
            try:
                self.lock.acquire()  # never through a link: in someone else's folder it may lead anywhere
            except Timeout as error:
                raise BusyError(
                    f"another process is running in {self.path}.", "wait for it, or choose another folder with --out"
                ) from error

    def close(self) -> None:
        """Let go of the folder. What could not be written was told then; closing the file would tell it again."""
        for file in (self.lines, self.sums):
            if file is not None:
                with contextlib.suppress(OSError):
                    file.close()
        self.lines = self.sums = None
        self.lock.release()

    def keep_newest(self) -> None:
        """Keep of a finished run the newest checkpoint alone, if it is whole and no other process is running here."""
        with contextlib.suppress(FolderError):
            self.open()
            with contextlib.closing(self):
                if len(list_checkpoints(self.checkpoints)) > 1 and not find_newest(self.checkpoints)[1]:
                    prune(self.checkpoints, 1)

    # ---- files ---------------------------------------------------------------------------------------------------
    def read_experiment(self) -> dict[str, Any] | None:
        return read_experiment(self.path) if (self.path / EXPERIMENT).exists() else None

    def write_experiment(self, data: Mapping[str, Any]) -> None:
        write_text(self.path / EXPERIMENT, tomli_w.dumps(data))

    def write_json(self, name: str, data: Any) -> str:
        self.check_place()
        text = json.dumps(data, indent=2, sort_keys=True) + "\n"
        write_text(self.path / name, text)
        return text

    def write_result(self, data: Mapping[str, Any]) -> None:
        assert self.sums is not None
        self._append(self.sums, line_of(RESULT, checksum(self.write_json(RESULT, data))))

    def kept_before(self) -> bool:
        """Whether a checkpoint has ever been written here: times are noted with the first."""
        return (self.path / TIMING).exists() or (self.path / RESULT).exists()

    def lost(self) -> bool:
        """Whether rounds of which there are no checkpoints had some: only a run that was killed early had none."""
        found = rounds_in(self.path)
        return bool(found.lines or found.problem) and (self.kept_before() or not self.checkpoints.exists())

    def lines_of(self, done: int | None) -> list[str]:
        """Read the lines of the rounds that a checkpoint counts; refuse a folder that lost them or all checkpoints.

        A run that was killed before its first checkpoint (None) begins again. Nothing is changed here.
        """
        if done is None and self.lost():
            raise FolderError(
                f"{self.path} has lost its checkpoints, but has rounds in {ROUNDS}.",
                f"restore {self.checkpoints.name}/ from a copy, or start again in another folder; nothing was changed",
            )
        found = rounds_in(self.path)
        if len(found.lines) < (done or 0):
            raise FolderError(
                found.problem or f"{self.path / ROUNDS} holds {len(found.lines)} rounds, but the checkpoint {done}.",
                "restore the file from a copy, or start again in another folder; nothing was changed",
            )
        return found.lines[: done or 0]

    def begin(self, lines: Sequence[str], latest: int | None = None) -> None:
        """Go on after these lines; later ones, and a half-written last one, are cut off. Later checkpoints are damaged,
        and put aside; those after the round `latest` are dropped, since the run makes them again."""
        if latest is not None:
            if not lines:
                remove(self.path / TIMING)  # or its checkpoints would count as lost
            drop_later(self.checkpoints, max(latest, len(lines)))
        put_aside(self.checkpoints, len(lines))
        sums = list(accumulate(lines, lambda total, line: checksum(f"{line}\n", total), initial=0))
        self.total = sums[-1]
        # first, so that at no moment there are more sums than lines
        write_text(self.path / SUMS, "".join(line_of(number, total) for number, total in enumerate(sums[1:], 1)))
        write_text(self.path / ROUNDS, "".join(f"{line}\n" for line in lines))
        for old in (self.path / RESULT, self.path / DIVERGED, *list_halves(self.path)):
            remove(old)
        prune(self.checkpoints)
        full, other = "free some space, or choose another folder", "let it be written, or choose another folder"
        with explain_os_errors(f"cannot write into {self.path}", other, full=full):
            self.checkpoints.mkdir(exist_ok=True)
            self.lines = open(self.path / ROUNDS, "a", encoding="utf-8", newline="\n")
            self.sums = open(self.path / SUMS, "a", encoding="utf-8", newline="\n")

    def append(self, record: RoundRecord) -> None:
        assert self.lines is not None
        assert self.sums is not None
        self.check_place()
        text = record.dumps() + "\n"
        self._append(self.lines, text)
        self.total = checksum(text, self.total)
        self._append(self.sums, line_of(record.round, self.total))

    def check_place(self) -> None:
        """Refuse to write where the folder of a run that goes on is no longer the one that it holds."""
        if self.lines is None:
            return
        held = os.fstat(self.lines.fileno())
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if os.path.samestat(held, (self.path / ROUNDS).stat()):
                return
        raise RunError(
            f"{self.path} was removed, moved or replaced while the run went on.",
            "if it was moved, `fedkeel resume` it where it is now; if not, give the same command again",
        )

    def _append(self, file: IO[str], text: str) -> None:
        then = "then start the run again: it goes on"
        full, other = f"free some space, {then}", f"let it be written, {then}"
        with explain_os_errors(f"cannot write {file.name}", other, RunError, full=full):
            file.write(text)
            file.flush()

    def sync(self) -> None:
        """Records reach the disk before the checkpoint that counts them."""
        self.check_place()
        for file in (self.lines, self.sums):
            if file is not None:
                os.fsync(file.fileno())


def is_foreign(path: Path) -> bool:
    """Whether a file is not of a run, or of several, killed before an experiment was written."""
    if path.name == ENVIRONMENT:
        return "engines" not in read_environment(path.parent)  # other programs write files of this name, too
    return path.name not in ("run.lock", PLANNED) and not path.name.endswith(".partial")

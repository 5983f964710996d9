"""A run is a folder of plain files that anyone can read."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shlex
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import tomli_w
from filelock import FileLock, Timeout

from fedkeel.core.states import write_atomically
from fedkeel.errors import FolderError, RunError, explain_os_errors
from fedkeel.runs.checkpoint import list_checkpoints, prune, remove, round_of
from fedkeel.runs.checksums import SUMS, checksum, line_of, read_sums, read_text, sums_of
from fedkeel.runs.record import RoundRecord
from fedkeel.written_values import read_toml

log = logging.getLogger("fedkeel")

EXPERIMENT = "experiment.toml"
ROUNDS = "rounds.jsonl"
RESULT = "result.json"
TIMING = "timing.json"
ENVIRONMENT = "environment.json"
CLIENTS = "clients.json"

FORMAT = 1
"""The form of a run folder: it rises only when an older fedkeel would misread a newer folder; 0.1.0 wrote no number."""

RESERVED = re.compile(r"(?i)(?:con|prn|aux|nul|com\d|lpt\d)(?:\..*)?")
"""Names that some systems keep for their devices."""


def folder_name(label: str) -> str:
    """Turn a label into the name of one folder that no shell has to quote; never `..`, a hidden one or a device."""
    name = re.sub(r"[^\w.+@=-]+", "-", label)
    name = re.sub(r"^\.+", "-", name) or "-"
    if len(name.encode()) > 150:  # most systems end at 255 bytes
        name = f"{name[:40]}-{hashlib.sha256(label.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"
    return f"{name}-" if RESERVED.fullmatch(name) else name


class RunFolder:
    """One run's files. Only one process at a time may write into a folder."""

    def __init__(self, path: Path):
        self.path = path
        self.lock = FileLock(path / "run.lock", blocking=False, thread_local=False)
        self.lines: IO[str] | None = None
        self.sums: IO[str] | None = None
        self.total = 0  # the checksum of all lines so far

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoint"

    # ---- opening -------------------------------------------------------------------------------------------------
    def open(self) -> None:
        """Create the folder if need be, and hold it until `close` (or the end of the process, however it comes)."""
        with explain_os_errors(f"cannot write into {self.path}", "choose another folder with --out"):
            self.path.mkdir(parents=True, exist_ok=True)
            if not (self.path / EXPERIMENT).exists() and any(map(is_foreign, self.path.iterdir())):
                raise FolderError(
                    f"{self.path} holds something that is not a run.", "choose another folder: nothing was written here"
                )
            try:
                self.lock.acquire()  # never through a link: in someone else's folder it may lead anywhere
            except Timeout as error:
                raise FolderError(
                    f"another process is running in {self.path}.", "wait for it, or choose another folder with --out"
                ) from error

    def close(self) -> None:
        for file in (self.lines, self.sums):
            if file is not None:
                file.close()
        self.lines = self.sums = None
        self.lock.release()

    # ---- files ---------------------------------------------------------------------------------------------------
    def read_experiment(self) -> dict[str, Any] | None:
        return read_experiment(self.path) if (self.path / EXPERIMENT).exists() else None

    def write_experiment(self, data: Mapping[str, Any]) -> None:
        write_text(self.path / EXPERIMENT, tomli_w.dumps(data))

    def write_json(self, name: str, data: Any) -> str:
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

    def begin(self, lines: Sequence[str]) -> list[RoundRecord]:
        """Go on after these lines; later ones, and a half-written last one, are cut off."""
        sums = sums_of(lines)
        self.total = sums[-1] if sums else 0
        # first, so that at no moment there are more sums than lines
        write_text(self.path / SUMS, "".join(line_of(number, total) for number, total in enumerate(sums, 1)))
        write_text(self.path / ROUNDS, "".join(f"{line}\n" for line in lines))
        for old in (self.path / RESULT, *self.path.glob(".*.partial")):
            remove(old)
        prune(self.checkpoints)
        try:
            self.checkpoints.mkdir(exist_ok=True)
            self.lines = open(self.path / ROUNDS, "a", encoding="utf-8", newline="\n")
            self.sums = open(self.path / SUMS, "a", encoding="utf-8", newline="\n")
        except OSError as error:
            raise FolderError(f"cannot write {error.filename}: {error.strerror}", "choose another folder") from error
        return [RoundRecord.loads(line) for line in lines]

    def append(self, record: RoundRecord) -> None:
        assert self.lines is not None
        assert self.sums is not None
        text = record.dumps() + "\n"
        self._append(self.lines, text)
        self.total = checksum(text, self.total)
        self._append(self.sums, line_of(record.round, self.total))

    def _append(self, file: IO[str], text: str) -> None:
        with explain_os_errors(f"cannot write {file.name}", "free some space, then `fedkeel resume`", RunError):
            file.write(text)
            file.flush()

    def sync(self) -> None:
        """Records reach the disk before the checkpoint that counts them."""
        for file in (self.lines, self.sums):
            if file is not None:
                os.fsync(file.fileno())


def is_foreign(path: Path) -> bool:
    """Whether a file is not of a run that was killed before it had written its experiment."""
    return path.name != "run.lock" and not path.name.endswith(".partial")


def write_text(path: Path, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise FolderError(
            f"cannot write {path}: a name in it is not UTF-8.", "call files and folders by names in UTF-8"
        ) from None
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8", newline="\n"))


def read_experiment(path: Path) -> dict[str, Any]:
    """Read the experiment of a run folder as plain data; a run always names its method."""
    check_format(path)
    data = read_settings(path)
    if "method" not in data:
        raise FolderError(f"{path / EXPERIMENT} is damaged: it names no method.", "restore it from a copy")
    return data


def check_format(path: Path) -> None:
    """Refuse a folder that a newer fedkeel wrote in a form that this one would misread."""
    number = read_environment(path).get("format", FORMAT)
    if type(number) is not int or number < 1:
        raise FolderError(f"{path / ENVIRONMENT} is damaged: format {number!r}.", "restore it from a copy")
    if number > FORMAT:
        line = f"{path} is of format {number}, which a newer fedkeel writes; this one reads up to {FORMAT}."
        raise FolderError(line, "`pip install --upgrade fedkeel`; nothing was changed")


def read_settings(path: Path) -> dict[str, Any]:
    """Read the experiment.toml of a folder: a run's, or one that somebody wrote for an app."""
    file = path / EXPERIMENT
    try:
        data = read_toml(read_text(file))
    except FolderError as error:
        if not isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
            raise
        raise FolderError(
            f"{path} is not a run: it has no {EXPERIMENT}.", "give the folder that `fedkeel run` printed"
        ) from None
    except (ValueError, RecursionError) as error:
        raise FolderError(f"{file} is damaged: {error}", "restore it from a copy") from None
    return data


def read_environment(path: Path) -> dict[str, Any]:
    """Read what the run in a folder was made with; nothing where the file is absent."""
    return read_json(path / ENVIRONMENT)


def read_json(file: Path) -> dict[str, Any]:
    """Read a file of a run; nothing where it is absent, an error where it is damaged."""
    if not file.exists():
        return {}
    hint = (
        f"{resume_command(file.parent)} makes it again"
        if file.name == RESULT
        else "restore it from a copy, or remove it"
    )
    text = read_text(file, hint)
    if file.name == RESULT and read_sums(file.parent).get(RESULT, f"{checksum(text):08x}") != f"{checksum(text):08x}":
        raise FolderError(f"{file} is damaged: it does not match its checksum.", hint)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FolderError(f"{file} is damaged: {error}", hint) from None
    if not isinstance(data, dict):
        raise FolderError(f"{file} is damaged: it is not a table.", hint)
    return data


# ---- rounds --------------------------------------------------------------------------------------------------------
class Rounds(NamedTuple):
    """The lines of a file of rounds up to the first that is not whole, and what is wrong with that one.

    Nothing is wrong with a last line that is half written: the run was killed, or is writing it now.
    """

    lines: list[str]
    records: list[RoundRecord]
    problem: str | None


def rounds_in(path: Path) -> Rounds:
    """Read the rounds of a run folder, as far as they are whole."""
    file, found = path / ROUNDS, Rounds([], [], None)
    sums = [(name, total) for name, total in read_sums(path).items() if name != RESULT]  # before the lines
    if not file.exists():
        return found._replace(problem=f"{file} is gone, with {len(sums)} rounds." if sums else None)
    with explain_os_errors(f"cannot read {file}", "put it back; nothing was changed here"):
        *lines, _ = file.read_bytes().split(b"\n")
    total = 0
    for number, line in enumerate(lines, 1):
        total = zlib.crc32(line + b"\n", total)
        if number <= len(sums) and sums[number - 1] != (str(number), f"{total:08x}"):
            return found._replace(problem=f"{file} is damaged in line {number}: it does not match {SUMS}.")
        try:
            text = line.decode()
            record = RoundRecord.loads(text)
        except (ValueError, RecursionError) as error:
            return found._replace(problem=f"{file} is damaged in line {number}: {error}")
        if record.round != number:
            return found._replace(problem=f"{file} is damaged in line {number}: it is of round {record.round}.")
        found.lines.append(text)
        found.records.append(record)
    if len(sums) > len(lines):
        return found._replace(problem=f"{file} has lost lines: it holds {len(lines)} of {len(sums)} rounds.")
    return found


def read_rounds(path: Path, needed: int | None = None) -> list[RoundRecord]:
    """Read the rounds of a run folder, all or the first ones; refuse one of them that is damaged or lost."""
    found = rounds_in(path)
    reached = needed if needed is not None else max(map(round_of, list_checkpoints(path / "checkpoint")), default=0)
    problem = found.problem
    if problem is None and len(found.records) < reached:
        problem = f"{path / ROUNDS} holds {len(found.records)} rounds, but the checkpoint {reached}."
    if problem is not None and (needed is None or len(found.records) < needed):
        raise FolderError(problem, f"restore it from a copy; what follows a checkpoint, {resume_command(path)} mends")
    if problem is not None:
        log.warning("%s %s mends it", problem, resume_command(path))
    return found.records[:needed]


def resume_command(path: Path) -> str:
    """Write the command that goes on with a run."""
    return f"`fedkeel resume {shlex.quote(str(path))}`"

"""A run is a folder of plain files that anyone can read: their names, and how they are read."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import shlex
import zlib
from pathlib import Path
from typing import Any, NamedTuple

from fedkeel.errors import FolderError, RequestError, explain_os_errors
from fedkeel.runs.checkpoint import list_checkpoints, round_of
from fedkeel.runs.record import RoundRecord
from fedkeel.text import make_printable, shorten
from fedkeel.written_values import read_toml_file

log = logging.getLogger("fedkeel")

EXPERIMENT = "experiment.toml"
ROUNDS = "rounds.jsonl"
RESULT = "result.json"
TIMING = "timing.json"
ENVIRONMENT = "environment.json"
CLIENTS = "clients.json"
DIVERGED = "diverged.json"
"""In which round a run diverged, and why it could not go on; gone when the run goes on."""
SUMS = "sums.txt"
"""Checksums of the plain files, each in a line that follows what it covers: `2 0d4a1185` is of the first two rounds,
`result.json 5ed1ab2f` of the result. Folders of older versions have no such file, and are read without it."""

PLANNED = ".planned.json"
"""In a folder of several runs: the experiments of those that `fedkeel run` has not begun, by their folders there. The
file is gone when all have begun."""

FORMAT = 1
"""The form of a run folder: it rises only when an older fedkeel would misread a newer folder; 0.1.0 wrote no number."""

UNREAD = "put the file back, or allow it to be read; nothing was changed"

RESERVED = re.compile(r"(?i)(?:con|prn|aux|nul|com\d|lpt\d)(?:\..*)?")
"""Names that some systems keep for their devices."""


def folder_name(label: str) -> str:
    """Turn a label into the name of one folder that no shell has to quote; never `..`, a hidden one or a device."""
    name = re.sub(r"[^\w.+@=-]+", "-", label)
    name = re.sub(r"^\.+", "-", name) or "-"
    if len(name.encode()) > 150:  # most systems end at 255 bytes
        name = f"{name[:40]}-{hashlib.sha256(label.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"
    return f"{name}-" if RESERVED.fullmatch(name) else name


def folder_of(given: object, what: str, hint: str) -> Path:
    """The path of a folder as a user gives it; refuse what is no path."""
    path = os.fspath(given) if isinstance(given, os.PathLike) else given
    if not isinstance(path, str):
        raise RequestError(f"{what} is the path of a folder, not {type(given).__name__}.", hint)
    if "\0" in path:
        raise RequestError(f"{what} is the path of a folder, which holds no zero character: {path}", hint)
    return Path(os.path.expanduser(path))  # or a folder called ~ would be made


def read_text(path: Path, hint: str = "restore it from a copy") -> str:
    """Read a file of a run as text; what cannot be read is an error in one line."""
    try:
        with explain_os_errors(f"cannot read {path}", UNREAD):
            return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise FolderError(f"{path} is damaged: it is not text ({error.reason}).", hint) from None


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
        with explain_os_errors(f"cannot read {file}", UNREAD):
            data = read_toml_file(file)
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


def is_of_federation(path: Path) -> bool:
    """Whether the sites of a federation train the run in a folder, as its server notes."""
    return read_environment(path).get("federation") is True


def read_json(file: Path) -> dict[str, Any]:
    """Read a file of a run; nothing where it is absent, an error where it is damaged."""
    with explain_os_errors(f"cannot read {file}", UNREAD):  # a name that is too long, a folder that is closed
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


def find_divergence(path: Path, done: int) -> str | None:
    """Say where and why the run in a folder ended, if it diverged in the round after the `done` ones."""
    found = read_json(path / DIVERGED)
    if found.get("round") != done + 1:
        return None
    reason = found.get("reason")
    return shorten(make_printable(f"diverged in round {done + 1}" + (f": {reason}" if reason else "")), 200)


# ---- checksums -----------------------------------------------------------------------------------------------------
def checksum(text: str, before: int = 0) -> int:
    """Compute the checksum of a text that follows what has the checksum `before`."""
    return zlib.crc32(text.encode("utf-8", "surrogateescape"), before)


def line_of(name: object, total: int) -> str:
    return f"{name} {total:08x}\n"


def read_sums(folder: Path) -> dict[str, str]:
    """Read the checksum of each name; a half-written last line does not count."""
    file = folder / SUMS
    if not file.exists():
        return {}
    text = read_text(file, "restore it from a copy, or remove it: rounds are then read unchecked")
    pairs = (line.split(" ", 1) for line in text.split("\n")[:-1])
    return {pair[0]: pair[-1] for pair in pairs}


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
    """Write the command that goes on with a run; a federation's goes on with Flower's."""
    with contextlib.suppress(FolderError):  # who needs the file itself says that it is damaged
        if is_of_federation(path):
            return "`flwr run`"
    return f"`fedkeel resume {shlex.quote(str(path))}`"

"""A run is a folder of plain files that anyone can read."""

from __future__ import annotations

import fcntl
import json
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import tomli_w

from fedkeel.checkpoint import prune
from fedkeel.errors import FolderError, RunError
from fedkeel.record import RoundRecord
from fedkeel.states import write_whole

EXPERIMENT = "experiment.toml"
ROUNDS = "rounds.jsonl"


def folder_name(label: str) -> str:
    """A label as the name of a folder that no shell has to quote."""
    return re.sub(r"[^\w.+@=-]+", "-", label)


class RunFolder:
    """One run's files. Only one process at a time may write into a folder."""

    def __init__(self, path: Path):
        self.path = path
        self.lock: IO[str] | None = None
        self.lines: IO[str] | None = None

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoint"

    # ---- opening -------------------------------------------------------------------------------------------------
    def open(self) -> None:
        """Create the folder if need be, and hold it until `close` (or the end of the process, however it comes)."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if not (self.path / EXPERIMENT).exists() and any(map(foreign, self.path.iterdir())):
                raise FolderError(
                    f"{self.path} holds something that is not a run.", "choose another folder: nothing was written here"
                )
            self.lock = open(self.path / "run.lock", "w")
        except OSError as error:
            raise FolderError(
                f"cannot write into {self.path}: {error.strerror}", "choose another folder with --out"
            ) from error
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.lock.close()
            self.lock = None
            raise FolderError(
                f"another process is running in {self.path}.", "wait for it, or choose another folder with --out"
            ) from error

    def close(self) -> None:
        for file in (self.lines, self.lock):
            if file is not None:
                file.close()
        self.lines = self.lock = None

    # ---- files ---------------------------------------------------------------------------------------------------
    def read_experiment(self) -> dict[str, Any] | None:
        return read_experiment(self.path) if (self.path / EXPERIMENT).exists() else None

    def write_experiment(self, data: Mapping[str, Any]) -> None:
        write_text(self.path / EXPERIMENT, tomli_w.dumps(data))

    def write_json(self, name: str, data: Any) -> None:
        write_text(self.path / name, json.dumps(data, indent=2, sort_keys=True) + "\n")

    def read_json(self, name: str) -> dict[str, Any]:
        """What was written there; nothing where it is absent or damaged."""
        try:
            data = json.loads((self.path / name).read_text())
        except (OSError, ValueError):
            return {}
        return data if isinstance(data, dict) else {}

    def begin(self, done: int) -> list[RoundRecord]:
        """Records of the rounds already done; later lines, and a half-written last one, are cut off."""
        records = read_rounds(self.path)[:done]
        if len(records) < done:
            raise FolderError(
                f"{self.path / ROUNDS} holds {len(records)} rounds, but the checkpoint {done}.",
                "restore the file from a copy, or start again in another folder",
            )
        write_text(self.path / ROUNDS, "".join(record.dumps() + "\n" for record in records))
        (self.path / "result.json").unlink(missing_ok=True)
        for half in self.path.glob(".*.partial"):
            half.unlink(missing_ok=True)
        prune(self.checkpoints)
        self.lines = open(self.path / ROUNDS, "a")
        return records

    def append(self, record: RoundRecord) -> None:
        assert self.lines is not None
        try:
            self.lines.write(record.dumps() + "\n")
            self.lines.flush()
        except OSError as error:
            raise RunError(
                f"cannot write {self.path / ROUNDS}: {error.strerror}", "free some space, then `fedkeel resume`"
            ) from error

    def sync(self) -> None:
        """Records reach the disk before the checkpoint that counts them."""
        if self.lines is not None:
            os.fsync(self.lines.fileno())


def foreign(path: Path) -> bool:
    """Whether a file is not of a run that was killed before it had written its experiment."""
    return path.name != "run.lock" and not path.name.endswith(".partial")


def write_text(path: Path, text: str) -> None:
    write_whole(path, lambda temporary: temporary.write_text(text))


def read_experiment(path: Path) -> dict[str, Any]:
    """The experiment of a run folder as plain data."""
    file = path / EXPERIMENT
    try:
        return tomllib.loads(file.read_text())
    except (FileNotFoundError, NotADirectoryError):
        raise FolderError(
            f"{path} is not a run: it has no {EXPERIMENT}.", "give the folder that `fedkeel run` printed"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FolderError(f"{file} is damaged: {error}", "restore it from a copy") from None


def read_rounds(path: Path) -> list[RoundRecord]:
    """The rounds of a run folder, up to the first line that is not whole."""
    records: list[RoundRecord] = []
    file = path / ROUNDS
    for line in file.read_text(errors="replace").splitlines() if file.exists() else ():
        try:
            record = RoundRecord.loads(line)
        except (json.JSONDecodeError, TypeError, KeyError):
            break
        if record.round != len(records) + 1:
            break
        records.append(record)
    return records

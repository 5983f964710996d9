"""Older checkpoints of a federation, kept beside its run folder, and the way back to one of them."""

from __future__ import annotations

import shutil
from pathlib import Path

from fedkeel.core.states import Damaged, beside
from fedkeel.errors import FolderError, RequestError, explain_os_errors
from fedkeel.federation.membership import BOUNDS
from fedkeel.runs.checkpoint import Checkpoint, list_checkpoints, put_aside, round_of
from fedkeel.runs.folder import ROUNDS
from fedkeel.runs.run_folder import RunFolder

HISTORY = "-history"


def keep_checkpoint(out: Path, round: int) -> None:
    """Keep the checkpoint of a round, with the files that it names; files of checkpoints are written once."""
    source = out / "checkpoint" / f"{round:08d}.safetensors"
    place = beside(out, HISTORY) / f"{round:08d}"
    if place.exists() or not source.exists():
        return
    half = place.with_name(f"{place.name}.partial")
    shutil.rmtree(half, ignore_errors=True)
    half.mkdir(parents=True)
    for name in (source.name, *Checkpoint.load(source).files):
        link(out / "checkpoint" / name, half / name)
    if (bounds := beside(out, BOUNDS)).exists():
        shutil.copyfile(bounds, half / "bounds.json")
    half.rename(place)


def link(source: Path, target: Path) -> None:
    """Link a file under another name, or copy it where links are not possible."""
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, target)


def list_rounds(out: Path) -> list[int]:
    """List the rounds that a federation can go back to."""
    kept = [int(place.name) for place in beside(out, HISTORY).glob("*") if place.name.isdecimal()]
    return sorted({*kept, *map(round_of, list_checkpoints(out / "checkpoint"))})


def roll_back(out: Path, round: int) -> int:
    """Bring a run folder back to an older round; return how many rounds are undone.

    What is undone is put aside, not removed: later checkpoints are renamed, and their lines stand in the history.
    """
    if round not in (rounds := list_rounds(out)):
        known = ", ".join(map(str, rounds)) or "none"
        raise RequestError(f"{out} has no checkpoint of round {round}.", f"it has those of: {known}")
    folder, place = RunFolder(out), beside(out, HISTORY) / f"{round:08d}"
    if folder.read_experiment() is None:
        raise FolderError(f"{out} is not a run.", "give the folder that `out` of the app names")
    folder.open()
    try:
        source = place if place.exists() else folder.checkpoints
        try:
            Checkpoint.load(source / f"{round:08d}.safetensors")
        except Damaged as error:
            raise FolderError(f"the checkpoint of round {round} cannot be read: {error}", "choose another") from None
        lines = folder.lines_of(round)
        done = max(map(round_of, list_checkpoints(folder.checkpoints)), default=round)
        with explain_os_errors(f"cannot write into {out}", "is there space, and may it be written?"):
            beside(out, HISTORY).mkdir(exist_ok=True)
            shutil.copyfile(out / ROUNDS, beside(out, HISTORY) / f"rounds-until-{done}.jsonl")
            put_aside(folder.checkpoints, round)
            if place.exists():
                for file in place.glob("*.safetensors"):
                    if not (folder.checkpoints / file.name).exists():
                        shutil.copyfile(file, folder.checkpoints / file.name)
                if (place / "bounds.json").exists():
                    shutil.copyfile(place / "bounds.json", beside(out, BOUNDS))
            forget_later(out, round)
        folder.begin(lines)
    finally:
        folder.close()
    return done - round


def forget_later(out: Path, round: int) -> None:
    """Forget what was kept of later rounds: those to come are others."""
    for later in list_rounds(out):
        if later > round:
            shutil.rmtree(beside(out, HISTORY) / f"{later:08d}", ignore_errors=True)

"""Where runs of one stack go on after a kill."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest
import torch

import fedkeel as fk
from fedkeel.errors import FolderError
from fedkeel.runs.checkpoint import Checkpoint, find_newest, list_checkpoints, round_of
from fedkeel.runs.loop import Loop
from fedkeel.runs.record import RoundRecord
from fedkeel.runs.save_clock import find_common_rounds


def leave(place: Path, saved: list[int], made: int, begun: int = 0) -> Path:
    """A folder as a run of a stack leaves it: with checkpoints of these rounds, and so many rounds made."""
    (place / "checkpoint").mkdir(parents=True)
    for round in saved:
        (place / f"checkpoint/{round:08d}.safetensors").touch()
    (place / "experiment.toml").touch()
    engines = [{"after_round": round} for round in sorted({0, begun})]
    (place / "environment.json").write_text(json.dumps({"stack": ["a", "b"], "engines": engines}), encoding="utf-8")
    lines = [RoundRecord(n, [0], 1.0, 0.0, 1, 1, 1, 0.1).dumps() + "\n" for n in range(1, made + 1)]
    (place / "rounds.jsonl").write_text("".join(lines), encoding="utf-8")
    return place


@pytest.mark.parametrize(
    ("one", "other", "common"),
    [
        (([3, 5], 5), ([3], 5), 3),
        (([3, 5], 5), ([3, 5], 7), 5),
        (([5], 5), ([], 4), 0),  # killed at its first checkpoint
        (([], 4), ([], 4), 0),
        (([50], 50), ([], 0), None),  # one after another: their models differ
        (([100], 100, 100), ([], 99), None),  # finished, and then extended beside a new run
        (([100], 100, 100), ([30], 30), None),
        (([11], 11), ([100], 100), None),  # failed, and the other one went on
        (([11], 11), ([90, 100], 100), None),
        (([0], 0), ([100], 100), None),
    ],
)
def test_going_back_to_a_common_round_undoes_one_checkpoint_at_most(
    one: tuple[list[int], int], other: tuple[list[int], int], common: int | None, tmp_path: Path
) -> None:
    places = [leave(tmp_path / "a", *one), leave(tmp_path / "b", *other)]
    assert find_common_rounds(places) == [common, common]
    assert find_common_rounds(places[:1]) == [None]


@pytest.mark.parametrize(
    ("end", "saved", "common"), [(2, [100], 100), (2, [90, 100], 100), (12, [10, 20], 20), (12, [10], 10)]
)
def test_a_diverged_run_holds_nobody_back(end: int, saved: list[int], common: int, tmp_path: Path) -> None:
    diverged = leave(tmp_path / "a", [10, end] if end > 10 else [end], end)
    (diverged / "diverged.json").write_text("{}", encoding="utf-8")
    assert find_common_rounds([diverged, leave(tmp_path / "b", saved, saved[-1])]) == [common, common]


@pytest.mark.parametrize("stack", [None, 3, "ab", {"a": 1}, [["a"], "b"]])
def test_a_stack_that_is_not_written_as_one_is_none(stack: object, tmp_path: Path) -> None:
    places = [leave(tmp_path / name, [3], 3) for name in "ab"]
    for place in places:
        (place / "environment.json").write_text(json.dumps({"stack": stack, "engines": stack}), encoding="utf-8")
    assert len(find_common_rounds(places)) == 2


class Killed(BaseException):
    pass


ASKED = [fk.Experiment(dataset="digits", model="logistic", partition="iid:clients=4", seed=s, rounds=4) for s in (0, 1)]


def train_until(kill: int, places: list[Path], monkeypatch: pytest.MonkeyPatch, seconds: float = 0) -> None:
    """Train two runs as one stack, and kill them in place of checkpoint number `kill`."""
    write, count = Loop.save, [0]

    def save(self: Loop) -> None:
        count[0] += self.saved != self.done
        if count[0] < kill:
            write(self)
        elif count[0] == kill:
            count[0] += 1
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "save", save)
        patch.setattr(
            Loop, "_write_timing", lambda self: None if count[0] >= kill else self.folder.write_json("timing.json", {})
        )
        with pytest.raises(Killed):
            fk.run_together(ASKED, out=places, checkpoint_seconds=seconds)


def list_names(place: Path) -> list[str]:
    return sorted(path.name for path in (place / "checkpoint").iterdir())


def test_checkpoints_of_a_stack_that_were_lost_are_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = [tmp_path / "a", tmp_path / "b"]
    train_until(5, places, monkeypatch)
    before = [(place / "rounds.jsonl").read_bytes() for place in places]
    for place in places:
        shutil.rmtree(place / "checkpoint")
    with pytest.raises(FolderError, match="has lost its checkpoints"):
        fk.run_together(ASKED, out=places)
    assert [(place / "rounds.jsonl").read_bytes() for place in places] == before


def test_a_damaged_checkpoint_of_a_stack_is_put_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = [tmp_path / "a", tmp_path / "b"]
    train_until(5, places, monkeypatch)
    for place in places:
        (place / "checkpoint/00000002.safetensors").write_bytes(b"cut")
    train_until(1, places, monkeypatch)
    assert [list_names(place) for place in places] == [["00000001.safetensors", "damaged-00000002.safetensors"]] * 2


def test_a_stack_that_went_back_to_its_start_may_be_killed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = [tmp_path / "a", tmp_path / "b"]
    train_until(2, places, monkeypatch)
    assert [list_names(place) for place in places] == [["00000001.safetensors"], []]
    train_until(1, places, monkeypatch)
    assert [list_names(place) for place in places] == [[], []]
    for experiment, place in zip(ASKED, places, strict=True):
        assert fk.run(experiment, out=place).records[-1].round == 4


@pytest.mark.parametrize(("signals", "ended"), [(1, [2, 2]), (2, [2, 1])])
def test_an_interrupted_stack_ends_its_round_unless_it_is_interrupted_again(
    signals: int, ended: list[int], tmp_path: Path
) -> None:
    def interrupt(at: fk.Moment) -> None:
        for _ in range(signals if len(at.records) == 2 else 0):
            signal.raise_signal(signal.SIGINT)

    places = [tmp_path / "a", tmp_path / "b"]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # which a process in the background has not
    try:
        with pytest.raises(KeyboardInterrupt):
            fk.run_together(ASKED, out=places, callbacks=interrupt)
    finally:
        signal.signal(signal.SIGINT, before)
    assert [list_names(place) for place in places] == [[f"{round:08d}.safetensors"] for round in ended]


def test_a_run_that_cannot_be_saved_when_another_one_ends_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = Loop.save

    def fail(self: Loop) -> None:
        if self.plan.rounds == 4 and self.done == 2:
            raise OSError("no answer from the disk")
        save(self)

    monkeypatch.setattr(Loop, "save", fail)
    runs = fk.run_together([ASKED[0].with_(rounds=2), ASKED[1]], out=[tmp_path / "a", tmp_path / "b"])
    assert [isinstance(run, fk.Run) and run.records[-1].round for run in runs] == [2, 4]


def test_the_newest_checkpoint_up_to_a_round_may_be_that_of_the_round(tmp_path: Path) -> None:
    """All runs of a stack go on from the last round that each of them has: that round itself counts."""
    for round in (1, 2, 3):
        Checkpoint(round, {"params": fk.Tree.of({"w": torch.full((2,), float(round))})}, {}).save(tmp_path, "f")
    for latest in (1, 2, 3):
        found, warnings = find_newest(tmp_path, latest=latest)
        assert found is not None
        assert (found.round, warnings) == (latest, [])
        assert found.server["params"]["w"].tolist() == [latest, latest]


def test_when_a_run_of_a_stack_ends_the_others_have_a_checkpoint_of_that_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has a result is not trained again: the others must never need it in their stack, whatever the clock says."""
    places, seen = [tmp_path / "a", tmp_path / "b"], []

    def note(at: fk.Moment) -> None:
        if len(at.records) == 3:  # of the longer run alone
            saved = [round_of(path) for path in list_checkpoints(places[1] / "checkpoint")]
            seen.append((saved, (places[0] / "result.json").exists()))

    fk.run_together([ASKED[0].with_(rounds=2), ASKED[1]], out=places, callbacks=note, checkpoint_seconds=10**6)
    assert seen == [([2], True)]

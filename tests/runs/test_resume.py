"""A run that is killed at any moment and resumed ends in the same bytes as one that was left alone."""

import hashlib
import json
import multiprocessing
import os
import random
import signal
import time

import pytest
import torch

import fedkeel as fk
from fedkeel.core.trees import Tree
from fedkeel.errors import FolderError, RunError
from fedkeel.runs import checkpoint, loop, store
from fedkeel.runs.record import digest
from problems import small_problem


def experiment(rounds, **changes):
    settings = dict(method="fedfft-s", participation=0.5, epochs=1, batch_size=4, lr=0.05, lr_decay=0.99, clip=5.0)
    return fk.Experiment(problem=small_problem(), rounds=rounds, **settings | changes)


def train(path, **changes):
    fk.run(experiment(**changes), out=path, engine="serial", checkpoint_seconds=0.0)


def final_bytes(path):
    """The result and the last checkpoint, with the files of client states that it names."""
    (newest, *_) = checkpoint.list_checkpoints(path / "checkpoint")
    named = sorted({newest.name, *checkpoint.Checkpoint.load(newest).places.values()})
    return [(name, (path / "checkpoint" / name).read_bytes()) for name in named], (path / "result.json").read_bytes()


def rounds_without_clock(path):
    lines = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]


MANY = pytest.mark.slow


@pytest.mark.parametrize(
    ("seed", "times", "spilled"),
    [(1, 3, True), pytest.param(2, 24, False, marks=MANY), pytest.param(3, 24, True, marks=MANY)],
)
def test_killed_at_random_moments(tmp_path, monkeypatch, seed, times, spilled):
    if spilled:  # no state stays in memory, each has a file of its own
        monkeypatch.setattr(loop, "state_budget", lambda device: 0)
        monkeypatch.setattr(store, "SHARED", 1)
    whole, broken, rounds = tmp_path / "whole", tmp_path / "broken", 4 * times
    began = time.perf_counter()
    train(whole, rounds=rounds)
    each = (time.perf_counter() - began) / rounds
    draw, kills = random.Random(seed), 0
    process = multiprocessing.get_context("fork").Process
    while kills < times or not (broken / "result.json").exists():
        child = process(target=train, args=(broken,), kwargs={"rounds": rounds})
        child.start()
        # short at first, so that the run cannot end before it was killed that often
        child.join(draw.uniform(0, 4 * each) if kills < times else None)
        if child.is_alive():
            os.kill(child.pid, signal.SIGKILL)
            child.join()
            kills += 1
        else:
            assert child.exitcode == 0
    assert kills >= times
    assert final_bytes(broken) == final_bytes(whole)
    assert rounds_without_clock(broken) == rounds_without_clock(whole)


def test_a_run_can_be_extended(tmp_path):
    train(tmp_path / "longer", rounds=3)
    train(tmp_path / "longer", rounds=6)
    train(tmp_path / "whole", rounds=6)
    assert final_bytes(tmp_path / "longer") == final_bytes(tmp_path / "whole")
    with pytest.raises(FolderError, match="at round 6 already"):
        train(tmp_path / "longer", rounds=4)


def test_a_finished_run_is_not_trained_again(tmp_path):
    train(tmp_path, rounds=2)
    before = (tmp_path / "rounds.jsonl").read_bytes()
    train(tmp_path, rounds=2)
    assert (tmp_path / "rounds.jsonl").read_bytes() == before


def test_a_half_written_line_is_repaired(tmp_path):
    train(tmp_path / "a", rounds=3)
    train(tmp_path / "b", rounds=5)
    with open(tmp_path / "a" / "rounds.jsonl", "a") as lines:
        lines.write('{"round": 4, "selec')
    train(tmp_path / "a", rounds=5)
    assert rounds_without_clock(tmp_path / "a") == rounds_without_clock(tmp_path / "b")


def test_an_interrupt_writes_a_checkpoint(tmp_path):
    class Impatient:
        def started(self, *_): ...

        def finished(self, *_): ...

        def round(self, record):
            if record.round == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fk.run(experiment(4), out=tmp_path / "a", engine="serial", progress=Impatient())
    assert [p.name for p in checkpoint.list_checkpoints(tmp_path / "a" / "checkpoint")] == ["00000002.safetensors"]
    train(tmp_path / "a", rounds=4)
    train(tmp_path / "b", rounds=4)
    assert final_bytes(tmp_path / "a") == final_bytes(tmp_path / "b")


def test_a_damaged_checkpoint_never_displaces_a_sound_one(tmp_path):
    train(tmp_path / "a", rounds=5)
    newest = checkpoint.list_checkpoints(tmp_path / "a" / "checkpoint")[0]
    newest.write_bytes(newest.read_bytes()[:-9])

    class Impatient:
        def started(self, *_): ...

        def finished(self, *_): ...

        def round(self, record):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fk.run(experiment(6), out=tmp_path / "a", engine="serial", progress=Impatient(), checkpoint_seconds=0.0)
    whole = [
        checkpoint.Checkpoint.load(path).round for path in checkpoint.list_checkpoints(tmp_path / "a" / "checkpoint")
    ]
    assert whole == [5, 4]
    train(tmp_path / "a", rounds=6)
    train(tmp_path / "b", rounds=6)
    assert final_bytes(tmp_path / "a") == final_bytes(tmp_path / "b")


def test_only_two_checkpoints_are_kept_and_none_half(tmp_path):
    train(tmp_path, rounds=5)
    names = sorted(p.name for p in (tmp_path / "checkpoint").iterdir())
    assert [name for name in names if name[0].isdigit()] == ["00000004.safetensors", "00000005.safetensors"]
    used = {
        n
        for p in checkpoint.list_checkpoints(tmp_path / "checkpoint")
        for n in checkpoint.Checkpoint.load(p).places.values()
    }
    assert {name for name in names if not name[0].isdigit()} == used


@pytest.mark.parametrize("how", ["removed", "moved", "another run"])
def test_a_folder_that_is_no_longer_its_own_is_not_written_to(tmp_path, how):
    """The run ends in its next round, and leaves what stands in the place of its folder as it is."""

    class Meddling:
        def started(self, *_): ...

        def finished(self, *_): ...

        def round(self, record):
            if record.round == 2:
                (tmp_path / "a").rename(tmp_path / "moved")
                if how == "another run":
                    train(tmp_path / "a", rounds=1)

    with pytest.raises(RunError, match="was removed, moved or replaced while the run went on"):
        fk.run(experiment(5), out=tmp_path / "a", engine="serial", progress=Meddling(), checkpoint_seconds=0.0)
    train(tmp_path / "b", rounds=5)
    if how == "another run":
        train(tmp_path / "c", rounds=1)
        assert final_bytes(tmp_path / "a") == final_bytes(tmp_path / "c")
    else:
        assert not (tmp_path / "a").exists()
    train(tmp_path / ("a" if how == "removed" else "moved"), rounds=5)
    assert final_bytes(tmp_path / ("a" if how == "removed" else "moved")) == final_bytes(tmp_path / "b")


def test_what_a_kill_leaves_of_half_written_files_is_removed(tmp_path):
    train(tmp_path, rounds=2)
    halves = [tmp_path / "checkpoint" / ".tmpAb12", tmp_path / "checkpoint" / ".x.partial", tmp_path / ".tmpCd34"]
    for half in halves:
        half.write_bytes(b"half")
    train(tmp_path, rounds=3)
    assert not [half for half in halves if half.exists()]


def test_nothing_in_a_run_is_a_pickle(tmp_path):
    train(tmp_path, rounds=1)
    for path in tmp_path.rglob("*"):
        if path.is_file():
            head = path.read_bytes()[:4]
            assert not head.startswith((b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"PK"))


# ---- the identity of a model ---------------------------------------------------------------------------------------
def test_the_digest_of_a_model_covers_its_buffers():
    """Running means of batch norms are part of what is deployed; a model without buffers keeps the digest it had."""
    params = Tree.of({"weight": torch.tensor([1.0, 2.0])})
    plain = hashlib.sha256(b"weight torch.float32 (2,)" + torch.tensor([1.0, 2.0]).numpy().tobytes()).hexdigest()
    assert digest({"params": params}) == plain
    one, other = (Tree.of({"running_mean": torch.tensor([value])}) for value in (0.0, 0.5))
    digests = {digest({"params": params} | more) for more in ({}, {"buffers": one}, {"buffers": other})}
    assert len(digests) == 3


def test_a_loaded_run_has_the_digest_that_was_written(tmp_path):
    given = small_problem()
    model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))
    problem = fk.Problem(model=model, loss=given.loss, clients=given.clients, test=given.test)
    exp = fk.Experiment(problem=problem, method="fedavg", rounds=1, epochs=1, batch_size=100)
    run = fk.run(exp, out=tmp_path / "run", engine="serial")
    assert run.result["model_digest"] == digest(run.deployed) != digest({"params": run.deployed["params"]})
    assert fk.load_run(tmp_path / "run").result["model_digest"] == run.result["model_digest"]

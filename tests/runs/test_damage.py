"""Damage to the files of a run: each flipped byte is noticed or changes nothing, and nothing is lost over it."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import save_file
from small_runs import contents, experiment, train

import fedkeel as fk
from fedkeel.cli.main import call
from fedkeel.core import states
from fedkeel.core.states import Damaged
from fedkeel.core.trees import Tree
from fedkeel.errors import FolderError
from fedkeel.runs import checkpoint
from fedkeel.runs.checkpoint import Checkpoint
from fedkeel.runs.store import ClientStore
from problems import small_problem


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A finished run, not to be changed."""
    path = tmp_path_factory.mktemp("made") / "run"
    train(path)
    return path


@pytest.fixture
def run(made, tmp_path):
    return shutil.copytree(made, tmp_path / "run")


def flips(file, every=1, bits=None):
    """The file with one bit flipped, at each place in turn, and as it was in the end; yields the place."""
    whole = file.read_bytes()
    for place in range(0, len(whole), every):
        for bit in [place % 8] if bits is None else bits:
            data = bytearray(whole)
            data[place] ^= 1 << bit
            file.write_bytes(data)
            yield place
    file.write_bytes(whole)


def state_bytes(state):
    slots = {n: (s.buffer, s.layout.dumps()) if isinstance(s, Tree) else (s, "") for n, s in sorted(state.items())}
    return [(name, t.dtype, tuple(t.shape), t.numpy().tobytes(), layout) for name, (t, layout) in slots.items()]


def loaded(path):
    """All that a resumed run takes from a checkpoint."""
    found = Checkpoint.load(path)
    store = ClientStore(path.parent)
    store.restore(found.places)
    clients = [state_bytes(store.get(client)) for client in sorted(found.places)]
    return found.round, state_bytes(found.server), found.places, found.scores, clients


# ---- checkpoints ---------------------------------------------------------------------------------------------------
def check_flips(run, every, bits):
    newest = checkpoint.list_checkpoints(run / "checkpoint")[0]
    before, unnoticed = loaded(newest), []
    for file in (newest, *(run / "checkpoint" / name for name in sorted(set(before[2].values())))):
        for place in flips(file, every, bits):
            try:
                if loaded(newest) != before:
                    unnoticed.append((file.name, place))
            except Damaged:
                pass
    assert not unnoticed
    assert loaded(newest) == before


def test_a_flipped_byte_of_a_checkpoint_is_noticed_or_harmless(run):
    check_flips(run, every=17, bits=None)


@pytest.mark.slow
def test_every_flipped_bit_of_a_checkpoint_is_noticed_or_harmless(run):
    check_flips(run, every=1, bits=range(8))


def test_facts_are_covered_not_only_arrays(run):
    """A round, a place or a score that was changed in the header is not believed."""
    newest = checkpoint.list_checkpoints(run / "checkpoint")[0]
    data = newest.read_bytes()
    assert data.count(b'\\"round\\": 3') == 1
    newest.write_bytes(data.replace(b'\\"round\\": 3', b'\\"round\\": 2'))
    with pytest.raises(Damaged, match="checksum"):
        Checkpoint.load(newest)


def test_a_checkpoint_under_the_name_of_another_round_is_not_believed(run):
    newest = checkpoint.list_checkpoints(run / "checkpoint")[0]
    with pytest.raises(Damaged, match=r"00000004\.safetensors is of round 3"):
        Checkpoint.load(newest.rename(newest.with_name("00000004.safetensors")))


def test_one_spilled_state_of_several_is_checked_when_it_is_read_back(tmp_path):
    store = ClientStore(tmp_path, budget=0)
    for client in range(4):
        store.put(client, {"h": Tree.of({"w": torch.full((50,), float(client))})}, 1)
    store.trim()
    (name,) = set(store.places.values())
    before, unnoticed = [state_bytes(store.get(client)) for client in range(4)], []
    for place in flips(tmp_path / name, every=5):
        for client in range(4):
            store.memory.clear()
            try:
                if state_bytes(store.get(client)) != before[client]:
                    unnoticed.append((place, client))
            except fk.RunError:
                pass
    assert not unnoticed


def in_the_old_form(path):
    """As versions before this one wrote it: one checksum, of the arrays alone."""
    with safe_open(path, framework="np") as file:
        facts = json.loads(file.metadata()["fedkeel"])
        arrays = {name: file.get_tensor(name) for name in file.keys()}
    facts = {name: value for name, value in facts.items() if name not in ("check", "checks", "sums")}
    text = json.dumps(facts | {"checksum": states.checksum_of_all(arrays)}, sort_keys=True)
    save_file(arrays, path, {"fedkeel": text})


def test_older_checkpoints_are_read_and_one_line_says_so(run, tmp_path, caplog):
    for path in (run / "checkpoint").iterdir():
        in_the_old_form(path)
    (run / "sums.txt").unlink()
    fk.load_run(run)
    assert len([line for line in caplog.messages if "was written by an older version" in line]) == 1
    assert train(run, experiment(5)).result == train(tmp_path / "whole", experiment(5)).result
    newest = checkpoint.list_checkpoints(run / "checkpoint")[1]
    in_the_old_form(newest)
    newest.write_bytes(newest.read_bytes()[:-1] + b"\xff")
    with pytest.raises(Damaged, match="checksum"):
        Checkpoint.load(newest)


def test_a_checkpoint_of_another_experiment_is_refused(run, tmp_path):
    train(tmp_path / "other", experiment(lr=0.06))
    shutil.rmtree(run / "checkpoint")
    shutil.copytree(tmp_path / "other" / "checkpoint", run / "checkpoint")
    before = contents(run)
    for asked in (lambda: train(run, experiment(5)), lambda: fk.load_run(run)):
        with pytest.raises(FolderError, match="is of another experiment") as caught:
            asked()
        assert "\n" not in caught.value.message
    assert contents(run) == before


def test_states_of_another_run_are_not_those_of_a_checkpoint(run, tmp_path):
    train(tmp_path / "other", experiment(seed=1))
    newest = checkpoint.list_checkpoints(run / "checkpoint")[0]
    (name,) = set(Checkpoint.load(newest).places.values())
    shutil.copy(tmp_path / "other" / "checkpoint" / name, run / "checkpoint" / name)
    with pytest.raises(Damaged, match="is not the file that"):
        Checkpoint.load(newest)


# ---- plain files ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("every", [23, pytest.param(1, marks=pytest.mark.slow)])
def test_a_flipped_byte_of_a_plain_file_is_noticed_or_harmless(tmp_path, every):
    problem = replace(small_problem(), tests=small_problem().clients)
    train(tmp_path, experiment(problem=problem, evaluation={"tune": True, "report": "last"}))
    before, unnoticed = fk.load_run(tmp_path), []
    for name in ("rounds.jsonl", "result.json", "sums.txt"):
        for place in flips(tmp_path / name, every):
            try:
                found = fk.load_run(tmp_path)
            except FolderError:
                continue
            if (found.records, found.result) != (before.records, before.result):
                unnoticed.append((name, place))
    assert not unnoticed


@pytest.mark.parametrize("lines", [[0, 2], [1, 0, 2], [0, 1], [0, 1, 1, 2]])
def test_lines_that_are_lost_or_moved_are_noticed(run, lines):
    file = run / "rounds.jsonl"
    there = file.read_text().splitlines(keepends=True)
    file.write_text("".join(there[i] for i in lines))
    before = contents(run)
    for asked in (lambda: fk.load_run(run), lambda: train(run, experiment(5))):
        with pytest.raises(FolderError, match=r"rounds\.jsonl"):
            asked()
    assert contents(run) == before


def test_lines_after_the_checkpoint_are_made_again(run, tmp_path, caplog):
    with (run / "rounds.jsonl").open("a") as lines:
        lines.write("\0" * 40 + "\n")  # what a power cut leaves
    assert fk.load_run(run).result["rounds"] == 3
    assert "damaged in line 4" in caplog.text
    assert train(run, experiment(5)).result == train(tmp_path / "whole", experiment(5)).result


@pytest.mark.parametrize(
    "line",
    [
        b"3",
        b"{}",
        b'{"round": "1"}',
        b'{"round": 1, "selected": 3}',
        b'{"round": 1, "backward_passes": 1, "bytes_down": 1, "bytes_up": 1, "seconds": NaN}',
        b'{"round": 1, "backward_passes": 1, "bytes_down": 1, "bytes_up": 1, "seconds": 1, "extra": [1]}',
        b"[" * 20000,
        b"\xff",
    ],
)
def test_lines_of_older_runs_are_checked_by_their_types(run, line):
    (run / "sums.txt").unlink()
    (run / "rounds.jsonl").write_bytes(line + b"\n")
    with pytest.raises(FolderError, match=r"rounds\.jsonl is damaged in line 1") as caught:
        fk.load_run(run)
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 400


# ---- what is lost --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("how", ["removed", "emptied", "a file"])
def test_a_run_without_its_checkpoints_does_not_start_from_zero(run, how):
    shutil.rmtree(run / "checkpoint")
    if how == "emptied":
        (run / "checkpoint").mkdir()
    elif how == "a file":
        (run / "checkpoint").write_text("")
    before = contents(run)
    for asked in (lambda: train(run, experiment(5)), lambda: train(run), lambda: fk.load_run(run)):
        with pytest.raises(FolderError, match="checkpoint") as caught:
            asked()
        assert "\n" not in caught.value.message
        assert caught.value.hint
    assert contents(run) == before


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_again(run, tmp_path):
    shutil.rmtree(run / "checkpoint")
    (run / "checkpoint").mkdir()
    for name in ("timing.json", "result.json"):
        (run / name).unlink()
    with pytest.raises(FolderError, match="no checkpoint yet"):
        fk.load_run(run)
    assert train(run).result == train(tmp_path / "whole").result


@pytest.mark.parametrize("name", ["rounds.jsonl", "environment.json", "timing.json", "experiment.toml", "sums.txt"])
@pytest.mark.parametrize("damage", [b'{"half', b"\xff\xfe", b"[]"])
def test_nothing_is_written_before_everything_was_read(run, name, damage):
    newest = checkpoint.list_checkpoints(run / "checkpoint")[0]
    newest.write_bytes(b"junk")  # it would be put aside
    (run / name).write_bytes(damage + b"\n")
    before = contents(run)
    with pytest.raises(FolderError) as caught:
        train(run, experiment(5))
    assert "\n" not in caught.value.message
    assert contents(run) == before


def test_damaged_weights_are_told_by_who_wants_them(run, tmp_path, capsys):
    """None of them shows or writes a model that was not trained."""
    for file in checkpoint.list_checkpoints(run / "checkpoint"):
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
    with pytest.raises(FolderError) as told:
        fk.load_run(run).model()
    for words in (["export", "model", str(run), str(tmp_path / "m.safetensors")], ["compare", str(run)]):
        assert call(words) == 2
        assert capsys.readouterr().err.splitlines()[-3] == f"error: {told.value.message}"
    assert not (tmp_path / "m.safetensors").exists()

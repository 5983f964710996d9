"""Client states: kept in memory while they fit, in files beyond, and never for those who have not taken part."""

import random
import shutil
from types import SimpleNamespace

import pytest
import torch

import fedkeel as fk
from fedkeel.core.trees import Tree, state_bytes
from fedkeel.errors import RunError
from fedkeel.runs import checkpoint, loop
from fedkeel.runs import store as stores
from fedkeel.runs.checkpoint import Checkpoint, list_checkpoints
from fedkeel.runs.run_folder import RunFolder
from fedkeel.runs.store import ClientStore
from fedkeel.text import byte_size
from problems import small_problem

SIZE = 4008  # bytes of a state
REMEMBERING = dict(problem=small_problem(), method="scaffold", participation=1.0, epochs=1, batch_size=4, lr=0.05)


def state(number):
    return {"h": Tree.of({"w": torch.full((1000,), float(number))}), "seen": torch.tensor(number)}


@pytest.fixture(params=[1, 3])
def together(request, monkeypatch):
    """How many clients share a file."""
    monkeypatch.setattr(stores, "SHARED", request.param * SIZE)
    return request.param


def test_states_come_back_from_files_as_they_were(tmp_path, together):
    store = ClientStore(tmp_path, budget=3 * SIZE)
    for client in range(10):
        store.put(client, state(client), client + 1)
        store.trim()
        assert store.held <= store.budget
    assert len({*store.places, *store.memory}) == 10
    assert len(store.memory) <= 3
    for client in (0, 9, 4):
        found = store.get(client)
        assert torch.equal(found["h"].buffer, state(client)["h"].buffer)
        assert found["h"].layout is state(client)["h"].layout
        assert found["seen"] == client
    assert store.get(99) is None


def test_a_state_that_was_changed_after_it_was_written_is_the_newer_one(tmp_path, together):
    store = ClientStore(tmp_path, budget=0)
    for number in (1, 2):
        store.put(5, state(number), number)
        store.trim()
    assert not store.memory
    assert store.get(5)["seen"] == 2


def test_reading_everyone_keeps_to_the_budget(tmp_path, together):
    store = ClientStore(tmp_path, budget=2 * SIZE)
    for client in range(10):
        store.put(client, state(client), 1)
    store.save()
    store.trim()
    store.put(3, state(33), 2)  # not in a file: it must not be lost
    for client in range(10):
        assert store.get(client)["seen"] == (33 if client == 3 else client)
        assert store.held == SIZE * len(store.memory)
        assert len(store.memory) <= 3


def play(folder, seed, rounds=12):
    """A history of 8 clients, the same for all seeds, with interruptions, checkpoints and budgets that are not."""
    history, moods = random.Random(0), random.Random(seed)
    store, checkpoint = ClientStore(folder, budget=moods.choice([None, 0, 2 * SIZE])), {}
    for done in range(1, rounds + 1):
        for client in history.sample(range(8), 3):
            before = store.get(client)
            store.put(client, state(10 * done + (0 if before is None else int(before["seen"]))), done)
            assert store.held == SIZE * len(store.memory)
        if moods.random() < 0.5:
            store.trim()
        if done == rounds or moods.random() < 0.4:
            checkpoint = store.save()
            if moods.random() < 0.5:
                store = ClientStore(folder, budget=moods.choice([None, 0, 2 * SIZE]))
                store.restore(checkpoint)
    return checkpoint, {name: (folder / name).read_bytes() for name in checkpoint.values()}


def test_a_checkpoint_does_not_depend_on_what_was_written_before(tmp_path, together):
    expected = play(tmp_path / "0", 0)
    for seed in range(1, 9):
        assert play(tmp_path / str(seed), seed) == expected


def test_a_state_is_written_once(tmp_path, together, monkeypatch):
    written = []
    monkeypatch.setattr(stores, "write", lambda path, *rest, **more: written.append(path.name))
    store = ClientStore(tmp_path)
    store.put(0, state(0), 1)
    store.put(7, state(7), 1)
    monkeypatch.setattr(stores, "sync", lambda path: None)
    for _ in range(3):
        store.save()
    assert sorted(written) == [f"clients-{client // together:06d}-00000001.safetensors" for client in (0, 7)]


def test_files_that_no_checkpoint_names_do_not_pile_up(tmp_path, together):
    store = ClientStore(tmp_path, budget=0)
    named = set()
    for round in range(1, 10):
        store.put(0, state(round), round)
        store.put(4, state(round), round)
        store.trim()
        if round in (3, 6):
            named.update(store.save().values())
        assert {path.name for path in tmp_path.iterdir()} == named.union(store.places.values())


def test_a_store_without_a_folder_leaves_nothing_behind():
    store = ClientStore(None, budget=0)
    for round in (1, 2, 3):
        store.put(0, state(0), round)
        store.trim()
        assert len(list(store.folder.iterdir())) == 1  # no checkpoint needs the older ones
    store.close()
    assert not store.folder.exists()


def test_a_file_that_was_damaged_meanwhile_is_said_in_one_line(tmp_path):
    store = ClientStore(tmp_path, budget=0)
    store.put(3, state(3), 1)
    store.trim()
    path = tmp_path / store.places[3]
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(RunError, match=r"the state of client 3 cannot be read back: .* checksum") as caught:
        store.get(3)
    assert "fedkeel resume" in caught.value.hint


@pytest.mark.parametrize("out", [True, False])
def test_a_run_with_a_tiny_budget_gives_the_same_result(tmp_path, monkeypatch, out):
    exp = fk.Experiment(
        problem=small_problem(), method="scaffold", rounds=6, participation=0.5, epochs=1, batch_size=4, lr=0.05
    )
    expected = fk.run(exp, engine="serial")
    monkeypatch.setattr(loop, "state_budget", lambda device: 0)
    spilled = fk.run(exp, out=tmp_path if out else None, engine="serial", checkpoint_seconds=0)
    assert spilled.result == expected.result
    if out:
        kept = list_checkpoints(tmp_path / "checkpoint")
        used = {name for path in kept for name in Checkpoint.load(path).places.values()}
        assert used == {path.name for path in (tmp_path / "checkpoint").glob("clients-*")}


def test_memory_does_not_grow_with_the_clients_that_took_part(tmp_path):
    """The law of benchmarks/client_states.py: beyond the budget, only the disk fills up."""
    budget, most = 4 * SIZE, 0
    store = ClientStore(tmp_path, budget=budget)
    for round in range(20):
        for client in range(3 * round, 3 * round + 3):
            assert store.get(client) is None
            store.put(client, state(client), round + 1)
        most = max(most, store.held)
        store.trim()
        assert store.held == SIZE * len(store.memory) <= budget
    assert most <= budget + 3 * SIZE
    assert len({*store.places, *store.memory}) == 60
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) > 50 * SIZE
    assert all(int(store.get(client)["seen"]) == client for client in range(60))


def test_of_two_checkpoints_the_older_stays_where_the_newer_is_damaged_or_in_use(tmp_path):
    exp = fk.Experiment(**REMEMBERING, rounds=3)
    fk.run(exp, out=tmp_path, engine="serial", checkpoint_seconds=0)
    before, folder = list_checkpoints(tmp_path / "checkpoint"), RunFolder(tmp_path)
    folder.open()
    RunFolder(tmp_path).keep_newest()
    folder.close()
    whole = before[0].read_bytes()
    before[0].write_bytes(whole[:-1])
    folder.keep_newest()
    assert list_checkpoints(tmp_path / "checkpoint") == before
    before[0].write_bytes(whole)
    folder.keep_newest()
    assert list_checkpoints(tmp_path / "checkpoint") == before[:1]


# ---- room on the disk ----------------------------------------------------------------------------------------------
@pytest.fixture
def free(monkeypatch):
    """Bytes that are free on every disk, as the system tells them."""
    told = SimpleNamespace(total=1 << 50, free=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: (told.total, told.total - told.free, told.free))
    return told


@pytest.fixture
def held(monkeypatch):
    """How many states were on disk whenever a checkpoint had been written, before the oldest was removed."""
    monkeypatch.setattr(stores, "SHARED", 1)
    found, prune = [], checkpoint.prune

    def count(folder):
        found.append(len(list(folder.glob("clients-*"))))
        prune(folder)

    monkeypatch.setattr(checkpoint, "prune", count)
    return found


@pytest.mark.parametrize("rounds", [2, 6])
def test_a_disk_that_may_become_full_is_told_before_the_first_round(tmp_path, free, held, caplog, rounds):
    exp = fk.Experiment(**REMEMBERING, rounds=rounds)
    free.free = 1 << 40
    size = state_bytes(fk.run(exp, out=tmp_path / "a", engine="serial", checkpoint_seconds=0).server["c"])
    for room, warns in ((0, False), (1, True)):
        free.free = max(held) * size - room
        fk.run(exp, out=tmp_path / str(room), engine="serial")
        assert [byte_size(max(held) * size) in line for line in caplog.messages if "disk" in line] == [True] * warns


def test_states_that_share_a_file_need_room_for_what_is_written_anew(tmp_path, free, monkeypatch, caplog):
    """A client that changes has the states of its neighbours written again, beside those of older checkpoints."""
    taken, prune = [], checkpoint.prune

    def weigh(folder):
        taken.append(sum(file.stat().st_size for file in folder.glob("clients-*")))
        prune(folder)

    monkeypatch.setattr(checkpoint, "prune", weigh)
    clients = [(torch.randn(4, 500), torch.arange(4) % 3) for _ in range(20)]
    wide = fk.Problem(model=torch.nn.Linear(500, 3), loss=torch.nn.functional.cross_entropy, clients=clients)
    exp = fk.Experiment(**REMEMBERING | {"problem": wide, "participation": 0.1}, rounds=6)
    free.free = 1 << 40
    fk.run(exp, out=tmp_path / "a", engine="serial", checkpoint_seconds=0)
    for room, warns in ((0.9, True), (2.0, False)):
        free.free = int(max(taken) * room)
        fk.run(exp, out=tmp_path / str(room), engine="serial")
        assert any("may take" in line for line in caplog.messages) == warns
        caplog.clear()


def test_what_is_there_already_needs_no_room_again(tmp_path, free, held, caplog):
    """After six rounds two of at most three copies are there: a third needs room."""
    free.free = 1 << 40
    first = fk.run(fk.Experiment(**REMEMBERING, rounds=6), out=tmp_path, engine="serial", checkpoint_seconds=0)
    free.free = max(held) // 3 * state_bytes(first.server["c"])
    fk.run(fk.Experiment(**REMEMBERING, rounds=9), out=tmp_path, engine="serial", checkpoint_seconds=0)
    assert not [line for line in caplog.messages if "disk" in line]


def test_a_disk_too_full_for_one_round_is_refused_before_it(tmp_path, free):
    exp = fk.Experiment(**REMEMBERING, rounds=6)
    with pytest.raises(RunError, match=r"after one round, and .* has 0 B left on its disk") as caught:
        fk.run(exp, out=tmp_path / "a", engine="serial")
    assert isinstance(caught.value.__cause__, OSError)  # by which a study knows that no method is to blame
    both = fk.run_together([exp, exp.with_(seed=2)], out=[tmp_path / "b", tmp_path / "c"])
    assert [type(one) for one in both] == [RunError, RunError]
    assert not list(tmp_path.rglob("*.safetensors"))
    free.free = 1 << 40
    assert fk.run(exp, out=tmp_path / "a", engine="serial").result == fk.run(exp, engine="serial").result


def test_a_disk_that_does_not_tell_its_size_is_not_full(tmp_path, free):
    free.total = 0
    assert fk.run(fk.Experiment(**REMEMBERING, rounds=1), out=tmp_path, engine="serial").records


def test_one_full_disk_does_not_stop_the_runs_on_another(tmp_path, free, monkeypatch):
    rooms = {"full": 0, "large": 1 << 40}
    monkeypatch.setattr("fedkeel.runs.together.find_disk", lambda loop: loop.folder.path.parent.name)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: (1 << 50, 0, rooms[path.parent.name]))
    places = ["full/a", "large/b", "full/c"]
    runs = [fk.Experiment(**REMEMBERING, rounds=1, seed=seed) for seed in range(3)]
    found = fk.run_together(runs, out=[tmp_path / place for place in places])
    assert [type(one) for one in found] == [RunError, fk.Run, RunError]
    assert found[1].experiment.seed == 1


def test_a_run_that_cannot_begin_does_not_stop_the_others(tmp_path, monkeypatch):
    write = RunFolder.write_json

    def fail(folder, name, data):
        if folder.path.name == "b":
            raise RunError("cannot write", "free some space")
        return write(folder, name, data)

    monkeypatch.setattr(RunFolder, "write_json", fail)
    runs = [fk.Experiment(**REMEMBERING, rounds=1, seed=seed) for seed in range(3)]
    found = fk.run_together(runs, out=[tmp_path / name for name in "abc"])
    assert [type(one) for one in found] == [fk.Run, RunError, fk.Run]
    assert [one.experiment.seed for one in found[::2]] == [0, 2]


def test_runs_that_write_no_states_need_no_room(tmp_path, free, caplog):
    fk.run(fk.Experiment(**REMEMBERING, rounds=2), engine="serial")
    fk.run(fk.Experiment(**REMEMBERING | {"method": "fedavg"}, rounds=2), out=tmp_path, engine="serial")
    assert not [line for line in caplog.messages if "disk" in line]

"""Client states: kept in memory while they fit, in files beyond, and never for those who have not taken part."""

import sys

import pytest
import torch

import fedkeel as fk
from fedkeel.checkpoint import Checkpoint, names
from fedkeel.store import FILES, ClientStore
from fedkeel.trees import Tree
from problems import small_problem


def state(number, size=1000):
    return {"h": Tree.of({"w": torch.full((size,), float(number))}), "seen": torch.tensor(number)}


def test_states_come_back_from_files_as_they_were(tmp_path):
    store = ClientStore(tmp_path, budget=3 * 4008)
    for client in range(10):
        store.put(client, state(client))
        store.trim()
        assert store.held <= store.budget
    assert len(store) == 10
    assert len(store.memory) <= 3
    for client in (0, 9, 4):
        found = store.get(client)
        assert torch.equal(found["h"].buffer, state(client)["h"].buffer)
        assert found["h"].layout is state(client)["h"].layout
        assert found["seen"] == client
    assert store.get(99) is None


def test_a_state_that_was_changed_after_it_was_written_is_the_newer_one(tmp_path):
    store = ClientStore(tmp_path, budget=0)
    for number in (1, 2):
        store.put(5, state(number))
        store.trim()
    assert not store.memory
    assert store.get(5)["seen"] == 2


def test_a_whole_save_does_not_depend_on_what_was_written_before(tmp_path):
    once, often = ClientStore(tmp_path / "a"), ClientStore(tmp_path / "b", budget=2 * 4008)
    for client in (3, 1, 2):
        once.put(client, state(client))
        often.put(client, state(client))
        often.trim()
        often.save(client, whole=False)
    assert once.save(7, whole=True) == often.save(7, whole=True)
    name = once.places[1]
    assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_files_do_not_pile_up(tmp_path):
    store = ClientStore(tmp_path)
    for client in range(3 * FILES):
        store.put(client, state(client, size=10))
        store.save(client, whole=False)
        assert len(set(store.places.values())) <= FILES + 1


def test_a_store_without_a_folder_leaves_nothing_behind():
    store = ClientStore(None, budget=0)
    store.put(0, state(0))
    store.trim()
    assert list(store.folder.iterdir())
    store.close()
    assert not store.folder.exists()


@pytest.mark.parametrize("out", [True, False])
def test_a_run_with_a_tiny_budget_gives_the_same_result(tmp_path, monkeypatch, out):
    exp = fk.Experiment(
        problem=small_problem(), method="scaffold", rounds=6, participation=0.5, epochs=1, batch_size=4, lr=0.05
    )
    expected = fk.run(exp, engine="serial")
    monkeypatch.setattr(sys.modules["fedkeel.loop"], "state_budget", lambda device: 0)
    spilled = fk.run(exp, out=tmp_path if out else None, engine="serial", checkpoint_seconds=0)
    assert spilled.result == expected.result
    if out:
        kept = names(tmp_path / "checkpoint")
        used = {name for path in kept for name in Checkpoint.load(path).places.values()}
        assert used == {path.name for path in (tmp_path / "checkpoint").glob("clients-*")}


def test_spilled_files_of_an_earlier_session_are_not_written_over(tmp_path):
    first = ClientStore(tmp_path, budget=0)
    first.put(0, state(1))
    first.trim()
    second = ClientStore(tmp_path, budget=0)
    second.restore(first.places)
    second.put(7, state(2))
    second.trim()
    assert second.get(0)["seen"] == 1
    assert second.get(7)["seen"] == 2

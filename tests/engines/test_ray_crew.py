"""What `--engine ray` decides without Ray: how many workers, which address, and states that stay elsewhere."""

from types import SimpleNamespace

import pytest
import torch

from fedkeel.core.states import from_arrays, read
from fedkeel.core.trees import all_finite, state_bytes
from fedkeel.engines.choose import candidates
from fedkeel.engines.engine import ClientOutcome, KeptState, StatesLost, Training, client_state
from fedkeel.engines.measure import Job, RemainingWork
from fedkeel.engines.ray_connection import count_workers, require_listener
from fedkeel.engines.worker import pack, unpack
from fedkeel.errors import RequestError
from fedkeel.methods import build
from fedkeel.problems.task import Task
from fedkeel.runs.store import ClientStore
from problems import small_problem


def cluster(*machines):
    nodes = [{"Alive": alive, "Resources": {"CPU": cpu, "GPU": gpu}} for alive, cpu, gpu in machines]
    return SimpleNamespace(nodes=lambda: nodes)


def test_workers_are_as_many_as_machines_have_room_for():
    ray = cluster((True, 5.0, 2.0), (True, 3.0, 0.0), (False, 64.0, 8.0))
    assert count_workers(ray, None, 1.0, 0.0) == 8
    assert count_workers(ray, None, 2.0, 0.0) == 3  # two cores of one machine
    assert count_workers(ray, None, 1.0, 1.0) == 2
    assert count_workers(ray, 3, 1.0, 0.0) == 3
    with pytest.raises(RequestError, match=r"has room for 2 workers of 1 CPU and 1 GPU each, not for 4\.") as caught:
        count_workers(ray, 4, 1.0, 1.0)
    assert caught.value.hint == "--workers 2"
    with pytest.raises(RequestError, match="room for 0 workers of 6 CPU each, not for 1"):
        count_workers(ray, None, 6.0, 0.0)


def test_only_addresses_of_a_host_and_a_port_are_tried():
    for address in ("", "auto", "local", "ray://nowhere.invalid:1"):
        require_listener(address)
    with pytest.raises(OSError, match="refused"):
        require_listener("127.0.0.1:1")


def kept(state, is_finite=True):
    return KeptState(lambda: state, state_bytes(state), is_finite)


def test_a_state_that_stays_elsewhere_is_read_when_it_is_used_and_is_never_taken_for_an_empty_one():
    task, method = Task(small_problem()), build("scaffold")
    state = client_state(method, task, None)
    away = kept(state)
    assert away
    assert state_bytes(away) == state_bytes(state) > 0
    assert client_state(method, task, away) is state
    with pytest.raises(TypeError, match="fetch the state first"):
        away[next(iter(state))]
    assert unpack(away) is away
    sent = unpack(pack(away))
    assert sent.keys() == state.keys()
    report = {"loss": torch.tensor(1.0)}
    assert ClientOutcome(0, report, away).is_finite
    assert not ClientOutcome(0, report, kept(state, is_finite=False)).is_finite
    assert not ClientOutcome(0, {"loss": torch.tensor(torch.nan)}, away).is_finite
    assert all_finite(report)


def test_a_store_writes_states_that_stay_elsewhere_as_it_writes_others(tmp_path):
    method, task = build("scaffold"), Task(small_problem())
    state = client_state(method, task, None)
    for name, given in (("here", state), ("away", kept(state))):
        (tmp_path / name).mkdir()
        store = ClientStore(tmp_path / name)
        store.put(3, given, 2)
        assert store.get(3) is given
        store.save()
    (here,), (away,) = (list((tmp_path / name).iterdir()) for name in ("here", "away"))
    assert here.name == away.name
    assert here.read_bytes() == away.read_bytes()
    arrays, facts = read(away, prefix="3/")
    assert from_arrays(arrays, facts["layouts"], "3/", "cpu").keys() == state.keys()


def test_a_store_over_its_budget_takes_states_from_where_they_stay(tmp_path):
    state = client_state(build("scaffold"), Task(small_problem()), None)
    store = ClientStore(tmp_path, budget=state_bytes(state))
    for client in range(3):
        store.put(client, kept(state), 1)
    store.trim()
    assert set(store.memory) == {2}
    assert not isinstance(store.get(0), KeptState)


def test_a_lost_state_leaves_the_checkpoint_before_as_it_was(tmp_path):
    def lose():
        raise StatesLost("lost")

    state = client_state(build("scaffold"), Task(small_problem()), None)
    store = ClientStore(tmp_path)
    store.put(1, kept(state), 1)
    places = store.save()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    store.put(1, KeptState(lose, state_bytes(state), True), 2)
    with pytest.raises(StatesLost):
        store.save()
    assert {name: (tmp_path / name).read_bytes() for name in places.values()} == before


@pytest.mark.parametrize(("before", "expected"), [("ray", {"serial", "processes"}), ("ray-stacked", {"stacked"})])
def test_a_run_of_ray_goes_on_with_engines_of_its_bits(before, expected):
    task = Task(small_problem())
    job = Job(task, build("fedavg"), Training(0, 1, 4), Task, 2, RemainingWork(1, [0]))
    assert set(candidates(job, before)) == expected


def test_arrays_that_processes_share_become_tensors_that_can_be_written():
    array = pack({"one": torch.ones(3)})["one"].copy()
    array.flags.writeable = False
    tensor = unpack({"one": array})["one"]
    tensor += 1
    assert array.tolist() == [1.0, 1.0, 1.0]

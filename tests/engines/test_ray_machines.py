"""A Ray cluster of two machines, both of them here: one dies with what clients remember."""

import gc
import os

import pytest

pytest.importorskip("ray.exceptions", reason='needs ray: pip install "fedkeel[ray]"')

import torch
from federations import same
from ray.cluster_utils import Cluster

import fedkeel as fk
from fedkeel.errors import RequestError, RunError
from problems import small_problem

pytestmark = [
    pytest.mark.slow,
    # Ray leaves handles of its own processes open
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]

MACHINE = {"num_cpus": 1, "object_store_memory": 200 << 20}


@pytest.fixture
def two_machines(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.path.dirname(os.path.dirname(fk.__file__)))
    cluster = Cluster(initialize_head=True, head_node_args=MACHINE | {"include_dashboard": False})
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    cluster.other = cluster.add_node(**MACHINE)
    yield cluster
    cluster.shutdown()
    del cluster.other  # it holds handles, which are to be found here, while that is ignored
    gc.collect()


class Remove:
    """A machine is gone after round 3, and another is there."""

    def __init__(self, cluster):
        self.cluster, self.begun = cluster, []

    def started(self, experiment, done, engine):
        self.begun.append(done)

    def round(self, record):
        if record.round == 3 and len(self.begun) == 1:
            self.cluster.remove_node(self.cluster.other, allow_graceful=False)
            self.cluster.add_node(**MACHINE)

    def finished(self, run): ...


def wide_experiment():
    """States of 288 KB: smaller ones travel with Ray's answers, and are never lost."""
    given = small_problem()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8000), torch.nn.ReLU(), torch.nn.Linear(8000, 3))
    problem = fk.Problem(model=model, loss=given.loss, clients=given.clients, test=given.test)
    return fk.Experiment(
        problem=problem, method="scaffold", rounds=5, participation=1.0, epochs=1, batch_size=4, lr=0.01
    )


def test_a_run_goes_back_to_its_checkpoint_when_a_machine_dies(two_machines, tmp_path, caplog):
    exp, watch = wide_experiment(), Remove(two_machines)
    fk.run(exp.with_(rounds=1), engine="ray", out=tmp_path / "run")
    made = fk.run(exp, engine="ray", out=tmp_path / "run", progress=watch)
    assert watch.begun == [1, 1]  # from the checkpoint of round 1, twice
    assert "was lost with a machine of the Ray cluster. The run goes back to its last checkpoint" in caplog.text
    same(fk.run(exp, engine="serial"), made)


def test_a_run_without_a_folder_says_what_was_lost(two_machines):
    with pytest.raises(RunError, match="lost with a machine"):
        fk.run(wide_experiment(), engine="ray", progress=Remove(two_machines))


def test_a_cluster_that_does_not_answer_is_one_line(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(RequestError, match="no Ray cluster at 127"):
        fk.run(wide_experiment(), engine="ray")

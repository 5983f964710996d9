"""`--engine ray` on a local Ray: the bits of the serial engine, whoever trains whom and whoever dies."""

import os
import signal

import pytest

pytest.importorskip("ray.exceptions", reason='needs ray: pip install "fedkeel[ray]"')

import ray
import torch
from federations import same

import fedkeel as fk
from fedkeel.engines import ray_crew
from fedkeel.engines.ray_connection import import_ray
from fedkeel.engines.ray_crew import RayCrew
from fedkeel.errors import RunError
from problems import small_problem

pytestmark = [
    pytest.mark.slow,
    # Ray leaves handles of its own processes open
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]

STORE = 200 << 20  # bytes


@pytest.fixture(scope="module")
def local():
    """Ray with room for six workers."""
    path = os.path.dirname(os.path.dirname(fk.__file__))
    import_ray().init(
        address="local",
        num_cpus=6,
        object_store_memory=STORE,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}},
    )
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def crew(local):
    """Two workers that the engines of several tests share: to start one takes seconds."""
    made = RayCrew.join(2, torch.device("cpu"))
    yield made
    made.close()
    assert RayCrew.shared is None


def experiment(problem, method="scaffold", **changes):
    settings = dict(rounds=4, participation=0.7, epochs=(1, 2), batch_size=4, lr=0.1, weight_decay=1e-3, clip=5.0)
    return fk.Experiment(problem=problem, method=method, **settings | changes)


def judged(problem):
    return fk.Problem(
        model=problem.model, loss=problem.loss, clients=problem.clients, test=problem.test, classes=3,
        tests=problem.clients,
    )  # fmt: skip


def equal(one, other):
    same(one, other)
    assert one.result == other.result
    for mine, theirs in zip(one.records, other.records, strict=True):
        assert (mine.loss, mine.drift, mine.extra) == (theirs.loss, theirs.drift, theirs.extra)


def test_workers_give_the_bits_of_serial_and_keep_what_clients_remember(crew, monkeypatch):
    read = []
    monkeypatch.setattr(ray_crew, "read_state", lambda *given: read.append(given))
    for method in ("scaffold", "fedfft-d", "fedavg"):
        exp = experiment(small_problem(), method, validation=0.2, unavailable=0.1)
        equal(fk.run(exp, engine="serial"), fk.run(exp, engine="ray"))
    assert read == []


def test_observers_personal_models_and_a_final_phase_read_what_workers_keep(crew):
    exp = experiment(judged(small_problem()), "ditto", evaluation={"clients": "all"})
    equal(*(fk.run(exp, engine=name, track="state") for name in ("serial", "ray")))
    exp = experiment(judged(small_problem()), "fedavg-ft", evaluation={})
    equal(*(fk.run(exp, engine=name) for name in ("serial", "ray")))


def test_a_run_goes_on_with_other_workers_and_its_files_are_those_of_serial(crew, tmp_path):
    exp = experiment(small_problem(), "feddyn")
    expected = fk.run(exp, engine="serial", device="cpu", out=tmp_path / "serial")
    for first, then in (("ray", "ray"), ("ray", "serial"), ("processes", "ray")):
        folder = tmp_path / f"{first}-{then}"
        fk.run(exp.with_(rounds=2), engine=first, workers=2, device="cpu", out=folder)
        equal(expected, fk.run(exp, engine=then, workers=2, device="cpu", out=folder))
        for path in (tmp_path / "serial" / "checkpoints").glob("*.safetensors"):
            assert (folder / "checkpoints" / path.name).read_bytes() == path.read_bytes()


def dying(problem, flags, times=1):
    """The problem, with a loss that kills its worker; each file of `flags` is one life."""
    folder = str(flags)

    def loss(output, target):
        if output.requires_grad and len(os.listdir(folder)) < times and target.shape[0] == 4:
            open(os.path.join(folder, str(os.getpid())), "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.nn.functional.cross_entropy(output, target, reduction="none")

    return fk.Problem(model=problem.model, loss=loss, clients=problem.clients, test=problem.test)


def test_a_killed_worker_is_replaced_and_its_clients_remember(crew, tmp_path, caplog):
    """In a run that was resumed, when clients know what they learned with the worker that dies."""
    exp = experiment(small_problem(), "scaffold", rounds=2)
    fk.run(exp, engine="ray", out=tmp_path / "run")
    expected = fk.run(exp.with_(rounds=4), engine="serial")
    rounds = []

    class Kill:
        def started(self, *_): ...
        def finished(self, *_): ...
        def round(self, record):
            rounds.append(record.round)
            os.kill(ray.get(crew.actors[0].answer.remote("call", os.getpid)), signal.SIGKILL)

    made = fk.run(exp.with_(rounds=4), engine="ray", out=tmp_path / "run", progress=Kill())
    assert rounds == [3, 4]
    assert "died; another takes its place" in caplog.text
    equal(expected, made)


def test_a_worker_killed_in_the_middle_of_a_client_costs_only_time(crew, tmp_path, caplog):
    (flags := tmp_path / "flags").mkdir()
    made = fk.run(experiment(dying(small_problem(), flags, 2)), engine="ray")
    assert len(list(flags.iterdir())) == 2
    assert caplog.text.count("died; another takes its place") >= 2
    same(fk.run(experiment(small_problem()), engine="serial"), made)


def test_a_problem_that_kills_every_worker_ends_in_one_line(crew, tmp_path):
    (flags := tmp_path / "flags").mkdir()
    with pytest.raises(RunError, match="a worker on Ray died 4 times"):
        fk.run(experiment(dying(small_problem(), flags, 1000)), engine="ray")


def test_what_the_users_code_raises_reaches_the_caller(crew):
    def explode(output, target):
        if output.requires_grad:
            raise ZeroDivisionError("in the user's own loss")
        return torch.zeros(len(output))

    given = small_problem()
    problem = fk.Problem(model=given.model, loss=explode, clients=given.clients, test=given.test)
    with pytest.raises(ZeroDivisionError, match="user's own"):
        fk.run(experiment(problem), engine="ray")


def test_stacked_workers_agree_with_one_stack_and_to_the_bit_among_themselves(crew, tmp_path):
    exp = experiment(small_problem(), "fedfft-d")
    one = fk.run(exp, engine="ray-stacked")
    stacked = fk.run(exp, engine="stacked")
    torch.testing.assert_close(one.server["params"].buffer, stacked.server["params"].buffer, rtol=1e-4, atol=1e-6)
    folder = tmp_path / "run"
    fk.run(exp.with_(rounds=2), engine="ray-stacked", out=folder)
    os.kill(ray.get(crew.actors[1].answer.remote("call", os.getpid)), signal.SIGKILL)
    equal(one, fk.run(exp, engine="ray-stacked", out=folder))


def test_four_workers_of_whom_one_dies(local, monkeypatch, caplog):
    monkeypatch.setattr(RayCrew, "shared", None)
    four = RayCrew.join(4, torch.device("cpu"))
    try:
        exp = experiment(small_problem(), "fedfft-d", participation=1.0)
        expected = fk.run(exp, engine="serial")
        equal(expected, fk.run(exp, engine="ray"))
        os.kill(ray.get(four.actors[2].answer.remote("call", os.getpid)), signal.SIGKILL)
        equal(expected, fk.run(exp, engine="ray"))
        assert "worker 2 on Ray died; another takes its place" in caplog.text
    finally:
        four.close()

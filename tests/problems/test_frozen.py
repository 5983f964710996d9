"""Networks of which a part is frozen: it is held once, never sent, never changed, and known by its digest."""

import importlib
import os
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import fedkeel as fk
from fedkeel.core.round import broadcast, init_server
from fedkeel.core.states import read
from fedkeel.engines.engine import Training
from fedkeel.engines.memory import activation_bytes, frozen_bytes
from fedkeel.engines.stacked.engine import StackedEngine
from fedkeel.engines.stacked.joint import joinable
from fedkeel.methods import build
from fedkeel.problems.module_state import draws_numbers
from fedkeel.problems.task import Task
from problems import small_problem


def network(width=16):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 3))


def adapted_problem(width=16, **changes):
    return replace(small_problem(**changes), model=fk.lora(network(width), 2, on="0"))


def trained(problem, engine="serial", dtype=torch.float64, out=None, **changes):
    settings = dict(method="fedavg", rounds=2, participation=1.0, epochs=1, batch_size=4, lr=0.05) | changes
    experiment = fk.Experiment(problem=problem, **settings)
    return fk.run(experiment, engine=engine, device="cpu", dtype=dtype, workers=2, out=out)


@pytest.mark.parametrize(
    "engines", [("serial", "stacked"), pytest.param(("serial", "processes"), marks=pytest.mark.slow)]
)
def test_only_what_trains_travels_and_every_engine_gives_the_same(engines, tmp_path):
    problem = adapted_problem()
    before = {name: value.clone() for name, value in problem.model.state_dict().items()}
    runs = [trained(problem, engine, out=tmp_path / engine) for engine in engines]
    names = {"0.lora_a", "0.lora_b", "3.weight", "3.bias"}
    numbers = sum(before[name].numel() for name in names)
    for run, engine in zip(runs, engines, strict=True):
        assert run.params.keys() == names
        assert all((run.params[name] - runs[0].params[name]).abs().max() < 1e-12 for name in names)
        assert run.records[0].bytes_up == run.records[0].bytes_down == 6 * 8 * numbers
        stored = read(next((tmp_path / engine / "checkpoint").glob("0*.safetensors")))[0]
        assert {name for name in stored if name.startswith("model/")} == {f"model/{name}" for name in names}
        assert not any(name.startswith("server/buffers") for name in stored)
        whole = run.model().state_dict()
        for name, value in before.items():  # the running moments of the frozen norm too
            assert torch.equal(whole[name], value) == (name not in names)
    assert all(torch.equal(value, before[name]) for name, value in problem.model.state_dict().items())


@pytest.mark.slow
def test_methods_with_memory_and_objectives_of_their_own_train_adapters_alike():
    problem = adapted_problem()
    for method in ("scaffold", "fedfft-d", "feddecorr"):
        serial, stacked = (trained(problem, engine, method=method) for engine in ("serial", "stacked"))
        gap = max(float((serial.params[n] - stacked.params[n]).abs().max()) for n in serial.params)
        assert gap < 1e-8, method
        assert not torch.equal(serial.params["0.lora_b"], torch.zeros(16, 2).double()), method


def test_frozen_weights_are_held_once():
    problem = adapted_problem()
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        tasks = [Task(problem, dtype=dtype), Task(problem, dtype=dtype)]
        first, second = (dict(task.module.named_parameters()) for task in tasks)
        assert all((first[name] is second[name]) == (not first[name].requires_grad) for name in first)
        shared = dtype == torch.float32
        assert (first["0.weight"] is problem.model.get_parameter("0.weight")) == shared
        assert first["0.weight"].dtype == dtype  # only read, so in the precision of the arithmetic
        assert first["0.lora_a"].dtype == (torch.float32 if dtype == torch.bfloat16 else dtype)


def test_what_a_client_keeps_for_the_backward_pass_is_without_the_base():
    base = nn.Sequential(nn.Linear(6, 512), nn.Linear(512, 512))
    task = Task(replace(small_problem(sizes=(4, 4)), model=fk.lora(base, 2, on="0", head=())))
    assert frozen_bytes(task) == 4 * (6 * 512 + 512 + 512 * 512 + 512)
    assert 0 < activation_bytes(task, build("fedavg"), Training(0, 1, 4)) < frozen_bytes(task) / 10
    assert frozen_bytes(Task(small_problem())) == 0


class Products(TorchDispatchMode):
    """Notes the shapes of all matrix products."""

    def __init__(self):
        super().__init__()
        self.shapes = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.bmm, torch.ops.aten.addmm):
            self.shapes.append(tuple(tuple(part.shape) for part in args[-2:]))
        return func(*args, **kwargs or {})


def test_stacked_clients_share_one_product_by_a_frozen_weight():
    task = Task(replace(small_problem(sizes=(4, 4, 4)), model=fk.lora(network(width=16), 2, on="0")))
    method = build("fedavg")
    engine = StackedEngine(task, method, Training(0, 1, 4))
    with Products() as seen:
        engine.train(broadcast(method, init_server(method, task.initial)), 0, 0.1, [0, 1, 2], [None] * 3)
    assert seen.shapes.count(((12, 6), (6, 16))) == 1
    assert not [shapes for shapes in seen.shapes if {6, 16} <= {*shapes[1]} and len(shapes[1]) == 3]
    assert ((3, 4, 6), (3, 6, 2)) in seen.shapes  # what is each client's own


def test_runs_share_a_stack_where_they_share_their_base():
    problem, settings = adapted_problem(), dict(rounds=2, participation=0.5, epochs=1, batch_size=4, lr=0.05)
    experiments = [fk.Experiment(problem=problem, seed=seed, **settings) for seed in (0, 1)]
    together = fk.run_together(experiments, dtype=torch.float64)
    for experiment, run in zip(experiments, together, strict=True):
        alone = fk.run(experiment, engine="stacked", dtype=torch.float64)
        assert all((alone.params[n] - run.params[n]).abs().max() < 1e-12 for n in alone.params)
    engines = [
        StackedEngine(Task(one), build("fedavg"), Training(0, 1, 4))
        for one in (problem, problem, replace(problem, model=fk.lora(network().requires_grad_(False), 2, on="0")))
    ]
    assert joinable(engines)
    other = fk.lora(network(), 2, on="0")
    other[0].weight.data = other[0].weight.data * 2
    assert not joinable(
        [engines[0], StackedEngine(Task(replace(problem, model=other)), build("fedavg"), Training(0, 1, 4))]
    )


class Tables(nn.Module):
    """A network with a table that is made anew, one that is part of its state, and a frozen part that counts."""

    def __init__(self):
        super().__init__()
        self.body, self.fc = nn.Linear(6, 6).requires_grad_(False), nn.Linear(6, 3)
        self.body.register_buffer("calls", torch.zeros(()))
        self.register_buffer("table", torch.linspace(0, 1, 6), persistent=False)
        self.register_buffer("kept", torch.ones(6))

    def forward(self, x):
        if self.training and not torch.compiler.is_compiling():
            self.body.calls += 1
        return self.fc(self.body(x) * self.kept + self.table + self.body.calls)


def test_buffers_that_belong_to_no_client_start_anew_and_do_not_travel():
    problem = replace(small_problem(), model=Tables())
    assert [*Task(problem).buffers] == ["kept"]
    run = trained(problem)
    assert run.records[0].bytes_up == 6 * 8 * (21 + 6)
    assert float(run.model().body.calls) == 0


def test_a_rate_of_dropout_that_is_no_module_is_seen():
    assert draws_numbers(nn.Sequential(nn.MultiheadAttention(4, 2, dropout=0.1)))
    assert not draws_numbers(nn.MultiheadAttention(4, 2))
    assert draws_numbers(nn.Dropout(0.1))
    assert not draws_numbers(nn.Dropout(0.0))


def test_a_base_trains_in_lower_precision_than_its_adapters():
    problem = adapted_problem(sizes=(16, 16))
    low, exact = (trained(problem, "stacked", dtype) for dtype in (torch.bfloat16, torch.float32))
    assert low.params["0.lora_a"].dtype == torch.float32
    assert abs(low.curve("test_loss")[-1] - exact.curve("test_loss")[-1]) < 0.02
    assert all(torch.allclose(low.params[n], exact.params[n], atol=0.01) for n in exact.params)


# ---- which base ------------------------------------------------------------------------------------------------------
NAMED = """
import os
import torch
import fedkeel as fk


def make(classes: int, shape: tuple) -> torch.nn.Module:
    torch.manual_seed(int(os.environ["BASE"]))
    base = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 8), torch.nn.ReLU(), torch.nn.Linear(8, classes))
    return fk.lora(base, 2, on="1")
"""


@pytest.fixture
def named(fedkeel, tmp_path, monkeypatch):
    """A run of a network of the user's own, named in a file, whose base depends on the environment."""
    (tmp_path / "own_base.py").write_text(NAMED)
    monkeypatch.setenv("BASE", "0")
    monkeypatch.delitem(importlib.sys.modules, "own_base", raising=False)
    settings = dict(dataset="digits", model="own_base:make", method="fedavg", rounds=1, epochs=1, participation=0.1)
    run = fk.run(fk.Experiment(**settings), out=tmp_path / "run", engine="serial")
    yield settings, run
    importlib.sys.modules.pop("own_base", None)


def test_a_run_goes_on_with_its_own_base_only(named, fedkeel, tmp_path):
    settings, run = named
    os.environ["BASE"] = "1"
    for there in (lambda: fk.run(fk.Experiment(**settings | {"rounds": 2}), out=tmp_path / "run"),
                  lambda: fk.load_run(tmp_path / "run", trust=True).model(trust=True)):  # fmt: skip
        with pytest.raises(fk.FolderError, match="was trained on another frozen base") as refused:
            there()
        assert "\n" not in refused.value.message
    os.environ["BASE"] = "0"
    model = fk.load_run(tmp_path / "run", trust=True).model(trust=True)
    assert torch.equal(model[1].weight, run.model()[1].weight)
    assert len(fk.run(fk.Experiment(**settings | {"rounds": 2}), out=tmp_path / "run").records) == 2


def test_an_exported_model_has_its_base(named, fedkeel, tmp_path):
    settings, run = named
    assert fedkeel("export", "model", "run", "model.safetensors").code == 2  # its code is not run unasked
    done = fedkeel("export", "model", "run", "model.safetensors", "--trust")
    assert done.code == 0, done.err
    written = load_file(tmp_path / "model.safetensors")
    assert written.keys() == run.model().state_dict().keys()
    assert all(torch.equal(value, written[name]) for name, value in run.model().state_dict().items())
    # and another run begins from it, whatever base its network was built with
    os.environ["BASE"] = "1"
    again = fk.run(fk.Experiment(**settings | {"init": str(tmp_path / "model.safetensors")}), engine="serial")
    assert torch.equal(again.model()[1].weight, run.model()[1].weight)


def test_of_a_network_from_python_what_was_trained_is_exported(fedkeel, tmp_path):
    run = trained(adapted_problem(), out=tmp_path / "run")
    done = fedkeel("export", "model", "run", "adapters.safetensors")
    assert done.code == 0
    told = " ".join(done.err.split())
    assert "what was trained alone, without the frozen base, for strict=False" in told
    assert "was given from Python" in told
    assert load_file(tmp_path / "adapters.safetensors").keys() == run.params.keys()
    other = adapted_problem()
    other.model[0].weight.data.mul_(2)
    with pytest.raises(fk.FolderError, match="differs in: problem"):
        trained(other, out=tmp_path / "run")


TIED = """
import torch
import fedkeel as fk


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.register_buffer("places", torch.arange(4))

    def forward(self, x):
        return self.second(self.first(x + self.places))


x, y = torch.eye(4), torch.arange(4)
problem = fk.Problem(model=Net(), loss=torch.nn.CrossEntropyLoss(), clients=[(x, y)] * 2, test=(x, y))
"""


def test_with_its_problem_an_exported_model_has_all_that_load_state_dict_takes(fedkeel, tmp_path, monkeypatch):
    (tmp_path / "own_tied.py").write_text(TIED)
    monkeypatch.syspath_prepend(tmp_path)
    own = importlib.import_module("own_tied")
    monkeypatch.setitem(importlib.sys.modules, "own_tied", importlib.sys.modules.pop("own_tied"))
    trained(own.problem, dtype=torch.float32, out=tmp_path / "run")
    assert fedkeel("export", "model", "run", "part.safetensors").code == 0
    assert fedkeel("export", "model", "run", "whole.safetensors", "--problem", "own_tied:problem").code == 0
    part, whole, model = load_file("part.safetensors"), load_file("whole.safetensors"), own.Net()
    assert set(model.state_dict()) - set(part) == {"second.weight", "places"}
    model.load_state_dict(whole)
    assert torch.equal(model.second.weight, part["first.weight"])
    again = trained(own.problem, dtype=torch.float32, init="whole.safetensors", lr=1e-30)
    assert torch.equal(again.params["first.weight"], part["first.weight"])


def test_start_weights_leave_the_networks_own_base_alone(tmp_path):
    problem = adapted_problem()
    before = problem.model[0].weight.clone()
    twice = {name: value * 2 for name, value in problem.model.state_dict().items()}
    save_file(twice, tmp_path / "twice.safetensors")
    run = trained(problem, dtype=torch.float32, init=str(tmp_path / "twice.safetensors"))
    assert torch.equal(run.model()[0].weight, before * 2)
    assert torch.equal(problem.model[0].weight, before)
    assert run.base != trained(problem).base


def test_doctor_says_what_is_frozen(named, fedkeel, tmp_path):
    (tmp_path / "experiment.toml").write_text('dataset = "digits"\nmodel = "own_base:make"\n')
    done = fedkeel("doctor", "experiment.toml", "--trust")
    assert done.code == 0, done.err
    assert "234 parameters and a frozen base of 2.08 kB, held once" in " ".join(done.out.split())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # importing torch's own compiler gives some
def test_adapters_train_on_a_gpu_as_one_by_one():
    problem = adapted_problem(sizes=(16, 12, 16))
    settings = dict(problem=problem, method="scaffold", rounds=2, participation=1.0, epochs=2, batch_size=4, lr=0.05)
    expected = fk.run(fk.Experiment(**settings), engine="serial", dtype=torch.float64, device="cpu").params
    for dtype, bound in ((torch.float64, 1e-8), (torch.bfloat16, 0.01)):
        run = fk.run(fk.Experiment(**settings), engine="stacked", dtype=dtype, device="cuda")
        assert max(float((run.params[n].cpu() - expected[n]).abs().max()) for n in expected) < bound

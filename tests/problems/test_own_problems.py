"""Problems, networks, losses and rules of the user's own: what they may be, and that every engine takes them alike."""

import re
import warnings
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from for_each import for_each
from torch import nn

import fedkeel as fk
from fedkeel.data.clients import ClientData
from fedkeel.errors import ExperimentError, MethodError, RunError
from fedkeel.problems.task import Task
from problems import small_problem

ENGINES = ("serial", "stacked")


def experiment(problem, rounds=2, **changes):
    settings = dict(method="fedavg", participation=1.0, epochs=1, batch_size=4, lr=0.05) | changes
    return fk.Experiment(problem=problem, rounds=rounds, **settings)


def trained(problem, engine="serial", dtype=torch.float64, **changes):
    return fk.run(experiment(problem, **changes), engine=engine, dtype=dtype)


def apart(one, other):
    """How far two runs' models lie from each other."""
    return max(float((one.params[name] - other.params[name]).abs().max()) for name in one.params)


class Keeps(nn.Module):
    """A network that keeps what it has computed, and has a norm that compares samples."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(5, 4), nn.BatchNorm1d(4)

    def forward(self, x):
        self.last = {"norm": self.norm(self.layer(x))}
        return self.last["norm"]


class Slopes(nn.Module):
    """A network that differentiates inside, whose memory cannot be measured."""

    def __init__(self):
        super().__init__()
        self.inner, self.layer = nn.Linear(5, 3), nn.Linear(5, 4)

    def forward(self, x):
        return self.layer(torch.func.vmap(torch.func.grad(lambda one: self.inner(one).tanh().sum()))(x))


@pytest.mark.slow
@for_each("network", (Keeps, Slopes))
def test_unusual_networks_train_alike_in_all_engines(network):
    draw = torch.Generator().manual_seed(0)
    clients = [(torch.randn(n, 5, generator=draw), torch.arange(n) % 4) for n in (8, 6)]
    problem = fk.Problem(model=network(), loss=nn.functional.cross_entropy, clients=clients, test=clients[0])
    one, other = (trained(problem, engine, method="scaffold") for engine in ENGINES)
    assert apart(one, other) < 1e-10
    one.model()(clients[0][0])


def test_the_guide_runs(capsys):
    text = (Path(__file__).parents[2] / "docs" / "guides" / "problems.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    with torch.random.fork_rng():
        exec(compile(code, "guide", "exec"), {"__name__": "guide"})
    judged, loss, near = capsys.readouterr().out.split()
    assert judged == "test_loss"
    assert float(loss) < 0.1
    assert float(near) > 0.9


# ---- networks ------------------------------------------------------------------------------------------------------
def normed(**changes):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5, **changes), nn.ReLU(), nn.Linear(5, 3))


def test_a_network_trains_whatever_mode_it_is_given_in():
    problem = small_problem(sizes=(8, 12))
    runs = [trained(replace(problem, model=normed().train(mode))) for mode in (True, False)]
    assert apart(*runs) == 0


@pytest.mark.parametrize("sizes", [(9, 6, 5), (4, 8, 13)])
def test_a_sample_alone_is_left_out_where_batch_norms_compare_samples(sizes):
    problem = replace(small_problem(sizes=sizes), model=normed())
    task = Task(problem)
    assert [task.epoch_size(c, 4) for c in range(3)] == [n - (n % 4 == 1) for n in sizes]
    serial, stacked = (trained(problem, engine) for engine in ENGINES)
    assert apart(serial, stacked) < 1e-12
    assert serial.records[0].backward_passes == sum(-(-(n - (n % 4 == 1)) // 4) for n in sizes)
    assert serial.records[0].dropped == stacked.records[0].dropped == []


def test_one_sample_in_all_is_too_little_for_batch_norms():
    with pytest.raises(ExperimentError, match="client 1 has one sample to train on"):
        trained(replace(small_problem(sizes=(4, 1)), model=normed()))
    with pytest.raises(ExperimentError, match="batch_size of 1"):
        trained(replace(small_problem(sizes=(4, 3)), model=normed()), batch_size=1)


@for_each(
    ("sizes", "changes", "told"),
    [
        ((4, 5, 1), {"participants": [[0, 1], [1], [2]]}, "client 2 has one sample"),
        ((4, 1, 1), {"participation": 0.34, "rounds": 50}, r"2 clients \(the first: 1\) have one sample"),
        ((9, 2), {"validation": 0.5}, "client 1 has one sample"),
        ((9, 2), {"evaluation": {"model": "global", "share": 0.5}}, "client 1 has one sample"),
        ((9, 1), {"participants": [[0]] * 3, "evaluation": {"model": "global", "tune": True}}, "client 1 has one"),
    ],
)
def test_clients_too_small_for_batch_norms_are_told_before_the_first_round(sizes, changes, told):
    done = []
    problem = replace(small_problem(sizes=sizes), model=normed())
    made = experiment(problem, **({"rounds": 3, "participation": None} | changes))
    with pytest.raises(ExperimentError, match=told) as refused:
        fk.run(made, engine="serial", callbacks=[done.append])
    assert all(word in refused.value.hint for word in ("min_size", "validation", "evaluation.share", "group norms"))
    assert not done


def test_a_client_of_one_sample_that_is_never_selected_does_no_harm():
    """By a list or by the draws of the seed: a run is refused if and only if it would come to the client."""
    problem = replace(small_problem(sizes=(4, 5, 1)), model=normed())
    made = experiment(problem, participation=None, participants=[[0, 1], [1], [2]])
    assert len(fk.run(made, engine="serial").records) == 2
    for seed in range(4):
        drawn = experiment(problem, participation=0.34, seed=seed)
        participation = drawn.plan.participation_of(problem.data.sizes)
        if 2 in participation.selected(0) + participation.selected(1):
            with pytest.raises(ExperimentError, match="client 2 has one sample"):
                fk.run(drawn, engine="serial")
        else:
            assert len(fk.run(drawn, engine="serial").records) == 2


class Counting(nn.Module):
    """Adds as much as it has been called: what it remembers is a whole number."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.calls += 1
        return self.layer(x) * (1 + 0.1 * self.calls.to(x.dtype))


def test_whole_numbers_that_a_network_keeps_are_not_handed_on():
    torch.manual_seed(0)
    problem = replace(small_problem(sizes=(4, 8, 12)), model=Counting())
    serial, stacked = (trained(problem, engine) for engine in ENGINES)
    assert apart(serial, stacked) < 1e-12
    with pytest.raises(ExperimentError, match="momentum=None"):
        trained(replace(problem, model=normed(momentum=None)))


def test_start_weights_bring_their_buffers(tmp_path):
    from safetensors.torch import save_file

    problem = replace(small_problem(sizes=(8, 12)), model=normed())
    first = trained(problem, rounds=3)
    model = first.model().state_dict()
    save_file({name: value.float().contiguous() for name, value in model.items()}, tmp_path / "start.safetensors")
    again = Task(problem, start={name: value.double() for name, value in model.items()}, dtype=torch.float64)
    assert torch.equal(again.buffers["1.running_mean"], model["1.running_mean"])
    run = trained(problem, rounds=1, lr=1e-12, buffers="keep", init=str(tmp_path / "start.safetensors"))
    assert run.curve("test_loss")[-1] == pytest.approx(first.curve("test_loss")[-1], rel=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_lone_layer_is_a_network(engine):
    torch.manual_seed(0)
    assert trained(replace(small_problem(), model=nn.Linear(6, 3)), engine).best > 0


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        return self.layer(x), x


def test_outputs_of_several_parts_are_the_users_own_affair():
    problem = small_problem()
    loss = nn.CrossEntropyLoss(reduction="none")
    run = trained(replace(problem, model=Two(), loss=lambda output, target: loss(output[0], target)))
    assert run.result["judged_on"] == "test_loss"


# ---- losses, targets and metrics -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "changes", [{"weight": torch.tensor([0.1, 10.0, 1.0], dtype=torch.float64)}, {"ignore_index": 1}]
)
def test_a_loss_that_is_no_mean_over_samples_is_the_same_on_every_engine(changes):
    problem = replace(small_problem(sizes=(7, 12, 5, 9)), loss=nn.CrossEntropyLoss(**changes))
    assert not Task(problem, dtype=torch.float64).separable
    assert Task(replace(problem, loss=nn.CrossEntropyLoss()), dtype=torch.float64).separable
    serial, stacked = (trained(problem, engine, batch_size=6) for engine in ENGINES)
    assert apart(serial, stacked) < 1e-12


def test_one_output_is_no_choice_of_a_class():
    problem = small_problem(classes=2)
    torch.manual_seed(0)
    bce = nn.BCEWithLogitsLoss(reduction="none")
    own = replace(problem, model=nn.Sequential(nn.Linear(6, 1)), loss=lambda o, t: bce(o[:, 0], t.to(o.dtype)))
    assert trained(own).result["judged_on"] == "test_loss"
    right = {"accuracy": lambda o, t: ((o[:, 0] > 0) == (t == 1)).to(torch.float64)}
    assert trained(replace(own, metrics=right)).result["judged_on"] == "accuracy"


@pytest.mark.parametrize("kind", [torch.uint8, torch.int32])
def test_labels_may_be_short_numbers(kind):
    problem = small_problem()
    short = replace(
        problem,
        clients=[(x, y.to(kind)) for x, y in problem.clients],
        test=(problem.test[0], problem.test[1].to(kind)),
    )
    for engine in ENGINES:
        assert apart(trained(short, engine), trained(problem, engine)) == 0
    assert trained(short).result["judged_on"] == "accuracy"


def test_a_metric_gives_a_value_per_sample_or_sees_all_of_them(monkeypatch):
    def error(o, t):
        return (nn.functional.softmax(o, -1).amax(-1) - 1).square()

    problem = small_problem()
    named = {"each": error, "mean": lambda o, t: error(o, t).mean(), "root": lambda o, t: error(o, t).mean().sqrt()}
    whole = trained(replace(problem, metrics=named))
    monkeypatch.setattr("fedkeel.problems.task.CHUNK", 8)
    parts = trained(replace(problem, metrics=named))
    for name in named:
        assert parts.curve(name) == pytest.approx(whole.curve(name), rel=1e-12)
    assert parts.curve("each") == pytest.approx(parts.curve("mean"), rel=1e-12)
    assert [value**2 for value in parts.curve("root")] == pytest.approx(parts.curve("mean"), rel=1e-12)


@for_each(
    ("changes", "words"),
    [
        ({"loss": lambda output, target: 0.5}, "returns a tensor, not float"),
        ({"model": "cnn"}, "a module, not str"),
        ({"model": nn.LazyLinear(3)}, "do not know their size yet"),
        ({"clients": None}, "not NoneType"),
        ({"clients": {}}, "not dict"),
        ({"metrics": [3]}, "functions by name"),
        ({"metrics": {"loss": len}}, "another name"),
    ],
)
def test_a_problem_that_is_none(changes, words):
    with pytest.raises(ExperimentError, match=words):
        trained(replace(small_problem(), **changes))


def wide():
    return torch.ones(2, 9), torch.zeros(2, dtype=torch.int64)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": nn.Linear(7, 3)}, r"client 5 \(\(6,\) of float"),
        ({"loss": lambda output, target: target.missing}, "missing"),
        ({"clients": [*small_problem().clients, wide()]}, r"client 6 \(\(9,\) of float"),
        ({"head": "2*.weigth"}, r"head names parameters '2\*.weigth', but the model has none"),
        ({"test": wide()}, r"the test set \(\(9,\) of float"),
    ],
)
def test_what_does_not_fit_together_is_told_before_anything_is_made(changes, words, tmp_path):
    with pytest.raises(fk.ModelError, match=words):
        fk.run(experiment(replace(small_problem(), **changes)), out=tmp_path / "run")
    assert fk.run(experiment(small_problem()), out=tmp_path / "run").result["rounds"] == 2


@for_each(
    ("changes", "words"),
    [
        ({"dtype": "float16"}, "dtype"),
        ({"engine": None}, "engine"),
        ({"workers": -1}, "workers"),
        ({"device": 3.5}, "device"),
    ],
)
def test_a_run_that_cannot_be_asked_for(changes, words):
    with pytest.raises(fk.RequestError, match=words):
        fk.run(experiment(small_problem()), **changes)
    for ask in (lambda: fk.run("digits"), lambda: fk.run_together(["digits", "digits"])):
        with pytest.raises(fk.RequestError, match="not 'digits'"):
            ask()


def test_the_name_of_a_head_may_stand_alone():
    problem = small_problem()
    runs = [trained(replace(problem, head=head), method="fedper") for head in ("2.*", ("2.*",))]
    assert apart(*runs) == 0
    assert runs[0].records[0].bytes_up > 0


@pytest.mark.parametrize("word", ["model", "partition", "augment"])
def test_what_a_problem_brings_is_not_asked_for_besides(word):
    with pytest.raises(ExperimentError, match=f"{word} would be ignored"):
        experiment(
            small_problem(), **{word: {"model": "mlp", "partition": "iid:clients=7", "augment": "crop-flip"}[word]}
        )


# ---- experiments ---------------------------------------------------------------------------------------------------
def test_what_was_never_given_follows_what_is_changed():
    base = fk.Experiment(dataset="digits", lr=0.3)
    assert [base.with_(seed=s).plan.partition_seed for s in (0, 5)] == [0, 5]
    assert base.with_(dataset="cifar10") == fk.Experiment(dataset="cifar10", lr=0.3)
    assert base.with_(partition_seed=7).with_(seed=5).plan.partition_seed == 7
    with pytest.raises(ExperimentError, match="no key: sede"):
        base.with_(sede=1)


def test_a_folder_of_which_no_round_was_made_can_be_had(tmp_path):
    problem = small_problem()
    broken = replace(problem, loss=lambda output, target: None)
    with pytest.raises(ExperimentError):
        fk.run(experiment(broken), out=tmp_path / "run", engine="serial")
    assert fk.run(experiment(problem), out=tmp_path / "run", engine="serial").result["rounds"] == 2


def test_parameters_of_rounds_are_kept_from_the_first_or_not_at_all(tmp_path):
    fk.run(experiment(small_problem(), rounds=1), out=tmp_path, engine="serial")
    with pytest.raises(fk.FolderError, match="keeps no parameters"):
        fk.run(experiment(small_problem(), rounds=2), out=tmp_path, engine="serial", keep_params=True)


def test_a_part_in_torchscript_trains_as_in_python():
    """In double precision, too, although its weights were single."""
    base = small_problem()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = replace(base, model=nn.Sequential(torch.jit.script(base.model)))
    plain = trained(replace(base, model=nn.Sequential(base.model)))
    for engine in ENGINES:
        assert apart(plain, trained(scripted, engine)) < 1e-14


# ---- trackers ------------------------------------------------------------------------------------------------------
def test_trackers_return_numbers_of_any_kind(tmp_path):
    def mine(seen):
        return {"a": np.float32(0.5), "b": torch.tensor(2), "c": float("inf"), "d": 1}

    run = fk.run(experiment(small_problem()), out=tmp_path, engine="serial", track=mine)
    assert [run.curve(name) for name in "abcd"] == [[0.5] * 2, [2.0] * 2, [], [1.0] * 2]
    assert fk.load_run(tmp_path).curve("b") == run.curve("b")


@pytest.mark.parametrize(
    ("told", "words"), [({"accuracy": 0.99}, "'accuracy'"), ({"x": "y"}, "no number"), (0.5, "by name, not float")]
)
def test_trackers_change_no_result(told, words):
    with pytest.raises(fk.RequestError, match=words):
        fk.run(experiment(small_problem()), engine="serial", track=[lambda seen: told])


# ---- rules ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Returning(fk.Rule):
    what: str

    def step(self, tree, client, at):
        return {"none": None, "tree": tree, "other": (tree.only(lambda name: "bias" in name), client)}[self.what]


@pytest.mark.parametrize(
    ("what", "words"), [("none", "not NoneType"), ("tree", "not Tree"), ("other", "laid out like")]
)
def test_a_rule_returns_a_tree_and_a_state(what, words):
    mine = fk.method("mine", gradient=[Returning(what)], weights=fk.Uniform())
    with pytest.raises(MethodError, match=f"Returning.*{words}"):
        trained(small_problem(), method=mine)


@dataclass(frozen=True)
class Looking(fk.Rule):
    def step(self, tree, client, at):
        return (tree if at.loss > 0 else 2 * tree), client


def test_a_rule_that_looks_at_numbers_is_told_where_clients_are_stacked():
    mine = fk.method("mine", gradient=[Looking()], weights=fk.Uniform())
    assert trained(small_problem(), method=mine).best > 0
    with pytest.raises(MethodError, match="cannot be stacked"):
        trained(small_problem(), "stacked", method=mine)


@dataclass(frozen=True)
class Weighing(fk.Weighting):
    what: str

    def __call__(self, reports, server):
        one = torch.ones_like(reports["lr"]) / len(reports["lr"])
        return {"short": one[:1], "list": [1.0], "nan": one * torch.nan}[self.what]


@pytest.mark.parametrize(
    ("what", "error", "words"),
    [
        ("short", MethodError, "one weight for each of .* clients"),
        ("list", MethodError, "not list"),
        ("nan", RunError, "server's model is not finite after round 1"),
    ],
)
def test_weights_are_numbers_of_each_client(what, error, words):
    with pytest.raises(error, match=words):
        trained(small_problem(), method=fk.method("mine", weights=Weighing(what)))


@dataclass(frozen=True)
class Keeping(fk.Rule):
    what: float | None = None

    def server_slots(self, params):
        return {} if self.what is None else {"n": self.what}


def test_slots_are_tensors_and_nothing_may_be_left_out(tmp_path):
    with pytest.raises(MethodError, match="slot 'n' of Keeping must be a tree or a tensor, not float"):
        fk.method("mine", gradient=[Keeping(0.0)], weights=fk.Uniform())
    mine = fk.method("mine", gradient=[Keeping()], weights=fk.Uniform())
    fk.run(experiment(small_problem(), method=mine), out=tmp_path, engine="serial")
    assert fk.load_run(tmp_path, trust=True).experiment.plan.method == mine


@pytest.mark.parametrize("rate", [float("nan"), "a", True])
def test_the_servers_rate_is_a_number(rate):
    with pytest.raises(MethodError, match="server_lr"):
        fk.method("mine", weights=fk.Uniform(), server_lr=rate)


def test_a_rule_with_a_state_stands_once_in_a_chain():
    with pytest.raises(MethodError, match="ControlVariates stands twice"):
        fk.method("mine", gradient=[fk.ControlVariates(), fk.ControlVariates()], weights=fk.Uniform())


@pytest.mark.parametrize("changes", [{"batches": 0}, {"epochs": -1.0}])
def test_a_phase_takes_a_step(changes):
    with pytest.raises(MethodError, match=f"{next(iter(changes))} of a phase must "):
        fk.Method("mine", (fk.Phase(**changes),), fk.Uniform())


@pytest.mark.parametrize("make", [lambda: fk.HighPass(0.1, min_dims=3), lambda: fk.PoolDetrend(5, min_dims=4)])
def test_filters_tell_vectors_from_the_rest_and_no_more(make):
    with pytest.raises(MethodError, match="must be 0, 1 or 2"):
        make()


# ---- clients and their states --------------------------------------------------------------------------------------
def test_clients_without_data_change_nothing():
    problem = small_problem(sizes=(6, 9, 4))
    empty = (problem.clients[0][0][:0], problem.clients[0][1][:0])
    padded = replace(problem, clients=[*problem.clients, empty, empty])
    for method in ("feddc", "scaffold", "feddyn"):
        assert apart(trained(problem, method=method), trained(padded, method=method)) == 0


def test_a_model_that_a_client_would_begin_with_has_the_statistics_it_keeps():
    problem = replace(small_problem(sizes=(8, 12)), model=normed())
    problem = replace(problem, tests=problem.clients)
    run = trained(problem, rounds=3, lr=1e-12, buffers="keep", evaluation={"model": "received"})
    own = trained(problem, rounds=3, lr=1e-12, buffers="keep", evaluation={"model": "local"})
    assert run.curve("client_loss")[-1] == pytest.approx(own.curve("client_loss")[-1], rel=1e-9)
    server = trained(problem, rounds=3, lr=1e-12, buffers="keep", evaluation={"model": "global"})
    assert server.curve("client_loss") == run.curve("client_loss")


def test_a_run_says_that_the_server_lacks_the_buffers_that_clients_keep(caplog):
    problem = replace(small_problem(sizes=(8, 12)), model=normed())
    for changes, words in (
        ({"buffers": "keep"}, ("with the buffers that the run began with", 'evaluation = {"model"')),
        ({"buffers": "average"}, ()),
        ({"buffers": "keep", "problem": replace(problem, test=None)}, ()),
    ):
        caplog.clear()
        trained(**{"problem": problem, "rounds": 1} | changes)
        assert ("keep" in caplog.text) == bool(words)
        assert all(word in caplog.text for word in words)


@for_each("engine", ENGINES)
def test_the_statistics_of_a_personal_model_do_not_reach_the_server(engine):
    """Ditto sends what FedAvg sends, bit for bit."""
    problem = replace(small_problem(sizes=(8, 12, 7)), model=normed())
    ditto, fedavg = (trained(problem, engine, rounds=3, method=name) for name in ("ditto", "fedavg"))
    assert all(torch.equal(ditto.server[name].buffer, fedavg.server[name].buffer) for name in ("params", "buffers"))


@pytest.mark.slow
@for_each(("engine", "model"), product(ENGINES, ("received", "local")))
def test_a_personal_model_is_scored_with_statistics_of_its_own(engine, model):
    """Without its pull, Ditto's personal models are those of clients that train alone."""
    problem = replace(small_problem(sizes=(8, 8)), model=normed())
    settings = {"rounds": 3, "batch_size": 8, "evaluation": {"model": model}}

    def loss_of(method, *clients):
        data = [problem.clients[client] for client in clients]
        run = trained(replace(problem, clients=data, tests=data), engine, method=method, **settings)
        return run.curve("client_loss")

    alone = zip(loss_of("fedavg", 0), loss_of("fedavg", 1), strict=True)
    expected = [(one + other) / 2 for one, other in alone]
    assert loss_of({"name": "ditto", "lam": 0.0}, 0, 1) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("report", ["best", "mean-last"])
def test_what_an_extended_run_reports_is_what_the_whole_one_does(tmp_path, report):
    problem = small_problem()
    policy = {"model": "global", "report": report}
    whole, longer = (
        experiment(replace(problem, tests=problem.clients), rounds=6, evaluate_every=3, evaluation=policy)
        for _ in range(2)
    )
    fk.run(longer.with_(rounds=4), out=tmp_path, engine="serial")
    found = fk.run(longer, out=tmp_path, engine="serial")
    assert found.result["reported"] == fk.run(whole, engine="serial").result["reported"]
    found.records[3] = replace(found.records[3], accuracy=1.0)  # scored because the run ended there
    assert found.rounds_to(1.0) is None


class Arrays(ClientData):
    """Data of one's own that forgets to make tensors."""

    sizes = np.array([8, 8])

    def rows(self, client, rows):
        return np.ones((len(rows), 3), np.float32), np.zeros(len(rows), np.int64)


def test_rows_that_are_no_tensors_are_told_in_a_line():
    problem = fk.Problem(model=nn.Linear(3, 2), loss=nn.functional.cross_entropy, clients=Arrays())
    with pytest.raises(fk.DataError, match="the rows of Arrays have to be tensors, not ndarray"):
        fk.run(fk.Experiment(problem=problem, rounds=1, participation=1.0))


class OneWrong(ClientData):
    """Clients that are read, of which one, not among the first, has other rows."""

    sizes = np.array([3] * 11)

    def __init__(self, wrong):
        self.wrong = wrong

    def rows(self, client, rows):
        return self.wrong(len(rows)) if client == 9 else (torch.ones(len(rows), 3), torch.zeros(len(rows)).long())


def fail_to_read(count):
    raise ValueError("the file of this client is damaged")


WRONG = {
    "the data of client 9 in round 1 hold the label 7, but": lambda n: (torch.ones(n, 3), torch.full((n,), 7)),
    r"not take a sample of client 9 in round 1 \(\(5,\) of": lambda n: (torch.ones(n, 5), torch.zeros(n).long()),
    r"client 9 in round 1 \(\(3,\) of float32, \(\) of float": lambda n: (torch.ones(n, 3), torch.zeros(n)),
    "the rows of client 9 in round 1 have to be tensors": lambda n: (
        np.ones((n, 3), np.float32),
        torch.zeros(n).long(),
    ),
    "^the file of this client is damaged$": fail_to_read,
}


@pytest.mark.parametrize("told", WRONG)
@pytest.mark.parametrize("engine", ["serial", "stacked", pytest.param("processes", marks=pytest.mark.slow)])
def test_a_client_that_is_read_and_does_not_fit_is_told_by_name(engine, told):
    problem = fk.Problem(model=nn.Linear(3, 2), loss=nn.functional.cross_entropy, clients=OneWrong(WRONG[told]))
    with pytest.raises(ValueError if "damaged" in told else fk.FedkeelError, match=told):
        fk.run(fk.Experiment(problem=problem, rounds=1, participation=1.0, epochs=1), engine=engine)


def test_a_wrong_client_among_those_on_which_a_stack_is_tried_is_told_before_the_first_round():
    wrong = OneWrong(lambda n: (torch.ones(n, 5), torch.zeros(n).long()))
    wrong.sizes = np.where(np.arange(11) < 8, 0, 3)
    problem = fk.Problem(model=nn.Linear(3, 2), loss=nn.functional.cross_entropy, clients=wrong)
    with pytest.raises(fk.ModelError, match=r"does not take a sample of client 9 \("):
        fk.run(fk.Experiment(problem=problem, rounds=1, participation=1.0), engine="stacked")


@pytest.mark.parametrize("engine", ["serial", "stacked"])
def test_a_wrong_client_that_has_not_trained_yet_is_told_by_name(engine):
    wrong = OneWrong(lambda n: (torch.ones(n, 3), torch.full((n,), 7)))
    wrong.sizes = np.where(np.arange(11) < 8, 0, 3)
    test = torch.ones(4, 3), torch.zeros(4).long()
    problem = fk.Problem(model=nn.Linear(3, 2), loss=nn.functional.cross_entropy, clients=wrong, test=test)
    with pytest.raises(fk.DataError, match="the data of client 9 hold the label 7"):
        fk.run(fk.Experiment(problem=problem, rounds=2, participants=[[8], [9]], epochs=1), engine=engine)


def test_labels_of_rows_that_are_read_are_refused_before_the_loss_meets_them():
    """A GPU that meets such a label cannot be used any more."""
    loss = nn.CrossEntropyLoss(ignore_index=-1)
    rows = OneWrong(lambda n: (torch.ones(n, 3), torch.full((n,), 7)))
    task = Task(fk.Problem(model=nn.Linear(3, 2), loss=loss, clients=rows, tests=rows))
    with pytest.raises(fk.DataError, match="the data of client 9 hold the label 7, but the model has 2 outputs"):
        task.batch(9, np.zeros(1, np.int64))
    with pytest.raises(fk.DataError, match="the test data of client 9 hold the label 7"):
        task.read_part(next(task.parts("client 9")))
    task.batch(8, np.zeros(1, np.int64))
    rows.wrong = lambda n: (torch.ones(n, 3), torch.full((n,), -1))  # the loss takes it
    task.batch(9, np.zeros(1, np.int64))


def test_an_error_that_rows_do_not_explain_stays_as_it_is():
    class Moody(nn.Linear):
        def forward(self, given):
            if torch.is_grad_enabled() and self.training and len(given) == 3:
                raise ValueError("not today")
            return super().forward(given)

    problem = fk.Problem(
        model=Moody(3, 2),
        loss=nn.functional.cross_entropy,
        clients=OneWrong(lambda n: (torch.ones(n, 3), torch.ones(n).long())),
    )
    with pytest.raises(ValueError, match=r"^not today$"):
        fk.run(fk.Experiment(problem=problem, rounds=1, participation=1.0), engine="serial")

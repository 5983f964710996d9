"""Personal models: what stays with a client, and how its model is judged."""

from __future__ import annotations

import math
import tempfile
import weakref
from dataclasses import replace
from itertools import product

import pytest
import torch
from for_each import for_each

import fedkeel as fk
from fedkeel.engines.engine import ScoreRequest
from fedkeel.engines.scoring import Scorer
from fedkeel.problems.gradients import Workspace
from fedkeel.problems.policy import summarise_clients
from fedkeel.problems.task import Task
from fedkeel.runs import evaluate as judging
from fedkeel.runs.run_folder import RunFolder
from problems import small_problem

F64 = torch.float64
SIZES = (7, 12, 5, 1, 9, 16)


def experiment(method="fedavg", **changes):
    base = small_problem(SIZES)
    problem = fk.Problem(
        model=base.model, loss=base.loss, clients=base.clients, tests=base.clients, test=base.test, classes=3
    )
    settings = {"rounds": 3, "participation": 0.5, "epochs": 1, "batch_size": 8, "lr": 0.1} | changes
    quick = {"name": "fedala", "passes": 2} if method == "fedala" else method
    return fk.Experiment(problem=problem, method=quick, **settings)


def judged(run, net, client):
    net.load_state_dict(run)
    inputs, labels = small_problem(SIZES).clients[client]
    return (net(inputs).argmax(-1) == labels).double().mean().item()


def test_the_global_model_on_each_clients_data():
    policy = {"model": "global", "weights": "size"}
    asked = experiment(evaluation=policy)  # each is judged on what another trains on: sizes are those of tests
    run = fk.run(asked.with_(problem=replace(asked.problem, tests=asked.problem.clients[::-1])), engine="serial")
    scores = [judged(run.params, small_problem(SIZES).model, client) for client in range(6)]
    last = run.records[-1]
    assert last.accuracy == pytest.approx(sum(s * n for s, n in zip(scores, SIZES, strict=True)) / sum(SIZES))
    assert last.clients["accuracy"] == pytest.approx(scores[::-1], abs=1e-5)
    assert last.extra["client_accuracy_worst"] == pytest.approx(min(scores))
    assert "server_accuracy" in last.extra


def test_the_only_clients_statistics_are_those_of_the_global_model_where_clients_keep_them():
    """A round of one client leaves the server with that client's model."""
    base = small_problem((12,))
    model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))
    problem = replace(base, model=model, tests=base.clients)
    settings = dict(problem=problem, rounds=2, participation=1.0, epochs=1, batch_size=6, lr=0.1, buffers="keep")
    runs = [fk.run(fk.Experiment(evaluation={"model": whose}, **settings)) for whose in ("global", "local")]
    losses = [run.curve("client_loss") for run in runs]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def margin(output, target):
    return output.gather(1, target[:, None])[:, 0] - output.mean(1)


@pytest.mark.slow
@for_each("second, before, metric", product((0, 1), (True, False), ({"margin": margin}, ["f1"])))
def test_a_run_may_go_on_with_other_metrics(second, before, metric):
    """Clients that did not train since they were judged are judged again, where something else is measured now."""
    first, then = (metric, ()) if before else ((), metric)
    plan = {"evaluation": {"model": "local"}, "participants": [list(range(len(SIZES))), [second]]}
    with tempfile.TemporaryDirectory() as folder:
        fk.run(experiment(rounds=1, **plan), out=folder, engine="serial", metrics=first)
        resumed = fk.run(experiment(rounds=2, **plan), out=folder, engine="serial", metrics=then)
    assert (
        resumed.records[1].extra == fk.run(experiment(rounds=2, **plan), engine="serial", metrics=then).records[1].extra
    )


def test_batches_may_weigh_alike_though_the_last_is_short():
    policy = fk.Evaluation(accuracy="batch-mean")
    scores = [{"accuracy": (4.0, 4)}, {"accuracy": (0.0, 1)}]
    assert policy.score_client(scores, "accuracy") == 0.5
    assert fk.Evaluation().score_client(scores, "accuracy") == 0.8


@pytest.mark.parametrize(("report", "expected"), [("best", 0.9), ("last", 0.3), ("mean-last", 0.6)])
def test_what_is_reported(report, expected):
    assert fk.Evaluation(report=report, last=2).summarise([0.1, 0.9, 0.3]) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("report", "expected"), [("best", [0.2, 0.2]), ("last", [None, 0.3]), ("mean-last", [None, None])]
)
def test_a_round_that_has_diverged_is_not_left_out_of_what_is_reported(report, expected):
    policy = fk.Evaluation(report=report, last=2)
    for losses, number in zip(([0.5, 0.2, None], [0.2, None, 0.3]), expected, strict=True):
        rounds = [{"client_loss": loss} for loss in losses]
        assert policy.summarise_rounds([*rounds, {}], "client_") == (None if number is None else ("loss", number))


def test_spread_over_clients():
    values = [0.1 * i for i in range(1, 21)]
    found = summarise_clients(values, [1.0] * 20, "accuracy")
    assert summarise_clients(values, range(20), "accuracy")["client_accuracy_std"] == found["client_accuracy_std"]
    assert found["client_accuracy_worst"] == pytest.approx(0.1)
    assert found["client_accuracy_worst_tenth"] == pytest.approx(0.15)
    fewer = summarise_clients(values[:19], [1.0] * 19, "accuracy")
    assert fewer["client_accuracy_worst_tenth"] == pytest.approx(0.1)  # a tenth of 19 is rounded down to one
    assert found["client_accuracy_std"] == pytest.approx(torch.tensor(values).std(correction=0).item(), abs=1e-6)
    assert summarise_clients([1.0, 3.0], [1.0, 1.0], "loss")["client_loss_worst"] == 3.0


def test_the_worst_tenth_of_nineteen_clients_is_one():
    values = [float(v) for v in range(19)]
    assert summarise_clients(values, [1.0] * 19, "accuracy")["client_accuracy_worst_tenth"] == 0.0
    assert summarise_clients([*values, 19.0], [1.0] * 20, "accuracy")["client_accuracy_worst_tenth"] == 0.5


@pytest.mark.parametrize("name", ["loss", "accuracy"])
def test_a_client_whose_score_is_no_number_is_the_worst_wherever_it_stands(name):
    for place in range(6):
        values = [0.7, 0.9, 0.6, 0.8, 0.5]
        values.insert(place, math.nan)
        found = summarise_clients(values, [1.0] * 6, name)
        assert all(math.isnan(value) for value in found.values()), place


def test_a_client_whose_loss_is_no_number_is_not_left_out_of_the_mean():
    asked = experiment(evaluation={"model": "global"}, rounds=1)
    (x, y), *others = asked.problem.clients
    model = torch.nn.Linear(6, 3, bias=False)
    torch.nn.init.constant_(model.weight, 10.0)
    beyond = torch.full_like(x, 3e38)  # finite, but none of its outputs are
    problem = replace(asked.problem, model=model, tests=[(beyond, y), *others])
    run = fk.run(asked.with_(problem=problem), engine="serial")
    assert [loss is None for loss in run.records[0].clients["loss"]] == [True, *[False] * 5]
    assert run.records[0].extra["client_loss"] is None


def test_a_batch_where_nothing_counts_is_no_batch():
    scores = [{"accuracy": (3.0, 4)}, {"accuracy": (0.0, 0)}, {"accuracy": (2.0, 2)}]
    assert fk.Evaluation(accuracy="batch-mean").score_client(scores, "accuracy") == (0.75 + 1) / 2
    assert fk.Evaluation().score_client(scores, "accuracy") == 5 / 6
    for accuracy in ("sample", "batch-mean"):
        assert math.isnan(fk.Evaluation(accuracy=accuracy).score_client(scores[1:2], "accuracy"))


def test_fine_tuning_moves_the_head_alone_and_is_judged():
    method = fk.METHODS["fedavg-ft"]()
    run = fk.run(experiment(method, evaluation={"model": "global"}, weight_decay=0.1), engine="serial")
    assert {"tuned", "reported"} <= run.result.keys()
    assert run.result["tuned"]["client_loss"] < run.records[-1].extra["client_loss"]
    assert fk.run(experiment("fedavg", evaluation={"model": "global", "tune": True}), engine="serial").result["tuned"]


@pytest.mark.slow
@for_each("method", ["fedala", "feddyn", "fedfsa", "fedsmoo"])
def test_those_who_never_took_part_are_tuned_beside_the_others(method):
    asked = experiment(method, evaluation={"model": "global", "tune": True}, rounds=1)
    one, other = (fk.run(asked, engine=engine, dtype=F64).result["tuned"] for engine in ("serial", "stacked"))
    assert one == pytest.approx(other, rel=1e-9)


def test_a_private_head_never_reaches_the_server():
    run = fk.run(experiment("fedper"), engine="serial")
    start = dict(small_problem(SIZES).model.named_parameters())
    assert torch.equal(run.params["2.weight"], start["2.weight"].detach())
    assert not torch.equal(run.params["0.weight"], start["0.weight"].detach())
    plain = fk.run(experiment("fedavg"), engine="serial")
    assert run.records[0].bytes_up < plain.records[0].bytes_up


WAYS = [(model, when) for model in ("global", "local", "received") for when in ("before", "after")]


@pytest.mark.parametrize(
    ("method", "model", "when"),
    [
        *(("fedala", *way) for way in WAYS),
        ("ditto", "local", "after"),
        *(pytest.param("ditto", *way, marks=pytest.mark.slow) for way in WAYS if way != ("local", "after")),
    ],
)
@pytest.mark.slow
def test_resuming_judges_the_same_models(tmp_path, model, when, method):
    policy = {"model": model, "when": when, "clients": "selected"}
    exp = experiment(method, evaluation=policy)
    fk.run(exp.with_(rounds=1), out=tmp_path / "run", engine="serial")
    resumed, whole = fk.run(exp, out=tmp_path / "run", engine="serial"), fk.run(exp, engine="serial")
    assert [r.extra for r in resumed.records] == [r.extra for r in whole.records]


def stopping_after(rounds, append):
    def appended(folder, record):
        if record.round > rounds:
            raise KeyboardInterrupt
        append(folder, record)

    return appended


@pytest.mark.parametrize(
    ("engine", "changes"),
    [
        ("serial", {}),
        ("stacked", {"evaluate_every": 2}),
        ("serial", {"evaluation": {"when": "before", "tune": True}}),
        ("stacked", {"evaluation": {"when": "before", "tune": True}}),
    ],
)
@pytest.mark.slow
def test_a_model_is_judged_again_only_when_it_was_trained(tmp_path, monkeypatch, engine, changes):
    exp = experiment("fedala", **{"rounds": 4, "evaluation": {}} | changes)
    counts, score = [], judging.evaluate_all

    def counted(engine, models):
        found = score(engine, models)
        counts.append(len(found))
        return found

    monkeypatch.setattr(judging, "evaluate_all", counted)
    found = fk.run(exp, engine=engine)
    least, most = 3, 3 * exp.evaluate_every  # half of the clients train in a round
    assert counts[0] == 6
    assert all(least <= count <= most for count in counts[1:4])
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "append", stopping_after(2, RunFolder.append))  # scored, but not written down
        with pytest.raises(KeyboardInterrupt):
            fk.run(exp, out=tmp_path, engine=engine)
    counts.clear()
    resumed = fk.run(exp, out=tmp_path, engine=engine)
    assert all(least <= count <= most for count in counts[:2])  # also the first round after a crash
    monkeypatch.setattr(judging.Judge, "settle", lambda judge, clients: judge.tested.unchanged.clear())
    thorough = fk.run(exp, engine=engine)
    assert [r.extra for r in resumed.records] == [r.extra for r in found.records]
    assert [r.extra for r in thorough.records] == [r.extra for r in found.records]
    assert thorough.result == resumed.result == found.result


@pytest.mark.parametrize("model", ["global", "local", "received"])
@pytest.mark.parametrize("engine", [pytest.param("processes", marks=pytest.mark.slow), "stacked"])
def test_engines_judge_alike(engine, model):
    policy = {"model": model, "accuracy": "batch-mean", "batch": 4}
    exp = experiment("fedala", evaluation=policy, rounds=2)
    # stacked clients are trained in another order of additions, but judged in the same batches
    near = 0.0 if engine == "processes" else 1e-12
    workers = {"workers": 1} if engine == "processes" else {}
    one, other = fk.run(exp, dtype=F64, engine="serial"), fk.run(exp, dtype=F64, engine=engine, **workers)
    for mine, theirs in zip(one.records, other.records, strict=True):
        assert theirs.extra == pytest.approx(mine.extra, rel=near, abs=near)


def several(batch):
    """A task whose clients have test sets of 7 to 1 samples, and three models."""
    problem = experiment().problem
    task = Task(problem, dtype=F64, personal_chunk=batch)
    return task, [ScoreRequest(k * task.initial, None, f"client {k}") for k in (1, 2, 3)]


@pytest.mark.parametrize("batch", [4, 500])
def test_many_models_are_scored_as_one_by_one_and_waited_for_once(monkeypatch, batch):
    task, models = several(batch)
    workspace = Workspace(task)
    expected = [[workspace.score(m.params, None, part) for part in task.parts(m.split)] for m in models]
    waits, tolist = [], torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: waits.append(1) or tolist(tensor))
    found = Scorer(workspace).many(iter(models))
    assert waits == [1]
    assert found == expected
    assert [len(scores) for scores in found] == ([3, 2, 1] if batch == 4 else [1, 1, 1])


def test_models_are_made_as_they_are_scored():
    task, models = several(4)
    alive = []

    def made():
        for model in models:
            params = 1.0 * model.params
            assert not [ref for ref in alive if ref() is not None]
            alive.append(weakref.ref(params.buffer))
            yield ScoreRequest(params, None, model.split)
            del params

    assert len(Scorer(Workspace(task)).many(made())) == 3


def test_a_data_set_is_divided_for_personal_tests():
    settings = {"dataset": "digits", "partition": fk.Iid(clients=20), "rounds": 1, "evaluation": {"share": 0.3}}
    settings |= {"epochs": 1, "participation": 0.1, "model": "logistic"}
    run = fk.run(fk.Experiment(method="fedper", **settings), engine="serial")
    problem = run.problem
    kept, aside = problem.data.sizes, problem.tests_of_clients.sizes
    assert problem.test is None
    assert (aside == (0.3 * (kept + aside) + 1e-9).astype(int)).all()
    assert fk.Experiment.load(run.experiment.save()).plan.evaluation == run.experiment.plan.evaluation


@for_each(
    ("method", "what"), [("fedlaw", "proxy"), ("feddisco", "classes"), ("fedlc", "classes"), ("fedsol", "module")]
)
def test_a_problem_that_lacks_something_is_refused_with_a_hint(method, what):
    base = small_problem(SIZES)
    problem = fk.Problem(model=base.model, loss=base.loss, clients=base.clients)
    if what == "module":
        problem = fk.Problem(
            params={"w": torch.ones(2)}, loss=lambda p, b: (p["w"] * b).sum(-1), clients=[torch.ones(3, 2)]
        )
    with pytest.raises(fk.MethodError) as refused:
        fk.run(fk.Experiment(problem=problem, method=method, rounds=1), engine="serial")
    assert what in refused.value.hint


def test_clients_without_tests_cannot_be_judged():
    problem = small_problem(SIZES)
    with pytest.raises(fk.ExperimentError, match="no test sets"):
        fk.run(fk.Experiment(problem=problem, rounds=1, evaluation={"share": 0.0}), engine="serial")


@for_each("rows", (None, 0))
def test_clients_none_of_whom_has_a_test_sample_cannot_be_judged(rows):
    done = []
    base = small_problem((1, 2, 3, 3))
    tests = None if rows is None else [(x[:rows], y[:rows]) for x, y in base.clients]
    problem = fk.Problem(model=base.model, loss=base.loss, clients=base.clients, test=base.test, tests=tests)
    made = fk.Experiment(problem=problem, rounds=2, evaluation={"model": "global", "share": 0.3})
    told = "share 0.3 of at most 3 samples" if rows is None else "all test sets are empty"
    with pytest.raises(fk.ExperimentError, match=f"no client has a test sample: {told}") as refused:
        fk.run(made, engine="serial", callbacks=[done.append])
    assert "Problem(tests=[…])" in refused.value.hint
    assert not done
    enough = {"model": "global", "share": 0.4}  # ⌊0.4 · 3⌋ = 1
    if rows is None:
        assert fk.run(made.with_(evaluation=enough), engine="serial").result["judged_on"] == "accuracy"


def test_a_run_of_before_that_judges_nobody_may_go_on(tmp_path, monkeypatch):
    base = small_problem((2, 3))
    problem = fk.Problem(model=base.model, loss=base.loss, clients=base.clients)
    made = fk.Experiment(problem=problem, rounds=1, evaluation={"model": "global", "share": 0.3})
    with monkeypatch.context() as older:
        older.setattr("fedkeel.runs.start.check_own_tests", lambda *_: None)
        fk.run(made, engine="serial", out=tmp_path)
    assert len(fk.run(made.with_(rounds=2), engine="serial", out=tmp_path).records) == 2


def by_name(data):
    return {"x": data[0], "labels": data[1]}


class Named(torch.nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x)


def test_a_problem_without_tests_sets_a_share_of_every_client_aside(tmp_path):
    """The same rows with and without names; a client of one sample keeps it; the folder is read with its problem."""
    base = small_problem(SIZES)
    problem = fk.Problem(model=base.model, loss=base.loss, clients=base.clients, test=base.test)
    policy = {"model": "global", "share": 0.3}
    common = fk.Experiment(problem=problem, rounds=2, batch_size=8, lr=0.1, evaluation=policy, validation=0.2)
    run = fk.run(common, engine="serial", out=tmp_path)
    kept, aside = run.problem.clients, run.problem.tests
    assert run.sizes == [5, 9, 4, 1, 7, 12]
    assert [len(one[1]) for one in aside] == [2, 3, 1, 0, 2, 4]
    for client, (x, y) in enumerate(base.clients):
        rows = {(*a.tolist(), int(b)) for a, b in zip(x, y, strict=True)}
        both = [*zip(*kept[client], strict=True), *zip(*aside[client], strict=True)]
        assert sorted((*a.tolist(), int(b)) for a, b in both) == sorted(rows)
    assert run.records[-1].clients["accuracy"][3] is None
    read = fk.load_run(tmp_path, problem=problem)
    assert (read.sizes, read.result) == (run.sizes, run.result)
    assert all(torch.equal(a, b) for a, b in zip(read.model().parameters(), run.model().parameters(), strict=True))
    named = fk.Problem(
        model=Named(base.model), loss=base.loss, clients=[*map(by_name, base.clients)], test=by_name(base.test)
    )
    other = fk.run(common.with_(problem=named), engine="serial")
    assert other.records[-1].clients == run.records[-1].clients
    assert other.curve("accuracy") == run.curve("accuracy")


def test_measures_of_a_resumed_run_stand_in_the_order_of_one_without_a_pause(tmp_path):
    """The first client does not train in the second round, so that its scores are those of the checkpoint."""
    policy = {"evaluation": {"model": "local"}, "participants": [[0, 1], [1, 2], [0, 1]]}
    asked = experiment(**policy)
    asked = asked.with_(problem=replace(asked.problem, metrics=["f1", "ece"]))

    def stop(moment):
        if moment.record.round == 1:
            raise KeyboardInterrupt

    whole = fk.run(asked, engine="serial")
    with pytest.raises(KeyboardInterrupt):
        fk.run(asked, out=tmp_path, engine="serial", callbacks=[stop])
    resumed = fk.run(asked, out=tmp_path, engine="serial")
    lines = [[replace(record, seconds=0.0).dumps() for record in run.records] for run in (whole, resumed)]
    assert lines[0] == lines[1]

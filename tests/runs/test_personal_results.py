"""What a run is judged on and reports where clients' models are judged, and by what its settings are chosen."""

import contextlib
import html
import io
import json
from dataclasses import replace

import pytest
import torch

import fedkeel as fk
from fedkeel.cli.main import call
from fedkeel.data.clients import HeldOut
from fedkeel.report.content import content
from fedkeel.report.source import Source
from fedkeel.report.tables import summary
from fedkeel.runs.finished_run import validation_score
from fedkeel.runs.notes import describe_unjudged
from fedkeel.runs.record import judged_on
from problems import small_problem

SIZES = (7, 12, 5, 1, 9, 16)
SHARE = 0.4


def experiment(method="fedper", problem=None, **changes):
    base = problem or small_problem(SIZES)
    problem = replace(base, tests=base.clients if base.tests is None else base.tests)
    settings = {"rounds": 3, "participation": 0.5, "epochs": 1, "batch_size": 4, "evaluation": {}} | changes
    return fk.Experiment(problem=problem, method=method, **settings)


def judged_on_validation(**changes):
    """Clients whose test sets are what they set aside for validation."""
    base = small_problem(SIZES)
    aside = HeldOut(base.data, SHARE, 0, validation=True)
    return experiment(problem=replace(base, tests=aside), validation=SHARE, **changes)


def regression(**changes):
    """Lines through zero, each client's with a slope of its own: there is no accuracy."""
    inputs = torch.linspace(-1, 1, 8).reshape(-1, 1)
    clients = [(inputs, slope * inputs) for slope in (1.0, 2.0, 5.0)]
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = torch.nn.Linear(1, 1)
    problem = fk.Problem(model=model, loss=torch.nn.MSELoss(reduction="none"), clients=clients, test=clients[0])
    return experiment("fedavg", problem, participation=1.0, lr=0.2, **changes)


# ---- validation ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "policy",
    [
        {"model": "local"},
        {"model": "received", "weights": "size"},
        {"model": "global", "clients": "selected"},
        {"model": "local", "when": "before", "accuracy": "batch-mean", "batch": 2},
        {"model": "local", "tune": True},
    ],
)
@pytest.mark.parametrize("engine", ["serial", "stacked"])
def test_validation_shares_are_scored_as_test_sets_are(policy, engine):
    run = fk.run(judged_on_validation(evaluation=policy), engine=engine)
    for name in ("accuracy", "loss"):
        assert run.curve(f"validation_client_{name}") == pytest.approx(run.curve(f"client_{name}"), rel=1e-6)
        if "tuned" in run.result:
            tuned = run.result["tuned"]
            assert tuned[f"validation_client_{name}"] == pytest.approx(tuned[f"client_{name}"], rel=1e-6)
    assert validation_score(run) == pytest.approx(run.result["reported"])


@pytest.mark.parametrize(("report", "expected"), [("best", 0.9), ("last", 0.5), ("mean-last", 0.7)])
def test_settings_are_chosen_by_what_is_reported_of_validation_shares(report, expected):
    run = fk.run(experiment(validation=SHARE, rounds=1, evaluation={"report": report, "last": 2}), engine="serial")
    extras = [{"validation_client_accuracy": value, "validation_accuracy": 1.0} for value in (0.1, 0.9)]
    records = [replace(run.records[0], round=t, extra=extra) for t, extra in enumerate(extras, 1)]
    tuned = {"tuned": {"validation_client_accuracy": 0.5}}
    assert validation_score(replace(run, records=records, result=tuned)) == pytest.approx(expected)


@pytest.mark.parametrize("when", ["before", "after"])
def test_resuming_scores_the_same_on_validation_shares(tmp_path, when):
    exp = experiment(validation=SHARE, evaluation={"when": when})
    fk.run(exp.with_(rounds=1), out=tmp_path / "run", engine="serial")
    resumed, whole = fk.run(exp, out=tmp_path / "run", engine="serial"), fk.run(exp, engine="serial")
    assert [r.extra for r in resumed.records] == [r.extra for r in whole.records]


# ---- losses --------------------------------------------------------------------------------------------------------
def test_without_an_accuracy_the_clients_losses_are_judged():
    run = fk.run(regression(validation=0.25), engine="serial")
    assert all(record.accuracy is None and "test_loss" not in record.extra for record in run.records)
    assert judged_on(run.records) == run.result["judged_on"] == "client_loss"
    assert run.curve("server_loss") != run.curve("client_loss")
    assert run.best == run.result["reported"] == min(run.curve("client_loss"))
    assert validation_score(run) == -min(run.curve("validation_client_loss"))


@pytest.mark.parametrize(("report", "expected"), [("best", 1.0), ("last", 2.0), ("mean-last", 1.5)])
def test_the_least_loss_is_the_best(report, expected):
    policy = fk.Evaluation(report=report, last=2)
    assert policy.summarise([3.0, 1.0, 2.0], falling=True) == pytest.approx(expected)


# ---- read again ----------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_personal_models_that_nobody_judges_are_told(caplog):
    for method, told in (("fedper", 1), ("ditto", 1), ("fedavg-ft", 1), ("fedavg", 0)):
        caplog.clear()
        fk.run(experiment(method, rounds=1, evaluation=None))
        assert caplog.text.count("evaluation.model=local judges the clients'") == told, method
        caplog.clear()
        fk.run(experiment(method, rounds=1))
        assert "evaluation.model" not in caplog.text


def test_that_the_servers_model_is_judged_for_them_is_told_once(caplog):
    told = {"fedper": True, "plgu": True, "ditto": True, "fedavg-ft": False, "fedavg": False}
    for method, is_told in told.items():
        line = describe_unjudged(experiment(method, evaluation={"model": "global"}).plan)
        assert (line is not None) == is_told, method
        assert describe_unjudged(experiment(method, evaluation={"model": "received"}).plan) is None
    fk.run(experiment("fedper", rounds=1, evaluation={"model": "global"}))
    assert caplog.text.count("evaluation.model=local judges the clients'") == 1


def test_clients_that_send_nothing_are_told(caplog):
    fk.run(fk.Experiment(dataset="digits", model="logistic", method="fedper", rounds=1, evaluation={"model": "local"}))
    assert "every layer of this model is private" in caplog.text


def test_what_was_reported_is_read_again(tmp_path):
    made = fk.run(experiment(evaluation={"tune": True, "report": "last"}), out=tmp_path, engine="serial")
    assert fk.load_run(tmp_path).result == made.result
    assert made.result["reported"] == made.result["tuned"]["client_accuracy"]
    (tmp_path / "result.json").write_text(json.dumps(made.result | {"rounds": 2}))  # of another round
    (tmp_path / "sums.txt").unlink()
    assert not {"reported", "reported_as", "tuned"} & fk.load_run(tmp_path).result.keys()


# ---- the command line ----------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two methods whose clients tune their models in the end, and what `run` printed of them."""
    out = tmp_path_factory.mktemp("runs")
    small = ["--dataset", "digits", "--model", "logistic", "--partition", "iid:clients=4", "--rounds", "2"]
    policy = ["--set", "evaluation.tune=true", "--set", "evaluation.report=last", "--set", "evaluation.weights=size"]
    asked = ["run", "--method", "fedavg,fedper", "--seeds", "0,1", *small, *policy, "--out", str(out)]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert call([*asked, "--engine", "serial", "--no-progress"]) == 0
    return out, printed.getvalue()


JUDGED = "each client's own model on the client's own test share, mean over all clients, weighted by their test samples"


@pytest.mark.slow
def test_run_shows_what_is_reported_and_says_what_was_judged(folders):
    out, printed = folders
    assert "reported" in printed.splitlines()[1]
    assert f"best, last: accuracy of {JUDGED}" in printed
    assert "reported: the last round, the final tuning counted as one" in printed
    assert "on the test set" not in printed
    for path in out.glob("*/*/result.json"):
        assert f" {100 * json.loads(path.read_text())['reported']:.1f} % " in printed


def test_compare_takes_differences_of_what_is_reported(folders, capsys):
    out, _ = folders
    assert call(["compare", str(out)]) == 0
    table = capsys.readouterr().out
    assert "reported to fedavg" in table
    assert JUDGED in table
    assert call(["compare", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["methods"]
    told = {
        method: [json.loads((out / method / seed / "result.json").read_text())["reported"] for seed in "01"]
        for method in ("fedavg", "fedper")
    }
    for one in found:
        assert one["reported"]["mean"] == pytest.approx(sum(told[one["label"]]) / 2)
    gaps = [b - a for a, b in zip(told["fedavg"], told["fedper"], strict=True)]
    assert found[1]["difference"]["mean"] == pytest.approx(sum(gaps) / 2)


def test_a_report_tells_what_is_reported(folders):
    out, _ = folders
    (setting,) = content([Source.read(path.parent) for path in sorted(out.glob("*/*/experiment.toml"))]).settings
    table = summary(setting)
    mean = sum(json.loads((out / "fedper" / s / "result.json").read_text())["reported"] for s in "01") / 2
    assert f"Accuracy of {html.escape(JUDGED)}" in table
    assert "Reported is the last round" in table
    assert f">{100 * mean:.2f} ±" in table

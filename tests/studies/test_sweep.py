"""Every method is tuned alike: the same grid rules, the same budget, on validation data."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from for_each import for_each

import fedkeel as fk
from fedkeel.cli.main import call
from fedkeel.runs.finished_run import Run, validation_score
from fedkeel.runs.record import RoundRecord
from fedkeel.studies.choice import Choice, read_choice
from fedkeel.studies.grids import drop_repeats, settings_of
from fedkeel.studies.optimiser_grids import describe_grid
from fedkeel.studies.sweep import Sweep, Tuned, finals, tune, tune_all, unequal
from problems import small_problem

BASE = {"dataset": "digits", "model": "logistic", "rounds": 2, "validation": 0.2}


def landscape(score):
    """An executor whose runs score as a function of their experiment says; and what it was asked for."""
    asked = []

    def execute(requests):
        runs = []
        for _, experiment in requests:
            asked.append(experiment)
            value = score(experiment)
            record = RoundRecord(1, [0], 1.0, 1.0, 1, 1, 1, 1.0, extra={"validation_accuracy": value})
            runs.append(None if value is None else Run(experiment, [record], {}, {}, None, None, None))
        return runs

    return execute, asked


def test_the_optimum_inside_a_grid_is_taken():
    sweep = Sweep.load(BASE | {"grid": {"lr": [0.01, 0.1, 1.0]}, "methods": {"fedavg": {}}})
    execute, asked = landscape(lambda e: -abs(e.plan.lr - 0.1))
    tuned = tune(sweep, "fedavg", execute)
    assert dict(tuned.best) == {"lr": 0.1}
    assert len(asked) == 3
    assert tuned.widened == []


def test_an_optimum_on_the_edge_widens_the_grid():
    sweep = Sweep.load(BASE | {"grid": {"lr": [0.01, 0.1]}, "methods": {"fedavg": {}}})
    execute, _ = landscape(lambda e: -abs(e.plan.lr - 10.0))
    tuned = tune(sweep, "fedavg", execute)
    assert dict(tuned.best) == {"lr": 10.0}
    assert sorted(dict(s)["lr"] for s in tuned.scores) == [0.01, 0.1, 1.0, 10.0, 100.0]


def test_settings_that_are_one_experiment_are_tried_once():
    sweep = Sweep.load(BASE | {"grid": {"lr": [0.1, 1, 0.1, 1.0]}, "budget": 3, "methods": {"fedavg": {}}})
    execute, asked = landscape(lambda e: -abs(e.plan.lr - 0.01))
    assert dict(tune(sweep, "fedavg", execute).best) == {"lr": 0.01}  # the grid still grows beyond its edge
    assert [e.plan.lr for e in asked] == [0.1, 1, 0.01]


def test_a_grid_is_widened_beside_its_best_setting():
    methods = {"fedprox": {"method": {"mu": [0.1, 0.2]}}}
    sweep = Sweep.load(BASE | {"grid": {"lr": [0.01, 0.1]}, "methods": methods})
    execute, asked = landscape(
        lambda e: -abs(math.log(e.plan.lr / 1.0)) - abs(e.plan.method.phases[0].gradient[0].mu - 0.15)
    )
    tuned = tune(sweep, "fedprox", execute)
    assert dict(tuned.best)["lr"] == 1.0
    assert tuned.edge == ""
    assert [e.plan.lr for e in asked[4:]] == [
        1.0,
        10.0,
        1.0,
    ]  # two rates with the best mu, then one more mu with the best rate
    assert len(asked) == len(tuned.scores) == 7


def test_an_edge_that_the_budget_did_not_reach_is_said():
    sweep = Sweep.load(BASE | {"grid": {"lr": [0.01, 0.1]}, "methods": {"fedavg": {}}, "budget": 3})
    execute, _ = landscape(lambda e: e.plan.lr)
    tuned = tune(sweep, "fedavg", execute)
    assert dict(tuned.best) == {"lr": 1.0}
    assert tuned.edge == "lr"


def test_no_method_gets_more_than_the_budget():
    methods = {"fedavg": {}, "fedprox": {"method": {"mu": [0.1, 0.2, 0.3]}}}
    sweep = Sweep.load(BASE | {"grid": {"lr": [0.01, 0.1]}, "methods": methods, "budget": 7})
    for method in methods:
        execute, asked = landscape(lambda e: e.plan.lr)
        tune(sweep, method, execute)
        assert len(asked) == 7


def test_whole_numbers_stay_whole():
    """Beyond the edge and between its values, a grid of epochs is one of whole numbers."""
    methods = {"fedavg": {}, "fedprox": {"method.mu": [0.01, 0.1, 1.0]}}
    sweep = Sweep.load(BASE | {"grid": {"epochs": [1, 2, 4]}, "methods": methods, "budget": 9})
    execute, asked = landscape(lambda e: -abs(e.epochs - 11.0))
    plain, _ = tune_all(sweep, execute)
    assert dict(plain.best)["epochs"] == 11
    assert {type(e.epochs) for e in asked} == {int}
    assert plain.widened == ["epochs = 8", "epochs = 16"]


def test_a_grid_ends_where_no_experiment_takes_the_next_value():
    sweep = Sweep.load(BASE | {"methods": {"fedavgm": {"method.momentum": [0.5, 0.9]}}})
    execute, asked = landscape(lambda e: len(asked))
    tuned = tune(sweep, "fedavgm", execute)
    assert (len(asked), tuned.edge, tuned.widened) == (2, "", [])
    one = Sweep.load(BASE | {"grid": {"epochs": [1, 2]}, "methods": {"fedavg": {}}})
    execute, asked = landscape(lambda e: -e.epochs)
    assert dict(tune(one, "fedavg", execute).best) == {"epochs": 1}
    assert len(asked) == 2


ODD = {"method.form": "lap-d", "method.window": [3, 5, 9]}  # a window has an odd width


def window_of(setting):
    return dict(setting)["method.window"]


def test_no_value_is_tried_between_others_that_no_experiment_takes():
    """Each try is better than those before. Beyond window 9 is 16, between 5 and 9 is 7, beside 7 are 6 and 8."""
    sweep = Sweep.load(BASE | {"methods": {"fedavg": {"lr": [0.01, 0.02, 0.03, 0.04, 0.05]}, "specgradfilter": ODD}})
    execute, asked = landscape(lambda e: len(asked))
    plain, filtered = tune_all(sweep, execute)
    assert [window_of(one) for one in filtered.scores] == [3, 5, 9, 7]
    assert unequal([plain, filtered])[0].startswith("specgradfilter was tuned with 4 of ")


def test_every_method_tries_equally_many_settings():
    """FedAvg has no number of its own: it tries more learning rates instead, between those around its best."""
    methods = {"fedavg": {}, "fedprox": {"method": {"mu": [0.01, 0.1, 1.0, 10.0]}}}
    sweep = Sweep.load(BASE | {"grid": {"lr": [0.01, 0.1, 1.0]}, "methods": methods})

    def near(experiment):
        mu = (
            getattr(experiment.plan.method.phases[0].gradient[0], "mu", 0.1)
            if experiment.plan.method.name != "fedavg"
            else 0.1
        )
        return -abs(math.log(experiment.plan.lr / 0.06)) - abs(math.log(mu / 0.1))

    execute, asked = landscape(near)
    plain, prox = tune_all(sweep, execute)
    assert len(plain.scores) == len(prox.scores) == 12
    assert (plain.refined, prox.refined) == (9, 0)  # by two, and in the end by one
    assert len(asked) == 24
    assert abs(math.log(dict(plain.best)["lr"] / 0.06)) < abs(math.log(0.1 / 0.06)) / 3  # it came nearer
    assert all(0.01 <= dict(s)["lr"] <= 1.0 for s in plain.scores)


def test_a_method_without_numbers_is_left_as_it_is():
    sweep = Sweep.load(BASE | {"methods": {"fedavg": {}, "fedprox": {"method": {"mu": [0.01, 0.1, 1.0]}}}})
    execute, _ = landscape(lambda e: 0.5 - abs(e.plan.lr - 0.1))
    plain, prox = tune_all(sweep, execute)
    assert len(plain.scores) == plain.save()["tries"] == 1
    assert len(prox.scores) == prox.save()["tries"] >= 3
    assert unequal([plain, prox]) == [f"fedavg was tuned with 1 of {len(prox.scores)} tries"]
    assert unequal([prox]) == []


def test_what_every_method_chose_is_known():
    methods = {"fedavg": {"epochs": [1]}, "fedprox": {"epochs": [1, 2], "method.mu": [0.01, 0.1]}}
    assert Sweep.load(BASE | {"grid": {"lr": [0.01, 0.1]}, "methods": methods}).tuned == {"lr"}


def test_of_settings_that_score_alike_the_first_is_taken():
    one, other = (("lr", 0.1),), (("lr", 0.2),)
    assert Tuned("fedavg", {one: 0.5, other: 0.5}).best == one
    assert Tuned("fedavg", {other: 0.5, one: 0.5}).best == other


def test_true_is_no_number_of_a_grid():
    assert [str(value) for value in drop_repeats([1, 1.0, True, "1", 1])] == ["1", "True", "1"]


def test_final_runs_are_found_in_the_order_of_their_sweep():
    """The first is the one that others are compared with."""
    assert Choice(["b", "c", "a"], ()).pick([Path("a"), Path("b"), Path("d")]) == [Path("b"), Path("a")]


def test_failed_settings_are_passed_over():
    sweep = Sweep.load(BASE | {"grid": {"lr": [0.01, 0.1, 1.0]}, "methods": {"fedavg": {}}})
    execute, _ = landscape(lambda e: None if e.plan.lr > 0.5 else e.plan.lr)
    assert dict(tune(sweep, "fedavg", execute).best)["lr"] == 0.1
    execute, _ = landscape(lambda e: None)
    tuned = tune(sweep, "fedavg", execute)
    assert tuned.best is None
    assert finals(sweep, tuned) == []


def test_methods_are_compared_on_equal_terms():
    data = BASE | {"grid": {"lr": [0.1]}, "methods": {"fedavg": {}, "fedsam": {"method.rho": [0.05]}}, "seeds": [3, 4]}
    sweep = Sweep.load(data)
    ends = {}
    for method in ("fedavg", "fedsam"):
        execute, _ = landscape(lambda e: 0.5)
        ends[method] = [experiment for _, experiment in finals(sweep, tune(sweep, method, execute))]
    for one, other in zip(ends["fedavg"], ends["fedsam"], strict=True):
        mine, theirs = one.save(), other.save()
        assert {k for k in mine if mine[k] != theirs[k]} == {"method"}
    assert [e.seed for e in ends["fedavg"]] == [3, 4]
    assert ends["fedsam"][0].plan.method.phases[0].perturb == (fk.Sam(0.05),)


def test_the_choice_is_made_on_validation_data():
    exp = fk.Experiment(problem=small_problem(), rounds=3, participation=1.0, batch_size=4, epochs=1, validation=0.3)
    run = fk.run(exp)
    assert validation_score(run) == max(run.curve("validation_accuracy"))
    losses = [replace(r, extra={"validation_loss": loss}) for r, loss in zip(run.records, (3, 1, 2), strict=True)]
    assert validation_score(replace(run, records=losses)) == -1  # the least


def test_a_round_in_which_a_run_once_ended_chooses_nothing():
    """A run that was extended is scored as one that never was shorter."""
    exp = fk.Experiment(problem=small_problem(), rounds=4, validation=0.3, evaluate_every=2)
    for measure, values, score in (("accuracy", (0.5, 0.9, 0.6), 0.6), ("loss", (3.0, 1.0, 2.0), -2.0)):
        records = [
            RoundRecord(t, [0], 1.0, 1.0, 1, 1, 1, 1.0, extra={f"validation_{measure}": value})
            for t, value in zip((2, 3, 4), values, strict=True)
        ]
        assert validation_score(Run(exp, records, {}, {}, None, None, None)) == score


def test_where_clients_models_are_judged_the_choice_is_made_by_them():
    """The server's model of FedPer has a head that nobody trained: its score says nothing."""
    sweep = Sweep.load(BASE | {"evaluation": {}, "grid": {"lr": [0.01, 0.1, 1.0]}, "methods": {"fedper": {}}})

    def execute(requests):
        found = []
        for _, experiment in requests:
            own = 1 - abs(math.log10(experiment.plan.lr / 0.1)) / 4
            extra = {"validation_accuracy": 1 - own, "validation_client_accuracy": own}
            record = RoundRecord(1, [0], 1.0, 1.0, 1, 1, 1, 1.0, extra=extra)
            found.append(Run(experiment, [record], {}, {}, None, None, None))
        return found

    assert dict(tune(sweep, "fedper", execute).best) == {"lr": 0.1}


@for_each(
    ("changes", "words"),
    [
        ({"methods": {}}, "names its methods"),
        ({"methods": {"fedavg": {}}, "validation": 0}, "validation"),
        ({"methods": {"fedavgg": {}}}, "unknown method"),
        ({"methods": {"fedavg": {"method.rho": [1]}}}, "no hyper-parameter"),
        ({"methods": {"fedavg": {}}, "grid": {"lrr": [1]}}, "no key: lrr"),
        ({"methods": {"fedprox": {"mu": [1]}}}, "no key: mu\n\nhint: did you mean 'method.mu'"),
        ({"methods": {"fedavg": {}}, "buget": 3}, "no key: buget\n\nhint: did you mean 'budget'"),
        ({"methods": {"fedavg": {}}, "seed": 3}, "no key: seed\n\nhint: did you mean 'seeds'"),
        ({"methods": {"fedavg": {}}, "method": "fedavg"}, "no key: method\n\nhint: did you mean 'methods'"),
        ({"methods": {"fedavg": {}}, "grid": {"lr": []}}, "grid of lr is empty"),
        ({"methods": {"fedavg": {}}, "grid": {"seed": [0, 1]}}, "no key: seed"),
        ({"methods": {"fedavg": {}}, "grid": {"partition.alpha": [0.1, 1.0]}}, "same partition"),
        ({"methods": {"fedavg": {}}, "grid": {"validation": [0.1, 0.2]}}, "same validation"),
        ({"methods": {"fedavg": {}}, "grid": {"lr": [0.1, "fast"]}}, "lr must be a number"),
        ({"methods": {"fedavg": {}}, "grid": {"lr": [0.1, 0.2, 0.3]}, "budget": 2}, "more than the budget of 2"),
        ({"methods": {"fedavg": {}}, "seeds": [0, "b"]}, "seeds must be"),
        ({"methods": {"fedavg": {}}, "seeds": [1, 2, 1]}, "a seed is given twice"),
        ({"methods": {"fedavg": {}}, "seeds": 3}, "seeds must be"),
        ({"methods": {"fedavg": {}}, "budget": 0}, "budget must be"),
    ],
)
def test_a_wrong_sweep_is_refused(changes, words):
    with pytest.raises(fk.RequestError, match=words):
        Sweep.load(BASE | changes)


def test_optuna_proposes_within_the_ends_and_the_budget():
    pytest.importorskip("optuna", reason="optuna is not installed")
    from fedkeel.studies.samplers import propose

    methods = {"fedprox": {"method.mu": [0.001, 1.0]}}
    sweep = Sweep.load(BASE | {"grid": {"lr": [0.01, 1.0], "augment": ["none"]}, "methods": methods, "budget": 15})
    found = []
    for _ in range(2):
        execute, asked = landscape(lambda e: 1 - abs(e.plan.lr - 0.3))
        tuned = propose(sweep, "fedprox", execute)
        assert len(asked) <= 15
        assert all(0.01 <= e.plan.lr <= 1.0 and 0.001 <= e.plan.method.phases[0].gradient[0].mu <= 1.0 for e in asked)
        assert abs(dict(tuned.best)["lr"] - 0.3) < 0.2
        found.append(tuned.scores)
    assert found[0] == found[1]


@for_each(
    ("low", "high"),
    [(0.9999, 0.99999), (0.999999, 0.9999999), (0.12341, 0.12346), (0.01, 1.0), (0.3, 0.3), (0.12342, 0.98766)],
)
def test_proposed_values_are_short_fill_their_interval_and_never_leave_it(low, high):
    from fedkeel.studies.samplers import shorten

    drawn = [min(low * (high / low) ** (i / 1000), high) for i in range(1001)]
    found = {shorten(value, low, high) for value in drawn}
    assert (min(found), max(found)) == (low, high)
    assert low == high or len(found) > 50
    assert shorten(0.0123456, 0.01, 1.0) == 0.01235  # what wide intervals have always had
    assert shorten(0.9912345, 0.99, 0.999) == 0.9912


def test_optuna_proposes_different_values_near_one():
    pytest.importorskip("optuna", reason="optuna is not installed")
    from fedkeel.studies.samplers import propose

    grid = {"optimizer.beta2": [0.9999, 0.99999]}
    base = BASE | {"grid": grid, "lr": 0.01, "optimizer": "adamw", "methods": {"fedavg": {}}, "budget": 6}
    tuned = propose(Sweep.load(base | {"sampler": "optuna"}), "fedavg", landscape(lambda e: 0.5)[0])
    assert len(tuned.scores) > 3


@pytest.mark.parametrize(
    ("grid", "score", "edge"),
    [
        ({"lr": [0.01, 1.0]}, lambda e: e.plan.lr, "lr"),
        ({"lr": [0.01, 1.0]}, lambda e: -e.plan.lr, "lr"),
        ({"lr": [0.01, 1.0]}, lambda e: -abs(math.log(e.plan.lr / 0.1)), ""),
        ({"epochs": [1, 8]}, lambda e: e.epochs, "epochs"),
        ({"epochs": [1, 8]}, lambda e: -e.epochs, ""),  # there is nothing below one epoch
        ({"augment": ["none"]}, lambda e: 0.5, ""),
    ],
)
def test_an_optimum_at_the_end_of_an_interval_is_said(grid, score, edge):
    pytest.importorskip("optuna", reason="optuna is not installed")
    from fedkeel.studies.samplers import propose

    sweep = Sweep.load(BASE | {"grid": grid, "methods": {"fedavg": {}}, "budget": 30, "sampler": "optuna"})
    execute, _ = landscape(score)
    assert propose(sweep, "fedavg", execute).edge == edge


def test_optuna_proposes_whole_numbers_between_whole_ones():
    pytest.importorskip("optuna", reason="optuna is not installed")
    from fedkeel.studies.samplers import propose

    sweep = Sweep.load(BASE | {"grid": {"epochs": [1, 8]}, "methods": {"fedavg": {}}, "budget": 6, "sampler": "optuna"})
    execute, asked = landscape(lambda e: e.epochs / 10)
    propose(sweep, "fedavg", execute)
    assert {type(e.epochs) for e in asked} == {int}
    assert all(1 <= e.epochs <= 8 for e in asked)


def test_what_optuna_proposes_and_no_experiment_takes_is_passed_over():
    pytest.importorskip("optuna", reason="optuna is not installed")
    from fedkeel.studies.samplers import propose

    for budget in (1, 12):
        sweep = Sweep.load(BASE | {"methods": {"specgradfilter": ODD}, "budget": budget, "sampler": "optuna"})
        tuned = propose(sweep, "specgradfilter", landscape(lambda e: 0.5)[0])
        assert tuned.best is not None
        assert all(window_of(one) % 2 for one in tuned.scores)


@pytest.mark.slow
def test_the_command_tells_what_is_unequal_and_leaves_tuned_rates_alone(tmp_path, capsys):
    text = """
    dataset = "digits"
    model = "logistic"
    partition = "iid:clients=4"
    epochs = 1
    rounds = 1
    validation = 0.2
    evaluation.report = "last"
    budget = 2
    [methods.fedavg]
    [methods.fedper]
    weight_decay = [0.001, 0.1]
    """
    file = tmp_path / "sweep.toml"
    file.write_text(text)
    asked = ["sweep", str(file), "--out", str(tmp_path / "runs"), "--engine", "serial", "--no-progress", "--json"]
    assert call(asked) == 0
    told = capsys.readouterr()
    assert "fedavg was tuned with 1 of 2 tries" in told.err
    assert "the runs differ in weight_decay" in told.err  # FedAvg had no choice
    found = json.loads(told.out)
    assert [one["tries"] for one in found["tuning"]] == [1, 2]
    assert found["difference_of"] == "reported"
    file.write_text(
        text.replace("budget = 2", "grid.weight_decay = [0.0001, 0.01]").replace("[0.001, 0.1]", "[0.1, 1.0]")
    )
    assert read_choice(tmp_path / "runs").tuned == []
    assert call(asked) == 0
    assert "differ in" not in capsys.readouterr().err
    assert read_choice(tmp_path / "runs").tuned == ["weight_decay"]  # compare takes it from here


@pytest.mark.slow
def test_the_command_tunes_and_compares(tmp_path, capsys):
    text = """
    dataset = "digits"
    model = "logistic"
    partition = "iid:clients=4"
    participation = 0.5
    epochs = 1
    rounds = 2
    validation = 0.2
    seeds = [0, 1]
    grid.lr = [0.01, 0.1]
    budget = 3
    [methods.fedavg]
    [methods.fedprox]
    "method.mu" = [0.01]
    """
    file = tmp_path / "sweep.toml"
    file.write_text(text)
    asked = ["sweep", str(file), "--out", str(tmp_path / "runs"), "--engine", "serial", "--no-progress"]
    assert call(asked) == 0
    table = capsys.readouterr().out
    assert "grid grew by" in table
    assert "95 % interval" in table
    assert call([*asked, "--json", "--baseline", "fedprox", "--target", "0.01"]) == 0  # all found finished
    found = json.loads(capsys.readouterr().out)
    assert (found["baseline"], found["target"]) == ("fedprox", 0.01)
    plain, prox = found["methods"]
    assert plain["seeds"] == prox["seeds"] == [0, 1]
    assert plain["difference"]["seeds"] == 2
    assert prox["difference"] is None
    assert plain["cost"]["rounds"] == 1.0
    tuned = found["tuning"][0]
    assert tuned["method"] == "fedavg"
    assert len(tuned["tried"]) == 3
    assert tuned["chosen"] == max(tuned["tried"], key=lambda one: one["score"])["setting"]
    # a comparison of the folder is of the final runs, in the sweep's order, and not of what was tried on the way
    assert call(["compare", str(tmp_path / "runs"), "--json", "--baseline", "fedprox", "--target", "0.01"]) == 0
    told = capsys.readouterr()
    again = json.loads(told.out)
    assert again == {name: found[name] for name in again}
    assert "differ in" not in told.err
    assert call(["compare", str(tmp_path / "runs"), "--latex"]) == call([*asked, "--latex"]) == 0
    once, twice = capsys.readouterr().out.split("% accuracy in %")[1:]
    assert once == twice
    assert call([*asked, "--latex", "--csv"]) == 2
    assert "at a time" in capsys.readouterr().err
    (tmp_path / "runs" / "sweep.json").write_text('{"runs": [7, "../elsewhere"], "tuned": "lr"}')
    assert call(["compare", str(tmp_path / "runs"), "--json"]) == 0  # nothing is known of a choice: all are compared
    assert len(json.loads(capsys.readouterr().out)["methods"]) == 6
    assert call([*asked, "--target", "75"]) == 2
    assert "75 % is 0.75" in capsys.readouterr().err
    assert call([*asked, "--on", "mars"]) == 2


# ---- what the command refuses ---------------------------------------------------------------------------------------
SWEEP = """
dataset = "digits"
model = "logistic"
partition = "iid:clients=4"
epochs = 1
rounds = 1
validation = 0.2
[methods.fedavg]
[methods.fedprox]
"""


def swept(fedkeel, text, *words):
    Path("s.toml").write_text(text)
    return fedkeel("sweep", "s.toml", "--out", "runs", "--engine", "serial", "--no-progress", *words)


def test_a_baseline_that_is_not_swept_is_refused_before_training(fedkeel, untrained):
    done = swept(fedkeel, SWEEP, "--baseline", "fedpro")
    assert (done.code, done.err) == (2, "error: this sweep has no method: fedpro\n\nhint: did you mean 'fedprox'?\n")
    assert not Path("runs").exists()


def test_a_method_whose_settings_all_failed_is_an_error_with_its_reason(fedkeel):
    done = swept(fedkeel, SWEEP + "lr = [1e30]\n", "--json", "--baseline", "fedprox")
    assert done.code == 1
    assert "every setting of fedprox failed: the loss or the model of client" in done.err
    assert "fedprox has no run, so differences are to fedavg" in done.err
    assert [one["label"] for one in json.loads(done.out)["methods"]] == ["fedavg"]


def test_a_sweep_without_a_validation_sample_says_so(fedkeel):
    done = swept(fedkeel, SWEEP.replace("0.2", "0.0001"))
    assert done.code == 1
    assert "every setting of fedavg failed: no client has a validation sample" in done.err


def test_the_runs_of_a_sweep_measure_what_is_asked_and_are_compared_by_it(fedkeel):
    assert swept(fedkeel, SWEEP, "--metrics", "f1", "--json").code == 0
    done = fedkeel("compare", "runs", "--measure", "f1", "--json")
    found = json.loads(done.out)
    assert (found["judged_on"], [one["label"] for one in found["methods"]]) == ("f1", ["fedavg", "fedprox"])
    assert all(0 < one["last"]["mean"] < 1 for one in found["methods"])
    refused = swept(fedkeel, SWEEP, "--metrics", "f1", "--on", "ray")
    assert (refused.code, refused.err.splitlines()[0][:17]) == (2, "error: --metrics ")


# ---- optimisers ----
def test_each_optimiser_is_tuned_on_its_own_rates():
    swept = {"grid": {"optimizer": ["sgd", "adamw", {"name": "muon", "scale": "original"}]}, "methods": {"fedavg": {}}}
    sweep = Sweep.load(BASE | swept)
    assert [sweep.grids[name]["lr"] for name in ("fedavg", "adamw+fedavg", "muon+fedavg")] == [
        (0.01, 0.03, 0.1, 0.3), (1e-4, 3e-4, 1e-3, 3e-3), (3e-3, 1e-2, 3e-2, 1e-1),
    ]  # fmt: skip
    execute, asked = landscape(lambda e: -abs(math.log(e.plan.lr / 1e-3)))
    best = {one.method: dict(one.best)["lr"] for one in tune_all(sweep, execute)}
    assert best["adamw+fedavg"] == 1e-3
    assert {e.plan.method.phases[0].gradient[0].scale for e in asked if e.plan.method.name == "muon+fedavg"} == {
        "original"
    }
    assert describe_grid(sweep.grids["adamw+fedavg"]) == "lr 0.0001, 0.0003, 0.001, 0.003"


def test_rates_that_are_given_stay():
    grid = {"optimizer": ["sgd", "lion"], "lr": [0.1, 0.2]}
    assert {g["lr"] for g in Sweep.load(BASE | {"grid": grid, "methods": {"fedavg": {}}}).grids.values()} == {
        (0.1, 0.2)
    }
    mixed = Sweep.load(BASE | {"methods": {"fedavg": {}, "lion+fedsam": {"lr": [0.5, 0.6]}}})
    assert [mixed.grids[name]["lr"] for name in ("fedavg", "lion+fedsam")] == [(0.01, 0.03, 0.1, 0.3), (0.5, 0.6)]
    plain = Sweep.load(BASE | {"methods": {"fedavg": {}, "fedsam": {}}})
    assert all("lr" not in grid for grid in plain.grids.values())
    fixed = Sweep.load(BASE | {"lr": 0.1, "methods": {"adamw+fedavg": {}}})
    assert dict(fixed.grids["adamw+fedavg"]) == {}


def test_fields_of_an_optimiser_are_swept():
    """They go to the optimisers that have them; without a grid of optimisers, to the experiment's."""
    grid = {"lr": [0.01], "optimizer": ["sgd", "adamw", "lion"], "optimizer.beta2": [0.9, 0.99], "optimizer.eps": 1e-6}
    sweep = Sweep.load(BASE | {"grid": grid, "methods": {"fedavg": {}}})
    assert {name: {*grid} - {"lr"} for name, grid in sweep.grids.items()} == {
        "fedavg": set(), "adamw+fedavg": {"method.beta2", "method.eps"}, "lion+fedavg": {"method.beta2"},
    }  # fmt: skip
    assert describe_grid(sweep.grids["lion+fedavg"]) == "beta2 0.9, 0.99"
    nested = Sweep.load(
        BASE | {"grid": {"optimizer": {"name": "adamw", "beta2": [0.9, 0.99]}}, "methods": {"fedavg": {}}}
    )
    assert nested.grids["adamw+fedavg"]["method.beta2"] == (0.9, 0.99)
    own = {"optimizer": [{"name": "adamw", "beta2": 0.9}, "lion"], "optimizer.beta2": [0.99, 0.999]}
    given = Sweep.load(BASE | {"grid": own, "methods": {"fedavg": {}}}).grids  # what a table gives is not swept
    assert [given[f"{name}+fedavg"]["method.beta2"] for name in ("adamw", "lion")] == [(0.9,), (0.99, 0.999)]
    for given in ("adamw", {"name": "adamw", "beta1": 0.5}):
        own = Sweep.load(BASE | {"optimizer": given, "methods": {"fedavg": {"optimizer.beta2": [0.9, 0.99]}}})
        assert describe_grid(own.grids["fedavg"]) == "lr 0.0001, 0.0003, 0.001, 0.003; optimizer.beta2 0.9, 0.99"
        made = own.experiment("fedavg", settings_of(own.grids["fedavg"])[1], 0).optimizer
        assert made == fk.AdamW(beta1=0.9 if given == "adamw" else 0.5, beta2=0.99)


def test_fields_of_a_schedule_are_swept_in_any_order():
    for words in (("schedule", "schedule.warmup"), ("schedule.warmup", "schedule")):
        values = {"schedule": ["cosine", "linear"], "schedule.warmup": [0, 1]}
        sweep = Sweep.load(BASE | {"grid": {word: values[word] for word in words}, "methods": {"fedavg": {}}})
        made = [sweep.experiment("fedavg", one, 0).plan.schedule for one in settings_of(sweep.grids["fedavg"])]
        assert {(type(one).__name__, one.warmup) for one in made} == {
            ("CosineRate", 0), ("CosineRate", 1), ("LinearRate", 0), ("LinearRate", 1),
        }  # fmt: skip


@pytest.mark.parametrize(
    ("base", "grid", "line", "hint"),
    [
        ({}, {"optimizer": ["adamw"], "optimizer.beta3": [0.9]}, "of these optimizers has a field: beta3", "beta2"),
        ({}, {"optimizer": ["adamw"], "optimizer.lr": [0.1]}, "of these optimizers has a field: lr", "a key of the"),
        ({}, {"optimizer": ["sgd"], "optimizer.beta1": [0.1]}, "none of these optimizers has a field", "SGD has none"),
        ({}, {"optimizer": ["adamw"], "optimizer.beta2": ["x"]}, "beta2 of method adamw.fedavg must be a number", ""),
        ({"optimizer": "adamw"}, {"optimizer.lr": [0.1]}, "optimizer adamw has no field: lr", "a key of the"),
        ({"optimizer": "adamw"}, {"optimizer.beta2": [2.0]}, "beta2 of rule AdamW must lie in", ""),
        ({}, {"optimizer.beta2": [0.9]}, "an optimizer is a name, or a table with one", 'optimizer = "adamw"'),
        ({}, {"schedule.warmup": [1, 2]}, "schedule needs its name", "cosine"),
        ({"schedule": "cosine"}, {"schedule.warmp": [1]}, "the cosine schedule has no field: warmp", "warmup"),
        ({"schedule": "cosine"}, {"schedule.warmup": ["x"]}, "warmup of the cosine schedule must be a whole", ""),
        ({"schedule": "cosine"}, {"schedule.warmup": [99]}, "the warm-up of schedule takes 99 rounds", "warmup = 1"),
        ({}, {"evaluation.part": [1]}, "every method gets the same evaluation", "give it once"),
    ],
)  # fmt: skip
def test_a_field_that_does_not_fit_is_refused(base, grid, line, hint):
    with pytest.raises(fk.FedkeelError, match=line) as refused:
        Sweep.load(BASE | base | {"grid": grid, "methods": {"fedavg": {}}})
    assert hint in (refused.value.hint or "")


def test_an_optimiser_is_swept_once():
    grid = {"optimizer": ["adamw", {"name": "adamw", "beta1": 0.8}]}
    with pytest.raises(fk.ExperimentError, match=r"adamw\+fedavg is swept twice"):
        Sweep.load(BASE | {"grid": grid, "methods": {"fedavg": {}}})
    with pytest.raises(fk.ExperimentError, match="unknown optimizer: adam"):
        Sweep.load(BASE | {"grid": {"optimizer": ["adam"]}, "methods": {"fedavg": {}}})

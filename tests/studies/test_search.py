"""Compositions and published methods get the same tries, are judged on validation data, and go on after a stop."""

import dataclasses
import json
import math
import tomllib
from pathlib import Path

import pytest
import tomli_w
import torch
from for_each import for_each

import fedkeel as fk
from fedkeel.cli import study_runs
from fedkeel.cli.search import conclude, show_rungs
from fedkeel.cli.search_folder import write_tries, write_winner
from fedkeel.cli.study_runs import StudyRuns
from fedkeel.cli.training import Machine, Outcome, Target
from fedkeel.core.objectives import Calibrated
from fedkeel.errors import RequestError, RunError
from fedkeel.papers.reproduce import name_folder
from fedkeel.runs import environment, own_code
from fedkeel.runs.checkpoint import list_checkpoints
from fedkeel.runs.finished_run import Run
from fedkeel.runs.record import RoundRecord
from fedkeel.runs.save_clock import SaveClock
from fedkeel.studies.compare import Comparison
from fedkeel.studies.publish import make_rows
from fedkeel.studies.run_groups import RunGroup
from fedkeel.studies.search import COMPOSED, PUBLISHED, Search, halve, late_score
from fedkeel.studies.search_space import Part, compose
from problems import small_problem

BASE = {
    "dataset": "digits", "model": "logistic", "rounds": 9, "validation": 0.2, "candidates": 9, "seeds": [5, 6],
    "grid": {"lr": [0.01, 0.1, 1.0]},
    "parts": {
        "perturb": {"none": [], "sam": [{"rule": "Sam", "rho": [0.05, 0.1]}]},
        "filter": {"none": [], "high": [{"rule": "HighPass", "ratio": 0.05}]},
    },
    "published": {"fedavg": {}, "fedprox": {"method": {"mu": [0.01, 0.1]}}},
}  # fmt: skip


def landscape(score):
    """An executor whose runs score as a function of experiment and round says; and what it was asked for."""
    asked = []

    def execute(requests):
        asked.extend(experiment for _, experiment in requests)
        return [made(experiment, score) for _, experiment in requests]

    return execute, asked


def made(experiment, score):
    records = [
        RoundRecord(t, [0], 1.0, 1.0, 2, 1, 1, 1.0, accuracy=1.0, extra={"validation_accuracy": score(experiment, t)})
        for t in range(1, experiment.plan.rounds + 1)
    ]
    return Run(experiment, records, {}, {}, None, None, None)


def test_a_rung_has_a_third_of_the_rounds_of_the_next_and_the_first_at_least_one():
    for rounds, rungs in ((90, [10, 30, 90]), (91, [10, 30, 90, 91]), (4, [1, 3, 4]), (1, [1])):
        assert Search.load(BASE | {"rounds": rounds}).rungs == rungs
    assert Search.load(BASE | {"rounds": 90, "first": 40}).rungs == [40, 90]


def test_an_option_is_a_chain_with_every_combination_of_its_values():
    part = Part.load("both", {"b": [{"rule": "Sam", "rho": [0.1, 0.2]}, {"rule": "HighPass", "ratio": [0.0, 0.5]}]}, 0)
    assert list(part.chains) == [f"b rho={rho} ratio={ratio}" for rho in ("0.1", "0.2") for ratio in ("0", "0.5")]
    assert part.chains["b rho=0.2 ratio=0.5"] == ({"rule": "Sam", "rho": 0.2}, {"rule": "HighPass", "ratio": 0.5})
    assert part.into == "gradient"


def test_parts_stand_in_the_method_in_the_order_in_which_they_are_written():
    parts = [
        Part("first", "gradient", {"a": ({"rule": "HighPass", "ratio": 0.05},)}),
        Part("then", "gradient", {"b": ({"rule": "DynamicDual", "lam": 0.1},)}),
        Part("weights", "weights", {"c": ({"rule": "Uniform"},)}),
    ]
    method = compose(parts, (("first", "a"), ("then", "b"), ("weights", "c"), ("lr", 0.1)), "mine")
    written = fk.method("mine", gradient=[fk.HighPass(0.05), fk.DynamicDual(0.1)], weights=fk.Uniform())
    assert fk.Experiment(dataset="digits", method=method).plan.method == written


def test_an_objective_is_a_part_too():
    part = Part.load("objective", {"loss": "loss", "calibrated": ["calibrated:0.5", "calibrated:1"]}, 0)
    assert list(part.chains) == ["loss", "calibrated:0.5", "calibrated:1"]
    parts = [Part("filter", "gradient", {"f": ({"rule": "HighPass", "ratio": 0.05},)}), part]
    method = compose(parts, (("filter", "f"), ("objective", "calibrated:0.5")), "mine")
    written = fk.method("mine", gradient=[fk.HighPass(0.05)], objective=Calibrated(0.5), weights=fk.BySize())
    assert fk.Experiment(dataset="digits", method=method).plan.method == written


def test_fields_of_an_optimiser_and_of_a_schedule_are_drawn_on_both_sides():
    grid = {"lr": [0.01], "optimizer.beta2": [0.9, 0.99], "schedule.warmup": [0, 1]}
    search = Search.load(BASE | {"grid": grid, "optimizer": "adamw", "schedule": "cosine", "candidates": 99})
    for side in (COMPOSED, PUBLISHED):
        drawn = search.draw(side)
        made = [(one.experiment.optimizer, one.experiment.plan.schedule.warmup) for one in drawn]
        assert {(rule.beta2, warmup) for rule, warmup in made} == {(0.9, 0), (0.9, 1), (0.99, 0), (0.99, 1)}
        assert drawn[0].label.endswith("lr=0.01 optimizer.beta2=0.9 schedule.warmup=0")
    with pytest.raises(fk.ExperimentError, match="the cosine schedule has no field: warmp"):
        Search.load(BASE | {"schedule": "cosine", "grid": {"schedule.warmp": [1]}})


def test_both_sides_get_as_many_tries_and_no_try_twice():
    search = Search.load(BASE)
    for side in (COMPOSED, PUBLISHED):
        drawn = search.draw(side)
        assert len(set(drawn)) == len(drawn) == 9
        assert drawn == Search.load(BASE).draw(side)
        assert {one.experiment.seed for one in drawn} == {0}
    other = Search.load(BASE | {"seed": 1})
    assert [one.setting for one in other.draw(COMPOSED)] != [one.setting for one in search.draw(COMPOSED)]


def test_settings_that_are_one_experiment_are_one_try():
    part = {"into": "perturb", "none": [], "sam": [{"rule": "Sam", "rho": 0.1}]}
    search = Search.load(BASE | {"candidates": 99, "grid": {"lr": [0.1, 0.1]}, "parts": {"a": part, "b": part}})
    for side in (COMPOSED, PUBLISHED):
        drawn = search.draw(side)
        assert len({name_folder(one.experiment) for one in drawn}) == len(drawn)
    assert [one.label for one in search.draw(COMPOSED)] == ["lr=0.1", "sam, lr=0.1"]


def test_one_of_three_goes_on_and_the_best_late_score_wins():
    search = Search.load(BASE)  # of 9 rounds, of which the first of three rungs has a ninth
    drawn = search.draw(COMPOSED)
    best = drawn[4].experiment.fingerprint()
    execute, asked = landscape(lambda e, t: 0.9 if e.fingerprint() == best else e.plan.lr / 2)
    rungs = halve(search, drawn, execute)
    assert [(rung.rounds, len(rung.scores)) for rung in rungs] == [(1, 9), (3, 3), (9, 1)]
    assert rungs[-1].ranked == [drawn[4]]
    assert sum(rung.passes for rung in rungs) == 2 * (9 * 1 + 3 * 2 + 1 * 6)  # each round is paid for once
    assert {e.plan.rounds for e in asked} == {1, 3, 9}
    four = halve(search, drawn[:4], execute)
    assert [len(rung.scores) for rung in four] == [4, 2, 1]  # a third of four, rounded up


def test_candidates_that_broke_off_are_told_beside_the_cost(capsys):
    search = Search.load(BASE | {"first": 9})
    execute = landscape(lambda e, t: 0.5)[0]
    whole = halve(search, search.draw(COMPOSED), execute)
    broken = halve(search, search.draw(COMPOSED), lambda requests: [None, None, *execute(requests)[2:]])
    assert (whole[0].passes, broken[0].passes) == (2 * 9 * 9, 2 * 9 * 7)
    for rungs, told in ((whole, False), (broken, True)):
        show_rungs({COMPOSED: rungs})
        assert ("gradients of 2 candidates that broke off are not counted" in capsys.readouterr().out) is told


def test_with_a_schedule_as_long_as_the_run_every_rung_begins_anew_and_costs_all_its_rounds():
    search = Search.load(BASE | {"first": 1, "schedule": "cosine"})
    rungs = halve(search, search.draw(COMPOSED), landscape(lambda e, t: e.plan.lr / 2)[0])
    assert [rung.passes for rung in rungs] == [2 * 9 * 1, 2 * 3 * 3, 2 * 1 * 9]


def test_a_line_of_a_try_has_the_fingerprint_of_the_run_that_was_trained(tmp_path):
    search = Search.load(BASE | {"first": 1, "schedule": "cosine"})
    execute, asked = landscape(lambda e, t: e.plan.lr / 2)
    write_tries(tmp_path / "search.jsonl", {COMPOSED: halve(search, search.draw(COMPOSED), execute)})
    lines = map(json.loads, (tmp_path / "search.jsonl").read_text().splitlines())
    assert [line["fingerprint"] for line in lines] == [one.fingerprint() for one in asked]


def test_the_command_of_a_winner_with_own_code_trusts_it(tmp_path, capsys):
    (tmp_path / "mine.py").write_text("import torch\ndef net():\n    return torch.nn.Linear(64, 10)\n")
    for model, end in (("logistic", "winner.toml\n"), ("mine:Net", "winner.toml --trust\n")):
        write_winner(tmp_path / "winner.toml", fk.Experiment(dataset="digits", model=model))
        assert capsys.readouterr().err.endswith(end)


def test_scores_are_means_of_late_rounds_and_never_of_the_test_set():
    experiment = fk.Experiment(dataset="digits", rounds=10, validation=0.2)
    assert late_score(made(experiment, lambda e, t: t / 10)) == pytest.approx(0.95)
    assert late_score(made(experiment, lambda e, t: math.nan if t == 10 else 0.5)) is None
    rare = fk.Experiment(dataset="digits", rounds=50, validation=0.2, evaluate_every=5)
    assert late_score(made(rare, lambda e, t: t / 50)) == pytest.approx(0.95)  # of rounds 45 and 50
    without = made(experiment, lambda e, t: None)
    assert without.curve("accuracy")
    assert late_score(without) is None
    losses = [
        RoundRecord(t, [0], 1.0, 1.0, 2, 1, 1, 1.0, extra={"validation_loss": v}) for t, v in ((1, 2.0), (2, None))
    ]
    diverging = Run(experiment, losses, {}, {}, None, None, None)
    assert late_score(diverging) is None  # not that of round 1
    assert late_score(dataclasses.replace(diverging, records=losses[::-1])) == -2.0


def test_a_candidate_that_failed_does_not_go_on():
    search = Search.load(BASE)
    drawn = search.draw(PUBLISHED)

    def execute(requests):
        return [None if e.plan.lr == 1.0 else made(e, lambda e, t: e.plan.lr) for _, e in requests]

    rungs = halve(search, drawn, execute)
    assert {one.experiment.plan.lr for one in rungs[1].scores} == {0.1}
    nothing = halve(search, drawn, lambda requests: [None for _ in requests])
    assert [rung.ranked for rung in nothing] == [[]]


def test_rules_that_do_not_fit_together_are_no_candidates(caplog):
    fair = {"rule": "Fair", "q": 1.0}  # it weighs by losses, which nobody reports here
    parts = {"weights": {"uniform": {"rule": "Uniform"}, "fair": fair}}
    drawn = Search.load(BASE | {"parts": parts}).draw(COMPOSED)
    assert {dict(one.setting)["weights"] for one in drawn} == {"uniform"}
    (told,) = [
        line for line in caplog.messages if line.startswith("no candidate")
    ]  # the rates, which others have too, are not blamed
    assert told.startswith("no candidate has weights = 'fair': all 3 draws with it were refused: ")
    assert "Fair" in told
    with pytest.raises(RequestError, match="Fair"):
        Search.load(BASE | {"parts": {"weights": {"fair": fair}}}).draw(COMPOSED)


def test_final_runs_have_fresh_seeds_and_splits_and_all_data():
    search = Search.load(BASE | {"partition_seed": 3})
    finals = [experiment for _, experiment in search.finals(search.draw(COMPOSED)[0])]
    assert [one.seed for one in finals] == [5, 6]
    assert [one.plan.partition_seed for one in finals] == [5, 6]
    assert {one.validation for one in finals} == {0.0}


WRONG = [
    ({"parts": {}}, "names the parts"),
    ({"published": {}}, "held against published methods"),
    ({"parts": {"filter": {"high": [{"rule": "HighPas", "ratio": 0.1}]}}}, "unknown rule: HighPas"),
    ({"parts": {"filter": {"high": [{"rule": "HighPass", "ratio": [0.1, 7]}]}}}, "ratio of rule HighPass must lie in"),
    ({"parts": {"filter": {"into": "gradien", "none": []}}}, "stands nowhere"),
    ({"parts": {"filter": {"into": "gradient"}}}, "has no option"),
    ({"parts": {"objective": {"loss": [{"rule": "Sam", "rho": 0.1}]}}}, "must be an objective"),
    ({"parts": {"objective": {"mine": "calibratd"}}}, "unknown objective"),
    ({"parts": {"objective": {"loss": "loss", "mine": "calibratd:0.5"}}}, "unknown objective: 'calibratd'"),
    ({"parts": {"filter": {"none": [], "mine": [{"rule": "mine:Rule", "rho": [0.1, 0.2]}]}}}, "the rule 'mine:Rule'"),
    ({"parts": {"objective": {"loss": "loss", "mine": "mine:Objective"}}}, "the objective 'mine:Objective'"),
    ({"parts": {"filter": {"high": "HighPass"}}}, "must be a list of rules"),
    ({"parts": {"weights": {"none": []}}}, "must be one weighting"),
    ({"parts": {"filter": 3}}, "is a table of its options"),
    ({"seeds": [0, 1]}, "seed 0 is that of the tries"),
    ({"partition_seed": 6}, "partition_seed 6 is that of the tries"),
    ({"seeds": []}, "at least one"),
    ({"keep": 1}, "keep must be at least 2"),
    ({"first": 10}, "the first rung has 10 rounds"),
    ({"name": "fedavg"}, "is a method already"),
    ({"name": "ema+fedavg", "published": {"ema+fedavg": {}}}, "is a method already"),
    ({"validation": 0.0}, "validation data"),
    ({"grid": {"rounds": [1, 2]}}, "every method gets the same rounds"),
    ({"sampler": "bayes"}, "sampler"),
    ({"candidats": 3}, "candidats"),
    ({"seed": "a"}, "^seed must be a whole number"),
    ({"validation": 0}, "a search chooses on validation data"),
    ({"grid": {"epochs": [[1, 2]]}}, "a grid lists single values"),
    ({"parts": {"lr": {"none": []}}}, "part lr has the name of an experiment's key"),
    ({"parts": {"optimizer": {"none": []}}}, "part optimizer has the name"),
    ({"parts": {"filter": {"high": [{"rule": "HighPass", "ratio": []}]}}}, "lists no value of ratio"),
    (
        {"parts": {"weights": {"u": {"rule": "Uniform"}}, "other": {"into": "weights", "b": {"rule": "BySize"}}}},
        "2 parts stand in weights",
    ),
]


@for_each(("changes", "told"), WRONG)
def test_what_is_wrong_is_said_in_one_line(changes, told):
    with pytest.raises(RequestError, match=told) as error:
        Search.load(BASE | changes)
    assert error.value.hint


@for_each(("key", "wrong"), [("keep", 1), ("keep", -1), ("first", 0), ("candidates", 0), ("seeds", [0]), ("seed", "a")])
def test_what_a_hint_shows_is_taken(key, wrong):
    with pytest.raises(RequestError) as error:
        Search.load(BASE | {key: wrong})
    Search.load(BASE | tomllib.loads(error.value.hint.removeprefix("for example ")))


def test_compositions_get_the_rates_and_fields_of_each_optimiser_as_published_methods_do():
    grid = {"optimizer": ["sgd", {"name": "adamw", "beta1": 0.8}], "optimizer.beta2": [0.9, 0.99]}
    search = Search.load(
        BASE | {"grid": grid, "parts": {"filter": {"none": []}}, "candidates": 99, "published": {"fedavg": {}}}
    )
    sides = []
    for side in (COMPOSED, PUBLISHED):
        plans = [one.experiment.plan for one in search.draw(side)]
        steps = [plan.method.phases[0].gradient for plan in plans]
        sides.append({(plan.lr, repr(rules)) for plan, rules in zip(plans, steps, strict=True)})
    assert sides[0] == sides[1]
    assert len({lr for lr, _ in sides[0]}) > 4


def test_every_takes_no_more_than_was_asked_for():
    with pytest.raises(RequestError, match="18 settings"):
        Search.load(BASE | {"sampler": "every"}).draw(COMPOSED)


def test_optuna_proposes_what_the_first_rung_likes():
    pytest.importorskip("optuna")
    from fedkeel.studies.samplers import propose_candidates

    search = Search.load(BASE | {"sampler": "optuna"})
    execute, asked = landscape(lambda e, t: e.plan.lr)
    drawn = propose_candidates(search, PUBLISHED, execute)
    assert len(drawn) == 9 == len(set(drawn))
    assert {e.plan.rounds for e in asked} == {1}
    again = propose_candidates(search, PUBLISHED, landscape(lambda e, t: e.plan.lr)[0])
    assert again == drawn


def test_a_run_of_another_experiment_is_never_taken_for_this_one():
    one = fk.Experiment(dataset="digits", rounds=3)
    assert name_folder(one) == name_folder(one.with_(rounds=9))
    others = (one.with_(seed=1), one.with_(lr=0.3), one.with_(method=fk.method("fedavg", weights=fk.Uniform())))
    assert len({name_folder(other) for other in (one, *others)}) == 4


def final_runs(label, last, measure="accuracy"):
    record = RoundRecord(1, [0], 1.0, 1.0, 2, 1, 1, 1.0, accuracy=0.5 if measure == "accuracy" else None)
    experiment = fk.Experiment(dataset="digits", rounds=1)
    runs = {seed: Run(experiment, [record], {"last": value}, {}, None, None, None) for seed, value in last.items()}
    return RunGroup(label, runs)


@for_each(
    ("mine", "measure", "told"),
    [
        ({1: 0.9, 2: 0.91}, "accuracy", "mine is ahead of feddyn"),
        ({1: 0.3, 2: 0.31}, "accuracy", "feddyn is ahead of mine"),
        ({1: 0.3, 2: 0.31}, "loss", "mine is ahead of feddyn"),
        ({1: 0.4, 2: 0.9}, "accuracy", "not decided, since the interval"),
        ({1: 0.9}, "accuracy", "one seed decides nothing"),
        ({1: 0.7, 2: 0.7}, "accuracy", "not decided, since all seeds differ alike"),
    ],
)
def test_a_search_says_in_words_who_is_ahead(mine, measure, told):
    groups = [final_runs("mine", mine, measure), final_runs("feddyn", {1: 0.6, 2: 0.6}, measure)]
    assert told in conclude(Comparison.of(groups, "feddyn", 0.5, "last"))


def test_only_what_was_fresh_is_called_so():
    problem = fk.Experiment(problem=small_problem(), rounds=1)
    for given, told in ((None, "on fresh seeds and splits"), (problem, "on fresh seeds")):
        groups = [final_runs(name, last) for name, last in (("mine", {1: 0.9, 2: 0.91}), ("feddyn", {1: 0.6, 2: 0.6}))]
        for group in groups if given else ():
            group.runs.update({seed: dataclasses.replace(run, experiment=given) for seed, run in group.runs.items()})
        assert conclude(Comparison.of(groups, "feddyn", 0.5, "last")).endswith(told)


def test_none_is_ahead_by_the_seeds_that_did_not_fail():
    mine, other = final_runs("mine", {1: 0.9, 2: 0.91, 3: None}), final_runs("feddyn", {1: 0.6, 2: 0.6, 3: 0.6})
    told = conclude(Comparison.of([mine, other], "feddyn", 0.5, "last"))
    assert told == "mine and feddyn: not decided, since mine has numbers for 2 of 3 seeds"
    mine, other = (dataclasses.replace(group, asked=(1, 2, 3, 4)) for group in (other, other))
    made = Comparison.of([dataclasses.replace(mine, label="mine"), other], "feddyn", 0.5, "last")
    assert "not decided, since mine has numbers for 3 of 4 seeds" in conclude(made)
    assert made.gaps[0] == "mine: last over 3 of 4 seeds, since seed 4 gave no number"
    assert [row.in_words[0] for row in make_rows(made)] == ["3 of 4"] * 2


def test_a_full_disk_stops_a_study_and_counts_against_no_candidate(monkeypatch):
    full = RunError("cannot write a: No space left on device")
    full.__cause__ = OSError(28, "No space left on device")
    one = Target(fk.Experiment(dataset="digits", rounds=1), Path("a"), "fedavg")
    for error, stops in ((full, True), (RunError("the loss is not finite"), False)):
        monkeypatch.setattr(study_runs, "train", lambda targets, *_, error=error: [Outcome(one, None, error=error)])
        study = StudyRuns(Machine("serial"), progress=False)
        if stops:
            with pytest.raises(RunError, match="says nothing about a method"):
                study([one])
        else:
            assert study([one]) == [None]


@pytest.mark.slow
def test_a_try_keeps_one_checkpoint_from_which_a_longer_one_goes_on(monkeypatch, tmp_path):
    monkeypatch.setattr(SaveClock, "is_due", lambda *_: True)  # a checkpoint after every round
    exp = fk.Experiment(dataset="digits", model="logistic", method="scaffold", rounds=2)
    study = StudyRuns(Machine("serial"), progress=False)
    for longer in (exp, exp.with_(rounds=4)):
        (run,) = study([Target(longer, tmp_path / "a", "scaffold")])
        assert len(list_checkpoints(tmp_path / "a" / "checkpoint")) == 1
    assert run.result == fk.run(exp.with_(rounds=4), engine="serial").result


SMALL = {"rounds": 2, "first": 1, "candidates": 2, "seeds": [5], "partition": "dirichlet:alpha=0.5,clients=3"}


TUNED = {"evaluation": {"model": "global", "tune": True, "report": "last"}}


@pytest.mark.parametrize("judged", [{}, pytest.param(TUNED, marks=pytest.mark.slow)])
def test_a_small_search_runs_and_the_same_command_trains_nothing_again(fedkeel, judged, drawn_only):
    Path("search.toml").write_text(tomli_w.dumps(BASE | SMALL | judged | {"partition_seed": 3}))
    done = fedkeel("search", "search.toml", "--engine", "serial", "--no-progress", "--json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert "composed" in [group["label"] for group in told["methods"]]
    out = Path("runs/search")
    lines = [json.loads(line) for line in (out / "search.jsonl").read_text().splitlines()]
    assert [line["rounds"] for line in lines if line["side"] == "composed"] == [1, 1, 2]
    page = (out / "report.html").read_text()
    assert f'data-group="g0-0"><td>{told["baseline"]}<' in page  # its differences are to the first row
    compared = fedkeel("compare", "runs/search", "--json")  # of the final runs, not of what was tried on the way
    methods = {group["label"]: group["last"] for group in json.loads(compared.out)["methods"]}
    assert methods == {group["label"]: group["last"] for group in told["methods"]}
    assert json.loads(compared.out)["baseline"] == told["baseline"]
    assert "differ in" not in compared.err
    winner = tomllib.loads((out / "winner.toml").read_text())
    assert fk.Experiment.load(winner).validation == 0.0
    assert "partition_seed" not in winner  # each seed divides the data anew, as in the final runs
    assert told["difference_of"] == ("reported" if judged else "last")  # no round is chosen on the test set
    stamps = {path: path.stat().st_mtime_ns for path in out.rglob("rounds.jsonl")}
    again = fedkeel("search", "search.toml", "--engine", "serial", "--no-progress", "--json")
    assert json.loads(again.out) == told
    assert stamps == {path: path.stat().st_mtime_ns for path in out.rglob("rounds.jsonl")}
    if judged:
        for kept in out.glob("tries/*/tuned-1.json"):  # version 1.0.0 kept none
            kept.unlink()
        older = fedkeel("search", "search.toml", "--engine", "serial", "--no-progress", "--json")
        assert json.loads(older.out) == told


@pytest.mark.slow
def test_a_problem_of_ones_own_is_searched_and_the_winner_names_it(fedkeel, monkeypatch):
    monkeypatch.syspath_prepend(str(Path.cwd()))
    module = "import fedkeel as fk\nfrom problems import small_problem\n\ndef mine() -> fk.Problem:\n"
    Path("own_wards.py").write_text(f"{module}    return small_problem(sizes=(10, 10, 10), test=8)\n")
    changes = {"problem": "own_wards:mine", "rounds": 2, "first": 1, "candidates": 2, "participation": 1.0}
    data = BASE | changes | {"parts": {"filter": {"none": []}}, "published": {"scaffold": {}}}
    for key in ("dataset", "model"):
        del data[key]
    Path("search.toml").write_text(tomli_w.dumps(data))
    asked = ("search", "search.toml", "--engine", "serial", "--no-progress")
    refused = fedkeel(*asked)
    assert refused.code == 2
    assert "the problem 'own_wards:mine'" in " ".join(refused.err.split())
    done = fedkeel(*asked, "--trust")
    assert done.code == 0, done.err
    assert "fedkeel run runs/search/winner.toml --trust" in " ".join(done.err.split())
    made = fedkeel(
        "run", "runs/search/winner.toml", "--trust", "--seeds", "5,6", "--engine", "serial", "--out", "again"
    )
    assert made.code == 0, made.err
    judged = {run.plan.seed: run.params for run in map(fk.load_run, Path("runs/search/final").glob("composed-*"))}
    for seed in (5, 6):
        again = fk.load_run(f"again/composed/{seed}").params
        assert all(torch.equal(again[name], leaf) for name, leaf in judged[seed].items())


def test_runs_of_a_problem_are_not_sent_to_ray():
    one = Target(fk.Experiment(problem=small_problem(), rounds=1), Path("a"), "mine")
    with pytest.raises(RequestError, match="not sent to other machines"):
        StudyRuns(Machine("serial"), progress=False, crew=object())([one])


@pytest.mark.slow
def test_the_page_of_a_search_counts_the_final_runs_that_failed(fedkeel, monkeypatch):
    train = StudyRuns.__call__

    def lose_the_last(study, targets):
        *runs, last = train(study, targets)
        return [*runs, None if "final" in targets[-1].folder.parts else last]

    monkeypatch.setattr(StudyRuns, "__call__", lose_the_last)
    Path("search.toml").write_text(tomli_w.dumps(BASE | SMALL | {"seeds": [5, 6]}))
    assert fedkeel("search", "search.toml", "--engine", "serial", "--no-progress").code == 1
    page = Path("runs/search/report.html").read_text()
    assert "over 1 of 2 seeds, since seed 6 gave no number; it leads in none of these." in page


def test_a_validation_share_too_small_for_any_client_is_told(fedkeel):
    Path("search.toml").write_text(tomli_w.dumps(BASE | SMALL | {"validation": 0.0001, "candidates": 1}))
    done = fedkeel("search", "search.toml", "--engine", "serial", "--no-progress")
    assert done.code == 1
    told = " ".join(done.err.split())
    assert "of the composed side that trained for 1 round failed: no client has a validation sample." in told
    assert "raise validation" in told


def test_candidates_that_all_diverge_are_told_with_their_reason(fedkeel):
    """The published side has none but a rate that diverges; what was tried is still printed."""
    wild = {"grid": {"lr": [1e38]}, "model": "mlp", "candidates": 1, "published": {"fedavg": {}}}
    Path("search.toml").write_text(tomli_w.dumps(BASE | SMALL | wild))
    done = fedkeel("search", "search.toml", "--engine", "serial", "--no-progress", "--json")
    assert done.code == 1
    told = json.loads(done.out)
    assert told["methods"] == []
    assert [one["score"] for one in told["search"]["published"][0]["scores"]] == [None]
    lines = " ".join(done.err.split())
    for side in ("composed", "published"):
        assert f"the {side} side that trained for 1 round failed: the loss or the model of client" in lines
    assert "the run failed" not in lines


@pytest.mark.slow
def test_another_search_needs_another_folder(fedkeel):
    file, words = Path("search.toml"), ["search", "search.toml", "--engine", "serial", "--no-progress"]
    failing = BASE | SMALL | {"validation": 0.0001, "candidates": 1}
    file.write_text(tomli_w.dumps(failing))
    assert fedkeel(*words).code == 1
    kept = Path("runs/search/search.jsonl").read_bytes()
    turned = dict(reversed(BASE["parts"].items()))  # in the order in which its rules are written
    file.write_text(tomli_w.dumps(failing | {"parts": turned, "first": 2}))
    refused = fedkeel(*words)
    assert refused.code == 2
    assert "runs/search holds another search (it differs in: first, parts)." in refused.err
    assert Path("runs/search/search.jsonl").read_bytes() == kept
    Path("runs/search/search.json").unlink()  # version 1.0.0 wrote none
    assert fedkeel(*words).code == 1


@pytest.mark.slow
def test_tries_of_other_data_are_refused_and_of_an_edited_rule_are_told(fedkeel, monkeypatch, drawn_only):
    Path("search.toml").write_text(tomli_w.dumps(BASE | SMALL))
    words = ["search", "search.toml", "--engine", "serial", "--no-progress"]
    assert fedkeel(*words).code == 0
    with monkeypatch.context() as patch:
        patch.setattr(own_code, "edited", lambda folder, parts: ["the module my_rules"])
        told = " ".join(fedkeel(*words).err.split())
    for folder in (path.parent for path in Path("runs/search").glob("*/*/experiment.toml")):
        assert f"the module my_rules has been edited since {folder} was made: this is the old result" in told
        facts = json.loads((folder / "environment.json").read_text())
        (folder / "environment.json").write_text(json.dumps(facts | {"data": "then"}))
    monkeypatch.setattr(environment, "data_digest", lambda plan: "now")
    refused = fedkeel(*words)
    assert refused.code == 2
    assert "was begun on other data: those of digits were then and are now now" in " ".join(refused.err.split())
    elsewhere = StudyRuns(Machine("serial"), False, crew=object())  # on workers it is no failure of a method
    with pytest.raises(fk.FolderError, match="was begun on other data"):
        elsewhere([Target(fk.load_run(folder).experiment, folder, "fedavg")])

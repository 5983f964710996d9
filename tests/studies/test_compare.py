"""Runs held against each other."""

import csv
import io
import json
import re
import shutil
import sys
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest
import torch
from small_runs import SMALL

import fedkeel as fk
from fedkeel.cli.compare import show_accuracy, show_cost
from fedkeel.cli.main import call
from fedkeel.report.content import content
from fedkeel.report.source import Source
from fedkeel.report.tables import summary
from fedkeel.runs.finished_run import Run
from fedkeel.runs.record import RoundRecord
from fedkeel.studies.caveats import judged_as, machines, unfair
from fedkeel.studies.compare import Comparison, common_target, cost_to, mean_and_std, paired_differences, write_rounds
from fedkeel.studies.publish import write_csv, write_latex
from fedkeel.studies.run_groups import group_runs
from problems import small_problem

ROUNDS = "rounds.jsonl"


def made(method, seed, accuracies, selected=(0,), **changes):
    exp = fk.Experiment(problem=small_problem(), method=method, seed=seed, rounds=len(accuracies), **changes)
    fixed = dict(loss=1.0, drift=1.0, backward_passes=10, bytes_down=6_000_000, bytes_up=4_000_000, seconds=2.0)
    records = [RoundRecord(i, list(selected), **fixed, accuracy=a) for i, a in enumerate(accuracies, 1)]
    return Run(exp, records, {"best": max(accuracies), "last": accuracies[-1]}, {}, None, None, None)


def test_runs_are_grouped_by_all_but_their_seed():
    runs = [made("fedavg", s, [0.5]) for s in (1, 0)] + [made("fedsam", 0, [0.6]), made("fedsam", 0, [0.7], lr=0.01)]
    groups = group_runs(runs)
    assert [group.label for group in groups] == ["fedavg", "fedsam (lr=0.1)", "fedsam (lr=0.01)"]
    assert list(groups[0].runs) == [0, 1]


def test_what_is_no_list_of_runs_is_refused_in_a_line():
    run = made("fedavg", 0, [0.5])
    for wrong, line in (
        (run, "takes a list of runs, not Run"),
        ("runs/a", "takes a list of runs, not str"),
        (Path("runs/a"), "takes a list of runs, not .*Path"),
        ({"a": run}, "takes a list of runs, not dict"),
        (None, "takes a list of runs, not NoneType"),
        ([run, 3], "are compared, not 3"),
        ([], "nothing to compare"),
    ):
        with pytest.raises(fk.RequestError, match=line) as refused:
            fk.compare(wrong)
        assert "fk.compare([run, another])" in refused.value.hint
    with pytest.raises(fk.RequestError, match="no run is of: 3"):
        fk.compare([run], baseline=3)
    for target, line in (("0.5", "is a number, not '0.5'"), (float("nan"), "nan"), (75, "hint: 75 % is 0.75")):
        with pytest.raises(fk.RequestError, match=line):
            fk.compare([run], target=target)


def measured(method, seed, **values):
    """A run with values of measures by round."""
    run = made(method, seed, [0.5] * len(next(iter(values.values()))))
    for number, record in enumerate(run.records):
        record.extra.update({name: each[number] for name, each in values.items()})
    return run


def test_runs_are_compared_by_another_measure_of_theirs():
    ours = [measured("fedavg", 0, f1=[0.2, 0.6, 0.5], ece=[0.3, 0.1, 0.2])]
    ours += [measured("fedsam", 0, f1=[0.3, 0.5, 0.7], ece=[0.5, 0.4, 0.3])]
    by_f1, by_ece = (fk.compare(ours, measure=name).document() for name in ("f1", "ece"))
    assert [one["best"]["mean"] for one in by_f1["methods"]] == [0.6, 0.7]
    assert [one["last"]["mean"] for one in by_f1["methods"]] == [0.5, 0.7]
    assert [one["best"]["mean"] for one in by_ece["methods"]] == [0.1, 0.3]  # of errors the lowest
    assert (by_f1["judged_on"], by_f1["target"], by_ece["target"]) == ("f1", 0.6, 0.3)  # what both reached
    assert [one["cost"]["rounds"] for one in by_f1["methods"]] == [2, 3]
    assert [one["cost"]["rounds"] for one in by_ece["methods"]] == [1, 3]
    assert fk.compare(ours).document()["judged_on"] == "accuracy"
    bold = {name: write_latex(fk.compare(ours, measure=name)).split(r"\mathbf")[0] for name in ("f1", "ece")}
    assert "fedsam" in bold["f1"]
    assert "fedsam" not in bold["ece"]
    with pytest.raises(fk.RequestError, match="no run has the measure: auc"):
        fk.compare(ours, measure="auc")


def test_loss_is_that_on_the_test_set_as_in_callbacks(capsys):
    """Training losses, 1 throughout, are asked for by name; without test data there are no others."""
    ours = [measured("fedavg", 0, test_loss=[0.5, 0.4]), measured("fedsam", 0, test_loss=[0.2, 0.3])]
    for name, best, words in (("loss", [0.4, 0.2], "test loss"), ("training_loss", [1.0, 1.0], "training loss")):
        compared = fk.compare(ours, measure=name)
        assert [one["best"]["mean"] for one in compared.document()["methods"]] == best
        assert f"% {words}, mean" in write_latex(compared)
        assert {row["measure"] for row in csv.DictReader(io.StringIO(write_csv(compared)))} == {words}
        show_accuracy(compared)
        show_cost(compared)
        shown = capsys.readouterr().out
        assert f"the numbers are {words}" in shown
        assert f"to a {words} of" in shown
    untested = fk.compare([made("fedavg", 0, [0.5])], measure="loss").document()
    assert untested["methods"][0]["best"]["mean"] == 1.0


def test_a_run_without_the_measure_has_no_number():
    some = fk.compare([measured("fedavg", 0, f1=[0.2]), made("fedsam", 0, [0.9])], measure="f1").document()
    assert [one["best"]["mean"] for one in some["methods"]] == [0.2, None]
    assert some["methods"][1]["difference"] is None


def test_the_baseline_is_also_found_by_the_name_under_which_its_runs_were_made():
    def kept(path, method, seed):
        return replace(made(method, seed, [0.5]), path=Path(path))

    below = [kept("runs/mine-init/0", "fedprox", 0), kept("runs/mine-init/1", "fedprox", 1)]
    for own in (below, [kept("runs/mine-init-0123456789ab", "fedprox", 0)]):
        groups = group_runs([made("fedavg", 0, [0.5]), *own])
        assert Comparison.of(groups, "mine:init").baseline.label == "fedprox"
        with pytest.raises(fk.RequestError, match="no run is of: mine:other"):
            Comparison.of(groups, "mine:other")
    several = group_runs([below[0], kept("runs/mine-init/0", "fedsam", 0)])
    with pytest.raises(fk.RequestError, match="no run is of: mine:init"):
        Comparison.of(several, "mine:init")


def test_a_run_that_leaves_out_what_another_sets_names_its_key():
    runs = [made("fedavg", 0, [0.5]), made("fedavg", 0, [0.6], clip=1.0)]
    assert [group.label for group in group_runs(runs)] == ["fedavg (default clip)", "fedavg (clip=1.0)"]


@pytest.mark.slow
def test_seeds_that_divide_the_same_data_of_ones_own_are_one_method(tmp_path):
    """In memory and read from folders; other data, another partition or network are told apart, and a folder that does
    not say what was divided is compared by its own digest."""
    target = torch.arange(60) % 3
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0)) + target[:, None]
    small = {"rounds": 1, "participation": 1.0, "epochs": 1, "lr": 0.05, "batch_size": 20}

    def train(seed, method="fedavg", shift=0.0, partition="iid:clients=3", model="logistic"):
        data = {"train": (x[:40] + shift, target[:40]), "test": (x[40:], target[40:])}
        asked = fk.Experiment(data=data, model=model, partition=partition, method=method, seed=seed, **small)
        return fk.run(asked, out=tmp_path / f"{len([*tmp_path.iterdir()])}", engine="serial")

    runs = [train(seed, method) for seed in (0, 1, 2) for method in ("fedavg", "feddyn")]
    assert len({run.experiment.fingerprint() for run in runs}) == 6
    for found in (runs, [fk.load_run(run.path) for run in runs]):
        groups = group_runs(found)
        assert [(group.label, list(group.runs)) for group in groups] == [("fedavg", [0, 1, 2]), ("feddyn", [0, 1, 2])]
        assert Comparison.of(groups).difference(groups[1]).pairs == 3
        assert unfair(groups) == []
    assert content([Source.read(run.path) for run in runs]).repeated
    others = [train(3, shift=1.0), train(3, partition="iid:clients=4"), train(3, model="mlp")]
    assert len(group_runs([runs[0], *others])) == 4
    for run in runs:
        there = run.path / "environment.json"
        there.write_text(json.dumps({k: v for k, v in json.loads(there.read_text()).items() if k != "undivided"}))
    assert len(group_runs([fk.load_run(run.path) for run in runs])) == 6


def test_losses_with_other_weights_are_not_taken_for_one_run():
    losses = [torch.nn.CrossEntropyLoss(weight=torch.tensor([1.0, 1.0, last])) for last in (1.0, 5.0)]
    runs = [replace(made("fedavg", 0, [0.5]), experiment=with_loss(loss)) for loss in losses]
    assert len(group_runs(runs)) == 2
    assert unfair(group_runs(runs)) == ["functions"]


def with_loss(loss):
    return fk.Experiment(problem=replace(small_problem(), loss=loss), method="fedavg", rounds=1)


def test_differences_are_paired_by_seed():
    ours = group_runs([made("fedsam", s, [v]) for s, v in enumerate((0.6, 0.8, 0.7))])[0]
    base = group_runs([made("fedavg", s, [v]) for s, v in enumerate((0.5, 0.6, 0.7, 0.9))])[0]
    told = paired_differences(ours.values("best"), base.values("best"))
    assert told.pairs == 3
    assert told.mean == pytest.approx(0.1)  # of 0.1, 0.2, 0.0
    half = 4.302653 * 0.1 / 3**0.5  # Student's t of two degrees of freedom; their deviation is 0.1
    assert (told.low, told.high) == pytest.approx((0.1 - half, 0.1 + half), abs=1e-6)
    assert paired_differences({0: 0.6}, base.values("best")).low is None
    assert paired_differences({7: 0.6}, base.values("best")) is None


def test_cost_to_a_target_counts_up_to_the_round_that_reached_it(capsys):
    curves = ([0.1, 0.5, 0.4], [0.6, 0.5, 0.4], [0.1, 0.1, 0.1])
    (group,) = group_runs([made("fedavg", seed, curve) for seed, curve in enumerate(curves)])
    cost = cost_to(group, 0.5)
    assert (cost.reached, cost.rounds, cost.megabytes, cost.seconds, cost.gradients) == (2, 1.5, 15.0, 3.0, 15.0)
    assert cost_to(group, 0.9) is None
    assert [write_rounds(mean) for mean in (cost.rounds, 4.0, 38 / 3, 250.0)] == ["1.5", "4", "12.7", "250"]
    show_cost(Comparison([group], group, 0.5))
    row = next(line for line in capsys.readouterr().out.splitlines() if "fedavg" in line)
    assert "  ".join(row.split()).startswith("fedavg  2  of  3  1.5  15  MB  3")
    (rare,) = group_runs([made("fedavg", 0, [0.6, 0.1, 0.7, 0.8], evaluate_every=2)])
    assert cost_to(rare, 0.6).rounds == 4  # the run once ended in the first and the third round


def fitted(method, losses):
    run = made(method, 0, [0.0] * len(losses))
    records = [replace(r, accuracy=None, extra={"test_loss": v}) for r, v in zip(run.records, losses, strict=True)]
    return replace(run, records=records, result={"best": min(losses), "last": losses[-1]})


def test_an_accuracy_and_a_loss_have_no_difference():
    groups = group_runs([made("fedavg", 0, [0.5, 0.7]), fitted("fedsam", [2.0, 0.5])])
    assert Comparison.of(groups, target=0.5).document()["methods"][1]["difference"] is None
    assert unfair(groups) == ["what they are judged on (accuracy, test_loss)"]


def test_runs_without_an_accuracy_are_compared_by_their_losses():
    groups = group_runs([fitted("fedavg", [3.0, 1.5, 1.0]), fitted("fedsam", [2.0, 0.5, 0.75])])
    target = common_target(groups)
    assert target == 1.0  # both came down to it
    found = Comparison(groups, groups[0], target).document()
    assert found["judged_on"] == "test_loss"
    assert [one["cost"]["rounds"] for one in found["methods"]] == [3, 2]


def test_what_else_differs_is_said():
    rates = group_runs([made("fedavg", 0, [0.5]), made("fedsam", 1, [0.5], lr=0.01)])
    assert unfair(rates) == ["lr"]
    assert unfair(rates, tuned={"lr"}) == []  # each method chose its own
    assert unfair(group_runs([made("fedavg", 0, [0.5]), made("fedsam", 0, [0.5], participation=0.5)])) == [
        "participation"
    ]


def test_runs_of_one_seed_have_one_split_and_one_sequence_of_clients():
    base = made("fedavg", 0, [0.5, 0.6])
    assert unfair(group_runs([base, made("fedsam", 0, [0.5])])) == ["rounds"]  # the rounds both have are the same
    assert unfair(group_runs([base, made("fedsam", 0, [0.5, 0.6], selected=(1,))])) == ["selected clients"]
    assert unfair(group_runs([base, made("fedsam", 1, [0.5, 0.6], selected=(1,))])) == []  # another seed, other clients
    assert unfair(group_runs([base, made("fedsam", 0, [0.5, 0.6], partition_seed=7)])) == ["partition_seed"]


def test_a_method_that_takes_samples_from_the_clients_is_told():
    kept = "samples that the server takes from the clients"
    assert unfair(group_runs([made("fedavg", 0, [0.5]), made("fedlaw", 0, [0.5])])) == [kept]
    assert unfair(group_runs([made("fedlaw", s, [0.5]) for s in (0, 1)])) == []


def test_a_comparison_as_data():
    groups = group_runs([made(m, s, [v]) for m, v in (("fedavg", 0.5), ("fedsam", 0.6)) for s in (0, 1)])
    assert common_target(groups) == 0.5
    found = Comparison(groups, groups[0], 0.55).document()
    plain, sam = found["methods"]
    assert plain["cost"] is None
    assert plain["difference"] is None
    assert sam["best"] == {"mean": pytest.approx(0.6), "std": 0.0}
    assert sam["difference"]["mean"] == pytest.approx(0.1)
    assert sam["cost"]["gradients"] == 10


def test_what_is_reported_is_compared_where_every_run_tells_it():
    def personal(method, seed, best, reported):
        run = made(method, seed, [best], evaluation={"report": "last"})
        return replace(run, result=run.result | ({} if reported is None else {"reported": reported}))

    whole = group_runs([personal(m, s, 0.9, v) for m, v in (("fedavg", 0.5), ("fedper", 0.7)) for s in (0, 1)])
    found = Comparison(whole, whole[0], 0.5).document()
    assert found["difference_of"] == "reported"
    assert [one["reported"]["mean"] for one in found["methods"]] == pytest.approx([0.5, 0.7])
    assert found["methods"][1]["difference"]["mean"] == pytest.approx(0.2)
    partly = group_runs([personal("fedavg", 0, 0.9, 0.5), personal("fedper", 0, 0.8, None)])
    found = Comparison(partly, partly[0], 0.5).document()
    assert found["difference_of"] == "best"
    assert found["methods"][1]["difference"]["mean"] == pytest.approx(-0.1)
    assert judged_as(group_runs([made("fedavg", 0, [0.5])])) == []


def test_means():
    assert mean_and_std([]) == (None, None)
    assert mean_and_std([2.0]) == (2.0, None)
    assert mean_and_std([1.0, 3.0]) == (2.0, pytest.approx(2**0.5))


# ---- the command ---------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    small = ["--dataset", "digits", "--model", "logistic", "--partition", "iid:clients=4", "--rounds", "3"]
    asked = ["run", "--method", "fedavg,scaffold", "--seeds", "0,1,2", *small, "--out", str(out), "--no-progress"]
    assert call([*asked, "--engine", "serial"]) == 0
    return out


@pytest.mark.slow
def test_the_command_tells_what_the_folders_hold(folders, capsys):
    target = 0.89  # reached after the first round
    assert call(["compare", str(folders), "--json", "--target", str(target), "--baseline", "scaffold"]) == 0
    told = capsys.readouterr()
    assert told.err == ""  # nothing else differs
    plain, other = json.loads(told.out)["methods"]
    records = {
        (method, seed): [json.loads(line) for line in (folders / method / str(seed) / ROUNDS).read_text().splitlines()]
        for method in ("fedavg", "scaffold")
        for seed in range(3)
    }
    for seed in range(3):
        assert len({repr([r["selected"] for r in records[m, seed]]) for m in ("fedavg", "scaffold")}) == 1
    best = {run: max(record["accuracy"] for record in found) for run, found in records.items()}
    gaps = [best["fedavg", seed] - best["scaffold", seed] for seed in range(3)]
    assert plain["difference"]["mean"] == pytest.approx(sum(gaps) / 3)
    assert other["difference"] is None
    reached = [next(r["round"] for r in records["scaffold", s] if r["accuracy"] >= target) for s in range(3)]
    sent = [r["bytes_up"] + r["bytes_down"] for s in range(3) for r in records["scaffold", s][: reached[s]]]
    assert other["cost"]["megabytes"] == pytest.approx(sum(sent) / 3e6)
    assert other["cost"]["rounds"] == pytest.approx(sum(reached) / 3)
    assert max(reached) > 1


def test_means_over_the_runs_that_reached_a_target_are_called_so(folders, capsys):
    best = sorted(json.loads(file.read_text())["best"] for file in folders.glob("fedavg/*/result.json"))
    for target, said in ((best[0], False), (best[-1], True)):
        assert call(["compare", str(folders / "fedavg"), "--target", str(target)]) == 0
        assert ("means over the runs that reached it" in capsys.readouterr().out) is said


def test_runs_that_lie_too_deep_are_told_from_none(folders, tmp_path, capsys):
    shutil.copytree(folders, tmp_path / "alpha" / "0.1")
    assert call(["compare", str(tmp_path / "alpha")]) == 2
    assert f"give these: {tmp_path / 'alpha'}/*" in capsys.readouterr().err


def test_runs_given_twice_and_seconds_of_other_machines_are_told(folders, tmp_path, capsys):
    again = tmp_path / "again"
    shutil.copytree(folders / "fedavg" / "0", again)
    data = json.loads((again / "environment.json").read_text())
    (again / "environment.json").write_text(json.dumps(data | {"engine": "stacked", "engines": []}))
    assert call(["compare", str(folders), str(folders / "fedavg"), str(again)]) == 0
    told = capsys.readouterr().err
    assert "1 run is of an experiment and seed given later, and left out" in told  # a folder named twice is one
    assert re.search(
        "seconds are of different machines or engines: cpu serial float32.*; cpu stacked float32.*; none are", told
    )
    assert machines(group_runs([made("fedavg", 0, [0.5])])) == []  # in memory alone


def test_seconds_of_several_machines_or_engines_are_not_averaged(tmp_path):
    """Two seeds took 2 s a round on one engine, a third 2 s on another machine that is said to take 100."""
    runs = [replace(made("fedavg", seed, [0.5, 0.6]), path=tmp_path / str(seed)) for seed in range(3)]
    slow = [replace(record, seconds=100.0) for record in runs[2].records]
    runs[2] = replace(runs[2], records=slow)
    for run, engine in zip(runs, ("serial", "serial", "processes"), strict=True):
        run.path.mkdir()
        place = {"device": "cpu", "engine": engine, "precision": "float32", "machine": "a, 2 cores"}
        (run.path / "environment.json").write_text(json.dumps(place))
    (group,) = group_runs(runs)
    assert cost_to(group, 0.6).seconds == pytest.approx(4.0)
    assert cost_to(group, 0.6).reached == 3
    other = {"device": "cpu", "engine": "serial", "precision": "float32", "machine": "b, 8 cores"}
    (runs[2].path / "environment.json").write_text(json.dumps(other))
    assert cost_to(group, 0.6).seconds == pytest.approx(4.0)
    assert len(machines([group])) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--target", "75"], "75 % is 0.75"),
        (["--target", "-1"], "above 0"),
        (["--baseline", "fedavgg"], "did you mean 'fedavg'"),
    ],
)
def test_wrong_comparisons_are_refused(folders, capsys, words, message):
    assert call(["compare", str(folders), *words]) == 2
    assert message in capsys.readouterr().err


def tables_of(text):
    """Rows by their first word."""
    return {line.split()[0]: line for line in reversed(text.splitlines()) if line.strip()}


@pytest.fixture
def two(trained):
    """A run of two rounds, and one that broke off after the second of five."""
    trained("--method", "fedavg,fedsam", "--out", "here")
    file = Path("here/fedsam/0/experiment.toml")
    file.write_text(file.read_text().replace("rounds = 2", "rounds = 5"))
    return Path("here")


def test_an_unfinished_run_is_named(fedkeel, two):
    done = fedkeel("compare", two)
    assert done.code == 0
    assert "note: fedsam is not finished: it stands at round 2 of 5" in done.err
    assert "fedavg is not finished" not in done.err


def test_a_run_whose_rounds_are_damaged_is_named(fedkeel, two):
    file = two / "fedavg" / "0" / "rounds.jsonl"
    file.write_text(file.read_text().splitlines()[0] + "\nnot JSON\n")
    done = fedkeel("compare", two)
    assert (done.code, done.out) == (2, "")
    assert f"error: {file.resolve()} is damaged in line 2" in done.err


def test_a_failed_run_does_not_change_the_unit_of_the_others(fedkeel, trained):
    trained("--method", "fedavg", "--out", "here/fedavg/0")
    before = tables_of(fedkeel("compare", "here").out)["fedavg"]
    words = ["--method", "fedprox", "--set", "lr=1e30", "--set", "epochs=3", "--out", "here/fedprox/0"]
    assert fedkeel("run", *SMALL, "--rounds", "2", *words).code == 1
    after = tables_of(fedkeel("compare", "here").out)
    assert after["fedavg"].split() == before.split()
    assert after["fedavg"].count("%") == 3
    assert "–" in after["fedprox"]


def test_runs_of_one_seed_that_differ_in_split_or_length_are_told_apart():
    def train(**changes):
        settings = {"dataset": "digits", "model": "logistic", "rounds": 1, "epochs": 1, "seed": 0} | changes
        return fk.run(fk.Experiment(partition="dirichlet:alpha=0.5,clients=4", **settings), engine="serial")

    first, split, longer = train(), train(partition_seed=7), train(rounds=2)
    for runs, words in (
        ([first, split], ["partition_seed=0", "partition_seed=7"]),
        ([first, longer], ["rounds=1", "rounds=2"]),
    ):
        for order in (runs, runs[::-1]):
            labels = sorted(group.label for group in fk.compare(order).groups)
            assert labels == [f"fedavg ({word})" for word in words]
    seeds = [train(seed=0, partition_seed=7), train(seed=1, partition_seed=8)]
    (group,) = fk.compare(seeds).groups
    assert list(group.runs) == [0, 1]


@pytest.mark.parametrize(
    ("pairs", "groups"),
    [
        ([(0, 5), (1, 5), (0, 0), (1, 1)], {"partition_seed=5": [0, 1], "a split for each seed": [0, 1]}),
        ([(0, 7), (7, 7), (0, 0), (1, 1)], {"partition_seed=7": [0, 7], "a split for each seed": [0, 1]}),
        ([(0, 1), (0, 2), (1, 8)], {"partition_seed=1": [0], "partition_seed=2": [0], "partition_seed=8": [1]}),
    ],
)
def test_groups_by_split_do_not_depend_on_the_order_of_runs(pairs, groups):
    """Pairs of a run's seed and its split; the runs are alike in all else."""
    runs = [made("fedavg", seed, [0.5], partition_seed=split) for seed, split in pairs]
    for order in permutations(runs):
        assert {group.label: list(group.runs) for group in group_runs(order)} == {
            f"fedavg ({word})": seeds for word, seeds in groups.items()
        }


def test_a_list_is_one_setting_of_a_label():
    runs = [made("fedavg", 0, [0.5, 0.6], participants=given) for given in ([[0, 1], [2, 3]], [[0, 4], [2, 5]])]
    assert [group.label for group in group_runs(runs)] == ["fedavg (participants=1 3)", "fedavg (participants=4 5)"]
    for count, longest in ((1, 20), (100, 60)):
        many = [made("fedavg", 0, [0.5] * count, participants=[[client]] * count) for client in (0, 1)]
        assert all(len(group.label) <= len("fedavg ()") + longest for group in group_runs(many))


def test_a_label_tells_settings_and_splits():
    """Two rates on one split, one of them also on splits of each seed's own."""
    runs = [made("fedavg", seed, [0.5], partition_seed=5, lr=lr) for seed in (0, 1) for lr in (0.1, 0.2)]
    runs += [made("fedavg", seed, [0.5], lr=0.1) for seed in (0, 1)]
    labels = [group.label for group in group_runs(runs)]
    assert sorted(labels) == sorted(
        ["fedavg (lr=0.1, partition_seed=5)", "fedavg (lr=0.1, a split for each seed)", "fedavg (lr=0.2)"]
    )


EDITED = """
from dataclasses import dataclass
import fedkeel as fk


@dataclass(frozen=True)
class Scaled(fk.Rule):
    def step(self, tree, client, at):
        return {by} * tree, client


def scaled() -> fk.Method:
    return fk.method("scaled", gradient=[Scaled()], weights=fk.BySize())
"""


def test_seeds_of_code_that_was_edited_between_them_are_told(fedkeel, caplog):
    """Two seeds before, one after; in the report and in Python, too, and where the older run of a seed is left out."""

    def train(by, *more):
        Path("edited_rule.py").write_text(EDITED.format(by=by))
        asked = ["run", *SMALL, "--rounds", "1", "--method", "edited_rule:scaled", "--engine", "serial", *more]
        assert fedkeel(*asked).code == 0
        sys.modules.pop("edited_rule")

    train(0.5, "--seeds", "0,1", "--out", "all")
    assert "edited" not in fedkeel("compare", "all").err
    train(0.25, "--seeds", "2", "--out", "all/edited_rule-scaled/2")
    train(0.25, "--seeds", "0", "--out", "new")
    told = "the module edited_rule was edited between these runs, which are of different code: "
    assert f"note: {told}scaled seeds 0 and 1; scaled seed 2\n" in fedkeel("compare", "all", "--latex").err
    caplog.clear()
    runs = [Path("all", "edited_rule-scaled", str(seed)) for seed in range(3)]
    assert fk.compare(runs).document()["edited"] == [f"{told}scaled seeds 0 and 1; scaled seed 2"]
    assert f"{told}scaled seeds 0 and 1; scaled seed 2" in caplog.text
    (setting,) = content([Source.read(path) for path in runs]).settings
    assert f"T{told[1:]}scaled seeds 0 and 1; scaled seed 2." in summary(setting)
    old, new = runs[0], Path("new")
    left = fedkeel("compare", old, new).err
    assert "left out" in left
    assert f"{told}{old.resolve()} seed 0; {new.resolve()} seed 0" in left


def test_policies_that_differ_are_told_apart_and_named_by_what_is_unusual():
    def run(**changes):
        given = dict(dataset="digits", model="logistic", rounds=1, epochs=1, partition="dirichlet:alpha=0.3,clients=4")
        return fk.run(fk.Experiment(**given | changes))

    groups = group_runs([run(), run(evaluation={"model": "local"}), run(evaluation={"model": "global", "share": 0.4})])
    labels = [group.label for group in groups]
    assert labels[0] == "fedavg (the server's model)"
    assert "model=local" in labels[1]
    assert "share=0.4" in labels[2]
    assert not any("batch=128" in label for label in labels)
    assert [line.split(": ")[0] for line in judged_as(groups)] == labels


def test_what_was_tuned_in_a_table_of_settings_is_no_difference():
    groups = group_runs(
        [
            fk.run(
                fk.Experiment(dataset="digits", model="logistic", rounds=3, epochs=1, method=name, schedule=schedule)
            )
            for name, schedule in (
                ("fedavg", {"name": "cosine", "warmup": 1}),
                ("fedprox", {"name": "cosine", "warmup": 0}),
            )
        ]
    )
    assert unfair(groups) == ["schedule"]
    assert unfair(groups, {"schedule.warmup"}) == []

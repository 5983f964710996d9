"""What a report says: numbers against hand-made ones, labels, refusals, size."""

import json
import math
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
from invented import made_up, record
from matplotlib.backends.backend_agg import FigureCanvasAgg

import fedkeel as fk
from fedkeel.cli.training import runs_in
from fedkeel.report import figures
from fedkeel.report.content import SPENT, Setting, content, look, ranked
from fedkeel.report.diagnostic_figures import diagnostic_charts
from fedkeel.report.drawing import embed, finish, lay_out, new_axes, styled
from fedkeel.report.figures import write_figures
from fedkeel.report.labels import label_tables
from fedkeel.report.numbers import numbers
from fedkeel.report.page import MOST_BYTES, page, write_report
from fedkeel.report.series import Spread, common_target, critical, curve, measures, row, spectra, spent_by, thinned
from fedkeel.report.source import Group, Source, groups_of
from fedkeel.report.sweeps import find_sweeps, trials_of_runs
from fedkeel.report.tables import differences, leaders, summary
from fedkeel.runs.prepare import problem_of
from fedkeel.studies.diagnose import write_diagnostic
from problems import small_problem


def read(*folders):
    return [Source.read(folder) for folder in folders]


def test_seeds_are_gathered_and_methods_told_apart(tmp_path):
    folders = [made_up(tmp_path / f"a{seed}", seed=seed) for seed in range(3)]
    folders += [made_up(tmp_path / f"s{rho}", method={"name": "fedsam", "rho": rho}) for rho in (0.05, 0.1)]
    folders.append(made_up(tmp_path / "p", method="fedprox", lr=0.02))
    groups = groups_of(read(*folders))
    assert [group.label for group in groups] == ["fedavg", "fedsam rho=0.05", "fedsam rho=0.1", "fedprox"]
    assert [len(group.runs) for group in groups] == [3, 1, 1, 1]
    assert len({group.setting for group in groups}) == 1


def test_labels_that_coincide_name_the_key_that_differs(tmp_path):
    """Rates that few digits do not tell apart, and problems of one title."""
    groups = groups_of(read(*(made_up(tmp_path / str(lr), lr=lr, tracked=False) for lr in (0.1234567, 0.1234568, 0.2))))
    assert [group.label for group in groups] == [
        "fedavg lr=0.123457", "fedavg lr=0.123457 (2, another lr)", "fedavg lr=0.2"
    ]  # fmt: skip
    for name in "abc":
        folder = made_up(tmp_path / name, rounds=1, tracked=False)
        text = (folder / "experiment.toml").read_text()
        (folder / "experiment.toml").write_text(text.replace('dataset = "digits"', f'problem = "python:{name}"'))
        (folder / "clients.json").write_text('{"problem": "mine", "sizes": [1]}')
    groups = groups_of(read(*(tmp_path / name for name in "abc")))
    assert [group.label for group in groups] == ["fedavg", "fedavg (2, another problem)", "fedavg (3, another problem)"]


def test_a_repeat_is_left_out_and_the_page_says_so(tmp_path, drawn_only):
    """Of runs with the same seeds the one that went furthest counts, of those that went as far the last."""
    folders = [made_up(tmp_path / name, seed=seed) for name, seed in (("0", 0), ("0-again", 0), ("1", 1))]
    folders.append(made_up(tmp_path / "0-begun", tracked=False))
    lines = (folders[3] / "rounds.jsonl").read_text().splitlines()
    (folders[3] / "rounds.jsonl").write_text("\n".join(lines[:5]) + "\n")
    folders.append(made_up(tmp_path / "2", seed=0))
    text = (folders[4] / "experiment.toml").read_text()
    (folders[4] / "experiment.toml").write_text(text.replace("partition_seed = 0", "partition_seed = 2"))
    made = content(read(*folders))
    (group,) = made.settings[0].groups
    assert [run.path.name for run in group.runs] == ["0-again", "1", "2"]
    assert [run.path.name for run in group.repeats] == ["0", "0-begun"]
    text = page(made)
    assert made.runs == 3
    assert f"fedavg, seed 0: {folders[0]} is left out" in text
    assert "Runs of one seed differ in their partition seeds." in text


def test_a_repeat_that_was_analysed_is_kept(tmp_path):
    folders = [made_up(tmp_path / name) for name in ("0", "0-again")]
    write_diagnostic(folders[0], "drift", {"mean": 2.0})
    (group,) = groups_of(read(*folders))
    assert [run.path.name for run in group.runs] == ["0"]
    lines = (folders[0] / "rounds.jsonl").read_text().splitlines()
    (folders[0] / "rounds.jsonl").write_text("\n".join(lines[:5]) + "\n")
    (group,) = groups_of(read(*folders))
    assert [run.path.name for run in group.runs] == ["0-again"], "which went further"


def test_runs_of_another_length_are_no_seeds_of_the_same_experiment(tmp_path):
    made = content(read(made_up(tmp_path / "a", rounds=3), made_up(tmp_path / "b", rounds=8)))
    assert [group.label for group in made.settings[0].groups] == ["fedavg rounds=3", "fedavg rounds=8"]
    assert not made.repeated
    assert not find_sweeps(trials_of_runs(made))


def test_settings_are_kept_apart(tmp_path):
    folders = [made_up(tmp_path / f"{alpha}", partition=fk.Dirichlet(alpha=alpha, clients=20)) for alpha in (0.1, 1.0)]
    made = content(read(*folders))
    assert len(made.settings) == 2
    assert [setting.groups[0].label for setting in made.settings] == ["fedavg", "fedavg"]
    assert "alpha=0.1" in made.settings[0].name


def test_curves_are_means_over_seeds_with_the_deviation_of_a_sample(tmp_path):
    group = groups_of(read(*(made_up(tmp_path / str(seed), seed=seed) for seed in range(3))))[0]
    found = curve(group, "accuracy")
    expected = [0.8 * (1 - math.exp(-t / 8)) + 0.01 for t in range(1, 21)]  # seeds add 0, 0.01 and 0.02
    assert found.mean == pytest.approx(expected)
    assert found.deviation == pytest.approx([0.01] * 20)
    assert spent_by(group, "seconds", [1, 4, 20]) == pytest.approx([0.25, 1.0, 5.0])
    assert spent_by(group, "bytes", [20]) == [30_000]
    assert curve(group, "nothing") is None


def test_differences_are_told_with_their_interval_where_seeds_can_be_paired(tmp_path):
    folders = [made_up(tmp_path / f"a{seed}", seed=seed) for seed in range(3)]
    folders += [made_up(tmp_path / f"p{seed}", method="fedprox", seed=seed) for seed in range(3)]
    rounds = folders[3] / "rounds.jsonl"
    lines = [json.loads(line) for line in rounds.read_text().splitlines()]
    rounds.write_text("".join(json.dumps(line | {"accuracy": line["accuracy"] - 0.03}) + "\n" for line in lines))
    [setting] = content(read(*folders)).settings
    best, last = differences(setting, "accuracy")
    # −3, 0 and 0 points: the mean is −1, the standard error 1, and Student's t of two degrees of freedom 4.303
    assert best == "Best of fedprox less best of fedavg: -1 points; 95 % interval -5.3 to +3.3, 3 seeds paired."
    assert last == best.replace("Best", "Last").replace("best", "last")  # the curves rise to their end
    [alone] = content(read(folders[0], folders[3])).settings
    assert differences(alone, "accuracy") == []
    for folder, number in zip(folders, (0.5, 0.5, 0.5, 0.6, 0.5, 0.4), strict=True):  # as an evaluation reports them
        (folder / "result.json").write_text(json.dumps({"rounds": 20, "reported": number}))
    [setting] = content(read(*folders)).settings
    [told] = differences(setting, "accuracy")
    # +10, 0 and −10 points: the standard error is 10 / √3
    names = "Reported number of fedprox less reported number of fedavg"
    assert told == f"{names}: +0 points; 95 % interval -24.8 to +24.8, 3 seeds paired."
    (folders[0] / "result.json").unlink()  # not every run has one
    [setting] = content(read(*folders)).settings
    assert differences(setting, "accuracy")[0].startswith("Best of fedprox")


def test_a_difference_of_losses_is_not_in_points(tmp_path):
    def group(label, *losses):
        records = [[record(1, extra={"test_loss": loss})] for loss in losses]
        return Group(label, "", [Source(tmp_path, {"seed": s}, "", each, {}, {}) for s, each in enumerate(records)])

    told = differences(setting_of(group("a", 0.5, 0.5), group("b", 0.5, 0.25)), "test_loss")
    assert told[0].startswith("Best of b less best of a: -0.125; 95 % interval")


def test_what_was_spent_is_of_the_runs_that_got_there_and_seconds_of_a_place_that_did(tmp_path):
    def run(seed, engine, *seconds):
        records = [record(n, seconds=s, bytes_up=int(1000 * s)) for n, s in enumerate(seconds, 1)]
        return Source(tmp_path, {"seed": seed}, "", records, {"engine": engine}, {})

    group = Group("", "", [run(0, "serial", 2.0), run(1, "serial", 2.0), run(2, "stacked", 5.0, 5.0)])
    assert spent_by(group, "bytes", [1, 2]) == [4000, 12000]
    assert spent_by(group, "seconds", [1, 2]) == [5, 10]


def test_a_reported_accuracy_is_not_subtracted_from_a_reported_loss(tmp_path):
    folders = [made_up(tmp_path / f"a{seed}", seed=seed) for seed in range(3)]
    folders += [made_up(tmp_path / f"p{seed}", method="fedprox", seed=seed) for seed in range(3)]
    for folder, number in zip(folders, (0.5, 0.5, 0.5, 0.6, 0.5, 0.4), strict=True):
        (folder / "result.json").write_text(json.dumps({"rounds": 20, "reported": number}))
    for folder in folders[3:]:
        lines = [json.loads(line) | {"accuracy": None} for line in (folder / "rounds.jsonl").read_text().splitlines()]
        (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    [setting] = content(read(*folders)).settings
    assert [group.measure for group in setting.groups] == ["accuracy", "test_loss"]
    assert differences(setting, "accuracy") == []


def test_seconds_of_several_engines_are_not_averaged_and_the_page_says_so(tmp_path, data_of, drawn_only):
    """Two seeds of 0.25 s a round on one engine, a third of 10 s on another."""
    folders = [made_up(tmp_path / f"a{seed}", seed=seed, tracked=False) for seed in range(3)]
    lines = [json.loads(line) | {"seconds": 10.0} for line in (folders[2] / "rounds.jsonl").read_text().splitlines()]
    (folders[2] / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folders[2] / "environment.json").write_text(json.dumps({"engine": "stacked"}))
    made = content(read(*folders), target=0.5)  # which all three reach after round 8
    (group,) = made.settings[0].groups
    assert spent_by(group, "seconds", [4, 20]) == pytest.approx([1.0, 5.0])
    assert spent_by(group, "bytes", [4]) == pytest.approx([6000.0])
    text = page(made)
    assert 'data-value="5">5.0 s</td>' in text
    assert 'data-value="2">2.0 s</td>' in text, "to the target"
    assert "Times are of different machines or engines: serial; stacked; none are averaged across" in text
    assert data_of(text)["settings"][0]["groups"][0]["seconds"][-1] == 5


def test_spread_leaves_out_what_is_missing():
    assert Spread.of([None, math.nan]) is None
    assert Spread.of([1.0, None, 3.0]) == Spread(2.0, math.sqrt(2), 2)
    assert Spread.of([4.0]) == Spread(4.0, 0.0, 1)


def test_a_seed_without_a_number_is_counted_and_its_method_leads_in_nothing(tmp_path):
    """The last loss of the better method is not finite with one of two seeds."""

    def source(seed, *losses):
        records = [record(n, extra={"test_loss": value}) for n, value in enumerate(losses, 1)]
        return Source(tmp_path, {"seed": seed, "rounds": 2}, "", records, {}, {})

    groups = [Group("a", "", [source(0, 0.5, 0.4), source(1, 0.5, 0.4)]),
              Group("b", "", [source(0, 0.1, None), source(1, 0.1, 0.1)]),
              Group("c", "", [source(0, 0.5, 0.5), source(1, 0.5, 0.5)])]  # fmt: skip
    rows = [row(group, None) for group in groups]
    assert leaders(rows, "test_loss", ("best", "last")) == [rows[1], rows[0]]
    text = summary(Setting(0, "", groups, rows, [], None))
    assert '<td>b</td><td data-value="2">1 of 2</td>' in text
    assert "b: last, mean of last over 1 of 2 seeds, since seed 0 gave no number" in text


def test_a_seed_whose_run_failed_is_counted_and_its_method_leads_in_nothing(tmp_path):
    """The better method has runs of two seeds of three."""
    folders = [made_up(tmp_path / f"a{seed}", seed=seed, tracked=False) for seed in (1, 2, 3)]
    folders += [
        made_up(tmp_path / f"p{seed}", seed=seed, tracked=False, method="fedprox", level=0.9) for seed in (1, 3)
    ]
    made = [content(read(*folders), 0.5, asked).settings[0] for asked in ((), (1, 2, 3))]
    plain, counted = map(summary, made)
    gap = "fedprox: best, last, mean of last over 2 of 3 seeds, since seed 2 gave no number; it leads in none of these."
    assert gap in counted
    assert '<td>fedprox</td><td data-value="3">2 of 3</td>' in counted
    assert counted.count("<small>(2 of 3)</small>") == 3, "so many of the runs reached the target"
    assert 'class="leader"' in plain
    assert 'class="leader"' not in counted, "one method alone leads in nothing"
    assert "2 of 3" not in plain


def test_thinning_keeps_both_ends():
    assert thinned(range(1, 801), 300)[0] == 1
    assert thinned(range(1, 801), 300)[-1] == 800
    assert len(thinned(range(1, 801), 300)) == 300
    assert thinned([3, 5], 300) == [3, 5]


def test_the_target_is_reached_by_all(tmp_path, drawn_only):
    folders = [made_up(tmp_path / "a", level=0.9, tracked=False)]
    folders.append(made_up(tmp_path / "b", method="fedsam", level=0.7, tracked=False))
    groups = groups_of(read(*folders))
    target = common_target(groups)
    best = min(max(record.accuracy for record in group.runs[0].records) for group in groups)
    assert best - 0.01 < target <= best
    text = page(content(read(*folders)))
    assert f"rounds to {100 * target:g}\N{NO-BREAK SPACE}%" in text
    text = page(content(read(*folders), target=0.99))
    assert "never" in text


def test_the_target_is_the_hardest_of_two_digits(tmp_path):
    for share in range(1, 101):
        for best, target in ((share / 100, share), (math.nextafter(share / 100, 0), share - 1)):
            source = Source(tmp_path, {"rounds": 1}, "", [record(1, accuracy=best)], {}, {})
            assert common_target([Group("fedavg", "", [source])]) == (target / 100 or None)


def test_a_round_that_was_scored_only_because_the_run_ended_there_does_not_count(tmp_path):
    scores = {2: 0.5, 3: 0.9, 4: 0.6}  # in round 3 the run was over, until it was extended
    records = [record(number, accuracy=scores.get(number)) for number in range(1, 5)]
    source = Source(tmp_path, {"evaluate_every": 2, "rounds": 4}, "", records, {}, {})
    found = row(Group("fedavg", "", [source]), None).results
    assert (found["best"].mean, found["mean_last"].mean) == (0.6, pytest.approx(0.55))
    (cost,) = row(Group("fedavg", "", [source]), 0.6).to_target
    assert cost.rounds == 4


def test_a_number_reported_before_a_run_was_extended_is_not_shown(tmp_path):
    def reported(after):
        records = [record(number, accuracy=0.5) for number in range(1, 5)]
        return Source(tmp_path, {"rounds": 4}, "", records, {}, {}, {"rounds": after, "reported": 0.9}).reported

    assert (reported(2), reported(4)) == (None, 0.9)


def test_commands_reproduce_each_run(tmp_path, drawn_only):
    folders = [made_up(tmp_path / "e" / f"run {seed}", seed=seed, rounds=2, tracked=False) for seed in range(2)]
    text = page(content(read(*folders)))
    for folder in folders:
        again = f"again/{tmp_path.name}/e/{folder.name}"
        assert f"fedkeel run &#x27;{folder}/experiment.toml&#x27; --engine serial --out &#x27;{again}&#x27;" in text


def test_only_runs_of_python_are_told_to_be_made_from_python(tmp_path, drawn_only):
    typed = "fedkeel run --problem own:problem"
    made = {"python": None, "script": ["train.py"], "module": ["/mine/train/__main__.py", "run"]}
    for name, command in (made | {"shell": ["/bin/fedkeel", *typed.split()[1:]]}).items():
        settings = {"rounds": 1, "participation": 1.0, "epochs": 1, "batch_size": 8}
        fk.run(
            fk.Experiment(problem=small_problem(), **settings), out=tmp_path / name, engine="serial", command=command
        )
        text = page(content(read(tmp_path / name)))
        assert ("made from Python" in text) == (name != "shell")
        assert (f"typed: <code>{typed}</code>" in text) == (name == "shell")
        assert ("give the command that was typed" in text) == (name == "shell")


def test_a_run_made_again_is_not_among_those_reported(tmp_path, monkeypatch):
    """Also where the folder that is reported is the current one."""
    made_up(tmp_path / "fedavg" / "0", rounds=2, tracked=False)
    monkeypatch.chdir(tmp_path)
    before = runs_in(Path())
    command = Source.read(before[0]).command
    made_up(Path(command.split()[-1]), rounds=2, tracked=False)
    assert [runs_in(Path(folder)) for folder in ("", "fedavg", "fedavg/0")] == [before] * 3


def test_nothing_in_a_run_can_end_the_pages_script(tmp_path, data_of, drawn_only):
    folder = made_up(tmp_path / "x</script><b>", rounds=2, tracked=False)
    text = page(content(read(folder)), title="<i>&\"'")
    assert "<b>" not in text
    assert "<i>" not in text
    assert text.count("</script>") == 2
    assert data_of(text)["settings"][0]["groups"][0]["label"] == "fedavg"


@pytest.mark.slow
def test_the_page_asks_no_network_for_anything(real_run, monkeypatch):
    """Of charts that are made of the same parts, one is drawn."""
    known = set()

    def draw_first(figure, title):
        parts = frozenset(type(part) for axes in figure.axes for part in axes.get_children())
        drawn = "<svg></svg>" if parts in known else embed(figure, title)
        known.add(parts)
        return drawn

    monkeypatch.setattr("fedkeel.report.page.embed", draw_first)
    text = page(content(read(real_run("fedfft", 0))))  # it is analysed
    assert len(known) > 1
    assert not re.findall(r"""(?:src|href)\s*=\s*["'](?!data:|#)""", text)
    assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text)
    assert not re.findall(r"@import|url\((?!#)", text)


def sixty_runs(tmp_path, **how):
    """Twenty variants with three seeds; all folders but one share their text, so that writing them is quick."""
    first = made_up(tmp_path / "0", rounds=800, **how)
    assert (first / "rounds.jsonl").read_text().count("\n") == 800
    sources = []
    for number in range(60):
        source = Source.read(first) if number == 0 else sources[0]
        changed = dict(source.experiment, seed=number % 3, lr=0.01 * (1 + number // 3))
        sources.append(Source(Path(f"run-{number}"), changed, source.toml, source.records, {}, {}))
    return content(sources)


@pytest.mark.slow
def test_sixty_runs_of_eight_hundred_rounds_fit(tmp_path):
    assert len(page(sixty_runs(tmp_path)).encode()) < MOST_BYTES / 3


@pytest.mark.slow
def test_sixty_runs_of_eight_hundred_rounds_are_thinned_and_told_apart(tmp_path, data_of, drawn_only):
    text = page(sixty_runs(tmp_path, tracked=False))
    groups = data_of(text)["settings"][0]["groups"]
    assert len(groups) == 20
    assert len({group["label"] for group in groups}) == 20
    assert len({look(number) for number in range(20)}) == 20  # no two lines look alike
    assert (groups[0]["rounds"][0], groups[0]["rounds"][-1]) == (1, 800)
    assert len(groups[0]["rounds"]) == SPENT


def test_unfinished_and_half_written_runs_are_shown_as_far_as_they_came(tmp_path, drawn_only):
    drawn_only("Test accuracy")
    folder = made_up(tmp_path / "a", rounds=20, tracked=False)
    text = (folder / "rounds.jsonl").read_text()
    (folder / "rounds.jsonl").write_text("\n".join(text.splitlines()[:5]) + '\n{"round": 6, "sel')
    made = content(read(folder))
    assert "1 unfinished" in page(made)
    (folder / "diverged.json").write_text('{"round": 6, "reason": "the loss is not finite."}')
    text = page(content(read(folder)))
    assert "(1 diverged)" in text
    assert "fedavg, seed 0: diverged in round 6: the loss is not finite." in text
    assert "1 unfinished" not in text
    (folder / "rounds.jsonl").write_text("")
    assert "fedavg" in page(content(read(folder)))


def test_refusals(tmp_path, drawn_only):
    with pytest.raises(fk.RequestError, match="at least one run"):
        write_report([], tmp_path / "a.html")
    with pytest.raises(fk.FolderError, match="not a run"):
        write_report([tmp_path], tmp_path / "a.html")
    (tmp_path / "file").write_text("")
    with pytest.raises(fk.FolderError, match="cannot write"):
        write_report([made_up(tmp_path / "r", rounds=1, tracked=False)], tmp_path / "file" / "a.html")


def test_label_tables_are_those_of_the_partition(real_run):
    made = content(read(real_run("fedavg", 1)))
    (table,) = made.settings[0].labels
    assert len(table.histogram) == 20
    assert table.histogram.sum() > 1000


def count_labels(clients):
    """The labels that clients train on, [clients, 10], counted sample by sample."""
    rows = [clients.rows(i, np.arange(size))[1].numpy() for i, size in enumerate(clients.sizes)]
    return np.stack([np.bincount(labels, minlength=10) for labels in rows])


@pytest.mark.parametrize(
    "settings",
    [
        {"evaluation": {"share": 0.3}},
        {"evaluation": {"pool": False}, "partition": fk.FeatureShift(fk.Dirichlet(alpha=0.3, clients=10))},
        {"method": "fedlaw"},
    ],
)
def test_labels_are_those_that_the_run_trains_on(tmp_path, settings):
    folder = made_up(tmp_path, rounds=1, tracked=False, **settings)
    (source,) = read(folder)
    problem = problem_of(fk.Experiment.recall(source.experiment).plan)
    ((table,), notes) = label_tables([source])
    assert np.array_equal(table.histogram, count_labels(problem.data))
    assert notes == []


def test_a_run_that_sets_other_samples_aside_has_a_table_of_its_own(tmp_path):
    policies = ({}, {"evaluation": {"share": 0.3}}, {"evaluation": {"share": 0.3, "report": "last"}})
    policies += ({"method": "fedlaw"},)  # its server takes some
    folders = [made_up(tmp_path / str(i), rounds=1, tracked=False, **given) for i, given in enumerate(policies)]
    tables, _ = label_tables(read(*folders))
    assert len(tables) == 3
    assert len({table.note.split(";")[1] for table in tables}) == 3  # they say of how many samples


@pytest.mark.slow
def test_figures_of_every_chart(real_runs, tmp_path):
    made = content(read(*(p.parent for p in sorted(real_runs.rglob("experiment.toml")))))
    files = write_figures(made, tmp_path / "figures", kinds=("svg",))
    names = {file.stem for file in files}
    curves = {"accuracy-by-round", "accuracy-by-byte", "drift-by-round", "spectrum", "labels"}
    spectra = {"bands-by-round"} | {
        f"spectrum-{kind}{end}" for kind in ("gradient", "update", "perturbation") for end in ("", "-by-layer")
    }
    points = {f"{kind}s-{way}" for kind in ("parameter", "feature", "perturbation") for way in ("pca", "tsne")}
    landscapes = {"landscape-line", "landscape-surface", "landscape-above", "hessian"}
    clients = {"update-cosines", "client-accuracy", "cka", "cka-by-layer", "divergence-by-layer"}
    assert curves | spectra | points | landscapes | clients <= names
    assert all(file.stat().st_size > 2000 for file in files)


def drawn(text, title):
    """The chart of a page with this title."""
    return text.split(f'data-title="{title}"')[1].split("</svg>")[0]


@pytest.mark.slow
def test_the_page_holds_the_charts_that_files_hold(tmp_path, drawn_only):
    drawn_only("Test accuracy")
    made = content(read(*(made_up(tmp_path / str(seed), seed=seed, rounds=2, tracked=False) for seed in range(2))))
    text, files = page(made), write_figures(made, tmp_path / "figures", kinds=("svg",))
    switched = {"accuracy-by-second.svg", "accuracy-by-byte.svg"}  # a page has one chart, and a switch
    assert text.count("<figure") == len([file for file in files if file.name not in switched])
    assert len(re.findall(r'data-group="g0-0"', drawn(text, "Test accuracy"))) == 2  # the line and its band
    assert text == page(made)


def test_a_line_in_the_page_stands_where_its_numbers_are(tmp_path, drawn_only):
    """A plot says where it stands and from where to where it counts: read backwards, the path is the curve."""
    drawn_only("Test accuracy")
    folder = made_up(tmp_path / "a", rounds=20, tracked=False)
    chart = drawn(page(content(read(folder))), "Test accuracy")
    left, right, bottom, top, x0, x1, y0, y1 = map(float, re.search(r'data-plot="([^"]*)"', chart)[1].split())
    path = re.search(r'data-group="g0-0"[^>]*>\s*<path d="([^"]*)"', chart)[1]
    x, y = np.array(re.findall(r"[\d.]+", path), dtype=float).reshape(-1, 2).T
    accuracy = [100 * record.accuracy for record in Source.read(folder).records]
    assert (x0 + (x - left) / (right - left) * (x1 - x0)) == pytest.approx(range(1, 21), abs=0.01)
    assert (y0 + (y - bottom) / (top - bottom) * (y1 - y0)) == pytest.approx(accuracy, abs=0.01)


def test_no_number_and_no_name_keeps_charts_from_being_drawn(tmp_path, drawn_only):
    odd = {
        "state/$x": 1e308,
        "state/low": -1e308,
        "state/tiny": 1e-310,
        "漢字 <b>": 1.0,
        ' id="plot-9"': 1,
        "$a$ \\frac{": 0.0,
        "none": None,
    }
    drawn_only(*odd)
    folders = [made_up(tmp_path / "a", rounds=2, tracked=False, extra=odd)]
    folders.append(made_up(tmp_path / "b", method="fedsam", rounds=1, tracked=False, extra={"state/tiny": 3.0}))
    text = page(content(read(*folders)))
    assert "漢字 &lt;b&gt;" in drawn(text, "漢字 &lt;b&gt;")
    assert "$a$ \\frac{</text>" in drawn(text, "$a$ \\frac{")
    assert "nan" not in drawn(text, "state/tiny").lower()


def test_a_scale_over_decades_is_logarithmic(tmp_path, drawn_only):
    drawn_only("Training loss", "Test loss")
    text = page(content(read(made_up(tmp_path / "a", rounds=200, tracked=False))))  # its loss is 1/t
    assert 'data-y-scale="log"' in drawn(text, "Training loss")
    assert 'data-y-scale="linear"' in drawn(text, "Test loss")


def test_every_format(tmp_path, monkeypatch):
    every = figures.charts
    monkeypatch.setattr(figures, "charts", lambda *given: [one for one in every(*given) if "critical" in one.file])
    folder = made_up(tmp_path / "run", tracked=False, extra={"critical/fc1.weight": 0.5, "critical/fc2.weight": 1.0})
    files = {file.name: file for file in write_figures(content(read(folder)), tmp_path / "figures")}
    starts = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}
    for kind, start in starts.items():
        assert files[f"critical-layers.{kind}"].read_bytes().startswith(start)
    with pytest.raises(fk.RequestError, match="image file"):
        write_figures(content(read(folder)), tmp_path, kinds=("gif",))


# ---- diagnostics ---------------------------------------------------------------------------------------------------
DRIFT = {"mean": 2.0, "cosine": 0.25, "cosines": [[1.0]], "clients": [0], "round": 20, "accuracies": [0.5, 1.0]}


def analysed(folder, **found):
    for name, data in found.items():
        write_diagnostic(folder, name, data)
    return folder


def cells_of(html):
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr data-group.*?</tr>", html)]
    heads = re.findall(r'<button type="button">(.*?)</button>', html)
    return [dict(zip(heads, row, strict=True)) for row in rows]


def test_numbers_of_diagnostics_are_means_over_the_seeds_that_were_analysed(tmp_path):
    spread = {"mean": 0.75, "deviation": 0.25, "least": 0.5}
    drifts = [DRIFT | {"cosine": cosine, "accuracy_spread": spread} for cosine in (0.2, 0.4)]
    spectrum = {"kinds": {}, "heterogeneity": {"low": 3.0, "high": 1.0}, "ratio": 0.05}
    hessian = {"eigenvalues": [8.0, 2.0], "trace": 11.5, "sharpness": 0.125, "rho": 0.05}
    folders = [
        analysed(made_up(tmp_path / "0"), drift=drifts[0]),
        analysed(made_up(tmp_path / "1", seed=1), drift=drifts[1], spectrum=spectrum, hessian=hessian),
        made_up(tmp_path / "2", seed=2),
        made_up(tmp_path / "none", method="fedsam"),
    ]
    made = content(read(*folders))
    (row,) = cells_of(numbers(made.settings[0]))  # fedsam was not analysed
    assert row["cosine of updates"] == "0.3 ± 0.141"  # of a sample of two
    assert row["worst client, %"] == "50.0 ± 0.0"
    assert (row["share below, %"], row["disagreement below the cut, δ²"]) == ("75.0", "3")
    assert (row["top eigenvalue"], row["trace"], row["sharpness"]) == ("8", "11.5", "0.125")
    assert "CKA of the last layer" not in row
    assert numbers(content(read(folders[3])).settings[0]) == ""
    # charts show the first seed that has a diagnostic
    found = made.settings[0].groups[0].diagnostics
    assert (found["drift"]["cosine"], found["hessian"]["trace"]) == (0.2, 11.5)


def test_numbers_of_other_models_samples_and_radii_are_not_averaged(tmp_path):
    hessian = {"eigenvalues": [8.0], "trace": 1.0, "sharpness": 0.5, "rho": 0.05, "round": 20, "which": "last"}
    others = ({"which": "best", "round": 7}, {"split": "test"}, {"rho": 0.5}, {"round": 5}, {"trace": 3.0})
    every = [hessian, *(hessian | {"eigenvalues": [100.0], "trace": 100.0} | one for one in others)]
    folders = [analysed(made_up(tmp_path / str(s), seed=s), hessian=one) for s, one in enumerate(every)]
    html = numbers(content(read(*folders)).settings[0])
    (row,) = cells_of(html)
    assert row["trace"] == "2 ± 1.41"  # of the first seed and the last
    assert "At the last model, as" in html
    for one, told in zip(others, ("best model", "last model on test samples", "", "model of round 5"), strict=False):
        best = analysed(made_up(tmp_path / f"{one}"), hessian=hessian | one, drift=DRIFT | {"accuracy_spread": None})
        html = numbers(content(read(best)).settings[0])
        assert f"At the {told}: hessian of fedavg. " in html or not told
        assert "At the last model: drift of fedavg." in html or not told


def test_a_number_that_is_not_there_leaves_its_cell_of_a_map_empty(tmp_path):
    band = "spectrum/distance/"
    seeds = (
        {f"{band}1": 2.0, f"{band}2": None, f"{band}3": None},
        {f"{band}1": 4.0, f"{band}2": 6.0, f"{band}3": None},
    )
    folders = [
        made_up(tmp_path / str(s), seed=s, rounds=2, tracked=False, extra=extra) for s, extra in enumerate(seeds)
    ]
    (setting,) = content(read(*folders)).settings
    found = spectra(setting.groups[0])["values"]
    assert np.array_equal(found, [[3.0, 6.0, np.nan]] * 2, equal_nan=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (over_rounds,) = diagnostic_charts(setting)
        assert figures.bands(setting).axes
    drawn = over_rounds.figure.axes[0].collections[0].get_array()
    assert np.ma.getmaskarray(drawn).tolist() == [[False] * 2, [False] * 2, [True] * 2]


def test_critical_layers_are_a_map_of_means_over_seeds(tmp_path):
    shares = {0: {"critical/a": 0.5, "critical/b": 1.0}, 1: {"critical/a": 1.0, "critical/b": 0.0}}
    group = groups_of(read(*(made_up(tmp_path / str(s), seed=s, rounds=3, extra=shares[s]) for s in (0, 1))))[0]
    found = critical(group)
    assert (found["layers"], found["rounds"]) == (["a", "b"], [1, 2, 3])
    assert np.allclose(found["values"], [[0.75, 0.5]] * 3)
    assert "critical/a" not in measures([group])
    assert critical(groups_of(read(made_up(tmp_path / "plain")))[0]) is None


def test_of_many_methods_the_best_are_shown_first_and_look_different(tmp_path, drawn_only):
    levels = [0.5 + 0.4 * math.sin(1.7 * n) ** 2 for n in range(40)]
    short = {"rounds": 2, "tracked": False}
    made = content(read(*(made_up(tmp_path / str(n), lr=0.01 * (n + 1), level=levels[n], **short) for n in range(40))))
    groups = made.data()["settings"][0]["groups"]
    best = sorted(range(40), key=lambda n: -levels[n])
    assert {i for i, group in enumerate(groups) if group["on"]} == set(best[:8])
    assert len({(groups[i]["color"], groups[i]["dash"]) for i in best[:28]}) == 28
    assert "1 method in 40 variants on digits" in page(made)
    few = content([group.runs[0] for group in made.settings[0].groups[:14]]).data()["settings"][0]["groups"]
    assert all(group["on"] for group in few)


def setting_of(*groups):
    return Setting(0, "", groups, [row(group, None) for group in groups], [], None)


@pytest.mark.parametrize(("measure", "order"), [("accuracy", [0, 2, 1]), ("test_loss", [1, 2, 0])])
def test_the_best_have_the_highest_accuracy_or_the_lowest_loss(tmp_path, measure, order):
    measured = [{"accuracy": v} if measure == "accuracy" else {"extra": {measure: v}} for v in (0.3, 0.1, 0.2)]
    runs = [Source(tmp_path, {}, "", [record(1, **one)], {}, {}) for one in measured]
    assert ranked(setting_of(*(Group("", "", [run]) for run in runs))) == order


def test_a_curve_against_bytes_is_in_the_axis_unit_and_its_band_is_one_deviation(tmp_path):
    levels = (0.5, 0.7), (0.6, 0.9)  # of two seeds after each round
    runs = [Source(tmp_path, {}, "", [record(n, accuracy=one[s]) for n, one in enumerate(levels, 1)], {}, {})
            for s in range(2)]  # fmt: skip
    (axes,) = figures.curves(setting_of(Group("", "", runs)), "accuracy", "bytes", 10).axes
    assert axes.get_xlabel() == "sent both ways (kB)"
    assert axes.lines[0].get_xydata() == pytest.approx(np.array([[1.5, 60], [3, 75]]))
    ((outline,),) = [band.get_paths() for band in axes.collections]
    deviations = 100 * np.std(levels, axis=1, ddof=1)
    for x, mean, deviation in zip((1.5, 3), (60, 75), deviations, strict=True):
        y = outline.vertices[outline.vertices[:, 0] == x, 1]
        assert (y.min(), y.max()) == (pytest.approx(mean - deviation), pytest.approx(mean + deviation))


def test_the_words_of_an_axis_fit_beside_it():
    with styled("page"):
        axes = new_axes()
        FigureCanvasAgg(finish(axes, ylabel="its place")).draw()
    for measure in figures.NAMES:
        axes.set_ylabel(figures.name_axis(measure))
        place = axes.yaxis.label.get_window_extent()
        assert 0 <= place.y0 < place.y1 <= axes.figure.bbox.height, measure


@pytest.mark.parametrize(("size", "power"), [(1e-6, True), (1.0, False)])
def test_a_power_of_ten_above_an_axis_lies_within_the_chart(size, power):
    axes = new_axes()
    axes.plot([1, 2], [size, 3 * size])
    figure = finish(axes)
    before = axes.get_position().y1
    lay_out(figure)
    FigureCanvasAgg(figure).draw()
    above = axes.yaxis.get_offset_text()
    assert bool(above.get_text()) == power
    assert above.get_window_extent().y1 <= figure.bbox.y1
    assert (axes.get_position().y1 == before) != power

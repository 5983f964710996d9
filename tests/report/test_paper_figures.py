"""Figures of papers as files: drawn from the ledger or from runs, and told in words."""

from dataclasses import replace

import pytest

from fedkeel.cli.main import call
from fedkeel.papers.figures import find_figure, read_figures
from fedkeel.papers.ledger import Entry
from fedkeel.papers.reproduce import settings_of
from fedkeel.papers.verdicts import bring_together, judge, measure_gap
from fedkeel.report.figure_numbers import look_up
from fedkeel.report.figure_page import compare_with_paper, write_figure
from fedkeel.report.figure_runs import FigureRuns, source_of_entry
from fedkeel.report.paper_figures import choose_looks, draw


def line(cell, value, rounds=None, seed=0):
    full = cell.experiment["rounds"]
    length = rounds or full
    return Entry(
        cell.paper, cell.table, cell.row, cell.column, seed, cell.kind, cell.evaluation, cell.reported, cell.spread,
        value, value, value, value, length, full, 60.0, "f", "d", settings=settings_of(cell),
        bests=[[1, 10.0], [length // 2, value - 5], [length, value]], environment={"device": "cpu"},
        curve={"1": 10.0, str(length // 2): value - 5},
    )  # fmt: skip


def runs_with(figure, numbers, rounds=None, seeds=(0,)):
    """A ledger with a line for each number of {row: [numbers by column]}."""
    cells = {}
    for cell in figure.cells:
        cells.setdefault(cell.row, []).append(cell)
    lines = [
        line(cell, value, (rounds or {}).get(row), seed)
        for row, values in numbers.items()
        for cell, value in zip(cells[row], values, strict=False)
        for seed in seeds
    ]
    return FigureRuns(figure, lines)


def test_a_figure_against_a_setting_from_the_ledger(tmp_path):
    figure = find_figure("fedfft:figure-9")
    numbers = {"FedSAM": [78, 75, 70, 60], "FedFFT": [78.5, 77, 76, 55]}
    runs = runs_with(figure, numbers, seeds=(0, 1))
    written, told = write_figure(runs, tmp_path)
    assert [file.name for file in written] == [f"fedfft-figure-9.{kind}" for kind in ("png", "svg", "html")]
    assert "FedSAM falls from 78 (rho 0.05) to 60 (rho 0.20) (2 seeds)" in told.same
    assert "FedFFT is above FedSAM at 3 of 4 places, by -5.00 to +6.00 points (2 seeds)" in told.differs
    assert not told.undecided
    text = (tmp_path / "fedfft-figure-9.html").read_text()
    for words in (figure.says, *told.same, *told.differs):
        assert words in text.replace("&#x27;", "'")
    assert "radius ρ" in text
    assert "test accuracy (%)" in text
    alone = compare_with_paper(runs_with(figure, numbers))
    assert "FedSAM falls from 78 (rho 0.05) to 60 (rho 0.20) (1 seed)" in alone.undecided
    assert alone.undecided[-1] == "one seed of a cell decides nothing: --seeds 0,1,2"
    assert not [words for words in (*alone.same, *alone.differs) if words.startswith("Fed")]


def test_lines_are_compared_at_a_round_that_both_have_reached():
    figure = find_figure("fedwmsam:figure-4")
    short = runs_with(figure, {"FedWMSAM": [76], "FedSAM": [60]}, rounds={"FedWMSAM": 250}, seeds=(0, 1))
    told = compare_with_paper(short)
    words = "FedWMSAM is above FedSAM, by +21.00 points (cifar10, 0.1, at round 250, 2 seeds)"
    assert words in told.same  # 76 and 60 − 5
    assert "1 cell of 18 ran shorter than the paper's; the shortest has 250 of 500 rounds" in told.differs
    assert any(words.startswith("no run of 16 cells of 18: ") for words in told.differs)


@pytest.mark.parametrize(
    ("mine", "others", "lead"),
    [
        ({0: 70, 1: 50, 2: 50}, {0: 60}, "+10.00 points (cifar10, 0.1, 1 seed)"),
        ({0: 70, 1: 50, 2: 90}, {0: 60, 1: 60}, "+0.00 points (cifar10, 0.1, 2 seeds)"),
        ({0: 70, 1: 80, 2: 90}, {3: 60, 4: 50}, "+25.00 points (cifar10, 0.1, 2 to 3 seeds, others on each side)"),
        ({0: 70, 1: 80}, {3: 60}, "+15.00 points (cifar10, 0.1, 1 to 2 seeds, others on each side)"),
    ],
)
def test_a_lead_is_over_the_seeds_that_both_lines_have_as_in_the_table_of_leads(mine, others, lead):
    figure = find_figure("fedfft:figure-6")
    sides = [next(c for c in figure.cells if c.label == f"{row}, cifar10, 0.1") for row in ("FedFFT-D", "FedSAM-D")]
    lines = [line(cell, v, seed=s) for cell, by in zip(sides, (mine, others), strict=True) for s, v in by.items()]
    told = compare_with_paper(FigureRuns(figure, lines))
    ((found, place),) = [
        (words, place)
        for place in ("same", "differs", "undecided")
        for words in getattr(told, place)
        if words.startswith("FedFFT-D is") and "FedSAM-D" in words
    ]
    assert found.endswith(f"by {lead}")
    assert (place == "undecided") == (min(len(mine), len(others)) == 1)
    measured, _ = measure_gap(*bring_together(*judge(sides, lines)))
    assert lead.startswith(f"{measured:+.2f}")


def test_a_curve_is_the_mean_of_the_same_seeds_at_every_round():
    figure = find_figure("fedscam:figure-21")
    cell = next(cell for cell in figure.cells if cell.row == "FedSAM")
    kept = [line(cell, 60.0), line(cell, 50.0, seed=1), replace(line(cell, 10.0, seed=2), curve={})]
    more = replace(line(cell, 40.0, seed=3), curve={"1": 10.0, "4": 30.0, "5": 30.0})
    (group,) = FigureRuns(figure, [*kept, more]).group_lines(figure.panels[0])
    assert [(run.seed, [r.round for r in run.records]) for run in group.runs] == [(s, [1, 5, 10]) for s in (0, 1, 3)]


def test_a_gain_is_over_the_row_that_it_names():
    figure = find_figure("specgradfilter:figure-8")
    numbers = {f"SpecGradFilter, ratio {ratio}": [70.0 + i] for i, ratio in enumerate((0.01, 0.05))}
    runs = runs_with(figure, numbers | {"None (FedAvg)": [50.0]})
    panel = figure.panels[0]
    found = [runs.number_of(panel, cell) for cell in panel.cells if cell.column == "cifar10"]
    assert [value[0] for value in found if value] == [20.0, 21.0]
    (read,) = look_up(runs, ["cifar10"])
    assert (read.panel, read.lines) == ("panel 1", {"cifar10": dict(zip(numbers, (20.0, 21.0), strict=True))})
    mine = [cell for cell in panel.cells if cell.column == "cifar10" and cell.row in numbers]
    base = panel.base_of(mine[0])
    both = [line(base, 50.0), line(base, 56.0, seed=1), line(mine[0], 70.0), line(mine[0], 77.0, seed=1)]
    gain, deviation = FigureRuns(figure, both).number_of(panel, mine[0])
    assert (gain, round(deviation, 3)) == (20.5, 0.707)  # of the gains 20 and 21: seeds vary more than that
    more = [line(cell, 90.0, seed=1) for cell in mine]  # the base has no such seed
    assert look_up(FigureRuns(figure, [*runs.entries, *more]), ["cifar10"])[0].lines == read.lines


def test_printed_numbers_are_confirmed_only_by_runs_of_full_length_and_of_the_same_settings():
    figure = find_figure("fedfft:figure-9")
    runs = runs_with(figure, {"FedSAM": [77.91]}, seeds=(0, 1, 2))
    assert "within seed noise: 1 of 1 printed numbers" in compare_with_paper(runs).same
    changed = compare_with_paper(runs, ["lr=0.05"])
    assert "changed here: lr=0.05" in changed.differs
    assert not any("printed numbers" in words for words in (*changed.same, *changed.differs))
    short = runs_with(figure, {"FedSAM": [77.91]}, rounds={"FedSAM": 200}, seeds=(0, 1, 2))
    assert not any("printed numbers" in words for words in compare_with_paper(short).same)


def test_curves_of_a_ledger_have_the_rounds_that_it_keeps():
    figure = find_figure("fedscam:figure-21")
    runs = runs_with(figure, {"FedSAM": [60], "FedSCAM": [65]})
    (group, _) = runs.group_lines(figure.panels[0])
    assert [(r.round, r.accuracy) for r in group.runs[0].records] == [(1, 0.1), (5, 0.55), (10, 0.6)]
    assert not runs.missing()
    assert [c.row for c in runs_with(figure, {"FedSAM": [60]}).missing()] == ["FedSCAM"]


def test_a_shortened_curve_ends_in_a_diamond_and_no_other_does():
    figure = find_figure("fedwmsam:figure-4")
    runs = runs_with(figure, {"FedWMSAM": [76], "FedSAM": [60]}, rounds={"FedWMSAM": 250})
    lines = [line for chart in draw(runs) for axes in chart.figure.axes for line in axes.lines]
    assert [tuple(line.get_xydata()[0]) for line in lines if line.get_marker() == "D"] == [(250, 76)]


def test_a_shortened_bar_ends_in_a_diamond_and_no_other_does():
    figure = next(f for f in read_figures() if any(p.kind == "bars" and p.measure == "accuracy" for p in f.panels))
    panel = next(panel for panel in figure.panels if panel.kind == "bars")
    short, whole = panel.cells[:2]
    runs = FigureRuns(figure, [line(short, 42.0, rounds=int(short.experiment["rounds"]) // 2), line(whole, 50.0)])
    marks = [one for chart in draw(runs) for axes in chart.figure.axes for one in axes.lines]
    assert [one.get_xdata()[0] for one in marks if one.get_marker() == "D"] == [42.0]


def test_a_best_round_is_no_point_of_a_curve():
    cell = find_figure("fedwmsam:figure-4").cells[0]
    old = replace(line(cell, 76.0), last=70.0, curve={})  # a line that keeps no single rounds
    assert [(one.round, one.accuracy) for one in source_of_entry(old).records] == [(old.rounds, 0.7)]


def test_what_is_added_to_a_method_has_its_colour():
    looks = choose_looks(["A", "A + F", "B", "B + F", "C + F"])
    assert looks["A"][0] == looks["A + F"][0] != looks["B"][0]
    assert looks["A"][1] != looks["A + F"][1]
    assert len({looks[name] for name in looks}) == 5


@pytest.mark.slow
def test_a_figure_runs_tracks_and_is_drawn(tmp_path, capsys):
    """FedSCAM's radius: a measure that only a tracked run has."""
    out = ["--out", str(tmp_path / "runs"), "--figures", str(tmp_path / "figures"), "--no-progress"]
    assert call(["reproduce", "fedscam:figure-1", "--tiny", "--engine", "serial", *out]) == 0
    said = capsys.readouterr().out
    assert "differs   changed here: the 8×8 digits" in said
    assert {file.suffix for file in (tmp_path / "figures").iterdir()} == {".png", ".svg", ".html"}
    assert "mean radius" in (tmp_path / "figures" / "fedscam-figure-1.html").read_text()
    assert (tmp_path / "runs" / "tiny" / "ledger.jsonl").exists()


@pytest.mark.slow
def test_every_measured_figure_is_made_tiny(tmp_path, capsys):
    out = ["--out", str(tmp_path / "runs"), "--figures", str(tmp_path / "figures"), "--no-progress"]
    for figure in read_figures():
        if not figure.schematic:
            assert call(["reproduce", figure.name, "--tiny", "--engine", "serial", *out]) == 0, figure.name
            made = {file.name for file in (tmp_path / "figures").glob(f"{figure.name.replace(':', '-')}*")}
            assert f"{figure.name.replace(':', '-')}.html" in made
            wanted = {chart for panel in figure.panels for chart in panel.charts}
            assert all(any(chart in name for name in made) for chart in wanted), (figure.name, made)

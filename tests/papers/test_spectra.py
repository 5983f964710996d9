"""Spectra in the ledger: what a run tracked, as it stood at a round, drawn again without the run."""

import json
from dataclasses import replace

import pytest

from fedkeel.papers import find, ledger
from fedkeel.papers.figures import find_figure
from fedkeel.papers.ledger import Entry
from fedkeel.papers.reproduce import settings_of
from fedkeel.papers.spectra import READINGS, cut_spectra, gather_spectra, has_tracked, rounds_of, spread_out
from fedkeel.report.figure_page import compare_with_paper
from fedkeel.report.figure_runs import FigureRuns
from fedkeel.report.gallery import list_runs
from fedkeel.report.numbers import TRACKED
from fedkeel.report.paper_figures import draw
from fedkeel.runs.record import RoundRecord

ROWS = {
    "gradient-spectrum/distance": [4.0, 2.0, 1.0],
    "gradient-spectrum/deviation": [3.0, 1.0, 1.0],
    "gradient-spectrum/variance": [2.0, 1.0, 0.5],
    "gradient-divergence/before": [2.0, 1.0],
    "gradient-divergence/after": [1.5, 1.0],
}


def record(at, rows=ROWS, **extra):
    """A round as observers leave it: bands by number, layers by name."""
    layers = ("conv.weight", "norm.weight")
    names = {name: layers if "divergence" in name else range(1, len(row) + 1) for name, row in rows.items()}
    tracked = {f"{name}/{place}": value for name, row in rows.items() for place, value in zip(names[name], row)}  # noqa: B905
    return RoundRecord(at, [], None, None, 0, 0, 0, 0.0, extra=tracked | extra)


def entry(row="FL, 0.1", rounds=120, seed=0, **changes):
    (cell,) = [one for one in find("specgradfilter:V") if (one.row, one.column) == (row, "cifar10, baseline")]
    made = Entry(
        cell.paper, cell.table, cell.row, cell.column, seed, cell.kind, cell.evaluation, cell.reported, cell.spread,
        None, None, None, None, rounds, 300, 12.0, "f", "d", settings=settings_of(cell),
    )  # fmt: skip
    return replace(made, **changes)


def test_the_ledger_keeps_rows_by_round_and_leaves_out_what_has_gaps():
    more = {"gradient-spectrum/layer/conv.weight/1": 1.0, "gradient-spectrum/client/7/1": 1.0, "update/cosine": 0.5}
    assert gather_spectra([record(29, {}), record(30, **more)]) == {name: {"30": row} for name, row in ROWS.items()}
    gap = record(30, {"gradient-spectrum/distance": [1.0, 2.0, 3.0]})
    for lost in ({}, {"gradient-spectrum/distance/2": None}):
        extra = {name: value for name, value in gap.extra.items() if not name.endswith("/2")} | lost
        assert gather_spectra([replace(gap, extra=extra)]) == {}
    assert gather_spectra([record(1, {"gradient-spectrum/distance": [1 / 3]})]) == {
        "gradient-spectrum/distance": {"1": [0.333333]}
    }


def test_a_line_gives_back_what_it_keeps_and_stands_at_a_round_as_it_was():
    spectra = gather_spectra([record(30), record(60, {"gradient-spectrum/distance": [9.0, 1.0]})])
    assert rounds_of(spectra) == [30, 60]
    assert spread_out(spectra, 60) == {"gradient-spectrum/distance/1": 9.0, "gradient-spectrum/distance/2": 1.0}
    assert rounds_of(cut_spectra(spectra, 59)) == [30]
    assert cut_spectra(spectra, 29) == {}
    long = entry(rounds=300, best=50.0, bests=[[10, 40.0]], spectra=spectra)
    assert rounds_of(long.until(40).spectra) == [30]
    assert ledger.read_entry(long.dumps().encode()) == long


def test_runs_have_tracked_what_is_asked_for_where_they_reached_its_rounds():
    spectra = gather_spectra([record(30), record(60, {"gradient-spectrum/distance": [9.0, 1.0]})])
    for tracks, rounds, holds in (
        ([], 120, True),
        (["gradient-spectrum"], 120, True),
        (["gradient-spectrum@30", "gradient-divergence@30"], 120, True),
        (["gradient-spectrum@30+120"], 60, True),  # the run has not come to round 120
        (["gradient-spectrum@30+60"], 120, False),  # of round 60 only the distances are there
        (["perturbation-spectrum"], 120, False),
        (["radius"], 120, False),  # which the ledger does not keep
    ):
        assert has_tracked(spectra, rounds, tracks) == holds, tracks


@pytest.mark.parametrize("wrong", [{"a": {"x": [1.0]}}, {"a": {"-1": [1.0]}}, {"a": {"1": ["x"]}}, {"a": [1.0]}, [1.0]])
def test_a_ledger_with_other_spectra_is_refused(wrong):
    with pytest.raises(ValueError, match="spectra must be"):
        ledger.read_entry(json.dumps(json.loads(entry().dumps()) | {"spectra": wrong}).encode())


def test_figures_of_spectra_are_drawn_from_the_ledger_alone():
    figure = find_figure("specgradfilter:figure-1")
    spectra = gather_spectra([record(at) for at in (30, 60, 90, 120)])
    flat = gather_spectra(
        [record(at, ROWS | {"gradient-spectrum/distance": [1.0, 1.0, 1.0]}) for at in (30, 60, 90, 120)]
    )
    lines = [entry(spectra=spectra, seed=seed, last=30.0) for seed in (0, 1)]
    lines += [entry("FL, 0.6", spectra=flat, seed=seed, last=40.0) for seed in (0, 1)]
    lines += [entry("FL, 100", rounds=300)]
    runs = FigureRuns(figure, lines)
    (chart,) = draw(runs)
    assert chart.note == "between clients, mean over rounds 30, 60, 90, 120"
    drawn = {line.get_label(): line.get_ydata().tolist() for line in chart.figure.axes[0].lines}
    assert drawn == {"FL, 0.6": [1.0, 1.0, 1.0], "FL, 0.1": [4.0, 2.0, 1.0]}
    told = compare_with_paper(runs)
    both = "2 seeds, FL, 0.6: 40.0 % at round 120; FL, 0.1: 30.0 % at round 120"
    assert f"FL, 0.1 is above FL, 0.6, by +1.67 (lowest band of gradients over the others, {both})" in told.same
    assert f"FL, 0.1 is above FL, 0.6, by +3 (Dist of gradients in the lowest band, {both})" in told.same
    band = "FL, 0.1 has 2.67, expected above 1 (lowest band of gradients over the others, 2 seeds, {})"
    assert [line for line in told.same if "expected above 1" in line] == [band.format("30.0 % at round 120")]
    assert not told.undecided
    for accuracy, holds in ((20.0, True), (19.9, False)):  # twice that of guessing among ten classes
        some = compare_with_paper(FigureRuns(figure, [replace(line, last=accuracy) for line in lines[:2]]))
        words = band.format(f"{accuracy} % at round 120" + ", near chance" * (not holds))
        assert words in (some.same if holds else some.undecided)
    assert not [line for line in told.differs if "shorter" in line or "printed numbers" in line]
    assert "no run of 2 cells of 4: FL, 100, cifar10, baseline; FL, 5, cifar10, baseline" in told.differs
    short = compare_with_paper(FigureRuns(figure, [entry(rounds=30, spectra=cut_spectra(spectra, 30))]))
    assert "1 cell of 4 ran shorter than the paper's; the shortest has 30 of 120 rounds" in short.differs


@pytest.mark.parametrize(
    ("bands", "over", "share"), [([4.0, 2.0, 1.0, 1.0], 2.0, 0.75), ([1.0, 3.0, 4.0], 0.25, 0.125)]
)
def test_low_bands_are_held_against_the_others(bands, over, share):
    """The band in the middle of an odd number is in no half."""
    assert [one.read(bands) for one in READINGS] == [over, share]


def test_a_figure_takes_the_run_that_a_cell_of_its_length_would():
    """A run of just the figure's rounds, wherever its line stands, and not what a longer one was then."""
    figure = find_figure("specgradfilter:figure-1")
    cell = next(one for one in figure.cells if one.row == "FL, 0.1")
    spectra = gather_spectra([record(at) for at in (30, 60, 90, 120)])
    own = entry(last=31.0, best=33.0, bests=[[9, 33.0]], spectra=spectra)
    longer = entry(rounds=300, last=50.0, best=50.0, bests=[[9, 30.0], [300, 50.0]], spectra=spectra)
    for lines in ([own, longer], [longer, own]):
        assert FigureRuns(figure, lines).entries_of(cell) == [own]
    assert [one.rounds for one in FigureRuns(figure, [longer]).entries_of(cell)] == [120]
    mute = replace(longer, bests=[])  # an older line, which does not tell what it had by round 120
    assert FigureRuns(figure, [mute]).entries_of(cell) == [mute]
    assert FigureRuns(figure, [own, replace(mute, seed=1)]).entries_of(cell) == [own]


def test_divergence_counts_the_layers_that_the_filter_changes():
    """A quarter less in the first layer; the second is a norm, which the filter leaves alone."""
    figure = find_figure("specgradfilter:figure-2")
    runs = FigureRuns(figure, [entry(rounds=30, spectra=gather_spectra([record(30)]))])
    (group,) = runs.group_lines(figure.panels[0])
    assert TRACKED["less divergence without low frequencies, %"](group) == pytest.approx(25.0)
    (chart,) = draw(runs)
    before, after = chart.figure.axes[0].lines
    assert (before.get_ydata().tolist(), after.get_ydata().tolist()) == ([2.0, 1.0], [1.5, 1.0])
    assert not [line for line in compare_with_paper(runs).differs if "shorter" in line]
    longer = entry(rounds=76, seed=1, best=40.0, bests=[[9, 30.0]], spectra=gather_spectra([record(30), record(60)]))
    both = FigureRuns(figure, [*runs.entries, longer]).entries_of(figure.cells[0])
    assert [(one.seed, one.rounds, rounds_of(one.spectra)) for one in both] == [(0, 30, [30]), (1, 30, [30])]
    known = replace(runs.entries[0], last=22.0, best=26.0)  # of the longer one the ledger has no round 30, but its best
    assert [line for line in list_runs(FigureRuns(figure, [known, longer])) if line.endswith("(28.0 % at best)")]
    assert draw(FigureRuns(figure, [entry(rounds=300)])) == []
    half = {"gradient-divergence/before": {"30": [2.0, 1.0]}, "gradient-divergence/after": {"30": [1.0]}}
    (group,) = FigureRuns(figure, [entry(rounds=30, spectra=half)]).group_lines(figure.panels[0])
    assert TRACKED["less divergence without low frequencies, %"](group) == pytest.approx(50.0)
    many = {"gradient-divergence/before": [2.0, 1.0] * 7, "gradient-divergence/after": [1.5, 1.0] * 7}
    spectra = {name: {"30": row} for name, row in many.items()}
    (chart,) = draw(FigureRuns(figure, [entry(rounds=30, spectra=spectra)]))
    assert [one.get_ydata().tolist() for one in chart.figure.axes[0].lines] == [[2.0] * 7, [1.5] * 7]

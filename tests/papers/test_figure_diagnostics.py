"""Runs of cells and figures that measure more: what is tracked, kept and looked at, and what of it is drawn."""

import json
from pathlib import Path

import pytest
from invented import made_up

from fedkeel.cli.figures import find_extent, fit_tracks
from fedkeel.cli.main import call
from fedkeel.papers.figures import find_figure, find_needs, read_figures
from fedkeel.papers.reproduce import experiment_of, folder_of
from fedkeel.report.figure_page import compare_with_paper
from fedkeel.report.figure_runs import FigureRuns
from fedkeel.report.numbers import COLUMNS, TRACKED
from fedkeel.studies.diagnose import write_diagnostic
from fedkeel.studies.extent import Extent


def test_rounds_that_a_short_run_does_not_reach_give_way_to_its_own_moments():
    asked = ("gradient-spectrum@30+60", "drift")
    assert fit_tracks(asked, None) == asked
    assert fit_tracks(asked, 30) == asked
    assert fit_tracks(asked, 29) == ("gradient-spectrum", "drift")


def test_a_run_of_a_figure_serves_the_other_figures_of_its_cells():
    """FedSAM on CIFAR-10 at 0.1 is in FedFFT's figures 1, 4, 7 and 8."""
    assert find_needs(find_figure("fedfft:figure-4")) == (["perturbation-spectrum"], "best")
    both = ["gradient-spectrum@30+60+90+120", "gradient-divergence@30"]
    assert find_needs(find_figure("specgradfilter:figure-1")) == (both, None)
    assert find_needs(None) == ([], None)


def test_every_figure_asks_for_an_extent_that_there_is():
    for figure in read_figures():
        found = find_extent(figure, tiny=False)
        assert found.changes().keys() == set(figure.extent), figure.name
        assert bool(found.which == "best") == bool(figure.keep), figure.name
        assert find_extent(figure, tiny=True).clients == 3
    assert find_extent(None, tiny=False) == Extent()


def test_unknown_names_are_refused_before_anything_runs(capsys, tmp_path):
    words = ["reproduce", "fedscam:1", "--out", str(tmp_path / "runs"), "--ledger", str(tmp_path / "ledger.jsonl")]
    for option, wrong, told in (
        ("--track", "radios", "nothing to track is called: radios"),
        ("--analyse", "clutsers", "unknown diagnostic: clutsers"),
        ("--keep", "worst", "--keep takes best"),
    ):
        assert call([*words, option, wrong]) == 2
        assert told in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def tiny(tmp_path, *words):
    places = ["--out", str(tmp_path), "--figures", str(tmp_path / "figures"), "--engine", "serial", "--no-progress"]
    return call(["reproduce", *words, "--tiny", *places])


@pytest.mark.slow
def test_cells_are_tracked_kept_and_analysed_as_asked(tmp_path, capsys):
    """FedSCAM's figures 1 and 9 from a cell of its table: the radius and the drift by round."""
    asked = ["--track", "radius,drift", "--analyse", "drift,clusters", "--keep", "best"]
    assert tiny(tmp_path, "fedscam:1", "--cell", "FedSCAM", *asked) == 0
    (folder,) = (path.parent for path in tmp_path.rglob("experiment.toml"))
    first = json.loads((folder / "rounds.jsonl").read_text().splitlines()[0])["extra"]
    assert {"radius/mean", "radius/most", "update/cosine"} <= first.keys()
    assert {path.stem for path in (folder / "analysis").iterdir()} == {"drift", "clusters"}
    assert list((folder / "checkpoint").glob("best-*"))
    capsys.readouterr()
    assert tiny(tmp_path, "fedscam:1", "--cell", "FedSCAM", *asked, "--track", "radius,spectrum") == 0
    again = capsys.readouterr().err
    assert "was made without tracking spectrum" in again
    assert "analysing" not in again  # what the folder has is not taken again


@pytest.mark.slow
def test_runs_of_a_claim_are_done_once_the_ledger_has_their_spectra(tmp_path, capsys):
    claim = ["claims:gradient-drift", "--skip-done", "--dry-run"]
    assert tiny(tmp_path, "specgradfilter:I", "--cell", "FedAvg, cifar10, 0.1") == 0  # tracks nothing
    assert tiny(tmp_path, *claim) == 0
    assert "1 run of 1 cell;" in capsys.readouterr().out
    other = tmp_path / "other"
    assert tiny(other, "claims:gradient-drift") == 0
    capsys.readouterr()
    assert tiny(other, *claim) == 0
    assert "0 runs of 1 cell;" in capsys.readouterr().out
    (line,) = (other / "tiny" / "ledger.jsonl").read_text().splitlines()
    assert "gradient-spectrum/distance" in json.loads(line)["spectra"]


CHARTS = {
    "fedfft:figure-1": ["perturbation-spectrum-1", "perturbation-spectrum-2", "perturbation-spectrum-3"],
    "fedfft:figure-4": ["perturbations-pca", "features-pca", "parameters-pca"],
    "fedfft:figure-7": ["landscape-surface-1", "landscape-surface-2", "landscape-surface-3"],
    "fedfft:figure-8": ["landscape-above", "hessian"],
    "specgradfilter:figure-1": ["gradient-spectrum"],
    "specgradfilter:figure-2": ["gradient-divergence"],
    "fedwmsam:figure-5": ["samples-tsne", "client-samples-tsne"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CHARTS)
def test_diagnostic_figures_are_drawn_at_their_own_settings(name, tmp_path):
    assert tiny(tmp_path, name) == 0
    stem = name.replace(":", "-")
    assert {path.name for path in Path(tmp_path, "figures").glob("*.png")} == {
        f"{stem}-{chart}.png" for chart in CHARTS[name]
    }
    figure = find_figure(name)
    for path in tmp_path.rglob("analysis/*.json"):
        found = json.loads(path.read_text())
        assert found["which"] == figure.extent.get("which", "last")
        if path.stem in ("hessian", "landscape"):
            assert found["split"] == "test"
        if path.stem == "embedding":
            assert {"plane" in kind for kind in found["kinds"].values()} == {figure.shared}


def test_numbers_of_diagnostics_are_held_against_what_the_paper_says(tmp_path):
    figure = find_figure("fedfft:figure-8")
    places = {"FedSAM": 9.0, "FedSMOO-D": 2.0, "FedFFT-D": 4.0}  # of the fourth there is nothing
    runs = FigureRuns(figure, [], tmp_path, seeds=(0, 1, 2))
    for cell in figure.cells:
        for seed in (0, 1, 2) if cell.row in places else ():
            folder = folder_of(experiment_of(cell, seed), tmp_path)
            made_up(folder, rounds=2, tracked=False, seed=seed, level=1.0)
            value = 50.0 if seed == 2 else places[cell.row]
            found = {"eigenvalues": [value], "trace": 1.0, "sharpness": 0.1, "rho": 0.05, "round": 2}
            if (seed, cell.row) != (2, "FedFFT-D"):  # so that others' third seed is compared with nothing
                write_diagnostic(folder, "hessian", found)
    told = compare_with_paper(runs)
    learnt = "2 seeds, {}: 22.6 % at round 2; FedFFT-D: 22.6 % at round 2"
    assert f"FedSAM is above FedFFT-D, by +5 (top eigenvalue, {learnt.format('FedSAM')})" in told.same
    assert f"FedSMOO-D is not above FedFFT-D, by -2 (top eigenvalue, {learnt.format('FedSMOO-D')})" in told.differs
    assert f"FedSAM is not above FedFFT-D, by +0 (trace, {learnt.format('FedSAM')})" in told.differs
    assert not [line for line in (*told.same, *told.differs) if line.startswith("FedGloSS-D is")]


def test_the_lowest_band_is_held_against_the_mean_of_the_others(tmp_path):
    figure = find_figure("fedfft:figure-1")
    runs = FigureRuns(figure, [], tmp_path, seeds=(0, 1))
    for cell, seed in [(cell, seed) for cell in figure.cells[:2] for seed in (0, 1)]:
        low = 6.0 if cell.column.endswith("0.1") else 1.0
        rows = {"distance": (1.0, 1.0, 1.0), "variance": (low, 2.0, 2.0)}
        extra = {f"perturbation-spectrum/{n}/{m}": v for n, row in rows.items() for m, v in enumerate(row, 1)}
        folder = folder_of(experiment_of(cell, seed), tmp_path)
        made_up(folder, rounds=2, tracked=False, extra=extra, seed=seed, level=1.0)
    told = compare_with_paper(runs)
    words = "CIFAR-10 lowest band of perturbations over the others, 2 seeds, 22.6 % at round 2"
    assert f"cifar10, 0.1 has 3, expected above 1 ({words})" in told.same
    assert f"cifar10, 0.6 has 0.5, expected above 1 ({words})" in told.differs


def test_every_number_that_a_figure_names_is_known():
    known = {column[1] for column in COLUMNS} | TRACKED.keys()
    for figure in read_figures():
        assert {number for panel in figure.panels for number in panel.numbers} <= known, figure.name

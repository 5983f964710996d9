"""The figures that stand in the documentation: their page is what the ledger says."""

from pathlib import Path

import pytest

from fedkeel.cli.main import call
from fedkeel.papers import ledger
from fedkeel.papers.figures import find_figure
from fedkeel.report.figure_page import file_name
from fedkeel.report.gallery import PAGE, SHOWN, find_images, list_shown, page

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "figures"


@pytest.mark.slow
def test_the_page_is_made_from_the_ledger_and_its_images_are_there():
    entries = ledger.read_lines(ROOT / "results" / "ledger.jsonl")
    assert (FOLDER / PAGE).read_text(encoding="utf-8") == page(entries, FOLDER)
    assert [figure.name for figure in list_shown()] == list(SHOWN)
    used = {path for figure in list_shown() for path in find_images(figure, FOLDER)}
    assert used == set(FOLDER.glob("*.png"))  # nothing is left behind
    assert sum(path.stat().st_size for path in used) < 2e6


@pytest.mark.slow
def test_the_command_draws_what_the_ledger_has_and_says_what_it_cannot(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("FEDKEEL_DATA", str(tmp_path / "none"))
    entries = ledger.read_lines(ROOT / "results" / "ledger.jsonl")
    kept = [one for one in entries if one.paper == "fedfft" and one.rounds == 800]
    for one in kept:
        ledger.append(one, tmp_path / "some.jsonl")
    assert call(["reproduce", "--gallery", str(tmp_path / "out"), "--ledger", str(tmp_path / "some.jsonl")]) == 0
    said = capsys.readouterr()
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"fedfft-figure-6.png", PAGE}
    assert "fedscam:figure-18 is not drawn" in said.err
    text = (tmp_path / "out" / PAGE).read_text(encoding="utf-8")
    assert "![FedFFT, figure 6](fedfft-figure-6.png)" in text
    (line,) = [line for line in text.splitlines() if line.startswith("- fedfft:1, 800 rounds, seeds 0, 1, 2: ")]
    assert {"FedSAM-D, cifar10, 0.1", "FedFFT-D, cifar10, 0.1"} <= {*line.partition(": ")[2].split("; ")}
    assert "no run of 60 cells of 60" in text


def test_images_of_a_figure_are_not_those_of_one_that_begins_alike(tmp_path):
    figure = find_figure("fedscam:figure-1")
    for name in (
        "fedscam-figure-1.png",
        "fedscam-figure-1-b.png",
        "fedscam-figure-18-labels.png",
        "fedscam-figure-1.svg",
    ):
        (tmp_path / name).touch()
    assert [path.name for path in find_images(figure, tmp_path)] == [
        f"{file_name(figure)}-b.png",
        "fedscam-figure-1.png",
    ]

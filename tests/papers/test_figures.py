"""The registry of figures: every figure of the papers, its cells, and what it says held against numbers."""

import re
from pathlib import Path

import pytest

import fedkeel as fk
from fedkeel.cli.main import call
from fedkeel.papers import PAPERS, find, tables
from fedkeel.papers.cells import collect_notes
from fedkeel.papers.figure_readings import Numbers, read_expectations
from fedkeel.papers.figures import KINDS, find_figure, read_figures
from fedkeel.papers.reproduce import chosen, obstacle
from fedkeel.papers.shrink import settings_shown, shrink
from fedkeel.papers.verdicts import Judgement
from fedkeel.runs.observers import find_observers
from fedkeel.studies.diagnose import DIAGNOSTICS

ROOT = Path(__file__).parents[2]
LAST = {"fedfft": 9, "specgradfilter": 8, "fedscam": 27, "fedwmsam": 6, "fedfsa": 5}
SCHEMATICS = {"specgradfilter": {3}, "fedwmsam": {1, 2, 3}, "fedfsa": {1, 2}}


def test_every_figure_of_every_paper_is_entered_once_and_schematics_are_named():
    for paper, last in LAST.items():
        mine = [figure for figure in read_figures() if figure.paper == paper]
        assert [int(figure.number) for figure in mine] == list(range(1, last + 1))
        assert {int(f.number) for f in mine if f.schematic} == SCHEMATICS.get(paper, set())
    assert set(LAST) <= PAPERS.keys()


def test_figures_have_what_their_kinds_need():
    for figure in read_figures():
        find_observers(figure.track)
        assert {*figure.analyse} <= DIAGNOSTICS.keys(), figure.name
        lines = {panel.line_of(cell) for panel in figure.panels for cell in panel.cells}
        for expected in figure.expects:
            assert {expected["line"], expected.get("over", expected["line"])} <= lines, figure.name
        for panel in figure.panels:
            assert panel.kind in KINDS
            assert panel.cells
            assert bool(panel.x) == (panel.kind == "parameter")
            assert bool(panel.charts) == (panel.kind == "charts")
            if panel.x:
                by_line = {}
                for cell in panel.cells:
                    by_line.setdefault(panel.line_of(cell), []).append(panel.value_of(cell))
                assert all(len(values) == len(set(values)) > 1 for values in by_line.values()), figure.name
            assert all(panel.base_of(cell) for cell in panel.cells if panel.over)


def test_tiny_cells_can_be_run_and_still_differ_in_what_a_figure_shows():
    seen = set()
    for figure in read_figures():
        small = figure.with_cells(shrink(figure.cells, settings_shown(figure)))
        assert len(small.cells) == len(figure.cells)
        for cell in small.cells:
            if (name := repr(cell.experiment)) not in seen:
                assert obstacle(cell) is None, (figure.name, cell.label)
            seen.add(name)
            assert cell.experiment["dataset"] == "digits"
            assert cell.reported is None
        for before, after in zip(figure.panels, small.panels, strict=True):
            if before.x:
                assert [before.value_of(c) for c in before.cells] == [after.value_of(c) for c in after.cells]


def test_tiny_cells_name_no_layers_of_another_network():
    for cell in shrink([*find("fedfft:11"), *find("specgradfilter:II")]):
        assert "On" not in repr(cell.experiment["method"])
        assert "layers" not in cell.experiment["method"]


@pytest.mark.parametrize("paper", PAPERS)
def test_every_table_can_be_asked_and_stands_in_the_list_or_in_a_figure_of_it(paper):
    drawn = {cell.table for figure in read_figures() if figure.paper == paper for cell in figure.cells}
    for table in tables(paper):
        asked = {cell.place for cell in chosen(f"{paper}:{table.name}", None)}
        assert {cell.place for cell in table.cells} <= asked
        assert table.name in drawn or not table.name.startswith("figure-")


def test_a_figure_is_found_by_its_name_whole_or_by_panel():
    assert find_figure("fedfft:1") is None
    assert find_figure("fedfft") is None
    whole, part = find_figure("fedfft:figure-3"), find_figure("fedfft:figure-3a")
    assert len(whole.panels) == 3
    assert [panel.x for panel in part.panels] == ["participation"]
    every = chosen("fedfft:figure-3", None)
    assert all(cell in every for cell in chosen("fedfft:figure-3a", None))
    assert len(chosen("fedfsa:figure-3b", None)) == 8  # the table has more radii than the figure shows
    for typo in ("figur-9", "fig9"):
        with pytest.raises(fk.RequestError) as refused:
            find_figure(f"fedfft:{typo}")
        assert refused.value.hint == "did you mean 'fedfft:figure-9'?"
    with pytest.raises(fk.RequestError, match="fedfft has no figure: 12"):
        find_figure("fedfft:figure-12")
    with pytest.raises(fk.RequestError, match="no panel z"):
        find_figure("fedfft:figure-3z")


def read(expected, **lines):
    numbers = Numbers("p", {name: dict(zip("abc", values, strict=False)) for name, values in lines.items()})
    return [(one.words, one.holds) for one in read_expectations([expected], lambda names: [numbers])]


def test_expectations_are_read_off_the_numbers():
    lead = {"line": "A", "over": "B"}
    assert read(lead, A=[3, 2], B=[1, 1]) == [("A is above B at 2 of 2 places, by +1.00 to +2.00 points", True)]
    assert read(lead, A=[3, 0], B=[1, 1]) == [("A is above B at 1 of 2 places, by -1.00 to +2.00 points", False)]
    assert read(lead, A=[1], B=[1]) == [("A is not above B, by +0.00 points", False)]
    assert read(lead, A=[1]) == []
    best = {"line": "A", "best": "b"}
    assert [holds for _, holds in read(best, A=[1, 3, 2])] == [True]
    assert [holds for _, holds in read(best, A=[4, 3, 2])] == [False]
    assert read(best, A=[1]) == []
    for word, numbers, holds in (
        ("rises", [1, 0, 2], True),
        ("falls", [1, 0, 2], False),
        ("falls", [1, 1], False),
        ("rises", [1, 1], False),
    ):
        assert [one for _, one in read({"line": "A", word: True}, A=numbers)] == [holds]
    assert read({"line": "A", "steady": 1.0}, A=[1, 2, 1.5]) == [("A varies by 1.00 points; steady is at most 1", True)]
    with pytest.raises(fk.RequestError, match="no figure expects this"):
        read({"line": "A", "wobbles": True}, A=[1])


def test_a_schematic_has_nothing_to_measure(capsys):
    assert call(["reproduce", "fedwmsam:figure-3"]) == 0
    assert "fedwmsam:figure-3 is a schematic, nothing to measure" in capsys.readouterr().out


def test_a_figure_without_runs_says_in_one_line_what_to_run(tmp_path, capsys):
    words = ["--ledger", str(tmp_path / "none.jsonl"), "--out", str(tmp_path), "--figures", str(tmp_path / "f")]
    assert call(["reproduce", "fedfft:figure-9", "--draw", *words]) != 0
    error = capsys.readouterr().err
    assert "there is nothing to draw fedfft:figure-9 from" in error
    assert "`fedkeel reproduce fedfft:figure-9` runs its 8 cells" in error
    assert not (tmp_path / "f").exists()


def test_the_guide_has_every_measured_figure_with_its_command():
    text = (ROOT / "docs" / "guides" / "papers.md").read_text()
    told = re.findall(r"^\| `fedkeel reproduce (\S+)` \| (.+?) \|", text, re.M)
    assert dict(told) == {figure.name: figure.says for figure in read_figures() if not figure.schematic}


def test_a_table_that_its_paper_does_not_explain_says_what_is_known(capsys):
    assert call(["reproduce", "fedwmsam:2"]) == 0
    said = capsys.readouterr().out
    assert "known      every client is active in every round" in said
    assert "not known  '10 % sample': of what" in said
    assert re.search(r"FedWMSAM +99.42 +96.50 +97.90 +97.17", said)


def test_a_dry_run_shows_settings_and_what_the_paper_leaves_open(capsys, tmp_path):
    words = ["--dry-run", "--ledger", str(tmp_path / "none.jsonl")]
    assert call(["reproduce", "fedfsa:1", "--cell", "FedFSA, cifar10, Dir 0.5", "--seeds", "paper", *words]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "3 runs of 1 cell;" in said
    for told in (
        "alpha=0.5",
        "rho=0.1 rho_larger=0.2 top=2",
        "open in fedfsa, and chosen:",
        "the paper's are 23,100,200",
    ):
        assert told in said
    assert call(["reproduce", "fedfft:1", "--seeds", "paper", *words]) != 0
    assert "fedfft does not name its seeds" in capsys.readouterr().err
    assert call(["reproduce", "fedwmsam:1", "--cell", "FedSAM, cifar10, 0.1", *words]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "alpha=0.1 (α assumed)" in said
    assert "not known Dirichlet's coefficients" in said


def test_verdicts_say_what_they_rest_on():
    cells = [cell for cell in find("fedwmsam:1") if cell.row == "FedSAM"]
    assert all(cell.assumed for cell in cells)
    assert not any(cell.assumed for cell in find("fedfft:1"))
    (mine,) = (cell for cell in cells if cell.column == "cifar10, 0.1")
    assert Judgement(mine, (), (), "not run").words == "not run"
    assert Judgement(mine, (None,), (50.0,), "differs").words == "differs; α assumed"


def test_notes_say_what_they_are_about():
    cells = [cell for cell in find("fedfft:1") if cell.column in ("cifar10, 0.1", "cifar10, 0.6")]
    notes = collect_notes(cells)
    assert any(note.startswith("FedGloSS-D: No hyper-parameters given") for note in notes)
    alone = [cell for cell in cells if cell.row == "FedGloSS-D"]
    assert [note.split(":")[0] for note in collect_notes(alone)] == [
        "No hyper-parameters given; radii and 1/β as for the others."
    ]
    assert collect_notes([cell for cell in find("fedwmsam:1") if cell.row == "FedAvg" and "0.6" in cell.column]) != []

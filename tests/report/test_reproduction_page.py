"""The page drawn from a ledger: whole, self-contained, and about every cell that was measured."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from fedkeel.cli.main import call
from fedkeel.papers import find, results_page
from fedkeel.papers.ledger import Entry, append, read_lines
from fedkeel.papers.ledger import read as read_ledger
from fedkeel.papers.reproduce import done, runs_of, settings_of
from fedkeel.papers.verdicts import judge
from fedkeel.report.dots import Dot, dot_chart
from fedkeel.report.gallery import page as gallery_page
from fedkeel.report.reproduction import page

VOID = {"meta", "link"}


class Nesting(HTMLParser):
    """Fails on an element that is closed out of turn; gathers text and addresses."""

    def __init__(self):
        super().__init__()
        self.open, self.text, self.addresses = [], [], []

    def handle_starttag(self, tag, attrs):
        self.addresses += [value for name, value in attrs if name in ("href", "src")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def line(cell, value, rounds, **changes):
    return Entry(
        cell.paper, cell.table, cell.row, cell.column, 0, cell.kind, cell.evaluation, cell.reported, cell.spread, value,
        value, value, value, rounds, cell.experiment["rounds"], 60.0, "f", "d", settings=settings_of(cell) | changes,
        bests=[[1, 10.0], [rounds, value]], environment={"device": "cpu"},
    )  # fmt: skip


def ledger():
    cells = {c.row: c for c in find("fedfft:1") if c.column == "cifar10, 0.1"}
    lines = [line(cells["FedSAM"], 75.0, 800), line(cells["FedFFT"], 60.0, 200), line(cells["FedAvg"], 60.0, 800)]
    return [*lines, line(cells["FedAvg"], 75.9, 800, lr=0.05)]


def read(text):
    reader = Nesting()
    reader.feed(text)
    return reader


@pytest.fixture(scope="module")
def text():
    return page(ledger(), "A <title>")


@pytest.mark.slow
def test_the_page_is_whole_and_asks_for_nothing(text):
    found = read(text)
    assert found.open == []
    assert [address for address in found.addresses if not address.startswith("#")] == ["data:,"]
    assert "<script" not in text
    assert not re.search(r"url\((?!#)", text)
    assert "A &lt;title&gt;" in text
    assert text == page(ledger(), "A <title>")


@pytest.mark.slow
def test_the_page_tells_numbers_leads_contradictions_and_what_was_tried(text):
    words = " ".join(" ".join(read(text).text).split())
    for expected in ("FedSAM, cifar10, 0.1", "200 of 800", "FedFFT − FedSAM", "within seed noise", "74.92"):
        assert expected in words
    assert "lr = 0.05 (chosen: 0.1): 75.90" in " ".join(words.replace("lr = 0.05 (", "lr = 0.05 (").split())
    assert "Not measured, and why" in words
    assert "Contradictions" not in " ".join(read(page([], "t")).text)


def test_rows_without_a_curve_are_named_and_another_seed_is_drawn():
    cells = {c.row: c for c in find("fedfft:1") if c.column == "cifar10, 0.1"}
    old = replace(line(cells["FedAvg"], 60.0, 800), bests=[])
    again = [replace(line(cells["FedDyn"], 70.0, 800), bests=[]), replace(line(cells["FedDyn"], 71.0, 800), seed=1)]
    text = page([old, *again, line(cells["FedSAM"], 75.0, 800)], "Curves")
    assert "cifar10, 0.1: best accuracy so far, by round, one seed each; not recorded for FedAvg<" in text
    assert text.count("FedDyn</text>") == 1


def test_each_number_has_the_bar_of_its_own_deviation():
    (axes,) = dot_chart([Dot("a", reported=70.0, spread=1.0, measured=60.0, std=5.0, verdict="")]).axes
    bars = [bar.get_segments()[0][:, 0].tolist() for _, _, (bar,) in axes.containers]
    assert bars == [[69, 71], [55, 65]]


def test_the_command_draws_a_ledger(tmp_path, capsys, drawn_only):
    book, out = tmp_path / "ledger.jsonl", tmp_path / "new" / "page.html"
    again = replace(ledger()[0], seconds=61.0, model_digest="e")  # takes the place of the first
    for one in (*ledger(), again):
        append(one, book)
    assert call(["report", "--ledger", str(book), "-o", str(out)]) == 0
    told, text = capsys.readouterr(), out.read_text(encoding="utf-8")
    assert told.out.strip() == str(out)
    assert "4 runs of the ledger" in told.err
    assert text.startswith("<!doctype html>")
    assert '<p class="soft">4 runs · ' in text
    assert call(["report"]) == 2


def test_a_superseded_run_is_shown_and_counts_for_nothing(tmp_path, drawn_only):
    """Whatever asks the ledger: verdicts, what is to be run, both pages; a new run of the cell takes its place."""
    cell = next(c for c in find("fedfft:1") if (c.row, c.column) == ("FedAvg", "cifar10, 0.1"))
    old = replace(line(cell, 75.9, 800), superseded="computed otherwise")
    book = tmp_path / "ledger.jsonl"
    append(old, book)
    (entry,) = read_ledger(book)
    assert entry == old
    assert runs_of(cell, [entry]) == []
    assert not done(cell, 0, None, [entry])
    assert [judged.entries for judged in judge([cell], [entry])] == [()]
    markdown, drawn = results_page.page([entry]), "".join(read(page([entry], "Ours")).text)
    for text in (markdown, drawn):
        assert text.count("computed otherwise") == 1
        assert text.count("75.90") == 1
    append(line(cell, 70.0, 800), book)
    (entry,) = read_ledger(book)
    assert done(cell, 0, None, [entry])
    assert "Superseded" not in results_page.page([entry])


@pytest.mark.slow
def test_a_number_is_as_near_the_papers_in_a_figure_as_in_its_table(tmp_path, monkeypatch, capsys):
    cells = {c.row: c for c in find("fedfft:1") if c.column == "cifar10, 0.1"}
    cell, far = cells["FedSAM-D"], line(cells["FedAvg"], 40.0, 800)
    value = cell.reported + 2.0
    seeds = [replace(line(cell, value, 800), seed=seed) for seed in (0, 1)]
    again = replace(line(cell, value - 3.0, 800), seconds=61.0, model_digest="e")  # what a run varies by
    monkeypatch.chdir(tmp_path)
    for entry in (again, *seeds, far):
        append(entry, tmp_path / "ledger.jsonl")
    lines = read_lines(tmp_path / "ledger.jsonl")
    (row,) = (one for one in results_page.page(lines).splitlines() if one.startswith(f"| {cell.label} |"))
    assert row.endswith("| within seed noise |")
    told = "within seed noise: 1 of 2 printed numbers"
    words = ["reproduce", "fedfft:figure-6", "--ledger", "ledger.jsonl"]
    assert call([*words, "--draw"]) == 0
    for made in (page(lines, "A title"), gallery_page(lines, tmp_path), capsys.readouterr().out):
        assert told in made

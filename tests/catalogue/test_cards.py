"""Cards of methods: read from docstrings and counted, for every method of the table."""

import inspect
import io
import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
from every_method import few_by_default
from for_each import for_each
from rich.console import Console

import fedkeel as fk
from fedkeel.catalogue import cards
from fedkeel.catalogue.cards import costs, meaning, sentences_about
from fedkeel.catalogue.pages import page
from fedkeel.cli.methods import NOTES, show_card
from fedkeel.core.method import Phase, method
from fedkeel.core.objectives import Calibrated
from fedkeel.methods import METHODS, PLUGINS, build, hyperparameters, papers_of
from fedkeel.methods.optimisers import give_optimiser
from fedkeel.methods.rule_papers import PAPERS, PAPERS_OF_KINDS
from fedkeel.papers.citations import CITATIONS, authors, field, title
from fedkeel.rules import RULES, AdamW, BySize, HighPass, ModelEma, On, Sam, ServerMomentum, Uniform

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "methods"
card = cache(cards.card)  # to count what a method sends, it is trained


@cache
def told(name):
    """The card, but for what is counted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cards, "costs", lambda method: None)
        return cards.card(name)


def test_every_method_has_a_card():
    for name in METHODS:
        made = told(name)
        assert made.summary, name
        assert made.family, name
        assert [p.name for p in made.hyperparameters] == list(hyperparameters(METHODS[name])), name
        assert made.passes[0].isdigit(), name


def test_every_paper_of_a_method_can_be_cited():
    for name in METHODS:
        papers = build(name).papers
        assert papers, name
        assert set(papers) <= set(CITATIONS), name
        assert papers_of(build(name)) == papers, name


def names_paper(key, text):
    """Whether a docstring names a paper, by what it is called or by who wrote it."""
    words = {re.sub(r"[^a-z]", "", word.lower()) for word in re.findall(r"[\w-]+", text)}
    return key in words or authors(key) in " ".join(text.split())


def test_the_papers_of_a_rule_are_those_that_its_docstring_names():
    for name, rule in RULES.items():
        text = inspect.getdoc(rule)
        assert all(names_paper(key, text) for key in PAPERS_OF_KINDS[rule]), name
        known = any(PAPERS_OF_KINDS.get(kind) for kind in rule.__mro__) or rule is HighPass
        source = re.findall(r"\(([^()]*\d{4})\)", text)
        assert known or not any(names_paper(key, part) for part in source for key in CITATIONS), name
    assert set(PAPERS) <= set(CITATIONS)


def test_a_composition_cites_the_papers_of_its_rules_once():
    parts = {"perturb": [Sam(0.1), HighPass(0.1)], "gradient": [On("fc.*", HighPass(0.1)), HighPass(0.2)]}
    made = method("mine", **parts, weights=Uniform(), server=[ServerMomentum(0.9), ModelEma(0.9)])
    mine = ("sam", "fedfft", "specgradfilter", "fedavgm", "ema")
    assert papers_of(made) == mine
    assert papers_of(give_optimiser(made, AdamW())) == ("adamw", *mine)
    assert papers_of(replace(made, papers=("plgu",))) == ("plgu", *mine)
    assert papers_of(method("mine", weights=Uniform(), objective=Calibrated(0.5))) == ("fedlc",)


@for_each(
    ("name", "down", "up", "client", "server"),
    [
        ("fedavg", 1, 1, [], []),
        ("fedsam", 1, 1, [], []),
        ("fedcm", 2, 1, [], ["momentum"]),
        ("scaffold", 2, 2, ["c_i"], ["c"]),
        ("feddyn", 1, 1, ["h_i"], ["h"]),
        ("fedavgm", 1, 1, [], ["velocity"]),
        ("fedfft-s", 2, 2, ["c_i"], ["c"]),
    ],
)
def test_bytes_and_state_are_those_of_the_papers(name, down, up, client, server):
    found = card(name).costs
    assert (found.down, found.up) == (down, up)
    assert (list(found.client), list(found.server)) == (client, server)
    assert all(share == 1 for share in (*found.client.values(), *found.server.values()))


def test_costs_are_counted_in_silence(monkeypatch, capsys):
    monkeypatch.setattr("fedkeel.runs.progress_line.is_watched", lambda: True)
    assert costs(build("fedavg")) is not None
    assert capsys.readouterr() == ("", "")


def test_passes_phase_by_phase():
    made = card("fedsam")
    assert made.passes == "2 per local step"
    phases = (Phase(gradient=(), batches=3, trains=False, uploads=False), Phase(perturb=(Sam(0.1),)))
    assert made.__class__.passes.fget(_with_phases(made, phases)) == "1 on each of 3 batches, then 2 per local step"


def _with_phases(made, phases):
    from dataclasses import replace

    return replace(made, method=replace(made.method, phases=phases))


def test_sentences_with_a_value_come_first():
    text = "Use rho well. rho = 0 is plain.  min_rho = 3 is not it.  (SAM, Foret et al. 2021)"
    assert sentences_about("rho", text) == ["rho = 0 is plain."]
    assert sentences_about("lam", "lam must be positive: with 0 it fails. Other words.") == [
        "lam must be positive: with 0 it fails."
    ]


def test_meanings_come_from_the_rule_that_has_the_field():
    both = method("x", perturb=[Sam(0.1), HighPass(0.1)], weights=BySize())
    assert meaning("ratio", both).startswith("ratio = 0")
    assert meaning("mu", both) == ""


def test_a_method_that_needs_more_than_a_sample_problem_has_no_costs():
    from fedkeel.core.rule import Rule
    from fedkeel.errors import DataError

    class Demanding(Rule):
        def start(self, params, client, message):
            raise DataError("needs more")

    assert costs(method("x", gradient=[Demanding()], weights=BySize())) is None


# ---- citations ----
def test_entries_are_whole():
    for key, entry in CITATIONS.items():
        assert re.match(rf"@\w+{{{key},\n", entry), key
        assert entry.endswith("\n}"), key
        assert entry.count("{") == entry.count("}"), key
        assert authors(key), key
        assert title(key), key
        assert "\n" not in title(key), key


def test_how_a_text_refers_to_a_paper():
    assert authors("fedavg") == "McMahan et al. 2017"
    assert authors("fedlw") == "Yao and Wang 2025"
    assert title("scaffold") == "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning"
    assert field(CITATIONS["fedavg"], "pages") == ""


def test_the_card_of_a_plugin_on_a_base_tells_of_both():
    made = card("specgradfilter+scaffold")
    assert made.family == "spectral"
    assert {p.name for p in made.hyperparameters} >= {"ratio"}
    assert "Control variates" in made.about
    assert (made.costs.down, made.costs.up) == (2, 2)


# ---- what the papers say --------------------------------------------------------------------------------------------
def test_every_hyperparameter_is_explained():
    for name in (*METHODS, *(f"{plugin}+fedsam" for plugin in PLUGINS)):
        assert [h.name for h in told(name).hyperparameters if not h.meaning] == [], name


COSTS = {
    "fedavg": (1, 1), "fedavgm": (1, 1), "fedprox": (1, 1), "scaffold": (2, 2), "feddyn": (1, 1), "fedcm": (2, 1),
    "fedsam": (1, 1), "mofedsam": (2, 1), "fedgamma": (2, 2), "fedspeed": (1, 1), "fedsmoo": (2, 2), "fedlesam": (1, 1),
    "fedlesam-s": (2, 2), "fedlesam-d": (1, 1), "fedlesam@released": (2, 1), "fedgloss": (1, 1), "fedwmsam": (3, 2),
    "fedfft": (1, 1), "fedfft-s": (2, 2), "fedfft-d": (1, 1), "specgradfilter": (1, 1), "fedfsa": (2, 1),
    "fedscam": (1, 1), "q-fedavg": (1, 1), "fedawa": (1, 1), "fedlws": (1, 1), "fedlaw": (1, 1), "feddc": (2, 2),
    "fedala": (1, 1), "ditto": (1, 1), "fedsol": (1, 1), "fedlc": (1, 1), "feddisco": (1, 1), "fednova": (1, 1),
    "fedyogi": (1, 1), "fedadagrad": (1, 1), "fedexp": (1, 1), "ghbm": (2, 1), "localghbm": (1, 1), "fedhbm": (1, 1),
    "fednsam": (2, 1), "fedgmt": (2, 1), "feddecorr": (1, 1), "local-adamw": (1, 1), "local-muon": (1, 1),
    "fedadamw": (2, 1), "fedmuon": (3, 2), "fedmuon-lmo": (2, 2), "fedpac": (3, 2), "fedswa": (1, 1),
    "fedmoswa": (2, 2), "fedswa@released": (1, 1), "fednsam@released": (1, 1), "fedmuon@released": (3, 2),
}  # fmt: skip
"""Sent down and up, in models."""


@pytest.mark.parametrize("name", few_by_default(COSTS))
def test_bytes_are_those_of_the_papers(name):
    costs = card(name).costs
    assert (costs.down, costs.up) == pytest.approx(COSTS[name], abs=0.06)


# ---- pages ---------------------------------------------------------------------------------------------------------
def test_every_method_has_a_page_and_no_page_is_left_over():
    assert {path.stem for path in PAGES.glob("*.md")} == {"README", *fk.METHODS}


def test_the_readme_counts_the_methods_that_there_are():
    said = " ".join((PAGES.parents[1] / "README.md").read_text(encoding="utf-8").split())
    released = sum(name.endswith("@released") for name in fk.METHODS)
    counts = f"{len(fk.METHODS)} methods against it, {released} of them as their authors' released code has them."
    assert counts in said
    assert f"[{len(fk.METHODS)} methods](docs/methods/README.md)" in said


def test_a_page_is_what_its_card_makes_but_for_what_is_counted():
    counted = ("- bytes per round: ", "- the client keeps: ", "- the server keeps: ", "- the client holds ")
    for name in fk.METHODS:
        lines = (PAGES / f"{name}.md").read_text(encoding="utf-8").splitlines()
        assert [line for line in lines if not line.startswith(counted)] == page(told(name)).splitlines(), name


@pytest.mark.parametrize("name", few_by_default(sorted(fk.METHODS)))
def test_a_page_is_what_its_card_makes(name):
    assert (PAGES / f"{name}.md").read_text(encoding="utf-8") == page(card(name))


def test_the_guides_ten_lines_run(capsys):
    text = (ROOT / "docs" / "guides" / "methods.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]
    lines = [line for line in code.splitlines() if line.strip()]
    assert len(lines) <= 14
    exec(compile(code, "guide", "exec"), {"__name__": "guide"})
    assert float(capsys.readouterr().out) > 0.15


def test_the_page_of_one_method(fedkeel):
    assert fedkeel("methods", "fedavg", "--pages", "here").code == 0
    assert [path.name for path in Path("here").iterdir()] == ["fedavg.md"]
    assert "# fedavg" in Path("here/fedavg.md").read_text()


def test_a_card_tells_the_default_of_every_part():
    told = {one.name: one.default for one in card("adamw+fedadam").hyperparameters}
    assert told["beta2"] == "0.999 (adamw), 0.99 (fedadam)"
    assert told["beta1"] == 0.9  # both have the same


def test_the_list_of_methods_names_every_plugin():
    assert set(PLUGINS) <= set(re.findall(r"\w+", NOTES.partition("on any method")[2]))


@for_each("name", ["fedcr", "fedala", "fedlaw", "plgu"])
def test_a_card_and_its_page_tell_the_parts_alike_and_in_one_order(name):
    printed = io.StringIO()
    show_card(told(name), Console(file=printed, width=200))
    headings = re.findall(r"^\*\*([^*]+)\*\*$", page(told(name)), re.MULTILINE)
    assert "How clients are weighted" in headings
    assert [line for line in printed.getvalue().splitlines() if line in headings] == headings


def test_the_words_of_fedkeels_own_rules_are_not_said_of_others():
    @dataclass(frozen=True)
    class Blur(fk.Rule):
        """Blurs."""

        sigma: float = 1.0

    assert "gaussian" in meaning("sigma", build("specgradfilter"))
    assert meaning("sigma", method("own", gradient=[Blur()], weights=BySize())) == ""

"""Cards of methods: read from docstrings and counted, for every method of the table."""

import re

import pytest

from fedkeel.catalogue.cards import card, costs, meaning, sentences_about
from fedkeel.core.method import Phase, method
from fedkeel.methods import METHODS, build, hyperparameters
from fedkeel.papers.citations import CITATIONS, authors, field, title
from fedkeel.rules import BySize, HighPass, Sam


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_card(name):
    made = card(name)
    assert made.summary
    assert made.family
    assert [p.name for p in made.hyperparameters] == list(hyperparameters(METHODS[name]))
    assert made.passes[0].isdigit()


@pytest.mark.parametrize("name", METHODS)
def test_every_paper_of_a_method_can_be_cited(name):
    papers = build(name).papers
    assert papers
    assert set(papers) <= set(CITATIONS)


@pytest.mark.parametrize(
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
@pytest.mark.parametrize("key", CITATIONS)
def test_entries_are_whole(key):
    entry = CITATIONS[key]
    assert re.match(rf"@\w+{{{key},\n", entry)
    assert entry.endswith("\n}")
    assert entry.count("{") == entry.count("}")
    assert authors(key)
    assert title(key)
    assert "\n" not in title(key)


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

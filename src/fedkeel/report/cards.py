"""A method as a card: what it does, its rules with their values, where they come from."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedkeel.methods import METHODS
from fedkeel.report.source import flattened
from fedkeel.rules import RULES

CHAINS = {"perturb": "perturbation", "gradient": "gradient"}


@dataclass(frozen=True)
class RuleLine:
    """One rule in its place: `Sam(rho=0.1)`, and its own words."""

    place: str
    text: str
    about: str


@dataclass(frozen=True)
class Card:
    name: str
    about: str
    rules: tuple[RuleLine, ...]
    papers: tuple[str, ...]


def card(method: Mapping[str, Any]) -> Card:
    """From a method as `experiment.toml` holds it."""
    name, lines = str(method.get("name", "?")), []
    phases = method.get("phases", [{}])
    for number, phase in enumerate(phases, 1):
        where = f"phase {number}: " if len(phases) > 1 else ""
        for chain, title in CHAINS.items():
            lines += [line(f"{where}{title}", rule) for rule in phase.get(chain, ())]
    for part in ("personal", "server"):
        lines += [line(part, rule) for rule in method.get(part, ())]
    if "weights" in method:
        lines.append(line("weights", method["weights"]))
    return Card(name, first_words(METHODS.get(name)), tuple(lines), tuple(map(str, method.get("papers", ()))))


def line(place: str, rule: Mapping[str, Any]) -> RuleLine:
    name = str(rule.get("rule", "?"))
    fields = {key: value for key, value in rule.items() if key != "rule"}
    return RuleLine(
        place, f"{name}({', '.join(f'{k}={v}' for k, v in flattened(fields))})", first_words(RULES.get(name))
    )


def first_words(thing: Any) -> str:
    """The first paragraph of a docstring."""
    text = inspect.getdoc(thing) if thing is not None else None
    return " ".join((text or "").split("\n\n")[0].split())

"""A method as a card: what it does, its rules with their values, where they come from."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from fedkeel.methods import METHODS
from fedkeel.report.content import Setting
from fedkeel.report.source import flattened
from fedkeel.rules import RULES
from fedkeel.text import one_line

CHAINS = {"perturb": "perturbation", "gradient": "gradient"}


def cards(setting: Setting) -> str:
    return "".join(
        method_card(setting.index, group.label, group.runs[0].experiment.get("method", {})) for group in setting.groups
    )


def method_card(index: int, label: str, method: Mapping[str, Any]) -> str:
    """From a method as `experiment.toml` holds it."""
    words = first_words(METHODS.get(str(method.get("name"))))
    about = f"<p>{escape(words)}</p>" if words else ""
    rules = "".join(f"<dt>{escape(place)}</dt>{describe_rule(rule)}" for place, rule in list_rules(method))
    names = ", ".join(map(str, method.get("papers", ())))
    papers = f'<p class="soft">Papers: {escape(names)}</p>' if names else ""
    head = f'<div class="card" data-setting="{index}"><h3>{escape(label)}</h3>'
    return f'{head}{about}<dl class="rules">{rules}</dl>{papers}</div>'


def list_rules(method: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every rule with the name of its place."""
    phases = method.get("phases", [{}])
    for number, phase in enumerate(phases, 1):
        where = f"phase {number}: " if len(phases) > 1 else ""
        for chain, title in CHAINS.items():
            yield from ((f"{where}{title}", rule) for rule in phase.get(chain, ()))
    for part in ("personal", "server"):
        yield from ((part, rule) for rule in method.get(part, ()))
    if "weights" in method:
        yield "weights", method["weights"]


def describe_rule(rule: Mapping[str, Any]) -> str:
    """`Sam(rho=0.1)`, and its own words."""
    name = str(rule.get("rule", "?"))
    fields = flattened({key: value for key, value in rule.items() if key != "rule"})
    written = f"{name}({', '.join(f'{key}={value}' for key, value in fields)})"
    return f"<dd><code>{escape(written)}</code><p>{escape(first_words(RULES.get(name)))}</p></dd>"


def first_words(thing: Any) -> str:
    """The first paragraph of a docstring."""
    text = inspect.getdoc(thing) if thing is not None else None
    return one_line((text or "").split("\n\n")[0])

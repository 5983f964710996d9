"""A page for each method, made from its card: composition, formulas, hyper-parameters, costs, papers."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from pathlib import Path

from fedkeel.catalogue.cards import Costs, MethodCard, cards, list_chains, objectives, settings, step_order
from fedkeel.core.rule import Rule
from fedkeel.papers.citations import CITATIONS, authors, title
from fedkeel.text import one_line

HEAD = "<!-- made by `fedkeel methods --pages docs/methods`; do not edit -->\n"
INDEX = """\
Every method by its name in `--method` and `fk.METHODS`. *passes* are backward passes in a local step; *down* and *up*
are what a client receives and sends in a round, where 1× is a model. `METHOD@released` computes what the authors'
program computes. `fedkeel methods NAME` prints a method's card.
"""


def write_pages(folder: Path, only: MethodCard | None) -> list[Path]:
    """One file for each method, and an index; or one method's file alone."""
    folder.mkdir(parents=True, exist_ok=True)
    made = cards() if only is None else [only]
    files = {f"{card.name}.md": page(card) for card in made}
    if only is None:
        files["README.md"] = index(made)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8", newline="\n")
    return [folder / name for name in files]


def index(made: Iterable[MethodCard]) -> str:
    columns = ("method", "what it is", "family", "passes", "down", "up")
    lines = [HEAD, "# Methods\n", INDEX, '<div class="keys" markdown>\n']
    lines += [f"| {' | '.join(columns)} |", "| --- " * len(columns) + "|"]
    for card in made:
        down, up = ("", "") if card.costs is None else (f"{card.costs.down:.2g}×", f"{card.costs.up:.2g}×")
        link = f"[{card.name}]({card.name}.md)"
        lines.append(f"| {link} | {card.summary} | {card.family} | {card.passes_in_short} | {down} | {up} |")
    return "\n".join([*lines, "\n</div>"]) + "\n"


def page(card: MethodCard) -> str:
    """One method in Markdown."""
    parts = [HEAD, f"# {card.name}\n"]
    parts += [one_line(paragraph) + "\n" for paragraph in card.about.split("\n\n")]
    parts.append("## Composition\n")
    for heading, rules in list_chains(card.method):
        parts += rule_lines(heading, rules)
    orders = dict.fromkeys(filter(None, map(step_order, card.method.phases)))
    parts += [f"**The order of a step**: {order}\n" for order in orders]
    parts += [f"**The objective `{name}`**: {what}\n" for name, what in objectives(card.method).items()]
    if card.hyperparameters:
        parts += ["## Hyper-parameters\n", "| name | default | meaning |", "| --- | --- | --- |"]
        parts += [f"| `{h.name}` | `{h.default}` | {h.meaning} |" for h in card.hyperparameters]
        parts.append("")
    parts += ["## Cost\n", f"- backward passes: {card.passes}"]
    parts += [] if card.costs is None else cost_lines(card.costs)
    parts += ["", "## Papers\n"]
    parts += [f"- {authors(key)}: {title(key)}" for key in card.method.papers if key in CITATIONS]
    return "\n".join(parts).rstrip() + "\n"


def rule_lines(heading: str, rules: Iterable[Rule]) -> list[str]:
    lines = [f"**{heading}**\n"]
    for rule in rules:
        fields = ", ".join(f"{name}={value!r}" for name, value in settings(rule).items())
        lines.append(f"- `{type(rule).__name__}({fields})`: {one_line(inspect.getdoc(type(rule)) or '')}")
    return [*lines, ""]


def cost_lines(costs: Costs) -> list[str]:
    lines = [f"- bytes per round: {costs.down:.3g}× down, {costs.up:.3g}× up (FedAvg: 1× and 1×)"]
    for who, slots in (("client", costs.client), ("server", costs.server)):
        kept = ", ".join(f"`{name}` ({share:.3g}×)" for name, share in slots.items())
        lines.append(f"- the {who} keeps: {kept or 'nothing'}")
    if costs.held:
        held = ", ".join(f"`{name}` ({share:.3g}×)" for name, share in costs.held.items())
        lines.append(f"- the client holds during a round only: {held}")
    return lines

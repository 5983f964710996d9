"""`fedkeel methods`: the table of methods, and a method's card."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group
from rich.padding import Padding
from rich.text import Text

from fedkeel.cli.completion import complete_methods
from fedkeel.cli.console import facts, in_json, stdout, table
from fedkeel.cli.pages import Json, argument, examples, option

if TYPE_CHECKING:
    from fedkeel.catalogue.cards import MethodCard
    from fedkeel.core.rule import Rule


@examples("fedkeel methods", "fedkeel methods fedfft-d")
def methods(
    name: Annotated[
        str | None, argument(metavar="[NAME]", help="Show this one.", autocompletion=complete_methods)
    ] = None,
    pages_in: Annotated[
        Path | None, option("--pages", metavar="DIR", help="Write a page for each method, or this one.")
    ] = None,
    json: Json = False,
) -> None:
    """List the methods, or show one: its rules, settings, costs and papers.

    What installed packages bring stands at the end, under the package's name.

    Passes are backward passes per local step. Bytes are those of one round, relative to FedAvg, sent to the clients
    and back, counted by running the method on a small model.
    """
    from fedkeel.catalogue.cards import card, cards, plugin_cards
    from fedkeel.errors import RequestError

    if json and pages_in is not None:
        raise RequestError("--pages writes files and prints no JSON document.", "leave out --json, or --pages")
    if pages_in is not None:
        write_pages(pages_in, name)
    elif json:
        from fedkeel.cli.listings import method_entry

        found = [*cards(), *plugin_cards()] if name is None else [card(name)]
        typer.echo(in_json({"methods": [method_entry(one) for one in found]}))
    elif name is None:
        show_table([*cards(), *plugin_cards()], stdout())
    else:
        show_card(card(name), stdout())


def write_pages(folder: Path, name: str | None) -> None:
    """Every method's page and the index, or one method's page alone."""
    from fedkeel.catalogue.cards import card
    from fedkeel.catalogue.pages import write_pages as write
    from fedkeel.errors import writing

    only = None if name is None else card(name)
    with writing(folder):
        files = write(folder, only)
    what = f"{len(files)} pages" if only is None else files[0].name
    stdout().print(f"{what} written to {folder}", soft_wrap=True)


def show_table(cards: Iterable[MethodCard], console: Console) -> None:
    roomy = console.width >= ROOMY
    made = table(["method!", "paper", "passes!", "down>", "up>", "client keeps", *["what it is"] * roomy])
    family = None
    for card in cards:
        if card.family != family:
            made.add_section()
            heading = Text(card.family, "italic cyan")
            made.add_row(heading, *[""] * 5, *[Text(describe_family(card.family), "italic cyan")] * roomy)
        bytes_ = (write_ratio(card.costs.down), write_ratio(card.costs.up)) if card.costs else ("?", "?")
        row = [card.name, cite_paper(card.paper), card.passes_in_short, *bytes_, list_kept(card)]
        made.add_row(*row, *[re.split(r"\. |\.$", card.summary)[0]] * roomy)
        family = card.family
    console.print(made)
    console.print(Text(f"\n{NOTES}", "dim"))


def list_kept(card: MethodCard) -> str:
    """The slots of a client that are as large as a part of the model; the others are but numbers."""
    if card.costs is None:
        return "?"
    large = [name for name, share in card.costs.client.items() if share > SMALL]
    return ", ".join(large + ["numbers"] * (len(large) < len(card.costs.client)))


def describe_family(family: str) -> str:
    """What the methods of a family have in common."""
    from fedkeel.methods.registry import FAMILIES

    found = next((inspect.getdoc(one) for one in FAMILIES if one.__name__.endswith(f".{family}")), None)
    return (found or "").rstrip(".")


NOTES = """passes: backward passes per local step, phase by phase
down, up: bytes per round, FedAvg's being 1
client keeps: what a client remembers between rounds, by the names on the method's card
NAME@released: what the authors' program does, where it differs from the paper
a card: fedkeel methods NAME · on any method, as in ema+NAME: specgradfilter, fedfft, fsa, feddecorr,
smoothed, ema, swa, momentum, adamw, adagrad, lion, muon"""
SMALL = 0.01  # of the model
ROOMY = 120  # columns from which the table also says what each method is


def cite_paper(key: str | None) -> str:
    from fedkeel.papers.citations import CITATIONS, authors

    return authors(key) if key in CITATIONS else key or ""


def write_ratio(ratio: float) -> str:
    """1× where only a few numbers were added to the models."""
    return f"{ratio:.2f}".rstrip("0").rstrip(".") + "×"


def show_card(card: MethodCard, console: Console) -> None:
    from fedkeel.catalogue.cards import list_chains, objectives, step_order
    from fedkeel.papers.citations import CITATIONS, authors, title

    console.print(Text(card.name, "bold") + Text(f"  {card.family}", "dim"))
    console.print(fill_paragraphs(card.about))
    console.print()
    for heading, rules in list_chains(card.method):
        console.print(Text(heading, "bold"))
        console.print(Padding(Group(*(show_rule(rule) for rule in rules)), (0, 0, 1, 2)))
    for order in dict.fromkeys(filter(None, map(step_order, card.method.phases))):
        console.print(Text("The order of a step", "bold"))
        console.print(Padding(order, (0, 0, 1, 2)))
    for name, what in objectives(card.method).items():
        console.print(Text(f"The objective {name}", "bold"))
        console.print(Padding(fill_paragraphs(what), (0, 0, 1, 2)))
    if card.hyperparameters:
        made = table(["hyper-parameter!", "default!", "meaning"])
        for parameter in card.hyperparameters:
            made.add_row(f"method.{parameter.name}", str(parameter.default), parameter.meaning)
        console.print(made)
    console.print(facts(list_costs(card)))
    if card.method.papers:
        console.print(Text("\nPapers", "bold"))
    for key in card.method.papers:
        known = key in CITATIONS
        console.print(Padding(f"{authors(key)}: {title(key)}" if known else key, (0, 0, 0, 2)))
    first = next((p for p in card.hyperparameters if isinstance(p.default, int | float)), None)
    example = "" if first is None else f" --set method.{first.name}={first.default}"
    judged = " --set evaluation.model=local" if card.method.is_personal else ""
    cite = f"BibTeX: fedkeel cite {card.name} · " if card.method.papers else ""
    console.print(Text(f"\n{cite}try it: fedkeel run --method {card.name}{example}{judged}", "dim"))


def show_rule(rule: Rule) -> Group:
    """The rule as one would write it, and what its docstring says."""
    return Group(Text(repr(rule), "cyan"), Padding(fill_paragraphs(inspect.getdoc(type(rule)) or ""), (0, 0, 0, 2)))


def fill_paragraphs(text: str) -> Text:
    """Paragraphs without the line breaks of the source."""
    return Text("\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n")))


def list_costs(card: MethodCard) -> Iterable[tuple[str, str]]:
    if card.method.deploys_another:
        yield "deployed", "another model than is trained: accuracy, params, model() and model_digest are its"
    yield "backward passes", card.passes
    if card.costs is None:
        yield "bytes, state", "depend on the model and data this method needs"
        return
    yield "bytes per round", f"{write_ratio(card.costs.down)} down, {write_ratio(card.costs.up)} up (FedAvg: 1× and 1×)"
    for who, slots in (("client", card.costs.client), ("server", card.costs.server)):
        yield f"{who} keeps", list_slots(slots) or "nothing between rounds"
    if card.costs.held:
        yield "client holds", f"{list_slots(card.costs.held)}, during a round only"


def list_slots(slots: Mapping[str, float]) -> str:
    return ", ".join(f"{name} ({describe_size(share)})" for name, share in slots.items())


def describe_size(share: float) -> str:
    return f"{write_ratio(share)} the model" if share > SMALL else "a few numbers"

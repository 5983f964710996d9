"""`fedkeel models`: the table of models, and a model's card."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from fedkeel.cli.completion import complete_models
from fedkeel.cli.console import count, facts, stdout, table
from fedkeel.cli.pages import Json, argument, examples

if TYPE_CHECKING:
    from fedkeel.cli.listings import Listed
    from fedkeel.models import ModelCard

IMAGES = (3, 32, 32)
TEXTS = (80,)


@examples("fedkeel models", "fedkeel models resnet20-gn")
def models(
    name: Annotated[
        str | None, argument(metavar="[NAME]", help="Show this one.", autocompletion=complete_models)
    ] = None,
    json: Json = False,
) -> None:
    """List the models, or show one.

    Besides these, --model takes timm:NAME, torchvision:NAME, and module:function for a network of your own.
    """
    from fedkeel.cli.listings import Listed, list_all, write_listing
    from fedkeel.models import MODELS, card_of

    listed = list_all("models", MODELS, find_countable) if name is None else [Listed(name, card_of(name))]
    if json:
        typer.echo(write_listing("models", listed, model_entry))
    elif name is None:
        made = table(["model!", "parameters>", "what it is"])
        for one in listed:
            brought = f" (package {one.package})" if one.package else ""
            made.add_row(one.name, count(count_parameters(one.card)), f"{one.card.title}{brought}")
        stdout().print(made)
        stdout().print(Text("\nparameters: for 10 classes and images of 3×32×32 (texts: 80 tokens)", "dim"))
    else:
        show_card(name, card_of(name))


def show_card(name: str, card: ModelCard) -> None:
    console = stdout()
    console.print(Text(name, "bold") + Text(f"  {card.title}", "dim"))
    console.print(Text(card.about))
    console.print()
    options = ", ".join(f"{option}={value}" for option, value in card.defaults.items())
    rows = {
        "from": card.paper,
        "takes": str(card.takes),
        "parameters": f"{count(count_parameters(card))} for 10 classes, {describe_sample(card)}",
        "options": options,
        "notes": card.notes,
    }
    console.print(facts((name, value) for name, value in rows.items() if value))


def model_entry(one: Listed) -> dict[str, Any]:
    """A model: what it is, what it takes, and its parameters for 10 classes."""
    card: ModelCard = one.card
    return {
        "name": one.name,
        "title": card.title,
        "about": card.about,
        "takes": str(card.takes),
        "parameters": count_parameters(card),
        "options": dict(card.defaults),
        "paper": card.paper,
        "notes": card.notes,
    }


def find_countable(name: str) -> ModelCard:
    """The card of a model that an installed package brings, if the model can be built."""
    from fedkeel.models import card_of

    card = card_of(name)
    count_parameters(card)
    return card


def choose_shape(card: ModelCard) -> tuple[int, ...]:
    return IMAGES if card.takes.accepts(IMAGES) else TEXTS


def describe_sample(card: ModelCard) -> str:
    return "images of 3×32×32" if choose_shape(card) == IMAGES else f"texts of {TEXTS[0]} tokens"


def count_parameters(card: ModelCard) -> int:
    """Count on the model itself, built without memory for its weights."""
    import torch

    with torch.device("meta"):
        module = card.make(choose_shape(card), 10, **card.defaults)
    return sum(parameter.numel() for parameter in module.parameters())

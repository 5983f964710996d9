"""Methods, data sets and models as plain data, for `--json`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedkeel.catalogue.cards import MethodCard
    from fedkeel.data import DatasetCard
    from fedkeel.models import ModelCard


def method_entry(card: MethodCard) -> dict[str, Any]:
    """A method: its rules as a file has them, hyper-parameters, costs and papers."""
    from fedkeel.methods import composition

    return {
        "name": card.name,
        "family": card.family,
        "about": card.summary,
        "hyperparameters": {one.name: plain(one.default) for one in card.hyperparameters},
        "backward_passes": card.passes_in_short,
        "costs": None if card.costs is None else asdict(card.costs),
        "papers": list(card.method.papers),
        "composition": composition.save(card.method),
    }


def dataset_entry(card: DatasetCard) -> dict[str, Any]:
    """A data set: its facts, what `--dataset NAME` means, and whether it is on this machine."""
    from fedkeel.cli.fetching import present

    facts = {name: getattr(card, name) for name in ("name", "title", "classes", "shape", "train", "test", "licence")}
    more = {"home": str(card.home), "natural": card.natural, "vocabulary": card.vocabulary, "notes": card.notes}
    return plain(facts | more | {"preset": dict(card.preset), "here": present(card.name)})


def model_entry(name: str, card: ModelCard, parameters: int) -> dict[str, Any]:
    """A model: what it is, what it takes, and its parameters for 10 classes."""
    return {
        "name": name,
        "title": card.title,
        "about": card.about,
        "takes": str(card.takes),
        "parameters": parameters,
        "options": plain(dict(card.defaults)),
        "paper": card.paper,
        "notes": card.notes,
    }


def plain(value: Any) -> Any:
    """Return what JSON can hold; anything else as its text."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)

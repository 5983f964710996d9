"""Methods, data sets and models with those that installed packages bring, and as plain data for `--json`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from fedkeel.catalogue.cards import MethodCard
    from fedkeel.data import DatasetCard


class Listed(NamedTuple):
    """A name, its card, and for what an installed package brings, the package."""

    name: str
    card: Any
    package: str | None = None


def list_all(group: str, known: Mapping[str, Any], find: Callable[[str], Any]) -> list[Listed]:
    """What fedkeel knows, then what installed packages bring to the group."""
    from fedkeel.plugins import load_plugins

    brought = [Listed(plugin.name, card, plugin.package) for plugin, card in load_plugins(group, known, find)]
    return [*(Listed(name, card) for name, card in known.items()), *brought]


def write_listing(group: str, listed: list[Listed], entry: Callable[[Listed], dict[str, Any]]) -> str:
    """One JSON document with an entry for each."""
    from fedkeel.cli.console import in_json

    return in_json({group: [entry(one) | ({"package": one.package} if one.package else {}) for one in listed]})


def method_entry(card: MethodCard) -> dict[str, Any]:
    """A method: its rules as a file has them, hyper-parameters, costs and papers."""
    from fedkeel.methods import composition

    return {
        "name": card.name,
        "family": card.family,
        "about": card.summary,
        "hyperparameters": {one.name: one.default for one in card.hyperparameters},
        "backward_passes": card.passes_in_short,
        "costs": None if card.costs is None else asdict(card.costs),
        "papers": list(card.method.papers),
        "composition": composition.save(card.method),
    }


def dataset_entry(one: Listed) -> dict[str, Any]:
    """A data set: its facts, what `--dataset NAME` means, and whether it is on this machine."""
    from fedkeel.cli.fetching import present

    card: DatasetCard = one.card
    facts = {name: getattr(card, name) for name in ("name", "title", "classes", "shape", "train", "test", "licence")}
    more = {"home": str(card.home), "natural": card.natural, "vocabulary": card.vocabulary, "notes": card.notes}
    return facts | more | {"preset": dict(card.preset), "here": present(card.name)}

"""The cards of the data sets, as `cards.toml` has them, tied to the functions that know their files."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from fedkeel.data.dataset import DatasetCard, Hub, Url
from fedkeel.data.storage.folder import is_complete, open_folder
from fedkeel.data.storage.source import Source

TABLES = tomllib.loads((files("fedkeel.data.datasets") / "cards.toml").read_text(encoding="utf-8"))
PRESETS = {name: table["preset"] for name, table in TABLES.items() if "preset" in table}


def make_source(name: str, **functions: Any) -> Source:
    """Make the source of a data set; without other functions it is opened as a folder of arrays."""
    facts = {word: _freeze(value) for word, value in _complete(TABLES[name], TABLES).items()}
    facts["preset"] = _complete(facts["preset"], PRESETS)
    if isinstance(home := facts["home"], Mapping):
        facts["home"] = Url(**home) if "address" in home else Hub(**home)
    functions |= {word: facts.pop(word) for word in ("accepts", "requires") if word in facts}
    return Source(DatasetCard(name=name, **facts), **{"open": open_folder, "is_complete": is_complete} | functions)


def _complete(table: Mapping[str, Any], tables: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The table with what it leaves out taken from the one that it is `like`."""
    base = _complete(tables[table["like"]], tables) if "like" in table else {}
    return {word: value for word, value in {**base, **table}.items() if word != "like"}


def _freeze(value: Any) -> Any:
    """A list as a tuple, also inside a table."""
    if isinstance(value, Mapping):
        return {word: _freeze(inner) for word, inner in value.items()}
    return tuple(value) if isinstance(value, list) else value

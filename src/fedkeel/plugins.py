"""What installed packages bring: names under entry points such as `fedkeel.methods`.

Nothing is looked for when fedkeel is imported. A name that fedkeel does not know is looked for among the entry points
of installed packages, and only the module behind that one name is imported.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from fedkeel import importing
from fedkeel.errors import FedkeelError, RequestError, nearest
from fedkeel.importing import GROUP, Kind, Trust, look_up
from fedkeel.text import one_line

log = logging.getLogger("fedkeel")

GROUPS = ("methods", "rules", "datasets", "partitions", "models", "engines", "callbacks")
"""The entry points that a package may have: `[project.entry-points."fedkeel.methods"]`, and so on."""

WORDS = dict(zip(GROUPS, ("method", "rule", "data set", "partition", "model", "engine", "callback"), strict=True))


@dataclass(frozen=True)
class Plugin:
    """A name that a package brings, and the `module:name` behind it."""

    name: str
    value: str
    package: str


def brought(*groups: str) -> list[Plugin]:
    """Everything that installed packages bring under these groups, clashes included; nothing is imported."""
    points = [point for point in importing.installed() if point.group in groups]
    return list(dict.fromkeys(Plugin(point.name, point.value, str(point.dist and point.dist.name)) for point in points))


def find_plugin(group: str, name: str) -> Plugin | None:
    """Find what an installed package brings under a name; refuse a name that two packages bring."""
    found = [one for one in brought(f"{GROUP}.{group}", GROUP) if one.name == name]
    if len(found) > 1:
        one, other = sorted(found, key=lambda plugin: plugin.package)[:2]
        raise RequestError(
            f"two packages bring a {WORDS[group]} named {name}: {one.package} and {other.package}.",
            f"uninstall one, or write which is meant: {one.value} or {other.value}",
        )
    return found[0] if found else None


def list_plugins(group: str, taken: Collection[str]) -> list[Plugin]:
    """List what installed packages bring; one whose name is taken is left out, and told in a line."""
    owners, kept = dict.fromkeys(taken, "fedkeel"), []
    for plugin in sorted(brought(f"{GROUP}.{group}"), key=lambda one: one.package):
        owner = owners.setdefault(plugin.name, plugin.package)
        if owner == plugin.package:
            kept.append(plugin)
            continue
        log.warning(
            "the %s %s of the package %s is left out: the package %s has one of that name",
            WORDS[group], plugin.name, plugin.package, owner,
        )  # fmt: skip
    return kept


Made = TypeVar("Made")


def load_plugins(group: str, taken: Collection[str], load: Callable[[str], Made]) -> Iterator[tuple[Plugin, Made]]:
    """Load what installed packages bring, one after another; if one fails, a line says so and the rest are loaded."""
    for plugin in list_plugins(group, taken):
        try:
            yield plugin, load(plugin.name)
        except Exception as error:  # a package may do anything
            why = error.message if isinstance(error, FedkeelError) else f"{type(error).__name__}: {error}"
            log.warning(
                "the %s %s of the package %s fails: %s", WORDS[group], plugin.name, plugin.package, one_line(why)
            )


class Named(dict[str, Any]):
    """What fedkeel has by name; a name that it lacks is a KeyError with the nearest one."""

    def __init__(self, group: str, known: dict[str, Any]):
        super().__init__(known)
        self.group = group

    def __missing__(self, name: str) -> Any:
        raise KeyError(f"unknown {WORDS[self.group]}: {name}; {nearest(str(name), self, self.group)}")


class Registry(Named):
    """What fedkeel has by name; a name that it lacks is looked for in installed packages. A walk sees fedkeel's own."""

    def __init__(self, group: str, kind: Kind, known: dict[str, Any], take: Callable[[Any], Any] = lambda one: one):
        super().__init__(group, known)
        self.kind, self.take = kind, take

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or (isinstance(name, str) and find_plugin(self.group, name) is not None)

    def __missing__(self, name: str) -> Any:
        plugin = find_plugin(self.group, name)
        if plugin is None:
            return super().__missing__(name)
        return self.take(look_up(plugin.value, self.kind, Trust.INSTALLED))

    def get(self, name: str, otherwise: Any = None) -> Any:
        return self[name] if name in self else otherwise

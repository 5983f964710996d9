"""What a file names and nobody has vouched for: it is shown, saved and compared, never imported and never trained."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, NoReturn

from fedkeel.core.method import Method, Phase
from fedkeel.core.objective import Objective
from fedkeel.core.objectives import OBJECTIVES
from fedkeel.core.rule import Setting, State, Weighting
from fedkeel.core.schedules import KEYS
from fedkeel.core.trees import Tree
from fedkeel.errors import UntrustedError
from fedkeel.rules import BySize


class NamedModel(str):
    """The name of a network of someone's own, as a file gives it."""


class NamedRule(Weighting):
    """A rule of someone's own, or one that holds such a rule, as a file gives it: `data` is its table, `error` says
    what in it nobody vouches for. It may stand wherever a rule or a weighting may."""

    def __init__(self, data: Mapping[str, Any], error: UntrustedError):
        self.data, self.error = dict(data), error

    @property
    def name(self) -> str:
        return str(self.data["rule"])

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(f'{word}={value!r}' for word, value in self.data.items() if word != 'rule')})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NamedRule) and self.data == other.data

    def __hash__(self) -> int:
        return hash(json.dumps(self.data, sort_keys=True, default=str))

    def refuse(self) -> NoReturn:
        raise self.error

    def settled(self, setting: Setting) -> NoReturn:
        self.refuse()

    def server_slots(self, params: Tree) -> NoReturn:
        self.refuse()

    def __call__(self, reports: State, server: State) -> NoReturn:
        self.refuse()


class NamedObjective(Objective):
    """An objective of someone's own, as a file gives it."""

    data: dict[str, Any]
    error: UntrustedError

    def __init__(self, data: Mapping[str, Any], error: UntrustedError):
        self.__dict__.update(data=dict(data), error=error)

    def __repr__(self) -> str:
        return str(self.data["objective"])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NamedObjective) and self.data == other.data

    def __hash__(self) -> int:
        return hash(repr(self))


@dataclass(frozen=True)
class NamedMethod(Method):
    """A method with rules that are only names: whether they fit together is not known, so nothing is checked."""

    def __post_init__(self) -> None:
        pass


def named_parts(given: Iterable[Any]) -> Iterator[NamedRule | NamedObjective]:
    """Those of some rules and objectives that are only names, also inside other rules and phases."""
    for one in given:
        if isinstance(one, NamedRule | NamedObjective):
            yield one
        elif isinstance(one, tuple):
            yield from named_parts(one)
        elif is_dataclass(one):
            yield from named_parts(getattr(one, field.name) for field in fields(one))


def named_method(name: str, settings: Mapping[str, Any], error: UntrustedError) -> NamedMethod:
    """A whole method that is only a name, with its settings."""
    rule = NamedRule({"rule": name, **settings}, error)
    return NamedMethod(name, (Phase(gradient=(rule,)),), BySize())


def refusal(method: Method) -> UntrustedError | None:
    """Why a method cannot be trained: the first name in it that nobody has vouched for."""
    return next(named_parts([method])).error if isinstance(method, NamedMethod) else None


def own_names(data: Any) -> Iterator[str]:
    """The names of someone's own code in an experiment's data: of its network, partition, schedules and every rule."""
    if isinstance(data, Mapping):
        schedules = (table.get("name") for key in KEYS if isinstance(table := data.get(key), Mapping))
        names = (*(data.get(word) for word in ("rule", "model", "objective", "kind")), *schedules)
        own = (name for name in names if isinstance(name, str) and ":" in name)
        yield from (name for name in own if name.partition(":")[0] not in OBJECTIVES)
    for value in data.values() if isinstance(data, Mapping) else data if isinstance(data, list) else ():
        yield from own_names(value)

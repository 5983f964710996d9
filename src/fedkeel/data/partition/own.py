"""A partition of someone's own, known by its name: `my_module:Halves`; imported where someone vouches for the name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedkeel.data.partition.partition import Integers, Partition, Partitioner, divide
from fedkeel.errors import ExperimentError, UntrustedError
from fedkeel.importing import Kind, Trust, look_up, untrusted

NAME = re.compile(r"(\w+(?:\.\w+)*:[A-Za-z_][\w.]*)(?:,|$)")
PYTHON = "python:"
"""What a partition begins with that only a program can bring back."""

KIND = Kind("partition", object, objects=True, hint="an object or a class with divide(labels, key, *, groups)")


@dataclass(frozen=True)
class OwnPartition:
    """A partition by its name and fields; `made` is what the name leads to, or None where nobody vouches for it."""

    settings: Mapping[str, Any]
    made: Partitioner | None = None

    def __hash__(self) -> int:
        return hash(repr(self.settings))

    @property
    def clients(self) -> int | None:
        return getattr(self.made, "clients", None)

    @property
    def repeats(self) -> bool:
        """Whether a sample may be held twice: yes, unless it says otherwise."""
        return bool(getattr(self.made, "repeats", True))

    def divide(self, labels: Integers, key: int, *, groups: Integers | None = None) -> Partition:
        if self.made is not None:
            return divide(self.made, labels, key, groups=groups)
        name = str(self.settings["kind"])
        if name.startswith(PYTHON):
            raise ExperimentError(
                "the partition of this experiment was given from Python, so a file cannot bring it back.",
                "call fk.run(experiment, out=FOLDER) again from the program that made it: it resumes",
            )
        raise untrusted(name, "partition")


def is_own(kind: str) -> bool:
    return ":" in kind


def read_own(settings: Mapping[str, Any], trust: Trust) -> OwnPartition:
    """Import a partition by its name, if someone vouches for it; a class is made with the fields."""
    name, fields = str(settings["kind"]), {word: value for word, value in settings.items() if word != "kind"}
    if name.startswith(PYTHON):
        return OwnPartition(dict(settings))
    try:
        found: Any = look_up(name, KIND, trust)
    except UntrustedError:
        return OwnPartition(dict(settings))
    if not hasattr(found, "divide"):
        raise ExperimentError(f"{name} is no partition: it has no function divide.", KIND.hint)
    if isinstance(found, type):
        try:
            found = found(**fields)
        except TypeError as error:
            raise ExperimentError(f"partition {name} cannot be made: {error}", "write its fields behind it") from None
    return OwnPartition(dict(settings), found)

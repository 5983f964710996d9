"""Values that an object keeps besides its fields, and that nothing would save."""

from __future__ import annotations

import inspect
from dataclasses import fields
from functools import cached_property
from itertools import takewhile
from typing import Any

from fedkeel.typed_values import Refusal


def check_whole(instance: Any, error: Refusal, what: str) -> None:
    """Refuse an object that keeps values besides its fields, where its class is no dataclass but inherits from one.

    Files, fingerprints and comparisons see the fields alone. A subclass that makes no values of its own is as its base.
    """
    own = list(takewhile(lambda kind: "__dataclass_fields__" not in vars(kind), type(instance).__mro__))
    if not any({"__init__", "__post_init__"} & vars(kind).keys() for kind in own):
        return
    known = {field.name for field in fields(instance)}
    hidden = [name for name in vars(instance) if name not in known and not is_computed(type(instance), name)]
    if hidden:
        raise error(
            f"{what} is not a dataclass, so it cannot be saved: {', '.join(hidden)} would be lost.",
            "decorate it: @dataclass(frozen=True), with a field for each value",
        )


def is_computed(kind: type, name: str) -> bool:
    """Whether an attribute is a property that was computed before."""
    return isinstance(inspect.getattr_static(kind, name, None), cached_property)

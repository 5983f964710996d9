"""Partitions by name, as plain data: `{kind = "dirichlet", alpha = 0.1, clients = 100}` or "dirichlet:alpha=0.1".

In text the base of a partition comes last: "long-tail:imbalance=100,base=dirichlet:alpha=0.1,clients=100".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from fedkeel.data.partition.dirichlet import Dirichlet
from fedkeel.data.partition.feature_shift import FeatureShift
from fedkeel.data.partition.iid import Iid, QuantitySkew
from fedkeel.data.partition.long_tail import LongTail
from fedkeel.data.partition.natural import Natural
from fedkeel.data.partition.own import NAME, PYTHON, OwnPartition, is_own, read_own
from fedkeel.data.partition.partition import Partitioner
from fedkeel.data.partition.pathological import Pathological
from fedkeel.errors import ExperimentError, ask_for_object, explain_typos, require_known
from fedkeel.importing import Trust
from fedkeel.plugins import Named, find_plugin
from fedkeel.typed_values import check_table
from fedkeel.written_values import check_whole, parse_fields

PARTITIONS: dict[str, type[Any]] = Named(
    "partitions",
    {
        "iid": Iid,
        "dirichlet": Dirichlet,
        "pathological": Pathological,
        "quantity-skew": QuantitySkew,
        "natural": Natural,
        "long-tail": LongTail,
        "feature-shift": FeatureShift,
    },
)

for _name, _kind in PARTITIONS.items():
    explain_typos(f"partition {_name}", ExperimentError)(_kind)

OLD_FORMS = {"dirichlet": "client-prior-refill", "pathological": "shuffled"}
"""The default forms up to version 0.1.0; both repeat some samples and leave others out."""


def load_partition(given: Any, trust: Trust = Trust.NOTHING) -> Partitioner:
    """Make a partition from plain data or from `kind:field=value,field=value`; one that is made already stays.

    One of someone's own, `module:name`, is imported with `trust` only, and else known by its name.
    """
    if isinstance(given, str):
        given = parse_partition(given)
    if not isinstance(given, Mapping):
        if isinstance(given, type):
            line = f"a partition is a name or a Partitioner, not the class {given.__name__}."
            raise ExperimentError(line, ask_for_object(given))
        if type(given) in PARTITIONS.values() or hasattr(given, "divide"):
            return given
        raise ExperimentError(f"a partition is a name or a Partitioner, not {type(given).__name__}.", "fk.Dirichlet(…)")
    settings = dict(given)
    asked = str(settings.pop("kind", "dirichlet"))
    if names_own({"kind": asked}):
        return read_own({**given, "kind": brought_as(asked)}, trust)
    kind = require_known(asked, PARTITIONS, "unknown partition", "partitions", ExperimentError)
    check_table(PARTITIONS[kind], settings, ExperimentError, f"partition {kind}")
    if "base" in settings:
        settings["base"] = load_partition(settings["base"], trust)
    return PARTITIONS[kind](**settings)


def names_own(given: Any) -> bool:
    """Whether plain data name a partition of someone's own, or one as their base."""
    settings = parse_partition(given) if isinstance(given, str) else given
    if not isinstance(settings, Mapping):
        return False
    kind = str(settings.get("kind", ""))
    return is_own(brought_as(kind)) or names_own(settings.get("base"))


def brought_as(kind: str) -> str:
    """The `module:name` of a partition that an installed package brings; any other name as it is."""
    plugin = None if not kind or kind in PARTITIONS or is_own(kind) else find_plugin("partitions", kind)
    return kind if plugin is None else plugin.value


def may_repeat(partition: Partitioner) -> bool:
    """Whether a sample may be held twice; a user's own partition may repeat unless it says otherwise."""
    if type(partition) not in PARTITIONS.values():
        return bool(getattr(partition, "repeats", True))
    base = getattr(partition, "base", None)
    return bool(getattr(partition, "repeats", False)) if base is None else may_repeat(base)


def explain_new_default(given: Any) -> str | None:
    """Say how the default has changed for a partition that names no form; None where it has not."""
    settings = parse_partition(given) if isinstance(given, str) else given
    if not isinstance(settings, Mapping):
        return None
    if "base" in settings:
        return explain_new_default(settings["base"])
    kind = str(settings.get("kind", "dirichlet"))
    if kind not in OLD_FORMS or "form" in settings:
        return None
    now = next(field.default for field in fields(PARTITIONS[kind]) if field.name == "form")
    return (
        f'no form is given for the {kind} partition: it is "{now}", each sample once; up to version 0.1.0 it was '
        f'"{OLD_FORMS[kind]}", which repeats samples and leaves others out (form = "{OLD_FORMS[kind]}" brings it back)'
    )


def parse_partition(text: str) -> dict[str, Any]:
    """Read `dirichlet:alpha=0.1,clients=100` as plain data."""
    kind, _, rest = text.partition(":")
    if kind not in PARTITIONS and (own := NAME.match(text)) is not None:
        kind, rest = own[1], text[own.end() :]
    rest, _, base = f",{rest}".partition(",base=")  # all that follows is the base's
    example = 'write "dirichlet:alpha=0.1,clients=100"'
    fields = parse_fields(rest, "a partition's field needs a value", example, ExperimentError)
    return {"kind": kind.strip()} | ({"base": parse_partition(base)} if base else {}) | fields


def write_partition(settings: Mapping[str, Any]) -> str:
    """Write plain data as the text that `parse_partition` reads."""
    fields = [f"{name}={value}" for name, value in settings.items() if name not in ("kind", "base")]
    fields += [f"base={write_partition(settings['base'])}"] if "base" in settings else []
    return f"{settings['kind']}:{','.join(fields)}" if fields else str(settings["kind"])


def save_partition(partition: Partitioner) -> dict[str, Any]:
    """Turn a partition into plain data; a user's own is named by its representation."""
    if isinstance(partition, OwnPartition):
        return dict(partition.settings)
    kind = next((name for name, known in PARTITIONS.items() if known is type(partition)), None)
    if kind is None:
        if hasattr(partition, "__dataclass_fields__"):
            check_whole(partition, ExperimentError, f"the partition {type(partition).__name__}")
        return {"kind": f"{PYTHON}{partition!r}"}
    # what came later is left out where it has its default, so that older runs keep their names
    later = getattr(partition, "later", ())
    settings = {
        field.name: value
        for field in fields(PARTITIONS[kind])
        if (value := getattr(partition, field.name)) != field.default or field.name not in later
    }
    if "base" in settings:
        settings["base"] = save_partition(settings["base"])
    return {"kind": kind} | settings

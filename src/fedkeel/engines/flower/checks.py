"""Which replies count. A refused reply changes nothing, and a log line gives the reason."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from flwr.app import Message

from fedkeel.engines.flower.records import Refused
from fedkeel.errors import ExperimentError
from fedkeel.ranges import Count, Positive, PositiveShare, Range
from fedkeel.typed_values import check_fields


@dataclass(frozen=True)
class Terms:
    """When a round counts.

    `minimum` is the share of the asked clients that must answer: 1 waits for all, and asks those who have not answered
    again, up to `attempts` times in all. `deadline` is how many seconds each time lasts; None waits for ever. A report
    is refused when its update is more than `norm_factor` times as long as the median of the round's and the last
    rounds'. `copy` has the server keep a copy of every client's state; without it a state never leaves its node.
    `diverged` says whether a client whose numbers are not finite has answered, as it has for the other engines.
    """

    minimum: PositiveShare = 1.0
    deadline: Positive | None = None
    attempts: Count = 3
    norm_factor: Annotated[float, Range(1, above=True)] = 1000.0
    copy: bool = True
    diverged: bool = False

    def __post_init__(self) -> None:
        check_fields(self, ExperimentError, "a federation")


def error_line(reply: Message) -> str:
    """Write an error as one line; of a long one only its ends, so that it cannot flood the log."""
    line = " ".join(str(reply.error.reason).split()) or "no reason given"
    return line if len(line) <= 300 else f"{line[:100]} … {line[-200:]}"


def read_facts(reply: Message, **wanted: int | str) -> dict[str, object]:
    """Read the facts of a reply; refuse one that answers another question."""
    if reply.has_error():
        raise Refused(f"it failed: {error_line(reply)}")
    facts = dict(reply.content.config_records.get("config", {}))
    for name, value in wanted.items():
        if facts.get(name) != value:
            raise Refused(f"it answers for {name} {str(facts.get(name))[:40]!r}, not {value!r}")
    return facts


def find_overlong(norms: Mapping[int, float], recent: Sequence[float], factor: float) -> dict[int, str]:
    """Find clients whose update is far too long, and say why. A bound needs two norms to compare."""
    pool = [*norms.values(), *recent]
    usual = statistics.median_low(pool) if len(pool) > 1 else 0.0
    if usual <= 0.0:
        return {}
    return {
        client: f"its update is {norm / usual:.0f} times as long as usual"
        for client, norm in norms.items()
        if norm > factor * usual
    }

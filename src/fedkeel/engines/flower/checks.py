"""Which replies count. A refused reply changes nothing, and a log line gives the reason."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from flwr.app import Message
from torch import Tensor

from fedkeel.core.rule import State
from fedkeel.engines.flower.records import Refused
from fedkeel.errors import ExperimentError
from fedkeel.ranges import Count, Positive, PositiveShare, Range
from fedkeel.text import make_printable, one_line, shorten
from fedkeel.typed_values import check_fields

FAILED = "failed"
TOLD = ("fedkeel", "torch", "numpy")
"""Versions may differ, and results then differ by rounding, at least; other differences are refused."""
ROUNDING = 1e-4
"""By how much, relatively, a fact may differ: rates are computed by functions whose last digits machines differ in."""


@dataclass(frozen=True)
class Terms:
    """When a round counts.

    `minimum` is the share of the asked clients that must answer: 1 waits for all, and asks those who have not answered
    again, up to `attempts` times in all. `deadline` is how many seconds each time lasts; None waits for ever. A report
    is refused when one of its slots is more than `norm_factor` times as long as the median of the round's and the last
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

    def count_needed(self, clients: int) -> int:
        """Count how many of so many clients must answer: one at least, where any is asked."""
        return min(clients, max(1, math.ceil(self.minimum * clients - 1e-9)))


def error_line(reply: Message) -> str:
    """Write an error as one line; of a long one only its ends, so that it cannot flood the log."""
    line = one_line(str(reply.error.reason)) or "no reason given"
    return line if len(line) <= 300 else f"{line[:100]} … {line[-200:]}"


def read_facts(reply: Message, **wanted: int | str) -> dict[str, object]:
    """Read the facts of a reply; refuse one that answers another question."""
    if reply.has_error():
        raise Refused(f"it failed: {error_line(reply)}")
    facts = dict(reply.content.config_records.get("config", {}))
    if facts.get("status") == FAILED:
        raise Refused(f"it cannot take part: {shorten(make_printable(str(facts.get('reason'))), 300)}")
    for name, value in wanted.items():
        if facts.get(name) != value:
            raise Refused(f"it answers for {name} {str(facts.get(name))[:40]!r}, not {value!r}")
    return facts


def compare_sides(own: Mapping[str, str], facts: Mapping[str, object]) -> list[str]:
    """Compare what a node is made with with the server's; refuse another method or form, return what else differs."""
    differing = {name: (facts.get(name), value) for name, value in own.items() if facts.get(name) != value}
    words = {name: shorten(make_printable(str(theirs)), 120) for name, (theirs, _) in differing.items()}
    told = [f"{name} {words[name]} (the server: {mine})" for name, (_, mine) in differing.items()]
    if refused := [line for line in told if line.partition(" ")[0] not in TOLD]:
        raise Refused(f"it is made otherwise: {'; '.join(refused + [line for line in told if line not in refused])}")
    return told


def check_known(report: State, known: State, count: Tensor | None) -> State:
    """Return a report with what the server knows itself in place of what the node says of it.

    A node that says something else, by more than rounding, is refused; `count` is how many labels it may count where
    only the node can see them: those that the loss ignores it leaves out.
    """
    for name, fact in known.items():
        if not torch.allclose(report[name], fact, rtol=ROUNDING, atol=0.0):
            raise Refused(f"it says {name} {brief(report[name])}, and the server knows {brief(fact)}")
    if count is not None:
        counts = report["histogram"]
        if not bool((counts >= 0).all()) or not torch.equal(counts, counts.round()) or counts.sum() > count:
            raise Refused(f"it counts {brief(counts)} labels in classes, and has {brief(count)}")
    return report | known


def brief(numbers: Tensor) -> str:
    """Write a number, or the first ones of many."""
    return " ".join(f"{number:g}" for number in numbers.reshape(-1)[:4].tolist())

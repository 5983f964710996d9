"""What a target costs: rounds, bytes, seconds and the clients' backward passes, from the records of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedkeel.problems.metrics import lower_is_better
from fedkeel.runs.record import RoundRecord, counted


@dataclass(frozen=True)
class Spending:
    """What a run has used up to a round, that round included."""

    rounds: int
    bytes: int  # up and down
    seconds: float
    backward_passes: int


def spent(records: Sequence[RoundRecord]) -> Spending:
    """Add up the cost of all these rounds."""
    return Spending(
        rounds=len(records),
        bytes=sum(r.bytes_up + r.bytes_down for r in records),
        seconds=sum(r.seconds for r in records),
        backward_passes=sum(r.backward_passes for r in records),
    )


def cost_to(records: Sequence[RoundRecord], target: float, measure: str, every: int) -> Spending | None:
    """Add up the cost until the measure first reaches the target; None when it never does.  (FedFFT Tables 4, 5)

    Accuracies reach a target from below, losses from above. `every` is the experiment's evaluate_every: a round that
    was scored only because a run once ended there does not count. The training loss is known of every round.
    """
    falls = lower_is_better(measure)
    for record in records if measure == "loss" else counted(records, every):
        value = record.measure(measure)
        if value is not None and (value <= target if falls else value >= target):
            return spent([one for one in records if one.round <= record.round])
    return None

"""The learning rate from step to step within a round."""

from __future__ import annotations

from dataclasses import dataclass

from fedkeel.core.rule import Rule, newer_field
from fedkeel.core.schedules import Schedule
from fedkeel.ranges import NonNegative, Positive

__all__ = ["RateWithin"]


@dataclass(frozen=True)
class RateWithin(Rule):
    """Let the rate fall within each round, and begin anew in the next: η_k = η p (1 − (1 − ρ) k / K).

    rho = 1 keeps it. peak = 1 begins a round with the experiment's rate: p times it. Its place in the chain does not
    matter: a rate scales clip, decay and corrections alike.  (FedSWA, Liu et al. 2025)
    """

    rho: NonNegative
    peak: Positive = newer_field(1.0)

    def scale_rate(self, round: int, done: float) -> float:
        return self.peak * (1.0 - (1.0 - self.rho) * done)


@dataclass(frozen=True)
class FollowSchedule(Rule):
    """Let the rate follow the experiment's schedule within rounds: η(t + k / K) / η(t); after the last round it stays.

    The rate of a round's first step is the round's; a constant schedule changes nothing.
    """

    schedule: Schedule
    rounds: int

    def scale_rate(self, round: int, done: float) -> float:
        if round >= self.rounds:
            return 1.0
        return self.schedule.share_at(round + done) / self.schedule.share_at(round)

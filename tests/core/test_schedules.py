"""Schedules: their formulas, against PyTorch's where it has one, and what does not fit a run."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from for_each import for_each
from torch.optim import lr_scheduler

import fedkeel as fk
from fedkeel.core.schedules import SCHEDULES, read_schedule

GIVEN = {
    "constant": {}, "exponential": {"decay": 0.9}, "linear": {"end": 0.2}, "cosine": {"end": 0.1},
    "step": {"milestones": [3, 6], "factor": 0.5}, "cyclic": {"cycle": 4, "end": 0.5},
}  # fmt: skip


def fitted(name, rounds=10, **more):
    return read_schedule({"name": name} | GIVEN[name] | more, "schedule").fit(rounds, "schedule")


def rates_of_torch(make, rounds):
    optimiser = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    scheduler, rates = make(optimiser), []
    for _ in range(rounds):
        rates.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        scheduler.step()
    return rates


@for_each(
    ("name", "make"),
    [
        ("exponential", lambda o: lr_scheduler.ExponentialLR(o, 0.9)),
        ("linear", lambda o: lr_scheduler.LinearLR(o, 1.0, 0.2, total_iters=10)),
        ("cosine", lambda o: lr_scheduler.CosineAnnealingLR(o, 10, eta_min=0.1)),
        ("step", lambda o: lr_scheduler.MultiStepLR(o, [3, 6], 0.5)),
    ],
)
def test_a_schedule_is_that_of_pytorch(name, make):
    one = fitted(name)
    assert [one.share_at(t) for t in range(10)] == pytest.approx(rates_of_torch(make, 10), rel=1e-12)


def test_warm_up_is_pytorchs_linear_one_and_then_the_schedule_begins():
    warming = rates_of_torch(lambda o: lr_scheduler.LinearLR(o, 1 / 4, 1.0, total_iters=3), 3)
    assert warming == pytest.approx([0.25, 0.5, 0.75])
    for name in GIVEN:
        one = fitted(name, warmup=3)
        assert [one.share_at(t) for t in range(3)] == pytest.approx([0.25, 0.5, 0.75])
        if name != "step":  # milestones are rounds of the run
            alone = fitted(name, rounds=7)
            assert [one.share_at(t) for t in range(3, 10)] == pytest.approx([alone.share_at(t) for t in range(7)])
    assert [fitted("step", warmup=3).share_at(t) for t in (3, 5, 6, 9)] == [0.5, 0.5, 0.25, 0.25]


def test_a_cycle_begins_anew():
    shares = [fitted("cyclic", rounds=9, warmup=1).share_at(t) for t in range(9)]
    assert shares == [0.5, *[1.0, 0.875, 0.75, 0.625] * 2]
    assert fitted("cyclic", rounds=5, warmup=1).share_at(4) == 0.625  # a cycle may end with the run


def test_shares_between_rounds_lie_between_theirs():
    """What `by = "step"` reads: continuous, but where a step or a cycle jumps."""
    for name in GIVEN:
        one = fitted(name, warmup=2, by="step")
        for t in range(9):
            if (name, t + 1) in (("step", 3), ("step", 6), ("cyclic", 6)):
                continue
            ends = sorted([one.share_at(t), one.share_at(t + 1)])
            assert ends[0] - 1e-12 <= one.share_at(t + 0.37) <= ends[1] + 1e-12
            assert one.share_at(t + 1 - 1e-9) == pytest.approx(one.share_at(t + 1), abs=1e-6)


def test_a_schedule_is_saved_and_read_and_keeps_its_length():
    for name in SCHEDULES:
        one = fitted(name, warmup=1)
        assert read_schedule(one.save(), "schedule") == one
        assert one.fit(10, "schedule") == one
    assert fitted("cosine").rounds == 10
    assert fitted("cosine", rounds=10, end=0.1).fit(12, "schedule").share_at(11) == pytest.approx(0.1)


@for_each(
    ("given", "line"),
    [
        ("cosin", "unknown schedule: cosin"),
        ({"warmup": 3}, "schedule needs its name"),
        ({"name": "cosine", "warm": 1}, "the cosine schedule has no field: warm"),
        ({"name": "step"}, "the step schedule lacks: milestones"),
        ({"name": "cosine", "end": -0.1}, "end of the cosine schedule must be at least 0"),
        ({"name": "cosine", "by": "epoch"}, "by of the cosine schedule must be round or step"),
        ({"name": "cosine", "rounds": 30}, "schedule is longer than the run: 30 rounds of 10"),
        ({"name": "linear", "rounds": 5}, "schedule leaves no rate in round 10"),
        ({"name": "linear", "rounds": 3, "warmup": 3}, "schedule ends after 3 rounds, in its warm-up of 3"),
        ({"name": "step", "milestones": [5, 10]}, "a milestone of schedule lies behind the last round: 10"),
        ({"name": "constant", "warmup": 10}, "the warm-up of schedule takes 10 rounds, and the run has 10"),
        ({"name": "cyclic", "cycle": 8, "warmup": 3}, "the first cycle of schedule ends after 11 rounds"),
        ({"name": "exponential", "decay": 1e300}, "schedule leaves no rate in round 10"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(given, line):
    with pytest.raises(fk.ExperimentError) as caught:
        fk.Experiment(dataset="digits", rounds=10, schedule=given)
    assert line in caught.value.args[0].splitlines()[0]
    assert caught.value.hint


@dataclass(frozen=True, kw_only=True)
class Own(fk.Schedule):
    """What a function of time gives."""

    of: Callable[[float], Any]

    def shape(self, time):
        return self.of(time)


@for_each(
    ("of", "line"),
    [
        (lambda t: -1.0 if t == 1 else 1.0, "leaves no rate in round 2 that is a number above 0: -1.0"),
        (lambda t: min(t / 3, 1.0), "round 1 that is a number above 0: 0.0"),
        (lambda t: "a", "round 1 that is a number above 0: ValueError: could not convert string to float"),
        (lambda t: None, "round 1 that is a number above 0: TypeError: "),
        (lambda t: 1 / (t - 2) ** 2, "round 3 that is a number above 0: ZeroDivisionError: "),
        (lambda t: math.inf if t == 3 else 1.0, "round 4 that is a number above 0: inf"),
    ],
)
def test_an_own_schedule_is_refused_by_its_first_bad_round(of, line):
    with pytest.raises(fk.ExperimentError) as caught:
        fk.Experiment(dataset="digits", rounds=10, schedule=Own(of=of))
    assert caught.value.message.startswith(f"the {__name__}:Own schedule leaves no rate in ")
    assert line in caught.value.message


def test_shares_within_a_round_are_checked_when_they_are_read():
    one = Own(of=lambda t: 1.0 if t % 1 == 0 else math.inf if t < 1 else 0.0 if t < 2 else -1.0, by="step").fit(9, "x")
    assert one.share_at(1.5) == 0.0  # a step may have none: a cosine may round to it
    for time, given in ((0.5, "round 1 that is a number above 0: inf"), (2.5, r"round 3 .* 0: -1\.0")):
        with pytest.raises(fk.ExperimentError, match=given):
            one.share_at(time)


def test_a_share_is_a_plain_number():
    share = Own(of=lambda t: torch.tensor(0.5)).share_at(0)
    assert (type(share), share) == (float, 0.5)


def test_formulas_by_hand():
    cosine = fk.CosineRate(end=0.2).fit(4, "schedule")
    assert [cosine.share_at(t) for t in range(4)] == pytest.approx(
        [0.2 + 0.8 * (1 + math.cos(math.pi * t / 4)) / 2 for t in range(4)]
    )
    assert fk.ExponentialRate(decay=0.5, warmup=1).share_at(3) == 0.25
    assert fk.ConstantRate().share_at(1e6) == 1.0

"""Check an engine against serial, the reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from fedkeel.core.trees import tensors
from fedkeel.engines.choose import make_engine
from fedkeel.engines.engine import ClientOutcome, Engine
from fedkeel.engines.measure import Job
from fedkeel.methods import build
from fedkeel.testing.broken_law import hold
from fedkeel.testing.laws import CLOSE, same_bits
from fedkeel.testing.trial import Trial, difference, drive

METHODS = ("fedavg", "scaffold", "fedfft-d", "fedavg-ft", "ditto")
"""Plain training, a client's memory, a climb, work after the last round, and a phase that is not sent."""


def check_engine(
    engine: str | Callable[..., Engine], *, methods: Sequence[str] = METHODS, bitwise: bool = False
) -> None:
    """Check an engine: it trains these methods as serial does, answers in order, and changes nothing it was given.

    `engine` is a name, or what is called with a task, a method and a training. `bitwise` asks for the same bits.
    """
    for name in methods:
        trial = Trial(build(name))
        watched: list[OrderedEngine] = []

        def make(job: Job, watched: list[OrderedEngine] = watched) -> Engine:
            made = partial(make_engine, engine) if isinstance(engine, str) else make_own(engine)
            watched.append(OrderedEngine(made(job)))
            return watched[-1]

        run = drive(trial.experiment(), make)
        which, plain = f"engine {watched[0].name!r}", trial.plain
        far = difference(run, plain)
        hold(
            far < CLOSE,
            f"{which} trains {name} to another model than serial (they differ by {far:.2g}).",
            "compare a client's report with SerialEngine.train_one, step by step",
        )
        hold(
            not bitwise or same_bits(run.server, plain.server),
            f"{which} trains {name} to other bits than serial.",
            "the order of sums decides the last bits",
        )
        scores = [(one.accuracy, one.extra.get("test_loss")) for one in run.records]
        expected = [(one.accuracy, one.extra.get("test_loss")) for one in plain.records]
        agree = all(
            a is b or (a is not None and b is not None and abs(a - b) < CLOSE)
            for mine, theirs in zip(scores, expected, strict=True)
            for a, b in zip(mine, theirs, strict=True)
        )
        hold(agree, f"{which} scores the models of {name} otherwise than serial.", "evaluate(params, buffers, split)")


def make_own(engine: Callable[..., Engine]) -> Callable[[Job], Engine]:
    return lambda job: engine(job.task, job.method, job.training)


class OrderedEngine:
    """An engine whose answers are held against what was asked."""

    def __init__(self, inner: Engine):
        self.inner, self.name = inner, inner.name

    def train(self, *request: Any) -> list[ClientOutcome]:
        before = [slot.clone() for slot in tensors(request[0])]
        outcomes = self.inner.train(*request)
        hold(
            [one.client for one in outcomes] == list(request[3]),
            f"engine {self.name!r} does not return clients in the order in which they were asked for.",
            "one ClientOutcome for each of `clients`, in their order",
        )
        hold(
            all(map(torch.equal, before, tensors(request[0]))),
            f"engine {self.name!r} writes into the message that it was given.",
            "copy what is trained in place",
        )
        return outcomes

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

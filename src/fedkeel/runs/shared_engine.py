"""One engine for all runs that a command compares: what `auto` means for several runs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from fedkeel.engines.choose import BITWISE, ENGINES, PREFERENCE, Choice, Contest, candidates
from fedkeel.engines.machine import steady
from fedkeel.engines.measure import Job, RemainingWork, without_traces
from fedkeel.errors import FedkeelError
from fedkeel.runs.experiment import Experiment
from fedkeel.runs.folder import read_environment
from fedkeel.runs.plan import Plan
from fedkeel.runs.prepare import method_of, problem_of, task_maker
from fedkeel.runs.together import FREE

log = logging.getLogger("fedkeel")


@dataclass(frozen=True)
class Asked:
    """A run that is to be compared with others, and its folder."""

    experiment: Experiment
    folder: Path

    @property
    def engine(self) -> str | None:
        """The engine of its rounds so far, as its folder says."""
        name = read_environment(self.folder).get("engine")
        return name if name in ENGINES else None

    def takes(self, engine: str) -> bool:
        """Whether it may go on with an engine: one that gives the same bits as that of its rounds so far."""
        return self.engine in (None, engine) or {self.engine, engine} <= {*BITWISE}


def choose_for_all(
    asked: Sequence[Asked], device: torch.device, dtype: torch.dtype, workers: int | None, *, stacks: bool = False
) -> str:
    """Choose the engine of runs that have rounds already, or the one that measures fastest over all kinds of runs.

    `stacks`: some would be trained as one stack, which no measurement of a single run shows.
    """
    before = {one.engine for one in asked} - {None}
    if len(before) == 1:
        return str(before.pop())
    kinds: dict[str, list[Experiment]] = {}
    for one in asked:
        kinds.setdefault(repr(sorted(_work(one.experiment).items())), []).append(one.experiment)
    with steady(device):
        return _fastest(list(kinds.values()), device, dtype, workers, stacks)


def _work(experiment: Experiment) -> dict[str, str]:
    """What decides how long a gradient takes, and whether it can be stacked: all but the method, which an engine does
    not know, and what may differ within a stack."""
    return {name: repr(value) for name, value in experiment.save().items() if name not in (*FREE, "method")}


def _fastest(
    kinds: Sequence[Sequence[Experiment]], device: torch.device, dtype: torch.dtype, workers: int | None, stacks: bool
) -> str:
    able, seconds = list(ENGINES), dict.fromkeys(ENGINES, 0.0)
    measured = False
    for kind in kinds:
        heaviest = max(kind, key=lambda one: sum(phase.backward_passes for phase in one.plan.method.phases))
        try:
            job = _job(heaviest.plan, device, dtype, workers)
        except FedkeelError:  # the run itself says why
            continue
        able = [name for name in candidates(job, None) if name in able]
        if len(able) < 2 or (stacks and "stacked" in able):
            continue
        with without_traces(device):
            engine, choice = Contest(job, able).decide()
            if engine is not None:
                engine.close()
        if choice.seconds:  # a kind that is too short to be measured has no say
            measured = True
            able = [name for name in able if name in choice.seconds]
            seconds = {name: seconds[name] + len(kind) * choice.seconds.get(name, 0.0) for name in seconds}
    if stacks and "stacked" in able:
        return "stacked"
    if not measured or len(able) < 2:
        return able[0] if able else "serial"
    best = min(able, key=lambda name: seconds[name] * (PREFERENCE if name == "serial" else 1.0))
    log.info("for all runs: %s", Choice(best, "auto", {name: seconds[name] for name in able}).describe())
    return best


def _job(plan: Plan, device: torch.device, dtype: torch.dtype, workers: int | None) -> Job:
    """Make the job of the plan's first round, to be measured."""
    make = task_maker(plan, device, dtype)
    task = make(problem_of(plan))
    clients = plan.participation_of(task.clients.sizes).selected(0)
    return Job(task, method_of(plan, task), plan.training, make, workers, RemainingWork(plan.rounds, clients))

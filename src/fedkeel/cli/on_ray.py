"""`--on ray`: the runs of a sweep or a search on the workers of a Ray cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from fedkeel.errors import RequestError

if TYPE_CHECKING:
    from fedkeel.cli.training import Machine, Target
    from fedkeel.engines.ray_crew import RayCrew
    from fedkeel.runs.finished_run import Run
    from fedkeel.studies.ray_cluster import RunRequest


def open_cluster(on: str, machine: Machine) -> contextlib.AbstractContextManager[RayCrew | None]:
    """Open workers once for all that is asked of them; none where runs are made here."""
    if on not in ("here", "ray"):
        raise RequestError(f"runs are made here or on ray, not on: {on}", "leave --on out, or write --on ray")
    if on == "here":
        return contextlib.nullcontext()
    from fedkeel.studies.ray_cluster import ALONE, hire

    if machine.engine in ALONE:
        raise RequestError(
            f"--on ray gives each run one worker, and --engine {machine.engine} spreads a run over many.",
            f"--engine {ALONE[machine.engine]}",
        )
    return hire(machine.device, machine.workers)


def settle_on_ray(targets: Sequence[Target], machine: Machine, crew: RayCrew) -> Machine:
    """The machine with one engine for all targets, chosen by a worker."""
    from fedkeel.cli.training import settle_engine

    return settle_engine(targets, machine, partial(choose_engine, crew))


def choose_engine(crew: RayCrew, targets: Sequence[Target], machine: Machine) -> str:
    from fedkeel.studies.ray_cluster import choose_on_ray

    return choose_on_ray([request_of(target, machine) for target in targets], crew)


def train_on_ray(targets: Sequence[Target], machine: Machine, crew: RayCrew) -> list[Run | None]:
    """Make all targets that are not made yet; None for one that failed."""
    from fedkeel.cli.training import name_runs
    from fedkeel.studies.ray_cluster import runs_on_ray

    return runs_on_ray(
        [(title, request_of(one, machine)) for title, one in zip(name_runs(targets), targets, strict=True)], crew
    )


def request_of(target: Target, machine: Machine) -> RunRequest:
    """A target as it is handed to a worker."""
    from fedkeel.studies.ray_cluster import RunRequest

    out, engine = str(target.folder.absolute()), machine.engine_of(target)
    return RunRequest(target.experiment.save(), out, engine, machine.device, machine.precision, machine.workers)

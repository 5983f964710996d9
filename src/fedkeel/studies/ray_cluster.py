"""Runs spread over a Ray cluster. Each is a folder on storage that all machines share, so that it resumes anywhere."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedkeel.engines.machine import PRECISIONS, device_of
from fedkeel.engines.pool import spread
from fedkeel.engines.ray_connection import connected
from fedkeel.engines.ray_crew import RayCrew
from fedkeel.errors import FedkeelError, FolderError, RunError
from fedkeel.importing import Trust
from fedkeel.runs.experiment import Experiment
from fedkeel.runs.finished_run import Run, load_run
from fedkeel.runs.folder import RESULT, read_json
from fedkeel.runs.own_code import warn_of_edits
from fedkeel.runs.shared_engine import Asked, choose_for_all
from fedkeel.text import in_one_line

log = logging.getLogger("fedkeel")

CHECKPOINT_SECONDS = 5.0  # Ray ends its workers without a word, so a run is never far from its last checkpoint
ALONE = {"ray": "serial", "ray-stacked": "stacked"}  # what one worker is


@dataclass(frozen=True)
class RunRequest:
    """One run as plain data: an experiment that stood the checks where it was asked for, its folder, and what it runs
    on."""

    experiment: Mapping[str, Any]
    out: str
    engine: str = "auto"
    device: str = "auto"
    precision: str = "float32"
    workers: int | None = None

    @property
    def asked(self) -> Asked:
        """The experiment and its folder; what it names was checked where it was asked for."""
        return Asked(Experiment.read(self.experiment, trust=Trust.TYPED), Path(self.out))


@contextlib.contextmanager
def hire(device: str, workers: int | None) -> Iterator[RayCrew]:
    """Open workers that make whole runs: each takes a GPU, where runs are on one, and as many cores as a run's own
    workers need."""
    with connected() as ray:
        on_gpu = device.startswith("cuda") or (device == "auto" and ray.cluster_resources().get("GPU", 0) > 0)
        crew = RayCrew(cpus=float(workers or 1), gpus=float(on_gpu))
        try:
            yield crew
        finally:
            crew.close()


def runs_on_ray(asked: Sequence[tuple[str, RunRequest]], crew: RayCrew) -> list[Run | None]:
    """Make every labelled run that is not made yet; runs in the order asked for, None for one that failed.

    A run whose worker or machine dies is begun again elsewhere and goes on from its last checkpoint. One that fails
    for a reason of its own is not tried again, and does not stop the others. Each end is logged.
    """
    left, failed = list[tuple[str, RunRequest]](), set[str]()
    for label, request in asked:
        if is_finished(request):
            warn_of_edits(Path(request.out), request.asked.experiment.plan.parts)
            log.info("%s is done", label)
        else:
            left.append((label, request))
    crew.grow(len(left))
    for place, answer in spread(crew, "call", [(make, request) for _, request in left]):
        label, request = left[place]
        if problem := describe(answer) if isinstance(answer, BaseException) else answer:
            log.warning("%s failed: %s", label, problem)
            failed.add(request.out)
        else:
            log.info("%s is done", label)
    return [None if request.out in failed else load_run(request.out) for _, request in asked]


def is_finished(request: RunRequest) -> bool:
    """Whether a run is complete in its folder."""
    experiment = request.asked.experiment
    try:
        result = read_json(Path(request.out) / RESULT)
    except FolderError:  # damaged: the run makes it again
        return False
    return (result.get("fingerprint"), result.get("rounds")) == (experiment.fingerprint(), experiment.plan.rounds)


def choose_on_ray(requests: Sequence[RunRequest], crew: RayCrew) -> str:
    """One engine for all requests, chosen by a worker that could run any of them."""
    crew.grow(1)
    ((_, answer),) = spread(crew, "call", [(choose, requests, int(crew.cpus))])
    if isinstance(answer, BaseException):
        raise RunError(f"no engine could be measured on Ray: {describe(answer)}", "name one: --engine serial")
    return str(answer)


def choose(requests: Sequence[RunRequest], cores: int) -> str:
    """The same, on a worker that has so many cores."""
    request = requests[0]
    place = device_of(request.device), PRECISIONS[request.precision], request.workers or max(1, cores)
    engine = choose_for_all([request.asked for request in requests], *place)
    return ALONE.get(engine, engine)


def make(request: RunRequest) -> str:
    """Make one run, on a worker; what went wrong, or nothing."""
    from fedkeel.runs.start import run

    try:
        run(
            request.asked.experiment,
            out=request.out,
            engine=request.engine,
            workers=request.workers,
            device=request.device,
            dtype=PRECISIONS[request.precision],
            checkpoint_seconds=CHECKPOINT_SECONDS,
        )
    except Exception as error:  # also of the user's own code
        return describe(error)
    return ""


def describe(error: BaseException) -> str:
    """What went wrong, in one line."""
    return error.message if isinstance(error, FedkeelError) else f"{type(error).__name__}: {in_one_line(error)}"

"""Runs spread over a Ray cluster. Each is a folder on storage that all machines share, so that it resumes anywhere."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
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


@dataclass(frozen=True)
class Finished:
    """How a request ended: with a result, or with what went wrong."""

    request: RunRequest
    result: dict[str, Any] | None
    problem: str = ""


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


def execute(
    requests: Sequence[RunRequest], crew: RayCrew, tell: Callable[[Finished], None] = lambda done: None
) -> list[Finished]:
    """Make every run that is not made yet; answers in the order of the requests, `tell` in the order of finishing.

    A run whose worker or machine dies is begun again elsewhere and goes on from its last checkpoint. One that fails
    for a reason of its own is not tried again, and does not stop the others.
    """
    ends: dict[int, Finished] = {}
    for number, request in enumerate(requests):
        if (result := finished_result(request)) is not None:
            ends[number] = Finished(request, result)
            tell(ends[number])
    left = [number for number in range(len(requests)) if number not in ends]
    crew.grow(len(left))
    for place, answer in spread(crew, "call", [(make, requests[number]) for number in left]):
        result, problem = (None, describe(answer)) if isinstance(answer, BaseException) else answer
        ends[left[place]] = Finished(requests[left[place]], result, problem)
        tell(ends[left[place]])
    return [ends[number] for number in range(len(requests))]


def runs_on_ray(asked: Sequence[tuple[str, RunRequest]], crew: RayCrew) -> list[Run | None]:
    """What a sweep asks for: labelled requests in, runs out, None for one that failed. Each end is logged."""
    requests, labels = [request for _, request in asked], {request.out: label for label, request in asked}

    def tell(end: Finished) -> None:
        if end.result is None:
            log.warning("%s failed: %s", labels[end.request.out], end.problem)
        else:
            log.info("%s is done", labels[end.request.out])

    return [None if end.result is None else load_run(end.request.out) for end in execute(requests, crew, tell)]


def finished_result(request: RunRequest) -> dict[str, Any] | None:
    """The result of a run that is complete in its folder."""
    experiment = request.asked.experiment
    try:
        result = read_json(Path(request.out) / RESULT)
    except FolderError:  # damaged: the run makes it again
        return None
    same = (result.get("fingerprint"), result.get("rounds")) == (experiment.fingerprint(), experiment.plan.rounds)
    return result if same else None


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


def make(request: RunRequest) -> tuple[dict[str, Any] | None, str]:
    """One run, on a worker."""
    from fedkeel.runs.start import run

    try:
        made = run(
            request.asked.experiment,
            out=request.out,
            engine=request.engine,
            workers=request.workers,
            device=request.device,
            dtype=PRECISIONS[request.precision],
            checkpoint_seconds=CHECKPOINT_SECONDS,
        )
    except Exception as error:  # also of the user's own code
        return None, describe(error)
    return made.result, ""


def describe(error: BaseException) -> str:
    """What went wrong, in one line."""
    return error.message if isinstance(error, FedkeelError) else f"{type(error).__name__}: {in_one_line(error)}"

"""Runs spread over a Ray cluster. Each is a folder on storage that all machines share, so that it resumes anywhere."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedkeel.engines.choose import first_line
from fedkeel.engines.machine import PRECISIONS, device_of
from fedkeel.errors import FedkeelError, FolderError, RequestError, RunError
from fedkeel.importing import Trust
from fedkeel.runs.experiment import Experiment
from fedkeel.runs.finished_run import Run, load_run
from fedkeel.runs.folder import RESULT, read_json
from fedkeel.runs.shared_engine import Asked, choose_for_all

log = logging.getLogger("fedkeel")

MOMENT = 0.5  # seconds
CHECKPOINT_SECONDS = 5.0  # Ray ends its workers without a word, so a run is never far from its last checkpoint


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


@dataclass(frozen=True)
class Cluster:
    """Which cluster, and how much of it one run takes.

    `address` is a running Ray ("auto", "host:port"); None starts one on this machine. A run on a GPU takes `gpus` of
    it: 0.5 puts two runs on each. `attempts` is how often a run is begun when the process or the machine it is on dies.
    """

    address: str | None = None
    cpus: float = 1.0
    gpus: float = 1.0
    attempts: int = 4


def execute(
    requests: Sequence[RunRequest],
    cluster: Cluster = Cluster(),  # noqa: B008 - frozen
    tell: Callable[[Finished], None] = lambda done: None,
) -> list[Finished]:
    """Make every run that is not made yet; answers in the order of the requests, `tell` in the order of finishing.

    A run whose process or machine dies is begun again elsewhere and goes on from its last checkpoint. One that fails
    for a reason of its own is not tried again, and does not stop the others.
    """
    ends: dict[int, Finished] = {}
    left: dict[int, RunRequest] = {}
    for number, request in enumerate(requests):
        if (result := finished_result(request)) is None:
            left[number] = request
        else:
            ends[number] = Finished(request, result)
            tell(ends[number])
    if left:
        for number, end in run_on_cluster(left, cluster):
            ends[number] = end
            tell(end)
    return [ends[number] for number in range(len(requests))]


def runs_on_ray(
    asked: Sequence[tuple[str, RunRequest]],
    cluster: Cluster = Cluster(),  # noqa: B008 - frozen
) -> list[Run | None]:
    """What a sweep asks for: labelled requests in, runs out, None for one that failed. Each end is logged."""
    requests, labels = [request for _, request in asked], {request.out: label for label, request in asked}

    def tell(end: Finished) -> None:
        if end.result is None:
            log.warning("%s failed: %s", labels[end.request.out], end.problem)
        else:
            log.info("%s is done", labels[end.request.out])

    return [None if end.result is None else load_run(end.request.out) for end in execute(requests, cluster, tell)]


def finished_result(request: RunRequest) -> dict[str, Any] | None:
    """The result of a run that is complete in its folder."""
    experiment = request.asked.experiment
    try:
        result = read_json(Path(request.out) / RESULT)
    except FolderError:  # damaged: the run makes it again
        return None
    same = (result.get("fingerprint"), result.get("rounds")) == (experiment.fingerprint(), experiment.plan.rounds)
    return result if same else None


def choose_on_ray(requests: Sequence[RunRequest], cluster: Cluster = Cluster()) -> str:  # noqa: B008 - frozen
    """One engine for all requests, chosen on a machine that could run any of them."""
    with connected(cluster) as ray:
        done = ray.remote(choose).options(**share_of(ray, requests[0], cluster)).remote(requests, int(cluster.cpus))
        first(ray, [done])
        try:
            return str(ray.get(done))
        except ray.exceptions.RayError as error:
            raise RunError(
                f"no engine could be measured on Ray: {first_line(error)}", "name one: --engine serial"
            ) from None


def choose(requests: Sequence[RunRequest], cores: int) -> str:
    """The same, on a worker that has so many cores."""
    request = requests[0]
    place = device_of(request.device), PRECISIONS[request.precision], request.workers or max(1, cores)
    return choose_for_all([request.asked for request in requests], *place)


def share_of(ray: Any, request: RunRequest, cluster: Cluster) -> dict[str, float]:
    """How much of the cluster a run takes."""
    gpus = cluster.gpus if request.device.startswith("cuda") or uses_gpu(ray, request) else 0.0
    return {"num_cpus": max(cluster.cpus, request.workers or 0), "num_gpus": gpus}


def run_on_cluster(requests: Mapping[int, RunRequest], cluster: Cluster) -> Iterator[tuple[int, Finished]]:
    """Hand requests to the cluster; those whose worker dies are handed out again."""
    with connected(cluster) as ray:
        remote = ray.remote(max_retries=0)(make)  # a crash is counted here, not there

        def begin(number: int) -> Any:
            return remote.options(**share_of(ray, requests[number], cluster)).remote(requests[number])

        attempts = dict.fromkeys(requests, 1)
        running = {begin(number): number for number in requests}
        while running:
            number = running.pop(done := first(ray, running))
            try:
                result, problem = ray.get(done)
            except (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError) as error:
                if attempts[number] < cluster.attempts:
                    attempts[number] += 1
                    log.warning("the worker of %s died; the run goes on elsewhere", requests[number].out)
                    running[begin(number)] = number
                    continue
                result, problem = None, f"its worker died {attempts[number]} times: {type(error).__name__}"
            yield number, Finished(requests[number], result, problem)


def first(ray: Any, running: Iterable[Any]) -> Any:
    """The next of these that ends. Ray hears no signal while it waits, so it waits for a moment at a time."""
    done: list[Any] = []
    while not done:
        try:
            done, _ = ray.wait(list(running), num_returns=1, timeout=MOMENT)
        except SystemError as error:  # it hides what a signal's handler raises behind one
            raise error.__cause__ or error from None
    return done[0]


@contextlib.contextmanager
def connected(cluster: Cluster = Cluster()) -> Iterator[Any]:  # noqa: B008 - frozen
    """Ray, connected; left as it was found. Around several calls it is started once for all of them."""
    ray = imported()
    mine = not ray.is_initialized()
    if mine:
        ray.init(address=cluster.address, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    try:
        yield ray
    finally:
        if mine:
            ray.shutdown()


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
    except FedkeelError as error:
        return None, error.message
    except Exception as error:  # of the user's own code
        return None, f"{type(error).__name__}: {' '.join(str(error).split())}"
    return made.result, ""


def uses_gpu(ray: Any, request: RunRequest) -> bool:
    """Whether `auto` means a GPU: where the cluster has one."""
    return request.device == "auto" and ray.cluster_resources().get("GPU", 0) > 0


def imported() -> Any:
    # every run says whether it takes a GPU; without this Ray warns that it will stop hiding them from those that do not
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
        import ray.exceptions
    except ModuleNotFoundError:
        raise RequestError(
            "sweeps on Ray need a package that is not installed: ray", 'pip install "fedkeel[ray]"'
        ) from None
    if not hasattr(ray, "remote"):
        raise RunError("the module named ray is not Ray.", "is there a folder called ray in the current one?")
    return ray

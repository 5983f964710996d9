"""Engines by name; `auto` takes the one that measures fastest."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from fedkeel.engines.engine import Engine
from fedkeel.engines.machine import cores, has_pools
from fedkeel.engines.measure import TIMES, Job, time_call, time_round, without_traces
from fedkeel.engines.processes import ProcessesEngine
from fedkeel.engines.serial import SerialEngine
from fedkeel.engines.stacked.engine import StackedEngine
from fedkeel.errors import RequestError, require_known
from fedkeel.importing import Kind, Trust, look_up
from fedkeel.plugins import find_plugin
from fedkeel.text import duration, first_line

ENGINES = ("serial", "processes", "stacked", "flower", "ray", "ray-stacked")
BITWISE = ("serial", "processes", "ray")  # these give the same bits as each other

STACKING = ("stacked", "ray-stacked")

LEAST_SECONDS = 20.0  # less work than that is not worth measuring
MEASURING_SHARE = 0.05  # of the work that goes into measuring all engines
ROUND_SECONDS = 1.0  # of a short round, where a step is short enough
POOL_SECONDS = 5.0  # about what it takes to start one
PREFERENCE = 0.9  # another engine than serial must save a tenth

OWN = Kind(
    "engine", object, classes=True, functions=True, hint="a class that is made of a task, a method and a training"
)

log = logging.getLogger("fedkeel")


@dataclass(frozen=True)
class Choice:
    """The engine of a run and, where `auto` has measured, the seconds that each would have needed for what was left."""

    engine: str
    asked: str = "auto"
    seconds: Mapping[str, float] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)

    def describe(self) -> str:
        """Describe the choice in one line."""
        others = [f"{name} {duration(value)}" for name, value in self.seconds.items() if name != self.engine]
        others += [f"{name}: {why}" for name, why in self.left_out.items()]
        return f"engine {self.engine}, {duration(self.seconds[self.engine])} by measurement ({'; '.join(others)})"

    def record(self, done: int) -> dict[str, Any]:
        """Return plain data for the run folder: the choice and the round after which it was made."""
        data: dict[str, Any] = {"after_round": done, "engine": self.engine, "asked": self.asked}
        if self.seconds:
            data["expected_seconds"] = {name: float(f"{value:.3g}") for name, value in self.seconds.items()}
        return data | ({"left_out": dict(self.left_out)} if self.left_out else {})


class ChosenEngine(NamedTuple):
    engine: Engine
    choice: Choice


def check_name(name: str) -> None:
    """Refuse the name of no engine; `module:name` is one of the user's own."""
    if not isinstance(name, str):
        raise RequestError(f"an engine is a name, not {type(name).__name__}.", f"for example {ENGINES[0]!r}")
    if ":" in name or (name not in ENGINES and find_plugin("engines", name) is not None):
        return
    require_known(name, (*ENGINES, "auto"), "unknown engine", "engines")


def settle_device(engine: str, device: str) -> str:
    """Return the name of the device; `auto` is the CPU for an engine that runs nowhere else."""
    return "cpu" if (engine, device) == ("processes", "auto") else device


def choose_engine(name: str, job: Job, before: str | None = None) -> ChosenEngine:
    """Make the engine of that name, or for `auto` the fastest that can do the job.

    `before` names the engine of the rounds that are done: a run continues with one that gives the same bits.
    """
    if name != "auto":
        return ChosenEngine(make_engine(name, job), Choice(name, name))
    names = candidates(job, before)
    if len(names) > 1:
        with without_traces(job.task.device):
            engine, choice = Contest(job, names).decide()
        if choice.seconds:
            log.info("%s", choice.describe())
    else:
        engine, choice = None, Choice(names[0])
    return ChosenEngine(engine or make_engine(choice.engine, job), choice)


def candidates(job: Job, before: str | None) -> list[str]:
    """List the engines that may be able to do the job, in the order in which they are tried."""
    task = job.task
    able = {
        "serial": task.compute == task.dtype,
        "stacked": True,
        "processes": has_pools()
        and task.compute == task.dtype
        and task.device.type == "cpu"
        and (job.workers or cores()) > 1,
    }
    alike = next((group for group in (BITWISE, STACKING) if before in group), ENGINES)
    return [name for name, can in able.items() if can and name in alike] or ["serial"]


class Contest:
    """Times candidates one after another; one that fails is left out."""

    def __init__(self, job: Job, names: list[str]):
        self.job, self.names = job, names
        self.seconds: dict[str, float] = {}  # for all that is left
        self.left_out: dict[str, str] = {}
        self.ready: dict[str, Engine] = {}  # those that need not be made again

    def decide(self) -> tuple[Engine | None, Choice]:
        """Find the fastest engine; serial where there is little to do, or where it fails, which the run explains."""
        total = self.job.passes_left
        if not total:
            return None, Choice("serial")
        try:
            one_client = self.job.shorten(0.0, self.pick_clients(1))
            pass_seconds = time_round(SerialEngine(one_client.task, one_client.method, one_client.training), one_client)
        except Exception:
            return None, Choice("serial")
        pass_seconds /= max(1, one_client.passes_left)
        if pass_seconds * total < LEAST_SECONDS:
            return None, Choice("serial")
        passes = min(MEASURING_SHARE * total / (TIMES * len(self.names)), ROUND_SECONDS / pass_seconds)
        short_job = self.shorten_job(passes)
        trials = {"serial": self.time_serial, "stacked": self.time_stacked, "processes": self.time_processes}
        for name in self.names:
            try:
                trials[name](short_job, total / max(1, short_job.passes_left))
            except Exception as error:
                self.left_out[name] = first_line(error)
        if "serial" not in self.seconds:
            return None, Choice("serial")
        best = min(self.seconds, key=lambda n: self.seconds[n] * (PREFERENCE if n == "serial" else 1.0))
        for name, engine in self.ready.items():
            if name != best:
                engine.close()
        return self.ready.get(best), Choice(best, "auto", self.seconds, self.left_out)

    def shorten_job(self, passes: float) -> Job:
        """Shorten the job to about so many passes: fewer samples of each client, then fewer clients (two at least)."""
        clients = len(self.job.left.clients)
        enough = max(2, self.workers if "processes" in self.names else 2)
        picked = self.pick_clients(min(clients, max(enough, int(passes))))
        return self.job.shorten(min(1.0, passes / self.job.passes(picked)), picked)

    def pick_clients(self, count: int) -> list[int]:
        """Pick some of the next round's clients, of all sizes."""
        sizes = self.job.task.clients.sizes
        ordered = sorted(self.job.left.clients, key=lambda client: int(sizes[client]), reverse=True)
        return [ordered[i * len(ordered) // count] for i in range(count)]

    @property
    def workers(self) -> int:
        return self.job.workers or cores()

    def time_serial(self, short: Job, scale: float) -> None:
        self.seconds["serial"] = scale * time_round(SerialEngine(short.task, short.method, short.training), short)

    def time_stacked(self, short: Job, scale: float) -> None:
        """Time the stacked engine; on a GPU on whole rounds, whose captured steps the run can use afterwards."""
        if self.job.task.device.type != "cuda":
            stacked = StackedEngine(short.make_task(short.task.problem), short.method, short.training)
            self.seconds["stacked"] = scale * time_round(stacked, short)
            return
        engine = StackedEngine(self.job.make_task(self.job.task.problem), self.job.method, self.job.training)
        self.seconds["stacked"] = self.job.left.rounds * time_round(engine, self.job)
        self.ready["stacked"] = engine

    def time_processes(self, short: Job, scale: float) -> None:
        """Time a pool of processes, only where a perfect pool would win; it then waits for the run."""
        job = self.job
        perfect = POOL_SECONDS + self.seconds["serial"] / min(self.workers, len(job.left.clients))
        if perfect >= min(self.seconds.values()):
            self.left_out["processes"] = "would not pay for its start"
            return
        pool = ProcessesEngine(short)
        try:
            seconds = scale * time_round(pool, short)
            self.seconds["processes"] = seconds + time_call(partial(pool.prepare, job), job.task.device)
        except BaseException:
            pool.close()
            raise
        self.ready["processes"] = pool


def make_engine(name: str, job: Job) -> Engine:
    """Make the engine of that name."""
    task = job.task
    if name not in ENGINES and (plugin := find_plugin("engines", name)) is not None:
        name = plugin.value
    if ":" in name:
        own: Engine = look_up(name, OWN, Trust.TYPED)(task, job.method, job.training)
        return own
    if name == "processes" and not has_pools():
        raise RequestError("this system has no processes engine.", "use --engine serial or --engine stacked")
    if name == "processes" and task.device.type != "cpu":
        raise RequestError(f"the processes engine runs on the CPU, not on {task.device}.", "use --engine serial")
    if name == "stacked":
        return StackedEngine(task, job.method, job.training)
    if task.compute != task.dtype and name not in STACKING:
        raise RequestError(f"the {name} engine does not compute in {task.compute}.", "use --engine stacked on a GPU")
    if name == "flower":
        return make_flower_engine(job)
    if name in ("ray", "ray-stacked"):
        from fedkeel.engines.ray_crew import RayEngine  # which needs Ray

        return RayEngine(job, stacks=name in STACKING)
    if name == "serial":
        return SerialEngine(task, job.method, job.training)
    return ProcessesEngine(job)


def make_flower_engine(job: Job) -> Engine:
    """Start Flower's simulation, where Flower is installed."""
    try:
        from fedkeel.engines.flower.simulation import start_simulation
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in ("flwr", "ray"):
            raise
        raise RequestError(
            f"the engine flower needs a package that is not installed: {error.name}", 'pip install "fedkeel[flower]"'
        ) from None
    return start_simulation(job)

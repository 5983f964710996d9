"""Engines by name, and which one `auto` takes."""

from __future__ import annotations

import time
from collections.abc import Callable

from fedkeel.engines.engine import Engine, Training
from fedkeel.engines.processes import ProcessesEngine
from fedkeel.engines.serial import SerialEngine
from fedkeel.engines.stacked import StackedEngine
from fedkeel.errors import RequestError, nearest
from fedkeel.machine import cores
from fedkeel.method import Method
from fedkeel.problem import Problem
from fedkeel.task import Task

ENGINES = ("serial", "processes", "stacked", "flower")
WORTH_SECONDS = 20.0  # a pool takes seconds to start


def make_engine(
    name: str,
    task: Task,
    method: Method,
    training: Training,
    make_task: Callable[[Problem], Task],
    workers: int | None,
    trainings: int,
) -> Engine:
    """The engine of that name; `auto` takes the pool when what is left to do is worth starting one."""
    if name not in (*ENGINES, "auto"):
        raise RequestError(f"unknown engine: {name}", nearest(name, (*ENGINES, "auto"), "engines"))
    if name == "processes" and task.device.type != "cpu":
        raise RequestError(f"the processes engine runs on the CPU, not on {task.device}.", "use --engine serial")
    if name == "auto" and task.device.type == "cuda" and not task.stochastic:
        name = "stacked"  # one client at a time leaves a GPU idle
    if name == "stacked":
        return StackedEngine(task, method, training)
    if task.compute != task.dtype:
        raise RequestError(f"the {name} engine does not compute in {task.compute}.", "use --engine stacked on a GPU")
    if name == "flower":
        return simulated_by_flower(task, method, training, make_task, workers)
    serial = SerialEngine(task, method, training)
    if name == "auto":
        name = "serial"
        if cores() > 1 and task.device.type == "cpu" and seconds_left(serial, trainings) > WORTH_SECONDS:
            name = "processes"
    if name == "serial":
        return serial
    return ProcessesEngine(task, method, training, workers=workers or cores(), make_task=make_task)


def simulated_by_flower(
    task: Task, method: Method, training: Training, make_task: Callable[[Problem], Task], workers: int | None
) -> Engine:
    """Flower's simulation, where it is installed."""
    try:
        from fedkeel.engines.flower.simulation import simulated
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in ("flwr", "ray"):
            raise
        raise RequestError(
            f"the engine flower needs a package that is not installed: {error.name}", 'pip install "fedkeel[flower]"'
        ) from None
    return simulated(task, method, training, make_task, workers)


def seconds_left(engine: SerialEngine, trainings: int) -> float:
    """A guess: one gradient of one client, timed, times all the steps that are left."""
    sizes = engine.task.clients.sizes
    client = int(sizes.argmax())
    plans = [engine.plan(0, client, i, phase) for i, phase in enumerate(engine.method.phases)]
    rows = max((plan[0] for plan in plans if plan), key=len)
    batch = engine.task.batch(client, rows)
    began = time.perf_counter()
    engine.workspace(engine.task.initial, batch, "loss", {}, engine.task.buffers)
    each = time.perf_counter() - began
    steps = sum(p.backward_passes * len(plan) for p, plan in zip(engine.method.phases, plans, strict=True))
    return each * steps * trainings * float(sizes.mean() / sizes[client])

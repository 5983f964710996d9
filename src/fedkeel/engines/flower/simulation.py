"""Flower's simulation as an engine: its nodes are actors on this machine, started and stopped with the run."""

from __future__ import annotations

import functools
import logging
import os
import pickle
import queue
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Any

from fedkeel.engines.flower.checks import Terms
from fedkeel.engines.machine import cores
from fedkeel.engines.measure import Job
from fedkeel.engines.pool import pickle_engine
from fedkeel.engines.serial import SerialEngine
from fedkeel.errors import RunError

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # read when flwr is first imported
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # or Ray warns; nodes say whether they take a GPU

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from fedkeel.engines.flower.client import Node, client_number, make_client_app
from fedkeel.engines.flower.engine import FlowerEngine
from fedkeel.engines.flower.node_registry import NodeRegistry

THREAD = "flower simulation"
START = 180.0  # seconds the simulation may take to come up


@functools.lru_cache(maxsize=1)
def load_engine(file: str) -> SerialEngine:
    """Load the engine of this actor, once, from a file that the process which started it has written."""
    return pickle.loads(Path(file).read_bytes())()


def node_from_file(file: str, context: Context) -> Node:
    """Make a simulated node: its client's number is its partition, its data are in a file on this machine."""
    return Node(client_number(context), load_engine(file))


def start_simulation(job: Job) -> FlowerEngine | SerialEngine:
    """Start a simulation with one node for each client; the server's copy of states is what checkpoints hold.

    A process has room for one simulation: while it runs, another engine (of a method's final phase) is a serial one,
    which gives the same bits.
    """
    task, method, training = job.task, job.method, job.training
    if any(thread.name == THREAD for thread in threading.enumerate()):
        return SerialEngine(task, method, training)
    engine = pickle_engine(job, "simulated nodes")
    file = Path(tempfile.mkdtemp(prefix="fedkeel-")) / "engine"
    file.write_bytes(engine)
    clients = len(task.clients.sizes)
    simulation = Simulation(file, clients, job.workers or cores(), task.device.type == "cuda")
    try:
        grid = simulation.start()
        registry = NodeRegistry(grid, clients, patience=START)
        registry.wait(clients, START, clients)
    except BaseException:
        simulation.stop()
        raise
    return FlowerEngine(task, method, training, grid, registry, Terms(diverged=True), on_close=simulation.stop)


class Simulation:
    """Runs in a thread; its server app hands out the grid and then waits for the end."""

    def __init__(self, file: Path, clients: int, workers: int, gpu: bool):
        self.file, self.clients, self.workers, self.gpu = file, clients, workers, gpu
        self.grids: queue.Queue[Grid | BaseException] = queue.Queue()
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.run, name=THREAD, daemon=True)

    def start(self) -> Grid:
        for noisy in ("flwr", "ray", "ray._private.worker"):
            logging.getLogger(noisy).setLevel(logging.ERROR)  # their lines would fall between those of the run
        self.thread.start()
        try:
            grid = self.grids.get(timeout=START)
        except queue.Empty:
            line = f"Flower's simulation did not start within {START:g} seconds."
            raise RunError(line, "use --engine serial, which gives the same bits") from None
        if isinstance(grid, BaseException):
            raise RunError(f"Flower's simulation did not start: {grid}", "use --engine serial") from grid
        return grid

    def run(self) -> None:
        server = ServerApp()
        server.main()(self.main)
        config: Any = {
            "init_args": {"num_cpus": self.workers, "log_to_driver": False, "logging_level": logging.ERROR},
            "client_resources": {"num_cpus": 1, "num_gpus": 1.0 / self.workers if self.gpu else 0.0},
        }
        try:
            nodes = make_client_app(functools.partial(node_from_file, str(self.file)), tells=True)
            run_simulation(server, nodes, self.clients, backend_config=config)
        except BaseException as error:  # handed to whoever waits for the grid
            self.grids.put(error)

    def main(self, grid: Grid, context: Context) -> None:
        self.grids.put(grid)
        self.over.wait()

    def stop(self) -> None:
        self.over.set()
        if self.thread.is_alive():
            self.thread.join()
        shutil.rmtree(self.file.parent, ignore_errors=True)

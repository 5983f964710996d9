"""Flower's simulation of the same work, put together as its own quick start is: FedAvg, one actor on each core."""

from __future__ import annotations

import logging
import queue
import threading
from functools import cache
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from peers.workload import WORK, Work, settle
from torch import Tensor, nn

ENOUGH = 10**6  # rounds: the process is ended before


def name_of(work: Work) -> str:
    return next(name for name, one in WORK.items() if one == work)


@cache
def data_of(name: str) -> list[tuple[Tensor, Tensor]]:
    """Made once in each actor."""
    return WORK[name].data()


def client_app(name: str) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        settle()
        work = WORK[name]
        module = work.network()
        module.load_state_dict(message.content["arrays"].to_torch_state_dict())
        x, y = data_of(name)[int(context.node_config["partition-id"])]
        optimiser = torch.optim.SGD(module.parameters(), lr=work.lr)
        order, total = torch.randperm(len(x)), 0.0
        for first in range(0, len(x), work.batch):
            rows = order[first : first + work.batch]
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(module(x[rows]), y[rows])
            loss.backward()
            optimiser.step()
            total += loss.item()
        metrics: dict[str, Any] = {"train_loss": total, "num-examples": len(x)}
        content = {"arrays": ArrayRecord(module.state_dict()), "metrics": MetricRecord(metrics)}
        return Message(content=RecordDict(content), reply_to=message)

    return app


class Flower:
    """`rounds(n)` trains n rounds more: the strategy runs in a thread and waits between rounds until it is asked."""

    def __init__(self, work: Work, device: str = "cpu"):
        self.work, self.module, self.left = work, work.module(), 0
        self.asked, self.finished = queue.Queue[int](), queue.Queue[int]()
        for noisy in ("flwr", "ray"):
            logging.getLogger(noisy).setLevel(logging.ERROR)
        threading.Thread(target=self.simulate, daemon=True).start()

    def simulate(self) -> None:
        server = ServerApp()
        server.main()(self.main)
        config: Any = {
            "init_args": {"num_cpus": 2, "log_to_driver": False, "logging_level": logging.ERROR},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        }
        run_simulation(server, client_app(name_of(self.work)), self.work.clients, backend_config=config)

    def main(self, grid: Grid, context: Context) -> None:
        share = self.work.selected / self.work.clients
        strategy = FedAvg(fraction_train=share, fraction_evaluate=0.0, min_available_nodes=self.work.clients)
        arrays = ArrayRecord(self.module.state_dict())
        strategy.start(grid=grid, initial_arrays=arrays, num_rounds=ENOUGH, evaluate_fn=self.between)

    def between(self, round: int, arrays: ArrayRecord) -> None:
        """Called before the first round and after each."""
        self.left -= 1
        if round and self.left:
            return
        if round:
            self.module.load_state_dict(arrays.to_torch_state_dict())
            self.finished.put(round)
        self.left = self.asked.get()

    def rounds(self, count: int) -> None:
        self.asked.put(count)
        self.finished.get()

    def close(self) -> None:
        """Actors and agents would outlive this process."""
        import ray

        ray.shutdown()

"""A client's slot called like a fact holds that fact in every round, whatever its shape was before."""

from dataclasses import dataclass
from typing import ClassVar

import torch

import fedkeel as fk
from fedkeel.core.trees import Tree


@dataclass(frozen=True)
class ByClasses(fk.Rule):
    """Step further where a client has more classes; it need not know how many there are when it is built."""

    asks: ClassVar[tuple[str, ...]] = ("histogram",)

    def client_slots(self, params):
        return {"histogram": params.scalar()}

    def step(self, tree, client, at):
        return tree * ((client["histogram"] > 0).sum(-1) / 10), client


def test_old_and_new_clients_are_stacked_though_the_fact_is_of_another_shape():
    method = fk.method("mine", gradient=[ByClasses()], weights=fk.BySize())
    chosen = [[0, 1], [1, 2]]  # in the second round one client is new
    experiment = fk.Experiment(
        method=method, dataset="digits", model="logistic", partition="iid:clients=3", rounds=2, participants=chosen
    )
    models: list[Tree] = [
        fk.run(experiment, engine=engine, dtype=torch.float64).server["params"] for engine in ("serial", "stacked")
    ]
    assert (models[0] - models[1]).norm() <= 1e-10 * models[0].norm()

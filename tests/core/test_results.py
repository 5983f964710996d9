"""Trees and numbers of a user's rule that do not fit the model are refused in one line, by rule and stage."""

from dataclasses import dataclass

import pytest
import torch

import fedkeel as fk
from fedkeel.core.trees import Tree
from fedkeel.randomness import keyed_normals


def is_weight(name):
    return "weight" in name


@dataclass(frozen=True)
class Stretched(fk.Rule):
    def step(self, tree, client, at):
        return tree.elementwise(lambda x: x.mean()), client


@dataclass(frozen=True)
class Longer(fk.Rule):
    def start(self, params, client, message):
        return Tree(params.buffer.repeat(2), params.layout), client


@dataclass(frozen=True)
class Wide(fk.Rule):
    random = True

    def step(self, tree, client, at):
        return tree.elementwise(lambda x: x + keyed_normals(at.key, len(x))), client


@dataclass(frozen=True)
class Complex(fk.Rule):
    def step(self, tree, client, at):
        return tree.elementwise(lambda x: torch.fft.ifft(torch.fft.fft(x))), client


@dataclass(frozen=True)
class NoTree(fk.Rule):
    def finish(self, report, client, at):
        return report | {"delta": report["delta"].buffer}, client


@dataclass(frozen=True)
class Renamed(fk.Rule):
    def server_step(self, update, server, reports):
        return Tree.of({"x": update.buffer}), server


@dataclass(frozen=True)
class Sent(fk.Rule):
    def broadcast(self, message, server):
        return message | {"params": message["params"].only(is_weight)}


@dataclass(frozen=True)
class Remembered(fk.Rule):
    def remember(self, server):
        return server | {"params": server["params"].to(torch.int64)}


@dataclass(frozen=True)
class Deployed(fk.Rule):
    def deploy(self, model, server):
        return model | {"params": model["params"].only(is_weight)}


@dataclass(frozen=True)
class Travels(fk.Rule):
    def travels(self, params):
        params.only(is_weight)  # the return is forgotten


@dataclass(frozen=True)
class Rate(fk.Rule):
    def scale_rate(self, round, done):
        return None


FAULTS = {
    Stretched: "step gives a tree of 650 numbers whose buffer is []",
    Longer: "start gives a tree of 650 numbers whose buffer is [1300]",
    Wide: "step makes torch.float64 of a tree of torch.float32",
    Complex: "step makes torch.complex64 of a tree of torch.float32",
    NoTree: "finish must return delta as a tree",
    Renamed: "server_step must return update as a tree",
    Sent: "broadcast must return a tree laid out like the one it was given",
    Remembered: "remember makes torch.int64 of a tree of torch.float32",
    Deployed: "deploy must return a tree laid out like the one it was given",
    Travels: "travels must return params, not NoneType",
    Rate: "scale_rate must return a number, not None",
}


@pytest.mark.parametrize("engine", ["serial", "stacked"])
@pytest.mark.parametrize("kind", FAULTS, ids=lambda kind: kind.__name__)
def test_what_does_not_fit_the_model_is_refused_by_rule_and_stage(kind, engine):
    method = fk.method("mine", gradient=[kind()], weights=fk.BySize())
    experiment = fk.Experiment(method=method, dataset="digits", model="logistic", rounds=1)
    with pytest.raises(fk.MethodError) as refused:
        fk.run(experiment, engine=engine)
    assert refused.value.message.startswith(f"{kind.__name__}.{FAULTS[kind]}")
    assert "\n" not in refused.value.message


@pytest.mark.parametrize("stage", ["client_slots", "server_slots", "round_slots"])
def test_slots_without_a_return_are_refused(stage):
    forgetful = dataclass(frozen=True)(type("Forgetful", (fk.Rule,), {stage: lambda self, params: None}))
    with pytest.raises(fk.MethodError, match=f"Forgetful.{stage} must return slots by name, not NoneType"):
        fk.method("mine", gradient=[forgetful()], weights=fk.BySize())

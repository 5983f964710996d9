"""`head`: which parameters a personal method keeps."""

from __future__ import annotations

import pytest
import torch
from for_each import for_each
from torch import nn

from fedkeel.errors import ModelError
from fedkeel.models import MODELS, build, head
from fedkeel.models.card import Tokens
from fedkeel.models.classifier import map_names


@pytest.mark.usefixtures("constant_weights")
@for_each("name", MODELS)
def test_the_head_is_the_layer_that_gives_the_logits(name: str) -> None:
    module = build(name, shape=(6,) if isinstance(MODELS[name].takes, Tokens) else (1, 16, 16), classes=3, seed=0)
    weight, bias = head(module)
    assert weight.endswith(".weight")
    assert bias.endswith(".bias")
    assert module.get_parameter(weight).shape[0] == 3
    assert module.get_parameter(bias).shape == (3,)


def test_layers_without_parameters_and_frozen_ones_are_passed_over() -> None:
    module = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 3), nn.Softmax(-1))
    assert head(module) == ("1.weight", "1.bias")
    module[1].requires_grad_(False)
    assert head(module) == ("0.weight", "0.bias")


def test_the_model_itself_can_be_the_head() -> None:
    assert head(nn.Linear(2, 3, bias=False)) == ("weight",)


def test_a_tied_tensor_has_its_first_name() -> None:
    module = nn.ModuleDict({"embedding": nn.Embedding(5, 4), "fc": nn.Linear(4, 5)})
    module["fc"].weight = module["embedding"].weight
    assert head(module) == ("embedding.weight", "fc.bias")
    assert set(head(module)) <= dict(module.named_parameters()).keys()


def test_every_name_of_a_parameter_or_layer_leads_to_the_first() -> None:
    module = nn.ModuleDict({"embedding": nn.Embedding(5, 4), "fc": nn.Linear(4, 5)})
    module["fc"].weight, module["again"] = module["embedding"].weight, module["fc"]
    parameters = map_names(module.named_parameters)
    assert list(dict.fromkeys(parameters.values())) == [name for name, _ in module.named_parameters()]
    assert {*parameters} == {"embedding.weight", "fc.weight", "fc.bias", "again.weight", "again.bias"}
    assert parameters["again.weight"] == parameters["fc.weight"] == "embedding.weight"
    assert map_names(module.named_modules) == {"": "", "embedding": "embedding", "fc": "fc", "again": "fc"}


def test_a_model_without_parameters() -> None:
    with pytest.raises(ModelError, match="ReLU has no parameters to train"):
        head(nn.Sequential(nn.ReLU())[0])


def test_parameters_of_the_module_itself_come_before_its_parts() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(2, 2)
            self.scale = nn.Parameter(torch.ones(1))

    assert head(Scaled()) == ("fc.weight", "fc.bias")

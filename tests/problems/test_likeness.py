"""Two networks are alike where nothing but their weights differs."""

import random
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any

import numpy as np
import pytest
import torch
from for_each import for_each
from torch import nn

from fedkeel.models import MODELS, build
from fedkeel.problems.likeness import are_alike, are_networks_alike


class Keeping(nn.Module):
    """A network with weights of its own, and what it was given as a plain attribute of a module within."""

    def __init__(self, kept: Any):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.inner = nn.ReLU()
        self.inner.kept = kept  # type: ignore[assignment]


@dataclass
class Settings:
    rate: float
    within: Any = None


def scaling(by: Any) -> Any:
    return lambda x: x * by


def twice(made: Any) -> tuple[Any, Any]:
    return made(1), made(2)


CASES = [
    int, float, str, complex,
    lambda k: [0, [k]],
    lambda k: {"a": (k, None)},
    lambda k: {f"{k}": 0},
    lambda k: {k},
    lambda k: torch.full((2, 2), k),
    lambda k: [torch.arange(3) + k],
    lambda k: np.arange(3) + k,
    lambda k: torch.Size([k]),
    lambda k: Settings(k),
    lambda k: Settings(0, Settings(k)),
    lambda k: partial(torch.mul, k),
    lambda k: partial(torch.mul, other=k),
    scaling,
    lambda k: scaling(torch.tensor(k)),
    lambda k: Settings(k).__repr__,
    lambda k: nn.LeakyReLU(k),
    lambda k: nn.ParameterList([torch.full((1,), float(k))]),
    lambda k: random.Random(k),
    np.random.default_rng,
]  # fmt: skip


@for_each("made", CASES)
def test_plain_attributes_are_alike_where_their_values_are(made: Any) -> None:
    one, other = twice(made)
    if not isinstance(one, nn.Module):  # those stand in lists, else they are parts of the network
        assert are_networks_alike(Keeping(one), Keeping(made(1)))
        assert not are_networks_alike(Keeping(one), Keeping(other))
    assert are_networks_alike(Keeping([one]), Keeping([made(1)]))
    assert not are_networks_alike(Keeping([one]), Keeping([other]))


@pytest.mark.slow
@for_each("name", sorted(MODELS))
def test_networks_of_the_catalogue_differ_in_weights_alone(name: str) -> None:
    shape = (8,) if "vocabulary" in MODELS[name].defaults else (3, 32, 32)
    with torch.device("meta"):  # weights are not compared
        one, other = (build(name, shape=shape, classes=4, seed=seed) for seed in (0, 1))
    assert are_networks_alike(one, other)


@for_each(
    "made",
    [
        lambda: nn.LSTM(3, 4, 2),  # they keep their weights in a plain list, too
        lambda: nn.TransformerEncoderLayer(8, 2),
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)),  # its class is made for it
        lambda: Keeping(float("nan")),
    ],
)
def test_other_weights_make_no_other_network(made: Any) -> None:
    assert are_networks_alike(made(), made())


def test_a_part_of_a_network_stands_for_the_same_part_of_the_other() -> None:
    def referring(name: str) -> nn.Module:
        made = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        made.references = [made[0], made[1].weight, getattr(made, name).bias]  # type: ignore[assignment]
        return made

    assert are_networks_alike(referring("1"), referring("1"))
    assert not are_networks_alike(referring("0"), referring("1"))


def test_hooks_and_classes_count() -> None:
    def hooked(factor: int) -> nn.Module:
        made = nn.Linear(2, 2)
        made.register_forward_hook(lambda module, given, output: output * factor)
        return made

    assert are_networks_alike(hooked(2), hooked(2))
    assert not are_networks_alike(hooked(2), hooked(3))
    assert not are_networks_alike(nn.Sequential(nn.ReLU()), nn.Sequential(nn.Tanh()))
    assert not are_networks_alike(nn.Linear(2, 2), None)
    assert are_networks_alike(None, None)


def test_what_hides_its_values_is_alike_to_itself_alone() -> None:
    one, other = Lock(), Lock()
    assert are_alike([one], [one])
    assert not are_alike([one], [other])


def test_circles_and_depths_come_to_an_end() -> None:
    one: list[Any] = []
    other: list[Any] = []
    one.append(one)
    other.append(other)
    assert are_alike(one, other)
    for _ in range(2000):
        one, other = [one], [other]
    assert not are_alike(one, other)

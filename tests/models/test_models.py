"""`build`: weights are a function of its arguments, and what cannot be built is refused in one line."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from for_each import for_each

from fedkeel.errors import ModelError
from fedkeel.models import MODELS, build
from fedkeel.models.card import Tokens

LARGE = {"resnet18-gn", "resnet18-gn-cifar", "resnet18-bn-cifar", "densenet121-gn", "densenet121-fedfft"}
REPEATED = LARGE - {"densenet121-fedfft"}  # of layers that others draw alike


def shape_for(name: str, side: int = 16) -> tuple[int, ...]:
    return (12,) if isinstance(MODELS[name].takes, Tokens) else (1, side, side)


def weights(name: str, seed: int = 0, **options: int) -> torch.Tensor:
    module = build(name, shape=shape_for(name), classes=5, seed=seed, **options)
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in REPEATED else []) for name in MODELS]
)
def test_weights_depend_on_the_seed_and_not_on_the_callers_generator(name: str) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = weights(name, seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(weights(name, seed=3), first)


def test_another_seed_draws_other_weights() -> None:
    for name in MODELS:
        if name not in LARGE:
            assert not torch.equal(weights(name, seed=4), weights(name, seed=3)), name


def test_weights_do_not_depend_on_what_was_built_before() -> None:
    alone = weights("logistic")
    build("mlp", shape=(4,), classes=2, seed=0)
    assert torch.equal(weights("logistic"), alone)


def test_the_default_device_of_the_caller_is_not_used() -> None:
    with torch.device("meta"):
        module = build("logistic", shape=(4,), classes=2, seed=0)
    assert {parameter.device.type for parameter in module.parameters()} == {"cpu"}


def test_a_failed_build_leaves_the_callers_generator_alone() -> None:
    before = torch.get_rng_state()
    with pytest.raises(ModelError):
        build("small-cnn", shape=(1, 8, 8), classes=2, seed=0, groups=3)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(ModelError) as caught:
        build("resnet20gn", shape=(3, 32, 32), classes=10, seed=0)
    assert caught.value.message == "unknown model: resnet20gn"
    assert caught.value.hint == "did you mean 'resnet20-gn'?"


def test_a_name_like_no_other_is_answered_with_all() -> None:
    with pytest.raises(ModelError) as caught:
        build("zzz", shape=(3, 32, 32), classes=10, seed=0)
    assert caught.value.hint is not None
    assert all(name in caught.value.hint for name in MODELS)


@for_each(
    ("name", "shape", "fits"),
    [
        ("small-cnn", (1, 7, 7), "at least 8×8 pixels"),
        ("small-cnn", (64,), "images (channels, height, width)"),
        ("lenet-fsa", (1, 8, 8), "at least 16×16 pixels"),
        ("lenet-fsa", (3, 32, 15), "at least 16×16 pixels"),
        ("vit-small-32", (3, 30, 30), "sides multiples of 4"),
        ("resnet18-bn-cifar", (1, 8, 8), "at least 9×9 pixels"),
        ("lstm", (1, 28, 28), "one row of integers"),
        ("logistic", (), "any shape"),
        ("logistic", (3, 0), "any shape"),
    ],
)
def test_a_shape_that_does_not_fit_is_answered_with_what_does(name: str, shape: tuple[int, ...], fits: str) -> None:
    with pytest.raises(ModelError) as caught:
        build(name, shape=shape, classes=10, seed=0)
    assert caught.value.message == f"model {name!r} does not take data of shape {shape}"
    assert caught.value.hint is not None
    assert fits in caught.value.hint


def test_no_classes() -> None:
    with pytest.raises(ModelError, match="at least one class, not 0"):
        build("logistic", shape=(4,), classes=0, seed=0)


def test_options_change_the_defaults_of_the_card() -> None:
    module = build("fasttext", shape=(9,), classes=3, seed=0, vocabulary=50)
    assert module.get_parameter("words.embedding.weight").shape == (50, 32)


@for_each(
    ("name", "options", "message", "hint"),
    [
        ("resnet20-gn", {"group": 2}, "has no option 'group'", "did you mean 'groups'?"),
        ("logistic", {"width": 2}, "has no option 'width'", "'logistic' has no options"),
        ("small-cnn", {"groups": 5}, "cannot be built with {'groups': 5}", None),
        ("small-cnn", {"groups": 0}, "cannot be built with {'groups': 0}", None),
    ],
)
def test_options_that_do_not_fit(name: str, options: dict[str, int], message: str, hint: str | None) -> None:
    with pytest.raises(ModelError) as caught:
        build(name, shape=(3, 32, 32), classes=10, seed=0, **options)
    assert message in caught.value.message
    assert caught.value.hint == hint


def test_cards_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        MODELS["mlp"].title = "another"  # type: ignore[misc]

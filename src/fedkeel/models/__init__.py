"""Models by name. `build` gives the same weights for the same name, data shape, classes and seed, and nothing else."""

from __future__ import annotations

import contextlib
import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from importlib.resources import files
from typing import Any

import torch
from torch import nn

from fedkeel.errors import ModelError, nearest, require_known
from fedkeel.models.bottleneck import with_code
from fedkeel.models.card import Images, ModelCard, Numbers, Shape, Tokens
from fedkeel.models.classifier import head
from fedkeel.models.cnn import leaf_cnn, lenet_fsa, small_cnn
from fedkeel.models.dense import logistic, mlp
from fedkeel.models.densenet import densenet121
from fedkeel.models.external import MODEL, build_external, card_for, check_name
from fedkeel.models.resnet import RESNET18, RESNET18_CIFAR, RESNET18_CIFAR_PLAIN, RESNET20, WRN56_2, resnet
from fedkeel.models.text import fasttext, lstm
from fedkeel.models.vit import vit_small_32
from fedkeel.plugins import Registry
from fedkeel.randomness import key

__all__ = ["MODELS", "ModelCard", "build", "check_name", "head"]

Recipe = tuple[Callable[..., nn.Module], Numbers | Images | Tokens, dict[str, Any]]
RECIPES: dict[str, Recipe] = {
    "logistic": (logistic, Numbers(), {}),
    "mlp": (mlp, Numbers(), {"width": 200}),
    "small-cnn": (small_cnn, Images(smallest=8), {"groups": 2}),
    "lenet-fsa": (lenet_fsa, Images(smallest=16), {}),
    "mlp-cr": (partial(with_code, mlp), Numbers(), {"width": 200, "code": 64, "samples": 18}),
    "lenet-cr": (partial(with_code, lenet_fsa), Images(smallest=16), {"code": 512, "samples": 18}),
    "resnet18-gn": (partial(resnet, RESNET18), Images(), {"groups": 2}),
    "resnet18-gn-cifar": (partial(resnet, RESNET18_CIFAR), Images(), {"groups": 2}),
    "resnet18-bn-cifar": (partial(resnet, RESNET18_CIFAR_PLAIN), Images(smallest=9), {}),
    "resnet20-gn": (partial(resnet, RESNET20), Images(), {"groups": 2}),
    "wrn56-2-gn": (partial(resnet, WRN56_2), Images(), {"groups": 2}),
    "densenet121-gn": (densenet121, Images(smallest=8), {"groups": 2, "last_groups": 2}),
    "densenet121-fedfft": (densenet121, Images(smallest=16), {"last_groups": 2}),
    "vit-small-32": (vit_small_32, Images(smallest=4, multiple=4), {}),
    "leaf-cnn": (leaf_cnn, Images(smallest=4), {}),
    "lstm": (lstm, Tokens(), {"vocabulary": 80}),
    "fasttext": (fasttext, Tokens(), {"vocabulary": 98635, "padding": 0}),
}
"""How each model is built, what it takes, and the options that it has with their defaults."""

CARDS = tomllib.loads((files("fedkeel.models") / "cards.toml").read_text(encoding="utf-8"))
KNOWN = {
    name: ModelCard(**CARDS[name], make=make, takes=takes, defaults=defaults)
    for name, (make, takes, defaults) in RECIPES.items()
}
MODELS: dict[str, ModelCard] = Registry("models", MODEL, KNOWN, card_for)


def build(name: str, *, shape: Shape, classes: int, seed: int, **options: Any) -> nn.Module:
    """Build the model `name` for samples of `shape`, with initial weights that depend on the arguments alone.

    name: one of `MODELS`, `timm:NAME`, `torchvision:NAME`, or `module:function` for your own.
    options: what to change of the card's `defaults`; for other people's models, further arguments of theirs.
    """
    if classes < 1:
        raise ModelError(f"a model needs at least one class, not {classes}")
    if ":" not in name:
        _check_request(name, shape, options)
    with torch.random.fork_rng(devices=[]), torch.device("cpu"), drawing_in(torch.float32):
        # not torch.manual_seed, which would also reset the generators of the caller's GPUs
        torch.default_generator.manual_seed(key(seed, "init"))
        if ":" in name:
            return build_external(name, shape, classes, options)
        card = MODELS[name]
        try:
            return card.make(shape, classes, **{**card.defaults, **options})
        except (TypeError, ValueError, ArithmeticError, RuntimeError) as error:
            raise ModelError(f"model {name!r} cannot be built with {options}: {error}") from error


@contextlib.contextmanager
def drawing_in(dtype: torch.dtype) -> Iterator[None]:
    """Make tensors of that type, whatever the caller's default is: another type draws other numbers."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def card_of(name: str) -> ModelCard:
    return MODELS[require_known(name, MODELS, "unknown model", "models", ModelError)]


def _check_request(name: str, shape: Shape, options: dict[str, Any]) -> None:
    card = card_of(name)
    if not card.takes.accepts(shape):
        raise ModelError(f"model {name!r} does not take data of shape {shape}", hint=f"it takes {card.takes}")
    for option in options.keys() - card.defaults.keys():
        hint = nearest(option, card.defaults, "options") if card.defaults else f"{name!r} has no options"
        raise ModelError(f"model {name!r} has no option {option!r}", hint=hint)

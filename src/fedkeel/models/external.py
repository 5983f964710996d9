"""Models of other packages: `timm:NAME`, `torchvision:NAME`, and `module:function` of the user.

`timm:NAME@224` enlarges (or shrinks) images to 224×224 first, as networks that were made for that size expect.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from fedkeel.errors import ModelError, RequestError, UntrustedError
from fedkeel.importing import Kind, Trust, look_up, untrusted
from fedkeel.models.card import Images, ModelCard, Numbers, Shape

LARGEST = 1024  # pixels to a side
MODEL = Kind(
    "model",
    nn.Module,
    classes=True,
    makers=True,
    hint="a model is a class of torch.nn.Module, or def mine(classes, shape) -> torch.nn.Module",
    error=ModelError,
)


def check_name(name: str, trust: Trust) -> None:
    """Refuse the name of a network that is not trusted, or that names something else."""
    package, _, which = name.partition(":")
    if package not in ("timm", "torchvision"):
        find_factory(name, trust)
    elif trust < Trust.FILE and not re.fullmatch(r"[\w.-]+(@\d+)?", which):  # timm also takes addresses and folders
        raise untrusted(name, "model")


def build_external(name: str, shape: Shape, classes: int, options: Mapping[str, Any]) -> nn.Module:
    """Build the model that a name with a colon stands for."""
    package, _, which = name.partition(":")
    if package not in ("timm", "torchvision"):
        make_own = find_factory(name, Trust.TYPED)  # a name from a file was checked when the file was read
        return call_factory(make_own, name, shape, classes, options)
    make = _from_timm if package == "timm" else _from_torchvision
    which, at, size = which.partition("@")
    if at and not (size.isdecimal() and 1 <= int(size) <= LARGEST):
        raise ModelError(
            f"images cannot be resized to {size or 'nothing'}: {name}", f"write a size, {package}:{which}@224"
        )
    if not Images().accepts(shape):
        raise ModelError(f"model {name!r} does not take data of shape {shape}", hint=f"it takes {Images()}")
    inner = (shape[0], int(size), int(size)) if at else shape
    model = make(name, which, inner, classes, options)
    return _check_output(name, Resized(model, int(size)) if at else model, shape, classes)


class Resized(nn.Module):
    """A network behind a bilinear change of the images' size."""

    def __init__(self, model: nn.Module, size: int):
        super().__init__()
        self.model, self.size = model, size

    def forward(self, images: torch.Tensor) -> Any:
        return self.model(F.interpolate(images, size=(self.size, self.size), mode="bilinear", align_corners=False))


def _from_timm(name: str, which: str, shape: Shape, classes: int, options: Mapping[str, Any]) -> Any:
    timm = _import_package(name, "timm")
    settings = {"pretrained": False, "num_classes": classes, "in_chans": shape[0], **options}
    try:
        try:
            return timm.create_model(which, img_size=shape[1:], **settings)
        except TypeError:  # only models with positions have an img_size
            return timm.create_model(which, **settings)
    except Exception as error:
        raise ModelError(
            f"timm cannot build {which!r}: {_brief(error)}", hint="timm.list_models() has the names"
        ) from error


def _from_torchvision(name: str, which: str, shape: Shape, classes: int, options: Mapping[str, Any]) -> Any:
    models = _import_package(name, "torchvision").models
    if shape[0] != 3:
        raise ModelError(
            f"{name!r} takes images of 3 channels, not {shape[0]}", hint="timm:NAME takes any number of channels"
        )
    try:
        return models.get_model(which, weights=None, num_classes=classes, **options)
    except Exception as error:
        raise ModelError(
            f"torchvision cannot build {which!r}: {_brief(error)}",
            hint="torchvision.models.list_models() has the names",
        ) from error


def find_factory(name: str, trust: Trust) -> Callable[..., nn.Module]:
    """Look up the user's own class or function of that name."""
    try:
        make: Callable[..., nn.Module] = look_up(name, MODEL, trust)
    except (ModelError, UntrustedError):
        raise
    except RequestError as error:
        raise ModelError(error.message, error.hint) from error
    return make


def card_for(make: Callable[..., nn.Module]) -> ModelCard:
    """The card of a network that an installed package brings: its docstring, and its arguments with defaults."""
    about = inspect.getdoc(make) or ""
    offered = inspect.signature(make).parameters.values()
    defaults = {one.name: one.default for one in offered if one.name not in ("shape", "classes")}
    defaults = {name: value for name, value in defaults.items() if value is not inspect.Parameter.empty}

    def build(shape: Shape, classes: int, **options: Any) -> nn.Module:
        return call_factory(make, make.__name__, shape, classes, options)

    return ModelCard(about.split("\n")[0].rstrip("."), "", about, build, Numbers(), defaults)


def call_factory(
    make: Callable[..., nn.Module], name: str, shape: Shape, classes: int, options: Mapping[str, Any]
) -> nn.Module:
    """Call a user's own class or function with what it takes."""
    try:
        parameters = inspect.signature(make).parameters
        anything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        offered = {"classes": classes, "shape": shape}
        model = make(**{key: value for key, value in offered.items() if anything or key in parameters}, **options)
    except Exception as error:
        raise ModelError(
            f"{name!r} failed: {_brief(error)}", hint="it is called with classes= and shape= where it takes them"
        ) from error
    if not isinstance(model, nn.Module):
        raise ModelError(f"{name!r} returned {type(model).__name__}, not a torch.nn.Module")
    return model


def _import_package(name: str, package: str) -> ModuleType:
    try:
        return importlib.import_module(package)
    except (ImportError, RuntimeError, OSError) as error:
        raise ModelError(
            f"model {name!r} needs the package {package}: {_brief(error)}", hint=f"pip install {package}"
        ) from error


def _check_output(name: str, model: nn.Module, shape: Shape, classes: int) -> nn.Module:
    """Return the model if it answers one empty image with `classes` numbers; refuse it otherwise."""
    model.eval()
    try:
        with torch.no_grad():
            answer = model(torch.zeros(1, *shape))
    except Exception as error:
        raise ModelError(f"model {name!r} does not take images of shape {shape}: {_brief(error)}") from error
    if not isinstance(answer, torch.Tensor) or answer.shape != (1, classes):
        raise ModelError(f"model {name!r} does not give {classes} logits for one image", hint="take a classifier")
    return model.train()


def _brief(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())

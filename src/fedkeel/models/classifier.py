"""Which parameters form the classifier of a model, and what its parts are called."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import nn

from fedkeel.errors import ModelError


def head(module: nn.Module) -> tuple[str, ...]:
    """Return the parameter names of the last module that has trainable ones: what FedPer keeps private."""
    own = [
        [parameter for parameter in part.parameters(recurse=False) if parameter.requires_grad]
        for part in module.modules()
    ]
    last = next((parameters for parameters in reversed(own) if parameters), None)
    if last is None:
        raise ModelError(f"{type(module).__name__} has no parameters to train", hint="a model needs at least one layer")
    # by identity: a tied tensor is known by its first name only
    return tuple(name for name, parameter in module.named_parameters() if any(parameter is one for one in last))


def map_names(named: Callable[..., Iterable[tuple[str, object]]]) -> dict[str, str]:
    """Map every name of a network's parameters or layers to the first: tied tensors and shared layers have several.

    `named` is the network's `named_parameters` or `named_modules`.
    """
    first: dict[object, str] = {}
    return {name: first.setdefault(one, name) for name, one in named(remove_duplicate=False)}

"""The network that a problem is given: what is taken, and what is refused at once."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import CellType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from fedkeel.errors import ExperimentError, ask_for_object, bind

MODEL = "model=torch.nn.Sequential(…)"


def check_function(word: str, given: Any, hint: str) -> None:
    """Refuse what cannot be called with data: no function, or a class, such as torch.nn.CrossEntropyLoss."""
    if isinstance(given, type):
        raise ExperimentError(f"the {word} of a problem is a function, not a class.", ask_for_object(given))
    if not callable(given):
        raise ExperimentError(f"the {word} of a problem is a function, not {type(given).__name__}.", hint)


def check_prepare(given: Any) -> None:
    """Refuse a `prepare` that cannot be called with samples and keys."""
    hint = "prepare=lambda sample, keys: sample"
    check_function("prepare", given, hint)
    with suppress(ValueError, TypeError):  # what is written in C may not say what it takes
        signature = inspect.signature(given)
        bind(signature, (None, None), {}, "prepare(sample, keys)", ExperimentError)


def check_params(given: Any) -> None:
    """Refuse parameters that are no tensors by name."""
    hint = 'Problem(params={"w": tensor}, …)'
    if not hasattr(given, "items"):  # torch.nn.ParameterDict is no Mapping
        raise ExperimentError(f"the params of a problem are tensors by name, not {type(given).__name__}.", hint)
    for name, value in given.items():
        if not isinstance(value, Tensor):
            raise ExperimentError(f"the params of a problem are tensors: {name} is {type(value).__name__}.", hint)
    if not len(given):
        raise ExperimentError("the params of a problem are empty.", hint)


def read_network(given: Any) -> nn.Module | None:
    """The network of a problem; of a compiled one, what it was made of: engines compile it themselves."""
    network = getattr(given, "_orig_mod", given)
    if network is None:
        return None
    if not isinstance(network, nn.Module):
        hint = ask_for_object(network) if isinstance(network, type) else MODEL
        raise ExperimentError(f"the model of a problem is a module, not {type(network).__name__}.", hint)
    if isinstance(network, torch.jit.ScriptModule):
        raise ExperimentError(
            "the model is a TorchScript module, whose parts cannot be found by name.",
            "give the module that it was made of, or model=torch.nn.Sequential(model)",
        )
    if any(isinstance(one, UninitializedParameter) for one in network.parameters()):
        raise ExperimentError(
            "the model has layers that do not know their size yet, such as LazyLinear.",
            "call it once with a sample before: model(x[:1])",
        )
    if any(parameter.is_complex() for parameter in network.parameters()):
        raise ExperimentError(
            "the model has complex parameters, which are not trained.",
            "keep a real one of shape […, 2], and take torch.view_as_complex(self.weight) of it",
        )
    for name, parameter in network.named_parameters():
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise ExperimentError(
                f"the model's {name} has a hook on its gradient, which copies of the model would not have.",
                "change gradients in a rule (docs/guides/methods.md); what is not to be trained needs requires_grad "
                "False",
            )
    for name, value in network.state_dict().items():
        if isinstance(value, Tensor) and value.layout is not torch.strided:
            raise ExperimentError(
                f"the model's {name} is sparse, and clients would have copies of it.",
                f'register_buffer("{name.rpartition(".")[2]}", …, persistent=False), or buffer.to_dense()',
            )
    for name, part in network.named_modules():
        if (word := next((word for word, one in list_functions(part) if encloses(one, network)), None)) is not None:
            raise ExperimentError(
                f"the model's {f'{name}.{word}'.lstrip('.')} is a function that holds the model itself: copies of the "
                "model would share it.",
                "write a method (def), not a lambda over self; a hook gets the module that it is called for",
            )
    return network


def list_functions(part: nn.Module) -> Iterator[tuple[str, FunctionType]]:
    """Functions that a module keeps: as attributes, and as hooks."""
    kept = vars(part)
    named = [(word, given) for word, given in kept.items() if word.endswith("_hooks") and isinstance(given, Mapping)]
    hooks = [(word, one) for word, given in named for one in given.values()]
    yield from ((word, one) for word, one in (*kept.items(), *hooks) if isinstance(one, FunctionType))


def encloses(function: FunctionType, network: nn.Module) -> bool:
    """Whether a function holds parts or parameters of a network."""
    held = [cell.cell_contents for cell in function.__closure__ or () if has_contents(cell)]
    known = {id(one) for one in (*network.modules(), *network.parameters())}
    return any(id(one) in known for one in held)


def has_contents(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # not filled yet
        return False


def list_classes(network: nn.Module | None) -> tuple[type, ...]:
    """The classes that a network is made of."""
    return tuple({type(part): None for part in network.modules()}) if network is not None else ()

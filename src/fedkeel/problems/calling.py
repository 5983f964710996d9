"""How a user's network is called: inputs by position or by name, what of its output a loss is given, its features."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from fedkeel.data.clients import Sample
from fedkeel.errors import ExperimentError, ModelError
from fedkeel.models.classifier import head


def call_network(network: nn.Module, tensors: Sample, names: Sequence[str] | None) -> Any:
    """Call a network with all parts of samples but the target, by name where they have names.

    Return its logits where it says which they are.
    """
    placed, named = arrange_inputs(network, tensors[:-1] or tensors, names)
    return read_logits(network(*placed, **named))


def arrange_inputs(
    network: nn.Module, inputs: Sequence[Tensor], names: Sequence[str] | None
) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """Return what a network is given by position, and what by name."""
    if names is None or (len(inputs) == 1 and not takes_name(network, names[0])):
        return tuple(inputs), {}
    return (), dict(zip(names, inputs, strict=False))


def as_given(tensors: Sample, names: Sequence[str] | None) -> Any:
    """Samples as their client's data are: a tensor, a tuple or a dict."""
    if names is not None:
        return dict(zip(names, tensors, strict=True))
    return tensors if len(tensors) > 1 else tensors[0]


def takes_name(network: nn.Module, name: str) -> bool:
    """Whether a network takes an input of that name; a single one is given by position where it does not."""
    parameters = inspect.signature(network.forward).parameters
    return name in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())


def call_mixed(
    compute: torch.dtype, dtype: torch.dtype, network: nn.Module, tensors: Sample, names: Sequence[str] | None
) -> Any:
    """Call a network in the lower precision where its frozen base has that and what is trained does not."""
    kinds = {p.dtype for p in network.parameters() if p.is_floating_point()}
    if len(kinds) < 2:
        return call_network(network, tensors, names)
    with torch.autocast(tensors[0].device.type, compute):
        output = call_network(network, tensors, names)
    return output.to(dtype) if isinstance(output, Tensor) else output


@contextmanager
def without_turns() -> Iterator[None]:
    """Ask networks to take no turn that depends on data, as if they were traced: `transformers` looks into masks."""
    before = torch.compiler.is_compiling
    torch.compiler.is_compiling = lambda: True
    try:
        yield
    finally:
        torch.compiler.is_compiling = before


def read_logits(output: Any) -> Any:
    """Return the `logits` of an output that has some, as those of `transformers` do; any other output as it is."""
    if output is None or isinstance(output, Tensor | tuple | list):
        return output
    logits = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    return output if logits is None else logits


# ---- losses and metrics ----------------------------------------------------------------------------------------------
def call_judge(f: Callable[..., Any], model: Any, tensors: Sample, output: Any, names: Sequence[str] | None) -> Any:
    """Call a loss or a metric as its problem writes it: with a module's output and the target, or with params."""
    if not isinstance(model, nn.Module):
        return f(model, as_given(tensors, names))
    return f(output, tensors[-1]) if len(tensors) > 1 else f(output)


def call_loss(f: Callable[..., Any], model: Any, tensors: Sample, output: Any, names: Sequence[str] | None) -> Tensor:
    """The losses as a tensor; refuse a loss that returns anything else."""
    losses = call_judge(f, model, tensors, output, names)
    if isinstance(losses, Tensor):
        return losses
    raise ExperimentError(
        f"the loss of a problem returns a tensor, not {type(losses).__name__}.",
        "one value per sample, or their mean",
    )


# ---- features: what the classifier is given ------------------------------------------------------------------------
def find_classifier(module: nn.Module, patterns: Sequence[str] | None) -> nn.Module | None:
    """Find the first layer of the head that the problem names, or the last layer with parameters.

    Where an embedding has the same weights, it is not the classifier.
    """
    wanted = head(module) if patterns is None else patterns
    named = module.named_parameters(remove_duplicate=False)
    first = next((p for name, p in named if name in wanted or any(fnmatchcase(name, one) for one in wanted)), None)
    layers = [part for part in module.modules() if any(p is first for p in part.parameters(recurse=False))]
    return next((part for part in reversed(layers) if not isinstance(part, nn.Embedding | nn.EmbeddingBag)), None)


@contextmanager
def note_inputs(layer: nn.Module | None) -> Iterator[list[Tensor]]:
    """Note what a layer is given, each time that it is called."""
    inputs: list[Tensor] = []
    if layer is None:
        yield inputs
        return

    def note(layer: nn.Module, placed: tuple[Any, ...], named: dict[str, Any]) -> None:
        inputs.append(placed[0] if placed else next(iter(named.values())))

    with layer.register_forward_pre_hook(note, with_kwargs=True):
        yield inputs


def read_features(inputs: list[Tensor]) -> Tensor:
    """Return what the classifier was given last; refuse a model that never called it as a layer."""
    if not inputs or not isinstance(inputs[-1], Tensor) or not inputs[-1].is_floating_point():
        raise ModelError(
            "this method reads the features that the classifier is given, and the model calls none as a layer.",
            "name a layer that it calls: Problem(head=[…])",
        )
    return inputs[-1]

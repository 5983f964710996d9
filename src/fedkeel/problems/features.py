"""The features of a model: what its classifier is given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase

from torch import Tensor, nn

from fedkeel.errors import ModelError
from fedkeel.models.classifier import head


def find_classifier(module: nn.Module, patterns: Sequence[str] | None) -> nn.Module | None:
    """Find the first layer of the head that the problem names, or the last layer with parameters."""
    names: Sequence[str] = head(module)
    if patterns is not None:
        names = [name for name, _ in module.named_parameters() if any(fnmatchcase(name, one) for one in patterns)]
    return module.get_submodule(names[0].rpartition(".")[0]) if names else None


@contextmanager
def note_inputs(layer: nn.Module | None) -> Iterator[list[Tensor]]:
    """Note what a layer is given, each time that it is called."""
    inputs: list[Tensor] = []
    if layer is None:
        yield inputs
        return
    with layer.register_forward_pre_hook(lambda layer, given: inputs.append(given[0])):
        yield inputs


def read_features(inputs: list[Tensor]) -> Tensor:
    """Return what the classifier was given last; refuse a model that never called it as a layer."""
    if not inputs:
        raise ModelError(
            "this method reads what the classifier is given, and the model calls none as a layer.",
            "name a layer that it calls: Problem(head=[…])",
        )
    return inputs[-1]

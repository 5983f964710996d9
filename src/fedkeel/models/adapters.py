"""Low-rank adapters: a network is frozen, and small matrices beside some of its layers are trained."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.utils.parametrize import is_parametrized
from torch.overrides import wrap_torch_function

from fedkeel.errors import ModelError, explain_typos
from fedkeel.models.classifier import head as find_head
from fedkeel.models.classifier import map_names
from fedkeel.randomness import key
from fedkeel.ranges import Count, Positive, Seed
from fedkeel.text import in_one_line
from fedkeel.typed_values import read_values, types_of

Patterns = str | Sequence[str]
TRANSPOSED = ("transformers.pytorch_utils", "Conv1D")
"""Where the linear layers of GPT-2 are from: their weights have the inputs first."""
ADDED = ("lora_a", "lora_b", "rank", "alpha", "matrix", "scale")
"""What an adapted layer has besides its own."""


class Adapted(nn.Module):
    """What adapted layers share: beside their frozen weights, which keep their names, `lora_a` and `lora_b`."""

    lora_a: nn.Parameter
    lora_b: nn.Parameter
    rank: int
    alpha: float

    def add_adapter(self, rank: int, alpha: float, generator: torch.Generator) -> None:
        """Draw A as torch.nn.Linear draws its weights; B is 0."""
        weight = self.matrix
        drawn = torch.empty(rank, *weight.shape[1:])
        nn.init.kaiming_uniform_(drawn, a=math.sqrt(5), generator=generator)
        self.lora_a = nn.Parameter(drawn.to(weight))
        self.lora_b = nn.Parameter(weight.new_zeros(len(weight), rank, *(1 for _ in weight.shape[2:])))
        self.rank, self.alpha = rank, alpha

    @property
    def matrix(self) -> Tensor:
        """The weight with its outputs on the first axis."""
        weight: Any = self.weight
        return weight

    @property
    def scale(self) -> float:
        return self.alpha / self.rank

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, rank={self.rank}, alpha={self.alpha}".removeprefix(", ")


class AdaptedLinear(Adapted, nn.Linear):
    """W x + b + (α / r) B A x, of which A and B are trained.  B = 0 is the layer itself.  (LoRA, Hu et al. 2022)"""

    def forward(self, x: Tensor) -> Tensor:
        return adapt_linear(x, self.weight, self.bias, self.lora_a, self.lora_b, self.scale)


class AdaptedTransposed(Adapted):
    """The same beside Wᵀ x + b: what `transformers` calls Conv1D, in GPT-2."""

    bias: nn.Parameter

    @property
    def matrix(self) -> Tensor:
        return super().matrix.T

    def forward(self, x: Tensor) -> Tensor:
        return adapt_linear(x, self.matrix, self.bias, self.lora_a, self.lora_b, self.scale)


@wrap_torch_function(lambda x, weight, bias, a, b, scale: (x, weight, a))
def adapt_linear(x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scale: float) -> Tensor:
    """W x + b + scale · B A x, scaled where it is narrow; stacked clients have another version of it."""
    return F.linear(x, weight, bias) + F.linear(scale * F.linear(x, a), b)


class AdaptedConv2d(Adapted, nn.Conv2d):
    """W ∗ x + b + (α / r) B (A ∗ x): A is a convolution to r channels, B mixes them.  (LoRA, Hu et al. 2022)"""

    def forward(self, x: Tensor) -> Tensor:
        how: tuple[Any, ...] = (self.stride, self.padding, self.dilation)
        change = F.conv2d(self.scale * F.conv2d(x, self.lora_a, None, *how), self.lora_b)
        return F.conv2d(x, self.weight, self.bias, *how) + change


@cache
def adapt_class(kind: Any) -> type[Adapted]:
    """Return the class of adapted layers of a kind; those of a subclass of Linear or Conv2d keep what it adds."""
    known: dict[type[nn.Module], type[Adapted]] = {nn.Linear: AdaptedLinear, nn.Conv2d: AdaptedConv2d}
    base = next((one for one in known if issubclass(kind, one)), None)
    if base is None:
        return AdaptedTransposed
    if base is kind:
        return known[base]
    # its code is that of its kind, and pickles name that; it prints as the others do
    named = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    reduced = {"__reduce__": lambda layer: (make_adapted, (kind,), vars(layer))}
    return type(known[base].__name__, (known[base], kind), named | reduced)


def make_adapted(kind: Any) -> Adapted:
    """Make an adapted layer of a kind that has nothing yet, as pickles need it."""
    return (made := adapt_class(kind)).__new__(made)


@explain_typos("fk.lora", ModelError)
def lora(
    module: nn.Module,
    rank: Count,
    *,
    alpha: Positive | None = None,
    on: Patterns = ("*.attention.*",),
    head: Patterns | None = None,
    seed: Seed = 0,
) -> nn.Module:
    """Return the network with its weights frozen, and low-rank adapters and a head that train.

    `on` are patterns of names of layers (torch.nn.Linear, ungrouped Conv2d, GPT-2's Conv1D) that get an adapter
    W + (alpha / rank) B A; alpha is the rank where it is not given, so that B A counts once. `head` are patterns of
    parameters, or of the modules they are in, that train as a whole: the last layer where they are not given, of a
    `transformers` model all that is not its base; () trains adapters alone. The given network stays as it is, and
    shares its frozen weights with the one returned.
    """
    if not isinstance(module, nn.Module):
        raise ModelError(f"adapters go into a torch.nn.Module, not {type(module).__name__}.", "fk.lora(net, rank=8)")
    given: dict[str, Any] = {"rank": rank, "alpha": alpha, "seed": seed}
    given = read_values(given, types_of(lora), ModelError, "adapters", {"rank": 8, "alpha": 16, "seed": 0})
    try:
        adapted = copy.deepcopy(module, {id(p): nn.Parameter(p.detach()) for p in module.parameters()})
    except (TypeError, RuntimeError, ValueError) as error:
        raise ModelError(
            f"the network cannot be copied: {in_one_line(error)}",
            "call lazy layers once before, make pruning permanent (torch.nn.utils.prune.remove), and open files later",
        ) from error
    whole = head_names(adapted, head)
    chosen = choose_layers(adapted, list_patterns(on), whole)
    for name, parameter in adapted.named_parameters():
        parameter.requires_grad_(name in whole)
        if name in whole:
            parameter.data = parameter.data.clone()
    generator = torch.Generator().manual_seed(key(given["seed"], "lora"))
    for name in chosen:
        layer: Any = adapted.get_submodule(name)
        kind: Any = type(layer)
        layer.__class__ = adapt_class(kind)
        layer.add_adapter(given["rank"], float(given["alpha"] or given["rank"]), generator)
    for part in adapted.modules():
        if isinstance(part, nn.TransformerEncoderLayer):
            part.activation_relu_or_gelu = 0  # its fast path would multiply by the frozen weights alone
    return adapted


def list_patterns(given: Patterns) -> tuple[str, ...]:
    patterns = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Iterable) else (given,)
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise ModelError(f"a pattern of names is a text, not {pattern!r}.", 'on=("*.attention.*",)')
    return patterns


def head_names(module: nn.Module, patterns: Patterns | None) -> frozenset[str]:
    """Name the parameters that train as a whole."""
    names = map_names(module.named_parameters)
    if patterns is None:
        firsts = list(dict.fromkeys(names.values()))
        base = getattr(module, "base_model_prefix", "")  # how `transformers` calls what is below a head
        outside = [name for name in firsts if base and not name.startswith(f"{base}.")]
        return frozenset(outside if 0 < len(outside) < len(firsts) else find_head(module))
    found: set[str] = set()
    for pattern in list_patterns(patterns):
        here = [first for n, first in names.items() if fnmatchcase(n, pattern) or fnmatchcase(n, f"{pattern}.*")]
        if not here:
            raise ModelError(f"no parameter of the head is called {pattern!r}.", f"parameters: {list_names(names)}")
        found.update(here)
    return frozenset(found)


def choose_layers(module: nn.Module, patterns: Sequence[str], whole: frozenset[str]) -> list[str]:
    """Name the layers to adapt, in the order of the network; those that train as a whole are passed over."""
    names, weights = map_names(module.named_modules), map_names(module.named_parameters)
    layers = [name for name in adaptable_layers(module) if weights[f"{name}.weight".lstrip(".")] not in whole]
    chosen: set[str] = set()
    for pattern in patterns:
        here = {first for name, first in names.items() if fnmatchcase(name, pattern)}.intersection(layers)
        if not here:
            hint = (
                f"layers: {list_names(layers)}" if layers else "adapters go beside torch.nn.Linear, Conv2d and Conv1D"
            )
            made = [
                name for name in names if fnmatchcase(name, pattern) and is_parametrized(module.get_submodule(name))
            ]
            raise ModelError(
                f"no layer that can have an adapter is called {pattern!r}.",
                f"{hint}; {made[0]} computes its weight from others, as by weight_norm" if made else hint,
            )
        chosen |= here
    return [name for name in layers if name in chosen]


def adaptable_layers(module: nn.Module) -> Iterator[str]:
    """Yield the names of layers that may get an adapter: those whose own `forward` multiplies by their weights."""
    for name, layer in module.named_modules():
        if isinstance(layer, NonDynamicallyQuantizableLinear):
            continue  # torch.nn.MultiheadAttention multiplies by its weights itself
        if "weight" not in layer._parameters or any(hasattr(layer, word) for word in ADDED):
            continue
        if isinstance(layer, nn.Linear) and type(layer).forward is nn.Linear.forward:
            yield name
        elif isinstance(layer, nn.Conv2d) and type(layer).forward is nn.Conv2d.forward:
            if layer.groups == 1 and layer.padding_mode == "zeros":
                yield name
        elif (type(layer).__module__, type(layer).__name__) == TRANSPOSED:
            yield name


def list_names(names: Iterable[str]) -> str:
    """List names, those that differ in a number once: `layer.*.query`."""
    return ", ".join(dict.fromkeys(re.sub(r"(?<=\.)\d+(?=\.)", "*", name) for name in names))

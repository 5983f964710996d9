"""What a user's module keeps besides its weights, how many samples it needs, and the weights that it starts from."""

from __future__ import annotations

import copy
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.utils import _pytree
from torch.utils.weak import TensorWeakRef, WeakIdKeyDictionary

from fedkeel.core.trees import Tree
from fedkeel.errors import ExperimentError, ModelError
from fedkeel.text import in_one_line

COPIED = 256 << 20  # bytes of frozen weights that a trial has of its own


class Place(NamedTuple):
    """Where a network is trained: weights in `dtype`; frozen ones, which are only read, in that of the arithmetic.

    Vectors, which are small, are not: norms take them in either.
    """

    device: torch.device
    dtype: torch.dtype
    compute: torch.dtype

    def convert(self, tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor.to(self.device)
        frozen = isinstance(tensor, nn.Parameter) and not tensor.requires_grad and tensor.dim() > 1
        return tensor.to(self.device, self.compute if frozen else self.dtype)


Function = TypeVar("Function", bound=Callable[..., Any])

HELD: WeakIdKeyDictionary = WeakIdKeyDictionary()
"""What frozen parameters were converted to, by parameter and place, as long as someone uses it."""


def hold_once(parameter: nn.Parameter, place: Place) -> nn.Parameter:
    """A frozen parameter at a place: the same tensor for all who ask."""
    known = HELD.setdefault(parameter, {})
    found: nn.Parameter | None = known[place]() if place in known else None
    if found is None:
        converted = place.convert(parameter)
        found = parameter if converted is parameter else nn.Parameter(converted, requires_grad=False)
        known[place] = TensorWeakRef(found)
    return found


def copy_network(model: nn.Module, place: Place, start: Mapping[str, Tensor]) -> nn.Module:
    """Copy a network to be trained; frozen parameters are shared with other copies at the same place.

    Frozen norms stay in evaluation mode. Of the start weights, frozen parameters are taken where there are any.
    """
    frozen = [p for name, p in model.named_parameters() if not p.requires_grad and name not in start]
    made = copy_whole(model, {id(p): hold_once(p, place) for p in frozen})
    replaced = {name: leaf for name, leaf in read_frozen(made).items() if name in start}
    for name, value in replace_weights(start, replaced).items():
        made.get_parameter(name).data = value
    made._apply(place.convert)
    for part in made.modules():
        if isinstance(part, _NormBase) and is_frozen(part):
            part.eval()
            part.train = MethodType(stay, part)  # type: ignore[method-assign]
        elif isinstance(part, nn.RNNBase):
            # they are views of the model's one buffer, in another order than cuDNN's, or of all clients' at once
            part.flatten_parameters = leave_weights  # type: ignore[method-assign]
            warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")
    return made.train()


def place_function(function: Function, place: Place) -> Function:
    """Bring what a loss or a metric that is a module holds, such as weights of classes, to where it is called."""
    if not isinstance(function, nn.Module) or not [*function.parameters(), *function.buffers()]:
        return function
    as_outputs = place._replace(compute=place.dtype)
    try:
        return copy_whole(function)._apply(as_outputs.convert)
    except (ModelError, TypeError, RuntimeError):  # it holds what cannot be copied
        return function


def clone_tensors(output: Any) -> Any:
    """An output with tensors of its own, whatever form it has."""
    return _pytree.tree_map(lambda part: part.clone() if isinstance(part, Tensor) else part, output)


def copy_trained(module: nn.Module) -> nn.Module:
    """Copy a network to try something on; what is frozen is shared where it is large."""
    frozen = [p for p in module.parameters() if not p.requires_grad]
    large = sum(p.numel() * p.element_size() for p in frozen) > COPIED
    return copy_whole(module, {id(p): p for p in frozen} if large else None)


def copy_whole(module: nn.Module, known: Mapping[int, Tensor] | None = None) -> nn.Module:
    """Copy a network, except what is `known` by its identity."""
    try:
        made = copy.deepcopy(module, {**list_results(module), **(known or {})})
    except TypeError as error:
        raise ModelError(
            f"the network cannot be copied: {in_one_line(error)}",
            "open files, and make locks and generators, where they are used",
        ) from error
    for buffer in made.buffers():
        if buffer.layout is torch.strided and 0 in buffer.stride():  # numbers that share a place cannot be written
            buffer.data = buffer.contiguous()
    for parameter in made.parameters():
        if not parameter.is_leaf:  # TorchScript's copies follow from their originals, whose type gradients would have
            parameter.detach_().requires_grad_()
    return made


def list_results(module: nn.Module) -> dict[int, Tensor]:
    """List by identity what a network keeps of its last pass, without its history: Python cannot copy that.

    What is left of a pass of stacked clients has no values, and is empty.
    """
    kept = [
        value for part in module.modules() for value in _pytree.tree_leaves(vars(part)) if isinstance(value, Tensor)
    ]
    stale = {id(value) for value in kept if torch._C._functorch.is_functorch_wrapped_tensor(value)}
    live = {id(value): value.detach() for value in kept if id(value) not in stale and not value.is_leaf}
    return live | {one: torch.empty(0) for one in stale}


def stay(part: nn.Module, mode: bool = True) -> nn.Module:
    """Train a module that stays in evaluation mode."""
    return part


def leave_weights() -> None:
    """Leave a recurrent layer's weights where they lie, in place of `flatten_parameters`."""


def is_frozen(part: nn.Module) -> bool:
    """Whether a module has parameters of its own, and trains none of them."""
    own = list(part.parameters(recurse=False))
    return bool(own) and not any(parameter.requires_grad for parameter in own)


def name_travelling_buffers(module: nn.Module) -> list[str]:
    """Name the floating-point buffers that clients have copies of."""
    fixed = {
        f"{name}.{own}".lstrip(".")
        for name, part in module.named_modules()
        for own, buffer in part._buffers.items()
        if buffer is not None and is_fixed(part, own, buffer)
    }
    return [name for name, buffer in module.named_buffers() if buffer.is_floating_point() and name not in fixed]


def is_fixed(part: nn.Module, own: str, buffer: Tensor) -> bool:
    """Whether a buffer is the same for all clients: of a frozen module, left out of the module's state, as it can make
    it again, or a mask, some of whose numbers are infinite. Running moments may become so, and are none."""
    if is_frozen(part) or own in part._non_persistent_buffers_set:
        return True
    if isinstance(part, _NormBase) or buffer.dtype.itemsize == 1:  # of numbers of one byte PyTorch does not know it
        return False
    infinite = torch.isinf(buffer)
    return bool(infinite.any()) and not bool(infinite.all())


def write_state(module: nn.Module, named: Mapping[str, Tensor]) -> None:
    """Write named tensors into a network; the versions of its parts, which some networks ask for, are today's."""
    state = OrderedDict(named)
    state._metadata = getattr(module.state_dict(), "_metadata", None)  # type: ignore[attr-defined]
    module.load_state_dict(state, strict=False)


def read_buffers(module: nn.Module, start: Mapping[str, Tensor]) -> Tree | None:
    """The buffers that clients have copies of, as the start weights have them where they do; None without any."""
    own = {name: module.get_buffer(name).detach() for name in name_travelling_buffers(module)}
    known = own.keys() <= start.keys()  # a file may hold parameters alone
    return Tree.of(replace_weights(start, own) if known else own) if own else None


def read_frozen(module: nn.Module) -> dict[str, Tensor]:
    """The parameters of a network that are held once, for all clients."""
    return {name: parameter.detach() for name, parameter in module.named_parameters() if not parameter.requires_grad}


def list_constants(module: nn.Module) -> list[Tensor]:
    """List the floating-point parameters and buffers that all clients share."""
    travelling = {*name_travelling_buffers(module)}
    frozen = [parameter for parameter in module.parameters() if not parameter.requires_grad]
    fixed = [buffer for name, buffer in module.named_buffers() if name not in travelling]
    return [tensor for tensor in (*frozen, *fixed) if tensor.is_floating_point()]


def is_plain(norm: nn.Module) -> bool:
    """Whether a norm computes as PyTorch's own do: another may count in its buffers, or take a batch as it likes."""
    own = (_BatchNorm.forward, nn.SyncBatchNorm.forward, _InstanceNorm.forward)
    return type(norm).forward in own and "forward" not in vars(norm)


def read_counters(module: nn.Module | None) -> dict[str, Tensor]:
    """The first values of the buffers that belong to no client, but for PyTorch's norms, which do not read theirs."""
    if module is None:
        return {}
    norms = {n: m for n, m in module.named_modules() if isinstance(m, _NormBase)}
    if any(norm.track_running_stats and norm.momentum is None for norm in norms.values()):
        raise ExperimentError("a norm with momentum=None averages over the batches of all clients.", "momentum=0.1")
    idle = {f"{name}.{own}".lstrip(".") for name, norm in norms.items() for own in norm._buffers if is_plain(norm)}
    idle.update(name_travelling_buffers(module))
    return {n: b.detach().clone() for n, b in module.named_buffers() if n not in idle}


@torch.no_grad()
def only_norms_remember(module: nn.Module | None, call: Callable[[nn.Module], object]) -> bool:
    """Whether a module keeps nothing of its samples but running moments of batch norms; tables do not change."""
    if module is None:
        return True
    norms = [name for name, part in module.named_modules() if isinstance(part, _BatchNorm) and is_plain(part)]
    moments = {f"{name}.{kind}".lstrip(".") for name in norms for kind in ("running_mean", "running_var")}
    others = [name for name in name_travelling_buffers(module) if name not in moments]
    if not others:
        return True
    twin = copy_trained(module).train()
    before = {name: (buffer := twin.get_buffer(name), buffer._version) for name in others}
    with torch.random.fork_rng(devices=[]):
        call(twin)
    return all(twin.get_buffer(n) is buffer and buffer._version == version for n, (buffer, version) in before.items())


def draws_numbers(module: nn.Module | None) -> bool:
    """Whether a module draws random numbers while it trains: dropout of any kind, or one that says so."""

    def draws(part: nn.Module) -> bool:
        if isinstance(part, _DropoutNd):
            return part.p > 0
        if type(part).__name__ == "StochasticDepth":  # of torchvision
            return float(getattr(part, "p", 0.0)) > 0
        # a rate that a module applies itself: attention, recurrent layers, timm's DropPath, layers of transformers
        rates = [value for name, value in vars(part).items() if "drop" in name and isinstance(value, float)]
        return any(rates) or bool(getattr(part, "stochastic", False))

    return module is not None and any(map(draws, module.modules()))


@torch.no_grad()
def compares_samples(module: nn.Module | None, call: Callable[[nn.Module], object], training: bool = True) -> bool:
    """Whether one sample is too few: batch norms over maps of 1×1 would see one value of each channel.

    While scoring (not `training`) it may be too few for those without running statistics.
    """
    norms = [] if module is None else [part for part in module.modules() if isinstance(part, _BatchNorm)]
    if module is None or not any(training or norm.running_mean is None for norm in norms):
        return False
    try:
        with torch.random.fork_rng(devices=[]):
            call(copy_trained(module).train(training))
    except ValueError as error:
        return "more than 1 value per channel" in str(error)
    return False


def replace_weights(start: Mapping[str, Tensor], leaves: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Take the start weights in place of the initial ones; names and shapes must match."""
    for name, leaf in leaves.items():
        if name not in start:
            raise ExperimentError(
                f"the start weights lack parameter: {name}", "were they exported from the same model?"
            )
        if start[name].shape != leaf.shape:
            raise ExperimentError(
                f"start weight {name} has shape {tuple(start[name].shape)}, the model's has {tuple(leaf.shape)}.",
                "were they exported from the same model?",
            )
    return {name: start[name].to(leaf) for name, leaf in leaves.items()}

"""Networks whose layers all have kernels, applied to all clients at once. vmap does the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from fedkeel.kernels.geometry import Geometry
from fedkeel.kernels.layers import (
    GPU_TYPES,
    AddBias,
    BatchNormalise,
    Convolve,
    ConvolveAndFork,
    Frame,
    Multiply,
    Normalise,
    batch_norm_for,
)
from fedkeel.kernels.plain import RunningMoments
from fedkeel.kernels.pools import MaxPool
from fedkeel.models.resnet import Block

Apply = Callable[[Any, str, Tensor, Frame], Tensor]


def has_kernels(module: nn.Module, axes: int) -> bool:
    """Whether every layer of a network has a kernel, with supported options, and each parameter is used once.

    `axes` counts those of one sample, as the module gets it: 3 for an image, 1 for a vector.
    """
    if not isinstance(module, nn.Sequential):  # parameters of a lone layer have no name to go by
        return False
    norms = [part for part in module.modules() if isinstance(part, nn.BatchNorm2d)]
    if len(list(module.buffers())) > sum(len(list(part.buffers())) for part in norms):
        return False
    if not all(p.requires_grad for p in module.parameters()):
        return False
    if len(list(module.named_parameters(remove_duplicate=False))) != len(list(module.parameters())):
        return False
    return all(type(part) in LAYERS and _is_supported(part) for part in module.modules()) and bool(
        _axes_after(module, axes)
    )


def _axes_after(module: nn.Module, axes: int) -> int:
    """Count the axes of a sample after a layer; 0 where our version of the layer does not take such samples."""
    match module:
        case nn.Sequential():
            for layer in module:
                axes = _axes_after(layer, axes)
            return axes
        case nn.Linear():
            return int(axes == 1)
        case nn.Flatten():
            return int(axes > 0)
        case nn.ReLU():
            return axes
        case _:
            return 3 * int(axes == 3)


def has_backward_hooks(part: nn.Module) -> bool:
    """Whether a module has hooks that see gradients, or change them."""
    return bool(part._backward_hooks or part._backward_pre_hooks)


def _is_supported(part: nn.Module) -> bool:
    if part._forward_hooks or part._forward_pre_hooks or has_backward_hooks(part) or "forward" in vars(part):
        return False
    match part:
        case nn.Conv2d():
            square = part.stride[0] == part.stride[1] and not isinstance(part.padding, str)
            return (
                square and part.padding[0] == part.padding[1] and part.groups == 1 and part.dilation == (1, 1)
                and part.padding_mode == "zeros"
            )  # fmt: skip
        case nn.GroupNorm():
            return part.affine
        case nn.BatchNorm2d():
            return part.affine and part.track_running_stats and part.momentum is not None
        case nn.MaxPool2d():
            return (
                not part.ceil_mode and not part.return_indices and part.dilation == 1 and isinstance(part.padding, int)
            )
        case nn.AdaptiveAvgPool2d():
            return part.output_size in (1, (1, 1))
        case nn.Flatten():
            return part.start_dim == 1 and part.end_dim == -1
        case _:
            return True


def forward(module: nn.Module, frame: Frame, x: Tensor) -> Tensor:
    """Compute the outputs of all clients. `x` is `[clients, batch, …]`, images with channels first, as in modules."""
    x = x.to(frame.compute)
    y = apply_layer(module, "", x.movedim(2, -1) if x.dim() == 5 else x, frame)
    return y.movedim(-1, 2) if y.dim() == 5 else y


def apply_layer(module: nn.Module, name: str, x: Tensor, frame: Frame) -> Tensor:
    if frame.watched is not None and module is frame.watched.layer:
        frame.watched.given.append(x)
    return LAYERS[type(module)](module, name, x, frame)


# ---- one function for each kind of layer ---------------------------------------------------------------------------
def sequential(module: nn.Sequential, name: str, x: Tensor, frame: Frame) -> Tensor:
    # not named_children(), which leaves out a ReLU that is used twice
    children = [(child, layer) for child, layer in module._modules.items() if layer is not None]
    layers = [(f"{name}.{child}" if name else child, layer) for child, layer in children]
    while layers:
        (of, layer), *layers = layers
        if isinstance(layer, nn.GroupNorm | nn.BatchNorm2d) and layers and type(layers[0][1]) is nn.ReLU:
            layers = layers[1:]
            x = normalise(layer, of, x, frame, relu=True)
        else:
            x = apply_layer(layer, of, x, frame)
    return x


def block(module: Block, name: str, x: Tensor, frame: Frame) -> Tensor:
    y, x = ConvolveAndFork.apply(*convolution_arguments(module.conv1, f"{name}.conv1", x, frame))
    y = normalise(module.bn1, f"{name}.bn1", y, frame, relu=True)
    y = convolution(module.conv2, f"{name}.conv2", y, frame)
    shortcut = sequential(module.downsample, f"{name}.downsample", x, frame)
    return normalise(module.bn2, f"{name}.bn2", y, frame, relu=True, shortcut=shortcut)


def convolution(module: nn.Conv2d, name: str, x: Tensor, frame: Frame) -> Tensor:
    y: Tensor = Convolve.apply(*convolution_arguments(module, name, x, frame))
    return y if module.bias is None else add_bias(y, name, frame)


def convolution_arguments(module: nn.Conv2d, name: str, x: Tensor, frame: Frame) -> tuple[Any, ...]:
    kernel, padding = (module.kernel_size[0], module.kernel_size[1]), int(module.padding[0])
    where = Geometry.of(x.shape[2], x.shape[3], kernel, module.stride[0], padding)
    weight = f"{name}.weight"
    packed = None if frame.packed is None else frame.packed.take(weight, where)
    return x.contiguous(), frame.anchor, frame.params[weight], frame.into[weight], where, frame.side, packed


def add_bias(x: Tensor, name: str, frame: Frame) -> Tensor:
    return AddBias.apply(x, frame.anchor, frame.params[f"{name}.bias"], frame.into[f"{name}.bias"])


def normalise(
    module: Any, name: str, x: Tensor, frame: Frame, *, relu: bool = False, shortcut: Tensor | None = None
) -> Tensor:
    if isinstance(module, nn.BatchNorm2d):
        return batch_normalise(module, name, x, frame, relu, shortcut)
    gain, bias = f"{name}.weight", f"{name}.bias"
    return Normalise.apply(
        x.contiguous(), frame.anchor, shortcut, frame.params[gain], frame.params[bias],
        (frame.into[gain], frame.into[bias]), module.num_groups, module.eps, relu, False, frame.side,
    )  # fmt: skip


def batch_normalise(
    module: nn.BatchNorm2d, name: str, x: Tensor, frame: Frame, relu: bool, shortcut: Tensor | None
) -> Tensor:
    """Normalise by the batch's moments and update the running ones; while scoring, by the running ones."""
    gain, bias, running, x = frame.params[f"{name}.weight"], frame.params[f"{name}.bias"], frame.running, x.contiguous()
    assert running is not None
    assert module.momentum is not None
    moments = (f"{name}.running_mean", f"{name}.running_var")
    mean, variance = (running.before[moment] for moment in moments)
    if running.after is None:
        scale = gain * (variance + module.eps).rsqrt()
        beside = None if shortcut is None else shortcut.contiguous()
        return batch_norm_for(x).rescale(x, scale, bias - mean * scale, beside, relu)
    into = (frame.into[f"{name}.weight"], frame.into[f"{name}.bias"])
    updates = RunningMoments((mean, variance), (running.after[moments[0]], running.after[moments[1]]), module.momentum)
    return BatchNormalise.apply(
        x, frame.anchor, shortcut, gain, bias, into, running.mask, module.eps, relu, updates, False
    )


def linear(module: nn.Linear, name: str, x: Tensor, frame: Frame) -> Tensor:
    y: Tensor = Multiply.apply(x, frame.anchor, frame.params[f"{name}.weight"], frame.into[f"{name}.weight"])
    return y if module.bias is None else add_bias(y, name, frame)


def flatten(module: nn.Flatten, name: str, x: Tensor, frame: Frame) -> Tensor:
    return (x.movedim(-1, 2) if x.dim() == 5 else x).flatten(2)


def max_pool(module: nn.MaxPool2d, name: str, x: Tensor, frame: Frame) -> Tensor:
    size, stride, padding = module.kernel_size, module.stride, module.padding
    if x.is_cuda and x.dtype in GPU_TYPES and isinstance(size, int) and isinstance(stride, int):
        return MaxPool.apply(x.contiguous(), size, stride, padding)
    images = x.flatten(0, 1).movedim(-1, 1)
    pooled = F.max_pool2d(images, size, stride, padding).movedim(1, -1)
    return pooled.view(*x.shape[:2], *pooled.shape[1:])


def average(module: nn.AdaptiveAvgPool2d, name: str, x: Tensor, frame: Frame) -> Tensor:
    return x.mean((2, 3), keepdim=True)


def relu(module: nn.ReLU, name: str, x: Tensor, frame: Frame) -> Tensor:
    return F.relu(x)


LAYERS: dict[type[nn.Module], Apply] = {
    nn.Sequential: sequential,
    Block: block,
    nn.Conv2d: convolution,
    nn.GroupNorm: normalise,
    nn.BatchNorm2d: normalise,
    nn.Linear: linear,
    nn.Flatten: flatten,
    nn.MaxPool2d: max_pool,
    nn.AdaptiveAvgPool2d: average,
    nn.ReLU: relu,
}

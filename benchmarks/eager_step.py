"""A client's local steps as a paper's code takes them: a module, autograd, and arithmetic tensor by tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def train_client(
    params: Sequence[Tensor], gradients: Callable[[int], Sequence[Tensor]], method: str, steps: int
) -> None:
    """Take some steps of FedAvg, SpecGradFilter or FedFFT-D and put the parameters back where they began.

    `gradients` takes those of the loss on the batch of a step, at the parameters as they are. Clip 10, decay 1e-3.
    """
    start, dual = [p.detach().clone() for p in params], [torch.zeros_like(p) for p in params]
    for step in range(steps):
        moves = None
        if method == "fedfft-d":
            grads = gradients(step)
            norm = torch.stack([g.norm() for g in grads]).norm() + 1e-7
            moves = [remove_low_band(g * (0.1 / norm), 0.01) for g in grads]
            with torch.no_grad():
                for p, m in zip(params, moves, strict=True):
                    p.add_(m)
        grads = gradients(step)
        with torch.no_grad():
            if moves is not None:
                for p, m in zip(params, moves, strict=True):
                    p.sub_(m)
                grads = [g + 0.1 * (p - s + h) for g, p, s, h in zip(grads, params, start, dual, strict=True)]
            if method == "specgradfilter":
                grads = [remove_low_band(g, 0.05) for g in grads]
            norm = torch.stack([g.norm() for g in grads]).norm()
            scale = (10.0 / (norm + 1e-6)).clamp(max=1.0)
            for p, g in zip(params, grads, strict=True):
                p.sub_(0.1 * (g * scale + 1e-3 * p))
    with torch.no_grad():
        for p, s in zip(params, start, strict=True):
            p.copy_(s)


def remove_low_band(v: Tensor, ratio: float) -> Tensor:
    spectrum = torch.fft.rfft(v.flatten())
    spectrum[: int(ratio * len(spectrum))] = 0
    return torch.fft.irfft(spectrum, n=v.numel()).view_as(v)

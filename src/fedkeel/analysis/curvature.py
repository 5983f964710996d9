"""Curvature of a loss by Hessian-vector products: its top eigenvalues, its trace, and its sharpness at a radius.

A loss is a list of functions of a Tree whose sum it is, so that a large sample is differentiated part by part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isnan, sqrt

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedkeel.core.trees import Tree
from fedkeel.errors import RequestError
from fedkeel.randomness import bits, generator, key

LossParts = Sequence[Callable[[Tree], Tensor]]
Product = Callable[[Tensor], Tensor]

TINY = 1e-30  # the direction of a zero vector is zero


def loss_value(loss: LossParts, at: Tree) -> float:
    with torch.no_grad():
        return float(sum(float(part(at)) for part in loss))


def gradient(loss: LossParts, at: Tree) -> Tree:
    """∇L(w)."""
    total = torch.zeros_like(at.buffer)
    for part in loss:
        leaf = at.buffer.detach().clone().requires_grad_()
        total += torch.autograd.grad(part(Tree(leaf, at.layout)), leaf, materialize_grads=True)[0]
    return Tree(total, at.layout)


def hessian_product(loss: LossParts, at: Tree) -> Product:
    """v ↦ ∇²L(w) v, by differentiating ⟨∇L, v⟩: two backward passes, no matrix."""

    def product(v: Tensor) -> Tensor:
        total = torch.zeros_like(at.buffer)
        for part in loss:
            leaf = at.buffer.detach().clone().requires_grad_()
            # fused attention has no second derivative
            with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
                (slope,) = torch.autograd.grad(
                    part(Tree(leaf, at.layout)), leaf, create_graph=True, materialize_grads=True
                )
                if slope.requires_grad:  # a piecewise linear loss has no curvature
                    total += torch.autograd.grad(slope @ v, leaf, materialize_grads=True)[0]
        return total

    return product


@dataclass(frozen=True, eq=False)
class Eigenpairs:
    """The largest eigenvalues in falling order, and their unit eigenvectors as stacked rows of a Tree.

    `residuals` are ‖H v − λ v‖: each value is that close to a true eigenvalue.
    """

    values: list[float]
    vectors: Tree
    residuals: list[float]


def top_eigenvalues(product: Product, at: Tree, count: int = 2, steps: int = 20, seed: int = 0) -> Eigenpairs:
    """The `count` largest eigenvalues (algebraically) of a symmetric matrix, by `steps` steps of Lanczos.

    Every new vector is orthogonalised twice against all before it, which keeps `steps` vectors of the model's size. An
    eigenvalue that repeats is found again only where the steps exhaust the space of the first vector.
    """
    size = at.layout.size
    if not 1 <= count <= size:
        raise RequestError(f"a model of {size} parameters does not have {count} eigenvalues.")
    basis, diagonal, beside = lanczos(product, at.buffer, max(steps, count), seed)
    tridiagonal = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
    off = torch.tensor(beside[: len(diagonal) - 1], dtype=torch.float64)
    tridiagonal += torch.diag(off, 1) + torch.diag(off, -1)
    values, vectors = torch.linalg.eigh(tridiagonal)
    count = min(count, len(diagonal))
    chosen = vectors.flip(1)[:, :count].to(basis)
    ritz = chosen.mT @ basis
    # of a Ritz pair it is β_k |last entry|, but never below what the dtype can tell
    least = torch.finfo(basis.dtype).eps * float(values.abs().max())
    residuals = [max(least, beside[len(diagonal) - 1] * abs(float(column[-1]))) for column in chosen.mT]
    return Eigenpairs(values.flip(0)[:count].tolist(), Tree(ritz, at.layout), residuals)


def lanczos(product: Product, like: Tensor, steps: int, seed: int) -> tuple[Tensor, list[float], list[float]]:
    """An orthonormal basis `[steps, D]` of the Krylov space of a random vector, and the tridiagonal matrix there.

    Where the space is exhausted before, that of another random vector follows, beside which the matrix has a 0.
    """
    v = normal_like(like, key(seed, "lanczos"))
    v = v / v.norm()
    basis, diagonal, beside = [v], [], []
    while True:
        w = product(basis[-1])
        if not bool(torch.isfinite(w).all()):
            raise RequestError("the loss has no finite curvature here.", "is the model's loss finite at this point?")
        diagonal.append(float(basis[-1] @ w))
        w = remove_span(w, torch.stack(basis))
        beside.append(float(w.norm()))
        if len(diagonal) == min(steps, like.numel()):
            return torch.stack(basis), diagonal, beside
        scale = max(map(abs, (*diagonal, *beside)))
        if beside[-1] <= 10 * torch.finfo(w.dtype).eps * scale:
            beside[-1] = 0.0
            w = remove_span(normal_like(like, key(seed, "lanczos", len(basis))), torch.stack(basis))
        basis.append(w / w.norm())


def remove_span(w: Tensor, basis: Tensor) -> Tensor:
    """The part of a vector that is orthogonal to the rows of an orthonormal basis; twice, against rounding."""
    for _again in range(2):
        w = w - basis.mT @ (basis @ w)
    return w


@dataclass(frozen=True)
class TraceEstimate:
    """A mean over random probes, and its standard error."""

    value: float
    error: float


def trace(product: Product, like: Tree, probes: int = 10, seed: int = 0) -> TraceEstimate:
    """tr H = E[zᵀ H z] over random signs z (Hutchinson); exact for a diagonal matrix."""
    samples = []
    for probe in range(probes):
        signs = torch.from_numpy((bits(key(seed, "trace", probe), like.layout.size) >> 63).astype("float64")) * 2 - 1
        z = signs.to(like.buffer)
        samples.append(float(z @ product(z)))
    values = torch.tensor(samples, dtype=torch.float64)
    error = float(values.std() / sqrt(probes)) if probes > 1 else float("nan")
    return TraceEstimate(float(values.mean()), error)


def sharpness(loss: LossParts, at: Tree, rho: float, steps: int = 1) -> float:
    """max_{‖ε‖ ≤ ρ} L(w + ε) − L(w), from below: the best of `steps` steps of ascent on the sphere.

    One step is SAM's own: ε = ρ g / ‖g‖. Never negative, since ε = 0 is allowed; NaN where a loss on the way is.
    """
    if rho < 0 or steps < 1:
        raise RequestError(f"sharpness needs a radius and at least one step: rho={rho}, steps={steps}.")
    here, best, point = loss_value(loss, at), 0.0, at
    for _ in range(steps):
        climb = (point - at).unit(TINY) + gradient(loss, point).unit(TINY)
        point = at + rho * climb.unit(TINY)
        rise = loss_value(loss, point) - here
        best = rise if isnan(rise) else max(best, rise)  # a NaN, once there, stays
    return best


def normal_like(like: Tensor, of: int) -> Tensor:
    """Independent standard normal numbers in the shape of a tensor."""
    return torch.from_numpy(generator(of).standard_normal(tuple(like.shape))).to(like)

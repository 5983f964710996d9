"""Networks whose last hidden layer is a random code, for methods that compare codes across clients."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional

from fedkeel.models.card import Shape
from fedkeel.randomness import keyed_normals

SMALLEST = 1e-8  # σ: what is divided by must not be zero


class Bottleneck(nn.Module):
    """A code z = μ(x) + σ(x) ξ, σ = softplus, and a linear head on it. Evaluation takes μ for z.

    With a linear head this gives the expected logits: the mean over ever more draws.
    (variational information bottleneck, Alemi et al. 2017; FedCR)
    """

    def __init__(self, body: nn.Module, features: int, classes: int, *, code: int, samples: int):
        super().__init__()
        if samples < 1:
            raise ValueError(f"samples must be at least 1, not {samples}")
        self.samples = samples
        self.body = body
        self.code = nn.Linear(features, 2 * code)
        self.head = nn.Linear(code, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoded(x)[0])

    def encoded(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """μ and σ of each sample's code."""
        mean, raw = self.code(self.body(x)).chunk(2, -1)
        return mean, functional.softplus(raw).clamp(min=SMALLEST)

    def sampled(self, x: Tensor, key: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """μ, σ, and the logits of `samples` draws of each code, `[batch, samples, classes]`."""
        mean, deviation = self.encoded(x)
        shape = (len(mean), self.samples, mean.shape[-1])
        noise = keyed_normals(key, shape[0] * shape[1] * shape[2]).view(shape).to(mean)
        return mean, deviation, self.head(mean.unsqueeze(1) + deviation.unsqueeze(1) * noise)

    def precision(self, x: Tensor) -> Tensor:
        """The head's weights on 1 / σ², which is not differentiated."""
        return functional.linear(self.encoded(x)[1].detach() ** -2, self.head.weight)

    def evidence(self, x: Tensor) -> Tensor:
        """The head's weights on μ / σ², which is not differentiated."""
        mean, deviation = self.encoded(x)
        return functional.linear((mean * deviation**-2).detach(), self.head.weight)


def with_code(
    make: Callable[..., nn.Sequential], shape: Shape, classes: int, *, code: int, samples: int, **options: int
) -> Bottleneck:
    """Build the network of `make` with a random code in place of its last layer."""
    *body, last = make(shape, classes, **options).named_children()
    assert isinstance(last[1], nn.Linear)
    kept = nn.Sequential()
    for name, layer in body:
        kept.add_module(name, layer)
    return Bottleneck(kept, last[1].in_features, classes, code=code, samples=samples)

"""Models of texts: an LSTM that reads characters, a classifier that averages words."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.overrides import wrap_torch_function

from fedkeel.models.card import Shape


class LstmLayer(nn.Module):
    """One layer of torch.nn.LSTM, whose own kernel cannot be stacked over clients: same gates, biases and start.

    i, f, g, o = W x_t + b + U h_{t-1} + b';  c_t = σ(f) c_{t-1} + σ(i) tanh(g);  h_t = σ(o) tanh(c_t)
    """

    def __init__(self, inputs: int, units: int):
        super().__init__()
        self.units = units
        self.input = nn.Linear(inputs, 4 * units)
        self.hidden = nn.Linear(units, 4 * units)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(units**-0.5), units**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        zero = x.new_zeros(len(x), self.units)
        return scan_lstm(self.input(x), self.hidden.weight, self.hidden.bias, zero, zero)[0]


@wrap_torch_function(lambda arriving, weight, bias, h, c: (arriving, weight))
def scan_lstm(
    arriving: Tensor, weight: Tensor, bias: Tensor | None, h: Tensor, c: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """All states `[batch, steps, units]` of an LSTM from W x + b, and the last h and c.

    Stacked clients have another version of it.
    """
    states = []
    for step in arriving.unbind(1):
        i, f, g, o = (step + linear(h, weight, bias)).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        states.append(h)
    return torch.stack(states, 1), h, c


class Last(nn.Module):
    """The state after the last character."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, -1]


class MeanEmbedding(nn.Module):
    """The mean of the word vectors; the padding token does not count, and a text of padding alone is zero."""

    def __init__(self, vocabulary: int, width: int, padding: int):
        super().__init__()
        self.padding = padding
        self.embedding = nn.Embedding(vocabulary, width)

    def forward(self, tokens: Tensor) -> Tensor:
        vectors: Tensor = self.embedding(tokens)
        words = (tokens != self.padding).to(vectors.dtype).unsqueeze(-1)
        return (words * vectors).sum(1) / words.sum(1).clamp(min=1)


def lstm(shape: Shape, classes: int, *, vocabulary: int) -> nn.Sequential:
    """Embedding of width 8, two LSTM layers of 256 units, a linear layer on the last state."""
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            embedding=nn.Embedding(vocabulary, 8),
            lstm1=LstmLayer(8, 256),
            lstm2=LstmLayer(256, 256),
            last=Last(),
            fc=nn.Linear(256, classes),
        )
    )


def fasttext(shape: Shape, classes: int, *, vocabulary: int, padding: int) -> nn.Sequential:
    """Mean of word vectors of width 32, then two linear layers."""
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            words=MeanEmbedding(vocabulary, 32, padding), fc1=nn.Linear(32, 32), fc2=nn.Linear(32, classes)
        )
    )

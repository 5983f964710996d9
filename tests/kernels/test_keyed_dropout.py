"""Dropout as a function of a key."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import vmap

from fedkeel.kernels.function_mode import StackedFunctions
from fedkeel.kernels.keyed_dropout import KeyedDropout
from fedkeel.kernels.operators import StackedPass
from fedkeel.randomness import keyed_bits

KEY = torch.tensor(17)


def test_the_share_that_is_dropped_and_the_mean_of_the_rest() -> None:
    x = torch.ones(200, 500)
    for share in (0.1, 0.5, 0.9):
        with KeyedDropout(KEY):
            y = F.dropout(x, share)
        assert abs(float((y == 0).float().mean()) - share) < 0.005
        torch.testing.assert_close(y[y != 0], torch.full_like(y[y != 0], 1 / (1 - share)))
    with KeyedDropout(KEY):
        assert not F.dropout(x, 1.0).any()
        assert F.dropout(x, 0.5, training=False) is x


def test_whole_channels_are_dropped_together() -> None:
    with KeyedDropout(KEY):
        y = nn.Dropout2d(0.5)(torch.ones(20, 30, 3, 3))
    assert set(y.flatten(2).std(-1).unique().tolist()) == {0.0}
    assert 0.4 < float((y == 0).float().mean()) < 0.6


def test_nothing_is_dropped_behind_the_last_of_several_recurrent_layers() -> None:
    for layer in (nn.LSTM(3, 4, 2, dropout=0.9), nn.GRU(3, 4, 2, dropout=0.9)):
        with KeyedDropout(KEY):
            y, _ = layer(torch.rand(7, 6, 3))
        assert bool((y != 0).all())


def test_each_call_and_each_key_draws_other_numbers_and_a_shorter_batch_the_first_of_them() -> None:
    def draw(key: int, calls: int, samples: int) -> torch.Tensor:
        with KeyedDropout(torch.tensor(key)):
            return [F.dropout(torch.ones(samples, 50), 0.5) for _ in range(calls)][-1]

    first = draw(1, 1, 8)
    assert torch.equal(first, draw(1, 1, 8))
    assert torch.equal(first[:5], draw(1, 1, 5))
    for other in (draw(1, 2, 8), draw(2, 1, 8)):
        assert 0.4 < float((first == other).float().mean()) < 0.6


def test_bits_are_even_and_independent() -> None:
    """Each of the 32 bits is set in half of the numbers, and pairs of bits agree in half of them."""
    bits = torch.stack([(keyed_bits(torch.tensor(k), 0, 20_000) >> b) & 1 for k in (0, 1) for b in range(32)]).double()
    assert float((bits.mean(1) - 0.5).abs().max()) < 0.02
    assert float((torch.corrcoef(bits) - torch.eye(64)).abs().max()) < 0.04


def test_the_global_generator_is_left_alone() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5, batch_first=True)
    before = torch.random.get_rng_state()
    with KeyedDropout(KEY):
        layer(torch.zeros(2, 3, 8))
    assert torch.equal(before, torch.random.get_rng_state())


class WritesInPlace(nn.Module):
    """Draws as some networks do: into a tensor of its own, without using what the call returns."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.full(x.shape, 3.0)
        mask.bernoulli_(0.5)
        y = x * mask + 1
        F.dropout(y, 0.5, True, True)
        nn.Dropout1d(0.5, inplace=True)(y)
        return y


def test_what_is_drawn_in_place_is_there_whether_or_not_the_call_is_used() -> None:
    class Returns(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x * torch.empty_like(x).bernoulli_(0.5) + 1
            return F.dropout1d(F.dropout(y, 0.5), 0.5)

    x = torch.rand(40, 6, requires_grad=True)
    found = []
    for network in (WritesInPlace(), Returns()):
        with KeyedDropout(KEY):
            y = network(x.unsqueeze(-1))
        found.append((y, torch.autograd.grad(y.square().sum(), x)[0]))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


def test_stacked_clients_find_it_too() -> None:
    x, keys = torch.rand(3, 8, 6, 1), torch.arange(3)

    def one(x: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        at = StackedPass(3, torch.float32, torch.zeros(()))
        with StackedFunctions(at, {}, key=key) as functions:
            return functions.finish(WritesInPlace()(x))

    stacked = vmap(one)(x, keys)
    for client, key in enumerate(keys):
        with KeyedDropout(key):
            torch.testing.assert_close(stacked[client], WritesInPlace()(x[client]), rtol=0, atol=0)

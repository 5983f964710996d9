"""The thin way to remove a low band against the plain transform."""

from __future__ import annotations

import importlib
from dataclasses import replace
from functools import partial

import pytest
import torch

from fedkeel.core.trees import Tree
from fedkeel.kernels.band import Onto, basis, high_pass, high_pass_onto, remove_low_band
from fedkeel.methods import build
from fedkeel.rules.filters import HighPass, low_bins


@pytest.mark.parametrize(("n", "ratio"), [(36864, 0.01), (147456, 0.1), (32768, 0.005), (36865, 0.05), (99225, 0.02)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-8), (torch.float32, 1e-6)])
def test_equals_the_plain_transform(n: int, ratio: float, dtype: torch.dtype, tolerance: float) -> None:
    bins = low_bins(n, ratio)
    draw = torch.Generator().manual_seed(0)
    # a strong low band, so that what is removed matters
    rows = torch.randn(2, 3 * n + 7, generator=draw, dtype=torch.float64).cumsum(-1)[:, 7:].view(2, 3, n)
    spectrum = torch.fft.rfft(rows)
    spectrum[..., :bins] = 0
    wanted = torch.fft.irfft(spectrum, n=n)
    kept = remove_low_band(rows.to(dtype), bins)
    assert kept is not None
    assert float((kept - wanted).norm() / rows.norm()) < tolerance


def test_is_left_alone_where_it_would_not_pay() -> None:
    assert basis(2304, 11, torch.float32, torch.device("cpu")) is None
    assert basis(36864, 4608, torch.float32, torch.device("cpu")) is None
    assert basis(65537, 300, torch.float32, torch.device("cpu")) is None


@pytest.mark.parametrize("name", ["fedfft", "specgradfilter"])
def test_a_whole_buffer_is_filtered_as_its_leaves_are(name: str) -> None:
    rule = next(r for r in build(name).rules if isinstance(r, HighPass))
    sizes = {"a": (3, 64, 9), "b": (64, 64, 3, 3), "c": (64, 64, 3, 3), "d": (300,), "e": (), "f": (128, 128, 3, 3)}
    draw = torch.Generator().manual_seed(0)
    tree = Tree.of({n: torch.randn(s, generator=draw, dtype=torch.float64) for n, s in sizes.items()}).expand(2)
    for given in (replace(rule, min_dims=dims) for dims in (0, 1, 2)):
        wanted = tree.map_by_length(partial(given.filter, at=None), vectors=given.min_dims < 2).buffer
        found = high_pass(tree.buffer, given.spans(tree.layout.groups))
        assert float((found - wanted).norm() / wanted.norm()) < 1e-8


def test_what_is_left_can_be_scaled_and_added_in_the_same_pass() -> None:
    draw = torch.Generator().manual_seed(0)
    buffer, plus = torch.randn(2, 2, 3 * 147456 + 300, generator=draw, dtype=torch.float64)
    scale = torch.tensor([[0.3], [-2.0]], dtype=torch.float64)
    spans = [0, 3, 147456, 737, 442368, 1, 300, 0]
    wanted = plus + scale * high_pass(buffer, spans)
    assert float((high_pass_onto(buffer, scale, plus, spans) - wanted).abs().max()) < 1e-12


@pytest.mark.slow  # the compiler takes ten seconds
@pytest.mark.filterwarnings("ignore")  # of the compiler's own
def test_compiled_code_gets_the_same() -> None:
    """An operator that compiled code calls does not see the flag that conj() sets."""
    buffer = torch.randn(2, 36864, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    spans = [0, 1, 36864, 1843]
    compiled = torch.compile(partial(high_pass, spans=spans), backend="aot_eager", fullgraph=True, dynamic=False)
    assert torch.equal(compiled(buffer), high_pass(buffer, spans))


# many coefficients share a number of the short transform, or none do; lengths and short lengths that are odd
LONG = [(110592, 552), (36864, 1843), (33075, 1653)]


def check_triton(device: str, n: int, bins: int, *, onto: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    buffer, plus = (torch.randn(2, 3 * n + 7, generator=draw).to(device) for _ in range(2))
    scale = torch.tensor([[0.3], [-2.0]], device=device)
    rows = buffer[:, 7:].view(2, 3, n)
    found = basis(n, bins, torch.float32, torch.device(device)) or pytest.fail("no basis")
    out = torch.full_like(buffer, torch.nan)
    remove = importlib.import_module("fedkeel.kernels.triton_band").remove_low_bands
    remove(buffer[:, 7:], 3, found, out[:, 7:], Onto(plus[:, 7:], scale) if onto else None)
    spectrum = torch.fft.rfft(rows.double())
    spectrum[..., :bins] = 0
    wanted = torch.fft.irfft(spectrum, n=n).flatten(1)
    if onto:
        wanted = plus[:, 7:] + scale * wanted
    assert float((out[:, 7:] - wanted).norm() / rows.norm()) < 1e-6


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("onto", [False, True])
@pytest.mark.parametrize(("n", "bins"), LONG)
def test_triton_removes_the_same_band(n: int, bins: int, onto: bool) -> None:
    check_triton("cuda", n, bins, onto=onto)


def check_tables(device: str, *, onto: bool) -> None:
    tables = importlib.import_module("fedkeel.kernels.band_tables")
    triton = importlib.import_module("fedkeel.kernels.triton_band_tables")
    # leaves of many tiles and of one, of odd length, with half of the spectrum removed, and left alone
    groups = [
        (2, 9216, 0.05),
        (3, 2304, 0.05),
        (1, 18432, 0.01),
        (2, 675, 0.1),
        (1, 64, 0.5),
        (5, 64, 0.05),
        (3, 50, 0),
    ]
    spans, end = list[int](), 0
    for leaves, length, ratio in groups:
        spans += [end, leaves, length, low_bins(length, ratio)]
        end += leaves * length
    draw = torch.Generator().manual_seed(0)
    buffer, plus = (torch.randn(2, end + 7, generator=draw).cumsum(-1).to(device) for _ in range(2))
    scale = torch.tensor([[0.3], [-2.0]], device=device)
    out = torch.full_like(buffer, torch.nan)
    plan = tables.plan(tuple(spans), torch.device(device))
    assert plan.served == set(range(0, len(spans), 4))
    triton.remove_short_bands(buffer[:, 7:], plan, out[:, 7:], Onto(plus[:, 7:], scale) if onto else None)
    wanted = high_pass(buffer[:, 7:].double(), spans)
    if onto:
        wanted = plus[:, 7:] + scale * wanted
    for at, leaves, length, _ in zip(*(spans[i::4] for i in range(4)), strict=True):
        own = slice(at, at + leaves * length)
        given = buffer[:, 7:][:, own].norm()
        # most of x is removed here, by four products in a row; on a GPU each is of numbers split in three, to 2⁻²¹
        assert float((out[:, 7:][:, own] - wanted[:, own]).norm() / given) < 4 * 2**-21, length


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("onto", [False, True])
def test_three_launches_remove_the_bands_of_all_short_leaves(onto: bool) -> None:
    check_tables("cuda", onto=onto)


def test_tables_serve_leaves_that_are_short_enough() -> None:
    tables = importlib.import_module("fedkeel.kernels.band_tables")
    assert tables.form_of(147456, 737) is None
    assert tables.form_of(99991, 500) is None  # a prime
    assert tables.form_of(64, 33) is None  # the last coefficient is alone
    assert tables.plan((0, 1, 99991, 500, 99991, 3, 10, 0), torch.device("cpu")) is None
    found = tables.plan((0, 1, 99991, 500, 99991, 3, 128, 6), torch.device("cpu"))
    assert found is not None
    assert found.served == {4}

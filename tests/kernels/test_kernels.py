"""Each Triton kernel against its twin in plain PyTorch, and the twins against PyTorch's own layers."""

from __future__ import annotations

import importlib
import importlib.util

import pytest
import torch
import torch.nn.functional as F
from for_each import for_each
from torch import Tensor

from fedkeel.kernels import plain
from fedkeel.kernels.geometry import Geometry
from fedkeel.kernels.keyed_dropout import least_bits, scale_up
from fedkeel.randomness import key_words, keyed_bits
from support.interpreter import run_interpreted

# height, width, in, out, kernel, stride, padding: ResNet stems, 1×1 shortcuts, images smaller than the kernel
SHAPES = [
    (8, 8, 16, 16, 3, 1, 1),
    (7, 5, 3, 8, 3, 1, 1),
    (9, 9, 3, 16, 7, 2, 3),
    (6, 6, 16, 32, 3, 2, 1),
    (4, 4, 16, 32, 1, 2, 0),
    (2, 2, 32, 16, 3, 2, 1),
    (1, 1, 64, 16, 3, 1, 1),
    (5, 5, 4, 6, 5, 1, 0),
    (10, 10, 4, 8, 9, 1, 4),
    (4, 5, 32, 24, 3, 1, 1),
    (6, 7, 64, 16, 3, 2, 1),
    (5, 5, 64, 16, 3, 1, 0),
    (6, 7, 128, 32, 3, 1, 1),
    (1, 9, 64, 24, 5, 1, 2),
]


def drawn(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def far(one: Tensor, other: Tensor) -> float:
    return float((one - other).norm() / other.norm().clamp(min=1e-30))


@for_each("shape", SHAPES)
def test_convolution_is_that_of_pytorch(shape: tuple[int, ...]) -> None:
    height, width, inner, outer, kernel, stride, padding = shape
    x = drawn(3, 2, height, width, inner, seed=0).requires_grad_()
    weight = drawn(3, outer, inner, kernel, kernel, seed=1).requires_grad_()
    expected = torch.stack(
        [F.conv2d(i.permute(0, 3, 1, 2), w, None, stride, padding) for i, w in zip(x, weight, strict=True)]
    )
    slope = drawn(*expected.shape, seed=2)
    dx, dw = torch.autograd.grad(expected, (x, weight), slope)
    where = Geometry.of(height, width, (kernel, kernel), stride, padding)
    packed = plain.pack(weight.detach(), where, torch.float64)
    dy = slope.permute(0, 1, 3, 4, 2).contiguous()
    into = torch.full_like(weight, torch.nan)
    plain.convolve_weight_gradient(x.detach(), dy, where, into)
    assert far(plain.convolve(x.detach(), packed, where).permute(0, 1, 4, 2, 3), expected.detach()) < 1e-12
    assert far(plain.convolve_input_gradient(dy, packed, where), dx) < 1e-12
    assert far(into, dw) < 1e-12


@pytest.mark.parametrize("shortcut", [True, False])
@pytest.mark.parametrize("relu", [True, False])
def test_norm_is_that_of_pytorch(shortcut: bool, relu: bool) -> None:
    x = drawn(3, 2, 4, 5, 8, seed=0).requires_grad_()
    gain, bias = drawn(3, 8, seed=1).requires_grad_(), drawn(3, 8, seed=2).requires_grad_()
    beside = drawn(3, 2, 4, 5, 8, seed=3).requires_grad_()
    expected = torch.stack([F.group_norm(x[c].permute(0, 3, 1, 2), 2, gain[c], bias[c], 1e-5) for c in range(3)])
    expected = expected.permute(0, 1, 3, 4, 2) + (beside if shortcut else 0)
    expected = F.relu(expected) if relu else expected
    slope = drawn(*expected.shape, seed=4)
    wanted = torch.autograd.grad(expected, (x, gain, bias) + ((beside,) if shortcut else ()), slope)
    given = [t.detach() for t in (x, gain, bias)]
    y, mean, inverse = plain.normalise(*given, 2, 1e-5, beside.detach() if shortcut else None, relu)
    into = (torch.full_like(gain, torch.nan), torch.full_like(bias, torch.nan))
    dx, dz = plain.normalise_gradient(slope, y, given[0], mean, inverse, *given[1:], relu, into, shortcut)
    assert far(y, expected.detach()) < 1e-12
    found = (dx, *into) if dz is None else (dx, *into, dz)
    for one, other in zip(found, wanted, strict=True):
        assert far(one, other) < 1e-12


@pytest.mark.parametrize("shortcut", [True, False])
@pytest.mark.parametrize("relu", [True, False])
def test_batch_norm_is_that_of_pytorch_on_the_images_that_count(shortcut: bool, relu: bool) -> None:
    x = drawn(3, 4, 4, 5, 8, seed=0).requires_grad_()
    gain, bias = drawn(3, 8, seed=1).requires_grad_(), drawn(3, 8, seed=2).requires_grad_()
    beside = drawn(3, 4, 4, 5, 8, seed=3).requires_grad_()
    sizes = (4, 2, 3)
    mask = torch.tensor([[i < size for i in range(4)] for size in sizes]).double()
    wanted, expected, variances = [], [], []
    for c, size in enumerate(sizes):  # each client alone, without what fills its batch up
        mine = [t[c, :size].detach().requires_grad_() for t in (x, beside)]
        weights = [t[c].detach().requires_grad_() for t in (gain, bias)]
        running = torch.zeros(8, dtype=torch.float64), torch.zeros(8, dtype=torch.float64)
        y = F.batch_norm(mine[0].permute(0, 3, 1, 2), *running, *weights, training=True, momentum=1.0)
        y = y.permute(0, 2, 3, 1) + (mine[1] if shortcut else 0)
        y = F.relu(y) if relu else y
        of = (mine[0], *weights, *(mine[1:] if shortcut else ()))
        wanted.append(torch.autograd.grad(y, of, drawn(3, 4, 4, 5, 8, seed=4)[c, :size]))
        expected.append(y.detach())
        variances.append(running[1])
    given = [t.detach() for t in (x, gain, bias)]
    means, followed = torch.zeros_like(given[1]), torch.zeros_like(given[1])
    memory = plain.RunningMoments((means, followed), (means, followed), momentum=1.0)
    made = plain.batch_moments(given[0], mask, *given[1:], 1e-5, memory)
    assert far(followed, torch.stack(variances)) < 1e-12
    assert far(means, made.mean) < 1e-12
    y = plain.rescale(given[0], made.scale, made.shift, beside.detach() if shortcut else None, relu)
    slope = drawn(3, 4, 4, 5, 8, seed=4) * mask[:, :, None, None, None]
    into = (torch.full_like(gain, torch.nan), torch.full_like(bias, torch.nan))
    dx, dz = plain.rescale_gradient(slope, y, given[0], made, given[1], mask, relu, into, shortcut)
    for c, size in enumerate(sizes):
        found = (dx[c, :size], into[0][c], into[1][c], *(() if dz is None else (dz[c, :size],)))
        assert far(y[c, :size], expected[c]) < 1e-12
        assert not dx[c, size:].any()
        for one, other in zip(found, wanted[c], strict=True):
            assert far(one, other) < 1e-12


def check_triton_batch(device: str, dtype: torch.dtype, tolerance: float) -> None:
    batch = importlib.import_module("fedkeel.kernels.triton_batch")
    cases = [
        (8, 5, True, True, True),
        (16, 4, False, False, False),
        (128, 3, True, False, True),
        (4, 40, True, True, False),
        (8, 33, True, False, True),
        (24, 5, True, True, True),
        (96, 4, True, False, False),
    ]
    for channels, pixels, relu, shortcut, masked in cases:
        x, dy, beside = (drawn(2, 3, pixels, pixels, channels, seed=s).to(device, dtype) for s in (1, 2, 3))
        x = x + 5  # far from zero, where sums of squares alone would lose what they should tell
        rows = drawn(2, 2 * channels, seed=4).to(device, torch.float32)
        gain, bias = of_both(rows, channels)
        mask = torch.tensor([[1, 1, 0], [1, 1, 1]]).to(device, torch.float32) if masked else None
        dy = dy if mask is None else dy * mask[:, :, None, None, None].to(dtype)
        olds, news = (drawn(2, 2 * channels, seed=s).to(device, torch.float32) for s in (5, 6))
        twins = news.double()
        memory, exact_memory = (
            plain.RunningMoments(of_both(old, channels), of_both(new, channels), 0.1)
            for old, new in ((olds, news), (olds.double(), twins))
        )
        made = batch.batch_moments(x, mask, gain, bias, 1e-5, memory)
        exact = plain.batch_moments(x.double(), mask, gain.double(), bias.double(), 1e-5, exact_memory)
        for one, other in zip((*made, news), (*exact, twins), strict=True):
            assert far(one.double(), other) < 1e-5, ("moments", channels)
        own = beside if shortcut else None
        y = batch.rescale(x, made.scale, made.shift, own, relu)
        exactly = plain.Moments(*(t.double() for t in made))
        wanted = plain.rescale(x.double(), exactly.scale, exactly.shift, None if own is None else own.double(), relu)
        assert far(y.double(), wanted) < tolerance, ("rescale", channels)
        apart = torch.full_like(rows, torch.nan)
        into, twin = of_both(apart, channels), of_both(torch.empty_like(rows).double(), channels)
        wider = drawn(2, 3, pixels, pixels, channels + 16, seed=7).to(device, dtype)[..., :channels]
        for elsewhere in (None, wider):
            found = batch.rescale_gradient(dy, y, x, made, gain, mask, relu, into, shortcut, elsewhere)
            exact_of = (dy.double(), y.double(), x.double(), exactly, gain.double())
            also = None if elsewhere is None else wider.double()
            reference = plain.rescale_gradient(*exact_of, mask, relu, twin, shortcut, also)
            for one, other in zip((*found, *into), (*reference, *twin), strict=True):
                assert (one is None) == (other is None)
                assert one is None or far(one.double(), other) < tolerance, ("batch gradient", channels)


def of_both(rows: torch.Tensor, channels: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Two halves of wide rows: clients lie apart, as in a flat buffer."""
    return rows[:, :channels], rows[:, channels:]


def check_norms(device: str, dtype: torch.dtype, tolerance: float) -> None:
    norm = importlib.import_module("fedkeel.kernels.triton_norm")
    cases = [
        (8, 2, 5, True, True),
        (64, 2, 8, True, True),
        (16, 2, 15, True, False),
        (16, 2, 4, False, False),
        (32, 2, 3, True, False),
        (24, 2, 5, True, True),
        (96, 2, 4, False, False),
        (16, 2, 33, True, False),
        (160, 2, 17, True, True),
        (192, 1, 17, True, False),
        (9, 3, 70, True, True),
        (96, 12, 3, True, False),
    ]
    for channels, groups, pixels, relu, shortcut in cases:
        x, dy, beside = (drawn(2, 3, pixels, pixels, channels, seed=s).to(device, dtype) for s in (1, 2, 3))
        x = x + 5  # far from zero, where sums of squares alone would lose what they should tell
        gain, bias = (drawn(2, channels, seed=s).to(device, torch.float32) for s in (4, 5))
        own = beside if shortcut else None
        y, mean, inverse = norm.normalise(x, gain, bias, groups, 1e-5, own, relu)
        reference = plain.normalise(
            x.double(), gain.double(), bias.double(), groups, 1e-5, None if own is None else own.double(), relu
        )
        assert far(y.double(), reference[0]) < tolerance, ("norm", channels)
        into = (torch.full_like(gain, torch.nan), torch.full_like(bias, torch.nan))
        twin = (torch.empty_like(gain), torch.empty_like(bias))
        wider = drawn(2, 3, pixels, pixels, channels + 16, seed=6).to(device, dtype)[..., 16:]  # a piece of it
        for elsewhere in (None, wider):
            dx, dz = norm.normalise_gradient(dy, y, x, mean, inverse, gain, bias, relu, into, shortcut, elsewhere)
            exact_of = (dy, y, x, *reference[1:], gain, bias)
            wanted = plain.normalise_gradient(
                *(t.double() for t in exact_of), relu, twin, shortcut, None if elsewhere is None else wider.double()
            )
            for one, other in zip((dx, dz, *into), (*wanted, *twin), strict=True):
                assert (one is None) == (other is None)
                assert one is None or far(one.double(), other.double()) < tolerance, ("norm gradient", channels)
    x = drawn(2, 1, 12, 12, 4, seed=9).to(device, dtype)
    x[0, 0, 1, 1] = torch.nan
    gain, bias = (torch.ones(2, 4, device=device) for _ in range(2))
    assert norm.normalise(x, gain, bias, 2, 1e-5, None, True)[0][0].isnan().all()


def check_triton(device: str, dtype: torch.dtype, tolerance: float, shapes: list[tuple[int, ...]] = SHAPES) -> None:
    """Run in a process of its own on the CPU: the interpreter is chosen when Triton is first imported."""
    convolution = importlib.import_module("fedkeel.kernels.triton_convolution")
    for number, shape in enumerate(shapes):
        height, width, inner, outer, kernel, stride, padding = shape
        where = Geometry.of(height, width, (kernel, kernel), stride, padding)
        x = drawn(2, 3, height, width, inner, seed=number).to(device, dtype)
        rows = drawn(2, outer * inner * kernel * kernel + 5, seed=number + 10).to(device, torch.float32)
        weight = rows[:, 5:].view(2, outer, inner, kernel, kernel)  # clients lie apart, as in a flat buffer
        packed = convolution.pack(weight, where, dtype)
        assert torch.equal(packed, plain.pack(weight, where, dtype)), shape
        y = convolution.convolve(x, packed, where)
        assert far(y.double(), plain.convolve(x.double(), packed.double(), where)) < tolerance, ("forward", shape)
        dy = drawn(*y.shape, seed=number + 20).to(device, dtype)
        for beside in (None, drawn(*x.shape, seed=number + 30).to(device, dtype)):
            dx = convolution.convolve_input_gradient(dy, packed, where, beside)
            also = None if beside is None else beside.double()
            wanted = plain.convolve_input_gradient(dy.double(), packed.double(), where, also)
            assert far(dx.double(), wanted) < tolerance, ("input", shape)
        into, twin = torch.full_like(rows, torch.nan)[:, 5:].view_as(weight), torch.empty_like(weight)
        convolution.convolve_weight_gradient(x, dy, where, into)
        plain.convolve_weight_gradient(x.double(), dy.double(), where, twin)
        assert far(into, twin) < tolerance, ("weight", shape)
    check_norms(device, dtype, tolerance)
    pool = importlib.import_module("fedkeel.kernels.triton_pool")
    for size, stride, padding in ((3, 2, 1), (2, 2, 0)):
        x = drawn(2, 3, 7, 6, 8, seed=7).to(device, dtype).relu().requires_grad_()  # many equal zeros
        wanted = F.max_pool2d(x.flatten(0, 1).movedim(-1, 1), size, stride, padding).movedim(1, -1).unflatten(0, (2, 3))
        y, taps = pool.pool(x.detach(), size, stride, padding)
        assert torch.equal(y, wanted), ("pool", size)
        dy = drawn(*y.shape, seed=8).to(device, dtype)
        (dx,) = torch.autograd.grad(wanted, x, dy)
        found = pool.pool_gradient(dy, taps, 7, 6, size, stride, padding)
        assert far(found.double(), dx.double()) < tolerance, ("pool gradient", size)
    for size in (2, 3):
        x = drawn(2, 3, 7, 6, 8, seed=7).to(device, dtype).requires_grad_()  # a row or more lies in no window
        wanted = F.avg_pool2d(x.flatten(0, 1).movedim(-1, 1), size).movedim(1, -1).unflatten(0, (2, 3))
        y = pool.average(x.detach(), size)
        assert far(y.double(), wanted.detach().double()) < tolerance, ("average", size)
        dy = drawn(*y.shape, seed=8).to(device, dtype)
        (dx,) = torch.autograd.grad(wanted, x, dy)
        assert far(pool.average_gradient(dy, 7, 6, size).double(), dx.double()) < tolerance, ("average gradient", size)
    x = drawn(2, 1, 12, 12, 4, seed=9).to(device, dtype)
    y, taps = pool.pool(x, 12, 12, 0)  # more pixels than a byte can number
    assert torch.equal(y, x.amax((2, 3), keepdim=True))
    assert torch.equal(pool.pool_gradient(y, taps, 12, 12, 12, 12, 0), torch.where(x == y, x, 0))
    x[0, 0, 1, 1] = torch.nan
    assert pool.pool(x, 2, 2, 0)[0][0, 0, 0, 0].isnan().all()  # what is not a number is not lost


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.skipif(torch.cuda.is_available(), reason="checked on the GPU itself")
def test_triton_kernels_equal_their_twins_in_the_interpreter() -> None:
    code = (
        "import torch, test_band, test_newton_schulz, test_kernels as t; test_band.check_tables('cpu', onto=True); "
        "[test_band.check_triton('cpu', *sizes, onto=True) for sizes in test_band.LONG[1:]]; "
        "test_newton_schulz.check_polynomial('cpu', torch.float32, 1e-6); "
        "t.check_triton_batch('cpu', torch.float32, 1e-5); "
        "t.check_norms('cpu', torch.bfloat16, 1e-2); "
        "t.check_triton('cpu', torch.float32, 1e-5, t.SHAPES[1::2])"
    )
    run_interpreted(code)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
def test_triton_kernels_equal_their_twins_on_the_gpu(dtype: torch.dtype, tolerance: float) -> None:
    check_triton("cuda", dtype, tolerance)
    check_triton_batch("cuda", dtype, tolerance)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_dropout_on_the_gpu_drops_what_its_twin_drops(share: float) -> None:
    triton_dropout = importlib.import_module("fedkeel.kernels.triton_dropout")
    keys = torch.tensor([3, -5, 2**62 + 7])
    x = drawn(3, 7, 1001, seed=1).float() + 5
    bits = torch.stack([keyed_bits(key, 4, 7007) for key in keys]).view(3, 7, 1001)
    words = (word.cuda() for word in key_words(keys, 4))
    found = triton_dropout.drop(x.cuda(), *words, least_bits(share), scale_up(share)).cpu()
    torch.testing.assert_close(found, torch.where(bits >= least_bits(share), x * scale_up(share), 0.0))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_batch_norms_take_more_rows_than_the_second_axis_of_a_grid_has_programs() -> None:
    batch = importlib.import_module("fedkeel.kernels.triton_batch")
    x = torch.ones((1, 8208, 32, 32, 64), dtype=torch.bfloat16, device="cuda")
    assert batch.launch_shape(x)[0] // batch.launch_shape(x)[3] > 65_535
    two = torch.full((1, 64), 2.0, device="cuda")
    assert (batch.rescale(x, two, two, None, False) == 4).all()
    made = batch.batch_moments(x, None, two, two, 1e-5)
    assert (made.mean == 1).all()
    assert (made.variance == 0).all()

"""The thin way to remove a low band against the plain transform."""

from __future__ import annotations

import pytest
import torch

from fedkeel.kernels.band import basis, without_low_band
from fedkeel.rules.filters import low_bins


@pytest.mark.parametrize(("n", "ratio"), [(36864, 0.01), (147456, 0.01), (32768, 0.005), (36864, 0.013)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-8), (torch.float32, 1e-6)])
def test_equals_the_plain_transform(n: int, ratio: float, dtype: torch.dtype, tolerance: float) -> None:
    bins = low_bins(n, ratio)
    draw = torch.Generator().manual_seed(0)
    # a strong low band, so that what is removed matters
    rows = torch.randn(2, 3 * n + 7, generator=draw, dtype=torch.float64).cumsum(-1)[:, 7:].view(2, 3, n)
    spectrum = torch.fft.rfft(rows)
    spectrum[..., :bins] = 0
    wanted = torch.fft.irfft(spectrum, n=n)
    kept = without_low_band(rows.to(dtype), bins)
    assert kept is not None
    assert float((kept - wanted).norm() / rows.norm()) < tolerance


def test_is_left_alone_where_it_would_not_pay() -> None:
    assert basis(2304, 11, torch.float32, torch.device("cpu")) is None
    assert basis(36864, 921, torch.float32, torch.device("cpu")) is None
    assert basis(65537, 300, torch.float32, torch.device("cpu")) is None

"""Crops and mirror images against the slow, obvious way, and what a draw may depend on."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from for_each import for_each
from torch import Tensor

from fedkeel.data.augment import Augment
from fedkeel.data.batches import sample_keys
from fedkeel.data.prepare import Preparation, find_augmentation
from fedkeel.errors import ExperimentError
from fedkeel.randomness import bits


def one_at_a_time(images: Tensor, draws: Tensor, crop: int) -> Tensor:
    out = []
    for image, (down, right, mirrored) in zip(images, draws.tolist(), strict=True):
        channels, height, width = image.shape
        pixels = image.numpy()[:, :, ::-1] if mirrored else image.numpy()
        padded = np.zeros((channels, height + 2 * crop, width + 2 * crop), dtype=pixels.dtype)
        padded[:, crop : crop + height, crop : crop + width] = pixels
        out.append(torch.from_numpy(padded[:, down : down + height, right : right + width].copy()))
    return torch.stack(out)


def drawn(augment: Augment, count: int, key: int = 3) -> Tensor:
    draws = augment.draw(bits(key, count))
    assert draws is not None
    return torch.from_numpy(draws)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(40, 3, 32, 32), (25, 1, 5, 9), (7, 2, 9, 4), (1, 1, 1, 1)])
@pytest.mark.parametrize("augment", [Augment(4, True, 0.5), Augment(2), Augment(0, True), Augment(6, True)], ids=str)
def test_a_batch_is_its_images_one_at_a_time(augment: Augment, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    images = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=dtype)
    before, draws = images.clone(), drawn(augment, shape[0])
    assert torch.equal(augment.apply(images, draws), one_at_a_time(images, draws, augment.crop))
    assert torch.equal(images, before)


def test_a_client_axis_in_front_changes_nothing() -> None:
    augment = Augment(3, True)
    images = torch.randn(4, 6, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    draws = drawn(augment, 24).view(4, 6, 3)
    together = augment.apply(images, draws)
    assert torch.equal(together, torch.stack([augment.apply(x, d) for x, d in zip(images, draws, strict=True)]))


def test_images_in_another_memory_order_give_the_same() -> None:
    augment = Augment(3, True)
    images = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    draws = drawn(augment, 6)
    last = images.to(memory_format=torch.channels_last)
    assert torch.equal(augment.apply(last, draws), augment.apply(images, draws))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_gives_the_same() -> None:
    augment = Augment(4, True, 0.5)
    images = torch.randn(10, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    draws = drawn(augment, 10)
    assert torch.equal(augment.apply(images.cuda(), draws.cuda()).cpu(), augment.apply(images, draws))


def test_an_images_draw_depends_on_its_key_alone() -> None:
    augment, keys = Augment(4, True, 0.5), bits(7, 30)
    together = augment.draw(keys)
    assert together is not None
    order = np.random.default_rng(0).permutation(30)
    assert np.array_equal(augment.draw(keys[order]), together[order])
    assert np.array_equal(augment.draw(keys.reshape(5, 6)), together.reshape(5, 6, 3))
    for single in range(30):
        assert np.array_equal(augment.draw(keys[single : single + 1]), together[single : single + 1])


def test_the_neutral_setting_draws_nothing_and_returns_the_images_themselves() -> None:
    images = torch.ones(2, 1, 3, 3)
    assert Augment().draw(bits(0, 2)) is None
    assert Augment().apply(images, None) is images


def test_a_probability_of_0_keeps_every_image() -> None:
    augment = Augment(4, probability=0.0)
    images = torch.randn(20, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(augment.apply(images, drawn(augment, 20)), images)


def test_places_are_uniform_and_half_of_the_images_are_mirrored() -> None:
    count = 40_000
    down, right, mirrored = drawn(Augment(4, True), count).T.numpy()
    cells = np.bincount(down * 9 + right, minlength=81)
    assert (np.abs(cells - count / 81) < 5 * np.sqrt(count / 81)).all()
    assert set(mirrored) == {0, 1}
    assert abs(mirrored.mean() - 0.5) < 5 * 0.5 / np.sqrt(count)


def test_the_probability_is_that_of_a_crop() -> None:
    count = 40_000
    down, right, _ = drawn(Augment(4, True, 0.3), count).T.numpy()
    moved = ((down != 4) | (right != 4)).mean()
    assert abs(moved - 0.3 * 80 / 81) < 5 * np.sqrt(0.21 / count)


def test_an_image_is_cropped_and_mirrored_independently() -> None:
    count = 40_000
    down, right, mirrored = drawn(Augment(4, True, 0.5), count).T.numpy()
    for moved in (down != 4, right != 4, down > 4, right > 4):
        assert abs(np.corrcoef(moved, mirrored)[0, 1]) < 5 / np.sqrt(count)
    where = (down != 4) & (right != 4)
    assert abs(np.corrcoef(down[where], right[where])[0, 1]) < 5 / np.sqrt(where.sum())


@for_each("distance", [1, 2, 3, 4, 5])
def test_neighbouring_samples_and_steps_are_independent(distance: int) -> None:
    count, augment = 20_000, Augment(4, True)
    rows = augment.draw(sample_keys(11, 0, np.arange(count + distance)))
    steps = [augment.draw(sample_keys(11, step, np.arange(100))) for step in range(200 + distance)]
    assert rows is not None
    pairs = [(rows[:count], rows[distance:]), (np.concatenate(steps[:200]), np.concatenate(steps[distance:]))]  # type: ignore[arg-type]
    for one, other in pairs:
        correlation = np.corrcoef(one.T, other.T)[:3, 3:]
        assert np.abs(correlation).max() < 5 / np.sqrt(count)


@for_each("settings", [{"crop": -1}, {"crop": 1.5}, {"probability": 1.1}, {"probability": -0.1}])
def test_impossible_settings_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ExperimentError, match=str(next(iter(settings.values())))):
        Augment(**settings)  # type: ignore[arg-type]


def test_rows_stay_rows_and_columns_columns() -> None:
    """(x / 255 − mean) / std of each channel, which comes to the front."""
    raw = torch.zeros(1, 4, 6, 3, dtype=torch.uint8)
    raw[0, 2, 5, 1] = 255
    expected = torch.tensor([-1.0, -1.0, -1.0]).view(3, 1, 1).repeat(1, 4, 6)
    expected[1, 2, 5] = 3.0
    [prepared] = Preparation((0.5, 0.25, 0.2), (0.5, 0.25, 0.2))((raw,), None)
    torch.testing.assert_close(prepared[0], expected)


def test_padding_grows_with_the_image() -> None:
    """4 pixels of 28 and 32, 8 of 64; none around what is no image."""
    found = [find_augmentation("crop-flip-half", shape) for shape in ((1, 28, 28), (3, 32, 32), (3, 64, 64), (80,))]
    assert found == [Augment(4, True, 0.5), Augment(4, True, 0.5), Augment(8, True, 0.5), None]

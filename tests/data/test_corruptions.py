"""Corruptions against a slow reference: one image at a time, with scipy, colorsys and Pillow, on equal draws."""

from __future__ import annotations

import colorsys
import io

import numpy as np
import pytest
import scipy.ndimage
import scipy.stats
import torch
from for_each import for_each

from fedkeel.data.corruptions import weather
from fedkeel.data.corruptions.noise import clouds, gaussian_noise, impulse_noise, shot_noise
from fedkeel.data.corruptions.registry import CORRUPTIONS, TWELVE, corrupt, corrupt_array
from fedkeel.data.corruptions.weather import frost, snow
from fedkeel.data.datasets.cifar_c import CORRUPTIONS as PUBLISHED
from fedkeel.errors import DataError
from fedkeel.randomness import bits, uniforms

Image = pytest.importorskip("PIL.Image", reason="pillow is not installed: JPEG and the box filter")
KEYS = bits(1, 4)


@pytest.fixture(autouse=True)
def photographs(monkeypatch):
    """Two pictures in place of those of frost, which a package brings: one large enough, one not."""
    y, x = np.mgrid[:90, :70] / 90
    large = torch.from_numpy(np.stack([0.5 + 0.5 * np.sin(20 * x * (c + 1) + 9 * y) for c in range(3)]))
    monkeypatch.setattr(weather, "read_photographs", lambda: (large, large[:, :20, :30]))
    return large


SEVERITIES = range(1, 6)


def pictures(count: int = 4, size: int = 32, channels: int = 3) -> np.ndarray:
    """Smooth shapes with some texture, a black patch and a white one."""
    y, x = np.mgrid[:size, :size] / size
    waves = [127 + 90 * np.sin(5 * x * (i + 1) + 3 * y * (c + 1) + c) for i in range(count) for c in range(channels)]
    images = np.stack(waves).reshape(count, channels, size, size).transpose(0, 2, 3, 1)
    images += np.random.default_rng(0).normal(0, 12, images.shape)
    images = images.clip(0, 255).astype(np.uint8)
    images[:, 2:6, 2:6], images[:, 8:12, 2:6] = 0, 255
    return images if channels > 1 else images[..., 0]


def constants(name: str, severity: int) -> tuple:
    return CORRUPTIONS[name].constants[severity - 1]


def assert_matches(name: str, severity: int, reference, tolerance: int = 1, share: float = 0.9) -> None:
    """Levels are cut off, not rounded, so the last bit of a sum may move a value by one level, but not often."""
    images = pictures()
    ours = corrupt_array(images, name, severity, KEYS).astype(int)
    theirs = np.stack([np.uint8(np.clip(reference(image, i), 0, 1) * 255) for i, image in enumerate(images / 255)])
    difference = np.abs(ours - theirs.astype(int))
    assert difference.max() <= tolerance
    assert (difference == 0).mean() > share
    assert np.abs(ours - images.astype(int)).mean() > 0.5  # the corruption did something


def smooth(image: np.ndarray, sigma: float) -> np.ndarray:
    return scipy.ndimage.gaussian_filter(image, (sigma, sigma, 0), mode="nearest", truncate=4)


@for_each("severity", SEVERITIES)
def test_defocus_blur(severity):
    radius, softness = constants("defocus_blur", severity)
    line = np.arange(-8, 9)
    disk = (line[:, None] ** 2 + line**2 <= radius**2).astype(float)
    disk = scipy.ndimage.gaussian_filter(disk / disk.sum(), softness, radius=1)
    assert_matches(
        "defocus_blur",
        severity,
        lambda image, i: scipy.ndimage.correlate(image, disk[..., None], mode="mirror"),
    )


@for_each("severity", SEVERITIES)
def test_zoom_blur(severity):
    (largest,) = constants("zoom_blur", severity)
    factors = np.arange(1, largest, 0.01)

    def magnified(image, factor):
        cut = int(np.ceil(32 / factor))
        top = (32 - cut) // 2
        larger = scipy.ndimage.zoom(image[top : top + cut, top : top + cut], (factor, factor, 1), order=1)
        trim = (len(larger) - 32) // 2
        return larger[trim : trim + 32, trim : trim + 32]

    assert_matches(
        "zoom_blur", severity, lambda image, i: np.mean([image, *(magnified(image, f) for f in factors)], axis=0)
    )


@for_each("severity", SEVERITIES)
def test_glass_blur_copies_neighbours_in_the_published_order(severity):
    sigma, times = constants("glass_blur", severity)

    def reference(image, i):
        lots = uniforms(KEYS[i], times * 2 * 32 * 32).reshape(times, 2, 32, 32)
        pixels = np.uint8(smooth(image, sigma) * 255)
        for right, down in np.where(lots < 0.5, -1, 0):
            for h in range(31, 1, -1):
                for w in range(31, 1, -1):
                    there = h + down[h, w], w + right[h, w]
                    # both sides are views: what looks like a swap copies one pixel over the other
                    pixels[h, w], pixels[there] = pixels[there], pixels[h, w]
        return smooth(pixels / 255, sigma)

    assert_matches("glass_blur", severity, reference, tolerance=2)


@for_each("severity", SEVERITIES)
def test_brightness_lifts_the_value_of_a_colour(severity):
    (amount,) = constants("brightness", severity)

    def lifted(pixel):
        hue, saturation, value = colorsys.rgb_to_hsv(*pixel)
        return colorsys.hsv_to_rgb(hue, saturation, min(value + amount, 1))

    assert_matches("brightness", severity, lambda image, i: np.apply_along_axis(lifted, -1, image))


@for_each("severity", SEVERITIES)
def test_contrast(severity):
    (factor,) = constants("contrast", severity)
    assert_matches(
        "contrast",
        severity,
        lambda image, i: factor * image + (1 - factor) * image.mean((0, 1)),
    )


@for_each("severity", SEVERITIES)
def test_pixelate_is_pillows_box_filter_bit_for_bit(severity):
    (factor,) = constants("pixelate", severity)
    for size in (28, 32, 64):
        images = pictures(size=size)
        small = int(size * factor)
        theirs = [
            Image.fromarray(image)
            .resize((small, small), Image.Resampling.BOX)
            .resize((size, size), Image.Resampling.BOX)
            for image in images
        ]
        np.testing.assert_array_equal(corrupt_array(images, "pixelate", severity, KEYS), np.stack(theirs))


@for_each("severity", SEVERITIES)
def test_jpeg_is_pillows(severity):
    def through_a_file(image):
        file = io.BytesIO()
        Image.fromarray(image).save(file, "JPEG", quality=constants("jpeg_compression", severity)[0])
        return np.asarray(Image.open(file))

    images = pictures()
    ours = corrupt_array(images, "jpeg_compression", severity, KEYS)
    np.testing.assert_array_equal(ours, np.stack([through_a_file(image) for image in images]))


def elastic_reference(severity):
    strength, sigma, corner = (32 * constant for constant in constants("elastic_transform", severity))

    def reference(image, i):
        lots = 2 * uniforms(KEYS[i], 6 + 2 * 32 * 32) - 1
        corners = np.array([[26.0, 26], [26, 6], [6, 6]])
        moved = corners + corner * lots[:6].reshape(3, 2)
        # dst(p) = src(M⁻¹ p) with M moving `corners` to `moved`
        inverse = np.linalg.solve(np.column_stack([moved, np.ones(3)]), corners)
        y, x = np.mgrid[:32, :32]
        source = np.stack([x, y, np.ones_like(x)], -1) @ inverse
        planes = [
            scipy.ndimage.map_coordinates(image[..., c], source[..., ::-1].transpose(2, 0, 1), order=1, mode="mirror")
            for c in range(3)
        ]
        right, down = (
            strength * (scipy.ndimage.gaussian_filter(field, sigma, mode="reflect", truncate=3) if sigma else field)
            for field in lots[6:].reshape(2, 32, 32)
        )
        return np.stack(
            [scipy.ndimage.map_coordinates(p, [y + down, x + right], order=1, mode="reflect") for p in planes], -1
        )

    return reference


@for_each("severity", SEVERITIES)
def test_elastic_transform(severity):
    assert_matches("elastic_transform", severity, elastic_reference(severity))


def plain_diamond_square(lots: np.ndarray, size: int, decay: float) -> np.ndarray:
    """Point by point, with indices that wrap around."""
    heights, lot = np.zeros((size, size)), iter(lots)
    step, wobble = size, 100.0
    diagonal, straight = ((-1, -1), (-1, 1), (1, -1), (1, 1)), ((-1, 0), (1, 0), (0, -1), (0, 1))
    while step >= 2:
        half = step // 2
        whole, halves = range(0, size, step), range(half, size, step)
        for ys, xs, neighbours in ((halves, halves, diagonal), (whole, halves, straight), (halves, whole, straight)):
            for y in ys:
                for x in xs:
                    around = [heights[(y + half * a) % size, (x + half * b) % size] for a, b in neighbours]
                    heights[y, x] = np.mean(around) + wobble**2 * (2 * next(lot) - 1)
        step, wobble = half, wobble / decay
    return (heights - heights.min()) / (heights.max() - heights.min())


def test_clouds_are_the_diamond_square_algorithm():
    lots = uniforms(KEYS, 16 * 16)
    ours = clouds(torch.from_numpy(lots), 16, 2.5)
    for i in range(len(KEYS)):
        np.testing.assert_allclose(ours[i], plain_diamond_square(lots[i], 16, 2.5), rtol=0, atol=1e-12)


@for_each("severity", SEVERITIES)
def test_fog(severity):
    thickness, decay = constants("fog", severity)

    def reference(image, i):
        cloud = plain_diamond_square(uniforms(KEYS[i], 32 * 32), 32, decay)[..., None]
        return (image + thickness * cloud) * image.max() / (image.max() + thickness)

    assert_matches("fog", severity, reference)


# noise, by its distribution

MANY = bits(2, 40)


def test_gaussian_noise_is_normal_and_independent():
    grey = torch.full((40, 3, 32, 32), 0.5, dtype=torch.float64)
    noise = ((gaussian_noise(grey, MANY, 0.08) - grey) / 0.08).numpy()
    assert scipy.stats.kstest(noise.ravel(), "norm").pvalue > 0.01
    assert abs(np.corrcoef(noise[:, 0].ravel(), noise[:, 1].ravel())[0, 1]) < 0.02
    assert abs(np.corrcoef(noise[:20].ravel(), noise[20:].ravel())[0, 1]) < 0.02


@pytest.mark.parametrize("photons", [500, 100, 50])
def test_shot_noise_is_poisson(photons):
    """For each value the count is the quantile of the Poisson law at the value's own random number."""
    levels = torch.arange(256, dtype=torch.float64).repeat(12)[: 3 * 32 * 32].view(1, 3, 32, 32) / 255
    counts = (shot_noise(levels, MANY[:1], photons) * photons).numpy()
    expected = scipy.stats.poisson.ppf(uniforms(MANY[0], 3 * 32 * 32).reshape(1, 3, 32, 32), levels.numpy() * photons)
    np.testing.assert_allclose(counts, expected.clip(min=0), rtol=0, atol=1e-9)


def test_impulse_noise_hits_its_share_with_salt_and_pepper():
    grey = torch.full((40, 3, 32, 32), 0.5, dtype=torch.float64)
    noisy = impulse_noise(grey, MANY, 0.07)
    values, counts = noisy.unique(return_counts=True)
    assert values.tolist() == [0.0, 0.5, 1.0]
    expected = np.array([0.035, 0.93, 0.035]) * grey.numel()
    assert scipy.stats.chisquare(counts.numpy(), expected).pvalue > 0.01


@for_each("severity", SEVERITIES)
def test_motion_blur(severity):
    radius, sigma = constants("motion_blur", severity)
    angles = np.radians(-45 + 90 * uniforms(KEYS, 1)[:, 0])

    def blurred(image, number):
        weights = np.exp(-0.5 * (np.arange(2 * radius + 1) / sigma) ** 2)
        padded = np.pad(image, ((40, 40), (40, 40), (0, 0)), mode="edge")
        total = np.zeros_like(image)
        for i, weight in enumerate(weights / weights.sum()):
            down, right = (int(np.ceil(i * part(angles[number]) - 0.5)) for part in (np.sin, np.cos))
            total += weight * padded[40 + down : 72 + down, 40 + right : 72 + right]
        return total

    assert_matches("motion_blur", severity, blurred)


def test_snow_falls_on_a_paler_image_and_is_symmetric():
    black = torch.zeros(4, 3, 32, 32, dtype=torch.float64)
    for severity in SEVERITIES:
        *_, kept = constants("snow", severity)
        over = snow(black, KEYS, *constants("snow", severity)) - (1 - kept) * 0.5  # what is pale of black is 0.5
        torch.testing.assert_close(over, over.flip(-2, -1))
        assert over.min() >= -1e-12
        assert (over[:, 0] == over[:, 1]).all()  # flakes are white
    assert 0 < float((over > 0).double().mean()) <= 1


def test_snow_falls_downwards():
    flakes = snow(torch.zeros(40, 1, 32, 32, dtype=torch.float64), MANY, *constants("snow", 2))
    assert 1.5 * flakes.diff(dim=-2).abs().mean() < flakes.diff(dim=-1).abs().mean()


def test_frost_is_a_cut_of_a_photograph(photographs):
    flat = torch.full((40, 3, 32, 32), 0.25, dtype=torch.float64)
    result = (frost(flat, MANY, 0.75, 0.45) - 0.75 * 0.25) / 0.45
    windows = photographs.unfold(1, 32, 1).unfold(2, 32, 1).permute(1, 2, 0, 3, 4).flatten(0, 1)
    begun = [windows[(windows[:, :, 0, 0] - one[:, 0, 0]).abs().amax(1) < 1e-9] for one in result]
    found = [bool(((alike - one).abs() < 1e-9).all((1, 2, 3)).any()) for alike, one in zip(begun, result, strict=True)]
    assert 5 < sum(found) < 35  # about half of the images have the large photograph, the others the enlarged one


def test_without_its_photographs_frost_says_what_to_install(monkeypatch):
    monkeypatch.undo()
    weather.read_photographs.cache_clear()
    monkeypatch.setattr(weather.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match="frost needs photographs, which the package imagecorruptions brings") as caught:
        corrupt_array(pictures(), "frost", 3, KEYS)
    assert "fedkeel[frost]" in caught.value.hint


# laws

ALL = list(CORRUPTIONS)


@for_each("name", ALL)
def test_an_image_is_corrupted_alike_in_any_batch(name):
    images = np.uint8(pictures() * np.array([0.5, 1, 0.7, 0.3])[:, None, None, None])  # the brightest is left out
    together = corrupt_array(images, name, 3, KEYS)
    order = np.array([2, 0, 3])
    np.testing.assert_array_equal(corrupt_array(images[order], name, 3, KEYS[order]), together[order])


@for_each("name", ALL)
def test_stronger_is_further_from_the_image(name):
    images = pictures()
    weak, strong = (
        np.abs(corrupt_array(images, name, severity, KEYS).astype(int) - images).mean() for severity in (1, 5)
    )
    if name == "elastic_transform":  # its severities trade the affine map against the displacement
        assert min(weak, strong) > 1
    else:
        assert strong > weak > 0


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("size", [8, 28, 64])
def test_other_sizes_and_grey_images_keep_their_shape(name, size):
    for images in (pictures(size=size), pictures(size=size, channels=1)):
        result = corrupt_array(images, name, 3, KEYS)
        assert result.shape == images.shape
        assert result.dtype == np.uint8
        assert (result != images).any()


@for_each("name", ["gaussian_noise", "shot_noise", "impulse_noise", "glass_blur", "fog", "elastic_transform"])
def test_keys_decide_the_draws(name):
    images = np.repeat(pictures(1), 2, axis=0)
    same = corrupt_array(images, name, 3, np.repeat(KEYS[:1], 2))
    other = corrupt_array(images, name, 3, KEYS[:2])
    np.testing.assert_array_equal(same[0], same[1])
    assert (other[0] != other[1]).any()


def test_all_fifteen_of_the_benchmark_are_computed_and_twelve_are_dealt_as_ever():
    assert set(CORRUPTIONS) == set(PUBLISHED)
    assert set(PUBLISHED) - set(TWELVE) == {"frost", "snow", "motion_blur"}
    assert all(len(corruption.constants) == 5 for corruption in CORRUPTIONS.values())


SCRIPT = {
    "gaussian_noise": (0.04, 0.06, 0.08, 0.09, 0.10),
    "shot_noise": (500, 250, 100, 75, 50),
    "impulse_noise": (0.01, 0.02, 0.03, 0.05, 0.07),
    "defocus_blur": ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    "glass_blur": ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2)),  # the script moves by one pixel in all
    "zoom_blur": (1.06, 1.11, 1.16, 1.21, 1.26),
    "fog": ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
    "brightness": (0.05, 0.1, 0.15, 0.2, 0.3),
    "contrast": (0.75, 0.5, 0.4, 0.3, 0.15),
    "elastic_transform": ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
    "pixelate": (0.95, 0.9, 0.85, 0.75, 0.65),
    "jpeg_compression": (80, 65, 58, 50, 40),
    "motion_blur": ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
    "snow": (
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ),
    "frost": ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
}
"""The constants of make_cifar_c.py, by severity."""


@for_each("name", ALL)
def test_constants_are_those_of_the_published_script(name):
    assert CORRUPTIONS[name].constants == tuple(one if isinstance(one, tuple) else (one,) for one in SCRIPT[name])


def test_what_cannot_be_computed_is_said():
    with pytest.raises(DataError, match="this corruption is not computed: rain"):
        corrupt_array(pictures(), "rain", 3, KEYS)
    for severity in (0, 6):
        with pytest.raises(DataError, match=f"severity must be a whole number from 1 to 5: {severity}"):
            corrupt(torch.from_numpy(pictures()), "fog", severity, KEYS)


def test_opencv_deforms_alike():
    """OpenCV rounds places to 1/32 pixel, so values differ by a few levels; the pictures are the same."""
    cv2 = pytest.importorskip("cv2", reason="opencv is not installed: an independent affine map")
    strength, sigma, corner = (32 * constant for constant in constants("elastic_transform", 3))
    images = pictures()
    ours = corrupt_array(images, "elastic_transform", 3, KEYS)
    corners = np.float32([[26, 26], [26, 6], [6, 6]])
    y, x = np.mgrid[:32, :32]
    for i, image in enumerate(images):
        lots = 2 * uniforms(KEYS[i], 6 + 2 * 32 * 32) - 1
        turned = cv2.getAffineTransform(corners, corners + np.float32(corner * lots[:6].reshape(3, 2)))
        moved = cv2.warpAffine(np.float32(image), turned, (32, 32), borderMode=cv2.BORDER_REFLECT_101)
        right, down = (
            strength * scipy.ndimage.gaussian_filter(field, sigma, mode="reflect", truncate=3)
            for field in lots[6:].reshape(2, 32, 32)
        )
        places = [y + down, x + right]
        theirs = [scipy.ndimage.map_coordinates(moved[..., c], places, order=1, mode="reflect") for c in range(3)]
        difference = np.abs(np.stack(theirs, -1) - ours[i])
        assert difference.mean() < 1
        assert difference.max() < 8

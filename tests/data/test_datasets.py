"""Facts of the data sets: cards, the embedded digits, and the real arrays where they are at hand."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from for_each import for_each

from fedkeel.data import DATASETS, load
from fedkeel.errors import DataError
from fedkeel.models import MODELS


@for_each("name", DATASETS)
def test_cards_are_complete(name):
    card = DATASETS[name]
    assert card.name == name
    assert card.licence
    assert card.citation.startswith("@")
    assert {"model", "partition", "rounds", "participation", "epochs", "batch_size", "lr"} <= card.preset.keys()
    assert card.preset["model"] in MODELS
    assert len(card.mean) == len(card.std) == (card.shape[0] if len(card.shape) == 3 else 0)
    assert all(checksum.split(":")[0] in ("md5", "sha256") for checksum in card.checksums.values())
    assert pickle.loads(pickle.dumps(card)) == card


def test_an_unknown_name_gets_the_nearest_one():
    with pytest.raises(DataError, match="unknown data set: cifar-10") as raised:
        load("cifar-10")
    assert raised.value.hint == "did you mean 'cifar10'?"


def test_a_set_without_a_home_names_the_import(tmp_path):
    with pytest.raises(DataError, match="has no home it can be fetched from") as raised:
        load("tiny-imagenet-subset", tmp_path)
    assert raised.value.hint.startswith("fedkeel datasets tiny-imagenet-subset --from PATH reads tiny-imagenet-200.zip")


def test_digits_need_no_folder(tmp_path):
    digits = load("digits", tmp_path / "nothing")
    card = DATASETS["digits"]
    assert digits.train_images.shape == (card.train, 8, 8)
    assert digits.test_images.shape == (card.test, 8, 8)
    assert digits.train_images.dtype == np.uint8
    assert not (tmp_path / "nothing").exists()


def test_digits_are_all_of_scikit_learns_images_once():
    sklearn = pytest.importorskip("sklearn.datasets").load_digits()
    digits = load("digits")
    ours = np.concatenate([digits.train_images, digits.test_images]).reshape(-1, 64)
    levels = np.rint(ours / 255 * 16)
    with_labels = np.column_stack([levels, np.concatenate([digits.train_labels, digits.test_labels])])
    theirs = np.column_stack([sklearn.data, sklearn.target])
    np.testing.assert_array_equal(
        np.sort(with_labels.view([("", float)] * 65), 0), np.sort(theirs.view([("", float)] * 65), 0)
    )


def test_the_split_of_digits_is_fixed_and_a_fifth_of_each_class():
    digits, again = load("digits"), load("digits")
    np.testing.assert_array_equal(digits.test_images, again.test_images)
    train, test = np.bincount(digits.train_labels), np.bincount(digits.test_labels)
    np.testing.assert_array_equal(test, (train + test) // 5)


def statistics(dataset):
    """Mean and deviation per channel of pixels in [0, 1], from their histogram."""
    values = np.arange(256) / 255
    mean, std = [], []
    for channel in np.moveaxis(dataset.train_images[...].reshape(-1, dataset.shape[0]), 1, 0):
        share = np.bincount(channel, minlength=256) / channel.size
        mean.append(share @ values)
        std.append(np.sqrt(share @ values**2 - mean[-1] ** 2))
    return mean, std


def test_digits_are_normalised_by_their_own_statistics():
    digits = load("digits")
    mean, std = statistics(digits)
    np.testing.assert_allclose(mean, DATASETS["digits"].mean, atol=5e-5)
    np.testing.assert_allclose(std, DATASETS["digits"].std, atol=5e-5)


@pytest.mark.parametrize(("name", "digits"), [("cifar10", 3), ("fashion-mnist", 4)])
def test_real_arrays_match_their_card(real_data, name, digits):
    dataset = load(name, real_data(name))
    card = DATASETS[name]
    assert dataset.train_images.shape == (card.train, *card.array_shape)
    assert isinstance(dataset.train_images, np.memmap)
    assert set(np.bincount(dataset.train_labels)) == {card.train // card.classes}
    assert set(np.bincount(dataset.test_labels)) == {card.test // card.classes}
    mean, std = statistics(dataset)
    # the papers round their constants, CIFAR-10's to three digits
    np.testing.assert_allclose(mean, card.mean, atol=10.0**-digits)
    np.testing.assert_allclose(std, card.std, atol=10.0**-digits)

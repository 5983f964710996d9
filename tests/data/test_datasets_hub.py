"""The Hugging Face path, through the real `datasets` library on local repositories in the published schema."""

from __future__ import annotations

import builtins

import numpy as np
import published
import pytest

from fedkeel.data.datasets import SOURCES
from fedkeel.data.storage.loading import load_from
from fedkeel.errors import DataError


@pytest.fixture(scope="module", autouse=True)
def library():
    """Imported by whoever runs these tests, not by all who collect them: it takes as long as they do."""
    return pytest.importorskip("datasets", reason="the extra fedkeel[download] is not installed")


CONFIGURATIONS = {
    "cifar10": "plain_text",
    "cifar100": "cifar100",
    "mnist": "mnist",
    "fashion-mnist": "fashion_mnist",
    "tiny-imagenet": "data",
}


def columns(name: str, images: np.ndarray, labels: np.ndarray) -> dict[str, list]:
    pictures, numbers = [published.png(image) for image in images], labels.tolist()
    if name == "cifar10":
        return {"img": pictures, "label": numbers}
    if name == "cifar100":
        return {"img": pictures, "fine_label": numbers, "coarse_label": (labels // 5).tolist()}
    return {"image": pictures, "label": numbers}


def features(name: str) -> dict[str, object]:
    import datasets

    classes = {"label": datasets.ClassLabel(num_classes=SOURCES[name].card.classes)}
    if name == "cifar100":
        classes = {
            "fine_label": datasets.ClassLabel(num_classes=100),
            "coarse_label": datasets.ClassLabel(num_classes=20),
        }
    return {"img" if name.startswith("cifar") else "image": datasets.Image(), **classes}


def split(name: str, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    channels, size, _ = SOURCES[name].card.shape
    make = published.colour_images if channels == 3 else published.grey_images
    return make(count, seed, size), published.class_labels(count, SOURCES[name].card.classes)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Make a local copy of a set's repository; the source that reads it has the copy's counts."""
    monkeypatch.setenv("FEDKEEL_HUB", str(tmp_path / "hub"))

    def make(name: str, rename: dict[str, str] | None = None):
        rename = rename or {}
        train, test = split(name, 12, 0), split(name, 5, 1)
        train_name, test_name = SOURCES[name].card.home.splits
        published.hub_repository(
            tmp_path / "hub",
            SOURCES[name].card.home.repository,
            {
                train_name: {rename.get(k, k): v for k, v in columns(name, *train).items()},
                test_name: {rename.get(k, k): v for k, v in columns(name, *test).items()},
            },
            {rename.get(k, k): v for k, v in features(name).items()},
            CONFIGURATIONS[name],
        )
        return published.small(SOURCES[name], 12, 5), train, test

    return make


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_repository_in_the_published_schema_fills_the_folder(hub, tmp_path, name):
    source, train, test = hub(name)
    seen = []
    dataset = load_from(source, tmp_path / "root", progress=lambda *call: seen.append(call))
    np.testing.assert_array_equal(dataset.train_images, train[0])
    np.testing.assert_array_equal(dataset.train_labels, train[1])
    np.testing.assert_array_equal(dataset.test_images, test[0])
    np.testing.assert_array_equal(dataset.test_labels, test[1])
    assert ("train_images", 12, 12) in seen
    assert [p.name for p in (tmp_path / "root").iterdir()] == [name]
    assert sorted(p.name for p in (tmp_path / "root" / name).iterdir()) == [
        "test_images.npy",
        "test_labels.npy",
        "train_images.npy",
        "train_labels.npy",
    ]


def test_afterwards_the_hub_is_not_needed(hub, tmp_path, monkeypatch):
    source, train, _ = hub("cifar10")
    load_from(source, tmp_path / "root")
    monkeypatch.setenv("FEDKEEL_HUB", str(tmp_path / "gone"))
    np.testing.assert_array_equal(load_from(source, tmp_path / "root").train_labels, train[1])


def assert_refused(source, root, message):
    with pytest.raises(DataError, match=message) as raised:
        load_from(source, root)
    assert "\n" not in raised.value.message
    assert not list(root.iterdir())
    return raised.value


@pytest.mark.parametrize(("name", "column"), [("cifar10", "img"), ("cifar100", "fine_label"), ("mnist", "label")])
def test_a_missing_column_is_named(hub, tmp_path, name, column):
    source, _, _ = hub(name, rename={column: "something"})
    error = assert_refused(source, tmp_path / "root", f"has no column '{column}': its columns are .*something")
    assert f"fedkeel datasets {name} --from PATH" in error.hint


def test_a_truncated_file_is_refused(hub, tmp_path):
    source, _, _ = hub("cifar10")
    file = next((tmp_path / "hub").rglob("test-*.parquet"))
    file.write_bytes(file.read_bytes()[:-100])
    assert_refused(source, tmp_path / "root", "the (train|test) split of uoft-cs/cifar10 could not be fetched")


def test_a_damaged_image_is_refused(hub, tmp_path, monkeypatch):
    good = published.png
    monkeypatch.setattr(published, "png", lambda image: good(image) | {"bytes": good(image)["bytes"][:60]})
    source, _, _ = hub("cifar10")
    assert_refused(source, tmp_path / "root", "the train split of uoft-cs/cifar10 could not be fetched")


def test_a_wrong_number_of_rows_is_refused(hub, tmp_path):
    source, _, _ = hub("mnist")
    wrong = published.small(source, 12, 6)
    assert_refused(wrong, tmp_path / "root", "ylecun/mnist has 5 of the 6 samples of test")


def test_an_image_of_another_size_is_refused(hub, tmp_path):
    source, _, _ = hub("mnist")
    wrong = published.small(source, 12, 5, shape=(1, 32, 32))
    assert_refused(wrong, tmp_path / "root", r"a sample of train_images is uint8 \(28, 28\), not uint8 \(32, 32\)")


def test_without_a_network_the_hint_names_the_import(tmp_path, monkeypatch):
    """The hub's own offline switch stands for a machine without a network: no request leaves it."""
    huggingface_hub = pytest.importorskip("huggingface_hub")
    monkeypatch.delenv("FEDKEEL_HUB", raising=False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    error = assert_refused(
        SOURCES["cifar10"], tmp_path / "root", "uoft-cs/cifar10 could not be fetched: .*offline mode"
    )
    assert "fedkeel datasets cifar10 --from PATH" in error.hint


def test_without_the_package_the_hint_is_the_command(tmp_path, monkeypatch):
    real_import = builtins.__import__

    def refuse(name, *rest, **named):
        if name == "datasets":
            raise ImportError(name)
        return real_import(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", refuse)
    error = assert_refused(SOURCES["cifar10"], tmp_path / "root", "needs the package datasets")
    assert 'pip install "fedkeel[download]"' in error.hint


def test_a_hub_folder_without_the_repository_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDKEEL_HUB", str(tmp_path / "hub"))
    assert_refused(SOURCES["mnist"], tmp_path / "root", "there is no copy of ylecun/mnist in FEDKEEL_HUB")

"""Import of the published archives: every form gives the same arrays, and nothing damaged gets in."""

from __future__ import annotations

import gzip
import hashlib
import os
import pickle
import zipfile

import numpy as np
import published
import pytest

from fedkeel.data import DATASETS, import_from
from fedkeel.data.datasets import SOURCES
from fedkeel.data.storage.archives import Room, check_bytes, read_files, reading
from fedkeel.data.storage.folder import drafting
from fedkeel.data.storage.loading import import_into
from fedkeel.data.storage.pickles import read_pickle
from fedkeel.errors import DataError

TRAIN = (published.colour_images(20), published.class_labels(20, 10))
TEST = (published.colour_images(6, seed=1), published.class_labels(6, 10))
CIFAR10 = published.small(SOURCES["cifar10"], 20, 6)
FINE_TRAIN = (published.colour_images(100), published.class_labels(100, 100))
FINE_TEST = (published.colour_images(6, seed=1), 90 + published.class_labels(6, 10))
CIFAR100 = published.small(SOURCES["cifar100"], 100, 6)
GREY_TRAIN = (published.grey_images(12), published.class_labels(12, 10))
GREY_TEST = (published.grey_images(4, seed=1), published.class_labels(4, 10))
MNIST = published.small(SOURCES["mnist"], 12, 4)


def assert_holds(dataset, train, test):
    np.testing.assert_array_equal(dataset.train_images, train[0])
    np.testing.assert_array_equal(dataset.train_labels, train[1])
    np.testing.assert_array_equal(dataset.test_images, test[0])
    np.testing.assert_array_equal(dataset.test_labels, test[1])
    assert dataset.train_labels.dtype == np.int64


def assert_nothing_left(root):
    assert not root.exists() or not list(root.iterdir())


@pytest.mark.parametrize("form", ["binary", "pickled"])
@pytest.mark.parametrize("pack", [published.tar_of, published.folder_of])
def test_cifar10_comes_the_same_from_every_form(tmp_path, form, pack):
    path = pack(tmp_path / "here", published.cifar10_files(TRAIN, TEST, form))
    assert_holds(import_into(CIFAR10, path, tmp_path / "root", check=True), TRAIN, TEST)
    assert [p.name for p in (tmp_path / "root").iterdir()] == ["cifar10"]


@pytest.mark.parametrize("form", ["binary", "pickled"])
def test_cifar100_takes_the_fine_labels(tmp_path, form):
    path = published.tar_of(tmp_path / "cifar.tar.gz", published.cifar100_files(FINE_TRAIN, FINE_TEST, form))
    assert_holds(import_into(CIFAR100, path, tmp_path / "root", check=True), FINE_TRAIN, FINE_TEST)


@pytest.mark.parametrize("compressed", [True, False])
def test_mnist_reads_idx_files(tmp_path, compressed):
    path = published.folder_of(tmp_path / "raw", published.mnist_files(GREY_TRAIN, GREY_TEST, compressed))
    assert_holds(import_into(MNIST, path, tmp_path / "root", check=True), GREY_TRAIN, GREY_TEST)


def test_one_idx_file_stands_for_its_folder(tmp_path):
    files = published.mnist_files(GREY_TRAIN, GREY_TEST, compressed=True)
    path = published.folder_of(tmp_path / "raw", files) / "t10k-labels-idx1-ubyte.gz"
    assert_holds(import_into(MNIST, path, tmp_path / "root", check=True), GREY_TRAIN, GREY_TEST)


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_pickles_written_again_by_python_3_are_read(tmp_path, protocol):
    def batch(x, y):
        return published.python3_pickle({b"labels": y.tolist(), b"data": published.cifar_planes(x)}, protocol)

    files = {f"data_batch_{i + 1}": batch(TRAIN[0][4 * i : 4 * i + 4], TRAIN[1][4 * i : 4 * i + 4]) for i in range(5)}
    path = published.folder_of(tmp_path / "py", files | {"test_batch": batch(*TEST)})
    assert_holds(import_into(CIFAR10, path, tmp_path / "root", check=True), TRAIN, TEST)


def test_an_import_replaces_what_was_there(tmp_path):
    (tmp_path / "root" / "cifar10").mkdir(parents=True)
    (tmp_path / "root" / "cifar10" / "train_images.npy").write_bytes(b"left over")
    path = published.tar_of(tmp_path / "c.tar.gz", published.cifar10_files(TRAIN, TEST, "binary"))
    assert_holds(import_into(CIFAR10, path, tmp_path / "root", check=True), TRAIN, TEST)
    assert [p.name for p in (tmp_path / "root").iterdir()] == ["cifar10"]


class Malicious:
    def __init__(self, witness):
        self.witness = witness

    def __reduce__(self):
        return os.mkdir, (self.witness,)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_cannot_run_code(tmp_path, protocol):
    content = pickle.dumps({"data": Malicious(str(tmp_path / "ran"))}, protocol)
    with pytest.raises(DataError, match=r"the pickle names (posix|nt|os)\.mkdir"):
        read_pickle("data_batch_1", content)
    assert not (tmp_path / "ran").exists()


def test_names_that_leave_the_archive_write_nothing_outside(tmp_path):
    files = {f"../../{name}": content for name, content in published.cifar10_files(TRAIN, TEST, "binary").items()}
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    path = published.tar_of(inner / "cifar.tar.gz", files)
    assert_holds(import_into(CIFAR10, path, inner / "root", check=True), TRAIN, TEST)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a"]
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == ["b"]


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2 - 1])
    return path


@pytest.mark.parametrize("form", ["binary", "pickled"])
def test_a_cut_off_archive_is_refused(tmp_path, form):
    path = cut(published.tar_of(tmp_path / "c.tar.gz", published.cifar10_files(TRAIN, TEST, form)))
    with pytest.raises(DataError, match=r"c\.tar\.gz is damaged or cut off"):
        import_into(CIFAR10, path, tmp_path / "root", check=True)
    assert_nothing_left(tmp_path / "root")


@pytest.mark.parametrize(
    ("place", "value"), [(0, 1), (2, 99), (-2, 99)], ids=["encrypted", "packed otherwise", "of a later version"]
)
@pytest.mark.parametrize(("name", "file"), [("cifar10", "data_batch_1.bin"), ("bloodmnist", "train_images.npy")])
def test_a_zip_archive_that_python_cannot_unpack_is_refused_in_one_line(tmp_path, name, file, place, value):
    path = tmp_path / "c.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(file, b"some bytes")
    content = bytearray(path.read_bytes())
    for header, flags in ((b"PK\3\4", 6), (b"PK\1\2", 8)):  # behind the flags stands how it is packed
        content[content.index(header) + flags + place] = value
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"c\.zip is damaged or cut off"):
        import_into(SOURCES[name], path, tmp_path / "root", check=True)


def test_a_fault_of_the_program_is_not_one_of_the_file():
    with pytest.raises(RecursionError), reading("c.zip"):
        raise RecursionError("of one's own")


@pytest.mark.parametrize(
    ("form", "name"),
    [("binary", "cifar-10-batches-bin/data_batch_3.bin"), ("pickled", "cifar-10-batches-py/data_batch_3")],
)
def test_a_cut_off_batch_is_refused(tmp_path, form, name):
    path = published.folder_of(tmp_path / "c", published.cifar10_files(TRAIN, TEST, form))
    cut(path / name)
    with pytest.raises(DataError, match="data_batch_3"):
        import_into(CIFAR10, path, tmp_path / "root", check=True)
    assert_nothing_left(tmp_path / "root")


@pytest.mark.parametrize("compressed", [True, False])
def test_a_cut_off_idx_file_is_refused(tmp_path, compressed):
    path = published.folder_of(tmp_path / "raw", published.mnist_files(GREY_TRAIN, GREY_TEST, compressed))
    cut(next(path.glob("train-images*")))
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte.*cut off"):
        import_into(MNIST, path, tmp_path / "root", check=True)
    assert_nothing_left(tmp_path / "root")


def test_a_missing_file_is_named(tmp_path):
    files = published.cifar10_files(TRAIN, TEST, "binary")
    del files["cifar-10-batches-bin/test_batch.bin"]
    with pytest.raises(DataError, match=r"lacks test_batch\.bin"):
        import_into(CIFAR10, published.folder_of(tmp_path / "c", files), tmp_path / "root", check=True)
    assert_nothing_left(tmp_path / "root")


def test_a_wrong_number_of_images_is_refused(tmp_path):
    path = published.tar_of(tmp_path / "c.tar.gz", published.cifar10_files(TRAIN, TEST, "binary"))
    with pytest.raises(DataError, match="20 of the 21 samples of train_images"):
        import_into(published.small(SOURCES["cifar10"], 21, 6), path, tmp_path / "root", check=True)
    assert_nothing_left(tmp_path / "root")


def test_a_label_that_is_no_class_is_refused(tmp_path):
    wrong = TRAIN[1].copy()
    wrong[7] = 10
    path = published.tar_of(tmp_path / "c.tar.gz", published.cifar10_files((TRAIN[0], wrong), TEST, "pickled"))
    with pytest.raises(DataError, match="0 … 10, outside 0 … 9"):
        import_into(CIFAR10, path, tmp_path / "root", check=True)
    assert_nothing_left(tmp_path / "root")


def test_the_archive_is_compared_with_its_published_checksum(tmp_path):
    path = published.tar_of(tmp_path / "cifar-10-binary.tar.gz", published.cifar10_files(TRAIN, TEST, "binary"))
    right = hashlib.md5(path.read_bytes()).hexdigest()
    good = published.small(CIFAR10, 20, 6, checksums={path.name: f"md5:{right}"})
    assert_holds(import_into(good, path, tmp_path / "good", check=True), TRAIN, TEST)
    full = published.small(CIFAR10, 20, 6, checksums=DATASETS["cifar10"].checksums)
    with pytest.raises(DataError, match=f"has md5 {right}, not the published c32a1d4ab5d03f1284b67883e8d87530"):
        import_into(full, path, tmp_path / "bad", check=True)
    assert_nothing_left(tmp_path / "bad")
    assert_holds(import_into(full, path, tmp_path / "unchecked", check=False), TRAIN, TEST)


def test_files_inside_are_compared_with_their_published_checksums(tmp_path):
    path = published.folder_of(tmp_path / "raw", published.mnist_files(GREY_TRAIN, GREY_TEST, compressed=True))
    full = published.small(MNIST, 12, 4, checksums=DATASETS["mnist"].checksums)
    with pytest.raises(DataError, match=r"idx.-ubyte has md5"):
        import_into(full, path, tmp_path / "root", check=True)
    assert_holds(import_into(full, path, tmp_path / "root", check=False), GREY_TRAIN, GREY_TEST)


def test_what_is_not_there_is_said(tmp_path):
    with pytest.raises(DataError, match="does not exist") as raised:
        import_from("cifar10", tmp_path / "nowhere", tmp_path)
    assert "--from PATH" in raised.value.hint
    with pytest.raises(DataError, match="comes with scikit-learn"):
        import_from("digits", tmp_path, tmp_path)


def test_entries_of_a_folder_come_in_a_fixed_order(tmp_path):
    published.folder_of(tmp_path, {name: name.encode() for name in ("b/2", "a/1", "c")})
    assert list(read_files(tmp_path, lambda name: name != "c", Room(tmp_path, 100))) == [
        ("a/1", b"a/1"),
        ("b/2", b"b/2"),
    ]


@pytest.mark.slow
def test_real_cifar10_is_the_published_one(real_data, tmp_path):
    """Cut into the published binary batches, the arrays of the data folder have the published checksums."""
    folder = real_data("cifar10") / "cifar10"
    arrays = {
        name: np.load(folder / f"{name}.npy") for name in ("train_images", "train_labels", "test_images", "test_labels")
    }
    files = published.cifar10_files(
        (arrays["train_images"], arrays["train_labels"]), (arrays["test_images"], arrays["test_labels"]), "binary"
    )
    for name, content in files.items():
        assert name.split("/")[1] in DATASETS["cifar10"].checksums
        check_bytes(name, content, DATASETS["cifar10"].checksums)
    imported = import_from("cifar10", published.folder_of(tmp_path / "raw", files), tmp_path / "root")
    assert_holds(
        imported, (arrays["train_images"], arrays["train_labels"]), (arrays["test_images"], arrays["test_labels"])
    )


@pytest.mark.slow
def test_real_fashion_mnist_is_the_published_one(real_data, tmp_path):
    folder = real_data("fashion-mnist") / "fashion-mnist"
    train, test = (
        tuple(np.load(folder / f"{s}_{kind}.npy") for kind in ("images", "labels")) for s in ("train", "test")
    )
    files = {f"{n}.gz": gzip.compress(c, 1) for n, c in published.mnist_files(train, test, compressed=False).items()}
    imported = import_from("fashion-mnist", published.folder_of(tmp_path / "raw", files), tmp_path / "root")
    assert_holds(imported, train, test)


def test_every_fault_of_published_files_says_what_can_be_imported(tmp_path):
    """Readers need not repeat it: what they raise without a hint gets the data set's own."""
    for name in ("mnist", "cifar10", "femnist", "shakespeare"):
        with pytest.raises(DataError, match="a fault") as caught, drafting(SOURCES[name], tmp_path):
            raise DataError("a fault")
        assert f"fedkeel datasets {name} --from PATH" in caught.value.hint
        with pytest.raises(DataError) as caught, drafting(SOURCES[name], tmp_path):
            raise DataError("a fault", "its own hint")
        assert caught.value.hint == "its own hint"

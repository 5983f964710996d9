"""The data folder: complete or absent, checked when it is opened, never half filled."""

from __future__ import annotations

import os
import pickle
import resource
import shutil
from collections import namedtuple
from pathlib import Path

import numpy as np
import published
import pytest

from fedkeel.data import data_root
from fedkeel.data.datasets import SOURCES
from fedkeel.data.storage.folder import drafting, open_folder
from fedkeel.data.storage.loading import import_into, load_from
from fedkeel.errors import DataError

TRAIN = (published.colour_images(20), published.class_labels(20, 10))
TEST = (published.colour_images(6, seed=1), published.class_labels(6, 10))
SOURCE = published.small(SOURCES["cifar10"], 20, 6)


@pytest.fixture
def folder(tmp_path):
    """A complete folder of a small CIFAR-10."""
    archive = published.tar_of(tmp_path / "cifar.tar.gz", published.cifar10_files(TRAIN, TEST, "binary"))
    import_into(SOURCE, archive, tmp_path / "root", check=True)
    return tmp_path / "root" / "cifar10"


def opened(folder: Path):
    return load_from(SOURCE, folder.parent)


def test_a_complete_folder_is_mapped_not_read(folder):
    dataset = opened(folder)
    assert isinstance(dataset.train_images, np.memmap)
    assert isinstance(dataset.test_images, np.memmap)
    np.testing.assert_array_equal(dataset.train_images[np.array([3, 1])], TRAIN[0][[3, 1]])
    assert (dataset.classes, dataset.shape, dataset.groups) == (10, (3, 32, 32), None)


def test_a_data_set_is_pickled_as_its_place(folder):
    content = pickle.dumps(opened(folder))
    assert len(content) < TRAIN[0].nbytes / 10
    again = pickle.loads(content)
    assert isinstance(again.train_images, np.memmap)
    np.testing.assert_array_equal(again.train_images, TRAIN[0])
    assert again.card == SOURCE.card


@pytest.mark.parametrize(
    ("name", "array", "complaint"),
    [
        ("train_images", TRAIN[0].astype(np.float32), "holds float32"),
        ("train_images", TRAIN[0][:19], r"\(19, 32, 32, 3\), not uint8 \(20, 32, 32, 3\)"),
        ("train_images", TRAIN[0].transpose(0, 3, 1, 2), r"\(20, 3, 32, 32\)"),
        ("train_labels", TRAIN[1].astype(np.int32), "holds int32"),
        ("train_labels", TRAIN[1] + 1, "1 … 10, outside 0 … 9"),
        ("train_labels", TRAIN[1] - 1, "-1 … 8, outside 0 … 9"),
        ("test_labels", TEST[1][:5], r"\(5,\), not int64 \(6,\)"),
        ("test_labels", np.array(3), r"holds int64 \(\), not int64 \(6,\)"),
    ],
)
def test_a_wrong_array_is_named_with_the_way_out(folder, name, array, complaint):
    np.save(folder / f"{name}.npy", array)
    with pytest.raises(DataError, match=complaint) as raised:
        opened(folder)
    assert str(folder / f"{name}.npy") in raised.value.message
    assert raised.value.hint == f"delete the folder {folder} and fetch the data set again"


@pytest.mark.parametrize("keep", [0, 5, 100, 1000])
def test_a_truncated_array_is_refused(folder, keep):
    path = folder / "train_images.npy"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"train_images\.npy cannot be read"):
        opened(folder)


def test_pickled_arrays_are_refused(folder):
    np.save(folder / "train_labels.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match=r"train_labels\.npy cannot be read"):
        opened(folder)


def test_an_incomplete_folder_is_filled_again(folder, monkeypatch):
    (folder / "test_labels.npy").unlink()
    asked = []
    source = published.dataclasses.replace(SOURCE, fetch=lambda draft: asked.append(draft) or fill(draft))
    dataset = load_from(source, folder.parent)
    assert len(asked) == 1
    np.testing.assert_array_equal(dataset.test_labels, TEST[1])
    assert sorted(p.name for p in folder.parent.iterdir()) == ["cifar10"]


def fill(draft):
    draft.save_split("train", *TRAIN)
    draft.save_split("test", *TEST)


def test_a_draft_that_fails_leaves_what_was_there(folder):
    before = (folder / "train_labels.npy").read_bytes()

    def fill_half():
        with drafting(SOURCE, folder.parent) as draft:
            draft.save_split("train", TRAIN[0], TRAIN[1][::-1])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fill_half()
    assert [p.name for p in folder.parent.iterdir()] == ["cifar10"]
    assert (folder / "train_labels.npy").read_bytes() == before


def test_a_draft_without_all_its_arrays_does_not_settle(tmp_path):
    with pytest.raises(DataError, match=r"test_images\.npy cannot be read"), drafting(SOURCE, tmp_path) as draft:
        draft.save_split("train", *TRAIN)
    assert not list(tmp_path.iterdir())


def test_drafts_of_a_killed_process_are_removed_after_a_day(tmp_path):
    old, recent, other = (tmp_path / name for name in (".cifar10-old", ".cifar10-recent", ".cifar100-old"))
    for draft in (old, recent, other):
        (draft / "cifar10").mkdir(parents=True)
        (draft / "cifar10" / "train_images.npy").write_bytes(b"half")
    for path in (old, other, *old.rglob("*"), *other.rglob("*")):
        os.utime(path, (0, 0))
    os.utime(recent, (0, 0))
    with drafting(SOURCE, tmp_path) as draft:
        fill(draft)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".cifar10-recent", ".cifar100-old", "cifar10"]


def test_a_draft_that_another_process_ends_meanwhile_is_left_alone(tmp_path, monkeypatch):
    """Two runs that are started at once fetch the same set; files of the other come and go."""
    (tmp_path / ".cifar10-other").mkdir()
    monkeypatch.setattr(type(tmp_path), "rglob", lambda self, pattern: iter([self / "just_moved.npy"]))
    with drafting(SOURCE, tmp_path) as draft:
        fill(draft)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".cifar10-other", "cifar10"]


def test_writers_count_and_compare(tmp_path):
    with drafting(SOURCE, tmp_path) as draft:
        with pytest.raises(DataError, match="2 of the 3 samples of a"), draft.array("a", np.uint8, (3, 4)) as file:
            file.write(np.zeros((2, 4), np.uint8))
        with pytest.raises(DataError, match="more than the 3 samples of b"), draft.array("b", np.uint8, (3, 4)) as file:
            file.write(np.zeros((4, 4), np.uint8))
        with pytest.raises(DataError, match="a sample of c is uint8"), draft.array("c", np.uint8, (3, 4)) as file:
            file.write(np.zeros((3, 5), np.uint8))
        fill(draft)


def test_progress_counts_samples(tmp_path):
    seen = []
    with drafting(SOURCE, tmp_path, progress=lambda *call: seen.append(call)) as draft:
        fill(draft)
    assert ("train_images", 20, 20) in seen
    assert ("test_labels", 6, 6) in seen


def test_too_little_space_is_said_before_anything_is_written(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**6, 10**6, 1000))
    with pytest.raises(DataError, match=r"no space left in .* for cifar10, which needs 80\.1 kB") as raised:
        load_from(SOURCE, tmp_path)
    assert "FEDKEEL_DATA" in raised.value.hint
    assert not list(tmp_path.iterdir())


def test_a_disk_that_fills_up_while_writing_is_one_line(tmp_path):
    """A limit on the size of a file makes the operating system refuse the write, as a full disk does."""
    archive = published.tar_of(tmp_path / "cifar.tar.gz", published.cifar10_files(TRAIN, TEST, "binary"))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, before[1]))
    try:
        with pytest.raises(DataError) as full:
            import_into(SOURCE, archive, tmp_path / "root", check=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert full.value.message.startswith(f"no space left in {tmp_path / 'root'} for cifar10")
    assert "\n" not in full.value.message
    assert not list((tmp_path / "root").iterdir())


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "root").write_bytes(b"a file, where a folder should be")
    with pytest.raises(DataError, match=r"cifar10 could not be put into .*root: File exists"):
        load_from(SOURCE, tmp_path / "root")


def test_the_root_is_the_argument_then_the_environment_then_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDKEEL_DATA", str(tmp_path / "set"))
    assert data_root(tmp_path / "given") == tmp_path / "given"
    assert data_root() == tmp_path / "set"
    monkeypatch.delenv("FEDKEEL_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert "fedkeel" in str(data_root())


def test_a_card_without_a_count_takes_any_number(folder):
    card = published.small(SOURCES["cifar10"], 0, 0).card
    assert len(open_folder(card, folder, folder.parent).train_images) == 20

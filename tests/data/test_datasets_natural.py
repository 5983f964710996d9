"""Sets with natural clients: writers, roles, domains."""

from __future__ import annotations

import dataclasses
import json
import pickle

import numpy as np
import published
import published_more as more
import pytest

from fedkeel.data import load
from fedkeel.data.datasets import SOURCES
from fedkeel.data.datasets.shakespeare import FILE, LETTERS, plain_text
from fedkeel.data.storage.loading import import_into, load_from
from fedkeel.errors import DataError

FEMNIST, SHAKESPEARE = SOURCES["femnist"], SOURCES["shakespeare"]


# FEMNIST


def writers(sizes: dict[str, int]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    return {
        name: (published.grey_images(size, seed), (np.arange(size) * 7 + seed) % 62)
        for seed, (name, size) in enumerate(sizes.items())
    }


def leaf(data: dict[str, tuple[np.ndarray, np.ndarray]]) -> bytes:
    return more.leaf_file({name: (more.leaf_pixels(x), y.tolist()) for name, (x, y) in data.items()})


def of_group(dataset, split: str, group: int) -> tuple[np.ndarray, np.ndarray]:
    images, labels = getattr(dataset, f"{split}_images"), getattr(dataset, f"{split}_labels")
    rows = np.flatnonzero((dataset.groups if split == "train" else dataset.test_groups) == group)
    return images[rows], labels[rows]


def test_leafs_own_split_is_kept(tmp_path):
    train, test = writers({"f0003_41": 5, "f0001_02": 9}), writers({"f0003_41": 1, "f0001_02": 2})
    files = {
        "data/train/all_data_0_niid_0_keep_0_train_9.json": leaf({"f0003_41": train["f0003_41"]}),
        "data/train/all_data_1_niid_0_keep_0_train_9.json": leaf({"f0001_02": train["f0001_02"]}),
        "data/test/all_data_0_niid_0_keep_0_test_9.json": leaf(test),
    }
    femnist = import_into(FEMNIST, published.folder_of(tmp_path / "leaf", files), tmp_path / "root", check=True)
    for group, name in enumerate(["f0001_02", "f0003_41"]):
        for split, given in (("train", train), ("test", test)):
            images, labels = of_group(femnist, split, group)
            np.testing.assert_array_equal(images, given[name][0])
            np.testing.assert_array_equal(labels, given[name][1])
    assert femnist.train_images.shape == (14, 28, 28)


def test_of_leafs_whole_folder_the_last_step_is_read(tmp_path):
    """LEAF's script makes sampled_data from all_data, and train and test from that, and leaves them all there."""
    given = writers({"f0003_41": 6, "f0001_02": 11})
    train = {name: (x[:-2], y[:-2]) for name, (x, y) in given.items()}
    test = {name: (x[-2:], y[-2:]) for name, (x, y) in given.items()}
    steps = {"all_data/all_data_0.json": leaf(given), "sampled_data/all_data_0_niid_05.json": leaf(given)}
    split = {"train/all_data_0_niid_05_train_9.json": leaf(train), "test/all_data_0_niid_05_test_9.json": leaf(test)}
    femnist = import_into(FEMNIST, published.folder_of(tmp_path / "data", steps | split), tmp_path / "1", check=True)
    np.testing.assert_array_equal(femnist.train_images, np.concatenate([train[name][0] for name in sorted(train)]))
    np.testing.assert_array_equal(femnist.test_images, np.concatenate([test[name][0] for name in sorted(test)]))
    with pytest.raises(DataError, match="user 'f0003_41' twice, in all_data and in sampled_data"):
        import_into(FEMNIST, published.folder_of(tmp_path / "unsplit", steps), tmp_path / "2", check=True)


def test_an_unsplit_leaf_is_split_writer_by_writer(tmp_path):
    given = writers({"a": 20, "b": 2, "c": 1, "d": 0, "e": 11})
    path = published.folder_of(tmp_path / "leaf", {"all_data/all_data_0.json": leaf(given)})
    femnist = import_into(FEMNIST, path, tmp_path / "root", check=True)
    # ⌊0.9 n⌋, at least one; the writer without samples is no client, the writer of one sample is not tested
    np.testing.assert_array_equal(np.bincount(femnist.groups), [18, 1, 1, 9])
    np.testing.assert_array_equal(np.bincount(femnist.test_groups), [2, 1, 0, 2])
    assert femnist.remarks == ("1 of 4 writers have no test sample",)
    for group, name in enumerate(["a", "b", "c", "e"]):
        images = np.concatenate([of_group(femnist, split, group)[0] for split in ("train", "test")])
        np.testing.assert_array_equal(
            np.sort(images.reshape(len(images), -1), 0), np.sort(given[name][0].reshape(len(images), -1), 0)
        )


def test_the_split_of_a_writer_does_not_depend_on_the_others(tmp_path):
    given = writers({"a": 20, "b": 30})
    both = import_into(
        FEMNIST, published.folder_of(tmp_path / "x", {"all.json": leaf(given)}), tmp_path / "1", check=True
    )
    only = {"all.json": leaf({"b": given["b"]})}
    alone = import_into(FEMNIST, published.folder_of(tmp_path / "y", only), tmp_path / "2", check=True)
    np.testing.assert_array_equal(of_group(both, "test", 1)[0], alone.test_images)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (more.leaf_file({"a": ([[0.5] * 783], [1])}), "does not have 784 numbers"),
        (more.leaf_file({"a": ([[1.5] * 784], [1])}), "numbers between 0 and 1"),
        (more.leaf_file({"a": ([[0.5] * 784], [1, 2])}), "1 inputs and 2 labels for user 'a'"),
        (more.leaf_file({"a": ([[0.5] * 784] * 12, [62] * 12)}), "outside 0 … 61"),
        (leaf(writers({"a": 3}))[:-40], "damaged or cut off"),
        (b'{"users": ["a"], "user_data": {"a": {"x": []}}}', "no samples 'x' and 'y' for user 'a'"),
        (b'{"users": ["a"], "user_data": {"a": {"x": 3, "y": 3}}}', "no samples 'x' and 'y' for user 'a'"),
        (b'{"users": ["a"], "user_data": ["a"]}', "no LEAF files with users"),
        (more.leaf_file({"a": ([[0.5] * 784], ["seven"])}), "labels of writer 'a' are not whole numbers"),
        (more.leaf_file({"a": ([[0.5] * 784], [1.5])}), "labels of writer 'a' are not whole numbers"),
        (b"[]", "holds no LEAF files"),
    ],
)
def test_bad_leaf_files_are_refused(tmp_path, content, message):
    path = published.folder_of(tmp_path / "leaf", {"all_data.json": content})
    with pytest.raises(DataError, match=message):
        import_into(FEMNIST, path, tmp_path / "root", check=True)
    assert not list((tmp_path / "root").iterdir())


@pytest.mark.slow
def test_femnist_comes_from_the_hub(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets", reason="the extra fedkeel[download] is not installed")
    monkeypatch.setenv("FEDKEEL_HUB", str(tmp_path / "hub"))
    given = writers({"f0002_02": 10, "f0001_01": 20})
    rows = [(image, name, label) for name, (x, y) in given.items() for image, label in zip(x, y, strict=True)]
    columns = {
        "image": [published.png(image) for image, _, _ in rows],
        "writer_id": [name for _, name, _ in rows],
        "hsf_id": [0] * len(rows),
        "character": [int(label) for _, _, label in rows],
    }
    features = {
        "image": datasets.Image(),
        "writer_id": datasets.Value("string"),
        "hsf_id": datasets.Value("int64"),
        "character": datasets.ClassLabel(num_classes=62),
    }
    published.hub_repository(tmp_path / "hub", "flwrlabs/femnist", {"train": columns}, features, "data")
    femnist = load_from(FEMNIST, tmp_path / "root")
    np.testing.assert_array_equal(np.bincount(femnist.groups), [18, 9])
    path = published.folder_of(tmp_path / "leaf", {"all_data.json": leaf(given)})
    same = import_into(FEMNIST, path, tmp_path / "other", check=True)
    np.testing.assert_array_equal(femnist.train_images, same.train_images)
    np.testing.assert_array_equal(femnist.test_labels, same.test_labels)


# Shakespeare

LINES = "Now is the winter of our discontent\nMade glorious summer by this sun of York;\n  And all the clouds "
ROLES = {
    "RICHARD_III_GLOUCESTER": LINES * 12,
    "HAMLET_GHOST": "Mark me.\n" * 30,
    "HAMLET_BERNARDO": "Who's there?\n",
    "HAMLET_OSRIC": "x" * 81,
}


def assert_windows_of(dataset, roles):
    """Every window is a run of its own role's text, and the label the letter after it."""
    texts = [plain_text(text) for _, text in sorted(roles.items()) if len(plain_text(text)) > 80]
    for images, labels, groups in (
        (dataset.train_images, dataset.train_labels, dataset.groups),
        (dataset.test_images, dataset.test_labels, dataset.test_groups),
    ):
        for window, label, group in zip(images[:], labels, groups, strict=True):
            letters = "".join(LETTERS[code] for code in [*window, label])
            assert letters in texts[group]


def test_windows_follow_the_text_and_the_split_is_in_time(tmp_path):
    path = published.folder_of(tmp_path, {FILE: json.dumps(ROLES).encode()}) / FILE
    plays = import_into(SHAKESPEARE, path, tmp_path / "root", check=True)
    assert_windows_of(plays, ROLES)
    texts = [plain_text(ROLES[name]) for name in sorted(ROLES) if name != "HAMLET_BERNARDO"]
    windows = np.array([len(text) - 80 for text in texts])
    train = np.maximum(1, (0.9 * windows).astype(int))
    np.testing.assert_array_equal(np.bincount(plays.groups), train)
    np.testing.assert_array_equal(np.bincount(plays.test_groups, minlength=3), np.maximum(windows - train - 79, 0))
    assert plays.remarks == (
        "1 of 4 roles have no window of 80 letters and are no clients",
        "2 of 3 roles have no test sample",
    )
    # the last training input ends where the first test window of the same role begins
    role = 2
    last, first = (np.flatnonzero(groups == role)[at] for groups, at in ((plays.groups, -1), (plays.test_groups, 0)))
    assert plays.train_images.starts[last] + 80 == plays.test_images.starts[first]


def test_windows_behave_like_an_array(tmp_path):
    path = published.folder_of(tmp_path, {FILE: json.dumps(ROLES).encode()}) / FILE
    plays = import_into(SHAKESPEARE, path, tmp_path / "root", check=True)
    windows = plays.train_images
    whole = np.asarray(windows)
    assert whole.shape == windows.shape == (len(windows), 80)
    assert whole.dtype == windows.dtype == np.uint8
    np.testing.assert_array_equal(windows[np.array([5, 0, 5])], whole[[5, 0, 5]])
    np.testing.assert_array_equal(windows[3:9], whole[3:9])
    np.testing.assert_array_equal(windows[7], whole[7])
    assert whole.max() < plays.card.vocabulary
    again = pickle.loads(pickle.dumps(plays))
    np.testing.assert_array_equal(again.test_labels, plays.test_labels)


@pytest.mark.parametrize("form", ["texts", "leaf"])
def test_other_forms_of_the_text_give_the_same_windows(tmp_path, form):
    path = published.folder_of(tmp_path, {FILE: json.dumps(ROLES).encode()}) / FILE
    plays = import_into(SHAKESPEARE, path, tmp_path / "1", check=True)
    if form == "texts":
        files = {f"raw_data/by_play_and_character/{name}.txt": text.encode() for name, text in ROLES.items()}
        files["raw_data/raw_data.txt"] = b"all of Shakespeare " * 50
    else:
        windows = {name: more.shakespeare_windows(plain_text(text)) for name, text in ROLES.items()}
        files = {"all_data/all_data.json": more.leaf_file({name: pair for name, pair in windows.items() if pair[0]})}
    same = import_into(SHAKESPEARE, published.folder_of(tmp_path / form, files), tmp_path / "2", check=True)
    np.testing.assert_array_equal(np.asarray(same.train_images), np.asarray(plays.train_images))
    np.testing.assert_array_equal(same.test_labels, plays.test_labels)


@pytest.mark.parametrize("pack", [published.folder_of, more.zip_of, published.tar_of])
def test_what_macos_adds_to_a_copy_is_no_role(tmp_path, pack):
    """An archive that a Mac has packed has a second file beside each; one of roles would be read as text."""
    path = published.folder_of(tmp_path, {FILE: json.dumps(ROLES).encode()}) / FILE
    plays = import_into(SHAKESPEARE, path, tmp_path / "1", check=True)
    files = {f"by_play_and_character/{name}.txt": text.encode() for name, text in ROLES.items()}
    own = b"\x00\x05\x16\x07Mac OS X" + bytes(500)
    files |= {f"{place}by_play_and_character/._{name}.txt": own for name in ROLES for place in ("", "__MACOSX/")}
    same = import_into(SHAKESPEARE, pack(tmp_path / "packed", files), tmp_path / "2", check=True)
    np.testing.assert_array_equal(same.groups, plays.groups)
    np.testing.assert_array_equal(np.asarray(same.train_images), np.asarray(plays.train_images))


def test_shakespeare_comes_from_the_hub(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets", reason="the extra fedkeel[download] is not installed")
    monkeypatch.setenv("FEDKEEL_HUB", str(tmp_path / "hub"))
    rows = [
        (name, x, y)
        for name, text in ROLES.items()
        for x, y in zip(*more.shakespeare_windows(plain_text(text)), strict=True)
    ]
    columns = dict(zip(("character_id", "x", "y"), (list(column) for column in zip(*rows, strict=True)), strict=True))
    features = {name: datasets.Value("string") for name in columns}
    published.hub_repository(tmp_path / "hub", "flwrlabs/shakespeare", {"train": columns}, features, "data")
    plays = load_from(SHAKESPEARE, tmp_path / "root")
    assert_windows_of(plays, ROLES)
    assert len(plays.train_images) == sum(
        max(1, int(0.9 * (len(plain_text(t)) - 80))) for t in ROLES.values() if len(plain_text(t)) > 80
    )


def test_windows_out_of_order_are_refused(tmp_path):
    x, y = more.shakespeare_windows(plain_text(LINES * 2))
    content = more.leaf_file({"A_ROLE": ([*x[:3], x[9], *x[4:]], y)})
    with pytest.raises(DataError, match="'A_ROLE' do not follow each other"):
        import_into(
            SHAKESPEARE, published.folder_of(tmp_path / "x", {"all_data.json": content}), tmp_path / "root", check=True
        )


def test_windows_that_are_no_texts_are_refused(tmp_path):
    path = published.folder_of(tmp_path / "leaf", {"all_data.json": more.leaf_file({"A_ROLE": ([1, 2], [3, 4])})})
    with pytest.raises(DataError, match="windows of role 'A_ROLE' do not follow each other"):
        import_into(SHAKESPEARE, path, tmp_path / "root", check=True)


def test_letters_outside_the_table_are_blanks(tmp_path):
    path = published.folder_of(tmp_path, {FILE: json.dumps({"A": "é" * 40 + "a" * 60}).encode()}) / FILE
    plays = import_into(SHAKESPEARE, path, tmp_path / "root", check=True)
    assert set(plays.train_images[0][:40]) == {LETTERS.index(" ")}


@pytest.mark.parametrize("content", [b'{"A": "tex', b'{"A": 3}', b'{"A": "short"}'])
def test_a_damaged_text_is_refused(tmp_path, content):
    published.folder_of(tmp_path, {f"shakespeare/{FILE}": content})
    with pytest.raises(DataError, match=FILE) as raised:
        load_from(SHAKESPEARE, tmp_path)
    assert raised.value.hint.startswith("delete the folder")


def test_real_shakespeare_has_leafs_counts(real_data):
    """LEAF publishes 1 129 users and 4 226 158 samples of another copy of the text; ours has 1 130 and 4 226 206."""
    root = real_data("shakespeare")
    plays = load("shakespeare", root)
    train, test = np.bincount(plays.groups), np.bincount(plays.test_groups, minlength=1130)
    assert len(train) == 1130
    roles = json.loads((root / "shakespeare" / FILE).read_text())
    windows = np.array([len(text) - 80 for _, lines in sorted(roles.items()) if len(text := plain_text(lines)) > 80])
    assert windows.sum() == 4_226_206
    np.testing.assert_array_equal(train, np.maximum(1, np.floor(0.9 * windows)))
    np.testing.assert_array_equal(test, np.maximum(windows - train - 79, 0))
    assert len(plays.train_images.text) < 5_000_000
    assert plays.train_labels.max() < 80


# Office-Home

DOMAINS = {"Art": 5, "Clipart": 11, "Product": 1, "Real World": 6}
CLASSES = [f"Class_{letter}" for letter in "DACB"]
OFFICE = dataclasses.replace(SOURCES["office-home"], card=dataclasses.replace(SOURCES["office-home"].card, classes=4))


@pytest.mark.parametrize("pack", [more.zip_of, published.folder_of])
def test_office_home_has_domains_as_clients(tmp_path, pack):
    path = pack(tmp_path / "office", more.office_home_files(CLASSES, DOMAINS))
    office = import_into(OFFICE, path, tmp_path / "root", check=True)
    assert office.train_images.shape[1:] == (64, 64, 3)
    for domain, count in enumerate(DOMAINS.values()):
        train, test = office.train_labels[office.groups == domain], office.test_labels[office.test_groups == domain]
        np.testing.assert_array_equal(np.bincount(test, minlength=4), [count // 5] * 4)
        np.testing.assert_array_equal(np.bincount(train, minlength=4), [count - count // 5] * 4)
    # the maker's colours say domain and place in its class list; ours are numbered in alphabetical order
    made = np.array([CLASSES.index(name) for name in sorted(CLASSES)])
    expected = 60 * office.groups + 2 * made[office.train_labels]
    assert np.abs(office.train_images[...].mean((1, 2, 3)) - expected).max() <= 1


def test_office_home_comes_from_the_hub(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets", reason="the extra fedkeel[download] is not installed")
    monkeypatch.setenv("FEDKEEL_HUB", str(tmp_path / "hub"))
    rows = [(d, c) for d in DOMAINS for c in range(4) for _ in range(DOMAINS[d])]
    columns = {
        "image": [published.png(more.flat_colour(40 * c, (30, 50))) for _, c in rows],
        "domain": [d for d, _ in rows],
        "label": [c for _, c in rows],
    }
    features = {
        "image": datasets.Image(),
        "domain": datasets.Value("string"),
        "label": datasets.ClassLabel(num_classes=4),
    }
    published.hub_repository(tmp_path / "hub", "flwrlabs/office-home", {"train": columns}, features, "data")
    office = load_from(OFFICE, tmp_path / "root")
    assert len(office.train_images) + len(office.test_images) == len(rows)
    np.testing.assert_array_equal(office.train_images[:, 0, 0, 0], 40 * office.train_labels)


def test_a_missing_domain_is_refused(tmp_path):
    path = more.zip_of(tmp_path / "office.zip", more.office_home_files(CLASSES, {"Art": 5, "Clipart": 5, "Product": 5}))
    with pytest.raises(DataError, match="4 classes in 3 domains, not 4 in 4"):
        import_into(OFFICE, path, tmp_path / "root", check=True)
    assert not list((tmp_path / "root").iterdir())

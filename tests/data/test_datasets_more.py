"""Tiny-ImageNet, BloodMNIST, Yahoo! Answers, CIFAR-C on small files in the published formats; fetching by address."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import http.server
import pickle
import threading

import numpy as np
import published
import published_more as more
import pytest

from fedkeel.data import DATASETS, Url, load
from fedkeel.data.datasets import SOURCES
from fedkeel.data.datasets.cifar_c import CORRUPTIONS, EXTRA
from fedkeel.data.datasets.yahoo_answers import LENGTH, build_vocabulary, encode
from fedkeel.data.storage.loading import import_into, load_from
from fedkeel.errors import DataError


def assert_nothing_left(root):
    assert not root.exists() or not list(root.iterdir())


# Tiny-ImageNet

SYNSETS = ["n02124075", "n04067472", "n01443537"]
TINY = published.small(SOURCES["tiny-imagenet"], 9, 6, classes=3)


@pytest.mark.parametrize("pack", [more.zip_of, published.folder_of])
def test_tiny_imagenet_is_numbered_by_synset_and_tested_on_validation(tmp_path, pack):
    path = pack(tmp_path / "tiny", more.tiny_imagenet_files(SYNSETS, train=3, validation=2))
    tiny = import_into(TINY, path, tmp_path / "root", check=True)
    np.testing.assert_array_equal(tiny.train_labels, [0, 0, 0, 1, 1, 1, 2, 2, 2])
    np.testing.assert_array_equal(tiny.test_labels, [0, 0, 1, 1, 2, 2])
    levels = tiny.train_images[...].mean((1, 2, 3))
    assert np.abs(levels - [0, 1, 2, 10, 11, 12, 20, 21, 22]).max() <= 1
    assert np.abs(tiny.test_images[...].mean((1, 2, 3)) - [100, 101, 110, 111, 120, 121]).max() <= 1


def test_the_subset_keeps_the_lowest_numbers(tmp_path):
    path = more.zip_of(tmp_path / "tiny.zip", more.tiny_imagenet_files(SYNSETS[:2], train=60, validation=12))
    source = published.small(SOURCES["tiny-imagenet-subset"], 100, 20, classes=2)
    tiny = import_into(source, path, tmp_path / "root", check=True)
    np.testing.assert_array_equal(np.bincount(tiny.train_labels), [50, 50])
    assert np.abs(tiny.train_images[:50].mean((1, 2, 3)) - np.arange(50)).max() <= 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda files: files.pop("tiny-imagenet-200/val/val_annotations.txt"), "lacks val/val_annotations.txt"),
        (lambda files: files.update({"tiny-imagenet-200/val/val_annotations.txt": b"\xff\tn02124075"}), "damaged"),
        (
            lambda files: files.update({"tiny-imagenet-200/train/n02124075/images/n02124075_0.JPEG": b"\xff\xd8cut"}),
            "damaged",
        ),
        (lambda files: files.pop("tiny-imagenet-200/train/n02124075/images/n02124075_0.JPEG"), "8 of the 9 samples"),
        (lambda files: files.update({"a/train/n99999999/images/n99999999_0.JPEG": b""}), "belongs to no class"),
    ],
)
def test_a_damaged_tiny_imagenet_is_refused(tmp_path, change, message):
    files = more.tiny_imagenet_files(SYNSETS, train=3, validation=2)
    change(files)
    with pytest.raises(DataError, match=message):
        import_into(TINY, more.zip_of(tmp_path / "tiny.zip", files), tmp_path / "root", check=True)
    assert_nothing_left(tmp_path / "root")


def test_real_tiny_imagenet_subset_matches_its_card(real_data):
    tiny = load("tiny-imagenet-subset", real_data("tiny-imagenet-subset"))
    assert set(np.bincount(tiny.train_labels)) == {50}
    assert set(np.bincount(tiny.test_labels)) == {10}
    # the channel means of ImageNet photographs
    np.testing.assert_allclose(tiny.test_images[...].mean((0, 1, 2)) / 255, [0.480, 0.448, 0.398], atol=0.01)


# BloodMNIST, and what an address can do

BLOOD = published.small(SOURCES["bloodmnist"], 24, 8)


def test_bloodmnist_is_read_without_its_validation_part(tmp_path):
    arrays = more.bloodmnist_file(tmp_path / "bloodmnist.npz", {"train": 24, "val": 8, "test": 8})
    blood = import_into(BLOOD, tmp_path / "bloodmnist.npz", tmp_path / "root", check=True)
    np.testing.assert_array_equal(blood.train_images, arrays["train_images"])
    np.testing.assert_array_equal(blood.train_labels, arrays["train_labels"][:, 0])
    np.testing.assert_array_equal(blood.test_images, arrays["test_images"])


def test_a_bloodmnist_without_an_array_is_refused(tmp_path):
    more.bloodmnist_file(tmp_path / "bloodmnist.npz", {"train": 24, "test": 8}, leave_out="test_labels")
    with pytest.raises(DataError, match="has no array 'test_labels': it has test_images, train_images, train_labels"):
        import_into(BLOOD, tmp_path / "bloodmnist.npz", tmp_path / "root", check=True)
    assert_nothing_left(tmp_path / "root")


@pytest.fixture
def server(tmp_path):
    """A web server on this machine. What is asked for under /cut ends early, whatever its length was said to be."""
    (tmp_path / "site").mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            pass

        def do_GET(self):
            if not self.path.startswith("/cut/"):
                return super().do_GET()
            content = (tmp_path / "site" / self.path[len("/cut/") :]).read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) // 2])
            return None

    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Handler, directory=str(tmp_path / "site"))
    ) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield tmp_path / "site", f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


def blood_at(address: str, **facts):
    return published.small(BLOOD, 24, 8, home=Url(address, "bloodmnist.npz"), **facts)


def test_a_file_is_fetched_checked_and_converted(server, tmp_path):
    site, address = server
    arrays = more.bloodmnist_file(site / "bloodmnist.npz", {"train": 24, "val": 8, "test": 8})
    digest = hashlib.md5((site / "bloodmnist.npz").read_bytes()).hexdigest()
    seen = []
    source = blood_at(f"{address}/bloodmnist.npz", checksums={"bloodmnist.npz": f"md5:{digest}"})
    blood = load_from(source, tmp_path / "root", progress=lambda *call: seen.append(call))
    np.testing.assert_array_equal(blood.test_images, arrays["test_images"])
    size = (site / "bloodmnist.npz").stat().st_size
    assert ("fetching bloodmnist.npz", size, size) in seen
    assert [p.name for p in (tmp_path / "root").iterdir()] == ["bloodmnist"]
    assert len(list((tmp_path / "root" / "bloodmnist").iterdir())) == 4


@pytest.mark.parametrize(
    ("path", "checksum", "message"),
    [
        ("/cut/bloodmnist.npz", None, "(could not be fetched|ended after)"),
        ("/bloodmnist.npz", "md5:" + 32 * "0", "not the published 00000"),
        ("/elsewhere.npz", None, "could not be fetched: (HTTP Error 404: )?(File )?[Nn]ot [Ff]ound"),
    ],
)
def test_a_failed_fetch_leaves_nothing(server, tmp_path, path, checksum, message):
    site, address = server
    more.bloodmnist_file(site / "bloodmnist.npz", {"train": 24, "val": 8, "test": 8})
    source = blood_at(address + path, checksums={"bloodmnist.npz": checksum} if checksum else {})
    with pytest.raises(DataError, match=message) as raised:
        load_from(source, tmp_path / "root")
    assert "\n" not in raised.value.message
    assert_nothing_left(tmp_path / "root")


def test_no_server_is_one_line_with_the_way_out(tmp_path):
    with pytest.raises(DataError, match="could not be fetched: Connection refused") as raised:
        load_from(blood_at("http://127.0.0.1:9/bloodmnist.npz"), tmp_path / "root")
    assert "fedkeel datasets bloodmnist --from PATH reads bloodmnist.npz" in raised.value.hint
    assert_nothing_left(tmp_path / "root")


# Yahoo! Answers

QUESTIONS = [
    (1, "Why is the sky blue?", "I'd like to know\\nreally", "Light, light, light"),
    (10, 'He said ""hi""', "", "the the the"),
    (3, "What is HTML", "the web", "It's a language, the web's"),
]
YAHOO = published.small(SOURCES["yahoo-answers"], 3, 1)


def yahoo_files() -> dict[str, bytes]:
    return {
        "yahoo_answers_csv/train.csv": more.yahoo_csv(QUESTIONS),
        "yahoo_answers_csv/test.csv": more.yahoo_csv([(2, "the unheard sky", "", "")]),
        "yahoo_answers_csv/classes.txt": b"Society & Culture\n",
    }


def test_yahoo_answers_becomes_numbers(tmp_path):
    path = published.tar_of(tmp_path / "yahoo.tar.gz", yahoo_files())
    yahoo = import_into(YAHOO, path, tmp_path / "root", check=True)
    np.testing.assert_array_equal(yahoo.train_labels, [0, 9, 2])
    assert yahoo.train_images.shape == (3, LENGTH)
    assert yahoo.train_images.dtype == np.int32
    words = (tmp_path / "root" / "yahoo-answers" / "vocabulary.txt").read_text().split("\n")
    # "the" six times, then "light" three times, then "is" twice, as is "web"? "the web", "web's" are two words
    assert words[:2] == ["the", "light"]
    assert words[2:] == sorted(words[2:], key=lambda word: (word != "is", word))
    number = {word: index for index, word in enumerate(words, 2)}
    expected = [number["the"], 1, number["sky"], *[0] * (LENGTH - 3)]
    np.testing.assert_array_equal(yahoo.test_images[0], expected)
    first = "why is the sky blue i'd like to know really light light light".split()
    np.testing.assert_array_equal(yahoo.train_images[0][: len(first)], [number[word] for word in first])


def test_the_vocabulary_is_bounded_and_long_texts_are_cut():
    vocabulary = build_vocabulary(["b a a c c", "a d"], size=4)
    assert vocabulary == {"a": 2, "c": 3}
    rows = encode(["a " * 500, "d c", ""], vocabulary)
    assert rows.shape == (3, LENGTH)
    assert set(rows[0]) == {2}
    np.testing.assert_array_equal(rows[1][:3], [1, 3, 0])
    assert set(rows[2]) == {0}
    assert DATASETS["yahoo-answers"].vocabulary == 98_635


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'"1","title","content"\n', r"line 1 of .*train\.csv is not a topic and three texts"),
        (b'"x","a","b","c"\n', "line 1 of"),
        (more.yahoo_csv([*QUESTIONS[:2], (11, "a", "b", "c")]), "outside 0 … 9"),
        (more.yahoo_csv(QUESTIONS[:2]), "2 of the 3 samples of train_images"),
    ],
)
def test_bad_yahoo_files_are_refused(tmp_path, content, message):
    path = published.folder_of(tmp_path / "yahoo", yahoo_files() | {"yahoo_answers_csv/train.csv": content})
    with pytest.raises(DataError, match=message):
        import_into(YAHOO, path, tmp_path / "root", check=True)
    assert_nothing_left(tmp_path / "root")


@pytest.mark.slow
def test_yahoo_answers_comes_from_the_hub(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets", reason="the extra fedkeel[download] is not installed")
    monkeypatch.setenv("FEDKEEL_HUB", str(tmp_path / "hub"))
    names = ("topic", "question_title", "question_content", "best_answer")

    def columns(rows):
        table = dict(zip(names, (list(column) for column in zip(*rows, strict=True)), strict=True))
        return {"id": list(range(len(rows)))} | table | {"topic": [topic - 1 for topic in table["topic"]]}

    features = {"id": datasets.Value("int32"), "topic": datasets.ClassLabel(num_classes=10)}
    features |= {name: datasets.Value("string") for name in names[1:]}
    splits = {"train": columns(QUESTIONS), "test": columns([(2, "the unheard sky", "", "")])}
    repository = SOURCES["yahoo-answers"].card.home.repository
    published.hub_repository(tmp_path / "hub", repository, splits, features, "yahoo_answers_topics")
    yahoo = load_from(YAHOO, tmp_path / "root")
    path = published.folder_of(tmp_path / "yahoo", yahoo_files())
    same = import_into(YAHOO, path, tmp_path / "other", check=True)
    np.testing.assert_array_equal(yahoo.train_images, same.train_images)
    np.testing.assert_array_equal(yahoo.test_labels, same.test_labels)


# CIFAR-C

ALL = [*CORRUPTIONS, *EXTRA]
LABELS = np.array([3, 8, 8, 0])


@pytest.fixture
def cifar10_c(tmp_path, monkeypatch):
    """CIFAR-10-C of four test images over a small CIFAR-10, with the root that holds both."""
    clean = published.small(SOURCES["cifar10"], 20, 4)
    train = (published.colour_images(20), published.class_labels(20, 10))
    files = published.cifar10_files(train, (published.colour_images(4, seed=1), LABELS), "binary")
    monkeypatch.setitem(SOURCES, "cifar10", clean)
    import_into(clean, published.folder_of(tmp_path / "clean", files), tmp_path / "root", check=True)
    from fedkeel.data.datasets import cifar_c

    source = published.small(SOURCES["cifar10-c"], 20, 15 * len(LABELS))
    return dataclasses.replace(source, open=cifar_c.make_opener(clean)), train, tmp_path / "root"


@pytest.mark.parametrize("pack", [published.tar_of, published.folder_of])
def test_cifar_c_tests_on_fifteen_corruptions_at_severity_three(tmp_path, cifar10_c, pack):
    source, train, root = cifar10_c
    path = pack(tmp_path / "CIFAR-10-C", more.cifar_c_files("CIFAR-10-C", LABELS, ALL))
    corrupted = import_into(source, path, root, check=True)
    np.testing.assert_array_equal(corrupted.train_images, train[0])
    assert corrupted.test_images.shape == (60, 32, 32, 3)
    np.testing.assert_array_equal(corrupted.test_labels, np.tile(LABELS, 15))
    np.testing.assert_array_equal(corrupted.test_groups, np.arange(15).repeat(4))
    np.testing.assert_array_equal(corrupted.test_images[:][:, 0, 0, 0], 60 + corrupted.test_groups)
    assert all(isinstance(part, np.memmap) for part in corrupted.test_images.parts)
    rows = np.array([59, 0, 17])
    np.testing.assert_array_equal(corrupted.test_images[rows], np.asarray(corrupted.test_images)[rows])
    np.testing.assert_array_equal(corrupted.test_images[5], np.asarray(corrupted.test_images)[5])


def test_a_cifar_c_that_lacks_a_corruption_is_refused(tmp_path, cifar10_c):
    source, _, root = cifar10_c
    path = published.folder_of(tmp_path / "c", more.cifar_c_files("C", LABELS, ALL[1:]))
    with pytest.raises(DataError, match=r"lacks gaussian_noise\.npy"):
        import_into(source, path, root, check=True)
    assert [p.name for p in root.iterdir()] == ["cifar10"]


def test_a_truncated_cifar_c_array_is_refused(tmp_path, cifar10_c):
    source, _, root = cifar10_c
    files = more.cifar_c_files("C", LABELS, ALL)
    files["C/fog.npy"] = files["C/fog.npy"][:-1]
    with pytest.raises(DataError, match=r"fog\.npy cannot be read"):
        import_into(source, published.folder_of(tmp_path / "c", files), root, check=True)
    assert [p.name for p in root.iterdir()] == ["cifar10"]


def test_cifar_c_needs_its_clean_images(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDKEEL_HUB", str(tmp_path / "no hub"))
    pytest.importorskip("datasets", reason="the extra fedkeel[download] is not installed")
    with pytest.raises(DataError, match="uoft-cs/cifar10"):
        load("cifar10-c", tmp_path / "root")


def test_the_published_labels_of_cifar10_c_are_the_real_test_labels(real_data):
    labels = load("cifar10", real_data("cifar10")).test_labels.astype(np.uint8)
    digest = hashlib.md5(more.npy(np.tile(labels, 5))).hexdigest()
    assert DATASETS["cifar10-c"].checksums["labels.npy"] == f"md5:{digest}"


def test_joined_arrays_are_pickled_by_place(tmp_path, cifar10_c):
    source, _, root = cifar10_c
    import_into(source, published.folder_of(tmp_path / "c", more.cifar_c_files("C", LABELS, ALL)), root, check=True)
    corrupted = load_from(source, root)
    assert len(pickle.dumps(corrupted)) < 10_000

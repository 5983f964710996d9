"""Small files that ask for much memory: refused by what they state, before anything of it is reserved."""

from __future__ import annotations

import gzip
import io
import pickle
import struct
import tarfile
import tracemalloc
import zipfile
import zlib

import numpy as np
import published
import pytest

from fedkeel.data.datasets import SOURCES
from fedkeel.data.storage.archives import read_array
from fedkeel.data.storage.folder import open_array
from fedkeel.data.storage.loading import import_into
from fedkeel.data.storage.pickles import read_pickle
from fedkeel.errors import DataError

MB = 1 << 20
HUGE = bytes(48 * MB)
CIFAR10 = published.small(SOURCES["cifar10"], 20, 6)
MNIST = published.small(SOURCES["mnist"], 12, 4)
BLOOD = published.small(SOURCES["bloodmnist"], 12, 4)
YAHOO = published.small(SOURCES["yahoo-answers"], 4, 2)


@pytest.fixture
def modest():
    """No more than 16 MB are reserved meanwhile."""
    tracemalloc.start()
    yield
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 16 * MB


def zip_of(path, files):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def tar_of(path, files, mode="w:gz"):
    with tarfile.open(path, mode, **{"w:gz": {"compresslevel": 1}, "w:xz": {"preset": 0}}.get(mode, {})) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def long_header(path):
    """A tar archive whose first member's extended header has 100 MB: `tarfile` would read it whole."""
    size = 100 * MB
    member = tarfile.TarInfo("x")
    member.type, member.size = tarfile.XHDTYPE, size
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(member.tobuf(tarfile.USTAR_FORMAT))
        for _ in range(size // MB):
            file.write(bytes(MB))
    return path


def npy(shape, dtype, content=b""):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue() + content


def png(side):
    """The start of a PNG file of so many pixels a side."""
    head = b"IHDR" + struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    data = b"IDAT" + zlib.compress(bytes(100))
    chunks = (struct.pack(">I", len(part) - 4) + part + struct.pack(">I", zlib.crc32(part)) for part in (head, data))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


ARCHIVES = {
    "zip": (CIFAR10, lambda path: zip_of(path / "c.zip", {"data_batch_1.bin": HUGE})),
    "zip, pickled": (CIFAR10, lambda path: zip_of(path / "c.zip", {"a/data_batch_1": HUGE})),
    "many files": (CIFAR10, lambda path: zip_of(path / "c.zip", {f"{i}/data_batch_1": HUGE[:MB] for i in range(40)})),
    "tar.gz": (CIFAR10, lambda path: tar_of(path / "c.tar.gz", {"data_batch_1.bin": HUGE})),
    "tar.xz": (CIFAR10, lambda path: tar_of(path / "c.tar.xz", {"data_batch_1.bin": HUGE}, "w:xz")),
    "a tar without its name": (CIFAR10, lambda path: tar_of(path / "cifar", {"data_batch_1.bin": HUGE})),
    "a long header": (CIFAR10, lambda path: long_header(path / "c.tar.gz")),
    "a long header without its name": (CIFAR10, lambda path: long_header(path / "cifar")),
    "gz": (MNIST, lambda path: written(path / "train-images-idx3-ubyte.gz", gzip.compress(HUGE, 1))),
    "npz": (BLOOD, lambda path: zip_of(path / "b.npz", {"train_images.npy": npy((48 * MB,), "|u1", HUGE)})),
    "npz, stated only": (BLOOD, lambda path: zip_of(path / "b.npz", {"train_images.npy": npy((1 << 40, 9), "|u1")})),
    "npz of objects": (BLOOD, lambda path: zip_of(path / "b.npz", {"train_images.npy": npy((1,), "|O", b"x")})),
    "npz, negative": (BLOOD, lambda path: zip_of(path / "b.npz", {"train_images.npy": npy((-1, -9), "|u1")})),
    "a line without an end": (YAHOO, lambda path: written(path / "train.csv", b"x" * 3 * MB)),
}


def written(path, content):
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("kind", ARCHIVES)
def test_an_archive_is_judged_by_what_it_states(tmp_path, kind, request):
    source, make = ARCHIVES[kind]
    path = make(tmp_path)
    if source is BLOOD and zipfile.is_zipfile(path):
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr("train_labels.npy", npy((12, 1), "|u1", bytes(12)))
    request.getfixturevalue("modest")
    with pytest.raises(DataError) as caught:
        import_into(source, path, tmp_path / "root", check=False)
    assert "\n" not in caught.value.message
    assert not (tmp_path / "root" / source.card.name).exists()


@pytest.mark.slow
def test_a_yahoo_archive_of_much_nothing_is_refused_before_it_is_gone_through(tmp_path):
    path = tar_of(tmp_path / "yahoo.tar.xz", {"train.csv": bytes(80 * MB)}, "w:xz")
    with pytest.raises(DataError, match=r"states 83\.9 MB"):
        import_into(YAHOO, path, tmp_path / "root", check=False)


def reconstructed(shape):
    """A pickle that has numpy reserve an array of a shape."""
    return (
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n"
        + pickle.dumps((shape,), 2)[2:-1]
        + (b"U\x01b\x87R.")
    )


PICKLES = {
    "a high number": b"\x80\x02}r" + struct.pack("<I", 1 << 24) + b".",
    "a high number in text": b"}p99999999\n.",
    "a long array of bytes": b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b".",
    "an array of objects": pickle.dumps({"data": np.array([1, "x"], object)}, 2),
    "an array of records": pickle.dumps({"data": np.zeros(2, [("a", "u1"), ("b", "f8")])}, 2),
    "an array of texts": pickle.dumps({"data": np.array(["a" * 9])}, 2),
}


@pytest.mark.parametrize("kind", PICKLES)
@pytest.mark.usefixtures("modest")
def test_a_pickle_is_gone_through_before_it_is_loaded(kind):
    with pytest.raises(DataError):
        read_pickle("data_batch_1", PICKLES[kind])


def test_a_pickle_has_so_many_parts_at_most(monkeypatch):
    monkeypatch.setattr("fedkeel.data.storage.pickles.OPERATIONS", 1000)
    assert len(read_pickle("data_batch_1", b"\x80\x02]" + b"]a" * 400 + b".")) == 400
    with pytest.raises(DataError, match="more than 1000 parts"):
        read_pickle("data_batch_1", b"\x80\x02]" + b"]a" * 600 + b".")


@pytest.mark.usefixtures("modest")
def test_an_array_has_the_size_of_its_bytes():
    found = read_pickle("data_batch_1", reconstructed((1 << 31,)))
    assert found.array.size == 0
    with pytest.raises(DataError, match="damaged"):
        read_pickle("data_batch_1", pickle.dumps(np.zeros(4, np.uint8), 2).replace(b"K\x04", b"K\x09"))


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["u1", "<i8", ">f4", "?"])
def test_arrays_of_numbers_are_read_as_numpy_reads_them(dtype, order):
    array = np.asarray(np.arange(12).reshape(3, 4), dtype, order=order)
    found = read_pickle("x", pickle.dumps({"data": array}, 2))["data"].array
    np.testing.assert_array_equal(found, array)
    assert found.dtype == array.dtype


def test_a_picture_is_judged_by_its_header():
    pytest.importorskip("PIL")
    from fedkeel.data.storage.pictures import decode_image

    for side in (9_000, 40_000):
        with pytest.raises(DataError, match=r"pixels|damaged"):
            decode_image("image", png(side), (1, 64, 64), resize=True)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "GIF", "BMP"])
def test_a_picture_is_known_by_its_content_and_not_by_its_name(form):
    image = pytest.importorskip("PIL.Image")
    from fedkeel.data.storage.pictures import decode_image

    image.fromarray(np.full((8, 8), 90, np.uint8)).save(file := io.BytesIO(), form)
    assert np.array_equal(decode_image("one.jpg", file.getvalue(), (1, 8, 8)), np.full((8, 8), 90))


POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 16 16\n%%EndComments\nshowpage\n%%EOF\n"
PPM = b"P6 16 16 70000\n" + bytes(16)


@pytest.mark.parametrize("content", [POSTSCRIPT, PPM], ids=["postscript", "ppm"])
def test_no_picture_starts_a_program(content, monkeypatch):
    pytest.importorskip("PIL")
    from fedkeel.data.storage.pictures import decode_image

    def start(*given, **named):
        raise AssertionError("Pillow starts Ghostscript")

    monkeypatch.setattr("PIL.EpsImagePlugin.has_ghostscript", lambda: True)
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", start)
    with pytest.raises(DataError, match=r"one\.png is damaged, or none of these: PNG, JPEG"):
        decode_image("one.png", content, (3, 16, 16))


HEADERS = [
    "(", "'''", "{[]:1}", "  {}\n {", "{'descr': '|u1', 'fortran_order': False, 'shape': (True,)}",
    f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({10**31},)}}",
    f"{{'descr': '|u1', 'fortran_order': False, 'shape': (0, {10**31})}}",
    "{'descr': '|u1', 'fortran_order': False, 'shape': (-1,)}",
    "{'descr': '|V0', 'fortran_order': False, 'shape': (5,)}",
]  # fmt: skip


@pytest.mark.parametrize("header", HEADERS)
def test_a_damaged_header_of_an_array_is_damage(tmp_path, header):
    file = tmp_path / "x.npy"
    file.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + bytes(16))
    with pytest.raises(DataError, match="cannot be read"):
        open_array(file, np.uint8, 0, ())
    with pytest.raises(DataError, match="damaged"), file.open("rb") as opened:
        read_array("x.npy", opened, 100)


def test_nested_json_is_damage(tmp_path):
    deep = written(tmp_path / "all_data.json", b'{"user_data": ' + b"[" * 200_000)
    for name in ("femnist", "shakespeare"):
        with pytest.raises(DataError, match="damaged"):
            import_into(SOURCES[name], deep, tmp_path / "root", check=False)


def test_an_archive_in_place_of_an_array_is_damage(tmp_path):
    np.savez(tmp_path / "x.npz", a=np.zeros(3))
    with pytest.raises(DataError, match="cannot be read"):
        open_array(tmp_path / "x.npz", np.uint8, 3, ())
    np.save(tmp_path / "o.npy", np.array([1, "x"], object), allow_pickle=True)
    with pytest.raises(DataError, match="cannot be read"):
        open_array(tmp_path / "o.npy", np.uint8, 2, ())

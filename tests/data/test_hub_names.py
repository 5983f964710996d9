"""`hf:NAME`: any set of labelled pictures, its columns found or named, kept in the data folder with its digest."""

import io
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import fedkeel as fk
from fedkeel.data import load
from fedkeel.data.storage.hub_sets import read_name
from fedkeel.data.storage.loading import find_card, is_here
from fedkeel.studies.group_accuracy import name_group


@pytest.fixture(scope="module")
def library():
    return pytest.importorskip("datasets", reason="the extra fedkeel[download] is not installed")


PICTURES = np.random.default_rng(0).integers(0, 255, (60, 8, 8), dtype=np.uint8)
PICTURES[:, :4] //= 8


def saved(library, place, size=(8, 8), pictures=PICTURES, **columns):
    """A folder that `save_to_disk` wrote: pictures whose bright half turns with the label."""
    from PIL import Image

    def rows(pictures):
        label = np.arange(len(pictures)) % 3
        turned = [np.rot90(one, k) for one, k in zip(pictures, label, strict=True)]
        made = {"picture": [Image.fromarray(one).resize(size) for one in turned], "kind": label.tolist()}
        made |= {name: [value(i) for i in range(len(pictures))] for name, value in columns.items()}
        kinds = {"picture": library.Image(), "kind": library.ClassLabel(names=["up", "left", "down"])}
        kinds |= {
            name: library.Value("int64" if isinstance(value(0), int) else "string") for name, value in columns.items()
        }
        return library.Dataset.from_dict(made, features=library.Features(kinds))

    library.DatasetDict(train=rows(pictures[:45]), test=rows(pictures[45:])).save_to_disk(str(place))


@pytest.fixture
def here(library, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDKEEL_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    saved(library, "shapes", writer=lambda i: f"w{i % 5}")
    return tmp_path


@pytest.mark.slow
def test_a_set_is_brought_in_once_and_then_trained_offline(here, fedkeel, monkeypatch):
    monkeypatch.chdir(here)
    words = (
        "run --dataset hf:shapes --model logistic --method fedavg --rounds 2 --partition iid:clients=3 --engine serial"
    )
    assert not is_here("hf:shapes")
    shown = fedkeel("datasets", "hf:shapes")
    assert (shown.code, "on first use" in " ".join(shown.out.split())) == (0, True), shown.err
    done = fedkeel(*words.split(), "--out", "a", "--json")
    assert done.code == 0, done.err
    monkeypatch.setitem(sys.modules, "datasets", None)
    (here / "shapes").rename(here / "gone")
    again = fedkeel(*words.split(), "--out", "b", "--json")
    assert again.code == 0, again.err
    first, second = (json.loads(one.out)["runs"][0]["result"] for one in (done, again))
    assert first == second
    card = find_card("hf:shapes")
    assert (card.classes, card.shape, card.train, card.test) == (3, (1, 8, 8), 45, 15)
    data = load("hf:shapes")
    assert np.array_equal(data.test_labels, np.arange(15) % 3)
    assert np.array_equal(data.train_images[1], np.rot90(PICTURES[1]))
    assert card.mean[0] == pytest.approx(float(data.train_images[:].mean()) / 255, abs=1e-3)
    assert fk.load_run("a").experiment.save()["dataset"] == "hf:shapes"
    shown = fedkeel("datasets", "hf:shapes")
    assert (shown.code, card.checksums["data"] in shown.out, "left out" in shown.out) == (0, True, False)
    pinned = f"hf:shapes,digest={card.checksums['data']}"
    assert load(pinned).card.folder == card.folder
    with pytest.raises(fk.DataError, match="not 1234"):
        load("hf:shapes,digest=1234")


def test_a_run_does_not_go_on_with_other_data(here, library, fedkeel):
    """A repository that changed has the same name; the folder remembers what the run was begun on."""
    settings = {"dataset": "hf:shapes", "model": "logistic", "partition": "iid:clients=3", "lr": 0.1}
    fk.run(fk.Experiment(**settings, rounds=1), out="a", engine="serial")
    before, kept = find_card("hf:shapes").checksums["data"], Path("a/rounds.jsonl").read_bytes()
    shutil.rmtree(here / "data")
    saved(library, "shapes", writer=lambda i: f"w{i % 5}", pictures=PICTURES[::-1])
    for again in (fk.Experiment(**settings, rounds=2), fk.load_run("a").experiment.with_(rounds=2)):
        with pytest.raises(fk.FolderError, match=f"begun on other data: those of hf:shapes were {before}"):
            fk.run(again, out="a", engine="serial")
    shown = fedkeel("resume", "a")
    assert (shown.code, "begun on other data" in shown.err) == (2, True)
    assert Path("a/rounds.jsonl").read_bytes() == kept
    saved(library, "shapes", writer=lambda i: f"w{i % 4}", pictures=PICTURES[::-1])  # read again by this command
    looked = fedkeel("analyse", "a", "--hessian")
    assert (looked.code, "begun on other data" in looked.err, Path("a/analysis").exists()) == (2, True, False)


def test_a_folder_that_has_changed_is_read_again(here, library, caplog):
    """Rows that were left out and saved again, or another project's folder of the same name."""
    before = load("hf:shapes").card.checksums["data"]
    assert load("hf:shapes").card.checksums["data"] == before
    (here / "shapes" / "train" / "cache-0123.arrow").write_bytes(b"what the library leaves there")
    assert is_here("hf:shapes")
    assert not caplog.messages
    saved(library, "shapes", pictures=PICTURES[::-1])
    assert not is_here("hf:shapes")
    assert np.array_equal(load("hf:shapes").train_images[0], PICTURES[-1])
    assert caplog.messages == ["hf:shapes is read again: its folder has changed since it was brought in"]
    after = find_card("hf:shapes").checksums["data"]
    assert after != before
    shutil.copytree("shapes", "copy")
    shutil.rmtree("shapes")
    assert load("hf:shapes").card.checksums["data"] == after
    (here / "copy").rename(here / "shapes")
    saved(library, "shapes", pictures=PICTURES[::-1])
    assert load("hf:shapes").card.checksums["data"] == after


def test_columns_and_natural_clients_are_named(here):
    data = load("hf:shapes,image=picture,label=kind,group=writer")
    assert np.array_equal(data.groups, np.arange(45) % 5)
    natural = fk.Experiment(
        dataset="hf:shapes,group=writer", partition="natural", model="logistic", rounds=1, participation=1.0
    )
    assert fk.run(natural, engine="serial").sizes == [9] * 5
    by_writer = load("hf:shapes,label=writer,size=4")
    assert (by_writer.classes, by_writer.shape) == (5, (1, 4, 4))


@pytest.mark.parametrize("top", ["scans", "scans/train"])
def test_pictures_in_folders_belong_to_the_folder_above_their_class(here, top):
    from PIL import Image

    owners = {"lyon": ("ill", "well"), "berlin": ("well",), "turin": ("ill", "well")}
    brightness = {}
    for place, (owner, kinds) in enumerate(owners.items()):
        for kind in kinds:
            for i in range(10):
                file = here / top / owner / kind / f"{i}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                brightness[owner, kind] = 40 * place + 20 * (kind == "ill")
                Image.new("L", (8, 8), brightness[owner, kind]).save(file)
    if top != "scans":
        (here / "scans" / "test").mkdir()
        shutil.copytree(here / top / "lyon", here / "scans" / "test" / "lyon")
    data = load("hf:scans,group=folder")
    assert data.card.owners == ("berlin", "lyon", "turin")
    shown = {
        (data.card.owners[owner], ("ill", "well")[label]): int(picture[0, 0])
        for picture, label, owner in zip(data.train_images, data.train_labels, data.groups, strict=True)
    }
    assert shown == brightness
    natural = fk.Experiment(
        dataset="hf:scans,group=folder", partition="natural", model="logistic", rounds=1, participation=1.0
    )
    assert len(fk.run(natural, engine="serial").sizes) == 3


@pytest.mark.parametrize("top", ["scans", "scans/train"])
def test_pictures_in_folders_of_classes_alone_have_no_owner(here, top):
    from PIL import Image

    for kind in ("ill", "well"):
        (here / top / kind).mkdir(parents=True)
        Image.new("L", (8, 8)).save(here / top / kind / "0.png")
    with pytest.raises(fk.DataError, match="lies in no folder of an owner") as error:
        load("hf:scans,group=folder")
    assert "scans/OWNER/CLASS/picture.png" in error.value.hint


def paint(*files):
    """One picture for each name, of a brightness of its own."""
    from PIL import Image

    for place, file in enumerate(map(Path, files)):
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), 10 * place).save(file)


PLAIN = ("scans/lyon/ill/1.png", "scans/lyon/well/1.png", "scans/turin/ill/1.png", "scans/turin/well/1.png")
SPLIT = ("scans/train/a/ill/1.png", "scans/train/a/well/1.png", "scans/test/a/ill/1.png")
GUESSED = {  # the library `datasets` guesses splits from names; these would be scored, lost or merged in silence
    "test clinic/ill/2.png would be read twice, for train and test": (*SPLIT, "scans/train/test clinic/ill/2.png"),
    "test-x/2.png would be read twice, for test and test": (*SPLIT, "scans/test/a/test-x/2.png"),
    "4 of 5 pictures of scans would be left out": (*PLAIN, "scans/turin/ill/train_1.png"),
    "1 of 5 pictures of scans would be left out, such as .*__well": (*PLAIN, "scans/turin/__well/1.png"),
    "1 of 5 pictures of scans would be left out, such as .*2.Png": (*PLAIN, "scans/turin/well/2.Png"),
    "lies in a folder of a split that has capital letters": (*PLAIN, "scans/Test/ill/1.png"),
    "two folders of scans would be one owner: north/lyon and south/lyon": [
        f"scans/{place}/{kind}/1.png" for place in ("north/lyon", "south/lyon") for kind in ("ill", "well")
    ],
    "train_images/.* lies in no folder of an owner": [
        f"scans/{split}_images/{kind}/1.png" for split in ("train", "test") for kind in ("ill", "well")
    ],
    "no two folders of classes at the same depth": (*PLAIN, "scans/well/1.png"),
}


@pytest.mark.parametrize("line", GUESSED)
def test_folders_in_which_the_library_finds_other_pictures_than_lie_there_are_refused(here, line):
    paint(*GUESSED[line])
    with pytest.raises(fk.DataError, match=line) as error:
        load("hf:scans,group=folder")
    assert error.value.hint


def test_a_link_to_an_owner_is_not_left_out_in_silence(here):
    paint(*PLAIN, *(file.replace("scans/lyon", "others/bonn") for file in PLAIN[:2]))
    (here / "scans" / "bonn").symlink_to(here / "others" / "bonn", target_is_directory=True)
    with pytest.raises(fk.DataError, match="2 of 6 pictures of scans would be left out") as error:
        load("hf:scans,group=folder")
    assert "no link to a folder" in error.value.hint


@pytest.mark.parametrize("name", ["json", "text", "imagefolder"])
def test_a_folder_may_be_called_as_a_reader_of_the_library(here, name):
    """The library would read the folder that we are in instead."""
    paint(*(file.replace("scans", name) for file in PLAIN), "elsewhere/x/other/1.png")
    assert load(f"hf:{name},group=folder").card.owners == ("lyon", "turin")


def test_a_class_of_the_test_pictures_alone_is_named(here, caplog):
    paint(*SPLIT, "scans/test/a/wlel/1.png")
    assert load("hf:scans").card.classes == 3
    assert "no client trains on labels that the test data hold: wlel" in caplog.text


def test_a_damaged_picture_of_a_folder_is_named(here):
    paint(*PLAIN)
    (here / PLAIN[0]).write_bytes(b"no picture")
    with pytest.raises(
        fk.DataError, match=r"a folder, could not be read: cannot identify image file .*1\.png"
    ) as error:
        load("hf:scans")
    assert "network" not in error.value.hint


def test_a_folder_named_as_a_data_set_is_told_its_name(here):
    with pytest.raises(fk.DataError, match="unknown data set: shapes, which is a folder") as error:
        load("shapes")
    assert "hf:shapes" in error.value.hint


def test_the_home_folder_may_be_written_as_a_tilde(here, monkeypatch):
    monkeypatch.setenv("HOME", str(here))
    monkeypatch.setenv("USERPROFILE", str(here))
    assert np.array_equal(load("hf:~/shapes").train_images, load("hf:shapes").train_images)


def test_a_run_does_not_go_on_with_other_owners(here, library):
    """The pictures and labels are the same, and so is the digest where nobody asks for owners."""
    name, plain = "hf:shapes,group=writer", load("hf:shapes").card.checksums["data"]
    settings = {"dataset": name, "model": "logistic", "partition": "natural", "participation": 1.0}
    fk.run(fk.Experiment(**settings, rounds=1), out="a", engine="serial")
    shutil.rmtree(here / "data")
    saved(library, "shapes", writer=lambda i: f"w{4 - i % 5}")
    with pytest.raises(fk.FolderError, match="begun on other data") as error:
        fk.run(fk.Experiment(**settings, rounds=2), out="a", engine="serial")
    assert "up to version 1.1.0 the digest left the owners out" in error.value.hint
    assert load("hf:shapes").card.checksums["data"] == plain


def test_owners_have_their_own_order_and_names(here, library):
    for column, names in {
        "writer": [f"w{n}" for n in range(5)],
        "number": [str(n) for n in range(12)],  # not 0, 1, 10, 11, 2
        "kind": ["up", "left", "down"],
    }.items():
        saved(library, "shapes", writer=lambda i: f"w{i % 5}", number=lambda i: i % 12)
        data = load(f"hf:shapes,label=kind,group={column}")
        assert np.array_equal(data.groups, np.arange(45) % len(names))
        assert [name_group(data.card, n) for n in range(len(names))] == [f"{column} {name}" for name in names]


def test_a_copy_of_1_1_0_has_owners_without_names(here):
    card = next(load("hf:shapes,group=writer").root.glob("*/card.json"))
    card.write_text(json.dumps({k: v for k, v in json.loads(card.read_text()).items() if k != "owners"}))
    assert name_group(load("hf:shapes,group=writer").card, 3) == "writer 3"


def test_a_row_without_an_owner_is_refused(here, library):
    saved(library, "shapes", writer=lambda i: None if i % 9 == 4 else f"w{i % 5}")
    with pytest.raises(fk.DataError, match="column writer of shapes names no owner in 7 of 60 rows"):
        load("hf:shapes,group=writer")


def test_spaces_at_the_ends_of_words_make_no_owner_and_no_class(here, library):
    words = ["w0", "w0 ", " w1", "w1", "w2"]
    saved(library, "shapes", writer=lambda i: words[i % 5])
    data = load("hf:shapes,label=kind,group=writer")
    assert np.array_equal(data.groups, np.array([0, 0, 1, 1, 2])[np.arange(45) % 5])
    assert np.array_equal(load("hf:shapes,label=writer").train_labels, data.groups)
    saved(library, "blank", writer=lambda i: " " if i % 9 == 4 else f"w{i % 5}")
    with pytest.raises(fk.DataError, match="column writer of blank names no owner in 7 of 60 rows"):
        load("hf:blank,group=writer")


def test_a_word_of_the_test_split_alone_is_named(here, library, caplog):
    rows = library.load_from_disk("shapes")
    other = rows["test"].map(lambda row: {"writer": row["writer"].replace("w4", "W4")})
    library.DatasetDict(train=rows["train"], test=other).save_to_disk("spelt")
    data = load("hf:spelt,label=writer")
    assert (data.card.classes, 0 in data.train_labels, 0 in data.test_labels) == (6, False, True)
    assert "no client trains on labels that the test data hold: W4" in caplog.text


def test_splits_that_number_their_classes_otherwise_are_refused(here, library):
    """Each split says the names of its classes; those of the other would be scored as these."""
    rows, turned = library.load_from_disk("shapes"), library.ClassLabel(names=["down", "left", "up"])
    library.DatasetDict(train=rows["train"], test=rows["test"].cast_column("kind", turned)).save_to_disk("turned")
    with pytest.raises(fk.DataError, match="the splits of turned number the classes of kind otherwise"):
        load("hf:turned")


@pytest.mark.parametrize("missing", [None, ""])
def test_rows_without_a_label_are_refused_in_one_line(here, library, missing):
    saved(library, "shapes", writer=lambda i: missing if i % 9 == 4 else f"w{i % 5}")
    with pytest.raises(fk.DataError, match="column writer of shapes has no label in 7 of 60 rows"):
        load("hf:shapes,label=writer")
    rows = library.load_from_disk("shapes")
    rows.map(lambda row, i: {"kind": None if i == 4 else row["kind"]}, with_indices=True).save_to_disk("kinds")
    with pytest.raises(fk.DataError, match="column kind has samples without a class"):
        load("hf:kinds")


def test_a_row_without_a_picture_is_refused_in_one_line(here, library):
    library.load_from_disk("shapes")["train"].map(
        lambda row, i: {"picture": None if i == 4 else row["picture"]}, with_indices=True
    ).save_to_disk("holes")
    with pytest.raises(fk.DataError, match="a row has no picture") as refused:
        load("hf:holes")
    assert "leave them out" in refused.value.hint


def test_no_picture_of_a_repository_starts_a_program(here, library, monkeypatch):
    image = pytest.importorskip("PIL.Image")
    script = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"
    rows = {"picture": [{"bytes": script, "path": "one.png"}] * 6, "kind": [0, 1] * 3}
    kinds = {"picture": library.Image(), "kind": library.ClassLabel(names=["a", "b"])}
    library.Dataset.from_dict(rows, features=library.Features(kinds)).save_to_disk("scripts")
    started = []
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *given: started.append(given))
    with pytest.raises(fk.DataError, match="cannot identify image file"):
        load("hf:scripts")
    assert not started
    assert image.open(io.BytesIO(script)).format == "EPS", "Pillow is as it was"


def test_pictures_of_16_bits_are_refused(here, library):
    saved(library, "deep", pictures=PICTURES.astype(np.uint16) * 257)
    with pytest.raises(fk.DataError, match="a picture has more than 8 bits for each pixel"):
        load("hf:deep")


def test_a_set_without_a_test_split_sets_a_fifth_aside(here, library):
    library.load_from_disk("shapes")["train"].save_to_disk("alone")
    data = load("hf:alone")
    assert (len(data.train_labels), len(data.test_labels)) == (36, 9)


def test_columns_of_numbers_are_data_of_a_client(library):
    rows = [{"x": [float(i), 1.0], "diagnosis": i % 2} for i in range(6)]
    given = fk.Problem(
        model=torch.nn.Linear(2, 2), loss=torch.nn.functional.cross_entropy, label="diagnosis",
        clients=[library.Dataset.from_list(rows), library.Dataset.from_list(rows).with_format("torch")],
    )  # fmt: skip
    one, other = ([part.float() for part in client] for client in map(given.data.rows, (0, 1), [np.arange(6)] * 2))
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert one[0].shape == (6, 2)
    assert one[1].tolist() == [0, 1, 0, 1, 0, 1]


WRONG = {
    "has an unknown key: lable": "hf:shapes,lable=kind",
    "has no column: kidn": "hf:shapes,label=kidn",
    "has no column: wirter": "hf:shapes,group=wirter",
    "has no split: tset": "hf:shapes,test=tset",
    "gives size no number": "hf:shapes,size=big",
    "names no repository": "hf:",
    "0 columns of pictures; its columns are: writer": "hf:texts",
    "2 columns that may be the label": "hf:double",
}


def test_what_is_not_understood_is_refused_in_one_line(here, library):
    both = library.load_from_disk("shapes")
    both.remove_columns(["picture", "kind"]).save_to_disk("texts")
    train = both["train"]
    double = train.add_column("other", train["kind"]).cast_column("other", train.features["kind"])
    double.save_to_disk("double")
    for line, name in WRONG.items():
        with pytest.raises(fk.DataError) as error:
            load(name)
        assert line in error.value.message
        assert "\n" not in error.value.message
        assert error.value.hint
    assert not list(Path("data").glob("*")), "nothing is left behind"


def test_names_are_read():
    asked = read_name("hf:uoft-cs/cifar10,config=plain_text,image=img,size=32")
    assert (asked.repository, asked.config, asked.image, asked.size) == ("uoft-cs/cifar10", "plain_text", "img", 32)
    assert fk.Experiment(dataset="hf:uoft-cs/cifar10").save()["dataset"] == "hf:uoft-cs/cifar10"
    with pytest.raises(fk.DataError, match="unknown key"):
        fk.Experiment(dataset="hf:a,b=1")

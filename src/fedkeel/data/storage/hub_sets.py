"""Any set of labelled pictures on the Hugging Face hub by its name, `hf:REPOSITORY`, its columns found or named."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkeel.data.clients import TARGETS
from fedkeel.data.dataset import HUB, Dataset, DatasetCard, Hub
from fedkeel.data.storage.download import BATCH, explain_errors, is_folder, load_repository, stamp_of
from fedkeel.data.storage.folder import Draft, damaged, is_complete, open_folder
from fedkeel.data.storage.hub_folders import check_folder
from fedkeel.data.storage.hub_owners import LEAVE_OUT, find_owners, is_missing, number_owners, trim
from fedkeel.data.storage.pictures import refuse_deep
from fedkeel.data.storage.source import Source
from fedkeel.data.tables import warn_of_untrained
from fedkeel.errors import DataError, require_known
from fedkeel.randomness import key, permutation

log = logging.getLogger("fedkeel")

CARD = "card.json"
TEST_SHARE = 5
PRESET = {
    "model": "small-cnn", "partition": {"kind": "dirichlet", "alpha": 0.1, "clients": 20}, "rounds": 50,
    "participation": 0.5, "epochs": 2, "batch_size": 32, "lr": 0.05, "augment": "none",
}  # fmt: skip
"""Plain settings, tuned for nothing."""
READ = ("classes", "shape", "train", "test", "mean", "std", "natural")


@dataclass(frozen=True)
class HubName:
    """`hf:REPOSITORY,image=…,label=…`: a repository or folder, its columns and splits, and how pictures are brought in.

    `group` is the column of natural clients, `size` the pixels that pictures are brought to, `digest` what the data are
    known to be.
    """

    repository: str
    config: str | None = None
    image: str | None = None
    label: str | None = None
    group: str | None = None
    train: str = "train"
    test: str | None = None
    size: int | None = None
    digest: str | None = None


def read_name(name: str) -> HubName:
    """Read `hf:NAME,key=value,…`; refuse keys that there are not."""
    repository, *rest = name.removeprefix(HUB).split(",")
    if not repository.strip():
        raise DataError(f"{name} names no repository.", "--dataset hf:ylecun/mnist")
    known = [field.name for field in fields(HubName)][1:]
    given: dict[str, Any] = {}
    for part in rest:
        word, equals, value = (one.strip() for one in part.partition("="))
        require_known(word, known, f"{name} has an unknown key", "keys", DataError)
        if not equals or not value or (word == "size" and not (value.isdigit() and int(value) > 0)):
            raise DataError(f"{name} gives {word} no {'number' if word == 'size' else 'value'}.", f"{word}=…")
        given[word] = int(value) if word == "size" else value
    return HubName(repository.strip(), **given)


def hub_source(name: str, root: Path) -> Source:
    """The source of a set on the hub; what is known of it before it is here is its name."""
    asked = read_name(name)
    home = Hub(asked.repository, asked.image or "", asked.label or "", asked.group, asked.config)
    place = "a folder" if is_folder(asked.repository) else "from the Hugging Face hub"
    plain = DatasetCard(
        name, f"{asked.repository}, {place}", 0, (), 0, 0, home, "see its page", "", preset=PRESET,
        natural=asked.group, notes="Plain settings, tuned for nothing: name your own.",
    )  # fmt: skip
    return Source(read_card(plain, root / plain.folder), open_hub, is_whole, fetch=fetch)


def is_whole(card: DatasetCard, folder: Path) -> bool:
    """Whether the set is here, and as its folder is now where it came from one."""
    if not (is_complete(card, folder) and (folder / CARD).is_file()):
        return False
    before, now = read_stamp(folder), stamp_of(read_name(card.name).repository)
    return None in (before, now) or before == now


def read_stamp(folder: Path) -> str | None:
    """The stamp of the folder that a set was read from; None where it came over the network, or was read by an older
    version."""
    found: Any = json.loads((folder / CARD).read_text(encoding="utf-8")).get("stamp")
    return found


def read_card(card: DatasetCard, folder: Path) -> DatasetCard:
    """The card with what was found when the set was brought in; as it is where the set is not here."""
    if not (folder / CARD).is_file():
        return card
    try:
        found = json.loads((folder / CARD).read_text(encoding="utf-8"))
        facts: dict[str, Any] = {
            name: tuple(value) if isinstance(value := found[name], list) else value for name in READ
        }
        owners = tuple(map(str, found.get("owners", ())))  # up to version 1.1.0 they had no names
        return replace(card, **facts, owners=owners, checksums={"data": str(found["digest"])})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise damaged(folder / CARD, "cannot be read") from error


def open_hub(card: DatasetCard, folder: Path, root: Path) -> Dataset:
    """Map the arrays; refuse others than the name asks for."""
    card = read_card(card, folder)
    digest, asked = card.checksums["data"], read_name(card.name).digest
    if asked is not None and not digest.startswith(asked):
        raise DataError(
            f"the data of {card.name} are {digest}, not {asked}.",
            "the repository has changed; leave digest= out to go on"
            + (", as with a digest of version 1.1.0 or before, which left owners out" if card.natural else ""),
        )
    return open_folder(card, folder, root)


# ---- bringing it in ------------------------------------------------------------------------------------------------
def fetch(draft: Draft) -> None:
    """Read both splits into arrays, with a card of what was found and a digest of all of it."""
    asked = read_name(draft.card.name)
    stamp = stamp_of(asked.repository)
    if "data" in draft.card.checksums:
        log.warning("%s is read again: its folder has changed since it was brought in", draft.card.name)
    found = load_repository(draft)
    check_folder(found, asked.repository)
    splits = choose_splits(found, asked)
    first = splits["train"]
    image, label = find_image(first, asked), find_label(first, asked)
    owned = find_owners(splits, asked.group, image, asked.repository)
    owners, names = ({}, []) if asked.group is None else number_owners(splits, owned, asked.group, asked.repository)
    classes = find_classes(splits, label, asked.repository)
    words = None if classes else list_words(splits, label, asked.repository)
    seen, sums, numbers = hashlib.sha256(), np.zeros((2, 3)), {}
    with explain_errors(draft, "train"):
        shape = picture(first[0][image], asked.size, None).shape
    for split, rows in splits.items():
        with explain_errors(draft, split), draft.array(f"{split}_images", np.uint8, (len(rows), *shape)) as file:
            for batch in rows.iter(batch_size=BATCH):
                images = np.stack([picture(one, asked.size, shape) for one in batch[image]])
                file.write(images)
                seen.update(images.tobytes())
                if split == "train":
                    sums += moments(images)
        labels = numbers[split] = number(rows[label], words, label)
        draft.save(f"{split}_labels", labels)
        seen.update(labels.tobytes())
        if asked.group is not None:
            groups = np.array([owners[str(owner)] for owner in owned[split]], np.int64)
            draft.save(f"{split}_groups", groups)
            seen.update(groups.tobytes())
    if asked.group is not None:
        seen.update(json.dumps(names).encode())
    if classes:
        warn_of_untrained([classes[one] for one in np.setdiff1d(numbers["test"], numbers["train"])])
    channels, pixels = (1 if len(shape) == 2 else 3), len(first) * shape[0] * shape[1]
    mean = sums[0, :channels] / pixels
    std = np.sqrt(np.maximum(sums[1, :channels] / pixels - mean**2, 1e-8))
    card = {
        "classes": len(classes or words or ()), "shape": [channels, *shape[:2]], "train": len(first),
        "test": len(splits["test"]), "mean": mean.round(4).tolist(), "std": std.round(4).tolist(),
        "natural": asked.group, "digest": seen.hexdigest()[:16],
        "owners": names, "stamp": stamp,
    }  # fmt: skip
    (draft.folder / CARD).write_text(json.dumps(card), encoding="utf-8", newline="\n")


def find_classes(splits: Mapping[str, Any], column: str, repository: str) -> list[str] | None:
    """The names of the classes, which both splits number alike; None where the column holds words or numbers."""
    train, test = (getattr(splits[name].features.get(column), "names", None) for name in ("train", "test"))
    if train != test:
        raise DataError(f"the splits of {repository} number the classes of {column} otherwise.", "name another: test=…")
    return train


def list_words(splits: Mapping[str, Any], column: str, repository: str) -> list[Any]:
    """The labels of a column without classes, each once and in order."""
    given = {name: [trim(label) for label in rows[column]] for name, rows in splits.items()}
    everyone = [label for labels in given.values() for label in labels]
    if missing := sum(map(is_missing, everyone)):
        line = f"column {column} of {repository} has no label in {missing} of {len(everyone)} rows."
        raise DataError(line, f"choose splits whose labels are published, or {LEAVE_OUT}")
    try:
        warn_of_untrained(sorted({*given["test"]} - {*given["train"]}))
        return sorted({*everyone})
    except TypeError:
        line = f"column {column} of {repository} holds no labels: one word or number for each picture."
        raise DataError(line, "name another: label=COLUMN") from None


def choose_splits(found: Any, asked: HubName) -> dict[str, Any]:
    """The training and the test split; without a test split a fifth, drawn by a fixed key, is set aside."""
    if not hasattr(found, "keys"):
        found = {asked.train: found}
    train = found[require_known(asked.train, list(found), f"{asked.repository} has no split", "splits", DataError)]
    names = [asked.test] if asked.test else [name for name in ("test", "validation", "valid") if name in found][:1]
    if names:
        name = require_known(names[0], list(found), f"{asked.repository} has no split", "splits", DataError)
        return {"train": train, "test": found[name]}
    order = permutation(key(0, "hub test"), len(train))
    cut = len(train) // TEST_SHARE
    return {"train": train.select(np.sort(order[cut:])), "test": train.select(np.sort(order[:cut]))}


def find_image(rows: Any, asked: HubName) -> str:
    found = [name for name, kind in rows.features.items() if type(kind).__name__ == "Image"]
    hint = "name one: image=COLUMN; of other data make a problem: fk.Problem(clients=[…]) takes datasets.Dataset"
    return choose_column(rows, asked.repository, asked.image, found, "of pictures", hint)


def find_label(rows: Any, asked: HubName) -> str:
    found = [name for name, kind in rows.features.items() if type(kind).__name__ == "ClassLabel"]
    found = found or [name for name in TARGETS if name in rows.column_names][:1]
    return choose_column(rows, asked.repository, asked.label, found, "that may be the label", "name one: label=COLUMN")


def choose_column(rows: Any, repository: str, named: str | None, found: Sequence[str], what: str, hint: str) -> str:
    """Return the column that is named, or else the only one that was found."""
    columns = rows.column_names
    if named is not None:
        return require_known(named, columns, f"{repository} has no column", "columns", DataError)
    if len(found) != 1:
        line = f"{repository} has {len(found)} columns {what}; its columns are: {', '.join(columns)}."
        raise DataError(line, hint)
    return str(found[0])


def picture(image: Any, size: int | None, shape: tuple[int, ...] | None) -> NDArray[np.uint8]:
    """A picture as an array, grey or of three colours as the first is; brought to a size where one is asked for."""
    if image is None:
        raise DataError("a row has no picture.", LEAVE_OUT)
    refuse_deep(image, "a picture")
    grey = image.mode in ("L", "1") if shape is None else len(shape) == 2
    image = image.convert("L" if grey else "RGB")
    array = np.asarray(image if size is None else image.resize((size, size), 3))
    if shape is not None and array.shape != shape:
        raise DataError(f"pictures differ in size: {array.shape[:2]} and {shape[:2]}.", "bring them to one: size=64")
    return array


def number(labels: Sequence[Any], words: Sequence[Any] | None, label: str) -> NDArray[np.int64]:
    """Labels as classes: those of the set, or the place of a word or number among all of them."""
    if words is None:
        found = np.array([-1 if one is None else one for one in labels], np.int64)
    else:
        places = {word: place for place, word in enumerate(words)}
        found = np.array([places[trim(one)] for one in labels], np.int64)
    if len(found) and found.min() < 0:
        raise DataError(f"column {label} has samples without a class.", "choose a split whose labels are published")
    return found


def moments(images: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Sums of pixels divided by 255, and of their squares, by channel."""
    pixels = images.reshape(-1, 1 if images.ndim == 3 else images.shape[-1]) / 255.0
    found = np.zeros((2, 3))
    found[:, : pixels.shape[1]] = pixels.sum(0), (pixels**2).sum(0)
    return found

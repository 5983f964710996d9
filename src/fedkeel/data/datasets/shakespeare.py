"""Shakespeare by play and character: guess the next letter from the 80 before it (LEAF).

A client is a role of a play. Its lines, joined by blanks, are one text; every run of 80 letters in it is a sample, and
the letter after the run its class. Stored is the text alone, in one byte a letter; windows are cut when rows are asked
for (4.2 million samples in 4.6 MB).

The split is in time: of a role's n windows the first ⌊0.9 n⌋ (at least one) are for training, and the test windows
start 79 later, so that no test window shares a letter with the input of a training window. A role with fewer than about
790 windows has no test window; LEAF then drops the role, here it stays a client without test samples. A role of 80
letters or fewer has no window and is no client.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkeel.data.dataset import Dataset, DatasetCard, Lazy
from fedkeel.data.datasets.cards import make_source
from fedkeel.data.datasets.leaf import read_users
from fedkeel.data.storage.archives import Room, basename, read_files, reading
from fedkeel.data.storage.download import BATCH, explain_errors, open_split
from fedkeel.data.storage.folder import Draft, damaged, remark_untested
from fedkeel.errors import DataError
from fedkeel.text import in_one_line

LENGTH = 80
SHARE = 0.9
MOST = 2 << 30  # bytes of files, at most: the plays have 6 MB, and as LEAF's windows eighty times as much
LETTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
FILE = "by_play_and_character.json"
# a letter outside the 80 is read as a blank: LEAF's own table gives it the index -1
CODES = np.full(0x110000, LETTERS.index(" "), np.uint8)
CODES[[ord(letter) for letter in LETTERS]] = np.arange(len(LETTERS))


@dataclass(frozen=True, eq=False)
class Windows(Lazy):
    """Runs of LENGTH letters of a text, cut out when rows are asked for: [n, LENGTH]."""

    text: NDArray[np.uint8]
    starts: NDArray[np.int64]

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.text.dtype

    @property
    def shape(self) -> tuple[int, int]:  # type: ignore[override]
        return len(self.starts), LENGTH

    def __getitem__(self, rows: Any) -> NDArray[np.uint8]:
        return self.text[self.starts[rows][..., None] + np.arange(LENGTH)]


def plain_text(lines: str) -> str:
    """Lines joined by blanks, runs of blanks made one, as LEAF does before it cuts windows."""
    return re.sub("  +", " ", lines.replace("\n", " "))


def encode(text: str) -> NDArray[np.uint8]:
    return CODES[np.frombuffer(text.encode("utf-32-le"), np.uint32)]


def cut_points(windows: int) -> tuple[int, int]:
    """How many of a role's windows are for training, and which is the first for the test."""
    train = max(1, int(SHARE * windows))
    return train, train + LENGTH - 1


def open_text(card: DatasetCard, folder: Path, root: Path) -> Dataset:
    roles: dict[str, str] = read_roles(folder / FILE)
    texts = [code for _, lines in sorted(roles.items()) if len(code := encode(plain_text(lines))) > LENGTH]
    if not texts:
        raise damaged(folder / FILE, f"has no role of more than {LENGTH} letters")
    windows = np.array([len(text) - LENGTH for text in texts])
    begins = np.cumsum([0, *(len(text) for text in texts[:-1])])
    parts = np.array([cut_points(count) for count in windows])
    text = np.concatenate(texts)
    train, test = (
        (begins.repeat(counts) + firsts.repeat(counts) + count_up(counts), np.arange(len(texts)).repeat(counts))
        for firsts, counts in (
            (np.zeros(len(texts), np.int64), parts[:, 0]),
            (parts[:, 1], np.maximum(windows - parts[:, 1], 0)),
        )
    )
    short = f"{len(roles) - len(texts)} of {len(roles)} roles have no window of {LENGTH} letters and are no clients"
    remarks = (short, *remark_untested(card, train[1], test[1]))
    return Dataset(
        card,
        Windows(text, train[0]),
        text[train[0] + LENGTH].astype(np.int64),
        Windows(text, test[0]),
        text[test[0] + LENGTH].astype(np.int64),
        train[1],
        test[1],
        root,
        remarks,
    )


def count_up(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """0 … counts[0] - 1, 0 … counts[1] - 1, and so on."""
    ends = np.cumsum(counts)
    return np.asarray(np.arange(ends[-1]) - (ends - counts).repeat(counts))


def read_roles(path: Path) -> Any:
    try:
        roles = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise damaged(path, f"cannot be read ({in_one_line(error)})") from error
    if not is_roles(roles):
        raise damaged(path, "is no object of role and text")
    return roles


def is_complete(card: DatasetCard, folder: Path) -> bool:
    return (folder / FILE).is_file()


def convert(path: Path, draft: Draft, check: bool) -> None:
    """From roles and texts (a JSON object, or LEAF's folder of one text file per role), or from LEAF's windows."""

    def is_whole(name: str) -> bool:
        return basename(name) == FILE or Path(name) == Path(path.name)

    def is_role(name: str) -> bool:
        return is_role_file(PurePosixPath(path.name, name))

    for name, content in read_files(path, is_whole, Room(path, MOST)):
        if name.endswith(".json"):
            with reading(name, ValueError, RecursionError):
                document = json.loads(content)
            if is_roles(document):
                return save_roles(draft, document)
    lines = {
        basename(name)[: -len(".txt")]: content.decode("utf-8", "replace")
        for name, content in read_files(path, is_role, Room(path, MOST))
    }
    if lines:
        return save_roles(draft, lines)
    texts: dict[str, str] = {}
    for part, name, x, y in read_users(path):
        if part != "all":
            raise DataError(
                f"{path} is split already; its windows cannot be joined to texts",
                hint="give LEAF's all_data folder: the split is made here, by LEAF's rule",
            )
        texts[name] = join_windows(name, x, y)
    if not texts:
        raise DataError(f"{path} holds no roles")
    save_roles(draft, texts)


def is_role_file(place: PurePosixPath) -> bool:
    """LEAF keeps the whole text beside the folder of roles."""
    return place.suffix == ".txt" and place.parent.name == "by_play_and_character"


def is_roles(document: Any) -> bool:
    return isinstance(document, dict) and all(isinstance(lines, str) for lines in document.values())


def join_windows(role: str, x: Iterable[str], y: Iterable[str]) -> str:
    """The text whose windows are x, each one letter after the one before, and whose next letters are y."""
    windows, letters = list(x), list(y)
    if not windows:
        return ""
    text = "".join(map(str, (windows[0], *letters)))
    if any(text[i : i + LENGTH] != window for i, window in enumerate(windows)):
        raise DataError(f"the windows of role {role!r} do not follow each other letter by letter")
    return text


def fetch(draft: Draft) -> None:
    """From the hub's copy of LEAF's windows: one row for each, in the order of the text."""
    rows = open_split(draft, "train")
    texts: dict[str, tuple[list[str], list[str]]] = {}
    with explain_errors(draft, "train"):
        for batch in rows.iter(batch_size=BATCH):
            for role, x, y in zip(batch["character_id"], batch["x"], batch["y"], strict=True):
                windows, letters = texts.setdefault(role, ([], []))
                windows.append(x)
                letters.append(y)
    save_roles(draft, {role: join_windows(role, *pair) for role, pair in texts.items()})


def save_roles(draft: Draft, roles: Mapping[str, str]) -> None:
    text = json.dumps(dict(sorted(roles.items())), ensure_ascii=False)
    (draft.folder / FILE).write_text(text, "utf-8", newline="\n")


SHAKESPEARE = make_source("shakespeare", open=open_text, is_complete=is_complete, convert=convert, fetch=fetch)

"""Yahoo! Answers: the topic (of ten) of a question, from its title, its text and the best answer.

Text becomes numbers by a vocabulary of the training texts: words are runs of letters, digits and apostrophes in lower
case; the 98 633 most frequent (ties in alphabetical order) get the numbers from 2 on, 1 is any other word and 0 fills
the rows up to 200 words. Longer texts are cut. The size is that of the fastText-style model in PFLlib, so that its
embedding has the same number of parameters.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from fedkeel.data.datasets.cards import make_source
from fedkeel.data.storage.archives import Room, basename, open_files, reading
from fedkeel.data.storage.download import BATCH, check_count, explain_errors, open_split
from fedkeel.data.storage.folder import Draft
from fedkeel.errors import DataError
from fedkeel.typed_values import show_value

WORD = re.compile(r"[a-z0-9']+")
LENGTH = 200
LINE, MOST = 1 << 20, 4 << 30
"""Letters of a line, and bytes of a file, at most: more than the 1.4 million published texts have."""
VOCABULARY = 98_635
PADDING, UNKNOWN, FIRST = 0, 1, 2
TEXT_COLUMNS = ("question_title", "question_content", "best_answer")
Row = tuple[int, str]


def split_words(text: str) -> list[str]:
    # the published files write a line break as backslash and n
    return WORD.findall(text.lower().replace("\\n", " "))


def build_vocabulary(texts: Iterable[str], size: int = VOCABULARY) -> dict[str, int]:
    counts = Counter(word for text in texts for word in split_words(text))
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[: size - FIRST]
    return {word: number for number, (word, _) in enumerate(ranked, FIRST)}


def encode(texts: list[str], vocabulary: dict[str, int]) -> NDArray[np.int32]:
    rows = np.full((len(texts), LENGTH), PADDING, np.int32)
    for row, text in zip(rows, texts, strict=True):
        numbers = [vocabulary.get(word, UNKNOWN) for word in split_words(text)[:LENGTH]]
        row[: len(numbers)] = numbers
    return rows


def save(draft: Draft, rows_of: Callable[[str], Iterator[Row]]) -> None:
    """Two passes over the training rows, one for the vocabulary and one to write; one over the test rows."""
    vocabulary = build_vocabulary(text for _, text in rows_of("train"))
    for split in ("train", "test"):
        with draft.split(split) as writer:
            rows = rows_of(split)
            while batch := list(islice(rows, BATCH)):
                writer.write(encode([text for _, text in batch], vocabulary), [label for label, _ in batch])
    (draft.folder / "vocabulary.txt").write_text("\n".join(vocabulary), "utf-8", newline="\n")


def parse_lines(name: str, lines: IO[str]) -> Iterator[list[str]]:
    """The fields of each line; one without an end is refused before it fills the memory."""

    def whole() -> Iterator[str]:
        while line := lines.readline(LINE):
            if len(line) == LINE and not line.endswith("\n"):
                raise DataError(f"{name} has a line of more than {LINE} letters", hint="fetch the file again")
            yield line

    with reading(name, csv.Error):
        yield from csv.reader(whole())


def convert(path: Path, draft: Draft, check: bool) -> None:
    """The published comma-separated files: topic from 1 on, title, text, answer."""

    def rows_of(split: str) -> Iterator[Row]:
        present = False
        for name, file in open_files(path, lambda name: basename(name) == f"{split}.csv", Room(path, MOST)):
            present = True
            with io.TextIOWrapper(file, "utf-8", "replace", newline="") as lines:
                for line, fields in enumerate(parse_lines(name, lines), 1):
                    if len(fields) != 4 or not fields[0].isdecimal():
                        raise DataError(
                            f"line {line} of {name} is not a topic and three texts: {show_value(fields[:1])}",
                            "fetch the file again",
                        )
                    yield int(fields[0]) - 1, " ".join(fields[1:])
        if not present:
            raise DataError(f"{path} lacks {split}.csv")

    save(draft, rows_of)


def fetch(draft: Draft) -> None:
    splits = {split: open_split(draft, split) for split in ("train", "test")}
    for split, rows in splits.items():
        check_count(draft, split, len(rows))
        if missing := [column for column in TEXT_COLUMNS if column not in rows.column_names]:
            raise DataError(f"{draft.card.home} has no column {missing[0]!r}")

    def rows_of(split: str) -> Iterator[Row]:
        for batch in splits[split].iter(batch_size=BATCH):
            for topic, *texts in zip(batch["topic"], *(batch[column] for column in TEXT_COLUMNS), strict=True):
                yield topic, " ".join(text or "" for text in texts)

    with explain_errors(draft, "train"):
        save(draft, rows_of)


YAHOO_ANSWERS = make_source("yahoo-answers", convert=convert, fetch=fetch)

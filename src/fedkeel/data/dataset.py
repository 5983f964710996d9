"""What a data set is: its card (facts, known before any file is read) and its arrays (opened, not read)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

HUB = "hf:"
"""What the name of a set on the Hugging Face hub begins with."""


class Samples(Protocol):
    """Inputs gathered by row. A memory-mapped numpy array is one; so are the text windows of Shakespeare."""

    @property
    def dtype(self) -> np.dtype[Any]: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any, /) -> Any: ...


class Lazy:
    """An array of samples whose rows are made when they are asked for, and which is never whole."""

    shape: tuple[int, ...]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any, /) -> Any:
        raise NotImplementedError

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self[:], dtype)


@dataclass(frozen=True, eq=False)
class Joined(Lazy):
    """Arrays of samples one after another."""

    parts: Sequence[Samples]

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.parts[0].dtype

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return sum(len(part) for part in self.parts), *self.parts[0].shape[1:]

    def __getitem__(self, rows: Any) -> NDArray[Any]:
        wanted = np.arange(len(self))[rows]
        ends = np.cumsum([len(part) for part in self.parts])
        holder = np.searchsorted(ends, wanted, side="right")
        taken = np.empty((*wanted.shape, *self.shape[1:]), self.dtype)
        for index in np.unique(holder):
            here = holder == index
            taken[here] = self.parts[index][wanted[here] - ends[index] + len(self.parts[index])]
        return taken


@dataclass(frozen=True)
class Hub:
    """Where Hugging Face `datasets` finds a set: repository, configuration, column names, names of the two splits."""

    repository: str
    image: str
    label: str
    group: str | None = None
    configuration: str | None = None
    splits: tuple[str, str] = ("train", "test")

    def __str__(self) -> str:
        return self.repository


@dataclass(frozen=True)
class Url:
    """One published file, fetched as it is and then read like a file of the user's."""

    address: str
    file: str

    def __str__(self) -> str:
        return self.address


@dataclass(frozen=True)
class DatasetCard:
    """The facts of a data set.

    `shape` is that of one sample, (channels, height, width) or (tokens,); `train` and `test` count samples, 0 where
    the number depends on what was imported. `mean` and `std` are per channel of pixels divided by 255. `checksums`
    are "algorithm:digest" by file name. `preset` is what `--dataset NAME` alone means. `natural` says what a natural
    client is; `owners` are their names, by number, where they have some. `vocabulary` is the number of token ids, 0 for
    images. `notes` are choices we made where the papers are silent.
    """

    name: str
    title: str
    classes: int
    shape: tuple[int, ...]
    train: int
    test: int
    home: Hub | Url | str
    licence: str
    citation: str
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    checksums: Mapping[str, str] = field(default_factory=dict)
    preset: Mapping[str, Any] = field(default_factory=dict)
    natural: str | None = None
    vocabulary: int = 0
    dtype: str = "uint8"
    notes: str = ""
    owners: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("checksums", "preset"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    def __reduce__(self) -> tuple[Any, ...]:
        values = [getattr(self, name) for name in self.__dataclass_fields__]
        return type(self), tuple(dict(value) if isinstance(value, Mapping) else value for value in values)

    @property
    def folder(self) -> str:
        """What its folder is called: its name; of a set on the hub, its words and a digest that tells options apart."""
        if not self.name.startswith(HUB):
            return self.name
        # the digest that a name may ask for says nothing about where the data are
        told = ",".join(part for part in self.name.split(",") if not part.strip().startswith("digest="))
        words = re.sub(r"[^A-Za-z0-9]+", "-", self.name.partition(",")[0]).strip("-")[:60]
        return f"{words}-{hashlib.sha256(told.encode()).hexdigest()[:8]}"

    @property
    def array_shape(self) -> tuple[int, ...]:
        """The shape of one sample on disk: channels last, and no channel axis for grey images."""
        if len(self.shape) != 3:
            return self.shape
        channels, height, width = self.shape
        return (height, width) if channels == 1 else (height, width, channels)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test samples with labels. Inputs stay on disk until rows are asked for.

    `groups` gives the natural client (writer, role, domain) of each training sample, `test_groups` of each test
    sample, both None where a set has no natural clients. `remarks` say what was left out of this copy, and by which
    rule.
    """

    card: DatasetCard
    train_images: Samples
    train_labels: NDArray[np.int64]
    test_images: Samples
    test_labels: NDArray[np.int64]
    groups: NDArray[np.int64] | None = None
    test_groups: NDArray[np.int64] | None = None
    root: Path | None = None
    remarks: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.card.name

    @property
    def classes(self) -> int:
        return self.card.classes

    @property
    def shape(self) -> tuple[int, ...]:
        return self.card.shape

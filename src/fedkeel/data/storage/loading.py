"""Open a data set by name, filling its folder first where that is needed."""

from __future__ import annotations

import copyreg
from pathlib import Path

from fedkeel.data.dataset import Dataset, DatasetCard
from fedkeel.data.datasets import SOURCES
from fedkeel.data.storage.archives import check_file
from fedkeel.data.storage.folder import Progress, data_root, drafting
from fedkeel.data.storage.source import Source
from fedkeel.errors import DataError, require_known


def load(name: str, root: Path | str | None = None, progress: Progress | None = None) -> Dataset:
    """The data set `name`: from its folder under `root`, which is filled from the set's usual home on first use."""
    return load_from(source_of(name), data_root(root), progress)


def import_from(
    name: str, path: Path | str, root: Path | str | None = None, check: bool = True, progress: Progress | None = None
) -> Dataset:
    """Fill the folder of `name` from the published files at `path`: an archive, or the folder it unpacks to.

    With `check`, files that have a published checksum must match it.
    """
    return import_into(source_of(name), Path(path).expanduser(), data_root(root), check, progress)


def source_of(name: str) -> Source:
    return SOURCES[require_known(name, SOURCES, "unknown data set", "data sets", DataError)]


def load_from(source: Source, root: Path, progress: Progress | None = None) -> Dataset:
    if source.requires:
        load(source.requires, root, progress)
    if not source.is_complete(source.card, root / source.card.name):
        if source.fetch is None:
            raise DataError(
                f"{source.card.name} is not in {root / source.card.name}, and has no home it can be fetched from",
                hint=source.import_hint,
            )
        with drafting(source, root, progress) as draft:
            source.fetch(draft)
    return source.open(source.card, root / source.card.name, root)


def import_into(source: Source, path: Path, root: Path, check: bool, progress: Progress | None = None) -> Dataset:
    if source.convert is None:
        raise DataError(f"{source.card.name} needs no files: it comes with {source.card.home}")
    if not path.exists():
        raise DataError(f"{path} does not exist", hint=source.import_hint)
    if source.requires:
        load(source.requires, root, progress)
    if check:
        check_file(path, source.card.checksums)
    with drafting(source, root, progress) as draft:
        source.convert(path, draft, check)
    return source.open(source.card, root / source.card.name, root)


def reopen(card: DatasetCard, root: Path) -> Dataset:
    """What a pickled data set is: the place it was opened from."""
    return SOURCES[card.name].open(card, root / card.name, root)


# a pickled memory map would carry the whole array to every worker process; the folder's path is enough
copyreg.pickle(Dataset, lambda data: (reopen, (data.card, data.root)))

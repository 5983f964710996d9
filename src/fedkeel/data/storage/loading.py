"""Open a data set by name, filling its folder first where that is needed."""

from __future__ import annotations

import copyreg
import os
from pathlib import Path

from fedkeel.data.dataset import HUB, Dataset, DatasetCard
from fedkeel.data.datasets import SOURCES
from fedkeel.data.storage.archives import check_file
from fedkeel.data.storage.folder import Progress, data_root, drafting
from fedkeel.data.storage.hub_sets import hub_source
from fedkeel.data.storage.source import Source
from fedkeel.errors import DataError, require_known


def load(name: str, root: Path | str | None = None, progress: Progress | None = None) -> Dataset:
    """The data set `name`: from its folder under `root`, which is filled from the set's usual home on first use."""
    return load_from(source_of(name, root), data_root(root), progress)


def import_from(
    name: str, path: Path | str, root: Path | str | None = None, check: bool = True, progress: Progress | None = None
) -> Dataset:
    """Fill the folder of `name` from the published files at `path`: an archive, or the folder it unpacks to.

    With `check`, files that have a published checksum must match it.
    """
    return import_into(source_of(name), Path(path).expanduser(), data_root(root), check, progress)


def source_of(name: str, root: Path | str | None = None) -> Source:
    """The source of a data set that fedkeel knows, or of one on the Hugging Face hub: `hf:NAME`."""
    if name.startswith(HUB):
        return hub_source(name, data_root(root))
    if name not in SOURCES and os.path.isdir(os.path.expanduser(name)):
        raise DataError(
            f"unknown data set: {name}, which is a folder.",
            f"of pictures in folders of their classes: {HUB}{name}; of tables for each client: "
            'fk.Problem(clients="FOLDER", …)',
        )
    return SOURCES[require_known(name, SOURCES, "unknown data set", "data sets", DataError)]


def find_card(name: str) -> DatasetCard:
    """The card of a data set; of one on the hub that is not here yet, what its name says."""
    return source_of(name).card


def is_here(name: str) -> bool:
    """Whether a data set is in the data folder."""
    source = source_of(name)
    return source.is_complete(source.card, data_root() / source.card.folder)


def is_known(name: object) -> bool:
    return isinstance(name, str) and (name in SOURCES or name.startswith(HUB))


def load_from(source: Source, root: Path, progress: Progress | None = None) -> Dataset:
    if source.requires:
        load(source.requires, root, progress)
    if not source.is_complete(source.card, root / source.card.folder):
        if source.fetch is None:
            raise DataError(
                f"{source.card.name} is not in {root / source.card.folder}, and has no home it can be fetched from",
                hint=source.import_hint,
            )
        with drafting(source, root, progress) as draft:
            source.fetch(draft)
    return source.open(source.card, root / source.card.folder, root)


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
    return source.open(source.card, root / source.card.folder, root)


def reopen(card: DatasetCard, root: Path) -> Dataset:
    """What a pickled data set is: the place it was opened from."""
    return source_of(card.name, root).open(card, root / card.folder, root)


# a pickled memory map would carry the whole array to every worker process; the folder's path is enough
copyreg.pickle(Dataset, lambda data: (reopen, (data.card, data.root)))

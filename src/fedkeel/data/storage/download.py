"""Fill a draft from the Hugging Face hub, through its own library `datasets`."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkeel.data.dataset import HUB, Hub
from fedkeel.data.storage.folder import TOO_MUCH, Draft
from fedkeel.data.storage.pictures import without_postscript
from fedkeel.errors import DataError
from fedkeel.text import first_line

BATCH = 1000
TIMEOUT = 20.0  # seconds
SAVED = ("dataset_dict.json", "state.json")


def fetch_from_hub(draft: Draft) -> None:
    """Decode the images of both splits into the draft."""
    hub = hub_of(draft)
    for split, name in zip(("train", "test"), hub.splits, strict=True):
        write_images(draft, split, open_split(draft, name))


def hub_of(draft: Draft) -> Hub:
    assert isinstance(draft.card.home, Hub), f"{draft.card.name} does not live on the hub"
    return draft.card.home


def open_split(draft: Draft, name: str) -> Any:
    """Open one split of the set's repository, or of a copy of it under the folder that $FEDKEEL_HUB names."""
    hub, rows = hub_of(draft), load_repository(draft, name)
    for column in (hub.image, hub.label, *([hub.group] if hub.group else [])):
        if column not in rows.column_names:
            raise DataError(
                f"{hub.repository} has no column {column!r}: its columns are {', '.join(rows.column_names)}",
            )
    return rows


def place_of(repository: str) -> str:
    """The name of a repository, or the folder of that name, or its copy under the folder that $FEDKEEL_HUB names."""
    copies = os.environ.get("FEDKEEL_HUB")
    home = os.path.expanduser(repository)  # the shell leaves ~ behind "hf:" alone
    return str(Path(copies) / home) if copies else home


def is_folder(repository: str) -> bool:
    """Whether a repository is a folder of this machine."""
    return os.path.isdir(place_of(repository))


def stamp_of(repository: str) -> str | None:
    """What changes when a folder does: names, sizes and times of its files. None of a repository that is no folder."""
    place = Path(place_of(repository))
    if not place.is_dir():
        return None
    seen = hashlib.sha256()
    for file in sorted(place.rglob("*")):
        name = file.relative_to(place)
        # the library `datasets` writes its cache beside the data, others what is hidden
        if file.is_file() and not any(part.startswith((".", "cache-")) for part in name.parts):
            seen.update(f"{name.as_posix()} {file.stat().st_size} {file.stat().st_mtime_ns}\n".encode())
    return seen.hexdigest()[:16]


def load_repository(draft: Draft, split: str | None = None) -> Any:
    """Load the set's repository, a split or all of it; a folder that `save_to_disk` has written is one, too."""
    hub = hub_of(draft)
    try:
        import datasets
        import huggingface_hub
    except ImportError as error:
        raise DataError(
            f"{draft.card.name} is not in the data folder, and fetching it needs the package datasets",
            hint=f'pip install "fedkeel[download]", or {draft.source.import_hint}',
        ) from error
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    copies, repository = os.environ.get("FEDKEEL_HUB"), place_of(hub.repository)
    if copies and not Path(repository).is_dir():
        raise DataError(
            f"there is no copy of {hub.repository} in FEDKEEL_HUB: {copies}", hint="put it there, or unset FEDKEEL_HUB"
        )
    with explain_errors(draft, split or "train"):
        if any((Path(repository) / file).is_file() for file in SAVED):
            return datasets.load_from_disk(repository)
        if Path(repository).is_dir():
            repository = os.path.abspath(repository)  # a bare name may be one of the library's readers: json, text
        else:
            # one request that fails at once without a network; load_dataset would try for half a minute
            huggingface_hub.HfApi().dataset_info(repository, timeout=TIMEOUT)
        return datasets.load_dataset(
            repository, hub.configuration, split=split, cache_dir=str(draft.folder.parent / "hub")
        )


@contextlib.contextmanager
def explain_errors(draft: Draft, split: str) -> Iterator[None]:
    """Turn whatever goes wrong between here and the hub into one line; the draft recognises a full disk.

    No picture starts a program meanwhile.
    """
    try:
        with without_postscript():
            yield
    except DataError:
        raise
    except Exception as error:
        for cause in walk_causes(error):
            if isinstance(cause, OSError) and cause.errno in TOO_MUCH:
                raise cause from None
        repository = hub_of(draft).repository
        reason = first_line(error)
        if draft.card.name.startswith(HUB) and is_folder(repository):
            signs = any(sign in os.path.abspath(place_of(repository)) for sign in "[]*?")
            raise DataError(
                f"the {split} split of {repository}, a folder, could not be read: {reason}",
                "its path has one of []*?, which the library datasets does not read: rename it"
                if signs
                else "mend what it names, or take it away",
            ) from error
        raise DataError(
            f"the {split} split of {repository} could not be fetched: {reason}",
            hint=f"without a network: {draft.source.import_hint}",
        ) from error


def walk_causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def write_images(draft: Draft, split: str, rows: Any) -> None:
    hub = hub_of(draft)
    check_count(draft, split, len(rows))
    with explain_errors(draft, split), draft.split(split) as writer:
        for batch in rows.iter(batch_size=BATCH):
            writer.write(stack_images(draft, batch[hub.image]), batch[hub.label])


def stack_images(draft: Draft, images: Sequence[Any]) -> NDArray[np.uint8]:
    mode = "L" if draft.card.shape[0] == 1 else "RGB"
    return np.stack([np.asarray(image.convert(mode)) for image in images])


def check_count(draft: Draft, split: str, count: int) -> None:
    expected = getattr(draft.card, split)
    if expected and count != expected:
        raise DataError(
            f"{hub_of(draft).repository} has {count} of the {expected} samples of {split}",
        )

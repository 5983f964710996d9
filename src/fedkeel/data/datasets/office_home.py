"""Office-Home: 65 everyday objects in four styles (Art, Clipart, Product, Real World), each style one client.

Images come in many sizes and are brought to 64×64 (bicubic, without keeping the aspect). The set has no split: of each
class of each style a fifth, rounded down and drawn by a fixed key, is for the test. `test_groups` gives the accuracy of
each style, which is what the papers call the target domain.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from fedkeel.data.datasets.cards import make_source
from fedkeel.data.storage.archives import Room, read_files
from fedkeel.data.storage.download import BATCH, explain_errors, hub_of, open_split
from fedkeel.data.storage.folder import Draft
from fedkeel.data.storage.pictures import decode_image
from fedkeel.errors import DataError
from fedkeel.randomness import key, permutation

DOMAINS = ("Art", "Clipart", "Product", "Real World")
SIZE = 64
TEST_SHARE = 5
IMAGES, IMAGE, WHOLE = 50_000, 64 << 20, 4 << 30
"""Images, bytes of one and bytes of all, at most: 15 588 are published, in a file of about 1 GB."""


def place(name: str) -> tuple[str, str] | None:
    """The domain and class of an image file, from the two folders it lies in."""
    parts = PurePosixPath(name).parts
    if len(parts) < 3 or not parts[-1].lower().endswith((".jpg", ".jpeg", ".png")) or parts[-3] not in DOMAINS:
        return None
    return parts[-3], parts[-2]


def convert(path: Path, draft: Draft, check: bool) -> None:
    found: list[tuple[int, str, str, NDArray[np.uint8]]] = []
    for name, content in read_files(path, lambda name: place(name) is not None, Room(path, WHOLE, IMAGE)):
        at = place(name)
        assert at is not None
        if len(found) == IMAGES:
            raise DataError(f"{path} has more than {IMAGES} images")
        found.append((DOMAINS.index(at[0]), at[1], name, decode_image(name, content, draft.card.shape, resize=True)))
    found.sort(key=lambda one: one[:3])
    domains, classes = {one[0] for one in found}, sorted({one[1] for one in found})
    if len(classes) != draft.card.classes or len(domains) != len(DOMAINS):
        raise DataError(
            f"{path} has {len(classes)} classes in {len(domains)} domains, not {draft.card.classes} in {len(DOMAINS)}",
        )
    save(draft, [one[3] for one in found], [classes.index(one[1]) for one in found], [one[0] for one in found])


def fetch(draft: Draft) -> None:
    hub, rows = hub_of(draft), open_split(draft, "train")
    images: list[NDArray[np.uint8]] = []
    labels: list[int] = []
    domains: list[int] = []
    with explain_errors(draft, "train"):
        for batch in rows.iter(batch_size=BATCH // 10):
            images += [np.asarray(image.convert("RGB").resize((SIZE, SIZE), 3)) for image in batch[hub.image]]
            labels += batch[hub.label]
            if unknown := set(batch[hub.group]) - set(DOMAINS):
                raise DataError(f"{hub.repository} has an unknown domain: {sorted(unknown)[0]}")
            domains += [DOMAINS.index(domain) for domain in batch[hub.group]]
    save(draft, images, labels, domains)


def save(draft: Draft, images: Sequence[NDArray[np.uint8]], labels: Sequence[int], domains: Sequence[int]) -> None:
    test = np.zeros(len(labels), bool)
    cells = np.array(domains) * draft.card.classes + np.array(labels)
    for cell in np.unique(cells):
        rows = np.flatnonzero(cells == cell)
        test[rows[permutation(key(0, "office-home", int(cell)), len(rows))[: len(rows) // TEST_SHARE]]] = True
    for split, chosen in (("train", np.flatnonzero(~test)), ("test", np.flatnonzero(test))):
        with draft.split(split) as writer:
            for i in chosen.tolist():
                writer.write(images[i][None], [labels[i]], [domains[i]])


OFFICE_HOME = make_source("office-home", convert=convert, fetch=fetch)

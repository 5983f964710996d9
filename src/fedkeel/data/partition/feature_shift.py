"""Feature shift: each client sees its images under corruptions of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedkeel import randomness
from fedkeel.data.corruptions.registry import CORRUPTIONS, SEVERITIES, TWELVE, corrupt_array
from fedkeel.data.dataset import Samples
from fedkeel.data.partition.own import OwnPartition
from fedkeel.data.partition.partition import Based, Integers, Partition, Partitioner, divide
from fedkeel.data.storage.folder import Progress
from fedkeel.errors import DataError, ExperimentError
from fedkeel.ranges import Range

KINDS = tuple(CORRUPTIONS)
BATCH = 500


@dataclass(frozen=True)
class FeatureShift(Based):
    """Divide by `base`, then give each client `fewest` to `most` of twelve corruptions at `severity`, and each of its
    images one of them, for good (SpecGradFilter: 2–3 corruptions at severity 3). fifteen = true deals motion blur, snow
    and frost too (`pip install 'fedkeel[frost]'`): all of CIFAR-C's benchmark.

    Corruptions are dealt like cards, deck after shuffled deck, so that all are used about equally often; within a
    client they go round its images. fewest = most = 0 is `base` alone.
    """

    severity: Annotated[int, Range(1, SEVERITIES)] = 3
    fewest: Annotated[int, Range(0, len(KINDS))] = 2
    most: Annotated[int, Range(0, len(KINDS))] = 3
    fifteen: bool = False
    later: ClassVar[tuple[str, ...]] = ("fifteen",)

    @property
    def dealt(self) -> tuple[str, ...]:
        """The names that are dealt."""
        return KINDS if self.fifteen else TWELVE

    def __post_init__(self) -> None:
        super().__post_init__()
        if find_shift(self.base) is not None:
            raise ExperimentError(
                "features that are shifted already cannot be shifted again.", "keep one feature-shift"
            )
        if not 0 <= self.fewest <= self.most <= len(self.dealt):
            raise ExperimentError(
                f"corruptions per client must be 0 ≤ fewest ≤ most ≤ {len(self.dealt)}: {self.fewest} and {self.most}",
                "for example fewest = 2, most = 3",
            )

    def divide(self, labels: Integers, key: int, *, groups: Integers | None = None) -> Partition:
        return divide(self.base, labels, key, groups=groups)

    def deal_corruptions(self, clients: int, key: int) -> list[tuple[str, ...]]:
        """Deal the corruptions of each client."""
        sizes = self.fewest + np.floor(
            randomness.uniforms(randomness.key(key, "hands"), clients) * (self.most - self.fewest + 1)
        ).astype(np.int64)
        hands: list[tuple[str, ...]] = []
        deck: list[int] = []
        decks = 0
        for size in sizes.tolist():
            hand: list[int] = []
            while len(hand) < size:
                if not (playable := [card for card in deck if card not in hand]):
                    deck += randomness.permutation(randomness.key(key, "deck", decks), len(self.dealt)).tolist()
                    decks += 1
                    continue
                hand.append(playable[0])
                deck.remove(playable[0])
            hands.append(tuple(KINDS[card] for card in hand))
        return hands

    def assign_corruptions(self, partition: Partition, key: int) -> Integers:
        """Choose the corruption of each sample, as a number into `KINDS`; -1 for a sample that no client holds.

        A sample held twice has the corruption of its first holder.
        """
        kinds = np.full(partition.samples, -1, np.int64)
        hands = self.deal_corruptions(partition.clients, key)
        for client in reversed(range(partition.clients)):
            rows = partition[client]
            if hands[client] and len(rows):
                order = randomness.permutation(randomness.key(key, "round", client), len(rows))
                hand = np.array([KINDS.index(name) for name in hands[client]])
                kinds[rows[order]] = hand[np.arange(len(rows)) % len(hand)]
        return kinds

    def corrupt(
        self, images: Samples, partition: Partition, key: int, progress: Progress | None = None
    ) -> NDArray[np.uint8]:
        """Copy all images into memory, each under its corruption. Takes the same key as `divide`."""
        return corrupt_each(images, self.assign_corruptions(partition, key), self.severity, key, progress)


def find_shift(partition: Partitioner) -> FeatureShift | None:
    """The feature shift that a partition is, or that its name leads to."""
    made = partition.made if isinstance(partition, OwnPartition) else partition
    return made if isinstance(made, FeatureShift) else None


def corrupt_each(
    images: Samples, kinds: Integers, severity: int, key: int, progress: Progress | None = None
) -> NDArray[np.uint8]:
    """Put image i under corruption ``kinds[i]`` (-1: none), by a key of its own."""
    if images.dtype != np.uint8 or len(images.shape) < 3:
        raise DataError(
            f"corruptions are for images of bytes, not {images.dtype} of shape {images.shape}",
            hint="choose a data set of images, or another partition",
        )
    result = np.array(images[:])
    keys = randomness.bits(randomness.key(key, "corruption"), len(result))
    done = int((kinds < 0).sum())
    for kind, name in enumerate(KINDS):
        rows = np.flatnonzero(kinds == kind)
        for start in range(0, len(rows), BATCH):
            batch = rows[start : start + BATCH]
            result[batch] = corrupt_array(result[batch], name, severity, keys[batch])
            done += len(batch)
            if progress is not None:
                progress(f"corrupting: {name}", done, len(result))
    return result

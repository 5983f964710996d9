"""How well a model does on each kind of test sample: a domain, a corruption, a writer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from fedkeel.data import load
from fedkeel.data.dataset import DatasetCard
from fedkeel.data.datasets.cifar_c import CORRUPTIONS
from fedkeel.data.datasets.office_home import DOMAINS
from fedkeel.problems.predictions import find_hits
from fedkeel.runs.plan import Division
from fedkeel.studies.extent import Extent
from fedkeel.studies.subject import Subject

BATCH = 500
NAMES: dict[str, Sequence[str]] = {"office-home": DOMAINS, "cifar10-c": CORRUPTIONS, "cifar100-c": CORRUPTIONS}


@torch.no_grad()
def measure_groups(subject: Subject, extent: Extent) -> dict[str, Any]:
    """Measure the accuracy on each group of test samples that the data set names; nothing where it names none."""
    source = subject.plan.source
    empty: dict[str, Any] = {"groups": {}, "samples": {}}
    if not isinstance(source, Division) or subject.task.module is None:
        return empty
    data = load(source.dataset)
    if data.test_groups is None:
        return empty
    module, right = subject.model(subject.params), np.zeros(len(data.test_labels), bool)
    for start in range(0, len(right), BATCH):
        rows = np.arange(start, min(start + BATCH, len(right)))
        images, labels = (
            torch.from_numpy(np.ascontiguousarray(part[rows])) for part in (data.test_images, data.test_labels)
        )
        tensors = subject.task.prepare((images, labels))
        hits = find_hits(subject.task.predict(module, tensors), tensors[-1], subject.task.ignored)
        if hits is None:
            return empty
        right[rows] = hits.cpu().numpy()
    found = {name_group(data.card, int(group)): data.test_groups == group for group in np.unique(data.test_groups)}
    return {
        "groups": {name: float(right[rows].mean()) for name, rows in found.items()},
        "samples": {name: int(rows.sum()) for name, rows in found.items()},
    }


def name_group(card: DatasetCard, number: int) -> str:
    """A domain or a corruption by its name; an owner by what the data call it, or else by its number."""
    if card.name in NAMES:
        return NAMES[card.name][number]
    owner = card.owners[number] if number < len(card.owners) else number
    return f"{card.natural or 'group'} {owner}"

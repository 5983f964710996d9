"""How many samples of each class each client holds, for data sets that are here already: a report fetches nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedkeel.data import load
from fedkeel.data.partition.heatmap import add_up_groups, group_size
from fedkeel.data.partition.heterogeneity import score
from fedkeel.data.storage.loading import is_here, is_known
from fedkeel.errors import FedkeelError
from fedkeel.report.source import Source, setting_of
from fedkeel.runs.experiment import Experiment
from fedkeel.runs.prepare import divide

MOST = 6  # partitions of one setting
COLUMNS = 200  # more clients than this are added up in neighbouring groups


@dataclass(frozen=True, eq=False)
class Labels:
    """`shares` [classes, columns]: of the samples of one client, or of `group` neighbouring ones."""

    setting: str
    seed: int
    clients: int
    group: int
    shares: list[list[float]]
    sizes: list[float]
    score: float


def label_tables(sources: Sequence[Source]) -> tuple[list[Labels], list[str]]:
    """One table per partition, at most MOST for a setting, and what could not be shown."""
    found: list[Labels] = []
    notes: dict[str, None] = {}
    seen: set[tuple[str, Any]] = set()
    counts: dict[str, int] = {}
    for source in sources:
        setting, seed = setting_of(source), source.experiment.get("partition_seed", source.seed)
        if (setting, seed) in seen:
            continue
        seen.add((setting, seed))
        counts[setting] = counts.get(setting, 0) + 1
        if counts[setting] > MOST:
            notes[f"{setting}: only the first {MOST} partitions are shown."] = None
            continue
        name = source.experiment.get("dataset")
        if name is None:
            notes[f"{setting}: a problem given from Python brings its data with it."] = None
        elif is_known(name) and not is_here(name):
            notes[f"{setting}: the data set is not on this machine."] = None
        else:
            try:
                found.append(table(source, setting, int(seed)))
            except FedkeelError as error:
                notes[f"{setting}: {error.message}"] = None
    return found, list(notes)


def table(source: Source, setting: str, seed: int) -> Labels:
    plan = Experiment.recall(source.experiment).plan
    data = load(plan.division.dataset)
    labels = np.asarray(data.train_labels)
    histogram = divide(plan, data, labels).histogram(labels, data.classes)
    clients = len(histogram)
    group = group_size(clients, COLUMNS)
    cells = add_up_groups(histogram, group, axis=0)
    sizes = cells.sum(1)
    shares = cells / np.maximum(sizes[:, None], 1)
    return Labels(setting, seed, clients, group, shares.T.tolist(), sizes.tolist(), score(histogram))

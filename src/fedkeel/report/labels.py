"""How many samples of each class each client holds, for data sets that are here already: a report fetches nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedkeel.data import load
from fedkeel.data.partition.heatmap import plot_clients
from fedkeel.data.partition.heterogeneity import score
from fedkeel.data.partition.partition import Integers
from fedkeel.data.storage.loading import is_here, is_known
from fedkeel.errors import FedkeelError
from fedkeel.report.source import Source, setting_of
from fedkeel.runs.experiment import Experiment
from fedkeel.runs.prepare import divide

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 6  # partitions of one setting
COLUMNS = 200  # more clients than this are added up in neighbouring groups


@dataclass(frozen=True, eq=False)
class Labels:
    """One partition: `histogram` [clients, classes] counts samples."""

    setting: str
    seed: int
    histogram: Integers

    @property
    def note(self) -> str:
        heterogeneity = f"heterogeneity {score(self.histogram):.4g} (0: iid, 1: one class per client)"
        return f"partition seed {self.seed}; {heterogeneity}"

    def draw(self) -> Figure:
        """Classes by clients, the share of a client's samples as a shade, and the clients' sizes above."""
        return plot_clients(self.histogram, COLUMNS, width=6.4)


def label_tables(sources: Sequence[Source]) -> tuple[list[Labels], list[str]]:
    """One table per partition, at most MOST for a setting, and what could not be shown."""
    first: dict[tuple[str, int], Source] = {}
    for source in sources:
        first.setdefault((setting_of(source), int(source.experiment.get("partition_seed", source.seed))), source)
    found, notes, counts = list[Labels](), dict[str, None](), Counter[str]()
    for (setting, seed), source in first.items():
        counts[setting] += 1
        name = source.experiment.get("dataset")
        if counts[setting] > MOST:
            note = f"only the first {MOST} partitions are shown."
        elif name is None:
            note = "a problem given from Python brings its data with it."
        elif is_known(name) and not is_here(name):
            note = "the data set is not on this machine."
        else:
            try:
                found.append(table(source, setting, seed))
                continue
            except FedkeelError as error:
                note = error.message
        notes[f"{setting}: {note}"] = None
    return found, list(notes)


def table(source: Source, setting: str, seed: int) -> Labels:
    plan = Experiment.recall(source.experiment).plan
    data = load(plan.division.dataset)
    labels = np.asarray(data.train_labels)
    return Labels(setting, seed, divide(plan, data, labels).histogram(labels, data.classes))

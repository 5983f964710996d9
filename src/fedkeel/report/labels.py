"""How many samples of each class each client trains on, for data sets that are here already: a report fetches
nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import nn

from fedkeel.data.partition.feature_shift import FeatureShift
from fedkeel.data.partition.heatmap import plot_clients
from fedkeel.data.partition.heterogeneity import score
from fedkeel.data.partition.partition import Integers
from fedkeel.data.storage.loading import is_here, is_known
from fedkeel.errors import FedkeelError
from fedkeel.report.source import Source, setting_of
from fedkeel.runs.experiment import Experiment
from fedkeel.runs.prepare import problem_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 6  # partitions of one setting
COLUMNS = 200  # more clients than this are added up in neighbouring groups


@dataclass(frozen=True, eq=False)
class Labels:
    """One partition: `histogram` [clients, classes] counts samples, without those of the clients' own tests and of the
    server."""

    setting: str
    seed: int
    histogram: Integers

    @property
    def note(self) -> str:
        heterogeneity = f"heterogeneity {score(self.histogram):.4g} (0: iid, 1: one class per client)"
        return f"partition seed {self.seed}; {self.histogram.sum()} training samples; {heterogeneity}"

    def draw(self) -> Figure:
        """Classes by clients, the share of a client's samples as a shade, and the clients' sizes above."""
        return plot_clients(self.histogram, COLUMNS, width=6.4)


def label_tables(sources: Sequence[Source]) -> tuple[list[Labels], list[str]]:
    """One table per partition, at most MOST for a setting, and what could not be shown."""
    first: dict[tuple[str, int, object], Source] = {}
    for source in sources:
        first.setdefault((setting_of(source), source.partition_seed, set_aside(source)), source)
    found, notes, counts = list[Labels](), dict[str, None](), Counter[str]()
    for (setting, seed, _), source in first.items():
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


def set_aside(source: Source) -> object:
    """What of a partition is not trained on: the share of the clients' own tests, and what the server takes."""
    policy = source.experiment.get("evaluation", {})
    return policy.get("share"), policy.get("pool"), "server_phase" in source.experiment.get("method", {})


def table(source: Source, setting: str, seed: int) -> Labels:
    """Divide the data set as the run did."""
    plan = Experiment.recall(source.experiment).plan
    way = plan.division.partition
    way = way.base if isinstance(way, FeatureShift) else way  # it changes images, which takes long, and no labels
    problem = problem_of(replace(plan, source=replace(plan.division, partition=way, model=nn.Identity())))
    clients = problem.clients
    return Labels(setting, seed, clients.partition.histogram(clients.labels, problem.classes))

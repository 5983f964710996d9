"""Where a federation's model is scored, at the server or at the sites; what cannot be scored there is refused."""

from __future__ import annotations

import logging

from fedkeel.errors import RequestError
from fedkeel.federation.local_data import PARTITION
from fedkeel.problems.task import Task

log = logging.getLogger("fedkeel")


def check_validation(share: float, source: str) -> None:
    """Refuse a validation share of data that the server cannot see."""
    if share and source != PARTITION:
        raise RequestError(
            f"validation = {share:g} is scored at the server, which cannot see the nodes' own data.",
            "leave out validation; site-test = 0.2 has the sites test the model on a share of their data",
        )


def check_site_test(share: float, source: str, test: str) -> None:
    """Refuse a test share of the nodes' that cannot be."""
    if not 0 <= share < 1:
        raise RequestError(f"site-test is a share of each node's data, not {share:g}.", "site-test = 0.2")
    if share and source == PARTITION:
        raise RequestError(
            "site-test sets aside data of the nodes' own, and here each takes its part of a data set.",
            "export with --data folder, or use [evaluation] share",
        )
    if share and test:
        raise RequestError("the model is tested at the sites or at the server.", "leave out test or site-test")


def note_unmeasured(task: Task) -> None:
    """Log which metrics tests at the sites leave out: those of all predictions, which no place has."""
    by_counts = {"auc"} if task.module is not None and task.problem.classes else set()
    if names := sorted(task.whole_metrics - by_counts):
        log.warning("the sites test the model, so nothing measures what needs all predictions: %s", ", ".join(names))

"""Data divided for personalised learning: each client's own test set, and the server's own data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedkeel.data.clients import Sample
from fedkeel.data.hold_out import split_list
from fedkeel.data.partition.partition import Partition, collect
from fedkeel.errors import ExperimentError
from fedkeel.problems.problem import Problem
from fedkeel.randomness import permutation

PROXY = 0.02  # of the training data, as much as FedLAW's code takes from the test set


def without_proxy(partition: Partition, of: int, least: int) -> tuple[Partition, NDArray[np.int64]]:
    """Draw some samples for the server: (the partition without them, their numbers)."""
    count = max(least, int(PROXY * partition.samples))
    chosen = np.sort(permutation(of, partition.samples)[:count])
    rest = ~np.isin(partition.indices, chosen)
    rest_of_clients = collect(
        partition.holders[rest], partition.indices[rest], partition.clients, partition.samples, partition.notes
    )
    return rest_of_clients, chosen


def with_own_tests(problem: Problem, share: float, of: int) -> Problem:
    """Set a share of each client's samples aside as its own test set; one that has test sets, or data that are no list
    of what each client has, stays as it is."""
    lists = isinstance(problem.clients, Sequence) and not hasattr(problem.clients, "sizes")
    if problem.tests is not None or not share or not lists:
        return problem
    kept, aside = split_list(problem.clients, problem.data.sizes, share, of)
    return replace(problem, clients=kept, tests=aside)


def check_own_tests(problem: Problem, share: float | None) -> None:
    """Refuse a problem none of whose clients has a test sample; `share` was set aside, unless test sets were given."""
    tests = problem.tests_of_clients
    if tests is None or tests.sizes.any():
        return
    if share is None:
        raise ExperimentError("no client has a test sample: all test sets are empty.", "Problem(tests=[…])")
    raise ExperimentError(
        f"no client has a test sample: share {share:g} of at most {problem.data.sizes.max()} samples.",
        "a larger evaluation.share, clients with more samples, or Problem(tests=[…])",
    )


def rows_of(images: Any, labels: NDArray[np.int64], at: NDArray[np.int64]) -> Sample:
    return torch.from_numpy(np.ascontiguousarray(images[at])), torch.from_numpy(labels[at])

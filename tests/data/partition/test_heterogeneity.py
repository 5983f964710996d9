"""The score of heterogeneity: its two ends, what it must not depend on, and what it is for."""

from __future__ import annotations

import numpy as np
import pytest
from for_each import for_each

from fedkeel.data.partition.dirichlet import Dirichlet
from fedkeel.data.partition.heterogeneity import _distance_by_chance, score, summarise
from fedkeel.data.partition.iid import Iid, QuantitySkew
from fedkeel.data.partition.long_tail import LongTail

CIFAR = np.arange(50_000) % 10


def test_one_class_per_client_is_1_however_frequent_the_classes_are() -> None:
    assert score(np.diag([70, 1, 500, 3])) == pytest.approx(1.0, abs=1e-12)
    assert score(np.array([[40, 0], [60, 0], [0, 9]])) == pytest.approx(1.0, abs=1e-12)


def test_equal_clients_are_0() -> None:
    assert score(np.tile([30, 20, 1], (5, 1))) == 0.0


@for_each("clients", [2, 10, 100, 1000, 10_000])
def test_iid_clients_are_0_however_few_samples_they_have(clients: int) -> None:
    scores = [score(Iid(clients).divide(CIFAR, key).histogram(CIFAR, 10)) for key in range(3)]
    assert max(scores) < 0.01


def test_the_distance_by_chance_is_the_mean_over_random_divisions() -> None:
    labels = np.repeat(np.arange(3), (600, 250, 50))
    p = np.array([600, 250, 50]) / 900
    measured = []
    for key in range(300):
        held = QuantitySkew(0.7, 12).divide(labels, 5).sizes  # the same sizes each time
        shuffled = np.random.default_rng(key).permutation(labels)
        parts = np.split(shuffled, np.cumsum(held)[:-1])
        measured.append(sum(np.abs(np.bincount(x, minlength=3) - len(x) * p).sum() for x in parts) / 1800)
    error = np.std(measured) / np.sqrt(300)
    # the width of a sample without replacement is approximate, by a few per mille
    assert abs(np.mean(measured) - _distance_by_chance(held, p)) < 4 * error + 0.003 * np.mean(measured)


def test_order_of_clients_and_names_of_classes_do_not_matter() -> None:
    held = Dirichlet(0.3, 40).divide(CIFAR, 1).histogram(CIFAR, 10)
    random = np.random.default_rng(0)
    assert score(random.permutation(random.permutation(held, axis=1), axis=0)) == pytest.approx(score(held), abs=1e-12)


def test_empty_clients_and_absent_classes_do_not_matter() -> None:
    held = Dirichlet(0.3, 40).divide(CIFAR, 1).histogram(CIFAR, 10)
    padded = np.pad(held, ((0, 5), (0, 3)))
    assert score(padded) == pytest.approx(score(held), abs=1e-12)


def test_a_long_tail_that_all_clients_share_is_no_heterogeneity() -> None:
    assert score(LongTail(Iid(20), 100).divide(CIFAR, 1).histogram(CIFAR, 10)) < 0.02


def test_where_nothing_can_be_told_apart_it_is_0() -> None:
    assert score(np.array([[5], [9]])) == 0.0  # one class
    assert score(np.eye(6, dtype=np.int64)) == 0.0  # one sample each
    assert score(np.zeros((3, 2), dtype=np.int64)) == 0.0


def test_the_summary_of_a_partition_worked_out_by_hand() -> None:
    labels = np.array([0, 0, 1, 1, 2, 2, 2, 2])
    partition = Dirichlet(1e-6, 4, "class-wise", min_size=0).divide(labels, 1)
    held = partition.histogram(labels, 3)
    result = summarise(partition, labels, 3)
    assert (result.clients, result.unused, result.duplicated, result.notes) == (4, 0, 0, ())
    assert result.empty == 4 - np.count_nonzero(held.sum(axis=1)) > 0
    assert (result.smallest, result.largest) == (0, held.sum(axis=1).max())
    assert result.classes_per_client == np.count_nonzero(held) / (4 - result.empty)
    assert result.score == score(held)

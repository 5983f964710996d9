"""Laws of every way to divide a data set, over extreme settings: it ends, and what it returns is what it promises."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from for_each import for_each
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedkeel.data.clients import SharedClients, TensorClients
from fedkeel.data.hold_out import hold_out
from fedkeel.data.partition.dirichlet import Dirichlet
from fedkeel.data.partition.feature_shift import FeatureShift
from fedkeel.data.partition.iid import Iid, QuantitySkew
from fedkeel.data.partition.long_tail import LongTail
from fedkeel.data.partition.natural import Natural
from fedkeel.data.partition.partition import Partition
from fedkeel.data.partition.pathological import Pathological
from fedkeel.data.partition.registry import PARTITIONS, may_repeat
from fedkeel.errors import DataError
from fedkeel.problems.personal_data import without_proxy
from fedkeel.testing import check_partition
from fedkeel.testing.partitions import LABELS, check_division

BALANCED = ("client-prior-refill", "client-prior-exact", "hsu", "fedfsa-released")

law = settings(deadline=None)  # no clock in a test

# labels with gaps, rare classes and single ones
label_sets = st.lists(st.sampled_from([0, 1, 2, 3, 7, 40]), min_size=1, max_size=150).map(np.array)
client_counts = st.integers(1, 60)
alphas = st.floats(-6, 6).map(lambda power: 10.0**power)
keys = st.integers(0, 2**63 - 1)


def check(partition: Partition, labels: np.ndarray[Any, Any], clients: int) -> None:
    check_division(partition, "this partition", len(labels), clients)
    distinct = set(partition.indices.tolist())
    assert len(distinct) + partition.unused == len(labels)
    assert len(distinct) + partition.duplicated == len(partition.indices)


def check_balanced(partition: Partition, labels: np.ndarray[Any, Any], clients: int) -> None:
    check(partition, labels, clients)
    each, remainder = divmod(len(labels), clients)
    assert partition.sizes.tolist() == [each + remainder] + [each] * (clients - 1)


@law
@given(label_sets, client_counts, alphas, keys, st.sampled_from(BALANCED))
def test_dirichlet_by_client_is_balanced(labels: Any, clients: int, alpha: float, key: int, form: str) -> None:
    partitioner = Dirichlet(alpha, clients, form)
    if clients > len(labels):
        with pytest.raises(DataError, match=f"{clients} clients"):
            partitioner.divide(labels, key)
        return
    partition = partitioner.divide(labels, key)
    check_balanced(partition, labels, clients)
    if form != "client-prior-refill":
        assert partition.duplicated == partition.unused == 0


@law
@given(label_sets, client_counts, alphas, keys, st.integers(0, 12))
def test_dirichlet_by_class_gives_everyone_the_minimum(
    labels: Any, clients: int, alpha: float, key: int, min_size: int
) -> None:
    partitioner = Dirichlet(alpha, clients, "class-wise", min_size)
    if clients * min_size > len(labels):
        with pytest.raises(DataError, match=f"{min_size} of {len(labels)} samples"):
            partitioner.divide(labels, key)
        return
    partition = partitioner.divide(labels, key)
    check(partition, labels, clients)
    assert partition.sizes.min() >= min_size
    assert partition.duplicated == partition.unused == 0


@law
@given(label_sets, client_counts, st.integers(1, 7), keys)
def test_pathological_shuffled(labels: Any, clients: int, classes: int, key: int) -> None:
    partitioner = Pathological(classes, clients, "shuffled")
    if classes > len(set(labels)) or clients > len(labels):
        with pytest.raises(DataError):
            partitioner.divide(labels, key)
        return
    partition = partitioner.divide(labels, key)
    check_balanced(partition, labels, clients)
    assert np.count_nonzero(partition.histogram(labels, 41), axis=1).max() <= classes


@law
@given(label_sets, client_counts, st.integers(1, 7), keys)
def test_pathological_shards(labels: Any, clients: int, classes: int, key: int) -> None:
    partitioner = Pathological(classes, clients, "shards")
    if classes > len(set(labels)) or clients * classes > len(labels):
        with pytest.raises(DataError):
            partitioner.divide(labels, key)
        return
    partition = partitioner.divide(labels, key)
    check(partition, labels, clients)
    assert partition.duplicated == 0
    assert partition.sizes.min() >= classes
    held = partition.histogram(labels, 41)
    assert np.count_nonzero(held, axis=1).max() <= classes
    # a class is left out whole or not at all
    used, there = held.sum(axis=0), np.bincount(labels, minlength=41)
    assert ((used == there) | (used == 0)).all()


def test_shards_of_all_classes_may_leave_a_rare_one_out() -> None:
    labels = np.repeat([0, 1, 2], [400, 95, 5])
    partition = Pathological(3, 2).divide(labels, 0)
    assert partition.unused == 5
    assert partition.notes == ("no client holds 1 of 3 classes",)


@law
@given(label_sets, client_counts, st.integers(1, 7), keys)
def test_pathological_cyclic(labels: Any, clients: int, classes: int, key: int) -> None:
    names, counts = np.unique(labels, return_counts=True)
    lists = [[(client + step) % len(names) for step in range(classes)] for client in range(clients)]
    sharers = np.bincount([c for mine in lists for c in mine], minlength=len(names))
    partitioner = Pathological(classes, clients, "cyclic")
    if classes > len(names) or clients > len(labels):
        with pytest.raises(DataError):
            partitioner.divide(labels, key)
        return
    try:
        partition = partitioner.divide(labels, key)
    except DataError:
        assert (counts < sharers).any()
        return
    check(partition, labels, clients)
    assert partition.duplicated == 0
    assert partition.unused == counts[sharers == 0].sum()
    for mine, histogram in zip(lists, partition.histogram(labels, 41), strict=True):
        assert set(np.flatnonzero(histogram)) <= {names[c] for c in mine}
        for c in mine:
            assert histogram[names[c]] in (counts[c] // sharers[c], -(-counts[c] // sharers[c]))


@law
@given(label_sets, client_counts, alphas, keys, st.integers(1, 4))
def test_quantity_skew_uses_every_sample_once(labels: Any, clients: int, alpha: float, key: int, least: int) -> None:
    partitioner = QuantitySkew(alpha, clients, least)
    if clients * least > len(labels):
        with pytest.raises(DataError):
            partitioner.divide(labels, key)
        return
    partition = partitioner.divide(labels, key)
    check(partition, labels, clients)
    assert partition.sizes.min() >= least
    assert partition.duplicated == partition.unused == 0


@law
@given(label_sets, client_counts, keys)
def test_iid_is_balanced(labels: Any, clients: int, key: int) -> None:
    if clients > len(labels):
        with pytest.raises(DataError, match="samples each"):
            Iid(clients).divide(labels, key)
        return
    partition = Iid(clients).divide(labels, key)
    check_balanced(partition, labels, clients)
    assert partition.duplicated == partition.unused == 0


@law
@given(label_sets, keys, st.randoms(use_true_random=False))
def test_natural_clients_are_the_owners(labels: Any, key: int, random: Any) -> None:
    groups = np.array([random.choice([2, 3, 30, 31]) for _ in labels])
    partition = Natural().divide(labels, key, groups=groups)
    check(partition, labels, len(set(groups)))
    for owner, mine in zip(sorted(set(groups)), partition, strict=True):
        assert mine.tolist() == np.flatnonzero(groups == owner).tolist()


@law
@given(label_sets, client_counts, keys, st.floats(1, 1e6))
def test_long_tail_only_takes_away(labels: Any, clients: int, key: int, imbalance: float) -> None:
    try:
        partition = LongTail(Iid(clients), imbalance).divide(labels, key)
    except DataError:
        assert clients > len(set(labels))  # one sample of each class always remains
        return
    check(partition, labels, clients)
    assert partition.duplicated == 0
    kept = np.bincount(labels[partition.indices], minlength=41)
    there = np.bincount(labels, minlength=41)
    assert ((kept > 0) == (there > 0)).all()


EVERY = [
    Iid(7),
    QuantitySkew(0.5, 7),
    *(Dirichlet(0.3, 7, form) for form in (*BALANCED, "class-wise")),
    *(Pathological(3, 7, form) for form in ("shuffled", "shards", "cyclic")),
    LongTail(Dirichlet(0.3, 7, "client-prior-refill"), 20),
    FeatureShift(Dirichlet(0.3, 7, "client-prior-refill")),
]


@for_each("partitioner", EVERY)
def test_a_partition_obeys_the_laws_and_another_key_divides_otherwise(partitioner: Any) -> None:
    check_partition(partitioner)
    first, other = (partitioner.divide(LABELS, key) for key in (5, 6))
    assert first.indices.tobytes() != other.indices.tobytes()


NAMELESS = [p for p in EVERY if getattr(p, "form", "") not in ("cyclic", "fedfsa-released") and not hasattr(p, "base")]


@for_each("partitioner", NAMELESS)
def test_the_names_of_the_classes_do_not_matter(partitioner: Any) -> None:
    renamed = np.array([70, 3, 12, 5, 9, 8, 1, 0, 44, 2])[LABELS]
    one, other = partitioner.divide(LABELS, 5), partitioner.divide(renamed, 5)
    assert one.indices.tobytes() == other.indices.tobytes()
    assert one.offsets.tobytes() == other.offsets.tobytes()


@for_each("partitioner", EVERY)
def test_labels_that_cannot_be_divided_are_refused(partitioner: Any) -> None:
    with pytest.raises(DataError, match="without samples"):
        partitioner.divide(np.array([], dtype=np.int64), 0)
    with pytest.raises(DataError, match="float64"):
        partitioner.divide(np.array([0.5, 1.5]), 0)


def samples_of(clients: Any) -> set[int]:
    """Whoever holds them; the inputs of these data are the samples' numbers."""
    rows = [clients.rows(client, np.arange(size))[0] for client, size in enumerate(clients.sizes.tolist())]
    return {int(number) for row in rows for number in row}


@pytest.mark.parametrize("partitioner", EVERY, ids=str)
@settings(deadline=None, max_examples=15)
@given(sizes=st.lists(st.integers(20, 120), min_size=3, max_size=6), key=keys, share=st.floats(0.01, 0.6))
def test_no_sample_stands_on_two_sides(partitioner: Any, sizes: list[int], key: int, share: float) -> None:
    labels = np.repeat(np.arange(len(sizes)), sizes)
    try:
        partition = partitioner.divide(labels, key)
    except DataError:
        return  # too few samples for these clients
    partition, server = without_proxy(partition, key, 3)
    kept, tests = partition.split(share, key)
    whole = SharedClients(np.arange(len(labels)), labels, kept)
    trained, validation = hold_out(whole, share, key % 1000)
    assert ((trained.sizes > 0) == (kept.sizes > 0)).all()
    sides = [samples_of(trained), samples_of(validation), set(tests.indices.tolist()), set(server.tolist())]
    assert sum(map(len, sides)) == len(set.union(*sides))
    if partition.duplicated == 0:  # then shares are those asked for, client by client
        assert validation.sizes.tolist() == [cut(share, n) for n in kept.sizes.tolist()]


def cut(share: float, size: int) -> int:
    """What floating point cuts; one more where the written number reaches a whole one that its product does not."""
    return min(max(int(share * size), int(Fraction(repr(share)) * size)), max(size - 1, 0))


@law
@given(st.integers(0, 9999), st.integers(1, 3000))
@example(2900, 100)
@example(5700, 100)
def test_a_share_is_cut_as_it_is_written(digits: int, size: int) -> None:
    """⌊share · n⌋ in whole numbers; floating point differs only where it puts a product just below one."""
    share, exact = digits / 10000, digits * size // 10000
    kept, aside = hold_out(TensorClients([torch.zeros(size)]), share, 0)
    assert (int(kept.sizes[0]), int(aside.sizes[0])) == (size - min(exact, size - 1), min(exact, size - 1))
    assert int(share * size) == exact or 0 < exact - share * size < 1e-11


@law
@given(label_sets, st.integers(1, 20), alphas, keys, st.integers(1, 3))
def test_defaults_give_each_sample_to_one_client(
    labels: Any, clients: int, alpha: float, key: int, classes: int
) -> None:
    for partitioner in (Dirichlet(alpha, clients), Pathological(classes, clients), QuantitySkew(alpha, clients)):
        try:
            partition = partitioner.divide(labels, key)
        except DataError:
            continue  # more clients or classes than there are
        without = np.setdiff1d(labels, labels[partition.indices])  # too few shards to hold every class, and it says so
        assert (len(without) > 0) == bool(partition.notes)
        assert partition.duplicated == 0
        assert partition.unused == np.isin(labels, without).sum()


@for_each("partitioner", EVERY)
def test_a_partition_knows_whether_it_repeats_samples(partitioner: Any) -> None:
    assert type(partitioner) in PARTITIONS.values()
    found = any(partitioner.divide(LABELS, key).duplicated for key in range(5))
    assert may_repeat(partitioner) == found


def test_a_partition_of_the_users_own_may_repeat_samples_unless_it_says_otherwise() -> None:
    class Own:
        clients = 2

    class Once(Own):
        repeats = False

    assert may_repeat(Own())  # type: ignore[arg-type]
    assert not may_repeat(Once())  # type: ignore[arg-type]


@pytest.mark.parametrize("key", range(8))
def test_a_client_that_has_its_share_to_the_sample_gets_no_more(key):
    """As α → 0 a class goes to one client: who got the first class is full, and the second goes to the other."""
    part = Dirichlet(1e-6, 2, form="class-wise", min_size=0).divide(np.repeat([0, 1], 50), key)
    assert part.sizes.tolist() == [50, 50]

"""A partition as a value: what clients hold, what is unused, and how each client's samples are split again."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from for_each import for_each
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkeel.data.partition.partition import Partition, collect
from fedkeel.errors import ExperimentError


def held(*clients: list[int], samples: int = 20) -> Partition:
    holders = np.repeat(np.arange(len(clients)), [len(client) for client in clients])
    return collect(holders, np.array([s for client in clients for s in client], dtype=np.int64), len(clients), samples)


def test_each_client_gets_its_samples_in_ascending_order() -> None:
    partition = held([5, 2, 9], [], [0])
    assert [client.tolist() for client in partition] == [[2, 5, 9], [], [0]]
    assert partition.sizes.tolist() == [3, 0, 1]
    assert len(partition) == partition.clients == 3


@pytest.mark.parametrize("client", [-1, 3])
def test_a_client_that_does_not_exist_is_an_error_and_not_an_empty_one(client: int) -> None:
    with pytest.raises(IndexError, match=str(client)):
        held([1], [2], [3])[client]


def test_unused_and_duplicated_samples_are_counted_separately() -> None:
    partition = held([0, 0, 1], [1, 1, 2], samples=5)
    assert partition.unused == 2  # 3 and 4
    assert partition.duplicated == 3  # 0 once more, 1 twice more


def test_the_histogram_counts_labels_by_client() -> None:
    labels = np.array([0, 2, 2, 0, 1])
    assert held([0, 1, 2], [], [3, 3], samples=5).histogram(labels, 4).tolist() == [
        [1, 0, 2, 0],
        [0, 0, 0, 0],
        [2, 0, 0, 0],
    ]


def test_a_partition_cannot_be_changed_and_survives_a_pickle() -> None:
    partition = held([3, 1], [2])
    with pytest.raises(ValueError, match="read-only"):
        partition.indices[0] = 7
    copy = pickle.loads(pickle.dumps(partition))
    assert (copy.indices.tolist(), copy.offsets.tolist()) == ([1, 3, 2], [0, 2, 3])


law = settings(deadline=None)  # no clock in a test
owners = st.lists(st.lists(st.integers(0, 19), max_size=15), min_size=1, max_size=6)


@law
@given(owners, st.floats(0, 0.99), st.integers(0, 2**63 - 1))
def test_all_copies_of_a_sample_are_on_one_side(clients: list[list[int]], share: float, key: int) -> None:
    whole = held(*clients)
    kept, aside = whole.split(share, key)
    assert not set(kept.indices) & set(aside.indices)
    for client, (mine, theirs) in enumerate(zip(kept, aside, strict=True)):
        assert sorted([*mine, *theirs]) == whole[client].tolist()
        assert len(mine) > 0 or not clients[client]


@law
@given(st.lists(st.integers(0, 5), max_size=20), st.floats(0, 0.99), st.integers(0, 2**63 - 1))
def test_of_samples_that_one_client_holds_the_share_is_exact(owner: list[int], share: float, key: int) -> None:
    clients = [[sample for sample, mine in enumerate(owner) if mine == client] for client in range(6)]
    twice = held(*([*mine, *mine] for mine in clients))
    _, aside = twice.split(share, key)
    for mine, theirs in zip(clients, aside, strict=True):
        assert len(set(theirs)) == int(share * len(mine) + 1e-9)


@for_each(
    ("size", "share", "aside"),
    [(600, 0.3, 180), (700, 0.3, 210), (1100, 0.3, 330), (100, 0.29, 29), (1, 0.9, 0), (2, 0.5, 1), (2, 0.49, 0)],
)
def test_split_sizes_are_those_of_the_papers(size: int, share: float, aside: int) -> None:
    _, second = held(list(range(size)), samples=size).split(share, 0)
    assert second.sizes.tolist() == [aside]


def test_a_sample_that_two_clients_hold_is_drawn_by_the_first() -> None:
    for key in range(20):
        _, aside = held([0, 1, 2, 3], [3, 4, 5, 6]).split(0.5, key)
        assert len(aside[0]) == 2  # of its four
        assert len(set(aside[1]) - {3}) == 1  # of the three that only it holds
        assert (3 in aside[0]) == (3 in aside[1])


def test_a_client_keeps_a_sample_even_if_others_drew_all_of_its() -> None:
    for key in range(20):
        kept, aside = held([0, 1, 2, 3], [0, 1], [2], [3]).split(0.75, key)
        assert (kept.sizes > 0).all()
        assert not set(kept.indices) & set(aside.indices)


def test_a_client_all_of_whose_samples_others_drew_gets_one_of_them_back() -> None:
    """Of the eight samples of the first client six are drawn, with those of the second, or all but one of them."""
    splits = [held([*range(8)], [0, 1, 2]).split(0.75, key) for key in range(40)]
    drawn = [(len(aside[0]), len(kept[1])) for kept, aside in splits]
    assert set(drawn) == {(5, 1), (6, 1), (6, 2)}


def test_what_a_client_sets_aside_does_not_depend_on_the_others() -> None:
    one = held([0, 1, 2, 3, 4, 5, 6, 7], [8, 9, 10]).split(0.4, 11)[1]
    other = held([12, 13], [8, 9, 10]).split(0.4, 11)[1]
    assert one[1].tolist() == other[1].tolist()


def test_the_key_decides_the_split() -> None:
    partition = held(list(range(20)), list(range(20, 40)), samples=40)
    first, again, other = (partition.split(0.5, key)[1] for key in (1, 1, 2))
    assert first.indices.tobytes() == again.indices.tobytes() != other.indices.tobytes()
    assert first[0].tolist() != (first[1] - 20).tolist()


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_an_impossible_share_is_refused(share: float) -> None:
    with pytest.raises(ExperimentError, match=str(share)):
        held([1, 2]).split(share, 0)

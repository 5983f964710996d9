"""Feature shift: who gets which corruption, and that each image has its own for good."""

from __future__ import annotations

import numpy as np
import pytest
from for_each import for_each

from fedkeel.data.corruptions.registry import TWELVE, corrupt_array
from fedkeel.data.partition.dirichlet import Dirichlet
from fedkeel.data.partition.feature_shift import KINDS, FeatureShift, corrupt_each
from fedkeel.data.partition.iid import Iid
from fedkeel.data.partition.partition import Partition
from fedkeel.errors import DataError, ExperimentError
from fedkeel.randomness import bits, key

LABELS = np.arange(600) % 10
IMAGES = np.random.default_rng(0).integers(0, 256, (600, 8, 8, 3), np.uint8)


def test_each_client_has_two_or_three_and_all_kinds_are_dealt_evenly():
    for fifteen, kinds in ((False, TWELVE), (True, KINDS)):
        hands = FeatureShift(Iid(100), fifteen=fifteen).deal_corruptions(100, 5)
        assert {len(hand) for hand in hands} == {2, 3}
        assert all(len(set(hand)) == len(hand) for hand in hands)
        dealt = np.array([sum(kind in hand for hand in hands) for kind in kinds])
        assert dealt.sum() == sum(map(len, hands))
        assert dealt.min() >= 1
        assert dealt.max() - dealt.min() <= 2
    hands = FeatureShift(Iid(100)).deal_corruptions(100, 5)
    assert hands != FeatureShift(Iid(100)).deal_corruptions(100, 6)


@pytest.mark.parametrize(("fewest", "most"), [(1, 1), (12, 12), (5, 9)])
def test_hands_of_any_size(fewest, most):
    hands = FeatureShift(Iid(10), fewest=fewest, most=most).deal_corruptions(10, 0)
    assert all(fewest <= len(set(hand)) == len(hand) <= most for hand in hands)


def test_a_clients_images_take_its_kinds_in_turn():
    shift = FeatureShift(Iid(20))
    partition = shift.divide(LABELS, 3)
    kinds, hands = shift.assign_corruptions(partition, 3), shift.deal_corruptions(20, 3)
    for client in range(20):
        counts = np.bincount(kinds[partition[client]], minlength=len(KINDS))
        assert {KINDS[i] for i in np.flatnonzero(counts)} == set(hands[client])
        used = counts[counts > 0]
        assert used.max() - used.min() <= 1


def test_a_sample_held_twice_has_a_kind_of_its_first_holder():
    shift, rows = FeatureShift(Iid(3), fewest=1, most=1), np.arange(6)
    kinds = shift.assign_corruptions(Partition(np.r_[rows, rows, rows[:3]], np.array([0, 6, 12, 15]), 6), 3)
    hands = shift.deal_corruptions(3, 3)
    assert hands[0] not in hands[1:]
    assert {KINDS[kind] for kind in kinds} == {*hands[0]}


def test_the_partition_is_the_bases():
    base = Dirichlet(alpha=0.3, clients=10)
    shifted, plain = FeatureShift(base).divide(LABELS, 4), base.divide(LABELS, 4)
    np.testing.assert_array_equal(shifted.indices, plain.indices)
    np.testing.assert_array_equal(shifted.offsets, plain.offsets)
    assert FeatureShift(base).clients == 10


def test_images_are_corrupted_once_and_for_all():
    shift = FeatureShift(Iid(20), severity=2)
    partition = shift.divide(LABELS, 3)
    once, again = shift.corrupt(IMAGES, partition, 3), shift.corrupt(IMAGES, partition, 3)
    np.testing.assert_array_equal(once, again)
    kinds, keys = shift.assign_corruptions(partition, 3), bits(key(3, "corruption"), len(IMAGES))
    for row in (0, 17, 599):
        rows = slice(row, row + 1)
        np.testing.assert_array_equal(once[rows], corrupt_array(IMAGES[rows], KINDS[kinds[row]], 2, keys[rows]))


def test_no_corruption_is_the_base_alone():
    shift = FeatureShift(Iid(20), fewest=0, most=0)
    partition = shift.divide(LABELS, 3)
    assert set(shift.assign_corruptions(partition, 3)) == {-1}
    np.testing.assert_array_equal(shift.corrupt(IMAGES, partition, 3), IMAGES)


def test_samples_that_no_client_holds_stay_as_they_are():
    kinds = np.full(len(IMAGES), -1)
    kinds[:10] = KINDS.index("contrast")
    seen = []
    result = corrupt_each(IMAGES, kinds, 3, 0, progress=lambda *call: seen.append(call))
    np.testing.assert_array_equal(result[10:], IMAGES[10:])
    assert (result[:10] != IMAGES[:10]).any()
    assert seen[-1] == ("corrupting: contrast", 600, 600)


@for_each("wrong", [{"fewest": 3, "most": 2}, {"fewest": -1}, {"most": 13}, {"fewest": "x"}])
def test_impossible_hands_are_refused(wrong):
    with pytest.raises(
        ExperimentError,
        match="corruptions per client|of FeatureShift must",  # noqa: RUF043
    ):
        FeatureShift(Iid(10), **wrong)


def test_text_cannot_be_corrupted():
    with pytest.raises(DataError, match=r"corruptions are for images of bytes, not int64 of shape \(5, 80\)"):
        corrupt_each(np.zeros((5, 80), np.int64), np.zeros(5, np.int64), 3, 0)
    with pytest.raises(ExperimentError, match="severity"):
        FeatureShift(Iid(10), severity=7)

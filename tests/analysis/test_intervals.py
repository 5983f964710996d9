"""Intervals of mean differences, and pooled standard deviations, against numbers worked out by hand."""

import math

import numpy as np
import pytest

from fedkeel.analysis.intervals import (
    difference_interval,
    list_differences,
    paired_interval,
    paired_p_value,
    pooled_std,
    welch_interval,
)

T_2 = 4.302652729911275  # Student's 97.5 % quantile with two degrees of freedom


def test_pairs_have_students_interval():
    found = paired_interval([1.0, 2.0, 3.0])
    assert (found.mean, found.pairs) == (2.0, 3)
    assert found.high == pytest.approx(2.0 + T_2 / math.sqrt(3))
    assert found.low == pytest.approx(2.0 - T_2 / math.sqrt(3))


def test_one_pair_has_no_interval():
    found = paired_interval([1.5])
    assert (found.mean, found.low, found.high, found.reason) == (1.5, None, None, "one seed")
    assert difference_interval([(1, {0: 3.0}), (-1, {0: 1.5, 1: 9.0})]) == found


def test_groups_without_common_seeds_have_welchs_interval():
    """Two groups of two values with one variance have Student's two degrees of freedom."""
    found = difference_interval([(1, {0: 5.0, 1: 7.0}), (-1, {2: 1.0, 3: 3.0})])
    assert (found.mean, found.pairs) == (4.0, 0)
    assert found.high == pytest.approx(4.0 + T_2 * math.sqrt(2.0))
    wider = welch_interval([(1, [5.0, 7.0]), (-1, [2.0, 2.0])])  # only the first varies: one degree of freedom
    assert wider.high == pytest.approx(4.0 + 12.706204736174707)


def test_looks_raise_the_confidence():
    """Student's quantile with two degrees of freedom is (2p − 1) √(2 / (4p (1 − p)))."""
    for looks in (1, 2, 3):
        p = 1 - 0.05 / 2**looks
        half = (2 * p - 1) * math.sqrt(2 / (4 * p * (1 - p)))
        paired = difference_interval([(1, {0: 1.0, 1: 2.0, 2: 3.0}), (-1, dict.fromkeys(range(3), 0.0))], looks)
        assert (paired.high, paired.looks) == (pytest.approx(2.0 + half / math.sqrt(3)), looks)
        apart = difference_interval([(1, {0: 5.0, 1: 7.0}), (-1, {2: 1.0, 3: 3.0})], looks)
        assert (apart.low, apart.looks) == (pytest.approx(4.0 - half * math.sqrt(2.0)), looks)


def test_who_adds_seeds_until_an_interval_decides_errs_in_less_than_one_case_of_ten():
    drawn = np.random.default_rng(0).normal(size=(2000, 30)).tolist()

    def decides(values, looks):
        found = paired_interval(values, looks)
        return not found.low < 0.0 < found.high

    wrong, careless = (
        np.mean([any(decides(row[: 3 * look], look if counted else 1) for look in range(1, 11)) for row in drawn])
        for counted in (True, False)
    )
    assert wrong < 0.1 < 0.15 < careless


def test_common_seeds_are_paired_and_the_others_left_out():
    found = difference_interval([(1, {0: 5.0, 1: 7.0, 2: 100.0}), (-1, {0: 4.0, 1: 6.0})])
    assert (found.mean, found.pairs) == (1.0, 2)


def test_a_difference_of_differences_is_paired_over_all_four():
    found = difference_interval(
        [(1, {0: 9.0, 1: 8.0}), (-1, {0: 4.0, 1: 4.0}), (-1, {0: 3.0, 1: 3.0}), (1, {0: 1.0, 1: 0.0})]
    )
    assert (found.mean, found.pairs) == (2.0, 2)
    assert found.low == pytest.approx(2.0 - 12.706204736174707)


@pytest.mark.parametrize(
    "values",
    [[282 / 355 - 281 / 355, 266 / 355 - 265 / 355], [0.1 + 0.2, 0.3, 0.3], [0.0, 0.0], [-3.0, -3.0]],
)
def test_values_that_are_alike_up_to_rounding_decide_nothing(values):
    """Accuracies are multiples of 1 / n: a few seeds often differ by equally many test samples."""
    for found in (paired_interval(values), welch_interval([(1, values), (-1, [0.5, 0.5])])):
        assert (found.low, found.high, found.reason) == (None, None, "all seeds alike")
    assert paired_p_value(values) is None


def test_differences_that_are_rounding_of_equal_numbers_decide_nothing():
    """Numbers of two methods may be added up in different orders; seeds then differ by rounding alone."""
    mine, other = dict(enumerate([0.1 + 0.2] * 3 + [0.1 + 0.2 + 0.3])), dict(enumerate([0.3] * 3 + [0.6]))
    apart = [mine[seed] - other[seed] for seed in mine]
    assert paired_interval(apart).low > 0, "rounding alone has an interval without 0"
    assert list_differences(mine, other) == [0.0] * 4
    assert difference_interval([(1, mine), (-1, other)]).reason == "all seeds alike"
    assert list_differences({1: 0.5, 2: 1.0, 3: 7.0}, {2: 1.0 - 2.0**-20, 1: 0.25}) == [0.25, 2.0**-20]


def test_what_varies_by_more_than_rounding_has_an_interval():
    found = paired_interval([1.0, 1.0 + 1e-6])
    assert found.low < found.mean < found.high
    assert welch_interval([(1, [2.0, 2.0]), (-1, [1.0, 1.1])]).low is not None


def test_deviations_are_pooled_by_degrees_of_freedom():
    found = pooled_std([[0.0, 2.0], [5.0], [1.0, 2.0, 3.0]])  # squares 2 and 2, of one and two degrees of freedom
    assert (found.std, found.values, found.groups) == (pytest.approx(math.sqrt(4 / 3)), 5, 2)
    assert pooled_std([[1.0], []]) is None

"""A partition of one's own whose divide takes other arguments is refused in one line."""

from dataclasses import dataclass

import numpy as np
import pytest

import fedkeel as fk
from fedkeel.data.partition.partition import divide


@dataclass(frozen=True)
class NoGroups:
    clients: int = 2

    def divide(self, labels, key):
        return [[0], [1]]


def test_divide_without_groups_is_refused():
    with pytest.raises(fk.ExperimentError, match=r"partition NoGroups does not take what divide is given: .*'groups'"):
        divide(NoGroups(), np.zeros(2, dtype=np.int64), 0)

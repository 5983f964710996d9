"""The laws, called from the kit: one line for each thing that this package brings."""

from fedkeel_example.methods import BoundedPull, tanhprox
from fedkeel_example.partitions import TwoSizes

from fedkeel.testing import check_method, check_partition, check_rule


def test_the_method():
    check_method(tanhprox, neutral={"mu": 0.0}, base="fedavg")


def test_the_rule():
    check_rule(BoundedPull(0.1), neutral=BoundedPull(0.0))


def test_the_partition():
    check_partition(TwoSizes(clients=6))

"""The kit finds what is broken in a partition or an engine."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from fedkeel.data.partition.partition import Partition, check_labels, collect
from fedkeel.data.partition.registry import PARTITIONS
from fedkeel.engines.serial import SerialEngine
from fedkeel.randomness import permutation
from fedkeel.testing import BrokenLaw, check_engine, check_partition


# ---- partitions ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Halves:
    """Each sample to one of two clients, by lot."""

    clients = 2
    repeats = False

    def divide(self, labels, key, *, groups=None):
        check_labels(labels)
        return collect(permutation(key, len(labels)) % 2, np.arange(len(labels)), 2, len(labels))


class ByChance(Halves):
    def divide(self, labels, key, *, groups=None):
        check_labels(labels)
        return collect(np.random.randint(0, 2, len(labels)), np.arange(len(labels)), 2, len(labels))


class Repeats(Halves):
    def divide(self, labels, key, *, groups=None):
        check_labels(labels)
        every = np.arange(len(labels))
        return collect(np.repeat([0, 1], len(labels)), np.concatenate([every, every]), 2, len(labels))


class Miscounts(Halves):
    clients = 3


class Beyond(Halves):
    def divide(self, labels, key, *, groups=None):
        return replace(super().divide(labels, key), indices=super().divide(labels, key).indices + 1)


class Backwards(Halves):
    def divide(self, labels, key, *, groups=None):
        return Partition(np.arange(len(labels))[::-1].copy(), np.array([0, 1, len(labels)]), len(labels))


class Writes(Halves):
    def divide(self, labels, key, *, groups=None):
        labels.sort()
        return super().divide(labels, key)


class Nameless:
    clients = 2

    def divide(self, labels, key, *, groups=None):
        return Halves().divide(labels, key)


class Counts(Halves):
    def divide(self, labels, key, *, groups=None):
        return len(labels)


class Masks(Halves):
    def divide(self, labels, key, *, groups=None):
        return [labels < 5, labels >= 5]


class Past(Halves):
    def divide(self, labels, key, *, groups=None):
        return [range(len(labels)), [len(labels)]]


class Lists(Halves):
    """The samples of each client as lists, the second client without any."""

    def divide(self, labels, key, *, groups=None):
        return [np.random.default_rng(key).permutation(len(labels)), []]


BROKEN = {
    ByChance: "divides in two ways by the same key",
    Repeats: "gives samples to several clients, and says that it does not",
    Miscounts: "says that it has 3 clients and makes 2",
    Beyond: "gives samples to client 0 that do not exist",
    Backwards: "does not list the samples of a client in order",
    Writes: "writes into the labels that it was given",
    Nameless: "prints another name in every process, so its runs cannot be resumed",
    Counts: "does not say which samples each client holds: its answer is 1200",
    Masks: "does not say which samples each client holds: its answer is bool",
    Past: "gives samples to client 1 that do not exist",
}


def test_sound_partitions_pass():
    check_partition(Halves())
    check_partition(Lists())
    for name in ("iid:clients=7", "dirichlet:alpha=0.3,clients=7", "pathological:classes=3,clients=7"):
        check_partition(name)
    owners = np.arange(1200) % 9
    check_partition(PARTITIONS["natural"](), groups=owners)


def test_a_broken_partition_is_found_and_the_sentence_says_why():
    for kind, sentence in BROKEN.items():
        with pytest.raises(BrokenLaw, match=sentence):
            check_partition(kind())


# ---- engines ---------------------------------------------------------------------------------------------------------
class Reversed(SerialEngine):
    name = "reversed"

    def train(self, message, round, lr, clients, states):
        return super().train(message, round, lr, clients, states)[::-1]


class Hurried(SerialEngine):
    name = "hurried"

    def train(self, message, round, lr, clients, states):
        return super().train(message, round, 1.1 * lr, clients, states)


class Overwrites(SerialEngine):
    name = "overwrites"

    def train(self, message, round, lr, clients, states):
        outcomes = super().train(message, round, lr, clients, states)
        message["params"].buffer.add_(1.0)
        return outcomes


class Flatters(SerialEngine):
    name = "flatters"

    def evaluate(self, params, buffers, split):
        return super().evaluate(params * 2.0, buffers, split)


def test_sound_engines_pass():
    check_engine(SerialEngine, methods=["fedavg"], bitwise=True)
    check_engine("stacked", methods=["scaffold", "fedavg-ft"])


def test_a_broken_engine_is_found_and_the_sentence_says_why():
    for kind, sentence in {
        Reversed: "engine 'reversed' does not return clients in the order in which they were asked for",
        Hurried: "engine 'hurried' trains fedavg to another model than serial",
        Overwrites: "engine 'overwrites' writes into the message that it was given",
        Flatters: "engine 'flatters' scores the models of fedavg otherwise than serial",
    }.items():
        with pytest.raises(BrokenLaw, match=sentence):
            check_engine(kind)

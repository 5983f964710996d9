"""One module per data set, or per family that shares a file format."""

from __future__ import annotations

from fedkeel.data.dataset import DatasetCard
from fedkeel.data.datasets import (
    bloodmnist,
    cifar,
    cifar_c,
    digits,
    femnist,
    mnist,
    office_home,
    shakespeare,
    tiny_imagenet,
    yahoo_answers,
)
from fedkeel.data.storage.source import Source
from fedkeel.errors import DataError
from fedkeel.importing import Kind
from fedkeel.plugins import Registry

KNOWN: dict[str, Source] = {
    "digits": digits.DIGITS,
    "mnist": mnist.MNIST,
    "fashion-mnist": mnist.FASHION_MNIST,
    "cifar10": cifar.CIFAR10,
    "cifar100": cifar.CIFAR100,
    "cifar10-c": cifar_c.CIFAR10_C,
    "cifar100-c": cifar_c.CIFAR100_C,
    "tiny-imagenet": tiny_imagenet.TINY_IMAGENET,
    "tiny-imagenet-subset": tiny_imagenet.TINY_IMAGENET_SUBSET,
    "bloodmnist": bloodmnist.BLOODMNIST,
    "femnist": femnist.FEMNIST,
    "shakespeare": shakespeare.SHAKESPEARE,
    "office-home": office_home.OFFICE_HOME,
    "yahoo-answers": yahoo_answers.YAHOO_ANSWERS,
}

SOURCE = Kind(
    "data set", Source, objects=True, hint="a data set is a fedkeel.data.storage.source.Source", error=DataError
)
SOURCES: dict[str, Source] = Registry("datasets", SOURCE, KNOWN)
DATASETS: dict[str, DatasetCard] = Registry(
    "datasets", SOURCE, {name: source.card for name, source in KNOWN.items()}, lambda source: source.card
)

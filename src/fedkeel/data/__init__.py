"""Data sets, and how they are divided among clients."""

from __future__ import annotations

from fedkeel.data.dataset import Dataset, DatasetCard, Hub, Samples, Url
from fedkeel.data.datasets import DATASETS
from fedkeel.data.storage.folder import data_root
from fedkeel.data.storage.loading import import_from, load

__all__ = ["DATASETS", "Dataset", "DatasetCard", "Hub", "Samples", "Url", "data_root", "import_from", "load"]

"""fedkeel: federated learning under client drift.

import fedkeel as fk
run = fk.run(fk.Experiment(dataset="digits", method="fedfft-d"))
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedkeel.data import DATASETS as DATASETS
    from fedkeel.data.partitions import PARTITIONS as PARTITIONS
    from fedkeel.data.partitions import Dirichlet as Dirichlet
    from fedkeel.data.partitions import FeatureShift as FeatureShift
    from fedkeel.data.partitions import Iid as Iid
    from fedkeel.data.partitions import LongTail as LongTail
    from fedkeel.data.partitions import Natural as Natural
    from fedkeel.data.partitions import Pathological as Pathological
    from fedkeel.data.partitions import QuantitySkew as QuantitySkew
    from fedkeel.errors import DataError as DataError
    from fedkeel.errors import ExperimentError as ExperimentError
    from fedkeel.errors import FedkeelError as FedkeelError
    from fedkeel.errors import FolderError as FolderError
    from fedkeel.errors import MethodError as MethodError
    from fedkeel.errors import ModelError as ModelError
    from fedkeel.errors import RequestError as RequestError
    from fedkeel.errors import RunError as RunError
    from fedkeel.experiment import Experiment as Experiment
    from fedkeel.layout import Layout as Layout
    from fedkeel.method import Method as Method
    from fedkeel.method import Phase as Phase
    from fedkeel.method import method as method
    from fedkeel.methods import METHODS as METHODS
    from fedkeel.models import MODELS as MODELS
    from fedkeel.problem import Problem as Problem
    from fedkeel.rule import Local as Local
    from fedkeel.rule import Rule as Rule
    from fedkeel.rule import State as State
    from fedkeel.rule import Weighting as Weighting
    from fedkeel.rules import RULES as RULES
    from fedkeel.rules import BySize as BySize
    from fedkeel.rules import ClientMomentum as ClientMomentum
    from fedkeel.rules import ClipNorm as ClipNorm
    from fedkeel.rules import ControlVariates as ControlVariates
    from fedkeel.rules import DynamicDual as DynamicDual
    from fedkeel.rules import HighPass as HighPass
    from fedkeel.rules import Proximal as Proximal
    from fedkeel.rules import Sam as Sam
    from fedkeel.rules import ServerMomentum as ServerMomentum
    from fedkeel.rules import Uniform as Uniform
    from fedkeel.rules import WeightDecay as WeightDecay
    from fedkeel.run import run as run
    from fedkeel.runs import Run as Run
    from fedkeel.runs import load_run as load_run
    from fedkeel.trees import Tree as Tree

PUBLIC: dict[str, str] = {
    "fedkeel.data": "DATASETS",
    "fedkeel.data.partitions": "PARTITIONS Dirichlet FeatureShift Iid LongTail Natural Pathological QuantitySkew",
    "fedkeel.errors": "DataError ExperimentError FedkeelError FolderError MethodError ModelError RequestError RunError",
    "fedkeel.experiment": "Experiment",
    "fedkeel.layout": "Layout",
    "fedkeel.method": "Method Phase method",
    "fedkeel.methods": "METHODS",
    "fedkeel.models": "MODELS",
    "fedkeel.problem": "Problem",
    "fedkeel.rule": "Local Rule State Weighting",
    "fedkeel.rules": "RULES BySize ClientMomentum ClipNorm ControlVariates DynamicDual HighPass Proximal Sam ServerMomentum Uniform WeightDecay",
    "fedkeel.run": "run",
    "fedkeel.runs": "Run load_run",
    "fedkeel.trees": "Tree",
}
"""Where the public names live. They are imported when they are first used: `fedkeel --help` needs no PyTorch."""

HOME = {name: module for module, names in PUBLIC.items() for name in names.split()}

__all__ = sorted(HOME)


class Package(ModuleType):
    """This package. `fk.run` and `fk.method` are functions in modules of the same name, and stay functions."""

    if not TYPE_CHECKING:  # type checkers read the imports above

        def __getattr__(self, name: str) -> Any:
            if name not in HOME:
                raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
            value = getattr(import_module(HOME[name]), name)
            setattr(self, name, value)
            return value

    def __setattr__(self, name: str, value: Any) -> None:
        # importing fedkeel.run would bind that module to the name
        if name not in HOME or not isinstance(value, ModuleType):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *HOME})


sys.modules[__name__].__class__ = Package

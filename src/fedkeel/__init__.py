"""fedkeel: federated learning under client drift.

import fedkeel as fk
run = fk.run(fk.Experiment(dataset="digits", method="fedfft-d"))
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0.dev0"

if TYPE_CHECKING:
    from fedkeel.core.layout import Layout as Layout
    from fedkeel.core.method import Method as Method
    from fedkeel.core.method import Phase as Phase
    from fedkeel.core.method import method as method
    from fedkeel.core.objectives import Calibrated as Calibrated
    from fedkeel.core.objectives import Distilled as Distilled
    from fedkeel.core.objectives import Given as Given
    from fedkeel.core.objectives import Loss as Loss
    from fedkeel.core.objectives import Objective as Objective
    from fedkeel.core.objectives import Value as Value
    from fedkeel.core.rule import Local as Local
    from fedkeel.core.rule import Rule as Rule
    from fedkeel.core.rule import State as State
    from fedkeel.core.rule import Weighting as Weighting
    from fedkeel.core.trees import Tree as Tree
    from fedkeel.data import DATASETS as DATASETS
    from fedkeel.data.partition.registry import PARTITIONS as PARTITIONS
    from fedkeel.data.partition.registry import Dirichlet as Dirichlet
    from fedkeel.data.partition.registry import FeatureShift as FeatureShift
    from fedkeel.data.partition.registry import Iid as Iid
    from fedkeel.data.partition.registry import LongTail as LongTail
    from fedkeel.data.partition.registry import Natural as Natural
    from fedkeel.data.partition.registry import Pathological as Pathological
    from fedkeel.data.partition.registry import QuantitySkew as QuantitySkew
    from fedkeel.errors import DataError as DataError
    from fedkeel.errors import ExperimentError as ExperimentError
    from fedkeel.errors import FedkeelError as FedkeelError
    from fedkeel.errors import FolderError as FolderError
    from fedkeel.errors import MethodError as MethodError
    from fedkeel.errors import ModelError as ModelError
    from fedkeel.errors import RequestError as RequestError
    from fedkeel.errors import RunError as RunError
    from fedkeel.errors import UntrustedError as UntrustedError
    from fedkeel.methods import METHODS as METHODS
    from fedkeel.models import MODELS as MODELS
    from fedkeel.problems.policy import Evaluation as Evaluation
    from fedkeel.problems.problem import Problem as Problem
    from fedkeel.rules import RULES as RULES
    from fedkeel.rules.agreement import ByAgreement as ByAgreement
    from fedkeel.rules.controls import MeasureStep as MeasureStep
    from fedkeel.rules.controls import RandomEnergy as RandomEnergy
    from fedkeel.rules.controls import Rescale as Rescale
    from fedkeel.rules.corrections import ActiveDual as ActiveDual
    from fedkeel.rules.corrections import ClientMomentum as ClientMomentum
    from fedkeel.rules.corrections import ClipHere as ClipHere
    from fedkeel.rules.corrections import ClipNorm as ClipNorm
    from fedkeel.rules.corrections import ControlVariates as ControlVariates
    from fedkeel.rules.corrections import DecayHere as DecayHere
    from fedkeel.rules.corrections import DriftCorrection as DriftCorrection
    from fedkeel.rules.corrections import DynamicDual as DynamicDual
    from fedkeel.rules.corrections import Proximal as Proximal
    from fedkeel.rules.corrections import WeightDecay as WeightDecay
    from fedkeel.rules.critical import ByChance as ByChance
    from fedkeel.rules.critical import ByChange as ByChange
    from fedkeel.rules.critical import ByRange as ByRange
    from fedkeel.rules.critical import ByRemoval as ByRemoval
    from fedkeel.rules.critical import ByTaylor as ByTaylor
    from fedkeel.rules.critical import CriticalLayers as CriticalLayers
    from fedkeel.rules.critical import LayerRadius as LayerRadius
    from fedkeel.rules.critical import NoteRemoval as NoteRemoval
    from fedkeel.rules.detrending import ClipMedian as ClipMedian
    from fedkeel.rules.detrending import GaussianDetrend as GaussianDetrend
    from fedkeel.rules.detrending import PoolDetrend as PoolDetrend
    from fedkeel.rules.experts import CommonPrior as CommonPrior
    from fedkeel.rules.experts import NotePrecision as NotePrecision
    from fedkeel.rules.filters import HighPass as HighPass
    from fedkeel.rules.filters import HighPass2d as HighPass2d
    from fedkeel.rules.filters import LowPass as LowPass
    from fedkeel.rules.filters import RandomBand as RandomBand
    from fedkeel.rules.layers import On as On
    from fedkeel.rules.layers import OnlyLayers as OnlyLayers
    from fedkeel.rules.learned import AtMixture as AtMixture
    from fedkeel.rules.learned import ByAttraction as ByAttraction
    from fedkeel.rules.learned import ByPlaces as ByPlaces
    from fedkeel.rules.learned import LearnMixture as LearnMixture
    from fedkeel.rules.learned import OnProxy as OnProxy
    from fedkeel.rules.momentum import FirstRateMomentum as FirstRateMomentum
    from fedkeel.rules.momentum import MixGradients as MixGradients
    from fedkeel.rules.momentum import PersonalMomentum as PersonalMomentum
    from fedkeel.rules.momentum import PredictedPosition as PredictedPosition
    from fedkeel.rules.personal import BeginMerged as BeginMerged
    from fedkeel.rules.personal import KeepModel as KeepModel
    from fedkeel.rules.personal import LearnMerge as LearnMerge
    from fedkeel.rules.personal import Merge as Merge
    from fedkeel.rules.personal import OwnModel as OwnModel
    from fedkeel.rules.personal import PrivateLayers as PrivateLayers
    from fedkeel.rules.perturbations import AdaptiveSam as AdaptiveSam
    from fedkeel.rules.perturbations import AdmmPerturbation as AdmmPerturbation
    from fedkeel.rules.perturbations import Ascent as Ascent
    from fedkeel.rules.perturbations import DistilAscent as DistilAscent
    from fedkeel.rules.perturbations import GlobalDirection as GlobalDirection
    from fedkeel.rules.perturbations import LastServerStep as LastServerStep
    from fedkeel.rules.perturbations import Sam as Sam
    from fedkeel.rules.perturbations import SharedLayers as SharedLayers
    from fedkeel.rules.probes import AdaptiveRadius as AdaptiveRadius
    from fedkeel.rules.probes import MeasureAlignment as MeasureAlignment
    from fedkeel.rules.probes import MeasureLoss as MeasureLoss
    from fedkeel.rules.probes import MeasureNorm as MeasureNorm
    from fedkeel.rules.probes import PilotRadius as PilotRadius
    from fedkeel.rules.server_rules import GlobalSharpness as GlobalSharpness
    from fedkeel.rules.server_rules import ServerAdam as ServerAdam
    from fedkeel.rules.server_rules import ServerMomentum as ServerMomentum
    from fedkeel.rules.server_rules import Shrink as Shrink
    from fedkeel.rules.server_rules import WarmUp as WarmUp
    from fedkeel.rules.weights import ByDiscrepancy as ByDiscrepancy
    from fedkeel.rules.weights import ByLoss as ByLoss
    from fedkeel.rules.weights import ByOthersLoss as ByOthersLoss
    from fedkeel.rules.weights import BySize as BySize
    from fedkeel.rules.weights import Fair as Fair
    from fedkeel.rules.weights import FairShares as FairShares
    from fedkeel.rules.weights import Uniform as Uniform
    from fedkeel.runs.experiment import Experiment as Experiment
    from fedkeel.runs.finished_run import Run as Run
    from fedkeel.runs.finished_run import load_run as load_run
    from fedkeel.runs.start import run as run
    from fedkeel.runs.together import run_together as run_together

PUBLIC: dict[str, str] = {
    "fedkeel.data": "DATASETS",
    "fedkeel.data.partition.registry": (
        "PARTITIONS Dirichlet FeatureShift Iid LongTail Natural Pathological QuantitySkew"
    ),
    "fedkeel.errors": (
        "DataError ExperimentError FedkeelError FolderError MethodError ModelError RequestError RunError UntrustedError"
    ),
    "fedkeel.problems.policy": "Evaluation",
    "fedkeel.runs.experiment": "Experiment",
    "fedkeel.core.layout": "Layout",
    "fedkeel.core.method": "Method Phase method",
    "fedkeel.methods": "METHODS",
    "fedkeel.models": "MODELS",
    "fedkeel.core.objectives": "Calibrated Distilled Given Loss Objective Value",
    "fedkeel.problems.problem": "Problem",
    "fedkeel.core.rule": "Local Rule State Weighting",
    "fedkeel.rules": "RULES",
    "fedkeel.rules.agreement": "ByAgreement",
    "fedkeel.rules.controls": "MeasureStep RandomEnergy Rescale",
    "fedkeel.rules.corrections": (
        "ActiveDual ClientMomentum ClipHere ClipNorm ControlVariates DecayHere DriftCorrection DynamicDual Proximal "
        "WeightDecay"
    ),
    "fedkeel.rules.critical": "ByChance ByChange ByRange ByRemoval ByTaylor CriticalLayers LayerRadius NoteRemoval",
    "fedkeel.rules.detrending": "ClipMedian GaussianDetrend PoolDetrend",
    "fedkeel.rules.experts": "CommonPrior NotePrecision",
    "fedkeel.rules.filters": "HighPass HighPass2d LowPass RandomBand",
    "fedkeel.rules.layers": "On OnlyLayers",
    "fedkeel.rules.learned": "AtMixture ByAttraction ByPlaces LearnMixture OnProxy",
    "fedkeel.rules.momentum": "FirstRateMomentum MixGradients PersonalMomentum PredictedPosition",
    "fedkeel.rules.personal": "BeginMerged KeepModel LearnMerge Merge OwnModel PrivateLayers",
    "fedkeel.rules.perturbations": (
        "AdaptiveSam AdmmPerturbation Ascent DistilAscent GlobalDirection LastServerStep Sam SharedLayers"
    ),
    "fedkeel.rules.probes": "AdaptiveRadius MeasureAlignment MeasureLoss MeasureNorm PilotRadius",
    "fedkeel.rules.server_rules": "GlobalSharpness ServerAdam ServerMomentum Shrink WarmUp",
    "fedkeel.rules.weights": "ByDiscrepancy ByLoss ByOthersLoss BySize Fair FairShares Uniform",
    "fedkeel.runs.start": "run",
    "fedkeel.runs.finished_run": "Run load_run",
    "fedkeel.runs.together": "run_together",
    "fedkeel.core.trees": "Tree",
}
"""Where the public names live. They are imported when they are first used: `fedkeel --help` needs no PyTorch."""

HOME = {name: module for module, names in PUBLIC.items() for name in names.split()}

__all__ = sorted(HOME)


class Package(ModuleType):
    """This package. `fk.run` and `fk.method` are functions in modules of the same name, and stay functions."""

    if not TYPE_CHECKING:  # type checkers read the imports above

        def __getattr__(self, name: str) -> Any:
            if name == "optim":
                return import_module("fedkeel.optim")
            if name not in HOME:
                raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
            value = getattr(import_module(HOME[name]), name)
            setattr(self, name, value)
            return value

    def __setattr__(self, name: str, value: Any) -> None:
        # importing fedkeel.runs.start would bind that module to the name
        if name not in HOME or not isinstance(value, ModuleType):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *HOME})


sys.modules[__name__].__class__ = Package

"""fedkeel: federated learning under client drift.

import fedkeel as fk
run = fk.run(fk.Experiment(dataset="digits", method="fedfft-d"))
"""

from __future__ import annotations

from fedkeel.data import DATASETS
from fedkeel.data.partitions import PARTITIONS, Dirichlet, Iid, LongTail, Natural, Pathological, QuantitySkew
from fedkeel.errors import (
    DataError,
    ExperimentError,
    FedkeelError,
    FolderError,
    MethodError,
    ModelError,
    RequestError,
    RunError,
)
from fedkeel.experiment import Experiment
from fedkeel.layout import Layout
from fedkeel.method import Method, Phase, method
from fedkeel.methods import METHODS
from fedkeel.models import MODELS
from fedkeel.problem import Problem
from fedkeel.rule import Local, Rule, State, Weighting
from fedkeel.rules import (
    RULES,
    BySize,
    ClientMomentum,
    ClipNorm,
    ControlVariates,
    DynamicDual,
    HighPass,
    Proximal,
    Sam,
    ServerMomentum,
    Uniform,
    WeightDecay,
)
from fedkeel.run import run
from fedkeel.runs import Run, load_run
from fedkeel.trees import Tree

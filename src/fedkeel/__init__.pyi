"""The public names. `__init__.py` reads this list and imports a name when it is first used."""

from fedkeel import optim as optim
from fedkeel.core.layout import Layout as Layout
from fedkeel.core.method import Method as Method
from fedkeel.core.method import Phase as Phase
from fedkeel.core.method import method as method
from fedkeel.core.objectives import Calibrated as Calibrated
from fedkeel.core.objectives import Decorrelated as Decorrelated
from fedkeel.core.objectives import Distilled as Distilled
from fedkeel.core.objectives import Given as Given
from fedkeel.core.objectives import Guided as Guided
from fedkeel.core.objectives import Loss as Loss
from fedkeel.core.objectives import Objective as Objective
from fedkeel.core.objectives import Value as Value
from fedkeel.core.rule import Local as Local
from fedkeel.core.rule import Rule as Rule
from fedkeel.core.rule import State as State
from fedkeel.core.rule import Weighting as Weighting
from fedkeel.core.schedules import ConstantRate as ConstantRate
from fedkeel.core.schedules import CosineRate as CosineRate
from fedkeel.core.schedules import CyclicRate as CyclicRate
from fedkeel.core.schedules import ExponentialRate as ExponentialRate
from fedkeel.core.schedules import LinearRate as LinearRate
from fedkeel.core.schedules import Schedule as Schedule
from fedkeel.core.schedules import StepRate as StepRate
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
from fedkeel.rules import *
from fedkeel.rules import RULES as RULES
from fedkeel.runs.experiment import Experiment as Experiment
from fedkeel.runs.finished_run import Run as Run
from fedkeel.runs.finished_run import load_run as load_run
from fedkeel.runs.start import run as run
from fedkeel.runs.together import run_together as run_together

__version__: str

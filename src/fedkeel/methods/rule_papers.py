"""The papers of rules and objectives, as their docstrings name them, by the keys of `papers.bib`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from fedkeel.core.method import Method
from fedkeel.core.objective import Objective
from fedkeel.core.objectives import OBJECTIVES
from fedkeel.core.rule import Rule
from fedkeel.rules import RULES, HighPass, On

KINDS: dict[str, type] = {**RULES, **{kind.__name__: kind for kind in OBJECTIVES.values()}}
PAPERS = {
    "adagrad": "Adagrad",
    "adamw": "AdamW",
    "asam": "AdaptiveSam",
    "ditto": "OwnModel",
    "ema": "ModelEma",
    "fedadam": "ServerAdam",
    "fedadamw": "AlignedAdamW AddMomentum",
    "fedala": "LearnMerge Merge",
    "fedasam": "AdaptiveSam",
    "fedavg": "BySize",
    "fedavgm": "ServerMomentum",
    "fedawa": "ByAttraction ByPlaces",
    "fedcm": "ClientMomentum",
    "fedcr": "CommonPrior NotePrecision CodeBottleneck Precision",
    "feddc": "DriftCorrection",
    "feddecorr": "Decorrelated",
    "feddisco": "ByDiscrepancy",
    "feddyn": "DynamicDual",
    "fedexp": "Extrapolate LastTwo",
    "fedfft": "ClipMedian",
    "fedfsa": "LayerRadius CriticalLayers ByChange ByNorm ByRange ByTaylor ByRemoval ByChance",
    "fedgloss": "GlobalSharpness WarmUp",
    "fedgmt": "Trajectory Guided",
    "fedlaw": "OnProxy LearnMixture",
    "fedlc": "Calibrated",
    "fedlesam": "GlobalDirection LastServerStep",
    "fedlw": "ByLoss",
    "fedlws": "Shrink",
    "fedmuonlmo": "Orthogonal VariateMomentum AmongAll",
    "fednolowe": "ByOthersLoss",
    "fednova": "ByEffort",
    "fednsam": "AlongMomentum StartAhead",
    "fedper": "PrivateLayers",
    "fedprox": "Proximal",
    "fedscam": "AdaptiveRadius PilotRadius MeasureNorm MeasureAlignment ByAgreement",
    "fedsmoo": "AdmmPerturbation",
    "fedsol": "DistilAscent",
    "fedspeed": "Ascent ActiveDual MixGradients",
    "fedswa": "RateWithin MomentumVariates",
    "fedwmsam": "PersonalMomentum PredictedPosition",
    "ghbm": "HeavyBall OwnHeavyBall",
    "lion": "Lion",
    "muon": "Muon",
    "plgu": "SharedLayers",
    "qfedavg": "Fair FairShares",
    "sam": "Sam",
    "scaffold": "ControlVariates",
    "smoothed": "Smoothed",
    "specgradfilter": "HighPass2d PoolDetrend GaussianDetrend Rescale",
    "swa": "ModelSwa",
}
"""Who has which paper, also for subclasses of them; HighPass has one by what it filters."""
FILTERED = {"perturb": "fedfft", "gradient": "specgradfilter"}
PAPERS_OF_KINDS = {
    kind: [paper for paper, names in PAPERS.items() if name in names.split()] for name, kind in KINDS.items()
}


def papers_of_part(part: Rule | Objective, place: str = "") -> Iterator[str]:
    """The papers of a rule that stands in a chain, or of an objective; none where they are not known."""
    if isinstance(part, On):
        yield from papers_of_part(part.inner, place)
    if isinstance(part, HighPass) and place in FILTERED:
        yield FILTERED[place]
    yield from chain.from_iterable(PAPERS_OF_KINDS.get(kind, ()) for kind in type(part).__mro__)


def papers_of_parts(method: Method) -> Iterator[str]:
    """The papers of all rules and objectives of a method."""
    for phase in method.all_phases:
        for place, rules in phase.chains:
            yield from chain.from_iterable(papers_of_part(rule, place) for rule in rules)
        yield from papers_of_part(phase.objective)
    yield from chain.from_iterable(map(papers_of_part, (*method.personal, *method.server, method.weights)))

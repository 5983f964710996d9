"""The ideas. Each is a frozen dataclass whose fields are the paper's hyper-parameters."""

from __future__ import annotations

from fedkeel.rule import Rule
from fedkeel.rules.agreement import ByAgreement
from fedkeel.rules.corrections import (
    ActiveDual,
    ClientMomentum,
    ClipHere,
    ClipNorm,
    ControlVariates,
    DecayHere,
    DynamicDual,
    Proximal,
    WeightDecay,
)
from fedkeel.rules.critical import (
    ByChance,
    ByChange,
    ByRange,
    ByRemoval,
    ByTaylor,
    CriticalLayers,
    LayerRadius,
    NoteRemoval,
)
from fedkeel.rules.detrending import ClipMedian, GaussianDetrend, PoolDetrend
from fedkeel.rules.filters import HighPass, HighPass2d, LowPass, RandomBand, Rescale
from fedkeel.rules.layers import On, OnlyLayers
from fedkeel.rules.learned import AtMixture, ByAttraction, LearnMixture, OnProxy
from fedkeel.rules.momentum import MixGradients, PersonalMomentum, PredictedPosition
from fedkeel.rules.personal import BeginMerged, KeepModel, LearnMerge, Merge, OwnModel, PrivateLayers
from fedkeel.rules.perturbations import (
    AdaptiveSam,
    AdmmPerturbation,
    Ascent,
    DistilAscent,
    GlobalDirection,
    LastServerStep,
    Sam,
    SharedLayers,
)
from fedkeel.rules.probes import AdaptiveRadius, MeasureAlignment, MeasureLoss, MeasureNorm, PilotRadius
from fedkeel.rules.server_rules import GlobalSharpness, ServerAdam, ServerMomentum, Shrink
from fedkeel.rules.weights import ByDiscrepancy, ByLoss, ByOthersLoss, BySize, Fair, FairShares, Uniform

RULES: dict[str, type[Rule]] = {
    "ActiveDual": ActiveDual,
    "AdaptiveRadius": AdaptiveRadius,
    "AdaptiveSam": AdaptiveSam,
    "AdmmPerturbation": AdmmPerturbation,
    "Ascent": Ascent,
    "AtMixture": AtMixture,
    "BeginMerged": BeginMerged,
    "ByAgreement": ByAgreement,
    "ByAttraction": ByAttraction,
    "ByChance": ByChance,
    "ByChange": ByChange,
    "ByDiscrepancy": ByDiscrepancy,
    "ByLoss": ByLoss,
    "ByOthersLoss": ByOthersLoss,
    "ByRange": ByRange,
    "ByRemoval": ByRemoval,
    "BySize": BySize,
    "ByTaylor": ByTaylor,
    "ClientMomentum": ClientMomentum,
    "ClipHere": ClipHere,
    "ClipMedian": ClipMedian,
    "ClipNorm": ClipNorm,
    "ControlVariates": ControlVariates,
    "CriticalLayers": CriticalLayers,
    "DecayHere": DecayHere,
    "DistilAscent": DistilAscent,
    "DynamicDual": DynamicDual,
    "Fair": Fair,
    "FairShares": FairShares,
    "GaussianDetrend": GaussianDetrend,
    "GlobalDirection": GlobalDirection,
    "GlobalSharpness": GlobalSharpness,
    "HighPass": HighPass,
    "HighPass2d": HighPass2d,
    "KeepModel": KeepModel,
    "LastServerStep": LastServerStep,
    "LayerRadius": LayerRadius,
    "LearnMerge": LearnMerge,
    "LearnMixture": LearnMixture,
    "LowPass": LowPass,
    "MeasureAlignment": MeasureAlignment,
    "MeasureLoss": MeasureLoss,
    "MeasureNorm": MeasureNorm,
    "Merge": Merge,
    "MixGradients": MixGradients,
    "NoteRemoval": NoteRemoval,
    "On": On,
    "OnProxy": OnProxy,
    "OnlyLayers": OnlyLayers,
    "OwnModel": OwnModel,
    "PersonalMomentum": PersonalMomentum,
    "PilotRadius": PilotRadius,
    "PoolDetrend": PoolDetrend,
    "PredictedPosition": PredictedPosition,
    "PrivateLayers": PrivateLayers,
    "Proximal": Proximal,
    "RandomBand": RandomBand,
    "Rescale": Rescale,
    "Sam": Sam,
    "ServerAdam": ServerAdam,
    "ServerMomentum": ServerMomentum,
    "SharedLayers": SharedLayers,
    "Shrink": Shrink,
    "Uniform": Uniform,
    "WeightDecay": WeightDecay,
}
"""Every rule that a file or the command line may name."""

"""The ideas. Each is a frozen dataclass whose fields are the paper's hyper-parameters."""

from __future__ import annotations

from fedkeel.rule import Rule
from fedkeel.rules.corrections import (
    ClientMomentum,
    ClipNorm,
    ControlVariates,
    DynamicDual,
    Proximal,
    WeightDecay,
)
from fedkeel.rules.filters import HighPass
from fedkeel.rules.perturbations import Sam
from fedkeel.rules.server_rules import ServerMomentum
from fedkeel.rules.weights import BySize, Uniform

RULES: dict[str, type[Rule]] = {
    "BySize": BySize,
    "ClientMomentum": ClientMomentum,
    "ClipNorm": ClipNorm,
    "ControlVariates": ControlVariates,
    "DynamicDual": DynamicDual,
    "HighPass": HighPass,
    "Proximal": Proximal,
    "Sam": Sam,
    "ServerMomentum": ServerMomentum,
    "Uniform": Uniform,
    "WeightDecay": WeightDecay,
}
"""Every rule that a file or the command line may name."""

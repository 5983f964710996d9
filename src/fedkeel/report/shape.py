"""What a report needs of an experiment's file: it is shown as it is, so only its shape is checked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedkeel.errors import FolderError
from fedkeel.ranges import Count
from fedkeel.runs.experiment import Seed
from fedkeel.typed_values import typed

Tables = list[Mapping[str, Any]]
EXPERIMENT = {
    "seed": Seed, "partition_seed": Seed, "rounds": Count, "dataset": str, "problem": str, "model": str, "augment": str,
    "method": Mapping, "partition": Mapping, "evaluation": Mapping,
}  # fmt: skip
METHOD = {"name": str, "phases": Tables, "personal": Tables, "server": Tables, "weights": Mapping, "papers": list[str]}
PHASE = {"perturb": Tables, "gradient": Tables}


def check_shape(experiment: Mapping[str, Any], file: Path) -> None:
    """Refuse a file that no run has written."""

    name = str(file).replace("{", "{{").replace("}", "}}")

    def hold(table: Mapping[str, Any], types: Mapping[str, Any], where: str) -> None:
        known = {word: value for word, value in table.items() if word in types}
        typed(known, types, FolderError, f"{name}: {where}{{}}")

    hold(experiment, EXPERIMENT, "")
    method = experiment.get("method", {})
    hold(method, METHOD, "method.")
    for phase in method.get("phases", ()):
        hold(phase, PHASE, "method.phases.")

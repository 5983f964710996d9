"""Cells made tiny: the way to a table or a figure, in seconds instead of days, with numbers that mean nothing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from fedkeel.papers.cells import Cell, merged
from fedkeel.papers.figures import Figure

ROUNDS = 2
CHANGES = {
    "dataset": "digits",
    "model": "mlp",
    "epochs": 1,
    "batch_size": 50,
    "augment": "none",
    "participation": 0.3,
    "partition": {"clients": 10},
}
WORDS = "the 8×8 digits, a small network, 10 clients, one local epoch"


def shrink(cells: Sequence[Cell], kept: Collection[str] = ()) -> list[Cell]:
    """Change cells to the handwritten digits and a small network; settings that are `kept` stay as they are."""
    return [
        replace(cell, experiment=_shrunk(cell, kept), reported=None, spread=None, unmeasured="", lr_matches="")
        for cell in cells
    ]


def settings_shown(figure: Figure | None) -> set[str]:
    """Name what a figure has on its x axes, which must differ in it however small it is."""
    return {panel.x for panel in figure.panels if panel.x} if figure else set()


def _shrunk(cell: Cell, kept: Collection[str]) -> dict[str, object]:
    own = {name: value for name, value in cell.experiment.items() if name != "buffers"}
    changes = {name: value for name, value in CHANGES.items() if name not in kept}
    if "partition.clients" in kept:  # many clients: a few of them a round
        changes |= {"partition": {}} | ({} if "participation" in kept else {"participation": 0.05})
    made = merged(own, changes)
    partition = dict(made["partition"])
    if partition["kind"] not in ("dirichlet", "iid", "pathological"):
        partition = {"kind": "iid", "clients": 10}
    if isinstance(partition.get("classes"), int):
        partition["classes"] = min(5, partition["classes"])
    if "min_size" in partition:
        partition["min_size"] = 1
    made["partition"] = partition
    made["method"] = _for_any_network(made["method"])
    return made


def _for_any_network(given: Any) -> Any:
    """A method as plain data that names no layers of the network it was written for."""
    if isinstance(given, list):
        return [_for_any_network(one) for one in given]
    if not isinstance(given, dict):
        return given
    if given.get("rule") == "On":
        return _for_any_network(given["inner"])
    return {name: _for_any_network(value) for name, value in given.items() if name != "layers"}

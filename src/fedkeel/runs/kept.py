"""Models that callbacks keep beside the last one: each a file that is written once, and named by checkpoints.

checkpoint/best-00000038.safetensors    the deployed model after round 38, with its score
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from fedkeel.core.layout import Layout
from fedkeel.core.rule import State
from fedkeel.core.states import Damaged, read, write
from fedkeel.core.trees import Tree
from fedkeel.ranges import Count
from fedkeel.text import in_one_line
from fedkeel.typed_values import read_line

NAME = re.compile(r"(?!(?:clients|damaged|last)\b)[a-z][a-z0-9_]{0,30}")
"""Not what other files of checkpoints begin with, nor the model that needs no keeping."""
FILE = re.compile(rf"{NAME.pattern}-[0-9]{{8,18}}\.safetensors")


@dataclass(frozen=True)
class KeptModel:
    """Which model is kept under a name: that of a round, for its score in a measure."""

    name: str
    round: Count
    measure: str
    score: float

    @property
    def file(self) -> str:
        return f"{self.name}-{self.round:08d}.safetensors"

    def save(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def load(data: Any) -> KeptModel:
        """Read what `save` wrote; a ValueError says what cannot be of a kept model."""
        found = KeptModel(**read_line(KeptModel, data))
        if FILE.fullmatch(found.file) is None:
            raise ValueError(f"it names a file that is not of a kept model: {found.file!r}")
        return found


@dataclass(frozen=True)
class Followed:
    """What callbacks have come to: what each remembers, which models are kept, and why the run was stopped.

    `seen` counts the rounds that they were told of: a run may be killed between a round and its callbacks.
    """

    seen: int = 0
    memory: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    kept: Mapping[str, KeptModel] = field(default_factory=dict)
    stopped: Mapping[str, Any] | None = None

    @property
    def files(self) -> set[str]:
        return {one.file for one in self.kept.values()}

    def save(self) -> dict[str, Any]:
        kept = [self.kept[name].save() for name in sorted(self.kept)]
        return {"seen": self.seen, "memory": dict(self.memory), "kept": kept, "stopped": self.stopped}

    def result(self) -> dict[str, Any]:
        """What a run's result says of it."""
        kept = {name: {"round": of.round, of.measure: of.score} for name, of in sorted(self.kept.items())}
        return ({"kept": kept} if kept else {}) | ({"stopped": dict(self.stopped)} if self.stopped else {})

    @staticmethod
    def load(data: Mapping[str, Any]) -> Followed:
        kept = [KeptModel.load(one) for one in data["kept"]]
        memory = {str(name): dict(values) for name, values in data["memory"].items()}
        stopped = None if data["stopped"] is None else dict(data["stopped"])
        return Followed(int(data["seen"]), memory, {one.name: one for one in kept}, stopped)


def write_kept(folder: Path, kept: KeptModel, model: State, fingerprint: str) -> None:
    """Write a deployed model by name, so that others can read it."""
    arrays = {
        f"{part}/{name}": leaf.detach().cpu().contiguous().numpy()
        for part, tree in model.items()
        for name, leaf in tree.items()
    }
    layouts = {part: tree.layout.dumps() for part, tree in model.items()}
    write(folder / kept.file, arrays, kept.save() | {"layouts": layouts, "fingerprint": fingerprint})


def read_kept(folder: Path, kept: KeptModel) -> State:
    """Read a kept model, as "params" and "buffers"; raise Damaged where the file does not hold together."""
    arrays, facts = read(folder / kept.file)
    try:
        layouts: Mapping[str, str] = dict(facts["layouts"])
        leaves: dict[str, dict[str, torch.Tensor]] = {part: {} for part in layouts}
        for place, array in arrays.items():
            part, _, name = place.partition("/")
            leaves[part][name] = torch.from_numpy(array)
        return {part: Tree.of(leaves[part], Layout.loads(text)) for part, text in layouts.items()}
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(f"{kept.file}: {in_one_line(error)}") from error

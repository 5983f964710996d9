"""Checkpoints: the server's state in one file, clients' states in files beside it, each written once.

checkpoint/00000040.safetensors                 the server after 40 rounds, and where each client's state stands
checkpoint/clients-000012-00000038.safetensors  states of neighbouring clients, last changed in round 38
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from fedkeel.errors import FolderError
from fedkeel.layout import Layout
from fedkeel.rule import State
from fedkeel.states import Damaged, join, read, split, write
from fedkeel.task import Scores
from fedkeel.trees import Tree

KEPT = 2  # the last two: one may be damaged
Places = dict[int, str]
"""In which file each client's state stands."""


@dataclass(frozen=True)
class Checkpoint:
    """The server's state after `round` rounds, and where the states of the clients that took part stand.

    Scores of clients' own models are kept: made again beside others, their last digits might be other ones.
    """

    round: int
    server: State
    places: Places
    scores: Mapping[int, list[Scores]] = field(default_factory=dict)

    def save(self, folder: Path, fingerprint: str) -> None:
        # the model by name, so that others can read it; other slots as flat buffers
        params: Tree = self.server["params"]
        arrays = {f"model/{name}": leaf.detach().cpu().contiguous().numpy() for name, leaf in params.items()}
        rest, layouts = split({name: slot for name, slot in self.server.items() if name != "params"}, "server/")
        facts = {
            "round": self.round,
            "fingerprint": fingerprint,
            "places": {str(client): name for client, name in sorted(self.places.items())},
            "model_layout": params.layout.dumps(),
            "layouts": layouts,
            "scores": {str(client): scores for client, scores in sorted(self.scores.items())},
        }
        write(folder / f"{self.round:08d}.safetensors", arrays | rest, facts)

    @staticmethod
    def load(path: Path, device: torch.device | str = "cpu") -> Checkpoint:
        """Raises Damaged when it, or a file it names, does not hold together."""
        arrays, facts = read(path)
        try:
            model = {n.removeprefix("model/"): torch.from_numpy(a) for n, a in arrays.items() if n.startswith("model/")}
            params = Tree.of(model, Layout.loads(facts["model_layout"])).to(device)
            server = {"params": params} | join(arrays, facts["layouts"], "server/", device)
            places = {int(client): named(str(name)) for client, name in facts["places"].items()}
            scores = {int(client): [*map(scores_of, told)] for client, told in facts.get("scores", {}).items()}
            found = Checkpoint(int(facts["round"]), server, places, scores)
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise Damaged(f"{path.name}: {error}") from error
        for name in sorted(set(places.values())):
            read(path.parent / name)
        return found


def named(name: str) -> str:
    """The name of a file with clients' states: in the checkpoint's own folder, where files are also removed."""
    if not re.fullmatch(r"clients-\d+-\d+\.safetensors", name):
        raise ValueError(f"it names a file elsewhere: {name[:80]!r}")
    return name


def scores_of(told: Mapping[str, Sequence[float]]) -> Scores:
    """Sums and counts, as they were before they were written."""
    return {name: (float(total), int(count)) for name, (total, count) in told.items()}


def names(folder: Path) -> list[Path]:
    """The checkpoints of a folder, newest first."""
    return sorted(folder.glob("[0-9]*.safetensors"), reverse=True)


def prune(folder: Path) -> None:
    """Keep the last checkpoints and the files they name."""
    kept = names(folder)[:KEPT]
    for old in names(folder)[KEPT:]:
        old.unlink(missing_ok=True)
    used: set[str] = set()
    for path in kept:
        try:
            used.update(read(path, arrays=False)[1]["places"].values())
        except (Damaged, KeyError):
            return  # not known what it needs: nothing more is removed
    for path in folder.glob("clients-*.safetensors"):
        if path.name not in used:
            path.unlink(missing_ok=True)
    for half in folder.glob(".*.partial"):
        half.unlink(missing_ok=True)


def put_aside(folder: Path, round: int) -> None:
    """Checkpoints later than a round are no longer those of the run: kept under another name."""
    for path in names(folder):
        if int(path.stem) > round:
            path.replace(path.with_name(f"damaged-{path.name}"))


def newest(folder: Path, device: torch.device | str = "cpu") -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that is whole, and what is wrong with newer ones. None when there has never been one."""
    wrong: list[str] = []
    for path in names(folder):
        try:
            return Checkpoint.load(path, device), wrong
        except Damaged as error:
            wrong.append(str(error))
    if wrong:
        raise FolderError(
            f"no checkpoint in {folder} can be read: {'; '.join(wrong)}",
            "restore one from a copy, or start again in another folder; nothing was changed here",
        )
    return None, wrong

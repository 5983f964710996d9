"""Checkpoints: the server's state in one file, clients' states in files beside it, each written once.

checkpoint/00000040.safetensors                 the server after 40 rounds, and where each client's state is
checkpoint/clients-000012-00000038.safetensors  states of neighbouring clients, last changed in round 38
checkpoint/best-00000038.safetensors            a model that a callback keeps
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from fedkeel.core.layout import Layout
from fedkeel.core.method import Method
from fedkeel.core.round import admit_clients, init_server
from fedkeel.core.rule import State
from fedkeel.core.states import Damaged, from_arrays, read, read_header, stored_check, to_arrays, write
from fedkeel.core.trees import Tree
from fedkeel.errors import FolderError, RunError, explain_os_errors
from fedkeel.problems.predictions import Scores
from fedkeel.runs.kept import FILE, Followed
from fedkeel.text import in_one_line

log = logging.getLogger("fedkeel")

KEPT = 2  # the last two: one may be damaged
SERVER = re.compile(r"[0-9]{8,18}\.safetensors")
CLIENTS = re.compile(r"clients-[0-9]+-[0-9]+\.safetensors")
Places = dict[int, str]
"""The file that holds each client's state."""


@dataclass(frozen=True)
class Checkpoint:
    """The server's state after `round` rounds, and where the states of the clients that took part are.

    Scores of clients' own models are kept: made again beside others, their last digits might be other ones.
    """

    round: int
    server: State
    places: Places
    scores: Mapping[int, list[Scores]] = field(default_factory=dict)
    base: str | None = None
    """Identity of the frozen part of the network, which is in no checkpoint; None where all of it trains."""
    whole: bool = True
    """Whether every byte of its file was checked: older versions left out the header."""
    followed: Followed | None = None
    captured: Collection[int] = ()
    """Sizes of stacks that were captured: later stacks are filled up to them, which moves last digits."""

    population: int | None = None
    """How many clients there were in all; older versions did not say."""

    @property
    def files(self) -> set[str]:
        """The files that belong to it."""
        return {*self.places.values(), *(() if self.followed is None else self.followed.files)}

    def save(self, folder: Path, fingerprint: str) -> None:
        # the model by name, so that others can read it; other slots as flat buffers
        params: Tree = self.server["params"]
        arrays = {f"model/{name}": leaf.detach().cpu().contiguous().numpy() for name, leaf in params.items()}
        rest, layouts = to_arrays({name: slot for name, slot in self.server.items() if name != "params"}, "server/")
        facts = {
            "round": self.round,
            "fingerprint": fingerprint,
            "places": {str(client): name for client, name in sorted(self.places.items())},
            "model_layout": params.layout.dumps(),
            "layouts": layouts,
            "scores": {str(client): scores for client, scores in sorted(self.scores.items())},
            "checks": checks_of(folder, self.files),
        }
        facts |= {} if self.base is None else {"base": self.base}
        facts |= {} if self.followed is None else {"followed": self.followed.save()}
        facts |= {"captured": sorted(self.captured)} if self.captured else {}
        facts |= {} if self.population is None else {"population": self.population}
        write(folder / f"{self.round:08d}.safetensors", arrays | rest, facts)

    @staticmethod
    def load(path: Path, device: torch.device | str = "cpu", fingerprint: str | None = None) -> Checkpoint:
        """Raises Damaged when it, or a file it names, does not hold together; a FolderError when it is another
        experiment's than that of the fingerprint."""
        arrays, facts = read(path)
        try:
            model = {n.removeprefix("model/"): torch.from_numpy(a) for n, a in arrays.items() if n.startswith("model/")}
            params = Tree.of(model, Layout.loads(facts["model_layout"])).to(device)
            server = {"params": params} | from_arrays(arrays, facts["layouts"], "server/", device)
            places = {int(client): str(name) for client, name in facts["places"].items()}
            scores = {int(client): [*map(read_scores, kept)] for client, kept in facts.get("scores", {}).items()}
            whole, checks = "check" in facts, dict(facts.get("checks", {}))
            base = None if facts.get("base") is None else str(facts["base"])
            followed = Followed.load(facts["followed"]) if "followed" in facts else None
            captured = [int(size) for size in facts.get("captured", ())]
            population = None if facts.get("population") is None else int(facts["population"])
            rest = (base, whole, followed, captured, population)
            found = Checkpoint(int(facts["round"]), server, places, scores, *rest)
        except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise Damaged(f"{path.name}: {in_one_line(error)}") from error
        if fingerprint not in (None, facts.get("fingerprint", fingerprint)):
            raise FolderError(
                f"{path} is of another experiment: {facts['fingerprint']}, not {fingerprint}.",
                "put back the run's own checkpoint or experiment.toml; nothing was changed here",
            )
        if found.round != round_of(path):
            raise Damaged(f"{path.name} is of round {found.round}")
        for name in sorted(found.files):
            if CLIENTS.fullmatch(name) is None and name in places.values():
                raise Damaged(f"{path.name} names a file that is not of clients: {name!r}")
            check = read(path.parent / name)[1].get("check")
            if checks.get(name) not in (None, check):
                raise Damaged(f"{name} is not the file that {path.name} names")
        return found


def take_up(found: Checkpoint, method: Method, population: int) -> State:
    """Return the server's state of a checkpoint, its slots in the order of a new run's, for the clients there are.

    A slot that an older version did not keep begins as in a new run.
    """
    fresh = init_server(method, found.server["params"], found.server.get("buffers"))
    for slot in fresh.keys() - found.server.keys():
        log.warning("the checkpoint of round %d is older, and lacks %s: it begins as in a new run", found.round, slot)
    server = {slot: found.server.get(slot, new) for slot, new in fresh.items()} | found.server
    return admit_clients(method, server, found.population or population, population)


def check_base(folder: Path, trained_on: str | None, given: str | None) -> None:
    """Refuse a network whose frozen part is not the one that a run was trained on."""
    if trained_on is not None and trained_on != given:
        raise FolderError(
            f"{folder} was trained on another frozen base: {trained_on}, not {given or 'none'}.",
            "give the network the frozen weights that the run began with, or choose another folder with --out",
        )


def checks_of(folder: Path, files: Collection[str]) -> dict[str, str | None]:
    """Read the checksums of the files beside a checkpoint, by which it knows them."""
    try:
        return {name: stored_check(read_header(folder / name)) for name in sorted(files)}
    except OSError as error:
        raise RunError(
            f"a file beside the checkpoint cannot be read back: {error.filename}: {error.strerror}",
            "`fedkeel resume`, for a federation `flwr run`, goes on from the last checkpoint that is whole",
        ) from error


def read_scores(kept: Mapping[str, Sequence[float]]) -> Scores:
    """Return sums and counts as they were before they were written; a count is a fraction where targets are ignored."""
    return {
        name: (float(total), count if isinstance(count, int) else float(count)) for name, (total, count) in kept.items()
    }


def list_checkpoints(folder: Path) -> list[Path]:
    """List the checkpoints of a folder, newest first; none where there is no folder."""
    hint = "put back the folder of checkpoints; nothing was changed here"
    with explain_os_errors(f"cannot read {folder}", hint), contextlib.suppress(FileNotFoundError):
        found = [path for path in folder.iterdir() if SERVER.fullmatch(path.name)]
        return sorted(found, key=round_of, reverse=True)
    return []


def round_of(path: Path) -> int:
    return int(path.stem)


def prune(folder: Path, count: int = KEPT) -> None:
    """Keep the last `count` checkpoints and the files they name."""
    kept = list_checkpoints(folder)[:count]
    for old in list_checkpoints(folder)[count:]:
        remove(old)
    used: set[str] = set()
    for path in kept:
        try:
            facts = read(path, arrays=False)[1]
            used.update(facts["places"].values())
            if "followed" in facts:
                used.update(Followed.load(facts["followed"]).files)
        except (Damaged, KeyError, ValueError, TypeError, AttributeError):
            return  # not known what it needs: nothing more is removed
    for path in folder.glob("*-*.safetensors"):
        if path.name not in used and (CLIENTS.fullmatch(path.name) or FILE.fullmatch(path.name)):
            remove(path)
    for half in list_halves(folder):
        remove(half)


def list_halves(folder: Path) -> list[Path]:
    """List what a kill left of files that were being written: ours, and those of safetensors."""
    return [*folder.glob(".*.partial"), *folder.glob(".tmp*")]


def remove(path: Path) -> None:
    """Remove a file that is not needed; one that cannot be removed does no harm."""
    with contextlib.suppress(OSError):
        path.unlink()


def drop_later(folder: Path, round: int) -> None:
    """Remove the checkpoints later than a round: the run goes on from it."""
    for path in list_checkpoints(folder):
        if round_of(path) > round:
            remove(path)


def put_aside(folder: Path, round: int) -> None:
    """Rename the checkpoints later than a round: they are no longer those of the run."""
    for path in list_checkpoints(folder):
        if round_of(path) > round:
            path.replace(path.with_name(f"damaged-{path.name}"))


def find_newest(
    folder: Path, device: torch.device | str = "cpu", fingerprint: str | None = None, latest: int | None = None
) -> tuple[Checkpoint | None, list[str]]:
    """Find the newest checkpoint that is whole, up to the round `latest` where that is given, and lines to warn with.
    None when there is no checkpoint at all.

    Nothing that was read is changed: what is damaged stays where it is.
    """
    wrong: list[str] = []
    for path in list_checkpoints(folder):
        if latest is not None and round_of(path) > latest:
            continue
        try:
            found = Checkpoint.load(path, device, fingerprint)
        except Damaged as error:
            wrong.append(str(error))
            continue
        warnings = [f"skipping a damaged checkpoint of {folder.parent}: {problem}" for problem in wrong]
        if not found.whole:
            warnings.append(f"{path} was written by an older version: its header has no checksum")
        return found, warnings
    if wrong and latest is not None:
        return find_newest(folder, device, fingerprint)
    if wrong:
        raise FolderError(
            f"no checkpoint in {folder} can be read: {'; '.join(wrong)}",
            "restore one from a copy, or start again in another folder; nothing was changed here",
        )
    return None, []

"""What clients remember between rounds: in memory while it fits a budget, in files beyond it.

    clients-000012-00000040.safetensors    the states of group 12 of the clients, as round 40 left them

A large state has a file of its own; small ones share one with those of neighbouring clients. Name and bytes of a file
follow from the states in it, not from when or how often states were written: each is written once, and the last
checkpoint of a run is the same however often the run was interrupted.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from fedkeel.core.rule import State
from fedkeel.core.states import Arrays, Damaged, from_arrays, read, sync, to_arrays, write
from fedkeel.core.trees import state_bytes
from fedkeel.engines.engine import KeptState
from fedkeel.errors import RunError
from fedkeel.runs.checkpoint import Places

SHARED = 4 << 20  # bytes: smaller states share a file up to this size
WRITERS = 4  # files written at a time: copying, checksums and the disk overlap


def count_together(size: int) -> int:
    """How many states of so many bytes share a file."""
    return max(1, SHARED // max(1, size))


class ClientStore:
    """States of the clients that have taken part; the others' are implied.

    `budget` bytes of states stay in memory. Those used longest ago are written to files and read back when their
    client takes part again.
    """

    def __init__(self, folder: Path | None, device: torch.device | str = "cpu", budget: int | None = None):
        self.temporary = None if folder is not None else tempfile.mkdtemp(prefix="fedkeel-")
        self.folder = folder if folder is not None else Path(str(self.temporary))
        self.device, self.budget = device, budget
        self.memory: dict[int, State] = {}  # in the order of use
        self.changed: dict[int, int] = {}  # clients whose state is newer than its file: the round that left it so
        self.places: Places = {}
        self.saved: frozenset[str] = frozenset()  # files that the last checkpoint names
        self.unsynced: set[str] = set()
        self.held, self.together = 0, 0

    def restore(self, places: Places) -> None:
        """Go on with the states of an earlier session."""
        self.places = dict(places)
        self.saved = frozenset(places.values())

    def get(self, client: int) -> State | None:
        state = self.memory.pop(client, None)
        if state is None:
            if client not in self.places:
                return None
            state = self._read(client)
            self.held += state_bytes(state)
            self._forget(client for client in list(self.memory) if client not in self.changed)
        self.memory[client] = state  # last used comes last
        return state

    def put(self, client: int, state: State, round: int) -> None:
        """Keep the state in which `round` left a client."""
        old = self.memory.pop(client, None)
        self.held += state_bytes(state) - (state_bytes(old) if old is not None else 0)
        self.memory[client] = state
        self.changed[client] = round
        self.together = self.together or count_together(state_bytes(state))

    def trim(self) -> None:
        """Between rounds: keep to the budget."""
        if self.budget is None:
            return
        leaving, excess = [], self.held - self.budget
        for client, state in self.memory.items():
            if excess <= 0:
                break
            leaving.append(client)
            excess -= state_bytes(state)
        self._write((client for client in leaving if client in self.changed), synced=False)
        self._forget(leaving)

    def save(self) -> Places:
        """Have every state reach the disk, those written before as they are; return the file of each."""
        new = bool(self.changed or self.unsynced)
        self._write(self.changed, synced=True)
        _each(sync, [self.folder / name for name in self.unsynced])
        self.unsynced.clear()
        if new:
            sync(self.folder)
        self.saved = frozenset(self.places.values())
        return dict(self.places)

    # ---- files ---------------------------------------------------------------------------------------------------
    def _write(self, clients: Iterable[int], *, synced: bool) -> None:
        """Write the groups in which these clients are, then remove the files that nothing names any more."""
        groups = sorted({client // self.together for client in clients})
        found = _each(lambda group: self._write_group(group, synced), groups)
        replaced: set[str] = set()
        for name, members in found:
            replaced.update(self.places[client] for client in members if client in self.places)
            self.places |= dict.fromkeys(members, name)
            for client in members:
                self.changed.pop(client, None)
            if not synced:
                self.unsynced.add(name)
        # what only an older checkpoint names was replaced before the last one
        for name in replaced.difference(self.places.values(), self.saved):
            (self.folder / name).unlink(missing_ok=True)
            self.unsynced.discard(name)

    def _write_group(self, group: int, synced: bool) -> tuple[str, list[int]]:
        wanted = range(group * self.together, (group + 1) * self.together)
        members = [client for client in wanted if client in self.memory or client in self.places]
        last = max(self.changed[client] for client in members if client in self.changed)
        name = f"clients-{group:06d}-{last:08d}.safetensors"
        arrays: Arrays = {}
        layouts: dict[str, str] = {}
        for client in members:
            state = self.memory[client] if client in self.memory else self._read(client)
            more, shapes = to_arrays(state.fetch() if isinstance(state, KeptState) else state, f"{client}/")
            arrays |= more
            layouts |= shapes  # every client of a method has the same slots
        write(self.folder / name, arrays, {"layouts": layouts}, synced=False)
        if synced:
            sync(self.folder / name)  # its name is synced with the others'
        return name, members

    def _read(self, client: int) -> State:
        try:
            arrays, facts = read(self.folder / self.places[client], prefix=f"{client}/")
        except Damaged as error:
            raise RunError(
                f"the state of client {client} cannot be read back: {error}",
                "`fedkeel resume`, for a federation `flwr run`, goes on from the last checkpoint that is whole",
            ) from error
        return from_arrays(arrays, facts["layouts"], f"{client}/", self.device)

    def _forget(self, clients: Iterable[int]) -> None:
        """Drop states that stand in files, in this order, as long as too much is held."""
        for client in clients:
            if self.budget is None or self.held <= self.budget:
                return
            self.held -= state_bytes(self.memory.pop(client))

    def close(self) -> None:
        if self.temporary is not None:
            shutil.rmtree(self.temporary, ignore_errors=True)


def _each(f: Callable[[Any], Any], values: list[Any]) -> list[Any]:
    """f of each value, several at a time."""
    with ThreadPoolExecutor(WRITERS) as pool:
        return list(pool.map(f, values))

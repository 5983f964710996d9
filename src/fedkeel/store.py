"""What clients remember between rounds: in memory while it fits a budget, in files beyond it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from fedkeel.checkpoint import Places
from fedkeel.rule import State
from fedkeel.states import Arrays, bytes_of, join, read, split, write

PART_BYTES = 256 << 20  # a file's worth of states: writing one needs that much memory besides
FILES = 16  # more than this, and the next checkpoint gathers all states anew


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
        self.places: Places = {}
        self.dirty: set[int] = set()
        self.held = 0
        self.written = 0

    def restore(self, places: Places) -> None:
        """Go on with the states of an earlier session, whose files are not written over."""
        self.places = dict(places)
        spilled = [int(path.name.split("-")[2]) for path in self.folder.glob("clients-spilled-*")]
        self.written = max(spilled, default=0)

    def __len__(self) -> int:
        return len({*self.places, *self.memory})

    def get(self, client: int) -> State | None:
        state = self.memory.pop(client, None)
        if state is None:
            if client not in self.places:
                return None
            state = self._read(client)
            self.held += bytes_of(state)
        self.memory[client] = state  # last used comes last
        return state

    def put(self, client: int, state: State) -> None:
        old = self.memory.pop(client, None)
        self.held += bytes_of(state) - (bytes_of(old) if old is not None else 0)
        self.memory[client] = state
        self.dirty.add(client)

    def trim(self) -> None:
        """Between rounds: keep to the budget."""
        if self.budget is None or self.held <= self.budget:
            return
        self.written += 1
        self._write(f"spilled-{self.written:06d}", sorted(self.dirty))
        while self.held > self.budget and self.memory:
            client = next(iter(self.memory))
            self.held -= bytes_of(self.memory.pop(client))

    def save(self, round: int, *, whole: bool) -> Places:
        """Write what changed since the last time, or everything; return where each client's state stands."""
        whole = whole or len(set(self.places.values())) > FILES
        clients: Iterable[int] = {*self.places, *self.memory} if whole else self.dirty
        self._write(f"{round:08d}", sorted(clients))
        return dict(self.places)

    def _write(self, name: str, clients: list[int]) -> None:
        for number, part in enumerate(self._parts(clients)):
            file = f"clients-{name}-{number:03d}.safetensors"
            arrays: Arrays = {}
            layouts: dict[str, str] = {}
            for client, state in part.items():
                more, shapes = split(state, f"{client}/")
                arrays |= more
                layouts |= shapes  # every client of a method has the same slots
            write(self.folder / file, arrays, {"layouts": layouts, "clients": sorted(part)})
            self.places |= dict.fromkeys(part, file)
        self.dirty -= set(clients)

    def _parts(self, clients: list[int]) -> Iterator[dict[int, State]]:
        part: dict[int, State] = {}
        size = 0
        for client in clients:
            state = self.memory[client] if client in self.memory else self._read(client)
            if part and size + bytes_of(state) > PART_BYTES:
                yield part
                part, size = {}, 0
            part[client] = state
            size += bytes_of(state)
        if part:
            yield part

    def _read(self, client: int) -> State:
        arrays, facts = read(self.folder / self.places[client], prefix=f"{client}/")
        return join(arrays, facts["layouts"], f"{client}/", self.device)

    def close(self) -> None:
        if self.temporary is not None:
            shutil.rmtree(self.temporary, ignore_errors=True)

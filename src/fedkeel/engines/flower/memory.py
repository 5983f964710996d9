"""What a node remembers: the state it last started from and the state it reached, each with its digest.

The server names the state it has counted with. A report that was lost, late or refused therefore advances nothing:
the node starts from the older of the two again.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

from flwr.app import Context

from fedkeel.core.rule import State
from fedkeel.core.states import PRIVATE, Arrays, Damaged, from_arrays, read, to_arrays, write
from fedkeel.data.storage.line_file import append_line
from fedkeel.engines.flower.records import Refused, digest, pack, unpack

log = logging.getLogger("fedkeel")

PLACES = ("before", "after")


def state_file(folder: Path, client: int, identity: str) -> Path:
    """Return the file beside a node that holds a client's states in one experiment."""
    return folder / f"client-{client:06d}-{identity}.safetensors"


def witness_file(folder: Path, client: int, identity: str) -> Path:
    """Return the file beside a node that holds what the server's audit log was when the node was asked."""
    return folder / f"client-{client:06d}-{identity}-audit.jsonl"


def keep_witness(file: Path, round: int, head: str) -> None:
    """Keep the hash of the last line of the server's audit log: whoever makes that log anew has another one."""
    file.parent.mkdir(PRIVATE, parents=True, exist_ok=True)
    append_line(file, json.dumps({"round": round + 1, "head": head[:64]}), json.loads)


class NodeMemory:
    """Two states in the node's context and, where there is a folder beside the node, in a file of it.

    Flower keeps a context in memory, and only for one run: the file is what survives a restart of the node or the
    server. It belongs to one experiment, whose `identity` it names: a node may take part in several.
    """

    def __init__(self, context: Context, like: State, client: int, folder: Path | None, identity: str):
        self.context, self.like, self.identity = context, like, identity
        self.file = None if folder is None else state_file(folder, client, identity)

    def recall(self, wanted: int) -> State | None:
        """Return the state with that digest, or None where it is gone."""
        for states in (self._from_context, self._from_file):
            for state in states():
                if digest(state) == wanted:
                    return state
        return None

    def _from_context(self) -> list[State]:
        held = self.context.state.array_records
        places = [place for place in PLACES if any(name.startswith(f"{place}/") for name in held)]
        try:
            return [unpack(held, f"{place}/", self.like) for place in places]
        except Refused:
            return []  # of another experiment in the same run

    def _from_file(self) -> list[State]:
        if self.file is None or not self.file.exists():
            return []
        try:
            arrays, facts = read(self.file)
        except Damaged as error:
            log.warning("the state beside this node cannot be read: %s", error)
            return []
        if facts.get("identity") != self.identity:
            return []
        return [from_arrays(arrays, facts["layouts"], f"{place}/") for place in facts["places"]]

    def keep(self, before: State, after: State) -> None:
        """Remember both; the file is complete before anything is sent."""
        states = dict(zip(PLACES, (before, after), strict=True))
        for place, state in states.items():
            for name, record in pack(state, f"{place}/").items():
                self.context.state[name] = record
        if self.file is not None:
            arrays: Arrays = {}
            layouts: dict[str, str] = {}
            for place, state in states.items():
                more, layouts = to_arrays(state, f"{place}/")
                arrays |= more
            facts = {"identity": self.identity, "layouts": layouts, "places": list(PLACES)}
            write(self.file, arrays, facts, private=True)  # a state may tell of the site's data

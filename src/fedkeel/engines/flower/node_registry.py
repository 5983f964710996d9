"""Which node has which client's data."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedkeel.core.trees import Tree
from fedkeel.engines.flower.checks import compare_sides, read_facts
from fedkeel.engines.flower.records import Refused
from fedkeel.engines.flower.reply_transport import exchange_messages
from fedkeel.errors import RunError
from fedkeel.ranges import MOST

log = logging.getLogger("fedkeel")

PATIENCE = 60.0  # seconds a node may take to say who it is: it reads its data first
LONGEST = 8 * PATIENCE
PAUSE = 1.0
INTRODUCTION = 1 << 20  # bytes


class Watch:
    """Is told of every event of a federation by its word; this default does nothing with it."""

    @property
    def head(self) -> str:
        """Return what nodes are given to witness."""
        return ""

    def note(self, event: str, **facts: Any) -> None:
        """Hear of an event: joined, refused, absent, counted."""

    def begin_round(self, round: int, params: Tree, clients: Sequence[int]) -> None:
        """Hear that a round begins: its number from 1, the model that is sent, who is asked."""


class ClientTaken(Exception):
    """A client that another node already has."""


class NodeRegistry:
    """Nodes by client. A node is asked once who it is; one that claims a client that another, present node has is not
    listened to.

    The link gives each key one node id, so `owners`, nodes by client, bind a client to the key that first had it: a
    claim of another key is refused for good. Without them (None) a client goes to whoever is there.
    """

    def __init__(
        self,
        grid: Grid,
        clients: int,
        identity: str = "",
        patience: float = PATIENCE,
        owners: Mapping[int, int] | None = None,
        watch: Watch | None = None,
    ):
        self.grid, self.clients, self.identity, self.patience = grid, clients, identity, patience
        self.watch = watch or Watch()
        self.side: Mapping[str, str] = {}  # what the server is made with; nodes are compared with it
        self.owners = None if owners is None else dict(owners)
        self.takes_empty = True  # clients without samples: a partition may have some
        self.on_join: Callable[[], None] = lambda: None  # called when a client gets an owner
        self.nodes: dict[int, int] = {}
        self.sizes: dict[int, int] = {}
        self.columns: dict[int, object] = {}  # by client, a hash of the names of its tables' columns, if it says one
        self.strangers: set[int] = set()

    def update(self, wanted: Collection[int] | None = None) -> bool:
        """Forget nodes that have gone; where a wanted client has no node (None: always), ask new ones who they are.

        Return whether all that were asked answered in time.
        """
        present = set(self.grid.get_node_ids())
        self.nodes = {client: node for client, node in self.nodes.items() if node in present}
        self.strangers &= present
        new = present - set(self.nodes.values()) - self.strangers
        if not new or (wanted is not None and all(client in self.nodes for client in wanted)):
            return True
        content, kind = RecordDict({"config": ConfigRecord()}), MessageType.QUERY
        asked = [Message(content, dst_node_id=node, message_type=kind, ttl=self.patience) for node in sorted(new)]
        answers = exchange_messages(self.grid, asked, self.patience, INTRODUCTION)
        for node, reply in answers.items():
            if isinstance(reply, str):
                log.warning("node %d does not say who it is: %s", node, reply)
                continue
            try:
                facts = read_facts(reply, identity=self.identity)
                differing = compare_sides(self.side, facts)
                self._register(node, facts)
                if differing:
                    log.warning("node %d has %s", node, "; ".join(differing))
            except Refused as refused:
                log.warning("refused node %d: %s", node, refused)
                self.watch.note("refused", node=node, reason=str(refused))
                self.strangers.add(node)
            except ClientTaken as taken:  # asked again when the other one has gone: it may be the same node, restarted
                log.warning("node %d has to wait: %s", node, taken)
        return all(isinstance(answers.get(node), Message) for node in new)

    def _register(self, node: int, facts: dict[str, object]) -> None:
        client, size = facts.get("client"), facts.get("size")
        if (
            not isinstance(client, int)
            or not isinstance(size, int)
            or not 0 <= client < self.clients
            or not 0 <= size <= MOST
        ):
            raise Refused(f"it claims to be client {str(client)[:20]} of {self.clients}, with {str(size)[:20]} samples")
        if not size and not self.takes_empty:
            raise Refused(f"it cannot take part: client {client} has no samples")
        if self.owners is not None:
            self._check_owner(node, client, self.owners)
        if client in self.nodes:
            raise ClientTaken(f"it claims to be client {client}, which node {self.nodes[client]} is")
        self._check_columns(client, facts.get("columns"))
        if self.sizes.setdefault(client, size) != size:
            raise Refused(f"client {client} had {self.sizes[client]} samples and now has {size}")
        self.nodes[client] = node
        self.watch.note("joined", client=client, node=node, size=size)
        if self.owners is not None and client not in self.owners:
            self.owners[client] = node
            self.on_join()

    def _check_owner(self, node: int, client: int, owners: Mapping[int, int]) -> None:
        """Refuse a second claim: a client that another key has, or another client than this key has."""
        if (owner := owners.get(client, node)) != node:
            raise Refused(f"it claims to be client {client}, which belongs to the key of node {owner}")
        for other, owner in owners.items():
            if owner == node and other != client:
                raise Refused(f"its key is that of client {other}, and it claims to be client {client}")

    def _check_columns(self, client: int, columns: object) -> None:
        """Refuse tables whose columns have other names than those of another node's: they would be read as these."""
        self.columns.pop(client, None)
        for other, theirs in self.columns.items():
            if columns is not None and other in self.nodes and columns != theirs:
                raise Refused(
                    f"the columns of client {client}'s tables have other names than those of client {other}'s: "
                    "`fedkeel site check` shows them at each site; --columns names those that are read"
                )
        if columns is not None:
            self.columns[client] = columns

    def wait(self, count: int, seconds: float, enough: int) -> None:
        """Wait until so many clients have a node, or time is up and `enough` have.

        Nodes that are too slow to answer get twice the time when they are asked again: else they would never join.
        """
        until = time.monotonic() + seconds
        while True:
            in_time = self.update()
            if len(self.nodes) >= count:
                return
            if (left := until - time.monotonic()) < 0:
                break
            if not in_time:
                self.patience = max(self.patience, min(2 * self.patience, LONGEST, left))
            time.sleep(PAUSE)
        if len(self.nodes) < enough:
            raise RunError(
                f"{len(self.nodes)} of {count} clients have a node after {seconds:g} seconds, {enough} are needed.",
                "start the other nodes, then this run again: it goes on where it was",
            )
        log.warning("going on with %d of %d clients: the others have no node", len(self.nodes), count)

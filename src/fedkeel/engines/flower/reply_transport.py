"""Messages out, replies in: each fetched on its own, bounded in time and in bytes.

Flower's own `send_and_receive` fetches one reply after another, waits up to three minutes for one whose upload broke
off, while the deadline passes for all, and raises for one that cannot be read. No node may have such power.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from fedkeel.engines.flower.checks import error_line

PAUSE = 1.0  # seconds between two looks at the link
PARALLEL = 16  # replies at a time
OBJECTS = 10_000  # parts of one reply: Flower cuts arrays into parts of 5 MB

Answers = dict[int, Message | str]
"""By node: its answer, or the link's reason why there is none; silent nodes are not in it."""


def exchange_messages(grid: Grid, messages: Sequence[Message], timeout: float | None, limit: int) -> Answers:
    """Send one message to each of some nodes and gather their replies, of `limit` bytes at most each."""
    if not messages:
        return {}
    if hasattr(grid, "_runtime_client"):
        return ReplyFetcher(grid, limit, timeout).fetch_all(messages)
    # everything is in this process already
    nodes = {message.metadata.dst_node_id for message in messages}
    answers: Answers = {}
    for reply in grid.send_and_receive(messages, timeout=timeout):
        if (node := reply.metadata.src_node_id) in nodes:
            answers[node] = reply
    return answers


class ReplyFetcher:
    """Fetches replies from a link on another machine."""

    def __init__(self, grid: Any, limit: int, timeout: float | None):
        self.grid, self.client, self.limit = grid, grid._runtime_client, limit
        self.timeout = float("inf") if timeout is None else timeout
        self.until = float("inf")

    def fetch_all(self, messages: Sequence[Message]) -> Answers:
        """Fetch all replies. The link, which knows its nodes' keys, says whose reply it is; the reply does not."""
        from flwr.proto.runtime_pb2 import PullAppMessagesRequest

        named = zip(self.grid.push_messages(messages), messages, strict=False)
        silent = {name: message.metadata.dst_node_id for name, message in named if name}
        self.until = time.monotonic() + self.timeout
        under_way: dict[Future[Message | str], int] = {}
        answers: Answers = {}
        pool = ThreadPoolExecutor(PARALLEL, thread_name_prefix="fedkeel replies")
        try:
            while silent or under_way:
                if silent:
                    arrived = self.client.PullMessages(PullAppMessagesRequest(message_ids=list(silent)))
                    for head, tree in zip(arrived.messages_list, arrived.message_object_trees, strict=True):
                        if (node := silent.pop(head.metadata.reply_to_message_id, None)) is not None:
                            under_way[pool.submit(self.fetch_one, head, tree, node)] = node
                done, _ = wait(under_way, PAUSE, FIRST_COMPLETED)
                answers |= {under_way.pop(future): future.result() for future in done}
                if time.monotonic() > self.until:
                    break
                if not done and not under_way:
                    time.sleep(PAUSE)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        return answers | dict.fromkeys(under_way.values(), "its upload did not end")

    def fetch_one(self, head: Any, tree: Any, node: int) -> Message | str:
        from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
        from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
        from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects

        try:
            parts = [part.object_id for part in iterate_object_tree(tree)]
            if len(parts) > OBJECTS:
                raise ValueError(f"it has {len(parts)} parts, of at most {OBJECTS}")
            left = min(self.until - time.monotonic(), 1e6)
            contents = pull_objects(parts, BoundedFetch(self.grid, self.limit, self.until), max_time=left)
            name = head.metadata.message_id
            self.client.ConfirmMessageReceived(
                ConfirmMessageReceivedRequest(node=self.grid.node, run_id=self.grid.run.run_id, message_object_id=name)
            )
            message = inflate_object_from_contents(name, contents)
            assert isinstance(message, Message)
        except Exception as error:  # whatever a node may have sent
            return f"its reply cannot be read: {' '.join(str(error).split())[:200]}"
        # the link itself says why, in place of a node that is gone
        return error_line(message) if message.has_error() and head.metadata.src_node_id != node else message


class BoundedFetch:
    """Fetches the parts of one reply until its time or its bytes run out."""

    def __init__(self, grid: Any, limit: int, until: float):
        from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf

        self.limit, self.until, self.fetched = limit, until, 0
        self.fetch = make_pull_object_fn_protobuf(grid._runtime_client.PullObject, grid.node, grid.run.run_id)

    def __call__(self, part: str) -> bytes:
        if time.monotonic() > self.until:
            raise TimeoutError("its upload did not end")
        content: bytes = self.fetch(part)
        self.fetched += len(content)
        if self.fetched > self.limit:
            raise ValueError(f"it is longer than the {self.limit} bytes that were expected")
        return content

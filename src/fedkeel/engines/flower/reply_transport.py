"""Messages out, replies in: each fetched on its own, bounded in time and in bytes.

Flower's own `send_and_receive` fetches one reply after another, waits up to three minutes for one whose upload broke
off, while the deadline passes for all, and raises for one that cannot be read. No node may have such power.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from flwr.app import Message
from flwr.serverapp import Grid

from fedkeel.engines.flower.checks import error_line
from fedkeel.engines.flower.link import Arrived, Link, is_late
from fedkeel.text import in_one_line

PAUSE = 1.0  # seconds between two looks at the link
PARALLEL = 16  # replies at a time
OBJECTS = 10_000  # parts of one reply: Flower cuts arrays into parts of 5 MB
LATE = "it is late"
UNFINISHED = "it is late: its upload did not end"

Answers = dict[int, Message | str]
"""By node: its answer, or the link's reason why there is none; silent nodes are not in it."""


def exchange_messages(grid: Grid, messages: Sequence[Message], timeout: float | None, limit: int) -> Answers:
    """Send one message to each of some nodes and gather their replies, of `limit` bytes at most each."""
    if not messages:
        return {}
    if Link.is_remote(grid):
        return ReplyFetcher(Link(grid), limit, timeout).fetch_all(messages)
    # everything is in this process already
    nodes = {message.metadata.dst_node_id for message in messages}
    answers: Answers = {}
    for reply in grid.send_and_receive(messages, timeout=timeout):
        if (node := reply.metadata.src_node_id) in nodes:
            answers[node] = reply
    return answers


class ReplyFetcher:
    """Fetches replies from a link on another machine."""

    def __init__(self, link: Link, limit: int, timeout: float | None):
        self.link, self.limit = link, limit
        self.timeout = float("inf") if timeout is None else timeout
        self.until = float("inf")

    def fetch_all(self, messages: Sequence[Message]) -> Answers:
        """Fetch all replies. The link, which knows its nodes' keys, says whose reply it is; the reply does not."""
        silent = self.link.push(messages)
        self.until = time.monotonic() + self.timeout
        under_way: dict[Future[Message | str], int] = {}
        answers: Answers = {}
        pool = ThreadPoolExecutor(PARALLEL, thread_name_prefix="fedkeel replies")
        try:
            while silent or under_way:
                if silent:
                    for reply in self.link.pull(list(silent)):
                        if (node := silent.pop(reply.answers, None)) is not None:
                            under_way[pool.submit(self.fetch_one, reply, node)] = node
                done, _ = wait(under_way, PAUSE, FIRST_COMPLETED)
                answers |= {under_way.pop(future): future.result() for future in done}
                if time.monotonic() > self.until:
                    break
                if not done and not under_way:
                    time.sleep(PAUSE)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        return answers | dict.fromkeys(under_way.values(), UNFINISHED)

    def fetch_one(self, reply: Arrived, node: int) -> Message | str:
        try:
            parts = self.link.list_parts(reply)
            if len(parts) > OBJECTS:
                raise ValueError(f"it has {len(parts)} parts, of at most {OBJECTS}")
            left = min(self.until - time.monotonic(), 1e6)
            fetch = BoundedFetch(self.link.make_fetch(), self.limit, self.until)
            contents = self.link.fetch_parts(parts, fetch, left)
            self.link.confirm(reply.name)
            message = self.link.assemble(reply.name, contents)
        except TimeoutError:
            return UNFINISHED
        except Exception as error:  # whatever a node may have sent
            return f"its reply cannot be read: {in_one_line(error)[:200]}"
        if not message.has_error() or reply.sender == node:
            return message
        return LATE if is_late(message) else error_line(message)  # the link says why, in place of a node that is gone


class BoundedFetch:
    """Fetches the parts of one reply until its time or its bytes run out."""

    def __init__(self, fetch: Callable[[str], bytes], limit: int, until: float):
        self.fetch, self.limit, self.until, self.fetched = fetch, limit, until, 0

    def __call__(self, part: str) -> bytes:
        if time.monotonic() > self.until:
            raise TimeoutError(UNFINISHED)
        content = self.fetch(part)
        self.fetched += len(content)
        if self.fetched > self.limit:
            raise ValueError(f"it is longer than the {self.limit} bytes that were expected")
        return content

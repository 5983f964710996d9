"""The one place that uses interfaces which Flower does not publish: messages and replies on a SuperLink, in parts.

`tests/engines/flower/test_link.py` names each of them: a version of Flower without one fails there first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from flwr.app import Message
from flwr.serverapp import Grid


class Arrived(NamedTuple):
    """A reply that lies on the link: which message it answers, who sent it, its name and those of its parts."""

    answers: str
    sender: int
    name: str
    parts: Any


class Link:
    """A grid on another machine, used part by part."""

    def __init__(self, grid: Any):
        self.grid, self.client = grid, grid._runtime_client

    @staticmethod
    def is_remote(grid: Grid) -> bool:
        """Whether replies lie on another machine; those of a simulation are in this process already."""
        return hasattr(grid, "_runtime_client")

    def push(self, messages: Sequence[Message]) -> dict[str, int]:
        """Send messages; return the node of each by the message's name."""
        named = zip(self.grid.push_messages(messages), messages, strict=False)
        return {name: message.metadata.dst_node_id for name, message in named if name}

    def pull(self, names: Sequence[str]) -> Iterator[Arrived]:
        """List the replies to these messages that have arrived since the last call."""
        from flwr.proto.runtime_pb2 import PullAppMessagesRequest

        arrived = self.client.PullMessages(PullAppMessagesRequest(message_ids=list(names)))
        for head, tree in zip(arrived.messages_list, arrived.message_object_trees, strict=True):
            of = head.metadata
            yield Arrived(of.reply_to_message_id, of.src_node_id, of.message_id, tree)

    def list_parts(self, reply: Arrived) -> list[str]:
        """Name the parts of a reply."""
        from flwr.supercore.inflatable.inflatable_object import iterate_object_tree

        return [part.object_id for part in iterate_object_tree(reply.parts)]

    def make_fetch(self) -> Callable[[str], bytes]:
        """Make the function that fetches one part by its name."""
        from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf

        fetch: Callable[[str], bytes] = make_pull_object_fn_protobuf(
            self.client.PullObject, self.grid.node, self.grid.run.run_id
        )
        return fetch

    def fetch_parts(self, parts: Sequence[str], fetch: Callable[[str], bytes], seconds: float) -> Mapping[str, bytes]:
        """Fetch parts, several at a time, within so many seconds."""
        from flwr.supercore.inflatable.inflatable_utils import pull_objects

        contents: Mapping[str, bytes] = pull_objects(list(parts), fetch, max_time=seconds)
        return contents

    def confirm(self, name: str) -> None:
        """Tell the link that a reply was fetched, so that it need not keep it."""
        from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest

        self.client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(node=self.grid.node, run_id=self.grid.run.run_id, message_object_id=name)
        )

    def assemble(self, name: str, contents: Mapping[str, bytes]) -> Message:
        """Make a message of its parts."""
        from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

        message = inflate_object_from_contents(name, dict(contents))
        assert isinstance(message, Message)
        return message


def is_late(reply: Message) -> bool:
    """Whether the link says that a message or its reply has expired: nobody waits for it any more."""
    from flwr.common.constant import ErrorCode

    return reply.error.code in (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE)

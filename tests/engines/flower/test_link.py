"""Each interface that Flower does not publish and fedkeel uses, by name: a version without one fails here first."""

import ast
import importlib
import inspect
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason='needs flwr: pip install "fedkeel[flower]"')

import fedkeel

SOURCE = Path(fedkeel.__file__).parent
PUBLIC = {"flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.simulation"}

PRIVATE = {
    "flwr.common.constant:ErrorCode": ("MESSAGE_UNAVAILABLE", "REPLY_MESSAGE_UNAVAILABLE"),
    "flwr.proto.message_pb2:ConfirmMessageReceivedRequest": ("node", "run_id", "message_object_id"),
    "flwr.proto.runtime_pb2:PullAppMessagesRequest": ("message_ids",),
    "flwr.proto.runtime_pb2:PullAppMessagesResponse": ("messages_list", "message_object_trees"),
    "flwr.supercore.inflatable.inflatable_object:iterate_object_tree": ("tree",),
    "flwr.supercore.inflatable.inflatable_protobuf_utils:make_pull_object_fn_protobuf": (
        "pull_object_protobuf", "node", "run_id",
    ),
    "flwr.supercore.inflatable.inflatable_utils:inflate_object_from_contents": ("object_id", "object_contents"),
    "flwr.supercore.inflatable.inflatable_utils:pull_objects": ("object_ids", "pull_object_fn", "max_time"),
    "flwr.superlink.grid.http_grid:HttpGrid": ("_runtime_client", "push_messages", "run"),
    "flwr.supercore.runtime.runtime_http_client:RuntimeHttpClient": (
        "PullMessages", "PullObject", "ConfirmMessageReceived",
    ),
}  # fmt: skip
"""By place: the names of an interface that are used: its arguments, or its attributes."""


def names_of(thing):
    if inspect.isfunction(thing):
        return list(inspect.signature(thing).parameters)
    message = getattr(thing, "DESCRIPTOR", None)
    return dir(thing) if message is None else list(message.fields_by_name)


@pytest.mark.parametrize("place", sorted(PRIVATE))
def test_an_interface_is_there(place):
    module, name = place.split(":")
    found = names_of(getattr(importlib.import_module(module), name))
    assert set(PRIVATE[place]) <= set(found), found


def imports_of(file):
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}:{name.name}" for name in node.names)
        elif isinstance(node, ast.Import):
            yield from (f"{name.name}:" for name in node.names)


def test_only_one_module_uses_them():
    used = {
        (file.name, name)
        for file in SOURCE.rglob("*.py")
        for name in imports_of(file)
        if name.startswith("flwr") and name.split(":")[0] not in PUBLIC
    }
    assert {file for file, _ in used} == {"link.py"}
    assert {name for _, name in used} <= PRIVATE.keys()
    reads = {file.name for file in SOURCE.rglob("*.py") if "_runtime_client" in file.read_text()}
    assert reads == {"link.py"}

"""A worker process: a serial engine that answers requests on its standard streams.

Started as a command of its own, so that the user's main module is never imported again. Messages are
pickles between a parent and the child it started; they never cross a machine.
"""

from __future__ import annotations

import os
import pickle
import struct
import sys
from typing import Any, BinaryIO

import torch

from fedkeel.core.trees import Tree
from fedkeel.engines.machine import steady
from fedkeel.streams import open_missing

LENGTH = struct.Struct("<Q")


def send(stream: BinaryIO, message: bytes) -> None:
    stream.write(LENGTH.pack(len(message)))
    stream.write(message)
    stream.flush()


def receive(stream: BinaryIO) -> bytes:
    """Read the next message; raise EOFError when the other side is gone."""
    return read_exactly(stream, LENGTH.unpack(read_exactly(stream, LENGTH.size))[0])


def read_exactly(stream: BinaryIO, size: int) -> bytes:
    if len(body := stream.read(size)) < size:
        raise EOFError
    return body


def pack(state: Any) -> Any:
    """Turn tensors into arrays: pickling a tensor itself takes longer than a small step. None stays None."""
    if isinstance(state, dict):
        return {name: pack(slot) for name, slot in state.items()}
    if state is None:
        return None
    return (state.buffer.numpy(), state.layout) if isinstance(state, Tree) else state.numpy()


def unpack(state: Any) -> Any:
    if isinstance(state, dict):
        return {name: unpack(slot) for name, slot in state.items()}
    if state is None:
        return None
    return Tree(torch.from_numpy(state[0]), state[1]) if isinstance(state, tuple) else torch.from_numpy(state)


def main() -> None:
    open_missing()
    requests = os.fdopen(os.dup(0), "rb", buffering=1 << 20)
    replies = os.fdopen(os.dup(1), "wb", buffering=1 << 20)
    os.dup2(2, 1)  # what the user's code prints must not fall between replies
    with steady():
        serve(requests, replies)


def serve(requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer requests until the parent closes its end."""
    engine: Any = None
    message: Any = None
    while True:
        try:
            kind, payload = pickle.loads(receive(requests))
        except EOFError:
            return
        try:
            if kind == "setup":
                sys.path[:0] = [p for p in payload["path"] if p not in sys.path]
                torch.backends.mkldnn.enabled = payload["onednn"]  # the parent's convolutions, bit for bit
                engine = pickle.loads(payload["engine"])()
                answer: Any = "ready"
            elif kind == "message":
                message, answer = unpack(payload), None
            elif kind == "train":
                *asked, state = payload
                outcome = engine.train_one(message, *asked, unpack(state))
                answer = (pack(outcome.report), pack(outcome.state), engine.seconds.take())
            else:
                params, buffers, parts = unpack(payload[0]), unpack(payload[1]), payload[2]
                answer = [engine.workspace.score(params, buffers, part) for part in parts]
        except BaseException as error:  # handed to the parent, whatever it is
            answer = error
        if answer is not None:
            try:
                body = pickle.dumps(answer, protocol=5)
            except Exception:
                body = pickle.dumps(RuntimeError(f"{type(answer).__name__}: {answer}"))
            try:
                send(replies, body)
            except BrokenPipeError:  # the parent was killed; what is still in the buffer must not complain at the end
                os.dup2(os.open(os.devnull, os.O_WRONLY), replies.fileno())
                return

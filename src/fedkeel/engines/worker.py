"""A worker: engines that answer requests, on the standard streams of a process or as an actor of a Ray cluster.

A process is started as a command of its own, so that the user's main module is never imported again. Its messages are
pickles between a parent and the child it started; they never cross a machine.
"""

from __future__ import annotations

import os
import pickle
import struct
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

import torch

from fedkeel.core.trees import Tree
from fedkeel.engines.engine import KeptState
from fedkeel.engines.machine import steady
from fedkeel.errors import blame_own_code
from fedkeel.problems.predictions import Scores
from fedkeel.problems.task import Part
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
    if isinstance(state, KeptState):
        return pack(state.fetch())
    if isinstance(state, dict):
        return {name: pack(slot) for name, slot in state.items()}
    if state is None:
        return None
    return (state.buffer.cpu().numpy(), state.layout) if isinstance(state, Tree) else state.cpu().numpy()


def unpack(state: Any, device: torch.device | str = "cpu") -> Any:
    """Turn arrays back into tensors; a state that stays elsewhere, and None, pass through."""
    if isinstance(state, KeptState) or state is None:
        return state
    if isinstance(state, dict):
        return {name: unpack(slot, device) for name, slot in state.items()}
    array, layout = state if isinstance(state, tuple) else (state, None)
    # what lies in memory that processes share is read-only, and no tensor is
    tensor = torch.from_numpy(array if array.flags.writeable else array.copy()).to(device)
    return tensor if layout is None else Tree(tensor, layout)


class Desk:
    """What a worker does, whoever carries its messages. States and models arrive packed and leave packed."""

    def __init__(self) -> None:
        self.engines: dict[int, Any] = {}
        self.message: Any = None

    def answer(self, kind: str, payload: Sequence[Any]) -> Any:
        """Do what is asked; return what came of it, or what was raised, whatever it is."""
        try:
            return getattr(self, kind)(*payload)
        except BaseException as error:
            return make_portable(error)

    def set_up(self, number: int, engine: bytes, path: Sequence[str], onednn: bool) -> str:
        """Make an engine, in place of any earlier one of that number."""
        sys.path[:0] = [p for p in path if p not in sys.path]
        torch.backends.mkldnn.enabled = onednn  # type: ignore[assignment]  # the parent's convolutions, bit for bit
        self.engines[number] = pickle.loads(engine)()
        return "ready"

    def hear(self, message: Any) -> None:
        """Keep the message of a round, which reached all workers; there is no answer."""
        self.message = unpack(message)

    def train(self, number: int, message: Any, round: int, lr: float, clients: Sequence[int], *states: Any) -> Any:
        """Train clients; without a message, with the one heard last. Returns reports, states and seconds."""
        engine = self.engines[number]
        device = engine.task.device
        heard = self.message if message is None else unpack(message, device)
        outcomes = engine.train(heard, round, lr, clients, [unpack(state, device) for state in states])
        return [pack(one.report) for one in outcomes], [pack(one.state) for one in outcomes], engine.seconds.take()

    def score(self, number: int, params: Any, buffers: Any, split: str, parts: Sequence[Part] | None) -> list[Scores]:
        """Score a model on parts of the evaluation data, or on a whole split."""
        engine = self.engines[number]
        model = unpack(params, engine.task.device), unpack(buffers, engine.task.device)
        if parts is None:
            return engine.evaluate(*model, split)
        return [engine.workspace.score(*model, part) for part in parts]

    def call(self, function: Callable[..., Any], *given: Any) -> Any:
        """Call a function that takes a worker for itself, such as a whole run."""
        return function(*given)


def make_portable(error: BaseException) -> BaseException:
    """An error as another process can read it: itself, or what it says, with the line of the user's that failed."""
    raised: Any = error
    try:
        raised.own_code = blame_own_code(error)  # a traceback stays here
        if type(pickle.loads(pickle.dumps(error))) is type(error):
            return error
    except BaseException:  # whatever code of the error's own class raises
        pass
    said = "".join(traceback.format_exception_only(error)).strip().rpartition(f"{type(error).__qualname__}: ")[2]
    raised = RuntimeError(f"{type(error).__name__}: {said}")
    raised.own_code = getattr(error, "own_code", None)
    return raised


def main() -> None:
    open_missing()
    requests = os.fdopen(os.dup(0), "rb", buffering=1 << 20)
    replies = os.fdopen(os.dup(1), "wb", buffering=1 << 20)
    os.dup2(2, 1)  # what the user's code prints must not fall between replies
    with steady():
        serve(requests, replies)


def serve(requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer requests until the parent closes its end."""
    desk = Desk()
    while True:
        try:
            kind, payload = pickle.loads(receive(requests))
        except EOFError:
            return
        answer = desk.answer(kind, payload)
        if answer is not None:
            try:
                send(replies, pickle.dumps(answer, protocol=5))
            except BrokenPipeError:  # the parent was killed; what is still in the buffer must not complain at the end
                os.dup2(os.open(os.devnull, os.O_WRONLY), replies.fileno())
                return

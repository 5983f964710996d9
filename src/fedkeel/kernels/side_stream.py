"""Work that nothing waits for until the end of a pass: in a captured graph it becomes a branch beside the main one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor

Made = TypeVar("Made")

BEHIND = 32  # pieces of work that may be under way: fewer keep fewer tensors, more let the main branch wait less often


@cache
def one_stream(device: torch.device, priority: int = 0) -> torch.cuda.Stream:
    """Return the same stream each time; −1 goes before 0."""
    return torch.cuda.Stream(device, priority)


class SideStream:
    """The branch of one pass. Outside a capture, and without a GPU, work is done at once."""

    def __init__(self, device: torch.device):
        # made here, since nothing new is made while a graph is captured
        self.stream = one_stream(device) if device.type == "cuda" else None
        self.under_way = deque[tuple[torch.cuda.Event, tuple[Tensor, ...]]]()
        self.forked = False

    def fork(self) -> bool:
        """Let the branch wait for what the main one has done so far; False where there is no branch."""
        if self.stream is None or not torch.cuda.is_current_stream_capturing():
            return False
        self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))
        self.forked = True
        return True

    def make(self, work: Callable[[], Made]) -> tuple[Made, torch.cuda.Event]:
        """Do work in the branch; the event says when it is done."""
        assert self.stream is not None
        with torch.cuda.stream(self.stream):
            made = work()
        return made, self.stream.record_event()

    def run(self, work: Callable[[], None], *reads: Tensor) -> None:
        """Do work that reads these tensors and whose results are read after `join`."""
        if not self.fork():
            work()
            return
        assert self.stream is not None
        if len(self.under_way) == BEHIND:
            torch.cuda.current_stream(self.stream.device).wait_event(self.under_way.popleft()[0])
        # memory of a tensor that nobody holds would be given to a later one while this work still reads it
        self.under_way.append((self.make(work)[1], reads))

    def join(self) -> None:
        """Let the main branch wait for all work."""
        if self.stream is not None and self.forked:
            torch.cuda.current_stream(self.stream.device).wait_stream(self.stream)
            self.under_way.clear()
            self.forked = False

"""What captured and compiled steps ask of the process, and how they fall back; nothing here needs a GPU."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from fedkeel.engines.stacked import client_mapping
from fedkeel.engines.stacked.graphs import without_collection


class Old:
    """In a cycle of references: the garbage collector alone can delete it."""

    def __init__(self) -> None:
        self.itself = self


def allocate() -> list[list[int]]:
    return [[] for _ in range(100_000)]


def fail_in_a_capture() -> None:
    with without_collection():
        raise RuntimeError


def test_nothing_is_collected_during_a_capture() -> None:
    gc.collect()
    old = weakref.ref(Old())
    with without_collection():
        allocate()
        assert old() is not None
    allocate()
    gc.collect()
    assert old() is None


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_as_before_even_if_a_capture_fails(enabled: bool) -> None:
    (gc.enable if enabled else gc.disable)()
    try:
        with pytest.raises(RuntimeError):
            fail_in_a_capture()
        assert gc.isenabled() == enabled
    finally:
        gc.enable()


@pytest.mark.parametrize("error", [RuntimeError("no such kernel\nat line 7"), AssertionError()])
def test_rules_that_cannot_be_compiled_run_as_they_are_whatever_the_compiler_says(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*args: object) -> None:
        raise error

    def move(tree: torch.Tensor) -> torch.Tensor:
        return 2 * tree

    monkeypatch.setattr(client_mapping, "compile_rules", refuse)
    lifted = client_mapping.lift_compiled(move, (0,))
    for _ in range(2):
        assert torch.equal(lifted(torch.ones(3)), torch.full((3,), 2.0))
    (told,) = caplog.messages  # once
    assert told.endswith(f"run slower: {str(error).partition(chr(10))[0] or 'AssertionError'}")

"""What a capture of steps as a CUDA graph asks of the process; nothing here needs a GPU."""

from __future__ import annotations

import gc
import weakref

import pytest

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

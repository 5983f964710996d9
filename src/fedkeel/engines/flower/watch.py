"""What a federation reports its events to; this default does nothing with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedkeel.core.trees import Tree


class Watch:
    """Is told of every event by its word."""

    @property
    def head(self) -> str:
        """Return what nodes are given to witness."""
        return ""

    def note(self, event: str, **facts: Any) -> None:
        """Hear of an event: joined, refused, absent, counted."""

    def begin_round(self, round: int, params: Tree, clients: Sequence[int]) -> None:
        """Hear that a round begins: its number from 1, the model that is sent, who is asked."""

"""What the kit raises."""

from __future__ import annotations

from fedkeel.errors import FedkeelError


class BrokenLaw(FedkeelError, AssertionError):
    """A law does not hold: the message says which in one sentence, the hint what to do."""


def hold(holds: bool, sentence: str, hint: str) -> None:
    """Say that a law is broken unless it holds."""
    if not holds:
        raise BrokenLaw(sentence, hint)

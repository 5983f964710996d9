"""Texts that may come from anyone, made fit to be shown."""

from __future__ import annotations

import unicodedata


def printable(text: str) -> str:
    """A text in which nothing but letters and signs reaches a terminal: no control codes, no change of direction."""
    if text.isprintable():
        return text
    return "".join(" " if c == "\n" else c if _visible(c) else f"\\u{ord(c):04x}" for c in text)


def _visible(character: str) -> bool:
    kind = unicodedata.category(character)
    return not (kind.startswith("C") or kind in ("Zl", "Zp"))


def shortened(text: str, most: int) -> str:
    """A text of at most so many characters: of a longer one the two ends."""
    return text if len(text) <= most else f"{text[: most * 2 // 3]} … {text[-(most // 3 - 3) :]}"

"""Texts from anyone, made safe to show."""

from __future__ import annotations

import unicodedata


def make_printable(text: str) -> str:
    """Replace all but letters and signs: no control code and no change of direction reaches a terminal."""
    if text.isprintable():
        return text
    return "".join(" " if c == "\n" else c if _visible(c) else f"\\u{ord(c):04x}" for c in text)


def _visible(character: str) -> bool:
    kind = unicodedata.category(character)
    return not (kind.startswith("C") or kind in ("Zl", "Zp"))


def shorten(text: str, most: int) -> str:
    """Cut a text to at most `most` characters: of a longer one the two ends stay."""
    return text if len(text) <= most else f"{text[: most * 2 // 3]} … {text[-(most // 3 - 3) :]}"

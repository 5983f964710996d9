"""What can go wrong, as a tree. Each message is one line that names the value; each hint says what to do.

FedkeelError
├── RequestError         the request was wrong: exit code 2
│   ├── ExperimentError      a key or value of an experiment
│   ├── MethodError          rules that do not fit together
│   ├── DataError            a data set that is missing, damaged or cannot be divided so
│   ├── ModelError           an unknown model, or one that does not fit the data
│   └── FolderError          a run folder that is foreign, busy, read-only or damaged
└── RunError             the run failed while it was running: exit code 1
"""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable

MESSAGE, HINT, WORD = 500, 2000, 80
"""Characters that a message, a hint and a word to be looked up may have: what a file echoes through them is cut."""


class FedkeelError(Exception):
    """A message in one line and, apart from it, a hint."""

    exit_code = 1

    def __init__(self, message: str, hint: str | None = None):
        self.message = shortened(printable(message), MESSAGE)
        self.hint = None if hint is None else shortened(printable(hint), HINT)
        super().__init__(self.message)

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n\nhint: {self.hint}"

    def __reduce__(self) -> tuple[type[FedkeelError], tuple[str, str | None]]:
        return type(self), (self.message, self.hint)


class RequestError(FedkeelError):
    exit_code = 2


class ExperimentError(RequestError):
    pass


class MethodError(RequestError):
    pass


class DataError(RequestError):
    pass


class ModelError(RequestError):
    pass


class FolderError(RequestError):
    pass


class RunError(FedkeelError):
    exit_code = 1


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


def nearest(word: str, known: Iterable[str], what: str) -> str:
    """A hint for a word that is not known: the nearest known one, or all of them."""
    choices, word = sorted(known), word[:WORD]
    close = difflib.get_close_matches(word, choices, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known {what}: {', '.join(choices)}"

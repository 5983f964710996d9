"""Digests of the user's own code. They tell whether two runs of one experiment were made with the same code.

They are never part of an experiment's identity.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import FunctionType

from fedkeel.runs.folder import read_environment

log = logging.getLogger("fedkeel")

KNOWN = ("fedkeel", "torch", "builtins")
"""Packages whose versions say what their code is."""


def sources(parts: Iterable[object]) -> dict[str, str]:
    """Compute digests of code: of a class or a function its own text, of anything else the module that it comes from.

    A module that is named by a string counts once it was imported.
    """
    found: dict[str, str] = {}
    for part in parts:
        if isinstance(part, type | FunctionType):
            module, name = part.__module__, f"{part.__module__}:{part.__qualname__}"
        else:
            module = name = part if isinstance(part, str) else type(part).__module__
        if module.partition(".")[0] not in KNOWN:
            text = read_text(part) if isinstance(part, type | FunctionType) else read_module(module)
            found |= {} if text is None else {name: hashlib.sha256(text).hexdigest()[:16]}
    return dict(sorted(found.items()))


def read_text(part: type | FunctionType) -> bytes | None:
    """The text of a class or a function; None where there is no file of it."""
    try:
        return inspect.getsource(part).encode()
    except (OSError, TypeError):
        return None


def read_module(name: str) -> bytes | None:
    file = getattr(sys.modules.get(name), "__file__", None)
    return None if file is None else Path(file).read_bytes()


def in_words(name: str) -> str:
    return name if ":" in name else f"the module {name}"


def sources_of(folder: Path | None, parts: Iterable[object]) -> dict[str, str]:
    """Return the digests of the code that a run was made with, as its folder says; of a run that is in memory alone,
    as they are now."""
    if folder is None:
        return sources(parts)
    found = read_environment(folder).get("sources")
    return {name: str(digest) for name, digest in found.items()} if isinstance(found, dict) else {}


def edited(folder: Path, parts: Iterable[object]) -> list[str]:
    """What of the code that a run was made with has changed since, in words."""
    before = sources_of(folder, parts)
    return [in_words(name) for name, digest in sources(parts).items() if before.get(name, digest) != digest]


def warn_of_edits(folder: Path, parts: Iterable[object]) -> None:
    """Warn of code that is not what the finished run of a folder was made with."""
    for name in edited(folder, parts):
        log.warning("%s has been edited since %s was made: this is the old result", name, folder)


def describe_edits(runs: Iterable[tuple[str, int, Mapping[str, str]]]) -> list[str]:
    """Say what was edited between runs, of which labels, seeds and digests of code are given, and which runs share
    their code."""
    found: dict[str, dict[str, dict[str, list[str]]]] = {}
    for label, seed, digests in runs:
        for module, digest in digests.items():
            found.setdefault(module, {}).setdefault(digest, {}).setdefault(label, []).append(str(seed))
    return [
        f"{in_words(module)} was edited between these runs, which are of different code: "
        + "; ".join(
            ", ".join(f"{label} seed{'s' * (len(seeds) > 1)} {' and '.join(seeds)}" for label, seeds in same.items())
            for same in versions.values()
        )
        for module, versions in found.items()
        if len(versions) > 1
    ]

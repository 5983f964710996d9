"""Refuse to release where tag, package, CITATION.cff and CHANGELOG.md do not name the same version.

python scripts/check_version.py v1.0.0
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

PLACES = {
    "src/fedkeel/__init__.py": r'^__version__ = "(.+)"$',
    "CITATION.cff": r'^version: "?([^"\n]+)"?$',
    "CHANGELOG.md": r"^## (\S+)",
}


def versions_in(root: Path = ROOT) -> dict[str, str]:
    """Read the version that each place names; of the changelog, the first heading."""
    found = {}
    for name, pattern in PLACES.items():
        match = re.search(pattern, (root / name).read_text(encoding="utf-8"), re.MULTILINE)
        found[name] = match.group(1) if match else "none"
    return found


def problems_with(tag: str, root: Path = ROOT) -> list[str]:
    """Say in a line for each place what keeps a tag from being released."""
    wanted = tag.removeprefix("v")
    found = [] if re.fullmatch(r"\d+\.\d+\.\d+(?:rc\d+)?", wanted) else [f"{tag} is not vMAJOR.MINOR.PATCH"]
    named = versions_in(root)
    return found + [f"{name} says {named[name]}, the tag {wanted}" for name in named if named[name] != wanted]


if __name__ == "__main__":
    problems = problems_with(sys.argv[1])
    sys.exit("\n".join(problems) if problems else 0)

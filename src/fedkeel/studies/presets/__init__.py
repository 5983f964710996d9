"""Sweeps that come with fedkeel: the tuning that a paper describes."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent
PRESETS = tuple(sorted(file.stem for file in FOLDER.glob("*.toml")))


def find_preset(file: Path) -> Path:
    """Return the file of a preset that goes by this name, unless there is a file of that name."""
    return FOLDER / f"{file}.toml" if str(file) in PRESETS and not file.exists() else file

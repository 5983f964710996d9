"""The makers of published files (fixtures/) are plain modules; a small data set is the real one, recounted."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "fixtures"))


@pytest.fixture
def real_data():
    """The data folder that holds a data set, or a visible skip."""

    def find(name: str) -> Path:
        root = os.environ.get("FEDKEEL_DATA")
        if not root or not any((Path(root) / name).glob("*")):
            pytest.skip(f"real data: no {name} under FEDKEEL_DATA ({root})")
        return Path(root)

    return find

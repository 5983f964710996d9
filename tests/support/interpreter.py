"""Triton's kernels without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

KERNELS = Path(__file__).parents[1] / "kernels"


def run_interpreted(code: str) -> None:
    """Run code that imports tests of kernels; a process of its own, since Triton chooses when it is first imported."""
    path = os.pathsep.join([str(KERNELS), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": path},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "only 0-dimensional arrays can be converted" in done.stderr:
        pytest.skip("this release of Triton's interpreter does not work with this numpy")
    assert done.returncode == 0, done.stderr[-2000:]

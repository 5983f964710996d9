"""Install a built wheel in empty environments, use it there, and write down what worked.

    python scripts/try_wheel.py dist/fedkeel-*.whl --python python3.11 --python python3.12 --torch 2.10.0 --torch 2.13.0
    python scripts/try_wheel.py --page      # makes docs/compatibility.md of results/compatibility.jsonl

Every pair of a Python and a PyTorch gets a fresh environment with the wheel and nothing of this checkout but its tests.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results" / "compatibility.jsonl"
PAGE = ROOT / "docs" / "compatibility.md"
TESTS = ("tests/core", "tests/rules")
LIMIT = 1200  # seconds that one step may take

INTRODUCTION = """# What fedkeel was tried with

These pairs of Python and PyTorch were tried with the built wheel. For each line `scripts/try_wheel.py` makes an empty
environment, installs the wheel, prints the help, trains the quick start and runs the quick tests of `tests/core` and
`tests/rules`. `python scripts/try_wheel.py --page` makes this page from `results/compatibility.jsonl`; each line shows
the newest try.

| Python | PyTorch | system | processor | install | help | quick start | tests | tried on |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""

LEGEND = """
"ok" means that the step ended without an error; "—" that an earlier step failed, so that this one was not tried. All
were tried without a GPU: `+cpu` is a CPU build of PyTorch, `+cu132` one for CUDA. Pairs that are not in the table were
not tried this way. `.github/workflows/tests.yml` names the pairs that are tested on every change.
"""


def run_step(command: Sequence[str | Path], folder: Path) -> tuple[bool, str]:
    """Run one command; say whether it ended well, and the end of what it printed."""
    try:
        done = subprocess.run(
            [str(word) for word in command], cwd=folder, capture_output=True, text=True, timeout=LIMIT, check=False
        )
    except subprocess.TimeoutExpired:
        return False, f"took more than {LIMIT} seconds"
    return done.returncode == 0, (done.stdout + done.stderr)[-2000:]


def try_pair(wheel: Path, python: str, torch: str, folder: Path) -> dict[str, Any]:
    """Try a wheel with one Python and one PyTorch in a fresh environment."""
    place = folder / "environment"
    made, said = run_step([python, "-m", "venv", place], folder)
    here = place / ("Scripts" if sys.platform == "win32" else "bin")
    program = here / "python"
    install = [program, "-m", "pip", "install", "--quiet", f"torch=={torch}", wheel, "pytest", "hypothesis"]
    tests = [program, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not slow", *TESTS]
    steps: dict[str, tuple[list[str | Path], Path]] = {
        "install": (install, folder),
        "help": ([here / "fedkeel", "--help"], folder),
        "quick start": ([here / "fedkeel", "run", "--no-progress", "--out", folder / "runs"], folder),
        "tests": (tests, ROOT),
    }
    found: dict[str, str] = {}
    for name, (command, where) in steps.items():
        if made:
            made, said = run_step(command, where)
            found[name] = "ok" if made else "failed"
        else:
            found[name] = "—"
    ask = "import platform, torch; print(platform.python_version(), torch.__version__)"
    known, versions = run_step([program, "-c", ask], folder)
    return {
        "python": versions.split()[0] if known else python,
        "torch": versions.split()[1] if known else torch,
        "fedkeel": wheel.name.split("-")[1],
        "system": platform.system(),
        "machine": platform.machine(),
        "day": datetime.now(UTC).date().isoformat(),
        "steps": found,
        **({} if made else {"said": said}),
    }


def numbers_in(text: str) -> list[int]:
    """List the numbers in a version, by which versions are sorted."""
    return [int(number) for number in re.findall(r"\d+", text)]


def make_page(lines: Sequence[dict[str, Any]]) -> str:
    """Make the page of all tries; of each pair on a kind of machine, the last one counts."""
    newest = {(one["python"], one["torch"], one["system"], one["machine"]): one for one in lines}
    rows = sorted(newest.values(), key=lambda one: [numbers_in(one["python"]), numbers_in(one["torch"])])
    return INTRODUCTION + "".join(map(make_row, rows)) + LEGEND


def make_row(one: dict[str, Any]) -> str:
    cells = [one["python"], one["torch"], one["system"], one["machine"], *one["steps"].values(), one["day"]]
    return f"| {' | '.join(cells)} |\n"


def read_lines() -> list[dict[str, Any]]:
    """Read all tries so far."""
    return [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()] if RESULTS.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("wheel", nargs="?", type=Path, help="the wheel to try")
    parser.add_argument("--python", action="append", default=[], help="a Python to try it with; give it several times")
    parser.add_argument("--torch", action="append", default=[], help="a version of PyTorch; give it several times")
    parser.add_argument("--page", action="store_true", help="make docs/compatibility.md of what was tried")
    asked = parser.parse_args()
    if asked.wheel is not None:
        tried = [try_one(asked.wheel.resolve(), python, torch) for python in asked.python for torch in asked.torch]
        if not all(tried):
            sys.exit(1)
    if asked.page:
        PAGE.write_text(make_page(read_lines()), encoding="utf-8", newline="\n")


def try_one(wheel: Path, python: str, torch: str) -> bool:
    """Try one pair, write down what came of it, and say whether all went well."""
    with tempfile.TemporaryDirectory() as folder:
        one = try_pair(wheel, python, torch, Path(folder))
    with RESULTS.open("a", encoding="utf-8", newline="\n") as file:
        file.write(json.dumps(one, ensure_ascii=False) + "\n")
    print(f"Python {one['python']}, PyTorch {one['torch']}: {one['steps']}", one.get("said", ""), sep="\n", flush=True)
    return "said" not in one


if __name__ == "__main__":
    main()

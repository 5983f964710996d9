"""Check that all extras of a wheel resolve together, and name what pip would install; nothing is installed.

python scripts/resolve_extras.py dist/fedkeel-*.whl [--without text,ray]
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path


def extras_of(wheel: Path) -> list[str]:
    """List the extras that a wheel's metadata offer."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return re.findall(r"^Provides-Extra: (\S+)$", archive.read(name).decode(), re.MULTILINE)


def resolve(wheel: Path, extras: list[str], torch: str) -> dict[str, str]:
    """Ask pip for the versions that it would install; end with its message where there are none."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        what = [f"{wheel}[{','.join(extras)}]", f"torch=={torch}"]
        command = ["install", "--quiet", "--dry-run", "--ignore-installed", "--report", str(report), *what]
        done = subprocess.run([sys.executable, "-m", "pip", *command], check=False)
        if done.returncode:
            sys.exit(f"the extras {', '.join(extras)} do not resolve together")
        chosen = json.loads(report.read_text(encoding="utf-8"))["install"]
    return {one["metadata"]["name"]: one["metadata"]["version"] for one in chosen}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--without", default="", help="extras to leave out, with commas between them")
    parser.add_argument("--torch", default="2.13.0", help="the version of PyTorch that must fit")
    asked = parser.parse_args()
    extras = [name for name in extras_of(asked.wheel) if name not in asked.without.split(",")]
    found = resolve(asked.wheel.resolve(), extras, asked.torch)
    print(f"{len(extras)} extras resolve together to {len(found)} packages: {', '.join(extras)}")
    for name in ("torch", "numpy", "flwr", "ray", "transformers", "typer", "rich"):
        if name in found:
            print(f"  {name} {found[name]}")


if __name__ == "__main__":
    main()

"""Files that run an exported app: containers of a federation on one machine, and systemd units for real ones."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

import torch

import fedkeel
from fedkeel.runs.folder import write_text

PLAIN = {
    "superlink.service": "fedkeel-superlink.service",
    "supernode@.service": "fedkeel-supernode@.service",
    "status.timer": "fedkeel-status.timer",
}
"""Templates that are copied as they are, and what they are called in the app."""


def write_deploy_files(folder: Path, values: Mapping[str, str], nodes: int, own_folders: bool) -> list[Path]:
    """Write them into the app's folder `deploy`; `own_folders`: each node reads its data-dir."""
    place = folder / "deploy"
    for template, name in PLAIN.items():
        write_text(place / name, read_template(template))
    versions = {"version": fedkeel.__version__, "torch": torch.__version__.partition("+")[0]}
    write_text(place / "Dockerfile", read_template("Dockerfile").format(**versions))
    run = values["out"].removeprefix("~/")
    write_text(place / "fedkeel-status.service", read_template("status.service").format(run=run))
    data = ', "${{SITE_{node}:?the folder of node {node}}}:/data:ro"' if own_folders else ""
    settings = ", 'data-dir=\"/data\"'" if own_folders else ""
    service = read_template("compose_node.yaml")
    services = "".join(service.format(node=i, settings=settings, data=data.format(node=i)) for i in range(nodes))
    states = "".join(f", state-{i}: {{}}" for i in range(nodes))
    project = f"fedkeel-{Path(run).name}"  # volumes and images of another app have other names
    facts = {"nodes": nodes, "last": nodes - 1, "project": project, "services": services, "states": states}
    write_text(place / "compose.yaml", read_template("compose.yaml").format(**facts))
    return [place / name for name in ("Dockerfile", *PLAIN.values(), "fedkeel-status.service", "compose.yaml")]


def read_template(name: str) -> str:
    """Read a template of this package."""
    return files("fedkeel.federation").joinpath("templates", f"{name}.template").read_text(encoding="utf-8")

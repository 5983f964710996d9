"""Who takes part in a federation, and with how much data: files beside the server's run folder."""

from __future__ import annotations

import json
import logging
import statistics
from collections.abc import Sequence
from pathlib import Path

from fedkeel.engines.flower.node_registry import NodeRegistry
from fedkeel.errors import FolderError, RunError
from fedkeel.runs.checksums import read_text
from fedkeel.runs.folder import write_text

log = logging.getLogger("fedkeel")

SIZES, NODES, BOUNDS = "-clients.json", "-nodes.json", "-bounds.json"
"""Files beside a run folder: samples of each client (only where data are the nodes' own), its node, usual reports."""


def beside(out: Path, suffix: str) -> Path:
    """Return a file of the federation beside its run folder, which is like any other run's."""
    return out.with_name(f"{out.name}{suffix}")


def ask_sizes_once(out: Path, registry: NodeRegistry, wait: float, factor: float) -> list[int]:
    """Return how many samples each client has; all nodes are asked once, and the answer is kept beside the run."""
    file = beside(out, SIZES)
    if not file.exists():
        registry.wait(registry.clients, wait, registry.clients)
        sizes = [registry.sizes[client] for client in range(registry.clients)]
        check_sizes(sizes, factor)
        write_text(file, json.dumps(sizes))
    sizes = [int(size) for size in json.loads(read_text(file))]
    if len(sizes) != registry.clients:
        raise RunError(f"{file} counts {len(sizes)} clients, not {registry.clients}.", "choose another folder")
    registry.sizes = dict(enumerate(sizes))
    return sizes


def check_sizes(sizes: Sequence[int], factor: float) -> None:
    """Refuse a client that says it has far more samples than the others: clients often weigh by their size."""
    usual = statistics.median_low(sizes)
    for client, size in enumerate(sizes):
        log.info("client %d says that it has %d samples, %.1f %% of all", client, size, 100 * size / max(1, sum(sizes)))
    largest = max(range(len(sizes)), key=sizes.__getitem__)
    times = sizes[largest] / max(1, usual)
    if times > factor:
        raise RunError(
            f"client {largest} says that it has {sizes[largest]} samples, {times:.0f} times the median.",
            "ask the site; if it is so, raise norm-factor for the first start",
        )


def read_owners(file: Path) -> dict[int, int]:
    """Read which node each client belongs to."""
    if not file.exists():
        return {}
    try:
        return {int(client): int(node) for client, node in json.loads(read_text(file)).items()}
    except (ValueError, TypeError, AttributeError):
        raise FolderError(
            f"{file} is damaged: it names the node of each client.", 'restore it from a copy: {"0": 123, "1": 456}'
        ) from None

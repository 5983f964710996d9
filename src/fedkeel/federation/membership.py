"""Who takes part in a federation, and with how much data: files beside the server's run folder."""

from __future__ import annotations

import json
import logging
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedkeel.core.states import beside, write_text
from fedkeel.errors import FolderError, RequestError, RunError
from fedkeel.runs.folder import read_text

if TYPE_CHECKING:  # it needs Flower, which those who only read these files need not have
    from fedkeel.engines.flower.checks import Terms
    from fedkeel.engines.flower.node_registry import NodeRegistry

log = logging.getLogger("fedkeel")

FIXED, AT_START = "fixed", "at-start"
SIZES, NODES, BOUNDS = "-clients.json", "-nodes.json", "-bounds.json"
"""Files beside a run folder: samples of each client (only where data are the nodes' own), its node, usual reports."""


def ask_sizes(
    out: Path, registry: NodeRegistry, wait: float, terms: Terms, rule: str = FIXED, *, tested: bool = False
) -> list[int]:
    """Return how many samples each client has, and keep the answer beside the run; `tested`: sites keep a test share.

    By the rule "fixed" all nodes are asked once. By "at-start" those that are there are asked at every start: a client
    that is away keeps its last size, and one that was never there has no samples, and is not chosen.
    """
    if rule not in (FIXED, AT_START):
        raise RequestError(f"membership is {FIXED} or {AT_START}, not {rule}.", f'membership = "{FIXED}"')
    file, clients = beside(out, SIZES), registry.clients
    try:
        before = [int(size) for size in json.loads(read_text(file))] if file.exists() else []
    except (ValueError, TypeError):
        raise FolderError(f"{file} is damaged: it lists each client's samples.", "restore it from a copy") from None
    if before and (len(before) > clients or (len(before) < clients and rule == FIXED)):
        raise RunError(f"{file} counts {len(before)} clients, not {clients}.", "choose another folder")
    if rule == AT_START or not before:
        known = sum(size > 0 for size in before) or clients
        registry.wait(clients, wait, clients if rule == FIXED else terms.count_needed(known))
        old = [*before, *[0] * (clients - len(before))]
        sizes = [registry.sizes.get(client, old[client]) for client in range(clients)]
        check_sizes(sizes, terms.norm_factor)
        for client, (was, now) in enumerate(zip(old, sizes, strict=True)):
            if before and was != now:
                log.info("client %d had %d samples and counts with %d from now on", client, was, now)
            if tested and was and was != now:
                log.warning(
                    "client %d has other data than at the last start: some samples of its test share may have been "
                    "trained on, most where rows were not only appended",
                    client,
                )
        write_text(file, json.dumps(sizes))
    else:
        sizes = before
    registry.sizes = {client: size for client, size in enumerate(sizes) if size or rule == FIXED}
    return sizes


def check_sizes(sizes: Sequence[int], factor: float) -> None:
    """Refuse a client that says it has far more samples than the others: clients often weigh by their size."""
    usual = statistics.median_low([size for size in sizes if size] or [0])
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

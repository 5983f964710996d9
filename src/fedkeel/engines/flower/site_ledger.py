"""What each site measured, round by round: a file of plain lines beside the run folder."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedkeel.core.states import beside
from fedkeel.data.storage.line_file import append_line, read_whole_lines
from fedkeel.errors import RunError, explain_os_errors
from fedkeel.problems.predictions import Scores

log = logging.getLogger("fedkeel")

TOGETHER = -1
"""The site that stands for all of them."""


class SiteLedger:
    """Writes a line of JSON for each round whose model the sites have scored.

    The first model of a round is the deployed one; where another is trained, it is scored after that, and has no line.
    `most` is how many test samples a site may have for each training sample.
    """

    def __init__(self, file: Path, share: float):
        self.file, self.most, self.last = file, math.ceil(share / (1 - share)) + 1, -1

    def write(self, round: int, sites: Mapping[int, Scores], together: Scores) -> None:
        """Append what was measured after a round, at each site and together."""
        if round == self.last:
            return
        line = {"round": round, "together": means(together), "sites": {str(c): means(s) for c, s in sites.items()}}
        full = "free some space, then start the server again: the run continues"
        with explain_os_errors(f"cannot write {self.file}", "let the server write there", RunError, full=full):
            append_line(self.file, json.dumps(line, allow_nan=False), json.loads)
        self.last = round
        for client, scores in sites.items():
            told = ", ".join(f"{name} {value:.4g}" for name, value in means(scores).items() if value is not None)
            log.info("round %d: site %d: %s", round, client, told)


def means(scores: Scores) -> dict[str, Any]:
    """Turn sums and counts into means, with the number of samples."""
    found: dict[str, Any] = {"samples": max((count for _, count in scores.values()), default=0)}
    for name, (total, count) in scores.items():
        found[name] = total / count if math.isfinite(total / count) else None
    return found


def sites_file(out: Path) -> Path:
    """Return the file beside a run folder that holds what sites measured."""
    return beside(out, "-sites.jsonl")


def read_sites(file: Path, rounds: int) -> dict[int, dict[str, float | None]]:
    """Read what each site measured last, and all together; nothing where there is no such file.

    The run has so many `rounds`: lines of later ones are of rounds that were undone, or not kept when the server died.
    """
    if not file.exists():
        return {}
    try:
        written = [json.loads(line) for line in read_whole_lines(file, json.loads) if line.strip()]
        if not (kept := [line for line in written if line["round"] <= rounds]):
            return {}
        last = kept[-1]
        every = {TOGETHER: last["together"]} | {int(client): scores for client, scores in last["sites"].items()}
        return {
            client: {str(name)[:40]: None if value is None else float(value) for name, value in scores.items()}
            for client, scores in every.items()
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        log.warning("%s cannot be read", file)
        return {}

"""Numbers of a federation for Prometheus, as a text file for its node exporter, and what they mean for alerts."""

from __future__ import annotations

import math
import re
import time
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from fedkeel.core.states import write_text
from fedkeel.errors import FolderError
from fedkeel.runs.folder import read_text

METRICS = ".prom"
RUNNING, FINISHED, STOPPED = 0.0, 1.0, 2.0
FINE, ENDED, SILENT, INCOMPLETE = 0, 3, 4, 5
"""Exit codes of `fedkeel site status`."""


def gauge(meaning: str, value: float = 0.0) -> Any:
    """Declare a number by what it means, and what it is at first."""
    return field(default=value, metadata={"meaning": meaning})


@dataclass
class Gauges:
    """The numbers; NaN where there is none yet."""

    state: float = gauge("0 running, 1 finished, 2 stopped by an error", RUNNING)
    rounds_done: float = gauge("Rounds that are done")
    rounds_asked: float = gauge("Rounds that were asked for")
    clients: float = gauge("Clients of the federation that have data")
    clients_connected: float = gauge("Clients that have a node")
    clients_asked: float = gauge("Clients that the last round asked")
    clients_counted: float = gauge("Clients whose reports the last round counted")
    refused_total: float = gauge("Replies and nodes that were refused since the start")
    absent_total: float = gauge("Clients that had no node or were late, since the start")
    round_seconds: float = gauge("Duration of the last round", math.nan)
    loss: float = gauge("Training loss of the last round", math.nan)
    accuracy: float = gauge("Accuracy of the last evaluated model", math.nan)
    last_change_timestamp_seconds: float = gauge("When the last round ended, or the server started or stopped")

    def write(self, file: Path) -> None:
        """Write all, so that a reader sees the old file or the new one."""
        write_text(file, self.as_text(), synced=False)

    def overwrite(self, file: Path) -> None:
        """Write all in the place of what is there, which a full disk allows, too."""
        with file.open("r+b", buffering=0) as there:
            there.write(self.as_text().encode())
            there.truncate()

    def as_text(self) -> str:
        lines = []
        for one in fields(self):
            name, value = one.name, getattr(self, one.name)
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# HELP fedkeel_{name} {one.metadata['meaning']}.", f"# TYPE fedkeel_{name} {kind}"]
            lines += [f"fedkeel_{name} {value!r}".replace("nan", "NaN").replace("inf", "+Inf")]
        return "\n".join(lines) + "\n"

    def touch(self) -> None:
        self.last_change_timestamp_seconds = time.time()


def read_gauges(file: Path) -> Gauges:
    """Read the numbers back."""
    found = dict(re.findall(r"^fedkeel_(\w+) (\S+)$", read_text(file, "start the server: it writes it anew"), re.M))
    try:
        return Gauges(**{one.name: float(found[one.name]) for one in fields(Gauges)})
    except (KeyError, ValueError):
        raise FolderError(f"{file} is damaged.", "start the server: it writes it anew") from None


def judge(gauges: Gauges, silent: float, now: float) -> tuple[int, str]:
    """Say how a federation is: an exit code, and a line."""
    rounds = f"{gauges.rounds_done:.0f} of {gauges.rounds_asked:.0f} rounds are done"
    rounds = rounds if gauges.rounds_asked else "no round has begun"  # the first server waits for its clients
    if gauges.state == STOPPED:
        return ENDED, f"the server stopped with an error; {rounds}. Its log says why"
    if gauges.state == FINISHED:
        return FINE, f"finished: {rounds}"
    quiet = now - gauges.last_change_timestamp_seconds
    if quiet > silent:
        return SILENT, f"nothing has happened for {quiet:.0f} s; {rounds}"
    if -quiet > silent:  # else the alert would come later by as much
        return SILENT, f"the last change is {-quiet:.0f} s ahead of this clock, which was set back; {rounds}"
    ago = f"the last change was {max(quiet, 0):.0f} s ago"  # a server that was killed cannot say so
    if gauges.clients_counted < gauges.clients_asked and gauges.rounds_done:
        counted = f"{gauges.clients_counted:.0f} of {gauges.clients_asked:.0f} clients"
        return INCOMPLETE, f"the last round counted {counted}; {rounds}; {ago}"
    connected = f"{gauges.clients_connected:.0f} of {gauges.clients:.0f} clients are connected"
    return FINE, f"running: {rounds}, {connected}; {ago}"

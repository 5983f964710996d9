"""Numbers of a federation for Prometheus, as a text file for its node exporter, and what they mean for alerts."""

from __future__ import annotations

import re
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from fedkeel.core.states import write_atomically
from fedkeel.errors import FolderError
from fedkeel.runs.checksums import read_text

METRICS = ".prom"
RUNNING, FINISHED, STOPPED = 0.0, 1.0, 2.0
FINE, ENDED, SILENT, INCOMPLETE = 0, 3, 4, 5
"""Exit codes of `fedkeel site status`."""
MEANING = {
    "state": "0 running, 1 finished, 2 stopped by an error",
    "rounds_done": "Rounds that are done",
    "rounds_asked": "Rounds that were asked for",
    "clients": "Clients of the federation that have data",
    "clients_connected": "Clients that have a node",
    "clients_asked": "Clients that the last round asked",
    "clients_counted": "Clients whose reports the last round counted",
    "refused_total": "Replies and nodes that were refused since the start",
    "absent_total": "Clients that had no node or were late, since the start",
    "round_seconds": "Duration of the last round",
    "loss": "Training loss of the last round",
    "accuracy": "Accuracy of the last evaluated model",
    "last_change_timestamp_seconds": "When the last round ended, or the server started or stopped",
}


@dataclass
class Gauges:
    """The numbers; NaN where there is none yet."""

    state: float = RUNNING
    rounds_done: float = 0.0
    rounds_asked: float = 0.0
    clients: float = 0.0
    clients_connected: float = 0.0
    clients_asked: float = 0.0
    clients_counted: float = 0.0
    refused_total: float = 0.0
    absent_total: float = 0.0
    round_seconds: float = float("nan")
    loss: float = float("nan")
    accuracy: float = float("nan")
    last_change_timestamp_seconds: float = 0.0

    def write(self, file: Path) -> None:
        """Write all, so that a reader sees the old file or the new one."""
        lines = []
        for name, value in asdict(self).items():
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# HELP fedkeel_{name} {MEANING[name]}.", f"# TYPE fedkeel_{name} {kind}"]
            lines += [f"fedkeel_{name} {value!r}".replace("nan", "NaN").replace("inf", "+Inf")]
        text = "\n".join(lines) + "\n"
        write_atomically(file, lambda path: path.write_text(text, encoding="utf-8", newline="\n"), synced=False)

    def touch(self) -> None:
        self.last_change_timestamp_seconds = time.time()


def read_gauges(file: Path) -> Gauges:
    """Read the numbers back."""
    found = dict(re.findall(r"^fedkeel_(\w+) (\S+)$", read_text(file, "start the server: it writes it anew"), re.M))
    try:
        return Gauges(**{field.name: float(found[field.name]) for field in fields(Gauges)})
    except (KeyError, ValueError):
        raise FolderError(f"{file} is damaged.", "start the server: it writes it anew") from None


def judge(gauges: Gauges, silent: float, now: float) -> tuple[int, str]:
    """Say how a federation is: an exit code, and a line."""
    rounds = f"{gauges.rounds_done:.0f} of {gauges.rounds_asked:.0f} rounds are done"
    if gauges.state == STOPPED:
        return ENDED, f"the server stopped with an error; {rounds}. Its log says why"
    if gauges.state == FINISHED:
        return FINE, f"finished: {rounds}"
    quiet = now - gauges.last_change_timestamp_seconds
    if quiet > silent:
        return SILENT, f"nothing has happened for {quiet:.0f} s; {rounds}"
    if gauges.clients_counted < gauges.clients_asked and gauges.rounds_done:
        return INCOMPLETE, (
            f"the last round counted {gauges.clients_counted:.0f} of {gauges.clients_asked:.0f} clients; {rounds}"
        )
    return FINE, f"running: {rounds}, {gauges.clients_connected:.0f} of {gauges.clients:.0f} clients are connected"

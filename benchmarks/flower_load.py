"""How many rounds a minute real SuperNodes make, and whether the server's memory stays flat.

    python benchmarks/flower_load.py                                  30 SuperNodes, 100 rounds, 3 clients a round
    python benchmarks/flower_load.py --nodes 4 --rounds 5 --share 0.5

It exports an app, starts a SuperLink and the SuperNodes on this machine, with TLS and a key for each node, as the app's
own scripts do, and trains. After every round it reads the memory of the server's processes. It prints one JSON object:
rounds per minute, memory (MB) of each kind of process after rounds 1, 10 and the last, its slope (kB a round, least
squares after the first tenth), replies that were refused or did not come, and what nodes cost. At the end, after an
error and after Ctrl-C nothing of what it started is left. It needs Flower, openssl, ssh-keygen and /proc.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from deployments import MISSING, Deployment, descendants
from federation_load import make_experiment

from fedkeel.federation.audit import AUDIT, read_chain
from fedkeel.federation.export import export
from fedkeel.federation.membership import beside
from fedkeel.runs.folder import read_rounds

SERVER = ("flower-superlink", "flower-superexec", "flwr-serverapp")
NODE = ("fedkeel.federation.supernode", "flower-superexec")
PROGRAMS = ("flower", "flwr", "fedkeel.")
STOPS = signal.SIGINT, signal.SIGTERM
TICK, PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")


def kind_of(process: int) -> str:
    """The program that a process runs: the name of the script or module, where it is Python that runs one."""
    words = Path(f"/proc/{process}/cmdline").read_text().split("\0")
    return next((name for word in words[:3] if (name := Path(word).name).startswith(PROGRAMS)), "")


def memory_by_kind(root: int) -> Counter[str]:
    """Resident bytes of a process and all that come from it, by program."""
    found: Counter[str] = Counter()
    for process in (root, *descendants(root)):
        with contextlib.suppress(OSError):  # it has ended
            pages = Path(f"/proc/{process}/statm").read_text().split()[1]
            found[kind_of(process)] += int(pages) * PAGE
    return found


def cpu_seconds(roots: Iterable[int]) -> float:
    """CPU time of processes, of those that come from them, and of those of these that have ended."""
    ticks = 0
    for root in roots:
        for process in (root, *descendants(root)):
            with contextlib.suppress(OSError):
                ticks += sum(map(int, Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:15]))
    return ticks / TICK


def slope(rounds: list[int], sizes: list[int]) -> float:
    """Growth in kB a round, after the first tenth of the rounds."""
    late = [(round, size) for round, size in zip(rounds, sizes, strict=True) if round > rounds[-1] // 10]
    return statistics.linear_regression(*zip(*late, strict=True)).slope / 1024 if len(late) > 1 else 0.0


class Load:
    """A federation that is watched round by round."""

    def __init__(self, deployment: Deployment, out: Path, rounds: int):
        self.deployment, self.out, self.rounds = deployment, out, rounds
        self.sampled: list[int] = []
        self.memory: list[Counter[str]] = []
        self.nodes = [f"node-{node}" for node in range(deployment.nodes)]
        self.idle, self.cpu = 0.0, (0.0, 0.0)

    def connect(self, together: int, patience: float) -> None:
        """Start the server, the run, and so many nodes at a time; the run begins when all have joined.

        A node starts a process to say who it is. Flower gives up a task whose process takes half a minute to start:
        those of 30 nodes at once do on two cores.
        """
        self.deployment.superlink()
        self.deployment.register()
        settings = {"wait": self.deployment.nodes * patience, "deadline": patience, "minimum": 0.5}
        self.deployment.run("run", out=str(self.out), **settings)
        for first in range(0, self.deployment.nodes, together):
            started = min(first + together, self.deployment.nodes)
            for node in range(first, started):
                self.deployment.node(node)
            self.deployment.wait_for(lambda due=started: self.count("joined") >= due, f"{started} nodes", pause=1.0)
            print(f"{started} nodes have joined", file=sys.stderr, flush=True)
        self.idle = statistics.mean(sum(memory_by_kind(one)[kind] for kind in NODE) for one in self.roots()) / 2**20

    def count(self, event: str) -> int:
        """How often something happened, as the server's audit log has it."""
        log = beside(self.out, AUDIT)
        return sum(line["event"] == event for line in read_chain(log)) if log.exists() else 0

    def roots(self) -> list[int]:
        return [self.deployment.processes[name].pid for name in self.nodes]

    def follow(self, patience: float) -> None:
        """Follow the run to its end; a round that takes longer than `patience` ends it."""
        last, until = 0, time.monotonic() + 2 * patience
        while last < self.rounds:
            if (done := len(read_rounds(self.out)) if self.out.exists() else 0) > last:
                last, until = done, time.monotonic() + 2 * patience
                self.sampled.append(done)
                self.memory.append(memory_by_kind(self.deployment.processes["superlink"].pid))
                now = cpu_seconds(self.roots())
                self.cpu = (self.cpu[0] or now, now)
                shown = ", ".join(f"{kind} {self.memory[-1][kind] / 2**20:.1f} MB" for kind in SERVER)
                print(f"round {done}: {shown}", file=sys.stderr, flush=True)
            elif time.monotonic() > until or self.deployment.processes["run"].poll():
                raise RuntimeError(f"the run stopped in round {last + 1}\n{self.deployment.told()}")
            time.sleep(0.2)

    def summary(self) -> dict[str, object]:
        records = read_rounds(self.out)
        seconds = [record.seconds for record in records]
        messages = sum(len(record.selected) for record in records[self.sampled[0] :])
        shown = sorted({0, min(9, len(self.sampled) - 1), len(self.sampled) - 1})
        by_kind = {kind: [taken[kind] for taken in self.memory] for kind in SERVER}
        return {
            "nodes": self.deployment.nodes,
            "clients_per_round": len(records[-1].selected),
            "rounds": len(records),
            "rounds_per_minute": round(60 / statistics.mean(seconds), 2),
            "median_seconds": round(statistics.median(seconds), 1),
            "server_mb": {
                kind: {
                    **{f"round {self.sampled[place]}": round(sizes[place] / 2**20, 1) for place in shown},
                    "most": round(max(sizes) / 2**20, 1),
                    "kb_per_round": round(slope(self.sampled, sizes), 1),
                }
                for kind, sizes in by_kind.items()
            },
            "joined": self.count("joined"),
            "refused": self.count("refused"),
            "absent_or_late": self.count("absent"),
            "idle_node_mb": round(self.idle, 1),
            "node_cpu_seconds_per_message": round((self.cpu[1] - self.cpu[0]) / messages, 2) if messages else None,
            "load_average": os.getloadavg()[2],
            "cores": os.cpu_count(),
        }


def measure(asked: argparse.Namespace, folder: Path) -> None:
    """Export, deploy, train, print what was measured, also when it is interrupted, and end everything."""
    export(make_experiment(asked), folder / "app")
    deployment = Deployment(folder / "app", folder, nodes=asked.nodes)
    load = Load(deployment, folder / "out", asked.rounds)
    try:
        load.connect(asked.together, asked.patience)
        load.follow(asked.patience)
    finally:
        for stop in STOPS:  # a second one would leave processes behind
            signal.signal(stop, signal.SIG_IGN)
        try:
            if load.sampled:
                print(json.dumps(load.summary(), indent=2), flush=True)
        finally:
            deployment.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--share", type=float, default=0.1, help="of the nodes, in each round")
    parser.add_argument("--method", default="scaffold")
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--together", type=int, default=3, help="nodes that are started at a time")
    parser.add_argument("--patience", type=float, default=300.0, help="seconds that a node has to answer")
    parser.add_argument("--folder", type=Path, help="keeps logs and the run there; else they are removed")
    asked = parser.parse_args()
    if MISSING:
        parser.exit(2, f"not on this machine: {', '.join(MISSING)}\n")
    for stop in STOPS:  # a shell has its background jobs ignore the first
        signal.signal(stop, signal.default_int_handler)
    with contextlib.ExitStack() as kept:
        folder = asked.folder or Path(kept.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        measure(asked, folder.resolve())


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)

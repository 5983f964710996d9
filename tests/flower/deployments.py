"""A federation of processes on this machine: the exported app, its scripts, TLS and node authentication."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import fedkeel

SCRIPTS = Path(sys.executable).parent
TOOLS = ("openssl", "ssh-keygen")
MISSING = [tool for tool in TOOLS if shutil.which(tool) is None] + [
    tool for tool in ("flower-superlink", "flower-supernode", "flwr") if not (SCRIPTS / tool).exists()
]
PATIENCE = 180.0  # seconds that anything may take on a busy machine


def free_ports(count):
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def wait_for(holds, what):
    until = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < until, f"waited in vain for {what}"
        time.sleep(0.3)


class Deployment:
    """Processes in sessions of their own, so that one can be killed with all its children."""

    def __init__(self, app, folder, nodes=3):
        self.app, self.folder, self.nodes, self.processes = app, folder, nodes, {}
        self.keys = folder / "keys"
        self.port, *self.node_ports = free_ports(1 + nodes + 3)
        home = folder / "home"
        home.mkdir()
        self.environment = os.environ | {
            "PATH": f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(Path(fedkeel.__file__).parents[1]),
            "HOME": str(home),
            "FLWR_HOME": str(home / ".flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "OMP_NUM_THREADS": "1",
        }
        (home / ".flwr").mkdir()
        self.connect("fed", self.keys / "ca.crt")
        self.script("make_keys.sh", self.keys, str(nodes))

    def connect(self, name, certificate):
        """Another way for `flwr` to reach the server, trusting another authority."""
        with open(Path(self.environment["FLWR_HOME"]) / "config.toml", "a") as file:
            file.write(f'[superlink.{name}]\naddress = "127.0.0.1:{self.port}"\nroot-certificates = "{certificate}"\n')

    def script(self, name, *arguments):
        subprocess.run(["sh", self.app / name, *arguments], env=self.environment, check=True, capture_output=True)

    def start(self, name, command, **more):
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                command, env=self.environment | more, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def log(self, name):
        file = self.folder / f"{name}.log"
        return file.read_text(errors="replace") if file.exists() else ""

    def superlink(self):
        up = self.log("superlink").count("Application startup complete")
        self.start("superlink", ["sh", self.app / "superlink.sh", self.keys, "127.0.0.1", str(self.port)])
        wait_for(lambda: self.log("superlink").count("Application startup complete") > up, "the SuperLink")

    def register(self):
        for node in range(self.nodes):
            done = self.flwr("supernode", "register", str(self.keys / f"node-{node}.pub"), "fed")
            assert "registered" in done.stdout, done.stdout + done.stderr

    def node(self, number, *, name=None, keys=None, port=None):
        name = name or f"node-{number}"
        command = ["sh", self.app / "supernode.sh", keys or self.keys, str(number), f"127.0.0.1:{self.port}",
                   str(self.node_ports[number if port is None else port])]  # fmt: skip
        self.start(name, command, FEDKEEL_STATE=str(self.folder / f"state-{number}"))

    def node_without_key(self, name, port):
        """It trusts the server, but does not say who it is."""
        tls = [f"--ssl-{what}" for what in ("ca-certfile", "certfile", "keyfile")]
        files = [self.keys / file for file in ("ca.crt", "server.crt", "server.key")]
        command = ["flower-supernode", "--superlink", f"127.0.0.1:{self.port}", "--root-certificates", files[0],
                   "--port", str(self.node_ports[port]), *(x for pair in zip(tls, files, strict=True) for x in pair),
                   "--node-config", "partition-id=0"]  # fmt: skip
        self.start(name, command)

    def flwr(self, *arguments):
        return subprocess.run(
            ["flwr", *arguments], env=self.environment, cwd=self.app, capture_output=True, text=True, timeout=600,
            check=False,
        )  # fmt: skip

    def run(self, name, **settings):
        """`flwr run`, streaming into a log."""
        config = " ".join(f'{key}="{v}"' if isinstance(v, str) else f"{key}={v}" for key, v in settings.items())
        self.start(name, ["flwr", "run", str(self.app), "fed", "--stream", "--run-config", config])

    def signal(self, name, number):
        """To a process and all its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.processes[name].pid, number)

    def kill(self, name):
        self.signal(name, signal.SIGKILL)
        self.processes.pop(name).wait()

    def close(self):
        for name in list(self.processes):
            self.signal(name, signal.SIGCONT)
            self.kill(name)

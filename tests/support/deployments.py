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
from fedkeel.federation.export import export
from fedkeel.runs.folder import read_rounds

SOURCE = str(Path(fedkeel.__file__).parents[1])
SCRIPTS = Path(sys.executable).parent
TOOLS = ("openssl", "ssh-keygen")
MISSING = (
    [tool for tool in TOOLS if shutil.which(tool) is None]
    + [tool for tool in ("flower-superlink", "flower-supernode", "flwr") if not (SCRIPTS / tool).exists()]
    + [folder for folder in ("/proc",) if not os.path.isdir(folder)]
)
PATIENCE = 400.0  # seconds without a line in any log: a busy machine may take longer, as long as something moves
HOST = "127.0.0.1"


def free_ports(count):
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind((HOST, 0))
        return [one.getsockname()[1] for one in sockets]


class Deployment:
    """Processes that can be killed with all that they started.

    `app` lends its scripts; other apps may be run on the same federation. `host` is another address of the server.
    """

    def __init__(self, app, folder, nodes=3, host=HOST):
        self.app, self.folder, self.nodes, self.processes = app, folder, nodes, {}
        self.keys = folder / "keys"
        self.port, *self.node_ports = free_ports(1 + nodes + 3)
        home = folder / "home"
        self.environment = os.environ | {
            "PATH": f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}",
            # first this fedkeel, then what else was put first: another version of Flower
            "PYTHONPATH": os.pathsep.join(filter(None, [SOURCE, os.environ.get("PYTHONPATH")])),
            "HOME": str(home),
            "FLWR_HOME": str(home / ".flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "OMP_NUM_THREADS": "1",
        }
        (home / ".flwr").mkdir(parents=True)
        self.connect("fed", self.keys / "ca.crt")
        self.script("make_keys.sh", self.keys, str(nodes), host)

    def connect(self, name, certificate):
        """Another way for `flwr` to reach the server, trusting another authority."""
        with open(Path(self.environment["FLWR_HOME"]) / "config.toml", "a") as file:
            file.write(f'[superlink.{name}]\naddress = "{HOST}:{self.port}"\nroot-certificates = "{certificate}"\n')

    def script(self, name, *arguments):
        subprocess.run(["sh", self.app / name, *arguments], env=self.environment, check=True, capture_output=True)

    # ---- processes -----------------------------------------------------------------------------------------------
    def start(self, name, command, cwd=None, **more):
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                command, env=self.environment | more, cwd=cwd, stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip

    def superlink(self, host=HOST):
        up = self.log("superlink").count("Application startup complete")
        self.start("superlink", ["sh", self.app / "superlink.sh", self.keys, host, str(self.port)])
        self.wait_for(lambda: self.log("superlink").count("Application startup complete") > up, "the SuperLink")

    def register(self):
        for node in range(self.nodes):
            done = self.flwr("supernode", "register", str(self.keys / f"node-{node}.pub"), "fed")
            assert "registered" in done.stdout, done.stdout + done.stderr

    def node(self, number, *, name=None, keys=None, port=None, reach=None, more="", inside=()):
        """`reach`: where it finds the server; `more`: further settings of the node; `inside`: a command around it."""
        script = ["sh", self.app / "supernode.sh", keys or self.keys, str(number), reach or f"{HOST}:{self.port}"]
        command = [*inside, *script, str(self.node_ports[number if port is None else port]), more]
        self.start(name or f"node-{number}", command, FEDKEEL_STATE=str(self.folder / f"state-{number}"))

    def node_without_key(self, name, port):
        """It trusts the server, but does not say who it is."""
        tls = [f"--ssl-{what}" for what in ("ca-certfile", "certfile", "keyfile")]
        files = [self.keys / file for file in ("ca.crt", "server.crt", "server.key")]
        command = ["flower-supernode", "--superlink", f"{HOST}:{self.port}", "--root-certificates", files[0],
                   "--port", str(self.node_ports[port]), *(x for pair in zip(tls, files, strict=True) for x in pair),
                   "--node-config", "partition-id=0"]  # fmt: skip
        self.start(name, command)

    def flwr(self, *arguments):
        return subprocess.run(
            ["flwr", *arguments], env=self.environment, cwd=self.app, capture_output=True, text=True, timeout=PATIENCE,
            check=False,
        )  # fmt: skip

    def run(self, name, *, app=None, **settings):
        """`flwr run`, streaming into a log."""
        config = " ".join(f"{key.replace('_', '-')}={literal(value)}" for key, value in settings.items())
        self.start(name, ["flwr", "run", str(app or self.app), "fed", "--stream", "--run-config", config])

    def online(self):
        return self.flwr("supernode", "list", "fed", "--format", "json").stdout.count('"online"')

    # ---- the end -------------------------------------------------------------------------------------------------
    def signal(self, name, number):
        """To a process and all that come from it, some of which have sessions of their own."""
        for process in (self.processes[name].pid, *descendants(self.processes[name].pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)

    def kill(self, name):
        self.signal(name, signal.SIGKILL)
        self.processes.pop(name).wait()

    def stop(self, name):
        """As systemd and Docker do: one signal to the process that was started, and its time to end."""
        self.processes[name].terminate()
        self.processes.pop(name).wait(PATIENCE)

    def close(self):
        """End all that was started, also what a process started while it was being killed."""
        for name in list(self.processes):
            self.kill(name)
        while left := living_in(self.environment["FLWR_HOME"]):
            for process in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            time.sleep(0.1)

    # ---- what can be seen ----------------------------------------------------------------------------------------
    def log(self, name):
        file = self.folder / f"{name}.log"
        return file.read_text(errors="replace") if file.exists() else ""

    def wait_for(self, holds, what, pause=0.3):
        moved, latest, seen = time.monotonic(), time.monotonic() + 4 * PATIENCE, 0
        while not holds():
            if (written := sum(log.stat().st_size for log in self.folder.glob("*.log"))) != seen:
                moved, seen = time.monotonic(), written
            if time.monotonic() > min(moved + PATIENCE, latest):
                raise AssertionError(f"waited in vain for {what}\n{self.told()}")
            time.sleep(pause)

    def told(self):
        """The end of every log: what a failure is to be understood from."""
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"---- {log.name}\n" + "\n".join(self.log(log.stem).splitlines()[-15:]) for log in logs)


def descendants(process):
    """Children, their children, and so on."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(entry.parent.name)] = int(entry.read_text().rpartition(")")[2].split()[1])
    found = [process]
    for one in found:  # grows while it is gone through
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]


def living_in(home):
    """Processes whose FLWR_HOME this is, by which those of one deployment are known."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"FLWR_HOME={home}\0".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return found


def has_saved(out, round):
    """Whether a checkpoint of the round is there: only then does a server that is killed know of it."""
    return lambda: any(int(file.stem) >= round for file in (out / "checkpoint").glob("[0-9]*.safetensors"))


def is_done(out, rounds):
    return lambda: (out / "result.json").exists() and len(read_rounds(out)) == rounds


def literal(value):
    return str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else str(value)


@contextlib.contextmanager
def deployed(experiment, folder, host=HOST, listen=HOST):
    """A SuperLink that knows the keys of three nodes, none of which is started."""
    export(experiment, folder / "app")
    made = Deployment(folder / "app", folder, host=host)
    try:
        made.superlink(listen)
        made.register()
        yield made
    finally:
        made.close()

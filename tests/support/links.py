"""Links between a node and its server that can be cut: a relay that any machine can run, and a cable of its own."""

import contextlib
import os
import shutil
import socket
import subprocess
import threading

OPEN, CUT, TRUNCATING = "open", "cut", "truncating"
SHORT = 20_000  # bytes that a truncating link lets pass: a handshake and a beat of the heart, but no model


class Relay:
    """Hands bytes on between its own port and a server's.

    Cut, it drops what is connected and nothing answers at its port; truncating, it ends each connection in the middle
    of the first long upload.
    """

    def __init__(self, server):
        self.server, self.state, self.ended, self.pairs = server, OPEN, 0, set()
        self.lock = threading.Lock()
        self.listener, self.port = None, 0
        self.listen()

    def listen(self):
        self.listener = socket.create_server(("127.0.0.1", self.port))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, args=(self.listener,), daemon=True).start()

    def set(self, state):
        if state == CUT:
            hang_up(self.listener)
        elif self.state == CUT:
            self.listen()
        with self.lock:
            self.state, pairs, self.pairs = state, self.pairs, set()
        for pair in pairs:
            hang_up(*pair)

    def accept(self, listener):
        with contextlib.suppress(OSError):  # closed
            while True:
                self.join(listener.accept()[0])

    def join(self, near):
        try:
            far = socket.create_connection(("127.0.0.1", self.server))
        except OSError:
            return hang_up(near)
        with self.lock:
            self.pairs.add((near, far))
        threading.Thread(target=self.pump, args=(near, far, True), daemon=True).start()
        threading.Thread(target=self.pump, args=(far, near, False), daemon=True).start()

    def pump(self, source, sink, upward):
        passed = 0
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 14):
                passed += len(data)
                if upward and self.state == TRUNCATING and passed > SHORT:
                    sink.sendall(data[: len(data) // 2])
                    self.ended += 1
                    break
                sink.sendall(data)
        hang_up(source, sink)
        with self.lock:
            self.pairs -= {(source, sink), (sink, source)}

    def close(self):
        self.set(CUT)


def hang_up(*sockets):
    for one in sockets:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()


class Cable:
    """A network namespace, joined to this machine by a pair of virtual interfaces that can be pulled apart."""

    def __init__(self):
        number = os.getpid() % 60_000
        self.name, self.here, self.there = f"fk{number}", f"fka{number}", f"fkb{number}"
        self.host, self.guest = (
            f"10.{200 + number // 16384}.{number // 64 % 256}.{number % 64 * 4 + i}" for i in (1, 2)
        )
        self.inside = ("ip", "netns", "exec", self.name)

    def lay(self):
        ip("netns", "add", self.name)
        ip("link", "add", self.here, "type", "veth", "peer", "name", self.there, "netns", self.name)
        ip("addr", "add", f"{self.host}/30", "dev", self.here)
        ip("link", "set", self.here, "up")
        ip("-n", self.name, "addr", "add", f"{self.guest}/30", "dev", self.there)
        ip("-n", self.name, "link", "set", self.there, "up")
        ip("-n", self.name, "link", "set", "lo", "up")

    def pull(self):
        ip("link", "set", self.here, "down")

    def plug(self):
        ip("link", "set", self.here, "up")

    def remove(self):
        for what in (("link", "del", self.here), ("netns", "del", self.name)):
            with contextlib.suppress(subprocess.CalledProcessError):
                ip(*what)


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def forbidden():
    """Why namespaces cannot be made here; empty when they can."""
    if shutil.which("ip") is None:
        return "there is no ip command"
    cable = Cable()
    try:
        cable.lay()
    except subprocess.CalledProcessError as error:
        return f"network namespaces are not permitted: {error.stderr.decode().strip()}"
    finally:
        cable.remove()
    return ""

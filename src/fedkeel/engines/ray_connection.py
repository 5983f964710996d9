"""A Ray cluster: found or started, and how many workers it has room for."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from typing import Any

from fedkeel.errors import RequestError, RunError
from fedkeel.text import first_line


def count_workers(ray: Any, asked: int | None, cpus: float, gpus: float) -> int:
    """Count the workers that a cluster has room for, or refuse to start more."""
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    shares = [(name, share) for name, share in (("CPU", cpus), ("GPU", gpus)) if share]
    room = sum(min(int(has.get(name, 0.0) // share) for name, share in shares) for has in machines)
    if room < (asked or 1):
        each = " and ".join(f"{share:g} {name}" for name, share in shares)
        raise RequestError(
            f"this Ray cluster has room for {room} workers of {each} each, not for {asked or 1}.",
            f"--workers {room}"
            if room
            else "ask for fewer workers, or start Ray with more cores (ray start --num-cpus)",
        )
    return asked or room


@contextlib.contextmanager
def connected(cores: int | None = None) -> Iterator[Any]:
    """Ray, connected to the cluster of RAY_ADDRESS or started on this machine; left as it was found.

    Around several calls it is started once for all of them.
    """
    ray = import_ray()
    mine = not ray.is_initialized()
    if mine:
        address = os.environ.get("RAY_ADDRESS")
        start = {"address": address} if address else {"address": "local", "num_cpus": cores, "include_dashboard": False}
        try:
            require_listener(address or "")
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **start)
        except Exception as error:  # a late start is a plain one
            what = f"no Ray cluster at {address}" if address else "Ray did not start"
            raise RequestError(f"{what}: {first_line(error)}", "RAY_ADDRESS is host:port of a cluster") from error
    try:
        yield ray
    finally:
        if mine:
            ray.shutdown()


def require_listener(address: str) -> None:
    """Fail where nobody listens at host:port: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if port.isdecimal() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=10).close()


def import_ray() -> Any:
    # every worker says whether it takes a GPU; without this Ray warns that it will not hide them from those that do not
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # where Ray starts here: else it lets all others go first
    try:
        import ray
        import ray.exceptions
    except ModuleNotFoundError:
        raise RequestError("this needs a package that is not installed: ray", 'pip install "fedkeel[ray]"') from None
    if not hasattr(ray, "remote"):
        raise RunError("the module named ray is not Ray.", "is there a folder called ray in the current one?")
    return ray

"""What a site can find out before the day of training: keys, certificates, clock, data, disk, device, connection."""

from __future__ import annotations

import os
import re
import shutil
import socket
import ssl
import stat
import time
import tomllib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from fedkeel.core.round import init_client
from fedkeel.core.trees import state_bytes
from fedkeel.errors import FedkeelError, RequestError
from fedkeel.text import byte_size, in_one_line, plural
from fedkeel.written_values import read_toml_file

OK, WARNING, FAILED = "ok", "warning", "failed"
SOON = 14  # days before a certificate ends in which a site is warned
CLOCK = 60.0  # seconds by which clocks may differ
PATIENCE = 10.0  # seconds for each connection
SECRETS = ("ca.key", "server.key")


class Finding(NamedTuple):
    """One thing that was looked at: how it is, in one line, and what to do."""

    what: str
    state: str
    line: str
    hint: str = ""


def check_keys(keys: Path, client: int) -> Iterator[Finding]:
    """Look at the node's own key: it must be readable by its owner only, and fit the public half that was sent."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

    file = keys / f"node-{client}"
    make = f'ssh-keygen -t ecdsa -b 384 -N "" -f {file}'
    try:
        key = serialization.load_ssh_private_key(file.read_bytes(), None)
    except FileNotFoundError:
        yield Finding("key", FAILED, f"{file} is not there", f"{make}, and send {file}.pub to be registered")
        return
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        yield Finding("key", FAILED, f"{file} cannot be read: {in_one_line(error)}", f"{make}, and register its .pub")
        return
    if not isinstance(key, EllipticCurvePrivateKey):  # Flower signs with no other
        kind = key.__class__.__name__.strip("_").removesuffix("PrivateKey")
        line = f"{file} is a key of the kind {kind}, and Flower takes ECDSA keys only"
        yield Finding("key", FAILED, line, f"remove it; {make}, and register its .pub")
        return
    if stat.S_IMODE(file.stat().st_mode) & 0o077:
        yield Finding("key", WARNING, f"{file} can be read by others", f"chmod 600 {file}")
    public, plain = file.with_name(f"{file.name}.pub"), serialization.PublicFormat.OpenSSH
    own = key.public_key().public_bytes(serialization.Encoding.OpenSSH, plain).decode().split()[:2]
    if public.exists() and public.read_text(encoding="utf-8", errors="replace").split()[:2] != own:
        yield Finding("key", FAILED, f"{public} is of another key", "register the public half of this key")
    else:
        yield Finding("key", OK, f"{file}, {key.public_key().__class__.__name__.strip('_')}")
    for name in SECRETS:
        if (keys / name).exists():
            yield Finding("key", WARNING, f"{keys / name} lies here", "it belongs to the server alone: remove it here")


def check_certificates(keys: Path, now: datetime) -> Iterator[Finding]:
    """Look at the authority's certificate and at that of the node's own port: dates, issuer, key."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import serialization

    found: dict[str, x509.Certificate] = {}
    for name in ("ca.crt", "loopback.crt"):
        try:
            found[name] = x509.load_pem_x509_certificate((keys / name).read_bytes())
        except (OSError, ValueError) as error:
            hint = "ask the server's side for it" if name == "ca.crt" else "make_keys.sh makes one"
            yield Finding("certificate", FAILED, f"{keys / name} cannot be read: {in_one_line(error)}", hint)
            continue
        yield judge_dates(name, found[name].not_valid_before_utc, found[name].not_valid_after_utc, now)
    if len(found) < 2:
        return
    try:
        found["loopback.crt"].verify_directly_issued_by(found["ca.crt"])
        key = serialization.load_pem_private_key((keys / "loopback.key").read_bytes(), None)
        if key.public_key() != found["loopback.crt"].public_key():
            yield Finding("certificate", FAILED, "loopback.key is of another certificate", "copy both from one place")
    except (InvalidSignature, ValueError, TypeError):
        line = "loopback.crt is not of this authority, or its key cannot be read"
        yield Finding("certificate", FAILED, line, "make it again with the ca.crt of this federation")
    except OSError as error:
        yield Finding("certificate", FAILED, f"{keys / 'loopback.key'}: {error.strerror}", "copy it beside its .crt")


def judge_dates(name: str, begins: datetime, ends: datetime, now: datetime) -> Finding:
    """Say whether a certificate is valid now, and for how long."""
    left = (ends - now).total_seconds() / 86_400
    if now < begins:
        return Finding(
            "certificate", FAILED, f"{name} is valid from {begins:%Y-%m-%d %H:%M} UTC on", "is the clock right?"
        )
    if left <= 0:
        return Finding("certificate", FAILED, f"{name} ended on {ends:%Y-%m-%d}", "have it issued anew")
    soon = left < SOON
    line = f"{name} is valid until {ends:%Y-%m-%d}, {left:.0f} days"
    return Finding("certificate", WARNING if soon else OK, line, "have it issued anew before then" if soon else "")


def check_connection(keys: Path, superlink: str, now: datetime) -> Iterator[Finding]:
    """Reach the server as a node does, and compare clocks where it says what time it has."""
    host, _, port = superlink.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise RequestError(f"a SuperLink is HOST:PORT, not {superlink}", "for example: server.example.org:8000")
    name = host.removeprefix("[").removesuffix("]")  # of an address of IPv6
    try:
        trusted = ssl.create_default_context(cafile=str(keys / "ca.crt"))
        with (
            socket.create_connection((name, int(port)), PATIENCE) as plain,
            trusted.wrap_socket(plain, server_hostname=name) as link,
        ):
            certificate: Mapping[str, Any] = link.getpeercert() or {}
            link.sendall(f"HEAD / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            answer = link.recv(4096).decode("latin-1")
    except ssl.SSLCertVerificationError as error:
        line = f"{superlink} shows another certificate: {error.verify_message}"
        yield Finding("connection", FAILED, line, "is ca.crt of this federation, and HOST the name in its certificate?")
        return
    except OSError as error:  # of the network, or of TLS
        hint = "is the server up, and does a firewall let this port through?"
        yield Finding("connection", FAILED, f"{superlink} cannot be reached: {in_one_line(error)}", hint)
        return
    yield Finding("connection", OK, f"{superlink} answers over TLS")
    if certificate:
        begins, ends = (
            datetime.fromtimestamp(ssl.cert_time_to_seconds(certificate[name]), UTC)
            for name in ("notBefore", "notAfter")
        )
        yield judge_dates("the server's certificate", begins, ends, now)
    yield judge_clock(answer, now)


def judge_clock(answer: str, now: datetime) -> Finding:
    """Compare this clock with the time that an HTTP answer states."""
    stated = re.search(r"^date: *(.+?)\r?$", answer, re.IGNORECASE | re.MULTILINE)
    try:
        apart = abs((now - parsedate_to_datetime(stated[1])).total_seconds()) if stated else None
    except (ValueError, TypeError):
        apart = None
    if apart is None:
        return Finding("clock", WARNING, "the server does not say what time it has", "compare the clocks by hand")
    if apart > CLOCK:
        hint = "set the clock (ntp): certificates and Flower's messages are valid for a time"
        return Finding("clock", FAILED, f"the clocks differ by {apart:.0f} s", hint)
    return Finding("clock", OK, f"within {max(1, round(apart))} s of the server's")


def read_node_settings(text: str) -> dict[str, Any]:
    """Read settings as they are given to supernode.sh: data-dir="/data" device="cuda". Flower leaves out what does not
    look like this, such as a setting with spaces around its =; here it is refused."""
    setting, hint = r"""([\w.-]+)=("[^"]*"|'[^']*'|\S+)""", "data-dir=\"/data\" device='cuda', without spaces around ="
    pairs = re.findall(setting, text)
    if left := re.sub(setting, "", text).strip():
        raise RequestError(f"settings of a node cannot be read: {left}", hint)
    try:
        return {name: tomllib.loads(f"value = {value}")["value"] for name, value in pairs}
    except tomllib.TOMLDecodeError:
        raise RequestError(f"settings of a node cannot be read: {text}", hint) from None


def check_work(app: Path, client: int, settings: Mapping[str, Any], trust: bool) -> Iterator[Finding]:
    """Make the node of an exported app as it will be made: its data, its model, room for its state, its device."""
    from fedkeel.engines.flower.client import check_own_labels
    from fedkeel.engines.flower.site_scores import tell_few
    from fedkeel.federation.apps import node_of, read_app
    from fedkeel.federation.own_problem import columns_of

    state = os.environ.get("FEDKEEL_STATE") or f"~/.fedkeel/state-{client}"  # as supernode.sh has it
    settings = {"partition-id": client, "state-dir": state, **settings}
    try:
        config = read_toml_file(app / "pyproject.toml")["tool"]["flwr"]["app"]["config"]
    except (OSError, KeyError, tomllib.TOMLDecodeError) as error:
        yield Finding("app", FAILED, f"{app} is not an exported app: {in_one_line(error)}", "fedkeel export flower")
        return
    try:
        context: Any = SimpleNamespace(node_config=settings, run_config=config)
        experiment, level = read_app(app, trust)
        node = node_of(experiment, context, level)
        check_own_labels(node)
    except FedkeelError as error:
        yield Finding("data", FAILED, error.message, error.hint or "")
        return
    task = node.engine.task
    size = int(task.clients.sizes[client])
    classes = len(task.clients.rows(client, np.arange(size))[-1].unique()) if size else 0
    line = f"{plural(size, 'sample')} of {plural(classes, 'class')}"
    yield Finding("data", OK if size else FAILED, line, "" if size else "there are none")
    if columns := columns_of(task.problem.data):
        yield Finding("columns", OK, f"read as inputs, in this order: {', '.join(columns)}")
    few = tell_few(int(task.test.sizes[0])) if config.get("site-test") and task.test is not None else None
    if few is not None:
        yield Finding("test share", WARNING, few, "bring more samples, or ask for a larger site-test")
    yield Finding("device", OK, f"trains on {task.device}")
    folder = Path(str(settings["state-dir"])).expanduser()
    there = next(place for place in (folder, *folder.parents) if place.exists())
    free = shutil.disk_usage(there).free
    needed = 2 * state_bytes(init_client(node.engine.method, task.initial, task.buffers))  # the node keeps two states
    line = f"{byte_size(free)} free at {folder}, {byte_size(needed)} needed"
    yield Finding(
        "disk", OK if free > 2 * needed + (1 << 28) else FAILED, line, "free some space, or set FEDKEEL_STATE"
    )


def check_site(
    keys: Path,
    client: int,
    superlink: str | None = None,
    app: Path | None = None,
    settings: str = "",
    *,
    trust: bool = False,
    now: float | None = None,
) -> list[Finding]:
    """Look at everything that can be looked at with what is given."""
    here = datetime.fromtimestamp(time.time() if now is None else now, UTC)
    found = [*check_keys(keys, client), *check_certificates(keys, here)]
    if superlink is not None:
        found += check_connection(keys, superlink, here)
    if app is not None:
        found += check_work(app, client, read_node_settings(settings), trust)
    return found

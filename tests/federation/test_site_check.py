"""`fedkeel site check`: each thing that may be wrong at a site is found by name, with what to do."""

import base64
import contextlib
import ipaddress
import socket
import ssl
import threading
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason='needs flwr: pip install "fedkeel[flower]"')

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import NameOID

import fedkeel as fk
from fedkeel.data import load
from fedkeel.errors import RequestError
from fedkeel.federation.export import export
from fedkeel.federation.site_check import check_site, judge_clock, read_node_settings

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
PEM, PLAIN = serialization.Encoding.PEM, serialization.NoEncryption()


def certificate(folder, name, issuer=None, days=60, begins=NOW - timedelta(days=1)):
    """A certificate and its key, as make_keys.sh makes them; one without an issuer is an authority."""
    key = ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    by, signer = (subject, key) if issuer is None else issuer
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(by).public_key(key.public_key())
    builder = builder.serial_number(7).not_valid_before(begins).not_valid_after(NOW + timedelta(days=days))
    builder = builder.add_extension(x509.BasicConstraints(issuer is None, None), True)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    made = builder.add_extension(x509.SubjectAlternativeName(names), False).sign(signer, hashes.SHA256())
    (folder / f"{name}.crt").write_bytes(made.public_bytes(PEM))
    (folder / f"{name}.key").write_bytes(key.private_bytes(PEM, serialization.PrivateFormat.TraditionalOpenSSL, PLAIN))
    return subject, key


def node_key(folder, name="node-1"):
    key = ec.generate_private_key(ec.SECP384R1())
    (folder / name).write_bytes(key.private_bytes(PEM, serialization.PrivateFormat.OpenSSH, PLAIN))
    (folder / name).chmod(0o600)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    (folder / f"{name}.pub").write_bytes(public + b" a comment\n")


@pytest.fixture
def keys(tmp_path):
    folder = tmp_path / "keys"
    folder.mkdir()
    authority = certificate(folder, "ca")
    certificate(folder, "loopback", authority)
    (folder / "ca.key").unlink()
    node_key(folder)
    return folder


def found(keys, *rest, **how):
    findings = check_site(keys, 1, *rest, now=how.pop("now", NOW.timestamp()), **how)
    assert all(one.hint for one in findings if one.state != "ok")
    return findings


def wrong(findings):
    return [(one.what, one.state) for one in findings if one.state != "ok"]


def test_a_site_that_is_ready(keys):
    assert wrong(found(keys)) == []
    assert [one.what for one in found(keys)] == ["key", "certificate", "certificate"]


@pytest.mark.parametrize(
    ("spoil", "line"),
    [
        (lambda k: (k / "node-1").unlink(), "node-1 is not there"),
        (lambda k: (k / "node-1").write_text("junk"), "node-1 cannot be read"),
        (lambda k: (k / "node-1").chmod(0o644), "can be read by others"),
        (lambda k: node_key(k, "node-1") or (k / "node-1.pub").write_text("ssh-x AAAA"), "is of another key"),
        (lambda k: (k / "server.key").write_text("x"), "server.key lies here"),
        (lambda k: (k / "ca.crt").unlink(), "ca.crt cannot be read"),
        (lambda k: (k / "loopback.crt").write_text("junk"), "loopback.crt cannot be read"),
        (lambda k: (k / "loopback.key").unlink(), "loopback.key"),
        (lambda k: certificate(k, "loopback"), "not of this authority"),
        (lambda k: certificate(k, "ca"), "not of this authority"),
    ],
)
def test_what_may_be_wrong_with_keys(keys, spoil, line):
    spoil(keys)
    told = [one for one in found(keys) if one.state != "ok"]
    assert any(line in one.line for one in told), told


@pytest.mark.parametrize("kind", ["ed25519", "rsa", "unknown"])
def test_a_key_that_flower_takes_not_is_found(keys, kind):
    """What ssh-keygen makes by itself is one."""
    if kind == "unknown":
        body = b"openssh-key-v1\0" + b"".join(
            len(part).to_bytes(4, "big") + part for part in (b"none", b"none", b"")
        ) + (1).to_bytes(4, "big")  # fmt: skip
        public = b"".join(len(part).to_bytes(4, "big") + part for part in (b"ssh-xmss@openssh.com", b"1"))
        body += len(public).to_bytes(4, "big") + public + (8).to_bytes(4, "big") + bytes(8)
        text = b"-----BEGIN OPENSSH PRIVATE KEY-----\n%s\n-----END OPENSSH PRIVATE KEY-----\n"
        (keys / "node-1").write_bytes(text % base64.b64encode(body))
    else:
        key = ed25519.Ed25519PrivateKey.generate() if kind == "ed25519" else rsa.generate_private_key(65537, 2048)
        (keys / "node-1").write_bytes(key.private_bytes(PEM, serialization.PrivateFormat.OpenSSH, PLAIN))
    assert wrong(found(keys)) == [("key", "failed")]
    line = "cannot be read: Unsupported key type" if kind == "unknown" else "Flower takes ECDSA keys only"
    assert line in found(keys)[0].line


def test_certificates_end_and_begin(keys):
    def states(**apart):
        return [one.state for one in found(keys, now=(NOW + timedelta(**apart)).timestamp())[1:]]

    assert states() == ["ok", "ok"]
    assert states(days=50) == ["warning", "warning"]
    assert states(days=61) == ["failed", "failed"]
    assert states(days=-2) == ["failed", "failed"]


# ---- the connection ------------------------------------------------------------------------------------------------
@contextlib.contextmanager
def server(folder, answer):
    """A TLS server that answers each connection with these bytes."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.crt", folder / "server.key")
    listening = socket.create_server(("127.0.0.1", 0))

    def serve():
        with contextlib.suppress(OSError):
            while True:
                plain, _ = listening.accept()
                with contextlib.suppress(OSError), plain, context.wrap_socket(plain, server_side=True) as link:
                    link.recv(4096)
                    link.sendall(answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{listening.getsockname()[1]}"
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(5)


@pytest.fixture
def today(keys, tmp_path):
    """Keys that are valid now: a TLS handshake looks at the real clock."""
    now = datetime.now(UTC)
    days, begins = (now - NOW).days + 60, now - timedelta(days=1)
    authority = certificate(keys, "ca", days=days, begins=begins)
    certificate(keys, "loopback", authority, days=days, begins=begins)
    (tmp_path / "server").mkdir()
    certificate(tmp_path / "server", "server", authority, days=days, begins=begins)
    (keys / "ca.key").unlink()
    return now.timestamp()


def test_the_connection_and_the_clock(keys, tmp_path, today):
    said = f"HTTP/1.1 404 Not Found\r\ndate: {format_datetime(datetime.now(UTC), usegmt=True)}\r\n\r\n".encode()
    with server(tmp_path / "server", said) as address:
        findings = found(keys, address, now=today)
        assert wrong(findings) == []
        assert [one.what for one in findings[3:]] == ["connection", "certificate", "clock"]
        certificate(keys, "ca")  # another federation's
        assert ("connection", "failed") in wrong(found(keys, address, now=today))
    assert ("connection", "failed") in wrong(found(keys, address, now=today))  # it is gone
    for wrong_address in ("server", "server:x", "server:²", "127.0.0.1:70000"):
        with pytest.raises(RequestError, match="HOST:PORT"):
            found(keys, wrong_address, now=today)


def test_an_address_of_ipv6_stands_in_brackets(keys, today, monkeypatch):
    asked = []

    def connect(address, timeout):
        asked.append(address)
        raise ConnectionRefusedError("refused")

    monkeypatch.setattr("fedkeel.federation.site_check.socket.create_connection", connect)
    assert ("connection", "failed") in wrong(found(keys, "[::1]:8000", now=today))
    assert asked == [("::1", 8000)]


def test_clocks_that_differ():
    def judged(text):
        return judge_clock(text, NOW).state

    assert judged(f"HTTP/1.1 200 OK\r\nDate: {format_datetime(NOW + timedelta(seconds=5), usegmt=True)}\r\n") == "ok"
    assert judged(f"Date: {format_datetime(NOW - timedelta(hours=1), usegmt=True)}\r\n") == "failed"
    assert judged("HTTP/1.1 200 OK\r\n") == judged("date: soon\r\n") == judged("") == "warning"


# ---- the work ------------------------------------------------------------------------------------------------------
def test_data_device_and_disk_of_an_app(keys, tmp_path, monkeypatch):
    exp = fk.Experiment(dataset="digits", model="mlp", method="scaffold", rounds=1)
    app = tmp_path / "app"
    export(exp, app, data="folder", clients=3)
    data = load("digits")
    np.save(tmp_path / "train_images.npy", np.asarray(data.train_images)[:40])
    np.save(tmp_path / "train_labels.npy", np.asarray(data.train_labels)[:40])
    settings = f'data-dir="{tmp_path}" state-dir="{tmp_path}/state" device=\'cpu\''
    findings = found(keys, None, app, settings)
    assert wrong(findings) == []
    lines = {one.what: one.line for one in findings}
    assert lines["data"].startswith("40 samples of ")
    assert lines["device"] == "trains on cpu"
    assert "needed" in lines["disk"]
    monkeypatch.setenv("FEDKEEL_STATE", f"{tmp_path}/large")
    lines = {one.what: one.line for one in found(keys, None, app, f'data-dir="{tmp_path}"')}
    assert f"free at {tmp_path}/large," in lines["disk"]  # as supernode.sh takes it
    np.save(tmp_path / "train_images.npy", np.asarray(data.train_images)[:40] // 16)
    (bad,) = (one for one in found(keys, None, app, settings) if one.state == "failed")
    assert bad.line == "this node's inputs go from 0 to 15, where 0 to 255 is expected."
    assert wrong(found(keys, None, app, "")) == [("data", "failed")]
    assert wrong(found(keys, None, tmp_path, settings)) == [("app", "failed")]


def test_settings_are_those_of_the_script():
    assert read_node_settings("data-dir=\"/my data\" table='x.csv' n=3") == {
        "data-dir": "/my data", "table": "x.csv", "n": 3,
    }  # fmt: skip
    with pytest.raises(RequestError, match="cannot be read"):
        read_node_settings("data-dir=/data")
    for dropped in ('data-dir = "/x"', 'data-dir ="/x"', 'n=3 data-dir= "/x"', "data-dir"):  # Flower leaves these out
        with pytest.raises(RequestError, match="cannot be read: data-dir") as refused:
            read_node_settings(dropped)
        assert refused.value.hint.endswith("without spaces around =")


def test_the_command(fedkeel, keys):
    (keys / "node-1").chmod(0o644)
    done = fedkeel("site", "check", str(keys), "1")
    assert "can be read by others" in done.out
    assert "hint: chmod 600" in done.out
    (keys / "node-1").unlink()
    assert fedkeel("site", "check", str(keys), "1").code == 1
    gone = fedkeel("site", "check", str(keys / "none"), "1")
    assert gone.code == 2
    assert "there is no folder" in gone.err
    assert not Path("runs").exists()

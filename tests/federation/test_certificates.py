"""Certificates are renewed while a federation pauses: nodes come back by themselves, and the run loses nothing."""

import shutil
import ssl
import subprocess

import pytest

pytest.importorskip("flwr", reason='needs flwr: pip install "fedkeel[flower]"')

import torch
from deployments import HOST, MISSING, deployed, has_saved, is_done

import fedkeel as fk
from fedkeel.federation.export import read_template
from fedkeel.runs.finished_run import load_run
from fedkeel.runs.folder import read_rounds

pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not on this machine: {', '.join(MISSING)}")


def make_keys(folder, nodes):
    command = ["sh", "-c", read_template("make_keys.sh"), "make_keys.sh", str(folder), str(nodes), HOST]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def vouches(authority, *certificates):
    command = ["openssl", "verify", "-CAfile", str(authority), *map(str, certificates)]
    return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0


def test_renewed_certificates_are_trusted_by_those_who_have_the_old_authority(tmp_path):
    keys, before = tmp_path / "keys", tmp_path / "before"
    assert make_keys(keys, 2).returncode == 0
    shutil.copytree(keys, before)
    assert make_keys(keys, 3).returncode == 0
    for name in ("ca.crt", "server.crt", "loopback.crt"):
        assert (keys / name).read_bytes() != (before / name).read_bytes()
    for name in ("ca.key", "server.key", "node-0", "node-1"):
        assert (keys / name).read_bytes() == (before / name).read_bytes()
    assert (keys / "node-2.pub").exists()
    for authority in (keys, before):
        for issued in (keys, before):
            assert vouches(authority / "ca.crt", issued / "server.crt", issued / "loopback.crt")


def test_a_folder_without_the_authoritys_key_keeps_its_certificates(tmp_path):
    """As at a site: another authority, which nobody trusts, would take the place of the federation's."""
    assert make_keys(tmp_path, 1).returncode == 0
    (tmp_path / "ca.key").unlink()
    before = (tmp_path / "ca.crt").read_bytes()
    done = make_keys(tmp_path, 1)
    assert done.returncode == 1
    assert done.stderr.startswith("make_keys.sh: ca.key is not in")
    assert (tmp_path / "ca.crt").read_bytes() == before


@pytest.mark.slow
def test_a_run_goes_on_under_new_certificates(tmp_path):
    """SCAFFOLD, whose clients remember: the bits are those of a run that was never paused."""
    partition = fk.Dirichlet(alpha=0.5, clients=3)
    exp = fk.Experiment(
        dataset="digits", model="mlp", method="scaffold", partition=partition, rounds=3, participation=1.0, epochs=1,
        batch_size=50, lr=0.1,
    )  # fmt: skip
    out = tmp_path / "out"
    settings = {"out": str(out), "wait": 300.0, "deadline": 300.0, "minimum": 1.0}

    def shown():
        return ssl.get_server_certificate((HOST, made.port), ca_certs=str(made.keys / "ca.crt"))

    with deployed(exp, tmp_path) as made:
        for node in range(3):
            made.node(node)
        made.run("first", **settings)
        made.wait_for(has_saved(out, 1), "a round")
        old = shown()
        made.stop("superlink")
        made.processes.pop("first").wait(60)
        rounds = len(read_rounds(out))
        made.script("make_keys.sh", made.keys, "3", HOST)
        made.superlink()
        assert shown() == (made.keys / "server.crt").read_text() != old
        made.stop("node-0")  # its own port gets the new certificate, too; the others come back without a restart
        made.node(0)
        made.wait_for(lambda: made.online() == 3, "the nodes", pause=2.0)
        made.run("second", **settings)
        made.wait_for(is_done(out, 3), "the other rounds")
        log, starts = made.log("out"), [made.log(f"node-{i}").count("Starting Flower SuperNode") for i in range(3)]
    assert 1 <= rounds < 3
    assert f"scaffold: {rounds} of 3 rounds are done" in log
    assert "lost its state" not in log
    assert starts[1:] == [1, 1]  # they went on where they were
    serial, found = fk.run(exp, engine="serial"), load_run(out)
    for name, slot in serial.server.items():
        mine, yours = (getattr(x, "buffer", x) for x in (slot, found.server[name]))
        assert torch.equal(mine, yours), name

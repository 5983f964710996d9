"""Containers and units of an exported app: files that their programs read, and that name what is there."""

import re
import shutil
import subprocess

import pytest

import fedkeel as fk
from fedkeel.federation.export import export


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported") / "app"
    written = export(fk.Experiment(dataset="digits", method="fedavg"), folder, data="folder", clients=3)
    assert all(file.exists() for file in written)
    return folder


def test_the_compose_file_has_a_server_three_nodes_and_a_run(app):
    yaml = pytest.importorskip("yaml")
    found = yaml.safe_load((app / "deploy" / "compose.yaml").read_text())
    services = found["services"]
    assert services.keys() == {"keys", "superlink", "node-0", "node-1", "node-2", "run"}
    used = {one.partition(":")[0] for service in services.values() for one in service["volumes"] if one[0] != "$"}
    assert used == found["volumes"].keys()
    for number in range(3):
        node = services[f"node-{number}"]
        assert node["command"][:4] == ["sh", "supernode.sh", "/keys", str(number)]
        assert node["command"][-1] == 'data-dir="/data"'
        assert node["volumes"][-1].startswith(f"${{SITE_{number}:?")
        assert node["depends_on"] == {"keys": {"condition": "service_completed_successfully"}}
    scripts = re.findall(r"\w+\.sh\b", (app / "deploy" / "compose.yaml").read_text())
    assert scripts
    assert all((app / script).exists() for script in scripts)


def test_keys_are_in_no_image(app):
    copied = re.findall(r"^COPY (.+)$", (app / "deploy" / "Dockerfile").read_text(), re.M)
    assert copied == ["--chown=fedkeel *.py *.toml *.sh *.md /app/"]


def test_units_can_be_loaded(app, tmp_path):
    units = sorted((app / "deploy").glob("fedkeel-*"))
    assert len(units) == 4
    run = re.search(r"OUT=(\S+)", (app / "deploy" / "fedkeel-status.service").read_text())[1]
    assert f'out = "~{run.removeprefix("/var/lib/fedkeel")}"' in (app / "pyproject.toml").read_text()
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze")
    for unit in units:  # the programs that they start are not on this machine
        text = re.sub(r"/opt/fedkeel/venv/bin/fedkeel", "/bin/sh", unit.read_text())
        (tmp_path / unit.name).write_text(text.replace("User=fedkeel\n", ""))
    names = [str(tmp_path / unit.name).replace("@.", "@3.") for unit in units]
    said = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *names], capture_output=True, text=True, timeout=60, check=False
    )
    wrong = [line for line in said.stderr.splitlines() if "fedkeel" in line and "node.env" not in line]
    assert not wrong, wrong

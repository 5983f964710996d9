"""Containers and units of an exported app: files that their programs read, and that name what is there."""

import fnmatch
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import torch
from deployments import HOST, MISSING, Deployment, is_done

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
    commands = re.findall(r"^# {3}docker compose .+$", (app / "deploy" / "compose.yaml").read_text(), re.M)
    assert commands
    assert not any("exit" in command for command in commands)  # they would end when `keys` does
    scripts = re.findall(r"\w+\.sh\b", (app / "deploy" / "compose.yaml").read_text())
    assert scripts
    assert all((app / script).exists() for script in scripts)


def test_two_apps_of_the_same_experiment_share_no_volume_and_no_image(app, tmp_path):
    yaml = pytest.importorskip("yaml")
    export(fk.Experiment(dataset="digits", method="fedavg"), tmp_path / "other", data="folder", clients=3)
    one, other = (yaml.safe_load((place / "deploy/compose.yaml").read_text()) for place in (app, tmp_path / "other"))
    assert re.fullmatch(r"[a-z0-9][a-z0-9_-]*", one["name"])  # what docker compose takes
    assert one["name"] != other["name"]  # it stands before the names of volumes
    for found in (one, other):
        assert {service["image"] for service in found["services"].values()} == {found["name"]}


def test_the_image_has_the_versions_that_wrote_the_app_and_extras_that_exist(app):
    text = (app / "deploy" / "Dockerfile").read_text()
    ((extras, version),) = re.findall(r'^ARG FEDKEEL="fedkeel\[(.+)\]==(.+)"$', text, re.M)
    assert version == fk.__version__
    assert re.findall(r'^ARG TORCH="torch==(.+)"$', text, re.M) == [torch.__version__.partition("+")[0]]
    with open(Path(__file__).parents[2] / "pyproject.toml", "rb") as file:
        assert set(extras.split(",")) <= tomllib.load(file)["project"]["optional-dependencies"].keys()


def test_the_user_of_the_image_owns_what_is_mounted(app):
    """A new volume has the owner that its folder has in the image."""
    yaml = pytest.importorskip("yaml")
    text = (app / "deploy" / "Dockerfile").read_text()
    owned = re.search(r"chown -R fedkeel (.+)", text)[1].split()
    made = re.search(r"mkdir -p (.+?)(?: \\\n| &&)", text)[1].split()
    found = yaml.safe_load((app / "deploy" / "compose.yaml").read_text())
    mounts = {one for service in found["services"].values() for one in service["volumes"] if one[0] != "$"}
    for folder in {mount.split(":")[1] for mount in mounts}:
        assert folder in made
        assert any(f"{folder}/".startswith(f"{place}/") for place in owned)


def test_keys_are_in_no_image(app):
    copied = re.findall(r"^COPY (.+)$", (app / "deploy" / "Dockerfile").read_text(), re.M)
    assert copied == ["pyproject.toml *.whl /wheels/", "--chown=fedkeel *.py *.toml *.sh *.md /app/"]
    patterns = copied[1].split()[1:-1]
    for file in app.iterdir():  # and nothing of the app is left out
        assert file.is_dir() or any(fnmatch.fnmatch(file.name, pattern) for pattern in patterns), file.name


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


# ---- the same lines, without a container -----------------------------------------------------------------------------
def as_words(command):
    """A command of a compose file as its program gets it."""
    words = shlex.split(command) if isinstance(command, str) else command
    return [word.replace("$$", "$") for word in words]


def exec_start(unit, client, settings):
    """The words of a unit's command; ${NAME} is one word, whatever is in it."""
    (line,) = re.findall(r"^ExecStart=(.+)$", unit.read_text(), re.M)
    return [settings.get(word, word).replace("%i", str(client)) for word in line.split()]


@pytest.mark.slow
@pytest.mark.skipif(bool(MISSING), reason=f"not on this machine: {', '.join(MISSING)}")
def test_the_commands_of_the_compose_file_and_of_a_unit_train(tmp_path):
    """Only places and ports are others: all services run on one machine here."""
    yaml = pytest.importorskip("yaml")
    partition = fk.Iid(clients=3)
    export(fk.Experiment(dataset="digits", model="logistic", partition=partition, rounds=1, epochs=1), tmp_path / "app")
    services = yaml.safe_load((tmp_path / "app" / "deploy" / "compose.yaml").read_text())["services"]
    made = Deployment(tmp_path / "app", tmp_path)
    shutil.rmtree(made.keys)
    made.keys.mkdir()
    here = {"superlink:8000": f"{HOST}:{made.port}", "8000": str(made.port), "0.0.0.0": HOST}
    here |= dict.fromkeys(("/etc/fedkeel/keys", "/keys"), str(made.keys))
    here |= dict.fromkeys(("/opt/fedkeel/app", "/app"), str(made.app))

    def start(name, words, port=0):
        places = here | {"9094": str(port)}
        pattern = "|".join(map(re.escape, places))
        made.start(name, [re.sub(pattern, lambda found: places[found[0]], word) for word in words], cwd=made.app)

    def is_healthy():
        start("health", as_words(services["superlink"]["healthcheck"]["test"][1:]))
        return made.processes.pop("health").wait() == 0

    try:
        start("keys", as_words(services["keys"]["command"]))
        assert made.processes.pop("keys").wait() == 0, made.told()
        start("superlink", as_words(services["superlink"]["command"]))
        made.wait_for(is_healthy, "the SuperLink", pause=1.0)
        for node in range(2):
            start(f"node-{node}", as_words(services[f"node-{node}"]["command"]), made.node_ports[node])
        unit = made.app / "deploy" / "fedkeel-supernode@.service"
        words = exec_start(unit, 2, {"${SUPERLINK}": "superlink:8000", "${SETTINGS}": 'device="cpu"'})
        start("node-2", words, made.node_ports[2])
        start("run", as_words(services["run"]["command"]))
        (out,) = re.findall(r'^out = "~/(.+?)"', (made.app / "pyproject.toml").read_text(), re.M)
        made.wait_for(is_done(tmp_path / "home" / out, 1), "the run")
    finally:
        made.close()

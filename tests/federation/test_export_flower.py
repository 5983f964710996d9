"""What `fedkeel export flower` writes, and that its defaults are the careful ones."""

import os
import stat
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
import typer
from torch import nn
from typer.testing import CliRunner

import fedkeel as fk
from fedkeel.cli import pages
from fedkeel.cli.flower import flower
from fedkeel.errors import ExperimentError, FolderError, RequestError
from fedkeel.federation.export import export


def experiment(**changes):
    return fk.Experiment(dataset="digits", method="fedfft-d", rounds=7, **changes)


class OnlyHere:
    clients = 2

    def divide(self, labels, key, *, groups=None):
        return [range(10), range(10, 20)]


def test_the_app_holds_the_experiment_and_little_else(tmp_path):
    export(experiment(), tmp_path / "app")
    data = tomllib.loads((tmp_path / "app" / "experiment.toml").read_text())
    assert fk.Experiment.load(data).fingerprint() == experiment().fingerprint()
    glue = [(tmp_path / "app" / name).read_text() for name in ("pyproject.toml", "client_app.py", "server_app.py")]
    assert sum(text.count("\n") for text in glue) <= 60
    app = tomllib.loads(glue[0])["tool"]["flwr"]["app"]
    assert app["components"] == {"serverapp": "server_app:app", "clientapp": "client_app:app"}
    assert experiment().fingerprint() in app["config"]["out"]
    for text in glue[1:]:
        compile(text, "app", "exec")


@pytest.mark.parametrize(("how", "nodes"), [({}, 20), ({"data": "folder", "clients": 4}, 4)])
def test_the_readme_starts_as_many_nodes_as_there_are_clients(tmp_path, how, nodes):
    """With fewer, the server would wait for the others."""
    export(experiment(), tmp_path / "app", **how)
    text = (tmp_path / "app" / "README.md").read_text()
    assert f"make_keys.sh keys {nodes} " in text
    assert text.count(f"in $(seq 0 {nodes - 1}); do") == 2
    assert "{" not in text


def test_the_readme_touches_no_settings_but_its_own(tmp_path):
    """A second app, or the same commands again, must not write a table twice into the user's Flower settings."""
    export(experiment(), tmp_path / "app")
    commands = (tmp_path / "app" / "README.md").read_text().partition("```sh\n")[2].partition("```")[0]
    config = [line for line in commands.splitlines() if "config.toml" in line]
    assert config == ['  > "$FLWR_HOME/config.toml"']
    assert commands.startswith('export FLWR_HOME="$HOME/.flwr$(pwd | tr / -)"')
    assert "until " not in commands  # it would wait for ever, and say nothing, where the server cannot start


def test_the_readme_says_what_a_node_is_told_about_its_data(tmp_path):
    readme = {}
    for data in ("partition", "folder", "wards:read"):
        export(experiment(), tmp_path / data[:4], data=data, clients=0 if data == "partition" else 4)
        readme[data] = (tmp_path / data[:4] / "README.md").read_text()
    assert "data-dir" not in readme["partition"]
    assert 'supernode.sh keys $i 127.0.0.1:8000 $((9094 + i)) "data-dir=\\"/data/site-$i\\"" &' in readme["folder"]
    assert "`train_images.npy`" in readme["folder"]
    assert "uint8 samples of shape (8, 8) from 0 to 255" in readme["folder"]
    assert "`wards:read` reads with the node's settings" in readme["wards:read"]


def test_two_exports_of_one_experiment_do_not_share_a_run_folder(tmp_path):
    outs = []
    for name in ("one", "other"):
        export(experiment(), tmp_path / name)
        app = tomllib.loads((tmp_path / name / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
        outs.append(app["config"]["out"])
    assert outs[0] != outs[1]
    assert all(experiment().fingerprint() in out for out in outs)


# ---- the script of a node ------------------------------------------------------------------------------------------
def run_node(tmp_path, program, **environment):
    """supernode.sh with another program in place of Flower's."""
    export(experiment(), tmp_path / "app")
    (tmp_path / "keys").mkdir()
    fake = tmp_path / "flower-supernode"
    fake.write_text(f"#!/bin/sh\necho started >> {tmp_path}/starts\n{program}\n")
    fake.chmod(0o755)
    settings = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "FEDKEEL_RETRY_PAUSE": "0"} | environment
    script = ["sh", str(tmp_path / "app" / "supernode.sh"), str(tmp_path / "keys"), "0", "127.0.0.1:1"]
    return subprocess.Popen(script, env=settings, stderr=subprocess.PIPE, text=True)


def test_a_node_that_flower_refuses_to_activate_is_started_again(tmp_path):
    """Killed and restarted within a minute, it still counts as connected."""
    count = f"[ $(wc -l < {tmp_path}/starts) -ge 3 ]"
    node = run_node(tmp_path, count)
    _, told = node.communicate(timeout=60)
    assert node.returncode == 0
    assert (tmp_path / "starts").read_text() == "started\n" * 3
    assert told.count("starting it again in 0 s") == 2


def test_a_node_that_never_starts_ends_with_its_code(tmp_path):
    node = run_node(tmp_path, "exit 7", FEDKEEL_RETRIES="2")
    node.communicate(timeout=60)
    assert node.returncode == 7
    assert (tmp_path / "starts").read_text() == "started\n" * 3


def test_a_node_is_run_so_that_its_process_ends_with_it(tmp_path):
    (tmp_path / "python").write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/arguments\n')
    (tmp_path / "python").chmod(0o755)
    node = run_node(tmp_path, "exit 7")
    node.communicate(timeout=60)
    assert node.returncode == 0
    assert (tmp_path / "arguments").read_text().startswith("-m fedkeel.federation.supernode --superlink 127.0.0.1:1 ")


def test_no_thread_keeps_a_node_that_has_left(tmp_path):
    """Flower's own port has one that waits for ever."""
    (tmp_path / "hanging.py").write_text(
        "import sys, threading\n\n\ndef left():\n    threading.Thread(target=threading.Event().wait).start()\n\n\n"
        "def refused():\n    left()\n    sys.exit(7)\n\n\ndef crashed():\n    left()\n    raise OSError('no room')\n"
    )
    place = tmp_path / "hanging-1.dist-info"
    place.mkdir()
    (place / "METADATA").write_text("Metadata-Version: 2.1\nName: hanging\nVersion: 1\n")
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{Path(fk.__file__).parents[1]}"}
    for end, code, told in (("left", 1, ""), ("refused", 7, ""), ("crashed", 1, "OSError: no room\n")):
        (place / "entry_points.txt").write_text(f"[console_scripts]\nflower-supernode = hanging:{end}\n")
        command = [sys.executable, "-m", "fedkeel.federation.supernode"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr[-len(told) :] if told else done.stderr) == (code, told)


def test_stopping_the_script_stops_the_node(tmp_path):
    node = run_node(tmp_path, f"echo $$ > {tmp_path}/pid\nexec sleep 600")
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        time.sleep(0.05)
    node.terminate()
    node.communicate(timeout=60)
    assert node.returncode == 143
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_tls_and_authentication_are_on(tmp_path):
    export(experiment(), tmp_path / "app")
    server, node = ((tmp_path / "app" / name).read_text() for name in ("superlink.sh", "supernode.sh"))
    assert "--enable-supernode-auth" in server
    assert "--ssl-certfile" in server
    assert "--root-certificates" in node
    assert "--auth-supernode-private-key" in node
    assert "server.key" not in node  # the server's key stays with the server
    for path in filter(Path.is_file, (tmp_path / "app").rglob("*")):
        assert "insecure" not in path.read_text()
        assert not stat.S_IMODE(path.stat().st_mode) & stat.S_IWOTH


def test_names_with_quotes_do_not_break_the_file(tmp_path):
    odd = fk.method('my "method" \\ {x}', weights=fk.BySize())
    export(fk.Experiment(dataset="digits", method=odd), tmp_path / "app")
    assert tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())["project"]["name"] == "my-method-x-digits"


def test_what_cannot_be_exported(tmp_path, toy):
    with pytest.raises(ExperimentError, match="made in a program cannot travel"):
        export(fk.Experiment(problem=toy), tmp_path / "a")
    with pytest.raises(RequestError, match="unknown source of data: folders"):
        export(experiment(), tmp_path / "a", data="folders")
    with pytest.raises(RequestError, match="how many clients"):
        export(experiment(), tmp_path / "a", data="folder")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("precious")
    with pytest.raises(FolderError, match="not empty"):
        export(experiment(), tmp_path / "full")
    assert [path.name for path in tmp_path.iterdir()] == ["full"]
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["thesis.tex"]


RULES = """
from dataclasses import dataclass
import fedkeel as fk
import exported_amounts


@dataclass(frozen=True)
class Halve(fk.Rule):
    def step(self, tree, client, at):
        return exported_amounts.HALF * tree, client


def halved() -> fk.Method:
    return fk.method("halved", gradient=[Halve()], weights=fk.BySize())
"""
NETS = "from torch import nn\n\n\ndef net(classes, shape) -> nn.Module:\n    return nn.Linear(64, classes)\n"
PARTS = """
class Whole:
    clients = 1

    def divide(self, labels, key, *, groups=None):
        return [range(len(labels))]
"""
OWN = {"rules": RULES, "amounts": "from exported_deep import *\nHALF = 0.5\n", "nets": NETS, "parts": PARTS}


def test_own_code_travels_with_what_it_imports_from_beside_it(fedkeel, monkeypatch, tmp_path):
    """The modules of a rule, a network and a partition; where the app alone is, they are found in it."""
    for name, text in OWN.items():
        Path(f"exported_{name}.py").write_text(text)
    Path("exported_deep").mkdir()
    Path("exported_deep/__init__.py").touch()
    settings = {"method": "exported_rules:halved", "model": "exported_nets:net", "partition": "exported_parts:Whole"}
    Path("e.toml").write_text("".join(f'{key} = "{value}"\n' for key, value in settings.items()) + 'dataset="digits"\n')
    done = fedkeel("export", "flower", "e.toml", "app", "--trust")
    assert done.code == 0
    assert "exported_deep does not travel with the app: install it on every machine" in done.err
    assert {path.stem for path in Path("app").glob("exported_*")} == {f"exported_{name}" for name in OWN}
    for name in OWN:
        Path(f"exported_{name}.py").unlink()
        monkeypatch.delitem(sys.modules, f"exported_{name}", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path / "app"))
    data = tomllib.loads((tmp_path / "app" / "experiment.toml").read_text())
    assert "Halve()" in map(repr, fk.Experiment.load(data, trust=True).plan.method.rules)


@pytest.mark.parametrize(
    "changes", [{"model": nn.Linear(64, 10)}, {"partition": OnlyHere()}], ids=["model", "partition"]
)
def test_what_only_a_program_has_does_not_travel(tmp_path, changes):
    with pytest.raises(ExperimentError, match="what was made in a program cannot travel: python:"):
        export(experiment(**changes), tmp_path / "app")
    assert not (tmp_path / "app").exists()


def command_line():
    app = typer.Typer()
    app.callback()(lambda: None)
    pages.add(app, flower)
    return app


def test_the_command(tmp_path):
    file = tmp_path / "experiment.toml"
    file.write_text('dataset = "digits"\nmethod = ["fedavg", "fedsam"]\n')
    arguments = ["flower", str(file), str(tmp_path / "app"), "--set", "lr=0.05", "--data", "folder", "--clients", "4"]
    twice = CliRunner().invoke(command_line(), arguments)
    assert isinstance(twice.exception, RequestError)
    assert "has 2 runs" in twice.exception.message
    done = CliRunner().invoke(command_line(), [*arguments, "--method", "fedsam"])
    assert done.exit_code == 0
    data = tomllib.loads((tmp_path / "app" / "experiment.toml").read_text())
    assert data["lr"] == 0.05
    config = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert (config["data"], config["clients"]) == ("folder", 4)


def test_clients_of_an_app_need_data_of_their_own(fedkeel):
    Path("e.toml").write_text('dataset = "digits"\n')
    done = fedkeel("export", "flower", "e.toml", "app", "--clients", "12")
    assert done.code == 2
    assert "--data folder" in done.err
    assert not Path("app").exists()

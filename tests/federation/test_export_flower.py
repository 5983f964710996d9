"""What `fedkeel export flower` writes, and that its defaults are the careful ones."""

import stat
import tomllib
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import fedkeel as fk
from fedkeel.cli import pages
from fedkeel.cli.flower import flower
from fedkeel.errors import ExperimentError, FolderError, RequestError
from fedkeel.federation.export import export


def experiment(**changes):
    return fk.Experiment(dataset="digits", method="fedfft-d", rounds=7, **changes)


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
    assert "{" not in text.replace("${FLWR_HOME:-$HOME/.flwr}", "")


def test_tls_and_authentication_are_on(tmp_path):
    export(experiment(), tmp_path / "app")
    server, node = ((tmp_path / "app" / name).read_text() for name in ("superlink.sh", "supernode.sh"))
    assert "--enable-supernode-auth" in server
    assert "--ssl-certfile" in server
    assert "--root-certificates" in node
    assert "--auth-supernode-private-key" in node
    assert "server.key" not in node  # the server's key stays with the server
    for path in (tmp_path / "app").iterdir():
        assert "insecure" not in path.read_text()
        assert not stat.S_IMODE(path.stat().st_mode) & stat.S_IWOTH


def test_names_with_quotes_do_not_break_the_file(tmp_path):
    odd = fk.method('my "method" \\ {x}', weights=fk.BySize())
    export(fk.Experiment(dataset="digits", method=odd), tmp_path / "app")
    assert tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())["project"]["name"] == "my-method-x-digits"


def test_what_cannot_be_exported(tmp_path, toy):
    with pytest.raises(ExperimentError, match="problem from Python"):
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

"""The run of a federation goes on as one only: this machine has other data than the sites."""

import json

import numpy as np
import pytest

pytest.importorskip("flwr", reason='needs flwr: pip install "fedkeel[flower]"')

from federations import InProcess, train
from federations import experiment as make_experiment
from federations import problem as make_problem
from typer.testing import CliRunner

import fedkeel as fk
from fedkeel.cli.main import app as commands
from fedkeel.data import load
from fedkeel.engines.flower.checks import Terms
from fedkeel.errors import FolderError
from fedkeel.federation.apps import node_of, serve
from fedkeel.runs.folder import resume_command


def experiment(rounds=2):
    return fk.Experiment(
        dataset="digits", model="logistic", partition="iid:clients=3", rounds=rounds, epochs=1, participation=1.0
    )


def serve_sites(folder, rounds=2):
    """Train on data of the sites' own: other samples than those of the experiment's partition."""
    data = load("digits")
    for client in range(3):
        place = folder / str(client)
        place.mkdir(exist_ok=True)
        np.save(place / "train_images.npy", np.asarray(data.train_images)[client * 50 : client * 50 + 40])
        np.save(place / "train_labels.npy", np.asarray(data.train_labels)[client * 50 : client * 50 + 40])
    grid = InProcess(
        experiment(rounds),
        node_of=lambda context: node_of(experiment(rounds), context),
        settings=lambda client: {"data-dir": str(folder / str(client))},
        run_config={"data": "folder", "clients": 3},
    )
    return serve(experiment(rounds), grid, out=folder / "run", source="folder", clients=3, wait=0.0)


def files_of(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_no_other_way_goes_on_with_the_run_of_a_federation(tmp_path):
    serve_sites(tmp_path)
    out, before = tmp_path / "run", files_of(tmp_path)
    more = experiment(4)
    for go_on in (
        lambda: fk.run(more, out=out),
        lambda: fk.run_together([more, more.with_(seed=1)], out=[out, tmp_path / "other"]),
    ):
        with pytest.raises(FolderError, match=r"run is the run of a federation: ") as refused:
            go_on()
        assert refused.value.hint.startswith("call `flwr run` again")
    said = CliRunner().invoke(commands, ["resume", str(out), "--rounds", "4"])
    assert "is the run of a federation" in str(said.exception)
    assert {path: text for path, text in files_of(tmp_path).items() if path in before} == before
    assert serve_sites(tmp_path, 4).records[-1].round == 4


def test_the_run_of_a_federation_is_read_like_any_other(tmp_path):
    serve_sites(tmp_path)
    out = str(tmp_path / "run")
    assert len(fk.load_run(out).records) == 2
    for command in (["report", out], ["export", "model", out], ["analyse", out], ["compare", out]):
        here = ["--out", str(tmp_path / "page.html")] if command[0] == "report" else []
        here = [str(tmp_path / "model.safetensors")] if command[0] == "export" else here
        said = CliRunner().invoke(commands, [*command, *here])
        assert said.exit_code == 0, (command, said.output, said.exception)
    assert resume_command(tmp_path / "run") == "`flwr run`"


def test_states_that_stay_on_the_nodes_are_not_gone_on_with(tmp_path):
    exp = make_experiment(make_problem(), "scaffold")
    train(exp.with_(rounds=2), tmp_path / "run", terms=Terms(copy=False))
    with pytest.raises(FolderError, match="is the run of a federation"):
        fk.run(exp, out=tmp_path / "run", engine="serial")


def test_a_run_of_an_older_version_is_known_by_its_clients_sizes(tmp_path):
    serve_sites(tmp_path)
    file = tmp_path / "run" / "environment.json"
    file.write_text(json.dumps({n: v for n, v in json.loads(file.read_text()).items() if n != "federation"}))
    before = files_of(tmp_path / "run")
    with pytest.raises(FolderError, match="clients with 120 samples in all, and these have 1442") as told:
        fk.run(experiment(4), out=tmp_path / "run")
    assert "`flwr run`" in told.value.hint
    assert files_of(tmp_path / "run") == before

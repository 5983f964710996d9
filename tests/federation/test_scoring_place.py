"""Models are scored where the data are: what the server would score on data that it lacks is refused or left out."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional

pytest.importorskip("flwr", reason='needs flwr: pip install "fedkeel[flower]"')

from federations import InProcess
from typer.testing import CliRunner

import fedkeel as fk
from fedkeel.cli.main import app as commands
from fedkeel.errors import ExperimentError, RequestError
from fedkeel.federation.apps import node_of, serve
from fedkeel.federation.export import export


def experiment(changes=None, **settings):
    one = torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64)
    problem = fk.Problem(
        model=torch.nn.Linear(2, 2), loss=functional.cross_entropy, clients=[one], classes=2, **changes or {}
    )
    given = dict(problem=problem, method="fedavg", rounds=2, participation=1.0, epochs=1, batch_size=4, lr=0.1)
    return fk.Experiment(**given | settings)


def write_sites(folder):
    for client in range(3):
        rows = [f"{(7 * row + client) % 5},{row % 3},{row % 2}" for row in range(10)]
        (folder / f"site-{client}").mkdir()
        (folder / f"site-{client}" / "t.csv").write_text("\n".join(["x,y,label", *rows, ""]))


def train(exp, folder, source="folder", **how):
    config = {
        "data": source,
        "clients": 3,
        "columns": "x,y",
        "label": "label",
        "site-test": how.get("site_test", 0.0),
    }
    grid = InProcess(
        fk.Experiment(dataset="digits", model="logistic", partition="iid:clients=3"),
        node_of=lambda context: node_of(exp, context),
        settings=lambda client: {"data-dir": str(folder / f"site-{client}")},
        run_config=config,
    )
    return serve(exp, grid, out=folder / "run", source=source, clients=3, wait=0.0, config=config, **how)


def test_validation_of_data_that_the_server_cannot_see_is_refused(tmp_path):
    write_sites(tmp_path)
    with pytest.raises(RequestError, match="the server, which cannot see the nodes' own data") as refused:
        train(experiment(validation=0.2), tmp_path)
    assert "site-test" in refused.value.hint
    assert not (tmp_path / "run").exists()


def test_an_app_with_such_validation_is_not_written(tmp_path):
    exp = fk.Experiment(dataset="digits", model="logistic", partition="iid:clients=3", validation=0.2)
    with pytest.raises(RequestError, match=r"validation = 0\.2"):
        export(exp, tmp_path / "app", data="folder", clients=3)
    export(exp, tmp_path / "app")


def test_metrics_of_all_predictions_are_left_out_where_the_sites_test(tmp_path, caplog):
    write_sites(tmp_path)
    done = train(experiment({"metrics": ["f1", "auc"]}), tmp_path, site_test=0.3)
    assert "f1" not in done.records[-1].extra
    assert done.records[-1].accuracy is not None
    assert 0 <= done.records[-1].extra["auc"] <= 1  # the sites count for it
    told = [line for line in caplog.messages if "all predictions" in line]
    assert told == ["the sites test the model, so nothing measures what needs all predictions: f1"]


def test_clients_own_models_are_not_judged_on_data_of_the_nodes_own(tmp_path):
    write_sites(tmp_path)
    with pytest.raises(ExperimentError, match="no test sets of their own") as refused:
        train(experiment(evaluation={"share": 0.2}), tmp_path)
    assert refused.value.hint.startswith("leave out evaluation; site-test = 0.2 ")


def test_a_problem_of_a_program_is_named_to_be_exported(tmp_path):
    fk.run(experiment(rounds=1), out=tmp_path / "run", engine="serial")
    said = CliRunner().invoke(commands, ["export", "flower", str(tmp_path / "run"), str(tmp_path / "app")])
    assert said.exit_code != 0
    assert "--problem" not in said.output + str(said.exception)
    assert "fedkeel export flower MODULE:NAME DIR" in said.output + str(said.exception)


def test_labels_of_data_by_name_are_counted_at_the_nodes(tmp_path, monkeypatch):
    def read(settings):
        return {"x": np.ones((8, 2), np.float32), "labels": np.arange(8) % 2}

    class Named(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x)

    read.__module__ = "own_named"
    monkeypatch.setitem(sys.modules, "own_named", SimpleNamespace(read=read, __name__="own_named"))
    one = {"x": torch.zeros(1, 2), "labels": torch.zeros(1, dtype=torch.int64)}
    problem = fk.Problem(model=Named(2, 2), loss=functional.cross_entropy, clients=[one], classes=2)
    done = train(experiment(problem=problem, method="feddisco", rounds=1), tmp_path, source="own_named:read")
    assert done.records[-1].selected == [0, 1, 2]
    assert done.records[-1].absent == []

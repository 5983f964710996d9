"""Labels that the network has no output for are refused before training: by the site's own check, and when it joins."""

import sys

import pytest

pytest.importorskip("flwr", reason='needs flwr: pip install "fedkeel[flower]"')

from federations import InProcess

import fedkeel as fk
from fedkeel.errors import RunError
from fedkeel.federation.apps import node_of, read_app, serve
from fedkeel.federation.export import export
from fedkeel.federation.site_check import check_work
from fedkeel.problems.given import find_problem

MODULE = """import torch
import fedkeel as fk

problem = fk.Problem(
    model=torch.nn.Linear(1, 2),
    loss=torch.nn.functional.cross_entropy,
    clients=[(torch.zeros(1, 1), torch.zeros(1, dtype=torch.int64))],
)
"""
CONFIG = {"data": "folder", "clients": 2, "columns": "x", "label": "label"}
TOLD = "this node's data hold the label 7, but the model has 2 outputs: labels go from 0 to 1."


@pytest.fixture
def app(tmp_path, monkeypatch):
    """An exported app whose problem does not say how many classes there are; the last label of site 1 is no class."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "without_classes.py").write_text(MODULE)
    for client, last in enumerate((0, 7)):
        (tmp_path / f"site-{client}").mkdir()
        (tmp_path / f"site-{client}" / "t.csv").write_text(f"x,label\n0,0\n1,1\n1,1\n0,{last}\n")
    exp = fk.Experiment(problem=find_problem("without_classes:problem"), method="fedavg", rounds=1, epochs=1)
    export(exp, tmp_path / "app", data="folder", clients=2, problem="without_classes:problem", columns="x")
    yield tmp_path / "app"
    sys.modules.pop("without_classes", None)


def data_of(app, client):
    return {"data-dir": str(app.parent / f"site-{client}")}


def test_a_site_finds_out_by_itself(app):
    found = {one.what: one for one in check_work(app, 0, data_of(app, 0), trust=True)}
    assert (found["data"].state, found["data"].line) == ("ok", "4 samples of 2 classes")
    [found] = check_work(app, 1, data_of(app, 1), trust=True)
    assert found[:3] == ("data", "failed", TOLD)


@pytest.mark.parametrize("share", [0.0, 0.7])
def test_such_a_site_is_refused_when_it_joins(app, caplog, share):
    exp, _ = read_app(app, True)
    config = CONFIG | {"site-test": share}
    grid = InProcess(
        fk.Experiment(dataset="digits", model="logistic", partition="iid:clients=2"),
        node_of=lambda context: node_of(exp, context),
        settings=lambda client: data_of(app, client),
        run_config=config,
    )
    with pytest.raises(RunError, match="1 of 2 clients have a node"):
        serve(exp, grid, out=app.parent / "run", source="folder", clients=2, wait=0.0, config=config, site_test=share)
    line = "refused node 101: it cannot take part: it stopped with DataError: see the site's log."
    assert line in caplog.messages
    assert TOLD in caplog.text
    assert grid.asked == []


def test_one_sample_is_one(app):
    (app.parent / "site-0" / "t.csv").write_text("x,label\n0,0\n")
    found = {one.what: one for one in check_work(app, 0, data_of(app, 0), trust=True)}
    assert found["data"].line == "1 sample of 1 class"

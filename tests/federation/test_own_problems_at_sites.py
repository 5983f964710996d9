"""Problems of the user's own at real sites: their data are files or what a loader gives, and have a stated form."""

import re
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional

pytest.importorskip("flwr", reason='needs flwr: pip install "fedkeel[flower]"')

from federations import InProcess, same
from flwr.app import Message, RecordDict
from typer.testing import CliRunner

import fedkeel as fk
from fedkeel.cli.main import app as commands
from fedkeel.engines.flower.checks import Terms
from fedkeel.engines.flower.client import answer, introduce
from fedkeel.engines.flower.site_ledger import read_sites
from fedkeel.errors import DataError
from fedkeel.federation.apps import node_of, read_app, serve
from fedkeel.federation.own_problem import describe_sample, read_site
from fedkeel.federation.site_check import check_work
from fedkeel.federation.site_files import read_site_files
from fedkeel.importing import Trust
from fedkeel.problems.given import find_problem

EXAMPLE = Path(__file__).parents[2] / "examples" / "hospital"
COLUMNS = "radius,texture,smoothness,concavity,symmetry"
SETTINGS = ("rounds=3", "participation=1.0", "epochs=1", "batch_size=16", "lr=0.1")


@pytest.fixture
def hospitals(tmp_path, monkeypatch):
    """The tables of three hospitals, and the folder of the example as the current one."""
    monkeypatch.chdir(EXAMPLE)
    monkeypatch.syspath_prepend(str(EXAMPLE))
    from write_tables import write_tables

    write_tables(tmp_path)
    yield tmp_path
    for name in ("wards", "write_tables", "serve"):
        sys.modules.pop(name, None)


def export(out, *more):
    """Export the example by its command."""
    given = ["export", "flower", "wards:problem", str(out), "--data", "folder", "--clients", "3", "--columns", COLUMNS]
    said = CliRunner().invoke(
        commands, [*given, "--label", "benign", *more, *(w for s in SETTINGS for w in ("--set", s))]
    )
    assert said.exit_code == 0, said.output
    return out


class Hospitals(InProcess):
    """Nodes of an exported app; `config` is what its pyproject.toml would say."""

    def __init__(self, app, folder, **config):
        exp, _ = read_app(app, True)
        self.experiment = exp
        self.config = {"data": "folder", "clients": 3, "columns": COLUMNS, "label": "benign"} | config
        super().__init__(
            fk.Experiment(dataset="digits", model="logistic", partition="iid:clients=3"),
            node_of=lambda context: node_of(exp, context),
            settings=lambda client: {"data-dir": str(folder / f"site-{client}")},
            run_config=self.config,
        )

    def train(self, out, **how):
        settings = {"source": "folder", "clients": 3, "wait": 0.0, "config": self.config}
        return serve(self.experiment, self, out=out, **settings | how)


def like():
    return torch.zeros(1, 5), torch.zeros(1, dtype=torch.int64)


def write(folder, text, name="t.csv"):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    return folder


def read_all(folder):
    return [read_site_files(folder / f"site-{i}", COLUMNS.split(","), "benign", like()) for i in range(3)]


@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_tables_at_sites_give_what_the_same_rows_in_one_place_give(hospitals, method):
    app = export(hospitals / "app", "--method", method)
    grid = Hospitals(app, hospitals)
    done = grid.train(hospitals / "run")
    exp, together = grid.experiment, find_problem("wards:problem")
    here = fk.Problem(model=together.model, loss=together.loss, clients=read_all(hospitals), classes=2)
    same(fk.run(exp.with_(problem=here), engine="serial"), done)


def test_tables_whose_columns_have_other_names_do_not_train_together(hospitals, caplog):
    """Without --columns they would be read by the alphabet, one column as another."""
    app = export(hospitals / "app", "--columns", "")
    grid, table = Hospitals(app, hospitals, columns=""), hospitals / "site-0" / "patients.csv"
    assert grid.train(hospitals / "run").records[-1].selected == [0, 1, 2]
    (line,) = [one.line for one in check_work(app, 0, {"data-dir": str(table.parent)}, True) if one.what == "columns"]
    assert line == f"read as inputs, in this order: {', '.join(sorted(COLUMNS.split(',')))}"
    names, rest = table.read_text().split("\n", 1)
    table.write_text(names.replace("radius", "area") + "\n" + rest)
    how = {"terms": Terms(minimum=0.5), "membership": "at-start"}
    fresh = Hospitals(app, hospitals, columns="")
    assert fresh.train(hospitals / "other", **how).records[-1].selected == [1, 2]
    assert "the columns of client 0's tables have other names than those of client 2's" in caplog.text
    with pytest.raises(DataError, match="test data have other names than those of client 2's tables"):
        fresh.train(hospitals / "more", test=str(table.parent), **how)


@pytest.mark.parametrize("ignored", [0, 2, -100, 255])
@pytest.mark.parametrize("method", ["fedavg", "feddisco"])
def test_sites_leave_out_what_the_loss_ignores_as_the_serial_engine_does(tmp_path, method, ignored):
    """Also in a batch that holds nothing else, in a class histogram, and where the label is no class."""
    tables = [[(0.1, ignored), (0.3, ignored), (0.2, 1), (0.9, 0)], [(0.5, 1), (0.7, ignored), (0.4, 2)]]
    for client, rows in enumerate(tables):
        write(tmp_path / f"site-{client}", "x,label\n" + "".join(f"{x},{y}\n" for x, y in rows))
    clients = [(torch.tensor([[x] for x, _ in rows]), torch.tensor([y for _, y in rows])) for rows in tables]
    torch.manual_seed(0)
    loss = torch.nn.CrossEntropyLoss(ignore_index=ignored)
    problem = fk.Problem(model=torch.nn.Linear(1, 3), loss=loss, clients=clients, classes=3)
    exp = fk.Experiment(problem=problem, method=method, rounds=2, participation=1.0, epochs=2, batch_size=1, lr=0.1)
    config = {"data": "folder", "clients": 2, "columns": "x", "label": "label"}
    grid = InProcess(
        exp,
        node_of=lambda context: node_of(exp, context),
        settings=lambda client: {"data-dir": str(tmp_path / f"site-{client}"), "device": "cpu"},
        run_config=config,
    )
    done = serve(exp, grid, out=tmp_path / "run", source="folder", clients=2, wait=0.0, config=config, device="cpu")
    serial = fk.run(exp, engine="serial")
    same(serial, done)
    assert [record.loss for record in done.records] == [record.loss for record in serial.records]
    assert not any(record.dropped for record in done.records)


def test_an_app_carries_its_module_and_the_columns(hospitals):
    app = export(hospitals / "app")
    assert (app / "wards.py").read_text() == (EXAMPLE / "wards.py").read_text()
    assert 'problem = "wards:problem"' in (app / "experiment.toml").read_text()
    assert f'columns = "{COLUMNS}"' in (app / "pyproject.toml").read_text()
    assert "inputs float32 (5,), labels int64 (), 2 classes" in (app / "README.md").read_text()
    assert "trust=True" in (app / "client_app.py").read_text()
    first = read_app(app, True)[0].fingerprint()
    find_problem.__globals__["_make"].cache_clear()
    sys.modules.pop("wards")
    torch.manual_seed(7)  # another process has drawn other numbers
    assert read_app(app, True)[0].fingerprint() == first


def test_an_experiment_file_may_name_the_problem(hospitals, tmp_path):
    (tmp_path / "e.toml").write_text('problem = "wards:problem"\nmethod = "fedavg"\nrounds = 2\n')
    given = ["export", "flower", str(tmp_path / "e.toml"), str(tmp_path / "app"), "--data", "folder", "--clients", "3"]
    refused = CliRunner().invoke(commands, given)
    assert refused.exit_code != 0  # a file names code of its own
    said = CliRunner().invoke(commands, [*given, "--trust"])
    assert said.exit_code == 0, said.output
    assert 'problem = "wards:problem"' in (tmp_path / "app" / "experiment.toml").read_text()


def test_a_site_checks_its_tables_beforehand(hospitals):
    app = export(hospitals / "app")
    where = {"data-dir": str(hospitals / "site-1")}
    found = {one.what: one for one in check_work(app, 1, where, trust=True)}
    assert (found["data"].state, found["data"].line) == ("ok", "190 samples of 2 classes")
    settings = app / "pyproject.toml"
    for share, few in ((0.2, None), (0.05, "only 10 samples for tests")):
        settings.write_text(re.sub("(?m)^site-test = .*$", f"site-test = {share}", settings.read_text()))
        found = {one.what: one for one in check_work(app, 1, where, trust=True)}
        assert ("test share" in found) == bool(few)
    assert found["test share"].state == "warning"
    assert found["test share"].line.startswith(few)
    write(hospitals / "site-1", "radius,benign\n1,0\n", "patients.csv")
    found = {one.what: one for one in check_work(app, 1, where, trust=True)}
    assert found["data"].state == "failed"
    assert "no column: texture" in found["data"].line


def test_a_loader_that_fails_is_no_fault_of_the_app(hospitals):
    app = export(hospitals / "app")
    (app / "reads.py").write_text("def read(settings):\n    return open(settings['table'])\n")
    where = {"data": "reads:read", "table": str(hospitals / "nowhere.csv")}
    [found] = check_work(app, 1, where, trust=True)
    assert found[:3] == ("data", "failed", "the loader reads:read failed with FileNotFoundError.")
    assert f"{app / 'reads.py'}, line 2, in read: FileNotFoundError: No such file or directory" in found.hint
    sys.modules.pop("reads")


LOADER = """
import fedkeel as fk

def read(settings):
    raise fk.DataError("row 7: the pressure of Mr Smith is 900", "ask Mr Smith")
"""


@pytest.mark.parametrize("source", ["smiths:read", "folder"])
def test_the_server_learns_the_type_of_an_error_and_no_word_of_the_site(tmp_path, monkeypatch, caplog, source):
    (tmp_path / "smiths.py").write_text(LOADER)
    (tmp_path / "data" / "0").mkdir(parents=True)
    (tmp_path / "data" / "0" / "Mr Smith.png").write_bytes(b"no image")
    monkeypatch.syspath_prepend(str(tmp_path))
    form = torch.zeros(1, 1, 4, 4), torch.zeros(1, dtype=torch.int64)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 2))
    problem = fk.Problem(model=model, loss=functional.cross_entropy, clients=[form], classes=2)
    exp = fk.Experiment(problem=problem, method="fedavg", rounds=1)
    settings = {"partition-id": 0, "data-dir": str(tmp_path / "data"), "data": source}
    context = SimpleNamespace(node_config=settings, run_config={"data": "folder", "clients": 1}, state=RecordDict())
    asked = Message(RecordDict(), dst_node_id=1, message_type="query")
    said = answer(introduce, partial(node_of, exp), asked, context).content.config_records["config"]
    assert (said["status"], said["reason"]) == ("failed", "it stopped with DataError: see the site's log.")
    assert "Mr Smith" in caplog.text
    sys.modules.pop("smiths", None)


def test_what_own_code_says_when_it_fails_stays_at_the_site(caplog):
    def fail(node, message, context):
        raise ValueError("could not convert string to float: 'Mr Smith'")

    asked = Message(RecordDict(), dst_node_id=1, message_type="query")
    said = answer(fail, lambda context: None, asked, None).content.config_records["config"]
    assert (said["status"], said["reason"]) == ("failed", "its own code failed with ValueError: see the site's log.")
    assert "in fail: ValueError: could not convert string to float: 'Mr Smith'" in caplog.text
    told = answer(fail, lambda context: None, asked, None, tells=True).content.config_records["config"]  # simulated
    assert told["reason"].endswith("in fail: ValueError: could not convert string to float: 'Mr Smith'")


def test_what_fedkeel_or_pytorch_says_when_it_fails_stays_at_the_site_too(caplog):
    asked = Message(RecordDict(), dst_node_id=1, message_type="query")
    said = answer(None, int, asked, "Mr Smith").content.config_records["config"]
    assert said["status"] == "failed"
    assert said["reason"] == "fedkeel or PyTorch failed with ValueError: see the site's log."
    assert "ValueError: invalid literal for int() with base 10: 'Mr Smith'" in caplog.messages


def test_from_tables_to_a_served_model(hospitals, tmp_path):
    app = export(hospitals / "app", "--method", "scaffold")
    grid = Hospitals(app, hospitals, **{"site-test": 0.2})
    done = grid.train(hospitals / "run", site_test=0.2)
    sites = read_sites(hospitals / "run-sites.jsonl", 3)
    assert sum(sites[i]["samples"] for i in range(3)) == sites[-1]["samples"] == 114
    assert done.records[-1].accuracy == sites[-1]["accuracy"] > 0.8
    file = tmp_path / "model.safetensors"
    said = CliRunner().invoke(commands, ["export", "model", str(hospitals / "run"), str(file)])
    assert said.exit_code == 0, said.output
    import serve as served

    model = served.load_model(str(file))
    x, y = (torch.cat(part) for part in zip(*read_all(hospitals), strict=True))
    with torch.no_grad():
        wanted = model(x).softmax(-1)[:, 1]
    for row in (0, 100, 500):
        assert served.answer(model, str(x[row].tolist()).encode())["benign"] == pytest.approx(
            float(wanted[row]), abs=1e-4
        )
    assert float(((wanted > 0.5) == (y == 1)).float().mean()) > 0.8
    assert "error" in served.answer(model, b'{"a": [1]}')


def test_a_loader_must_give_the_form_of_the_problem(monkeypatch):
    problem = fk.Problem(
        model=torch.nn.Linear(2, 3), loss=functional.cross_entropy, classes=3,
        clients=[(torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64))],
    )  # fmt: skip
    given = {}

    def read(settings):
        return given[settings["what"]]

    module = SimpleNamespace(read=read, __name__="own_loaders")
    read.__module__ = "own_loaders"
    monkeypatch.setitem(sys.modules, "own_loaders", module)
    given |= {
        "good": (np.zeros((4, 2), np.float32), np.array([0, 1, 2, 0])),
        "wide": (np.zeros((4, 3), np.float32), np.array([0, 1, 2, 0])),
        "classes": (np.zeros((4, 2), np.float32), np.array([0, 1, 2, 3])),
        "missing": (np.full((4, 2), np.nan, np.float32), np.array([0, 1, 2, 2])),
        "names": {"x": np.zeros((4, 2), np.float32), "labels": np.array([0, 1, 2, 2])},
    }
    with pytest.raises(DataError, match=r"^the loader own_loaders:read failed with KeyError\.") as refused:
        read_site(problem, "own_loaders:read", {"what": "Mr Smith"}, {}, Trust.TYPED)
    assert "Mr Smith" not in refused.value.message
    assert f"{__file__}, line " in refused.value.hint
    assert [
        tuple(part.shape) for part in read_site(problem, "own_loaders:read", {"what": "good"}, {}, Trust.TYPED)
    ] == [
        (4, 2),
        (4,),
    ]
    for what, told in (("wide", "(3,)"), ("classes", "0 to 3"), ("missing", "8 numbers"), ("names", "other names")):
        with pytest.raises(DataError) as refused:
            read_site(problem, "own_loaders:read", {"what": what}, {}, Trust.TYPED)
        assert told in refused.value.message
    assert describe_sample(problem) == "inputs float32 (2,), labels int64 (), 3 classes"

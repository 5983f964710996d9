"""What was wrong with a request ends in one line: in Flower's log and in the file beside the run folder."""

import io
import logging
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason='needs flwr: pip install "fedkeel[flower]"')

from federations import InProcess

import fedkeel as fk
from fedkeel.federation.apps import ServerStopped, server_app
from fedkeel.federation.export import export


@pytest.fixture(autouse=True)
def plain_log():
    log = logging.getLogger("fedkeel")
    before = log.handlers[:], log.level, log.propagate
    yield
    for handler in set(log.handlers) - set(before[0]):
        handler.close()
    log.handlers, log.propagate = before[0], before[2]
    log.setLevel(before[1])


def start(tmp_path, **changes):
    exp = fk.Experiment(dataset="digits", model="mlp", method="fedavg", partition="iid:clients=3", rounds=1)
    app = tmp_path / "app"
    if not app.exists():
        export(exp, app)
    config = {
        "out": str(tmp_path / "out"), "wait": 0.0, "device": "cpu", "data": "partition", "test": "", "clients": 0,
        "minimum": 1.0, "deadline": 0.0, "attempts": 1, "norm-factor": 1000.0, "copy-states": False,
    }  # fmt: skip
    grid = InProcess(exp)
    grid.absent = changes.pop("absent", set())
    server_app(app)(grid, SimpleNamespace(run_config=config | changes, state=None))


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"absent": {1}}, "2 of 3 clients have a node after 0 seconds, 3 are needed. hint: start the other nodes"),
        ({"minimum": 7.0}, "minimum"),
        ({"wait": "long"}, "wait of the app must be a number: 'long'"),
        ({"bind-nodes": "false"}, "bind-nodes of the app must be true or false: 'false'"),
        ({"copy-states": "false"}, "copy-states of the app must be true or false: 'false'"),
        ({"history": "x"}, "history of the app must be a whole number: 'x'"),
        ({"history": -1}, "history of the app must be at least 0: -1"),
        ({"data": "folder", "clients": 3, "test": "/nowhere", "absent": {0, 1, 2}}, "0 of 3 clients have a node"),
    ],
)
def test_a_users_error_is_one_line(tmp_path, changes, line):
    with pytest.raises(ServerStopped, match=line) as caught:
        start(tmp_path, **changes)
    told = (tmp_path / "out.log").read_text().splitlines()
    assert line in told[-1]
    assert " ERROR: " in told[-1]
    assert "Traceback" not in "".join(told)
    # as Flower logs whatever an app raises
    flower, stream = logging.Logger("flwr"), io.StringIO()
    flower.addHandler(logging.StreamHandler(stream))
    flower.error("ServerApp raised an exception", exc_info=caught.value)
    assert "Traceback" not in stream.getvalue()
    assert len(stream.getvalue().splitlines()) == 2


def test_a_damaged_app_is_one_line(tmp_path):
    with pytest.raises(ServerStopped):
        start(tmp_path, absent={1})
    (tmp_path / "app" / "experiment.toml").write_text('dataset = "digits"\nlr = -1\n')
    with pytest.raises(ServerStopped, match="lr"):
        start(tmp_path)
    assert "lr" in (tmp_path / "out.log").read_text().splitlines()[-1]

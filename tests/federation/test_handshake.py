"""On joining, a node is compared with the server: another method or form is refused, other versions are told."""

import json
import sys

import numpy as np
import pytest

pytest.importorskip("flwr", reason='needs flwr: pip install "fedkeel[flower]"')

import torch
from federations import InProcess, experiment, same
from federations import problem as make_problem
from flwr.app import ConfigRecord

import fedkeel as fk
from fedkeel.engines.flower.checks import TOLD, Terms
from fedkeel.federation.apps import describe_without_sizes, serve
from fedkeel.federation.handshake import describe_side
from fedkeel.federation.own_problem import SiteRows
from fedkeel.runs.prepare import method_of, problem_of, problem_with, task_maker


def side(exp, problem=None):
    task = task_maker(exp.plan, torch.device("cpu"), torch.float32)(problem or problem_of(exp.plan))
    return describe_side(exp.plan, task, method_of(exp.plan, task))


class Claiming(InProcess):
    """Node 101 says other things when it introduces itself."""

    def __init__(self, exp, claims):
        super().__init__(exp)
        self.claims = claims

    def send_and_receive(self, messages, *, timeout=None):
        replies = super().send_and_receive(messages, timeout=timeout)
        for reply in replies:
            if reply.metadata.src_node_id == 101 and reply.metadata.message_type == "query":
                reply.content["config"] = ConfigRecord({**reply.content["config"], **self.claims})
        return replies


def join(tmp_path, **claims):
    exp = experiment(make_problem(), "scaffold", rounds=1)
    return exp, serve(exp, Claiming(exp, claims), out=tmp_path / "run", terms=Terms(minimum=0.5), wait=0.0)


@pytest.mark.parametrize("name", ["fedkeel", "torch", "numpy"])
def test_another_version_is_told_and_trains(tmp_path, caplog, name):
    exp, done = join(tmp_path, **{name: "9.9"})
    same(fk.run(exp, engine="serial"), done)
    assert caplog.text.count(f"node 101 has {name} 9.9 (the server: ") == 1
    assert "refused" not in caplog.text


@pytest.mark.parametrize("name", ["method", "messages", "data"])
def test_another_method_or_form_is_refused_with_the_versions_that_may_explain_it(tmp_path, caplog, name):
    exp, done = join(tmp_path, **{name: "x\x1b[2J" + "y" * 500, "fedkeel": "9.9"})
    same(fk.run(exp.with_(participants=[[0, 2, 3, 4, 5]]), engine="serial"), done)
    (line,) = (r.getMessage() for r in caplog.records if "refused node 101" in r.getMessage())
    assert f"it is made otherwise: {name} x" in line
    assert "fedkeel 9.9 (the server: " in line
    assert "\x1b" not in line
    assert len(line) < 500


def test_what_is_described_tells_methods_models_and_data_apart():
    def described(**changes):
        settings = {"dataset": "digits", "model": "mlp", "method": "fedprox", "partition": "iid:clients=3"}
        return side(fk.Experiment(**settings | changes))

    plain = described()
    assert plain == described(rounds=7, seed=3)

    def differing(**changes):
        return {name for name, value in described(**changes).items() if value != plain[name]}

    assert differing(method="fedavg") == {"method"}
    assert differing(method=fk.METHODS["fedprox"](mu=0.5)) == {"method"}
    assert differing(method="scaffold") == {"method", "messages"}
    assert differing(model="cnn-small" if "cnn-small" in fk.MODELS else "logistic") == {"messages"}


def test_another_frozen_base_is_refused():
    """It does not travel: each side has its own copy, and trained parts fit one of them only."""

    def described(value):
        given = make_problem()
        model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Linear(4, 3))
        for i, weight in enumerate(model.parameters()):
            torch.nn.init.constant_(weight, value if i < 2 else 0.0)
            weight.requires_grad = i >= 2
        problem = fk.Problem(model=model, loss=given.loss, clients=given.clients, test=given.test)
        return side(experiment(problem, "fedavg"))

    assert {name for name, value in described(0.1).items() if value != described(0.2)[name]} == {"base"}
    assert "base" not in TOLD


def test_a_rule_of_the_users_that_was_edited_on_one_side_is_another_method(tmp_path, monkeypatch):
    text = "import fedkeel as fk\n\nclass Pull(fk.Proximal):\n    pass\n"
    (tmp_path / "pulls.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    import pulls

    mine = experiment(make_problem(), fk.method("mine", gradient=[pulls.Pull(0.1)], weights=fk.BySize()))
    before = side(mine)
    (tmp_path / "pulls.py").write_text(text + "# edited\n")
    after = side(mine)
    assert {name for name in before if before[name] != after[name]} == {"method"}
    sys.modules.pop("pulls")


QUICK = ("scaffold", "fedawa", "fedper", "fedlc")  # the last asks for histograms


@pytest.mark.parametrize(
    "method", [m if m in QUICK else pytest.param(m, marks=pytest.mark.slow) for m in sorted(fk.METHODS)]
)
def test_a_node_with_its_own_data_agrees_with_a_server_that_has_none(method):
    model = "mlp-cr" if method == "fedcr" else "mlp"
    exp = fk.Experiment(dataset="digits", model=model, method=method, partition="iid:clients=3")
    if exp.plan.method.server_phase is not None:
        pytest.skip("the server has proxy data of a partition")
    data = problem_of(exp.plan).data
    inputs, labels = data.rows(1, range(int(data.sizes[1])))
    own = SiteRows(1, 3, (inputs.numpy(), labels.numpy()), np.arange(len(labels)))
    assert side(exp, problem_with(exp.plan, exp.plan.source.card, own, None)) == describe_without_sizes(exp.plan, 3)


def test_versions_are_those_that_may_differ():
    described = side(experiment(make_problem(), "fedavg"))
    assert set(TOLD) < described.keys()
    assert json.loads(json.dumps(described)) == described

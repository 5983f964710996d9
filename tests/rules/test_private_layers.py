"""Private layers under every method: they stay where they are, and the method is itself on the shared ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar

import pytest
import torch
from every_method import few_by_default
from for_each import for_each

import fedkeel as fk
from fedkeel.catalogue.cards import card
from fedkeel.core.round import broadcast, init_server
from fedkeel.core.trees import Tree
from fedkeel.engines.cost import sent, whole
from fedkeel.engines.engine import Training
from fedkeel.engines.serial import SerialEngine
from fedkeel.methods import METHODS, build
from fedkeel.rules.sharing import Confined
from fedkeel.runs.prepare import method_of, problem_of, task_maker
from problems import CENTRE, CURVATURE, INNER, quadratic, small_problem

SCHEDULE = [[0], [0, 1], [1], [0, 1, 2]]
CLIENTS = [(CURVATURE[i : i + 1], CENTRE[i : i + 1]) for i in range(3)]
SETTINGS = {"rounds": 4, "epochs": 2, "batch_size": 1, "lr": 0.1, "lr_decay": 0.9, "participants": SCHEDULE}
ONES = torch.ones(2, dtype=torch.float64)


def both(params, batch):
    """The quadratic of w, and beside it, without touching it, one of v."""
    return quadratic(params, batch) + alone(params, batch)


def alone(params, batch):
    return (batch[0] * (params["v"] + batch[1]) ** 2).sum(-1)


def toy(params, loss, method, **more):
    problem = fk.Problem(params=params, loss=loss, clients=CLIENTS, tests=CLIENTS, **more)
    experiment = fk.Experiment(problem=problem, method=method, evaluation={"model": "received"}, **SETTINGS)
    return fk.run(experiment, dtype=torch.float64, engine="serial", keep_params=True)


def heads(run):
    return [record.extra["client_v"] for record in run.records]


def with_private(name, **settings):
    method = build(name, settings)
    return replace(method, personal=(*method.personal, fk.PrivateLayers()))


BASES = [
    ("fedavg", {}), ("fedavgm", {}), ("fedadam", {}), ("scaffold", {}), ("feddyn", {}), ("fedcm", {}), ("feddc", {}),
    ("fedspeed", {"rho": 0.0}), ("fedgloss", {"rho_local": 0.0}), ("fedlesam", {}), ("fedlesam-s", {}),
    ("fedlesam-d", {}), ("fedwmsam", {}), ("fedlws", {}), ("fedawa", INNER["fedawa"]),
    ("fedawa@released", INNER["fedawa"]),
]  # fmt: skip


@cache
def alone_with_the_head():
    """What private layers come to by plain steps."""
    seen = {"metrics": {"v": lambda params, batch: params["v"].sum()}, "head": ("v",)}
    return heads(toy({"v": ONES}, alone, with_private("fedavg"), **seen))


@pytest.mark.slow
@for_each(("name", "settings"), BASES)
def test_it_is_the_method_on_the_shared_layers_and_plain_steps_on_the_private_ones(name, settings):
    seen = {"metrics": {"v": lambda params, batch: params["v"].sum()}, "head": ("v",)}
    run = toy({"v": ONES, "w": ONES}, both, with_private(name, **settings), **seen)
    shared = toy({"w": ONES}, quadratic, build(name, settings))
    for one, other in zip(run.history, shared.history, strict=True):
        torch.testing.assert_close(one["w"], other["w"], atol=1e-14, rtol=0)
        assert torch.equal(one["v"], ONES)
    assert heads(run) == pytest.approx(alone_with_the_head(), abs=1e-14)
    assert len(set(heads(run))) == 4


REFUSED = (
    "fedsol", "fedgmt", "fedgmt@released", "fedlaw", "ditto", "feddyn@released", "fedlesam-d@released",
    "fedspeed@released", "fedsmoo@released", "fedadamw", "fedmuon", "fedmuon@released", "fedpac",
)  # fmt: skip


# what travels in FedCR besides is of the head's shape, see its own tests; keel's average is of one model for all
@pytest.mark.parametrize("name", few_by_default([name for name in METHODS if name not in ("fedcr", "keel")]))
def test_private_layers_never_travel_or_are_refused_in_a_line(name):
    given = replace(small_problem((7, 4, 5), test=4), classes=3)
    given = replace(given, proxy=given.test)
    method = build(name) if name in ("fedper", "plgu") else with_private(name, **INNER.get(name, {}))
    experiment = fk.Experiment(problem=given, method=method, rounds=2, epochs=1, batch_size=4, lr=0.1)
    task = task_maker(experiment.plan, torch.device("cpu"), torch.float64)(problem_of(experiment.plan))
    if name in REFUSED:
        with pytest.raises(fk.MethodError, match=f"^{name}: ") as refused:
            method_of(experiment.plan, task)
        assert "\n" not in refused.value.message
        assert refused.value.hint
        return
    method = method_of(experiment.plan, task)
    message = broadcast(method, init_server(method, task.initial))
    (outcome,) = SerialEngine(task, method, Training(0, 1, 4)).train(message, 0, 0.1, [0], [None])
    for slot in (*outcome.report.values(), *sent(method, message).values()):
        assert not isinstance(slot, Tree) or not {"2.weight", "2.bias"} & set(slot)
    assert set(outcome.state["private"]) == {"2.weight", "2.bias"}
    assert torch.equal(whole(sent(method, message), task.initial)["params"].buffer, message["params"].buffer)
    assert not any(record.dropped for record in fk.run(experiment, engine="serial").records)


@pytest.mark.slow
@for_each("name", ["scaffold", "fedfft-d", "fedwmsam", "fedsmoo"])
def test_stacked_clients_are_the_same(name):
    given = fk.Experiment(
        problem=small_problem((7, 4, 5, 1)), method=with_private(name), rounds=3, participation=0.5, epochs=2,
        batch_size=3, lr=0.05, clip=1.0,
    )  # fmt: skip
    one, other = (fk.run(given, dtype=torch.float64, engine=engine) for engine in ("serial", "stacked"))
    for name, leaf in one.params.items():
        torch.testing.assert_close(leaf, other.params[name], atol=1e-12, rtol=0)


@dataclass(frozen=True)
class Frozen(fk.Rule):
    """A rule of a user's own: the first layer is never trained, so nobody needs to send it."""

    stackable: ClassVar[bool] = True

    def travels(self, params):
        return params.only(lambda name: not name.startswith("0."))

    def step(self, tree, client, at):
        return tree.zeros() | self.travels(tree), client

    def finish(self, report, client, at):
        return report | {"delta": self.travels(report["delta"])}, client


def test_what_travels_is_what_rules_say():
    problem = small_problem((7, 4, 5), test=4)
    method = fk.method("frozen", gradient=[Frozen()], weights=fk.Uniform())
    given = fk.Experiment(problem=problem, method=method, rounds=1, participation=1.0, batch_size=4, lr=0.1)
    run = fk.run(given, engine="serial")
    task = task_maker(given.plan, torch.device("cpu"), torch.float32)(problem_of(given.plan))
    message = broadcast(method, init_server(method, task.initial))
    kept = [name for name in task.initial if not name.startswith("0.")]
    assert list(sent(method, message)["params"]) == kept
    assert torch.equal(whole(sent(method, message), task.initial)["params"].buffer, task.initial.buffer)
    nbytes = 3 * sum(task.initial[name].nbytes for name in kept)
    assert (run.records[0].bytes_down, run.records[0].bytes_up) == (nbytes, nbytes)


def test_a_perturbation_of_the_shared_layers_leaves_the_private_ones_where_they_are():
    g, rule = fk.Tree.of({"v": ONES, "w": 2 * ONES}), Confined(fk.AdmmPerturbation(0.1), ("v",))
    message, zero = {"params": g} | rule.server_slots(g), torch.tensor(0.0)
    found, _ = rule.step(g, rule.client_slots(g), fk.Local(g, g, message, None, zero, zero, zero, zero))
    torch.testing.assert_close(found["w"], 0.1 * ONES / 2**0.5, atol=1e-6, rtol=0)
    assert not found["v"].any()


def test_a_pattern_that_fits_any_name_of_a_tied_tensor_means_it():
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    net[1].weight = net[0].weight
    clients = [(torch.ones(2, 4), torch.zeros(2, dtype=torch.int64))]

    def settle(head=None, patterns=("@head",)):
        problem = fk.Problem(torch.nn.functional.cross_entropy, clients, net, head=head)
        method = fk.method("m", gradient=[fk.OnlyLayers(patterns)], weights=fk.Uniform())
        plan = fk.Experiment(problem=problem, method=method, rounds=1, participation=1.0).plan
        return method_of(plan, task_maker(plan, torch.device("cpu"), torch.float32)(problem)).rules[0].patterns

    assert settle() == settle(head="1.*") == settle(patterns=("1.*",)) == ("0.weight", "1.bias")
    assert settle(head="1.weight") == settle(patterns=("1.weight",)) == ("0.weight",)
    net[0].weight.requires_grad_(False)
    assert settle(patterns=("1.*",)) == ("1.bias",)
    with pytest.raises(fk.MethodError, match=r"names parameters '1\.weight', but the model has none"):
        settle(patterns=("1.weight",))


@pytest.mark.parametrize("name", ["fedper", "plgu"])
def test_both_ways_weigh_the_shared_layers(name):
    head, whole = 128 * 10 + 10, 64 * 128 + 128 + 128 * 10 + 10
    costs = card(name).costs
    assert (costs.down, costs.up) == (pytest.approx(1 - head / whole), pytest.approx(1 - head / whole))


def test_codes_weigh_two_rows_for_each_class_besides():
    body, rows = 64 * 128 + 128 + 128 * 128 + 128, 2 * 10 * 64
    whole = body + 10 * 64 + 10
    costs = card("fedcr").costs
    assert (costs.down, costs.up) == (pytest.approx((body + rows) / whole), pytest.approx((body + rows) / whole))


def test_the_wire_of_a_federation_carries_what_is_counted():
    pytest.importorskip("flwr", reason="flwr is not installed")
    from fedkeel.engines.rehearsal import expected_messages

    given = fk.Experiment(problem=small_problem((7, 4)), method="fedper", rounds=1, participation=0.5, batch_size=4)
    task = task_maker(given.plan, torch.device("cpu"), torch.float32)(problem_of(given.plan))
    sample = expected_messages(method_of(given.plan, task), task).message
    assert set(sample["params"]) == {"0.weight", "0.bias"}
    assert fk.run(given, engine="serial").records[0].bytes_down == sample["params"].buffer.nbytes

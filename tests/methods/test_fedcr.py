"""FedCR: experts multiply, divergences are those of Gaussians, noise is a function of its key, and it learns."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import fedkeel as fk
from fedkeel.core.objective import Given
from fedkeel.core.objectives import CodeBottleneck, UsualBottleneck, divergence
from fedkeel.core.round import broadcast, init_server
from fedkeel.core.trees import Tree, stack
from fedkeel.engines.serial import SerialEngine
from fedkeel.models import build
from fedkeel.randomness import key
from fedkeel.rules.experts import CommonPrior
from fedkeel.runs.prepare import method_of, problem_of, task_maker
from problems import model_for, small_problem


def number(value):
    return torch.tensor([value], dtype=torch.float64)


def rows(*values):
    return Tree.of({"head.weight": torch.tensor(values, dtype=torch.float64)})


def coded_problem(sizes=(7, 4, 5, 1, 6)):
    given = small_problem(sizes=sizes)
    return replace(given, model=model_for("fedcr", given.model))


def experiment(problem, **changes):
    settings = dict(method="fedcr", rounds=3, participation=0.6, epochs=2, batch_size=3, lr=0.05) | changes
    return fk.Experiment(problem=problem, **settings)


# ---- formulas ------------------------------------------------------------------------------------------------------
def test_divergence_of_two_gaussians():
    assert divergence(number(0.0), number(1.0), number(1.0), number(2.0)).item() == pytest.approx(0.443147, abs=1e-6)
    assert divergence(number(1.0), number(2.0), number(0.0), number(1.0)).item() == pytest.approx(1.306853, abs=1e-6)


def prior(server, beta2=1.0, precision=((1.0,), (0.0,)), evidence=((2.0,), (0.0,)), others=((1.0,), (0.0,))):
    """Client 0 has one sample N(0, 1) of class 0, client 1 one N(2, 1); nobody has class 1."""
    reports = {
        "precision": stack([rows(*others), rows(*precision)]),
        "evidence": stack([rows(*others).zeros(), rows(*evidence)]),
    }
    return CommonPrior(beta2, ("head.*",)).server_step(rows((0.0,), (0.0,)), server, reports)[1]


def test_the_server_multiplies_experts_and_one_standard_normal():
    first = CommonPrior(1.0, ("head.*",)).server_slots(rows((5.0,), (6.0,)))
    assert first["prior_mean"]["head.weight"].tolist() == [[0.0], [0.0]]
    assert first["prior_spread"]["head.weight"].tolist() == [[1.0], [1.0]]
    found = prior(first)
    assert found["prior_mean"]["head.weight"][0].item() == pytest.approx(2 / 3)
    assert found["prior_spread"]["head.weight"][0].item() == pytest.approx(0.57735, abs=1e-5)


@pytest.mark.parametrize("beta2", [0.0, 0.25, 1.0])
def test_a_part_of_the_old_prior_is_kept_and_all_of_it_for_absent_classes(beta2):
    old = {"prior_mean": rows((4.0,), (5.0,)), "prior_spread": rows((0.5,), (0.25,))}
    found = prior(old, beta2)
    assert found["prior_mean"]["head.weight"].tolist() == [[pytest.approx((1 - beta2) * 4 + beta2 * 2 / 3)], [5.0]]
    spread = (1 - beta2) * 0.5 + beta2 * 3**-0.5
    assert found["prior_spread"]["head.weight"].tolist() == [[pytest.approx(spread)], [0.25]]


@pytest.mark.parametrize(("kind", "expected"), [(CodeBottleneck, 0.443147), (UsualBottleneck, 1.306853)])
def test_the_divergence_is_from_the_prior_of_the_label(kind, expected):
    """r_1 = N(0, 1), q = N(1, 2), two draws with even logits: log 2 + 0.1 KL."""
    sent = {"prior_mean": rows((9.0,), (0.0,)), "prior_spread": rows((3.0,), (1.0,))}
    output = (number(1.0)[None], number(2.0)[None], torch.zeros(1, 2, 2, dtype=torch.float64))
    found = kind(0.1).losses(output, torch.tensor([1]), Given(message=sent))
    assert found.item() == pytest.approx(0.693147 + 0.1 * expected, abs=1e-6)


@pytest.mark.parametrize("engine", ["serial", "stacked"])
def test_targets_that_count_nowhere_train_no_code_and_no_prior(engine):
    """A class that the loss ignores is as if it named none: each is left out of the mean and of the experts."""
    given, found = coded_problem(), []
    for loss, label in ((nn.CrossEntropyLoss(ignore_index=0), 0), (nn.CrossEntropyLoss(), -100)):
        data = [(x, y.masked_fill(y == 0, label)) for x, y in (*given.clients, given.test)]
        run = fk.run(experiment(replace(given, loss=loss, clients=data[:-1], test=data[-1])), engine=engine)
        found.append((run.result["model_digest"], run.curve("loss"), run.curve("test_loss")))
        assert run.server["prior_mean"]["head.weight"].any(1).tolist() == [False, True, True]
    assert found[0] == found[1]


@pytest.mark.parametrize(("word", "value"), [("beta", -1.0), ("beta2", 1.5)])
def test_hyperparameters_out_of_range(word, value):
    with pytest.raises(fk.MethodError, match=word):
        fk.Experiment(dataset="digits", model="mlp", method={"name": "fedcr", word: value})


# ---- the model -----------------------------------------------------------------------------------------------------
def test_noise_is_a_function_of_the_key_and_of_the_place_in_the_batch():
    module, x = coded_problem().model, torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
    one, other = (torch.tensor(key(0, "rule", i)) for i in range(2))
    assert torch.equal(module.sampled(x, one)[2], module.sampled(x, one)[2])
    assert not torch.allclose(module.sampled(x, one)[2], module.sampled(x, other)[2])
    torch.testing.assert_close(module.sampled(x[:2], one)[2], module.sampled(x, one)[2][:2])  # filled-up batches


def test_the_mean_of_many_draws_is_what_evaluation_says():
    module, x = coded_problem().model, torch.randn(2, 6, generator=torch.Generator().manual_seed(0))
    module.samples = 20000
    drawn = module.sampled(x, torch.tensor(key(0, "rule", 1)))[2].mean(1)
    torch.testing.assert_close(drawn, module(x), atol=0.02, rtol=0)


# ---- a round -------------------------------------------------------------------------------------------------------
def trained(exp):
    task = task_maker(exp.plan, torch.device("cpu"), torch.float64)(problem_of(exp.plan))
    method = method_of(exp.plan, task)
    message = broadcast(method, init_server(method, task.initial))
    engine = SerialEngine(task, method, exp.plan.training)
    before = engine.train(message, 0, 0.05, [0], [None])[0].state
    return engine, engine.train(message, 1, 0.05, [0], [before])[0]  # of a second round: nothing is left of the first


def test_a_client_reports_the_sums_over_its_samples_of_each_class():
    engine, outcome = trained(experiment(coded_problem()))
    inputs, labels = engine.task.problem.clients[0]
    module = engine.workspace.model
    engine.workspace.load(engine.task.initial | (engine.task.initial.only(outcome.report["delta"].layout)
                          + outcome.report["delta"]) | outcome.state["private"], None)  # fmt: skip
    with torch.no_grad():
        mean, spread = module.encoded(inputs.double())
    for name, each in (("precision", spread**-2), ("evidence", mean / spread**2)):
        expected = torch.stack([each[labels == c].sum(0) for c in range(3)])
        torch.testing.assert_close(outcome.report[name]["head.weight"], expected)
    assert len(set(labels.tolist())) > 1


def test_only_the_head_stays_and_only_the_body_and_the_sums_travel():
    _, outcome = trained(experiment(coded_problem()))
    assert set(outcome.state["private"]) == {"head.weight", "head.bias"}
    assert set(outcome.report["delta"]) == {"body.0.weight", "body.0.bias", "code.weight", "code.bias"}
    assert set(outcome.report) == {"delta", "precision", "evidence", "size", "steps", "lr", "loss"}


def test_a_class_that_nobody_has_keeps_the_standard_normal():
    given = coded_problem()
    run = fk.run(experiment(replace(given, clients=[(x, y.clamp(max=1)) for x, y in given.clients])), engine="serial")
    mean, spread = (run.server[f"prior_{name}"]["head.weight"] for name in ("mean", "spread"))
    assert mean[2].tolist() == [0.0] * 4
    assert spread[2].tolist() == [1.0] * 4
    assert (spread[:2] < 1).all()


@pytest.mark.slow
def test_processes_are_bitwise_equal_to_serial():
    exp = experiment(coded_problem(), rounds=2)
    serial, pool = fk.run(exp, engine="serial"), fk.run(exp, engine="processes", workers=1)
    assert serial.result == pool.result


# ---- fit -----------------------------------------------------------------------------------------------------------
def test_a_model_without_a_code_is_refused():
    with pytest.raises(fk.MethodError) as caught:
        fk.run(experiment(small_problem()), engine="serial")
    assert "fedcr needs a model with a random code" in caught.value.message
    assert caught.value.hint == "use one that has: mlp-cr, lenet-cr"


def test_heads_can_be_tuned_at_the_end():
    given = coded_problem()
    policy = {"model": "local", "tune": True}
    run = fk.run(experiment(replace(given, tests=given.clients), evaluation=policy), engine="serial")
    assert not any(record.dropped for record in run.records)


@pytest.mark.slow
def test_it_learns_on_digits():
    small = build("mlp-cr", shape=(1, 8, 8), classes=10, seed=0, width=32, code=16, samples=4)
    exp = fk.Experiment(
        dataset="digits", model=small, method="fedcr", rounds=4, participation=0.5, epochs=2, batch_size=16, lr=0.1,
        partition={"kind": "dirichlet", "clients": 10, "alpha": 0.5},
        evaluation={"share": 0.3},
    )  # fmt: skip
    accuracy = [record.accuracy for record in fk.run(exp, engine="serial").records]
    assert accuracy[-1] > 0.35  # of ten classes
    assert accuracy[-1] > accuracy[0]

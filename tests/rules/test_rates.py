"""Rates that change within a round: through `at.lr`, on every engine, and into what corrections divide by."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

import fedkeel as fk
from fedkeel.core.schedules import CosineRate
from fedkeel.engines.engine import Training, mean_scale, scale_rates
from fedkeel.engines.serial import SerialEngine
from fedkeel.engines.stacked.client_mapping import lift_by_broadcast, lift_by_vmap
from fedkeel.engines.stacked.engine import StackedEngine
from fedkeel.methods import build
from fedkeel.problems.task import Task
from fedkeel.rules.rates import FollowSchedule
from problems import small_problem


@dataclass(frozen=True)
class NoteRates(fk.Rule):
    """Report the rates of all steps: their sum, and the sum of rate times number of the step."""

    stackable: ClassVar[bool] = True

    def client_slots(self, params):
        return {"rates": params.scalar(0.0), "moment": params.scalar(0.0)}

    def step(self, tree, client, at):
        moment = client["moment"] + at.lr * at.step.to(at.lr.dtype)
        return tree, client | {"rates": client["rates"] + at.lr, "moment": moment}

    def finish(self, report, client, at):
        return report | {"rates": client["rates"], "moment": client["moment"], "own_lr": at.lr}, client


def train(engine, method, task):
    from fedkeel.core.round import broadcast, init_server

    message = broadcast(method, init_server(method, task.initial))
    clients = [0, 2, 3, 5]
    return engine.train(message, 4, 0.3, clients, [None] * len(clients))


def chain(*rules):
    return fk.method("mine", gradient=[*rules, NoteRates()], weights=fk.BySize())


def test_the_rate_of_step_k_falls_from_eta_to_rho_eta():
    method, task = chain(fk.RateWithin(0.1)), Task(small_problem(), dtype=torch.float64)
    for outcome in train(SerialEngine(task, method, Training(0, 2, 3)), method, task):
        steps = int(outcome.report["steps"])
        rates = [0.3 * (1 - k / steps) + (k / steps) * 0.1 * 0.3 for k in range(steps)]
        assert float(outcome.report["rates"]) == pytest.approx(sum(rates), rel=1e-14)
        assert float(outcome.report["moment"]) == pytest.approx(sum(k * r for k, r in enumerate(rates)), rel=1e-14)
        # what corrections divide by is the sum of the rates: lr · steps of a report, and of `finish`
        assert float(outcome.report["lr"] * steps) == pytest.approx(sum(rates), rel=1e-14)
        assert torch.equal(outcome.report["own_lr"], outcome.report["lr"])
        # η [K (1 + ρ) + (1 − ρ)] / 2
        assert sum(rates) == pytest.approx(0.3 * (steps * 1.1 + 0.9) / 2, rel=1e-12)


def test_stacked_clients_have_the_rates_that_they_have_alone():
    """They take different numbers of steps, so that each is elsewhere on its way."""
    training, follow = Training(0, 2, 3), FollowSchedule(CosineRate(rounds=6, by="step"), 6)
    for rules in ([fk.RateWithin(0.1)], [follow], [fk.RateWithin(0.3), follow, fk.ControlVariates()]):
        method, task = chain(*rules), Task(small_problem(), dtype=torch.float64)
        serial = train(SerialEngine(task, method, training), method, task)
        for lift in (lift_by_vmap, lift_by_broadcast):
            stacked = train(StackedEngine(task, method, training, lift=lift), method, task)
            for one, other in zip(serial, stacked, strict=True):
                for name, slot in one.report.items():
                    mine, yours = (getattr(x, "buffer", x) for x in (slot, other.report[name]))
                    torch.testing.assert_close(mine, yours, rtol=1e-12, atol=1e-13)


def test_a_rate_that_follows_a_schedule_stays_after_the_last_round():
    follow = FollowSchedule(CosineRate(rounds=6, by="step"), 6)
    assert follow.scale_rate(5, 0.5) < 1.0
    assert follow.scale_rate(6, 0.5) == 1.0


def test_rho_of_one_is_the_plain_rate_bit_for_bit():
    task, training = Task(small_problem()), Training(0, 2, 3)
    plain, within = chain(), chain(fk.RateWithin(1.0))
    for one, other in zip(
        train(SerialEngine(task, plain, training), plain, task),
        train(SerialEngine(task, within, training), within, task),
        strict=True,
    ):
        assert torch.equal(one.report["delta"].buffer, other.report["delta"].buffer)
        assert torch.equal(one.report["lr"], other.report["lr"])


def test_control_variates_are_the_mean_gradient_where_the_rate_falls():
    """On a constant gradient the client's mean direction is that gradient, whatever the rates are."""
    slope = torch.tensor([1.0, -2.0], dtype=torch.float64)
    clients = [(slope.expand(4, 2).clone(),)]
    problem = fk.Problem(
        params={"w": torch.zeros(2)}, loss=lambda p, batch: (p["w"] * batch[0]).sum(-1), clients=clients
    )
    method = fk.method("mine", gradient=[fk.ControlVariates(), fk.RateWithin(0.2)], weights=fk.BySize())
    settings = {"rounds": 1, "participation": 1.0, "epochs": 3, "batch_size": 1, "lr": 0.1}
    experiment = fk.Experiment(problem=problem, method=method, **settings)
    run = fk.run(experiment, engine="serial", dtype=torch.float64)
    torch.testing.assert_close(run.server["c"].buffer, slope, rtol=1e-12, atol=0.0)


def test_steps_are_counted_through_all_phases_whose_model_is_sent():
    fall = fk.RateWithin(0.0)
    sent, own = fk.Phase(gradient=(fall,)), fk.Phase(gradient=(fall,), uploads=False)
    plain = fk.Phase()
    method = fk.Method("mine", (sent, own, plain, sent), fk.BySize())
    scales = scale_rates(method, 0, [2, 4, 3, 5])
    assert scales == [[1.0, 0.9], [1.0, 0.75, 0.5, 0.25], None, pytest.approx([0.5, 0.4, 0.3, 0.2, 0.1])]
    assert mean_scale(method, [2, 4, 3, 5], scales) == pytest.approx((1.9 + 3 + 1.5) / 10)


def test_a_rate_that_no_step_would_take_is_refused():
    for place in ("server", "personal"):
        with pytest.raises(fk.MethodError, match="scale_rate is never called"):
            fk.method("mine", weights=fk.BySize(), **{place: [fk.RateWithin(0.5)]})
    assert not build("fedavg").phases[0].varies_rate

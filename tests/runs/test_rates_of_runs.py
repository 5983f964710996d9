"""Schedules and amounts of local work in experiments: on every engine, in files, resumed, and refused."""

import math
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from for_each import for_each
from stopping import StopAfter

import fedkeel as fk
from fedkeel.engines.engine import Training
from fedkeel.problems.task import Task

SETTINGS = {"rounds": 4, "participation": 1.0, "epochs": 2, "batch_size": 3, "lr": 0.2}


def make(problem, **changes):
    settings = SETTINGS | {"method": "scaffold"} | changes
    return fk.Experiment(problem=problem, **{name: value for name, value in settings.items() if value is not None})


def digest(run):
    return run.result["model_digest"]


@pytest.fixture
def rates(monkeypatch):
    """The rates that the loop asks for, round by round."""
    from fedkeel.engines.serial import SerialEngine

    asked, train = [], SerialEngine.train

    def noting(self, message, round, lr, clients, states):
        asked.append(lr)
        return train(self, message, round, lr, clients, states)

    monkeypatch.setattr(SerialEngine, "train", noting)
    return asked


def test_the_rate_of_each_round_is_the_schedules(small, rates):
    fk.run(make(small, schedule="cosine"), engine="serial")
    assert rates == pytest.approx([0.1 * (1 + math.cos(math.pi * t / 4)) for t in range(4)])


def test_the_final_tuning_has_the_rate_of_the_last_round(small, rates):
    tuned = {"model": "global", "tune": True}
    problem = replace(small, tests=small.clients)
    fk.run(make(problem, method="fedavg", rounds=3, lr_decay=0.5, evaluation=tuned), engine="serial")
    assert rates == [0.2, 0.1, 0.05, 0.05]


@pytest.mark.slow
def test_the_exponential_schedule_is_what_lr_decay_does(small):
    plain = fk.run(make(small, lr_decay=0.9), engine="serial")
    schedule = fk.run(make(small, schedule={"name": "exponential", "decay": 0.9}), engine="serial")
    assert digest(plain) == digest(schedule)
    assert fk.run(make(small), engine="serial").result["model_digest"] == digest(
        fk.run(make(small, schedule=fk.ConstantRate(by="step"), server_schedule="constant"), engine="serial")
    )


@pytest.mark.slow
def test_the_engines_agree_where_the_rate_changes_with_every_step(small):
    for work in ({"epochs": 0.5}, {"steps": 5, "epochs": None}, {"epochs": (1, 3)}):
        schedule = {"name": "cosine", "by": "step", "warmup": 1, "end": 0.1}
        experiment = make(small, schedule=schedule, server_schedule="linear", **work)
        serial = fk.run(experiment, engine="serial", dtype=torch.float64)
        stacked = fk.run(experiment, engine="stacked", dtype=torch.float64)
        for name, slot in serial.server.items():
            torch.testing.assert_close(slot.buffer, stacked.server[name].buffer, rtol=1e-11, atol=1e-12)


@pytest.mark.slow
def test_processes_take_the_same_steps_at_the_same_rates(small):
    experiment = make(small, schedule={"name": "linear", "by": "step"}, steps=4, epochs=None)
    serial, pool = (fk.run(experiment, engine=name, workers=1) for name in ("serial", "processes"))
    assert serial.result == pool.result


def test_the_servers_rate_is_scheduled_alone(toy):
    """w ← w + η_g s(t) Δ, where s falls by a half."""
    schedule = {"name": "step", "milestones": [1], "factor": 0.5}
    found = []
    for one in (None, schedule):
        experiment = make(toy, rounds=2, epochs=1, batch_size=1, method="fedavg", server_schedule=one)
        run = fk.run(experiment, engine="serial", dtype=torch.float64, keep_params=True)
        found.append([params["w"] for params in run.history])
    (first, whole), (same, half) = found
    assert torch.equal(first, same)
    torch.testing.assert_close(half - first, 0.5 * (whole - first), rtol=1e-12, atol=1e-15)


def test_a_run_with_a_schedule_resumes_bit_for_bit(small, tmp_path):
    experiment = make(small, schedule={"name": "cosine", "by": "step"}, server_schedule={"name": "linear", "end": 0.5})
    with pytest.raises(KeyboardInterrupt):
        fk.run(experiment, out=tmp_path, engine="serial", progress=StopAfter(2))
    resumed, whole = fk.run(experiment, out=tmp_path, engine="serial"), fk.run(experiment, engine="serial")
    assert resumed.result == whole.result
    assert fk.load_run(tmp_path).experiment.save() == experiment.save()


def test_a_run_that_goes_on_keeps_the_length_of_its_schedule(small):
    """The length is part of what an experiment is; how long a run goes on is not."""
    short, long = make(small, schedule="cosine"), make(small, schedule="cosine", rounds=8)
    assert short.save()["schedule"] == {"name": "cosine", "warmup": 0, "by": "round", "end": 0.0, "rounds": 4}
    assert short.fingerprint() != long.fingerprint()
    kept = {"name": "cosine", "end": 0.1, "rounds": 4}
    assert make(small, schedule=kept).fingerprint() == make(small, schedule=kept, rounds=8).fingerprint()
    with pytest.raises(fk.ExperimentError, match="schedule leaves no rate in round 8"):
        make(small, schedule=short.save()["schedule"], rounds=8)


MILESTONES = {
    (): ("schedule has no milestones", "leave schedule out"),
    (1, 1): ("the milestones of schedule do not increase: [1, 1]", "schedule.milestones = [1]"),
    (3, 1): ("the milestones of schedule do not increase: [3, 1]", "schedule.milestones = [1, 3]"),
}


def test_milestones_of_a_new_run_increase_and_an_older_run_goes_on_with_its_own(toy, tmp_path, monkeypatch):
    for given, (line, hint) in MILESTONES.items():
        experiment = make(toy, schedule={"name": "step", "milestones": list(given)})
        with pytest.raises(fk.ExperimentError) as caught:
            fk.run(experiment, engine="serial")
        assert line in caught.value.message
        assert caught.value.hint == hint
    with monkeypatch.context() as older:
        older.setattr(fk.StepRate, "check_new", lambda self, key: None)
        fk.run(experiment, out=tmp_path, engine="serial")
    assert fk.run(fk.load_run(tmp_path, problem=toy).experiment.with_(rounds=5), out=tmp_path).result["rounds"] == 5


def test_a_preset_decay_gives_way_to_a_schedule():
    assert fk.Experiment(dataset="cifar10").plan.lr_decay == 0.998
    plan = fk.Experiment(dataset="cifar10", schedule="cosine").plan
    assert plan.lr_decay == 1.0
    assert plan.lr_at(plan.rounds) == plan.lr_at(plan.rounds - 1) > 0  # for what follows the last round


@for_each(
    ("given", "line"),
    [
        ({"schedule": "cosine", "lr_decay": 0.9}, "lr_decay and schedule both change the clients' rate."),
        ({"epochs": 2, "steps": 5}, "an experiment has either epochs or steps."),
        ({"server_schedule": {"name": "cosine", "by": "step"}}, "the server takes one step in a round."),
        (
            {"server_schedule": {"name": "cosine", "rounds": 11}},
            "server_schedule is longer than the run: 11 rounds of 10.",
        ),
        ({"schedule": 3}, "schedule must be a Schedule, or a text, or a table: 3"),
        ({"steps": 0}, "steps must be at least 1: 0"),
        ({"epochs": -0.5}, "epochs must be above 0: -0.5"),
        (
            {"epochs": [0.5, 2]},
            "epochs must be a number, or a list of 2 whole numbers, or a table: [0.5, 2]",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(given, line):
    with pytest.raises(fk.ExperimentError) as caught:
        fk.Experiment(dataset="digits", rounds=10, **given)
    assert caught.value.args[0].splitlines()[0] == line
    assert caught.value.hint


def test_shares_of_epochs_and_numbers_of_steps(small):
    """Half of a client's batches, rounded up, one at least; or so many, through as many epochs as it takes."""
    task, phase = Task(small), fk.Phase()
    from fedkeel.engines.engine import plan_rows

    batches = [-(-int(size) // 3) for size in task.clients.sizes]
    for training, expected in (
        (Training(0, 0.5, 3), [max(1, math.ceil(n / 2)) for n in batches]),
        (Training(0, 1, 3, steps=7), [7] * len(batches)),
    ):
        plans = [plan_rows(task, training, 0, client, 0, phase) for client in range(len(batches))]
        whole = [plan_rows(task, Training(0, 7, 3), 0, client, 0, phase) for client in range(len(batches))]
        assert [len(plan) for plan in plans] == expected
        for plan, longer in zip(plans, whole, strict=True):
            assert all((one == other).all() for one, other in zip(plan, longer, strict=False))
    run = fk.run(make(small, method="fedsam", epochs=0.5), engine="serial")
    assert run.records[0].backward_passes == 2 * sum(math.ceil(n / 2) for n in batches)


def test_as_many_steps_as_epochs_have_are_those_epochs(toy):
    """The toy's clients have one batch each."""
    three = fk.run(make(toy, epochs=3, batch_size=1), engine="serial")
    assert digest(three) == digest(fk.run(make(toy, epochs=None, steps=3, batch_size=1), engine="serial"))
    assert make(toy, epochs=3.0).fingerprint() == make(toy, epochs=3).fingerprint()
    assert "epochs" not in make(toy, epochs=None, steps=3).save()


def test_the_command_line_spells_schedules(trained):
    (one,) = trained("--set", "schedule=cosine", "--set", "schedule.warmup=1", "--set", "server_schedule.name=linear")
    saved = tomllib.loads((Path(one["folder"]) / "experiment.toml").read_text(encoding="utf-8"))
    assert saved["schedule"] == {"name": "cosine", "warmup": 1, "by": "round", "end": 0.0, "rounds": 2}
    assert saved["server_schedule"]["name"] == "linear"


def test_what_follows_the_last_round_has_its_rate_with_lr_decay_too():
    plain, scheduled = (
        fk.Experiment(dataset="digits", model="logistic", rounds=3, lr=0.4, **rate).plan
        for rate in ({"lr_decay": 0.5}, {"schedule": {"name": "exponential", "decay": 0.5}})
    )
    assert [plain.lr_at(t) for t in range(5)] == [scheduled.lr_at(t) for t in range(5)] == [0.4, 0.2, 0.1, 0.1, 0.1]

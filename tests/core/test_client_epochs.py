"""Epochs by client: a number for each, or by size; the same on all engines, in files and after a pause."""

import pytest
import torch

import fedkeel as fk
from fedkeel.core.client_epochs import EpochsByClient, EpochsBySize
from problems import small_problem

SIZES = (7, 12, 5)


def experiment(epochs, **changes):
    settings = dict(method="scaffold", rounds=3, participation=1.0, batch_size=4, lr=0.05) | changes
    return fk.Experiment(problem=small_problem(sizes=SIZES), epochs=epochs, **settings)


def test_each_client_does_its_own_epochs():
    run = fk.run(experiment({"clients": [1, 0.5, 3]}), engine="serial")
    assert run.records[0].backward_passes == 2 + 2 + 6  # batches: 2, 3, 2
    by_size = fk.run(experiment({"samples": 12}), engine="serial")
    assert by_size.records[0].backward_passes == 4 + 3 + 5  # 12/7, 1 and 12/5 epochs, rounded up to steps
    alike = fk.run(experiment({"clients": [2, 2, 2]}), engine="serial")
    assert alike.result["model_digest"] == fk.run(experiment(2), engine="serial").result["model_digest"]


@pytest.mark.slow
def test_engines_agree_also_on_runs_that_are_stacked():
    for epochs in ({"clients": [1, 0.5, 3]}, {"samples": 20, "least": 0.5, "most": 3}):
        made = experiment(epochs)
        serial, stacked = (fk.run(made, engine=name, dtype=torch.float64) for name in ("serial", "stacked"))
        assert all((serial.params[n] - stacked.params[n]).abs().max() < 1e-12 for n in serial.params)
        one, two = fk.run_together([made, made.with_(seed=1)], dtype=torch.float64)
        alone = fk.run(made.with_(seed=1), engine="stacked", dtype=torch.float64)
        assert all((two.params[n] - alone.params[n]).abs().max() < 1e-12 for n in two.params)
        assert all((one.params[n] - serial.params[n]).abs().max() < 1e-12 for n in one.params)


def test_they_are_saved_and_go_on(tmp_path):
    for number, epochs in enumerate(({"clients": [1, 0.5, 3]}, {"samples": 12, "most": 4.0})):
        made = experiment(epochs)
        assert made.save()["epochs"] == ({"least": 1.0} | epochs if "samples" in epochs else epochs)
        fk.run(made.with_(rounds=1), out=tmp_path / str(number), engine="serial")
        resumed = fk.run(made, out=tmp_path / str(number), engine="serial")
        assert resumed.result == fk.run(made, engine="serial").result


def test_a_command_line_gives_them(fedkeel):
    done = fedkeel(*"run --dataset digits --model logistic --method fedavg --rounds 1 --engine serial".split(),
                   *"--set epochs.samples=50 --set epochs.most=3 --out a".split())  # fmt: skip
    assert done.code == 0, done.err
    assert fk.load_run("a").experiment.save()["epochs"] == {"samples": 50, "least": 1.0, "most": 3.0}


def test_the_rule():
    rule = EpochsBySize(100, least=0.5, most=8.0)
    assert [rule.of(0, size) for size in (1, 10, 25, 100, 1000)] == [8.0, 8.0, 4.0, 1.0, 0.5]
    assert EpochsByClient((1.0, 3.0, 0.5)).most_of(10) == 3.0


def test_a_range_is_drawn_from_both_ends_included():
    for low, high in ((1, 5), (2, 2)):
        training = experiment((low, high)).plan.training
        drawn = {training.epochs_of(round, client, 10) for round in range(1, 11) for client in range(20)}
        assert drawn == {*range(low, high + 1)}


WRONG = {
    "epochs has no key: sampels": {"sampels": 3},
    "epochs.clients is empty": {"clients": []},
    "epochs.most must be at least epochs.least": {"samples": 5, "least": 3, "most": 2},
    "clients of epochs": {"clients": [1, -1, 2]},
    "samples of epochs": {"samples": "many"},
}


def test_what_does_not_fit_is_refused_in_one_line():
    for line, epochs in WRONG.items():
        with pytest.raises(fk.ExperimentError) as error:
            experiment(epochs)
        assert line in error.value.message, error.value.message
        assert error.value.hint
    with pytest.raises(fk.ExperimentError, match="for 2 clients, and there are 3"):
        fk.run(experiment({"clients": [1, 2]}))

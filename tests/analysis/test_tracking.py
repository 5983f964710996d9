"""Observers of rounds: they see what the server saw, change nothing, and their numbers are those of the analysis."""

import pytest
import torch

import fedkeel as fk
from fedkeel.analysis.drift import drift
from fedkeel.analysis.spectrum import band_drift
from fedkeel.folder import read_rounds
from fedkeel.tracking import SPECTRUM_EVERY, Seen, observe_state, observed
from fedkeel.trees import Tree


def experiment(problem, **changes):
    settings = {"method": "scaffold", "rounds": 7, "participation": 0.5, "epochs": 1, "batch_size": 4, "lr": 0.1}
    return fk.Experiment(problem=problem, **settings | changes)


def test_tracking_changes_no_result(small, tmp_path):
    plain = fk.run(experiment(small), out=tmp_path / "plain", engine="serial")
    tracked = fk.run(experiment(small), out=tmp_path / "tracked", engine="serial", track=("drift", "spectrum", "state"))
    assert plain.result == tracked.result
    assert not [name for name in plain.records[0].extra if "/" in name]
    back = read_rounds(tmp_path / "tracked")
    assert [record.extra for record in back] == [record.extra for record in tracked.records]


def test_numbers_are_those_of_the_analysis(small):
    seen = []

    def keep(round_seen):
        seen.append(round_seen)
        return {"mine": 10.0 * round_seen.round}

    run = fk.run(experiment(small), engine="serial", track=("drift", "spectrum", keep))
    assert [one.round for one in seen] == [1, 2, 3, 4, 5, 6, 7]
    for one, record in zip(seen, run.records, strict=True):
        found = drift(one.reports["delta"])
        assert record.extra["mine"] == 10 * record.round
        assert record.extra["update/cosine"] == found.cosine
        assert record.extra["update/spread"] == found.spread
        assert record.drift == pytest.approx(found.mean)
        assert ("spectrum/distance/1" in record.extra) == (record.round % SPECTRUM_EVERY == 1)
    first = band_drift(seen[0].reports["delta"])
    assert run.records[0].extra["spectrum/distance/1"] == pytest.approx(float(first.distance[0]))
    assert run.records[0].extra["spectrum/deviation/10"] == pytest.approx(float(first.deviation[9]))
    assert torch.equal(seen[-1].server["params"].buffer, run.server["params"].buffer)  # after the step


def test_a_single_client_has_no_spectrum(small):
    run = fk.run(experiment(small, rounds=1, participants=[[2]]), engine="serial", track=("drift", "spectrum"))
    assert run.records[0].extra["update/cosine"] == 1
    assert "spectrum/distance/1" not in run.records[0].extra


def test_numbers_that_rules_keep():
    per_layer = Tree.of({"fc1": torch.tensor(0.2), "fc2": torch.tensor(0.8)})
    server = {"params": Tree.of({"w": torch.ones(3)}), "alpha": torch.tensor(0.25), "critical": per_layer}
    reports = {
        "radius": torch.tensor([0.1, 0.3]),
        "size": torch.tensor([5.0, 5.0]),
        "delta": server["params"].expand(2),
    }
    found = observe_state(Seen(1, {}, reports, server))
    assert found == pytest.approx(
        {"state/alpha": 0.25, "state/critical/fc1": 0.2, "state/critical/fc2": 0.8, "report/radius": 0.2}
    )


def test_what_is_not_a_number_becomes_nothing():
    assert observed([lambda seen: {"a": float("nan"), "b": 1.0}], Seen(1, {}, {}, {})) == {"a": None, "b": 1.0}


def test_unknown_names(small):
    with pytest.raises(fk.RequestError, match="spectrums") as error:
        fk.run(experiment(small), track=("spectrums",))
    assert "spectrum" in error.value.hint

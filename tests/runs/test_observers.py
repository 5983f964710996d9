"""Observers of rounds: they see what the server saw, change nothing, and their numbers are those of the analysis."""

import copy
import math
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch

import fedkeel as fk
from fedkeel.analysis.drift import drift
from fedkeel.analysis.spectrum import band_drift
from fedkeel.core.trees import Tree
from fedkeel.runs import probe
from fedkeel.runs.folder import read_rounds
from fedkeel.runs.observers import OBSERVERS, SPECTRUM_EVERY, Seen, observe_round, observe_state
from problems import CENTRE, CURVATURE

ENGINES = ("serial", "stacked")


def experiment(problem, **changes):
    settings = {"method": "scaffold", "rounds": 7, "participation": 0.5, "epochs": 1, "batch_size": 4, "lr": 0.1}
    return fk.Experiment(problem=problem, **settings | changes)


@dataclass(frozen=True)
class NoteMove(fk.Rule):
    """Note ‖w_i − w_t‖ where a client ends; change nothing."""

    seen: ClassVar[list[float]] = []

    def finish(self, report, client, at):
        self.seen.append(float((at.params - at.start).norm()))
        return report, client


@pytest.mark.parametrize("name", ["feddyn", "fedspeed", "fedspeed@released", "fedgmt"])
def test_drift_is_how_far_clients_moved_whatever_they_send(small, name):
    """FedSpeed's clients send w_i + h_i: their duals are no moves."""
    built = fk.METHODS[name]()
    last = built.phases[-1]
    noting = replace(last, gradient=(*last.gradient, NoteMove()))
    asked = experiment(small, method=replace(built, phases=(*built.phases[:-1], noting)), rounds=3, lr=0.05)
    run = fk.run(asked, engine="serial", track="drift", dtype=torch.float64)
    moves = NoteMove.seen[-sum(len(record.selected) for record in run.records) :]  # rules are also tried beforehand
    for record in run.records:
        own, moves = moves[: len(record.selected)], moves[len(record.selected) :]
        assert record.drift == pytest.approx(sum(own) / len(own), rel=1e-9)
        assert record.extra["update/most"] == pytest.approx(max(own), rel=1e-9)
    stacked = fk.run(asked.with_(method=built), engine="stacked", dtype=torch.float64)
    assert [r.drift for r in stacked.records] == pytest.approx([r.drift for r in run.records], rel=1e-9)


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


@dataclass(frozen=True)
class SendsItsOwn(fk.Rule):
    """What a client learned, in a slot of its own."""

    def finish(self, report, client, at):
        return report | {"delta": report["delta"].only(lambda name: False), "own": report["delta"]}, client

    def server_step(self, update, server, reports):
        return reports["own"].average(reports["weights"]), server


def test_drift_is_unknown_where_a_rule_leaves_delta_empty(small):
    method = fk.method("own", gradient=SendsItsOwn(), weights=fk.Uniform())
    run = fk.run(experiment(small, method=method), engine="serial", track=("drift", "spectrum"))
    assert {record.drift for record in run.records} == {None}
    assert not any(name.startswith(("update/", "spectrum/")) for record in run.records for name in record.extra)
    plain = fk.run(experiment(small, method=fk.method("own", weights=fk.Uniform())), engine="serial")
    assert torch.equal(run.server["params"].buffer, plain.server["params"].buffer)


def test_a_single_client_has_no_spectrum(small):
    run = fk.run(experiment(small, rounds=1, participants=[[2]]), engine="serial", track=("drift", "spectrum"))
    assert run.records[0].extra["update/cosine"] == 1
    assert "spectrum/distance/1" not in run.records[0].extra


PROBES = ("gradient-spectrum", "perturbation-spectrum")
SINGLE = {"epochs": 1, "batch_size": 1, "participation": 1.0, "lr": 0.2, "weight_decay": 0.0, "clip": None}


def bands_by_numpy(rows, bands=10):
    """Distances of all pairs, and of each row from the mean, in each band of numpy's transform; NaN: an empty band."""
    hat = np.fft.rfft(rows, axis=1)
    edges = [m * hat.shape[1] // bands for m in range(bands + 1)]
    parts = [hat[:, a:b] for a, b in pairwise(edges)]
    empty = [np.nan if part.shape[1] == 0 else 1.0 for part in parts]
    pairs = [[np.linalg.norm(part[j] - part[k]) for j, k in combinations(range(len(rows)), 2)] for part in parts]
    alone = [np.linalg.norm(part - part.mean(0), axis=1) for part in parts]
    variance = [np.mean(np.abs(part - part.mean(0)) ** 2) if part.shape[1] else np.nan for part in parts]
    return np.array(pairs) * np.array(empty)[:, None], np.array(alone) * np.array(empty)[:, None], np.array(variance)


def slopes_of_clients(problem, weights):
    """∇f_k of each client at a model, by autograd."""
    module, slopes = copy.deepcopy(problem.model).double(), []
    module.load_state_dict(weights)
    for x, y in problem.clients:
        loss = torch.nn.functional.cross_entropy(module(x.double()), y)
        slopes.append(dict(zip(weights, torch.autograd.grad(loss, list(module.parameters())), strict=True)))
    return slopes


@pytest.mark.parametrize("engine", ENGINES)
def test_spectra_of_gradients_and_perturbations_are_those_of_numpy(small, engine, monkeypatch):
    """∇f_k at the model that clients begin with, taken here by autograd; SAM's perturbation is ρ g / ‖g‖."""
    monkeypatch.setattr(probe, "CHUNK", 5)  # parts of samples add up to all
    exp = experiment(small, method={"name": "fedsam", "rho": 0.3}, rounds=3, participation=1.0)
    track = tuple(f"{name}@3" for name in PROBES)
    run = fk.run(exp, engine=engine, dtype=torch.float64, keep_params=True, track=track)
    assert not any(name.startswith(PROBES) for record in run.records[:2] for name in record.extra)
    slopes = slopes_of_clients(small, run.history[1])
    lengths = [math.sqrt(sum(float(leaf.square().sum()) for leaf in slope.values())) for slope in slopes]
    for kind, scale in zip(PROBES, ([1.0] * len(slopes), [0.3 / length for length in lengths]), strict=True):
        found, expected = run.records[2].extra, {}
        for name in run.params:
            rows = np.array([slope[name].flatten().numpy() * by for slope, by in zip(slopes, scale, strict=True)])
            expected[name] = bands_by_numpy(rows)
        for m in range(10):
            every = np.concatenate([pairs[m] for pairs, _, _ in expected.values()])
            assert found[f"{kind}/distance/{m + 1}"] == pytest.approx(np.nanmean(every), rel=1e-6)
            assert found[f"{kind}/deviation/{m + 1}"] == pytest.approx(np.nanstd(every), rel=1e-6)
            variance = np.nanmean([spread[m] for _, _, spread in expected.values()])
            assert found[f"{kind}/variance/{m + 1}"] == pytest.approx(variance, rel=1e-6)
            for name, (pairs, _, _) in expected.items():
                layer = found.get(f"{kind}/layer/{name}/{m + 1}", math.nan)
                assert layer == pytest.approx(np.mean(pairs[m]), rel=1e-6, nan_ok=True)
            for client in range(len(slopes)):
                far = np.nanmean([alone[m][client] for _, alone, _ in expected.values()])
                assert found[f"{kind}/client/{client}/{m + 1}"] == pytest.approx(far, rel=1e-6)


def test_which_samples_are_looked_at_depends_on_the_seed_of_the_split_alone():
    task = SimpleNamespace(clients=SimpleNamespace(sizes=[40]))

    def rows(seed, split):
        plan = fk.Experiment(dataset="digits", model="logistic", seed=seed, partition_seed=split).plan
        return probe.Probe(task, plan.method, plan, {"params": None}, 0, [0], {}.get, samples=5).rows(0).tolist()

    assert rows(0, 3) == rows(1, 3) != rows(0, 4)


def test_spectra_of_gradients_change_no_result_and_are_taken_at_four_moments(small, tmp_path):
    exp = experiment(small, method="fedfft-d", rounds=9)
    plain = fk.run(exp, engine="serial")
    tracked = fk.run(exp, out=tmp_path / "run", engine="serial", track=PROBES)
    assert plain.result == tracked.result
    rounds = [r.round for r in tracked.records if any(name.startswith(PROBES) for name in r.extra)]
    assert rounds == [3, 5, 7, 9]
    assert [record.extra for record in read_rounds(tmp_path / "run")] == [r.extra for r in tracked.records]


@pytest.mark.parametrize(("method", "ratio"), [("fedavg", 0.05), ({"name": "fedfft", "ratio": 0.4}, 0.4)])
def test_divergence_by_layer_is_that_of_numpy_before_and_after_the_filter(small, method, ratio):
    """Δ_l = mean_k ‖g_l^k − ḡ_l‖ of all frequencies, and without the lowest: the method's own ratio, else 5 %."""
    exp = experiment(small, method=method, rounds=2, participation=1.0)
    track = ("gradient-divergence@2",)
    run = fk.run(exp, engine="serial", dtype=torch.float64, keep_params=True, track=track)
    assert not [name for name in run.records[0].extra if "divergence" in name]
    slopes, found = slopes_of_clients(small, run.history[0]), run.records[1].extra
    layers = [name for name, value in run.params.items() if value.dim() > 1]
    assert {name.split("/")[2] for name in found if name.startswith("gradient-div")} == {*layers} < {*run.params}
    for name in layers:
        rows = np.array([slope[name].flatten().numpy() for slope in slopes])
        hat = np.fft.rfft(rows, axis=1)
        hat[:, : int(np.floor(ratio * hat.shape[1] + 1e-9))] = 0
        for when, part in (("before", rows), ("after", np.fft.irfft(hat, rows.shape[1], axis=1))):
            far = np.linalg.norm(part - part.mean(0), axis=1).mean()
            assert found[f"gradient-divergence/{when}/{name}"] == pytest.approx(far, rel=1e-6, abs=1e-12)
    alone = fk.run(experiment(small, rounds=2, participants=[[2]] * 2), engine="serial", track=track)
    assert not [name for name in alone.records[1].extra if "divergence" in name]


def test_a_perturbation_follows_what_its_client_remembers(toy):
    """FedWMSAM's clients climb along their own momentum: what they knew before the round, not after it."""
    method = {"name": "fedwmsam", "alpha": 0.5, "rho": 0.3}
    seen = []
    exp = fk.Experiment(problem=toy, method=method, rounds=2, **SINGLE)
    fk.run(exp, dtype=torch.float64, engine="serial", track=lambda one: seen.append(one.probe.perturbations) or {})
    slopes = CURVATURE * (torch.ones(2, dtype=torch.float64) - CENTRE)
    alpha = 0.99 * 0.5 + 0.01 * 0.1  # the server's, after a round without a momentum to agree with
    momentum = slopes.mean(0) + alpha / (1 - alpha) * (slopes.mean(0) - slopes)  # m + α / (1 − α) (c − c_i)
    assert torch.allclose(seen[1].buffer, 0.3 * momentum / momentum.norm(dim=1, keepdim=True), rtol=1e-6)


def test_methods_without_a_perturbation_and_single_clients_have_no_such_spectrum(small):
    run = fk.run(experiment(small, rounds=1), engine="serial", track=PROBES)
    assert {name.split("/")[0] for name in run.records[0].extra if "spectrum" in name} == {"gradient-spectrum"}
    alone = fk.run(experiment(small, rounds=1, participants=[[2]]), engine="serial", track=PROBES)
    assert not [name for name in alone.records[0].extra if "spectrum" in name]


def test_anything_is_tracked_in_chosen_rounds(small):
    run = fk.run(experiment(small), engine="serial", track=("drift@2+5", "spectrum@3"))
    assert [r.round for r in run.records if "update/cosine" in r.extra] == [2, 5]
    assert [r.round for r in run.records if "spectrum/distance/1" in r.extra] == [3]
    for wrong in ("drift@", "drift@0", "drift@1,2", "drift@all", "drift@-1"):
        with pytest.raises(fk.RequestError, match="in which rounds") as error:
            fk.run(experiment(small), track=(wrong,))
        assert "drift@30+60" in error.value.hint


def test_numbers_that_rules_keep():
    per_layer = Tree.of({"fc1": torch.tensor(0.2), "fc2": torch.tensor(0.8)})
    server = {"params": Tree.of({"w": torch.ones(3)}), "alpha": torch.tensor(0.25), "critical": per_layer}
    reports = {
        "radius": torch.tensor([0.1, 0.3]),
        "size": torch.tensor([5.0, 5.0]),
        "delta": server["params"].expand(2),
    }
    found = observe_state(Seen(1, {}, reports, server, None, (), None, 1))
    assert found == pytest.approx(
        {"state/alpha": 0.25, "state/critical/fc1": 0.2, "state/critical/fc2": 0.8, "report/radius": 0.2}
    )


def one_step_rounds(problem, method, rounds, engine, track, lr=0.2):
    """Every client takes part with a single step of its whole data."""
    plain = {"epochs": 1, "batch_size": 1, "participation": 1.0, "lr": lr, "lr_decay": 1.0}
    settings = plain | {"weight_decay": 0.0, "clip": None}
    exp = fk.Experiment(problem=problem, method=method, rounds=rounds, **settings)
    return fk.run(exp, dtype=torch.float64, keep_params=True, engine=engine, track=track)


@pytest.mark.parametrize("engine", ENGINES)
def test_alpha_is_the_weight_that_fedwmsam_mixes_with_in_each_round(toy, engine):
    """Worked out from the method's lines; with one step a round there is nowhere to climb to."""
    run = one_step_rounds(toy, {"name": "fedwmsam", "alpha": 0.5}, 6, engine, ("alpha",), lr=1.5)
    H, b, lr, w = CURVATURE.numpy(), CENTRE.numpy(), 1.5, np.ones(2)
    m, c, c_i, alpha, expected, aims = np.zeros(2), np.zeros(2), np.zeros((3, 2)), 0.5, [], []
    for _ in range(6):
        expected.append(alpha)
        direction = alpha * H * (w - b) + (1 - alpha) * (m + alpha / (1 - alpha) * (c - c_i))
        moved = -lr * direction
        cosines = moved @ m / (np.linalg.norm(moved, axis=1) * max(np.linalg.norm(m), 1e-30))
        far = np.clip((1 + cosines).mean() if m.any() else 0.0, 0.1, 0.9)
        aims.append(far)
        alpha = 0.99 * alpha + 0.01 * far
        c_i = c_i - c + direction
        m, c, w = direction.mean(0), c_i.mean(0), w + moved.mean(0)
    assert run.curve("alpha") == pytest.approx(expected, rel=1e-12)
    assert any(0.1 < far < 0.9 for far in aims[:-1])  # the cosines count, not the bounds alone


@pytest.mark.parametrize("engine", ENGINES)
def test_radii_of_fedscam_shrink_with_the_gradients_of_its_clients(toy, engine):
    """At w = (1, 1) the gradients of the three clients are (0, 2), (2, 0) and (2, 2)."""
    method = {"name": "fedscam", "rho_max": 0.1, "alpha_rho": 0.5, "kappa": 0.0}
    run = one_step_rounds(toy, method, 3, engine, ("radius",))
    first = [0.1 / (1 + 0.5 * norm) for norm in (2, 2, 8**0.5)]
    assert run.records[0].extra == pytest.approx(
        {"radius/mean": sum(first) / 3, "radius/least": first[2], "radius/most": first[0]}
    )
    for before, record in zip(run.history, run.records[1:], strict=False):
        norms = (CURVATURE * (before["w"] - CENTRE)).norm(dim=1)
        assert record.extra["radius/mean"] == pytest.approx(float((0.1 / (1 + 0.5 * norms)).mean()), rel=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_critical_layers_of_fedfsa_are_counted_over_the_clients(engine):
    """Each client's loss pulls one layer harder than the others: that one moves most, and is marked."""

    def loss(params, batch):
        return sum(batch[:, i] * params[name].square().sum() for i, name in enumerate(params))

    pulls = torch.tensor([[9.0, 1.0, 0.0, 50.0], [1.0, 9.0, 0.0, 50.0], [1.0, 9.0, 0.0, 50.0]], dtype=torch.float64)
    names = ("conv.weight", "fc.weight", "fc2.weight", "fc.bias")
    params = {name: torch.ones((3,) if "bias" in name else (1, 3), dtype=torch.float64) for name in names}
    problem = fk.Problem(params=params, loss=loss, clients=[(pulls[i : i + 1],) for i in range(3)])
    method = {"name": "fedfsa", "top": 1, "rho": 0.0, "rho_larger": 0.0}
    run = one_step_rounds(problem, method, 1, engine, ("critical",))
    assert run.records[0].extra == pytest.approx(  # biases are never marked, however far they move
        {"critical/conv.weight": 1 / 3, "critical/fc.weight": 2 / 3, "critical/fc2.weight": 0.0}
    )


@dataclass(frozen=True)
class Warmth(fk.Rule):
    """A rule of a user's own, which says what can be drawn of it."""

    def client_slots(self, params):
        return {"warm": params.scalar(0.0)}

    def broadcast(self, message, server):
        return message | {"heat": message["params"].scalar(0.5)}

    def finish(self, report, client, at):
        return report, client | {"warm": client["warm"] + at.steps}

    def server_curves(self, message):
        return {"alpha": message["heat"] / 2}

    def client_curves(self, params, client):
        return {"radius": client["warm"], "critical": params.map(lambda leaf: leaf.new_ones(())) * client["warm"]}


def test_observers_draw_what_any_rule_says_can_be_drawn(small):
    mine = fk.method("mine", gradient=[Warmth()], weights=fk.Uniform())
    given = experiment(small, method=mine, rounds=2, participation=1.0)
    run = fk.run(given, engine="serial", track=("alpha", "radius", "critical"))
    steps = [-(-size // 4) for size in small.data.sizes]
    mean = sum(steps) / len(steps)
    for times, record in enumerate(run.records, 1):
        radius = {"radius/mean": times * mean, "radius/least": times * min(steps), "radius/most": times * max(steps)}
        layers = {f"critical/{name}": times * mean for name in run.params}
        found = {name: record.extra[name] for name in {"alpha", *radius, *layers}}
        assert found == pytest.approx({"alpha": 0.25} | radius | layers)


def test_states_that_stay_on_their_nodes_are_not_drawn(small):
    mine = fk.method("mine", gradient=[Warmth()], weights=fk.Uniform())
    server = {"params": Tree.of({"w": torch.ones(3)})}
    seen = Seen(1, {"heat": torch.tensor(0.5)}, {}, server, mine, [{"held": torch.tensor(7)}], None, 1)
    assert [OBSERVERS[name](seen) for name in ("alpha", "radius", "critical")] == [{"alpha": 0.25}, {}, {}]


def test_methods_without_such_numbers_give_none(small):
    run = fk.run(experiment(small, rounds=1), engine="serial", track=("alpha", "radius", "critical"))
    assert not [name for name in run.records[0].extra if name.startswith(("alpha", "radius", "critical"))]


def test_what_is_not_a_number_becomes_nothing():
    seen = Seen(1, {}, {}, {}, None, (), None, 1)
    assert observe_round([lambda seen: {"a": float("nan"), "b": 1.0}], seen) == {"a": None, "b": 1.0}


def test_unknown_names(small):
    with pytest.raises(fk.RequestError, match="spectrums") as error:
        fk.run(experiment(small), track=("spectrums",))
    assert "spectrum" in error.value.hint


@pytest.mark.parametrize("name", ["round", "test_loss"])
def test_a_tracker_takes_the_place_of_no_other_measure(small, name):
    """Of a name of the evaluation, the run would be judged on what the tracker says."""
    with pytest.raises(fk.RequestError, match=f"may not call its number '{name}'"):
        fk.run(experiment(small, rounds=1), engine="serial", track=lambda seen: {name: 0.0})


def test_slots_of_a_resumed_run_are_tracked_in_the_order_of_one_without_a_pause(small, tmp_path):
    """A checkpoint has them in alphabetical order."""
    asked = fk.Experiment(problem=small, method="fedadamw", rounds=2, participation=1.0, batch_size=8, lr=0.01)

    def stop(moment):
        if moment.record.round == 1:
            raise KeyboardInterrupt

    whole = fk.run(asked, engine="serial", track="state")
    with pytest.raises(KeyboardInterrupt):
        fk.run(asked, out=tmp_path, engine="serial", track="state", callbacks=[stop])
    resumed = fk.run(asked, out=tmp_path, engine="serial", track="state")
    assert list(resumed.records[1].extra.items()) == list(whole.records[1].extra.items())

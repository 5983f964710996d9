"""Methods against their papers and released programs, where clients are of unequal size and the clip is active."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from test_vectors import B, H, loss, toy
from torch import nn

import fedkeel as fk
from fedkeel.catalogue.cards import card
from fedkeel.core.round import broadcast
from fedkeel.core.trees import Tree
from fedkeel.methods import build, composition
from fedkeel.models import build as build_model
from fedkeel.papers import find
from fedkeel.rules.layers import weight_layers
from fedkeel.rules.probes import sketch

SIZES = (1, 2, 6)
SCHEDULE = [[0, 1], [1, 2], [0, 2], [1, 2]]
ENGINES = ("serial", "stacked")
Vector = np.ndarray


def gradient(i: int, x: Vector) -> Vector:
    found: Vector = H[i].numpy() * (x - B[i].numpy())
    return found


def unit(v: Vector) -> Vector:
    return v / (np.linalg.norm(v) + 1e-7)


def run(name: str, settings: dict[str, object], engine: str = "serial", **changes: object) -> Vector:
    """Four rounds in which each client takes two steps of its whole data, whatever its size."""
    plain = {"rounds": 4, "participants": SCHEDULE, "batch_size": 8}
    return toy(build(name, settings), SIZES, engine, **plain | changes)


# ---- duals ---------------------------------------------------------------------------------------------------------
def duals(
    perturb: Callable[[int, Vector, Vector, Vector], tuple[Vector, Vector]], clip: float, lam: float = 0.5
) -> Vector:
    """FL-Simulator's FedDyn family: λ (h_i − w_t) is clipped with the gradient, λ w is weight decay behind it.

    `perturb` gives δ and what becomes of the client's own dual μ_i, from (client, gradient, μ_i, s).
    """
    w, h, mu, s, history = np.ones(2), np.zeros((3, 2)), np.zeros((3, 2)), np.zeros(2), []
    for t, selected in enumerate(SCHEDULE):
        ended = []
        for i in selected:
            x = w.copy()
            for _ in range(2):
                delta, mu[i] = perturb(i, gradient(i, x), mu[i], s)
                under = gradient(i, x + delta) + lam * (h[i] - w)
                under = under * min(1.0, clip / (np.linalg.norm(under) + 1e-6))
                x = x - 0.1 * 0.9**t * (under + (0.01 + lam) * x)
            h[i] += x - w
            ended.append(x)
        s = 0.1 * unit(mu[selected].mean(0))
        w = np.mean(ended, axis=0) + h.mean(0)
        history.append(w)
    return np.array(history)


def sam(i: int, g: Vector, mu: Vector, s: Vector) -> tuple[Vector, Vector]:
    return 0.1 * unit(g), mu


def smoo(i: int, g: Vector, mu: Vector, s: Vector) -> tuple[Vector, Vector]:
    delta = 0.1 * unit(g - mu - s)
    return delta, mu + delta - s


@pytest.mark.parametrize("clip", [0.5, 1.0, 100.0])
@pytest.mark.parametrize(("name", "perturb"), [("fedspeed@released", sam), ("fedsmoo@released", smoo)])
def test_half_of_the_pull_stands_behind_the_clip(name: str, perturb: Callable[..., object], clip: float) -> None:
    found = run(name, {"rho": 0.1, "lam": 0.5}, clip=clip)
    np.testing.assert_allclose(found, duals(perturb, clip), rtol=0, atol=1e-12)  # type: ignore[arg-type]


def test_without_a_clip_fedsmoo_and_what_was_released_are_one() -> None:
    settings: dict[str, object] = {"rho": 0.1, "lam": 0.5}
    one, other = (run(name, settings, clip=100.0) for name in ("fedsmoo", "fedsmoo@released"))
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-12)


# ---- FedGloSS ------------------------------------------------------------------------------------------------------
def test_fedgloss_as_released_averages_updates_by_size_and_duals_alike() -> None:
    lam, w, h, pseudo, h_i, expected = 0.5, np.ones(2), np.zeros(2), np.zeros(2), np.zeros((3, 2)), []
    for t, selected in enumerate(SCHEDULE):
        sent = w + 0.1 * unit(pseudo)
        moved = []
        for i in selected:
            x = sent.copy()
            for _ in range(2):
                g = gradient(i, x + 0.1 * unit(gradient(i, x)))
                x = x - 0.1 * 0.9**t * (g + lam * (x - sent + h_i[i]) + 0.01 * x)
            h_i[i] += x - sent
            moved.append(x - sent)
        h = h + np.sum(moved, axis=0) / 3 / len(selected)
        pseudo = -np.average(moved, axis=0, weights=[SIZES[i] for i in selected])
        w = w - pseudo + h
        expected.append(w)
    found = run("fedgloss@released", {"rho": 0.1, "rho_local": 0.1, "lam": lam}, clip=None)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


# ---- FedAWA --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("engine", ENGINES)
def test_fedawa_as_released_keeps_places_and_starts_at_shares_of_all(engine: str, steps: int) -> None:
    """By torch's own Adam, afresh in each round; λ is that of the last step's beginning."""
    rate, w, places, expected = 0.3, torch.ones(2, dtype=torch.float64), None, []
    for t, selected in enumerate(SCHEDULE):
        ends = []
        for i in selected:
            x = w.clone()
            for _ in range(2):
                x = x - 0.1 * 0.9**t * (H[i] * (x - B[i]) + 0.01 * x)
            ends.append(x)
        if places is None:
            places = torch.tensor([SIZES[i] / sum(SIZES) for i in selected], dtype=torch.float64)
        places = places.detach().clone().requires_grad_()
        adam = torch.optim.Adam([places], lr=rate, betas=(0.5, 0.999))
        delta = torch.stack(ends) - w
        for _ in range(steps):
            shares = torch.softmax(places, 0)
            apart = torch.linalg.vector_norm(delta - shares @ delta, dim=1)
            turned = 1 - torch.cosine_similarity(w[None], torch.stack(ends), dim=1)
            adam.zero_grad()
            (shares * (apart + turned)).sum().backward()
            adam.step()
        w = shares.detach() @ torch.stack(ends)
        expected.append(w.numpy())
    found = run("fedawa@released", {"steps": steps, "server_lr": rate}, engine, clip=None)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-7)


# ---- FedFSA --------------------------------------------------------------------------------------------------------
def test_fedfsa_as_released_divides_its_momentum_by_the_first_rate() -> None:
    """m = −mean Δ γ / (K η_0), whatever the learning rate of the round; the clip covers the mixture."""
    w, m, expected = np.ones(2), np.zeros(2), []
    for t, selected in enumerate(SCHEDULE):
        ended = []
        for i in selected:
            x = w.copy()
            for _ in range(2):
                v = 0.1 * gradient(i, x + 0.05 * unit(gradient(i, x))) + 0.9 * m
                v = v * min(1.0, 0.15 / (np.linalg.norm(v) + 1e-6))
                x = x - 0.1 * 0.7**t * (v + 0.01 * x)
            ended.append(x - w)
        m = -np.mean(ended, axis=0) * 0.7 / (2 * 0.1)
        w = w + np.mean(ended, axis=0)
        expected.append(w)
    found = run("fedfsa@released", {}, lr_decay=0.7, clip=0.15)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_norms_and_vectors_are_never_critical() -> None:
    """Known by their shapes: in a Sequential a norm has a number for a name."""
    network = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Conv2d(4, 4, 1), nn.LayerNorm((4, 6, 6)), nn.Flatten(),
        nn.Linear(144, 1),
    )  # fmt: skip
    assert list(weight_layers(layout_of(network)).shapes) == ["0.weight", "2.weight", "5.weight"]
    able = weight_layers(layout_of(build_model("vit-small-32", shape=(3, 32, 32), classes=10, seed=0))).shapes
    assert {len(shape) for shape in able.values()} == {2, 3}
    assert [name for name in able if not name.endswith("weight")] == ["patches.positions"]  # a table, like others


def layout_of(module: nn.Module) -> fk.Layout:
    return fk.Tree.of({name: p.detach() for name, p in module.named_parameters()}).layout


# ---- FedALA --------------------------------------------------------------------------------------------------------
def ala(rate: float, passes: int, threshold: float, lengths: list[int]) -> Vector:
    """FedALA with the whole model for its head: a loop that ends where it has converged, or has had its passes."""
    w, own, weights, begun, history = np.ones(2), np.ones((3, 2)), np.ones((3, 2)), [False] * 3, []
    for t, selected in enumerate(SCHEDULE):
        ended = []
        for i in selected:
            losses: list[float] = []
            apart = w - own[i]
            while len(losses) < passes:
                here = own[i] + apart * weights[i]
                losses.append(float((0.5 * H[i].numpy() * (here - B[i].numpy()) ** 2).sum()))
                weights[i] = np.clip(weights[i] - rate * gradient(i, here) * apart, 0, 1)
                if begun[i] or (len(losses) > 10 and np.std(losses[-10:]) < threshold):
                    break
            begun[i] = begun[i] or bool(apart.any())
            lengths.append(len(losses))
            x = own[i] + apart * weights[i]
            for _ in range(2):
                x = x - 0.1 * 0.9**t * (gradient(i, x) + 0.01 * x)
            own[i] = x
            ended.append(x)
        w = np.average(ended, axis=0, weights=[SIZES[i] for i in selected])
        history.append(w)
    return np.array(history)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("passes", "threshold"), [(16, 0.02), (3, 0.1), (1, 0.1)])
def test_fedala_learns_until_it_has_converged_the_first_time(engine: str, passes: int, threshold: float) -> None:
    problem = fk.Problem(
        params={"w": torch.ones(2, dtype=torch.float64)}, loss=loss, head=("w",),
        clients=[(H[i].repeat(n, 1), B[i].repeat(n, 1)) for i, n in enumerate(SIZES)],
    )  # fmt: skip
    method = build("fedala", {"rate": 0.6, "share": 1.0, "passes": passes, "threshold": threshold})
    settings = {"rounds": 4, "epochs": 2, "batch_size": 8, "lr": 0.1, "lr_decay": 0.9, "weight_decay": 0.01}
    exp = fk.Experiment(problem=problem, method=method, participants=SCHEDULE, **settings)
    lengths: list[int] = []
    expected = ala(0.6, passes, threshold, lengths)
    if passes == 16:  # some converge before the maximum, some at it, and later rounds take one pass
        assert {1, 16} < set(lengths)
    found = fk.run(exp, dtype=torch.float64, keep_params=True, engine=engine)
    np.testing.assert_allclose([p["w"].numpy() for p in found.history or ()], expected, rtol=0, atol=1e-12)
    assert found.records[0].backward_passes == 2 * (passes + 2)


# ---- FedSCAM -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("clusters", "expected"), [(1, [2 / 3, 1 / 3]), (2, [0.5, 0.5]), (9, [0.5, 0.5])])
@pytest.mark.parametrize("name", ["fedscam", "fedscam-wa"])
def test_the_number_of_fedscams_clusters_is_chosen(name: str, clusters: int, expected: Sequence[float]) -> None:
    """Two opposed updates count less for the shorter one only while they are in one cluster."""
    weights = build(name, {"clustering": True, "clusters": clusters}).weights
    rows = [fk.Tree.of({"w": torch.tensor(row, dtype=torch.float64)}) for row in ([2.0, 0.0], [-1.0, 0.1])]
    one, none = torch.ones(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    delta = fk.Tree(torch.stack([row.buffer for row in rows]), rows[0].layout)
    reports = {"size": one, "heterogeneity": none, "alignment": none, "delta": delta}
    torch.testing.assert_close(weights(reports, {}), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("name", ["fedscam", "fedscam-wa"])
def test_fedscam_measures_on_one_batch_what_it_does_on_two_that_are_alike(name: str) -> None:
    """Each batch is all that a client has."""
    np.testing.assert_allclose(run(name, {"probe": 1}), run(name, {"probe": 2}), rtol=0, atol=1e-12)


# ---- what is said, and what was saved ------------------------------------------------------------------------------
def test_fields_that_came_later_are_left_out_while_they_change_nothing() -> None:
    """So that what was saved before is loaded as it was meant, and keeps its fingerprint."""
    for name, rule, settings, field in (
        ("fedscam", fk.ByAgreement, {"clusters": 2}, "clusters"),
        ("fedala", fk.LearnMerge, {}, "passes"),
    ):
        assert field not in composition.save_rule(rule())
        assert composition.load_rule({"rule": rule.__name__}) == rule()
        method = build(name, settings)
        assert f"'{field}': " in str(composition.save(method))
        assert composition.load(composition.save(method)) == method


def test_cards_say_where_a_method_leaves_its_paper() -> None:
    about = " ".join(card("fedwmsam").about.split())
    assert "m divided by K η, c − c_i for its c_i, c over all clients" in about
    assert "lacks a minus" in card("fedfsa").about


def test_specgradfilter_says_why_its_tables_leave_1_d_tensors_alone() -> None:
    """Or the method and its tables agree."""
    methods = [cell.experiment["method"] for cell in find("specgradfilter")]
    chosen = {m["min_dims"] for m in methods if m["name"] == "specgradfilter"}
    default = {h.name: h.default for h in card("specgradfilter").hyperparameters}["min_dims"]
    about = " ".join(card("specgradfilter").about.split())
    assert chosen == {default} or all(f"tables here set min_dims = {n}" in about for n in chosen)


@pytest.mark.parametrize("name", ["fedscam", "fednsam@released"])
@pytest.mark.parametrize("schedule", [None, "linear"])
@pytest.mark.parametrize("behind", [(), (fk.ServerMomentum(0.9),)])
def test_the_last_move_is_that_of_the_model_whatever_the_server_makes_of_updates(
    name: str, schedule: str | None, behind: tuple[fk.Rule, ...]
) -> None:
    """FedSCAM's P(w_t − w_(t−1)), and how FedNSAM's code looks ahead: γ (w_t − w_(t−1))."""
    plain = build(name)
    method = replace(plain, name="own", server=(*plain.server, *behind))
    asked: dict[str, Any] = dict(dataset="digits", model="logistic", partition="iid:clients=4", rounds=4, lr=0.05)
    done = fk.run(
        fk.Experiment(method=method, server_schedule=schedule, epochs=1, batch_size=50, **asked),
        engine="serial", keep_params=True, dtype=torch.float64,
    )  # fmt: skip
    assert done.history is not None
    before, now = (Tree.of(params, done.server["params"].layout) for params in done.history[-2:])
    message = broadcast(method, done.server)
    if name == "fedscam":
        found, wanted = message["last_move"], sketch((now - before).unit(), len(message["last_move"]))
    else:
        found, wanted = (message["params"] - now).buffer, 0.85 * (now - before).buffer
    assert torch.allclose(found, wanted, rtol=1e-9, atol=1e-12)

"""Methods of the server's optimiser, of effort and of momentum against twins in plain numpy, in float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from test_vectors import B, H, toy, trained

import fedkeel as fk
from fedkeel.methods import build
from problems import small_problem

Vector = np.ndarray
SIZES = (1, 2, 3)
"""With batches of one sample, also the numbers of local steps."""
SCHEDULE = [[0, 1], [1, 2], [0, 2], [1, 2], [0, 1, 2]]
ENGINES = ("serial", "stacked")


def slope(i: int, x: Vector) -> Vector:
    found: Vector = H[i].numpy() * (x - B[i].numpy())
    return found


def twin(
    direction: Callable[[int, int, Vector, Vector, float], Vector],
    combine: Callable[[Vector, dict[int, Vector], float], Vector],
    decay: float = 0.01,
    finish: Callable[[int, Vector, Vector, float], None] = lambda i, x, w, lr: None,
) -> Vector:
    """Five rounds: `direction(i, k, x, w, lr)` of each step, `combine(w, moves, lr)` of each round."""
    w, history = np.ones(2), []
    for t, selected in enumerate(SCHEDULE):
        lr, moves = 0.1 * 0.9**t, {}
        for i in selected:
            x = w.copy()
            for k in range(SIZES[i]):
                x = x - lr * (direction(i, k, x, w, lr) + decay * x)
            finish(i, x, w, lr)
            moves[i] = x - w
        w = combine(w, moves, lr)
        history.append(w)
    return np.array(history)


def plain(i: int, k: int, x: Vector, w: Vector, lr: float) -> Vector:
    return slope(i, x)


def by_size(moves: dict[int, Vector]) -> Vector:
    found: Vector = np.average(list(moves.values()), axis=0, weights=[SIZES[i] for i in moves])
    return found


def alike(moves: dict[int, Vector]) -> Vector:
    found: Vector = np.mean(list(moves.values()), axis=0)
    return found


def agree(given: str | fk.Method, settings: dict[str, object], expected: Vector, atol: float = 1e-12) -> None:
    method = build(given, settings) if isinstance(given, str) else given
    for engine in ENGINES:
        found = toy(method, SIZES, engine, rounds=5, participants=SCHEDULE, epochs=1)
        np.testing.assert_allclose(found, expected, rtol=0, atol=atol, err_msg=f"{method.name} on {engine}")


# ---- the server's optimisers ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("correct", [False, True])
@pytest.mark.parametrize("name", ["fedadam", "fedyogi", "fedadagrad"])
def test_second_moments_of_the_server(name: str, correct: bool) -> None:
    tau, server_lr, beta1, beta2 = 0.02, 0.05, 0.7, 0.6
    m, v, t = np.zeros(2), np.full(2, 2 * tau**2), 0

    def combine(w: Vector, moves: dict[int, Vector], lr: float) -> Vector:
        nonlocal m, v, t
        delta, t = by_size(moves), t + 1
        m = beta1 * m + (1 - beta1) * delta
        if name == "fedadam":
            v = beta2 * v + (1 - beta2) * delta**2
        elif name == "fedyogi":
            v = np.where(v > delta**2, v - (1 - beta2) * delta**2, v + (1 - beta2) * delta**2)
        else:
            v = v + delta**2
        scale = (1.0 if name == "fedadagrad" else np.sqrt(1 - beta2**t)) / (1 - beta1**t) if correct else 1.0
        return w + server_lr * scale * m / (np.sqrt(v) + tau)

    rule = fk.ServerAdam(beta1, beta2, tau, name.removeprefix("fed"), 2.0, correct)
    agree(fk.method(name, weights=fk.BySize(), server=rule, server_lr=server_lr), {}, twin(plain, combine))


def test_the_methods_are_those_rules() -> None:
    for name, second, beta1 in (("fedadam", "adam", 0.9), ("fedyogi", "yogi", 0.9), ("fedadagrad", "adagrad", 0.0)):
        v0 = 0.0 if name == "fedadam" else 1.0
        assert build(name).server == (fk.ServerAdam(beta1, 0.99, 1e-3, second, v0),)


def test_yogi_from_zero_begins_as_adam() -> None:
    one, other = (toy(build(name, {"v0": 0.0}))[0] for name in ("fedyogi", "fedadam"))
    np.testing.assert_array_equal(one, other)


# ---- extrapolation -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("epsilon", "by_count"), [(0.0, False), (1e-3, False), (1e-3, True)])
def test_fedexp_extrapolates_where_updates_differ(epsilon: float, by_count: bool) -> None:
    factors = []

    def combine(w: Vector, moves: dict[int, Vector], lr: float) -> Vector:
        delta, squares = alike(moves), np.mean([move @ move for move in moves.values()])
        factors.append(max(1.0, squares / (2 * (delta @ delta + epsilon * (len(moves) if by_count else 1)))))
        return w + factors[-1] * delta

    agree("fedexp", {"epsilon": epsilon, "by_count": by_count}, twin(plain, combine))
    assert max(factors) > 1.05


def test_fedexp_by_hand() -> None:
    """(3, 0) and (−1, 0): mean square 5 over twice the square of the mean, 1; (2, 0) and (0, 2) are averaged."""
    for deltas, factor in (([[3.0, 0.0], [-1.0, 0.0]], 2.5), ([[2.0, 0.0], [0.0, 2.0]], 1.0), ([[0.0, 0.0]] * 2, 1.0)):
        found = extrapolated(deltas, 0.0)
        np.testing.assert_allclose(found, factor * np.mean(deltas, axis=0), rtol=0, atol=1e-15)


def extrapolated(deltas: list[list[float]], epsilon: float) -> Vector:
    rows = torch.tensor(deltas, dtype=torch.float64)
    trees = fk.Tree(rows, fk.Tree.of({"w": rows[0]}).layout)
    weights = torch.full((len(deltas),), 1 / len(deltas), dtype=torch.float64)
    update = trees.average(weights)
    moved, _ = fk.Extrapolate(epsilon).server_step(update, {}, {"delta": trees, "weights": weights, "update": update})
    found: Vector = moved["w"].numpy()
    return found


def test_fedexp_may_be_evaluated_at_the_mean_of_its_last_two_models() -> None:
    last, averaged = (trained(build("fedexp", {"average": average})) for average in (False, True))
    mean = 0.5 * (last.history[-1]["w"] + last.history[-2]["w"])
    torch.testing.assert_close(averaged.params["w"], mean, rtol=0, atol=1e-15)
    assert torch.equal(averaged.server["params"]["w"], last.params["w"])


# ---- effort --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("mu", [0.0, 0.7])
def test_fednova_divides_updates_by_their_effort(mu: float) -> None:
    """The effort is counted step by step: the weight that each step's gradient keeps until the round's end."""

    def pulled(i: int, k: int, x: Vector, w: Vector, lr: float) -> Vector:
        return slope(i, x) + mu * (x - w)

    def combine(w: Vector, moves: dict[int, Vector], lr: float) -> Vector:
        total = sum(SIZES[i] for i in moves)
        effort = {i: sum((1 - lr * mu) ** k for k in range(SIZES[i])) for i in moves}
        whole = sum(SIZES[i] / total * SIZES[i] for i in moves)
        return w + whole * sum(SIZES[i] / total * moves[i] / effort[i] for i in moves)

    agree("fednova", {"mu": mu}, twin(pulled, combine))


def test_the_effort_of_local_momentum() -> None:
    """Each gradient counts with Σ ρ^j over the steps that follow it."""
    given = {"size": torch.tensor([1.0, 1.0]), "steps": torch.tensor([2.0, 5.0]), "lr": torch.tensor([0.1, 0.1])}
    efforts = [sum(sum(0.9**j for j in range(left)) for left in range(1, steps + 1)) for steps in (2, 5)]
    found = fk.ByEffort(momentum=0.9)(given, {})
    np.testing.assert_allclose(found, [sum(efforts) / 4 / effort for effort in efforts], rtol=1e-5)
    with pytest.raises(fk.MethodError, match="not of both"):
        fk.ByEffort(momentum=0.9, mu=0.1)


# ---- momentum over rounds ------------------------------------------------------------------------------------------
def test_ghbm_goes_on_as_the_model_went() -> None:
    """m = (w_(t−2) − w_t) / 2 from the third round on."""
    beta, seen = 0.6, []

    def direction(i: int, k: int, x: Vector, w: Vector, lr: float) -> Vector:
        m = (seen[-2] - w) / 2 if len(seen) >= 2 else np.zeros(2)
        return slope(i, x) + beta / (lr * SIZES[i]) * m

    def combine(w: Vector, moves: dict[int, Vector], lr: float) -> Vector:
        seen.append(w)
        return w + by_size(moves)

    agree("ghbm", {"beta": beta, "tau": 2}, twin(direction, combine))


@pytest.mark.parametrize("name", ["localghbm", "fedhbm"])
def test_clients_go_on_from_where_they_last_were(name: str) -> None:
    beta, share, last = 0.6, 0.5, {}

    def direction(i: int, k: int, x: Vector, w: Vector, lr: float) -> Vector:
        m = share * (last[i] - (w if name == "localghbm" else x)) if i in last else np.zeros(2)
        return slope(i, x) + beta / (lr * SIZES[i]) * m

    def finish(i: int, x: Vector, w: Vector, lr: float) -> None:
        last[i] = w if name == "localghbm" else x

    expected = twin(direction, lambda w, moves, lr: w + by_size(moves), finish=finish)
    agree(name, {"beta": beta, "share": share}, expected)


@pytest.mark.parametrize("name", ["localghbm", "fedhbm"])
def test_a_share_that_is_not_the_participation_is_told(name: str, caplog: pytest.LogCaptureFixture) -> None:
    settings = {"rounds": 1, "epochs": 1, "batch_size": 8, "lr": 0.1, "problem": small_problem()}
    for participation, given, told in ((0.5, {}, 1), (0.1, {}, 0), ("bernoulli:0.5", {"share": 0.5}, 0)):
        caplog.clear()
        fk.run(fk.Experiment(method={"name": name, **given}, participation=participation, **settings))
        assert len([line for line in caplog.messages if "method.share=0.5" in line]) == told


def test_ghbm_over_one_round_is_fedcm() -> None:
    """At α times its rate, where all clients take as many steps."""
    alpha = 0.3
    plain = {"participants": [[0, 1], [1, 2], [0, 2]], "lr_decay": 1.0, "weight_decay": 0.0, "clip": None}
    one = toy(build("ghbm", {"beta": 1 - alpha, "tau": 1}), lr=0.1 * alpha, **plain)
    np.testing.assert_allclose(one, toy(build("fedcm", {"alpha": alpha}), lr=0.1, **plain), rtol=0, atol=1e-12)


def test_fednsam_looks_ahead_and_climbs_back() -> None:
    gamma, rho, m = 0.8, 0.1, np.zeros(2)

    def direction(i: int, k: int, x: Vector, w: Vector, lr: float) -> Vector:
        return slope(i, x + gamma * m - rho * m / (np.linalg.norm(m) + 1e-7))

    def combine(w: Vector, moves: dict[int, Vector], lr: float) -> Vector:
        nonlocal m
        m = gamma * m + alike(moves)
        return w + m

    agree("fednsam", {"gamma": gamma, "rho": rho}, twin(direction, combine))


def test_fednsam_as_released_starts_ahead_and_keeps_no_momentum() -> None:
    gamma, rho, decay = 0.8, 0.1, 0.01
    w, m, expected = np.ones(2), np.zeros(2), []
    for t, selected in enumerate(SCHEDULE):
        lr, moves, sent = 0.1 * 0.9**t, {}, w + gamma * m
        for i in selected:
            x = sent
            for _ in range(SIZES[i]):
                g = slope(i, x)
                x = x - lr * (slope(i, x + rho * g / (np.linalg.norm(g) + 1e-7)) + decay * x)
            moves[i] = x - sent
        m = (1 + gamma) * alike(moves)
        w = w + m
        expected.append(w)
    agree("fednsam@released", {"gamma": gamma, "rho": rho}, np.array(expected))

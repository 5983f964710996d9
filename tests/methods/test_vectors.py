"""Three rounds of a problem in two dimensions with partial participation, against numbers worked out elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from for_each import for_each

import fedkeel as fk
from fedkeel.core.method import Method
from fedkeel.methods import build
from fedkeel.methods.lookback import fedwmsam

H = torch.tensor([[1.0, 2.0], [2.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
B = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]], dtype=torch.float64)
SCHEDULE = [[0], [0, 1], [1]]


def loss(params: dict[str, torch.Tensor], batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return (0.5 * batch[0] * (params["w"] - batch[1]) ** 2).sum(-1)


def toy(
    method: str | Method, sizes: tuple[int, ...] = (1, 1, 1), engine: str = "serial", **changes: object
) -> np.ndarray:
    return np.array([params["w"].numpy() for params in trained(method, sizes, engine, **changes).history])


def trained(
    method: str | Method, sizes: tuple[int, ...] = (1, 1, 1), engine: str = "serial", **changes: object
) -> fk.Run:
    problem = fk.Problem(
        params={"w": torch.ones(2, dtype=torch.float64)},
        loss=loss,
        clients=[(H[i].repeat(n, 1), B[i].repeat(n, 1)) for i, n in enumerate(sizes)],
    )
    settings = {"rounds": 3, "epochs": 2, "batch_size": 1, "lr": 0.1, "lr_decay": 0.9, "weight_decay": 0.01,
                "clip": 10.0, "participants": SCHEDULE} | changes  # fmt: skip
    return fk.run(fk.Experiment(problem=problem, method=method, **settings), dtype=torch.float64, keep_params=True,
                  engine=engine)  # fmt: skip


PAPER = {
    "fedavg": [(0.99810100, 0.63840100), (0.83318154, 0.56387638), (0.58396619, 0.63076227)],
    "fedavgm": [(0.99810100, 0.63840100), (0.83147244, 0.23843728), (0.43280260, -0.00357396)],
    "fedprox": [(0.99815100, 0.64845100), (0.83729817, 0.57334135), (0.59237246, 0.63736109)],
    "scaffold": [(0.99810100, 0.63840100), (0.83346626, 0.61076944), (0.76476807, 0.56624468)],
    "feddyn": [(0.99753467, 0.53126800), (0.72921140, 0.36017734), (0.36816200, 0.34256762)],
    "fedcm": [(0.99801100, 0.95844100), (0.97685140, 0.90659108), (0.92690805, 0.86482410)],
    "fedsam": [(0.99810742, 0.60242101), (0.81719546, 0.52235505), (0.54434560, 0.60035974)],
    "mofedsam": [(0.99801151, 0.95448300), (0.97507140, 0.89780527), (0.92055140, 0.85239637)],
    "fedgamma": [(0.99810742, 0.60242101), (0.81754983, 0.57406824), (0.74250323, 0.52674731)],
    "fedspeed@released": [(0.99754322, 0.48462801), (0.70362248, 0.30037649), (0.31093583, 0.29089764)],
    "fedsmoo": [(0.99754381, 0.48462801), (0.70378157, 0.30065659), (0.30920955, 0.28904778)],
    "fedlesam": [(0.99810100, 0.63840100), (0.83313642, 0.54750471), (0.55786730, 0.60946153)],
    "fedlesam-s": [(0.99810100, 0.63840100), (0.83342115, 0.59439777), (0.73595790, 0.53901005)],
    "fedlesam-d": [(0.99753467, 0.53126800), (0.72913786, 0.33356621), (0.33684116, 0.29873551)],
    "fedgloss": [(0.99754322, 0.48462801), (0.70308607, 0.25882730), (0.27264254, 0.23581736)],
    "fedwmsam": [(0.99796344, 0.95644327), (0.97666584, 0.90234256), (0.92810772, 0.85672821)],
    "fedfft": [(1.00758331, 0.62043638), (0.83490992, 0.54736202), (0.56677963, 0.62644089)],
    "fedfft-s": [(1.00758331, 0.62043638), (0.83366982, 0.59662340), (0.76137298, 0.55269553)],
    "fedfft-d": [(1.00984441, 0.50798184), (0.72961084, 0.33712279), (0.34189673, 0.33290894)],
    "fedsam-s": [(0.99810742, 0.60242101), (0.81754983, 0.57406824), (0.74250323, 0.52674731)],
    "fedsam-d": [(0.99754322, 0.48462801), (0.70362248, 0.30037649), (0.31093583, 0.29089764)],
    "specgradfilter": [(1.18285100, 0.81315100), (1.13422714, 0.85818368), (0.94914419, 1.04004023)],
}
"""By the formulas of the papers; rho = 0.1, lam = 0.5, alpha = 0.1, ratio = 0.5, momentum = 0.9."""

RELEASED = {
    "fedlesam@released": [(0.9981010, 0.6384010), (0.8082200, 0.5389149), (0.5367085, 0.5941806)],
    "fedlesam-s@released": [(0.9981010, 0.6384010), (0.8083625, 0.5623614), (0.6336189, 0.5330630)],
    "fedlesam-d@released": [(0.9975347, 0.5312681), (0.6886206, 0.3195868), (0.2914560, 0.2754765)],
    "fedwmsam@released": [(0.9990109, 0.9604408), (0.9800712, 0.9152582), (0.9368376, 0.8817704)],
    "feddyn@released": PAPER["feddyn"],  # the clip is never active here
}
"""Printed by the authors' programs, in float32."""

COMMON = {"rho": 0.1, "lam": 0.5, "mu": 0.5, "alpha": 0.1, "ratio": 0.5, "momentum": 0.9, "decay": 0.9}


def tuned(name: str) -> Method:
    from fedkeel.methods import METHODS, hyperparameters

    known = hyperparameters(METHODS[name])
    wanted = {word: COMMON[word] for word in known if word in COMMON and not isinstance(known[word], bool)}
    return build(name, wanted | ({"rho_local": 0.1} if "rho_local" in known else {}))


@for_each("name", PAPER)
def test_follows_the_formulas(name: str) -> None:
    np.testing.assert_allclose(toy(tuned(name)), PAPER[name], rtol=0, atol=1e-7)


@for_each("name", RELEASED)
def test_released_variants_follow_the_released_programs(name: str) -> None:
    np.testing.assert_allclose(toy(tuned(name)), RELEASED[name], rtol=0, atol=3e-7)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fedgloss@released", [(0.9975433, 0.4846280), (0.7394390, 0.2711691), (0.2856542, 0.2926204)]),
        ("fedgloss", [(0.9975432, 0.4846280), (0.6750664, 0.2500152), (0.1879267, 0.2565193)]),
    ],
)
def test_fedgloss_at_a_constant_learning_rate_without_clip(name: str, expected: list[tuple[float, float]]) -> None:
    np.testing.assert_allclose(toy(tuned(name), lr_decay=1.0, clip=None), expected, rtol=0, atol=3e-7)


def ramp(rho: float, rho0: float, warmup: int, t: int) -> float:
    return rho0 + (rho - rho0) * min(t, warmup) / warmup


@pytest.mark.parametrize("name", ["fedgloss", "fedgloss@released"])
def test_both_radii_of_fedgloss_grow(name: str) -> None:
    """Over two rounds: the server's from 0.02 to 0.3, the clients' from 0.02 to 0.1; released, the server's jumps."""
    lam, h, h_i, w, pseudo = 0.5, np.zeros(2), np.zeros((3, 2)), np.ones(2), np.zeros(2)
    expected = []
    for t, selected in enumerate([*SCHEDULE, [0, 1]]):
        radius = ramp(0.3, 0.02, 2, t)
        if name == "fedgloss@released":
            radius = 0.1 + (0.3 - 0.02) / 2 if t <= 2 else 0.3
        sent = w + radius * pseudo / (np.linalg.norm(pseudo) + 1e-7)
        moved = []
        for i in selected:
            x = sent.copy()
            for _ in range(2):
                g = H[i].numpy() * (x - B[i].numpy())
                g = H[i].numpy() * (x + ramp(0.1, 0.02, 2, t) * g / (np.linalg.norm(g) + 1e-7) - B[i].numpy())
                x = x - 0.1 * 0.9**t * (g + lam * (x - sent + h_i[i]) + 0.01 * x)
            h_i[i] += x - sent
            moved.append(x - sent)
        share = 1 if name == "fedgloss" else len(selected)
        h, pseudo = h + np.sum(moved, axis=0) / 3 / share, -np.mean(moved, axis=0)
        w = w - pseudo + h
        expected.append(w)
    settings = {"rho": 0.3, "rho_local": 0.1, "lam": lam, "warmup": 2, "rho0": 0.02}
    found = toy(build(name, settings), rounds=4, participants=[*SCHEDULE, [0, 1]])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("mix", [1.0, 0.3])
def test_fedspeed_follows_its_paper(mix: float) -> None:
    """Climb by ρ g, mix both gradients, pull by λ (w − w_t + h_i), send w_i + h_i; the server averages the selected."""
    rho, lam, w, h = 0.1, 0.5, np.ones(2), np.zeros((3, 2))
    expected = []
    for t, selected in enumerate(SCHEDULE):
        sent = []
        for i in selected:
            x = w.copy()
            for _ in range(2):
                before = H[i].numpy() * (x - B[i].numpy())
                after = H[i].numpy() * (x + rho * before - B[i].numpy())
                g = (1 - mix) * before + mix * after + lam * (x - w + h[i]) + 0.01 * x
                x = x - 0.1 * 0.9**t * g
            h[i] += x - w
            sent.append(x + h[i])
        w = np.mean(sent, axis=0)
        expected.append(w)
    np.testing.assert_allclose(
        toy(build("fedspeed", {"rho": rho, "lam": lam, "mix": mix})), expected, rtol=0, atol=1e-12
    )


def test_fedasam_follows_its_paper() -> None:
    """δ = ρ T² g / ‖T g‖, T = |w| + η."""
    w = np.ones(2)
    for _ in range(2):
        g = H[0].numpy() * (w - B[0].numpy())
        scale = np.abs(w) + 0.2
        delta = 0.1 * scale**2 * g / np.linalg.norm(scale * g)
        w = w - 0.1 * (H[0].numpy() * (w + delta - B[0].numpy()) + 0.01 * w)
    np.testing.assert_allclose(toy(build("fedasam", {"rho": 0.1}))[0], w, rtol=0, atol=1e-7)


@pytest.mark.parametrize(("omega", "lam", "c"), [(1.0, 0.1, 0.05), (0.5, 0.05, 0.025), (4.0, 0.4, 0.2)])
def test_feddc_pulls_and_corrects(omega: float, lam: float, c: float) -> None:
    """w = 1, h = 0.2, w_i = 1.5, λ / ω = 0.1, C / ω − c = 0.05, ∇ = 0.4 give 0.52."""
    one = {name: fk.Tree.of({"w": torch.tensor([value])}) for name, value in
           (("w", 1.0), ("h", 0.2), ("w_i", 1.5), ("c", c), ("c_i", 0.0), ("g", 0.4))}  # fmt: skip
    number = torch.tensor(0.0)
    message = {"c": one["c"], "mean_size": torch.tensor(8.0)}
    at = fk.Local(one["w_i"], one["w"], message, None, number, number, number, number)
    tree, client = one["g"], {"h_i": one["h"], "c_i": one["c_i"], "size": torch.tensor(8.0 * omega)}
    tree, client = fk.DriftCorrection(lam, mean_size=8.0).step(tree, client, at)
    assert tree["w"].item() == pytest.approx(0.52)


@pytest.mark.parametrize("engine", ["serial", "stacked"])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (1, 2, 6)])
def test_feddc_weighs_clients_by_their_data(sizes: tuple[int, ...], engine: str) -> None:
    """Clients that repeat one sample have the same gradients whatever their size."""
    lam, w, c = 0.3, np.ones(2), np.zeros(2)
    h_i, c_i, expected, schedule = np.zeros((3, 2)), np.zeros((3, 2)), [], [*SCHEDULE, [0, 1]]
    for t, selected in enumerate(schedule):
        lr, ended, c_moved = 0.1 * 0.9**t, [], np.zeros(2)
        for i in selected:
            omega, x = sizes[i] * 3 / sum(sizes), w.copy()
            for _ in range(2):
                g = H[i].numpy() * (x - B[i].numpy()) + lam / omega * (x - w + h_i[i]) + c / omega - c_i[i]
                x = x - lr * (g + 0.01 * x)
            new = c_i[i] - c / omega - (x - w) / (2 * lr)
            c_moved += omega * (new - c_i[i]) / 3
            h_i[i], c_i[i] = h_i[i] + x - w, new
            ended.append(x)
        w, c = np.mean(ended, axis=0) + h_i.mean(0), c + c_moved
        expected.append(w)
    found = toy(build("feddc", {"lam": lam}), sizes, engine, batch_size=8, rounds=4, participants=schedule)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_low_band_of_the_weights_only_decays_under_specgradfilter() -> None:
    means = toy(tuned("specgradfilter")).mean(1)
    np.testing.assert_allclose(means, [0.998001, 0.99620541, 0.99459221], rtol=0, atol=1e-8)


def test_half_clipped_term_shrinks_large_models() -> None:
    """w = (120, 0) with no gradient: the released form moves to 119.8, and the server to 119.8 + mean dual."""
    problem = fk.Problem(params={"w": torch.tensor([120.0, 0.0])}, loss=lambda p, b: (0 * p["w"]).sum() + 0 * b[:, 0],
                         clients=[torch.zeros(1, 1)] * 3)  # fmt: skip
    settings = {"rounds": 1, "epochs": 1, "batch_size": 1, "lr": 0.1, "clip": 10.0, "participants": [[0]]}
    found = {
        name: fk.run(fk.Experiment(problem=problem, method=name, **settings), engine="serial").params["w"][0].item()
        for name in ("feddyn", "feddyn@released")
    }
    assert found["feddyn"] == 120.0
    assert found["feddyn@released"] == pytest.approx(119.8 - 0.2 / 3, abs=1e-4)


def test_fedwmsam_without_a_radius_and_drift_is_fedcm() -> None:
    plain = fedwmsam(sam=False, weighting=False)
    one = {"participants": [[0], [0], [0]]}  # c = c_i when one client is all there is to hear of
    np.testing.assert_allclose(toy(plain, **one)[0], toy("fedcm", **one)[0], atol=1e-12)
    steps = toy(fedwmsam(momentum=False, sam=False), **one)
    np.testing.assert_allclose(steps, toy("fedavg", **one), atol=1e-12)

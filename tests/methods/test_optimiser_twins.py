"""Methods with local optimisers and rates that fall within a round, against twins in plain numpy, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import fedkeel as fk
from fedkeel.methods import build

SIZES = (1, 2, 3)
"""With batches of one sample and two epochs, half the numbers of local steps."""
SCHEDULE = [[0, 1], [1, 2], [0, 1, 2]]
DECAY = 0.01
Model = dict[str, Any]

draw = np.random.default_rng(0)
FIRST: Model = {"matrix": draw.normal(size=(2, 3)), "tall": draw.normal(size=(4, 2)), "vector": draw.normal(size=3)}
CURVE = [{name: draw.uniform(0.5, 2.0, leaf.shape) for name, leaf in FIRST.items()} for _ in SIZES]
CENTRE = [{name: draw.normal(size=leaf.shape) for name, leaf in FIRST.items()} for _ in SIZES]


def each(f: Callable[..., Any], *models: Model) -> Model:
    return {name: f(*(model[name] for model in models)) for name in FIRST}


def zeros() -> Model:
    return each(np.zeros_like, FIRST)


def mean(models: list[Model]) -> Model:
    return each(lambda *leaves: sum(leaves) / len(leaves), *models)


def run(method: fk.Method, engine: str) -> list[Model]:
    def loss(params: dict[str, torch.Tensor], batch: torch.Tensor) -> torch.Tensor:
        curve, centre = (
            {name: torch.stack([torch.tensor(one[name]) for one in table]) for name in FIRST}
            for table in (CURVE, CENTRE)
        )
        return sum(
            (0.5 * curve[name][batch] * (params[name] - centre[name][batch]) ** 2).flatten(1).sum(1) for name in FIRST
        )

    problem = fk.Problem(
        params={name: torch.tensor(leaf) for name, leaf in FIRST.items()},
        loss=loss,
        clients=[torch.full((size,), i) for i, size in enumerate(SIZES)],
    )
    settings = {"rounds": 3, "epochs": 2, "batch_size": 1, "lr": 0.1, "lr_decay": 0.9, "weight_decay": DECAY,
                "clip": 100.0, "participants": SCHEDULE}  # fmt: skip
    made = fk.run(
        fk.Experiment(problem=problem, method=method, **settings), dtype=torch.float64, keep_params=True, engine=engine
    )
    return [{name: params[name].numpy() for name in FIRST} for params in made.history]


class Twin:
    """A method as its paper writes it: override what differs from FedAvg with equal weights."""

    server_lr = 1.0
    decay = DECAY

    def start(self, i: int) -> None: ...

    def direction(self, i: int, k: int, g: Model, lr: float) -> Model:
        return g

    def finish(self, i: int, moved: Model, rates: list[float]) -> None: ...

    def end(self, moves: dict[int, Model], lr: float) -> Model:
        return mean(list(moves.values()))

    def rate(self, k: int, steps: int) -> float:
        return 1.0

    def train(self) -> list[Model]:
        w, history = FIRST, []
        for t, selected in enumerate(SCHEDULE):
            lr, moves = 0.1 * 0.9**t, {}
            for i in selected:
                self.start(i)
                x, steps = w, 2 * SIZES[i]
                rates = [lr * self.rate(k, steps) for k in range(steps)]
                for k, rate in enumerate(rates):
                    d = self.direction(i, k, each(lambda h, x, b: h * (x - b), CURVE[i], x, CENTRE[i]), lr)
                    x = each(lambda x, d: x - rate * (d + self.decay * x), x, d)  # noqa: B023
                moves[i] = each(lambda x, w: x - w, x, w)
                self.finish(i, moves[i], rates)
            w = each(lambda w, u: w + self.server_lr * u, w, self.end(moves, lr))
            history.append(w)
        return history


def agree(method: fk.Method, twin: Twin) -> None:
    expected = twin.train()
    for engine in ("serial", "stacked"):
        for one, other in zip(run(method, engine), expected, strict=True):
            for name in FIRST:
                np.testing.assert_allclose(one[name], other[name], rtol=0, atol=1e-11, err_msg=f"{name} on {engine}")


def global_direction(moves: dict[int, Model], lr: float) -> Model:
    """−Σ Δ_i / (η Σ K_i)."""
    steps = sum(2 * SIZES[i] for i in moves)
    return each(lambda *leaves: -sum(leaves) / (lr * steps), *moves.values())


def by_size(moves: dict[int, Model]) -> Model:
    total = sum(SIZES[i] for i in moves)
    return each(lambda *leaves: sum(SIZES[i] / total * leaf for i, leaf in zip(moves, leaves, strict=True)),
                *moves.values())  # fmt: skip


# ---- AdamW ---------------------------------------------------------------------------------------------------------
class Adam(Twin):
    """Both moments anew in each round, averaged by size."""

    beta1, beta2, eps = 0.8, 0.9, 1e-3

    def start(self, i: int) -> None:
        self.m, self.v, self.before = zeros(), zeros(), 0.0

    def direction(self, i: int, k: int, g: Model, lr: float) -> Model:
        self.m = each(lambda m, g: self.beta1 * m + (1 - self.beta1) * g, self.m, g)
        self.v = each(lambda v, g: self.beta2 * v + (1 - self.beta2) * g**2, self.v, g)
        a, b = 1 - self.beta1 ** (k + 1), 1 - self.beta2 ** (self.before + k + 1)
        return each(lambda m, v: (m / a) / (np.sqrt(v / b) + self.eps), self.m, self.v)

    def end(self, moves: dict[int, Model], lr: float) -> Model:
        return by_size(moves)


ADAM = {"beta1": Adam.beta1, "beta2": Adam.beta2, "eps": Adam.eps}


def test_local_adamw() -> None:
    agree(build("local-adamw", ADAM), Adam())


class Aligned(Adam):
    """v begins with the clients' mean, of each tensor or of each number; the last direction is added, or mixed in."""

    def __init__(self, alpha: float, blocks: str, added: bool) -> None:
        self.alpha, self.blocks, self.added = alpha, blocks, added
        self.shared, self.count, self.ahead, self.ends = zeros(), 0.0, zeros(), []

    def start(self, i: int) -> None:
        self.m, self.v, self.before = zeros(), self.shared, self.count

    def direction(self, i: int, k: int, g: Model, lr: float) -> Model:
        d = super().direction(i, k, g, lr)
        return each(lambda d, a: (d if self.added else (1 - self.alpha) * d) + self.alpha * a, d, self.ahead)

    def finish(self, i: int, moved: Model, rates: list[float]) -> None:
        self.ends.append(each(lambda v: np.full_like(v, v.mean()) if self.blocks == "tensor" else v, self.v))

    def end(self, moves: dict[int, Model], lr: float) -> Model:
        self.shared, self.ends, self.ahead = mean(self.ends), [], global_direction(moves, lr)
        self.count += np.mean([2 * SIZES[i] for i in moves])
        return mean(list(moves.values()))


@pytest.mark.parametrize("blocks", ["tensor", "number"])
def test_fedadamw(blocks: str) -> None:
    agree(build("fedadamw", {"alpha": 0.3, "blocks": blocks} | ADAM), Aligned(0.3, blocks, added=True))


def test_fedpac_with_adamw() -> None:
    rule = fk.AlignedAdamW(blocks="number", **ADAM)
    method = fk.method("fedpac", gradient=[rule, fk.ClientMomentum(0.7)], weights=fk.Uniform())
    agree(method, Aligned(0.3, "number", added=False))
    assert build("fedpac", {"beta": 0.3}).phases[0].gradient == (
        fk.AlignedAdamW(blocks="number"),
        fk.ClientMomentum(0.7),
    )


def test_fedpac_with_muon_is_fedmuon() -> None:
    one, other = build("fedpac", {"preconditioner": "muon", "beta": 0.3}), build("fedmuon", {"mix": 0.3})
    assert one.phases == other.phases


# ---- Muon ----------------------------------------------------------------------------------------------------------
def orthogonal(u: np.ndarray) -> np.ndarray:
    """Five steps of Newton–Schulz on the matrix with the fewer rows; a vector is none."""
    x = (u.T if u.shape[0] > u.shape[1] else u) / max(np.linalg.norm(u), 1e-7)
    for _ in range(5):
        p = x @ x.T
        x = 3.4445 * x + (-4.7750 * p + 2.0315 * p @ p) @ x
    return x.T if u.shape[0] > u.shape[1] else x


class Muon(Twin):
    """Momenta of matrices and Adam's of the vector are averaged; the last direction is mixed in."""

    nesterov = False
    other_rate = 1.0

    def __init__(self, alpha: float, momentum: float) -> None:
        self.alpha, self.momentum, self.count = alpha, momentum, 0.0
        self.shared, self.second, self.ahead = zeros(), np.zeros(3), zeros()
        self.ends: list[tuple[Model, np.ndarray]] = []

    def start(self, i: int) -> None:
        self.m, self.v = self.shared, self.second

    def direction(self, i: int, k: int, g: Model, lr: float) -> Model:
        betas = {"matrix": self.momentum, "tall": self.momentum, "vector": 0.9}
        self.m = {name: beta * self.m[name] + (1 - beta) * g[name] for name, beta in betas.items()}
        self.v = 0.95 * self.v + 0.05 * g["vector"] ** 2
        t, mu = self.count + k + 1, self.momentum
        ahead = each(lambda m, g: mu * m + (1 - mu) * g if self.nesterov else m, self.m, g)
        d = {name: self.scale(*g[name].shape) * orthogonal(ahead[name]) for name in ("matrix", "tall")}
        d["vector"] = self.other_rate * (self.m["vector"] / (1 - 0.9**t)) / (np.sqrt(self.v / (1 - 0.95**t)) + 1e-10)
        return each(lambda d, a: (1 - self.alpha) * d + self.alpha * a, d, self.ahead)

    def scale(self, rows: int, columns: int) -> float:
        return 0.2 * np.sqrt(max(rows, columns))

    def finish(self, i: int, moved: Model, rates: list[float]) -> None:
        self.ends.append((self.m, self.v))

    def end(self, moves: dict[int, Model], lr: float) -> Model:
        self.shared, self.second = mean([m for m, _ in self.ends]), np.mean([v for _, v in self.ends], axis=0)
        self.ends, self.ahead = [], global_direction(moves, lr)
        self.count += np.mean([2 * SIZES[i] for i in moves])
        return mean(list(moves.values()))


def test_fedmuon() -> None:
    agree(build("fedmuon", {"mix": 0.3, "momentum": 0.8}), Muon(0.3, 0.8))


class ReleasedMuon(Muon):
    """Nesterov, the scale of the first Muon, Adam's moments of the vector anew, and the decay mixed as the step is."""

    nesterov, other_rate = True, 2.0

    def __init__(self, alpha: float, momentum: float) -> None:
        super().__init__(alpha, momentum)
        self.decay = (1 - alpha) * DECAY

    def start(self, i: int) -> None:
        self.m, self.v, self.count = self.shared | {"vector": np.zeros(3)}, np.zeros(3), 0.0

    def scale(self, rows: int, columns: int) -> float:
        return np.sqrt(max(1, rows / columns))


def test_fedmuon_as_released() -> None:
    agree(build("fedmuon@released", {"mix": 0.3, "momentum": 0.8}), ReleasedMuon(0.3, 0.8))


class LocalMuon(Muon):
    """All anew in each round, averaged by size."""

    nesterov = True

    def start(self, i: int) -> None:
        self.m, self.v = zeros(), np.zeros(3)

    def end(self, moves: dict[int, Model], lr: float) -> Model:
        return by_size(moves)


def test_local_muon() -> None:
    agree(build("local-muon", {"momentum": 0.8}), LocalMuon(0.0, 0.8))


class Oracle(Twin):
    """Takezawa's FedMuon: momenta with control variates, then the oracle; the others count as standing still."""

    alpha = 0.6

    def __init__(self) -> None:
        self.c, self.c_i, self.changes = zeros(), [zeros() for _ in SIZES], []

    def start(self, i: int) -> None:
        self.m = self.c_i[i]

    def direction(self, i: int, k: int, g: Model, lr: float) -> Model:
        self.m = each(lambda m, g: (1 - self.alpha) * m + self.alpha * g, self.m, g)
        u = each(lambda m, c_i, c: m - c_i + c, self.m, self.c_i[i], self.c)
        return each(lambda u: orthogonal(u) if u.ndim == 2 else u / np.linalg.norm(u), u)

    def finish(self, i: int, moved: Model, rates: list[float]) -> None:
        self.changes.append(each(lambda new, old: new - old, self.m, self.c_i[i]))
        self.c_i[i] = self.m

    def end(self, moves: dict[int, Model], lr: float) -> Model:
        self.c = each(lambda c, *changes: c + sum(changes) / len(SIZES), self.c, *self.changes)
        self.changes = []
        return each(lambda *leaves: sum(leaves) / len(SIZES), *moves.values())


def test_fedmuon_lmo() -> None:
    agree(build("fedmuon-lmo", {"alpha": Oracle.alpha}), Oracle())


# ---- rates that fall within a round --------------------------------------------------------------------------------
class Swa(Twin):
    """η_k = η (1 − k/K) + (k/K) ρ η, and the server goes on beyond the mean."""

    server_lr, rho = 1.5, 0.2

    def rate(self, k: int, steps: int) -> float:
        return (1 - k / steps) + k / steps * self.rho


class ReleasedSwa(Twin):
    """η_k = 2 η (1 − k/K), and the server averages."""

    def rate(self, k: int, steps: int) -> float:
        return 2 * (1 - k / steps)


class MoSwa(Swa):
    """With control variates whose common one is a running mean over participants."""

    gamma = 0.3

    def __init__(self) -> None:
        self.c, self.c_i, self.new = zeros(), [zeros() for _ in SIZES], []

    def direction(self, i: int, k: int, g: Model, lr: float) -> Model:
        return each(lambda g, c, c_i: g - c_i + c, g, self.c, self.c_i[i])

    def finish(self, i: int, moved: Model, rates: list[float]) -> None:
        self.c_i[i] = each(lambda c_i, c, moved: c_i - c - moved / sum(rates), self.c_i[i], self.c, moved)
        self.new.append(self.c_i[i])

    def end(self, moves: dict[int, Model], lr: float) -> Model:
        self.c = each(lambda c, new: c + self.gamma * (new - c), self.c, mean(self.new))
        self.new = []
        return mean(list(moves.values()))


@pytest.mark.slow
def test_fedswa() -> None:
    agree(build("fedswa", {"rho": Swa.rho}), Swa())
    agree(build("fedswa@released"), ReleasedSwa())


def test_fedmoswa() -> None:
    agree(build("fedmoswa", {"rho": Swa.rho, "gamma": MoSwa.gamma}), MoSwa())

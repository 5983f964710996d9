"""Optimisers of the clients against torch.optim, against twins in float64, and against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt

import pytest
import torch
from torch import nn

import fedkeel as fk
from fedkeel.core.round import init_round
from fedkeel.core.rule import Setting
from fedkeel.kernels.newton_schulz import orthogonalise
from fedkeel.rules.muon import split_matrices
from fedkeel.rules.optimisers import Optimiser, mix_squares
from fedkeel.studies.optimiser_grids import rates_of
from problems import small_problem

ROUNDS, EPOCHS, LR = 3, 4, 0.02


def make_network(convolution=False):
    with torch.random.fork_rng():
        torch.manual_seed(3)
        if convolution:
            return nn.Sequential(
                nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)
            )
        return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 3))


def make_problem(model):
    given = small_problem(sizes=(16,), test=4)
    return fk.Problem(model=model, loss=given.loss, clients=given.clients, test=given.test, classes=3)


def train_here(rule, model=None, **changes):
    """One client, whose every step sees all of its data."""
    settings = {"rounds": ROUNDS, "participation": 1.0, "epochs": EPOCHS, "batch_size": 16, "lr": LR} | changes
    method = fk.method("tested", gradient=[rule], weights=fk.BySize())
    experiment = fk.Experiment(problem=make_problem(model or make_network()), method=method, **settings)
    return fk.run(experiment, dtype=torch.float64, engine="serial").params


def train_there(make, model=None, *, reset, clip=None):
    """The same with an optimiser of torch, which is made anew in each round if `reset`."""
    model = (model or make_network()).double()
    (inputs, target), optimiser = make_problem(model).clients[0], None
    for _ in range(ROUNDS):
        optimiser = make(model.parameters()) if reset or optimiser is None else optimiser
        for _ in range(EPOCHS):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(inputs.double()), target).backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimiser.step()
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def assert_near(one, other, tolerance=1e-12):
    assert max((one[name] - other[name]).abs().max().item() for name in other) < tolerance


# ---- equal to torch ------------------------------------------------------------------------------------------------
SGD = torch.optim.SGD
TWINS = [
    (fk.LocalMomentum(0.9), lambda p, decay: SGD(p, LR, momentum=0.9, weight_decay=decay)),
    (
        fk.LocalMomentum(0.8, nesterov=True),
        lambda p, decay: SGD(p, LR, momentum=0.8, nesterov=True, weight_decay=decay),
    ),
    (
        fk.LocalMomentum(0.7, dampening=0.3),
        lambda p, decay: SGD(p, LR, momentum=0.7, dampening=0.3, weight_decay=decay),
    ),
    (fk.AdamW(), lambda p, decay: torch.optim.AdamW(p, LR, weight_decay=decay)),
    (fk.AdamW(0.8, 0.9, 1e-3), lambda p, decay: torch.optim.AdamW(p, LR, (0.8, 0.9), 1e-3, weight_decay=decay)),
]


@pytest.mark.parametrize("moments", ["reset", "keep", "average"])
def test_one_client_trains_as_with_torch(moments):
    for rule, make in TWINS:
        expected = train_there(lambda p: make(p, 0.1), reset=moments == "reset", clip=0.5)  # noqa: B023
        assert_near(train_here(replace(rule, moments=moments), clip=0.5, weight_decay=0.1), expected)
    adagrad = fk.Adagrad(1e-8, 0.1, moments=moments)
    make = lambda p: torch.optim.Adagrad(p, LR, eps=1e-8, initial_accumulator_value=0.1)  # noqa: E731
    assert_near(train_here(adagrad), train_there(make, reset=moments == "reset"))


@dataclass(frozen=True)
class RmsProp(Optimiser):
    """g / (√v + ε), v ← α v + (1 − α) g²: no more than its slots and `turn`, as the guide says."""

    alpha: float = 0.9
    moments: str = "reset"
    slots = ("rms_v",)

    def turn(self, tree, moments, count):
        v = mix_squares(moments["rms_v"], tree, self.alpha)
        return tree.elementwise(lambda g, v: g / (v.sqrt() + 1e-3), v), {"rms_v": v}


@pytest.mark.parametrize("moments", ["reset", "keep", "average"])
def test_an_own_optimiser_needs_its_slots_and_its_turn_alone(moments):
    make = lambda p: torch.optim.RMSprop(p, LR, alpha=0.9, eps=1e-3)  # noqa: E731
    assert_near(train_here(RmsProp(moments=moments)), train_there(make, reset=moments == "reset"))


def test_an_own_optimiser_without_rates_has_those_of_sgd():
    plain = fk.Experiment(dataset="digits").plan.lr
    assert fk.Experiment(dataset="digits", optimizer=RmsProp()).plan.lr == plain
    assert rates_of(RmsProp()) == rates_of(None)

    class Rated(RmsProp):
        rates = (0.5,)

    assert fk.Experiment(dataset="digits", optimizer=Rated()).plan.lr == 0.5
    assert rates_of(Rated()) == (0.5,)


class TwinLion(torch.optim.Optimizer):
    """Lion in ten lines."""

    def __init__(self, params, lr, beta1, beta2, decay):
        super().__init__(params, {})
        self.numbers = lr, beta1, beta2, decay

    @torch.no_grad()
    def step(self):
        lr, beta1, beta2, decay = self.numbers
        for p in self.param_groups[0]["params"]:
            m = self.state[p].get("m", torch.zeros_like(p))
            p -= lr * (torch.sign(beta1 * m + (1 - beta1) * p.grad) + decay * p)
            self.state[p]["m"] = beta2 * m + (1 - beta2) * p.grad


class TwinMuon(torch.optim.Optimizer):
    """Muon as it is written: momentum, Newton–Schulz matrix by matrix, AdamW for vectors."""

    def __init__(self, params, lr, scale):
        params = list(params)
        super().__init__(params, {})
        self.lr, self.scale, self.others = (
            lr,
            scale,
            torch.optim.AdamW([p for p in params if p.dim() < 2], lr, (0.9, 0.95), 1e-10, weight_decay=0.0),
        )

    @torch.no_grad()
    def step(self):
        self.others.step()
        for p in (p for p in self.param_groups[0]["params"] if p.dim() > 1):
            g = p.grad.flatten(1)
            m = self.state[p].get("m", torch.zeros_like(g))
            self.state[p]["m"] = m = 0.95 * m + 0.05 * g
            u = 0.05 * g + 0.95 * m
            p -= self.lr * self.scale(*g.shape) * newton_schulz(u).reshape(p.shape)


def newton_schulz(u):
    x = u / u.norm()
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x


SCALES = {"match_rms_adamw": lambda a, b: 0.2 * sqrt(max(a, b)), "original": lambda a, b: sqrt(max(1, a / b))}


@pytest.mark.slow
@pytest.mark.parametrize("moments", ["reset", "keep", "average"])
def test_lion_and_muon_train_as_their_twins(moments):
    reset = moments == "reset"
    lion = train_there(lambda p: TwinLion(p, LR, 0.9, 0.99, 0.1), reset=reset)
    assert_near(train_here(fk.Lion(moments=moments), weight_decay=0.1), lion)
    for scale, factor in SCALES.items():
        for convolution in (False, True):
            make = lambda p: TwinMuon(p, LR, factor)  # noqa: E731, B023
            expected = train_there(make, make_network(convolution), reset=reset)
            assert_near(train_here(fk.Muon(scale=scale, moments=moments), make_network(convolution)), expected)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this PyTorch has no Muon")
def test_muon_is_torchs_within_bfloat16():
    """Ten steps along gradients of full rank: in others, rounding decides what becomes of the zeros."""
    shapes, generator = {"square": (6, 6), "wide": (5, 24), "tall": (16, 5)}, torch.Generator().manual_seed(0)
    for scale in SCALES:
        theirs = {name: nn.Parameter(torch.zeros(shape)) for name, shape in shapes.items()}
        optimiser = torch.optim.Muon(theirs.values(), 1.0, weight_decay=0.0, adjust_lr_fn=scale)
        rules = [fk.Muon(scale=scale, precision=precision) for precision in ("full", "bfloat16")]
        places = [fk.Tree.of({name: p.detach() for name, p in theirs.items()}) for _ in rules]
        moments = [rule.first_moments(place) for rule, place in zip(rules, places, strict=True)]
        for count in range(1, 11):
            gradient = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
            for name, p in theirs.items():
                p.grad = gradient[name].clone()
            optimiser.step()
            for i, rule in enumerate(rules):
                step, moments[i] = rule.turn(fk.Tree.of(gradient), moments[i], torch.tensor(float(count)))
                places[i] = places[i] - step
        for name, p in theirs.items():
            for place in places:
                assert (place[name] - p).norm() < 0.05 * p.norm(), (scale, name)


# ---- numbers worked out by hand ------------------------------------------------------------------------------------
def step_once(rule, gradient, **leaves):
    """The first step of a rule, along a gradient."""
    tree = fk.Tree.of({name: torch.tensor(value, dtype=torch.float64) for name, value in (gradient | leaves).items()})
    zero = tree.scalar()
    at = fk.Local(tree, tree, {"params": tree}, None, zero, torch.tensor(0), zero, torch.tensor(0))
    method = fk.method("tested", gradient=[rule], weights=fk.BySize())
    return rule.step(tree, init_round(method, tree), at)[0]


def test_first_steps():
    assert step_once(fk.AdamW(eps=1e-300), {"w": [2.0, -3.0]})["w"].tolist() == pytest.approx([1, -1])
    assert step_once(fk.Lion(), {"w": [2.0, -3.0, 0.0]})["w"].tolist() == [1, -1, 0]
    assert step_once(fk.Adagrad(initial=9.0), {"w": [4.0]})["w"].tolist() == pytest.approx([4 / 5])
    turned = step_once(fk.Muon(scale="original", other_rate=0.5), {"w": [[0.0, 3.0, 4.0], [0.0, 0.0, 0.0]], "b": [7.0]})
    assert turned["w"][0].tolist() == pytest.approx([0, 0.41786, 0.55715], abs=1e-5)
    assert turned["b"].tolist() == pytest.approx([0.5])


def test_what_is_a_matrix():
    shapes = {"fc": (3, 4), "conv": (4, 3, 2, 2), "row": (1, 1, 5), "column": (5, 1), "bias": (5,), "number": ()}
    layout = fk.Tree.of({name: torch.zeros(shape) for name, shape in shapes.items()}).layout
    matrices, others = split_matrices(layout, ("fc",))
    assert set(matrices.shapes) == {"conv"}
    assert set(others.shapes) == set(shapes) - {"conv"}
    assert set(split_matrices(layout, ())[0].shapes) == {"fc", "conv"}


def orthogonalise_stacks(stacks, together=0):
    """Orthogonalise stacks `[matrices, rows, columns]` of one client."""
    row = orthogonalise([stack[None] for stack in stacks], [1.0] * len(stacks), 5, together)[0]
    parts = row.split([stack.numel() for stack in stacks])
    return [part.view(stack.shape) for part, stack in zip(parts, stacks, strict=True)]


def test_singular_values_end_near_one_on_both_ways():
    generator = torch.Generator().manual_seed(0)
    for columns in (8, 9, 40):  # single steps, and pairs of them on the smaller side
        x = torch.randn(20, 8, columns, generator=generator, dtype=torch.float64)
        x[:, 0] = x[:, 1] + 1e-3 * x[:, 0]  # badly conditioned
        exact = torch.stack([newton_schulz(one) for one in x])
        rounded = torch.stack([newton_schulz(one) for one in x.bfloat16()])
        for dtype, tolerance in (
            (torch.float64, 1e-12), (torch.float32, 1e-4), (torch.bfloat16, 1.5 * (rounded - exact).norm()),
        ):  # fmt: skip
            (found,) = orthogonalise_stacks([x.to(dtype)])
            assert (found - exact).norm() < tolerance, (columns, dtype)
    assert torch.equal(orthogonalise_stacks([torch.zeros(1, 2, 9)])[0], torch.zeros(1, 2, 9))


def test_matrices_that_are_filled_up_end_where_they_end_alone():
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 3, 40), (1, 6, 6), (4, 8, 9), (3, 30, 8), (1, 12, 30))
    stacks = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    alone = [torch.stack([newton_schulz(one) for one in stack]) for stack in stacks]
    for together in (0, 7, 8, 9, 100):
        for found, expected in zip(orthogonalise_stacks(stacks, together), alone, strict=True):
            assert found.shape == expected.shape
            assert (found - expected).abs().max() < 1e-12


def test_matrices_of_each_client_lie_in_its_row():
    """Clients at once, or one by one, or under vmap: the same rows, leaf after leaf, times the scales."""
    generator = torch.Generator().manual_seed(0)
    stacks = [torch.randn(3, *shape, generator=generator, dtype=torch.float64) for shape in ((2, 4, 9), (3, 7, 2))]
    found = orthogonalise(stacks, [2.0, 0.5], 5, 128)
    for client, row in enumerate(found):
        pairs = zip((2.0, 0.5), stacks, strict=True)
        scaled = [scale * newton_schulz(x).flatten() for scale, stack in pairs for x in stack[client]]
        assert (row - torch.cat(scaled)).abs().max() < 1e-12
    mapped = torch.vmap(lambda one, other: orthogonalise([one[None], other[None]], [2.0, 0.5], 5, 128), (1, 0))
    assert (mapped(stacks[0].movedim(0, 1), stacks[1])[:, 0] - found).abs().max() < 1e-12


def test_momentum_zero_is_sgd():
    plain = fk.method("plain", weights=fk.BySize())
    settings = {
        "rounds": 2,
        "participation": 1.0,
        "epochs": 2,
        "batch_size": 4,
        "lr": LR,
        "weight_decay": 0.1,
        "clip": 1.0,
    }
    runs = [
        fk.run(fk.Experiment(problem=make_problem(make_network()), method=one, **settings), engine="serial")
        for one in (plain, plain.then(fk.LocalMomentum(0.0)))
    ]
    assert runs[0].result["model_digest"] == runs[1].result["model_digest"]


def test_averaged_moments_are_those_of_the_aggregation():
    """Two clients: the server's moments are the mean of theirs by size, and its count that of their steps."""
    given = small_problem(sizes=(4, 12), test=4)
    problem = fk.Problem(model=make_network(), loss=given.loss, clients=given.clients, test=given.test)

    def moments(participants, size):
        method = fk.method("tested", gradient=[fk.AdamW(moments="average")], weights=fk.BySize())
        settings = {"rounds": 1, "participants": [participants], "epochs": 1, "batch_size": size, "lr": LR}
        return fk.run(fk.Experiment(problem=problem, method=method, **settings), dtype=torch.float64).server

    both, first, second = (moments(clients, 4) for clients in ([0, 1], [0], [1]))
    for slot in ("adamw_m", "adamw_v"):
        expected = 0.25 * first[slot] + 0.75 * second[slot]
        torch.testing.assert_close(both[slot].buffer, expected.buffer)
    assert both["adamw_count"].item() == pytest.approx(0.25 * 1 + 0.75 * 3)


def test_muon_multiplies_as_the_network_computes():
    layout = fk.Tree.of({"w": torch.zeros(2, 3)}).layout
    for lowered, precision in ((False, "full"), (True, "bfloat16")):
        setting = Setting(layout, (), epochs=1, lowered=lowered)
        assert fk.Muon().settled(setting).precision == precision
        assert fk.Muon(precision="full").settled(setting).precision == "full"


def test_averaged_moments_that_no_phase_sends_are_refused_in_one_line():
    measures = fk.Phase(gradient=(fk.AdamW(moments="average"),), trains=False, uploads=False)
    mine = fk.Method("mine", (measures, fk.Phase()), fk.BySize())
    asked = fk.Experiment(problem=small_problem(sizes=(4,)), method=mine, rounds=1)
    with pytest.raises(fk.MethodError, match=r"AdamW\.server_step reads .\w+., which no rule") as error:
        fk.run(asked, engine="serial")
    assert "in a phase that uploads" in error.value.hint

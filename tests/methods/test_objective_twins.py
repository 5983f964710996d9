"""Methods with an objective of their own against twins by plain autograd, in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

import fedkeel as fk
from fedkeel.core.objectives import correlation
from fedkeel.methods import build
from fedkeel.problems.calling import find_classifier
from problems import small_problem

SIZES = (7, 4, 5)
SCHEDULE = [[0, 1], [1, 2], [0, 2]]
Params = dict[str, Tensor]


def problem(smooth: bool) -> fk.Problem:
    """A perceptron; the smooth one has no kernels, so that stacked clients go through vmap."""
    given = small_problem(sizes=SIZES, test=4)
    return replace(given, model=nn.Sequential(given.model[0], nn.Tanh(), given.model[2])) if smooth else given


def found(given: fk.Problem, method: fk.Method, engine: str) -> list[Params]:
    """Three rounds of two steps on the whole data of each client; sizes differ, so that stacked batches are filled."""
    settings = {"rounds": 3, "participants": SCHEDULE, "epochs": 2, "batch_size": 8, "lr": 0.1}
    run = fk.run(fk.Experiment(problem=given, method=method, **settings), dtype=torch.float64, engine=engine,
                 keep_params=True)  # fmt: skip
    return list(run.history)


def slope(loss: Tensor, params: Params) -> Params:
    return dict(zip(params, torch.autograd.grad(loss, list(params.values())), strict=True))


def combine(*terms: tuple[float, Params]) -> Params:
    return {name: sum(factor * tree[name].detach() for factor, tree in terms) for name in terms[0][1]}


def first(given: fk.Problem) -> Params:
    return {name: leaf.detach().double() for name, leaf in given.model.named_parameters()}


def close(one: list[Params], other: list[Params], atol: float = 1e-12) -> None:
    for a, b in zip(one, other, strict=True):
        for name, leaf in a.items():
            torch.testing.assert_close(leaf, b[name], rtol=0, atol=atol)


def pass_through(model: nn.Module, params: Params, x: Tensor) -> tuple[Tensor, Tensor]:
    """Logits and features."""
    hidden = model[1](functional.linear(x, params["0.weight"], params["0.bias"]))
    return functional.linear(hidden, params["2.weight"], params["2.bias"]), hidden


def follow(given: fk.Problem, added: Callable[[Tensor, Tensor, Tensor], Tensor]) -> list[Params]:
    """FedAvg by plain autograd, with a term added to the loss: the global model after each round.

    The term is of the features, of those of the model that was sent, and of those of the client's last model.
    """
    model, expected = given.model.double(), list[Params]()
    w = first(given)
    last = [w for _ in SIZES]
    for selected in SCHEDULE:
        for i in selected:
            x, y = given.clients[i][0].double(), given.clients[i][1]
            here, (_, sent), (_, before) = w, pass_through(model, w, x), pass_through(model, last[i], x)
            for _ in range(2):
                params = {n: leaf.clone().requires_grad_() for n, leaf in here.items()}
                z, h = pass_through(model, params, x)
                loss = functional.cross_entropy(z, y) + added(h, sent, before)
                here = combine((1, here), (-0.1, slope(loss, params)))
            last[i] = here
        total = sum(SIZES[i] for i in selected)
        w = combine(*((SIZES[i] / total, last[i]) for i in selected))
        expected.append(w)
    return expected


# ---- FedGMT --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["fedgmt", "fedgmt@released"])
def test_fedgmt_follows_the_mean_model(name: str) -> None:
    gamma, temperature, alpha, lam, given = 0.7, 2.0, 0.6, 0.3, problem(smooth=False)
    momentum = 0.4 if name == "fedgmt@released" else 0.0
    model = given.model.double()
    w = e = first(given)
    duals = [{n: torch.zeros_like(leaf) for n, leaf in w.items()} for _ in SIZES]
    expected = []
    for selected in SCHEDULE:
        e, ends = combine((alpha, e), (1 - alpha, w)), {}
        for i in selected:
            x, y = given.clients[i][0].double(), given.clients[i][1]
            here, ball = w, combine((0, w))
            for _ in range(2):
                params = {n: leaf.clone().requires_grad_() for n, leaf in here.items()}
                z, teacher = functional_call(model, params, (x,)), functional_call(model, e, (x,)).detach()
                apart = functional.kl_div(
                    (z / temperature).log_softmax(-1), (teacher / temperature).softmax(-1), reduction="batchmean"
                )
                g = slope(functional.cross_entropy(z, y) + gamma * temperature**2 * apart, params)
                ball = combine((1, g), (lam, duals[i]), (momentum, ball))
                here = combine((1, here), (-0.1, ball))
            duals[i] = combine((1, duals[i]), (1, here), (-1, w))
            ends[i] = here
        if name == "fedgmt":
            w = combine(*((1 / len(ends), combine((1, end), (1, duals[i]))) for i, end in ends.items()))
        else:
            total = sum(SIZES[i] for i in ends)
            w = combine(*((SIZES[i] / total, end) for i, end in ends.items()), *((1 / 3, dual) for dual in duals))
        expected.append(w)
    settings = {"gamma": gamma, "temperature": temperature, "alpha": alpha, "lam": lam}
    method = build(name, settings | ({"momentum": momentum} if momentum else {}))
    for engine in ("serial", "stacked"):
        close(found(problem(smooth=False), method, engine), expected)


def test_a_teacher_that_nobody_sends_is_refused() -> None:
    method = fk.method("mine", weights=fk.Uniform(), objective=fk.Guided())
    with pytest.raises(fk.MethodError, match="compares with the model 'trajectory', which no rule of 'mine' sends"):
        fk.run(fk.Experiment(problem=problem(smooth=False), method=method, rounds=1, epochs=1, batch_size=4, lr=0.1))


# ---- FedDecorr -----------------------------------------------------------------------------------------------------
def penalty(features: Tensor) -> Tensor:
    """Entry by entry."""
    n, d = features.shape
    if n == 1:
        return features.new_zeros(())
    columns = [(column - column.mean()) / (column.var() + 1e-8).sqrt() for column in features.unbind(1)]
    pairs = [(columns[j] @ columns[k]) ** 2 for j in range(d) for k in range(d) if j != k]
    return torch.stack(pairs).mean() / n


@pytest.mark.parametrize("smooth", [False, True])
def test_feddecorr_pays_for_correlated_features(smooth: bool) -> None:
    beta = 0.05
    expected = follow(problem(smooth), lambda h, sent, last: beta * penalty(h))
    for engine in ("serial", "stacked"):
        close(found(problem(smooth), build("feddecorr", {"beta": beta}), engine), expected, atol=1e-10)


def test_the_penalty_in_units_of_the_paper() -> None:
    """(n − 1)² / n · d / (d − 1) times the off-diagonal part of ‖K‖² / d², K the correlations."""
    n, d = 64, 32
    features = torch.randn(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    k = torch.corrcoef(features.T)
    paper = (k.square().sum() - d) / d**2
    expected = (n - 1) ** 2 / n * d / (d - 1) * paper
    torch.testing.assert_close(correlation(features, None), expected, rtol=1e-6, atol=0)


def test_samples_that_fill_a_batch_up_do_not_count() -> None:
    features = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    filled = torch.cat([features, features[:1].expand(4, 3)])
    mask = torch.tensor([1.0] * 5 + [0.0] * 4, dtype=torch.float64)
    torch.testing.assert_close(correlation(filled, mask), correlation(features, None))
    alone = torch.tensor([1.0] + [0.0] * 8, dtype=torch.float64)
    assert correlation(filled, alone) == correlation(features[:1], None) == 0


class Functional(nn.Module):
    """Its classifier is a pair of parameters, not a layer that is called."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.last.weight, self.last.bias)


def test_what_feddecorr_cannot_do_is_said_in_a_line() -> None:
    given = replace(problem(smooth=False), model=Functional())
    settings = {"rounds": 1, "epochs": 1, "batch_size": 4, "lr": 0.1}
    with pytest.raises(fk.ModelError, match="the model calls none as a layer"):
        fk.run(fk.Experiment(problem=given, method="feddecorr", **settings), engine="serial")
    with pytest.raises(fk.MethodError, match="fedlc trains on an objective of its own"):
        build("feddecorr+fedlc")
    with pytest.raises(fk.MethodError, match="feddecorr brings another, and a phase has only one") as refused:
        build("feddecorr+smoothed+fedavg")
    assert "return the sum of both" in str(refused.value)
    assert build("feddecorr+fedprox", {"beta": 0.2}).phases[0].objective == fk.Decorrelated(0.2)


@dataclass(frozen=True)
class Both(fk.Objective):
    """Smoothed labels and decorrelated features."""

    smoothing: float
    beta: float
    adds: ClassVar[bool] = True
    features: ClassVar[bool] = True
    scores: ClassVar[bool] = True
    labels: ClassVar[bool] = True

    def losses(self, output: tuple[Tensor, Tensor], target: Tensor, given: fk.Given) -> Tensor:
        smoothed = fk.Smoothed(self.smoothing).losses(output[0], target, given)
        return smoothed + fk.Decorrelated(self.beta).losses(output, target, given)


def test_one_objective_may_return_the_sum_of_two() -> None:
    def train(method: fk.Method | str, engine: str = "serial") -> list[Params]:
        return found(problem(smooth=False), build(method) if isinstance(method, str) else method, engine)

    def both(smoothing: float, beta: float) -> fk.Method:
        return fk.method("both", weights=fk.BySize(), objective=Both(smoothing, beta))

    close(train(both(0.1, 0.0)), train("smoothed+fedavg"))
    close(train(both(0.0, 0.1)), train("feddecorr"))
    close(train(both(0.1, 0.1)), train(both(0.1, 0.1), "stacked"))


class Tied(nn.Module):
    """Words that are read and written by one matrix; `tied` False has a copy for writing. The last layer is called by
    name."""

    def __init__(self, tied: bool, embedding_last: bool = False) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(0)
        layers = {"read": nn.Embedding(7, 4), "write": nn.Linear(4, 7, bias=False)}
        for name in sorted(layers, reverse=embedding_last):
            self.add_module(name, layers[name])
        layers["read"].weight = nn.Parameter(torch.randn(7, 4, generator=draw))
        layers["write"].weight = layers["read"].weight if tied else nn.Parameter(layers["read"].weight.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        return self.write(input=self.read(x).tanh())


@pytest.mark.parametrize("embedding_last", [False, True])
@pytest.mark.parametrize("head", [None, "write.*", "read.weight"])
def test_an_embedding_with_the_classifiers_weights_is_not_the_classifier(
    head: str | None, embedding_last: bool
) -> None:
    model = Tied(tied=True, embedding_last=embedding_last)
    assert find_classifier(model, None if head is None else [head]) is model.write


def test_feddecorr_of_tied_weights_steps_by_both_of_their_slopes() -> None:
    """One step: the slope in tied weights is the sum of those in a matrix and in its copy."""
    words = torch.arange(14).remainder(7)
    clients = [(words, words.flip(0))]
    given = [fk.Problem(model=Tied(tied), loss=functional.cross_entropy, clients=clients) for tied in (True, False)]
    settings = {"rounds": 1, "epochs": 1, "batch_size": 16, "lr": 0.1, "method": {"name": "feddecorr", "beta": 0.5}}
    first = given[0].model.read.weight.detach().double()
    for engine in ("serial", "stacked"):
        tied, apart = (
            fk.run(fk.Experiment(problem=one, **settings), dtype=torch.float64, engine=engine).params for one in given
        )
        torch.testing.assert_close(tied["read.weight"], apart["read.weight"] + apart["write.weight"] - first)


def test_a_head_without_features_is_refused() -> None:
    """An embedding is given numbers of words."""
    words = torch.arange(14).remainder(7)
    given = fk.Problem(
        model=Tied(tied=False), loss=functional.cross_entropy, clients=[(words, words)], head="read.weight"
    )
    for engine in ("serial", "stacked"):
        with pytest.raises(fk.ModelError, match="the model calls none as a layer"):
            fk.run(fk.Experiment(problem=given, method="feddecorr", rounds=1, epochs=1, lr=0.1), engine=engine)


def squares(output: Tensor, target: Tensor) -> Tensor:
    return (output - functional.one_hot(target, 3)).square().mean()


@pytest.mark.slow
def test_the_problems_own_loss_is_kept() -> None:
    given = replace(problem(smooth=False), loss=squares)
    for engine in ("serial", "stacked"):
        one, other = (found(given, build(name), engine) for name in ("feddecorr+fedsam", "fedsam"))
        plain = found(given, build("feddecorr+fedsam", {"beta": 0.0}), engine)
        close(plain, other)
        assert any((one[-1][name] - leaf).abs().max() > 1e-6 for name, leaf in other[-1].items())


# ---- label smoothing -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("ignored", [False, True])
@pytest.mark.parametrize("smooth", [False, True])
def test_smoothed_labels_are_those_of_the_smoothed_cross_entropy(smooth: bool, ignored: bool) -> None:
    given = replace(problem(smooth), loss=functional.cross_entropy)
    if ignored:
        given = replace(given, clients=[(x, y.index_fill(0, torch.tensor([1]), -100)) for x, y in given.clients])
    torchs = replace(given, loss=partial(functional.cross_entropy, label_smoothing=0.3))
    for base in ("fedavg", "feddyn"):
        expected = found(torchs, build(base), "serial")
        for engine in ("serial", "stacked"):
            close(found(given, build(f"smoothed+{base}", {"smoothing": 0.3}), engine), expected)


def test_smoothed_labels_need_scores_of_classes() -> None:
    given = replace(problem(smooth=False), loss=functional.mse_loss)
    given = replace(given, clients=[(x, torch.zeros(len(x), 3)) for x, _ in given.clients], test=None)
    with pytest.raises(fk.MethodError, match="smoothed"):
        fk.run(fk.Experiment(problem=given, method="smoothed+fedavg", rounds=1, epochs=1, batch_size=4, lr=0.1))


# ---- features of other models --------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Near(fk.Objective):
    """The loss + ‖features − those of the model that was sent‖²."""

    adds: ClassVar[bool] = True
    reference: ClassVar[bool] = True
    features: ClassVar[bool] = True

    def losses(self, output: tuple[Tensor, Tensor], target: Tensor, given: fk.Given) -> Tensor:
        return (output[1] - given.reference[1]).square().sum(1)


@pytest.mark.parametrize("smooth", [False, True])
def test_features_are_compared_with_those_of_the_model_that_was_sent(smooth: bool) -> None:
    expected = follow(problem(smooth), lambda h, sent, last: (h - sent).square().sum(1).mean())
    method = fk.method("near", weights=fk.BySize(), objective=Near())
    for engine in ("serial", "stacked"):
        close(found(problem(smooth), method, engine), expected)


# ---- MOON ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class LastModel(fk.Rule, stackable=True):
    """Keep the client's last model."""

    def client_slots(self, params: fk.Tree) -> dict[str, Any]:
        return {"prev": params}

    def finish(self, report: dict[str, Any], client: dict[str, Any], at: fk.Local) -> tuple[Any, Any]:
        return report, client | {"prev": at.params}


@dataclass(frozen=True)
class Contrastive(fk.Objective):
    """The loss − log of softmax(cos(h, h_global) / T, cos(h, h_last) / T) at the first."""

    temperature: float = 0.5
    adds: ClassVar[bool] = True
    reference: ClassVar[bool] = True
    teacher: ClassVar[tuple[str, ...]] = ("params", "prev")
    features: ClassVar[bool] = True

    def losses(self, output: tuple[Tensor, Tensor], target: Tensor, given: fk.Given) -> Tensor:
        alike = [functional.cosine_similarity(output[1], other) for _, other in given.reference]
        return -(torch.stack(alike, 1) / self.temperature).log_softmax(1)[:, 0]


def moon(temperature: float = 0.5) -> fk.Method:
    return fk.method("moon", gradient=[LastModel()], weights=fk.BySize(), objective=Contrastive(temperature))


def contrast(h: Tensor, sent: Tensor, last: Tensor) -> Tensor:
    """MOON's term, as its paper writes it."""
    near, far = (torch.exp(functional.cosine_similarity(h, other, dim=1) / 0.5) for other in (sent, last))
    return -torch.log(near / (near + far)).mean()


@pytest.mark.parametrize("smooth", [False, True])
def test_moon_contrasts_with_the_global_model_and_the_clients_last(smooth: bool) -> None:
    expected = follow(problem(smooth), contrast)
    for engine in ("serial", "stacked"):
        close(found(problem(smooth), moon(), engine), expected)


class Everywhere(LastModel):
    """The same rule, which does not say that it can be stacked without vmap."""


def test_moon_is_the_same_where_rules_are_stacked_by_vmap() -> None:
    expected = follow(problem(smooth=False), contrast)
    method = fk.method("moon", gradient=[Everywhere()], weights=fk.BySize(), objective=Contrastive())
    close(found(problem(smooth=False), method, "stacked"), expected)


@dataclass(frozen=True)
class KeepsBias(fk.Rule):
    def client_slots(self, params: fk.Tree) -> dict[str, Any]:
        return {"prev": params.only(lambda name: name.endswith("bias"))}


@pytest.mark.parametrize(
    ("rule", "message"),
    [(fk.Proximal(0.1), "'prev', which no rule of 'mine' sends or keeps"), (KeepsBias(), "'prev', which is no whole")],
)
def test_a_teacher_that_no_client_keeps_is_refused(rule: fk.Rule, message: str) -> None:
    method = fk.method("mine", gradient=[rule], weights=fk.Uniform(), objective=Contrastive())
    with pytest.raises(fk.MethodError, match=message):
        found(problem(smooth=False), method, "serial")

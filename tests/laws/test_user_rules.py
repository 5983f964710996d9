"""Rules of a user's own are right in every engine: what broadcasting would get wrong is found by what a rule says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import pytest
import torch

import fedkeel as fk
from fedkeel.core.rule import LOCAL_STAGES, Rule, declares_stackable, is_stackable
from fedkeel.core.trees import tensors
from fedkeel.engines.stacked.client_mapping import choose_lift, lift_by_broadcast, lift_by_vmap
from fedkeel.rules import RULES
from fedkeel.rules.sharing import Confined
from problems import small_problem

CPU = torch.device("cpu")


# ---- rules that see a whole buffer at once: right for one client, wrong on a stack of them ----
@dataclass(frozen=True)
class Centred(fk.Rule):
    """v − mean v."""

    def step(self, tree, client, at):
        return tree.elementwise(lambda v: v - v.mean()), client


@dataclass(frozen=True)
class Steepest(fk.Sam):
    """A subclass that overrides a stage."""

    def step(self, tree, client, at):
        return tree.elementwise(lambda v: self.rho * v / (v.abs().max() + 1e-12)), client


@dataclass(frozen=True)
class OwnBand(fk.HighPass):
    """A subclass that overrides what a stage calls."""

    def filter(self, rows, at):
        return rows - rows.mean() * self.ratio


@dataclass(frozen=True)
class Trace(fk.Rule):
    """A stateful one: all three stages of a client, each with a number of the whole model."""

    def client_slots(self, params):
        return {"trace": params.zeros(), "count": params.scalar(0.0)}

    def start(self, params, client, message):
        return params, client | {"count": client["count"] + params.buffer.abs().max()}

    def step(self, tree, client, at):
        trace = client["trace"] * 0.5 + tree * tree.buffer.abs().mean()
        return tree + 0.1 * trace, client | {"trace": trace}

    def finish(self, report, client, at):
        return report | {"longest": at.params.buffer.abs().max()}, client


@dataclass(frozen=True)
class Holder(fk.Rule):
    """A user's wrapper that is itself written along the last axis."""

    inner: Rule
    stackable: ClassVar[bool] = True

    def step(self, tree, client, at):
        found, client = self.inner.step(tree, client, at)
        return 0.5 * found, client


@dataclass(frozen=True)
class Favour(fk.Weighting):
    """A weighting of a user's own, which clients never call."""

    def __call__(self, reports, server):
        return torch.softmax(reports["loss"], 0)


@dataclass(frozen=True)
class FavourLong(Favour):
    """One that clients do call, at the end of their round."""

    def finish(self, report, client, at):
        return report | {"far": at.params.buffer.abs().max()}, client

    def __call__(self, reports, server):
        return torch.softmax(reports["far"], 0)


def reduced_by(reduce):
    @dataclass(frozen=True)
    class Reduced(fk.Rule):
        def step(self, tree, client, at):
            return tree * (1 + 0.1 * reduce(tree.buffer)), client

    return Reduced()


REDUCTIONS = [torch.mean, torch.amax, torch.std, torch.linalg.vector_norm, lambda v: v[0], lambda v: v.flip(0)[0]]
FORGETFUL = [Centred(), OwnBand(0.3), *map(reduced_by, REDUCTIONS)]
WRAPPED = {
    "alone": lambda rule: {"gradient": [rule]},
    "on everything": lambda rule: {"gradient": [fk.On("*", rule)]},
    "on one layer": lambda rule: {"gradient": [fk.On("0.*", rule)]},
    "held": lambda rule: {"gradient": [Holder(rule)]},
    "on and held": lambda rule: {"gradient": [fk.On("*", Holder(rule))]},
    "behind a climb": lambda rule: {"perturb": [fk.Sam(0.1), fk.On("*", rule)]},
    "under private layers": lambda rule: {"gradient": [rule], "personal": [fk.PrivateLayers()]},
    "with memory under private layers": lambda rule: {"gradient": [rule, Trace()], "personal": [fk.PrivateLayers()]},
}
CASES = {
    f"{how}, {i}": WRAPPED[how](rule)
    for how in WRAPPED
    for i, rule in enumerate(FORGETFUL if how == "alone" else FORGETFUL[:3])
} | {
    "a subclass of Sam": {"perturb": [Steepest(0.1)]},
    "a subclass of Sam on everything": {"perturb": [fk.On("*", Steepest(0.1))]},
    "memory": {"gradient": [Trace()]},
    "memory under private layers": {"gradient": [Trace()], "personal": [fk.PrivateLayers()]},
    "a weighting that clients call": {"gradient": [fk.Proximal(0.1)], "weights": FavourLong()},
    "a weighting that they do not": {"gradient": [fk.Proximal(0.1)], "weights": Favour()},
}


def trained(parts, engine, **options):
    settings = {"rounds": 2, "participation": 1.0, "epochs": 1, "batch_size": 4, "lr": 0.1, "clip": 5.0}
    method = fk.method("own", **{"weights": fk.Uniform()} | parts)
    exp = fk.Experiment(problem=small_problem(sizes=(7, 4, 5), test=4), method=method, **settings)
    return fk.run(exp, engine=engine, dtype=torch.float64, **options)


AGAIN = [f"{how}, {i}" for n, how in enumerate(WRAPPED) if how != "alone" for i in range(3) if i != n % 3]
"""Wrapped rules that stand in another wrapping too."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in AGAIN else []) for name in CASES]
)
def test_stacked_clients_learn_what_they_would_learn_alone(name):
    one, other = (trained(CASES[name], engine).params for engine in ("serial", "stacked"))
    assert max((one[n] - other[n]).abs().max().item() for n in one) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a subclass of Sam on everything", "memory under private layers"])
def test_processes_too(name):
    one = trained(CASES[name], "serial", device="cpu").params
    other = trained(CASES[name], "processes", workers=2).params
    assert all(torch.equal(one[n], other[n]) for n in one)


# ---- what is asked ----
def test_a_rule_says_for_itself_that_it_works_along_the_last_axis():
    @dataclass(frozen=True)
    class Renamed(fk.Sam):
        """Nothing but another name, and another default."""

        rho: float = 0.2

    @dataclass(frozen=True)
    class Again(Steepest):
        stackable: ClassVar[bool] = True

    @dataclass(frozen=True)
    class Several(fk.Rule):
        stackable: ClassVar[bool] = True
        inner: tuple[Rule, ...] = field(default=())

        def step(self, tree, client, at):
            return tree, client

    assert is_stackable(Renamed())
    assert not is_stackable(Steepest(0.1))
    assert is_stackable(Again(0.1))
    assert not is_stackable(OwnBand(0.1))
    assert not is_stackable(fk.On("*", Steepest(0.1)))
    assert not is_stackable(Confined(Trace(), ("a",)))
    assert not is_stackable(Several((fk.Sam(0.1), Centred())))
    assert is_stackable(Several((fk.Sam(0.1),)))
    assert not is_stackable(fk.On("*", fk.RandomBand(0.1)))


def test_only_rules_that_clients_call_are_asked():
    @dataclass(frozen=True)
    class OwnServer(fk.Rule):
        def server_step(self, update, server, reports):
            return update * update.buffer.abs().max(), server

    @dataclass(frozen=True)
    class OwnFinal(fk.Rule):
        def step(self, tree, client, at):
            return tree * tree.buffer.mean(), client

    plain = fk.method("own", perturb=fk.Sam(0.1), weights=Favour(), server=OwnServer())
    tuned = fk.Method("own", plain.phases, Favour(), final=fk.Phase(gradient=(OwnFinal(),)))
    assert choose_lift(plain, CPU) is lift_by_broadcast
    assert choose_lift(tuned, CPU) is lift_by_broadcast
    assert choose_lift(tuned.tuning, CPU) is lift_by_vmap
    assert choose_lift(fk.method("own", weights=FavourLong()), CPU) is lift_by_vmap


def test_every_rule_of_the_library_that_draws_nothing_says_so():
    """No method of the library is slower in a stack than it could be; the engines' tests hold it against vmap."""
    for name, kind in RULES.items():
        called = any(getattr(kind, stage) is not getattr(Rule, stage) for stage in LOCAL_STAGES)
        assert declares_stackable(kind) == (called and name not in DRAW | ON_THE_SERVER), name


DRAW = {"ByChance", "RandomBand", "RandomEnergy"}
ON_THE_SERVER = {"AtMixture", "LearnMixture"}


# ---- vectors that all clients share: as long as there are clients, and not ----
@dataclass(frozen=True)
class Vectors(fk.Rule, stackable=True):
    """Puts a vector of the message, and a constant one, into slots and reports, at one stage of a client's round."""

    stage: str = "step"
    length: int = 3

    def constant(self, beside):
        return torch.arange(1.0, self.length + 1).to(beside.buffer)

    def server_slots(self, params):
        return {"vector": self.constant(params), "server_table": self.constant(params).expand(2, -1).clone()}

    def client_slots(self, params):
        empty = torch.zeros_like(self.constant(params))
        return {"number": params.scalar(), "mine": empty, "sent": empty, "table": empty.expand(2, -1).clone()}

    def round_slots(self, params):
        return {"held": self.constant(params), "count": params.scalar(1.0)}

    def broadcast(self, message, server):
        return message | {"vector": server["vector"], "table_sent": server["server_table"]}

    def fill(self, client, message, beside):
        given = {"mine": self.constant(beside), "sent": message["vector"], "table": message["table_sent"]}
        return client | given | {"number": beside.scalar(2.0), "held": client["held"] + message["vector"]}

    def start(self, params, client, message):
        return params, self.fill(client, message, params) if self.stage == "start" else client

    def step(self, tree, client, at):
        scale = 1 + 0.01 * (client["mine"] + client["sent"] + client["held"]).sum(-1) + 0.01 * client["number"]
        client = client | {"count": client["count"] + 1}
        return tree * scale, self.fill(client, at.message, tree) if self.stage == "step" else client

    def finish(self, report, client, at):
        parts = {f"own_{name}": slot for name, slot in client.items()} | {"constant": self.constant(at.params)}
        report = report | parts | {"again": at.message["vector"], "one": at.params.scalar(3.0)}
        return report, self.fill(client, at.message, at.params) if self.stage == "finish" else client

    def server_step(self, update, server, reports):
        shapes = {name: reports[name].shape[1:] for name in ("constant", "again", "own_mine", "own_sent", "own_held")}
        assert set(shapes.values()) == {(self.length,)}, shapes
        assert reports["own_table"].shape[1:] == (2, self.length)
        assert reports["one"].shape == reports["own_number"].shape == reports["own_count"].shape == reports["lr"].shape
        vector = (reports["again"] + reports["own_mine"] + reports["own_held"] + reports["constant"]).mean(0)
        more = 0.1 * reports["own_count"].mean() + reports["own_table"].mean(0)
        return update, server | {"vector": 0.1 * vector, "server_table": more}


class ClimbingVectors(Vectors, stackable=True):
    needs_gradient = fk.Loss()


@pytest.mark.parametrize(
    ("place", "stage", "length"),
    [("gradient", "start", 2), ("gradient", "step", 3), ("gradient", "finish", 3), ("perturb", "step", 2)],
)
def test_a_vector_that_clients_share_stays_a_vector_of_each(place, stage, length):
    parts = {place: (ClimbingVectors if place == "perturb" else Vectors)(stage, length)}
    one, other = (tensors(trained(parts, engine).server) for engine in ("serial", "stacked"))
    assert all(torch.allclose(*pair, rtol=0, atol=1e-12) for pair in zip(one, other, strict=True))

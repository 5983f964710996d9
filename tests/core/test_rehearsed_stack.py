"""A rule that wrongly says stackable = True is refused before anything is trained; no right one is."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

import pytest
import torch
from for_each import for_each

import fedkeel as fk
from fedkeel.core.layout import layout
from fedkeel.core.rule import Setting
from fedkeel.engines.machine import CPU
from fedkeel.engines.rehearse_stack import compare_stack
from fedkeel.engines.stacked.client_mapping import choose_lift, lift_by_broadcast
from fedkeel.methods import METHODS, PLUGINS, build
from problems import small_problem


def rule(name, base=fk.Rule, **stages):
    return dataclass(frozen=True)(type(name, (base,), stages, stackable=True))()


def run(method, engine="serial"):
    settings = {"rounds": 1, "participation": 1.0, "epochs": 1, "batch_size": 4, "lr": 0.1}
    exp = fk.Experiment(problem=small_problem(sizes=(7, 4), test=4), method=method, **settings)
    return fk.run(exp, engine=engine, dtype=torch.float64)


def by_all(self, tree, client, at):
    return tree * (1 / (1 + tree.buffer.norm())), client


def by_each(self, tree, client, at):
    return tree * (1 / (1 + tree.norm())), client


def keeps(self, params):
    return {"mine": params.zeros()}


def notes_all(self, tree, client, at):
    return tree, client | {"mine": client["mine"] + tree * tree.buffer.mean()}


def notes_each(self, tree, client, at):
    return tree, client | {"mine": client["mine"] + tree * tree.buffer.mean(-1)}


def branches(self, tree, client, at):
    return (tree / tree.norm() if tree.norm() > 1 else tree), client


def reports(self, report, client, at):
    return report | {"size_of_all": report["delta"].buffer.abs().sum()}, client


def begins(self, params, client, message):
    return params + 0.1 * client["mine"].buffer.norm() * message["params"], client


def as_float(self, tree, client, at):
    return fk.Tree((tree.buffer.float() / tree.norm()[..., None].float()).to(tree.buffer), tree.layout), client


def other_model(self, tree, client, at):
    return tree * tree.buffer[..., 30].square().sum(-1), client


WRONG = [
    ("gradient", {"step": by_all}, "its step makes another tree of"),
    ("perturb", {"step": by_all}, "its step makes another tree of"),
    ("gradient", {"step": notes_all, "client_slots": keeps}, "its step makes another 'mine' of"),
    ("gradient", {"step": branches}, "its step fails for stacked clients: "),
    ("server", {"finish": reports}, "its finish makes another 'size_of_all' of"),
    ("gradient", {"step": notes_each, "start": begins, "client_slots": keeps}, "its start makes another params of"),
]


@pytest.mark.parametrize("engine", ["serial", "stacked"])
@pytest.mark.parametrize(("place", "stages", "words"), WRONG)
def test_a_rule_that_mixes_stacked_clients_is_refused(place, stages, words, engine):
    before = {"gradient": fk.ClipNorm(1e9), "perturb": fk.Sam(0.1), "server": fk.ServerMomentum(0.9)}
    chains = {place: (before[place], rule("Mixes", **stages))}
    with pytest.raises(fk.MethodError) as caught:
        run(fk.method("own", weights=fk.Uniform(), **chains), engine)
    assert caught.value.message.startswith(f"Mixes says stackable = True, but mixes clients: {words}")
    assert "\n" not in caught.value.message
    assert "tree.norm()" in caught.value.hint


def test_a_rule_inside_another_is_found_too():
    held = fk.On("*", rule("Mixes", step=by_all))
    with pytest.raises(fk.MethodError, match="says stackable = True, but mixes clients"):
        run(fk.method("own", gradient=held, weights=fk.Uniform()))


@for_each("step", [by_each, as_float, notes_each])
def test_a_rule_that_does_not_is_trained(step):
    run(fk.method("own", gradient=rule("Right", step=step, client_slots=keeps), weights=fk.Uniform()), "stacked")


def test_a_rule_that_the_small_model_does_not_fit_is_not_judged():
    run(fk.method("own", gradient=rule("Own", step=other_model), weights=fk.Uniform()))


def test_where_clients_are_not_stacked_by_broadcasting_nothing_is_wrong():
    chain = (rule("Mixes", step=by_all), fk.RandomBand(0.5))
    method = fk.method("own", gradient=chain, weights=fk.Uniform())
    assert choose_lift(method, CPU) is not lift_by_broadcast
    run(method)


SHAPES = {"conv.weight": (8, 3, 3, 3), "conv.bias": (8,), "norm.weight": (8,), "fc.weight": (10, 8), "fc.bias": (10,)}
SETTING = Setting(layout(tuple(SHAPES.items())), ("fc.weight", "fc.bias"), 5, 20.0, 0.1, 0.998)


def test_no_method_of_the_library_has_a_fault(monkeypatch):
    """Also none that is left out, because it fails on the small model."""
    monkeypatch.setattr("fedkeel.engines.rehearse_stack.suppress", lambda _: nullcontext())
    for method in map(build, [*METHODS, *(f"{plugin}+fedsam" for plugin in PLUGINS)]):
        if choose_lift(method, CPU) is lift_by_broadcast:
            assert compare_stack(method, SETTING) is None, method.name

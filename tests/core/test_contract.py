"""The contract of rules: what breaks it is refused with one line, before anything is trained, whatever the engine."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from for_each import for_each

import fedkeel as fk
from fedkeel.engines import processes
from fedkeel.engines.stacked.gradients_stacked import StackedWorkspace
from fedkeel.problems.gradients import Workspace
from problems import small_problem

ENGINES = ["serial", "stacked", "processes"]


def run(method, engine="serial"):
    settings = {"rounds": 1, "participation": 1.0, "epochs": 1, "batch_size": 4, "lr": 0.1}
    exp = fk.Experiment(problem=small_problem(sizes=(7, 4), test=4), method=method, **settings)
    return fk.run(exp, engine=engine, dtype=torch.float64)


def refused(*words, make):
    with pytest.raises(fk.MethodError) as caught:
        make()
    assert all(word in caught.value.message for word in words), caught.value.message
    assert "\n" not in caught.value.message
    return str(caught.value)


@pytest.fixture
def untrained(monkeypatch):
    """No gradient is taken and no process started: what is refused is refused before."""

    def forbidden(*_, **__):
        raise AssertionError("something was trained")

    for kind in (Workspace, StackedWorkspace):
        monkeypatch.setattr(kind, "__call__", forbidden)
    monkeypatch.setattr(processes, "Worker", forbidden)


# ---- rules that break it ----
def rule(name, base=fk.Rule, **stages):
    return dataclass(frozen=True)(type(name, (base,), stages))()


def writes_tree(self, tree, client, at):
    tree.buffer.mul_(0.5)
    return tree, client


def writes_params(self, tree, client, at):
    at.params["0.bias"].zero_()
    return tree, client


def writes_message(self, params, client, message):
    message["params"].buffer.add_(1)
    return params, client


def writes_slot(self, tree, client, at):
    client["mine"].buffer.add_(tree.buffer)
    return tree, client


def writes_client(self, tree, client, at):
    client["mine"] = client["mine"] + tree
    return tree, client


def writes_report(self, report, client, at):
    report["delta"].buffer.mul_(2)
    return report, client


def writes_update(self, update, server, reports):
    update.buffer.mul_(2)
    return update, server


def writes_weights(self, reports, server):
    reports["loss"].exp_()
    return reports["loss"]


def number_into_server(self, update, server, reports):
    server["mine"] = 1
    return update, server


def text_into_reports(self, update, server, reports):
    reports["loss"] = "low"
    return update, server


def number_into_client(self, tree, client, at):
    client["mine"] = 0.5
    return tree, client


def number_into_message(self, params, client, message):
    message["params"] = 1
    return params, client


def number_into_moment(self, tree, client, at):
    at.message["params"] = 1
    return tree, client


def number_into_report(self, report, client, at):
    report["delta"] = 0.5
    return report, client


def number_into_broadcast(self, message, server):
    server["mine"] = 1
    return message


def number_into_weighting(self, reports, server):
    reports["size"] = 1
    return reports["loss"]


def begins_with_number(self, reports, server):
    return {"mine": 1}


def adds(stage):
    def step(self, tree, client, at):
        return tree, client | {"mine": tree}

    def start(self, params, client, message):
        return params, client | {"mine": params}

    def finish(self, report, client, at):
        return report, client | {"mine": at.params}

    return {stage: {"start": start, "step": step, "finish": finish}[stage]}


def drops(self, tree, client, at):
    return tree, {}


def reshapes(self, tree, client, at):
    return tree, client | {"mine": tree.norm()}


def reports_size(self, report, client, at):
    return report | {"size": at.params.norm()}, client


def reports_number(self, report, client, at):
    return report | {"norm": float(at.params.norm())}, client


def sends_number(self, message, server):
    return message | {"norm": float(server["params"].norm())}


def keeps_number(self, tree, client, at):
    return tree, client | {"mine": 0.5}


def deploys_number(self, model, server):
    return model | {"norm": 0.5}


def serves_number(self, update, server, reports):
    return update, server | {"mine": 0.5}


def remembers_number(self, server):
    return server | {"mine": 0.5}


def remembers_alone(self, server):
    return {"mine": server["params"]}


def serves_alone(self, update, server, reports):
    return update, {"mine": update}


def serves_more(self, update, server, reports):
    return update, server | {"more": update}


def serves_reshaped(self, update, server, reports):
    return update, server | {"mine": update.norm()}


def remembers_more(self, server):
    return server | {"mine": server["params"]}


def sends_alone(self, message, server):
    return {"mine": server["params"]}


def reports_alone(self, report, client, at):
    return {"mine": at.params}, client


def deploys_alone(self, model, server):
    return {}


def starts_elsewhere(self, params, client, message):
    return params.only(lambda name: name.endswith("bias")), client


def reports_later(self, report, client, at):
    more = {"more": at.params} if client["mine"].norm() > 0 else {}
    return report | more, client | {"mine": client["mine"].ones()}


def reports_by_steps(self, report, client, at):
    return report | {"more": at.params.buffer[: int(at.steps)]}, client


def reports_by_size(self, report, client, at):
    return report | {"more": at.params.buffer[: int(client["size"])]}, client


def keeps_size(self, params):
    return {"size": params.scalar(0.0)}


def writes_at_second_step(self, tree, client, at):
    if at.step == 1:
        at.params.buffer.mul_(0.5)
    return tree, client


def writes_in_second_round(self, update, server, reports):
    if server["mine"].norm() > 0:
        reports["delta"].buffer.mul_(0)
    return update, server | {"mine": update.ones()}


def returns_alone(self, params, client, message):
    return params


def own_slot(self, params):
    return {"mine": params.zeros()}


BROKEN = {
    "tree": ("gradient", rule("WritesTree", step=writes_tree), "WritesTree.step writes"),
    "tree behind another": ("gradient", (fk.ClipNorm(1.0), rule("WritesTree", step=writes_tree)), "WritesTree.step"),
    "params": ("gradient", rule("WritesParams", step=writes_params), "WritesParams.step writes"),
    "message": ("gradient", rule("WritesMessage", start=writes_message), "WritesMessage.start writes"),
    "slot": ("gradient", rule("WritesSlot", client_slots=own_slot, step=writes_slot), "WritesSlot.step writes"),
    "client": ("gradient", rule("WritesClient", client_slots=own_slot, step=writes_client), "WritesClient.step writes"),
    "report": ("gradient", rule("WritesReport", finish=writes_report), "WritesReport.finish writes"),
    "update": ("server", rule("WritesUpdate", server_step=writes_update), "WritesUpdate.server_step writes"),
    "weights": ("weights", rule("WritesLoss", fk.Weighting, __call__=writes_weights), "WritesLoss writes"),
    "too few weights": ("weights", rule("Few", fk.Weighting, __call__=lambda *_: torch.ones(3)), "Few must give one"),
    "held": ("gradient", fk.On("*", rule("WritesTree", step=writes_tree)), None),
    "added in start": ("gradient", rule("Adds", **adds("start")), "Adds.start adds slot 'mine'"),
    "added in step": ("gradient", rule("Adds", **adds("step")), "Adds.step adds slot 'mine'"),
    "added in finish": ("gradient", rule("Adds", **adds("finish")), "Adds.finish adds slot 'mine'"),
    "dropped": ("gradient", rule("Drops", client_slots=own_slot, step=drops), "Drops.step lacks slot 'mine'"),
    "reshaped": ("gradient", rule("Shapes", client_slots=own_slot, step=reshapes), "changes the shape of slot 'mine'"),
    "a fact": ("gradient", rule("Sizes", finish=reports_size), "Sizes.finish reports 'size'"),
    "a reported number": ("gradient", rule("Number", finish=reports_number), "Number.finish gives 'norm' as float"),
    "a sent number": ("gradient", rule("Number", broadcast=sends_number), "Number.broadcast gives 'norm' as float"),
    "a kept number": (
        "gradient",
        rule("Number", client_slots=own_slot, step=keeps_number),
        "Number.step gives 'mine' as float",
    ),
    "a deployed number": ("server", rule("Number", deploy=deploys_number), "Number.deploy gives 'norm' as float"),
    "a server's number": (
        "server",
        rule("Number", server_slots=own_slot, server_step=serves_number),
        "Number.server_step gives 'mine' as float",
    ),
    "a remembered number": (
        "server",
        rule("Number", server_slots=own_slot, remember=remembers_number),
        "Number.remember gives 'mine' as float",
    ),
    "remembers alone": ("server", rule("Own", remember=remembers_alone), "Own.remember lacks slot 'params'"),
    "serves alone": ("server", rule("Own", server_step=serves_alone), "Own.server_step lacks slot 'params'"),
    "sends alone": ("server", rule("Own", broadcast=sends_alone), "Own.broadcast lacks slot 'params'"),
    "reports alone": ("gradient", rule("Own", finish=reports_alone), "Own.finish lacks slot 'delta'"),
    "deploys alone": ("server", rule("Own", deploy=deploys_alone), "Own.deploy lacks slot 'params'"),
    "serves more": ("server", rule("More", server_step=serves_more), "More.server_step adds slot 'more'"),
    "serves a tree for a number": (
        "server",
        rule("Shapes", server_slots=lambda self, params: {"mine": params.scalar(0.0)}, remember=remembers_more),
        "Shapes.remember changes the shape of slot 'mine'",
    ),
    "serves reshaped": (
        "server",
        rule("Shapes", server_slots=own_slot, server_step=serves_reshaped),
        "Shapes.server_step changes the shape of slot 'mine'",
    ),
    "starts elsewhere": ("gradient", rule("Other", start=starts_elsewhere), "Other.start must return a tree laid out"),
    "reports later": (
        "gradient",
        (rule("Later", client_slots=own_slot, finish=reports_later), fk.ClipNorm(1.0)),
        "Later.finish reports 'more' at some clients or in some rounds only",
    ),
    "reports by steps": (
        "gradient",
        rule("Ragged", finish=reports_by_steps),
        "Ragged.finish reports 'more' in several shapes, (1,) and (2,)",
    ),
    "reports by size": (
        "gradient",
        rule("Ragged", client_slots=keeps_size, finish=reports_by_size),
        "Ragged.finish reports 'more' in several shapes, (7,) and (4,)",
    ),
    "second step": ("gradient", rule("Writes", step=writes_at_second_step), "Writes.step writes into"),
    "second round": (
        "server",
        rule("Writes", server_slots=own_slot, server_step=writes_in_second_round),
        "Writes.server_step writes into",
    ),
    "a number into the server": (
        "server",
        rule("Puts", server_slots=own_slot, server_step=number_into_server),
        "Puts.server_step writes into",
    ),
    "a text into reports": ("server", rule("Puts", server_step=text_into_reports), "Puts.server_step writes into"),
    "a number into a client": (
        "gradient",
        rule("Puts", client_slots=own_slot, step=number_into_client),
        "Puts.step writes into",
    ),
    "a number into a message": ("gradient", rule("Puts", start=number_into_message), "Puts.start writes into"),
    "a number into a moment": ("gradient", rule("Puts", step=number_into_moment), "Puts.step writes into"),
    "a number into a report": ("gradient", rule("Puts", finish=number_into_report), "Puts.finish writes into"),
    "a number while sending": ("server", rule("Puts", broadcast=number_into_broadcast), "Puts.broadcast writes into"),
    "a number while weighing": ("weights", rule("Puts", fk.Weighting, __call__=number_into_weighting), "Puts writes"),
    "no pair": ("gradient", rule("Alone", start=returns_alone), "Alone.start must return params, client"),
    "unreported": ("weights", fk.Fair(1.0), "Fair reads 'loss_before'"),
    "unreported, too": ("weights", fk.FairShares(1.0), "FairShares reads 'loss_before'"),
    "no mixture": ("gradient", fk.AtMixture(), "AtMixture.step reads"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_rule_that_breaks_the_contract_is_refused_before_training(what, untrained):
    place, broken, words = BROKEN[what]
    parts = {"weights": fk.Uniform()} | {place: broken}
    lines = {refused(words or "writes", make=lambda e=e: run(fk.method("own", **parts), e)) for e in ENGINES}
    assert len(lines) == 1, lines


def reports_by_loss(self, report, client, at):
    return report | {"more": at.params.buffer[: 1 + int(1e6 * at.loss) % 7]}, client


@pytest.mark.parametrize("engine", ["serial", pytest.param("processes", marks=pytest.mark.slow)])
def test_reports_of_several_lengths_are_refused_where_training_alone_shows_them(engine):
    method = fk.method("own", gradient=rule("ByLoss", finish=reports_by_loss), weights=fk.Uniform())
    refused("ByLoss.finish reports 'more' in several shapes", make=lambda: run(method, engine))


def serves_late(self, update, server, reports):
    return (update, server) if reports["loss"].sum() == 0 else (update, {"params": server["params"]})


def test_a_server_that_forgets_in_training_alone_is_refused_there():
    forgets = rule("Forgets", server_slots=own_slot, server_step=serves_late)
    method = fk.method("own", server=forgets, weights=fk.Uniform())
    refused("Forgets.server_step lacks slot 'mine'", make=lambda: run(method))


def test_the_final_phase_is_rehearsed_too(untrained):
    final = fk.Phase(gradient=(rule("WritesTree", step=writes_tree),))
    refused("WritesTree.step", make=lambda: run(fk.Method("own", (fk.Phase(),), fk.Uniform(), final=final)))


def climbs(self, tree, client, at):
    return 0.1 * tree.unit(), client


def moves(self, tree, client, at):
    return tree + 0.1 * (at.params - at.start), client


def test_a_perturbation_of_a_gradient_that_it_does_not_ask_for_is_refused(untrained):
    own = rule("Climbs", step=climbs)
    line = refused("Climbs", make=lambda: run(fk.method("own", perturb=[own], weights=fk.Uniform())))
    assert "needs_gradient = fk.Loss()" in line


def remembers(self, tree, client, at):
    return 0.1 * (tree + client["mine"]).unit(), client


def goes_between(self, tree, client, at):
    return 0.1 * (tree + client["mine"] - client["other"]).unit(), client


def two_slots(self, params):
    return {"mine": params.zeros(), "other": params.zeros()}


REMEMBERS = rule("Remembers", step=remembers, client_slots=own_slot)
BETWEEN = rule("GoesBetween", step=goes_between, client_slots=two_slots)


def grows(self, tree, client, at):
    return 0.5 * tree + at.message["strength"] * at.message["params"].ones(), client


GROWS = rule(
    "Grows",
    step=grows,
    server_slots=lambda self, params: {"strength": params.buffer.new_tensor(0.0)},
    broadcast=lambda self, message, server: message | {"strength": server["strength"]},
    remember=lambda self, server: server | {"strength": server["strength"] + 0.1},
)


@pytest.mark.parametrize(
    "own", [rule("Moves", step=moves), rule("Climbs", step=climbs, needs_gradient=fk.Loss()), BETWEEN, REMEMBERS, GROWS]
)
def test_one_that_adds_to_nothing_or_asks_for_it_is_not(own):
    run(fk.method("own", perturb=[own], weights=fk.Uniform()))


def work_of_server(*perturb, weights=None):
    base = fk.METHODS["fedlaw"]()
    phase = fk.Phase((fk.AtMixture(), *perturb), base.server_phase.gradient, trains=False)
    given = small_problem(sizes=(7, 4), test=4)
    given = fk.Problem(model=given.model, loss=given.loss, clients=given.clients, proxy=given.test, classes=3)
    method = fk.Method("own", base.phases, weights or base.weights, server_phase=phase)
    return fk.run(fk.Experiment(problem=given, method=method, rounds=1, epochs=1, batch_size=4, lr=0.1))


def test_so_is_the_work_of_the_server(untrained):
    refused("WritesTree.step writes", make=lambda: work_of_server(rule("WritesTree", step=writes_tree)))
    weights = rule("Begins", fk.Weighting, begin=begins_with_number, __call__=lambda *_: torch.ones(1))
    refused("Begins.begin gives 'mine' as int", make=lambda: work_of_server(weights=weights))


def test_a_run_of_several_is_checked_alike(untrained):
    settings = {"rounds": 1, "epochs": 1, "batch_size": 4, "lr": 0.1}
    method = fk.method("own", gradient=rule("WritesTree", step=writes_tree), weights=fk.Uniform())
    given = small_problem()
    exps = [fk.Experiment(problem=given, method=method, seed=seed, **settings) for seed in (0, 1)]
    refused("WritesTree.step writes", make=lambda: fk.run_together(exps, dtype=torch.float64))


# ---- when a method is built ----
def test_slots_of_a_layer_by_name_are_told_of_the_made_up_model():
    named = rule("Named", server_slots=lambda self, params: {"mine": params["linear.weight"]})
    words = "Named.server_slots", "made-up model", "KeyError: 'linear.weight'"
    line = refused(*words, make=lambda: fk.method("own", gradient=named, weights=fk.Uniform()))
    assert "params.only(…)" in line
    assert "settled(setting)" in line
    shaped = rule("Shaped", client_slots=lambda self, params: {"mine": params.buffer.view(10, 64)})
    refused("Shaped.client_slots", make=lambda: fk.method("own", gradient=shaped, weights=fk.Uniform()))


def slots(**kept):
    return {f"{side}_slots": lambda self, params, name=name: {name: params.zeros()} for side, name in kept.items()}


@pytest.mark.parametrize(
    "slot", ["params", "buffers", "own_buffers", "delta", "update", "weights", "loss", "population", "learned"]
)
@pytest.mark.parametrize("side", ["client", "server"])
def test_reserved_slots_are_refused(side, slot):
    keeps = rule("Keeps", **slots(**{side: slot}))
    refused("Keeps", repr(slot), make=lambda: fk.method("own", gradient=keeps, weights=fk.Uniform()))


def test_a_slot_lasts_for_a_round_or_for_the_run():
    keeps = rule("Keeps", **slots(client="mine", round="mine"))
    refused("Keeps", "'mine'", "round_slots", make=lambda: fk.method("own", gradient=keeps, weights=fk.Uniform()))


@for_each("slot", ["size", "steps", "lr", "client", "histogram"])
def test_a_client_may_keep_what_is_known_of_it_and_the_server_may_not(slot):
    assert fk.method("own", gradient=rule("Keeps", **slots(client=slot)), weights=fk.Uniform())
    keeps = rule("Keeps", **slots(server=slot))
    refused("Keeps", repr(slot), make=lambda: fk.method("own", gradient=keeps, weights=fk.Uniform()))


@for_each("declared", ["means", "adds"])
def test_a_rule_declares_slots_that_it_keeps(declared):
    keeps = {"server": "mine"} if declared == "means" else {"client": "mine"}
    assert fk.method("own", gradient=rule("Right", **slots(**keeps), **{declared: ("mine",)}), weights=fk.Uniform())
    wrong = rule("Wrong", **slots(**keeps), **{declared: ("other",)})
    refused("Wrong", "'other'", declared, make=lambda: fk.method("own", gradient=wrong, weights=fk.Uniform()))


def test_a_rule_that_adds_to_the_delta_says_how_long_it_was(untrained):
    """Else the drift of a run would be of what clients send."""

    def finish(self, report, client, at):
        return report | {"delta": report["delta"] + client["mine"]}, client

    adds = rule("Adds", **slots(client="mine"), adds=("mine",), finish=finish)
    refused("Adds.finish", "how long", make=lambda: run(fk.method("own", gradient=adds, weights=fk.Uniform())))


OUT_OF_PLACE = [
    ("personal", fk.BySize(), "weighs clients"),
    ("gradient", fk.BySize(), "weighs clients"),
    ("server", fk.Uniform(), "weighs clients"),
    ("server", fk.ClipHere(), "does nothing"),
    ("personal", fk.DecayHere(), "does nothing"),
    ("perturb", fk.ClipHere(), "does nothing"),
    ("server", fk.Sam(0.1), "step is never called"),
    ("server", fk.ControlVariates(), "step is never called"),
    ("server", fk.PrivateLayers(), "start is never called"),
    ("personal", fk.Proximal(0.1), "step is never called"),
    ("personal", fk.OwnModel(0.1), "step is never called"),
    ("personal", fk.On("*", fk.ClipNorm(1.0)), "step is never called"),
    ("gradient", fk.Sam(0.1), "not first in the perturb chain"),
    ("gradient", fk.MixGradients(0.5), "gradient before the climb"),
    ("perturb", (fk.Sam(0.1), fk.NoteRemoval()), "reads the loss"),
    ("perturb", fk.HighPass(0.1), "no perturbation to change"),
    ("perturb", (fk.On("*", fk.ClipNorm(1.0)), fk.GlobalDirection(0.1)), "no perturbation to change"),
    ("gradient", fk.BeginMerged(), "own_head"),
]


@for_each(("place", "wrong", "words"), OUT_OF_PLACE)
def test_a_rule_out_of_place_is_refused(place, wrong, words):
    refused(words, make=lambda: fk.method("own", weights=fk.Uniform(), **{place: wrong}))


@for_each(
    ("phase", "words"),
    [
        (fk.Phase((fk.HighPass(0.1), fk.Sam(0.1))), "not first in the perturb chain"),
        (fk.Phase(gradient=(fk.MixGradients(0.5),)), "gradient before the climb"),
        (fk.Phase(gradient=(fk.DynamicDual(0.1),)), "server_step is never called"),
        (fk.Phase(gradient=(fk.BySize(),)), "weighs clients"),
        (fk.Phase(gradient=(fk.ClipHere(),), trains=False), "does not train"),
        (fk.Phase(objective=fk.Value()), "no gradient is taken"),
    ],
)
def test_a_final_phase_passes_the_same_checks(phase, words):
    refused(words, make=lambda: fk.Method("own", (fk.Phase(),), fk.Uniform(), final=phase))


def test_what_trains_in_the_rounds_may_go_on_at_the_end():
    phase = fk.Phase(gradient=(fk.DynamicDual(0.1),))
    assert fk.Method("own", (phase,), fk.Uniform(), final=phase).tuning.phases == (phase,)


def test_a_final_phase_that_sends_nothing_still_trains():
    """Nothing of it is sent in any case."""
    made = fk.Method("own", (fk.Phase(),), fk.Uniform(), final=fk.Phase(uploads=False))
    assert made.tuning.phases[0].uploads


@for_each("inner", [fk.ClipHere(), fk.KeepModel(), fk.Uniform(), fk.ClientMomentum(0.1)])
def test_only_what_acts_in_a_step_alone_acts_on_some_layers(inner):
    refused("On takes rules", make=lambda: fk.On("*", inner))

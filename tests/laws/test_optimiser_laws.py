"""Laws of the clients' optimisers on every base: engines agree, runs resume, nothing that lasts a round outlives it."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle, product

import pytest
import torch
from for_each import for_each

import fedkeel as fk
from fedkeel.cli.estimate import estimate
from fedkeel.core.round import broadcast, init_client, init_round, init_server, server_round
from fedkeel.core.rule import LOCAL_STAGES, is_stackable
from fedkeel.core.trees import stack, tensors
from fedkeel.engines.engine import Training
from fedkeel.engines.serial import SerialEngine
from fedkeel.engines.stacked.client_mapping import lift_by_broadcast, lift_by_vmap
from fedkeel.engines.stacked.engine import StackedEngine
from fedkeel.methods import build
from fedkeel.methods.optimisers import OPTIMISERS, give_optimiser
from fedkeel.runs.prepare import method_of, task_maker
from problems import small_problem

BASES = ("fedavg", "fedsam", "fedfft", "specgradfilter", "feddyn", "scaffold", "fedprox")
POLICIES = ("reset", "keep", "average")
KINDS = [kind for kind in OPTIMISERS.values() if kind is not None]
each = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


def make_problem():
    return small_problem(sizes=(7, 4, 5, 1, 6), test=4)


def make_experiment(base, rule, **changes):
    settings = {"rounds": 2, "participation": 0.6, "epochs": 1, "batch_size": 3, "lr": 0.01, "weight_decay": 1e-2,
                "clip": 1.0} | changes  # fmt: skip
    return fk.Experiment(problem=make_problem(), method=base, optimizer=rule, **settings)


def fit(experiment):
    task = task_maker(experiment.plan, torch.device("cpu"), torch.float64)(experiment.problem)
    return task, method_of(experiment.plan, task)


def train(engine, method, task):
    """Everything that is known after two rounds: what the server sends, what clients remember and report."""
    server, states, reports = init_server(method, task.initial), {}, []
    for t, clients in enumerate(([0, 2, 3], [1, 2, 4])):
        outcomes = engine.train(broadcast(method, server), t, 0.01, clients, [states.get(c) for c in clients])
        rows = stack([outcome.report for outcome in outcomes])
        server = server_round(method, server, rows | {"population": rows["lr"].new_tensor(5.0)})
        states |= {outcome.client: outcome.state for outcome in outcomes}
        reports.append(rows)
    return server, states, reports


def difference(one, other):
    a, b = tensors(one), tensors(other)
    assert [t.shape for t in a] == [t.shape for t in b]
    return max(float((x - y).abs().max()) for x, y in zip(a, b, strict=True) if x.numel())


def compare_with_serial(base, rule, lifts=(None,)):
    task, method = fit(make_experiment(base, rule))
    training = Training(seed=1, epochs=1, batch_size=3)
    serial = train(SerialEngine(task, method, training), method, task)
    assert all(is_stackable(rule) for rule in method.local_rules if rule.stages & LOCAL_STAGES)
    for lift in lifts:
        stacked = StackedEngine(task, method, training, lift=lift)
        assert difference(train(stacked, method, task), serial) < 1e-12, (base, rule, lift)


@pytest.mark.slow
def test_stacked_clients_learn_what_they_learn_serially():
    """Each optimiser with each policy, and on one base after another."""
    for (kind, moments), base in zip(product(KINDS, POLICIES), cycle(BASES), strict=False):
        compare_with_serial(base, kind(moments=moments))


@pytest.mark.slow
@each
def test_they_do_so_on_every_base_with_every_policy(kind):
    for base, moments in product(BASES, POLICIES):
        compare_with_serial(base, kind(moments=moments), (lift_by_vmap, lift_by_broadcast))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_processes_give_the_same_bits_and_a_resumed_run_too(kind, tmp_path):
    for moments, base in zip(POLICIES, ("fedsam", "scaffold", "specgradfilter+feddyn"), strict=True):
        experiment = make_experiment(base, kind(moments=moments), rounds=3)
        whole = fk.run(experiment, engine="serial", device="cpu")
        assert fk.run(experiment, engine="processes", workers=1).result == whole.result
        folder = tmp_path / base
        fk.run(experiment.with_(rounds=1), engine="serial", device="cpu", out=folder)
        resumed = fk.run(experiment, engine="serial", device="cpu", out=folder)
        assert resumed.result == whole.result
        for slot, value in whole.server.items():
            assert torch.equal(*tensors((resumed.server[slot], value))), slot


@each
def test_moments_live_where_their_policy_says(kind):
    for moments in POLICIES:
        task, method = fit(make_experiment("fedavg", kind(moments=moments)))
        server, states, reports = train(SerialEngine(task, method, Training(1, 1, 3)), method, task)
        slots = set(kind.slots)
        assert (slots <= set(init_round(method, task.initial))) == (moments != "keep")
        assert (slots <= set(states[2])) == (slots <= set(init_client(method, task.initial))) == (moments == "keep")
        assert (slots <= set(server)) == (slots <= set(reports[0])) == (moments == "average")
        if moments == "average":
            assert slots <= set(broadcast(method, server))


@pytest.mark.slow
def test_runs_in_one_stack_have_moments_of_their_own():
    for rule in (fk.AdamW(moments="average"), fk.Muon(moments="keep")):
        first = make_experiment("fedsam", rule, participation=1.0)
        experiments = [first, first.with_(seed=1, lr=0.02)]
        together = fk.run_together(experiments, dtype=torch.float64)
        for experiment, run in zip(experiments, together, strict=True):
            alone = fk.run(experiment, dtype=torch.float64, engine="serial")
            assert max(difference(run.server[slot], alone.server[slot]) for slot in alone.server) < 1e-12


def test_only_what_is_averaged_travels():
    down = {}
    for moments in POLICIES:
        down[moments] = fk.run(make_experiment("fedavg", fk.AdamW(moments=moments)), engine="serial").records[-1]
    model = 4 * sum(p.numel() for p in make_problem().model.parameters())
    clients = len(down["reset"].selected)
    assert down["reset"].bytes_down == down["keep"].bytes_down == clients * model
    assert down["average"].bytes_down == clients * (3 * model + 4)
    assert down["average"].bytes_up == clients * (3 * model + 4)


def test_the_doctor_counts_moments_where_they_are():
    """Of AdamW two models: in a step twice, with a client once, with the server once, and in every report."""
    found = {m: estimate(fk.Experiment(dataset="digits", optimizer=fk.AdamW(moments=m))) for m in POLICIES}
    plain = estimate(fk.Experiment(dataset="digits"))
    model, count = 4 * plain.parameters, 4
    assert found["reset"].workspace - plain.workspace == 2 * 2 * model
    assert found["reset"].client == plain.client == 0
    assert found["keep"].workspace == plain.workspace
    assert found["keep"].client == 2 * model + count
    assert found["average"].server - plain.server == 2 * model + count
    assert found["average"].reports - plain.reports == plain.selected * (2 * model + count)


# ---- where an optimiser stands -------------------------------------------------------------------------------------
def chain_of(base, rule, **changes):
    _, method = fit(make_experiment(base, rule, **changes))
    return [type(one).__name__ for one in method.phases[-1].gradient]


def test_the_clip_stands_in_front_and_the_decay_behind():
    assert chain_of("specgradfilter+scaffold", "adamw") == [
        "HighPass", "ControlVariates", "ClipNorm", "AdamW", "WeightDecay",
    ]  # fmt: skip
    assert chain_of("fedprox", "momentum") == ["Proximal", "ClipNorm", "WeightDecay", "LocalMomentum"]
    assert chain_of("fedprox", None) == ["Proximal", "ClipNorm", "WeightDecay"]
    assert chain_of("feddyn@released", "lion") == ["DynamicDual", "ClipNorm", "WeightDecay", "Lion", "WeightDecay"]
    _, tuned = fit(make_experiment("fedavg-ft", "muon"))
    assert [type(rule).__name__ for rule in tuned.final.gradient] == [
        "OnlyLayers", "ClipNorm", "Muon", "WeightDecay", "OnlyLayers",
    ]  # fmt: skip


def test_a_clip_does_not_shorten_the_step_of_an_optimiser():
    """Lion steps by the rate in every number, however short the clip."""
    run = fk.run(make_experiment("fedavg", "lion", clip=1e-3, weight_decay=0.0, rounds=1, epochs=1, batch_size=16))
    start = {name: p.detach() for name, p in make_problem().model.named_parameters()}
    moved = max((run.params[name] - start[name]).abs().max().item() for name in start)
    assert moved == pytest.approx(0.01, rel=1e-3)


def test_private_layers_are_trained_by_the_optimiser_too():
    """Lion moves the head that stays at the client as far as the rest."""
    for moments in ("reset", "keep"):
        task, method = fit(make_experiment("fedper", fk.Lion(moments=moments), weight_decay=0.0))
        _, states, _ = train(SerialEngine(task, method, Training(1, 1, 16)), method, task)
        moved = states[0]["private"] - task.initial.only(states[0]["private"].layout)
        assert moved.buffer.abs().max().item() == pytest.approx(0.01, rel=1e-6)
    with pytest.raises(fk.MethodError, match="averages the optimiser's moments"):
        fit(make_experiment("fedper", fk.Lion(moments="average")))


def test_the_model_that_is_sent_gives_the_averaged_moments():
    """Ditto's own model is trained last, with the same optimiser; what the server averages is the shared model's."""
    rule = fk.AdamW(moments="average")
    found = [fk.run(make_experiment(base, rule), dtype=torch.float64, engine="serial") for base in ("fedavg", "ditto")]
    assert difference(found[0].server["adamw_v"], found[1].server["adamw_v"]) == 0
    assert difference(found[0].server["params"], found[1].server["params"]) == 0


# ---- asking for one ------------------------------------------------------------------------------------------------
def test_ways_to_ask_for_an_optimiser_are_one():
    ways = [
        make_experiment("fedsam", {"name": "adamw", "beta1": 0.8}),
        make_experiment("fedsam", {"rule": "AdamW", "beta1": 0.8}),
        make_experiment("fedsam", fk.AdamW(0.8)),
        make_experiment({"name": "adamw+fedsam", "beta1": 0.8}, None),
        make_experiment(give_optimiser(build("fedsam"), fk.AdamW(0.8)), "sgd"),
    ]
    assert len({experiment.fingerprint() for experiment in ways}) == 1
    assert make_experiment("fedsam", None).fingerprint() not in {ways[0].fingerprint()}
    assert fk.Experiment(dataset="digits", optimizer="adamw").plan.lr == 1e-3
    assert fk.Experiment(dataset="digits", optimizer="sgd").plan.lr == fk.Experiment(dataset="digits").plan.lr


@for_each(
    ("given", "line", "hint"),
    [
        ("adamv", "unknown optimizer: adamv", "adamw"),
        ("nesterov", "unknown optimizer: nesterov", "nesterov = true"),
        ({"name": "adamw", "beta3": 0.9}, "optimizer adamw has no field: beta3", "beta2"),
        ({"name": "lion", "beta1": 1.0}, r"beta1 of rule Lion must lie in \[0, 1\): 1.0", "beta1 = 0.9"),
        ({"name": "muon", "moments": "forget"}, "moments of rule Muon must be reset, keep or average", "reset"),
        ({"beta1": 0.9}, "an optimizer is a name, or a table with one", "name ="),
        ({"name": "sgd", "momentum": 0.9}, "optimizer sgd has no field: momentum", "momentum"),
        (fk.ClipNorm(1.0), "ClipNorm is no optimiser", "gradient chain"),
        (3, "optimizer must be a text", "adamw"),
    ],
)
def test_bad_optimisers_get_one_line_and_a_hint(given, line, hint):
    with pytest.raises(fk.RequestError, match=line) as refused:
        make_experiment("fedavg", given)
    assert hint in refused.value.hint


def test_a_second_optimiser_is_refused():
    with pytest.raises(fk.MethodError, match=r"adamw\+fedavg has an optimiser of its own, AdamW"):
        make_experiment("adamw+fedavg", "lion")
    with pytest.raises(fk.MethodError, match="AdamW and Lion are both optimisers"):
        fk.method("two", gradient=[fk.AdamW(), fk.Lion()], weights=fk.BySize())
    with pytest.raises(fk.MethodError, match="stands in the perturb chain"):
        fk.method("up", perturb=[fk.Sam(0.1), fk.AdamW()], weights=fk.BySize())


def test_muon_needs_a_matrix():
    vector = fk.Problem(params={"w": torch.ones(3)}, loss=lambda p, b: (p["w"] - b[0]).square().sum(-1),
                        clients=[(torch.ones(2, 3),)])  # fmt: skip
    with pytest.raises(fk.MethodError, match="Muon steps along matrices, but the model has none"):
        fk.run(fk.Experiment(problem=vector, optimizer="muon", rounds=1, participation=1.0))
    with pytest.raises(fk.MethodError, match="none left: `without` names them all"):
        fk.run(make_experiment("fedavg", fk.Muon(without=("*",))))
    with pytest.raises(fk.MethodError, match="names parameters 'nothing'"):
        fk.run(make_experiment("fedavg", fk.Muon(without=("nothing",))))


def test_a_file_names_no_code_through_its_optimiser():
    data = {"dataset": "digits", "optimizer": {"rule": "os.path:join"}}
    with pytest.raises(fk.UntrustedError):
        fk.Experiment.load(data)


def test_a_users_own_optimiser_needs_no_name():
    class Own(fk.AdamW):
        """One of a user's own."""

    rule = Own()
    assert replace(rule, beta1=0.5).optimiser
    assert make_experiment("fedavg", rule).plan.method.name == "own+fedavg"

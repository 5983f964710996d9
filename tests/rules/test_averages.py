"""Averages of the server's models: what is deployed, what is trained, and what each number is of."""

import json
import math
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from for_each import for_each
from stopping import StopAfter

import fedkeel as fk
from fedkeel.cli.results import list_notes
from fedkeel.core.round import deploy
from fedkeel.methods import METHODS, build
from fedkeel.rules.averages import mix
from problems import small_problem

SETTINGS = {"rounds": 6, "participation": 0.7, "epochs": 1, "batch_size": 8, "lr": 0.2}


def make(method, problem=None, **changes):
    return fk.Experiment(problem=problem or small_problem(), method=method, **SETTINGS | changes)


def train(method, problem=None, engine="serial", dtype=torch.float32, **changes):
    return fk.run(make(method, problem, **changes), engine=engine, dtype=dtype, keep_params=True)


def flat(params):
    return torch.cat([leaf.flatten() for leaf in params.values()])


def models_of(run):
    """The models after each round, as they were trained."""
    return [flat(params) for params in run.history]


# ---- formulas ------------------------------------------------------------------------------------------------------
def test_an_exponential_average_weighs_rounds_by_their_age_and_leaves_the_start_out():
    for rounds in (1, 2, 6):
        run = train({"name": "ema+fedavg", "decay": 0.8}, rounds=rounds, dtype=torch.float64)
        weights = [0.8 ** (rounds - s) for s in range(1, rounds + 1)]
        expected = sum(b * w for b, w in zip(weights, models_of(run), strict=True)) / sum(weights)
        torch.testing.assert_close(flat(run.params), expected, rtol=1e-12, atol=1e-14)


def test_an_average_of_a_share_of_the_rounds_grows_with_them_up_to_its_full_length():
    """n_t = min(β n + 1, share · t) rounds, at least one: here 1, 1, 1.2, 1.6, 2, 2.4 of at most 1 / (1 − 0.9)."""
    run = train({"name": "ema+fedavg", "decay": 0.9, "share": 0.4}, dtype=torch.float64)
    average, covered, lengths = None, 0.0, []
    for t, model in enumerate(models_of(run), start=1):
        covered = max(1.0, min(0.9 * covered + 1, 0.4 * t))
        lengths.append(round(covered, 10))
        average = model if average is None else average + (model - average) / covered
    assert lengths == [1, 1, 1.2, 1.6, 2, 2.4]
    torch.testing.assert_close(flat(run.params), average, rtol=1e-12, atol=1e-14)


def test_towards_a_share_of_one_it_becomes_the_exponential_average():
    plain, nearly = (train({"name": "ema+fedavg", **more}, dtype=torch.float64) for more in ({}, {"share": 1 - 1e-12}))
    torch.testing.assert_close(flat(nearly.params), flat(plain.params), rtol=1e-9, atol=1e-11)


def test_a_late_mean_counts_the_rounds_from_its_start_on():
    """Of 6 rounds from the share 0.5 on: the models after rounds 4, 5 and 6; every second: 5 alone."""
    for settings, rounds in (
        ({"start": 0.5}, (4, 5, 6)),
        ({"start": 0.5, "cycle": 2}, (5,)),
        ({"start": 0}, range(1, 7)),
    ):
        run = train({"name": "swa+fedavg", **settings}, dtype=torch.float64)
        models = models_of(run)
        expected = sum(models[t - 1] for t in rounds) / len(rounds)
        torch.testing.assert_close(flat(run.params), expected, rtol=1e-12, atol=1e-14)


def test_rounds_in_which_nobody_answers_count_as_rounds():
    """One client a round, who often does not answer."""
    changes = {"rounds": 12, "participation": 0.17, "unavailable": 0.6, "dtype": torch.float64}
    late, short = (train({"name": name, **more}, **changes) for name, more in (
        ("swa+fedavg", {"start": 0.5}), ("ema+fedavg", {"decay": 0.9, "share": 0.25}),
    ))  # fmt: skip
    assert any(len(record.absent) == len(record.selected) for record in late.records[6:])
    torch.testing.assert_close(flat(late.params), sum(models_of(late)[6:]) / 6, rtol=1e-12, atol=1e-14)
    average, covered = torch.zeros(()), 0.0
    for t, model in enumerate(models_of(short), start=1):
        covered = max(1.0, min(0.9 * covered + 1, 0.25 * t))
        average = average + (model - average) / covered
    torch.testing.assert_close(flat(short.params), average, rtol=1e-12, atol=1e-14)


def test_up_to_its_start_the_plain_model_is_deployed_bit_for_bit():
    run = train({"name": "swa+fedavg", "start": 0.5})
    same = [
        r.accuracy == r.extra["plain_accuracy"] and r.extra["test_loss"] == r.extra["plain_test_loss"]
        for r in run.records
    ]
    assert same[:4] == [True] * 4  # the first model of an average is that model
    assert not all(same[4:])


def test_cycles_of_the_rate_end_where_models_are_taken():
    """Warm-up 1, cycles of 2 rounds: they end after rounds 3, 5, 7, 9; after the share 0.4 of 10 rounds: 5, 7 and 9."""
    rule = fk.ModelSwa(begin=0.4, cycle=2)
    fitted = rule.fit_run(10, fk.CyclicRate(cycle=2, warmup=1))
    assert fitted.after == 3
    assert fitted.fit_run(10, fk.CyclicRate(cycle=2, warmup=1)) == fitted
    assert fk.ModelSwa(begin=0.0, cycle=2).fit_run(10, fk.CyclicRate(cycle=2, warmup=1)).after == 1
    assert rule.fit_run(10, None).after == 4
    schedule = {"name": "cyclic", "cycle": 2, "warmup": 1, "end": 0.1}
    run = train({"name": "swa+fedavg", "start": 0.4, "cycle": 2}, rounds=10, schedule=schedule, dtype=torch.float64)
    models = models_of(run)
    torch.testing.assert_close(flat(run.params), (models[4] + models[6] + models[8]) / 3, rtol=1e-12, atol=1e-14)


def test_a_share_of_one_gives_the_new_models_bits():
    old, new = (fk.Tree.of({"w": torch.tensor(values)}) for values in ([1.0, 2.0, 0.3], [-0.0, 0.0, 0.7]))
    one = mix(old, new, torch.tensor(1.0)).buffer
    assert torch.equal(torch.signbit(one), torch.signbit(new.buffer))
    assert torch.equal(one, new.buffer)
    assert torch.equal(mix(old, new, torch.tensor(0.0)).buffer, old.buffer)


# ---- laws ----------------------------------------------------------------------------------------------------------
AGAIN = [pytest.param(name, marks=pytest.mark.slow) for name in ("fedavg", "fedavgm", "feddyn")]


@pytest.mark.parametrize("base", ["scaffold", "fedgloss", *AGAIN])
def test_the_base_is_trained_as_ever_bit_for_bit(base):
    plain = train(base)
    for plugin in ("ema", "swa"):
        run = train(f"{plugin}+{base}")
        assert run.result["plain_digest"] == plain.result["model_digest"]
        assert run.result["model_digest"] != run.result["plain_digest"]
        assert run.curve("plain_accuracy") == plain.curve("accuracy")
        assert [torch.equal(a, b) for a, b in zip(models_of(run), models_of(plain), strict=True)] == [True] * 6


def test_without_decay_the_base_is_deployed_bit_for_bit():
    for base in ("fedavg", "feddyn"):
        plain, run = train(base), train({"name": f"ema+{base}", "decay": 0.0})
        assert run.result["model_digest"] == run.result["plain_digest"] == plain.result["model_digest"]
        assert run.curve("accuracy") == plain.curve("accuracy")
        assert run.best == plain.best


@pytest.mark.slow
def test_every_engine_deploys_the_same():
    for method in ({"name": "ema+scaffold", "decay": 0.5}, {"name": "swa+scaffold", "start": 0.3, "cycle": 2}):
        serial = train(method, dtype=torch.float64)
        stacked = train(method, engine="stacked", dtype=torch.float64)
        torch.testing.assert_close(flat(serial.params), flat(stacked.params), rtol=1e-10, atol=1e-12)


@pytest.mark.slow
def test_processes_deploy_what_serial_does_bit_for_bit():
    experiment = make("ema+scaffold")
    assert fk.run(experiment, engine="processes", workers=2).result == fk.run(experiment, engine="serial").result


def normed():
    """A network whose running statistics are averaged too."""
    given = small_problem(sizes=(7, 12, 6, 9))
    with torch.random.fork_rng():
        torch.manual_seed(3)
        network = torch.nn.Sequential(
            torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5), torch.nn.ReLU(), torch.nn.Linear(5, 3)
        )
    return fk.Problem(model=network, loss=given.loss, clients=given.clients, test=given.test, classes=3)


@pytest.mark.slow
def test_a_run_resumes_bit_for_bit_and_is_read_back(tmp_path):
    for number, method in enumerate(["ema+fedavg", {"name": "swa+fedavg", "start": 0.3}]):
        experiment, out = make(method, normed()), tmp_path / str(number)
        with pytest.raises(KeyboardInterrupt):
            fk.run(experiment, out=out, engine="serial", progress=StopAfter(3))
        resumed, whole = fk.run(experiment, out=out, engine="serial"), fk.run(experiment, engine="serial")
        assert resumed.result == whole.result
        read = fk.load_run(out)
        assert read.result == whole.result == json.loads((out / "result.json").read_text(encoding="utf-8"))
        for one in (resumed, read):
            assert torch.equal(flat(one.params), flat(whole.params))
            assert torch.equal(one.deployed["buffers"].buffer, whole.deployed["buffers"].buffer)


def test_a_longer_run_keeps_the_start_of_its_average(tmp_path):
    """The rounds before it are part of what the experiment is; how long it goes on is not."""
    short, longer = make("swa+fedavg", rounds=4), make("swa+fedavg", rounds=8)
    assert short.plan.method.server[-1].after == 3
    assert short.fingerprint() != longer.fingerprint()
    again = fk.Experiment.load(fk.Experiment(dataset="digits", method="swa+fedavg", rounds=4).save() | {"rounds": 8})
    assert again.plan.method.server[-1].after == 3


# ---- what is deployed ----------------------------------------------------------------------------------------------
def test_buffers_are_averaged_with_the_weights_of_the_model():
    whole = [train("fedavg", normed(), rounds=rounds, dtype=torch.float64) for rounds in (1, 2, 3)]
    history = [run.server["buffers"].buffer for run in whole]
    run = train({"name": "ema+fedavg", "decay": 0.5}, normed(), rounds=3, dtype=torch.float64)
    expected = (0.25 * history[0] + 0.5 * history[1] + history[2]) / 1.75
    torch.testing.assert_close(run.deployed["buffers"].buffer, expected, rtol=1e-12, atol=1e-14)
    assert torch.equal(run.server["buffers"].buffer, history[2])
    state = run.model().state_dict()
    averaged = dict(run.deployed["buffers"].items()) | dict(run.deployed["params"].items())
    assert all(torch.equal(state[name], tensor.to(state[name])) for name, tensor in averaged.items())


def test_scores_digest_model_and_export_are_of_the_deployed_model(fedkeel, tmp_path):
    from safetensors.torch import load_file

    done = fedkeel("run", "--dataset", "digits", "--model", "logistic", "--set", "epochs=1", "--engine", "serial",
                   "--rounds", "4", "--method", "ema+fedavg", "--json")  # fmt: skip
    assert done.code == 0, done.err
    (one,) = json.loads(done.out)["runs"]
    run = fk.load_run(tmp_path / one["folder"])
    assert run.result["model_digest"] == one["result"]["model_digest"]
    assert fedkeel("export", "model", one["folder"], "m.safetensors").code == 0
    exported = load_file(tmp_path / "m.safetensors")
    assert all(torch.equal(exported[name], leaf) for name, leaf in run.params.items())
    plain = run.server["params"].named()
    assert not all(torch.equal(exported[name], leaf) for name, leaf in plain.items())
    assert fedkeel("export", "model", one["folder"], "p.safetensors", "--which", "plain").code == 0
    exported = load_file(tmp_path / "p.safetensors")
    assert all(torch.equal(exported[name], leaf) for name, leaf in plain.items())
    refused = fedkeel("export", "model", one["folder"], "x.safetensors", "--which", "plane")
    assert refused.code == 2
    assert "this run keeps no model: plane" in refused.err
    assert "did you mean 'plain'?" in refused.err
    assert run.best == max(run.curve("accuracy"))
    assert run.curve("plain_accuracy")


@pytest.mark.slow
def test_a_report_draws_both_models(trained, fedkeel, tmp_path):
    (one,) = trained("--method", "ema+fedavg")
    page = fedkeel("report", one["folder"], "--out", "page.html")
    assert page.code == 0, page.err
    assert "Test accuracy of the model that is trained" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_the_score_is_that_of_the_deployed_parameters():
    problem = small_problem()
    run = train("ema+fedavg", problem)
    (*_, told) = list_notes([SimpleNamespace(run=run)])
    assert told == "ema+fedavg: of the average, which is deployed; plain_… is the model that is trained"
    model, (x, y) = run.model(), problem.test
    with torch.no_grad():
        assert run.last == pytest.approx(float((model(x).argmax(-1) == y).double().mean()))


def test_private_layers_pass_through_an_average_that_someone_composes():
    """The library refuses to deploy it, but the rule must not lose what it is confined to."""
    from fedkeel.rules.sharing import Confined

    params = fk.Tree.of({"body": torch.ones(2), "head": torch.ones(3)})
    rule = Confined(fk.ModelEma(0.5), ("head",))
    server = {"params": params} | rule.server_slots(params)
    for factor in (2.0, 4.0):
        server = rule.remember(server | {"params": params * factor})
    method = fk.Method("mine", (fk.Phase(),), fk.BySize(), server=(rule,))
    deployed = deploy(method, server)["params"]
    torch.testing.assert_close(deployed["body"], torch.full((2,), (2 + 2 * 4) / 3))
    assert torch.equal(deployed["head"], torch.full((3,), 4.0))


# ---- what does not fit ---------------------------------------------------------------------------------------------
@for_each(
    ("method", "more", "line"),
    [
        ({"name": "swa+fedavg", "cycle": 3}, {}, "averaging would start after the last round: in round 7 of 6."),
        ({"name": "swa+fedavg", "start": 1.0}, {}, "start of method swa+fedavg must lie in [0, 1): 1.0"),
        ({"name": "ema+fedavg", "decay": 1.0}, {}, "decay of method ema+fedavg must lie in [0, 1): 1.0"),
        ("ema+swa+fedavg", {}, "swa+fedavg deploys a model of its own already, which ema+ would replace."),
        (
            {"name": "ema+fedexp", "average": True}, {},
            "fedexp deploys a model of its own already, which ema+ would replace.",
        ),
        (
            {"name": "swa+fedavg", "cycle": 3, "start": 0.0}, {"schedule": {"name": "cyclic", "cycle": 2}},
            "averaging takes every 3 rounds, and the rate's cycles have 2.",
        ),
        (
            "ema+fedper", {},
            "ema+fedper deploys an average of the server's models, of which clients' own models are no part.",
        ),
        (
            "swa+fedavg", {"evaluation": {"model": "local"}},
            "swa+fedavg deploys an average of the server's models, of which clients' own models are no part.",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_in_one_line(method, more, line):
    with pytest.raises(fk.FedkeelError) as caught:
        make(method, **more)
    assert caught.value.args[0].splitlines()[0] == line
    assert caught.value.hint


@for_each("method", ["ema+fedper", "ema+fedavg-ft", "swa+fedavg-ft"])
def test_an_average_of_a_method_whose_clients_end_with_their_own_models_hints_at_another_method(method):
    for more in ({}, {"evaluation": {"model": "global"}}):
        with pytest.raises(fk.FedkeelError, match="clients' own models are no part") as caught:
            make(method, **more)
        assert caught.value.hint == "average a method with one model for all, such as ema+fedavg"


@for_each("policy", [{"model": "local"}, {"model": "global", "tune": True}])
def test_where_the_policy_alone_judges_others_the_hint_leads_to_one_that_is_taken(policy):
    with pytest.raises(fk.FedkeelError, match="clients' own models are no part") as caught:
        make("ema+ditto", evaluation=policy)
    assert caught.value.hint == 'judge the average: evaluation.model = "global", and no evaluation.tune'
    make("ema+ditto", evaluation={"model": "global"})


def test_a_shorter_run_than_the_average_was_made_for_is_refused():
    saved = fk.Experiment(dataset="digits", method="swa+fedavg", rounds=100).save()
    with pytest.raises(fk.MethodError, match=r"averaging would start after the last round: in round 76 of 50\."):
        fk.Experiment.load(saved | {"rounds": 50})


def test_every_base_with_one_model_for_all_can_be_averaged():
    for base in METHODS:
        if build(base).deploys_another:
            with pytest.raises(fk.MethodError, match="deploys a model of its own already"):
                build(f"ema+{base}")
            continue
        method = build(f"ema+{base}")
        own = bool(method.personal or method.final)
        try:
            fk.Experiment(dataset="digits", method=method)
        except fk.ExperimentError:
            assert own, base
        else:
            assert not own, base
    assert math.isclose(fk.ModelEma().decay, 0.9)


@dataclass(frozen=True)
class MeanOfTwo(fk.Rule):
    """The rule of docs/guides/averaged.md."""

    def server_slots(self, params):
        return {"last": params, "last_but_one": params}

    def remember(self, server):
        return server | {"last": server["params"], "last_but_one": server["last"]}

    def deploy(self, model, server):
        return model | {"params": 0.5 * (server["last"] + server["last_but_one"])}


def test_a_rule_of_ones_own_deploys_what_it_makes():
    run = train(fk.method("mine", weights=fk.BySize(), server=MeanOfTwo()), dtype=torch.float64)
    *_, before, last = models_of(run)
    torch.testing.assert_close(flat(run.params), (before + last) / 2)

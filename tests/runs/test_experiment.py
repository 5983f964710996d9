"""What the fields of an experiment mean."""

import copy
import threading
import tomllib
from dataclasses import dataclass, fields, replace
from math import nan

import numpy as np
import pytest
import tomli_w
import torch
from for_each import for_each
from safetensors.torch import save_file

import fedkeel as fk
from fedkeel.data.clients import HeldOut, TensorClients
from fedkeel.engines.engine import Training
from fedkeel.runs.participation import Participation
from fedkeel.runs.record import summarise
from problems import small_problem


def experiment(**changes):
    settings = dict(problem=small_problem(), rounds=2, participation=1.0, epochs=1, batch_size=4, lr=0.05)
    return fk.Experiment(**settings | changes)


@dataclass(frozen=True)
class Cut:
    """A partition with a field that has no hash."""

    at: list[int]

    @property
    def clients(self):
        return len(self.at) + 1

    def divide(self, labels, key, *, groups=None):
        return np.split(np.arange(len(labels)), self.at)


@for_each(
    "changes",
    [
        {"partition": {"kind": "long-tail", "imbalance": 10, "base": {"kind": "iid", "clients": 4}}},
        {"participants": [[0, 1], [2]]},
        {"method": {"gradient": [{"rule": "HighPass", "ratio": 0.1}], "weights": {"rule": "BySize"}}},
        {"epochs": {"clients": [1, 2, 3]}},
        {"partition": Cut([100, 500])},
        {"lr": 1},
    ],
)
def test_equal_experiments_have_equal_hashes(changes):
    one, other = (fk.Experiment(dataset="digits", rounds=2, **given) for given in (changes, copy.deepcopy(changes)))
    assert one == other
    assert {one: "found"}[other] == "found"
    assert len({one, other, one.with_(seed=1)}) == 2
    assert hash(fk.Experiment(dataset="digits", lr=1)) == hash(fk.Experiment(dataset="digits", lr=1.0))


# ---- as data -------------------------------------------------------------------------------------------------------
def test_an_experiment_survives_a_file():
    for method in fk.METHODS:
        exp = fk.Experiment(dataset="cifar10", method=method, epochs=(1, 3), participants=[[0, 1], [2]], rounds=2)
        text = tomli_w.dumps(exp.save())
        again = fk.Experiment.load(tomllib.loads(text))
        assert again.plan.method == exp.plan.method, method
        assert again.save() == exp.save(), method
        assert again.fingerprint() == exp.fingerprint(), method


def test_a_fingerprint_is_of_the_result():
    base = fk.Experiment(dataset="digits", method="fedsam")
    assert fk.Experiment(dataset="digits", method=fk.METHODS["fedsam"]()).fingerprint() == base.fingerprint()
    assert base.with_(rounds=7).fingerprint() == base.fingerprint()
    for changed in ({"lr": 0.011}, {"seed": 1}, {"method": "fedavg"}, {"model": "logistic"}, {"partition_seed": 5}):
        assert base.with_(**changed).fingerprint() != base.fingerprint()


def test_a_file_says_how_a_method_is_composed():
    by_hand = {
        "name": "mine",
        "perturb": [{"rule": "Sam", "rho": 0.1}, {"rule": "HighPass", "ratio": 0.02}],
        "gradient": [{"rule": "ControlVariates"}],
        "weights": {"rule": "Uniform"},
    }
    loaded = fk.Experiment(dataset="digits", method=by_hand).plan.method
    rules = [fk.Sam(0.1), fk.HighPass(0.02)]
    assert loaded == fk.method("mine", perturb=rules, gradient=[fk.ControlVariates()], weights=fk.Uniform())


def test_a_problem_from_python_cannot_be_loaded_from_a_file():
    with pytest.raises(fk.ExperimentError, match="from Python"):
        fk.Experiment.load(experiment().save())


def test_what_a_run_of_a_problem_from_python_gave_can_be_read(tmp_path):
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    for given in (experiment(), fk.Experiment(dataset="digits", model=net, rounds=1)):
        run = fk.run(given, out=tmp_path / given.fingerprint(), engine="serial")
        found = fk.load_run(run.path)
        assert found.result == run.result
        assert found.experiment.fingerprint() == given.fingerprint()
        assert all(torch.equal(found.params[name], run.params[name]) for name in run.params)
        for ask in (found.model, lambda found=found: fk.run(found.experiment)):
            with pytest.raises(fk.ExperimentError, match="given from Python"):
                ask()


# ---- who takes part ------------------------------------------------------------------------------------------------
def test_participation_is_a_fixed_number_or_a_coin_for_each():
    sizes = np.ones(100, dtype=np.int64)
    fixed, coins = Participation(0, sizes, 0.1), Participation(0, sizes, "bernoulli:0.1")
    assert {len(fixed.selected(t)) for t in range(200)} == {10}
    counts = [len(coins.selected(t)) for t in range(2000)]
    assert min(counts) >= 1
    assert abs(np.mean(counts) - 10) < 0.3
    assert abs(np.var(counts) - 9) < 1.2
    half = Participation(0, np.arange(100) % 2, "bernoulli:0.2")  # of those who have data
    assert 9 < np.mean([len(half.selected(t)) for t in range(100)]) < 11
    assert len(Participation(0, np.ones(3, dtype=np.int64), 0.1).selected(0)) == 1
    assert len(Participation(0, sizes, 0.29).selected(0)) == 29  # 0.29 · 100 is 28.999… in floating point


def test_shuffled_clients_take_turns():
    everybody = Participation(0, np.ones(100, dtype=np.int64), "shuffled:0.1")
    passes = [[client for t in range(10 * n, 10 * n + 10) for client in everybody.selected(t)] for n in range(20)]
    assert all(sorted(one) == list(range(100)) for one in passes)
    assert len({tuple(one) for one in passes}) == 20  # each in an order of its own
    other = Participation(1, np.ones(100, dtype=np.int64), "shuffled:0.1")
    assert other.selected(0) != everybody.selected(0)


def test_shuffled_clients_that_are_left_over_sit_a_pass_out():
    some = Participation(0, np.array([5, 0, 5, 5, 5, 5, 0, 5, 5]), "shuffled:0.3")  # two of seven, three rounds a pass
    passes = [[client for t in range(3 * n, 3 * n + 3) for client in some.selected(t)] for n in range(700)]
    assert all(len(one) == len(set(one)) == 6 for one in passes)
    often = np.bincount([client for one in passes for client in one], minlength=9)
    assert often[[1, 6]].tolist() == [0, 0]  # they have no data
    assert abs(often[[0, 2, 3, 4, 5, 7, 8]] - 600).max() < 40
    assert Participation(0, np.ones(3, dtype=np.int64), "shuffled:1").selected(7) == [0, 1, 2]


def test_an_empty_coin_draw_is_drawn_again():
    rare = Participation(0, np.ones(2, dtype=np.int64), "bernoulli:0.01")
    assert all(rare.selected(t) for t in range(50))


def test_the_sequence_depends_on_the_seed_and_not_on_the_method():
    one, other = (
        fk.run(experiment(participation=0.5, rounds=4)),
        fk.run(experiment(participation=0.5, rounds=4, method="scaffold", lr=0.01)),
    )
    assert [r.selected for r in one.records] == [r.selected for r in other.records]
    third = fk.run(experiment(participation=0.5, rounds=4, seed=1))
    assert [r.selected for r in one.records] != [r.selected for r in third.records]


def test_unavailable_clients_do_not_answer():
    run = fk.run(experiment(unavailable=0.5, rounds=20))
    absent = sum(len(record.absent) for record in run.records)
    assert 40 <= absent <= 80  # of 120
    told = run.records[0]
    per_answer = told.bytes_down // len(told.selected)
    assert told.bytes_up == per_answer * (len(told.selected) - len(told.absent))


def test_a_round_nobody_answers_changes_nothing():
    run = fk.run(experiment(unavailable=0.999, rounds=3), keep_params=True)
    quiet = [r for r in run.records if len(r.absent) == len(r.selected)]
    assert quiet
    assert all(r.loss is None and r.bytes_up == r.backward_passes == 0 for r in quiet)


def test_stragglers_do_fewer_epochs():
    drawn = [Training(0, (1, 5), 4).epochs_of(t, c, 9) for t in range(40) for c in range(40)]
    assert set(drawn) == {1, 2, 3, 4, 5}
    assert abs(np.mean(drawn) - 3) < 0.1


# ---- validation, metrics, start weights ----------------------------------------------------------------------------
def test_the_validation_share_is_never_trained_on():
    clients = TensorClients([torch.arange(n) for n in (10, 1, 3, 0)])
    kept, held = (HeldOut(clients, 0.4, 7, validation=v) for v in (False, True))
    assert kept.sizes.tolist() == [6, 1, 2, 0]
    assert held.sizes.tolist() == [4, 0, 1, 0]
    for client, size in enumerate((10, 1, 3, 0)):
        rows = [data.rows(client, np.arange(data.sizes[client]))[0].tolist() for data in (kept, held)]
        assert sorted(rows[0] + rows[1]) == list(range(size))
    run = fk.run(experiment(validation=0.3))
    assert run.curve("validation_accuracy")


def test_metrics_are_means_over_samples():
    base = small_problem()
    metrics = {"mistakes": lambda out, y: (out.argmax(-1) != y).float(), "constant": lambda out, y: torch.tensor(2.0)}
    problem = fk.Problem(base.loss, base.clients, base.model, test=base.test, metrics=metrics)
    run = fk.run(experiment(problem=problem))
    np.testing.assert_allclose(run.curve("mistakes"), 1 - np.array(run.curve("accuracy")), atol=1e-12)
    assert run.curve("constant") == [2.0, 2.0]


def test_a_curve_that_no_round_measured_is_refused():
    """A measure of some rounds is a curve, and a run with rounds to come may measure it yet."""

    def sometimes(seen):
        return {"rare": 1.0} if seen.round == 2 else {}

    run = fk.run(experiment(rounds=3), track=sometimes)
    assert (run.rounds("rare"), run.curve("rare")) == ([2], [1.0])
    for asked in (run.curve, run.rounds):
        with pytest.raises(fk.RequestError, match="no round of this run measured: acuracy") as caught:
            asked("acuracy")
        assert caught.value.hint == "did you mean 'accuracy'?"
    with pytest.raises(fk.RequestError, match=r"known measures: .*rare.*test_loss"):
        run.curve("qqq")
    begun = replace(run, records=run.records[:1])
    empty = replace(run, records=[])
    assert begun.curve("rare") == empty.curve("rare") == empty.rounds("accuracy") == []


def test_training_begins_at_the_start_weights(tmp_path):
    first = fk.run(experiment(rounds=3))
    save_file(first.params, tmp_path / "w.safetensors")
    init = str(tmp_path / "w.safetensors")
    still = fk.run(experiment(rounds=1, init=init, lr=1e-30))
    assert all(torch.equal(still.params[n], first.params[n]) for n in first.params)
    save_file({"0.weight": torch.zeros(1)}, tmp_path / "w.safetensors")
    with pytest.raises(fk.ExperimentError, match="shape"):
        fk.run(experiment(rounds=1, init=init))


def test_a_run_does_not_go_on_from_other_start_weights(tmp_path):
    """Clients that take part later begin with the private layers of the start weights."""
    first, file, out = fk.run(experiment(rounds=1)).params, tmp_path / "w.safetensors", tmp_path / "run"
    save_file(first, file)
    begun = experiment(rounds=1, init=str(file))
    fk.run(begun, out=out)
    kept = (out / "rounds.jsonl").read_bytes()
    save_file({name: value.clone() for name, value in first.items()}, file, {"note": "the same weights"})
    fk.run(begun, out=out)
    save_file({name: value + 1 for name, value in first.items()}, file)
    for again in (begun, begun.with_(rounds=2)):
        with pytest.raises(fk.FolderError, match=r"another experiment \(it differs in: the weights in .*w.safetensors"):
            fk.run(again, out=out)
    assert (out / "rounds.jsonl").read_bytes() == kept


def test_the_trained_module_scores_what_the_run_says():
    problem = small_problem()
    run = fk.run(experiment(problem=problem, rounds=5))
    x, y = problem.test
    assert run.last == pytest.approx(float((run.model()(x).argmax(-1) == y).float().mean()))
    before = [p.clone() for p in problem.model.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(before, small_problem().model.parameters(), strict=True))


def test_the_training_loss_is_the_mean_over_clients(toy):
    """½ Σ_j H_ij (1 − b_ij)² is 1, 1 and 4."""
    asked = fk.Experiment(problem=toy, rounds=1, participation=1.0, epochs=1, batch_size=1, lr=0.1)
    assert fk.run(asked, engine="serial", dtype=torch.float64).records[0].loss == 2.0


def test_a_loss_may_be_a_mean():
    base = small_problem()
    mean = fk.Problem(torch.nn.CrossEntropyLoss(), base.clients, base.model, test=base.test)
    one, other = fk.run(experiment(problem=mean)), fk.run(experiment())
    torch.testing.assert_close(one.server["params"].buffer, other.server["params"].buffer)
    np.testing.assert_allclose(one.curve("test_loss"), other.curve("test_loss"), rtol=1e-6)


def test_evaluation_every_few_rounds_and_always_at_the_end():
    run = fk.run(experiment(rounds=5, evaluate_every=2))
    assert run.rounds("accuracy") == [2, 4, 5]
    assert len(run.curve("accuracy")) == 3
    scored = {2: 0.5, 3: 0.95, 4: 0.6, 5: 0.9}  # the run once ended in the third
    records = [replace(record, accuracy=scored.get(record.round)) for record in run.records]
    found = summarise(records, 2, "accuracy")
    assert (found["best"], found["best_round"], found["last"], found["mean_last_over"]) == (0.9, 5, 0.9, 3)


def test_the_last_partial_batch_is_kept():
    run = fk.run(experiment(rounds=1, epochs=3))
    sizes = [len(x) for x, _ in small_problem().clients]
    assert run.records[0].backward_passes == 3 * sum(-(-n // 4) for n in sizes)


def test_a_batch_size_larger_than_any_client_is_a_full_batch():
    run = fk.run(experiment(rounds=1, epochs=3, batch_size=10**9), engine="serial")
    assert run.records[0].backward_passes == 3 * len(small_problem().clients)
    for size in ("full", 0, -1):
        with pytest.raises(fk.ExperimentError, match="batch_size") as refused:
            experiment(batch_size=size)
        assert "larger than any client's samples is a full batch" in refused.value.hint


def test_float64_all_the_way():
    run = fk.run(experiment(method="fedfft-d"), dtype=torch.float64)
    assert run.params["0.weight"].dtype == torch.float64


def test_a_precision_is_a_type_of_torch_or_its_name():
    asked = experiment(rounds=1)
    named, given = (fk.run(asked, dtype=one, engine="serial").result for one in ("float64", torch.float64))
    assert named["model_digest"] == given["model_digest"]
    (together,) = fk.run_together([asked], dtype="float64")
    assert together.params["0.weight"].dtype == torch.float64
    for wrong in ("float16", torch.float16, "torch.float64", None, 64):
        for train in (lambda: fk.run(asked, dtype=wrong), lambda: fk.run_together([asked], dtype=wrong)):  # noqa: B023
            with pytest.raises(fk.RequestError, match="dtype is a type of torch or its name, not ") as refused:
                train()
            assert "\n" not in refused.value.message
            assert refused.value.hint == "float32 or bfloat16 or float64"


@pytest.mark.slow
def test_a_data_set_of_ours_trains_by_name():
    run = fk.run(fk.Experiment(dataset="digits", model="logistic", rounds=20, epochs=1, method="fedavg"))
    assert run.best > 0.5
    assert run.rounds_to(0.5) is not None
    assert run.rounds_to(1.0) is None
    for wrong, line in (("0.5", "a number, not '0.5'"), (None, "a number, not None"), (75, "75"), (nan, "nan")):
        with pytest.raises(fk.RequestError, match=f"^an accuracy is .*{line}"):
            run.rounds_to(wrong)
    with pytest.raises(fk.RequestError, match=r"hint: 75 % is 0\.75"):
        run.rounds_to(75)


def test_runs_in_several_threads_take_turns():
    """PyTorch's generators, threads and settings are one for the process: two runs at once changed each other."""
    asked = [experiment(seed=seed) for seed in range(2)]
    alone = [fk.run(one, engine="serial").result for one in asked]
    settings, before = torch.backends.mkldnn.enabled, torch.get_num_threads()
    found, began = [], threading.Event()

    def follow(moment):
        began.set()

    other = threading.Thread(target=lambda: found.append(fk.run(asked[1], engine="serial", callbacks=follow).result))

    def begin_another(moment):
        if not other.ident:
            other.start()
        assert not began.wait(0.2)

    first = fk.run(asked[0], engine="serial", callbacks=begin_another).result
    other.join()
    assert [first, *found] == alone
    assert (torch.backends.mkldnn.enabled, torch.get_num_threads()) == (settings, before)


@pytest.mark.slow
def test_a_run_does_not_depend_on_the_defaults_of_the_caller():
    rows = np.arange(24, dtype=np.float32).reshape(12, 2) / 24
    data = {"train": (rows, np.arange(12) % 2), "test": (rows, np.arange(12) % 2)}

    def train():
        asked = fk.Experiment(data=data, model="mlp", partition="iid:clients=2", rounds=1, participation=1.0, epochs=1)
        return [fk.run(asked, engine=name).result["model_digest"] for name in ("serial", "stacked")]

    expected = train()
    with torch.device("meta"):  # a GPU would do where there is one
        assert train() == expected
    with torch.inference_mode():
        assert train() == expected
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert train() == expected
        assert torch.is_autocast_enabled("cpu")
    torch.set_default_dtype(torch.float64)
    try:
        assert train() == expected
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_the_home_folder_may_be_written_as_in_a_shell(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    made = fk.run(experiment(), engine="serial", out="~/runs/a")
    assert made.path == tmp_path / "runs" / "a"
    assert fk.load_run("~/runs/a").result == made.result
    with pytest.raises(fk.RequestError, match="its Problem back, not 3"):
        fk.load_run("~/runs/a", problem=3)


# ---- other experiments from one ----
CHANGES = {
    "method": {"name": "fedsam", "rho": 0.2}, "dataset": "cifar10", "partition": {"kind": "iid", "clients": 7},
    "model": "mlp", "rounds": 3, "participation": "bernoulli:0.5", "epochs": (1, 3), "batch_size": 9, "lr": 0.03,
    "lr_decay": 0.9, "weight_decay": 0.001, "clip": 1.5, "augment": "crop-flip", "seed": 3, "partition_seed": 7,
    "validation": 0.2, "participants": [[0, 1]] * 100, "unavailable": 0.1, "on_nonfinite": "stop", "buffers": "keep",
    "evaluate_every": 2, "init": "w.safetensors", "evaluation": {"model": "global", "share": 0.2},
    "optimizer": "lion", "server_schedule": {"name": "linear", "end": 0.5, "warmup": 1},
}  # fmt: skip

INSTEAD = {"steps": ("epochs", 7), "schedule": ("lr_decay", "cosine")}
"""What may not be given beside another key."""


def changed(field, given):
    """Those settings with one changed; what it may not stand beside goes."""
    if field not in INSTEAD:
        return given | {field: CHANGES[field]}
    other, value = INSTEAD[field]
    return {name: old for name, old in given.items() if name != other} | {field: value}


@pytest.mark.slow
@for_each("field", [*CHANGES, *INSTEAD])
def test_replace_with_and_a_new_experiment_agree(field):
    assert {*CHANGES, *INSTEAD, "problem", "data"} == {one.name for one in fields(fk.Experiment)}
    for given in ({"dataset": "digits"}, CHANGES | {"dataset": "digits", "seed": 8}):
        then = changed(field, given)
        change = {name: then.get(name) for name in given | then if then.get(name) != given.get(name)}
        base = fk.Experiment(**given)
        one, other, new = replace(base, **change), base.with_(**change), fk.Experiment(**then)
        assert one == other == new == replace(one) == one.with_()
        assert one.save() == other.save() == new.save()
        assert one.fingerprint() == other.fingerprint() == new.fingerprint()
        assert fk.Experiment.load(new.save()).save() == new.save()


@for_each("field", [*CHANGES, *INSTEAD])
def test_an_experiment_says_what_was_asked_and_its_plan_what_it_comes_to(field):
    given = changed(field, {"dataset": "digits"})
    asked = fk.Experiment(**given)
    for one in fields(asked):
        assert getattr(asked, one.name) == given.get(one.name, one.default)
    plan, data = asked.plan, asked.save()
    rewritten = {"method", "evaluation", "epochs", "participants", "schedule", "server_schedule"}
    same = {one.name for one in fields(plan)} & data.keys() - rewritten
    assert {name: getattr(plan, name) for name in same} == {name: data[name] for name in same}
    assert plan.partition_seed == (7 if field == "partition_seed" else asked.seed)


def test_what_was_given_may_change_afterwards():
    method, partition = {"name": "fedsam", "rho": 0.2}, {"kind": "iid", "clients": 7}
    made = fk.Experiment(dataset="digits", method=method, partition=partition)
    saved = made.save()
    method["rho"], partition["clients"] = 0.3, 8
    assert made.with_().save() == replace(made).save() == saved


def test_another_seed_has_another_split_unless_the_split_was_given():
    base = fk.Experiment(dataset="digits", model="logistic")
    assert replace(base, seed=3).plan.partition_seed == 3
    assert replace(replace(base, seed=3), seed=4).with_(seed=5).plan.partition_seed == 5
    assert replace(base.with_(partition_seed=0), seed=3).plan.partition_seed == 0
    assert fk.Experiment.load(base.save() | {"seed": 3}).plan.partition_seed == 0  # a file says which split it was

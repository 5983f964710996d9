"""Callbacks: the best model is kept, a run may be stopped, and a pause changes nothing of either."""

import contextlib
import io
import json
from dataclasses import replace

import pytest

import fedkeel as fk
from fedkeel.cli.callbacks import read_callbacks
from fedkeel.errors import RequestError, RunError
from fedkeel.report.content import content
from fedkeel.report.source import Source
from fedkeel.report.tables import summary
from fedkeel.runs import checkpoint, following
from fedkeel.runs.following import EveryRound, describe, find_callbacks, list_callbacks, memory_of
from fedkeel.runs.record import RoundRecord
from fedkeel.studies import onnx_file
from fedkeel.studies.caveats import unfinished
from fedkeel.studies.run_groups import group_runs
from problems import small_problem

ROUNDS = 8


def experiment(**changes):
    settings = dict(method="scaffold", participation=0.5, epochs=1, batch_size=4, lr=0.05, rounds=ROUNDS)
    return fk.Experiment(problem=small_problem(), **settings | changes)


def train(path=None, callbacks=(), engine="serial", **changes):
    made = experiment(**changes)
    return fk.run(made, out=path, engine=engine, checkpoint_seconds=0.0, callbacks=callbacks)


def final_bytes(path):
    """The result and the last checkpoint, with all files that it names."""
    (newest, *_) = checkpoint.list_checkpoints(path / "checkpoint")
    names = sorted({newest.name, *checkpoint.Checkpoint.load(newest).files})
    return [(name, (path / "checkpoint" / name).read_bytes()) for name in names], (path / "result.json").read_bytes()


def equal(one, other):
    return one.keys() == other.keys() and all(bool((one[name] == other[name]).all()) for name in one)


class Counting(fk.Callback):
    """Counts what it is told of, and stops after some rounds of its own counting."""

    def __init__(self, most=100):
        self.most, self.ended, self.saved = most, [], 0

    def round(self, at):
        at.memory["rounds"] = at.memory.get("rounds", 0) + 1
        return "enough" if at.memory["rounds"] == self.most else None

    def checkpoint(self, at):
        self.saved += 1

    def end(self, run):
        self.ended.append(run)


class Interrupting(fk.Callback):
    """Ends the process between a round and the callbacks that follow, once for each round given."""

    def __init__(self, rounds):
        self.rounds = set(rounds)

    def round(self, at):
        if at.record.round in self.rounds:
            self.rounds.remove(at.record.round)
            raise KeyboardInterrupt


def test_callbacks_are_told_of_checkpoints_that_were_written(tmp_path):
    for out, told in ((None, 0), (tmp_path / "a", 2)):
        fk.run(experiment(rounds=2), out=out, checkpoint_seconds=0.0, callbacks=[(counting := Counting())])
        assert counting.saved == told


# ---- the best model ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("engine", ["serial", "stacked", pytest.param("processes", marks=pytest.mark.slow)])
def test_the_best_model_is_that_of_the_best_round(engine, tmp_path):
    for out in (None, tmp_path / engine)[engine != "serial" :]:
        run = fk.run(experiment(), out=out, engine=engine, keep_params=True, callbacks=[fk.KeepBest("accuracy")])
        best = run.result["best_round"]
        assert 1 < best < ROUNDS, "a round in the middle, or nothing is shown"
        assert run.result["kept"] == {"best": {"round": best, "accuracy": run.best}}
        assert equal(run.at("best").params, run.history[best - 1])
        assert not equal(run.at("best").params, run.params)
        assert equal(dict(run.model("best").state_dict()), run.history[best - 1])
    read = fk.load_run(tmp_path / engine)
    assert read.result == run.result
    assert equal(read.at("best").params, run.history[best - 1])
    assert len(read.at("best").records) == best
    assert read.at("best").last == run.best > run.last
    assert read.at("best").result["bytes_up"] == sum(record.bytes_up for record in run.records[:best])
    assert read.at("last") is read


def test_losses_and_validation_shares_choose_too():
    both = [fk.KeepBest("loss", name="test"), fk.KeepBest("accuracy", on="validation", name="own")]
    run = train(callbacks=both, validation=0.3)
    of_test = min(zip(run.curve("test_loss"), run.rounds("test_loss"), strict=True))[1]
    found = run.curve("validation_accuracy")
    assert (run.kept["test"].round, run.kept["own"].round) == (of_test, found.index(max(found)) + 1)


# rounds 1 to 8 of a run: a last round that is scored as such alone, and is better than those before it
WALKS = [
    ("loss", {"lr": 0.3}, 7, 8),  # and than those after it
    ("accuracy", {"lr": 2.0}, 5, None),  # none after it is better than those before it
]


@pytest.mark.parametrize(("metric", "walk", "short", "best"), WALKS)
def test_a_run_that_goes_on_keeps_the_best_of_its_evaluated_rounds(metric, walk, short, best, tmp_path, caplog):
    once = train(tmp_path / "longer", [fk.KeepBest(metric)], evaluate_every=2, rounds=short, **walk)
    assert once.kept["best"].round == short
    longer, whole = (
        train(tmp_path / name, [fk.KeepBest(metric)], evaluate_every=2, **walk) for name in ("longer", "whole")
    )
    assert longer.best == whole.best
    assert longer.result["best_round"] == whole.result["best_round"]
    told = f"the best model is that of round {short}, where the run once ended"
    if best is None:
        assert (longer.kept["best"].round, whole.kept["best"].round) == (short, whole.result["best_round"])
        assert told in caplog.text
    else:
        assert whole.kept["best"].round == best
        assert final_bytes(tmp_path / "longer") == final_bytes(tmp_path / "whole")
        assert told not in caplog.text


def test_a_run_that_goes_on_is_stopped_where_a_longer_one_is(tmp_path):
    stopper, walk = fk.EarlyStop("accuracy", patience=4), {"evaluate_every": 2, "lr": 2.0}
    train(tmp_path / "longer", [stopper], rounds=5, **walk)
    for name in ("longer", "whole"):
        assert train(tmp_path / name, [stopper], rounds=12, **walk).result["stopped"]["round"] == 8
    assert final_bytes(tmp_path / "longer") == final_bytes(tmp_path / "whole")


def waiting_time(output, target):
    return (output.argmax(-1) != target).float()


def test_where_clients_models_are_judged_they_also_choose(monkeypatch):
    policy = {"model": "local", "share": 0.3}
    run = train(callbacks=[fk.KeepBest(on="validation")], method="fedper", validation=0.3, evaluation=policy)
    assert run.kept["best"].measure == "validation_client_accuracy"
    scores = run.curve("validation_client_accuracy")
    assert run.kept["best"].score == max(scores)
    with pytest.raises(RequestError, match="keep another model than the one that was scored"):
        train(callbacks=[fk.KeepBest()], method="fedper", evaluation=policy | {"when": "before"})


def test_a_mode_says_what_is_better_where_a_name_does_not(caplog):
    """The share of wrong answers is best where the accuracy is; without a mode its name asks for a note, once."""
    kinds = [fk.KeepBest("waiting_time", name=f"of_{mode}", mode=mode) for mode in ("auto", "min", "max")]
    asked = {"callbacks": [*kinds, "EarlyStop:metric=waiting_time,patience=3,mode=min"], "metrics": [waiting_time]}
    for _ in range(2):
        run = fk.run(experiment(rounds=20), engine="serial", **asked)
    times = run.curve("waiting_time")
    assert run.kept["of_min"].round == times.index(min(times)) + 1 == run.result["best_round"]
    assert run.kept["of_max"].round == run.kept["of_auto"].round == times.index(max(times)) + 1
    assert run.result["stopped"]["round"] == run.kept["of_min"].round + 3
    notes = [line for line in caplog.messages if "waiting_time" in line]
    assert notes == ['KeepBest takes a higher waiting_time for a better one; if lower is better, give it mode="min"']
    assert fk.KeepBest() == fk.KeepBest(mode="auto")
    assert describe(fk.EarlyStop(mode="auto")) == "EarlyStop"
    with pytest.raises(RequestError, match="mode"):
        fk.KeepBest(mode="lower")


def test_what_a_finished_run_did_not_keep_or_measure_is_said(tmp_path, trained, fedkeel, caplog):
    """In Python and on the command line; not what it did, and not where rounds are to come."""
    asked = {"callbacks": [fk.KeepBest()], "metrics": [waiting_time]}
    missing = ["without keeping its best model", "without measuring waiting_time"]
    train(tmp_path, rounds=2)
    fk.run(experiment(rounds=2), out=tmp_path, engine="serial", **asked)
    assert [part for part in missing if part in caplog.text] == missing
    caplog.clear()
    for rounds in (3, 3):
        run = fk.run(experiment(rounds=rounds), out=tmp_path, engine="serial", **asked)
    assert run.curve("waiting_time")
    assert "without" not in caplog.text
    trained("--method", "fedavg", "--out", "there", "--metrics", "ece")
    for metric in ("iou", "ece"):
        told = fedkeel("resume", "there", "--metrics", metric).err
        assert ("there was made without measuring iou" in told) == (metric == "iou")


def test_buffers_and_averages_are_kept_as_they_were_deployed():
    run = train(method="fedswa", callbacks=fk.KeepBest())
    assert run.at("best").deployed.keys() == run.deployed.keys()
    assert run.at("best").deployed is run.unwritten["best"]


@pytest.mark.slow
# ---- a pause -------------------------------------------------------------------------------------------------------
def test_killed_and_resumed_is_never_killed(tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    after, stops = [fk.KeepBest(), Counting(ROUNDS - 2), fk.EarlyStop(patience=50)], [1, 2, 4, ROUNDS - 2]
    train(whole, [*after, Interrupting([])])
    for first in (True, False):  # an interrupt before the others were called, and after
        killer = Interrupting(stops)
        given = [killer, *after] if first else [*after, killer]
        for _ in stops:
            with pytest.raises(KeyboardInterrupt):
                train(broken / str(first), given)
        run = train(broken / str(first), given)
        assert run.result["stopped"] == {"round": ROUNDS - 2, "reason": "enough", "by": describe(after[1])}
        assert final_bytes(broken / str(first)) == final_bytes(whole)


@pytest.mark.slow
def test_the_checkpoint_before_has_its_own_best_model(tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train(whole, [fk.KeepBest()])
    train(broken, [fk.KeepBest()])
    kept = fk.load_run(broken).kept["best"]
    train(broken, [fk.KeepBest()], rounds=ROUNDS + 1)
    newest, _ = checkpoint.list_checkpoints(broken / "checkpoint")
    newest.write_bytes(b"nothing")
    assert fk.load_run(broken).kept["best"] == kept
    train(broken, [fk.KeepBest()], rounds=ROUNDS + 1)
    train(whole, [fk.KeepBest()], rounds=ROUNDS + 1)
    assert final_bytes(broken) == final_bytes(whole)


def test_a_kept_file_that_no_checkpoint_names_is_removed_and_one_that_is_named_is_not(tmp_path):
    train(tmp_path, [fk.KeepBest()])
    names = {path.name for path in (tmp_path / "checkpoint").glob("best-*")}
    named = {
        name
        for path in checkpoint.list_checkpoints(tmp_path / "checkpoint")
        for name in checkpoint.Checkpoint.load(path).followed.files
    }
    assert names == named
    train(tmp_path, rounds=ROUNDS + 3)  # without the callback
    assert names == {path.name for path in (tmp_path / "checkpoint").glob("best-*")}
    assert "best" in fk.load_run(tmp_path).kept


def test_a_damaged_best_model_is_said(tmp_path):
    run = train(tmp_path, [fk.KeepBest()])
    file = tmp_path / "checkpoint" / run.kept["best"].file
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(fk.FolderError, match=r"best model of .* is damaged"):
        run.model("best")
    with pytest.raises(fk.FolderError, match=r"no checkpoint in .* can be read: best-"):
        fk.load_run(tmp_path)


# ---- stopping ------------------------------------------------------------------------------------------------------
def moments(values, measure="accuracy"):
    """Moments of a run in which a measure took these values."""
    records, memory, made = [], {}, experiment(rounds=100)
    for number, value in enumerate(values, 1):
        plain = {"accuracy": value} if measure == "accuracy" else {"extra": {measure: value}}
        records = [*records, RoundRecord(number, [0], 1.0, 1.0, 1, 1, 1, 0.1, **plain)]
        yield fk.Moment(made, records, {}, None, memory, {})


STOPS = [
    (fk.EarlyStop("accuracy", patience=2), [0.1, 0.2, 0.2, 0.2], 4),
    (fk.EarlyStop("accuracy", patience=2), [0.1, 0.2, 0.1, 0.3, 0.2, 0.3], 6),
    (fk.EarlyStop("accuracy", patience=3, least=0.1), [0.1, 0.15, 0.19, 0.25, 0.3, 0.3, 0.35], 7),
    (fk.EarlyStop("accuracy", patience=1), [0.1, 0.2, 0.3], None),
    (fk.EarlyStop("test_loss", patience=2), [3.0, 2.0, 2.5, 2.0], 4),
    (fk.EarlyStop("loss", patience=2, on="validation"), [3.0, 2.0, 1.0, 0.5], None),
]


def test_patience_counts_the_rounds_since_the_best():
    for callback, values, stop in STOPS:
        name = {"test": "test_loss", "validation": "validation_loss"}[callback.on]
        measure = "accuracy" if callback.metric == "accuracy" else name
        reasons = [callback.round(at) for at in moments(values, measure)]
        assert [number for number, reason in enumerate(reasons, 1) if reason][:1] == ([stop] if stop else []), callback


def test_a_value_that_is_not_finite_is_worse_than_any():
    """The training loss, 1.0 in every round, does not take the place of a test loss that has become null."""
    for metric in (None, "loss", "test_loss"):
        for values, stop, best in (
            ([3.0, 2.0, None, None, None], 4, 2),
            ([None, 5.0, None, 4.0, None], None, 4),
            ([None, None, None, 5.0, 4.0], 3, 5),
        ):
            early, keep, kept = fk.EarlyStop(metric, patience=2), fk.KeepBest(metric), {}
            reasons = []
            for at in moments(values, "test_loss"):
                reasons.append(early.round(at))
                keep.round(replace(at, kept=kept))
            assert [number for number, reason in enumerate(reasons, 1) if reason][:1] == ([stop] if stop else [])
            assert all(reason.startswith("test_loss") for reason in reasons if reason)
            assert (kept["best"].round, kept["best"].measure) == (best, "test_loss")


@pytest.mark.slow
def test_another_patience_remembers_what_was_best(tmp_path, monkeypatch):
    """Also in the checkpoint of a version that kept the memory of each patience apart."""
    steps = {"rounds": 40, "lr": 0.5, "epochs": 2}
    ends = [train(None, [fk.EarlyStop(patience=n)], **steps).result["stopped"]["round"] for n in (2, 6)]
    assert ends[0] < ends[1] < 40
    for number, key_of in enumerate((memory_of, str)):
        folder = tmp_path / str(number)
        with monkeypatch.context() as patched:
            patched.setattr(following, "memory_of", key_of)
            assert train(folder, [fk.EarlyStop(patience=2)], **steps).result["stopped"]["round"] == ends[0]
        assert train(folder, [fk.EarlyStop(patience=6)], **steps).result["stopped"]["round"] == ends[1]
    fields = {"metric": "loss", "on": "validation", "least": 0.5, "mode": "min"}
    for given in ({}, fields, {"on": "validation"}, {"metric": "loss"}):
        names = {memory_of(describe(fk.EarlyStop(**given, **more))) for more in ({}, {"patience": 3}, {"patience": 40})}
        assert names == {describe(fk.EarlyStop(**given))}


def test_more_rounds_of_a_stopped_run_are_told_what_continues_it(tmp_path, caplog):
    stop = Counting(2)
    for rounds, told in ((3, 0), (3, 0), (5, 1), (5, 1)):
        assert len(train(tmp_path, [stop], rounds=rounds).records) == 2
        assert caplog.text.count("stopped early, in round 2 of 5, by test_callbacks:Counting") == told
    assert "in Python, go on without that callback" in caplog.text
    caplog.clear()
    assert len(train(tmp_path, [], rounds=5).records) == 5
    assert "stopped early" not in caplog.text


@pytest.mark.slow
def test_a_stopped_run_says_so_stays_stopped_and_goes_on_without_the_callback(tmp_path):
    stop = Counting(3)
    run = train(tmp_path / "a", [stop])
    assert (len(run.records), run.result["stopped"]["reason"], stop.ended) == (3, "enough", [run])
    assert stop.saved == 3
    seldom = Counting(3)
    fk.run(experiment(), out=tmp_path / "c", engine="serial", callbacks=[seldom, Counting(5)])
    assert seldom.saved == 1, "the last round is always saved"
    assert list_callbacks([seldom, EveryRound(lambda at: None)]) == ["test_callbacks:Counting"]
    assert fk.load_run(tmp_path / "a").result == run.result
    assert len(train(tmp_path / "a", [stop]).records) == 3
    assert "stopped" not in train(tmp_path / "a").result
    train(tmp_path / "b")
    assert (tmp_path / "a" / "result.json").read_bytes() == (tmp_path / "b" / "result.json").read_bytes()


def test_each_run_of_a_stack_has_its_own_memory():
    one = experiment()
    runs = fk.run_together([one, one.with_(seed=1)], callbacks=[Counting(4), fk.KeepBest()])
    assert [len(run.records) for run in runs] == [4, 4]
    for run in runs:
        alone = train(engine="stacked", callbacks=[Counting(4), fk.KeepBest()], seed=run.plan.seed)
        assert alone.kept["best"].round == run.kept["best"].round


def test_the_report_and_the_comparison_say_why_a_run_is_shorter(tmp_path):
    for seed in (0, 1):
        train(tmp_path / str(seed), [Counting(2 + seed)], seed=seed)
    (setting,) = content([Source.read(tmp_path / str(seed)) for seed in (0, 1)]).settings
    assert "scaffold, seed 0: stopped in round 2: enough" in summary(setting)
    assert "unfinished" not in summary(setting)
    told = unfinished(group_runs([fk.load_run(tmp_path / str(seed)) for seed in (0, 1)]))
    assert told[1] == "scaffold seed 1 was stopped in round 3: enough"


# ---- progress ------------------------------------------------------------------------------------------------------
def test_a_line_is_shown_where_someone_looks_at_it(monkeypatch, capsys):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    train(rounds=2)
    assert capsys.readouterr().err == ""
    seen = Terminal()
    monkeypatch.setattr("sys.stderr", seen)
    train(rounds=4, callbacks=[Counting(2)])
    *_, last = seen.getvalue().split("\r")
    assert "scaffold [############............] 2/4  accuracy" in last
    assert last.endswith("stopped in round 2: enough\n")
    seen.close()
    assert len(train(rounds=2).records) == 2  # a closed stream ends no run
    hidden = Terminal()
    monkeypatch.setattr("sys.stderr", hidden)
    fk.run(experiment(rounds=1), engine="serial", progress=False)
    assert hidden.getvalue() == ""


def test_the_line_of_a_run_that_is_interrupted_is_ended(capsys):
    def stop(moment):
        raise KeyboardInterrupt

    for given, line in (({"callbacks": stop}, "0/2"), ({}, "2/2")):
        with contextlib.suppress(KeyboardInterrupt):
            fk.run(experiment(rounds=2), engine="serial", progress=True, **given)
        told = capsys.readouterr().err
        assert line in told
        assert told.count("\n") == 1
        assert told.endswith("\n")


# ---- names and mistakes --------------------------------------------------------------------------------------------
OWN = """
import fedkeel as fk

def after_two(at):
    return "two are enough" if at.record.round == 2 else None

class Three(fk.Callback):
    def round(self, at):
        return "three are enough" if at.record.round == 3 else None

class Four(fk.Callback):
    def __init__(self, needed):
        self.needed = needed

number = 3
"""


def test_callbacks_come_by_name_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_callbacks.py").write_text(OWN)
    assert len(train(callbacks="own_callbacks:after_two").records) == 2
    assert len(train(callbacks=["own_callbacks:Three", "KeepBest"]).records) == 3
    assert len(train(callbacks=lambda at: "one" if at.record.round == 1 else None).records) == 1
    for text in ("EarlyStop:patience=3,on=validation", "KeepBest", "KeepBest:metric=f1,name=f1"):
        assert [describe(one) for one in find_callbacks([text])] == [text]
    with pytest.raises(RequestError, match="cannot be made without arguments"):
        find_callbacks("own_callbacks:Four")
    with pytest.raises(RequestError, match="of type int, not a callback"):
        find_callbacks("own_callbacks:number")


WRONG = {
    "no callback is called: EarlyStopp": "EarlyStopp",
    "EarlyStop has no field: patient": "EarlyStop:patient=3",
    "a field of EarlyStop needs a value": "EarlyStop:3",
    "patience of EarlyStop must be at least 1": "EarlyStop:patience=0",
    "on of KeepBest": "KeepBest:on=tset",
    "not 3": 3,
    "given twice: KeepBest": ["KeepBest", fk.KeepBest()],
    "part of Python": "os:getcwd",
}


def test_what_is_no_callback_is_refused_in_a_line():
    for message, given in WRONG.items():
        with pytest.raises(RequestError, match=message):
            find_callbacks(given if isinstance(given, list) else [given])


FAILING = {
    "no measure of this run is called: acuracy": (fk.KeepBest("acuracy"), RequestError),
    "called: validation_accuracy": (fk.EarlyStop("accuracy", on="validation"), RequestError),
    "returned True": (lambda at: True, RequestError),
    "failed in round 1: ZeroDivisionError": (lambda at: str(1 / 0), RunError),
    "failed in round 1: TypeError": (lambda at: at.memory.update(model=at.model), RunError),
    "cannot be kept as '../x'": (lambda at: at.keep("../x", "accuracy", 1.0), RequestError),
    "cannot be kept as 'last'": (lambda at: at.keep("last", "accuracy", 1.0), RequestError),
}


@pytest.mark.slow
def test_what_a_callback_does_wrong_is_said_in_a_line_and_the_rounds_are_kept(tmp_path):
    for number, (message, (callback, kind)) in enumerate(FAILING.items()):
        with pytest.raises(kind, match=message):
            train(tmp_path / str(number), [callback], rounds=2)
        assert len(train(tmp_path / str(number), rounds=2).records) == 2
    with pytest.raises(RequestError, match="keeps no best model"):
        train(rounds=1).model("best")


# ---- the command line ----------------------------------------------------------------------------------------------
def test_keep_names_what_chooses():
    for given, on in (("best", "test"), ("best:test", "test"), ("best:validation", "validation")):
        assert [one.on for one in read_callbacks(given, None, None)] == [on]


def test_keep_and_patience_on_the_command_line(trained, fedkeel, monkeypatch):
    words = "--method fedavg --out here --rounds 9 --patience 1 --keep best --set lr=3".split()
    (run,) = trained(*words)
    result = run["result"]
    assert result["stopped"]["by"] == "EarlyStop:patience=1"
    assert result["rounds"] == result["kept"]["best"]["round"] + 1 < 9
    assert trained(*words)[0]["state"] == "found"
    assert fedkeel("export", "model", "here", "best.safetensors", "--which", "best").code == 0
    exported = {}

    def write(done, file, trust):
        exported[file.stem] = done.model().state_dict()
        file.touch()
        return ["input"]

    monkeypatch.setattr(onnx_file, "write_onnx", write)
    for which in ("best", "last"):
        assert fedkeel("export", "model", "here", f"{which}.onnx", "--which", which).code == 0
        assert equal(exported[which], fk.load_run("here").model(which).state_dict())
    assert not equal(exported["best"], exported["last"])
    shown = fedkeel("resume", "here")
    assert f"stopped in round {result['rounds']}" in shown.out
    told = (
        f"here was stopped early, in round {result['rounds']} of {{}}, by EarlyStop:patience=1, so no round is trained"
    )
    assert told.format(9) in shown.err
    for _ in range(2):  # extended, and found
        extended = fedkeel("resume", "here", "--rounds", "11")
        assert extended.err.count("stopped early") == extended.err.count(told.format(11)) == 1
        assert "--patience 0 goes on" in extended.err
    gone_on = fedkeel("resume", "here", "--rounds", "9", "--patience", "0", "--json")
    assert "stopped early" not in gone_on.err
    assert json.loads(gone_on.out)["runs"][0]["result"]["rounds"] == 9
    assert fedkeel("run", "--keep", "worst").code == 2

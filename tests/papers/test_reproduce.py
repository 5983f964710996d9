"""Cells as runs: which ones, what the ledger keeps, what is done already, where a run stands."""

import json
import re
import shlex
import subprocess
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path

import pytest
from filelock import lock_descriptor

import fedkeel as fk
from fedkeel.analysis.intervals import paired_interval
from fedkeel.cli.main import call
from fedkeel.errors import DataError
from fedkeel.papers import PAPERS, Cell, find, ledger, tables
from fedkeel.papers.claim_verdicts import decide_claims
from fedkeel.papers.costs import gradient_evaluations, samples_of, seconds_like
from fedkeel.papers.ledger_line import bests_of, curve_of, entry_of
from fedkeel.papers.order import in_order, parts
from fedkeel.papers.reproduce import chosen, done, experiment_of, folder_of, obstacle, runs_of, settings_of, varied
from fedkeel.papers.results_page import page
from fedkeel.papers.verdicts import judge
from fedkeel.runs import environment
from fedkeel.runs.checkpoint import Checkpoint
from fedkeel.runs.experiment import Experiment
from fedkeel.runs.prepare import problem_of
from fedkeel.runs.record import RoundRecord
from fedkeel.runs.save_clock import SaveClock

ROOT = Path(__file__).parents[2]
TINY = {
    "dataset": "digits", "model": "logistic", "method": {"name": "fedavg"}, "rounds": 6, "epochs": 1, "lr": 0.1,
    "batch_size": 50, "participation": 0.1, "partition": {"kind": "iid", "clients": 20},
}  # fmt: skip


def cell(row="A", reported=50.0, **changes):
    return replace(Cell("fedfft", "1", row, "cifar10, 0.1", dict(TINY), reported), **changes)


def run_of(one, seed=0, rounds=None, **options):
    return fk.run(experiment_of(one, seed, rounds), engine="serial", **options)


# ---- which cells ---------------------------------------------------------------------------------------------------
def test_cells_are_chosen_by_their_words_in_any_order():
    found = chosen("fedfft:1", "0.1, cifar10, fedfft-d")
    assert [c.label for c in found] == ["FedFFT-D, cifar10, 0.1"]
    assert chosen("fedfft:1", "FedFFT-D, cifar10, 0.1") == found
    assert len(chosen("fedfft:1", "*cifar10*")) > 10
    assert len(chosen("questions:step", "FedAvg, cifar10, 0.1")) == 1  # though its words are in other labels too
    assert len(chosen("questions:step", "FedAvg")) > 3
    with pytest.raises(fk.RequestError, match="no cell"):
        chosen("fedfft:1", "FedFFT-Q")
    with pytest.raises(fk.RequestError, match="unknown paper"):
        chosen("fedfft2:1", None)


def test_the_order_names_cells_that_exist_and_begins_as_it_should():
    first = [c.row for c in in_order("a")]
    assert first[:6] == ["FedAvg", "FedSAM", "FedFFT", "FedDyn", "FedSAM-D", "FedFFT-D"]
    assert len(first) == len(set(first)) == 12
    assert {c.column for c in in_order("a")} == {"cifar10, 0.1"}
    assert len(in_order("b")) == 20
    assert {c.paper for c in in_order("d")} == {"fedscam", "fedwmsam", "fedfsa"}
    everything = in_order()
    names = [(c.paper, c.table, c.label) for c in everything]
    assert len(names) == len(set(names))
    assert all(c.experiment["dataset"] in ("cifar10", "fashion-mnist") for c in everything)
    assert chosen("order:c", "*0.6")[0].table == "3"
    for part in parts():
        assert in_order(part)
    with pytest.raises(fk.RequestError, match="the order has no part: z"):
        chosen("order:z", None)


def test_a_cell_may_be_tried_with_other_settings():
    base = cell(experiment=dict(TINY) | {"method": {"name": "fedsam", "rho": 0.1}})
    (changed,) = varied([base], [(("lr",), 0.5), (("method", "rho"), 0.2), (("partition", "clients"), 5)])
    assert changed.experiment["method"] == {"name": "fedsam", "rho": 0.2}
    assert changed.experiment["partition"] == {"kind": "iid", "clients": 5}
    assert changed.experiment["lr"] == 0.5
    assert varied([base], []) == [base]
    with pytest.raises(fk.RequestError, match="rounds is not a setting"):
        varied([base], [(("rounds",), 3)])
    with pytest.raises(fk.RequestError, match="no key: lrr\n\nhint: did you mean 'lr'"):
        varied([base], [(("lrr",), 3)])


# ---- what the ledger keeps -----------------------------------------------------------------------------------------
def test_a_cell_is_run_measured_and_kept(tmp_path):
    one = cell()
    run = run_of(one, seed=1, rounds=4)
    kept = entry_of(one, run, {"device": "cpu"})
    curve = [100 * value for value in run.curve("accuracy")]
    assert (kept.seed, kept.rounds, kept.rounds_paper, kept.shortened) == (1, 4, 6, True)
    assert kept.measured == kept.best == pytest.approx(max(curve), abs=1e-4)
    assert [kept.at_round(r) for r in (1, 2, 3, 4)] == pytest.approx(curve, abs=1e-4)  # below 20 rounds, each is kept
    for r in (1, 2, 3, 4):
        assert kept.best_by(r) == pytest.approx(max(curve[:r]), abs=1e-4)
        reached = kept.rounds_to(curve[r - 1] - 1e-3)
        assert reached == next(i for i, value in enumerate(curve, 1) if value >= curve[r - 1] - 1e-3)
    assert kept.rounds_to(101.0) is None
    assert kept.settings == {name: value for name, value in TINY.items() if name != "rounds"}
    path = tmp_path / "results" / "ledger.jsonl"
    ledger.append(kept, path)
    ledger.append(kept, path)
    assert ledger.read(path) == [kept]


def test_a_curve_has_every_fiftieth_round_of_a_paper_of_two_hundred_and_more_of_a_shorter_one():
    records = [RoundRecord(r, [], None, None, 0, 0, 0, 0.0, accuracy=0.5) for r in range(1, 201)]
    assert list(curve_of(records, 200)) == ["50", "100", "150", "200"]
    for rounds, every in ((199, 5), (20, 5), (19, 1), (15, 1)):
        assert [*curve_of(records, rounds)] == [str(r) for r in range(every, 201, every)]


def test_a_round_that_is_as_good_as_one_before_is_no_best():
    records = [RoundRecord(r, [], None, None, 0, 0, 0, 0.0, accuracy=a) for r, a in enumerate((0.5, 0.5, 0.4, 0.6), 1)]
    assert bests_of(records) == [[1, 50.0], [4, 60.0]]


def test_a_round_in_which_a_run_once_ended_is_in_no_line_of_what_it_became():
    """Scored every second round, it ended in the third, and went on."""
    one = cell(experiment=dict(TINY) | {"evaluate_every": 2})
    run = run_of(one)
    made = [replace(r, accuracy={2: 0.2, 3: 0.9, 4: 0.3, 6: 0.4}.get(r.round)) for r in run.records]
    ends = {3: 0.9, 6: 0.4}
    results = {n: run.result | {"rounds": n, "best": end, "last": end} for n, end in ends.items()}
    short, long = (entry_of(one, replace(run, records=made[:n], result=results[n]), {}) for n in ends)
    assert (short.bests, short.rounds_to(30.0)) == ([[2, 20.0], [3, 90.0]], 3)
    assert (long.bests, long.rounds_to(30.0)) == ([[2, 20.0], [4, 30.0], [6, 40.0]], 4)
    assert long.curve == {"2": 20.0, "4": 30.0, "6": 40.0}
    assert long.continues(short)
    assert not long.continues(replace(short, bests=[[2, 21.0], [3, 90.0]]))


@pytest.mark.parametrize(("method", "sent"), [("fedavg", 1.0), ("scaffold", 2.0), ("fedsmoo", 2.0), ("ghbm", 1.5)])
def test_bytes_are_told_in_units_of_fedavg(method, sent):
    one = cell(experiment=dict(TINY) | {"method": {"name": method}})
    assert entry_of(one, run_of(one, rounds=1), {}).sent == pytest.approx(sent, rel=1e-2)


def test_an_averaged_run_keeps_the_score_of_the_model_that_is_trained_too():
    """Which is that of the same run without the average."""
    both = [cell(experiment=dict(TINY) | {"method": {"name": name}}) for name in ("fedavg", "ema+fedavg")]
    trained, averaged = (entry_of(one, run_of(one, rounds=3), {}) for one in both)
    assert averaged.plain == trained.last != averaged.last
    assert trained.plain is None


def test_personal_models_are_judged_after_their_tuning_even_when_read_again(tmp_path):
    policy = {"share": 0.3, "tune": True, "accuracy": "batch-mean"}
    one = cell(experiment=dict(TINY) | {"evaluation": policy}, evaluation="personal best")
    run = run_of(one, rounds=1, out=tmp_path / "run")
    tuned = run.result["tuned"]["client_accuracy"]
    kept = entry_of(one, run, {})
    assert kept.measured == pytest.approx(100 * max(tuned, run.best), abs=1e-4)
    assert entry_of(one, fk.load_run(tmp_path / "run"), {}) == kept
    run_of(one, rounds=2, out=tmp_path / "run")
    old = tmp_path / "run" / "result.json"
    old.write_text(json.dumps(run.result))  # of the shorter run
    (tmp_path / "run" / "sums.txt").unlink()
    again = fk.load_run(tmp_path / "run")
    assert entry_of(one, again, {}).measured == pytest.approx(100 * again.best, abs=1e-4)


def test_a_run_serves_every_cell_that_is_the_same_experiment():
    mine, again, other = cell(), cell("B"), cell("C", experiment=dict(TINY) | {"lr": 0.5})
    kept = entry_of(mine, run_of(mine, rounds=2), {})
    assert runs_of(again, [kept]) == [kept]
    assert runs_of(other, [kept]) == []
    old = replace(kept, settings={})  # lines of before settings were kept
    assert runs_of(mine, [old]) == [old]
    assert runs_of(again, [old]) == []


def test_what_is_done_is_as_long_or_longer():
    one = cell()
    kept = [entry_of(one, run_of(one, rounds=3), {})]
    assert done(one, 0, 2, kept)
    assert done(one, 0, 3, kept)
    assert not done(one, 0, 4, kept)
    assert not done(one, 0, None, kept)
    assert not done(one, 1, 3, kept)
    assert done(one, 0, None, [replace(kept[0], rounds=6)])
    assert done(one, 0, 999, [replace(kept[0], rounds=6)])  # a cell is never longer than the paper has it


def test_a_longer_run_goes_on_where_a_shorter_one_ended(tmp_path):
    short, long = experiment_of(cell(), 0, 2), experiment_of(cell(), 0)
    fk.run(short, out=folder_of(short, tmp_path), engine="serial")
    assert folder_of(long, tmp_path) == folder_of(short, tmp_path)
    whole = fk.run(long, out=folder_of(long, tmp_path), engine="serial")
    assert whole.result == fk.run(long, engine="serial").result
    assert folder_of(short, tmp_path) != folder_of(long, tmp_path)


def test_a_batch_that_is_not_full_is_a_gradient_too():
    """Ten clients of 500 samples go through them five times in a round."""
    plain = next(cell for cell in find("fedfft:1") if cell.label == "FedAvg, cifar10, 0.6")
    for size, batches in ((50, 10), (64, 8)):
        cell = replace(plain, experiment=plain.experiment | {"batch_size": size})
        assert gradient_evaluations(cell, 1) == 10 * 5 * batches


def test_costs_follow_gradient_evaluations():
    plain, sam = cell(), cell(experiment=dict(TINY) | {"method": {"name": "fedsam"}})
    assert gradient_evaluations(sam) == 2 * gradient_evaluations(plain) == 4 * gradient_evaluations(sam, 3) / 2
    once, often = (cell(experiment=dict(TINY) | {"method": {"name": "fedala", "passes": n}}) for n in (1, 11))
    more = gradient_evaluations(often) - gradient_evaluations(once)  # each pass is over four fifths of the data
    assert more == 8 * gradient_evaluations(plain) / TINY["epochs"]
    known = [replace(entry_of(plain, run_of(plain, rounds=3), {}), seconds=30.0)]
    assert seconds_like(plain, known) == pytest.approx(60.0)
    assert seconds_like(sam, known) == pytest.approx(120.0)
    assert seconds_like(plain, [replace(known[0], seed=1, seconds=90.0), *known]) == pytest.approx(60.0)  # the newest
    wide = cell(experiment=dict(TINY) | {"model": "mlp"})
    assert seconds_like(wide, known) is None
    # seconds of a run beside others are better than none
    shared = replace(entry_of(wide, run_of(wide, rounds=3), {"shared": True}), seconds=90.0)
    assert seconds_like(wide, [shared, *known]) == pytest.approx(180.0)
    assert seconds_like(plain, [*known, replace(known[0], seconds=90.0, environment={"shared": True})]) == 60.0
    personal = cell(experiment=dict(TINY) | {"evaluation": {"share": 0.5, "pool": False}})
    assert gradient_evaluations(personal) <= gradient_evaluations(plain)


@pytest.mark.parametrize("policy", [None, {"share": 0.25, "pool": True}, {"share": 0.25, "pool": False}])
def test_the_samples_that_costs_are_counted_by_are_those_that_clients_train_on(policy):
    plan = Experiment(**TINY | {"evaluation": policy}).plan
    assert samples_of(plan) == pytest.approx(problem_of(plan).data.sizes.sum(), abs=20)  # 20 clients round theirs


def test_a_run_that_went_on_counts_once(tmp_path):
    one = cell()
    lines = [entry_of(one, run_of(one, seed, rounds), {}) for seed, rounds in ((0, 3), (0, 6), (1, 3))]
    assert [(entry.seed, entry.rounds) for entry in ledger.furthest(lines)] == [(0, 6), (1, 3)]
    text = page([replace(entry, seconds=360.0 * entry.rounds) for entry in lines])
    assert "2 runs, 0.9 hours" in text


def test_a_damaged_ledger_is_said(tmp_path):
    path = tmp_path / "ledger.jsonl"
    for damage in (b"{not json}\n", b"3\n", b'{"paper": "fedfft"}\n', b"\xff\xfe\n"):
        path.write_bytes(damage)
        with pytest.raises(fk.RequestError, match="damaged in line 1"):
            ledger.read(path)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("seconds", None, "seconds must be a number: None"),
        ("settings", [], "settings must be a table: []"),
        ("settings", {"method": "fedavg"}, "settings must have a table `method` and the name of a dataset: {'method':"),
        ("environment", None, "environment must be a table: None"),
        ("seed", [1], "seed must be a whole number: [1]"),
        ("rounds", "x", "rounds must be a whole number: 'x'"),
        ("rounds", 2.5, "rounds must be a whole number: 2.5"),
        ("rounds", True, "rounds must be a whole number: True"),
        ("rounds", 0, "rounds must be at least 1: 0"),
        ("rounds_paper", 0, "rounds_paper must be at least 1: 0"),
        ("best", "hi", "best must be a number: 'hi'"),
        ("row", 3, "row must be a text: 3"),
        ("uncertain", "no", "uncertain must be true or false: 'no'"),
        ("bests", [[1, 2, 3]], "bests must be pairs of a round and an accuracy: [[1, 2, 3]]"),
        ("curve", {"1": "x"}, "curve must be a table of numbers: {'1': 'x'}"),
    ],
)
def test_a_field_of_another_type_is_said_with_its_line(tmp_path, capsys, name, value, said):
    path = tmp_path / "ledger.jsonl"
    whole = line_of()
    path.write_text(f"{whole.dumps()}\n\n{json.dumps(json.loads(whole.dumps()) | {name: value})}\n")
    assert call(["reproduce", "--ledger", str(path), "--page", str(tmp_path / "page.md")]) == 2
    assert f"ledger.jsonl is damaged in line 3: {said}" in " ".join(capsys.readouterr().err.split())


def line_of(row="FedAvg", value=50.0, settings=None, **changes):
    """A line of a shortened run, without the run."""
    made = ledger.Entry(
        "fedfft", "1", row, "cifar10, 0.1", 0, "accuracy", "best", None, None, value, value, value, value, 200, 800,
        1.0, "f", "d", settings=dict(TINY) if settings is None else settings, bests=[[200, value]],
    )  # fmt: skip
    return replace(made, **changes)


def test_a_line_waits_until_another_process_has_written_its_own(tmp_path):
    path = tmp_path / "ledger.jsonl"
    with ThreadPoolExecutor() as pool, path.open("ab") as other:
        lock_descriptor(other.fileno())
        waiting = pool.submit(ledger.append, line_of(seed=1), path)
        other.write(f"{line_of(seed=0).dumps()[:9]}".encode())
        other.flush()
        assert not wait([waiting], timeout=0.2).done
        other.write(f"{line_of(seed=0).dumps()[9:]}\n".encode())
    assert [entry.seed for entry in ledger.read(path)] == [0, 1]


def test_a_line_without_a_digest_of_its_model_says_why_or_is_refused(tmp_path):
    path, told = tmp_path / "ledger.jsonl", line_of(model_digest="", undigested="lost <with> its machine")
    with pytest.raises(fk.RunError, match=r"no digest of its model: fedfft:1 FedAvg, cifar10, 0\.1, seed 0"):
        ledger.append(line_of(model_digest=""), path)
    assert not path.exists()
    ledger.append(told, path)
    assert ledger.read(path) == [told]
    text = page([told, replace(told, seed=1), line_of(seed=2, model_digest=""), line_of(seed=3)])
    assert "no model can be held against their numbers: 3.\n" in text
    named = "fedfft:1 FedAvg, cifar10, 0.1, seed {}, 200 rounds"
    assert f"- lost &lt;with&gt; its machine: {named.format(0)}; {named.format(1)}.\n" in text
    assert f"- they do not say why: {named.format(2)}.\n" in text
    assert "no digest" not in page([line_of()])


def test_a_ledger_that_breaks_off_without_a_new_line_is_gone_on_with(tmp_path):
    path = tmp_path / "ledger.jsonl"
    first, second, third = (line_of(seed=seed, row="Ä") for seed in range(3))
    path.write_text(f"\n{first.dumps()}\n  \n{second.dumps()}", encoding="utf-8")
    ledger.append(third, path)
    assert ledger.read(path) == [first, second, third]
    ledger.append(replace(third, seconds=2.0), path)
    assert path.read_bytes().count(b"\n") == 6  # nothing is added where a line is whole


def test_a_training_that_two_processes_write_down_has_one_line(tmp_path):
    """One trained it, the other found it finished, for another cell perhaps; who is first does not matter."""
    path, made = tmp_path / "ledger.jsonl", line_of(environment={"device": "cpu"})
    found = replace(made, table="3", row="None")
    again = [replace(made, seconds=2.0), replace(made, model_digest="e"), replace(made, seed=1)]
    for lines in ([made, found, *again], [found, made, *again, made]):
        path.write_text("{not json}\n")  # a damaged line is no hindrance
        for line in lines:
            ledger.append(line, path)
        written = path.read_text().splitlines()
        assert [ledger.read_entry(line.encode()) for line in written[1:]] == [lines[0], *again]


# ---- the command ---------------------------------------------------------------------------------------------------
def test_the_command_runs_shortens_skips_and_writes_the_page(tmp_path, capsys):
    book, out = tmp_path / "ledger.jsonl", tmp_path / "runs"
    small = ["--set", "dataset=digits", "--set", "model=logistic", "--set", "augment=none", "--set", "epochs=1"]
    asked = ["reproduce", "fedfft:1", "--cell", "FedAvg, cifar10, 0.1", "--rounds", "2", "--ledger", str(book)]
    asked += ["--out", str(out), "--engine", "serial", "--no-progress", *small]
    assert call([*asked, "--dry-run"]) == 0
    assert "1 run of 1 cell;" in capsys.readouterr().out
    assert not book.exists()
    assert call([*asked, "--rounds", "0"]) == 2
    assert "at least 1: 0" in capsys.readouterr().err
    assert call(["reproduce", "--ledger", str(book), "--page", str(tmp_path / "page.md")]) == 2
    assert "there is no ledger" in capsys.readouterr().err
    assert call(asked) == 0
    assert "2 of 800" in capsys.readouterr().out
    assert call(asked) == 0  # found finished: no second line
    assert call([*asked, "--skip-done"]) == 0
    (line,) = book.read_text().splitlines()
    assert json.loads(line)["environment"].keys() >= {"fedkeel", "revision", "torch"}
    assert ledger.read(book)[0].version.startswith(fk.__version__)
    capsys.readouterr()
    assert call([*asked, "--skip-done", "--dry-run"]) == 0
    assert "in the ledger" in capsys.readouterr().out
    assert call([*asked, "--seeds", "0,1", "--skip-done"]) == 0
    assert [entry.seed for entry in ledger.read(book)] == [0, 1]
    assert call(["reproduce", "--ledger", str(book), "--page", str(tmp_path / "page.md")]) == 0
    assert "`dataset = digits` (chosen: cifar10)" in (tmp_path / "page.md").read_text()


def test_several_other_choices_are_tried_at_once(tmp_path, capsys):
    book = tmp_path / "ledger.jsonl"
    asked = ["reproduce", "fedfft:1", "--cell", "FedAvg, cifar10, 0.1", "--rounds", "1", "--ledger", str(book)]
    asked += ["--set", "dataset=digits", "--set", "model=logistic", "--set", "augment=none", "--set", "epochs=1"]
    asked += ["--out", str(tmp_path / "runs"), "--engine", "stacked", "--device", "cpu", "--no-progress"]
    assert call([*asked, "--try", "lr=0.05, 0.01"]) == 0
    assert [entry.settings["lr"] for entry in ledger.read(book)] == [0.05, 0.01]
    assert call([*asked, "--try", "lr"]) == 2
    assert "--try needs key=values: lr" in capsys.readouterr().err


def test_what_an_interrupted_run_has_reached_is_kept(tmp_path, monkeypatch):
    book = tmp_path / "ledger.jsonl"

    def stopped_at(rounds):
        def train(plans, machine, display):
            for plan in plans:
                fk.run(plan.experiment.with_(rounds=rounds), out=plan.folder, engine="serial")
            raise KeyboardInterrupt

        return train

    small = ["--set", "dataset=digits", "--set", "model=logistic", "--set", "augment=none", "--set", "epochs=1"]
    asked = ["reproduce", "fedscam:2", "--cell", "FedAvg, cifar10, 0.1", "--ledger", str(book), *small]
    asked += ["--out", str(tmp_path / "runs"), "--engine", "serial", "--no-progress"]
    # a tenth of the rounds asked for is the least: of 15, or of 8
    for rounds, shorter, kept in ((1, [], []), (1, ["--rounds", "8"], [1]), (3, [], [1, 3])):
        monkeypatch.setattr("fedkeel.cli.training.train", stopped_at(rounds))
        assert call([*asked, *shorter]) == 130
        assert [entry.rounds for entry in ledger.read(book)] == kept
    monkeypatch.undo()
    assert call(asked) == 0  # goes on with round 4
    assert [entry.rounds for entry in ledger.read(book)] == [1, 3, 15]


def test_a_finished_run_keeps_one_checkpoint_and_goes_on_from_it(tmp_path, monkeypatch):
    monkeypatch.setattr(SaveClock, "is_due", lambda *_: True)  # a checkpoint after every round
    asked = [*CELL, "--set", "method=scaffold", "--ledger", str(tmp_path / "ledger.jsonl"), "--out", str(tmp_path)]
    for rounds in ("2", "4"):
        assert call([*asked, "--rounds", rounds]) == 0
        (last,) = tmp_path.glob("*/checkpoint/0*.safetensors")
        assert {*Checkpoint.load(last).places.values()} == {path.name for path in last.parent.glob("clients-*")}
    made = fk.load_run(last.parents[1])
    assert made.result == fk.run(made.experiment, engine="serial").result


def test_damage_of_an_interrupted_run_is_told(tmp_path, monkeypatch, capsys):
    damage = []

    def train(plans, machine, display):
        for plan in plans:
            fk.run(plan.experiment.with_(rounds=2), out=plan.folder, engine="serial")
            for path in damage:
                for file in plan.folder.glob(path):
                    file.write_bytes(b"torn")
        raise KeyboardInterrupt

    monkeypatch.setattr("fedkeel.cli.training.train", train)
    small = ["--set", "dataset=digits", "--set", "model=logistic", "--set", "augment=none", "--set", "epochs=1"]
    asked = ["reproduce", "fedscam:2", "--cell", "FedAvg, cifar10, 0.1", *small, "--rounds", "4", "--engine", "serial"]
    for number, (path, words) in enumerate([("rounds.jsonl", "rounds.jsonl"), ("checkpoint/*", "checkpoint")]):
        damage[:] = [path]
        place = ["--ledger", str(tmp_path / "ledger.jsonl"), "--out", str(tmp_path / str(number)), "--no-progress"]
        assert call([*asked, *place]) == 130
        (told,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
        assert words in told
    assert ledger.read(tmp_path / "ledger.jsonl") == []


def test_an_interrupted_run_that_has_not_begun_is_not_told(tmp_path, monkeypatch, capsys):
    def train(plans, machine, display):
        raise KeyboardInterrupt

    monkeypatch.setattr("fedkeel.cli.training.train", train)
    asked = ["reproduce", "fedscam:2", "--cell", "FedAvg, cifar10, 0.1", "--set", "dataset=digits", "--set"]
    asked += ["model=logistic", "--set", "augment=none", "--ledger", str(tmp_path / "ledger.jsonl"), "--no-progress"]
    assert call([*asked, "--out", str(tmp_path / "runs")]) == 130
    assert "error" not in capsys.readouterr().err


def test_data_that_cannot_be_had_cost_only_their_own_cells(tmp_path, monkeypatch, capsys):
    def fetch(names, progress):
        if "cifar10" in names:
            raise DataError("there is no network", "bring it yourself")

    monkeypatch.setattr("fedkeel.cli.fetching.fetch", fetch)
    small = [cell("A"), cell("B", experiment=TINY | {"dataset": "cifar10", "model": "logistic"})]
    monkeypatch.setattr("fedkeel.papers.reproduce.chosen", lambda *given: small)
    book = tmp_path / "ledger.jsonl"
    asked = ["reproduce", "fedfft:1", "--ledger", str(book), "--out", str(tmp_path / "runs"), "--engine", "serial"]
    assert call([*asked, "--no-progress"]) == 1
    assert [entry.row for entry in ledger.read(book)] == ["A"]
    assert "cifar10: there is no network" in capsys.readouterr().err
    monkeypatch.setattr("fedkeel.papers.reproduce.chosen", lambda *given: small[1:])
    assert call([*asked, "--no-progress"]) == 2  # nothing else was asked for


def test_a_cell_that_cannot_be_run_is_told_and_fails_the_command(tmp_path, monkeypatch, capsys):
    cells = [cell("A"), cell("B", unmeasured="nobody says how")]
    monkeypatch.setattr("fedkeel.papers.reproduce.chosen", lambda *given: cells)
    book = tmp_path / "ledger.jsonl"
    asked = ["reproduce", "fedfft:1", "--ledger", str(book), "--out", str(tmp_path / "runs"), "--engine", "serial"]
    assert call([*asked, "--no-progress", "--rounds", "1"]) == 1
    assert "skipped fedfft:1 B, cifar10, 0.1: nobody says how" in " ".join(capsys.readouterr().out.split())
    assert [entry.row for entry in ledger.read(book)] == ["A"]


def test_the_command_judges_as_the_page_does(tmp_path, capsys):
    book = tmp_path / "ledger.jsonl"
    by_row = {c.row: c for c in find("fedfft:1") if c.column == "cifar10, 0.1"}
    for row, value in (("FedAvg", 70.0), ("FedSAM", 60.0), ("FedFFT", 50.0)):
        ledger.append(line_of(row, value, settings_of(by_row[row])), book)
    (table,) = [table for table in tables("fedfft") if table.name == "1"]
    judged = {one.cell.label: one.verdict for one in judge(table.cells, ledger.read(book))}
    assert judged["FedSAM, cifar10, 0.1"] == "differs so far (one seed)"
    asked = ["reproduce", "fedfft:1", "--cell", "FedSAM, cifar10, 0.1", "--ledger", str(book), "--skip-done"]
    assert call([*asked, "--rounds", "200", "--no-progress"]) == 0
    assert "differs so far (one seed)" in " ".join(capsys.readouterr().out.split())
    tried = settings_of(by_row["FedSAM"]) | {"lr": 0.5}
    ledger.append(line_of("FedSAM", 45.0, tried), book)
    assert call([*asked, "--rounds", "200", "--no-progress", "--try", "lr=0.5"]) == 0
    assert "differs" not in (told := capsys.readouterr().out)
    assert "one seed" in told


@pytest.mark.parametrize("seeds", ["", " , "])
def test_no_seed_at_all_is_refused(seeds, tmp_path, capsys):
    book = tmp_path / "ledger.jsonl"
    assert call(["reproduce", "fedfft:1", "--seeds", seeds, "--ledger", str(book), "--dry-run"]) == 2
    assert "--seeds names no seed" in capsys.readouterr().err


def test_every_table_and_part_is_listed(capsys):
    assert call(["reproduce", "--list"]) == 0
    listed = capsys.readouterr().out
    assert all(f"{name} " in listed for name in ("fedfft:13", "specgradfilter:VIII", "questions:step", "order:d"))


@pytest.mark.slow
def test_the_results_page_is_made_from_the_ledger():
    entries = ledger.read(ROOT / "results" / "ledger.jsonl")
    written = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert written == page(entries)


def test_what_the_readme_says_of_the_papers_is_what_the_ledger_has():
    entries = ledger.read_lines(ROOT / "results" / "ledger.jsonl")
    said = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    decisions = decide_claims(entries)
    findings = {(d.claim.name, f.difference.name): f for d in decisions for f in d.findings}

    assert f"the {ledger.spent(entries)[0]} runs in `results/ledger.jsonl`" in said
    whole = ledger.furthest(e for e in ledger.standing(ledger.keep_newest(entries)) if not e.shortened)
    assert f"{len(whole)} that stand are as long as the paper's" in said
    counts = [sum(d.verdict == word for d in decisions) for word in ("confirmed", "contradicted", "undecided")]
    assert f"Of {len(decisions)} claims {counts[0]} are confirmed, {counts[1]} are contradicted" in said
    assert f"and {counts[2]} are undecided" in said
    judged = {
        tuple(cells[:4]): cells[-1].split(" (")[0]
        for line in (ROOT / "docs" / "claims.md").read_text(encoding="utf-8").splitlines()
        if len(cells := [cell.strip() for cell in line.strip("|").split("|")]) == 9
    }
    table = (ROOT / "README.md").read_text(encoding="utf-8").partition("| difference |")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    assert len(rows) > 20
    assert {row[-1] for row in rows} == {"confirmed", "contradicted", "undecided"}
    for row in rows:
        assert judged.get(tuple(row[:4])) == row[-1], row

    def mean_of(row, column, seeds=3):
        found = [e for e in entries if (e.row, e.column) == (row, column) and e.rounds == 500]
        assert len(found) == seeds
        return f"{sum(e.last if e.measured is None else e.measured for e in found) / seeds:.2f}"

    mean, released, norm = (mean_of(f"FedFSA{way}", "cifar100, Dir 0.3") for way in ("", ", released", ", by norm"))
    assert f"It reaches {mean} on CIFAR-100 with the mean" in said
    assert f"{released} ranked as in its authors' code" in said
    assert f"and {norm} with the norm" in said
    written = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    (ended,) = re.findall(r"\| MoFedSAM, FedWMSAM's setting \| (\S+) ± \S+ \| \S+ \| 500 \| 3 ", written)
    assert f"MoFedSAM ends at {ended} with FL-Simulator's radius of 0.1 (three seeds)" in said
    (smaller,) = (side for side in findings["wmsam-best", "FedWMSAM − MoFedSAM, cifar10, 0.1"].sides[1:])
    assert f"and at {smaller.mean:.2f} with 0.01 (three; the paper has 73.86)" in said
    best = {
        row: {
            e.seed: e.best for e in entries if (e.table, e.row, e.column, e.rounds) == ("1", row, "cifar10, 0.1", 800)
        }
        for row in ("FedAvg", "FedDyn", "FedFFT-D", "FedFFT")
    }
    told = []
    for row in ("FedDyn", "FedFFT-D", "FedFFT"):
        lead = paired_interval([best[row][seed] - best["FedAvg"][seed] for seed in range(3)])
        told.append(f"by {lead.mean:.2f} ({lead.low:.2f} to {lead.high:.2f})")
    assert f"FedDyn is ahead of FedAvg {told[0]}, FedFFT-D {told[1]}, FedFFT {told[2]}." in said


def test_a_revision_is_marked_where_the_package_changed_not_the_ledger(tmp_path, monkeypatch):
    def git(*words):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *words], cwd=tmp_path, check=True)

    module = tmp_path / "src" / "fedkeel" / "runs" / "environment.py"
    module.parent.mkdir(parents=True)
    for file in (module, module.parents[1] / "__init__.py", tmp_path / "ledger.jsonl"):
        file.write_text("")
    monkeypatch.setattr(environment, "__file__", str(module))
    own = environment.own_revision.__wrapped__
    git("init", "-q")
    assert own() is None
    git("add", ".")
    git("commit", "-q", "-m", "all")
    clean = own()
    assert re.fullmatch("[0-9a-f]{12}", clean)
    (tmp_path / "ledger.jsonl").write_text("{}")
    assert own() == clean
    module.write_text("x = 1")
    assert own() == f"{clean}-dirty"


def test_lines_say_which_version_made_them_and_older_ones_that_they_do_not():
    assert line_of().version == "unrecorded"
    made = line_of(environment={"fedkeel": "0.2.0", "revision": "abc-dirty"})
    assert made.version == "0.2.0 (abc-dirty)"


def test_every_entry_of_the_ledger_belongs_to_a_cell():
    for entry in ledger.read(ROOT / "results" / "ledger.jsonl"):
        assert any((c.row, c.column) == (entry.row, entry.column) for c in find(f"{entry.paper}:{entry.table}"))
        assert entry.rounds <= entry.rounds_paper
        assert entry.environment.keys() >= {"device", "engine", "precision", "torch"}
        assert bool(entry.model_digest) != bool(entry.undigested)


@pytest.mark.slow
def test_cells_of_one_experiment_write_the_same_settings():
    """Runs are planned by their fingerprints and found again by their settings."""
    found = {}
    for cell in (cell for paper in PAPERS for table in tables(paper) for cell in table.cells if obstacle(cell) is None):
        first = found.setdefault(experiment_of(cell, 0).fingerprint(), cell)
        assert settings_of(cell) == settings_of(first), (cell.label, first.label)


STEPS = ("FedCM", "MoFedSAM", "FedFSA")
"""Rows whose momentum was a mean over clients, and is one over all their steps now: the same where clients take equally
many, as in these lines."""


@pytest.mark.slow
def test_lines_that_count_were_computed_as_their_settings_are_today():
    """A method whose arithmetic changes has another fingerprint; its older lines are superseded, or serve no cell."""
    every = [cell for paper in PAPERS for table in tables(paper) for cell in table.cells]
    for line in ledger.standing(ledger.read(ROOT / "results" / "ledger.jsonl")):
        now = Experiment.recall(line.settings | {"seed": line.seed, "rounds": line.rounds})
        if now.fingerprint() == line.fingerprint:
            continue
        equal = line.row in STEPS and line.settings["partition"].get("form") != "class-wise"
        assert equal or not any(runs_of(cell, [line]) for cell in every), (line.cell, line.seed)


def test_no_folder_of_a_run_has_to_be_quoted():
    for cell in chosen("questions", None):
        if not cell.lr_matches:
            assert shlex.quote(folder_of(experiment_of(cell, 0), Path("runs")).name).count("'") == 0


@pytest.mark.slow
def test_a_setting_that_no_cell_can_have_is_told_with_what_it_could_be(capsys):
    words = ["reproduce", "specgradfilter:I", "--cell", "FedAvg, cifar10, 0.*", "--dry-run", "--set"]
    assert call([*words, "partition.form=balanced"]) == 2
    assert "known choices: class-wise" in capsys.readouterr().err
    assert call([*words, "model=resnet9"]) == 2
    assert "did you mean 'resnet20-gn'?" in capsys.readouterr().err


# ---- what the command checks first ----------------------------------------------------------------------------------
CELL = [
    "reproduce", "fedfft:1", "--cell", "FedAvg, cifar10, 0.1", "--rounds", "1", "--set", "dataset=digits",
    "--set", "model=logistic", "--set", "augment=none", "--set", "epochs=1", "--engine", "serial", "--no-progress",
]  # fmt: skip


@pytest.mark.parametrize("place", ["/proc/x", "/proc/x/ledger.jsonl", "."])
def test_a_ledger_that_cannot_be_written_is_refused_before_training(fedkeel, untrained, place):
    done = fedkeel(*CELL, "--ledger", place)
    assert done.code == 2
    assert done.err.startswith("error: cannot ")
    assert f"the ledger {place}: " in done.err


def test_the_check_leaves_no_ledger_behind(tmp_path):
    ledger.check_writable(tmp_path / "new" / "ledger.jsonl")
    assert not list((tmp_path / "new").iterdir())


@pytest.mark.parametrize(("option", "what"), [("--engine", "engine"), ("--device", "device")])
def test_a_dry_run_checks_names(fedkeel, option, what):
    done = fedkeel(*CELL, "--dry-run", option, "foo")
    assert (done.code, done.out) == (2, "")
    assert f"unknown {what}: foo" in done.err


def test_several_things_are_tried_in_every_combination(fedkeel):
    done = fedkeel(*CELL, "--dry-run", "--try", "lr=0.01,0.05", "--try", "epochs=1,2")
    assert done.code == 0
    labels = [f"FedAvg, cifar10, 0.1 (lr={lr}, epochs={epochs})" for lr in (0.01, 0.05) for epochs in (1, 2)]
    assert all(label in done.out for label in labels)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--try", "lr=0.1", "--try", "lr=0.2"], "given twice: --try lr="),
        (["--try", "=1"], "--try needs key=values: =1"),
        (["--try", "method.=1"], "--try needs key=values: method.=1"),
        (["--try", "lr="], "--try needs key=values: lr="),
    ],
)
def test_what_cannot_be_tried_is_refused_in_a_line(fedkeel, words, told):
    done = fedkeel(*CELL, "--dry-run", *words)
    assert (done.code, done.out) == (2, "")
    assert told in done.err


def test_what_is_tried_is_named_but_not_filed(fedkeel):
    asked = [*CELL, "--ledger", "ledger.jsonl", "--out", "runs", "--try", "lr=0.01,0.05"]
    for words, times in ((["--dry-run"], 2), ([], 1)):  # a dry run also shows the settings of each
        done = fedkeel(*asked, *words)
        assert done.code == 0
        assert all(done.out.count(f"FedAvg, cifar10, 0.1 (lr={lr})") == times for lr in (0.01, 0.05))
    assert {entry.cell for entry in ledger.read(Path("ledger.jsonl"))} == {("fedfft", "1", "FedAvg", "cifar10, 0.1")}

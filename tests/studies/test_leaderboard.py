"""Every method gets as many tries, is run on fresh seeds, and is run once; the page says what the lines say."""

import json
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import tomli_w
from for_each import for_each

import fedkeel as fk
from fedkeel.analysis.intervals import paired_interval
from fedkeel.errors import MethodError, RequestError
from fedkeel.papers.reproduce import place_of
from fedkeel.runs.record import RoundRecord
from fedkeel.runs.run_folder import RunFolder
from fedkeel.studies.compare import paired_differences
from fedkeel.studies.leaderboard import Leaderboard, Line, append_to, read_lines, score_of
from fedkeel.studies.leaderboard_page import write_page

EXPERIMENT = {
    "dataset": "digits", "model": "logistic", "rounds": 2, "validation": 0.2,
    "partition": "dirichlet:alpha=0.5,clients=3",
}  # fmt: skip
ARENA = {
    "title": "digits", "target": 0.3, "tuning_rounds": 1, "grid": {"lr": [0.01, 0.1, 0.2]}, "experiment": EXPERIMENT
}  # fmt: skip
BOARD = {"tries": 2, "seeds": [7, 8], "order": ["fedavg", "fedprox"], "settings": {"small": ARENA}}


def line(board, method, last, **changes):
    scores = [{"best": value, "last": value, "megabytes": 1.0, "rounds_to_target": None} for value in last]
    identity = board.identity(board.arenas[0])
    return Line("small", identity, method, 2, {"lr": 0.1}, 0.5, list(board.seeds), scores, **changes)


@pytest.mark.slow
def test_a_method_has_its_tries_its_fresh_seeds_and_its_line_once(fedkeel):
    Path("table.toml").write_text(tomli_w.dumps(BOARD))
    words = ["leaderboard", "table.toml", "--method", "fedavg,fedprox", "--engine", "serial", "--no-progress"]
    done = fedkeel(*words, "--page", "table.md")
    assert done.code == 0, done.err
    lines = [json.loads(text) for text in Path("results/leaderboard.jsonl").read_text().splitlines()]
    assert [one["method"] for one in lines] == ["fedavg", "fedprox"]
    for one in lines:
        assert one["tries"] == 2
        assert one["place"].startswith("cpu serial float32")
        assert one["seeds"] == [7, 8]
        assert one["chosen"]["lr"] in (0.01, 0.1)  # the third value of the grid is beyond the tries
        assert all(0 < score["last"] <= score["best"] <= 1 for score in one["scores"])
        assert all(0 < score["averaged"] <= 1 for score in one["scores"])
    page = Path("table.md").read_text()
    assert all(f"| {one['method']} |" in page for one in lines)
    finals = [tomllib.loads(path.read_text()) for path in Path("runs/leaderboard").glob("*/experiment.toml")]
    assert sorted((one["seed"], one["validation"] > 0) for one in finals) == [
        *[(0, True)] * 4, *[(7, False)] * 2, *[(8, False)] * 2
    ]  # fmt: skip
    again = fedkeel(*words)
    assert again.code == 0
    assert "last" not in again.err
    assert len(Path("results/leaderboard.jsonl").read_text().splitlines()) == 2


def test_a_method_that_another_process_runs_is_left_to_it_and_the_others_go_on(fedkeel, monkeypatch):
    Path("table.toml").write_text(tomli_w.dumps(BOARD | {"methods": ["fedavg", "fedprox"]}))
    board, run = Leaderboard.load(BOARD), Leaderboard.run

    def run_or_cheat(self, arena, method, execute):
        return run(self, arena, method, execute) if method == "fedavg" else line(board, method, [0.5, 0.6])

    monkeypatch.setattr(Leaderboard, "run", run_or_cheat)
    words = ["leaderboard", "table.toml", "--engine", "serial", "--no-progress"]
    folder = RunFolder(Path("runs/leaderboard") / place_of(board.sweep(board.arenas[0], "fedavg").experiment(
        "fedavg", board.list_tries(board.arenas[0], "fedavg")[0], 0)))  # fmt: skip
    folder.open()
    done = fedkeel(*words)
    folder.close()
    assert done.code == 0, done.err
    assert "fedavg is left to another process" in " ".join(done.err.split())
    assert [json.loads(text)["method"] for text in Path("results/leaderboard.jsonl").read_text().splitlines()] == [
        "fedprox"
    ]


def test_a_line_that_is_there_is_told_and_one_that_another_process_adds_is_not_made_twice(fedkeel, monkeypatch):
    Path("table.toml").write_text(tomli_w.dumps(BOARD))
    board, lines, ran = Leaderboard.load(BOARD), Path("lines.jsonl"), []

    def run(self, arena, method, execute):
        ran.append(method)
        append_to(lines, line(board, "fedsam", [0.5, 0.6]))  # the other process
        return line(board, method, [0.5, 0.6])

    monkeypatch.setattr(Leaderboard, "run", run)
    words = ["leaderboard", "table.toml", "--lines", "lines.jsonl", "--method"]
    first = fedkeel(*words, "fedavg,fedsam")
    assert (first.code, ran) == (0, ["fedavg"])
    assert "not run again" not in first.err
    again = fedkeel(*words, "fedavg,fedsam,fedprox", "--page", "table.md")
    assert ran == ["fedavg", "fedprox"]
    assert "not run again, since lines.jsonl has their lines: fedavg, fedsam;" in " ".join(again.err.split())
    assert all(f"| {method} |" in Path("table.md").read_text() for method in ("fedavg", "fedsam", "fedprox"))


def test_a_table_without_a_form_of_partition_is_told_once(caplog):
    board = Leaderboard.load(BOARD)
    for method in ("fedavg", "fedprox"):
        board.finals(board.arenas[0], method, board.list_tries(board.arenas[0], method)[0])
    assert caplog.text.count("no form is given for the dirichlet partition") == 1


def test_what_was_not_run_is_named_and_not_guessed():
    board = Leaderboard.load(BOARD)
    page = write_page(board, [line(board, "fedprox", [0.5, 0.6])])
    assert "| fedprox | lr=0.1 (highest) | 2 | 55.00 (50.00–60.00) |" in page
    assert "Not run yet: fedavg, " in page
    assert "| fedavg |" not in page
    assert "Computed on: not recorded (1)." in page
    there = write_page(board, [line(board, "fedprox", [0.5, 0.6], place="cpu serial float32")])
    assert "Computed on: cpu serial float32 (1)." in there
    assert "Nothing has been run yet." in write_page(board, [])


def test_a_chosen_value_at_the_edge_of_those_that_were_tried_is_marked():
    marked = {3: ("0.01 (lowest)", "0.1", "0.2 (highest)"), 2: ("0.01 (lowest)", "0.1 (highest)", "0.2")}
    for tries, marks in marked.items():
        board = Leaderboard.load(BOARD | {"tries": tries})
        for value, mark in zip((0.01, 0.1, 0.2), marks, strict=True):
            one = replace(line(board, "fedprox", [0.5, 0.6]), chosen={"lr": value})
            assert f"| fedprox | lr={mark} | 2 |" in write_page(board, [one])
    gone = replace(line(board, "fedprox", [0.5, 0.6]), method="of-a-plug-in-that-is-gone")
    assert "| of-a-plug-in-that-is-gone | lr=0.1 | 2 |" in write_page(board, [gone])


def test_a_page_names_what_was_tried_and_who_had_fewer_tries():
    board = Leaderboard.load(BOARD)
    page = write_page(board, [line(board, "fedavg", [0.5, 0.6]), replace(line(board, "fedprox", [0.5, 0.6]), tries=1)])
    assert "Tried, in 1 round each: lr 0.01, 0.1; " in page
    assert "Had fewer than 2 tries, since their grids have no more: fedprox (1)." in page
    wide = Leaderboard.load(BOARD | {"tries": 5, "settings": {"small": ARENA | {"grid": {"lr": [1, 2, 3, 4, 5]}}}})
    tries = {method: len(wide.list_tries(wide.arenas[0], method)) for method in ("fedavg", "local-adamw")}
    assert tries == {"fedavg": 5, "local-adamw": len(fk.AdamW().rates)}


OWN = """import fedkeel as fk

def mine() -> fk.Method:
    return fk.method("mine", weights=fk.Uniform())
"""


def test_a_method_of_ones_own_is_run_when_it_is_typed_and_from_a_file_with_trust(fedkeel, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("own_board.py").write_text(OWN)
    small = BOARD | {"tries": 1, "seeds": [7]}
    Path("table.toml").write_text(tomli_w.dumps(small | {"order": ["own_board:mine"]}))
    Path("named.toml").write_text(tomli_w.dumps(small | {"baseline": "own_board:mine"}))
    none = ["--minutes", "0", "--page", "table.md"]
    for words in (["table.toml"], ["named.toml"], ["named.toml", "--method", "own_board:mine"]):
        refused = fedkeel("leaderboard", *words, *none)
        assert refused.code == 2
        assert "add --trust" in refused.err
        assert "own_board" not in sys.modules
    assert fedkeel("leaderboard", "named.toml", *none, "--trust").code == 0
    Path("table.toml").write_text(tomli_w.dumps(small))
    typed = fedkeel("leaderboard", "table.toml", "--method", "own_board:mine", "--engine", "serial", "--no-progress")
    assert typed.code == 0, typed.err
    (made,) = read_lines(Path("results/leaderboard.jsonl"))
    assert (made.method, made.tries, len(made.scores)) == ("own_board:mine", 1, 1)
    assert made.scores[0]["averaged"] is not None
    sys.modules.pop("own_board", None)


def test_a_validation_share_too_small_for_any_client_is_no_failure_of_a_method(fedkeel):
    Path("table.toml").write_text(
        tomli_w.dumps(BOARD | {"settings": {"small": ARENA | {"experiment": EXPERIMENT | {"validation": 0.0001}}}})
    )
    done = fedkeel("leaderboard", "table.toml", "--method", "fedavg", "--engine", "serial", "--no-progress")
    assert done.code == 2
    assert "setting small: no client has a validation sample." in done.err
    assert "raise validation" in done.err
    assert not Path("results/leaderboard.jsonl").exists()


def test_a_superseded_line_stays_in_its_file_and_its_method_is_run_again():
    board = Leaderboard.load(BOARD)
    old = replace(line(board, "fedprox", [0.5, 0.6]), superseded="computed something else then")
    page = write_page(board, [line(board, "fedavg", [0.5, 0.6]), old])
    assert "| fedprox |" not in page
    assert "To be run again: fedprox, computed something else then." in page
    assert "fedprox" in [method for _, method in board.missing([old], ["fedprox"])]


def test_differences_are_paired_and_failures_are_told():
    board = Leaderboard.load(BOARD)
    base, other = line(board, "fedavg", [0.5, 0.6]), line(board, "fedprox", [0.6, 0.8])
    told = paired_differences(other.values("last"), base.values("last"))
    assert told.mean == pytest.approx(0.15)
    assert told.low < 0.15 < told.high
    failed = Line("small", base.identity, "fedsam", 2, {}, None)
    page = write_page(board, [base, other, failed])
    assert page.index("| fedprox |") < page.index("| fedavg |") < page.index("| fedsam | every try failed | 0 |")
    refused = write_page(board, [base, replace(failed, reason="fedsam needs another network.")])
    assert "| fedsam |" not in refused
    assert "Cannot be run here: fedsam needs another network." in refused
    assert "| +15.00 |" in page


def test_a_method_that_failed_with_some_seeds_stands_below_the_others():
    board = Leaderboard.load(BOARD)
    lucky = replace(line(board, "fedprox", [0.9, 0.1]), seeds=[board.seeds[0]])
    lucky = replace(lucky, scores=lucky.scores[:1])
    failed = Line("small", lucky.identity, "fedsam", 2, {}, None)
    page = write_page(board, [lucky, line(board, "fedavg", [0.5, 0.6]), failed])
    assert page.index("| fedavg |") < page.index("| fedprox |") < page.index("| fedsam |")
    assert "| fedprox | lr=0.1 (highest) | 1 of 2 | 90.00 " in page
    assert "Failed with some seeds, so they stand below the others: fedprox (1 of 2)." in page


def test_a_method_that_does_not_fit_gets_a_line_and_the_others_go_on(fedkeel, monkeypatch):
    run = Leaderboard.run

    def refuse(self, arena, method, execute):
        if method == "fedprox":
            raise MethodError("it does not fit.", "take another")
        return run(self, arena, method, execute)

    monkeypatch.setattr(Leaderboard, "run", refuse)
    Path("table.toml").write_text(tomli_w.dumps(BOARD | {"tries": 1, "seeds": [7]}))
    done = fedkeel("leaderboard", "table.toml", "--method", "fedprox,fedavg", "--engine", "serial", "--no-progress")
    assert done.code == 0
    assert "small, fedprox: it does not fit." in done.err
    lines = read_lines(Path("results/leaderboard.jsonl"))
    assert [(line.method, len(line.scores)) for line in lines] == [("fedprox", 0), ("fedavg", 1)]


def test_an_optimiser_is_tuned_on_its_own_rates_and_who_cannot_be_averaged_is_not():
    board = Leaderboard.load(BOARD)
    (arena,) = board.arenas
    assert board.sweep(arena, "fedavg").grids["fedavg"]["lr"] == (0.01, 0.1, 0.2)
    assert board.sweep(arena, "local-adamw").grids["local-adamw"]["lr"] == fk.AdamW().rates
    for method, deployed in (("fedavg", "ema+fedavg"), ("fedper", "fedper")):
        (_, first), _ = board.finals(arena, method, (("lr", 0.1),))
        assert first.plan.method.name == deployed
        assert first.plan.rounds == 2  # those of the setting, not of its tries


def scored(number, accuracy):
    return RoundRecord(number, [0], 1.0, 0.0, 7, 1_000_000, 500_000, 1.0, accuracy=accuracy)


def final_run(records, every=1, **more):
    return SimpleNamespace(records=records, plan=SimpleNamespace(evaluate_every=every), **more)


def test_the_mean_of_a_final_run_is_that_of_its_last_rounds():
    records = [scored(t, t / 100) for t in range(1, 61)]
    assert score_of(final_run(records), 0.5)["mean_last"] == pytest.approx(sum(range(11, 61)) / 5000)


def test_a_round_in_which_a_final_run_once_ended_is_none_of_its_scores():
    """Scored every fourth round, it was cut off after the sixth, and went on: what the sixth had does not count."""
    records = [scored(t, {4: 0.2, 6: 0.9, 8: 0.6, 12: 0.5}.get(t)) for t in range(1, 13)]
    found = score_of(final_run(records, every=4), 0.6)
    assert (found["best"], found["last"], found["mean_last"]) == pytest.approx((0.6, 0.5, 1.3 / 3))
    assert (found["rounds_to_target"], found["gradients_to_target"], found["gradients"]) == (8, 56, 84)
    assert found["megabytes"] == 18.0


def test_an_average_is_scored_by_its_last_round_as_the_trained_model_is():
    pairs = ((1, 0.9, 0.4), (2, 0.7, 0.5))
    records = [RoundRecord(t, [0], 1.0, 0.0, 1, 1, 1, 1.0, ema, extra={"plain_accuracy": own}) for t, ema, own in pairs]
    found = score_of(final_run(records, result={"best": 0.9, "last": 0.7}), 0.5)
    assert (found["best"], found["last"], found["averaged"]) == (0.5, 0.5, 0.7)


def test_final_runs_have_splits_of_their_own_seeds_whatever_the_tries_had():
    setting = ARENA | {"experiment": EXPERIMENT | {"partition_seed": 3}}
    board = Leaderboard.load(BOARD | {"settings": {"small": setting}})
    finals = board.finals(board.arenas[0], "fedavg", (("lr", 0.1),))
    assert [(e.plan.seed, e.plan.partition_seed, e.plan.validation) for _, e in finals] == [(7, 7, 0), (8, 8, 0)]


def test_a_line_of_another_setting_is_not_of_this_table():
    board = Leaderboard.load(BOARD)
    longer = Leaderboard.load(BOARD | {"settings": {"small": ARENA | {"experiment": EXPERIMENT | {"rounds": 3}}}})
    made = line(board, "fedavg", [0.5, 0.6])
    assert "fedavg" not in [method for _, method in board.missing([made], ["fedavg"])]
    assert "fedavg" in [method for _, method in longer.missing([made], ["fedavg"])]


def test_lines_survive_their_file_and_a_wrong_one_is_named(tmp_path):
    board = Leaderboard.load(BOARD)
    made = line(board, "fedavg", [0.5, 0.6])
    file = tmp_path / "lines.jsonl"
    assert read_lines(file) == []
    append_to(file, made)
    assert read_lines(file) == [made]
    file.write_text(file.read_text() + '{"method": "fedavg"}\n')
    with pytest.raises(RequestError, match=r"line 2 of .* is none of a leaderboard: it lacks"):
        read_lines(file)


def test_half_a_line_that_a_killed_process_left_is_put_aside(tmp_path, caplog):
    board, file = Leaderboard.load(BOARD), tmp_path / "lines.jsonl"
    first, second = line(board, "fedavg", [0.5, 0.6]), line(board, "feddyn", [0.5, 0.6])
    append_to(file, first)
    whole = file.read_text()
    file.write_text(whole + whole[:50])
    assert read_lines(file) == [first]
    assert "is not whole" in caplog.text
    append_to(file, second)
    assert read_lines(file) == [first, second]
    assert (tmp_path / "lines.jsonl.torn").read_text() == whole[:50] + "\n"


def test_a_line_that_no_page_can_be_made_of_is_refused(tmp_path):
    good = line(Leaderboard.load(BOARD), "fedavg", [0.5, 0.6])
    unequal, text = replace(good, seeds=[7]), replace(good, scores=[{"last": "a"}, {"last": 0.5}])
    for number, (wrong, told) in enumerate(((unequal, "1 seeds and 2 scores"), (text, "last must be a number"))):
        append_to(tmp_path / f"{number}.jsonl", wrong)
        with pytest.raises(RequestError, match=told):
            read_lines(tmp_path / f"{number}.jsonl")


@for_each(
    ("changes", "told"),
    [
        ({"settings": 3}, "names its settings"),
        ({"settings": {"small": ARENA | {"tunning_rounds": 1}}}, "tunning_rounds"),
        ({"seed": 7}, "seed 7 is that of the tries"),
        (
            {"settings": {"small": ARENA | {"experiment": EXPERIMENT | {"partition_seed": 8}}}},
            "partition_seed 8 is that of the tries",
        ),
        ({"tries": 0}, "tries"),
        ({"tries": 99}, "tries = 99, and the grid of setting small has 3"),
        ({"seeds": []}, "at least one"),
        ({"seeds": [8, 8]}, "a seed is given twice"),
        ({"settings": {}}, "names its settings"),
        ({"settings": {"small": ARENA | {"grid": {"lr": [0.1, 0.1]}}}}, "grid of setting small has 1"),
        (
            {"settings": {"small": ARENA | {"experiment": EXPERIMENT | {"evaluation": {"model": "local"}}}}},
            "setting small has an evaluation, and the fair table judges the server's model alone",
        ),
        (
            {"settings": {"small": ARENA | {"experiment": {"problem": "problems:small_problem", "validation": 0.2}}}},
            "setting small has a problem, and every seed of the fair table divides a data set anew",
        ),
        ({"trust": 3}, "a leaderboard has no key: trust"),
        ({"typed": ["my:method"]}, "a leaderboard has no key: typed"),
        ({"methods": ["fedavg", "feddyn"]}, "none of the table's methods: fedprox"),  # which `order` names
        ({"methods": ["fedprox"], "order": []}, "none of the table's methods: fedavg"),  # the baseline
        ({"methods": 3}, "methods"),
        ({"settings": {"small": ARENA | {"experiment": EXPERIMENT | {"dataset": "digit"}}}}, "digit"),
        ({"settings": {"small": ARENA | {"experiment": EXPERIMENT | {"rrounds": 3}}}}, "small has no key: rrounds"),
        ({"settings": {"small": ARENA | {"experiment": EXPERIMENT | {"validation": 0.0}}}}, "setting small chooses on"),
        ({"settings": {"small": ARENA | {"grid": {"lr": 0.1}}}}, "grid must be a table of lists: "),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(changes, told):
    with pytest.raises(RequestError, match=told):
        Leaderboard.load(BOARD | changes)


def test_a_table_may_name_its_methods_and_a_line_counts_whatever_others_it_names():
    every, some = Leaderboard.load(BOARD), Leaderboard.load(BOARD | {"methods": ["feddyn", "fedprox", "fedavg"]})
    assert every.in_order()[:2] == ["fedavg", "fedprox"]
    assert some.in_order() == ["fedavg", "fedprox", "feddyn"]
    lines = [line(every, "fedavg", [0.5, 0.6])]
    assert [method for _, method in some.missing(lines, some.in_order())] == ["fedprox", "feddyn"]
    assert "Not run yet: fedprox, feddyn." in write_page(some, lines)


def test_the_packages_own_table_has_every_method_and_the_page_is_its():
    board = Leaderboard.load()
    assert len(board.in_order()) == len(set(board.in_order())) > 40
    lines = read_lines(Path(__file__).parents[2] / "results" / "leaderboard.jsonl")
    page = Path(__file__).parents[2] / "docs" / "leaderboard.md"
    assert page.read_text(encoding="utf-8") == write_page(board, lines)


def test_a_page_of_ones_own_names_its_own_files(fedkeel):
    Path("table.toml").write_text(tomli_w.dumps(BOARD))
    words = ["leaderboard", "table.toml", "--minutes", "0", "--lines", "my lines.jsonl", "--page", "table.md"]
    assert fedkeel(*words).code == 0
    page = Path("table.md").read_text()
    assert "`fedkeel leaderboard table.toml --lines 'my lines.jsonl' --page table.md` makes it" in page
    assert "`my lines.jsonl`; nothing is typed by hand" in page
    assert "`fedkeel leaderboard table.toml --lines 'my lines.jsonl'` trains what is missing" in page
    assert "results/leaderboard" not in page
    assert "docs/leaderboard" not in page


def test_what_the_readme_says_of_the_fair_table_is_what_its_lines_have():
    root = Path(__file__).parents[2]
    lines = {(line.setting, line.method): line for line in read_lines(root / "results" / "leaderboard.jsonl")}
    said = " ".join((root / "README.md").read_text(encoding="utf-8").split())
    guide = (root / "docs" / "guides" / "keel.md").read_text(encoding="utf-8").replace("−", "-")

    def ahead(setting, method, measure="last"):
        pairs = zip(lines[setting, "keel"].scores, lines[setting, method].scores, strict=True)
        return paired_interval([100 * (one[measure] - other[measure]) for one, other in pairs])

    def tell(found):
        return f"{found.mean:.2f} ({found.low:.2f} to {found.high:.2f})"

    net, cnn = "resnet20-cifar10", "cnn-fashion-mnist"
    names = {
        "specgradfilter+feddyn": "FedDyn with SpecGradFilter's filter", "specgradfilter": "SpecGradFilter",
        "feddyn": "FedDyn", "fedavg": "FedAvg", "scaffold": "SCAFFOLD",
    }  # fmt: skip
    assert {method for setting, method in lines if setting == net} == {"keel", *names}
    filtered, *others = (f"{name}'s by {tell(ahead(net, method))}" for method, name in names.items())
    assert (
        "On ResNet-20, where six have been run, the model that keel trains ends above that of "
        f"{filtered.replace(chr(39) + 's by', ' by')}, {', '.join(others[:-1])} and {others[-1]}."
    ) in said
    small = ahead(cnn, "fedavg")
    assert f"it is {small.mean:.2f} ahead of FedAvg's ({small.low:.2f} to {small.high:.2f}): not told apart" in said

    rows = {(net, method): f"| ResNet-20, CIFAR-10, 0.1 | {names[method]} |" for method in names}
    for (setting, method), head in (rows | {(cnn, "fedavg"): "| small CNN, Fashion-MNIST | FedAvg |"}).items():
        cells = [ahead(setting, method, measure) for measure in ("last", "averaged")]
        assert " | ".join([head[:-2], *(f"+{c.mean:.2f} ({c.low:.2f} … {c.high:.2f})" for c in cells)]) in guide


def test_a_target_is_reached_by_the_model_that_is_trained_and_not_by_its_average():
    pairs = ((1, 0.9, 0.4), (2, 0.9, 0.5), (3, 0.9, 0.7))
    records = [RoundRecord(t, [0], 1.0, 0.0, 7, 1, 1, 1.0, ema, extra={"plain_accuracy": own}) for t, ema, own in pairs]
    found = score_of(final_run(records, result={"best": 0.9, "last": 0.9}), 0.6)
    assert (found["rounds_to_target"], found["gradients_to_target"]) == (3, 21)
    assert score_of(final_run(records, result={"best": 0.9, "last": 0.9}), 0.8)["rounds_to_target"] is None


def test_a_target_that_all_of_two_runs_reached_was_reached_by_two_of_three_seeds():
    """A run that failed reached nothing."""
    board = Leaderboard.load(BOARD | {"seeds": [7, 8, 9]})
    scores = [{"last": 0.5, "megabytes": 1.0, "rounds_to_target": 4, "gradients_to_target": 8}] * 2
    made = replace(line(board, "fedavg", [0.5, 0.5, 0.5]), seeds=[7, 9], scores=scores)
    assert "| 4 (2 of 3) | 8 |" in write_page(board, [made])

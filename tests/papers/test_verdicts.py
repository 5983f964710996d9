"""What a run says about a published number, about the order of rows, and about leads."""

from dataclasses import replace

import pytest
from for_each import for_each

from fedkeel.papers import Cell, Table, find
from fedkeel.papers.discrepancies import contradictions
from fedkeel.papers.ledger import Entry, furthest, keep_newest
from fedkeel.papers.noise import NoiseOfLedger
from fedkeel.papers.reproduce import done, runs_of, settings_of
from fedkeel.papers.results_page import distinct_leads, page
from fedkeel.papers.verdicts import judge, leads, measured

SETTINGS = {
    "dataset": "digits", "model": "logistic", "method": {"name": "fedavg"}, "lr": 0.1,
    "partition": {"kind": "iid", "clients": 20},
}  # fmt: skip


def cell(row, reported, **changes):
    made = Cell("fedfft", "1", row, "cifar10, 0.1", SETTINGS | {"rounds": 100, "augment": row}, reported)
    return replace(made, **changes)


def entry(row, value, seed=0, rounds=100, **changes):
    """A run of the cell of that row; `bests` and `curve` say that it rose evenly."""
    settings = SETTINGS | {"augment": row}
    steps = [[r, value * r / rounds] for r in range(1, rounds + 1)]
    made = Entry(
        "fedfft", "1", row, "cifar10, 0.1", seed, "accuracy", "best", None, None, value, value, value, value, rounds,
        100, 10.0 * rounds, "f", "d", settings=settings, bests=steps, curve={str(r): v for r, v in steps}, sent=1.0,
        environment={"device": "cpu"},
    )  # fmt: skip
    return replace(made, **changes)


def twice(lines):
    """The same with a second seed that measures the same, for each row that has one seed."""
    rows = [str(line.settings) for line in lines]
    again = [replace(line, seed=line.seed + 100) for line in lines if rows.count(str(line.settings)) == 1]
    return [*lines, *again]


def judge_twice(cells, lines, among=()):
    """What verdicts say that one seed cannot; the noise is that of the lines as they are."""
    return judge(cells, twice(lines), among, NoiseOfLedger(lines))


def verdicts(cells, lines):
    return [judged.verdict for judged in judge_twice(cells, lines)]


# ---- numbers -------------------------------------------------------------------------------------------------------
def test_every_kind_of_number_comes_from_the_same_line():
    line = entry("A", 80.0, personal=81.0, last=70.0, sent=2.0)
    of = cell("A", 1.0)
    assert measured(of, line) == 80.0
    assert measured(replace(of, evaluation="last"), line) == 70.0
    assert measured(replace(of, evaluation="personal best"), line) == 81.0
    assert measured(replace(of, kind="rounds", target=40.0), line) == 50
    assert measured(replace(of, kind="rounds", target=90.0), line) is None
    assert measured(replace(of, kind="seconds per round"), line) == pytest.approx(10.0)
    assert measured(replace(of, kind="seconds", target=40.0), line) == pytest.approx(500.0)
    assert measured(replace(of, kind="relative bytes", target=40.0), line) == pytest.approx(2 * 50 / 100)
    short = entry("A", 80.0, rounds=50, sent=2.0)  # its share is of the paper's rounds, too
    assert measured(replace(of, kind="relative bytes", target=40.0), short) == pytest.approx(2 * 25 / 100)


def test_extra_seconds_are_those_over_the_papers_own_method():
    own = SETTINGS | {"method": {"name": "fedfft"}, "augment": "A"}
    lines = [entry("A", 80.0), entry("own", 80.0, settings=own, seconds=400.0)]
    (judged,) = judge([cell("A", 20.0, kind="extra seconds per round")], lines)
    assert judged.mean == pytest.approx(6.0)
    (alone,) = judge([cell("A", 20.0, kind="extra seconds per round")], lines[:1])
    assert alone.mean is None
    for place in ({"device": "another"}, {"device": "cpu", "engine": "another"}):  # seconds that say nothing here
        lines[1] = replace(lines[1], environment=place)
        (apart,) = judge([cell("A", 20.0, kind="extra seconds per round")], lines)
        assert apart.mean is None


# ---- verdicts ------------------------------------------------------------------------------------------------------
def test_verdicts():
    cells = [cell("A", 80.0), cell("B", 70.0), cell("C", 60.0)]
    assert verdicts(cells, []) == ["not run"] * 3
    assert verdicts(cells, [entry("A", 80.9), entry("B", 69.1)])[:2] == ["within seed noise"] * 2
    assert verdicts(cells, [entry("A", 75.0), entry("B", 65.0), entry("C", 55.0)]) == ["ordering holds"] * 3
    turned = verdicts(cells, [entry("A", 65.0), entry("B", 75.0), entry("C", 55.0)])
    assert turned == ["differs", "differs", "ordering holds"]
    assert verdicts(cells, [entry("A", 75.0)])[0] == "differs"


def test_one_seed_confirms_nothing():
    cells = [cell("A", 80.0), cell("B", 70.0)]
    table = Table("fedfft", "1", "", tuple(cells), (("A", "B"),))
    for values, alone, two in (
        ((80.0, 70.0), "one seed", "within seed noise"),
        ((75.0, 65.0), "one seed", "ordering holds"),
        ((65.0, 75.0), "differs (one seed)", "differs"),
    ):
        lines = [entry(row, value) for row, value in zip("AB", values, strict=True)]
        assert [judged.verdict for judged in judge(cells, lines)] == [alone] * 2
        assert verdicts(cells, lines) == [two] * 2
        short = [replace(line, rounds=50) for line in lines]
        assert judge(cells, short)[0].verdict in ("one seed", "differs so far (one seed)")
        assert leads(table, judge(cells, lines))[0].verdict == alone
    # two seeds of one row do not make the order one of two seeds
    lines = [entry("A", 75.0), entry("A", 75.0, seed=1), entry("B", 65.0)]
    assert judge(cells, lines)[0].verdict == "differs (order: one seed)"
    # nor do they make a number one of one seed
    lines = [entry("A", 65.0), entry("A", 65.0, seed=1), entry("B", 75.0)]
    assert [judged.verdict for judged in judge(cells, lines)] == ["differs", "differs (one seed)"]


def test_rounds_to_a_target_are_ordered_only_among_runs_of_one_length():
    """A shorter run that reached its target early says nothing of one that has all of its rounds."""
    cells = [cell(row, reported, kind="rounds", target=40.0) for row, reported in (("A", 30.0), ("B", 80.0))]
    whole, short = entry("A", 80.0), entry("B", 60.0, rounds=60)  # reached in 50 and in 40 rounds
    assert verdicts(cells, [whole, short]) == ["differs", "shortened"]
    assert verdicts(cells, [whole, entry("B", 100.0)]) == ["differs", "differs"]


def test_a_lead_is_held_against_the_larger_noise_of_its_two_rows():
    lines = [entry(row, value, seed) for row, value in (("A", 80.0), ("B", 72.0)) for seed in range(2)]
    for spreads, verdict in (((0.0, 0.0), "ordering holds"), ((5.0, 0.0), "not judged"), ((0.0, 5.0), "not judged")):
        cells = [cell("A", 80.0, spread=spreads[0]), cell("B", 72.0, spread=spreads[1])]
        (lead,) = leads(Table("fedfft", "1", "", tuple(cells), (("A", "B"),)), judge(cells, lines))
        assert (lead.measured, lead.verdict) == (8.0, verdict)


# ---- runs of another length ----------------------------------------------------------------------------------------
def test_a_longer_run_is_taken_at_the_cells_own_last_round():
    """800 rounds that end at 80 % stand at 50 % after 500: the 500-round cell takes that, not the end."""
    short = cell("A", 50.0, experiment=SETTINGS | {"rounds": 500, "augment": "A"})
    long = replace(short, reported=80.0, experiment=short.experiment | {"rounds": 800})
    line = entry("A", 80.0, rounds=800, rounds_paper=800, step=0.5, mean_last=79.0)
    (mine,), (other,) = judge_twice([short], [line]), judge_twice([long], [line])
    assert (mine.mean, mine.rounds, mine.shortened, mine.verdict) == (50.0, 500, False, "within seed noise")
    assert (other.mean, other.rounds, other.verdict) == (80.0, 800, "within seed noise")
    (last,) = judge([replace(short, evaluation="last")], [line])
    assert last.mean == 50.0
    (reached,) = judge([replace(short, kind="rounds", target=60.0, reported=600.0)], [line])
    assert reached.verdict == "not reached"
    mute = replace(line, curve={})  # does not tell its accuracy at 500, but when it reached a target
    of = replace(short, kind="rounds", target=40.0, evaluation="last")
    assert [one.mean for one in judge([of, replace(short, evaluation="last")], [mute])] == [400.0, None]
    (sent,) = judge([replace(short, kind="relative bytes", target=25.0)], [line])
    assert sent.mean == pytest.approx(250 / 500)
    (cut,) = runs_of(short, [line])
    assert (cut.seconds, cut.step, cut.mean_last) == (pytest.approx(5000.0), None, None)
    assert done(short, 0, None, [line])


def test_a_run_as_it_stood_at_a_round_tells_nothing_of_later_ones():
    spectra = {"gradient-spectrum/distance": {"400": [2.0, 1.0], "500": [2.0, 1.0], "600": [3.0, 1.0]}}
    cut = entry("A", 80.0, rounds=800, plain=70.0, measured=80.0, spectra=spectra).until(500)
    assert (cut.rounds, cut.best, cut.last, cut.plain, cut.measured) == (500, 50.0, 50.0, None, None)
    assert [max(int(at) for at in by) for by in (cut.curve, dict(cut.bests), *cut.spectra.values())] == [500] * 3
    old = replace(cut, bests=[])  # an older line tells its best by its own end, and by no other round
    assert (old.best_by(500), old.best_by(499)) == (50.0, None)


def test_a_cell_takes_the_run_of_its_own_length_before_a_longer_training():
    """Both have the cell's settings and seed; 800 rounds that end at 80 % stood at 50 % after 500, the other at 52."""
    of = cell("A", 50.0, experiment=SETTINGS | {"rounds": 500, "augment": "A"})
    own, long = entry("A", 52.0, rounds=500, rounds_paper=500), entry("A", 80.0, rounds=800, rounds_paper=800)
    for lines in ([own, long], [long, own]):
        assert [judge([replace(of, evaluation=which)], lines)[0].mean for which in ("best", "last")] == [52.0] * 2
    timeless = [replace(own, bests=[]), long]  # does not tell when a target was reached
    assert judge([replace(of, kind="rounds", target=25.0)], timeless)[0].mean == 250
    other = replace(long, seed=1)
    assert [round(value, 6) for value in judge([of], [own, long, other])[0].values] == [52.0, 50.0]


def test_a_longer_line_continues_a_shorter_one_if_both_tell_the_same_rounds():
    long = entry("A", 80.0, rounds=800)
    short = long.until(500)
    assert long.continues(short)
    assert len(furthest([short, long])) == 1
    others = [
        replace(short, seed=1),
        replace(short, bests=[*short.bests[:-1], [500, 50.01]]),
        replace(short, bests=short.bests[:-1]),
        replace(short, last=49.0),  # no best round, so that only the curve tells
        replace(short, bests=[]),  # an older line, which does not tell
    ]
    for other in others:
        assert not long.continues(other)
        assert furthest([other, long]) == [other, long]
    assert not short.continues(long)
    assert not replace(long, bests=[]).continues(replace(short, bests=[]))


@pytest.mark.parametrize(
    ("changes", "asked"),
    [
        ({"bests": [], "curve": {}}, {}),  # does not tell how it stood
        ({"personal": 81.0}, {"evaluation": "personal best"}),  # was tuned at its end, not at round 500
        ({"curve": {}}, {"evaluation": "last"}),
    ],
)
def test_a_longer_run_that_does_not_tell_how_it_stood_serves_no_shorter_cell(changes, asked):
    short = cell("A", 50.0, experiment=SETTINGS | {"rounds": 500, "augment": "A"}, **asked)
    line = entry("A", 80.0, rounds=800, rounds_paper=800, **changes)
    assert verdicts([short], [line]) == ["not run"]
    assert not done(short, 0, None, [line])
    shortened = entry("A", 40.0, rounds=400, rounds_paper=800, **changes)
    (mine,) = judge([short], [shortened, line])
    assert (mine.rounds, mine.shortened) == (400, True)


def test_a_run_whose_rates_depend_on_its_length_is_no_beginning_of_a_longer_one():
    for key in ("schedule", "server_schedule"):
        made = SETTINGS | {"augment": "A", key: "cosine"}
        of = cell("A", 50.0, experiment=made | {"rounds": 100})
        assert [judge([of], [entry("A", 80.0, rounds=r, settings=made)])[0].rounds for r in (50, 100, 200)] == [
            0,
            100,
            0,
        ]


def test_published_cells_of_unequal_length_share_no_number():
    (long,) = [one for one in find("fedfft:1") if one.label == "FedAvg, cifar10, 0.1"]
    (short,) = [one for one in find("fedwmsam:1") if one.label == "FedAvg, cifar10, 0.1"]
    assert settings_of(long) == settings_of(short)
    assert (long.experiment["rounds"], short.experiment["rounds"]) == (800, 500)
    line = entry("A", 80.0, rounds=800, rounds_paper=800, settings=settings_of(long))
    (mine,), (other,) = judge([short], [line]), judge([long], [line])
    assert (mine.mean, other.mean) == (50.0, 80.0)


def test_seeds_widen_the_noise():
    one = [cell("A", 80.0)]
    assert verdicts(one, [entry("A", 77.0, seed=s) for s in range(3)]) == ["differs"]
    assert verdicts(one, [entry("A", v, seed=i) for i, v in enumerate((74.0, 77.0, 80.0))]) == ["within seed noise"]
    assert verdicts([cell("A", 80.0, spread=2.0)], [entry("A", 77.0)]) == ["within seed noise"]


def test_a_run_made_again_counts_once():
    (judged,) = judge([cell("A", 80.0)], [entry("A", 70.0), entry("A", 80.0)])
    assert (judged.mean, len(judged.entries)) == (80.0, 1)


def test_a_run_that_was_superseded_gives_way_to_one_that_stands_however_old():
    old, faulty = entry("A", 80.0), entry("A", 10.0, superseded="computed otherwise")
    for lines in ([old, faulty], [faulty, old]):
        (judged,) = judge([cell("A", 80.0)], keep_newest(lines))
        assert judged.mean == 80.0
    assert "computed otherwise" in page([faulty, old])  # such a line stays, and is shown


def test_a_shortened_run_is_never_within_noise():
    cells = [cell("A", 80.0), cell("B", 70.0)]
    short = [entry("A", 80.0, rounds=20), entry("B", 60.0, rounds=20)]
    assert verdicts(cells, short) == ["ordering holds"] * 2
    assert verdicts(cells, short[:1]) == ["shortened", "not run"]
    turned = [entry("A", 60.0, rounds=20), entry("B", 70.0, rounds=20)]
    assert verdicts(cells, turned) == ["differs so far"] * 2


def test_runs_of_unequal_length_are_ordered_where_both_have_been():
    cells = [cell("A", 80.0), cell("B", 70.0)]
    # at round 20, B (which ends at 75) has come to 15
    assert verdicts(cells, [entry("A", 60.0, rounds=20), entry("B", 75.0)])[0] == "ordering holds"
    assert verdicts(cells, [entry("A", 13.0, rounds=20), entry("B", 75.0)])[0] == "differs so far"
    unknown = entry("B", 75.0, bests=[], curve={})
    assert verdicts(cells, [entry("A", 60.0, rounds=20), unknown])[0] == "shortened"


def test_nothing_is_ordered_before_a_fifth_of_the_papers_rounds():
    cells = [cell("A", 80.0), cell("B", 70.0)]
    table = Table("fedfft", "1", "", tuple(cells), (("A", "B"),))
    for rounds, verdict, lead in ((19, "shortened", "not judged"), (20, "differs so far", "differs")):
        judged = judge_twice(cells, [entry("A", 5.0, rounds=rounds), entry("B", 75.0)])
        assert judged[0].verdict == verdict
        assert leads(table, judged)[0].verdict == lead


def test_a_lead_that_the_paper_has_within_noise_is_not_judged():
    for reported, verdict in ((79.5, "not judged"), (70.0, "differs")):
        cells = [cell("A", 80.0), cell("B", reported)]
        table = Table("fedfft", "1", "", tuple(cells), (("A", "B"),))
        assert leads(table, judge_twice(cells, [entry("A", 70.0), entry("B", 75.0)]))[0].verdict == verdict


def test_rows_are_ordered_over_the_seeds_that_both_have():
    cells = [cell("A", 80.0), cell("B", 50.0)]
    lines = [entry("A", 34.5), entry("B", 20.0), entry("B", 32.0, seed=1), entry("B", 32.0, seed=2)]
    # the noise is 6.9: 14.5 points between the first seeds are more than twice that, the 6.5 between the means are not
    assert verdicts(cells, lines) == ["differs (order: one seed)"] * 2
    assert verdicts(cells, [replace(lines[0], seed=3), *lines[1:]]) == ["differs"] * 2  # none in common: the means


def test_what_one_row_varies_by_counts_for_both_rows_of_a_pair():
    wide = cell("B", 70.0, spread=6.0)
    lines = [entry("A", 50.0), entry("B", 60.0)]
    assert verdicts([cell("A", 80.0), cell("B", 70.0)], lines)[0] == "differs"
    # the paper does not tell them apart, whichever of the two has the spread
    assert verdicts([cell("A", 80.0), wide], [replace(line, rounds=20) for line in lines]) == ["shortened"] * 2
    noisy = [*lines, entry("B", 66.0, seed=1)]  # and so it is with what our own seeds vary by
    assert verdicts([cell("A", 80.0), cell("B", 72.0)], [replace(e, rounds=20) for e in noisy])[0] == "shortened"


@for_each(("gap", "verdict"), [(0.9, None), (-0.9, None), (1.1, "ordering holds"), (-1.1, "differs")])
def test_a_measured_gap_within_noise_speaks_neither_for_nor_against_a_gap_as_small(gap, verdict):
    cells = [cell("A", 71.05 if gap > 0 else 68.95), cell("B", 70.0), cell("C", 60.0 if gap > 0 else 80.0)]
    cells = [replace(one, reported=140.0 - one.reported) for one in cells] if verdict == "differs" else cells
    pair = [entry("A", 40.0 + gap), entry("B", 40.0)]
    assert verdicts(cells, pair)[0] == (verdict or "differs")  # of full length, and nothing orders it
    short = [replace(line, rounds=20, curve={}) for line in pair]
    so_far = {None: "shortened", "differs": "differs so far"}.get(verdict, verdict)
    assert verdicts(cells, short)[:2] == [so_far] * 2
    # one pair that is decided is enough
    third = entry("C", 10.0 if cells[2].reported < 70.0 else 70.0)
    assert verdicts(cells, [*pair, third])[0] == (verdict or "ordering holds")
    table = Table("fedfft", "1", "", tuple(cells), (("A", "B"),))
    assert leads(table, judge_twice(cells, pair))[0].verdict == (verdict or "not judged")


def test_seconds_vary_by_a_share_of_what_they_are_here():
    cells = [cell("A", 10.0, kind="seconds per round"), cell("B", 20.0, kind="seconds per round")]
    for seconds, verdict in ((3.0, "ordering holds"), (1.05, "another machine")):
        lines = [entry("A", 1.0, seconds=1.0), entry("B", 1.0, seconds=seconds)]
        assert verdicts(cells, lines) == [verdict] * 2


def test_a_target_that_some_seeds_reach_says_how_many():
    of = cell("A", 50, kind="rounds", target=40.0)
    lines = [entry("A", 80.0), entry("A", 100.0, seed=1), entry("A", 30.0, seed=2)]
    (judged,) = judge([of], lines)
    assert (judged.mean, judged.verdict) == ((50 + 40) / 2, "reached by 2 of 3 seeds")
    assert judge([of], [replace(line, rounds_paper=100, rounds=99) for line in lines])[0].verdict == (
        "reached by 2 of 3 seeds so far"
    )
    (found,) = contradictions([judged], lines)
    assert found.cells[0].endswith("measured 45 (-5): reached by 2 of 3 seeds")
    # its mean, of the lucky seeds alone, orders no other row
    other = cell("B", 70, kind="rounds", target=40.0)
    assert verdicts([of, other], [*lines, *(entry("B", 50.0, seed=s) for s in range(3))])[1] == "differs"
    tried = [replace(line, settings=line.settings | {"lr": 0.5}) for line in lines]
    (found,) = contradictions(judge([of], tried), tried)
    assert found.tried == ["`lr = 0.5` (chosen: 0.1): target reached in 45 rounds (2 of 3 seeds)"]


def test_cells_are_judged_among_rows_that_are_not_asked_for():
    cells = [cell("A", 80.0), cell("B", 70.0)]
    lines = [entry("A", 50.0), entry("B", 60.0)]
    (alone,) = judge_twice(cells[:1], [replace(line, rounds=20) for line in lines])
    (among,) = judge_twice(cells[:1], [replace(line, rounds=20) for line in lines], cells)
    assert (alone.verdict, among.verdict) == ("shortened", "differs so far")
    # a cell that is tried otherwise is not held against itself as it was chosen
    other = replace(cells[0], experiment=cells[0].experiment | {"lr": 0.5})
    tried = entry("A", 75.0, rounds=20, settings=SETTINGS | {"augment": "A", "lr": 0.5})
    (judged,) = judge_twice([other], [tried, *(replace(line, rounds=20) for line in lines)], cells)
    assert judged.verdict == "ordering holds"


def test_rounds_have_a_noise_of_their_own_and_may_not_be_reached():
    of = cell("A", 200, kind="rounds", target=40.0)
    assert verdicts([replace(of, reported=52.0)], [entry("A", 80.0)]) == ["within seed noise"]
    assert verdicts([replace(of, reported=60.0)], [entry("A", 80.0)]) == ["differs"]
    assert verdicts([of], [entry("A", 30.0)]) == ["not reached"]
    assert verdicts([of], [entry("A", 30.0, rounds=10)]) == ["not reached so far"]
    assert verdicts([of], [entry("A", 80.0, bests=[])]) == ["not run"]  # that line does not tell


def test_seconds_of_a_run_that_shared_its_machine_count_for_nothing():
    timed, shared = cell("A", 10.0, kind="seconds per round"), entry("A", 80.0, environment={"shared": True})
    assert verdicts([timed], [shared]) == ["not run"]
    assert verdicts([timed], [shared, entry("A", 80.0, seed=1)]) == ["another machine"]
    assert verdicts([cell("A", 80.0)], [shared]) == ["within seed noise"]


def test_seconds_of_several_machines_or_engines_are_not_averaged():
    of = cell("A", 20.0, kind="seconds per round")
    there = [{"device": "cpu", "engine": engine, "precision": "float32"} for engine in ("serial", "serial", "stacked")]
    lines = [entry("A", 80.0, seed=s, seconds=100.0 * t, environment=there[s]) for s, t in enumerate((10, 12, 100))]
    (judged,) = judge([of], lines)
    assert (judged.mean, len(judged.entries)) == (pytest.approx(11.0), 2)
    rows = [cell("A", 10.0, kind="seconds per round"), cell("B", 90.0, kind="seconds per round")]
    both = [entry("A", 80.0, seconds=1000.0), entry("B", 80.0, seconds=9000.0)]
    assert verdicts(rows, both) == ["ordering holds"] * 2
    both[1] = replace(both[1], environment={"device": "another"})
    assert verdicts(rows, both) == ["another machine"] * 2


def test_seconds_of_another_machine_are_only_ordered():
    cells = [cell("A", 10.0, kind="seconds per round"), cell("B", 20.0, kind="seconds per round")]
    assert verdicts(cells, [entry("A", 1.0)])[0] == "another machine"
    assert verdicts(cells, [entry("A", 1.0, seconds=1.0), entry("B", 1.0, seconds=3.0)]) == ["ordering holds"] * 2
    assert verdicts(cells, [entry("A", 1.0, seconds=4.0), entry("B", 1.0, seconds=3.0)]) == ["differs"] * 2


def test_what_is_damaged_or_not_measured_is_not_judged():
    assert verdicts([cell("A", 80.0, uncertain=True)], [entry("A", 80.0)]) == ["not judged"]
    assert verdicts([cell("A", 80.0, unmeasured="because")], [entry("A", 80.0)]) == ["not measured"]


# ---- leads ---------------------------------------------------------------------------------------------------------
def test_a_lead_is_measured_at_a_round_and_over_seeds_that_both_have():
    cells = [cell("A", 80.0), cell("B", 70.0)]
    table = Table("fedfft", "1", "", tuple(cells), (("A", "B"),))
    lines = [entry("A", 8.0, rounds=10), entry("A", 9.0, seed=1, rounds=10), entry("B", 70.0, seed=1)]
    (lead,) = leads(table, judge(cells, lines))
    assert (lead.round, lead.seeds, lead.reported) == (10, 1, 10.0)
    assert lead.measured == pytest.approx(9.0 - 7.0)
    assert leads(table, judge(cells, lines[:2])) == []


def test_a_lead_without_a_common_seed_rests_on_the_seeds_of_the_row_that_has_fewer():
    cells = [cell("A", 80.0), cell("B", 70.0)]
    lines = [entry("A", 80.0), entry("A", 82.0, seed=1), entry("B", 70.0, seed=2)]
    for rows, gap in ((("A", "B"), 11.0), (("B", "A"), -11.0)):
        (lead,) = leads(Table("fedfft", "1", "", tuple(cells), (rows,)), judge(cells, lines))
        assert (lead.measured, lead.seeds) == (pytest.approx(gap), 1)


def test_a_final_tuning_counts_only_where_both_were_tuned_at_the_same_round():
    cells = [cell(row, reported, evaluation="personal best") for row, reported in (("A", 80.0), ("B", 70.0))]
    table = Table("fedfft", "1", "", tuple(cells), (("A", "B"),))
    long, short = entry("A", 80.0, personal=82.0), entry("B", 14.0, rounds=20, personal=40.0)
    (lead,) = leads(table, judge(cells, [long, short]))
    assert lead.measured == pytest.approx(16.0 - 14.0)
    assert verdicts(cells, [long, short])[1] == "ordering holds"
    tuned = entry("B", 70.0, personal=78.0)
    (lead,) = leads(table, judge(cells, [long, tuned]))
    assert lead.measured == pytest.approx(82.0 - 78.0)
    interrupted = replace(long, personal=None)  # as long, but it was not tuned
    (lead,) = leads(table, judge(cells, [interrupted, tuned]))
    assert lead.measured == pytest.approx(80.0 - 70.0)
    shorter = [entry("A", 50.0, rounds=20), entry("B", 40.0, rounds=20, personal=90.0)]
    assert verdicts(cells, shorter) == ["ordering holds"] * 2


def test_a_tuning_does_not_turn_other_numbers_into_accuracies():
    cells = [cell(row, reported, kind="rounds", target=40.0) for row, reported in (("A", 90), ("B", 60))]
    lines = [entry("A", 50.0), entry("B", 80.0, personal=81.0)]  # reached after 80 and after 50 rounds
    assert [judged.mean for judged in judge(cells, lines)] == [80, 50]
    assert verdicts(cells, lines) == ["ordering holds"] * 2


@pytest.mark.slow
def test_leads_that_others_measured_stand_beside_ours_at_their_round():
    found = {c.row: c for c in find("fedfft:1") if c.column == "cifar10, 0.1"}
    lines = [
        entry(row, value, paper="fedfft", settings=settings_of(found[row]))
        for row, value in (("FedFFT", 80), ("FedSAM", 40))
    ]
    name = "| fedfft:1 | FedFFT − FedSAM (1-D tensors unfiltered there) | cifar10, 0.1 | +7.5 |"
    assert f"{name} – | 200 | 0 |" in page(lines)
    longer = [replace(line, rounds=800, bests=[[200, line.best / 2], [800, line.best]]) for line in lines]
    assert f"{name} +20.00 | 200 | 1 |" in page(longer)
    # a seed that does not tell what it had at that round is left out on both sides, and so is one that stands alone
    old = [replace(line, seed=1, best=99.0, bests=[]) for line in longer[:1]] + [replace(longer[1], seed=1, best=0.0)]
    alone = replace(longer[0], seed=2, bests=[[200, 90.0]])
    assert f"{name} +20.00 | 200 | 1 |" in page([*longer, *old, alone])
    again = [replace(line, seed=3, bests=[[200, line.best]]) for line in longer]
    assert f"{name} +30.00 | 200 | 2 |" in page([*longer, *old, alone, *again])


def test_a_lead_is_told_again_where_another_table_reports_another_number():
    of = replace(cell("A", 80.0), table="1")
    made = [("1", 80.0), ("3", 80.0), ("5", 85.0), ("asked", None)]
    every = []
    for name, reported in made:
        cells = [replace(of, table=name, reported=reported), replace(cell("B", 70.0), table=name)]
        table = Table("fedfft", name, "", tuple(cells), (("A", "B"),))
        every.append((table, judge(cells, [entry("A", 75.0), entry("B", 60.0)])))
    assert [(table.name, lead.reported) for table, lead in distinct_leads(every)] == [("1", 10.0), ("5", 15.0)]
    assert [table.name for table, _ in distinct_leads(every[3:])] == ["asked"]


def test_leads_over_other_seeds_are_other_leads():
    cells = [cell("A", 80.0), cell("B", 70.0)]
    table = Table("fedfft", "1", "", tuple(cells), (("A", "B"),))
    lines = [entry("A", 75.0), entry("B", 60.0), entry("A", 76.0, seed=1), entry("B", 61.0, seed=1)]
    (one,), (both,) = (leads(table, judge(cells, some)) for some in (lines[:2], lines))
    assert one.runs != both.runs


# ---- contradictions ------------------------------------------------------------------------------------------------
def test_contradictions_say_what_was_tried():
    cells = [cell("A", 80.0), cell("B", 70.0)]
    tried = entry("A", 79.0, settings=SETTINGS | {"augment": "A", "lr": 0.5})
    lines = [entry("A", 60.0), tried]
    (found,) = contradictions(judge(cells, lines), lines)
    assert found.cells == ["fedfft:1 A, cifar10, 0.1: reported 80.00, measured 60.00 (-20.00): differs (one seed)"]
    assert found.tried == ["`lr = 0.5` (chosen: 0.1): 79.00 after 100 rounds (1 seed)"]
    assert contradictions(judge(cells, [entry("A", 80.0)]), [entry("A", 80.0)]) == []


def test_runs_that_were_made_for_other_cells_are_not_compared_setting_by_setting(monkeypatch):
    """A page of a thousand cells and a thousand runs would take a million comparisons."""
    compared = []
    monkeypatch.setattr(
        "fedkeel.papers.discrepancies.find_changes", lambda base, other, prefix="": compared.append(other) or {}
    )
    cells = [cell(str(row), 80.0) for row in range(20)]
    lines = [entry(str(row), 60.0) for row in range(20)]
    lines += [entry("asked", 60.0, paper="questions", settings=SETTINGS | {"model": f"m{i}"}) for i in range(20)]
    assert len(contradictions(judge(cells, lines), lines)) == 20
    assert compared == []


def test_a_page_without_runs_still_names_the_questions_and_what_is_not_measured():
    text = page([])
    assert text.count("\n### questions:") == len({cell.table for cell in find("questions")})
    assert "## Not measured, and why" in text
    assert "## Contradictions" not in text


def test_a_question_that_changes_one_choice_was_a_try():
    (one,) = [cell("A", 80.0)]
    made = SETTINGS | {"augment": "A"}
    split = {"kind": "iid", "clients": 30}
    asked = [
        entry("asked", 70.0, paper="questions", settings=made | {"partition": split}),
        entry("asked", 71.0, paper="questions", settings=made | {"partition": split | {"min_size": 2}, "lr": 0.5}),
        entry("asked", 72.0, paper="questions", settings=made | {"method": {"name": "fedprox"}}),
        entry("B", 73.0, settings=made | {"partition": split | {"clients": 40}}),  # of another cell
    ]
    lines = [entry("A", 60.0), *asked]
    (found,) = contradictions(judge([one], lines), lines)
    assert found.tried == ["`partition.clients = 30` (chosen: 20): 70.00 after 100 rounds (1 seed)"]


def test_a_question_that_changes_a_number_of_the_method_was_a_try_and_one_that_changes_its_form_was_not():
    made = SETTINGS | {"augment": "A", "method": {"name": "fedfft", "rho": 0.1, "form": "low"}}
    of = cell("A", 80.0, experiment=made | {"rounds": 100})

    def ask(value, **method):
        return entry("asked", value, paper="questions", settings=made | {"method": made["method"] | method})

    lines = [entry("A", 60.0, settings=made), ask(70.0, rho=0.01), ask(71.0, form="high"), ask(72.0, ratio=0.05)]
    (found,) = contradictions(judge([of], lines), lines)
    assert found.tried == [
        "`method.rho = 0.01` (chosen: 0.1): 70.00 after 100 rounds (1 seed)",
        "`method.ratio = 0.05`: 72.00 after 100 rounds (1 seed)",
    ]


def test_tries_are_gathered_by_their_settings_and_the_longest_are_shown():
    other = SETTINGS | {"augment": "A", "lr": 0.5}
    short = entry("A", 20.0, rounds=20, settings=other)  # for the cell
    asked = entry("asked", 69.0, paper="questions", settings=other)
    elsewhere = entry("B", 71.0, seed=1, settings=other)  # for another cell
    lines = [entry("A", 60.0), short, asked, elsewhere]
    (found,) = contradictions(judge([cell("A", 80.0)], lines), lines)
    assert found.tried == ["`lr = 0.5` (chosen: 0.1): 70.00 after 100 rounds (2 seeds)"]


def test_a_shortened_run_contradicts_nothing_yet():
    cells = [cell("A", 80.0), cell("B", 70.0)]
    lines = [entry("A", 5.0, rounds=20), entry("B", 8.0, rounds=20)]
    assert verdicts(cells, lines) == ["differs so far"] * 2
    assert contradictions(judge(cells, lines), lines) == []


def test_rows_that_tie_here_speak_against_a_paper_that_has_them_far_apart():
    cells = [cell("A", 80.0), cell("B", 69.0)]
    table = Table("fedfft", "1", "", tuple(cells), (("A", "B"),))
    for a, b, rounds, verdict in (
        (60.5, 60.0, 100, "differs"),  # half a point for eleven
        (60.5, 60.0, 50, "shortened"),  # it may still grow
        (62.0, 60.0, 100, "ordering holds"),
    ):
        judged = judge_twice(cells, [entry("A", a, rounds=rounds), entry("B", b, rounds=rounds)])
        assert judged[0].verdict == verdict
        assert leads(table, judged)[0].verdict == ("not judged" if verdict == "shortened" else verdict)


@for_each("kind", ["rounds", "relative bytes", "seconds per round"])
def test_so_do_rounds_and_bytes_but_not_seconds(kind):
    """A and B take 80 and 81 rounds here, and 60 and 30 in the paper; C stands where the paper has it."""
    scale = 0.01 if kind == "relative bytes" else 1.0
    cells = [cell(row, scale * told, kind=kind, target=40.0) for row, told in (("A", 60), ("B", 30), ("C", 10))]
    taken = {"A": 80, "B": 81, "C": 20}
    lines = [entry(row, 50.0, bests=[[n, 40.0]], seconds=100.0 * n) for row, n in taken.items()]
    seconds = kind == "seconds per round"
    assert verdicts(cells[:2], lines) == ["another machine" if seconds else "differs"] * 2
    assert verdicts(cells, lines)[:2] == ["ordering holds" if seconds else "differs"] * 2


def test_rounds_vary_by_a_share_of_the_larger_number():
    """55.5 against 50 rounds: they differ by more than twice 5 % of the paper's number, by less than that of ours."""
    lines = [entry("A", 50.0, seed=seed, bests=[[n, 40.0]]) for seed, n in enumerate((55, 56))]
    (judged,) = judge([cell("A", 50.0, kind="rounds", target=40.0)], lines, noise=NoiseOfLedger([]))
    assert (judged.noise, judged.noise_here) == (pytest.approx(2.5), pytest.approx(2.775))
    assert judged.verdict == "within seed noise"


def test_a_run_whose_schedule_is_shorter_is_told_from_none():
    settings = SETTINGS | {"augment": "A", "schedule": "cosine"}
    of = cell("A", 50.0, experiment=settings | {"rounds": 100})
    short = entry("A", 80.0, rounds=2, settings=settings)
    assert verdicts([of], []) == verdicts([of], [replace(short, superseded="old")]) == ["not run"]
    assert verdicts([of], [short]) == ["other schedule (2 rounds)"]

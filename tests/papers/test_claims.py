"""Headline claims of the papers: named in full, and decided by runs of full length and several seeds alone."""

import shlex
import tomllib
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest
from for_each import for_each

import fedkeel as fk
from fedkeel.analysis.intervals import paired_interval
from fedkeel.cli.main import call
from fedkeel.papers import PAPERS, QUESTIONS, claim_verdicts, find, ledger
from fedkeel.papers.claim_verdicts import decide_claims
from fedkeel.papers.claims import EXPECTED, find_claimed_tracks, read_claims
from fedkeel.papers.claims_page import find_full_length, page, write_row
from fedkeel.papers.ledger import Entry
from fedkeel.papers.reproduce import chosen, settings_of
from fedkeel.papers.spectra import READINGS

ROOT = Path(__file__).parents[2]
CELLS = {(f"{cell.paper}:{cell.table}", cell.row, cell.column): cell for p in PAPERS for cell in find(p)}


def entry(table, row, column, value, seed=0, **changes):
    """A run of full length of a cell."""
    cell = CELLS[table, row, column]
    rounds = int(cell.experiment["rounds"])
    made = Entry(
        cell.paper, cell.table, row, column, seed, cell.kind, cell.evaluation, cell.reported, cell.spread, value, value,
        value, value, rounds, rounds, 120.0, "f", "d", settings=settings_of(cell), bests=[[rounds, value]], sent=1.0,
    )  # fmt: skip
    return replace(made, **changes)


def finding(name, lines, part=""):
    (decision,) = [one for one in decide_claims(lines) if one.claim.name == name]
    return next(one for one in decision.findings if part in one.difference.name)


def rows(table, column, **values):
    """Runs of two rows: {row: [a value for each seed]}."""
    return [entry(table, row, column, v, seed) for row, each in values.items() for seed, v in enumerate(each)]


# ---- what is claimed -----------------------------------------------------------------------------------------------
def test_every_paper_has_claims_that_say_what_decides_them():
    given = tomllib.loads((files("fedkeel.papers") / "claims.toml").read_text(encoding="utf-8"))["claim"]
    assert len(read_claims()) == len(given)  # no name twice
    assert {claim.paper for claim in read_claims().values()} == set(PAPERS) - {QUESTIONS}
    for claim in read_claims().values():
        assert claim.expects in EXPECTED
        assert claim.measure in ("numbers", "gradients", "bytes", "spectra")
        assert bool(claim.differences) != bool(claim.unmeasured), claim.name
        assert claim.says.endswith(".")
        assert claim.where
        assert bool(claim.within) == (claim.expects in ("level", "no gain"))
        if claim.expects == "gain":
            assert all(one.reported is not None for one in claim.differences), claim.name


def test_what_is_reported_is_the_difference_of_the_papers_numbers():
    (headline,) = read_claims()["fsa-headline"].differences
    assert headline.reported == pytest.approx(8.26)
    (skew,) = read_claims()["filter-more-when-skewed"].differences
    assert [sign for sign, _ in skew.terms] == [1, -1, 1, -1]
    assert skew.reported == pytest.approx((78.05 - 58.40) - (85.11 - 77.02))


def test_the_runs_of_a_claim_are_asked_for_by_its_name():
    assert [cell.label for cell in chosen("claims:fsa-headline", None)] == [
        "FedFSA, cifar100, Dir 0.3", "FedSpeed, cifar100, Dir 0.3",
    ]  # fmt: skip
    assert len(chosen("claims", None)) > 50
    with pytest.raises(fk.RequestError, match="there is no claim: fsa-headlin"):
        chosen("claims:fsa-headlin", None)


# ---- verdicts ------------------------------------------------------------------------------------------------------
GAIN = ("filter-over-fedavg", "specgradfilter:I", "cifar10, 0.1")  # 19.65 points are reported


@for_each(
    ("ours", "theirs", "verdict", "reason"),
    [
        ([], [50.0, 51.0], "undecided", "not run: SpecGradFilter, cifar10, 0.1"),
        ([70.0], [50.0], "undecided", "one seed"),
        ([70.0, 71.0, 72.0], [50.0], "undecided", "one seed"),
        ([80.0, 81.0], [50.0, 51.0], "undecided", "all seeds alike"),
        ([70.0, 71.5, 70.8], [50.0, 51.0, 52.0], "confirmed", ""),
        ([60.0, 61.5, 60.8], [50.0, 51.0, 52.0], "contradicted", "smaller than reported"),
        ([49.0, 50.0, 50.0], [50.0, 51.5, 52.0], "contradicted", "smaller than reported"),
        ([70.0, 52.0, 61.0], [50.0, 51.0, 52.0], "undecided", "the interval allows both"),
    ],
)
def test_a_gain_is_ahead_and_as_large_as_reported(ours, theirs, verdict, reason):
    name, table, column = GAIN
    found = finding(name, rows(table, column, SpecGradFilter=ours, FedAvg=theirs), column)
    assert (found.verdict, found.reason) == (verdict, reason)


@for_each(("seeds", "looks"), [(2, 1), (3, 1), (4, 2), (6, 2)])
def test_seeds_that_were_added_after_a_look_widen_the_interval(seeds, looks):
    name, table, column = GAIN
    ours = [60.0, 70.0, 80.0, 60.0, 70.0, 80.0][:seeds]
    lines = rows(table, column, SpecGradFilter=[value + 20.0 for value in ours], FedAvg=ours[::-1])
    found = finding(name, lines, column)
    assert (found.interval.looks, found.interval.pairs) == (looks, seeds)
    assert (f", {looks} looks)" in write_row(found)[3]) == (looks > 1)


def test_the_side_that_was_looked_at_most_often_says_how_often():
    name, table, column = GAIN
    lines = rows(table, column, SpecGradFilter=[70.0, 60.0, 80.0, 65.0], FedAvg=[50.0, 40.5, 60.0])
    assert finding(name, lines, column).interval.looks == 2


def test_seeds_are_paired_where_both_have_them_and_else_not():
    name, table, column = GAIN
    lines = rows(table, column, SpecGradFilter=[70.0, 60.0, 80.0], FedAvg=[50.0, 40.5, 60.0])
    found = finding(name, lines, column)
    assert (found.interval.pairs, found.verdict) == (3, "confirmed")
    assert finding(name, [replace(line, seconds=90.0) for line in lines], column).minutes == 9.0
    apart = [replace(line, seed=line.seed + 10) if line.row == "FedAvg" else line for line in lines]
    found = finding(name, apart, column)
    assert (found.interval.pairs, found.verdict) == (0, "undecided")


def test_only_a_direction_is_claimed_where_no_size_is():
    lines = rows("fedfft:1", "cifar10, 0.1", **{"FedFFT-D": [80.0, 81.0, 82.0], "FedSAM-D": [79.9, 80.9, 81.89]})
    found = finding("fft-over-sam", lines, "FedFFT-D − FedSAM-D, cifar10, 0.1")
    assert found.difference.reported > found.interval.high
    assert found.verdict == "confirmed"
    turned = [replace(line, best=160 - line.best) for line in lines]
    assert finding("fft-over-sam", turned, "FedFFT-D − FedSAM-D, cifar10, 0.1").verdict == "contradicted"


@for_each(("ahead", "verdict"), [(0.1, "confirmed"), (-3.0, "confirmed"), (0.5, "undecided"), (2, "contradicted")])
def test_no_gain_is_claimed_within_a_margin(ahead, verdict):
    base = [76.0, 77.0, 78.0]
    ours = [value + ahead + jitter for value, jitter in zip(base, (0.0, 0.1, -0.1), strict=True)]
    lines = rows("fedfft:13", "0.1", **{"FedDyn-GradFilter": ours, "FedDyn": base})
    assert finding("fft-not-on-gradients", lines, "0.1").verdict == verdict


@for_each(("ahead", "verdict"), [(-0.5, "confirmed"), (5.0, "confirmed"), (-1.0, "undecided"), (-2.0, "contradicted")])
def test_level_is_no_further_behind_than_the_margin(ahead, verdict):
    base = [60.0, 61.0, 62.0]
    ours = [value + ahead + jitter for value, jitter in zip(base, (0.0, 0.1, -0.1), strict=True)]
    lines = rows("fedscam:1", "fashion-mnist, 0.1", FedSCAM=ours, FedLESAM=base)
    assert finding("scam-competitive", lines, "FedLESAM").verdict == verdict


def test_a_shortened_or_superseded_run_decides_nothing():
    name, table, column = GAIN
    lines = rows(table, column, SpecGradFilter=[70.0, 71.5, 70.8], FedAvg=[50.0, 51.0, 52.0])
    short = [replace(line, rounds=200) if line.row == "FedAvg" else line for line in lines]
    assert finding(name, short, column).reason == "shortened: FedAvg, cifar10, 0.1 200 of 300"
    old = [replace(line, superseded="computed otherwise") if line.row == "FedAvg" else line for line in lines]
    assert finding(name, old, column).reason.startswith("not run")


def test_a_longer_run_counts_at_the_cells_own_round():
    """FedFFT's FedAvg of 800 rounds stood at 70 % after 500, the length of FedWMSAM's table."""
    column = "cifar10, 0.1"
    long = [
        entry("fedfft:1", "FedSAM", column, 80.0 + s, s, bests=[[500, 70.0], [800, 80.0]], curve={"500": 60.0 + s})
        for s in range(2)
    ]
    ours = [entry("fedwmsam:1", "FedWMSAM", column, 70.0 + s, s) for s in range(2)]
    found = finding("wmsam-best", [*long, *ours], "FedWMSAM − FedSAM")
    assert found.interval.mean == pytest.approx(10.0)


def test_a_target_that_the_slower_never_reached_makes_the_saving_larger_than_is_said():
    table, column = "specgradfilter:VII", "cifar10, rounds"
    fast = [entry(table, "FedAvg + FFT", column, 60.0, s, bests=[[200 + s, 58.0]]) for s in range(3)]
    slow = [entry(table, "FedAvg", column, 50.0, s) for s in range(3)]
    found = finding("filter-faster", [*fast, *slow], "FedAvg − FedAvg + FFT")
    assert (found.interval.mean, found.at_least, found.verdict) == (301 - 201, True, "confirmed")
    assert "| ≥ +100 |" in page([*fast, *slow])
    never = [replace(line, bests=[[300, 50.0]]) for line in fast]
    found = finding("filter-faster", [*never, *slow], "FedAvg − FedAvg + FFT")
    assert (found.interval, found.reason) == (None, "target not reached: FedAvg + FFT, cifar10, rounds")


def test_gradients_and_bytes_are_counted():
    assert finding("wmsam-one-gradient", []).verdict == "confirmed"
    assert finding("filter-no-more-bytes", []).reason == "not run"
    lines = rows("specgradfilter:I", "cifar10, 0.1", SpecGradFilter=[50.0], FedAvg=[50.0])
    assert finding("filter-no-more-bytes", lines).verdict == "confirmed"
    for sent, verdict in ((1.004, "confirmed"), (1.006, "contradicted"), (2.0, "contradicted")):
        more = [replace(line, sent=sent) if line.row == "SpecGradFilter" else line for line in lines]
        found = finding("filter-no-more-bytes", more)
        assert (found.verdict, found.interval.mean) == (verdict, sent)


def test_a_claim_is_confirmed_by_all_and_contradicted_by_one():
    table, name = "fedfft:1", "fft-over-feddyn"
    good = rows(table, "cifar10, 0.1", **{"FedFFT-D": [85.0, 85.2], "FedDyn": [79.0, 79.1]})

    def verdict(lines):
        return next(one.verdict for one in decide_claims(lines) if one.claim.name == name)

    assert verdict(good) == "undecided"  # CIFAR-100 is missing
    assert (
        verdict([*good, *rows(table, "cifar100, 0.1", **{"FedFFT-D": [55.0, 55.1], "FedDyn": [42.0, 42.0]})])
        == "confirmed"
    )
    assert verdict(rows(table, "cifar100, 0.1", **{"FedFFT-D": [42.0, 42.1], "FedDyn": [42.0, 42.0]})) == "contradicted"


# ---- spectra -------------------------------------------------------------------------------------------------------
BANDS = {"low": [9.0, 2.0, 2.0, 1.0], "even": [2.0, 2.0, 2.0, 2.0], "high": [1.0, 1.0, 1.0, 9.0]}


def looked_at(*seeds, **changes):
    """Runs of FedAvg on SpecGradFilter's clients, whose seeds have these bands by round."""
    return [
        entry(*GAIN[1:2], "FedAvg", GAIN[2], 40.0, seed, spectra={"gradient-spectrum/distance": by_round}, **changes)
        for seed, by_round in enumerate(seeds)
    ]


def low_band(lines):
    return finding("gradient-drift", lines, "lowest band"), finding("gradient-drift", lines, "lower half")


def test_disagreement_in_low_frequencies_is_read_off_the_spectra_of_all_seeds():
    low, even = BANDS["low"], BANDS["even"]
    band, half = low_band(looked_at({"30": low}, {"30": [8.0, 2.0, 2.0, 1.0]}, {"30": low}))
    assert band.interval.mean == pytest.approx((4.5 + 4.0 + 4.5) / 3)
    assert half.interval.mean == pytest.approx((11 / 14 + 10 / 13 + 11 / 14) / 3)
    assert (band.verdict, half.verdict, band.looked_at) == ("confirmed", "confirmed", (30,))
    band, half = low_band(looked_at({"30": [0.5, 1.0, 1.0, 9.0]}, {"30": [0.51, 1.0, 1.0, 9.0]}))
    assert (band.verdict, half.verdict) == ("contradicted", "contradicted")
    band, half = low_band(looked_at({"30": even}, {"30": low}))
    assert (band.verdict, half.verdict) == ("undecided", "undecided")  # the interval allows both
    band, _ = low_band(looked_at({"30": low}))
    assert (band.verdict, band.reason) == ("undecided", "one seed")
    band, _ = low_band(looked_at({"30": low}, {"30": low}))
    assert (band.verdict, band.reason) == ("undecided", "all seeds alike")
    band, _ = low_band([replace(line, last=19.0) for line in looked_at({"30": low}, {"30": [8.0, 2.0, 2.0, 1.0]})])
    assert (band.verdict, band.reason) == ("undecided", "models near chance: 19.0 %")  # guessing gives 10 %
    band, _ = low_band(rows(GAIN[1], GAIN[2], FedAvg=[50.0, 51.0]))
    assert (band.verdict, band.reason) == ("undecided", "no spectra: FedAvg, cifar10, 0.1")


def test_seeds_are_compared_at_the_rounds_that_all_of_them_tracked():
    low, high = BANDS["low"], BANDS["high"]
    lines = looked_at({"30": low, "60": high}, {"30": [8.8, 2.0, 2.0, 1.0]}, rounds=120)
    band, _ = low_band(lines)
    assert (band.looked_at, band.interval.mean, band.verdict) == ((30,), pytest.approx(4.45), "confirmed")
    assert low_band(looked_at({"30": low}, {"60": low}))[0].reason.startswith("no spectra")
    shorter = looked_at({"30": high}, rounds=30)  # of the same seed, with fewer of the rounds
    assert low_band([*lines, *shorter])[0].interval == low_band([*shorter, *lines])[0].interval == band.interval
    for empty in ([], [1.0], [0.0, 0.0], [1.0, -1.0]):
        assert low_band(looked_at({"30": empty}, {"30": low}))[0].verdict == "undecided"


def test_the_runs_of_a_claim_about_spectra_track_them():
    claim = read_claims()["gradient-drift"]
    assert find_claimed_tracks("claims:gradient-drift") == list(claim.track)
    assert find_claimed_tracks("claims") == find_claimed_tracks("fedfft:1") == find_claimed_tracks("claims:none") == []
    for name in ("gradient-drift", "perturbation-drift"):
        claim = read_claims()[name]
        assert claim.row.split("/")[0] in [track.partition("@")[0] for track in claim.track]
        assert len(claim.differences) == len(READINGS)
        assert f"claims:{name} --seeds 0,1,2 --rounds {claim.rounds} --skip-done" in page([])


# ---- the page ------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_the_claims_page_is_made_from_the_ledger():
    written = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
    assert written == page(ledger.read_lines(ROOT / "results" / "ledger.jsonl"))


def test_a_page_without_runs_decides_only_what_is_counted():
    decided = [one.claim.measure for one in decide_claims([]) if one.verdict != "undecided"]
    assert set(decided) == {"gradients"}
    text = page([])
    assert "0 different runs of 300 rounds or more" in text
    assert text.count("\n### ") == len(read_claims())


def test_a_claim_that_three_seeds_leave_open_asks_for_others():
    name = "filter-more-when-skewed"
    ours = {"cifar10, 0.1": (70.0, 52.0, 61.0, 70.0), "cifar10, 0.6": (69.0, 52.0, 62.0, 70.0)}
    for count, seeds in ((2, "0,1,2"), (3, "3,4,5"), (4, "4,5,6")):
        lines = [
            entry("specgradfilter:I", row, column, found[seed] if row == "SpecGradFilter" else 50.0 + seed, seed)
            for row in ("SpecGradFilter", "FedAvg")
            for column, found in ours.items()
            for seed in range(count)
        ]
        assert f"reproduce claims:{name} --seeds {seeds} --skip-done" in page(lines)


def test_rows_that_are_far_from_the_papers_number_are_named_with_both():
    _, table, column = GAIN  # 78.05 and 58.40 are reported
    text = page(rows(table, column, SpecGradFilter=[78.0, 79.0], FedAvg=[53.0, 53.0]))
    assert "Far from the paper's own number (in brackets): FedAvg, cifar10, 0.1 53.00 (58.40).\n" in text
    assert "; 1 row far from the paper's |" in text
    assert "(58.40)" not in page(rows(table, column, SpecGradFilter=[78.0, 79.0], FedAvg=[53.0, 54.0]))
    rounds = "specgradfilter:VII", "cifar10, rounds"
    slow = [entry(rounds[0], "FedAvg", rounds[1], 50.0, seed) for seed in range(2)]
    fast = [entry(rounds[0], "FedAvg + FFT", rounds[1], 60.0, seed, bests=[[200, 58.0]]) for seed in range(2)]
    told = "FedAvg, cifar10, rounds not reached by every seed (300 rounds)"
    assert f"{told}; FedAvg + FFT, cifar10, rounds 200 (75 rounds)." in page([*slow, *fast])
    near = [replace(line, bests=[[93, 58.0]]) for line in fast]  # a quarter of 75 is 18.75
    assert f"{told}." in page([*slow, *near])


def test_runs_of_full_length_are_counted_once_and_listed_by_claim():
    name, table, column = GAIN
    lines = rows(table, column, SpecGradFilter=[70.0, 71.0], FedAvg=[50.0])
    other = entry("fedscam:2", "FedAvg", "cifar10, 0.1", 50.0)  # has 15 rounds
    unused = entry("specgradfilter:VI", "FedLWS", "cifar10", 50.0)
    every = [*lines, lines[0], replace(lines[2], seed=3, rounds=299), other, unused]
    assert len(find_full_length(every)) == 4
    text = page(every)
    assert "4 different runs of 300 rounds or more" in text
    assert (
        f"| {name} | 3 | {table} SpecGradFilter, {column}, 300 rounds (0,1); {table} FedAvg, {column}, 300 rounds (0) |"
        in text
    )
    assert "| no claim | 1 | specgradfilter:VI FedLWS, cifar10, 300 rounds (0) |" in text
    strange = replace(unused, table="X", settings={**unused.settings, "lr": 7.0})
    assert "specgradfilter:X FedLWS, cifar10 of no table here, 300 rounds (0) |" in page([strange])
    assert "mine:X FedLWS, cifar10 of no table here, 300 rounds (0) |" in page([replace(strange, paper="mine")])


def test_a_claim_lists_the_longer_run_that_it_was_cut_from_and_not_another_training():
    whole = entry("fedwmsam:1", "FedAvg", "cifar10, 0.1", 60.0, bests=[[400, 50.0], [800, 60.0]])
    whole = replace(whole, rounds=800, rounds_paper=800, curve={"500": 49.0})
    again = entry("fedwmsam:1", "FedAvg", "cifar10, 0.1", 51.0, bests=[[400, 51.0]])
    for lines, rounds in (([whole], 800), ([whole.until(500), whole], 800), ([again, whole], 500)):
        assert f"| wmsam-then-flat | 1 | fedwmsam:1 FedAvg, cifar10, 0.1, {rounds} rounds (0) |" in page(lines)
    assert "2 different runs of 300 rounds or more" in page([again, whole])


def test_a_run_that_serves_only_by_its_spectra_decides_nothing_at_full_length():
    whole = entry("specgradfilter:I", "FedAvg", "cifar10, 0.1", 50.0)
    bands = {"gradient-spectrum/distance": {"30": [9.0] + [1.0] * 9}}
    text = page([whole, replace(whole, rounds=30, spectra=bands)])
    assert "| gradient-drift |" not in text
    assert "| filter-over-fedavg | 1 |" in text


def test_a_claim_that_cannot_be_run_says_why(capsys):
    assert call(["reproduce", "claims:scam-speed"]) == 0
    assert "not run: the paper gives no number for it" in capsys.readouterr().out


def test_the_command_writes_the_page(tmp_path, capsys):
    book, out, other = tmp_path / "my own.jsonl", tmp_path / "claims.md", tmp_path / "page.md"
    assert call(["reproduce", "--claims", str(out), "--ledger", str(book)]) == 2
    assert "there is no ledger" in capsys.readouterr().err
    ledger.append(rows(GAIN[1], GAIN[2], FedAvg=[50.0])[0], book)
    assert call(["reproduce", "--claims", str(out), "--page", str(other), "--ledger", str(book)]) == 0
    assert out.read_text(encoding="utf-8").startswith("# Claims")
    for made in (out, other):  # each says which ledger it is made from, and how it is made again
        text = " ".join(made.read_text(encoding="utf-8").split())
        assert f"--ledger {shlex.quote(str(book))}` makes it from `{book.as_posix()}`" in text
        assert "results/ledger.jsonl" not in text
    assert call(["reproduce", "claims", "--list"]) == 0
    assert "claims:fsa-headline" in capsys.readouterr().out


def test_spectra_over_more_seeds_than_a_look_has_allow_for_it():
    """The same numbers miss half as often, so the interval of four seeds is wider than Student's of 95 %."""
    lines = looked_at(*({"30": [first, 2.0, 2.0, 1.0]} for first in (8.0, 8.5, 9.0, 9.5)))
    band, half = low_band(lines)
    assert band.interval == paired_interval([4.0, 4.25, 4.5, 4.75], 2)
    assert half.interval.looks == 2
    assert low_band(lines[:3])[0].interval.looks == 1


def test_what_is_counted_is_the_first_side_over_the_second(monkeypatch):
    """SAM takes two gradients a step where FedAvg takes one: a claim of half as many would be contradicted."""
    column = "cifar10, 0.1"
    sam, plain = (CELLS["fedfft:1", row, column] for row in ("FedSAM", "FedAvg"))
    known = read_claims()["fft-light"]
    for terms, expected in ((((1, sam), (-1, plain)), 2.0), (((1, plain), (-1, sam)), 0.5)):
        one = replace(known.differences[0], terms=terms, reported=expected)
        monkeypatch.setattr(claim_verdicts, "read_claims", lambda one=one: {"made": replace(known, differences=(one,))})
        (decision,) = decide_claims([])
        assert (decision.verdict, decision.findings[0].interval.mean) == ("confirmed", expected)

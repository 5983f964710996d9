"""What the papers say of their own numbers: differences, products, best rows, numbers printed twice, sources."""

from __future__ import annotations

import pytest
from for_each import for_each
from printed import cell, value

from fedkeel.papers import PAPERS, find
from fedkeel.papers.cells import read

PRINTED = [
    *(f"fedfft:{table}" for table in (1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13)),
    *(f"specgradfilter:{table}" for table in ("I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X")),
    *("fedscam:1", "fedscam:2", "fedfsa:1", "fedfsa:2"),
    *(f"fedwmsam:{table}" for table in (1, 2, 3, 4, 5)),
]


def test_only_what_the_papers_leave_blank_has_no_number() -> None:
    blank = {f"{spec} {c.label}" for spec in PRINTED for c in find(spec) if c.reported is None}
    not_reached = {"FedAvg": (76, 78), "FedCM": (78,), "SCAFFOLD": (78,), "FedSAM": (76, 78), "FedGamma": (78,)}
    not_reached |= {"FedLESAM": (76, 78), "FedLESAM-D": (78,), "FedLESAM-S": (78,)}
    assert blank == {
        *(f"fedwmsam:3 {row}, {target} %" for row, targets in not_reached.items() for target in targets),
        *(f"specgradfilter:VII FedCM, tiny-imagenet, {what}" for what in ("seconds per round", "rounds", "seconds")),
        "fedfsa:1 FedCR, tiny-imagenet, Dir 0.3",
        "fedfsa:1 FedALA, tiny-imagenet, Pat 50",
        "fedfsa:1 FedALA, tiny-imagenet, Dir 0.3",
        "fedfsa:2 FedCR, tiny-imagenet, 100 clients",
        "fedfsa:2 FedALA, tiny-imagenet, 50 clients",
        "fedfsa:2 FedALA, tiny-imagenet, 100 clients",
    }


def test_numbers_printed_twice_agree() -> None:
    pairs = [
        (f"fedfft:1 {row}, cifar{n}, 0.6", f"fedfft:2 {row}, cifar{n}, resnet18")
        for row in ("FedSAM-D", "FedSMOO-D", "FedGloSS-D", "FedFFT-D")
        for n in (10, 100)
    ]
    pairs += [(f"fedfft:1 FedSAM, cifar10, {a}", f"fedfft:3 None (FedSAM), {a}") for a in (0.6, 0.1)]
    pairs += [(f"fedfft:1 FedFFT, cifar10, {a}", f"fedfft:3 Low-frequency (FedFFT), {a}") for a in (0.6, 0.1)]
    pairs += [(f"fedfft:1 {row}, cifar10, 0.1", f"fedfft:10 {row}, rho 0.10") for row in ("FedSAM", "FedFFT")]
    pairs += [
        (f"fedfft:4 {row}, cifar10, 0.1, rounds", f"fedfft:5 {row}, rounds")
        for row in ("FedAvg", "FedSAM", "FedSMOO-D", "FedGloSS-D", "FedFFT-D")
    ]
    pairs += [("fedfft:2 FedSAM-D, cifar10, resnet20", "fedfft:8 FedDyn + SAM, 0.6")]
    for n in (10, 100):
        plain = f"specgradfilter:II FedAvg, cifar{n}, resnet20"
        ours = f"specgradfilter:III Low-frequency suppression, cifar{n}"
        pairs += [(plain, f"specgradfilter:{where}, cifar{n}") for where in ("III None (FedAvg)", "IV FedAvg")]
        pairs += [(plain, f"specgradfilter:V FL, 0.1, cifar{n}, baseline")]
        pairs += [(ours, f"specgradfilter:II FedAvg + SpecGradFilter, cifar{n}, resnet20")]
        pairs += [(ours, f"specgradfilter:V FL, 0.1, cifar{n}, ours"), (ours, f"specgradfilter:IV 0123, cifar{n}")]
        pairs += [(f"specgradfilter:VI FedAvg, cifar{n}", f"specgradfilter:V FL, 100, cifar{n}, baseline")]
        pairs += [(f"specgradfilter:VI SpecGradFilter, cifar{n}", f"specgradfilter:V FL, 100, cifar{n}, ours")]
    pairs += [
        (f"fedwmsam:1 {row}, cifar10, 0.1", f"fedwmsam:4 {row}, epochs 5")
        for row in ("FedAvg", "MoFedSAM", "FedSAM", "FedWMSAM")
    ]
    pairs += [
        (f"fedfsa:1 {row}, tiny-imagenet, Dir 0.3", f"fedfsa:2 {row}, tiny-imagenet, 100 clients")
        for row in ("FedAvg-FT", "FedSAM", "MoFedSAM", "FedSMOO", "FedSpeed", "FedFSA")
    ]
    for one, other in pairs:
        assert value(*one.split(" ", 1)) == value(*other.split(" ", 1)), (one, other)


def test_released_rows_repeat_their_papers_numbers() -> None:
    for paper in ("fedfft", "fedwmsam", "fedfsa"):
        for c in find(f"{paper}:1-released"):
            again = cell(f"{paper}:1", f"{c.row.removesuffix(', released')}, {c.column}")
            assert (c.reported, c.spread) == (again.reported, again.spread)
            assert c.experiment["method"]["name"].endswith("@released")


def test_fedfft_bytes_follow_from_rounds() -> None:
    """Rounds over FedAvg's rounds, twice that for FedSMOO, which sends two vectors."""
    for c in find("fedfft:4"):
        if c.kind == "relative bytes":
            rounds = value("fedfft:4", c.label.removesuffix("bytes") + "rounds")
            sent = 2 if c.row == "FedSMOO-D" else 1
            assert c.reported == pytest.approx(sent * rounds / c.experiment["rounds"], abs=0.0051)


@pytest.mark.parametrize(("table", "digits"), [("fedfft:5", 0.002), ("specgradfilter:VII", 0.006)])
def test_total_seconds_are_rounds_times_seconds(table: str, digits: float) -> None:
    for c in find(table):
        if c.kind == "seconds" and c.reported is not None:
            which = c.label.removesuffix("seconds")
            each, rounds = value(table, which + "seconds per round"), value(table, which + "rounds")
            assert c.reported == pytest.approx(each * rounds, rel=digits), c.label


def test_printed_gains() -> None:
    gains = {0.05: 0.25, 0.10: 2.61, 0.15: 5.91, 0.20: 13.20}
    for rho, gain in gains.items():
        ours, base = (value("fedfft:10", f"{row}, rho {rho:.2f}") for row in ("FedFFT", "FedSAM"))
        assert ours - base == pytest.approx(gain)
    table_v = {
        "Centralised": (-0.65, -1.57),
        "FL, 100": (5.46, 8.46),
        "FL, 5": (7.19, 9.79),
        "FL, 0.6": (8.54, 10.57),
        "FL, 0.1": (21.58, 11.72),
    }
    for row, both in table_v.items():
        for data, gain in zip(("cifar10", "cifar100"), both, strict=True):
            ours, base = (value("specgradfilter:V", f"{row}, {data}, {which}") for which in ("ours", "baseline"))
            assert ours - base == pytest.approx(gain)
    for column, gain in {"small-cnn, 30 rounds": 2.81, "resnet18, 50 rounds": 4.60}.items():
        ours, base = (value("fedscam:text", f"{row}, {column}") for row in ("FedSCAM", "FedSAM"))
        assert ours - base == pytest.approx(gain)
    second = value("fedfsa:1", "FedSpeed, cifar100, Dir 0.3")
    assert value("fedfsa:1", "FedFSA, cifar100, Dir 0.3") - second == pytest.approx(8.26)


BEST = {
    "fedfft:1": "FedFFT-D",
    "fedfft:3": "Low-frequency (FedFFT)",
    "fedfft:8": "Low-frequency filtering (FedFFT-D)",
    "specgradfilter:I": "SpecGradFilter",
    "specgradfilter:VI": "SpecGradFilter",
    "specgradfilter:VIII": "FedAvg + SpecGradFilter",
    "fedwmsam:1": "FedWMSAM",
    "fedwmsam:2": "FedWMSAM",
    "fedwmsam:4": "FedWMSAM",
    "fedfsa:1": "FedFSA",
    "fedfsa:2": "FedFSA",
}
BEATEN = {
    ("fedfft:1", "cifar100, 0.6"),
    ("fedwmsam:1", "fashion-mnist, 0.6"),
    ("fedwmsam:1", "cifar10, 0.6"),
    ("fedwmsam:2", "Real World"),
    ("fedwmsam:4", "epochs 1"),
    ("fedfsa:1", "fashion-mnist, Pat 5"),
    ("fedfsa:1", "fashion-mnist, Dir 0.5"),
}


@for_each("spec", BEST)
def test_the_papers_own_method_is_best_where_it_is_printed_bold(spec: str) -> None:
    """Over what is not damaged; a damaged number that won was one of the signs of damage."""
    lost = damaged(spec)
    whole = [c for c in find(spec) if c.reported is not None and c.label not in lost]
    for column in dict.fromkeys(c.column for c in whole):
        legible = [c for c in whole if c.column == column]
        best = max(c.reported or 0.0 for c in legible)
        won = best == next(c.reported for c in legible if c.row == BEST[spec])
        assert won == ((spec, column) not in BEATEN), column


def damaged(spec: str) -> set[str]:
    """Labels whose number itself is damaged, not only their column's heading."""
    paper, name = spec.split(":")
    (table,) = (table for table in read(paper)["table"] if table["name"] == name)
    return {
        f"{row}, {column}"
        for row, numbers in table["values"].items()
        for column, number in zip(table["columns"], numbers, strict=True)
        if str(number).endswith("?")
    }


def test_office_home_average() -> None:
    """The poster says: best in three of four domains, and best on average."""
    rows = dict.fromkeys(c.row for c in find("fedwmsam:2"))
    mean = {row: sum(c.reported or 0 for c in find("fedwmsam:2") if c.row == row) / 4 for row in rows}
    assert max(mean, key=lambda row: mean[row]) == "FedWMSAM"


def test_copied_numbers_are_those_of_table_1_without_a_dagger() -> None:
    copied = [c for c in find("fedfft:1") if c.source == "copied"]
    assert {c.row for c in copied} == {
        *("FedAvg", "MoFedSAM", "FedLESAM", "SCAFFOLD", "FedGamma-S", "FedLESAM-S", "FedDyn", "FedSMOO-D", "FedLESAM-D")
    }
    assert {c.experiment["dataset"] for c in copied} == {"cifar10", "cifar100"}
    assert len(copied) == 9 * 4
    elsewhere = {(p, c.table) for p in PAPERS for c in find(p) if c.source == "copied"}
    assert elsewhere == {("fedfft", "1"), ("fedfft", "2"), ("fedfft", "1-released")}


def test_only_the_poster_is_damaged() -> None:
    uncertain = [c for paper in PAPERS for c in find(paper) if c.uncertain]
    assert {(c.paper, c.table) for c in uncertain} == {("fedwmsam", "1"), ("fedwmsam", "2"), ("fedwmsam", "5")}
    certain = {c.label for c in find("fedwmsam:1") if not c.uncertain}
    assert {"FedWMSAM, cifar10, 0.1", "FedAvg, cifar10, 0.1", "SCAFFOLD, cifar100, 0.1"} <= certain
    assert not certain & {"FedSMOO, cifar10, 0.1", "SCAFFOLD, fashion-mnist, 0.1", "FedAvg, cifar100, 0.1"}
    assert all(c.note for c in uncertain)

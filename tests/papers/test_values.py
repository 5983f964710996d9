"""The published numbers: cells read a second time from the papers, and the shapes of their tables."""

from __future__ import annotations

from for_each import for_each
from printed import cell, value

from fedkeel.papers import KINDS, PAPERS, find, tables

TABLES = [(paper, table.name) for paper in PAPERS for table in tables(paper)]
PLAUSIBLE = {
    "accuracy": (9, 100),
    "rounds": (1, 800),
    "relative bytes": (0.1, 2),
    "seconds per round": (1, 60),
    "seconds": (100, 20_000),
    "extra seconds per round": (1, 60),
}


# Read again from the papers, without looking at the files.
SPOTS: dict[str, dict[str, float]] = {
    "fedfft:1": {
        "FedFFT-D, cifar10, 0.1": 83.05,
        "MoFedSAM, cifar100, 0.6": 54.38,
        "FedLESAM-S, cifar100, 0.6": 54.61,
        "FedGamma-S, tiny-imagenet, 0.1": 30.09,
        "FedSAM, cifar10, 0.1": 74.92,
    },
    "fedfft:2": {
        "FedFFT-D, cifar10, densenet121": 90.57,
        "FedSAM-D, cifar100, densenet121": 64.19,
        "FedGloSS-D, cifar100, resnet20": 46.68,
        "FedSMOO-D, cifar10, vit": 50.23,
    },
    "fedfft:3": {
        "Random filtering, 0.1": 75.09,
        "Coordinate-wise clipping, 0.6": 80.13,
        "L2-norm rescaling, 0.1": 74.79,
    },
    "fedfft:4": {
        "FedSAM, cifar10, 0.1, rounds": 718,
        "FedSMOO-D, tiny-imagenet, 0.1, bytes": 1.36,
        "FedFFT-D, cifar100, 0.6, rounds": 158,
        "FedGloSS-D, cifar10, 0.6, bytes": 0.48,
    },
    "fedfft:5": {
        "FedSAM, seconds": 12093.24,
        "FedGloSS-D, seconds per round": 23.07,
        "FedFFT-D, rounds": 302,
    },
    "fedfft:8": {
        "FedDyn + SAM, 0.1": 77.10,
        "High-frequency filtering, 0.6": 89.01,
        "Low-frequency filtering (FedFFT-D), 0.1": 81.24,
    },
    "fedfft:9": {
        "FedAWA, cifar10": 47.20,
        "FedAWA + FedFFT, cifar10": 50.16,
        "FedAWA + FedFFT, cifar100": 34.04,
    },
    "fedfft:10": {"FedSAM, rho 0.20": 58.49, "FedFFT, rho 0.05": 78.16, "FedFFT, rho 0.15": 75.29},
    "fedfft:11": {"FedPer + SAM, femnist": 65.49, "FedPer + FFT-SAM, femnist": 67.12},
    "fedfft:12": {"FedSAM-D, shakespeare": 41.49, "FedFFT-D, shakespeare": 42.34},
    "fedfft:13": {"FedDyn, 0.6": 82.62, "FedDyn-GradFilter, 0.6": 82.13, "FedDyn-GradFilter, 0.1": 77.44},
    "specgradfilter:I": {
        "SpecGradFilter, cifar10, 0.1": 78.05,
        "FedCM, tiny-imagenet, 0.1": 14.33,
        "SCAFFOLD, cifar100, 0.6": 40.04,
        "FedDisco, tiny-imagenet, 0.6": 32.30,
    },
    "specgradfilter:II": {
        "SCAFFOLD + SpecGradFilter, cifar10, densenet121": 85.98,
        "FedAvg, cifar10, resnet18": 71.28,
        "FedAWA, cifar100, vit": 23.15,
        "FedProx + SpecGradFilter, cifar100, wrn56-2": 51.75,
    },
    "specgradfilter:III": {
        "High-frequency suppression, cifar10": 59.99,
        "Gaussian Detrend, cifar100": 41.53,
        "L2-norm rescaling, cifar100": 27.04,
    },
    "specgradfilter:IV": {"0312, cifar10": 75.75, "2D FFT, cifar100": 31.96, "2310, cifar100": 25.82},
    "specgradfilter:V": {
        "Centralised, cifar10, ours": 92.22,
        "FL, 5, cifar10, ours": 86.77,
        "FL, 0.6, cifar100, baseline": 36.09,
    },
    "specgradfilter:VI": {"FedCM, cifar10": 86.36, "FedLWS, tiny-imagenet": 34.75, "FedDyn, cifar100": 46.45},
    "specgradfilter:VII": {
        "FedSAM, tiny-imagenet, seconds": 10553.86,
        "FedAvg + GD, cifar10, rounds": 79,
        "SCAFFOLD, cifar10, seconds": 1722.20,
        "FedDisco, cifar100, seconds per round": 5.79,
    },
    "specgradfilter:VIII": {
        "FedCM, cifar10-c": 76.86,
        "FedAvg + SpecGradFilter, cifar100-c": 37.04,
        "SCAFFOLD, cifar10-c": 61.25,
    },
    "specgradfilter:IX": {
        "SCAFFOLD, yahoo-answers, 0.1": 19.13,
        "FedAvg + SpecGradFilter, bloodmnist, 0.1": 90.38,
        "FedAWA, bloodmnist, 0.6": 91.49,
    },
    "specgradfilter:X": {
        "SCAFFOLD, participation 0.05": 75.16,
        "FedAvg + SpecGradFilter, participation 0.1": 82.56,
        "FedAWA, participation 0.05": 79.00,
    },
    "specgradfilter:figure-4a": {"FedAvg, clients 20": 69.4, "FedAvg, clients 100": 57.1},
    "fedscam:1": {
        "FedSCAM, fashion-mnist, 0.1": 65.41,
        "FedNoLoWe, fashion-mnist, 0.1": 57.24,
        "FedLWSAM, fashion-mnist, 0.1": 42.01,
    },
    "fedscam:2": {
        "FedAvg, cifar10, 0.1": 50.36,
        "FedSCAM (WA), cifar10, 0.5": 70.63,
        "FedWMSAM, cifar10, 1.0": 50.28,
        "FedLESAM, cifar10, 0.5": 60.62,
    },
    "fedscam:text": {
        "FedSAM, small-cnn, 30 rounds": 56.57,
        "FedSCAM, small-cnn, 30 rounds": 59.38,
        "FedSCAM, resnet18, 50 rounds": 62.60,
    },
    "fedscam:text-fashion-mnist": {"FedWMSAM, accuracy": 45.03, "FedLESAM, time": 20},
    "fedwmsam:1": {
        "FedWMSAM, cifar10, 0.1": 76.64,
        "FedLESAM-S, fashion-mnist, 0.6": 88.69,
        "MoFedSAM, cifar10, 2 classes": 73.27,
        "SCAFFOLD, cifar100, 0.1": 44.37,
    },
    "fedwmsam:2": {"SCAFFOLD, Real World": 97.49, "FedCM, Clipart": 80.13, "FedWMSAM, Art": 99.42},
    "fedwmsam:3": {"FedWMSAM, 78 %": 356, "FedLESAM-D, 76 %": 255, "FedGamma, time": 29.72, "FedSAM, 74 %": 403},
    "fedwmsam:4": {"FedSMOO, epochs 1": 78.88, "MoFedSAM, epochs 20": 67.76, "FedSAM, epochs 1": 55.15},
    "fedwmsam:5": {"row 1, accuracy": 76.64, "row 2, accuracy": 75.56, "row 7, accuracy": 72.29},
    "fedfsa:1": {
        "FedFSA, cifar100, Dir 0.3": 60.87,
        "MoFedSAM, fashion-mnist, Pat 5": 93.79,
        "FedCR, tiny-imagenet, Pat 50": 23.71,
        "FedSMOO, cifar100, Pat 15": 66.56,
    },
    "fedfsa:figure-3a": {"FedAvg-FT + FSA, cifar100, Dir 0.3": 60.87, "MoFedSAM + FSA, cifar100, Dir 0.3": 60.87},
    "fedfsa:2": {
        "FedCR, cifar100, Dir 1": 30.31,
        "FedSpeed, tiny-imagenet, 50 clients": 31.60,
        "FedFSA, cifar100, Dir 0.1": 67.73,
    },
    "fedfsa:ranking": {"FedFSA, by norm, cifar100, Dir 0.3": 60.87, "FedFSA, by range, cifar10, Dir 0.5": 88.37},
}


@for_each("spec", SPOTS)
def test_spot_values(spec: str) -> None:
    assert {label: value(spec, label) for label in SPOTS[spec]} == SPOTS[spec]


def test_every_table_with_numbers_has_spot_values() -> None:
    with_numbers = {
        f"{paper}:{table.name}"
        for paper in PAPERS
        for table in tables(paper)
        if any(cell.reported is not None for cell in table.cells) and not table.name.endswith("-released")
    }
    assert with_numbers == set(SPOTS)


@for_each(
    ("spec", "label", "spread"),
    [
        ("specgradfilter:I", "FedSAM, tiny-imagenet, 0.6", 2.44),
        ("specgradfilter:I", "SpecGradFilter, cifar10, 0.1", 1.88),
        ("specgradfilter:VIII", "FedCM, cifar100-c", 1.18),
        ("fedfsa:1", "MoFedSAM, cifar100, Dir 0.3", 2.21),
        ("fedfsa:2", "FedALA, cifar100, Dir 0.1", 1.32),
    ],
)
def test_spot_spreads(spec: str, label: str, spread: float) -> None:
    assert cell(spec, label).spread == spread


SHAPES = {
    "fedfft": {"1": (16, 6), "2": (4, 8), "3": (6, 2), "4": (5, 12), "5": (5, 3), "8": (4, 2), "9": (2, 2)}
    | {"10": (2, 4), "11": (2, 1), "12": (2, 1), "13": (2, 2)},
    "specgradfilter": {"I": (10, 6), "II": (8, 10), "III": (7, 2), "IV": (10, 2), "V": (5, 4), "VI": (10, 3)}
    | {"VII": (12, 9), "VIII": (5, 2), "IX": (6, 4), "X": (6, 2)},
    "fedscam": {"1": (6, 1), "2": (13, 3)},
    "fedwmsam": {"1": (9, 12), "2": (9, 4), "3": (11, 6), "4": (5, 4), "5": (7, 1)},
    "fedfsa": {"1": (8, 8), "2": (8, 4)},
}


@for_each(("paper", "table"), [(paper, table) for paper in SHAPES for table in SHAPES[paper]])
def test_rows_and_columns_are_those_of_the_paper(paper: str, table: str) -> None:
    cells = find(f"{paper}:{table}")
    rows, columns = list(dict.fromkeys(c.row for c in cells)), list(dict.fromkeys(c.column for c in cells))
    assert (len(rows), len(columns)) == SHAPES[paper][table]
    assert [(c.row, c.column) for c in cells] == [(row, column) for row in rows for column in columns]


def test_numbers_are_plausible() -> None:
    for c in (one for paper in PAPERS for one in find(paper)):
        low, high = PLAUSIBLE[c.kind]
        assert c.reported is None or low <= c.reported <= high, c.label
        assert c.spread is None or 0 <= c.spread < 3, c.label
        # rounds and seconds lead to an accuracy; a time per round leads nowhere
        assert (c.target is not None) >= (c.kind in ("rounds", "relative bytes", "seconds")), c.label
    assert PLAUSIBLE.keys() == KINDS.keys()

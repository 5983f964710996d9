"""Every cell is an experiment that can be built, in the setting its label and its paper name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from for_each import for_each

from fedkeel.data import DATASETS
from fedkeel.models import MODELS
from fedkeel.papers import PAPERS, Cell, find, tables
from fedkeel.runs.experiment import Experiment

TABLES = [(paper, table.name) for paper in PAPERS for table in tables(paper)]
IN_FULL = {
    *("dataset", "partition", "model", "method", "rounds", "participation", "epochs", "batch_size"),
    *("lr", "lr_decay", "weight_decay", "clip", "augment"),
}
SAVED: set[Any] = set()
"""Methods that came back from a file as they were."""


@pytest.mark.slow
@for_each(("paper", "table"), TABLES)
def test_every_cell_builds(paper: str, table: str) -> None:
    for cell in find(f"{paper}:{table}"):
        assert cell.experiment.keys() >= IN_FULL, cell.label  # nothing is left to a data set's preset
        model = cell.experiment["model"]
        assert model in MODELS or model.startswith("timm:"), cell.label  # an experiment looks it up only with its data
        built = Experiment.load(cell.experiment)
        for name in IN_FULL - {"method", "partition"}:
            assert getattr(built, name) == cell.experiment[name], (cell.label, name)
        if built.plan.method not in SAVED:  # many cells share a method; to build it again is the slow part
            assert Experiment.load(built.save()).fingerprint() == built.fingerprint()
            SAVED.add(built.plan.method)


def test_personal_numbers_are_judged_on_clients_own_data() -> None:
    """FedFSA: 70 % of the pooled data to train, means of batches, all clients, the classifier tuned at last."""
    for paper in PAPERS:
        for cell in find(paper):
            assert (cell.evaluation == "personal best") == ("evaluation" in cell.experiment), cell.label
    (cell,) = (cell for cell in find("fedfsa:1") if cell.label == "FedFSA, cifar10, Pat 5")
    policy = Experiment.load(cell.experiment).plan.evaluation
    assert policy is not None
    assert (policy.model, policy.clients, policy.when, policy.weights) == ("local", "all", "after", "uniform")
    assert (policy.accuracy, policy.batch, policy.report) == ("batch-mean", 128, "best")
    assert (policy.share, policy.pool, policy.tune) == (0.3, True, True)


# ---- the setting is the one the label names ------------------------------------------------------------------------

SETTINGS: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "epochs": lambda e: e["epochs"],
    "clients": lambda e: e["partition"]["clients"],
    "participation": lambda e: e["participation"],
    "lr": lambda e: e["lr"],
    "decay": lambda e: e["lr_decay"],
    "classes": lambda e: e["partition"]["classes"],
    "Pat": lambda e: e["partition"]["classes"],
    "Dir": lambda e: e["partition"]["alpha"],
    "rounds": lambda e: e["rounds"],
}
NOT_SETTINGS = {"row"}  # "row 3" of a table whose rows lost their names
BACKBONES = ("resnet18", "resnet20", "densenet121", "vit", "wrn56-2", "small-cnn", "lenet")


def settings_named(text: str, experiment: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """(what, named, set) for each part of a row's or column's name that names a setting."""
    for part in text.split(", "):
        pair = re.fullmatch(r"(?P<word>[A-Za-z_]+) (?P<number>[\d.]+)|(?P<count>[\d.]+) (?P<noun>[a-z]+)", part)
        if part in DATASETS:
            yield "dataset", part, experiment["dataset"]
        elif part in BACKBONES:
            yield "model", True, part in experiment["model"]
        elif pair and (word := pair["word"] or pair["noun"]) not in NOT_SETTINGS:
            of = SETTINGS.get(word)
            yield word, float(pair["number"] or pair["count"]), of(experiment) if of else experiment["method"][word]


def test_labels_name_the_setting() -> None:
    for cell in (cell for paper in PAPERS for cell in find(paper)):
        named = [*settings_named(cell.row, cell.experiment), *settings_named(cell.column, cell.experiment)]
        # a number alone is the Dirichlet coefficient
        numbers = [float(part) for part in cell.column.split(", ") if re.fullmatch(r"[\d.]+", part)]
        named += [("alpha", number, cell.experiment["partition"]["alpha"]) for number in numbers]
        for what, said, set_to in named:
            assert set_to == said, (cell.label, what)


def test_labels_do_name_settings() -> None:
    """The test above reads most columns; without this it could read none."""
    (cell,) = (c for c in find("fedfsa:figure-5") if c.label == "Reverse, cifar100, resnet18")
    assert [what for what, *_ in settings_named(cell.column, cell.experiment)] == ["dataset", "model"]
    sweeps = [cell for paper in PAPERS for cell in find(paper) if re.search(r"[a-z_]+ [\d.]+$", cell.column)]
    assert len(sweeps) > 150
    assert all(list(settings_named(cell.column, cell.experiment)) for cell in sweeps)


# ---- protocols, as the papers state them ---------------------------------------------------------------------------


def experiment(spec: str, label: str) -> dict[str, Any]:
    (cell,) = (cell for cell in find(spec) if cell.label == label)
    return cell.experiment


def holds(setting: Mapping[str, Any], **said: Any) -> bool:
    return {name: setting[name] for name in said} == said


def test_protocol_of_fedfft() -> None:
    ours = experiment("fedfft:1", "FedFFT-D, cifar10, 0.1")
    assert holds(ours, rounds=800, participation=0.1, epochs=5, batch_size=50, lr=0.1, lr_decay=0.9995)
    assert holds(ours, weight_decay=1e-3, model="resnet18-gn")
    assert holds(ours["method"], name="fedfft-d", rho=0.1, ratio=0.01)
    assert holds(experiment("fedfft:1", "FedFFT, cifar100, 0.6"), rounds=800, epochs=2, batch_size=20, lr_decay=0.998)
    assert holds(experiment("fedfft:1", "FedSMOO-D, tiny-imagenet, 0.6"), rounds=300, epochs=5, lr_decay=0.9995)
    assert holds(experiment("fedfft:9", "FedAWA, cifar10"), rounds=400, model="resnet20-gn")
    assert experiment("fedfft:9", "FedAWA, cifar10")["partition"]["alpha"] == 0.1
    slow = {cell.row for cell in find("fedfft:1") if cell.experiment["lr_decay"] == 0.9995}
    assert slow == {"FedDyn", "FedSMOO-D", "FedLESAM-D", "FedFFT-D", "FedSAM-D"}


def test_protocol_of_specgradfilter() -> None:
    ours = experiment("specgradfilter:I", "SpecGradFilter, tiny-imagenet, 0.1")
    assert holds(ours, rounds=300, participation=0.1, epochs=5, batch_size=50, weight_decay=1e-3, model="resnet20-gn")
    assert holds(ours["method"], name="specgradfilter", base="fedavg", ratio=0.05)
    assert ours["partition"]["clients"] == 100
    assert experiment("specgradfilter:VI", "FedAvg, cifar10")["partition"]["alpha"] == 100
    assert experiment("specgradfilter:V", "FL, 5, cifar10, ours")["partition"]["alpha"] == 5
    targets = {cell.experiment["dataset"]: cell.target for cell in find("specgradfilter:VII")}
    assert targets == {"cifar10": 57, "cifar100": 27, "tiny-imagenet": 25}
    shift = experiment("specgradfilter:VIII", "FedCM, cifar10-c")
    assert holds(shift["partition"], kind="feature-shift", severity=3)
    # only the patch embedding of a ViT is filtered
    vits = [cell for cell in find("specgradfilter:II") if "vit" in cell.column and "Spec" in cell.row]
    assert len(vits) == 8
    assert all(cell.experiment["method"]["layers"] == ["patches.project.*"] for cell in vits)


def test_protocol_of_fedscam() -> None:
    first = experiment("fedscam:1", "FedSCAM, fashion-mnist, 0.1")
    second = experiment("fedscam:2", "FedAvg, cifar10, 0.5")
    assert holds(first, rounds=10, epochs=5, batch_size=256, lr=0.01, participation=1.0)
    assert holds(second, rounds=15, batch_size=64, lr=0.01, participation=1.0)
    assert holds(first["partition"], clients=10, min_size=10)
    assert holds(first["method"], name="fedscam", rho_max=0.05)
    assert {cell.experiment["method"]["beta"] for cell in find("fedscam:figure-26")} == {0, 0.8, 2}
    assert {cell.evaluation for cell in find("fedscam")} == {"last"}


def test_protocol_of_fedwmsam() -> None:
    assert {cell.experiment["rounds"] for cell in find("fedwmsam")} == {500}
    assert {cell.experiment["participation"] for cell in find("fedwmsam:2")} == {1.0}


def test_protocol_of_fedfsa() -> None:
    small = experiment("fedfsa:1", "FedFSA, fashion-mnist, Pat 5")
    large = experiment("fedfsa:1", "FedFSA, tiny-imagenet, Dir 0.3")
    assert holds(small, rounds=250, epochs=10, batch_size=48, lr=0.1, lr_decay=1.0, participation=0.1)
    assert small["model"] == "lenet-fsa"
    assert holds(large, rounds=500, lr_decay=0.998)
    assert holds(small["method"], rho=0.1, rho_larger=0.2, top=2, alpha=0.1)
    assert holds(large["method"], rho=0.05, rho_larger=0.9, top=2, alpha=0.1)
    deep = experiment("fedfsa:figure-3b", "FedFSA, cifar100, Dir 0.3")
    assert holds(deep["method"], rho=0.05, rho_larger=1.0, top=5)
    assert {cell.evaluation for cell in find("fedfsa")} == {"personal best"}


def test_questions_ask_nothing_that_was_reported() -> None:
    cells: list[Cell] = find("questions")
    assert all(cell.reported is None for cell in cells)
    asked = {"radius", "energy", "step", "resnet18", "sam-radius", "vectors", "split", "protocol", "together"}
    assert {cell.table for cell in cells} == asked | {"elsewhere"}


def test_the_question_of_the_split_changes_nothing_else() -> None:
    for row in ("FedAvg", "FedDyn", "FedCM", "SpecGradFilter"):
        for alpha in (0.1, 0.6):
            printed = experiment("specgradfilter:I", f"{row}, cifar10, {alpha}")
            assert experiment("questions:split", f"{row}, class-wise, {alpha}") == printed
            split = {"kind": "dirichlet", "form": "client-prior-refill", "clients": 100, "alpha": alpha}
            assert experiment("questions:split", f"{row}, balanced, {alpha}") == printed | {"partition": split}


def test_the_question_of_what_is_together_leaves_one_part_out_at_a_time() -> None:
    def changed(row: str, **change: Any) -> dict[str, Any]:
        method = experiment("questions:together", f"{row}, ResNet-18, 0.1")["method"] | change
        return {word: value for word, value in method.items() if value is not None}

    for whole, row, change in (
        ("keel", "long average", {"share": None}),
        ("keel", "slow rate", {}),
        ("slow rate", "slow rate, without the dual", {"base": "fedavg"}),
        ("long average", "long average, ratio 0.05", {"ratio": 0.05}),
        ("long average", "long average, without the dual", {"base": "fedavg"}),
        ("long average", "without the average", {"name": "specgradfilter", "decay": None}),
    ):
        assert changed(row) == changed(whole, **change)


def test_keel_is_asked_elsewhere_as_it_is_asked_together() -> None:
    here = experiment("questions:together", "keel, ResNet-20, class-wise, 0.1")
    assert experiment("questions:elsewhere", "keel, cifar10, 0.6") == here | {
        "partition": here["partition"] | {"alpha": 0.6}
    }
    assert experiment("questions:elsewhere", "keel, cifar100, 0.1") == here | {"dataset": "cifar100"}


def test_the_question_of_the_protocol_changes_one_thing_at_a_time() -> None:
    changes = {"decay 0.998": {"lr_decay": 0.998}, "not augmented": {"augment": "none"}, "lr 0.2": {"lr": 0.2}}
    for row in ("FedAvg", "SpecGradFilter"):
        chosen = experiment("questions:split", f"{row}, balanced, 0.1")
        assert experiment("questions:protocol", f"as chosen, {row}") == chosen
        for what, change in (changes | {"no clip": {"clip": 0.0}}).items():
            assert experiment("questions:protocol", f"{what}, {row}") == chosen | change

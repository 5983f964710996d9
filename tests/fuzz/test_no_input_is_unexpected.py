"""Whatever a file, a folder, a ledger or a command line holds: it is taken, or refused in one line with its reason.

Each case follows from its number alone. A slice of them runs always, ten thousand of each kind with the slow tests.
"""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path
from random import Random

import nasty
import pytest

import fedkeel as fk
from fedkeel.cli import run as run_command
from fedkeel.cli.main import call
from fedkeel.cli.settings import Request, read_request
from fedkeel.data import DATASETS, load
from fedkeel.data.partition.registry import PARTITIONS
from fedkeel.errors import FedkeelError
from fedkeel.methods import METHODS
from fedkeel.models import MODELS
from fedkeel.papers import find, ledger
from fedkeel.papers.discrepancies import contradictions
from fedkeel.papers.verdicts import judge
from fedkeel.report.content import content
from fedkeel.report.page import page
from fedkeel.report.source import Source
from fedkeel.rules import RULES
from fedkeel.runs.experiment import Experiment
from fedkeel.runs.prepare import divide
from fedkeel.studies.caveats import machines, unfair, unfinished
from fedkeel.studies.compare import Comparison
from fedkeel.studies.run_groups import group_runs

SLICE, ALL, STRETCH = 100, 10_000, 500
CASES = [
    pytest.param(range(SLICE), id="slice"),
    *(
        pytest.param(range(first, first + STRETCH), id=f"{first}", marks=pytest.mark.slow)
        for first in range(SLICE, ALL + SLICE, STRETCH)
    ),
]


def refused(error: FedkeelError) -> None:
    """One line that is no novel, and nothing that a terminal would obey."""
    assert error.message
    assert "\n" not in error.message, error.message
    assert len(error.message) < 1500, len(error.message)
    assert "unexpected error" not in error.message


# ---- TOML ----------------------------------------------------------------------------------------------------------
SAM = {"rule": "Sam", "rho": 0.1}
IID = {"kind": "iid", "clients": 5}
PARTS = [
    {"method": "fedavg", "rounds": 3, "seed": 0},
    {"model": "mlp", "method": {"name": "fedsam", "rho": 0.1}, "lr": 0.1, "lr_decay": 0.9, "clip": 1.0},
    {"partition": {"kind": "dirichlet", "alpha": 0.3, "clients": 10, "form": "hsu", "min_size": 1}},
    {"partition": {"kind": "pathological", "classes": 2, "clients": 5, "form": "shards"}},
    {"partition": {"kind": "quantity-skew", "alpha": 1.0, "clients": 5, "min_size": 2}},
    {"partition": {"kind": "long-tail", "imbalance": 10.0, "base": IID}},
    {"partition": {"kind": "feature-shift", "severity": 2, "fewest": 1, "most": 2, "base": "iid:clients=5"}},
    {"evaluation": {"model": "local", "share": 0.3, "tune": True, "batch": 10, "last": 3}},
    {"epochs": [1, 3], "participation": "bernoulli:0.1", "participants": [[0, 1]] * 3, "rounds": 3},
    {"schedule": {"name": "cosine", "end": 0.1, "warmup": 1, "rounds": 3, "by": "step"}, "steps": 4, "rounds": 3},
    {"server_schedule": {"name": "step", "milestones": [1], "factor": 0.5}, "epochs": 0.5, "rounds": 3},
    {"on_nonfinite": "drop", "buffers": "keep", "unavailable": 0.1, "validation": 0.2, "init": "x"},
    {"method": {"name": "mine", "perturb": [SAM], "gradient": [{"rule": "HighPass", "ratio": 0.1}], "server_lr": 1.0}},
    {"method": {"name": "mine", "weights": {"rule": "BySize"}, "phases": [
        {"perturb": [SAM], "batches": 2, "objective": {"objective": "calibrated", "tau": 0.5}},
        {"epochs": 0.5, "trains": False, "uploads": False, "objective": "value"},
    ]}},
    {"method": [{"name": "fedfsa", "top": 1}, "fedprox"], "seed": [0, 1]},
]  # fmt: skip
TABLES = [{"dataset": "digits", "model": "logistic"} | part for part in PARTS]
KEYS = ("dataset", "model", "method", "partition", "rounds", "epochs", "lr", "seed", "kind", "form", "base", "rule")
WORDS = [*METHODS, *MODELS, *PARTITIONS, *RULES, *DATASETS]


def toml_case(random: Random, folder: Path) -> None:
    table = random.choice(TABLES)
    if random.random() < 0.3:
        table = table | {"method": {"name": random.choice(list(METHODS))}}
    data = nasty.changed(random, table, random.randrange(1, 4), KEYS)
    if random.random() < 0.2:  # a word that is known, but elsewhere
        place, key = nasty.walk(random, data)
        if key is not None:
            place[key] = random.choice(WORDS)
    text = nasty.as_toml(data).encode("utf-8", "surrogatepass")
    file = folder / "experiment.toml"
    file.write_bytes(nasty.damaged(random, text) if random.random() < 0.2 else text)
    try:
        for asked in read_request(Request(file=file)):
            asked.experiment.fingerprint()
            if asked.experiment.dataset == "digits":
                divide(asked.experiment.plan, load("digits"))
            Experiment.load(asked.experiment.save())
    except FedkeelError as error:
        refused(error)


# ---- command lines -------------------------------------------------------------------------------------------------
COMMANDS = {
    "run": ["--method", "--dataset", "--model", "--partition", "--rounds", "--seeds", "--set", "--engine", "--device",
            "--workers", "--precision", "--out", "--track", "--json", "--no-progress"],
    "doctor": [], "methods": [], "models": [], "cite": [], "export": [],
    "datasets": ["--partition", "--seed"],
    "compare": ["--target", "--baseline", "--json"],
    "report": ["--out", "--target", "--title", "--ledger"],
    "resume": ["--engine", "--rounds"],
    "analyse": ["--clients", "--samples", "--radius", "--rho", "--points", "--bands", "--directions"],
    "sweep": ["--out", "--target"],
    "reproduce": ["--cell", "--rounds", "--seeds", "--set", "--try", "--dry-run", "--list", "--ledger", "--out"],
}  # fmt: skip
SOUND = {
    "--method": "fedavg,fedsam", "--dataset": "digits", "--model": "logistic", "--partition": "iid:clients=5",
    "--rounds": "2", "--seeds": "0,1", "--engine": "serial", "--device": "cpu", "--workers": "2", "--out": "out",
    "--precision": "float64", "--track": "drift", "--seed": "1", "--target": "0.5", "--baseline": "scaffold",
    "--title": "t", "--clients": "3", "--samples": "9", "--radius": "0.5", "--rho": "0.1", "--points": "5",
    "--bands": "4", "--directions": "eigen", "--cell": "FedAvg, cifar10, 0.1", "--ledger": "ledger.jsonl",
}  # fmt: skip
FLAGS = ("--json", "--no-progress", "--dry-run", "--list")
SETS = ["lr", "rounds", "seed", "epochs", "method.rho", "method", "partition", "partition.alpha", "clip", "x", "",
        "evaluation.share", "participants", "model", "init", "a.b.c", "partition.form", "partition.base.x",
        "schedule", "schedule.warmup", "steps"]  # fmt: skip


def word(random: Random) -> str:
    kind = random.random()
    if kind < 0.3:
        return random.choice(WORDS)
    if kind < 0.4:
        return nasty.whole(random.choice(nasty.NUMBERS))
    if kind < 0.5:
        return "[" * random.choice([3, 2000]) + "]" * random.choice([3, 2000])
    return random.choice(nasty.TEXTS)


def command_line(random: Random, folder: Path) -> list[str]:
    """A command with options, most of them sound, so that the others are reached."""
    command = random.choice([*COMMANDS, "run", "run", "run"]) if random.random() < 0.97 else word(random)
    known = [str(folder), str(folder / "experiment.toml"), "fedfft:1", "digits", "fedsam", "logistic"]
    sound = [
        random.choice(known) if random.random() < 0.7 else word(random) for _ in range(random.choice([0, 1, 1, 2]))
    ]
    words = [command, *([] if command == "run" and random.random() < 0.6 else sound)]
    for _ in range(random.randrange(4)):
        option = random.choice(COMMANDS.get(command) or ["--x", "-h", "--version"])
        words.append(option)
        if option in ("--set", "--try"):
            words.append(f"{random.choice(SETS)}={word(random)}")
        elif option not in FLAGS:
            words.append(SOUND.get(option, "x") if random.random() < 0.5 else word(random))
    return [text.replace("\x00", "") for text in words]  # no system passes that on


@pytest.fixture
def without_training(monkeypatch, tmp_path, capsys):
    """Commands end where training, or anything else that takes long, would begin."""
    monkeypatch.setattr(run_command, "carry_out", lambda *args, **more: [])
    monkeypatch.setattr(run_command, "report_on", lambda *args, **more: None)
    monkeypatch.setattr("fedkeel.cli.reproduce.carry_out", lambda *args, **more: 0)
    monkeypatch.setattr("fedkeel.cli.reproduce.show_verdicts", lambda *args, **more: None)
    monkeypatch.setattr("fedkeel.cli.reproduce.show_costs", lambda *args, **more: None)
    monkeypatch.setattr("fedkeel.cli.models.count_parameters", lambda card: 1)
    monkeypatch.setattr("fedkeel.catalogue.cards.cards", list)
    monkeypatch.setattr("fedkeel.studies.diagnose.analyse", lambda *args, **more: {})
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDKEEL_TRACEBACK", raising=False)
    return capsys


def cli_case(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code = call(words)
    told = capsys.readouterr().err
    assert code in (0, 1, 2), (words, code)
    assert "unexpected error" not in told, (words, told)
    assert "Traceback" not in told, (words, told)
    if code:
        assert told.strip(), words


# ---- run folders ---------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    settings = {"partition": "iid:clients=5", "model": "logistic", "rounds": 3, "epochs": 1, "participation": 0.4}
    fk.run(fk.Experiment(dataset="digits", method="scaffold", **settings), out=path, engine="serial")
    return path


FILES = ("experiment.toml", "rounds.jsonl", "result.json", "environment.json", "timing.json", "checkpoint")


def folder_case(random: Random, path: Path) -> None:
    """Damage a file, or what a line of it says, and have the folder read by all that reads folders."""
    name = random.choice(FILES)
    file = sorted((path / name).glob("*"))[-1] if name == "checkpoint" else path / name
    before = file.read_bytes()
    act = random.random()
    if act < 0.06:
        file.unlink()
    elif act < 0.1:
        file.unlink()
        file.mkdir()
    elif name == "experiment.toml" and act < 0.6:
        data = nasty.changed(random, tomllib.loads(before.decode()), random.randrange(1, 3), KEYS)
        file.write_bytes(nasty.as_toml(data).encode("utf-8", "surrogatepass"))
    elif name.endswith("json") and act < 0.6:
        file.write_text(nasty.as_json(nasty.changed(random, json.loads(before), random.randrange(1, 3))))
    elif name.endswith("jsonl") and act < 0.7:
        lines = [json.loads(line) for line in before.splitlines()]
        lines = nasty.changed(random, lines, random.randrange(1, 4))
        file.write_text("".join(nasty.as_json(line) + "\n" for line in lines))
    else:
        file.write_bytes(nasty.damaged(random, before))
    try:
        for read in (compared, reported) if random.random() < 0.15 else (compared,):
            try:
                read(path)
            except FedkeelError as error:
                refused(error)
    finally:
        if file.is_dir():
            file.rmdir()
        file.write_bytes(before)


def compared(path: Path) -> None:
    groups = group_runs([fk.load_run(path)])
    Comparison.of(groups).document()
    unfair(groups)
    unfinished(groups)
    machines(groups)


def reported(path: Path) -> None:
    page(content([Source.read(path)]))


# ---- the ledger ----------------------------------------------------------------------------------------------------
def lines_of_the_ledger() -> list[dict]:
    file = Path(__file__).parents[2] / "results" / "ledger.jsonl"
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if line["paper"] == "fedfft"][:4]


def ledger_case(random: Random, path: Path, lines: list[dict]) -> None:
    mine = nasty.changed(random, lines, random.randrange(1, 5))
    text = "".join(nasty.as_json(line) + "\n" for line in mine).encode()
    path.write_bytes(nasty.damaged(random, text) if random.random() < 0.3 else text)
    try:
        entries = ledger.read(path)
        ledger.spent(entries)
        contradictions(judge(find("fedfft:1")[:8], entries), entries)
    except FedkeelError as error:
        refused(error)


# ---- all of them ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("numbers", CASES)
def test_experiment_files(numbers, tmp_path):
    for number in numbers:
        toml_case(Random(f"toml {number}"), tmp_path)


@pytest.mark.parametrize("numbers", CASES)
def test_command_lines(numbers, without_training, whole_run, tmp_path):
    for number in numbers:
        cli_case(command_line(Random(f"cli {number}"), whole_run), without_training)


@pytest.mark.parametrize("numbers", CASES)
def test_run_folders(numbers, whole_run, tmp_path, request):
    if numbers.start == 0:  # the slow ones write their charts too
        request.getfixturevalue("drawn_only")
    path = tmp_path / "run"
    shutil.copytree(whole_run, path)
    for number in numbers:
        folder_case(Random(f"folder {number}"), path)


@pytest.mark.parametrize("numbers", CASES)
def test_ledgers(numbers, tmp_path):
    lines = lines_of_the_ledger()
    for number in numbers:
        ledger_case(Random(f"ledger {number}"), tmp_path / "ledger.jsonl", lines)

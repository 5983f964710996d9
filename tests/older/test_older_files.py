"""What older versions wrote stays readable: runs, a sweep, a ledger, settings, an exported app."""

import importlib.util
import json
import shutil
from pathlib import Path

import pytest
from for_each import for_each

import fedkeel as fk
from fedkeel.cli import training
from fedkeel.papers import ledger

HERE = Path(__file__).parent
RUNS = sorted(path.parent.relative_to(HERE).as_posix() for path in HERE.rglob("result.json"))
CHANGED = {"fedspeed@released", "fedgloss@released", "fedawa@released", "fedfsa@released", "fedala"}
"""Methods whose arithmetic was corrected since, and so must not be taken for what they were."""


@pytest.fixture
def older(fedkeel, tmp_path):
    """A copy of the files, as the current folder; the command line."""
    for path in HERE.iterdir():
        if path.suffix not in (".py", ".pyc") and path.name != "__pycache__":
            (shutil.copytree if path.is_dir() else shutil.copy)(path, tmp_path / path.name)
    return fedkeel


def numbers(folder):
    return json.loads((Path(folder) / "result.json").read_text())


def test_every_run_is_read_with_its_numbers(older):
    assert len(RUNS) == 13
    for folder in RUNS:
        run = fk.load_run(folder)
        assert run.result == numbers(folder)
        assert [record.round for record in run.records] == list(range(1, numbers(folder)["rounds"] + 1))
        assert all(value.isfinite().all() for value in run.params.values())
        if folder != "personal":
            assert run.experiment.fingerprint() == numbers(folder)["fingerprint"]


def test_an_old_run_goes_on_as_it_would_have(older):
    before = Path("finished/rounds.jsonl").read_bytes()
    done = older("resume", "finished", "--rounds", "6", "--engine", "serial", "--no-progress")
    assert done.code == 0, done.err
    expected = json.loads(Path("extended-result.json").read_text())
    found = numbers("finished")
    assert found.keys() == expected.keys()
    differing = {"model_digest", "best", "last", "mean_last"}  # sums round differently from one processor to the next
    assert {k: v for k, v in found.items() if k not in differing} == {
        k: v for k, v in expected.items() if k not in differing
    }
    for name in ("best", "last", "mean_last"):
        assert found[name] == pytest.approx(expected[name], abs=1e-3)
    assert Path("finished/rounds.jsonl").read_bytes().startswith(before)
    assert fk.load_run("finished").result == found


@pytest.mark.slow
def test_old_runs_are_compared_reported_and_cited(older, drawn_only):
    done = older("compare", "finished", "composed", "comparison", "--json")
    assert done.code == 0, done.err
    rows = {row["label"]: row for row in json.loads(done.out)["methods"]}
    assert rows.keys() == {"scaffold", "mine", "fedlc", "fedsol"}
    assert rows["scaffold"]["best"]["mean"] == numbers("finished")["best"]
    assert rows["fedlc"]["seeds"] == [0, 1]
    bests = [numbers(f"comparison/fedlc/{seed}")["best"] for seed in (0, 1)]
    assert rows["fedlc"]["best"]["mean"] == pytest.approx(sum(bests) / 2)
    done = older("report", "finished", "composed", "comparison", "personal", "-o", "page.html")
    assert done.code == 0, done.err
    data = json.loads(Path("page.html").read_text().split('id="data">')[1].split("</script>")[0])
    labels = {group["label"] for setting in data["settings"] for group in setting["groups"]}
    assert labels == {"scaffold", "mine", "fedlc", "fedsol", "fedper"}
    done = older("cite", "finished")
    assert (done.code, "karimireddy" in done.out.lower()) == (0, True)


def test_a_run_that_trained_on_its_test_copies_does_not_go_on(older):
    """Clients' own test samples were once set aside after samples had been repeated."""
    done = older("resume", "personal", "--rounds", "4")
    assert done.code == 2
    assert done.err.startswith("error: personal was begun when copies of validation or test samples were trained on")


def test_an_old_sweep_is_not_trained_again(older, monkeypatch):
    monkeypatch.setattr(training, "run", None)
    before = {path: path.read_bytes() for path in Path("sweep").rglob("*") if path.is_file()}
    done = older("sweep", "sweep.toml", "--out", "sweep", "--engine", "serial", "--json", "--no-progress")
    assert done.code == 0, done.err
    assert {one["label"]: one["seeds"] for one in json.loads(done.out)["methods"]} == {
        "fedavg": [0, 1],
        "fedprox": [0, 1],
    }
    assert {path: path.read_bytes() for path in Path("sweep").rglob("*") if path in before} == before


def test_settings_that_leave_the_form_open_get_one_line(older):
    done = older("doctor", "experiment.toml")
    assert done.code == 0, done.err
    (line,) = [line for line in (done.out + done.err).splitlines() if "no form is given" in line]
    assert 'form = "client-prior-refill" brings it back' in line


def test_an_old_composition_is_the_method_it_was(older):
    """A method written as data, with an objective as a word and a number."""
    loaded = fk.Experiment.load(fk.load_run("composed").experiment.save())
    assert loaded.fingerprint() == numbers("composed")["fingerprint"]
    done = older("resume", "composed", "--rounds", "4", "--engine", "serial", "--no-progress")
    assert done.code == 0, done.err
    words = ["--set", "rounds=1", "--out", "new", "--engine", "serial", "--no-progress"]
    assert older("run", "composed.toml", *words).code == 0
    assert numbers("new")["fingerprint"] == numbers("composed")["fingerprint"]


@for_each(
    "file, changed",
    [
        ("fingerprints.json", CHANGED | {"fsa+fedspeed@released"}),
        ("fingerprints-1.0.0.json", set()),
        ("fingerprints-1.1.0.json", set()),
        ("fingerprints-1.2.0.json", set()),
    ],
)
def test_fingerprints_are_those_of_then(file, changed):
    """For every method of then; a method that computes something else since has another one."""
    then = json.loads((HERE / file).read_text())
    partition = "dirichlet:alpha=0.3,clients=10,form=client-prior-refill"
    now = {name: fk.Experiment(dataset="digits", method=name, partition=partition).fingerprint() for name in then}
    assert {name for name in then if then[name] != now[name]} == changed


@pytest.mark.slow
def test_an_old_ledger_is_read_and_drawn(older):
    entries = ledger.read(Path("ledger.jsonl"))
    assert [(entry.row, entry.measured) for entry in entries] == [
        ("FedAvg", 66.23), ("FedFFT", 58.099999999999994), ("FedSAM", 49.99),
    ]  # fmt: skip
    for entry, line in zip(entries, Path("ledger.jsonl").read_text().splitlines(), strict=True):
        assert json.loads(entry.dumps()).items() >= json.loads(line).items()
    for words in (
        ["report", "--ledger", "ledger.jsonl"],
        ["reproduce", "--page", "page.md", "--ledger", "ledger.jsonl"],
    ):
        assert older(*words).code == 0


def test_an_exported_app_still_starts(older):
    """Its two files import what they imported then."""
    pytest.importorskip("flwr", reason='needs flwr: pip install "fedkeel[flower]"')
    for name, kind in (("client_app", "ClientApp"), ("server_app", "ServerApp")):
        spec = importlib.util.spec_from_file_location(f"older_{name}", Path("app") / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        assert type(module.app).__name__ == kind


def test_the_experiment_of_an_app_is_read(older):
    """As far as that goes without Flower."""
    from fedkeel.runs.folder import read_experiment

    experiment = fk.Experiment.load(read_experiment(Path("app")))
    assert experiment.dataset == "digits"

"""Doors: what a file names is not run unasked, by no command, wherever in the file the name stands."""

import json
import shutil
import sys
import tomllib
from types import SimpleNamespace

import pytest
import tomli_w
from small_runs import SMALL, forge

import fedkeel as fk
from fedkeel.cli.main import call
from fedkeel.errors import FedkeelError, UntrustedError
from fedkeel.importing import Trust
from fedkeel.methods import build, composition

EVIL = """
import pathlib
pathlib.Path({marker!r}).touch()

import torch
from dataclasses import dataclass
import fedkeel as fk

@dataclass(frozen=True)
class Pull(fk.Rule):
    mu: float = 0.1

    def step(self, tree, client, at):
        return tree + self.mu * (at.params - at.start), client

@dataclass(frozen=True)
class Half(fk.Weighting):
    def __call__(self, reports, server):
        return torch.ones_like(reports["size"]) / len(reports["size"])

def pulled(mu: float = 0.1) -> fk.Method:
    return fk.method("pulled", gradient=Pull(mu), weights=fk.BySize())

def silent(mu=0.1):
    return pulled(mu)

def silent_net(classes, shape):
    return net(classes, shape)

def net(classes, shape) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, classes))

class Net(torch.nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.layer = torch.nn.Linear(64, classes)

    def forward(self, x):
        return self.layer(x.flatten(1))

def wipe(command: str = "") -> int:
    pathlib.Path({marker!r} + ".called").touch()
    return 0
"""
COMPOSED = {"name": "mine", "weights": {"rule": "BySize"}, "phases": [{"gradient": []}]}
RULE = {"rule": "evil:Pull", "mu": 0.2}
PLACES = {
    "the method": {"method": {"name": "evil:pulled"}},
    "a plug-in's base": {"method": {"name": "specgradfilter+evil:pulled"}},
    "a hyper-parameter": {"method": {"name": "specgradfilter", "base": "evil:pulled"}},
    "a gradient chain": {"method": COMPOSED | {"phases": [{"gradient": [RULE]}]}},
    "a perturb chain": {"method": COMPOSED | {"phases": [{"perturb": [RULE]}]}},
    "weights": {"method": COMPOSED | {"weights": {"rule": "evil:Half"}}},
    "the server": {"method": COMPOSED | {"server": [RULE]}},
    "personal rules": {"method": COMPOSED | {"personal": [RULE]}},
    "the final phase": {"method": COMPOSED | {"final": {"gradient": [RULE]}}},
    "a rule in a rule": {
        "method": COMPOSED | {"phases": [{"gradient": [{"rule": "On", "patterns": ["*"], "inner": RULE}]}]}
    },
    "the model": {"model": "evil:Net"},
    "a model's function": {"model": "evil:net"},
}
READERS = ("compare", "report", "cite", "export model", "load_run")
TRAINERS = ("run", "resume", "doctor", "analyse", "export flower")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A finished run, made once."""
    experiment = fk.Experiment(dataset="digits", model="logistic", rounds=1, partition="iid:clients=4")
    folder = tmp_path_factory.mktemp("made") / "run"
    fk.run(experiment, out=folder, engine="serial")
    return folder


@pytest.fixture
def hostile(made, tmp_path, monkeypatch, capsys):
    """A finished run in a folder that also holds `evil.py`; `with_` writes other things into its experiment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "evil", raising=False)
    marker = tmp_path / "ran"
    (tmp_path / "evil.py").write_text(EVIL.format(marker=str(marker)))
    shutil.copytree(made, tmp_path / "run")
    plain = tomllib.loads((tmp_path / "run" / "experiment.toml").read_text())

    def with_(changes):
        forge(tmp_path / "run", plain | changes)

    def fedkeel(command, *more):
        capsys.readouterr()
        words = {
            "run": ["run", "run/experiment.toml", "--out", "new"],
            "resume": ["resume", "run", "--rounds", "2"],
            "doctor": ["doctor", "run/experiment.toml"],
            "analyse": ["analyse", "run", "--drift", "--clients", "2"],
            "export flower": ["export", "flower", "run", "app"],
            "export model": ["export", "model", "run", "model.safetensors"],
            "compare": ["compare", "run"],
            "report": ["report", "run"],
            "cite": ["cite", "run"],
        }[command]
        code = call([*words, *more])
        return SimpleNamespace(code=code, **dict(zip(("out", "err"), capsys.readouterr(), strict=True)))

    yield SimpleNamespace(with_=with_, fedkeel=fedkeel, marker=marker, folder=tmp_path)
    sys.modules.pop("evil", None)


@pytest.mark.parametrize("place", PLACES)
def test_nothing_that_a_file_names_runs_unasked(hostile, drawn_only, place):
    """Every command, and every place of a name: readers read on, trainers refuse in one line; nothing is imported."""
    hostile.with_(PLACES[place])
    every = place in ("the method", "a gradient chain", "the model")
    for command in (*READERS, *TRAINERS) if every else ("load_run", "resume"):
        if command == "load_run":
            found = fk.load_run("run")
            assert found.records
            assert "evil:" in repr(found.experiment.save())
        else:
            done = hostile.fedkeel(command)
            assert "unexpected" not in done.err
            assert done.code == (0 if command in READERS else 2), (command, done.err)
            if command in TRAINERS:
                assert "evil:" in done.err
                assert "--trust" in done.err
        assert not hostile.marker.exists(), command
    assert "evil" not in sys.modules
    assert not (hostile.folder / "app").exists()


@pytest.mark.parametrize("place", ["the method", "a gradient chain", "weights", "the model", "a model's function"])
def test_with_trust_the_same_names_work_and_are_told(hostile, place):
    hostile.with_(PLACES[place])
    for command in ("doctor", "run", "export flower"):
        sys.modules.pop("evil", None)
        done = hostile.fedkeel(command, "--trust")
        assert done.code == 0, (command, done.err)
        assert "evil.py" in done.err
        assert "note: imported evil" in done.err
        assert "warning: imported" not in done.err
    assert hostile.marker.exists()
    assert "trust=True" in (hostile.folder / "app" / "client_app.py").read_text()


def test_an_app_without_code_of_its_own_trusts_nothing(hostile):
    assert hostile.fedkeel("export flower").code == 0
    assert "trust" not in (hostile.folder / "app" / "client_app.py").read_text()


@pytest.mark.parametrize(
    ("name", "place"),
    [
        *(("os:system", place) for place in ("method", "rule", "model", "weights")),
        ("subprocess:run", "method"),
        ("builtins:exec", "model"),
        ("evil:wipe", "method"),
        ("evil:wipe", "model"),
        ("evil:pathlib.Path", "rule"),
    ],
)
def test_what_is_no_method_rule_or_model_is_refused_also_with_trust(hostile, name, place):
    called = hostile.marker.with_name("ran.called")
    command = f"touch {called}"
    hostile.with_(
        {
            "method": {"method": {"name": name, "command": command}},
            "rule": {"method": COMPOSED | {"phases": [{"gradient": [{"rule": name, "command": command}]}]}},
            "weights": {"method": COMPOSED | {"weights": {"rule": name}}},
            "model": {"model": name},
        }[place]
    )
    for trainer in TRAINERS:
        done = hostile.fedkeel(trainer, "--trust")
        assert done.code == 2, done.err
        assert name in done.err
        assert "unexpected" not in done.err
    with pytest.raises(FedkeelError):
        fk.load_run("run", trust=True).model()
    assert not called.exists()


def test_a_function_that_says_nothing_is_taken_when_it_is_typed_only(hostile):
    """`resume --trust` and the like take what says what it is; a name that was typed is the user's own word."""
    assert build("evil:silent").name == "pulled"
    with pytest.raises(FedkeelError, match="does not say so, not a method") as caught:
        build("evil:silent", trust=Trust.FILE)
    assert "-> fk.Method" in caught.value.hint
    with pytest.raises(FedkeelError):
        build("evil:wipe")
    with pytest.raises(FedkeelError, match="part of Python"):
        build("os:system", {"command": "true"})


@pytest.mark.slow
def test_names_that_are_typed_work_as_before(hostile, capsys):
    words = ["run", *SMALL, "--rounds", "1", "--no-progress"]
    assert call([*words, "--method", "evil:pulled", "--set", "method.mu=0.3", "--out", "typed"]) == 0
    assert call([*words, "--model", "evil:Net", "--out", "net"]) == 0
    assert call([*words, "--set", "model=evil:net", "--out", "net2"]) == 0
    assert call(["cite", "evil:pulled"]) == 0
    assert call(["methods", "evil:silent"]) == 0
    base = ["--method", "specgradfilter", "--set", "method.base=evil:pulled"]
    assert call([*words, *base, "--out", "based"]) == 0
    own = fk.Experiment(dataset="digits", model="evil:Net", method="evil:silent", rounds=1)
    assert fk.run(own, engine="serial").model()
    capsys.readouterr()
    # the folder names the code now, so going on with it takes a word
    assert call(["resume", "typed", "--rounds", "2"]) == 2
    assert "'evil:Pull'" in (said := capsys.readouterr().err)
    assert said.count("\nhint: add --trust") == 1
    assert call(["resume", "typed", "--rounds", "2", "--trust"]) == 0
    assert call(["resume", "net", "--rounds", "2", "--trust"]) == 0


def test_a_run_says_at_once_that_its_folder_will_not_bring_the_network_back(hostile, capsys, caplog):
    words = ["run", *SMALL, "--rounds", "1", "--no-progress"]
    for model, told in (("silent_net", True), ("net", False)):
        assert call([*words, "--model", f"evil:{model}", "--out", model]) == 0
        assert (f"evil:{model} does not say what it returns" in capsys.readouterr().err) == told
        assert call(["resume", model, "--rounds", "2", "--trust"]) == (2 if told else 0)
    caplog.clear()
    fk.run(fk.Experiment(dataset="digits", model="evil:silent_net", rounds=1), engine="serial")
    assert "does not say" not in caplog.text  # without a folder nothing is brought back


@pytest.mark.parametrize(("method", "ends"), [("evil:pulled", " --trust"), ("fedavg", "")])
def test_the_command_that_goes_on_says_what_it_takes(hostile, method, ends):
    from fedkeel.cli.run import how_to_go_on
    from fedkeel.cli.training import Target

    experiment = fk.Experiment(dataset="digits", model="logistic", method=method)
    (hostile.folder / "run" / "result.json").unlink()
    assert how_to_go_on([Target(experiment, hostile.folder / "run", "x")]).endswith(f"run{ends}")


def test_a_typed_method_does_not_vouch_for_the_files_model(hostile):
    hostile.with_(PLACES["the model"])
    done = hostile.fedkeel("run", "--method", "fedavg")
    assert done.code == 2
    assert "evil:Net" in done.err
    assert hostile.fedkeel("run", "--model", "logistic").code == 0
    assert not hostile.marker.exists()


def test_a_run_of_someones_own_code_is_read_as_it_was_written(hostile):
    """Fingerprint, groups and tables are those of the same experiment with its code."""
    experiment = fk.Experiment(dataset="digits", model="evil:Net", method="evil:pulled", rounds=1)
    made = fk.run(experiment, out="own", engine="serial")
    read = fk.load_run("own")
    assert read.experiment.save() == experiment.save()
    assert read.result == made.result
    assert "evil:Pull(mu=0.1)" in repr(read.experiment.plan.method)
    with pytest.raises(UntrustedError, match="the rule 'evil:Pull'"):
        fk.run(read.experiment.with_(model="logistic"), engine="serial")
    with pytest.raises(UntrustedError, match="the model 'evil:Net'"):
        read.model()
    with pytest.raises(UntrustedError):
        fk.Experiment.load(experiment.save())
    assert fk.Experiment.load(experiment.save(), trust=True).plan.method == experiment.plan.method
    weights = read.model(trust=True).state_dict()
    assert weights.keys() == fk.load_run("own", trust=True).model().state_dict().keys() == made.params.keys()


def test_a_sweep_file_is_a_file(hostile, capsys):
    base = {"dataset": "digits", "rounds": 1, "validation": 0.2, "model": "logistic"}
    for changes in ({"methods": {"evil:pulled": {}}}, {"methods": {"fedavg": {}}, "model": "evil:Net"}):
        (hostile.folder / "sweep.toml").write_text(tomli_w.dumps(base | changes))
        capsys.readouterr()
        assert call(["sweep", "sweep.toml", "--no-progress"]) == 2
        assert "evil:" in (said := capsys.readouterr().err)
        assert "--trust" in said
    grid = {"methods": {"specgradfilter": {"method.base": ["evil:pulled"]}}}
    (hostile.folder / "sweep.toml").write_text(tomli_w.dumps(base | grid))
    assert call(["sweep", "sweep.toml", "--no-progress"]) == 2
    assert not hostile.marker.exists()
    (hostile.folder / "sweep.toml").write_text(tomli_w.dumps(base | {"methods": {"evil:pulled": {}}}))
    assert call(["sweep", "sweep.toml", "--no-progress", "--trust"]) == 0


def test_a_ledger_is_a_file(hostile, capsys, drawn_only):
    from fedkeel.papers import find

    cell = find("fedfft:1")[0]
    settings = {name: value for name, value in cell.experiment.items() if name != "rounds"}
    line = {
        "paper": "fedfft", "table": "1", "row": "x", "column": "y", "seed": 0, "kind": "accuracy", "evaluation": "best",
        "reported": None, "spread": None, "measured": None, "best": 1.0, "last": 1.0, "mean_last": 1.0, "rounds": 5,
        "rounds_paper": 5, "seconds": 1.0, "fingerprint": "f", "model_digest": "d",
        "environment": {"device": "<script>x"},
    }  # fmt: skip
    methods = (PLACES["the method"]["method"], PLACES["a gradient chain"]["method"], {"name": "os:system"})
    entries = [line | {"seed": seed, "settings": settings | {"method": one}} for seed, one in enumerate(methods)]
    (hostile.folder / "ledger.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    for words in (
        ["reproduce", "fedfft:1", "--dry-run", "--ledger", "ledger.jsonl"],
        ["reproduce", "--page", "page.md", "--ledger", "ledger.jsonl"],
        ["report", "--ledger", "ledger.jsonl"],
    ):
        assert call(words) == 0, capsys.readouterr().err
    for page in ("page.md", "report.html"):
        assert "<script>x" not in (hostile.folder / page).read_text()
    assert not hostile.marker.exists()


def test_entry_points_of_installed_packages_are_trusted_and_the_current_folder_is_not(tmp_path, monkeypatch, hostile):
    def package(place):
        (place / "evil-1.dist-info").mkdir(parents=True)
        (place / "evil-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1\n")
        (place / "evil-1.dist-info" / "entry_points.txt").write_text("[fedkeel]\npull = evil:Pull\n")

    package(tmp_path)
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), *sys.path])
    with pytest.raises(UntrustedError):
        fk.Experiment.load({"dataset": "digits", **PLACES["a gradient chain"]})
    site = tmp_path / "site"
    package(site)
    (site / "evil.py").write_text(EVIL.format(marker=str(tmp_path / "installed")))
    sys.path.append(str(site))
    monkeypatch.setattr("site.getsitepackages", lambda: [str(site)])
    loaded = fk.Experiment.load({"dataset": "digits", **PLACES["a gradient chain"]})
    assert type(loaded.plan.method.phases[0].gradient[0]).__name__ == "Pull"
    assert (tmp_path / "installed").exists()
    assert not hostile.marker.exists()  # the module of that name in the current folder was not taken for it
    with pytest.raises(UntrustedError):  # the package vouches for this name alone
        fk.Experiment.load({"dataset": "digits", **PLACES["the method"]})


@pytest.mark.parametrize("which", ["hf-hub:someone/net", "local-dir:/tmp/net", "a/b"])
def test_addresses_of_timm_need_trust(which):
    with pytest.raises(UntrustedError):
        fk.Experiment.load({"dataset": "digits", "model": f"timm:{which}"})
    assert fk.Experiment.load({"dataset": "digits", "model": "timm:resnet10t"}).model == "timm:resnet10t"


def test_loading_a_composition_imports_nothing_by_itself(hostile):
    data = COMPOSED | {"phases": [{"gradient": [RULE]}]}
    assert composition.save(composition.load(data))["phases"] == data["phases"]
    assert not hostile.marker.exists()
    composition.load(data, Trust.FILE)
    assert hostile.marker.exists()


def test_a_network_of_ours_on_a_split_of_ones_own_is_given_with_trust(tmp_path, monkeypatch):
    (tmp_path / "thirds.py").write_text(
        "import numpy as np\n\n\nclass Thirds:\n    repeats = False\n\n"
        "    def divide(self, labels, key, *, groups=None):\n        return np.array_split(np.arange(len(labels)), 3)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    given = dict(dataset="digits", model="logistic", partition="thirds:Thirds", rounds=1, epochs=1)
    made = fk.run(fk.Experiment(**given), out="run", engine="serial")
    with pytest.raises(UntrustedError, match="the partition 'thirds:Thirds'"):
        fk.load_run("run").model()
    assert fk.load_run("run").model(trust=True).state_dict().keys() == made.params.keys()

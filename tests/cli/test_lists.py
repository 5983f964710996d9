"""`methods`, `datasets`, `models`, `doctor`, `cite`, `export`: what they say is what there is."""

import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from for_each import for_each
from safetensors import safe_open
from small_runs import SMALL

import fedkeel as fk
from fedkeel.catalogue import cards
from fedkeel.cli.doctor import list_extras
from fedkeel.cli.estimate import estimate
from fedkeel.data import import_from, load
from fedkeel.runs.experiment import Experiment
from fedkeel.runs.participation import Participation


def rows(text):
    """First words of the lines of a table."""
    return [line.split()[0] for line in text.splitlines() if line.strip()]


def test_every_method_data_set_and_model_is_listed(fedkeel, monkeypatch, constant_weights):
    one = cards.costs(fk.METHODS["fedavg"]())
    monkeypatch.setattr(cards, "costs", lambda method: one)  # each method would be trained to count them
    for command, known in (("methods", fk.METHODS), ("datasets", fk.DATASETS), ("models", fk.MODELS)):
        done = fedkeel(command)
        assert done.code == 0
        assert set(known) <= set(rows(done.out))


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedfft-d"])
def test_a_card_names_every_rule_and_hyperparameter(fedkeel, name):
    out = fedkeel("methods", name).out
    for rule in fk.METHODS[name]().rules:
        assert repr(rule) in out
    assert "backward passes" in out
    assert f"fedkeel run --method {name}" in out


def test_the_card_says_what_neutral_values_mean(fedkeel):
    out = fedkeel("methods", "fedfft-d").out
    assert re.search(r"method\.rho +0\.1 +rho = 0 takes the gradient at w", out)
    assert re.search(r"method\.ratio +0\.01 +ratio = 0 changes nothing", out)


def test_the_parameters_of_models_are_counted(fedkeel, constant_weights):
    out = fedkeel("models").out
    assert re.search(r"resnet20-gn +272 474 ", out)
    assert re.search(r"resnet18-gn +11 181 642 ", out)
    assert "11 181 642 for 10 classes, images of 3×32×32" in fedkeel("models", "resnet18-gn").out


# ---- data sets ----
def test_which_data_sets_are_here(fedkeel):
    out = fedkeel("datasets").out
    assert re.search(r"digits .* yes ", out)
    assert re.search(r"cifar10 .* no ", out)


def test_a_data_set_card_gives_its_preset_as_one_would_type_it(fedkeel):
    out = fedkeel("datasets", "cifar10").out
    assert re.search(r"partition +dirichlet:alpha=0.1,clients=100", out)
    assert "@techreport{krizhevsky2009learning" in out


def test_a_partition_is_the_one_that_an_experiment_has(fedkeel):
    out = fedkeel("datasets", "digits", "--partition", "pathological:classes=2,clients=10", "--seed", "3").out
    assert re.search(r"clients +10\n", out)
    assert re.search(r"classes per client +2\.0 of 10", out)
    assert re.search(r"unused samples +\d+\n", out)
    assert "class 9" in out
    other = fedkeel("datasets", "digits", "--partition", "pathological:classes=2,clients=10", "--seed", "4").out
    assert other.splitlines()[1:] != out.splitlines()[1:]


def test_a_figure_of_the_preset(fedkeel):
    done = fedkeel("datasets", "digits", "--figure", "p.svg")
    assert done.code == 0
    assert done.out.splitlines()[-1] == "p.svg"
    assert "<svg" in Path("p.svg").read_text()


@pytest.mark.parametrize(
    "words",
    [
        ["datasets", "digits", "--partition", "iid:clients=2"], ["datasets", "digits", "--figure", "p.svg"],
        ["methods", "fedavg", "--pages", "here"],
    ],
)  # fmt: skip
def test_what_a_json_document_does_not_hold_is_refused_beside_it(fedkeel, words):
    done = fedkeel(*words, "--json")
    assert done.code == 2
    assert "leave out --json" in done.err
    assert not done.out
    assert not Path(words[-1]).exists()


@pytest.mark.parametrize(("words", "check"), [([], True), (["--no-check"], False)])
def test_importing_passes_the_path_on(fedkeel, monkeypatch, words, check):
    seen = {}

    def note(name, path, root=None, check=True, progress=None):
        seen.update(name=name, path=path, check=check)
        progress("train_images", 1, 2)
        progress("train_images", 2, 2)

    assert import_from.__module__ == "fedkeel.data.storage.loading"
    monkeypatch.setattr("fedkeel.data.import_from", note)
    done = fedkeel("datasets", "mnist", "--from", "files", *words)
    assert seen == {"name": "mnist", "path": Path("files"), "check": check}
    assert done.err == "mnist: train_images\n"


# ---- doctor ----
def test_the_doctor_names_every_engine_and_the_data_folder(fedkeel, tmp_path):
    from fedkeel.engines.choose import ENGINES

    done = fedkeel("doctor")
    assert done.code == 0
    assert set(ENGINES) <= set(rows(done.out))
    assert str(tmp_path / "data") in done.out
    assert torch.__version__.partition("+")[0] in done.out  # a local build is "2.11.0+cu130" there


def test_missing_extras_come_with_the_command():
    required = ["numpy>=1.26", 'numpy>=1; extra == "here"', "not-there-at-all>=3 ; extra == 'gone'"]
    told = dict(list_extras([*required, 'scikit-learn>=1; extra == "named"']))
    assert told["here"] == told["named"] == "installed"  # a package may be called otherwise than its module
    assert told["gone"] == "needs not-there-at-all: pip install 'fedkeel[gone]'"


def test_the_memory_of_an_experiment(fedkeel, constant_weights):
    Path("e.toml").write_text('dataset = "cifar10"\nmodel = "small-cnn"\nmethod = ["fedavg", "scaffold"]\nrounds = 5\n')
    out = fedkeel("doctor", "e.toml").out
    assert out.count("357 258 parameters") == 2
    assert "up to 50 of them" in out  # 5 rounds of 10 clients, of 100
    assert "every layer, by kernels" in out


OWN_PROBLEM = """
import torch, fedkeel as fk
class Centred(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x - x.mean(0))
samples = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 3
problem = fk.Problem(model=Centred(4, 3), loss=torch.nn.functional.cross_entropy, clients=[samples, samples])
"""


def test_doctor_tries_the_network_of_a_problem_of_ones_own(fedkeel, monkeypatch):
    monkeypatch.syspath_prepend(".")
    Path("doctored_problem.py").write_text(OWN_PROBLEM)
    Path("e.toml").write_text('problem = "doctored_problem:problem"\nparticipation = 1.0\n')
    out = fedkeel("doctor", "e.toml", "--trust").out
    assert "15 parameters" in out
    assert "from 2 clients a round" in out
    assert re.search(r"stacked +linear\n +batches +of one size at a time, because samples meet", out)


SEQUENCES = """
import torch, fedkeel as fk
from torch.nn.utils.rnn import pack_padded_sequence
class Packed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.out = torch.nn.LSTM(2, 3, batch_first=True), torch.nn.Linear(3, 2)
    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        return self.out(self.lstm(packed)[1][0][-1])
def make(longest):
    x = torch.rand(6, longest, 2, generator=torch.Generator().manual_seed(0))
    return x, torch.arange(longest - 5, longest + 1), torch.arange(6) % 2
def shorten(raw, keys=None):
    return raw[0][:, : int(raw[1].max())], *raw[1:]
given = {"model": Packed(), "loss": torch.nn.functional.cross_entropy}
whole = fk.Problem(clients=[make(8), tuple(part[:5] for part in make(8))], **given)
batch = fk.Problem(clients=[make(8), tuple(part[:5] for part in make(8))], prepare=shorten, **given)
"""


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        ("whole", "this model cannot be stacked: it reads a number out of a tensor (doctored_sequences.py, line 10)"),
        ("batch", "the samples of clients differ in shape, so they cannot be stacked: (7, 2) and (8, 2)"),
    ],
)
def test_the_doctor_and_a_run_give_one_reason_why_sequences_are_not_stacked(fedkeel, monkeypatch, problem, reason):
    monkeypatch.syspath_prepend(".")
    Path("doctored_sequences.py").write_text(SEQUENCES)
    Path("e.toml").write_text(f'problem = "doctored_sequences:{problem}"\nparticipation = 1.0\nrounds = 1\n')
    assert f"serial  {reason}; the engine auto" in fedkeel("doctor", "e.toml", "--trust").out
    done = fedkeel("run", "e.toml", "--trust", "--engine", "stacked", "--out", "refused")
    assert done.code == 2
    assert f"error: {reason}" in done.err
    assert fedkeel("run", "e.toml", "--trust", "--out", "trained").code == 0


@pytest.mark.parametrize("data", ['problem = "doctored_tests:problem"', 'dataset = "digits"\nmodel = "mlp"'])
@pytest.mark.parametrize("model", ["local", "global"])
def test_doctor_sets_test_shares_aside_as_a_run_does(fedkeel, monkeypatch, data, model):
    monkeypatch.syspath_prepend(".")
    Path("doctored_tests.py").write_text(OWN_PROBLEM)
    text = f'{data}\nparticipation = 1.0\n[evaluation]\nmodel = "{model}"\nshare = '
    Path("e.toml").write_text(text + "0.25\n")
    done = fedkeel("doctor", "e.toml", "--trust")
    assert done.code == 0
    assert ("clients  0 B each" in done.out) == (model == "global")  # else each client's last model is kept
    Path("e.toml").write_text(text + "0.0\n")
    assert "set evaluation.share" in fedkeel("doctor", "e.toml", "--trust").err


def test_memory_counts_the_slots_of_server_and_clients():
    plain, variates = (estimate(Experiment(dataset="digits", model="mlp", method=m)) for m in ("fedavg", "scaffold"))
    model = 4 * plain.parameters
    assert (plain.server, plain.client) == (model, 0)
    assert (variates.server, variates.client) == (2 * model, model)
    states = 2 * model + model * (variates.likely + variates.selected)
    assert variates.total - plain.total == pytest.approx(states + variates.selected * model, abs=2)
    assert variates.clients == 20
    assert variates.likely == pytest.approx(20, abs=0.1)


@for_each(("participation", "rounds"), product((0.1, "shuffled:0.1", "shuffled:0.3", "shuffled:0.6"), (1, 4, 9, 25)))
def test_memory_is_of_as_many_clients_as_have_taken_part(participation, rounds):
    """On average over seeds. With 0.3 two of twenty sit a pass out, and with 0.6 a round is a pass."""
    likely = estimate(Experiment(dataset="digits", model="mlp", participation=participation, rounds=rounds)).likely
    sizes = np.ones(20, dtype=np.int64)
    draws = [Participation(seed, sizes, participation) for seed in range(400)]
    seen = [len({client for round in range(rounds) for client in one.selected(round)}) for one in draws]
    assert likely == pytest.approx(np.mean(seen), abs=0.25)


def test_memory_is_of_the_clients_that_a_natural_partition_keeps(monkeypatch):
    """Thirty owners, whose numbers have gaps, of 3 to 32 samples."""
    digits = load("digits")
    owners = np.repeat(7 * np.arange(30), np.arange(3, 33))
    few = replace(digits, groups=owners, train_labels=digits.train_labels[: len(owners)])
    monkeypatch.setattr("fedkeel.cli.estimate.load", lambda name: few)
    kept = {"natural": 30, "natural:most=4": 4, "natural:share=0.2": 6, "natural:min_size=30": 3,
            "feature-shift:base=natural:most=4": 4}  # fmt: skip
    for partition, clients in kept.items():
        need = estimate(Experiment(dataset="digits", model="mlp", partition=partition, participation=1.0, rounds=1))
        assert (need.clients, need.selected) == (clients, clients), partition


def test_memory_of_texts():
    lstm = Experiment(dataset="yahoo-answers", partition="iid:clients=10")
    assert estimate(lstm).parameters > 0


# ---- cite and export ----
def test_a_method_cites_its_papers_once(fedkeel):
    out = fedkeel("cite", "fedfft-s").out
    assert out.count("@") == len(re.findall(r"^@", out, re.MULTILINE)) == len(set(fk.METHODS["fedfft-s"]().papers))
    assert "Taming Client Drift" in out


def test_a_folder_of_runs_with_the_name_of_a_method_hides_no_method(fedkeel):
    before = fedkeel("cite", "fedprox").out
    Path("fedprox/0").mkdir(parents=True)
    assert fedkeel("cite", "fedprox").out == before != ""


def test_a_run_cites_its_data_set_too(fedkeel, trained):
    (run,) = trained("--method", "fedprox")
    out = fedkeel("cite", run["folder"]).out
    assert "Federated Optimization in Heterogeneous Networks" in out
    assert "Optical Recognition of Handwritten Digits" in out


def test_an_exported_model_is_the_runs_model(fedkeel, trained):
    (run,) = trained("--method", "fedavg")
    done = fedkeel("export", "model", run["folder"], "new/m.safetensors")
    assert (done.code, done.out) == (0, "new/m.safetensors\n")
    expected = fk.load_run(run["folder"]).model().state_dict()
    with safe_open("new/m.safetensors", framework="pt") as file:
        assert set(file.keys()) == set(expected)
        assert all(torch.equal(file.get_tensor(name), tensor) for name, tensor in expected.items())


def test_an_export_tells_of_layers_that_only_clients_train(fedkeel, trained):
    for method, told in (("fedper", True), ("fedavg", False)):
        (run,) = trained("--method", method)
        done = fedkeel("export", "model", run["folder"], "m.safetensors")
        assert ("clients keep to themselves: the head. In the file these are as the run began" in done.err) is told


def test_an_exported_model_starts_another_experiment(fedkeel, trained):
    (run,) = trained("--method", "fedavg")
    fedkeel("export", "model", run["folder"], "m.safetensors")
    done = fedkeel("run", *SMALL, "--rounds", "1", "--method", "fedavg", "--set", "init=m.safetensors", "--out", "b")
    assert done.code == 0

"""What a shell completes, and lists as JSON."""

import json

import pytest

import fedkeel as fk
from fedkeel.catalogue import cards
from fedkeel.cli import completion


def test_the_last_of_several_names_is_completed():
    assert completion.complete_methods("fedavg,scaf") == ["fedavg,scaffold"]
    assert completion.complete_methods("specgradfilter+scaf") == ["specgradfilter+scaffold"]
    assert completion.complete_datasets("cifar10-") == ["cifar10-c"]
    assert completion.complete_partitions("dir") == ["dirichlet"]
    assert completion.complete_engines("") == ["auto", "serial", "processes", "stacked", "flower", "ray", "ray-stacked"]
    assert completion.complete_metrics("f1,f1_mac") == ["f1,f1_macro"]
    assert completion.complete_tracks("drift,spec") == ["drift,spectrum"]
    assert set(completion.complete_models("")) == set(fk.MODELS)
    assert completion.complete_methods("nothing") == []


def test_a_shell_asks_the_command(fedkeel, monkeypatch, capsys):
    monkeypatch.setenv("_FEDKEEL_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "fedkeel run --method fedavg,scaf")
    monkeypatch.setenv("COMP_CWORD", "3")
    with pytest.raises(SystemExit):
        fedkeel()
    assert capsys.readouterr().out.split() == ["fedavg,scaffold"]


@pytest.mark.parametrize(
    ("command", "known"), [("methods", fk.METHODS), ("datasets", fk.DATASETS), ("models", fk.MODELS)]
)
def test_every_listing_is_a_document_too(fedkeel, monkeypatch, constant_weights, command, known):
    one = cards.costs(fk.METHODS["fedavg"]())
    monkeypatch.setattr(cards, "costs", lambda method: one)  # each method would be trained to count them
    found = json.loads(fedkeel(command, "--json").out)[command]
    assert [entry["name"] for entry in found] == list(known)
    name = next(iter(known))
    assert json.loads(fedkeel(command, name, "--json").out)[command] == [found[0]]


def test_the_doctor_writes_a_document(fedkeel):
    assert json.loads(fedkeel("doctor", "--json").out)["Versions"]["fedkeel"] == fk.__version__

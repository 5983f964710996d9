"""Accuracy by group of test samples."""

from dataclasses import replace

import numpy as np
import pytest

import fedkeel as fk
from fedkeel.data import load
from fedkeel.data.storage.loading import find_card
from fedkeel.studies import group_accuracy
from fedkeel.studies.diagnose import analyse

SMALL = {"dataset": "digits", "model": "logistic", "method": "fedavg", "rounds": 2, "epochs": 1, "lr": 0.1}


def test_groups_add_up_to_the_whole_test_set(monkeypatch):
    run = fk.run(fk.Experiment(**SMALL), engine="serial")
    assert analyse(run, ["groups"])["groups"]["groups"] == {}  # digits name no groups
    data = load("digits")
    named = replace(data, test_groups=np.asarray(data.test_labels) % 3)
    monkeypatch.setattr(group_accuracy, "load", lambda name: named)
    found = analyse(run, ["groups"])["groups"]
    assert list(found["groups"]) == ["group 0", "group 1", "group 2"]
    assert sum(found["samples"].values()) == len(data.test_labels)
    right = sum(found["groups"][name] * found["samples"][name] for name in found["groups"])
    assert right / len(data.test_labels) == pytest.approx(run.last)
    assert len(set(found["groups"].values())) > 1


def test_domains_and_corruptions_have_names():
    for name, number, said in (("office-home", 1, "Clipart"), ("cifar10-c", 8, "frost"), ("femnist", 12, "writer 12")):
        assert group_accuracy.name_group(find_card(name), number) == said

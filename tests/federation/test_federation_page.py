"""The page on federations has a table of what travels; it is what the methods send."""

import re
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr", reason='needs flwr: pip install "fedkeel[flower]"')

import fedkeel as fk
from fedkeel.core.round import init_server
from fedkeel.core.trees import tensors
from fedkeel.engines.rehearsal import expected_messages
from fedkeel.methods import build
from fedkeel.runs.prepare import method_of, problem_of, task_maker

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "federation.md"
ROWS = re.findall(r"^\| (`[^|]*) \| (\d) \| (\d) \| (\d) \| (\d) \|$", PAGE.read_text(), flags=re.MULTILINE)
CLAIMS = {name: tuple(map(int, counts)) for names, *counts in ROWS for name in re.findall("`([^`]+)`", names)}


@pytest.mark.parametrize("name", sorted(CLAIMS))
def test_models_that_travel_and_are_kept(name):
    model = "mlp-cr" if name == "fedcr" else "mlp"
    exp = fk.Experiment(dataset="digits", model=model, method=name, partition="iid:clients=4")
    task = task_maker(exp.plan, torch.device("cpu"), torch.float32)(problem_of(exp.plan))
    method = method_of(exp.plan, task)
    message, report, state = expected_messages(method, task)
    slots = (message, report, state, init_server(method, task.initial, task.buffers))
    counts = [sum(tensor.numel() for tensor in tensors(slot)) / task.initial.buffer.numel() for slot in slots]
    assert counts == pytest.approx(CLAIMS[name], abs=0.1)


def test_the_methods_that_send_counts_of_labels_are_named():
    (told,) = re.findall(r"^- \*\*Counts of labels\*\*, .*?(?=^- )", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert re.findall("`([^`]+)`", told) == sorted(name for name in fk.METHODS if "histogram" in build(name).sends)


def test_the_table_is_there():
    assert len(CLAIMS) > 30
    assert set(CLAIMS) <= set(fk.METHODS)

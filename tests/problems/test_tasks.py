"""Regression, several labels and segmentation train, score and report as classification does."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score, jaccard_score, r2_score, roc_auc_score

import fedkeel as fk
from fedkeel.problems.predictions import class_scores

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "own_data.md").read_text(encoding="utf-8")
TASKS = {"Regression": "prices", "Several labels at once": "films", "Segmentation": "scans"}


def example(heading):
    """What the code below a heading of the guide makes."""
    _, _, text = GUIDE.partition(f"\n## {heading}\n") if heading else ("", "", GUIDE)
    (code, *_) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    made = {"__name__": "guide"}
    with torch.random.fork_rng():
        exec(compile(code, heading or "guide", "exec"), made)
    return made


@pytest.fixture(scope="module")
def examples():
    return {heading: example(heading) for heading in TASKS}


def predictions(made):
    """Outputs and targets of the trained model on the test set, as arrays."""
    x, y = made["problem"].test
    with torch.no_grad():
        return made["run"].model()(x), y


@pytest.mark.slow
def test_tables_train_with_metrics_and_early_stopping(tmp_path, monkeypatch):
    pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    made = example("")
    output, target = predictions(made)
    assert made["run"].best > 0.85
    assert made["run"].curve("auc")[-1] == pytest.approx(roc_auc_score(target, output.softmax(-1)[:, 1]))


def test_a_pool_is_divided():
    run = example("One pool, divided by a partition")["run"]
    assert (len(run.sizes), sum(run.sizes)) == (8, 500)
    assert run.best > 0.7


@pytest.mark.slow
def test_metrics_are_those_of_the_task(examples):
    output, target = predictions(examples["Regression"])
    run = examples["Regression"]["run"]
    assert (run.result["judged_on"], run.curve("accuracy")) == ("test_loss", [])
    assert run.best == min(run.curve("test_loss"))
    assert run.curve("r2")[-1] == pytest.approx(r2_score(target, output), rel=1e-5)
    assert run.curve("r2")[-1] > 0.9

    output, target = predictions(examples["Several labels at once"])
    run = examples["Several labels at once"]["run"]
    assert (run.result["judged_on"], run.curve("accuracy")) == ("test_loss", [])
    assert run.curve("f1")[-1] == pytest.approx(f1_score(target, output > 0, average="macro"))
    assert run.curve("f1")[-1] > 0.8
    assert run.curve("auc")[-1] == pytest.approx(roc_auc_score(target, output.sigmoid()))

    output, target = predictions(examples["Segmentation"])
    run, guess = examples["Segmentation"]["run"], output.argmax(1).flatten()
    assert run.last == pytest.approx(accuracy_score(target.flatten(), guess))
    assert run.last > 0.8
    assert run.curve("iou")[-1] == pytest.approx(jaccard_score(target.flatten(), guess, average="macro"))
    assert run.curve("f1")[-1] == pytest.approx(f1_score(target.flatten(), guess))


def test_engines_agree(examples):
    for heading, made in examples.items():
        short = made["experiment"].with_(rounds=3, method="scaffold")
        serial, stacked = (fk.run(short, engine=name, dtype=torch.float64) for name in ("serial", "stacked"))
        gaps = [float((serial.params[name] - stacked.params[name]).abs().max()) for name in serial.params]
        assert max(gaps) < 1e-12, heading
        for measure in ("test_loss", "accuracy", *made["problem"].metrics):
            assert np.allclose(serial.curve(measure), stacked.curve(measure)), (heading, measure)


@pytest.mark.slow
def test_reports_say_accuracy_only_where_there_is_one(examples, fedkeel):
    for heading, made in examples.items():
        folders = []
        for method in ("fedavg", "scaffold"):
            short = made["experiment"].with_(rounds=2, method=method)
            folders += [f"{TASKS[heading]}/{method}"]
            fk.run(short, engine="serial", out=folders[-1])
        assert fedkeel("report", *folders, "-o", "page.html").code == 0
        page = Path("page.html").read_text(encoding="utf-8")
        compared = fedkeel("compare", *folders)
        assert compared.code == 0, compared.err
        shown = re.sub(r"<style.*?</style>|<script.*?</script>|base64,[^\"']*", "", page, flags=re.DOTALL)
        assert TASKS[heading] in page
        for text in (shown, compared.out):
            assert ("accuracy" in text.lower()) == (heading == "Segmentation"), (heading, text[:3000])


def test_the_axis_of_classes_is_found():
    scores, pixels = torch.randn(2, 3, 4, 5), torch.zeros(2, 4, 5, dtype=torch.int64)
    assert class_scores(scores, pixels).shape == (2, 4, 5, 3)
    assert class_scores(scores.movedim(1, -1), pixels).shape == (2, 4, 5, 3)
    assert class_scores(torch.randn(2, 3), torch.zeros(2, dtype=torch.int64)).shape == (2, 3)
    for wrong in (torch.zeros(2, 4, 6, dtype=torch.int64), pixels.float(), pixels[0]):
        assert class_scores(scores, wrong) is None
    assert class_scores(torch.randn(2, 1), torch.zeros(2, dtype=torch.int64)) is None

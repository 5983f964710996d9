"""Scores of one model at many sites: sums and counts that add up to what one site with all the data would have."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedkeel.core.rule import State
from fedkeel.core.trees import Tree
from fedkeel.engines.flower.records import Refused
from fedkeel.engines.serial import SerialEngine
from fedkeel.problems.predictions import Scores, class_scores, keep_counted
from fedkeel.problems.task import Batch, Task
from fedkeel.text import plural

RANKS = 1000  # steps in which a class's probability is counted, for the area under the curve
CONFIDENCES = 15  # steps in which confidence is compared with accuracy
FEW = 20
"""With fewer test samples a site is warned: sums and counts of few come close to single predictions."""


def names_of(task: Task) -> list[str]:
    """Name the measures that are sums over samples."""
    return ["loss", "accuracy", *sorted(task.problem.metrics)]


def empty_scores(task: Task) -> State:
    """Return the scores of no samples: also the form of what a site sends."""
    measures, classes = len(names_of(task)), task.problem.classes or 0
    return {
        "sums": torch.zeros(measures, dtype=torch.float64),
        "counts": torch.zeros(measures, dtype=torch.float64),  # of pixels or words, parts of a sample may count
        "ranks": torch.zeros(2, classes, RANKS, dtype=torch.int64),  # of samples of other classes, and of the class
        "confidence": torch.zeros(3, CONFIDENCES, dtype=torch.float64),  # how many, how many right, how sure in all
    }


def tell_few(samples: int) -> str | None:
    """Say what the scores of so many test samples show the server; None where there are enough."""
    if samples >= FEW:
        return None
    return f"only {plural(samples, 'sample')} for tests: their scores show the server single labels and predictions"


def score_site(engine: SerialEngine, params: Tree, buffers: Tree | None) -> State:
    """Score a model on the test share of a site."""
    task, workspace, names = engine.task, engine.workspace, names_of(engine.task)
    found = empty_scores(task)
    for part in task.parts("test"):
        for name, (total, count) in workspace.score(params, buffers, part).items():
            found["sums"][names.index(name)] += total
            found["counts"][names.index(name)] += count
        if task.module is None or not task.problem.classes:
            continue
        tensors = task.prepare(task.read_part(part))
        output = workspace.output(params, buffers, Batch(tensors))
        output, target = keep_counted(output, tensors[-1], task.ignored)
        if (scores := class_scores(output, target)) is not None:
            chances = scores.double().softmax(-1).flatten(0, -2).cpu()
            found = add_scores([found, count_chances(chances, target.reshape(-1).cpu(), empty_scores(task))])
    return found


def count_chances(chances: Tensor, labels: Tensor, empty: State) -> State:
    """Count predicted probabilities by class and step, and how often the most probable class was right."""
    classes = chances.shape[-1]
    steps = (chances * RANKS).long().clamp(0, RANKS - 1)
    ranks = empty["ranks"].clone()
    for number in range(classes):
        for of_class in (0, 1):
            chosen = steps[(labels == number) == bool(of_class), number]
            ranks[of_class, number] = torch.bincount(chosen, minlength=RANKS)
    sure, best = chances.max(-1)
    bins = (sure * CONFIDENCES).long().clamp(0, CONFIDENCES - 1)
    rows = (torch.ones_like(sure), (best == labels).double(), sure)
    confidence = torch.stack([torch.bincount(bins, row, minlength=CONFIDENCES) for row in rows])
    return empty | {"ranks": ranks, "confidence": confidence}


def add_scores(scores: Sequence[State]) -> State:
    """Add the scores of several sites, in order."""
    total = {name: slot.clone() for name, slot in scores[0].items()}
    for one in scores[1:]:
        total = {name: slot + one[name] for name, slot in total.items()}
    return total


def count_targets(task: Task) -> int:
    """Count the targets of one sample: 1, or one for each of its pixels or words."""
    return task.batch(int(task.clients.sizes.argmax()), np.zeros(1, np.int64)).tensors[-1].numel()


def check_scores(scores: State, most: int, targets: int = 1) -> None:
    """Refuse scores that no samples can have: at most so many samples, of so many targets each; counts that are none.

    Every target that counts is one prediction: it has one confidence, one rank in each class and one class of its own.
    """
    counts, sums, sure, ranks = scores["counts"], scores["sums"], scores["confidence"], scores["ranks"].double()
    samples = float(counts.amax())
    if not 0 <= float(counts.amin()) <= samples <= most or not bool(torch.isfinite(sums).all()):
        raise Refused(f"it scored {samples:g} samples, and can have {most} at most")
    if not -1e-6 <= float(sums[1]) <= float(counts[1]) + 1e-6:
        raise Refused("its accuracy is no share of its samples")
    if bool((ranks < 0).any()) or not bool((sure >= 0).all()) or bool((sure[1:] > sure[0] + 1e-6).any()):
        raise Refused("its counts are not those of samples")
    predictions = float(sure[0].sum())
    if not predictions <= float(counts[0]) * targets + 1e-6:
        raise Refused(f"it counts {predictions:g} predictions of {float(counts[0]):g} samples")
    if bool((ranks.sum((0, 2)) > predictions).any()) or float(ranks[1].sum()) > predictions:
        raise Refused(f"it ranks more than its {predictions:g} predictions")


def summarise(scores: State, task: Task) -> Scores:
    """Turn scores into measures: means with their counts, and what only counts of all together give."""
    pairs = zip(names_of(task), scores["sums"].tolist(), scores["counts"].tolist(), strict=True)
    found: Scores = {n: (total, int(count) if count.is_integer() else count) for n, total, count in pairs if count}
    samples = float(scores["counts"][0])  # a site may say that it has a part of one
    for name, value in (("auc", area_under_curve(scores["ranks"])), ("calibration_error", gap(scores["confidence"]))):
        if value is not None and samples:
            found[name] = (value * samples, int(samples) if samples.is_integer() else samples)
    return found


def area_under_curve(ranks: Tensor) -> float | None:
    """Return how often a sample of a class gets a higher probability of it than one of another class; ties count half.

    It is the mean over the classes of which there are both; of two classes it is that of the second.
    """
    others, own = ranks.double()
    below = others.cumsum(-1) - others
    wins, pairs = (own * (below + others / 2)).sum(-1), own.sum(-1) * others.sum(-1)
    if len(own) == 2:
        wins, pairs = wins[1:], pairs[1:]
    return float((wins[pairs > 0] / pairs[pairs > 0]).mean()) if bool((pairs > 0).any()) else None


def gap(confidence: Tensor) -> float | None:
    """Return the expected calibration error: how far confidence and accuracy are apart, over steps of confidence."""
    count, right, sure = confidence
    return float((right - sure).abs().sum() / count.sum()) if bool(count.sum() > 0) else None

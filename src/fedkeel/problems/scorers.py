"""Scores of scikit-learn's scorers, by their names, of outputs that are there already."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn import config_context
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import get_scorer, get_scorer_names
from torch import Tensor

from fedkeel.problems.predictions import are_label_sets, class_scores, probabilities

NUMBERS = ("error", "deviance", "r2", "explained_variance")
"""What the names of scorers have in common that compare numbers; all others compare classes."""
LABELLED = ("log_loss", "brier", "roc_auc", "top_k")
"""What the names of scorers have in common that can be told of classes no sample has."""
LABELLED_OF_TWO = ("neg_log_loss", "top_k")
"""The same where there are two classes: the others know them already, or have no value of one."""
BY_LABEL = ("log_loss", "brier")
"""What the names of scorers have in common that would take sets of labels for classes, one of which holds."""

AGAINST_REST = ("roc_auc", "roc_auc_ovr", "roc_auc_ovr_weighted", "average_precision")
"""The names of scorers that rank all samples by each class."""

OF_POSITIVES = ("f1", "jaccard", "precision", "recall", "average_precision")
"""What the names of scorers begin with that have no value of a class, or a label, that no target has."""
OF_SEVERAL = ("matthews_corrcoef", "d2_brier", "d2_log_loss", "likelihood_ratio")
"""What the names of scorers have in common that have no value of targets that are all the same class."""


class Outputs(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier as scorers ask for one, whose samples are the outputs of a network."""

    def __init__(self, target: Tensor, classes: int, sets: bool, cut: bool):
        self.target, self.classes, self.sets, self.cut = target, classes, sets, cut
        self.classes_ = np.tile([0, 1], (classes, 1)) if sets else np.arange(max(2, classes))

    def predict(self, output: Tensor) -> NDArray[Any]:
        if self.classes > 1 and not self.sets:
            return output.argmax(-1).numpy()
        plain = output.reshape(len(output), -1).squeeze(-1)
        return (plain > 0 if self.sets or self.cut else plain).numpy()

    def predict_proba(self, output: Tensor) -> NDArray[Any]:
        chance = probabilities(output, self.target).numpy()
        return np.stack([1 - chance, chance], -1) if chance.ndim == 1 else chance


def compares_numbers(name: str) -> bool:
    return any(word in name for word in NUMBERS)


def averages_columns(name: str) -> bool:
    """Whether the score of several outputs, or labels, is the mean over them."""
    return compares_numbers(name) or name in ("roc_auc", *OF_POSITIVES) or any(word in name for word in BY_LABEL)


def has_no_value(name: str, truth: NDArray[Any], sets: bool) -> bool:
    """Whether a scorer of classes says nothing of the model, because the targets hold too few classes.

    That is so if no sample is of the second of two classes, or if a mean over labels has a label that no sample has.
    """
    if any(word in name for word in OF_SEVERAL):
        return not sets and len(np.unique(truth)) < 2
    if sets and name.startswith(OF_POSITIVES):
        held = truth.any(0)
        return not (held.all() if name.endswith(("_macro", "average_precision")) else held.any())
    return name in OF_POSITIVES and not truth.any()


def score_sklearn(name: str, output: Tensor, target: Tensor) -> float:
    """Score as scikit-learn's scorer of that name does; of more than two classes its macro or one-versus-rest form.

    One output for zeros and ones says 1 where it is above 0, except to scorers of numbers, which take outputs as they
    are. Of sets of labels it is the mean over labels, but `accuracy` counts sets that are right as a whole; pixels
    count as samples. Not a number where the targets hold too few classes for it.
    """
    if (scores := class_scores(output, target)) is not None:
        output, target = scores.flatten(0, -2), target.flatten()
    numbers = scores is None and compares_numbers(name)
    sets = not numbers and are_label_sets(output, target)
    if sets and any(word in name for word in BY_LABEL):
        return sum(map(partial(score_sklearn, name), output.unbind(1), target.unbind(1))) / output.shape[1]
    classes = output.shape[-1] if scores is not None or sets else 1
    many = {"roc_auc": "roc_auc" if sets else "roc_auc_ovr"}.get(name, f"{name}_macro")
    name = many if (classes > 2 or sets) and many in get_scorer_names() else name
    cut = not numbers and bool(((target == 0) | (target == 1)).all())
    told = LABELLED if classes > 2 else LABELLED_OF_TWO if classes == 2 or cut else ()
    labels = {"labels": np.arange(max(2, classes))} if not sets and any(word in name for word in told) else {}
    truth = target.numpy()
    if not numbers and has_no_value(name, truth, sets):
        return float("nan")
    try:
        with warnings.catch_warnings(), config_context(enable_metadata_routing=True):
            warnings.simplefilter("ignore")
            return float(get_scorer(name)(Outputs(target, classes, sets, cut), output, truth, **labels))
    except ValueError:
        are_classes = cut or not target.is_floating_point()
        if are_classes and len(np.unique(truth)) < max(2, classes if scores is not None else 1):
            return float("nan")
        raise

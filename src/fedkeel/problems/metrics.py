"""Metrics by name: scikit-learn's, torchmetrics', `ece`, or a function of one's own; named ones see all predictions."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from statistics import fmean
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedkeel.errors import ExperimentError, RequestError, nearest
from fedkeel.importing import Kind, Trust, look_up
from fedkeel.problems.predictions import (
    are_answers,
    are_label_sets,
    class_scores,
    has_gaps,
    keep_counted,
    keep_known,
    probabilities,
    set_against_rest,
)
from fedkeel.typed_values import list_given

Metric = Callable[..., Any]
Given = str | Metric | Iterable["str | Metric"] | Mapping[str, "str | Metric"]
BINS = 15
TORCHMETRICS = "torchmetrics:"
OWN = Kind("metric", object, functions=True, hint="a function of predictions and targets")
TAKEN = ("loss", "round", "selected", "drift", "backward_passes", "bytes_down", "bytes_up", "seconds", "absent",
         "dropped", "extra", "clients")  # fmt: skip
"""What a round has under these names is something else."""


@dataclass(frozen=True)
class NamedMetric:
    """A function of all predictions and all targets, on the host; of targets that do not count it hears nothing.

    Functions of classes read outputs as scores before a sigmoid. Where outputs are `chances`, they get such scores.
    Those that `set_against_rest` each class have no value of one that no target has: the ignored one is no class.
    A mean over outputs (`by_column`) takes each where its target is known, and leaves out one without a known target.
    """

    name: str
    function: Callable[[Tensor, Tensor], float]
    of_classes: bool = True
    chances: bool = False
    ignored: int | None = None
    against_rest: bool = False
    by_column: bool = False
    whole: ClassVar[bool] = True

    def __call__(self, output: Tensor, target: Tensor) -> float:
        output, target = keep_counted(output.detach().cpu(), target.cpu(), self.ignored)
        output, target = keep_known(output, target)
        if self.by_column and output.shape == target.shape and has_gaps(target):
            columns = zip(*(part.flatten(1).unbind(1) for part in (output, target)), strict=True)
            return fmean(self(*column) for column in columns if not column[1].isnan().all())
        if self.chances and self.of_classes and are_answers(output, target):
            output = output.to(torch.float64).logit()
        if self.against_rest and self.ignored is not None and target.numel():
            output, target = set_against_rest(output, target, self.ignored)
        return float(self.function(output, target)) if target.numel() else float("nan")


def read_as_loss(metric: Metric, loss: Callable[..., Any], ignored: int | None) -> Metric:
    """Let a named metric read outputs and targets as the loss does: PyTorch's binary cross-entropy without logits takes
    chances, and a class may be ignored."""
    if not isinstance(metric, NamedMetric):
        return metric
    taken = isinstance(loss, nn.BCELoss) or getattr(loss, "func", loss) is functional.binary_cross_entropy
    return replace(metric, chances=taken, ignored=ignored)


def find_metrics(given: Given, trust: Trust = Trust.TYPED) -> dict[str, Metric]:
    """Find metrics by name; functions of the caller's own keep the name that they have or are given."""
    if isinstance(given, Mapping):
        found = {str(name): find_metric(one, trust) for name, one in given.items()}
    else:
        several = list_given(given, "metrics")
        found = {name_of(one): find_metric(one, trust) for one in several}
    for name in found:
        if name in TAKEN:
            raise ExperimentError(f"a round measures {name} already: a metric needs another name.", f"own_{name}")
    return found


def name_of(metric: Any) -> str:
    """What a metric is called in a round: `auc`, or what stands behind the colon, or the function's own name."""
    name = metric.rpartition(":")[2] if isinstance(metric, str) else getattr(metric, "__name__", "")
    if not name.isidentifier():
        raise ExperimentError("the metrics of a problem are functions by name.", 'metrics={"error": function}')
    return str(name)


def name_metrics(metrics: Mapping[str, Metric]) -> list[str]:
    """Write what `find_metrics` reads, of those that a name leads to."""
    found = [one.name if isinstance(one, NamedMetric) else place_of(one) for one in metrics.values()]
    return [name for name in found if name]


def place_of(metric: Metric) -> str:
    """Where a function stands, as `module:name`; nothing where no name leads to it."""
    name = getattr(metric, "__qualname__", "<locals>")
    return "" if "<" in name or metric.__module__ == "__main__" else f"{metric.__module__}:{name}"


def find_metric(given: str | Metric, trust: Trust) -> Metric:
    if not isinstance(given, str):
        if not callable(given):
            raise ExperimentError("the metrics of a problem are functions by name.", 'metrics={"error": function}')
        return given
    if given in PLAIN:
        return NamedMetric(given, PLAIN[given])
    if given.startswith(TORCHMETRICS):
        kind = find_torchmetric(given.removeprefix(TORCHMETRICS))
        return NamedMetric(given, partial(score_torchmetrics, kind), is_of_classes(kind))
    if ":" in given:
        return look_up(given, OWN, trust)
    from sklearn.metrics import get_scorer_names

    known = {"auc", *PLAIN, *get_scorer_names()}
    if given not in known:
        raise RequestError(
            f"no metric is called: {given}", nearest(given, known, "metrics, besides torchmetrics:NAME and module:name")
        )
    from fedkeel.problems.scorers import AGAINST_REST, averages_columns, compares_numbers, score_sklearn

    name = "roc_auc" if given == "auc" else given
    scored = partial(score_sklearn, name)
    ranks, by_column = name in AGAINST_REST, averages_columns(name)
    return NamedMetric(given, scored, not compares_numbers(name), against_rest=ranks, by_column=by_column)


LOWER = frozenset((
    "loss", "losses", "logloss", "nll", "bce", "entropy", "perplexity", "ppl", "hinge", "huber", "pinball", "deviance",
    "cost", "costs", "regret", "risk", "penalty", "error", "errors", "err", "misclassified", "hamming",
    "false", "fpr", "fnr", "fdr", "eer", "wer", "cer", "ece", "brier", "crps", "mse", "mae", "rmse", "nrmse", "mape",
    "smape", "wape", "mase", "msle", "rmsle", "residual", "residuals", "fid", "lpips",
    "drift", "distance", "hausdorff", "divergence", "spread", "deviation", "std", "bits", "bpb", "bpc", "bpd",
))  # fmt: skip
"""Words in the names of measures that are better the lower they are."""
HIGHER = frozenset(("neg", "d2"))
"""What scikit-learn puts before such a word where the higher is better."""
PLAINLY_HIGHER = frozenset((
    "accuracy", "acc", "correct", "right", "score", "precision", "recall", "sensitivity", "specificity", "tpr", "tnr",
    "f1", "fbeta", "auc", "auroc", "auprc", "roc", "ap", "iou", "dice", "jaccard", "kappa", "mcc", "matthews",
    "correlation", "corr", "corrcoef", "pearson", "spearman", "r2", "explained", "likelihood", "ndcg", "mrr", "hits",
    "bleu", "rouge", "psnr", "ssim", "cosine", "agreement", "silhouette",
))  # fmt: skip
"""Words in the names of measures that nobody would take for one of the others."""
NEGATIONS = ("neg", "negative")
UNCLEAR = frozenset((*NEGATIONS, "gap", "difference", "diff", "delta", "change", "disparity", "inequality", "variance",
                     "var", "range"))  # fmt: skip
"""Words that leave open which way is better, also beside one that is plainly higher: `accuracy_gap`."""


def lower_is_better(measure: str) -> bool:
    """Whether the better of two values of a measure is the lower one: losses, errors and distances, unless `neg_…`; of
    likelihoods the negative ones."""
    words = split_name(measure)
    if "likelihood" in words and sum(map(words.count, NEGATIONS)) == 1:
        return True
    return not LOWER.isdisjoint(words) and HIGHER.isdisjoint(words)


def tells_direction(measure: str) -> bool:
    """Whether the name of a measure says which of two values is the better one."""
    words = set(split_name(measure))
    if "likelihood" in words:
        return True
    if "negative" in words and "false" not in words:  # of a class, or minus: nobody knows
        return False
    if "d2" in words or words & LOWER:
        return True
    return bool(words & PLAINLY_HIGHER) and ("explained" in words or words.isdisjoint(UNCLEAR))


def split_name(measure: str) -> list[str]:
    """Split the name of a measure into words: MeanSquaredError, as torchmetrics has it, into three; `tpr_at_fpr` is a
    `tpr`."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", measure)
    return list(takewhile(lambda word: word != "at", re.split(r"[\W_]", apart.lower())))


# ---- scores --------------------------------------------------------------------------------------------------------
def expected_calibration_error(output: Tensor, target: Tensor) -> float:
    """How far confidence is from accuracy: Σ_b n_b/n |acc_b − conf_b| over 15 bins of equal width.

    With one output, the classes are 0 and 1.  (Guo et al. 2017)
    """
    chances = probabilities(output, target)
    if class_scores(output, target) is None:
        if chances.dim() != 1 or not are_answers(chances, target):
            raise ValueError("it takes scores of several classes, or one output and targets 0 and 1")
        chances = torch.stack([1 - chances, chances], -1)
    confidence, predicted = chances.flatten(0, -2).max(-1)
    right = (predicted == target.reshape(-1)).to(torch.float64)
    bins = (confidence * BINS).ceil().to(torch.int64).clamp(1, BINS) - 1
    gaps = torch.zeros(BINS, dtype=torch.float64).index_add_(0, bins, right - confidence)
    return float(gaps.abs().sum() / len(right))


def intersection_over_union(output: Tensor, target: Tensor) -> float:
    """Of each class, what prediction and truth share over what either has; the mean over classes that occur."""
    if (scores := class_scores(output, target)) is None:
        raise ValueError("it takes scores of several classes, for samples or their pixels")
    predicted, shares = scores.argmax(-1), []
    for label in range(scores.shape[-1]):
        one, other = predicted == label, target == label
        if bool((one | other).any()):
            shares.append(float((one & other).sum() / (one | other).sum()))
    return sum(shares) / len(shares)


PLAIN = {"ece": expected_calibration_error, "iou": intersection_over_union}


def find_torchmetric(name: str) -> Callable[..., Any]:
    try:
        import torchmetrics
    except ImportError as error:
        raise RequestError(
            f"{TORCHMETRICS}{name} needs torchmetrics, which is not installed.", "pip install torchmetrics"
        ) from error
    found = getattr(getattr(torchmetrics, "classification", None), name, None) or getattr(torchmetrics, name, None)
    if not callable(found):
        raise RequestError(f"torchmetrics has no metric called: {name}", nearest(name, dir(torchmetrics), "names"))
    return found


def is_of_classes(kind: Callable[..., Any]) -> bool:
    """Whether a class of torchmetrics compares classes, not numbers."""
    return kind.__module__.startswith("torchmetrics.classification")


def score_torchmetrics(kind: Callable[..., Any], output: Tensor, target: Tensor) -> float:
    """Score as a class of torchmetrics does, told how many classes or labels there are.

    Its metrics of classes get chances, because they take outputs for such if all lie between 0 and 1. The others
    compare zeros and ones with outputs as they are.
    """
    told: dict[str, str | int] = {}
    if (scores := class_scores(output, target)) is not None:
        told = {"task": "multiclass", "num_classes": scores.shape[-1]}
        output = probabilities(output, target).movedim(-1, 1)
    elif is_of_classes(kind) and are_answers(output, target):
        sets = are_label_sets(output, target)
        told = {"task": "multilabel", "num_labels": output.shape[1]} if sets else {"task": "binary"}
        output, target = output.sigmoid().reshape(target.shape), target.to(torch.int64)
    takes = inspect.signature(kind).parameters
    return float(kind(**{name: value for name, value in told.items() if name in takes})(output, target))

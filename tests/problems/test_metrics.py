"""Metrics: what scikit-learn and others compute of all predictions, the same on every engine and for every client."""

import functools
import itertools
import sys
from dataclasses import replace
from inspect import Parameter, Signature
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from for_each import for_each
from sklearn import metrics as theirs
from sklearn.metrics import get_scorer_names
from torch import nn
from torch.nn import functional as F

import fedkeel as fk
from fedkeel.errors import ExperimentError, RequestError
from fedkeel.problems.metrics import find_metrics, lower_is_better, name_metrics, read_as_loss, tells_direction
from fedkeel.problems.task import Task
from problems import small_problem

NAMES = ["f1", "auc", "balanced_accuracy", "neg_log_loss", "ece", "matthews_corrcoef"]


def experiment(problem=None, **changes):
    settings = dict(method="fedavg", participation=0.5, epochs=1, batch_size=4, lr=0.05, rounds=2)
    return fk.Experiment(problem=problem or small_problem(), **settings | changes)


def predictions(classes=3, samples=50):
    generator = torch.Generator().manual_seed(3)
    target = torch.randint(0, classes, (samples,), generator=generator)
    return torch.randn(samples, classes, generator=generator) + torch.eye(classes)[target], target


def value_of(name, output, target):
    return find_metrics(name)[name.rpartition(":")[2]](output, target)


# ---- formulas ------------------------------------------------------------------------------------------------------
def test_names_of_scikit_learn_give_what_it_computes():
    output, target = predictions()
    guess, chance = output.argmax(-1), output.double().softmax(-1)
    expected = {
        "f1": theirs.f1_score(target, guess, average="macro"),
        "precision_micro": theirs.precision_score(target, guess, average="micro"),
        "balanced_accuracy": theirs.balanced_accuracy_score(target, guess),
        "auc": theirs.roc_auc_score(target, chance, multi_class="ovr"),
        "roc_auc_ovo": theirs.roc_auc_score(target, chance, multi_class="ovo"),
        "neg_log_loss": -theirs.log_loss(target, chance),
    }
    for name, value in expected.items():
        assert value_of(name, output, target) == pytest.approx(value, rel=1e-12), name
    output, target = predictions(classes=2)
    margin = output[:, 1] - output[:, 0]  # a network may have one output for two classes
    for name in ("f1", "auc", "neg_log_loss", "average_precision"):
        assert value_of(name, output, target) == pytest.approx(value_of(name, margin[:, None], target), rel=1e-6), name
    assert value_of("auc", output, target) == pytest.approx(theirs.roc_auc_score(target, margin), rel=1e-12)
    assert value_of("r2", margin[:, None], output[:, :1]) == pytest.approx(theirs.r2_score(output[:, :1], margin))


def test_one_output_for_zeros_and_ones_of_any_type():
    """A class is predicted where the output is above 0; numbers are compared as they are."""
    output, target = predictions(classes=2)
    margin = output[:, 1:] - output[:, :1]
    for name in ("f1", "accuracy", "balanced_accuracy", "matthews_corrcoef", "auc"):
        expected = value_of(name, margin, target)
        for same in (target.float(), target[:, None].float(), target.bool(), target[:, None].double()):
            assert value_of(name, margin, same) == expected, (name, same.dtype)
            assert np.isnan(value_of(name, margin, torch.zeros_like(same))) == np.isnan(
                value_of(name, margin, torch.zeros_like(target))
            )
    for amounts in (target.float(), target + 3):
        assert value_of("r2", margin, amounts) == pytest.approx(theirs.r2_score(amounts, margin))
    with pytest.raises(ValueError, match="continuous"):
        value_of("f1", margin, target + 3)


def test_numbers_are_compared_with_numbers_whatever_they_happen_to_be():
    """Counts of a client may all be 0 or 1, of one output or of several."""
    draw = torch.Generator().manual_seed(0)
    for shape in ((20,), (20, 1), (20, 2)):
        output, target = torch.randn(shape, generator=draw) + 2, torch.randint(0, 2, shape, generator=draw)
        for counts in (target[:, None] if len(shape) == 1 else target, target.float()):
            far = (output.reshape(counts.shape) - counts).double()
            found = value_of("neg_mean_squared_error", output.reshape(counts.shape), counts)
            assert found == pytest.approx(-float((far**2).mean()), rel=1e-6)
            found = value_of("neg_mean_absolute_error", output.reshape(counts.shape), counts)
            assert found == pytest.approx(-float(far.abs().mean()), rel=1e-6)


def test_of_two_classes_one_may_be_missing():
    output, target = predictions(classes=2)
    chance, some = output.double().softmax(-1), target == 1
    expected = float(chance[some, 1].log().mean())
    margin = (output[:, 1:] - output[:, :1])[some]
    assert value_of("neg_log_loss", output[some], target[some]) == pytest.approx(expected, rel=1e-12)
    for kind in (torch.int64, torch.float32, torch.bool):
        assert value_of("neg_log_loss", margin, target[some, None].to(kind)) == pytest.approx(expected, rel=1e-6)


def test_chances_of_label_sets_are_scored_label_by_label():
    """The mean over labels, of which each is two classes: a network that says yes to everything is a bad one."""
    draw = torch.Generator().manual_seed(4)
    held = torch.rand(40, 3, generator=draw) > torch.tensor([0.5, 0.7, 0.9])
    output = torch.randn(40, 3, generator=draw, dtype=torch.float64) + held
    chance, yes = output.sigmoid(), torch.full_like(output, 20.0)
    log_loss = torch.nn.functional.binary_cross_entropy(chance, held.double())
    base = held.double().mean(0).expand_as(chance)
    d2 = [1 - theirs.log_loss(held[:, n], chance[:, n]) / theirs.log_loss(held[:, n], base[:, n]) for n in range(3)]
    expected = {
        "neg_log_loss": -float(log_loss),
        "neg_brier_score": -float((chance - held.double()).square().mean()),
        "d2_log_loss_score": np.mean(d2),
    }
    for name in expected.keys() & get_scorer_names():  # scikit-learn 1.4 has no d2
        for target in (held, held.long(), held.float()):
            assert value_of(name, output, target) == pytest.approx(expected[name], rel=1e-9), (name, target.dtype)
            assert value_of(name, yes, target) < value_of(name, output, target), name
    held[:, 1] = False
    there = -float(torch.nn.functional.binary_cross_entropy(chance, held.double()))
    assert value_of("neg_log_loss", output, held) == pytest.approx(there, rel=1e-9), "a label that no sample has"


def test_a_scorer_is_only_called(monkeypatch):
    """A scorer is a function of an estimator, its samples and their targets; nothing else of it is public."""
    calls = []

    def plain(name):
        def score(*given, **named):
            calls.append(name)
            return theirs.get_scorer(name)(*given, **named)

        return score

    output, target = predictions()
    names = ("f1", "auc", "neg_log_loss")
    expected = [value_of(name, output, target) for name in names]
    monkeypatch.setattr("fedkeel.problems.scorers.get_scorer", plain)
    assert [value_of(name, output, target) for name in names] == expected
    assert calls == ["f1_macro", "roc_auc_ovr", "neg_log_loss"]


def test_a_class_that_no_sample_has_is_still_a_class():
    output, target = predictions()
    some = target < 2
    chance = output.double().softmax(-1)
    expected = -theirs.log_loss(target[some], chance[some], labels=[0, 1, 2])
    assert value_of("neg_log_loss", output[some], target[some]) == pytest.approx(expected, rel=1e-12)


def test_calibration_by_hand():
    """Confidences 0.8 (right, wrong) and 0.6 (right): 2/3 · |0.5 − 0.8| + 1/3 · |1 − 0.6|."""
    chance = torch.tensor([[0.8, 0.2], [0.2, 0.8], [0.6, 0.4]], dtype=torch.float64)
    found = value_of("ece", chance.log(), torch.tensor([0, 0, 0]))
    assert found == pytest.approx(2 / 3 * 0.3 + 1 / 3 * 0.4, rel=1e-12)
    assert value_of("ece", torch.tensor([[50.0, -50.0]]), torch.tensor([0])) == pytest.approx(0, abs=1e-12)
    one, target = (chance[:, 1] / chance[:, 0]).log(), torch.tensor([0.0, 0.0, 0.0])
    for output in (one, one[:, None]):
        assert value_of("ece", output, target) == pytest.approx(found, rel=1e-12)
        assert value_of("ece", -output, 1 - target) == pytest.approx(found, rel=1e-12)


def test_what_one_class_has_no_value_of_is_no_number():
    output, _ = predictions()
    assert np.isnan(value_of("auc", output, torch.zeros(50, dtype=torch.int64)))


OF_POSITIVES = ["f1", "recall", "precision", "jaccard", "average_precision"]


def predict_with_gaps(labels=False):
    """Outputs, all targets, and targets some of which are not known: all of one sample, and all of the last column."""
    draw = torch.Generator().manual_seed(5)
    output = torch.randn(30, 3, generator=draw).double()
    whole = output + torch.randn(30, 3, generator=draw)
    whole = (whole > 0).double() if labels else whole
    gaps = torch.rand(30, 3, generator=draw) < 0.3
    gaps[4], gaps[:, 2] = True, True
    return output, whole, whole.masked_fill(gaps, torch.nan)


def test_targets_that_are_not_known_are_left_out_of_each_column():
    """The mean over outputs that have a target, each by its own samples: scikit-learn's where nothing is missing."""
    output, whole, target = predict_with_gaps()
    scores = {
        "r2": theirs.r2_score,
        "explained_variance": theirs.explained_variance_score,
        "neg_mean_absolute_error": lambda truth, guess: -theirs.mean_absolute_error(truth, guess),
        "neg_median_absolute_error": lambda truth, guess: -theirs.median_absolute_error(truth, guess),
        "neg_root_mean_squared_error": lambda truth, guess: -(theirs.mean_squared_error(truth, guess) ** 0.5),
    }
    for name, score in scores.items():
        known = [~target[:, n].isnan() for n in range(2)]
        each = [score(whole[there, n], output[there, n]) for n, there in enumerate(known)]
        assert value_of(name, output, target) == pytest.approx(np.mean(each), rel=1e-12), name
        for one in (target[:, 0], target[:, :1]):
            for guess in (output[:, 0], output[:, :1]):
                assert value_of(name, guess, one) == pytest.approx(each[0], rel=1e-12), name
        all_but_one = whole.where(torch.arange(30)[:, None] < 29, torch.nan)
        assert value_of(name, output, all_but_one) == value_of(name, output[:29], whole[:29]), name
        every = np.mean([score(whole[:, n], output[:, n]) for n in range(3)])
        assert value_of(name, output, whole) == pytest.approx(every, rel=1e-12), name
        assert np.isnan(value_of(name, output, torch.full_like(target, torch.nan))), name


def test_labels_that_are_not_known_are_left_out_of_the_mean_over_labels():
    output, whole, target = predict_with_gaps(labels=True)
    known = [~target[:, n].isnan() for n in range(2)]
    for name in ("auc", "f1", "average_precision", "neg_log_loss"):
        each = [value_of(name, output[there, n], whole[there, n]) for n, there in enumerate(known)]
        assert value_of(name, output, target) == pytest.approx(np.mean(each), rel=1e-12), name
    for name in ("ece", "accuracy"):
        given = (part[known[0], 0] for part in (output, whole))
        assert value_of(name, output[:, 0], target[:, 0]) == value_of(name, *given)


def test_a_run_on_targets_with_gaps_measures_what_is_known():
    def loss(output, target):
        return ((output - target.nan_to_num()) ** 2 * ~target.isnan()).sum(1)

    _, _, target = predict_with_gaps()
    x, target = torch.randn(30, 6), target.float()
    model, tests = nn.Linear(6, 3), [(x, target), (x, torch.full_like(target, torch.nan))]
    problem = fk.Problem(model=model, loss=loss, clients=[(x, target)] * 2, test=(x, target), tests=tests)
    run = fk.run(experiment(problem, evaluation={"model": "global"}), engine="serial", metrics="r2")
    with torch.no_grad():
        expected = value_of("r2", run.model()(x), target)
    assert run.curve("r2")[-1] == pytest.approx(expected, rel=1e-6)
    assert run.records[-1].clients["r2"] == [pytest.approx(expected, rel=1e-5), None]


def test_what_no_sample_could_be_found_by_is_no_number():
    """Of two classes without a sample of the second, as the AUC is, also of a model that is right everywhere."""
    output, target = predictions(classes=2)
    margin, none = output[:, 1:] - output[:, :1], torch.zeros(50, dtype=torch.int64)
    right = F.one_hot(none, 2) * 9.0
    for name in OF_POSITIVES:
        for given in ((output, none), (right, none), (margin, none), (margin, none[:, None].float())):
            assert np.isnan(value_of(name, *given)), name
        guess = output.double().softmax(-1)[:, 1] if name == "average_precision" else output.argmax(-1)
        score = getattr(theirs, f"{name}_score")
        assert value_of(name, output, none + 1) == pytest.approx(score(none + 1, guess)), name
    for name in OF_POSITIVES[:4]:
        assert value_of(name, F.one_hot(none, 2) * 9.0, target) == 0, "there was something to find"
    assert value_of("f1_macro", right, none) == value_of("f1_weighted", right, none) == 1
    for name in {"matthews_corrcoef", "d2_log_loss_score", "d2_brier_score"} & {*get_scorer_names()}:
        for scores in (output, torch.cat([output, output[:, :1]], 1)):
            for label in (0, 1):
                assert np.isnan(value_of(name, scores, none + label)), (name, label)
            assert np.isfinite(value_of(name, scores, target)), name
    assert value_of("matthews_corrcoef", right, target) == 0, "all samples are taken for one class"


def test_a_label_that_no_sample_has_leaves_no_mean_over_labels():
    """As it is with the AUC; what counts all labels together has a value as long as one holds."""
    output, held = torch.randn(20, 3, generator=torch.Generator().manual_seed(1)), torch.eye(3)[torch.arange(20) % 3]
    some = held * torch.tensor([1.0, 0.0, 1.0])
    for name in (*OF_POSITIVES, "f1_macro"):
        assert np.isfinite(value_of(name, output, held)), name
        assert np.isnan(value_of(name, output, some)), name
    for name in ("f1_micro", "recall_weighted", "jaccard_samples"):
        assert np.isfinite(value_of(name, output, some)), name
        assert np.isnan(value_of(name, output, some * 0)), name


@for_each("engine", ["serial", "stacked"])
def test_a_client_without_a_positive_is_in_no_mean_of_what_is_of_positives(engine):
    x, y = torch.eye(2).repeat(20, 1), torch.arange(40) % 2
    tests, names = [(x, y), (x[y == 0], y[y == 0])], [*OF_POSITIVES, "auc", "matthews_corrcoef"]
    model = nn.Linear(2, 2)
    problem = fk.Problem(model=model, loss=F.cross_entropy, clients=[(x, y)] * 2, tests=tests, metrics=names)
    made = experiment(problem, participation=1.0, lr=0.5, rounds=5, evaluation={"model": "global"})
    last = fk.run(made, engine=engine).records[-1]
    for name in names:
        assert last.clients[name] == [1, None], name
        assert last.extra[f"client_{name}"] == last.extra[f"client_{name}_worst"] == 1, name
        assert last.extra[f"client_{name}_std"] == 0, name


def test_which_way_is_up():
    """Every scorer of scikit-learn rises (its old `max_error` apart), also those with a loss in their name."""
    fall = ("ece", "validation_ece", "client_max_error", "test_loss", "neighbour_loss", "distance", "client_distance",
            "client_accuracy_std", "perplexity", "gradient-divergence/before/fc", "spectrum/distance/1",
            "update/spread", "MeanSquaredError", "MulticlassHammingDistance", "KLDivergence",
            "validation_MulticlassHingeLoss", "cost", "client_cost", "logloss", "wer", "cer", "rmsle", "hinge",
            "hamming", "false_positive_rate", "fpr", "fnr", "misclassified", "bce", "cross_entropy", "smape", "huber",
            "regret", "nrmse", "crps", "pinball", "negative_log_likelihood", "neg_log_likelihood",
            "validation_NegativeLogLikelihood", "negative_likelihood_ratio", "neg_log_likelihood_loss", "fpr_at_tpr",
            "hausdorff", "bits_per_byte", "brier_score", "false_negative_rate", "hamming_loss")  # fmt: skip
    rise = {"validation_neg_log_loss", "client_d2_log_loss_score", "auc", "iou", "MulticlassF1Score", "MulticlassAUROC",
            "update/cosine", "update/agreement", "log_likelihood", "tpr_at_fpr", "recall_at_false_positive_rate",
            "ndcg", "r2", "silhouette", *get_scorer_names()} - {"max_error"}  # fmt: skip
    for name in fall:
        assert lower_is_better(name), name
    for name in rise:
        assert not lower_is_better(name), name
    assert all(map(tells_direction, (*fall, *rise)))
    open_names = ("waiting_time", "mean", "of_mine", "costly", "accuracy_gap", "accuracy_variance", "recall_difference",
                  "neg_accuracy", "negative_recall", "negative_log_loss", "true_negative_rate")  # fmt: skip
    assert not any(map(tells_direction, open_names))


def test_targets_that_name_no_class_are_scored_nowhere():
    """A loss ignores them, so that every metric is what it is without them; of samples and of pixels."""
    output, target = predictions(samples=60)
    ignored = torch.arange(60) % 3 == 0
    for mark in (-100, 255):
        marked = target.masked_fill(ignored, mark)
        pixels = output.reshape(10, 6, 3).movedim(-1, 1), marked.reshape(10, 6)
        for name in (*NAMES, "iou", "accuracy"):
            expected = value_of(name, output[~ignored], target[~ignored])
            assert value_of(name, output, marked) == pytest.approx(expected, rel=1e-12), name
            assert value_of(name, *pixels) == pytest.approx(expected, rel=1e-12), name
    for name in (*NAMES, "iou"):
        assert np.isnan(value_of(name, output, torch.full_like(target, -100))), name


@for_each("ignored", [0, 2])
def test_a_class_that_the_loss_ignores_is_none_that_others_are_ranked_against(ignored):
    """Its chance stays, as for sites and torchmetrics; a class without a sample has no value still."""
    output, target = predictions(classes=4, samples=60)
    left, counted = [label for label in range(4) if label != ignored], target != ignored
    chance, labels = output.double().softmax(-1)[counted][:, left], F.one_hot(target, 4)[counted][:, left]
    pixels = output.reshape(10, 6, 4).movedim(-1, 1), target.reshape(10, 6)
    loss = nn.CrossEntropyLoss(ignore_index=ignored)
    score = theirs.roc_auc_score, theirs.average_precision_score
    for name, expected in zip(("auc", "average_precision"), (one(labels, chance) for one in score), strict=True):
        metric = read_as_loss(find_metrics(name)[name], loss, ignored)
        for given in ((output, target), (output[counted], target[counted]), pixels):
            assert metric(*given) == pytest.approx(expected, rel=1e-12), name
        some = target != left[0]
        assert np.isnan(metric(output[some], target[some])), name
        assert np.isnan(metric(output[:, :3], target.clamp(max=1) * 2)), name


def test_torchmetrics_by_name(monkeypatch):
    """A stand-in: its classes are told the number of classes, and get probabilities."""

    class MulticlassTop(torch.nn.Module):
        def __init__(self, num_classes, average="macro"):
            super().__init__()
            self.num_classes = num_classes

        def forward(self, preds, target):
            assert torch.allclose(preds.sum(-1), torch.ones(len(preds), dtype=preds.dtype))
            return (preds.argmax(-1) == target).double().mean() * self.num_classes

    output, target = predictions()
    monkeypatch.setitem(sys.modules, "torchmetrics", None)
    with pytest.raises(RequestError, match="needs torchmetrics, which is not installed"):
        find_metrics("torchmetrics:MulticlassTop")
    given = SimpleNamespace(MulticlassTop=MulticlassTop)
    monkeypatch.setitem(sys.modules, "torchmetrics", SimpleNamespace(classification=given))
    right = float((output.argmax(-1) == target).double().mean())
    assert value_of("torchmetrics:MulticlassTop", output, target) == pytest.approx(3 * right)
    with pytest.raises(RequestError, match="no metric called: Nothing"):
        find_metrics("torchmetrics:Nothing")


def test_torchmetrics_of_zeros_and_ones_gets_chances(monkeypatch):
    """Stand-ins: it would take scores that all lie between 0 and 1 for chances. Numbers are compared as they are."""
    seen = []

    def stand_in(module, **takes):
        def make(**told):
            return lambda preds, target: seen.append((told, preds, target)) or 0.0

        make.__module__ = f"torchmetrics.{module}"
        parts = [Parameter(name, Parameter.KEYWORD_ONLY, default=value) for name, value in takes.items()]
        make.__signature__ = Signature(parts)
        return make

    kinds = SimpleNamespace(
        BinaryTop=stand_in("classification.top", threshold=0.5),
        MultilabelTop=stand_in("classification.top", num_labels=None),
        Top=stand_in("classification.top", task=None, num_classes=None, num_labels=None),
        MeanError=stand_in("regression.error"),
    )
    monkeypatch.setitem(sys.modules, "torchmetrics", SimpleNamespace(classification=kinds))
    scores, held = torch.tensor([[0.1, 0.9], [0.4, 0.2], [0.3, 0.3]]), torch.tensor([[0, 1], [1, 1], [0, 0]])
    one, labels = {"task": "binary"}, {"task": "multilabel", "num_labels": 2}
    for output, target, task in ((scores[:, :1], held[:, :1], one), (scores[:, 0], held[:, 0], one),
                                 (scores[:, :1], held[:, 0], one), (scores, held, labels)):  # fmt: skip
        told = {"BinaryTop": (), "MultilabelTop": ("num_labels",) if task is labels else (), "Top": tuple(task)}
        for kind in (torch.int64, torch.float32, torch.bool):
            for name, words in told.items():
                value_of(f"torchmetrics:{name}", output, target.to(kind))
                found, preds, truth = seen.pop()
                assert found == {word: task[word] for word in words}
                assert torch.equal(preds, output.sigmoid().reshape(target.shape)), name
                assert torch.equal(truth, target), name
            value_of("torchmetrics:MeanError", output, target.to(kind))
            assert torch.equal(seen.pop()[1], output)


# ---- runs ----------------------------------------------------------------------------------------------------------
def spread(output, target):
    return float(output.std())


def test_a_run_measures_what_its_model_predicts_on_every_engine(monkeypatch):
    monkeypatch.setattr("fedkeel.problems.task.CHUNK", 7)  # in parts, which no metric sees
    problem = small_problem()
    x, y = problem.test
    for engine in ("serial", "stacked"):
        run = fk.run(experiment(problem, validation=0.3), engine=engine, metrics=[*NAMES, spread])
        with torch.no_grad():
            output = run.model()(x)
        for name, metric in (find_metrics(NAMES) | {"spread": spread}).items():
            assert run.curve(name)[-1] == pytest.approx(float(metric(output, y)), rel=1e-6), name
            assert len(run.curve(f"validation_{name}")) == 2


ONE_NUMBER = {
    "in a tensor": lambda output, target: output.std()[None],
    "in an array": lambda output, target: np.array([[output.std()]]),
    "in a list": lambda output, target: [float(output.std())],
}
PER_SAMPLE = {
    "numbers": lambda output, target: output[:, 0],
    "columns": lambda output, target: output[:, :1],
    "several each": lambda output, target: output.square(),
    "in one row": lambda output, target: output.square().flatten().tolist(),
}


def test_a_metric_is_one_number_of_all_samples_or_a_mean_over_them(monkeypatch):
    monkeypatch.setattr("fedkeel.problems.task.CHUNK", 7)
    problem = small_problem()
    run = fk.run(experiment(problem, rounds=1), engine="serial", metrics=ONE_NUMBER | PER_SAMPLE)
    with torch.no_grad():
        output = run.model()(problem.test[0])
    for name, metric in (ONE_NUMBER | PER_SAMPLE).items():
        expected = float(np.mean(np.asarray(metric(output, problem.test[1]), dtype=np.float64)))
        assert run.curve(name) == pytest.approx([expected], rel=1e-6), name


@pytest.mark.parametrize("values", [(0.9, 1e-23), torch.tensor([0.2, 0.4, 0.6]), np.eye(2)], ids=type)
def test_a_metric_of_several_numbers_is_refused_before_the_first_round(values):
    rounds = list[int]()
    with pytest.raises(ExperimentError, match=r"'pair' returns \d values for 2 samples, and \d for 4\."):
        fk.run(
            experiment(rounds=1),
            engine="serial",
            metrics={"pair": lambda output, target: values},
            callbacks=lambda at: rounds.append(at.record.round),
        )
    assert not rounds


class Words(torch.nn.Module):
    """Scores of 5 classes for each word of a sample."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(5, 5)

    def forward(self, x):
        return self.embed(x).movedim(-1, 1)


def test_the_accuracy_is_over_the_targets_that_count(monkeypatch):
    """Hits over targets of the whole split, however many of them each part has; also of clients, and of batches."""
    monkeypatch.setattr("fedkeel.problems.task.CHUNK", 4)
    draw = torch.Generator().manual_seed(1)

    def sample(size, ignored):
        x = torch.randint(0, 5, (size, 7), generator=draw)
        return x, ((x * 2) % 5).where(torch.rand(size, 7, generator=draw) > ignored, -100)

    def join(*parts):
        return tuple(map(torch.cat, zip(*parts, strict=True)))

    test = join(sample(5, 0.9), sample(6, 0.2), sample(4, 1.0))
    tests = [sample(5, 0.8), sample(6, 0.0)]
    problem = fk.Problem(
        model=Words(), loss=torch.nn.CrossEntropyLoss(), clients=[sample(9, 0.5) for _ in tests], test=test, tests=tests
    )

    def share(model, x, y):
        with torch.no_grad():
            return float((model(x).argmax(1) == y).sum() / (y >= 0).sum())

    for engine in ("serial", "stacked"):
        run = fk.run(experiment(problem, participation=1.0, evaluation={"model": "global"}, lr=3.0), engine=engine)
        last, model = run.records[-1], run.model()
        assert last.extra["server_accuracy"] == pytest.approx(share(model, *test), rel=1e-6)
        assert 0 < last.extra["server_accuracy"]
        assert last.clients["accuracy"] == pytest.approx([share(model, *one) for one in tests], rel=1e-5)
    nothing = replace(problem, test=sample(5, 1.0), tests=None)
    assert fk.run(experiment(nothing), engine="serial").records[-1].accuracy is None


def count_steps(output, target):
    """Ordered classes: output k says whether the target is above k, so 3 outputs have 4 classes."""
    above = (target[:, None] > torch.arange(3)).to(output)
    return F.binary_cross_entropy_with_logits(output, above, reduction="none").sum(1)


def share_of_steps(output, target):
    return ((output > 0).sum(1) == target).double()


def test_labels_without_an_output_on_which_the_loss_trains_are_no_classes(caplog):
    """Nobody invents an accuracy of ordered classes; one of the problem's own counts the last class, too."""
    x = torch.linspace(-2, 2, 40)[:, None].expand(40, 6)
    y = torch.arange(40) // 10
    problem = replace(small_problem(), loss=count_steps, clients=[(x, y), (x[::2], y[::2])], test=(x, y), classes=None)
    for engine in ("serial", "stacked"):
        run = fk.run(experiment(problem, rounds=1), engine=engine, metrics=["f1"])
        assert run.result["judged_on"] == "test_loss"
        assert run.records[-1].accuracy is run.records[-1].extra["f1"] is None
    assert caplog.text.count("the loss trains on the label 3, of which the network has no output") == 2
    caplog.clear()
    run = fk.run(experiment(problem, rounds=1), engine="serial", metrics={"accuracy": share_of_steps})
    with torch.no_grad():
        assert run.records[-1].accuracy == pytest.approx(float(share_of_steps(run.model()(x), y).mean()))
    assert "no scores of classes" not in caplog.text


def look_up_steps(output, target, inverted=0.0):
    """The same of a table, which has no row for the label 4. Where `inverted`, output k says "not above"."""
    steps = (torch.tril(torch.ones(4, 3), -1) - inverted).abs()[target]
    losses = F.binary_cross_entropy_with_logits(output, steps.to(output), torch.tensor([3.0, 2.0, 1.0]))
    return losses + 0.01 * output.square().mean()


def count_visits(output, target):
    """Counts of which two outputs say the mean and the spread; nobody has the count 2."""
    return F.gaussian_nll_loss(output[:, 0], target.double(), output[:, 1].exp(), reduction="none")


BEYOND = [
    ("steps", count_steps, 3, [0, 1, 2, 3], 3),
    ("steps in a table", look_up_steps, 3, [0, 1, 2, 3], 3),
    ("inverted steps", functools.partial(look_up_steps, inverted=1.0), 3, [0, 1, 2, 3], 3),
    ("counts", count_visits, 2, [0, 1, 9, 5], 5),
]


@for_each("why, loss, outputs, labels, beyond", BEYOND)
def test_outputs_that_a_loss_does_not_raise_for_their_own_class_are_no_scores(why, loss, outputs, labels, beyond):
    torch.manual_seed(0)
    data = torch.randn(4, 6), torch.tensor(labels)
    task = Task(replace(small_problem(), model=nn.Linear(6, outputs), loss=loss, clients=[data], test=data, head=None))
    assert task.label_beyond == beyond


def mask_third(output, target, added=0.0):
    """The label 3 is ignored beside 3 outputs."""
    counts = target != 3
    return F.cross_entropy(output[counts], target[counts], reduction="sum") / counts.sum().clamp(min=1) + added


def spread_third(output, target):
    """The label 3 is none of 3 classes: no output of it is to be high."""
    return F.binary_cross_entropy_with_logits(output, F.one_hot(target, 4)[:, :3].to(output))


def weigh_third(output, target):
    """Classes 0 and 3 have no weight, and outputs are to be small."""
    losses = F.cross_entropy(output, target.clamp(max=2), reduction="none")
    return losses * torch.tensor([0.0, 1.0, 1.0, 0.0])[target] + 0.01 * output.square().mean()


IGNORING = [
    ("an option", nn.CrossEntropyLoss(ignore_index=3), 3),
    ("with weights of classes", nn.CrossEntropyLoss(torch.tensor([1.0, 5.0, 0.2]), ignore_index=3), 3),
    ("an argument", functools.partial(F.cross_entropy, ignore_index=3), 3),
    ("of each sample", lambda output, target: F.cross_entropy(output, target, ignore_index=3, reduction="none"), 3),
    ("0 / 0", lambda output, target: F.cross_entropy(output, target, ignore_index=3), 3),
    ("0", mask_third, 3),
    ("beside a number", functools.partial(mask_third, added=0.5), 3),
    ("beside a penalty", lambda o, t: mask_third(o, t) + 0.01 * o.pow(2).mean(), 3),
    ("as another class", weigh_third, 3),
    ("of none of the classes", spread_third, 3),
    ("padding", lambda output, target: F.cross_entropy(output, target, label_smoothing=0.1), -100),
    (
        "of no class",
        lambda o, t: F.cross_entropy(o, t, ignore_index=255, reduction="sum") + 0.1 * o.square().sum(),
        255,
    ),
    ("unlabelled", lambda o, t: F.cross_entropy(o, t, ignore_index=-1, reduction="sum") - o.softmax(1).amax(), -1),
    ("nobody has it", lambda output, target: count_steps(output, target), 2),
]


@for_each("why, loss, label", IGNORING)
def test_labels_that_a_loss_ignores_leave_outputs_scores_of_classes(why, loss, label):
    small = small_problem()
    data = [(x, y.masked_fill(torch.arange(len(y)) % 3 == 2, label)) for x, y in (*small.clients, small.test)]
    task = Task(replace(small, loss=loss, clients=data[:-1], test=data[-1]))
    assert task.label_beyond is None
    assert "accuracy" in task.measure(task.module, task.prepare(data[-1]))


@for_each("engine, method", itertools.product(["serial", "stacked"], ["fedavg", "smoothed+fedavg", "fedlc", "fedgmt"]))
def test_a_class_that_the_loss_ignores_is_as_if_it_named_none(engine, method):
    """As the padding of texts, which has an output of its own: the numbers are those of targets that are -100."""
    small, found = small_problem(), []
    partial = functools.partial(F.cross_entropy, ignore_index=0)
    for loss, label in ((nn.CrossEntropyLoss(ignore_index=0), 0), (partial, 0), (nn.CrossEntropyLoss(), -100)):
        data = [(x, y.masked_fill(y == 0, label)) for x, y in (*small.clients, small.test)]
        made = replace(small, loss=loss, clients=data[:-1], test=data[-1], tests=data[:-1], metrics=["f1_macro", "ece"])
        run = fk.run(experiment(made, method=method, evaluation={"model": "global"}), engine=engine)
        found.append((run.result["model_digest"], run.records[-1].accuracy, run.records[-1].extra))
    assert found[0] == found[1] == found[2]
    assert 0 < found[0][1] < 1


@for_each("engine, weights, trained", [("serial", "uniform", True), ("stacked", "size", False)])
def test_a_client_none_of_whose_targets_count_is_in_no_mean_over_clients(engine, weights, trained):
    """All is as if it had no test sample, whether or not it has trained on such targets."""
    problem = replace(small_problem(), loss=F.cross_entropy)
    tests = [(x, torch.full_like(y, -100) if client == 2 else y) for client, (x, y) in enumerate(problem.clients)]
    clients = tests if trained else problem.clients
    found = []
    for last in (tests[2], tuple(part[:0] for part in tests[2])):
        made = replace(problem, clients=clients, tests=[*tests[:2], last, *tests[3:]])
        policy = {"model": "global", "weights": weights}
        found.append(fk.run(experiment(made, evaluation=policy, rounds=1), engine=engine))
    run, expected = found
    assert run.records[-1].extra == pytest.approx(expected.records[-1].extra, rel=1e-6)
    assert run.records[-1].extra["client_loss"] > 0
    assert run.records[-1].clients["accuracy"][2] is None
    for name in ("judged_on", "best", "reported"):
        assert run.result[name] == pytest.approx(expected.result[name])


def correlate(output, target):
    if len(target) < 2:
        raise ValueError("at least two samples")
    return np.corrcoef(output[:, 0], target)[0, 1]


def correlate_many(output, target):
    return np.nan if len(target) < 2 else correlate(output, target)


@for_each("whose", [{"model": "global", "clients": "selected"}, {"model": "local"}])
def test_a_client_whose_samples_a_metric_does_not_take_has_no_score(whose):
    """As if the metric gave no number for it; also where no other client is scored in that round. One has 1 sample."""
    problem = replace(small_problem(), tests=small_problem().clients, metrics=[correlate, correlate_many])
    run = fk.run(experiment(problem, evaluation=whose, participants=[[3], [0, 3, 5]]), engine="serial")
    for record in run.records:
        assert record.clients["correlate"] == record.clients["correlate_many"]
        assert record.clients["correlate"][3] is None
        for part in ("", "_worst", "_std"):
            one, other = (record.extra.get(f"client_{name}{part}") for name in ("correlate", "correlate_many"))
            assert one == other
    assert run.records[-1].extra["client_correlate"] is not None


def test_a_metric_that_takes_no_clients_samples_is_refused_and_names_one():
    tests = [(x[:1], y[:1]) for x, y in small_problem().clients]
    problem = replace(small_problem(), tests=tests, test=None, metrics=[correlate])
    with pytest.raises(
        ExperimentError, match="'correlate' does not take all predictions of client 0: ValueError: at le"
    ):
        fk.run(experiment(problem, evaluation={"model": "global"}), engine="serial")


@pytest.mark.slow
def test_a_run_in_processes_measures_the_same():
    runs = [fk.run(experiment(), engine=engine, metrics=NAMES) for engine in ("serial", "processes")]
    for name in NAMES:
        assert runs[0].curve(name) == runs[1].curve(name)


def test_metrics_of_a_problem_and_of_a_run_are_the_same_and_change_no_result():
    plain = fk.run(experiment(), engine="serial")
    of_run = fk.run(experiment(), engine="serial", metrics=NAMES)
    of_problem = fk.run(experiment(replace(small_problem(), metrics=NAMES)), engine="serial")
    for name in NAMES:
        assert of_run.curve(name) == of_problem.curve(name)
    assert plain.result == of_run.result
    stopped = fk.run(experiment(rounds=9), engine="serial", metrics="ece", callbacks=fk.KeepBest("ece"))
    assert stopped.kept["best"].score == min(stopped.curve("ece"))


def test_outputs_that_are_not_finite_have_no_score_and_end_no_run():
    """One test sample is too large for the network: scikit-learn refuses its output."""
    problem = small_problem()
    x, y = (part.clone() for part in problem.test)
    x[0] *= torch.finfo(x.dtype).max / x[0].abs().max()
    wild = replace(problem, test=(x, y), model=torch.nn.Linear(6, 3))
    with torch.no_grad():
        wild.model.weight.mul_(1e3)
    names = ["auc", "neg_log_loss", "ece", "f1"]
    plain, run = (fk.run(experiment(wild), engine="serial", metrics=of) for of in ((), names))
    assert run.result == plain.result
    assert run.records[-1].extra["auc"] is run.records[-1].extra["neg_log_loss"] is None


def test_samples_of_whole_metrics_are_prepared_once():
    """Two rounds more prepare as many batches with such a metric as without."""

    def count(metrics, rounds):
        asked = list[int]()
        prepared = replace(small_problem(), prepare=lambda raw, keys: asked.append(1) or raw)
        fk.run(experiment(prepared, rounds=rounds), metrics=metrics, engine="serial")
        return len(asked)

    assert count("f1", 3) - count("f1", 1) == count((), 3) - count((), 1)


class Prototypes(torch.nn.Module):
    """Gives distances, and beside them so many prototypes and a number, which belong to no sample."""

    def __init__(self, count):
        super().__init__()
        draw = torch.Generator().manual_seed(2)
        self.prototypes = torch.nn.Parameter(torch.randn(count, 6, generator=draw))

    def forward(self, x):
        return {"distances": torch.cdist(x, self.prototypes), "prototypes": self.prototypes, "scale": 0.5}


def nearest(output, target):
    return output["scale"] * output["distances"].min(1).values + 0.1 * output["prototypes"].square().mean()


@pytest.mark.parametrize("count", [3, 4, 27])
def test_what_a_network_gives_beside_its_samples_is_as_long_as_it_is(count):
    """Also where clients have as many validation samples, 4 each, or a loss is tried on as many samples, 27."""
    problem = replace(small_problem((8, 8, 8)), model=Prototypes(count), loss=nearest)
    counted = replace(problem, metrics={"rows": lambda output, target: float(len(output["prototypes"]))})
    run = fk.run(experiment(counted, validation=0.5, rounds=1), engine="serial")
    assert run.records[-1].extra["validation_rows"] == run.records[-1].extra["rows"] == count
    assert Task(problem).separable


@pytest.mark.slow
def test_every_client_has_its_scores():
    generator = torch.Generator().manual_seed(0)
    sizes = (3, 0, 8, 5, 1, 6)
    tests = [(torch.randn(n, 6, generator=generator), torch.arange(n) % 3) for n in sizes]
    for model in ("local", "global"):
        made = experiment(replace(small_problem(), tests=tests), evaluation={"model": model}, validation=0.2)
        run = fk.run(made, engine="serial", metrics=["f1", "auc"])
        clients = run.records[-1].clients
        assert clients["accuracy"][1] is None
        assert clients["auc"][4] is None, "one sample has one class"
        there = [value for value in clients["f1"] if value is not None]
        assert len(there) == 5
        extra = run.records[-1].extra
        assert extra["client_f1"] == pytest.approx(np.mean(there), rel=1e-5)
        assert extra["client_auc"] == pytest.approx(np.mean([v for v in clients["auc"] if v is not None]), rel=1e-5)
        assert extra["client_accuracy_worst"] == pytest.approx(min(v for v in clients["accuracy"] if v is not None))
    with torch.no_grad():  # of the server's model
        output = run.model()(tests[2][0])
    assert clients["f1"][2] == pytest.approx(theirs.f1_score(tests[2][1], output.argmax(-1), average="macro"), rel=1e-5)


# ---- names and mistakes --------------------------------------------------------------------------------------------
def test_metrics_on_the_command_line_are_measured_on_after_a_pause(trained, fedkeel, tmp_path):
    (tmp_path / "own_metrics.py").write_text("def bias(output, target):\n    return output.mean()\n")
    trained("--method", "fedavg", "--out", "here", "--metrics", "f1,own_metrics:bias")
    assert fedkeel("resume", "here", "--rounds", "3").code == 2, "code that a folder names is not imported unasked"
    assert fedkeel("resume", "here", "--rounds", "3", "--trust").code == 0
    run = fk.load_run("here")
    assert len(run.curve("f1")) == len(run.curve("bias")) == 3
    assert "did you mean 'f1'" in fedkeel("run", "--metrics", "f11").err


def test_names_that_lead_back():
    assert name_metrics(find_metrics([*NAMES, spread])) == [*NAMES, "test_metrics:spread"]
    assert name_metrics(find_metrics({"here": lambda output, target: 1.0})) == []


def test_a_run_without_data_to_measure_metrics_on_says_so(caplog):
    problem = replace(small_problem(), test=None)
    tests = replace(problem, tests=problem.clients)
    fk.run(experiment(problem, rounds=1), engine="serial", metrics=["auc", "f1"])
    assert caplog.text.count("nothing measures auc, f1: there is neither a test set nor a validation share;") == 1
    caplog.clear()
    fk.run(experiment(replace(tests, metrics="auc"), rounds=1), engine="serial")
    assert "nothing measures auc" in caplog.text
    assert "no evaluation asks for the clients' test sets" in caplog.text
    caplog.clear()
    fk.run(experiment(problem, rounds=1), engine="serial")
    fk.run(experiment(small_problem(), rounds=1), engine="serial", metrics="auc")
    fk.run(experiment(problem, rounds=1, validation=0.3), engine="serial", metrics="auc")
    fk.run(experiment(tests, rounds=1, evaluation={"model": "global"}), engine="serial", metrics="auc")
    assert "nothing measures" not in caplog.text


def test_metrics_that_are_not_for_several_labels_are_refused_before_training():
    x, y = torch.randn(12, 6), torch.eye(3)[torch.arange(12) % 3]
    problem = fk.Problem(
        model=nn.Linear(6, 3), loss=F.binary_cross_entropy_with_logits, clients=[(x, y)] * 2, test=(x, y)
    )
    rounds = list[int]()
    for name in ("ece", "matthews_corrcoef", "iou", "balanced_accuracy"):
        with pytest.raises(ExperimentError, match=f"'{name}' is not for several labels at once: ") as refused:
            fk.run(experiment(problem), engine="serial", metrics=name, callbacks=lambda at: rounds.append(1))
        assert "average_precision and neg_log_loss are means over labels" in refused.value.hint
    assert not rounds
    names = [
        "f1",
        "auc",
        "average_precision",
        "neg_log_loss",
        "accuracy",
        "f1_samples",
        "roc_auc_ovr",
        "d2_brier_score",
    ]
    taken = [name for name in names if name in (*get_scorer_names(), "auc")]
    ended = replace(problem, model=nn.Sequential(nn.Linear(6, 3), nn.Sigmoid()), loss=nn.BCELoss())
    for made in (problem, ended, replace(problem, clients=[(x, y)], test=None)):
        assert len(fk.run(experiment(made, rounds=1), engine="serial", metrics=taken).records) == 1


WRONG = {
    "no metric is called: f2": "f2",
    "functions by name": [lambda output, target: 0.0],
    "measures drift already": {"drift": spread},
    "part of Python": "os:getcwd",
}


def test_what_is_no_metric_is_refused_in_a_line():
    for message, given in WRONG.items():
        with pytest.raises(RequestError, match=message):
            find_metrics(given)
    with pytest.raises(ExperimentError, match="'broken' does not take all predictions: ZeroDivisionError"):
        fk.run(experiment(rounds=1), engine="serial", metrics={"broken": lambda output, target: 1 / 0})
    own = replace(small_problem(), model=torch.nn.Linear(6, 1), loss=lambda o, t: (o[:, 0] - t) ** 2)
    with pytest.raises(ExperimentError, match="'ece' does not take all predictions: ValueError"):
        fk.run(experiment(own, rounds=1), engine="serial", metrics="ece")


@pytest.mark.slow
@for_each("loss", [nn.BCELoss(), functools.partial(F.binary_cross_entropy), F.binary_cross_entropy])
def test_named_metrics_read_outputs_as_the_loss_does(loss):
    """A network that ends in a sigmoid is scored as the same network without; metrics of numbers see chances."""
    x = torch.linspace(-2, 2, 40, dtype=torch.float64)[:, None]
    y = (x[:, 0] > 0.3).double()

    def measured(end, loss, names):
        network = nn.Sequential(nn.Linear(1, 1), end, nn.Flatten(0)).double()
        nn.init.constant_(network[0].weight, 1.5)
        nn.init.constant_(network[0].bias, -0.2)
        problem = fk.Problem(model=network, loss=loss, clients=[(x, y)], test=(x, y), metrics=names)
        record = fk.run(fk.Experiment(problem=problem, rounds=1, batch_size=40, epochs=1, lr=0.5), engine="serial")
        return record.records[-1].extra | {"accuracy": record.records[-1].accuracy}

    names = ["accuracy", "f1", "auc", "ece", "neg_log_loss"]
    plain, ended = measured(nn.Identity(), nn.BCEWithLogitsLoss(), names), measured(nn.Sigmoid(), loss, names)
    for name in names:
        assert ended[name] == pytest.approx(plain[name], abs=1e-6), name
    assert plain["accuracy"] > 0.9
    error = measured(nn.Sigmoid(), loss, ["neg_mean_squared_error"])["neg_mean_squared_error"]
    assert -0.25 < error < 0

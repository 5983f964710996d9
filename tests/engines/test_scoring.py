"""Many models scored at once get the scores they get one by one."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from for_each import for_each
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

import fedkeel as fk
from fedkeel.core.trees import Tree
from fedkeel.engines.engine import ScoreRequest, Training
from fedkeel.engines.scoring import Scorer
from fedkeel.engines.stacked import scoring as scoring_stacked
from fedkeel.engines.stacked.engine import StackedEngine
from fedkeel.engines.stacked.scoring import group_by_size, range_means
from fedkeel.methods import build
from fedkeel.models import build as build_model
from fedkeel.problems.gradients import Workspace
from fedkeel.problems.predictions import Scores, average_scores
from fedkeel.problems.task import Part, Task
from fedkeel.runs.prepare import cross_entropy

SIZES = (7, 1, 19, 8, 5, 12)
CHUNK = 8


def images(size: int, seed: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return torch.rand(size, 3, 16, 16, generator=draw), torch.randint(0, 4, (size,), generator=draw)


def task_of(**changes: Any) -> Task:
    """Clients whose own test sets are of 1 to 19 images, in stretches of 8."""
    clients = [images(2, seed) for seed in range(len(SIZES))]
    model = build_model("small-cnn", shape=(3, 16, 16), classes=4, seed=0)
    tests = [images(size, 100 + i) for i, size in enumerate(SIZES)]
    usual: dict[str, Any] = {
        "model": model,
        "loss": cross_entropy,
        "clients": clients,
        "tests": tests,
        "test": images(30, 99),
    }
    dtype, device = changes.pop("dtype", torch.float64), changes.pop("device", "cpu")
    return Task(fk.Problem(**(usual | changes)), dtype=dtype, device=device, personal_chunk=CHUNK)


def model_of(task: Task, client: int) -> ScoreRequest:
    """A model that differs from client to client."""
    noise = torch.randn(task.initial.buffer.shape, generator=torch.Generator().manual_seed(client), dtype=torch.float64)
    params = Tree(task.initial.buffer + 0.05 * noise.to(task.initial.buffer), task.initial.layout)
    return ScoreRequest(params, task.buffers, f"client {client}")


def one_by_one(task: Task, models: list[ScoreRequest]) -> list[list[Scores]]:
    workspace = Workspace(task)
    return [[workspace.score(m.params, m.buffers, part) for part in task.parts(m.split)] for m in models]


def assert_same(found: list[list[Scores]], expected: list[list[Scores]]) -> None:
    assert [[s.keys() for s in scores] for scores in found] == [[s.keys() for s in scores] for scores in expected]
    mine, theirs = ([v for scores in of for s in scores for v in s.values()] for of in (found, expected))
    assert [count for _, count in mine] == [count for _, count in theirs]
    assert [total for total, _ in mine] == pytest.approx([total for total, _ in theirs], rel=1e-12, abs=1e-12)


class Watched(Scorer):
    """Notes how many models each group and each forward pass has."""

    def __init__(self, task: Task):
        super().__init__(Workspace(task), stacked=True)
        self.groups: list[int] = []
        self.passes: list[int] = []

    def group(self, models: list[ScoreRequest]) -> Any:
        found = super().group(models)
        self.groups.append(len(models))
        self.passes += [len(means.models) for means in found]
        return found


def test_stacked_models_score_what_each_scores_alone() -> None:
    task = task_of()
    models = [model_of(task, client) for client in range(len(SIZES))]
    scorer, expected = Watched(task), one_by_one(task, models)
    for _ in range(2):  # from the host, then from what was kept
        assert_same(scorer.many(models), expected)
    assert scorer.groups == [6, 6]
    assert [len(scores) for scores in expected] == [1, 1, 3, 1, 1, 2]
    assert len({scores[0]["loss"] for scores in expected}) == len(SIZES)


def test_stacked_models_leave_out_what_each_leaves_out_alone() -> None:
    """A target that names no class, as -100, counts neither for nor against a model."""
    tests = [images(size, 100 + i) for i, size in enumerate(SIZES)]
    tests = [(x, y.where(torch.arange(len(y)) % 3 > 0, -100)) for x, y in tests]
    task = task_of(tests=tests)
    models = [model_of(task, client) for client in range(len(SIZES))]
    scorer, expected = Watched(task), one_by_one(task, models)
    assert_same(scorer.many(models), expected)
    assert scorer.groups == [6]
    counts = [sum(part["accuracy"][1] for part in scores) for scores in expected]
    assert counts == [int((y >= 0).sum()) for _, y in tests]
    assert [scores[0]["loss"][1] for scores in expected] == [7, 1, 8, 8, 5, 8]
    assert math.isnan(average_scores(expected[1])["accuracy"]), "of one sample, which does not count"


@pytest.mark.parametrize(("held", "groups"), [(1, [1] * 6), (2, [2] * 3), (4, [4, 2])])
def test_scores_do_not_depend_on_how_many_are_held(monkeypatch: pytest.MonkeyPatch, held: int, groups: Any) -> None:
    task = task_of()
    models, scorer = [model_of(task, client) for client in range(len(SIZES))], Watched(task)
    monkeypatch.setattr(scoring_stacked, "HELD_BYTES", held * task.initial.buffer.nbytes)
    assert_same(scorer.many(iter(models)), one_by_one(task, models))
    assert scorer.groups == groups


@pytest.mark.parametrize(("rows", "passes"), [(99, [2, 3, 1]), (24, [1, 2, 2, 1]), (18, [1, 1, 1, 1, 2])])
def test_scores_do_not_depend_on_how_many_fit(monkeypatch: pytest.MonkeyPatch, rows: int, passes: Any) -> None:
    """By rows: 19 12 | 8 7 5 | 1, then 19 | 12 8 | 7 5 | 1; 19 are too many for 18 and part the others' group."""
    task = task_of()
    models, scorer = [model_of(task, client) for client in range(len(SIZES))], Watched(task)
    assert scorer.stacks is not None
    scorer.stacks.weight_bytes = 1
    monkeypatch.setattr(scoring_stacked, "STACK_BYTES", rows * scorer.stacks.row_bytes + 2)
    assert_same(scorer.many(iter(models)), one_by_one(task, models))
    assert scorer.passes == passes


@pytest.mark.parametrize("order", [(5, 4, 3, 2, 1, 0), (2, 0, 1, 3, 2, 5)])
def test_the_order_of_models_does_not_matter(order: tuple[int, ...]) -> None:
    task = task_of()
    scorer, models = Scorer(Workspace(task), stacked=True), [model_of(task, client) for client in range(len(SIZES))]
    found = scorer.many(models)
    assert_same(scorer.many([models[i] for i in order]), [found[i] for i in order])


def test_a_model_is_judged_by_its_own_samples_alone() -> None:
    """One that has diverged spoils no other, though others are as long and lie beside it."""
    task = task_of()
    models = [model_of(task, client) for client in range(len(SIZES))]
    broken = models[4]._replace(params=models[4].params * float("nan"))
    scorer = Scorer(Workspace(task), stacked=True)
    before, after = scorer.many(models), scorer.many([*models[:4], broken, *models[5:]])
    assert [scores == other for scores, other in zip(before, after, strict=True)] == [True] * 4 + [False, True]
    assert torch.tensor(after[4][0]["loss"][0]).isnan()


def test_other_splits_and_empty_test_sets_are_no_part_of_a_stack() -> None:
    tests = [images(size, 100 + i) for i, size in enumerate((3, 0, 4, 4, 1, 2))]
    task = task_of(tests=tests)
    models = [model_of(task, client) for client in range(6)]
    models.insert(3, models[0]._replace(split="test"))
    scorer = Watched(task)
    assert_same(scorer.many(models), one_by_one(task, models))
    assert scorer.groups == [1, 1, 1, 1, 3]
    assert scorer.many([]) == []


def test_one_model_is_scored_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_of()
    scorer, (model,) = Scorer(Workspace(task), stacked=True), [model_of(task, 2)]
    monkeypatch.setattr(scorer, "stacks", None)
    expected = scorer(*model)
    scorer = Scorer(Workspace(task), stacked=True)
    assert scorer(*model) == scorer.many([model])[0] == expected == one_by_one(task, [model])[0]


def per_sample(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output, target, reduction="none")


def average(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output, target)


def sure(output: Tensor, target: Tensor) -> Tensor:
    return output.softmax(-1).amax(-1)


BATCH_NORM = nn.Sequential(nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(392, 4))


@for_each(
    "changes",
    [{"metrics": {"sure": sure}}, {"loss": average}, {"loss": per_sample}, {"model": BATCH_NORM}],
)
def test_what_may_depend_on_other_samples_is_not_stacked(changes: dict[str, Any]) -> None:
    task = task_of(**changes)
    models = [model_of(task, client) for client in range(len(SIZES))]
    scorer = Scorer(Workspace(task), stacked=True)
    assert scorer.stacks is None
    assert scorer.many(models) == one_by_one(task, models)


def test_batch_norms_are_judged_by_what_they_remember() -> None:
    """By kernels too, where one model is lowered."""
    task = task_of(model=BATCH_NORM)
    assert task.buffers is not None
    model = model_of(task, 2)._replace(buffers=0.5 * task.buffers.ones() + task.buffers)
    assert_same([Scorer(Workspace(task), lowered=True)(*model)], one_by_one(task, [model]))
    assert one_by_one(task, [model]) != one_by_one(task, [model_of(task, 2)])


class Small(Workspace):
    """A workspace whose device takes no more than so many rows at a time."""

    most: int

    def load(self, params: Tree, buffers: Tree | None) -> None:
        super().load(params, buffers)
        self.seen: list[int] = []

        def refuse(module: nn.Module, given: tuple[Tensor, ...]) -> None:
            self.seen.append(len(given[0]))
            if len(given[0]) > self.most:
                raise torch.OutOfMemoryError("CUDA out of memory")

        assert self.task.module is not None
        self.task.module.register_forward_pre_hook(refuse)


def test_fewer_rows_are_scored_at_once_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("fedkeel.problems.task", "fedkeel.engines.scoring"):
        monkeypatch.setattr(f"{module}.CHUNK", 4)
    task = task_of()
    wanted = Scorer(Workspace(task_of()))(task.initial, task.buffers, "test")
    workspace = Small(task)
    workspace.most = 16
    scorer = Scorer(workspace)
    scorer.rows = 40
    found = scorer(task.initial, task.buffers, "test")
    assert max(workspace.seen) <= 10  # 40 and 20 were too many, and no more are tried than fit
    assert sum(n for part in found for _, n in [part["loss"]]) == 30
    total, expected = (sum(part["loss"][0] for part in parts) for parts in (found, wanted))
    assert total == pytest.approx(expected, rel=1e-12)
    workspace.most = 3
    with pytest.raises(torch.OutOfMemoryError):
        scorer(task.initial, task.buffers, "test")


def test_a_preparation_sees_the_same_rows() -> None:
    """One of the user's own may look at all samples it gets."""

    def brightest(raw: Any, keys: Any) -> Any:
        return raw[0] / raw[0].amax(), raw[1]

    task = task_of(prepare=brightest)
    models = [model_of(task, client) for client in range(len(SIZES))]
    assert_same(Scorer(Workspace(task), stacked=True).many(models), one_by_one(task, models))


def test_prepared_samples_are_kept_while_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    row = 3 * 16 * 16 * 8 + 8
    monkeypatch.setattr("fedkeel.problems.prepared_samples.KEPT_BYTES", 10 * row)
    task = task_of()
    models, asked, raw = [model_of(task, client) for client in (0, 2, 5)], list[int](), task.read_part

    def watched(part: Part) -> Any:
        asked.append(part.last - part.first)
        return raw(part)

    monkeypatch.setattr(task, "read_part", watched)
    scorer = Scorer(Workspace(task), stacked=True)
    expected, first = scorer.many(models), len(asked)
    assert scorer.many(models) == expected
    assert sum(asked[first:]) == 7 + 19 + 12 - CHUNK  # the longest test set comes first


def test_no_two_groups_are_in_memory_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_of()
    scorer, alive, most = Watched(task), list[Any](), 0
    monkeypatch.setattr(scoring_stacked, "HELD_BYTES", 2 * task.initial.buffer.nbytes)

    def made() -> Iterator[ScoreRequest]:
        nonlocal most
        for _ in range(7):
            model = model_of(task, 0)
            alive.append(weakref.ref(model.params.buffer))
            most = max(most, sum(ref() is not None for ref in alive))
            yield model
            del model

    assert len(scorer.many(made())) == 7
    assert scorer.groups == [2, 2, 2, 1]
    assert most == 3  # the third says that two are enough


def test_the_arithmetic_is_that_of_the_run() -> None:
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        task = task_of(dtype=dtype, model=build_model("logistic", shape=(3, 16, 16), classes=4, seed=0))
        engine = StackedEngine(task, build("fedavg"), Training(seed=1, epochs=1, batch_size=3))
        found.append([s[0]["loss"][0] for s in engine.scorer.many([model_of(task, client) for client in (0, 3)])])
        assert engine.scorer.stacks is not None
    assert found[1] == pytest.approx(found[0], rel=1e-2)
    assert found[1] != pytest.approx(found[0], rel=1e-6)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # importing torch's own compiler gives some
@pytest.mark.parametrize(("dtype", "near"), [(torch.float64, 1e-11), (torch.float32, 1e-4), (torch.bfloat16, 2e-2)])
def test_kernels_of_a_gpu_score_the_same(dtype: torch.dtype, near: float) -> None:
    task, reference = task_of(dtype=dtype, device="cuda"), task_of()
    engine = StackedEngine(task, build("fedavg"), Training(seed=1, epochs=1, batch_size=3))
    found = engine.evaluate_many([model_of(task, client) for client in range(len(SIZES))])
    expected = one_by_one(reference, [model_of(reference, client) for client in range(len(SIZES))])
    mine, theirs = ([s["loss"][0] for scores in of for s in scores] for of in (found, expected))
    assert engine.scorer.stacks is not None
    assert mine == pytest.approx(theirs, rel=near)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=40), st.integers(1000, 5000))
def test_padding_never_doubles_the_rows(sizes: list[int], most: int) -> None:
    stacks = group_by_size(sizes, lambda models, rows: models * rows <= most)
    padded = [len(some) * max(sizes[i] for i in some) for some in stacks]
    assert sorted(i for some in stacks for i in some) == list(range(len(sizes)))
    assert sum(padded) <= 2 * sum(sizes)
    assert max(padded) <= most


@settings(deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 3))
def test_means_of_stretches(lengths: list[int], gap: int) -> None:
    firsts, at = [], 0
    for length in lengths:
        firsts.append(at)
        at += length + gap
    each = torch.arange(2.0 * at, dtype=torch.float64).view(at, 2).square()
    expected = [each[first : first + length].mean(0) for first, length in zip(firsts, lengths, strict=True)]
    assert torch.allclose(range_means(each, firsts, lengths), torch.stack(expected), rtol=1e-14, atol=0)


def test_an_infinite_loss_is_infinite_in_the_mean() -> None:
    each = torch.tensor([[1.0], [2.0], [float("inf")]], dtype=torch.float64)
    assert range_means(each, [0, 2], [2, 1]).tolist() == [[1.5], [float("inf")]]


def test_clients_validation_shares_are_scored_together(monkeypatch: pytest.MonkeyPatch) -> None:
    clients = [images(size, seed) for seed, size in enumerate((10, 20, 30, 40))]
    model = build_model("small-cnn", shape=(3, 16, 16), classes=4, seed=0)
    problem = fk.Problem(model=model, loss=cross_entropy, clients=clients, test=images(5, 99))
    task = Task(problem, dtype=torch.float64, validation=0.5)
    apart = [task.score(task.module, part) for part in task.parts("validation")]
    calls: list[int] = []
    plain = Task.measure

    def counted(task: Task, model: Any, tensors: Any) -> dict[str, Tensor]:
        calls.append(len(tensors[0]))
        return plain(task, model, tensors)

    monkeypatch.setattr(Task, "measure", counted)
    together = Scorer(Workspace(task))(task.initial, task.buffers, "validation")
    assert calls == [50]
    assert average_scores(together) == pytest.approx(average_scores(apart), rel=1e-12)
    scorer = Scorer(Workspace(task))
    scorer.rows = 25
    assert average_scores(scorer(task.initial, task.buffers, "validation")) == pytest.approx(average_scores(apart))
    assert calls[1:] == [15, 15, 20]

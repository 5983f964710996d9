"""What a `prepare` and an object with rows of one's own give: one row for each sample, the same when asked again."""

import numpy as np
import pytest
import torch
from for_each import for_each
from torch import nn
from torch.nn import functional as F

import fedkeel as fk

X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
Y = (X.sum(1) > 0).long()


def train(engine="serial", clients=((X[:20], Y[:20]), (X[20:], Y[20:])), model=None, **given):
    torch.manual_seed(1)
    problem = fk.Problem(
        model=nn.Linear(3, 2) if model is None else model, loss=F.cross_entropy, clients=clients, **given
    )
    settings = {"rounds": 1, "participation": 1.0, "epochs": 1, "batch_size": 8, "lr": 0.1}
    return fk.run(fk.Experiment(problem=problem, **settings), engine=engine, dtype=torch.float64)


def first(raw, count):
    return tuple(part[:count] for part in raw)


WRONG = {
    "have to be a tuple of tensors, not NoneType": lambda raw, keys: None,
    "have to be a tuple of tensors, not Tensor": lambda raw, keys: raw[0],
    "have to be tensors, not ndarray": lambda raw, keys: tuple(part.numpy() for part in raw),
    r"have to be 8, .* shapes \(1, 3\), \(1,\)": lambda raw, keys: first(raw, 1),
    r"have to be 8, .* shapes \(16, 3\), \(16,\)": lambda raw, keys: tuple(torch.cat([part, part]) for part in raw),
    "have to be .* shapes none": lambda raw, keys: (),
    r"have to be 8, .* shapes \(7, 3\)": lambda raw, keys: raw if keys is None else first(raw, len(keys) - 1),
    "are sparse": lambda raw, keys: (raw[0].to_sparse(), raw[1]),
    "another number of parts with keys": lambda raw, keys: raw if keys is None else (raw[0], *raw),
    "called again without keys": lambda raw, keys: (raw[0] + torch.randn_like(raw[0]), raw[1]),
    "called again with the same keys": lambda raw, keys: (
        raw[0] if keys is None else raw[0] + np.random.rand(),
        raw[1],
    ),
}


@for_each("told", WRONG)
def test_a_prepare_that_gives_other_samples_is_refused_before_training(told):
    for engine in ("serial", "stacked"):
        with pytest.raises(fk.DataError, match=told):
            train(engine, prepare=WRONG[told])


@for_each("engine", ["serial", "stacked"])
def test_a_prepare_that_loses_samples_of_some_batches_alone_is_refused_when_it_does(engine):
    with pytest.raises(fk.DataError, match=r"have to be 4, .* shapes \(3, 3\)"):
        train(engine, prepare=lambda raw, keys: first(raw, 3) if len(raw[0]) == 4 else raw)


@for_each("prepare", [lambda raw: raw, lambda raw, *, keys: raw, lambda raw, keys, more: raw])
def test_a_prepare_that_does_not_take_samples_and_keys_is_refused_with_the_problem(prepare):
    with pytest.raises(fk.ExperimentError, match=r"prepare\(sample, keys\): "):
        fk.Problem(model=nn.Linear(3, 2), loss=F.cross_entropy, clients=[(X, Y)], prepare=prepare)


def test_a_part_without_a_name_is_refused():
    """The network would be given the second part as its labels."""

    class Named(nn.Linear):
        def forward(self, x, labels=None):
            return super().forward(x)

    with pytest.raises(fk.DataError, match="prepare returns 3 parts of samples that have 2 with names") as refused:
        train(
            clients=[{"x": X, "labels": Y}], model=Named(3, 2), prepare=lambda raw, keys: (raw[0], raw[0] * 0, raw[1])
        )
    assert refused.value.hint.endswith("x, labels")


def test_a_prepare_that_draws_from_seeds_of_its_keys_trains_alike():
    def draw(raw, keys):
        if keys is None:
            return raw
        torch.manual_seed(int(keys[0]))
        return raw[0] + torch.randn_like(raw[0]), raw[1]

    one, other = (train(engine, prepare=draw).params["weight"] for engine in ("serial", "stacked"))
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


class Rows:
    """Data of one's own, whose rows are those that `change` makes of the numbers."""

    sizes = np.array([20, 20])

    def __init__(self, change):
        self.change = change

    def rows(self, client, rows):
        at = self.change(torch.from_numpy(rows))
        return None if at is None else (X[client::2][at], Y[client::2][at])


LOST = {
    "the rows of Rows have to be a tuple of tensors, not NoneType": lambda at: None,
    r"the rows of Rows have to be 8, .* shapes \(16, 3\)": lambda at: at.repeat(2),
    "the clients' data give other rows": lambda at: at.sort().values,
    r"the rows of Rows have to be 8, .* shapes \(5, 3\)": lambda at: at[:5],
}


@for_each("told", LOST)
def test_rows_that_are_not_those_asked_for_are_refused_before_training(told):
    with pytest.raises(fk.DataError, match=told):
        train(clients=Rows(LOST[told]))
    assert train(clients=Rows(lambda at: at)).records


def test_rows_whose_last_digits_depend_on_their_place_are_trained_on():
    """As a product of matrices in NumPy gives them: `X[rows] @ W` for features that are made on reading."""

    class Projected(Rows):
        def rows(self, client, rows):
            x, y = super().rows(client, rows)
            return x * (1 + 1e-6 * torch.arange(len(x))[:, None]), y

    assert train(clients=Projected(lambda at: at)).records

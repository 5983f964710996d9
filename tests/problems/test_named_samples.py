"""Samples by name, networks that take them so, and outputs that hold their logits somewhere."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn

import fedkeel as fk
from fedkeel.studies.diagnose import analyse
from fedkeel.studies.extent import Extent
from problems import small_problem


@dataclass
class Answer:
    logits: torch.Tensor
    features: torch.Tensor


class Pair(nn.Module):
    """A network of two inputs that answers in one of several ways."""

    def __init__(self, answer="tensor"):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.a, self.b = nn.Linear(6, 3), nn.Linear(2, 3, bias=False)
        self.answer = answer

    def forward(self, left, right):
        logits = self.a(left) + self.b(right).tanh()
        if self.answer == "tensor":
            return logits
        return Answer(logits, left) if self.answer == "object" else {"features": left, "logits": logits}


def named(sample):
    """Columns in another order than a network takes them, and not the order of the alphabet."""
    x, y = sample
    return {"right": x[:, :2] ** 2, "labels": y.to(torch.int32), "left": x}


def by_position(sample):
    x, y = sample
    return x, x[:, :2] ** 2, y


def problem(form, **changes):
    small = small_problem()
    return replace(small, clients=[form(client) for client in small.clients], test=form(small.test), **changes)


def trained(given, engine="serial", **changes):
    settings = dict(method="fedavg", rounds=2, participation=1.0, epochs=1, batch_size=4, lr=0.05) | changes
    return fk.run(fk.Experiment(problem=given, **settings), engine=engine, dtype=torch.float64)


def test_samples_by_name_train_as_those_by_position():
    first = trained(problem(by_position, model=Pair()))
    for engine in ("serial", "stacked"):
        for answer in ("tensor", "object", "dict"):
            run = trained(problem(named, model=Pair(answer)), engine)
            assert all((run.params[name] - first.params[name]).abs().max() < 1e-12 for name in first.params)
            assert run.curve("accuracy") == first.curve("accuracy")


def test_objectives_and_metrics_see_logits():
    metrics = {"hits": lambda output, target: (output.argmax(-1) == target).double()}
    given = problem(named, model=Pair("object"), metrics=metrics)
    serial, stacked = (trained(given, engine, method="fedlc") for engine in ("serial", "stacked"))
    assert serial.curve("hits") == serial.curve("accuracy")
    assert all((serial.params[n] - stacked.params[n]).abs().max() < 1e-10 for n in serial.params)


def close(one, other):
    """Whether two diagnostics are the same but for rounding, wherever their numbers stand."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(close(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(close, one, other))
    return one == (pytest.approx(other, rel=1e-5, abs=1e-7, nan_ok=True) if isinstance(other, float) else other)


@pytest.mark.slow
def test_samples_by_name_are_analysed_as_those_by_position():
    """Every diagnostic, and what is tracked of gradients while training."""
    extent = Extent(clients=3, samples=20, lanczos_steps=4, probes=2, points=3, eigenvalues=2)
    track = ("gradient-spectrum", "gradient-divergence", "perturbation-spectrum")
    found = []
    for given in (problem(by_position, model=Pair()), problem(named, model=Pair("dict"))):
        exp = fk.Experiment(
            problem=given, method="fedsam", rounds=2, participation=1.0, epochs=1, batch_size=4, lr=0.05
        )
        run = fk.run(exp, engine="serial", dtype=torch.float64, track=track)
        diagnostics = analyse(run, extent=extent)
        for kind in diagnostics["embedding"]["kinds"].values():
            kind.pop("tsne", None)  # rounding moves it
        found.append(diagnostics | {"tracked": run.records[-1].extra})
    assert found[0]["cka"]["layers"].keys() == {"a", "b"}
    assert len(found[0]["tracked"]) > 50
    for name in found[0]:
        assert close(found[1][name], found[0][name]), name


def test_a_single_input_need_not_have_the_networks_own_name():
    small = small_problem()
    given = replace(small, clients=[{"pixels": x.numpy(), "label": y.numpy()} for x, y in small.clients],
                    test={"label": small.test[1], "pixels": small.test[0]})  # fmt: skip
    assert trained(given).curve("accuracy") == trained(small).curve("accuracy")


class Rows:
    """Clients that give rows by name when they are asked."""

    def __init__(self, clients):
        self.clients, self.sizes = clients, np.array([len(y) for _, y in clients])

    def rows(self, client, rows):
        return named(tuple(part[torch.from_numpy(rows)] for part in self.clients[client]))


def test_data_that_come_row_by_row_may_come_by_name():
    small, expected = small_problem(), trained(problem(named, model=Pair()))
    run = trained(replace(small, model=Pair(), clients=Rows(small.clients), test=Rows([small.test])), validation=0.0)
    assert run.curve("accuracy") == expected.curve("accuracy")


def test_a_loss_of_params_gets_a_dict():
    def loss(params, batch):
        return (batch["x"] @ params["w"] - batch["y"]).square()

    x = torch.linspace(-1, 1, 12).view(6, 2)
    given = fk.Problem(params={"w": torch.zeros(2)}, loss=loss, clients=[{"y": x.sum(1), "x": x}] * 2)
    serial, stacked = (trained(given, engine, rounds=30, lr=0.3) for engine in ("serial", "stacked"))
    assert torch.allclose(serial.params["w"], torch.ones(2).double(), atol=0.1)
    assert torch.allclose(serial.params["w"], stacked.params["w"])


def test_names_are_part_of_a_problems_identity():
    small = small_problem()

    def called(*names):
        return replace(small, clients=[dict(zip(names, client, strict=True)) for client in small.clients], test=None)

    digests = {called(*names).digest() for names in (("x", "y"), ("z", "y"), ("x", "labels"))}
    assert len(digests) == 3
    assert called("x", "y").digest() == called("x", "y").digest()


WRONG = {
    "no target": ([{"x": torch.ones(4, 6), "kind": torch.ones(4)}], "none is called the target: x, kind"),
    "a target alone": ([{"labels": torch.ones(4)}], "none is called the target: labels"),
    "other names": ([{"x": torch.ones(4, 6), "y": torch.ones(4)}, {"z": torch.ones(4, 6), "y": torch.ones(4)}],
                    "the parts of client 1 are called otherwise: z, y; those of client 0: x, y"),
    "unequal lengths": ([{"x": torch.ones(4, 6), "y": torch.ones(5)}], "differ in length"),
    "unpadded": ([{"x": [[1, 2], [3]], "y": [0, 1]}], "is not made of tensors"),
}  # fmt: skip


def test_what_cannot_be_understood_is_refused_in_one_line():
    for clients, line in WRONG.values():
        with pytest.raises(fk.DataError) as refused:
            trained(replace(small_problem(), clients=clients, test=None))
        assert line in refused.value.message
        assert "\n" not in refused.value.message
        assert refused.value.hint
    with pytest.raises(fk.DataError, match="the parts of the test set are called otherwise"):
        trained(replace(problem(named, model=Pair()), test=small_problem().test))
    with pytest.raises(fk.ModelError, match="unexpected keyword argument 'extra'"):
        trained(problem(lambda sample: named(sample) | {"extra": sample[0]}, model=Pair()))


def test_stacked_clients_have_samples_of_one_shape():
    texts = [{"x": torch.ones(4, length), "y": torch.zeros(4, dtype=torch.int64)} for length in (5, 6)]

    class Length(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(1, 3)

        def forward(self, x):
            return self.fc(x.sum(1, keepdim=True))

    given = fk.Problem(model=Length(), loss=nn.functional.cross_entropy, clients=texts)
    assert len(trained(given).records) == 2
    with pytest.raises(fk.DataError, match="samples of clients differ in shape") as refused:
        trained(given, "stacked")
    assert "pad" in refused.value.hint

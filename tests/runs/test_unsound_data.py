"""Data that nothing can be learned from, or judged on, are told as what they are."""

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch

import fedkeel as fk
from fedkeel.problems.class_labels import has_label, list_outside
from problems import small_problem


def with_nan(parts):
    x, y = (part.clone() for part in parts)
    x[0, 0] = torch.nan
    return x, y


def train(problem, **changes):
    settings = {"rounds": 2, "participation": 1.0, "epochs": 1, "batch_size": 8, "lr": 0.1}
    return fk.run(fk.Experiment(problem=problem, **settings | changes), engine="serial")


def read_in_turn(problem, poisoned):
    """The problem with clients that are read when their turn comes, some of which hold what is no number."""
    clients = [with_nan(part) if i in poisoned else part for i, part in enumerate(problem.clients)]
    return replace(problem, clients=ReadInTurn(clients))


def test_inputs_that_are_not_numbers_are_not_blamed_on_the_learning_rate():
    problem = small_problem()
    with pytest.raises(fk.RunError, match="input data of client 0 hold NaN") as caught:
        train(read_in_turn(problem, range(len(problem.clients))))
    assert "lr" not in caught.value.hint


def test_a_client_that_is_left_out_for_its_data_is_told_so(caplog):
    with caplog.at_level(logging.WARNING, "fedkeel"):
        train(read_in_turn(small_problem(), [2]))
    assert "the input data of client 2 hold NaN" in caplog.text


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("changes", [{}, {"validation": 0.3}, {"evaluation": {"model": "global", "share": 0.3}}])
def test_training_inputs_that_are_no_numbers_are_refused_by_client_and_row(value, changes):
    """Wherever a share of the rows is set aside: the row is that of the data as they are given."""
    problem = small_problem()
    for row in range(4):
        x, y = (part.clone() for part in problem.clients[2])
        x[row, 1] = value
        clients = [(x, y) if i == 2 else part for i, part in enumerate(problem.clients)]
        with pytest.raises(fk.DataError, match=rf"numbers that are not finite \(row {row} of client 2\)"):
            train(replace(problem, clients=clients), **changes)


def test_a_run_that_has_begun_leaves_out_whom_it_left_out(tmp_path, monkeypatch):
    """Version 1.1.0 began runs with such data."""
    problem = small_problem()
    poisoned = replace(problem, clients=[with_nan(problem.clients[0]), *problem.clients[1:]])
    settings = {"problem": poisoned, "participation": 1.0, "epochs": 1, "batch_size": 8, "lr": 0.1}
    with monkeypatch.context() as patch:
        patch.setattr("fedkeel.runs.start.check_data", lambda task, **_: None)
        fk.run(fk.Experiment(**settings, rounds=1), out=tmp_path, engine="serial")
    run = fk.run(fk.Experiment(**settings, rounds=2), out=tmp_path, engine="serial")
    assert [record.dropped for record in run.records] == [[0], [0]]


def test_targets_with_gaps_are_trained_on():
    """The loss leaves gaps out; so does one without a module, also of its inputs."""
    x, y = torch.rand(9, 2), torch.rand(9, 1)
    y[3] = torch.nan

    def loss(output, target):
        return torch.where(target.isnan(), 0.0, output - target.nan_to_num()).square()

    assert len(train(fk.Problem(model=torch.nn.Linear(2, 1), loss=loss, clients=[(x, y)])).records) == 2
    x[4, 0] = torch.nan

    def masked(params, batch):
        known = batch[0].nan_to_num() @ params["w"]
        return torch.where(batch[1].isnan(), 0.0, known - batch[1].nan_to_num()).square().mean(1)

    assert train(fk.Problem(params={"w": torch.zeros(2, 1)}, loss=masked, clients=[(x, y)])).records[-1].loss > 0
    with pytest.raises(fk.DataError, match=r"not finite \(row 4\)"):
        train(fk.Problem(params={"w": torch.zeros(2, 1)}, loss=lambda p, b: b[0] @ p["w"], clients=[(x, y)]))


def test_a_client_that_diverges_by_itself_is_still_told_to_lower_lr():
    with pytest.raises(fk.RunError, match="not finite in round") as caught:
        train(small_problem(), lr=1e30, on_nonfinite="stop")
    assert "lower lr" in caught.value.hint


def test_a_test_set_of_what_is_no_number_is_refused():
    problem = small_problem()
    with pytest.raises(fk.DataError, match="the test set hold numbers that are not finite"):
        train(replace(problem, test=with_nan(problem.test)))


class Filling(torch.nn.Module):
    """Fills what is missing in all columns, or in the first alone, and learns from what is missing."""

    def __init__(self, columns):
        super().__init__()
        self.linear, self.columns = torch.nn.Linear(2 * columns, 3), columns

    def forward(self, x):
        filled = torch.where(x.isnan() & (torch.arange(x.shape[1]) < self.columns), 0.0, x)
        return self.linear(torch.cat([filled, x.isnan().to(x)], 1))


def fill(raw, keys=None):
    return torch.nan_to_num(raw[0]), *raw[1:]


def test_a_test_set_whose_missing_numbers_are_filled_is_judged():
    problem = small_problem()
    missing = replace(problem, test=with_nan(problem.test), clients=[with_nan(part) for part in problem.clients])
    clean = replace(missing, test=fill(missing.test), clients=[fill(part) for part in missing.clients])
    assert train(replace(missing, prepare=fill)).curve("test_loss") == train(clean).curve("test_loss")
    network = Filling(problem.test[0].shape[1])
    assert len(train(replace(missing, model=network)).curve("test_loss")) == 2


def test_every_row_is_asked_for():
    """A network may fill some columns and not others."""
    problem = small_problem()
    x, y = with_nan(problem.test)
    network = Filling(x.shape[1])
    network.columns = 1
    assert train(replace(problem, model=network, test=(x, y))).records
    x[-1, 1] = torch.inf
    with pytest.raises(fk.DataError, match="the test set hold numbers that are not finite"):
        train(replace(problem, model=network, test=(x, y)))


@pytest.mark.parametrize("label", [3, 99, -1])
@pytest.mark.parametrize("part", ["test", "clients"])
def test_labels_that_the_model_has_no_output_for_are_refused(label, part):
    problem = small_problem()
    given = problem.test if part == "test" else problem.clients[4]
    x, y = (tensor.clone() for tensor in given)
    y[3] = label
    changed = (x, y) if part == "test" else [*problem.clients[:4], (x, y), *problem.clients[5:]]
    with pytest.raises(fk.DataError, match=rf"hold.* the label {label}, but the model has 3 outputs"):
        train(replace(problem, **{part: changed}))


def words(samples, label=None):
    """Sequences of tokens, and of each the next number; one of them may be a label."""
    x = torch.arange(samples * 6).reshape(samples, 6) % 5
    y = (x + 1) % 5
    if label is not None:
        y[1, 2] = label
    return x, y


class NextWord(torch.nn.Module):
    """Scores of five classes for each token, on the second axis."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.eye(5))

    def forward(self, x):
        return self.weight[x].transpose(1, 2)


class ReadInTurn:
    """Clients that know their sizes, and are read when their turn comes."""

    def __init__(self, clients):
        self.clients, self.sizes = clients, np.array([len(y) for _, y in clients])

    def rows(self, client, rows):
        return tuple(part[torch.from_numpy(rows)] for part in self.clients[client])


def sequences(label=None, part="clients", **changes):
    parts = {"clients": [words(4), words(9)], "test": words(5)}
    parts |= {"clients": [words(4), words(9, label)]} if part != "test" else {"test": words(5, label)}
    if part == "read":
        parts["clients"] = ReadInTurn(parts["clients"])
    given = {"model": NextWord(), "loss": torch.nn.functional.cross_entropy} | parts
    return fk.Problem(**given | changes)


@pytest.mark.parametrize("label", [5, -1])
@pytest.mark.parametrize("part", ["clients", "test", "read"])
def test_labels_of_words_that_the_model_has_no_output_for_are_refused(label, part):
    """On a GPU the loss would stop it, and all else that runs there."""
    with pytest.raises(fk.DataError, match=rf"hold.* the label {label}, but the model has 5 outputs"):
        train(sequences(label, part))
    assert len(train(sequences(-100, part)).records) == 2


def test_labels_are_tried_as_they_are_prepared():
    """Where `prepare` counts them from 0, the data may count them from 1."""
    x, y = words(9)
    given = sequences(clients=[(x, y + 1)], test=(x, y + 1), prepare=lambda raw, keys: (raw[0], raw[1] - 1))
    assert len(train(given).records) == 2
    flat = small_problem()
    from_one = {"clients": [(x, y + 1) for x, y in flat.clients], "test": (flat.test[0], flat.test[1] + 1)}
    assert train(replace(flat, **from_one, prepare=lambda raw, keys: (raw[0], raw[1] - 1))).records


def test_a_label_of_eight_bits_is_not_taken_for_one_that_is_ignored():
    """156 and -100 have the same eight bits."""
    x, y = torch.zeros(3, 2), torch.tensor([156, 0, 1], dtype=torch.uint8)
    data = fk.Problem(model=torch.nn.Linear(2, 300), loss=torch.nn.functional.cross_entropy, clients=[(x, y)]).data
    assert (has_label(data, -100), has_label(data, 156), list_outside(data, 300)) == (False, True, [])


def test_labels_that_the_loss_leaves_out_are_taken():
    problem = small_problem()
    x, y = (tensor.clone() for tensor in problem.test)
    y[3] = -100  # what CrossEntropyLoss ignores
    assert len(train(replace(problem, test=(x, y))).records) == 2


@pytest.mark.parametrize("kind", [int, np.int64, torch.tensor])
def test_the_class_that_the_loss_ignores_is_any_whole_number(kind):
    """As PyTorch takes it: a client that has no other class has no loss, and is not left out for one."""
    problem = small_problem()
    clients = [(x, y * 0 if i == 2 else y) for i, (x, y) in enumerate(problem.clients)]
    loss = torch.nn.CrossEntropyLoss(ignore_index=kind(0))
    records = train(replace(problem, clients=clients, loss=loss), participation=1.0).records
    assert [record.dropped for record in records] == [[], []]
    counted = problem.test[1] > 0
    right = records[-1].accuracy * int(counted.sum())
    assert right == pytest.approx(round(right))


@pytest.mark.parametrize("missing", [[], [1], [0, 2]])
def test_classes_that_are_tested_and_that_nobody_trains_on_are_named(missing, caplog):
    problem = small_problem()
    clients = [(x[keep], y[keep]) for x, y in problem.clients if (keep := ~torch.isin(y, torch.tensor(missing))).any()]
    with caplog.at_level(logging.WARNING, "fedkeel"):
        train(replace(problem, clients=clients), rounds=1)
    shown = ", ".join(map(str, missing))
    assert caplog.text.count("no client trains on labels that the test data hold") == bool(missing)
    assert f"the test data hold: {shown};" in caplog.text or not missing
    caplog.clear()
    ignoring = torch.nn.CrossEntropyLoss(ignore_index=missing[0] if missing else -100)
    train(replace(problem, clients=clients, loss=ignoring), rounds=1)
    assert caplog.text.count("the test data hold: 2;") == caplog.text.count("the test data hold") == (len(missing) > 1)


def test_data_that_are_read_as_their_turn_comes_are_not_walked_through():
    class Lazy(list):
        sizes = (1, 1)

    problem = replace(small_problem(), clients=Lazy([None, None]))
    assert list_outside(problem.data, 0) == []


def rooms(samples):
    x = torch.rand(samples, 2, generator=torch.Generator().manual_seed(samples))
    return x, x.sum(1, keepdim=True)


EMPTY = {
    "too few for a share": ([rooms(40), rooms(3)], None, 0.3),
    "no samples": ([rooms(40), rooms(0)], None, 0.3),
    "an empty test": ([rooms(40), rooms(3)], [rooms(5), rooms(0)], None),
}


@pytest.mark.parametrize("how", EMPTY)
def test_a_client_without_a_test_sample_has_no_score_also_where_targets_are_fractions(how):
    clients, tests, share = EMPTY[how]
    problem = fk.Problem(
        model=torch.nn.Linear(2, 1), loss=torch.nn.functional.mse_loss, clients=clients, tests=tests, test=rooms(9)
    )
    evaluation = {"model": "global"} | ({"share": share} if share else {})
    assert [score is None for score in train(problem, evaluation=evaluation).records[-1].clients["loss"]] == [
        False,
        True,
    ]


@pytest.mark.parametrize("classes", [False, True])
def test_an_empty_test_set_is_refused(classes):
    x, y = rooms(9)
    problem = fk.Problem(
        model=torch.nn.Linear(2, 2 if classes else 1),
        loss=torch.nn.functional.cross_entropy if classes else torch.nn.functional.mse_loss,
        clients=[(x, y[:, 0].long() if classes else y)],
        test=(x[:0], y[:0, 0].long() if classes else y[:0]),
    )
    with pytest.raises(fk.DataError, match="the test set has no samples"):
        train(problem)

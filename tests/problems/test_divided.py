"""`Experiment(data=…)`: one pool that a partition divides, or a list of clients, with a model by name."""

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import fedkeel as fk
from fedkeel.data.partition.registry import load_partition
from fedkeel.randomness import key
from problems import small_problem

SETTINGS = dict(rounds=2, participation=1.0, epochs=1, batch_size=8, lr=0.1)
DIRICHLET = "dirichlet:alpha=0.5,clients=4"


@pytest.fixture(scope="module")
def pool():
    (train,), test = small_problem(sizes=(60,)).clients, small_problem().test
    return (train[0].float(), train[1]), (test[0].float(), test[1])


def test_a_pool_is_divided_as_a_data_set_is(pool):
    train, test = pool
    made = fk.Experiment(data={"train": train, "test": test, "name": "mine"}, model="logistic", partition=DIRICHLET,
                         **SETTINGS)  # fmt: skip
    problem = made.plan.source
    expected = load_partition(DIRICHLET).divide(train[1].numpy(), key(0, "partition"))
    assert [len(y) for _, y in problem.clients] == np.diff(expected.offsets).tolist()
    assert torch.equal(problem.clients[1][1], train[1][expected[1].tolist()])
    run = fk.run(made, engine="serial")
    assert (run.result["judged_on"], problem.title) == ("accuracy", "mine")
    assert run.result["rounds"] == 2
    assert made == made.with_() != fk.Experiment(data=(train[0], train[1]), model="logistic", partition=DIRICHLET)
    other = made.with_(seed=1).plan.source
    assert not torch.equal(other.clients[0][1], problem.clients[0][1]), "another seed, another split"
    fixed = made.with_(seed=1, partition_seed=0).plan.source
    assert all(torch.equal(a[1], b[1]) for a, b in zip(fixed.clients, problem.clients, strict=True))


def test_data_that_change_afterwards_change_no_experiment(pool):
    """Another seed is made of the data as they were given."""
    train, test = pool
    given = {"train": [train, train], "test": list(test), "name": "mine"}
    made = fk.Experiment(data=given, model="logistic", **SETTINGS)
    expected = made.with_(seed=1)
    saved, identity = expected.save(), expected.undivided
    given["train"].pop()
    given["test"][1] = given["test"][1][:1]
    del given["name"]
    again = made.with_(seed=1)
    assert (again.save(), again.undivided, again.plan.source.title) == (saved, identity, "mine")


def test_classes_that_are_written_as_fractions_are_told(pool, caplog):
    """1.0 may be a class or an amount: the loss is the squared error, and a line says so."""
    (x, y), _ = pool
    for target, told in ((y.float(), 1), (y + 0.5, 0), (torch.arange(60.0), 0), (y, 0)):
        caplog.clear()
        fk.run(
            fk.Experiment(data=(x, target), model="logistic", partition="iid:clients=2", **SETTINGS), engine="serial"
        )
        assert caplog.text.count("if they are classes, make them whole") == told


class Writing:
    """A partition that uses the labels as its notebook."""

    clients = 2

    def divide(self, labels, key, *, groups=None):
        labels[:] = 0
        return [[0, 1], [2, 3]]


def test_a_partition_that_writes_into_the_labels_leaves_the_targets_alone(pool):
    (x, y), _ = pool
    before = y.clone()
    made = fk.Experiment(data=(x, y), model="logistic", partition=Writing(), **SETTINGS)
    assert torch.equal(y, before)
    assert torch.equal(made.plan.source.clients[1][1], before[2:4])


class Answering:
    """A partition that gives what it was made with."""

    clients = 2

    def __init__(self, *parts):
        self.answer = fk.Partition(*map(np.array, parts), 60)

    def divide(self, labels, key, *, groups=None):
        return self.answer


@pytest.mark.parametrize(
    ("indices", "offsets", "line"),
    [
        ([0, 60], [0, 1, 2], "partition Answering gives samples to client 1 that do not exist"),
        ([-1, 5], [0, 1, 2], "partition Answering gives samples to client 0 that do not exist"),
        ([0, 5], [0, 1, 3], "the offsets of partition Answering do not divide its indices"),
        ([0, 5], [0, 2, 1], "the offsets of partition Answering do not divide its indices"),
        ([0.0, 5.0], [0, 1, 2], "the offsets of partition Answering do not divide its indices"),
    ],
)
def test_a_partition_of_samples_that_are_not_there_is_refused(pool, indices, offsets, line):
    with pytest.raises(fk.ExperimentError, match=line) as error:
        fk.Experiment(data=pool[0], model="logistic", partition=Answering(indices, offsets), **SETTINGS)
    assert error.value.hint


def test_every_form_is_a_pool(pool):
    pandas = pytest.importorskip("pandas")
    (x, y), _ = pool
    table = pandas.DataFrame(x.numpy(), columns=list("abcdef")).assign(kind=np.array(["p", "q", "r"])[y.numpy()])
    forms = [(x, y), TensorDataset(x, y), list(zip(x, y, strict=True)), {"train": table, "label": "kind"}]
    digests = set()
    for form in forms:
        made = fk.Experiment(data=form, model="logistic", partition=DIRICHLET, **SETTINGS)
        digests.add(made.plan.source.digest())
    assert len(digests) == 1
    clients = fk.Experiment(data=[(x[:30], y[:30]), (x[30:], y[30:])], model="logistic", **SETTINGS)
    assert [len(y) for _, y in clients.plan.source.clients] == [30, 30]


def test_targets_choose_the_loss_and_the_outputs(pool):
    (x, y), _ = pool
    cases = {
        "cross_entropy": (y, 3),
        "mse_loss": (x[:, :1], 1),
        "binary_cross_entropy_with_logits": ((x[:, :2] > 0) * 1.0, 2),
    }
    for loss, (target, outputs) in cases.items():
        made = fk.Experiment(data=(x, target), model="logistic", partition="iid:clients=3", **SETTINGS)
        assert made.plan.source.loss.__name__ == loss
        run = fk.run(made, engine="serial")
        assert next(iter(dict(run.params.items()).values())).shape[0] == outputs


def test_targets_in_their_usual_types_train_as_those_that_the_loss_takes(pool):
    """Flat fractions as a column, booleans and a column of classes as classes, zeros and ones as fractions."""
    (x, y), (tx, ty) = pool
    kinds = (lambda x, y: x[:, :1], lambda x, y: (y > 0).long(), lambda x, y: (x[:, :2] > 0) * 1.0)
    usual = (
        [lambda y: y.flatten(), lambda y: y.flatten().double().numpy()],
        [
            lambda y: y.bool(),
            lambda y: y[:, None],
            lambda y: y[:, None].bool().numpy(),
            lambda y: y.numpy().astype("uint16"),
        ],
        [lambda y: y.long(), lambda y: y.bool(), lambda y: y.numpy().astype("uint8")],
    )
    for kind, (target, others) in enumerate(zip(kinds, usual, strict=True)):

        def train(change, kind=kind, target=target):
            data = {"train": (x, change(target(x, y))), "test": (tx, change(target(tx, ty)))}
            partition = DIRICHLET if kind == 1 else "iid:clients=3"
            return fk.run(fk.Experiment(data=data, model="logistic", partition=partition, **SETTINGS), engine="serial")

        expected = train(lambda target: target).result
        for change in others:
            found = train(change).result
            assert (found["model_digest"], found["judged_on"]) == (expected["model_digest"], expected["judged_on"])


def test_a_network_of_ones_own_gets_targets_in_their_own_shape(pool):
    (x, _), _ = pool
    network = torch.nn.Sequential(torch.nn.Linear(6, 1), torch.nn.Flatten(0))
    flat = fk.Experiment(data=[(x, x[:, 0])], model=network, **SETTINGS)
    assert flat.plan.source.clients[0][1].shape == (60,)
    tags = fk.Experiment(data=[(x, (x[:, :3] > 0).long())], model=network, **SETTINGS).plan.source
    assert (tags.loss.__name__, tags.classes) == ("cross_entropy", 2)
    flags = fk.Experiment(data=[(x, x[:, 0] > 0)], model=torch.nn.Linear(6, 2), **SETTINGS).plan.source
    assert (flags.loss.__name__, flags.classes, flags.clients[0][1].dtype) == ("cross_entropy", 2, torch.int64)


def test_it_resumes_and_gives_its_model_back(pool, tmp_path):
    train, test = pool
    made = fk.Experiment(data={"train": train, "test": test}, model="logistic", partition=DIRICHLET, **SETTINGS)
    fk.run(made.with_(rounds=1), out=tmp_path, engine="serial")
    resumed = fk.run(made, out=tmp_path, engine="serial")
    assert resumed.result == fk.run(made, engine="serial").result
    read = fk.load_run(tmp_path, problem=made.plan.source)
    with torch.no_grad():
        right = (read.model()(test[0]).argmax(-1) == test[1]).float().mean()
    assert float(right) == pytest.approx(read.last)


def test_what_does_not_fit_is_refused_in_one_line(pool):
    (x, y), _ = pool
    wrong = {
        "either a dataset or a problem": dict(data=(x, y), dataset="digits"),
        "data without a model": dict(data=[(x, y)]),
        "have no part: tset": dict(data={"train": (x, y), "tset": (x, y)}, model="logistic", partition="iid:clients=2"),
        "cannot be divided by class: Dirichlet": dict(data=(x, x), model="logistic", partition=DIRICHLET),
        "from -1 to 1, but classes count from 0": dict(data=[(x, y - 1)], model="logistic"),
        "all targets are -100": dict(data=[(x, torch.full_like(y, -100))], model="logistic"),
        "60 samples are too few for so many classes": dict(data=[(x, y * 1000)], model="logistic"),
        "hold no target beside the inputs": dict(data=(x, y), model="logistic"),
        "hold no client with samples": dict(data=[(x[:0], y[:0])], model="logistic"),
        "is of type int; expected": dict(data=[3, 4], model="logistic"),
        "are not augmented": dict(data=[(x, y)], model="logistic", augment="crop-flip"),
        "unknown model": dict(data=[(x, y)], model="logstic"),
    }
    for line, given in wrong.items():
        with pytest.raises(fk.RequestError) as error:
            fk.Experiment(**given)
        assert line in error.value.message, error.value.message
        assert error.value.hint


def test_classes_written_as_fractions_are_refused_with_the_way_to_make_them_whole(pool):
    """As a column of labels is after gaps in it. Targets that are fractions indeed get the hint that they had."""
    (x, y), _ = pool
    own = dict(model=torch.nn.Linear(x.shape[1], 4), loss=torch.nn.functional.cross_entropy)
    numbers = dict(model=torch.nn.Linear(x.shape[1], 1), loss=torch.nn.functional.mse_loss, metrics=["f1"])

    def train(**problem):
        return fk.run(fk.Experiment(problem=fk.Problem(**problem), **SETTINGS), engine="serial")

    def divide(target):
        return fk.Experiment(data=(x, target), model="logistic", partition=DIRICHLET, **SETTINGS).plan.source

    whole, parts = y.float(), y.float() + 0.5
    for refuse in (
        lambda target: train(clients=[(x, target)], **own),
        lambda target: train(clients=[(x, target[:, None])], test=(x, target[:, None]), **numbers),
        divide,
    ):
        for target, is_told in ((whole, True), (parts, False)):
            with pytest.raises(fk.FedkeelError) as error:
                refuse(target)
            assert ("y.long()" in error.value.hint) == is_told
    with pytest.raises(fk.ModelError) as error:
        train(clients=[(x[:, :2], whole)], **own)
    assert "y.long()" not in error.value.hint


def test_clients_by_name_are_refused_with_the_way_to_list_them(pool):
    named = {"oslo": pool[0], "bergen": pool[1]}
    network = torch.nn.Linear(pool[0][0].shape[1], 4)
    loss = torch.nn.functional.cross_entropy
    for refused in (
        lambda: fk.Problem(model=network, loss=loss, clients=named),
        lambda: fk.Problem(model=network, loss=loss, clients=[*named.values()], tests=named),
        lambda: fk.Experiment(data=named, model=network).plan,
        lambda: fk.Experiment(data={"train": named}, model="logistic").plan,
    ):
        with pytest.raises(fk.FedkeelError) as error:
            refused()
        assert "=list(d.values())" in error.value.hint

"""What a user's own loss, targets, network and `prepare` do that one sample does not show."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from for_each import for_each
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import fedkeel as fk
from fedkeel.data.clients import TensorClients
from fedkeel.errors import DataError, ExperimentError, ModelError
from fedkeel.problems.class_labels import list_outside
from fedkeel.problems.predictions import class_scores
from fedkeel.problems.task import Task
from fedkeel.runs.prepare import CrossEntropy


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


X = numbers(90, 3)
Y = (X.sum(1) > 0.5).long()


def problem(loss=F.cross_entropy, network=None, target=Y, test=None, **changes):
    torch.manual_seed(1)
    clients = [(X[i::3], target[i::3]) for i in range(3)]
    return fk.Problem(
        model=network() if network else nn.Linear(3, 2), loss=loss, clients=clients, test=test or clients[0], **changes
    )


def train(problem, engine="serial", **changes):
    settings = {"rounds": 2, "participation": 1.0, "epochs": 1, "batch_size": 8, "lr": 0.1} | changes
    return fk.run(fk.Experiment(problem=problem, **settings), engine=engine, dtype=torch.float64)


@for_each("engine", ["serial", "stacked"])
def test_the_loss_of_a_split_with_class_weights_is_that_of_all_its_samples(engine):
    x = numbers(1200, 3, seed=2).double()
    y = (x.sum(1) > 1).long()
    order = y.argsort(descending=True)
    x, y = x[order], y[order]
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 20.0], dtype=torch.float64))
    run = train(problem(loss, test=(x, y)), engine, validation=0.3)
    with torch.no_grad():
        outputs = run.model().double()(x)
        expected = float(loss(outputs, y))
        chunks = [float(loss(outputs[i : i + 500], y[i : i + 500])) for i in (0, 500, 1000)]
    assert run.curve("test_loss")[-1] == pytest.approx(expected, rel=1e-6)
    assert abs((5 * chunks[0] + 5 * chunks[1] + 2 * chunks[2]) / 12 - expected) > 0.01


@for_each("rare", [1, -100])
def test_a_label_that_few_samples_have_shows_that_a_loss_is_no_mean(rare):
    clients = [(X[:size], torch.zeros(size, dtype=torch.int64)) for size in (15, 90)]
    clients[0][1][7] = clients[1][1][7] = rare  # not among the samples that are spread over their data
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 20.0], dtype=torch.float64))
    runs = []
    for engine in ("serial", "stacked"):
        torch.manual_seed(1)
        given = fk.Problem(model=nn.Linear(3, 2), loss=loss, clients=clients, test=clients[1])
        runs.append(train(given, engine, batch_size=20))
    torch.testing.assert_close(runs[1].params["weight"], runs[0].params["weight"], rtol=0, atol=1e-12)
    outputs = runs[0].model().double().cpu()(X.double())
    assert runs[0].curve("test_loss")[-1] == pytest.approx(loss(outputs, clients[1][1]).item(), rel=1e-6)


@for_each("engine", ["serial", "stacked"])
def test_batch_norms_without_running_statistics_are_tried_on_two_samples(engine):
    def network():
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 2))

    assert train(problem(network=network), engine).curve("test_loss")[-1] < 2


@for_each(
    "test, changes, whose",
    [
        ((X[:1], Y[:1]), {}, "test samples"),
        ((X[:5], Y[:5]), {"validation": 0.034}, "validation samples of client 0"),
        ((X[:5], Y[:5]), {"evaluation": {"share": 0.034}}, "test samples of client 0"),
    ],
)
def test_batch_norms_without_running_statistics_score_no_sample_alone(test, changes, whose):
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 2))
    with pytest.raises(ExperimentError, match=f"one of the {whose} would be scored alone"):
        train(problem(network=lambda: network, test=test), **changes)


def test_a_prepare_that_fails_with_keys_is_told():
    def prepare(raw, keys):
        return (raw[0] * (1 if keys is None else keys["none"]), raw[1])

    with pytest.raises(DataError, match=r"prepare\(raw, keys\) fails with keys: IndexError"):
        train(problem(prepare=prepare))


def test_labels_that_are_ignored_are_of_no_class():
    target = Y.clone()
    target[4] = -100
    counting = problem(target=target, classes=2)
    assert train(counting, method="fedlc").curve("test_loss")[-1] < 2
    task = Task(counting)
    assert task.histogram(1).sum() == 29


def test_labels_of_one_byte_are_counted_among_any_number_of_classes():
    """PyTorch brings a number beside eight bits into their range: 256 would be 0 there, and 128 be -128."""
    bytes_of, counts = torch.tensor([0, 7, 7, 100], dtype=torch.uint8), [1, 0, 0, 0, 0, 0, 0, 2]
    for kind, classes in ((torch.uint8, 256), (torch.uint8, 300), (torch.int8, 128), (torch.int64, 256)):
        given = fk.Problem(nn.CrossEntropyLoss(), [(X[:4], bytes_of.to(kind))], nn.Linear(4, classes), classes=classes)
        found = Task(given).histogram(0)
        assert (found[:8].tolist(), found[100], found.sum()) == (counts, 1, 4), (kind, classes)
    signed = TensorClients([(X[:4], torch.tensor([-100, 0, 7, 100], dtype=torch.int8))])
    assert list_outside(signed, 200) == [-100]


@for_each("loss", [nn.CrossEntropyLoss(), nn.CrossEntropyLoss(ignore_index=7), F.cross_entropy, CrossEntropy()])
def test_a_batch_of_ignored_labels_has_no_loss_and_no_gradient(loss):
    """A client that has no others stays where it is, and counts as it is."""
    target = Y.clone()
    target[1::3] = getattr(loss, "ignore_index", -100)
    given = problem(loss, target=target)
    runs = [train(given, engine, rounds=1, batch_size=30) for engine in ("serial", "stacked")]
    start, network = (dict(problem(loss).model.double().named_parameters()) for _ in range(2))
    for i in (0, 2):
        x, y = X[i::3].double(), Y[i::3]
        value = F.cross_entropy(F.linear(x, start["weight"], start["bias"]), y)
        slopes = torch.autograd.grad(value, [*start.values()])
        for leaf, slope in zip(network.values(), slopes, strict=True):
            leaf.data -= 0.1 / 3 * slope
    for run in runs:
        for name, leaf in network.items():
            torch.testing.assert_close(run.params[name].cpu(), leaf.detach())


@for_each(("method", "engine"), list(product(["fedlw", "fedlwsam", "fednolowe"], ["serial", "stacked"])))
def test_a_client_without_labels_has_no_weight_by_its_loss(method, engine):
    """A loss of 0 would be the best of all, and the server would stay where it is."""
    target, given = Y.clone(), problem()
    target[2::3] = -100
    silent = train(problem(target=target), engine, method=method)
    absent = train(replace(given, clients=given.clients[:2]), engine, method=method)
    torch.testing.assert_close(silent.params, absent.params, rtol=0, atol=1e-12)


@for_each("engine", ["serial", "stacked"])
def test_the_loss_is_a_mean_over_the_labels_that_are_not_ignored(engine):
    """Of fedkeel's own cross-entropy as of PyTorch's."""
    target = Y.masked_fill(numbers(90, seed=3) > 0.5, -100)
    runs = [train(problem(loss, target=target), engine) for loss in (nn.CrossEntropyLoss(), CrossEntropy())]
    for measure in ("loss", "test_loss"):
        assert runs[0].curve(measure) == pytest.approx(runs[1].curve(measure), rel=1e-12)


@pytest.mark.parametrize(
    ("engine", "most"), [("serial", 20_000), ("stacked", 20_000), ("serial", 100), ("stacked", 100)]
)
def test_the_test_loss_is_over_the_targets_that_are_not_ignored(engine, most, monkeypatch):
    """Also where training data have no other; of more samples than are seen at once, over the parts that hold some."""
    monkeypatch.setattr("fedkeel.problems.whole_metrics.MOST", most)
    x, y = numbers(1200, 3, seed=2).double(), torch.arange(1200) % 2
    y[500:1000], y[1000::3] = -100, -100
    run = train(problem(test=(x, y)), engine)
    with torch.no_grad():
        outputs = run.model().double()(x)
    first, last = (float(F.cross_entropy(outputs[at], y[at])) for at in (slice(500), slice(1000, None)))
    expected = float(F.cross_entropy(outputs, y)) if most > len(y) else (500 * first + 200 * last) / 700
    assert run.curve("test_loss")[-1] == pytest.approx(expected, rel=1e-6)


@for_each("engine", ["serial", "stacked"])
def test_class_weights_are_brought_to_where_the_loss_is_computed(engine):
    def weighing(precision):
        return nn.CrossEntropyLoss(weight=torch.tensor([1.0, 20.0], dtype=precision))

    single, double = weighing(torch.float32), weighing(torch.float64)
    runs = [train(problem(loss, metrics={"weighed": loss}), engine) for loss in (single, double)]
    assert runs[0].result["model_digest"] == runs[1].result["model_digest"]
    assert runs[0].curve("weighed") == runs[1].curve("weighed")
    assert single.weight.dtype == torch.float32  # the user's own stays as it was


def test_classes_of_pixels_lie_on_the_second_axis_where_both_fit():
    output, target = numbers(4, 6, 6, 6), torch.zeros(4, 6, 6, dtype=torch.int64)
    torch.testing.assert_close(class_scores(output, target), output.movedim(1, -1))
    words = numbers(4, 7, 6)
    assert class_scores(words, torch.zeros(4, 7, dtype=torch.int64)) is words


@pytest.mark.parametrize("length", [4, 5])
@pytest.mark.parametrize("last", [True, False])
def test_where_both_axes_fit_a_loss_of_the_last_is_told(length, last, caplog):
    classes = 5

    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.scores = nn.Embedding(classes, classes)

        def forward(self, x):
            return self.scores(x) if last else self.scores(x).movedim(-1, 1)

    def loss(output, target):
        return F.cross_entropy(output.movedim(-1, 1) if last else output, target)

    x = torch.arange(6 * length).view(6, length) % classes
    torch.manual_seed(0)
    given = fk.Problem(model=Words(), loss=loss, clients=[(x, x)], test=(x, (x + 1) % classes))
    train(given, rounds=1)
    assert len([line for line in caplog.messages if "from the last axis" in line]) == (last and length == classes)


@for_each("shapes", [((90,), 1), ((90, 1), 0)])
def test_a_loss_that_would_compare_all_with_all_is_refused(shapes):
    (shape, width), target = shapes, X[:, 0]

    class Net(nn.Linear):
        def forward(self, x):
            return super().forward(x).reshape((len(x), 1) if width else (len(x),))

    wrong = problem(F.mse_loss, lambda: Net(3, 1), target.reshape(shape))
    with pytest.raises(ModelError, match=r"the network gives \[n.*targets are \[n.*compares all with all"):
        train(wrong)
    guide = problem(lambda output, y: (output - y).square().mean(1), lambda: Net(3, 1), target.reshape(shape))
    with pytest.raises(ModelError, match="compares all with all"):
        train(guide)
    own = problem(
        lambda output, y: (output.flatten() - y.flatten()).square().mean(), lambda: Net(3, 1), target.reshape(shape)
    )
    assert train(own).curve("test_loss")[-1] < 1.5


def test_targets_that_are_not_finite_are_told_unless_the_loss_leaves_them_out(caplog):
    target = X[:, :1].clone()
    holes = target.clone()
    holes[3] = float("nan")

    def masked(output, y):
        there = y.isfinite()
        return (output - y.where(there, 0.0)).square()[there].sum() / there.sum().clamp(min=1)

    def network():
        return nn.Linear(3, 1)

    with pytest.raises(DataError, match="the targets of the test set hold numbers that are not finite"):
        train(problem(F.mse_loss, network, target, (X, holes)))
    train(problem(F.mse_loss, network, holes, (X, target)))
    assert "the targets of client 0 hold NaN or infinite numbers" in caplog.text
    assert train(problem(masked, network, holes, (X, holes))).curve("test_loss")[-1] < 2


@pytest.mark.parametrize("draw", [lambda x: F.dropout(x, 0.5, True), lambda x: x + torch.randn_like(x)])
def test_random_numbers_that_no_module_announces_are_those_of_the_step(draw, tmp_path):
    class Net(nn.Linear):
        def forward(self, x):
            return super().forward(draw(x) if self.training else x)

    experiment = fk.Experiment(
        problem=problem(network=lambda: Net(3, 2)), rounds=3, participation=1.0, epochs=1, batch_size=8, lr=0.1
    )
    whole = fk.run(experiment, engine="serial", dtype=torch.float64)
    fk.run(experiment.with_(rounds=1), engine="serial", dtype=torch.float64, out=tmp_path / "run")
    torch.manual_seed(12)
    again = fk.run(experiment, engine="serial", dtype=torch.float64, out=tmp_path / "run")
    assert all(torch.equal(whole.params[name], again.params[name]) for name in whole.params)


def test_prepare_gets_keys_if_it_looks_at_them():
    seen = []

    def shift(raw, keys):
        seen.append(keys is not None)
        x, y = raw
        if keys is None:
            return raw
        return x + torch.from_numpy((keys % 7).astype("float64"))[:, None].to(x), y

    def plain(raw, keys):
        return raw[0] * 2, raw[1]

    runs = {of: [train(problem(prepare=of), engine) for engine in ("serial", "stacked")] for of in (shift, plain)}
    assert sum(seen) > 20
    for one, other in runs.values():
        for name in one.params:
            torch.testing.assert_close(one.params[name], other.params[name], rtol=1e-9, atol=1e-12)
    still = train(problem(prepare=lambda raw, keys: raw))
    assert not torch.equal(runs[shift][0].params["weight"], still.params["weight"])


class Temperature(nn.Module):
    """A loss with a parameter of its own."""

    def __init__(self):
        super().__init__()
        self.by = nn.Parameter(torch.tensor(1.5, dtype=torch.float64))

    def forward(self, output, target):
        return F.cross_entropy(self.by * output, target)


class Listed(nn.Module):
    """A network that keeps a layer in a plain list, where PyTorch does not find it."""

    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(3, 2, dtype=torch.float64)]
        self.scale = nn.Linear(2, 2)

    def forward(self, x):
        return self.scale(self.layers[0](x))


def test_parameters_that_nobody_would_train_are_refused():
    network = nn.Linear(3, 2)

    def penalised(output, target):
        return F.cross_entropy(output, target) + network.weight.abs().sum()

    for given in (problem(Temperature()), problem(penalised, lambda: network), problem(network=Listed)):
        with pytest.raises(ModelError, match=r"(?s)that would not be trained|same device.*nn.ModuleList"):
            train(given)
    network.requires_grad_(False)  # a teacher
    train(problem(penalised))


class Counting(nn.Module):
    """A loss that weighs classes by how often it has seen them."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.ones(2))

    def forward(self, output, target):
        self.seen += torch.bincount(target, minlength=2)
        return F.cross_entropy(output + self.seen.log(), target)


def test_a_loss_that_changes_from_call_to_call_is_refused():
    calls = []

    def warming(output, target):
        calls.append(1)
        return len(calls) * F.cross_entropy(output, target)

    def drawing(output, target):
        return (1 + np.random.rand()) * F.cross_entropy(output, target)

    for loss in (Counting(), warming, drawing):
        with pytest.raises(ModelError, match="another value for the same sample"):
            train(problem(loss))


def test_what_a_loss_draws_depends_on_the_step_alone(tmp_path):
    def noisy(output, target):
        return F.cross_entropy(output + torch.randn_like(output), target)

    given = problem(noisy)
    torch.manual_seed(5)
    whole = train(given, rounds=3)
    torch.manual_seed(6)
    experiment = {"problem": given, "participation": 1.0, "epochs": 1, "batch_size": 8, "lr": 0.1}
    for rounds in (1, 3):
        run = fk.run(
            fk.Experiment(rounds=rounds, **experiment), out=tmp_path / "run", engine="serial", dtype=torch.float64
        )
    assert run.result["model_digest"] == whole.result["model_digest"]
    assert run.curve("test_loss") == whole.curve("test_loss")


class Changing(nn.Module):
    """A network whose outputs change with what it counts outside of buffers, or draws outside of torch."""

    def __init__(self, change):
        super().__init__()
        self.layer, self.change, self.calls = nn.Linear(3, 2), change, 0
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.layer(x) * self.change(self)


def count_in_training(network):
    return 1 + network.calls if network.training else 1


def draw_by_numpy(network):
    return 1 + np.random.rand()


def count_in_a_buffer(network):
    network.seen.add_(network.training)
    return 1 + network.seen


def draw_by_torch(network):
    return 1 + torch.rand(()) * network.training


def test_a_network_that_gives_another_output_when_called_again_is_refused():
    for change in (count_in_training, draw_by_numpy):
        with pytest.raises(ModelError, match="another output for the same sample"):
            train(problem(network=lambda change=change: Changing(change)))
    for change in (count_in_a_buffer, draw_by_torch):
        train(problem(network=lambda change=change: Changing(change)))


class Checkpointed(nn.Module):
    """A network that computes a layer again for the gradient; a layer before it makes its inputs need one."""

    def __init__(self, before, reentrant):
        super().__init__()
        self.before = nn.Linear(3, 3) if before else nn.Identity()
        self.layer, self.last, self.reentrant = nn.Linear(3, 4), nn.Linear(4, 2), reentrant

    def forward(self, x):
        return self.last(checkpoint(self.layer, self.before(x), use_reentrant=self.reentrant))


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@for_each("before", [False, True])
def test_re_entrant_checkpoints_are_refused_and_others_give_the_same(before):
    with pytest.raises(ModelError, match="use_reentrant=False"):
        train(problem(network=lambda: Checkpointed(before, True)))
    again = train(problem(network=lambda: Checkpointed(before, False)))
    assert max(abs(leaf).max() for name, leaf in again.params.items() if "layer" in name) > 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated:DeprecationWarning")
def test_a_compiled_network_is_the_one_it_was_made_of_and_a_scripted_one_is_refused():
    def network():
        return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))

    plain, compiled = (train(problem(network=make)) for make in (network, lambda: torch.compile(network())))
    assert compiled.result["model_digest"] == plain.result["model_digest"]
    assert compiled.params.keys() == plain.params.keys()
    scripted = torch.jit.trace(network(), torch.zeros(1, 3))
    with pytest.raises(ExperimentError, match="TorchScript"):
        problem(network=lambda: scripted)


def test_a_loss_does_not_ask_for_gradients_of_its_arguments():
    def smooth(output, target):
        return F.cross_entropy(output, target, label_smoothing=0.3 if output.requires_grad else 0.0)

    with pytest.raises(ModelError, match="whether its arguments require gradients"):
        train(problem(smooth))

    def enabled(output, target):
        return F.cross_entropy(output, target, label_smoothing=0.3 if torch.is_grad_enabled() else 0.0)

    serial, stacked = (train(problem(enabled), engine) for engine in ("serial", "stacked"))
    torch.testing.assert_close(serial.params, stacked.params)


class Force(nn.Module):
    """The gradient of an energy by the inputs, which are leaves of every call."""

    def __init__(self):
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))

    def forward(self, x):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            return torch.autograd.grad(self.energy(x).sum(), x, create_graph=True)[0][:, :2]


def test_what_a_network_makes_in_a_call_is_no_parameter():
    train(problem(network=Force))


def test_a_loss_may_write_into_outputs_but_not_into_targets():
    def margin(output, target):
        output[torch.arange(len(target)), target] -= 5.0
        return F.cross_entropy(output, target)

    def apart(output, target):
        return margin(output.clone(), target)

    inside, outside = (train(problem(loss)) for loss in (margin, apart))
    assert inside.result["model_digest"] == outside.result["model_digest"]
    assert inside.curve("accuracy") == outside.curve("accuracy")

    def shifted(output, target):
        target -= 1
        return F.cross_entropy(output, target + 1)

    with pytest.raises(ModelError, match="writes into the samples"):
        train(problem(shifted))


@for_each("draws", [lambda output: torch.randn_like(output), lambda output: output[torch.randperm(len(output))]])
def test_what_is_drawn_in_training_alone_or_by_permutation_depends_on_the_step(draws):
    def noisy(output, target):
        return F.cross_entropy(output + draws(output) if torch.is_grad_enabled() else output, target)

    digests = set()
    for seed in (5, 6):
        given = problem(noisy)
        torch.manual_seed(seed)
        digests.add(train(given).result["model_digest"])
    assert len(digests) == 1


def test_a_metric_that_counts_is_refused():
    seen = []

    def running(output, target):
        seen.append(float((output.argmax(1) == target).sum()) + len(seen))
        return torch.tensor(sum(seen) / len(seen))

    with pytest.raises(ModelError, match="the metric 'running' gives another value"):
        train(problem(metrics={"running": running}))


class Centred(nn.Module):
    """Gives centres of its own beside the outputs, which have no axis of samples."""

    def __init__(self):
        super().__init__()
        self.plain, self.centres = nn.Linear(3, 2), nn.Parameter(torch.ones(5, 2))

    def forward(self, x):
        return self.plain(x), self.centres


@for_each("engine", ["serial", "stacked"])
def test_outputs_without_an_axis_of_samples_belong_to_every_sample(engine):
    def loss(output, target):
        return F.cross_entropy(output[0], target, reduction="none") + output[1][target].square().mean(1)

    run = train(problem(loss, network=Centred), engine)
    assert run.params["centres"][:2].abs().max() < 1


class Prototypes(nn.Module):
    """A loss with matrices that nobody trains."""

    def __init__(self):
        super().__init__()
        self.fixed = nn.Parameter(torch.eye(2), requires_grad=False)

    def forward(self, output, target):
        return F.cross_entropy(output @ self.fixed, target)


def test_frozen_matrices_of_a_loss_have_the_precision_of_outputs():
    settings = {"rounds": 1, "participation": 1.0, "epochs": 1, "batch_size": 8, "lr": 0.1}
    runs = [
        fk.run(fk.Experiment(problem=problem(loss), **settings), engine="stacked", dtype=torch.bfloat16)
        for loss in (Prototypes(), F.cross_entropy)
    ]
    torch.testing.assert_close(runs[0].params, runs[1].params)


class Lazy:
    """A loss that makes a matrix when it is first called."""

    eye = None

    def __call__(self, output, target):
        self.eye = torch.eye(2).to(output) if self.eye is None else self.eye
        return F.cross_entropy(output @ self.eye, target)


def test_a_loss_that_makes_a_part_of_itself_when_called_can_be_resumed(tmp_path):
    settings = {"participation": 1.0, "epochs": 1, "batch_size": 8, "lr": 0.1}
    for rounds in (1, 2):  # each with a loss that has not been called
        experiment = fk.Experiment(problem=problem(Lazy()), rounds=rounds, **settings)
        run = fk.run(experiment, out=tmp_path / "run", engine="serial", dtype=torch.float64)
    assert len(run.records) == 2

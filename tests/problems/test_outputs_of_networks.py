"""What a network gives besides one tensor of real numbers: alike on every engine, or refused."""

from dataclasses import dataclass
from itertools import product

import pytest
import torch
from for_each import for_each
from torch import Tensor, nn
from torch.func import grad
from torch.nn import functional as F

import fedkeel as fk
from fedkeel.engines.stacked.gradients_stacked import StackedWorkspace
from fedkeel.errors import ModelError
from fedkeel.problems.task import Task

SIZES, BATCH = (13, 8, 22), 5  # the last batches are short, so that a stack fills them up


class Net(nn.Module):
    """Two layers, and a function of them and the samples."""

    def __init__(self, forward):
        super().__init__()
        self.hidden, self.head, self.called = nn.Linear(6, 8), nn.Linear(8, 3), forward

    def forward(self, x):
        return self.called(self, x)

    def scores(self, x):
        return self.head(self.hidden(x).relu())


def problem(network, loss):
    generator = torch.Generator().manual_seed(0)
    clients = [
        (torch.randn(size, 6, generator=generator), torch.randint(0, 3, (size,), generator=generator)) for size in SIZES
    ]
    return fk.Problem(model=network, loss=loss, clients=clients, test=clients[0])


def train(engine, network, loss):
    torch.manual_seed(0)
    given = problem(network(), loss)
    experiment = fk.Experiment(problem=given, rounds=2, participation=1.0, epochs=1, batch_size=BATCH, lr=0.1)
    run = fk.run(experiment, engine=engine, dtype=torch.float64)
    return torch.cat([leaf.flatten() for leaf in run.params.values()])


def same_on_engines(network, loss):
    one_by_one, together = (train(engine, network, loss) for engine in ("serial", "stacked"))
    torch.testing.assert_close(together, one_by_one, rtol=0, atol=1e-12)


def entropy(reduction, read=lambda output: output, beside=lambda output: 0.0):
    """Cross entropy of what is read of an output, and something beside it."""

    def loss(output, y):
        each = F.cross_entropy(read(output), y, reduction="none") + beside(output)
        return each.mean() if reduction == "mean" else each

    return loss


def first(output):
    return output[0]


def give_choice(net, x):
    scores = net.scores(x)
    return scores, scores.argmax(-1)


def give_signs(net, x):
    scores = net.scores(x)
    return scores, scores > 0


def give_constants(net, x):
    return {"scores": net.scores(x), "factor": 3, "kind": "classes", "none": None, "shape": x.shape[1:]}


@pytest.mark.slow
@for_each("reduction, choose", list(product(["none", "mean"], [give_choice, give_signs])))
def test_indices_and_masks_stay_what_they_are(reduction, choose):
    def chosen(output):
        scores, choice = output
        if choice.dtype == torch.bool:
            return scores.where(choice, 0.0).sum(1)
        return scores.gather(1, choice[:, None])[:, 0]

    same_on_engines(lambda: Net(choose), entropy(reduction, first, chosen))


@pytest.mark.filterwarnings("ignore:Casting complex values")  # of a check before the run
@for_each("reduction", ["none", "mean"])
def test_complex_outputs_keep_their_imaginary_part(reduction):
    loss = entropy(reduction, lambda output: torch.fft.irfft(output, n=3))
    same_on_engines(lambda: Net(lambda net, x: torch.fft.rfft(net.scores(x))), loss)


@for_each("reduction", ["none", "mean"])
def test_numbers_and_words_beside_tensors_are_left_alone(reduction):
    def scaled(output):
        assert (output["kind"], output["none"], output["shape"]) == ("classes", None, (6,))
        return output["scores"] * output["factor"]

    same_on_engines(lambda: Net(give_constants), entropy(reduction, scaled))


@dataclass
class Scores:
    scores: Tensor


def test_objects_that_hold_tensors_are_refused_by_the_stack_alone():
    loss = entropy("mean", lambda output: output.scores)

    def network():
        return Net(lambda net, x: Scores(net.scores(x)))

    train("serial", network, loss)
    with pytest.raises(ModelError, match="cannot be stacked: its output holds an object of class Scores") as caught:
        train("stacked", network, loss)
    assert "\n" not in caught.value.message
    assert "serial" in (caught.value.hint or "")


class Experts(nn.Module):
    """Two experts, how evenly they are used in a batch, and in which mode that is told."""

    def __init__(self, told="always"):
        super().__init__()
        self.gate, self.experts, self.told = nn.Linear(6, 2), nn.ModuleList(nn.Linear(6, 3) for _ in range(2)), told

    def forward(self, x):
        share = self.gate(x).softmax(-1)
        scores = sum(share[:, i : i + 1] * expert(x) for i, expert in enumerate(self.experts))
        tells = self.told == "always" or self.training
        return scores, share.mean(0).square().sum() if tells else x.new_zeros(())


@pytest.mark.slow
@for_each("reduction, told", list(product(["none", "mean"], ["always", "in training"])))
def test_what_a_network_says_of_a_whole_batch_leaves_out_what_fills_it_up(reduction, told):
    same_on_engines(lambda: Experts(told), entropy(reduction, first, lambda output: output[1]))


@for_each("reduction", ["none", "mean"])
def test_the_number_of_samples_leaves_out_what_fills_a_batch_up(reduction):
    loss = entropy(reduction, lambda output: output[0] / output[1])
    same_on_engines(lambda: Net(lambda net, x: (net.scores(x), len(x))), loss)


class Uncertain(nn.Module):
    """Scores, and learned variances that no sample changes."""

    def __init__(self, count):
        super().__init__()
        self.layer, self.variances = nn.Linear(6, 3), nn.Parameter(torch.linspace(0.1, 0.5, count))

    def forward(self, x):
        return self.layer(x), self.variances


@pytest.mark.slow
@for_each("reduction, count", list(product(["none", "mean"], [1, 2, BATCH, 8])))
def test_what_a_network_gives_for_all_samples_belongs_to_each(reduction, count):
    def read(output):
        assert output[1].shape == (count,)
        return output[0] * (-output[1]).exp().sum()

    same_on_engines(lambda: Uncertain(count), entropy(reduction, read, lambda output: output[1].sum()))


def test_batches_are_still_filled_up_where_no_sample_changes_what_others_have():
    for network, loss, fills in (
        (Uncertain(2), entropy("mean", first), True),
        (Uncertain(8), entropy("mean", first), True),
        (Net(give_choice), entropy("mean", first), True),
        (Experts(), entropy("mean", first), False),
        (nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)), F.cross_entropy, True),
        (nn.Sequential(nn.Linear(6, 8), OwnNorm(8), nn.Linear(8, 3)), F.cross_entropy, False),
    ):
        assert StackedWorkspace(Task(problem(network, loss), dtype=torch.float64)).separable == fills


class OwnNorm(nn.BatchNorm1d):
    """A batch norm that computes by itself, and may keep moments."""

    keeps = False

    def forward(self, x):
        if not self.training:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        mean, variance = x.mean(0), x.var(0, unbiased=False)
        if self.keeps:
            self.running_mean.mul_(0.9).add_(0.1 * mean.detach())
            self.running_var.mul_(0.9).add_(0.1 * variance.detach())
        return (x - mean) / (variance + self.eps).sqrt() * self.weight + self.bias


class KeepingNorm(OwnNorm):
    keeps = True


class WatchingNorm(nn.BatchNorm1d):
    """Passes samples on, and keeps a mean of them."""

    def forward(self, x):
        if self.training:
            self.running_mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return x * self.weight + self.bias + self.running_mean


class CountingNorm(nn.BatchNorm1d):
    """Counts batches, those of all clients unless it is set back."""

    def forward(self, x):
        if self.training:
            self.num_batches_tracked.add_(1)
        return x * self.weight / (1 + self.num_batches_tracked) + self.bias


class AddingNorm(nn.BatchNorm1d):
    """PyTorch's own, and something beside it."""

    def forward(self, x):
        return super().forward(x) + 0.1 * x


def norm_by_hand(width):
    """A norm of PyTorch's class, whose `forward` was replaced."""
    norm = nn.BatchNorm1d(width)
    norm.forward = lambda x: x - x.mean(0)
    return norm


@pytest.mark.slow
@for_each("norm", [OwnNorm, KeepingNorm, WatchingNorm, CountingNorm, AddingNorm, norm_by_hand])
def test_a_batch_norm_with_a_forward_of_its_own_sees_the_batches_of_one_client_as_they_are(norm):
    same_on_engines(lambda: nn.Sequential(nn.Linear(6, 8), norm(8), nn.ReLU(), nn.Linear(8, 3)), F.cross_entropy)


def slope_of_copy(net, x):
    place = x.detach().requires_grad_()
    return torch.autograd.grad(net.scores(place).square().sum(), place, create_graph=True)[0]


def slope_of_layer(net, x):
    hidden = net.hidden(x)
    return torch.autograd.grad(net.head(hidden.relu()).square().sum(), hidden, create_graph=True)[0]


@for_each("slope", [slope_of_copy, slope_of_layer])
def test_a_network_that_takes_gradients_inside_is_refused_by_the_stack_alone(slope):
    def forward(net, x):
        with torch.enable_grad():
            return net.scores(x) + slope(net, x)[:, :3]

    train("serial", lambda: Net(forward), F.cross_entropy)
    with pytest.raises(ModelError, match=r"cannot be stacked: it takes gradients .*test_outputs_of_networks.py, line"):
        train("stacked", lambda: Net(forward), F.cross_entropy)


def test_a_network_that_takes_gradients_by_torch_func_can_be_stacked():
    def forward(net, x):
        return net.scores(x) + grad(lambda place: net.scores(place).square().sum())(x)[:, :3]

    same_on_engines(lambda: Net(forward), F.cross_entropy)

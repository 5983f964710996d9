"""What a network gives besides one tensor of real numbers: alike on every engine, or refused."""

from dataclasses import dataclass
from itertools import product

import pytest
import torch
from for_each import for_each
from torch import Tensor, nn
from torch.nn import functional as F

import fedkeel as fk
from fedkeel.errors import ModelError

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


def train(engine, network, loss, **changes):
    generator = torch.Generator().manual_seed(0)
    clients = [
        (torch.randn(size, 6, generator=generator), torch.randint(0, 3, (size,), generator=generator)) for size in SIZES
    ]
    torch.manual_seed(0)
    problem = fk.Problem(model=network(), loss=loss, clients=clients, test=clients[0])
    settings = {"rounds": 2, "participation": 1.0, "epochs": 1, "batch_size": BATCH, "lr": 0.1} | changes
    run = fk.run(fk.Experiment(problem=problem, **settings), engine=engine, dtype=torch.float64)
    return torch.cat([leaf.flatten() for leaf in run.params.values()])


def same_on_engines(network, loss, **changes):
    one_by_one, together = (train(engine, network, loss, **changes) for engine in ("serial", "stacked"))
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

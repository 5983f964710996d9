"""What a network or a loss hides at its start, or does to its own weights: alike on every engine, or refused."""

import pytest
import torch
from for_each import for_each
from own_networks import CLASSES, Net, same_on_engines, train
from torch import nn
from torch.nn import functional as F

import fedkeel as fk
from fedkeel.errors import ModelError


def zero(layer):
    for weight in layer.parameters():
        nn.init.zeros_(weight)
    return layer


def flat(head):
    return nn.Sequential(nn.Flatten(), head)


def weighted(output, y):
    return F.cross_entropy(output, y, weight=torch.tensor([1.0, 5.0, 0.2], dtype=output.dtype, device=output.device))


@for_each("zeros, ordered", [(True, False), (False, True), (True, True)])
def test_class_weights_are_seen_behind_a_head_of_zeros_and_where_labels_are_sorted(zeros, ordered):
    def network():
        head = nn.Linear(108, CLASSES)
        return flat(zero(head) if zeros else head)

    same_on_engines(network, weighted, ordered)


@for_each("reduction", ["none", "mean"])
def test_a_loss_in_which_samples_meet_is_seen(reduction):
    def centred(output, y):
        return F.cross_entropy(output - output.mean(0), y, reduction=reduction)

    same_on_engines(lambda: flat(nn.Linear(108, CLASSES)), centred)


def test_samples_that_meet_behind_a_gate_of_zeros_are_seen():
    def forward(of, x):
        x = x.flatten(1)
        return of["head"](x) + of["gate"](x - x.mean(0))

    same_on_engines(lambda: Net(forward, head=nn.Linear(108, CLASSES), gate=zero(nn.Linear(108, CLASSES))))


def test_a_network_that_looks_at_the_size_of_a_batch_sees_its_own():
    def forward(of, x):
        return of["head"](x.flatten(1)) * (2.0 if len(x) > 2 else 1.0)

    same_on_engines(lambda: Net(forward, head=nn.Linear(108, CLASSES)))


@for_each("option", ["scale_grad_by_freq", "sparse"])
def test_embeddings_with_gradients_of_their_own_kind(option):
    def forward(of, x):
        return of["head"](of["words"]((x.flatten(1)[:, :4] > 0).long()).mean(1))

    same_on_engines(lambda: Net(forward, words=nn.Embedding(2, 5, **{option: True}), head=nn.Linear(5, CLASSES)))


@for_each(
    "forward",
    [
        lambda of, x: of["head"](F.relu(of["conv"](x)).view(x.size(0), -1)),
        lambda of, x: of["head"](F.max_pool2d(of["conv"](x), 2).view(-1, 8).repeat(1, 4)),
        lambda of, x: of["head"](of["conv"](x).view((len(x), 32))),
    ],
)
def test_what_is_viewed_in_a_client_is_viewed_in_a_stack(forward):
    same_on_engines(lambda: Net(forward, conv=nn.Conv2d(3, 2, 3), head=nn.Linear(32, CLASSES)))


@for_each("make", [lambda: nn.Linear(8, 8), lambda: nn.LayerNorm(8), lambda: nn.BatchNorm1d(8)])
def test_a_layer_may_stand_in_two_places(make):
    def network():
        layer = make()
        between = nn.Linear(8, 8)
        return nn.Sequential(
            nn.Flatten(), nn.Linear(108, 8), layer, nn.ReLU(), between, layer, nn.ReLU(), nn.Linear(8, CLASSES)
        )

    same_on_engines(network)


def renew(of, x):
    of["head"].weight.data = torch.renorm(of["head"].weight.data, 2, 0, 1.0)
    return of["head"](x.flatten(1))


def swap(of, x):
    weight, spare = of["head"].weight, of["head"].__dict__.setdefault("spare", [of["head"].weight.data.clone()])
    weight.data, spare[0] = spare[0], weight.data  # every second call the weight lies where it lay
    return of["head"](x.flatten(1))


def clamp(of, x):
    with torch.no_grad():
        of["head"].weight.clamp_(-1, 1)
    return of["head"](x.flatten(1))


def clamp_in_training(of, x):
    return clamp(of, x) if of["head"].training else of["head"](x.flatten(1))


@pytest.mark.parametrize("engine", ["serial", "stacked"])
@pytest.mark.parametrize("forward", [renew, swap, clamp, clamp_in_training])
def test_a_network_that_writes_into_its_weights_is_refused(forward, engine):
    with pytest.raises(ModelError, match=r"writes into its weight layers\.head\.weight"):
        train(engine, lambda: Net(forward, head=nn.Linear(108, CLASSES)))


def test_an_embedding_that_shortens_its_rows_is_refused():
    def forward(of, x):
        return of["head"](of["words"]((x.flatten(1)[:, :4] > 0).long()).mean(1))

    with pytest.raises(ModelError, match="an embedding needs no max_norm") as told:
        train("serial", lambda: Net(forward, words=nn.Embedding(2, 5, max_norm=9.0), head=nn.Linear(5, CLASSES)))
    assert "words.weight" in told.value.message


def test_class_weights_that_are_nearly_alike_are_seen_in_pixels():
    """The losses of a new network are nearly the same, and so are their mean and their weighted mean."""
    torch.manual_seed(3)
    loss = nn.CrossEntropyLoss(weight=torch.tensor([0.29, 0.34], dtype=torch.float64))
    clients = [(torch.randn(n, 1, 12, 12), torch.randint(0, 2, (n, 12, 12))) for n in (12, 2, 5, 5, 1)]
    network = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 1))
    problem = fk.Problem(model=network, loss=loss, clients=clients)
    experiment = fk.Experiment(problem=problem, rounds=1, participation=1.0, batch_size=50, lr=0.05)
    serial, stacked = (fk.run(experiment, engine=engine, dtype=torch.float64) for engine in ("serial", "stacked"))
    assert (serial.server["params"] - stacked.server["params"]).norm() < 1e-12

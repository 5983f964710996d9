"""Where a network itself turns gradients off, asks for them or hooks into them: alike on every engine, or refused."""

import threading

import pytest
import torch
from for_each import for_each
from own_networks import CLASSES, Net, make_clients, same_on_engines, train
from torch import nn
from torch.nn import functional as F

import fedkeel as fk
from fedkeel.errors import ExperimentError, ModelError
from fedkeel.problems.module_state import name_travelling_buffers

NORMS = [lambda: nn.BatchNorm2d(4), lambda: nn.GroupNorm(2, 4), lambda: nn.InstanceNorm2d(4, affine=True)]


def mask(of, x):
    z = of["norm"](of["conv"](x))
    with torch.no_grad():
        keep = (z > 0).to(z.dtype)
    return of["head"]((z * keep).mean((2, 3)))


def write_elsewhere(of, x):
    z = of["norm"](of["conv"](x))
    with torch.no_grad():
        ones = x.new_zeros(4, 1, 1).add_(1)
    return of["head"]((z * ones).mean((2, 3)))


def probe(of, x):
    with torch.no_grad():
        z = of["norm"](of["conv"](x))
    return of["head"]((z * z).mean((2, 3)))


def teach(of, x):
    with torch.no_grad():
        target = of["norm"](of["conv"](x))
    return of["head"]((of["norm"](of["conv"](x)) + F.relu(target)).mean((2, 3)))


def relu_without_gradients(of, x):
    z = of["norm"](of["conv"](x))
    with torch.no_grad():
        positive = F.relu(z) + (z + x[:, :1, :4, :4])
    return of["head"]((z * positive).mean((2, 3)))


@pytest.mark.slow
@pytest.mark.parametrize("make", NORMS)
@pytest.mark.parametrize("forward", [mask, write_elsewhere, probe, teach, relu_without_gradients])
def test_a_norm_has_gradients_where_it_is_called_not_where_it_is_read(forward, make):
    same_on_engines(lambda: Net(forward, conv=nn.Conv2d(3, 4, 3), norm=make(), head=nn.Linear(4, CLASSES)))


@pytest.mark.slow
@for_each(
    "asked",
    [
        lambda of, z: z.requires_grad,
        lambda of, z: of["head"].weight.requires_grad,
        lambda of, z: of["conv"].weight.requires_grad,
        lambda of, z: (z * 2).requires_grad,
        lambda of, z: not z.detach().requires_grad,
    ],
)
def test_tensors_say_whether_they_require_gradients(asked):
    def forward(of, x):
        z = of["norm"](of["conv"](x))
        return of["head"](z.mean((2, 3))) * (2.0 if asked(of, z) else 1.0)

    layers = {"conv": lambda: nn.Conv2d(3, 4, 3), "norm": NORMS[1], "head": lambda: nn.Linear(4, CLASSES)}
    same_on_engines(lambda: Net(forward, **{name: make() for name, make in layers.items()}))
    plain = train("serial", lambda: Net(lambda of, x: of["head"](of["norm"](of["conv"](x)).mean((2, 3))),
                                        **{name: make() for name, make in layers.items()}))  # fmt: skip
    doubled = train("stacked", lambda: Net(forward, **{name: make() for name, make in layers.items()}))
    assert not torch.allclose(plain, doubled)  # the answer was yes


def test_what_a_frozen_norm_gives_requires_no_gradient():
    def forward(of, x):
        z = of["norm"](of["conv"](x))
        return of["head"](z.mean((2, 3))) * (2.0 if z.requires_grad else 1.0)

    def make():
        net = Net(forward, conv=nn.Conv2d(3, 4, 3), norm=nn.GroupNorm(2, 4), head=nn.Linear(4, CLASSES))
        net.layers["conv"].requires_grad_(False)
        net.layers["norm"].requires_grad_(False)
        return net

    same_on_engines(make)


def hook_tensors(of, x):
    z = of["body"](x.flatten(1))
    if z.requires_grad:
        z.register_hook(lambda slope: 0 * slope)
    return of["head"](z)


def hook_modules(add):
    net = nn.Sequential(nn.Flatten(), nn.Linear(108, 4), nn.Tanh(), nn.Linear(4, CLASSES))
    getattr(net[2], add)(lambda part, slopes, *rest: (0 * slopes[0],))
    return net


@for_each(
    "make",
    [
        lambda: Net(hook_tensors, body=nn.Linear(108, 4), head=nn.Linear(4, CLASSES)),
        lambda: hook_modules("register_full_backward_hook"),
        lambda: hook_modules("register_full_backward_pre_hook"),
    ],
)
def test_hooks_on_gradients_are_heard_or_refused(make):
    with pytest.raises(ModelError, match=r"cannot be stacked: .* hooks on gradients"):
        train("stacked", make)
    torch.manual_seed(0)
    first = next(iter(make().parameters())).detach().double().flatten()
    assert torch.equal(train("serial", make)[: len(first)].cpu(), first)  # slopes of zero train nothing


@for_each("engine, add", [("serial", "register_hook"), ("stacked", "register_post_accumulate_grad_hook")])
def test_a_hook_on_a_weight_is_refused(engine, add):
    def make():
        net = nn.Sequential(nn.Flatten(), nn.Linear(108, CLASSES))
        getattr(net[1].weight, add)(lambda slope: None)
        return net

    with pytest.raises(ExperimentError, match=r"1\.weight has a hook on its gradient"):
        train(engine, make)


# ---- what a network keeps ------------------------------------------------------------------------------------------
class Keeps(nn.Module):
    """A linear network with one thing more, which it reads."""

    def __init__(self, read, **kept):
        super().__init__()
        self.head, self.read = nn.Linear(108, CLASSES), read
        for name, (value, lasting) in kept.items():
            self.register_buffer(name, value, persistent=lasting)

    def forward(self, x):
        return self.head(x.flatten(1)) * self.read(self)


def test_a_mask_of_infinities_is_no_diverged_model():
    shade = torch.full((CLASSES, CLASSES), float("-inf")).triu(1)

    def read(net):
        return torch.softmax(net.shade, 1).diagonal()

    def make():
        return Keeps(read, shade=(shade, True))

    same_on_engines(make)
    clients = make_clients(False)
    problem = fk.Problem(model=make(), loss=F.cross_entropy, clients=clients, test=clients[0])
    run = fk.run(fk.Experiment(problem=problem, rounds=1, participation=1.0, epochs=1, batch_size=16, lr=0.1))
    assert torch.equal(run.model().shade, shade)


def test_running_moments_that_diverge_are_no_mask():
    norm = nn.BatchNorm1d(3)
    before = name_travelling_buffers(norm)
    norm.running_var[0] = float("inf")
    assert name_travelling_buffers(norm) == before == ["running_mean", "running_var"]


@for_each("kind", [torch.int8, torch.bool])
def test_a_frozen_weight_may_be_of_whole_numbers(kind):
    def make():
        net = Keeps(lambda net: net.scale.to(net.head.weight.dtype))
        net.scale = nn.Parameter(torch.tensor([1, 0, 1]).to(kind), requires_grad=False)
        return net

    same_on_engines(make)


def test_a_buffer_whose_numbers_share_a_place_is_one_of_its_own():
    same_on_engines(lambda: Keeps(lambda net: net.twos, twos=(torch.tensor(2).expand(CLASSES), True)))


def test_a_sparse_buffer_is_taken_where_it_can_be():
    def make(lasting):
        return Keeps(lambda net: torch.sparse.sum(net.few, 1).to_dense(), few=(torch.eye(CLASSES).to_sparse(), lasting))

    with pytest.raises(ExperimentError, match=r"model.s few is sparse"):
        train("serial", lambda: make(True))
    with pytest.raises(ModelError, match="cannot be stacked: its few is sparse"):
        train("stacked", lambda: make(False))
    assert train("serial", lambda: make(False)).isfinite().all()


def test_pairs_of_a_weight_are_complex_numbers_wherever_it_lies():
    def make():
        net = Keeps(lambda net: torch.view_as_complex(net.pairs).abs())
        net.pairs = nn.Parameter(torch.arange(2.0 * CLASSES).view(-1, 2))
        return net

    assert sum(weight.numel() for weight in make().parameters()) % 2
    same_on_engines(make)


def test_what_cannot_be_copied_and_what_a_network_lacks_are_told_in_a_line():
    locked = nn.Sequential(nn.Flatten(), nn.Linear(108, CLASSES))
    locked.lock = threading.Lock()
    with pytest.raises(ModelError, match="cannot be copied"):
        train("serial", lambda: locked)
    with pytest.raises(ModelError, match="KeyError: 'missing'"):
        train("serial", lambda: Net(lambda of, x: {}["missing"], head=nn.Linear(1, 1)))


def test_a_trained_network_is_given_back_where_it_asks_for_the_version_of_its_state():
    class Versioned(nn.Linear):
        _version = 2

        def _load_from_state_dict(self, state, prefix, about, *rest):
            assert about.get("version") == 2
            super()._load_from_state_dict(state, prefix, about, *rest)

    clients = make_clients(False)
    model = nn.Sequential(nn.Flatten(), Versioned(108, CLASSES))
    problem = fk.Problem(model=model, loss=F.cross_entropy, clients=clients, test=clients[0])
    run = fk.run(fk.Experiment(problem=problem, rounds=1, participation=1.0, epochs=1, batch_size=16, lr=0.1))
    assert torch.equal(run.model()[1].weight.cpu(), run.params["1.weight"].cpu())

"""The plug-ins for training loops of one's own."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn import functional

import fedkeel as fk
from fedkeel.core.trees import EPSILON


def model():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).double()


X = torch.randn(20, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
Y = torch.arange(20) % 3


def closure(net):
    def run():
        loss = functional.cross_entropy(net(X), Y)
        loss.backward()
        return loss

    return run


def trained(net, step, times=5):
    for _ in range(times):
        step()
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def ours(net, **settings):
    base = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    opt = fk.optim.SAM(net.parameters(), base, **settings)
    return lambda: opt.step(closure(net))


def oracle(theirs, net):
    """pytorch_optimizer's SAM around the same SGD, dividing by ‖g‖ + 1e-7 as ours does; its own default is 1e-12."""
    outer = theirs.SAM(net.parameters(), torch.optim.SGD, rho=0.1, perturb_eps=EPSILON, lr=0.1, momentum=0.9)

    def step():
        outer.zero_grad()
        closure(net)()
        outer.step(closure=closure(net))

    return step


def test_the_step_is_that_of_pytorch_optimizer():
    theirs = pytest.importorskip("pytorch_optimizer", reason="the independent implementation is not installed")
    one, other = model(), model()
    # they round ‖g‖ to float32: six parts in a hundred million of a perturbation of length 0.1
    torch.testing.assert_close(
        trained(one, ours(one, rho=0.1)), trained(other, oracle(theirs, other)), atol=1e-9, rtol=0
    )


def test_nothing_else_sets_the_two_apart(monkeypatch):
    theirs = pytest.importorskip("pytorch_optimizer", reason="the independent implementation is not installed")

    def squared(groups, **_):
        return torch.stack([p.grad.square().sum() for group in groups for p in group["params"]]).sum().reshape(1)

    monkeypatch.setattr("pytorch_optimizer.optimizer.sam.get_global_gradient_norm", squared)
    one, other = model(), model()
    ended = trained(one, ours(one, rho=0.1), 50), trained(other, oracle(theirs, other), 50)
    torch.testing.assert_close(*ended, atol=1e-13, rtol=0)


def test_without_a_radius_it_is_the_other_optimiser():
    one, other = model(), model()
    plain = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9)

    def step():
        plain.zero_grad()
        closure(other)()
        plain.step()

    assert torch.equal(trained(one, ours(one, rho=0.0)), trained(other, step))


def test_two_steps_are_a_closure():
    one, other = model(), model()
    base = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9)
    opt = fk.optim.SAM(other.parameters(), base, rho=0.1, perturbation=fk.HighPass(0.2))

    def step():
        opt.zero_grad()
        closure(other)()
        opt.first_step()
        closure(other)()
        opt.second_step()

    assert torch.equal(trained(one, ours(one, rho=0.1, perturbation=fk.HighPass(0.2))), trained(other, step))


def test_a_filter_on_the_perturbation_changes_the_step_and_on_gradients_their_mean():
    one, other = model(), model()
    assert not torch.equal(
        trained(one, ours(one, rho=0.1)), trained(other, ours(other, rho=0.1, perturbation=fk.HighPass(0.3)))
    )
    net = model()
    closure(net)()
    before = copy.deepcopy([p.grad for p in net.parameters()])
    fk.optim.filter_gradients_(net.parameters(), fk.HighPass(0.2))
    for grad, p in zip(before, net.parameters(), strict=True):
        bins = int(0.2 * (grad.numel() // 2 + 1) + 1e-9)
        z = torch.fft.rfft(grad.flatten())
        z[:bins] = 0
        torch.testing.assert_close(p.grad.flatten(), torch.fft.irfft(z, n=grad.numel()))


def test_rules_with_a_memory_are_refused():
    net = model()
    closure(net)()
    with pytest.raises(fk.MethodError, match="ControlVariates"):
        fk.optim.filter_gradients_(net.parameters(), fk.ControlVariates())


def test_what_would_silently_change_nothing_is_refused():
    net = model()
    closure(net)()
    used = net.parameters()
    base = torch.optim.SGD(used, lr=0.1)
    for call, line in (
        (lambda: fk.optim.SAM(used, base), "no parameters"),
        (lambda: fk.optim.SAM(net[0].weight, base), "tensors in a list, not Parameter"),
        (lambda: fk.optim.SAM(net, base), "tensors in a list, not Sequential"),
        (lambda: fk.optim.SAM(net.parameters(), torch.optim.SGD), "steps with another optimiser"),
        (lambda: fk.optim.SAM(net.parameters(), base, perturbation=fk.HighPass), "not its class: HighPass"),
        (lambda: fk.optim.filter_gradients_(net[0].weight, fk.HighPass(0.1)), "tensors in a list, not Parameter"),
        (lambda: fk.optim.filter_gradients_(net.parameters(), [fk.HighPass(0.1)]), "pass through rules, not"),
    ):
        with pytest.raises(fk.RequestError, match=line):
            call()
    assert fk.optim.SAM(net.parameters(), base, perturbation=[fk.HighPass(0.1)]).rules[1:] == (fk.HighPass(0.1),)
    fk.optim.filter_gradients_(net[1].parameters(), fk.HighPass(0.1))  # a layer without any


def test_a_star_brings_what_is_public():
    brought: dict[str, object] = {}
    exec("from fedkeel.optim import *", brought)
    assert {name for name in brought if not name.startswith("__")} == {"SAM", "filter_gradients_"}

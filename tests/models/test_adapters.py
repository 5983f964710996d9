"""`fk.lora`: a frozen network with low-rank adapters and a head."""

import copy
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

import fedkeel as fk
from fedkeel.models import build
from fedkeel.models.adapters import Adapted

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "adapters.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("number", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_the_guide_prints_what_it_says(number, capsys):
    code = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)[number]
    if "transformers" in code:
        pytest.importorskip("transformers")
    with torch.random.fork_rng():
        exec(compile(code, "guide", "exec"), {"__name__": "guide"})
    assert capsys.readouterr().out.strip() in GUIDE


def network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        first = nn.Conv2d(1, 4, 3, stride=2, padding=1)
        return nn.Sequential(
            first, nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 5), nn.Linear(5, 3)
        ).eval()  # fmt: skip


def trained_names(module):
    return {name for name, parameter in module.named_parameters() if parameter.requires_grad}


def disturb(module):
    """Set every B to something else than 0."""
    with torch.no_grad():
        for part in module.modules():
            if isinstance(part, Adapted):
                part.lora_b.copy_(torch.linspace(-1, 1, part.lora_b.numel()).view_as(part.lora_b))
    return module


def test_a_new_adapter_changes_nothing_and_the_given_network_stays_as_it_is():
    base, x = network(), torch.linspace(-1, 1, 32).view(2, 1, 4, 4)
    before = copy.deepcopy(base.state_dict())
    adapted = fk.lora(base, 2, on=("0", "4"))
    assert torch.equal(adapted(x), base(x))
    assert trained_names(base) == {name for name, _ in base.named_parameters()}
    assert trained_names(adapted) == {"0.lora_a", "0.lora_b", "4.lora_a", "4.lora_b", "5.weight", "5.bias"}
    disturb(adapted)[5].weight.data.add_(1)
    assert not torch.allclose(adapted(x), base(x))
    assert all(torch.equal(value, before[name]) for name, value in base.state_dict().items())
    assert before.keys() <= adapted.state_dict().keys()  # weights of the base load under their old names


def test_an_adapter_adds_a_product_of_low_rank():
    adapted = disturb(fk.lora(network(), 2, alpha=6, on=("0", "4")).double())
    dense, conv = adapted[4], adapted[0]
    x = torch.linspace(-1, 1, 48, dtype=torch.float64).view(3, 16)
    weight = dense.weight + 3 * dense.lora_b @ dense.lora_a
    assert torch.allclose(dense(x), x @ weight.T + dense.bias)
    x = torch.linspace(-1, 1, 32, dtype=torch.float64).view(2, 1, 4, 4)
    weight = conv.weight + 3 * (conv.lora_b.flatten(1) @ conv.lora_a.flatten(1)).view_as(conv.weight)
    assert torch.allclose(conv(x), nn.functional.conv2d(x, weight, conv.bias, 2, 1))


class Conv1D(nn.Module):
    """As `transformers` has it: a linear layer whose weight has its inputs first."""

    def __init__(self, outputs, inputs):
        super().__init__()
        values = torch.linspace(-1, 1, inputs * outputs).sin().view(inputs, outputs)
        self.weight, self.bias = nn.Parameter(values), nn.Parameter(torch.ones(outputs))

    def forward(self, x):
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(*x.size()[:-1], -1)


@pytest.fixture
def transposed(monkeypatch):
    """The same network twice: with a transposed layer, and with torch's own."""
    monkeypatch.setattr(Conv1D, "__module__", "transformers.pytorch_utils")
    base = nn.Sequential(Conv1D(5, 4), nn.Tanh(), nn.Linear(5, 3)).double()
    plain = nn.Sequential(nn.Linear(4, 5), *copy.deepcopy(base[1:])).double()
    plain[0].load_state_dict({"weight": base[0].weight.T, "bias": base[0].bias})
    return base, plain


def test_an_adapter_of_a_transposed_layer_is_the_same_product(transposed):
    base = transposed[0]
    adapted, same = (disturb(fk.lora(one, 2, alpha=6, on="0")) for one in transposed)
    x = torch.linspace(-1, 1, 24, dtype=torch.float64).view(2, 3, 4)
    assert torch.equal(adapted[0].lora_a, same[0].lora_a)
    assert torch.allclose(adapted(x), same(x), rtol=1e-12)
    assert not torch.allclose(adapted(x), base(x))
    assert torch.equal(pickle.loads(pickle.dumps(adapted))(x), adapted(x))
    merged = copy.deepcopy(base[0])
    with torch.no_grad():
        merged.weight += 3 * (adapted[0].lora_b @ adapted[0].lora_a).T
    assert torch.allclose(adapted[0](x), merged(x), rtol=1e-12)


@pytest.mark.slow
def test_every_engine_trains_adapters_of_transposed_layers_as_of_others(transposed):
    draw = torch.Generator().manual_seed(0)
    clients = [(torch.randn(n, 4, generator=draw).double(), torch.arange(n) % 3) for n in (9, 6, 4)]

    def trained(module, engine):
        problem = fk.Problem(nn.functional.cross_entropy, clients, fk.lora(module, 2, alpha=4, on="0"), classes=3)
        work = dict(rounds=2, participation=1.0, epochs=1, batch_size=4, lr=0.1)
        return fk.run(fk.Experiment(problem=problem, **work), engine=engine, dtype=torch.float64).params

    base, plain = transposed
    serial = trained(base, "serial")
    assert float(serial["0.lora_b"].abs().max()) > 1e-3
    for other in (trained(base, "stacked"), trained(plain, "serial")):
        assert other.keys() == serial.keys()
        for name, value in other.items():
            assert torch.allclose(value, serial[name], rtol=0, atol=1e-10), name


def test_the_frozen_weights_are_shared_and_the_head_is_not():
    base = network()
    adapted = fk.lora(base, 1, on="4", head=("1.*", "5"))
    given = dict(base.named_parameters())
    shared = {n for n, p in adapted.named_parameters() if n in given and p.data_ptr() == given[n].data_ptr()}
    assert shared == {"0.weight", "0.bias", "4.weight", "4.bias"}
    assert trained_names(adapted) == {"1.weight", "1.bias", "4.lora_a", "4.lora_b", "5.weight", "5.bias"}
    assert trained_names(fk.lora(base, 1, on="4", head=())) == {"4.lora_a", "4.lora_b"}


def test_the_same_seed_draws_the_same_adapters():
    first, again, other = (fk.lora(network(), 2, on="4", seed=seed)[4].lora_a for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    torch.rand(3)
    state = torch.random.get_rng_state()
    fk.lora(network(), 2, on="4")
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_copy_and_a_pickle_keep_their_adapters():
    adapted, x = disturb(fk.lora(network(), 2, on="4")), torch.ones(2, 1, 4, 4)
    for other in (copy.deepcopy(adapted), pickle.loads(pickle.dumps(adapted))):
        assert torch.equal(other(x), adapted(x))
        assert trained_names(other) == trained_names(adapted)


def test_networks_of_fedkeel_are_adapted_by_the_names_of_their_layers():
    base = build("vit-small-32", shape=(3, 32, 32), classes=10, seed=0)
    layers = [name for name, part in base.named_modules() if name.endswith("qkv")]
    adapted = fk.lora(base, 4, on="*.qkv")
    assert {f"{name}.lora_a" for name in layers} < trained_names(adapted)
    assert sum(adapted.get_parameter(name).numel() for name in trained_names(adapted)) < 0.02 * sum(
        parameter.numel() for parameter in base.parameters()
    )


def test_the_fast_path_of_a_transformer_layer_does_not_pass_adapters_by():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    with torch.no_grad():
        base = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).double().eval()
        adapted = disturb(fk.lora(base, 2, on="layers.*.linear1", head=())).eval()
        x = torch.linspace(-1, 1, 64).double().view(2, 4, 8)
        fast = adapted(x)
    assert torch.allclose(fast, adapted.train()(x))
    assert not torch.allclose(fast, base(x))


class Louder(nn.Linear):
    def gain(self):
        return 2 * self.bias.abs().sum()


def test_a_layer_of_ones_own_keeps_its_methods():
    base = nn.Sequential(Louder(3, 4), nn.Linear(4, 2))
    adapted, plain = (disturb(fk.lora(one, 2, on="0")) for one in (base, nn.Sequential(nn.Linear(3, 4), base[1])))
    plain.load_state_dict(adapted.state_dict())
    assert repr(adapted) == repr(plain)  # which is part of the identity of a problem
    for other in (adapted, copy.deepcopy(adapted), pickle.loads(pickle.dumps(adapted))):
        assert isinstance(other[0], Louder)
        assert other[0].gain() == base[0].gain()
        assert torch.equal(other(torch.ones(2, 3)), plain(torch.ones(2, 3)))
        assert trained_names(other) == trained_names(plain)


def test_a_layer_that_computes_its_weight_or_uses_a_name_of_adapters_is_passed_over():
    base = nn.Sequential(parametrizations.weight_norm(nn.Linear(3, 3)), nn.Linear(3, 3), nn.Linear(3, 2))
    assert trained_names(fk.lora(base, 2, on="*", head=())) == {"1.lora_a", "1.lora_b", "2.lora_a", "2.lora_b"}
    with pytest.raises(fk.ModelError, match="no layer that can have an adapter is called '0'") as refused:
        fk.lora(base, 2, on="0")
    assert refused.value.hint == "layers: 1; 0 computes its weight from others, as by weight_norm"
    base[1].scale = 3.0
    assert trained_names(fk.lora(base, 2, on="*", head=())) == {"2.lora_a", "2.lora_b"}


def test_numbers_of_numpy_are_numbers():
    given, plain = (fk.lora(network(), *of, on="4")[4] for of in ((np.int64(2),), (2,)))
    assert torch.equal(given.lora_a, plain.lora_a)
    assert repr(fk.lora(network(), np.int64(2), alpha=np.float32(3), on="4")) == repr(
        fk.lora(network(), 2, alpha=3, on="4")
    )


class Tied(nn.Module):
    """A decoder that shares its matrix with the embedding, and a layer with two names."""

    def __init__(self):
        super().__init__()
        self.words, self.inner, self.out = nn.Embedding(7, 4), nn.Linear(4, 4), nn.Linear(4, 7)
        self.out.weight, self.again = self.words.weight, self.inner

    def forward(self, x):
        return self.out(self.again(self.inner(self.words(x))))


def test_a_pattern_that_fits_any_name_of_a_tied_part_means_it():
    adapters, whole = {"inner.lora_a", "inner.lora_b"}, {"words.weight", "out.bias"}
    for head in (None, "out", "out.*", ("words", "out.bias")):
        for on in ("inner", "again", "*"):  # what trains as a whole gets no adapter, by whatever name
            assert trained_names(fk.lora(Tied(), 2, on=on, head=head)) == adapters | whole, (on, head)
    assert trained_names(fk.lora(Tied(), 2, on="inner", head="out.weight")) == adapters | {"words.weight"}
    with pytest.raises(fk.ModelError, match="no layer that can have an adapter is called 'out'"):
        fk.lora(Tied(), 2, on="out", head="words")


REFUSED = {
    "unknown layer": (dict(on="*.attention.*"), "can have an adapter is called '*.attention.*'", "layers: 0, 4"),
    "unknown head": (dict(on="4", head="6"), "no parameter of the head is called '6'", "5.weight"),
    "rank": (dict(rank=0), "rank of adapters must be at least 1: 0", "rank = 8"),
    "half a rank": (dict(rank=0.5), "rank of adapters must be a whole number: 0.5", "rank = 8"),
    "alpha": (dict(alpha=-1), "alpha of adapters must be above 0: -1", "alpha = 16"),
    "seed": (dict(seed="a"), "seed of adapters must be a whole number: 'a'", "seed = 0"),
    "a number as pattern": (dict(on=4), "a pattern of names is a text, not 4", "on="),
}


def test_what_is_wrong_is_refused_in_one_line():
    for wrong, line, hint in REFUSED.values():
        with pytest.raises(fk.ModelError) as refused:
            fk.lora(network(), **{"rank": 2, "on": "4"} | wrong)
        assert line in refused.value.message
        assert hint in refused.value.hint
    lazy, pruned = nn.Sequential(nn.LazyLinear(3)), nn.Sequential(nn.Linear(2, 3))
    prune.l1_unstructured(pruned[0], "weight", 0.5)
    for base in (lazy, pruned):
        with pytest.raises(fk.ModelError, match="the network cannot be copied: ") as refused:
            fk.lora(base, 2, on="0", head=())
        assert "\n" not in refused.value.message
    with pytest.raises(fk.ModelError, match=r"a torch.nn.Module, not str"):
        fk.lora("roberta-base", 8)


def test_attention_that_multiplies_by_its_weights_itself_is_not_adapted():
    with pytest.raises(fk.ModelError, match="no layer that can have an adapter"):
        fk.lora(nn.TransformerEncoderLayer(8, 2, 16), 2, on="self_attn.*")

"""`fk.lora`: a frozen network with low-rank adapters and a head."""

import copy
import pickle
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import fedkeel as fk
from fedkeel.models import build
from fedkeel.models.adapters import AdaptedConv2d, AdaptedLinear

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
            if isinstance(part, AdaptedLinear | AdaptedConv2d):
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


REFUSED = {
    "unknown layer": (dict(on="*.attention.*"), "can have an adapter is called '*.attention.*'", "layers: 0, 4"),
    "unknown head": (dict(on="4", head="6"), "no parameter of the head is called '6'", "5.weight"),
    "rank": (dict(rank=0), "at least 1, not 0", "rank=8"),
    "half a rank": (dict(rank=0.5), "at least 1, not 0.5", "rank=8"),
    "alpha": (dict(alpha=-1), "above 0, not -1", "alpha=16"),
    "a number as pattern": (dict(on=4), "a pattern of names is a text, not 4", "on="),
}


def test_what_is_wrong_is_refused_in_one_line():
    for wrong, line, hint in REFUSED.values():
        with pytest.raises(fk.ModelError) as refused:
            fk.lora(network(), **{"rank": 2, "on": "4"} | wrong)
        assert line in refused.value.message
        assert hint in refused.value.hint
    with pytest.raises(fk.ModelError, match=r"a torch.nn.Module, not str"):
        fk.lora("roberta-base", 8)


def test_attention_that_multiplies_by_its_weights_itself_is_not_adapted():
    with pytest.raises(fk.ModelError, match="no layer that can have an adapter"):
        fk.lora(nn.TransformerEncoderLayer(8, 2, 16), 2, on="self_attn.*")

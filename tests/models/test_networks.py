"""The networks: published sizes, any image size, clients that can be stacked, and equality with PyTorch's LSTM."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pytest
import torch
from for_each import for_each
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from fedkeel.models import MODELS, build
from fedkeel.models.card import Images, Numbers, Tokens
from fedkeel.models.densenet import DenseLayer
from fedkeel.models.text import LstmLayer, MeanEmbedding
from fedkeel.models.vit import HEADS, WIDTH, Attention

PUBLISHED = [
    ("logistic", (1, 8, 8), 10, 650),
    ("mlp", (1, 28, 28), 10, 199_210),
    ("lenet-fsa", (3, 32, 32), 10, 2_806_602),
    ("lenet-fsa", (3, 32, 32), 100, 2_898_852),
    ("lenet-fsa", (1, 28, 28), 10, 1_258_798),
    ("lenet-fsa", (3, 64, 64), 200, 3_527_784),
    # the last layer of 1024 → C becomes 1024 → 2 · 512, and 512 → C is the head
    ("lenet-cr", (3, 32, 32), 100, 2_898_852 - 1025 * 100 + 1025 * 1024 + 513 * 100),
    ("mlp-cr", (1, 28, 28), 10, 199_210 - 201 * 10 + 201 * 128 + 65 * 10),
    ("resnet18-gn", (3, 32, 32), 10, 11_181_642),
    ("resnet18-gn", (3, 32, 32), 100, 11_227_812),
    ("resnet18-gn", (3, 64, 64), 200, 11_279_112),
    ("resnet18-gn-cifar", (3, 32, 32), 10, 11_173_962),
    ("resnet18-bn-cifar", (3, 32, 32), 10, 11_173_962),
    ("resnet20-gn", (3, 32, 32), 10, 272_474),
    ("resnet20-gn", (3, 32, 32), 100, 278_324),
    ("wrn56-2-gn", (3, 32, 32), 10, 3_412_394),
    ("wrn56-2-gn", (3, 32, 32), 100, 3_424_004),
    ("densenet121-gn", (3, 32, 32), 10, 6_956_298),
    ("densenet121-gn", (3, 32, 32), 100, 7_048_548),
    ("densenet121-fedfft", (3, 32, 32), 10, 6_956_298),
    ("vit-small-32", (3, 32, 32), 10, 9_523_722),
    ("leaf-cnn", (1, 28, 28), 62, 6_603_710),
    ("lstm", (80,), 80, 819_920),
    # three convolutions with bias and norm, then 2048 → 128 → 10 (1152 → 128 → 10 for 28 pixels)
    ("small-cnn", (3, 32, 32), 10, 896 + 64 + 18_496 + 128 + 73_856 + 256 + 262_272 + 1_290),
    ("small-cnn", (1, 28, 28), 10, 320 + 64 + 18_496 + 128 + 73_856 + 256 + 147_584 + 1_290),
    ("fasttext", (200,), 10, 98_635 * 32 + 32 * 33 + 10 * 33),
]

WITH_BUFFERS = {"resnet18-bn-cifar", "densenet121-fedfft"}
STACKABLE = sorted(MODELS.keys() - WITH_BUFFERS)


LARGE = {"densenet121-gn", "resnet18-gn", "resnet18-gn-cifar", "wrn56-2-gn"}  # of blocks that other networks have too


def each(names: Iterable[str], slow: Collection[str] = LARGE) -> pytest.MarkDecorator:
    """Every network; those that repeat what others have as slow tests."""
    marked = [pytest.param(name, marks=[pytest.mark.slow] if name in slow else []) for name in names]
    return pytest.mark.parametrize("name", marked)


def smallest_shape(name: str) -> tuple[int, ...]:
    takes = MODELS[name].takes
    return (1, takes.smallest, takes.smallest) if isinstance(takes, Images) else (6,)


def sample(name: str, shape: tuple[int, ...], batch: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    if isinstance(MODELS[name].takes, Tokens):
        return torch.randint(1, 80, (batch, *shape), generator=draw)
    return torch.randn(batch, *shape, generator=draw, dtype=dtype)


@pytest.mark.usefixtures("constant_weights")
@for_each(("name", "shape", "classes", "count"), PUBLISHED)
def test_number_of_parameters(name: str, shape: tuple[int, ...], classes: int, count: int) -> None:
    module = build(name, shape=shape, classes=classes, seed=0)
    assert sum(parameter.numel() for parameter in module.parameters()) == count


def test_every_model_has_a_published_size() -> None:
    assert {name for name, *_ in PUBLISHED} == MODELS.keys()


@pytest.mark.slow
@pytest.mark.usefixtures("constant_weights")
@pytest.mark.parametrize("side", [28, 64])
@each(name for name, card in MODELS.items() if not isinstance(card.takes, Tokens))
def test_images_of_28_and_64_pixels(name: str, side: int) -> None:
    shape = (1 if side == 28 else 3, side, side)
    module = build(name, shape=shape, classes=7, seed=0)
    with torch.no_grad():
        logits = module(sample(name, shape, batch=1))
    assert logits.shape == (1, 7)
    assert logits.isfinite().all()


@for_each("name", ["mlp", "small-cnn", "lenet-fsa", "leaf-cnn", "vit-small-32", "resnet20-gn"])
def test_images_need_not_be_square(name: str) -> None:
    assert build(name, shape=(3, 20, 24), classes=4, seed=0)(torch.zeros(1, 3, 20, 24)).shape == (1, 4)


@each(MODELS)
def test_one_sample_of_the_smallest_shape_has_finite_gradients(name: str) -> None:
    shape = smallest_shape(name)
    module = build(name, shape=shape, classes=3, seed=0)
    loss = nn.functional.cross_entropy(module(sample(name, shape, batch=1)), torch.tensor([1]))
    gradients = torch.autograd.grad(loss, list(module.parameters()))
    assert all(gradient.isfinite().all() for gradient in gradients)


@each(MODELS)
def test_every_tensor_takes_part_and_only_batch_norm_has_buffers(name: str) -> None:
    shape = (20,) if isinstance(MODELS[name].takes, Tokens) else (3, 32, 32)
    module = build(name, shape=shape, classes=7, seed=0)
    names, parameters = zip(*module.named_parameters(), strict=True)
    logits = module(sample(name, shape, batch=1))
    assert logits.shape == (1, 7)
    assert logits.isfinite().all()
    gradients = torch.autograd.grad(logits.square().sum(), parameters)
    assert [key for key, gradient in zip(names, gradients, strict=True) if not gradient.any()] == []
    assert bool(list(module.buffers())) == (name in WITH_BUFFERS)


@pytest.mark.usefixtures("constant_weights")
def test_fedfft_normalises_by_group_after_the_last_dense_block_only() -> None:
    module = build("densenet121-fedfft", shape=(3, 32, 32), classes=10, seed=0)
    assert [name for name, part in module.named_modules() if isinstance(part, nn.GroupNorm)] == ["norm"]
    assert sum(isinstance(part, nn.BatchNorm2d) for part in module.modules()) == 119


@each(STACKABLE, slow={*LARGE, "fasttext", "vit-small-32"})  # kernels/test_any_network.py has such in small
def test_stacked_clients_equal_single_ones(name: str) -> None:
    """Logits and gradients of two clients under vmap, in float64."""
    takes = MODELS[name].takes
    shape = (1, max(8, takes.smallest), max(8, takes.smallest)) if isinstance(takes, Images) else (6,)
    clients = [build(name, shape=shape, classes=3, seed=seed).double() for seed in (0, 1)]
    inputs = torch.stack([sample(name, shape, batch=2, seed=seed, dtype=torch.float64) for seed in (5, 6)])
    stacked, _ = stack_module_state(clients)
    logits = vmap(lambda weights, x: functional_call(clients[0], weights, (x,)))(stacked, inputs)
    gradients = torch.autograd.grad(logits.square().sum(), list(stacked.values()))
    for number, client in enumerate(clients):
        alone = client(inputs[number])
        torch.testing.assert_close(logits[number], alone, rtol=0, atol=1e-12)
        expected = torch.autograd.grad(alone.square().sum(), list(client.parameters()))
        for together, single in zip(gradients, expected, strict=True):
            assert (together[number] - single).norm() <= 1e-12 * (1 + single.norm())


def test_the_initial_norm_of_resnet18_is_torchvisions() -> None:
    module = build("resnet18-gn", shape=(3, 32, 32), classes=10, seed=0)
    parameters = dict(module.named_parameters())
    assert len(parameters) == 62
    squares = {key: value.detach().double().square().sum().item() for key, value in parameters.items()}
    assert sum(squares.values()) ** 0.5 == pytest.approx(111.76, abs=0.1)
    # convolutions draw from N(0, 2 / fan_out): here 2 / (128 · 9)
    assert parameters["layer2.0.conv1.weight"].std().item() == pytest.approx((2 / (128 * 9)) ** 0.5, rel=0.01)
    assert {
        "conv1.weight",
        "bn1.bias",
        "layer4.0.downsample.1.weight",
        "layer4.1.bn2.weight",
        "fc.bias",
    } <= squares.keys()


@pytest.mark.usefixtures("constant_weights")
def test_the_imagenet_stem_divides_the_side_by_four_and_the_cifar_stem_keeps_it() -> None:
    for name, side in [("resnet18-gn", 8), ("resnet18-gn-cifar", 32)]:
        module = build(name, shape=(3, 32, 32), classes=10, seed=0)
        assert isinstance(module, nn.Sequential)
        children = dict(module.named_children())
        x = torch.zeros(1, 3, 32, 32)
        for part in list(children)[: list(children).index("layer1")]:
            x = children[part](x)
        assert x.shape == (1, 64, side, side)


@pytest.mark.usefixtures("constant_weights")
def test_every_stage_of_a_resnet_but_the_first_halves_the_image() -> None:
    sides, x = dict[str, int](), torch.zeros(1, 3, 32, 32)
    for name, part in build("resnet20-gn", shape=(3, 32, 32), classes=10, seed=0).named_children():
        x = part(x)
        sides[name] = x.shape[-1]
    assert [sides[f"layer{stage}"] for stage in (1, 2, 3)] == [32, 16, 8]


def test_a_dense_layer_adds_norm_relu_and_convolution_twice() -> None:
    layer, x = DenseLayer(8, groups=2).double(), sample("densenet121-gn", (8, 4, 4), batch=2, dtype=torch.float64)
    y = nn.functional.conv2d(nn.functional.group_norm(x, 2).relu(), layer.conv1.weight)
    y = nn.functional.conv2d(nn.functional.group_norm(y, 2).relu(), layer.conv2.weight, padding=1)
    torch.testing.assert_close(layer(x), torch.cat([y, x], 1))


def test_lstm_layers_equal_pytorchs() -> None:
    layers = [LstmLayer(8, 16).double(), LstmLayer(16, 16).double()]
    theirs = nn.LSTM(8, 16, num_layers=2, batch_first=True).double()
    with torch.no_grad():
        for number, layer in enumerate(layers):
            for ours, name in [(layer.input, "ih"), (layer.hidden, "hh")]:
                theirs.get_parameter(f"weight_{name}_l{number}").copy_(ours.weight)
                theirs.get_parameter(f"bias_{name}_l{number}").copy_(ours.bias)
    x = torch.randn(3, 20, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected, _ = theirs(x)
    torch.testing.assert_close(layers[1](layers[0](x)), expected, rtol=0, atol=1e-12)


def test_lstm_starts_like_pytorchs() -> None:
    """Every weight and bias uniform in ±1/√units."""
    module = build("lstm", shape=(80,), classes=80, seed=0)
    for name in ("lstm1.input.weight", "lstm1.hidden.bias", "lstm2.hidden.weight"):
        values = module.get_parameter(name)
        assert values.abs().max() <= 1 / 16
        assert values.std().item() == pytest.approx(1 / 16 / 3**0.5, rel=0.05)


def test_attention_equals_pytorchs() -> None:
    ours = Attention().double()
    x = torch.randn(2, 5, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in ours.qkv(x).chunk(3, -1))
    expected = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 5, WIDTH)
    torch.testing.assert_close(ours(x), expected, rtol=0, atol=1e-12)


def test_transformer_sees_positions() -> None:
    """Without positions the class token would not notice that two patches changed places."""
    module = build("vit-small-32", shape=(1, 8, 8), classes=3, seed=0).double()
    image = sample("vit-small-32", (1, 8, 8), batch=1, dtype=torch.float64)
    assert not torch.allclose(module(image), module(image.roll(4, dims=-1)))


def test_padding_does_not_change_the_mean_of_words() -> None:
    words = MeanEmbedding(vocabulary=10, width=4, padding=0)
    short, padded = words(torch.tensor([[3, 7]])), words(torch.tensor([[3, 7, 0, 0, 0]]))
    torch.testing.assert_close(padded, short)
    torch.testing.assert_close(short[0], words.embedding.weight[[3, 7]].mean(0))
    assert not words(torch.tensor([[0, 0]])).any()


def test_logistic_is_linear() -> None:
    assert isinstance(MODELS["logistic"].takes, Numbers)
    module = build("logistic", shape=(1, 2, 2), classes=3, seed=0)
    x, y = torch.randn(2, 1, 1, 2, 2, generator=torch.Generator().manual_seed(0)).unbind(0)
    torch.testing.assert_close(module(x) + module(y), module(x + y) + module(torch.zeros_like(x)))

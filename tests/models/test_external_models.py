"""Names with a colon: timm, torchvision, and a function of the user."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from fedkeel.errors import ModelError
from fedkeel.models import build

SOURCE = """
import torch
from torch import nn

def both(classes, shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes))

def neither():
    return nn.Linear(4, 2)

def anything(**given):
    return nn.Linear(len(given), given["classes"])

def options(classes, width=3):
    return nn.Linear(width, classes)

class Module(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.fc = nn.Linear(5, classes)

def broken(classes):
    raise KeyError("width")

def number():
    return 3

constant = 3
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_models.py").write_text(SOURCE)
    (tmp_path / "own_broken.py").write_text("def f(:\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_models", raising=False)
    return "own_models"


def test_a_function_gets_what_it_takes(own: str) -> None:
    assert build(f"{own}:both", shape=(1, 2, 3), classes=4, seed=0)(torch.zeros(1, 1, 2, 3)).shape == (1, 4)
    assert build(f"{own}:neither", shape=(1, 2, 3), classes=4, seed=0).get_parameter("weight").shape == (2, 4)
    assert build(f"{own}:anything", shape=(1, 2, 3), classes=4, seed=0).get_parameter("weight").shape == (4, 2)
    assert build(f"{own}:Module", shape=(5,), classes=4, seed=0).get_parameter("fc.weight").shape == (4, 5)
    assert build(f"{own}:options", shape=(5,), classes=4, seed=0, width=7).get_parameter("weight").shape == (4, 7)


def test_its_weights_depend_on_the_seed_alone(own: str) -> None:
    first = build(f"{own}:neither", shape=(4,), classes=2, seed=1).get_parameter("weight")
    torch.rand(1)
    assert torch.equal(build(f"{own}:neither", shape=(4,), classes=2, seed=1).get_parameter("weight"), first)
    assert not torch.equal(build(f"{own}:neither", shape=(4,), classes=2, seed=2).get_parameter("weight"), first)


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("no_such_module:f", "cannot import model no_such_module:f: No module named 'no_such_module'", "installed?"),
        ("own_broken:f", "cannot import model own_broken:f: SyntaxError", "import own_broken"),
        (":f", "is written module:name", "PYTHONPATH"),
        ("own_models:bothh", "module own_models has no model named: bothh", "did you mean 'both'?"),
        ("own_models:constant", "'own_models:constant' is of type int, not a model", "torch.nn.Module"),
        ("own_models:broken", "'own_models:broken' failed: KeyError: 'width'", "classes= and shape="),
        ("own_models:number", "'own_models:number' returned int, not a torch.nn.Module", None),
    ],
)
def test_what_is_wrong_is_said_in_one_line(own: str, name: str, message: str, hint: str | None) -> None:
    with pytest.raises(ModelError) as caught:
        build(name, shape=(4,), classes=2, seed=0)
    assert message in caught.value.message
    assert "\n" not in caught.value.message
    assert (hint or "") in (caught.value.hint or "")


@pytest.mark.parametrize("package", ["timm", "torchvision"])
def test_a_missing_package_is_answered_with_the_command(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ModelError) as caught:
        build(f"{package}:resnet18", shape=(3, 32, 32), classes=10, seed=0)
    assert f"needs the package {package}" in caught.value.message
    assert caught.value.hint == f"pip install {package}"


def network(channels: int, classes: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(channels, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, classes))


@pytest.fixture
def timm(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """timm's calling convention: keyword arguments a model does not know are a TypeError, unknown names an error."""
    calls: list[dict[str, object]] = []

    def create_model(name: str, pretrained: bool, num_classes: int, in_chans: int, **more: object) -> nn.Module:
        calls.append({"name": name, "pretrained": pretrained, **more})
        if name == "unknown":
            raise RuntimeError("Unknown model (unknown)")
        if name == "convolutional" and "img_size" in more:
            raise TypeError("got an unexpected keyword argument 'img_size'")
        return network(in_chans, num_classes if name != "features" else 99)

    monkeypatch.setitem(sys.modules, "timm", SimpleNamespace(create_model=create_model))
    return calls


def test_timm_models_are_untrained_and_get_channels_classes_and_size(timm: list[dict[str, object]]) -> None:
    module = build("timm:transformer", shape=(1, 32, 32), classes=7, seed=0)
    assert module(torch.zeros(2, 1, 32, 32)).shape == (2, 7)
    assert module.training
    assert timm == [{"name": "transformer", "pretrained": False, "img_size": (32, 32)}]
    build("timm:convolutional", shape=(3, 32, 32), classes=7, seed=0)
    assert timm[-1] == {"name": "convolutional", "pretrained": False}


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("timm:unknown", (3, 32, 32), "timm cannot build 'unknown': RuntimeError: Unknown model (unknown)"),
        ("timm:features", (3, 32, 32), "does not give 7 logits for one image"),
        ("timm:transformer", (80,), "does not take data of shape (80,)"),
        ("timm:transformer", (3, 2, 2), "does not take images of shape (3, 2, 2): RuntimeError"),
    ],
)
def test_timm_models_that_do_not_fit(
    timm: list[dict[str, object]], name: str, shape: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ModelError) as caught:
        build(name, shape=shape, classes=7, seed=0)
    assert message in caught.value.message
    assert "\n" not in caught.value.message


def test_torchvision_models_take_three_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    def get_model(name: str, weights: None, num_classes: int) -> nn.Module:
        if name != "net":
            raise ValueError(f"Unknown model {name}")
        return network(3, num_classes)

    monkeypatch.setitem(sys.modules, "torchvision", SimpleNamespace(models=SimpleNamespace(get_model=get_model)))
    assert build("torchvision:net", shape=(3, 32, 32), classes=7, seed=0)(torch.zeros(2, 3, 9, 9)).shape == (2, 7)
    with pytest.raises(ModelError, match="takes images of 3 channels, not 1"):
        build("torchvision:net", shape=(1, 28, 28), classes=7, seed=0)
    with pytest.raises(ModelError, match="torchvision cannot build 'nett': ValueError: Unknown model nett"):
        build("torchvision:nett", shape=(3, 32, 32), classes=7, seed=0)


@pytest.mark.skipif(importlib.util.find_spec("timm") is None, reason="timm is not installed")
@pytest.mark.parametrize("name", ["resnet26", "vit_tiny_patch16_224"])
def test_real_timm_models(name: str) -> None:
    module = build(f"timm:{name}", shape=(3, 32, 32), classes=7, seed=0)
    assert module(torch.zeros(2, 3, 32, 32)).shape == (2, 7)  # a batch norm needs two


@pytest.mark.skipif(importlib.util.find_spec("torchvision") is None, reason="torchvision is not installed")
def test_resnet18_has_the_names_and_shapes_of_torchvisions() -> None:
    theirs = build("torchvision:resnet18", shape=(3, 32, 32), classes=10, seed=0)
    ours = build("resnet18-gn", shape=(3, 32, 32), classes=10, seed=0)
    assert {k: v.shape for k, v in ours.named_parameters()} == {k: v.shape for k, v in theirs.named_parameters()}


def test_images_are_resized_to_what_a_network_was_made_for(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def create_model(which, img_size, num_classes, in_chans, **_):
        made.append((which, tuple(img_size)))
        return nn.Sequential(nn.Flatten(), nn.Linear(in_chans * img_size[0] ** 2, num_classes))

    monkeypatch.setitem(sys.modules, "timm", SimpleNamespace(create_model=create_model))
    model = build("timm:vit_tiny_patch16_224@24", shape=(3, 8, 8), classes=10, seed=0)
    assert made == [("vit_tiny_patch16_224", (24, 24))]
    assert model(torch.zeros(2, 3, 8, 8)).shape == (2, 10)
    with pytest.raises(ModelError, match="images cannot be resized to big"):
        build("timm:vit@big", shape=(3, 8, 8), classes=10, seed=0)

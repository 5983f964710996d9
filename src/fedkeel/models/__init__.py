"""Models by name. `build` gives the same weights for the same name, data shape, classes and seed, and nothing else."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from fedkeel.errors import ModelError, nearest, require_known
from fedkeel.models.bottleneck import with_code
from fedkeel.models.card import Images, ModelCard, Numbers, Shape, Tokens
from fedkeel.models.classifier import head
from fedkeel.models.cnn import leaf_cnn, lenet_fsa, small_cnn
from fedkeel.models.dense import logistic, mlp
from fedkeel.models.densenet import densenet121
from fedkeel.models.external import build_external, check_name
from fedkeel.models.resnet import RESNET18, RESNET18_CIFAR, RESNET18_CIFAR_PLAIN, RESNET20, WRN56_2, resnet
from fedkeel.models.text import fasttext, lstm
from fedkeel.models.vit import vit_small_32
from fedkeel.randomness import key

__all__ = ["MODELS", "ModelCard", "build", "check_name", "head"]

MODELS: dict[str, ModelCard] = {
    "logistic": ModelCard(
        title="Logistic regression",
        paper="the convex baseline",
        about="one linear layer on the flattened input",
        make=logistic,
        takes=Numbers(),
    ),
    "mlp": ModelCard(
        title="Two-layer perceptron",
        paper="FedAvg's 2NN (McMahan et al. 2017)",
        about="two hidden layers of 200 units with ReLU; 199 210 parameters on MNIST",
        make=mlp,
        takes=Numbers(),
        defaults={"width": 200},
    ),
    "small-cnn": ModelCard(
        title="SmallCNN",
        paper="FedSCAM",
        about="three blocks of 3×3 convolution, GroupNorm, ReLU and pool (32, 64, 128 channels), then 128 units",
        make=small_cnn,
        takes=Images(smallest=8),
        defaults={"groups": 2},
        notes="The paper names the kinds of layers but not their number, widths or norm; these are our choice.",
    ),
    "lenet-fsa": ModelCard(
        title="Five-layer CNN of FedFSA",
        paper="FedFSA; FedCR",
        about="two 5×5 convolutions with pools, three fully connected layers",
        make=lenet_fsa,
        takes=Images(smallest=16),
        notes="Three sizes, chosen by the images: one channel is the Fashion-MNIST network (4 and 12 filters), sides "
        "up to 32 the CIFAR one (64 and 64), larger ones the Tiny-ImageNet one (32 and 32; 512 and 1024 units).",
    ),
    "mlp-cr": ModelCard(
        title="Two-layer perceptron with a random code",
        paper="FedAvg's 2NN with FedCR's bottleneck",
        about="mlp whose last layer gives mean and spread of a code, and a linear head on that",
        make=partial(with_code, mlp),
        takes=Numbers(),
        defaults={"width": 200, "code": 64, "samples": 18},
        notes="For data too small for lenet-cr; the sizes are our choice.",
    ),
    "lenet-cr": ModelCard(
        title="Five-layer CNN of FedFSA with a random code",
        paper="FedCR",
        about="lenet-fsa whose last layer gives mean and spread of a code of 512 numbers, and a linear head on that",
        make=partial(with_code, lenet_fsa),
        takes=Images(smallest=16),
        defaults={"code": 512, "samples": 18},
        notes="Training draws each code 18 times; evaluation takes its mean, where the release averages the logits of "
        "18 draws. Sizes as in the release's commands for CIFAR-100; its argument parser has 256, and 15 draws.",
    ),
    "resnet18-gn": ModelCard(
        title="ResNet-18, GroupNorm, ImageNet stem",
        paper="He et al. 2016; FedFFT, FedSMOO, FedLESAM",
        about="7×7 convolution with stride 2, max pool, four stages of 2 blocks; 11 181 642 parameters for 10 classes",
        make=partial(resnet, RESNET18),
        takes=Images(),
        defaults={"groups": 2},
        notes="torchvision's network, parameter names and distribution of initial weights (norm 111.8), but GroupNorm "
        "of two groups for BatchNorm, as released with FedSMOO and FedLESAM. A 32×32 image is 8×8 after the stem.",
    ),
    "resnet18-gn-cifar": ModelCard(
        title="ResNet-18, GroupNorm, CIFAR stem",
        paper="He et al. 2016",
        about="resnet18-gn with a 3×3 convolution in place of the 7×7 one and no max pool",
        make=partial(resnet, RESNET18_CIFAR),
        takes=Images(),
        defaults={"groups": 2},
    ),
    "resnet18-bn-cifar": ModelCard(
        title="ResNet-18, BatchNorm, CIFAR stem",
        paper="He et al. 2016; FedSCAM, FedFSA",
        about="3×3 convolution, four stages of two blocks, BatchNorm",
        make=partial(resnet, RESNET18_CIFAR_PLAIN),
        takes=Images(smallest=9),
        notes="PyTorch's default initial weights, as in FedFSA's release. Running statistics are buffers. Images under "
        "9 pixels would leave one value per channel in a batch of one, which has no variance.",
    ),
    "resnet20-gn": ModelCard(
        title="ResNet-20, GroupNorm",
        paper="He et al. 2016; SpecGradFilter, FedFFT, FedLAW",
        about="3×3 convolution, three stages of three blocks (16, 32, 64 channels); 272 474 parameters for 10 classes",
        make=partial(resnet, RESNET20),
        takes=Images(),
        defaults={"groups": 2},
        notes="Shortcuts are 1×1 convolutions with a norm, and initial weights PyTorch's, as in FedLAW's release. The "
        "papers do not say how many groups; two as for ResNet-18.",
    ),
    "wrn56-2-gn": ModelCard(
        title="Wide ResNet-56-2, GroupNorm",
        paper="FedLAW, FedAWA, FedLWS",
        about="resnet20-gn with nine blocks a stage and twice the width; 3 412 394 parameters for 10 classes",
        make=partial(resnet, WRN56_2),
        takes=Images(),
        defaults={"groups": 2},
        notes="A widened ResNet-56 with norms after the convolutions, not the network of Zagoruyko & Komodakis (2016). "
        "The releases have BatchNorm; the number of parameters is the same.",
    ),
    "densenet121-gn": ModelCard(
        title="DenseNet-121, GroupNorm",
        paper="Huang et al. 2017; FedLAW",
        about="3×3 convolution, dense blocks of 6, 12, 24, 16 layers, growth 32; 6 956 298 parameters for 10 classes",
        make=densenet121,
        takes=Images(smallest=8),
        defaults={"groups": 2, "last_groups": 2},
    ),
    "densenet121-fedfft": ModelCard(
        title="DenseNet-121 with FedFFT's GroupNorm",
        paper="Huang et al. 2017; FedFFT, appendix C.2",
        about="densenet121-gn with GroupNorm after the last dense block only",
        make=densenet121,
        takes=Images(smallest=16),
        defaults={"last_groups": 2},
        notes="The paper takes FedLAW's network 'with GN applied after the final dense block' and is silent on the "
        "other 119 norms. Read literally, they stay FedLAW's BatchNorm, and so they do here; their running statistics "
        "are buffers. densenet121-gn has none.",
    ),
    "vit-small-32": ModelCard(
        title="Vision transformer for 32×32 images",
        paper="Dosovitskiy et al. 2021; FedAWA, FedLWS",
        about="4×4 patches, width 512, six layers of eight heads, class token; 9 523 722 parameters for 10 classes",
        make=vit_small_32,
        takes=Images(smallest=4, multiple=4),
        notes="No dropout: the releases have 0.1 in two places, but its masks would have to be a function of (seed, "
        "round, client, step), which a forward pass does not see. FedFFT's ViT is timm:vit_tiny_patch16_224.",
    ),
    "leaf-cnn": ModelCard(
        title="LEAF's CNN",
        paper="LEAF (Caldas et al. 2018)",
        about="two 5×5 convolutions (32, 64 channels) with pools, 2048 units; 6 603 710 parameters on FEMNIST",
        make=leaf_cnn,
        takes=Images(smallest=4),
    ),
    "lstm": ModelCard(
        title="Two-layer character LSTM",
        paper="LEAF (Caldas et al. 2018); FedFFT",
        about="embedding of 80 characters in 8 numbers, two layers of 256 units; 819 920 parameters on Shakespeare",
        make=lstm,
        takes=Tokens(),
        defaults={"vocabulary": 80},
        notes="Equal to torch.nn.LSTM, with both biases. No dropout before the last layer (one release: 0.5).",
    ),
    "fasttext": ModelCard(
        title="fastText-style classifier",
        paper="Joulin et al. 2017, in the form of PFLlib",
        about="the mean of word vectors of width 32, then two linear layers",
        make=fasttext,
        takes=Tokens(),
        defaults={"vocabulary": 98635, "padding": 0},
        notes="Our choice for Yahoo! Answers, whose model SpecGradFilter does not name. The padding token is left out "
        "of the mean, so that a short text is not a faint one.",
    ),
}


def build(name: str, *, shape: Shape, classes: int, seed: int, **options: Any) -> nn.Module:
    """Build the model `name` for samples of `shape`, with initial weights that depend on the arguments alone.

    name: one of `MODELS`, `timm:NAME`, `torchvision:NAME`, or `module:function` for your own.
    options: what to change of the card's `defaults`; for other people's models, further arguments of theirs.
    """
    if classes < 1:
        raise ModelError(f"a model needs at least one class, not {classes}")
    if ":" not in name:
        _check_request(name, shape, options)
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        # not torch.manual_seed, which would also reset the generators of the caller's GPUs
        torch.default_generator.manual_seed(key(seed, "init"))
        if ":" in name:
            return build_external(name, shape, classes, options)
        card = MODELS[name]
        try:
            return card.make(shape, classes, **{**card.defaults, **options})
        except (TypeError, ValueError, ArithmeticError, RuntimeError) as error:
            raise ModelError(f"model {name!r} cannot be built with {options}: {error}") from error


def card_of(name: str) -> ModelCard:
    return MODELS[require_known(name, MODELS, "unknown model", "models", ModelError)]


def _check_request(name: str, shape: Shape, options: dict[str, Any]) -> None:
    card = card_of(name)
    if not card.takes.accepts(shape):
        raise ModelError(f"model {name!r} does not take data of shape {shape}", hint=f"it takes {card.takes}")
    for option in options.keys() - card.defaults.keys():
        hint = nearest(option, card.defaults, "options") if card.defaults else f"{name!r} has no options"
        raise ModelError(f"model {name!r} has no option {option!r}", hint=hint)

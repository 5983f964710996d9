"""Small networks that call what users' networks call, each with the shapes of its inputs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedkeel.models.adapters import lora

CLASSES = 3


class Basic(nn.Module):
    """A residual block as torchvision writes it: in-place ReLU, the shortcut computed last, `out += identity`."""

    def __init__(self, inner: int, outer: int, stride: int = 1, norm: type[nn.Module] = nn.BatchNorm2d):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False), norm(outer)
        self.relu = nn.ReLU(inplace=True)
        self.conv2, self.bn2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False), norm(outer)
        self.downsample = None
        if stride != 1 or inner != outer:
            self.downsample = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), norm(outer))

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self, norm: type[nn.Module] = nn.BatchNorm2d):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 7, 2, 3, bias=False), norm(8)
        self.relu, self.maxpool = nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        self.layer1 = nn.Sequential(Basic(8, 8, norm=norm), Basic(8, 16, 2, norm))
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d((1, 1)), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        return self.fc(torch.flatten(self.avgpool(self.layer1(x)), 1))


def groups(channels: int) -> nn.Module:
    return nn.GroupNorm(2, channels)


class PreActivation(nn.Module):
    """A wide residual block: norm and ReLU come first, and their output also feeds the shortcut."""

    def __init__(self, inner: int, outer: int):
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(inner), nn.Conv2d(inner, outer, 3, padding=1, bias=False)
        self.norm2, self.conv2 = nn.BatchNorm2d(outer), nn.Conv2d(outer, outer, 3, padding=1, bias=False)
        self.shortcut = nn.Conv2d(inner, outer, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        first = F.relu(self.norm1(x))
        return self.conv2(self.norm2(self.conv1(first)).relu()) + self.shortcut(first)


class Dense(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm2d(n) for n in (4, 6, 8))
        self.convs = nn.ModuleList(nn.Conv2d(n, 2, 3, padding=1, bias=False) for n in (4, 6, 8))
        self.stem, self.fc = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(10, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        features = [self.stem(x)]
        for norm, conv in zip(self.norms, self.convs, strict=True):
            features.append(conv(F.relu(norm(torch.cat(features, 1)), inplace=True)))
        x = F.avg_pool2d(torch.cat(features, 1), 2)
        return self.fc(F.adaptive_avg_pool2d(x, (1, 1)).squeeze(-1).squeeze(-1))


class Growing(nn.Module):
    """A network whose images are normed, joined and used again, once before and once after a norm; one norm is idle."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.BatchNorm2d(4), nn.GroupNorm(2, 6), nn.GroupNorm(1, 8), nn.BatchNorm2d(10)])
        self.convs = nn.ModuleList(nn.Conv2d(n, 2, 3, padding=1, bias=False) for n in (4, 6, 8))
        self.stem, self.fc, self.idle = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(10, CLASSES), nn.GroupNorm(2, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for norm, conv in zip(self.norms, self.convs, strict=False):
            before, unit = x.tanh(), norm(x)
            x = torch.cat([conv(F.relu(unit) + unit), x + 0.1 * before * x], 1)
        self.idle(x).relu()
        return self.fc((self.norms[-1](x) * x).relu_().mean((2, 3)))


class VisionTransformer(nn.Module):
    def __init__(self, width: int = 8, heads: int = 2):
        super().__init__()
        self.heads, self.embed = heads, nn.Conv2d(3, width, 4, 4)
        self.token, self.positions = nn.Parameter(torch.randn(1, 1, width)), nn.Parameter(torch.randn(1, 5, width))
        self.norm1, self.norm2, self.norm = nn.LayerNorm(width), nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 16), nn.GELU(), nn.Linear(16, width))
        self.scale, self.head = nn.Parameter(torch.ones(width)), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        b, n, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, c)
        x = x + self.scale * self.project(y)
        return self.head(self.norm(x + self.mlp(self.norm2(x)))[:, 0])


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Conv2d(3, 6, 2, 2), nn.LayerNorm(6)
        self.tokens = nn.Sequential(nn.Linear(16, 5), nn.GELU(), nn.Linear(5, 16))
        self.channels = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 9), nn.SiLU(), nn.Linear(9, 6))
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).flatten(2).mT
        x = x + self.tokens(self.norm(x).mT).mT
        return self.head((x + self.channels(x)).mean(dim=1))


class ConvNeXt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.depthwise = nn.Conv2d(3, 8, 2, 2), nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)
        self.gamma, self.head = nn.Parameter(torch.full((8,), 0.5)), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = (self.gamma * self.down(F.gelu(self.up(y)))).permute(0, 3, 1, 2)
        return self.head((x + y).mean([-2, -1]))


class MobileNet(nn.Module):
    """An inverted residual with squeeze and excitation: grouped convolutions, ReLU6, hard sigmoid."""

    def __init__(self) -> None:
        super().__init__()
        self.expand = nn.Sequential(nn.Conv2d(3, 8, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6(inplace=True))
        self.depth = nn.Sequential(nn.Conv2d(8, 8, 3, 2, 1, groups=8, bias=False), nn.BatchNorm2d(8), nn.Hardswish())
        self.squeeze, self.excite = nn.Conv2d(8, 2, 1), nn.Conv2d(2, 8, 1)
        self.project = nn.Sequential(nn.Conv2d(8, 4, 1, groups=2, bias=False), nn.BatchNorm2d(4))
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.depth(self.expand(x))
        x = x * F.hardsigmoid(self.excite(F.relu(self.squeeze(F.adaptive_avg_pool2d(x, 1)))))
        return self.head(self.project(x).mean((2, 3)))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], **options: int):
        super().__init__()
        self.embed = nn.Embedding(7, 4, padding_idx=0)
        self.cell = kind(4, 5, batch_first=True, **options)
        width = options.get("proj_size", 5)
        self.head = nn.Linear(2 * width if options.get("bidirectional") else width, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.cell(self.embed(tokens))
        return self.head(states[:, -1])


class Encoder(nn.Module):
    """A transformer encoder of PyTorch's own layers, with a mask of the padding."""

    def __init__(self, first: bool = False, dropout: float = 0.0):
        super().__init__()
        self.embed = nn.Embedding(7, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 12, dropout, batch_first=True, norm_first=first)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layers(self.embed(tokens), src_key_padding_mask=tokens == 0)[:, 0])


class TextCnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.convs = nn.ModuleList(nn.Conv1d(4, 3, k, padding=k // 2) for k in (2, 3))
        self.head = nn.Linear(6, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens).permute(0, 2, 1)
        return self.head(torch.cat([F.relu(conv(x)).max(dim=2).values for conv in self.convs], 1))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.middle = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 6, 3, stride=2, padding=1)
        self.up, self.last = nn.ConvTranspose2d(6, 4, 2, 2), nn.Conv2d(8, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = F.leaky_relu(self.down(x))
        second = self.up(F.elu(self.middle(first)))
        return self.last(torch.cat([first, second], dim=1)).mean((2, 3))


class Shared(nn.Module):
    """One matrix for words in and words out, and one layer that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layer = nn.Embedding(7, 4), nn.Linear(4, 4)
        self.out = nn.Linear(4, 7, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.layer(torch.tanh(self.layer(self.embed(tokens))))
        return self.out(x.mean(1))[:, :CLASSES]


class FrozenBase(nn.Module):
    """A base that is not trained, an adapter beside one of its layers, a bias alone that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten())
        self.layer, self.head = nn.Linear(256, 6), nn.Linear(6, CLASSES)
        for p in (*self.base.parameters(), self.layer.weight, self.head.weight):
            p.requires_grad_(False)
        self.down, self.up = nn.Linear(256, 2, bias=False), nn.Linear(2, 6, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.base(x)
        return self.head(torch.relu(self.layer(x) + 0.5 * self.up(self.down(x))))


class Scaled(nn.Module):
    """A learned number without axes, a weight that is never used, a standardised convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, padding="same"), nn.GroupNorm(4, 4)
        self.temperature, self.unused = nn.Parameter(torch.tensor(1.5)), nn.Linear(2, 2)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.conv.weight
        weight = (weight - weight.mean((1, 2, 3), keepdim=True)) / (weight.std((1, 2, 3), keepdim=True) + 1e-3)
        x = F.relu(self.norm(F.conv2d(x, weight, self.conv.bias, padding=1)))
        self.unused(x[0, 0, :2, :2])
        return self.head(x.amax((2, 3))) * self.temperature.exp()


class FrozenNorms(nn.Module):
    """Norms whose gains are frozen, without a bias, or without both, between layers that train."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(a, 4, 3, padding=1) for a in (3, 4, 4, 4))
        self.groups, self.batch, self.plain = nn.GroupNorm(2, 4), nn.BatchNorm2d(4), nn.GroupNorm(2, 4, affine=False)
        for norm in (self.groups, self.batch):
            nn.init.uniform_(norm.weight, 0.5, 1.5)
            norm.requires_grad_(False)
        nn.init.constant_(self.batch.running_mean, 0.3)
        self.gain, self.head = nn.Parameter(torch.ones(4)), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        norms = (self.plain, self.groups, lambda x: F.group_norm(x, 1, self.gain), self.batch)
        for conv, norm in zip(self.convs, norms, strict=True):
            x = torch.relu(norm(conv(x)))
        return self.head(x.mean((2, 3)))


class Cells(nn.Module):
    """Cells that a network steps itself."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(7, 4), nn.Linear(4, CLASSES)
        self.lstm, self.gru, self.tanh = nn.LSTMCell(4, 4), nn.GRUCell(4, 4), nn.RNNCell(4, 4)
        self.relu = nn.RNNCell(4, 4, bias=False, nonlinearity="relu")

    def forward(self, tokens: Tensor) -> Tensor:
        words = self.embed(tokens)
        h = c = one = other = last = words.new_zeros(len(words), 4)
        for x in words.unbind(1):
            h, c = self.lstm(x, (h, c))
            one = self.gru(h, one)
            other = self.tanh(one, other)
            last = self.relu(other, last)
        return self.head(last + c)


class Centred(nn.Module):
    """A network whose samples meet: each is judged by its distance from the mean of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)
        return self.head(torch.relu(x - x.mean(0)))


class TokensFirst(nn.Module):
    """A transformer layer in PyTorch's own layout: samples are the second axis of what it drops from."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(7, 8), nn.Linear(8, CLASSES)
        self.layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layer(self.embed(tokens).transpose(0, 1)).mean(0))


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.image, self.number = nn.Conv2d(3, 4, 3), nn.Linear(2, 4)
        self.head = nn.Bilinear(4, 4, CLASSES)

    def forward(self, x: Tensor, numbers: Tensor) -> Tensor:
        return self.head(self.image(x).mean((2, 3)), torch.sigmoid(self.number(numbers)))


class TwoOutputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.one, self.other = nn.Linear(4, 6), nn.Linear(6, CLASSES), nn.Linear(6, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = F.softplus(self.body(x))
        return self.one(x), self.other(x)


class Llama(nn.Module):
    """RMS norms, rotated halves, a causal mask, a gated layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm1, self.norm2 = nn.Embedding(7, 8), nn.RMSNorm(8), nn.RMSNorm(8)
        self.q, self.kv, self.o = (nn.Linear(8, n, bias=False) for n in (8, 16, 8))
        self.gate, self.up, self.down = nn.Linear(8, 6, False), nn.Linear(8, 6, False), nn.Linear(6, 8, False)
        self.head = nn.Linear(8, CLASSES)
        self.register_buffer("angles", torch.outer(torch.arange(5.0), torch.tensor([1.0, 0.1])).repeat(1, 2))

    def turn(self, x: Tensor) -> Tensor:
        one, other = x.chunk(2, -1)
        return x * self.angles.cos() + torch.cat((-other, one), -1) * self.angles.sin()

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        y = self.norm1(x)
        q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in (self.q(y), *self.kv(y).chunk(2, -1)))
        y = F.scaled_dot_product_attention(self.turn(q), self.turn(k), v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return self.head((x + self.down(F.silu(self.gate(y)) * self.up(y)))[:, -1])


class Einsum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.randn(3, 2, 4, 3) / 2)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = torch.einsum("bsd,phdk->pbhsk", x, self.weights).unbind(0)
        shares = torch.einsum("bhsk,bhtk->bhst", q, k).softmax(-1)
        return self.head(torch.einsum("bhst,bhtk->bshk", shares, v).flatten(2).mean(1))


class Siamese(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))
        self.head = nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        one, other = self.tower(x), self.tower(x.flip(-1))
        return self.head(F.normalize(one - other, dim=-1) + one * other)


class Alias(nn.Module):
    """A norm whose output is used twice, and changed in place behind another name."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        y = self.norm(x)
        again = y
        y += x
        z = F.relu(y) + self.norm(x) * again
        return self.head(z.mean((2, 3)))


class Crossed(nn.Module):
    """A batch norm that is used twice; what it gives the second time is read first, and its moments in between."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        one, other = self.norm(self.conv(x)), self.norm(self.conv(x.flip(-1) ** 2))
        second = F.relu(other) * self.norm.running_mean[:, None, None]
        return self.head((second - 2 * F.relu(one)).mean((2, 3)))


class Named(nn.Module):
    """Functions whose arguments are named, as PyTorch or numpy names them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 4, 3), nn.LayerNorm(6), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.conv2d(input=x, weight=self.conv.weight, bias=self.conv.bias)
        shape, weight, bias = self.norm.normalized_shape, self.norm.weight, self.norm.bias
        y = torch.layer_norm(input=x, normalized_shape=shape, weight=weight, bias=bias)
        y = torch.cat([x.relu(), torch.dropout(input=y, p=0.4, train=self.training)], axis=1)
        y = torch.stack(torch.unbind(y, axis=2)).mean((0, 3))
        return F.linear(input=y, weight=self.head.weight, bias=self.head.bias)


class Pooled(nn.Module):
    """Tokens that are pooled by attention to learned queries, which are the same for all samples."""

    def __init__(self) -> None:
        super().__init__()
        self.queries, self.kv, self.head = nn.Parameter(torch.randn(1, 2, 4)), nn.Linear(4, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.scaled_dot_product_attention(self.queries, *self.kv(x).chunk(2, -1)).flatten(1))


class Overwriting(nn.Module):
    """Rows of a table, and a convolution without a bias, that are changed in place."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.positions = nn.Embedding(7, 4, padding_idx=0), nn.Parameter(torch.randn(5, 4))
        self.conv, self.head = nn.Conv2d(1, 4, 3, bias=False), nn.Linear(4, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        x *= 2
        x += self.positions
        x = self.conv(x.unsqueeze(1))
        x[:, 0] = 0
        return self.head(F.relu(x, inplace=True).mean((2, 3)))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, CLASSES))


def lenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.Sigmoid(), nn.AvgPool2d(2), nn.Conv2d(4, 6, 3), nn.Tanh(), nn.MaxPool2d(1),
        nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, CLASSES),
    )  # fmt: skip


def wide() -> nn.Module:
    return nn.Sequential(
        PreActivation(3, 4), PreActivation(4, 6), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, CLASSES)
    )


def batch_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 5),
                         nn.BatchNorm1d(5, affine=False), nn.ELU(), nn.Linear(5, CLASSES))  # fmt: skip


def embedded() -> nn.Module:
    return nn.Sequential(nn.EmbeddingBag(7, 4), nn.Linear(4, CLASSES))


IMAGE, VECTOR, TOKENS = ((3, 8, 8),), ((4,),), ((5,),)

NETWORKS = {
    "a multi-layer perceptron": (mlp, VECTOR),
    "a lone layer": (lambda: nn.Linear(4, CLASSES), VECTOR),
    "LeNet": (lenet, IMAGE),
    "ResNet as torchvision writes it": (ResNet, IMAGE),
    "ResNet with group norms": (lambda: ResNet(groups), IMAGE),
    "a wide ResNet": (wide, IMAGE),
    "DenseNet": (Dense, IMAGE),
    "a network that grows": (Growing, IMAGE),
    "a vision transformer": (VisionTransformer, IMAGE),
    "MLP-Mixer": (Mixer, IMAGE),
    "ConvNeXt": (ConvNeXt, IMAGE),
    "MobileNet with squeeze and excitation": (MobileNet, IMAGE),
    "LSTM": (lambda: Recurrent(nn.LSTM), TOKENS),
    "LSTM, two layers, two directions": (lambda: Recurrent(nn.LSTM, num_layers=2, bidirectional=True), TOKENS),
    "GRU": (lambda: Recurrent(nn.GRU), TOKENS),
    "GRU, two layers without biases": (lambda: Recurrent(nn.GRU, num_layers=2, bias=False), TOKENS),
    "a plain recurrent network": (lambda: Recurrent(nn.RNN), TOKENS),
    "LSTM with projections": (lambda: Recurrent(nn.LSTM, num_layers=2, proj_size=3), TOKENS),
    "cells": (Cells, TOKENS),
    "a transformer encoder": (Encoder, TOKENS),
    "a transformer encoder, norms first": (lambda: Encoder(first=True), TOKENS),
    "a text CNN": (TextCnn, TOKENS),
    "U-Net": (UNet, IMAGE),
    "shared weights": (Shared, TOKENS),
    "a frozen base with an adapter": (FrozenBase, IMAGE),
    "frozen norms, norms without biases": (FrozenNorms, IMAGE),
    "samples that meet": (Centred, VECTOR),
    "dropout, tokens first": (TokensFirst, TOKENS),
    "low-rank adapters": (lambda: lora(mlp(), 2, alpha=3, on="0"), VECTOR),
    "a number as a weight, standardised convolution": (Scaled, IMAGE),
    "two inputs": (TwoInputs, ((3, 8, 8), (2,))),
    "two outputs": (TwoOutputs, VECTOR),
    "RMS norms": (Llama, TOKENS),
    "batch norms of vectors": (batch_mlp, VECTOR),
    "attention by einsum": (Einsum, ((5, 4),)),
    "attention to learned queries": (Pooled, ((5, 4),)),
    "a siamese network": (Siamese, IMAGE),
    "a batch norm read in another order": (Crossed, IMAGE),
    "outputs that are changed in place": (Overwriting, TOKENS),
    "named arguments": (Named, IMAGE),
    "changes in place": (Alias, IMAGE),
    "dropout": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Dropout2d(0.3), nn.Flatten(), nn.Dropout(0.5),
                                      nn.Linear(144, CLASSES)), IMAGE),
    "a transformer encoder with dropout": (lambda: Encoder(dropout=0.2), TOKENS),
}  # fmt: skip
"""Network and the shapes of one sample's inputs; those of shape (5,) are word numbers below 7."""


def draw_inputs(shapes: tuple[tuple[int, ...], ...], samples: int, draw: torch.Generator) -> list[Tensor]:
    """Draw the inputs of some samples."""
    return [
        torch.randint(0, 7, (samples, *shape), generator=draw)
        if shape == (5,)
        else torch.randn(samples, *shape, generator=draw)
        for shape in shapes
    ]

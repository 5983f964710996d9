"""Networks of the papers and of users on one GPU: a step of ten clients, stacked, beside an eager loop in one process.

    python benchmarks/networks_gpu.py --warm 6 --json networks.json [--only ViT] [--seconds 240] [--profile]
    python benchmarks/networks_gpu.py --device cpu --tiny        # a dry run: two clients, two samples, no meaning

Inputs are random: the time of a step does not depend on what they show. "eager" is a hand-written loop, one client
after another, in float32, and once more under bfloat16 autocast. "floor" is the longer of two times of a step of all
clients: multiplications, and bytes (weights read, gradients written and read, weights written, 20 bytes a weight; each
layer's output written, read, and its slope written and read, 8 bytes a number), at rates that are measured first: a
product of large matrices in bfloat16, and a copy. "predicted" was written down before the run. What was never measured
comes first. After each row all results are written to the file of `--json`. `--warm` compiles the kernels of all rows
in so many processes before anything is timed. A network that fails gives one line, and the others go on.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from eager_step import train_client
from rates import measure_copies, measure_products, seconds
from torch import Tensor, nn

import fedkeel as fk
from fedkeel.core.method import Method
from fedkeel.core.round import broadcast, init_server
from fedkeel.engines.engine import RoundRequest, Training
from fedkeel.engines.stacked.engine import StackedEngine
from fedkeel.engines.stacked.joint import JointEngine
from fedkeel.methods import build
from fedkeel.models import build as build_model
from fedkeel.problems.task import Task
from fedkeel.rules import ClipNorm, WeightDecay
from fedkeel.runs.prepare import cross_entropy

PFL = 536.6 / 408.5
"""How much longer than an eager loop pfl 0.6 took for its benchmark when both were measured (`stacked_gpu.md`)."""


# ---- networks ------------------------------------------------------------------------------------------------------
class Attend(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads, self.qkv, self.proj = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, c))


class Layer(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.norm1, self.attn, self.norm2 = nn.LayerNorm(width), Attend(width, heads), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class VitTiny(nn.Module):
    """ViT-tiny with patches of 16: width 192, three heads, twelve layers, as timm writes it."""

    def __init__(self, pixels: int, classes: int, width: int = 192, depth: int = 12):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.cls_token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.pos_embed = nn.Parameter(torch.randn(1, (pixels // 16) ** 2 + 1, width) * 0.02)
        self.blocks, self.norm = nn.Sequential(*(Layer(width, 3) for _ in range(depth))), nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])


class CharacterLstm(nn.Module):
    """LEAF's network of Shakespeare with PyTorch's own LSTM, which cuDNN computes in the eager loop."""

    def __init__(self, characters: int = 80, units: int = 256):
        super().__init__()
        self.embed, self.lstm = nn.Embedding(characters, 8), nn.LSTM(8, units, 2, batch_first=True)
        self.head = nn.Linear(units, characters)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.lstm(self.embed(tokens))[0][:, -1])


class TextTransformer(nn.Module):
    """Word vectors of width 32 of 98 635 words, two encoder layers of PyTorch's own, the mean over words."""

    def __init__(self, classes: int, words: int, width: int = 32):
        super().__init__()
        self.embed = nn.Embedding(words, width, padding_idx=0)
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(tokens)).mean(1))


def ours(name: str, shape: tuple[int, ...] = (3, 32, 32), classes: int = 10) -> Callable[[], nn.Module]:
    return lambda: build_model(name, shape=shape, classes=classes, seed=0)


def torchvision_resnet18() -> nn.Module:
    from torchvision.models import resnet18

    return resnet18(num_classes=10, norm_layer=lambda channels: nn.GroupNorm(2, channels))


def timm_vit() -> nn.Module:
    import timm

    return timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=10)


def pfl_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(64 * 14 * 14, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A line of the table: a network, its samples, the method, and what was expected of it."""

    name: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...] = (3, 32, 32)
    words: int | None = None
    batch: int = 50
    method: str = "fedavg"
    target: str = ""
    predicted: float = float("nan")  # ms
    classes: int = 10
    clients: int = 10
    steps: int = 50
    seeds: int = 1
    beside: str = ""  # another row, by which this one's time is divided
    pfl: bool = False  # whether the target is a multiple of pfl's speed

    def draw(self, samples: int, device: str = "cpu") -> tuple[Tensor, Tensor]:
        draw = torch.Generator(device=device).manual_seed(0)
        x = (
            torch.randn(samples, *self.shape, generator=draw, device=device)
            if self.words is None
            else torch.randint(0, self.words, (samples, *self.shape), generator=draw, device=device)
        )
        return x, torch.randint(0, self.classes, (samples,), generator=draw, device=device)


TEN = "ResNet-20-GN, SpecGradFilter"
ROWS = [
    Row("ViT-tiny/16 at 224 px", lambda: VitTiny(224, 10), (3, 224, 224), target="≥ 30×", predicted=45.0, steps=5),
    Row(TEN, ours("resnet20-gn"), method="specgradfilter", target="≤ 2.0 ms", predicted=2.65),
    Row("thirty clients in one stack (three seeds), ResNet-20", ours("resnet20-gn"), method="specgradfilter", seeds=3,
        target="≤ 1.9× of ten", predicted=6.6, beside=TEN),
    Row("DenseNet-121", ours("densenet121-gn"), target="≥ 30×", predicted=42.0, steps=20),
    Row("LSTM on Shakespeare", CharacterLstm, (80,), 80, 10, target="≥ 20×", predicted=3.5, classes=80),
    Row("transformer on Yahoo! Answers", lambda: TextTransformer(10, 98_635), (64,), 98_635, 50, target="≥ 20×",
        predicted=2.2),
    Row("ViT-tiny/16 at 32 px", lambda: VitTiny(32, 10), target="≥ 30×", predicted=4.8),
    Row("ViT-tiny/16 at 32 px, as timm writes it", timm_vit, target="≥ 30×", predicted=4.7),
    Row("LeNet-type CNN of FedFSA", ours("lenet-fsa"), target="≥ 40× pfl", predicted=1.2, pfl=True),
    Row("CNN of pfl's benchmark", pfl_cnn, batch=10, clients=50, target="≥ 40× pfl", predicted=3.4, steps=5, pfl=True),
    Row("ResNet-18-GN", ours("resnet18-gn"), predicted=2.1),
    Row("the same ResNet-18 as torchvision writes it", torchvision_resnet18, target="≤ 1.2× of ours", predicted=2.2,
        beside="ResNet-18-GN"),
    Row("ResNet-18-GN, FedFFT-D", ours("resnet18-gn"), method="fedfft-d", target="≤ 5.0 ms", predicted=5.2),
    Row("ResNet-18-BN, 3×3 stem", ours("resnet18-bn-cifar"), target="≥ 30×", predicted=7.7),
    Row("WRN-56-2", ours("wrn56-2-gn"), target="≥ 30×", predicted=12.2),
]  # fmt: skip


# ---- the two sides -------------------------------------------------------------------------------------------------
def method_of(name: str) -> Method:
    return build(name).then(ClipNorm(10.0), WeightDecay(1e-3))


def eager_loop(row: Row, device: str, steps: int, autocast: bool) -> Callable[[], None]:
    """What a paper's code does for one client: a module, autograd, and arithmetic tensor by tensor."""
    network = row.make().to(device).train()
    params = [p for p in network.parameters() if p.requires_grad]
    x, y = row.draw(row.batch, device)

    def gradients(step: int) -> list[Tensor]:
        with torch.autocast(device, torch.bfloat16, enabled=autocast):
            loss = F.cross_entropy(network(x), y)
        return list(torch.autograd.grad(loss, params))

    return partial(train_client, params, gradients, row.method, steps)


def make_engine(row: Row, device: str, precision: torch.dtype, seed: int = 0) -> StackedEngine:
    clients = [row.draw(row.batch * 2) for _ in range(row.clients)]
    problem = fk.Problem(model=row.make(), loss=cross_entropy, clients=clients)
    task = Task(problem, device=device, dtype=precision)
    return StackedEngine(task, method_of(row.method), Training(seed, 1, row.batch, row.steps))


def stacked_step(row: Row, device: str, precision: torch.dtype, rounds: int) -> tuple[float, float, StackedEngine]:
    """Return milliseconds of a step of all clients, in whole rounds and replayed, and the engine."""
    engines = [make_engine(row, device, precision, seed) for seed in range(row.seeds)]
    joint = JointEngine(engines) if row.seeds > 1 else None
    messages = [broadcast(e.method, init_server(e.method, e.task.initial, e.task.buffers)) for e in engines]
    clients, counter = list(range(row.clients)), iter(range(10_000))

    def one_round() -> None:
        t = next(counter)
        if joint is None:
            engines[0].train(messages[0], t, 0.01, clients, [None] * len(clients))
        else:
            joint.train({r: RoundRequest(m, t, 0.01, clients, [None] * len(clients)) for r, m in enumerate(messages)})

    one_round()
    engine = engines[0] if joint is None else joint.stacked
    whole = seconds(one_round, rounds, device) / row.steps * 1e3
    graphs = list(engine.graphs.graphs.values())
    replays = [seconds(lambda g=g: (g.step.zero_(), g.replay(row.steps)), rounds, device) for g in graphs]  # type: ignore[misc]
    return whole, sum(replays) / row.steps * 1e3 if graphs else float("nan"), engine


class Rates(NamedTuple):
    """What the card reaches in a second: operations in products of bfloat16, and bytes read and written."""

    arithmetic: float
    bandwidth: float


def floor(row: Row, device: str, rates: Rates) -> tuple[float, str]:
    """Return the least milliseconds of a step of all clients, and what limits it."""
    from torch.utils.flop_counter import FlopCounterMode

    network, numbers = row.make().to(device).train(), [0]
    x, y = row.draw(row.batch, device)

    def count(layer: nn.Module, given: Any, output: Any) -> None:
        if not list(layer.children()) and isinstance(output, Tensor):
            numbers[0] += output.numel()

    hooks = [layer.register_forward_hook(count) for layer in network.modules()]
    with FlopCounterMode(display=False) as counter:
        F.cross_entropy(network(x), y).backward()
    for hook in hooks:
        hook.remove()
    passes = 2 if row.method == "fedfft-d" else 1
    weights = sum(p.numel() for p in network.parameters())
    products = passes * counter.get_total_flops() / rates.arithmetic
    bytes_ = passes * (20 * weights + 8 * numbers[0]) / rates.bandwidth
    scale = row.clients * row.seeds * 1e3
    return max(products, bytes_) * scale, "arithmetic" if products > bytes_ else "bytes"


def profile(engine: StackedEngine) -> str:
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiled

    graph, steps = next(iter(engine.graphs.graphs.values())), 4
    graph.step.zero_()
    with profiled(activities=[ProfilerActivity.CUDA]) as found:
        graph.replay(steps)
        torch.cuda.synchronize()
    rows = sorted(found.key_averages(), key=lambda row: -row.self_device_time_total)
    total = sum(row.self_device_time_total for row in rows) / steps / 1e3
    lines = [f"   {total:.3f} ms of kernels, {sum(r.count for r in rows) / steps:.0f} launches in a step"]
    return "\n".join(lines + [
        f"   {r.self_device_time_total / steps / 1e3:.3f} ms | {r.count / steps:.0f} | {r.key[:110]}" for r in rows[:25]
    ])  # fmt: skip


# ---- the table -----------------------------------------------------------------------------------------------------
HEAD = (
    "| network | stacked, ms | replayed, ms | eager float32, ms | ratio | eager bfloat16, ms | ratio | floor, ms | "
    "predicted, ms | target | found |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
)


class Found(NamedTuple):
    """What was measured of a row, in milliseconds of a step of all its clients."""

    name: str
    stacked: float
    replayed: float
    eager_float32: float
    eager_bfloat16: float
    floor: float
    limit: str
    predicted: float
    target: str
    relative: float | None  # to the row that it stands beside
    ready_s: float
    gibibytes: float
    steps: int
    report: str

    def line(self, row: Row) -> str:
        found = f"{self.relative:.2f}×" if self.relative is not None else ""
        if row.pfl:
            found = (
                f"about {PFL * self.eager_float32 / self.stacked:.0f}× pfl, by its recorded {PFL:.2f} of an eager loop"
            )
        return (
            f"| {self.name} | {self.stacked:.2f} | {self.replayed:.2f} | {self.eager_float32:.1f} | "
            f"{self.eager_float32 / self.stacked:.1f}× | {self.eager_bfloat16:.1f} | "
            f"{self.eager_bfloat16 / self.stacked:.1f}× | {self.floor:.2f} ({self.limit}) | {self.predicted} | "
            f"{self.target} | {found} |"
        )


def measure(row: Row, given: argparse.Namespace, rates: Rates, done: dict[str, Found]) -> tuple[Found, str]:
    """Measure a row; return it, and what else is to be said."""
    device, precision = given.device, getattr(torch, given.precision)
    least, limit = floor(row, device, rates)
    began = time.perf_counter()
    whole, replay, engine = stacked_step(row, device, precision, given.rounds)
    took = time.perf_counter() - began
    eager = []
    for autocast in (False, True):
        if autocast and device == "cpu":  # takes ten times as long there, and says nothing
            eager.append(float("nan"))
            continue
        client = eager_loop(row, device, given.eager, autocast)
        client()
        eager.append(seconds(client, 3, device) / given.eager * 1e3 * row.clients * row.seeds)
        del client
    most = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else float("nan")
    relative = whole / done[row.beside].stacked if row.beside in done else None
    report = engine.gradient.report.describe()
    found = Found(row.name, whole, replay, eager[0], eager[1], least, limit, row.predicted, row.target, relative, took,
                  most, row.steps, report)  # fmt: skip
    notes = [f"   {report}", f"   measured after {took:.0f} s, {most:.1f} GiB, rounds of {row.steps} steps"]
    notes += [profile(engine)] if given.profile and engine.graphs.graphs else []
    return found, "\n".join(notes)


def shrink(row: Row) -> Row:
    """Make a row small enough for a dry run on a CPU."""
    return replace(row, batch=2, clients=2, steps=1)


def compile_ahead(rows: list[Row], given: argparse.Namespace) -> None:
    """Train one step of each row in processes of their own, so that compiled kernels lie on the disk."""
    began, waiting, running = time.perf_counter(), list(rows), list[subprocess.Popen[bytes]]()
    while waiting or running:
        running = [one for one in running if one.poll() is None]
        while waiting and len(running) < given.warm:
            call = [sys.executable, __file__, "--compile", waiting.pop(0).name, "--device", given.device]
            call += ["--precision", given.precision, *(["--tiny"] if given.tiny else [])]
            running.append(subprocess.Popen(call, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        time.sleep(0.2)
    print(f"kernels were compiled in {time.perf_counter() - began:.0f} s, {given.warm} processes", flush=True)


def compile_row(row: Row, device: str, precision: torch.dtype) -> None:
    """Train one step: that compiles every kernel, and captures a graph."""
    stacked_step(replace(row, steps=1), device, precision, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", default="bfloat16")
    parser.add_argument("--only", action="append", help="rows whose name has this in it; may be given several times")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no further row after so long")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--eager", type=int, default=5, help="steps of the eager loop")
    parser.add_argument("--json", type=Path, help="write what was measured to this file, after each row")
    parser.add_argument("--warm", type=int, default=0, help="compile in so many processes first")
    parser.add_argument("--compile", help="only compile the kernels of the row of this name")
    parser.add_argument("--tiny", action="store_true", help="two clients with two samples: a dry run")
    parser.add_argument("--profile", action="store_true", help="kernels of each network, by time")
    parser.add_argument("--trace", action="store_true", help="where a network that fails has failed")
    given = parser.parse_args()
    given.eager, given.rounds = (1, 1) if given.tiny else (given.eager, given.rounds)
    rows = [row for row in ROWS if not given.only or any(part.lower() in row.name.lower() for part in given.only)]
    rows = [shrink(row) for row in rows] if given.tiny else rows
    if given.compile:
        for row in (row for row in rows if row.name == given.compile):
            compile_row(row, given.device, getattr(torch, given.precision))
        return
    began = time.perf_counter()
    if given.warm:
        compile_ahead(rows, given)
    torch.backends.cudnn.benchmark = True
    rates = Rates(measure_products(given.device), measure_copies(given.device))
    name = torch.cuda.get_device_name() if given.device == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}: {rates.arithmetic / 1e12:.0f} T operations and "
          f"{rates.bandwidth / 1e12:.2f} TB in a second")  # fmt: skip
    print(HEAD, flush=True)
    failed, done, lines = dict[str, str](), dict[str, Found](), list[str]()
    for row in rows:
        if time.perf_counter() - began > given.seconds:
            print(f"   {row.name}: not measured, the time is over", flush=True)
            continue
        try:
            if given.device == "cuda":
                torch.cuda.reset_peak_memory_stats()
            found, notes = measure(row, given, rates, done)
            done[row.name] = found
            lines.append(found.line(row))
            print(f"{lines[-1]}\n{notes}", flush=True)
        except Exception as error:
            failed[row.name] = f"{type(error).__name__}: {(str(error).strip() or '-').splitlines()[0]}"
            print(f"   {row.name}: {failed[row.name]}", flush=True)
            if given.trace:
                traceback.print_exc()
        if given.json:
            state = {"device": name, "torch": torch.__version__, "rates": rates._asdict(), "failed": failed}
            given.json.write_text(json.dumps(state | {"rows": [f._asdict() for f in done.values()]}, indent=1))
        gc.collect()
        if given.device == "cuda":
            torch.cuda.empty_cache()
    print("\n" + "\n".join([HEAD, *lines]), flush=True)
    if failed:
        print(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()

"""Ten clients that fine-tune adapters of an encoder of RoBERTa-base's size: the stacked engine beside a plain loop.

    python benchmarks/lora_gpu.py [--precision bfloat16] [--check] [--profile]
    python benchmarks/lora_gpu.py --tiny --device cpu          # does it run?

Weights and texts are random: the time of a step does not depend on what they say. Both sides have the same frozen base,
the same adapters (rank 8 beside queries and values, and the classifier), batches of 16 texts of 128 tokens with padding
masks, PyTorch's attention, no dropout, the same precision and SGD. The loop trains one client after another by autograd
with respect to the adapters alone; its network is held in that precision as a whole, which is its fastest form.
"""

from __future__ import annotations

import argparse
import copy
import logging
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from rates import measure_products
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import fedkeel as fk
from fedkeel.core.method import Method
from fedkeel.core.round import broadcast, init_server
from fedkeel.core.trees import stack, tensors
from fedkeel.engines.engine import Training
from fedkeel.engines.serial import SerialEngine
from fedkeel.engines.stacked.engine import StackedEngine
from fedkeel.methods import build
from fedkeel.problems.task import Task
from fedkeel.runs.prepare import cross_entropy
from fedkeel.text import byte_size

CLIENTS, RATE = 10, 0.05


@dataclass(frozen=True)
class Size:
    """An encoder, and what it reads in a step."""

    width: int = 768
    layers: int = 12
    heads: int = 12
    hidden: int = 3072
    vocabulary: int = 50265
    positions: int = 514
    classes: int = 4
    batch: int = 16
    tokens: int = 128
    rank: int = 8
    steps: int = 20


TINY = Size(32, 2, 2, 64, 100, 20, 4, 4, 12, 2, 3)


class Attention(nn.Module):
    def __init__(self, size: Size):
        super().__init__()
        self.heads = size.heads
        self.query, self.key, self.value, self.output = (nn.Linear(size.width, size.width) for _ in range(4))
        self.norm = nn.LayerNorm(size.width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (
            part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.norm(x + self.output(mixed.transpose(1, 2).flatten(2)))


class Layer(nn.Module):
    def __init__(self, size: Size):
        super().__init__()
        self.attention = Attention(size)
        self.up, self.down = nn.Linear(size.width, size.hidden), nn.Linear(size.hidden, size.width)
        self.norm = nn.LayerNorm(size.width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.attention(x, mask)
        return self.norm(x + self.down(F.gelu(self.up(x))))


class Encoder(nn.Module):
    """RoBERTa's encoder with a classifier on the first token."""

    def __init__(self, size: Size):
        super().__init__()
        self.words = nn.Embedding(size.vocabulary, size.width)
        self.positions = nn.Embedding(size.positions, size.width)
        self.norm = nn.LayerNorm(size.width)
        self.layers = nn.ModuleList(Layer(size) for _ in range(size.layers))
        self.dense, self.classes = nn.Linear(size.width, size.width), nn.Linear(size.width, size.classes)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.norm(self.words(input_ids) + self.positions(places))
        mask = attention_mask.bool()[:, None, None, :]
        for layer in self.layers:
            x = layer(x, mask)
        return {"logits": self.classes(self.dense(x[:, 0]).tanh())}


def network(size: Size) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        base = Encoder(size)
    on = ("*.attention.query", "*.attention.value")
    return fk.lora(base, size.rank, alpha=2 * size.rank, on=on, head=("dense", "classes"))


def texts(size: Size, count: int, seed: int) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(size.tokens // 2, size.tokens + 1, (count, 1), generator=draw)
    return {
        "input_ids": torch.randint(0, size.vocabulary, (count, size.tokens), generator=draw),
        "attention_mask": (torch.arange(size.tokens) < lengths).long(),
        "labels": torch.randint(0, size.classes, (count,), generator=draw),
    }


def problem(size: Size, clients: int = CLIENTS) -> fk.Problem:
    data = [texts(size, size.batch * size.steps, client) for client in range(clients)]
    return fk.Problem(model=network(size), loss=cross_entropy, clients=data, classes=size.classes)


class Loop(NamedTuple):
    """One client after another, in plain PyTorch."""

    step: Callable[[dict[str, Tensor]], None]
    one_client: Callable[[], None]
    batch: dict[str, Tensor]


def plain_loop(size: Size, device: torch.device, dtype: torch.dtype) -> Loop:
    """Train one client's adapters by autograd, from the same start each time."""
    model = copy.deepcopy(network(size)).to(device, dtype).train()
    params = [parameter for parameter in model.parameters() if parameter.requires_grad]
    start = [parameter.detach().clone() for parameter in params]
    rows = {name: part.to(device) for name, part in texts(size, size.batch * size.steps, 0).items()}

    def step(batch: dict[str, Tensor]) -> None:
        logits = model(batch["input_ids"], batch["attention_mask"])["logits"]
        grads = torch.autograd.grad(F.cross_entropy(logits.float(), batch["labels"]), params)
        with torch.no_grad():
            torch._foreach_add_(params, grads, alpha=-RATE)

    def one_client() -> None:
        with torch.no_grad():
            torch._foreach_copy_(params, start)
        for first in range(0, size.batch * size.steps, size.batch):
            step({name: part[first : first + size.batch] for name, part in rows.items()})

    return Loop(step, one_client, {name: part[: size.batch] for name, part in rows.items()})


def count_operations(loop: Loop) -> int:
    """Floating-point operations of one client's step: forward, and backward to the adapters."""
    with FlopCounterMode(display=False) as counter:
        loop.step(loop.batch)
    return counter.get_total_flops()


class Stacked(NamedTuple):
    engine: StackedEngine
    one_round: Callable[[], None]


def stacked(size: Size, device: torch.device, dtype: torch.dtype) -> Stacked:
    task = Task(problem(size), device=device, dtype=dtype)
    method: Method = build("fedavg")
    engine = StackedEngine(task, method, Training(0, 1, size.batch), together=CLIENTS)
    message = broadcast(method, init_server(method, task.initial, task.buffers))
    counter = iter(range(10_000))

    def one_round() -> None:
        engine.train(message, next(counter), RATE, list(range(CLIENTS)), [None] * CLIENTS)

    return Stacked(engine, one_round)


def check(size: Size, device: torch.device, dtype: torch.dtype) -> float:
    """The largest relative difference of a client's change from the serial engine's in float64, after a short round."""
    short, found = replace(size, steps=2), []
    for kind, precision in ((SerialEngine, torch.float64), (StackedEngine, dtype)):
        task, method = Task(problem(short, 2), device=device, dtype=precision), build("fedavg")
        message = broadcast(method, init_server(method, task.initial, task.buffers))
        engine: Any = kind(task, method, Training(0, 1, short.batch))
        outcomes = engine.train(message, 0, RATE, [0, 1], [None] * 2)
        found.append(tensors(stack([outcome.report["delta"] for outcome in outcomes])))
    return max(float((a.double() - b).norm() / b.norm()) for b, a in zip(*found, strict=True))


# ---- measuring ------------------------------------------------------------------------------------------------------
def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def milliseconds(f: Callable[[], Any], device: torch.device, times: int) -> float:
    taken = []
    for _ in range(times):
        wait(device)
        began = time.perf_counter()
        f()
        wait(device)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken) * 1e3


def held(device: torch.device) -> int:
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def measure_loop(size: Size, device: torch.device, dtype: torch.dtype, rounds: int) -> tuple[float, int]:
    """Milliseconds of a step of all clients, one after another, and the operations in it."""
    loop = plain_loop(size, device, dtype)
    operations = count_operations(loop) * CLIENTS
    loop.one_client()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    alone = milliseconds(loop.one_client, device, rounds) / size.steps * CLIENTS
    most = f", {byte_size(torch.cuda.max_memory_allocated(device))} at most" if device.type == "cuda" else ""
    print(f"one after another: {alone:.2f} ms per step of {CLIENTS} clients{most}", flush=True)
    return alone, operations


def profile(f: Callable[[], Any]) -> str:
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiled

    with profiled(activities=[ProfilerActivity.CUDA]) as seen:
        f()
        torch.cuda.synchronize()
    rows = sorted(seen.key_averages(), key=lambda row: -row.self_device_time_total)[:30]
    return "\n".join(f"{row.self_device_time_total / 1e3:.2f} ms | {row.count} | {row.key[:100]}" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", choices=["bfloat16", "float32"], help="default: bfloat16 on a GPU")
    parser.add_argument("--tiny", action="store_true", help="a small encoder, to see that it runs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--check", action="store_true", help="compare with the serial engine in float64 first")
    parser.add_argument("--profile", action="store_true")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    torch.set_float32_matmul_precision("high")
    device, size = torch.device(given.device), TINY if given.tiny else Size()
    dtype = getattr(torch, given.precision or ("bfloat16" if device.type == "cuda" else "float32"))
    model = network(size)
    frozen = sum(p.numel() for p in model.parameters() if not p.requires_grad)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    del model
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(
        f"{CLIENTS} clients, {frozen:,} frozen numbers and {trained:,} trained ones, batches of {size.batch} texts of"
    )
    print(
        f"{size.tokens} tokens, {str(dtype).removeprefix('torch.')}, torch {torch.__version__}, on {name}", flush=True
    )
    if given.check:
        print(f"difference from serial float64: {check(size, device, dtype):.1e}", flush=True)
    alone, operations = measure_loop(size, device, dtype, given.rounds)
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    before, began = held(device), time.perf_counter()
    together = stacked(size, device, dtype)
    weights = held(device) - before
    together.one_round()
    print(f"the first round took {time.perf_counter() - began:.0f} s", flush=True)
    step = milliseconds(together.one_round, device, given.rounds) / size.steps
    rate = measure_products(device.type, dtype)
    floor = operations / rate * 1e3
    print(f"together: {step:.2f} ms per step in whole rounds, {alone / step:.1f} times as fast as one after another")
    print(f"floor: {operations / 1e12:.2f} T operations at the {rate / 1e12:.0f} T a second that large products reach")
    print(f"are {floor:.2f} ms, {floor / step:.0%} of the time; there it would be {alone / floor:.1f} times as fast")
    base, adapter = frozen * dtype.itemsize, trained * 4
    least = base + CLIENTS * adapter
    print(
        f"one model and {CLIENTS} adapters: {byte_size(least)}: {byte_size(base)}, {CLIENTS} times {byte_size(adapter)}"
    )
    module = together.engine.task.module
    assert module is not None
    held_once = {p.data_ptr(): p.nbytes for p in module.parameters() if not p.requires_grad}
    besides = sum(t.nbytes for t in together.engine.gradient.lowered.values() if t.data_ptr() not in held_once)
    print(f"the base is held in {byte_size(sum(held_once.values()))}, copies of it in {byte_size(besides)}")
    if device.type == "cuda":
        print(f"held before the first step: {byte_size(weights)}, {weights / least:.2f} times one model and adapters")
        print(f"held between rounds, with texts and graphs: {byte_size(held(device) - before)}")
        print(f"at most, with activations: {byte_size(torch.cuda.max_memory_allocated(device))}")
        if given.profile:
            print(profile(together.one_round))


if __name__ == "__main__":
    main()

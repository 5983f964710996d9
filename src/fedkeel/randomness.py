"""Randomness as a function of its purpose: no generator is ever advanced, so nothing depends on what ran before.

A key is a 64-bit integer made from (seed, purpose, round, client, …). Numbers are hashes of a key and a counter.
The same integers come out of numpy (plans, on the host) and of torch (rules, on any device and under vmap).
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

log = logging.getLogger("fedkeel")

TURN = threading.RLock()

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
FIRST = 0xBF58476D1CE4E5B9
SECOND = 0x94D049BB133111EB
NORMALS = 0x5851F42D4C957F2D  # sets normal numbers apart
MASKS = 0x2545F4914F6CDD1D  # and masks
_GOLDEN, _FIRST, _SECOND, _30, _27, _31 = (np.uint64(n) for n in (GOLDEN, FIRST, SECOND, 30, 27, 31))


def mix(z: int) -> int:
    """The finaliser of SplitMix64 (Steele, Lea & Flood 2014): a bijection that scatters neighbouring integers."""
    z = ((z ^ (z >> 30)) * FIRST) & MASK
    z = ((z ^ (z >> 27)) * SECOND) & MASK
    return z ^ (z >> 31)


def key(seed: int, purpose: str, *numbers: int) -> int:
    """The key of one purpose, e.g. ``key(seed, "shuffle", round, client)``; an integer below 2^63."""
    z = mix((seed & MASK) + GOLDEN)
    for number in (zlib.crc32(purpose.encode()), *numbers):
        z = mix((z + GOLDEN + (number & MASK)) & MASK)
    return z >> 1


def keys_below(count: int, seed: int, purpose: str, *numbers: int) -> NDArray[np.uint64]:
    """``key(seed, purpose, *numbers, n)`` for all n below `count`."""
    return keys_of_each(count, [seed], purpose, *numbers)[0]


def keys_of_each(count: int, seeds: Iterable[int], purpose: str, *numbers: int) -> NDArray[np.uint64]:
    """The same for several seeds: one row for each."""
    starts = []
    for seed in seeds:
        z = mix((seed & MASK) + GOLDEN)
        for number in (zlib.crc32(purpose.encode()), *numbers):
            z = mix((z + GOLDEN + (number & MASK)) & MASK)
        starts.append((z + GOLDEN) & MASK)
    steps: NDArray[np.uint64] = np.arange(count, dtype=np.uint64)
    scattered: NDArray[np.uint64] = np.add.outer(np.array(starts, dtype=np.uint64), steps)
    scattered = (scattered ^ (scattered >> _30)) * _FIRST
    scattered = (scattered ^ (scattered >> _27)) * _SECOND
    return (scattered ^ (scattered >> _31)) >> np.uint64(1)


def bits(of: int | NDArray[np.uint64], count: int) -> NDArray[np.uint64]:
    """`count` independent 64-bit numbers; for an array of keys, one row for each."""
    z: NDArray[np.uint64] = np.arange(1, count + 1, dtype=np.uint64)
    z *= _GOLDEN
    z = np.asarray(of, dtype=np.uint64)[..., None] + z
    z ^= z >> _30
    z *= _FIRST
    z ^= z >> _27
    z *= _SECOND
    z ^= z >> _31
    return z


def uniforms(of: int | NDArray[np.uint64], count: int) -> NDArray[np.float64]:
    """`count` numbers in [0, 1)."""
    return np.asarray((bits(of, count) >> np.uint64(11)) * 2.0**-53)


def permutation(of: int, count: int) -> NDArray[np.int64]:
    """A random order of 0 … count - 1."""
    return np.argsort(bits(of, count), kind="stable")


def choice(of: int, population: int, count: int) -> list[int]:
    """`count` different numbers below `population`, sorted. Costs `count`, not `population` (Floyd's algorithm)."""
    draws = uniforms(of, count)
    chosen: set[int] = set()
    for last, draw in zip(range(population - count, population), draws, strict=True):
        pick = int(draw * (last + 1))
        chosen.add(last if pick in chosen else pick)
    return sorted(chosen)


def generator(of: int) -> np.random.Generator:
    """numpy's generator for the distributions a hash does not give (Dirichlet, binomial)."""
    return np.random.Generator(np.random.Philox(key=of))


def keyed_uniforms(of: Tensor, count: int) -> Tensor:
    """`uniforms` inside a rule: `of` is a 0-d int64 tensor, and the result has float64 bits on any device."""
    z = of + GOLDEN_SIGNED * torch.arange(1, count + 1, dtype=torch.int64, device=of.device)
    z = (z ^ _shifted(z, 30)) * FIRST_SIGNED
    z = (z ^ _shifted(z, 27)) * SECOND_SIGNED
    return _shifted(z ^ _shifted(z, 31), 11).to(torch.float64) * 2.0**-53


def another_key(of: Tensor, n: int) -> Tensor:
    """The n-th other key, n = 1, 2, …, of a 0-d key: what is drawn from them shares nothing."""
    return of ^ (mix(n) >> 1)


def keyed_normals(of: Tensor, count: int) -> Tensor:
    """`count` standard normal numbers in float64 (Box & Muller 1958); more of them begin with the same.

    They share nothing with the uniforms of the same key.
    """
    pairs = keyed_uniforms(of ^ NORMALS, count + count % 2).unflatten(0, (-1, 2))
    radius, angle = (-2 * torch.log1p(-pairs[:, :1])).sqrt(), 2 * torch.pi * pairs[:, 1:]
    return torch.cat([radius * angle.cos(), radius * angle.sin()], 1).flatten()[:count]


def keyed_bits(of: Tensor, call: int, count: int) -> Tensor:
    """`count` 32-bit numbers as int32, apart for each `call` with the same key; more of them begin with the same.

    Cheaper than `keyed_uniforms`, for masks as large as activations: two rounds of a 32-bit hash of a counter.
    """
    low, high = key_words(of, call)
    counter = torch.arange(count, dtype=torch.int32, device=of.device)
    return _mix_words(_mix_words(counter + low) ^ high)


def key_words(of: Tensor, call: int) -> tuple[Tensor, Tensor]:
    """The two words, as int32, from which `keyed_bits` starts."""
    z = (of ^ MASKS) + _signed(GOLDEN * (call + 1) & MASK)
    z = (z ^ _shifted(z, 30)) * FIRST_SIGNED
    z = z ^ _shifted(z, 27)
    return _signed_word(z), _signed_word(z >> 32)


def list_gpus(device: torch.device) -> list[torch.device]:
    """The device, if it is a GPU: what `torch.random.fork_rng` keeps the random numbers of, besides the CPU's."""
    return [device] if device.type == "cuda" else []


def read_generators(devices: Iterable[torch.device] = ()) -> tuple[Any, ...]:
    """The states of the generators that any code may draw from: Python's, numpy's, PyTorch's, and those of GPUs."""
    _, words, *place = cast("tuple[Any, ...]", np.random.get_state())
    states = [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in devices)]
    return random.getstate(), words.tobytes(), place, [state.numpy().tobytes() for state in states]


@contextlib.contextmanager
def in_turn() -> Iterator[None]:
    """Let other threads of this process wait until the block is done: PyTorch's generators, number of threads and
    settings are one for all of them, so two runs at once would change each other's numbers."""
    if not TURN.acquire(blocking=False):
        log.warning("this thread waits for the run of another one: they would change each other's random numbers")
        TURN.acquire()
    try:
        yield
    finally:
        TURN.release()


def seed_torch(seed: int, device: torch.device) -> None:
    """Seed PyTorch's own generators of the CPU and of one device.

    `torch.manual_seed` would also seed other GPUs, which are the caller's, and is slow where there is none.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)


def _signed_word(z: Tensor) -> Tensor:
    """The lower half of a 64-bit number, as int32."""
    word = z & 0xFFFFFFFF
    return (word - ((word >> 31) << 32)).to(torch.int32)


def _mix_words(z: Tensor) -> Tensor:
    """A bijection of 32-bit numbers that scatters neighbours (Wellons' lowbias32)."""
    z = (z ^ ((z >> 16) & 0xFFFF)) * 0x7FEB352D
    z = (z ^ ((z >> 15) & 0x1FFFF)) * -0x7B935975  # 0x846CA68B
    return z ^ ((z >> 16) & 0xFFFF)


def _shifted(z: Tensor, by: int) -> Tensor:
    # torch shifts int64 arithmetically: the copies of the sign bit must go
    return (z >> by) & ((1 << (64 - by)) - 1)


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


GOLDEN_SIGNED, FIRST_SIGNED, SECOND_SIGNED = map(_signed, (GOLDEN, FIRST, SECOND))

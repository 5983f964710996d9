"""Inputs that are not what they should be, drawn from a seed: values, damaged texts, damaged files."""

from __future__ import annotations

import datetime
import json
from random import Random
from typing import Any

LONG = "1" * 5000
TEXTS = (
    "", " ", "x", "fedavg", "a" * 300, "a" * 5000, "../..", "..", "~", "\x00", "\x1b[31m", "\n", "é", "\ud800", "𝔘",
    "os:system", "nan", "inf", "-1", LONG, "{}", "{0}", "%s", "[0]", "null", "loss", "calibrated:1", "name=", ":",
    "dirichlet:alpha=x", "python:x", "bernoulli:2", "C:\\x", "a b", "'", '"', "$(x)", "digits", "logistic",
    "iid:clients=0", "feature-shift:fewest=x,base=iid:clients=3", "pathological:form=[0],classes=1,clients=2",
)  # fmt: skip
NUMBERS = (
    0, 1, -1, 2, 3, 7, 100, -5, 2**31, 2**63, -(2**63), 2**64, 10**400, int(LONG[:4000]), 0.0, -0.0, 0.5, 1.5, -0.1,
    1e-320, 1e308, -1e308, float("nan"), float("inf"), float("-inf"), True, False, 0.1, 1e-9, 1e9,
)  # fmt: skip


def value(random: Random, depth: int = 0) -> Any:
    """Any value that a TOML or JSON file can hold, and some that they cannot."""
    kind = random.random()
    if kind < 0.35:
        return random.choice(NUMBERS)
    if kind < 0.65:
        return random.choice(TEXTS)
    if kind < 0.72:
        return random.choice([datetime.date(2020, 1, 1), datetime.time(1, 2), datetime.datetime(2020, 1, 1, 1, 1)])
    if kind < 0.75:
        return nested(random.choice([50, 200]), random.random() < 0.5)
    if depth > 2:
        return 0
    if kind < 0.88:
        return [value(random, depth + 1) for _ in range(random.choice([0, 1, 1, 2, 3]))]
    return {random.choice(TEXTS): value(random, depth + 1) for _ in range(random.choice([0, 1, 2]))}


def nested(depth: int, tables: bool) -> Any:
    made: Any = 0
    for _ in range(depth):
        made = {"a": made} if tables else [made]
    return made


def changed(random: Random, data: Any, times: int = 1, keys: tuple[str, ...] = ()) -> Any:
    """Plain data with some values, or whole parts, exchanged, left out or added."""
    made = copied(data)
    for _ in range(times):
        place, key = walk(random, made)
        act = random.random()
        if key is None:
            continue
        if act < 0.7:
            place[key] = value(random)
        elif act < 0.85:
            del place[key]
        elif isinstance(place, dict):
            place[random.choice([*keys, *TEXTS])] = value(random)
        else:
            place.append(value(random))
    return made


def copied(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: copied(item) for key, item in data.items()}
    return [copied(item) for item in data] if isinstance(data, list) else data


def walk(random: Random, data: Any) -> tuple[Any, Any]:
    """A place somewhere inside, and the key to it."""
    place = data
    while isinstance(place, dict | list) and place:
        key = random.choice(list(place)) if isinstance(place, dict) else random.randrange(len(place))
        if not isinstance(place[key], dict | list) or not place[key] or random.random() < 0.4:
            return place, key
        place = place[key]
    return data, None


def as_toml(data: Any) -> str:
    """TOML as a careless program would write it: not all of it can be read."""

    def written(item: Any) -> str:
        if isinstance(item, bool):
            return str(item).lower()
        if isinstance(item, dict):
            return "{" + ", ".join(f"{json.dumps(str(k))} = {written(v)}" for k, v in item.items()) + "}"
        if isinstance(item, list | tuple):
            return "[" + ", ".join(map(written, item)) + "]"
        if isinstance(item, str):
            return json.dumps(item, ensure_ascii=False)
        return item.isoformat() if isinstance(item, datetime.date | datetime.time) else whole(item)

    return "".join(f"{json.dumps(str(key), ensure_ascii=False)} = {written(item)}\n" for key, item in data.items())


def whole(number: Any) -> str:
    if isinstance(number, int) and abs(number) >= 10**400:  # Python writes no more than 4300 digits
        return LONG if number > 0 else "-" + LONG
    return repr(number)


def as_json(data: Any) -> str:
    def known(item: Any) -> Any:
        return str(item)

    def small(item: Any) -> Any:
        if isinstance(item, dict):
            return {str(key): small(part) for key, part in item.items()}
        if isinstance(item, list):
            return [small(part) for part in item]
        return 10**400 if isinstance(item, int) and abs(item) > 10**400 else item

    return json.dumps(small(data), default=known)


def damaged(random: Random, text: bytes) -> bytes:
    """A file cut, torn, flipped, doubled or filled with something else."""
    act, n = random.randrange(9), len(text)
    at = random.randrange(n + 1)
    if act == 0:
        return text[:at]
    if act == 1:
        return text[:at] + text[min(n, at + random.randrange(1, 40)) :]
    if act == 2 and n:
        at = min(at, n - 1)
        return text[:at] + bytes([text[at] ^ (1 << random.randrange(8))]) + text[at + 1 :]
    if act == 3:
        return text[:at] + random.randbytes(random.randrange(1, 20)) + text[at:]
    if act == 4:
        return text + text
    if act == 5:
        return random.choice([b"", b"\x00" * 100, b"\xff\xfe", b"[]", b"{}", b"null", b"3", b'"x"', b"\n\n", b"NaN"])
    if act == 6:
        return (
            text[:at]
            + random.choice([LONG.encode(), b"[" * 3000, b'{"a":' * 3000, b"1e999", b"-", b"\xed\xa0\x80"])
            + text[at:]
        )
    if act == 7:
        lines = text.splitlines(keepends=True)
        random.shuffle(lines)
        return b"".join(lines)
    lines = text.splitlines(keepends=True)
    return b"".join(line for line in lines if random.random() < 0.8)

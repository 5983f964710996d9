"""What the two sides of a federation compare when a node joins: versions, the form of messages and data, the method."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from fedkeel.core.method import Method
from fedkeel.core.rule import State
from fedkeel.core.trees import Tree
from fedkeel.engines.rehearsal import expected_messages
from fedkeel.errors import DataError
from fedkeel.federation.own_problem import columns_of, describe_sample
from fedkeel.methods import composition
from fedkeel.problems.problem import Problem
from fedkeel.problems.task import Task
from fedkeel.runs.environment import version_of
from fedkeel.runs.own_code import sources
from fedkeel.runs.plan import Plan


def describe_side(plan: Plan, task: Task, method: Method) -> dict[str, str]:
    """Describe one side: `method` is the plan's, fitted to its task."""
    composed = composition.save(plan.method) | {"sources": sources(plan.method.rules)}
    return {
        **{name: version_of(name) or "none" for name in ("fedkeel", "torch", "numpy")},
        "method": hash_of({name: value for name, value in composed.items() if name != "papers"}),
        "messages": hash_of([describe_slots(state) for state in expected_messages(method, task)]),
        "data": describe_data(plan),
        "base": task.base or "none",  # of a network with a frozen part, which does not travel
        **describe_columns(task.problem.data),
    }


def describe_columns(data: Any) -> dict[str, str]:
    """Name the columns of the tables that a side has read, by a hash. The server has read none of its clients',
    so those of nodes are compared with each other."""
    columns = columns_of(data)
    return {"columns": hash_of(columns)} if columns else {}


def check_test_columns(test: Any, sites: Mapping[int, object]) -> None:
    """Refuse test data of the server whose columns have other names than those of the sites' tables."""
    own = describe_columns(test).get("columns")
    if own and (other := next((client for client, columns in sites.items() if columns != own), None)) is not None:
        raise DataError(
            f"the columns of the server's test data have other names than those of client {other}'s tables.",
            "give them the same names, or name those that are read: --columns of `fedkeel export flower`",
        )


def hash_of(data: Any) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True, default=str).encode()).hexdigest()[:12]


def describe_slots(state: State) -> dict[str, str]:
    """Write the name, layout and type of each slot."""
    return {
        name: f"{slot.layout.dumps()} {slot.buffer.dtype}"
        if isinstance(slot, Tree)
        else f"{tuple(slot.shape)} {slot.dtype}"
        for name, slot in state.items()
    }


def describe_data(plan: Plan) -> str:
    """Write the form of the data in words: what a node's own have to be."""
    if isinstance(plan.source, Problem):
        return f"of a problem: {describe_sample(plan.source)}"
    card = plan.source.card
    scale = f"{card.vocabulary} tokens" if card.vocabulary else f"mean {card.mean} std {card.std}"
    return f"{card.name}: {card.dtype} {card.array_shape}, {card.classes} classes, {scale}"

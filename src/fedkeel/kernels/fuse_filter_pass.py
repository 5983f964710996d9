"""A pass over compiled rules: the filter itself does the scaling before it and the sum after it.

plus + high_pass(g · a / b · …), with one number a, b for each client, becomes high_pass_onto(g, a / b · …, plus): the
scaled gradient and the filtered one are never written.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx import Graph, Node

import fedkeel.kernels.band  # noqa: F401 - defines the operators

ATEN = torch.ops.aten
SCALINGS = (ATEN.mul.Tensor, ATEN.div.Tensor)


class FuseFilter(CustomGraphPass):
    """For `torch.compile(…, options={"post_grad_custom_pre_pass": FuseFilter()})`."""

    def __call__(self, graph: Graph) -> None:
        for node in list(graph.nodes):
            if node.target is torch.ops.fedkeel.high_pass.default:
                fuse_filter(graph, node)

    def uuid(self) -> str:
        """Identify this pass in a cache of compiled code."""
        return hashlib.sha256(Path(__file__).read_bytes()).hexdigest()


def fuse_filter(graph: Graph, node: Node) -> None:
    """Rewrite one filter, where its input is scaled and its output only added to something."""
    source, scalings = node.args[0], []
    while isinstance(source, Node) and source.target in SCALINGS and len(source.users) == 1 and is_scaling(source):
        scalings.append((source.target, source.args[1]))
        source = source.args[0]
    (add,) = node.users if len(node.users) == 1 else (None,)
    if not scalings or add is None or add.target is not ATEN.add.Tensor or add.kwargs or not adds_buffers(add):
        return
    plus = add.args[1] if add.args[0] is node else add.args[0]
    with graph.inserting_before(add):
        scale: Any = 1.0
        for target, by in reversed(scalings):
            scale = add_call(graph, target, scale, by)
        if not isinstance(scale, Node):
            return
        fused = add_call(graph, torch.ops.fedkeel.high_pass_onto.default, source, scale, plus, node.args[1])
    add.replace_all_uses_with(fused)
    graph.erase_node(add)
    graph.erase_node(node)
    graph.eliminate_dead_code()


def is_scaling(node: Node) -> bool:
    """Whether a node multiplies or divides a buffer by a number, or by one number for each client."""
    by = node.args[1]
    return node.args[0].meta["val"].shape == node.meta["val"].shape and (  # type: ignore[union-attr]
        not isinstance(by, Node) or by.meta["val"].shape == (len(node.meta["val"]), 1)
    )


def adds_buffers(add: Node) -> bool:
    """Whether a sum adds two buffers of its own shape."""
    return all(isinstance(part, Node) and part.meta["val"].shape == add.meta["val"].shape for part in add.args)


def add_call(graph: Graph, target: Any, *args: Any) -> Any:
    """Add a node for target(*args), or return its value where all arguments are numbers."""
    if not any(isinstance(arg, Node) for arg in args):
        one, other = args
        return one * other if target is ATEN.mul.Tensor else one / other
    if target is ATEN.div.Tensor and not isinstance(args[0], Node):
        inverse = add_call(graph, ATEN.reciprocal.default, args[1])
        return add_call(graph, ATEN.mul.Tensor, inverse, args[0])
    if target is ATEN.mul.Tensor and not isinstance(args[0], Node):
        args = (args[1], args[0])
    node = graph.call_function(target, args)
    node.meta["val"] = target(*(arg.meta["val"] if isinstance(arg, Node) else arg for arg in args))
    return node

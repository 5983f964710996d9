"""Weights of convolutions that are packed beside the main branch of a graph, before a layer asks for them."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from fedkeel.core.trees import Tree
from fedkeel.kernels.geometry import Geometry
from fedkeel.kernels.layers import GPU_TYPES
from fedkeel.kernels.side_stream import SideStream


class PackedAhead:
    """What the layers of a network asked for in the pass before, in that order, and what is packed of it now."""

    def __init__(self) -> None:
        self.known: dict[str, Geometry] = {}
        self.ready: dict[str, tuple[Geometry, Tensor, torch.cuda.Event]] = {}

    def start(self, side: SideStream, weights: Tree, compute: torch.dtype) -> None:
        """Pack all weights, in a captured graph; elsewhere each layer packs its own."""
        self.ready = {}
        if compute not in GPU_TYPES or not side.fork():
            return
        from fedkeel.kernels.triton_weights import pack

        for name, where in self.known.items():
            self.ready[name] = (where, *side.make(partial(pack, weights[name], where, compute)))

    def take(self, name: str, where: Geometry) -> Tensor | None:
        """Return a packed weight once it is there, or None."""
        self.known[name] = where
        found = self.ready.pop(name, None)
        if found is None or found[0] != where:
            return None
        torch.cuda.current_stream(found[1].device).wait_event(found[2])
        return found[1]

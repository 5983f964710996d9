"""Personal models."""

from __future__ import annotations

from fedkeel.method import Method, Phase, method
from fedkeel.rules import BeginMerged, BySize, LearnMerge, Merge, OwnModel, PrivateLayers
from fedkeel.rules.layers import HEAD


def fedper(private: tuple[str, ...] = (HEAD,)) -> Method:
    """A shared body, and a head that never leaves its client."""
    return method("fedper", weights=BySize(), personal=[PrivateLayers(tuple(private))], papers=["fedper"])


def fedala(rate: float = 1.0, share: float = 0.8, head: tuple[str, ...] = (HEAD,)) -> Method:
    """Before training, learn how much of the global head to take in.

    Paper: p counts layers; W is learned to convergence the first time. Released code: p counts tensors (2: the last
    layer); FedFSA's port learns W on raw images. Here: the head; one pass over a share of the data each time.
    """
    merge = Merge(tuple(head))
    learn = Phase((merge,), (LearnMerge(rate),), epochs=share, trains=False, uploads=False)
    return Method("fedala", (learn, Phase(gradient=(BeginMerged(),))), BySize(), papers=("fedala",))


def ditto(lam: float = 0.1) -> Method:
    """FedAvg, and beside it a model of each client's own, pulled towards the global one."""
    return Method("ditto", (Phase(), Phase(gradient=(OwnModel(lam),), uploads=False)), BySize(), papers=("ditto",))

"""Personal models."""

from __future__ import annotations

from fedkeel.core.method import Method, Phase, method
from fedkeel.core.objectives import CodeBottleneck, Evidence, UsualBottleneck
from fedkeel.ranges import Count, NonNegative, Passes, Share
from fedkeel.rules import (
    BeginMerged,
    BySize,
    CommonPrior,
    LearnMerge,
    Merge,
    NotePrecision,
    OwnModel,
    PrivateLayers,
    Uniform,
)
from fedkeel.rules.layers import HEAD

__all__ = ["fedper", "fedala", "fedcr", "ditto"]


def fedper(private: tuple[str, ...] = (HEAD,)) -> Method:
    """A shared body, and a head that never leaves its client."""
    return method("fedper", weights=BySize(), personal=[PrivateLayers(tuple(private))], papers=["fedper"])


def fedala(
    rate: NonNegative = 1.0, share: Passes = 0.8, head: tuple[str, ...] = (HEAD,), passes: Count = 20,
    threshold: NonNegative = 0.1,
) -> Method:  # fmt: skip
    """Before training, learn how much of the global head to take in.

    share = 1 learns on all of a client's data.

    Paper: p counts layers; W is learned to convergence the first time, by one pass afterwards. Released code: p counts
    tensors (2: the last layer); converged is when ten passes' last losses deviate by less than 0.1, without a maximum;
    FedFSA's port learns W on raw images, and to 0.01. Here: the head; mean losses, and `passes` at most, whose time
    every round takes, for the length of a client's work is known before it begins; each pass draws its share anew.
    """
    merge = Merge(tuple(head))
    learn = Phase((merge,), (LearnMerge(rate, passes, threshold),), epochs=share, trains=False, uploads=False)
    return Method("fedala", (learn, Phase(gradient=(BeginMerged(),))), BySize(), papers=("fedala",))


def fedcr(beta: NonNegative = 0.001, beta2: Share = 1.0, usual: bool = False) -> Method:
    """A private head on a random code, and codes drawn towards one prior for each class that all clients share.

    Needs a model with a random code, such as lenet-cr. beta = 0 leaves the cross-entropy alone. usual = True turns the
    divergence round: β KL(q(z|x) ‖ r_y).

    Paper: an information bottleneck, whose divergence is usually that of the code from the prior. Released code:
    β KL(r_y ‖ q(z|x)); experts are gathered during the last epoch; beta2 = 0 unless set, which keeps the prior at
    N(0, 1); evaluation averages the logits of several draws. Here: the released direction, experts of one more pass
    after training, beta2 = 1, beta of FedFSA's runs; evaluation takes the mean of the code, which gives the expected
    logits.
    """
    train = Phase(objective=(UsualBottleneck if usual else CodeBottleneck)(beta))
    measure = Phase((NotePrecision(),), (CommonPrior(beta2),), epochs=1, trains=False, uploads=False,
                    objective=Evidence())  # fmt: skip
    return Method("fedcr", (train, measure), Uniform(), personal=(PrivateLayers(),), papers=("fedcr",))


def ditto(lam: NonNegative = 0.1) -> Method:
    """FedAvg, and beside it a model of each client's own, pulled towards the global one."""
    return Method("ditto", (Phase(), Phase(gradient=(OwnModel(lam),), uploads=False)), BySize(), papers=("ditto",))

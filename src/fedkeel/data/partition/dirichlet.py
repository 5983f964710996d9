"""Label skew by a Dirichlet distribution, in the forms the papers use. Their alphas are not comparable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedkeel import randomness
from fedkeel.data.partition.class_pools import Pools
from fedkeel.data.partition.classwise import divide_class_wise
from fedkeel.data.partition.log_dirichlet import Concentration, log_dirichlet
from fedkeel.data.partition.partition import Checked, Integers, Partition
from fedkeel.data.partition.sequential_assignment import divide_exactly, divide_refilling
from fedkeel.ranges import Count, Whole

Form = Literal["client-prior-exact", "client-prior-refill", "hsu", "class-wise", "fedfsa-released"]


@dataclass(frozen=True)
class Dirichlet(Checked):
    """Client priors p_i ~ Dir(α), or class shares q_c ~ Dir(α). Large alpha is iid, small alpha one class per client.

    client-prior-exact    equal sizes; each sample once: the prior is restricted to the classes that are left
    client-prior-refill   equal sizes; an exhausted class is refilled, so samples are duplicated and others unused
                          (FL-Simulator and the tables made with it)
    hsu                   client-prior-exact with α / C, C the number of classes, the clients served one after another
                          (Hsu et al. 2019; FedSAM, FedGloSS)
    class-wise            unequal sizes: each class is cut by q_c among the clients below |D| / N, until each client has
                          `min_size` samples (NIID-Bench; FedSCAM, FedDisco, FedNoLoWe)
    fedfsa-released       client-prior-exact as FedFSA's code draws it: the class of the lowest label is handed out only
                          when all others are exhausted
    """

    alpha: Concentration
    clients: Count
    form: Form = "client-prior-exact"
    min_size: Whole = 10

    @property
    def repeats(self) -> bool:
        """Whether a sample may come twice."""
        return self.form == "client-prior-refill"

    def divide(self, labels: Integers, key: int, *, groups: Integers | None = None) -> Partition:
        pools = Pools.of(labels, key, by_label=self.form == "fedfsa-released")
        if self.form == "class-wise":
            return divide_class_wise(pools, self.alpha, self.clients, self.min_size, key)
        alpha = self.alpha / pools.classes if self.form == "hsu" else self.alpha
        priors = log_dirichlet(randomness.key(key, "priors"), alpha, rows=self.clients, columns=pools.classes)
        if self.form == "client-prior-refill":
            return divide_refilling(pools, priors, key)
        if self.form == "fedfsa-released" and pools.classes > 1:
            priors[:, 0] = -np.inf  # its draw is uniform on [p_0, 1] instead of [0, 1]
        return divide_exactly(pools, priors, key, one_by_one=self.form == "hsu")

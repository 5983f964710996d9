"""Samples given out one at a time: a client that is not full takes one of a class drawn from its own prior.

This is the loop of FL-Simulator and its ancestors. What can be drawn beforehand is drawn in blocks; the loop that is
left only counts. Two answers to a class that has run out: refill it, or draw from what is left. Priors are logarithms,
a row for each client, up to a constant.
"""

from __future__ import annotations

import numpy as np

from fedkeel import randomness
from fedkeel.data.partition.class_pools import Pools
from fedkeel.data.partition.log_dirichlet import Floats, normalise
from fedkeel.data.partition.partition import Integers, Partition, collect, equal_sizes

BLOCK = 1 << 20


def divide_refilling(pools: Pools, priors: Floats, key: int) -> Partition:
    """Serve random clients in turn; an exhausted class is refilled and the class drawn again, so that some samples come
    twice and others never."""
    turns = _random_turns(equal_sizes(len(pools.samples), len(priors)), randomness.key(key, "turns"))
    mass = np.cumsum(normalise(priors), axis=1)
    counts = pools.counts.tolist()
    left, classes, places = list(counts), _draw_classes(turns, mass, key).tolist(), []
    for turn, label in enumerate(classes):
        attempt = 0
        while left[label] == 0:
            left[label] = counts[label]
            lot = _draw_lots(randomness.key(key, "redraw", turn, attempt), 1)
            label = int(_pick_classes(mass[turns[turn], None], lot)[0])
            attempt += 1
        left[label] -= 1
        classes[turn] = label
        places.append(left[label])
    return _hand_out(pools, turns, classes, places, len(priors))


def divide_exactly(pools: Pools, priors: Floats, key: int, *, one_by_one: bool) -> Partition:
    """Give each sample once: the class is drawn from the prior over the classes that are left, and in proportion to
    what is left of each where the prior allows none of them.

    Served in random turns, all clients feel the end of a class at once; served one by one, only the later clients do.
    """
    sizes = equal_sizes(len(pools.samples), len(priors))
    in_order = np.repeat(np.arange(len(sizes)), sizes)
    turns = in_order if one_by_one else _random_turns(sizes, randomness.key(key, "turns"))
    lots = _draw_lots(randomness.key(key, "residual"), len(turns))
    left, clients = pools.counts.copy(), turns.tolist()
    classes, places = _draw_classes(turns, np.cumsum(normalise(priors), axis=1), key).tolist(), []
    restricted: dict[int, Floats | None] = {}
    for turn, label in enumerate(classes):
        if left[label] == 0:
            client = clients[turn]
            if client not in restricted:
                restricted[client] = _restrict(priors[client], left)
            mass = restricted[client]
            if mass is None:
                mass = np.cumsum(left)
            label = classes[turn] = int(np.searchsorted(mass, lots[turn] * mass[-1]))
        left[label] -= 1
        places.append(left[label])
        if left[label] == 0:
            restricted.clear()
    return _hand_out(pools, turns, classes, places, len(priors))


def _restrict(prior: Floats, left: Integers) -> Floats | None:
    """Cumulate the shares of the classes that are left; None where the prior allows none of them."""
    logs = np.where(left > 0, prior, -np.inf)
    return None if logs.max() == -np.inf else np.cumsum(normalise(logs))


def _random_turns(sizes: Integers, key: int) -> Integers:
    """The order in which uniformly chosen clients that are not full are served.

    A client that takes its samples at the ticks of a clock of its own, with exponential gaps, gives just this order.
    """
    gaps = -np.log1p(-randomness.uniforms(key, int(sizes.sum())))
    ticks = np.cumsum(gaps)
    ticks -= np.repeat(np.concatenate(([0.0], ticks[np.cumsum(sizes)[:-1] - 1])), sizes)
    return np.repeat(np.arange(len(sizes)), sizes)[np.argsort(ticks, kind="stable")]


def _draw_classes(turns: Integers, mass: Floats, key: int) -> Integers:
    """Draw the class of each turn, as long as no class has run out."""
    lots = _draw_lots(randomness.key(key, "classes"), len(turns))
    block = max(1, BLOCK // mass.shape[1])
    blocks = [slice(start, start + block) for start in range(0, len(turns), block)]
    return np.concatenate([_pick_classes(mass[turns[part]], lots[part]) for part in blocks])


def _draw_lots(key: int, count: int) -> Floats:
    """Draw numbers in (0, 1]: such a lot never falls on a class without mass."""
    return 1.0 - randomness.uniforms(key, count)


def _pick_classes(mass: Floats, lots: Floats) -> Integers:
    """Pick for each row of cumulated shares the class on which its lot falls."""
    return np.asarray(np.count_nonzero(mass < (lots * mass[:, -1])[:, None], axis=1))


def _hand_out(pools: Pools, turns: Integers, classes: list[int], places: list[int], clients: int) -> Partition:
    indices = pools.samples[pools.starts[classes] + np.array(places)]
    return collect(turns, indices, clients, len(pools.samples))

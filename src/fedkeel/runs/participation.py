"""Who takes part in a round, and who of those answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedkeel.errors import DataError, ExperimentError
from fedkeel.randomness import bits, choice, generator, key, uniforms

BERNOULLI, SHUFFLED = "bernoulli:", "shuffled:"


def share_of(participation: float | str) -> float:
    """Read the expected share of clients per round."""
    text = str(participation)
    kind = next((kind for kind in (BERNOULLI, SHUFFLED) if text.startswith(kind)), "")
    try:
        share = float(text.removeprefix(kind))
    except ValueError:
        share = -1.0
    if not 0 < share <= 1:
        raise ExperimentError(
            f"participation must be a share in (0, 1], 'bernoulli:SHARE' or 'shuffled:SHARE': {participation}",
            "0.1 selects a tenth of the clients",
        )
    return share


def count_selected(share: float, clients: int) -> int:
    """Count a share of the clients: rounded down, at least one."""
    return max(1, int(share * clients + 1e-9))


@lru_cache(maxsize=8)
def shuffle(of: int, count: int) -> NDArray[np.int64]:
    """The numbers below `count` in an order drawn at random; kept, since each round of a pass asks for it."""
    order: NDArray[np.int64] = np.argsort(bits(of, count), kind="stable")
    return order


@dataclass(frozen=True)
class Participation:
    """Chooses clients by (seed, round) alone, at a cost that does not grow with how many there are, unless shuffled.

    A number of them is drawn anew for each round; "bernoulli:" draws each client by itself. "shuffled:" goes through
    all clients in passes, each in an order of its own, and nobody takes part twice in a pass (Malinovsky et al. 2023);
    those who are left over, too few for a round, sit the pass out.
    """

    seed: int
    sizes: NDArray[np.int64]
    participation: float | str
    unavailable: float = 0.0
    schedule: Sequence[Sequence[int]] | None = None
    able: NDArray[np.int64] | None = field(init=False, default=None)  # those with data; None when all have some

    def __post_init__(self) -> None:
        with_data = np.flatnonzero(self.sizes > 0)
        if len(with_data) == 0:
            raise DataError(
                "no client has any data.", "is the partition right? See `fedkeel datasets NAME --partition …`"
            )
        # clients without data are never selected, and do not count among all clients
        object.__setattr__(self, "able", None if len(with_data) == len(self.sizes) else with_data)
        for i, clients in enumerate(self.schedule or ()):
            self._check(i, clients)

    def _check(self, round: int, clients: Sequence[int]) -> None:
        for client in clients:
            if not 0 <= client < len(self.sizes):
                raise ExperimentError(
                    f"participants of round {round + 1} name client {client}, but there are {len(self.sizes)}.",
                    "clients are counted from 0",
                )
            if self.sizes[client] == 0:
                raise ExperimentError(
                    f"participants of round {round + 1} name client {client}, which has no data.", "leave it out"
                )
        if len(set(clients)) < len(clients) or not clients:
            raise ExperimentError(
                f"participants of round {round + 1} are empty or repeat a client: {list(clients)}",
                "each round lists different clients, at least one",
            )

    @property
    def population(self) -> int:
        return len(self.sizes) if self.able is None else len(self.able)

    def selected(self, round: int) -> list[int]:
        """Choose the clients of this round, sorted."""
        if self.schedule is not None:
            return sorted(self.schedule[round])
        if str(self.participation).startswith(SHUFFLED):
            chosen = self._in_turn(round, count_selected(share_of(self.participation), self.population))
        else:
            chosen = choice(key(self.seed, "participation", round), self.population, self._count(round))
        return chosen if self.able is None else [int(self.able[i]) for i in chosen]

    def _in_turn(self, round: int, count: int) -> list[int]:
        past, turn = divmod(round, self.population // count)
        order = shuffle(key(self.seed, "pass", past), self.population)
        return sorted(order[turn * count : (turn + 1) * count].tolist())

    def _count(self, round: int) -> int:
        share = share_of(self.participation)
        if not str(self.participation).startswith(BERNOULLI):
            return count_selected(share, self.population)
        for attempt in range(10_000):  # an empty draw is drawn again
            drawn = int(generator(key(self.seed, "bernoulli", round, attempt)).binomial(self.population, share))
            if drawn:
                return drawn
        return 1

    def answering(self, round: int, selected: Sequence[int]) -> list[int]:
        """Choose those of the selected who answer."""
        if not self.unavailable:
            return list(selected)
        draws = [uniforms(key(self.seed, "unavailable", round, client), 1)[0] for client in selected]
        return [client for client, draw in zip(selected, draws, strict=True) if draw >= self.unavailable]

    def answering_ever(self, rounds: int) -> set[int]:
        """All who answer in some of so many rounds."""
        return {client for t in range(rounds) for client in self.answering(t, self.selected(t))}

"""Local epochs that differ by client: a number for each, or as many as make every client see about as many samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fedkeel.errors import ExperimentError
from fedkeel.ranges import Count, Passes
from fedkeel.typed_values import check_fields, check_table


@dataclass(frozen=True)
class ClientEpochs:
    """How often a client passes over its data in a round."""

    def __post_init__(self) -> None:
        check_fields(self, ExperimentError, "epochs")

    def of(self, client: int, size: int) -> float:
        """Return the epochs of a client with so many samples."""
        raise NotImplementedError

    def most_of(self, size: float) -> float:
        """Return the most epochs of any client of that size."""
        raise NotImplementedError

    def check(self, clients: int) -> None:
        """Refuse epochs that are of another number of clients."""

    def save(self) -> dict[str, Any]:
        """Return the table that a file holds."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items() if v is not None}


@dataclass(frozen=True)
class EpochsByClient(ClientEpochs):
    """A number for each client."""

    clients: tuple[Passes, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.clients:
            raise ExperimentError("epochs.clients is empty.", "epochs.clients = [1, 5, 2]: a number for each client")

    def of(self, client: int, size: int) -> float:
        return self.clients[client]

    def most_of(self, size: float) -> float:
        return max(self.clients)

    def check(self, clients: int) -> None:
        if len(self.clients) != clients:
            raise ExperimentError(
                f"epochs are given for {len(self.clients)} clients, and there are {clients}.",
                "epochs.clients = [1, 5, 2]: a number for each client",
            )


@dataclass(frozen=True)
class EpochsBySize(ClientEpochs):
    """As many passes as bring about `samples` samples: E_i = samples / n_i, at least `least`, at most `most`."""

    samples: Count
    least: Passes = 1.0
    most: Passes | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.most is not None and self.most < self.least:
            raise ExperimentError(
                f"epochs.most must be at least epochs.least: {self.most:g} and {self.least:g}",
                "epochs = {samples = 500, least = 1, most = 20}",
            )

    def of(self, client: int, size: int) -> float:
        return self.most_of(size)

    def most_of(self, size: float) -> float:
        wanted = max(self.least, self.samples / max(size, 1))
        return wanted if self.most is None else min(self.most, wanted)


def read_epochs(table: Mapping[str, Any]) -> ClientEpochs:
    """Read a table of a file or of Python."""
    kind: Any = EpochsByClient if "clients" in table else EpochsBySize
    check_table(kind, table, ExperimentError, "epochs", "key")
    made: ClientEpochs = kind(**table)
    return made

"""What a run leaves behind: one record per round, and the result they add up to."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from fedkeel.core.rule import State
from fedkeel.errors import RequestError
from fedkeel.problems.metrics import lower_is_better
from fedkeel.ranges import Amount, Count, Whole
from fedkeel.text import make_printable, shorten
from fedkeel.typed_values import read_line

if TYPE_CHECKING:
    import pandas

JUDGED = ("accuracy", "client_loss", "test_loss", "loss")
"""Measures that a run may be judged on; the first of them that it has."""
MEANINGS = {"accuracy": "accuracy on the test set", "test_loss": "loss on the test set", "loss": "training loss"}
"""Of the measures of the server's model."""
LAST = 50  # how many evaluated rounds "mean of the last" covers
COLUMNS = ("accuracy", "loss", "drift", "backward_passes", "bytes_down", "bytes_up", "seconds")


@dataclass(frozen=True)
class RoundRecord:
    """One round, counted from 1. `drift` is the mean of ‖w_i − w_t‖, None where it is not known.

    `extra` holds further measures by name, and `clients` the scores of every client, where their models are judged:
    None for one that was not scored.
    """

    round: Count
    selected: list[Whole]
    loss: float | None
    drift: float | None
    backward_passes: Amount
    bytes_down: Amount
    bytes_up: Amount
    seconds: float
    accuracy: float | None = None
    absent: list[Whole] = field(default_factory=list)
    dropped: list[Whole] = field(default_factory=list)
    extra: dict[str, float | None] = field(default_factory=dict)
    clients: dict[str, list[float | None]] = field(default_factory=dict)

    def dumps(self) -> str:
        """Write one line of JSON; what is empty is left out, what is not a number becomes null."""
        data = {name: value for name, value in asdict(self).items() if value not in (None, [], {})}
        return json.dumps(nonfinite_to_null(data), allow_nan=False)

    @staticmethod
    def loads(line: str) -> RoundRecord:
        """Read what `dumps` wrote; a ValueError says what cannot be of a round."""
        data = json.loads(line)
        empty: dict[str, Any] = {"loss": None, "drift": None, "selected": []}
        return RoundRecord(**read_line(RoundRecord, empty | data if isinstance(data, dict) else data))

    def measure(self, name: str) -> float | None:
        value = getattr(self, name) if name in NAMES else self.extra.get(name)
        return value if isinstance(value, int | float) else None


NAMES = frozenset(one.name for one in fields(RoundRecord))


def by_round(records: Sequence[RoundRecord], measure: str) -> dict[int, float]:
    """The values of a measure by round, where it has one."""
    return {record.round: value for record in records if (value := record.measure(measure)) is not None}


def list_scored(records: Sequence[RoundRecord], measure: str) -> list[float | None]:
    """The values of a measure in the rounds that scored it, None where it was not finite."""
    return [one.measure(measure) for one in records if measure in one.extra or one.measure(measure) is not None]


def nonfinite_to_null(value: Any) -> Any:
    """Return plain data that JSON can hold: what is not a number becomes null."""
    if isinstance(value, Mapping):
        return {str(name): nonfinite_to_null(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [nonfinite_to_null(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def digest(model: State) -> str:
    """Compute the identity of a model: names, shapes, dtype and every bit, whatever the order in the buffer.

    The buffers of a model that has any follow its parameters.
    """
    seen = hashlib.sha256()
    for name, leaf in (item for part in ("params", "buffers") if part in model for item in model[part].items()):
        seen.update(f"{name} {leaf.dtype} {tuple(leaf.shape)}".encode())
        seen.update(leaf.detach().cpu().contiguous().numpy().tobytes())
    return seen.hexdigest()


def describe_stop(result: Mapping[str, Any]) -> str | None:
    """Say where and why a callback stopped a run; None where none did."""
    found = result.get("stopped")
    if not isinstance(found, Mapping):
        return None
    return shorten(make_printable(f"stopped in round {found.get('round')}: {found.get('reason')}"), 200)


def judged_on(records: Sequence[RoundRecord]) -> str | None:
    """The measure a run is judged on: accuracy, or the loss on test data (the clients' own, where their models are
    judged), or the training loss."""
    for name in JUDGED:
        if by_round(records, name):
            return name
    return None


def counted(records: Sequence[RoundRecord], every: int) -> list[RoundRecord]:
    """Keep the evaluated rounds, as if the run had never been shorter."""
    final = records[-1].round if records else 0
    return [record for record in records if record.round % every == 0 or record.round == final]


def summarise(records: Sequence[RoundRecord], every: int, measure: str | None) -> dict[str, Any]:
    """The best, the last and the mean of the last values of a measure in evaluated rounds; empty where it has none.

    A round whose value is not finite is none of the best; the last, or the mean, that it is part of is None.
    """
    rounds = counted(records, every)
    values = [*by_round(rounds, measure).items()] if measure else []
    if not measure or not values:
        return {}
    better = min if lower_is_better(measure) else max
    best_round, best = better(values, key=lambda pair: pair[1])
    tail = list_scored(rounds, measure)[-LAST:]
    finite = [value for value in tail if value is not None]
    return {
        "best": best,
        "best_round": best_round,
        "best_means": "best on test, as in the papers" if measure != "loss" else "best training loss",
        "last": tail[-1],
        "mean_last": math.fsum(finite) / len(finite) if len(finite) == len(tail) else None,
        "mean_last_over": len(tail),
    }


def result(
    records: Sequence[RoundRecord], deployed: State, every: int, fingerprint: str, plain: State | None
) -> dict[str, Any]:
    """Compute the result of a run: nothing that depends on the clock.

    `plain` is the model that is trained, where it is not the one that is deployed.
    """
    name = judged_on(counted(records, every))
    data = {"rounds": records[-1].round if records else 0, "judged_on": name} | summarise(records, every, name)
    for part in ("bytes_down", "bytes_up", "backward_passes"):
        data[part] = sum(getattr(record, part) for record in records)
    trained = {} if plain is None else {"plain_digest": digest(plain)}
    return data | {"fingerprint": fingerprint, "model_digest": digest(deployed)} | trained


# ---- as tables of pandas, which is optional ------------------------------------------------------------------------
def make_frame(rows: Sequence[Mapping[str, Any]]) -> pandas.DataFrame:
    """Make a DataFrame of rows; say what to install where there is no pandas."""
    try:
        import pandas
    except ImportError as error:
        raise RequestError("a DataFrame needs pandas, which is not installed.", "pip install pandas") from error
    return pandas.DataFrame(list(rows))


def round_rows(records: Sequence[RoundRecord], **named: Any) -> list[dict[str, Any]]:
    """One row for each round: what it measured and what it cost."""
    return [
        {**named, "round": record.round, **{name: getattr(record, name) for name in COLUMNS}, **record.extra}
        for record in records
    ]


def client_rows(
    records: Sequence[RoundRecord], sizes: Sequence[int] | None = None, **named: Any
) -> list[dict[str, Any]]:
    """One row for each client and evaluated round, with its scores; `sizes` are of their training data."""
    rows = []
    for record in records:
        for client in range(max(map(len, record.clients.values()), default=0)):
            scores = {name: values[client] for name, values in record.clients.items()}
            if any(value is not None for value in scores.values()):
                size = {} if sizes is None or client >= len(sizes) else {"size": sizes[client]}
                rows.append({**named, "round": record.round, "client": client, **size, **scores})
    return rows

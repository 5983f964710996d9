"""The protocol of personalised learning: whose model is judged, on whose data, and which number is reported."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from fedkeel.errors import ExperimentError, explain_typos
from fedkeel.problems.metrics import lower_is_better
from fedkeel.problems.predictions import Scores, divide
from fedkeel.ranges import Count, ShareBelowOne
from fedkeel.typed_values import check_fields, check_table

POLICY = "evaluation."


@explain_typos("an evaluation", ExperimentError)
@dataclass(frozen=True)
class Evaluation:
    """Judge a model of each client on the client's own test set.

    model: "global", the server's; "local", the one the client last trained (the initial one before that); "received",
    what the client would begin its work with. clients: all, or those selected. when: after or before the round's
    training. weights: how clients are averaged. accuracy: over samples, or the mean over batches of `batch` samples,
    as FedFSA's code has it. report: the best round, the last, or the mean of the `last` last. share: how much of each
    client's data is set aside as its test set, unless a problem brings `tests`; `pool`: training and test data of a
    data set are divided together. tune: after the last round every client fine-tunes the head of the global model, and
    is judged once more.
    """

    model: Literal["global", "local", "received"] = "local"
    clients: Literal["all", "selected"] = "all"
    when: Literal["after", "before"] = "after"
    weights: Literal["uniform", "size"] = "uniform"
    accuracy: Literal["sample", "batch-mean"] = "sample"
    report: Literal["best", "last", "mean-last"] = "best"
    last: Count = 10
    batch: Count = 128
    share: ShareBelowOne = 0.3
    pool: bool = True
    tune: bool = False

    def __post_init__(self) -> None:
        check_fields(self, ExperimentError, "an evaluation")

    @staticmethod
    def load(data: Mapping[str, Any]) -> Evaluation:
        check_table(Evaluation, data, ExperimentError, "an evaluation", "key")
        return Evaluation(**data)

    def save(self) -> dict[str, Any]:
        return asdict(self)

    def score_client(self, scores: Sequence[Scores], name: str) -> float:
        """The score of one client: over its samples, or the mean over its batches."""
        if self.accuracy == "batch-mean":
            there = [s[name] for s in scores if s[name][1]]
            return divide(sum(total / count for total, count in there), len(there))
        return divide(sum(s[name][0] for s in scores), sum(s[name][1] for s in scores))

    def summarise(self, values: Sequence[float], *, falling: bool = False) -> float:
        """The number that a paper prints of the values over rounds; of losses (`falling`) the least is best."""
        if self.report == "best":
            return min(values) if falling else max(values)
        tail = values[-1:] if self.report == "last" else values[-self.last :]
        return math.fsum(tail) / len(tail)

    def summarise_rounds(self, rounds: Sequence[Mapping[str, float | None]], prefix: str) -> tuple[str, float] | None:
        """(which, number) reported of the accuracies of rounds or, where they have none, of their losses.

        None where a value that it depends on is not finite.
        """
        for name in ("accuracy", "loss"):
            values = [measures[prefix + name] for measures in rounds if prefix + name in measures]
            finite = [value for value in values if value is not None]
            if finite:
                value = self.summarise(
                    finite if self.report == "best" else [math.nan if v is None else v for v in values],
                    falling=name == "loss",
                )
                return None if math.isnan(value) else (name, value)
        return None

    @property
    def subject(self) -> str:
        """Whose model is judged on which data, in words."""
        whose = {
            "global": "the server's model",
            "local": "each client's own model",
            "received": "the model each client would begin with",
        }
        among = "all clients" if self.clients == "all" else "the clients selected"
        weighed = ", weighted by their test samples" if self.weights == "size" else ""
        return f"{whose[self.model]} on the client's own test share, mean over {among}{weighed}"

    @property
    def report_in_words(self) -> str:
        """What `report` means, in words."""
        return f"the mean of the last {self.last}" if self.report == "mean-last" else f"the {self.report} round"


def summarise_clients(values: Sequence[float], weights: Sequence[float], name: str) -> dict[str, float | None]:
    """Mean, worst client, mean of the worst tenth, and standard deviation over clients: √(Σ_i (v_i − v̄)² / n), in which
    each counts the same whatever the weights of the mean."""
    mean = math.fsum(v * w for v, w in zip(values, weights, strict=True)) / math.fsum(weights)
    falling = lower_is_better(name)  # and what is no number is the worst
    lowest = sorted(values, key=lambda v: (not math.isnan(v), -v if falling else v))[: max(1, len(values) // 10)]
    plain = math.fsum(values) / len(values)
    return {
        f"client_{name}": mean,
        f"client_{name}_worst": lowest[0],
        f"client_{name}_worst_tenth": math.fsum(lowest) / len(lowest),
        f"client_{name}_std": math.sqrt(math.fsum((v - plain) ** 2 for v in values) / len(values)),
    }


def leave_out_defaults(flat: Mapping[str, Any], others: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Flat settings for a label: of a policy that others lack, the model, and what is not as usual."""
    if all(any(name.startswith(POLICY) for name in other) for other in others):
        return dict(flat)
    told = [field for field in fields(Evaluation) if field.name != "model"]
    usual = {f"{POLICY}{field.name}": str(field.default).lower() for field in told}
    return {name: value for name, value in flat.items() if str(value).strip("'\"").lower() != usual.get(name)}

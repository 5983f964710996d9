"""Callbacks: what else happens between rounds. They may keep models, and stop a run.

`fk.run(experiment, callbacks=[fk.EarlyStop("accuracy", patience=20), fk.KeepBest()])`; a function of a `Moment` is a
callback too, and so is the name of one, `module:name`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedkeel.core.rule import State
from fedkeel.errors import RequestError, explain_typos, nearest
from fedkeel.problems.metrics import lower_is_better, tells_direction
from fedkeel.ranges import Count, NonNegative
from fedkeel.runs.experiment import Experiment
from fedkeel.runs.kept import NAME, KeptModel
from fedkeel.runs.record import JUDGED, RoundRecord, by_round
from fedkeel.typed_values import check_fields

if TYPE_CHECKING:
    from fedkeel.runs.finished_run import Run

log = logging.getLogger("fedkeel")

Mode = Literal["auto", "min", "max"]
"""Which of two values is the better one: the lower, the higher, or what the name of the metric says."""


@dataclass(frozen=True)
class Moment:
    """A run between two rounds, as a callback sees it.

    `records` are of all rounds so far, the last of which is `record`; `model` is the deployed one, as "params" and
    "buffers"; `folder` is the run's, if it has one. `memory` is the callback's own, a dict of plain values (numbers,
    texts, lists, dicts): what `round` leaves there is in the checkpoint, and is there again after a pause.
    """

    experiment: Experiment
    records: Sequence[RoundRecord]
    model: State
    folder: Path | None
    memory: dict[str, Any]
    kept: dict[str, KeptModel]

    @property
    def record(self) -> RoundRecord:
        return self.records[-1]

    def keep(self, name: str, measure: str, score: float) -> None:
        """Keep the model of this round under a name, in place of the one that was kept under it."""
        if NAME.fullmatch(name) is None:
            raise RequestError(f"a model cannot be kept as {name!r}.", "small letters, digits and _: best, round_100")
        self.kept[name] = KeptModel(name, self.record.round, measure, score)

    def find(self, metric: str | None, on: str = "test") -> tuple[str, float | None]:
        """Find a metric in the last round, and what it is called there.

        None in rounds that are not evaluated, and where it is not finite.
        """
        record = self.record
        if metric is None:
            judged = next(filter(self.has, JUDGED), "accuracy")
            metric = judged.removeprefix("test_") if on == "validation" else judged
            if on == "validation" and f"validation_client_{metric}" in record.extra:
                metric = f"client_{metric}"  # clients' models are judged
        name = f"validation_{metric}" if on == "validation" else metric
        name = "test_loss" if name == "loss" and "test_loss" in record.extra else name
        if self.is_evaluated and not self.has(name):
            known = {*filter(self.has, (*record.extra, "accuracy", "loss", "drift"))}
            hint = "validation = 0.1 sets a share aside" if on == "validation" else nearest(name, known, "measures")
            raise RequestError(f"no measure of this run is called: {name}", hint)
        return name, record.measure(name) if self.is_evaluated else None

    @property
    def is_evaluated(self) -> bool:
        """Whether the last round is one in which models are scored."""
        return self.experiment.plan.evaluates(self.record.round)

    def has(self, name: str) -> bool:
        """Whether a round of the run has such a measure, finite or not."""
        return any(name in one.extra or one.measure(name) is not None for one in reversed(self.records))


class Callback:
    """What follows a run. Override what is needed; the object holds settings, `at.memory` what changes."""

    def round(self, at: Moment) -> str | None:
        """Called after every round; a text is the reason why the run stops here."""

    def checkpoint(self, at: Moment) -> None:
        """Called after a checkpoint was written; how often depends on the clock, so nothing is kept or remembered."""

    def end(self, run: Run) -> None:
        """Called when the run is complete or stopped, after its result was written."""


@explain_typos("KeepBest")
@dataclass(frozen=True)
class KeepBest(Callback):
    """Keep the model of the best round beside the last: `run.model(which="best")`.

    By default the metric is what the run is judged on; on="validation" takes it from the validation share. mode="min"
    takes the lower of two values for the better one, "max" the higher; "auto" goes by the metric's name. A value that
    is not finite is worse than any. In a run that goes on past its end, the model of a last round that is now none of
    the evaluated ones stays until one is better than those of the evaluated rounds before it.
    """

    metric: str | None = None
    on: Literal["test", "validation"] = "test"
    name: str = "best"
    mode: Mode = "auto"

    def __post_init__(self) -> None:
        check_fields(self, RequestError, "KeepBest")

    def round(self, at: Moment) -> str | None:
        measure, value = at.find(self.metric, self.on)
        policy = at.experiment.plan.evaluation
        if policy is not None and policy.when == "before" and (self.on == "test" or "client_" in measure):
            raise RequestError(
                'KeepBest would keep another model than the one that was scored: evaluation.when = "before".',
                'evaluation.when = "after", or a metric of the server on validation data',
            )
        last = self.score_to_beat(at, measure)
        if value is not None and (last is None or is_better(measure, value, last, mode=self.mode)):
            note_direction("KeepBest", measure, self.mode)
            at.keep(self.name, measure, value)
        return None

    def score_to_beat(self, at: Moment, measure: str) -> float | None:
        """The best score so far, in rounds that are evaluated however long the run is; None: any is better."""
        before, plan = at.kept.get(self.name), at.experiment.plan
        if before is None or before.measure != measure:
            return None
        if plan.evaluates(before.round):
            return before.score
        scores = by_round([one for one in at.records[:-1] if plan.evaluates(one.round)], measure).values()
        best = min if self.mode == "min" or (self.mode == "auto" and lower_is_better(measure)) else max
        return best((score for score in scores if isfinite(score)), default=None)

    def end(self, run: Run) -> None:
        kept = run.kept.get(self.name)
        if kept is not None and not run.plan.evaluates(kept.round):
            log.warning(
                "the %s model is that of round %d, where the run once ended: the result leaves that round out, and no "
                "later round was better than those before it",
                self.name, kept.round,
            )  # fmt: skip


@explain_typos("EarlyStop")
@dataclass(frozen=True)
class EarlyStop(Callback):
    """Stop a run when a metric has not become better, by more than `least`, for `patience` rounds.

    `mode` says what is better, as for KeepBest. A last round that is evaluated only because it is the last one is not
    looked at: nothing is left to stop, and a run that goes on from there is as one that was never shorter.
    """

    metric: str | None = None
    patience: Count = 20
    on: Literal["test", "validation"] = "test"
    least: NonNegative = 0.0
    mode: Mode = "auto"

    def __post_init__(self) -> None:
        check_fields(self, RequestError, "EarlyStop")

    def round(self, at: Moment) -> str | None:
        measure, value = at.find(self.metric, self.on)
        if at.record.round % at.experiment.plan.evaluate_every:
            return None
        best, memory = at.memory.get("best"), at.memory
        if value is not None and (best is None or is_better(measure, value, best, self.least, mode=self.mode)):
            note_direction("EarlyStop", measure, self.mode)
            memory |= {"best": value, "round": at.record.round}
        waited = at.record.round - memory.setdefault("round", at.record.round)
        if waited < self.patience:
            return None
        if memory.get("best") is None:
            return f"{measure} was not finite in any round"
        return f"{measure} was best in round {memory['round']}, and not better in the {waited} rounds after it"


def is_better(measure: str, value: float, before: float, least: float = 0.0, *, mode: Mode) -> bool:
    falls = lower_is_better(measure) if mode == "auto" else mode == "min"
    return before - value > least if falls else value - before > least


@cache
def note_direction(name: str, measure: str, mode: Mode) -> None:
    """Say once which values count as better, where the name of a metric does not tell."""
    if mode == "auto" and not tells_direction(measure):
        ways = [("higher", "max"), ("lower", "min")]
        (taken, _), (other, turned) = reversed(ways) if lower_is_better(measure) else ways
        told = '%s takes a %s %s for a better one; if %s is better, give it mode="%s"'
        log.warning(told, name, taken, measure, other, turned)

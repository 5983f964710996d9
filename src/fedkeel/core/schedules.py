"""How a learning rate changes over a run: a share of the rate at each time, which is counted in rounds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import cos, inf, pi
from typing import Any, Literal, NoReturn, Self, cast

from fedkeel.errors import ExperimentError, FedkeelError, UntrustedError, explain_typos, nearest
from fedkeel.importing import Kind, Trust, look_up
from fedkeel.ranges import Count, NonNegative, Positive, Whole
from fedkeel.text import in_one_line
from fedkeel.typed_values import check_fields, check_table, show_value
from fedkeel.written_values import check_whole

WHERE = 'for example schedule = {name = "cosine", warmup = 5}'


@dataclass(frozen=True, kw_only=True)
class Schedule(ABC):
    """The share of the rate at time t, in rounds from 0. In the first `warmup` = W rounds it is (t + 1) / (W + 1).

    by = "round" keeps the rate for a whole round. by = "step" lets it change with every local step: step k of K in
    round t is at time t + k / K.
    """

    warmup: Whole = 0
    by: Literal["round", "step"] = "round"

    def __post_init__(self) -> None:
        check_fields(self, ExperimentError, f"the {name_of(self)} schedule")

    @abstractmethod
    def shape(self, time: float) -> float:
        """Return the share after the warm-up; `time` is that of the run."""

    def share_at(self, time: float) -> float:
        """Return the share of the rate at that time; refuse what is no number, or below 0."""
        if time < self.warmup:
            return (time + 1) / (self.warmup + 1)
        try:
            share = float(self.shape(time))
        except Exception as error:  # of someone's own code, or a number that is too large
            raise refuse_share(self, time, f"{type(error).__name__}: {in_one_line(error)}") from error
        if not 0 <= share < inf:
            raise refuse_share(self, time, share)
        return share

    def fit(self, rounds: int, key: str) -> Self:
        """Return this schedule for a run of so many rounds; refuse one that does not fit, where `key` names it."""
        if self.warmup >= rounds:
            raise ExperimentError(
                f"the warm-up of {key} takes {self.warmup} rounds, and the run has {rounds}.",
                f"{key}.warmup = {min(5, rounds - 1)}",
            )
        fitted = self.lengthen(rounds, key)
        known = type(self) in SCHEDULES.values()  # of which the last round says it all
        for round in range(rounds - 1 if known else 0, rounds):
            if (share := fitted.share_at(round)) == 0:
                raise refuse_share(fitted, round, share)
        return fitted

    def lengthen(self, rounds: int, key: str) -> Self:
        """Return this schedule with the length of the run, where it has one; refuse what lies behind its end."""
        return self

    def save(self) -> dict[str, Any]:
        """Return it as a table for TOML."""
        check_whole(self, ExperimentError, f"the schedule {name_of(self)}")
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        plain = {word: list(value) if isinstance(value, tuple) else value for word, value in values.items()}
        return {"name": name_of(self)} | {word: value for word, value in plain.items() if value is not None}


def refuse_share(schedule: Schedule, time: float, given: object) -> ExperimentError:
    """Make the error of a schedule that gives something else than a share."""
    return ExperimentError(
        f"the {name_of(schedule)} schedule leaves no rate in round {int(time) + 1} that is a number above 0: {given}",
        "end = 0.01, or a schedule as long as the run; warmup = 5 begins low, and not at 0",
    )


@dataclass(frozen=True, kw_only=True)
class ConstantRate(Schedule):
    """The same rate in all rounds."""

    def shape(self, time: float) -> float:
        return 1.0


@dataclass(frozen=True, kw_only=True)
class ExponentialRate(Schedule):
    """γ^(t − W).  decay = 1 is constant. Without warm-up it is what `lr_decay` does."""

    decay: Positive = 0.998

    def shape(self, time: float) -> float:
        return float(self.decay ** (time - self.warmup))


@dataclass(frozen=True, kw_only=True)
class Lasting(Schedule):
    """A schedule that goes from 1 to `end` in `rounds` rounds, warm-up included, and stays there; None: all of the run.

    `end` would be the share of the round behind the last.
    """

    end: NonNegative = 0.0
    rounds: Count | None = None

    def lengthen(self, rounds: int, key: str) -> Self:
        if self.rounds is not None and self.rounds > rounds:
            raise ExperimentError(
                f"{key} is longer than the run: {self.rounds} rounds of {rounds}.", f"leave {key}.rounds out"
            )
        if self.rounds is not None and self.rounds <= self.warmup:
            raise ExperimentError(
                f"{key} ends after {self.rounds} rounds, in its warm-up of {self.warmup}.", f"leave {key}.rounds out"
            )
        return self if self.rounds is not None else replace(self, rounds=rounds)

    def progress(self, time: float) -> float:
        """Return how much of the way from 1 to `end` is done."""
        assert self.rounds is not None
        return min((time - self.warmup) / (self.rounds - self.warmup), 1.0)


@dataclass(frozen=True, kw_only=True)
class LinearRate(Lasting):
    """1 − (1 − end) p, where p = (t − W) / (T − W).  end = 1 is constant."""

    def shape(self, time: float) -> float:
        return 1.0 - (1.0 - self.end) * self.progress(time)


@dataclass(frozen=True, kw_only=True)
class CosineRate(Lasting):
    """end + (1 − end) (1 + cos π p) / 2, where p = (t − W) / (T − W).  end = 1 is constant.  (SGDR, 2017)"""

    def shape(self, time: float) -> float:
        return self.end + (1.0 - self.end) * (1.0 + cos(pi * self.progress(time))) / 2.0


@dataclass(frozen=True, kw_only=True)
class StepRate(Schedule):
    """φ^n, where n milestones have been reached: rounds of the run, counted from 0.  factor = 1 is constant."""

    milestones: tuple[Count, ...]
    factor: Positive = 0.1

    def shape(self, time: float) -> float:
        return float(self.factor ** sum(time >= one for one in self.milestones))

    def lengthen(self, rounds: int, key: str) -> Self:
        late = [one for one in self.milestones if one >= rounds]
        if late:
            raise ExperimentError(
                f"a milestone of {key} lies behind the last round: {late[0]}, and the run has {rounds}.",
                f"{key}.milestones = [{max(1, rounds // 2)}]",
            )
        return self

    def check_new(self, key: str) -> None:
        """Refuse in a new run what older runs may have."""
        given = list(self.milestones)
        if not given:
            raise ExperimentError(f"{key} has no milestones, so its rate would never fall.", f"leave {key} out")
        if given != (rising := sorted(set(given))):
            raise ExperimentError(f"the milestones of {key} do not increase: {given}", f"{key}.milestones = {rising}")


@dataclass(frozen=True, kw_only=True)
class CyclicRate(Schedule):
    """1 − (1 − end) p, where p is the share of a cycle of C rounds that is over; then the next begins at 1.

    end = 1 is constant.  (Stochastic weight averaging, Izmailov et al. 2018)
    """

    cycle: Count
    end: NonNegative = 0.0

    def shape(self, time: float) -> float:
        return 1.0 - (1.0 - self.end) * (((time - self.warmup) % self.cycle) / self.cycle)

    def lengthen(self, rounds: int, key: str) -> Self:
        if self.warmup + self.cycle > rounds:
            raise ExperimentError(
                f"the first cycle of {key} ends after {self.warmup + self.cycle} rounds, and the run has {rounds}.",
                f"{key}.cycle = {max(1, (rounds - self.warmup) // 4)}",
            )
        return self


SCHEDULES: dict[str, type[Schedule]] = {
    "constant": ConstantRate,
    "exponential": ExponentialRate,
    "linear": LinearRate,
    "cosine": CosineRate,
    "step": StepRate,
    "cyclic": CyclicRate,
}
"""The schedules by name."""

for _name, _kind in SCHEDULES.items():
    explain_typos(f"the {_name} schedule", ExperimentError)(_kind)

KEYS = ("schedule", "server_schedule")
"""Where an experiment has schedules."""

OWN = Kind(
    "schedule",
    Schedule,
    classes=True,
    hint="a schedule is a subclass of fk.Schedule under @dataclass(frozen=True, kw_only=True)",
    error=ExperimentError,
)


class NamedSchedule(Schedule):
    """A schedule of someone's own, as a file gives it: shown, saved and compared, never imported and never trained."""

    data: dict[str, Any]
    error: FedkeelError

    def __init__(self, data: Mapping[str, Any], error: FedkeelError):
        self.__dict__.update(data=dict(data), error=error)

    def __repr__(self) -> str:
        return f"NamedSchedule({show_value(self.data)})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NamedSchedule) and self.data == other.data

    def __hash__(self) -> int:
        return hash(repr(self))

    def fit(self, rounds: int, key: str) -> Self:
        return self

    def shape(self, time: float) -> NoReturn:
        raise self.error

    def share_at(self, time: float) -> NoReturn:
        raise self.error

    def save(self) -> dict[str, Any]:
        return dict(self.data)


def name_of(schedule: Schedule) -> str:
    """Return the name that files have for a schedule; one of the user's own is named `module:Class`."""
    kind = type(schedule)
    own = f"{kind.__module__}:{kind.__qualname__}"
    return next((name for name, known in SCHEDULES.items() if known is kind), own)


def name_class_alone(saved: Any) -> Any:
    """Return a saved schedule with the name of its class alone, as fingerprints and runs up to 1.0.0 have it."""
    if not isinstance(saved, Mapping) or ":" not in str(saved.get("name")):
        return saved
    return {**saved, "name": str(saved["name"]).rpartition(":")[2].rpartition(".")[2]}


def read_schedule(given: Schedule | str | Mapping[str, Any], key: str, trust: Trust = Trust.TYPED) -> Schedule:
    """Read a schedule from itself, its name, or a table of its name and fields; `key` says where it was given.

    One of someone's own, `module:Class`, that is not vouched for stays a name.
    """
    if isinstance(given, Schedule):
        return given
    settings: dict[str, Any] = {"name": given} if isinstance(given, str) else dict(given)
    data, name = dict(settings), settings.pop("name", None)
    if not isinstance(name, str):
        raise ExperimentError(f"{key} needs its name: {show_value(dict(settings))}", WHERE)
    try:
        kind = look_up(name, OWN, trust) if ":" in name else SCHEDULES.get(name)
    except UntrustedError as error:
        return NamedSchedule(data, error)
    if kind is None:
        unknown = ExperimentError(f"unknown schedule: {name}", nearest(name, SCHEDULES, "schedules"))
        if trust is Trust.NOTHING:  # runs up to version 1.0.0 name the class of one's own alone
            return NamedSchedule(data, unknown)
        raise unknown
    check_table(kind, settings, ExperimentError, f"the {name} schedule")
    try:
        return cast(Schedule, kind(**settings))
    except TypeError as error:  # of someone's own class
        raise ExperimentError(f"the schedule {name} cannot be made: {error}", OWN.hint) from error


def spans_run(given: Schedule | str | Mapping[str, Any]) -> bool:
    """Whether the schedule is as long as the run, so that another length makes other rates from the first round on."""
    schedule = read_schedule(given, "schedule", Trust.NOTHING)
    return isinstance(schedule, Lasting) and schedule.rounds is None

"""Optuna as the one who proposes settings, instead of the grid."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, log, log10
from typing import Any

from fedkeel.errors import RequestError
from fedkeel.randomness import key
from fedkeel.studies.grids import Setting
from fedkeel.studies.search import DRAWS, Candidate, Search, late_score
from fedkeel.studies.search_space import warn_of_left_out
from fedkeel.studies.sweep import Execute, Sweep, Tuned, attempt, is_positive, is_taken, with_value

STEPS = 50  # values between the ends of an interval, at least
BATCH = 9  # candidates that are proposed at once, and trained side by side
NEAR = 0.05  # of an interval on a logarithmic scale: the best value may lie beyond its end


def propose(sweep: Sweep, method: str, execute: Execute) -> Tuned:
    """`budget` trials of Optuna's TPE sampler: numbers between the ends of their grid, on a logarithmic scale, whole
    ones where the grid is of whole ones; other values one of those listed. Trials depend on the sweep's first seed
    alone, so a sweep can be resumed. One that no experiment takes fails; where that is all of them, the grid's first
    setting is tried."""
    study, failed = begin_study(sweep.seeds[0], "optuna")
    tuned = Tuned(method)
    for _ in range(sweep.budget):
        trial = study.ask()
        setting: Setting = tuple((word, _value(trial, word, values)) for word, values in sweep.grids[method].items())
        if not is_taken(sweep, method, setting):
            study.tell(trial, state=failed)
            continue
        if setting not in tuned.scores:
            attempt(sweep, tuned, [setting], execute)
        score = tuned.scores[setting]
        study.tell(trial, score, state=failed if score is None else None)
    if not tuned.scores:
        attempt(sweep, tuned, sweep.settings(method)[:1], execute)
    tuned.edge = find_end(sweep, tuned)
    return tuned


def begin_study(seed: int, purpose: str) -> tuple[Any, Any]:
    """An empty study of Optuna's TPE sampler, which depends on the seed alone, and the state of a failed trial."""
    try:
        import optuna
    except ImportError:
        raise RequestError('sampler = "optuna" needs Optuna.', "pip install 'fedkeel[sweep]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=key(seed, purpose) % 2**32)
    return optuna.create_study(direction="maximize", sampler=sampler), optuna.trial.TrialState.FAIL


def propose_candidates(search: Search, side: str, execute: Execute) -> list[Candidate]:
    """Candidates of a search, proposed in batches by what those before have scored on the first rung."""
    study, failed = begin_study(search.seed, f"optuna {side}")
    grids, found, rounds = search.grids(side), dict[Candidate, float | None](), search.rungs[0]
    refused: list[tuple[Setting, RequestError]] = []
    for _ in range(DRAWS):
        fresh: dict[Any, Candidate] = {}
        for trial in (study.ask() for _ in range(min(BATCH, search.candidates - len(found)))):
            method = trial.suggest_categorical("method", list(grids))
            setting = tuple((word, _value(trial, f"{method} {word}", grid)) for word, grid in grids[method].items())
            try:
                fresh[trial] = search.candidate(side, method, setting)
            except RequestError as error:
                study.tell(trial, state=failed)
                refused.append((setting, error))
        new = list(dict.fromkeys(one for one in fresh.values() if one not in found))
        runs = execute([(one.name_try(rounds), one.experiment.with_(rounds=rounds)) for one in new])
        found |= {one: None if run is None else late_score(run) for one, run in zip(new, runs, strict=True)}
        for trial, one in fresh.items():
            score = found[one]
            study.tell(trial, score, state=failed if score is None else None)
        if len(found) >= search.candidates:
            break
    if not found:
        return search.draw(side)
    warn_of_left_out([one.setting for one in found], refused)
    return list(found)


def _value(trial: Any, word: str, values: Sequence[Any]) -> Any:
    if not _ordered(values):
        return trial.suggest_categorical(word, list(values))
    low, high = min(values), max(values)
    if _whole(values):
        return trial.suggest_int(word, low, high, log=True)
    return shorten(trial.suggest_float(word, low, high, log=True), low, high)


def shorten(value: float, low: float, high: float) -> float:
    """Round to 4 digits, or to as many as give the interval `STEPS` values; never beyond its ends."""
    step = (high - low or high) / STEPS
    digits = max(4, 1 + floor(log10(high)) - floor(log10(step)))
    return min(max(float(f"{value:.{digits}g}"), low), high)


def _ordered(values: Sequence[Any]) -> bool:
    """Whether values are the ends of an interval, and perhaps some between."""
    return len(values) > 1 and all(is_positive(value) for value in values)


def _whole(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int) for value in values)


def find_end(sweep: Sweep, tuned: Tuned) -> str:
    """Find a key whose best value lies at an end of its interval, where experiments take values beyond; or nothing."""
    for word, value in tuned.best or ():
        values = sweep.grids[tuned.method][word]
        if not _ordered(values) or (low := min(values)) == (high := max(values)):
            continue
        place = log(value / low) / log(high / low)
        if NEAR < place < 1 - NEAR:
            continue
        end, other = (low, high) if place <= NEAR else (high, low)
        further = end + (1 if end > other else -1) if _whole(values) else end * (end / other) ** NEAR
        if is_taken(sweep, tuned.method, with_value(tuned.best or (), word, further)):
            return word
    return ""

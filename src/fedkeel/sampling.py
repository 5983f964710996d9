"""Optuna as the one who proposes settings, instead of the grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedkeel.errors import RequestError
from fedkeel.randomness import key
from fedkeel.sweep import Execute, Setting, Sweep, Tuned, attempt


def propose(sweep: Sweep, method: str, execute: Execute) -> Tuned:
    """`budget` trials of Optuna's TPE sampler: numbers between the ends of their grid, on a logarithmic scale, whole
    ones where the grid is of whole ones; other values one of those listed. Trials depend on the sweep's first seed
    alone, so a sweep can be resumed."""
    try:
        import optuna
    except ImportError:
        raise RequestError('sampler = "optuna" needs Optuna.', "pip install 'fedkeel[sweep]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    seed = key(sweep.seeds[0], "optuna") % 2**32
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    tuned = Tuned(method)
    for _ in range(sweep.budget):
        trial = study.ask()
        setting: Setting = tuple((word, _value(trial, word, values)) for word, values in sweep.grids[method].items())
        if setting not in tuned.scores:
            attempt(sweep, tuned, [setting], execute)
        score = tuned.scores[setting]
        if score is None:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            study.tell(trial, score)
    return tuned


def _value(trial: Any, word: str, values: Sequence[Any]) -> Any:
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool) and v > 0]
    if len(numbers) < 2 or len(numbers) < len(values):
        return trial.suggest_categorical(word, list(values))
    low, high = min(numbers), max(numbers)
    if all(isinstance(number, int) for number in numbers):
        return trial.suggest_int(word, low, high, log=True)
    return float(f"{trial.suggest_float(word, low, high, log=True):.4g}")


def tuner(data: Mapping[str, Any]) -> str:
    """How a sweep's settings are found: "grid" or "optuna"."""
    sampler = data.get("sampler", "grid")
    if sampler not in ("grid", "optuna"):
        raise RequestError(f"unknown sampler: {sampler}", 'write sampler = "grid" or "optuna"')
    return str(sampler)

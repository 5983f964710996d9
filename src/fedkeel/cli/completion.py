"""Names that a shell completes: `fedkeel --install-completion`, then the tab key."""

from __future__ import annotations

from collections.abc import Iterable


def names_brought(group: str) -> list[str]:
    """Names that installed packages bring; nothing of them is imported."""
    from fedkeel.plugins import GROUP, brought

    return [plugin.name for plugin in brought(f"{GROUP}.{group}")]


def complete_methods(incomplete: str) -> list[str]:
    """Complete the last of several methods, also behind a plug-in."""
    from fedkeel.methods import METHODS

    before = incomplete[: max(incomplete.rfind(","), incomplete.rfind("+")) + 1]
    return extend(before, incomplete, [*METHODS, *names_brought("methods")])


def complete_datasets(incomplete: str) -> list[str]:
    from fedkeel.data import DATASETS

    return extend("", incomplete, [*DATASETS, *names_brought("datasets")])


def complete_models(incomplete: str) -> list[str]:
    from fedkeel.models import MODELS

    return extend("", incomplete, [*MODELS, *names_brought("models")])


def complete_partitions(incomplete: str) -> list[str]:
    from fedkeel.data.partition.registry import PARTITIONS

    return extend("", incomplete, [*PARTITIONS, *names_brought("partitions")])


def complete_engines(incomplete: str) -> list[str]:
    from fedkeel.engines.choose import ENGINES

    return extend("", incomplete, ("auto", *ENGINES))


def complete_metrics(incomplete: str) -> list[str]:
    """Complete the last of several metrics."""
    from sklearn.metrics import get_scorer_names

    return extend(incomplete[: incomplete.rfind(",") + 1], incomplete, ("auc", "ece", "iou", *get_scorer_names()))


def complete_tracks(incomplete: str) -> list[str]:
    """Complete the last of several observers."""
    from fedkeel.runs.observers import OBSERVERS

    return extend(incomplete[: incomplete.rfind(",") + 1], incomplete, OBSERVERS)


def extend(before: str, incomplete: str, names: Iterable[str]) -> list[str]:
    """What stands before, with each name that begins as the rest does."""
    return [before + name for name in names if name.startswith(incomplete.removeprefix(before))]

"""Names that a shell completes: `fedkeel --install-completion`, then the tab key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module


def complete_from(
    module: str, registry: str, brought_as: str | None = None, *, after: str = "", more: Sequence[str] = ()
) -> Callable[[str], list[str]]:
    """Complete the names of a registry, which is imported only then, and `more`; the last of several, which stands
    `after` one of these signs. What installed packages bring to a group is named without importing it."""

    def complete(incomplete: str) -> list[str]:
        from fedkeel.plugins import GROUP, brought

        found = getattr(import_module(module), registry)
        names = [*more, *(found() if callable(found) else found)]
        names += [plugin.name for plugin in brought(f"{GROUP}.{brought_as}")] if brought_as else []
        before = incomplete[: max((incomplete.rfind(sign) + 1 for sign in after), default=0)]
        return [before + name for name in names if name.startswith(incomplete.removeprefix(before))]

    return complete


complete_methods = complete_from("fedkeel.methods", "METHODS", "methods", after=",+")
complete_datasets = complete_from("fedkeel.data", "DATASETS", "datasets")
complete_models = complete_from("fedkeel.models", "MODELS", "models")
complete_partitions = complete_from("fedkeel.data.partition.registry", "PARTITIONS", "partitions")
complete_engines = complete_from("fedkeel.engines.choose", "ENGINES", more=("auto",))
complete_metrics = complete_from("sklearn.metrics", "get_scorer_names", after=",", more=("auc", "ece", "iou"))
complete_tracks = complete_from("fedkeel.runs.observers", "OBSERVERS", after=",")

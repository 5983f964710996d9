"""Samples that would be scored one at a time by networks that compare samples with each other."""

from __future__ import annotations

from functools import partial

from fedkeel.errors import ExperimentError
from fedkeel.problems.module_state import compares_samples
from fedkeel.problems.task import CLIENT, Task


def check_scored(task: Task) -> None:
    """Refuse one sample to be scored alone, if the model compares samples with each other then, too."""
    if not compares_samples(task.module, partial(task.try_first, 1), training=False):
        return
    own = 0 if task.tests is None else len(task.tests.sizes)
    for split in ("test", "validation", *(f"{CLIENT}{client}" for client in range(own))):
        for part in task.parts(split):
            if part.last - part.first == 1:
                whose = f" of client {part.client}" if part.client >= 0 else ""
                what = "validation samples" if split == "validation" else "test samples"
                raise ExperimentError(
                    f"one of the {what}{whose} would be scored alone, too little for batch norms without running "
                    "statistics.",
                    "track_running_stats=True, one sample more or less, or a model with group norms",
                )

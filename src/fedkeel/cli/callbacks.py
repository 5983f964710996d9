"""What `run` and `resume` do and measure between rounds: `--keep`, `--patience`, `--callback`, `--metrics`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from fedkeel.cli.completion import complete_metrics
from fedkeel.cli.pages import option
from fedkeel.text import split_words

if TYPE_CHECKING:
    from fedkeel.problems.metrics import Metric
    from fedkeel.runs.callbacks import Callback

Keep = Annotated[
    str | None, option(metavar="best", help="Keep the best round's model too: best (on test), best:validation.")
]
Patience = Annotated[
    int | None, option(metavar="N", min=0, help="Stop when N rounds have brought nothing better; 0: never.")
]
CallbackNames = Annotated[
    list[str] | None,
    option("--callback", metavar="NAME", help="Call between rounds: EarlyStop:patience=9,on=validation, module:name."),
]

Metrics = Annotated[
    str,
    option(
        metavar="A,B,…",
        help="Measure too: f1, auc, balanced_accuracy, ece … (scikit-learn's), module:name.",
        autocompletion=complete_metrics,
    ),
]


def read_metrics(text: str, folders: Sequence[Path] = (), trust: bool = False) -> dict[str, Metric]:
    """Find the metrics that are asked for, or else those that the runs in these folders had before."""
    from fedkeel.importing import Trust
    from fedkeel.problems.metrics import find_metrics
    from fedkeel.runs.environment import names_before

    names = split_words(text)
    before = dict.fromkeys(name for path in folders for name in names_before(path, "metrics"))
    return find_metrics(names or list(before), Trust.TYPED if names else Trust.given(trust))


def read_callbacks(keep: str | None, patience: int | None, names: Sequence[str] | None) -> list[Callback]:
    """Find what the options ask for."""
    from fedkeel.errors import RequestError
    from fedkeel.runs.following import find_callbacks

    asked = list(names or ())
    if patience:
        asked.append(f"EarlyStop:patience={patience}")
    if keep is not None:
        what, _, on = keep.partition(":")
        if what != "best" or on not in ("", "test", "validation"):
            raise RequestError(f"--keep takes best or best:validation, not: {keep}", "the last model is always kept")
        asked.append("KeepBest:on=validation" if on == "validation" else "KeepBest")
    return find_callbacks(asked)


def go_on_with(asked: Sequence[Callback], folders: Sequence[Path], trust: bool, patience: int | None) -> list[Callback]:
    """Add the callbacks that the runs in these folders had before; one of a kind that is asked for now replaces them,
    and a patience of 0 leaves out those that stop.

    Code that a folder names is imported with `trust` only.
    """
    from fedkeel.importing import Trust
    from fedkeel.runs.environment import names_before
    from fedkeel.runs.following import find_callbacks

    kinds = {type(one).__name__ for one in asked} | ({"EarlyStop"} if patience == 0 else set())
    names = dict.fromkeys(name for path in folders for name in names_before(path, "callbacks"))
    wanted = [name for name in names if name.partition(":")[0] not in kinds]
    return [*asked, *find_callbacks(wanted, Trust.given(trust))]

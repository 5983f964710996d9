"""What `run`, `resume` and others measure and log in addition: `--track`, `--tensorboard`, `--mlflow`, `--wandb`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from fedkeel.cli.completion import complete_tracks
from fedkeel.cli.pages import option
from fedkeel.text import split_words

if TYPE_CHECKING:
    from fedkeel.runs.loop import Progress
    from fedkeel.runs.trackers import Several

Track = Annotated[
    str,
    option(
        metavar="A,B,…",
        help="Measure while training: drift, spectrum, gradient-spectrum, perturbation-spectrum, gradient-divergence, "
        "alpha, radius, critical, state; drift@30+60 in the rounds 30 and 60 alone.",
        autocompletion=complete_tracks,
    ),
]
ToTensorBoard = Annotated[bool, option("--tensorboard", help="Log to event files in each run's folder.")]
ToMlflow = Annotated[bool, option("--mlflow", help="Log to MLflow, where MLFLOW_TRACKING_URI says.")]
ToWandb = Annotated[bool, option("--wandb", help="Log to Weights & Biases.")]


@dataclass(frozen=True)
class Tracking:
    """None of it changes a result."""

    track: tuple[str, ...] = ()
    tensorboard: bool = False
    mlflow: bool = False
    wandb: bool = False

    @staticmethod
    def of(track: str = "", tensorboard: bool = False, mlflow: bool = False, wandb: bool = False) -> Tracking:
        """As the command line asks for it; unknown names and missing libraries are refused at once."""
        from fedkeel.runs.observers import find_observers
        from fedkeel.runs.trackers import library

        names = tuple(split_words(track))
        find_observers(names)
        wanted = {"torch.utils.tensorboard": tensorboard, "mlflow": mlflow, "wandb": wandb}
        for module in (module for module, asked in wanted.items() if asked):
            library(module, module.split(".")[-1])
        return Tracking(names, tensorboard, mlflow, wandb)

    def followers(self, display: Progress | None, title: str, folder: Path) -> Several:
        """The display and the trackers as one; a context that closes them however the run ends."""
        from fedkeel.runs.trackers import MLflow, Several, TensorBoard, Wandb

        return Several(
            [
                display,
                TensorBoard(folder / "tensorboard") if self.tensorboard else None,
                MLflow(title) if self.mlflow else None,
                Wandb(title) if self.wandb else None,
            ]
        )

"""Options that several commands have, each said once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedkeel.cli.completion import complete_engines
from fedkeel.cli.pages import option

Engine = Annotated[
    str,
    option(
        metavar="NAME",
        help="How clients are trained: auto, serial, processes, stacked, flower, ray, ray-stacked, module:name.",
        autocompletion=complete_engines,
    ),
]
Workers = Annotated[
    int | None, option(metavar="N", help="Workers of the engine 'processes' or 'ray'; default: one per core or GPU.")
]
On = Annotated[str, option(metavar="WHERE", help="here, or ray: spread runs over a Ray cluster.")]
Device = Annotated[str, option(metavar="NAME", help="auto, cpu, cuda or mps.")]
Precision = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="float32, float64, or bfloat16 (stacked: arithmetic, also of scores; weights stay float32).",
    ),
]
Trusting = Annotated[
    bool, option("--trust", help="Import the code that the file names: only for files that you trust.")
]
OwnProblem = Annotated[
    str | None, option(metavar="MODULE:NAME", help="Your own problem instead of a data set: an fk.Problem.")
]
NoProgress = Annotated[bool, option("--no-progress", help="No bars and no lines per round.")]
StudyFolder = Annotated[Path, typer.Option(metavar="DIR", help="Where the runs stand; the same again resumes.")]

"""`fedkeel export flower`: an experiment as an app for a real federation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedkeel.cli.options import Trusting
from fedkeel.cli.pages import argument, examples, option


@examples(
    "fedkeel export flower experiment.toml app",
    "fedkeel export flower experiment.toml app --data folder --clients 12",
    "fedkeel export flower wards:problem app --data folder --clients 3 --columns age=0:120,pressure --label outcome",
)
def flower(
    experiment: Annotated[
        Path,
        argument(metavar="EXPERIMENT", help="Settings of one experiment (.toml), or a problem of yours, module:name."),
    ],
    folder: Annotated[Path, argument(metavar="DIR", help="A new folder for the app.")],
    method: Annotated[str | None, option(metavar="NAME", help="Another method than the file's.")] = None,
    settings: Annotated[
        list[str] | None, option("--set", metavar="KEY=VALUE", help="Any key: lr=0.05, method.rho=0.05 …")
    ] = None,
    data: Annotated[
        str,
        option(
            metavar="SOURCE",
            help="partition: each node takes its part of the data set; folder: each has its own files; "
            "module:function: a loader.",
        ),
    ] = "partition",
    clients: Annotated[int, option(metavar="N", help="How many nodes have data of their own.")] = 0,
    columns: Annotated[
        str,
        option(
            metavar="NAMES",
            help="Input columns of nodes' tables, also with a range: age=0:120. Else all, by the alphabet.",
        ),
    ] = "",
    label: Annotated[str, option(metavar="NAME", help="The column of nodes' tables that is predicted.")] = "label",
    trust: Trusting = False,
) -> None:
    """Write a Flower app that trains an experiment in a real federation.

    DIR holds the two apps, the experiment, and scripts that make keys and start the server and the nodes with TLS and
    authentication; its README.md has the commands. A run folder's experiment.toml is an experiment, too. A problem's
    module is copied into the app; its first client shows what the data of all sites look like.
    """
    from fedkeel.cli.console import stderr
    from fedkeel.cli.settings import Request, read_file, read_request
    from fedkeel.errors import ExperimentError, RequestError
    from fedkeel.federation.export import export
    from fedkeel.runs.experiment import from_python

    if clients and data == "partition":
        raise RequestError(
            "--clients counts nodes with data of their own, but here each takes its part of the data set.",
            f"add --data folder, or write --set partition.clients={clients}",
        )
    named = str(experiment) if ":" in str(experiment) and not experiment.exists() else None
    file = experiment / "experiment.toml" if experiment.is_dir() else experiment
    request = Request(
        file=None if named else file,
        problem=named,
        file_hint="give an experiment's .toml file, or a run's folder",
        methods=() if method is None else (method,),
        assignments=tuple(settings or ()),
        trust=trust,
    )
    try:
        asked = read_request(request)
    except ExperimentError as error:
        if named is None and from_python(read_file(file).get("problem")):
            hint = "put it into a module and name it: fedkeel export flower MODULE:NAME DIR"
            raise ExperimentError(error.message, hint) from None
        raise
    if len(asked) != 1:
        raise RequestError(
            f"an app trains one method with one seed, but {experiment} has {len(asked)} runs.", "--method NAME"
        )
    problem = named or (read_file(file).get("problem") if asked[0].experiment.problem is not None else None)
    written = export(
        asked[0].experiment, folder, data=data, clients=clients, problem=problem, columns=columns, label=label
    )
    stderr().print(f"{len(written)} files; {folder / 'README.md'} has the commands:")
    typer.echo(folder)

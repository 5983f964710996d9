"""`fedkeel export model` and `fedkeel cite`: what others can use of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedkeel.cli import pages
from fedkeel.cli.flower import flower
from fedkeel.cli.options import OwnProblem, Trusting
from fedkeel.cli.pages import argument, option

if TYPE_CHECKING:
    from torch import Tensor

    from fedkeel.runs.finished_run import Run

group = typer.Typer(
    help="Write the model of a run in a form that others read.",
    callback=pages.help_without_command,
    invoke_without_command=True,
)


@pages.examples(
    "fedkeel export model runs/fedavg-59601bb60e28 model.safetensors",
    "fedkeel export model runs/fedavg-59601bb60e28 model.onnx",
    "fedkeel export model runs/fedper-59601bb60e28 client-3.safetensors --client 3",
)
def model(
    run: Annotated[Path, argument(metavar="RUN", help="A run's folder.")],
    file: Annotated[Path, argument(metavar="FILE", help="Where to write it: model.safetensors, or model.onnx.")],
    problem: OwnProblem = None,
    trust: Trusting = False,
    which: Annotated[
        str,
        option(
            metavar="NAME",
            help="last; best: the one that --keep best has kept; plain: the one that ema+ and swa+ average.",
        ),
    ] = "last",
    client: Annotated[
        int | None, option(metavar="N", help="That client's own model, of methods such as fedper and ditto; from 0.")
    ] = None,
) -> None:
    """Write the trained server model of a run, the one that was evaluated, as a safetensors or an ONNX file.

    With --client, write one client's model at the run's end: the one that it last trained where the experiment's
    evaluation judges "local" models, else the one that it would begin the next round with.

    A .safetensors file holds weights (and buffers) by name, for `load_state_dict` of the same network, or for
    init = "FILE" of another experiment. Of a network that was given from Python it holds what was trained, for
    strict=False; with --problem all, as a frozen base, weights under a second name and buffers of whole numbers.

    A .onnx file holds the whole network, for any number of samples; its inputs are as the experiment prepares them, by
    name where the data have names. It needs the extra `fedkeel\\[onnx]`, and for a problem of your own also --problem.
    """
    from safetensors.torch import save_file

    from fedkeel.cli.console import count, stderr
    from fedkeel.core.states import write_atomically
    from fedkeel.errors import RequestError, refuse_folder
    from fedkeel.problems.given import find_problem
    from fedkeel.runs.finished_run import load_run
    from fedkeel.text import byte_size

    refuse_folder(file, "model.safetensors")
    own = None if problem is None else find_problem(problem)
    if file.suffix == ".onnx":
        from fedkeel.studies.onnx_file import write_onnx

        done = load_run(run, problem=own, trust=trust).at(which, client=client, trust=trust)
        names = write_onnx(done, file, trust=trust)
        tell_whose(done, client)
        stderr().print(f"a network of {', '.join(names)} and any number of samples, {byte_size(file.stat().st_size)}:")
        typer.echo(file)
        return
    if file.suffix != ".safetensors":
        meant = " or ".join(str(file.with_suffix(suffix)) for suffix in (".safetensors", ".onnx"))
        raise RequestError(f"a model is written as .safetensors or .onnx: {file}", f"call it {meant}")
    done = load_run(run, problem=own).at(which, client=client, trust=trust)
    weights = find_weights(done, trust)
    facts = {"method": done.plan.method.name, "rounds": str(done.result["rounds"])}
    write_atomically(file, lambda path: save_file({name: w.contiguous() for name, w in weights.items()}, path, facts))
    tell_whose(done, client)
    total = sum(weight.numel() for weight in weights.values())
    stderr().print(f"{count(total)} numbers in {len(weights)} tensors, {byte_size(file.stat().st_size)}:")
    typer.echo(file)


def find_weights(done: Run, trust: bool) -> dict[str, Tensor]:
    """Find all that `load_state_dict` of a run's network takes; where that cannot be made, tell what is left out."""
    from fedkeel.cli.console import note
    from fedkeel.errors import RequestError
    from fedkeel.models import KNOWN
    from fedkeel.runs.experiment import given_from_python

    trained = {name: tensor for tree in done.deployed.values() for name, tensor in tree.named().items()}
    lost = given_from_python(done.experiment)
    if not lost and done.plan.division.model in KNOWN:  # these have nothing else
        return trained
    try:
        whole = done.model(trust=trust).state_dict()
    except RequestError as error:
        if done.base is not None and (done.problem is not None or not lost):
            raise
        base = ", without the frozen base" if done.base is not None else ""
        note(f"the file holds what was trained alone{base}, for strict=False: {error.message}")
        return trained
    return {name: tensor.clone() for name, tensor in whole.items()} | trained


def tell_whose(done: Run, client: int | None) -> None:
    """Say which model of a client it is; or what of the server's is as the run began, since clients keep their own."""
    from fedkeel.cli.console import note
    from fedkeel.rules.layers import HEAD
    from fedkeel.rules.sharing import private
    from fedkeel.runs.client_model import whose_model

    if client is not None:
        local, rounds, asked = whose_model(done.plan) == "local", len(done.records), done.plan.rounds
        what = f"client {client}'s own model" if local else f"the model that client {client} would begin with next"
        note(f"{what}, after round {rounds}" + (f" of the {asked} asked for" if rounds < asked else ""))
        return
    kept = ["the head" if layer == HEAD else layer for layer in private(done.plan.method)]
    kept += ["running statistics"] if done.plan.buffers == "keep" and "buffers" in done.server else []
    if kept:
        told = f"clients keep to themselves: {', '.join(kept)}. In the file these are as the run began"
        note(f"{told}; --client 3 writes the model of client 3")


@pages.examples("fedkeel cite fedfft-d", "fedkeel cite runs/fedavg-59601bb60e28 > papers.bib")
def cite(
    what: Annotated[str, argument(metavar="METHOD|RUN", help="A method's name, or a run's folder.")],
) -> None:
    """Print BibTeX of every idea that a method or a run uses.

    Give a method's name, or a run's folder; for a run its data set is cited too.
    """
    from fedkeel.data import DATASETS
    from fedkeel.methods import METHODS, build, papers_of
    from fedkeel.papers.citations import CITATIONS
    from fedkeel.runs.experiment import Experiment
    from fedkeel.runs.folder import EXPERIMENT, read_experiment

    # beside runs of several methods lie folders with the names of these
    if (Path(what) / EXPERIMENT).exists() or (Path(what).is_dir() and what not in METHODS):
        data = read_experiment(Path(what))
        method, dataset = Experiment.recall(data).plan.method, DATASETS.get(str(data.get("dataset")))
    else:
        method, dataset = build(what), None
    entries = [CITATIONS[key] for key in papers_of(method) if key in CITATIONS]
    entries += [] if dataset is None else [dataset.citation]
    typer.echo("\n\n".join(entry.strip() for entry in dict.fromkeys(entries)))


pages.add(group, model, flower)

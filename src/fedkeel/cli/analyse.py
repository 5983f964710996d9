"""`fedkeel analyse`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedkeel.cli.console import facts, in_json, say, stderr, stdout
from fedkeel.cli.options import OwnProblem, Trusting
from fedkeel.cli.pages import Json, argument, examples, option
from fedkeel.importing import Trust

if TYPE_CHECKING:
    from fedkeel.problems.problem import Problem
    from fedkeel.studies.extent import Extent


SHOWN = 20  # groups in a line: the worst and the best of more


@examples(
    "fedkeel analyse runs/fedavg-59601bb60e28",
    "fedkeel analyse runs/comparison --spectrum --drift --clients 20",
    "fedkeel analyse runs/fedavg-59601bb60e28 --landscape --directions eigen --radius 0.5",
    "fedkeel analyse runs/comparison --hessian --landscape --directions eigen --which best --split test --samples 500",
    "fedkeel analyse runs/comparison --embedding --tensor fc1.weight --shared",
    "fedkeel analyse runs/comparison --embedding --each sample",
)
def analyse(
    folder: Annotated[Path, argument(metavar="RUN", help="A run's folder, or one that holds several.")],
    spectrum: Annotated[bool, option("--spectrum", help="Where in the spectrum clients disagree.")] = False,
    drift: Annotated[bool, option("--drift", help="Drift, cosines, accuracy of each client.")] = False,
    cka: Annotated[bool, option("--cka", help="Similarity of the clients' features, layer by layer.")] = False,
    embedding: Annotated[bool, option("--embedding", help="Clients as points: PCA and t-SNE.")] = False,
    clusters: Annotated[bool, option("--clusters", help="Clients by the direction of their updates.")] = False,
    hessian: Annotated[bool, option("--hessian", help="Top eigenvalues, trace, sharpness.")] = False,
    landscape: Annotated[bool, option("--landscape", help="The loss along one and two directions.")] = False,
    groups: Annotated[
        bool, option("--groups", help="Accuracy by domain, corruption or writer of the test samples.")
    ] = False,
    clients: Annotated[int, option(metavar="N", min=2, help="How many clients are compared.")] = 10,
    samples: Annotated[int, option(metavar="N", min=2, help="At most so many samples of each.")] = 1000,
    bands: Annotated[int, option(metavar="M", min=1, help="Bands of the spectrum.")] = 10,
    directions: Annotated[str, option(metavar="NAME", help="Of a landscape: random or eigen.")] = "random",
    radius: Annotated[float | None, option(metavar="R", help="How far a landscape goes.")] = None,
    points: Annotated[int, option(metavar="N", help="Points along each direction; odd.")] = 21,
    rho: Annotated[float, option(metavar="R", help="Radius of the sharpness.")] = 0.05,
    which: Annotated[
        str, option(metavar="NAME", help="The model: last (default), or best where the run kept it (--keep best).")
    ] = "last",
    split: Annotated[
        str, option(metavar="NAME", help="Samples of eigenvalues and landscapes: train (default) or test.")
    ] = "train",
    layer: Annotated[
        str | None, option(metavar="NAME", help="Layer whose features are embedded; default: the one before the last.")
    ] = None,
    tensor: Annotated[
        str | None, option(metavar="NAME", help="Embed this tensor of the model alone, such as conv1.weight.")
    ] = None,
    each: Annotated[
        str, option(metavar="NAME", help="A point of the features is the mean of a class (default), or a sample.")
    ] = "class",
    shared: Annotated[bool, option("--shared", help="Embed all runs in one plane.")] = False,
    into: Annotated[int, option(metavar="K", min=0, help="How many clusters; default: the method's own number.")] = 0,
    device: Annotated[str, option(metavar="NAME", help="cpu, cuda or mps.")] = "cpu",
    problem: OwnProblem = None,
    trust: Trusting = False,
    json: Json = False,
) -> None:
    """Look closer at a trained run; the numbers go into the run's folder, where `fedkeel report` finds them.

    Without a choice: all that apply to the run.
    """
    from fedkeel.cli.training import runs_in
    from fedkeel.problems.given import find_problem
    from fedkeel.studies.extent import Extent

    chosen = {
        "spectrum": spectrum, "drift": drift, "cka": cka, "embedding": embedding, "clusters": clusters,
        "hessian": hessian, "landscape": landscape, "groups": groups,
    }  # fmt: skip
    extent = Extent(
        which=which, clients=clients, samples=samples, bands=bands, radius=radius, points=points, rho=rho, layer=layer,
        tensor=tensor, clusters=into, directions=directions, split=split, each=each,  # type: ignore[arg-type]
    )  # fmt: skip
    names = [name for name, wanted in chosen.items() if wanted]
    own = None if problem is None else find_problem(problem)
    paths, level = runs_in(folder), Trust.given(trust)
    found = analyse_runs(paths, names, extent, device, shared=shared, problem=own, trust=level)
    if json:
        typer.echo(in_json(found))
        return
    console = stdout()
    for path_name, data in found.items():
        console.print(path_name, style="bold", soft_wrap=True)
        console.print(facts(list_facts(data)))
        console.print()


def analyse_runs(
    folders: Sequence[Path],
    names: Sequence[str],
    extent: Extent,
    device: str,
    *,
    shared: bool,
    problem: Problem | None = None,
    trust: Trust = Trust.NOTHING,
    anew: bool = True,
) -> dict[str, dict[str, Any]]:
    """Take diagnostics of run folders, all that apply when none is named; `shared`: embed their models in one plane.

    Without `anew`, those that a folder has already are not taken again.
    """
    from fedkeel.runs.finished_run import load_run
    from fedkeel.studies.diagnose import DIAGNOSTICS, embed_together, is_known, name_plane
    from fedkeel.studies.diagnose import analyse as diagnose

    found: dict[str, dict[str, Any]] = {}
    runs, wanted = [], list(names) or [*DIAGNOSTICS]
    together = shared and "embedding" in wanted
    for path in folders:
        runs.append(load_run(path, problem=problem, trust=trust))
        alone = [name for name in wanted if not (together and name == "embedding")]
        left = [name for name in alone if anew or not is_known(runs[-1], name, extent)]
        if left:
            say(stderr(), "analysing", "bold", str(path))
        found[str(path)] = diagnose(runs[-1], left, extent, device, optional=not names) if left else {}
    if together and (anew or not all(is_known(run, "embedding", extent, name_plane(runs)) for run in runs)):
        say(stderr(), "embedding", "bold", f"{len(runs)} runs in one plane")
        for path, data in zip(folders, embed_together(runs, extent, device), strict=True):
            found[str(path)]["embedding"] = data
    return found


def list_facts(data: dict[str, Any]) -> list[tuple[str, str]]:
    """Each diagnostic in a line or two."""
    lines = []
    if "spectrum" in data:
        for kind, found in data["spectrum"]["kinds"].items():
            lines.append((f"Dist(m) of {kind}s", "  ".join(f"{value:.3g}" for value in found["distance"])))
        low, high = data["spectrum"]["heterogeneity"]["low"], data["spectrum"]["heterogeneity"]["high"]
        lines.append(
            ("heterogeneity", f"{low:.4g} in the lowest {100 * data['spectrum']['ratio']:g} %, {high:.4g} above")
        )
    if "drift" in data:
        lines.append(("drift", f"mean {data['drift']['mean']:.4g}, cosine {data['drift']['cosine']:.3g}"))
        if spread := data["drift"]["accuracy_spread"]:
            lines.append(
                ("client accuracy", f"{spread['mean']:.1%} ± {spread['deviation']:.1%}, least {spread['least']:.1%}")
            )
    if "cka" in data:
        lines.append(("CKA by layer", "  ".join(f"{name} {value:.3f}" for name, value in data["cka"]["mean"].items())))
    if "embedding" in data:
        kinds = data["embedding"]["kinds"]
        lines.append(
            ("plane explains", "  ".join(f"{kind}s {sum(one['explained']):.0%}" for kind, one in kinds.items()))
        )
        lines.append(("spread", "  ".join(f"{kind}s {one['spread']:.4g}" for kind, one in kinds.items())))
        apart = {kind: one["separation"] for kind, one in kinds.items() if one.get("separation") is not None}
        if apart:
            lines.append(("silhouette of classes", "  ".join(f"{kind}s {value:.3f}" for kind, value in apart.items())))
    if "clusters" in data:
        found, numbers = data["clusters"], sorted(set(data["clusters"]["clusters"]))
        members = [[c for c, k in zip(found["clients"], found["clusters"], strict=True) if k == n] for n in numbers]
        lines.append(("clusters", "  ".join(f"({', '.join(map(str, sorted(some)))})" for some in members)))
        lines.append(("opposed in a cluster", ", ".join(map(str, sorted(found["opposed"]))) or "none"))
    if "hessian" in data:
        found = data["hessian"]
        lines.append(("eigenvalues", "  ".join(f"{value:.4g}" for value in found["eigenvalues"])))
        lines.append(("trace", f"{found['trace']:.4g} ± {found['trace_error']:.2g}"))
        lines.append((f"sharpness at {found['rho']:g}", f"{found['sharpness']:.4g}"))
    if "groups" in data:
        parts = sorted(data["groups"]["groups"].items(), key=lambda pair: pair[1])
        some = parts if len(parts) <= SHOWN else [*parts[: SHOWN // 2], *parts[-SHOWN // 2 :]]
        told = "  ".join(f"{name} {value:.1%}" for name, value in some)
        lines.append(("accuracy by group", told or "the data set names no groups of test samples"))
    if "landscape" in data:
        values = data["landscape"]["line"]["values"]
        known = [value for value in values if math.isfinite(value)]
        parts = [f"{min(known):.4g} to {max(known):.4g}"] if known else []
        parts += [f"not finite at {len(values) - len(known)} of {len(values)} points"] * (len(known) < len(values))
        lines.append(("loss on the line", ", ".join(parts)))
    return lines

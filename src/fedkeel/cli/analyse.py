"""`fedkeel analyse`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedkeel.cli.console import facts, say, stderr, stdout
from fedkeel.cli.pages import Json, argument, examples, option
from fedkeel.cli.run import OwnProblem, Trusting


@examples(
    "fedkeel analyse runs/fedavg-59601bb60e28",
    "fedkeel analyse runs/comparison --spectrum --drift --clients 20",
    "fedkeel analyse runs/fedavg-59601bb60e28 --landscape --directions eigen --radius 0.5",
)
def analyse(
    folder: Annotated[Path, argument(metavar="RUN", help="A run's folder, or one that holds several.")],
    spectrum: Annotated[bool, option("--spectrum", help="Where in the spectrum clients disagree.")] = False,
    drift: Annotated[bool, option("--drift", help="Drift, cosines, accuracy of each client.")] = False,
    cka: Annotated[bool, option("--cka", help="Similarity of the clients' features, layer by layer.")] = False,
    embedding: Annotated[bool, option("--embedding", help="Clients as points: PCA and t-SNE.")] = False,
    hessian: Annotated[bool, option("--hessian", help="Top eigenvalues, trace, sharpness.")] = False,
    landscape: Annotated[bool, option("--landscape", help="The loss along one and two directions.")] = False,
    clients: Annotated[int, option(metavar="N", min=2, help="How many clients are compared.")] = 10,
    samples: Annotated[int, option(metavar="N", min=2, help="At most so many samples of each.")] = 1000,
    bands: Annotated[int, option(metavar="M", min=1, help="Bands of the spectrum.")] = 10,
    directions: Annotated[str, option(metavar="NAME", help="Of a landscape: random or eigen.")] = "random",
    radius: Annotated[float | None, option(metavar="R", help="How far a landscape goes.")] = None,
    points: Annotated[int, option(metavar="N", help="Points along each direction; odd.")] = 21,
    rho: Annotated[float, option(metavar="RHO", help="Radius of the sharpness.")] = 0.05,
    device: Annotated[str, option(metavar="NAME", help="cpu, cuda or mps.")] = "cpu",
    problem: OwnProblem = None,
    trust: Trusting = False,
    json: Json = False,
) -> None:
    """Look closer at a trained run; the numbers go into the run's folder, where `fedkeel report` finds them.

    Without a choice: all of them.
    """
    from fedkeel.cli.training import runs_in
    from fedkeel.importing import Trust
    from fedkeel.problems.given import find_problem
    from fedkeel.runs.finished_run import load_run
    from fedkeel.runs.record import nonfinite_to_null
    from fedkeel.studies.diagnose import Extent
    from fedkeel.studies.diagnose import analyse as diagnose

    chosen = {
        "spectrum": spectrum, "drift": drift, "cka": cka, "embedding": embedding, "hessian": hessian,
        "landscape": landscape,
    }  # fmt: skip
    extent = Extent(
        clients=clients, samples=samples, bands=bands, radius=radius, points=points, rho=rho,
        directions=directions,  # type: ignore[arg-type]  # others are refused there
    )  # fmt: skip
    found: dict[str, Any] = {}
    for path in runs_in(folder):
        say(stderr(), "analysing", "bold", str(path))
        own = None if problem is None else find_problem(problem)
        done = load_run(path, problem=own, trust=Trust.given(trust))
        found[str(path)] = diagnose(done, [name for name, wanted in chosen.items() if wanted], extent, device)
    if json:
        from json import dumps

        typer.echo(dumps(nonfinite_to_null(found), indent=2))
        return
    console = stdout()
    for path_name, data in found.items():
        console.print(path_name, style="bold", soft_wrap=True)
        console.print(facts(pairs(data)))
        console.print()


def pairs(data: dict[str, Any]) -> list[tuple[str, str]]:
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
        shares = {kind: sum(found["explained"]) for kind, found in data["embedding"]["kinds"].items()}
        lines.append(("plane explains", "  ".join(f"{kind}s {share:.0%}" for kind, share in shares.items())))
    if "hessian" in data:
        found = data["hessian"]
        lines.append(("eigenvalues", "  ".join(f"{value:.4g}" for value in found["eigenvalues"])))
        lines.append(("trace", f"{found['trace']:.4g} ± {found['trace_error']:.2g}"))
        lines.append((f"sharpness at {found['rho']:g}", f"{found['sharpness']:.4g}"))
    if "landscape" in data:
        values = data["landscape"]["line"]["values"]
        lines.append(("loss on the line", f"{min(values):.4g} to {max(values):.4g}"))
    return lines

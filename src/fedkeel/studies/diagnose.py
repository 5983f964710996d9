"""Diagnostics of a run as plain data: what `fedkeel analyse` writes beside it, and what reports draw."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from fedkeel.analysis.curvature import gradient, hessian_product, loss_value, sharpness, top_eigenvalues, trace
from fedkeel.analysis.drift import accuracy_spread, cosines, drift
from fedkeel.analysis.embedding import pca
from fedkeel.analysis.filtered import by, compare_divergence, find_filter
from fedkeel.analysis.landscape import Landscape, line, plane, random_direction
from fedkeel.analysis.similarity import pairwise_cka
from fedkeel.analysis.spectrum import heterogeneity, summarise_bands
from fedkeel.core.states import write_text
from fedkeel.core.trees import Tree
from fedkeel.errors import RequestError, require_known
from fedkeel.rules import ByAgreement
from fedkeel.runs.environment import check_same_data
from fedkeel.runs.finished_run import Run
from fedkeel.runs.folder import read_json
from fedkeel.runs.record import nonfinite_to_null
from fedkeel.studies.embed import gather_points, project
from fedkeel.studies.extent import Extent
from fedkeel.studies.group_accuracy import measure_groups
from fedkeel.studies.subject import Subject

log = logging.getLogger("fedkeel")

ANALYSIS = "analysis"  # the sub-folder of a run


def measure_spectrum(subject: Subject, extent: Extent) -> dict[str, Any]:
    """Measure where in the spectrum clients disagree: gradients, perturbations (if any) and updates."""
    if len(subject.clients) < 2:
        raise RequestError("one client alone disagrees with nobody: a spectrum compares two.", "leave out --spectrum")
    kinds = {"gradient": subject.gradients, "perturbation": subject.perturbations, "update": subject.updates}
    high_pass = find_filter(subject.method.rules)
    low_high = heterogeneity(subject.gradients, by(high_pass))
    return {
        "clients": subject.clients,
        "bands": extent.bands,
        "kinds": {name: summarise_bands(tree, extent.bands) for name, tree in kinds.items() if tree is not None},
        "ratio": high_pass.ratio,
        "divergence": compare_divergence(subject.gradients, high_pass),
        "heterogeneity": {"low": low_high.low, "high": low_high.high},
    }


def measure_drift(subject: Subject, extent: Extent) -> dict[str, Any]:
    """Measure how far the clients move in one more round, how much they agree, and how well the model serves each."""
    accuracies = subject.accuracies()
    known = [one for one in accuracies or () if one is not None]
    return {
        "clients": subject.clients,
        "lengths": subject.updates.norm().tolist(),
        "cosines": cosines(subject.updates).tolist(),
        "accuracies": accuracies,
        "accuracy_spread": asdict(accuracy_spread(known)) if known else None,
    } | drift(subject.updates).named()


def measure_cka(subject: Subject, extent: Extent) -> dict[str, Any]:
    """Measure linear CKA between the clients' models after local training, by layer, on common test samples."""
    inputs = subject.test_samples(min(extent.samples, 500))
    features = [subject.features(module, inputs[:-1] or inputs) for module in subject.local_models]
    layers = {name: pairwise_cka([found[name] for found in features]) for name in features[0]}
    return {
        "clients": subject.clients,
        "layers": {name: table.tolist() for name, table in layers.items()},
        "mean": {name: off_diagonal_mean(table) for name, table in layers.items()},
    }


def off_diagonal_mean(table: Tensor) -> float:
    models = len(table)
    return float((table.sum() - table.trace()) / max(models * (models - 1), 1)) if models > 1 else 1.0


def embed_models(subject: Subject, extent: Extent) -> dict[str, Any]:
    """Draw perturbations, parameters and features of the clients' models as points in a plane.  (FedFFT fig. 4)"""
    (kinds,) = project([gather_points(subject, extent)], subject.seed)
    return {"clients": subject.clients, "kinds": kinds}


def cluster_clients(subject: Subject, extent: Extent) -> dict[str, Any]:
    """Put clients into clusters by the direction of their next updates, and compare them.  (FedSCAM, section 3)

    By the method's own rule, where it has one. `opposed` are those that count less in a cluster with dampening: they
    move against a longer update of their cluster.
    """
    own = subject.method.weights
    rule = own if isinstance(own, ByAgreement) else ByAgreement()
    rule = replace(rule, clusters=extent.clusters or rule.clusters, lam=0.5)
    updates = subject.updates
    rows = updates.buffer.cpu()
    factors = rule.opposition_factors({"delta": updates})
    return {
        "clients": subject.clients,
        "clusters": rule.find_clusters(updates)[1].tolist(),
        "cosines": cosines(updates).tolist(),
        "points": pca(rows, min(2, *rows.shape)).points.tolist(),
        "opposed": [client for client, factor in zip(subject.clients, factors.tolist(), strict=True) if factor < 1],
    }


def measure_hessian(subject: Subject, extent: Extent) -> dict[str, Any]:
    """Measure top eigenvalues and trace of the Hessian of the loss, and the sharpness at a radius."""
    loss = subject.loss_of_split(extent.split)
    product = hessian_product(loss, subject.params)
    count = min(extent.eigenvalues, subject.params.layout.size)
    top = top_eigenvalues(product, subject.params, count, extent.lanczos_steps, subject.seed)
    estimate = trace(product, subject.params, extent.probes, subject.seed)
    return {
        "split": extent.split,
        "loss": loss_value(loss, subject.params),
        "eigenvalues": top.values,
        "residuals": top.residuals,
        "trace": estimate.value,
        "trace_error": estimate.error,
        "rho": extent.rho,
        "sharpness": sharpness(loss, subject.params, extent.rho, steps=5),
    }


def measure_landscape(subject: Subject, extent: Extent) -> dict[str, Any]:
    """Measure the loss along one and two directions."""
    loss = subject.loss_of_split(extent.split)
    if extent.directions == "eigen":
        product = hessian_product(loss, subject.params)
        count = min(2, subject.params.layout.size)
        found = top_eigenvalues(product, subject.params, count, extent.lanczos_steps, subject.seed)
        if count < 2 or not any(found.values):
            raise RequestError("the loss is not curved along two directions here.", "--directions random")
        slope = gradient(loss, subject.params)
        ways_up = (Tree(row, subject.params.layout) for row in found.vectors.buffer)
        # an eigenvector has no sign of its own: uphill in every run, so that landscapes can be compared
        first, second = (-way if float(slope.dot(way)) < 0 else way for way in ways_up)
        usual, along = 0.5, "top Hessian eigenvectors"
    else:
        first, second = (random_direction(subject.params, subject.seed, number) for number in (0, 1))
        usual, along = 1.0, "random filter-normalised directions"
    radius = usual if extent.radius is None else extent.radius
    ways: tuple[Landscape, ...] = (
        line(loss, subject.params, first, radius, 2 * extent.points - 1, along),
        plane(loss, subject.params, first, second, radius, extent.points, along),
    )
    return {"split": extent.split, "line": ways[0].data(), "plane": ways[1].data()}


DIAGNOSTICS: dict[str, Callable[[Subject, Extent], dict[str, Any]]] = {
    "spectrum": measure_spectrum,
    "drift": measure_drift,
    "cka": measure_cka,
    "embedding": embed_models,
    "clusters": cluster_clients,
    "hessian": measure_hessian,
    "landscape": measure_landscape,
    "groups": measure_groups,
}
OF_SERVER = ("hessian", "landscape", "groups")
"""Those that look at the server's model alone."""


def analyse(
    run: Run,
    names: Iterable[str] = (),
    extent: Extent | None = None,
    device: str = "cpu",
    *,
    optional: bool | None = None,
) -> dict[str, dict[str, Any]]:
    """Take the named diagnostics of a run, all when none is named; write them beside a run that has a folder.

    `optional`: one that does not apply is left out, and a warning says why; else it is refused. Without a word: all
    are optional where none is named.
    """
    extent, wanted = extent or Extent(), list(names)
    optional, wanted = not wanted if optional is None else optional, wanted or [*DIAGNOSTICS]
    for name in wanted:
        require_known(name, DIAGNOSTICS, "unknown diagnostic", "diagnostics")
    subject = take_subject(run, extent, device)
    found = {}
    for name in wanted:
        try:
            found[name] = take_diagnostic(subject, name, extent) | describe(subject.round, extent)
        except RequestError as error:
            if not optional:
                raise
            log.warning("%s is left out: %s", name, error.message)
            continue
        if run.path is not None:
            write_diagnostic(run.path, name, found[name])
    tell_notes(found.values())
    return found


def take_diagnostic(subject: Subject, name: str, extent: Extent) -> dict[str, Any]:
    """Take one diagnostic; its `notes` say what it is not of, where that needs to be said."""
    if name in OF_SERVER:
        subject.require_whole_model()
    return DIAGNOSTICS[name](subject, extent) | note_limits(subject, name)


def note_limits(subject: Subject, name: str) -> dict[str, Any]:
    """Return what a reader must know of the models that a diagnostic looked at; nothing where all is as expected."""
    notes = [] if name in OF_SERVER else subject.describe_clients()
    notes += subject.describe_server() if name in (*OF_SERVER, "embedding") else []
    return {"notes": notes} if notes else {}


def tell_notes(found: Iterable[Mapping[str, Any]]) -> None:
    """Warn of each note of some diagnostics once."""
    for told in dict.fromkeys(note for data in found for note in data.get("notes", ())):
        log.warning("%s", told)


def embed_together(runs: Sequence[Run], extent: Extent | None = None, device: str = "cpu") -> list[dict[str, Any]]:
    """Embed the models of several runs in one plane; write it beside each run that has a folder.  (FedFFT fig. 4)"""
    extent = extent or Extent()
    subjects = (take_subject(run, extent, device) for run in runs)
    taken = [
        ({"clients": s.clients} | note_limits(s, "embedding"), s.round, s.seed, gather_points(s, extent))
        for s in subjects
    ]
    projected = project([points for *_, points in taken], taken[0][2], name_plane(runs))
    found = []
    for run, (facts, round, _, _), kinds in zip(runs, taken, projected, strict=True):
        found.append(facts | {"kinds": kinds} | describe(round, extent))
        if run.path is not None:
            write_diagnostic(run.path, "embedding", found[-1])
    tell_notes(found)
    return found


def name_plane(runs: Sequence[Run]) -> str:
    """Name the plane that runs share."""
    return " ".join(run.experiment.fingerprint() for run in runs)


def describe(round: int, extent: Extent) -> dict[str, Any]:
    """What a diagnostic was taken of."""
    return {"round": round, "which": extent.which, "extent": extent.changes()}


def is_known(run: Run, name: str, extent: Extent, plane: str | None = None) -> bool:
    """Whether a run's folder has this diagnostic of the model that is asked for, in this extent and plane."""
    found = {} if run.path is None else read_diagnostics(run.path).get(name, {})
    planes = {kind.get("plane") for kind in found.get("kinds", {}).values()} if name == "embedding" else {plane}
    wanted = describe(len(run.at(extent.which).records), extent)
    return planes == {plane} and {key: found.get(key) for key in wanted} == wanted


def take_subject(run: Run, extent: Extent, device: str) -> Subject:
    """Put the model that is asked for back on its data, which are those that it was trained on."""
    subject = Subject(run, clients=extent.clients, samples=extent.samples, device=device, which=extent.which)
    if run.path is not None:  # a folder that has changed is read again above
        check_same_data(run.path, run.plan, instead="")
    return subject


def write_diagnostic(folder: Path, name: str, data: Mapping[str, Any]) -> None:
    (folder / ANALYSIS).mkdir(exist_ok=True)
    text = json.dumps(nonfinite_to_null(data), indent=1, allow_nan=False)
    write_text(folder / ANALYSIS / f"{name}.json", f"{text}\n")


def read_diagnostics(folder: Path) -> dict[str, dict[str, Any]]:
    """Read what `analyse` left in a run's folder, by name."""
    files = {name: folder / ANALYSIS / f"{name}.json" for name in DIAGNOSTICS}
    return {name: read_json(file) for name, file in files.items() if file.exists()}

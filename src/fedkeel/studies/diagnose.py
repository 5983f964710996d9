"""Diagnostics of a run as plain data: what `fedkeel analyse` writes beside it, and what reports draw."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import Tensor

from fedkeel.analysis.curvature import hessian_product, loss_value, sharpness, top_eigenvalues, trace
from fedkeel.analysis.drift import accuracy_spread, cosines, drift
from fedkeel.analysis.embedding import pca, tsne
from fedkeel.analysis.landscape import Landscape, line, plane, random_direction
from fedkeel.analysis.similarity import layer_features, pairwise_cka
from fedkeel.analysis.spectrum import BANDS, heterogeneity, layer_divergence, summarise_bands
from fedkeel.core.rule import Local, Rule
from fedkeel.core.trees import Tree
from fedkeel.errors import RequestError, require_known
from fedkeel.randomness import key
from fedkeel.ranges import MOST, Count, NonNegative, Positive, Range
from fedkeel.rules import HighPass
from fedkeel.runs.finished_run import Run
from fedkeel.runs.folder import read_json, write_text
from fedkeel.runs.record import nonfinite_to_null
from fedkeel.studies.subject import Subject
from fedkeel.typed_values import check_fields

ANALYSIS = "analysis"  # the sub-folder of a run
CLASSES = 10  # that features are drawn of: more cannot be told apart
RATIO = 0.05  # of the filter that divergences are compared with, where the method has none


Several = Annotated[int, Range(2, MOST)]


@dataclass(frozen=True)
class Extent:
    """How much is looked at. `directions`: "random" (filter-normalised) or "eigen" (top Hessian eigenvectors)."""

    clients: Several = 10
    samples: Several = 1000
    bands: Count = BANDS
    eigenvalues: Count = 5
    lanczos_steps: Count = 30
    probes: Count = 20
    directions: Literal["random", "eigen"] = "random"
    radius: Positive | None = None
    points: Count = 21
    rho: NonNegative = 0.05

    def __post_init__(self) -> None:
        check_fields(self, RequestError, "an analysis")
        if self.points < 3 or self.points % 2 == 0:
            raise RequestError(f"a landscape needs an odd number of points, at least 3: {self.points}", "21 is usual")


def measure_spectrum(subject: Subject, extent: Extent) -> dict[str, Any]:
    """Measure where in the spectrum clients disagree: gradients, perturbations (if any) and updates."""
    kinds = {"gradient": subject.gradients, "perturbation": subject.perturbations, "update": subject.updates}
    high_pass = find_filter(subject)
    low_high = heterogeneity(subject.gradients, by(high_pass))
    return {
        "clients": subject.clients,
        "bands": extent.bands,
        "kinds": {name: summarise_bands(tree, extent.bands) for name, tree in kinds.items() if tree is not None},
        "ratio": high_pass.ratio,
        "divergence": {
            "before": layer_divergence(subject.gradients),
            "after": layer_divergence(subject.gradients, by(high_pass)),
        },
        "heterogeneity": {"low": low_high.low, "high": low_high.high},
    }


def find_filter(subject: Subject) -> HighPass:
    """Find the method's own filter, or one to compare with."""
    return next((rule for rule in subject.method.rules if isinstance(rule, HighPass)), HighPass(RATIO))


def by(rule: Rule) -> Callable[[Tree], Tree]:
    """Turn a filter into a function of a tree, stacked or not."""

    def filtered(tree: Tree) -> Tree:
        zero, count = tree.scalar(), torch.zeros((), dtype=torch.int64)
        return rule.step(tree, {}, Local(tree, tree, {}, None, zero, count, zero, count))[0]

    return filtered


def measure_drift(subject: Subject, extent: Extent) -> dict[str, Any]:
    """Measure how far the clients move in one more round, how much they agree, and how well the model serves each."""
    accuracies = subject.accuracies()
    return {
        "clients": subject.clients,
        "lengths": subject.updates.norm().tolist(),
        "cosines": cosines(subject.updates).tolist(),
        "accuracies": accuracies,
        "accuracy_spread": None if not accuracies else asdict(accuracy_spread(accuracies)),
    } | drift(subject.updates).named()


def measure_cka(subject: Subject, extent: Extent) -> dict[str, Any]:
    """Measure linear CKA between the clients' models after local training, by layer, on common test samples."""
    inputs = subject.test_samples(min(extent.samples, 500))
    features = [layer_features(module, *(inputs[:-1] or inputs)) for module in subject.local_models]
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
    """Draw perturbations, parameters and features of the clients' models as points in a plane.  (FedFFT fig. 4)

    Parameters are w_i − w_t: a projection does not see the common start. Features have a point for each class.
    """
    clients = [f"client {client}" for client in subject.clients]
    rows = {"parameter": Points(subject.updates.buffer, clients)}
    if subject.perturbations is not None:
        rows["perturbation"] = Points(subject.perturbations.buffer, clients)
    if subject.task.module is not None:
        rows["feature"] = features_by_class(subject, extent)
    of = key(subject.seed, "t-SNE")
    return {"clients": subject.clients, "kinds": {name: project_points(points, of) for name, points in rows.items()}}


class Points(NamedTuple):
    """Rows to be drawn in a plane, what each of them is, and the class it is about where there is one."""

    rows: Tensor
    names: list[str]
    classes: list[int] | None = None


def features_by_class(subject: Subject, extent: Extent) -> Points:
    """Compute the mean feature of each class in each client's model and in the server's, before the last layer.

    Of the first ten classes, on common test samples; where samples have no class, all their features in one row.
    """
    *inputs, labels = subject.test_samples(min(extent.samples, 500))
    inputs = inputs or [labels]
    names = [*(f"client {client}" for client in subject.clients), "server"]
    models = [*subject.local_models, subject.model(subject.params)]
    found = [take_before_last(layer_features(module, *inputs)) for module in models]
    if labels.dim() != 1 or labels.is_floating_point():
        return Points(torch.stack([table.flatten() for table in found]), names)
    classes = sorted(set(labels.tolist()))[:CLASSES]
    means = [table[labels == c].mean(0) for table in found for c in classes]
    return Points(torch.stack(means), [f"{name}, class {c}" for name in names for c in classes], classes * len(names))


def take_before_last(features: Mapping[str, Tensor]) -> Tensor:
    """Take what goes into the last layer, as the layer before it gives it out."""
    return [*features.values()][-2:][0]


def project_points(points: Points, of: int) -> dict[str, Any]:
    table = points.rows.cpu()
    plane = pca(table, min(2, *table.shape))
    found = {"pca": plane.points.tolist(), "explained": plane.explained.tolist(), "names": points.names}
    if points.classes is not None:
        found["classes"] = points.classes
    if len(table) >= 4:
        found["tsne"] = tsne(table, of).tolist()
    return found


def measure_hessian(subject: Subject, extent: Extent) -> dict[str, Any]:
    """Measure top eigenvalues and trace of the Hessian of the training loss, and the sharpness at a radius."""
    product = hessian_product(subject.loss, subject.params)
    count = min(extent.eigenvalues, subject.params.layout.size)
    top = top_eigenvalues(product, subject.params, count, extent.lanczos_steps, subject.seed)
    estimate = trace(product, subject.params, extent.probes, subject.seed)
    return {
        "loss": loss_value(subject.loss, subject.params),
        "eigenvalues": top.values,
        "residuals": top.residuals,
        "trace": estimate.value,
        "trace_error": estimate.error,
        "rho": extent.rho,
        "sharpness": sharpness(subject.loss, subject.params, extent.rho, steps=5),
    }


def measure_landscape(subject: Subject, extent: Extent) -> dict[str, Any]:
    """Measure the training loss along one and two directions."""
    if extent.directions == "eigen":
        product = hessian_product(subject.loss, subject.params)
        found = top_eigenvalues(product, subject.params, 2, extent.lanczos_steps, subject.seed)
        first, second = (Tree(row, subject.params.layout) for row in found.vectors.buffer)
        usual, along = 0.5, "top Hessian eigenvectors"
    else:
        first, second = (random_direction(subject.params, subject.seed, number) for number in (0, 1))
        usual, along = 1.0, "random filter-normalised directions"
    radius = usual if extent.radius is None else extent.radius
    ways: tuple[Landscape, ...] = (
        line(subject.loss, subject.params, first, radius, 2 * extent.points - 1, along),
        plane(subject.loss, subject.params, first, second, radius, extent.points, along),
    )
    return {"line": ways[0].data(), "plane": ways[1].data()}


DIAGNOSTICS: dict[str, Callable[[Subject, Extent], dict[str, Any]]] = {
    "spectrum": measure_spectrum,
    "drift": measure_drift,
    "cka": measure_cka,
    "embedding": embed_models,
    "hessian": measure_hessian,
    "landscape": measure_landscape,
}


def analyse(
    run: Run, names: Iterable[str] = (), extent: Extent | None = None, device: str = "cpu"
) -> dict[str, dict[str, Any]]:
    """Take the named diagnostics of a run, all when none is named; write them beside a run that has a folder."""
    extent, wanted = extent or Extent(), list(names) or [*DIAGNOSTICS]
    for name in wanted:
        require_known(name, DIAGNOSTICS, "unknown diagnostic", "diagnostics")
    subject = Subject(run, clients=extent.clients, samples=extent.samples, device=device)
    found = {}
    for name in wanted:
        found[name] = DIAGNOSTICS[name](subject, extent) | {"round": subject.round}
        if run.path is not None:
            write_diagnostic(run.path, name, found[name])
    return found


def write_diagnostic(folder: Path, name: str, data: Mapping[str, Any]) -> None:
    (folder / ANALYSIS).mkdir(exist_ok=True)
    text = json.dumps(nonfinite_to_null(data), indent=1, allow_nan=False)
    write_text(folder / ANALYSIS / f"{name}.json", f"{text}\n")


def read_diagnostics(folder: Path) -> dict[str, dict[str, Any]]:
    """Read what `analyse` left in a run's folder, by name."""
    files = {name: folder / ANALYSIS / f"{name}.json" for name in DIAGNOSTICS}
    return {name: read_json(file) for name, file in files.items() if file.exists()}

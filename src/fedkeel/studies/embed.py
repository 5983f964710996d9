"""Clients' models as points in a plane: their perturbations, parameters and features, alone or with other runs'."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedkeel.analysis.embedding import pca, separation, spread, tsne
from fedkeel.core.trees import Tree
from fedkeel.errors import RequestError, require_known
from fedkeel.problems.predictions import COUNTED, measure_hits
from fedkeel.randomness import key
from fedkeel.studies.extent import Extent
from fedkeel.studies.subject import Subject

CLASSES = 10  # that features are drawn of: more cannot be told apart
MOST = 500  # test samples


class Points(NamedTuple):
    """Rows to be drawn in a plane, what each of them is, and the class it is about where there is one."""

    rows: Tensor
    names: list[str]
    classes: list[int] | None = None


def gather_points(subject: Subject, extent: Extent) -> dict[str, Points]:
    """Gather the rows of a run by kind.

    Parameters are w_i − w_t: a projection does not see the common start. Features have a point for each class in each
    model, or for each test sample in the server's model and in the clients'.
    """
    if extent.each == "sample":
        return gather_samples(subject, extent)
    clients = [f"client {client}" for client in subject.clients]
    found = {"parameter": Points(rows_of(subject.updates, extent.tensor), clients)}
    if subject.perturbations is not None:
        found["perturbation"] = Points(rows_of(subject.perturbations, extent.tensor), clients)
    if subject.task.module is not None:
        found["feature"] = features_by_class(subject, extent)
    elif extent.layer is not None:
        raise RequestError("this problem has no module, only params, so it has no layer.", "--tensor NAME chooses one")
    return found


def rows_of(tree: Tree, name: str | None) -> Tensor:
    """One row for each client: all its numbers, or those of one tensor."""
    return tree.buffer if name is None else tree[require_known(name, tree, "no tensor is called", "tensors")].flatten(1)


def features_by_class(subject: Subject, extent: Extent) -> Points:
    """Compute the mean feature of each class in each client's model and in the server's.

    Of the first ten classes, on common test samples; where samples have no class, all their features in one row.
    """
    inputs, labels = test_inputs(subject, extent)
    names = [*(f"client {client}" for client in subject.clients), "server"]
    models = [*subject.local_models, subject.model(subject.params)]
    found = [take_layer(subject, module, inputs, extent.layer) for module in models]
    if labels is None:
        return Points(torch.stack([table.flatten() for table in found]), names)
    classes = sorted(set(labels.tolist()))[:CLASSES]
    means = [table[labels == c].mean(0) for table in found for c in classes]
    return Points(torch.stack(means), [f"{name}, class {c}" for name in names for c in classes], classes * len(names))


def gather_samples(subject: Subject, extent: Extent) -> dict[str, Points]:
    """Take the features of each test sample in the server's model, and of fewer in each client's.  (FedWMSAM fig. 5)"""
    inputs, labels = test_inputs(subject, extent)
    if labels is None:
        raise RequestError("these samples have no classes, so their points cannot be told apart.", "--each class")
    kept = torch.isin(labels, torch.tensor(sorted(set(labels.tolist()))[:CLASSES], device=labels.device))
    inputs, labels = [one[kept] for one in inputs], labels[kept]
    server = take_layer(subject, subject.model(subject.params), inputs, extent.layer)
    few = max(1, len(labels) // len(subject.clients))  # of each client, so that there are as many points in all
    some = slice(0, few * (len(labels) // few), len(labels) // few)  # all over them: they may be sorted by class
    rows = [take_layer(subject, module, [one[some] for one in inputs], extent.layer) for module in subject.local_models]
    names = [f"client {client}" for client in subject.clients for _ in range(few)]
    return {
        "sample": Points(server, ["server"] * len(labels), labels.tolist()),
        "client sample": Points(torch.cat(rows), names, labels[some].tolist() * len(subject.clients)),
    }


@torch.no_grad()
def test_inputs(subject: Subject, extent: Extent) -> tuple[list[Tensor], Tensor | None]:
    """The inputs of common test samples, and their classes where they have one each.

    Samples whose target names no class are left out; where all are such, samples have no classes.
    """
    samples = subject.test_samples(min(extent.samples, MOST))
    labels, inputs = samples[-1], samples[:-1] or samples
    if labels.dim() != 1 or labels.is_floating_point():
        return [*inputs], None
    if subject.task.label_beyond is not None:
        return [*inputs], labels
    output = subject.task.predict(subject.model(subject.params), samples)
    there = measure_hits(output, labels, subject.task.ignored).get(COUNTED, torch.ones_like(labels, dtype=torch.bool))
    return ([one[there] for one in inputs], labels[there]) if there.any() else ([*inputs], None)


def take_layer(subject: Subject, module: nn.Module, inputs: Sequence[Tensor], name: str | None) -> Tensor:
    """Take a layer's output; without a name that of the layer before the last, which goes into the last."""
    features = subject.features(module, inputs)
    if name is None:
        return [*features.values()][-2:][0]
    return features[require_known(name, features, "no layer is called", "layers")]


# ---- in a plane ----------------------------------------------------------------------------------------------------
def project(runs: Sequence[Mapping[str, Points]], seed: int, plane: str | None = None) -> list[dict[str, Any]]:
    """Project the points of runs, each kind of all runs into one plane, which then has a name.

    Beside places in the plane stand numbers of the rows themselves: how far points are from the mean of their class,
    and how well classes are separated.
    """
    kinds = dict.fromkeys(kind for points in runs for kind in points)
    found: list[dict[str, Any]] = [{} for _ in runs]
    for kind in kinds:
        here = [number for number, points in enumerate(runs) if kind in points]
        for number, data in zip(here, project_kind([runs[i][kind] for i in here], key(seed, "t-SNE")), strict=True):
            found[number][kind] = data | ({} if plane is None else {"plane": plane})
    return found


def project_kind(several: Sequence[Points], of: int) -> list[dict[str, Any]]:
    """Find one plane for the rows of all runs, and give each run its own points in it."""
    tables = [points.rows.cpu() for points in several]
    if len({table.shape[1] for table in tables}) > 1:
        raise RequestError("models of different shapes have no plane in common.", "leave out --shared")
    table = torch.cat(tables)
    flat = pca(table, min(2, *table.shape))
    near = tsne(table, of) if len(table) >= 4 else None
    ends = torch.tensor([len(one) for one in tables]).cumsum(0).tolist()
    found = []
    for points, rows, end in zip(several, tables, ends, strict=True):
        part = slice(end - len(rows), end)
        data: dict[str, Any] = {
            "pca": flat.points[part].tolist(),
            "explained": flat.explained.tolist(),
            "names": points.names,
        }
        data |= {"spread": spread(rows, points.classes)}
        if points.classes is not None:
            data |= {"classes": points.classes, "separation": separation(rows, points.classes)}
        found.append(data | ({} if near is None else {"tsne": near[part].tolist()}))
    return found

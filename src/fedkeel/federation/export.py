"""An experiment as a Flower app: a folder for `flwr run`, with the files that run it in containers and by systemd."""

from __future__ import annotations

import ast
import json
import logging
import re
import secrets
from collections.abc import Mapping, Sequence
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import tomli_w
import torch

from fedkeel import __version__
from fedkeel.core.states import write_text
from fedkeel.errors import ExperimentError, FolderError, RequestError, writing
from fedkeel.federation.local_data import FOLDER, PARTITION, describe_form
from fedkeel.federation.own_problem import describe_sample, show_sample
from fedkeel.federation.scoring_place import check_validation
from fedkeel.federation.site_files import LABEL, check_count, check_order, read_columns, write_columns
from fedkeel.importing import path_with_here
from fedkeel.methods.named import own_names
from fedkeel.problems.problem import Problem
from fedkeel.runs.experiment import PYTHON, Experiment
from fedkeel.runs.plan import Division
from fedkeel.text import split_words

log = logging.getLogger("fedkeel")

SCRIPTS = ("make_keys.sh", "superlink.sh", "supernode.sh")
FILES = ("pyproject.toml", "client_app.py", "server_app.py", *SCRIPTS, "README.md")
PLAIN = {
    "superlink.service": "fedkeel-superlink.service",
    "supernode@.service": "fedkeel-supernode@.service",
    "status.timer": "fedkeel-status.timer",
}
"""Templates that are copied as they are, and what they are called in the app."""


def export(
    experiment: Experiment,
    folder: Path,
    *,
    data: str = PARTITION,
    clients: int = 0,
    problem: str | None = None,
    columns: str = "",
    label: str = LABEL,
) -> list[Path]:
    """Write the app and return its files.

    `data` is "partition" (every node has all data and takes its part), "folder" (each node's own files, in its
    data-dir) or "module:function" (a loader of the user's). Of the last two, `clients` says how many there are.
    `problem` names the problem of the experiment, whose module travels with the app; `columns` and `label` say which
    columns of tables are inputs, between what their values lie (`age=0:120`), and which is predicted. Without `columns`
    sites read those of the problem's own tables, in their order.
    """
    source, saved = experiment.plan.source, experiment.save()
    if isinstance(source, Problem):
        if problem is None:
            raise ExperimentError(
                "a problem that was made in a program cannot travel.",
                "put it into a module and name it: fedkeel export flower my_module:problem app",
            )
        saved["problem"] = problem
    if data not in (PARTITION, FOLDER) and ":" not in data:
        raise RequestError(f"unknown source of data: {data}", "use partition, folder or module:function")
    check_validation(experiment.plan.validation, data)
    own = [name for name in (data, problem, *own_names(experiment.save())) if name is not None and ":" in name]
    if made := next((name for name in own if name.startswith((PYTHON, "__main__:"))), None):
        raise ExperimentError(
            f"what was made in a program cannot travel: {made}", "put it into a module and name it: my_module:Name"
        )
    inputs = source.columns if isinstance(source, Problem) and data == FOLDER else None
    columns = columns or write_columns(inputs or ())
    named = read_columns(split_words(columns), label)
    if isinstance(source, Problem) and len(like := show_sample(source)) == 2:
        check_count(named, like)
    check_order(named, inputs or ())
    if data != PARTITION and clients < 1:
        raise RequestError("how many clients have data of their own?", "--clients 10")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FolderError(f"{folder} is there already and is not empty.", "choose a new folder")
    if data != PARTITION:
        nodes = clients
    else:
        nodes = len(source.data.sizes) if isinstance(source, Problem) else getattr(source.partition, "clients", 3)
    values = name_app(experiment) | {
        "data": data, "clients": str(clients if data != PARTITION else 0), "nodes": str(nodes), "last": str(nodes - 1),
        "trust": ", trust=True" if own else "",
        "columns": json.dumps(columns)[1:-1], "label": json.dumps(label)[1:-1],
    } | describe_data(data, source)  # fmt: skip
    with writing(folder, "choose another folder"):
        folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        text = read_template(name)
        write_text(folder / name, text if name in SCRIPTS else text.format(**values))
    write_text(folder / "experiment.toml", tomli_w.dumps(saved))
    written = [folder / name for name in (*FILES, "experiment.toml")] + copy_modules(own, folder)
    return written + write_deploy_files(folder, values, nodes, data == FOLDER)


def copy_modules(names: Sequence[str], folder: Path) -> list[Path]:
    """Copy the modules of these names into the app, where they travel with it, and what they import from beside them.

    A package, and what is installed, is to be installed on every machine; that is logged.
    """
    copied, waiting = [], list(dict.fromkeys(name.partition(":")[0] for name in names))
    for name in waiting:  # it grows
        with path_with_here():
            found = find_spec(name) if "." not in name else None
        if found is None or not found.origin or Path(found.origin).stem != name or "site-packages" in found.origin:
            log.warning("%s does not travel with the app: install it on every machine", name)
            continue
        if (folder / f"{name}.py").exists():
            raise ExperimentError(f"a module of an app cannot be called {name}.", "rename it")
        source = Path(found.origin)
        write_text(folder / f"{name}.py", source.read_text(encoding="utf-8"))
        copied.append(folder / f"{name}.py")
        waiting += [beside for beside in imported_beside(source) if beside not in waiting]
    return copied


def imported_beside(module: Path) -> list[str]:
    """Name the modules and packages that a module imports from its own folder."""
    names: list[str] = []
    try:
        parts = ast.walk(ast.parse(module.read_bytes()))
    except (SyntaxError, ValueError) as error:
        raise ExperimentError(f"{module} cannot be read as Python: {error}", "mend it first") from None
    for part in parts:
        if isinstance(part, ast.Import):
            names += [one.name for one in part.names]
        elif isinstance(part, ast.ImportFrom) and part.module and not part.level:
            names.append(part.module)
    tops = dict.fromkeys(name.partition(".")[0] for name in names)
    return [
        top for top in tops if any((module.parent / file).is_file() for file in (f"{top}.py", f"{top}/__init__.py"))
    ]


FEW = " (`--clients 3`)"


def describe_data(data: str, source: Division | Problem) -> dict[str, str]:
    """Write for the app's README how a node finds its data."""
    own = isinstance(source, Problem)
    form = describe_sample(source) if isinstance(source, Problem) else describe_form(source.card)
    if data == PARTITION:
        what = "all data of the problem" if isinstance(source, Problem) else source.card.name
        few = "" if own else "\n(`--set partition.clients=3`)"
        return {"settings": "", "few": few, "about_data": f"Every node has {what} and takes its part of it."}
    if data == FOLDER:
        kinds = "CSV or Parquet\ntables, or images in a folder for each class" if own else (
            "`train_images.npy` and\n`train_labels.npy`"
        )  # fmt: skip
        about = (
            f"Each node has its own data in the folder that its setting `data-dir` names: {kinds}:\n"
            f"{form}.\nPut each node's own folder in place of `/data/site-$i` below."
        )
        return {"settings": ' "data-dir=\\"/data/site-$i\\""', "few": FEW, "about_data": about}
    about = (
        f"Each node has its own data, which `{data}` reads with the node's settings: {form}.\n"
        f"Put what it reads of the settings in place of `table` below."
    )
    return {"settings": ' "table=\\"/data/site-$i.parquet\\""', "few": FEW, "about_data": about}


def name_app(experiment: Experiment) -> dict[str, str]:
    """What an app is called, and where its server writes: each export has a place of its own."""
    method, rounds, source = experiment.plan.method.name, experiment.plan.rounds, experiment.plan.source
    dataset = source.title if isinstance(source, Problem) else source.dataset
    name = re.sub(r"[^a-z0-9]+", "-", f"{method}-{dataset}".lower()).strip("-")[:32].strip("-")
    own = secrets.token_hex(2)
    title = json.dumps(f"{method} on {dataset}, {rounds} rounds")[1:-1]  # quotes would end a TOML string
    return {"name": name, "title": title, "out": f"~/fedkeel-runs/{name}-{experiment.fingerprint()}-{own}"}


# ---- files that run an app -----------------------------------------------------------------------------------------
def write_deploy_files(folder: Path, values: Mapping[str, str], nodes: int, own_folders: bool) -> list[Path]:
    """Write them into the app's folder `deploy`; `own_folders`: each node reads its data-dir."""
    place = folder / "deploy"
    for template, name in PLAIN.items():
        write_text(place / name, read_template(template))
    versions = {"version": __version__, "torch": torch.__version__.partition("+")[0]}
    write_text(place / "Dockerfile", read_template("Dockerfile").format(**versions))
    run = values["out"].removeprefix("~/")
    write_text(place / "fedkeel-status.service", read_template("status.service").format(run=run))
    data = ', "${{SITE_{node}:?the folder of node {node}}}:/data:ro"' if own_folders else ""
    settings = ", 'data-dir=\"/data\"'" if own_folders else ""
    service = read_template("compose_node.yaml")
    services = "".join(service.format(node=i, settings=settings, data=data.format(node=i)) for i in range(nodes))
    states = "".join(f", state-{i}: {{}}" for i in range(nodes))
    project = f"fedkeel-{Path(run).name}"  # volumes and images of another app have other names
    facts = {"nodes": nodes, "last": nodes - 1, "project": project, "services": services, "states": states}
    write_text(place / "compose.yaml", read_template("compose.yaml").format(**facts))
    return [place / name for name in ("Dockerfile", *PLAIN.values(), "fedkeel-status.service", "compose.yaml")]


def read_template(name: str) -> str:
    """Read a template of this package."""
    return files("fedkeel.federation").joinpath("templates", f"{name}.template").read_text(encoding="utf-8")

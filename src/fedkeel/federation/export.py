"""An experiment as a Flower app: a folder for `flwr run`."""

from __future__ import annotations

import json
import re
import secrets
from importlib.resources import files
from pathlib import Path

import tomli_w

from fedkeel.data.dataset import DatasetCard
from fedkeel.errors import ExperimentError, FolderError, RequestError, writing
from fedkeel.federation.local_data import FOLDER, PARTITION, describe_form
from fedkeel.methods.named import own_names
from fedkeel.problems.problem import Problem
from fedkeel.runs.experiment import Experiment
from fedkeel.runs.folder import write_text

SCRIPTS = ("make_keys.sh", "superlink.sh", "supernode.sh")
FILES = ("pyproject.toml", "client_app.py", "server_app.py", *SCRIPTS, "README.md")


def export(experiment: Experiment, folder: Path, *, data: str = PARTITION, clients: int = 0) -> list[Path]:
    """Write the app and return its files.

    `data` is "partition" (every node has the data set and takes its part), "folder" (each node's own arrays, in its
    data-dir) or "module:function" (a loader of the user's). Of the last two, `clients` says how many there are.
    """
    source = experiment.plan.source
    if isinstance(source, Problem):
        raise ExperimentError(
            "only an experiment with a data set can be exported: a problem from Python cannot travel.",
            'dataset = "cifar10" with --data folder trains on each node\'s own files of that form',
        )
    if data not in (PARTITION, FOLDER) and ":" not in data:
        raise RequestError(f"unknown source of data: {data}", "use partition, folder or module:function")
    if data != PARTITION and clients < 1:
        raise RequestError("how many clients have data of their own?", "--clients 10")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FolderError(f"{folder} is there already and is not empty.", "choose a new folder")
    nodes = clients if data != PARTITION else getattr(source.partition, "clients", 3)
    values = name_app(experiment) | {
        "data": data, "clients": str(clients if data != PARTITION else 0), "nodes": str(nodes), "last": str(nodes - 1),
        "trust": ", trust=True" if ":" in data or any(own_names(experiment.save())) else "",
    } | describe_data(data, source.card)  # fmt: skip
    with writing(folder, "choose another folder"):
        folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        text = files("fedkeel.federation").joinpath("templates", f"{name}.template").read_text(encoding="utf-8")
        write_text(folder / name, text if name in SCRIPTS else text.format(**values))
    write_text(folder / "experiment.toml", tomli_w.dumps(experiment.save()))
    return [folder / name for name in (*FILES, "experiment.toml")]


def describe_data(data: str, card: DatasetCard) -> dict[str, str]:
    """Say in the app's README what a node is told about its data."""
    if data == PARTITION:
        return {"settings": "", "about_data": f"Every node has {card.name} and takes its part of it."}
    if data == FOLDER:
        about = (
            f"Each node has its own data in the folder that its setting `data-dir` names: `train_images.npy` and\n"
            f"`train_labels.npy`: {describe_form(card)}.\nPut each node's own folder in place of `/data/site-$i` below."
        )
        return {"settings": ' "data-dir=\\"/data/site-$i\\""', "about_data": about}
    about = (
        f"Each node has its own data, which `{data}` reads with the node's settings: {describe_form(card)}.\n"
        f"Put what it reads of the settings in place of `table` below."
    )
    return {"settings": ' "table=\\"/data/site-$i.parquet\\""', "about_data": about}


def name_app(experiment: Experiment) -> dict[str, str]:
    """What an app is called, and where its server writes: each export has a place of its own."""
    method, dataset, rounds = experiment.plan.method.name, experiment.dataset, experiment.plan.rounds
    name = re.sub(r"[^a-z0-9]+", "-", f"{method}-{dataset}".lower()).strip("-")[:32].strip("-")
    own = secrets.token_hex(2)
    title = json.dumps(f"{method} on {dataset}, {rounds} rounds")[1:-1]  # quotes would end a TOML string
    return {"name": name, "title": title, "out": f"~/fedkeel-runs/{name}-{experiment.fingerprint()}-{own}"}

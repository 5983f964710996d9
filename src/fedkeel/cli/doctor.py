"""`fedkeel doctor`: what this machine has, and what an experiment would need of it."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, requires
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from fedkeel.cli.console import count, facts, in_json, stdout
from fedkeel.cli.options import Trusting
from fedkeel.cli.pages import Json, argument, examples
from fedkeel.text import byte_size

if TYPE_CHECKING:
    from fedkeel.runs.experiment import Experiment

PACKAGES = ("fedkeel", "torch", "numpy", "safetensors", "scikit-learn", "typer", "rich")
Rows = Iterable[tuple[str, str]]


@examples("fedkeel doctor", "fedkeel doctor experiment.toml")
def doctor(
    file: Annotated[
        Path | None,
        argument(metavar="[EXPERIMENT.toml]", help="Estimate the memory this needs, and try its network stacked."),
    ] = None,
    trust: Trusting = False,
    json: Json = False,
) -> None:
    """Show what this machine has: versions, devices, engines, data, free space.

    With an experiment file: also how much memory it needs, and which operations of its network run stacked.
    """
    sections: dict[str, Rows] = {
        "Versions": list_versions(),
        "Devices": list_devices(),
        "Engines": list_engines(),
        "Extras": list_extras(list_requirements()),
        "Data": list_data(),
        "Free": list_free(),
    }
    if file is not None:
        from fedkeel.cli.settings import Request, read_request

        for asked in read_request(Request(file=file, file_hint="give an experiment's .toml file", trust=trust)):
            sections[f"Memory for {asked.label}, seed {asked.experiment.seed}"] = list_memory(asked.experiment)
            sections[f"The network of {asked.label} with stacked clients"] = try_network(asked.experiment)
    if json:
        typer.echo(in_json({heading: dict(rows) for heading, rows in sections.items()}))
        return
    console = stdout()
    for heading, rows in sections.items():
        console.print(Text(heading, "bold underline"))
        console.print(facts((f"  {name}", value) for name, value in rows))
        console.print()


def list_versions() -> Iterator[tuple[str, str]]:
    from fedkeel.runs.environment import version_of

    yield "python", sys.version.split()[0]
    for name in PACKAGES:
        yield name, version_of(name) or "not installed as a package"


def list_devices() -> Iterator[tuple[str, str]]:
    import torch

    from fedkeel.engines.machine import cores

    yield "cpu", f"{cores()} core{'s' if cores() != 1 else ''} for this process"
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            found = torch.cuda.get_device_properties(number)
            yield f"cuda:{number}", f"{found.name}, {byte_size(found.total_memory)}"
    else:
        yield "cuda", f"none: {'no GPU is visible' if torch.version.cuda else 'this PyTorch was built without CUDA'}"
    yield "mps", "yes" if torch.backends.mps.is_available() else "none: only on Apple silicon"


def list_engines() -> Iterator[tuple[str, str]]:
    """Which can run here, and why not the others."""
    import torch

    from fedkeel.engines.choose import ENGINES
    from fedkeel.engines.machine import cores

    gpu = torch.cuda.is_available()
    flower = [name for name in ("flwr", "ray") if find_spec(name) is None]
    ray = "no: needs ray: pip install 'fedkeel[ray]'" if find_spec("ray") is None else "yes: workers on a Ray cluster"
    told = {
        "serial": "yes: one client after another, on any device",
        "processes": f"yes: {cores()} workers on the CPU" if cores() > 1 else "yes, but one core gains nothing by it",
        "stacked": "yes: many clients at once" + ("" if gpu else "; pays on a GPU, and there is none here"),
        "flower": f"no: needs {' and '.join(flower)}: pip install 'fedkeel[flower]'" if flower else "yes",
        "ray": ray,
        "ray-stacked": ray,
    }
    for name in ENGINES:
        yield name, told.get(name, "yes")


def list_requirements() -> list[str]:
    try:
        return requires("fedkeel") or []
    except PackageNotFoundError:
        return []


def list_extras(required: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Packages that only some features need: here, or the command that installs them."""
    from fedkeel.runs.environment import version_of

    found: dict[str, list[str]] = {}
    for line in required:
        match = re.match(r"([\w.-]+).*;.*extra\s*==\s*[\"']([\w-]+)[\"']", line)
        if match:
            found.setdefault(match[2], []).append(match[1])
    for extra, packages in found.items():
        missing = [name for name in packages if version_of(name) is None]  # modules have other names: pillow, PIL
        yield extra, f"needs {', '.join(missing)}: pip install 'fedkeel[{extra}]'" if missing else "installed"
    for name in ("timm", "torchvision"):
        yield name, "installed" if find_spec(name) else f"for --model {name}:NAME: pip install {name}"


def list_data() -> Iterator[tuple[str, str]]:
    from fedkeel.cli.fetching import present
    from fedkeel.data import DATASETS, data_root

    here = [name for name in DATASETS if present(name)]
    yield "folder", f"{data_root()}{'' if data_root().exists() else ' (not there yet)'}"
    yield "here", ", ".join(here)
    yield "not here", ", ".join(name for name in DATASETS if name not in here) or "none"


def list_free() -> Iterator[tuple[str, str]]:
    import torch

    from fedkeel.data import data_root
    from fedkeel.engines.memory import free_bytes

    for name, path in (("disk, runs", Path.cwd()), ("disk, data", data_root())):
        there = next(folder for folder in (path, *path.parents) if folder.exists())
        yield name, byte_size(shutil.disk_usage(there).free)
    yield "memory", byte_size(free_bytes(torch.device("cpu")))


def try_network(experiment: Experiment) -> Iterator[tuple[str, str]]:
    """What the stacked engine does with the experiment's network, by a pass of two clients."""
    from fedkeel.cli.estimate import make_task
    from fedkeel.data.clients import UnequalSamplesError
    from fedkeel.engines.stacked.engine import describe_network
    from fedkeel.errors import ModelError

    try:
        yield from describe_network(make_task(experiment.plan, samples=2)).items()
    except (ModelError, UnequalSamplesError) as error:
        yield "serial", f"{error.message.rstrip('.')}; the engine auto trains one client after another"


def list_memory(experiment: Experiment) -> Iterator[tuple[str, str]]:
    import torch

    from fedkeel.cli.estimate import estimate
    from fedkeel.engines.memory import free_bytes

    need, there = estimate(experiment), free_bytes(torch.device("cpu"))
    base = f" and a frozen base of {byte_size(need.frozen)}, held once" if need.frozen else ""
    yield "model", f"{count(need.parameters)} parameters{base}"
    yield "server", byte_size(need.server)
    files = f"; beyond {byte_size(need.budget)} in files" if need.client * need.clients > need.budget else ""
    yield "clients", f"{byte_size(need.client)} each, up to {count(need.clients)} of them have state{files}"
    yield "a step", f"{byte_size(need.workspace)} for trees and activations, in each worker process"
    yield "reports", f"{byte_size(need.reports)} from {count(need.selected)} clients a round"
    if need.data:
        yield "data", f"{byte_size(need.data)} on disk, read as needed"
    fits = "fits" if need.total < there else "more than is free"
    yield "in all", f"{byte_size(need.total)}; {byte_size(there)} are free: {fits}"

"""The two apps of a real federation, made from one experiment: the files of `fedkeel export flower` call them."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedkeel.core.states import beside, write_text
from fedkeel.engines.choose import Choice
from fedkeel.engines.flower.bounds import SlotBounds
from fedkeel.engines.flower.checks import Terms
from fedkeel.engines.flower.client import Node, client_number, make_client_app
from fedkeel.engines.flower.engine import FlowerEngine
from fedkeel.engines.flower.mods import Mod
from fedkeel.engines.flower.node_registry import NodeRegistry
from fedkeel.engines.flower.site_ledger import SiteLedger, sites_file
from fedkeel.engines.machine import device_of
from fedkeel.engines.serial import SerialEngine
from fedkeel.errors import FedkeelError, FolderError, RequestError, blame_own_code
from fedkeel.federation.handshake import check_test_columns, describe_side
from fedkeel.federation.local_data import PARTITION, node_problem, server_problem
from fedkeel.federation.membership import BOUNDS, FIXED, NODES, SIZES, ask_sizes, read_owners
from fedkeel.federation.operations import Operations
from fedkeel.federation.scoring_place import check_site_test, check_validation, note_unmeasured
from fedkeel.federation.server_lock import hold_place
from fedkeel.importing import Trust
from fedkeel.ranges import Whole
from fedkeel.runs.experiment import Experiment
from fedkeel.runs.finished_run import Run
from fedkeel.runs.folder import EXPERIMENT, read_settings
from fedkeel.runs.notes import describe_unmeasured
from fedkeel.runs.plan import Plan
from fedkeel.runs.prepare import method_of, problem_of, task_maker
from fedkeel.runs.record import RoundRecord
from fedkeel.runs.start import Place, prepare, session
from fedkeel.text import in_one_line
from fedkeel.typed_values import read_values

log = logging.getLogger("fedkeel")

SETTINGS: dict[str, Any] = {
    **dict.fromkeys(("wait", "deadline", "minimum", "norm-factor", "site-test"), float),
    **dict.fromkeys(("attempts", "clients"), int),
    **dict.fromkeys(("bind-nodes", "copy-states"), bool),
    "history": Whole,
}
"""The app's settings that are no texts; the text "false" would be taken for true."""


# ---- the experiment of an app --------------------------------------------------------------------------------------
def read_app(folder: Path, trust: bool) -> tuple[Experiment, Trust]:
    """Read the experiment beside an app; its author may vouch for the names in its files."""
    level = Trust.TYPED if trust else Trust.INSTALLED
    if trust and (place := str(folder.resolve())) not in sys.path:
        sys.path.append(place)  # modules of the user's travel with the app
    return Experiment.load(read_settings(folder), trust=level), level


def read_terms(config: Mapping[str, Any]) -> Terms:
    """When a round counts, as the app's settings say."""
    return Terms(
        minimum=float(config["minimum"]),
        deadline=float(config["deadline"]) or None,
        attempts=int(config["attempts"]),
        norm_factor=float(config["norm-factor"]),
        copy=bool(config["copy-states"]),
    )


# ---- nodes ---------------------------------------------------------------------------------------------------------
def client_app(folder: Path, *, trust: bool = False, mods: Sequence[Mod] = ()) -> ClientApp:
    """Make the app of every node; the node's settings say which client it is, and where its data and state are.

    With `trust`, code that the app's files and settings name is imported. `mods` are Flower's modifiers of messages;
    they see what is trained and sent.
    """

    def node(context: Context) -> Node:
        experiment, level = read_app(folder, trust)
        return node_of(experiment, context, level)

    return make_client_app(node, mods)


def node_of(experiment: Experiment, context: Context, trust: Trust = Trust.TYPED) -> Node:
    """A node with its own data, which trains like the serial engine."""
    client, settings, plan = client_number(context), context.node_config, experiment.plan
    source, clients = str(context.run_config["data"]), int(context.run_config["clients"])
    if source != PARTITION:  # where data are the nodes' own, each may say how it reads them
        own = "data" in settings
        source, trust = str(settings.get("data", source)), Trust.TYPED if own else trust  # typed where the node runs
    problem = problem_of(plan) if source == PARTITION else None
    clients = clients if problem is None else len(problem.data.sizes)
    if not 0 <= client < clients:
        raise RequestError(f"partition-id {client} is not one of {clients} clients.", "they are counted from 0")
    if problem is None:
        share = float(context.run_config.get("site-test", 0.0))
        problem = node_problem(plan, source, client, clients, settings, trust, share, context.run_config)
    device = device_of(str(settings.get("device", "auto")))
    task = task_maker(plan, device, torch.float32)(problem)
    engine = SerialEngine(task, method_of(plan, task), plan.training)
    folder = Path(str(settings["state-dir"])).expanduser() if settings.get("state-dir") else None
    return Node(client, engine, folder, experiment.fingerprint(), describe_side(plan, task, engine.method))


# ---- the server ----------------------------------------------------------------------------------------------------
def server_app(folder: Path, *, trust: bool = False) -> ServerApp:
    """Make the app of the server, which continues from the last checkpoint of its run folder. `trust` as for nodes."""
    app = ServerApp()

    @app.main()  # type: ignore[untyped-decorator, unused-ignore]
    def main(grid: Grid, context: Context) -> None:
        config: Mapping[str, Any] = context.run_config
        out = Path(str(config["out"])).expanduser()
        with tell_errors(out) as watch:
            config = read_values(config, SETTINGS, RequestError, "the app")
            watch.history = int(config.get("history", 0))
            experiment, _ = read_app(folder, trust)
            serve(
                experiment,
                grid,
                out=out,
                terms=read_terms(config),
                wait=float(config["wait"]),
                device=str(config["device"]),
                source=str(config["data"]),
                test=str(config["test"]),
                clients=int(config["clients"]),
                bind=bool(config.get("bind-nodes", True)),
                site_test=float(config.get("site-test", 0.0)),
                membership=str(config.get("membership", FIXED)),
                config=config,
                watch=watch,
            )

    return app


class ServerStopped(Exception):
    """What was wrong, in one line: Flower logs every error with its traceback, and this one has none."""

    __traceback__ = property(lambda self: None, lambda self, traceback: None)


@contextlib.contextmanager
def tell_errors(out: Path) -> Iterator[Operations]:
    """Log to the file beside a run folder; a user's error ends in one line there, in the audit and in Flower's log."""
    start_log(beside(out, ".log"))
    watch = None
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(hold_place(out))
            watch = Operations(out)
            watch.begin()
            yield watch
        except FedkeelError as error:
            line = error.message if error.hint is None else f"{error.message} hint: {error.hint}"
            log.error("%s", line)
            if watch is not None:
                watch.stop(line)
            raise ServerStopped(line) from None
        except Exception as error:  # of code of one's own, or a mistake of fedkeel's: Flower logs its traceback
            own = blame_own_code(error)
            line = f"{type(error).__name__}: {in_one_line(error)}" if own is None else own.message
            log.error("%s", line)
            if watch is not None:
                watch.stop(line)
            raise


def serve(
    experiment: Experiment,
    grid: Grid,
    *,
    out: str | PathLike[str],
    terms: Terms | None = None,
    wait: float = 600.0,
    device: str = "auto",
    source: str = PARTITION,
    test: str = "",
    clients: int = 0,
    bind: bool = False,
    site_test: float = 0.0,
    membership: str = FIXED,
    config: Mapping[str, Any] = MappingProxyType({}),
    watch: Operations | None = None,
) -> Run:
    """Train an experiment on the nodes of a grid. A checkpoint follows every round, before the next one is sent.

    With `bind`, a client belongs to the node that first has its data, and is known by that node's key. `site_test` is
    the share of their own data that nodes keep for tests, and score the model on. `config` is the app's: it names the
    columns of tables. `membership` says when the sizes of clients' own data are asked; `watch` hears what happens.
    """
    on = Place("flower", device_of(device), checkpoint_seconds=0.0, federation=True)
    plan, terms = experiment.plan, terms or Terms()
    if plan.evaluation is not None and not terms.copy:
        raise RequestError(
            "the server cannot judge clients' own models: their states stay on the nodes.",
            "set copy-states = true, or leave out the evaluation policy",
        )
    check_site_test(site_test, source, test)
    check_validation(plan.validation, source)
    out = Path(out)
    of_own_data, begun = beside(out, SIZES).exists(), (out / EXPERIMENT).exists()
    if of_own_data if source == PARTITION else begun and not of_own_data:
        raise FolderError(f"{out} holds a run on other data: the nodes' own, or a partition.", "choose another folder")
    with session(on.device) as closing:
        problem = problem_of(plan) if source == PARTITION else None
        owners = read_owners(beside(out, NODES)) if bind else None
        count = clients if problem is None else len(problem.data.sizes)
        roster = NodeRegistry(grid, count, experiment.fingerprint(), owners=owners, watch=watch)
        if bind:
            roster.on_join = lambda: write_text(beside(out, NODES), json.dumps(roster.owners))
        if problem is None:
            roster.side, roster.takes_empty = describe_without_sizes(plan, count), False
            sizes = ask_sizes(out, roster, wait, terms, membership, tested=site_test > 0)
            problem, count = server_problem(plan, sizes, test, config, site_test > 0), sum(size > 0 for size in sizes)
        prepared = prepare(experiment, out, on, closing, problem)
        loop = prepared.loop
        roster.side = roster.side or describe_side(plan, loop.task, loop.method)
        roster.wait(count, wait, terms.count_needed(count))
        check_test_columns(problem.test, roster.columns)
        bounds = SlotBounds(terms.norm_factor, beside(out, BOUNDS))
        bounds.restore()
        sites = SiteLedger(sites_file(out), site_test) if site_test else None
        if sites is not None:
            note_unmeasured(loop.task)
        elif (told := describe_unmeasured(plan, loop.task)) is not None:
            log.warning("%s", told)
        engine = FlowerEngine(
            loop.task, loop.method, plan.training, grid, roster, terms, bounds=bounds, sites=sites, watch=watch
        )

        def tuner() -> FlowerEngine:
            task = prepared.make_task(problem)
            return FlowerEngine(task, loop.method, plan.training, grid, roster, terms, final=True)

        if watch is not None:
            facts = {"experiment": experiment.fingerprint(), "method": plan.method.name}
            watch.start(loop.done, plan.rounds, problem.data.sizes.tolist(), **facts)
        return prepared.start(engine, Choice("flower", "flower"), LogProgress(roster, watch), tuner).drive()


def describe_without_sizes(plan: Plan, clients: int) -> dict[str, str]:
    """Describe the server before it knows how much data its clients have; nothing that is compared depends on that."""
    task = task_maker(plan, torch.device("cpu"), torch.float32)(server_problem(plan, [2] * clients, ""))
    return describe_side(plan, task, method_of(plan, task))


def start_log(file: Path) -> None:
    """Log to stderr, from where Flower streams it, and to a file, which survives a crash of the server."""
    file.parent.mkdir(parents=True, exist_ok=True)
    for old in list(log.handlers):
        log.removeHandler(old)
        old.close()
    for handler in (logging.StreamHandler(), logging.FileHandler(file)):
        handler.setFormatter(logging.Formatter("%(asctime)s fedkeel %(levelname)s: %(message)s"))
        log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False


class LogProgress:
    """Reports progress as lines of the log, and to who watches."""

    def __init__(self, registry: NodeRegistry, watch: Operations | None):
        self.registry, self.watch = registry, watch

    def started(self, experiment: Experiment, done: int, engine: str) -> None:
        log.info("%s: %d of %s rounds are done", experiment.plan.method.name, done, experiment.plan.rounds)

    def round(self, record: RoundRecord) -> None:
        accuracy = "" if record.accuracy is None else f", accuracy {record.accuracy:.4f}"
        log.info("round %d: loss %s%s, %.1f s", record.round, record.loss, accuracy, record.seconds)
        if self.watch is not None:
            self.watch.see_round(record, len(self.registry.nodes))

    def finished(self, run: Run) -> None:
        log.info("done: model %s", run.result["model_digest"])
        if self.watch is not None:
            self.watch.finish(run)

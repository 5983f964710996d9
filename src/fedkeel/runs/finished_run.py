"""A run that is done, in memory or read from its folder."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor, nn

from fedkeel.core.round import deploy
from fedkeel.core.rule import State
from fedkeel.core.states import Damaged
from fedkeel.errors import FolderError, RequestError, explain_typos, require_known
from fedkeel.importing import Trust
from fedkeel.methods.named import NamedModel
from fedkeel.models import check_name
from fedkeel.problems.module_state import copy_whole, read_frozen, write_state
from fedkeel.problems.problem import Problem, Recorded, digest_tensors
from fedkeel.runs import checkpoint
from fedkeel.runs.checkpoint import check_base
from fedkeel.runs.environment import changed_functions, describe_leak, leaks, read_clients
from fedkeel.runs.experiment import Experiment, fingerprint_of
from fedkeel.runs.folder import RESULT, folder_of, read_experiment, read_json, read_rounds, resume_command
from fedkeel.runs.kept import Followed, KeptModel, read_kept
from fedkeel.runs.plan import Plan
from fedkeel.runs.record import COLUMNS, RoundRecord, by_round, client_rows, counted, make_frame, result, round_rows
from fedkeel.runs.run_folder import RunFolder
from fedkeel.typed_values import show_value
from fedkeel.written_values import check_accuracy

if TYPE_CHECKING:
    import pandas

log = logging.getLogger("fedkeel")

NO_SAMPLE = "no client has a validation sample"
RAISE_SHARE = "raise validation, the share that each client sets aside"
PERSONAL = ("reported", "reported_as", "tuned")
"""What a result says of clients' models beyond its rounds."""


@dataclass(frozen=True, eq=False)
class Run:
    """What a run gave: numbers, curves, the trained model."""

    experiment: Experiment
    records: list[RoundRecord]
    result: dict[str, Any]
    server: State
    path: Path | None
    problem: Problem | None
    history: list[dict[str, Tensor]] | None
    kept: Mapping[str, KeptModel] = field(default_factory=dict)
    unwritten: Mapping[str, State] = field(default_factory=dict)  # kept models that are in memory alone
    chosen: State | None = None  # what is deployed, where it is not the last model
    base: str | None = None  # identity of the network's frozen part, which is not among the weights of the run

    @property
    def plan(self) -> Plan:
        """The experiment with every value in its final form."""
        return self.experiment.plan

    @property
    def best(self) -> float | None:
        """The best round's accuracy (or loss, where there is no accuracy); best on test, as in the papers."""
        return self.result.get("best")

    @property
    def last(self) -> float | None:
        return self.result.get("last")

    @property
    def deployed(self) -> State:
        """The model that is evaluated and exported, as "params" and "buffers": the server's, or what a rule deploys."""
        return deploy(self.plan.method, self.server) if self.chosen is None else self.chosen

    def at(self, which: str, *, client: int | None = None, trust: bool = False) -> Run:
        """Return the run as it stood when a model was kept: "best", where KeepBest kept one, or "last"; or with "plain"
        for what is deployed: the model that is trained, where the last is an average; or a client's, see `model`."""
        if client is not None:
            from fedkeel.runs.client_model import find_client_model

            if which != "last":
                raise RequestError("clients keep what is their own at the last model alone.", 'leave out "which"')
            plan, problem = self._resolve(trust)
            return replace(self, problem=problem, chosen=find_client_model(self, client, plan, problem))
        if which == "last":
            return self
        if which == "plain":
            return replace(
                self, chosen={name: self.server[name] for name in ("params", "buffers") if name in self.server}
            )
        if which == "best" and not self.kept:
            raise RequestError("this run keeps no best model.", "train with --keep best, or fk.KeepBest()")
        kept = self.kept[require_known(which, [*self.kept, "last", "plain"], "this run keeps no model", "models")]
        model = self.unwritten.get(which)
        if model is None:
            assert self.path is not None
            try:
                model = read_kept(self.path / "checkpoint", kept)
            except Damaged as error:
                raise FolderError(f"the {which} model of {self.path} is damaged: {error}", "restore it") from None
        records, identity = self.records[: kept.round], str(self.result["fingerprint"])
        of_then = result(records, model, self.plan.evaluate_every, identity, None)
        return replace(self, records=records, result=of_then, server=self.server | model, chosen=model)

    @property
    def params(self) -> dict[str, Tensor]:
        """The deployed model by name; `server["params"]` is the one that is trained, where that is another."""
        return self.deployed["params"].named()

    def __repr__(self) -> str:
        about = f"Run({self.plan.method.name} on {self.about}, seed {self.plan.seed}: "
        done = f"{len(self.records)} of {self.plan.rounds} rounds"
        if self.best is None or self.last is None:
            return f"{about}{done})"
        name = str(self.result["judged_on"])
        best, last = (f"{100 * v:.1f} %" if name == "accuracy" else f"{v:.4g}" for v in (self.best, self.last))
        return f"{about}{done}, {name} {last}, best {best} in round {self.result['best_round']})"

    @property
    def about(self) -> str:
        """What was learned: the data set, or the problem's name."""
        source = self.plan.source
        if not isinstance(source, Problem):
            return source.dataset
        told = None if self.path is None else read_clients(self.path).problem
        return told or source.title

    def to_pandas(self, what: Literal["rounds", "clients"] = "rounds") -> pandas.DataFrame:
        """Make a DataFrame with a row for each round; or for each client and evaluated round, with its scores."""
        named = {"method": self.plan.method.name, "seed": self.plan.seed}
        require_known(what, ("rounds", "clients"), "a table of a run is of rounds or clients, not", "tables")
        if what == "rounds":
            return make_frame(round_rows(self.records, **named))
        return make_frame(client_rows(self.records, self.sizes, **named))

    @property
    def sizes(self) -> list[int] | None:
        """How many samples each client has without its test share, where that is known; those that it sets aside for
        validation are counted."""
        if self.problem is not None:
            return [int(size) for size in self.problem.data.sizes]
        return None if self.path is None else read_clients(self.path).sizes

    def curve(self, measure: str) -> list[float]:
        """Return a measure over the rounds that have it: accuracy, loss, test_loss, drift, seconds, bytes_up, …"""
        return list(self._by_round(measure).values())

    def rounds(self, measure: str) -> list[int]:
        """List the rounds that `curve` has values of."""
        return list(self._by_round(measure))

    def _by_round(self, measure: str) -> dict[int, float]:
        """The values of a measure by round; a run with rounds to come may measure later what it has not yet."""
        if len(self.records) >= self.plan.rounds or "stopped" in self.result:
            known = {"round", *COLUMNS, *(name for record in self.records for name in record.extra)}
            require_known(measure, known, "no round of this run measured", "measures")
        return by_round(self.records, measure)

    def rounds_to(self, accuracy: float) -> int | None:
        """Find the first round that reaches an accuracy, a share of the samples: 0.75."""
        if check_accuracy(accuracy) is None:
            raise RequestError("an accuracy is a number, not None.", "run.rounds_to(0.75)")
        scored = counted(self.records, self.plan.evaluate_every)
        return next((r.round for r in scored if r.accuracy is not None and r.accuracy >= accuracy), None)

    def model(self, which: str = "last", *, client: int | None = None, trust: bool = False) -> nn.Module:
        """The deployed module: a copy, in evaluation mode; `which` is "last", or "best" where a run keeps it.

        With a client's number, that client's own at the end of a run with a folder: the one that it last trained where
        `evaluation` judges "local" models, else the one that it would begin the next round with. A network of someone's
        own, which the run's folder names, is imported with `trust` only.
        """
        from fedkeel.runs.prepare import start_weights

        run = self.at(which, client=client, trust=trust)
        _, problem = run._resolve(trust)
        if problem.model is None:
            raise RequestError("this problem has no module, only params.", "use run.params")
        module = copy_whole(problem.model).eval()
        frozen = read_frozen(module)
        start = start_weights(Path(self.plan.init)) if frozen and self.plan.init is not None else {}
        state = {name: tensor for name, tensor in start.items() if name in frozen}
        state |= {name: tensor for tree in run.deployed.values() for name, tensor in tree.items()}
        write_state(module, state)
        if frozen:
            check_base(self.path or Path(), self.base, digest_tensors(frozen))
        return module

    def _resolve(self, trust: bool) -> tuple[Plan, Problem]:
        """The plan and the problem, with what the run's folder names where that is trusted."""
        from fedkeel.runs.prepare import problem_of

        experiment = self.experiment
        if self.problem is not None:
            return experiment.plan, self.problem
        if trust and self.path is not None:
            experiment = Experiment.recall(read_experiment(self.path), Trust.given(trust))
        elif isinstance(experiment.model, NamedModel):
            check_name(experiment.model, Trust.given(trust))
            experiment = experiment.with_(model=str(experiment.model))
        return experiment.plan, problem_of(experiment.plan)


@explain_typos("fk.load_run")
def load_run(path: str | PathLike[str], *, problem: Problem | None = None, trust: bool | Trust = False) -> Run:
    """A run from its folder, as far as it has come. Code that the folder names is imported with `trust` only.

    Of a problem or network given from Python there are numbers and weights: `params`; with the same `problem` given
    again also `model()`, and all that needs the data.
    """
    folder = folder_of(path, "the run to load", 'fk.load_run("runs/first")')
    data = read_experiment(folder)
    level = Trust.given(trust)
    experiment = Experiment.recall(data, level if trust else Trust.NOTHING)
    read_clients(folder)  # to know that it can be read
    leaking = leaks(folder, experiment.plan)
    identity = fingerprint_of(data, experiment.plan.sets_copies_aside and not leaking)
    found, warnings = checkpoint.find_newest(folder / "checkpoint", fingerprint=identity)
    if found is None:
        if RunFolder(folder).lost():
            raise FolderError(
                f"{folder} has lost its checkpoint: the weights are gone.",
                "restore checkpoint/ from a copy; `fedkeel report` still shows its numbers",
            )
        raise FolderError(f"{folder} has no checkpoint yet.", f"{resume_command(folder)} trains it")
    for line in [*warnings, describe_leak(folder)] if leaking else warnings:
        log.warning("%s", line)
    records = read_rounds(folder, found.round)
    method, every = experiment.plan.method, experiment.plan.evaluate_every
    trained = found.server if method.deploys_another else None
    final = result(records, deploy(method, found.server), every, identity, trained)
    written = read_json(folder / RESULT)
    if written.get("rounds") == found.round:  # not where checkpoints are damaged, and the run is at an earlier one
        final |= {name: written[name] for name in PERSONAL if name in written}
    if problem is not None:
        from fedkeel.runs.prepare import problem_of

        experiment = with_problem(experiment, problem, folder)
        problem = problem_of(experiment.plan)
    followed = found.followed or Followed()
    return Run(
        experiment, records, final | followed.result(), found.server, folder, problem, None, followed.kept,
        base=found.base,
    )  # fmt: skip


def with_problem(experiment: Experiment, problem: Problem, folder: Path) -> Experiment:
    """Give an experiment that was read from a folder its problem back; refuse another one."""
    if not isinstance(experiment.problem, Recorded):
        raise RequestError(f"{folder} has a data set, not a problem of its own.", "leave the problem out")
    if not isinstance(problem, Problem):
        raise RequestError(f"a run is given its Problem back, not {show_value(problem)}.", "problem=fk.Problem(…)")
    if problem.digest() != experiment.problem.digest():
        raise RequestError(
            f"{folder} was trained on another problem: {experiment.problem.digest()}, not {problem.digest()}.",
            "give the one that it was made with: the same data, network, initial weights and functions",
        )
    given = replace(experiment, problem=problem)
    if changed := changed_functions(folder, given.plan):
        raise RequestError(
            f"{folder} was trained on another problem (it differs in: {', '.join(changed)}).",
            "give the functions that it was made with: the same weights, options and arguments",
        )
    return given


# ---- what settings are chosen by -----------------------------------------------------------------------------------
def validation_score(run: Run) -> float | None:
    """The best round on validation data, or what the evaluation policy reports there of clients' models.

    Higher is better: losses are negative.
    """
    judged = counted(run.records, run.plan.evaluate_every)
    if (policy := run.plan.evaluation) is not None:
        extras = [record.extra for record in judged]
        reported = policy.summarise_rounds([*extras, run.result.get("tuned", {})], "validation_client_")
        return None if reported is None else reported[1] if reported[0] == "accuracy" else -reported[1]
    if accuracies := by_round(judged, "validation_accuracy"):
        return max(accuracies.values())
    losses = [value for value in by_round(judged, "validation_loss").values() if math.isfinite(value)]
    return -min(losses) if losses else None


def unscored(run: Run) -> str:
    """Say why a run has no score on validation data."""
    measure = "validation_" if run.plan.evaluation is None else "validation_client_"
    if any(name.startswith(measure) for record in run.records for name in record.extra):
        return "the loss on validation data is not finite"
    return NO_SAMPLE

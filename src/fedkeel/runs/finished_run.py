"""A run that is done, in memory or read from its folder."""

from __future__ import annotations

import copy
import logging
import math
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedkeel.core.round import deploy
from fedkeel.core.rule import State
from fedkeel.errors import FolderError, RequestError
from fedkeel.importing import Trust
from fedkeel.methods.named import NamedModel
from fedkeel.models import check_name
from fedkeel.problems.module_state import read_frozen
from fedkeel.problems.problem import Problem, digest_tensors
from fedkeel.runs import checkpoint
from fedkeel.runs.checkpoint import check_base
from fedkeel.runs.environment import describe_leak, leaks
from fedkeel.runs.experiment import Experiment, fingerprint_of
from fedkeel.runs.folder import RESULT, RunFolder, read_experiment, read_json, read_rounds, resume_command
from fedkeel.runs.plan import Plan
from fedkeel.runs.record import RoundRecord, counted, result

log = logging.getLogger("fedkeel")

NO_SAMPLE = "no client has a validation sample"
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
        return deploy(self.plan.method, self.server)

    @property
    def params(self) -> dict[str, Tensor]:
        """The deployed model by name; `server["params"]` is the one that is trained, where that is another."""
        return self.deployed["params"].named()

    def curve(self, measure: str) -> list[float]:
        """Return a measure over the rounds that have it: accuracy, loss, test_loss, drift, seconds, bytes_up, …"""
        return [value for record in self.records if (value := record.measure(measure)) is not None]

    def rounds(self, measure: str) -> list[int]:
        """List the rounds that `curve` has values of."""
        return [record.round for record in self.records if record.measure(measure) is not None]

    def rounds_to(self, accuracy: float) -> int | None:
        """Find the first round that reaches an accuracy."""
        return next((r.round for r in self.records if r.accuracy is not None and r.accuracy >= accuracy), None)

    def model(self, *, trust: bool = False) -> nn.Module:
        """The deployed module: a copy, in evaluation mode. A network of someone's own, which the run's folder names, is
        imported with `trust` only."""
        from fedkeel.runs.prepare import problem_of, start_weights

        problem = self.problem
        if problem is None:
            experiment = self.experiment
            if isinstance(experiment.model, NamedModel):
                check_name(experiment.model, Trust.given(trust))
                experiment = experiment.with_(model=str(experiment.model))
            problem = problem_of(experiment.plan)
        if problem.model is None:
            raise RequestError("this problem has no module, only params.", "use run.params")
        module = copy.deepcopy(problem.model).eval()
        frozen = read_frozen(module)
        start = start_weights(Path(self.plan.init)) if frozen and self.plan.init is not None else {}
        state = {name: tensor for name, tensor in start.items() if name in frozen}
        state |= {name: tensor for tree in self.deployed.values() for name, tensor in tree.items()}
        for name, tensor in module.state_dict().items():
            if name in state:
                tensor.copy_(state[name].to(tensor.device))
        if frozen:
            check_base(self.path or Path(), self.base, digest_tensors(frozen))
        return module


def load_run(path: str | PathLike[str], *, trust: bool | Trust = False) -> Run:
    """A run from its folder, as far as it has come. Code that the folder names is imported with `trust` only.

    Of a problem or network given from Python there are numbers and weights: `params`, not `model()`.
    """
    folder = Path(path)
    data = read_experiment(folder)
    experiment = Experiment.recall(data, Trust.given(trust) if trust else Trust.NOTHING)
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
    return Run(experiment, records, final, found.server, folder, None, None, found.base)


# ---- what settings are chosen by -----------------------------------------------------------------------------------
def validation_score(run: Run) -> float | None:
    """The best round on validation data, or what the evaluation policy reports there of clients' models.

    Higher is better: losses are negative.
    """
    if (policy := run.plan.evaluation) is not None:
        judged = [record.extra for record in counted(run.records, run.plan.evaluate_every)]
        reported = policy.summarise_rounds([*judged, run.result.get("tuned", {})], "validation_client_")
        return None if reported is None else reported[1] if reported[0] == "accuracy" else -reported[1]
    accuracies = run.curve("validation_accuracy")
    if accuracies:
        return max(accuracies)
    losses = [value for value in run.curve("validation_loss") if math.isfinite(value)]
    return -min(losses) if losses else None


def unscored(run: Run) -> str:
    """Say why a run has no score on validation data."""
    measure = "validation_" if run.plan.evaluation is None else "validation_client_"
    if any(name.startswith(measure) for record in run.records for name in record.extra):
        return "the loss on validation data is not finite"
    return NO_SAMPLE

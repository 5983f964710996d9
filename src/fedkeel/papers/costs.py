"""What a cell costs: gradients by counting, seconds by the ledger's runs like it."""

from __future__ import annotations

from collections.abc import Sequence

from fedkeel.errors import RequestError
from fedkeel.papers.cells import Cell
from fedkeel.papers.ledger import Entry
from fedkeel.papers.reproduce import experiment_of, length_of, runs_of
from fedkeel.runs.experiment import Experiment
from fedkeel.runs.participation import share_of
from fedkeel.runs.plan import Plan

WORK = ("dataset", "model", "batch_size")  # settings that say how long one gradient takes


def gradient_evaluations(cell: Cell, rounds: int | None = None) -> int:
    """Count backward passes on one batch, over all clients and rounds; clients are taken as equally large."""
    return evaluations_of(experiment_of(cell, 0, rounds).plan)


def evaluations_of(plan: Plan) -> int:
    clients, share = plan.division.partition.clients or 100, share_of(plan.participation)
    size = samples_of(plan) // clients
    steps = -(-size // plan.batch_size)
    phases = [phase for phase in plan.method.phases if phase.batches is None]
    epochs = plan.most_epochs(size)
    often = sum(p.backward_passes * p.passes * (epochs if p.epochs is None else p.epochs) for p in phases)
    return int(plan.rounds * max(1, clients * share) * steps * often)


def samples_of(plan: Plan) -> int:
    """Count the samples of all clients; where each sets some aside for its own test, those that are left."""
    card, policy = plan.division.card, plan.evaluation
    if policy is None:
        return card.train
    return int((card.train + card.test * policy.pool) * (1 - policy.share))


def seconds_like(cell: Cell, entries: Sequence[Entry], rounds: int | None = None) -> float | None:
    """Estimate seconds by the newest run like it in the ledger: of the same experiment, or of its data set and model
    with any method, in proportion to rounds and gradient evaluations. Runs that shared their machine count last."""
    for some in ([entry for entry in entries if entry.timed], entries):
        if own := runs_of(cell, some):
            return own[-1].seconds_per_round * length_of(cell, rounds)
        alike = [e for e in some if e.settings and all(e.settings.get(k) == cell.experiment[k] for k in WORK)]
        if alike:
            try:
                other = Experiment.recall(dict(alike[-1].settings) | {"rounds": alike[-1].rounds})
            except RequestError:  # a ledger of another version, or someone else's
                continue
            return alike[-1].seconds * gradient_evaluations(cell, rounds) / max(1, evaluations_of(other.plan))
    return None

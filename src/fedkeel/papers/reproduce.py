"""Cells of published tables as runs: which ones, what each costs, and what the ledger keeps of it."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from fedkeel.core.trees import state_bytes
from fedkeel.data.partition.own import OwnPartition
from fedkeel.errors import FedkeelError, RequestError, UntrustedError
from fedkeel.importing import Trust, untrusted
from fedkeel.papers import PAPERS, Cell, find, seeds_of, tables
from fedkeel.papers.cells import merged
from fedkeel.papers.claims import CLAIMS, find_claimed_cells
from fedkeel.papers.figures import find_figure
from fedkeel.papers.ledger import Entry, cut_to, measured, standing
from fedkeel.papers.order import ORDER, in_order
from fedkeel.papers.paper_file import is_own, split_spec
from fedkeel.papers.spectra import gather_spectra
from fedkeel.runs.experiment import Experiment
from fedkeel.runs.finished_run import Run
from fedkeel.runs.folder import TIMING, folder_name, read_environment, read_json
from fedkeel.runs.participation import share_of
from fedkeel.runs.plan import Plan
from fedkeel.runs.record import RoundRecord, by_round, counted
from fedkeel.typed_values import check_keys

SETTINGS = tuple(field.name for field in fields(Experiment) if field.name not in ("seed", "rounds", "problem"))
OF_CELL = (
    "paper", "table", "row", "column", "kind", "evaluation", "reported", "spread", "uncertain", "source", "lr_matches",
)  # fmt: skip
"""What a line of the ledger repeats of its cell."""
WORK = ("dataset", "model", "batch_size")  # settings that say how long one gradient takes
STEP = "report/step_length"  # what `track="state"` calls the number that the rule MeasureStep reports


# ---- which cells ---------------------------------------------------------------------------------------------------
def chosen(spec: str, pattern: str | None) -> list[Cell]:
    """The cells of a paper, a table, a figure, a part of the order or a claim whose label matches: the label, or a
    pattern, or some of its words, in any order."""
    found = _every_cell(spec)
    if pattern is None:
        return found
    words = _words(pattern)
    exact = [cell for cell in found if sorted(_words(cell.label)) == sorted(words)]
    kept = exact or [
        cell
        for cell in found
        if fnmatch.fnmatch(cell.label.lower(), pattern.lower()) or set(words) <= set(_words(cell.label))
    ]
    if not kept:
        some = "; ".join(cell.label for cell in found[:4])
        raise RequestError(f"{spec} has no cell: {pattern}", f"its cells are like: {some}")
    return kept


def seeds_named(text: str, spec: str) -> list[int]:
    """The seeds of a paper, where "paper" is written in place of numbers; none where it is not."""
    if text != "paper":
        return []
    paper, _ = split_spec(spec)
    found = seeds_of(paper) if paper in PAPERS or is_own(paper) else ()
    if not found:
        having = ", ".join(name for name in PAPERS if seeds_of(name))
        raise RequestError(
            f"{paper} does not name its seeds.", f"write numbers: --seeds 0,1,2; seeds are named by {having}"
        )
    return list(found)


def _every_cell(spec: str) -> list[Cell]:
    paper, colon, part = spec.partition(":")
    lists = {ORDER: in_order, CLAIMS: find_claimed_cells}
    if paper in lists:
        return lists[paper](part if colon else None)
    figure = find_figure(spec)
    if figure is None:
        return find(spec)
    named = find(spec) if any(one.name == part for one in tables(paper)) else []
    return named + [cell for cell in figure.cells if cell not in named]


def _words(label: str) -> list[str]:
    return [word.strip().lower() for word in label.split(",")]


def varied(cells: Sequence[Cell], changes: Iterable[tuple[tuple[str, ...], Any]]) -> list[Cell]:
    """Change some settings of cells, to see whether another choice comes nearer to the paper."""
    given: dict[str, Any] = {}
    for path, value in changes:
        if path == ("rounds",) or path == ("seed",):
            raise RequestError(f"{path[0]} is not a setting of a cell.", f"use --{path[0].rstrip('s')}s")
        check_keys(path[:1], SETTINGS, RequestError, "an experiment", "key")
        nested: Any = value
        for word in reversed(path[1:]):
            nested = {word: nested}
        given = merged(given, {path[0]: nested})
    if not given:
        return list(cells)
    return [
        replace(
            cell,
            experiment=merged(cell.experiment, given),
            lr_matches="" if "lr" in given else cell.lr_matches,  # a rate that is given is matched to nothing
        )
        for cell in cells
    ]


def settings_of(cell: Cell) -> dict[str, Any]:
    """Return the cell's experiment as plain data, without its length."""
    return {name: value for name, value in cell.experiment.items() if name != "rounds"}


def runs_of(cell: Cell, entries: Iterable[Entry]) -> list[Entry]:
    """The runs of exactly this experiment, for whichever cell they were made, as they stood at the cell's length."""
    return at_length_of(cell, runs_of_any_length(cell, entries))


def runs_of_any_length(cell: Cell, entries: Iterable[Entry]) -> list[Entry]:
    """The runs of this experiment, however long. A rate that is matched may have changed with what it was matched to,
    so there those that were made for the cell, at a rate that was matched then, and differ in nothing else."""
    wanted, entries = settings_of(cell), standing(entries)
    if cell.lr_matches:
        rest, own = wanted | {"lr": None}, [e for e in entries if e.cell == cell.place]
        own = [e for e in own if e.lr_matches in (None, cell.lr_matches)]
        return [e for e in own if not e.settings or e.settings | {"lr": None} == rest]
    return [e for e in entries if (e.settings == wanted if e.settings else e.cell == cell.place)]


def at_length_of(cell: Cell, entries: Iterable[Entry]) -> list[Entry]:
    """Cut runs to the cell's last round."""
    needs_last = cell.kind == "accuracy" and cell.evaluation == "last"
    return cut_to(entries, int(cell.experiment["rounds"]), with_last=needs_last)


def done(cell: Cell, seed: int, rounds: int | None, entries: Iterable[Entry]) -> bool:
    """Whether the ledger holds a run of this experiment, with this seed, that is as long or longer."""
    length = length_of(cell, rounds)
    return any(entry.seed == seed and entry.rounds >= length for entry in runs_of(cell, entries))


def length_of(cell: Cell, rounds: int | None) -> int:
    """Return how many rounds are run: the paper's, or fewer."""
    longest = int(cell.experiment["rounds"])
    return longest if rounds is None else min(rounds, longest)


def experiment_of(cell: Cell, seed: int, rounds: int | None = None) -> Experiment:
    """Make the cell's experiment, perhaps shortened. What it names comes from our tables, or was typed; what a file of
    the user's own names is not imported."""
    data = dict(cell.experiment) | {"seed": seed, "rounds": length_of(cell, rounds)}
    if not is_own(cell.paper):
        return Experiment.read(data, trust=Trust.TYPED)
    try:
        made = Experiment.read(data)
        if isinstance(made.partition, OwnPartition) and made.partition.made is None:
            raise untrusted(str(made.partition.settings["kind"]), "partition")
        return made
    except UntrustedError as error:
        hint = "a paper's file names no code; `fedkeel run FILE --trust` trains it"
        raise UntrustedError(error.message, hint) from None


def obstacle(cell: Cell) -> FedkeelError | None:
    """Say why a cell cannot be run here; None when it can."""
    if cell.unmeasured:
        return RequestError(cell.unmeasured)
    try:
        experiment_of(cell, 0)
    except FedkeelError as error:
        return error
    return None


def place_of(experiment: Experiment) -> str:
    """Name a run's folder by its method, its identity and its length."""
    return f"{name_folder(experiment)}-{experiment.plan.rounds}"


def name_folder(experiment: Experiment) -> str:
    """Name the folder of a run of any length: another experiment never finds it."""
    return f"{folder_name(experiment.plan.method.name)}-{experiment.fingerprint()}"


def folder_of(experiment: Experiment, out: Path) -> Path:
    """Find the folder of a run. A longer run goes on in the folder of a shorter one; a shorter one gets its own."""
    shared = out / name_folder(experiment)
    reached = [int(path.stem) for path in shared.glob("checkpoint/*.safetensors") if path.stem.isdigit()]
    return out / place_of(experiment) if max(reached, default=0) > experiment.plan.rounds else shared


# ---- what the ledger keeps -----------------------------------------------------------------------------------------
def entry_of(cell: Cell, run: Run, environment: dict[str, Any]) -> Entry:
    """Make the line that the ledger keeps of a run."""
    result, paper_rounds = run.result, int(cell.experiment["rounds"])
    judged, scored = result["judged_on"] == "accuracy", counted(run.records, run.plan.evaluate_every)
    known: dict[str, Any] = {name: getattr(cell, name) for name in OF_CELL}
    known |= {name: percent(result.get(name)) if judged else None for name in ("best", "last", "mean_last")}
    entry = Entry(
        **known,
        seed=run.plan.seed,
        measured=None,
        rounds=int(result["rounds"]),
        rounds_paper=paper_rounds,
        seconds=round(sum(record.seconds for record in run.records), 1),
        fingerprint=result["fingerprint"],
        model_digest=result["model_digest"],
        environment=environment,
        settings=settings_of(cell),
        plain=percent(by_round(run.records, "plain_accuracy").get(int(result["rounds"]))),
        personal=percent(result.get("reported")),
        sent=sent_by(run),
        step=mean_step(run.records),
        bests=bests_of(scored) if judged else [],
        curve=curve_of(scored, paper_rounds) if judged else {},
        spectra=gather_spectra(run.records),
    )
    return replace(entry, measured=measured(cell, entry))


def environment_of(folder: Path) -> dict[str, Any]:
    """Read what of a run's environment the ledger keeps."""
    data, timing = read_environment(folder), read_json(folder / TIMING)
    kept = {name: data.get(name) for name in ("device", "machine", "engine", "precision", "revision")}
    packages = {name: data.get("packages", {}).get(name) for name in ("torch", "fedkeel")}
    return kept | packages | {"shared": bool(timing.get("shared"))}


def percent(share: float | None) -> float | None:
    return None if share is None else round(100 * share, 4)


def sent_by(run: Run) -> float | None:
    """Compute bytes both ways over those of models alone, which is what FedAvg sends."""
    if not run.records:
        return None
    model = state_bytes([run.server[k] for k in ("params", "buffers") if k in run.server])
    plain = 2 * model * sum(len(record.selected) for record in run.records)
    return round(sum(record.bytes_down + record.bytes_up for record in run.records) / plain, 4)


def mean_step(records: Sequence[RoundRecord]) -> float | None:
    """Compute the mean length of a local step over all rounds, where the method measures it."""
    found = by_round(records, STEP).values()
    return float(f"{sum(found) / len(found):.6g}") if found else None


def bests_of(records: Sequence[RoundRecord]) -> list[list[float]]:
    """List (round, accuracy in %) of each round that was better than all before it."""
    found: list[list[float]] = []
    for record in records:
        value = percent(record.accuracy)
        if value is not None and (not found or value > found[-1][1]):
            found.append([record.round, value])
    return found


def curve_of(records: Sequence[RoundRecord], paper_rounds: int) -> dict[str, float]:
    """Return the accuracy of every fiftieth round, in %; of more where the paper has fewer than 200."""
    every = 50 if paper_rounds >= 200 else 5 if paper_rounds >= 20 else 1
    found = {str(r.round): percent(r.accuracy) for r in records if r.round % every == 0}
    return {at: value for at, value in found.items() if value is not None}


# ---- what it costs -------------------------------------------------------------------------------------------------
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

"""What a reader of a comparison must know: in what runs differ besides their methods, and how far they came."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fedkeel.problems.policy import Evaluation
from fedkeel.runs.checkpoint import list_checkpoints
from fedkeel.runs.environment import describe_place
from fedkeel.runs.finished_run import Run
from fedkeel.runs.folder import TIMING, find_divergence, read_environment, read_json
from fedkeel.runs.own_code import describe_edits, sources_of
from fedkeel.runs.record import describe_stop
from fedkeel.studies.run_groups import RunGroup, measures_of, settings_of
from fedkeel.typed_values import flatten


def unfair(groups: Sequence[RunGroup], tuned: Collection[str] = ()) -> list[str]:
    """List in what runs differ apart from method, seed and what was `tuned` for each method: keys of the experiment,
    and for a seed that groups share, the split and the selected clients. Each compares more than methods."""
    aside = {"method", "seed", "partition_seed", *tuned}
    settings = [
        {name: repr(v) for name, v in flatten(settings_of(run)).items() if not {name, name.split(".")[0]} & aside}
        for group in groups
        for run in group.runs.values()
    ]
    found = {
        name.split(".")[0] for one in settings for other in settings for name in one if other.get(name) != one[name]
    }
    proxies = {run.plan.method.server_phase is not None for group in groups for run in group.runs.values()}
    if len(proxies) > 1:
        found.add("samples that the server takes from the clients")
    if len(measures := measures_of(groups)) > 1:
        found.add(f"what they are judged on ({', '.join(sorted(measures))})")
    for seed in {seed for group in groups for seed in group.runs}:
        runs = [group.runs[seed] for group in groups if seed in group.runs]
        if len({run.plan.partition_seed for run in runs}) > 1:
            found.add("partition_seed")
        length = min(len(run.records) for run in runs)
        if len({repr([record.selected for record in run.records[:length]]) for run in runs}) > 1:
            found.add("selected clients")
    return sorted(found)


def edited_between(groups: Sequence[RunGroup]) -> list[str]:
    """List in words what code of one's own was edited between runs: seeds of one method are then of several."""
    made = [(group.label, run) for group in groups for run in group.runs.values()]
    return describe_edits([(label, run.plan.seed, code_of(run)) for label, run in made])


def code_of(run: Run) -> dict[str, str]:
    """Return the digests of the code of one's own that a run was made with."""
    return sources_of(run.path, run.plan.parts)


def unfinished(groups: Sequence[RunGroup]) -> list[str]:
    """List in words each run with fewer rounds than its experiment has: stopped, diverged, interrupted, failed, or its
    file damaged."""
    found = []
    for group in groups:
        for seed, run in group.runs.items():
            if len(run.records) < run.plan.rounds:
                name = group.label if len(group.runs) == 1 else f"{group.label} seed {seed}"
                found.append(f"{name} {_reached(run)}")
    return found


def _reached(run: Run) -> str:
    if (stopped := describe_stop(run.result)) is not None:
        return f"was {stopped}"
    at = f"round {len(run.records)} of {run.plan.rounds}"
    saved = list_checkpoints(run.path / "checkpoint") if run.path is not None else []
    if saved and int(saved[0].stem) > len(run.records):
        return f"is known up to {at} only: files of it are damaged"
    if run.path is not None and (diverged := find_divergence(run.path, len(run.records))) is not None:
        return diverged
    return f"is not finished: it stands at {at}"


def machines(groups: Sequence[RunGroup]) -> list[str]:
    """List in words what the runs were made on; seconds of several machines cannot be compared."""
    return sorted({place for group in groups for run in group.runs.values() if (place := place_of(run))})


def place_of(run: Run) -> str:
    """Say on what a run was made; empty for one that is in memory alone."""
    if run.path is None:
        return ""
    return describe_place(read_environment(run.path), read_json(run.path / TIMING))


def judged_as(groups: Sequence[RunGroup]) -> list[str]:
    """Say whose models were judged, and what is reported; nothing for runs judged on one test set."""
    found: dict[str, list[str]] = {}
    for group in groups:
        for told in dict.fromkeys(describe(run.plan.evaluation) for run in group.runs.values()):
            found.setdefault(told, []).append(group.label)
    if found.keys() <= {describe(None)}:
        return []
    return [f"{', '.join(labels)}: {told}" for told, labels in found.items()] if len(found) > 1 else list(found)


def describe(policy: Evaluation | None) -> str:
    if policy is None:
        return "accuracies and losses are of the server's model on the test set"
    return f"accuracies and losses are of {policy.subject}; reported: {policy.report_in_words}"

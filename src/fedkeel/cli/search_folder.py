"""What `fedkeel search` keeps in its folder: what is searched, the tries and their tuning, the winner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedkeel import __version__
from fedkeel.cli.console import say, stderr

if TYPE_CHECKING:
    from fedkeel.cli.training import Target
    from fedkeel.runs.experiment import Experiment
    from fedkeel.runs.finished_run import Run
    from fedkeel.runs.plan import Plan
    from fedkeel.studies.search import Rung


def claim(out: Path, data: Mapping[str, Any]) -> None:
    """Write what is searched into its folder; refuse a folder in which something else was tried."""
    from fedkeel.core.states import write_text
    from fedkeel.errors import FolderError, writing
    from fedkeel.runs.folder import read_json

    file = out / "search.json"
    mine, there = ({key: dumps(value, default=str) for key, value in one.items()} for one in (data, read_json(file)))
    if there and mine != there and (out / "tries").exists():
        keys = sorted(key for key in {*mine, *there} if mine.get(key) != there.get(key))
        raise FolderError(
            f"{out} holds another search (it differs in: {', '.join(keys)}).", "choose another folder with --out"
        )
    with writing(file, "choose another folder with --out"):
        out.mkdir(parents=True, exist_ok=True)
        write_text(file, dumps(data, indent=2, default=str) + "\n")


def find_place(experiment: Experiment, tries: Path) -> Path:
    """The folder of a try, in which every rung goes on.

    Where clients tune the last model, a rung is judged by the tuning after its own rounds. If only that of a longer
    run is there, as version 1.0.0 left it, the rung gets a folder of its own.
    """
    from fedkeel.papers.reproduce import folder_of, name_folder

    shared = tries / name_folder(experiment)
    return folder_of(experiment, tries) if lacks_tuning(experiment.plan, shared) else shared


def lacks_tuning(plan: Plan, folder: Path) -> bool:
    """Whether clients tune the model after the last round, and their scores after so many rounds are not kept."""
    tuned = plan.evaluation is not None and (plan.evaluation.tune or plan.method.final is not None)
    return tuned and not tuning_file(folder, plan.rounds).exists()


def tuning_file(folder: Path, rounds: int) -> Path:
    """Where the scores of models stand that clients tuned after so many rounds: longer runs have a result of theirs."""
    return folder / f"tuned-{rounds}.json"


def keep_tuning(folder: Path, run: Run | None) -> None:
    """Write the scores of models that clients tuned, before a rung that goes on loses them."""
    from fedkeel.core.states import write_text

    if run is not None and run.result.get("tuned"):
        write_text(tuning_file(folder, len(run.records)), dumps(run.result["tuned"]) + "\n")


def read_reached(target: Target) -> Run | None:
    """Read the first rounds of a run that has as many or more; None: it must be trained.

    A folder that is damaged, or of other data, is left to `train`, which says what is wrong with it.
    """
    from fedkeel.cli.training import read_unchanged
    from fedkeel.errors import FolderError
    from fedkeel.runs.folder import EXPERIMENT, RESULT, read_json
    from fedkeel.runs.own_code import warn_of_edits

    folder, plan = target.folder, target.experiment.plan
    if not (folder / EXPERIMENT).exists():
        return None
    try:
        made = read_unchanged(target)
    except FolderError:
        return None
    if made is None or len(made.records) < plan.rounds:
        return None
    if len(made.records) > plan.rounds or not (folder / RESULT).exists():  # its result is of another length, or none
        if lacks_tuning(plan, folder):
            return None
        tuned = read_json(tuning_file(folder, plan.rounds))
        made = replace(made, records=made.records[: plan.rounds], result={"tuned": tuned})
    warn_of_edits(folder, plan.parts)
    return made


def write_tries(file: Path, sides: Mapping[str, Sequence[Rung]]) -> None:
    """Every try of every rung, a line each."""
    from fedkeel.core.states import write_text

    lines = [
        {
            "side": side, "method": one.method, "setting": dict(one.setting), "seed": one.experiment.seed,
            "rounds": rung.rounds, "validation": score,
            "fingerprint": one.experiment.with_(rounds=rung.rounds).fingerprint(), "version": __version__,
        }
        for side, rungs in sides.items()
        for rung in rungs
        for one, score in rung.scores.items()
    ]  # fmt: skip
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, "".join(dumps(line) + "\n" for line in lines))


def write_winner(file: Path, experiment: Experiment, problem: str | None = None) -> None:
    """The winning composition as an experiment that `fedkeel run` takes, with the name of its `problem`, if it has
    one; each seed has a split of its own, as the final runs have: a `partition_seed` is that of the tries."""
    import tomli_w

    from fedkeel.core.states import write_text
    from fedkeel.methods.named import own_names

    data = experiment.save() | ({} if problem is None else {"problem": problem})
    write_text(file, tomli_w.dumps({key: value for key, value in data.items() if key != "partition_seed"}))
    trust = " --trust" if problem is not None or any(own_names(data)) else ""
    say(stderr(), "winner", "bold green", f"fedkeel run {file}{trust}")

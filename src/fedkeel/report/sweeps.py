"""Runs that differ in one number, found among any runs: overlaid by round, and their results against that number."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fedkeel.papers.ledger import Entry, longest
from fedkeel.report.content import Content, look
from fedkeel.report.drawing import STYLES, Chart, Shown, finish, new_axes, plain
from fedkeel.report.parameters import ParameterPoint, draw_parameter, name_parameter
from fedkeel.report.series import Spread, curve, row
from fedkeel.report.source import ASIDE, Group
from fedkeel.typed_values import flatten

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 12  # charts of a kind in a page
OVERLAID = 14  # lines in one frame
IGNORED = ("method.name", "method.papers")
NOTE = "runs that differ in nothing else, on the seeds that they share; bars: one standard deviation over seeds"


@dataclass(frozen=True, eq=False)
class Trial:
    """One setting: its name, all its settings, its result over seeds in %, and its accuracy by round."""

    method: str
    settings: Mapping[str, Any]
    result: Spread
    rounds: Sequence[int] = ()
    accuracy: Sequence[float] = ()
    seeds: frozenset[Any] = frozenset()
    on_seeds: Callable[[frozenset[Any]], Trial] | None = None


@dataclass(frozen=True, eq=False)
class Sweep:
    """Trials that differ in the setting `key`, by the line that they belong to; `fixed` is what they share."""

    key: str
    fixed: str
    lines: Mapping[str, Sequence[Trial]]


def find_sweeps(trials: Sequence[Trial]) -> list[Sweep]:
    """Every number in which some trials differ while nothing else does; of one chart are those with the same data."""
    found = []
    for key in sorted({name for trial in trials for name, value in trial.settings.items() if is_number(value)}):
        lines: dict[str, list[Trial]] = {}
        for trial in trials:
            if is_number(trial.settings.get(key)):
                lines.setdefault(identify(trial, key), []).append(trial)
        shared = map(on_shared_seeds, lines.values())
        swept = [line for line in shared if len({trial.settings[key] for trial in line}) > 1]
        frames: dict[str, list[list[Trial]]] = {}
        for line in swept:
            frames.setdefault(identify(line[0], key, of_method=False), []).append(line)
        firsts = [frame[0][0] for frame in frames.values()]
        found += [Sweep(key, describe_frame(one[0][0], key, firsts), name_lines(one, key)) for one in frames.values()]
    return found


def on_shared_seeds(line: Sequence[Trial]) -> list[Trial]:
    """Trials on the seeds that all have; those without the most frequent seed are left out."""
    counts = Counter(seed for trial in line for seed in trial.seeds)
    if not counts:
        return list(line)
    frequent = counts.most_common(1)[0][0]
    kept = [trial for trial in line if frequent in trial.seeds]
    common = frozenset.intersection(*(trial.seeds for trial in kept))
    return [trial if trial.on_seeds is None or trial.seeds == common else trial.on_seeds(common) for trial in kept]


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def identify(trial: Trial, key: str, of_method: bool = True) -> str:
    kept = {
        name: value
        for name, value in trial.settings.items()
        if name != key and (of_method or not name.startswith("method."))
    }
    return json.dumps(kept, sort_keys=True, default=str) + trial.method * of_method


def describe_frame(trial: Trial, key: str, frames: Sequence[Trial]) -> str:
    """Data set, model, the partition's own numbers and what tells it from other frames, but for the one on the axis."""
    settings = trial.settings
    split = {name: settings[name] for name in ("partition.alpha", "partition.clients") if name in settings}
    words = [str(settings[name]) for name in ("dataset", "model") if name in settings]
    known = {"dataset", "model", "rounds", key, *split}
    names = [name for name in settings if name not in known and not name.startswith("method.")]
    told = {name: settings[name] for name in names if any(one.settings.get(name) != settings[name] for one in frames)}
    numbers = {name: f"{value:g}" for name, value in split.items() if name != key}
    rest = numbers | {name: show(value) for name, value in told.items()}
    return ", ".join([*words, *(f"{name.split('.')[-1]} {value}" for name, value in rest.items())])


def show(value: Any) -> str:
    return f"{value:g}" if is_number(value) else str(value)


def name_lines(frame: Sequence[Sequence[Trial]], key: str) -> dict[str, list[Trial]]:
    """The method's name, and what tells it from others of that name."""
    named: dict[str, list[Trial]] = {}
    for line in frame:
        first, alike = line[0], [other[0] for other in frame if other[0].method == line[0].method]
        told = [
            f"{name.split('.')[-1]}={value}"
            for name, value in first.settings.items()
            if name != key and any(other.settings.get(name) != value for other in alike)
        ]
        named[" ".join([first.method, *told])] = sorted(line, key=lambda trial: trial.settings[key])
    return named


# ---- where trials come from ------------------------------------------------------------------------------------------
def trials_of_runs(made: Content) -> list[Trial]:
    """The groups of a report, those judged on accuracy."""
    groups = [group for setting in made.settings for group in setting.groups if group.measure == "accuracy"]
    return [trial_of(group) for group in groups if row(group, None).results["best"] is not None]


def trial_of(group: Group) -> Trial:
    def on_seeds(seeds: frozenset[Any]) -> Trial:
        return trial_of(replace(group, runs=[run for run in group.runs if run.seeds in seeds]))

    best, drawn = row(group, None).results["best"], curve(group, "accuracy")
    assert best is not None
    scaled = Spread(100 * best.mean, 100 * best.deviation, best.count)
    experiment = group.runs[0].experiment
    settings = simplify({name: value for name, value in experiment.items() if name not in ASIDE})
    settings["rounds"] = str(experiment.get("rounds"))  # a word, not a number: no axis of a chart
    rounds, accuracy = (drawn.rounds, [100 * value for value in drawn.mean]) if drawn else ([], [])
    seeds = frozenset(run.seeds for run in group.runs)
    return Trial(group.runs[0].method, settings, scaled, rounds, accuracy, seeds, on_seeds)


def trials_of_ledger(entries: Sequence[Entry]) -> list[Trial]:
    """The runs of a ledger, seeds together, as far as they came."""
    alike: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry.settings and entry.best is not None and not entry.superseded:
            alike.setdefault(json.dumps([entry.settings, entry.evaluation], sort_keys=True), []).append(entry)
    return [trial for group in alike.values() if (trial := trial_of_entries(longest(group))) is not None]


def trial_of_entries(kept: Sequence[Entry]) -> Trial | None:
    def on_seeds(seeds: frozenset[Any]) -> Trial:
        made = trial_of_entries([entry for entry in kept if entry.seed in seeds])
        assert made is not None
        return made

    result = Spread.of(result_of(entry) for entry in kept)
    if result is None:
        return None
    settings = simplify(kept[0].settings) | {"rounds run": str(kept[0].rounds), "judged": kept[0].evaluation}
    points = [(int(at), value) for at, value in kept[0].curve.items() if at.isdecimal()]
    rounds, accuracy = [at for at, _ in points], [value for _, value in points]
    seeds = frozenset(entry.seed for entry in kept if result_of(entry) is not None)
    return Trial(str(settings.get("method.name", "?")), settings, result, rounds, accuracy, seeds, on_seeds)


def result_of(entry: Entry) -> float | None:
    if entry.evaluation == "last":
        return entry.last
    return entry.personal if entry.personal is not None else entry.best


def simplify(experiment: Mapping[str, Any]) -> dict[str, Any]:
    """Settings under dotted names; a number of the method under its own name, where it has one value throughout."""
    flat = {name: value for name, value in flatten(experiment).items() if not name.startswith(IGNORED[1])}
    rules = [name for name in flat if name.startswith("method.") and name not in IGNORED]
    values: dict[str, set[str]] = {}
    for name in rules:
        values.setdefault(name.split(".")[-1], set()).add(repr(flat[name]))
    made = {name: value for name, value in flat.items() if name not in rules}
    for name in rules:
        last = name.split(".")[-1]
        made[f"method.{last}" if len(values[last]) == 1 else name] = flat[name]
    return made


# ---- their charts ----------------------------------------------------------------------------------------------------
def sweep_charts(trials: Sequence[Trial], best: str = "best test accuracy (%)") -> Iterator[Chart]:
    """Two charts for each sweep: results against the number, and all runs by round."""
    for number, sweep in enumerate(find_sweeps(trials)[:MOST]):
        file, name = f"{number + 1}-{sweep.key.split('.')[-1].replace('_', '-')}", name_parameter(sweep.key)
        title = f"Accuracy against {name.split(' (')[0]}"
        yield Chart(f"against-{file}", "sweeps", title, f"{sweep.fixed}; {NOTE}", draw_results(sweep, best))
        if 1 < sum(bool(trial.rounds) for line in sweep.lines.values() for trial in line) <= OVERLAID:
            title = f"By round, for several values of {name.split(' (')[0]}"
            yield Chart(f"by-round-{file}", "sweeps", title, sweep.fixed, draw_overlaid(sweep))


def draw_results(sweep: Sweep, ylabel: str) -> Figure:
    lines = []
    for number, (label, trials) in enumerate(sweep.lines.items()):
        points = [
            ParameterPoint(float(t.settings[sweep.key]), t.result.mean, t.result.deviation or None) for t in trials
        ]
        colour, dash = look(number)
        lines.append(Shown(label, "", colour, STYLES[dash], points))
    axes = new_axes(4.6, 3.1 + 0.17 * -(-len(lines) // 2), fitted=True)
    return add_names(draw_parameter(axes, lines, sweep.key, ylabel))


def draw_overlaid(sweep: Sweep) -> Figure:
    """A colour for each value, dashes for each method."""
    values = sorted({trial.settings[sweep.key] for line in sweep.lines.values() for trial in line})
    short, count = sweep.key.split(".")[-1], sum(len(line) for line in sweep.lines.values())
    axes = new_axes(4.6, 3.1 + 0.17 * -(-count // 2), fitted=True)
    for number, (label, trials) in enumerate(sweep.lines.items()):
        for trial in (trial for trial in trials if trial.rounds):
            value = trial.settings[sweep.key]
            colour, style = look(values.index(value))[0], STYLES[number % len(STYLES)]
            name = plain(f"{label}, {short} {value:g}")
            axes.plot(trial.rounds, trial.accuracy, color=colour, linestyle=style, linewidth=1.2, label=name)
    axes.xaxis.get_major_locator().set_params(integer=True)
    return add_names(finish(axes, xlabel="round", ylabel="test accuracy (%)"))


def add_names(figure: Figure) -> Figure:
    """The legend below, which a page has above for other charts."""
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=7)
    return figure

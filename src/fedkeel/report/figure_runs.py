"""The runs behind a paper's figure: run folders where they are, lines of the ledger where not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import stdev

from fedkeel.analysis.intervals import list_differences
from fedkeel.papers.cells import Cell
from fedkeel.papers.figures import Figure, Panel
from fedkeel.papers.ledger import Entry, cut_to, longest
from fedkeel.papers.noise import NoiseOfLedger
from fedkeel.papers.reproduce import experiment_of, folder_of, length_of, obstacle, runs_of
from fedkeel.papers.spectra import KEPT, has_tracked, rounds_of, spread_out
from fedkeel.papers.verdicts import Judgement, bring_together, judge
from fedkeel.report.shared_runs import keep_common_rounds
from fedkeel.report.source import Group, Source
from fedkeel.runs.folder import EXPERIMENT, ROUNDS
from fedkeel.runs.record import RoundRecord

Place = tuple[str, str, str, str]


@dataclass(frozen=True, eq=False)
class FigureRuns:
    """What is known of a figure's cells: from the ledger's lines, and from folders below `out`."""

    figure: Figure
    entries: Sequence[Entry]
    out: Path | None = None
    seeds: Sequence[int] = (0,)
    rounds: int | None = None
    noise: NoiseOfLedger | None = None

    @cached_property
    def judged(self) -> Mapping[Place, Judgement]:
        """The number of every cell; seconds of a round where a panel asks for those."""
        timed = {cell.place for panel in self.figure.panels if panel.measure == "seconds" for cell in panel.cells}
        cells = [
            replace(cell, kind="seconds per round", reported=None, spread=None) if cell.place in timed else cell
            for cell in self.figure.cells
        ]
        return {one.cell.place: one for one in judge(cells, self.entries, noise=self.noise)}

    @cached_property
    def sources(self) -> Mapping[Place, Sequence[Source]]:
        """The runs of every cell, one for each seed."""
        return {cell.place: self._sources_of(cell) for cell in self.figure.cells}

    def _sources_of(self, cell: Cell) -> list[Source]:
        found = {entry.seed: source_of_entry(entry) for entry in self.entries_of(cell)}
        if self.out is not None and obstacle(cell) is None:
            for seed in sorted({*self.seeds, *found}):
                folder = folder_of(experiment_of(cell, seed, self.rounds), self.out)
                if (folder / EXPERIMENT).exists() and (folder / ROUNDS).exists():
                    source = Source.read(folder)
                    last = length_of(cell, self.rounds)
                    records = [record for record in source.records if record.round <= last]
                    if seed not in found or len(records) >= min(last, found[seed].experiment["rounds"]):
                        found[seed] = replace(source, records=records)
        return [found[seed] for seed in sorted(found)]

    def entries_of(self, cell: Cell) -> list[Entry]:
        """The lines of the ledger that went on longest, of those that keep what the figure tracks; where that names its
        rounds, each as it stood at the last of them, unless none tells."""
        asked = [track for track in self.figure.track if track.partition("@")[0] in KEPT]
        found = [one for one in runs_of(cell, self.entries) if has_tracked(one.spectra, one.rounds, asked)]
        return longest(cut_to(found, self.count_rounds_needed(cell)) or found)

    def group_lines(self, panel: Panel) -> list[Group]:
        """One group for each line of a panel that has runs, with the rounds that all its runs show. A run of which one
        round is known is in no curve of others that have more."""
        found = []
        for group in self.group_runs(panel):
            long = [run for run in group.runs if len(run.records) > 1] if panel.kind == "curves" else []
            found += keep_common_rounds([replace(group, runs=long or group.runs)], panel)
        return found

    def group_runs(self, panel: Panel) -> list[Group]:
        """The same with all that is known of the runs."""
        lines: dict[str, list[Source]] = {}
        for cell in panel.cells:
            lines.setdefault(panel.line_of(cell), []).extend(run for run in self.sources[cell.place] if run.records)
        return [Group(line, panel.title, runs) for line, runs in lines.items() if runs]

    def number_of(self, panel: Panel, cell: Cell) -> tuple[float, float | None] | None:
        """A cell's mean and deviation over seeds, less what it is a gain over: then of the seeds that both have."""
        mine, *base = bring_together(*self.sides_of(panel, cell))
        if mine.mean is None or any(one.mean is None for one in base):
            return None
        if not base:
            return mine.mean, mine.std
        gains = list_differences(*(_by_seed(one) for one in (mine, base[0])))
        return mine.mean - (base[0].mean or 0.0), stdev(gains) if len(gains) > 1 else None

    def sides_of(self, panel: Panel, cell: Cell) -> list[Judgement]:
        """A cell, and what it is a gain over."""
        base = panel.base_of(cell)
        return [self.judged[cell.place], *([] if base is None else [self.judged[base.place]])]

    def reported_of(self, panel: Panel, cell: Cell) -> float | None:
        """The same of the paper's numbers."""
        base = panel.base_of(cell)
        if panel.measure != "accuracy" or cell.reported is None:
            return None
        if base is None:
            return cell.reported
        return None if base.reported is None else cell.reported - base.reported

    def count_rounds(self, cell: Cell) -> int:
        """Count the rounds of what is drawn of a cell; 0 where there is nothing."""
        if not self._is_looked_at(cell):
            return self.judged[cell.place].rounds
        return max((run.records[-1].round for run in self.sources[cell.place] if run.records), default=0)

    def count_rounds_needed(self, cell: Cell) -> int:
        """Count the rounds that the figure is about: the paper's, or up to the last that it tracks."""
        named = [int(at) for track in self.figure.track for at in track.partition("@")[2].split("+") if at]
        whole = int(cell.experiment["rounds"])
        return min(whole, max(named)) if named and self._is_looked_at(cell) else whole

    def count_seeds(self, cell: Cell) -> int:
        """Count the seeds of what is drawn of a cell."""
        place = cell.place
        return len(self.sources[place] if self._is_looked_at(cell) else self.judged[place].entries)

    def _is_looked_at(self, cell: Cell) -> bool:
        """Whether diagnostics of a cell are drawn, and not its numbers."""
        return any(panel.kind == "charts" and cell in panel.cells for panel in self.figure.panels)

    def missing(self) -> list[Cell]:
        """Cells of which nothing is known."""
        if {panel.kind for panel in self.figure.panels} <= {"parameter", "bars"}:
            return [cell for cell in self.figure.cells if not self.judged[cell.place].entries]
        return [cell for cell in self.figure.cells if not self.sources[cell.place]]


def _by_seed(judged: Judgement) -> dict[int, float]:
    pairs = zip(judged.entries, judged.values, strict=True)
    return {entry.seed: value for entry, value in pairs if value is not None}


def source_of_entry(entry: Entry) -> Source:
    """A line of the ledger as a run without a folder: the accuracies and spectra it keeps, in their rounds."""
    kept = {int(at): value for at, value in entry.curve.items() if at.isdecimal()}
    if entry.last is not None:
        kept[entry.rounds] = entry.last
    shares = {at: value / 100 for at, value in kept.items()}
    records = [
        RoundRecord(
            at, [], None, None, 0, 0, 0, 0.0, accuracy=shares.get(at), extra=spread_out(entry.spectra, at)
        )
        for at in sorted({*shares, *rounds_of(entry.spectra)})
    ]  # fmt: skip
    experiment = dict(entry.settings) | {"seed": entry.seed, "rounds": entry.rounds}
    best = {} if entry.best is None else {"best": entry.best / 100}
    return Source(Path(), experiment, "", records, entry.environment, {}, best)


def is_of_ledger(source: Source) -> bool:
    return source.path == Path()


def source_of_cell(cell: Cell) -> Source:
    """A cell's experiment as a run that has not begun: enough for the clients' labels."""
    return Source(Path(), experiment_of(cell, 0).save(), "", [], {}, {})

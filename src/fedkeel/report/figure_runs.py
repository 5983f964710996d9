"""The runs behind a paper's figure: run folders where they are, lines of the ledger where not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from fedkeel.papers.cells import Cell
from fedkeel.papers.figures import Figure, Panel
from fedkeel.papers.ledger import Entry, longest
from fedkeel.papers.noise import NoiseOfLedger
from fedkeel.papers.reproduce import experiment_of, folder_of, length_of, obstacle, runs_of
from fedkeel.papers.spectra import KEPT, has_tracked, rounds_of, spread_out
from fedkeel.papers.verdicts import Judgement, judge
from fedkeel.report.numbers import read_number
from fedkeel.report.series import curve
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
                    found[seed] = replace(source, records=[r for r in source.records if r.round <= last])
        return [found[seed] for seed in sorted(found)]

    def entries_of(self, cell: Cell) -> list[Entry]:
        """The lines of the ledger that went on longest, of those that keep what the figure tracks; where that names its
        rounds, each as it stood at the last of them."""
        asked = [track for track in self.figure.track if track.partition("@")[0] in KEPT]
        found = [one for one in runs_of(cell, self.entries) if has_tracked(one.spectra, one.rounds, asked)]
        last = self.count_rounds_needed(cell)
        return longest(one.until(last) or one for one in found)

    def group_lines(self, panel: Panel) -> list[Group]:
        """One group for each line of a panel that has runs."""
        lines: dict[str, list[Source]] = {}
        for cell in panel.cells:
            lines.setdefault(panel.line_of(cell), []).extend(self.sources[cell.place])
        return [Group(line, panel.title, runs) for line, runs in lines.items() if any(run.records for run in runs)]

    def number_of(self, panel: Panel, cell: Cell, round: int | None = None) -> tuple[float, float | None] | None:
        """A cell's mean and deviation over seeds, perhaps at an earlier round, less what it is a gain over."""
        mine, base = self._judgement_at(cell, round), panel.base_of(cell)
        if mine.mean is None:
            return None
        if base is None:
            return mine.mean, mine.std
        other = self._judgement_at(base, round)
        return None if other.mean is None else (mine.mean - other.mean, mine.std)

    def _judgement_at(self, cell: Cell, round: int | None) -> Judgement:
        mine = self.judged[cell.place]
        return mine if round is None or round == mine.rounds else mine.at(round)

    def reported_of(self, panel: Panel, cell: Cell) -> float | None:
        """The same of the paper's numbers."""
        base = panel.base_of(cell)
        if panel.measure != "accuracy" or cell.reported is None:
            return None
        if base is None:
            return cell.reported
        return None if base.reported is None else cell.reported - base.reported

    def look_up(self, names: Sequence[str]) -> dict[str, dict[str, dict[str, float]]]:
        """The numbers of some lines by panel, line and place, at the last round that all of them have in the panel."""
        found: dict[str, dict[str, dict[str, float]]] = {}
        for number, panel in enumerate(self.figure.panels):
            title = panel.title or f"panel {number + 1}"
            lines: dict[str, dict[str, float]] = {name: {} for name in names}
            if panel.kind == "curves" and panel.measure != "accuracy":
                for group in self.group_lines(panel):
                    if group.label in lines and (drawn := curve(group, panel.measure)):
                        lines[group.label]["mean over rounds"] = sum(drawn.mean) / len(drawn.mean)
            elif panel.kind == "charts":
                found |= self.read_diagnostics(panel, names)
                continue
            elif panel.kind in ("parameter", "curves", "bars"):
                cells = [cell for cell in panel.cells if panel.line_of(cell) in lines]
                lengths = {one.rounds for cell in cells if (one := self.judged[cell.place]).entries}
                common = min(lengths) if len(lengths) > 1 else None
                title += f", at round {common}" * (common is not None)
                for cell in cells:
                    if value := self.number_of(panel, cell, common):
                        lines[panel.line_of(cell)][panel.point_of(cell)] = value[0]
            found[title] = lines
        return found

    def read_diagnostics(self, panel: Panel, names: Sequence[str]) -> dict[str, dict[str, dict[str, float]]]:
        """The numbers of diagnostics that a panel names, each as a panel of its own, by line."""
        found: dict[str, dict[str, dict[str, float]]] = {}
        for number in panel.numbers:
            values = {
                group.label: value
                for group in self.group_lines(panel)
                if group.label in names and (value := read_number(group, number)) is not None
            }
            title = f"{panel.title} {number}".strip()
            found[title] = {name: {number: values[name]} if name in values else {} for name in names}
        return found

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
    return Source(Path(), experiment, "", records, entry.environment, {})


def is_of_ledger(source: Source) -> bool:
    return source.path == Path()


def source_of_cell(cell: Cell) -> Source:
    """A cell's experiment as a run that has not begun: enough for the clients' labels."""
    return Source(Path(), experiment_of(cell, 0).save(), "", [], {}, {})

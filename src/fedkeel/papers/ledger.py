"""The ledger: one line for each run of a published cell, kept with the project. No number in it is typed by hand."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from math import fsum
from pathlib import Path
from typing import Any

from fedkeel.core.schedules import spans_run
from fedkeel.data.storage.line_file import append_line, read_whole_lines
from fedkeel.errors import RequestError, RunError, explain_os_errors
from fedkeel.papers.spectra import Spectra, cut_spectra
from fedkeel.ranges import Count, Seed
from fedkeel.runs.environment import describe_place
from fedkeel.typed_values import read_line, show_value

LEDGER = Path("results") / "ledger.jsonl"


@dataclass(frozen=True)
class Entry:
    """One run: what was measured, and where. It is filed under the cell that it was made for, but serves every cell
    with the same `settings` (the experiment as plain data, but for seed and rounds).

    Accuracies are in %. `plain` is the last one of the model that is trained, where another is deployed; `personal`
    what the experiment's evaluation policy reports; `sent` the bytes both ways over FedAvg's; `step` the mean
    length of a local step, where the method measures it; `bests` each round that was better than all before it, and
    `curve` the accuracy of some rounds by number; `spectra` how much clients disagree by band, where that was
    tracked. `lr_matches` is the row that its rate was matched to, "" where it was not, None in older lines, which do
    not say. `superseded` says why a run no longer counts for any cell, for instance because its method has computed
    something else since; such a line stays, and is shown. `undigested` says why a line has no `model_digest`.
    """

    paper: str
    table: str
    row: str
    column: str
    seed: Seed
    kind: str
    evaluation: str
    reported: float | None
    spread: float | None
    measured: float | None
    best: float | None
    last: float | None
    mean_last: float | None
    rounds: Count
    rounds_paper: Count
    seconds: float
    fingerprint: str
    model_digest: str
    uncertain: bool = False
    source: str = "own run"
    environment: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    plain: float | None = None
    personal: float | None = None
    sent: float | None = None
    step: float | None = None
    bests: list[list[float]] = field(default_factory=list)
    curve: dict[str, float] = field(default_factory=dict)
    spectra: Spectra = field(default_factory=dict)
    lr_matches: str | None = None
    superseded: str = ""
    undigested: str = ""

    @property
    def shortened(self) -> bool:
        return self.rounds < self.rounds_paper

    @property
    def timed(self) -> bool:
        """Whether its seconds are its own: no other run was in the stack, or on the card."""
        return not self.environment.get("shared")

    @property
    def place(self) -> str:
        """On what its seconds were measured, in words."""
        return describe_place(self.environment, {})

    @property
    def version(self) -> str:
        """The version of fedkeel that made it, with the revision where it is known; older lines say neither."""
        version, revision = (self.environment.get(name) for name in ("fedkeel", "revision"))
        return str(version or "unrecorded") + (f" ({revision})" if revision else "")

    @property
    def cell(self) -> tuple[str, str, str, str]:
        return self.paper, self.table, self.row, self.column

    @property
    def identity(self) -> tuple[Any, ...]:
        """Runs of one identity are the same run; the newest counts."""
        return *self.run, self.rounds

    @property
    def run(self) -> tuple[Any, ...]:
        """The same for a run that was shortened first and for what it became when it went on; but also for another
        training with its settings and seed: `continues` tells them apart."""
        made = json.dumps(self.settings, sort_keys=True) if self.settings else (*self.cell, self.fingerprint)
        return made, self.seed

    @property
    def seconds_per_round(self) -> float:
        return self.seconds / self.rounds

    def best_by(self, round: int) -> float | None:
        """Return the best accuracy up to a round; None where the line does not say."""
        if round >= self.rounds:
            return self.best
        return next((value for at, value in reversed(self.bests) if at <= round), None)

    def at_round(self, round: int) -> float | None:
        """Return the accuracy of a round; None where the line does not say."""
        return self.last if round == self.rounds else self.curve.get(str(round))

    def until(self, round: int) -> Entry | None:
        """This run as it stood at a round; None where the line does not tell: a final tuning came only at the end, and
        a schedule that lasts as long as the run makes a shorter or longer one another run."""
        if self.rounds != round and follows_length(self.settings):
            return None
        if self.rounds <= round:
            return self
        best = self.best_by(round)
        if best is None or self.personal is not None:
            return None
        return replace(
            self,
            rounds=round,
            measured=None,
            best=best,
            last=self.at_round(round),
            mean_last=None,
            plain=None,
            step=None,
            seconds=self.seconds_per_round * round,
            bests=[pair for pair in self.bests if pair[0] <= round],
            curve={at: value for at, value in self.curve.items() if at.isdecimal() and float(at) <= round},
            spectra=cut_spectra(self.spectra, round),
        )

    def continues(self, other: Entry) -> bool:
        """Whether this is what a shorter run became when it went on, by what both lines say of the rounds up to there.
        Settings and seed do not tell: on a GPU they give other numbers the next time."""
        if self.run != other.run or self.rounds <= other.rounds or not other.bests:
            return False
        every = self.settings.get("evaluate_every")
        step = every if isinstance(every, int) and every > 0 else 1  # the shorter one was also scored at its end
        mine, theirs = ([p for p in one.bests if p[0] <= other.rounds and p[0] % step == 0] for one in (self, other))
        return mine == theirs and self.at_round(other.rounds) in (None, other.last)

    def is_same_training(self, other: Entry) -> bool:
        """Whether both are lines of one training, though perhaps for two cells; a run that was made again took another
        time, or has other accuracies."""
        mine, theirs = ((*e.identity, e.model_digest, e.seconds, e.environment, e.last, e.bests) for e in (self, other))
        return mine == theirs

    def rounds_to(self, accuracy: float) -> int | None:
        """Find the first round that reached an accuracy."""
        return next((int(at) for at, value in self.bests if value >= accuracy), None)

    def dumps(self) -> str:
        return json.dumps(asdict(self) | {"shortened": self.shortened}, sort_keys=True, ensure_ascii=False)


def follows_length(settings: Mapping[str, Any]) -> bool:
    """Whether rates depend on the length of the run, so that a shorter run is not the beginning of a longer one."""
    given = (settings.get(key) for key in ("schedule", "server_schedule"))
    return any(spans_run(one) for one in given if one)


def append(entry: Entry, path: Path = LEDGER) -> None:
    """Add a line, unless there is one of the same training: another process may have found the run finished. Half a
    line at the end, which a process that was killed leaves behind, is put aside first. A line without a digest of its
    model is refused, unless it says why."""
    if not entry.model_digest and not entry.undigested:
        told = f"{entry.paper}:{entry.table} {entry.row}, {entry.column}, seed {entry.seed}"
        raise RunError(f"a line of the ledger has no digest of its model: {told}", "`undigested` must say why")
    hint = "the run is kept in its folder: the same command again adds its line"
    with explain_os_errors(f"cannot write the ledger {path}", hint, RunError):
        append_line(
            path,
            entry.dumps(),
            read_entry,
            lambda line: entry.model_digest.encode() in line and entry.is_same_training(read_entry(line)),
        )


def check_writable(path: Path) -> None:
    """Refuse a ledger that no line can be appended to. One that is not there is not made: the folder is tried."""
    with explain_os_errors(f"cannot write the ledger {path}", "name another file: --ledger FILE", RequestError):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            path.open("ab").close()
        else:
            tempfile.TemporaryFile(dir=path.parent).close()


def read(path: Path = LEDGER, *, needed: bool = False) -> list[Entry]:
    """Read every run once, the newest where it was made again. No file is no runs, or an error where it is needed."""
    return keep_newest(read_lines(path, needed=needed))


def keep_newest(entries: Iterable[Entry]) -> list[Entry]:
    """Keep every run once: where it was made again, the last that stands counts."""
    found: dict[tuple[Any, ...], Entry] = {}
    for entry in entries:
        known = found.setdefault(entry.identity, entry)
        if known.superseded or not entry.superseded:
            found[entry.identity] = entry
    return list(found.values())


def read_lines(path: Path = LEDGER, *, needed: bool = False) -> list[Entry]:
    """Read every line, oldest first, also of runs that were made again since."""
    if not path.exists():
        if needed:
            raise RequestError(f"there is no ledger: {path}", "`fedkeel reproduce` writes one; name it: --ledger FILE")
        return []
    hint = "name a file of `fedkeel reproduce`: --ledger FILE"
    with explain_os_errors(f"cannot read the ledger {path}", hint, RequestError):
        lines = read_whole_lines(path, read_entry)
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found.append(read_entry(line))
        except (ValueError, TypeError, RecursionError) as error:  # not text, not JSON, not an entry
            raise RequestError(
                f"{path} is damaged in line {number}: {error}", "restore it from a copy, or delete that line"
            ) from None
    return found


def read_entry(line: bytes) -> Entry:
    """Read a line of the ledger; a ValueError names a field that cannot be what it is."""
    entry = Entry(**read_line(Entry, json.loads(line)))
    if any(len(pair) != 2 for pair in entry.bests):
        raise ValueError(f"bests must be pairs of a round and an accuracy: {show_value(entry.bests)}")
    if not all(at.isascii() and at.isdecimal() for by_round in entry.spectra.values() for at in by_round):
        raise ValueError(f"spectra must be lists by round: {show_value(entry.spectra)}")
    made = entry.settings
    if made and not (isinstance(made.get("method"), dict) and isinstance(made.get("dataset"), str)):
        raise ValueError(f"settings must have a table `method` and the name of a dataset: {show_value(made)}")
    return entry


def standing(entries: Iterable[Entry]) -> list[Entry]:
    """Keep the runs that count: all but the superseded."""
    return [entry for entry in entries if not entry.superseded]


def furthest(entries: Iterable[Entry]) -> list[Entry]:
    """Keep each run once, as far as it came: all but those that a longer line continues."""
    found: dict[tuple[Any, ...], list[Entry]] = {}
    for entry in entries:
        found.setdefault(entry.run, []).append(entry)
    return [e for alike in found.values() for e in alike if not any(other.continues(e) for other in alike)]


def spent(entries: Iterable[Entry]) -> tuple[int, float, list[str]]:
    """Count the runs and the hours they took, and list on what, and in which arithmetic."""
    runs = furthest(entries)
    places = sorted({f"{entry.environment.get('device')} in {entry.environment.get('precision')}" for entry in runs})
    return len(runs), fsum(entry.seconds for entry in runs) / 3600, places


def longest(entries: Iterable[Entry]) -> list[Entry]:
    """Keep the runs that went on longest, one for each seed."""
    found = list(entries)
    length = max((entry.rounds for entry in found), default=0)
    by_seed = {entry.seed: entry for entry in found if entry.rounds == length}
    return [by_seed[seed] for seed in sorted(by_seed)]


def cut_to(entries: Iterable[Entry], rounds: int, *, with_last: bool = False) -> list[Entry]:
    """Cut runs to a round; leave out those that went on and do not say how they were there (`with_last`: nor their
    accuracy there). Those that were cut come first, and the last of a seed counts: a run of just that length if any."""
    found = [(cut, cut is not entry) for entry in entries if (cut := entry.until(rounds)) is not None]
    cuts = [one for one, is_cut in found if is_cut and not (with_last and one.last is None)]
    return cuts + [one for one, is_cut in found if not is_cut]

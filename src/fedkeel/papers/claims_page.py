"""The claims page, made from the ledger alone: what each paper claims, and what the runs of full length say of it."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from fedkeel.analysis.intervals import ALIKE, LEVEL, MISSES
from fedkeel.papers import PAPERS, tables
from fedkeel.papers.claim_verdicts import (
    CONFIRMED,
    CONTRADICTED,
    OPEN,
    SEEDS_AT_ONCE,
    UNDECIDED,
    Decision,
    Finding,
    decide_claims,
)
from fedkeel.papers.claims import EXPECTED
from fedkeel.papers.ledger import LEDGER, Entry, furthest, keep_newest, standing
from fedkeel.papers.reproduce import runs_of
from fedkeel.papers.results_page import name_source, write_grid
from fedkeel.papers.verdicts import Judgement
from fedkeel.text import plural

LONG = 300
"""A run counts as one of full length from this many rounds on, if it has all of its cell's."""

FAR = 5.0
"""Points of accuracy from which on a row's own number is said to be far from the paper's."""

FAR_SHARE = 0.25
"""The same of rounds, as a share of the paper's."""

HEAD = (files("fedkeel.papers") / "claims_page.md").read_text(encoding="utf-8")
"""What the page begins with; in braces, what verdicts go by."""

PAGE = Path("docs/claims.md")  # of the project's own ledger

NAMES = ["difference", "reported", "measured", "interval", "seeds", "rounds", "gradients", "minutes", "verdict"]


def page(entries: Sequence[Entry], file: Path = PAGE, ledger: Path = LEDGER) -> str:
    """Markdown: the verdicts in short, each paper's claims, the runs of full length by claim."""
    decisions = decide_claims(entries)
    expected = {name.replace(" ", "_"): words for name, words in EXPECTED.items()}
    second, third = (100 * (1 - (1 - LEVEL) / 2**more) for more in (1, 2))
    looks = {"percent": 100 * LEVEL, "misses": MISSES, "second": second, "third": third, "all_looks": MISSES / 2}
    limits = {"far": FAR, "far_share": 100 * FAR_SHARE}
    head = HEAD.format(**looks, **limits, **expected, **name_source(file, ledger))
    parts = [head, *write_overview(decisions)]
    for paper, title in PAPERS.items():
        own = [decision for decision in decisions if decision.claim.paper == paper]
        parts += [f"\n## {title}"] if own else []
        parts += [line for decision in own for line in write_section(decision)]
    return "\n".join([*parts, *list_long_runs(decisions, entries)]).rstrip() + "\n"


def write_overview(decisions: Sequence[Decision]) -> list[str]:
    verdicts = [decision.verdict for decision in decisions]
    counts = ", ".join(f"{verdicts.count(name)} {name}" for name in (CONFIRMED, CONTRADICTED, UNDECIDED))
    rows = [[PAPERS[d.claim.paper].partition(":")[0], d.claim.says, f"**{d.verdict}**", explain(d)] for d in decisions]
    return [
        f"{plural(len(decisions), 'claim')}: {counts}.\n",
        *write_grid(["paper", "claim", "verdict", "why"], "llll", rows),
    ]


def explain(decision: Decision) -> str:
    """How many of its differences are decided, and how."""
    if decision.claim.unmeasured:
        return f"not run: {decision.claim.unmeasured}"
    found = [finding.verdict for finding in decision.findings]
    far = [f"{plural(len(list_far_rows(decision)), 'row')} far from the paper's"] * bool(list_far_rows(decision))
    if len(found) == 1:
        return "; ".join([reason for reason in (decision.findings[0].reason,) if reason] + far)
    counts = [f"{found.count(name)} {name}" for name in (CONFIRMED, CONTRADICTED, UNDECIDED) if name in found]
    reasons = dict.fromkeys(f.reason.partition(":")[0] for f in decision.findings if f.verdict == UNDECIDED)
    told = f" ({', '.join(reasons)})" if reasons else ""
    return "; ".join([f"of {len(found)} differences {', '.join(counts)}{told}", *far])


def list_far_rows(decision: Decision) -> list[str]:
    """The rows of the differences that are measured whose own number is far from the paper's, with both."""
    measured = [finding for finding in decision.findings if finding.interval and not finding.difference.reading]
    told = [describe_if_far(side) for finding in measured for side in finding.sides if finding.reason != "counted"]
    return list(dict.fromkeys(words for words in told if words))


def describe_if_far(side: Judgement) -> str:
    reported, name = side.cell.reported, f"{side.cell.row}, {side.cell.column}"
    if reported is None or side.cell.uncertain:
        return ""
    is_rounds = side.cell.kind == "rounds"
    if is_rounds and None in side.values:
        return f"{name} not reached by every seed ({reported:.0f} rounds)"
    if side.mean is None or abs(side.mean - reported) <= (FAR_SHARE * reported if is_rounds else FAR):
        return ""
    if is_rounds:
        return f"{name} {side.mean:.0f} ({reported:.0f} rounds)"
    return f"{name} {side.mean:.2f} ({reported:.2f})"


def write_section(decision: Decision) -> list[str]:
    claim = decision.claim
    unit = "rounds" if claim.cells and claim.cells[0].kind == "rounds" else "points"
    extra = "" if claim.expects == "ahead" or claim.measure != "numbers" else f" Expected: {claim.expects}"
    extra += f", within {claim.within:g} {unit}." if claim.within else "." if extra else ""
    lines = [f"\n### {claim.name}: {decision.verdict}\n", f"{claim.says} ({claim.where}.){extra}\n"]
    if claim.unmeasured:
        return [*lines, f"Undecided: not run, because {claim.unmeasured}."]
    lines += [f"Read off `{claim.row}`, the mean over layers.\n"] if claim.row else []
    lines += write_grid(NAMES, "lrrrrrrrl", [write_row(finding) for finding in decision.findings])
    lines += [f"\n{claim.note}"] if claim.note else []
    if far := list_far_rows(decision):
        lines.append(f"\nFar from the paper's own number (in brackets): {'; '.join(far)}.")
    versions = sorted({entry.version for finding in decision.findings for entry in finding.entries})
    lines += [f"\nVersions of fedkeel: {', '.join(versions)}."] if versions else []
    if open_ones := [finding for finding in decision.findings if finding.verdict == UNDECIDED]:
        seeds, known = range(SEEDS_AT_ONCE), shared_seeds(open_ones)
        if enough := known.issuperset(seeds):
            seeds = range(max(known) + 1, max(known) + 1 + SEEDS_AT_ONCE)
        length = "" if claim.rounds is None else f" --rounds {claim.rounds}"
        command = f"fedkeel reproduce claims:{claim.name} --seeds {','.join(map(str, seeds))}{length} --skip-done"
        lines.append(f"\n{'More seeds may decide it' if enough else 'The runs that it lacks'}: `{command}`")
    return lines


def shared_seeds(findings: Sequence[Finding]) -> set[int]:
    """The seeds that all sides of all findings have at full length; none where runs are missing or too short."""
    if any(finding.reason not in (OPEN, ALIKE) for finding in findings):
        return set()
    return set.intersection(*({one.seed for one in side.entries} for finding in findings for side in finding.sides))


def write_row(finding: Finding) -> list[str]:
    reason = f" ({finding.reason})" if finding.reason else ""
    seeds = " / ".join(str(len(side.entries)) for side in finding.sides)
    told = [finding.difference.name, *write_numbers(finding), seeds]
    if not finding.entries:
        return [*told, "", "", "", finding.verdict + reason]
    named = finding.looked_at or sorted({side.rounds for side in finding.sides if side.entries})
    rounds = ", ".join(str(n) for n in named)
    cost = [f"{finding.gradients / 1e6:.2f} M", f"{finding.minutes:.0f}"]
    return [*told, rounds, *cost, finding.verdict + reason]


def write_numbers(finding: Finding) -> list[str]:
    """Reported, measured and interval, as they are printed."""
    counted, digits = finding.reason == "counted", 0 if finding.sides and finding.sides[0].cell.kind == "rounds" else 2
    told, found = finding.difference.reported, finding.interval
    if counted and found is not None:
        return [f"× {told:.2f}", f"× {found.mean:.2f}", ""]
    if (reading := finding.difference.reading) and found is not None:
        span = "none" if found.low is None or found.high is None else f"{found.low:.2f} … {found.high:.2f}"
        return [f"> {reading.above:g}", f"{found.mean:.2f}", span]
    reported = f"> {reading.above:g}" if reading else "–" if told is None else f"{told:+.{digits}f}"
    if found is None:
        return [reported, "–", ""]
    measured = "≥ " * finding.at_least + f"{found.mean:+.{digits}f}"
    if found.low is None or found.high is None:
        return [reported, measured, "none"]
    kind = f"{found.pairs} pairs" if found.pairs else "Welch"
    kind += f", {found.looks} looks" if found.looks > 1 else ""
    return [reported, measured, f"{found.low:+.{digits}f} … {found.high:+.{digits}f} ({kind})"]


# ---- runs of full length -------------------------------------------------------------------------------------------
def list_long_runs(decisions: Sequence[Decision], entries: Sequence[Entry]) -> list[str]:
    """The runs of full length, by the claims that they decide."""
    runs = {run.identity: run for run in find_full_length(entries)}
    rows, used = [], set()
    for decision in decisions:
        sides = [side for finding in decision.findings if not finding.looked_at for side in finding.sides]
        full = [entry for side in sides if not side.shortened for entry in side.entries]
        served = {key for key, run in runs.items() if any(run == entry or run.continues(entry) for entry in full)}
        used |= served
        if served:
            rows.append(
                [decision.claim.name, str(len(served)), describe_runs([runs[key] for key in runs if key in served])]
            )
    rest = [run for key, run in runs.items() if key not in used]
    rows += [["no claim", str(len(rest)), describe_runs(rest)]] if rest else []
    about = f"""
## Runs of full length

{plural(len(runs), "different run")} of {LONG} rounds or more, each as long as the paper's, none superseded.
{len(used)} of them serve claims, some several; the others answer questions, or try other settings.
"""
    return [about, *write_grid(["claim", "runs", "cells, and their seeds"], "lrl", rows)]


def find_full_length(entries: Sequence[Entry]) -> list[Entry]:
    """Each run of full length once."""
    return furthest(entry for entry in standing(keep_newest(entries)) if entry.rounds >= LONG and not entry.shortened)


def describe_runs(runs: Sequence[Entry]) -> str:
    """The runs by cell, with their seeds and rounds."""
    cells: dict[str, list[int]] = {}
    for run in runs:
        other = tell_settings(run)
        name = f"{run.paper}:{run.table} {run.row}, {run.column}{other}, {run.rounds} rounds"
        cells.setdefault(name, []).append(run.seed)
    return "; ".join(f"{name} ({','.join(str(seed) for seed in sorted(seeds))})" for name, seeds in cells.items())


def tell_settings(run: Entry) -> str:
    """Say whether a run has other settings than the cell that it was made for; nothing where it has the same."""
    of_paper = tables(run.paper) if run.paper in PAPERS else ()
    its_own = [cell for table in of_paper for cell in table.cells if cell.place == run.cell]
    if not its_own:
        return " of no table here"  # of a newer version, or made by hand
    return "" if any(runs_of(cell, [run]) for cell in its_own) else " with other settings"

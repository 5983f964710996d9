"""The sites of a federation side by side, where they scored the model themselves."""

from __future__ import annotations

from html import escape

from fedkeel.engines.flower.site_ledger import TOGETHER, read_sites, sites_file
from fedkeel.report.content import Setting
from fedkeel.report.tables import html_table, td


def sites(setting: Setting) -> str:
    """A table for each run whose sites scored its model: a row for each site, and one for all together."""
    return "".join(
        site_table(setting.index, f"{group.label}, seed {run.seed}", read_sites(sites_file(run.path), len(run.records)))
        for group in setting.groups
        for run in group.runs
    )


def site_table(index: int, label: str, scores: dict[int, dict[str, float | None]]) -> str:
    if not scores:
        return ""
    names = list(dict.fromkeys(name for measured in scores.values() for name in measured))
    heads = [escape(name.replace("_", " ")) for name in ("site", *names)]
    rows = []
    for client in sorted(scores, key=lambda client: (client == TOGETHER, client)):
        cells = (td("–" if (value := scores[client].get(name)) is None else f"{value:.4g}", value) for name in names)
        rows.append(f"<tr><td>{'together' if client == TOGETHER else client}</td>{''.join(cells)}</tr>")
    note = f"{label}: measured by each site on what it keeps for tests, after the last evaluated round."
    return f'<div data-setting="{index}"><p class="soft">{escape(note)}</p>{html_table(heads, "".join(rows))}</div>'

"""The papers of `papers.bib`: every paper whose idea is a method here, by the keys of `Method.papers`."""

from __future__ import annotations

import re
from importlib.resources import files

TEXT = (files("fedkeel.papers") / "papers.bib").read_text(encoding="utf-8")
ENTRIES = re.finditer(r"^@\w+\{(\w+),$.*?^\}$", TEXT, re.MULTILINE | re.DOTALL)
CITATIONS: dict[str, str] = {entry[1]: entry[0] for entry in ENTRIES}
"""Whole entries as text, in the order of the file."""


def authors(key: str) -> str:
    """`McMahan et al. 2017`: how a text refers to a paper."""
    entry = CITATIONS[key]
    names = field(entry, "author").split(" and ")
    last = [name.split(",")[0] for name in names]
    who = last[0] if len(last) == 1 else " and ".join(last) if len(last) == 2 else f"{last[0]} et al."
    return f"{who} {field(entry, 'year')}".strip()


def title(key: str) -> str:
    return re.sub(r"[{}]", "", field(CITATIONS[key], "title"))


def field(entry: str, name: str) -> str:
    """Read one field of a BibTeX entry, on one line; empty when the entry has none."""
    found = re.search(rf"^\s*{name} = \{{(.*?)\}},?$", entry, re.MULTILINE | re.DOTALL)
    return " ".join(found[1].split()).strip("{}") if found else ""

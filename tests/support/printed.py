"""One cell of a published table, by its label."""

from __future__ import annotations

from fedkeel.papers import Cell, find


def value(spec: str, label: str) -> float:
    reported = cell(spec, label).reported
    assert reported is not None
    return reported


def cell(spec: str, label: str) -> Cell:
    (found,) = (cell for cell in find(spec) if cell.label == label)
    return found

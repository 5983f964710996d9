"""The words of a paper's file, which `cells` explains; and how a file of the user's own is read and checked.

A paper whose name ends in `.toml` is such a file: `fedkeel reproduce mine.toml:1`. Nothing in it runs code.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import fields
from math import inf, isfinite
from pathlib import Path
from typing import Any, Literal

from fedkeel.errors import ExperimentError, RequestError, explain_os_errors, require_known
from fedkeel.ranges import Count, Seed
from fedkeel.runs.experiment import Experiment
from fedkeel.typed_values import check_keys, read_values, show_value
from fedkeel.written_values import read_toml_file

KINDS: dict[str, str] = {
    "accuracy": "test accuracy in %",
    "rounds": "rounds until the target accuracy",
    "relative bytes": "bytes both ways until the target accuracy, over those of FedAvg's whole run",
    "seconds per round": "wall-clock seconds of one round, its evaluation included, mean over the run",
    "seconds": "wall-clock seconds until the target accuracy: rounds, times seconds per round",
    "extra seconds per round": "wall-clock seconds of one round, less those of the paper's own method",
}
EVALUATIONS: dict[str, str] = {
    "best": "the server model's best round on the test set",
    "last": "the server model after the last round",
    "personal best": "the best round of the clients' mean, each with its own model on its own test share; the final "
    "tuning counts as a round",
}
FACTS = ("kind", "evaluation", "target", "source", "uncertain", "unmeasured", "lr_matches", "assumed", "note")
STRUCTURE = ("name", "title", "rows", "columns", "values", "row", "column", "cell", "leads", "known", "unknown")

# ---- a file of the user's own --------------------------------------------------------------------------------------
OWN = ".toml"
Named = dict[str, dict[str, Any]]
Pairs = list[tuple[str, str]]
FILE: dict[str, Any] = {
    "title": str, "cite": str, "choices": list[str], "changed": list[str], "seeds": list[Seed], "leads": Pairs,
    "defaults": dict[str, Any], "on": Named, "rows": Named, "columns": Named, "table": list[dict[str, Any]],
}  # fmt: skip
TABLE: dict[str, Any] = {
    "name": str, "title": str, "rows": list[str], "columns": list[str], "values": dict[str, list[float | str]],
    "row": Named, "column": Named, "cell": list[dict[str, Any]], "leads": Pairs, "known": list[str],
    "unknown": list[str],
}  # fmt: skip
LAYER: dict[str, Any] = {
    "kind": str, "evaluation": str, "target": float, "source": Literal["own run", "copied"], "uncertain": bool,
    "unmeasured": str, "assumed": str, "note": str, "policy": dict[str, Any], "like": str, "on": Named, "dataset": str,
    "partition": dict[str, Any],  # a text would be lost under a column's partition.alpha
}  # fmt: skip
KNOWN = {
    "kind": [kind for kind in KINDS if kind != "extra seconds per round"],  # less the method of the paper's own name
    "evaluation": EVALUATIONS,
}
ELSEWHERE = ("seed", "problem", "data", "evaluation")  # keys of an experiment that a cell has not, or as a fact
SETTINGS = ("policy", *(field.name for field in fields(Experiment) if field.name not in ELSEWHERE))
NEEDED: dict[str, Any] = {
    "dataset": str, "model": str, "method": dict[str, Any], "partition": dict[str, Any], "rounds": Count, "lr": float,
    "batch_size": Count,
}  # fmt: skip
SEEDS = "seeds are given with the command: --seeds 0,1,2; the paper's own stand above [defaults]: seeds = [0, 1, 2]"
PACKAGE = "it is for the package's own papers alone: leave it out"
NOT_HERE = {"seed": SEEDS, "seeds": SEEDS, "checks": PACKAGE, "lr_matches": PACKAGE}
"""Words that one expects where they are not, with a hint: the nearest known word would mislead."""


def is_own(paper: str) -> bool:
    """Whether a paper is a file of the user's own."""
    return paper.endswith(OWN)


def split_spec(spec: str) -> tuple[str, str | None]:
    """Part "fedfft:1" or "folder/mine.toml:1" into the paper and its table; None where no table is named."""
    own, found, table = spec.partition(f"{OWN}:")
    if found or is_own(spec):  # a path may have a colon of its own
        return (f"{own}{OWN}", table) if found else (spec, None)
    paper, colon, table = spec.partition(":")
    return paper, table if colon else None


def read_own(paper: str) -> dict[str, Any]:
    """Read a file as the package's own are: every key that these have, each of its type."""
    hint = "a whole one stands in docs/guides/papers.md; fedkeel/papers/fedwmsam.toml is a longer one"
    with explain_os_errors(f"cannot read the paper {paper}", hint, RequestError):
        try:
            data = read_toml_file(Path(paper))
        except tomllib.TOMLDecodeError as error:
            raise RequestError(f"{paper} is not TOML: {error}", hint) from None
    data = _read(data, FILE, paper)
    if not data.get("table"):
        raise RequestError(f"{paper} has no table.", "write [[table]], with its name, its columns and its values")
    _check_layers(paper, {"defaults": data.get("defaults", {}), **data.get("on", {})})
    _check_layers(paper, data.get("rows", {}), "on")
    _check_layers(paper, data.get("columns", {}))
    data["table"] = [_read_table(paper, data, table) for table in data["table"]]
    _check_leads(data, {row for table in data["table"] for row in _rows_of(table)}, paper)
    names = [table["name"].lower() for table in data["table"]]
    if twice := [name for name in names if names.count(name) > 1]:
        raise RequestError(f"{paper} has two tables {twice[0]}.", "give each a name of its own")
    return {"defaults": {}, "choices": []} | data


def check_own(experiment: Mapping[str, Any], kind: str, evaluation: str, target: float | None, where: str) -> None:
    """Refuse a cell that lacks what every cell has; what else its experiment may be, `Experiment` says."""
    if missing := [key for key in NEEDED if key not in experiment]:
        raise ExperimentError(f"{where} lacks: {', '.join(missing)}", "write it under [defaults], or in its row")
    read_values(experiment, NEEDED | {"lr_decay": float}, ExperimentError, where)
    for key, word in (("method", "name"), ("partition", "kind")):
        if not isinstance(experiment[key].get(word), str):
            raise ExperimentError(f"the {key} of {where} lacks its {word}.", f'for example {key}.{word} = "…"')
    if kind not in ("accuracy", "seconds per round") and target is None:
        raise ExperimentError(f"{where} counts {kind}, and lacks a target.", "for example target = 75 (in %)")
    if target is not None and not 1 < target <= 100:
        raise ExperimentError(f"the target of {where} is no accuracy in %: {target:g}", "target = 75 means 75 %")
    if evaluation == "personal best" and "evaluation" not in experiment:
        hint = "write how clients' models are judged, for example policy = {share = 0.2}"
        raise ExperimentError(f"{where} is of the clients' own models, and lacks their policy.", hint)


def check_datasets(data: Mapping[str, Any], used: Collection[str], paper: str) -> None:
    """Refuse what is written `on` a data set that no cell has."""
    rows = [row for part in (data.get("rows", {}), *(t.get("row", {}) for t in data["table"])) for row in part.values()]
    for layer in (data, *rows):
        for name in layer.get("on", {}):
            require_known(name, used, f"no cell of {paper} has the data set that `on` names", "data sets of its cells")


def _read_table(paper: str, data: Mapping[str, Any], table: Mapping[str, Any]) -> dict[str, Any]:
    shared = {word: value for word, value in table.items() if word not in STRUCTURE}
    made = _read({word: value for word, value in table.items() if word in STRUCTURE}, TABLE, f"a table of {paper}")
    if missing := [word for word in ("name", "title", "columns") if word not in made]:
        raise RequestError(f"a table of {paper} lacks: {', '.join(missing)}", 'for example name = "1"')
    where, columns, rows = f"table {made['name']} of {paper}", made["columns"], _rows_of(made)
    if not rows or not columns:
        raise RequestError(f"{where} has no cells.", "write columns and [table.values]; rows = […] has no numbers")
    if unlisted := [row for row in made.get("rows", ()) if row not in rows]:
        raise RequestError(
            f"row {unlisted[0]!r} of {where} has no values.", 'give it some, or "-"; without it, drop rows'
        )
    _check_once(columns, f"{where} names column")
    _check_leads(made, rows, where)
    for row, numbers in made.get("values", {}).items():
        if numbers and len(numbers) != len(columns):
            raise RequestError(f"row {row!r} of {where} has {len(numbers)} values.", f"it has {len(columns)} columns")
        if wrong := [number for number in numbers if not _is_number(number)]:
            hint = 'write 79.5, "79.5±0.8" (a spread is 0 or more), "79.5?" where it is in doubt, or "-" for none'
            raise RequestError(f"a value of row {row!r} of {where} is no number: {show_value(wrong[0])}", hint)
    _check_layers(where, {"its settings": shared})
    for place, cell in enumerate(made.get("cell", ()), 1):
        if missing := [word for word in ("row", "column") if word not in cell]:
            raise RequestError(f"cell {place} of {where} lacks its {missing[0]}.", f'for example {missing[0]} = "…"')
    _check_once([f"{cell['row']}, {cell['column']}" for cell in made.get("cell", ())], f"{where} describes cell")
    for word, names, extra in (("row", rows, ("like", "on")), ("column", columns, ("like",))):
        own, known = made.get(word, {}), data.get(f"{word}s", {})
        check_keys([*own, *(str(cell.get(word)) for cell in made.get("cell", ()))], names, RequestError, where, word)
        _check_layers(where, own, *extra)
        for name in names:
            like = own.get(name, {}).get("like")
            if like not in known if like else name not in known and name not in own:
                hint = f"write [{word}s.{json.dumps(like or name, ensure_ascii=False)}]"
                raise RequestError(f"nothing says what {word} {like or name!r} of {where} is.", hint)
    _check_layers(where, {f"cell {place}": cell for place, cell in enumerate(made.get("cell", ()), 1)}, "row", "column")
    return shared | made


def _rows_of(table: Mapping[str, Any]) -> Collection[str]:
    return table.get("values", table.get("rows", ()))


def _check_leads(data: Mapping[str, Any], rows: Collection[str], where: str) -> None:
    check_keys([row for pair in data.get("leads", ()) for row in pair], rows, RequestError, where, "row")


def _check_once(names: list[str], what: str) -> None:
    if twice := [name for name in names if names.count(name) > 1]:
        raise RequestError(f"{what} {twice[0]!r} twice.", "once is enough: one of them would be lost")


def _is_number(given: float | str) -> bool:
    value, sign, spread = str(given).removesuffix("?").partition("±")
    try:
        return (value == "-" and not sign) or (isfinite(float(value)) and 0 <= float(spread if sign else 0) < inf)
    except ValueError:
        return False


def _check_layers(where: str, layers: Mapping[str, Mapping[str, Any]], *extra: str) -> None:
    """Refuse settings and facts that no cell has; `extra` are words of rows, columns or cells alone."""
    words = (*(word for word in FACTS if word != "lr_matches"), *SETTINGS, *extra)
    for name, layer in layers.items():
        _read(layer, LAYER, f"{name!r} of {where}", words)
        for word in KNOWN.keys() & layer.keys():
            require_known(layer[word], KNOWN[word], f"{name!r} of {where} has an unknown {word}", f"words of {word}")
        _check_layers(f"{name!r} of {where}", layer.get("on", {}))


def _read(data: Mapping[str, Any], types: Mapping[str, Any], what: str, known: Collection[str] = ()) -> dict[str, Any]:
    known = known or types
    if misplaced := [word for word in data if word in NOT_HERE and word not in known]:
        raise RequestError(f"{what} has no key: {misplaced[0]}", NOT_HERE[misplaced[0]])
    check_keys(data, known, RequestError, what, "key")
    return read_values(data, types, RequestError, what)

"""What a search draws from: parts of a method, each with options, and a grid of the experiment's keys.

    [parts.perturbation]
    into = "perturb"              # or gradient (the default), server, weights, objective
    none = []
    sam = [{rule = "Sam", rho = [0.05, 0.1]}]      # a list of values is a choice

    [parts.objective]
    loss = "loss"
    calibrated = ["calibrated:0.5", "calibrated:1"]

An option is a chain of rules, a weighting, or an objective. A candidate takes one option of every part, in the order in
which the parts are written.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedkeel.errors import ExperimentError, RequestError, nearest
from fedkeel.importing import Trust
from fedkeel.methods.composition import load_objective, load_rule
from fedkeel.methods.named import named_parts
from fedkeel.studies.grids import Setting, label_of
from fedkeel.typed_values import show_value

log = logging.getLogger("fedkeel")

PLACES = ("perturb", "gradient", "server", "weights", "objective")
"""Where a part may stand in a method."""
Chain = tuple[Any, ...]


@dataclass(frozen=True)
class Part:
    """One place of a method and the chains that may stand there, by their label."""

    name: str
    into: str
    chains: Mapping[str, Chain]

    @staticmethod
    def load(name: str, data: Any, trust: Trust) -> Part:
        """From a table of a file; every rule in it is read once, so that a wrong field is refused and not skipped."""
        if not isinstance(data, Mapping):
            raise ExperimentError(
                f"part {name} is a table of its options: {show_value(data)}", f"write [parts.{name}] none = []"
            )
        into = data.get("into", name if name in PLACES else "gradient")
        if into not in PLACES:
            raise ExperimentError(
                f"part {name} stands nowhere: into = {show_value(into)}", nearest(str(into), PLACES, "places")
            )
        options = {word: _chain(name, word, value, into) for word, value in data.items() if word != "into"}
        if not options:
            raise ExperimentError(
                f"part {name} has no option.", 'write sam = [{rule = "Sam", rho = 0.1}], or none = []'
            )
        chains = {label: chain for word, option in options.items() for label, chain in _variants(word, option)}
        read = load_objective if into == "objective" else load_rule
        made = [read(one, trust) for chain in chains.values() for one in chain]
        if (named := next(named_parts(made), None)) is not None:
            raise named.error
        return Part(name, into, chains)


def read_parts(data: Mapping[str, Any], taken: Collection[str], trust: Trust) -> list[Part]:
    """All parts of a file. Names are not those of the experiment's keys, and one part decides what there is one of."""
    parts = [Part.load(name, part, trust) for name, part in data.items()]
    for part in parts:
        if part.name in taken:
            raise ExperimentError(
                f"part {part.name} has the name of an experiment's key.", f"write [parts.my-{part.name}] instead"
            )
    for place in ("weights", "objective"):
        if len(names := [part.name for part in parts if part.into == place]) > 1:
            raise ExperimentError(
                f"{len(names)} parts stand in {place}, and a method has room for one: {', '.join(names)}",
                f"write their options in one [parts.{place}]",
            )
    return parts


def _chain(part: str, option: str, value: Any, into: str) -> Sequence[Any]:
    if into == "objective":
        return _objectives(part, option, value)
    chain = [value] if isinstance(value, Mapping) else value
    if not isinstance(chain, list) or not all(isinstance(rule, Mapping) for rule in chain):
        raise ExperimentError(
            f"option {option} of part {part} must be a list of rules: {show_value(value)}",
            f'write {option} = [{{rule = "Sam", rho = 0.1}}], or {option} = []',
        )
    if empty := [word for rule in chain for word, values in rule.items() if values == []]:
        raise ExperimentError(
            f"option {option} of part {part} lists no value of {empty[0]}.", f"write {empty[0]} = 0.1, or [0.05, 0.1]"
        )
    if into == "weights" and len(chain) != 1:
        raise ExperimentError(
            f"option {option} of part {part} must be one weighting.", f'write {option} = {{rule = "Uniform"}}'
        )
    return chain


def _objectives(part: str, option: str, value: Any) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise ExperimentError(
            f"option {option} of part {part} must be an objective: {show_value(value)}",
            f'write {option} = "calibrated:0.5", or a list of such texts',
        )
    return texts


def _variants(option: str, chain: Sequence[Any]) -> Iterator[tuple[str, Chain]]:
    """The chain with every combination of the values that its rules list; of objectives, each alone."""
    if chain and isinstance(chain[0], str):
        yield from ((option if len(chain) == 1 else text, (text,)) for text in chain)
        return
    places = [(at, word) for at, rule in enumerate(chain) for word, value in rule.items() if isinstance(value, list)]
    for values in itertools.product(*(chain[at][word] for at, word in places)):
        rules = [dict(rule) for rule in chain]
        for (at, word), value in zip(places, values, strict=True):
            rules[at][word] = value
        setting = tuple((word, value) for (_, word), value in zip(places, values, strict=True))
        yield label_of(option, setting), tuple(rules)


def compose(parts: Sequence[Part], setting: Setting, name: str) -> dict[str, Any]:
    """The method of a setting, as an experiment's file has it."""
    method: dict[str, Any] = {"name": name}
    chosen = dict(setting)
    for part in parts:
        chain = part.chains[chosen[part.name]]
        if part.into == "weights":
            method["weights"] = dict(chain[0])
        elif part.into == "objective":
            method["objective"] = chain[0]
        else:
            method[part.into] = [*method.get(part.into, []), *map(dict, chain)]
    if "objective" not in method:
        return method
    phase = {word: method.pop(word) for word in ("perturb", "gradient", "objective") if word in method}
    return method | {"phases": [phase]}


def warn_of_left_out(found: Iterable[Setting], refused: Iterable[tuple[Setting, RequestError]]) -> None:
    """Log which options and values no candidate has, since every draw with them was refused, and why the first was."""
    taken = {_show(pair) for setting in found for pair in setting}
    reasons: dict[str, list[str]] = {}
    for setting, error in refused:
        for pair in setting:
            reasons.setdefault(_show(pair), []).append(error.message)
    for what, why in reasons.items():
        if what not in taken:
            many = "the only draw with it was" if len(why) == 1 else f"all {len(why)} draws with it were"
            log.warning("no candidate has %s: %s refused: %s", what, many, why[0])


def _show(pair: tuple[str, Any]) -> str:
    return f"{pair[0]} = {show_value(pair[1])}"

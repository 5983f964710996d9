"""Methods as plain data: what TOML files and fingerprints hold. `load(save(method)) == method`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, cast

from fedkeel.core.method import Method, Phase
from fedkeel.core.objective import Objective
from fedkeel.core.objectives import OBJECTIVES
from fedkeel.core.rule import Rule, Weighting
from fedkeel.errors import MethodError, UntrustedError, nearest
from fedkeel.importing import Kind, Trust, look_up
from fedkeel.methods.named import NamedMethod, NamedObjective, NamedRule, named_parts
from fedkeel.plugins import find_plugin
from fedkeel.rules import RULES
from fedkeel.typed_values import check_keys, check_table, read_values, show_value, to_plain, types_of
from fedkeel.written_values import check_whole

RULE = Kind(
    "rule", Rule, classes=True, hint="a rule is a subclass of fk.Rule under @dataclass(frozen=True)", error=MethodError
)


def save_rule(rule: Rule) -> dict[str, Any]:
    """`{rule = "HighPass", ratio = 0.01}`; a rule of the user's own is named `module:Class`."""
    if isinstance(rule, NamedRule):
        return dict(rule.data)
    kind = type(rule)
    name = kind.__name__ if RULES.get(kind.__name__) is kind else f"{kind.__module__}:{kind.__qualname__}"
    if not is_dataclass(cast(Any, kind)):
        raise MethodError(
            f"rule {name} is not a dataclass, so it cannot be saved.", "decorate it: @dataclass(frozen=True)"
        )
    check_whole(rule, MethodError, f"rule {name}")
    values = {field: getattr(rule, field.name) for field in fields(cast(Any, rule))}
    return {"rule": name} | {
        field.name: _save_value(value)
        for field, value in values.items()
        if value is not None and not (field.metadata.get("later") and value == field.default)
    }


def _save_value(value: Any) -> Any:
    if isinstance(value, Rule):
        return save_rule(value)
    return [_save_value(item) for item in value] if isinstance(value, tuple) else to_plain(value)


def load_rule(data: Any, trust: Trust = Trust.NOTHING) -> Rule:
    """A rule from its table; one of someone's own that is not vouched for stays a name."""
    if not isinstance(data, Mapping):
        name = data if isinstance(data, str) and data in RULES else "Sam"
        needed = [f"{field.name} = …" for field in fields(cast(Any, RULES[name])) if field.default is MISSING]
        written = ", ".join([f'rule = "{name}"', *needed])
        raise MethodError(f"a rule is a table of its name and fields: {show_value(data)}", f"write {{{written}}}")
    settings = dict(data)
    name = settings.pop("rule", None)
    if not isinstance(name, str):
        raise MethodError(f"a rule needs its name: {show_value(dict(data))}", 'write {rule = "Sam", rho = 0.1}')
    try:
        kind = look_up(name, RULE, trust) if ":" in name else RULES.get(name) or _find_brought(name, trust)
    except UntrustedError as error:
        return NamedRule(data, error)
    if kind is None:
        raise MethodError(f"unknown rule: {name}", nearest(name, RULES, "rules"))
    if not is_dataclass(cast(Any, kind)):
        raise MethodError(f"{name} is not a rule.", RULE.hint)
    check_table(kind, settings, MethodError, f"rule {name}")
    values = {word: _load_value(value, trust) for word, value in settings.items()}
    if (inner := next(named_parts(values.values()), None)) is not None:
        return NamedRule(data, inner.error)
    try:
        return cast(Rule, kind(**values))
    except TypeError as error:  # where annotations do not say what fits
        hint = f"its fields: {', '.join(field.name for field in fields(cast(Any, kind)))}"
        raise MethodError(f"rule {name} refused its fields: {error}", hint) from error


def _find_brought(name: str, trust: Trust) -> Any:
    """The rule that an installed package brings under this name, if one does."""
    plugin = find_plugin("rules", name)
    return None if plugin is None else look_up(plugin.value, RULE, min(trust, Trust.INSTALLED))


def _load_value(value: Any, trust: Trust) -> Any:
    if isinstance(value, Mapping):
        return load_rule(value, trust)
    return tuple(_load_value(item, trust) for item in value) if isinstance(value, list | tuple) else value


OBJECTIVE = Kind(
    "objective",
    Objective,
    classes=True,
    hint="one is a subclass of fk.Objective under @dataclass(frozen=True)",
    error=MethodError,
)


def save_objective(objective: Objective) -> str | dict[str, Any]:
    """Its name, or its name and number as a text (`calibrated:0.5`) where that text is exact; else a table.

    The text is what files and fingerprints have held from the beginning.
    """
    if isinstance(objective, NamedObjective):
        return dict(objective.data)
    kind = type(objective)
    check_whole(objective, MethodError, f"objective {kind.__name__}")
    name = next((word for word, known in OBJECTIVES.items() if known is kind), None)
    if not is_dataclass(kind) or (name is None and "<locals>" in kind.__qualname__):
        raise MethodError(
            f"objective {kind.__name__} cannot be saved.", "define it in a module, under @dataclass(frozen=True)"
        )
    values = {field.name: value for field in fields(objective) if (value := getattr(objective, field.name)) is not None}
    if name is None:
        return {"objective": f"{kind.__module__}:{kind.__qualname__}"} | values
    if not values:
        return name
    text = f"{next(iter(values.values())):g}"
    exact = len(values) == 1 and [float(text)] == list(values.values())
    return f"{name}:{text}" if exact else {"objective": name} | values


def load_objective(data: Any, trust: Trust = Trust.NOTHING) -> Objective:
    """An objective from itself, from `calibrated:0.5`, or from `{objective = "calibrated", tau = 0.5}`."""
    if isinstance(data, Objective):
        return data
    if isinstance(data, str):
        return _parse(data, trust)
    if not isinstance(data, Mapping) or not isinstance(data.get("objective"), str):
        hint = 'write "calibrated:0.5", or {objective = "calibrated", tau = 0.5}'
        if isinstance(data, Mapping) and isinstance(name := data.get("rule"), str):
            known = {kind.__name__: word for word, kind in OBJECTIVES.items()}
            hint = f'write objective = "{known.get(name, name)}" in place of rule = "{name}"'
        raise MethodError(f"an objective is a text, or a table of its name and fields: {show_value(data)}", hint)
    settings = dict(data)
    name = settings.pop("objective")
    try:
        kind = _kind(name, trust)
    except UntrustedError as error:
        return NamedObjective(data, error)
    check_table(kind, settings, MethodError, f"objective {name}")
    return kind(**settings)


def _parse(text: str, trust: Trust) -> Objective:
    """`calibrated` alone has the number of its paper."""
    name, _, number = text.partition(":")
    if name not in OBJECTIVES and number[:1].isidentifier():  # module:Class
        return load_objective({"objective": text}, trust)
    kind = _kind(name, trust)
    if not number:
        return kind()
    known = fields(kind)
    if not known:
        raise MethodError(f"the objective {name} has no number: {show_value(number)}", f"write {name}")
    try:
        return kind(**{known[0].name: float(number)})
    except ValueError:
        raise MethodError(
            f"the number of objective {name} is not one: {show_value(number)}", f"write {name}:{known[0].default}"
        ) from None


def _kind(name: str, trust: Trust) -> type[Objective]:
    kind = look_up(name, OBJECTIVE, trust) if ":" in name else OBJECTIVES.get(name)
    if kind is None:
        raise MethodError(f"unknown objective: {show_value(name)}", nearest(name, OBJECTIVES, "objectives"))
    if not is_dataclass(cast(Any, kind)):
        raise MethodError(f"{show_value(name)} is not an objective.", OBJECTIVE.hint)
    return cast(type[Objective], kind)


def save(method: Method) -> dict[str, Any]:
    """The composition in full, defaults of the method left out."""
    data: dict[str, Any] = {"name": method.name, "weights": save_rule(method.weights)}
    if method.server_lr != 1.0:
        data["server_lr"] = method.server_lr
    if method.papers:
        data["papers"] = list(method.papers)
    for part in ("server", "personal"):
        if getattr(method, part):
            data[part] = [save_rule(rule) for rule in getattr(method, part)]
    data["phases"] = [_save_phase(phase) for phase in method.phases]
    for part in ("server_phase", "final"):
        if getattr(method, part) is not None:
            data[part] = _save_phase(getattr(method, part))
    return data


def _save_phase(phase: Phase) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for field in fields(Phase):
        value = getattr(phase, field.name)
        if field.name in ("perturb", "gradient"):
            if value:
                data[field.name] = [save_rule(rule) for rule in value]
        elif value != field.default:
            data[field.name] = save_objective(value) if field.name == "objective" else value
    return data


def rewrite(data: Mapping[str, Any]) -> dict[str, Any]:
    """A saved composition with its objectives as `save` writes them: `calibrated` and `calibrated:1` are one."""

    def phase(part: Any) -> Any:
        text = part.get("objective") if isinstance(part, Mapping) else None
        if not isinstance(text, str) or text.partition(":")[0] not in OBJECTIVES:
            return part
        return {**part, "objective": save_objective(load_objective(text))}

    changed = {part: phase(data[part]) for part in ("server_phase", "final") if part in data}
    if isinstance(data.get("phases"), list):
        changed["phases"] = [phase(part) for part in data["phases"]]
    return {**data, **changed}


def load(data: Mapping[str, Any], trust: Trust = Trust.NOTHING) -> Method:
    """A method from its composition; `phases` may be left out when `perturb`, `gradient` and `objective` say all."""
    settings = dict(data)
    of_phase = ("perturb", "gradient", "objective")
    known = {*(field.name for field in fields(Method)), *of_phase}
    check_keys(settings, known, MethodError, "a method", "part")
    single = {part: settings.pop(part) for part in of_phase if part in settings}
    phases = settings.pop("phases", None)
    if phases is not None and not isinstance(phases, list | tuple):
        raise MethodError(f"phases must be a list of tables: {show_value(phases)}", "write phases = [{gradient = […]}]")
    if single and phases:
        raise MethodError(f"a method has either phases or {' and '.join(single)}, not both.")
    extra: dict[str, Any] = {
        part: _load_phase(settings.pop(part), trust) for part in ("server_phase", "final") if part in settings
    }
    extra |= {part: _load_rules(part, settings.pop(part), trust) for part in ("server", "personal") if part in settings}
    weights = load_rule(settings.pop("weights", {"rule": "BySize"}), trust)
    if not isinstance(weights, Weighting):
        raise MethodError(
            f"{type(weights).__name__} is not a weighting of clients.", 'use weights = {rule = "Uniform"}'
        )
    settings = read_values(settings, types_of(Method), MethodError, "a method")
    chains = tuple(_load_phase(phase, trust) for phase in (phases or [single]))
    kind = NamedMethod if any(named_parts((chains, weights, *extra.values()))) else Method
    return kind(
        name=settings.pop("name", "composed"),
        phases=chains,
        weights=weights,
        papers=tuple(settings.pop("papers", ())),
        **extra,
        **settings,
    )


def _load_rules(part: str, data: Any, trust: Trust) -> tuple[Rule, ...]:
    chain = [data] if isinstance(data, Mapping) else data  # a rule alone is a chain of one
    if not isinstance(chain, list | tuple):
        raise MethodError(
            f"{part} must be a list of rules: {show_value(data)}", f'write {part} = [{{rule = "Sam", rho = 0.1}}]'
        )
    return tuple(load_rule(rule, trust) for rule in chain)


def _load_phase(data: Any, trust: Trust) -> Phase:
    if not isinstance(data, Mapping):
        raise MethodError(f"a phase is a table of its parts: {show_value(data)}", "write {gradient = […], epochs = 1}")
    settings = dict(data)
    check_table(Phase, settings, MethodError, "a phase", "part")
    chains: dict[str, Any] = {
        part: _load_rules(part, settings.pop(part), trust) for part in ("perturb", "gradient") if part in settings
    }
    if "objective" in settings:
        settings["objective"] = load_objective(settings["objective"], trust)
    return Phase(**chains, **read_values(settings, types_of(Phase), MethodError, "a phase"))

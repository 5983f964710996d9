"""What need not be done again: checks of a method, alone and on the same layout; the command line's own building; the
search for what does not change while tests run, such as installed packages."""

import site
import sys
from dataclasses import fields
from functools import cache
from pathlib import Path

import typer

from fedkeel import importing
from fedkeel.core import method as methods
from fedkeel.core.rule import Rule
from fedkeel.data.datasets import digits
from fedkeel.runs import environment, prepare


def once(check, key):
    """`check`, but not of what it let pass before."""
    passed = set()

    def checked(*given):
        try:
            known = key(*given) in passed
        except TypeError:  # a rule of a test that cannot be hashed
            return check(*given)
        if not known:
            check(*given)
            passed.add(key(*given))

    return checked


def composed_of(method):
    """Kinds of rules, if all of them are fedkeel's: with other numbers they have the same stages and slots."""
    if any(not type(rule).__module__.startswith("fedkeel.") or holds_another(rule) for rule in method.rules):
        return method
    chains = tuple(tuple((chain, *map(type, rules)) for chain, rules in phase.chains) for phase in method.all_phases)
    ends = tuple(tuple(map(type, rules)) for rules in (method.personal, method.server, [method.weights]))
    return chains, ends, method.final is None, method.objectives


def holds_another(rule):
    return any(isinstance(getattr(rule, field.name), Rule) for field in fields(rule))


def on_a_task(method, task):
    """What a rehearsal looks at; objectives beside the problem's own loss are tried on the task's data, too."""
    start, buffers = task.initial, task.buffers
    layouts = start.layout, start.buffer.dtype, None if buffers is None else buffers.layout
    tried = None if all(objective.of_problem for objective in method.objectives) else task
    return composed_of(method), task.module is None, *layouts, tried


def found_once(find, key):
    """What `find` finds, sought once for each key."""
    known = {}

    def found():
        if key() not in known:
            known[key()] = find()
        return known[key()]

    return found


def revision():
    """Git is asked in a repository only: to start it for every run takes long."""
    here = Path.cwd()
    inside = any((place / ".git").exists() for place in (here, *here.parents))
    return known_revision() if inside else None


known_revision = found_once(environment.git_revision, Path.cwd)
points = found_once(lambda find=importing.installed: list(find()), lambda: (*sys.path, *site.getsitepackages()))

DONE_ONCE = {
    (typer.main, "get_command"): cache(typer.main.get_command),
    (methods, "check_method"): once(methods.check_method, lambda method: method),
    (prepare, "rehearse"): once(prepare.rehearse, on_a_task),
    (digits, "read_digits"): cache(digits.read_digits),
    (environment, "version_of"): cache(environment.version_of),
    (environment, "git_revision"): revision,
    (importing, "installed"): points,
}

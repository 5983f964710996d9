"""What need not be done again: checks of a method, alone and on the same layout; the command line's own building."""

from functools import cache

import typer

from fedkeel.core import method as methods
from fedkeel.runs import prepare


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


def on_a_task(method, task):
    """What a rehearsal looks at."""
    start, buffers = task.initial, task.buffers
    return method, task.module is None, start.layout, start.buffer.dtype, None if buffers is None else buffers.layout


DONE_ONCE = {
    (typer.main, "get_command"): cache(typer.main.get_command),
    (methods, "check_method"): once(methods.check_method, lambda method: method),
    (prepare, "rehearse"): once(prepare.rehearse, on_a_task),
}

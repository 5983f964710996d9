"""The tasks of docs/guides/tasks.md: their files, and the commands that are typed."""

import re
import runpy
import shlex
import sys
import tomllib
from pathlib import Path

from fedkeel.cli.main import call

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guides" / "tasks.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
QUIET = ("run", "resume", "reproduce")


def set_out(number):
    """Write the files of a task into the current folder; return its commands as lists of words."""
    text = PAGE.read_text(encoding="utf-8")
    section = next(part for part in text.split("\n## ") if part.startswith(f"{number}. "))
    commands = []
    for language, source in BLOCK.findall(section):
        if language == "sh":
            lines = source.replace("\\\n", " ").splitlines()
            commands += [words for line in lines if (words := shlex.split(line, comments=True))]
        else:
            first, _, rest = source.partition("\n")
            path = Path(first.removeprefix("# "))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(rest)
    return commands


def follow(words):
    """Carry out a command in this process: a program, tests, or fedkeel; what is installed is only looked up."""
    program, *rest = words
    if program == "python":
        return runpy.run_path(rest[0], run_name="__main__")
    if program == "pytest":
        tests = {name: test for name, test in runpy.run_path(rest[0]).items() if name.startswith("test_")}
        assert tests
        for test in tests.values():
            test()
    elif program == "pip":
        extra = re.fullmatch(r"fedkeel\[(\w+)\]", rest[-1])[1]
        assert extra in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    else:
        assert program == "fedkeel"
        assert call([*rest, "--no-progress"] if rest[0] in QUIET else rest) == 0, words
    return {}


def forget_modules(folder):
    """Forget the modules that were imported from a folder."""
    for name, module in list(sys.modules.items()):
        if str(folder) in str(getattr(module, "__file__", None)):
            del sys.modules[name]

"""What the pages tell readers to type works: Python blocks run, commands are commands."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from fedkeel.cli.main import CLICK, app, call

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *(p for p in sorted((ROOT / "docs").rglob("*.md")) if p.parent.name != "methods")]
BLOCK = re.compile(r"(<!-- not run: .*? -->\n)?^( *)```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
RUN_WHOLE = ["start/first-run.md", "tutorials/comparison.md"]
"""Pages whose commands are trained, file by file and line by line."""


def name_of(page):
    return page.relative_to(ROOT).as_posix()


def blocks_of(page, *languages):
    """The code blocks of a page in these languages, but for those that say why they are not run."""
    for skipped, _, language, source in BLOCK.findall(page.read_text(encoding="utf-8")):
        if language in languages and not skipped:
            yield source


def commands_of(page):
    """The lines that call fedkeel, with continued lines joined."""
    for block in blocks_of(page, "", "sh", "console"):
        for line in block.replace("\\\n", " ").splitlines():
            if line.strip().removeprefix("$ ").startswith("fedkeel "):
                yield shlex.split(line.strip().removeprefix("$ "), comments=True)[1:]


def complaint(words):
    """What the command line says against a command before it is run; empty when nothing."""
    command, name = typer.main.get_command(app), "fedkeel"
    try:
        while hasattr(command, "commands") and words and not words[0].startswith("-"):
            command, name, words = command.commands[words[0]], words[0], words[1:]
        command.make_context(name, list(words))
    except KeyError:
        return f"there is no command {words[0]}"
    except CLICK.ClickException as error:
        return error.format_message()
    except (typer.Exit, CLICK.Exit):  # --help, --version
        return ""
    return ""


def test_commands_of_all_pages_are_commands():
    commands = [(name_of(page), words) for page in PAGES for words in commands_of(page)]
    assert len(commands) > 40
    wrong = {f"{page}: {' '.join(words)}": said for page, words in commands if (said := complaint(words))}
    assert wrong == {}
    assert complaint(["run", "--metod", "fedavg"])
    assert complaint(["rnu"])


@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in PAGES if any(blocks_of(p, "python"))], ids=name_of)
def test_python_blocks_of_a_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    for number, source in enumerate(blocks_of(page, "python")):
        exec(compile(source, f"{name_of(page)}[{number}]", "exec"), names)


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN_WHOLE)
def test_commands_of_a_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / page
    for number, source in enumerate(blocks_of(page, "toml")):
        assert number == 0
        Path("sweep.toml").write_text(source)
    for words in commands_of(page):
        if words != ["run"]:  # the quick start has its own test
            assert call([*words, "--no-progress"] if words[0] in ("run", "resume", "sweep") else words) == 0

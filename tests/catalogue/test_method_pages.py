"""The pages about methods are those that their cards make, and the guide's code runs."""

import re
from pathlib import Path

import pytest

import fedkeel as fk
from fedkeel.catalogue.cards import card
from fedkeel.catalogue.pages import page

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "methods"


def test_every_method_has_a_page_and_no_page_is_left_over():
    assert {path.stem for path in PAGES.glob("*.md")} == {"README", *fk.METHODS}


@pytest.mark.parametrize("name", sorted(fk.METHODS))
def test_a_page_is_what_its_card_makes(name):
    assert (PAGES / f"{name}.md").read_text(encoding="utf-8") == page(card(name))


def test_the_guides_ten_lines_run(capsys):
    text = (ROOT / "docs" / "guides" / "methods.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    lines = [line for line in code.splitlines() if line.strip()]
    assert len(lines) <= 14
    exec(compile(code, "guide", "exec"), {"__name__": "guide"})
    assert float(capsys.readouterr().out) > 0.15


def test_the_page_of_one_method(fedkeel):
    assert fedkeel("methods", "fedavg", "--pages", "here").code == 0
    assert [path.name for path in Path("here").iterdir()] == ["fedavg.md"]
    assert "# fedavg" in Path("here/fedavg.md").read_text()

"""Every link of the pages leads somewhere, on the site and in the repository."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    *sorted((ROOT / "docs").rglob("*.md")),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
]


def read_without_code(page):
    return re.sub(r"```.*?```|`[^`\n]+`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def anchors_of(page):
    """The anchors of a page's headings, as GitHub and the site make them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", title.lower()).strip()) for title in titles}


def broken_links(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", read_without_code(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        goal = (page.parent / path).resolve() if path else page
        if not goal.exists() or (anchor and anchor not in anchors_of(goal)):
            yield f"{page}: {target}"


def test_relative_links_lead_to_files_and_headings():
    assert len(PAGES) > 90
    assert [broken for page in PAGES for broken in broken_links(page)] == []


def test_broken_links_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A title\n[a](other.md) [b](#a-title) [c](#nowhere) [d](https://e.org) `[f](code.md)`\n")
    assert list(broken_links(page)) == [f"{page}: other.md", f"{page}: #nowhere"]


def test_every_page_is_in_the_navigation():
    named = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in PAGES if ROOT / "docs" in path.parents}
    found_by_the_site = {page for page in pages if page.startswith(("methods/", "guides/"))}
    assert pages - named - found_by_the_site == set()

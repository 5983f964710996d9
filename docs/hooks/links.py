"""Links of pages as GitHub shows them, made links of the site."""

import posixpath
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"(\]\(|src=\")([^)\s\"#:]+)(#[^)\s\"]*)?(?=[)\"])")
CODE = re.compile(r"(```.*?```|`[^`\n]+`)", re.DOTALL)


def on_page_markdown(markdown, page, config, files):
    """Turn links to files outside docs/ into links of the repository, and those to the pages copied from there into
    links of the site."""
    from_root = getattr(page.file, "from_root", None)
    place = posixpath.dirname(from_root or f"docs/{page.file.src_uri}")
    copied = {one.from_root: one.src_uri for one in files if hasattr(one, "from_root")}

    def relink(found):
        before, target, anchor = found[1], found[2], found[3] or ""
        path = posixpath.normpath(posixpath.join(place, target))
        if path in copied:
            goal = copied[path]
        elif path.startswith("docs/") and not path.endswith(".ipynb"):
            goal = path.removeprefix("docs/")
        elif path.startswith("docs/notebooks/"):
            goal = f"tutorials/{posixpath.basename(path).removesuffix('.ipynb')}.md"
        elif (ROOT / path).exists():
            return f"{before}{config.repo_url}/blob/main/{path}{anchor}"
        else:
            return found[0]  # the strict build says that it is broken
        return before + posixpath.relpath(goal, posixpath.dirname(page.file.src_uri) or ".") + anchor

    parts = CODE.split(markdown)
    return "".join(part if i % 2 else LINK.sub(relink, part) for i, part in enumerate(parts))

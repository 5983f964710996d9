"""Pages of the site that are made from the code when it is built, and those copied from outside docs/."""

import base64
import json
import sys
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "src"), str(Path(__file__).parent)]

import reference  # noqa: E402

COPIED = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
} | {path: path for path in sorted(f"benchmarks/{page.name}" for page in (ROOT / "benchmarks").glob("*.md"))}


def on_config(config):
    """Put guides and notebooks that the navigation does not name behind those that it names."""
    found = {
        "How-to guides": [f"guides/{path.name}" for path in (ROOT / "docs/guides").glob("*.md")],
        "Tutorials": [f"tutorials/{path.stem}.md" for path in (ROOT / "docs/notebooks").glob("*.ipynb")],
    }
    for section in config.nav:
        for title, entries in section.items():
            if title in found:
                named = {page for entry in entries for page in entry.values()}
                entries += sorted(page for page in found[title] if page not in named)
    return config


def on_files(files, config):
    """Add the pages that are no files in docs/."""
    for source, page in COPIED.items():
        file = File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8"))
        file.from_root = source
        files.append(file)
    made = reference.make_pages()
    for notebook in sorted((ROOT / "docs/notebooks").glob("*.ipynb")):
        made |= read_notebook(notebook)
    for name, content in made.items():
        files.append(File.generated(config, name, content=content))
    return files


def read_notebook(path):
    """A notebook as a page, and its pictures."""
    lines, made = [], {}
    for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
        source = "".join(cell["source"])
        lines.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for place, output in enumerate(cell.get("outputs", ())):
            data = output.get("data", {})
            if "image/png" in data:
                name = f"{path.stem}-{number}-{place}.png"
                made[f"tutorials/{name}"] = base64.b64decode("".join(data["image/png"]))
                lines.append(f"![What the cell above draws]({name})")
            elif text := "".join(output.get("text", data.get("text/plain", ""))).rstrip():
                lines.append(f"```text\n{text}\n```")
    return {f"tutorials/{path.stem}.md": "\n\n".join(lines) + "\n"} | made

"""What is released says the same everywhere: versions, commands of the workflows, what was tried."""

import importlib.util
import re
import runpy
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

import fedkeel

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def numbers(text):
    return [int(number) for number in text.split(".")]


@pytest.fixture(scope="module")
def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_page_of_what_was_tried_is_made_of_the_tries():
    tries = script("try_wheel")
    assert tries.PAGE.read_text(encoding="utf-8") == tries.make_page(tries.read_lines())


def test_of_a_pair_the_last_try_counts_and_what_failed_is_shown():
    tries = script("try_wheel")
    first = {"python": "3.11.7", "torch": "2.9.1", "system": "Linux", "machine": "x86_64", "day": "2026-01-01",
             "steps": {"install": "failed", "help": "—"}}  # fmt: skip
    last = first | {"day": "2026-01-02", "steps": {"install": "ok", "help": "failed"}}
    newer = last | {"torch": "2.10.0"}
    rows = [line for line in tries.make_page([newer, first, last]).splitlines() if line.startswith("| 3")]
    assert rows == [
        "| 3.11.7 | 2.9.1 | Linux | x86_64 | ok | failed | 2026-01-02 |",
        "| 3.11.7 | 2.10.0 | Linux | x86_64 | ok | failed | 2026-01-02 |",
    ]


def test_the_range_of_torch_is_what_was_tried(project):
    [low, high] = re.search(r"torch>=([\d.]+),<([\d.]+)", " ".join(project["dependencies"])).groups()
    tried = [one for one in script("try_wheel").read_lines() if set(one["steps"].values()) == {"ok"}]
    versions = [numbers(one["torch"].partition("+")[0]) for one in tried]
    assert min(versions)[:2] == numbers(low)
    major, minor = max(versions)[:2]
    assert [major, minor + 1] == numbers(high)
    pinned = re.search(r"^torch==(.+)$", (ROOT / "constraints" / "cpu.txt").read_text(), re.MULTILINE).group(1)
    assert numbers(pinned) in versions


def test_every_python_that_is_named_was_tried(project):
    named = {text.rsplit(" ", 1)[1] for text in project["classifiers"] if "Python :: 3." in text}
    tried = {one["python"].rpartition(".")[0] for one in script("try_wheel").read_lines()}
    assert named == tried
    matrix = re.search(r"python: (\[.*\])", (ROOT / ".github/workflows/tests.yml").read_text()).group(1)
    assert set(re.findall(r"3\.\d+", matrix)) == named


def test_workflows_call_only_what_is_there():
    targets = set(re.findall(r"^([\w./-]+(?: [\w./-]+)*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    targets = {word for line in targets for word in line.split()}
    assert {"run", "test", ".venv/developing"} <= targets
    for workflow in WORKFLOWS:
        text = workflow.read_text(encoding="utf-8")
        for target in re.findall(r"run: make (\S+)", text):
            known = target in targets
            assert known, f"{workflow.name}: make {target}"
        for path in re.findall(r"(?:scripts|containers|constraints)/[\w.-]+", text):
            assert (ROOT / path).is_file(), f"{workflow.name}: {path}"


def test_containers_copy_only_what_is_sent_to_them():
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for file in (ROOT / "containers").glob("*.Dockerfile"):
        for line in re.findall(r"^COPY (.+)$", file.read_text(), re.MULTILINE):
            assert set(line.split()[:-1]) <= sent, f"{file.name}: {line}"
    assert all((ROOT / name).exists() for name in sent)


def test_containers_install_extras_that_exist(project):
    for file in (ROOT / "containers").glob("*.Dockerfile"):
        (extras,) = re.findall(r'pip install .*"\.\[(.+)\]"', file.read_text())
        assert set(extras.split(",")) <= project["optional-dependencies"].keys(), file.name


def test_images_for_cpus_can_take_pytorch_without_cuda():
    """The package index has none for x86-64: the image had 5.8 GB. Which index has is said by who builds it."""
    template = ROOT / "src" / "fedkeel" / "federation" / "templates" / "Dockerfile.template"
    for file in (ROOT / "containers" / "cpu.Dockerfile", template):
        text = file.read_text()
        assert re.search(r"^ARG TORCH_INDEX=$", text, re.M), file.name
        assert text.index("$TORCH_INDEX") < text.index("$FEDKEEL" if file is template else '".[download]"')


def test_links_of_the_long_description_lead_into_the_repository(project, monkeypatch):
    hatch = SimpleNamespace(MetadataHookInterface=object)
    monkeypatch.setitem(sys.modules, "hatchling.metadata.plugin.interface", hatch)
    make = runpy.run_path(str(ROOT / "hatch_build.py"))["link_to_repository"]
    source = project["urls"]["Source"]
    links = re.findall(r"\]\(([^)]+)\)", make((ROOT / "README.md").read_text(encoding="utf-8"), source))
    assert len(links) > 20
    for link in links:
        kind, branch, path = link.removeprefix(f"{source}/").split("/", 2)
        assert (kind, branch) == ("raw" if path.endswith(".png") else "blob", "main")
        assert (ROOT / path).exists()
    assert make("[a](https://b.org) [c](#d) `x`", source) == "[a](https://b.org) [c](#d) `x`"


def test_a_tag_is_released_only_if_every_file_names_its_version(tmp_path):
    check = script("check_version")
    assert check.versions_in()["CITATION.cff"] == fedkeel.__version__
    for name, text in {
        "src/fedkeel/__init__.py": '__version__ = "1.0.0"\n',
        "CITATION.cff": 'cff-version: 1.2.0\nversion: "1.0.0"\n',
        "CHANGELOG.md": "# Changelog\n\n## 1.0.0 (2026-12-01)\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert check.problems_with("v1.0.0", tmp_path) == []
    assert len(check.problems_with("v1.0.1", tmp_path)) == 3
    assert check.problems_with("latest", tmp_path)[0] == "latest is not vMAJOR.MINOR.PATCH"
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n\n## 1.0.0\n")
    assert check.problems_with("v1.0.0", tmp_path) == ["CHANGELOG.md says Unreleased, the tag 1.0.0"]

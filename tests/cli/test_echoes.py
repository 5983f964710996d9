"""What files say, where it is shown: it moves no cursor, ends no element, leaves no folder and fills no screen."""

import json
import tomllib

import pytest
import tomli_w
from small_runs import SMALL, forge

import fedkeel as fk
from fedkeel.cli.main import call
from fedkeel.errors import MESSAGE, MethodError, nearest
from fedkeel.runs.folder import folder_name
from fedkeel.text import make_printable

NASTY = "\x1b]0;title\x07\x1b[2J\x9b31m\u202e<script>alert(1)</script>"


@pytest.fixture
def nasty(fedkeel, trained, tmp_path):
    """A run whose file, environment and network say nasty things."""
    trained("--method", "fedavg", "--out", "run")
    file = tmp_path / "run" / "experiment.toml"
    data = tomllib.loads(file.read_text())
    rule = {"rule": f"evil:{NASTY}", NASTY: NASTY}
    data["method"] |= {"name": NASTY, "papers": [NASTY], "server": [rule]}
    forge(tmp_path / "run", data | {"model": f"evil:{NASTY}"})
    place = tmp_path / "run" / "environment.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | {"device": NASTY, "command": ["fedkeel", NASTY]}))
    return fedkeel


def clean(text):
    return not any(sign in text for sign in ("\x1b", "\x07", "\x9b", "\u202e"))


def test_names_from_files_reach_the_terminal_as_letters(nasty, drawn_only):
    for words in (
        ["compare", "run"],
        ["compare", "run", "--json"],
        ["report", "run"],
        ["cite", "run"],
        ["resume", "run"],
        ["analyse", "run"],
        ["export", "model", "run", "m.safetensors"],
        ["doctor", "run/experiment.toml"],
        ["run", "run/experiment.toml"],
    ):
        done = nasty(*words)
        assert done.code in (0, 2), words
        assert clean(done.out), words
        assert clean(done.err), words
        if "--json" in words:
            assert json.loads(done.out)["methods"][0]["label"] == NASTY


@pytest.mark.slow
def test_names_from_files_end_no_element_of_the_page(nasty, tmp_path):
    assert nasty("report", "run").code == 0
    assert "<script>alert" not in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    "name", ["..", ".", "...", "../up", "/etc/x", "a/b", "C:\\x", "nul", "CON.txt", "a\0b", "é" * 300, "", "~", "-rf"]
)
def test_a_methods_name_stays_one_folder_inside_out(fedkeel, tmp_path, name):
    made = folder_name(name)
    assert (tmp_path / "out" / made).resolve().parent == (tmp_path / "out").resolve()
    assert len(made.encode()) < 256
    assert made.lower() not in ("nul", "con.txt")


def test_two_runs_of_methods_named_upwards_stand_below_out(fedkeel, tmp_path):
    rules = {"weights": {"rule": "BySize"}, "phases": [{"gradient": []}]}
    (tmp_path / "up.toml").write_text(tomli_w.dumps({"method": [{"name": ".."} | rules, {"name": "../.."} | rules]}))
    done = fedkeel("run", "up.toml", *SMALL, "--rounds", "1", "--out", "deep/out")
    assert done.code == 0, done.err
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["out"]


def test_a_checkpoint_names_no_file_elsewhere(trained, tmp_path):
    """Files of clients' states are removed once nothing needs them: they must be the run's own."""
    from fedkeel.core.states import read, write
    from fedkeel.runs.checkpoint import find_newest

    trained("--method", "scaffold", "--out", "run")
    folder = tmp_path / "run" / "checkpoint"
    for path in folder.glob("[0-9]*.safetensors"):
        arrays, facts = read(path)
        client, name = next(iter(facts["places"].items()))
        (tmp_path / "other.safetensors").write_bytes((folder / name).read_bytes())
        facts["places"][client] = "../../other.safetensors"
        for sums in ("check", "checks"):
            facts.pop(sums)
        write(path, arrays, facts)
    with pytest.raises(fk.FedkeelError, match="names a file that is not of clients"):
        find_newest(folder)
    assert call(["resume", "run", "--rounds", "3"]) == 2
    assert (tmp_path / "other.safetensors").exists()


def test_values_echoed_in_errors_are_cut():
    long = "x" * 100_000
    for data in (
        {"method": long},
        {"method": {"name": "fedavg", long: 1}},
        {"method": {"weights": {"rule": long}}},
        {"method": {"weights": {"rule": "BySize", long: 1}}},
        {"model": long},
        {"model": f"evil:{long}"},
        {long: 1},
        {"lr": long},
        {"partition": long},
        {"dataset": long},
        {"on_nonfinite": long},
        {"participants": [[long]]},
    ):
        with pytest.raises(fk.FedkeelError) as caught:
            fk.Experiment.load({"dataset": "digits"} | data)
        assert len(caught.value.message) <= MESSAGE
        assert len(str(caught.value)) < 3000
    assert len(nearest(long, ["a"], "words")) < 100


def test_an_error_is_one_printable_line():
    error = MethodError(f"a\nb{NASTY}", f"c\n{NASTY}")
    assert "\n" not in error.message
    assert clean(error.message)
    assert clean(error.hint)
    assert make_printable("ünï – ✓ 漢字\u00a0…") == "ünï – ✓ 漢字\u00a0…"


def test_links_in_a_folder_are_not_written_through(trained, tmp_path):
    """Someone else's run may hold links that lead anywhere; going on with it writes into its folder alone."""
    trained("--method", "fedavg", "--out", "run")
    mine = tmp_path / "mine"
    mine.write_text("precious")
    for name in ("run.lock", "rounds.jsonl", "result.json", "environment.json", "timing.json"):
        kept = tmp_path / "run" / name
        for link in (kept.with_name(f".{name}.partial"), *([kept] if name == "run.lock" else [])):
            link.unlink(missing_ok=True)
            link.symlink_to(mine)
    assert call(["resume", "run", "--rounds", "3"]) == 2
    (tmp_path / "run" / "run.lock").unlink()
    assert call(["resume", "run", "--rounds", "3"]) == 0
    assert mine.read_text() == "precious"

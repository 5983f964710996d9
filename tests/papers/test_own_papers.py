"""A paper of the user's own: it runs as the package's own do, runs no code, and every fault is one line with a hint."""

import re
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from for_each import for_each

from fedkeel.cli.main import call
from fedkeel.errors import RequestError, UntrustedError
from fedkeel.papers import find
from fedkeel.papers.ledger import Entry, append, read
from fedkeel.papers.ledger_line import OF_CELL
from fedkeel.papers.paper_file import split_spec
from fedkeel.papers.reproduce import experiment_of, obstacle, seeds_named, settings_of

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "papers.md").read_text(encoding="utf-8")
SOUND = re.search(r"```toml\n(# mine\.toml\n.*?)```", GUIDE, re.DOTALL)[1]

CELL = '{row = "FedAvg", column = "alpha 0.1", lr = 0.2}'


@pytest.fixture
def paper(tmp_path):
    def write(*changes):
        text = SOUND
        for old, new in changes:
            assert old in text
            text = text.replace(old, new, 1)
        path = tmp_path / f"mine{len(list(tmp_path.iterdir()))}.toml"  # tables are read once
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


@pytest.mark.slow
def test_the_paper_of_the_guide_runs_and_is_judged(paper, tmp_path, capsys):
    mine, ledger = paper(), tmp_path / "my.jsonl"
    where = ["--ledger", str(ledger), "--out", str(tmp_path / "runs"), "--no-progress"]
    assert call(["reproduce", f"{mine}:1", "--rounds", "2", *where]) == 0
    told = capsys.readouterr().out
    assert "80.10 ± 0.50" in told
    assert "2 of 4" in told
    assert {(entry.paper, entry.row, entry.reported) for entry in read(ledger)} >= {(mine, "FedAvg", 70.0)}
    assert call(["reproduce", mine, "--list"]) == call(["reproduce", f"{mine}:1", "--dry-run"]) == 0
    assert call(["reproduce", f"{mine}:1", "--cell", "FedAvg, alpha 0.1", "--tiny", *where[2:]]) == 0


def test_cells_are_what_the_layers_add_up_to(paper):
    first, second, third, fourth = find(f"{paper(('lr = 0.1', 'lr = 0.5'))}:1")
    assert (first.reported, second.reported, second.spread, fourth.reported) == (70.0, 80.1, 0.5, None)
    assert first.experiment["partition"] == {"kind": "dirichlet", "clients": 10, "alpha": 0.1}
    assert experiment_of(third, 3).plan.method.name == "fedprox"
    assert experiment_of(third, 3).plan.lr == 0.5
    assert seeds_named("paper", paper(("choices", "seeds = [4, 5]\nchoices"))) == [4, 5]
    with pytest.raises(RequestError, match="has no table: 2"):
        find(f"{paper()}:2")


def test_a_path_may_have_a_colon():
    assert split_spec("C:/papers/mine.toml:1") == ("C:/papers/mine.toml", "1")
    assert split_spec("C:/papers/mine.toml") == ("C:/papers/mine.toml", None)
    assert split_spec("fedfft:1") == ("fedfft", "1")
    assert split_spec("fedfft") == ("fedfft", None)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("lr = 0.1", 'lr = "fast"'),
        ("lr = 0.1", "lrr = 0.1"),
        ("lr = 0.1", ""),
        ("lr = 0.1", "lr ="),
        ("lr = 0.1", "seed = 1"),
        ("lr = 0.1", 'lr_matches = "FedAvg"'),
        ('dataset = "digits"', ""),
        ("batch_size = 50", ""),
        ('{kind = "dirichlet", clients = 10, alpha = 0.1}', '"dirichlet"'),
        ('kind = "dirichlet", ', ""),
        ("70.0", '"seventy"'),
        ("70.0", "nan"),
        ("70.0", '"70.0±-0.3"'),
        ("70.0", '"70.0±nan"'),
        ("70.0", '"70.0±inf"'),
        ("70.0", '"70.0±"'),
        ("[defaults]", 'leads = [["FedProx", "FedAvgg"]]\n[defaults]'),
        ('name = "1"', 'name = "1"\nleads = [["FedProx", "FedAvgg"]]'),
        ("[[table]]", '[[checks]]\ntable = "1"\n[[table]]'),
        ("70.0", "2020-01-01"),
        ('[70.0, "80.1±0.5"]', "[70.0]"),
        ('[70.0, "80.1±0.5"]', "70.0"),
        ('"FedAvg" = [', '"FedAvgg" = ['),
        ('columns = ["alpha 0.1"', 'columns = ["alpha 0.2"'),
        ('columns = ["alpha 0.1", "alpha 1.0"]', ""),
        ("[table.values]", "[table.vals]"),
        ('{method = "fedavg"}', '"fedavg"'),
        ('{method = "fedavg"}', '{method = "fedavg", note = 1}'),
        ('{method = "fedavg"}', '{method = "fedavg", kind = "speed"}'),
        ('{method = "fedavg"}', '{method = "fedavg", kind = "rounds"}'),
        ('{method = "fedavg"}', '{method = "fedavg", evaluation = "first"}'),
        ('{method = "fedavg"}', '{method = "fedavg", on.digits = 1}'),
        ("[columns]", "[on.cifar10]\nlr = 1\n[columns]"),
        ('{method = "fedavg"}', '{method = "fedavg", on.digit.lr = 1}'),
        ("[columns]", '[columns]\n"x" = {on.digits.lr = 1}'),
        ('name = "1"', 'name = "1"\nrow."FedAvgg" = {lr = 1}'),
        ('name = "1"', 'name = "1"\nrow."FedAvg" = {like = "FedAvgg"}'),
        ('name = "1"', 'name = "1"\ncell = [{row = "FedAvg", column = "alpha 7"}]'),
        ("[[table]]", '[[table]]\nname = "1"\ntitle = ""\nrows = ["FedAvg"]\ncolumns = ["alpha 0.1"]\n[[table]]'),
        ("[[table]]", "[other]"),
        ('name = "1"', 'name = "1"\nevaluation = "personal best"'),
        ('name = "1"', 'name = "1"\nkind = "rounds"\ntarget = 0.75'),
        ('name = "1"', 'name = "1"\nkind = "rounds"\ntarget = 101'),
        ('name = "1"', 'name = "1"\nrows = ["FedAvg", "FedProx", "FedDyn"]'),
        ('columns = ["alpha 0.1", "alpha 1.0"]', 'columns = ["alpha 0.1", "alpha 0.1"]'),
        ('name = "1"', f'name = "1"\ncell = [{CELL}, {CELL}]'),
        ('name = "1"', 'name = "1"\ncell = [{row = "FedAvg"}]'),
    ],
)
def test_a_fault_is_one_line_with_a_hint(old, new, paper):
    mine = paper((old, new))
    with pytest.raises(RequestError) as refused:
        find(f"{mine}:1")
    assert Path(mine).name in refused.value.message
    assert "\n" not in refused.value.message
    assert refused.value.hint


def test_a_partition_as_a_text_is_named_for_what_it_is(paper):
    """A column's partition.alpha replaced it, and what was left lacked its kind."""
    with pytest.raises(RequestError, match=r"partition of 'defaults' .* must be a table: 'dirichlet:clients=10'"):
        find(paper(('{kind = "dirichlet", clients = 10, alpha = 0.1}', '"dirichlet:clients=10"')))


@pytest.mark.parametrize("word", ["seed", "seeds"])
@pytest.mark.parametrize("after", ["[defaults]", 'name = "1"'])
def test_seeds_in_a_wrong_place_are_told_where_they_stand(word, after, paper):
    """The nearest words were `assumed` and `steps`."""
    with pytest.raises(RequestError, match=f"has no key: {word}\n") as refused:
        find(paper((after, f"{after}\n{word} = [1]")))
    assert "--seeds 0,1,2" in refused.value.hint
    assert "above [defaults]" in refused.value.hint


def test_what_is_no_file_is_one_line(tmp_path):
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    for name in ("none", "folder", "bytes"):
        with pytest.raises(RequestError, match=f"{name}.toml"):
            find(str(tmp_path / f"{name}.toml"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('method = "fedavg"', 'method = "evil:made"'),
        ('method = "fedavg"', 'method = {name = "x", gradient = [{rule = "evil:made"}]}'),
        ('model = "logistic"', 'model = "evil:made"'),
        ("lr = 0.1", 'lr = 0.1\nschedule = "evil:made"'),
        ('kind = "dirichlet"', 'kind = "evil:made"'),
    ],
)
def test_nothing_in_the_file_runs_code(old, new, paper, tmp_path, monkeypatch, capsys):
    (tmp_path / "evil.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    one = ["--cell", "FedAvg, alpha 0.1", "--no-progress"]
    assert call(["reproduce", f"{paper((old, new))}:1", *one]) in (1, 2)
    assert "which is not run unasked" in "".join(capsys.readouterr())
    assert not list(tmp_path.rglob("*.safetensors"))


@for_each("old, new", [('"fedavg"', '"evil:made"'), ('kind = "dirichlet"', 'kind = "evil:made"')])
def test_who_names_code_is_told_where_it_may_stand(old, new):
    with TemporaryDirectory() as folder:
        mine = Path(folder) / "mine.toml"
        mine.write_text(SOUND.replace(old, new, 1), encoding="utf-8")
        wrong = obstacle(find(f"{mine}:1")[0])
    assert isinstance(wrong, UntrustedError)
    assert "fedkeel run" in wrong.hint


def test_a_skipped_cell_keeps_its_hint(paper, tmp_path, capsys):
    mine = paper(
        ('"fedavg"', '"fedavgg"'),
        ('columns = ["alpha 0.1", "alpha 1.0"]', 'columns = ["alpha 0.1"]'),
        ('"FedAvg" = [70.0, "80.1±0.5"]', '"FedAvg" = [70.0]'),
        ('"FedProx" = [71.2, "-"]', ""),
    )
    assert (
        call(["reproduce", f"{mine}:1", "--ledger", str(tmp_path / "my.jsonl"), "--out", str(tmp_path / "runs")]) == 1
    )
    assert "did you mean 'fedavg'?" in "".join(capsys.readouterr())


def test_pages_have_no_paper_of_ones_own_and_say_so(paper, tmp_path, capsys):
    (tmp_path / "my.jsonl").touch()
    asked = ["reproduce", f"{paper()}:1", "--ledger", str(tmp_path / "my.jsonl")]
    for page in ("--page", "--claims", "--gallery"):
        assert call([*asked, page, str(tmp_path / "page")]) == 2
        assert "the package's papers alone" in capsys.readouterr().err
    assert not (tmp_path / "page").exists()


def test_what_was_changed_is_told_with_the_open_choices(paper, tmp_path, capsys):
    mine = paper(("[defaults]", 'changed = ["lr: 0.1; the first runs had 0.2."]\n[defaults]'))
    assert call(["reproduce", f"{mine}:1", "--dry-run", "--ledger", str(tmp_path / "my.jsonl")]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "batch size: not stated; 50. changed after runs had been made: lr: 0.1; the first runs had 0.2." in told


def test_leads_are_told_after_the_run_but_not_among_other_choices(paper, tmp_path, capsys):
    mine, ledger = paper(("[defaults]", 'leads = [["FedProx", "FedAvg"]]\n[defaults]')), tmp_path / "my.jsonl"
    for cell, best in zip(find(mine), (60.0, 70.0, 62.5, 70.0), strict=True):
        known = {name: getattr(cell, name) for name in OF_CELL}
        measured = dict.fromkeys(("measured", "best", "last", "mean_last"), best)
        made = {"rounds": 4, "rounds_paper": 4, "seconds": 1.0, "fingerprint": "", "model_digest": cell.label}
        append(Entry(**known, **measured, **made, seed=0, settings=settings_of(cell)), ledger)
    asked = ["reproduce", f"{mine}:1", "--draw", "--ledger", str(ledger)]
    assert call(asked) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "FedProx − FedAvg alpha 0.1 +1.20 +2.50 4 of 4 1" in told
    assert "FedProx − FedAvg alpha 1.0 – +0.00 4 of 4 1" in told
    assert call([*asked, "--try", "lr=0.1,0.2"]) == 0
    assert "−" not in capsys.readouterr().out


def test_half_a_line_of_the_ledger_is_told_once(paper, tmp_path, capsys):
    """The command reads its ledger several times."""
    ledger = tmp_path / "my.jsonl"
    ledger.write_text('{"paper": "mi')
    assert call(["reproduce", f"{paper()}:1", "--draw", "--ledger", str(ledger)]) == 0
    assert " ".join(capsys.readouterr().err.split()).count("is not whole, and is left out") == 1


def test_the_paper_that_hints_name_can_be_copied(tmp_path):
    with pytest.raises(RequestError) as refused:
        find(str(tmp_path / "none.toml"))
    name = re.search(r"fedkeel/papers/(\w+)\.toml", refused.value.hint)[1]
    copy = tmp_path / f"{name}.toml"
    copy.write_text((files("fedkeel.papers") / copy.name).read_text(encoding="utf-8"), encoding="utf-8")
    assert len(find(str(copy))) == len(find(name))

"""`fedkeel report` and `fedkeel analyse` as a shell calls them."""

import json
from itertools import islice

import pytest
import typer
from invented import made_up
from typer.testing import CliRunner

import fedkeel as fk
from fedkeel.cli import pages
from fedkeel.cli.analyse import analyse
from fedkeel.cli.report import report
from fedkeel.cli.tracking import Tracking
from fedkeel.report import figures


@pytest.fixture
def call():
    app = typer.Typer(pretty_exceptions_enable=False)
    pages.add(app, analyse, report)

    def invoke(*arguments):
        made = CliRunner().invoke(app, [str(word) for word in arguments])
        if made.exception is not None and not isinstance(made.exception, SystemExit):
            raise made.exception
        return made

    return invoke


def test_report_prints_what_it_wrote(call, tmp_path, drawn_only):
    made_up(tmp_path / "runs" / "fedavg" / "0", rounds=3)
    made_up(tmp_path / "runs" / "fedsam" / "0", method="fedsam", rounds=3)
    file = tmp_path / "new" / "page.html"
    done = call("report", tmp_path / "runs", "-o", file, "--title", "Two methods", "--target", "0.2")
    assert done.exit_code == 0
    assert done.stdout.split() == [str(file)]
    text = file.read_text()
    assert "<h1>Two methods</h1>" in text
    assert "rounds to 20\N{NO-BREAK SPACE}%" in text


def test_a_target_may_be_a_loss_where_runs_are_judged_on_losses(call, tmp_path, drawn_only):
    folder, file = made_up(tmp_path / "run", rounds=3, tracked=False), tmp_path / "page.html"
    with pytest.raises(fk.RequestError, match=r"an accuracy is above 0 and at most 1: 1\.9"):
        call("report", folder, "-o", file, "--target", "1.9")
    assert not file.exists()
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line | {"accuracy": None}) + "\n" for line in lines))
    assert call("report", folder, "-o", file, "--target", "1.9").exit_code == 0
    assert "rounds to 1.9<" in file.read_text()
    with pytest.raises(fk.RequestError, match="a target must be finite"):
        call("report", folder, "-o", file, "--target", "nan")


def test_report_draws_figures(call, tmp_path, drawn_only, monkeypatch):
    every = figures.charts
    monkeypatch.setattr(figures, "charts", lambda *given: islice(every(*given), 1))
    made_up(tmp_path / "run", rounds=2, tracked=False)
    done = call("report", tmp_path / "run", "-o", tmp_path / "a.html", "--figures", tmp_path / "figures")
    names = {line.rsplit("/", 1)[-1] for line in done.stdout.split()}
    assert {"a.html", "accuracy-by-round.png", "accuracy-by-round.svg", "accuracy-by-round.pdf"} <= names


def test_wrong_folders_are_refused(call, tmp_path):
    with pytest.raises(fk.FolderError, match="does not exist"):
        call("report", tmp_path / "none")
    with pytest.raises(fk.FolderError, match="holds none"):
        call("analyse", tmp_path)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["runs"], "without RUN…"),
        (["runs", "--target", "0.5"], "without RUN… and --target"),
    ],
)
def test_a_ledger_is_drawn_alone(call, tmp_path, given, named):
    with pytest.raises(fk.RequestError, match=named):
        call("report", *given, "--ledger", tmp_path / "ledger.jsonl", "-o", tmp_path / "page.html")


def test_analyse_writes_beside_the_run_and_prints(call, real_run):
    folder = real_run("fedavg", 1)
    done = call("analyse", folder, "--drift", "--spectrum", "--clients", "3", "--samples", "40")
    assert "Dist(m) of gradients" in done.stdout
    assert sorted(path.name for path in (folder / "analysis").iterdir()) == ["drift.json", "spectrum.json"]
    document = json.loads(call("analyse", folder, "--drift", "--clients", "3", "--samples", "40", "--json").stdout)
    assert document[str(folder)]["drift"] == json.loads((folder / "analysis" / "drift.json").read_text())


def test_tracking_is_checked_before_training():
    assert Tracking.of("drift, spectrum").track == ("drift", "spectrum")
    with pytest.raises(fk.RequestError, match="drft"):
        Tracking.of("drft")


def test_followers_of_a_run(tmp_path, toy):
    exp = fk.Experiment(problem=toy, rounds=2, batch_size=1, participation=1.0)
    with Tracking.of().followers(None, "plain", tmp_path) as progress:
        assert len(fk.run(exp, progress=progress, engine="serial").records) == 2
    assert list(tmp_path.iterdir()) == []

"""What a report shows of every client."""

from dataclasses import replace

import torch

import fedkeel as fk
from fedkeel.report.client_scores import MANY, client_charts, scores_of
from fedkeel.report.content import content
from fedkeel.report.drawing import embed
from fedkeel.report.source import Source
from problems import small_problem


def test_a_report_shows_every_client_and_the_worst(tmp_path):
    generator = torch.Generator().manual_seed(0)
    tests = [(torch.randn(n, 6, generator=generator), torch.arange(n) % 3) for n in (30, 0, 20, 15, 10, 6)]
    problem = replace(small_problem(), tests=tests, name="six sites")
    made = fk.Experiment(
        problem=problem, rounds=2, epochs=1, batch_size=4, lr=0.05, participation=1.0, evaluation={"model": "local"}
    )
    run = fk.run(made, out=tmp_path, engine="serial", metrics="f1")
    (setting,) = content([Source.read(tmp_path)]).settings
    assert setting.name.startswith("six sites")
    found = {chart.file: chart for chart in client_charts(setting)}
    assert {"clients-accuracy", "clients-accuracy-by-size", "clients-f1", "clients-loss", "client-sizes"} <= set(found)
    there = [value for value in run.records[-1].clients["accuracy"] if value is not None]
    assert f"worst client: fedavg {100 * min(there):.1f} %" in found["clients-accuracy"].note
    (line,) = found["clients-accuracy"].figure.axes[0].lines
    assert list(line.get_ydata()) == [100 * value for value in sorted(there)]
    assert list(line.get_xdata()) == [20, 40, 60, 80, 100]  # the share that is no better
    losses = [value for value in run.records[-1].clients["loss"] if value is not None]
    (line,) = found["clients-loss"].figure.axes[0].lines
    assert list(line.get_ydata()) == sorted(losses, reverse=True)  # the worst first, too
    assert scores_of("f1", setting.groups[0]).sizes.tolist() == [7, 5, 1, 9, 16]
    assert found["client-sizes"].note == "6 clients with 1 to 16 samples, 50 in all"
    assert found["clients-accuracy"].note.startswith("round 2; worst")
    # of several seeds the first is shown, and named
    source = Source.read(tmp_path)
    (setting,) = content([source, replace(source, experiment=dict(source.experiment, seed=1))]).settings
    found = {chart.file: chart for chart in client_charts(setting)}
    assert found["clients-accuracy"].note.startswith("seed 0, round 2; worst client: fedavg")
    assert found["clients-accuracy-by-size"].note == "seed 0, round 2; each point is a client"
    method = dict(source.experiment["method"], name="fedprox")
    (setting,) = content(
        [
            source,
            replace(source, experiment=source.experiment | {"method": method, "seed": 3}),
            replace(source, experiment=source.experiment | {"method": method, "seed": 4}),
        ]
    ).settings
    notes = [chart.note for chart in client_charts(setting)]
    assert notes[0].startswith("fedavg: round 2; fedprox: seed 3, round 2; worst client: ")


def test_a_run_that_stopped_between_evaluated_rounds_shows_the_last_scores(tmp_path):
    made = fk.Experiment(
        problem=small_problem(), rounds=3, batch_size=4, evaluate_every=2, evaluation={"model": "global", "share": 0.3}
    )
    fk.run(made, out=tmp_path, engine="serial")
    whole = Source.read(tmp_path)
    stopped = replace(whole, records=[*whole.records[:2], replace(whole.records[2], clients={}, extra={})])
    (setting,) = content([stopped]).settings
    found = {chart.file: chart for chart in client_charts(setting)}
    assert found["clients-accuracy"].note.startswith("round 2; worst client")


def test_a_page_does_not_grow_with_very_many_clients(tmp_path):
    fk.run(fk.Experiment(problem=small_problem(), rounds=1, batch_size=4), out=tmp_path, engine="serial")
    read, count = Source.read(tmp_path), 2**14
    sizes = [7 * client % count + 1 for client in range(count)]  # each from 1 to count once
    scores = {"accuracy": [size / count for size in sizes]}
    source = replace(read, records=[replace(read.records[0], clients=scores)])
    source.__dict__["clients"] = read.clients._replace(sizes=sizes)
    found = {chart.file: chart for chart in client_charts(content([source]).settings[0])}
    (points,) = found["clients-accuracy-by-size"].figure.axes[0].lines
    assert len(points.get_xdata()) == MANY
    assert {min(sizes), max(sizes)} <= set(points.get_xdata())
    assert (points.get_ydata() * count == points.get_xdata() * 100).all()  # a score stays with its size
    assert f"{MANY} clients of all sizes are drawn" in found["clients-accuracy-by-size"].note
    (line,) = found["client-sizes"].figure.axes[0].lines
    assert line.get_ydata().tolist() == sorted(sizes)
    assert not found["client-sizes"].figure.axes[0].patches
    assert found["client-sizes"].note.endswith("the smallest first")
    assert max(len(embed(chart.figure, "")) for chart in found.values()) < 200_000


def test_a_run_that_judges_no_client_has_no_such_chart(tmp_path):
    fk.run(fk.Experiment(dataset="digits", model="logistic", rounds=1), out=tmp_path, engine="serial")
    (setting,) = content([Source.read(tmp_path)]).settings
    assert not list(client_charts(setting))

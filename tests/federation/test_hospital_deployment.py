"""The example of three hospitals as a federation of processes: from tables to a model, paused, rolled back, audited."""

import shutil
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason='needs flwr: pip install "fedkeel[flower]"')

from deployments import MISSING, Deployment

import fedkeel as fk
from fedkeel.engines.flower.site_ledger import read_sites
from fedkeel.federation.audit import check_witness, read_chain
from fedkeel.federation.export import export
from fedkeel.federation.gauges import FINISHED, read_gauges
from fedkeel.federation.history import roll_back
from fedkeel.runs.folder import read_rounds

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"not on this machine: {', '.join(MISSING)}"),
]
EXAMPLE = Path(__file__).parents[2] / "examples" / "hospital"


def test_three_hospitals_train_pause_and_go_back(tmp_path, monkeypatch):
    shutil.copytree(EXAMPLE, tmp_path / "example")
    monkeypatch.chdir(tmp_path / "example")
    monkeypatch.syspath_prepend(str(tmp_path / "example"))
    from write_tables import write_tables

    write_tables(tmp_path)
    columns = "radius,texture,smoothness,concavity,symmetry"
    settings = {"participation": 1.0, "epochs": 1, "batch_size": 16, "lr": 0.1, "rounds": 3}
    exp = fk.Experiment(problem="wards:problem", method="fedavg", **settings)
    how = {"data": "folder", "clients": 3, "columns": columns, "label": "benign"}
    export(exp, tmp_path / "app", problem="wards:problem", **how)
    monkeypatch.chdir(tmp_path)  # the app has to bring its module itself
    for name in ("wards", "write_tables"):
        sys.modules.pop(name, None)
    shutil.rmtree(tmp_path / "example")
    out = tmp_path / "run"
    run = {"out": str(out), "site_test": 0.2, "history": 1, "membership": "at-start", "minimum": 0.6, "wait": 60.0}
    made = Deployment(tmp_path / "app", tmp_path)
    try:
        made.superlink()
        made.register()
        for node in range(3):
            made.node(node, more=f'data-dir="{tmp_path}/site-{node}"')
        made.run("first", **run)
        made.wait_for(lambda: (out / "result.json").exists(), "the first run")
        first = (out / "result.json").read_text()
        assert len(read_rounds(out)) == 3
        made.processes.pop("first").wait()
        roll_back(out, 1)
        assert len(read_rounds(out)) == 1
        made.run("second", **run)
        made.wait_for(lambda: (out / "result.json").exists(), "the second run")
        made.processes.pop("second").wait()
    finally:
        made.close()
    assert len(read_rounds(out)) == 3
    lines = read_chain(tmp_path / "run-audit.jsonl")
    ends = [line["model"] for line in lines if line["event"] == "finished"]
    assert len(ends) == 2
    assert ends[0] == ends[1]
    assert ends[0] in first
    assert {line["client"] for line in lines if line["event"] == "joined"} == {0, 1, 2}
    for node in range(3):
        (witness,) = (tmp_path / f"state-{node}").glob("*-audit.jsonl")
        assert check_witness(lines, witness) > 0
    assert read_gauges(tmp_path / "run.prom").state == FINISHED
    assert read_sites(tmp_path / "run-sites.jsonl", 3)[-1]["samples"] == 114

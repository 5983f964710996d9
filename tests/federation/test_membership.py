"""Sites that join later or have other amounts of data, pauses, and the way back to an older round."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason='needs flwr: pip install "fedkeel[flower]"')

from federations import InProcess, same
from typer.testing import CliRunner

import fedkeel as fk
from fedkeel.cli.main import app as commands
from fedkeel.core.states import from_arrays, read
from fedkeel.data import load
from fedkeel.engines.flower.checks import Terms
from fedkeel.errors import FolderError, RequestError, RunError
from fedkeel.federation.apps import node_of, serve
from fedkeel.federation.history import list_rounds, roll_back
from fedkeel.federation.membership import ask_sizes
from fedkeel.federation.operations import Operations
from fedkeel.runs.folder import read_rounds


def write_site(folder, client, rows):
    data, place = load("digits"), folder / str(client)
    place.mkdir(exist_ok=True)
    np.save(place / "train_images.npy", np.asarray(data.train_images)[rows])
    np.save(place / "train_labels.npy", np.asarray(data.train_labels)[rows])


@pytest.fixture
def folders(tmp_path):
    for client in range(3):
        write_site(tmp_path, client, np.arange(client * 100, client * 100 + 40))
    return tmp_path


def experiment(rounds=2, method="fedavg"):
    return fk.Experiment(
        dataset="digits", model="logistic", method=method, rounds=rounds, participation=1.0, epochs=1, batch_size=20
    )


class Sites(InProcess):
    def __init__(self, exp, folders, absent=(), clients=3, share=0.0):
        super().__init__(
            fk.Experiment(dataset="digits", model="logistic", partition=f"iid:clients={clients}"),
            node_of=lambda context: node_of(exp, context),
            settings=lambda client: {"data-dir": str(folders / str(client)), "state-dir": str(folders / "states")},
            run_config={"data": "folder", "clients": clients, "site-test": share},
        )
        self.absent = set(absent)


def go_on(folders, exp, *, absent=(), clients=3, rule="at-start", history=0, minimum=0.5, grid=None, out="run", **how):
    out = folders / out
    grid = grid or Sites(exp, folders, absent, clients)
    settings = {"source": "folder", "clients": clients, "wait": 0.0, "terms": Terms(minimum=minimum, copy=False)}
    return grid, serve(exp, grid, out=out, membership=rule, watch=Operations(out, history), **settings | how)


def sizes(folders):
    return json.loads((folders / "run-clients.json").read_text())


def test_a_site_that_joins_later_counts_from_the_next_start(folders):
    grid, _ = go_on(folders, experiment(2), absent=[2])
    assert sizes(folders) == [40, 40, 0]
    assert {client for _, client in grid.asked} == {0, 1}
    grid, done = go_on(folders, experiment(4))
    assert sizes(folders) == [40, 40, 40]
    assert {(round, client) for round, client in grid.asked} == {(r, c) for r in (2, 3) for c in range(3)}
    assert [len(record.selected) for record in done.records] == [2, 2, 3, 3]


def test_a_site_that_is_away_keeps_its_size(folders):
    go_on(folders, experiment(2))
    go_on(folders, experiment(4), absent=[1])
    assert sizes(folders) == [40, 40, 40]


def test_more_data_count_from_the_next_start(folders):
    go_on(folders, experiment(2))
    write_site(folders, 0, np.arange(60))
    with pytest.raises(RunError, match=r"answered|needed"):  # fixed: what was said at first is what counts
        go_on(folders, experiment(4), rule="fixed", minimum=1.0)
    go_on(folders, experiment(4))
    assert sizes(folders) == [60, 40, 40]


def test_a_site_with_a_test_share_whose_data_changed_since_the_last_start_is_told(folders, caplog):
    def start(rounds):
        caplog.clear()
        go_on(folders, experiment(rounds), grid=Sites(experiment(rounds), folders, share=0.25), site_test=0.25)
        return [line for line in caplog.messages if "may have been trained on" in line]

    assert not start(1)
    assert not start(2)
    write_site(folders, 0, np.arange(60))
    (told,) = start(3)
    assert told.startswith("client 0 has other data than at the last start: ")


def test_a_federation_may_grow_but_its_clients_keep_their_numbers(folders):
    go_on(folders, experiment(1))
    write_site(folders, 3, np.arange(300, 330))
    _, done = go_on(folders, experiment(2), clients=4)
    assert sizes(folders) == [40, 40, 40, 30]
    assert done.records[-1].selected == [0, 1, 2, 3]
    with pytest.raises(RunError, match="counts 4 clients, not 3"):
        go_on(folders, experiment(3))
    with pytest.raises(RequestError, match="membership is fixed or at-start"):
        go_on(folders, experiment(3), clients=4, rule="sometimes")


@pytest.mark.parametrize(("method", "mean"), [("scaffold", "c"), ("feddyn", "h")])
@pytest.mark.parametrize("raised", [False, True])
def test_what_the_server_knows_of_all_clients_is_their_mean_when_some_join_later(folders, method, mean, raised):
    """c = mean of c_i, and h = mean of h_i: who joins begins with zero, and those before have a smaller share."""
    go_on(folders, experiment(2, method), absent=[] if raised else [2])
    write_site(folders, 3, np.arange(300, 330))
    clients = 4 if raised else 3
    _, done = go_on(folders, experiment(3, method), clients=clients)
    slots = []
    for file in sorted((folders / "states").rglob("client-*.safetensors")):
        arrays, facts = read(file)
        slots.append(from_arrays(arrays, facts["layouts"], "after/")[f"{mean}_i"].buffer)
    assert len(slots) == clients
    server = done.server[mean].buffer
    assert float((server - torch.stack(slots).mean(0)).norm() / server.norm()) < 1e-5


def test_a_site_without_samples_does_not_join_until_it_has_some(folders, caplog):
    write_site(folders, 1, np.arange(0))
    with pytest.raises(RunError, match="2 of 3 clients have a node"):
        go_on(folders, experiment(1), rule="fixed")
    assert "refused node 101: it cannot take part: client 1 has no samples" in caplog.messages
    assert not (folders / "run-clients.json").exists()
    write_site(folders, 1, np.arange(30))
    _, done = go_on(folders, experiment(1), rule="fixed")
    assert sizes(folders) == [40, 30, 40]
    assert done.records[-1].selected == [0, 1, 2]


@pytest.mark.parametrize("text", ["[40, 40", "40", "[null]"])
def test_a_damaged_list_of_sizes_is_one_line(tmp_path, text):
    (tmp_path / "run-clients.json").write_text(text)
    with pytest.raises(FolderError, match="is damaged: it lists each client's samples"):
        ask_sizes(tmp_path / "run", SimpleNamespace(clients=3), 0.0, Terms())


@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_a_pause_changes_nothing(folders, method):
    go_on(folders, experiment(2, method))
    _, paused = go_on(folders, experiment(4, method))  # other processes: nodes have only what is in state-dir
    shutil.rmtree(folders / "states")
    _, whole = go_on(folders, experiment(4, method), out="other")
    same(paused, whole)


def test_rolled_back_and_trained_again_is_what_it_was(folders):
    _, first = go_on(folders, experiment(6), history=2)
    out = folders / "run"
    assert list_rounds(out) == [2, 4, 5, 6]
    said = CliRunner().invoke(commands, ["site", "rollback", str(out), "2"])
    assert said.exit_code == 0, said.output
    assert "4 rounds are undone" in said.output
    assert len(read_rounds(out)) == 2
    assert list_rounds(out) == [2]
    assert (folders / "run-history" / "rounds-until-6.jsonl").read_text().count("\n") == 6
    grid, again = go_on(folders, experiment(6), history=2)
    assert min(round for round, _ in grid.asked) == 2
    same(first, again)


def test_the_run_folder_may_be_the_current_one(folders, monkeypatch):
    go_on(folders, experiment(2))
    (folders / "run" / "more").mkdir()
    for place, out in (("run", "."), ("run/more", ".."), (".", "run")):
        monkeypatch.chdir(folders / place)
        for command in (["site", "status", out], ["site", "audit", out], ["site", "rollback", out]):
            said = CliRunner().invoke(commands, command)
            assert (said.exit_code, said.exception) == (0, None), (place, command)
        assert CliRunner().invoke(commands, ["report", out, "--out", str(folders / "page.html")]).exit_code == 0
    said = CliRunner().invoke(commands, ["site", "rollback", str(folders / "0")])
    assert "is not a run: it has no experiment.toml" in str(said.exception)
    for seconds in ("nan", "-1", "inf"):
        said = CliRunner().invoke(commands, ["site", "status", "run", "--silent", seconds])
        assert "--silent" in str(said.exception)


def test_what_cannot_be_rolled_back_to_is_told(folders):
    go_on(folders, experiment(3), history=2)
    out = folders / "run"
    said = CliRunner().invoke(commands, ["site", "rollback", str(out)])
    assert said.output.split() == ["2", "3"]
    with pytest.raises(RequestError, match="no checkpoint of round 1"):
        roll_back(out, 1)
    file = folders / "run-history" / "00000002" / "00000002.safetensors"
    damaged = file.read_bytes()[:-9] + b"\0" * 9
    file.unlink()  # a link: the run's own file stays whole
    file.write_bytes(damaged)
    with pytest.raises(FolderError, match="round 2 cannot be read"):
        roll_back(out, 2)
    assert len(read_rounds(out)) == 3

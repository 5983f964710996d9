"""The model is scored at the sites: what comes back adds up to the scores of all their test data in one place."""

import json
import math
import os
import re
import stat
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason='needs flwr: pip install "fedkeel[flower]"')

from federations import InProcess
from flwr.app import Array
from sklearn.metrics import roc_auc_score

import fedkeel as fk
from fedkeel.data import load
from fedkeel.engines.flower.checks import Terms
from fedkeel.engines.flower.memory import NodeMemory, keep_witness
from fedkeel.engines.flower.records import Refused
from fedkeel.engines.flower.site_ledger import SiteLedger, read_sites
from fedkeel.engines.flower.site_scores import (
    RANKS,
    area_under_curve,
    check_scores,
    count_chances,
    count_targets,
    empty_scores,
    gap,
    score_site,
    summarise,
)
from fedkeel.errors import RequestError, RunError
from fedkeel.federation.apps import node_of, serve
from fedkeel.federation.local_data import set_aside
from fedkeel.problems.gradients import Workspace
from fedkeel.problems.predictions import average_scores
from fedkeel.problems.task import Task
from fedkeel.report.content import content
from fedkeel.report.page import PARTS
from fedkeel.report.sites import site_table, sites
from fedkeel.report.source import Source

SHARE = 0.25


@pytest.fixture
def folders(tmp_path):
    """Three sites with data of their own."""
    data = load("digits")
    for client in range(3):
        rows = np.arange(client * 100, client * 100 + 40 + 20 * client)
        (tmp_path / str(client)).mkdir()
        np.save(tmp_path / str(client) / "train_images.npy", np.asarray(data.train_images)[rows])
        np.save(tmp_path / str(client) / "train_labels.npy", np.asarray(data.train_labels)[rows])
    return tmp_path


def experiment(**changes):
    return fk.Experiment(dataset="digits", model="mlp", method="fedavg", **{"rounds": 2, "epochs": 1} | changes)


class Sites(InProcess):
    """`spoil_scores(client, reply)` may change what a site measured."""

    spoil_scores = staticmethod(lambda client, reply: reply)

    def __init__(self, exp, folders, share=SHARE):
        super().__init__(
            experiment(partition="iid:clients=3"),
            node_of=lambda context: node_of(exp, context),
            settings=lambda client: {"data-dir": str(folders / str(client))},
            run_config={"data": "folder", "clients": 3, "site-test": share},
        )

    def send_and_receive(self, messages, *, timeout=None):
        replies = super().send_and_receive(messages, timeout=timeout)
        for reply in replies:
            if reply.metadata.message_type == "evaluate" and not reply.has_error():
                self.spoil_scores(reply.metadata.src_node_id - 100, reply)
        return replies


def run(folders, grid=None, **how):
    exp = experiment()
    settings = {"source": "folder", "clients": 3, "wait": 0.0, "site_test": SHARE, "terms": Terms(minimum=0.5)}
    return serve(exp, grid or Sites(exp, folders), out=folders / "run", **settings | how)


def kept(folders, client):
    """The samples that a site keeps for tests, as its node finds them."""
    grid = Sites(experiment(), folders)
    task = node_of(experiment(), grid.contexts[client]).engine.task
    return task, task.test.rows(0, np.arange(int(task.test.sizes[0])))


def test_scores_of_sites_are_those_of_all_their_data_in_one_place(folders):
    done = run(folders)
    parts = [kept(folders, client)[1] for client in range(3)]
    pooled = tuple(torch.cat(part) for part in zip(*parts, strict=True))
    task, _ = kept(folders, 0)
    central = {name: float(value) for name, value in task.measure(done.model(), task.prepare(pooled)).items()}
    last = done.records[-1]
    assert last.accuracy == pytest.approx(central["accuracy"], abs=1e-12)
    assert last.extra["test_loss"] == pytest.approx(central["loss"], rel=1e-6)
    with torch.no_grad():
        chances = done.model()(task.prepare(pooled)[0]).double().softmax(-1).numpy()
    wanted = roc_auc_score(pooled[1].numpy(), chances, multi_class="ovr", labels=range(10))
    assert last.extra["auc"] == pytest.approx(wanted, abs=2e-3)  # probabilities are counted in steps
    assert 0 < last.extra["calibration_error"] < 1
    measured = read_sites(folders / "run-sites.jsonl", 2)
    assert measured.keys() == {-1, 0, 1, 2}
    assert [measured[client]["samples"] for client in (0, 1, 2, -1)] == [10, 15, 20, 45]
    right = sum(measured[client]["accuracy"] * measured[client]["samples"] for client in range(3))
    assert right / 45 == pytest.approx(last.accuracy)


def test_what_a_site_keeps_for_tests_is_not_trained_on(folders):
    for client in range(3):
        task, (images, _) = kept(folders, client)
        size = 40 + 20 * client
        assert int(task.clients.sizes[client]) == size - len(images) == size - size // 4
        trained = task.clients.rows(client, np.arange(size - len(images)))[0]
        both = np.concatenate([images.numpy(), trained.numpy()]).reshape(size, -1)
        whole = np.load(folders / str(client) / "train_images.npy").reshape(size, -1)
        assert sorted(map(bytes, both)) == sorted(map(bytes, whole))
    train, test = set_aside(7, 1, 0.5)
    assert (len(train), len(test)) == (1, 0)
    assert [len(part) for part in set_aside(7, 4, 0.99)] == [1, 3]


def test_a_site_with_few_test_samples_is_told_what_they_show(folders, caplog):
    """Sites 0, 1 and 2 test on 10, 15 and 20 samples."""
    run(folders)
    told = {line.partition(":")[0] for line in caplog.messages if "single labels" in line}
    assert told == {"only 10 samples for tests", "only 15 samples for tests"}


def test_a_site_whose_report_was_refused_has_no_scores_of_that_round(folders):
    """As where its data grew, and its test share with them. What is sound when it is asked again counts."""
    asked = []

    def grow(round, client, reply):
        asked.append((round, client))
        if (round, client) == (1, 1) or (client and asked.count((0, client)) == 1 and not round):
            record = reply.content.array_records["report/size"]
            (key,) = record
            record[key] = Array(np.asarray(record[key].numpy() + 8))
        return reply

    exp = experiment(participation=1.0)
    grid, how = Sites(exp, folders), {"source": "folder", "clients": 3, "wait": 0.0, "site_test": SHARE}
    grid.spoil = grow
    serve(exp, grid, out=folders / "run", terms=Terms(minimum=0.6), **how)
    assert (asked.count((0, 1)), asked.count((1, 1))) == (2, 1)
    assert read_sites(folders / "run-sites.jsonl", 1).keys() == {-1, 0, 1, 2}
    assert read_sites(folders / "run-sites.jsonl", 2).keys() == {-1, 0, 2}


def test_a_site_whose_counts_cannot_be_is_left_out(folders, caplog):
    def spoil(client, reply):
        if client == 1:
            record = reply.content.array_records["scores/counts"]
            (key,) = record
            record[key] = Array(record[key].numpy() * 1000)

    grid = Sites(experiment(), folders)
    grid.spoil_scores = spoil
    done = run(folders, grid)
    assert "(client 1): it scored 15000 samples, and can have 90 at most" in caplog.text
    assert read_sites(folders / "run-sites.jsonl", 2).keys() == {-1, 0, 2}
    assert done.records[-1].accuracy is not None


def test_the_ledger_holds_the_deployed_model_not_the_trained_one(folders):
    exp = experiment().with_(method={"name": "swa+fedavg", "start": 0.0})
    how = {"source": "folder", "clients": 3, "wait": 0.0, "site_test": SHARE}
    done = serve(exp, Sites(exp, folders), out=folders / "run", **how)
    last = done.records[-1]
    assert last.extra["test_loss"] != last.extra["plain_test_loss"]
    lines = (folders / "run-sites.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 2]
    assert read_sites(folders / "run-sites.jsonl", 2)[-1]["loss"] == last.extra["test_loss"]


def test_scores_that_no_samples_can_have_are_refused(folders):
    grid = Sites(experiment(), folders)
    engine = node_of(experiment(), grid.contexts[1]).engine
    sound = score_site(engine, engine.task.initial, None)
    check_scores(sound, 15)
    for slot, change, reason in (
        ("counts", lambda n: n + 1, "it scored 16 samples, and can have 15"),
        ("counts", lambda n: -n, "it scored"),
        ("sums", lambda n: n * math.nan, "it scored"),
        ("sums", lambda n: n + 1000, "its accuracy is no share"),
        ("ranks", lambda n: n - 1, "not those of samples"),
        ("confidence", lambda n: n.flip(0) * 3, "not those of samples"),
        ("confidence", lambda n: n * math.nan, "not those of samples"),
        ("confidence", lambda n: n * 1e30, "1.5e\\+31 predictions of 15 samples"),
        ("confidence", lambda n: n + math.inf, "inf predictions of 15 samples"),
        ("confidence", lambda n: n * 0, "more than its 0 predictions"),
        ("ranks", lambda n: n + (1 << 62), "more than its 15 predictions"),
        ("ranks", lambda n: n.flip(0), "more than its 15 predictions"),
        ("ranks", lambda n: 2 * n, "more than its 15 predictions"),
        ("sums", lambda n: n + torch.tensor([math.inf, 0]), "it scored"),
    ):
        with pytest.raises(Refused, match=reason):
            check_scores(sound | {slot: change(sound[slot])}, 15)


@pytest.mark.parametrize("count", [0.5, 0.0])
def test_a_site_that_says_it_has_half_a_sample_ends_no_run(folders, count):
    task = node_of(experiment(), Sites(experiment(), folders).contexts[1]).engine.task
    lie = empty_scores(task)
    lie["counts"][:] = count
    lie["confidence"][0, 0] = count + 1e-7
    check_scores(lie, 15)
    SiteLedger(folders / "run-sites.jsonl", SHARE).write(1, {1: summarise(lie, task)}, summarise(lie, task))
    assert read_sites(folders / "run-sites.jsonl", 2)[1]["samples"] == count


def test_a_site_leaves_out_targets_that_name_no_class():
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(40, 6, generator=draw), torch.randint(0, 3, (40, 5), generator=draw)
    marked = y.where(torch.rand(40, 5, generator=draw) > 0.3, 255)
    model = torch.nn.Sequential(torch.nn.Linear(6, 15), torch.nn.Unflatten(1, (3, 5)))
    loss = torch.nn.CrossEntropyLoss(ignore_index=255)
    task = Task(fk.Problem(model=model, loss=loss, clients=[(x, marked)], test=(x, marked), classes=3))
    scores = score_site(SimpleNamespace(task=task, workspace=Workspace(task)), task.initial, None)
    assert count_targets(task) == 5
    check_scores(scores, 40, 5)
    with pytest.raises(Refused, match="predictions of 40 samples"):
        check_scores(scores, 40)
    with torch.no_grad():
        hits = (model(x).argmax(1) == marked)[marked < 255].double()
    assert average_scores([summarise(scores, task)])["accuracy"] == pytest.approx(float(hits.mean()))
    assert scores["confidence"][:2].sum(1).tolist() == [len(hits), hits.sum()]
    assert scores["ranks"].sum().item() == 3 * len(hits)
    with pytest.raises(Refused, match="it scored"):
        check_scores(scores | {"counts": scores["counts"] * math.nan}, 40, 5)


def test_a_test_share_that_cannot_be(folders):
    for how in ({"site_test": 1.0}, {"source": "partition", "clients": 0}, {"test": "elsewhere"}):
        with pytest.raises(RequestError) as caught:
            run(folders, **how)
        assert caught.value.hint
    assert not (folders / "run").exists()


def test_the_last_line_of_a_ledger_counts_and_a_damaged_one_is_told(tmp_path, caplog):
    file = tmp_path / "run-sites.jsonl"
    assert read_sites(file, 2) == {}
    lines = [{"round": r, "together": {"samples": r}, "sites": {"0": {"samples": r}}} for r in (1, 2)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_sites(file, 2) == {-1: {"samples": 2}, 0: {"samples": 2}}
    assert read_sites(file, 1) == {-1: {"samples": 1}, 0: {"samples": 1}}  # the second round was undone
    assert read_sites(file, 0) == {}
    assert not caplog.text
    file.write_text('{"round": 1}\n')
    assert read_sites(file, 2) == {}
    assert "cannot be read" in caplog.text


def test_a_killed_server_leaves_no_half_line_in_a_ledger(tmp_path, caplog):
    """The lines before it count until the next is written; that one does not continue it."""
    file, scores = tmp_path / "run-sites.jsonl", {"loss": (3.0, 6)}
    ledger = SiteLedger(file, 0.2)
    ledger.write(1, {0: scores}, scores)
    whole = file.read_text()
    file.write_text(whole + whole[: len(whole) // 2])
    assert read_sites(file, 2)[0] == {"samples": 6, "loss": 0.5}
    assert "is not whole, and is left out" in caplog.text
    ledger.write(2, {0: scores}, scores)
    assert [json.loads(line)["round"] for line in file.read_text().splitlines()] == [1, 2]
    with pytest.raises(RunError, match="cannot write"):
        SiteLedger(tmp_path, 0.2).write(1, {0: scores}, scores)  # a folder


def test_a_killed_node_leaves_no_half_line_among_what_it_witnessed(tmp_path):
    file = tmp_path / "client-audit.jsonl"
    keep_witness(file, 0, "one")
    file.write_text(file.read_text() + '{"round": 2, "he')
    keep_witness(file, 1, "two")
    assert [json.loads(line)["head"] for line in file.read_text().splitlines()] == ["one", "two"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no umask")
@pytest.mark.parametrize("audit", [False, True])
def test_the_states_of_a_site_are_its_owners_alone(tmp_path, audit):
    before, folder = os.umask(0o022), tmp_path / "sites" / "state"
    try:
        if audit:
            keep_witness(folder / "client-audit.jsonl", 0, "one")
        state = {"own": torch.ones(3)}
        NodeMemory(SimpleNamespace(state={}), state, 1, folder, "same").keep(state, state)
    finally:
        os.umask(before)
    (file,) = folder.glob("*.safetensors")
    assert (stat.S_IMODE(folder.stat().st_mode), stat.S_IMODE(file.stat().st_mode)) == (0o700, 0o600)
    assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o755


def test_a_report_shows_sites_side_by_side(folders):
    run(folders)
    (setting,) = content([Source.read(folders / "run")]).settings
    section = sites(setting)
    rows = re.findall("<tr><td>([^<]*)</td>", section)
    assert rows == ["0", "1", "2", "together"]
    assert all(f">{name}</th>" in section for name in ("samples", "accuracy", "auc", "calibration error"))
    assert "<b>" not in site_table(0, "<b>", {0: {"<b>": 1.0}})
    assert site_table(0, "fedavg", {}) == ""
    assert "sites" in PARTS


# ---- formulas ------------------------------------------------------------------------------------------------------
def test_the_area_under_the_curve_and_the_calibration_error_by_hand():
    chances = torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.2, 0.8], [0.7, 0.3]], dtype=torch.float64)
    labels = torch.tensor([0, 0, 1, 1])
    empty = {"ranks": torch.zeros(2, 2, RANKS, dtype=torch.int64), "sums": torch.zeros(1)}
    counted = count_chances(chances, labels, empty)
    # of the four pairs (class 1 over class 0): 0.8 > 0.1, 0.8 > 0.6, 0.3 > 0.1, and 0.3 < 0.6
    assert area_under_curve(counted["ranks"]) == 0.75
    # each alone in its step: |1 − 0.9| + |0 − 0.6| + |1 − 0.8| + |0 − 0.7| over 4
    assert gap(counted["confidence"]) == pytest.approx((0.1 + 0.6 + 0.2 + 0.7) / 4)
    assert area_under_curve(torch.zeros(2, 3, RANKS)) is None
    assert gap(torch.zeros(3, 15)) is None
    tied = torch.zeros(2, 2, RANKS)
    tied[:, :, 4] = 5
    assert area_under_curve(tied) == 0.5
    assert average_scores([{"auc": (1.5, 2)}]) == {"auc": 0.75}

"""What an operator sees: an audit log that cannot be altered unnoticed, numbers for Prometheus, exit codes."""

import errno
import json
import re
import resource
import threading
import time

import pytest

pytest.importorskip("flwr", reason='needs flwr: pip install "fedkeel[flower]"')

from federations import InProcess, experiment, problem
from typer.testing import CliRunner

from fedkeel.cli.main import app as commands
from fedkeel.engines.flower.checks import Terms
from fedkeel.errors import FolderError, RunError
from fedkeel.federation.apps import ServerStopped, serve, tell_errors
from fedkeel.federation.audit import AuditLog, check_witness, hash_line, read_chain
from fedkeel.federation.gauges import (
    ENDED,
    FINE,
    FINISHED,
    INCOMPLETE,
    SILENT,
    STOPPED,
    Gauges,
    judge,
    read_gauges,
)
from fedkeel.federation.operations import Operations
from fedkeel.federation.server_lock import hold_place
from fedkeel.problems.task import Task
from fedkeel.runs.evaluate import Judge


def train(folder, spoil=None, absent=(), **how):
    exp = experiment(problem(), "fedavg", rounds=2)
    grid = InProcess(exp, spoil, folder / "states")
    grid.absent = set(absent)
    watch = Operations(folder / "run")
    done = serve(exp, grid, out=folder / "run", wait=0.0, watch=watch, **{"terms": Terms(minimum=0.5)} | how)
    return done, read_chain(folder / "run-audit.jsonl")


def test_the_log_says_who_joined_what_was_counted_and_which_model(tmp_path):
    def spoil(round, client, reply):
        if client == 1 and round == 1:
            reply.content["report/delta"] = reply.content["report/loss"]
        return reply

    done, lines = train(tmp_path, spoil, absent=[3])
    of = {event: [line for line in lines if line["event"] == event] for event in {line["event"] for line in lines}}
    assert {line["client"] for line in of["joined"]} == {0, 1, 2, 4, 5}
    assert [line["clients"] for line in of["counted"]] == [[0, 1, 2, 4, 5], [0, 2, 4, 5]]
    assert {line["client"] for line in of["absent"]} == {3}
    (refused,) = of["refused"]
    assert (refused["round"], refused["client"]) == (2, 1)
    assert "delta" in refused["reason"]
    assert of["finished"][0]["model"] == done.result["model_digest"]
    assert of["sent"][0]["model"] != of["sent"][1]["model"] != of["finished"][0]["model"]
    assert [line["line"] for line in lines] == [*range(1, len(lines) + 1)]


def test_no_line_can_be_changed_removed_or_inserted(tmp_path):
    _, lines = train(tmp_path)
    file = tmp_path / "run-audit.jsonl"
    texts = file.read_text().splitlines(keepends=True)

    def expect_refusal(wrong, number):
        file.write_text("".join(wrong))
        with pytest.raises(FolderError, match=f"altered: line {number} "):
            read_chain(file)
        said = CliRunner().invoke(commands, ["site", "audit", str(tmp_path / "run")])
        assert said.exit_code != 0

    for number in range(1, len(texts)):
        changed = json.loads(texts[number]) | {"time": "2020-01-01T00:00:00+00:00"}
        expect_refusal([*texts[:number], json.dumps(changed) + "\n", *texts[number + 1 :]], number + 1)
        changed["hash"] = hash_line(changed)  # the line alone is sound again, those after it are not
        if number + 1 < len(texts):
            expect_refusal([*texts[:number], json.dumps(changed) + "\n", *texts[number + 1 :]], number + 2)
            expect_refusal([*texts[:number], *texts[number + 1 :]], number + 1)
            expect_refusal([*texts[:number], texts[number], *texts[number:]], number + 2)
    file.write_text("".join(texts))
    assert read_chain(file) == lines
    file.write_text("".join(texts[1:]))
    with pytest.raises(FolderError, match="altered"):
        Operations(tmp_path / "run")  # nor is such a log gone on with


def test_a_log_made_anew_or_cut_short_is_noticed_by_the_sites(tmp_path):
    _, lines = train(tmp_path)
    file, out = tmp_path / "run-audit.jsonl", str(tmp_path / "run")
    (witness,) = (tmp_path / "states").glob("client-000002-*-audit.jsonl")
    sent = [line["line"] for line in lines if line["event"] == "sent"]
    assert check_witness(lines, witness) == sent[-1]
    said = CliRunner().invoke(commands, ["site", "audit", out, "--witness", str(witness)])
    assert said.exit_code == 0, said.output
    assert f"{len(lines)} lines, unaltered" in said.output
    assert f"up to line {sent[-1]}" in said.output
    cut = tmp_path / "cut.jsonl"
    cut.write_text(witness.read_text() + '{"round": 3, "he')  # the node was killed while it wrote
    assert check_witness(lines, cut) == sent[-1]
    cut.write_text('{"round": 3, "he\n' + witness.read_text())
    with pytest.raises(FolderError, match="damaged in line 1"):
        check_witness(lines, cut)
    turned = tmp_path / "turned.jsonl"
    turned.write_text("".join(reversed(witness.read_text().splitlines(keepends=True))))
    assert check_witness(lines, turned) == sent[-1]  # what was seen stays seen, in whatever order it is told
    with pytest.raises(FolderError, match="another audit log"):
        check_witness(lines[: sent[-1] - 1], witness)  # the end is missing
    forged = AuditLog(tmp_path / "forged.jsonl")
    for line in lines:
        facts = {name: value for name, value in line.items() if name not in ("line", "time", "event", "before", "hash")}
        forged.write(line["event"], facts | ({"reason": "none"} if line["event"] == "joined" else {}))
    with pytest.raises(FolderError, match="another audit log"):
        check_witness(read_chain(tmp_path / "forged.jsonl"), witness)
    assert file.exists()


def test_a_server_killed_while_it_wrote_goes_on_with_its_log(tmp_path):
    log = AuditLog(tmp_path / "a.jsonl")
    log.write("joined", {"client": 0})
    with log.file.open("a") as file:
        file.write('{"line": 2, "event": "joi')
    again = AuditLog(log.file)
    again.write("joined", {"client": 1})
    assert [line["client"] for line in read_chain(log.file)] == [0, 1]


def test_a_line_that_the_disk_refuses_leaves_nothing(tmp_path, monkeypatch):
    """Neither where a part of it was written nor where all was, and whatever is noted after it."""
    log = AuditLog(tmp_path / "a.jsonl")
    log.write("joined", {"client": 0})
    before = log.file.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, limits[1]))  # Python ignores the signal of that limit
    try:
        with pytest.raises(OSError, match="too large"):
            log.write("joined", {"client": 1})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert log.file.read_bytes() == before
    with monkeypatch.context() as patched:
        patched.setattr("fedkeel.federation.audit.os.fsync", fill_disk)
        with pytest.raises(OSError, match="no space"):
            log.write("joined", {"client": 2})
    assert log.file.read_bytes() == before
    log.write("stopped", {})
    assert [line["event"] for line in read_chain(log.file)] == ["joined", "stopped"]


def fill_disk(*given, **named):
    raise OSError(errno.ENOSPC, "no space left")


@pytest.mark.parametrize("whose", ["audit.os.fsync", "gauges.write_text"])
def test_a_full_disk_stops_the_server_in_one_line_and_the_next_start_works(tmp_path, monkeypatch, whose):
    def fail_later(patched):
        with tell_errors(tmp_path / "run") as watch:
            watch.note("joined", client=0)
            patched.setattr(f"fedkeel.federation.{whose}", fill_disk)
            watch.note("counted", clients=[0])

    with monkeypatch.context() as patched:
        with pytest.raises(ServerStopped, match=r"cannot write beside .*: no space left hint: free some space"):
            fail_later(patched)
        said = CliRunner().invoke(commands, ["site", "status", str(tmp_path / "run")])
        assert (said.exit_code, said.output.partition(";")[0]) == (ENDED, "the server stopped with an error")
    with pytest.raises(ServerStopped, match="too few clients"), tell_errors(tmp_path / "run"):
        raise RunError("too few clients.")
    assert read_chain(tmp_path / "run-audit.jsonl")[-1]["reason"] == "too few clients."


def test_a_disk_that_is_full_when_a_checkpoint_is_kept_is_told_in_one_line(tmp_path, monkeypatch):
    (tmp_path / "run" / "checkpoint").mkdir(parents=True)
    (tmp_path / "run" / "checkpoint" / "00000001.safetensors").touch()
    monkeypatch.setattr("fedkeel.federation.history.Path.mkdir", fill_disk)
    with pytest.raises(RunError, match=r"cannot write beside .*: no space left") as told:
        Operations(tmp_path / "run", 1).begin_round(2, None, [0])
    assert told.value.hint == "free some space, then start the server again: the run continues"


def test_a_round_that_asks_more_clients_than_the_last_one_is_no_alert(tmp_path):
    watch, params = Operations(tmp_path / "run"), Task(problem()).initial
    watch.gauges.touch()
    for round, clients in enumerate(([0, 1, 2], [0, 1, 2, 3, 4]), 1):
        watch.begin_round(round, params, clients)
        watch.gauges.rounds_done = round - 1
        watch.write_gauges()
        assert judge(read_gauges(tmp_path / "run.prom"), 3600, time.time())[0] == FINE
        watch.note("counted", round=round, clients=clients[:3])
    watch.gauges.rounds_done = 2
    watch.write_gauges()
    assert judge(read_gauges(tmp_path / "run.prom"), 3600, time.time())[0] == INCOMPLETE


def test_only_a_full_disk_is_to_be_emptied(tmp_path, monkeypatch):
    for number, hint in ((errno.EDQUOT, "free some space"), (errno.EACCES, "let the server write there")):

        def refuse(*given, **named):
            raise OSError(number, "refused")  # noqa: B023

        watch = Operations(tmp_path / f"run-{number}")
        monkeypatch.setattr("fedkeel.federation.audit.os.fsync", refuse)
        with pytest.raises(RunError, match=r"cannot write beside .*: refused") as told:
            watch.note("joined", client=0)
        assert told.value.hint == f"{hint}, then start the server again: the run continues"


def test_numbers_are_those_of_the_run(tmp_path):
    done, _ = train(tmp_path, absent=[3])
    found = read_gauges(tmp_path / "run.prom")
    assert (found.state, found.rounds_done, found.rounds_asked, found.clients) == (FINISHED, 2, 2, 6)
    assert (found.clients_asked, found.clients_counted, found.clients_connected) == (6, 5, 5)
    assert found.absent_total == 2
    assert found.loss == done.records[-1].loss
    assert found.accuracy == done.records[-1].accuracy
    text = (tmp_path / "run.prom").read_text()
    assert all(
        re.search(rf"^# HELP fedkeel_{name} .*\.\n# TYPE fedkeel_{name} (gauge|counter)\n", text, re.M)
        for name in vars(found)
    )
    for line in text.splitlines():
        assert line.startswith("# ") or re.fullmatch(r"fedkeel_[a-z_]+ (-?[0-9.e+-]+|NaN|\+Inf)", line), line


def test_alerts_are_exit_codes(tmp_path):
    now = time.time()
    running = {"rounds_done": 3, "rounds_asked": 9, "clients_asked": 4, "last_change_timestamp_seconds": now - 100}
    for changes, silent, code, told in (
        ({"clients_counted": 4}, 3600, FINE, "running: 3 of 9"),
        ({"clients_counted": 4}, 3600, FINE, "the last change was 100 s ago"),
        ({"clients_counted": 3}, 3600, INCOMPLETE, "counted 3 of 4"),
        ({"clients_counted": 3}, 3600, INCOMPLETE, "the last change was 100 s ago"),
        ({"clients_counted": 0, "rounds_done": 0}, 3600, FINE, "running: 0 of 9"),  # none could be counted yet
        ({"clients_counted": 3}, 60, SILENT, "nothing has happened for 100 s"),
        ({"clients_counted": 4, "last_change_timestamp_seconds": now + 30}, 60, FINE, "the last change was 0 s ago"),
        ({"clients_counted": 4, "last_change_timestamp_seconds": now + 90}, 60, SILENT, "90 s ahead of this clock"),
        ({"clients_counted": 3, "state": FINISHED}, 60, FINE, "finished"),
        ({"clients_counted": 4, "state": STOPPED}, 60, ENDED, "stopped with an error"),
    ):
        found, line = judge(Gauges(**running | changes), silent, now)
        assert found == code
        assert told in line
    Gauges(**running, state=STOPPED).write(tmp_path / "run.prom")
    said = CliRunner().invoke(commands, ["site", "status", str(tmp_path / "run")])
    assert said.exit_code == ENDED
    assert CliRunner().invoke(commands, ["site", "status", str(tmp_path / "none")]).exit_code not in (FINE, ENDED)


def test_a_server_that_stops_says_so(tmp_path):
    with pytest.raises(ServerStopped), tell_errors(tmp_path / "run"):
        raise RunError("too few clients.", "start more")
    assert read_chain(tmp_path / "run-audit.jsonl")[-1]["reason"] == "too few clients. hint: start more"
    assert read_gauges(tmp_path / "run.prom").state == STOPPED


def test_a_server_that_waits_for_its_clients_does_not_say_that_the_one_before_it_stopped(tmp_path):
    file = tmp_path / "run.prom"

    def stop_later():
        with tell_errors(tmp_path / "run") as first:
            assert judge(read_gauges(file), 60, time.time())[1].startswith("running: no round has begun")
            first.start(0, 9, [3, 4])
            first.asked, first.gauges.rounds_done = 2, 4
            first.note("counted", clients=[0])
            raise RunError("the job was stopped.")

    with pytest.raises(ServerStopped):
        stop_later()
    assert judge(read_gauges(file), 60, time.time())[0] == ENDED
    with tell_errors(tmp_path / "run"):
        code, line = judge(read_gauges(file), 60, time.time())
    assert (code, line.partition(";")[0]) == (FINE, "running: 4 of 9 rounds are done, 0 of 2 clients are connected")


def test_a_second_server_leaves_the_first_ones_log_and_numbers_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("fedkeel.federation.server_lock.PATIENCE", 0.1)
    with tell_errors(tmp_path / "run") as first:
        first.note("joined", client=0)
        with pytest.raises(ServerStopped, match=r"another server is running in .*run\. hint: stop it"):
            with tell_errors(tmp_path / "run"):
                pass
        first.note("counted", clients=[0])
    assert [line["event"] for line in read_chain(tmp_path / "run-audit.jsonl")] == ["joined", "counted"]
    assert read_gauges(tmp_path / "run.prom").state != STOPPED


@pytest.mark.slow
def test_nobody_turns_a_run_back_under_a_server_that_waits_for_its_nodes(tmp_path):
    """It knows the end of its audit log by heart: a line that another wrote would break the chain."""
    train(tmp_path)
    with tell_errors(tmp_path / "run") as server:
        server.note("joined", client=0)
        said = CliRunner().invoke(commands, ["site", "rollback", str(tmp_path / "run"), "1"])
        assert "a server is running in" in str(said.exception)
        server.note("joined", client=1)
    assert len(read_chain(tmp_path / "run-audit.jsonl")) > 2
    assert CliRunner().invoke(commands, ["site", "rollback", str(tmp_path / "run"), "1"]).exit_code == 0
    assert read_chain(tmp_path / "run-audit.jsonl")[-1]["event"] == "rolled back"


def test_a_server_waits_for_one_that_ends(tmp_path):
    """Its SuperLink was started anew, and it has not asked since."""
    held = hold_place(tmp_path / "run")
    held.__enter__()
    threading.Timer(0.3, held.__exit__, (None, None, None)).start()
    with tell_errors(tmp_path / "run") as second:
        second.note("joined", client=0)
    assert "waits up to 60 s" in (tmp_path / "run.log").read_text()
    assert len(read_chain(tmp_path / "run-audit.jsonl")) == 1


def test_a_server_that_stops_by_a_mistake_says_so_too(tmp_path):
    with pytest.raises(TypeError, match="two\nlines"), tell_errors(tmp_path / "run"):
        raise TypeError("two\nlines")
    assert read_chain(tmp_path / "run-audit.jsonl")[-1]["reason"].endswith("TypeError: two lines")
    assert (tmp_path / "run.log").read_text().splitlines()[-1].endswith("TypeError: two lines")
    assert CliRunner().invoke(commands, ["site", "status", str(tmp_path / "run")]).exit_code == ENDED


def test_a_round_counts_as_done_once_it_is_kept(tmp_path, monkeypatch):
    def fail(self, engine, server, round):
        raise TypeError("no test data")

    monkeypatch.setattr(Judge, "evaluate", fail)
    with pytest.raises(TypeError):
        train(tmp_path)
    assert read_chain(tmp_path / "run-audit.jsonl")[-1]["event"] == "counted"
    assert read_gauges(tmp_path / "run.prom").rounds_done == 0

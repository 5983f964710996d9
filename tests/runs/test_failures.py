"""What goes wrong is said in one line with a hint, and nothing is lost."""

import json
import multiprocessing
import re
import resource
from pathlib import Path

import pytest
import torch
from for_each import for_each
from small_runs import contents, experiment, train

import fedkeel as fk
from fedkeel.errors import DataError, ExperimentError, FolderError, MethodError, RequestError, RunError
from fedkeel.report.source import Source
from fedkeel.runs import checkpoint
from fedkeel.runs.run_folder import RunFolder
from fedkeel.studies.caveats import unfinished
from fedkeel.studies.run_groups import group_runs
from problems import small_problem


def is_one_line_with_a_hint(error):
    return "\n" not in error.message and error.hint and "\n" not in error.hint


# ---- folders -------------------------------------------------------------------------------------------------------
def test_another_experiment_in_the_folder(tmp_path):
    train(tmp_path)
    before = contents(tmp_path)
    with pytest.raises(FolderError, match="differs in: lr") as caught:
        train(tmp_path, experiment(lr=0.06))
    assert is_one_line_with_a_hint(caught.value)
    assert caught.value.exit_code == 2
    assert contents(tmp_path) == before


def test_a_whole_number_in_the_place_of_the_same_fraction_leaves_the_folder_readable(tmp_path):
    train(tmp_path, experiment(lr=1))
    before = contents(tmp_path)
    with pytest.raises(FolderError, match="differs in: lr"):
        train(tmp_path, experiment(lr=1.0))
    assert contents(tmp_path) == before


def test_other_data_are_another_experiment(tmp_path):
    train(tmp_path)
    with pytest.raises(FolderError, match="problem"):
        train(tmp_path, experiment(problem=small_problem(sizes=(7, 12, 5, 1, 9, 17))))


def test_a_folder_that_is_no_run(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(FolderError, match="not a run"):
        train(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_two_runs_into_one_folder(tmp_path):
    holder = RunFolder(tmp_path)
    holder.open()
    with pytest.raises(FolderError, match="another process"):
        train(tmp_path)
    holder.close()
    train(tmp_path)


def test_nothing_is_imported_that_only_one_system_has():
    text = "\n".join(path.read_text(encoding="utf-8") for path in Path(fk.__file__).parent.rglob("*.py"))
    assert not re.findall(r"^\s*(?:import|from) (?:fcntl|termios|resource|pwd|grp|msvcrt|winreg)\b", text, re.MULTILINE)


@pytest.mark.parametrize("where", ["/proc/fedkeel-run", "file/inside"])
def test_a_folder_that_cannot_be_written(tmp_path, where):
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderError, match="cannot write into") as caught:
        train(where if where.startswith("/") else tmp_path / where)
    assert is_one_line_with_a_hint(caught.value)


# ---- checkpoints ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("damage", ["truncated", "flipped", "emptied", "header"])
def test_a_damaged_checkpoint_is_passed_over(tmp_path, damage, caplog):
    train(tmp_path / "a")
    expected = train(tmp_path / "b", experiment(5)).result
    newest = checkpoint.list_checkpoints(tmp_path / "a" / "checkpoint")[0]
    data = bytearray(newest.read_bytes())
    if damage == "truncated":
        data = data[: len(data) // 2]
    elif damage == "emptied":
        data = bytearray()
    else:
        data[-3 if damage == "flipped" else 20] ^= 1
    newest.write_bytes(data)
    assert train(tmp_path / "a", experiment(5)).result == expected
    assert "damaged checkpoint" in caplog.text


def test_when_all_checkpoints_are_damaged_nothing_is_touched(tmp_path):
    train(tmp_path)
    for path in checkpoint.list_checkpoints(tmp_path / "checkpoint"):
        path.write_bytes(b"junk")
    before = contents(tmp_path)
    with pytest.raises(FolderError, match=r"no checkpoint .* can be read") as caught:
        train(tmp_path, experiment(5))
    assert is_one_line_with_a_hint(caught.value)
    assert contents(tmp_path) == before


def test_a_full_disk(tmp_path):
    """A file size limit makes every write fail as a full disk does: in the middle of a checkpoint."""
    train(tmp_path / "a", experiment(2))
    before = contents(tmp_path / "a" / "checkpoint")
    room = max(map(len, before.values())) - 100

    def limited(send):
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
        try:
            train(tmp_path / "a", experiment(6))
        except RunError as error:
            send.send((error.message, error.hint, error.exit_code))

    receive, send = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=limited, args=(send,))
    child.start()
    child.join()
    assert receive.poll(), "the run did not notice that its files could not be written"
    message, hint, exit_code = receive.recv()
    assert message.startswith("cannot write")
    assert "\n" not in message
    assert "resume" in hint
    assert exit_code == 1
    assert checkpoint.find_newest(tmp_path / "a" / "checkpoint")[0].round >= 2
    assert not [p for p in (tmp_path / "a").rglob("*") if "partial" in p.name]
    train(tmp_path / "b", experiment(6))
    train(tmp_path / "a", experiment(6))
    assert (tmp_path / "a" / "result.json").read_bytes() == (tmp_path / "b" / "result.json").read_bytes()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_what_a_full_disk_keeps_back_is_told_once(tmp_path):
    folder = RunFolder(tmp_path / "a")
    folder.open()
    folder.lines = open("/dev/full", "a")
    with pytest.raises(RunError, match="No space left"):
        folder._append(folder.lines, "a line\n")
    folder.close()
    again = RunFolder(tmp_path / "a")  # its lock is free
    again.open()
    again.close()


# ---- numbers -------------------------------------------------------------------------------------------------------
def poisoned(client):
    """A problem whose numbers are finite, and too large for the network of a client that trains on them."""
    problem = small_problem()
    clients = list(problem.clients)
    clients[client] = (torch.full_like(clients[client][0], 3e38), clients[client][1])
    return fk.Problem(model=problem.model, loss=problem.loss, clients=clients, test=problem.test)


def test_a_diverged_client_is_left_out_and_changes_nothing(caplog):
    everyone = [[0, 1, 2], [0, 1, 2]]
    with_it = fk.run(experiment(2, problem=poisoned(1), participants=everyone))
    without = fk.run(experiment(2, problem=poisoned(1), participants=[[0, 2], [0, 2]]))
    assert torch.equal(with_it.server["params"].buffer, without.server["params"].buffer)
    assert torch.equal(with_it.server["c"].buffer, without.server["c"].buffer)
    assert [record.dropped for record in with_it.records] == [[1], [1]]
    sent = [[record.bytes_up for record in run.records] for run in (with_it, without)]
    assert [2 * three for three in sent[0]] == [3 * two for two in sent[1]]  # what is left out was sent
    assert "left out" in caplog.text


def test_a_diverged_client_can_stop_the_run(tmp_path):
    exp = experiment(4, problem=poisoned(1), participants=[[0], [2], [0, 1], [0]], on_nonfinite="stop")
    with pytest.raises(RunError, match=r"client 1 is not finite in round 3") as caught:
        train(tmp_path, exp)
    assert caught.value.exit_code == 1
    assert is_one_line_with_a_hint(caught.value)
    assert checkpoint.list_checkpoints(tmp_path / "checkpoint")[0].name == "00000002.safetensors"


def test_a_folder_says_where_its_run_diverged_until_it_goes_on(tmp_path):
    """The mark is there while the run stands where it diverged, and the other files are as they were without it."""
    exp = experiment(3, problem=poisoned(1), participants=[[0], [1], [0]])
    with pytest.raises(RunError, match="round 2"):
        train(tmp_path / "a", exp)
    mark = tmp_path / "a" / "diverged.json"
    assert json.loads(mark.read_text())["round"] == 2
    told = unfinished(group_runs([fk.load_run(tmp_path / "a")]))
    assert "diverged in round 2: the loss or the model of client 1" in told[0]
    source = Source.read(tmp_path / "a")
    assert source.ended.startswith("diverged in round 2: ")
    assert not source.unfinished
    stale = mark.read_text()
    with pytest.raises(RunError, match="round 2"):
        train(tmp_path / "a", exp)
    assert mark.read_text() == stale
    train(tmp_path / "b", experiment(2, problem=small_problem()))
    assert not (tmp_path / "b" / "diverged.json").exists()
    (tmp_path / "b" / "diverged.json").write_text(stale)  # of a run that an older version went on with
    assert Source.read(tmp_path / "b").ended is None
    train(tmp_path / "b", experiment(3, problem=small_problem()))
    assert not (tmp_path / "b" / "diverged.json").exists()


def test_when_everyone_diverges_the_run_stops():
    with pytest.raises(RunError, match="not finite"):
        fk.run(experiment(1, problem=poisoned(1), participants=[[1]]))


def test_numbers_that_are_no_numbers_become_null(tmp_path):
    problem = small_problem()
    odd = {"odd": lambda output, target: torch.full((len(target),), torch.inf)}
    made = fk.Problem(problem.loss, problem.clients, problem.model, test=problem.test, metrics=odd)
    train(tmp_path, experiment(1, problem=made))
    line = json.loads((tmp_path / "rounds.jsonl").read_text(), parse_constant=lambda c: pytest.fail(c))
    assert line["extra"]["odd"] is None


# ---- requests ------------------------------------------------------------------------------------------------------
@for_each(
    ("changes", "error", "words"),
    [
        ({"method": "fedavgg"}, MethodError, "unknown method: fedavgg"),
        ({"method": {"name": "fedsam", "rhoo": 1}}, MethodError, "no hyper-parameter: rhoo"),
        ({"method": {"name": "fedsam", "rho": -1}}, MethodError, "rho of method fedsam must be at least 0"),
        ({"method": {"name": "feddyn", "lam": 0}}, MethodError, "lam of method feddyn must be above 0"),
        ({"method": 3}, ExperimentError, "name or a Method"),
        ({"rounds": 0}, ExperimentError, "rounds must be"),
        ({"batch_size": 2.5}, ExperimentError, "batch_size must be"),
        ({"lr": -0.1}, ExperimentError, "lr must be above 0"),
        ({"lr": "fast"}, ExperimentError, "lr must be a number"),
        ({"epochs": (3, 1)}, ExperimentError, "epochs must be"),
        ({"participation": 1.5}, ExperimentError, "participation must lie in"),
        ({"participation": "bernoulli:x"}, ExperimentError, "participation must be"),
        ({"participation": "bernoulli:shuffled:0.1"}, ExperimentError, "participation must be"),
        ({"validation": 1.0}, ExperimentError, "validation must lie in"),
        ({"on_nonfinite": "ignore"}, ExperimentError, "on_nonfinite must be drop or stop"),
        ({"problem": None}, ExperimentError, "either a dataset or a problem"),
        ({"dataset": "digits"}, ExperimentError, "either a dataset or a problem"),
        ({"problem": None, "dataset": "digitz"}, DataError, "unknown data set: digitz"),
        ({"problem": None, "dataset": "digits", "partition": "dirichelt"}, ExperimentError, "unknown partition"),
        ({"problem": None, "dataset": "digits", "partition": "iid"}, ExperimentError, "lacks: clients"),
        ({"participants": [[99]] * 9}, ExperimentError, "client 99"),
        ({"participants": [[]] * 9}, ExperimentError, "empty or repeat"),
        ({"participants": [[0]], "rounds": 2}, ExperimentError, "cover 1 rounds"),
        ({"init": "/nowhere.safetensors"}, ExperimentError, "cannot read start weights"),
    ],
)
def test_a_wrong_request_names_the_value(changes, error, words):
    with pytest.raises(error, match=words) as caught:
        fk.run(experiment(**changes))
    assert caught.value.exit_code == 2
    assert "\n" not in caught.value.message


def test_unknown_keys_name_the_nearest():
    with pytest.raises(ExperimentError, match="batchsize") as caught:
        fk.Experiment.load({"dataset": "digits", "batchsize": 3})
    assert "batch_size" in caught.value.hint


def test_more_clients_than_samples():
    exp = fk.Experiment(dataset="digits", partition=fk.Dirichlet(alpha=0.1, clients=5000), model="logistic", rounds=1)
    with pytest.raises(DataError, match="5000 clients") as caught:
        fk.run(exp)
    assert is_one_line_with_a_hint(caught.value)


def test_clients_without_data_are_never_selected_nor_counted():
    problem = small_problem()
    empty = (problem.clients[0][0][:0], problem.clients[0][1][:0])
    padded = fk.Problem(problem.loss, [empty, *problem.clients, empty], problem.model, test=problem.test)
    run = fk.run(experiment(6, problem=padded, participation=0.5))
    assert {c for record in run.records for c in record.selected} <= set(range(1, 7))
    with pytest.raises(ExperimentError, match="no data"):
        fk.run(experiment(1, problem=padded, participants=[[0]]))
    with pytest.raises(DataError, match="no client has any data"):
        fk.run(experiment(1, problem=fk.Problem(problem.loss, [empty, empty], problem.model)))


def test_a_loss_that_does_not_depend_on_the_parameters():
    problem = fk.Problem(params={"w": torch.ones(2)}, loss=lambda p, b: b.sum(-1), clients=[torch.ones(3, 2)])
    with pytest.raises(ExperimentError, match="does not depend"):
        fk.run(experiment(1, problem=problem))


def test_tensors_of_different_length():
    problem = small_problem()
    clients = [problem.clients[0], (torch.ones(3), torch.ones(2))]
    with pytest.raises(DataError, match="client 1 differ in length"):
        fk.run(experiment(1, problem=fk.Problem(problem.loss, clients, problem.model)))


@for_each(
    "given, words",
    [
        ({"engine": {"name": "serial"}}, "an engine is a name, not dict"),
        ({"track": [1]}, "a tracker is a name or a function, not int"),
        ({"track": 1}, "track takes a list"),
        ({"metrics": 1}, "metrics takes a list"),
        ({"callbacks": 1}, "callbacks takes a list"),
        ({"progress": 1}, "progress is True, False, None or a follower"),
        ({"out": b"runs"}, "out is the path of a folder, not bytes"),
        ({"keep_params": "no"}, "keep_params must be true or false"),
    ],
)
def test_an_argument_of_another_kind_is_refused_in_a_line(given, words):
    with pytest.raises(RequestError, match=words) as refused:
        fk.run(experiment(), **{"engine": "serial"} | given)
    assert refused.value.hint


def test_nothing_asked_for_may_be_written_as_none():
    run = fk.run(experiment(), engine="serial", track=None, metrics=None, callbacks=None)
    assert run.result == fk.run(experiment(), engine="serial").result


def until(params, batch):
    """(w − b)², which is no number where w is above its limit."""
    centre, limit = batch
    return (params["w"] - centre).square().sum(-1) + 0 * (limit - params["w"]).log().sum(-1)


def test_a_run_that_diverged_at_the_end_does_not_tell_an_earlier_value_as_its_last(fedkeel):
    """The server's model passes the limit of the test samples after some rounds; clients know a higher one."""
    ones = torch.ones(4, 1, dtype=torch.float64)
    problem = fk.Problem(
        params={"w": ones[0] * 0}, loss=until, clients=[(ones, ones * 9)] * 2, test=(ones, ones / 2), name="limit"
    )
    for lr, number in ((0.1, None), (0.01, 8)):
        made = fk.Experiment(problem=problem, rounds=8, lr=lr, participation=1.0, epochs=1, batch_size=4)
        run = fk.run(made, engine="serial", out=f"runs/{lr}")
        scores = [record.extra["test_loss"] for record in run.records]
        finite = [value for value in scores if value is not None]
        assert (run.result["judged_on"], run.best) == ("test_loss", min(finite))
        assert run.last == scores[-1]
        assert run.result["mean_last_over"] == 8
        assert run.result["mean_last"] == (None if number is None else pytest.approx(sum(finite) / number))
        assert fk.load_run(f"runs/{lr}", problem=problem).result == run.result
    assert 0 < len(fk.load_run("runs/0.1", problem=problem).curve("test_loss")) < 8
    for command in (("compare", "runs/0.1", "runs/0.01"), ("report", "runs/0.1", "runs/0.01", "-o", "page.html")):
        told = fedkeel(*command)
        assert told.code == 0, told.err

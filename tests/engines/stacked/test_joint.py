"""Several runs in one stack: each learns what it would learn alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from every_method import few_of_joint_engines
from for_each import for_each
from test_stacked import difference, network, problem, samples, settled
from torch import nn

import fedkeel as fk
from fedkeel.core.round import broadcast, init_server, server_round
from fedkeel.core.rule import Local, State
from fedkeel.core.trees import Tree, stack
from fedkeel.engines.engine import RoundRequest, Training
from fedkeel.engines.serial import SerialEngine
from fedkeel.engines.stacked.client_mapping import lift_by_vmap
from fedkeel.engines.stacked.early_finishers import Cut, plan_cuts, stack_sizes
from fedkeel.engines.stacked.engine import StackedEngine
from fedkeel.engines.stacked.joint import JointEngine, joinable
from fedkeel.errors import RequestError, RunError
from fedkeel.methods import build
from fedkeel.problems.task import Task
from fedkeel.runs.loop import Loop
from fedkeel.runs.save_clock import find_common_rounds
from problems import model_for

RATES = (0.1, 0.03)
ROUNDS = ([[0, 3], [1]], [[3], [0, 1]])
"""In each round, whom each of two runs chooses."""


def moved(model: nn.Module, seed: int) -> nn.Module:
    """The same network with other weights."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model


def two_tasks(name: str, device: str = "cpu") -> list[Task]:
    """Two runs of one method: other data, other sizes, other weights."""
    given = (
        problem(model=model_for(name, network())),
        problem(
            model=moved(model_for(name, network()), 5),
            clients=[samples(size, 10 + i) for i, size in enumerate((3, 8, 2, 6, 10))],
        ),
    )
    return [Task(one, device=device, dtype=torch.float64, asks=build(name).asks) for one in given]


def trained(name: str, train: Any, tasks: list[Task]) -> list[Any]:
    """Everything that the servers and clients of both runs know after two rounds."""
    method = settled(name, tasks[0])
    servers = [init_server(method, task.initial, task.buffers) for task in tasks]
    known: list[dict[int, State]] = [{}, {}]
    sent: list[State] = []
    for t, chosen in enumerate(ROUNDS):
        requests = {
            run: RoundRequest(
                broadcast(method, servers[run]), t, RATES[run], clients, [known[run].get(c) for c in clients]
            )
            for run, clients in enumerate(chosen)
        }
        for run, outcomes in train(requests).items():
            reports = stack([outcome.report for outcome in outcomes])
            assert [outcome.client for outcome in outcomes] == chosen[run]
            if method.server_phase is None:
                population = {"population": reports["lr"].new_tensor(5.0)}
                servers[run] = server_round(method, servers[run], reports | population)
            known[run] |= {outcome.client: outcome.state for outcome in outcomes}
            sent.append(reports)
    return [servers, [dict(sorted(one.items())) for one in known], sent]


@pytest.mark.parametrize("name", few_of_joint_engines())
def test_two_runs_in_one_stack_learn_what_they_learn_alone(name: str) -> None:
    tasks = two_tasks(name)
    method, trainings = settled(name, tasks[0]), [Training(seed, epochs=1, batch_size=3) for seed in (1, 2)]
    alone = [SerialEngine(task, method, training) for task, training in zip(tasks, trainings, strict=True)]
    expected = trained(name, lambda asked: {run: alone[run].train(*request) for run, request in asked.items()}, tasks)
    engines = [StackedEngine(t, method, training) for t, training in zip(two_tasks(name), trainings, strict=True)]
    found = trained(name, JointEngine(engines).train, tasks)
    assert difference(found, expected) < 1e-12


def test_a_users_rules_are_lifted_with_a_message_of_their_own() -> None:
    tasks = two_tasks("scaffold")
    method, training = settled("scaffold", tasks[0]), Training(1, epochs=2, batch_size=3)
    joint = JointEngine([StackedEngine(task, method, training) for task in tasks])
    usual = trained("scaffold", joint.train, tasks)
    joint.stacked.lift = lift_by_vmap
    assert difference(trained("scaffold", joint.train, tasks), usual) < 1e-12


# ---- whole runs ----------------------------------------------------------------------------------------------------
def experiment(seed: int, **changes: Any) -> fk.Experiment:
    usual: dict[str, Any] = dict(
        dataset="digits", method="fedfft-d", model="logistic", partition="dirichlet:alpha=0.3,clients=6", rounds=3,
        participation=0.5, epochs=1, batch_size=160, lr=0.1, seed=seed,
    )  # fmt: skip
    return fk.Experiment(**usual | changes)


def finals(runs: Any) -> list[Any]:
    return [run.server for run in runs]


def test_runs_together_equal_runs_alone_whatever_their_seed_split_rate_and_length() -> None:
    split = "dirichlet:alpha=3,clients=9"
    asked = [experiment(0), experiment(1, lr=0.05), experiment(2, rounds=2), experiment(0, partition=split)]
    together = fk.run_together(asked, dtype=torch.float64)
    alone = [fk.run(one, engine="serial", dtype=torch.float64) for one in asked]
    assert difference(finals(together), finals(alone)) < 1e-10
    for one, other in zip(together, alone, strict=True):
        assert isinstance(one, fk.Run)
        assert [r.accuracy for r in one.records] == [r.accuracy for r in other.records]
        assert [r.selected for r in one.records] == [r.selected for r in other.records]


@dataclass(frozen=True)
class ByNumber(fk.Rule):
    """A client's gradient counts by its number."""

    asks: ClassVar[tuple[str, ...]] = ("client",)

    def client_slots(self, params: Tree) -> State:
        return {"client": params.scalar()}

    def step(self, tree: Tree, client: State, at: Local) -> tuple[Tree, State]:
        return (1 + client["client"]) * tree, client


def test_the_number_of_a_client_is_that_in_its_run() -> None:
    method = fk.method("own", gradient=ByNumber(), weights=fk.Uniform())
    asked = [experiment(seed, method=method, rounds=2) for seed in (0, 1)]
    alone = [fk.run(one, engine="serial", dtype=torch.float64) for one in asked]
    assert difference(finals(fk.run_together(asked, dtype=torch.float64)), finals(alone)) < 1e-10


class Minus(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, z: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        return self.layer(z - 2 * a)


def named(clients: list[int], labels: torch.Tensor) -> list[dict[str, torch.Tensor]]:
    """Data whose names are in another order than the arguments of the network."""
    draw = torch.Generator().manual_seed(0)
    return [
        {"a": torch.randn(n, 4, generator=draw), "z": torch.randn(n, 4, generator=draw), "labels": labels[:n]}
        for n in clients
    ]


@pytest.mark.parametrize("label", [0, -100])
def test_runs_together_read_names_and_ignored_labels_as_runs_alone_do(label: int) -> None:
    """Client 0 has a batch of nothing but ignored labels, where the label is one of them."""
    given = named([4, 8, 8], torch.tensor([label] * 4 + [0, 1, 1, 0]))
    problem = fk.Problem(model=Minus(), loss=nn.functional.cross_entropy, clients=given, test=given[1])
    settings: dict[str, Any] = dict(rounds=2, participation=1.0, epochs=1, batch_size=4, lr=0.1, method="fedavg")
    experiments = [fk.Experiment(problem=problem, seed=seed, **settings) for seed in (1, 2)]
    alone = [fk.run(one, engine="serial", dtype=torch.float64) for one in experiments]
    for one, other in zip(alone, fk.run_together(experiments, dtype=torch.float64), strict=True):
        assert isinstance(other, fk.Run)
        assert difference(one.server, other.server) < 1e-12
        assert one.records[-1].loss == pytest.approx(other.records[-1].loss, abs=1e-12)


def test_one_that_is_behind_catches_up(tmp_path: Path) -> None:
    asked, places = [experiment(0), experiment(1)], [tmp_path / "a", tmp_path / "b"]
    fk.run(experiment(0, rounds=2), out=places[0], engine="stacked", dtype=torch.float64)
    together = fk.run_together(asked, out=places, dtype=torch.float64)
    fresh = [fk.run(one, engine="serial", dtype=torch.float64) for one in asked]
    assert difference(finals(together), finals(fresh)) < 1e-10
    assert [len(fk.load_run(place).records) for place in places] == [3, 3]
    # the first ran alone, but for its last round
    told = [json.loads((place / "timing.json").read_text()) for place in places]
    assert [one["shared"] for one in told] == [True, True]
    assert all(one["this_session"]["training"] > 0 for one in told)  # the engine's time is shared out


def test_what_cannot_share_a_stack_says_what_differs() -> None:
    for changes, told in (({"clip": 3.0}, "clip"), ({"schedule": "cosine"}, "schedule")):
        with pytest.raises(fk.RequestError, match=f"they differ in {told}"):
            fk.run_together([experiment(0), experiment(1, **changes)])


def test_a_run_alone_knows_that_its_seconds_are_its_own(tmp_path: Path) -> None:
    fk.run(experiment(0), out=tmp_path, engine="stacked", device="cpu")  # others may use a GPU
    assert json.loads((tmp_path / "timing.json").read_text())["shared"] is False


def test_a_neighbour_on_the_card_in_one_round_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = iter([False, True, False])
    monkeypatch.setattr("fedkeel.runs.loop.used_by_others", lambda device: next(seen))
    fk.run(experiment(0), out=tmp_path, engine="stacked")
    assert json.loads((tmp_path / "timing.json").read_text())["shared"] is True


def test_one_that_diverges_leaves_the_others_alone() -> None:
    good, bad, fine = fk.run_together([experiment(0), experiment(1, lr=1e308), experiment(2)], dtype=torch.float64)
    assert isinstance(bad, RunError)
    alone = fk.run(experiment(2), engine="serial", dtype=torch.float64)
    assert difference(finals([fine]), finals([alone])) < 1e-10
    assert isinstance(good, fk.Run)


def test_an_interrupt_leaves_every_run_at_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, places = [experiment(0), experiment(1)], [tmp_path / "a", tmp_path / "b"]
    train = JointEngine.train

    def stopped(self: JointEngine, requests: Any) -> Any:
        if next(iter(requests.values())).round == 2:
            raise KeyboardInterrupt
        return train(self, requests)

    monkeypatch.setattr(JointEngine, "train", stopped)
    with pytest.raises(KeyboardInterrupt):
        fk.run_together(asked, out=places, dtype=torch.float64)
    monkeypatch.undo()
    assert [len(fk.load_run(place).records) for place in places] == [2, 2]
    resumed = fk.run_together(asked, out=places, dtype=torch.float64)
    assert difference(finals(resumed), finals(fk.run_together(asked, dtype=torch.float64))) == 0.0


def test_what_a_stack_shares_may_not_differ() -> None:
    with pytest.raises(RequestError, match="share a stack"):
        fk.run_together([experiment(0), experiment(1, method="fedavg")])
    with pytest.raises(RequestError, match="1 folders were given for 2"):
        fk.run_together([experiment(0), experiment(1)], out=["a"])
    assert fk.run_together([]) == []
    one, other = two_tasks("fedavg")
    method, training = build("fedavg"), Training(1, epochs=1, batch_size=3)
    assert joinable([StackedEngine(task, method, training) for task in (one, other)])
    longer = Training(1, epochs=2, batch_size=3)
    assert not joinable([StackedEngine(one, method, training), StackedEngine(other, method, longer)])


def test_runs_that_cannot_be_joined_are_made_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [experiment(0), experiment(1)]
    monkeypatch.setattr("fedkeel.runs.together.joinable", lambda engines: False)
    runs = fk.run_together(asked, dtype=torch.float64)
    alone = [fk.run(one, engine="stacked", dtype=torch.float64) for one in asked]
    assert difference(finals(runs), finals(alone)) == 0.0


def test_networks_that_keep_other_numbers_learn_what_they_learn_alone() -> None:
    asked = [experiment(seed, model="own_networks:Permuted") for seed in (0, 1)]
    alone = [fk.run(one, engine="serial", dtype=torch.float64) for one in asked]
    assert difference(finals(fk.run_together(asked, dtype=torch.float64)), finals(alone)) < 1e-10


class Lazy:
    """Rows that nobody has looked at before they are trained on; one label is no class."""

    sizes = np.full(40, 6)

    def rows(self, client: int, rows: Any) -> tuple[torch.Tensor, ...]:
        x, y = torch.randn(6, 5, generator=torch.Generator().manual_seed(client)), torch.arange(6) % 3
        y[4] = 9 if client == 30 else 1
        return x[rows], y[rows]


def test_rows_that_do_not_fit_end_the_run_that_meets_them_with_the_line_of_a_run_alone(tmp_path: Path) -> None:
    lazy = fk.Problem(model=nn.Linear(5, 3), loss=nn.functional.cross_entropy, clients=Lazy(), classes=3)
    settings: dict[str, Any] = dict(rounds=2, epochs=1, batch_size=4, lr=0.1, participation=0.1)
    one, other = (fk.Experiment(problem=lazy, seed=seed, **settings) for seed in (0, 3))
    fine, failed = fk.run_together([one, other], out=[tmp_path / "a", tmp_path / "b"], dtype=torch.float64)
    assert difference(finals([fine]), finals([fk.run(one, engine="stacked", dtype=torch.float64)])) < 1e-10
    with pytest.raises(fk.DataError, match="client 30 in round 2 hold the label 9") as alone:
        fk.run(other, engine="stacked", dtype=torch.float64)
    assert (type(failed), str(failed)) == (fk.DataError, str(alone.value))
    assert len(fk.load_run(tmp_path / "b").records) == 1  # the round before is kept


@dataclass(frozen=True)
class Last(fk.Rule):
    """Sends the losses of the last round: as many numbers as there were participants."""

    def server_slots(self, params: Any) -> State:
        return {"last": params.buffer.new_zeros(1)}

    def broadcast(self, message: State, server: State) -> State:
        return message | {"last": server["last"]}

    def step(self, tree: Any, client: State, at: Any) -> Any:
        return tree * (1 + 0.1 * at.message["last"].mean()), client

    def server_step(self, update: Any, server: State, reports: State) -> Any:
        return update, server | {"last": reports["loss"]}


def test_messages_of_unequal_shape_train_one_after_another() -> None:
    method = fk.method("last", gradient=[Last()], weights=fk.BySize())
    asked = [experiment(0, method=method, participation=share) for share in (0.4, 0.9)]
    alone = [fk.run(one, engine="serial", dtype=torch.float64) for one in asked]
    assert difference(finals(fk.run_together(asked, dtype=torch.float64)), finals(alone)) < 1e-10


class Choosy(Last):
    def step(self, tree: Any, client: State, at: Any) -> Any:
        if at.message["last"].shape[-1] > 3:
            raise ArithmeticError("too many losses")
        return tree, client


def test_an_error_of_ones_own_code_stays_with_its_run(caplog: pytest.LogCaptureFixture) -> None:
    method = fk.method("choosy", gradient=[Choosy()], weights=fk.BySize())
    fine, failed = fk.run_together([experiment(0, method=method, participation=share) for share in (0.4, 0.9)])
    assert isinstance(fine, fk.Run)
    assert len(fine.records) == 3
    assert isinstance(failed, ArithmeticError)
    assert "a run failed: ArithmeticError: too many losses" in caplog.text


def test_a_stack_that_fails_when_it_is_almost_done_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [experiment(seed, method="scaffold") for seed in (0, 1)]
    expected = finals(fk.run_together(asked, dtype=torch.float64))
    train = JointEngine.train

    def failing(self: JointEngine, requests: Any) -> Any:
        done = train(self, requests)
        if next(iter(requests.values())).round == 1:
            raise ValueError("too late")
        return done

    monkeypatch.setattr(JointEngine, "train", failing)
    assert difference(finals(fk.run_together(asked, dtype=torch.float64)), expected) < 1e-10


def test_memory_that_does_not_suffice_ends_all_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: JointEngine, requests: Any) -> Any:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(JointEngine, "train", full)
    with pytest.raises(RunError, match="does not suffice"):
        fk.run_together([experiment(0), experiment(1)])


@for_each(
    "first, second",
    [
        ({"seed": 1}, {"seed": 2, "partition": "iid:clients=5"}),
        ({"seed": 1, "model": "logistic"}, {"seed": 2, "model": "logistic"}),
    ],
)
def test_data_of_ones_own_share_a_stack_whatever_their_seed_and_split(first: Any, second: Any) -> None:
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, 5, generator=draw), torch.arange(60) % 3
    usual: dict[str, Any] = dict(model=nn.Linear(5, 3), partition="dirichlet:alpha=1,clients=4", rounds=1, epochs=1)
    asked = [fk.Experiment(data=(x, y), **usual | {"lr": 0.1} | one) for one in (first, second)]
    alone = [fk.run(one, engine="serial", dtype=torch.float64) for one in asked]
    assert difference(finals(fk.run_together(asked, dtype=torch.float64)), finals(alone)) < 1e-10


def test_other_data_and_other_networks_of_ones_own_are_named() -> None:
    x, y, network = torch.randn(60, 5), torch.arange(60) % 3, nn.Linear(5, 3)
    one = fk.Experiment(data=(x, y), model=network, partition="iid:clients=4", rounds=1)
    for changes, told in (({"data": (x + 1, y)}, "data"), ({"model": nn.Linear(5, 3)}, "model")):
        with pytest.raises(RequestError, match=rf"they differ in {told}\."):
            fk.run_together([one, one.with_(**changes)])


@for_each(
    "given, options, told",
    [
        (experiment(0), {}, "takes a list of experiments, not Experiment"),
        ((experiment(seed) for seed in (0, 1)), {}, "takes a list of experiments, not generator"),
        ([experiment(0), experiment(1)], {"out": "zz"}, "takes a list of folders, not str"),
        ([experiment(0), experiment(1)], {"out": ["a", Path("b/../a")]}, "two experiments were given the folder"),
        ([experiment(0), experiment(1)], {"out": [1, "b"]}, "the path of a folder, not int"),
        ([experiment(0), experiment(1)], {"progress": [None]}, "1 followers were given for 2 experiments"),
        ([experiment(0), experiment(1)], {"progress": True}, "takes a list of followers, not bool"),
    ],
)
def test_what_is_no_list_or_too_short_is_refused_in_one_line(given: Any, options: Any, told: str) -> None:
    with pytest.raises(RequestError, match=told) as refused:
        fk.run_together(given, **options)
    assert refused.value.hint


# ---- clients that have finished ------------------------------------------------------------------------------------
def test_a_stack_shrinks_by_halves_where_that_pays() -> None:
    assert stack_sizes(10) == [10, 5, 2]
    assert plan_cuts([50] * 10) == [Cut(0, 50, 10)]
    assert plan_cuts([100] * 5 + [40] * 5) == [Cut(0, 40, 10), Cut(40, 100, 5)]
    assert plan_cuts([100, 90, 80, 20, 20, 20, 20, 20, 20, 20]) == [Cut(0, 20, 10), Cut(20, 80, 5), Cut(80, 100, 2)]
    assert plan_cuts([100, 99] + [98] * 8) == [Cut(0, 100, 10)]


@for_each("lengths", [[9, 7, 7, 3, 1], [30, 1, 1, 1], [5, 5, 0, 0], [100, 99, 40, 39, 38, 2, 1]])
def test_every_client_keeps_all_its_steps(lengths: list[int]) -> None:
    plan = plan_cuts(lengths)
    for client, length in enumerate(lengths):
        covered = {step for cut in plan if client < cut.clients for step in range(cut.first, cut.last)}
        assert set(range(length)) <= covered
    assert [cut.first for cut in plan[1:]] == [cut.last for cut in plan[:-1]]


class Killed(BaseException):
    pass


def killed_at(save: int, monkeypatch: pytest.MonkeyPatch, asked: Sequence[fk.Experiment], places: list[Path]) -> bool:
    """Train until checkpoint number `save` is to be written, and nothing after it; whether there were so many."""
    write, count = Loop.save, [0]

    def stop(self: Loop) -> None:
        if self.saved == self.done:
            return
        count[0] += 1
        if count[0] == save:
            monkeypatch.setattr(Loop, "_write_timing", lambda _: None)  # nor is anything else written then
            raise Killed
        if count[0] < save:
            write(self)

    monkeypatch.setattr(Loop, "save", stop)
    try:
        fk.run_together(asked, out=places, dtype=torch.float64, checkpoint_seconds=0)
    except Killed:
        return True
    finally:
        monkeypatch.undo()
    return False


def test_a_stack_that_is_killed_between_its_checkpoints_goes_on_with_the_same_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its arithmetic may depend on who is in the stack. One run ends early; all are killed at each checkpoint."""
    asked = [experiment(seed, rounds=rounds) for seed, rounds in ((0, 3), (1, 2), (2, 3))]
    whole = finals(fk.run_together(asked, dtype=torch.float64))
    train, stacks = JointEngine.train, list[tuple[int, list[int]]]()

    def noted(self: JointEngine, requests: Any) -> Any:
        (round,) = {request.round for request in requests.values()}
        stacks.append((round, sorted(self.engines[run].training.seed for run in requests)))
        return train(self, requests)

    kills = 0
    while killed_at(kills + 1, monkeypatch, asked, places := [tmp_path / f"{kills}-{n}" for n in range(3)]):
        kills += 1
        monkeypatch.setattr(JointEngine, "train", noted)
        resumed = fk.run_together(asked, out=places, dtype=torch.float64, checkpoint_seconds=0)
        assert difference(finals(resumed), whole) == 0.0
        assert not [*tmp_path.rglob("damaged-*")]
    assert kills == 8
    assert {(round, tuple(seeds)) for round, seeds in stacks} == {(0, (0, 1, 2)), (1, (0, 1, 2)), (2, (0, 2))}


@pytest.fixture
def filled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Stacks are filled up to sizes that were captured, as on a GPU: round and size of each."""
    train, sizes = StackedEngine.train_stack, list[tuple[int, int]]()

    def noted(self: StackedEngine, sender: Any, round: int, clients: Sequence[int], states: Any) -> Any:
        sizes.append((round, len(clients)))
        return train(self, sender, round, clients, states)

    monkeypatch.setattr(StackedEngine, "captures", property(lambda _: True, lambda *_: None), raising=False)
    monkeypatch.setattr(StackedEngine, "train_stack", noted)
    return sizes


def test_a_resumed_run_fills_up_its_stacks_as_the_whole_one_does(tmp_path: Path, filled: list[tuple[int, int]]) -> None:
    asked, path = experiment(0, participation="bernoulli:0.5", rounds=8), tmp_path / "run"
    run = fk.run(asked, engine="stacked", dtype=torch.float64)
    whole = filled.copy()
    assert whole != [(record.round - 1, len(record.selected)) for record in run.records]  # some were filled up
    filled.clear()
    for rounds in range(1, 9):
        fk.run(asked.with_(rounds=rounds), out=path, engine="stacked", dtype=torch.float64)
    assert filled == whole


def test_a_stack_that_shrank_is_filled_up_as_before_when_it_goes_on(
    tmp_path: Path, filled: list[tuple[int, int]]
) -> None:
    asked = [experiment(seed, rounds=rounds) for seed, rounds in ((0, 3), (1, 2), (2, 3))]
    fk.run_together(asked, dtype=torch.float64)
    assert filled == [(0, 9), (1, 9), (2, 9)]  # three clients of each run, two runs in the last round
    filled.clear()
    places = [tmp_path / str(one.seed) for one in asked]
    with pytest.MonkeyPatch.context() as patch:
        assert killed_at(7, patch, asked, places)
    assert filled == [(0, 9), (1, 9), (2, 9)]
    fk.run_together(asked, out=places, dtype=torch.float64, checkpoint_seconds=0)
    assert filled[3:] == [(2, 9)]


def test_runs_that_were_not_trained_as_one_stack_go_on_from_their_own_checkpoints(tmp_path: Path) -> None:
    asked, places = [experiment(0), experiment(1)], [tmp_path / "a", tmp_path / "b"]
    for one, place, rounds in zip(asked, places, (2, 1), strict=True):
        fk.run(one.with_(rounds=rounds), out=place, engine="stacked", dtype=torch.float64)
        (place / "result.json").unlink()
    assert find_common_rounds(places) == [None, None]
    told: list[int] = []
    follower = SimpleNamespace(started=lambda _, done, __: told.append(done), round=id, finished=id)
    fk.run_together(asked, out=places, dtype=torch.float64, progress=[follower, follower])
    assert told == [2, 1]

"""The kit finds what is broken in a method or a rule, and says it in the right sentence."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np
import pytest
import torch
from for_each import for_each

import fedkeel as fk
from fedkeel.randomness import keyed_normals
from fedkeel.testing import BrokenLaw, check_method, check_rule
from fedkeel.testing.checks import stand
from fedkeel.testing.laws import LAWS, hint_at_stacks, processes_agree
from fedkeel.testing.trial import Trial

SEEN = {}


@dataclass(frozen=True)
class Pull(fk.Rule):
    """A sound one: g + μ (w − w_t).  mu = 0 is FedAvg."""

    mu: float = 0.1
    stackable: ClassVar[bool] = True

    def step(self, tree, client, at):
        return tree + self.mu * (at.params - at.start), client


class Broken(fk.Rule):
    """A frozen dataclass without fields."""

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        dataclass(frozen=True)(cls)


class WritesIntoItsArguments(Broken):
    def step(self, tree, client, at):
        tree.buffer.mul_(0.5)
        return tree, client


class UsesAKeyUnasked(Broken):
    def step(self, tree, client, at):
        return tree * (1 + 0.1 * keyed_normals(at.key, 1).to(tree.buffer).squeeze()), client


class ReportsANumber(Broken):
    def finish(self, report, client, at):
        return report | {"beta": 0.5}, client


class Draws(Broken):
    def step(self, tree, client, at):
        return tree * (1 + 0.1 * torch.rand(())), client


class DrawsSlots(Broken):
    def server_slots(self, params):
        return {"first": params.buffer.new_tensor(np.random.random())}


class DrawsLater(Broken):
    """Once there is a loss, which no rehearsal sees."""

    def step(self, tree, client, at):
        return (tree * (1 + 0.1 * torch.rand(())) if at.loss > 0 else tree), client


class ReadsAnother(Broken):
    """What the client before has left, forgotten when a run begins."""

    def server_slots(self, params):
        SEEN.clear()
        return {}

    def step(self, tree, client, at):
        before = SEEN.get("tree", tree)
        SEEN["tree"] = tree.map(lambda leaf: leaf.clone())
        return 0.5 * tree + 0.5 * before, client


class Forgets(Broken):
    """The server's rounds, counted outside of its slots, begin anew with every run."""

    def server_slots(self, params):
        SEEN["rounds"] = 0
        return {}

    def server_step(self, update, server, reports):
        SEEN["rounds"] += 1
        return update * (1.0 / SEEN["rounds"]), server


class SeesTheStack(Broken):
    """Says that it works along the last axis, and does not."""

    stackable: ClassVar[bool] = True

    def step(self, tree, client, at):
        return tree * (1 / (1 + tree.buffer.abs().max())), client


class SendsMoreLater(Broken):
    def server_slots(self, params):
        return {"rounds": params.scalar(0.0)}

    def remember(self, server):
        return server | {"rounds": server["rounds"] + 1}

    def broadcast(self, message, server):
        return message | ({"old": server["params"]} if server["rounds"] > 0 else {})


class KeepsBackWhatChanges(Broken):
    def travels(self, params):
        return params.only(lambda name: name.startswith("2."))


class DividesByZero(Broken):
    def step(self, tree, client, at):
        return tree * (1 / tree.norm()), client


@dataclass(frozen=True)
class First(fk.Weighting):
    """All of the client with the smallest number."""

    def __call__(self, reports, server):
        return torch.eye(len(reports["size"]), dtype=reports["size"].dtype)[0]


@dataclass
class Changeable(fk.Rule):
    def step(self, tree, client, at):
        return tree, client


SENTENCES = {
    WritesIntoItsArguments: "cannot be trained: WritesIntoItsArguments.step writes into what it was given",
    UsesAKeyUnasked: "cannot be trained: UsesAKeyUnasked.step uses at.key, which is 0 in every step",
    ReportsANumber: "cannot be trained: ReportsANumber.finish gives 'beta' as float",
    Draws: "cannot be trained: Draws.step draws from a generator of PyTorch, numpy or Python",
    DrawsSlots: "cannot be trained: DrawsSlots.server_slots draws from a generator of PyTorch, numpy or Python",
    DrawsLater: "depends on the data of client 2|gives another result when it is run again",
    ReadsAnother: "what client 3 of method 'ReadsAnother' reports or remembers depends on the data of client 2",
    Forgets: "ends elsewhere when it is stopped after a round and resumed",
    SeesTheStack: "SeesTheStack says stackable = True, but mixes clients: its step makes another tree",
    SendsMoreLater: r"declares \d+ bytes to a client and \d+ back; in round 2 they are \d+ and \d+",
    KeepsBackWhatChanges: r"says that 0\.\w+ is not sent to clients, yet the server changes it",
    DividesByZero: "does not stay finite where the gradient is zero",
    First: "gives another model when its clients are numbered otherwise",
}
fast = partial(check_rule, skip=["processes_agree"])


@pytest.mark.slow
def test_a_sound_rule_passes():
    fast(Pull(), neutral=Pull(0.0))
    fast(fk.Sam(0.1), neutral=fk.Sam(0.0))


@pytest.mark.slow
@for_each("kind", SENTENCES)
def test_a_broken_rule_is_found_and_the_sentence_says_why(kind):
    with pytest.raises(BrokenLaw, match=SENTENCES[kind]) as caught:
        fast(kind())
    assert caught.value.hint
    assert "\n" not in caught.value.message
    assert isinstance(caught.value, AssertionError)


class NamesALayer(Broken):
    def server_slots(self, params):
        return {"own": params["2.weight"]}

    def step(self, tree, client, at):
        return tree, client


def test_hints_fit_what_a_stack_shows():
    assert "stackable" not in hint_at_stacks(Trial(stand(WritesIntoItsArguments(), "gradient")))
    assert "stackable = True" in hint_at_stacks(Trial(stand(SeesTheStack(), "gradient")))


class ReportsMoreLater(Broken):
    def client_slots(self, params):
        return {"seen": params.scalar(0.0)}

    def finish(self, report, client, at):
        return report | ({"more": at.params} if client["seen"] > 0 else {}), client | {"seen": client["seen"] + 1}


class RemembersItsOwn(Broken):
    def server_slots(self, params):
        return {"own": params.zeros()}

    def remember(self, server):
        return {"own": server["params"]}


@for_each("kind", [ReportsMoreLater, RemembersItsOwn])
def test_what_ends_a_run_is_a_broken_law(kind):
    with pytest.raises(BrokenLaw, match=f"cannot be trained: {kind.__name__}\\.") as caught:
        fast(kind())
    assert "\n" not in caught.value.message


def named():
    return fk.method("named", gradient=NamesALayer(), weights=fk.BySize())


@for_each("given", [named, NamesALayer()])
def test_what_cannot_be_built_is_a_broken_law(given):
    with pytest.raises(BrokenLaw, match=r"NamesALayer\.server_slots fails on a made-up model"):
        fast(given) if isinstance(given, fk.Rule) else check_method(given)


def test_what_is_no_rule_is_refused():
    for given, sentence in (
        (Changeable(), "rule Changeable is no frozen dataclass"),
        (dataclass(frozen=True)(type("Idle", (fk.Rule,), {}))(), "rule Idle does nothing"),
        (fk.Experiment, "is no rule"),
    ):
        with pytest.raises(BrokenLaw, match=sentence):
            fast(given)


def test_a_value_that_is_not_neutral_is_found():
    with pytest.raises(BrokenLaw, match=r"method 'Pull' with Pull\(mu=0.5\) is not 'fedavg': their models differ by"):
        fast(Pull(), neutral=Pull(0.5), skip=list(LAWS))


@dataclass(frozen=True)
class RoundedSize(fk.Weighting):
    """By size, in float32."""

    def __call__(self, reports, server):
        return reports["size"].float() / reports["size"].float().sum()


def test_a_neutral_value_in_float32_is_told_from_a_wrong_one():
    with pytest.raises(BrokenLaw, match="is not 'fedavg'") as caught:
        fast(RoundedSize(), neutral=RoundedSize(), skip=list(LAWS))
    assert "the kit trains in float64" in caught.value.hint


def prox(mu: float = 0.1) -> fk.Method:
    return fk.method("prox", gradient=Pull(mu), weights=fk.BySize())


@pytest.mark.slow
def test_a_method_is_checked_by_its_function():
    check_method(prox, neutral={"mu": 0.0}, skip=["processes_agree"])
    with pytest.raises(BrokenLaw, match=r"method 'prox' with {'mu': 1.0} is not 'fedavg'"):
        check_method(prox, neutral={"mu": 1.0}, skip=list(LAWS))
    with pytest.raises(BrokenLaw, match="no hyper-parameters"):
        check_method(prox(), neutral={"mu": 1.0}, skip=list(LAWS))
    with pytest.raises(fk.RequestError, match="unknown law: pur"):
        check_method(prox, skip=["pur"])


def test_a_rule_that_no_module_has_is_lost_in_a_file():
    @dataclass(frozen=True)
    class Local(Pull):
        pass

    with pytest.raises(BrokenLaw, match="method 'Local' cannot be written to a file and read back"):
        fast(Local())


def test_a_wrong_count_of_passes_is_found():
    class Boasting(fk.Phase):
        backward_passes = 3

    method = fk.Method("miscounts", (Boasting(),), fk.BySize())
    with pytest.raises(BrokenLaw, match=r"declares \d+ backward passes and takes \d+"):
        LAWS["declared_passes"](Trial(method))


@dataclass(frozen=True)
class LacksAnAxis(fk.Rule, stackable=True):
    """Multiplies a number of each client by a vector, as if there was one client; the model stays as it is."""

    length: int = 3
    slot: str = "sum"

    def server_slots(self, params):
        return {"vector": torch.arange(1.0, self.length + 1).to(params.buffer)}

    def client_slots(self, params):
        return {"own": torch.zeros(self.length).to(params.buffer)}

    def broadcast(self, message, server):
        return message | {"vector": server["vector"]}

    def finish(self, report, client, at):
        numbers = {slot: at.loss if slot == self.slot else at.loss[..., None] for slot in ("sum", "own")}
        made = {slot: number * at.message["vector"] for slot, number in numbers.items()}
        return report | {"sum": made["sum"]}, client | {"own": made["own"]}

    def server_step(self, update, server, reports):
        return update, server | {"vector": reports["sum"].mean(0)}


@pytest.mark.slow
@for_each(
    "rule, sentence",
    [
        (LacksAnAxis(), "'vector' of the server in method 'LacksAnAxis' is another in the stacked"),
        (LacksAnAxis(slot="own"), "'own' of a client in method 'LacksAnAxis' is another in the stacked"),
        (LacksAnAxis(1), "in serial and not in the stacked engine: RuntimeError: "),
        (LacksAnAxis(2), "in serial and not in the stacked engine: RuntimeError: "),
    ],
)
def test_what_a_stack_mixes_is_found_outside_of_the_model_too(rule, sentence):
    with pytest.raises(BrokenLaw, match="LacksAnAxis says stackable = True, but mixes clients: its finish"):
        LAWS["stacked_agrees"](Trial(stand(rule, "gradient")))
    with pytest.MonkeyPatch.context() as unrehearsed:
        unrehearsed.setattr("fedkeel.runs.prepare.rehearse_stack", lambda *_: None)
        with pytest.raises(BrokenLaw, match=sentence) as caught:
            LAWS["stacked_agrees"](Trial(stand(rule, "gradient")))
    LAWS["stacked_agrees"](Trial(stand(replace(rule, slot="none"), "gradient")))
    assert "number[..., None] * vector" in caught.value.hint
    assert "\n" not in caught.value.message


def test_what_is_not_a_number_reaches_nobody_or_it_is_said():
    with pytest.raises(BrokenLaw, match="whose numbers are not finite changes what others learn"):
        LAWS["nan_reaches_nobody"](Trial(fk.method("reads", gradient=ReadsAnother(), weights=fk.Uniform())))


@pytest.mark.slow
def test_processes_give_the_same_bits_or_it_is_said():
    processes_agree(Trial(prox()))

    @dataclass(frozen=True)
    class ByProcess(fk.Rule):
        def step(self, tree, client, at):
            import os

            return tree * (1 + os.getpid() % 1000 / 1000), client

    with pytest.raises(BrokenLaw, match="other bits in the processes engine"):
        processes_agree(Trial(fk.method("by-process", gradient=ByProcess(), weights=fk.Uniform())))

"""The laws of methods. Each is a function of a trial, and says in one sentence what a method breaks."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import tomli_w
import torch

from fedkeel.core.rule import LOCAL_STAGES, State, is_stackable
from fedkeel.core.trees import Tree, state_bytes, tensors
from fedkeel.engines.cost import uploaded
from fedkeel.engines.machine import has_pools
from fedkeel.engines.rehearsal import expected_messages
from fedkeel.engines.rehearse_stack import ALONG_LAST_AXIS
from fedkeel.errors import FedkeelError
from fedkeel.importing import Trust
from fedkeel.methods import composition
from fedkeel.testing.broken_law import BrokenLaw, hold
from fedkeel.testing.trial import Trial, difference, sample_problem
from fedkeel.text import in_one_line
from fedkeel.written_values import read_toml

CLOSE = 1e-9
"""How far two orders of the same sums in double precision may lie apart."""


def own_data_only(trial: Trial) -> None:
    """What a client reports and remembers depends on its own data only."""
    others, clients = trial.spoiled(2, lambda inputs: inputs + 1), [[1, 2, 3]]
    one, other = (trial.watch(problem, participants=clients, rounds=1) for problem in (trial.problem, others))
    for mine, theirs in zip(one.engine.outcomes[0], other.engine.outcomes[0], strict=True):
        hold(
            mine.client == 2 or (same_bits(mine.report, theirs.report) and same_bits(mine.state, theirs.state)),
            f"what client {mine.client} of {trial.name} reports or remembers depends on the data of client 2.",
            "a rule may keep nothing outside of its slots: a client's are in client_slots",
        )


def pure(trial: Trial) -> None:
    """The same run again is the same run, wherever PyTorch's generator stands."""
    with torch.random.fork_rng(devices=[]):
        torch.rand(1)
        again = trial.run()
    hold(
        same_bits(again.server, trial.plain.server),
        f"{trial.name} gives another result when it is run again.",
        "a rule keeps what changes in its slots, and draws from at.key alone (random = True)",
    )


def finite(trial: Trial) -> None:
    """After three rounds the server's state is finite, no client was left out, and the model has moved."""
    run = trial.plain
    numbers = all(bool(torch.isfinite(slot).all()) for slot in tensors(run.server))
    dropped = any(record.dropped for record in run.records)
    hold(numbers and not dropped, f"{trial.name} does not stay finite for three rounds.", "look for a division by zero")
    module = trial.problem.model
    if module is not None:
        first = {name: one.detach().double() for name, one in module.named_parameters() if name in run.params}
        moved = any(not torch.equal(one, run.params[name]) for name, one in first.items())
        hold(moved, f"{trial.name} never moves the server's model.", "does a phase train, and are weights above 0?")


def finite_without_gradient(trial: Trial) -> None:
    """One client with one sample, whose gradient is zero, gives finite numbers."""
    flat = sample_problem(trial.method, sizes=(1,), loss=lambda output, target: 0 * output.sum(-1))
    sentence = f"{trial.name} does not stay finite where the gradient is zero."
    hint = "tree.unit() divides safely; add a small number to other norms"
    try:
        run = trial.run(flat, participation=1.0, batch_size=1)
    except BrokenLaw as error:
        raise BrokenLaw(sentence, hint) from error
    hold(all(bool(torch.isfinite(slot).all()) for slot in tensors(run.server)), sentence, hint)


def survives_a_file(trial: Trial) -> None:
    """A method that was written to a file is read back as it was."""
    try:
        text = tomli_w.dumps(composition.save(trial.method))
        back = composition.load(read_toml(text), Trust.TYPED)
    except (FedkeelError, TypeError) as error:
        why = error.message if isinstance(error, FedkeelError) else str(error)
        hint = "rules are frozen dataclasses at the top of a module, whose fields are numbers and texts"
        raise BrokenLaw(f"{trial.name} cannot be written to a file and read back: {why}", hint) from error
    hold(
        back == trial.method,
        f"{trial.name} is another method after it was written to a file.",
        "fields of rules are numbers, texts, rules, or tuples of them",
    )


def declared_passes(trial: Trial) -> None:
    """The backward passes that a method declares are those that it takes."""
    run, engine = trial.watched
    declared = sum(record.backward_passes for record in run.records)
    hold(
        engine.taken == declared > 0,
        f"{trial.name} declares {declared} backward passes and takes {engine.taken}.",
        "the first rule of a perturb chain says whose gradient it climbs: needs_gradient",
    )


def declared_bytes(trial: Trial) -> None:
    """What a method sends has in every round the size that is known before it runs; what stays is what clients have."""
    run, engine = trial.watched
    expected = expected_messages(engine.method, engine.task)
    down, up = state_bytes(expected.message), state_bytes(uploaded(expected.report))
    for record in run.records:
        found = record.bytes_down // len(record.selected), record.bytes_up // len(record.selected)
        hold(
            found == (down, up),
            f"{trial.name} declares {down} bytes to a client and {up} back; in round {record.round} they are "
            f"{found[0]} and {found[1]}.",
            "messages and reports have the same slots in every round: send zeros where there is nothing yet",
        )
    params: Tree = run.server["params"]
    sent, first = engine.method.travels(params).named(), engine.task.initial.named()
    for name, value in params.named().items():
        hold(
            name in sent or torch.equal(value, first[name]),
            f"{trial.name} says that {name} is not sent to clients, yet the server changes it.",
            "travels leaves out only what stays as it was first made",
        )


def stacked_agrees(trial: Trial) -> None:
    """Stacked clients learn, report and remember what they would one by one, and so does the server."""
    plain, alone = trial.watched
    hint = hint_at_stacks(trial)
    try:
        run, outcomes = trial.watch_stack()
    except FedkeelError:
        raise
    except Exception as error:  # serial has trained it: what fails is the stack
        what = f"{type(error).__name__}: {in_one_line(error)}"
        raise BrokenLaw(f"{trial.name} can be trained in serial and not in the stacked engine: {what}", hint) from error
    far = difference(run, plain)
    hold(
        far < CLOSE,
        f"{trial.name} gives another model in the stacked engine than in serial (they differ by {far:.2g}).",
        hint,
    )
    pairs = [("the server", run.server, plain.server)]
    for mine, theirs in zip(chain(*outcomes), chain(*alone.outcomes), strict=True):
        pairs += [("a report", mine.report, theirs.report), ("a client", mine.state, theirs.state)]
    for owner, one, other in pairs:
        for slot in sorted({*one, *other}):
            hold(
                slot in one and slot in other and are_close(one[slot], other[slot]),
                f"{slot!r} of {owner} in {trial.name} is another in the stacked engine than in serial.",
                hint,
            )


def hint_at_stacks(trial: Trial) -> str:
    """Say what rules may do wrong that only a stack shows."""
    hint = "no rule writes into what it was given, in later steps and rounds either: return 0.5 * tree, client | {…}"
    if any(is_stackable(rule) and rule.stages & LOCAL_STAGES for rule in trial.method.rules):
        return f"{ALONG_LAST_AXIS}; {hint}"
    return hint


def processes_agree(trial: Trial) -> None:
    """Worker processes give the same bits."""
    if has_pools():
        hold(
            same_bits(trial.run(engine="processes").server, trial.plain.server),
            f"{trial.name} gives other bits in the processes engine than in serial.",
            "a rule must not read what a process has of its own: globals, the clock, a file",
        )


def resumes(trial: Trial) -> None:
    """A run that was stopped and resumed ends in the same bits as one that was not."""
    with tempfile.TemporaryDirectory() as folder:
        trial.run(out=Path(folder), rounds=1)
        resumed = trial.run(out=Path(folder))
    hold(
        same_bits(resumed.server, trial.plain.server),
        f"{trial.name} ends elsewhere when it is stopped after a round and resumed.",
        "what lasts longer than a round belongs into server_slots or client_slots",
    )


def numbering(trial: Trial) -> None:
    """Who is called client 0 changes nothing, but for rules that draw by the client's number."""
    method = trial.method
    if any(rule.random for rule in method.rules) or any(one.of for one in method.objectives) or "client" in method.asks:
        return
    order, schedule = [3, 0, 4, 2, 1], [[0, 1], [1, 2, 3], [0, 4]]  # the new client k is the old order[k]
    moved = sample_problem(method, clients=[trial.clients[i] for i in order], tests=[trial.clients[i] for i in order])
    one = trial.run(participants=schedule, batch_size=8)
    other = trial.run(moved, participants=[[order.index(i) for i in few] for few in schedule], batch_size=8)
    hold(
        difference(one, other) < CLOSE,
        f"{trial.name} gives another model when its clients are numbered otherwise.",
        "a weighting or a server's rule reads clients by their place; random = True where a rule draws",
    )


def nan_reaches_nobody(trial: Trial) -> None:
    """A client whose numbers are not finite is as one that did not take part."""
    with_it = trial.watch(fails=2, participants=[[1, 2, 3], [1, 3]], rounds=2).run
    without = trial.run(participants=[[1, 3], [1, 3]], rounds=2)
    hold(
        with_it.records[0].dropped == [2] and same_bits(with_it.server, without.server),
        f"a client of {trial.name} whose numbers are not finite changes what others learn.",
        "a rule may keep nothing outside of its slots",
    )


LAWS: dict[str, Callable[[Trial], None]] = {
    "own_data_only": own_data_only,
    "pure": pure,
    "finite": finite,
    "finite_without_gradient": finite_without_gradient,
    "survives_a_file": survives_a_file,
    "declared_passes": declared_passes,
    "declared_bytes": declared_bytes,
    "resumes": resumes,
    "stacked_agrees": stacked_agrees,
    "processes_agree": processes_agree,
    "numbering": numbering,
    "nan_reaches_nobody": nan_reaches_nobody,
}
"""In the order in which they are checked."""


def same_bits(one: State, other: State) -> bool:
    """Whether two states have the same slots with the same bits."""
    mine, theirs = (tensors({slot: state[slot] for slot in sorted(state)}) for state in (one, other))
    return one.keys() == other.keys() and all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def are_close(one: Any, other: Any) -> bool:
    """Whether two values of a slot are of one shape and equal up to the order of sums."""
    mine, theirs = tensors(one), tensors(other)
    return [slot.shape for slot in mine] == [slot.shape for slot in theirs] and all(
        torch.allclose(a, b.to(a), CLOSE, CLOSE, equal_nan=True) for a, b in zip(mine, theirs, strict=True)
    )

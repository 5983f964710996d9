"""What is known of a method before anyone runs it: read from its rules, or counted; never written by hand."""

from __future__ import annotations

import contextlib
import inspect
import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from fedkeel.core.method import Method, Phase
from fedkeel.core.objective import Loss
from fedkeel.core.round import init_client, init_round, init_server
from fedkeel.core.rule import Rule, State
from fedkeel.core.trees import tensors
from fedkeel.errors import FedkeelError
from fedkeel.methods import METHODS, build, hyperparameters, makers_of, settings_of
from fedkeel.models.bottleneck import Bottleneck
from fedkeel.plugins import find_plugin, load_plugins
from fedkeel.problems.problem import Problem
from fedkeel.rules import ClipHere, DecayHere
from fedkeel.runs.experiment import Experiment
from fedkeel.runs.prepare import CrossEntropy, ended, method_of, problem_of, task_maker
from fedkeel.runs.start import run
from fedkeel.text import one_line

MEANINGS = {
    "server_lr": "how far the server follows the combined update; 1 is the update itself",
    "head": "names of the classifier's parameters, * and ? allowed; @head finds them",
    "private": "names of the parameters that stay, * and ? allowed; @head is the classifier",
    "form": "which filter: fft, lap-d, gaussian or fft-2d; high, random, energy, l2, norm and median are controls",
    "order": "of a tensor's axes when it is flattened for the filter; 0123 is torch's own",
    "window": "of form=lap-d: over how many neighbours it averages",
    "sigma": "of form=gaussian: how wide it averages",
    "layers": "names of the parameters to filter, * and ? allowed; () is all",
    "probe": "how many batches are looked at before training",
    "sensitivity": "what ranks the layers: change, norm, minmax, taylor or exact",
}
"""What hyper-parameters mean that set no field of a rule of the same name."""


@dataclass(frozen=True)
class Hyperparameter:
    """A number one may set, and the sentence about it in the rules' docstrings."""

    name: str
    default: Any
    meaning: str


@dataclass(frozen=True)
class Costs:
    """In units of one model, counted in a round of a small perceptron: sent down and up by FedAvg is 1 each."""

    down: float
    up: float
    server: dict[str, float]
    client: dict[str, float]
    held: dict[str, float]  # by a client, during a round only


@dataclass(frozen=True)
class MethodCard:
    """`about` is the whole docstring; `costs` is None for a method that needs a model or data of its own."""

    name: str
    family: str
    about: str
    method: Method
    hyperparameters: tuple[Hyperparameter, ...]
    costs: Costs | None

    @property
    def summary(self) -> str:
        return one_line(self.about.split("\n\n")[0])

    @property
    def passes(self) -> str:
        """Backward passes, phase by phase."""
        return ", then ".join(_passes(phase) for phase in self.method.phases)

    @property
    def passes_in_short(self) -> str:
        times = [f"{phase.passes}×" if phase.passes > 1 else "" for phase in self.method.phases]
        return "+".join(f"{n}{phase.backward_passes}" for n, phase in zip(times, self.method.phases, strict=True))

    @property
    def paper(self) -> str | None:
        """The key of the method's own paper: of its name if there is one, else the first."""
        stem = re.split(r"[-@+]", self.name)[0]
        return stem if stem in self.method.papers else next(iter(self.method.papers), None)


def card(name: str) -> MethodCard:
    """Of a method by name, of one with plug-ins (`specgradfilter+scaffold`), or of the user's own `module:function`."""
    method, makers = build(name), [underlying(make) for make in makers_of(name)]
    words, about = settings_of(name), "\n\n".join(inspect.getdoc(make) or "" for make in makers)
    return MethodCard(
        name=name,
        family=family_of(name, makers[0]),
        about=about,
        method=method,
        hyperparameters=tuple(
            Hyperparameter(word, told_default(word, name, value), meaning(word, method, about))
            for word, value in words.items()
        ),
        costs=costs(method),
    )


def told_default(word: str, name: str, value: Any) -> Any:
    """The default of a hyper-parameter; those of all parts of a name where they differ, since setting it sets them."""
    parts = zip(name.split("+"), makers_of(name), strict=True)
    found = {part: own[word] for part, make in parts if word in (own := hyperparameters(make))}
    return value if len(set(map(str, found.values()))) < 2 else ", ".join(f"{v} ({part})" for part, v in found.items())


def cards() -> list[MethodCard]:
    """Of every method, in the order of the table of methods."""
    return [card(name) for name in METHODS]


def plugin_cards() -> list[MethodCard]:
    """Of every method that installed packages bring; their family is the package."""
    return [card for _, card in load_plugins("methods", METHODS, card)]


def family_of(name: str, make: Callable[..., Method]) -> str:
    """The module that a method is listed in; for one that an installed package brings, the package."""
    plugin = None if name in METHODS or set(name) & set(":+") else find_plugin("methods", name)
    return make.__module__.rpartition(".")[2] if plugin is None else f"package {plugin.package}"


def underlying(make: Callable[..., Method]) -> Callable[..., Method]:
    """The function that a partial application or a decorator hides."""
    return underlying(make.func) if isinstance(make, partial) else inspect.unwrap(make)


def _passes(phase: Phase) -> str:
    if phase.epochs is not None:
        often = f", {phase.passes} times" if phase.passes > 1 else ""
        return f"{phase.backward_passes} per step of {phase.epochs:g} epoch{'s' if phase.epochs != 1 else ''}{often}"
    if phase.batches is not None:
        return f"{phase.backward_passes} on each of {phase.batches} batch{'es' if phase.batches != 1 else ''}"
    return f"{phase.backward_passes} per local step"


def list_chains(method: Method) -> list[tuple[str, tuple[Rule, ...]]]:
    """The parts of a method that have rules, in the order in which a run meets them, with a heading each."""
    chains = [("Each client, before it trains", method.personal)]
    for number, phase in enumerate(method.phases, start=1):
        which = "" if len(method.phases) == 1 else f", phase {number}"
        which += "" if phase.trains else " (measures only)"
        of = "" if phase.objective == Loss() else f" of {phase.objective}"
        chains.append((f"Where the gradient is taken{which}", phase.perturb))
        chains.append((f"What becomes of the gradient{of}{which}", phase.gradient))
    chains.append(("How clients are weighted", (method.weights,)))
    if method.server_phase is not None:
        chains.append(("On the server, with data of its own", method.server_phase.rules))
    chains.append(("On the server", method.server))
    if method.final is not None:
        chains.append(("After the last round", method.final.rules))
    return [(heading, rules) for heading, rules in chains if rules]


def step_order(phase: Phase) -> str:
    """The order in which a step of an optimiser is made, clip and weight decay in their places; empty without one."""
    chain = ended(phase, (ClipHere(),), (DecayHere(),)).gradient
    optimiser = next((rule for rule in chain if rule.optimiser), None)
    if optimiser is None:
        return ""
    decay = "weight decay (part of the direction)" if optimiser.coupled_decay else "weight decay (decoupled)"
    places: dict[Rule, str] = {ClipHere(): "clip", DecayHere(): decay}
    return " → ".join(["gradient", *(places.get(rule, type(rule).__name__) for rule in chain), "step by the rate"])


def objectives(method: Method) -> dict[str, str]:
    """What gradients are taken of besides the loss, and what that is."""
    brought = sorted((one for one in method.objectives if not one.of_problem), key=repr)
    return {repr(one): one_line(inspect.getdoc(one) or "") for one in brought}


# ---- what docstrings say -------------------------------------------------------------------------------------------
def every_rule(method: Method) -> Iterator[Rule]:
    """The rules, those of the server's own phase, and those that are fields of others."""
    waiting = [*method.rules, *(method.server_phase.rules if method.server_phase else ())]
    while waiting:
        rule = waiting.pop(0)
        yield rule
        values = list(settings(rule).values())
        nested = [item for value in values for item in (value if isinstance(value, tuple) else (value,))]
        waiting += [item for item in nested if isinstance(item, Rule)]


def settings(rule: Any) -> dict[str, Any]:
    """The fields of a rule; one that is no dataclass has none to show."""
    return {field.name: getattr(rule, field.name) for field in fields(rule)} if is_dataclass(rule) else {}


def meaning(word: str, method: Method, about: str = "") -> str:
    """The sentences that say what values of a hyper-parameter mean: of its rules, else of the method's docstring."""
    found: dict[str, None] = {}
    for rule in every_rule(method):
        if word in settings(rule):
            found |= dict.fromkeys(sentences_about(word, inspect.getdoc(type(rule)) or ""))
    own = all(type(rule).__module__.startswith("fedkeel.") for rule in every_rule(method) if word in settings(rule))
    if not found and own and word in MEANINGS:
        return MEANINGS[word]
    plain = "\n\n".join(part for part in about.split("\n\n") if not part.startswith("Paper:"))
    return " ".join(found or sentences_about(word, plain))


def sentences_about(word: str, text: str) -> list[str]:
    """Those that name the word as a value (`rho = 0 takes …`), else those that name it at all."""
    plain = re.sub(r"\([^()]*\b(?:19|20)\d\d\)", "", one_line(text))  # without the paper
    sentences = [sentence.strip() for sentence in re.split(r"(?<=\.)\s+", plain) if sentence.strip()]
    valued = [s for s in sentences if re.search(rf"(?<![\w.]){re.escape(word)} = ", s)]
    return valued or [s for s in sentences if re.search(rf"(?<![\w.]){re.escape(word)}(?!\.?\w)", s)]


# ---- what a round costs --------------------------------------------------------------------------------------------
def sample_problem(method: Method) -> Problem:
    """Two clients of eight samples and a perceptron that makes a few scalars more in a message vanish.

    Its last layer is a random code where the method compares codes.
    """
    coded = any(objective.of for objective in method.objectives)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        body = nn.Sequential(nn.Linear(64, 128), nn.ReLU())
        model = Bottleneck(body, 128, 10, code=64, samples=2) if coded else body.append(nn.Linear(128, 10))
        data = [(torch.randn(8, 64), torch.arange(8)) for _ in range(4)]
    return Problem(model=model, loss=CrossEntropy(), clients=data[:2], test=data[2], proxy=data[3], classes=10)


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Without the warnings that a run meant for its result would give."""
    logger = logging.getLogger("fedkeel")
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = False


def costs(method: Method) -> Costs | None:
    """Counted in the second round, when every method has something to send."""
    try:
        experiment = Experiment(
            problem=sample_problem(method), method=method, rounds=2, participation=1.0, epochs=1, batch_size=4, lr=0.01
        )
        with quietly():
            last = run(experiment, engine="serial", device="cpu", progress=False).records[-1]
        task = task_maker(experiment.plan, torch.device("cpu"), torch.float32)(problem_of(experiment.plan))
        whole = method_of(experiment.plan, task)
    except FedkeelError:
        return None
    model, fedavg = task.initial.layout.size, 2 * task.initial.buffer.nbytes  # to two clients, and back
    server, client = init_server(whole, task.initial), init_client(whole, task.initial)
    server = {name: slot for name, slot in server.items() if name != "params"}
    states = (server, client, init_round(whole, task.initial))
    return Costs(last.bytes_down / fedavg, last.bytes_up / fedavg, *(sizes(state, model) for state in states))


def sizes(state: State, model: int) -> dict[str, float]:
    return {name: sum(tensor.numel() for tensor in tensors(slot)) / model for name, slot in state.items()}

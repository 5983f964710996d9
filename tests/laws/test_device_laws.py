"""A step stays on the device, for every method of the table and every one the papers' tables are made of.

On a GPU steps are compiled and captured as a graph: whatever comes from the host, be it a table made once and kept, is
made anew by the compiler, and a capture refuses it. The device "meta" stands for the GPU here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from every_method import few_of_engines
from for_each import for_each
from torch import Tensor
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

import fedkeel as fk
from fedkeel.core.local_step import Body, Gradient, Lift, PhaseContext, StepInput, make_local_step
from fedkeel.core.method import Method
from fedkeel.core.objective import Objective
from fedkeel.core.round import broadcast, init_client, init_round, init_server
from fedkeel.core.rule import Local, Rule, Setting, State
from fedkeel.core.trees import Tree, tensors
from fedkeel.engines.engine import Training
from fedkeel.engines.serial import SerialEngine
from fedkeel.engines.stacked.client_mapping import STEP_FUNCTIONS, lift_by_broadcast, lift_by_vmap
from fedkeel.methods import METHODS, build
from fedkeel.papers import PAPERS, find
from fedkeel.problems.task import Task
from fedkeel.runs.experiment import Experiment
from problems import ABLATIONS, OPTIMISERS, small_problem

CLIENTS = 3
LEAVES = {
    "patches.project.weight": (8, 12),
    "conv1.weight": (6, 4, 3, 3),
    "bn1.bias": (6,),
    "layer1.weight": (64, 3000),
    "fc.weight": (10, 6),
    "fc.bias": (10,),
}
MODEL = Tree.of({name: torch.zeros(shape) for name, shape in LEAVES.items()})
SETTING = Setting(MODEL.layout, ("fc.weight", "fc.bias"), epochs=2, mean_size=20.0)
FACTS = {"lr": 0.1, "steps": 4.0, "size": 20.0, "histogram": 1.0}


def with_other_rules() -> Iterator[tuple[str, Method]]:
    """A method of each ablation, and of each optimiser under each policy of its moments."""
    for rule in ABLATIONS:
        yield repr(rule), fk.method("ablation", gradient=[rule], weights=fk.Uniform())
    for rule in OPTIMISERS:
        for moments in ("reset", "keep", "average"):
            kept = replace(rule, moments=moments)  # type: ignore[call-arg]
            yield repr(kept), build("fedsam-d").then(kept)


def of_paper(paper: str) -> Iterator[tuple[str, Method]]:
    """Each method of a paper's tables once, with the name of the first place where it stands."""
    given: list[Any] = []
    for cell in find(paper):
        if cell.experiment["method"] not in given:  # to build it again is the slow part
            given.append(cell.experiment["method"])
            yield f"{cell.table}, {cell.label}", Experiment.load(dict(cell.experiment)).plan.method


class Hosted(TorchDispatchMode):
    """Operations that have to do with the host's memory; single numbers may, since they travel with a launch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = f(*args, **(kwargs or {}))
        touched = [leaf for leaf in _pytree.tree_leaves((args, kwargs, made)) if isinstance(leaf, Tensor)]
        if any(leaf.device.type != "meta" and leaf.dim() for leaf in touched):
            self.found.append(str(f))
        return made


def away(state: Any) -> Any:
    """On the device, and one for each client."""
    return _pytree.tree_map(lambda slot: slot.expand(CLIENTS, *slot.shape).to("meta"), state)


def forget() -> None:
    """Empty what functions of fedkeel remember: the compiler looks through it."""
    for name, module in list(sys.modules.items()):
        if name.startswith("fedkeel.rules"):
            for thing in vars(module).values():
                getattr(thing, "cache_clear", lambda: None)()


def steps(method: Method, lift: Lift) -> Iterator[tuple[Body, Any]]:
    """One step of each phase, and what it is given."""
    fitted = method.map_rules(lambda rule: rule.settled(SETTING))
    client = init_client(fitted, MODEL) | init_round(fitted, MODEL)
    message = broadcast(fitted, init_server(fitted, MODEL))
    client |= {name: torch.full((10,) if name == "histogram" else (), v) for name, v in FACTS.items() if name in client}
    params, client, message = away(MODEL), away(client), away(message)
    numbers, keys = torch.zeros(CLIENTS, device="meta"), torch.zeros(CLIENTS, dtype=torch.int64, device="meta")

    def gradient(params: Tree, batch: Any, objective: Objective, message: State, buffers: Tree | None) -> Gradient:
        return Gradient(params.elementwise(torch.sin), numbers)

    for phase in fitted.phases:
        body = make_local_step(phase, gradient, lift, padded=False, axis=0)
        moment = StepInput(None, torch.zeros((), dtype=torch.int64, device="meta"), keys)
        yield body, ((params, client), PhaseContext(params, message, numbers, numbers), moment)


def drawn(method: Method) -> bool:
    """Whether a rule draws lots: such methods are not compiled."""
    return any(rule.random for rule in method.rules)


@cache
def stays_on_the_device(method: Method) -> bool:
    forget()
    compiled = not drawn(method)
    for body, given in steps(method, lift_by_broadcast if compiled else lift_by_vmap):
        with pytest.MonkeyPatch.context() as patch:
            if compiled:
                patch.setattr(torch.compiler, "_is_compiling_flag", True)
            else:
                body(*given)  # what is captured as it is may remember tables from the steps before
            with torch.no_grad(), Hosted() as hosted:
                carry, _ = body(*given)
        if hosted.found or any(slot.device.type != "meta" for slot in tensors(carry)):
            return False
    return True


@pytest.mark.parametrize("name", few_of_engines())
def test_a_step_stays_on_the_device(name: str) -> None:
    assert stays_on_the_device(build(name))


@pytest.mark.slow
def test_so_does_one_with_rules_that_no_method_has_by_default() -> None:
    assert [name for name, method in with_other_rules() if not stays_on_the_device(method)] == []


@pytest.mark.slow  # the same rules with other numbers, two hundred times
@pytest.mark.parametrize("paper", PAPERS)
def test_so_does_one_of_every_cell_of_a_table(paper: str) -> None:
    assert [name for name, method in of_paper(paper) if not stays_on_the_device(method)] == []


@pytest.mark.slow
@for_each("rule", ABLATIONS)
def test_one_client_after_another_draws_where_its_gradients_are(rule: Rule) -> None:
    method = fk.method("ablation", gradient=[rule], weights=fk.Uniform())
    wide = torch.nn.Sequential(torch.nn.Linear(6, 50), torch.nn.ReLU(), torch.nn.Linear(50, 3))
    task = Task(replace(small_problem(), model=wide), device="meta")
    engine = SerialEngine(task, method, Training(seed=0, epochs=1, batch_size=4))
    message = broadcast(method, init_server(method, task.initial))
    (outcome,) = engine.train(message, 0, 0.1, [0], [None])
    assert all(slot.device.type == "meta" for slot in tensors(outcome.report))


def in_one_graph(f: Callable[..., Any], dims: tuple[Any, ...]) -> Callable[..., Any]:
    """Broadcasting whose chains the compiler must see whole."""
    plain = lift_by_broadcast(f, dims)
    return (
        torch.compile(plain, backend="eager", fullgraph=True, dynamic=False) if f.__name__ in STEP_FUNCTIONS else plain
    )


@cache
def is_one_graph(method: Method) -> None:
    if not drawn(method):
        torch.compiler.reset()
        for body, given in steps(method, in_one_graph):
            with torch.no_grad():
                body(*given)


@pytest.mark.slow  # a second for each chain
@pytest.mark.filterwarnings("ignore")  # of the compiler's own
@pytest.mark.parametrize("name", METHODS)
def test_a_compiler_sees_the_rules_of_a_step_as_one_graph(name: str) -> None:
    is_one_graph(build(name))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("source", ["other rules", *PAPERS])
def test_it_does_so_with_other_rules_and_in_every_cell_of_a_table(source: str) -> None:
    for name, method in with_other_rules() if source == "other rules" else of_paper(source):
        try:
            is_one_graph(method)
        except Exception as error:
            error.add_note(f"in the step of {name}")
            raise


COMPILED = [*(rule for rule in ABLATIONS if not rule.random), fk.On("fc.*", fk.HighPass(0.4)), *OPTIMISERS[:-1]]


def stepped(rule: Rule) -> tuple[Callable[[Tree], Tree], Tree, Tensor]:
    """A rule's step, what it is given for several clients, and what comes of it one client at a time."""
    buffer = torch.randn(CLIENTS, MODEL.layout.size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    zero, fitted = torch.zeros((), dtype=torch.int64), rule.settled(SETTING)

    def step(tree: Tree) -> Tree:
        return fitted.step(tree, fitted.round_slots(tree), Local(tree, tree, {}, None, zero, zero, zero, zero))[0]

    alone = torch.stack([step(Tree(row, MODEL.layout)).buffer for row in buffer])
    return step, Tree(buffer, MODEL.layout), alone


@pytest.mark.slow
def test_stacked_rules_do_what_they_do_for_one_client() -> None:
    for rule in COMPILED:
        step, given, alone = stepped(rule)
        torch.testing.assert_close(step(given).buffer, alone, atol=1e-12, rtol=0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "rule", [pytest.param(one, marks=[pytest.mark.slow] if i % 24 else []) for i, one in enumerate(COMPILED)], ids=repr
)
def test_compiled_rules_do_what_they_do_for_one_client(rule: Rule) -> None:
    step, given, alone = stepped(rule)
    torch.compiler.reset()
    compiled = torch.compile(step, backend="aot_eager", fullgraph=True, dynamic=False)
    torch.testing.assert_close(compiled(given).buffer, alone, atol=1e-12, rtol=0)

"""What a run says before it begins: who holds how much, and what may surprise."""

from __future__ import annotations

from fedkeel.core.method import Method
from fedkeel.data.clients import describe_clients, to_tensors
from fedkeel.errors import RequestError
from fedkeel.importing import Trust
from fedkeel.models.external import check_name
from fedkeel.problems.class_labels import MAKE_WHOLE
from fedkeel.problems.divided import are_classes_in_fractions
from fedkeel.problems.metrics import NamedMetric
from fedkeel.problems.problem import Problem
from fedkeel.problems.task import Task
from fedkeel.problems.try_objectives import describe_other_loss
from fedkeel.rules import OwnHeavyBall
from fedkeel.rules.layers import matcher
from fedkeel.rules.sharing import private
from fedkeel.runs.experiment import Experiment
from fedkeel.runs.participation import share_of
from fedkeel.runs.plan import Plan


def describe_task(task: Task) -> str:
    """Who holds how much, in one line."""
    proxy = task.problem.proxy
    server = 0 if proxy is None else len(to_tensors(proxy, "the proxy")[0])
    return describe_clients(task.problem.data, task.tests, task.validation, server)


def list_surprises(experiment: Experiment, method: Method, task: Task) -> list[str]:
    """All that may surprise in what is trained; `method` is the plan's, fitted to its task."""
    plan = experiment.plan
    told = (
        describe_whole_fractions(experiment), describe_kept_buffers(plan, task), describe_unjudged(plan),
        describe_other_share(plan), describe_label_beyond(task), describe_unsent(method, task),
        describe_other_loss(method, task),
    )  # fmt: skip
    return [line for line in told if line]


def describe_kept_buffers(plan: Plan, task: Task) -> str | None:
    """Say that the server's model is scored without the buffers that clients keep; None where it is not scored."""
    if task.buffers is None or plan.buffers == "average" or (task.test is None and task.validation is None):
        return None
    told = 'buffers = "keep": the server scores its model with the buffers that the run began with, which says little'
    return told + ("" if plan.evaluation else '; evaluation = {"model": "global"} takes those of each client')


def describe_unjudged(plan: Plan) -> str | None:
    """Say that clients' own models are judged by no number; None where a policy judges them, or there are none."""
    method, policy = plan.method, plan.evaluation
    if not method.is_personal:
        return None
    if policy is not None and (policy.model != "global" or method.final is not None):  # judged after the last round
        return None
    return (
        f"{method.name} trains a model for each client, and accuracy is that of the server's: "
        "evaluation.model=local judges the clients'"
    )


def describe_label_beyond(task: Task) -> str | None:
    """Say that outputs are no scores of classes; None where they may be, or where accuracy is a function given."""
    own = task.metrics.get("accuracy")
    if task.label_beyond is None or (own is not None and not isinstance(own, NamedMetric)):
        return None
    return (
        f"the loss trains on the label {task.label_beyond}, of which the network has no output: outputs are no scores "
        "of classes, so accuracy and metrics by name are left out, and the run is judged by the loss; "
        'metrics={"accuracy": function} measures your own'
    )


def describe_unmeasured(plan: Plan, task: Task) -> str | None:
    """Say that there is nothing to measure metrics on; None where there is, or where none are asked for."""
    judged = plan.evaluation is not None and task.tests is not None
    if not task.metrics or task.test is not None or task.validation is not None or judged:
        return None
    unused = "" if task.tests is None else ", and no evaluation asks for the clients' test sets"
    return (
        f"nothing measures {', '.join(task.metrics)}: there is neither a test set nor a validation share{unused}; "
        'a problem takes test=, an experiment validation=0.1 or evaluation={"model": "global"}'
    )


def describe_whole_fractions(experiment: Experiment) -> str | None:
    """Say that data were given a squared error though their targets may be classes; None where they are not."""
    source = experiment.plan.source
    if experiment.data is None or not isinstance(source, Problem) or not are_classes_in_fractions(source):
        return None
    return (
        "the targets are fractions, though all of them are whole numbers, so the loss is the squared error, without "
        f"accuracy; {MAKE_WHOLE}"
    )


def describe_other_share(plan: Plan) -> str | None:
    """Say that a method counts on another share of the clients than takes part; None where it is the same."""
    share = share_of(plan.participation)
    shares = [rule.share for rule in plan.method.rules if isinstance(rule, OwnHeavyBall) and rule.share != share]
    if not shares or plan.participants is not None:
        return None
    return (
        f"{plan.method.name} counts on a share of {shares[0]:g} of the clients in each round, and {share:g} take part: "
        f"method.share={share:g} is what its formula means"
    )


def describe_unsent(method: Method, task: Task) -> str | None:
    """Say that clients send nothing, because every layer is private; None where some are not."""
    patterns = private(method)
    if not patterns or not all(map(matcher(patterns), task.initial)):
        return None
    return f"{method.name}: every layer of this model is private, so clients train alone and send nothing"


def describe_unsaid_model(plan: Plan) -> str | None:
    """Say that the run's folder will not bring its network back; None where it will, or where it names none."""
    model = None if isinstance(plan.source, Problem) else plan.source.model
    if not isinstance(model, str) or ":" not in model:
        return None
    try:
        check_name(model, Trust.FILE)
    except RequestError:
        return (
            f"{model} does not say what it returns, so `fedkeel resume` and `fedkeel export model` will refuse it: "
            "write def …(…) -> torch.nn.Module"
        )
    return None

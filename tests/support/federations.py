"""A federation inside one process: real client apps, messages and contexts, and whatever goes wrong between them."""

from dataclasses import replace

import torch
from flwr.app import Context, RecordDict
from flwr.supercore.task_identity import TaskIdentity

import fedkeel as fk
from fedkeel.engines.flower.client import Node, client_number, make_client_app
from fedkeel.engines.serial import SerialEngine
from fedkeel.federation.apps import serve
from fedkeel.federation.handshake import describe_side
from fedkeel.runs.prepare import method_of, problem_of, task_maker
from problems import model_for, small_problem

TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # a running app has these


class InProcess:
    """A grid whose node 100 + i is client i. Replies arrive in reversed order.

    `spoil(round, client, reply)` may change a reply, or lose it by returning None; `absent` nodes are not there.
    """

    def __init__(self, experiment, spoil=None, folder=None, node_of=None, settings=None, run_config=None):
        problem = problem_of(experiment.plan)
        task = task_maker(experiment.plan, torch.device("cpu"), torch.float32)(problem)
        training = experiment.plan.training
        engine = SerialEngine(task, method_of(experiment.plan, task), training)
        more = folder, experiment.fingerprint(), describe_side(experiment.plan, task, engine.method)
        self.app = make_client_app(node_of or (lambda context: Node(client_number(context), engine, *more)))
        self.settings, self.run_config = settings or (lambda client: {}), run_config or {}
        self.spoil = spoil or (lambda round, client, reply: reply)
        self.clients, self.absent, self.asked = len(task.clients.sizes), set(), []
        self.contexts = {}
        for client in range(self.clients):
            self.forget(client)

    def forget(self, client):
        """The node restarts: what it had in memory is gone."""
        self.contexts[client] = Context(
            run_id=1,
            node_id=100 + client,
            node_config={"partition-id": client} | self.settings(client),
            state=RecordDict(),
            run_config=self.run_config,
        )

    def get_node_ids(self):
        return [100 + client for client in range(self.clients) if client not in self.absent]

    def send_and_receive(self, messages, *, timeout=None):
        replies = []
        for message in messages:
            client = message.metadata.dst_node_id - 100
            reply = self.app(message, self.contexts[client])
            if message.metadata.message_type == "train":
                round = message.content["config"]["round"]
                self.asked.append((round, client))
                reply = self.spoil(round, client, reply)
            if reply is not None:
                replies.append(reply)
        return replies[::-1]


def train(experiment, out, *, grid=None, terms=None, spoil=None, folder=None):
    grid = grid or InProcess(experiment, spoil, folder)
    return serve(experiment, grid, out=out, terms=terms, wait=0.0)


def same(one, other):
    """Every slot of the server, bit for bit."""
    assert one.server.keys() == other.server.keys()
    for name, slot in one.server.items():
        mine, yours = (getattr(x, "buffer", x) for x in (slot, other.server[name]))
        assert mine.dtype == yours.dtype, name
        assert torch.equal(mine, yours), name


def problem():
    """Six clients of unequal size, with all that any method may ask for."""
    given = small_problem(sizes=(7, 4, 5, 1, 6, 3), test=8)
    return fk.Problem(
        model=given.model, loss=given.loss, clients=given.clients, test=given.test, classes=3, proxy=given.test
    )


def experiment(problem, method="scaffold", **changes):
    settings = dict(
        rounds=3, participation=1.0, epochs=(1, 2), batch_size=4, lr=0.1, lr_decay=0.9, weight_decay=1e-3, clip=5.0
    )
    if isinstance(problem.model, torch.nn.Sequential):
        problem = replace(problem, model=model_for(method, problem.model))
    return fk.Experiment(problem=problem, method=method, **settings | changes)

"""The personal model of a site, made where its state lies: it never leaves the site."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from fedkeel.core.round import init_server
from fedkeel.core.states import Damaged, from_arrays, read
from fedkeel.core.trees import Tree
from fedkeel.engines.flower.memory import state_file
from fedkeel.errors import FolderError, RequestError
from fedkeel.federation.apps import read_app
from fedkeel.federation.local_data import server_problem
from fedkeel.problems.module_state import copy_whole, replace_weights, write_state
from fedkeel.runs.client_model import ClientModels
from fedkeel.runs.prepare import method_of, task_maker


def load_personal_model(
    app: str | PathLike[str],
    client: int,
    state_dir: str | PathLike[str],
    weights: str | PathLike[str],
    *,
    trust: bool = False,
    counted: bool = True,
) -> nn.Module:
    """Load a client's whole model, in evaluation mode: the server's weights with the client's own state.

    `app` is the exported app, `state_dir` the node's folder of states, `weights` the server's model as `fedkeel export
    model` writes it. With `trust`, code that the app's files name is imported. The state is the one that the site
    reached when it last trained. A site does not know whether the server counted that report: where its audit log says
    that it was refused or absent, `counted=False` loads the state from before it, as the next round begins with.
    """
    experiment, _ = read_app(Path(app), trust)
    plan = experiment.plan
    task = task_maker(plan, torch.device("cpu"), torch.float32)(server_problem(plan, [2], ""))
    method = method_of(plan, task)
    if task.module is None:
        raise RequestError("this problem has no module.", "read the state's file itself")
    file = state_file(Path(state_dir).expanduser(), client, experiment.fingerprint())
    try:
        arrays, facts = read(file)
        state = from_arrays(arrays, facts["layouts"], "after/" if counted else "before/")
    except (Damaged, KeyError) as error:
        raise FolderError(
            f"{file} holds no state of this client in this experiment: {error}",
            "state-dir of supernode.sh is ~/.fedkeel/state-CLIENT; a method without client state has no personal model",
        ) from None
    try:
        given = load_file(weights)
    except (OSError, SafetensorError) as error:
        raise RequestError(f"{weights} cannot be read: {error}", "fedkeel export model RUN model.safetensors") from None
    params = Tree.of(replace_weights(given, task.initial.named()), task.initial.layout)
    own = None if task.buffers is None else task.buffers.named()
    buffers = None if own is None else Tree.of(replace_weights(given, own))
    params, buffers = ClientModels(plan, task, method, init_server(method, params, buffers), "received")(state)
    module = copy_whole(task.module).eval()
    found = {name: leaf for tree in (params, buffers) if tree is not None for name, leaf in tree.items()}
    write_state(module, found)
    return module

"""A site loads its personal model from the state beside its node and the server's weights."""

import pytest
import torch

pytest.importorskip("flwr", reason='needs flwr: pip install "fedkeel[flower]"')

from federations import InProcess
from safetensors.torch import save_file

import fedkeel as fk
from fedkeel.core.states import from_arrays, read
from fedkeel.engines.flower.checks import Terms
from fedkeel.errors import FolderError, RequestError
from fedkeel.federation import load_personal_model
from fedkeel.federation.apps import serve
from fedkeel.federation.export import export


def train(tmp_path, method):
    exp = fk.Experiment(
        dataset="digits", model="mlp", method=method, partition="iid:clients=3", rounds=2, participation=1.0, epochs=1
    )
    export(exp, tmp_path / "app")
    grid = InProcess(exp, folder=tmp_path / "state")
    run = serve(exp, grid, out=tmp_path / "run", terms=Terms(copy=False), wait=0.0)
    save_file({name: weight.contiguous() for name, weight in run.params.items()}, tmp_path / "model.safetensors")
    (file,) = (tmp_path / "state").glob("client-000001-*.safetensors")
    arrays, facts = read(file)
    return run, from_arrays(arrays, facts["layouts"], "after/")


def load(tmp_path, client=1, state="state", weights="model.safetensors", **how):
    return load_personal_model(tmp_path / "app", client, tmp_path / state, tmp_path / weights, **how)


def test_private_layers_are_the_sites_and_the_others_the_servers(tmp_path):
    run, state = train(tmp_path, "fedper")
    model = load(tmp_path)
    private = state["private"].named()
    assert private
    for name, weight in model.state_dict().items():
        wanted = private[name] if name in private else run.params[name]
        assert torch.equal(weight, wanted), name
    assert not model.training
    assert model(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


def test_a_second_model_that_never_leaves(tmp_path):
    _, state = train(tmp_path, "ditto")
    own = state["own"].named()
    assert all(torch.equal(weight, own[name]) for name, weight in load(tmp_path).state_dict().items())
    (file,) = (tmp_path / "state").glob("client-000001-*.safetensors")
    arrays, facts = read(file)
    before = from_arrays(arrays, facts["layouts"], "before/")["own"].named()
    loaded = load(tmp_path, counted=False).state_dict()  # the server did not count the last report
    assert all(torch.equal(weight, before[name]) for name, weight in loaded.items())
    assert not all(torch.equal(before[name], own[name]) for name in own)
    with pytest.raises(FolderError, match="holds no state of this client"):
        load(tmp_path, client=7)
    with pytest.raises(FolderError, match="holds no state of this client"):
        load(tmp_path, state="nowhere")
    with pytest.raises(RequestError, match="cannot be read"):
        load(tmp_path, weights="nothing.safetensors")

"""An exported network gives the predictions of the run's model, also where neither fedkeel nor PyTorch is."""

import numpy as np
import pytest
import torch
from torch.nn import functional

import fedkeel as fk
from fedkeel.errors import RequestError
from fedkeel.studies import onnx_file
from fedkeel.studies.onnx_file import write_onnx


def test_what_is_missing_is_named(fedkeel, trained, monkeypatch):
    monkeypatch.setattr(onnx_file, "find_spec", lambda name: None)
    trained("--method", "fedavg", "--out", "one")
    done = fedkeel("export", "model", "one", "model.onnx")
    assert done.code == 2
    assert "needs onnx and onnxscript" in done.err
    assert "fedkeel[onnx]" in done.err
    other = fedkeel("export", "model", "one", "model.pt")
    assert "model.safetensors or model.onnx" in other.err


class Net(torch.nn.Sequential):
    """Layers that behave otherwise while training."""

    def __init__(self):
        conv = torch.nn.Conv2d(1, 4, 3)
        super().__init__(
            conv, torch.nn.BatchNorm2d(4), torch.nn.Dropout(0.5), torch.nn.Flatten(), torch.nn.Linear(144, 3)
        )


class Looks(torch.nn.Linear):
    """A network whose way depends on values, which no file can hold."""

    def forward(self, images):
        flat = images.flatten(1)
        return super().forward(flat if flat.sum() > 0 else -flat)


@pytest.mark.slow
def test_predictions_are_those_of_the_runs_model(tmp_path):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    images, labels = torch.randn(30, 1, 8, 8), torch.randint(3, (30,))

    def train(network):
        clients = [(images[:15], labels[:15]), (images[15:], labels[15:])]
        problem = fk.Problem(model=network, loss=functional.cross_entropy, clients=clients, test=(images, labels))
        return fk.run(fk.Experiment(problem=problem, rounds=2, participation=1.0, epochs=1, batch_size=5, lr=0.1))

    run, file = train(Net()), tmp_path / "model.onnx"
    assert write_onnx(run, file) == ["input"]
    session = runtime.InferenceSession(str(file))
    for count in (1, 30):
        [found] = session.run(None, {"input": images[:count].numpy()})
        np.testing.assert_allclose(found, run.model()(images[:count]).detach().numpy(), rtol=1e-4, atol=1e-5)
    with pytest.raises(RequestError, match="PyTorch cannot export this network"):
        write_onnx(train(Looks(64, 3)), tmp_path / "none.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]

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


class Words(torch.nn.Module):
    """Means of a text's words up to its length: two inputs by name, in another order than fedkeel has them."""

    def __init__(self):
        super().__init__()
        self.embed, self.out = torch.nn.Embedding(20, 8), torch.nn.Linear(8, 3)

    def forward(self, x, lengths):
        inside = (torch.arange(x.shape[1]) < lengths[:, None]).float()
        return self.out((self.embed(x) * inside[..., None]).sum(1) / lengths[:, None])


class Spoken(Words):
    """The same as networks of `transformers` have it: inputs by any name, and an output with logits."""

    def forward(self, **inputs):
        return {"loss": None, "logits": super().forward(**inputs)}


class One(torch.nn.Linear):
    """A network that calls its only input otherwise than the data do."""

    def forward(self, anything):
        return super().forward(anything.float())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "names"), [(Words(), ["lengths", "x"]), (Spoken(), ["lengths", "x"]), (One(7, 3), ["x"])]
)
def test_inputs_with_names_keep_them(tmp_path, network, names):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    generator = torch.Generator().manual_seed(0)

    def draw(count):
        x = torch.randint(20, (count, 7), generator=generator)
        drawn = {"x": x, "lengths": torch.randint(1, 8, (count,), generator=generator)}
        return {name: drawn[name] for name in names} | {"labels": torch.randint(3, (count,), generator=generator)}

    problem = fk.Problem(
        model=network, loss=functional.cross_entropy, clients=[draw(15), draw(15)], test=draw(9), classes=3
    )
    asked = fk.Experiment(problem=problem, rounds=1, participation=1.0, epochs=1, batch_size=5, lr=0.01)
    run, file = fk.run(asked, engine="serial"), tmp_path / "model.onnx"
    assert write_onnx(run, file) == names
    session, module = runtime.InferenceSession(str(file)), run.model()
    assert [one.name for one in session.get_inputs()] == names
    for count in (1, 2, 30):
        inputs = {name: part for name, part in draw(count).items() if name in names}
        expected = module(inputs["x"]) if names == ["x"] else module(**inputs)
        expected = expected["logits"] if isinstance(expected, dict) else expected
        [found] = session.run(None, {name: part.numpy() for name, part in inputs.items()})
        np.testing.assert_allclose(found, expected.detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_clients_own_network_is_written(fedkeel, trained):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    (run,) = trained("--method", "fedper", "--model", "mlp", "--set", "participation=1.0")
    inputs, read = torch.randn(4, 1, 8, 8), fk.load_run(run["folder"])
    outputs = {}
    for more in ((), ("--client", "3")):
        assert fedkeel("export", "model", run["folder"], "m.onnx", *more).code == 0
        [outputs[more]] = runtime.InferenceSession("m.onnx").run(None, {"input": inputs.numpy()})
    expected = read.model(client=3)(inputs).detach().numpy()
    np.testing.assert_allclose(outputs["--client", "3"], expected, rtol=1e-4, atol=1e-5)
    assert np.abs(outputs[()] - expected).max() > 1e-3

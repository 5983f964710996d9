"""Models as points: which layer and tensor, one plane for several runs, samples, clusters of clients."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

import fedkeel as fk
from fedkeel.analysis.similarity import layer_features
from fedkeel.studies import embed
from fedkeel.studies.diagnose import analyse, cluster_clients, embed_together, read_diagnostics
from fedkeel.studies.embed import Points, gather_points, project
from fedkeel.studies.extent import Extent
from fedkeel.studies.subject import Subject
from problems import small_problem

SETTING = {"rounds": 1, "epochs": 1, "batch_size": 8, "lr": 0.1, "participation": 1.0}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two methods that perturb, on the same clients."""
    out, problem = tmp_path_factory.mktemp("embedded"), small_problem()
    methods = {"fedsam": {"name": "fedsam", "rho": 0.1}, "fedfft": {"name": "fedfft", "rho": 0.1, "ratio": 0.3}}
    return [
        fk.run(fk.Experiment(problem=problem, method=method, **SETTING), out=out / name, engine="serial")
        for name, method in methods.items()
    ]


def test_one_tensor_and_one_layer_are_taken(runs):
    subject = Subject(runs[0], clients=3, samples=40)
    names = list(runs[0].params)
    found = gather_points(subject, Extent(samples=40, tensor=names[0]))
    assert torch.equal(found["parameter"].rows, subject.updates[names[0]].flatten(1))
    assert torch.equal(found["perturbation"].rows, subject.perturbations[names[0]].flatten(1))
    inputs, labels = subject.test_samples(40)
    layers = layer_features(subject.model(subject.params), inputs)
    for layer, table in layers.items():
        rows = gather_points(subject, Extent(samples=40, layer=layer))["feature"].rows
        classes = sorted(set(labels.tolist()))
        assert torch.allclose(rows[-1], table[labels == classes[-1]].mean(0), atol=1e-6)  # the server's last class
    for wrong, known in (({"tensor": "0.weigth"}, names[0]), ({"layer": "nowhere"}, next(iter(layers)))):
        with pytest.raises(fk.RequestError, match=next(iter(wrong.values()))) as error:
            gather_points(subject, Extent(samples=40, **wrong))
        assert known in error.value.hint


@pytest.mark.slow
def test_a_shared_plane_is_that_of_all_rows_by_scikit_learn(runs):
    extent = Extent(clients=3, samples=40)
    together = embed_together(runs, extent)
    rows = [gather_points(Subject(run, clients=3, samples=40), extent) for run in runs]
    for kind in ("parameter", "perturbation", "feature"):
        table = np.concatenate([one[kind].rows.numpy() for one in rows]).astype(float)
        expected = PCA(2, svd_solver="full").fit_transform(table)
        points = np.concatenate([one["kinds"][kind]["pca"] for one in together])
        assert np.allclose(points, expected, atol=1e-6)
        planes = {one["kinds"][kind]["plane"] for one in together}
        assert len(planes) == 1
        alone = analyse(runs[0], ["embedding"], extent)["embedding"]["kinds"][kind]
        assert "plane" not in alone
        assert alone["spread"] == pytest.approx(together[0]["kinds"][kind]["spread"])  # of the rows, whatever the plane
    embed_together(runs, extent)
    assert all(read_diagnostics(run.path)["embedding"]["kinds"]["feature"]["plane"] for run in runs)


def test_the_seed_of_a_projection_is_that_of_t_sne_alone(monkeypatch):
    monkeypatch.setattr(embed, "tsne", lambda rows, of: np.full((len(rows), 2), of))
    points = Points(torch.randn(4, 4, generator=torch.Generator().manual_seed(0)), [""] * 4)
    first, other = (project([{"parameter": points}], seed)[0]["parameter"] for seed in (0, 1))
    assert first["pca"] == other["pca"]
    assert first["tsne"] != other["tsne"]


@pytest.mark.slow
def test_perturbations_without_low_frequencies_are_shorter_apart(runs):
    """A filter of two like runs takes energy away, so clients come closer: FedFFT's figure 4a as a number."""
    sam, fft = embed_together(runs, Extent(clients=3, samples=40))
    assert fft["kinds"]["perturbation"]["spread"] < sam["kinds"]["perturbation"]["spread"]


def test_samples_are_features_of_the_server_and_of_the_clients(runs):
    subject = Subject(runs[0], clients=3, samples=30)
    found = gather_points(subject, Extent(samples=30, each="sample"))
    inputs, labels = subject.test_samples(30)
    hidden = [*layer_features(subject.model(subject.params), inputs).values()][-2:][0]
    assert torch.equal(found["sample"].rows, hidden)
    assert found["sample"].classes == labels.tolist()
    mine = [*layer_features(subject.local_models[1], inputs[::3]).values()][-2:][0]
    assert torch.equal(found["client sample"].rows[10:20], mine)
    assert found["client sample"].names[10:20] == [f"client {subject.clients[1]}"] * 10
    assert found["client sample"].classes == labels[::3].tolist() * 3


def test_classes_without_an_output_on_which_the_loss_trains_are_drawn(small):
    """Ordered classes have an output less than there are of them; nobody knows an accuracy of those outputs."""

    def count_steps(output, target):
        above = (target[:, None] > torch.arange(output.shape[1])).to(output)
        return torch.nn.functional.binary_cross_entropy_with_logits(output, above, reduction="none").sum(1)

    outputs = small.model(small.test[0]).shape[1]
    parts = [(x, torch.arange(len(x)) % (outputs + 1)) for x, _ in (*small.clients, small.test)]
    problem = fk.Problem(model=small.model, loss=count_steps, clients=parts[:-1], test=parts[-1])
    subject = Subject(fk.run(fk.Experiment(problem=problem, **SETTING), engine="serial"), clients=3)
    assert {*gather_points(subject, Extent(each="sample"))["sample"].classes} == {*range(outputs + 1)}
    assert subject.accuracies() is None


@pytest.mark.parametrize("ignored", [-100, 255])
def test_samples_whose_target_is_ignored_are_of_no_class(small, ignored):
    """They change nothing: the same points come of a test set without them."""
    (x, y), loss = small.test, torch.nn.CrossEntropyLoss(ignore_index=ignored)
    left = torch.where(torch.arange(len(y)) % 3 == 0, ignored, y)

    def subject_of(*test):
        problem = fk.Problem(model=small.model, loss=loss, clients=small.clients, test=test)
        return Subject(fk.run(fk.Experiment(problem=problem, **SETTING), engine="serial"), clients=3)

    marked, without = subject_of(x, left), subject_of(x[left == y], y[left == y])
    found, expected = (gather_points(subject, Extent())["feature"] for subject in (marked, without))
    assert (found.names, found.classes) == (expected.names, expected.classes)
    assert torch.allclose(found.rows, expected.rows, atol=1e-6)
    each = Extent(each="sample")
    found, expected = (gather_points(subject, each) for subject in (marked, without))
    assert sorted(found["sample"].classes) == sorted(expected["sample"].classes)
    assert found["client sample"].rows.shape == expected["client sample"].rows.shape
    nothing = subject_of(x, torch.full_like(y, ignored))
    assert gather_points(nothing, Extent())["feature"].classes is None
    with pytest.raises(fk.RequestError, match="no classes"):
        gather_points(nothing, each)


def test_problems_without_classes_or_layers_say_what_they_lack(toy):
    run = fk.run(fk.Experiment(problem=toy, rounds=1, batch_size=1, participation=1.0))
    with pytest.raises(fk.RequestError, match="no layer") as error:
        analyse(run, ["embedding"], Extent(layer="fc"))
    assert "--tensor" in error.value.hint


def test_clusters_are_those_of_fedscams_own_rule(small):
    method = {"name": "fedscam", "clustering": True, "clusters": 2}
    run = fk.run(fk.Experiment(problem=small, method=method, **SETTING), engine="serial")
    subject = Subject(run, clients=4, samples=40)
    found = cluster_clients(subject, Extent(clients=4, samples=40))
    assert len(found["clusters"]) == len(subject.clients)
    assert len(set(found["clusters"])) == 2  # the method's own number
    asked = cluster_clients(subject, Extent(clients=4, samples=40, clusters=3))
    assert len(set(asked["clusters"])) == 3
    factors = subject.method.weights.opposition_factors({"delta": subject.updates})
    damped = [client for client, factor in zip(subject.clients, factors.tolist(), strict=True) if factor < 1]
    assert found["opposed"] == damped
    updates = subject.updates.buffer
    expected = torch.nn.functional.cosine_similarity(updates[:, None], updates, dim=-1)
    assert np.allclose(found["cosines"], expected, atol=1e-5)


@pytest.mark.slow
def test_the_command_embeds_several_runs_in_one_plane(fedkeel, tmp_path):
    small = ["run", "--dataset", "digits", "--model", "logistic", "--rounds", "1", "--method", "fedavg,fedsam"]
    assert fedkeel(*small, "--out", "two").code == 0
    done = fedkeel("analyse", "two", "--embedding", "--clusters", "--shared", "--clients", "4", "--samples", "40")
    assert done.code == 0, done.err
    paths = [Path("two", name, "0", "analysis", "embedding.json") for name in ("fedavg", "fedsam")]
    files = [json.loads(path.read_text()) for path in paths]
    assert len({one["kinds"]["parameter"]["plane"] for one in files}) == 1
    assert "silhouette of classes" in done.out
    assert "opposed in a cluster" in done.out
    wrong = fedkeel("analyse", "two", "--embedding", "--tensor", "fc.weigth")
    assert (wrong.code, "no tensor is called" in wrong.err) == (2, True)

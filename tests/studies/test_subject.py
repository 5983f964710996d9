"""A run put back on its data, and the files that `analyse` leaves in its folder."""

import json
import math

import numpy as np
import pytest
import torch

import fedkeel as fk
from fedkeel.analysis.curvature import gradient, loss_value
from fedkeel.analysis.filtered import by
from fedkeel.cli.analyse import list_facts
from fedkeel.studies.diagnose import DIAGNOSTICS, analyse, measure_landscape, read_diagnostics
from fedkeel.studies.embed import features_by_class, gather_samples
from fedkeel.studies.extent import Extent
from fedkeel.studies.subject import Subject

SMALL = Extent(clients=4, samples=60, lanczos_steps=6, probes=2, points=3, eigenvalues=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of a method that perturbs, filters and keeps state at clients."""
    out = tmp_path_factory.mktemp("runs") / "a"
    fk.run(fk.Experiment(dataset="digits", model="mlp", method="fedfft-d", rounds=2), out=out, engine="serial")
    return out


def test_the_gradient_of_a_client_is_the_gradient_of_its_mean_loss(toy):
    """f_i(w) = ½ Σ_j H_ij (w_j − b_ij)²: the gradient is H_i (w − b_i)."""
    run = fk.run(fk.Experiment(problem=toy, rounds=2, batch_size=1, participation=1.0, lr=0.1), dtype=torch.float64)
    subject = Subject(run)
    assert subject.clients == [0, 1, 2]
    for i, (curvature, centre) in enumerate(toy.clients):
        expected = curvature[0] * (run.params["w"] - centre[0])
        assert torch.allclose(subject.gradients["w"][i], expected, rtol=1e-12)
    mean = gradient(subject.loss, subject.params).buffer
    assert torch.allclose(mean, subject.gradients.mean().buffer, rtol=1e-12)


def test_what_clients_moved_is_not_what_they_sent_of_their_duals(small, tmp_path):
    """FedSpeed's clients send w_i − w_t + h_i; their dual gains exactly w_i − w_t."""
    exp = fk.Experiment(problem=small, method="fedspeed", rounds=3, participation=1.0, epochs=1, batch_size=4, lr=0.1)
    subject = Subject(fk.run(exp, out=tmp_path / "run", engine="serial", dtype=torch.float64))
    for row, before, outcome in zip(subject.updates.buffer, subject.states, subject.outcomes, strict=True):
        assert before["h_i"].norm() > 0
        assert torch.allclose(row, (outcome.state["h_i"] - before["h_i"]).buffer, rtol=1e-9, atol=1e-15)


def test_one_more_round_is_the_next_round_of_the_run(small):
    """With every client taking part, the mean update of the subject is the step that a longer run takes."""
    exp = fk.Experiment(problem=small, method="uniform", rounds=2, participation=1.0, epochs=1, batch_size=4, lr=0.1)
    two = fk.run(exp, dtype=torch.float64, keep_params=True)
    three = fk.run(exp.with_(rounds=3), dtype=torch.float64, keep_params=True)
    moved = Subject(two).updates.mean()
    for name in two.params:
        assert torch.allclose(three.params[name] - two.params[name], moved[name], rtol=1e-9, atol=1e-14)


@pytest.mark.slow
def test_states_of_clients_come_from_the_folder(folder):
    """FedDyn's duals: what a client would do next depends on what it remembers."""
    run = fk.load_run(folder)
    subject = Subject(run, clients=20)
    assert any(state is not None for state in subject.states)
    answered = {client for record in run.records for client in record.selected}
    known = {c for c, state in zip(subject.clients, subject.states, strict=True) if state is not None}
    assert known == answered & set(subject.clients)


def test_the_perturbations_are_the_methods_own(folder):
    subject = Subject(fk.load_run(folder), clients=3)
    expected = 0.1 * subject.gradients.unit()
    assert torch.allclose(subject.perturbations.buffer, by(fk.HighPass(0.01))(expected).buffer, atol=1e-7)


ONE_STEP = {"epochs": 1, "batch_size": 1, "participation": 1.0, "lr": 0.2, "weight_decay": 0.0, "clip": None}
UNIT = 2e-7  # `unit` divides by ‖v‖ + 1e-7


def test_the_perturbation_of_fedwmsam_points_along_the_clients_momentum(toy):
    """There is none in a first step. In memory clients have forgotten c_i: m_i = m + α / (1 − α) c, both along ḡ."""
    method = {"name": "fedwmsam", "alpha": 0.5, "rho": 0.3}
    run = fk.run(fk.Experiment(problem=toy, method=method, rounds=1, **ONE_STEP), dtype=torch.float64)
    subject = Subject(run)
    gradients = torch.stack([curvature[0] * (1 - centre[0]) for curvature, centre in toy.clients])  # at w = (1, 1)
    expected = 0.3 * gradients.mean(0) / gradients.mean(0).norm()
    assert torch.allclose(subject.perturbations.buffer, expected.expand(3, -1), rtol=UNIT)


def test_the_perturbation_of_fedscam_has_the_radius_it_trains_with(toy, tmp_path):
    """Not that of the pilot step, which is half as long."""
    method = {"name": "fedscam", "rho_max": 0.1, "alpha_rho": 0.5, "kappa": 0.0}
    exp = fk.Experiment(problem=toy, method=method, rounds=1, **ONE_STEP)
    run = fk.run(exp, out=tmp_path / "run", dtype=torch.float64, engine="serial")
    lengths = Subject(run).perturbations.norm()
    # what clients remember: ‖g_i(1, 1)‖ = 2, 2, √8
    assert lengths.tolist() == pytest.approx([0.1 / 2, 0.1 / 2, 0.1 / (1 + 2**0.5)], rel=UNIT)


def test_features_are_means_of_a_class_before_the_last_layer(small):
    run = fk.run(fk.Experiment(problem=small, rounds=1, epochs=1, batch_size=8, lr=0.1), engine="serial")
    subject = Subject(run, clients=2)
    points = features_by_class(subject, SMALL)
    x, y = small.test
    hidden = subject.model(subject.params)[0](x).detach()
    classes = sorted(set(y.tolist()))
    assert points.classes == classes * 3  # two clients and the server
    assert points.names[-1] == f"server, class {classes[-1]}"
    for row, c in zip(points.rows[-len(classes) :], classes, strict=True):
        assert torch.allclose(row, hidden[y == c].mean(0), atol=1e-6)


def test_parameters_in_a_plane_lie_as_far_apart_as_the_clients_models(small):
    """Two principal components of three clients keep every distance."""
    run = fk.run(fk.Experiment(problem=small, rounds=1, epochs=1, batch_size=8, lr=0.1), engine="serial")
    found = analyse(run, ["embedding"], Extent(clients=3, samples=40))["embedding"]["kinds"]["parameter"]
    updates = Subject(run, clients=3).updates.buffer.to(torch.float64)
    points = torch.tensor(found["pca"], dtype=torch.float64)
    assert torch.allclose(torch.cdist(points, points), torch.cdist(updates, updates), atol=1e-6)
    assert sum(found["explained"]) == pytest.approx(1)


@pytest.mark.slow
def test_every_diagnostic_is_written_and_read_back(folder):
    run = fk.load_run(folder)
    found = analyse(run, extent=SMALL)
    assert set(found) == set(DIAGNOSTICS)
    back = read_diagnostics(folder)
    assert back.keys() == found.keys()
    assert all(data["round"] == 2 for data in back.values())
    assert set(back["spectrum"]["kinds"]) == {"gradient", "perturbation", "update"}
    assert back["spectrum"]["ratio"] == 0.01  # the method's own filter
    assert set(back["embedding"]["kinds"]) == {"parameter", "perturbation", "feature"}
    assert np.shape(back["landscape"]["plane"]["values"]) == (3, 3)
    middle = back["landscape"]["plane"]["values"][1][1]
    subject = Subject(run, samples=SMALL.samples)
    assert middle == pytest.approx(loss_value(subject.loss, subject.params))
    assert np.shape(back["drift"]["cosines"]) == (4, 4)
    assert back["drift"]["accuracy_spread"]["least"] <= back["drift"]["accuracy_spread"]["mean"]
    assert set(back["cka"]["mean"]) == {"fc1", "fc2", "fc3"}
    for file in (folder / "analysis").iterdir():
        json.loads(file.read_text(), parse_constant=pytest.fail)  # no NaN: other programs read these files


def test_analysing_does_not_change_the_run(folder):
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and "analysis" not in path.parts}
    analyse(fk.load_run(folder), ["drift", "cka"], SMALL)
    assert before == {path: path.read_bytes() for path in before}


def test_eigenvectors_as_directions(folder):
    found = analyse(fk.load_run(folder), ["landscape"], Extent(samples=40, directions="eigen", points=3))
    assert found["landscape"]["plane"]["along"] == "top Hessian eigenvectors"


@pytest.mark.parametrize(
    "problem",
    [
        {"model": torch.nn.Linear(3, 1), "loss": torch.nn.L1Loss()},  # piecewise linear
        {"params": {"w": torch.zeros(())}, "loss": lambda params, batch: (params["w"] - batch[1][:, 0]).square()},
    ],
    ids=["no curvature", "one parameter"],
)
def test_a_loss_without_two_curved_directions_has_no_landscape_along_eigenvectors(problem):
    clients = [(torch.ones(4, 3) * i, torch.arange(4.0)[:, None]) for i in (1, 2)]
    run = fk.run(fk.Experiment(problem=fk.Problem(**problem, clients=clients), rounds=1), engine="serial")
    with pytest.raises(fk.RequestError, match="not curved") as error:
        analyse(run, ["landscape"], Extent(directions="eigen", points=3))
    assert "--directions random" in error.value.hint


def exact_hessian(module, x, y):
    """The dense Hessian of the mean loss on samples, by autograd through every parameter."""
    named = dict(module.named_parameters())
    shapes, sizes = {n: p.shape for n, p in named.items()}, [p.numel() for p in named.values()]

    def loss(flat):
        leaves = {n: v.view(shapes[n]) for n, v in zip(named, flat.split(sizes), strict=True)}
        return torch.nn.functional.cross_entropy(torch.func.functional_call(module, leaves, (x,)), y)

    return torch.autograd.functional.hessian(loss, torch.cat([p.detach().flatten() for p in named.values()]))


def test_eigenvalues_of_the_best_model_on_test_samples_are_those_of_the_exact_hessian(small, tmp_path):
    """FedFFT's figure 7: the best checkpoint, test samples, landscapes along its top two eigenvectors."""
    exp = fk.Experiment(problem=small, rounds=6, epochs=2, batch_size=4, lr=1.5, participation=0.5)
    keep = {"dtype": torch.float64, "engine": "serial", "callbacks": [fk.KeepBest()]}
    run = fk.run(exp, out=tmp_path / "run", **keep)
    best = int(np.argmax(run.curve("accuracy"))) + 1
    assert best < 6  # else best and last are the same
    extent = Extent(which="best", split="test", lanczos_steps=53, eigenvalues=3, points=3, directions="eigen")
    found = analyse(run, ["hessian", "landscape"], extent)
    x, y = small.test
    dense = exact_hessian(run.model("best").double(), x.double(), y)
    values, vectors = torch.linalg.eigh(dense)
    assert found["hessian"]["eigenvalues"] == pytest.approx(values.flip(0)[:3].tolist(), rel=1e-6)
    assert (found["hessian"]["round"], found["hessian"]["which"]) == (best, "best")
    assert found["hessian"]["split"] == "test"
    last = exact_hessian(run.model().double(), x.double(), y)
    assert float(torch.linalg.eigvalsh(last)[-1]) != pytest.approx(found["hessian"]["eigenvalues"][0], rel=1e-3)
    module, line = run.model("best").double(), found["landscape"]["line"]
    step = line["x"][-1] * vectors[:, -1]
    ends = []
    for sign in (-1, 1):
        moved = torch.nn.utils.parameters_to_vector(module.parameters()).detach() + sign * step
        other = run.model("best").double()
        torch.nn.utils.vector_to_parameters(moved, other.parameters())
        ends.append(float(torch.nn.functional.cross_entropy(other(x.double()), y).detach()))
    assert sorted((line["values"][0], line["values"][-1])) == pytest.approx(sorted(ends), rel=1e-6)  # of either sign


def test_a_model_or_samples_that_are_not_there_are_named(toy):
    run = fk.run(fk.Experiment(problem=toy, rounds=1, batch_size=1, participation=1.0))
    with pytest.raises(fk.RequestError, match="no best model") as error:
        analyse(run, ["drift"], Extent(which="best"))
    assert "--keep best" in error.value.hint
    with pytest.raises(fk.RequestError, match="no test samples"):
        analyse(run, ["hessian"], Extent(split="test"))


def test_unknown_names_are_refused_with_the_nearest(folder):
    with pytest.raises(fk.RequestError, match="spektrum") as error:
        analyse(fk.load_run(folder), ["spektrum"])
    assert "spectrum" in error.value.hint
    with pytest.raises(fk.RequestError, match="directions"):
        Extent(directions="eigenvector")


def test_a_problem_without_layers(toy):
    run = fk.run(fk.Experiment(problem=toy, rounds=1, batch_size=1, participation=1.0))
    found = analyse(run, ["spectrum", "drift", "hessian"], SMALL)
    # the mean Hessian is diag(4/3, 4/3)
    assert found["hessian"]["eigenvalues"] == pytest.approx([4 / 3] * len(found["hessian"]["eigenvalues"]), rel=1e-5)
    assert found["hessian"]["trace"] == pytest.approx(8 / 3, rel=1e-5)
    with pytest.raises(fk.RequestError, match="no module"):
        analyse(run, ["cka"], SMALL)


def test_what_does_not_apply_is_left_out_where_nothing_was_named(toy, caplog):
    run = fk.run(fk.Experiment(problem=toy, rounds=1, batch_size=1, participation=1.0))
    assert set(analyse(run, extent=SMALL)) == set(DIAGNOSTICS) - {"cka"}
    assert "cka is left out: this problem has no module" in caplog.text


def test_a_model_that_diverges_where_clients_train_on_is_analysed_as_far_as_it_can_be(caplog):
    """Each step multiplies w by 1 − lr: a round is finite, the next one is not."""
    far = torch.full((4, 1), 1.0)
    steep = fk.Problem(
        params={"w": torch.ones(2)}, loss=lambda p, x: 0.5 * (p["w"] ** 2).sum() + 0 * x.sum(), clients=[(far,)] * 3
    )
    run = fk.run(fk.Experiment(problem=steep, rounds=1, steps=2, batch_size=4, participation=1.0, lr=1e10))
    assert set(analyse(run, extent=SMALL)) == {"spectrum", "drift", "hessian", "landscape", "groups"}
    for name in ("embedding", "clusters"):
        assert f"{name} is left out: numbers that are not finite" in caplog.text


def test_one_client_is_analysed_without_a_comparison(small, caplog):
    alone = fk.Problem(model=small.model, loss=small.loss, clients=small.clients[:1], test=small.test)
    run = fk.run(fk.Experiment(problem=alone, rounds=1, batch_size=4, lr=0.1), engine="serial")
    assert {"drift", "hessian", "landscape"} <= set(analyse(run, extent=SMALL))
    assert "spectrum is left out: one client" in caplog.text
    with pytest.raises(fk.RequestError, match="one client alone"):
        analyse(run, ["spectrum"], SMALL)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--radius", "nan"], "radius of an analysis must be finite: nan"),
        (["--radius", "0"], "above 0: 0"),
        (["--rho", "nan"], "rho of an analysis must be finite: nan"),
        (["--points", "0"], "at least 1: 0"),
        (["--points", "4"], "at least 3: 4"),
    ],
)
def test_an_extent_that_makes_no_sense_is_refused_as_it_was_asked_for(fedkeel, words, told):
    done = fedkeel("analyse", "nowhere", *words)
    assert done.code == 2
    assert told in done.err.splitlines()[0]


def test_the_radius_is_the_one_asked_for(trained):
    (run,) = trained("--method", "fedavg", "--out", "here")
    subject = Subject(fk.load_run(run["folder"]), clients=2, samples=20)
    for radius, far in ((0.25, 0.25), (None, 1.0)):
        found = measure_landscape(subject, Extent(radius=radius, points=3))["line"]["x"]
        assert (found[0], found[-1]) == (-far, far)


def test_a_loss_that_is_no_mean_is_taken_of_all_samples_at_once():
    """With class weights it is Σ c_y l / Σ c_y, which is no mean of the losses of parts."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(3).repeat_interleave(100)
    x = torch.randn(300, 2, generator=generator, dtype=torch.float64) + y[:, None]
    loss = torch.nn.CrossEntropyLoss(weight=torch.tensor([1.0, 1.0, 50.0], dtype=torch.float64))
    torch.manual_seed(0)
    problem = fk.Problem(model=torch.nn.Linear(2, 3), loss=loss, clients=[(x, y)] * 2, test=(x, y))
    run = fk.run(fk.Experiment(problem=problem, rounds=1, lr=0.1), dtype=torch.float64, engine="serial")
    whole = run.curve("test_loss")[-1]
    subject = Subject(run)
    for parts in (subject.loss_of_split("test"), subject.loss_of(0), subject.loss):
        assert loss_value(parts, subject.params) == pytest.approx(whole, rel=1e-9)


# ---- what clients keep to themselves -------------------------------------------------------------------------------
FEW = {"batch_size": 4, "lr": 0.1, "participation": 1.0, "epochs": 1}


def accuracy_of(module, samples):
    with torch.no_grad():
        return float((module(samples[0]).argmax(1) == samples[1]).double().mean())


def test_clients_with_private_layers_are_looked_at_with_their_own(small, tmp_path):
    exp = fk.Experiment(problem=small, method="fedper", rounds=3, **FEW)
    run = fk.run(exp, out=tmp_path / "run", engine="serial")
    subject, found = Subject(run), analyse(run, ["drift"])["drift"]
    assert "notes" not in found
    for number, client in enumerate(subject.clients):
        own = subject.states[number]["private"]
        begun = subject.begin(number)[0]
        assert all(torch.equal(begun[name], own[name]) for name in own)
        slope = gradient(subject.loss_of(client), begun)
        assert torch.equal(subject.gradients.buffer[number], slope.buffer)
        expected = accuracy_of(subject.model(begun), small.clients[client])
        assert found["accuracies"][number] == pytest.approx(expected)
        moved = dict(subject.local_models[number].named_parameters())
        ended = subject.outcomes[number].state["private"]
        assert all(torch.equal(moved[name], ended[name]) for name in ended)
    with pytest.raises(fk.RequestError, match="never leave clients"):
        analyse(run, ["hessian"])
    with pytest.raises(fk.RequestError, match="layers of their own") as error:
        analyse(fk.run(exp, engine="serial"), ["drift"])  # nobody knows their layers
    assert "folder" in error.value.hint


def test_clients_that_keep_running_statistics_are_looked_at_with_their_own(small, tmp_path, caplog):
    torch.manual_seed(0)
    x = small.test[0]
    model = torch.nn.Sequential(torch.nn.Linear(x.shape[1], 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))
    clients = [(3 * inputs + 5, labels) for inputs, labels in small.clients if len(labels) > 4]
    problem = fk.Problem(model=model, loss=torch.nn.CrossEntropyLoss(), clients=clients, test=small.test)
    exp = fk.Experiment(problem=problem, buffers="keep", rounds=3, **FEW)
    run = fk.run(exp, out=tmp_path / "run", engine="serial")
    subject = Subject(run)
    accuracies = subject.accuracies()
    for number, client in enumerate(subject.clients):
        own = subject.states[number]["buffers"]
        assert not torch.equal(own["1.running_mean"], torch.zeros(4))
        expected = accuracy_of(subject.model(subject.params, own), clients[client])
        assert accuracies[number] == pytest.approx(expected)
        ended = subject.outcomes[number].state["buffers"]
        assert torch.equal(subject.local_models[number][1].running_mean, ended["1.running_mean"])
    found = analyse(run, ["drift", "hessian"], SMALL)
    assert "notes" not in found["drift"]
    assert "running statistics" in found["hessian"]["notes"][0]
    assert "running statistics" in caplog.text
    with pytest.raises(fk.RequestError, match="running statistics of their own"):
        analyse(fk.run(exp, engine="serial"), ["cka"])


def test_clients_whose_running_statistics_are_averaged_end_with_their_own(small):
    """Also where nobody keeps a folder: the averages are the server's, with which the next round begins."""
    torch.manual_seed(0)
    x = small.test[0]
    model = torch.nn.Sequential(torch.nn.Linear(x.shape[1], 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))
    clients = [(number + inputs, labels) for number, (inputs, labels) in enumerate(small.clients) if len(labels) > 4]
    problem = fk.Problem(model=model, loss=torch.nn.CrossEntropyLoss(), clients=clients, test=small.test)
    exp, seen = fk.Experiment(problem=problem, rounds=2, **FEW), []
    fk.run(exp.with_(rounds=3), track=lambda one: seen.append(one) or {}, engine="serial")
    subject, ended = Subject(fk.run(exp, engine="serial")), seen[-1].reports["buffers"]
    assert subject.clients == sorted(subject.clients) == seen[-1].probe.clients
    for number, made in enumerate(subject.local_models):
        assert torch.equal(made[1].running_mean, ended["1.running_mean"][number])
    assert not torch.equal(ended["1.running_mean"][0], ended["1.running_mean"][1])


@pytest.mark.parametrize("method", ["fedgloss", "fednsam@released"])
def test_clients_of_a_server_that_sends_a_moved_model_begin_there(small, method, tmp_path):
    """What the subject says of clients is what happens in the next round of a longer run."""
    seen, exact = [], {"dtype": torch.float64, "engine": "serial"}
    exp = fk.Experiment(problem=small, method=method, rounds=2, **FEW)
    fk.run(exp.with_(rounds=3), track=lambda one: seen.append(one) or {}, **exact)
    subject, last = Subject(fk.run(exp, out=tmp_path / "run", **exact)), seen[-1]
    sent, moves = last.message["params"], last.reports["delta"]
    assert float((sent - subject.params).norm()) > 1e-3
    accuracies = subject.accuracies()
    for number, client in enumerate(subject.clients):
        assert torch.equal(subject.begin(number)[0].buffer, sent.buffer)
        x, y = small.clients[client][0].double(), small.clients[client][1]
        begun, row = subject.model(sent), last.probe.clients.index(client)
        assert accuracies[number] == pytest.approx(accuracy_of(begun, (x, y)))
        torch.nn.functional.cross_entropy(begun(x), y).backward()
        for name, weight in begun.named_parameters():
            for found in (subject.gradients[name][number], last.probe.gradients[name][row]):
                assert torch.allclose(found, weight.grad, rtol=1e-9, atol=1e-12)
        for name, ended in subject.local_models[number].named_parameters():
            assert torch.allclose(ended, sent[name] + moves[name][row], rtol=1e-9, atol=1e-12)


def test_a_client_whose_targets_are_all_ignored_has_no_accuracy(small):
    """The summary is over the others; without others there is none."""

    def run_on(clients):
        problem = fk.Problem(model=small.model, loss=small.loss, clients=clients, test=small.test)
        return fk.run(fk.Experiment(problem=problem, rounds=1, **FEW), engine="serial")

    two = Subject(run_on(small.clients), clients=2).clients
    run = run_on([(x, torch.full_like(y, -100) if i in two else y) for i, (x, y) in enumerate(small.clients)])
    found, model = analyse(run, ["drift"])["drift"], Subject(run).model(run.server["params"])
    expected = [None if i in two else accuracy_of(model, small.clients[i]) for i in found["clients"]]
    assert found["accuracies"] == expected
    assert found["accuracy_spread"]["mean"] == pytest.approx(np.mean([one for one in expected if one is not None]))
    nobody = analyse(run, ["drift"], Extent(clients=2))["drift"]
    assert (nobody["accuracies"], nobody["accuracy_spread"]) == ([None, None], None)


def test_clients_whose_memory_is_not_kept_are_said_to_be_new(small, tmp_path):
    def notes_of(method, folder, **extent):
        exp = fk.Experiment(problem=small, method=method, rounds=2, **FEW)
        run = fk.run(exp, out=folder, engine="serial", callbacks=[KeepFirst()])
        return analyse(run, ["drift"], Extent(clients=2, **extent))["drift"].get("notes", [])

    class KeepFirst(fk.Callback):
        def round(self, at):
            if at.record.round == 1:
                at.keep("first", "loss", 0.0)

    assert notes_of("fedavg", None, which="first") == []
    assert notes_of("scaffold", tmp_path / "last") == []
    (told,) = notes_of("scaffold", None)
    assert told.startswith("clients are taken as new")
    assert notes_of("scaffold", tmp_path / "kept", which="first") == [
        told,
        "what the server sends beside this model is of the run's last round",
    ]


def test_common_test_samples_are_of_all_classes_of_a_sorted_test_set(small):
    x = small.test[0][:1].expand(900, -1)
    sorted_by_class = (x, torch.arange(3).repeat_interleave(300))
    problem = fk.Problem(model=small.model, loss=small.loss, clients=small.clients, test=sorted_by_class)
    run = fk.run(fk.Experiment(problem=problem, rounds=1, **FEW), engine="serial")
    subject = Subject(run)
    points = gather_samples(subject, Extent(samples=100))
    for kind, count in (("sample", 100), ("client sample", 16)):
        classes = points[kind].classes[:count]
        assert set(classes) == {0, 1, 2}, kind
    assert len(points["sample"].rows) == 100


def test_a_line_says_how_many_of_its_losses_are_not_finite():
    def told(*values):
        return dict(list_facts({"landscape": {"line": {"values": values}}}))["loss on the line"]

    assert told(2.0, 1.0, 3.0) == "1 to 3"
    for values in ((math.nan, 1.0, 3.0), (1.0, math.inf, 3.0), (3.0, 1.0, math.nan)):
        assert told(*values) == "1 to 3, not finite at 1 of 3 points"
    assert told(math.nan, math.nan) == "not finite at 2 of 2 points"

"""The digest of a problem: another one for whatever changes results, at a cost that does not grow with the data."""

import json
from collections import OrderedDict
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from for_each import for_each

import fedkeel as fk
import fedkeel.problems.problem
from fedkeel.errors import FedkeelError, FolderError
from problems import small_problem


def with_parts():
    problem = small_problem()
    return replace(problem, proxy=problem.clients[1], tests=[problem.clients[i] for i in (5, 4, 3, 2, 1, 0)])


def test_a_list_that_changes_afterwards_changes_no_problem():
    given, tests = list(small_problem().clients), list(small_problem().clients)
    problem = replace(small_problem(), clients=given, tests=tests)
    before = problem.digest()
    given[0] = given[1]
    given.append(given[2])
    tests.pop()
    assert problem.digest() == before
    assert problem.data.sizes.tolist() == problem.tests_of_clients.sizes.tolist() == [7, 12, 5, 1, 9, 16]


def test_dicts_and_lists_inside_that_change_afterwards_change_no_problem():
    """Parts of a client by name, numbers in lists, and parameters: none of them is the caller's own container."""
    named, listed, weights = {"x": [[1.0], [2.0]], "y": [0.5, 1.0]}, [[3.0], [4.0]], OrderedDict(w=torch.ones(1))
    problem = fk.Problem(
        params=weights,
        loss=lambda p, b: (b["x"] @ p["w"] - b["y"]) ** 2,
        clients=[named, {"x": listed, "y": [1.0, 2.0]}],
    )
    before = problem.digest()
    named["more"], weights["more"], listed[0][0] = [1, 2], torch.ones(1), 9.0
    named["y"].append(3.0)
    assert problem.digest() == before
    assert [*problem.params] == ["w"]


def touched(data):
    """The same shapes, one number changed, in the last row."""
    x, y = data
    x = x.clone()
    x[-1, -1] += 1
    return x, y


def test_it_is_the_same_for_the_same():
    assert with_parts().digest() == with_parts().digest()


@for_each(
    "change",
    [
        lambda p: replace(p, clients=[*p.clients[:-1], touched(p.clients[-1])]),
        lambda p: replace(p, test=touched(p.test)),
        lambda p: replace(p, tests=[*p.tests[:-1], touched(p.tests[-1])]),
        lambda p: replace(p, proxy=touched(p.proxy)),
        lambda p: replace(p, proxy=None),
        lambda p: replace(p, tests=None),
        lambda p: replace(p, test=None),
        lambda p: replace(p, clients=[p.clients[1], p.clients[0], *p.clients[2:]]),
        lambda p: replace(p, classes=4),
        lambda p: replace(p, head=("2.weight",)),
        lambda p: replace(p, loss=torch.nn.functional.cross_entropy),
        lambda p: replace(p, metrics={"accuracy": torch.eq}),
        lambda p: replace(p, model=torch.nn.Sequential(p.model[0], torch.nn.Tanh(), p.model[2])),  # the same weights
    ],
)
def test_whatever_changes_results_changes_it(change):
    problem = with_parts()
    assert change(problem).digest() != problem.digest()


class Many:
    """A hundred thousand clients of 50 rows, made when they are asked for; the last ones' differ by `shift`."""

    sizes = np.full(100_000, 50)

    def __init__(self, shift=0.0):
        self.shift, self.made = shift, 0

    def rows(self, client, rows):
        self.made += len(rows)
        x = torch.from_numpy(rows + client).float()[:, None].expand(-1, 6)
        return x + self.shift * (client >= 90_000), torch.zeros(len(rows), dtype=torch.int64)


def test_much_data_are_seen_in_part():
    problem, many = small_problem(), Many()
    whole = replace(problem, clients=many).digest()
    assert many.made == 256 * 50 + 2  # one tells how large rows are, another whether their parts have names
    assert replace(problem, clients=Many()).digest() == whole
    assert replace(problem, clients=Many(shift=1.0)).digest() != whole
    fewer = Many()
    fewer.sizes = np.append(Many.sizes[:-1], 49)
    assert replace(problem, clients=fewer).digest() != whole


def test_large_clients_are_seen_in_part(monkeypatch):
    monkeypatch.setattr(fedkeel.problems.problem, "SEEN_BYTES", 32 * 1000)
    problem, few = small_problem(), Many()
    few.sizes = np.array([400_000, 3, 0, 400_000])
    replace(problem, clients=few).digest()
    assert few.made == 333 + 3 + 333 + 2


def test_a_network_given_from_python_is_known_by_its_layers_and_weights(tmp_path):
    def experiment(*layers, rounds=1):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            made = [layer() for layer in layers]
        return fk.Experiment(dataset="digits", model=torch.nn.Sequential(*made), rounds=rounds, method="fedavg")

    flat, small, wide = torch.nn.Flatten, lambda: torch.nn.Linear(64, 10), lambda: torch.nn.Linear(64, 64)
    one = experiment(flat, small)
    assert one.fingerprint() == experiment(flat, small).fingerprint()
    others = [experiment(flat, wide, kind, small) for kind in (torch.nn.ReLU, torch.nn.Tanh)]
    assert len({e.fingerprint() for e in (one, *others)}) == 3
    fk.run(one, out=tmp_path / "a", engine="serial")
    with pytest.raises(FolderError, match="differs in: model"):
        fk.run(others[0], out=tmp_path / "a", engine="serial")
    assert fk.run(experiment(flat, small, rounds=2), out=tmp_path / "a", engine="serial").result["rounds"] == 2


# ---- what functions are made of ------------------------------------------------------------------------------------
class Focal(torch.nn.Module):
    """A loss of one's own, whose options are plain fields."""

    def __init__(self, gamma, *weights):
        super().__init__()
        self.gamma, self.weights, self.inner = gamma, torch.tensor(weights), torch.nn.CrossEntropyLoss(reduction="none")

    def forward(self, output, target):
        return self.weights[target] * self.inner(output, target) * self.gamma


class Scaled:
    """A loss that is neither a function nor a module."""

    def __init__(self, scale):
        self.scale, self.called, self.other = scale, "", object()

    def __call__(self, output, target):
        return self.scale * torch.nn.functional.cross_entropy(output, target, reduction="none")


def weighted(*weights, **options):
    return torch.nn.CrossEntropyLoss(weight=torch.tensor(weights), **options)


def smoothed(share):
    return partial(torch.nn.functional.cross_entropy, label_smoothing=share, weight=torch.ones(3))


OTHER_OPTIONS = [
    (lambda: weighted(1.0, 1.0, 1.0), lambda: weighted(1.0, 1.0, 50.0)),
    (lambda: weighted(1.0, 1.0, 1.0), lambda: weighted(1.0, 1.0, 1.0, label_smoothing=0.2)),
    (lambda: smoothed(0.0), lambda: smoothed(0.1)),
    (lambda: Focal(2.0, 1.0, 1.0, 1.0), lambda: Focal(3.0, 1.0, 1.0, 1.0)),
    (lambda: Focal(2.0, 1.0, 1.0, 1.0), lambda: Focal(2.0, 1.0, 1.0, 4.0)),
    (lambda: Scaled(1.0), lambda: Scaled(2.0)),
]


def with_loss(loss, rounds=1):
    return fk.Experiment(problem=replace(small_problem(), loss=loss), rounds=rounds, participation=0.5, lr=0.1)


@pytest.mark.parametrize(("before", "now"), OTHER_OPTIONS)
def test_another_weight_or_option_of_a_loss_is_another_experiment(before, now, tmp_path):
    fk.run(with_loss(before()), out=tmp_path, engine="serial")
    with pytest.raises(FolderError, match=r"another experiment \(it differs in: loss\)"):
        fk.run(with_loss(now()), out=tmp_path, engine="serial")
    with pytest.raises(FedkeelError, match=r"another problem \(it differs in: loss\)"):
        fk.load_run(tmp_path, problem=with_loss(now()).problem)
    assert fk.load_run(tmp_path, problem=with_loss(before()).problem).result["rounds"] == 1
    assert fk.run(with_loss(before(), 2), out=tmp_path, engine="serial").result["rounds"] == 2


@pytest.mark.parametrize(("before", "now"), OTHER_OPTIONS)
def test_the_folder_of_a_version_that_did_not_see_options_goes_on_and_sees_them_from_then_on(before, now, tmp_path):
    fk.run(with_loss(before()), out=tmp_path, engine="serial")
    assert with_loss(before()).fingerprint() == with_loss(now()).fingerprint()
    there = tmp_path / "environment.json"
    there.write_text(json.dumps({k: v for k, v in json.loads(there.read_text()).items() if k != "functions"}))
    fk.run(with_loss(now()), out=tmp_path, engine="serial")  # no round is made with it
    assert fk.run(with_loss(before(), 2), out=tmp_path, engine="serial").result["rounds"] == 2
    with pytest.raises(FolderError, match="differs in: loss"):
        fk.run(with_loss(now(), 3), out=tmp_path, engine="serial")


def test_functions_and_metrics_by_name_are_made_of_their_names():
    problem = replace(small_problem(), metrics=["ece", "iou"], loss=lambda output, target: output.mean())
    assert problem.made_of == {}

"""From words to experiments: values, precedence, and what is refused."""

import shlex
from pathlib import Path

import pytest
from for_each import for_each

from fedkeel.cli.settings import Request, guess_meaning, parse_assignment, parse_seeds, read_quick_start, read_request
from fedkeel.data.partition.dirichlet import Dirichlet
from fedkeel.errors import DataError, ExperimentError, MethodError, RequestError
from fedkeel.rules import AdamW, HighPass, Muon, Sam
from fedkeel.text import split_words
from fedkeel.written_values import parse_value


def asked(**request):
    return read_request(Request(**request))


def rules(one, kind):
    return [rule for rule in one.experiment.plan.method.rules if isinstance(rule, kind)]


@for_each(
    ("text", "value"),
    [
        ("0.05", 0.05),
        (".05", 0.05),
        ("1e-3", 1e-3),
        ("7", 7),
        ("true", True),
        ("[1, 5]", [1, 5]),
        ('"0.1"', "0.1"),
        ("bernoulli:0.1", "bernoulli:0.1"),
        ("1\nlr = 2", "1\nlr = 2"),
    ],
)
def test_values_are_toml_or_numbers_or_text(text, value):
    assert parse_value(text) == value
    assert type(parse_value(text)) is type(value)


def test_assignments_are_paths_with_values():
    assert parse_assignment("partition.alpha = 0.3") == (("partition", "alpha"), 0.3)
    assert parse_assignment("init=a=b") == (("init",), "a=b")


@for_each("text", ["lr", "=1", "method.=1", ""])
def test_assignments_without_a_key_or_value_are_refused(text):
    with pytest.raises(RequestError, match="--set needs key=value"):
        parse_assignment(text)


def test_lists():
    assert split_words(" a, b,,c ") == ["a", "b", "c"]
    assert parse_seeds("0,2") == (0, 2)
    with pytest.raises(RequestError, match="0,x"):
        parse_seeds("0,x")


# ---- where settings come from ----
def test_nothing_asked_for_is_the_quick_start():
    made = asked()
    assert [one.label for one in made] == ["fedavg", "fedsam", "feddyn", "fedsam-d", "fedfft-d", "specgradfilter"]
    first = made[0].experiment.plan
    assert first.division.dataset == "digits"
    assert (first.division.partition.alpha, first.division.partition.clients) == (0.1, 20)
    assert first.rounds == read_quick_start()["rounds"]


def test_a_method_alone_stays_on_the_quick_start():
    (one,) = asked(methods=("scaffold",))
    assert (one.experiment.dataset, one.experiment.plan.division.model) == ("digits", read_quick_start()["model"])


def test_a_data_set_alone_takes_its_preset():
    (one,) = asked(dataset="cifar10")
    assert (one.label, one.experiment.plan.division.model, one.experiment.plan.rounds) == ("fedavg", "resnet18-gn", 800)
    assert one.experiment.plan.clip == 10.0


def test_later_words_win(tmp_path):
    file = tmp_path / "e.toml"
    file.write_text('dataset = "digits"\nmethod = "fedprox"\nlr = 0.5\nrounds = 9\nseed = 4\n')
    (one,) = asked(file=file)
    assert (one.label, one.experiment.plan.lr, one.experiment.plan.rounds, one.experiment.seed) == (
        "fedprox",
        0.5,
        9,
        4,
    )
    (one,) = asked(file=file, rounds=3, methods=("fedavg",), assignments=("lr=0.25", "rounds=2"))
    assert (one.label, one.experiment.plan.lr, one.experiment.plan.rounds) == ("fedavg", 0.25, 2)


@pytest.mark.parametrize("key", ["seed", "seeds"])
def test_a_file_may_list_methods_and_seeds(tmp_path, key):
    file = tmp_path / "e.toml"
    file.write_text(f'dataset = "digits"\n{key} = [0, 1]\nmethod = ["fedavg", {{name = "fedsam", rho = 0.3}}]\n')
    made = asked(file=file)
    assert [(one.label, one.experiment.seed) for one in made] == [
        ("fedavg", 0), ("fedavg", 1), ("fedsam", 0), ("fedsam", 1),
    ]  # fmt: skip
    assert rules(made[2], Sam) == [Sam(0.3)]
    assert made[1].experiment.plan.partition_seed == 1
    assert [one.experiment.seed for one in asked(file=file, seeds=(3,))] == [3, 3]
    file.write_text('dataset = "digits"\nseed = 1\nseeds = [1, 2]\n')
    with pytest.raises(ExperimentError, match="both seed and seeds"):
        asked(file=file)


def test_the_same_method_twice_is_told_apart_by_its_settings(tmp_path):
    file = tmp_path / "e.toml"
    file.write_text('dataset = "digits"\nmethod = ["fedsam", {name = "fedsam", rho = 0.3}]\n')
    assert [one.label for one in asked(file=file)] == ["fedsam", "fedsam rho=0.3"]


def test_an_experiment_file_of_a_run_gives_the_same_experiment(tmp_path):
    import tomli_w

    (one,) = asked(methods=("fedfft-d",), assignments=("method.rho=0.2",))
    file = tmp_path / "experiment.toml"
    file.write_text(tomli_w.dumps(one.experiment.save()))
    (again,) = asked(file=file)
    assert again.experiment.save() == one.experiment.save()
    assert again.label == "fedfft-d"


# ---- optimisers ----
def test_an_optimiser_by_name_then_a_field_of_it(tmp_path):
    (one,) = asked(dataset="cifar10", assignments=("optimizer=adamw", "optimizer.beta1=0.8"))
    assert rules(one, AdamW) == [AdamW(0.8)]
    assert (one.label, one.experiment.plan.lr) == ("adamw+fedavg", 1e-3)
    file = tmp_path / "e.toml"
    file.write_text('dataset = "digits"\nlr = 0.5\n[optimizer]\nname = "muon"\nwithout = ["@head"]\n')
    (one,) = asked(file=file, assignments=("optimizer.steps=4",))
    assert rules(one, Muon) == [Muon(steps=4, without=("@head",))]
    assert one.experiment.plan.lr == 0.5


def test_the_rate_of_the_quick_start_is_none_of_another_optimiser():
    assert {one.experiment.plan.lr for one in asked(assignments=("optimizer=lion",))} == {3e-4}
    assert {one.experiment.plan.lr for one in asked(assignments=("optimizer=lion", "lr=0.1"))} == {0.1}


# ---- partitions ----
def test_one_field_of_the_partition_keeps_the_others():
    (one,) = asked(dataset="cifar10", assignments=("partition.alpha=0.3",))
    assert (one.experiment.plan.division.partition.alpha, one.experiment.plan.division.partition.clients) == (0.3, 100)


def test_a_partition_by_name_then_a_field_of_it():
    (one,) = asked(dataset="digits", partition="dirichlet:alpha=1,clients=7", assignments=("partition.clients=5",))
    assert isinstance(one.experiment.plan.division.partition, Dirichlet)
    assert (one.experiment.plan.division.partition.alpha, one.experiment.plan.division.partition.clients) == (1, 5)


def test_a_field_inside_a_partition():
    long_tail = "long-tail:imbalance=2,base=iid:clients=5"
    (one,) = asked(dataset="digits", partition=long_tail, assignments=("partition.base.clients=4",))
    assert one.experiment.plan.division.partition.clients == 4


# ---- methods ----
def test_a_hyperparameter_goes_to_the_methods_that_have_it(tmp_path):
    plain, sam, fft = asked(methods=("fedavg", "fedsam", "fedfft"), assignments=("method.rho=0.7", "method.ratio=0.2"))
    assert not rules(plain, Sam)
    assert rules(sam, Sam) == rules(fft, Sam) == [Sam(0.7)]
    assert rules(fft, HighPass)[0].ratio == 0.2
    file = tmp_path / "e.toml"
    file.write_text('dataset = "digits"\nmethod = {name = "fedsam", rho = 0.3}\n')
    assert [rules(one, Sam) for one in asked(file=file, assignments=("method.rho=0.7",))] == [[Sam(0.7)]]


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        (("fedsam",), "method fedsam has no hyper-parameter: rhu"),
        (("fedsam", "fedavg"), "none of these methods has a hyper-parameter: rhu"),
    ],
)
def test_a_hyperparameter_that_no_method_has_is_refused(methods, message):
    with pytest.raises(MethodError, match=message) as caught:
        asked(methods=methods, assignments=("method.rhu=1",))
    assert caught.value.hint == "did you mean 'rho'?"


def test_a_composition_has_no_hyperparameters(tmp_path):
    file = tmp_path / "e.toml"
    file.write_text('dataset = "digits"\n[method]\nname = "mine"\nperturb = [{rule = "Sam", rho = 0.2}]\n')
    (one,) = asked(file=file)
    assert rules(one, Sam) == [Sam(0.2)]
    with pytest.raises(MethodError, match="method mine has no hyper-parameter: rho"):
        asked(file=file, assignments=("method.rho=1",))


# ---- what is refused ----
@for_each(
    ("request_", "error", "hint"),
    [
        ({"methods": ("fedsm",)}, MethodError, "did you mean 'fedsam'?"),
        ({"dataset": "cifar11"}, DataError, "did you mean 'cifar10'?"),
        ({"assignments": ("epoch=1",)}, ExperimentError, "did you mean 'epochs'?"),
        ({"assignments": ("rho=1",)}, ExperimentError, "did you mean 'method.rho'?"),
        ({"assignments": ("alpha=1",), "methods": ("fedavg",)}, ExperimentError, "did you mean 'partition.alpha'?"),
        (
            {"assignments": ("momentum=0.9",), "methods": ("fedavg",)},
            ExperimentError,
            "it is a field of an optimizer (momentum, muon): optimizer.momentum",
        ),
        (
            {"assignments": ("warmup=3",)},
            ExperimentError,
            "it is a field of a schedule (constant, exponential, linear, cosine, step, cyclic): schedule.warmup",
        ),
        ({"assignments": ("metrics=f1",)}, ExperimentError, "it belongs to no experiment, but to a run: --metrics"),
        ({"dataset": "MNIST"}, DataError, "did you mean 'mnist'?"),
        ({"assignments": ("partition.alhpa=1",)}, ExperimentError, "did you mean 'alpha'?"),
        ({"assignments": ("partition.alpha.x=1",)}, ExperimentError, "for example --set partition.alpha=0.3"),
        (
            {"assignments": ("partition=5", "partition.alpha=1")},
            ExperimentError,
            "for example --set partition.alpha=0.3",
        ),
        (
            {"assignments": ("server.lr=1",)},
            ExperimentError,
            "the parts with fields are method, partition, epochs, evaluation, optimizer, schedule, server_schedule",
        ),
        ({"methods": ("fedavg", "fedavg")}, RequestError, "name each method and seed once"),
        ({"seeds": (1, 1), "methods": ("fedavg",)}, RequestError, "name each method and seed once"),
    ],
)
def test_wrong_words_are_named_with_the_nearest_right_one(request_, error, hint):
    with pytest.raises(error) as caught:
        asked(**request_)
    assert caught.value.hint == hint
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr = ", "is not TOML"),
        ("lr = 0.1", "names no data set"),
        ('dataset = "digits"\nlearning_rate = 1', "has no key: learning_rate"),
    ],
)
def test_wrong_files_are_refused(tmp_path, text, message):
    file = tmp_path / "e.toml"
    file.write_text(text)
    with pytest.raises(RequestError, match=message):
        asked(file=file)


def test_a_file_may_begin_with_the_mark_that_editors_of_windows_write(tmp_path):
    file = tmp_path / "e.toml"
    file.write_text('dataset = "digits"\nrounds = 7', encoding="utf-8-sig")
    assert [one.experiment.plan.rounds for one in asked(file=file)] == [7]


def test_words_in_the_place_of_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "experiment.toml").touch()
    for word, hint in (
        ("fedsam", "--method fedsam"), ("digits", "--dataset digits"), ("old", "fedkeel resume old"), ("x", "a .toml"),
    ):  # fmt: skip
        with pytest.raises(RequestError) as caught:
            asked(file=tmp_path.__class__(word))
        assert hint in caught.value.hint


def test_plugins_take_the_hyperparameters_of_both_parts():
    (one,) = asked(methods=("specgradfilter+fedsam",), assignments=("method.ratio=0.2", "method.rho=0.7"))
    assert one.label == "specgradfilter+fedsam"
    assert rules(one, Sam) == [Sam(0.7)]
    assert rules(one, HighPass)[0].ratio == 0.2


def test_a_field_of_the_evaluation():
    (one,) = asked(methods=("fedper",), assignments=("evaluation.model=local", "evaluation.clients=selected"))
    assert (one.experiment.plan.evaluation.model, one.experiment.plan.evaluation.clients) == ("local", "selected")
    with pytest.raises(ExperimentError):
        asked(methods=("fedper",), assignments=("evaluation.modle=local",))


def test_a_folder_inside_a_command_is_quoted(tmp_path):
    folder = tmp_path / "my runs"
    folder.mkdir()
    (folder / "experiment.toml").touch()
    command = guess_meaning(str(folder)).split("`")[1]
    assert shlex.split(command) == ["fedkeel", "resume", str(folder)]


@pytest.mark.parametrize(
    "request_",
    [Request(methods=("fedavg",), assignments=("method=fedsam",)), Request(seeds=(0,), assignments=("seed=1",))],
)
def test_a_method_or_seed_given_twice_is_refused(request_):
    with pytest.raises(RequestError, match="given twice: --"):
        read_request(request_)


@pytest.mark.parametrize("word", ["method", "seed"])
def test_a_list_of_nothing_is_refused(fedkeel, word):
    Path("e.toml").write_text(f'dataset = "digits"\n{word} = []\n')
    done = fedkeel("run", "e.toml")
    assert done.code == 2
    assert f"{word} is an empty list" in done.err


def test_a_range_of_seeds():
    assert parse_seeds("0-4") == (0, 1, 2, 3, 4)
    assert parse_seeds("7,1-2") == (7, 1, 2)
    assert parse_seeds("-3") == (-3,)
    for text in ("4-0", "0-99999999999", "1-", "a-b", "0,0", "1,0-2"):
        with pytest.raises(RequestError, match="seeds"):
            parse_seeds(text)

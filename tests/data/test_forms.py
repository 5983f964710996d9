"""Data as they come: every form trains as the tensors that it holds, and what is no form is refused in one line."""

from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import fedkeel as fk
from fedkeel.data.csv_files import FIRST, NAMES, ONCE, SEMICOLONS, TABS
from fedkeel.problems.personal_data import with_own_tests
from problems import small_problem

pandas = pytest.importorskip("pandas")


class Mapped(Dataset):
    """A data set that only knows how to give one sample."""

    def __init__(self, data, form=tuple):
        self.data, self.form = data, form

    def __len__(self):
        return len(self.data[1])

    def __getitem__(self, i):
        if i >= len(self):
            raise IndexError
        x, y = self.data[0][i], int(self.data[1][i])
        return {"pixels": x.numpy(), "label": y} if self.form is dict else (x, y)


def frame(data, label="label"):
    x, y = data
    return pandas.DataFrame({f"x{i}": x[:, i].numpy() for i in range(x.shape[1])} | {label: y.numpy()})


FORMS = {
    "a list of samples": lambda data: list(zip(*data, strict=True)),
    "a list of dicts": lambda data: [{"x": x, "y": y} for x, y in zip(*data, strict=True)],
    "inputs by name": lambda data: [({"x": x}, y) for x, y in zip(*data, strict=True)],
    "lists of numbers": lambda data: [(x.tolist(), int(y)) for x, y in zip(*data, strict=True)],
    "TensorDataset": lambda data: TensorDataset(*data),
    "DataLoader": lambda data: DataLoader(TensorDataset(*data), batch_size=3, shuffle=True),
    "Subset": lambda data: Subset(TensorDataset(*data), range(len(data[1]))),
    "a map-style Dataset": Mapped,
    "one of dicts": lambda data: Mapped(data, dict),
    "a DataFrame": frame,
    "arrays": lambda data: tuple(part.numpy() for part in data),
}


def in_float32(problem):
    return replace(problem, clients=[(x.float(), y) for x, y in problem.clients],
                   test=(problem.test[0].float(), problem.test[1]), model=problem.model.float())  # fmt: skip


def trained(problem, engine="serial"):
    settings = dict(method="fedavg", rounds=2, participation=1.0, epochs=1, batch_size=4, lr=0.05)
    return fk.run(fk.Experiment(problem=problem, **settings), engine=engine)


@pytest.fixture(scope="module")
def small():
    return in_float32(small_problem(sizes=(7, 12, 5)))


def test_every_form_trains_as_its_tensors_do(small):
    expected = trained(small).result["model_digest"]
    for name, form in FORMS.items():
        given = replace(small, clients=[form(client) for client in small.clients], test=form(small.test))
        assert trained(given).result["model_digest"] == expected, name


def test_a_form_is_read_once_and_then_stays(small):
    given = replace(small, clients=[Mapped(client) for client in small.clients], tests=[frame(small.test)] * 3)
    again = replace(given, name="again")
    assert all(one is other for one, other in zip(again.clients, given.clients, strict=True))
    assert again.digest() == given.digest() == replace(small, tests=[small.test] * 3).digest()


def test_a_folder_of_tables_is_a_problem(small, tmp_path):
    expected = trained(small).result["model_digest"]
    for kind in ("csv", "parquet"):
        folder = tmp_path / kind
        folder.mkdir()
        (folder / "notes.txt").write_text("no table")
        (folder / ".trash").mkdir()
        for left_behind in ("._a.csv", "~a.csv", ".trash/a.csv"):  # by macOS, by an office program
            (folder / left_behind).write_text("a,b,label\n1,2,0\n")
        for name, data in zip(("a", "b", "c", "test"), (*small.clients, small.test), strict=True):
            table = frame(data, "diagnosis")
            if name == "b" and kind == "csv":  # a client may have several files
                (folder / "b").mkdir()
                table[:3].to_csv(folder / "b" / "0.csv", index=False)
                table[3:].to_csv(folder / "b" / "1.csv", index=False)
            elif kind == "csv":
                table.to_csv(folder / f"{name}.csv", index=False)
            else:
                pytest.importorskip("pyarrow")
                table.to_parquet(folder / f"{name}.parquet")
        for place in (folder, str(folder)):
            given = replace(small, clients=place, test=None, label="diagnosis")
            assert [len(y) for _, y in given.clients] == [len(y) for _, y in small.clients]
            assert torch.equal(given.test[1], small.test[1])
        if kind == "parquet":  # a CSV file rounds
            assert trained(given).result["model_digest"] == expected
    named = replace(small, clients=small.clients, test=tmp_path / "parquet" / "test.parquet", label="diagnosis")
    assert torch.equal(named.test[0], small.test[0])


def test_a_table_that_is_not_read_is_named(small, tmp_path):
    """And `Test.csv` is the test set in capital letters, too."""
    frame(small.clients[0]).to_csv(tmp_path / "berlin.csv", index=False)
    frame(small.test).to_csv(tmp_path / "Test.CSV", index=False)
    (tmp_path / "lyon").mkdir()
    given = replace(small, clients=tmp_path, test=None)
    assert (len(given.clients), len(given.test[1])) == (1, len(small.test[1]))
    for name in ("lyon.csv.gz", "oslo.tsv", "rome.XLSX", "lyon/2024.parquet.gz", "lyon/2024/may.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
        with pytest.raises(fk.DataError, match="would not be read: ") as error:
            replace(small, clients=tmp_path, test=None)
        assert error.value.message.endswith(f"{name}.")
        (tmp_path / name).unlink()
    for name in (".trash/2024/may.csv", "bonn/may.parquet/part.parquet"):  # hidden, or one table in many files
        (tmp_path / name).parent.mkdir(parents=True)
        frame(small.clients[1]).to_parquet(tmp_path / name)
    assert [len(y) for _, y in replace(small, clients=tmp_path, test=None).clients] == [
        len(y) for _, y in small.clients[:2]
    ]


def test_columns_of_pandas_are_read_in_their_order(small):
    """Not by the names of their rows, which a shuffled table has in disorder."""
    table = frame(small.test).sample(frac=1, random_state=1)[3:9]
    x, y = table.drop(columns="label"), table["label"]
    arrays = np.array(x), np.array(y)
    expected = replace(small, clients=[arrays], test=arrays).digest()
    for form in ((x, y), (arrays[0], y)):
        assert replace(small, clients=[form], test=form).digest() == expected
    named = replace(small, clients=[{"x": x, "y": y}], test=None).data.rows(0, np.arange(6))
    assert all(np.array_equal(*pair) for pair in zip(named, arrays, strict=True))


@pytest.mark.parametrize("other", ["label", "targets", "target", "y"])
@pytest.mark.parametrize("label", ["labels", "label", "targets", "target", "y", "cost"])
def test_the_part_that_is_named_is_the_target(small, label, other):
    """Also beside a part that is called as targets are: that one is an input."""
    if other == label:
        return
    given = {"x": torch.ones(9, 6), other: torch.zeros(9), label: torch.arange(9)}
    problem = replace(small, clients=[given], test=None, label=label)
    assert torch.equal(problem.data.rows(0, np.arange(9))[-1], torch.arange(9))
    assert problem.names[:-1] == (*sorted((other, "x")),)
    aside = with_own_tests(problem, 0.3, 0)
    kept, tests = (data.rows(0, np.arange(data.sizes[0]))[-1] for data in (aside.data, aside.tests_of_clients))
    assert (len(tests), sorted([*kept.tolist(), *tests.tolist()])) == (2, list(range(9)))


def test_words_are_the_same_classes_for_all(small):
    words = np.array(["well", "ill", "cured"])
    tables = [frame((x, y)).assign(label=words[y.numpy()]) for x, y in small.clients]
    only = tables[0][tables[0].label == "well"]
    given = replace(small, clients=[only, *tables], test=tables[1])
    assert given.clients[0][1].unique().tolist() == [2]
    assert torch.equal(given.clients[1][1], places(tables[0].label))
    assert torch.equal(given.test[1], places(tables[1].label))


def test_a_word_of_the_test_set_alone_is_named_and_moves_no_class(small, caplog):
    words = np.array(["well", "ill", "cured"])
    clients = [frame((x, y)).assign(label=words[y.numpy()]) for x, y in small.clients]
    test = frame(small.test).assign(label="Ill")
    plain, given = (replace(small, clients=clients, test=one, tests=[clients[0]] * 3) for one in (clients[0], test))
    assert all(torch.equal(a[1], b[1]) for a, b in zip(plain.clients, given.clients, strict=True))
    assert given.test[1].unique().tolist() == [3]
    told = [record.message for record in caplog.records]
    assert told == ["no client trains on labels that the test data hold: Ill; are labels written alike?"]


@pytest.mark.parametrize("part", ["clients", "test", "tests", "proxy"])
def test_words_beside_numbers_that_are_no_table_are_refused(small, part):
    """The first word of the alphabet is not the class 0 of somebody's tensors."""
    words = frame(small.clients[0]).assign(label="ill")
    given = {"clients": [words, *small.clients[1:]], "test": words, "tests": [words] * 3, "proxy": words}
    with pytest.raises(fk.DataError, match="labels of a table are words, and other data of the problem are no tables"):
        replace(small, **{part: given[part]})


def test_numbers_beside_words_are_words(small):
    """As they are in one file of all clients: "3+" makes words of 1 and 2."""
    tables = [frame(small.test)[: len(labels)].assign(label=labels) for labels in ([1, 2, 1], ["3+", "2"], [2.0, 1.0])]
    given = replace(small, clients=tables, test=tables[0])
    assert [y.tolist() for _, y in given.clients] == [[0, 1, 0], [2, 1], [1, 0]]


@pytest.mark.parametrize(
    "columns",
    [
        (["007", "008"], ["007", "N10"], ["7"]),
        (["TRUE", "FALSE"], ["TRUE", "unknown"]),
        (["1.0", "2.0"], ["1.0", "x"], ["2", "1"]),
        (["1.50", "2.5"], ["1.50", "x"]),
    ],
)
@pytest.mark.parametrize("parts", [False, True])
def test_labels_of_files_are_the_classes_of_one_file(small, tmp_path, columns, parts):
    """A file of numbers beside a file of words, of other clients or of one, is read as it is written."""
    for place, labels in enumerate(columns):
        file = tmp_path / ("all" if parts else "") / f"{place}.csv"
        file.parent.mkdir(exist_ok=True)
        file.write_text("x,label\n" + "".join(f"1,{label}\n" for label in labels))
    whole = [label.removesuffix(".0") for labels in columns for label in labels]
    given = replace(small, clients=tmp_path, test=None)
    assert torch.cat([y for _, y in given.clients]).tolist() == [sorted({*whole}).index(word) for word in whole]


@pytest.mark.parametrize("form", ["csv", "object", "category"])
def test_spaces_at_the_ends_of_labels_make_no_class(small, tmp_path, form):
    def client(labels, file=tmp_path / "a.csv"):
        file.write_text("x,label\n" + "".join(f"1,{label}\n" for label in labels))
        kind = None if form == "csv" else form
        return file if kind is None else pandas.DataFrame({"x": 1.0, "label": pandas.Series(labels).astype(kind)})

    given = replace(small, clients=[client(["well", "ill ", " ill", "ill", "2 ", "2.0"])], test=None)
    assert given.clients[0][1].tolist() == [2, 1, 1, 1, 0, 0]
    with pytest.raises(fk.DataError, match=r"column label of .* is empty in 2 of 3 rows\.\n"):
        replace(small, clients=[client(["well", " ", "\t "])], test=None)


@pytest.mark.parametrize("kind", ["object", "category", "Int64"])
def test_whole_numbers_are_classes_of_their_own_number_in_every_type(small, kind):
    numbers = [0, 1, 2, 10, 11, 9]
    table = pandas.DataFrame({"x": 1.0, "label": pandas.Series(numbers).astype(kind)})
    assert replace(small, clients=[table], test=None).clients[0][1].tolist() == numbers


def test_named_columns_alone_are_inputs_in_their_order(small):
    table, other = frame(small.clients[0]), frame(small.test).assign(note="left out")
    made = fk.Problem(small.loss, [table], small.model, test=other, columns=["x2", "x0"])
    assert made.columns == ("x2", "x0")
    assert torch.equal(made.clients[0][0], small.clients[0][0][:, [2, 0]])
    assert torch.equal(made.test[0], small.test[0][:, [2, 0]])
    assert replace(made, name="again").columns == made.columns
    assert fk.Problem(small.loss, [table], small.model).columns == tuple(f"x{i}" for i in range(table.shape[1] - 1))
    assert small.columns is None


def test_columns_may_have_numbers_for_names(small):
    table = pandas.DataFrame([[1.5, 2.5, 0], [3.5, 4.5, 1]])
    by_number, by_word = (replace(small, clients=[table], test=None, label=name) for name in (2, "2"))
    assert torch.equal(by_number.clients[0][1], by_word.clients[0][1])


@pytest.mark.parametrize("form", [lambda x, y: (x, y), lambda x, y: list(zip(x, y, strict=True))])
def test_values_behind_a_mask_are_refused(small, form):
    x = np.ma.masked_equal(np.ones((4, 6)), 7.0)
    assert replace(small, clients=[form(x, np.arange(4))], test=None).data.sizes.tolist() == [4]
    x[1, 2] = np.ma.masked
    with pytest.raises(fk.DataError, match="client 0 has values behind a mask"):
        _ = replace(small, clients=[form(x, np.arange(4))], test=None).data


def test_targets_that_are_fractions_in_one_table_are_fractions_in_all(small):
    """Also where another holds whole numbers by chance, and one none at all."""
    tables = [frame(small.test).assign(label=value) for value in (0.5, 2, True)]
    given = replace(small, clients=[*tables, tables[0][:0]], test=tables[1])
    assert {(y.dtype, y.shape[1:]) for _, y in (*given.clients, given.test)} == {(torch.float32, (1,))}
    whole = replace(small, clients=[tables[1], tables[0][:0]], test=None)
    assert [y.dtype for _, y in whole.clients] == [torch.int64] * 2


def places(words):
    return torch.tensor([["cured", "ill", "well"].index(word) for word in words])


@pytest.mark.parametrize("cells", [[0.5, 2.0], [0.5, 2], [Decimal("0.5"), Decimal(2)], [Decimal("0.5"), 2]])
def test_fractions_that_are_objects_are_no_words(small, cells):
    """As prices of a data base are."""
    table = pandas.DataFrame({"x": [1.0, 2.0], "label": objects(cells)})
    assert replace(small, clients=[table], test=None).clients[0][1].tolist() == [[0.5], [2.0]]
    with_none = table.assign(label=objects([cells[0], None]))
    with pytest.raises(fk.DataError, match="column label of client 0 is empty in 1 of 2 rows"):
        replace(small, clients=[with_none], test=None)


def objects(cells):
    return pandas.Series(cells, dtype=object)


@pytest.mark.parametrize("label", [{"a", "b"}, ["a", "a"]])
def test_several_labels_have_an_order_and_differ(small, label):
    table = pandas.DataFrame({"x": [1.0], "a": [0.0], "b": [1.0]})
    with pytest.raises(fk.DataError, match="label= names columns in no order, or one of them twice"):
        replace(small, clients=[table], test=None, label=label)


def test_a_client_is_there_once_in_a_folder(small, tmp_path, caplog):
    """The same table in two forms would be two clients with the same samples."""
    (tmp_path / "a.csv").write_text("x,label\n1,0\n2,1\n")
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "b.csv").write_text("x,label\n3,0\n")
    assert replace(small, clients=tmp_path, test=None).test[0].tolist() == [[3.0]]
    given = replace(small, clients=tmp_path, test=(torch.ones(1, 1), torch.ones(1).long()))
    assert (given.test[0].tolist(), len(given.clients)) == ([[1.0]], 1)
    assert "test is not read: test= gives another test set" in caplog.text
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "c.csv").write_text("x,label\n1,0\n2,1\n")
    with pytest.raises(fk.DataError, match=r"holds more than one table of client a: a, a\.csv"):
        replace(small, clients=tmp_path, test=None)


def test_fractions_and_several_labels_are_columns(small):
    x, _ = small.test
    table = frame(small.test).assign(a=x[:, 0].numpy() > 0, b=1.5)
    given = replace(small, clients=[table], test=None, label="b")
    assert given.clients[0][1].shape == (len(x), 1)
    assert given.clients[0][0].shape == (len(x), 8)
    several = replace(small, clients=[table], test=None, label=["a", "b"])
    assert several.clients[0][1].dtype == torch.float32
    assert torch.equal(several.clients[0][1][:, 0] > 0, x[:, 0] > 0)
    shuffled = replace(small, clients=[table, table[list(reversed(table.columns))]], test=None, label="b")
    assert torch.equal(*(x for x, _ in shuffled.clients))


class Every(torch.utils.data.Sampler):
    """A sampler of one's own: every second row, or round and round for ever."""

    def __init__(self, size, ends=True):
        self.size, self.ends = size, ends

    def __iter__(self):
        yield from range(self.size - 1, -1, -2)
        while not self.ends:
            yield from range(self.size)


def test_the_sampler_of_a_loader_says_which_rows_are_its_clients(small):
    x, y = small.test
    whole = TensorDataset(x, y)
    parts = torch.randperm(len(y)).split(len(y) // 3)
    before = torch.random.get_rng_state()
    loaders = [DataLoader(whole, batch_size=2, sampler=SubsetRandomSampler(part.tolist())) for part in parts]
    loaders.append(DataLoader(whole, sampler=Every(len(y))))
    given = replace(small, clients=loaders, test=loaders[0])
    assert torch.equal(before, torch.random.get_rng_state())
    expected = [part.sort().values for part in parts] + [torch.tensor(sorted(Every(len(y))))]
    for rows, client in zip(expected, given.clients, strict=True):
        assert torch.equal(client[0], x[rows])
        assert torch.equal(client[1], y[rows])
    assert torch.equal(given.test[1], y[expected[0]])


def test_what_a_loader_does_and_a_run_would_not_is_refused(small):
    whole = TensorDataset(*small.test)
    size, twice = len(whole), [0, 1, 1]
    lost = {
        "draws other samples": [
            dict(sampler=WeightedRandomSampler([1.0] * size, size, replacement=False)),
            dict(sampler=RandomSampler(whole, replacement=True)),
            dict(sampler=RandomSampler(whole, num_samples=2)),
            dict(sampler=SubsetRandomSampler(twice)),
            dict(sampler=Every(size, ends=False)),
        ],
        "has a batch sampler of its own": [dict(batch_sampler=BatchSampler(SequentialSampler(whole), 2, False))],
        "(collate_fn)": [dict(collate_fn=lambda samples: samples)],
    }
    for line, cases in lost.items():
        for options in cases:
            with pytest.raises(fk.DataError) as error:
                replace(small, clients=[small.test, DataLoader(whole, **options)])
            assert line in error.value.message
            assert "client 1" in error.value.message
            assert error.value.hint


class Stream(IterableDataset):
    def __iter__(self):
        yield torch.ones(6), 0


def refused():
    x, y = torch.ones(4, 6), torch.zeros(4, dtype=torch.int64)
    table = frame((x, y))
    return {
        "client 0 is of type Stream; expected: tensors or arrays (x, y)": dict(clients=[Stream()]),
        "client 1 is of type int; expected": dict(clients=[(x, y), 3]),
        "client 0 is of type generator; expected": dict(clients=[(one for one in "ab")]),
        "not one DataFrame": dict(clients=table),
        "not one Tensor": dict(clients=x),
        "client 0 has no samples": dict(clients=[Mapped((x[:0], y[:0]))]),
        "of one shape|stack expects each tensor to be equal size": dict(clients=[[(x[0], 0), (x[0, :2], 1)]]),
        "part text of the samples of client 0 holds no numbers": dict(clients=[[{"text": "a", "y": 0}]]),
        "client 0 has no label column; its columns are: x0": dict(clients=[table.drop(columns="label")]),
        "client 0 has no column: labl": dict(clients=[table], label="labl"),
        "client 0 has no part called z; it has: x, y": dict(clients=[{"x": x, "y": y}], label="z"),
        "client 0 has a part called labels, as targets are, beside the target y": dict(
            clients=[{"x": x, "labels": y, "y": y}], label="y"
        ),
        "the labels of client 0 are not all numbers": dict(clients=[table.assign(p="yes")], label=["label", "p"]),
        "label= names no column of client 0": dict(clients=[table], label=[]),
        "client 0 has no column: 2": dict(clients=[table], label=2),
        "client 0 has no column: x9": dict(clients=[table], columns=["x0", "x9"]),
        "columns= names the label: label": dict(clients=[table], columns=["x0", "label"]),
        "columns= names one column twice: x0": dict(clients=[table], columns=["x0", "x1", "x0"]),
        "client 0 has a column without a name": dict(clients=[table.assign(**{"Unnamed: 0": [0, 1, 2, 3]})]),
        "column city of client 1 holds no real numbers": dict(
            clients=[table.assign(city=1), table.assign(city="Bonn")]
        ),
        "column wave of client 0 holds no real numbers": dict(clients=[table.assign(wave=1 + 2j)]),
        f"client 0 holds the label {2**64 - 1}": dict(clients=[table.assign(label=np.full(4, 2**64 - 1, np.uint64))]),
        "the columns of client 1 are not those of the first table: x9": dict(clients=[table, table.assign(x9=1)]),
        "column label of client 0 is empty in 1 of 4 rows": dict(clients=[table.assign(label=["a", None, "b", "a"])]),
        "column x0 of client 1 is empty in 2 of 4 rows": dict(clients=[table, table.assign(x0=[1, None, None, 2])]),
        "there is no folder of clients: nowhere": dict(clients="nowhere"),
        "holds no CSV or Parquet file of a client": dict(clients=Path(__file__).parent / "fixtures"),
        "is no table that fedkeel reads": dict(clients=[(x, y)], test=__file__),
        "cannot read the table nowhere.csv": dict(clients=[(x, y)], test="nowhere.csv"),
    }


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (b"a;b;label\n1,5;2;0\n", SEMICOLONS),
        (b"a\tb\tlabel\n1.5\t2\t0\n", TABS),
        (b"a\tb\tlabel\n1,5\t2\t0\n", TABS),
        ("größe,label\n1,0\n".encode("latin-1"), "save it as UTF-8"),
        (b"a,label,label\n1,0,0\n", ONCE),
        (b"a, label,label\n1,0,0\n", ONCE),
        (b"", "is it a CSV or Parquet file?"),
        (b"label,a,b\n0,1,20,300\n", NAMES),
        (b"label,a,b\n\n0,1,20,300\n1,0,20,300\n2,1,20,300\n", NAMES),  # as numbers of rows
        (b"label,a,b\n0,1,20,\n", NAMES),
        (b"5.1,3.5,0\n4.9,3.0,1\n", FIRST),
        (b"\n 5,,nan\n5,1,2,3\n", FIRST),
    ],
)
def test_a_table_as_a_spreadsheet_writes_it_is_refused_with_the_way_out(small, tmp_path, text, hint):
    (tmp_path / "table.csv").write_bytes(text)
    for label in ("label", None, "0"):
        with pytest.raises(fk.DataError) as error:
            replace(small, clients=[tmp_path / "table.csv"], test=None, label=label)
        assert error.value.hint == hint


@pytest.mark.parametrize("word", ["NA", "None"])
def test_words_that_count_as_empty_are_named(small, tmp_path, word):
    """R writes NA where a value is missing, and str(None) is a word, so that nobody knows whether it is a class."""
    (tmp_path / "a.csv").write_text(f"x,label\n1,flu\n2,{word}\n3,\n")
    with pytest.raises(fk.DataError, match=f"is empty in 2 of 3 rows, as {word} counts") as error:
        replace(small, clients=tmp_path, test=None)
    assert "write another word if it is a class" in error.value.hint


def test_a_table_without_rows_is_a_client_without_samples(small, tmp_path):
    (tmp_path / "none.csv").write_text("a,b,label\n")
    (tmp_path / "some.csv").write_text("a,b,label\n1,2,0\n3,4,1\n")
    problem = replace(small, clients=tmp_path, test=None, label="label")
    assert problem.data.sizes.tolist() == [0, 2]


def test_sparse_samples_and_what_cannot_prepare_them_are_refused(small):
    with pytest.raises(fk.DataError, match="client 0 has sparse tensors"):
        trained(replace(small, clients=[(x.to_sparse(), y) for x, y in small.clients]))
    with pytest.raises(fk.ExperimentError, match="the prepare of a problem is a function, not int"):
        replace(small, prepare=1)


def test_pictures_are_read_without_a_warning(small, recwarn):
    image = pytest.importorskip("PIL.Image")
    picture = image.fromarray(np.zeros((2, 3), np.uint8))
    [(inputs, _)] = replace(small, clients=[[(picture, 0), (picture, 1)]], test=None).clients
    assert (inputs.shape, inputs.dtype) == ((2, 2, 3), torch.uint8)
    assert not recwarn.list


def test_a_picture_with_a_palette_is_refused(small):
    """Its array holds places in the palette, which say nothing of light and dark."""
    image = pytest.importorskip("PIL.Image")
    picture = image.fromarray(np.zeros((2, 3), np.uint8)).convert("P")
    with pytest.raises(fk.DataError, match="a picture of client 0 has a palette"):
        replace(small, clients=[[(picture, 0), (picture, 1)]], test=None)


def test_a_file_of_arrays_may_be_closed_afterwards(small, tmp_path):
    x, y = small.test
    np.savez(tmp_path / "a.npz", x=x, y=y)
    with np.load(tmp_path / "a.npz") as file:
        given = replace(small, clients=[file], test=file)
    assert torch.equal(given.data.rows(0, np.arange(len(y)))[1], y)


def test_arrays_that_nobody_may_write_are_read_without_a_warning(small, recwarn):
    x, y = (part.numpy().copy() for part in small.test)
    x.flags.writeable = y.flags.writeable = False
    torch.set_warn_always(True)  # PyTorch says it once in a process
    try:
        rows = replace(small, clients=[(x, y)], test=None).data.rows(0, np.arange(len(y)))
    finally:
        torch.set_warn_always(False)
    assert all(torch.equal(*pair) for pair in zip(rows, small.test, strict=True))
    assert not recwarn.list


def test_a_table_that_is_not_there_is_looked_for_in_the_current_folder(small):
    with pytest.raises(fk.DataError) as error:
        replace(small, test="nowhere.csv")
    assert error.value.hint == f"it was looked for in {Path.cwd()}"


def test_files_that_are_no_folder_of_tables_are_refused_with_the_way_to_give_them(small, tmp_path):
    arrays, pictures, table = tmp_path / "arrays" / "x.npy", tmp_path / "ill" / "0.png", tmp_path / "all.csv"
    for file in (arrays, pictures, table):
        file.parent.mkdir(exist_ok=True)
        file.write_text("a,hospital,label\n1,2,0\n")
    ways = {
        "numpy.load(": [arrays.parent, [arrays], [("x.npy", "y.npy")], [{"x": "x.npz", "y": "y.npz"}], "x.npy"],
        "with PyTorch": [["a.pt"], [("a.pt", "b.pt")]],
        "ImageFolder(": [pictures.parent, [pictures.parent], [pictures], [(["a.PNG", "b.PNG"], [0, 1])]],
        f'pandas.read_csv("{table}"); clients=[part.drop(columns="hospital") for': [table],
        "words are numbered": [[(["well"] * 2, [0, 1])], [("ill" * 1000, 0)]],
    }
    for way, cases in ways.items():
        for clients in cases:
            with pytest.raises(fk.DataError) as error:
                replace(small, clients=clients, test=None)
            assert way in error.value.hint, clients
            assert len(error.value.message) < 300


def test_what_is_not_understood_is_refused_in_one_line(small, monkeypatch, tmp_path):
    for line, changes in refused().items():
        with pytest.raises(fk.DataError) as error:
            replace(small, **({"test": None} | changes))
        assert any(part in error.value.message for part in line.split("|")), (line, error.value.message)
        assert "\n" not in error.value.message
        assert error.value.hint
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(fk.DataError, match="needs pandas, which is not installed"):
        replace(small, test=tmp_path / "test.csv")


def test_samples_with_other_parts_from_one_to_the_next_are_refused(small):
    """PyTorch joins those of the first sample, and loses the others."""
    samples = [{"x": torch.ones(3), "y": i % 2} | ({"age": i} if i else {}) for i in range(4)]
    for given in (samples, [(one, 0) for one in samples]):
        with pytest.raises(fk.DataError, match="client 0 have other parts from one to the next: x, y and x, y, age"):
            replace(small, clients=[given])


def test_a_data_set_that_has_fewer_samples_than_it_says_is_told(small):
    data = Mapped(small.clients[0])
    count, data.data = len(data), tuple(part[:2] for part in data.data)
    longer = type("Longer", (Mapped,), {"__len__": lambda self: count})(data.data)
    with pytest.raises(fk.DataError, match=f"client 0 says it has {count} samples, and sample 2 is out of range"):
        replace(small, clients=[longer])

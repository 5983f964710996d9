"""Tables that are taken otherwise than their owner may think are named in one line."""

import pytest
import torch

import fedkeel as fk

pandas = pytest.importorskip("pandas")

DATA = {"a": [1.0, 2.0, 3.0, 4.0], "b": [5, 6, 7, 8], "label": [0, 1, 0, 1]}


def own(clients, **settings):
    return fk.Problem(loss=torch.nn.functional.cross_entropy, clients=clients, model=torch.nn.Linear(1, 2), **settings)


def as_frame(table, _):
    return table


def as_file(table, folder):
    pytest.importorskip("pyarrow")
    table.to_parquet(folder / "a.parquet")
    return folder / "a.parquet"


def as_files(table, folder):
    pytest.importorskip("pyarrow")
    (folder / "parts").mkdir()
    table[:2].to_parquet(folder / "parts" / "0.parquet")
    table[2:].to_parquet(folder / "parts" / "1.parquet")
    return folder / "parts"


@pytest.mark.parametrize("form", [as_frame, as_file, as_files])
def test_an_index_with_a_name_is_told_and_taken_where_it_is_named(tmp_path, caplog, form):
    table = form(pandas.DataFrame(DATA).set_index("b"), tmp_path)
    assert own([table], columns=["a", "b"]).clients[0][0][:, 1].tolist() == DATA["b"]
    assert own([table], columns=["a"]).columns == ("a",)
    assert own([table], label="b").clients[0][1].tolist() == DATA["b"]
    assert not caplog.messages
    assert own([table, table]).columns == ("a",)
    [told] = caplog.messages
    assert "is no input: b;" in told


def test_the_label_may_be_the_index(caplog):
    table = pandas.DataFrame(DATA).set_index("label")
    assert own([table]).clients[0][1].tolist() == DATA["label"]
    words = table.set_axis(["no", "yes", "no", "yes"]).rename_axis("label")
    assert own([words]).clients[0][1].tolist() == DATA["label"]
    assert own([table.assign(y=[1, 1, 0, 0])]).clients[0][1].tolist() == [1, 1, 0, 0]  # a column comes first
    assert len(caplog.messages) == 1


def test_an_index_is_found_beside_columns_of_every_kind():
    table = pandas.DataFrame(DATA).set_index(["b", "label"])
    for columns in (pandas.CategoricalIndex(["a"]), ["a"], ["b"]):
        given = table.set_axis(columns, axis=1)
        assert own([given], columns=["b"]).clients[0][0].shape == (4, 1)


def test_whole_numbers_that_float32_merges_are_told(caplog):
    """Also between clients; numbers that stay apart, and fractions, are left in peace."""
    first = pandas.DataFrame(DATA).assign(
        id=range(100000000, 100000004), far=[0, 2**25, 2**26, 3 * 2**26], part=[1e8 + 0.5, 1e8, 1e8 + 1, 1e8 + 2]
    )
    apart = first.assign(id=float(2**25))
    for clients, merged in (
        ([first], "4 distinct values into 1"),
        ([apart, apart.assign(id=2**25 + 1.0)], "2 distinct values into 1"),
    ):
        caplog.clear()
        assert own(clients).columns == ("a", "b", "id", "far", "part")
        [told] = caplog.messages
        assert told.startswith("column id holds")
        assert merged in told
        assert "columns=" in told
    caplog.clear()
    own([first], columns=["a", "far", "part"])
    own([first.drop(columns=["id"])[:0].astype(object)])
    assert not caplog.messages

"""A site's own files: tables whose columns are found by name, and images in a folder for each class."""

import re
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

import fedkeel as fk
from fedkeel.errors import DataError
from fedkeel.federation.export import export
from fedkeel.federation.site_files import read_site_files


def write(folder, text, name="t.csv"):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    return folder


def test_columns_are_found_by_name_in_any_order(tmp_path):
    one = write(tmp_path / "a", "x,y,label\n1,2,0\n3,4,1\n")
    other = write(tmp_path / "b", "label,y,more,x\n0,2,9,1\n1,4,9,3\n")
    form = torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64)
    for a, b in zip(*(read_site_files(place, ["x", "y"], "label", form) for place in (one, other)), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(read_site_files(one, [], "label", form)[0], torch.tensor([[1.0, 2.0], [3.0, 4.0]]))


@pytest.mark.parametrize("columns", [[], ["x", "y"]])
def test_tables_of_one_folder_have_the_same_columns_where_none_are_named(tmp_path, columns):
    """By the alphabet alone, the weight of one table would stand under the age of the other."""
    write(tmp_path / "a", "x,y,label\n1,2,0\n", "one.csv")
    folder, form = (
        write(tmp_path / "a", "y,label,x\n4,1,3\n", "two.csv"),
        (torch.zeros(1, 2), torch.zeros(1).long()),
    )
    assert read_site_files(folder, columns, "label", form)[0].tolist() == [[1, 2], [3, 4]]
    write(folder, "z,x,label\n4,3,1\n", "two.csv")
    with pytest.raises(DataError) as refused:
        read_site_files(folder, columns, "label", form)
    told = r"two\.csv has no column: y" if columns else r"two\.csv has other columns than one\.csv: .* in y, z\.$"
    assert re.search(told, refused.value.message)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x,label\n1,0\n", "no column: y"),
        ("x,y,label\n1,,0\n", "column y of .* lacks 1 of 1 values"),
        ("x,y,label\n1,nan,0\n", "lacks 1 of 1"),
        ("x,y,label\n1,high,0\n", r"holds a word in sample 1\.$"),
        ("x,y,label\n1,2_0,0\n", r"holds a word in sample 1\.$"),
        ("x,y,label\n1,2\n", "line 2 of .* has 2 cells, not 3"),
        ("x,y,label\n1,2,0.5\n", "holds fractions"),
        ("x,y,label\n1,2,0\n\n1,2\n", "line 4 of .* has 2 cells"),
        ("x,x,label\n1,2,0\n", "names a column twice"),
        ("x,y, x,label\n1,2,3,0\n", "names a column twice"),
        ("", "not a CSV file: its first line is empty"),
        ("5.1,3.5,0\n4.9,3,1\n", "the first line of .* holds numbers, and no names of columns"),
        ("x;y;label\n1,5;2,5;0\n", r"the cells of .* are not divided by commas\.$"),
    ],
)
def test_a_table_that_cannot_be_is_refused_in_one_line(tmp_path, text, told):
    with pytest.raises(DataError) as refused:
        read_site_files(write(tmp_path / "a", text), ["x", "y"], "label", (torch.zeros(1, 2), torch.zeros(1).long()))
    assert re.search(told, refused.value.message)  # without a cell: the message is sent to the server


def test_a_column_with_values_outside_of_its_range_is_refused(tmp_path):
    """Creatinine in µmol/l where the others write mg/dl."""
    folder, form = write(tmp_path / "a", "x,y,label\n1,0.9,0\n2,80,1\n"), (torch.zeros(1, 2), torch.zeros(1).long())
    with pytest.raises(DataError, match=r"column y of .* has 1 of 2 values outside of 0 … 20\.") as refused:
        read_site_files(folder, ["x", "y=0:20"], "label", form)
    assert "unit" in refused.value.hint
    within = read_site_files(folder, ["x=1:2", "y=0.9:80"], "label", form)  # both ends belong to it
    assert torch.equal(within[0], read_site_files(folder, ["x", "y"], "label", form)[0])
    for wrong in ("x=5", "x=2:1", "x=0:nan", "x=a:b", "x=1:2:3"):
        with pytest.raises(DataError, match="the range of column x is not low:high"):
            read_site_files(folder, [wrong, "y"], "label", form)


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ("x,label", r"^--columns names the label, label, as an input\.$"),
        ("x,label=0:1", r"^--columns names the label, label, as an input\.$"),
        ("x,x", r"^--columns names x twice\.$"),
        ("x,x=0:9", r"^--columns names x twice\.$"),
        ("x", r"^--columns names 1 column, and the problem takes 2\.$"),
        ("x,y,z", r"^--columns names 3 columns, and the problem takes 2\.$"),
    ],
)
def test_columns_that_cannot_be_are_refused_by_export_and_at_the_site(tmp_path, columns, told):
    form = torch.zeros(1, 2), torch.zeros(1).long()
    problem = fk.Problem(model=torch.nn.Linear(2, 2), loss=functional.cross_entropy, clients=[form], classes=2)
    with pytest.raises(DataError) as refused:
        export(
            fk.Experiment(problem=problem), tmp_path / "app", data="folder", clients=3, problem="m:p", columns=columns
        )
    assert re.search(told, refused.value.message)
    assert not (tmp_path / "app").exists()
    with pytest.raises(DataError) as refused:
        read_site_files(write(tmp_path / "a", "x,y,z,label\n1,2,3,0\n"), columns.split(","), "label", form)
    assert re.search(told, refused.value.message)


def test_sites_read_the_columns_of_the_problems_own_tables_in_their_order(tmp_path):
    """In the order of the alphabet the server's test set and the sites would have other inputs."""
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"weight": [70.0, 80.0], "age": [30.0, 40.0], "label": [0, 1]})
    problem = fk.Problem(model=torch.nn.Linear(2, 2), loss=functional.cross_entropy, clients=[table], test=table)

    def exported(name, **more):
        experiment = fk.Experiment(problem=replace(problem, name=name))  # as one with other fields it knows them, too
        export(experiment, tmp_path / name, data="folder", clients=2, problem="m:p", **more)
        return tomllib.loads((tmp_path / name / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]

    assert exported("a")["columns"] == "weight,age"
    assert exported("b", columns="weight=1:200,age")["columns"] == "weight=1:200,age"
    assert exported("c", columns="kg,years")["columns"] == "kg,years"
    folder = write(tmp_path / "site", "age,weight,label\n30,70,0\n")
    inputs, _ = read_site_files(folder, exported("d")["columns"].split(","), "label", problem.clients[0])
    assert torch.equal(inputs, problem.test[0][:1])
    with pytest.raises(DataError, match=r"inputs in another order than the problem's tables: age, weight\.") as refused:
        exported("e", columns="age,weight")
    assert refused.value.hint == "the problem's order is weight, age"
    spelt = fk.Problem(
        model=torch.nn.Linear(1, 2),
        loss=functional.cross_entropy,
        clients=[table[["age", "label"]].rename(columns={"age": "a=b"})],
    )
    with pytest.raises(DataError, match="the column 'a=b' cannot be named to sites"):
        export(fk.Experiment(problem=spelt), tmp_path / "f", data="folder", clients=2, problem="m:p")


@pytest.mark.parametrize(
    ("inputs", "labels", "row", "told"),
    [
        (torch.int64, torch.int64, "1.9,0", r"^column x of .* has 1 of 2 values that int64 cannot hold\.$"),
        (torch.int64, torch.int64, "1e300,0", r"^column x of .* has 1 of 2 values that int64 cannot hold\.$"),
        (torch.uint8, torch.int64, "260,0", r"^column x of .* has 1 of 2 values that uint8 cannot hold\.$"),
        (torch.uint8, torch.int64, "-1,0", r"^column x of .* has 1 of 2 values that uint8 cannot hold\.$"),
        (torch.bool, torch.int64, "2,0", r"^column x of .* has 1 of 2 values that bool cannot hold\.$"),
        (torch.float32, torch.bool, "1,2", r"^column label of .* has 1 of 2 values that bool cannot hold\.$"),
        (torch.float32, torch.uint8, "1,256", r"^column label of .* has 1 of 2 values that uint8 cannot hold\.$"),
    ],
)
def test_values_that_the_type_of_the_problem_would_change_are_refused(tmp_path, inputs, labels, row, told):
    form = torch.zeros(1, 1, dtype=inputs), torch.zeros(1, dtype=labels)
    with pytest.raises(DataError) as refused:
        read_site_files(write(tmp_path / "a", f"x,label\n1,0\n{row}\n"), ["x"], "label", form)
    assert re.search(told, refused.value.message)
    x, y = read_site_files(write(tmp_path / "a", "x,label\n1,0\n0,1\n"), ["x"], "label", form)
    assert (x.dtype, y.dtype, x.tolist(), y.tolist()) == (inputs, labels, [[1], [0]], [0, 1])


@pytest.mark.parametrize("name", ["more.csv.gz", "more.tsv", "more.XLSX", "sub/more.csv", "sub/one.png", "sub/a.tsv"])
def test_files_that_would_not_be_read_are_refused(tmp_path, name):
    folder, form = write(tmp_path / "a", "x,label\n1,0\n"), (torch.zeros(1, 1), torch.zeros(1).long())
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("x,label\n2,1\n")
    with pytest.raises(DataError, match="would not be read: ") as refused:
        read_site_files(folder, ["x"], "label", form)
    assert name.partition("/")[0] in refused.value.message


@pytest.mark.parametrize("name", ["0/two.bmp", "1/two.TIFF", "0/more/two.png", "two.png", "old/0/two.png", "1/t.csv"])
def test_images_that_would_not_be_read_are_refused(tmp_path, name):
    image, form = pytest.importorskip("PIL.Image"), (torch.zeros(1, 1, 2, 2), torch.zeros(1).long())
    for one in ("0/one.png", "1/one.png"):
        (tmp_path / one).parent.mkdir()
        image.fromarray(np.zeros((2, 2), np.uint8)).save(tmp_path / one)
    for hidden in ("0/._two.bmp", ".old/0/two.png", "0/notes.txt"):
        (tmp_path / hidden).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / hidden).touch()
    assert len(read_site_files(tmp_path, [], "label", form)[0]) == 2
    (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
    (tmp_path / name).touch()
    with pytest.raises(DataError, match="would not be read: ") as refused:
        read_site_files(tmp_path, [], "label", form)
    assert str(Path(name)) in refused.value.message


def test_a_data_dir_is_a_folder(tmp_path):
    write(tmp_path / "a", "x,label\n1,0\n")
    (tmp_path / "a" / "0").mkdir()
    for place in (tmp_path / "a" / "t.csv", tmp_path / "a"):
        with pytest.raises(DataError) as refused:
            read_site_files(place, ["x"], "label", (torch.zeros(1, 1), torch.zeros(1).long()))
        assert re.search("data-dir is a folder", refused.value.hint)


def test_files_that_other_programs_hide_are_not_read(tmp_path):
    folder, form = write(tmp_path / "a", "x,label\n1,0\n"), (torch.zeros(1, 1), torch.zeros(1).long())
    for name in ("._t.csv", ".~lock.t.csv", "~t.csv", ".cache/t.csv", "notes.txt", "old/notes.txt"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("x,label\n9,1\n")
    assert read_site_files(folder, ["x"], "label", form)[0].tolist() == [[1.0]]


def test_a_problem_with_several_targets_takes_no_files(tmp_path):
    """The labels of three samples are not the three targets of one."""
    folder = write(tmp_path / "a", "x,label\n1,0\n2,1\n3,0\n")
    with pytest.raises(DataError, match="files give one label for each sample, and a sample of this problem has 3"):
        read_site_files(folder, [], "label", (torch.zeros(1, 1), torch.zeros(1, 3)))


def test_parquet_tables_are_read_as_csv_tables_are(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    (tmp_path / "p").mkdir()
    parquet.write_table(pyarrow.table({"label": [0, 1], "x": [1.0, 3.0], "y": [2, 4]}), tmp_path / "p" / "t.parquet")
    csv = write(tmp_path / "c", "x,y,label\n1,2,0\n3,4,1\n")
    form = torch.zeros(1, 2), torch.zeros(1).long()
    for a, b in zip(*(read_site_files(f, ["x", "y"], "label", form) for f in (tmp_path / "p", csv)), strict=True):
        assert torch.equal(a, b)


def test_images_lie_in_a_folder_for_each_class(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for label, grey in ((0, 0), (2, 255)):
        (tmp_path / str(label)).mkdir()
        image.fromarray(np.full((4, 4), grey, np.uint8)).save(tmp_path / str(label) / "one.png")
    inputs, labels = read_site_files(tmp_path, [], "label", (torch.zeros(1, 1, 2, 2), torch.zeros(1).long()))
    assert labels.tolist() == [0, 2]
    assert inputs.shape == (2, 1, 2, 2)
    assert inputs.amax((1, 2, 3)).tolist() == [0.0, 1.0]
    image.fromarray(np.full((4, 4), 4000, np.uint16)).save(tmp_path / "0" / "deep.png")
    with pytest.raises(DataError, match=r"deep\.png has more than 8 bits for each pixel"):
        read_site_files(tmp_path, [], "label", (torch.zeros(1, 1, 2, 2), torch.zeros(1).long()))

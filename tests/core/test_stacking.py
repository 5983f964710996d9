"""States stacked as they come are those that `stack` makes at the end, without a second copy."""

import torch

import fedkeel as fk
from fedkeel.core.stacking import Stacking
from fedkeel.core.trees import Tree, stack


def states(count):
    return [{"delta": Tree.of({"w": torch.full((3,), float(i))}), "size": torch.tensor(float(i))} for i in range(count)]


def rows_of(given):
    stacking = Stacking(len(given), fk.method("own", weights=fk.Uniform()))
    return [stacking.put(i, state) for i, state in enumerate(given)]


def test_rows_are_the_states():
    for row, state in zip(rows_of(states(4)), states(4), strict=True):
        assert torch.equal(row["delta"].buffer, state["delta"].buffer)
        assert row["delta"].layout is state["delta"].layout
        assert row["size"] == state["size"]


def test_stacking_them_copies_nothing():
    rows = rows_of(states(4))
    whole = stack(rows)
    assert torch.equal(whole["delta"].buffer, stack(states(4))["delta"].buffer)
    assert whole["size"].tolist() == [0, 1, 2, 3]
    assert whole["delta"].buffer.data_ptr() == rows[0]["delta"].buffer.data_ptr()


def test_some_of_them_or_another_order_is_stacked_anew():
    rows = rows_of(states(3))
    assert stack(rows[1:])["size"].tolist() == [1, 2]
    assert stack(rows[:2])["size"].tolist() == [0, 1]
    assert stack([rows[2], rows[0], rows[1]])["size"].tolist() == [2, 0, 1]
    assert stack([rows[0], rows[0], rows[2]])["delta"].buffer[:, 0].tolist() == [0, 0, 2]
    other = rows_of(states(3))
    assert stack([rows[0], other[1], rows[2]])["size"].data_ptr() != rows[0]["size"].data_ptr()

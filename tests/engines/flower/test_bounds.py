"""How large a slot of a report may be: compared with others and with the past, and not to be moved by a minority."""

import torch

from fedkeel.core.trees import Tree
from fedkeel.engines.flower.bounds import SlotBounds, slot_size


def reports(*sizes, slot="c_moved"):
    return {client: {slot: Tree.of({"w": torch.full((4,), float(size))})} for client, size in enumerate(sizes)}


def numbers(*values):
    return {client: {"loss": torch.tensor(float(value))} for client, value in enumerate(values)}


def fresh(*past):
    bounds = SlotBounds(1000.0)
    for one in past:
        bounds.remember(one.values())
    return bounds


def test_the_median_decides_and_a_minority_cannot_move_it():
    assert fresh().find_unusual(reports(1, 2, 5000)) == {2: "its c_moved is 2500 times as long as usual"}
    assert fresh().find_unusual(reports(1, 2, 999)) == {}
    assert fresh().find_unusual(reports(1, 5000)).keys() == {1}
    assert fresh(reports(1, 1)).find_unusual({2: reports(5000)[0]}).keys() == {2}


def test_a_slot_is_compared_with_itself_only():
    both = {0: {"a": torch.tensor(1e5), "b": torch.tensor(2.0)}, 1: {"a": torch.tensor(2e5), "b": torch.tensor(3e5)}}
    assert fresh().find_unusual(both).keys() == {1}
    assert fresh().find_unusual({c: {"a": report["a"]} for c, report in both.items()}) == {}


def test_where_there_is_nothing_to_compare_with_the_bound_is_a_fixed_one():
    for alone in (reports(1e7), reports(0, 0, 1e7)):
        assert list(fresh().find_unusual(alone)) == [max(alone)]
    for alone in (reports(1e5), reports(0, 0, 1e5)):
        assert fresh().find_unusual(alone) == {}


def test_what_the_majority_does_is_usual():
    """Slots that were zero at first, or grow, or shrink and jump back, are those of honest clients."""
    for before, now in (((0,) * 6, (5, 6, 7)), ((1e-9,) * 6, (5, 6, 7)), ((5,) * 6, (1e-9, 1e-9, 5, 1e-9))):
        assert fresh(reports(*before)).find_unusual(reports(*now)) == {}
    settled = fresh(numbers(2, 2, 2), *[numbers(1e-7, 1e-7, 1e-7)] * 60)
    assert settled.find_unusual(numbers(1e-7, 3.0, 1e-7)) == {}
    assert settled.find_unusual(numbers(1e-7, 1e4, 1e-7)).keys() == {1}
    assert fresh(*[numbers(1e-7, 1e-7, 1e-7)] * 3).find_unusual(numbers(1e-7, 0.9, 1e-7)) == {}  # a share, a cosine


def test_one_node_alone_in_each_round_cannot_climb():
    bounds = fresh(reports(1, 1, 1))
    size = 1.0
    for _ in range(10):
        size *= 900
        if bounds.find_unusual(reports(size)):
            break
        bounds.remember(reports(size).values())
    assert size <= 900**2


def test_finite_numbers_never_overflow():
    assert slot_size(torch.full((1000,), 3e38)) < float("inf")
    assert fresh().find_unusual(reports(1, 1, 3e38)).keys() == {2}


def test_what_was_usual_outlives_the_server(tmp_path, caplog):
    file = tmp_path / "run-bounds.json"
    first = SlotBounds(1000.0, file)
    first.remember(reports(1, 1).values())
    again = SlotBounds(1000.0, file)
    assert again.restore()
    assert again.find_unusual(reports(5000)).keys() == {0}
    for damage in ("", "[]", '{"recent": {"a": [-1]}, "largest": {}}', '{"recent": {"a": ["1"]}, "largest": {}}'):
        file.write_text(damage)
        assert not SlotBounds(1000.0, file).restore()
    assert caplog.text.count("cannot be read") == 4
    assert not SlotBounds(1000.0, tmp_path / "none").restore()

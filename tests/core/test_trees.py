"""The algebra of trees is that of the tensors in them, for one client and for many."""

import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.func import vmap

from fedkeel.core.layout import Layout, layout
from fedkeel.core.trees import Tree, all_finite, cosine, stack, where

SHAPES = {"conv": (3, 2, 2), "bias": (3,), "fc": (4, 3), "scale": (), "fc2": (3, 4)}


def random_tree(seed=0, shapes=SHAPES, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return Tree.of({n: torch.randn(s, generator=generator, dtype=dtype) for n, s in shapes.items()})


def flat(tree):
    return torch.cat([leaf.reshape(-1) for _, leaf in tree.items()])


def test_leaves_come_back_by_name_and_in_the_models_order():
    leaves = {n: torch.randn(s) for n, s in SHAPES.items()}
    tree = Tree.of(leaves)
    assert list(tree) == list(SHAPES)
    assert all(torch.equal(tree[n], leaf) for n, leaf in leaves.items())


def test_arithmetic_is_that_of_the_leaves():
    a, b, s = random_tree(1), random_tree(2), torch.tensor(0.3, dtype=torch.float64)
    for made, expected in [
        (a + b, flat(a) + flat(b)),
        (a - b, flat(a) - flat(b)),
        (-a, -flat(a)),
        (1 - a, 1 - flat(a)),
        (a * b, flat(a) * flat(b)),
        (2.5 * a, 2.5 * flat(a)),
        (s * a, s * flat(a)),
        (a * s, s * flat(a)),
        (a / s, flat(a) / s),
        (a.moved(b, s), flat(a) + s * flat(b)),
        (a.moved(b, 0.3), flat(a) + 0.3 * flat(b)),
        (a.clamp(-0.1, 0.1), flat(a).clamp(-0.1, 0.1)),
    ]:
        torch.testing.assert_close(flat(made), expected, rtol=0, atol=1e-15)
    torch.testing.assert_close(a.dot(b), flat(a) @ flat(b))
    torch.testing.assert_close(a.norm(), flat(a).norm())
    torch.testing.assert_close(cosine(a, b), flat(a) @ flat(b) / flat(a).norm() / flat(b).norm())


def test_stacked_operations_are_those_of_each_client():
    rows, others = [random_tree(i) for i in range(3)], [random_tree(9 + i) for i in range(3)]
    stacked, other = stack(rows), stack(others)
    weights = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    for f in (
        lambda a, b: a + b,
        lambda a, b: a.norm() * b,
        lambda a, b: a.dot(b) * a.unit(),
        lambda a, b: a.map(lambda v, u: v * u.mean(), b),
        lambda a, b: a.map_by_length(lambda v: v - v.mean(-1, keepdim=True)),
        lambda a, b: a.map_by_shape(lambda v, shape: v.flip(-1) if shape else 2 * v),
        lambda a, b: a | b.only(lambda n: n.startswith("fc")),
        lambda a, b: a.only(lambda n: n != "conv"),
    ):
        together, mapped = f(stacked, other), vmap(f)(stacked, other)
        for i in range(3):
            alone = f(rows[i], others[i])
            torch.testing.assert_close(together.buffer[i], alone.buffer, rtol=0, atol=1e-14)
            torch.testing.assert_close(mapped.buffer[i], alone.buffer, rtol=0, atol=1e-14)
            assert together.layout == alone.layout
    mean = stacked.average(weights)
    torch.testing.assert_close(flat(mean), sum(w * flat(r) for w, r in zip(weights, rows, strict=True)))


def test_leaves_of_one_length_are_seen_together_without_a_copy():
    tree, seen = random_tree(), []
    tree.map_by_length(lambda rows: seen.append((tuple(rows.shape), rows.data_ptr())) or rows)
    assert sorted(shape for shape, _ in seen) == [(1, 1), (1, 3), (3, 12)]
    inside = range(tree.buffer.data_ptr(), tree.buffer.data_ptr() + tree.buffer.nbytes)
    assert all(pointer in inside for _, pointer in seen)


def test_leaves_of_one_shape_are_seen_together():
    leaves = {"a": (2, 6), "b": (3, 4), "c": (3, 4), "d": (), "e": (12,)}
    tree = Tree.of({name: torch.randn(shape) for name, shape in leaves.items()})
    seen = []

    def turned(leaves, shape):
        seen.append(tuple(leaves.shape))
        return leaves.flip(-1) if shape else -leaves

    found = tree.map_by_shape(turned)
    assert sorted(seen) == [(1,), (1, 2, 6), (1, 12), (2, 3, 4)]
    assert all(torch.equal(found[name], turned(tree[name], shape)) for name, shape in leaves.items())


def test_vectors_can_be_left_alone():
    tree = random_tree()
    halved = tree.map_by_length(lambda rows: rows / 2, vectors=False)
    assert torch.equal(halved["bias"], tree["bias"])
    assert torch.equal(halved["fc"], tree["fc"] / 2)


def test_parts_are_taken_out_and_put_back():
    tree, other = random_tree(1), random_tree(2)
    part = other.only(lambda n: n in ("bias", "fc2"))
    assert list(part) == ["bias", "fc2"]
    merged = tree | part
    assert torch.equal(merged["bias"], other["bias"])
    assert torch.equal(merged["conv"], tree["conv"])
    assert torch.equal((tree | stack([part, 2 * part])).buffer, stack([merged, tree | 2 * part]).buffer)
    assert torch.equal((stack([tree, other]) | part).buffer, stack([merged, other]).buffer)
    assert len(tree.only(lambda n: False)) == 0
    assert tree.only(lambda n: False).buffer.dtype == tree.buffer.dtype


def test_a_part_is_a_copy_that_does_not_keep_the_whole_alive():
    part = random_tree().only(lambda n: n == "bias")
    assert part.buffer.untyped_storage().nbytes() == part.buffer.nbytes


def test_trees_of_other_layouts_do_not_add_up_silently():
    a, b = Tree.of({"x": torch.zeros(4)}), Tree.of({"y": torch.zeros(4)})
    with pytest.raises(ValueError, match="differ"):
        a + b
    with pytest.raises(ValueError, match="differ"):
        a.dot(b)
    with pytest.raises(ValueError, match="not part"):
        a.only(b.layout)


def test_mixed_dtypes_are_refused():
    with pytest.raises(TypeError, match="one dtype"):
        Tree.of({"a": torch.zeros(2), "b": torch.zeros(2, dtype=torch.float64)})


def test_the_direction_of_nothing_is_nothing():
    zero = random_tree().zeros()
    assert not zero.unit().buffer.any()
    assert cosine(zero, random_tree()) == 0


def test_the_norm_of_a_long_float32_buffer_is_exact_enough():
    tree = random_tree(shapes={"w": (3000, 1000), "b": (77,)}, dtype=torch.float32)
    exact = tree.buffer.double().norm()
    assert abs(tree.norm() - exact) / exact < 1e-6


def test_layouts_survive_text_and_pickle_as_one_object():
    where_ = random_tree().layout
    assert Layout.loads(where_.dumps()) is where_
    tree = pickle.loads(pickle.dumps(random_tree()))
    assert tree.layout is where_
    assert torch.equal(tree.buffer, random_tree().buffer)


def test_where_chooses_by_client():
    old, new = stack([random_tree(1), random_tree(2)]), stack([random_tree(3), random_tree(4)])
    mixed = where(torch.tensor([True, False]), {"a": new}, {"a": old})["a"]
    assert torch.equal(mixed.buffer[0], new.buffer[0])
    assert torch.equal(mixed.buffer[1], old.buffer[1])


@pytest.mark.parametrize("wrong", [torch.nan, -torch.inf])
def test_one_number_that_is_not_finite_is_found_wherever_it_is(wrong):
    good, count = random_tree(), torch.tensor(3)
    assert all_finite(({"a": good, "n": count}, {"b": good}))
    assert not all_finite({"a": good, "b": wrong * good})
    assert not all_finite(({"n": count}, {"b": torch.tensor(wrong)}))


@given(st.dictionaries(st.text("abc", min_size=1, max_size=3), st.lists(st.integers(1, 4), max_size=3), min_size=1))
def test_any_layout_covers_its_buffer_exactly_once(shapes):
    where_ = layout(tuple((n, tuple(s)) for n, s in shapes.items()))
    covered = sorted(i for offset, length in where_.spans.values() for i in range(offset, offset + length))
    assert covered == list(range(where_.size))
    grouped = sorted(i for g in where_.groups for i in range(g.offset, g.offset + g.leaves * g.length))
    assert grouped == list(range(where_.size))

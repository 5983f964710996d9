"""Keyed randomness: the same everywhere, independent of what ran before, uniform enough."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.func import vmap

from fedkeel.randomness import bits, choice, key, keyed_normals, keyed_uniforms, keys_below, permutation, uniforms


def test_keys_do_not_change_from_process_to_process():
    assert key(3, "batches", 4, 5) == 6033473699895572107  # as another process said


@given(st.integers(0, 2**64 - 1), st.lists(st.integers(0, 2**40), max_size=2))
def test_many_keys_at_once_are_the_keys_one_by_one(seed, numbers):
    assert keys_below(9, seed, "sample", *numbers).tolist() == [key(seed, "sample", *numbers, n) for n in range(9)]


def test_every_part_of_a_key_matters():
    keys = {key(s, p, r, c) for s in range(5) for p in ("a", "b") for r in range(5) for c in range(50)}
    assert len(keys) == 5 * 2 * 5 * 50
    assert key(1, "a", 2, 3) != key(1, "a", 3, 2)
    assert all(0 <= k < 2**63 for k in keys)


def test_normals_are_normal_and_a_function_of_key_and_place():
    of = torch.tensor(key(0, "rule", 1))
    many = keyed_normals(of, 40001)
    assert many.shape == (40001,)
    assert abs(many.mean().item()) < 0.02
    assert abs(many.std().item() - 1) < 0.02
    assert abs((many**4).mean().item() - 3) < 0.1
    assert abs((many[:-1] * many[1:]).mean().item()) < 0.02
    assert torch.equal(keyed_normals(of, 9), many[:9])
    keys = torch.tensor([key(0, "rule", i) for i in range(3)])
    assert torch.equal(vmap(lambda k: keyed_normals(k, 9))(keys)[1], many[:9])


def test_torch_draws_the_numbers_numpy_draws_also_under_vmap():
    keys = [key(0, "rule", i) for i in range(4)]
    drawn = vmap(lambda k: keyed_uniforms(k, 7))(torch.tensor(keys))
    np.testing.assert_array_equal(drawn.numpy(), np.stack([uniforms(k, 7) for k in keys]))


def test_uniforms_are_uniform():
    draws = uniforms(key(0, "test"), 100_000)
    counts = np.histogram(draws, bins=50, range=(0, 1))[0]
    assert ((counts - 2000) ** 2 / 2000).sum() < 98  # chi-squared of 49 degrees, 1 in 20 000
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 0.015


def test_rows_of_bits_are_those_of_each_key():
    keys = np.array([5, 6, 2**63 - 1], dtype=np.uint64)
    np.testing.assert_array_equal(bits(keys, 3), np.stack([bits(int(k), 3) for k in keys]))


@given(st.integers(0, 2**62), st.integers(1, 200))
def test_permutations_are_permutations(of, count):
    assert sorted(permutation(of, count).tolist()) == list(range(count))


@given(st.integers(0, 2**62), st.integers(1, 50), st.data())
def test_choices_are_different_and_in_range(of, population, data):
    count = data.draw(st.integers(1, population))
    chosen = choice(of, population, count)
    assert len(set(chosen)) == count
    assert chosen == sorted(chosen)
    assert all(0 <= c < population for c in chosen)


def test_everyone_is_chosen_equally_often():
    counts = np.bincount(np.concatenate([choice(key(0, "c", r), 20, 5) for r in range(4000)]), minlength=20)
    assert ((counts - 1000) ** 2 / 750).sum() < 50


def test_a_choice_among_a_million_costs_what_is_chosen():
    assert len(choice(key(0, "c"), 10**12, 10)) == 10

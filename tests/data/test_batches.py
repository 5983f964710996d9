"""Which samples a client sees in which step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkeel.core.method import Phase
from fedkeel.data.batches import Plan, plan_clients, sample_keys, sample_keys_of_steps
from fedkeel.randomness import key, permutation

law = settings(deadline=None)  # no clock in a test

keys = st.integers(0, 2**63 - 1)
sizes, batch_sizes, epochs = st.integers(0, 60), st.integers(1, 70), st.integers(1, 4)


def plan_batches(of: int, size: int, batch_size: int, steps: int) -> Plan:
    """Plan one client alone."""
    return plan_clients([of], size, batch_size, steps)[0]


def test_clients_planned_together_are_planned_as_each_alone() -> None:
    together = plan_clients([3, 2**63 - 1, 3], 21, 5, 20, 20)
    for of, plan in zip((3, 2**63 - 1, 3), together, strict=True):
        assert [len(rows) for rows in plan] == [5] * 20
        for one, other in zip(plan, plan_clients([of], 21, 5, 20, 20)[0], strict=True):
            assert np.array_equal(one, other)
    assert not np.array_equal(together[0][0], together[1][0])


@law
@given(keys, sizes, batch_sizes, epochs)
def test_every_epoch_sees_every_sample_once(of: int, size: int, batch_size: int, epochs: int) -> None:
    per_epoch = -(-size // batch_size)
    rows = plan_batches(of, size, batch_size, epochs * per_epoch)
    assert len(rows) == epochs * per_epoch == Phase().count_steps(size, batch_size, epochs)
    for epoch in range(epochs if size else 0):
        batches = rows[epoch * per_epoch : (epoch + 1) * per_epoch]
        assert sorted(np.concatenate(batches)) == list(range(size))
        assert all(len(batch) == batch_size for batch in batches[:-1])
        assert len(batches[-1]) == size - batch_size * (per_epoch - 1)


@law
@given(keys, st.integers(1, 60), batch_sizes, st.integers(0, 30))
def test_a_number_of_batches_cuts_or_extends_the_same_plan(of: int, size: int, batch_size: int, batches: int) -> None:
    exact, long = plan_batches(of, size, batch_size, batches), plan_batches(of, size, batch_size, 60)
    assert len(exact) == batches
    for one, other in zip(exact, long, strict=False):
        assert np.array_equal(one, other)


def test_the_papers_numbers_of_steps() -> None:
    assert Phase().count_steps(500, 50, 5) == 50
    assert Phase().count_steps(420, 48, 10) == 90  # FedFSA on CIFAR
    assert Phase().count_steps(490, 48, 10) == 110
    assert Phase().count_steps(770, 48, 10) == 170


def test_a_phase_has_its_own_number_of_steps_or_the_experiments() -> None:
    """Of four batches: a share of them is rounded up, and is one step at least."""
    assert [Phase().count_steps(10, 3, epochs) for epochs in (0.01, 0.25, 0.3, 0.5, 1.5, 2)] == [1, 1, 2, 2, 6, 8]
    assert [Phase(epochs=epochs).count_steps(10, 3, 5, 7) for epochs in (0.01, 0.5, 2)] == [1, 2, 8]
    assert [Phase(batches=9).count_steps(10, 3, epochs, steps) for epochs, steps in ((5, None), (1, 7))] == [9, 9]
    assert Phase().count_steps(10, 3, 1, 7) == 7


def test_a_client_without_data_takes_no_step_even_if_some_are_asked_for() -> None:
    assert plan_batches(1, 0, 10, 0) == []
    assert [phase.count_steps(0, 10, 3, 5) for phase in (Phase(), Phase(batches=5), Phase(epochs=1))] == [0, 0, 0]


def test_an_epoch_is_the_permutation_of_its_key() -> None:
    rows = plan_batches(77, 23, 5, 15)
    for epoch in range(3):
        whole = np.concatenate(rows[5 * epoch : 5 * epoch + 5])
        assert np.array_equal(whole, permutation(key(77, "epoch", epoch), 23))


def test_epochs_and_keys_give_different_orders() -> None:
    whole = [np.concatenate(plan_batches(of, 50, 50, 2)).reshape(2, 50) for of in (1, 2)]
    orders = {order.tobytes() for pair in whole for order in pair}
    assert len(orders) == 4


def test_a_samples_key_depends_on_the_plan_the_step_and_the_row_alone() -> None:
    rows = np.array([5, 0, 17, 3])
    together = sample_keys(9, 2, rows)
    assert together.dtype == np.uint64
    for place, row in enumerate(rows):
        assert sample_keys(9, 2, np.array([row]))[0] == together[place]
    steps = np.stack([rows, rows[::-1], rows + 1])
    of_all = sample_keys_of_steps(9, steps)
    assert all(np.array_equal(of_all[step], sample_keys(9, step, rows)) for step, rows in enumerate(steps))


@pytest.mark.parametrize("of", [0, 2**63 - 1])
def test_no_two_samples_of_a_plan_share_a_key(of: int) -> None:
    made = np.concatenate([sample_keys(of, step, np.arange(1000)) for step in range(50)])
    assert len(np.unique(made)) == len(made)

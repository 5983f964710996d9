"""Costs until a target on cases whose answer is known without computing."""

from fedkeel.runs.record import RoundRecord
from fedkeel.studies.cost_to_target import cost_to, spent


def record(number, accuracy, **others):
    return RoundRecord(number, [0], 1.0 / number, 0.0, 7, 100, 10, 0.5, accuracy=accuracy, **others)


def test_cost_to_a_target():
    records = [record(1, 0.2), record(2, None), record(3, 0.5), record(4, 0.4)]
    cost = cost_to(records, 0.5, "accuracy", 1)
    assert (cost.rounds, cost.bytes, cost.seconds, cost.backward_passes) == (3, 330, 1.5, 21)
    assert cost_to(records, 0.51, "accuracy", 1) is None
    assert cost_to(records, 0.5, "loss", 1).rounds == 2  # losses fall: 1, 1/2, 1/3
    assert spent(records).bytes == 440
    assert cost_to(records, 0.5, "accuracy", 1) == spent(records[:3])


def test_a_round_in_which_a_run_once_ended_does_not_reach_a_target():
    records = [record(n, 0.5 if n > 4 else 0.2) if n in (4, 6, 8, 9) else record(n, None) for n in range(1, 10)]
    assert cost_to(records, 0.5, "accuracy", 4) == spent(records[:8])
    assert cost_to(records[:6], 0.5, "accuracy", 4).rounds == 6  # its end
    assert cost_to(records, 0.5, "loss", 4).rounds == 2

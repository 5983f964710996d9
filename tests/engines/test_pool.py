"""How work is handed out, with workers that answer at once and die when they are told to."""

import random

from for_each import for_each

from fedkeel.engines.pool import ATTEMPTS, WorkerDied, deal, spread


class AtOnce:
    """Workers that answer in an order that no one can foresee; `fatal` payloads kill as often as they say."""

    def __init__(self, size, places=(), fatal=()):
        self.size, self.places, self.fatal = size, dict(enumerate(places)), dict(fatal)
        self.busy, self.given, self.random = {}, [], random.Random(0)

    def find_free(self):
        return {worker: self.places.get(worker) for worker in range(self.size) if worker not in self.busy}

    def ask(self, worker, kind, payload):
        assert worker not in self.busy
        self.busy[worker] = payload[0]
        self.given.append((worker, payload[0]))

    def wait(self):
        worker = self.random.choice(sorted(self.busy))
        payload = self.busy.pop(worker)
        self.fatal[payload] = self.fatal.get(payload, 0) - 1
        return [(worker, WorkerDied("died") if self.fatal[payload] >= 0 else -payload)]


@for_each("size", [1, 2, 5, 20])
def test_every_payload_is_answered_once_and_none_is_asked_twice(size):
    crew = AtOnce(size)
    answers = list(spread(crew, "train", [(n,) for n in range(10)]))
    assert sorted(answers) == [(n, -n) for n in range(10)]
    assert [payload for _, payload in crew.given] == list(range(10))


def test_what_a_dead_worker_was_given_is_given_out_again():
    crew = AtOnce(2, fatal={3: ATTEMPTS - 1, 7: 1})
    assert sorted(spread(crew, "train", [(n,) for n in range(10)])) == [(n, -n) for n in range(10)]
    assert [payload for _, payload in crew.given].count(3) == ATTEMPTS


def test_what_kills_every_worker_ends_in_an_answer_that_says_so():
    crew = AtOnce(2, fatal={1: 100})
    answers = dict(spread(crew, "train", [(n,) for n in range(3)]))
    assert isinstance(answers[1], WorkerDied)
    assert (answers[0], answers[2]) == (0, -2)
    assert [payload for _, payload in crew.given].count(1) == ATTEMPTS


def test_a_worker_takes_what_lies_on_its_machine_first_and_then_helps_the_others():
    crew = AtOnce(2, places=("here", "there"))
    list(spread(crew, "train", [(n,) for n in range(6)], ["there", "there", "there", "there", "here", None]))
    assert crew.given[:2] == [(0, 4), (1, 0)]
    assert {worker for worker, payload in crew.given if payload in (1, 2, 3)} == {0, 1}


def test_shares_of_a_round_are_even_and_follow_from_the_costs_alone():
    draw = random.Random(1)
    for _ in range(50):
        costs = [draw.randint(1, 30) for _ in range(draw.randint(1, 20))]
        for shares in (1, 2, 4, 7):
            dealt = deal(costs, shares)
            assert sorted(i for share in dealt for i in share) == list(range(len(costs)))
            assert all(share for share in dealt)
            assert len(dealt) == min(shares, len(costs))
            loads = [sum(costs[i] for i in share) for share in dealt]
            # longest first is never worse than 4/3 of the best (Graham 1969), which is no better than these two
            assert max(loads) <= 4 / 3 * max(sum(costs) / shares, *costs, *second_pair(costs, shares))
            assert dealt == deal(list(costs), shares)


def second_pair(costs, shares):
    """Where there are more pieces than shares, two of the longest ones stand in one share."""
    ordered = sorted(costs, reverse=True)
    return (ordered[shares - 1] + ordered[shares],) if len(costs) > shares else ()

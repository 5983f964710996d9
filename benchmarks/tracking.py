"""What tracking drift and spectra costs: the same run with and without, side by side.

    python benchmarks/tracking.py [dataset] [model] [rounds]

Rounds alternate between the two inside one process, on one thread, and are measured in seconds of that process's CPU:
whatever else the machine does counts for neither. The ratio is the median over blocks of five rounds, tracked
against plain; at most 1.03 is asked for.
"""

from __future__ import annotations

import statistics
import sys
import time

import torch

import fedkeel as fk
from fedkeel.engines.machine import steady
from fedkeel.engines.serial import SerialEngine
from fedkeel.runs.loop import Loop
from fedkeel.runs.observers import find_observers
from fedkeel.runs.prepare import method_of, problem_of, task_maker

TRACKED = ("drift", "spectrum")


class Side:
    """A run that is driven round by round."""

    def __init__(self, experiment: fk.Experiment, track: tuple[str, ...]):
        task = task_maker(experiment.plan, torch.device("cpu"), torch.float32)(problem_of(experiment.plan))
        method = method_of(experiment.plan, task)
        self.engine = SerialEngine(task, method, experiment.plan.training)
        loop = Loop(experiment, task, method, None, False, 1e9, find_observers(track))
        self.rounds = loop.run_rounds(self.engine)
        self.request = next(self.rounds)

    def one_round(self) -> None:
        self.request = self.rounds.send(self.engine.train(*self.request))


def main(dataset: str = "digits", model: str = "", rounds: str = "40") -> None:
    experiment = fk.Experiment(dataset=dataset, model=model or None, method="fedavg", rounds=int(rounds) + 1)
    sides = {"plain": Side(experiment, ()), "tracked": Side(experiment, TRACKED)}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    torch.set_num_threads(1)
    with steady():
        for number in range(int(rounds)):
            for name, side in sorted(sides.items(), reverse=bool(number % 2)):
                began = time.process_time()
                side.one_round()
                seconds[name].append(time.process_time() - began)
    # the spectrum is looked at in every fifth round: five rounds are one sample
    plain, tracked = ([sum(side[i : i + 5]) for i in range(0, len(side) - 4, 5)] for side in seconds.values())
    ratios = sorted(b / a for a, b in zip(plain, tracked, strict=True))
    each = 1000 * statistics.median(plain) / 5
    print(f"{dataset} {experiment.plan.division.model}: {each:.1f} ms a round, ratio {statistics.median(ratios):.4f}")
    print(f"over {len(ratios)} blocks of five rounds: {', '.join(f'{ratio:.3f}' for ratio in ratios)}")


if __name__ == "__main__":
    main(*sys.argv[1:])

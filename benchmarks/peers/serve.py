"""A peer in an environment of its own: `python -m peers.serve flower logistic` trains as many rounds as it is told.

Each line that comes in is a number of rounds, each that goes out the seconds they took and the loss of the model.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from peers.workload import WORK, settle


def made(peer: str, name: str) -> Any:
    if peer == "flower":
        from peers.flower_app import Flower

        return Flower(WORK[name])
    from peers.pfl_app import Pfl

    return Pfl(WORK[name])


def main() -> None:
    peer, name = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the peer prints must not fall between answers
    settle()
    variant = made(peer, name)
    for line in sys.stdin:
        began = time.perf_counter()
        variant.rounds(int(line))
        seconds = time.perf_counter() - began
        answers.write(json.dumps({"seconds": seconds, "loss": WORK[name].judged(variant.module)}) + "\n")
        answers.flush()
    if hasattr(variant, "close"):
        variant.close()
    os._exit(0)  # the peer's threads would wait for rounds to come


if __name__ == "__main__":
    main()

"""Experiments and words of a command line that train in a moment, and what they leave in a folder."""

import os
from pathlib import Path

import tomli_w

import fedkeel as fk
from fedkeel.core.states import read, write
from fedkeel.runs.experiment import fingerprint_of
from problems import small_problem

SMALL = "--dataset digits --model logistic --set epochs=1 --set batch_size=200 --engine serial".split()


def experiment(rounds=3, **changes):
    settings = dict(problem=small_problem(), method="scaffold", participation=0.5, epochs=1, batch_size=4, lr=0.05)
    return fk.Experiment(rounds=rounds, **settings | changes)


def train(path, exp=None):
    return fk.run(exp or experiment(), out=path, engine="serial", checkpoint_seconds=0.0)


def contents(path):
    """What each file below a folder holds."""
    return {p.relative_to(path): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}


def forge(folder, data):
    """Another experiment in a run's folder; whoever forges one forges its checkpoints too."""
    (folder / "experiment.toml").write_text(tomli_w.dumps(data), encoding="utf-8")
    for path in (folder / "checkpoint").glob("[0-9]*.safetensors"):
        arrays, facts = read(path)
        facts.pop("check")
        write(path, arrays, facts | {"fingerprint": fingerprint_of(data)})


def environment(**more):
    """The environment of a process that finds this package."""
    paths = [str(Path(fk.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"} | more

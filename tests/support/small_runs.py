"""Words of a command line that train in a moment."""

import os
from pathlib import Path

import tomli_w

import fedkeel
from fedkeel.core.states import read, write
from fedkeel.runs.experiment import fingerprint_of

SMALL = "--dataset digits --model logistic --set epochs=1 --set batch_size=200 --engine serial".split()


def forge(folder, data):
    """Another experiment in a run's folder; whoever forges one forges its checkpoints too."""
    (folder / "experiment.toml").write_text(tomli_w.dumps(data), encoding="utf-8")
    for path in (folder / "checkpoint").glob("[0-9]*.safetensors"):
        arrays, facts = read(path)
        facts.pop("check")
        write(path, arrays, facts | {"fingerprint": fingerprint_of(data)})


def environment(**more):
    """The environment of a process that finds this package."""
    paths = [str(Path(fedkeel.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"} | more

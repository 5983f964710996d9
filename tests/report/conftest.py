"""Real runs to report on."""

import json
from functools import cache

import pytest

import fedkeel as fk


@pytest.fixture(scope="session")
def real_run(tmp_path_factory):
    """`real_run("fedavg", seed)`: the folder of a run on the digits, tracked; that of seed 0 is analysed."""
    from fedkeel.studies.diagnose import Extent, analyse

    root = tmp_path_factory.mktemp("real")

    @cache
    def make(method, seed):
        short = {"rounds": 3, "epochs": 1, "participation": 0.2}
        exp = fk.Experiment(dataset="digits", model="mlp", method=method, seed=seed, partition_seed=0, **short)
        out = root / method / str(seed)
        run = fk.run(exp, out=out, engine="serial", track=("drift", "spectrum"))
        if seed == 0:
            analyse(run, extent=Extent(clients=4, samples=50, points=5, lanczos_steps=5, probes=2))
        return out

    return make


@pytest.fixture(scope="session")
def real_runs(real_run):
    """The folder of two methods with two seeds each."""
    made = [real_run(method, seed) for method in ("fedavg", "fedfft") for seed in (0, 1)]
    return made[0].parents[1]


@pytest.fixture
def data_of():
    """The data that a page embeds."""

    def read(text):
        return json.loads(text.split('id="data">')[1].split("</script>")[0])

    return read

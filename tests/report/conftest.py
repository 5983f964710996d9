"""Real runs to report on."""

import json

import pytest

import fedkeel as fk


@pytest.fixture(scope="session")
def real_runs(tmp_path_factory):
    """Two methods with two seeds each on the digits, tracked; one of them analysed."""
    from fedkeel.studies.diagnose import Extent, analyse

    root = tmp_path_factory.mktemp("real")
    for method in ("fedavg", "fedfft"):
        for seed in (0, 1):
            short = {"rounds": 3, "epochs": 1, "participation": 0.2}
            exp = fk.Experiment(dataset="digits", model="mlp", method=method, seed=seed, partition_seed=0, **short)
            out = root / method / str(seed)
            run = fk.run(exp, out=out, engine="serial", track=("drift", "spectrum"))
            if seed == 0:
                analyse(run, extent=Extent(clients=4, samples=50, points=5, lanczos_steps=5, probes=2))
    return root


@pytest.fixture
def data_of():
    """The data that a page embeds."""

    def read(text):
        return json.loads(text.split('id="data">')[1].split("</script>")[0])

    return read

"""What many tests share: small problems with a known shape, and the command line.

Libraries are imported by those who use them: the process that hands tests out to others would wait for them in vain.
"""

import contextlib
import gc
import json
import logging
import os
from types import SimpleNamespace

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
gc.set_threshold(50_000, 20, 20)  # modules, of which most is made, are no garbage: to look through them takes long


def pytest_configure(config):
    """Laws are tried on fewer drawn examples in the quick run, the slow one tries all; a busy machine may be slow."""
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        return  # this process only hands tests out
    quick = config.option.markexpr == "not slow"
    with contextlib.suppress(ImportError):  # not everybody's tests draw examples
        from hypothesis import HealthCheck, settings

        patient = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
        settings.register_profile("here", max_examples=20 if quick else 100, **patient)
        settings.load_profile("here")
    if quick:
        with contextlib.suppress(ImportError, AttributeError):  # newer ones read every module for numbers to draw
            from hypothesis.internal.conjecture import providers

            providers._get_local_constants = providers.Constants


def pytest_collection_finish():
    with contextlib.suppress(ImportError):
        import hypothesis  # noqa: F401 - what it loads asks who refers to what, and sees nothing that is frozen
    gc.freeze()  # nor is what was imported: no later search looks at it again


@pytest.fixture(scope="session", autouse=True)
def written_but_not_waited_for():
    """No test cuts the power: what was written is read back without a wait for the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def loggers_that_pass_on():
    """Before and after each step of a test pytest visits all loggers that pass nothing on: PyTorch has fifty."""
    import torch  # noqa: F401

    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith("torch.") and isinstance(logger, logging.Logger):
            logger.propagate = True


@pytest.fixture(scope="session", autouse=True)
def shared_workers():
    """Pools take processes that a pool before them has left."""
    from shared_workers import close_all, worker

    from fedkeel.engines import processes

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "Worker", worker)
        yield
    close_all()


@pytest.fixture(scope="session", autouse=True)
def done_once():
    """The same method is checked, and rehearsed on the same layout, once; so is the command line built, and so on."""
    from done_once import DONE_ONCE

    with pytest.MonkeyPatch.context() as patch:
        for (module, name), once in DONE_ONCE.items():
            patch.setattr(module, name, once)
        yield


@pytest.fixture
def toy():
    """Three clients with one quadratic each, the shared toy of the test vectors."""
    import torch

    import fedkeel as fk
    from problems import CENTRE, CURVATURE, quadratic

    clients = [(CURVATURE[i : i + 1], CENTRE[i : i + 1]) for i in range(3)]
    return fk.Problem(params={"w": torch.ones(2, dtype=torch.float64)}, loss=quadratic, clients=clients)


@pytest.fixture
def small():
    """A small module and six clients of unequal size, one of them with a single sample."""
    from problems import small_problem

    return small_problem()


@pytest.fixture(params=[True, False], ids=["oneDNN", "no oneDNN"])
def onednn(request, monkeypatch):
    """Convolutions by oneDNN and by PyTorch itself, whichever this machine would take."""
    import torch

    from fedkeel.engines import machine

    if request.param and not torch.backends.mkldnn.is_available():
        pytest.skip("this PyTorch was built without oneDNN")
    monkeypatch.setattr(machine, "ONEDNN", request.param)
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", request.param)
    return request.param


# ---- the command line, called in this process: exit code, stdout, stderr ---------------------------------------------
@pytest.fixture
def fedkeel(tmp_path, monkeypatch, capsys):
    """`fedkeel("run", …)` in an empty folder."""
    from fedkeel.cli.main import call

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDKEEL_DATA", str(tmp_path / "data"))
    for name in ("NO_COLOR", "FORCE_COLOR", "FEDKEEL_TRACEBACK"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments):
        capsys.readouterr()
        code = call([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return SimpleNamespace(code=code, out=out, err=err)

    return run


@pytest.fixture
def trained(fedkeel):
    """A small run as JSON: `trained("--method", "fedavg")`."""
    from small_runs import SMALL

    def run(*arguments):
        done = fedkeel("run", *SMALL, "--rounds", "2", "--json", *arguments)
        assert done.code == 0, done.err
        return json.loads(done.out)["runs"]

    return run


@pytest.fixture
def drawn_only(monkeypatch):
    """No chart of a page is drawn, which takes longest; `drawn_only("Test accuracy")`: no other one is."""
    from fedkeel.report import drawing, page

    def choose(*titles):
        monkeypatch.setattr(
            page, "embed", lambda figure, title: drawing.embed(figure, title) if title in titles else "<svg></svg>"
        )

    choose()
    return choose


@pytest.fixture
def constant_weights(monkeypatch):
    """Weights of networks are not drawn: for tests that count them or look at shapes."""
    import torch

    for name in ("kaiming_uniform_", "kaiming_normal_", "uniform_", "normal_", "trunc_normal_"):
        monkeypatch.setattr(torch.nn.init, name, lambda tensor, *how, **more: tensor.data.fill_(0.01))


@pytest.fixture
def untrained(monkeypatch):
    """Nothing may be trained from here on."""
    from fedkeel.cli import training

    monkeypatch.setattr(training, "run", None)

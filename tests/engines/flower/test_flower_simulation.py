"""`--engine flower`: Flower's own simulation runtime gives the bits of the serial engine."""

import gc

import pytest

pytest.importorskip("flwr", reason='needs flwr: pip install "fedkeel[flower]"')
pytest.importorskip("ray.exceptions", reason='needs ray: pip install "fedkeel[flower]"')

from federations import experiment, problem, same

import fedkeel as fk
from fedkeel.errors import RunError

pytestmark = [
    pytest.mark.slow,
    # Ray leaves handles of its own processes open
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(autouse=True)
def collected_here():
    """What Ray leaves open is found while that is ignored, not in the middle of another file."""
    yield
    gc.collect()


@pytest.mark.parametrize("method", ["scaffold", "fedfft-d", "ditto", "fedlaw"])
def test_the_simulation_is_bitwise_equal_to_serial(method):
    exp = experiment(problem(), method, participation=0.6)
    serial, flower = fk.run(exp, engine="serial"), fk.run(exp, engine="flower", workers=2)
    same(serial, flower)
    assert serial.result == flower.result


def test_a_simulation_resumes(tmp_path):
    """The nodes are new and remember nothing: their states come from the checkpoint."""
    exp = experiment(problem(), "feddyn", rounds=4)
    fk.run(exp.with_(rounds=2), out=tmp_path / "run", engine="flower", workers=2)
    again = fk.run(exp, out=tmp_path / "run", engine="flower", workers=2)
    same(fk.run(exp, engine="serial"), again)
    more = exp.with_(rounds=5)  # and under another engine: its checkpoint has no trace of Flower
    same(fk.run(more, engine="serial"), fk.run(more, out=tmp_path / "run", engine="serial"))


def test_a_final_phase_follows_the_simulation():
    given = problem()
    tested = fk.Problem(
        model=given.model, loss=given.loss, clients=given.clients, test=given.test, classes=3, tests=given.clients
    )
    exp = experiment(tested, "fedavg-ft", evaluation={})
    serial, flower = fk.run(exp, engine="serial"), fk.run(exp, engine="flower", workers=2)
    assert "tuned" in serial.result
    assert serial.result == flower.result


def test_what_the_users_code_raises_is_named(caplog):
    given = problem()

    def explode(output, target):
        if output.requires_grad:
            raise ZeroDivisionError("in the user's own loss")
        return output.sum(-1)

    broken = fk.Problem(model=given.model, loss=explode, clients=given.clients, test=given.test)
    with pytest.raises(RunError, match="only 0 of 6 clients answered in round 1"):
        fk.run(experiment(broken), engine="flower", workers=2)
    assert "in explode: ZeroDivisionError: in the user's own loss" in caplog.text  # a site would tell the type alone

"""Layers that a method freezes stay where they were, beside clip, weight decay and an optimiser."""

from pathlib import Path

import pytest

import fedkeel as fk
from fedkeel.testing.trial import Trial

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "methods.md").read_text(encoding="utf-8")
BODY = fk.OnlyLayers(("0.*",))
CHAINS = {
    "the guide's": [BODY, fk.ClipHere(), fk.DecayHere(), BODY],
    "with AdamW": [BODY, fk.ClipHere(), fk.AdamW(), fk.DecayHere(), BODY],
    "with momentum": [BODY, fk.ClipHere(), fk.LocalMomentum(0.9), fk.DecayHere(), BODY],
}


def moved(chain, engine):
    """How far each parameter moves in three rounds that clip and decay."""
    trial = Trial(fk.method("own", gradient=chain, weights=fk.BySize()))
    run = trial.run(engine=engine, weight_decay=0.1, clip=0.1)
    first = trial.problem.model.named_parameters()
    return {name: float((run.params[name] - one.detach().double()).abs().max()) for name, one in first}


@pytest.mark.parametrize("engine", ["serial", "stacked"])
@pytest.mark.parametrize("chain", CHAINS)
def test_frozen_layers_do_not_move_at_all(chain, engine):
    found = moved(CHAINS[chain], engine)
    assert found["0.weight"] > 1e-4
    assert found["2.weight"] == found["2.bias"] == 0.0


def test_without_the_second_filter_they_decay_and_the_guide_has_it():
    assert moved([BODY], "serial")["2.weight"] > 1e-3
    assert "gradient=[body, fk.ClipHere(), fk.DecayHere(), body]" in GUIDE

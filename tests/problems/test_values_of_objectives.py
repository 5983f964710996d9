"""Values of an objective that are no real numbers are refused, by every engine alike."""

from dataclasses import dataclass

import pytest

import fedkeel as fk


@dataclass(frozen=True)
class Imaginary(fk.Objective):
    def losses(self, output, target, given):
        return output[:, 0] * 1j


@dataclass(frozen=True)
class Counted(fk.Objective):
    def losses(self, output, target, given):
        return (output.argmax(1) != target).long()


@pytest.mark.parametrize("engine", ["serial", "stacked"])
@pytest.mark.parametrize(("objective", "kind"), [(Imaginary(), "complex64"), (Counted(), "int64")])
def test_values_that_are_no_real_numbers_are_refused(objective, kind, engine):
    method = fk.method("mine", objective=objective, weights=fk.BySize())
    experiment = fk.Experiment(method=method, dataset="digits", model="logistic", rounds=1)
    name = type(objective).__name__
    with pytest.raises(fk.MethodError, match=f"objective {name} of mine gives values of torch.{kind}"):
        fk.run(experiment, engine=engine)

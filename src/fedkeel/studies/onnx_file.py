"""A trained network as an ONNX file, which runs where neither fedkeel nor PyTorch is."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedkeel.core.states import write_atomically
from fedkeel.errors import RequestError
from fedkeel.problems.calling import arrange_inputs, read_logits
from fedkeel.runs.finished_run import Run
from fedkeel.studies.subject import Subject
from fedkeel.text import first_line

SAMPLES = 2  # of one sample, the exporter would take the number of samples for a constant


class ByPosition(nn.Module):
    """A network with named inputs, given in the order of their names; what comes out are its logits."""

    def __init__(self, network: nn.Module, names: Sequence[str]):
        super().__init__()
        self.network, self.names = network, names

    def forward(self, *inputs: Tensor) -> Any:
        placed, named = arrange_inputs(self.network, inputs, self.names)
        return read_logits(self.network(*placed, **named))


def write_onnx(run: Run, file: Path, *, trust: bool = False) -> list[str]:
    """Write a run's network for any number of samples, prepared as for training; return the names of its inputs."""
    if missing := [name for name in ("onnx", "onnxscript") if find_spec(name) is None]:
        raise RequestError(f"an ONNX file needs {' and '.join(missing)}.", "pip install 'fedkeel[onnx]'")
    module, subject = run.model(trust=trust), Subject(run)
    inputs, named = tuple(tensor.cpu() for tensor in subject.test_samples(SAMPLES)[:-1]), subject.task.problem.names
    if named is not None:
        names = list(named[: len(inputs)])
        module = ByPosition(module, names).eval()
    else:
        names = ["input"] if len(inputs) == 1 else [f"input_{number}" for number in range(len(inputs))]
    each = tuple({0: torch.export.Dim("samples")} for _ in inputs)
    shapes = each if named is None else (each,)  # of *inputs

    def export(path: Path) -> None:
        torch.onnx.export(
            module, inputs, path, dynamo=True, verbose=False, external_data=False,
            input_names=names, output_names=["output"], dynamic_shapes=shapes,
        )  # fmt: skip

    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")  # they are about the exporter's own parts, and so is its log
            logging.getLogger("torch.onnx").setLevel(logging.ERROR)
            write_atomically(file, export)
    except torch.onnx.OnnxExporterError as error:
        reason = first_line(error.__cause__ or error)
        raise RequestError(
            f"PyTorch cannot export this network: {reason}", "fedkeel export model RUN model.safetensors"
        ) from error
    return names

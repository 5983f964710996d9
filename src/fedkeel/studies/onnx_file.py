"""A trained network as an ONNX file, which runs where neither fedkeel nor PyTorch is."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from importlib.util import find_spec
from pathlib import Path

import torch

from fedkeel.core.states import write_atomically
from fedkeel.errors import RequestError
from fedkeel.runs.finished_run import Run
from fedkeel.studies.subject import Subject

SAMPLES = 2  # of one sample, the exporter would take the number of samples for a constant


def write_onnx(run: Run, file: Path, *, trust: bool = False) -> list[str]:
    """Write a run's network for any number of samples, prepared as for training; return the names of its inputs."""
    if missing := [name for name in ("onnx", "onnxscript") if find_spec(name) is None]:
        raise RequestError(f"an ONNX file needs {' and '.join(missing)}.", "pip install 'fedkeel[onnx]'")
    module, subject = run.model(trust=trust), Subject(run)
    if subject.task.problem.names:
        raise RequestError("this network takes named inputs.", "give run.model() and a sample to torch.onnx.export")
    inputs = tuple(tensor.cpu() for tensor in subject.test_samples(SAMPLES)[:-1])
    names = ["input"] if len(inputs) == 1 else [f"input_{number}" for number in range(len(inputs))]
    shapes = tuple({0: torch.export.Dim("samples")} for _ in inputs)

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
        reason = next((line for line in str(error.__cause__ or error).splitlines() if line.strip()), "")
        raise RequestError(
            f"PyTorch cannot export this network: {reason}", "fedkeel export model RUN model.safetensors"
        ) from error
    return names

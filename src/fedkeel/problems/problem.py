"""Your own problem: a model or plain parameters, a loss, and the data of each client."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from types import FunctionType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedkeel.data.clients import ClientData, NamedRows, Sample, TensorClients, check_names, names_of, to_tensors
from fedkeel.data.forms import copy_containers, read_forms
from fedkeel.data.tables import Label
from fedkeel.errors import ExperimentError, explain_typos
from fedkeel.problems.given_network import check_function, check_params, check_prepare, list_classes, read_network
from fedkeel.problems.metrics import find_metrics
from fedkeel.randomness import choice, key
from fedkeel.ranges import Count
from fedkeel.typed_values import read_values, types_of

CLIENTS = "clients=[client_0_data, client_1_data, …]"
PLAIN = {"head": "fc.*", "classes": 10, "separable": False, "name": "hospitals", "columns": ("age", "pressure")}
"""Fields that are checked by their types, and what they may look like."""
SEEN_CLIENTS, SEEN_BYTES = 256, 16 << 20
OF_MODULE = ("_parameters", "_buffers", "_modules")
Prepare = Callable[[Sample, "NDArray[np.uint64] | None"], Sample]


@explain_typos("a problem", ExperimentError)
@dataclass(frozen=True, eq=False)
class Problem:
    """What is to be learned, and from whom.

    With a `model`, data are tuples whose last tensor is the target: `loss(model(*inputs), target)`, or dicts whose
    target is called `labels`: `loss(model(**inputs), labels)`; the loss gets the `logits` of an output that has some.
    With `params`, a dict of tensors, there is no module: `loss(params, batch)`, where batch is what a client's data are
    (a tensor, a tuple or a dict). `loss` returns one value per sample, or their mean; set `separable` False where the
    loss of a batch is not the mean of what it is of each sample (class weights are noticed). `metrics` are functions by
    name, or names: "f1", "auc", "ece"; one that returns a value per sample is averaged, one that returns a number sees
    all samples. Data may also be lists of samples, map-style data sets, DataFrames, and CSV or Parquet files; `label`
    names the column or part that is predicted.
    """

    loss: Callable[..., Tensor]
    clients: Any  # a list of the data of each, an object that knows `sizes` and `rows`, or a folder of tables
    model: nn.Module | None = None
    params: Mapping[str, Tensor] | None = None
    test: Any = None
    head: tuple[str, ...] | str | None = None
    classes: Count | None = None
    proxy: Any = None
    metrics: Any = field(default_factory=dict)
    tests: Sequence[Any] | ClientData | None = None  # each client's own test set
    separable: bool = True
    name: str | None = None  # what tables and reports call it
    prepare: Prepare | None = None  # raw rows -> what the model sees; keys (one per sample) ask for augmentation
    label: Label | None = None  # of data whose parts have names; several columns are one target
    columns: tuple[str, ...] | None = None  # of tables, in this order: the inputs; if not given, those of the first

    def __post_init__(self) -> None:
        plain = {word: getattr(self, word) for word in PLAIN}
        read_values(plain, types_of(Problem), ExperimentError, "a problem", PLAIN)  # as they are: digests hold them
        if isinstance(self.head, str):
            object.__setattr__(self, "head", (self.head,))
        if (self.model is None) == (self.params is None):
            raise ExperimentError(
                "a problem has either a model or params.", "Problem(model=module, …) or Problem(params={…}, …)"
            )
        check_function("loss", self.loss, "loss=torch.nn.functional.cross_entropy")
        if self.prepare is not None:
            check_prepare(self.prepare)
        if self.params is not None:
            check_params(self.params)
        object.__setattr__(self, "model", read_network(self.model))
        forms = read_forms(self.clients, self.test, self.tests, self.proxy, self.label, self.columns)
        for part, data in (vars(forms) | {"params": self.params, "head": self.head}).items():
            object.__setattr__(self, part, copy_containers(data))
        object.__setattr__(self, "label", None)  # `dataclasses.replace` would look for it in data that are read already
        for word, data in (("clients", self.clients), ("tests", () if self.tests is None else self.tests)):
            knows = hasattr(data, "rows") and isinstance(getattr(data, "sizes", None), np.ndarray)
            if not isinstance(data, Sequence) and not knows:
                listed = CLIENTS if word == "clients" else "tests=[client_0_test, client_1_test, …]"
                raise ExperimentError(
                    f"the {word} of a problem are a list of their data, or know `sizes` (an array) and `rows`, "
                    f"not {type(data).__name__}.",
                    f"clients have numbers: {word}=list(d.values())" if isinstance(data, Mapping) else listed,
                )
        if isinstance(self.clients, Sequence) and len(self.clients) == 0:
            raise ExperimentError("a problem needs at least one client.", CLIENTS)
        object.__setattr__(self, "metrics", find_metrics(self.metrics))

    @property
    def title(self) -> str:
        """What tables and reports call it."""
        return self.name or "a problem of its own"

    def __repr__(self) -> str:
        sizes = self.data.sizes
        few, many = (int(sizes.min()), int(sizes.max())) if len(sizes) else (0, 0)
        held = f"{few}" if few == many else f"{few} to {many}"
        what = "params" if self.model is None else type(self.model).__name__
        return f"Problem({self.title}: {what}, {_name_of(self.loss)}; {len(sizes)} clients of {held} samples)"

    @cached_property
    def names(self) -> tuple[str, ...] | None:
        """What the parts of a sample are called, the target last; None where they have no names."""
        if isinstance(self.clients, Sequence):
            return names_of(self.clients[0], "client 0")
        there = np.flatnonzero(self.clients.sizes)[:1]
        return names_of(self.clients.rows(int(there[0]), np.zeros(1, np.int64)), "client 0") if len(there) else None

    def with_names(self, data: ClientData) -> ClientData:
        """Data that know their rows, as tensors also where they give them by name."""
        return data if self.names is None else NamedRows(data)

    @property
    def data(self) -> ClientData:
        return TensorClients(self.clients) if isinstance(self.clients, Sequence) else self.with_names(self.clients)

    @property
    def tests_of_clients(self) -> ClientData | None:
        if self.tests is None or not isinstance(self.tests, Sequence):
            return None if self.tests is None else self.with_names(self.tests)
        if len(self.tests) != len(self.data.sizes):
            raise ExperimentError(
                f"{len(self.tests)} test sets of clients were given for {len(self.data.sizes)} clients.",
                "tests=[client_0_test, client_1_test, …]",
            )
        return TensorClients(self.tests)

    def test_data(self) -> ClientData | None:
        """The test set as the data of one client."""
        if self.test is None or hasattr(self.test, "rows"):
            return None if self.test is None else self.with_names(self.test)
        check_names({"client 0": self.names, "the test set": names_of(self.test, "the test set")})
        return TensorClients([to_tensors(self.test, "the test set")])

    @property
    def functions(self) -> dict[str, Callable[..., Any] | None]:
        return {"loss": self.loss, "prepare": self.prepare} | dict(self.metrics)

    @property
    def code(self) -> tuple[object, ...]:
        """What may be code of one's own: the network's classes, the loss, the preparation, and metrics."""
        functions = [one.func if isinstance(one, partial) else one for one in self.functions.values()]
        alone = [one if isinstance(one, FunctionType) else type(one) for one in functions if one is not None]
        return (*list_classes(self.model), *alone)

    @cached_property
    def made_of(self) -> dict[str, str]:
        """Identity of what a loss, a preparation and metrics are made of beyond their names: the weights and options of
        a module or another object, the arguments of a partial. Functions are made of nothing else.

        Run folders have it beside the digest, since those up to version 1.0.0 have none.
        """
        made = {name: function for name, function in self.functions.items() if _has_parts(function)}
        return {name: _digest_parts(function) for name, function in made.items()}

    def digest(self) -> str:
        """Identity of the problem for run folders: layers, initial weights, what the settings say, and the data.

        Data are seen whole up to 256 clients and 16 MB; beyond that all sizes, and as many clients and rows, drawn
        from everywhere. Of functions only the names are seen; what else they are made of, `made_of` says.
        """
        seen = hashlib.sha256()
        if self.model is not None:
            seen.update(repr(self.model).encode())
        functions = sorted((name, _name_of(function)) for name, function in self.functions.items())
        settings = [self.head, self.classes, self.separable, functions]
        settings += [] if self.names is None else [self.names]
        seen.update(repr(settings).encode())
        weights = self.params or {} if self.model is None else self.model.state_dict()
        for name, value in sorted(weights.items()):
            _feed(seen, name, value)
        proxy = None if self.proxy is None else TensorClients([to_tensors(self.proxy, "the proxy data")])
        parts = {"clients": self.data, "test": self.test_data(), "tests": self.tests_of_clients, "proxy": proxy}
        for name, data in parts.items():
            if data is not None:
                _feed_data(seen, name, data)
        return seen.hexdigest()[:16]


class Recorded(Problem):
    """A problem given from Python as a run's folder knows it, by its digest: nothing can be trained on it."""

    def __init__(self, digest: str):
        object.__setattr__(self, "known", digest)

    @property
    def title(self) -> str:
        return f"problem {self.digest()[:6]}"

    @property
    def code(self) -> tuple[object, ...]:
        return ()

    @property
    def made_of(self) -> dict[str, str]:
        return {}

    def digest(self) -> str:
        return vars(self)["known"]

    def __repr__(self) -> str:
        return f"Problem(given from Python, {self.digest()})"


def digest_of(module: nn.Module) -> str:
    """Identity of a network for run folders: its layers, as it prints them, and its weights."""
    return digest_tensors(module.state_dict(), repr(module))


def digest_tensors(named: Mapping[str, Tensor], about: str = "") -> str:
    """Identity of tensors by name."""
    seen = hashlib.sha256(about.encode())
    for name, value in sorted(named.items()):
        _feed(seen, name, value)
    return seen.hexdigest()[:16]


def _has_parts(function: Any) -> bool:
    """Whether a name does not say all of a function: a partial, a module, or an object of someone else's class."""
    is_object = hasattr(function, "__dict__") and not hasattr(function, "__qualname__")
    return is_object and type(function).__module__.partition(".")[0] != "fedkeel"


def _digest_parts(function: Any) -> str:
    """Identity of what a function is made of, the same in every process."""
    seen = hashlib.sha256()
    _feed_value(
        seen, function if isinstance(function, partial | nn.Module) else [_name_of(function), _fields(function)]
    )
    return seen.hexdigest()[:16]


def _fields(value: Any) -> list[tuple[str, Any]]:
    """The fields of an object by name, of a module with its tensors and modules; private ones are its own affair."""
    of_module = OF_MODULE if isinstance(value, nn.Module) else ()
    public = (name for name in vars(value) if not name.startswith("_") and not (of_module and name == "training"))
    return [(name, vars(value)[name]) for name in sorted((*public, *of_module))]


def _feed_value(seen: Any, value: Any) -> None:
    """Tensors by their bytes, plain values as they are written, all else by its name: what Python writes of an object
    is another text in every process."""
    if isinstance(value, np.ndarray | np.generic):
        value = torch.from_numpy(np.array(value)) if value.dtype.kind in "biuf" else value.tolist()
    if isinstance(value, Tensor):
        _feed(seen, "tensor", value)
    elif isinstance(value, list | tuple):
        seen.update(f"{len(value)} of ".encode())
        for one in value:
            _feed_value(seen, one)
    elif isinstance(value, Mapping):
        _feed_value(seen, [*value.keys(), *value.values()])
    elif isinstance(value, set | frozenset):
        _feed_value(seen, sorted(value, key=repr))
    elif isinstance(value, partial):
        _feed_value(seen, ["partial", value.func, value.args, sorted(value.keywords.items())])
    elif isinstance(value, nn.Module):
        _feed_value(seen, [_name_of(value), _fields(value)])
    elif isinstance(value, bool | int | float | complex | str | bytes | torch.dtype | None):
        seen.update(f"{value!r};".encode())
    else:
        seen.update(f"{_name_of(value)};".encode())


def _name_of(function: Callable[..., Any] | None) -> str:
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def _feed(seen: Any, name: str, value: Tensor) -> None:
    value = value.detach().cpu().contiguous()
    seen.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
    seen.update(value.reshape(-1).view(torch.uint8).numpy())


def _feed_data(seen: Any, name: str, data: ClientData) -> None:
    """All sizes, and all rows or some, drawn from everywhere."""
    seen.update(data.sizes.tobytes())
    there = np.flatnonzero(data.sizes).tolist()
    if not there:
        return
    if len(there) > SEEN_CLIENTS:
        there = [there[i] for i in choice(key(0, "digest"), len(there), SEEN_CLIENTS)]
    of_row = sum(part.nbytes for part in data.rows(there[0], np.zeros(1, np.int64)))
    fitting, rows = SEEN_BYTES // max(1, of_row), int(data.sizes[there].sum())
    for client in there:
        size = int(data.sizes[client])
        wanted = size if rows <= fitting else min(size, max(1, fitting // len(there)))
        drawn = np.arange(size) if wanted == size else np.array(choice(key(0, "digest", client), size, wanted))
        for part in data.rows(client, drawn):
            _feed(seen, f"{name} {client}", part)

"""Any network for all clients at once: its own `forward` runs once inside vmap, and known functions are taken over.

What a network calls decides, by modules or directly: an operator where there is one, else vmap of that function alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils import _pytree

from fedkeel.kernels import adapted, in_place, recurrent, row_norms
from fedkeel.kernels import operators as of
from fedkeel.kernels import pending_norms as norms
from fedkeel.kernels.client_axis import current_level, map_tensors, outside, put_back, take_off
from fedkeel.kernels.composites import COMPOSITES
from fedkeel.kernels.copies import Copies
from fedkeel.kernels.in_place import ADD, ADD_IN_PLACE, RELU, RELU_IN_PLACE, changes_in_place, name_of, rename
from fedkeel.kernels.keyed_dropout import DRAWING, Drop, KeyedDropout, draws_in_place, dropout
from fedkeel.kernels.layers import GPU_TYPES
from fedkeel.kernels.operators import Operand, StackedPass
from fedkeel.kernels.pending_norms import PendingNorm
from fedkeel.kernels.unbind import unbind
from fedkeel.models.adapters import adapt_linear
from fedkeel.models.text import scan_lstm
from fedkeel.randomness import key_words

OPERATORS: dict[Callable[..., Any], Callable[..., Any]] = {
    F.linear: of.linear,
    F.conv1d: of.conv1d,
    F.conv2d: of.conv2d,
    F.group_norm: norms.group_norm,
    torch.group_norm: norms.group_norm,
    F.batch_norm: norms.batch_norm,
    torch.batch_norm: norms.batch_norm_aten,
    F.layer_norm: row_norms.layer_norm,
    torch.layer_norm: row_norms.layer_norm,
    F.rms_norm: row_norms.rms_norm,
    torch.rms_norm: row_norms.rms_norm,
    F.embedding: of.embedding,
    F.scaled_dot_product_attention: of.attention,
    F.max_pool2d: of.max_pool2d,
    torch.max_pool2d: of.max_pool2d,
    F.avg_pool2d: of.avg_pool2d,
    F.adaptive_avg_pool2d: of.fold(F.adaptive_avg_pool2d),
    torch.cat: of.cat,
    torch.unbind: unbind,
    Tensor.unbind: unbind,
    torch.view_as_complex: of.view_as_complex,
    adapt_linear: adapted.adapt_linear,
    scan_lstm: recurrent.scan_lstm,
    recurrent.step_gru: recurrent.scan_gru,
}


class StackedFunctions(KeyedDropout):
    """Takes over the functions that a network calls; to be entered inside vmap, for one pass.

    `weights` are the leaves as the network sees them, `lowered` the frozen ones by identity in the precision of the
    arithmetic. A norm returns a stand-in without values, and is computed with what follows it. `tally` counts functions
    by ("stacked" or "vmapped", name); `key` is that of the step, for networks that drop something.
    """

    def __init__(
        self,
        at: StackedPass,
        weights: Mapping[str, Tensor],
        lowered: Mapping[int, Tensor] | None = None,
        tally: Counter[tuple[str, str]] | None = None,
        key: Tensor | None = None,
    ):
        super().__init__(key)
        self.at, self.level = at, current_level()
        self.names = {id(weight): name for name, weight in weights.items()}
        self.mixed = any(weight.dtype != at.compute for weight in weights.values())
        self.lowered = dict(lowered or {})
        self.tally: Counter[tuple[str, str]] = Counter() if tally is None else tally
        self.hole = torch.full((), torch.nan, dtype=at.compute, device=at.anchor.device)
        self.pending: dict[int, PendingNorm] = {}
        self.moments: dict[int, int] = {}  # running moments, and the norm that waits and changes them
        self.values: dict[int, Tensor] = {}
        self.copies = Copies(self.level)
        self.stand_ins: list[Tensor] = []  # alive, so that no other tensor gets the identity of one

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in in_place.QUERIES:
            if func == in_place.REQUIRES_GRAD:
                return self.needs_gradient(args[0])
            return self.at.compute if func == in_place.DTYPE and id(args[0]) in self.names else func(*args, **kwargs)
        if current_level() != self.level:  # the network itself uses vmap or grad
            return func(*self.ready(args), **self.ready(kwargs))
        if self.pending and (joined := self.join(func, args, kwargs)) is not None:
            return joined
        if self.copies.known and isinstance(args[0] if args else None, Tensor) and changes_in_place(func, kwargs):
            if func not in DRAWING:  # which may write nothing
                self.write(args[0])
        if func in OPERATORS and (taken := self.take(OPERATORS[func], args, kwargs)) is not None:
            if OPERATORS[func] is not unbind:  # a shape
                self.tally["stacked", name_of(func)] += 1
            return taken
        if func in DRAWING:
            self.tally["stacked", name_of(func)] += 1
            given, options = self.ready(args), rename(self.ready(kwargs))
            if DRAWING[func] is dropout and given and given[0].is_cuda and given[0].dtype in GPU_TYPES:
                made = self.drop(*given, **options)
            else:
                made = DRAWING[func](self.draw, *given, **options)
            if self.copies.images:
                self.copies.follow(given, made)
            if not draws_in_place(func, args, kwargs) or made is given[0]:
                return made
            if take_off(given[0], self.level)[1]:
                return self.write(args[0]).copy_(made)
            self.copies.replace(given[0])  # one for all clients cannot hold what each draws
            return self.replace(args[0], made)
        if func in COMPOSITES:
            with self:
                made = COMPOSITES[func](*args, **kwargs)
            if made is not None:
                return self.copies.note(func, self.actual(args[0]), made) if func is Tensor.view else made
        if (name := name_of(func)) in in_place.COSTLY and self.concerns_clients((args, kwargs)):
            self.tally["vmapped", name] += 1
        given = self.ready(args)
        self.copies.see(func, given)
        made = func(*given, **self.ready(kwargs))
        if func in in_place.SHAPES and given:
            made = self.copies.note(func, given[0], made)
        if self.copies.images and name not in in_place.COSTLY:
            self.copies.follow(given, made)
        return made

    # ---- values ----------------------------------------------------------------------------------------------------
    def take(self, operator: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Apply an operator to tensors with their client axes."""
        found, seen = list[Operand](), list[Tensor]()

        def note(value: Tensor) -> Operand:
            found.append(self.operand(value))
            seen.append(value)
            return found[-1]

        given, options = map_tensors(note, args), rename(map_tensors(note, kwargs))
        if not any(part.stacked for part in found):
            return None
        with outside(), self.without_autocast():
            result = operator(self.at, *given, **options)
        if result is None:
            return None
        if isinstance(result, PendingNorm):
            first, x = args[0] if args else None, found[0]
            passes = isinstance(first, Tensor) and x.stacked and x.name is None and x.value.dtype == self.at.compute
            hole = self.stand_in(replace(result, given=first) if passes else result)
            own = {id(moment) for moment in result.changes}
            pairs = zip(seen, found, strict=True)
            self.moments.update((id(one), id(hole)) for one, part in pairs if id(part.value) in own)
            return hole
        return map_tensors(partial(put_back, level=self.level), result)

    def without_autocast(self) -> AbstractContextManager[Any]:
        """Let operators choose the precision: autocast, which is there for frozen bases, has norms in float32."""
        kind = self.at.anchor.device.type
        return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()

    def concerns_clients(self, given: Any) -> bool:
        """Whether some tensor among arguments has a client axis; without one, a function is called once for all."""
        found = list[Tensor]()
        map_tensors(found.append, given)
        return any(id(value) in self.pending or take_off(value, self.level)[1] for value in found)

    def needs_gradient(self, value: Tensor) -> bool:
        """Whether a tensor requires gradients, which vmap hides."""
        if norm := self.pending.get(id(value)):
            return norm.needs_gradient
        return id(value) in self.names or take_off(self.values.get(id(value), value), self.level)[0].requires_grad

    def operand(self, value: Tensor) -> Operand:
        name = self.names.get(id(value))
        return Operand(*take_off(self.actual(value) if name is None else value, self.level), name)

    def ready(self, given: Any) -> Any:
        """Replace stand-ins by values, and weights by weights in the precision of the arithmetic."""
        if not (self.mixed or self.lowered or self.stand_ins or self.copies.changed):
            return given
        return map_tensors(self.actual, given)

    def write(self, value: Tensor) -> Tensor:
        """Return what a function may write into in the place of a tensor."""
        given = self.actual(value)
        own = self.copies.write(given)
        return own if own is given else self.replace(value, own)

    def replace(self, value: Tensor, made: Tensor) -> Tensor:
        self.values[id(value)] = made
        self.stand_ins.append(value)
        return made

    def actual(self, value: Tensor) -> Tensor:
        one = id(value)
        waits = self.moments.pop(one, one)  # what reads running moments, as a second use of a batch norm does
        if waits != one and waits in self.pending and self.pending[waits].changes:
            self.values[waits] = self.compute(self.pending.pop(waits))
        if one in self.pending:
            self.values[one] = self.compute(self.pending.pop(one))
        value = self.values.get(one, value)
        if self.copies.changed:
            self.copies.read(value)
        if one in self.values:
            return value
        if self.mixed and one in self.names and one not in self.lowered:
            with torch.enable_grad():  # the first to read it may want no gradient
                self.lowered[one] = value.to(self.at.compute)
        return self.lowered.get(one, value)

    def drop(self, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        """Drop single numbers on a GPU, with the mask that `dropout` would draw."""
        if not training or p == 0:
            return x
        key, keyed = take_off(self.next_key(), self.level)
        value, stacked = take_off(x, self.level)
        with outside():
            clients = self.at.clients
            value = value if stacked else value.expand(clients, *value.shape)
            words = key_words(key if keyed else key.expand(clients), self.calls)
            return put_back(Drop.apply(value, *(word.contiguous() for word in words), p), self.level)

    # ---- norms that wait -------------------------------------------------------------------------------------------
    def stand_in(self, norm: PendingNorm) -> Tensor:
        """Return a tensor of the right shape in place of a norm; its values, if they were ever used, are no numbers."""
        hole = self.hole.expand(norm.x.shape[1:])
        self.stand_ins.append(hole)
        self.pending[id(hole)] = norm
        return hole

    def compute(self, norm: PendingNorm, relu: bool = False) -> Tensor:
        with outside():
            y, passed = norm.compute(relu)
            if passed is not None and norm.given is not None:
                self.copies.pair(norm.x, passed)
                self.replace(norm.given, put_back(passed, self.level))
            return put_back(y, self.level)

    def find_waiting(self, given: Any) -> PendingNorm | None:
        """The norm that waits in the place of a tensor, if what is called now has gradients as the norm has."""
        norm = self.pending.get(id(given))
        return norm if norm is not None and norm.graded == torch.is_grad_enabled() else None

    def join(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        """Join a shortcut or a ReLU to a norm that waits for it; compute norms before anything is changed in place."""
        first = args[0] if args else None
        norm = self.find_waiting(first)
        changes = changes_in_place(func, kwargs)
        if norm is None and changes and not (isinstance(first, Tensor) and not first.is_floating_point()):
            self.flush()  # not for the counters of batch norms
        if func in RELU or func in RELU_IN_PLACE:
            if norm is None:
                return None
            self.tally["stacked", "relu"] += 1
            value = self.compute(norm, relu=True)
            if changes:
                del self.pending[id(first)]
                self.values[id(first)] = value
            return value
        if (func in ADD or func in ADD_IN_PLACE) and len(args) == 2 and not kwargs:
            other = args[1]
            if norm is None and not changes:
                first, other, norm = other, first, self.find_waiting(other)
            if norm is None or norm.shortcut is not None or other is first or not isinstance(other, Tensor):
                return None
            beside, stacked = take_off(self.actual(other), self.level)
            if not stacked or beside.shape != norm.x.shape:
                return None
            self.tally["stacked", "add"] += 1
            if changes:
                self.pending[id(first)] = norm.add(beside)
                return first
            return self.stand_in(norm.add(beside))
        return None

    def flush(self) -> None:
        """Compute all norms that wait; what they were given may be changed next, so none passes it on."""
        for one in list(self.pending):
            self.values[one] = self.compute(replace(self.pending.pop(one), given=None))

    def finish(self, output: Any) -> Any:
        """Return the network's output with values in place of stand-ins; running moments follow unused norms too."""
        for one, norm in list(self.pending.items()):
            if norm.changes:
                self.values[one] = self.compute(self.pending.pop(one))
        return _pytree.tree_map_only(Tensor, self.actual, output) if self.stand_ins or self.copies.changed else output

"""Recurrent layers of stacked clients: a product and a small kernel for each step; the weight's gradient at once.

`lstm`, `gru` and the others stand for PyTorch's functions of these names, for one client; what they call is taken over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.overrides import wrap_torch_function

from fedkeel.kernels.gradient_slots import Into, describe, place
from fedkeel.kernels.operators import Operand, StackedPass
from fedkeel.models import text

Scanned = tuple[Tensor, ...]
"""States of all steps `[batch, steps, units]`, and the last of each kind of state."""
Scan = Callable[..., Scanned]
"""Steps through W x + b with the recurrent weight and bias, from the first states."""


# ---- stacked -------------------------------------------------------------------------------------------------------
def scan_lstm(
    at: StackedPass, arriving: Operand, weight: Operand, bias: Operand | None, h: Operand, c: Operand
) -> tuple[Tensor, Tensor, Tensor] | None:
    if not weight.stacked:
        return None
    gates = at.add_bias(at.stack(arriving), bias).permute(2, 0, 1, 3).contiguous()  # [steps, clients, batch, …]
    states, last = LstmScan.apply(gates, at.anchor, weight.value, at.claim(weight), at.stack(h), at.stack(c))
    return states.permute(1, 2, 0, 3), states[-1], last


class LstmScan(torch.autograd.Function):
    """i, f, g, o = gates_t + h U;  c = σ(f) c + σ(i) tanh(g);  h = σ(o) tanh(c).

    gates: `[steps, clients, batch, 4 · units]`.
    """

    @staticmethod
    def forward(
        ctx: Any, gates: Tensor, anchor: Tensor, weight: Tensor, into: Into, h: Tensor, c: Tensor
    ) -> tuple[Tensor, Tensor]:
        low = weight.to(gates.dtype)
        step, fused = low.mT, has_fused_cell(gates.device, gates.dtype)
        hs, cs, kept = [h.contiguous()], [c.contiguous()], []
        for t in range(len(gates)):
            hidden = torch.bmm(hs[-1], step)
            h, c, active = fused_cell(gates[t], hidden, cs[-1]) if fused else plain_cell(gates[t] + hidden, cs[-1])
            hs.append(h)
            cs.append(c)
            kept.append(active)
        states = torch.stack(hs)
        ctx.save_for_backward(low, states, *cs, *kept)
        ctx.into, ctx.weight, ctx.fused = into, describe(weight), fused
        return states[1:].clone(), cs[-1].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dstates: Tensor, dc: Tensor) -> tuple[Tensor | None, ...]:
        low, states, *rest = ctx.saved_tensors
        steps = len(states) - 1
        cs, kept = rest[: steps + 1], rest[steps + 1 :]
        dh, slopes = dstates[-1], []
        for t in reversed(range(steps)):
            back = fused_cell_gradient if ctx.fused else plain_cell_gradient
            dgates, dc = back(dh.contiguous(), dc, cs[t], cs[t + 1], kept[t])
            slopes.append(dgates)
            dh = torch.baddbmm(dstates[t - 1], dgates, low) if t else torch.bmm(dgates, low)
        slopes.reverse()
        into, dw = place(ctx.into, ctx.weight)
        by_client = [part.transpose(0, 1).flatten(1, 2) for part in (torch.stack(slopes), states[:-1])]
        into.copy_(torch.bmm(by_client[0].mT, by_client[1]))
        return torch.stack(slopes), None, dw, None, dh, dc


def plain_cell(gates: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Take one step: h, c, and the gates behind their functions."""
    i, f, g, o = gates.chunk(4, -1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    c = f * c + i * g
    return o * c.tanh(), c, torch.cat([i, f, g, o], -1)


def plain_cell_gradient(dh: Tensor, dc: Tensor, before: Tensor, c: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
    i, f, g, o = active.chunk(4, -1)
    bent = c.tanh()
    dc = dc + dh * o * (1 - bent.square())
    slopes = (dc * g * i * (1 - i), dc * before * f * (1 - f), dc * i * (1 - g.square()), dh * bent * o * (1 - o))
    return torch.cat(slopes, -1), dc * f


def fused_cell(gates: Tensor, hidden: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Do the same in PyTorch's kernel, which knows no clients: their samples form one batch."""
    parts = torch.ops.aten._thnn_fused_lstm_cell(*(part.flatten(0, 1) for part in (gates, hidden, c)))
    h, c, active = (part.unflatten(0, gates.shape[:2]) for part in parts)
    return h, c, active


def fused_cell_gradient(dh: Tensor, dc: Tensor, before: Tensor, c: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
    given = (part.contiguous().flatten(0, 1) for part in (dh, dc, before, c, active))
    dgates, dbefore, _ = torch.ops.aten._thnn_fused_lstm_cell_backward_impl(*given, False)
    return dgates.unflatten(0, dh.shape[:2]), dbefore.unflatten(0, dh.shape[:2])


@cache
def has_fused_cell(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether PyTorch has a kernel for a step of an LSTM on this device, in this precision."""
    if device.type != "cuda":
        return False
    try:
        one = torch.zeros((1, 1, 4), dtype=dtype, device=device)
        _, c, active = fused_cell(one, one, one[..., :1].contiguous())
        fused_cell_gradient(c, c, c, c, active)
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
    return True


def scan_gru(
    at: StackedPass, arriving: Operand, weight: Operand, bias: Operand | None, h: Operand
) -> tuple[Tensor, Tensor] | None:
    if not weight.stacked or (bias is not None and not bias.stacked):
        return None
    gates = at.stack(arriving).permute(2, 0, 1, 3).contiguous()
    slots = at.claim(weight), at.claim(bias)
    states = GruScan.apply(gates, at.anchor, weight.value, None if bias is None else bias.value, slots, at.stack(h))
    return states.permute(1, 2, 0, 3), states[-1]


class GruScan(torch.autograd.Function):
    """r, z, n = gates_t;  u = h U + b;  r = σ(r + u_r);  z = σ(z + u_z);  n = tanh(n + r u_n);  h = n + z (h − n)."""

    @staticmethod
    def forward(
        ctx: Any, gates: Tensor, anchor: Tensor, weight: Tensor, bias: Tensor | None, into: tuple[Into, Into], h: Tensor
    ) -> Tensor:
        low, hs, kept = weight.to(gates.dtype), [h.contiguous()], []
        lift = None if bias is None else bias.to(gates.dtype).unsqueeze(1)
        for gate in gates:
            hidden = torch.bmm(hs[-1], low.mT) if lift is None else torch.baddbmm(lift, hs[-1], low.mT)
            (r, z, n), (hr, hz, hn) = gate.chunk(3, -1), hidden.chunk(3, -1)
            r, z = (r + hr).sigmoid(), (z + hz).sigmoid()
            n = torch.addcmul(n, r, hn).tanh()
            hs.append(torch.lerp(n, hs[-1], z))
            kept.append(torch.stack([r, z, n, hn]))
        states = torch.stack(hs)
        ctx.save_for_backward(low, states, *kept)
        ctx.into, ctx.weight, ctx.bias = into, describe(weight), None if bias is None else describe(bias)
        return states[1:].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dstates: Tensor) -> tuple[Tensor | None, ...]:
        low, states, *kept = ctx.saved_tensors
        dh, arriving, hidden = dstates[-1], [], []
        for t in reversed(range(len(kept))):
            r, z, n, hn = kept[t]
            dn = dh * (1 - z) * (1 - n.square())
            dr = dn * hn * r * (1 - r)
            dz = dh * (states[t] - n) * z * (1 - z)
            arriving.append(torch.cat([dr, dz, dn], -1))
            hidden.append(torch.cat([dr, dz, dn * r], -1))
            dh = torch.baddbmm(dh * z, hidden[-1], low)
            dh = dh + dstates[t - 1] if t else dh
        slopes, before = (part.transpose(0, 1).flatten(1, 2) for part in (torch.stack(hidden[::-1]), states[:-1]))
        into, dw = place(ctx.into[0], ctx.weight)
        into.copy_(torch.bmm(slopes.mT, before))
        db = None
        if ctx.bias is not None:
            into, db = place(ctx.into[1], ctx.bias)
            into.copy_(slopes.sum(1, dtype=into.dtype))
        return torch.stack(arriving[::-1]), None, dw, db, None, dh


# ---- for one client ------------------------------------------------------------------------------------------------
def lstm(x: Tensor, hx: Any, *given: Any) -> tuple[Tensor, Tensor, Tensor] | None:
    """`torch.lstm`, except for packed sequences."""
    if isinstance(hx, Tensor):
        return None
    y, (h, c) = run_layers(text.scan_lstm, x, tuple(hx), *given)
    return y, h, c


def run_one_state(scan: Scan, x: Tensor, hx: Any, *given: Any) -> tuple[Tensor, Tensor] | None:
    """`torch.gru` and PyTorch's other functions with one kind of state, except for packed sequences."""
    if not isinstance(given[0], Sequence):
        return None
    y, (h,) = run_layers(scan, x, (hx,), *given)
    return y, h


@wrap_torch_function(lambda arriving, weight, bias, h: (arriving, weight))
def step_gru(arriving: Tensor, weight: Tensor, bias: Tensor | None, h: Tensor) -> tuple[Tensor, Tensor]:
    """Step through a GRU; stacked clients have another version of it."""
    states = []
    for step in arriving.unbind(1):
        (r, z, n), (hr, hz, hn) = step.chunk(3, -1), F.linear(h, weight, bias).chunk(3, -1)
        z = torch.sigmoid(z + hz)
        new = torch.tanh(n + torch.sigmoid(r + hr) * hn)
        h = new + z * (h - new)
        states.append(h)
    return torch.stack(states, 1), h


def step_rnn(
    bend: Callable[[Tensor], Tensor], arriving: Tensor, weight: Tensor, bias: Tensor | None, h: Tensor
) -> tuple[Tensor, Tensor]:
    """Step through a plain recurrent layer."""
    states = []
    for step in arriving.unbind(1):
        h = bend(step + F.linear(h, weight, bias))
        states.append(h)
    return torch.stack(states, 1), h


def step_projected(
    shrink: Tensor, arriving: Tensor, weight: Tensor, bias: Tensor | None, h: Tensor, c: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Step through an LSTM that has a projection (`proj_size`): h is a product of what it would be."""
    states = []
    for step in arriving.unbind(1):
        i, f, g, o = (step + F.linear(h, weight, bias)).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = F.linear(o.sigmoid() * c.tanh(), shrink)
        states.append(h)
    return torch.stack(states, 1), h, c


def lstm_cell(
    x: Tensor, hx: Sequence[Tensor], w: Tensor, u: Tensor, b: Tensor | None = None, v: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """`torch.lstm_cell`: a layer of one step."""
    _, h, c = text.scan_lstm(F.linear(x, w, b).unsqueeze(1), u, v, *hx)
    return h, c


def run_cell(
    scan: Scan, x: Tensor, h: Tensor, w: Tensor, u: Tensor, b: Tensor | None = None, v: Tensor | None = None
) -> Tensor:
    """`torch.gru_cell` and PyTorch's other cells with one kind of state."""
    return scan(F.linear(x, w, b).unsqueeze(1), u, v, h)[1]


gru, gru_cell = partial(run_one_state, step_gru), partial(run_cell, step_gru)
step_tanh, step_relu = (partial(step_rnn, bend) for bend in (torch.tanh, torch.relu))
rnn_tanh, rnn_relu = (partial(run_one_state, scan) for scan in (step_tanh, step_relu))
rnn_tanh_cell, rnn_relu_cell = (partial(run_cell, scan) for scan in (step_tanh, step_relu))


def run_layers(
    scan: Scan, x: Tensor, first: Scanned, weights: Sequence[Tensor], has_biases: bool, layers: int, dropout: float,
    train: bool, bidirectional: bool, batch_first: bool,
) -> tuple[Tensor, list[Tensor]]:  # fmt: skip
    """Run the layers and directions of a recurrent network, whose weights stand in PyTorch's order."""
    x = x if batch_first else x.transpose(0, 1)
    directions = 1 + bidirectional
    size = len(weights) // (layers * directions)
    lasts: list[Scanned] = []
    for layer in range(layers):
        sides = []
        for backwards in range(directions):
            number = layer * directions + backwards
            w, u, *rest = weights[number * size : number * size + size]
            b, v = rest[:2] if has_biases else (None, None)
            arriving = F.linear(x.flip(1) if backwards else x, w, b)
            step = scan if size % 2 == 0 else partial(step_projected, rest[-1])
            states, *last = step(arriving, u, v, *(part[number] for part in first))
            sides.append(states.flip(1) if backwards else states)
            lasts.append(tuple(last))
        x = torch.cat(sides, -1) if bidirectional else sides[0]
        if dropout and train and layer < layers - 1:
            x = F.dropout(x, dropout)
    return x if batch_first else x.transpose(0, 1), [torch.stack(kind) for kind in zip(*lasts, strict=True)]

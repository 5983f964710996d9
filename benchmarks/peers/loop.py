"""FedAvg as people write it: one client after another, autograd, arithmetic tensor by tensor."""

from __future__ import annotations

import numpy as np
import torch
from peers.workload import Work
from torch import nn


class HandWritten:
    """`rounds(n)` trains n rounds more."""

    def __init__(self, work: Work, device: str = "cpu"):
        self.work, self.module = work, work.module().to(device)
        self.data = [(x.to(device), y.to(device)) for x, y in work.data()]
        self.draw = np.random.default_rng(0)

    def rounds(self, count: int) -> None:
        for _ in range(count):
            self.one()

    def one(self) -> None:
        params, work = list(self.module.parameters()), self.work
        start = [p.detach().clone() for p in params]
        total = [torch.zeros_like(p) for p in start]
        for client in self.draw.choice(work.clients, work.selected, replace=False):
            x, y = self.data[client]
            with torch.no_grad():
                for p, s in zip(params, start, strict=True):
                    p.copy_(s)
            order = torch.randperm(len(x), device=x.device)
            for first in range(0, len(x), work.batch):
                rows = order[first : first + work.batch]
                loss = nn.functional.cross_entropy(self.module(x[rows]), y[rows])
                self.module.zero_grad()
                loss.backward()
                with torch.no_grad():
                    for p in params:
                        p.sub_(p.grad, alpha=work.lr)
            with torch.no_grad():
                for t, p in zip(total, params, strict=True):
                    t.add_(p)
        with torch.no_grad():
            for p, t in zip(params, total, strict=True):
                p.copy_(t / work.selected)

"""Clients' gradients with and without their low frequencies: how much less they diverge, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from fedkeel.analysis.spectrum import layer_divergence
from fedkeel.core.rule import Local, Rule
from fedkeel.core.trees import Tree
from fedkeel.rules import HighPass

RATIO = 0.05  # of the filter that divergences are compared with, where the method has none


def find_filter(rules: Iterable[Rule]) -> HighPass:
    """Find a method's own filter, or one to compare with."""
    return next((rule for rule in rules if isinstance(rule, HighPass)), HighPass(RATIO))


def by(rule: Rule) -> Callable[[Tree], Tree]:
    """Turn a filter into a function of a tree, stacked or not."""

    def filtered(tree: Tree) -> Tree:
        zero, count = tree.scalar(), torch.zeros((), dtype=torch.int64)
        return rule.step(tree, {}, Local(tree, tree, {}, None, zero, count, zero, count))[0]

    return filtered


def compare_divergence(gradients: Tree, high_pass: HighPass) -> dict[str, dict[str, float]]:
    """Measure the divergence of each layer `before` the filter and `after` it.  (SpecGradFilter eq. 5, fig. 2)"""
    return {"before": layer_divergence(gradients), "after": layer_divergence(gradients, by(high_pass))}

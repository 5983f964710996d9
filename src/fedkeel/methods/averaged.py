"""Plug-ins that deploy an average of the server's models."""

from __future__ import annotations

from dataclasses import replace

from fedkeel.core.method import Method
from fedkeel.core.rule import Rule
from fedkeel.errors import MethodError
from fedkeel.ranges import Count, PositiveShare, ShareBelowOne
from fedkeel.rules import ModelEma, ModelSwa


def ema(base: Method, decay: ShareBelowOne = 0.9, share: PositiveShare = 1.0) -> Method:
    """The plug-in `ema+BASE`: evaluate and export an exponential average of the base's models; the base trains as ever.

    `accuracy`, `best`, `params`, `model()` and `model_digest` are the average's; `plain_accuracy` and `plain_digest`
    are those of the model that is trained.
    """
    return deploying(base, "ema", ModelEma(decay, share))


def swa(base: Method, start: ShareBelowOne = 0.75, cycle: Count = 1) -> Method:
    """The plug-in `swa+BASE`: evaluate and export the mean of the base's last models; the base trains as ever.

    start = 0.75 begins after three quarters of the rounds, as is usual; start = 0 averages all rounds.
    `accuracy`, `best`, `params`, `model()` and `model_digest` are the mean's; `plain_accuracy` and `plain_digest` are
    those of the model that is trained.
    """
    return deploying(base, "swa", ModelSwa(start, cycle))


def deploying(base: Method, name: str, rule: Rule) -> Method:
    """The method with a last rule of the server that says what is deployed."""
    if base.deploys_another:
        raise MethodError(
            f"{base.name} deploys a model of its own already, which {name}+ would replace.", f"use one: {base.name}"
        )
    papers = tuple(dict.fromkeys((*base.papers, name)))
    return replace(base, name=f"{name}+{base.name}", server=(*base.server, rule), papers=papers)

"""The ideas. Each is a frozen dataclass whose fields are the paper's hyper-parameters."""

from fedkeel import errors, plugins
from fedkeel.core.rule import Rule
from fedkeel.rules.agreement import *
from fedkeel.rules.averages import *
from fedkeel.rules.controls import *
from fedkeel.rules.corrections import *
from fedkeel.rules.critical import *
from fedkeel.rules.detrending import *
from fedkeel.rules.experts import *
from fedkeel.rules.filters import *
from fedkeel.rules.heavy_ball import *
from fedkeel.rules.layers import *
from fedkeel.rules.learned import *
from fedkeel.rules.momentum import *
from fedkeel.rules.muon import *
from fedkeel.rules.optimisers import *
from fedkeel.rules.personal import *
from fedkeel.rules.perturbations import *
from fedkeel.rules.probes import *
from fedkeel.rules.rates import *
from fedkeel.rules.server_rules import *
from fedkeel.rules.shared_moments import *
from fedkeel.rules.weights import *

RULES: dict[str, type[Rule]] = plugins.Named(
    "rules",
    {
        name: errors.explain_typos(f"rule {name}", errors.MethodError)(kind)
        for name, kind in sorted(globals().items())
        if isinstance(kind, type) and kind is not Rule
    },
)
"""The rules that the modules list in their `__all__`."""

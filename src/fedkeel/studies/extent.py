"""How much of a run is looked at, and which part of it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from fedkeel.analysis.spectrum import BANDS
from fedkeel.errors import RequestError
from fedkeel.ranges import MOST, Count, NonNegative, Positive, Range, Whole
from fedkeel.typed_values import check_fields

Several = Annotated[int, Range(2, MOST)]


@dataclass(frozen=True)
class Extent:
    """What an analysis looks at.

    `which`: the model, "last" or one that the run kept, such as "best".
    `directions`: "random" (filter-normalised) or "eigen" (top Hessian eigenvectors). `split`: whose samples give the
    loss of eigenvalues and landscapes, "train" or "test". `layer`: whose features are embedded; without it the one
    before the last. `tensor`: which of a model's tensors is embedded as its parameters and perturbations; without it
    all of them. `each`: a point of the features is the mean of a "class", or a "sample". `clusters`: into how many
    clients are put by the direction of their updates; 0 is the method's own number, or as many as FedSCAM takes.
    """

    which: str = "last"
    clients: Several = 10
    samples: Several = 1000
    bands: Count = BANDS
    eigenvalues: Count = 5
    lanczos_steps: Count = 30
    probes: Count = 20
    directions: Literal["random", "eigen"] = "random"
    radius: Positive | None = None
    points: Count = 21
    rho: NonNegative = 0.05
    split: Literal["train", "test"] = "train"
    layer: str | None = None
    tensor: str | None = None
    each: Literal["class", "sample"] = "class"
    clusters: Whole = 0

    def changes(self) -> dict[str, Any]:
        """What differs from the usual, as plain data: a diagnostic keeps it, so that another extent is another one."""
        return {one.name: value for one in fields(self) if (value := getattr(self, one.name)) != one.default}

    def __post_init__(self) -> None:
        check_fields(self, RequestError, "an analysis")
        if self.points < 3 or self.points % 2 == 0:
            raise RequestError(f"a landscape needs an odd number of points, at least 3: {self.points}", "21 is usual")

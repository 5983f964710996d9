"""How a data set gets into its folder and out of it: one value per data set, tying its card to its functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedkeel.data.dataset import Dataset, DatasetCard

if TYPE_CHECKING:
    from fedkeel.data.storage.folder import Draft


@dataclass(frozen=True)
class Source:
    """A card and the functions that know its files.

    `open(card, folder, root)` maps a complete folder, `is_complete(card, folder)` says whether it is one,
    `convert(path, draft, check)` reads the published files at a path into a draft (comparing inner checksums if asked),
    `fetch(draft)` fills a draft from the set's home, `accepts` names the published files, `requires` the set that must
    be in the data folder first, `space(card)` the bytes on disk where they are not those of the arrays of the card.
    """

    card: DatasetCard
    open: Callable[[DatasetCard, Path, Path], Dataset]
    is_complete: Callable[[DatasetCard, Path], bool]
    convert: Callable[[Path, Draft, bool], None] | None = None
    fetch: Callable[[Draft], None] | None = None
    accepts: str = ""
    requires: str | None = None
    space: Callable[[DatasetCard], int] | None = None

    @property
    def import_hint(self) -> str:
        if not self.accepts:
            return f"copy {self.card.folder} from the data folder of a machine that has it"
        return f"fedkeel datasets {self.card.name} --from PATH reads {self.accepts}"

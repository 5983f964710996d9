"""The README as the package index shows it: its links lead from there into the repository."""

import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)(\[[^\]]*\])\((?!\w+:|#)([^)\s]+)\)")


def link_to_repository(text, source):
    """Make the links of a page in the repository's root absolute; pictures are taken as they are stored."""
    kind = {"!": "raw", "": "blob"}
    return LINK.sub(lambda found: f"{found[1]}{found[2]}({source}/{kind[found[1]]}/main/{found[3]})", text)


class ReadmeHook(MetadataHookInterface):
    PLUGIN_NAME = "custom"

    def update(self, metadata):
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        shown = link_to_repository(text, metadata["urls"]["Source"])
        metadata["readme"] = {"content-type": "text/markdown", "text": shown}

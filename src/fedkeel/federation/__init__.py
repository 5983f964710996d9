"""An experiment as a real federation on Flower: apps for the server and the nodes, and the folder that holds them."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """The two apps, which need Flower: folders that were exported earlier import them from here; and a site's model."""
    if name in ("client_app", "server_app"):
        from fedkeel.federation import apps

        return getattr(apps, name)
    if name == "load_personal_model":
        from fedkeel.federation.personal_model import load_personal_model

        return load_personal_model
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

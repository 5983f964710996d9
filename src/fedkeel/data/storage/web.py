"""Fetch one published file into a draft, compare it with its checksum, and read it like a file of the user's."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from pathlib import Path

from fedkeel.data.dataset import Url
from fedkeel.data.storage.archives import BLOCK, check_file
from fedkeel.data.storage.folder import TOO_MUCH, Draft, Progress
from fedkeel.errors import DataError

TIMEOUT = 60.0  # seconds without a byte


def fetch_from_url(draft: Draft) -> None:
    """Fetch the set's file and convert it. The file lies beside the draft and goes with it."""
    home = draft.card.home
    assert isinstance(home, Url), f"{draft.card.name} has no address"
    assert draft.source.convert is not None
    file = draft.folder.parent / home.file
    try:
        download(home.address, file, draft.progress)
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, OSError) and error.errno in TOO_MUCH:
            raise
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # it is the answer, too, and holds the connection
        raise DataError(
            f"{home.address} could not be fetched: {explain(error)}",
            hint=f"without a network: {draft.source.import_hint}",
        ) from error
    check_file(file, draft.card.checksums)
    draft.source.convert(file, draft, True)


def download(address: str, file: Path, progress: Progress | None) -> None:
    with urllib.request.urlopen(address, timeout=TIMEOUT) as answer, file.open("xb") as target:
        total, done = int(answer.headers.get("Content-Length") or 0), 0
        while block := answer.read(BLOCK):
            target.write(block)
            done += len(block)
            if progress is not None:
                progress(f"fetching {file.name}", done, total)
    if total and done != total:
        raise DataError(f"{address} ended after {done} of {total} bytes", hint="try again")


def explain(error: Exception) -> str:
    """Say what went wrong, without the wrapping that urllib adds."""
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    return str(getattr(cause, "strerror", None) or cause) or type(error).__name__

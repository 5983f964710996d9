"""Image files as arrays, through Pillow."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkeel.data.storage.archives import reading
from fedkeel.errors import DataError

PIXELS = 50_000_000
"""The most that an image may have: more than any photograph of our data sets."""
FORMATS = ("PNG", "JPEG", "GIF", "BMP")
"""What a file may hold, whatever its name: pictures from the web often have the wrong suffix. Of other formats Pillow
hands PostScript to a program."""


def decode_image(name: str, content: bytes, shape: tuple[int, ...], resize: bool = False) -> NDArray[np.uint8]:
    """Decode an image file to the channels of `shape`; `resize` brings the image to its size (bicubic)."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise DataError(
            "reading image files needs the package pillow", hint='pip install "fedkeel[download]"'
        ) from error
    channels, height, width = shape
    with reading(name, OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        try:
            file = Image.open(io.BytesIO(content), formats=FORMATS)
        except UnidentifiedImageError:
            kinds = ", ".join(FORMATS)
            raise DataError(
                f"{name} is damaged, or none of these: {kinds}", "fetch it again, or save it as PNG"
            ) from None
        with file:
            if file.width * file.height > PIXELS:
                raise DataError(f"{name} states {file.width}×{file.height} pixels: it was not unpacked")
            refuse_deep(file, name)
            image = file.convert("L" if channels == 1 else "RGB")
        return np.asarray(image.resize((width, height), Image.Resampling.BICUBIC) if resize else image)


def refuse_deep(image: Any, name: str) -> None:
    """Refuse a picture of more than 8 bits for each pixel: Pillow would cut all above 255 off, so that it is white."""
    if image.mode.startswith(("I", "F")):
        raise DataError(
            f"{name} has more than 8 bits for each pixel ({image.mode}).", "bring its pixels to 0 … 255, as uint8"
        )


@contextmanager
def without_postscript() -> Iterator[None]:
    """Keep Pillow from opening PostScript meanwhile, for a library that opens pictures of any format itself."""
    try:
        from PIL import Image
    except ImportError:  # then nobody opens pictures
        yield
        return
    Image.init()
    before = list(Image.ID)
    Image.ID[:] = [name for name in before if name != "EPS"]
    try:
        yield
    finally:
        Image.ID[:] = before

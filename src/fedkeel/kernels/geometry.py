"""Which pixels a convolution reads."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Geometry:
    """A convolution of images `height` × `width` with a kernel of which only the taps that ever meet the image count.

    A 3×3 kernel on a 1×1 image meets it with its middle tap alone. `rows` and `columns` are the first and the end of
    the live taps; `top` and `left` how far the first of them lies outside the image.
    """

    height: int
    width: int
    out_height: int
    out_width: int
    kernel: tuple[int, int]
    rows: tuple[int, int]
    columns: tuple[int, int]
    stride: int
    top: int
    left: int

    @staticmethod
    def of(height: int, width: int, kernel: tuple[int, int], stride: int, padding: int | tuple[int, int]) -> Geometry:
        above, beside = (padding, padding) if isinstance(padding, int) else padding
        out_height = (height + 2 * above - kernel[0]) // stride + 1
        out_width = (width + 2 * beside - kernel[1]) // stride + 1
        rows = live_taps(height, out_height, kernel[0], stride, above)
        columns = live_taps(width, out_width, kernel[1], stride, beside)
        return Geometry(
            height, width, out_height, out_width, kernel, rows, columns, stride, above - rows[0], beside - columns[0]
        )

    @property
    def taps(self) -> tuple[int, int]:
        """Live rows and columns of the kernel."""
        return self.rows[1] - self.rows[0], self.columns[1] - self.columns[0]

    @property
    def whole(self) -> bool:
        """Whether every tap is live."""
        return self.taps == self.kernel


def live_taps(size: int, out: int, kernel: int, stride: int, padding: int) -> tuple[int, int]:
    """Return the first kernel tap that meets the image, and the end of those that do."""
    meets = [tap for tap in range(kernel) if any(0 <= o * stride - padding + tap < size for o in range(out))]
    return meets[0], meets[-1] + 1

"""Laws of files of lines: nothing half stays behind, whatever a process or a disk did."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from fedkeel.data.storage.line_file import append_line


@pytest.mark.parametrize("before", ['{"a": 1}\n', '{"a": 1}', ""])
def test_a_full_disk_leaves_the_lines_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    """A disk takes five bytes and is full; what is left must not follow when the file is closed."""
    file = tmp_path / "lines"
    file.write_text(before)

    class Full(io.FileIO):
        def write(self, data: bytes) -> int:  # type: ignore[override]
            if self.tell() >= len(before) + 5:
                raise OSError(28, "No space left on device")
            return super().write(data[:5])

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", lambda path, mode, buffering: Full(path, "a+"))
        with pytest.raises(OSError, match="No space"):
            append_line(file, '{"b": 2, "c": 3}', json.loads)
    assert file.read_text() == before

"""The heat map as text and as a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from for_each import for_each

from fedkeel.data.partition.heatmap import draw_heatmap, write_heatmap
from fedkeel.errors import FolderError, RequestError

SHADES = " ░▒▓█"


def columns(text: str, classes: int) -> list[str]:
    return [line.ljust(200) for line in text.splitlines()[:classes]]


def test_a_cell_is_darker_the_larger_the_share() -> None:
    held = np.array([[0, 1, 10, 40, 49], [100, 0, 0, 0, 0]])
    rows = columns(write_heatmap(held), 5)
    margin = len("class 0 ")
    levels = [SHADES.index(row[margin]) for row in rows]
    assert levels == sorted(levels)
    assert levels[0] == 0 < levels[1] < levels[2] < levels[4]
    assert [row[margin + 1] for row in rows] == ["█", " ", " ", " ", " "]


def test_each_of_the_four_shades_has_its_own_shares() -> None:
    """Of four classes: below half of an equal share, below its square root, below its fourth root, and above."""
    rows = columns(write_heatmap(np.array([[12, 88, 0, 0], [45, 55, 0, 0], [70, 30, 0, 0], [71, 29, 0, 0]])), 1)
    assert rows[0].rstrip() == "class 0 ░▒▓█"


def test_iid_clients_are_of_one_shade_and_it_is_the_middle_one() -> None:
    held = np.random.default_rng(0).multinomial(500, [0.1] * 10, size=100)
    text = write_heatmap(held)
    cells = "".join(row[len("class 0 ") :].rstrip() for row in columns(text, 10))
    assert set(cells) == {"▒"}
    assert len(cells) == 1000


def test_ten_classes_by_a_hundred_clients_fit_a_wide_terminal_client_by_client() -> None:
    held = np.random.default_rng(0).integers(0, 50, (100, 10))
    lines = write_heatmap(held, width=108).splitlines()
    assert len(lines) == 10 + 2
    assert max(map(len, lines)) <= 108
    assert "to a column" not in lines[-1]
    assert lines[0].startswith("class 0 ")


@for_each(("clients", "classes", "width"), [(5000, 10, 80), (1000, 200, 100), (101, 41, 60), (3, 2, 5)])
def test_what_does_not_fit_is_added_up_in_groups(clients: int, classes: int, width: int) -> None:
    held = np.random.default_rng(0).integers(1, 50, (clients, classes))
    *map_lines, legend = write_heatmap(held, width=width).splitlines()
    assert len(map_lines) <= 41
    assert max(map(len, map_lines)) <= max(width, len("class 0-1 ") + 1)
    assert f"{clients} clients" in legend
    assert "to a column" in legend


def test_groups_show_their_members_sum() -> None:
    held = np.zeros((4, 2), dtype=np.int64)
    held[0, 0] = held[1, 1] = 10  # together half and half
    held[2:, 0] = 10
    rows = columns(write_heatmap(held, width=len("class 0 ") + 2), 2)
    assert rows[0].rstrip() == "class 0 ▒█"
    assert rows[1].rstrip() == "class 1 ▒"


def test_a_last_group_with_fewer_members_is_as_large_as_they_are() -> None:
    assert write_heatmap(np.full((3, 1), 10), width=10).splitlines()[1] == "size    ██"


def test_sizes_and_empty_clients_are_shown() -> None:
    lines = write_heatmap(np.array([[80], [40], [0], [1]])).splitlines()
    assert lines[0] == "class 0 ██ █"
    assert lines[1] == "size    █▄ ▁"
    assert write_heatmap(np.zeros((2, 3), dtype=np.int64)).splitlines()[0] == "class 0"


@pytest.mark.parametrize(("suffix", "magic"), [(".PNG", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_files_are_of_the_type_their_name_says(tmp_path: Path, suffix: str, magic: bytes) -> None:
    held = np.random.default_rng(0).integers(0, 50, (4, 3))
    path = draw_heatmap(held, tmp_path / f"map{suffix}")
    assert path.read_bytes().startswith(magic)


def test_many_clients_are_drawn_in_a_file_of_usual_size(tmp_path: Path) -> None:
    held = np.random.default_rng(0).integers(0, 50, (20_001, 10))
    assert draw_heatmap(held, str(tmp_path / "map.svg")).stat().st_size < 3_000_000


def test_an_unknown_type_and_a_missing_folder_are_answered_in_one_line(tmp_path: Path) -> None:
    held = np.ones((3, 2), dtype=np.int64)
    with pytest.raises(RequestError, match=r"map\.bmp"):
        draw_heatmap(held, tmp_path / "map.bmp")
    with pytest.raises(FolderError, match="No such file"):
        draw_heatmap(held, tmp_path / "absent" / "map.png")

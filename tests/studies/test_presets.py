"""Sweeps that come with fedkeel."""

from pathlib import Path

from fedkeel.cli.settings import read_file
from fedkeel.studies.presets import PRESETS, find_preset
from fedkeel.studies.sweep import Sweep


def test_a_preset_is_found_by_its_name_unless_a_file_has_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_preset(Path("specgradfilter-tuning")).is_file()
    assert find_preset(Path("mine.toml")) == Path("mine.toml")
    Path("specgradfilter-tuning").write_text("")
    assert find_preset(Path("specgradfilter-tuning")) == Path("specgradfilter-tuning")


def test_presets_are_sweeps_and_specgradfilters_has_four_rates_and_five_own_values():
    loaded = {name: Sweep.load(read_file(find_preset(Path(name)), "")) for name in PRESETS}
    grids = loaded["specgradfilter-tuning"].grids
    for method, grid in grids.items():
        own = [len(values) for key, values in grid.items() if key != "lr"]
        if method in ("uniform", "scaffold"):
            assert (len(grid["lr"]), own) == (20, [])
        else:
            assert grid["lr"] == (0.01, 0.05, 0.1, 0.15)
            assert own in ([5], [1, 1])

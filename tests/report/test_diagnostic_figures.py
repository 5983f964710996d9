"""Charts of diagnostics: what they show is what was measured, and they stay away where nothing was."""

import numpy as np
import pytest
from invented import made_up

from fedkeel.report.content import content
from fedkeel.report.diagnostic_figures import diagnostic_charts, name_rounds
from fedkeel.report.series import measures, probed, spectra
from fedkeel.report.source import Source


def setting_of(*folders):
    return content([Source.read(folder) for folder in folders]).settings[0]


def spectrum(scale):
    """Numbers as the tracker calls them; the bias is too short for all bands."""
    rows = {name: [scale / m for m in (1, 2, 3)] for name in ("distance", "deviation", "variance")}
    rows |= {"layer/fc.weight": [scale, 2.0, 3.0], "client/7": [1.0, 2.0, 3.0], "client/12": [2.0, 2.0, 3.0]}
    named = {f"gradient-spectrum/{name}/{m}": value for name, row in rows.items() for m, value in enumerate(row, 1)}
    return named | {"gradient-spectrum/layer/fc.bias/1": 5.0}


def test_a_tracked_spectrum_is_the_mean_over_rounds_and_seeds(tmp_path):
    folders = [made_up(tmp_path / str(s), seed=s, rounds=2, tracked=False, extra=spectrum(1.0 + s)) for s in (0, 1)]
    setting = setting_of(*folders)
    (group,) = setting.groups
    found = probed(group, "gradient")
    assert found["distance"] == pytest.approx([1.5, 0.75, 0.5])
    assert found["layers"]["fc.weight"] == pytest.approx([1.5, 2.0, 3.0])
    assert np.array_equal(found["layers"]["fc.bias"], [5.0, np.nan, np.nan], equal_nan=True)
    assert list(found["clients"]) == ["7", "12"]
    assert found["rounds"] == [1, 2]
    assert spectra(group, of="gradient-spectrum")["values"] == [pytest.approx([1.5, 0.75, 0.5])] * 2
    assert probed(group, "perturbation") is None
    assert not [name for name in measures([group]) if "spectrum" in name]  # maps, not a curve each
    charts = {chart.file: chart for chart in diagnostic_charts(setting)}
    assert set(charts) == {f"gradient-spectrum{end}" for end in ("", "-by-round", "-by-layer", "-by-client")}
    assert charts["gradient-spectrum"].note == "between clients, mean over rounds 1, 2"
    (line,) = charts["gradient-spectrum"].figure.axes[0].lines
    assert line.get_ydata() == pytest.approx([1.5, 0.75, 0.5])


def test_names_that_only_look_like_a_spectrum_draw_nothing(tmp_path):
    wrong = {"gradient-spectrum/distance/x": 1.0, "gradient-spectrum/distance/99999": 1.0, "gradient-spectrum/": 2.0}
    setting = setting_of(made_up(tmp_path / "a", rounds=2, tracked=False, extra=wrong))
    assert probed(setting.groups[0], "gradient") is None


def test_rounds_in_words():
    assert name_rounds([[30], [30]]) == "round 30"
    assert name_rounds([[30, 60, 90, 120]]) == "rounds 30, 60, 90, 120"
    assert name_rounds([range(1, 20, 2), [4]]) == "rounds 1, 3, 4, …, 19"

"""Charts of diagnostics: what they show is what was measured, and they stay away where nothing was."""

import numpy as np
import pytest
from invented import made_up, record
from matplotlib.figure import Figure

from fedkeel.report.content import content
from fedkeel.report.diagnostic_figures import diagnostic_charts, landscape_surfaces, name_rounds
from fedkeel.report.drawing import Shown
from fedkeel.report.panels import MANY, bands_by_round, divergence
from fedkeel.report.series import diverged, measures, probed, spectra
from fedkeel.report.source import Group, Source
from fedkeel.studies.diagnose import write_diagnostic


def setting_of(*folders):
    return content([Source.read(folder) for folder in folders]).settings[0]


def spectrum(scale):
    """Numbers as the tracker calls them; the bias is too short for all bands."""
    rows = {name: [scale / m for m in (1, 2, 3)] for name in ("distance", "deviation", "variance")}
    rows |= {"layer/fc.weight": [scale, 2.0, 3.0], "client/7": [4.0, 2.0, 3.0], "client/12": [2.0, 2.0, 3.0]}
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
    axes = charts["gradient-spectrum-by-client"].figure.axes[0]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["client 12", "client 7"]  # the nearest first
    assert axes.collections[0].get_array().tolist() == [[2, 2, 3], [4, 2, 3]]


def test_a_tracked_divergence_is_the_mean_over_rounds_and_seeds(tmp_path):
    def run(*before):
        named = [{"gradient-divergence/before/fc": far, "gradient-divergence/after/fc": 1.0} for far in before]
        return Source(tmp_path, {}, "", [record(n, extra=extra) for n, extra in enumerate(named, 1)], {}, {})

    found = diverged(Group("", "", [run(1.0, 3.0), run(5.0, 7.0)]))
    assert found == {"divergence": {"before": {"fc": 4.0}, "after": {"fc": 1.0}}, "rounds": [1, 2]}


def test_of_many_layers_those_are_drawn_that_a_filter_changes():
    before, axes = {str(layer): float(layer) for layer in range(MANY + 1)}, Figure().subplots()
    data = {"divergence": {"before": before, "after": before | {"3": 1.0, "5": 2.0}}}
    divergence(axes, Shown("", "", "#000000", "-", data), [])
    assert [line.get_ydata().tolist() for line in axes.lines] == [[3, 5], [1, 2]]


def test_time_runs_to_the_right_and_bands_upwards():
    one = Shown("", "", "#000000", "-", {"rounds": [1, 2, 3], "values": [[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]]})
    drawn = bands_by_round(Figure().subplots(), one, [one])
    assert drawn.get_array().tolist() == [[1, 2, 3], [10, 20, 30]]


@pytest.mark.parametrize("rounds", [1, 3])
def test_maps_by_round_have_a_cell_around_every_round_and_row(tmp_path, rounds):
    extra = {"gradient-spectrum/distance/1": 1.0, "critical/fc.weight": 1.0}
    setting = setting_of(made_up(tmp_path / "a", rounds=rounds, tracked=False, extra=extra))
    charts = {chart.file: chart for chart in diagnostic_charts(setting)}
    for name, row in (("gradient-spectrum-by-round", 1), ("critical-layers", 0)):
        axes = charts[name].figure.axes[0]
        corners = axes.collections[0].get_coordinates()
        assert corners[0, :, 0].tolist() == [number + 0.5 for number in range(rounds + 1)]
        assert corners[:, 0, 1].tolist() == [row - 0.5, row + 0.5]
        assert axes.get_xticks().tolist() == [*range(1, rounds + 1)]


def test_names_that_only_look_like_a_spectrum_draw_nothing(tmp_path):
    wrong = {"gradient-spectrum/distance/x": 1.0, "gradient-spectrum/distance/99999": 1.0, "gradient-spectrum/": 2.0}
    setting = setting_of(made_up(tmp_path / "a", rounds=2, tracked=False, extra=wrong))
    assert probed(setting.groups[0], "gradient") is None


@pytest.mark.parametrize(("measured", "drawn"), [([0.5, None, 0.25], [25, 50]), ([None], None), (None, None)])
def test_clients_without_an_accuracy_are_not_drawn(tmp_path, measured, drawn):
    folder = made_up(tmp_path / "a", rounds=2, tracked=False)
    write_diagnostic(folder, "drift", {"round": 2, "clients": [0], "cosines": [[1.0]], "accuracies": measured})
    charts = {chart.file: chart for chart in diagnostic_charts(setting_of(folder))}
    assert ("client-accuracy" in charts) == (drawn is not None)
    if drawn is not None:
        (line,) = charts["client-accuracy"].figure.axes[0].lines
        assert line.get_ydata() == pytest.approx(drawn)


def test_rounds_in_words():
    assert name_rounds([[30], [30]]) == "round 30"
    assert name_rounds([[30, 60, 90, 120]]) == "rounds 30, 60, 90, 120"
    assert name_rounds([range(1, 20, 2), [4]]) == "rounds 1, 3, 4, …, 19"


def embedding(plane, kind="parameter"):
    data = {"pca": [[0.0, 1.0], [1.0, 0.0]], "explained": [0.6, 0.4], "names": ["a", "b"], "spread": 0.5}
    data |= {"classes": [3, 7], "separation": 0.2, "tsne": [[0.0, 2.0], [1.0, 3.0]]}
    return {"clients": [0, 1], "kinds": {kind: data | ({} if plane is None else {"plane": plane})}, "round": 2}


def analysed(folder, method, **found):
    made_up(folder, method=method, rounds=2, tracked=False)
    for name, data in found.items():
        write_diagnostic(folder, name, data)
    return folder


def test_the_note_says_whether_methods_share_their_plane(tmp_path):
    for planes, words in ((("x", "x"), "all methods in one plane"), (("x", "y"), "own"), ((None, None), "own")):
        folders = [
            analysed(tmp_path / f"{planes}{number}", method, embedding=embedding(plane))
            for number, (method, plane) in enumerate(zip(("fedavg", "fedsam"), planes, strict=True))
        ]
        charts = {chart.file: chart for chart in diagnostic_charts(setting_of(*folders))}
        assert set(charts) == {"parameters-pca", "parameters-tsne"}
        assert words in charts["parameters-pca"].note


def test_the_note_of_points_speaks_of_numbers_where_there_are_some(tmp_path):
    for name, classes in (("some", [3, 7]), ("none", None)):
        found = embedding(None)
        found["kinds"]["parameter"]["classes"] = classes
        setting = setting_of(analysed(tmp_path / name, "fedavg", embedding=found))
        charts = {chart.file: chart for chart in diagnostic_charts(setting)}
        assert charts["parameters-pca"].note.endswith("numbers are classes") is (classes is not None)


def test_samples_have_a_panel_for_each_method_and_a_number_for_each_class(tmp_path):
    methods = ("fedavg", "fedsam")
    folders = [analysed(tmp_path / one, one, embedding=embedding(None, "client sample")) for one in methods]
    charts = {chart.file: chart for chart in diagnostic_charts(setting_of(*folders))}
    assert set(charts) == {"client-samples-pca", "client-samples-tsne"}
    axes = charts["client-samples-tsne"].figure.axes
    assert [one.get_title() for one in axes] == ["fedavg", "fedsam"]
    assert [text.get_text() for text in axes[0].texts] == ["3", "7"]


def test_what_was_measured_where_a_run_diverged_is_drawn_without_numbers_or_stays_away(tmp_path):
    nothing, beside = [None, None], {"round": 2, "clients": [0, 1]}
    kind = dict.fromkeys(("distance", "deviation", "variance"), nothing) | {"layers": {"fc": nothing}}
    layers = {"before": {"fc": None}, "after": {"fc": None}}
    flat = {"x": [-1.0, 0.0, 1.0], "y": [-1.0, 0.0, 1.0], "values": [[None] * 3] * 3, "along": "random directions"}
    folder = analysed(
        tmp_path / "a", "fedavg", drift=beside | {"cosines": [nothing, nothing], "accuracies": None},
        spectrum=beside | {"kinds": {"update": kind}, "ratio": 0.05, "divergence": layers},
        landscape={"round": 2, "line": flat | {"y": None, "values": [None] * 3}, "plane": flat},
    )  # fmt: skip
    charts = {chart.file: chart for chart in diagnostic_charts(setting_of(folder))}
    assert {"spectrum-update", "spectrum-update-by-layer", "divergence-by-layer", "update-cosines"} == set(charts)


def test_clients_stand_by_cluster(tmp_path):
    found = {
        "clients": [4, 8, 9],
        "clusters": [1, 0, 1],
        "opposed": [9],
        "points": [[0.0, 0.0], [1.0, 1.0], [2.0, 0.0]],
    }
    found |= {"cosines": [[1.0, -0.5, 0.25], [-0.5, 1.0, 0.0], [0.25, 0.0, 1.0]], "round": 2}
    setting = setting_of(analysed(tmp_path / "a", "fedscam", clusters=found))
    charts = {chart.file: chart for chart in diagnostic_charts(setting)}
    assert set(charts) == {"cluster-cosines", "cluster-points"}
    axes = charts["cluster-cosines"].figure.axes[0]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["8", "4", "9"]
    assert axes.images[0].get_array()[1].tolist() == [-0.5, 1.0, 0.25]
    assert [line.get_ydata()[0] for line in axes.lines[:1]] == [0.5]  # between the clusters
    marks = [mark for mark in charts["cluster-points"].figure.axes[0].collections if len(mark.get_offsets())]
    hollow = [mark.get_offsets().tolist() for mark in marks if not len(mark.get_facecolor())]
    assert hollow == [[[2, 0]]]  # the client that is opposed


@pytest.mark.parametrize(("split", "words"), [({}, "training loss"), ({"split": "test"}, "test loss")])
def test_charts_of_the_loss_say_whose_it_is(tmp_path, split, words):
    line, plane = {"x": [-1, 0, 1], "y": None, "values": [2, 1, 2], "along": "there"}, [[1.0] * 3] * 3
    landscape = {"line": line, "plane": {"x": [-1, 0, 1], "y": [-1, 0, 1], "values": plane}, "round": 2} | split
    setting = setting_of(analysed(tmp_path / "a", "fedavg", landscape=landscape))
    charts = {chart.file: chart for chart in diagnostic_charts(setting)}
    assert charts["landscape-line"].figure.axes[0].get_ylabel() == words
    assert charts["landscape-line"].note == f"{words}, each method around its own last model"


def test_a_surface_stands_above_the_plane_as_it_was_measured(monkeypatch):
    """Rows of the values are the second direction."""
    drawn = []
    monkeypatch.setattr("mpl_toolkits.mplot3d.Axes3D.plot_surface", lambda axes, *places, **look: drawn.append(places))
    at = [-1.0, 0.0, 1.0]
    plane = {"x": at, "y": at, "values": [[a + 10 * b for a in at] for b in at]}
    landscape_surfaces([Shown("", "", "#000000", "-", {"plane": plane})])
    ((x, y, z),) = drawn
    assert np.array_equal(z, np.minimum(x + 10 * y, z.max()))
    assert z.max() > 10

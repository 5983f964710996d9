"""Methods by name: those of the library, plug-ins on a base, and those of installed packages."""

import sys

import pytest
from for_each import for_each

import fedkeel as fk
from fedkeel.importing import Trust
from fedkeel.methods import build
from fedkeel.methods.given import read_method
from fedkeel.methods.named import NamedMethod

THEIRS = """
import fedkeel as fk

def pulled(mu: float = 0.5) -> fk.Method:
    return fk.method("pulled", gradient=[fk.Proximal(mu)], weights=fk.Uniform())
"""


def test_a_base_is_built_by_name_and_given_as_a_method():
    by_name = build("specgradfilter", {"base": "scaffold", "ratio": 0.1})
    assert by_name == build("specgradfilter+scaffold", {"ratio": 0.1})
    assert by_name == fk.METHODS["specgradfilter"](ratio=0.1, base=fk.METHODS["scaffold"]())
    assert fk.METHODS["specgradfilter"]() == build("specgradfilter", {"base": "fedavg"})
    assert by_name == fk.METHODS["specgradfilter"](0.1, "scaffold")


def test_a_method_of_an_installed_package_has_the_name_of_its_entry_point(tmp_path, monkeypatch):
    info = tmp_path / "theirs-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[fedkeel]\npulled = their_methods:pulled\n")
    (tmp_path / "their_methods.py").write_text(THEIRS)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    with pytest.raises(fk.MethodError, match="unknown method: pulled"):  # it lies there, but is not installed
        build("pulled")
    monkeypatch.setattr("site.getsitepackages", lambda: [str(tmp_path)])
    assert "their_methods" not in sys.modules  # nothing is imported before it is asked for
    assert isinstance(read_method("pulled", Trust.NOTHING), NamedMethod)
    assert "their_methods" not in sys.modules
    loaded = fk.Experiment.load({"dataset": "digits", "method": {"name": "pulled", "mu": 0.25}})
    assert loaded.plan.method.phases[0].gradient == (fk.Proximal(0.25),)
    assert build("specgradfilter+pulled").name == "specgradfilter+pulled"


def test_a_function_that_fails_is_named_and_an_imported_name_is_not_proposed(tmp_path, monkeypatch):
    source = "import torch\nfrom dataclasses import dataclass\ndef fails():\n    raise KeyError('mine')\n"
    (tmp_path / "failing_methods.py").write_text(source)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    with pytest.raises(fk.MethodError, match="method failing_methods:fails failed: KeyError: 'mine'") as failed:
        build("failing_methods:fails")
    assert "import failing_methods; failing_methods.fails()" in failed.value.hint
    with pytest.raises(fk.RequestError, match="no method named: tor") as unknown:
        build("failing_methods:tor")
    assert unknown.value.hint == "known names there: fails"


def test_a_type_error_inside_of_a_function_is_not_about_its_hyper_parameters(tmp_path, monkeypatch):
    source = "def slips(lam=0.5):\n    return dict(lam, bta=1)\ndef needs(lam):\n    return None\n"
    (tmp_path / "slipping_methods.py").write_text(source)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    with pytest.raises(fk.MethodError, match="method slipping_methods:slips failed: TypeError: ") as inside:
        build("slipping_methods:slips")
    assert "import slipping_methods; slipping_methods.slips()" in inside.value.hint
    with pytest.raises(fk.MethodError, match="needs refused its hyper-parameters: missing a required argument: 'lam'"):
        build("slipping_methods:needs")


def test_names_that_are_no_methods_are_not_proposed(tmp_path, monkeypatch):
    source = (
        "from typing import ClassVar\nimport fedkeel as fk\n"
        "class Idea(fk.Rule):\n    pass\n"
        "def mine() -> fk.Method:\n    return fk.METHODS['fedavg']()\n"
        "def count() -> int:\n    return 3\n"
        "ready, number = mine(), 3\n"
    )
    (tmp_path / "named_methods.py").write_text(source)
    (tmp_path / "no_methods.py").write_text("number = 3\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    for name, known in (("named_methods:xyz", "mine, ready"), ("no_methods:xyz", "number")):
        with pytest.raises(fk.RequestError, match="no method named: xyz") as unknown:
            build(name)
        assert unknown.value.hint == f"known names there: {known}"


@for_each(
    ("name", "line", "hint"),
    [
        ("papers3", "unknown method: papers3", "one of your own is written module:name, such as papers3:name"),
        ("fedproxx", "unknown method: fedproxx", "did you mean 'fedprox'?"),
        ("moon", "unknown method: moon", "such as moon:name"),  # fedsmoo shares three letters
        ("ema+", "no method is named behind the last +.", "put plug-ins on one: ema+fedavg"),
        ("scaffold+ema+fedavg", "scaffold is a method, not a plug-in", "before the method: ema+scaffold"),
        ("fedprox+scaffold", "fedprox is a method, not a plug-in", "write fedprox, or scaffold"),
        ("emma+fedavg", "unknown plug-in: emma", "did you mean 'ema'?"),
        (
            "specgradfilter+specgradfilter+fedavg",
            "specgradfilter stands twice in",
            "use it once: specgradfilter+fedavg",
        ),
        ("specgradfilter+specgradfilter", "specgradfilter stands twice in", "use it once: specgradfilter"),
        ("ema+muon+ema+fedavg", "ema stands twice in", "use it once: ema+muon+fedavg"),
    ],
)
def test_a_name_that_is_wrongly_put_together_is_refused_with_the_right_one(name, line, hint):
    with pytest.raises(fk.MethodError) as refused:
        build(name)
    assert refused.value.message.startswith(line)
    assert refused.value.hint.endswith(hint)


def test_keel_is_what_the_plug_ins_make_of_feddyn():
    ours = build("keel")
    theirs = build("ema+specgradfilter+feddyn", {"ratio": 0.1, "min_dims": 2, "decay": 0.97, "share": 0.04})
    assert (ours.phases, ours.server, ours.weights) == (theirs.phases, theirs.server, theirs.weights)

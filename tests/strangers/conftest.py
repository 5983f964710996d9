"""A folder of someone who knows the guides alone."""

import pytest


@pytest.fixture
def folder(tmp_path, monkeypatch):
    from guide_tasks import forget_modules

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    forget_modules(tmp_path)

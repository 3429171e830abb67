"""Fixtures of the tests of tables."""

import pytest


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Return an empty working directory with e.csv, a table of two edges."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "e.csv").write_text("src,dst\na,b\nb,c\n")
    return tmp_path

"""The table of docs/choosing.md says what the training command does."""

import importlib.util
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(600)
ROOT = Path(__file__).parents[3]


def test_each_cell_of_the_table_is_what_the_command_answers(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("cheat_sheet", ROOT / "packaging" / "cheat_sheet.py")
    cheat_sheet = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(cheat_sheet)
    monkeypatch.chdir(tmp_path)
    refusals = []
    table = cheat_sheet.table(refusals)
    assert table in (ROOT / "docs" / "choosing.md").read_text(), table
    cells = table.count(" no ")
    assert len(refusals) == cells > 20
    reasons = ("takes no edge", "takes graphs of one kind", "no narrow rows", "propagated features",
               "features that were propagated", "never asks")
    assert all(any(reason in text for reason in reasons) for text in refusals), refusals

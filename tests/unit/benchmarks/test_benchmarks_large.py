"""The benchmark of graphs larger than memory runs on small graphs and writes the rows that it promises."""

import json
import os
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(120)


def test_large_writes_its_rows(tmp_path, monkeypatch):
    root = Path(__file__).parents[3]
    monkeypatch.syspath_prepend(str(root / "benchmarks"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])]))
    import large

    out = tmp_path / "rows.json"
    large.main(["--nodes", "600", "--pairs", "3000", "--features", "2", "--parts", "3", "--memory", "4GiB",
                "--scratch", str(tmp_path),
                "--graphs", str(tmp_path), "--graphs-of", "S/200-shuffled", "--parts-of", "2", "--json", str(out)])
    rows = json.loads(out.read_text())
    assert [row["step"] for row in rows] == ["convert", "partition",
                                             "report"] and all(0 < row["peak_rss"] < 2**30 for row in rows)
    rows = json.loads((tmp_path / "relational-rows.json").read_text())
    assert [row["step"] for row in rows] == ["convert",
                                             "partition"] and all(0 < row["peak_rss"] < 2**30 for row in rows)
    (cut,) = json.loads((tmp_path / "cuts-rows.json").read_text())
    assert 0 < cut["ratio"] == cut["fennel"] / cut["metis"] < large.RATIO

"""The report on a divided data set counts what a loop over its edges counts, and shows the imbalance of mode broadcast."""

import json

import numpy as np
import pytest

from sarlite.cli.data_command import main
from sarlite.data import Dataset, format
from sarlite.data.quality import quality
from sarlite.errors import ConfigError
from sarlite.structure.edges import csr_by_dst


@pytest.fixture(scope="module")
def divided(tmp_path_factory):
    """Return a directed graph, most of whose edges leave and enter nodes of low numbers, divided into parts."""
    path, rng = tmp_path_factory.mktemp("quality") / "d", np.random.default_rng(0)
    src, dst = (199 * rng.random((2, 1000)) ** [[2], [4]]).astype(int)
    place = np.arange(200) % 5
    format.write(path, Dataset(*csr_by_dst(src, dst, 200), rng.random((200, 3)), place % 2, place < 2, place == 3, place == 4, 2))
    assert main(["partition", str(path), "--parts", "3", "--method", "contiguous", "--progress", "none"]) == 0
    return path


def test_it_counts_what_a_loop_counts(divided, capsys):
    dataset = format.open(divided)
    part = np.searchsorted(dataset.offsets, np.arange(200), side="right") - 1
    tiles, needed = np.zeros((3, 3), int), [[set() for _ in range(3)] for _ in range(3)]
    for row in range(200):
        for source in dataset.indices[dataset.indptr[row] : dataset.indptr[row + 1]]:
            tiles[part[row], part[source]] += 1
            needed[part[row]][part[source]].add(int(source))
    assert main(["report", str(divided), "--json", "--memory", "4GiB"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == quality(dataset, n_bytes=1000)  # in pieces of a few edges
    assert printed["tiles"] == tiles.tolist() and printed["edges"] == tiles.sum(axis=1).tolist()
    sizes = np.diff(dataset.offsets)
    assert printed["needs"] == [[len(needed[p][q]) / sizes[q] if p != q else 0 for q in range(3)] for p in range(3)]
    assert printed["halo_rows"] == [sum(len(needed[p][q]) for q in range(3) if q != p) for p in range(3)]
    assert printed["train_nodes"] == [int(dataset.train[part == p].sum()) for p in range(3)]
    assert printed["cut_edges"] == tiles.sum() - tiles.trace() and printed["nodes"] == sizes.tolist()
    assert printed["stage_imbalance"] == pytest.approx(tiles.max(axis=0).sum() / (tiles.sum() / 3)) and printed["stage_imbalance"] > 1.5
    assert main(["report", str(divided)]) == 0
    said = capsys.readouterr().out
    assert f"stage imbalance {printed['stage_imbalance']:.2f}" in said and "mode broadcast would take about" in said


def test_too_little_memory(divided):
    with pytest.raises(ConfigError, match="200 nodes in 3 parts takes 1 MiB, .*0 MiB"):
        quality(format.open(divided), 100)

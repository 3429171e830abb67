"""Dividing in bounded memory writes the directory that dividing in memory writes, hash by hash.

METIS is refused where it cannot work.
"""

import os

import numpy as np
import pytest

from sarlite.cli.data_command import main
from sarlite.data import Dataset, format, load
from sarlite.data.assignment import StoredEdges, make_order, make_parts
from sarlite.data.divide import divide
from sarlite.data.quality import quality
from sarlite.errors import ConfigError
from sarlite.structure import metis
from sarlite.structure.edges import csr_by_dst
from sarlite.structure.fennel import fennel
from sarlite.structure.partition import partition


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Write a data set with equal edges, loops, edges with values, and rows without edges."""
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, 60, 700), rng.integers(20, 90, 700) // 2
    indptr, indices = csr_by_dst(src, dst, 90)
    place = np.arange(90) % 3
    data = Dataset(indptr, indices, rng.random((90, 5)), rng.integers(0, 4, 90), place == 0, place == 1, place == 2, 4,
                   edge_weight=rng.random(700), edge_features=rng.random((700, 2), np.float32))
    folder = tmp_path_factory.mktemp("stored") / "d"
    format.write(folder, data)
    return folder


@pytest.mark.parametrize("method, order, again", [("random", "cluster", "random"), ("contiguous", "none", None)])
def test_it_writes_what_dividing_in_memory_writes(stored, tmp_path, method, order, again):
    one = two = stored
    for turn, (name, n_parts) in enumerate([(method, 4), (again, 3)][: 2 if again else 1]):
        for streamed in (False, True):
            dataset = format.open(two if streamed else one)
            parts, nodes = make_parts(dataset, n_parts, name, seed=turn), make_order(dataset, order)
            where = tmp_path / f"{turn}-{streamed}"
            (tmp_path / "runs").mkdir(exist_ok=True)
            with format.GraphWriter(where) as out:
                bounded = {"folder": tmp_path / "runs", "n_bytes": 90 * 30 + 6000, "least_sort_bytes": 6000} if streamed else {}
                divide(dataset, parts, n_parts, out, order=nodes, **bounded)
        one, two = tmp_path / f"{turn}-False", tmp_path / f"{turn}-True"
        assert format.read_meta(one) == format.read_meta(two) and not os.listdir(tmp_path / "runs")
        assert quality(format.open(one)) == quality(format.open(two), n_bytes=1000)


def test_the_command_in_bounded_memory(tmp_path, capsys):
    spec = "sbm:nodes=300,degree=6,features=4,classes=3,seed=1"
    assert main(["convert", spec, str(tmp_path / "d")]) == 0
    words = ["partition", str(tmp_path / "d"), "--parts", "4", "--method", "fennel", "--progress", "none"]
    assert main([*words, "--output", str(tmp_path / "one")]) == 0
    said = capsys.readouterr().out
    assert main([*words, "--output", str(tmp_path / "two"), "--memory", "4GiB"]) == 0
    assert capsys.readouterr().out == said[said.index("        part") :]
    assert format.read_meta(tmp_path / "one") == format.read_meta(tmp_path / "two")
    assert format.open(tmp_path / "two").division["partition"] == "fennel" and sorted(os.listdir(tmp_path)) == ["d", "one", "two"]


def test_fennel_reads_files_as_it_reads_arrays(stored):
    dataset = format.open(stored)
    parts = partition(np.asarray(dataset.indptr), np.asarray(dataset.indices), 4, "fennel", train_mask=dataset.train)
    assert np.array_equal(fennel(StoredEdges(dataset), 4, train=dataset.train), parts)
    assert np.array_equal(make_parts(dataset, 4, "fennel"), parts)


def test_metis_is_refused_where_it_cannot_work(stored, monkeypatch):
    dataset = load("sbm:nodes=100,degree=4,features=2,classes=2")
    text = r"METIS takes about 0 MiB for 400 edges, but 0 MiB are free; method 'fennel' takes 4 bytes a node"
    for run in (make_parts, lambda *arguments, n_bytes: make_order(dataset, "metis", n_bytes=n_bytes)):
        with pytest.raises(ConfigError, match=text):
            run(dataset, 2, "metis", n_bytes=19_999)
    monkeypatch.setattr(metis, "free_memory", lambda: 19_999)
    with pytest.raises(ConfigError, match=text):
        partition(dataset.indptr, dataset.indices, 2)
    monkeypatch.setattr(metis, "_index", lambda: np.dtype(np.int8))
    with pytest.raises(ConfigError, match="int8 indices, too small for 400 edges; method 'fennel'"):
        partition(dataset.indptr, dataset.indices, 2)

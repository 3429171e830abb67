"""BTER graphs: degrees and clustering as asked for, for any chunks; the wanted values are shown beside the actual ones."""

import numpy as np
import pytest
import scipy.sparse

from sarlite.cli.data_command import main
from sarlite.data import load
from sarlite.data.readers import bter_options as by_options
from sarlite.errors import ConfigError, DataError
from sarlite.structure import bter
from sarlite.structure.edges import destinations, is_symmetric

COUNTS = bter.log_normal(3000, 12.0)
CLUSTERING = bter.decaying(len(COUNTS) - 1, 0.9, 0.05)


def by_degree(**nodes):
    counts = np.zeros(1 + max(int(name[1:]) for name in nodes), np.int64)
    for name, count in nodes.items():
        counts[int(name[1:])] = count
    return counts


def test_log_normal_degrees():
    assert COUNTS.sum() == 3000 and COUNTS[0] == 0 and len(COUNTS) - 1 == round((3000 * 12) ** 0.5)
    assert COUNTS @ np.arange(len(COUNTS)) / 3000 == pytest.approx(12, abs=0.01)
    heavy, light = (bter.log_normal(100_000, 12.0, 1000, beta).astype(float) for beta in (1.0, 3.0))
    assert heavy[-500:].sum() > 20 * light[-500:].sum()
    with np.errstate(divide="ignore"):  # log p = -(log d / alpha)^2 up to a constant: its square root is linear in log d
        places = np.array([2, 4, 8, 16, 32])
        roots = np.sqrt(np.log(bter.log_normal(10_000_000, 12.0, 1000)[1] / bter.log_normal(10_000_000, 12.0, 1000)[places]))
    assert np.allclose(roots / np.log(places), roots[0] / np.log(2), rtol=1e-3)


def test_degrees_and_clustering_are_near_those_asked_for():
    graph = bter.bter(COUNTS, CLUSTERING, features=3, seed=1)
    dst = destinations(graph.indptr)
    assert is_symmetric(graph.indptr, graph.indices) and not (dst == graph.indices).any()
    assert (np.diff(dst * 3000 + graph.indices) > 0).all() and graph.features.shape == (3000, 3) and graph.train.sum() == 300
    assert graph.indices.size == COUNTS @ np.arange(len(COUNTS)) // 2 * 2
    rows = {row["low"]: row for row in bter.compare(graph.indptr, graph.indices, COUNTS, CLUSTERING)}
    assert sum(row["nodes"][0] for row in rows.values()) == sum(row["nodes"][1] for row in rows.values()) == 3000
    for low in (3, 5, 9, 17, 33):
        asked, actual = rows[low]["nodes"]
        assert abs(actual - asked) < 5 * asked**0.5
        asked, actual = rows[low]["clustering"]
        assert abs(actual - asked) < 0.12
    assert rows[0]["nodes"][1] < 0.45 * COUNTS[1]  # Poisson: 37 % of the nodes of degree 1
    degrees = np.diff(graph.indptr)
    assert abs(degrees[:1500].mean() - degrees.mean()) < 1  # ids say nothing about degrees


def test_the_seed_decides_and_chunks_do_not():
    ways = ((3, 1 << 20), (3, 997), (4, 1 << 20))
    one, two, other = (bter.bter(COUNTS, CLUSTERING, 2, 4, seed=seed, chunk=chunk) for seed, chunk in ways)
    assert all(np.array_equal(a, b) for a, b in zip(one, two))
    assert not np.array_equal(one.indices, other.indices)


def test_blocks_are_filled_by_degree():
    """Blocks have d + 1 nodes from degree 2 on, filled up with nodes of higher degrees; the last one takes the rest."""
    groups = bter.blocks(by_degree(_0=1, _1=4, _2=4, _3=5, _6=2), np.array([0, 0, 1, 0.125, 0, 0, 0.001]))
    assert groups.firsts.tolist() == [5, 8, 11, 15] and groups.sizes.tolist() == [3, 3, 4, 1]
    assert np.allclose(groups.rho, [1, 1, 0.5, 0.1])


@pytest.mark.parametrize("counts", [by_degree(_0=3, _4=50), by_degree(_2=30, _5=12, _9=10)])
def test_clustering_1_makes_cliques(counts):
    graph = bter.bter(counts, np.ones(len(counts)), features=1, chunk=7)
    assert np.bincount(np.diff(graph.indptr)).tolist() == counts.tolist()
    assert all(row["clustering"][1] in (None, 1.0) for row in bter.compare(graph.indptr, graph.indices, counts, np.ones(len(counts))))


def test_clustering_0_is_chung_lu():
    counts = by_degree(_1=300, _30=200)
    graph = bter.bter(counts, np.zeros(31), features=1, seed=5)
    degrees = np.diff(graph.indptr)
    assert graph.indices.size == 6300 and abs((degrees > 10).sum() - 200) <= 3
    dst = destinations(graph.indptr)
    low = degrees < 10
    assert low[graph.indices][low[dst]].mean() == pytest.approx(300 / 6300, abs=0.03)  # ends in proportion to degrees


def test_local_clustering_is_the_share_of_closed_pairs():
    rng = np.random.default_rng(0)
    dense = np.triu(rng.random((60, 60)) < 0.2, 1)
    dense = (dense | dense.T).astype(np.float64)
    degrees = dense.sum(1).astype(np.int64)
    expected = np.diagonal(dense @ dense @ dense) / (degrees * (degrees - 1.0))
    nodes = rng.permutation(60)
    clustering = bter.local_clustering(scipy.sparse.csr_matrix(dense), degrees, nodes)
    assert np.allclose(clustering, expected[nodes])


def test_a_spec_reads_files_and_tells_what_came_of_them(tmp_path, capsys):
    (tmp_path / "d.csv").write_text("degree,count\n1,10\n4,50\n0,2\n")
    (tmp_path / "c.csv").write_text("6,0\n2,1\n")
    counts, coefficients = by_options.requested(f"{tmp_path}/d.csv", f"{tmp_path}/c.csv")
    assert counts.tolist() == [2, 10, 0, 0, 50] and np.allclose(coefficients, [0, 0, 1, 0.75, 0.5])
    spec = f"bter:degrees={tmp_path}/d.csv,clustering={tmp_path}/c.csv,features=2"
    assert load(spec).equals(load(spec)) and not load(spec).equals(load(spec + ",seed=1"))
    for command in (["info", spec], ["convert", spec, str(tmp_path / "out")]):
        assert main(command) == 0
        starts = [line.split()[:4] for line in capsys.readouterr().out.splitlines()]
        assert ["3", "to", "4", "50"] in starts and ["mean", "degree", "asked", "3.3871,"] in starts


@pytest.mark.parametrize("spec, message", [
    ("nodes=1", "nodes: 1"), ("degree=1", "degree: 1.0"), ("degree=nan", "degree: nan"), ("beta=0", "beta: 0"), ("cmax=1.1", "cmax: 1.1"),
    ("xi=-1", "xi: -1"), ("nodes=50,max_degree=50", "max_degree: 50"), ("max_degree=8,degree=5", "degree: 5.0, .*less than 4.5"),
    ("degrees=FILE,nodes=9", "degrees and nodes"), ("clustering=FILE,xi=1", "clustering and xi"),
    ("nodes=2000000000", "nodes, edges and features"), ("seed=-1", "seed: -1"),
])  # fmt: skip
def test_options_out_of_range_are_refused_by_name(spec, message):
    with pytest.raises(ConfigError, match=message):
        load(f"bter:{spec}")


@pytest.mark.parametrize("option, text, message", [
    ("degrees", "1,2,3\n", r"expected two columns, found shape \(1, 3\)"), ("degrees", "", "expected two columns"),
    ("degrees", "1,2\n1,3\n", "degree 1"), ("degrees", "1,-2\n", "-2 is below 0"), ("degrees", "5,5\n", "the largest is 5"),
    ("degrees", "1,10000000000000\n", "10000000000000 nodes, expected"), ("degrees", "1,0.5\n", "cannot be read"),
    ("clustering", "2,1.5\n", r"row 0 is \[2.0, 1.5\], expected a degree and 0 to 1"), ("clustering", "nan,1\n", "row 0 is"),
])  # fmt: skip
def test_files_that_are_no_distribution(tmp_path, option, text, message):
    (tmp_path / "f").write_text(text)
    with pytest.raises(DataError, match=f"f: {option}: .*{message}"):
        load(f"bter:{option}={tmp_path}/f")

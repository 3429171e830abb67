"""Correct and Smooth against dense NumPy, over ranks and modes; refused inputs; the command on saved predictions."""


import numpy as np
import pytest

from sarlite import Graph, Solo
from sarlite.comm import threads
from sarlite.data import node_rows
from sarlite.errors import ConfigError, DataError, ShapeError
from sarlite.graph.correct_and_smooth import CorrectAndSmooth
from sarlite.graph.propagation import Propagation
from tests.helpers.graph.smoothing_cases import EDGES, LABELS, TRAIN, WEIGHTS, Z, dense
from tests.helpers.graph.strategies import Edges

pytestmark = pytest.mark.timeout(60)

CASES = {
    "as it is": {},
    "fixed scale": {"scale": 1.7, "correct_alpha": 0.9, "correct_iterations": 7},
    "row and column": {"correct_normalization": "row", "smooth_normalization": "column", "smooth_iterations": 3},
    "column and row": {"correct_normalization": "column", "smooth_normalization": "row", "correct_iterations": 1},
    "correct alone": {"smooth_iterations": 0},
    "smooth alone": {"correct_iterations": 0, "smooth_alpha": 0.3},
}


def smoothed(comm, parts, weights, options, **how):
    graph = Graph.from_edges(*EDGES)
    graph = graph.shard(comm, parts, **how) if comm.size > 1 else graph
    ids = graph.node_ids
    weights = None if weights is None else weights[graph.edge_ids]
    return ids, CorrectAndSmooth(**options)(graph, Z[ids], LABELS[ids], TRAIN[ids], weights)


def joined(ranks):
    out = np.full((EDGES.n_nodes, 3), np.nan)
    for ids, rows in ranks:
        out[ids] = rows
    return out


@pytest.mark.parametrize("weighted", [False, True])
def test_scores_are_those_of_the_dense_equations(weighted):
    weights = WEIGHTS if weighted else None
    for name, options in CASES.items():
        _, corrected = smoothed(Solo(), None, weights, options)
        np.testing.assert_allclose(corrected, dense(Z, LABELS, TRAIN, weights, **options), rtol=1e-12, atol=1e-14, err_msg=name)
        assert np.abs(corrected - Z).max() > 0.01, name


@pytest.mark.parametrize("mode", ["sar", "sa", "oneshot"])
def test_several_ranks_give_the_dense_scores(mode):
    few = {"correct_iterations": 9, "smooth_iterations": 9}
    cases = (WEIGHTS, few), (None, {**few, "scale": 1.5}), (None, {**few, "smooth_normalization": "row"})
    for n, prefetch in ((2, 0), (3, 1), (4, 2)):
        parts = np.arange(EDGES.n_nodes) * 7 % n if n < 4 else np.where(TRAIN, 0, 3)  # of 4 ranks two are empty, one has no training row
        for weights, options in cases:
            ranks = threads.run(n, smoothed, parts, weights, options, mode=mode, prefetch=prefetch)
            np.testing.assert_allclose(joined(ranks), dense(Z, LABELS, TRAIN, weights, **options), rtol=1e-12, atol=1e-14,
                                       err_msg=f"{n} ranks, {options}")


def test_rows_that_no_error_reaches_stay_as_they_are():
    edges = Edges(np.array([0, 1, 2, 3]), np.array([1, 0, 3, 2]), 5)  # no path leads from training row 0 to rows 2, 3 and 4
    z, train = Z[:5], np.arange(5) == 0
    labels = z.argmin(1)
    corrected = CorrectAndSmooth(smooth_iterations=0)(Graph.from_edges(*edges), z, labels, train)
    np.testing.assert_array_equal(corrected[2:], z[2:])
    exact = CorrectAndSmooth(smooth_iterations=0)(Graph.from_edges(*edges), np.eye(3)[labels], labels, train)  # no errors at all
    np.testing.assert_array_equal(exact, np.eye(3)[labels])


def test_iterations_are_clipped():
    """The graph is a star: the symmetric normalisation gives its middle sqrt(leaves) times a leaf's rows."""
    leaves = np.arange(1, 26)
    star = Edges(np.concatenate([leaves, 0 * leaves]), np.concatenate([0 * leaves, leaves]), 26)
    labels, train, z = np.zeros(26, int), np.arange(26) > 0, Z[:26]
    for options in ({"smooth_iterations": 0}, {"correct_iterations": 0}):
        corrected = CorrectAndSmooth(**options)(Graph.from_edges(*star), z, labels, train)
        np.testing.assert_allclose(corrected, dense(z, labels, train, edges=star, **options), rtol=1e-12, atol=1e-14)


def test_labels_outside_of_training_are_not_looked_at():
    graph, other = Graph.from_edges(*EDGES), np.where(TRAIN, LABELS, -9)
    np.testing.assert_array_equal(CorrectAndSmooth()(graph, Z, LABELS, TRAIN), CorrectAndSmooth()(graph, Z, other, TRAIN))


def test_float32_stays_float32_and_nothing_is_changed():
    graph, z = Graph.from_edges(*EDGES), Z.astype(np.float32)
    before = z.copy()
    CorrectAndSmooth(correct_iterations=0)(graph, z, LABELS, TRAIN)
    corrected = CorrectAndSmooth()(graph, z, LABELS, TRAIN)
    assert corrected.dtype == np.float32
    np.testing.assert_array_equal(z, before)
    np.testing.assert_allclose(corrected, dense(Z, LABELS, TRAIN), rtol=1e-3, atol=1e-4)


def test_without_iterations_the_scores_are_a_copy():
    z = Z.copy()
    corrected = CorrectAndSmooth(correct_iterations=0, smooth_iterations=0)(Graph.from_edges(*EDGES), z, LABELS, TRAIN)
    np.testing.assert_array_equal(corrected, Z)
    assert not np.shares_memory(corrected, z)


def refused(change, **options):
    graph = Graph.from_edges(*EDGES)
    arguments = {"z": Z.copy(), "labels": LABELS.copy(), "train": TRAIN, "weights": None}
    change(arguments)
    with pytest.raises((ConfigError, DataError, ShapeError)) as caught:
        CorrectAndSmooth(**options)(graph, arguments["z"], arguments["labels"], arguments["train"], arguments["weights"])
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_bad_probabilities_are_refused_with_the_row_and_the_sum():
    def at(row, values):
        return lambda arguments: arguments["z"].__setitem__(row, values)

    assert "row 5 sums to 0.9:" in refused(at(5, [0.3, 0.3, 0.3]))
    assert "row 7 sums to nan" in refused(at(7, [0.3, np.nan, 0.7]))
    assert "row 0 sums to 1, the least of it -0.5:" in refused(at(0, [-0.5, 1.0, 0.5]))
    assert "row 3 sums to inf" in refused(at(3, [np.inf, 0, 0]))
    assert "(41, n_classes)" in refused(lambda arguments: arguments.update(z=Z[:-1]))


def test_other_bad_input_is_refused_by_name():
    assert "no rank has a training row" in refused(lambda arguments: arguments.update(train=np.zeros(EDGES.n_nodes, bool)))
    node = np.flatnonzero(TRAIN)[2]
    assert f"node {node}, of the training split, has label 3" in refused(lambda arguments: arguments["labels"].__setitem__(node, 3))
    for bad, said in ((-0.5, "-0.5"), (np.nan, "nan")):
        weights = WEIGHTS.copy()
        weights[4] = bad
        assert f"edge_weight[4] is {said}" in refused(lambda arguments: arguments.update(weights=weights))  # noqa: B023
    for options in ({"correct_alpha": 1.5}, {"smooth_alpha": float("nan")}, {"scale": -1.0}, {"smooth_normalization": "both"},
                    {"correct_iterations": -1}):
        with pytest.raises(ConfigError, match=next(iter(options))):
            CorrectAndSmooth(**options)
    with pytest.raises(ConfigError, match="bipartite"):
        Propagation(Graph.from_edges([0], [0], n_src=2, n_dst=1))


def test_one_ranks_bad_row_is_refused_on_all():
    def run(comm):
        graph = Graph.from_edges(*EDGES).shard(comm, np.arange(EDGES.n_nodes) % comm.size)
        z = Z[graph.node_ids]
        z[0] *= 1 + (comm.rank == 1)
        with pytest.raises(DataError, match="row 1 sums to 2:"):
            CorrectAndSmooth()(graph, z, LABELS[graph.node_ids], TRAIN[graph.node_ids])
        return True

    assert threads.run(3, run) == [True] * 3


# ---- files of one row a node


def test_rows_of_nodes_are_written_by_all_ranks_and_read_back(tmp_path):
    path, order = tmp_path / "rows.npy", np.random.default_rng(0).permutation(EDGES.n_nodes)

    def run(comm):
        rank_rows = [*np.array_split(order, min(comm.size, 3)), order[:0]][comm.rank]  # with 4 ranks the last one has no rows
        node_rows.write(comm, path, rank_rows, Z[rank_rows], EDGES.n_nodes)
        return np.array_equal(node_rows.read(path, "predictions", rank_rows, EDGES.n_nodes, 3), Z[rank_rows])

    for n in (1, 3, 4):
        assert threads.run(n, run) == [True] * n
        np.testing.assert_array_equal(np.load(path), Z)
    assert [p.name for p in tmp_path.iterdir()] == ["rows.npy"]


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path):
    path = tmp_path / "rows.npy"
    path.write_bytes(b"before")

    def run(comm, ids):
        with pytest.raises(DataError, match="rows.npy"):
            node_rows.write(comm, path, ids[comm.rank], Z[ids[comm.rank]], 4)
        return True

    assert threads.run(2, run, [np.arange(2), np.arange(1)]) == [True] * 2  # a row is missing
    monkey = pytest.MonkeyPatch()
    with monkey.context() as patch:
        patch.setattr(node_rows, "_pwrite", lambda handle, data, offset: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        assert threads.run(2, run, np.arange(4).reshape(2, 2)) == [True] * 2
    assert path.read_bytes() == b"before" and [p.name for p in tmp_path.iterdir()] == ["rows.npy"]


def test_rows_are_read_from_any_order_of_bytes_and_axes(tmp_path):
    for array in (np.asfortranarray(Z), Z.astype(">f8"), Z.astype(np.float32)):
        np.save(tmp_path / "rows.npy", array)
        rows = node_rows.read(tmp_path / "rows.npy", "predictions", np.array([7, 0, 40]), EDGES.n_nodes, 3)
        np.testing.assert_array_equal(rows, array[[7, 0, 40]])
        assert rows.dtype.isnative and rows.flags.c_contiguous


def test_a_wrong_file_of_rows_is_refused_by_name(tmp_path):
    path = tmp_path / "rows.npy"
    for array, said in ((Z[:-1], r"\(40, 3\), but the data need \(41, 3\)"), (Z[:, :2], r"\(41, 2\)"), (LABELS, r"\(41,\)"),
                        (np.tile(LABELS[:, None], 3), "int64")):
        np.save(path, array)
        with pytest.raises(DataError, match=f"rows.npy: predictions: .*{said}"):
            node_rows.read(path, "predictions", np.arange(2), EDGES.n_nodes, 3)
    with pytest.raises(DataError, match="none.npy"):
        node_rows.read(tmp_path / "none.npy", "predictions", np.arange(2), EDGES.n_nodes, 3)

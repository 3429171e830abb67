"""Divided data are the same data: edges and rows by original id, however they are stored, for any number of ranks."""

import contextlib
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sarlite.cli.data_command import main
from sarlite.comm import Solo, threads
from sarlite.data import Dataset, divided_data, format, load
from sarlite.data.assignment import make_order, make_parts, structure, training
from sarlite.data.divide import InMemory, divide, restored
from sarlite.data.part import Part
from sarlite.data.quality import quality
from sarlite.errors import ConfigError, DataError, PeerError
from sarlite.structure.edges import add_self_loops, csr_by_dst, destinations, with_added_loops
from sarlite.structure.partition import report

SBM = "sbm:nodes=60,degree=4,features=5,classes=3,seed=1"


@st.composite
def datasets(draw):
    """Draw a small data set with duplicate edges, edge values, and nodes without edges."""
    n = draw(st.integers(1, 9))
    ids = st.integers(0, n - 1)
    pairs = np.array(draw(st.lists(st.tuples(ids, ids), max_size=25)), np.int64).reshape(-1, 2)
    indptr, indices = csr_by_dst(*pairs.T, n)
    split = np.array(draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)))
    return Dataset(
        indptr, indices, np.arange(2.0 * n, dtype=np.float32).reshape(n, 2), np.arange(n), split == 0, split == 1, split == 2, n,
        edge_weight=np.arange(indices.size, dtype=np.float32), edge_features=np.arange(3.0 * indices.size).reshape(-1, 3))  # fmt: skip


def edges_of(dataset):
    """Return every edge: original ids of its ends, its original position and its values."""
    ids, at = dataset.node_ids, np.arange(dataset.n_edges) if dataset.edge_ids is None else dataset.edge_ids
    values = [dataset.edge_weight, *dataset.edge_features.T] if dataset.edge_weight is not None else []
    columns = [at, ids[dataset.indices], ids[destinations(np.asarray(dataset.indptr))], *values]
    return sorted(zip(*(np.asarray(column).tolist() for column in columns)))


def assert_same(actual, whole):
    """Check that both have the same rows by original id, and the same edges by original ids and positions."""
    assert sorted(actual.node_ids.tolist()) == list(range(whole.n_nodes))
    for name in ("features", "labels", "train", "val", "test"):
        assert np.array_equal(getattr(actual, name), getattr(whole, name)[actual.node_ids])
    assert edges_of(actual) == edges_of(whole)
    indptr, indices = np.asarray(actual.indptr), np.asarray(actual.indices)
    assert all((np.diff(indices[low:high]) >= 0).all() for low, high in zip(indptr, indptr[1:]))


@settings(max_examples=60, deadline=None)
@given(datasets(), st.integers(1, 12), st.data())
def test_dividing_keeps_rows_and_edges(dataset, n_parts, data):
    n = dataset.n_nodes
    parts = np.array(data.draw(st.lists(st.integers(0, n_parts - 1), min_size=n, max_size=n)))
    order = data.draw(st.none() | st.permutations(range(n)).map(np.array))
    sink = InMemory()
    divide(dataset, parts, n_parts, sink, order=order)
    assert_same(sink.dataset, dataset)
    ids, offsets = sink.dataset.node_ids, sink.dataset.offsets
    assert [ids[low:high].tolist() for low, high in zip(offsets, offsets[1:])] == [
        [node for node in (range(n) if order is None else order.tolist()) if parts[node] == part] for part in range(n_parts)
    ]
    assert quality(sink.dataset, tiles=False) == report(dataset.indptr, dataset.indices, parts, n_parts, dataset.train)
    again = InMemory()
    divide(sink.dataset, parts[::-1], n_parts, again)  # divided data are divided again by original ids
    assert_same(again.dataset, dataset)
    assert again.dataset.node_ids.tolist() == np.argsort(parts[::-1], kind="stable").tolist()
    back = restored(again.dataset)
    assert back.equals(dataset)
    graph = structure(again.dataset)
    assert np.array_equal(graph.indptr, dataset.indptr) and np.array_equal(graph.indices, dataset.indices)
    assert np.array_equal(training(again.dataset), dataset.train)


@settings(max_examples=100, deadline=None)
@given(datasets(), st.integers(1, 4))
def test_self_loops_come_in_ascending_place(dataset, size):
    everything = (dataset.indptr, dataset.indices)
    for rank in range(size):
        first, last = dataset.n_nodes * rank // size, dataset.n_nodes * (rank + 1) // size
        indptr = everything[0][first : last + 1]
        indices, indptr = everything[1][indptr[0] : indptr[-1]], indptr - indptr[0]
        ids = np.arange(indices.size)
        new_indptr, new, added = add_self_loops(indptr, indices, first)
        new_ids = with_added_loops(ids, new_indptr, new, added, first, -1)
        for row in range(last - first):
            old = indices[indptr[row] : indptr[row + 1]].tolist()
            here = slice(new_indptr[row], new_indptr[row + 1])
            assert added[row] == (first + row not in old)
            assert new[here].tolist() == sorted(old + [first + row] * bool(added[row]))
            expected = [-1] if added[row] else []
            assert sorted(new_ids[here].tolist()) == expected + ids[indptr[row] : indptr[row + 1]].tolist()
            assert not added[row] or new[here][new_ids[here] == -1].tolist() == [first + row]
        assert new.dtype == indices.dtype and new_indptr.dtype == np.int64


@pytest.fixture
def dataset():
    data = load(SBM)
    data.edge_weight = np.arange(data.n_edges, dtype=np.float32)
    data.edge_features = np.arange(2.0 * data.n_edges).reshape(-1, 2)
    return data


@pytest.fixture
def stored(dataset, tmp_path):
    format.write(tmp_path / "d", dataset)
    return tmp_path / "d"


def partition(stored, *words):
    assert main(["partition", str(stored), *map(str, words)]) == 0


def gathered(n_ranks, spec, **options):
    """Return the data set that the ranks hold together: their slices joined again."""

    def work(comm):
        with divided_data.divided(comm, spec, **options) as dataset:
            part = Part(dataset, comm.rank, comm.size)
            rows, (indptr, indices) = part.rows(), part.edges()
            values = {name: part.edge_values(name) for name in ("edge_weight", "edge_features")}
            return part.offsets, rows, np.diff(indptr), indices, part.node_ids(), part.edge_ids(), values

    ranks = threads.run(n_ranks, work) if n_ranks > 1 else [work(Solo())]
    together = [np.concatenate(pieces) for pieces in zip(*(one[1] for one in ranks))]
    lengths, indices, ids, edge_ids = (np.concatenate([one[at] for one in ranks]) for at in (2, 3, 4, 5))
    values = {name: np.concatenate([one[6][name] for one in ranks]) for name in ranks[0][6] if ranks[0][6][name] is not None}
    indptr = np.concatenate(([0], np.cumsum(lengths)))
    return Dataset(indptr, indices, *together, 3, ids=ids, edge_ids=edge_ids, offsets=ranks[0][0], **values)


@pytest.mark.parametrize("order", ["none", "metis"])
@pytest.mark.parametrize("n_ranks", [1, 2, 3, 4, 6])
def test_every_number_of_ranks_from_six_parts(stored, dataset, capsys, n_ranks, order, tmp_path):
    partition(stored, "--parts", 6, "--order", order)
    capsys.readouterr()
    six = format.open(stored, verify=True).check()
    together = gathered(n_ranks, str(stored), scratch=tmp_path)
    assert_same(together, dataset)
    warning = capsys.readouterr().err
    if 6 % n_ranks == 0:
        assert together.offsets.tolist() == six.offsets[:: 6 // n_ranks].tolist()
        assert together.ids.tolist() == six.ids.tolist() and warning == ""
    else:
        assert "stored in 6 parts, which do not fit these options and 4 ranks" in warning and warning.count("\n") == 1
        assert np.diff(together.offsets).max() <= 20
        for low, high in zip(together.offsets, together.offsets[1:]):
            ids = together.ids[low:high].tolist()
            assert ids == (sorted(ids) if order == "none" else [node for node in six.ids.tolist() if node in ids])
    assert os.listdir(tmp_path) == ["d"]  # no scratch left


def test_more_parts_than_nodes(tmp_path, capsys):
    (tmp_path / "e.csv").write_text("0,1\n1,2\n2,0\n")
    empty = [word for name in ("train", "val", "test") for word in ("--allow-empty", name)]
    assert main(["convert", f"edges:{tmp_path}/e.csv", str(tmp_path / "d"), *empty]) == 0
    whole = format.open(tmp_path / "d")
    for method in ("metis", "random", "contiguous"):
        partition(tmp_path / "d", "--parts", 5, "--method", method)
        opened = format.open(tmp_path / "d", verify=True)
        assert np.diff(opened.offsets).tolist().count(0) == 2
        assert "warning: 2 of 5 parts have no nodes\n" in capsys.readouterr().err
        assert edges_of(opened) == edges_of(whole)


@pytest.mark.parametrize(
    "options, anew",
    [
        ({}, False),
        ({"partition": "random"}, False),
        ({"order": "none"}, False),
        ({"partition": "metis"}, True),
        ({"partition": "contiguous", "order": "metis"}, True),
        ({"order": "metis"}, True),
    ],
)
def test_another_division_than_the_stored_one_is_made_anew(stored, dataset, capsys, options, anew):
    partition(stored, "--parts", 2, "--method", "random", "--seed", 5)
    before = {path: path.read_bytes() for path in stored.rglob("*.npy")}
    capsys.readouterr()
    together = gathered(2, str(stored), **options)
    assert_same(together, dataset)
    assert ("divided for this run, in" in capsys.readouterr().err) == anew
    assert {path: path.read_bytes() for path in stored.rglob("*.npy")} == before
    method = options.get("partition", "random")
    parts = make_parts(dataset, 2, method, seed=0 if anew else 5)
    assert together.ids.tolist()[: together.offsets[1]] == [node for node in order_of(dataset, options) if parts[node] == 0]


def order_of(dataset, options):
    return make_order(dataset, "metis").tolist() if options.get("order") == "metis" else range(60)


@pytest.mark.parametrize("n_ranks", [1, 2, 3])
@pytest.mark.parametrize("order", ["stored", "none", "metis"])
def test_other_specs_are_divided_in_scratch(n_ranks, order, tmp_path, capsys):
    together = gathered(n_ranks, SBM, partition="metis", order=order, scratch=tmp_path)
    assert_same(together, load(SBM))
    assert os.listdir(tmp_path) == [] and capsys.readouterr().err == ""
    ascends = all((np.diff(together.ids[low:high]) > 0).all() for low, high in zip(together.offsets, together.offsets[1:]))
    assert ascends == (order != "metis")


def test_a_file_divides_by_original_id(stored, dataset, tmp_path):
    np.savetxt(tmp_path / "parts.txt", np.arange(60) % 3, fmt="%d")
    partition(stored, "--parts", 2, "--method", "random")
    together = gathered(3, str(stored), partition=str(tmp_path / "parts.txt"))
    assert_same(together, dataset)
    assert [ids.tolist() for ids in np.split(together.ids, together.offsets[1:-1])] == [list(range(part, 60, 3)) for part in range(3)]


def test_scratch_is_never_made_in_the_data_set(stored, monkeypatch, tmp_path):
    folders = []
    real = divided_data.private_folder

    @contextlib.contextmanager
    def folder(parent, *mode):
        with real(parent, *mode) as path:
            folders.append(path)
            yield path

    monkeypatch.setattr(divided_data, "private_folder", folder)
    for scratch in (stored, stored / "nodes", tmp_path):
        gathered(2, str(stored), scratch=scratch)
    assert [Path(folder).parent == tmp_path for folder in folders] == [False, False, True]
    assert not any(Path(folder).is_relative_to(stored) or Path(folder).exists() for folder in folders)


@pytest.mark.parametrize("error", [ZeroDivisionError("by 0"), MemoryError(), KeyboardInterrupt(), DataError("x.npy: bad"), SystemExit(3)])
def test_whatever_fails_on_rank_0_reaches_all(stored, monkeypatch, error, tmp_path):
    def fail(*arguments, **options):
        raise error

    monkeypatch.setattr(divided_data, "divide", fail)
    seen = {}

    def work(comm):
        with pytest.raises(BaseException) as caught, divided_data.divided(comm, str(stored), scratch=tmp_path):
            pass
        seen[comm.rank] = caught.value

    threads.run(3, work)
    assert seen[0] is error
    for rank in (1, 2):
        assert type(seen[rank]) is (DataError if isinstance(error, DataError) else PeerError) and str(error) in str(seen[rank])
        assert str(seen[rank]).startswith("rank 0: ")
    assert os.listdir(tmp_path) == ["d"]


def test_scratch_goes_when_the_body_fails(stored, tmp_path):
    def work(comm):
        with pytest.raises(ValueError), divided_data.divided(comm, str(stored), scratch=tmp_path):
            comm.barrier()
            raise ValueError

    threads.run(2, work)
    assert os.listdir(tmp_path) == ["d"]


def test_corrupt_files_are_named_on_every_rank(stored, dataset):
    partition(stored, "--parts", 2)
    for name in ("nodes/node/ids", "edges/node.edge.node/ids", "edges/node.edge.node/weight"):
        path = stored / f"{name}.npy"
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        ranks_told = []

        def work(comm, path=path, ranks_told=ranks_told):
            with pytest.raises(DataError, match=f"{path}: .*sha256"), divided_data.divided(comm, str(stored), verify=True):
                pass
            ranks_told.append(comm.rank)

        threads.run(2, work)
        assert sorted(ranks_told) == [0, 1]
        path.write_bytes(content)
    assert_same(gathered(2, str(stored), verify=True), dataset)


def test_ids_that_are_no_permutation_are_named(stored, dataset):
    dataset.ids = np.arange(60) // 2
    format.write(stored, dataset, overwrite=True)
    for at_once in (1 << 24, 7):
        with pytest.raises(DataError, match="nodes/node/ids.npy: ids: no row has id 30"):
            format.open(stored, verify=True).check(ids_at_once=at_once)
    dataset.ids = np.arange(60) + 1
    format.write(stored, dataset, overwrite=True)
    with pytest.raises(DataError, match="ids.npy: ids: entry 59 .*60, outside 0 <= id < 60"):
        format.open(stored, verify=True).check()
    dataset.ids, dataset.edge_ids = None, np.full(240, 240)
    format.write(stored, dataset, overwrite=True)
    with pytest.raises(DataError, match="node.edge.node/ids.npy: edge_ids: entry 0 is 240, outside"):
        format.open(stored, verify=True).check()


def test_changes_of_divided_data_are_those_of_the_original(stored, dataset):
    partition(stored, "--parts", 3, "--method", "random")
    plain = load(SBM, undirected=True, self_loops=True)
    changed = load(f"{stored},drop_edge_values,self_loops,undirected")
    assert np.array_equal(changed.indptr, plain.indptr) and np.array_equal(changed.indices, plain.indices)
    assert np.array_equal(changed.features, plain.features)
    with pytest.raises(ConfigError, match="edges that carry values"):
        load(f"{stored},self_loops")
    assert load(f"{stored},drop_edge_values").edge_weight is None
    sums = load(f"{stored},normalize")
    assert np.allclose(sums.features.sum(axis=1), 1, atol=1e-3) and np.array_equal(sums.ids, load(str(stored)).ids)
    assert gathered(3, f"{stored},drop_edge_values").edge_weight is None


def test_partition_into_another_directory(stored, dataset, tmp_path, capsys):
    before = {path: path.read_bytes() for path in stored.rglob("*.npy")}
    partition(stored, "--parts", 3, "--output", tmp_path / "three")
    assert {path: path.read_bytes() for path in stored.rglob("*.npy")} == before
    assert_same(format.open(tmp_path / "three", verify=True), dataset)
    assert main(["partition", str(stored), "--parts", "3", "--output", str(tmp_path / "three")]) == 2
    assert "exists already" in capsys.readouterr().err
    partition(stored, "--parts", 2, "--output", tmp_path / "three", "--overwrite")
    assert format.open(tmp_path / "three").n_parts == 2


@pytest.mark.parametrize("step", [0, 5, 14, -2, -1])
def test_an_interrupted_partition_leaves_the_old_data_set(stored, tmp_path, monkeypatch, capsys, step):
    before = {path: path.read_bytes() for path in stored.rglob("*") if path.is_file()}
    calls, names = count_calls(stored, tmp_path), ("fsync", "rename")
    seen = []
    with monkeypatch.context() as patch:
        for name in names:
            patch.setattr(os, name, failing(getattr(os, name), seen, step % calls))
        assert main(["partition", str(stored), "--parts", "3"]) == 2
    assert "cannot be written: No space left on device" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in stored.rglob("*") if path.is_file()} == before
    assert os.listdir(tmp_path) == ["d"]


def count_calls(stored, tmp_path):
    """Count every fsync and rename of a partition in place, except the last fsync.

    The last fsync comes after the new data set has its name.
    """
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("fsync", "rename"):
            patch.setattr(os, name, failing(getattr(os, name), seen, None))
        partition(stored, "--parts", "3", "--output", tmp_path / "other")
    shutil.rmtree(tmp_path / "other")
    return len(seen)  # a partition in place has one more rename, and the last fsync is left out


def failing(function, seen, step):
    def call(*arguments):
        seen.append(function.__name__)
        if len(seen) - 1 == step:
            raise OSError(28, "No space left on device")
        return function(*arguments)

    return call


@pytest.mark.parametrize("file", ["mine.npy", "nodes/node/mine.npy", "edges/other.npy"])
def test_a_division_leaves_files_that_the_data_set_does_not_name(tmp_path, file, capsys):
    format.write(tmp_path / "d", load("sbm:nodes=40,degree=3,classes=3,features=2"))
    np.save(tmp_path / "d" / file, np.arange(3))
    for words in (["partition", "d", "--parts", "2"], ["convert", "sbm:nodes=40", "d", "--overwrite"]):
        assert main([words[0], *(str(tmp_path / "d") if word == "d" else word for word in words[1:])]) == 2
        assert f"holds {file}, which is not part of the data set" in capsys.readouterr().err
    assert np.load(tmp_path / "d" / file).tolist() == [0, 1, 2]

"""A conversion in bounded memory gives the directory of a conversion in memory, hash by hash.

A conversion that fails or dies leaves nothing.
"""

import gzip
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from sarlite.cli.data_command import main
from sarlite.data import external_sort, format, load
from sarlite.data.external_sort import Sorter, sampled
from sarlite.errors import ConfigError, DataError

N_NODES = 300
EMPTY = ("train", "val", "test")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Write files of a graph with equal edges, loops and nodes without edges."""
    path, rng = tmp_path_factory.mktemp("files"), np.random.default_rng(0)
    edges = rng.integers(0, N_NODES - 20, (2500, 2)) // 2 * 2
    np.savetxt(path / "e.txt", edges, "%d", header="src dst", comments="")
    np.save(path / "e.npy", edges.T.astype(np.int32))
    with gzip.open(path / "e.csv.gz", "wt") as file:
        np.savetxt(file, edges, "%d", delimiter=",")
    np.savetxt(path / "x.csv", rng.random((N_NODES, 3)), delimiter=",")
    np.save(path / "y.npy", rng.integers(0, 4, N_NODES))
    np.savetxt(path / "many.txt", rng.integers(0, 2, (N_NODES, 2)), "%d")
    (path / "s.txt").write_text("".join(f"{('train', 'val', 'test', 'none')[node % 4]}\n" for node in range(N_NODES)))
    indptr = np.concatenate(([0], np.cumsum(np.bincount(edges[:, 0], minlength=N_NODES))))
    columns = edges[np.argsort(edges[:, 0], kind="stable"), 1]
    attributes = {"attr_indptr": np.arange(N_NODES + 1) * 2, "attr_indices": rng.integers(0, 5, 2 * N_NODES),
                  "attr_data": rng.random(2 * N_NODES), "attr_shape": [N_NODES, 5]}
    rest = {"adj_indptr": indptr, "adj_indices": columns, "adj_shape": [N_NODES, N_NODES], "labels": rng.integers(0, 3, N_NODES)}
    np.savez_compressed(path / "g.npz", **rest, **attributes, adj_data=np.ones(len(columns)))
    np.savez(path / "weighted.npz", **rest, attr_matrix=rng.integers(0, 9, (N_NODES, 3)), adj_data=rng.integers(1, 99, len(columns)))
    return path


@pytest.mark.parametrize("spec, changes", [
    ("edges:e.txt,labels=y.npy,features=x.csv,split=s.txt", {}),
    ("edges:e.csv.gz,nodes=310", {"undirected": True}),
    ("edges:e.npy,labels=many.txt,task=multilabel,features=x.csv", {"deduplicate": True, "self_loops": True, "normalize": True}),
    ("edges:e.npy,labels=y.npy,classes=6", {"undirected": True, "self_loops": True}),
    ("npz:g.npz,train=0.3,val=0.2", {"self_loops": True}),
    ("npz:weighted.npz", {}),
    ("npz:weighted.npz,drop_edge_values", {"undirected": True}),
])
def test_a_streamed_data_set_is_the_one_made_in_memory(folder, tmp_path, monkeypatch, spec, changes):
    """The conversion takes pieces of a few nodes."""
    monkeypatch.chdir(folder)
    expected = load(spec, allow_empty=EMPTY, **changes)
    streamed = load(spec, folder=tmp_path, n_bytes=64 * 310, allow_empty=EMPTY, **changes)
    assert isinstance(streamed.indices, np.memmap)
    for name, dataset in (("one", expected), ("two", streamed)):
        format.write(tmp_path / name, dataset)
    one, two = (format.read_meta(tmp_path / name) for name in ("one", "two"))
    assert one == two


def test_the_command_streams(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    spec = "edges:e.txt,labels=y.npy"
    assert main(["convert", spec, str(tmp_path / "one"), "--undirected"]) == 0
    assert main(["convert", spec, str(tmp_path / "two"), "--undirected", "--memory", "4GiB"]) == 0
    assert (tmp_path / "one" / "meta.json").read_text() == (tmp_path / "two" / "meta.json").read_text()
    assert sorted(os.listdir(tmp_path)) == ["one", "two"]
    for words, text in ((["sbm:nodes=50", "--memory", "4GiB"],
                         "--memory: the form sbm: is read whole; edges:, npz:, mag:, tables: are read in bounded"),
                        ([spec, "--memory", "20MiB"], "--memory: 20 MiB is too little"),
                        ([spec, "--memory", "much"], "--memory: 'much' is not a size"),
                        (["edges:e.txt,nodes=5", "--memory", "4GiB"], "e.txt: row 0, column 'src': node '238' is outside 0 <= node < 5")):
        assert main(["convert", words[0], str(tmp_path / "three"), *words[1:]]) == 2
        assert text in capsys.readouterr().err and not (tmp_path / "three").exists()


def test_equal_keys_keep_their_order(tmp_path):
    rng = np.random.default_rng(1)
    keys, values = rng.integers(0, 40, 2000), np.arange(2000)
    sorter = Sorter(tmp_path, 400 * 33, 2000, sampled([keys[:900], keys[900:]], 2000), place=(np.int64, ()), row=(np.float32, (2,)))
    for at in range(0, 2000, 170):
        piece = slice(at, at + 170)
        sorter.add(keys[piece], place=values[piece], row=np.stack([values[piece]] * 2, axis=1))
    assert len([*tmp_path.iterdir()]) == 10
    pieces = list(sorter.pieces())
    order = np.argsort(keys, kind="stable")
    assert np.concatenate([piece for piece, _ in pieces]).tolist() == keys[order].tolist()
    assert np.concatenate([columns["place"] for _, columns in pieces]).tolist() == order.tolist()
    assert np.concatenate([columns["row"] for _, columns in pieces]).tolist() == [[at, at] for at in order]
    assert not any(tmp_path.iterdir())
    with pytest.raises(ConfigError, match="--memory: too small to sort 2,000 records of 8 bytes"):
        Sorter(tmp_path, 100, 2000, [])


def test_a_sample_is_every_kth_key_however_the_keys_arrive(monkeypatch):
    monkeypatch.setattr(external_sort, "_SAMPLES", 7)
    keys = np.arange(100)
    for cuts in ([], [1, 2, 50], [13, 14, 15, 99]):
        assert np.concatenate([*sampled(np.split(keys, cuts), 100)]).tolist() == keys[::14].tolist()


def test_what_is_wrong_is_named_by_its_node(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(folder)
    labels = ["0"] * N_NODES
    labels[250] = "0.5"
    (tmp_path / "y.txt").write_text("\n".join(labels))
    with pytest.raises(DataError, match="y.txt: row 250, column '0': .*'0.5', .*whole number"):
        load(f"edges:e.txt,labels={tmp_path}/y.txt", folder=tmp_path, n_bytes=6000)


def test_a_split_that_is_drawn_must_fit(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(folder)
    with pytest.raises(ConfigError, match="split .*300 nodes takes 19,200 bytes of --memory, .*6,000"):
        load("edges:e.txt,labels=y.npy", folder=tmp_path, n_bytes=6000)


@pytest.mark.parametrize("memory", [("--memory", "4GiB"), ()])
def test_what_a_killed_conversion_left_goes_with_the_next(folder, tmp_path, memory):
    code = """
        import os, sys
        from sarlite.cli.data_command import main
        from sarlite.data.tables.edge_columns import NumberedEdges
        sort = NumberedEdges.sorted
        def die(*given):
            sort(*given)
            os.kill(os.getpid(), 9)
        NumberedEdges.sorted = die
        main(sys.argv[1:])
    """
    words = ["convert", f"edges:{folder}/e.txt,labels={folder}/y.npy", str(tmp_path / "d")]
    killed = [sys.executable, "-c", textwrap.dedent(code), *words, "--memory", "4GiB"]
    done = subprocess.run(killed, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".sarlite-") and (left / "edges.0.0" / "indices").exists()
    assert main([*words, *memory]) == 0 and os.listdir(tmp_path) == ["d"]
    format.open(tmp_path / "d", verify=True).check()


def test_a_full_disk_leaves_nothing(folder, tmp_path):
    """Files may have 3,000 bytes, less than the temporary file of the edges; the old data set stays."""
    words = ["convert", f"edges:{folder}/e.txt,labels={folder}/y.npy", str(tmp_path / "d"), "--memory", "4GiB", "--overwrite"]
    assert main(words) == 0
    before = (tmp_path / "d" / "meta.json").read_bytes()
    code = """
        import resource, signal, sys
        from sarlite.cli.data_command import main
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, resource.RLIM_INFINITY))
        sys.exit(main(sys.argv[1:]))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code), *words], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and "indices: cannot be written: File too large" in done.stderr, done.stderr
    assert os.listdir(tmp_path) == ["d"] and (tmp_path / "d" / "meta.json").read_bytes() == before
    format.open(Path(tmp_path, "d"), verify=True)


def test_parquet_files_give_the_data_of_text_files(folder, tmp_path):
    import pyarrow as arrow
    from pyarrow import parquet

    src, dst = np.load(folder / "e.npy")
    parquet.write_table(arrow.table({"src": src, "dst": dst}), tmp_path / "e.parquet", row_group_size=400)
    rows = np.loadtxt(folder / "x.csv", np.float32, delimiter=",")
    lists = arrow.FixedSizeListArray.from_arrays(arrow.array(rows.ravel()), 3)
    parquet.write_table(arrow.table({"x": lists}), tmp_path / "x.parquet")
    expected = load(f"edges:{folder}/e.txt,features={folder}/x.csv", allow_empty=EMPTY)
    assert load(f"edges:{tmp_path}/e.parquet,features={tmp_path}/x.parquet", allow_empty=EMPTY).equals(expected)
    parquet.write_table(arrow.table({"src": ["a"], "dst": ["b"]}), tmp_path / "names.parquet")
    assert load(f"edges:{tmp_path}/names.parquet", allow_empty=EMPTY).n_nodes == 2

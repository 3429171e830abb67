"""The npz, OGB and edge list readers, on real files where they exist and on small files written here."""

import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

from sarlite.data import load
from sarlite.data.readers import npz
from sarlite.data.tables.number_files import read_csv
from sarlite.errors import ConfigError, DataError
from sarlite.structure.edges import destinations, is_symmetric
from sarlite.tasks.link_edges import Ends
from sarlite.tasks.link_files import read_pairs
from tests.helpers.train.data_files import EMPTY, NO_LABELS, TOY, toy_npz, write_gz, write_ogb, write_saved, write_split

REAL = Path(os.environ.get("SARLITE_DATA", Path(__file__).resolve().parents[4] / "shared" / "data"))


def real(name, *others):
    for path in (REAL / name, *(REAL / other for other in others)):
        if not path.exists():
            pytest.skip(f"{path} is missing; SARLITE_DATA names the folder of real graphs")
    return REAL / name


def sizes(dataset):
    return [int(getattr(dataset, name).sum()) for name in ("train", "val", "test")]


def edges(dataset):
    return sorted(zip(dataset.indices.tolist(), destinations(dataset.indptr).tolist()))


# .npz


def test_npz_reads_cora():
    cora = load(f"npz:{real('npz/cora.npz')}")
    assert (cora.n_nodes, cora.n_edges, cora.n_features, cora.n_classes) == (2708, 5429, 1433, 7)
    assert sizes(cora) == [140, 210, 2358]
    assert np.bincount(cora.labels[cora.train]).tolist() == [20] * 7


def test_npz_facebook_pages():
    pages = load(f"npz:{real('npz/facebook_pages.npz')},train=0.1,val=0.1")
    assert (pages.n_nodes, pages.n_edges, pages.n_features, pages.n_classes) == (22470, 341825, 4714, 4)
    assert is_symmetric(pages.indptr, pages.indices)
    assert int((destinations(pages.indptr) == pages.indices).sum()) == 179
    assert abs(sizes(pages)[0] - 2247) <= 4 and sum(sizes(pages)) == 22470


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_reads_a_small_archive(tmp_path, save):
    save(tmp_path / "toy.npz", **toy_npz())
    toy = load(f"npz:{tmp_path}/toy.npz,{TOY}", **EMPTY)
    assert edges(toy) == [(0, 1), (0, 2), (3, 0)]  # a row of the file is an edge's source
    assert np.array_equal(toy.features, np.arange(8).reshape(4, 2))
    assert sizes(toy) == [2, 0, 2] and toy.name == "toy"
    assert load(f"npz:{tmp_path}/toy.npz,{TOY},undirected,self_loops", **EMPTY).n_edges == 10


def test_npz_split_depends_on_the_seed_alone():
    path = real("npz/cora.npz")
    one, two, three = (load(f"npz:{path},seed={seed}") for seed in (1, 1, 2))
    assert one.equals(two) and not np.array_equal(one.train, three.train)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"adj_indices": np.array([1, 9, 0])}, "from row 0 on: adj_indices: entry 1 is 9, outside 0 <= column < 4"),
        ({"adj_indptr": np.array([0, 2, 1, 1, 3])}, "adj_indptr: entry 2 is less than the entry before"),
        ({"adj_indptr": np.array([0, 2, 3])}, "adj_indptr: shape \\(3,\\), dtype int64, expected 5 integers"),
        ({"adj_shape": np.array([4, 5])}, r"adj_shape: \[4, 5\], expected the number of nodes twice"),
        ({"attr_indices": None}, "attr_indices: no such array in the file"),
        ({"attr_shape": np.array([4, 10**15])}, r"from row 0 on: attr: 1 x 1000000000000000 features: needs \d+ bytes"),
        ({"attr_shape": np.array([3, 2]), "attr_indptr": np.array([0, 1, 3, 7])}, "features: 3 rows, but .*npz: labels: 4; both need one"),
        ({"labels": np.array([0, 1, 0])}, "labels: 3 rows, but .*npz: features: 4; both need one"),
        ({"labels": np.array([0, 1, 0.5, 0])}, "row 2, column 'labels': label 0.5, expected a whole number"),
        ({"labels": np.array([{}, 1, 2, 3])}, "labels: cannot be read: it holds Python objects"),
        ({"labels": np.array(["a", "b", "c", "d"])}, "labels: cannot be read: its dtype is <U1, expected numbers"),
    ],
)
def test_npz_content_that_does_not_fit(tmp_path, changes, message):
    np.savez(tmp_path / "toy.npz", **toy_npz(**changes))
    with pytest.raises(DataError, match=f"toy.npz: {message}"):
        load(f"npz:{tmp_path}/toy.npz,{TOY}", **EMPTY)


@pytest.mark.parametrize("damage", ["cut", "flip", "delete", "garbage"])
def test_npz_damage_names_the_file(tmp_path, damage):
    path = tmp_path / "toy.npz"
    np.savez_compressed(path, **toy_npz())
    content = bytearray(path.read_bytes())
    content[60] ^= 255
    path.write_bytes({"cut": content[:-30], "garbage": b"PK garbage"}.get(damage, content))
    if damage == "delete":
        path.unlink()
    with pytest.raises(DataError, match=str(path)):
        load(f"npz:{path},{TOY}", **EMPTY)


def test_large_uncompressed_members_are_mapped(tmp_path):
    large = np.arange(400_000.0).reshape(2, -1)
    np.savez(tmp_path / "a.npz", small=np.arange(3), large=large, fortran=np.asfortranarray(large))
    for name in ("large", "fortran"):
        mapped = npz.member(tmp_path / "a.npz", name)
        assert isinstance(mapped, np.memmap) and np.array_equal(mapped, large)
    assert npz.member(tmp_path / "a.npz", "small").tolist() == [0, 1, 2]


def test_a_member_shorter_than_its_header_says(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive, archive.open("x.npy", "w") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": (10**13,)})
    with pytest.raises(DataError, match="a.npz: x: 128 bytes, .*80000000000128"):
        npz.member(tmp_path / "a.npz", "x")


# OGB


def test_ogb_reads_arxivs_layout(tmp_path):
    graph = write_ogb(tmp_path / "ogbn_arxiv")
    arxiv = load(f"ogb:{tmp_path}/ogbn_arxiv")
    assert edges(arxiv) == sorted(map(tuple, graph["edges"].tolist()))
    assert np.array_equal(arxiv.features, graph["features"]) and arxiv.features.dtype == np.float32
    assert np.array_equal(arxiv.labels, graph["labels"]) and arxiv.n_classes == 3 and arxiv.name == "ogbn-arxiv"
    assert [np.flatnonzero(mask).tolist() for mask in (arxiv.train, arxiv.val, arxiv.test)] == [[0, 1, 5], [2], [3, 4]]


def test_ogb_products_gets_inverse_edges(tmp_path):
    graph = write_ogb(tmp_path, "sales_ranking")
    pairs = set(map(tuple, graph["edges"].tolist()))
    assert edges(load(f"ogb:{tmp_path}")) == sorted(pairs | {(v, u) for u, v in pairs})
    assert load(f"ogb:{tmp_path},undirected=false").n_edges == 9


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_ogb_reads_papers_layout(tmp_path, save):
    rng = np.random.default_rng(0)
    (tmp_path / "raw").mkdir()
    edge_index, features = rng.integers(0, 6, (2, 9)), rng.standard_normal((6, 70_000)).astype(np.float32)
    save(tmp_path / "raw/data.npz", edge_index=edge_index, node_feat=features, num_nodes_list=[6], num_edges_list=[9])
    labels = np.array([[0], [2], [1], [np.nan], [2], [1.0]], np.float32)
    np.savez(tmp_path / "raw/node-label.npz", node_label=labels)
    write_split(tmp_path, "time")
    with pytest.raises(DataError, match="labels: node 3 .*no label"):
        load(f"ogb:{tmp_path}")
    write_gz(tmp_path / "split/time/test.csv.gz", [4])
    papers = load(f"ogb:{tmp_path}")
    assert papers.labels.tolist() == [0, 2, 1, -1, 2, 1] and papers.n_classes == 3
    assert edges(papers) == sorted(map(tuple, edge_index.T.tolist())) and np.array_equal(papers.features, features)
    assert isinstance(papers.features, np.memmap) == (save is np.savez)


@pytest.mark.parametrize("zipped", [False, True])
def test_ogb_reads_the_layouts_of_links(tmp_path, zipped):
    """The layouts are ogbl-collab's and ogbl-citation2's; the links of the second have a direction."""
    graph = write_ogb(tmp_path / "ogbl_collab")
    (tmp_path / "ogbl_collab/raw/node-label.csv.gz").unlink()
    for file in (tmp_path / "ogbl_collab/split/time").iterdir():
        file.unlink()
    split, links = tmp_path / "ogbl_collab/split/time", np.array([[0, 4], [5, 2]])
    write_saved(split / "train.pt", {"edge": graph["edges"], "weight": np.ones(9)}, zipped)
    write_saved(split / "valid.pt", {"edge": links, "edge_neg": links[::-1], "weight": np.ones(2)}, zipped)
    collab = load(f"ogb:{tmp_path}/ogbl_collab", allow_empty=("train", "val", "test"))
    pairs = set(map(tuple, graph["edges"].tolist()))
    assert edges(collab) == sorted(pairs | {(v, u) for u, v in pairs}) and collab.name == "ogbl-collab"
    assert np.array_equal(collab.features, graph["features"]) and (collab.labels == -1).all() and collab.n_classes == 0
    np.testing.assert_array_equal(read_pairs(str(split / "valid.pt"), [Ends(0, 6)] * 2), links)
    with pytest.raises(DataError, match="valid.pt: links: source of pair 1 .*5, outside 0 <= node < 5"):
        read_pairs(str(split / "valid.pt"), [Ends(0, 5)] * 2)
    (tmp_path / "ogbl_collab/raw/node-feat.csv.gz").unlink()
    write_saved(split / "train.pt", {"source_node": graph["edges"][:, 0], "target_node": graph["edges"][:, 1]}, zipped)
    citation = load(f"ogb:{tmp_path}/ogbl_collab", allow_empty=("train", "val", "test"))
    assert edges(citation) == sorted(map(tuple, graph["edges"].tolist())) and (citation.features == 1).all()
    np.testing.assert_array_equal(read_pairs(str(split / "train.pt"), [Ends(0, 6)] * 2), graph["edges"])
    with pytest.raises(ConfigError, match="classes: .*links, .*no labels"):
        load(f"ogb:{tmp_path}/ogbl_collab,classes=3")


def test_what_is_no_file_of_links(tmp_path):
    file = tmp_path / "valid.pt"
    cases = {
        "it has no dict of NumPy arrays": lambda: write_saved(file, [1, 2], True),
        "is not a file of torch.save": lambda: file.write_bytes(pickle.dumps(3, 2) * 5),
        "it asks for": lambda: write_saved(file, {"edge": open}, False),
        "expected edge, or source_node and target_node; the file has years": lambda: write_saved(file, {"years": np.zeros(3)}, True),
        "expected pairs of whole numbers, found float64": lambda: write_saved(file, {"edge": np.zeros((3, 2))}, False),
        "edge_neg|negatives: expected pairs of whole numbers, found int64 .3, 1": lambda: write_saved(
            file, {"edge": np.zeros((3, 2), int), "edge_neg": np.zeros((3, 1), int)}, True),
        "target_node_neg has shape .2, 4.,.* 3 links": lambda: write_saved(
            file, {"source_node": np.arange(3), "target_node": np.arange(3), "target_node_neg": np.ones((2, 4), int)}, True),
        "are not pairs": lambda: write_saved(file, {"source_node": np.arange(3), "target_node": np.arange(2)}, True),
        "no data.pkl that is stored as it is": lambda: zipfile.ZipFile(file, "w").close(),
        "pickle exhausted|not a file of": lambda: file.write_bytes(pickle.dumps(0x1950A86A20F9469CFC6C, 2)),
    }  # fmt: skip
    for words, write in cases.items():
        write()
        with pytest.raises(DataError, match=words) as caught:
            read_pairs(str(file), [Ends(0, 6)] * 2)
        assert str(file) in str(caught.value)


def test_ogb_reads_numbers(tmp_path):
    write_ogb(tmp_path)
    for name, dtype, n_rows in (("edge", np.int64, 9), ("node-feat", np.float32, 6), ("node-label", np.float64, 6)):
        file = tmp_path / f"raw/{name}.csv.gz"
        whole = read_csv(file, name, dtype, n_rows=n_rows)
        assert whole.dtype == dtype and np.array_equal(whole, np.genfromtxt(file, delimiter=",", ndmin=2).astype(dtype), equal_nan=True)


@pytest.mark.parametrize(
    "file, rows, message",
    [
        ("raw/edge.csv.gz", [[0, 1]] * 8, "edges: 8 rows, expected 9"),
        ("raw/edge.csv.gz", [[0, 1]] * 10, "edges: more than the 9 rows that are expected"),
        ("raw/edge.csv.gz", [[0, 1, 2]] * 9, "edges: 3 columns, expected 2"),
        ("raw/edge.csv.gz", [[0, "x"]] * 9, "edges: line 1: 'x' is not a number"),
        ("raw/node-feat.csv.gz", [[0, 1, 2]] * 5, "features: 5 rows, expected 6"),
        ("raw/node-label.csv.gz", [0] * 5, "labels: 5 rows, expected 6"),
        ("raw/num-node-list.csv.gz", [10**13], "num-node-list.csv.gz: 10000000000000 nodes, expected 0 to 3000000000"),
        ("raw/num-node-list.csv.gz", [-1], "count: -1 is negative"),
        ("split/time/valid.csv.gz", [6], "val split: node id 6 .*0 <= id < 6"),
    ],
)
def test_ogb_content_that_does_not_fit(tmp_path, file, rows, message):
    write_ogb(tmp_path)
    write_gz(tmp_path / file, rows)
    with pytest.raises(DataError, match=message):
        load(f"ogb:{tmp_path}")


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    "file", ["raw/edge.csv.gz", "raw/node-feat.csv.gz", "raw/node-label.csv.gz", "split/time/train.csv.gz", "raw/num-edge-list.csv.gz"]
)
@pytest.mark.parametrize("damage", ["cut", "delete", "flip", "plain"])
def test_ogb_damage_names_the_file(tmp_path, file, damage):
    write_ogb(tmp_path)
    path = tmp_path / file
    content = bytearray(path.read_bytes())
    content[-6] ^= 255  # in the checksum
    path.write_bytes({"cut": content[:-10], "plain": b"1,2\n"}.get(damage, content))
    if damage == "delete":
        path.unlink()
    expected = str(tmp_path / "split") if damage == "delete" and "train" in file else str(path)
    with pytest.raises(DataError, match=expected):
        load(f"ogb:{tmp_path}")


def test_ogb_without_a_split(tmp_path):
    write_ogb(tmp_path)
    write_split(tmp_path, "other")
    with pytest.raises(DataError, match="train.csv.gz, found other, time"):
        load(f"ogb:{tmp_path}")


# Edge lists

PAIRS = [(0, 1), (1, 2), (3, 0), (3, 0)]


@pytest.mark.parametrize(
    "name, text",
    [
        ("e.csv", "0,1\n1,2\n3,0\n3,0\n"),
        ("e.csv", "source,target\n0,1\n1,2\n3,0\n3,0\n"),
        ("e.txt", "0 1\n1\t2\n\n3 0\n3 0\n"),
        ("e.txt", "from to\n0 1\n1 2\n3 0\n3 0\n"),
    ],
)
def test_edge_list_text(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    graph = load(f"edges:{tmp_path / name}", **NO_LABELS)
    assert edges(graph) == PAIRS and graph.n_nodes == 4 and graph.features.tolist() == [[1]] * 4
    assert edges(load(f"edges:{tmp_path / name},deduplicate", **NO_LABELS)) == PAIRS[:3]
    assert load(f"edges:{tmp_path / name},nodes=9", **NO_LABELS).n_nodes == 9


def test_a_first_line_that_may_be_a_comment_is_asked_about(tmp_path):
    (tmp_path / "e.txt").write_text("# from to\n0 1\n#x 2\n")
    with pytest.raises(DataError, match="'# from to', may be a comment: comment=#"):
        load(f"edges:{tmp_path}/e.txt", **NO_LABELS)
    assert edges(load(f"edges:{tmp_path}/e.txt,comment=#", **NO_LABELS)) == [(0, 1)]


@pytest.mark.parametrize("turned", [False, True])
def test_edge_list_npy(tmp_path, turned):
    np.save(tmp_path / "e.npy", np.array(PAIRS).T if turned else np.array(PAIRS))
    assert edges(load(f"edges:{tmp_path}/e.npy", **NO_LABELS)) == PAIRS


def test_edge_list_with_everything(tmp_path):
    (tmp_path / "e.csv").write_text("0,1\n1,2\n3,0\n")
    np.save(tmp_path / "x.npy", np.arange(10.0).reshape(5, 2))
    (tmp_path / "y.txt").write_text("0\n1\n1\n0\n-1\n")
    (tmp_path / "s.txt").write_text("train\nval\ntest\ntest\nnone\n")
    spec = f"edges:{tmp_path}/e.csv,features={tmp_path}/x.npy,labels={tmp_path}/y.txt,split={tmp_path}/s.txt"
    graph = load(spec)
    assert graph.n_nodes == 5 and graph.features.dtype == np.float64 and graph.labels.tolist() == [0, 1, 1, 0, -1]
    assert sizes(graph) == [1, 1, 2] and graph.test.tolist() == [False, False, True, True, False]
    np.save(tmp_path / "s.npy", np.array(["train", "val", "test", "test", "none"]))
    assert graph.equals(load(spec.replace("s.txt", "s.npy")))
    drawn = load(spec.rsplit(",", 1)[0] + ",train=1,val=0,seed=2", allow_empty=("val",))
    assert sizes(drawn) == [2, 0, 2]


@pytest.mark.parametrize(
    "text, options, message",
    [
        ("0,1,2\n", "", "e.csv: edges: name the columns of the ends among 0, 1, 2: src=0,dst=1"),
        ("0,x\n1,2\nx,1\n", "", "e.csv: the first line, '0,x', may be a header or a row"),
        ("0,1\n2\n", "", "e.csv: line 2: 1 words, expected 2: 2"),
        ("0,1.5\n", "", "e.csv: row 0, column '1': '1.5' .*node number"),
        ("0,-1\n", "", "e.csv: row 0, column '1': '-1' .*node number"),
        ("0,5\n", "nodes=4", "e.csv: row 0, column '1': node '5' .*0 <= node < 4"),
        ("0,1\n", "labels=gone.txt", "gone.txt: no such file"),
        ("0,1\n", "features=Y,nodes=3", "y.txt: features: 2 rows, .*nodes: option: 3"),
        ("0,1\n", "labels=Y,split=S", "s.txt: row 1, column '0': 'what' .*train, val, test, none"),
    ],
)
def test_edge_list_content_that_does_not_fit(tmp_path, text, options, message):
    (tmp_path / "e.csv").write_text(text)
    (tmp_path / "y.txt").write_text("0\n1\n")
    (tmp_path / "s.txt").write_text("train\nwhat\n")
    options = options.replace("Y", f"{tmp_path}/y.txt").replace("S", f"{tmp_path}/s.txt")
    with pytest.raises(DataError, match=message):
        load(f"edges:{tmp_path}/e.csv" + ("," + options if options else ""), **NO_LABELS)


def test_edge_list_that_cannot_train(tmp_path):
    (tmp_path / "e.csv").write_text("0,1\n")
    with pytest.raises(DataError, match="train: the train split is empty"):
        load(f"edges:{tmp_path}/e.csv")
    with pytest.raises(ConfigError, match="split: needs labels"):
        load(f"edges:{tmp_path}/e.csv,split=x")

"""Relational data sets on disk: round trips, divisions for any number of ranks, the command, and refused inputs."""

import json
import os

import numpy as np
import pytest

from sarlite.cli.data_command import main
from sarlite.comm import Solo, threads
from sarlite.data import Dataset, Part, assignment, budget, divided_data, format, load, npyfile
from sarlite.data.divide import InMemory, divide
from sarlite.data.folders import key, words
from sarlite.data.graph_tables import EdgeTable, NodeTable
from sarlite.data.quality import measured, quality
from sarlite.data.spec import is_relational, load_relational
from sarlite.data.writer import meta_hash
from sarlite.errors import ConfigError, DataError
from sarlite.structure import typed
from sarlite.structure.partition import report

SPEC = "relational:nodes=300,edges=2000,classes=3,features=4,noise=2,seed=1"
ODD, PLACE = "a.b/ü %41", "node"
LIKES, EMPTY = (ODD, "likes, of..", PLACE), (PLACE, "..", ODD)


def odd_dataset(**changes):
    """Return two types whose names are no file names, with edge values, unsorted edges, and a relation without edges."""
    split = np.array([0, 1, 2, 0, 3])
    rows = {"labels": np.array([0, 1, 0, 2, -1]), "train": split == 0, "val": split == 1, "test": split == 2}
    edges = {"indptr": np.array([0, 2, 2, 4, 5, 7]), "indices": np.array([2, 0, 1, 1, 0, 2, 2]),
             "edge_weight": np.arange(7, dtype=np.float32), "edge_features": np.arange(14.0).reshape(7, 2)}
    nodes = [NodeTable(ODD, 3, features=np.arange(6.0).reshape(3, 2)),
             NodeTable(PLACE, 5, n_classes=3, **{**rows, **{name: changes[name] for name in changes if name in rows}})]
    relations = [EdgeTable(LIKES, 3, **{**edges, **{name: changes[name] for name in changes if name in edges}}),
                 EdgeTable(EMPTY, 5, np.zeros(4, np.int64), np.empty(0, np.int32))]
    more = [EdgeTable(relation, 0, np.zeros(1, np.int64), np.empty(0, np.int32)) for relation in changes.get("more", ())]
    return Dataset.of_tables(nodes, relations + more, changes.get("target", PLACE), provenance={"by": "hand"})


@pytest.fixture(scope="module")
def whole():
    return load_relational(SPEC)


@pytest.fixture(scope="module")
def written(whole, tmp_path_factory):
    folder = tmp_path_factory.mktemp("relational") / "d"
    format.write(folder, whole)
    return folder


@pytest.fixture
def stored(tmp_path):
    format.write(tmp_path / "d", odd_dataset())
    return tmp_path / "d"


def edges_of(src_ids, dst_ids, positions, edges, weight=()):
    """Return every edge of a relation: its original position, the original ids of its ends, and its weight if it has one."""
    indptr, indices = edges
    columns = [positions, src_ids[indices], np.repeat(dst_ids, np.diff(indptr)), *weight]
    return sorted(zip(*(np.asarray(column).tolist() for column in columns)))


def edges_in(dataset, relation):
    table, (src_ids, dst_ids) = dataset.edges[relation], (dataset.nodes[name].node_ids for name in relation[::2])
    at = np.arange(table.n_edges) if table.edge_ids is None else table.edge_ids
    weight = () if table.edge_weight is None else (table.edge_weight,)
    return edges_of(src_ids, dst_ids, at, (table.indptr, np.asarray(table.indices)), weight)


def test_a_round_trip_is_bit_equal(whole, written):
    opened = format.open(written, verify=True)
    assert whole.equals(opened) and opened.check() is opened and is_relational(written) and is_relational(SPEC)
    assert isinstance(opened.nodes["paper"].features, np.memmap) and opened.provenance["options"]["seed"] == 1
    assert opened.n_features == 4 and list(opened.edges) == list(whole.edges) and opened.target == "paper"
    assert not whole.equals(load_relational(SPEC.replace("seed=1", "seed=2")))


def test_odd_names_and_edge_values(stored):
    opened, whole = format.open(stored, verify=True).check(), odd_dataset()
    names = sorted(os.listdir(stored / "nodes") + os.listdir(stored / "edges"))
    odd = "a%2Eb%2F%C3%BC%20%2541"
    assert names == [odd, f"{odd}.likes%2C%20of%2E%2E.node", "node", f"node.%2E%2E.{odd}"]
    assert [edges_in(opened, r) for r in (LIKES, EMPTY)] == [edges_in(whole, r) for r in (LIKES, EMPTY)]
    assert np.array_equal(opened.edges[LIKES].indices, [0, 2, 1, 1, 0, 2, 2])  # sorted, and equal edges as they stood
    assert np.array_equal(opened.edges[LIKES].edge_features[:, 0], [2, 0, 4, 6, 8, 10, 12])
    again = format.open(stored)
    format.write(stored.parent / "e", again)
    assert again.equals(format.open(stored.parent / "e", verify=True))
    again.drop_edge_values()
    assert words(key(ODD), 1) == (ODD,) and again.edges[LIKES].edge_weight is None


def gathered(n_ranks, spec, whole, **options):
    """Return what the ranks hold together, by original id: node rows, and the edges of each relation."""

    def work(comm):
        with divided_data.divided(comm, spec, relational=True, **options) as dataset:
            part = Part(dataset, comm.rank, comm.size)
            ids, at = ({name: table.ids() for name, table in tables.items()} for tables in (part.nodes, part.relations))
            edges = {relation: relation_part.csr() for relation, relation_part in part.relations.items()}
            return part.typed_rows(), ids, at, edges, {name: table.node_ids for name, table in dataset.nodes.items()}

    ranks = threads.run(n_ranks, work) if n_ranks > 1 else [work(Solo())]
    every = ranks[0][4]  # the original ids of all rows, in the order of the files
    for name, n in whole.n_nodes_by_type.items():
        assert np.array_equal(np.concatenate([ids[name] for _, ids, *_ in ranks]), every[name])
        assert np.array_equal(np.sort(every[name]), np.arange(n))
    for rows, ids, *_ in ranks:
        target_ids = ids[whole.target]
        assert list(rows.features) == ["paper"] and rows.labels.tolist() == whole.nodes[whole.target].labels[target_ids].tolist()
        for split in ("train", "val", "test"):
            assert np.array_equal(getattr(rows, split), getattr(whole.nodes[whole.target], split)[target_ids])
        for name, x in rows.features.items():
            assert np.array_equal(x, whole.nodes[name].features[ids[name]])
    for relation in whole.edges:
        source, _, to = relation
        parts = [edges_of(every[source], ids[to], at[relation], edges[relation]) for _, ids, at, edges, _ in ranks]
        assert sorted(sum(parts, [])) == edges_in(whole, relation)
        for indptr, indices in (edges[relation] for *_, edges, _ in ranks):
            assert all((np.diff(row) >= 0).all() for row in np.split(indices, indptr[1:-1]))
    return ranks


@pytest.mark.parametrize("method, order", [("metis", "metis"), ("random", "none"), ("contiguous", "none")])
def test_stored_parts_serve_any_number_of_ranks(whole, written, tmp_path, capsys, method, order):
    """4 stored parts serve 4, 2 and 1 ranks as they are; for 3 ranks the data are divided again."""
    words = ["--parts", "4", "--method", method, "--order", order, "--output", str(tmp_path / "d")]
    assert main(["partition", str(written), *words]) == 0
    assert "paper: " in capsys.readouterr().out and not list(tmp_path.glob(".*"))
    dataset = format.open(tmp_path / "d", verify=True).check()
    assert dataset.n_parts == 4 and dataset.division == {"parts": 4, "partition": method, "order": order, "seed": 0}
    for n_ranks in (4, 2, 1, 3) if method == "metis" else (2, 3):
        gathered(n_ranks, tmp_path / "d", whole)
        assert ("divided for this run" in capsys.readouterr().err) == (n_ranks == 3)
    if order == "metis":
        ranks = gathered(1, tmp_path / "d", whole, order="none")
        assert all((np.diff(ids) > 0).all() for ids in ranks[0][1].values())


def test_parts_are_even_by_type(whole):
    """METIS puts two types without an edge between them into a part each; then nodes of both types are moved."""
    ring = [np.concatenate([np.arange(400)] * 3), np.concatenate([(np.arange(400) + step) % 400 for step in (1, 2, 3)])]
    graph, train = typed.join({("a", "to", "a"): ring, ("b", "to", "b"): ring}, {"a": 400, "b": 400}), np.arange(400) < 100
    parts = typed.divide(graph, 2, train={"a": train}, balance="nodes,train")
    for type_parts in (parts["a"][train], parts["a"][~train], parts["b"]):
        assert type_parts.size > 0 and np.bincount(type_parts, minlength=2).max() <= np.ceil(1.1 * type_parts.size / 2)
    n_cut = sum(np.count_nonzero(type_parts[ring[0]] != type_parts[ring[1]]) for type_parts in parts.values())
    assert n_cut < 400  # a random division cuts 1,200 of 2,400
    again = typed.divide(graph, 2, train={"a": train}, balance="nodes,train")
    assert all(np.array_equal(type_parts, parts[name]) for name, type_parts in again.items())
    uneven = typed.divide(graph, 2, balance="edges")
    assert np.bincount(uneven["a"], minlength=2).max() > 300
    for method in ("random", "contiguous"):
        assert all(np.ptp(np.bincount(type_parts, minlength=4)) <= 1 for type_parts in typed.divide(graph, 4, method).values())


def test_rows_of_the_sources_alone_change_places():
    """The edges of a row then have another order, which is stored; the reverse order restores them."""
    data, sink, back = odd_dataset(indices=np.array([0, 1, 1, 1, 0, 2, 2])), InMemory(), InMemory()
    divide(data, np.array([1, 0, 1, *np.zeros(5, int)]), 2, sink)
    assert sink.dataset.nodes[ODD].node_ids.tolist() == [1, 0, 2] and sink.dataset.nodes[PLACE].ids is None
    assert edges_in(sink.dataset, LIKES) == edges_in(data, LIKES)
    assert np.array_equal(sink.dataset.nodes[ODD].features, data.nodes[ODD].features[[1, 0, 2]])
    divide(sink.dataset, np.zeros(8, int), 1, back)
    assert edges_in(back.dataset, LIKES) == edges_in(data, LIKES) and back.dataset.nodes[ODD].ids is None


def test_a_partition_from_a_file(whole, written, tmp_path):
    where = np.random.default_rng(0).integers(0, 3, whole.n_nodes)
    np.save(tmp_path / "parts.npy", where)
    ranks = gathered(3, written, whole, partition=str(tmp_path / "parts.npy"))
    for name, type_parts in whole.by_type(where).items():
        for rank, (_, ids, *_) in enumerate(ranks):
            assert ids[name].tolist() == np.flatnonzero(type_parts == rank).tolist()


def test_the_command_converts_reports_and_refuses(written, tmp_path, capsys):
    assert main(["convert", SPEC, str(tmp_path / "d")]) == 0
    assert "302 nodes of 4 types, 2,000 edges of 8 relations" in capsys.readouterr().out
    assert format.open(tmp_path / "d").equals(format.open(written))
    assert main(["info", str(written), "--parts", "2", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["nodes"] == {"paper": 114, "author": 176, "institution": 3, "field_of_study": 9} and facts["target"] == "paper"
    assert sum(facts["partition"]["types"]["paper"]) == 114 and facts["edges"]["author.writes.paper"] == 338
    assert main(["info", str(written), "--verify"]) == 0
    assert "type            author: " in capsys.readouterr().out
    for line, text in ((["convert", SPEC + ",undirected", str(tmp_path / "e")], "undirected is for graphs of one kind"),
                       (["convert", SPEC, str(tmp_path / "e"), "--normalize-features"], "normalize is for graphs of one kind"),
                       (["convert", SPEC, str(written)], "exists already"),
                       (["convert", f"mag:{tmp_path}", str(tmp_path / "e")], "num-node-dict.csv.gz"),
                       (["partition", str(written), "--parts", "2", "--method", "spectral"], "is not one of "),
                       (["partition", str(written), "--parts", "2", "--method", "random", "--balance", "nodes"],
                        "goes only with metis and fennel")):
        assert main(line) == 2 and text in capsys.readouterr().err
    assert sorted(os.listdir(tmp_path)) == ["d"]


@pytest.mark.parametrize("method, order", [("random", None), ("contiguous", None), ("random", "shuffled")])
def test_dividing_in_bounded_memory_writes_the_same(written, stored, tmp_path, method, order):
    """The data are divided twice, so rows in no order of ids are read; edges have values; runs have a few records."""
    (tmp_path / "runs").mkdir()
    for first, before in enumerate((written, stored)):
        for turn, n_parts in enumerate((4, 3)):
            dataset = format.open(before)
            where, rng = assignment.make_parts(dataset, n_parts, method, seed=turn), np.random.default_rng(turn)
            ids = order and np.concatenate([rng.permutation(type_ids) for type_ids in dataset.by_type(np.arange(dataset.n_nodes)).values()])
            one, two = (tmp_path / f"{first}-{turn}-{streamed}" for streamed in (False, True))
            with format.GraphWriter(one) as out:
                divide(dataset, where, n_parts, out, order=ids)
            with format.GraphWriter(two) as out:
                divide(dataset, where, n_parts, out, order=ids, folder=tmp_path / "runs", n_bytes=24 * dataset.n_nodes + 6000,
                       least_sort_bytes=6000)
            assert format.read_meta(one) == format.read_meta(two) and not os.listdir(tmp_path / "runs")
            assert format.open(one).equals(format.open(two, verify=True).check())
            reported = quality(format.open(two), tiles=False)
            assert reported == measured(dataset, where, n_parts)
            graph = assignment.structure(dataset)
            counted = report(graph.indptr, graph.indices, where, n_parts, assignment.training(dataset))
            assert reported == {**counted, "types": reported["types"]}
            before = two


def test_the_command_in_bounded_memory(written, tmp_path, capsys, monkeypatch):
    words = ["partition", str(written), "--parts", "3", "--method", "random", "--progress", "none"]
    assert main([*words, "--output", str(tmp_path / "one")]) == 0
    said = capsys.readouterr().out
    assert main([*words, "--output", str(tmp_path / "two"), "--memory", "4GiB"]) == 0
    assert capsys.readouterr().out == said and "paper: 38 to 38 nodes a part" in said
    assert format.read_meta(tmp_path / "one") == format.read_meta(tmp_path / "two")
    monkeypatch.setattr(budget, "left", lambda n_bytes: 99_999)
    for more, text in ((["--method", "metis"], "METIS takes about 0 MiB for 2,000 edges, but 0 MiB are free"),
                       (["--order", "metis"], "METIS takes about 0 MiB for 2,000 edges, but 0 MiB are free"),
                       (["--order", "cluster"], "--memory: the order of 302 nodes takes 129 MiB, but 0 MiB are left")):
        assert main([*words, *more, "--output", str(tmp_path / "three"), "--memory", "4GiB"]) == 2
        assert text in capsys.readouterr().err
    assert sorted(os.listdir(tmp_path)) == ["one", "two"]


def test_a_report_counts_what_a_loop_counts(written, tmp_path, capsys):
    """Edges count by pair of parts over all relations; a row that several relations need is one halo row."""
    out = str(tmp_path / "d")
    assert main(["partition", str(written), "--parts", "3", "--method", "random", "--output", out, "--progress", "none"]) == 0
    dataset = format.open(out)
    part = {name: np.searchsorted(table.offsets, np.arange(table.n_nodes), side="right") - 1 for name, table in dataset.nodes.items()}
    tiles, needed = np.zeros((3, 3), int), [[set() for _ in range(3)] for _ in range(3)]
    for (source, _, to), table in dataset.edges.items():
        for row, column in zip(np.repeat(np.arange(table.n_destinations), np.diff(table.indptr)), table.indices):
            p, q = part[to][row], part[source][column]
            tiles[p, q] += 1
            needed[p][q].add((source, int(column)))
    capsys.readouterr()
    assert main(["report", out, "--json", "--memory", "4GiB"]) == 0
    printed = json.loads(capsys.readouterr().out)
    sizes = [sum(int((type_parts == q).sum()) for type_parts in part.values()) for q in range(3)]
    assert printed == quality(dataset, n_bytes=1000) and printed["tiles"] == tiles.tolist() and printed["nodes"] == sizes
    assert printed["needs"] == [[len(needed[p][q]) / sizes[q] if p != q else 0 for q in range(3)] for p in range(3)]
    assert printed["halo_rows"] == [sum(len(needed[p][q]) for q in range(3) if q != p) for p in range(3)]
    assert main(["report", out]) == 0
    said = capsys.readouterr().out
    assert "row imbalance" in said and "paper: 38 to 38 nodes a part" in said


def test_one_kind_and_relational_are_not_mistaken(written):
    for spec in (SPEC, str(written)):
        with pytest.raises(ConfigError, match="relational graph, .*one kind is needed"):
            load(spec)
    with pytest.raises(ConfigError, match="one kind, .*relational graph is needed"):
        load_relational("sbm:nodes=30")
    with pytest.raises(ConfigError, match="their task is classify, not regress"):
        load_relational(SPEC, task="regress")


ODD_KEY, LIKES_KEY = key(ODD), key(*LIKES)
CHANGES = {
    "unknown type": (lambda m: m["edges"].update({"v.of.node": m["edges"].pop(LIKES_KEY)}), "node type 'v' is not one of"),
    "no triple": (lambda m: m["edges"].update({"a.b": m["edges"].pop(LIKES_KEY)}), "edges: 'a.b': expected 3 names"),
    "not encoded": (lambda m: m["nodes"].update({"a/b": m["nodes"].pop(ODD_KEY)}), "nodes: 'a/b': expected 1 name, joined by dots and enc"),
    "a way out": (lambda m: m["nodes"].update({"..": m["nodes"].pop(ODD_KEY)}), "nodes: '..'"),
    "no target": (lambda m: m.update(target="venue"), "target: 'venue' is not one of the node types"),
    "another target": (lambda m: m.update(target=ODD_KEY), "node: labels: only the target"),
    "no labels": (lambda m: m["nodes"]["node"]["arrays"].pop("labels"), "nodes: node: no record of labels"),
    "no sources": (lambda m: m["edges"][LIKES_KEY]["arrays"].pop("indices"), "no record of indices"),
    "other parts": (lambda m: m["nodes"][ODD_KEY].update(offsets=[0, 1, 3]), "2 parts, but node has 1"),
    "falling parts": (lambda m: m["nodes"]["node"].update(offsets=[0, 9]), "offsets"),
    "edges' number": (lambda m: m["edges"][LIKES_KEY].update(count=8), "8 edges, but the arrays have 7"),
    "nodes' number": (lambda m: m["nodes"][ODD_KEY].update(count=4, offsets=[0, 4]), "features.npy: features: expected 4 rows, found 3"),
    "classes": (lambda m: m["nodes"]["node"].update(classes="3"), "classes: expected int"),
    "one kind": (lambda m: m.pop("target"), "nodes: a%2Eb%2F%C3%BC%20%2541, node; a graph of one kind, which names no target"),
    "a table": (lambda m: m["nodes"].update({ODD_KEY: []}), "expected dict, found"),
    "target's name": (lambda m: m.update(target=["node"]), "target"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_meta_that_does_not_fit_is_refused(stored, name):
    change, message = CHANGES[name]
    meta = json.loads((stored / "meta.json").read_text())
    del meta["sha256"]
    change(meta)
    (stored / "meta.json").write_text(json.dumps({**meta, "sha256": meta_hash(meta)}))
    with pytest.raises(DataError) as caught:
        format.open(stored)
    assert message in str(caught.value) and str(stored) in str(caught.value) and "\n" not in str(caught.value)


def test_damaged_files_are_named(stored):
    for path in sorted(stored.rglob("*.npy")):
        content = path.read_bytes()
        for damaged in (content[:-1], content[:-2] + bytes([content[-2] ^ 1]) + content[-1:] if len(content) > 130 else None, None):
            path.write_bytes(damaged) if damaged else path.unlink()
            with pytest.raises(DataError, match="npy: "):
                format.open(stored, verify=True)
            with pytest.raises(DataError, match="npy: "):
                threads.run(2, verified, stored)
            path.write_bytes(content)
        assert format.open(stored, verify=True)


def verified(comm, folder):
    with divided_data.divided(comm, folder, relational=True, verify=True):
        pass


BAD = {
    "unknown type": ({"more": [("venue", "of", PLACE)]}, "relation venue.of.node: node type 'venue' is not one of"),
    "a source that is none": ({"indices": np.array([2, 0, 1, 1, 0, 2, 3])}, "indices: edge 6 comes from node 3, outside 0 <= id < 3"),
    "falling rows": ({"indptr": np.array([0, 2, 1, 4, 5, 7])}, "indptr: entry 2 is 1, less than the entry before"),
    "few destinations": ({"indptr": np.array([0, 2, 2, 4, 7])}, "4 destinations, but node has 5 nodes"),
    "target": ({"target": "venue"}, "target: 'venue' is not one of the node types"),
    "labels' dtype": ({"labels": np.zeros(5)}, "labels: expected int64"),
    "a class": ({"labels": np.array([0, 1, 0, 3, -1])}, "labels: node 3 has label 3, outside"),
    "overlap": ({"val": np.ones(5, bool)}, "train: node 0 is in train and in val"),
    "a weight": ({"edge_weight": np.full(7, np.nan, np.float32)}, "edge_weight: row 0 is nan"),
    "an empty split": ({"test": np.zeros(5, bool)}, "the test split is empty"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_data_are_refused(name, tmp_path):
    changes, message = BAD[name]
    with pytest.raises(DataError) as caught:
        dataset = odd_dataset(**changes)
        dataset.check_edges()
        dataset.check()
    assert message in str(caught.value)
    if name in ("a source that is none", "falling rows", "labels' dtype"):
        with pytest.raises(DataError):
            format.write(tmp_path / "d", dataset)
        assert not os.listdir(tmp_path)


def test_a_write_that_fails_leaves_nothing(whole, tmp_path, monkeypatch):
    """The write fails at the first array, and at later arrays."""
    left, real = [0], npyfile.Stream.close

    def close(stream):
        left[0] -= 1
        if left[0] == 0:
            raise OSError(28, "No space left on device")
        real(stream)

    monkeypatch.setattr(npyfile.Stream, "close", close)
    for left[0] in (1, 6, 12):
        with pytest.raises(DataError, match="npy: .*No space left"):
            format.write(tmp_path / "d", whole)
        assert not os.listdir(tmp_path)


def test_fennel_divides_types_of_any_name():
    assert assignment.make_parts(odd_dataset(), 2, "fennel").size == 8


def test_names_that_are_none():
    for name, text in (("", "not empty"), ("x" * 256, "256 bytes"), ("\ud800", "UTF-8"), (3, "a name is text")):
        with pytest.raises(DataError, match=text):
            key(name)

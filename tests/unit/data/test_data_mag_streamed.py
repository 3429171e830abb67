"""ogbn-mag's folder converted in bounded memory gives the directory of a conversion in memory, hash by hash.

A conversion that fails or dies leaves nothing.
"""

import gzip
import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from sarlite.cli.data_command import main
from sarlite.data import format
from sarlite.data.names import Names
from sarlite.data.spec import load_relational
from sarlite.errors import ConfigError, DataError

N_NODES = {"paper": 60, "author": 80, "field of ü": 9, "none": 0}
RELATIONS = {("author", "writes", "paper"): 700, ("paper", "cites", "paper"): 900, ("paper", "has", "field of ü"): 300,
             ("author", "likes", "paper"): 0, ("none", "is", "author"): 0}


def lines(rows):
    return "".join(",".join(map(str, row)) + "\n" for row in rows)


def write(folder, **changed):
    """Write a folder with equal edges, loops, isolated nodes, an empty relation, an empty type, and edges in no order."""
    rng = np.random.default_rng(0)
    where = rng.integers(0, 4, 60)
    files = {
        "raw/num-node-dict.csv.gz": lines([[*N_NODES], [*N_NODES.values()]]),
        "raw/triplet-type-list.csv.gz": lines([*RELATIONS]),
        "raw/nodetype-has-label.csv.gz": lines([[*N_NODES], [name == "paper" for name in N_NODES]]),
        "raw/node-feat/paper/node-feat.csv.gz": lines(rng.random((60, 3)).round(3)),
        "raw/node-feat/none/node-feat.csv.gz": "",
        "raw/node-label/paper/node-label.csv.gz": lines(np.where(where == 3, np.nan, rng.integers(0, 4, 60))[:, None]),
        **{f"split/time/paper/{name}.csv.gz": lines(np.flatnonzero(where == k)[::-1, None])
           for k, name in enumerate(("train", "valid", "test"))},
    }
    for relation, n in RELATIONS.items():
        edges = np.stack([rng.integers(0, max(1, N_NODES[name] // 2), n) for name in relation[::2]], 1)
        edges = edges[np.lexsort(edges.T)] if relation[1] == "has" else edges  # in the order in which the files are written
        files[f"raw/relations/{'___'.join(relation)}/edge.csv.gz"] = lines(edges)
        files[f"raw/relations/{'___'.join(relation)}/num-edge-list.csv.gz"] = f"{n}\n"
    for name, text in {**files, **changed}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(gzip.compress(text.encode()) if isinstance(text, str) else text)
    return folder


@pytest.fixture
def folder(tmp_path):
    return write(tmp_path / "mag")


@pytest.mark.parametrize("options", ["", ",reverses=false,classes=7"])
def test_it_is_the_one_made_in_memory(folder, tmp_path, options):
    """The conversion sorts in runs of hundreds of edges, and reads pieces of some lines."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    one, two = (load_relational(f"mag:{folder}{options}", **bounded) for bounded in ({}, {"folder": scratch, "n_bytes": 6000}))
    assert not any(table.names for table in two.nodes.values())
    assert len(one.edges) == (5 if options else 10) and isinstance(two.nodes["paper"].features, np.memmap) and two.equals(one)
    topics, cites = (two.edges[relation] for relation in list(RELATIONS)[2:0:-1])
    assert topics.edge_ids is None and cites.edge_ids is not None and scratch in cites.indices.filename.parents
    assert not list(scratch.rglob("*.run"))
    for name, dataset in (("one", one), ("two", two)):
        format.write(tmp_path / name, dataset)
    assert format.read_meta(tmp_path / "one") == format.read_meta(tmp_path / "two")


def test_the_command_converts_in_bounded_memory(folder, tmp_path, capsys):
    out = tmp_path / "out"
    for name, more in (("one", []), ("two", ["--memory", "4GiB"])):
        assert main(["convert", f"mag:{folder}", str(out / name), *more]) == 0
    assert "names" not in format.read_meta(out / "one") and not (out / "one" / "names").exists()
    one, two = capsys.readouterr().out.replace(str(out), "").split("two")
    assert two[:-1] in one and "149 nodes of 4 types, 3,800 edges of 10 relations" in two
    assert (out / "one" / "meta.json").read_text() == (out / "two" / "meta.json").read_text()
    for spec, words, text in ((f"mag:{folder}", ["--memory", "20MiB"], "--memory: 20 MiB is too little"),
                              (f"mag:{folder},undirected", ["--memory", "4GiB"], "undirected is for graphs of one kind"),
                              (f"mag:{folder}", ["--memory", "4GiB", "--normalize-features"], "normalize is for graphs of one kind"),
                              (str(out / "one"), ["--memory", "4GiB"],
                               "a native directory is read whole; edges:, npz:, mag:, tables: are read in bounded memory"),
                              ("relational:nodes=300", ["--memory", "4GiB"], "the form relational: is read whole"),
                              (f"mag:{folder}", ["--memory", "4GiB", "--allow-empty", "val"], None)):
        assert main(["convert", spec, str(out / "three"), *words]) == (2 if text else 0)
        assert (text or "") in capsys.readouterr().err
    assert main(["convert", f"mag:{folder}", str(out / "two"), "--memory", "4GiB"]) == 2
    assert sorted(os.listdir(out)) == ["one", "three", "two"]


def names_of(folder, **changed):
    """Write the names of three of the four types, some alike in two types, some as numbers, with commas and quotes."""
    words_of = {"paper": [str(7 * node % 60) for node in range(60)], "author": [f'{node}, "ü" & sons' for node in range(80)], "none": []}
    for name, words in {**words_of, **changed}.items():
        rows = [words] if isinstance(words, str) else ["ent idx,ent name\n", *(
            f'{node},"{word.replace(chr(34), 2 * chr(34))}"\r\n' for node, word in enumerate(words))]
        (folder / "mapping").mkdir(exist_ok=True)
        (folder / "mapping" / f"{name}_entidx2name.csv.gz").write_bytes(gzip.compress("".join(rows).encode()))
    return words_of


@pytest.mark.parametrize("memory", [[], ["--memory", "4GiB"]])
def test_names_by_type_are_kept_and_translated(folder, tmp_path, memory):
    words_of, out = names_of(folder), tmp_path / "out"
    (folder / "mapping" / "labelidx2venuename.csv.gz").write_bytes(b"")
    assert main(["convert", f"mag:{folder},names", str(out), *memory]) == 0
    assert memory or main(["convert", str(out), str(tmp_path / "copy")]) == 0
    assert main(["partition", str(out), "--parts", "3", "--method", "random", "--output", str(tmp_path / "parts"), *memory]) == 0
    for where in (out, tmp_path / ("parts" if memory else "copy"), tmp_path / "parts"):
        assert where.name == "parts" or load_relational(where, verify=True).equals(load_relational(f"mag:{folder}"))
        for node_type, words in words_of.items():
            names = Names(where, node_type)
            assert names.of(np.arange(len(words))) == words and names.ids(words[::-1]).tolist() == list(range(len(words)))[::-1]
        for node_type in ("field of ü", None):
            with pytest.raises(DataError, match="names: there are none: .*number"):
                Names(where, node_type)


def test_names_in_little_memory(folder, tmp_path):
    """The names are read some lines at a time."""
    names_of(folder)
    one, two = (load_relational(f"mag:{folder},names", **bounded) for bounded in ({}, {"folder": tmp_path, "n_bytes": 6000}))
    assert one.nodes["paper"].names
    for name, table in one.nodes.items():
        names, also = table.names or {}, two.nodes[name].names or {}
        assert names.keys() == also.keys() and all(np.array_equal(array, also[file]) for file, array in names.items())


HEAD = "ent idx,ent name\n"
BAD_NAMES = {
    "twice": ("author", [*map(str, range(79)), "11"], "author_entidx2name.csv.gz: row 79, column 'name': '11' is the id of row 11, too"),
    "few": ("author", [*map(str, range(79))], "author_entidx2name.csv.gz: names: 79 names, but there are 80 nodes of type 'author'"),
    "many": ("none", ["one"], "none_entidx2name.csv.gz: names: 1 names, but there are 0 nodes of type 'none'"),
    "a gap": ("paper", HEAD + "0,a\n2,c\n", "paper_entidx2name.csv.gz: names: line 3: expected 1 and a name, found '2,c'"),
    "no head": ("paper", "0,a\n1,b\n", "line 2: expected 0 and a name, found '1,b'"),
    "no name": ("paper", HEAD + "0,a\n1, \n", "line 3: expected 1 and a name, found '1, '"),
    "three words": ("paper", HEAD + "0,a,b\n", "line 2: expected 0 and a name, found '0,a,b'"),
    "a type": ("venue", ["a"], "venue_entidx2name.csv.gz: names: node type 'venue' is not one of paper, author"),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("memory", [[], ["--memory", "4GiB"]])
@pytest.mark.parametrize("bad", BAD_NAMES)
def test_bad_names_leave_nothing(folder, tmp_path, bad, memory, capsys):
    name, words, text = BAD_NAMES[bad]
    names_of(folder, **{name: words})
    assert main(["convert", f"mag:{folder},names", str(tmp_path / "out"), *memory]) == 2
    assert text in capsys.readouterr().err and os.listdir(tmp_path) == ["mag"]


def test_names_that_are_not_there(folder, tmp_path, capsys):
    assert main(["convert", f"mag:{folder},names", str(tmp_path / "out")]) == 2
    assert "mapping: names: no file TYPE_entidx2name.csv.gz of paper, author" in capsys.readouterr().err


def test_splits_must_fit(folder, tmp_path):
    with pytest.raises(ConfigError, match="--memory: a split of 60 nodes takes 1 MiB, .*0 MiB"):
        load_relational(f"mag:{folder}", folder=tmp_path, n_bytes=239)


CITES, FEATURES, LABELS = ("raw/relations/paper___cites___paper/edge.csv.gz", "raw/node-feat/paper/node-feat.csv.gz",
                           "raw/node-label/paper/node-label.csv.gz")  # fmt: skip
BAD = {
    "an edge": (CITES, lines([[3, 4]] * 80 + [[60, 1]] + [[3, 4]] * 819),
                "row 80, column '0': node '60' of type 'paper' is outside 0 <= node < 60"),
    "few edges": (CITES, lines([[3, 4]] * 899), "899 rows, expected 900"),
    "a cut file": (CITES, gzip.compress(lines([[3, 4]] * 900).encode())[:-9],
                   "edge.csv.gz: cannot be read: EOFError: Compressed file ended"),
    "a count": ("raw/relations/paper___cites___paper/num-edge-list.csv.gz", "-900\n", "-900 is negative"),
    "a label": (LABELS, lines([[1.0]] * 50 + [[0.5]] + [[1.0]] * 9), "row 50, column '0': label '0.5', expected a whole number"),
    "a feature": (FEATURES, lines([[1, 2]] * 46 + [[1, 2, 3]] * 14),
                  ("line 47: 3 words, expected 2: 1,2,3", "line 47: 3 words, expected 2: 1,2,3")),
    "not finite": (FEATURES, lines([[1, 2]] * 59 + [[1, np.inf]]), "row 59, column '1': 'inf' is not a finite number"),
    "twice": ("split/time/paper/test.csv.gz", lines(np.r_[:25, 1][:, None]), "test split: node id 1"),
    "two splits": ("split/time/paper/test.csv.gz", lines(np.arange(60)[:, None]), "is in the train split"),
    "a reverse": ("raw/triplet-type-list.csv.gz", lines([*RELATIONS, ("paper", "rev_writes", "author")]),
                  "'author,writes,paper': its reverse, 'paper,rev_writes,author', is stored too; reverses=false"),
    "a name": ("raw/triplet-type-list.csv.gz", lines([("paper", "ü" * 45, "paper")]), "286 bytes, but a file's name has at most 255"),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", BAD)
def test_a_bad_folder_is_refused(folder, tmp_path, name):
    """The folder is read in memory, and in pieces of 46 lines."""
    file, text, message = BAD[name]
    write(folder, **{file: text})
    (tmp_path / "scratch").mkdir()
    messages = message if isinstance(message, tuple) else (message, message)
    for expected, run in zip(messages, (load_relational, lambda spec: load_relational(spec, folder=tmp_path / "scratch", n_bytes=6000))):
        with pytest.raises(DataError) as caught:
            run(f"mag:{folder}")
        assert expected in str(caught.value), str(caught.value)


def run(code, folder, out, *more):
    words = ["convert", f"mag:{folder}", str(out), "--memory", "4GiB", *more]
    return subprocess.run([sys.executable, "-c", textwrap.dedent(code), *words], capture_output=True, text=True, timeout=60, check=False)


def test_what_a_killed_conversion_left_goes_with_the_next(folder, tmp_path):
    code = """
        import os, sys
        from sarlite.cli.data_command import main
        from sarlite.data.tables.edge_columns import NumberedEdges
        sort, left = NumberedEdges.sorted, [3]
        def die(*given):
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), 9)
            return sort(*given)
        NumberedEdges.sorted = die
        main(sys.argv[1:])
    """
    out = tmp_path / "out"
    assert run(code, folder, out / "d").returncode == -signal.SIGKILL
    (left,) = out.iterdir()
    assert left.name.startswith(".sarlite-") and (left / "edges.0.1" / "indices").exists()
    assert main(["convert", f"mag:{folder}", str(out / "d"), "--memory", "4GiB"]) == 0 and os.listdir(out) == ["d"]
    format.open(out / "d", verify=True).check()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("limit, file", [(3000, "indices"), (3650, "d/edges/paper.cites.paper/indices.npy")])
def test_a_full_disk_leaves_nothing(folder, tmp_path, limit, file):
    """A limit on the bytes of a file makes the write fail; the old data set stays."""
    out = tmp_path / "out"
    assert main(["convert", f"mag:{folder}", str(out / "d"), "--memory", "4GiB"]) == 0
    before = (out / "d" / "meta.json").read_bytes()
    code = f"""
        import resource, signal, sys
        from sarlite.cli.data_command import main
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, resource.RLIM_INFINITY))
        sys.exit(main(sys.argv[1:]))
    """
    done = run(code, folder, out / "d", "--overwrite")
    assert done.returncode == 2 and f"{file}: cannot be written: File too large" in done.stderr, done.stderr
    assert os.listdir(out) == ["d"] and (out / "d" / "meta.json").read_bytes() == before
    format.open(out / "d", verify=True)

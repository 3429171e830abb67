"""Nodes known by names: numbered as a dictionary would number them, in runs of a few records, and kept through a division."""

import numpy as np
import pytest

from sarlite.cli.data_command import main
from sarlite.data import format, load
from sarlite.data.names import Names
from sarlite.data.tables import numbering
from sarlite.errors import DataError

NAMED = [f"http://a/{node * 7919 % 997}" if node % 2 else f"ü{node}" for node in range(120)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path, rng = tmp_path_factory.mktemp("names"), np.random.default_rng(0)
    ends = rng.integers(0, 110, (900, 2))
    (path / "e.txt").write_text("from to\n" + "".join(f"{NAMED[u]} {NAMED[v]}\n" for u, v in ends), encoding="utf-8")
    (path / "n.txt").write_text("".join(f"{name}\n" for name in NAMED), encoding="utf-8")
    np.savetxt(path / "numbers.txt", ends, "%d")
    np.savetxt(path / "y.txt", np.arange(120) % 3, "%d")
    return path


def test_names_are_numbered_as_they_are_listed(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    rest = ["--undirected", "--memory", "4GiB", "--progress", "none"]
    assert main(["convert", "edges:e.txt,names=n.txt,labels=y.txt", str(tmp_path / "d"), *rest]) == 0
    assert main(["partition", str(tmp_path / "d"), "--parts", "3", "--method", "random", "--output", str(tmp_path / "p")]) == 0
    expected = load("edges:numbers.txt,labels=y.txt", undirected=True)
    data = format.open(tmp_path / "d", verify=True)
    assert data.equals(expected)
    for where in (tmp_path / "d", tmp_path / "p"):
        names = Names(where)
        assert names.of([3, 119, 0]) == [NAMED[3], NAMED[119], NAMED[0]] and names.ids(NAMED).tolist() == list(range(120))
        with pytest.raises(DataError, match="names: no node is named 'else'"):
            names.ids(["ü0", "else"])
        for at, ids, bad_id in ((1, [0, 120], 120), (0, [-1], -1)):
            with pytest.raises(DataError, match=rf"names: ids: entry {at} is {bad_id}, outside 0 <= id < 120"):
                names.of(ids)
        with pytest.raises(DataError, match="names: ids: .*integer dtype.*float64"):
            names.of([1.5])
    assert load("edges:e.txt,names=n.txt,labels=y.txt", undirected=True).equals(expected)
    capsys.readouterr()
    (folder / "twice.txt").write_text("".join(f"{name}\n" for name in [*NAMED, "ü0"]), encoding="utf-8")
    for spec, text in (("edges:e.txt,names=twice.txt", "twice.txt: row 120, column 'name': 'ü0' is the id of row 0, too"),
                       ("edges:e.txt,names=edges,labels=y.txt", "y.txt: rows of this file belong to no node")):
        assert main(["convert", spec, str(tmp_path / "bad"), *rest]) == 2
        assert text in capsys.readouterr().err and not (tmp_path / "bad").exists()


@pytest.mark.parametrize("n_bytes", [20_000, None])
def test_names_of_edges_alone(folder, tmp_path, n_bytes):
    data = load(f"edges:{folder}/e.txt,names=edges", folder=n_bytes and tmp_path, n_bytes=n_bytes, allow_empty=("train", "val", "test"))
    mapping, ends = data.target_nodes.names, data.target_nodes.names["ends"]
    lines = [line.split() for line in (folder / "e.txt").read_text(encoding="utf-8").splitlines()[1:]]
    words = [bytes(mapping["bytes"][ends[node] : ends[node + 1]]).decode() for node in range(data.n_nodes)]
    rows = np.repeat(np.arange(data.n_nodes), np.diff(data.indptr))
    assert sorted([words[u], words[v]] for u, v in zip(data.indices, rows)) == sorted(lines)
    assert words == sorted({word for line in lines for word in line})
    assert (np.diff(mapping["hashes"].astype(float)) > 0).all() and sorted(mapping["numbers"].tolist()) == list(range(data.n_nodes))


def test_what_is_no_name_of_the_list(folder, tmp_path, monkeypatch):
    (tmp_path / "e.txt").write_text("ü0 ü2\nü2 other\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"e.txt: row 1, column '1': 'other' is not in .*n.txt"):
        load(f"edges:{tmp_path}/e.txt,names={folder}/n.txt,header=false")
    (tmp_path / "e.txt").write_text("a b\nc\n")
    with pytest.raises(DataError, match="e.txt: 1 words, expected 2: c"):
        load(f"edges:{tmp_path}/e.txt,header=false")
    (tmp_path / "e.txt").write_text("a b\nb c\n")
    digests = numbering.digests
    monkeypatch.setattr(numbering, "digests", lambda texts: digests(texts) * np.array([[0, 1]], np.uint64))
    with pytest.raises(DataError, match="two names have the same hash, 0x0"):
        load(f"edges:{tmp_path}/e.txt,header=false")


@pytest.mark.parametrize("name", ["bytes", "ends", "hashes", "numbers"])
def test_a_changed_byte_of_the_names_is_found(name, folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    assert main(["convert", "edges:e.txt,names=n.txt,labels=y.txt", str(tmp_path / "d"), "--progress", "none"]) == 0
    file = tmp_path / "d" / "names" / f"{name}.npy"
    damaged = bytearray(file.read_bytes())
    damaged[-1] ^= 1
    file.write_bytes(damaged)
    with pytest.raises(DataError, match=f"{name}.npy: names/{name}: sha256 .* the file was changed"):
        load(str(tmp_path / "d"), verify=True)
    assert main(["info", str(tmp_path / "d"), "--verify"]) == 2 and f"{name}.npy" in capsys.readouterr().err

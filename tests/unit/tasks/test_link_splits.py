"""Splits of links that the user tells: as pairs, by edge, by files and tables, by time; by one and by several ranks."""

import numpy as np
import pytest

from sarlite.comm import Solo, threads
from sarlite.errors import CheckpointError, ConfigError, DataError
from sarlite.tasks import link_splits
from sarlite.tasks.link_data import TEST, TRAIN, VAL, split_links, without_links
from sarlite.tasks.link_edges import Ends, linked
from tests.helpers.train.linked import PAIRS, N, part, whole
from tests.helpers.train.predicting import predict_here
from tests.helpers.train.training_runs import metrics, train_here

PROPER = PAIRS[PAIRS[:, 0] != PAIRS[:, 1]]
EDGES = {tuple(pair) for pair in PROPER.tolist()}
NEW = next((u, v) for u in range(N) for v in range(u + 1, N) if (u, v) not in EDGES)
VAL_PAIRS, TEST_PAIRS = PROPER[:7, ::-1], np.concatenate([PROPER[10:19], [NEW]])  # one of which is no edge


def found(comm, links):
    """Return the undirected links of each split and the message edges, of all ranks."""
    graph, ends = links.graph.nodes, np.sort(np.stack([links.heads, links.tails], 1), 1)
    edges = np.stack([graph.edge_src_ids, np.repeat(graph.dst_ids, graph.in_degrees)[np.argsort(_places(graph))]], 1)
    each_part = [*(ends[rows] for rows in (links.train, links.val, links.test)), np.sort(edges[edges[:, 0] != edges[:, 1]], 1)]
    return [{tuple(pair) for rank in ranks for pair in rank.tolist()} for ranks in zip(*comm.allgather(each_part))]


def _places(graph):
    numbers = graph.in_edges().numbers
    return np.arange(graph.n_edges) if numbers is None else numbers


def expected(val, test):
    val, test = ({tuple(sorted(pair)) for pair in pairs.tolist()} for pairs in (val, test))
    return [EDGES - val - test, val, test, EDGES - val - test]


@pytest.mark.parametrize("directed", [False, True])
def test_pairs_are_the_splits_on_any_number_of_ranks(directed):
    def work(comm):
        local_slice = slice(comm.rank, None, comm.size)  # each rank gives some
        links = split_links(part(comm, directed=directed), VAL_PAIRS[local_slice], TEST_PAIRS[local_slice], seed=3)
        assert links.undirected is not directed
        return found(comm, links)

    wanted = expected(VAL_PAIRS, TEST_PAIRS)
    assert work(Solo()) == wanted
    for n in (2, 3):
        assert threads.run(n, work) == [wanted] * n


def test_a_split_by_edge_is_that_of_its_pairs():
    def work(comm):
        graph = part(comm)
        ends = np.stack([graph.edge_src_ids, np.repeat(graph.dst_ids, graph.in_degrees)[np.argsort(_places(graph))]], 1)
        split = np.array([{0: VAL, 1: TEST}.get(min(pair) % 5, TRAIN) for pair in ends.tolist()], np.int64)
        links, messages = split_links(graph, split=split), without_links(linked(graph, None), 0.05, 0.1, 0, split)
        assert messages.n_edges == links.graph.nodes.n_edges <= graph.n_edges
        return found(comm, links)

    wanted = expected(PROPER[PROPER[:, 0] % 5 == 0], PROPER[PROPER[:, 0] % 5 == 1])
    assert work(Solo()) == wanted
    assert threads.run(3, work) == [wanted] * 3


def test_what_cannot_be_is_refused():
    graph = whole()
    split = np.zeros(graph.n_edges, np.int64)
    split[np.flatnonzero(graph.edge_src_ids != graph.dst_ids[np.repeat(np.arange(N), graph.in_degrees)])[0]] = VAL
    for kind, words, call in (
        (DataError, "is in the splits val and test, in one direction or the other", lambda: split_links(graph, [[3, 1]], [[1, 3]])),
        (DataError, "in the splits train and val", lambda: split_links(graph, split=split)),
        (DataError, "test: pair 0 has node 40, outside", lambda: split_links(graph, 0, [[3, 40]])),
        (ConfigError, "val is float64 .*, but must be pairs of ids", lambda: split_links(graph, 0.1, [[3, 4]])),
        (ConfigError, "split is float64 .* must be 0 train", lambda: split_links(graph, split=split * 1.0)),
        (ConfigError, "0 train, 1 val or 2 test", lambda: split_links(graph, split=split + 3)),
    ):
        with pytest.raises(kind, match=words):
            call()
    with pytest.raises(ConfigError, match="ranks pass shares and others .*pairs"):
        threads.run(2, lambda comm: split_links(part(comm), 0.1 if comm.rank else [[0, 1]], 0))


def test_times_are_of_the_first_edge_of_a_pair(tmp_path):
    """The latest are to test on; a pair that comes again later is as old as its first edge, in either direction."""
    rows = [(0, 1, 5), (1, 2, 1), (2, 0, 2), (1, 0, 3), (3, 3, 9), (3, 1, 4), (3, 0, 6), (2, 3, 7)]
    (tmp_path / "edges.csv").write_text("who,whom,since\n" + "".join(f"{u},{v},{t}\n" for u, v, t in rows))
    pairs, split = link_splits.read(1 / 6, 2 / 6, f"{tmp_path / 'edges.csv'},time=since", [Ends(0, 4)] * 2)
    assert {tuple(pair): of for pair, of in zip(pairs.tolist(), split.tolist())} == {
        (1, 2): TRAIN, (0, 2): TRAIN, (0, 1): TRAIN, (1, 3): VAL, (0, 3): TEST, (2, 3): TEST}
    spec = f"{tmp_path / 'edges.csv'},time=since,src=whom,dst=who"
    np.testing.assert_array_equal(link_splits.read(1 / 6, 2 / 6, spec, [Ends(0, 4)] * 2)[0], pairs)
    (tmp_path / "one.csv").write_text("who,whom,since\n0,1,5\n1,2,5\n2,3,5\n")
    (tmp_path / "words.csv").write_text("who,whom,part\n0,1,val\n1,0,train\n")
    (tmp_path / "none.csv").write_text("# nothing\n")
    (tmp_path / "long.csv").write_text(f"who,whom,part\n0,1,val\n1,{'9' * 5000},train\n")
    for kind, words, table in (
        (DataError, "none.csv: 1 columns, expected a source, a destination and part", "none.csv,split=part,comment=#"),
        (DataError, r"row 1, column 'whom': '9+.* is not a node number", "long.csv,split=part"),
        (DataError, "no link is left for the split val", "one.csv,time=since"),
        (DataError, "pair 0, 1 is in the splits train and val", "words.csv,split=part"),
        (DataError, "row 0, column 'since': '5' is not one of train, val, test", "one.csv,split=since"),
        (DataError, "no column 'when'", "one.csv,time=when"),
        (DataError, "'whom': 3 is outside 0 <= node < 3", "one.csv,time=since"),
        (ConfigError, "expected FILE,split=COLUMN", "one.csv"), (ConfigError, "'at' is not expected", "one.csv,time=since,at=3"),
    ):
        with pytest.raises(kind, match=words):
            link_splits.read(0.3, 0.3, f"{tmp_path / table}", [Ends(0, 3 if "node < 3" in words else 4)] * 2)


def test_runs_with_files_and_tables_of_splits(tmp_path):
    """Files of links and a column of a table say the same; predictions have the run's messages."""
    draw = np.random.default_rng(0)
    val, test = draw.integers(0, 150, (20, 2)), draw.integers(150, 300, (30, 2))
    for name, pairs in (("val", val), ("test", test)):
        np.savetxt(tmp_path / f"{name}.csv", pairs, "%d", ",")
    rows = [*((*pair, "val") for pair in val.tolist()), *((*pair, "test") for pair in test.tolist())]
    (tmp_path / "all.csv").write_text("a,b,part\n" + "".join(f"{u},{v},{part}\n" for u, v, part in rows))
    common = ["--task", "link", "--model", "gcn", "--dtype", "float64", "--link-width", 8, "--epochs", 2]
    files = ["--link-val", tmp_path / "val.csv", "--link-test", tmp_path / "test.csv"]
    one = train_here(tmp_path / "files", *common, *files)
    train_here(tmp_path / "table", *common, "--link-split", f"{tmp_path / 'all.csv'},split=part", "--ranks", 2)
    for expected_record, here in zip(one, metrics(tmp_path / "table")):
        np.testing.assert_allclose([here[name] for name in ("loss", "val_roc_auc", "test_roc_auc")],
                                   [expected_record[name] for name in ("loss", "val_roc_auc", "test_roc_auc")], rtol=1e-11)
    result = [predict_here(tmp_path / run, tmp_path / "o.npy", "--links", tmp_path / "test.csv")[0] for run in ("files", "table")]
    np.testing.assert_allclose(result[0], result[1], rtol=1e-9)
    test[0] = 298, 299
    np.savetxt(tmp_path / "test.csv", test, "%d", ",")  # another test edge: what was left out of messages is unknown
    with pytest.raises(CheckpointError, match="splits .* changed"):
        predict_here(tmp_path / "files", tmp_path / "o.npy", "--links", tmp_path / "val.csv")
    with pytest.raises(CheckpointError, match="files have other splits of links"):
        train_here(tmp_path / "files", "--resume", tmp_path / "files" / "checkpoint.safetensors", "--epochs", 3)
    drawn = train_here(tmp_path / "drawn", *common)
    assert drawn[0]["loss"] != one[0]["loss"]
    for words, flags in (
        ("give two files or two shares", [*files[:2], "--link-test", 0.1]),
        ("--link-split names the links", ["--link-split", "a,time=t", *files[:2]]),
        ("--link-val and --link-test have no effect", ["--link-split", "a,split=t", "--link-val", 0.2]),
        ("--link-val 2 is not in|--link-val 2.0 is not in", ["--link-val", 2]),
    ):
        with pytest.raises(ConfigError, match=words):
            train_here(tmp_path / "no", *common, *flags)


def test_links_of_both_files_are_tested_on_alone(tmp_path, capsys):
    (tmp_path / "val.csv").write_text("0,1\n2,3\n4,5\n")
    (tmp_path / "test.csv").write_text("3,2\n6,7\n")
    pairs, split = link_splits.read(str(tmp_path / "val.csv"), str(tmp_path / "test.csv"), None, [Ends(0, 9)] * 2)
    assert pairs.tolist() == [[0, 1], [4, 5], [3, 2], [6, 7]] and split.tolist() == [1, 1, 2, 2]
    assert "warning: 1 of 3 links of" in capsys.readouterr().err
    pairs, split = link_splits.read(str(tmp_path / "val.csv"), str(tmp_path / "test.csv"), None, [Ends(0, 9), Ends(9, 9)])
    assert len(pairs) == 5 and not capsys.readouterr().err  # users and items: 2, 3 is no 3, 2

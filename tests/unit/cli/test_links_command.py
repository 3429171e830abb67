"""Test `--task link`: training, resuming, prediction, and the ROC-AUC of a graph autoencoder on Cora."""

import csv

import numpy as np
import pytest

from sarlite import nn
from sarlite.cli import config, run
from sarlite.cli.data_command import main as convert
from sarlite.comm import Solo, threads
from sarlite.data import load
from sarlite.errors import CheckpointError, ConfigError, DataError, SarliteError
from sarlite.tasks import recommend
from sarlite.tasks.link_edges import Ends
from sarlite.train import checkpoint
from tests.helpers.train.data_files import write_saved
from tests.helpers.train.linked import N, part
from tests.helpers.train.predicting import predict_here
from tests.helpers.train.training_runs import DATA, metrics, train_here

LINK = ["--task", "link", "--model", "gcn", "--dtype", "float64", "--link-width", 8]


def trained(folder, *flags):
    return train_here(folder, *LINK, *flags)


def test_runs_and_scores_are_the_same_on_any_number_of_ranks(tmp_path):
    """Predicted scores give the run's ROC-AUC, so validation and test links pass no messages in prediction."""
    flags = ["--decoder", "complex", "--link-test", 0.3, "--epochs", 3, "--negatives", 2]
    one = trained(tmp_path / "1", *flags)
    other = trained(tmp_path / "3", *flags, "--ranks", 3, "--partition", "random", "--mode", "oneshot")
    fetched = trained(tmp_path / "4", *flags, "--ranks", 4, "--backward", "fetch")
    for name in ("loss", "val_loss", "train_roc_auc", "val_roc_auc", "test_roc_auc"):
        for curve in (other, fetched):
            np.testing.assert_allclose([m[name] for m in curve], [m[name] for m in one], rtol=1e-11, err_msg=name)
    draw = np.random.default_rng(0).integers(0, 300, (500, 2))
    np.savetxt(tmp_path / "links.csv", draw, "%d", ",", header="source,destination", comments="")
    predicted = [predict_here(tmp_path / run, tmp_path / f"{run}.npy", "--links", tmp_path / "links.csv", "--ranks", n)[0]
             for run, n in (("1", 1), ("1", 3), ("3", 2), ("4", 2))]
    assert predicted[0].shape == (500,) and len(set(predicted[0].tolist())) > 400
    np.testing.assert_allclose(predicted[1], predicted[0], rtol=1e-10)
    for other in predicted[2:]:
        np.testing.assert_allclose(other, predicted[0], rtol=1e-9)
    rows, _ = predict_here(tmp_path / "1", tmp_path / "rows.npy", "--embeddings", 2)
    relation = checkpoint.read(Solo(), tmp_path / "1" / "checkpoint.safetensors", ("best.", "model."))[0]["best.decoder.relation"]
    h, t = (rows[draw[:, k], :4] + 1j * rows[draw[:, k], 4:] for k in (0, 1))
    relation = np.asarray(relation)
    np.testing.assert_allclose(predicted[0], (h * (relation[:4] + 1j * relation[4:]) * t.conj()).sum(1).real, rtol=1e-9, atol=1e-14)


def test_ranks_among_all_nodes(tmp_path, capsys):
    """Ranks equal ranks counted in a matrix of all scores, with and without the data's links."""
    trained(tmp_path / "run", "--epochs", 2, "--decoder", "distmult", "--link-test", 0.2)
    np.save(tmp_path / "every.npy", np.stack(np.divmod(np.arange(300 * 300), 300), 1))
    scores = predict_here(tmp_path / "run", tmp_path / "all.npy", "--links", tmp_path / "every.npy")[0].reshape(300, 300)
    dataset, draw = load(DATA), np.random.default_rng(1).integers(0, 300, (40, 2))
    linked = np.eye(300, dtype=bool)
    linked[dataset.indices, np.repeat(np.arange(300), np.diff(dataset.indptr))] = True
    pairs = np.concatenate([draw, np.argwhere(linked & ~np.eye(300, dtype=bool))[:40]])
    np.savetxt(tmp_path / "links.csv", pairs, "%d", ",")
    for flags_of_known, others in (([], ~linked), (["--known"], ~np.eye(300, dtype=bool))):
        others = others[pairs[:, 0]]
        others[np.arange(80), pairs[:, 1]] = False
        expected = 1 + (others & (scores[pairs[:, 0]] > scores[tuple(pairs.T)][:, None])).sum(1)
        capsys.readouterr()
        for n in (1, 3):
            flags = ["--links", tmp_path / "links.csv", "--rank", *flags_of_known, "--ranks", n]
            predicted = predict_here(tmp_path / "run", tmp_path / "ranks.npy", *flags)[0]
            np.testing.assert_array_equal(predicted[:, 1], expected)
            np.testing.assert_allclose(predicted[:, 0], scores[tuple(pairs.T)], rtol=1e-10)
            assert f"mrr {np.mean(1 / expected):.4f}, hits@1 " in capsys.readouterr().out
    with pytest.raises(ValueError):  # a table is no .npy file
        predict_here(tmp_path / "run", tmp_path / "ranks.csv", "--links", tmp_path / "links.csv", "--rank")
    assert (tmp_path / "ranks.csv").read_text().startswith("source,destination,score,rank\n")


def test_the_likeliest_destinations(tmp_path):
    """The K destinations have the highest scores of all pairs without an edge, on any number of ranks."""
    trained(tmp_path / "run", "--epochs", 2, "--decoder", "distmult", "--link-test", 0.2)
    every = np.stack(np.divmod(np.arange(300 * 300), 300), 1)
    np.save(tmp_path / "every.npy", every)
    scores = predict_here(tmp_path / "run", tmp_path / "all.npy", "--links", tmp_path / "every.npy")[0].reshape(300, 300)
    dataset = load(DATA)
    dst = np.repeat(np.arange(300), np.diff(dataset.indptr))
    scores[np.arange(300), np.arange(300)] = -np.inf
    for with_links in (True, False):
        if not with_links:
            scores[dataset.indices, dst] = -np.inf
        expected = np.argsort(-scores, 1)[:, :5]
        for n in (1, 3):
            predicted, ids = predict_here(tmp_path / "run", tmp_path / "top.npy", "--top", 5, "--ranks", n, *["--known"] * with_links)
            np.testing.assert_allclose(predicted, np.take_along_axis(scores, expected, 1), rtol=1e-9)
            np.testing.assert_allclose(np.take_along_axis(scores, ids, 1), predicted, rtol=1e-9)
    (tmp_path / "nodes.txt").write_text("7\n3\n")
    with pytest.raises(ValueError):  # a table is no .npy file
        predict_here(tmp_path / "run", tmp_path / "top.csv", "--top", 299, "--nodes", tmp_path / "nodes.txt", "--ranks", 2)
    _, *rows = csv.reader((tmp_path / "top.csv").open())
    left = [np.count_nonzero(scores[node] > -np.inf) for node in (7, 3)]
    assert [row[0] for row in rows] == ["7"] * left[0] + ["3"] * left[1] and max(left) < 299
    assert [int(row[1]) for row in rows[:5]] == expected[7].tolist()
    for words, flags in (("--rank has no effect", ["--top", 1, "--rank"]), ("--top 0: at least 1", ["--top", 0]),
                         ("--known has no effect", ["--known", "--embeddings", 1]),
                         ("--links, --top or --embeddings", ["--top", 1, "--embeddings", 1])):
        with pytest.raises(ConfigError, match=words):
            predict_here(tmp_path / "run", tmp_path / "no.npy", *flags)


@pytest.mark.parametrize("width", [5, 33])
def test_equal_rows_tie_in_ranks(width):
    """Ranks are right in float32, for any width and block size; excluded pairs do not count."""
    graph, none = part(Solo()), np.empty(0, np.int64)
    h = np.repeat(np.random.default_rng(0).standard_normal((2, width)).astype(np.float32), [N - 3, 3], 0)
    heads, tails = np.array([N - 1, N - 1]), np.array([0, N - 2])
    pair_numbers = np.sort((N - 1) * N + np.array([0, 1, 2, N - 3]))
    for n_bytes in (1, 1 << 25):
        for left_out, expected in ((none, [1 + 2 + (N - 4) / 2, 1.5]), (pair_numbers, [1 + 1 + (N - 6) / 2, 1])):
            assert recommend.ranks(graph, nn.Dot(), h, heads, tails, Ends(0, graph.n_nodes), left_out, n_bytes)[:, 1].tolist() == expected


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_ranks_of_links_to_no_destination_are_refused(n_ranks):
    def work(comm):
        graph, rows = part(comm), np.arange(comm.rank == 0)
        with pytest.raises(SarliteError, match="node 3 .*destinations 10 .. 39"):
            recommend.ranks(graph, nn.Dot(), np.ones((graph.n_dst, 2)), rows, rows + 3, Ends(10, 30), np.empty(0, np.int64))

    threads.run(n_ranks, work)


def test_recommendations_in_small_pieces_and_ties():
    graph = part(Solo())
    h = np.ones((N, 2))
    rows, none = np.array([5, 0]), np.empty(0, np.int64)
    ids, scores = recommend.top(graph, nn.Dot(), h, rows, Ends(0, N), none, 3, n_bytes=1)
    assert ids.tolist() == [[0, 1, 2], [1, 2, 3]] and (scores == 2).all()
    ids, _ = recommend.top(graph, nn.Dot(), h, rows, Ends(0, N), np.sort([5 * N + 1, 0 * N + 2]), 3)
    assert ids.tolist() == [[0, 2, 3], [1, 3, 4]]


def test_negatives_of_a_file(tmp_path):
    np.savetxt(tmp_path / "hard.csv", np.random.default_rng(0).integers(0, 300, (600, 2)), "%d", ",")
    flags = ["--negative-sampler", tmp_path / "hard.csv", "--negatives", 2, "--epochs", 2, "--no-filtered"]
    one = trained(tmp_path / "1", *flags)
    for name, more in (("2", ["--ranks", 2]), ("batch", ["--eval-negative-sampler", "in-batch"])):
        other = trained(tmp_path / name, *flags, *more)
        np.testing.assert_allclose([m["loss"] for m in other], [m["loss"] for m in one], rtol=1e-11)
        assert ([m["val_roc_auc"] for m in other] == pytest.approx([m["val_roc_auc"] for m in one])) is (name == "2")
    np.savetxt(tmp_path / "hard.csv", np.zeros((1, 2)), "%d", ",")
    with pytest.raises(CheckpointError, match="files have other negatives of links"):
        train_here(tmp_path / "1", "--resume", tmp_path / "1" / "checkpoint.safetensors", "--epochs", 3)
    with pytest.raises(ConfigError, match="--eval-negative-sampler 'no.csv': no such file, .*uniform"):
        trained(tmp_path / "no", "--eval-negative-sampler", "no.csv")


def test_a_run_that_goes_on_is_the_run_that_never_ended(tmp_path):
    flags = ["--metric", "mrr", "--decoder", "distmult", "--link-disjoint", 0.3]
    whole = trained(tmp_path / "six", *flags, "--epochs", 6)
    trained(tmp_path / "three", *flags, "--epochs", 3)
    flags = ["--resume", str(tmp_path / "three" / "checkpoint.safetensors"), "--epochs", "6", "--progress", "none"]
    run.train(Solo(), config.parse(flags))
    records = metrics(tmp_path / "three")
    assert [{**m, "seconds": 0} for m in records] == [{**m, "seconds": 0} for m in whole]
    with pytest.raises(ConfigError, match="--link-val 0.2: cannot change"):
        run.train(Solo(), config.parse([*flags, "--link-val", "0.2"]))


def test_a_table_of_pairs(tmp_path):
    trained(tmp_path / "run", "--epochs", 1)
    (tmp_path / "pairs.csv").write_text("7,3\n0,299\n3,7\n")
    (tmp_path / "bad.csv").write_text("7,3\n0,300\n")
    with pytest.raises(ValueError):  # a table is no .npy file
        predict_here(tmp_path / "run", tmp_path / "out.csv", "--links", tmp_path / "pairs.csv", "--ranks", 2)
    source, *rows = csv.reader((tmp_path / "out.csv").open())
    assert source == ["source", "destination", "score"] and [row[:2] for row in rows] == [["7", "3"], ["0", "299"], ["3", "7"]]
    assert rows[0][2] == rows[2][2] != rows[1][2]  # dot
    (tmp_path / "none.csv").write_text("source,destination\n")
    for ranks in (1, 2):
        with pytest.raises(ValueError):
            predict_here(tmp_path / "run", tmp_path / "out.csv", "--links", tmp_path / "none.csv", "--ranks", ranks)
        assert (tmp_path / "out.csv").read_text() == "source,destination,score\n"
    for kind, words, flags in (
        (DataError, "destination of pair 1 is 300, outside 0 <= node < 300", ["--links", tmp_path / "bad.csv"]),
        (ConfigError, "--links, --top or --embeddings", []),
        (ConfigError, "--nodes .*: cannot be combined", ["--links", tmp_path / "pairs.csv", "--nodes", tmp_path / "pairs.csv"]),
    ):
        with pytest.raises(kind, match=words):
            predict_here(tmp_path / "run", tmp_path / "o.npy", *flags)
    train_here(tmp_path / "classes", "--epochs", 1)
    with pytest.raises(ConfigError, match="--links .* is classify, .*link"):
        predict_here(tmp_path / "classes", tmp_path / "o.npy", "--links", tmp_path / "pairs.csv")


@pytest.mark.parametrize("kind", ["edge_neg", "target_node_neg"])
def test_negatives_of_a_file_are_those_of_ogbs_leaderboards(tmp_path, capsys, kind):
    """Hits@K uses shared negatives as in ogbl-collab, and MRR uses negatives of each link as in ogbl-citation2."""
    trained(tmp_path / "run", "--epochs", 3)
    draw = np.random.default_rng(1)
    links, negatives = draw.integers(0, 300, (60, 2)), draw.integers(0, 300, (60, 7))
    negatives[:5, 3], shared = links[:5, 1], np.concatenate([links, draw.integers(0, 300, (30, 2))])  # ties
    every = shared if kind == "edge_neg" else np.stack([np.repeat(links[:, 0], 7), negatives.reshape(-1)], 1)
    contents = {"edge": links, "edge_neg": shared} if kind == "edge_neg" else {
        "source_node": links[:, 0], "target_node": links[:, 1], "target_node_neg": negatives}
    write_saved(tmp_path / "test.pt", contents, True)
    np.savetxt(tmp_path / "every.csv", np.concatenate([links, every]), "%d", ",")
    scores, _ = predict_here(tmp_path / "run", tmp_path / "every.npy", "--links", tmp_path / "every.csv")
    link, others = scores[:60], scores[60:]
    if kind == "edge_neg":
        assert np.sort(others)[-20] in link and np.sort(others)[-50] in link
        expected = {f"hits@{k}": np.mean(link > np.sort(others)[-k]) for k in (20, 50)}
    else:
        others = others.reshape(60, 7)
        ranks = 1 + 0.5 * ((others > link[:, None]).sum(1) + (others >= link[:, None]).sum(1))
        expected = {"mrr": np.mean(1 / ranks), **{f"hits@{k}": np.mean(ranks <= k) for k in (1, 3, 10)}}
        assert any(ranks % 1)
    said = f"rank among negatives of {tmp_path}/test.pt: " + ", ".join(f"{name} {value:.4f}" for name, value in expected.items())
    assert len(set(expected.values())) > 1
    for n in (1, 3):
        capsys.readouterr()
        predicted, _ = predict_here(tmp_path / "run", tmp_path / "out.npy", "--links", tmp_path / "test.pt", "--ranks", n)
        assert said in capsys.readouterr().out
        np.testing.assert_allclose(predicted, link, rtol=1e-10)
    capsys.readouterr()
    predict_here(tmp_path / "run", tmp_path / "out.npy", "--links", tmp_path / "test.pt", "--rank")
    assert "rank among all nodes" in capsys.readouterr().out
    if kind == "edge_neg":
        write_saved(tmp_path / "few.pt", {**contents, kind: shared[:19]}, True)
        capsys.readouterr()
        predict_here(tmp_path / "run", tmp_path / "out.npy", "--links", tmp_path / "few.pt", "--ranks", 2)
        assert "rank among" not in capsys.readouterr().out
    contents[kind][1, 1] = 300
    write_saved(tmp_path / "odd.pt", contents, True)
    with pytest.raises(DataError, match="negatives: destination .*300, outside 0 <= node < 300"):
        predict_here(tmp_path / "run", tmp_path / "out.npy", "--links", tmp_path / "odd.pt")


def test_nodes_with_names_need_neither_labels_nor_splits(tmp_path):
    dataset = load(DATA)
    src, dst = np.array(dataset.indices), np.repeat(np.arange(300), np.diff(dataset.indptr))
    (tmp_path / "edges.csv").write_text("".join(f"n{u},n{v}\n" for u, v in zip(src.tolist(), dst.tolist())))
    np.save(tmp_path / "features.npy", np.array(dataset.features))
    (tmp_path / "names.txt").write_text("".join(f"n{u}\n" for u in range(300)))
    spec = f"edges:{tmp_path / 'edges.csv'},names={tmp_path / 'names.txt'},features={tmp_path / 'features.npy'},header=false"
    empty = [word for split in ("train", "val", "test") for word in ("--allow-empty", split)]
    assert not convert(["convert", spec, str(tmp_path / "data"), *empty])
    trained(tmp_path / "run", "--data", tmp_path / "data", "--epochs", 2)
    (tmp_path / "pairs.csv").write_text("source,destination\nn7, n3\nn0,n299\n")
    with pytest.raises(ValueError):
        predict_here(tmp_path / "run", tmp_path / "out.csv", "--links", tmp_path / "pairs.csv", "--ranks", 2)
    assert [row[:2] for row in csv.reader((tmp_path / "out.csv").open())][1:] == [["n7", "n3"], ["n0", "n299"]]
    (tmp_path / "pairs.csv").write_text("n7,nobody\n")
    with pytest.raises(DataError, match="pairs.csv: links: .*no node is named 'nobody'"):
        predict_here(tmp_path / "run", tmp_path / "out.csv", "--links", tmp_path / "pairs.csv")


def test_exact_runs_and_scores_have_the_same_bits(tmp_path):
    np.savetxt(tmp_path / "links.csv", np.random.default_rng(0).integers(0, 300, (60, 2)), "%d", ",")
    runs = {}
    for n, flags in ((1, []), (3, ["--partition", "random", "--mode", "broadcast"])):
        run = tmp_path / str(n)
        records = train_here(run, "--task", "link", "--model", "gcn", "--link-width", 8, "--numerics", "exact", "--epochs", 3,
                           "--negatives", 2, "--loss", "bpr", "--ranks", n, *flags)
        values = [[epoch[name] for name in ("loss", "val_loss", "test_roc_auc")] for epoch in records]
        runs[n] = values, predict_here(run, tmp_path / f"{n}.npy", "--links", tmp_path / "links.csv", "--ranks", 4 - n)[0].tobytes()
    assert runs[1] == runs[3]

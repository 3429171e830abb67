"""Test sets of graphs, `--data tu:DIR`, in commands: reading, division, training, resuming and prediction."""

import csv

import numpy as np
import pytest

from sarlite.cli import config, estimate_command, run
from sarlite.cli.data_command import main as convert
from sarlite.comm import Solo
from sarlite.data import load
from sarlite.errors import ConfigError, DataError
from tests.helpers.graph.graph_sets import FEATURES, GRAPH_OF, LABELS, PAIRS, SIZES, N, write_tu
from tests.helpers.train.data_files import write_gz
from tests.helpers.train.predicting import predict_here
from tests.helpers.train.training_runs import metrics, train_here

SPLIT = "train=0.5,val=0.2"
FLAGS = ["--model", "gin", "--dtype", "float64", "--readout-width", 8, "--epochs", 3, "--dropout", 0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tu(tmp_path_factory.mktemp("tu") / "SMALL")


def trained(run_dir, folder, *flags):
    return train_here(run_dir, "--data", f"tu:{folder},{SPLIT}", *FLAGS, *flags)


def test_a_folder_is_read(tmp_path, folder):
    dataset = load(f"tu:{folder},{SPLIT}", relational=True)
    x = np.concatenate([FEATURES.astype(np.float32), np.eye(3, dtype=np.float32)[np.arange(N) % 3]], 1)
    assert dataset.of_graphs and (dataset.nodes["node"].features == x).all() and dataset.class_names == ["-1", "0", "1"]
    assert dataset.labels.tolist() == LABELS[SIZES > 0].tolist() and (dataset.train ^ dataset.val ^ dataset.test).all()
    graph = np.unique(GRAPH_OF, return_inverse=True)[1]
    rows = np.repeat(np.arange(11), np.diff(dataset.edges["node", "in", "graph"].indptr))
    assert (graph[dataset.edges["node", "in", "graph"].indices] == rows).all()
    assert dataset.n_edges == len(PAIRS) + N
    values = load(f"tu:{write_tu(tmp_path / 'E', edge_labels=True)},{SPLIT}", relational=True).edges["node", "edge", "node"]
    ends = np.stack([values.indices, np.repeat(np.arange(N), np.diff(values.indptr))], 1)
    assert (ends == PAIRS[values.edge_ids]).all() and (values.edge_features.argmax(1) == values.edge_ids % 2).all()
    assert load(f"tu:{folder},{SPLIT},task=regress", relational=True).labels.tolist() == (SIZES[SIZES > 0] / 2).tolist()


def test_bad_folders_are_refused(tmp_path, folder):
    for name, text, words in (
        ("A", "1, 99\n", "A.txt: line 1 has 99, outside 1 to 50"), ("A", "1\n", "A.txt: 1 columns, expected 2"),
        ("graph_labels", "1\n", "graph_labels.txt: 1 lines, expected 11"),
        ("graph_indicator", "0\n" * N, "graph_indicator.txt: line 1 has 0, outside 1 to"),
        ("node_labels", "0\n", "node_labels.txt: 1 lines, expected 50"),
        ("A", f"{1 + (GRAPH_OF == 0).argmax()}, {1 + (GRAPH_OF == 2).argmax()}\n", "leads from graph 0 to graph 2"),
    ):
        bad = write_tu(tmp_path / f"{name}-{len(words)}")
        (bad / f"SMALL_{name}.txt").write_text(text)
        with pytest.raises(DataError, match=words):
            load(f"tu:{bad}", relational=True)
    with pytest.raises(DataError, match="NAME_A.txt .*found none"):
        load(f"tu:{tmp_path}", relational=True)


def test_a_folder_of_ogb_is_read(tmp_path):
    rows = {"num-node-list": [3, 2, 1], "num-edge-list": [2, 1, 0], "edge": [[0, 1], [1, 2], [1, 0]], "graph-label": [1, 0, 1],
            "node-feat": np.arange(12).reshape(6, 2), "edge-feat": [[1.0], [2.0], [3.0]]}  # fmt: skip
    for name, values in rows.items():
        write_gz(tmp_path / f"raw/{name}.csv.gz", values)
    for at, name in enumerate(("train", "valid", "test")):
        write_gz(tmp_path / f"split/scaffold/{name}.csv.gz", [at])
    dataset = load(f"ogbg:{tmp_path}", relational=True)
    assert dataset.of_graphs and dataset.labels.tolist() == [1, 0, 1] and dataset.val.tolist() == [False, True, False]
    assert (dataset.nodes["node"].features == rows["node-feat"]).all()
    edges = zip(dataset.indices, np.repeat(np.arange(6), np.diff(dataset.indptr)), dataset.one_relation.edge_features[:, 0])
    assert sorted(edges) == [(0, 1, 1), (1, 0, 1), (1, 2, 2), (2, 1, 2), (3, 4, 3), (4, 3, 3)]
    write_gz(tmp_path / "raw/edge.csv.gz", [[0, 1], [1, 2], [1, 2]])
    with pytest.raises(DataError, match="edge.csv.gz: edges: row 2 .*2, outside 0 <= id < 2, .*graph 1"):
        load(f"ogbg:{tmp_path}", relational=True)
    write_gz(tmp_path / "raw/num-edge-list.csv.gz", [3])
    with pytest.raises(DataError, match="num-edge-list.csv.gz: 1 counts, expected 3"):
        load(f"ogbg:{tmp_path}", relational=True)


@pytest.mark.parametrize("flags", [["--readout", "attention"], ["--model", "gcn", "--batch-size", 3]])
def test_runs_and_predictions_are_the_same_on_any_number_of_ranks(tmp_path, folder, flags):
    one = trained(tmp_path / "1", folder, *flags)
    other = trained(tmp_path / "3", folder, *flags, "--ranks", 3, "--mode", "oneshot")
    for name in ("loss", "val_loss", "train_accuracy", "test_accuracy"):
        np.testing.assert_allclose([m[name] for m in other], [m[name] for m in one], rtol=1e-10, err_msg=name)
    predicted = [predict_here(tmp_path / run, tmp_path / f"{run}-{n}.npy", "--ranks", n) for run, n in (("1", 1), ("1", 2), ("3", 3))]
    assert predicted[0][0].shape == (11, 3)
    for probabilities, labels in predicted:
        np.testing.assert_allclose(probabilities, predicted[0][0], rtol=1e-9)
        assert (labels == predicted[0][1]).all()


def test_a_divided_directory_serves_and_a_run_goes_on(tmp_path, folder):
    assert convert(["convert", f"tu:{folder},{SPLIT}", str(tmp_path / "whole")]) == 0
    assert convert(["partition", str(tmp_path / "whole"), "--parts", "2", "--output", str(tmp_path / "two")]) == 0
    whole = trained(tmp_path / "six", folder, "--epochs", 6)
    train_here(tmp_path / "three", "--data", tmp_path / "two", *FLAGS, "--ranks", 2)
    flags = ["--resume", str(tmp_path / "three" / "checkpoint.safetensors"), "--epochs", "6", "--progress", "none"]
    run.train(Solo(), config.parse([*flags, "--data", f"tu:{folder},{SPLIT}"]))
    np.testing.assert_allclose([m["loss"] for m in metrics(tmp_path / "three")], [m["loss"] for m in whole], rtol=1e-9)
    with pytest.raises(ConfigError, match="--readout mean: cannot change"):
        run.train(Solo(), config.parse([*flags, "--readout", "mean"]))


def test_a_table_of_graphs_and_numbers_to_regress(tmp_path, folder):
    trained(tmp_path / "run", folder)
    with pytest.raises(ValueError):  # a table is no .npy file
        predict_here(tmp_path / "run", tmp_path / "out.csv")
    header, *rows = csv.reader((tmp_path / "out.csv").open())
    assert len(rows) == 11 and [row[0] for row in rows] == [str(k) for k in range(11)] and {row[1] for row in rows} <= {"-1", "0", "1"}
    train_here(tmp_path / "rgcn", "--data", f"tu:{folder},{SPLIT}", "--model", "rgcn", "--epochs", 1)  # as relational data
    records = train_here(tmp_path / "r", "--data", f"tu:{folder},{SPLIT},task=regress", *FLAGS, "--epochs", 30)
    assert records[-1]["train_rmse"] < records[0]["train_rmse"] / 2


def test_what_is_not_done_is_refused_by_name(tmp_path, folder, capsys):
    for words, flags in (
        ("--task link: not supported yet for sets of graphs, such as --data tu:.*", ["--task", "link"]),
        ("--rows bfloat16: not supported yet for sets of graphs", ["--rows", "bfloat16", "--dtype", "float32"]),
        ("--mfg: not supported yet for sets of graphs", ["--mfg"]),
        ("--label-inputs: not supported yet for sets of graphs", ["--label-inputs", 0.5]),
        ("--normalize-features: not supported yet for sets of graphs", ["--normalize-features"]),
        ("--remote hec: .* whole graphs, so nothing is sampled|--remote: batches of", ["--batch-size", 2, "--remote", "hec"]),
        ("--fanouts: batches of .* are whole graphs", ["--batch-size", 2, "--fanouts", "2,2,2"]),
        ("--model sgc: trains on propagated features", ["--model", "sgc"]),
        ("readout", ["--readout", "median"]), ("--readout-width", ["--readout-width", 0]),
    ):
        with pytest.raises(ConfigError, match=words):
            trained(tmp_path / "run", folder, *flags)
    with pytest.raises(ConfigError, match="--readout: .*sets of graphs, .*--data sbm:"):
        train_here(tmp_path / "run", "--readout", "sum", "--epochs", 1)
    assert estimate_command.main(["--data", f"tu:{folder}", "--model", "gcn"]) == 2
    assert "error: --model gcn on graphs data has no formula" in capsys.readouterr().err
    trained(tmp_path / "run", folder)
    with pytest.raises(ConfigError, match="--embeddings: .*sets of graphs"):
        predict_here(tmp_path / "run", tmp_path / "o.npy", "--embeddings", 1)

"""Test commands on links of relations: node names, edge labels and several relations, on one rank and on two ranks."""

import csv
from itertools import groupby

import numpy as np
import pytest

from sarlite.cli.data_command import main as data_command
from sarlite.errors import CheckpointError, ConfigError, DataError
from tests.helpers.train.predicting import predict_here
from tests.helpers.train.training_runs import train_here


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Write tables of named users and items with four tastes, and of purchases with stars that depend on the item."""
    folder, draw = tmp_path_factory.mktemp("tables"), np.random.default_rng(0)
    tastes = draw.integers(0, 4, 60)
    with (folder / "users.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerows([["user", "age", "income"], *([f"u{user}", *(np.array([taste % 2, taste // 2]) + 0.1 * draw.standard_normal(2))]
                                                     for user, taste in enumerate(tastes))])
    with (folder / "buys.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["who", "what", "stars", "part"])
        for at in range(500):
            user = int(draw.integers(60))
            item = int(draw.integers(9)) * 4 + tastes[user] if at % 5 else int(draw.integers(36))
            rows.writerow([f"u{user}", f"i{item}", ["bad", "good"][item % 2], ["train", "train", "val", "test"][(item + user) % 4]])
    (folder / "graph.toml").write_text("""target = "user"
[nodes.user]
file = "users.csv"
id = "user"
[nodes.item]
[[edges]]
relation = ["user", "buys", "item"]
file = "buys.csv"
src = "who"
dst = "what"
""")
    missing = [f"--allow-empty={split}" for split in ("train", "val", "test")]
    assert not data_command(["convert", f"tables:{folder}/graph.toml", str(folder / "data"), *missing])
    return folder


BOUGHT = "user.buys.item"
FLAGS = ["--model", "rgcn", "--link-relation", "user.buys.item", "--embedding", 6, "--link-width", 6, "--dtype", "float64"]


def test_the_command_trains_and_ranks_by_name(data, tmp_path, capsys):
    flags = ["--data", data / "data", "--task", "link", *FLAGS, "--link-split", f"{data}/buys.csv,split=part", "--dropout", 0]
    one = train_here(tmp_path / "1", *flags, "--epochs", 20)
    two = train_here(tmp_path / "2", *flags, "--epochs", 20, "--ranks", 2, "--mode", "oneshot")
    for name in ("loss", "val_loss", "test_roc_auc"):
        np.testing.assert_allclose([m[name] for m in two], [m[name] for m in one], rtol=1e-9, err_msg=name)
    bought = {(row["who"], row["what"]) for row in csv.DictReader((data / "buys.csv").open())}
    users, items = [f"u{at}" for at in range(60)], sorted({item for _, item in bought})
    every = [(user, item) for user in users for item in items]
    with (tmp_path / "pairs.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("source", "target"), *every])
    tables = []
    for n, flags in ((1, ["--links", tmp_path / "pairs.csv", "--rank"]), (2, ["--links", tmp_path / "pairs.csv", "--rank"]),
                     (2, ["--top", 4])):  # fmt: skip
        with pytest.raises(ValueError):  # a table is no .npy file
            predict_here(tmp_path / "1", tmp_path / "out.csv", *flags, "--ranks", n)
        with (tmp_path / "out.csv").open() as file:
            tables.append([*csv.DictReader(file)])
    assert [(row["source"], row["destination"]) for row in tables[0]] == every == [(row["source"], row["destination"]) for row in tables[1]]
    scores, ranks = (np.array([[float(row[name]) for row in table] for table in tables[:2]]) for name in ("score", "rank"))
    np.testing.assert_allclose(scores[1], scores[0], rtol=1e-9)
    scores = scores[0].reshape(60, len(items))
    is_link = np.array([pair in bought for pair in every]).reshape(scores.shape)
    for row, (user, item) in enumerate(np.ndindex(scores.shape)):
        others = ~is_link[user] & (np.arange(len(items)) != item)
        expected = 1 + (scores[user, others] > scores[user, item]).sum() + 0.5 * (scores[user, others] == scores[user, item]).sum()
        assert ranks[0, row] == ranks[1, row] == expected
    best = [(users[user], items[item]) for user in range(60) for item in np.argsort(-np.where(is_link[user], -np.inf, scores[user]))[:4]]
    assert [(row["source"], row["destination"]) for row in tables[2]] == best


def test_labels_of_a_relation_by_the_command(data, tmp_path):
    flags = ["--data", data / "data", *FLAGS, "--edge-labels", f"{data}/buys.csv,labels=stars,split=part", "--dropout", 0, "--epochs", 30]
    one, two = (train_here(tmp_path / str(n), *flags, "--ranks", n) for n in (1, 2))
    np.testing.assert_allclose([m["loss"] for m in two], [m["loss"] for m in one], rtol=1e-9)
    assert one[-1]["test_accuracy"] > 0.8
    rows = [*csv.DictReader((data / "buys.csv").open())][:50]
    with (tmp_path / "pairs.csv").open("w", newline="") as file:
        csv.writer(file).writerows([row["who"], row["what"]] for row in rows)
    with pytest.raises(ValueError):
        predict_here(tmp_path / "1", tmp_path / "out.csv", "--links", tmp_path / "pairs.csv")
    predicted = [*csv.DictReader((tmp_path / "out.csv").open())]
    assert [*predicted[0]] == ["source", "destination", "class", "p_bad", "p_good"]
    assert np.mean([prediction["class"] == row["stars"] for prediction, row in zip(predicted, rows)]) > 0.8


def test_the_command_predicts_several_relations(data, tmp_path):
    """Split files have a relation column; scores, ranks and recommendations are per relation, on 1 and 2 ranks."""
    names = ["user.buys.item", "item.rev_buys.user"]
    bought = {(row["who"], row["what"]) for row in csv.DictReader((data / "buys.csv").open())}
    users, items = [f"u{at}" for at in range(60)], sorted({item for _, item in bought})
    held = sorted(bought)[::9]
    (tmp_path / "val.csv").write_text("source,relation,target\n" + "".join(f"{user},{names[0]},{item}\n" for user, item in held))
    (tmp_path / "test.csv").write_text("".join(f"{item},{names[1]},{user}\n" for user, item in sorted(bought)[1::9]))
    flags = ["--data", data / "data", "--task", "link", *FLAGS, "--decoder", "distmult", "--dropout", 0, "--epochs", 20,
             "--link-val", tmp_path / "val.csv", "--link-test", tmp_path / "test.csv", "--link-relation"]
    one = train_here(tmp_path / "1", *flags, "all")
    two = train_here(tmp_path / "2", *flags, ",".join(names), "--ranks", 2, "--mode", "oneshot")
    for name in ("loss", "val_loss", "test_roc_auc"):
        np.testing.assert_allclose([m[name] for m in two], [m[name] for m in one], rtol=1e-9, err_msg=name)
    every = [(user, names[0], item) for user in users for item in items] + [(item, names[1], user) for item in items for user in users]
    with (tmp_path / "links.csv").open("w", newline="") as file:
        csv.writer(file).writerows(every)
    tables = []
    for n, flags in ((1, ["--links", tmp_path / "links.csv", "--rank"]), (2, ["--links", tmp_path / "links.csv", "--rank"]),
                     (1, ["--links", tmp_path / "links.csv"]), (1, ["--top", 4]), (2, ["--top", 4])):  # fmt: skip
        with pytest.raises(ValueError):  # a table is no .npy file
            predict_here(tmp_path / "1", tmp_path / "out.csv", *flags, "--ranks", n)
        with (tmp_path / "out.csv").open() as file:
            tables.append([*csv.DictReader(file)])
    triple = lambda row: (row["source"], row["relation"], row["destination"])  # noqa: E731
    assert all([triple(row) for row in table] == every for table in tables[:3])
    scores = [{triple(row): float(row["score"]) for row in table} for table in tables[:3]]
    for other in scores[1:]:
        np.testing.assert_allclose([*other.values()], [*scores[0].values()], rtol=1e-9)
    assert any(scores[0][user, names[0], item] != scores[0][item, names[1], user] for user, item in bought)
    links = {(user, names[0], item) for user, item in bought} | {(item, names[1], user) for user, item in bought}
    best = []
    for _, group in groupby(every, key=lambda row: row[:2]):
        group = [*group]
        for at in group:
            others = np.array([scores[0][one] for one in group if one not in links and one != at])
            expected = 1 + np.sum(others > scores[0][at]) + 0.5 * np.sum(others == scores[0][at])
            place = every.index(at)
            assert float(tables[0][place]["rank"]) == float(tables[1][place]["rank"]) == expected
        free = sorted((one for one in group if one not in links), key=lambda one: -scores[0][one])
        best += free[:4]
    assert [triple(row) for row in tables[3]] == [triple(row) for row in tables[4]]
    assert sorted(map(triple, tables[3])) == sorted(best)
    for text, words in (("u1,user.buys.item\n", "line 1: 2 cells, expected three"), ("u1,buys,i0\n", "relation 'buys' is not one of"),
                        ("u1,user.buys.item,u2\n", "no node is named 'u2'")):  # fmt: skip
        (tmp_path / "odd.csv").write_text(text)
        with pytest.raises(DataError, match=words):
            predict_here(tmp_path / "1", tmp_path / "out.csv", "--links", tmp_path / "odd.csv")
    with pytest.raises(ConfigError, match="of several types, item, user"):
        predict_here(tmp_path / "1", tmp_path / "out.csv", "--top", 2, "--nodes", tmp_path / "odd.csv")
    with pytest.raises(ConfigError, match="--top of several relations needs a table"):
        predict_here(tmp_path / "1", tmp_path / "out.npy", "--top", 2)
    (data / "more.toml").write_text((data / "graph.toml").read_text() + """[[edges]]
relation = ["user", "likes", "item"]
file = "buys.csv"
src = "who"
dst = "what"
""")
    missing = [f"--allow-empty={split}" for split in ("train", "val", "test")]
    assert not data_command(["convert", f"tables:{data}/more.toml", str(tmp_path / "more"), *missing])
    scores = []
    for name, flags in (("same", []), ("more", ["--data", tmp_path / "more"])):  # relations that the model lacks are left out
        out = tmp_path / f"{name}.npy"
        scores.append(predict_here(tmp_path / "1", out, "--links", tmp_path / "links.csv", *flags)[0])
    np.testing.assert_allclose(scores[1], scores[0], rtol=1e-9)
    with pytest.raises(CheckpointError, match="splits .* changed"):
        (tmp_path / "val.csv").write_text("".join(f"{item},{names[1]},{user}\n" for user, item in held))  # the other way round
        predict_here(tmp_path / "1", tmp_path / "out.csv", "--links", tmp_path / "links.csv")


def test_what_cannot_be_is_refused_by_the_command(data, tmp_path):
    (tmp_path / "swapped.csv").write_text("i0,u0\n")
    flags, run = ["--data", data / "data", "--model", "rgcn", "--task", "link"], tmp_path / "run"
    for kind, words, more in (
        (ConfigError, "link-relation: the graph has several, user.buys.item, item.rev_buys.user", []),
        (ConfigError, "link-relation user.eats.item is not one of user.buys.item", ["--link-relation", "user.eats.item"]),
        (DataError, "no node is named 'i0'", ["--link-relation", "user.buys.item", "--link-val", tmp_path / "swapped.csv"]),
        (ConfigError, "list each relation once", ["--link-relation", "user.buys.item,user.buys.item"]),
        (ConfigError, "link-split .*: is not supported", ["--link-relation", "all", "--link-split", f"{data}/buys.csv,split=part"]),
        (ConfigError, "--link-split .*: expected FILE,split=", ["--link-relation", BOUGHT, "--link-split", f"{data}/buys.csv,at=part"]),
        (ConfigError, "negative-sampler .*: is not supported", ["--link-relation", "all", "--negative-sampler", tmp_path / "swapped.csv"]),
        (ConfigError, "has one kind of edges", ["--data", "sbm:nodes=100", "--model", "gcn", "--link-relation", "user.buys.item"]),
        (ConfigError, "--link-relation has no effect without", ["--task", "classify", "--link-relation", "user.buys.item"]),
    ):  # fmt: skip
        with pytest.raises(kind, match=words):
            train_here(run, *flags, *more)
        assert not run.exists()
    train_here(run, *flags, *FLAGS[2:], "--epochs", 1, "--link-val", 0.1)
    with pytest.raises((CheckpointError, ConfigError), match="link-relation item.rev_buys.user: cannot change"):
        train_here(run, *flags, *FLAGS[2:], "--link-relation", "item.rev_buys.user", "--epochs", 2,
                   "--resume", run / "checkpoint.safetensors")

"""Test features made by transforms: fitted on training rows, stored with data and checkpoint, equal for new tables."""

import csv

import numpy as np
import pytest

from sarlite.cli.data_command import main as convert
from sarlite.data import format as native
from sarlite.data import load
from sarlite.errors import SarliteError
from tests.helpers.train.predicting import predict_here
from tests.helpers.train.training_runs import train_here

pytestmark = pytest.mark.timeout(180)
RNG = np.random.default_rng(0)
N = 40
USERS = {"user": [f"u{at}" for at in range(N)], "age": [*map(str, RNG.integers(18, 80, N))],
         "country": RNG.choice(["FR", "DE", "IT"], N).tolist(), "signup": [f"2024-0{1 + at % 9}-1{at % 10}" for at in range(N)],
         "kind": [("gold", "iron")[at % 2] for at in range(N)],
         "split": [("train", "train", "val", "test", "none")[at % 5] for at in range(N)]}
EDGES = {"a": RNG.choice(USERS["user"], 90).tolist(), "b": RNG.choice(USERS["user"], 90).tolist(), "since": [*map(str, range(90))]}
TOML = """
[nodes.user]
file = "u.csv"
id = "user"
label = "kind"
split = "split"
[nodes.user.features]
age = { transform = "standard", missing = "mean+indicator" }
country = "onehot"
signup = "date"
[[edges]]
relation = ["user", "knows", "user"]
file = "e.csv"
src = "a"
dst = "b"
features = { since = "minmax" }
"""
NAMES = ["age", "age.missing", "country=DE", "country=FR", "country=IT", "signup.year", "signup.month_sin", "signup.month_cos",
         "signup.weekday_sin", "signup.weekday_cos", "signup.hour_sin", "signup.hour_cos"]  # fmt: skip


def tables(folder, users, edges=EDGES, text=TOML):
    folder.mkdir()
    for name, columns in (("u", users), ("e", edges)):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(columns)
            rows.writerows(zip(*columns.values()))
    (folder / "g.toml").write_text(text)
    return f"tables:{folder}/g.toml"


def test_features_are_named_and_their_transforms_kept(tmp_path, capsys):
    users = {**USERS, "age": ["", *USERS["age"][1:]]}
    assert convert(["convert", tables(tmp_path / "t", users), str(tmp_path / "d")]) == 0
    assert "age: feature (standard of training rows: mean" in capsys.readouterr().out
    dataset = native.open(tmp_path / "d")
    assert dataset.target_nodes.feature_names == NAMES and dataset.one_relation.feature_names == ["since"]
    train = np.array([split == "train" for split in USERS["split"]])
    ages = np.array([np.nan, *map(float, USERS["age"][1:])])
    mean, deviation = np.nanmean(ages[train]), np.nanstd(ages[train])
    x = dict(zip(NAMES, np.asarray(dataset.features).T))
    np.testing.assert_allclose(x["age"], (np.where(np.isnan(ages), mean, ages) - mean) / deviation, rtol=1e-5, atol=1e-6)
    assert x["age.missing"].tolist() == [1.0] + [0.0] * (N - 1)
    for name in ("DE", "FR", "IT"):
        assert x[f"country={name}"].tolist() == [float(country == name) for country in USERS["country"]]
    assert dataset.target_nodes.transforms["on_training_rows"] is True and dataset.one_relation.transforms["on_training_rows"] is False
    order = dataset.one_relation.edge_ids if dataset.one_relation.edge_ids is not None else None
    since = np.sort(np.asarray(dataset.edge_features)[:, 0])
    np.testing.assert_allclose(since, np.arange(90) / 89, atol=1e-6)
    assert order is None or len(order) == 90


def test_new_tables_get_the_features_of_training(tmp_path):
    """New tables may have another order, further columns and unknown values; newly fitted transforms are refused."""
    first = tables(tmp_path / "a", USERS)
    assert convert(["convert", first, str(tmp_path / "d")]) == 0
    flags = ["--model", "gat", "--heads", 2, "--edge-features", "--dtype", "float64", "--epochs", 3]
    train_here(tmp_path / "run", "--data", tmp_path / "d", *flags)
    whole, _ = predict_here(tmp_path / "run", tmp_path / "a.npy")
    some = [at for at in range(N) if USERS["country"][at] != "IT"]
    order = RNG.permutation(N)
    users = {"more": ["7"] * N, **{name: [USERS[name][at] for at in order] for name in reversed(USERS)}}
    other = tables(tmp_path / "b", users)
    for ranks in (1, 3):
        predicted, _ = predict_here(tmp_path / "run", tmp_path / "b.npy", "--data", other, "--ranks", ranks)
        np.testing.assert_allclose(predicted, whole[order], rtol=1e-6, atol=1e-9)
    few = tables(tmp_path / "c", {name: [USERS[name][at] for at in some] for name in USERS},
                 {name: [value for value, *ends in zip(EDGES[name], EDGES["a"], EDGES["b"])
                         if all(USERS["user"].index(end) in some for end in ends)]
                  for name in EDGES})
    predict_here(tmp_path / "run", tmp_path / "c.npy", "--data", few)
    assert convert(["convert", few, str(tmp_path / "e")]) == 0
    with pytest.raises(SarliteError, match="features: .*other transforms .*column 'age'"):
        predict_here(tmp_path / "run", tmp_path / "x.npy", "--data", tmp_path / "e")
    assert convert(["convert", few, str(tmp_path / "g"), "--transforms-of", str(tmp_path / "run")]) == 0
    again, _ = predict_here(tmp_path / "run", tmp_path / "g.npy", "--data", tmp_path / "g")
    assert again.tolist() == np.load(tmp_path / "c.npy").tolist()
    unlabelled = {name: values for name, values in users.items() if name not in ("kind", "split")}
    new = tables(tmp_path / "h", unlabelled, text=TOML.replace('label = "kind"\nsplit = "split"\n', ""))
    assert convert(["convert", new, str(tmp_path / "i"), "--transforms-of", str(tmp_path / "run")]) == 0
    predictions, _ = predict_here(tmp_path / "run", tmp_path / "i.npy", "--data", tmp_path / "i")
    np.testing.assert_allclose(predictions, whole[order], rtol=1e-6, atol=1e-9)
    lacking = tables(tmp_path / "f", {name: USERS[name] for name in USERS if name != "country"})
    with pytest.raises(SarliteError, match="no column 'country': there are user, age"):
        predict_here(tmp_path / "run", tmp_path / "x.npy", "--data", lacking)
    lacking = tables(tmp_path / "j", USERS, text=TOML.replace('country = "onehot"\n', ""))
    with pytest.raises(SarliteError, match="no column 'country', .*'user'"):
        predict_here(tmp_path / "run", tmp_path / "x.npy", "--data", lacking)


def test_transforms_of_a_run_are_refused_where_there_are_none(tmp_path, capsys):
    spec = tables(tmp_path / "t", USERS)
    plain = f"edges:{tmp_path}/t/e.csv,src=a,dst=b,nodes={tmp_path}/t/u.csv,id=user,labels=kind,split=split,features=age"
    for name, of in (("scaled", spec), ("plain", plain)):
        train_here(tmp_path / name, "--data", of, "--model", "sage", "--hidden", 4, "--epochs", 1, "--no-edge-features")
    for run, of, message in (("scaled", "sbm:nodes=50", "edges: and tables: have transforms"),
                             ("plain", spec, "its data have no transforms"),
                          ("nowhere", spec, "nowhere"), ("scaled", plain, "made with other transforms than the model's")):
        assert convert(["convert", of, str(tmp_path / "x"), "--transforms-of", str(tmp_path / run)]) == 2
        assert message in capsys.readouterr().err and not (tmp_path / "x").exists()


def test_transforms_in_options_of_edges(tmp_path):
    tables(tmp_path / "t", USERS)
    spec = (f"edges:{tmp_path}/t/e.csv,src=a,dst=b,nodes={tmp_path}/t/u.csv,id=user,labels=kind,split=split,"
            "features=age:quantile+country:hash:4")
    dataset = load(spec)
    assert dataset.target_nodes.feature_names == ["age", *(f"country.hash{at}" for at in range(4))]
    with pytest.raises(SarliteError, match="transform 'quantil' .*did you mean quantile"):
        load(spec.replace("age:quantile", "age:quantil"))

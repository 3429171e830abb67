"""Test transforms of columns: fitted on training rows, stored with the data and the checkpoint, applied by predict."""

import json
import re

import numpy as np
import pytest

pytest.importorskip("duckdb", reason="tables are read with DuckDB")

from sarlite import data
from sarlite.cli.predict_command import main as predict
from sarlite.cli.train_command import main as train

TOML = """
[nodes.user]
file = "users.csv"
id = "user"
label = "churned"
split = "split"
[nodes.user.features]
age = "standard"
income = { transform = "quantile", missing = "median+indicator" }
country = { transform = "onehot", at_least = 3 }
signup = "date"
[[edges]]
relation = ["user", "knows", "user"]
file = "knows.csv"
src = "who"
dst = "whom"
reverse = false
"""


def write_tables(folder, users, header="user,age,income,country,signup,churned,split"):
    folder.mkdir(exist_ok=True)
    names = header.split(",")
    rows = "".join(",".join(str(user[name]) for name in names) + "\n" for user in users)
    (folder / "users.csv").write_text(f"{header}\n{rows}")
    ends = [(users[at]["user"], users[(at * 7 + 1) % len(users)]["user"]) for at in range(len(users))]
    (folder / "knows.csv").write_text("who,whom\n" + "".join(f"{a},{b}\n" for a, b in ends))
    (folder / "graph.toml").write_text(TOML)
    return f"tables:{folder / 'graph.toml'}"


def people(n, seed=0):
    random = np.random.default_rng(seed)
    return [{"user": f"u{at}", "age": int(random.integers(18, 80)), "income": "" if at % 9 == 4 else round(random.lognormal(), 3),
             "country": ["FR", "DE", "IT", "MT"][min(int(random.integers(0, 7)) // 2, 3)],
             "signup": f"2026-{1 + at % 12:02}-03", "churned": ["no", "yes"][int(random.random() < 0.4)],
             "split": ["train", "train", "val", "test"][at % 4]} for at in range(n)]


def test_statistics_come_from_training_rows_alone(tmp_path):
    users = people(80)
    table = data.load(write_tables(tmp_path, users)).nodes["node"]
    age = np.array([user["age"] for user in users], float)
    of_training = age[[user["split"] == "train" for user in users]]
    expected = (age - of_training.mean()) / of_training.std()
    np.testing.assert_allclose(table.features[:, table.feature_names.index("age")], expected, rtol=1e-5)
    common = {name for name in ("FR", "DE", "IT", "MT")
              if sum(user["country"] == name and user["split"] == "train" for user in users) >= 3}
    assert {name.removeprefix("country=") for name in table.feature_names if name.startswith("country=")} >= common
    assert table.features[:, table.feature_names.index("income.missing")].sum() == sum(user["income"] == "" for user in users)


def trained(folder, monkeypatch):
    monkeypatch.chdir(folder)
    spec = write_tables(folder / "old", people(80))
    assert train(["--data", spec, "--model", "sage", "--hidden", "4", "--epochs", "5", "--run-dir", "run", "--threads", "1"]) == 0
    return spec


def probabilities(folder, name, spec, *more):
    out = str(folder / f"{name}.csv")
    assert predict(["--checkpoint", "run", "--data", spec, "--out", out, *more]) == 0
    lines = open(out).read().splitlines()
    return {line.split(",")[0]: [float(cell) for cell in line.split(",")[2:]] for line in lines[1:]}


def test_predict_makes_features_with_the_statistics_of_training(tmp_path, monkeypatch):
    """A person's features do not depend on other people, on the order of columns, or on further columns."""
    spec = trained(tmp_path, monkeypatch)
    before = probabilities(tmp_path, "before", spec)
    few = people(80)[:3]
    for user in few:
        user["age"], user["extra"] = user["age"], 7
    ends = (tmp_path / "old" / "knows.csv").read_text()
    new = write_tables(tmp_path / "new", few, "extra,split,signup,country,income,age,churned,user")
    (tmp_path / "new" / "knows.csv").write_text("who,whom\n")
    (tmp_path / "old" / "knows.csv").write_text("who,whom\n")  # without edges a prediction needs the features alone
    on_one_rank = probabilities(tmp_path, "alone", spec)
    after = probabilities(tmp_path, "after", new)
    assert ends and before != on_one_rank
    for user in few:
        np.testing.assert_allclose(after[user["user"]], on_one_rank[user["user"]], rtol=1e-6)


def test_an_unseen_category_is_no_error_and_a_missing_column_is_refused_by_name(tmp_path, monkeypatch, capsys):
    trained(tmp_path, monkeypatch)
    few = people(6, seed=3)
    few[0]["country"] = "XX"
    spec = write_tables(tmp_path / "new", few)
    capsys.readouterr()
    assert len(probabilities(tmp_path, "unseen", spec)) == 6
    assert "column 'country': 1 of 6 values, such as 'XX', are no categories of its training rows" in "".join(capsys.readouterr())
    spec = write_tables(tmp_path / "less", few, "user,age,income,signup,churned,split")
    capsys.readouterr()
    assert predict(["--checkpoint", "run", "--data", spec, "--out", str(tmp_path / "x.csv")]) == 2
    assert "'country'" in capsys.readouterr().err


def test_the_account_tells_the_transform_of_each_column(tmp_path):
    dataset = data.load(write_tables(tmp_path, people(40)))
    columns = dataset.provenance["tables"]["nodes"]["user"]["sources"][0]["columns"]
    assert columns["user"] == "id" and columns["churned"] == "label" and columns["split"] == "split"
    assert columns["age"].startswith("feature (standard of training rows: mean")
    assert "median" in columns["income"] and "onehot at_least=3" in columns["country"]
    assert json.dumps(dataset.provenance)


def test_values_outside_the_range_of_training_are_told_by_column(tmp_path, monkeypatch, capsys):
    trained(tmp_path, monkeypatch)
    few = people(6, seed=3)
    for user, age in zip(few, (300, -5, 40, 40, 40, 40)):
        user["age"] = age
    few[2]["signup"] = "2031-05-01"
    spec = write_tables(tmp_path / "new", few)
    capsys.readouterr()
    probabilities(tmp_path, "outside", spec)
    printed = capsys.readouterr()
    shown = printed.out + printed.err
    assert re.search(r"users.csv: column 'age': 2 of 6 values lie outside \d\d to \d\d, the range of the table that", shown)
    assert re.search(r"users.csv: column 'signup': 1 of 6 values lie outside 2026-01-03 to 2026-\d\d-03, the range", shown)
    capsys.readouterr()
    probabilities(tmp_path, "inside", f"tables:{tmp_path / 'old' / 'graph.toml'}")
    assert "column 'age'" not in "".join(capsys.readouterr())


def test_statistics_of_another_split_than_the_split_by_time_are_told(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    users = people(80)
    write_tables(tmp_path, users)
    (tmp_path / "graph.toml").write_text(TOML.replace('id = "user"', 'id = "user"\ntime = "signup"'))
    command = ["--data", "tables:graph.toml", "--model", "sage", "--hidden", "4", "--epochs", "1", "--time-split", "2026-05-01,2026-09-01"]
    assert train(command) == 0
    later = sum(user["split"] == "train" and user["signup"] >= "2026-05-01" for user in users)
    warning = next(line for line in capsys.readouterr().err.splitlines() if "time_split" in line)
    assert "the transforms of age, income, country, signup were fitted when" in warning and f"on rows of which {later} are not" in warning
    for user in users:
        user["split"] = "train" if user["signup"] < "2026-05-01" else "val" if user["signup"] < "2026-09-01" else "test"
    write_tables(tmp_path, users)
    (tmp_path / "graph.toml").write_text(TOML.replace('id = "user"', 'id = "user"\ntime = "signup"'))
    assert train(command) == 0 and "time_split" not in capsys.readouterr().err


def test_several_labels_are_predicted_by_name_from_data_without_one_of_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "e.csv").write_text("src,dst\n" + "".join(f"u{node},u{(node + 5) % 12}\n" for node in range(12)))
    for name, drop in (("old", None), ("new", "blue")):
        rows = [{"id": f"u{node}", "x": node % 2, "split": ["train", "train", "val", "test"][node % 4],
                 "y": [word for word in ["blue", "red"][node % 2 : 1 + node % 3] if word != drop]} for node in range(12)]
        rows[3]["y"] = rows[3]["y"] if drop is None else None
        rows[3]["split"] = "none"
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    spec = "edges:e.csv,src=src,dst=dst,nodes={}.jsonl,id=id,labels=y,task=multilabel,split=split"
    flags = ["--model", "sage", "--hidden", "4", "--epochs", "3", "--run-dir", "run", "--threads", "1"]
    assert train(["--data", spec.format("old"), *flags]) == 0
    for name in ("old", "new"):
        assert predict(["--checkpoint", "run", "--data", spec.format(name), "--out", f"{name}.csv"]) == 0
    lines = (tmp_path / "old.csv").read_text()
    assert lines.startswith("id,label_blue,label_red,p_blue,p_red\nu0,") and (tmp_path / "new.csv").read_text() == lines

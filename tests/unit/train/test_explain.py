"""The explain command: closed forms of linear models, planted truths, and predictions on data without an edge."""

import csv
import json
import re

import numpy as np
import pyarrow.parquet
import pytest

from sarlite.cli import config, explain_command
from sarlite.cli import run as training
from sarlite.comm import Solo
from sarlite.data import load
from sarlite.errors import SarliteError
from sarlite.train import checkpoint
from tests.helpers.graph.relational_runs import relational_run
from tests.helpers.train.explaining import explain_here, of
from tests.helpers.train.predicting import predict_here
from tests.helpers.train.training_runs import DATA, SMALL, train_here

pytestmark = pytest.mark.timeout(180)
BARE = [word for word in SMALL if word not in ("--hidden", "8", "--layers", "2")]
ALL = ["--top", 10_000, "--score", "output"]


# ---- linear models, whose attributions are known


class Dense:
    """A linear model S^K X W + b of the data, with dense matrices."""

    def __init__(self, run, hops):
        tensors, about = checkpoint.load(run)
        state = {name[5:]: array for name, array in tensors.items() if name.startswith("best.")}
        data = load(DATA)
        self.hops, (self.weight, self.bias) = hops, (state[next(n for n in state if word in n)] for word in ("weight", "bias"))
        self.x = data.features.astype(np.float64)
        self.adjacency = np.zeros((300, 300))
        np.add.at(self.adjacency, (np.repeat(np.arange(300), np.diff(data.indptr)), data.indices), 1)
        self.mean = self.x[data.train].mean(0)

    def propagation(self, adjacency):
        """Return S and the part of S that the added self loops make."""
        loops = np.diag((np.diag(adjacency) == 0).astype(float))
        degrees = np.maximum((adjacency + loops).sum(1), 1)
        return (adjacency + loops) / np.sqrt(np.outer(degrees, degrees)), loops / np.sqrt(np.outer(degrees, degrees))

    def logits(self, adjacency):
        s, _ = self.propagation(adjacency)
        return np.linalg.matrix_power(s, self.hops) @ self.x @ self.weight + self.bias


@pytest.fixture(scope="module", params=["sgc", "gcn"])
def linear(request, tmp_path_factory):
    """Return a trained model without a nonlinearity: SGC of two hops, or GCN of one layer."""
    folder = tmp_path_factory.mktemp("linear") / "run"
    words = [*BARE, "--model", request.param, "--dtype", "float64", "--epochs", "5", "--run-dir", str(folder)]
    training.train(Solo(), config.parse(words + (["--layers", "1"] if request.param == "gcn" else [])))
    return folder, Dense(folder, 2 if request.param == "sgc" else 1)


def test_features_of_a_linear_model(linear, tmp_path):
    run, dense = linear
    nodes = [3, 170, 299]
    rows = explain_here(run, nodes, tmp_path / "e.csv", *ALL)
    s = np.linalg.matrix_power(dense.propagation(dense.adjacency)[0], dense.hops)
    for node in nodes:
        label = int(dense.logits(dense.adjacency)[node].argmax())
        expected = s[node] @ (dense.x - dense.mean) * dense.weight[:, label]
        for method in ("integrated gradients", "occlusion"):
            result = of(rows, "feature", method, str(node))
            assert {row["label"] for row in result} == {str(label)} and [row["rank"] for row in result] == list(range(1, 17))
            assert np.all(np.diff([abs(row["attribution"]) for row in result]) <= 0)
            by_name = {row["name"]: row["attribution"] for row in result}
            np.testing.assert_allclose([by_name[f"feature {at}"] for at in range(16)], expected, rtol=1e-10, atol=1e-10)


def test_edges_of_a_linear_model(linear, tmp_path):
    """Integrated gradients keep the degrees. Occlusion is another graph, with other degrees."""
    run, dense = linear
    node = 42
    rows = explain_here(run, [node], tmp_path / "e.csv", *ALL, "--ranks", 2)
    label, whole = int(dense.logits(dense.adjacency)[node].argmax()), dense.logits(dense.adjacency)[node]
    s, loops = dense.propagation(dense.adjacency)
    y = dense.x @ dense.weight[:, label]
    half = (s + loops) / 2  # gates of 1/2, where a gradient that is linear in the gates has its mean
    for method in ("integrated gradients", "occlusion"):
        result = of(rows, "edge", method)
        assert {row["name"] for row in result} == {"edge"} and len(result) >= 4
        for row in result:
            source, to = int(row["source"]), int(row["destination"])
            assert dense.adjacency[to, source] == 1
            if method == "occlusion":
                without = dense.adjacency.copy()
                without[to, source] = 0
                expected = whole[label] - dense.logits(without)[node, label]
            elif dense.hops == 1:
                expected = (to == node) * s[to, source] * y[source]
            else:
                expected = s[to, source] * ((to == node) * (half @ y)[source] + half[node, to] * y[source])
            assert abs(row["attribution"] - expected) < 1e-10
    assert len(of(rows, "edge")) == dense.adjacency[node].sum() if dense.hops == 1 else True


# ---- planted truths


def planted(folder):
    """Write a graph of 40 carriers of a mood, which is their label, and 160 others with the label of their one carrier."""
    rng = np.random.default_rng(1)
    moods, carriers = ["calm", "wild"] * 20, rng.integers(0, 40, 160)
    with (folder / "n.csv").open("w") as file:
        file.write("who,mood,height,width,label,split\n")
        for node in range(200):
            mood, label = moods[node] if node < 40 else "none", ["no", "yes"][(node if node < 40 else carriers[node - 40]) % 2]
            split = ("train", "val", "test")[0 if node < 140 else 1 + node % 2]
            file.write(f"n{node},{mood},{rng.normal():.3f},{rng.normal():.3f},{label},{split}\n")
    others = [(40 + source, node) for node in range(40, 200) for source in rng.choice(160, 4, replace=False)]
    with (folder / "e.csv").open("w") as file:
        file.write("source,target\n" + "".join(f"n{u},n{v}\n" for u, v in [*zip(carriers, range(40, 200)), *others]))
    (folder / "graph.toml").write_text("""
[nodes.person]
file = "n.csv"
id = "who"
features = { mood = "onehot", height = "standard", width = "standard" }
labels = "label"
split = "split"
[[edges]]
relation = ["person", "knows", "person"]
file = "e.csv"
src = "source"
dst = "target"
""")
    return {f"n{40 + at}": f"n{carrier}" for at, carrier in enumerate(carriers)}


def recall(rows, nodes, feature, method, is_planted):
    """Return the shares of nodes whose first feature, and whose first edge, is the planted one."""
    features = [of(rows, "feature", method, node)[0]["name"] == feature for node in nodes]
    return np.mean(features), np.mean([is_planted(of(rows, "edge", method, node)[0]) for node in nodes])


@pytest.fixture(scope="module")
def moods(tmp_path_factory):
    folder = tmp_path_factory.mktemp("moods")
    carriers = planted(folder)
    flags = ["--data", f"tables:{folder}/graph.toml", "--epochs", 60, "--lr", "0.05", "--model", "sage", "--dtype", "float64"]
    train_here(folder / "run", *flags)
    return folder, carriers


def test_a_planted_neighbour_and_a_planted_category_come_first(moods, tmp_path):
    folder, carriers = moods
    nodes = [f"n{node}" for node in range(140, 164)]
    rows = explain_here(folder / "run", nodes, tmp_path / "e.csv", "--steps", 16)
    for method in ("integrated gradients", "occlusion"):
        result = recall(rows, nodes, "mood", method,
                        lambda row: (row["source"], row["destination"]) == (carriers[row["node"]], row["node"]))
        assert min(result) >= 0.95, (method, result)
    columns = of(rows, "column", node=nodes[0])
    assert {row["name"] for row in columns} == {"mood=calm", "mood=none", "mood=wild"}
    whole = next(row for row in of(rows, "feature", node=nodes[0]) if row["name"] == "mood")
    assert abs(sum(row["attribution"] for row in columns) - whole["attribution"]) < 1e-12


def test_a_planted_relation_and_a_column_of_another_type_come_first(tmp_path):
    """A user has the risk of the shop. Devices and the age of the user do not matter."""
    rng = np.random.default_rng(2)
    risks, shops = rng.normal(size=30), rng.integers(0, 30, 150)
    tables = {"users.csv": ["user,age,label,split", *(f"u{at},{rng.normal():.3f},{'high' if risks[shop] > 0 else 'low'},"
                                                      f"{('train', 'train', 'val', 'test')[at % 4]}" for at, shop in enumerate(shops))],
              "shops.csv": ["shop,size,risk", *(f"s{at},{rng.normal():.3f},{risk:.3f}" for at, risk in enumerate(risks))],
              "sells.csv": ["shop,user", *(f"s{shop},u{at}" for at, shop in enumerate(shops))],
              "uses.csv": ["device,user", *(f"d{rng.integers(0, 20)},u{at}" for at in range(150) for _ in range(2))]}
    for name, lines in tables.items():
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    (tmp_path / "graph.toml").write_text("""target = "user"
[nodes.user]
file = "users.csv"
id = "user"
features = ["age"]
labels = "label"
split = "split"
[nodes.shop]
file = "shops.csv"
id = "shop"
features = ["size", "risk"]
[nodes.device]
[[edges]]
relation = ["shop", "sells", "user"]
file = "sells.csv"
src = "shop"
dst = "user"
[[edges]]
relation = ["device", "uses", "user"]
file = "uses.csv"
src = "device"
dst = "user"
""")
    relational_run(tmp_path / "run", "--data", f"tables:{tmp_path}/graph.toml", "--model", "rgcn", "--hidden", 8, "--embedding", 2,
                   "--epochs", 40, "--lr", "0.05", "--dtype", "float64", without_defaults=True)
    nodes = [f"u{at}" for at in range(3, 60, 4)]
    flags = ["--steps", 16]
    rows = explain_here(tmp_path / "run", nodes, tmp_path / "e.csv", *flags)
    for method in ("integrated gradients", "occlusion"):
        result = recall(rows, nodes, "shop.risk", method,
                        lambda row: row["name"] == "shop.sells.user" and row["destination"] == row["node"])
        assert min(result) >= 0.9, (method, result)
    names = {row["name"] for row in of(rows, "feature")}
    assert names == {"user.age", "shop.size", "shop.risk", "learned rows of device"}
    ends = {(row["source"][0], row["destination"][0]) for row in of(rows, "edge") if row["name"] == "device.uses.user"}
    assert ends == {("d", "u")}
    for ranks in (2, 3):
        again = explain_here(tmp_path / "run", nodes[:4], tmp_path / "ranks.csv", *flags, "--ranks", ranks)
        assert_same(again, [row for row in rows if row["node"] in nodes[:4]])


def assert_same(actual, expected):
    """Rows of equal attributions may be in any order."""
    def by_key(rows):
        return {tuple(row[name] for name in ("node", "label", "kind", "name", "source", "destination", "method")): row["attribution"]
                for row in rows}

    actual, expected = by_key(actual), by_key(expected)
    assert actual.keys() == expected.keys()
    np.testing.assert_allclose([actual[key] for key in expected], [*expected.values()], rtol=1e-9, atol=1e-12)


# ---- what an attribution means, on every model


MODELS = {"sage": [], "gat": ["--heads", 2, "--batch-size", 40, "--fanouts", "3,3"], "gatv2": ["--heads", 2], "gin": [],
          "gcnii": [], "appnp": ["--hops", 3], "sign": ["--hops", 2],
          "label inputs": ["--model", "gcn", "--label-inputs", 0.5]}  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("model", MODELS)
def test_attributions_add_up_on_any_number_of_ranks(model, here, tmp_path, capsys):
    run, named = tmp_path / "run", [] if model == "label inputs" else ["--model", model]
    train_here(run, "--data", DATA.replace("degree=8", "degree=3"), "--dtype", "float64", "--epochs", 3, *named, *MODELS[model])
    flags = ["--top", 10_000, "--occlude", 5, "--score", "probability"]
    rows = explain_here(run, [0, 7], tmp_path / "e.csv", *flags)
    printed = capsys.readouterr().out
    p, labels = predict_here(run, tmp_path / "p.npy")
    for node in (0, 7):
        line = re.search(rf"^{node}: probability of (\d) ([0-9.]+); without features ([0-9.]+), .*; without edges ([0-9.]+), ",
                         printed, re.M)
        assert int(line[1]) == labels[node] and abs(float(line[2]) - p[node].max()) < 1e-4
        for kind, without in (("feature", line[3]), ("edge", line[4])):
            total = sum(row["attribution"] for row in of(rows, kind, node=str(node)))
            assert abs(total - (float(line[2]) - float(without))) < 5e-3
    assert ("known label" in {row["name"] for row in of(rows, "feature")}) == (model == "label inputs")
    assert_same(explain_here(run, [0, 7], tmp_path / "f.csv", *flags, "--ranks", 3), rows)


def test_occlusion_is_the_change_of_the_prediction_without_the_edge(moods, tmp_path):
    folder, _ = moods
    rows = of(explain_here(folder / "run", ["n150"], tmp_path / "e.csv", "--score", "probability"), "edge", "occlusion")
    whole, _ = predict_here(folder / "run", tmp_path / "p.npy")
    lines = (folder / "e.csv").read_text().splitlines()
    for name in ("n.csv", "graph.toml"):
        (tmp_path / name).write_text((folder / name).read_text())
    for row in rows[:3]:
        saved = [line for line in lines if line != f"{row['source']},{row['destination']}"]
        assert len(saved) == len(lines) - 1
        (tmp_path / "e.csv").write_text("\n".join(saved) + "\n")
        less, _ = predict_here(folder / "run", tmp_path / "q.npy", "--data", f"tables:{tmp_path}/graph.toml")
        at = whole[150].argmax()
        assert abs(row["attribution"] - (whole[150, at] - less[150, at])) < 1e-12
    assert abs(rows[0]["attribution"]) > 0.05


def test_new_nodes_without_labels(moods, tmp_path, capsys):
    """The run has the transforms. No row is a training row, so the baseline is of all rows."""
    folder, _ = moods
    lines = [line.split(",") for line in (folder / "n.csv").read_text().splitlines()]
    (tmp_path / "n.csv").write_text("\n".join(",".join([*line[:4], "" if at else "label", "none" if at else "split"])
                                              for at, line in enumerate(lines)) + "\n")
    for name in ("e.csv", "graph.toml"):
        (tmp_path / name).write_text((folder / name).read_text())
    rows = explain_here(folder / "run", ["n150"], tmp_path / "o.csv", "--data", f"tables:{tmp_path}/graph.toml")
    assert "baseline: columns at their means over all nodes, because the data have no training nodes" in capsys.readouterr().out
    assert of(rows, "feature")[0]["name"] == "mood" and rows[0]["label"] in ("no", "yes")


def test_a_class_that_is_named_and_few_edges_left_out(moods, tmp_path, capsys):
    folder, _ = moods
    yes, no = (explain_here(folder / "run", ["n150"], tmp_path / "e.csv", "--label", label) for label in ("yes", "no"))
    for a, b in zip(of(yes, "feature"), of(no, "feature")):  # probabilities of two classes add up to 1
        assert a["name"] == b["name"] and abs(a["attribution"] + b["attribution"]) < 1e-9
    capsys.readouterr()
    rows = explain_here(folder / "run", ["n150"], tmp_path / "e.csv", "--occlude", 2, "--top", 5)
    assert len(of(rows, "edge", "occlusion")) == 2 and len(of(rows, "edge")) == 5
    assert "1 nodes have more edges than --occlude 2, such as n150 with" in capsys.readouterr().err


# ---- files


def test_the_page_is_escaped_and_needs_no_network(here, tmp_path):
    ids = ["<script>alert(1)</script>", "a&b", '"quoted"', *(f"n{at}" for at in range(57))]
    with (tmp_path / "n.csv").open("w") as file:
        file.write("who,<i>x</i>,kind\n")
        csv.writer(file, lineterminator="\n").writerows((part, at % 3, at % 2) for at, part in enumerate(ids))
    with (tmp_path / "e.csv").open("w") as file:
        file.write("source,target\n")
        csv.writer(file, lineterminator="\n").writerows((ids[at], ids[(at + 3) % 60]) for at in range(60))
    run = tmp_path / "run"
    train_here(run, "--data", f"edges:{tmp_path}/e.csv,nodes={tmp_path}/n.csv,labels=kind", "--epochs", 2)
    explain_here(run, [ids[0], ids[2], "n0"], tmp_path / "e2.csv", "--html", tmp_path / "e.html")
    text = (tmp_path / "e.html").read_text()
    assert "<script" not in text and "<i>" not in text and "http" not in text and "&lt;script&gt;alert" in text
    assert text.count("<h2>") == 3 and "&lt;i&gt;x&lt;/i&gt;" in text and text.count("<svg") == text.count("</svg>") >= 9


def test_the_forms_of_the_table_say_the_same(moods, tmp_path):
    folder, _ = moods
    expected = explain_here(folder / "run", ["n150", "n151"], tmp_path / "e.csv")
    for suffix in (".parquet", ".jsonl"):
        words = ["--checkpoint", folder / "run", "--nodes", tmp_path / "e.ids.txt", "--out", tmp_path / f"e{suffix}", "--threads", 1]
        assert explain_command.main([str(word) for word in words]) == 0
    assert pyarrow.parquet.read_table(tmp_path / "e.parquet").to_pylist() == expected
    assert [json.loads(line) for line in (tmp_path / "e.jsonl").read_text().splitlines()] == expected


REFUSED = {
    "nodes: line 1: no node is named 'nobody'": (["nobody"], []),
    "--nodes HERE/e.ids.txt: the file lists no node": ([], []),
    "--label maybe: the outputs are no, yes": (["n150"], ["--label", "maybe"]),
    "--top 0 is less than 1": (["n150"], ["--top", 0]),
    "--html HERE/none/e.html: cannot be written": (["n150"], ["--html", "HERE/none/e.html"]),
    "--html HERE/e.csv: this is also the file of --out": (["n150"], ["--html", "HERE/e.csv"]),
    "--html HERE/e.ids.txt: this is also the input file of --nodes": (["n150"], ["--html", "HERE/e.ids.txt"]),
    "--html HERE/link.html: cannot be written": (["n150"], ["--html", "HERE/link.html"]),
    "checkpoint HERE/e.ids.txt: ": (["n150"], ["--checkpoint", "HERE/e.ids.txt"]),
    "4 classes, 16 features": (["n150"], ["--data", DATA]),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_is_refused_and_what_stood_there_stands(message, moods, tmp_path):
    folder, _ = moods
    nodes, flags = REFUSED[message]
    (tmp_path / "e.csv").write_text("old")
    (tmp_path / "target").write_text("kept")
    (tmp_path / "link.html").symlink_to(tmp_path / "target")
    with pytest.raises(SarliteError) as caught:
        explain_here(folder / "run", nodes, tmp_path / "e.csv", *(str(flag).replace("HERE", str(tmp_path)) for flag in flags), "--ranks", 2)
    if message != "4 classes, 16 features":
        assert message.replace("HERE", str(tmp_path)) in str(caught.value)
    assert (tmp_path / "e.csv").read_text() == "old" and (tmp_path / "target").read_text() == "kept"


def test_no_output_file_and_other_endings_are_refused():
    cases = {"--out FILE or --html FILE.html is missing": [], "must end in .csv, .jsonl, .parquet": ["--out", "x.txt"]}
    for message, flags in cases.items():
        with pytest.raises(SarliteError, match=message):
            explain_command.parse(["--checkpoint", "c", "--nodes", "n", *flags])
    with pytest.raises(SarliteError, match="--nodes is missing: .*--checkpoint and --nodes"):
        explain_command.parse(["--checkpoint", "c"])


@pytest.mark.parametrize("message, flags", [
    ("the run predicts links, .*explain is for predictions of nodes", ["--task", "link"]),
    ("the model pna computes .* on the 2 hops around the node, .* on the whole graph", ["--model", "pna"]),
])  # fmt: skip
def test_runs_whose_predictions_are_not_of_a_nodes_neighbourhood_are_refused(message, flags, here, tmp_path):
    train_here(tmp_path / "run", "--epochs", 1, *flags)
    for ranks in (1, 2):
        with pytest.raises(SarliteError, match=message):
            explain_here(tmp_path / "run", [0, 1, 2], tmp_path / "e.csv", "--ranks", ranks)
    assert not (tmp_path / "e.csv").exists()


@pytest.mark.parametrize("rows", ["bfloat16", "int8"])
def test_a_run_with_narrow_rows_is_explained_with_float32_rows(rows, tmp_path):
    train_here(tmp_path / "run", "--epochs", 2, "--rows", rows)
    rows = explain_here(tmp_path / "run", [3, 5], tmp_path / "e.csv", *ALL)
    assert of(rows, "edge", node="3") and of(rows, "feature", node="3")
    np.testing.assert_allclose([row["attribution"] for row in explain_here(tmp_path / "run", [3], tmp_path / "f.csv", *ALL, "--ranks", 2)],
                               [row["attribution"] for row in rows if row["node"] == "3"], rtol=1e-3, atol=1e-5)

"""Test that data converted in another order give the same predictions, because names are matched."""

import csv

import numpy as np
import pytest

from sarlite import HeteroGraph, Tensor, nn
from sarlite.cli import config, predict_command
from sarlite.cli import run as training
from sarlite.cli.data_command import main as convert
from sarlite.comm import Solo, threads
from sarlite.data import format as native
from sarlite.data.spec import load_relational
from sarlite.errors import SarliteError
from sarlite.models import RGCN
from sarlite.structure.edges import destinations
from sarlite.train import checkpoint
from tests.helpers.graph.relational_runs import relational_run
from tests.helpers.train.training_runs import train_here

pytestmark = pytest.mark.timeout(120)

N_USERS, N_SHOPS, N_DEVICES = 60, 12, 25
SEGMENTS = ["gold", "iron", "tin"]
RNG = np.random.default_rng(3)
USERS = {"user": [f"u{at}" for at in range(N_USERS)],
         **{name: RNG.normal(size=N_USERS).round(4).tolist() for name in ("age", "income", "score")},
         "segment": [SEGMENTS[at % 3] for at in range(N_USERS)],
         "split": [("train", "train", "val", "test")[at * 7 % 10 % 4] for at in range(N_USERS)]}
SHOPS = {"shop": [f"s{at}" for at in range(N_SHOPS)]}
USES = {"who": RNG.choice(USERS["user"], 150).tolist(), "what": [f"d{at}" for at in RNG.integers(0, N_DEVICES, 150)]}
BUYS = {"who": RNG.choice(USERS["user"], 90).tolist(), "where": RNG.choice(SHOPS["shop"], 90).tolist()}
KNOWS = {"who": RNG.choice(USERS["user"], 80).tolist(), "whom": RNG.choice(USERS["user"], 80).tolist()}


def shuffled(columns, seed):
    """Return the same table with rows and columns in another order."""
    order = np.random.default_rng(seed).permutation(len(next(iter(columns.values()))))
    return {name: [columns[name][at] for at in order] for name in reversed(columns)}


def write(path, columns):
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(columns)
        rows.writerows(zip(*columns.values()))


RELATIONS = {"uses": ("user", "device", USES, "what"), "buys": ("user", "shop", BUYS, "where"), "knows": ("user", "user", KNOWS, "whom")}


def graph(folder, *, types=("user", "shop", "device"), relations=("uses", "buys", "knows"), users=USERS,
          features=("age", "income", "score"), shops=SHOPS, edges=lambda columns: columns, labels=True, target="user"):
    """Write tables into a folder and convert them to FOLDER/data."""
    folder.mkdir()
    write(folder / "users.csv", users), write(folder / "shops.csv", shops)
    labels = 'labels = "segment"\nsplit = "split"\n' if labels else ""
    tables = {"user": f'file = "users.csv"\nid = "user"\nfeatures = {list(features)}\n{labels}'.replace("'", '"'),
              "shop": 'file = "shops.csv"\nid = "shop"\nfeatures = []\n', "device": ""}
    text = f'target = "{target}"\n' + "".join(f"[nodes.{name}]\n{tables[name]}" for name in types)
    for name in relations:
        source, to, columns, end = RELATIONS[name]
        write(folder / f"{name}.csv", edges(columns))
        text += f'[[edges]]\nrelation = ["{source}", "{name}", "{to}"]\nfile = "{name}.csv"\nsrc = "who"\ndst = "{end}"\n'
    (folder / "graph.toml").write_text(text)
    assert convert(["convert", f"tables:{folder}/graph.toml", str(folder / "data"), "--allow-empty", "all"]) == 0
    return folder / "data"


def predicted(run, out, *flags, ranks=1):
    """Return the rows of a table of predictions, keyed by node id."""
    words = ["--checkpoint", run / "checkpoint.safetensors", "--out", out, "--threads", 1, "--progress", "none", "--ranks", ranks, *flags]
    options, predict_options = predict_command.parse([str(word) for word in words])
    arguments = predict_command.predict, options, predict_options
    threads.run(ranks, *arguments) if ranks > 1 else predict_command.predict(Solo(), *arguments[1:])
    with out.open(newline="") as file:
        return {row.pop("id"): row for row in csv.DictReader(file)}


def assert_same(actual, expected, rtol=1e-9):
    assert actual.keys() <= expected.keys() and actual
    for node, row in actual.items():
        assert row.keys() == expected[node].keys() and row["class"] == expected[node]["class"]
        numbers = [[float(values[name]) for name in row if name.startswith("p_")] for values in (row, expected[node])]
        np.testing.assert_allclose(*numbers, rtol=rtol, atol=1e-12, err_msg=node)


MODELS = {"rgat": ["--model", "rgat", "--hidden", 3, "--heads", 2], "rgcn": ["--model", "rgcn", "--hidden", 5],
          "bases": ["--model", "rgcn", "--hidden", 5, "--n-bases", 2]}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Train a run of each model on the tables in their first order."""
    folder = tmp_path_factory.mktemp("named")
    data = graph(folder / "first")
    for name, flags in MODELS.items():
        relational_run(folder / name, "--data", data, "--epochs", 4, "--embedding", 4, *flags)
    return folder


@pytest.mark.parametrize("model", MODELS)
def test_any_order_of_what_has_a_name_predicts_the_same(model, runs, tmp_path, capsys):
    """Rows, columns, types, relations and edges have another order, and there are further ones, on 1 and 3 ranks."""
    expected = predicted(runs / model, tmp_path / "one.csv")
    users = {"visits": [7.0] * N_USERS, **USERS}
    other = graph(tmp_path / "second", types=("device", "shop", "user"), relations=("knows", "buys", "uses"), users=shuffled(users, 0),
                  features=("score", "visits", "age", "income"), shops=shuffled(SHOPS, 1), edges=lambda columns: shuffled(columns, 2))
    old, here = (native.open(folder) for folder in (runs / "first" / "data", other))
    assert [*old.nodes] != [*here.nodes] and [*old.edges] != [*here.edges]
    assert not np.array_equal(old.nodes["shop"].names["bytes"], here.nodes["shop"].names["bytes"])
    for ranks in (1, 3):
        capsys.readouterr()
        assert_same(predicted(runs / model, tmp_path / "two.csv", "--data", other, ranks=ranks), expected)
        assert f"data {other}: type user: features: columns left out, as the model does not take them: 'visits'" in capsys.readouterr().err


def test_a_type_and_a_relation_that_the_model_lacks_are_left_out(tmp_path, capsys):
    first = graph(tmp_path / "first", types=("user", "device"), relations=("uses",))
    relational_run(tmp_path / "run", "--data", first, "--epochs", 3, "--embedding", 4, *MODELS["rgat"])
    expected = predicted(tmp_path / "run", tmp_path / "one.csv")
    more = graph(tmp_path / "more", types=("shop", "user", "device"), relations=("buys", "uses"))
    capsys.readouterr()
    assert_same(predicted(tmp_path / "run", tmp_path / "two.csv", "--data", more), expected)
    err = capsys.readouterr().err
    assert f"data {more}: node types left out, as the model does not take them: shop\n" in err
    assert f"data {more}: relations left out, as the model does not take them: user.buys.shop, shop.rev_buys.user\n" in err


LACKING = {
    "type user: features: columns: no 'income', which the model takes; the data have 'age', 'score'": {"features": ("age", "score")},
    "node types: no shop, which the model takes; the data have user, device": {"types": ("user", "device"), "relations": ("uses", "knows")},
    "relations: no user.knows.user, which the model takes; the data have": {"relations": ("uses", "buys")},
    "target: 'device', but the model is for nodes of type 'user'": {"labels": False, "target": "device"},
    "have labels that are not among its classes, gold, iron, tin: lead": {"users": {**USERS, "segment": ["lead", *USERS["segment"][1:]]}},
}


def test_what_lacks_is_refused_by_name(runs, tmp_path):
    for at, (message, changes) in enumerate(LACKING.items()):
        other = graph(tmp_path / str(at), **changes)
        for ranks in (1, 2):
            with pytest.raises(SarliteError) as refusal:
                predicted(runs / "rgat", tmp_path / "x.csv", "--data", other, ranks=ranks)
            assert message in str(refusal.value)
    assert not (tmp_path / "x.csv").exists()


def test_data_with_some_of_the_classes(runs, tmp_path):
    """The data lack a class, so that their labels have other numbers than the model's classes."""
    users = {**USERS, "segment": ["" if name == "gold" else name for name in USERS["segment"]],
             "split": ["none" if name == "gold" else split for name, split in zip(USERS["segment"], USERS["split"])]}
    some = graph(tmp_path / "some", users=users)
    assert native.open(some).class_names == ["iron", "tin"]
    assert_same(predicted(runs / "rgcn", tmp_path / "two.csv", "--data", some), predicted(runs / "rgcn", tmp_path / "one.csv"))


def test_shown_labels_are_matched_by_name(tmp_path):
    """Labels of training nodes are inputs, so a wrongly numbered class would change the outputs."""
    def tables(folder, segment):
        folder.mkdir()
        splits = [split if name else "none" for name, split in zip(segment, USERS["split"])]
        write(folder / "u.csv", {**USERS, "segment": segment, "split": splits}), write(folder / "e.csv", KNOWS)
        return f"edges:{folder}/e.csv,src=who,dst=whom,nodes={folder}/u.csv,id=user,features=age+income+score,labels=segment,split=split"

    gold_is_tested_on = ["gold" if split == "test" and at % 20 == 9 else ("iron", "tin")[at % 2] for at, split in enumerate(USERS["split"])]
    assert gold_is_tested_on.count("gold") == 3
    train_here(tmp_path / "run", "--data", tables(tmp_path / "a", gold_is_tested_on), "--model", "gcn", "--label-inputs", "0.5",
               "--dtype", "float64", "--epochs", 4)
    other = tables(tmp_path / "b", ["" if name == "gold" else name for name in gold_is_tested_on])
    assert_same(predicted(tmp_path / "run", tmp_path / "two.csv", "--data", other), predicted(tmp_path / "run", tmp_path / "one.csv"))


# ---- learned rows


def renamed(names):
    return lambda columns: {**columns, "what": [names.get(name, name) for name in columns["what"]]} if "what" in columns else columns


def test_learned_rows_go_to_the_nodes_of_their_names(runs, tmp_path, capsys):
    """Nodes without a table are numbered by hash, so a new name moves half of the nodes; it gets the mean row."""
    other = graph(tmp_path / "other", edges=renamed({"d3": "new 1", "d9": "new 2"}))
    old, here = (native.open(folder).nodes["device"] for folder in (runs / "first" / "data", other))
    names = [_names(table) for table in (old, here)]
    moved = np.count_nonzero([a != b for a, b in zip(*names)])
    assert moved > 5 and {*names[1]} - {*names[0]} == {"new 1", "new 2"}
    tensors, _ = checkpoint.load(runs / "rgcn" / "checkpoint.safetensors")
    table = next(name for name in tensors if name.startswith("best.") and "embeddings.device" in name)
    mean = tensors[table].mean(0)
    expected = {name: row for name, row in zip(names[0], tensors[table])}
    for ranks in (1, 3):
        rows = _restored(runs / "rgcn", other, ranks)
        for name, row in rows.items():
            np.testing.assert_allclose(row, expected.get(name, mean), rtol=1e-12, atol=1e-15, err_msg=name)
        capsys.readouterr()
        predicted(runs / "rgcn", tmp_path / f"{ranks}.csv", "--data", other, ranks=ranks)
        warning = f"learned rows of type device: 2 of {len(names[1])} nodes have none in the checkpoint; each gets the mean row\n"
        assert warning in capsys.readouterr().err
    one, three = ({row[0]: row for row in csv.reader((tmp_path / f"{ranks}.csv").open())} for ranks in (1, 3))
    assert one.keys() == three.keys()
    assert all(one[node][1] == three[node][1] and np.allclose([*map(float, one[node][2:])], [*map(float, three[node][2:])], rtol=1e-9)
               for node in one if node != "id")


def _names(table):
    text, ends = bytes(table.names["bytes"]), table.names["ends"]
    return [text[a:b].decode() for a, b in zip(ends, ends[1:])]


def _restored(run, data, ranks):
    """Return the learned rows of devices in the model of the predict command, keyed by name."""
    restored, restore = {}, checkpoint.restore_model
    names = _names(native.open(data).nodes["device"])

    def keeping(comm, model, *arguments):
        matched = restore(comm, model, *arguments)
        weight = dict(model.named_parameters())["inputs.embeddings.device.weight"]
        restored.update({names[at]: row.copy() for at, row in zip(weight.ids, weight.data)})
        return matched

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "restore_model", keeping)
        predicted(run, data.parent / "r.csv", "--data", data, ranks=ranks)
    assert len(restored) == len(names)
    return restored


def test_rows_without_names_are_matched_by_position_and_that_is_said(tmp_path, capsys):
    spec = "relational:nodes=300,edges=2000,classes=3,features=4,noise=2,train=0.3,seed=1"
    relational_run(tmp_path / "run", "--data", spec, "--model", "rgcn", "--hidden", 4)
    predicted(tmp_path / "run", tmp_path / "a.csv")
    assert "position" not in capsys.readouterr().err
    assert convert(["convert", spec, str(tmp_path / "same")]) == 0
    predicted(tmp_path / "run", tmp_path / "b.csv", "--data", tmp_path / "same", ranks=2)
    assert "matched by position, because the data have no names of nodes" in capsys.readouterr().err
    with pytest.raises(SarliteError, match="weight': .*nodes here, .*rows in the checkpoint, .*no node names"):
        predicted(tmp_path / "run", tmp_path / "c.csv", "--data", spec.replace("nodes=300", "nodes=360"), ranks=2)


def test_resuming_takes_columns_by_name_and_refuses_other_nodes(runs, tmp_path):
    """A run resumes on data with columns and relations in another order, but not with another node name."""
    options = ["--threads", "1", "--progress", "none", "--epochs", "6"]

    def resumed(data, name):
        words = [*options, "--resume", runs / "rgat" / "checkpoint.safetensors", "--data", data, "--run-dir", tmp_path / name]
        training.train(Solo(), config.parse([str(word) for word in words]))
        return checkpoint.load(tmp_path / name / "checkpoint.safetensors")[0]

    straight = resumed(runs / "first" / "data", "a")
    users = {name: USERS[name] for name in reversed(USERS)}
    other = resumed(graph(tmp_path / "second", relations=("knows", "uses", "buys"), users=users, features=("score", "income", "age")), "b")
    assert straight.keys() == other.keys()
    for name, array in straight.items():
        np.testing.assert_array_equal(other[name], array, err_msg=name)
    with pytest.raises(SarliteError, match="'inputs.embeddings.shop.weight': 1 nodes .*no row"):
        resumed(graph(tmp_path / "third", shops={"shop": ["another", *SHOPS["shop"][1:]]},
                      edges=lambda columns: {**columns, "where": ["another" if name == "s0" else name for name in columns["where"]]}
                      if "where" in columns else columns), "c")
    with pytest.raises(SarliteError, match="its class 'gold' is 'copper' in --data"):
        resumed(graph(tmp_path / "fourth", users={**USERS, "segment": [name.replace("gold", "copper") for name in USERS["segment"]]}), "d")


# ---- features of edges


def test_features_of_edges_are_matched_by_name(tmp_path, capsys):
    n = len(KNOWS["who"])
    edges = {**KNOWS, "since": RNG.normal(size=n).round(4).tolist(), "often": RNG.normal(size=n).round(4).tolist(), "odd": [1.0] * n}

    def tables(folder, columns, names):
        folder.mkdir()
        write(folder / "u.csv", USERS), write(folder / "e.csv", columns)
        return (f"edges:{folder}/e.csv,src=who,dst=whom,nodes={folder}/u.csv,id=user,features=age+income,labels=segment,split=split,"
                f"edge_features={names}")

    train_here(tmp_path / "run", "--data", tables(tmp_path / "a", edges, "since+often"), "--model", "gat", "--heads", 2, "--edge-features",
               "--dtype", "float64", "--epochs", 4)
    expected = predicted(tmp_path / "run", tmp_path / "one.csv")
    other = tables(tmp_path / "b", shuffled(edges, 4), "odd+often+since")
    for ranks in (1, 3):
        capsys.readouterr()
        assert_same(predicted(tmp_path / "run", tmp_path / "two.csv", "--data", other, ranks=ranks), expected)
        assert "edge features: columns left out, as the model does not take them: 'odd'\n" in capsys.readouterr().err
    with pytest.raises(SarliteError, match="edge features: columns: no 'often', .*'since', 'odd'"):
        predicted(tmp_path / "run", tmp_path / "x.csv", "--data", tables(tmp_path / "c", edges, "since+odd"))


# ---- rows of decoders of several relations


def test_rows_of_a_decoder_are_of_relations_by_name(tmp_path):
    """--link-relation all has the relations in the order of the training data."""
    kinds = {"relations": ("uses", "buys"), "types": ("user", "shop", "device")}
    first = graph(tmp_path / "first", **kinds)
    relational_run(tmp_path / "run", "--data", first, "--model", "rgcn", "--hidden", 5, "--embedding", 4,
                   "--task", "link", "--link-relation", "all", "--decoder", "distmult", "--link-width", 4, "--link-val", "0.1",
                   "--link-test", "0.1")
    second = graph(tmp_path / "second", relations=("buys", "uses"), types=("device", "user", "shop"))
    pairs = {"source": ["u1", "u2", "u3"], "relation": ["user.uses.device", "user.buys.shop", "user.uses.device"],
             "destination": ["d1", "s2", "d3"]}
    write(tmp_path / "pairs.csv", pairs)
    scores = []
    for data in (first, second):
        words = ["--checkpoint", tmp_path / "run" / "checkpoint.safetensors", "--out", tmp_path / "x.csv", "--data", data, "--links",
                 tmp_path / "pairs.csv", "--threads", 1, "--progress", "none"]  # fmt: skip
        predict_command.predict(Solo(), *predict_command.parse([str(word) for word in words]))
        with (tmp_path / "x.csv").open() as file:
            scores.append([float(row["score"]) for row in csv.DictReader(file)])
    np.testing.assert_allclose(scores[1], scores[0], rtol=1e-9)


# ---- rows of layers


def layer_rows(run, folder, *flags, ranks=1, suffix=".csv"):
    words = ["--checkpoint", run / "checkpoint.safetensors", "--out", folder / f"rows{suffix}", "--threads", 1, "--progress", "none",
             "--ranks", ranks, *flags]  # fmt: skip
    options, predict_options = predict_command.parse([str(word) for word in words])
    arguments = predict_command.predict, options, predict_options
    threads.run(ranks, *arguments) if ranks > 1 else predict_command.predict(Solo(), *arguments[1:])
    with (folder / f"rows{suffix}").open() as file:
        return {row.pop("id"): [float(value) for value in row.values()] for row in csv.DictReader(file)}


def test_rows_of_a_layer_of_each_type_with_ids(runs, tmp_path):
    """The rows equal the rows of the model in Python, whose layers are called one after the other."""
    data = load_relational(runs / "first" / "data")
    edges = {relation: (table.indices, destinations(table.indptr)) for relation, table in data.edges.items()}
    graph = HeteroGraph.from_edges(edges, data.n_nodes_by_type)
    model = RGCN({"user": 3}, 3, graph.of("user"), hidden=5, embedding=4, rng=nn.Random(5), dtype=np.float64).eval()
    tensors, _ = checkpoint.load(runs / "rgcn" / "checkpoint.safetensors")
    model.load_state_dict({name[5:]: array for name, array in tensors.items() if name.startswith("best.")})
    first = {"user": Tensor(np.asarray(data.nodes["user"].features, np.float64), constant=True)}
    h = model.convs[0](graph, model.inputs(first))
    h = {name: model.activations[0][name](h[name], graph.of(name)).data for name in model.activations[0]}
    for node_type, flags in (("device", ["--type", "device"]), ("shop", ["--type", "shop"]), ("user", [])):
        names = _names(data.nodes[node_type])
        for ranks in (1, 3):
            rows = layer_rows(runs / "rgcn", tmp_path, "--embeddings", 1, *flags, ranks=ranks)
            assert [*rows] == names
            np.testing.assert_allclose([*rows.values()], h[node_type], rtol=1e-9, atol=1e-12)
    logits = layer_rows(runs / "rgcn", tmp_path, "--embeddings", 2, ranks=2)
    np.testing.assert_allclose([*logits.values()], model(graph.of("user"), first).data, rtol=1e-9, atol=1e-12)
    (tmp_path / "some.txt").write_text("d3\nd1\n")
    some = layer_rows(runs / "rgcn", tmp_path, "--embeddings", 1, "--type", "device", "--nodes", tmp_path / "some.txt")
    assert [*some] == ["d3", "d1"]
    np.testing.assert_allclose(some["d3"], h["device"][_names(data.nodes["device"]).index("d3")], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("flags, message", [
    (["--embeddings", "2", "--type", "device"], "--type device: layer 2 of the model rgcn computes only the rows"),
    (["--embeddings", "1", "--type", "item"], "--type item: the node types are user, shop, device"),
    (["--embeddings", "3"], "--embeddings 3: the model rgcn has 2 layers"),
    (["--type", "user"], "--type user has no effect without --embeddings"),
])  # fmt: skip
def test_types_and_layers_that_are_none_are_refused(flags, message, runs, tmp_path):
    with pytest.raises(SarliteError) as refusal:
        layer_rows(runs / "rgcn", tmp_path, *flags, ranks=2)
    assert message in str(refusal.value)


def test_rows_of_both_ends_of_links(tmp_path):
    first = graph(tmp_path / "first", relations=("uses",), types=("user", "device"))
    relational_run(tmp_path / "run", "--data", first, "--model", "rgcn", "--hidden", 5, "--embedding", 4, "--task", "link",
                   "--link-relation", "user.uses.device", "--link-width", 3, "--link-val", "0.1", "--link-test", "0.1")
    for node_type, n in (("user", N_USERS), ("device", len(set(USES["what"])))):
        one, three = (layer_rows(tmp_path / "run", tmp_path, "--embeddings", 2, "--type", node_type, ranks=ranks) for ranks in (1, 3))
        assert [*one] == [*three] and len(one) == n
        np.testing.assert_allclose([*three.values()], [*one.values()], rtol=1e-9, atol=1e-12)
    with pytest.raises(SarliteError, match="--embeddings 2: .*--type, .*user, device"):
        layer_rows(tmp_path / "run", tmp_path, "--embeddings", 2)

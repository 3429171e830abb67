"""Tables by columns: names and numbers, weights, features, missing labels, in every format and in either memory."""

import csv
from argparse import ArgumentTypeError

import numpy as np
import pytest

from sarlite.cli.data_command import main
from sarlite.command import count
from sarlite.data import format, from_tables, load
from sarlite.data.names import Names
from sarlite.data.tables.sources import connect, read
from sarlite.data.tables.text_form import Reading, quote
from sarlite.errors import ConfigError, DataError
from tests.helpers.train.data_files import RELATIONS

EMPTY = ("train", "val", "test")
USERS = ["ann", "bob", "cas", "dan", "eve", "fay"]
NODES = {"user": USERS, "age": [1.0, 2, 3, 4, 5, 6], "city": list("xyzxyz"), "vip": [True, False] * 3,
         "segment": ["gold", None, "iron", "gold", "iron", "gold"], "part": ["train", None, "val", "test", "train", "none"]}
EDGES = {"source": ["ann", "bob", "ann", "eve"], "target": ["bob", "cas", "eve", "ann"], "amount": [0.5, 1.5, 2.5, 3.5],
         "since": [1, 2, 3, 4]}
COLUMNS = "src=source,dst=target,weight=amount,edge_features=since"
OF_NODES = "id=user,labels=segment,split=part"


def text(path, columns, delimiter=","):
    rows = zip(*([("" if value is None else str(value)) for value in column] for column in columns.values()))
    path.write_text("".join(f"{delimiter.join(row)}\n" for row in [columns, *rows]))


@pytest.fixture
def files(tmp_path, monkeypatch):
    text(tmp_path / "e.csv", EDGES)
    text(tmp_path / "n.csv", NODES)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def words_of(path, columns):
    with connect() as connection:
        table = read(connection, path, Reading(), columns, "table")
        return [[word for (some,) in table.batches(quote(name)) for word in some.to_pylist()] for name in columns]


def check(data):
    assert data.indptr.tolist() == [0, 1, 2, 3, 3, 4, 4] and data.indices.tolist() == [4, 0, 1, 0]
    assert data.edge_weight.tolist() == [3.5, 0.5, 1.5, 2.5] and data.edge_features.tolist() == [[4], [1], [2], [3]]
    assert data.features.tolist() == [[age, vip] for age, vip in zip(NODES["age"], [1, 0] * 3)]
    assert data.labels.tolist() == [0, -1, 1, 0, 1, 0] and data.class_names == ["gold", "iron"]
    assert data.train.tolist() == [True, False, False, False, True, False] and data.val.tolist().index(True) == 2
    return data


def test_text_is_read_alike_in_either_memory(files, tmp_path):
    text(files / "n.tsv", NODES, "\t")  # with words True and False, as pandas writes columns of bool
    spec = f"edges:e.csv,{COLUMNS},nodes=n.tsv,{OF_NODES}"
    one = check(load(spec))
    (tmp_path / "runs").mkdir()
    two = load(spec, folder=tmp_path / "runs", n_bytes=1 << 16, allow_empty=("train", "val", "test"))
    assert check(two).equals(one) and isinstance(two.edge_weight, np.memmap)
    assert {name: array.tolist() for name, array in two.target_nodes.names.items()} == {
        name: array.tolist() for name, array in one.target_nodes.names.items()}


def test_convert_keeps_ids_and_classes(files, capsys):
    text(files / "n.csv", {**NODES, "vip": [1, 0] * 3})
    assert main(["convert", f"edges:e.csv,{COLUMNS},nodes=n.csv,{OF_NODES}", "d"]) == 0, capsys.readouterr().err
    check(format.open("d", verify=True).check())
    assert Names("d").of(range(6)) == USERS
    assert main(["partition", "d", "--parts", "2", "--method", "random"]) == 0
    assert format.open("d").class_names == ["gold", "iron"]


@pytest.mark.parametrize("kind", ["parquet", "arrow", "pandas", "polars", "pyarrow", "dict"])
def test_every_kind_of_table_gives_the_same_data(files, kind):
    arrow = None if kind == "dict" else pytest.importorskip("pyarrow", reason="tables of Arrow need pyarrow")
    if kind in ("parquet", "arrow"):
        from pyarrow import feather, parquet

        for name, columns in (("e", EDGES), ("n", NODES)):
            write = parquet.write_table if kind == "parquet" else feather.write_feather
            write(arrow.table(columns), f"{name}.{kind}")
        check(load(f"edges:e.{kind},{COLUMNS},nodes=n.{kind},{OF_NODES}"))
        return
    make = dict if kind == "dict" else arrow.table if kind == "pyarrow" else pytest.importorskip(
        kind, reason=f"tables of {kind} need {kind}").DataFrame
    edges = {"relation": ["user", "follows", "user"], "file": make(EDGES), "src": "source", "dst": "target",
             "weight": "amount", "features": ["since"]}
    nodes = {"file": make(NODES), "id": "user", "labels": "segment", "split": "part"}
    check(from_tables({"nodes": {"user": nodes}, "edges": [edges]}))


def test_numbers_missing_in_features(files):
    text(files / "n.csv", {"user": USERS, "age": [1, None, 3, "nan", 5, "NULL"], "segment": [0, "", 1, 1, "NaN", 1]})
    spec = f"edges:e.csv,{COLUMNS},nodes=n.csv,features=age,labels=segment"
    with pytest.raises(DataError, match="n.csv: row 1, column 'age': no value; fill=0 or fill=mean"):
        load(spec)
    data = load(f"{spec},fill=mean", allow_empty=EMPTY)
    ages = np.array([1, np.nan, 3, np.nan, 5, np.nan])
    mean = np.nanmean(ages[data.train])
    assert mean != 3 and data.features.ravel().tolist() == np.where(np.isnan(ages), mean, ages).tolist()
    data = load(f"{spec},fill=0", allow_empty=EMPTY)
    assert data.features.ravel().tolist() == [1, 0, 3, 0, 5, 0] and data.labels.tolist() == [0, -1, 1, 1, -1, 1]


def test_words_true_and_false_are_numbers_where_numbers_are_asked_for(files):
    (files / "b.csv").write_text("id,vip,a,b\nx,TRUE,false,1\ny,,True,0\nz,False,True,\n")
    spec = "edges:f.csv,src=source,dst=target,nodes=b.csv,id=id"
    (files / "f.csv").write_text("source,target\nx,y\n")
    data = load(f"{spec},features=vip,fill=0,labels=a+b,task=multilabel", allow_empty=EMPTY)
    assert data.features.tolist() == [[1], [0], [0]] and data.labels.tolist() == [[0, 1], [1, 0], [1, 255]]
    assert load(f"{spec},features=b,fill=0,labels=a", allow_empty=EMPTY).class_names == ["True", "false"]  # words


def test_dates_are_no_features_and_are_refused_where_they_are_asked_for():
    edges = {"relation": ["user", "follows", "user"], "file": EDGES, "src": "source", "dst": "target"}
    nodes = {"file": {"user": USERS, "day": np.arange(6).astype("datetime64[D]"), "age": range(6)}, "id": "user"}
    assert from_tables({"nodes": {"user": nodes}, "edges": [edges]}).features.ravel().tolist() == [*range(6)]
    with pytest.raises(DataError, match="column 'day' is of dates; convert the column first"):
        from_tables({"nodes": {"user": {**nodes, "features": ["day"]}}, "edges": [edges]})
    with pytest.raises(ConfigError, match=r"edges 0: relation: 'follows' is not a list of .*, such as \["):
        from_tables({"nodes": {"user": nodes}, "edges": [{**edges, "relation": "follows"}]})


def test_columns_parted_by_semicolons_and_splits_that_are_empty(files):
    (files / "s.csv").write_text("who;whom;kilo grams\nann;bob;2.5\nbob;ann;1\n")
    with pytest.raises(DataError, match="train split is empty, .*--allow-empty train --allow-empty test"):
        load("edges:s.csv,src=who,dst=whom", allow_empty=["val"])
    assert load("edges:s.csv,src=who,dst=whom,weight=kilo grams", allow_empty=EMPTY).edge_weight.tolist() in ([2.5, 1], [1, 2.5])


@pytest.mark.parametrize("line", ['"{}","{}",{}', '{},"{}",{}', '"{}",{},"{}"', '"{},",{},{}', '"{}""",{},{}', "{},{},{}"])
def test_words_in_quotes_are_those_of_csv(files, line):
    path = files / "q.csv"
    path.write_text("a,b,w\n" + "".join(f"{line.format(f'é{k}', f'x{k}', k)}\n" for k in range(99)) + '"o\nx",b,1')
    expected = list(zip(*list(csv.reader(path.open(newline="")))[1:]))
    assert words_of(path, ["a", "b", "w"]) == [*map(list, expected)]
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-2]))  # lines that look alike
    assert words_of(path, ["b", "a"]) == [list(expected[column][:-1]) for column in (1, 0)]


def test_ids_of_edges_alone_are_words_or_numbers(files):
    (files / "w.txt").write_text("ann bob\nbob ann\n")
    with pytest.raises(DataError, match="w.txt: the first line, 'ann bob', .*header=true"):
        load("edges:w.txt", allow_empty=EMPTY)
    assert load("edges:w.txt,header=false", allow_empty=EMPTY).n_edges == 2
    assert load("edges:w.txt,header=true", allow_empty=EMPTY).n_edges == 1
    (files / "i.csv").write_text("a,b,w\n0,2,0.5\n1,2,1.5\n")
    data = load("edges:i.csv,src=a,dst=b,weight=w", allow_empty=EMPTY)
    assert data.n_nodes == 3 and not data.target_nodes.names and data.edge_weight.tolist() == [0.5, 1.5]
    assert load("edges:i.csv,src=a,dst=b,features=w", allow_empty=EMPTY).edge_features.tolist() == [[0.5], [1.5]]


@pytest.mark.parametrize("spec, error, message", [
    ("edges:e.csv", DataError, "e.csv: edges: name the columns of the ends among source, target, amount, since: src=source,dst=target"),
    ("edges:e.csv,src=sorce,dst=target", DataError, "e.csv: no column 'sorce': there are source, .*; did you mean source"),
    ("edges:e.csv,src=source,dst=target,nodes=gone.csv", DataError, "gone.csv: no such file"),
    ("edges:gone.csv", DataError, "gone.csv: no such file"),
    ("gone", DataError, "^gone: no such directory in .*; --data takes a directory that convert wrote"),
    ("e.csv", DataError, "e.csv is a file; where it holds edges, edges:e.csv reads it"),
    ("g.toml", DataError, "g.toml is a file; where it names tables, tables:g.toml reads it"),
    ("edges:e.csv,src=source,dst=a, b", ConfigError, "' b': unknown for edges; .*; a file of tables:FILE.toml names columns with commas"),
    ("edges:latin.csv", DataError, "latin.csv: line 2: cannot be read: it is not UTF-8; text is read in UTF-8"),
    (f"edges:e.csv,{COLUMNS},nodes=n.csv,features=city", DataError, "column 'city': 'x' is not a number; .*; features=city:onehot makes"),
    (f"edges:e.csv,{COLUMNS},nodes=n.csv,split=part", ConfigError, "a split, masks and a task need labels=COLUMN"),
    (f"edges:e.csv,{COLUMNS},nodes=n.csv,labels=segment,split=city", DataError, "n.csv: row 0, column 'city': 'x' is not one of train"),
    (f"edges:e.csv,{COLUMNS},nodes=few.csv", DataError, "e.csv: row 1, column 'target': 'cas' is not in few.csv, column 'user'"),
    (f"edges:e.csv,{COLUMNS},nodes=twice.csv", DataError, "twice.csv: row 2, column 'user': 'ann' is the id of row 0, too"),
    (f"edges:e.csv,{COLUMNS},nodes=none.csv", DataError, "none.csv: row 1, column 'user': no id"),
    (f"edges:e.csv,{COLUMNS},id=user", ConfigError, "id: needs nodes=FILE, a table of the nodes"),
    (f"edges:e.csv,{COLUMNS},nodes=n.csv,fill=median", DataError, "fill: 'median' is not one of 0, mean"),
    ("edges:u.csv,src=a,dst=b", DataError, "u.csv: row 65536, column 'b': '1_0' is not a node number, but other ids are; names=edges"),
    ("edges:r.csv,src=a,dst=b", DataError, "r.csv: line 3: 3 words, expected 2: 0,1,2"),
])  # fmt: skip
def test_what_is_refused_is_named(files, spec, error, message):
    for name, users in (("few", ["ann", "bob", "eve"]), ("twice", ["ann", "bob", "ann"]), ("none", ["ann", "", "bob"])):
        text(files / f"{name}.csv", {"user": users, "x": [1] * 3})
    (files / "u.csv").write_text("a,b\n" + "0,1\n" * 65536 + "0,1_0\n")
    (files / "r.csv").write_text("a,b\n0,1\n0,1,2\n")
    (files / "g.toml").touch()
    (files / "latin.csv").write_bytes("a,b\nZoë,1\n".encode("latin-1"))
    with pytest.raises(error, match=message):
        load(spec, allow_empty=EMPTY)


def test_relations_of_a_toml(files, tmp_path, capsys):
    (files / "b.csv").write_text("who,where\nann,kiosk\nfay,mall\nbob,kiosk\n")
    (files / "g.toml").write_text(RELATIONS)
    data = load("tables:g.toml", relational=True)
    assert [*data.edges] == [("user", "follows", "user"), ("user", "buys_at", "shop"), ("user", "rev_follows", "user")]
    assert data.n_nodes_by_type == {"user": 6, "shop": 2} and data.class_names == ["gold", "iron"]
    back, forward = (data.edges["user", name, "user"] for name in ("rev_follows", "follows"))
    assert forward.edge_weight.tolist() == [3.5, 0.5, 1.5, 2.5] and back.edge_weight.tolist() == [0.5, 2.5, 1.5, 3.5]
    for memory in ([], ["--memory", "4GiB"]):
        assert main(["convert", "tables:g.toml", "d", "--overwrite", *memory]) == 0, capsys.readouterr().err
        assert format.open("d", verify=True).check().equals(data)
        shops = Names("d", "shop").of([0, 1])
        bought = format.open("d").edges["user", "buys_at", "shop"]
        assert dict(zip(shops, np.split(bought.indices, bought.indptr[1:-1]))).keys() == {"kiosk", "mall"}
        kiosk = shops.index("kiosk")
        assert bought.indices[bought.indptr[kiosk] : bought.indptr[kiosk + 1]].tolist() == [0, 1]


@pytest.mark.parametrize("old, new, message", [
    ('id = "user"', 'ids = "user"', "g.toml: nodes.user: 'ids': unknown; known are .*; did you mean id"),
    ('"shop"]', '"mall"]', "g.toml: edges 1: relation: node type 'mall' is not one of user, shop"),
    ('target = "user"', 'target = "shop"', "g.toml: target: 'shop', but types with labels: user; the target is one of"),
    ("[nodes.shop]", '[nodes.shop]\nid = "x"', "g.toml: nodes.shop: id: needs file=, a table of the nodes"),
])  # fmt: skip
def test_a_toml_that_is_wrong(files, old, new, message):
    (files / "g.toml").write_text(RELATIONS.replace(old, new, 1))
    with pytest.raises(ConfigError, match=message):
        load("tables:g.toml", relational=True)


def test_many_parts_of_few_nodes_warn(files, capsys):
    assert main(["convert", f"edges:e.csv,{COLUMNS},nodes=n.csv,{OF_NODES}", "d"]) == 0
    assert main(["partition", "d", "--parts", "1", "--method", "random"]) == 0 and "warning" not in capsys.readouterr().err
    assert main(["partition", "d", "--parts", "2", "--method", "random"]) == 0
    assert "warning: --parts 2: fewer than ten nodes per part, of 6 nodes; one part is enough\n" in capsys.readouterr().err


@pytest.mark.parametrize("word, number", [("2e9", 2 * 10**9), ("1.5E3", 1500), ("17", 17), ("1.50e1", 15)])
def test_counts_in_scientific_notation(word, number):
    assert count(word) == number


@pytest.mark.parametrize("word", ["1.5", "1.55e1", "-3", "e9", "1_000", "many"])
def test_what_is_no_count(word):
    with pytest.raises(ArgumentTypeError, match="is not a whole number, such as"):
        count(word)


def test_names_of_columns_stay_with_the_data(tmp_path):
    """Names survive a conversion, a division and a copy; a column of lists has a name for each of its numbers."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    nodes = {"who": ["a", "b", "c"], "age": [1.0, 2.0, 3.0], "v": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]}
    parquet.write_table(pyarrow.table(nodes), tmp_path / "n.parquet")
    (tmp_path / "e.csv").write_text("source,target,since,often\na,b,1,2\nb,c,3,4\n")
    spec = f"edges:{tmp_path}/e.csv,src=source,dst=target,nodes={tmp_path}/n.parquet,features=v+age,edge_features=often+since"
    empty = ["--allow-empty", "all"]
    assert main(["convert", spec, str(tmp_path / "d"), *empty]) == 0
    assert main(["partition", str(tmp_path / "d"), "--parts", "2", "--method", "contiguous"]) == 0
    assert main(["convert", str(tmp_path / "d"), str(tmp_path / "copy"), *empty]) == 0
    for folder in ("d", "copy"):
        dataset = format.open(tmp_path / folder)
        assert dataset.target_nodes.feature_names == ["v.0", "v.1", "age"]
        assert dataset.one_relation.feature_names == ["often", "since"]
    assert format.open(tmp_path / "d").features[0].tolist() == [1.0, 2.0, 1.0]

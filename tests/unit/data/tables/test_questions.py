"""All faults of tables are told at once, with row, value and a remedy that works at the door where the user stands."""

import re
from datetime import datetime, timedelta, timezone
from decimal import Decimal

import numpy as np
import pytest

from sarlite import Graph, HeteroGraph
from sarlite.data import from_tables, load
from sarlite.errors import ConfigError, DataError
from tests.helpers.data.small_tables import ALL, QUERY, RELATION, TOML, edges_of, message_of, nodes_of, of_query, tables_of

# all faults at once


def test_six_faults_are_told_by_one_command(here):
    (here / "e.csv").write_text("src,dst,w,at\na,b,1,2026-01-01\nb,zed,x,2026-01-02\nc,b,2,soon\n")
    message = message_of(nodes_of, here, "id,age,y,part\na,1,good,train\nb,n/a,unknown,val\nc,3,bad,late\n",
                         ",weight=w,time=at,features=age,labels=y,split=part")
    lines = message.splitlines()
    assert lines[0] == "6 faults in the tables:" and len(lines) == 7
    for line in ("e.csv: row 1, column 'w': 'x' is not a number", "e.csv: row 2, column 'at': 'soon' is not a date",
                 "e.csv: row 1, column 'dst': 'zed' is not in n.csv", "n.csv: row 1, column 'age': 'n/a' is not a number",
                 "n.csv: row 1, column 'y': 'unknown' (1 row) may be a class or no label",
                 "n.csv: row 2, column 'part': 'late' is not one of train, val, test"):
        assert sum(line in one for one in lines) == 1, line


def test_missing_columns_and_doubts_about_headers_of_all_tables_are_told(here):
    (here / "e.csv").write_text("who,whom\nann,bob\n")
    message = message_of(load, "edges:e.csv,nodes=n2.csv,id=user,features=size,labels=team", allow_empty=ALL)
    assert "n2.csv: no such file" in message and "may be a header or a row: header=true or header=false" in message
    (here / "n2.csv").write_text("id,age\n1,2\n")
    message = message_of(load, "edges:e.csv,header=true,nodes=n2.csv,id=user,features=size,labels=team", allow_empty=ALL)
    assert [re.search("no column '(.*?)'", line)[1] for line in message.splitlines()[1:]] == ["user", "size", "team"]


def test_unknown_options_are_told_together(here):
    message = message_of(load, "edges:e.csv,sorce=src,dts=dst,undirected=maybe")
    assert all(f"data set option '{name}'" in message for name in ("sorce", "dts", "undirected"))
    (here / "g.toml").write_text('[nodes.u]\nfile="n.csv"\nidd="x"\nseed="y"\n[[edges]]\nrelation=["u","e","v"]\nfile="e.csv"\n')
    message = message_of(load, "tables:g.toml")
    assert message.count("g.toml: nodes.u: ") == 2 and "node type 'v' is not one of u" in message


def test_several_bad_columns_of_one_transform_are_told(here):
    message = message_of(nodes_of, here, "id,age,day\na,1,2026-01-01\nb,old,yesterday\nc,3,2026-01-03\n",
                         ",features=age:standard+day:date")
    assert "row 1, column 'age': 'old' is not a number" in message and "row 1, column 'day': 'yesterday' is not a date" in message


def test_faults_reach_the_command_line_as_lines(here, capsys):
    from sarlite.cli.data_command import main

    (here / "n.csv").write_text("id,age,pay\na,1,x\nb,y,2\nc,3,3\n")
    assert main(["convert", "edges:e.csv,src=src,dst=dst,nodes=n.csv,id=id", "d"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "error: 2 faults in the tables:" and [line[:7] for line in lines[1:]] == ["  n.csv"] * 2


# remedies by door


def test_a_remedy_is_in_the_words_of_the_door(here):
    text = "id,age\na,1\nb,n/a\nc,\n"
    assert "null=WORD+WORD names" in message_of(nodes_of, here, text, ",features=age")
    (here / "g.toml").write_text('[nodes.u]\nfile="n.csv"\nid="id"\nfeatures=["age"]\n[[edges]]\nrelation=["u","e","u"]\n'
                                 'file="e.csv"\nsrc="src"\ndst="dst"\n')
    message = message_of(load, "tables:g.toml", allow_empty=ALL)
    assert 'null = "WORD+WORD" names' in message and 'fill = "0" or fill = "mean" replaces' in message
    message = message_of(tables_of, {"id": ["a", "b"], "age": ["1", "n/a"]}, features=["age"])
    assert '"null": "WORD+WORD" names' in message
    for call, known in ((Graph.from_pandas, {"src", "dst", "weight", "features", "fill", "on_unknown", "nodes", "id"}),
                        (HeteroGraph.from_pandas, {"src", "dst", "on_unknown", "nodes", "id"})):
        table = {"src": ["a", "b"], "dst": ["b", "c"]}
        nodes = {"id": ["a", "b"]}
        message = (message_of(call, table, nodes=nodes) if call == Graph.from_pandas else
                   message_of(call, {("u", "e", "u"): table}, nodes={"u": nodes}))
        assert {*re.findall(r"(\w+)=", message)} <= known and 'on_unknown="drop" leaves such edges out' in message
    message = message_of(Graph.from_pandas, {"src": ["a"], "dst": ["b"], "w": ["x"]}, weight="w")
    assert "'x' is not a number; convert the column first" in message and "=" not in message
    message = message_of(Graph.from_pandas, {"src": ["a"], "dst": ["b"], "w": [None]}, weight="w")
    assert 'no value; fill="0" or fill="mean" replaces missing values' in message


# labels


@pytest.mark.parametrize("word", ["unknown", "Missing", "-", "none", "?", "NaT", "#N/A", "not available", "."])
def test_words_that_are_hardly_classes_are_asked_about(here, word):
    text = f"id,y\na,good\nb,{word}\nc,bad\n"
    message = message_of(nodes_of, here, text, ",labels=y")
    remedy = re.search(r"null=(.*?) says that this is no label; null=nan says that it is a class", message)
    assert f"'{word}' (1 row) may be a class or no label" in message and remedy[1] == word
    assert nodes_of(here, text, f",labels=y,null={remedy[1]}").labels.tolist() == [1, -1, 0]
    assert nodes_of(here, text, ",labels=y,null=nan").n_classes == 3


def test_all_doubtful_words_of_a_column_are_named(here):
    text = "id,y\na,good\nb,unknown\nc,-\n"
    assert "'unknown' (1 row), '-' (1 row) may be a class or no label: null=unknown+- says" in message_of(
        nodes_of, here, text, ",labels=y")
    assert nodes_of(here, text, ",labels=y,null=unknown+-").labels.tolist() == [0, -1, -1]


def test_minus_one_is_no_label_also_where_columns_have_types():
    table = {"id": ["a", "b", "c"], "y": [0, -1, 1]}
    assert "null\": \"-1\" says that it is no label" in message_of(tables_of, table, labels="y")
    assert tables_of(table, labels="y", null="-1").labels.tolist() == [0, -1, 1]
    assert tables_of({**table, "y": [0.0, -1.0, 1.0]}, labels="y", null="-1").labels.tolist() == [0, -1, 1]
    assert tables_of(table, labels="y", null="nan").n_classes == 3


def test_ids_as_labels_are_asked_about(here):
    ids = [f"u{row}" for row in range(60)]
    (here / "e.csv").write_text("src,dst\nu1,u2\n")
    text = "id,y\n" + "".join(f"{name},{name}\n" for name in ids)
    assert "60 different values in 60 rows may be ids" in message_of(nodes_of, here, text, ",labels=y")
    assert nodes_of(here, text, ",labels=y,task=classify").n_classes == 60


# ids


def test_unused_node_numbers_are_asked_about(here):
    (here / "x.csv").write_text("src,dst\n0,5\n5,2\n")
    message = message_of(load, "edges:x.csv", allow_empty=ALL)
    assert message == ("x.csv: edges: 3 of the node ids 0 to 5 occur in no edge: names=edges makes nodes of the ids that occur; "
                       "nodes=6 makes nodes of all ids from 0 to 5")
    assert load("edges:x.csv,nodes=6", allow_empty=ALL).n_nodes == 6
    named = load("edges:x.csv,names=edges", allow_empty=ALL)
    assert named.n_nodes == 3 and named.indptr.tolist() == [0, 0, 1, 2] and named.indices.tolist() == [2, 0]
    (here / "x.csv").write_text("src,dst\n0,1\n1,2\n")
    assert load("edges:x.csv", allow_empty=ALL).n_nodes == 3
    (here / "x.csv").write_text("src,dst\n0,3\n3,2\n0,2\n")  # few enough to be counted while edges are sorted
    for changes in ({}, {"self_loops": True}, {"undirected": True}, {"deduplicate": True}):
        assert "1 of the node ids 0 to 3 occur in no edge: names=edges" in message_of(load, "edges:x.csv", allow_empty=ALL, **changes)
    (here / "x.csv").write_text(f"src,dst\n0,{2**40}\n")
    assert f"{2**40 - 1:,} of the node ids 0 to {2**40} occur in no edge" in message_of(load, "edges:x.csv", allow_empty=ALL)
    edges = {"src": [7, 9], "dst": [9, 7]}
    assert '"names": "edges" makes nodes of the ids that occur; "count": 10 makes nodes' in message_of(tables_of, None, edges)
    assert Graph.from_pandas(edges).n_src == 2


def test_numbers_in_words_are_in_the_order_of_numbers_at_all_doors(here):
    (here / "x.csv").write_text("src,dst\n10,2\n-3,10\n")
    typed = from_tables({"nodes": {"u": {"names": "edges"}}, "edges": [
        {"file": {"src": [10, -3], "dst": [2, 10]}, "relation": RELATION, "src": "src", "dst": "dst"}]})
    read = load("edges:x.csv,names=edges", allow_empty=ALL)
    assert read.indptr.tolist() == typed.indptr.tolist() == [0, 0, 1, 2] and read.indices.tolist() == typed.indices.tolist() == [2, 0]
    assert Graph.from_pandas("x.csv").names.tolist() == Graph.from_pandas({"src": [10, -3], "dst": [2, 10]}).names.tolist() == [-3, 2, 10]
    (here / "x.csv").write_text("src,dst\n10,2\n03,10\n")  # 03 is a word
    assert Graph.from_pandas("x.csv").names.tolist() == ["03", "10", "2"]


# values


def test_a_number_that_float32_cannot_hold_is_named(here):
    message = message_of(nodes_of, here, "id,age\na,1\nb,1e300\nc,2\n")
    assert message == "n.csv: row 1, column 'age': '1e300' is not a finite number that fits into float32, at most 3.4e38"
    text = "id,age,x\na,1,1\nb,1e300,1\nc,2,1\n"
    assert "row 1, column 'age': '1e300' is not a finite" in message_of(nodes_of, here, text, ",features=age+x:log")


@pytest.mark.parametrize("options", ["edge_features=w", "weight=w", "weight=w,fill=mean", "weight=w,on_unknown=drop",
                                     "weight=w,edge_features=w:log"])
def test_an_edge_value_that_float32_cannot_hold_is_named(here, options):
    message = message_of(edges_of, here, "src,dst,w\na,b,1\nb,c,1e39\n", f",{options}")
    assert "row 1, column 'w': '1e39' is not a finite number that fits into float32, at most 3.4e38" in message
    with pytest.raises(DataError, match="edges: row 1, column 'w': -1e[+]?39 .*float32"):
        Graph.from_pandas({"src": ["a", "b"], "dst": ["b", "c"], "w": [1.0, -1e39]}, weight="w")
    assert edges_of(here, "src,dst,w\na,b,1\nb,c,3.4e38\n", ",weight=w").edge_weight.tolist() == [1, 3.4e38]


ENGINE = ("duckdb", "Invalid Input", "Conversion", "Binder", "Exception", "INT128", "DOUBLE", "VARCHAR", "TIMESTAMP", "BLOB", "STRUCT",
          "INTERVAL", "HUGEINT", "DECIMAL", "Arrow")


def odd_columns():
    import pyarrow as pa

    wide = [Decimal("1.5"), Decimal("12345678901234567890123456789012345678901234567890.5")]
    return {
        "decimal256": pa.array(wide, pa.decimal256(60, 1)), "decimal": pa.array([Decimal("1.5"), Decimal("2.5")], pa.decimal128(38, 10)),
        "duration": pa.array([timedelta(days=1), timedelta(hours=2)]), "struct": pa.array([{"a": 1}, {"a": 2}]),
        "dictionary": pa.array(["x", "y"]).dictionary_encode(), "binary": pa.array([b"a", b"b"]),
        "uint64": np.array([1, 2**64 - 1], np.uint64), "view": pa.array(["1", "2"], pa.string_view()),
        "zone": pa.array([datetime(2026, 1, 1, tzinfo=timezone.utc)] * 2), "time": pa.array([datetime(2026, 1, 1).time()] * 2),
        "words": pa.array([["a"], ["b"]]), "nested": pa.array([[[1.0]], [[2.0]]]), "ragged": pa.array([[1.0], [1.0, 2.0]]),
        "null": pa.nulls(2), "half": np.array([1, 2], np.float16), "infinite": np.array([1, np.inf]),
        "map": pa.array([[("a", 1)], [("b", 2)]], pa.map_(pa.string(), pa.int64())),
        "month": pa.array([(1, 2, 3)] * 2, pa.month_day_nano_interval()),
    }


@pytest.mark.sampled(28)
@pytest.mark.parametrize("kind", [*odd_columns()])
@pytest.mark.parametrize("use", ["features", "auto", "labels", "time", "split", "id", "standard", "onehot", "date", "vector", "text"])
def test_no_word_of_the_engine_reaches_the_user_for_any_type(kind, use):
    import pyarrow as pa

    column = odd_columns()[kind]
    table = {"id": ["a", "b"], "v": column, "y": [0, 1]}
    options = {"features": {"features": ["v"]}, "auto": {}, "labels": {"labels": "v"}, "time": {"time": "v"}, "id": {"id": "v"},
               "split": {"split": "v", "labels": "y"}}.get(use, {"features": {"v": use}})
    try:
        data = tables_of(pa.table(table), edges={"src": ["a"], "dst": ["b"]}, **options)
    except (ConfigError, DataError) as error:
        assert "'v'" in str(error) and "nodes.u" in str(error) or kind == "uint64" and "edges" in str(error)
        assert not [word for word in ENGINE if word in str(error)], str(error)
    else:
        assert data.n_nodes == 2 and (data.features is None or np.isfinite(data.features).all())


# dates, and queries that messages propose


@pytest.mark.parametrize("odd, iso", [("09.07.2026", "2026-07-09"), ("7/9/26", "2026-07-09"), ("20260709", "2026-07-09"),
                                      ("7/9/2026", "2026-07-09")])
@pytest.mark.parametrize("column", ["at", "the day", 'quo"ted', "select"])
def test_a_query_that_a_message_proposes_reads_odd_dates(here, odd, iso, column):
    head = column if '"' not in column else '"quo""ted"'
    (here / "e.csv").write_text(f"src,dst,{head}\na,b,2026-07-08\nb,a,{odd}\nb,a,2026-07-10\n")
    if odd == "20260709":
        (here / "e.csv").write_text(f"src,dst,{head}\na,b,20260708\nb,a,x\n")
    toml = '[nodes.u]\n[[edges]]\nrelation=["u","e","u"]\n{}\nsrc="src"\ndst="dst"\ntime={!r}\n'
    (here / "g.toml").write_text(toml.format('file="e.csv"', column))
    message = message_of(load, "tables:g.toml", allow_empty=ALL)
    query = re.search(r"query = '''.*?'''", message)[0]
    if odd == "20260709":
        (here / "e.csv").write_text(f"src,dst,{head}\na,b,20260708\nb,a,{odd}\n")
    else:
        (here / "e.csv").write_text(f"src,dst,{head}\na,b,{odd}\nb,a,{odd}\n")
    (here / "g.toml").write_text(toml.format(query, column))
    data = load("tables:g.toml", allow_empty=ALL)
    times = data.one_relation.edge_time
    assert np.datetime64(int(times[0]), "ns").astype("M8[D]") == np.datetime64(iso)


def test_a_query_that_a_message_proposes_leaves_rows_without_a_time_out(here):
    (here / "e.csv").write_text("src,dst,the day\na,b,2026-07-08\nb,a,\n")
    message = message_of(load, "edges:e.csv,src=src,dst=dst,time=the day", allow_empty=ALL)
    query = re.search(r"query = '''.*?'''", message)[0]
    (here / "g.toml").write_text(f'[nodes.u]\n[[edges]]\nrelation=["u","e","u"]\n{query}\nsrc="src"\ndst="dst"\ntime="the day"\n')
    assert load("tables:g.toml", allow_empty=ALL).n_edges == 1


@pytest.mark.parametrize("word", ["2026-07-09T10:00Z", "2026-07-09T12:00+02:00", "2026-07-09 12:00:00+02:00", "2026-07-09T10:00:00Z",
                                  "2026-07-09 12:00+02"])
def test_a_time_zone_counts_in_times_and_in_date_features(here, word):
    (here / "e.csv").write_text(f"src,dst,at\na,b,{word}\nb,c,{word}\n")
    data = load("edges:e.csv,src=src,dst=dst,time=at,edge_features=at:date", allow_empty=ALL)
    assert np.datetime64(int(data.one_relation.edge_time[0]), "ns") == np.datetime64("2026-07-09T10:00")
    names = data.one_relation.feature_names
    hour = data.edge_features[0, names.index("at.hour_sin")]
    assert hour == pytest.approx(np.sin(2 * np.pi * 10 / 24), abs=1e-6)


@pytest.mark.parametrize("word", ["7/9/26", "9999-12-31", "0001-01-01"])
def test_a_date_that_cannot_be_right_is_no_feature(here, word):
    message = message_of(nodes_of, here, f"id,day\na,2026-01-01\nb,{word}\nc,2026-01-03\n", ",features=day:date")
    assert f"row 1, column 'day': '{word}' is not a date or time" in message
    typed = {"id": ["a", "b"], "day": np.array(["2026-01-01", "9999-12-31"], "M8[s]")}
    assert "row 1, column 'day': '9999-12-31 00:00:00' is not a date or time" in message_of(tables_of, typed, features={"day": "date"})


def test_equal_looking_ids_and_columns_of_two_uses_are_told(here):
    (here / "e.csv").write_text("src,dst,at\na,b,5\nb,c,6\n")
    data = load("edges:e.csv,src=src,dst=dst,time=at,edge_features=at", allow_empty=ALL)
    assert data.provenance["tables"]["edges"]["node.edge.node"]["source"]["columns"]["at"] == "time and feature (number)"
    (here / "e.csv").write_text("src,dst\nann,bob\nAnn,bob\n\"ann \",bob\n")
    data = load("edges:e.csv,src=src,dst=dst", allow_empty=ALL)
    assert data.n_nodes == 4
    alike = data.provenance["tables"]["nodes"]["node"]["alike"]
    assert alike == {"ids": 3, "example": ["Ann", "ann "]}


# formats


def write_parquet(name, **columns):
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table(columns), name)


def test_files_of_a_glob_that_differ_are_refused(here):
    (here / "g1.csv").write_text("id,age\na,1\nb,2\n")
    for other in ("age,id\n3,c\n", "id,pay\nc,3\n", "c,3\n", "id;age\nc;3\n"):
        (here / "g2.csv").write_text(other)
        message = message_of(load, "edges:e.csv,src=src,dst=dst,nodes=g*.csv,id=id", allow_empty=ALL)
        assert re.match("g2.csv: 2 columns, .*, but g1.csv: 2 columns, id, age, .*; the files of a glob have one form", message)
    for other in (b"id,age\r\nc,3\r\n", b"\xef\xbb\xbfid,age\nc,3\n"):
        (here / "g2.csv").write_bytes(other)
        assert load("edges:e.csv,src=src,dst=dst,nodes=g*.csv,id=id", allow_empty=ALL).features.ravel().tolist() == [1, 2, 3]
    write_parquet("p1.parquet", id=["a", "b"], age=[1, 2])
    write_parquet("p2.parquet", age=[2.5], id=["c"])
    spec = "edges:e.csv,src=src,dst=dst,nodes=p*.parquet,id=id"
    assert load(spec, allow_empty=ALL).features.ravel().tolist() == [1, 2, 2.5]  # in another order, and not as whole numbers
    write_parquet("p2.parquet", id=["c"], age=["x"])
    assert message_of(load, spec) == "p2.parquet: column 'age' is of words, but of numbers in p1.parquet"
    write_parquet("p2.parquet", id=["c"], pay=[1])
    assert "p2.parquet: columns id, pay, but p1.parquet: id, age; the files of a glob" in message_of(load, spec)


def test_wide_decimals_in_parquet_are_read_as_they_are(here):
    import pyarrow as pa

    write_parquet("n.parquet", id=["a", "b", "c"], age=pa.array([Decimal("1.5"), Decimal("-2.25"), Decimal(3)], pa.decimal256(50, 2)))
    assert load("edges:e.csv,src=src,dst=dst,nodes=n.parquet,id=id", allow_empty=ALL).features.ravel().tolist() == [1.5, -2.25, 3]


def test_json_with_values_of_several_kinds_is_refused_and_an_array_is_read(here):
    spec = "edges:e.csv,src=src,dst=dst,nodes=n.json,id=id"
    (here / "n.json").write_text('{"id":"a","age":1}\n{"id":"b","age":"x"}\n{"id":"c","age":3}\n')
    message = message_of(load, spec)
    assert message.startswith("n.json: column 'age': values of several kinds; query = ")
    query = f'id="id"\nfeatures={{age="onehot"}}\n{QUERY.search(message)[0]}'
    (here / "g.toml").write_text(TOML.format(nodes=query, edges='file="e.csv"'))
    assert load("tables:g.toml", allow_empty=ALL).features.tolist() == [[1, 0, 0], [0, 0, 1], [0, 1, 0]]
    (here / "n.json").write_text('{"id":"a","age":null}\n{"id":"b"}\n{"id":"c"}\n')
    assert load(spec, allow_empty=ALL).n_nodes == 3
    (here / "l.json").write_text('{"nodes":[{"id":"a"}],"links":[{"source":"a","target":"b"}]}')
    assert "the rows are a list in 'links'" in message_of(load, "edges:l.json,src=source,dst=target", allow_empty=ALL)
    (here / "l.json").write_text("[]")
    assert "l.json: no objects with keys" in message_of(load, "edges:l.json,src=source,dst=target", allow_empty=ALL)
    (here / "n.json").write_text('[{"id":"a","age":1},{"id":"b","age":2},{"id":"c","age":3}]')
    assert load(spec, allow_empty=ALL).features.ravel().tolist() == [1, 2, 3]


@pytest.mark.parametrize("name, words", [("n.zip", "unpack the file first"), ("n.csv.bz2", "unpack the file first"),
                                         ("n.xlsx", "pandas reads the file"), ("folder", r"a glob such as folder/\*.parquet")])
def test_files_that_are_no_tables_are_named(here, name, words):
    (here / "folder").mkdir()
    if name != "folder":
        (here / name).write_bytes(b"PK\x03\x04 and more\n")
    with pytest.raises(DataError, match=f"^{name}: .*{words}"):
        load(f"edges:e.csv,src=src,dst=dst,nodes={name},id=id")


@pytest.mark.parametrize("name", ["v", "x", "row", "key", "n", "src", "a", "t", "line", "value"])
def test_a_column_may_have_any_name(here, name):
    (here / "e.csv").write_text(f"from,to,{name}\na,b,3\nb,c,4\n")
    (here / "n.csv").write_text(f"id,{name},y\na,1,q\nb,2,p\nc,3,q\n")
    data = load(f"edges:e.csv,src=from,dst=to,weight={name},edge_features={name},nodes=n.csv,id=id,features={name},labels=y",
                undirected=True, allow_empty=ALL)
    assert data.features.ravel().tolist() == [1, 2, 3] and data.labels.tolist() == [1, 0, 1]
    assert data.edge_weight.tolist() == [3, 3, 4, 4] and data.edge_features.ravel().tolist() == [3, 3, 4, 4]


def test_a_column_named_rowid_is_refused_by_name(here):
    assert "n.csv: column 'RowID' has a reserved name; rename it" in message_of(nodes_of, here, "id,RowID\na,7\nb,8\nc,9\n")


def test_a_relation_or_its_reverse_is_described_once(here):
    tables = {"nodes": {"u": {}, "v": {}}}
    edges = {"file": {"src": ["a"], "dst": ["x"]}, "relation": ["u", "e", "v"], "src": "src", "dst": "dst"}
    message = message_of(from_tables, {**tables, "edges": [edges, {**edges, "file": {"src": ["b"], "dst": ["x"]}}]})
    assert "edges 1: relation u.e.v is one of edges 0, too" in message
    back = {**edges, "relation": ["v", "rev_e", "u"], "src": "dst", "dst": "src"}
    message = message_of(from_tables, {**tables, "edges": [edges, back]})
    assert "edges 1: relation v.rev_e.u is one of edges 0, too: reverse = false" in message
    both = [{**one, "reverse": False} for one in (edges, back)]
    assert [*from_tables({**tables, "edges": both}).edges] == [("u", "e", "v"), ("v", "rev_e", "u")]


def test_the_remedy_for_features_of_edges_names_their_option(here):
    text = "src,dst,kind\na,b,red\nb,a,blue\n"
    message = message_of(edges_of, here, text, ",edge_features=kind")
    assert "; edge_features=kind:onehot makes numbers of a category" in message
    assert edges_of(here, text, ",edge_features=kind:onehot").one_relation.edge_features.tolist() == [[1, 0], [0, 1]]


def test_lists_of_numbers_without_brackets_and_of_several_lengths_get_a_query(here):
    text = 'id,v\na,"0.1, 0.2"\nb,0.3;0.4\nc,1 2e1\n'
    for options in (",features=v", ",features=v:vector"):
        data = of_query(here, message_of(nodes_of, here, text, options), "v")
        assert np.allclose(data.features, [[0.1, 0.2], [0.3, 0.4], [1, 20]])
    (here / "n.jsonl").write_text('{"id": "a", "v": [1, 2]}\n{"id": "b", "v": [3, null, 5]}\n{"id": "c", "v": null}\n')
    query = QUERY.search(message_of(load, "edges:e.csv,src=src,dst=dst,nodes=n.jsonl,id=id,features=v", allow_empty=ALL))[0]
    (here / "g.toml").write_text(TOML.format(nodes=f'id="id"\nfeatures=["v"]\n{query}', edges='file="e.csv"'))
    assert load("tables:g.toml", allow_empty=ALL).features.tolist() == [[1, 2, 0], [3, 0, 5], [0, 0, 0]]


def test_weights_of_equal_edges_are_added_by_the_query_of_the_message(here):
    for options, expected in (({"undirected": True}, [4, 4]), ({"deduplicate": True}, [3, 1])):
        message = message_of(edges_of, here, "src,dst,w\na,b,1\na,b,2\nb,a,1\n", ",weight=w", **options)
        (here / "g.toml").write_text(TOML.format(nodes="", edges=f'{QUERY.search(message)[0]}\nweight="w"'))
        assert sorted(load("tables:g.toml", allow_empty=ALL, **options).edge_weight.tolist()) == sorted(expected)


def test_a_node_in_a_split_without_a_label_is_named_with_a_query(here):
    text = "id,y,s\na,p,train\nb,,test\nc,q,val\n"
    message = message_of(nodes_of, here, text, ",labels=y,split=s")
    assert "n.csv: row 1, column 'y': no label, but column 's' has a split" in message
    data = of_query(here, message, "", 'id="id"\nlabels="y"\nsplit="s"')
    assert data.train.tolist() == [True, False, False] and not data.test.any()


def test_files_of_a_glob_in_another_order_get_a_query_that_joins_them_by_name(here):
    (here / "a1.csv").write_text("src,dst\na,b\n")
    (here / "a2.csv").write_text("dst,src\nc,b\n")
    message = message_of(load, "edges:a*.csv", allow_empty=ALL)
    (here / "g.toml").write_text(TOML.format(nodes="", edges=QUERY.search(message)[0]))
    assert load("tables:g.toml", allow_empty=ALL).indices.tolist() == [0, 1]


def test_a_query_may_end_in_a_comment_and_fill_names_its_table(here):
    (here / "g.toml").write_text(TOML.format(nodes="", edges="query=\"SELECT * FROM 'e.csv' -- all\""))
    assert load("tables:g.toml", allow_empty=ALL).n_edges == 2
    assert "nodes: features: fill: 'median' is not one of 0, mean" in message_of(nodes_of, here, "id,x\na,1\n", ",fill=median")


def test_a_clock_below_a_date_is_not_cut_and_numbers_may_have_other_bytes():
    day, noon = datetime(2026, 3, 1).date(), datetime(2026, 3, 1, 12)
    message = message_of(tables_of, {"id": ["a", "b"], "t": [day, noon]}, time="t")
    assert "column 't': row 1: datetime.datetime(2026, 3, 1, 12, 0) is of datetime, but values before are of date" in message
    assert tables_of({"id": ["a", "b"], "x": np.array([1, 2], ">i4")}, features=["x"]).features.tolist() == [[1], [2]]

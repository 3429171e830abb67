"""Nothing in a table is guessed in silence: situations from public bug reports, each with the right result."""

import dataclasses
import gzip
import json
import re

import numpy as np
import pytest

from sarlite import Graph
from sarlite.cli.data_command import main
from sarlite.data import format, from_tables, load
from sarlite.data.tables.checks import number
from sarlite.data.tables.sources import connect, read
from sarlite.data.tables.text_form import Reading
from sarlite.data.tables.time_columns import times
from sarlite.errors import ConfigError, DataError
from tests.helpers.data.small_tables import ALL, QUERY, edges_of, message_of, nodes_of, of_query

# 1: headers


@pytest.mark.parametrize("header", ["_from,_to", ":START_ID,:END_ID", "source,target", "#src,dst"])
def test_a_header_may_begin_with_a_sign(here, header):
    (here / "x.csv").write_text(f"{header}\nann,bob\nbob,cas\n")
    first, second = header.split(",")
    assert load(f"edges:x.csv,src={first},dst={second}", allow_empty=ALL).n_edges == 2
    if not header.startswith("#"):
        assert load("edges:x.csv", allow_empty=ALL).n_edges == 2


@pytest.mark.parametrize("text, n", [("_a,_b\n1,0\n", 1), ("1,2\n3,0\n", 2), ("x1,x2\n0,1\n", 1)])
def test_words_above_numbers_are_a_header(here, text, n):
    (here / "x.csv").write_text(text)
    assert load("edges:x.csv", allow_empty=ALL).n_edges == n


@pytest.mark.parametrize("text", ["who,whom\nann,bob\n", "a,2\n1,0\n"])
def test_a_header_in_doubt_is_asked_about(here, text):
    (here / "x.csv").write_text(text)
    with pytest.raises(DataError, match="x.csv: the first line, .*: header=true or header=false"):
        load("edges:x.csv", allow_empty=ALL)
    assert load("edges:x.csv,header=true", allow_empty=ALL).n_edges == 1


# 2: numbers with an odd word


@pytest.mark.parametrize("odd", ['"1,234"', "n/a", "12%", '"1,5"', "1_000", "1.2.3", "0x10"])
@pytest.mark.parametrize("asked", ["", ",features=age"])
def test_an_odd_word_among_numbers_is_refused_by_row(here, odd, asked):
    text = "id,age\na,1\nb,2\n" + f"c,{odd}\n"
    with pytest.raises(DataError, match=f"n.csv: row 2, column 'age': '{odd.strip(chr(34))}' is not a number; .*null=WORD"):
        nodes_of(here, text, asked)


def test_an_odd_word_far_down_is_found(here):
    rows = [f"u{row},{row}" for row in range(70_000)]
    rows[69_000] = "u69000,oops"
    (here / "e.csv").write_text("src,dst\nu1,u2\n")
    with pytest.raises(DataError, match="n.csv: row 69000, column 'age': 'oops' is not a number"):
        nodes_of(here, "id,age\n" + "\n".join(rows))


def test_options_settle_what_is_doubtful(here):
    data = nodes_of(here, "id,age\na,1\nb,n/a\nc,3\n", ",null=n/a+?,fill=mean")
    assert data.features.ravel().tolist() == [1, 2, 3]
    data = nodes_of(here, "id;age\na;1,5\nb;-2,25\nc;3\n", ",decimal=,,features=age")
    assert data.features.ravel().tolist() == [1.5, -2.25, 3]
    with pytest.raises(DataError, match="row 0, column 'age': '1.234,5' is not a number"):
        nodes_of(here, "id;age\na;1.234,5\nb;2\nc;3\n", ",decimal=,")
    with pytest.raises(ConfigError, match="decimal: '!' is neither"):
        nodes_of(here, "id,age\na,1\n", ",decimal=!")


def test_columns_of_words_are_left_out_and_told(here):
    data = nodes_of(here, ",id,city,age,seen\n0,a,x,1,2024-01-01\n1,b,y,2,2024-01-02\n2,c,z,3,2024-01-02\n")
    columns = data.provenance["tables"]["nodes"]["node"]["sources"][0]["columns"]
    assert data.features.ravel().tolist() == [1, 2, 3]
    assert columns == {"Unnamed: 0": "left out: an index without a name", "id": "id", "city": "left out: words",
                       "age": "feature (number)", "seen": "left out: words"}


# 3: labels are values


@pytest.mark.parametrize("labels, names, codes", [
    (["-1", "1", "-1"], ["-1", "1"], [0, 1, 0]), (["1", "2", "3"], ["1", "2", "3"], [0, 1, 2]), (["0", "1", "2"], None, [0, 1, 2]),
    (["7", "", "7"], ["7"], [0, -1, 0]), (["a", "nan", "b"], ["a", "b"], [0, -1, 1]), (["1.0", "2.0", "1.0"], ["1", "2"], [0, 1, 0]),
    (["true", "false", "true"], ["false", "true"], [1, 0, 1]), (["0", "1", "3"], ["0", "1", "3"], [0, 1, 2]),
])  # fmt: skip
def test_labels_are_values(here, labels, names, codes):
    data = nodes_of(here, "id,y\n" + "".join(f"{node},{label}\n" for node, label in zip("abc", labels)), ",labels=y")
    assert data.class_names == names and data.labels.tolist() == codes and data.n_classes == max(codes) + 1


@pytest.mark.parametrize("word", ["NA", "None", "N/A", "<NA>", "?"])
def test_words_that_may_be_no_label_are_asked_about(here, word):
    text = f"id,y\na,good\nb,{word}\nc,bad\n"
    with pytest.raises(DataError, match=r"row 1, column 'y': .* may be a class or no label: null="):
        nodes_of(here, text, ",labels=y")
    assert nodes_of(here, text, f",labels=y,null={word}").labels.tolist() == [1, -1, 0]
    assert nodes_of(here, text, ",labels=y,null=nan").n_classes == 3


def test_minus_one_beside_numbers_from_zero_is_asked_about(here):
    text = "id,y\na,0\nb,-1\nc,1\n"
    with pytest.raises(DataError, match="row 1, column 'y': -1 .*: null=-1"):
        nodes_of(here, text, ",labels=y")
    assert nodes_of(here, text, ",labels=y,null=-1").labels.tolist() == [0, -1, 1]
    assert nodes_of(here, text, ",labels=y,null=nan").class_names == ["-1", "0", "1"]


# 4: lines that begin with #


def test_lines_with_a_sharp_are_rows(here):
    (here / "e.csv").write_text("src,dst\n#a,b\nb,#c\n")
    data = nodes_of(here, "id,age\n#a,1\nb,2\n#c,3\n")
    assert data.n_nodes == 3 and data.n_edges == 2
    data = load("edges:e.csv,src=src,dst=dst,comment=#", allow_empty=ALL)
    assert data.n_edges == 1


# 5: nulls at every door


@pytest.mark.parametrize("kind", ["masked", "pandas", "object"])
def test_nulls_stay_nulls(kind):
    import pandas

    ages = {"masked": np.ma.array([1, 99, 3], mask=[0, 1, 0]), "pandas": pandas.array([1, None, 3], dtype="Int64"),
            "object": [1, None, 3]}[kind]  # fmt: skip
    labels = {"masked": np.ma.array([0, 1, 1], mask=[0, 1, 0]), "pandas": pandas.array([0, None, 1], dtype="Int64"),
              "object": [0, None, 1]}[kind]  # fmt: skip
    table = {"id": ["a", "b", "c"], "age": ages, "y": labels}
    table = pandas.DataFrame(table) if kind == "pandas" else table
    edges = {"file": {"src": ["a"], "dst": ["b"]}, "relation": ["u", "e", "u"], "src": "src", "dst": "dst"}
    nodes = {"file": table, "id": "id", "labels": "y", "features": ["age"]}
    with pytest.raises(DataError, match='nodes.u: row 1, column .age.: no value; "fill": "0" or "fill": "mean"'):
        from_tables({"nodes": {"u": nodes}, "edges": [edges]})
    data = from_tables({"nodes": {"u": {**nodes, "fill": "mean"}}, "edges": [edges]})
    mean = np.mean([[1, 3][at // 2] for at in (0, 2) if data.train[at]])
    assert data.features.ravel().tolist() == [1, mean, 3] and data.labels.tolist() == [0, -1, 1]


@pytest.mark.parametrize("ids, words", [
    (np.ma.array([1, 2, 3], mask=[0, 1, 0]), "row 1, column 'id': no id"), ([1.0, 2.0, 3.0], "not ids of nodes, which are whole numbers"),
    (np.array(["2024-01-01"] * 3, "M8[D]"), "column 'id': dates: these are not ids"), (["a", None, "c"], "row 1, column 'id': no id"),
    ([1, "b", 3], "column 'id': row 1: 'b' is of str, .*values before are of int"),
])  # fmt: skip
def test_ids_that_are_none(ids, words):
    edges = {"file": {"src": ids[:1], "dst": ids[:1]}, "relation": ["u", "e", "u"]}
    with pytest.raises(DataError, match=words):
        from_tables({"nodes": {"u": {"file": {"id": ids}, "id": "id"}}, "edges": [edges]})


@pytest.mark.parametrize("odd, words", [
    ("x", "'x' is not a number"), ("", "None: no value|no value"), ("inf", "'inf' is not a finite number")])
def test_an_odd_weight_is_named_where_joining_and_sorting_are_one_pass(here, odd, words):
    (here / "w.csv").write_text(f"s,d,w\nb,a,1\nc,a,{odd}\na,b,2\n")
    with pytest.raises(DataError, match=f"w.csv: row 1, column 'w': ({words})"):
        load("edges:w.csv,src=s,dst=d,weight=w", allow_empty=ALL)


# 6: undirected, in every door


def test_undirected_means_the_same_everywhere(here, capsys):
    from sarlite import Graph

    src, dst, weight = [0, 1, 1, 2, 2], [1, 0, 2, 2, 0], [5.0, 5, 6, 7, 8]
    (here / "w.csv").write_text("s,d,w\n" + "".join(f"{a},{b},{w}\n" for a, b, w in zip(src, dst, weight)))
    data = load("edges:w.csv,src=s,dst=d,weight=w", undirected=True, allow_empty=ALL)
    graph = Graph.from_pandas({"s": src, "d": dst, "w": weight}, "s", "d", weight="w", undirected=True)
    plain = Graph.from_edges(src, dst, undirected=True)
    assert data.indptr.tolist() == np.cumsum([0, *graph.in_degrees]).tolist() == np.cumsum([0, *plain.in_degrees]).tolist()
    assert data.edge_weight.tolist() == [5, 8, 5, 6, 8, 6, 7] and data.indices.tolist() == [1, 2, 0, 2, 0, 1, 2]
    assert graph.to_scipy().toarray().tolist() == [[0, 5, 8], [5, 0, 6], [8, 6, 7]]
    assert data.provenance["tables"]["edges"]["node.edge.node"]["changes"] == {"reverses added": 4, "joined with an equal edge": 2}
    assert main(["convert", "edges:w.csv,src=s,dst=d,weight=w", "d", "--undirected", "--allow-empty", "all"]) == 0
    assert "7 edges, 1 self edges, 0 repeat another edge, 4 reverses added, 2 joined with an equal edge" in capsys.readouterr().out
    (here / "w.csv").write_text("s,d,w\n0,1,5\n1,0,6\n")
    with pytest.raises(ConfigError, match="w.csv: rows 0 and 1 are one edge"):
        load("edges:w.csv,src=s,dst=d,weight=w", undirected=True, allow_empty=ALL)


# 7: times


@pytest.mark.parametrize("cells, expected", [
    (["2024-01-01T00:00:00.000000001", "2024-01-01"], [1704067200000000001, 1704067200000000000]),
    (["9007199254740993", "1"], [9007199254740993, 1]),
])  # fmt: skip
def test_times_keep_their_precision(here, cells, expected):
    (here / "t.csv").write_text("t\n" + "\n".join(cells) + "\n")
    typed = {"t": np.array(cells, "M8[ns]") if "-" in cells[0] else np.array(cells, np.int64)}
    with connect() as connection:
        for source in ("t.csv", typed):
            parsed = times(read(connection, source, Reading(header=True), ["t"], "t"), "t")
            assert parsed.dtype == np.int64 and parsed.tolist() == expected


# 8: words of this project


@pytest.mark.parametrize("text, words", [
    ("id,age\na,1\nb,2,3\n", "n.csv: line 3: 3 words, expected 2: b,2,3"),
    ('id,age\na,1\nb,"2"3\n', "n.csv: line 3: a quote is not closed"),
    ("id,age\na,1\nb,Z\xeb\n", "n.csv: line 3: cannot be read: it is not UTF-8"),
    ('id,age\n"a,1\nb,2\n', "n.csv: line 2: a quote is not closed"),
    ('id,age\na,1\r\n"b",2\n', r"n.csv: line 2 ends in \r\n, but the lines above end in \n"),
    ('id,age\r\n"a\nb",1\r\nb,2\r\nc,3\n', r"n.csv: line 5 ends in \n, but the lines above end in \r\n"),
    ("id,age\r\r\na,1\r\r\n", r"n.csv: line 2 ends in \r\n, but the lines above end in \r"),
    ("id,id\na,1\n", "n.csv: two columns are named 'id'"), ("id,age,Age\na,1,1\n", "columns 'age' and 'Age' differ"),
])  # fmt: skip
def test_no_word_of_the_engine_reaches_the_user(here, text, words):
    (here / "n.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError) as caught:
        load("edges:e.csv,src=src,dst=dst,nodes=n.csv,id=id", allow_empty=ALL)
    message = str(caught.value)
    assert words in message and "\n" not in message
    assert not any(word in message.lower() for word in ("duckdb", "strict_mode", "null_padding", "ignore_errors", "sniff", "exception"))


@pytest.mark.parametrize("end, inner", [("\r\n", "\n"), ("\n", "\r\n"), ("\n", "\r")])
def test_a_word_in_quotes_may_hold_a_line_end_and_be_long(here, end, inner):
    (here / "n.csv").write_bytes(f'id,age{end}"b{inner}c",1{end}a,2{end}{"l" * 200_000},3{end}'.encode())
    (here / "odd.csv").write_bytes(f'src,dst{end}a,"b{inner}c"{end}'.encode())
    data = load("edges:odd.csv,src=src,dst=dst,nodes=n.csv,id=id", allow_empty=ALL)
    assert data.features.ravel().tolist() == [1, 2, 3] and data.n_edges == 1


def test_large_ids_name_their_remedy(here):
    (here / "x.csv").write_text(f"src,dst\n{2**63 + 11},5\n5,{2**64 - 1}\n")
    with pytest.raises(DataError, match="of the node ids 0 to .* names=edges makes|is not a node number.*names=edges"):
        load("edges:x.csv", allow_empty=ALL)
    named = load("edges:x.csv,names=edges", allow_empty=ALL)
    assert named.n_nodes == 3
    ids = np.array([2**63 + 11, 2**63 + 12, 2**64 - 1], np.uint64)
    edges = {"file": {"src": ids[:2], "dst": ids[1:]}, "relation": ["u", "e", "u"]}
    data = from_tables({"nodes": {"u": {"file": {"id": ids}, "id": "id"}}, "edges": [edges]})
    assert data.indptr.tolist() == [0, 0, 1, 2] and data.indices.tolist() == [0, 1]


def test_strings_are_compared_letter_by_letter(here):
    (here / "e.csv").write_text("src,dst\na, b\n")
    with pytest.raises(DataError, match="e.csv: row 0, column 'dst': ' b', .* n.csv, column 'id'"):
        nodes_of(here, "id,age\na,1\nb,2\n")
    (here / "e.csv").write_text("src,dst\n7,007\n")
    assert nodes_of(here, "id,age\n7,1\n007,2\n").indptr.tolist() == [0, 0, 1]


def test_one_kind_of_ids_a_type():
    nodes = {"file": {"id": ["1", "2"]}, "id": "id"}
    edges = {"file": {"src": [1], "dst": [2]}, "relation": ["u", "e", "u"]}
    with pytest.raises(DataError, match="column 'id' has words, .*column 'src' has whole numbers"):
        from_tables({"nodes": {"u": nodes}, "edges": [edges]})


# edges whose ends are no nodes


def test_unknown_ends_are_refused_or_dropped(here, capsys):
    (here / "e.csv").write_text("src,dst,w\na,b,1\na,zed,2\nzed,b,3\nb,a,4\n")
    spec = "edges:e.csv,src=src,dst=dst,weight=w,nodes=n.csv,id=id"
    (here / "n.csv").write_text("id\na\nb\n")
    with pytest.raises(DataError, match="e.csv: row 1, column 'dst': 'zed' .*on_unknown=drop"):
        load(spec, allow_empty=ALL)
    assert main(["convert", f"{spec},on_unknown=drop", "d", "--allow-empty", "all"]) == 0
    assert "2 left out, as an end is not a node" in capsys.readouterr().out
    assert format.open("d").edge_weight.tolist() == [4, 1]
    with pytest.raises(ConfigError, match="on_unknown: 'skip' .*refuse, drop"):
        load(f"{spec},on_unknown=skip", allow_empty=ALL)


def test_the_account_is_kept_and_shown(here, capsys):
    (here / "e.csv").write_text("src,dst,note\na,b,x\na,b,y\nc,c,z\n")
    (here / "n.csv").write_text("id,age,y,part\na,1,hot,train\nb,2,cold,val\nc,3,,none\nd,4,hot,test\n")
    spec = "edges:e.csv,src=src,dst=dst,nodes=n.csv,id=id,labels=y,split=part"
    assert main(["convert", spec, "d"]) == 0
    printed = capsys.readouterr().out
    for line in ("node: 4 rows of n.csv", "  id: id", "  age: feature (number)", "  y: label", "  part: split",
                 "node: 4 nodes, known by words, 1 without edges", "node: 2 classes: cold 1, hot 2",
                 "node: 1 unlabelled; train 1, val 1, test 1 (column 'part' of n.csv)", "  note: left out: no option names it",
                 "node.edge.node: 3 edges, 1 self edges, 1 repeat another edge"):  # fmt: skip
        assert line in printed.splitlines(), line
    assert main(["info", "d"]) == 0 and "node: 2 classes: cold 1, hot 2" in capsys.readouterr().out
    assert main(["partition", "d", "--parts", "2", "--method", "random"]) == 0
    capsys.readouterr()
    assert main(["info", "d", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tables"]["nodes"]["node"]["classes"] == {"cold": 1, "hot": 2}


def test_training_from_a_directory_loads_no_engine(here):
    import subprocess
    import sys

    assert main(["convert", "edges:e.csv,src=src,dst=dst", "d", "--allow-empty", "all"]) == 0
    code = "import sys; from sarlite.data import load; load('d', allow_empty=('train', 'val', 'test')); " \
           "assert not {'duckdb', 'pyarrow'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_convert_imports_no_pandas(here):
    import subprocess
    import sys

    (here / "n.csv").write_text("id,x,y,part\na,1,p,train\nb,2,q,val\nc,3,,none\n")
    (here / "e.csv").write_text("src,dst,w,at\na,b,1,2026-03-01\nb,c,2,2026-03-02\n")
    spec = "edges:e.csv,src=src,dst=dst,weight=w,time=at,nodes=n.csv,id=id,features=x,labels=y,split=part"
    code = (f"import sys; from sarlite.cli.data_command import main; assert main(['convert', '{spec}', 'd', '--allow-empty', 'test']) == 0"
            "; assert 'pandas' not in sys.modules")
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("reading, words", [
    (Reading(), {"1.5": 1.5, " 1 ": 1, "+1e5": 1e5, "inf": np.inf, "1e400": np.inf, "nan": None, " NaN": None, "null": None, "TRUE ": 1,
                 "false": 0, "1_000": None, "1,5": None, "t": None, "0x10": None, "-nan": None}),
    (Reading(decimal=","), {"1,5": 1.5, "1.5": None, "1.234,5": None, "-2": -2, "1_0": None, "true": 1}),
    (Reading(null=("true", "7", "n/a")), {"true": None, "7": None, "n/a": None, "false": 0, "70": 70}),
])  # fmt: skip
def test_words_are_read_as_numbers_exactly_where_they_are_numbers(tmp_path, reading, words):
    (tmp_path / "t.csv").write_text("x;y\n" + "".join(f"{word};z\n" for word in words))
    with connect() as connection:
        table = read(connection, tmp_path / "t.csv", dataclasses.replace(reading, header=True), ["x"], "t")
        shown = connection.execute(f"SELECT {number(table, 'x')} FROM {table.name} ORDER BY rowid").fetchall()
    assert [value for (value,) in shown] == [*words.values()]


# ids, and files that are no tables


@pytest.mark.parametrize("word", ["NA", "nan", "None", "\\N", "NULL", "n/a", "#REF!"])
def test_an_end_that_may_be_no_id_is_asked_about(here, word):
    text = f"src,dst\na,b\nb,{word}\nc,a\n"
    message = message_of(edges_of, here, text)
    assert f"e.csv: row 1, column 'dst': {word!r} may be a name or no id" in message
    other = re.search(r"(null=\w+) says that it is a name", message)[1]
    assert edges_of(here, text, f",{other}").n_nodes == 4
    assert of_query(here, message, "").n_edges == 2
    assert f"{word!r} may be a name or no id" in message_of(edges_of, here, text, f",null={word}")
    assert nodes_of(here, f"id,x\na,1\nb,2\nc,3\n{word},4\n").n_nodes == 4  # a table of nodes lists it


def test_a_name_of_pandas_for_a_missing_value_is_asked_about():
    message = message_of(Graph.from_pandas, {"src": ["a", "nan"], "dst": ["b", "c"]})
    assert "row 1, column 'src': 'nan' may be a name or no id: a table of nodes with this name settles it" in message
    graph = Graph.from_pandas({"src": ["a", "nan"], "dst": ["b", "c"]}, nodes={"id": ["a", "b", "c", "nan"]}, id="id")
    assert graph.ids.tolist() == ["a", "b", "c", "nan"]


def test_ids_in_other_unicode_forms_are_named_and_shown(here, capsys):
    (here / "e.csv").write_text("src,dst\ncafe\u0301,b\n")
    assert r"'cafe\u0301' is not in n.csv, column 'id', but 'caf\xe9' is" in message_of(nodes_of, here, "id,x\ncafé,1\nb,2\n")
    (here / "e.csv").write_text("src,dst\na\u200b,b\n")
    assert r"'a\u200b' is not in n.csv, column 'id', but 'a' is" in message_of(nodes_of, here, "id,x\na,1\nb,2\n")
    (here / "e.csv").write_text("src,dst\ncafe\u0301,b\nb,café\n")
    assert main(["convert", "edges:e.csv,src=src,dst=dst", "d", "--allow-empty", "all"]) == 0
    assert "2 ids differ only in blanks, capitals or Unicode form" in capsys.readouterr().out


def test_blanks_around_ids_are_refused_with_a_query_that_trims_them(here):
    (here / "b.csv").write_text("0, 1\n1, 2\n2, 0\n")
    query = QUERY.search(message_of(load, "edges:b.csv", allow_empty=ALL))[0]
    (here / "g.toml").write_text(f'[nodes.u]\n[[edges]]\nrelation=["u","e","u"]\n{query}\nsrc="0"\ndst="1"\n')
    assert load("tables:g.toml", allow_empty=ALL).n_nodes == 3
    (here / "e.csv").write_text("src,dst\na ,b\n")
    message = message_of(nodes_of, here, "id,x\na,1\nb,2\n")
    assert of_query(here, message, edges="", nodes='file="n.csv"\nid="id"').n_edges == 1


def test_an_id_in_two_rows_is_refused_with_a_query_that_keeps_one(here):
    message = message_of(nodes_of, here, "id,x,y\nb,2,q\na,1,p\na,1,q\n", ",labels=y")
    assert "n.csv: row 2, column 'id': 'a' is the id of row 1, too" in message
    (here / "e.csv").write_text("src,dst\na,b\n")
    assert of_query(here, message, "", 'id="id"\nlabels="y"').labels.tolist() == [0, 1]


@pytest.mark.parametrize("name, content, why", [
    ("e.csv", gzip.compress(b"src,dst\na,b\n", mtime=0), "compressed by gzip: its name must end in .gz"),
    ("e.txt", b"PAR1\x15\x04 and more", "a table of Parquet: its name must end in .parquet"),
    ("e.csv", b"PK\x03\x04 and more", "an archive, or a table of Excel"),
    ("e.csv", b"<!DOCTYPE html>\n<html>\n", "HTML or XML, not a table"),
    ("e.csv", b"version https://git-lfs.github.com/spec/v1\noid sha256:a\n", "a pointer of Git LFS: git lfs pull fetches the file"),
    ("e.csv", "\ufeffsrc,dst\nä,b\n".encode("utf-16-be"), "text in UTF-16BE; iconv -f UTF-16BE -t UTF-8"),
    ("e.csv", "src,dst\nä,b\n".encode("utf-16-le"), "text in UTF-16LE; iconv -f UTF-16LE -t UTF-8"),
    ("e.csv", "src,dst\na,b\n".encode("utf-32"), "text in UTF-32; iconv -f UTF-32 -t UTF-8"),
    ("e.graphml", b"<graphml>", "a graph, not a table; networkx reads the file"),
    ("e.csv", b"Export of 2026\n\nsrc,dst\na,b\n", "the columns are named in the line 'src,dst', but the first line is 'Export of 2026'"),
    ("e.csv", b"src,dst\n---,---\na,b\n", "the line below the header is a rule of dashes, not a row"),
])  # fmt: skip
def test_a_file_that_is_no_table_is_refused_by_its_content(here, name, content, why):
    (here / name).write_bytes(content)
    assert f"{name}: {why}" in message_of(load, f"edges:{name},src=src,dst=dst", allow_empty=ALL)
    (here / name.replace("graphml", "csv")).write_text("PAR1,SQLite,src,dst\n1,2,a,b\n")  # names of columns
    assert load(f"edges:{name.replace('graphml', 'csv')},src=src,dst=dst", allow_empty=ALL).n_edges == 1


def test_compressed_json_lines_and_compressed_utf16_are_read(here):
    (here / "e.jsonl.gz").write_bytes(gzip.compress(b'{"src": "a", "dst": "b"}\n{"src": "b", "dst": "c"}\n'))
    (here / "e.csv.gz").write_bytes(gzip.compress("src,dst\nä,ö\n".encode("utf-16")))
    assert load("edges:e.jsonl.gz,src=src,dst=dst", allow_empty=ALL).n_edges == 2
    assert load("edges:e.csv.gz", allow_empty=ALL).n_nodes == 2


def test_a_name_of_a_file_is_no_pattern_for_other_files(here):
    for name in ("x1y.csv", "x*y.csv", "x?y.csv", "c1.csv", "c[1].csv"):
        (here / name).write_text("src,dst\na,b\n")
    for name in ("x*y.csv", "x?y.csv", "c[1].csv"):
        assert load(f"edges:{name},src=src,dst=dst", allow_empty=ALL).n_edges == 1
    (here / "c[1].csv").write_text("src,dst,w\na,b,50%\nb,a,20%\n")
    data = of_query(here, message_of(load, "edges:c[1].csv,src=src,dst=dst,weight=w", allow_empty=ALL), edges='weight="w"')
    assert sorted(data.edge_weight.tolist()) == [20, 50]

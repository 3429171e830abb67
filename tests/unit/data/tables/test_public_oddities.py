"""Tables as public sources publish them: each is read as it is meant, or refused with a remedy that works."""

import re
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from sarlite import Graph
from sarlite.cli.data_command import main
from sarlite.data import load
from sarlite.errors import DataError
from tests.helpers.data.small_tables import ALL, QUERY, TOML, edges_of, message_of, nodes_of, of_query, tables_of

# headers and forms of text


def test_names_that_are_numbers_of_columns_do_not_make_a_header(here):
    (here / "x.csv").write_text("1 2 1 12\n2 3 1 13\n")  # an edge list of KONECT: no header, 1 is a node and a column
    data = load("edges:x.csv,src=0,dst=1,weight=2,time=3,names=edges", allow_empty=ALL)
    assert data.n_edges == 2 and data.one_relation.edge_time.tolist() == [12, 13]
    for text in ("0,1\n1,2\n", "0,1,5\n1,2,5\n", "ann,1\nbob,2\n"):
        (here / "x.csv").write_text(text)
        asked = "src=0,dst=1" if text[0] == "0" else "src=1,dst=1"
        assert "may be a header or a row: header=true or header=false" in message_of(load, f"edges:x.csv,{asked}", allow_empty=ALL)
    (here / "x.csv").write_text("0,1\n1,2\n")
    assert load("edges:x.csv,src=0,dst=1,header=false", allow_empty=ALL).n_edges == 2
    assert load("edges:x.csv,src=0,dst=1,header=true,names=edges", allow_empty=ALL).n_edges == 1


@pytest.mark.parametrize("text, words", [
    ("% sym\n1 2\n", "'% sym', may be a comment: comment=% skips lines that begin with %"),
    ("%%MatrixMarket matrix coordinate real general\n3 3 1\n1 2 5\n", "the file is a MatrixMarket matrix, not a table"),
    ("sep=;\nsrc;dst\na;b\n", "the first line, 'sep=;', tells Excel the separator"),
    ("who\twhom\na\tb\n", r"the first line, 'who\twhom', may be a header or a row"),
])
def test_a_first_line_that_is_no_header_is_named_as_it_stands(here, text, words):
    (here / "x.csv").write_text(text)
    assert words in message_of(load, "edges:x.csv", allow_empty=ALL).replace("\\\\", "\\")


def test_columns_may_be_parted_by_bars(here):
    (here / "x.psv").write_text("src|dst\na|b\nb|c\n")
    assert load("edges:x.psv", allow_empty=ALL).n_edges == 2
    (here / "x.txt").write_text("sp|P1|A sp|P2|B\nsp|P2|B sp|P3|C\n")  # bars within words that blanks part
    assert load("edges:x.txt,header=false", allow_empty=ALL).n_nodes == 3


def test_a_row_that_repeats_the_header_is_refused(here):
    message = message_of(edges_of, here, "src,dst\na,b\nsrc,dst\nb,c\n")
    assert message.startswith("e.csv: row 1, column 'src': 'src': the row repeats the header; query")
    assert of_query(here, message).n_edges == 2
    assert edges_of(here, "src,dst\nsrc,b\nb,dst\n").n_edges == 2  # nodes may be named like a column


def test_text_of_excel_in_another_encoding_names_a_converter(here):
    (here / "n.csv").write_bytes("id;Größe\na;1\n".encode("cp1252"))
    assert "iconv -f WINDOWS-1252 -t UTF-8" in message_of(load, "edges:e.csv,src=src,dst=dst,nodes=n.csv,id=id")


def test_a_column_named_twice_among_features_is_refused(here):
    message = message_of(nodes_of, here, "id,x\na,1\nb,2\nc,3\n", ",features=x:log+x:standard")
    assert message == "features: 'x' is named twice; a query gives a column a second name"
    assert "a TOML file takes columns with a colon in their names" in message_of(
        nodes_of, here, "id,x:int\na,1\nb,2\nc,3\n", ",features=x:int")


# JSON, folders and objects


def test_words_in_json_stay_as_they_are(here):
    names = ["0001E1F0-0000-0000-0000-000000000001", "0001E1F0-0000-0000-0000-000000000002"]
    rows = [f'{{"id":"{name}","x":1,"day":"2020-01-0{at}","y":"2020-01-01"}}' for at, name in enumerate(names, 1)]
    (here / "n.jsonl").write_text("\n".join(rows))
    edges = "src,dst\n" + ",".join(names) + "\n"
    data = edges_of(here, edges, ",nodes=n.jsonl,id=id,labels=y,node_time=day,features=x+day:date")
    assert data.n_edges == 1 and data.class_names == ["2020-01-01"] and data.features.shape == (2, 8)
    times = data.nodes["node"].time
    assert times[1] - times[0] == 86_400 * 10**9


@pytest.mark.parametrize("text, words", [
    ('{"id":"a","x":1}\n{"id":"b","x":2\n', "n.json: record 2: no JSON that can be read: unexpected end of data"),
    ('{"id":"a","x":1,"x":2}\n', "n.json: record 1: no JSON that can be read: .* duplicate key"),
])
def test_damaged_json_is_told_in_words_of_this_project(here, text, words):
    (here / "n.json").write_text(text)
    message = message_of(load, "edges:e.csv,src=src,dst=dst,nodes=n.json,id=id")
    assert re.match(words, message) and "transform error" not in message and "Malformed" not in message


def test_rows_in_a_list_of_an_answer_are_read_by_the_query_of_the_message(here):
    (here / "n.json").write_text('{"data":[{"id":"a","x":1},{"id":"b","x":2},{"id":"c","x":3}],"next":null}')
    message = message_of(load, "edges:e.csv,src=src,dst=dst,nodes=n.json,id=id")
    query = QUERY.search(message)[0]
    (here / "g.toml").write_text(TOML.format(nodes=f'{query}\nid="id"', edges='file="e.csv"'))
    assert load("tables:g.toml", allow_empty=ALL).features.ravel().tolist() == [1, 2, 3]


def test_a_folder_of_spark_is_read_by_the_glob_of_the_message(here):
    import pyarrow as pa
    from pyarrow import parquet

    for country, names in (("FR", ["a", "b"]), ("DE", ["c"])):
        folder = here / "users" / f"country={country}"
        folder.mkdir(parents=True)
        parquet.write_table(pa.table({"id": names, "x": [1.0] * len(names)}), folder / "part-0.parquet")
    (here / "users" / "_SUCCESS").write_text("")
    message = message_of(load, "edges:e.csv,src=src,dst=dst,nodes=users,id=id")
    match = re.fullmatch(r"users: a folder; a glob such as (.*) names its files", message)
    assert match[1] == "users/**/*.parquet"
    data = load(f"edges:e.csv,src=src,dst=dst,nodes={match[1]},id=id,labels=country", allow_empty=ALL)
    assert data.class_names == ["DE", "FR"] and data.n_nodes == 3


def test_objects_that_are_nearly_tables_name_a_remedy():
    polars = pytest.importorskip("polars")

    assert "LazyFrame is not a table; collect() makes a table of it" in message_of(
        Graph.from_pandas, polars.DataFrame({"src": ["a"], "dst": ["b"]}).lazy())
    assert "column 'src': 'abc' is not an array" in message_of(Graph.from_pandas, {"src": "abc", "dst": "abd"})


def test_lists_of_truth_values_are_numbers_and_empty_lists_are_refused():
    assert tables_of({"id": ["a", "b"], "v": [[True, False], [True, True]]}).features.tolist() == [[1, 0], [1, 1]]
    assert "column 'v': its lists are empty" in message_of(tables_of, {"id": ["a", "b"], "v": np.empty((2, 0))}, features=["v"])


def test_tables_of_django_in_sqlite(here):
    base = sqlite3.connect(here / "d.sqlite3")
    base.executescript("""
        CREATE TABLE auth_user(id integer primary key, is_staff bool, joined datetime, score real);
        INSERT INTO auth_user VALUES (1, 1, '2020-01-01 10:00:00.123456', 1.5), (5, 0, '2020-01-02 10:00:00', NULL);
        CREATE TABLE follow(id integer primary key, src bigint, dst bigint); INSERT INTO follow VALUES (1, 1, 5);""")
    base.close()
    (here / "g.toml").write_text(TOML.format(
        nodes='database="d.sqlite3"\ntable="auth_user"\nid="id"\ntime="joined"\nfeatures=["is_staff", "score"]\nfill="0"',
        edges='database="d.sqlite3"\ntable="follow"'))
    data = load("tables:g.toml", allow_empty=ALL)
    assert data.features.tolist() == [[1, 1.5], [0, 0]] and data.indices.tolist() == [0]


# ids


@pytest.mark.parametrize("listed, used", [("01", "1"), ("1", "1.0"), ("Ann", "ann"), ("ann", "ann "), ("7", "007")])
def test_an_id_that_is_nearly_listed_is_named_and_not_all_edges_are_dropped(here, listed, used):
    (here / "n.csv").write_text(f"id,x\n{listed},1\nz,2\n")
    options = ",nodes=n.csv,id=id"
    message = message_of(edges_of, here, f"src,dst\n{used},z\n", options)
    assert f"is not in n.csv, column 'id', but {listed!r} is; " in message and "on_unknown=drop leaves" in message
    message = message_of(edges_of, here, f"src,dst\n{used},z\n", f"{options},on_unknown=drop")
    assert f"{used!r}" in message and message.endswith("so no edge is left")
    assert edges_of(here, f"src,dst\n{used},z\nz,z\n", f"{options},on_unknown=drop").n_edges == 1
    assert edges_of(here, "src,dst\n", f"{options},on_unknown=drop").n_edges == 0


def test_an_id_far_from_all_others_names_none(here):
    assert "but" not in message_of(nodes_of, here, "id,x\na,1\nb,2\n")


# labels


def test_labels_with_leading_zeros_are_words(here):
    data = nodes_of(here, "id,y\na,001\nb,1\nc,010\n", ",labels=y")
    assert data.class_names == ["001", "010", "1"] and data.labels.tolist() == [0, 2, 1]
    assert nodes_of(here, "id,y\na,0\nb,10\nc,0\n", ",labels=y").class_names == ["0", "10"]


LISTS = 'id="id"\nlabels="y"\ntask="multilabel"'


@pytest.mark.parametrize("cells", [["a|b", "b", "a"], ["x;y", "x;z", "x"], ['"a, b"', '"b, c"', "c"]])
def test_cells_of_several_labels_are_asked_about(here, cells):
    text = "id,y\n" + "".join(f"{name},{cell}\n" for name, cell in zip("abc", cells))
    message = message_of(nodes_of, here, text, ",labels=y")
    assert "row 0, column 'y': " in message and "may be several labels" in message and "task=classify says" in message
    assert nodes_of(here, text, ",labels=y,task=classify").n_classes == 3
    for refused in (message, message_of(nodes_of, here, text, ",labels=y,task=multilabel")):
        data = of_query(here, refused, column="", nodes=LISTS)
        assert [[data.class_names[at] for at in np.flatnonzero(row)] for row in data.labels] == [
            re.split(" *[|;,] *", cell.strip('"')) for cell in cells]
    assert nodes_of(here, 'id,y\na,"Paris, Texas"\nb,Rome\nc,Rome\n', ",labels=y").n_classes == 2


def test_lists_in_json_of_a_cell_are_read_by_the_query_of_the_message(here):
    text = 'id,y\na,"[""red"", ""blue sky""]"\nb,[]\nc,"[""red""]"\n'
    data = of_query(here, message_of(nodes_of, here, text, ",labels=y,task=multilabel"), column="", nodes=LISTS)
    assert data.class_names == ["blue sky", "red"] and data.labels.tolist() == [[1, 1], [0, 0], [0, 1]]


def test_a_column_of_lists_of_words_has_several_labels_by_name(here, capsys):
    parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    lists = [["red", "blue", "red"], [], None, [None, "", "red"]]
    parquet.write_table(arrow.table({"id": [*"abcd"], "y": arrow.array(lists, arrow.list_(arrow.string()))}), here / "n.parquet")
    spec = "edges:e.csv,src=src,dst=dst,nodes=n.parquet,id=id,labels=y,task=multilabel"
    data = load(spec, allow_empty=ALL)
    assert data.class_names == ["blue", "red"] and data.labels.tolist() == [[1, 1], [0, 0], [255, 255], [0, 1]]
    assert main(["convert", spec, "g", "--allow-empty", "all"]) == 0
    assert "2 classes: blue 1, red 2\nnode: 1 unlabelled; " in capsys.readouterr().out
    nodes = {"id": ["a", "b"], "y": [["red", "none"], ["red"]]}
    options = {"nodes": nodes, "edges": {"src": ["a"], "dst": ["b"]}, "labels": "y", "task": "multilabel"}
    with pytest.raises(DataError, match="row 0, column 'y': 'none' .1 row. may be a class or no label: \"null\": \"none\""):
        tables_of(**options)
    assert tables_of(**options, null="none").class_names == ["red"] and tables_of(**options, null="nan").class_names == ["none", "red"]
    with pytest.raises(DataError, match="column 'y': no node has a label"):
        tables_of(**{**options, "nodes": {"id": ["a"], "y": [[""]]}})


@pytest.mark.parametrize("labels, words", [([-1, -1, -1], "-1 in all rows"), ([-1, 1, 2], "-1 beside 1 to 2")])
def test_minus_one_beside_other_labels_is_asked_about(here, labels, words):
    text = "id,y\n" + "".join(f"{name},{label}\n" for name, label in zip("abc", labels))
    assert f"{words} may be a class or no label: null=-1 says" in message_of(nodes_of, here, text, ",labels=y")
    assert nodes_of(here, text, ",labels=y,null=-1").labels[0] == -1
    assert nodes_of(here, text, ",labels=y,null=nan").labels[0] == 0
    assert nodes_of(here, "id,y\na,-1\nb,1\nc,1\n", ",labels=y").n_classes == 2


def test_classes_that_differ_in_blanks_or_capitals_are_told(here, capsys):
    (here / "n.csv").write_text("id,y\na,Yes\nb,yes \nc,no\n")
    assert main(["convert", "edges:e.csv,src=src,dst=dst,nodes=n.csv,id=id,labels=y", "d", "--allow-empty", "all"]) == 0
    assert "node: 2 classes differ only in blanks, capitals or Unicode form, such as ['Yes', 'yes ']" in capsys.readouterr().out


# splits and masks


def test_words_of_splits(here):
    text = "id,y,s\na,p,Training\nb,q,validation\nc,p,testing\n"
    data = nodes_of(here, text, ",labels=y,split=s")
    assert [data.train.argmax(), data.val.argmax(), data.test.argmax()] == [0, 1, 2]
    message = message_of(nodes_of, here, "id,y,s\na,p,tr\nb,q,val\nc,p,test\n", ",labels=y,split=s")
    assert "'tr' is not one of train, val, test, none; query" in message
    data = of_query(here, message, "", 'id="id"\nlabels="y"\nsplit="s"\nfeatures=[]')
    assert data.train.tolist() == [True, False, False] and data.test.tolist() == [False, False, True]


def test_words_of_masks(here):
    message = message_of(nodes_of, here, "id,y,m\na,p,yes\nb,q,no\nc,p,\n", ",labels=y,train_mask=m")
    assert "'yes' is neither true nor false; query" in message
    data = of_query(here, message, "", 'id="id"\nlabels="y"\ntrain_mask="m"\nfeatures=[]')
    assert data.train.tolist() == [True, False, False]


# numbers with signs


@pytest.mark.parametrize("cells, values", [
    (["12%", "0.5%", "3%"], [12, 0.5, 3]), (["$1", "$2.50", "-$3"], [1, 2.5, -3]), (["1,234", "12,345,678", "7"], [1234, 12345678, 7]),
    (["€ 5", "6 €", "7"], [5, 6, 7]), (["1.234,5", "2.345,25", "3,5"], [1234.5, 2345.25, 3.5]), (["1,000", "2,000.5", "n"], None),
    (["1 234", "2 000", "3 000"], [1234, 2000, 3000]), (["−1,000", "−2,000", "5"], [-1000, -2000, 5]),
    (["1,5", "2,25", "-3,0"], [1.5, 2.25, -3]),
])
@pytest.mark.parametrize("ask", ["", ",features=x"])
def test_numbers_with_signs_are_asked_about_with_a_remedy_that_works(here, cells, values, ask):
    text = "id,x,z\n" + "".join(f'{name},"{cell}",1\n' for name, cell in zip("abc", cells))
    message = message_of(nodes_of, here, text, ask)
    assert f"n.csv: row 0, column 'x': {cells[0]!r}" in message
    if not ask:
        assert "values are numbers but for signs and separators" in message and "features without the column leaves it out" in message
        assert nodes_of(here, text, ",features=z").n_features == 1
    if values is not None and "decimal=, reads" in message and "query" not in message:
        data = nodes_of(here, text, f"{ask or ',features=x'},decimal=,")
        assert data.features.ravel().tolist() == values
    elif values is not None:
        assert of_query(here, message).features.ravel().tolist() == values


def test_decimal_commas_and_points_are_told_apart_by_the_whole_column(here):
    message = message_of(nodes_of, here, 'id,x,z\na,12%,1\nb,"1,5%",1\nc,3%,1\n')
    assert of_query(here, message).features.ravel().tolist() == [12, 1.5, 3]
    message = message_of(nodes_of, here, 'id,x,z\na,1.5%,1\nb,"1,5%",1\nc,3%,1\n')
    assert "query" not in message and message.endswith("write all of them in one form; features without the column leaves it out")
    message = message_of(nodes_of, here, 'id,x,z\na,"1,234",1\nb,"2,345",1\nc,"3,456",1\n')
    assert "query" in message and "decimal=, reads decimal commas" in message  # either may be meant


@pytest.mark.parametrize("cells", [
    ["192.168.0.1", "10.0.0.1", "8.8.8.8"], ["+49 30 1234", "+49 30 1235", "1"], ["48.1,11.5", "5.5,1.4", "x"], ["5 kg", "6 kg", "7 kg"],
    ["10-20", "20-30", "x"], ["1st", "2nd", "3rd"], ["2020-01-01"] * 3, ["12%", "many", "few"],
])
def test_words_that_only_look_like_numbers_are_left_out(here, cells):
    data = nodes_of(here, "id,x,z\n" + "".join(f'{name},"{cell}",1\n' for name, cell in zip("abc", cells)))
    assert data.provenance["tables"]["nodes"]["node"]["sources"][0]["columns"]["x"] == "left out: words" and data.n_features == 1


def test_numbers_as_words_in_a_typed_table_are_told(here):
    data = tables_of({"id": ["a", "b"], "x": ["1", "2"], "z": [1, 2]})
    columns = data.provenance["tables"]["nodes"]["u"]["sources"][0]["columns"]
    assert columns["x"] == "left out: words, although numbers; features names them" and data.n_features == 1
    assert tables_of({"id": ["a", "b"], "x": ["1", "2"]}, features=["x"]).features.ravel().tolist() == [1, 2]
    assert "'12%' and 1 more of 2 values are numbers but for signs" in message_of(tables_of, {"id": ["a", "b"], "x": ["12%", "3%"]})


def test_new_tables_of_a_model_may_have_further_columns_with_signs(here):
    from sarlite.data.tables.compile import build
    from sarlite.data.tables.description import of_dict
    from sarlite.data.workspace import Workspace

    def built(nodes, transforms=None):
        edges = {"file": {"src": ["a"], "dst": ["b"]}, "relation": ["u", "e", "u"], "src": "src", "dst": "dst"}
        description = of_dict({"nodes": {"u": {"file": nodes, "id": "id", "fill": "mean"}}, "edges": [edges]}, "t")
        description = description if transforms is None else description.with_transforms({"node": transforms})
        return build(description, Workspace(), lambda text: None, {"source": "t", "provenance": {}})

    transforms = built({"id": ["a", "b"], "x": [1, 2]}).nodes["node"].transforms
    data = built({"id": ["a", "b"], "share": ["12%", "3%"], "x": [3, None]}, transforms)
    assert data.features.ravel().tolist() == [3, 1.5]


def test_negative_weights_are_counted(here, capsys):
    (here / "e.csv").write_text("src,dst,w\na,b,-1\nb,a,2\nb,c,-3\nc,a,0\n")
    assert main(["convert", "edges:e.csv,src=src,dst=dst,weight=w", "d", "--allow-empty", "all"]) == 0
    assert "4 edges, 0 self edges, 0 repeat another edge, 2 have a negative weight" in capsys.readouterr().out
    assert main(["info", "d", "--allow-empty", "all"]) == 0 and "2 have a negative weight" in capsys.readouterr().out
    assert edges_of(here, "src,dst,w\na,b,1\n", ",weight=w").provenance["tables"]["edges"]["node.edge.node"]["negative_weights"] == 0


# times and transforms


@pytest.mark.parametrize("word, form, iso", [
    ("Wed Jan 01 10:30:00 2020", "%a %b %d %H:%M:%S %Y", "2020-01-01T10:30"), ("31.12.2020 23:59", "%d.%m.%Y %H:%M", "2020-12-31T23:59"),
    ("01/31/2020 10:30", "%m/%d/%Y %H:%M", "2020-01-31T10:30"), ("2020-07", "%Y-%m", "2020-07-01"),
    ("20200131T101010", "%Y%m%dT%H%M%S", "2020-01-31T10:10:10"), ('"Jan 31, 2020"', "%b %d, %Y", "2020-01-31"),
])
def test_the_remedy_for_odd_dates_names_their_form(here, word, form, iso):
    for text, options in ((f"src,dst,t\na,b,{word}\n", ",time=t"), (f"src,dst,t\na,b,{word}\n", ",edge_features=t:date")):
        message = message_of(edges_of, here, text, options)
        assert f"reads dates of the form {form}" in message
    data = of_query(here, message, edges='time="t"')
    assert np.datetime64(int(data.one_relation.edge_time[0]), "ns") == np.datetime64(iso)


def test_times_with_a_point_and_unknown_forms_name_a_query(here):
    message = message_of(edges_of, here, "src,dst,t\na,b,1577836800.5\na,b,1577836801.0\n", ",time=t")
    assert of_query(here, message, edges='time="t"').one_relation.edge_time.tolist() == [1577836800500000, 1577836801000000]
    assert "reads dates of another FORM" in message_of(edges_of, here, "src,dst,t\na,b,1st of May\n", ",time=t")
    for word in ("2020-02-30", "soon"):
        assert "query" not in message_of(edges_of, here, f"src,dst,t\na,b,{word}\n", ",time=t")


@pytest.mark.parametrize("transform, values", [("standard", [-1, 1]), ("minmax", [0, 1]), ("number", [2**53 + 1, 2**53 + 3])])
def test_a_column_may_be_a_time_and_a_transformed_feature(here, transform, values):
    rows = f"src,dst,t\na,b,{2**53 + 1}\na,c,{2**53 + 3}\n"
    data = edges_of(here, rows, f",time=t,weight=t,edge_features=t:{transform}")
    assert data.one_relation.edge_time.tolist() == [2**53 + 1, 2**53 + 3]  # not through float64
    assert data.edge_features.ravel().tolist() == pytest.approx(values, rel=1e-6)
    assert data.edge_weight.tolist() == [float(2**53 + 1), float(2**53 + 3)]


def test_the_remedy_for_a_missing_value_is_in_the_words_of_the_door(here):
    text = "id,x,c\na,1,p\nb,,q\nc,3,\n"
    message = message_of(nodes_of, here, text, ",features=x:standard+c:onehot")
    assert "fill=0 or fill=mean replaces missing numbers" in message
    for form in re.findall(r"features = (\{.*?\} \}) in a TOML file", message):
        (here / "g.toml").write_text(TOML.format(nodes=f'file="n.csv"\nid="id"\nfeatures = {form}', edges='file="e.csv"'))
        assert load("tables:g.toml", allow_empty=ALL).features[:, -1].sum() == 1
    assert len(re.findall("in a TOML file", message)) == 2
    message = message_of(tables_of, {"id": ["a", "b"], "x": [1, None]}, features={"x": "standard"})
    assert '"fill": "0" or "fill": "mean"' in message and '"features": {"x": {"transform": "standard", "missing": "indicator"}}' in message
    assert "TOML" not in message and "edges:" not in message


def test_results_of_the_remedies_do_not_depend_on_other_columns(here):
    message = message_of(nodes_of, here, "id,x,z\n007,12%,1\nb,3%,2\nc,4%,3\n")
    (here / "e.csv").write_text("src,dst\n007,b\n")
    data = of_query(here, message)
    assert data.n_edges == 1 and Path("n.csv").exists() and data.features.ravel().tolist() == [12, 3, 4]


def test_links_by_name_are_read_from_text_and_parquet(here):
    import pyarrow as pa
    from pyarrow import parquet

    from sarlite.data.names import Names
    from sarlite.tasks.link_edges import Ends
    from sarlite.tasks.link_files import read_pairs

    names = Names.of_dataset(edges_of(here, "src,dst\na,7\n7,007\n", ",names=edges"))["node"]  # 007, 7, a
    ends = [Ends(0, 3, names=names)] * 2
    parquet.write_table(pa.table({"who": ["a", "007"], "whom": ["7", "a"]}), "l.parquet")
    (here / "l.csv").write_text("source,target\na,7\n007,a\n")
    assert read_pairs("l.parquet", ends).tolist() == read_pairs("l.csv", ends).tolist() == [[2, 1], [0, 2]]
    parquet.write_table(pa.table({"who": [7], "whom": [7]}), "l.parquet")
    assert read_pairs("l.parquet", ends).tolist() == [[1, 1]]
    parquet.write_table(pa.table({"who": ["a"], "whom": ["7"], "w": [1]}), "l.parquet")
    assert message_of(read_pairs, "l.parquet", ends) == "l.parquet: links: columns who, whom, w, expected two, source and destination"
    parquet.write_table(pa.table({"who": ["a", "A"], "whom": ["7", "7"]}), "l.parquet")
    assert message_of(read_pairs, "l.parquet", ends) == "l.parquet: row 1, column 'who': no node is named 'A'"
    (here / "l.csv").write_text("a 7\n")
    assert "1 names, expected two, source and destination, parted by commas: 'a 7'" in message_of(read_pairs, "l.csv", ends)


@pytest.mark.parametrize("options", ["features=x.csv", "labels=x.csv,task=regress"])
def test_rows_by_node_number_with_a_column_of_ids_are_asked_about(here, options):
    (here / "e.csv").write_text("0,1\n1,2\n")
    (here / "x.csv").write_text("node,f\n2,0.1\n1,0.3\n0,0.5\n")
    message = message_of(load, f"edges:e.csv,{options}", allow_empty=ALL)
    assert "column 'node' has each number from 0 to 2 once, so it may be the nodes' ids" in message
    (here / "e.csv").write_text("src,dst\n0,1\n1,2\n")
    assert load(f"edges:e.csv,{message.partition('i: ')[2].partition(' reads')[0]}", allow_empty=ALL).features.ravel().tolist() == \
        np.float32([0.1, 0.3, 0.5]).tolist()
    for text in ("f,node\n2,2\n1.5,1\n0,0\n", "node,f\n2,1\n1,1\n1,1\n", "2,0.1\n1,0.3\n0,0.5\n"):
        (here / "x.csv").write_text(text)
        assert load(f"edges:e.csv,{options}", allow_empty=ALL).n_nodes == 3


def test_likely_ends_are_proposed(here):
    (here / "x.csv").write_text("id,Source,Target,Weight\n0,a,b,1\n")
    assert "src=Source,dst=Target (and" in message_of(load, "edges:x.csv", allow_empty=ALL)

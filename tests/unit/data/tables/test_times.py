"""Times of nodes and edges: read from tables, kept as int64, stored, divided, and shown."""

import re
from datetime import datetime, timedelta, timezone

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sarlite.cli.data_command import main
from sarlite.data import format, from_tables, load
from sarlite.data.divide import in_memory
from sarlite.data.part import Part
from sarlite.data.times import read_time, show_time
from sarlite.errors import ConfigError, DataError
from tests.helpers.data.small_tables import ALL, edges_of, message_of, of_query

DAY = 24 * 3600 * 10**9
MARCH = 20513 * DAY  # 2026-03-01


def graph(times, node_times=None, **more):
    n = len(times)
    edges = {"relation": ["a", "to", "a"], "file": {"s": [*range(n)], "d": [*range(1, n + 1)], "t": times}, "src": "s",
             "dst": "d", "time": "t", "reverse": False, **more}
    nodes = {"count": n + 1} if node_times is None else {
        "file": {"id": [*range(n + 1)], "x": [1.0] * (n + 1), "at": node_times}, "time": "at"}
    return from_tables({"nodes": {"a": nodes}, "edges": [edges]})


@pytest.mark.parametrize("words, kind, expected", [
    (["2026-03-01", "2026-03-02"], "dates", [MARCH, MARCH + DAY]),
    (["2026-03-01T02:00:00+02:00", "2026-03-01T00:00:00.000000001Z"], "dates", [MARCH, MARCH + 1]),
    (["9007199254740993", "-1"], "integers", [9007199254740993, -1]),
])  # fmt: skip
def test_words_are_times_to_the_last_bit(words, kind, expected):
    dataset = graph(words)
    assert dataset.edge_time.dtype == np.int64 and dataset.edge_time.tolist() == expected
    assert dataset.time_kind == kind


@pytest.mark.parametrize("typed", [
    np.array(["2026-03-01", "2026-03-02"], "M8[D]"), np.array(["2026-03-01", "2026-03-02"], "M8[ns]"),
    [datetime(2026, 3, 1), datetime(2026, 3, 2)],
])  # fmt: skip
def test_dates_of_each_type_are_nanoseconds(typed):
    assert graph(typed).edge_time.tolist() == [MARCH, MARCH + DAY]


@pytest.mark.parametrize("times, message", [
    (["2026-03-01", None], "edges a.to.a: row 1, column 't': no time; each row needs one; in the query or the table"),
    (["2026-03-01", ""], "row 1, column 't': no time"),
    (["2026-03-01", "2026-13-01"], "row 1, column 't': '2026-13-01' is not a date or timestamp of ISO 8601"),
    (["12", "1.5"], "row 1, column 't': '1.5' is not a whole number of 64 bits"),
    ([1.0, 2.5], "column 't' has no times, which are dates, timestamps or whole numbers; in the query or the table, SELECT"),
    ([datetime(2026, 3, 1), datetime(2400, 1, 1)], "row 1, column 't': .* does not fit nanoseconds since 1970"),
    (["epoch", "infinity"], "row 0, column 't': 'epoch' is not a date or timestamp.*, and not a whole number"),
    (["2026-03-01", "infinity"], "row 1, column 't': 'infinity' is not a date or timestamp"),
    (["12", "99999999999999999999"], "row 1, column 't': '99999999999999999999' is not a whole number of 64 bits"),
])  # fmt: skip
def test_what_is_no_time_is_refused_with_its_row(times, message):
    with pytest.raises(DataError, match=message):
        graph(times)


@pytest.mark.parametrize("times, kept, settled, message", [
    (["1700000000", "1700000000123", "1600000000"], [1700000000, 1700000000, 1600000000], [1700000000, 1700000000123, 1600000000],
     "e.csv: column 't': 1600000000 is 2020-09-13T12:26:40 in seconds and 1700000000123 is 2023-11-14T22:13:20.123 in milliseconds: "
     "null=nan says that all have one unit; query"),
    (["1600000000000", "1700000000123456789", "0"], [1600000000000, 1700000000123, 0], [1600000000000, 1700000000123456789, 0],
     "in milliseconds and 1700000000123456789 is 2023-11-14T22:13:20.123456789 in nanoseconds: null=nan"),
    (["1900-01-01", "2024-03-01", "2023-03-01"], ["2024-03-01", "2023-03-01"], ["1900-01-01", "2024-03-01", "2023-03-01"],
     "the first time, 1900-01-01, and the last, 2024-03-01, are more than 100 years apart: null=nan says that all are times; query"),
    (["2024-03-01", "2024-03-02", "2200-01-01"], ["2024-03-01", "2024-03-02"], ["2024-03-01", "2024-03-02", "2200-01-01"],
     "the last, 2200-01-01, are more than 100 years apart"),
])  # fmt: skip
def test_times_that_may_be_of_two_units_or_centuries_apart_are_asked_about(times, kept, settled, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "e.csv").write_text("s,d,t\n" + "".join(f"0,{node},{time}\n" for node, time in enumerate(times)))
    with pytest.raises(DataError) as caught:
        load("edges:e.csv,src=s,dst=d,time=t", allow_empty=ALL)
    assert message in str(caught.value)
    query = re.search("query = '''.*?'''+", str(caught.value))[0]
    (tmp_path / "g.toml").write_text(f'[nodes.u]\nnames="edges"\n[[edges]]\nrelation=["u","e","u"]\n{query}\nsrc="s"\ndst="d"\ntime="t"\n')
    for spec, expected in (("tables:g.toml", kept), ("edges:e.csv,src=s,dst=d,time=t,null=nan", settled)):
        as_numbers = [int(np.datetime64(time, "ns").view(np.int64)) if isinstance(time, str) else time for time in expected]
        assert sorted(load(spec, allow_empty=ALL).one_relation.edge_time.tolist()) == sorted(as_numbers)


@pytest.mark.parametrize("times", [[1, 5 * 10**12], [17 * 10**8, 5 * 10**10, 17 * 10**11], [0, 17 * 10**8], ["1930-01-01", "2024-01-01"]])
def test_times_of_one_unit_are_not_asked_about(times):
    assert len(graph(times).edge_time) == len(times)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
def test_timestamps_of_arrow_are_exact_in_memory_and_in_files(unit, zone, tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    n = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    times = [-(10**8) * n - 1, 17 * 10**8 * n + n - 1]
    table = arrow.table({"s": [0, 1], "d": [1, 2], "t": arrow.array(times, arrow.timestamp(unit, tz=zone))})
    for name in ("1.parquet", "2.parquet"):
        parquet.write_table(table, tmp_path / name)
    expected = [time * (10**9 // n) for time in times]
    for source, n_tables in ((table, 1), (table.to_pandas(), 1), (str(tmp_path / "1.parquet"), 1), (str(tmp_path / "*.parquet"), 2)):
        dataset = graph([0, 0], file=source)
        assert sorted(dataset.edge_time.tolist()) == sorted(expected * n_tables) and dataset.time_kind == "dates"


def test_times_of_two_kinds_are_refused():
    with pytest.raises(DataError, match="tables: time has integers, but tables: edge_time has dates"):
        graph(["2026-03-01"], [1, 2])


def test_a_time_is_no_feature_and_stays_with_its_edge_in_both_directions():
    edges = {"relation": ["u", "buys", "i"], "file": {"s": [0, 1, 1], "d": [1, 1, 0], "t": [7, 5, 6]}, "src": "s", "dst": "d", "time": "t"}
    users = {"file": {"id": [0, 1], "x": [1.0, 2.0], "at": [3, 4]}, "time": "at"}
    dataset = from_tables({"nodes": {"u": users, "i": {"count": 2}}, "edges": [edges]})
    assert dataset.nodes["u"].feature_names == ["x"] and dataset.nodes["u"].time.tolist() == [3, 4]
    assert dataset.edges["u", "buys", "i"].edge_time.tolist() == [6, 7, 5]
    back = next(table for relation, table in dataset.edges.items() if relation[0] == "i")
    assert back.indices.tolist() == [1, 0, 1] and back.edge_time.tolist() == [7, 6, 5]


def test_edges_of_two_times_are_two_edges_where_equal_edges_are_joined(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "e.csv").write_text("s,d,t\n0,1,5\n0,1,6\n1,0,5\n0,1,5\n")
    dataset = load("edges:e.csv,src=s,dst=d,time=t", undirected=True, allow_empty=ALL)
    assert dataset.indices.tolist() == [1, 1, 0, 0] and sorted(dataset.edge_time.tolist()) == [5, 5, 6, 6]


def test_times_come_back_from_a_directory_and_travel_to_their_ranks(tmp_path):
    dataset = graph([50, 40, 30, 20, 10], [5, 4, 3, 2, 1, 0])
    format.write(tmp_path / "g", dataset)
    stored = format.open(tmp_path / "g", verify=True)
    assert stored.equals(dataset) and stored.time_kind == "integers"
    parts = np.array([1, 0, 1, 0, 1, 0])
    divided = in_memory(stored, parts, 2)
    format.write(tmp_path / "two", divided)
    for rank in range(2):
        part = Part(format.open(tmp_path / "two"), rank, 2)
        nodes, edges = part.nodes["node"], part.relations["node", "edge", "node"]
        assert nodes.read("time").tolist() == [5 - node for node in nodes.ids()]
        destinations = np.repeat(nodes.ids(), np.diff(edges.csr()[0]))
        assert edges.values("edge_time").tolist() == [60 - 10 * node for node in destinations]


def test_a_directory_whose_times_are_of_no_kind_is_refused(tmp_path):
    from sarlite.data.writer import write_meta

    format.write(tmp_path / "g", graph([5, 6]))
    meta = format.read_meta(tmp_path / "g")
    meta["edges"]["node.edge.node"]["time"] = "moons"
    write_meta(tmp_path / "g", meta)
    with pytest.raises(DataError, match="node.edge.node: time: expected dates or integers, found 'moons'"):
        format.open(tmp_path / "g")


def test_convert_and_info_show_the_first_and_the_last_time(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "e.csv").write_text("s,d,t\n0,1,2026-03-01\n1,0,2026-03-02T10:30:00.5\n")
    assert main(["convert", "edges:e.csv,src=s,dst=d,time=t", "g", "--allow-empty", "all"]) == 0
    shown = capsys.readouterr().out
    assert "  t: time\n" in shown and "times (dates) from 2026-03-01 to 2026-03-02T10:30:00.5" in shown
    assert main(["info", "g", "--allow-empty", "all"]) == 0
    assert "times (dates) from 2026-03-01 to 2026-03-02T10:30:00.5" in capsys.readouterr().out


@given(st.integers(-(2**62), 2**62))
def test_a_shown_time_is_read_again(time):
    assert read_time(show_time(time, "dates"), "dates", "t") == time
    assert read_time(show_time(time, "integers"), "integers", "t") == time


def test_a_time_may_have_a_zone_and_words_are_refused():
    eastern = datetime(2026, 3, 1, tzinfo=timezone(timedelta(hours=-5)))
    assert read_time(eastern.isoformat(), "dates", "t") == MARCH + 5 * 3600 * 10**9
    with pytest.raises(ConfigError, match="split: 'March' is not a date or timestamp"):
        read_time("March", "dates", "split")
    with pytest.raises(ConfigError, match="split: '2026-03-01' is not a whole number"):
        read_time("2026-03-01", "integers", "split")
    for text in ("2300-01-01", "1600-01-01", "0001-01-01T00:00+02:00"):
        with pytest.raises(ConfigError, match=r"split: .* does not fit .*1678 to 2261"):
            read_time(text, "dates", "split")
    assert read_time("1969-12-31T23:59:59.5+00:00", "dates", "split") == -(5 * 10**8)


@pytest.mark.parametrize("words, expected", [
    ("13/02/2026 01/02/2026", "2026-02-01 2026-02-13"), ("01/13/2026 02/01/2026", "2026-01-13 2026-02-01"),
    ("01-02-26 03-04-26", "2026-02-01 2026-04-03"), ("1-Feb-2026 2-FEB-2026", "2026-02-01 2026-02-02"),
    ("1.7727552E+9 1.7727553E+9", "1772755200000000 1772755300000000"), ("2026-02-01 NaT", "2026-02-01 2026-02-01"),
    ("2026-02-01 9999-12-31", "2026-02-01 2026-02-01"), ("2026-02-01 nan", "2026-02-01 2026-02-01"),
    ("2026-02-01_11:30_PM 2026-02-02_10:00_AM", "2026-02-01T23:30:00 2026-02-02T10:00:00"),
    ("2026-02-01_10:00:00_+0100_UTC 2026-02-02_10:00:00_+0000_UTC", "2026-02-01T09:00:00 2026-02-02T10:00:00"),
])  # fmt: skip
def test_the_query_of_a_message_reads_dates_of_another_form_or_leaves_them_out(here, words, expected):
    text = "src,dst,t\n" + "".join(f"a,b,{word.replace('_', ' ')}\n" for word in words.split())
    data = of_query(here, message_of(edges_of, here, text, ",time=t"), edges='time="t"')
    assert [show_time(time, data.time_kind) for time in sorted(data.edge_time.tolist())][:: max(data.n_edges - 1, 1)] == [
        *dict.fromkeys(expected.split())]


def test_unix_times_of_two_tables_in_different_units_are_asked_about(here):
    nodes = {"file": {"id": [0, 1], "at": [1_772_755_200_000, 1_772_755_300_000]}, "id": "id", "time": "at"}
    edges = {"file": {"s": [0], "d": [1], "t": [1_772_755_200]}, "relation": ["a", "e", "a"], "src": "s", "dst": "d", "time": "t"}
    message = message_of(from_tables, {"nodes": {"a": nodes}, "edges": [edges]})
    assert ("column 'at': 1772755200000 is 2026-03-06 in milliseconds, but edges a.e.a: column 't': 1772755200 is 2026-03-06 in seconds"
            in message)
    assert 'CAST("at" AS BIGINT) // 1000' in message and '"null": "nan" says that all have one unit' in message
    assert from_tables({"nodes": {"a": nodes}, "edges": [{**edges, "null": "nan"}]}).n_edges == 1


def test_the_name_of_a_column_may_have_braces(here):
    message = message_of(edges_of, here, "src,dst,{t}\na,b,13/02/2026\n", ",time={t}")
    assert "'%d/%m/%Y'" in message

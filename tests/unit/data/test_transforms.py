"""Transforms of columns against plain references in NumPy, pandas and scikit-learn, on random tables."""

import doctest
import hashlib
import json
import math
import re
from datetime import datetime

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sarlite.data.tables import transforms
from sarlite.data.tables.transforms import Feature, Fitted, fit
from sarlite.errors import ConfigError, DataError

duckdb = pytest.importorskip("duckdb")
pd = pytest.importorskip("pandas")
sklearn = pytest.importorskip("sklearn")
pytest.importorskip("sklearn.preprocessing")
pytestmark = pytest.mark.timeout(120)

FLOATS = st.floats(-1e6, 1e6, allow_subnormal=False)
NUMBERS = st.lists(st.one_of(st.none(), FLOATS, st.integers(-3, 3).map(float)), min_size=1, max_size=40)
WORDS = st.lists(st.one_of(st.none(), st.sampled_from(["FR", "de", "it's", 'say "a"', "ü", "x,y", "0"])), min_size=1, max_size=40)
DATABASE = duckdb.connect()
"""Database in memory whose table each example replaces: making a database takes longer than a query."""


def table(connection, **columns):
    """Create a table `t` of columns with the rows' numbers, `nr`; odd rows are training rows."""
    frame = pd.DataFrame({name: pd.Series(values, dtype="float64" if any(isinstance(v, float) for v in values) else object)
                          for name, values in columns.items()})
    frame["nr"] = range(len(frame))
    connection.execute("CREATE OR REPLACE TABLE t AS SELECT * FROM frame")
    return "t"


def rows(connection, fitted, relation="t"):
    """Return the features by name."""
    arrow_table = connection.execute(f"SELECT {fitted.select(connection, relation)} FROM {relation}").arrow().read_all()
    assert {str(kind) for kind in arrow_table.schema.types} == {"float"} and not any(column.null_count for column in arrow_table.columns)
    assert arrow_table.column_names == fitted.names
    return {name: np.array(arrow_table[name]) for name in arrow_table.column_names}


def split(values):
    """Return the values that are not missing, of all rows and of odd rows, as arrays."""
    x = np.array([math.nan if value is None else value for value in values])
    return x, x[1::2][~np.isnan(x[1::2])]


def close(actual, expected, message=""):
    np.testing.assert_allclose(actual, np.asarray(expected, np.float64), rtol=2e-6, atol=2e-6, err_msg=message)


# ---- numbers


def standard(x, train):
    if train.std() <= 1e-9 * abs(train).max():
        return None  # scikit-learn treats such a column as constant
    return sklearn.preprocessing.StandardScaler().fit(train[:, None]).transform(x[:, None])[:, 0]


def minmax(x, train):
    return sklearn.preprocessing.MinMaxScaler().fit(train[:, None]).transform(x[:, None])[:, 0] if np.ptp(train) else x - train[0]


def quantile(x, train):
    """Return quantiles as scikit-learn does: the mean of the interpolations from the left and from the right."""
    references, shares = np.percentile(train, np.arange(101)), np.linspace(0, 1, 101)
    up, down = np.interp(x, references, shares), 1 - np.interp(-x, -references[::-1], shares)
    middle = (up + down) / 2
    return np.where(x < references[0], 0, np.where(x > references[-1], 1, middle))


REFERENCES = {"number": lambda x, train: x, "log": lambda x, train: np.sign(x) * np.log1p(abs(x)), "standard": standard,
              "minmax": minmax, "quantile": quantile}  # fmt: skip


@pytest.mark.parametrize("name", REFERENCES)
@settings(max_examples=30, deadline=None)
@given(values=NUMBERS, missing=st.sampled_from(["0", "mean", "median", "indicator", "median+indicator"]))
def test_numbers_are_transformed_as_by_the_reference(name, values, missing):
    connection, (x, train) = DATABASE.cursor(), split(values)
    table(connection, x=[*values, 0.5, 1.25])
    x, train = split([*values, 0.5, 1.25])
    feature = Feature.parse({"transform": name, "missing": missing}, "x")
    if not len(train):
        return
    fill = {"0": 0.0, "mean": train.mean(), "median": np.median(train)}.get(missing.partition("+")[0])
    filled = np.where(np.isnan(x), 0.0 if fill is None else fill, x)
    expected = REFERENCES[name](filled, train)
    if expected is None:
        return
    expected = np.where(np.isnan(x), 0, expected) if fill is None else expected
    columns = rows(connection, fit(connection, "t", {"x": feature}, "nr % 2 = 1"))
    scale = max(1, abs(expected).max())
    close(columns["x"] / scale, expected / scale)
    assert ("x.missing" in columns) == ("indicator" in missing)
    if "indicator" in missing:
        close(columns["x.missing"], np.isnan(x))


def test_quantiles_of_many_rows_are_scikit_learns():
    from sklearn.preprocessing import QuantileTransformer

    x = np.random.default_rng(0).gamma(2.0, 3.0, 3000)
    connection = duckdb.connect()
    table(connection, x=x.tolist())
    column = rows(connection, fit(connection, "t", {"x": Feature("quantile")}, None))["x"]
    expected = QuantileTransformer(n_quantiles=101, subsample=None).fit_transform(x[:, None])[:, 0]
    close(column, expected)


def test_a_constant_column_becomes_zeros():
    connection = duckdb.connect()
    table(connection, x=[7.0, 7.0, 7.0])
    for name, value in (("standard", 0), ("minmax", 0), ("quantile", 0.5)):
        close(rows(connection, fit(connection, "t", {"x": Feature(name)}, None))["x"], [value] * 3, name)


def test_statistics_come_from_training_rows_alone_and_are_kept():
    connection = duckdb.connect()
    table(connection, x=[1.0, 3.0, 1000.0, 5.0])
    fitted = fit(connection, "t", {"x": Feature("standard")}, "nr <> 2")
    assert fitted.statistics["x"]["mean"] == 3.0 and fitted.on_training_rows
    assert fitted.descriptions() == {"x": "standard of training rows: mean 3, deviation 1.63299"}
    table(connection, x=[3.0, 4.0])  # the table of a prediction
    close(rows(connection, fitted)["x"], [0, 1 / np.std([1.0, 3.0, 5.0])])
    every = fit(connection, "t", {"x": Feature("standard")}, None)
    assert not every.on_training_rows and "all rows, as no training rows are known" in every.descriptions()["x"]


def test_equal_rows_give_equal_bits_on_any_number_of_threads():
    rng = np.random.default_rng(0)
    x = (rng.normal(size=300_000) * 10.0 ** rng.integers(-9, 9, 300_000)).tolist()
    fits = []
    for threads in (1, 4):
        connection = duckdb.connect()
        connection.execute(f"SET threads = {threads}")
        table(connection, x=x)
        fits.append(json.dumps(fit(connection, "t", {"x": Feature("standard"), "nr": Feature("quantile")}, None).to_json()))
        assert connection.execute("SELECT current_setting('threads')").fetchone()[0] == threads
    assert fits[0] == fits[1]


# ---- words


@settings(max_examples=30, deadline=None)
@given(train=WORDS, new=WORDS, at_least=st.sampled_from([None, 1, 2, 3]))
def test_onehot_has_a_column_for_each_frequent_category_and_one_for_the_others(train, new, at_least):
    connection = DATABASE.cursor()
    table(connection, c=[*train, None])
    fitted = fit(connection, "t", {"c": Feature("onehot", ("indicator",), at_least)}, None)
    counts = pd.Series(train, dtype=object).dropna().value_counts()
    categories = sorted(counts.index[counts >= (at_least or 1)])
    expected = {f"c={word}": [word == value for value in new] for word in categories}
    if at_least is not None:
        expected["c=(other)"] = [value is not None and value not in categories for value in new]
    expected["c.missing"] = [value is None for value in new]
    table(connection, other=["no"] * len(new), c=new)
    columns = rows(connection, fitted)
    assert [*columns] == [*expected]
    for name, column in expected.items():
        close(columns[name], column, name)


@settings(max_examples=30, deadline=None)
@given(words=WORDS, n=st.integers(1, 9))
def test_a_hash_sets_the_column_that_the_md5_of_the_word_names(words, n):
    connection = DATABASE.cursor()
    table(connection, c=[*words, "one"])
    columns = rows(connection, fit(connection, "t", {"c": Feature.parse({"transform": f"hash:{n}", "missing": 0}, "c")}, None))
    for row, word in enumerate([*words, "one"]):
        expected = [0] * n
        if word is not None:
            expected[_hash(word) % n] = 1
        assert [columns[f"c.hash{at}"][row] for at in range(n)] == expected


def _hash(word):
    return int.from_bytes(hashlib.md5(word.encode()).digest()[8:], "little")


@settings(max_examples=30, deadline=None)
@given(texts=st.lists(st.one_of(st.none(), st.text("aB ü-9\n", max_size=12)), min_size=1, max_size=20), n=st.integers(1, 7))
def test_a_text_counts_words_and_pairs_of_words_by_hash(texts, n):
    connection = DATABASE.cursor()
    table(connection, c=[*texts, "one Two"])
    columns = rows(connection, fit(connection, "t", {"c": Feature("text", ("0",), n)}, None))
    for row, text in enumerate([*texts, "one Two"]):
        words = re.findall(r"[^\W_]+", (text or "").lower())
        every = words + [f"{a} {b}" for a, b in zip(words, words[1:])]
        expected = np.bincount([_hash(word) % n for word in every], minlength=n) / math.sqrt(max(len(every), 1))
        close([columns[f"c.text{at}"][row] for at in range(n)], expected, repr(text))


# ---- dates and lists


DATES = st.datetimes(datetime(1700, 1, 1), datetime(2200, 1, 1))


@settings(max_examples=30, deadline=None)
@given(dates=st.lists(st.one_of(st.none(), DATES), min_size=1, max_size=20), words=st.booleans())
def test_a_date_becomes_a_standardized_year_and_sines_and_cosines(dates, words):
    connection, every = DATABASE.cursor(), [*dates, datetime(2026, 3, 1, 14)]
    column = pd.Series([date and date.isoformat() if words else date for date in every], dtype=object)
    connection.register("frame", pd.DataFrame({"d": column}))
    connection.execute(f"CREATE OR REPLACE TABLE t AS SELECT CAST(d AS {'VARCHAR' if words else 'TIMESTAMP'}) AS d FROM frame")
    columns = rows(connection, fit(connection, "t", {"d": Feature("date", ("indicator",))}, None))
    assert [*columns] == ["d.year", "d.month_sin", "d.month_cos", "d.weekday_sin", "d.weekday_cos", "d.hour_sin", "d.hour_cos", "d.missing"]
    years = np.array([date.year for date in every if date])
    for row, date in enumerate(every):
        row_values = [columns[name][row] for name in columns]
        if date is None:
            assert row_values == [0] * 7 + [1]
            continue
        angles = [2 * math.pi * (date.month - 1) / 12, 2 * math.pi * date.weekday() / 7, 2 * math.pi * date.hour / 24]
        close(row_values, [(date.year - years.mean()) / (years.std() or 1), *(f(a) for a in angles for f in (math.sin, math.cos)), 0])


@pytest.mark.parametrize("kind", ["DATE", "TIMESTAMP_NS", "TIMESTAMP WITH TIME ZONE"])
def test_kinds_of_dates(kind):
    connection = duckdb.connect()
    connection.execute(f"CREATE TABLE t AS SELECT CAST('2026-03-02 00:00:00' AS {kind}) AS d")
    if kind.endswith("ZONE"):
        connection.execute("CREATE OR REPLACE TABLE t AS SELECT make_timestamptz(1772409600000000) AS d")
    columns = rows(connection, fit(connection, "t", {"d": Feature("date")}, None))
    close([columns["d.weekday_cos"][0], columns["d.month_sin"][0], columns["d.hour_cos"][0]], [1, math.sin(math.pi / 3), 1])


def test_lists_as_they_are():
    connection = duckdb.connect()
    connection.execute("CREATE TABLE t AS SELECT * FROM (VALUES ([1, 2], '[3, 4.5]'), (NULL, '')) t(v, w)")
    fitted = fit(connection, "t", {"w": Feature("vector", ("0",)), "v": Feature("vector", ("indicator",))}, None)
    columns = rows(connection, fitted)
    assert {name: column.tolist() for name, column in columns.items()} == {
        "w.0": [3, 0], "w.1": [4.5, 0], "v.0": [1, 0], "v.1": [2, 0], "v.missing": [0, 1]}
    connection.execute("CREATE OR REPLACE TABLE t AS SELECT * FROM (VALUES ([1, 2], [1, 2]), ([1], [1, 2])) t(v, w)")
    with pytest.raises(DataError, match=r"new: row 1, column 'v': '\[1\]' .*2 numbers"):
        fitted.select(connection, "t", "new")


# ---- what is kept


def every_kind(connection):
    connection.execute("CREATE OR REPLACE TABLE t AS SELECT i::DOUBLE AS x, 'it''s ' || i % 3 AS c, "
                       "DATE '2024-01-01' + i::INT AS d, [i, 1] AS v, i = 2 AS flag FROM range(9) r(i)")
    columns = {"flag": "number", "c": {"transform": "onehot", "at_least": 2}, "d": "date", "v": "vector"}
    features = {name: Feature.parse(value, name) for name, value in columns.items()}
    return fit(connection, "t", {"x": Feature("quantile", ("median", "indicator")), **features}, "x < 6")


def test_transforms_stay_the_same_through_json_and_for_columns_in_another_order():
    connection = duckdb.connect()
    fitted = every_kind(connection)
    again = Fitted.from_json(json.loads(json.dumps(fitted.to_json())))
    assert again == fitted and again.names == fitted.names
    expected = rows(connection, fitted)
    connection.execute("CREATE VIEW o AS SELECT 'more' AS more, v, d, c, flag, x FROM t")
    columns = rows(connection, again, "o")
    for name in expected:
        np.testing.assert_array_equal(columns[name], expected[name], err_msg=name)
    with pytest.raises(DataError, match="new.csv: no column 'd', .*'v', 'x', 'flag', 'c'"):
        connection.execute("CREATE VIEW lacking AS SELECT v, x, flag, c FROM t")
        again.select(connection, "lacking", "new.csv")


DAMAGES = {
    "columns": lambda document: document.pop("columns"),
    "a transform": lambda document: document["columns"]["x"].update(transform="exec"),
    "statistics": lambda document: document["columns"]["x"].update(statistics={}),
    "a number": lambda document: document["columns"]["x"]["statistics"]["quantiles"].__setitem__(5, "1) OR (1=1"),
    "a fill": lambda document: document["columns"]["x"]["statistics"].update(fill="0); DROP TABLE t; --"),
    "infinity": lambda document: document["columns"]["x"]["statistics"]["quantiles"].__setitem__(5, math.inf),
    "too few": lambda document: document["columns"]["x"]["statistics"].update(quantiles=[1.0]),
    "too large": lambda document: document["columns"]["x"]["statistics"].update(fill=10**400),
    "a width": lambda document: document["columns"]["v"]["statistics"].update(width=10**9),
    "a value": lambda document: document["columns"]["c"]["statistics"].update(values=[3]),
    "missing": lambda document: document["columns"]["x"].update(missing="mean"),
    "truth": lambda document: document.update(on_training_rows="yes"),
    "all": lambda document: document.clear(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_transforms_are_refused(damage):
    document = json.loads(json.dumps(every_kind(duckdb.connect()).to_json()))
    DAMAGES[damage](document)
    with pytest.raises((DataError, ConfigError), match="meta.json"):
        Fitted.from_json(document, "meta.json")


def test_words_in_files_are_data():
    connection = duckdb.connect()
    name, word = 'a"b', "'; DROP TABLE t; --"
    connection.execute(f"""CREATE TABLE t AS SELECT '{word.replace("'", "''")}' AS "a""b" """)
    fitted = fit(connection, "t", {name: Feature("onehot")}, None)
    assert {key: column.tolist() for key, column in rows(connection, fitted).items()} == {f"{name}={word}": [1.0]}


# ---- what is refused


REFUSED = {
    "row 1, column 'x': 'n/a' is not a number": ("SELECT unnest(['1', 'n/a']) AS x", Feature("standard")),
    'row 1, column \'x\': a value is missing; "fill": "0" or "fill": "mean" replaces missing numbers; "features": {"x": {':
        ("SELECT unnest([1, NULL]) AS x", Feature("number")),
    "row 0, column 'x': 'nan' is missing": ("SELECT 'nan'::DOUBLE AS x", Feature("number")),
    'row 1, column \'x\': a value is missing; "features": {"x": {"transform": "onehot", "missing": "indicator"}} marks missing':
        ("SELECT unnest(['a', '']) AS x", Feature("onehot")),
    "row 2, column 'x': 'inf' is infinite": ("SELECT unnest([1, 2, 'inf'::DOUBLE]) AS x", Feature("log")),
    "row 0, column 'x': '2024-13-01' is not a date or time": ("SELECT '2024-13-01' AS x", Feature("date")),
    "column 'x' is of dates, but its transform needs a number": ("SELECT DATE '2024-01-01' AS x", Feature("number")),
    "column 'x' is of numbers, but its transform needs a list of numbers": ("SELECT 1 AS x", Feature("vector")),
    "column 'x' is of lists, but its transform needs a number": ("SELECT [1] AS x", Feature("number")),
    "row 0, column 'x': '[1, NULL]' is not a list of numbers, each finite": ("SELECT [1, NULL] AS x", Feature("vector")),
    "column 'x': no training row has a value, so there is no mean": ("SELECT NULL::DOUBLE AS x", Feature("standard", ("0",))),
    "no column 'x', of which features are made; there are 'y'": ("SELECT 1 AS y", Feature("number")),
    "column 'x': more than 10,000 values for onehot: at_least = N": ("SELECT i::VARCHAR AS x FROM range(10001) r(i)", Feature("onehot")),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_is_refused_naming_row_column_and_value(message):
    connection, (sql, feature) = duckdb.connect(), REFUSED[message]
    connection.execute(f"CREATE TABLE t AS {sql}")
    with pytest.raises(DataError) as caught:
        fit(connection, "t", {"x": feature}, None, "users.csv")
    assert str(caught.value).startswith("users.csv: ") and message in str(caught.value)
    assert connection.execute("SELECT count(*) FROM t").fetchone()[0] > 0  # the connection still works


def test_two_features_of_one_name_are_refused():
    connection = duckdb.connect()
    connection.execute("""CREATE TABLE t AS SELECT 'a' AS x, 1 AS "x=a" """)
    with pytest.raises(DataError, match="two columns are named 'x=a'"):
        fit(connection, "t", {"x": Feature("onehot"), "x=a": Feature("number")}, None)


@pytest.mark.parametrize("value, message", [
    ("standart", "transform 'standart' is not one of number, .*; did you mean standard"),
    (3, "transform 3 is neither a name nor a table"),
    ({"transform": "onehot", "at_leats": 3}, "'at_leats': unknown for onehot; known are .*, at_least; did you mean at_least"),
    ({"transform": "standard", "at_least": 3}, "'at_least': unknown for standard"),
    ("hash", "transform hash: None is not a number from 1 to 65536"),
    ("hash:0", "'0' is not a number from 1"), ("hash:x", "'x' is not a number from 1 to 65536"), ("standard:3", "takes no number"),
    ({"missing": "zero"}, "missing = 'zero' is not one of 0, mean, median, indicator"), ({"missing": "mean+0"}, "is not one of"),
    ({"transform": "onehot", "missing": "mean"}, "onehot reads no numbers, so only 0 and indicator"),
    ({"transform": "hash", "n": True}, "True is not"),
])  # fmt: skip
def test_descriptions_that_cannot_be_are_refused(value, message):
    with pytest.raises(ConfigError, match="graph.toml: age: .*" + message):
        Feature.parse(value, "graph.toml: age")


def test_descriptions_are_parsed():
    assert Feature.parse("standard", "x") == Feature("standard")
    assert Feature.parse({"missing": 0}, "x") == Feature("number", ("0",))
    assert Feature.parse({"transform": "hash", "n": 8}, "x") == Feature.parse("hash:8", "x") == Feature("hash", (), 8)
    assert Feature.parse({"transform": "onehot", "at_least": 20}, "x") == Feature("onehot", (), 20)
    assert Feature.parse("text", "x") == Feature("text")


def test_examples_in_docstrings_run():
    outcome = doctest.testmod(transforms)
    assert outcome.failed == 0 and outcome.attempted > 6

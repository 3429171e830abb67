"""Functions that load small tables of nodes and edges, and that return the messages of errors."""

import re

import pytest

from sarlite.data import from_tables, load
from sarlite.errors import ConfigError, DataError

ALL = ("train", "val", "test")
RELATION = ["u", "e", "u"]
QUERY = re.compile(r"query = '''.*?'''+")
TOML = '[nodes.u]\n{nodes}\n[[edges]]\nrelation=["u","e","u"]\n{edges}\nsrc="src"\ndst="dst"\n'


def nodes_of(folder, csv_text, options="", **load_options):
    """Return the data set of e.csv's edges and of nodes in n.csv, written from `csv_text`; `options` is appended to the specification."""
    (folder / "n.csv").write_text(csv_text)
    return load(f"edges:e.csv,src=src,dst=dst,nodes=n.csv,id=id{options}", allow_empty=ALL, **load_options)


def edges_of(folder, csv_text, options="", **load_options):
    """Return the data set of the edges in e.csv, written from `csv_text`; `options` is appended to the specification."""
    (folder / "e.csv").write_text(csv_text)
    return load(f"edges:e.csv,src=src,dst=dst{options}", allow_empty=ALL, **load_options)


def tables_of(nodes=None, edges=None, **column_options):
    """Return the data set of tables in memory; `column_options` belong to `nodes` if given, else to `edges` (by default one edge)."""
    of_edges = {"file": edges or {"src": ["a"], "dst": ["b"]}, "relation": RELATION, "src": "src", "dst": "dst"}
    of_nodes = {} if nodes is None else {"file": nodes, "id": "id", **column_options}
    return from_tables({"nodes": {"u": of_nodes}, "edges": [{**of_edges, **(column_options if nodes is None else {})}]})


def message_of(call, *arguments, **options):
    """Check that `call(*arguments, **options)` raises a ConfigError or DataError, and return the error's message."""
    with pytest.raises((ConfigError, DataError)) as caught:
        call(*arguments, **options)
    return str(caught.value)


def of_query(here, message, column="x", nodes='id="id"', edges=""):
    """Load the tables with the query of a message in place of the file that the message names."""
    query, is_nodes = QUERY.search(message)[0], message.startswith("n.csv")
    features = f'features=["{column}"]\n' if is_nodes and column else ""
    (here / "g.toml").write_text(TOML.format(
        nodes=f"{query}\n{features}{nodes}" if is_nodes else "", edges=('file="e.csv"' if is_nodes else query) + f"\n{edges}"))
    return load("tables:g.toml", allow_empty=ALL)

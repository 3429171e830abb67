"""Small tables of nodes and edges, and the messages about their faults."""

import pytest

from sarlite.data import from_tables, load
from sarlite.errors import ConfigError, DataError

ALL = ("train", "val", "test")
RELATION = ["u", "e", "u"]


def nodes_of(here, text, options="", **more):
    """Write `text` as n.csv in the folder `here`, and load its nodes a, b and c with the edges of e.csv."""
    (here / "n.csv").write_text(text)
    return load(f"edges:e.csv,src=src,dst=dst,nodes=n.csv,id=id{options}", allow_empty=ALL, **more)


def edges_of(here, text, options="", **more):
    """Write `text` as e.csv in the folder `here`, and load its edges."""
    (here / "e.csv").write_text(text)
    return load(f"edges:e.csv,src=src,dst=dst{options}", allow_empty=ALL, **more)


def tables_of(nodes=None, edges=None, **options):
    """Load tables in memory; the options are of the table of nodes, or else of the edges."""
    of_edges = {"file": edges or {"src": ["a"], "dst": ["b"]}, "relation": RELATION, "src": "src", "dst": "dst"}
    of_nodes = {} if nodes is None else {"file": nodes, "id": "id", **options}
    return from_tables({"nodes": {"u": of_nodes}, "edges": [{**of_edges, **(options if nodes is None else {})}]})


def message_of(call, *arguments, **options):
    """Return the message of the error that a call raises."""
    with pytest.raises((ConfigError, DataError)) as caught:
        call(*arguments, **options)
    return str(caught.value)

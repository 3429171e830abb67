"""A data set of several tables, described by a dict or a TOML file: which are its nodes, and which its edges."""

import sys
from pathlib import Path
from typing import Any

from sarlite.command import suggestion
from sarlite.data import edge_list
from sarlite.data.dataset import Dataset
from sarlite.data.edge_list import listed_edges, read_nodes
from sarlite.data.folders import key
from sarlite.data.graph_tables import SPLITS, NodeTable
from sarlite.data.numbering import Numbering
from sarlite.data.streams import both_ways, one_kind, split_budget, unlabelled
from sarlite.data.workspace import Workspace
from sarlite.errors import ConfigError, DataError, needs, reading, regular
from sarlite.structure.relational_generator import reverse
from sarlite.types import Path as AnyPath

_MAX_BYTES = 1 << 20
_WORDS: Any = str
_LIST: Any = (str, list, tuple)
_NUMBER: Any = (int, float)
_NODES = {"id": _WORDS, "features": _LIST, "labels": _LIST, "split": _WORDS,
          **{f"{name}_mask": _WORDS for name in SPLITS}, "fill": (str, int), "task": _WORDS, "classes": int,
          "train": _NUMBER, "val": _NUMBER, "seed": int, "header": bool, "count": int}  # fmt: skip
_EDGES = {"relation": (list, tuple), "src": _WORDS, "dst": _WORDS, "weight": _WORDS, "features": _LIST,
          "fill": (str, int), "header": bool, "reverse": bool}  # fmt: skip
_TOP = {"target": _WORDS, "name": _WORDS, "nodes": dict, "edges": (list, tuple)}


def from_tables(description: dict[str, Any], **changes: bool) -> Dataset:
    """Make a data set of tables in memory, or in files, as a TOML file describes them; docs/tables.md tells the keys.

    Parameters
    ----------
    description : dict
        As the TOML file has it. A `file` may be a table in memory: a dict of arrays, a table of pandas, polars or
        pyarrow, or what has `__arrow_c_stream__` or `__dataframe__`.
    **changes : bool
        undirected, self_loops, deduplicate, normalize, drop_edge_values: see `load`.

    Returns
    -------
    Dataset
        In memory, checked. The `names` of its node tables are the mappings of the nodes' ids.

    Raises
    ------
    ConfigError, DataError
        An unknown key; what `load` raises of the tables.
    """
    made = _read(_checked(description, "description"), Path(), Workspace(), lambda text: None,
                 {"source": "tables", "provenance": {}}, **changes)
    return made.check(allow_empty=SPLITS)


def read(path: AnyPath, options: dict[str, Any], workspace: Workspace, tell: Any, about: dict[str, Any],
         **changes: Any) -> Dataset:
    """Return the Dataset of a TOML file, as `streams.one_kind`.

    Files are found from the folder of the TOML file on.
    """
    return _read(load(path), Path(path).parent, workspace, tell, about, **changes)


def is_relational(path: AnyPath) -> bool:
    """Tell whether a TOML file describes several node types or relations."""
    return _is_relational(load(path))


def load(path: AnyPath) -> dict[str, Any]:
    """Return what a TOML file describes, its keys checked."""
    tomllib = needs("tomllib" if sys.version_info >= (3, 11) else "tomli", str(path))
    with reading(path):
        data = regular(path).read_bytes()
        if len(data) > _MAX_BYTES:
            raise DataError(f"{path}: {len(data)} bytes, expected at most {_MAX_BYTES}")
        return _checked(tomllib.loads(data.decode("utf-8-sig")), path)


def _is_relational(found):
    return len(found["nodes"]) > 1 or len(found["edges"]) > 1 or any(edges.get("reverse") for edges in found["edges"])


def _checked(found, where):
    _check_keys(found, _TOP, where)
    for name in ("nodes", "edges"):
        if not found.get(name):
            heading = "[nodes.TYPE]" if name == "nodes" else "[[edges]]"
            raise ConfigError(f"{where}: no {name}: {heading} names a table of {name}")
    for name, nodes in found["nodes"].items():
        key(name)
        _check_keys(nodes, {"file": object, **_NODES}, f"{where}: nodes.{name}")
        odd = next((word for word in nodes if (word == "count") == ("file" in nodes) and word != "file"), None)
        if odd:
            why = "not beside file=, whose rows are the nodes"
            why = why if odd == "count" else "needs file=, a table of the nodes"
            raise ConfigError(f"{where}: nodes.{name}: {odd}: {why}")
    for at, edges in enumerate(found["edges"]):
        here = f"{where}: edges {at}"
        _check_keys(edges, {"file": object, **_EDGES, "relation": object}, here)
        relation = edges.get("relation")
        words = relation if isinstance(relation, list | tuple) else ()
        if len(words) != 3 or not all(isinstance(word, str) for word in words):
            raise ConfigError(f"{here}: relation: {relation!r} is no list of source type, name, destination type, "
                              'such as ["user", "buys", "item"]')
        if "file" not in edges:
            raise ConfigError(f"{here}: file: none is named")
        for name in (relation[0], relation[2]):
            if name not in found["nodes"]:
                raise ConfigError(f"{here}: relation: node type {name!r} is none of {', '.join(found['nodes'])}")
    labelled = [name for name, nodes in found["nodes"].items() if nodes.get("labels")]
    target = found.get("target") or (labelled or [*found["nodes"]])[0]
    if len(labelled) > 1 or target not in found["nodes"] or labelled not in ([], [target]):
        raise ConfigError(f"{where}: target: {target!r}, but types with labels: {', '.join(labelled) or 'none'}; the "
                          f"target is one of {', '.join(found['nodes'])}, and only the target may have labels")
    return {**found, "target": target}


def _check_keys(found, known, where):
    if not isinstance(found, dict):
        raise ConfigError(f"{where}: expected keys and values, found {found!r}")
    for name, value in found.items():
        if name not in known:
            raise ConfigError(f"{where}: {name!r}: unknown; known are {', '.join(known)}{suggestion(name, known)}")
        if not isinstance(value, known[name]) or (known[name] is int and isinstance(value, bool)):
            raise ConfigError(f"{where}: {name}: cannot be {value!r}")


def _read(found, base, workspace, tell, about, **changes):
    if not _is_relational(found):
        return _one_kind(found, base, workspace, tell, about, **changes)
    odd = [name for name, value in changes.items() if value and name != "drop_edge_values"]
    if odd:
        raise ConfigError(f"{about['source']}: {odd[0]} is for graphs of one kind, but this graph is relational")
    return _relational(found, base, workspace, tell, about, changes.get("drop_edge_values", False))


def _one_kind(found, base, workspace, tell, about, **changes):
    (name, nodes), (edges,) = next(iter(found["nodes"].items())), found["edges"]
    named = {"header": "node_header", "fill": "node_fill"}
    options = {named.get(option, option): value for option, value in nodes.items() if option not in ("file", "count")}
    options |= {"edge_features" if option == "features" else option: value for option, value in edges.items()
                if option not in ("file", "relation", "reverse")}
    if "file" in nodes or "count" in nodes:
        options["nodes"] = _source(nodes["file"], base) if "file" in nodes else str(nodes["count"])
    made = one_kind(edge_list.streams, _source(edges["file"], base), options, workspace, tell, about, **changes)
    made.name = found.get("name", name)
    return made


def _source(file, base):
    return base / file if isinstance(file, str | Path) else file


def _relational(found, base, workspace, tell, about, drop_edge_values):
    """Read all nodes' tables, then all edges', and number the nodes; then make the tables of each."""
    listed, numberings, places = {}, {}, {}
    share = max(1, len(found["nodes"]))
    for name, nodes in found["nodes"].items():
        places[name] = workspace.within(f"nodes.{key(name)}", share)
        if "file" in nodes:
            tell(name)
            source = _source(nodes["file"], base)
            listed[name], numberings[name] = read_nodes(source, nodes, places[name], f"nodes.{name}")
    opened = [_edges(edges, base) for edges in found["edges"]]
    for (source, _, to), read in opened:
        for name, words in zip((source, to), read.words):
            if words and name not in numberings:
                if "count" in found["nodes"][name]:
                    raise ConfigError(f"{read.source.where}: ids of type {name!r} are words, but count= is of numbers")
                numberings[name] = Numbering(places[name])
    for at, (relation, read) in enumerate(opened):
        tell(".".join(relation))
        read.collect(workspace.within(f"pairs.{at}"), (numberings.get(relation[0]), numberings.get(relation[2])))
    for name, numbering in numberings.items():
        numbering.finish(f"nodes.{name}")
    counts = {name: _count(name, found, opened, numberings) for name in found["nodes"]}
    forward, back = [], []
    for at, (relation, read) in enumerate(opened):
        other = reverse(relation) if found["edges"][at].get("reverse", True) else None
        values = {} if drop_edge_values else read.columns
        for made in both_ways(read.pieces(), relation, other, counts, read.n_edges, workspace.within(f"edges.{at}"),
                              about["source"], values, read.feature_names if values else None):
            (forward if made.relation == relation else back).append(made)
    tell("read the nodes")
    split_budget(counts[found["target"]], workspace)
    nodes = [_node_table(name, n, found, listed, places, about["source"]) for name, n in counts.items()]
    for table in nodes:
        if table.node_type in numberings:
            table.names = numberings[table.node_type].mapping
    return Dataset.of_tables(nodes, forward + back, found["target"], found.get("name", "tables"), **about)


def _edges(edges, base):
    name, options = ".".join(edges["relation"]), {**edges, "edge_features": edges.get("features")}
    read = listed_edges(_source(edges["file"], base), options, edges.get("header"), f"edges {name}")
    return tuple(edges["relation"]), read


def _count(name, found, opened, numberings):
    """The number of nodes of a type."""
    if name in numberings:
        return numberings[name].n_nodes
    ends = [(read.largest()[end], read.source.where) for relation, read in opened
            for end, of in enumerate(relation[::2]) if of == name]
    largest, where = max(ends, default=(-1, name))
    said = found["nodes"][name].get("count")
    if said is not None and said <= largest:
        raise DataError(f"{where}: node {largest} of type {name!r} is outside 0 <= node < {said}")
    return edge_list.count(where, said, largest, sum(read.n_edges for _, read in opened), {})


def _node_table(name, n, found, listed, places, source):
    rows = listed[name].rows(places[name]) if name in listed else {}
    if name == found["target"] and "labels" not in rows:
        rows |= unlabelled(n, places[name])
    return NodeTable(name, n, **rows, source=source)


__all__ = ["from_tables", "is_relational", "load", "read"]

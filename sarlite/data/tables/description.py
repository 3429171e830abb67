"""Descriptions of tables by a user: tables of nodes, tables of edges, and the uses of their columns."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from sarlite.command import suggestion
from sarlite.data.folders import key
from sarlite.data.graph_tables import NODE, RELATION, SPLITS, Relation
from sarlite.data.tables.sources import Query
from sarlite.data.tables.text_form import Reading, quote
from sarlite.errors import ConfigError, DataError, needs, reading, regular
from sarlite.types import Path as AnyPath

_MAX_BYTES = 1 << 20
_WORDS: Any = str
_LIST: Any = (str, list, tuple)
_NUMBER: Any = (int, float)
_SOURCE: dict[str, Any] = {"file": object, "query": _WORDS, "database": _WORDS, "table": _WORDS}
_READING: dict[str, Any] = {"header": bool, "null": _LIST, "decimal": _WORDS, "comment": _WORDS}
_NODES: dict[str, Any] = {
    **_SOURCE, "id": _WORDS, "features": (*_LIST, dict), "labels": _LIST, "label": _LIST, "split": _WORDS,
    **{f"{name}_mask": _WORDS for name in SPLITS}, "fill": (str, int), "task": _WORDS, "classes": int,
    "train": _NUMBER, "val": _NUMBER, "seed": int, "count": int, "names": _WORDS, "time": _WORDS, **_READING}
_EDGES: dict[str, Any] = {
    **_SOURCE, "relation": object, "src": _WORDS, "dst": _WORDS, "weight": _WORDS, "time": _WORDS, "features": (*_LIST, dict),
    "fill": (str, int), "reverse": bool, "on_unknown": _WORDS, **_READING}
_TOP: dict[str, Any] = {"target": _WORDS, "name": _WORDS, "nodes": dict, "edges": (list, tuple)}
ON_UNKNOWN = ("refuse", "drop")


@dataclass
class NodeSource:
    """Nodes of one type, as the user describes them.

    Attributes
    ----------
    source : path, Query, Pieces or table, optional
        Table with one row for each node. Without it the nodes are the ends of the edges, or `count` says how many.
    where : str
        Name in messages of what is no file.
    id : str, optional
        Column of ids, by default the first; False if the row number is the id.
    features : dict of str to (str or dict), optional
        Transform of each column; by default all columns of numbers without another use, as numbers.
    labels : tuple of str
    split : str, optional
    masks : dict of str to str
    fill : {None, "0", "mean"}
    task, classes, train, val, seed
        As of `raw`.
    count : int, optional
        Number of nodes, whose ids are 0 .. count - 1.
    counted_in : (str or path, str)
        File or option, and field, that say `count`, for messages.
    names : bool
        True if whole numbers are names of nodes, not node numbers.
    reading : Reading
    transforms : dict, optional
        Transforms with their statistics, as `transforms.Fitted.to_json` gives them, that are applied to the features in
        place of fitting new ones.
    rows : dict of str to source
        Sources with row i for node i, in place of columns of `source`: "features", "labels", "split" and "names"; or
        "titles", names by which the edges do not know the nodes; or "masks", a callable that returns the masks by split
        for a number of nodes.
    time : str, optional
        Column of times.
    """

    source: Any = None
    where: str = "nodes"
    id: str | None | bool = None
    features: dict[str, Any] | None = None
    labels: tuple[str, ...] = ()
    split: str | None = None
    masks: dict[str, str] = field(default_factory=dict)
    fill: Any = None
    task: str | None = None
    classes: int | None = None
    train: float = 0.6
    val: float = 0.2
    seed: int = 0
    count: int | None = None
    counted_in: Any = ("nodes", "option")
    names: bool = False
    reading: Reading = field(default_factory=Reading)
    transforms: dict[str, Any] | None = None
    rows: dict[str, Any] = field(default_factory=dict)
    time: str | None = None


@dataclass
class EdgeSource:
    """Edges of one relation, as the user describes them.

    Attributes
    ----------
    relation : (str, str, str)
    source, where, fill, reading
        As of `NodeSource`.
    src, dst : str, optional
        Columns of the ends; by default the first two, of a table that has no more.
    weight : str, optional
    features : dict of str to (str or dict)
    reverse : bool
        True if a relational graph gets the reverse relation, too.
    on_unknown : {"refuse", "drop"}
        What becomes of an edge whose end is in no table of nodes.
    n_rows : int, optional
        Number of rows that the source must have.
    weight_dtype : dtype
    transforms : dict, optional
        As of `NodeSource`.
    time : str, optional
        Column of times.
    """

    relation: Relation
    source: Any = None
    where: str = "edges"
    src: str | None = None
    dst: str | None = None
    weight: str | None = None
    features: dict[str, Any] = field(default_factory=dict)
    fill: Any = None
    reverse: bool = True
    on_unknown: str = "refuse"
    reading: Reading = field(default_factory=Reading)
    n_rows: int | None = None
    weight_dtype: Any = np.float64
    transforms: dict[str, Any] | None = None
    time: str | None = None

    def __post_init__(self) -> None:
        if self.on_unknown not in ON_UNKNOWN:
            raise ConfigError(f"on_unknown: {self.on_unknown!r} is not one of {', '.join(ON_UNKNOWN)}")


@dataclass
class Description:
    """A graph, as tables have it.

    Attributes
    ----------
    nodes : dict of str to NodeSource
    edges : list of EdgeSource
    target : str
        Type that has labels.
    name : str
    relational : bool
        True if types and relations keep their names, and edges their positions.
    """

    nodes: dict[str, NodeSource]
    edges: list[EdgeSource]
    target: str
    name: str
    relational: bool = False

    def with_transforms(self, transforms: Mapping[str, Any]) -> "Description":
        """Return the description with the transforms of another data set, by node type and "." joined relation."""
        if not self.relational:
            nodes = {name: replace(source, transforms=transforms.get(NODE)) for name, source in self.nodes.items()}
            edges = [replace(source, transforms=transforms.get(".".join(RELATION))) for source in self.edges]
        else:
            nodes = {name: replace(source, transforms=transforms.get(name)) for name, source in self.nodes.items()}
            edges = [replace(source, transforms=transforms.get(".".join(source.relation))) for source in self.edges]
        return replace(self, nodes=nodes, edges=edges)


def of_dict(found: Any, where: Any, base: AnyPath = Path()) -> Description:
    """Return what a dict describes, as a TOML file has it; files are found from the folder `base` on.

    Raises
    ------
    ConfigError, DataError
        An unknown key, a value that cannot be, or types and relations that do not fit each other.
    """
    found = _checked(found, where)
    nodes = {name: _node_source(one, Path(base), f"nodes.{name}", f"{where}: nodes.{name}")
             for name, one in found["nodes"].items()}
    edges = [_edge_source(one, Path(base), f"{where}: edges {at}") for at, one in enumerate(found["edges"])]
    relational = _is_relational(found)
    name = found.get("name") or ("tables" if relational else next(iter(nodes)))
    return Description(nodes, edges, found["target"], name, relational)


def of_file(path: AnyPath) -> Description:
    """Return what a TOML file describes."""
    return of_dict(_load(path), path, Path(path).parent)


def is_relational(path: AnyPath) -> bool:
    """Return True if a TOML file describes several node types or relations."""
    return _is_relational(_checked(_load(path), path))


def reading_of(options: Mapping[str, Any]) -> Reading:
    """Return how a table is read, by the options header, null, decimal and comment."""
    null, decimal = options.get("null"), options.get("decimal") or "."
    return Reading(options.get("header"), None if null is None else tuple(column_names(null) or ()),
                   "," if decimal == "comma" else decimal, options.get("comment"))


def column_names(text: Any) -> list[str] | None:
    """Return the columns that a+b or a list names; None of None."""
    return None if text is None else text.split("+") if isinstance(text, str) else list(text)


def features_of(given: Any) -> dict[str, Any] | None:
    """Return the transform of each column of a+b, age:standard+b, a list or a dict; None of None."""
    if given is None or isinstance(given, Mapping):
        return None if given is None else dict(given)
    if not isinstance(given, str):
        return dict.fromkeys(given, "number")
    pairs = (text.partition(":") for text in given.split("+"))
    return {name: transform or "number" for name, _, transform in pairs}


def _load(path):
    tomllib = needs("tomllib" if sys.version_info >= (3, 11) else "tomli", str(path))
    with reading(path):
        data = regular(path).read_bytes()
        if len(data) > _MAX_BYTES:
            raise DataError(f"{path}: {len(data)} bytes, expected at most {_MAX_BYTES}")
        return tomllib.loads(data.decode("utf-8-sig"))


def _is_relational(found):
    return len(found["nodes"]) > 1 or len(found["edges"]) > 1 or any(edges.get("reverse") for edges in found["edges"])


def _source(given, base, where):
    """Return the source that a description names, or None."""
    named = [name for name in ("file", "query", "table") if name in given]
    if len(named) > 1:
        raise ConfigError(f"{where}: {named[0]} and {named[1]}: one of the two")
    database = given.get("database")
    if database is not None and not named[:1] or named == ["table"] and database is None or (
            named == ["file"] and database is not None):
        raise ConfigError(f"{where}: database: a file of SQLite or the URL of PostgreSQL goes with table= or query=")
    if not named:
        return None
    if named == ["file"]:
        return base / given["file"] if isinstance(given["file"], str | Path) else given["file"]
    if database is not None and not database.startswith(("postgres://", "postgresql://")):
        database = str(base / database)
    if named == ["query"]:
        return Query(given["query"], database, base)
    table = ".".join(map(quote, given["table"].split(".")))
    return Query(f"SELECT * FROM {table}", database, base)


def _node_source(given, base, name, where):
    labels = column_names(given.get("labels", given.get("label"))) or ()
    drawn = {word: given[word] for word in ("train", "val", "seed") if word in given}
    masks = {split: given[f"{split}_mask"] for split in SPLITS if f"{split}_mask" in given}
    return NodeSource(
        _source(given, base, where), name, given.get("id"), features_of(given.get("features")), tuple(labels),
        given.get("split"), masks, given.get("fill"), given.get("task"), given.get("classes"),
        count=given.get("count"), names=given.get("names") == "edges", reading=reading_of(given),
        time=given.get("time"), **drawn)


def _edge_source(given, base, where):
    relation = tuple(given["relation"])
    return EdgeSource(
        relation, _source(given, base, where), f"edges {'.'.join(relation)}", given.get("src"), given.get("dst"),
        given.get("weight"), features_of(given.get("features")) or {}, given.get("fill"), given.get("reverse", True),
        given.get("on_unknown", "refuse"), reading_of(given), time=given.get("time"))


def _checked(found, where):
    _check_keys(found, _TOP, where)
    for name in ("nodes", "edges"):
        if not found.get(name):
            heading = "[nodes.TYPE]" if name == "nodes" else "[[edges]]"
            raise ConfigError(f"{where}: no {name}: {heading} names a table of {name}")
    for name, nodes in found["nodes"].items():
        _check_nodes(name, nodes, where)
    for at, edges in enumerate(found["edges"]):
        _check_edges(edges, found["nodes"], f"{where}: edges {at}")
    labelled = [name for name, nodes in found["nodes"].items() if nodes.get("labels") or nodes.get("label")]
    target = found.get("target") or (labelled or [*found["nodes"]])[0]
    if len(labelled) > 1 or target not in found["nodes"] or labelled not in ([], [target]):
        raise ConfigError(f"{where}: target: {target!r}, but types with labels: {', '.join(labelled) or 'none'}; the "
                          f"target is one of {', '.join(found['nodes'])}, and only the target may have labels")
    return {**found, "target": target}


def _check_nodes(name, nodes, where):
    key(name)
    _check_keys(nodes, _NODES, f"{where}: nodes.{name}")
    has_source = any(word in nodes for word in _SOURCE)
    odd = next((word for word in nodes if word not in _SOURCE and (word in ("count", "names")) == has_source), None)
    if odd:
        why = "needs file=, a table of the nodes" if odd not in ("count", "names") else \
            "not beside file=, whose rows are the nodes"
        raise ConfigError(f"{where}: nodes.{name}: {odd}: {why}")
    if nodes.get("names", "edges") != "edges":
        raise ConfigError(f"{where}: nodes.{name}: names: {nodes['names']!r} is not edges")


def _check_edges(edges, nodes, where):
    _check_keys(edges, _EDGES, where)
    relation = edges.get("relation")
    words = relation if isinstance(relation, list | tuple) else ()
    if len(words) != 3 or not all(isinstance(word, str) for word in words):
        raise ConfigError(f"{where}: relation: {relation!r} is no list of source type, name, destination type, "
                          'such as ["user", "buys", "item"]')
    if not any(word in edges for word in ("file", "query", "table")):
        raise ConfigError(f"{where}: file: none is named")
    for name in (relation[0], relation[2]):
        if name not in nodes:
            raise ConfigError(f"{where}: relation: node type {name!r} is none of {', '.join(nodes)}")


def _check_keys(found, known, where):
    if not isinstance(found, Mapping):
        raise ConfigError(f"{where}: expected keys and values, found {found!r}")
    for name, value in found.items():
        if name not in known:
            raise ConfigError(f"{where}: {name!r}: unknown; known are {', '.join(known)}{suggestion(name, known)}")
        if not isinstance(value, known[name]) or (known[name] is int and isinstance(value, bool)):
            raise ConfigError(f"{where}: {name}: cannot be {value!r}")

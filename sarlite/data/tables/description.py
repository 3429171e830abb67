"""A user's description of a graph in tables: which table has which nodes or edges, and the use of their columns."""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from sarlite.command import suggestion
from sarlite.data.folders import key
from sarlite.data.graph_tables import NODE, RELATION, SPLITS, Relation
from sarlite.data.tables.notations import MAPPING, SPEC, TOML, OptionNotation
from sarlite.data.tables.sources import Query
from sarlite.data.tables.text_form import Reading, quote
from sarlite.errors import ConfigError, DataError, SarliteError, collecting, import_optional, raise_all, reading, regular
from sarlite.structure.relational_generator import reverse
from sarlite.types import DType, JsonDict
from sarlite.types import Path as AnyPath

_MAX_BYTES = 1 << 20
Classes: TypeAlias = type | tuple[type, ...]  # second argument of isinstance
Transform: TypeAlias = str | JsonDict  # such as "standard" or {"transform": "onehot", "at_least": 20}
_WORDS = str
_LIST = (str, list, tuple)
_NUMBER = (int, float)
_SOURCE: dict[str, Classes] = {"file": object, "query": _WORDS, "database": _WORDS, "table": _WORDS}
_READING: dict[str, Classes] = {"header": bool, "null": _LIST, "decimal": _WORDS, "comment": _WORDS}
_NODES: dict[str, Classes] = {
    **_SOURCE, "id": _WORDS, "features": (*_LIST, dict), "labels": _LIST, "label": _LIST, "split": _WORDS,
    **{f"{name}_mask": _WORDS for name in SPLITS}, "fill": (str, int), "task": _WORDS, "classes": int,
    "train": _NUMBER, "val": _NUMBER, "seed": int, "count": int, "names": _WORDS, "time": _WORDS, **_READING}
_EDGES: dict[str, Classes] = {
    **_SOURCE, "relation": object, "src": _WORDS, "dst": _WORDS, "weight": _WORDS, "time": _WORDS, "features": (*_LIST, dict),
    "fill": (str, int), "reverse": bool, "on_unknown": _WORDS, **_READING}
_TOP: dict[str, Classes] = {"target": _WORDS, "name": _WORDS, "nodes": dict, "edges": (list, tuple)}
ON_UNKNOWN = ("refuse", "drop")


@dataclass
class NodeSource:
    """Part of a description about one node type: its table or files, and the use of each column.

    Attributes
    ----------
    source : path, Query, Pieces or table, optional
        Table with one row per node. Without it the nodes are the ends of the edges, or `count` is their number.
    where : str
        Name of a source that is no file, in messages.
    id : str, optional
        Column of ids; by default the first column. False if the row number is the id.
    features : dict of str to (str or dict), optional
        Transform of each column; by default all columns of numbers without another use, unchanged.
    labels : tuple of str
        Columns of the labels.
    split : str, optional
        Column of words that name the split of each node.
    masks : dict of str to str
        Column of truth values for each split.
    fill : {None, "0", "mean"}
        Replacement of missing numbers; None refuses them.
    task, classes, train, val, seed
        Options of readers; see `data.raw`.
    count : int, optional
        Number of nodes; the ids are then 0 .. count - 1.
    counted_in : (str or path, str)
        File (or option) and field that state `count`, for messages.
    names : bool
        True if whole numbers are names of nodes, not node numbers.
    reading : Reading
    transforms : dict, optional
        Transforms with statistics, as `transforms.Fitted.to_json` returns them, to be applied to the features instead of
        fitting new ones.
    rows : dict of str to source
        Sources with row i for node i that replace columns of `source`: "features", "labels", "split" and "names". "titles"
        has further names, by which the edges do not refer to the nodes. "masks" is a callable that returns the masks by
        split for a number of nodes.
    time : str, optional
        Column of times.
    """

    source: object = None
    where: str = "nodes"
    id: str | None | bool = None
    features: Mapping[str, Transform] | None = None
    labels: tuple[str, ...] = ()
    split: str | None = None
    masks: dict[str, str] = field(default_factory=dict)
    fill: object = None
    task: str | None = None
    classes: int | None = None
    train: float = 0.6
    val: float = 0.2
    seed: int = 0
    count: int | None = None
    counted_in: tuple[object, str] = ("nodes", "option")
    names: bool = False
    reading: Reading = field(default_factory=Reading)
    transforms: JsonDict | None = None
    rows: dict[str, Any] = field(default_factory=dict)
    time: str | None = None


@dataclass
class EdgeSource:
    """Part of a description about one relation: its table, and the use of each column.

    Attributes
    ----------
    relation : (str, str, str)
        Source type, name, destination type.
    source, where, fill, reading
        As for `NodeSource`.
    src, dst : str, optional
        Columns of the ends; by default the two columns of a table without further columns.
    weight : str, optional
        Column of weights.
    features : dict of str to (str or dict)
        Transform of each column of features.
    reverse : bool
        True if a relational graph gets the reverse relation too.
    on_unknown : {"refuse", "drop"}
        Treatment of an edge with an end that the table of nodes lacks.
    n_rows : int, optional
        Number of rows that the source must have.
    weight_dtype : dtype
    transforms : dict, optional
        As for `NodeSource`.
    time : str, optional
        Column of times.
    """

    relation: Relation
    source: object = None
    where: str = "edges"
    src: str | None = None
    dst: str | None = None
    weight: str | None = None
    features: Mapping[str, Transform] = field(default_factory=dict)
    fill: object = None
    reverse: bool = True
    on_unknown: str = "refuse"
    reading: Reading = field(default_factory=Reading)
    n_rows: int | None = None
    weight_dtype: DType = np.float64
    transforms: JsonDict | None = None
    time: str | None = None

    def __post_init__(self) -> None:
        if self.on_unknown not in ON_UNKNOWN:
            raise ConfigError(f"on_unknown: {self.on_unknown!r} is not one of {', '.join(ON_UNKNOWN)}")


@dataclass
class Description:
    """A user's description of a graph in tables: a NodeSource for each node type, an EdgeSource for each relation.

    Attributes
    ----------
    nodes : dict of str to NodeSource
    edges : list of EdgeSource
    target : str
        The node type that has labels.
    name : str
    relational : bool
        True if node types and relations keep their names, and edges their original positions.
    """

    nodes: dict[str, NodeSource]
    edges: list[EdgeSource]
    target: str
    name: str
    relational: bool = False

    def with_transforms(self, transforms: Mapping[str, JsonDict]) -> "Description":
        """Return a copy whose features are computed by `transforms`, which were fitted on other data, instead of newly fitted ones. The
        keys of `transforms` are node types, and relations as "SOURCE.NAME.DESTINATION".
        """
        named = self.relational
        nodes = {name: replace(source, transforms=transforms.get(name if named else NODE)) for name, source in self.nodes.items()}
        edges = [replace(source, transforms=transforms.get(".".join(source.relation if named else RELATION))) for source in self.edges]
        return replace(self, nodes=nodes, edges=edges)


def of_dict(content: object, where: object, base: AnyPath = Path(), option_notation: OptionNotation = MAPPING) -> Description:
    """Return the Description that the dict `content` states in the form of docs/tables.md. Relative paths start at `base`, messages begin
    with `where`, and they show options in `option_notation`, as the user writes them.

    Parameters
    ----------
    content : dict
    where : str or path
        Start of error messages.
    base : path
        Folder that relative paths start from.
    option_notation : OptionNotation
        How the user states options, for messages.

    Raises
    ------
    ConfigError, DataError
        If a key is unknown, a value is impossible, or types and relations do not fit each other.
    """
    checked = _checked(content, where)
    nodes = {name: node_source(one, Path(base), f"nodes.{name}", f"{where}: nodes.{name}", option_notation)
             for name, one in checked["nodes"].items()}
    edges = [_edge_source(one, Path(base), f"{where}: edges {at}", option_notation) for at, one in enumerate(checked["edges"])]
    relational = _is_relational(checked)
    name = checked.get("name") or ("tables" if relational else next(iter(nodes)))
    return Description(nodes, edges, checked["target"], name, relational)


def of_file(path: AnyPath) -> Description:
    """Return the description of tables that a TOML file states."""
    return of_dict(_load(path), path, Path(path).parent, TOML)


def is_relational(path: AnyPath) -> bool:
    """Return True if a TOML file describes several node types or relations."""
    return _is_relational(_checked(_load(path), path))


def reading_of(options: Mapping[str, Any], option_notation: OptionNotation = SPEC) -> Reading:
    """Return the entries header, null, decimal and comment of `options`, a table's options, as a `Reading`. Messages show options in
    `option_notation`.
    """
    null, decimal = options.get("null"), options.get("decimal") or "."
    return Reading(options.get("header"), None if null is None else tuple(column_names(null) or ()),
                   "," if decimal == "comma" else decimal, options.get("comment"), option_notation)


def column_names(text: str | Iterable[str] | None) -> list[str] | None:
    """Return the list of column names in a text such as "a+b" or in a list; None for None."""
    return None if text is None else text.split("+") if isinstance(text, str) else list(text)


def features_of(columns: str | Iterable[str] | Mapping[str, Transform] | None) -> dict[str, Transform] | None:
    """Return {column: transform} from a text such as "age:standard+b", a list of names or a dict; None for None."""
    if columns is None or isinstance(columns, Mapping):
        return None if columns is None else dict(columns)
    pairs = [text.partition(":") for text in columns.split("+")] if isinstance(columns, str) else [(name, "", "") for name in columns]
    transforms: dict[str, Transform] = {name: transform or "number" for name, _, transform in pairs}
    if len(transforms) < len(pairs):
        twice = next(name for at, (name, *_) in enumerate(pairs) if name in [other for other, *_ in pairs[:at]])
        raise ConfigError(f"features: {twice!r} is named twice; a query gives a column a second name")
    return transforms


def _load(path):
    """Return the content of a TOML file as a dict."""
    tomllib = import_optional("tomllib" if sys.version_info >= (3, 11) else "tomli", str(path))
    with reading(path):
        data = regular(path).read_bytes()
        if len(data) > _MAX_BYTES:
            raise DataError(f"{path}: {len(data)} bytes, expected at most {_MAX_BYTES}")
        return tomllib.loads(data.decode("utf-8-sig"))


def _is_relational(content):
    return len(content["nodes"]) > 1 or len(content["edges"]) > 1 or any(edges.get("reverse") for edges in content["edges"])


def _source(options, base, message_start):
    """Return the source that a table's `options` name: a file, relative to the folder `base`, or a `Query`. None if they name no source."""
    named = [name for name in ("file", "query", "table") if name in options]
    if len(named) > 1:
        raise ConfigError(f"{message_start}: {named[0]} and {named[1]} exclude each other: pass one of the two")
    database = options.get("database")
    if database is not None and not named[:1] or named == ["table"] and database is None or (named == ["file"] and database is not None):
        raise ConfigError(f"{message_start}: database: a file of SQLite or the URL of PostgreSQL needs table= or query= beside it")
    if not named:
        return None
    if named == ["file"]:
        return base / options["file"] if isinstance(options["file"], str | Path) else options["file"]
    if database is not None and not database.startswith(("postgres://", "postgresql://")):
        database = str(base / database)
    if named == ["query"]:
        return Query(options["query"], database, base)
    table = ".".join(map(quote, options["table"].split(".")))
    return Query(f"SELECT * FROM {table}", database, base)


def node_source(options: Mapping[str, Any], base: Path, name: str, where: str, option_notation: OptionNotation) -> NodeSource:
    """Return the NodeSource of node type `name` that the dict `options` describes. Relative paths start at `base`, messages begin with
    `where`, and they show options in `option_notation`, as the user writes them.
    """
    labels = column_names(options.get("labels", options.get("label"))) or ()
    drawn = {word: options[word] for word in ("train", "val", "seed") if word in options}
    masks = {split: options[f"{split}_mask"] for split in SPLITS if f"{split}_mask" in options}
    return NodeSource(
        _source(options, base, where), name, options.get("id"), features_of(options.get("features")), tuple(labels),
        options.get("split"), masks, options.get("fill"), options.get("task"), options.get("classes"),
        count=options.get("count"), names=options.get("names") == "edges", reading=reading_of(options, option_notation),
        time=options.get("time"), **drawn)


def _edge_source(options, base, where, option_notation):
    relation = tuple(options["relation"])
    return EdgeSource(
        relation, _source(options, base, where), f"edges {'.'.join(relation)}", options.get("src"), options.get("dst"),
        options.get("weight"), features_of(options.get("features")) or {}, options.get("fill"), options.get("reverse", True),
        options.get("on_unknown", "refuse"), reading_of(options, option_notation), time=options.get("time"))


def _checked(content, message_start):
    """Return `content`, the dict of a description, with the key "target" filled in, after a check of all keys and values. Messages
    begin with `message_start`.
    """
    _check_keys(content, _TOP, message_start)
    for name in ("nodes", "edges"):
        if not content.get(name):
            heading = "[nodes.TYPE]" if name == "nodes" else "[[edges]]"
            raise ConfigError(f"{message_start}: no {name}: {heading} names a table of {name}")
    errors: list[SarliteError] = []
    for name, nodes in content["nodes"].items():
        with collecting(errors):
            _check_nodes(name, nodes, message_start)
    for at, edges in enumerate(content["edges"]):
        with collecting(errors):
            _check_edges(edges, content["nodes"], f"{message_start}: edges {at}")
    raise_all(errors)
    described: dict[Relation, int] = {}
    for at, edges in enumerate(content["edges"]):
        relation = tuple(edges["relation"])
        for name in (relation, *([reverse(relation)] if edges.get("reverse", True) else [])):
            if described.setdefault(name, at) != at:
                raise ConfigError(f"{message_start}: edges {at}: relation {'.'.join(name)} is one of edges {described[name]}, too: "
                                  "reverse = false adds no reverse; a glob, or a query with UNION ALL, reads several tables as one")
    labelled = [name for name, nodes in content["nodes"].items() if nodes.get("labels") or nodes.get("label")]
    target = content.get("target") or (labelled or [*content["nodes"]])[0]
    if len(labelled) > 1 or target not in content["nodes"] or labelled not in ([], [target]):
        raise ConfigError(f"{message_start}: target: {target!r}, but types with labels: {', '.join(labelled) or 'none'}; the "
                          f"target is one of {', '.join(content['nodes'])}, and only the target may have labels")
    return {**content, "target": target}


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
        raise ConfigError(f"{where}: relation: {relation!r} is not a list of source type, name, destination type, "
                          'such as ["user", "buys", "item"]')
    if not any(word in edges for word in ("file", "query", "table")):
        raise ConfigError(f"{where}: file: none is named")
    for name in (relation[0], relation[2]):
        if name not in nodes:
            raise ConfigError(f"{where}: relation: node type {name!r} is not one of {', '.join(nodes)}")


def _check_keys(options, classes, message_start):
    """Raise a ConfigError that begins with `message_start` if `options` have an unknown key, or a value of a wrong class. `classes` maps
    each known key to its accepted classes.
    """
    if not isinstance(options, Mapping):
        raise ConfigError(f"{message_start}: expected keys and values, found {options!r}")
    errors = []
    for name, value in options.items():
        if name not in classes:
            errors.append(ConfigError(f"{message_start}: {name!r}: unknown; known are {', '.join(classes)}{suggestion(name, classes)}"))
        elif not isinstance(value, classes[name]) or (classes[name] is int and isinstance(value, bool)):
            errors.append(ConfigError(f"{message_start}: {name}: cannot be {value!r}"))
    raise_all(errors)

"""Data sets by spec: a string of a reader or generator, a path and options, such as "edges:follows.csv,src=from,dst=to"."""

import importlib.metadata
import os
from collections.abc import Callable, Collection, Mapping
from typing import Any

from sarlite.command import suggestion
from sarlite.data import format
from sarlite.data.dataset import Dataset
from sarlite.data.divide import restored
from sarlite.data.folders import key
from sarlite.data.graph_tables import MEMBERS, RELATION, SPLITS
from sarlite.data.raw import RawGraph, row_normalized
from sarlite.data.readers import bter_options, mag, npz, ogb, pigo, planetoid, reddit, roc, tu
from sarlite.data.tables import description
from sarlite.data.tables.compile import build
from sarlite.data.tables.edge_options import describe
from sarlite.data.workspace import Workspace
from sarlite.errors import ConfigError, DataError, raise_all, reading
from sarlite.structure import generate
from sarlite.structure import relational_generator as relations
from sarlite.types import JsonDict
from sarlite.types import Path as AnyPath

OptionParsers = Mapping[str, Callable[[str], object]]
"""Name of an option -> function that parses its value."""


def _flag(text):
    """Return True or False for a text such as "yes" or "0"; raise a ValueError for any other text."""
    values = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if str(text).lower() not in values:
        raise ValueError("expected true or false")
    return values[str(text).lower()]


def _amount(text):
    """Return the size of a split from `text`: a number of nodes as an int, such as 100, or a share of the nodes as a float, such as 0.1."""
    try:
        return int(text)
    except ValueError:
        return float(text)


def _describe_edges(path, workspace, options):
    return describe(path, options)


def _describe_file(path, workspace, options):
    return description.of_file(path)


_CHANGES = dict.fromkeys(("drop_edge_values", "undirected", "self_loops", "deduplicate", "normalize"), _flag)
_DRAWN: OptionParsers = {"train": _amount, "val": _amount, "seed": int}
_FILES = ("names", "features", "labels", "split", "train_ids", "val_ids", "test_ids")
_CLASSES: OptionParsers = {"homophily": float, "noise": float, "exponent": float}
_TASK: OptionParsers = {"features": int, "classes": int, **_DRAWN}
_TABLES: OptionParsers = {"classes": int, "task": str, **dict.fromkeys(_FILES, str), **_DRAWN}
_COLUMNS: OptionParsers = {**dict.fromkeys(("src", "dst", "weight", "time", "edge_features", "id", "node_time", "fill", "on_unknown"), str),
            "header": _flag,
            **dict.fromkeys(("null", "decimal", "comment"), str),
            **dict.fromkeys(("train_mask", "val_mask", "test_mask"), str)}
_READERS: dict[str, tuple[Callable[..., Any], OptionParsers]] = {  # form: (reader, its options)
    "planetoid": (planetoid.read, {}),
    "npz": (npz.describe, {"classes": int, "task": str, **_DRAWN}),
    "ogb": (ogb.read, {"classes": int, "task": str, "features": str}),
    "edges": (_describe_edges, {"nodes": str, **_TABLES, **_COLUMNS}),
    "tables": (_describe_file, {}),
    "pigo": (pigo.describe, _TABLES),
    "mggcn": (pigo.read_directory, {"classes": int}),
    "roc": (roc.read, {"classes": int}),
    "reddit": (reddit.read, {"classes": int}),
    "tu": (tu.read, {"task": str, **_DRAWN}),
    "ogbg": (ogb.read_graphs, {"classes": int, "task": str}),
    "mag": (mag.describe, {"classes": int, "reverses": _flag, "names": _flag}),
}
_GENERATORS: dict[str, tuple[Callable[..., Any], OptionParsers]] = {  # form: (generator, its options)
    "sbm": (generate.sbm, {"nodes": int, "degree": float, **_CLASSES, **_TASK}),
    "rmat": (generate.rmat, {"nodes": int, "scale": int, "edges": int, **dict.fromkeys("abcd", float), **_TASK}),
    "bter": (bter_options.make, {"nodes": int, "degree": float, "max_degree": int, "beta": float, "degrees": str,
                         "cmax": float, "xi": float, "clustering": str, **_TASK}),
    "relational": (relations.mag, {"nodes": int, "edges": int, **_CLASSES, **_TASK}),
}
_DESCRIBED = ("edges", "npz", "pigo", "mag", "tables")
"""Forms whose readers return a `Description`, from which DuckDB builds the data set."""
_BOUNDED = ("edges", "npz", "mag", "tables")
"""Forms that can be read within a memory limit."""
_REPORTS = {"bter": bter_options.report}  # form: function that compares the requested with the drawn graph, in lines
_GRAPHS = ("tu", "ogbg")
_RELATIONAL = ("mag", "relational", *_GRAPHS)
"""Forms of several node types and relations: `load` takes them with `relational`."""
FORMS = """\
  DIR                     a directory in the native format (python -m sarlite.data convert)
  planetoid:PATH/NAME     PATH/ind.NAME.x, .y, .tx, .ty, .allx, .ally, .graph and .test.index
  npz:FILE                shchur/gnn-benchmark's CSR archive; options classes, task, train, val, seed
  ogb:DIR                 ogbn-arxiv, -products, -proteins or -papers100M, the folder with raw/ and split/; options
                          classes, task, features; or, for links, ogbl-collab, -ppa, -ddi or -citation2
  edges:FILE              a table or two columns: text, .parquet, .arrow, .jsonl, .npy; options src, dst, weight, time,
                          edge_features, nodes=TABLE, id, node_time, features, labels, split or {train,val,test}_mask,
                          fill, header, null, decimal, comment, on_unknown=refuse|drop; or of files by node number nodes,
                          names, features, labels, split or {train,val,test}_ids; classes, task, train, val, seed; as
                          edges:follows.csv,src=from,dst=to,nodes=users.csv,id=user,labels=team
  tables:FILE.toml        a TOML file that names tables of nodes and edges, of one kind or relational: files, SQL
                          queries, tables of SQLite and PostgreSQL
  pigo:FILE               PIGO's binary CSR; the options of edges, without nodes
  mggcn:DIR               MG-GCN's graph.bin, features.bin, labels.bin, sets.bin; option classes
  roc:PREFIX              ROC's PREFIX.add_self_edge.lux, .feats.csv or .feats.bin, .label, .mask; option classes
  reddit:DIR              DGL's reddit_data.npz and reddit_graph.npz; option classes
  sbm:nodes=10000,...     stochastic block model; options nodes, classes, degree, features, homophily, noise, ...
  rmat:scale=14,...       R-MAT; options nodes or scale, edges, a, b, c, d, features, classes, ...
  bter:nodes=10000,...    BTER; options nodes, degree, max_degree, beta or degrees=FILE, cmax, xi or clustering=FILE,
                          features, ...
  tu:DIR                  a set of graphs: TU Dortmund's DS_A.txt, DS_graph_indicator.txt, DS_graph_labels.txt, ...;
                          options task, train, val, seed
  ogbg:DIR                a set of graphs: a folder of ogbg-* with raw/ and split/; options classes, task
  mag:DIR                 ogbn-mag, relational, the folder with raw/ and split/; options classes, reverses, names
  relational:nodes=...    papers, authors, institutions and fields, relational; options nodes, edges, classes, features,
                          homophily, ...
with, after a comma each: undirected, self_loops, deduplicate, normalize, drop_edge_values"""


def load(spec: AnyPath, *, verify: bool = False, check: bool = True, allow_empty: Collection[str] = (),
         task: str | None = None, relational: bool = False, folder: AnyPath | None = None, n_bytes: int | None = None,
         transforms: Mapping[str, JsonDict] | None = None, tell: Callable[[str], None] = lambda text: None,
         **changes: bool | None) -> Dataset:
    """Return the data set that `spec` names, such as "sbm:nodes=100" or a directory, after `changes`, such as undirected=True. It is
    validated unless `check` is False; `verify` compares checksums, and splits in `allow_empty` may be empty. `relational` must be True for
    several node types, `transforms` are a model's transforms of features, and `n_bytes` limits memory, with files in `folder`.

    Parameters
    ----------
    spec : str
        One of `FORMS`. Options follow as `,key=value`; `,key` sets a flag to true.
    verify : bool
        If True, compare the sha256 of every file of a native directory.
    check : bool
        If True, run `Dataset.check`, which reads everything once.
    allow_empty : collection of {"train", "val", "test"}
        Splits that may be empty.
    task : {"classify", "multilabel", "regress"}, optional
        Required meaning of the labels. Forms with the option `task` read the labels in this way; for other forms, labels of
        another task are refused.
    relational : bool
        True if the graph must have several node types or relations; False if it must be of one kind.
    folder : path, optional
        Private folder in which a data set of the form edges:, npz:, mag: or tables: is built in bounded memory and then
        mapped. The caller removes the folder. It needs the size of the data set plus about 12 bytes per edge of the largest
        relation, twice that while edges are merged, and 16 bytes if ids are names.
    n_bytes : int, optional
        Memory limit in bytes for the sorts, or for a split. The data set is the same, bit for bit.
    transforms : dict, optional
        Transforms of a model's data by node type or "."-joined relation, as `schema.transforms_of` returns them. Features
        of tables are computed with these statistics instead of the statistics of the tables.
    tell : callable
        tell(text) is called as each step begins.
    **changes : bool
        undirected, self_loops, deduplicate, normalize, drop_edge_values: these override the spec's options of the same
        names. A relational graph accepts drop_edge_values only.

    Returns
    -------
    Dataset
        Memory-mapped for a native directory without changes and with `folder`, otherwise in memory. The rows of a divided
        native directory are ordered by part; `ids` has their original ids.

    Raises
    ------
    ConfigError
        If the form or an option is unknown, a value cannot be read, or the graph is of the other kind; also if `n_bytes` is
        passed with a form that is read at once.
    DataError
        As the reader and `Dataset.check`.

    Examples
    --------
    >>> from sarlite.data import load
    >>> dataset = load("sbm:nodes=100,classes=4,features=8", self_loops=True)
    >>> dataset.n_nodes, dataset.features.shape, dataset.n_classes
    (100, (100, 8), 4)
    >>> load("sbm:node=100")
    Traceback (most recent call last):
        ...
    sarlite.errors.ConfigError: data set option 'node': unknown for sbm; did you mean nodes?
    """
    with reading(f"data set {spec}"):
        dataset = _read(str(spec), verify, changes, task, relational, Workspace(folder, n_bytes), transforms, tell)
        if task not in (None, dataset.task) and dataset.n_classes:  # without labels every task is accepted
            raise ConfigError(f"{dataset.where('labels')}: their task is {dataset.task}, not {task}; npz, ogb, edges "
                              f"and pigo read labels of another task with the option task={task}")
        return dataset.check(allow_empty) if check else dataset


def load_relational(spec: AnyPath, **options: Any) -> Dataset:
    """Return the heterogeneous data set (with several node types or relations) that `spec` names. `options` are further arguments
    of `load`.

    Parameters
    ----------
    spec : str
        Data set, as for `load`.
    **options
        Further arguments of `load`.

    Returns
    -------
    Dataset

    Raises
    ------
    ConfigError, DataError
        See `load`; also if `spec` names a graph of one kind.

    Examples
    --------
    >>> from sarlite.data.spec import load_relational
    >>> dataset = load_relational("relational:nodes=300,edges=2000,classes=3,features=4,seed=1")
    >>> dataset.target, dataset.n_classes, len(dataset.edges)
    ('paper', 3, 8)
    >>> dataset.n_nodes_by_type
    {'paper': 114, 'author': 176, 'institution': 3, 'field_of_study': 9}
    """
    return load(spec, relational=True, **options)


def _read(spec, verify, changes, task, relational, workspace, transforms, tell):
    """Return the data set that `spec` names, with `changes` such as undirected=True applied, but not yet validated by `Dataset.check`.
    `workspace` holds large arrays, `transforms` are a model's stored transforms (None: they are fitted), and `tell(text)` receives
    progress.
    """
    form, path, options = _parse(spec)
    if workspace.n_bytes is not None and form not in _BOUNDED:
        raise ConfigError(f"--memory: {f'the form {form}:' if form else 'a native directory'} is read whole; "
                          f"{', '.join(f'{name}:' for name in _BOUNDED)} are read in bounded memory")
    _check_kind(spec, _is_relational(form, path), relational)
    if task and "task" in _READERS.get(form, (None, {}))[1] and (form not in ("edges", "pigo") or "labels" in options):
        options.setdefault("task", task)
    wanted, provenance = _split_changes(spec, options, changes, relational)
    if form is None:
        return _changed(format.open(path, verify=verify), wanted)
    if form in _DESCRIBED:
        about = {"source": spec, "provenance": provenance}
        described = _READERS[form][0](path, workspace, options).with_transforms(transforms or {})
        return build(described, workspace, tell, about, **wanted)
    raw = _READERS[form][0](path, **options) if form in _READERS else _GENERATORS[form][0](**options)
    if isinstance(raw, RawGraph):
        if wanted.pop("drop_edge_values", False):
            raw.edge_weight = raw.edge_features = None
        return raw.assemble(spec, provenance=provenance, **wanted)
    about = {"name": form, "source": spec, "provenance": provenance}
    dataset = Dataset.of_edge_lists(raw, **about) if relational else Dataset(**raw._asdict(), **about)
    return _changed(dataset, wanted)


def _check_kind(spec, is_relational, relational):
    """Raise a ConfigError if the graph of `spec` is heterogeneous (`is_relational`) but the caller expects one node type, or the reverse.
    `relational` True means that the caller expects a heterogeneous graph.
    """
    if is_relational and not relational:
        raise ConfigError(f"data set {spec!r}: a relational graph, of several node types, but a graph of one kind is needed")
    if relational and not is_relational:
        raise ConfigError(f"data set {spec!r}: a graph of one kind, but a relational graph is needed")


def has_transforms(spec: AnyPath) -> bool:
    """Return True if DuckDB builds the data set `spec` from tables, such as CSV files, so that a model's stored transforms can compute its
    features.
    """
    return _parse(str(spec))[0] in _DESCRIBED


def generated_lines(spec: AnyPath, dataset: Dataset) -> list[str]:
    """Return lines that compare `dataset`, a generated random graph, with the properties that its `spec` requested, such as
    degrees; [] for other data and for generators that meet their spec exactly.
    """
    form, _, options = _parse(str(spec))
    return _REPORTS[form](dataset.indptr, dataset.indices, **options) if form in _REPORTS else []


def is_relational(spec: AnyPath) -> bool:
    """Return True if `spec` names a heterogeneous graph, one with several node types or relations. Of a native directory only
    meta.json is read.
    """
    form, path, _ = _parse(str(spec))
    return _is_relational(form, path)


def is_of_graphs(spec: AnyPath) -> bool:
    """Return True if `spec`, the user's text or path for a data set, names a set of graphs instead of one graph. For a directory in
    sarlite's own format only its meta.json is read.
    """
    form, path, _ = _parse(str(spec))
    if form is not None:
        return form in _GRAPHS
    meta = format.read_meta(path)
    return meta.get("target") == MEMBERS[2] and set(meta["edges"]) == {key(*RELATION), key(*MEMBERS)}


def _is_relational(form, path):
    if form == "tables":
        return description.is_relational(path)
    return form in _RELATIONAL or (form is None and "target" in format.read_meta(path))


def _split_changes(spec, options, changes, relational):
    """Remove from `options` those that change the graph, such as undirected. Return (changes, provenance): first {name: value} of the
    removed options, updated with `changes`; then a dict that says where the data set `spec` comes from. Raise a ConfigError for a change
    that a graph of several node types (`relational`) does not allow.
    """
    wanted = {name: options.pop(name) for name in _CHANGES if name in options}
    wanted.update((name, value) for name, value in changes.items() if value is not None)
    wanted = {name: value for name, value in wanted.items() if value or (name == "undirected" and not relational)}
    odd = [name for name, value in wanted.items() if relational and value and name != "drop_edge_values"]
    if odd:
        raise ConfigError(f"data set {spec!r}: {odd[0]} is for graphs of one kind, but this graph is relational")
    return wanted, {"spec": spec, "options": {**options, **wanted}, "sarlite": _version()}


def native_directory(spec: AnyPath) -> str | None:
    """Return the directory in the native format that `spec` names as it is, without changes of edges or features; None for any
    other spec.
    """
    form, path, options = _parse(str(spec))
    return path if form is None and not any(options.values()) else None


def source_path(spec: AnyPath) -> str | None:
    """Return the path of the file or directory that `spec` names, or None if there is none."""
    form, path, _ = _parse(str(spec))
    return path if path is not None and os.path.exists(path) else None


def _parse(spec):
    """Return (form, path, options) of a spec: ("npz", FILE, {"seed": 1}) for "npz:FILE,seed=1". The form of a native directory is None."""
    form, colon, rest = spec.partition(":")
    if form in _GENERATORS:
        return form, None, _options(form, rest.split(",") if rest else [], _GENERATORS[form][1])
    if colon and form in _READERS:
        path, words = _path_and_words(rest)
        if not path:
            raise ConfigError(f"data set {spec!r}: no path after {form}:")
        return form, path, _options(form, words, {**_READERS[form][1]})
    close = suggestion(form, (*_READERS, *_GENERATORS))
    if colon and close and not os.path.exists(spec):
        raise ConfigError(f"data set {spec!r}: no form {form}:{close}")
    path, words = _path_and_words(spec)
    if not os.path.isdir(path):
        raise _no_directory(spec, path)
    return None, path, _options("a directory", words, {})


def _no_directory(spec, path):
    """Return the error for `spec`, which has no form such as "npz:" and is read as a directory, if its `path` is not one."""
    if os.path.exists(path):
        content = "names tables, tables" if path.endswith(".toml") else "holds edges, edges"
        return DataError(f"data set {spec!r}: {path} is a file; where it {content}:{spec} reads it")
    if "/" not in path and ":" in path:
        return ConfigError(f"data set {spec!r} is not one of the known forms: {', '.join(_forms())}")
    if not path:
        return ConfigError(f"data set {spec!r}: no path; --data takes a directory that convert wrote, or FORM:PATH")
    from_folder = "" if os.path.isabs(path) else f" in {os.getcwd()}"
    return DataError(f"{path}: no such directory{from_folder}; --data takes a directory that convert wrote, or FORM:PATH to read "
                     "files: python -m sarlite.data convert --help lists the forms")


def _forms():
    return [line.split()[0] for line in FORMS.splitlines() if line.startswith("  ") and line[2] != " "]


def _path_and_words(text):
    """Return (path, texts of the options, such as "seed=1") from `text`, the part of a spec after "FORM:". Commas separate them; only a
    path that exists may contain commas.
    """
    if os.path.exists(text):  # a path may hold commas
        return text, []
    text = text.replace(",decimal=,", ",decimal=comma")
    path, *words = text.split(",")
    return path, words


def _options(form, words, parsers):
    """Return {option: value} from `words`, texts such as "seed=1". `parsers` maps each option to a function that reads its value;
    messages name the `form` of the spec.
    """
    parsers, options, errors = {**parsers, **_CHANGES}, {}, []
    for word in words:
        key, _, value = word.partition("=")
        if word == "features=normalize":
            key, value = "normalize", "true"
        if key not in parsers:
            errors.append(ConfigError(f"data set option {key!r}: unknown for {form}"
                                      + (suggestion(key, parsers) or f"; known are {', '.join(parsers)}")
                                      + ("" if "=" in word else "; a file of tables:FILE.toml names columns with commas")))
            continue
        if key in options:
            errors.append(ConfigError(f"data set option {key!r}: given twice"))
        if not value and parsers[key] is _flag:
            value = "true"
        try:
            options[key] = parsers[key](value)
        except ValueError as error:
            errors.append(ConfigError(f"data set option {key!r}: cannot read {value!r}: {error}"))
            continue
        if value == "":
            errors.append(ConfigError(f"data set option {key!r}: has no value"))
    raise_all(errors)
    return options


def _changed(dataset, changes):
    """Return `dataset` after `changes`, {name: bool} such as undirected or normalize. Without a True value, the data set is returned as it
    is.
    """
    if not any(changes.values()):
        return dataset
    dataset.provenance = {**dataset.provenance, "changes": dict(changes)}
    if changes.pop("drop_edge_values", False):
        dataset.drop_edge_values()
    if any(value for name, value in changes.items() if name != "normalize"):
        assembled = RawGraph.of(restored(dataset)).assemble(dataset.source, provenance=dataset.provenance, **changes)
        assembled.class_names, assembled.target_nodes.names = dataset.class_names, dataset.target_nodes.names
        return assembled
    if changes.get("normalize"):
        dataset.features = row_normalized(dataset.features)
    return dataset


def _version():
    try:
        return importlib.metadata.version("sarlite")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def from_tables(described: Mapping[str, object], **changes: bool) -> Dataset:
    """Return the data set of tables in memory or in files. `described` is a dict in the form of docs/tables.md, and `changes`, such
    as undirected=True, change edges or features.

    Parameters
    ----------
    described : dict
        The content of a description file (see docs/tables.md). The value of a key `file` may also be a table in memory: a
        dict of arrays, a table of pandas, polars or pyarrow, or an object with `__arrow_c_stream__` or `__dataframe__`.
    **changes : bool
        undirected, self_loops, deduplicate, normalize, drop_edge_values: as for `load`.

    Returns
    -------
    Dataset
        In memory and checked. The `names` of its node tables map the ids in the tables to row numbers.
        `provenance["tables"]` records how each column was used.

    Raises
    ------
    ConfigError
        If a key is unknown or has an impossible value.
    DataError
        If a table cannot be read or its content is refused, as for `load`.

    Examples
    --------
    >>> from sarlite.data import from_tables
    >>> follows = {"source": ["ann", "bob"], "target": ["bob", "cas"]}
    >>> edges = {"file": follows, "relation": ["user", "follows", "user"], "src": "source", "dst": "target"}
    >>> dataset = from_tables({"nodes": {"user": {}}, "edges": [edges]})
    >>> dataset.n_nodes, dataset.indices.tolist()
    (3, [0, 1])
    """
    about = {"source": "tables", "provenance": {}}
    dataset = build(description.of_dict(described, "description"), Workspace(), lambda text: None, about, **changes)
    return dataset.check(allow_empty=SPLITS)

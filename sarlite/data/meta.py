"""The content of meta.json, built from a data set and the dtypes, shapes and hashes of its files, read from a file, and checked."""

import json
from pathlib import Path

from sarlite.data import npyfile
from sarlite.data.folders import check_relation, key, words
from sarlite.data.graph_tables import NODE, RELATION, SPLITS, EdgeTable, NodeTable
from sarlite.data.targets import TASKS
from sarlite.data.times import KINDS
from sarlite.data.writer import META, meta_hash, old_copies
from sarlite.errors import DataError, reading, regular
from sarlite.types import Path as AnyPath

SCHEMA = 2
TABLES = {"nodes": NodeTable, "edges": EdgeTable}
"""Subfolder of a data set's directory -> the class of the tables below it, which have a folder each."""
NAMES = {"bytes": ("|u1", None), "ends": ("<i8", 1), "hashes": ("<u8", 0), "numbers": ("<i8", 0)}
"""File of the nodes' names (see `names`) -> (dtype, length minus the number of nodes; None for any length)."""
_MAX_BYTES = 1 << 24


def content(dataset, offsets, division, file_records):
    """Return the dict for meta.json that describes `dataset`. `offsets` has the first row of each part by node type, `division`
    says how the parts were made, and `file_records` has each file's dtype, shape and sha256.

    Parameters
    ----------
    dataset : Dataset
        The data set whose tables were written.
    offsets : dict of str to (n_parts + 1,) int
        Rows of each part, by node type.
    division : dict or None
        Record of how the rows were divided.
    file_records : dict of str to dict
        Dtype, shape and sha256 of each file, by path.
    """
    labels = {"classes": int(dataset.n_classes), "task": dataset.task}
    if dataset.class_names:
        labels["class_names"] = dataset.class_names
    nodes = {}
    for name, table in dataset.nodes.items():
        ends = [int(offset) for offset in offsets[name]]
        # this order of the keys keeps meta.json of a graph of one kind byte for byte as older versions wrote it
        first = {"count": ends[-1], "offsets": ends, **({} if dataset.relational else labels)}
        nodes[key(name)] = {**first, **_feature_names(table), "arrays": _arrays(table, file_records)}
    nodes[key(dataset.target)] |= labels
    edges = {key(*relation): _arrays(table, file_records) for relation, table in dataset.edges.items()}
    edges = {name: {"count": arrays["indices"]["shape"][0], "arrays": arrays} for name, arrays in edges.items()}
    for relation, table in dataset.edges.items():
        edges[key(*relation)] |= _feature_names(table)
    names = _names(file_records)
    return {
        "format": "sarlite graph",
        "schema": SCHEMA,
        "name": dataset.name,
        **({"target": key(dataset.target)} if dataset.relational else {}),
        "nodes": nodes,
        "edges": edges,
        "division": division,
        "provenance": dataset.provenance,
        **({"names": names} if names else {}),
    }


def _arrays(table, file_records):
    """Return {file name: record} of the files of `table`, from `file_records`, {path: record} of all files. A record has dtype,
    shape and sha256.
    """
    paths = {name: f"{table.folder}/{name}" for name in table.FILES.values()}
    return {name: file_records[path] for name, path in paths.items() if path in file_records}


def _feature_names(table):
    """Return the entries of meta.json about the feature columns, transforms and times of `table`, as a dict. Names of columns are left out
    unless each column has its own name.
    """
    names, array = table.feature_names, table.arrays().get(table.FEATURES)
    named = names is not None and array is not None and len(set(names)) == array.shape[1] == len(names)
    transforms = {"transforms": table.transforms} if table.transforms and array is not None else {}
    time = {"time": table.time_kind} if table.time_kind else {}
    return {**({"feature_names": names} if named else {}), **transforms, **time}


def _names(file_records):
    """Return the entry of meta.json about files with nodes' names: {file: record} or, in a relational graph, {node type: {file:
    record}}. A record has dtype, shape and sha256.
    """
    records_by_file = {}
    for path, record in file_records.items():
        section, *folder, name = path.split("/")
        if section == "names":
            (records_by_file.setdefault(folder[0], {}) if folder else records_by_file)[name] = record
    return records_by_file


def read(directory):
    """Return the content of a directory's `meta.json` as a dict, after checking its schema, its sha256 and its entries.

    Parameters
    ----------
    directory : path

    Raises
    ------
    DataError
        If the file is missing, is not of this schema, has another sha256 than its content, or describes impossible arrays.
    """
    path = Path(directory) / META
    if not path.exists():
        if copies := old_copies(path.parent):
            raise DataError(f"{path}: no such file: a process ended while it replaced the data set, which is in {copies[0]}: rename "
                            f"that folder to {directory}")
        spec = directory if ":" in str(directory) else "SPEC"
        raise DataError(f"{path}: no such file, so {str(directory)!r} is not a data set in the native format: "
                        f"convert it first, python -m sarlite.data convert {spec} DIR")
    with reading(path):
        if regular(path).stat().st_size > _MAX_BYTES:
            raise DataError(f"{path}: {path.stat().st_size} bytes, expected at most {_MAX_BYTES}")
        meta = json.loads(path.read_bytes())
    if not isinstance(meta, dict) or meta.get("schema") != SCHEMA:
        schema = meta.get("schema") if isinstance(meta, dict) else type(meta).__name__
        raise DataError(f"{path}: schema: {schema!r}, expected {SCHEMA}{_anew(meta, directory) if schema == 1 else ''}")
    stored_hash = meta.pop("sha256", None)
    if stored_hash != meta_hash(meta):
        raise DataError(f"{path}: sha256: {stored_hash}, but the rest of the file gives {meta_hash(meta)}: the file was changed")
    _check(path, meta)
    return meta


def _anew(meta, directory):
    """Return the end of an error message about `directory`, which has version 1 of the format: the command that converts the data again."""
    spec = meta["provenance"].get("spec", "SPEC") if isinstance(meta.get("provenance"), dict) else "SPEC"
    return f"; an older sarlite wrote it: write it anew, python -m sarlite.data convert {spec} {directory} --overwrite"


def check_class_names(path: AnyPath, names: object, n_classes: int) -> None:
    """Raise a DataError about the file `path` unless `names` is None or a list of `n_classes` distinct texts that UTF-8 can encode."""
    if names is None:
        return
    if not isinstance(names, list) or not _are_words(names) or not len(set(names)) == len(names) == n_classes:
        raise DataError(f"{path}: class_names: expected {n_classes} different names, one a class")
    with reading(path, "class_names"):
        "".join(names).encode()


def _check(path, meta_content):
    """Raise a DataError for the first invalid entry of `meta_content`, the dict in meta.json."""
    for name, kind in {"name": str, "nodes": dict, "edges": dict, "provenance": dict}.items():
        _expect(path, name, meta_content.get(name), kind)
    relational = "target" in meta_content
    (_check_types if relational else _check_one_kind)(path, meta_content)
    for section, table in TABLES.items():
        for name, entry in meta_content[section].items():
            _check_records(path, f"{section}: {name}", entry, table.FILES, _needed(meta_content, section, name))
    for name, entry in meta_content["nodes"].items():
        _check_offsets(path, f"nodes: {name}: offsets" if relational else "offsets", entry.get("offsets"), entry["count"])
    target = meta_content["nodes"][meta_content.get("target", NODE)]
    _expect(path, "classes", target.get("classes"), int)
    if target.setdefault("task", "classify") not in TASKS:  # older directories have no entry `task`
        raise DataError(f"{path}: task: expected one of {', '.join(TASKS)}, found {target['task']!r}")
    check_class_names(path, target.get("class_names"), target["classes"])
    _check_names(path, meta_content)
    division = meta_content.get("division")
    named = isinstance(division, dict) and all(isinstance(division.get(word), str) for word in ("partition", "order"))
    if division is not None and not named:
        raise DataError(f"{path}: division: expected null, or partition and order by name, found {division!r}")


def _check_names(path, meta_content):
    """Raise a DataError unless `meta_content` lists each type's names as four arrays whose lengths fit the number of nodes."""
    names = meta_content.get("names", {})
    _expect(path, "names", names, dict)
    for name, records in (names if "target" in meta_content else {NODE: names} if names else {}).items():
        if name not in meta_content["nodes"]:
            raise DataError(f"{path}: names: {name!r} is not one of the node types {', '.join(meta_content['nodes'])}")
        _expect(path, f"names: {name}", records, dict)
        n = meta_content["nodes"][name]["count"]
        for file, (dtype, length) in NAMES.items():
            npyfile.check_record(path, f"names: {name}: {file}", records.get(file))
            shape = records[file]["shape"]
            if records[file]["dtype"] != dtype or len(shape) != 1 or (length is not None and shape != [n + length]):
                actual = f"{records[file]['dtype']} of shape {shape}"
                raise DataError(f"{path}: names: {name}: {file}: {actual} is not of the names of {n} nodes")


def _check_one_kind(path, meta_content):
    """Raise a DataError unless `meta_content`, the meta.json of a graph of one node type, lists just the type `node` and its relation."""
    for section, name in (("nodes", NODE), ("edges", key(*RELATION))):
        if list(meta_content[section]) != [name]:
            raise DataError(f"{path}: {section}: {', '.join(meta_content[section]) or 'nothing'}; a graph of one kind, which names "
                            f"no target, has only {name}")


def _check_types(path, meta_content):
    """Raise a DataError unless the relations and the target in `meta_content` name its node types, and only the target has labels and
    splits.
    """
    types = [_words(path, "nodes", name, 1)[0] for name in meta_content["nodes"]]
    for name in meta_content["edges"]:
        check_relation(_words(path, "edges", name, 3), types, path)
    target = meta_content["target"]
    if not isinstance(target, str) or target not in meta_content["nodes"]:
        raise DataError(f"{path}: target: {target!r} is not one of the node types {', '.join(meta_content['nodes'])}")
    for name, entry in meta_content["nodes"].items():
        arrays = entry.get("arrays") if isinstance(entry, dict) else None
        odd = [field for field in ("labels", *SPLITS) if isinstance(arrays, dict) and field in arrays]
        if odd and name != target:
            raise DataError(f"{path}: nodes: {name}: {odd[0]}: only the target, {target}, has labels and splits")


def _words(path, section, name, n):
    """Return the `n` words that the folder name `name` encodes, 1 for a node type or 3 for a relation. Raise a DataError, which begins with
    `path` and `section`, for an invalid name.
    """
    try:
        return words(name, n)
    except ValueError as error:
        raise DataError(f"{path}: {section}: {name!r}: {error}") from None


def _needed(meta_content, section, name):
    """Return the fields whose arrays `meta_content`, the dict in meta.json, must list for a table. The table has the folder name `name`,
    and is of a node type if `section` is "nodes", or of a relation if "edges".
    """
    if section == "edges":
        return ("indptr", "indices")
    if "target" not in meta_content:
        return ("features", "labels", *SPLITS)
    return ("labels", *SPLITS) if name == meta_content["target"] else ()


def _check_records(path, entry_name, entry, files, needed):
    """Raise a DataError unless the arrays listed in `entry`, the part of meta.json about one table, have valid records: dtype, shape and
    sha256. `files` maps the table's fields to names of files; the fields in `needed` must be listed. Messages name the file `path` and
    `entry_name`.
    """
    _expect(path, entry_name, entry, dict)
    _expect(path, f"{entry_name}: count", entry.get("count"), int)
    _expect(path, f"{entry_name}: arrays", entry.get("arrays"), dict)
    for field, name in files.items():
        record = entry["arrays"].get(name)
        if record is None and field in needed:
            raise DataError(f"{path}: {entry_name}: no record of {name}")
        if record is not None:
            npyfile.check_record(path, f"{entry_name}: {name}", record)
    _check_feature_names(path, entry_name, entry, entry["arrays"].get("features"))


def _check_feature_names(path, entry_name, entry, record):
    """Raise a DataError for invalid feature names, transforms or times in `entry`, the part of meta.json about one table. The names must be
    distinct texts, one per column of the features, whose dtype and shape are in `record`. Messages call the table `entry_name`.
    """
    _expect(path, f"{entry_name}: transforms", entry.get("transforms", {}), dict)
    if entry.get("time") not in ((None, *KINDS) if "time" not in entry["arrays"] else KINDS):
        raise DataError(f"{path}: {entry_name}: time: expected {' or '.join(KINDS)}, found {entry.get('time')!r}")
    names = entry.get("feature_names")
    if names is None:
        return
    width = record["shape"][1] if record is not None and len(record["shape"]) == 2 else 0
    if not _are_words(names) or len(names) != width or len(set(names)) != width:
        raise DataError(f"{path}: {entry_name}: feature_names: expected {width} different names, one a column of features")


def _are_words(names):
    return isinstance(names, list) and all(isinstance(name, str) for name in names)


def _expect(path, name, value, kind):
    """Raise a DataError about the entry `name` of the file `path` unless `value` is an instance of the class `kind`. A bool is not accepted
    as an int.
    """
    if not isinstance(value, kind) or isinstance(value, bool):
        raise DataError(f"{path}: {name}: expected {kind.__name__}, found {value!r}")


def _check_offsets(path, name, offsets, count):
    """Raise a DataError unless `offsets`, the first row of each part in meta.json, are integers that rise from 0 to `count`, the
    number of rows of the node type `name`.
    """
    good = isinstance(offsets, list) and len(offsets) > 1 and all(type(offset) is int for offset in offsets)
    if not good or (offsets[0], offsets[-1]) != (0, count) or offsets != sorted(offsets):
        raise DataError(f"{path}: {name}: {str(offsets)}: expected whole numbers that rise from 0 to {count}")

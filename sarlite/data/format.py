"""The native format: a directory of .npy files that ranks map, and a meta.json that says what must be in them.

meta.json     schema, name, counts, dtype + shape + sha256 of every array, provenance, and a sha256 of itself
indptr.npy    (n_nodes + 1,) int64, CSR by destination      indices.npy   (n_edges,) int32 or int64
features.npy  (n_nodes, n_features) float32 or float64      labels.npy    (n_nodes,) int64, -1 is unlabelled
train.npy, val.npy, test.npy   (n_nodes,) bool, disjoint masks
edge_weight.npy (n_edges,), edge_features.npy (n_edges, any): optional, float32 or float64
parts-N.npy   (n_nodes,) int32: the part of every node in a partition into N
order.npy     (n_nodes,) int32 or int64: a permutation of the nodes, in which the rows of a part stand
"""

import contextlib
import hashlib
import json
import os
import shutil
import uuid
from pathlib import Path

from sarlite.data import npyfile
from sarlite.data.dataset import EXPECTED, Dataset
from sarlite.errors import ConfigError, DataError
from sarlite.graph.order import check_order
from sarlite.graph.partition import check_parts

SCHEMA = 1
META = "meta.json"
_OPTIONAL = ("edge_weight", "edge_features")
_REQUIRED = tuple(name for name in EXPECTED if name not in _OPTIONAL)
_MAX_META_BYTES = 1 << 24


def write(directory, dataset, *, overwrite=False):
    """Write a data set in the native format.

    Everything goes to a temporary directory beside `directory`, is fsynced, and takes the final name by a rename; so
    whatever fails, `directory` is either absent, the old data set or the new one. (With `overwrite` the old one is first
    renamed to `.NAME.old-*`; a machine that dies between the two renames leaves it there.)

    Parameters
    ----------
    directory : path
    dataset : Dataset
        Its shapes and dtypes are checked; call `check` for the values.
    overwrite : bool
        Replace an existing native directory. Any other existing path is refused, an empty directory excepted.

    Raises
    ------
    DataError
        The data set does not fit together, or a file cannot be written (the message names it).
    ConfigError
        `directory` exists and may not be replaced.
    """
    directory = Path(os.path.abspath(directory))
    dataset.check_shapes()
    _check_replaceable(directory, overwrite)
    temporary = directory.with_name(f".{directory.name}.tmp-{uuid.uuid4().hex[:8]}")
    with _cleanup(temporary):
        with _writing(directory):
            temporary.mkdir(parents=True)
        records = {}
        for name, array in dataset.arrays().items():
            with _writing(directory / f"{name}.npy"):
                records[name] = npyfile.write(temporary / f"{name}.npy", array)
        with _writing(directory / META):
            _write_meta(temporary, _meta(dataset, records))
            _sync_directory(temporary)
        with _writing(directory):
            _replace(temporary, directory)


def open(directory, *, verify=False):
    """Map a data set in the native format.

    Parameters
    ----------
    directory : path
    verify : bool
        Read every file once and compare its sha256. In a run of many ranks one rank does it.

    Returns
    -------
    Dataset
        Its arrays are read-only memory maps.

    Raises
    ------
    DataError
        `meta.json` is missing, damaged or of another schema, or a file is missing or is not what `meta.json` says.

    Notes
    -----
    Sizes are compared before anything is mapped. Takes a few kilobytes of memory.
    """
    directory = Path(directory)
    meta = read_meta(directory)
    arrays = {}
    for name in (*_REQUIRED, *_OPTIONAL):
        if name in meta["arrays"]:
            arrays[name] = npyfile.open_map(directory / f"{name}.npy", meta["arrays"][name], name)
    if verify:
        for name in arrays:
            npyfile.verify(directory / f"{name}.npy", meta["arrays"][name], name)
    dataset = Dataset(
        **arrays,
        n_classes=meta["n_classes"],
        name=meta["name"],
        source=str(directory),
        directory=str(directory),
        provenance=meta["provenance"],
    )
    dataset.check_shapes()
    for name in ("n_nodes", "n_edges", "n_features"):
        if meta[name] != getattr(dataset, name):
            raise DataError(f"{directory / META}: {name}: {meta[name]}, but the arrays have {getattr(dataset, name)}")
    return dataset


def read_meta(directory):
    """Return the checked content of `meta.json`; raises DataError."""
    path = Path(directory) / META
    try:
        if path.stat().st_size > _MAX_META_BYTES:
            raise DataError(f"{path}: meta.json: {path.stat().st_size} bytes, expected at most {_MAX_META_BYTES}")
        meta = json.loads(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path}: meta.json: cannot be opened: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: meta.json: not JSON: {error}") from error
    if not isinstance(meta, dict) or meta.get("schema") != SCHEMA:
        found = meta.get("schema") if isinstance(meta, dict) else type(meta).__name__
        raise DataError(f"{path}: schema: {found!r}, expected {SCHEMA}")
    said = meta.pop("sha256", None)
    if said != _meta_hash(meta):
        raise DataError(f"{path}: sha256: {said}, but the rest of the file gives {_meta_hash(meta)}: the file was changed")
    _check_meta(path, meta)
    return meta


def write_parts(directory, parts, n_parts, *, method, seed=0):
    """Write `parts-N.npy` into a native directory, atomically, and its record into `meta.json`.

    Raises
    ------
    DataError
        `parts` does not fit the graph, or a file cannot be written.
    """
    path, meta = Path(directory) / f"parts-{n_parts}.npy", read_meta(directory)
    _store(path, meta, meta["parts"], str(n_parts), check_parts(parts, meta["n_nodes"], n_parts, path), method, seed)


def write_order(directory, order, *, method, seed=0):
    """Write `order.npy` into a native directory, atomically, and its record into `meta.json`.

    Raises
    ------
    DataError
        `order` is not a permutation of the graph's nodes, or a file cannot be written.
    """
    path, meta = Path(directory) / "order.npy", read_meta(directory)
    _store(path, meta, meta, "order", check_order(order, meta["n_nodes"], path), method, seed)


def _store(path, meta, records, key, array, method, seed):
    """Write `path`, whose record is records[key], a place in `meta`."""
    temporary = path.with_name(f".{path.name}.tmp-{uuid.uuid4().hex[:8]}")
    with _cleanup(temporary), _writing(path):
        record = npyfile.write(temporary, array)
        if records.pop(key, None):  # no moment at which meta.json describes another file than is there
            _write_meta(path.parent, meta)
        os.replace(temporary, path)
        records[key] = {**record, "method": method, "seed": seed}
        _write_meta(path.parent, meta)
        _sync_directory(path.parent)


def open_parts(directory, n_parts, *, verify=True):
    """Return the stored partition into `n_parts`: (n_nodes,) int32, memory-mapped.

    Raises
    ------
    DataError
        There is none (the message says which there are), or its file is not what `meta.json` says.
    """
    meta, path = read_meta(directory), Path(directory) / f"parts-{n_parts}.npy"
    record = meta["parts"].get(str(n_parts))
    if record is None:
        stored = ", ".join(sorted(meta["parts"], key=int)) or "none"
        raise DataError(f"{path.with_name(META)}: parts: no partition into {n_parts} (stored: {stored}); make one with "
                        f"python -m sarlite.data partition {directory} --parts {n_parts}")  # fmt: skip
    parts = npyfile.open_map(path, record, "parts")
    if verify:
        npyfile.verify(path, record, "parts")
        check_parts(parts, meta["n_nodes"], n_parts, path)
    return parts


def open_order(directory, *, verify=True):
    """Return the stored order of the nodes, (n_nodes,) int, memory-mapped; None where there is none.

    Raises
    ------
    DataError
        Its file is not what `meta.json` says.
    """
    meta, path = read_meta(directory), Path(directory) / "order.npy"
    record = meta.get("order")
    if record is None:
        return None
    order = npyfile.open_map(path, record, "order")
    if verify:
        npyfile.verify(path, record, "order")
        check_order(order, meta["n_nodes"], path)
    return order


def _meta(dataset, records):
    return {
        "format": "sarlite graph",
        "schema": SCHEMA,
        "name": dataset.name,
        "n_nodes": int(dataset.n_nodes),
        "n_edges": int(dataset.n_edges),
        "n_features": int(dataset.n_features),
        "n_classes": int(dataset.n_classes),
        "node_order": "source",
        "arrays": records,
        "parts": {},
        "provenance": dataset.provenance,
    }


def _check_meta(path, meta):
    kinds = {"name": str, "n_nodes": int, "n_edges": int, "n_features": int, "n_classes": int}
    for name, kind in {**kinds, "arrays": dict, "parts": dict, "provenance": dict}.items():
        if not isinstance(meta.get(name), kind):
            raise DataError(f"{path}: {name}: expected {kind.__name__}, found {meta.get(name)!r}")
    for name in _REQUIRED:
        if name not in meta["arrays"]:
            raise DataError(f"{path}: arrays: no record of {name}")
    stored = {f"parts-{n}": part for n, part in meta["parts"].items()} | ({"order": meta["order"]} if "order" in meta else {})
    for name, record in {**meta["arrays"], **stored}.items():
        if not isinstance(record, dict) or not all(key in record for key in ("dtype", "shape", "sha256")):
            raise DataError(f"{path}: {name}: expected a record of dtype, shape and sha256, found {record!r}")


def _meta_hash(meta):
    return hashlib.sha256(json.dumps(meta, sort_keys=True).encode()).hexdigest()


def _write_meta(directory, meta):
    """Write meta.json with its own hash to a temporary name, fsync, rename."""
    temporary = directory / f".{META}.tmp-{uuid.uuid4().hex[:8]}"
    meta = json.loads(json.dumps(meta))
    with _cleanup(temporary):
        with temporary.open("w", encoding="utf-8") as file:
            json.dump({**meta, "sha256": _meta_hash(meta)}, file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, directory / META)


def _check_replaceable(directory, overwrite):
    if not os.path.lexists(directory) or (directory.is_dir() and not any(directory.iterdir())):
        return
    if not (directory / META).is_file():
        raise ConfigError(f"{directory}: exists and is not a data set in the native format; it is not replaced")
    if not overwrite:
        raise ConfigError(f"{directory}: exists already; --overwrite (overwrite=True) replaces it")


def _replace(temporary, directory):
    """Give `temporary` the name `directory`; put the old directory back if that fails."""
    old = directory.with_name(f".{directory.name}.old-{uuid.uuid4().hex[:8]}")
    replaces = directory.exists()
    if replaces:
        os.rename(directory, old)
    try:
        os.rename(temporary, directory)
    except OSError:
        if replaces:
            os.rename(old, directory)
        raise
    if replaces:
        shutil.rmtree(old, ignore_errors=True)
    _sync_directory(directory.parent)


def _sync_directory(directory):
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def _cleanup(path):
    """Remove `path`, a file or a directory, however the block ends."""
    try:
        yield
    finally:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def _writing(path):
    try:
        yield
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror or error}") from error


__all__ = ["META", "SCHEMA", "open", "open_order", "open_parts", "read_meta", "write", "write_order", "write_parts"]

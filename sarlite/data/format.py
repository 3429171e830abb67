"""The native format: a directory of .npy files that ranks map, and a meta.json that says what must be in them.

meta.json                schema, name, node types and relations with the dtype, shape and sha256 of every array, how the rows are
                         divided, provenance, and a sha256 of itself
nodes/TYPE/              one row a node
  features.npy           (n, n_features) float32 or float64         labels.npy  (n,) int64, -1 is unlabelled; other tasks: `targets`
  train, val, test.npy   (n,) bool, disjoint masks                  ids.npy     (n,) original ids; absent where they count up
edges/SRC.NAME.DST/      one row an edge, CSR by destination
  indptr.npy             (n of DST + 1,) int64                      indices.npy (e,) int32 or int64, row numbers of SRC, ascending in a row
  weight, features.npy   (e,), (e, any) float, optional             ids.npy     (e,) original positions; absent where they count up

Rows stand in the order in which ranks own them: part p of a node type has the rows offsets[p] .. offsets[p + 1], and the edges into
them, so a rank maps one slice of each file. A graph of one kind is the type `node` and the relation `node.edge.node`. A relational graph
names in meta.json its `target`, the one type that has labels and splits; features are where there are some (`data.relational.format`).
Names of types and relations stand in paths and in meta.json as `data.relational.dataset.key` encodes them.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from sarlite.data import npyfile
from sarlite.data.dataset import (
    EDGE_ARRAYS,
    FILES,
    NODE,
    NODE_ARRAYS,
    RELATION,
    SPLITS,
    Dataset,
)
from sarlite.data.divide import copy
from sarlite.data.relational.names import check_relational
from sarlite.data.targets import TASKS
from sarlite.data.writer import META, Writer, meta_hash
from sarlite.errors import DataError, reading, regular
from sarlite.progress import SILENT, Progress
from sarlite.types import Array
from sarlite.types import Path as AnyPath

SCHEMA = 2
NAMES = ("bytes", "ends", "hashes", "numbers")  # files of the nodes' names: `names` tells
_MAX_META_BYTES = 1 << 24
_PLACES = {"nodes": NODE_ARRAYS, "edges": EDGE_ARRAYS}


def write(directory: AnyPath, dataset: Dataset, *, names: Mapping[str, Array] | None = None, overwrite: bool = False,
          progress: Progress = SILENT) -> None:
    """Write a data set in the native format, as `Writer` does: whole or not at all.

    Parameters
    ----------
    directory : path
    dataset : Dataset
        Its shapes and dtypes are checked; call `check` for the values. Where the sources of a row do not ascend they are sorted,
        and `edge_ids` remembers how they stood.
    names : dict, optional
        The arrays of the nodes' names, as `names.arrays` gives them.
    overwrite : bool
        Replace an existing native directory. Any other existing path is refused, an empty directory excepted.
    progress : Progress

    Raises
    ------
    DataError
        The data set does not fit together, or a file cannot be written (the message names it).
    ConfigError
        `directory` exists and may not be replaced.
    """
    dataset.check_shapes()
    with progress.step(f"write {directory}", dataset.n_bytes) as step, \
            GraphWriter(directory, names=names, overwrite=overwrite, step=step) as out:
        copy(dataset, out)


class GraphWriter(Writer):
    """A `Writer` of graphs of one kind, by the names that `Dataset` gives its arrays."""

    def array(self, field, shape, dtype):
        return super().array(FILES[field], shape, dtype)

    def finish(self, facts):
        """Finish with the meta.json of `facts`, a `Facts`."""
        super().finish(lambda records: _meta(facts, records))


def open(directory: AnyPath, *, verify: bool = False) -> Dataset:
    """Map a data set in the native format.

    Parameters
    ----------
    directory : path
    verify : bool
        Read every file once and compare its sha256. In a run of many ranks one rank does it.

    Returns
    -------
    Dataset
        Its arrays are read-only memory maps, its rows in the order of the files.

    Raises
    ------
    DataError
        `meta.json` is missing, damaged or of another schema, or a file is missing or is not what `meta.json` says.

    Notes
    -----
    Sizes are compared before anything is mapped. Takes a few kilobytes of memory.
    """
    with reading(directory):
        return _opened(Path(directory), verify)


def _opened(directory, verify):
    meta = read_meta(directory)
    if "target" in meta:
        raise DataError(f"{directory / META}: target: {meta['target']}, so it is a relational graph, where one of one kind is needed")
    nodes, edges = meta["nodes"][NODE], meta["edges"][RELATION]
    records = {field: nodes["arrays"].get(name) for field, name in NODE_ARRAYS.items()}
    records |= {field: edges["arrays"].get(name) for field, name in EDGE_ARRAYS.items()}
    arrays = {}
    for field, record in records.items():
        if record is not None:
            path = directory / f"{FILES[field]}.npy"
            arrays[field] = npyfile.open_map(path, record, field)
            if verify:
                npyfile.verify(path, record, field)
    dataset = Dataset(
        **arrays,
        n_classes=nodes["classes"],
        name=meta["name"],
        source=str(directory),
        directory=str(directory),
        provenance=meta["provenance"],
        offsets=np.array(nodes["offsets"], np.int64),
        division=meta["division"],
        task=nodes["task"],
    )
    dataset.check_shapes()
    for name, said, found in (("nodes", nodes["count"], dataset.n_nodes), ("edges", edges["count"], dataset.n_edges)):
        if said != found:
            raise DataError(f"{directory / META}: {name}: {said}, but the arrays have {found}")
    return dataset


def files(directory):
    """Return (path, record, field) of each array's file; raises as `read_meta`, and DataError where a file is missing."""
    meta, found = read_meta(directory), []
    for place, names in _PLACES.items():
        for key, told in meta[place].items():
            found += [(Path(directory) / place / key / f"{name}.npy", told["arrays"][name], field) for field, name in names.items()
                      if name in told["arrays"]]
    missing = next(((path, field) for path, _, field in found if not path.is_file()), None)
    if missing:
        raise DataError(f"{missing[0]}: {missing[1]}: cannot be opened: no such file")
    return found


def read_meta(directory):
    """Return the checked content of `meta.json`; raises DataError."""
    path = Path(directory) / META
    if not path.exists():
        raise DataError(f"{path}: no such file, so {str(directory)!r} is no data set in the native format: convert it first, "
                        f"python -m sarlite.data convert {directory if ':' in str(directory) else 'SPEC'} DIR")  # fmt: skip
    with reading(path):
        if regular(path).stat().st_size > _MAX_META_BYTES:
            raise DataError(f"{path}: {path.stat().st_size} bytes, expected at most {_MAX_META_BYTES}")
        meta = json.loads(path.read_bytes())
    if not isinstance(meta, dict) or meta.get("schema") != SCHEMA:
        found = meta.get("schema") if isinstance(meta, dict) else type(meta).__name__
        raise DataError(f"{path}: schema: {found!r}, expected {SCHEMA}{_anew(meta, directory) if found == 1 else ''}")
    said = meta.pop("sha256", None)
    if said != meta_hash(meta):
        raise DataError(f"{path}: sha256: {said}, but the rest of the file gives {meta_hash(meta)}: the file was changed")
    _check_meta(path, meta)
    return meta


def _anew(meta, directory):
    """Tell how to write a directory of schema 1 again: from the spec that it remembers."""
    spec = meta["provenance"].get("spec", "SPEC") if isinstance(meta.get("provenance"), dict) else "SPEC"
    return f"; an older sarlite wrote it: write it anew, python -m sarlite.data convert {spec} {directory} --overwrite"


def _meta(facts, records):
    found = {field: records[path] for field, path in FILES.items() if path in records}
    names = {name: records[f"names/{name}"] for name in NAMES if f"names/{name}" in records}
    return {
        "format": "sarlite graph",
        "schema": SCHEMA,
        "name": facts.name,
        "nodes": {
            NODE: {
                "count": found["indptr"]["shape"][0] - 1,
                "offsets": [int(offset) for offset in facts.offsets],
                "classes": int(facts.n_classes),
                "task": facts.task,
                "arrays": {name: found[field] for field, name in NODE_ARRAYS.items() if field in found},
            }
        },
        "edges": {
            RELATION: {
                "count": found["indices"]["shape"][0],
                "arrays": {name: found[field] for field, name in EDGE_ARRAYS.items() if field in found},
            }
        },
        "division": facts.division,
        "provenance": facts.provenance,
        **({"names": names} if names else {}),
    }


def _check_meta(path, meta):
    for name, kind in {"name": str, "nodes": dict, "edges": dict, "provenance": dict}.items():
        _expect(path, name, meta.get(name), kind)
    check_names = check_relational if "target" in meta else _check_one_kind
    check_names(path, meta)
    for place, names in _PLACES.items():
        for key, told in meta[place].items():
            _check_records(path, f"{place}: {key}", told, names, _needed(meta, place, key))
    for key, told in meta["nodes"].items():
        _check_offsets(path, "offsets" if "target" not in meta else f"nodes: {key}: offsets", told.get("offsets"), told["count"])
    nodes = meta["nodes"][meta.get("target", NODE)]
    _expect(path, "classes", nodes.get("classes"), int)
    if nodes.setdefault("task", "classify") not in TASKS:  # which older directories do not say
        raise DataError(f"{path}: task: expected one of {', '.join(TASKS)}, found {nodes['task']!r}")
    division = meta.get("division")
    named = isinstance(division, dict) and all(isinstance(division.get(word), str) for word in ("partition", "order"))
    if division is not None and not named:
        raise DataError(f"{path}: division: expected null, or partition and order by name, found {division!r}")


def _check_one_kind(path, meta):
    for place, key in (("nodes", NODE), ("edges", RELATION)):
        if list(meta[place]) != [key]:
            raise DataError(f"{path}: {place}: {', '.join(meta[place]) or 'nothing'}; a graph of one kind, which names no target, has "
                            f"{key} alone")


def _needed(meta, place, key):
    """The fields of a type or a relation that must be there."""
    if place == "edges":
        return ("indptr", "indices")
    if "target" not in meta:
        return ("features", "labels", *SPLITS)
    return ("labels", *SPLITS) if key == meta["target"] else ()


def _check_records(path, where, told, names, needed):
    _expect(path, where, told, dict)
    _expect(path, f"{where}: count", told.get("count"), int)
    _expect(path, f"{where}: arrays", told.get("arrays"), dict)
    for field, name in names.items():
        record = told["arrays"].get(name)
        if record is None and field in needed:
            raise DataError(f"{path}: {where}: no record of {name}")
        if record is not None and not (isinstance(record, dict) and all(word in record for word in ("dtype", "shape", "sha256"))):
            raise DataError(f"{path}: {where}: {name}: expected a record of dtype, shape and sha256, found {record!r}")


def _expect(path, name, value, kind):
    if not isinstance(value, kind) or isinstance(value, bool):
        raise DataError(f"{path}: {name}: expected {kind.__name__}, found {value!r}")


def _check_offsets(path, name, offsets, count):
    good = isinstance(offsets, list) and len(offsets) > 1 and all(type(offset) is int for offset in offsets)
    if not good or offsets[0] != 0 or offsets[-1] != count or any(low > high for low, high in zip(offsets, offsets[1:])):
        raise DataError(f"{path}: {name}: {str(offsets)}: expected whole numbers that rise from 0 to {count}")


__all__ = ["META", "SCHEMA", "GraphWriter", "open", "read_meta", "write"]

"""The native format: a directory of .npy files that ranks map, and a meta.json that says what must be in them.

meta.json              schema, name, node types and relations with the dtype, shape and sha256 of every array, how the
                       rows are divided, provenance, and a sha256 of itself
nodes/TYPE/            one row a node
  features.npy         (n, n_features) float32, float64 or bfloat16: a record of one field of this name, <u2
  labels.npy           (n,) int64, -1 is unlabelled; of other tasks as `targets` tells
  train, val, test.npy (n,) bool, disjoint masks
  ids.npy              (n,) original ids; absent where they count up
  time.npy             (n,) int64, optional: nanoseconds since 1970 UTC, or whole numbers, as `time` in meta.json says
edges/SRC.NAME.DST/    one row an edge, CSR by destination
  indptr.npy           (n of DST + 1,) int64
  indices.npy          (e,) int32 or int64, row numbers of SRC, ascending in a row
  weight, features.npy (e,), (e, any) float, optional
  time.npy             (e,) int64, optional, as of nodes
  ids.npy              (e,) original positions; absent where they count up

Rows stand in the order in which ranks own them: part p of a node type has the rows offsets[p] .. offsets[p + 1], and
the edges into them, so a rank maps one slice of each file. A graph of one kind is the type `node` and the relation
`node.edge.node`. A relational graph names in meta.json its `target`, the one type that has labels and splits; features
are where there are some. Names of types and relations stand in paths and in meta.json as `folders.key` encodes them.
"""

from pathlib import Path

import numpy as np

from sarlite import kernels
from sarlite.data import meta, names, npyfile
from sarlite.data.dataset import Dataset
from sarlite.data.divide import copy
from sarlite.data.folders import key, words
from sarlite.data.graph_tables import NODE, EdgeTable, NodeTable
from sarlite.data.mapped import BFLOAT16, pieces, widened
from sarlite.data.meta import SCHEMA
from sarlite.data.meta import read as read_meta
from sarlite.data.raw import narrowed
from sarlite.data.writer import META, Writer
from sarlite.errors import DataError, reading
from sarlite.progress import SILENT, Progress
from sarlite.structure.validation import first_true
from sarlite.types import Path as AnyPath


def write(directory: AnyPath, dataset: Dataset, *, overwrite: bool = False, progress: Progress = SILENT,
          bfloat16: bool = False) -> None:
    """Write a data set as a directory in the native format; after an error no directory is left behind.

    Parameters
    ----------
    directory : path
        New or empty directory.
    dataset : Dataset
        Data set whose shapes, dtypes and edges are checked; call `Dataset.check` to check the other values. If the
        sources of a row do not ascend, the row's edges are sorted, and `edge_ids` has their original positions.
    overwrite : bool
        True to replace an existing native directory. Any other existing path is refused, except an empty directory.
    progress : Progress
        Object that shows the progress.
    bfloat16 : bool
        True to round the nodes' features to bfloat16, to nearest, ties to even: half the bytes of float32. float64 is
        rounded to float32 first.

    Raises
    ------
    DataError
        The arrays do not fit together; an end of an edge is no node; a finite feature would become infinite in bfloat16;
        or the name of a type or a relation cannot be the name of a folder.
        A file cannot be written; the message names the file.
    ConfigError
        `directory` exists and may not be replaced.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from sarlite import data
    >>> from sarlite.data import format
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     format.write(folder + "/graph", data.load("sbm:nodes=100,features=8,seed=1"))
    ...     sorted(path.name for path in pathlib.Path(folder, "graph", "nodes", "node").iterdir())
    ['features.npy', 'labels.npy', 'test.npy', 'train.npy', 'val.npy']
    """
    dataset.check_edges()
    with progress.step(f"write {directory}", dataset.n_bytes) as step, \
            GraphWriter(directory, overwrite=overwrite, step=step, bfloat16=bfloat16) as out:
        copy(dataset, out)


class GraphWriter(Writer):
    """A `Writer` of data sets, a table after the other; with `bfloat16` the nodes' features are rounded to that."""

    def __init__(self, directory, *, bfloat16=False, **options):
        super().__init__(directory, **options)
        self.bfloat16 = bfloat16

    def array(self, table, field, shape, dtype):
        """Return a writer of the rows of a table's array."""
        narrow = field == "features" and self.bfloat16 and dtype != BFLOAT16
        file = self.start(f"{table.folder}/{table.FILES[field]}", shape, BFLOAT16 if narrow else dtype)
        return _Narrowed(file, table.where(field)) if narrow else file

    def finish(self, dataset, offsets, division):
        """Write the nodes' names and the meta.json of a data set whose tables were written, divided at `offsets`."""
        for name, table in dataset.nodes.items():
            folder = f"names/{key(name)}" if dataset.relational else "names"
            for file, array in (table.names or {}).items():
                self.start(f"{folder}/{file}", array.shape, array.dtype).write(array)
        super().finish(lambda records: meta.made(dataset, offsets, division, records))


class _Narrowed:
    """Takes rows of floats for a file of bfloat16."""

    def __init__(self, file, where):
        self._file, self._where, self._n = file, where, 0

    def write(self, rows):
        for _, piece in pieces(rows):
            found = kernels.narrow(np.ascontiguousarray(narrowed(piece))).view(BFLOAT16)
            if (at := first_true(np.isfinite(piece) & ~np.isfinite(widened(found)))) is not None:
                raise DataError(f"{self._where}: row {self._n + at[0]}, column {at[1]} is {piece[at]:g}, which "
                                "bfloat16 rounds to infinity")
            self._file.write(found)
            self._n += len(piece)


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

    Examples
    --------
    >>> import tempfile
    >>> from sarlite import data
    >>> from sarlite.data import format
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     format.write(folder + "/graph", data.load("sbm:nodes=100,features=8,seed=1"))
    ...     dataset = format.open(folder + "/graph", verify=True)
    ...     print(type(dataset.features).__name__, dataset.features.shape, dataset.n_parts)
    memmap (100, 8) 1
    """
    with reading(directory):
        return _opened(Path(directory), verify)


def _opened(directory, verify):
    told = read_meta(directory)
    about = {"source": str(directory), "directory": str(directory)}
    nodes, mappings = {}, names.files_of(directory, told)
    for name, of in told["nodes"].items():
        (node_type,) = words(name, 1)
        known = {file: npyfile.open_map(*where) for file, where in mappings.get(node_type, {}).items()} or None
        labels = {"n_classes": of.get("classes"), "task": of.get("task"), "class_names": of.get("class_names")}
        target = labels if name == told.get("target", NODE) else {}
        arrays, offsets = _arrays(directory, "nodes", name, of), np.array(of["offsets"], np.int64)
        nodes[node_type] = NodeTable(node_type, of["count"], offsets=offsets, names=known, **target, **arrays,
                                     feature_names=of.get("feature_names"), transforms=of.get("transforms"),
                                     time_kind=of.get("time"), **about)
        nodes[node_type].check_shapes()
    edges = []
    for name, of in told["edges"].items():
        relation = words(name, 3)
        arrays = _arrays(directory, "edges", name, of)
        edges.append(EdgeTable(relation, nodes[relation[0]].n_nodes, **arrays, **about,
                               feature_names=of.get("feature_names"), transforms=of.get("transforms"),
                               time_kind=of.get("time")))
        _check_counts(directory / META, name, of["count"], edges[-1], nodes[relation[2]].n_nodes)
    (target,) = words(told.get("target", NODE), 1)
    made = Dataset.of_tables(nodes.values(), edges, target, told["name"], provenance=told["provenance"],
                             division=told["division"], **about)
    for file in files(directory) if verify else ():
        npyfile.verify(*file)
    return made


def _files_of(directory, place, folder, told):
    """Yield (path, record, field) of each file of a table."""
    for field, name in meta.TABLES[place].FILES.items():
        if name in told["arrays"]:
            yield Path(directory) / place / folder / f"{name}.npy", told["arrays"][name], field


def _arrays(directory, place, folder, told):
    """The mapped arrays of a table, by field."""
    return {field: npyfile.open_map(path, record, field)
            for path, record, field in _files_of(directory, place, folder, told)}


def _check_counts(path, name, n_edges, table, n_destinations):
    table.check_shapes()
    counts = (("edges", n_edges, table.n_edges), ("destinations", n_destinations, table.n_destinations))
    for what, said, found in counts:
        if said != found:
            raise DataError(f"{path}: edges: {name}: {said} {what}, but the arrays have {found}")


def files(directory):
    """Return (path, record, field) of each file, names' too; raises as `read_meta`, and where a file is missing."""
    told = read_meta(directory)
    found = [file for place in meta.TABLES for folder, of in told[place].items()
             for file in _files_of(directory, place, folder, of)]
    found += [file for own in names.files_of(directory, told).values() for file in own.values()]
    missing = next(((path, field) for path, _, field in found if not path.is_file()), None)
    if missing:
        raise DataError(f"{missing[0]}: {missing[1]}: cannot be opened: no such file")
    return found


__all__ = ["META", "SCHEMA", "GraphWriter", "open", "read_meta", "write"]

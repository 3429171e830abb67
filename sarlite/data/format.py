"""The native format: a directory of .npy files that ranks map, and a meta.json that describes the files.

meta.json
    Schema, name, node types, relations, the division of the rows, provenance, and a sha256 of its own content. The entry
    of an array has its dtype, shape and sha256.

nodes/TYPE/ has the arrays of a node type, one row per node:

    features.npy          (n, n_features) float32, float64 or bfloat16 (a record with one field `bfloat16`, <u2);
    labels.npy            (n,) int64, -1 is unlabelled; for other tasks see `targets`;
    train, val, test.npy  (n,) bool, disjoint masks;
    ids.npy               (n,) original ids; absent if they are 0, 1, 2, ...;
    time.npy              (n,) int64, optional; `time` in meta.json names the unit: nanoseconds since 1970 UTC, or
                          whole numbers.

edges/SRC.NAME.DST/ has the arrays of a relation, CSR by destination, one row per edge:

    indptr.npy            (number of DST nodes + 1,) int64;
    indices.npy           (e,) int32 or int64, row numbers of SRC nodes, ascending within a row;
    weight, features.npy  (e,) and (e, any) float, optional;
    time.npy              (e,) int64, optional, as for nodes;
    ids.npy               (e,) original positions; absent if they are 0, 1, 2, ...

Rows are ordered by the part that owns them. Part p of a node type has the rows offsets[p] .. offsets[p + 1] and the edges
into these rows, so a rank maps one slice of each file. A graph of one kind has the node type `node` and the relation
`node.edge.node`. In a relational graph, meta.json names the `target`, the only node type with labels and splits, and
features are optional. The names of types and relations are encoded by `folders.key`.
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
from sarlite.data.writer import META, DirectoryWriter
from sarlite.errors import DataError, reading
from sarlite.progress import SILENT, Progress
from sarlite.structure.validation import first_true
from sarlite.types import Path as AnyPath


def write(directory: AnyPath, dataset: Dataset, *, overwrite: bool = False, progress: Progress = SILENT, bfloat16: bool = False) -> None:
    """Write `dataset` into `directory` in the native format, completely or not at all. With `bfloat16`, node features are rounded
    to bfloat16.

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


class GraphWriter(DirectoryWriter):
    """Writer of a data set's directory in the native format, array by array.

    `write` uses it for a whole data set, and `divide` for a data set that is reordered while it is written.

    Parameters
    ----------
    directory : path
    bfloat16 : bool
        If True, round the node features to bfloat16.
    **options
        overwrite and step, as for `DirectoryWriter`.

    Examples
    --------
    >>> import tempfile
    >>> from sarlite.data import format, load
    >>> from sarlite.data.divide import copy
    >>> dataset = load("sbm:nodes=100,classes=2,features=4")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with format.GraphWriter(f"{folder}/sbm", bfloat16=True) as writer:
    ...         copy(dataset, writer)
    ...     format.open(f"{folder}/sbm").features.dtype
    dtype([('bfloat16', '<u2')])
    """

    def __init__(self, directory, *, bfloat16=False, **options):
        super().__init__(directory, **options)
        self.bfloat16 = bfloat16

    def array(self, table, field, shape, dtype):
        """Return a writer for the array of `field` in `table`, with the method `write(rows)`, which appends rows.

        Parameters
        ----------
        table : NodeTable or EdgeTable
        field : str
            Name of the array, a key of `table.FILES`.
        shape : tuple of int
        dtype : dtype
            Features are stored as bfloat16 if the writer was created with `bfloat16`.
        """
        narrow = field == "features" and self.bfloat16 and dtype != BFLOAT16
        file = self.start(f"{table.folder}/{table.FILES[field]}", shape, BFLOAT16 if narrow else dtype)
        return _Narrowed(file, table.where(field)) if narrow else file

    def finish(self, dataset, offsets, division):
        """Write the nodes' names and meta.json, then rename the directory to its final name. `offsets` has the first row of each
        part by node type; `division` says how the parts were made.

        Parameters
        ----------
        dataset : Dataset
            The data set whose tables were written.
        offsets : dict of str to (n_parts + 1,) int
            Rows of each part, by node type.
        division : dict or None
            Record of how the rows were divided.
        """
        for name, table in dataset.nodes.items():
            folder = f"names/{key(name)}" if dataset.relational else "names"
            for file, array in (table.names or {}).items():
                self.start(f"{folder}/{file}", array.shape, array.dtype).write(array)
        super().finish(lambda records: meta.content(dataset, offsets, division, records))


class _Narrowed:
    """Writer of one array, with the method `write(rows)`, which rounds rows of floats to bfloat16 and writes them."""

    def __init__(self, file, where):
        self._file, self._where, self._n = file, where, 0

    def write(self, rows):
        for _, piece in pieces(rows):
            rounded = kernels.narrow(np.ascontiguousarray(narrowed(piece))).view(BFLOAT16)
            if (at := first_true(np.isfinite(piece) & ~np.isfinite(widened(rounded)))) is not None:
                raise DataError(f"{self._where}: row {self._n + at[0]}, column {at[1]} is {piece[at]:g}, which "
                                "bfloat16 rounds to infinity")
            self._file.write(rounded)
            self._n += len(piece)


def open(directory: AnyPath, *, verify: bool = False) -> Dataset:
    """Return the data set in `directory`, in the native format, as memory maps. With `verify`, the sha256 of every file is compared
    with meta.json.

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
    """Return the data set in `directory` as memory maps, unchecked except for meta.json. With `verify`, compare the sha256 of every
    file.
    """
    content = read_meta(directory)
    about = {"source": str(directory), "directory": str(directory)}
    nodes, mappings = {}, names.files_of(directory, content)
    for name, entry in content["nodes"].items():
        (node_type,) = words(name, 1)
        node_names = {file: npyfile.open_map(*where) for file, where in mappings.get(node_type, {}).items()} or None
        labels = {"n_classes": entry.get("classes"), "task": entry.get("task"), "class_names": entry.get("class_names")}
        target = labels if name == content.get("target", NODE) else {}
        arrays, offsets = _arrays(directory, "nodes", name, entry), np.array(entry["offsets"], np.int64)
        nodes[node_type] = NodeTable(node_type, entry["count"], offsets=offsets, names=node_names, **target, **arrays,
                                     feature_names=entry.get("feature_names"), transforms=entry.get("transforms"),
                                     time_kind=entry.get("time"), **about)
        nodes[node_type].check_shapes()
    edges = []
    for name, entry in content["edges"].items():
        relation = words(name, 3)
        arrays = _arrays(directory, "edges", name, entry)
        edges.append(EdgeTable(relation, nodes[relation[0]].n_nodes, **arrays, **about,
                               feature_names=entry.get("feature_names"), transforms=entry.get("transforms"),
                               time_kind=entry.get("time")))
        _check_counts(directory / META, name, entry["count"], edges[-1], nodes[relation[2]].n_nodes)
    (target,) = words(content.get("target", NODE), 1)
    dataset = Dataset.of_tables(nodes.values(), edges, target, content["name"], provenance=content["provenance"],
                             division=content["division"], **about)
    for file in files(directory) if verify else ():
        npyfile.verify(*file)
    return dataset


def _files_of(directory, section, folder, entry):
    """Yield (path, record, field) for each file of one node type or relation, whose files are in `directory`/`section`/`folder`: a record
    has the file's dtype, shape and sha256; field is the name of its array. `section` is "nodes" or "edges", and `entry` is the part of
    meta.json about this type or relation.
    """
    for field, name in meta.TABLES[section].FILES.items():
        if name in entry["arrays"]:
            yield Path(directory) / section / folder / f"{name}.npy", entry["arrays"][name], field


def _arrays(directory, section, folder, entry):
    """Return {field: memory-mapped array} of one node type or relation, whose files are in `directory`/`section`/`folder`. `section` is
    "nodes" or "edges", and `entry` is its part of meta.json, which lists the files.
    """
    return {field: npyfile.open_map(path, record, field) for path, record, field in _files_of(directory, section, folder, entry)}


def _check_counts(path, name, n_edges, table, n_destinations):
    """Raise a DataError unless `table`, the edges of a relation, has as many edges and destinations as meta.json states: `n_edges`
    and `n_destinations`.
    """
    table.check_shapes()
    counts = (("edges", n_edges, table.n_edges), ("destinations", n_destinations, table.n_destinations))
    for what, n_stated, n_stored in counts:
        if n_stated != n_stored:
            raise DataError(f"{path}: edges: {name}: {n_stated} {what}, but the arrays have {n_stored}")


def files(directory):
    """Return a list of (path, record, field) for all files of the data set in `directory`, including files of the nodes' names. A record is
    a dict with the file's dtype, shape and sha256; field is the name of its array.

    Raises
    ------
    DataError
        As `read_meta`; also if a file is missing.
    """
    content = read_meta(directory)
    listed = [file for section in meta.TABLES for folder, entry in content[section].items()
             for file in _files_of(directory, section, folder, entry)]
    listed += [file for mapping in names.files_of(directory, content).values() for file in mapping.values()]
    missing = next(((path, field) for path, _, field in listed if not path.is_file()), None)
    if missing:
        raise DataError(f"{missing[0]}: {missing[1]}: cannot be opened: no such file")
    return listed


__all__ = ["META", "SCHEMA", "GraphWriter", "open", "read_meta", "write"]

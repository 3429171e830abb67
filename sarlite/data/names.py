"""Names of nodes, or node numbers with gaps, as a stored mapping to the original ids 0 .. n - 1.

The mapping has four files in names/, or in names/TYPE/ for each node type of a relational data set with names:

names/bytes.npy     (any,) uint8, the names in UTF-8, one after the other, by node.
names/ends.npy      (n + 1,) int64: node i's name is bytes[ends[i] : ends[i + 1]].
names/hashes.npy    (n,) uint64, ascending: the first half of each name's BLAKE2b hash of 16 bytes.
names/numbers.npy   (n,) int64, the node of each hash.
"""

import hashlib
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sarlite.data import npyfile, textfile
from sarlite.data.dataset import Dataset
from sarlite.data.folders import words
from sarlite.data.graph_tables import NODE
from sarlite.data.meta import NAMES
from sarlite.data.meta import read as read_meta
from sarlite.data.tables.checks import check_cells, id_checks
from sarlite.data.tables.sources import connect
from sarlite.data.tables.sources import read as read_table
from sarlite.data.tables.text_form import Reading, quote
from sarlite.data.writer import META
from sarlite.errors import DataError, reading
from sarlite.structure.validation import first_true, integers
from sarlite.types import Array
from sarlite.types import Path as AnyPath

_LINES = 1 << 16  # lines that are read at a time


class Names:
    """Lookup of node ids by name, and of names by node id, in the memory-mapped files of a data set.

    Parameters
    ----------
    directory : path
        Data set in the native format that was converted with names.
    node_type : str, optional
        Node type of the names, for a relational data set.

    Attributes
    ----------
    arrays : dict of str to array
        Arrays of the mapping, by file name.

    Raises
    ------
    DataError
        The data set has no names for the node type, or a file differs from its record in meta.json.

    Notes
    -----
    The files are mapped; nothing else is held in memory.

    Examples
    --------
    >>> import tempfile
    >>> from sarlite import data
    >>> from sarlite.data.format import write
    >>> from sarlite.data.names import Names
    >>> follows = {"source": ["ann", "bob"], "target": ["bob", "cas"]}
    >>> edges = {"file": follows, "relation": ["user", "follows", "user"], "src": "source", "dst": "target"}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(folder + "/users", data.from_tables({"nodes": {"user": {}}, "edges": [edges]}))
    ...     names = Names(folder + "/users")
    ...     print(names.n_nodes, names.of([0, 2]), names.ids(["cas", "ann"]), names.find(["eve"]))
    3 ['ann', 'cas'] [2 0] [-1]
    """

    def __init__(self, directory: AnyPath, node_type: str | None = None) -> None:
        files = files_of(directory, read_meta(directory)).get(node_type or NODE)
        if files is None:
            whose = "its nodes" if node_type is None else f"nodes of type {node_type}"
            raise DataError(f"{Path(directory) / META}: names: there are none: {whose} are known only by number")
        self._hold(directory, {name: npyfile.open_map(*file) for name, file in files.items()})

    @classmethod
    def of_dataset(cls, dataset: "Dataset") -> "dict[str, Names]":
        """Return {node type: Names} of an open data set; node types without names are left out."""
        by_type = {name: cls.__new__(cls) for name, table in dataset.nodes.items() if table.names}
        for name, mapping in by_type.items():
            mapping._hold(dataset.source, dataset.nodes[name].names)
        return by_type

    def _hold(self, directory, arrays):
        self._directory, self.arrays = directory, arrays
        self._bytes, self._ends, self._hashes, self._numbers = (arrays[name] for name in NAMES)

    @property
    def n_nodes(self) -> int:
        """Number of nodes."""
        return len(self._ends) - 1

    def of(self, ids: npt.ArrayLike) -> list[str]:
        """Return the names of the nodes with the original ids `ids`; raise a DataError for the first unknown id."""
        nodes = integers(f"{self._directory}: names: ids", ids, stop=len(self._ends) - 1)
        with reading(self._directory, "names: bytes"):
            return [self._name(node).decode() for node in nodes.tolist()]

    def ids(self, names: Iterable[str]) -> Array:
        """Return the original ids of the nodes with the names `names`, (n,) int64; raise a DataError for the first unknown name."""
        names = list(names)
        nodes = self.find(names)
        if (at := first_true(nodes < 0)) is not None:
            raise DataError(f"{self._directory}: names: no node is named {names[at]!r}")
        return nodes

    def keys(self, ids: npt.ArrayLike) -> Array:
        """Return the 16-byte BLAKE2b hashes of the names of the nodes `ids` (original ids), (n, 2) uint64."""
        return digests([name.encode() for name in self.of(ids)])

    def find(self, names: Iterable[str]) -> Array:
        """Return the original ids of the nodes with the names `names`, (n,) int64; -1 for an unknown name."""
        return self._find([name.encode() for name in names])

    def read(self, path: AnyPath, field: str, n_lines: int = _LINES) -> Array:
        """Return the original ids of the nodes whose names the text or Parquet file `path` lists, (n,) int64. Messages call the
        names `field`; `n_lines` lines are looked up at a time.

        Parameters
        ----------
        path : path
            Text with a name per line, or Parquet with a single column.
        field : str
            Name of the file's content in messages.
        n_lines : int
            Number of lines that are read at a time.

        Raises
        ------
        DataError
            If the file cannot be read, or a name belongs to no node. The message has the line, or the row of Parquet from 0 on.

        Notes
        -----
        Memory: the result, and `n_lines` names.
        """
        id_pieces, row = [np.empty(0, np.int64)], "row" if Path(path).suffix == ".parquet" else "line"
        for numbers, names in lines(path, field, n_lines):
            id_pieces.append(self._find([name.encode() for name in names]))
            if (at := first_true(id_pieces[-1] < 0)) is not None:
                raise DataError(f"{path}: {field}: {row} {numbers[at]}: no node is named {names[at]!r}")
        return np.concatenate(id_pieces)

    def _find(self, names):
        """Return the original ids of the nodes with `names`, a list of bytes objects, (n,) int64; -1 for an unknown name."""
        at = np.searchsorted(self._hashes, digests(names)[:, 0])
        nodes = np.array([self._numbers[place] if place < len(self._numbers) else -1 for place in at], np.int64)
        odd = nodes[(nodes < -1) | (nodes >= len(self._numbers))]
        if len(odd):
            raise DataError(f"{self._directory}: names: numbers: {odd[0]} is not one of {len(self._numbers)} nodes: the "
                            "file was changed")
        same = [node >= 0 and self._name(node) == name for name, node in zip(names, nodes)]
        return np.where(np.array(same, bool), nodes, -1)

    def _name(self, node):
        begin, end = self._ends[node], self._ends[node + 1]
        if not 0 <= begin <= end <= len(self._bytes):
            raise DataError(f"{self._directory}: names: ends: node {node}'s name is bytes {begin} to {end} of "
                            f"{len(self._bytes)}: the file was changed")
        return bytes(self._bytes[begin:end])


def files_of(directory, meta):
    """Return the files in `directory` that hold nodes' names: a dict by node type, with a dict {file name: (path, record, field)} for each
    type. `meta`, the content of meta.json, has the record of each file: dtype, shape and sha256. Field is the name of the array for
    messages.
    """
    entry = meta.get("names", {})
    if "target" in meta:
        folders = {words(name, 1)[0]: (f"names/{name}", records) for name, records in entry.items()}
    else:
        folders = {NODE: ("names", entry)} if entry else {}
    return {node_type: {name: (Path(directory, folder, f"{name}.npy"), records[name], f"{folder}/{name}")
                        for name in NAMES} for node_type, (folder, records) in folders.items()}


def lines(path, field, n_lines=_LINES):
    """Yield (line numbers, names) of the next `n_lines` nonempty lines of the file `path`, until its end. A whole line is a name, and
    messages call it `field`.

    For a Parquet file with one column, rows are numbered from 0. A DataError is raised if the file cannot be read.
    """
    if Path(path).suffix == ".parquet":
        with connect() as connection:
            source, row = read_table(connection, path, Reading(), (), field, list), 0
            if len(source.columns) != 1:
                raise DataError(f"{path}: {field}: {len(source.columns)} columns, expected one, of names")
            check_cells(source, id_checks(source, source.columns[0]))
            for (cells,) in source.batches(f"CAST({quote(source.columns[0])} AS VARCHAR)"):
                yield range(row, row + len(cells)), cells.to_pylist()
                row += len(cells)
        return
    with reading(path, field), textfile.opened(path) as file:
        numbered = ((number, line.rstrip("\r\n")) for number, line in enumerate(textfile.lines(file), 1))
        nonempty = ((number, line) for number, line in numbered if line)
        while batch := list(islice(nonempty, n_lines)):
            yield [number for number, _ in batch], [line for _, line in batch]


def digests(names: Iterable[bytes]) -> Array:
    """Return the 16-byte BLAKE2b hash of each name, (n, 2) uint64."""
    hashes = b"".join([hashlib.blake2b(name, digest_size=16).digest() for name in names])
    return np.frombuffer(hashes, "<u8").reshape(-1, 2)

"""Nodes known by names, or by numbers with gaps: the mapping to 0 .. n - 1, made in bounded memory, kept with the data.

Of a relational data set a folder for each node type whose nodes have names, names/TYPE/, in place of names/:

names/bytes.npy     (any,) uint8, the names in UTF-8, one after the other, by node
names/ends.npy      (n + 1,) int64: node i's name is bytes[ends[i] : ends[i + 1]]
names/hashes.npy    (n,) uint64, ascending: the first half of each name's BLAKE2b of 16 bytes
names/numbers.npy   (n,) int64, the node of each hash
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
from sarlite.data.tables.checks import id_doubts, refuse
from sarlite.data.tables.sources import connect
from sarlite.data.tables.sources import read as read_table
from sarlite.data.tables.text_form import Reading, quote
from sarlite.data.writer import META
from sarlite.errors import DataError, reading
from sarlite.structure.validation import first_true, integers
from sarlite.types import Array
from sarlite.types import Path as AnyPath

_LINES = 1 << 16  # read at a time


class Names:
    """Mapping between the names of a data set's nodes and their original ids, read from mapped files at each call.

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
            raise DataError(f"{Path(directory) / META}: names: none; {whose} are known by numbers alone")
        self._hold(directory, {name: npyfile.open_map(*file) for name, file in files.items()})

    @classmethod
    def of_dataset(cls, dataset: "Dataset") -> "dict[str, Names]":
        """Return the names of the nodes of a data set as it is, by node type; types without names are left out."""
        found = {name: cls.__new__(cls) for name, table in dataset.nodes.items() if table.names}
        for name, made in found.items():
            made._hold(dataset.source, dataset.nodes[name].names)
        return found

    def _hold(self, directory, arrays):
        self._directory, self.arrays = directory, arrays
        self._bytes, self._ends, self._hashes, self._numbers = (arrays[name] for name in NAMES)

    @property
    def n_nodes(self) -> int:
        """Number of nodes."""
        return len(self._ends) - 1

    def of(self, ids: npt.ArrayLike) -> list[str]:
        """Return the names of nodes by original id, a list of str; raises a DataError that has the first unknown id."""
        nodes = integers(f"{self._directory}: names: ids", ids, stop=len(self._ends) - 1)
        with reading(self._directory, "names: bytes"):
            return [self._name(node).decode() for node in nodes.tolist()]

    def ids(self, names: Iterable[str]) -> Array:
        """Return the original ids of nodes by name, (n,) int64; raises a DataError that has the first unknown name."""
        names = list(names)
        found = self.find(names)
        if (at := first_true(found < 0)) is not None:
            raise DataError(f"{self._directory}: names: no node is named {names[at]!r}")
        return found

    def keys(self, ids: npt.ArrayLike) -> Array:
        """Return the BLAKE2b of 16 bytes of each node's name, by original id, (n, 2) uint64; raises as `of`."""
        return digests([name.encode() for name in self.of(ids)])
    def find(self, names: Iterable[str]) -> Array:
        """Return the original ids of nodes by name, (n,) int64, -1 for a name that no node has."""
        return self._find([name.encode() for name in names])

    def read(self, path: AnyPath, field: str, n_lines: int = _LINES) -> Array:
        """Return the original ids of the nodes that a file names, (n,) int64.

        Parameters
        ----------
        path : path
            Text of a name a line, or Parquet of one column.
        field : str
            For messages.
        n_lines : int
            Lines that are read at a time.

        Raises
        ------
        DataError
            The file cannot be read, or a name is none of a node: the line, or the row from 0 on, is named too.

        Notes
        -----
        Memory: the result, and `n_lines` names.
        """
        found, row = [np.empty(0, np.int64)], "row" if Path(path).suffix == ".parquet" else "line"
        for numbers, names in lines(path, field, n_lines):
            found.append(self._find([name.encode() for name in names]))
            if (at := first_true(found[-1] < 0)) is not None:
                raise DataError(f"{path}: {field}: {row} {numbers[at]}: no node is named {names[at]!r}")
        return np.concatenate(found)

    def _find(self, names):
        """The ids of nodes by name in bytes, -1 where there is none."""
        at = np.searchsorted(self._hashes, digests(names)[:, 0])
        found = np.array([self._numbers[place] if place < len(self._numbers) else -1 for place in at], np.int64)
        odd = found[(found < -1) | (found >= len(self._numbers))]
        if len(odd):
            raise DataError(f"{self._directory}: names: numbers: {odd[0]} is none of {len(self._numbers)} nodes: the "
                            "file was changed")
        same = [node >= 0 and self._name(node) == name for name, node in zip(names, found)]
        return np.where(np.array(same, bool), found, -1)

    def _name(self, node):
        begin, end = self._ends[node], self._ends[node + 1]
        if not 0 <= begin <= end <= len(self._bytes):
            raise DataError(f"{self._directory}: names: ends: node {node}'s name is bytes {begin} to {end} of "
                            f"{len(self._bytes)}: the file was changed")
        return bytes(self._bytes[begin:end])


def files_of(directory, meta):
    """Return (path, record, field) of each file of the mappings in meta.json, by file, by node type."""
    found = meta.get("names", {})
    if "target" in meta:
        folders = {words(name, 1)[0]: (f"names/{name}", records) for name, records in found.items()}
    else:
        folders = {NODE: ("names", found)} if found else {}
    return {node_type: {name: (Path(directory, folder, f"{name}.npy"), records[name], f"{folder}/{name}")
                        for name in NAMES} for node_type, (folder, records) in folders.items()}


def lines(path, field, n_lines=_LINES):
    """Yield the numbers of `n_lines` lines that are not empty, and the names on them, letter by letter.

    Of a Parquet file with one column the rows, from 0 on. Raises a DataError where it cannot be read.
    """
    if Path(path).suffix == ".parquet":
        with connect() as connection:
            source, row = read_table(connection, path, Reading(), (), field, list), 0
            if len(source.columns) != 1:
                raise DataError(f"{path}: {field}: {len(source.columns)} columns, expected one, of names")
            refuse(source, id_doubts(source, source.columns[0]))
            for (cells,) in source.batches(f"CAST({quote(source.columns[0])} AS VARCHAR)"):
                yield range(row, row + len(cells)), cells.to_pylist()
                row += len(cells)
        return
    with reading(path, field), textfile.opened(path) as file:
        numbered = ((number, line.rstrip("\r\n")) for number, line in enumerate(textfile.lines(file), 1))
        kept = ((number, line) for number, line in numbered if line)
        while batch := list(islice(kept, n_lines)):
            yield [number for number, _ in batch], [line for _, line in batch]


def digests(names: Iterable[bytes]) -> Array:
    """Return the BLAKE2b of 16 bytes of each name, (n, 2) uint64."""
    found = b"".join([hashlib.blake2b(name, digest_size=16).digest() for name in names])
    return np.frombuffer(found, "<u8").reshape(-1, 2)

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

from sarlite.data import budget, npyfile, parquet, textfile
from sarlite.data.external import Sorter
from sarlite.data.folders import key
from sarlite.data.mapped import fresh
from sarlite.data.meta import NAMES
from sarlite.data.meta import read as read_meta
from sarlite.data.spool import Spool
from sarlite.data.tables import NODE
from sarlite.data.writer import META
from sarlite.errors import DataError, reading, writing
from sarlite.graph.edges import row_chunks
from sarlite.types import Array
from sarlite.types import Path as AnyPath

_LINES = 1 << 16  # read at a time


class Names:
    """The names of a data set's nodes, read from its directory as they are asked for.

    Parameters
    ----------
    directory : path
        Of a data set in the native format that was converted with names.
    node_type : str, optional
        Of a relational data set: the type whose nodes are meant.

    Attributes
    ----------
    arrays : dict
        The mapping's, by file.

    Raises
    ------
    DataError
        It has no names, or its files are not what meta.json says.

    Notes
    -----
    The files are mapped; nothing else is kept.
    """

    def __init__(self, directory: AnyPath, node_type: str | None = None) -> None:
        records = _kept(directory)
        place = _place(records, node_type)
        if place not in records:
            whose = "its nodes" if node_type is None else f"nodes of type {node_type}"
            raise DataError(f"{Path(directory) / META}: names: none; {whose} are known by numbers alone")
        self._directory, self.arrays = directory, _opened(directory, place, records[place])
        self._bytes, self._ends, self._hashes, self._numbers = self.arrays.values()

    def of(self, ids: npt.ArrayLike) -> list[str]:
        """Return the names of nodes, by original id: a list of str."""
        return [self._name(node).decode() for node in np.asarray(ids).tolist()]

    def ids(self, names: Iterable[str]) -> Array:
        """Return the original ids of nodes by name, (n,) int64; raises a DataError that tells the first unknown."""
        names = list(names)
        found = self._find([name.encode() for name in names])
        if (found < 0).any():
            raise DataError(f"{self._directory}: names: no node is named {names[int(np.argmax(found < 0))]!r}")
        return found

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
        for numbers, names in _words(path, field, 1, n_lines):
            found.append(self._find(names))
            if (found[-1] < 0).any():
                at = int(np.argmax(found[-1] < 0))
                raise DataError(f"{path}: {field}: {row} {numbers[at]}: no node is named {names[at].decode()!r}")
        return np.concatenate(found)

    def _find(self, names):
        """The ids of nodes by name in bytes, -1 where there is none."""
        at = np.searchsorted(self._hashes, _digests(names)[:, 0])
        found = np.array([self._numbers[place] if place < len(self._numbers) else -1 for place in at], np.int64)
        same = [node >= 0 and self._name(node) == name for name, node in zip(names, found)]
        return np.where(np.array(same, bool), found, -1)

    def _name(self, node):
        return bytes(self._bytes[self._ends[node] : self._ends[node + 1]])


def known(directory: AnyPath, node_type: str | None = None) -> bool:
    """Tell whether the nodes of a data set in the native format have names, of a relational one those of a type."""
    records = _kept(directory)
    return _place(records, node_type) in records


def arrays(directory):
    """Return the arrays of a directory's mappings, by file; none where its nodes have no names."""
    return {f"{place}/{name}": array for place, records in _kept(directory).items()
            for name, array in _opened(directory, place, records).items()}


def _kept(directory):
    """The records of each mapping of a directory, by its folder."""
    meta = read_meta(directory)
    found = meta.get("names", {})
    if "target" in meta:
        return {f"names/{name}": records for name, records in found.items()}
    return {"names": found} if found else {}


def _place(records, node_type):
    """The folder of a type's names: of a graph of one kind names/ alone."""
    typed = f"names/{key(node_type or NODE)}"
    return "names" if node_type in (None, NODE) and typed not in records else typed


def _opened(directory, place, records):
    return {name: npyfile.open_map(Path(directory, place, f"{name}.npy"), records[name], name) for name in NAMES}


def listed(pieces, path, folder, n_bytes, first_line=1):
    """Return the mapping of nodes that are named in their order, as `numbered` does.

    Parameters
    ----------
    pieces : iterable of (any, list of bytes)
        The names, some at a time.
    path : path
        For messages.
    folder, n_bytes
        As of `numbered`; about 50 bytes a node.
    first_line : int
        That of the first name.

    Raises
    ------
    DataError
        A name is there twice; two names have one hash.
    """
    with writing(folder):
        (folder / "runs").mkdir(parents=True)
    ends, spools = Sorter(folder / "runs", n_bytes, check=(np.uint64, ()), place=(np.int64, ())), _spools(folder)
    n = _add_listed(pieces, ends, spools)
    _match(ends, None, spools, path, path, n, first_line)
    return {name: spool.array() for name, spool in spools.items()}


def _spools(folder):
    return {name: Spool(folder / name, dtype) for name, dtype in zip(NAMES, (np.uint8, np.int64, np.uint64, np.int64))}


def numbered(path, listed, folder, n_bytes):
    """Number the nodes that an edge list names.

    Parameters
    ----------
    path : path
        Text of two words a line, no header, or Parquet of two columns.
    listed : path or None
        A name a line, or a column: line i, from 0 on, is node i. Without it the nodes are those of the edges, in the
        order of their hashes.
    folder : path
        Made; the caller's to remove. It takes about 50 bytes an edge.
    n_bytes : int
        Of memory that the sorts take, all together.

    Returns
    -------
    pieces : iterator of (src, dst) int64 arrays
    n_nodes : int
    mapping : dict
        The arrays that `Names` reads, mapped from the folder, by their files.

    Raises
    ------
    DataError
        A file cannot be read, a line has not as many words; a name is not in `listed`, or is there twice; two names
        have one hash.
    """
    with writing(folder):
        for name in ("runs-ends", "runs-known", "runs-places"):
            (folder / name).mkdir(parents=True)
    ends = Sorter(folder / "runs-ends", n_bytes // 3, check=(np.uint64, ()), place=(np.int64, ()))
    whole = (np.int64, ())
    known = None if listed else Sorter(folder / "runs-known", n_bytes // 3, once=True, first=whole, length=whole)
    spools = _spools(folder)
    words = spools["bytes"] if listed else Spool(folder / "words", np.uint8)
    n_lines = budget.at_once(n_bytes, _LINES)
    n_listed = _add_listed(_words(listed, "names", 1, n_lines), ends, spools) if listed else None
    _add_ends(_words(path, "edges", 2, n_lines), ends, known, words)
    places = Sorter(folder / "runs-places", n_bytes // 3, node=(np.int64, ()))
    n_nodes = _match(ends, places, spools, path, listed, n_listed)
    if not listed:
        _write_known(known, words.array(), spools, budget.at_once(n_bytes))
    return _pairs(places), n_nodes, {name: spool.array() for name, spool in spools.items()}


def _add_listed(pieces, ends, spools):
    """Give the names that are listed the places -1, -2, ...; returns how many there are."""
    n = end = 0
    spools["ends"].write([0])
    for _, names in pieces:
        lengths, digests = np.array([len(name) for name in names], np.int64), _digests(names)
        ends.add(digests[:, 0], check=digests[:, 1], place=-1 - np.arange(n, n + len(names)))
        spools["bytes"].write(np.frombuffer(b"".join(names), np.uint8))
        spools["ends"].write(end + np.cumsum(lengths))
        n, end = n + len(names), end + int(lengths.sum())
    return n


def _add_ends(pieces, ends, known, words):
    """Give the ends of the edges the places 0, 1, ..., sources even."""
    n = 0
    for _, names in pieces:
        unique = {name: at for at, name in enumerate(dict.fromkeys(names))}
        made = _digests(list(unique))
        digests = made[[unique[name] for name in names]]
        ends.add(digests[:, 0], check=digests[:, 1], place=np.arange(n, n + len(names)))
        if known is not None:
            lengths = np.array([len(name) for name in unique], np.int64)
            known.add(made[:, 0], first=words.n_rows + np.cumsum(lengths) - lengths, length=lengths)
            words.write(np.frombuffer(b"".join(unique), np.uint8))
        n += len(names)


def _match(ends, places, spools, path, listed, n_listed, first_line=1):
    """Give every place the node of the first place of its hash, and return how many nodes; without edges no `places`.
    """
    hash_before, head = None, None  # head: (check, place, node) of the last hash
    n_nodes = 0
    for keys, columns in ends.pieces():
        new = np.concatenate(([hash_before is None or keys[0] != hash_before], keys[1:] != keys[:-1]))
        heads = np.flatnonzero(new)
        check, place = columns["check"], columns["place"]
        nodes = -1 - place[heads] if listed else np.arange(n_nodes, n_nodes + heads.size)
        if listed and (place[heads] >= 0).any():
            at = int(place[heads][place[heads] >= 0].min())
            end = ("source", "destination")[at % 2]
            raise DataError(f"{path}: edges: the {end} of edge {at // 2} is not in {listed}")
        if not new[0]:
            nodes, heads = np.concatenate(([head[1]], nodes)), np.concatenate(([0], heads))
        group = np.cumsum(new) - new[0]
        first_check = check[heads] if new[0] else np.concatenate(([head[0]], check[heads[1:]]))
        if (check != first_check[group]).any():
            found = int(keys[int(np.argmax(check != first_check[group]))])
            field = "names" if places is None else "edges"
            raise DataError(f"{path}: {field}: two names have the same hash, {found:#x}")
        again = np.flatnonzero((place < 0) & ~new)
        if again.size:
            line, first = (first_line + int(node) for node in (-1 - place[again[0]], nodes[group[again[0]]]))
            raise DataError(f"{listed}: names: line {line} has the name of line {first}")
        spools["hashes"].write(keys[new])
        spools["numbers"].write(nodes if new[0] else nodes[1:])
        if places is not None:
            ends_here = place >= 0
            places.add(place[ends_here], node=nodes[group][ends_here])
        n_nodes, hash_before, head = n_nodes + int(new.sum()), keys[-1], (first_check[-1], nodes[-1])
    return n_listed if listed else n_nodes


def _write_known(known, words, spools, n_bytes):
    """Write the names in the order of their hashes, `n_bytes` at a time."""
    end = 0
    spools["ends"].write([0])
    for _, columns in known.pieces():
        first, lengths = columns["first"], columns["length"]
        stops = np.cumsum(lengths)
        for low, high in row_chunks(np.concatenate(([0], stops)), n_bytes):
            here = lengths[low:high]
            shift = first[low:high] - (np.cumsum(here) - here)
            spools["bytes"].write(fresh(words)[np.arange(here.sum()) + np.repeat(shift, here)])
        spools["ends"].write(end + stops)
        end += int(lengths.sum())


def _pairs(places):
    left = np.empty(0, np.int64)
    for _, columns in places.pieces():
        nodes = np.concatenate((left, columns["node"]))
        even = nodes.size // 2 * 2
        yield nodes[:even:2], nodes[1:even:2]
        left = nodes[even:]


def _digests(names):
    """Return (n, 2) uint64, the BLAKE2b of 16 bytes of each name."""
    digests = b"".join(hashlib.blake2b(name, digest_size=16).digest() for name in names)
    return np.frombuffer(digests, "<u8").reshape(-1, 2)


def _words(path, field, width, n_lines):
    """Yield the numbers of `n_lines` lines and their words, `width` a line, as a list of bytes."""
    if Path(path).suffix == ".parquet":
        row = 0
        for words in parquet.words(path, field, width):
            yield range(row, row + len(words) // width), [word.encode() for word in words]
            row += len(words) // width
        return
    with reading(path, field), textfile.opened(path) as file:
        numbered_lines = ((number, line.strip()) for number, line in enumerate(textfile.lines(file), 1))
        kept = ((number, line) for number, line in numbered_lines if line and not line.startswith("#"))
        while batch := list(islice(kept, n_lines)):
            words = [word.encode() for number, line in batch for word in _split(path, field, number, line, width)]
            yield [number for number, _ in batch], words


def _split(path, field, number, line, width):
    words = [line] if width == 1 else [word.strip() for word in line.split("," if "," in line else None)]
    if len(words) != width or not all(words):
        raise DataError(f"{path}: {field}: line {number} has {len(words)} words, expected {width} names")
    return words

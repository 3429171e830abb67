"""Numbers for nodes of one type that have names, in bounded memory: the mapping that `names` keeps and reads.

Names get places as they come. A dictionary has the places of names, and is emptied where it grows too large; so a name
may have several places. At the end places are sorted by the hashes of their names, and the places of one name get one
number.
"""

import hashlib

import numpy as np

from sarlite.data.mapped import copied, fresh
from sarlite.data.meta import NAMES
from sarlite.errors import DataError
from sarlite.structure.edges import row_chunks
from sarlite.structure.validation import first_true

_NAME_BYTES = 224  # of memory that a name in the dictionary takes, but for long ones
_DTYPES = dict(zip(NAMES, (np.uint8, np.int64, np.uint64, np.int64)))


class Numbering:
    """Names of one type's nodes, taken in pieces.

    Parameters
    ----------
    workspace : Workspace
        Of the sorts; it takes about 60 bytes a name on disk.
    listed_in : path or str, optional
        The file with the names of all nodes, which `list` takes: node i has the i-th name. Without a file the nodes are
        the names given to `places`, in the order of their hashes.

    Attributes
    ----------
    n_nodes : int
    listed_in : path, str or None
    mapping : dict
        The arrays that `names.Names` reads, by their files.

    Notes
    -----
    Numbers and mapping are there once `finish` was called.
    """

    def __init__(self, workspace, listed_in=None):
        self._workspace, self.listed_in = workspace, listed_in
        whole = (np.int64, ())
        self._sorter = workspace.sorter("runs", share=4, check=(np.uint64, ()), place=whole, first=whole, length=whole)
        self._words, self._ends = workspace.spool("words", np.uint8), workspace.spool("word-ends", np.int64)
        self._n_listed, self.n_nodes = 0, 0
        self._known = _Known(None if workspace.n_bytes is None else workspace.n_bytes // 2 // _NAME_BYTES)
        self._spools = {name: workspace.spool(name, dtype) for name, dtype in _DTYPES.items()}
        self._spools["ends"].write([0])

    def list(self, names):
        """Take the names of the next nodes."""
        n = self._n_listed
        self._add(names, -1 - np.arange(n, n + len(names)), self._spools["bytes"], self._spools["ends"])
        self._n_listed += len(names)

    def places(self, names):
        """Return a place for each name, (n,) int64; `nodes` gives all places of a name one number."""
        found, first, new = self._known.of(names)
        self._add(new, np.arange(first, first + len(new)), self._words, self._ends)
        return found

    def _add(self, names, places, words, ends):
        if not len(names):
            return
        encoded = [name.encode() for name in names]
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        hashes = digests(encoded)
        stops = words.n_rows + np.cumsum(lengths)
        self._sorter.add(hashes[:, 0], check=hashes[:, 1], place=places, first=stops - lengths, length=lengths)
        words.write(np.frombuffer(b"".join(encoded), np.uint8))
        ends.write(stops)

    def finish(self, where, row="row", first_row=0):
        """Give each name its number.

        Parameters
        ----------
        where : str or path
            What messages name where two names have one hash.
        row, first_row : str, int
            What the place of a listed name is called, and the number of the first, for messages.

        Raises
        ------
        DataError
            A name is listed twice; two names have one hash.
        """
        self._known = None
        self._word_bytes, self._word_ends = self._words.array(), self._ends.array()
        by_place = self._workspace.sorter("runs-places", share=4, node=(np.int64, ()))
        n = self._match(by_place, where, row, first_row)
        self.n_nodes = n if self.listed_in is None else self._n_listed
        self._nodes = self._workspace.array("nodes", (columns["node"] for _, columns in by_place.pieces()))
        self.mapping = {name: spool.array() for name, spool in self._spools.items()}

    def nodes(self, places):
        """Return the numbers of the nodes at places, (n,) int64, -1 where the name is not listed."""
        if not places.size or not len(self._nodes):
            return np.full(places.size, -1)
        low, high = int(places.min()), int(places.max())
        return copied(self._nodes, low, high + 1)[places - low]

    def name(self, place):
        """Return the name that was given a place."""
        low, high = (int(self._word_ends[place - 1]) if place else 0), int(self._word_ends[place])
        return bytes(self._word_bytes[low:high]).decode()

    def _match(self, by_place, where, row, first_row):
        """Give all places of a hash the number of the first one; return how many hashes there are."""
        before, head, n_nodes, end, listed = None, None, 0, 0, self.listed_in is not None
        for keys, columns in self._sorter.pieces():  # head: (check, node) of the last hash
            new = np.concatenate(([before is None or keys[0] != before], keys[1:] != keys[:-1]))
            heads, check, place = np.flatnonzero(new), columns["check"], columns["place"]
            nodes = np.where(place[heads] < 0, -1 - place[heads], -1) if listed else n_nodes + np.arange(heads.size)
            numbers, checks, group = nodes, check[heads], np.cumsum(new) - 1
            if not new[0]:
                numbers, checks, group = np.append(head[1], nodes), np.append(head[0], checks), group + 1
            if (at := first_true(check != checks[group])) is not None:
                raise DataError(f"{where}: names: two names have the same hash, {int(keys[at]):#x}")
            again = np.flatnonzero((place < 0) & ~new)
            if again.size:
                other, first = (first_row + int(node) for node in (-1 - place[again[0]], numbers[group[again[0]]]))
                raise DataError(f"{self.listed_in}: names: {row} {other} has the name of {row} {first}")
            if not listed:
                end = self._write_names(columns["first"][heads], columns["length"][heads], end)
            kept = nodes >= 0
            self._spools["hashes"].write(keys[new][kept])
            self._spools["numbers"].write(nodes[kept])
            given = place >= 0
            by_place.add(place[given], node=numbers[group][given])
            n_nodes, before, head = n_nodes + heads.size, keys[-1], (checks[-1], numbers[-1])
        return n_nodes

    def _write_names(self, first, lengths, end):
        stops = np.cumsum(lengths)
        for low, high in row_chunks(np.concatenate(([0], stops)), self._workspace.at_once(1 << 22)):
            here = lengths[low:high]
            shift = first[low:high] - (np.cumsum(here) - here)
            places = np.arange(here.sum()) + np.repeat(shift, here)
            self._spools["bytes"].write(fresh(self._word_bytes)[places])
        self._spools["ends"].write(end + stops)
        return end + int(lengths.sum())


class _Known(dict):
    """The places of names. A dictionary that is full is emptied, and its names get places again."""

    def __init__(self, limit):
        self.n, self._limit, self._new = 0, limit, []

    def of(self, names):
        """Return the places of names; the first place that is new, and the names that are."""
        if self._limit is not None and len(self) > self._limit:
            self.clear()
        first, self._new = self.n, []
        found = np.fromiter(map(self.__getitem__, names), np.int64, len(names))
        return found, first, self._new

    def __missing__(self, name):
        place = self[name] = self.n
        self.n += 1
        self._new.append(name)
        return place


def digests(names):
    """Return the BLAKE2b of 16 bytes of each name in bytes, (n, 2) uint64."""
    found = b"".join([hashlib.blake2b(name, digest_size=16).digest() for name in names])
    return np.frombuffer(found, "<u8").reshape(-1, 2) if found else np.empty((0, 2), np.uint64)

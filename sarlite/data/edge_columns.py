"""The edges of one relation from the columns of a table: both ends, a weight, features."""

import numpy as np

from sarlite.data.cells import Numbers, are_numbers, ids, whole_ids
from sarlite.data.mapped import copied
from sarlite.errors import DataError
from sarlite.structure.validation import first_true


class EdgeColumns:
    """Edges as a table has them, a row each.

    Parameters
    ----------
    source : columns.Table
    src, dst : str, optional
        Columns; by default the first two, of a table that has no more.
    weight : str, optional
    features : sequence of str
    fill : {None, "0", "mean"}
        What missing values of weights and features become: see `cells.Numbers`.

    Attributes
    ----------
    columns : dict
        Of values: dtype and shape by the name that a `Sorter` and an `EdgeTable` have for them.
    feature_names : list of str, optional
        The name of each column of the edge features.
    words : (bool, bool)
        Whether the source and the destination are words, as the first rows have them.
    """

    def __init__(self, source, src=None, dst=None, weight=None, features=(), fill=None):
        self.source, self._n = source, 0
        names = source.names
        if None in (src, dst) and (len(names) != 2 or src or dst):
            raise DataError(f"{source.where}: edges: of the columns {', '.join(names)} say which are the ends: "
                            f"src={names[0] if names else 'COLUMN'},dst={names[1] if len(names) > 1 else 'COLUMN'} "
                            "(and weight=, edge_features=, where they are used)")
        self._ends = (names[0] if src is None else src, names[1] if dst is None else dst)
        used = [*self._ends, *([weight] if weight else []), *features]
        first = source.first(used)
        self.words = tuple(not are_numbers(cells) for cells in first[:2])
        self._values = {}
        if weight:
            self._values["edge_weight"] = slice(2, 3), Numbers(source, [weight], fill, np.float64)
        if features:
            self._values["edge_features"] = slice(2 + bool(weight), None), Numbers(source, features, fill)
        self._used = used
        self.columns = {}
        for name, (cells, made) in self._values.items():
            width = 0 if not len(first[0]) else made.rows(first[cells]).shape[1]
            self.columns[name] = (made.dtype, () if name == "edge_weight" else (width,))
        self.feature_names = self._values["edge_features"][1].names if features else None

    def collect(self, workspace, numberings):
        """Read the table, once: `pieces` gives its edges then.

        Parameters
        ----------
        workspace : Workspace
        numberings : (Numbering or None, Numbering or None)
            Of the sources and of the destinations; None where ids are numbers.
        """
        self._numberings = numberings
        spools = {name: workspace.spool(name) for name in ("src", "dst", *self._values)}
        for cells in self.source.pieces(self._used):
            for name, column, found, numbering in zip(("src", "dst"), self._ends, cells, numberings):
                given = (self.source.where, column, found, self._n)
                spools[name].write(whole_ids(*given) if numbering is None else numbering.places(ids(*given)))
            for name, (chosen, made) in self._values.items():
                rows = made.rows(cells[chosen], self._n)
                spools[name].write(rows[:, 0] if name == "edge_weight" else rows)
            self._n += len(cells[0])
        self._arrays = {name: spool.array() for name, spool in spools.items()}

    def largest(self):
        """Return the largest number at each end that was collected, -1 of no edges."""
        return tuple(max((int(piece.max()) for piece in self._read(name) if piece.size), default=-1)
                     for name in ("src", "dst"))

    def _read(self, name, step=1 << 20):
        return (copied(self._arrays[name], at, min(at + step, self._n)) for at in range(0, max(self._n, 1), step))

    @property
    def n_edges(self):
        return self._n

    def pieces(self):
        """Yield (src, dst, values by column); raises a DataError for a name that is listed nowhere."""
        at = 0
        for src, dst, *values in zip(*map(self._read, self._arrays)):
            ends = [self._numbered(end, places, at) for end, places in enumerate((src, dst))]
            yield *ends, dict(zip(self._values, values))
            at += len(src)

    def _numbered(self, end, places, at):
        numbering = self._numberings[end]
        if numbering is None:
            return places
        found = numbering.nodes(places)
        if (row := first_true(found < 0)) is not None:
            raise DataError(f"{self.source.where}: row {at + row}, column {self._ends[end]!r}: "
                            f"{numbering.name(int(places[row]))!r} is not in {numbering.listed_in}")
        return found

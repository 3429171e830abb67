"""One node-classification data set, in memory or memory-mapped."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sarlite.data import targets
from sarlite.data.mapped import part, pieces
from sarlite.errors import DataError
from sarlite.graph.edges import ascends, row_chunks
from sarlite.types import Array

SPLITS = ("train", "val", "test")
MAX_CLASSES = 1 << 24


@dataclass
class Dataset:
    """A graph with features, labels and splits.

    Attributes
    ----------
    indptr : (n_nodes + 1,) int64
        CSR by destination: the sources of node i's incoming edges are `indices[indptr[i] : indptr[i + 1]]`.
    indices : (n_edges,) int32 or int64
    features : (n_nodes, n_features) float32 or float64
    labels : (n_nodes,) int64, or what the task's are
        -1 where unlabelled, which only nodes outside the splits may be. Of task "multilabel" (n_nodes, n_labels) uint8, 0 or 1, 255 where
        unknown; of "regress" (n_nodes,) or (n_nodes, n_values) float32 or float64, NaN where unknown.
    train, val, test : (n_nodes,) bool
        Disjoint masks; a node may be in none.
    n_classes : int
        The numbers that a model makes of a node: of classes, or columns of the labels.
    name : str
    source : str
        What error messages name: a spec or, for the native format, the directory.
    provenance : dict
        What JSON can hold: where the data came from, and with which options.
    edge_weight : (n_edges,) float32 or float64, optional
    edge_features : (n_edges, any) float32 or float64, optional
    ids : (n_nodes,) int32 or int64, optional
        The original id of each row; without it, the row's number. `indices` are row numbers.
    edge_ids : (n_edges,) int32 or int64, optional
        The original position of each edge; without it, its place.
    offsets : (n_parts + 1,) int64
        Part p holds the rows offsets[p] .. offsets[p + 1]; by default all rows are one part.
    division : dict or None
        {"parts", "partition", "order", "seed"}, and "balance" where it was given: how the rows were divided and put in order, if they were.
    task : {"classify", "multilabel", "regress"}
    """

    indptr: np.ndarray
    indices: np.ndarray
    features: np.ndarray
    labels: np.ndarray
    train: np.ndarray
    val: np.ndarray
    test: np.ndarray
    n_classes: int
    name: str = "graph"
    source: str = "dataset"
    provenance: dict[str, Any] = field(default_factory=dict)
    edge_weight: np.ndarray | None = None
    edge_features: np.ndarray | None = None
    directory: str | None = None
    ids: np.ndarray | None = None
    edge_ids: np.ndarray | None = None
    offsets: np.ndarray = None  # type: ignore[assignment]  # an array from __post_init__ on
    division: dict[str, Any] | None = None
    task: str = "classify"

    def __post_init__(self) -> None:
        if self.offsets is None:
            self.offsets = np.array([0, max(self.indptr.shape[0] - 1, 0)])

    @property
    def n_nodes(self) -> int:
        return self.indptr.shape[0] - 1

    @property
    def n_sources(self) -> int:
        """Rows that edges may come from."""
        return self.n_nodes

    @property
    def n_edges(self) -> int:
        return self.indices.shape[0]

    @property
    def n_features(self) -> int:
        return self.features.shape[1]

    @property
    def n_parts(self) -> int:
        return len(self.offsets) - 1

    @property
    def node_ids(self) -> Array:
        """The original id of every row, (n_nodes,) int."""
        return np.arange(self.n_nodes) if self.ids is None else np.asarray(self.ids)

    def where(self, name: str) -> str:
        """Say where an array comes from, for messages: its file in the native format, else source and field."""
        return f"{self.source}: {name}" if self.directory is None else f"{self.directory}/{FILES[name]}.npy: {name}"

    def arrays(self) -> dict[str, Array]:
        """Return the arrays that are there, by field name."""
        return {name: getattr(self, name) for name in EXPECTED if getattr(self, name) is not None}

    @property
    def n_bytes(self) -> int:
        """Of all arrays."""
        return sum(array.nbytes for array in self.arrays().values())

    def equals(self, other: "Dataset") -> bool:
        """Tell whether another data set has the same classes and arrays, in values and dtypes."""
        one, two = self.arrays(), other.arrays()
        return (
            (self.n_classes, self.task) == (other.n_classes, other.task)
            and one.keys() == two.keys()
            and all(one[name].dtype == two[name].dtype and np.array_equal(one[name], two[name]) for name in one)
        )

    def check(self, allow_empty: Collection[str] = ()) -> "Dataset":
        """Raise for the first thing that would make training wrong.

        Parameters
        ----------
        allow_empty : collection of {"train", "val", "test"}
            Splits that may be empty.

        Returns
        -------
        Dataset
            Itself.

        Raises
        ------
        DataError
            Dimensions, dtypes or lengths disagree; `indptr` does not rise from 0 to the number of edges; a source is not a
            node; ids are no permutation; a feature, an edge weight or an edge feature is NaN or infinite; a label in a split is
            not a class; there are more classes than `MAX_CLASSES`; splits overlap or are empty. The message names the file or
            source, the field and the value.

        Notes
        -----
        Reads everything once, a chunk at a time (the ids once for each 16 million); memory: a few chunks of 32 MiB.
        """
        self.check_shapes()
        self.check_edges()
        if self.directory is not None and not self.sources_ascend():
            raise DataError(f"{self.where('indices')}: the sources of a row do not ascend")
        self._check_ids()
        for name in ("features", "edge_weight", "edge_features"):
            if getattr(self, name) is not None:
                self._check_finite(name)
        self._check_splits(allow_empty)
        self._check_labels()
        return self

    def check_shapes(self) -> None:
        """Raise a DataError where dimensions, dtypes or lengths disagree. Reads no array."""
        for name, array in self.arrays().items():
            if name == "labels":
                targets.check_form(array, self.task, self.where(name))
                continue
            dimensions, dtypes = EXPECTED[name]
            if array.ndim != dimensions:
                raise DataError(f"{self.where(name)}: expected {dimensions} dimension(s), found shape {array.shape}")
            if array.dtype.name not in dtypes:
                raise DataError(f"{self.where(name)}: expected dtype {' or '.join(dtypes)}, found {array.dtype}")
        if self.indptr.size == 0:
            raise DataError(f"{self.where('indptr')}: expected at least one entry, found 0")
        for name, array in self.arrays().items():
            n_rows = self.n_nodes + 1 if name == "indptr" else self.n_edges if name in EDGE_ARRAYS else self.n_nodes
            if array.shape[0] != n_rows:
                raise DataError(f"{self.where(name)}: expected {n_rows} rows, found {array.shape[0]}")

    def check_edges(self) -> None:
        """Raise a DataError unless `indptr` rises from 0 to the number of edges and every source is a node."""
        self._check_indptr()
        self._check_indices()

    def _check_indptr(self):
        first, last = int(self.indptr[0]), int(self.indptr[-1])
        if first != 0:
            raise DataError(f"{self.where('indptr')}: starts with {first}, expected 0")
        if last != self.n_edges:
            raise DataError(f"{self.where('indptr')}: ends with {last}, expected the number of edges, {self.n_edges}")
        before = 0
        for start, piece in pieces(self.indptr):
            falls = np.diff(piece, prepend=before) < 0
            if falls.any():
                at = int(np.argmax(falls))
                raise DataError(f"{self.where('indptr')}: entry {start + at} is {piece[at]}, less than the entry before")
            before = piece[-1]

    def _check_indices(self):
        for start, piece in pieces(self.indices):
            bad = (piece < 0) | (piece >= self.n_sources)
            if bad.any():
                at, n = int(np.argmax(bad)), self.n_sources
                raise DataError(f"{self.where('indices')}: edge {start + at} comes from node {piece[at]}, outside 0 <= id < {n}")


    def sources_ascend(self) -> bool:
        """Tell whether the sources of each row ascend, as they must on disk; `check_edges` has passed."""
        for row in range(0, self.n_nodes, _STEP):
            indptr = part(self.indptr, row, min(row + _STEP, self.n_nodes) + 1)
            for first, last in row_chunks(indptr, _STEP):
                ends = indptr[first : last + 1]
                if not ascends(ends - ends[0], part(self.indices, int(ends[0]), int(ends[-1]))):
                    return False
        return True

    def _check_ids(self):
        for name, n in (("ids", self.n_nodes), ("edge_ids", self.n_edges)):
            for start, piece in pieces(getattr(self, name)) if getattr(self, name) is not None else ():
                bad = (piece < 0) | (piece >= n)
                if bad.any():
                    at = int(np.argmax(bad))
                    raise DataError(f"{self.where(name)}: entry {start + at} is {piece[at]}, outside 0 <= id < {n}")
        for low in range(0, self.n_nodes if self.ids is not None else 0, _IDS):
            here = np.zeros(min(_IDS, self.n_nodes - low), bool)
            for _, piece in pieces(self.ids):
                here[piece[(piece >= low) & (piece < low + _IDS)] - low] = True
            if not here.all():
                raise DataError(f"{self.where('ids')}: no row has id {low + int(np.argmin(here))}")

    def _check_finite(self, name):
        for start, piece in pieces(getattr(self, name)):
            finite = np.isfinite(piece)
            if not finite.all():
                at = np.unravel_index(int(np.argmin(finite)), piece.shape)
                column = f", column {at[1]}" if piece.ndim > 1 else ""
                raise DataError(f"{self.where(name)}: row {start + int(at[0])}{column} is {piece[at]}, expected a finite number")

    def _check_splits(self, allow_empty):
        for name in SPLITS:
            for start, piece in pieces(getattr(self, name)):
                if piece.view(np.uint8).max(initial=0) > 1:  # a bool of another byte counts, and inverts, as neither
                    raise DataError(f"{self.where(name)}: entry {start + int(np.argmax(piece.view(np.uint8) > 1))} is no truth value")
            if name not in allow_empty and not any(piece.any() for _, piece in pieces(getattr(self, name))):
                raise DataError(f"{self.where(name)}: the {name} split is empty, 0 of {self.n_nodes} nodes")
        for one, two in (("train", "val"), ("train", "test"), ("val", "test")):
            first, n_both = None, 0
            for (start, piece), (_, other) in zip(pieces(getattr(self, one)), pieces(getattr(self, two))):
                both = np.flatnonzero(piece & other)
                first = start + int(both[0]) if first is None and both.size else first
                n_both += both.size
            if n_both:
                raise DataError(f"{self.where(one)}: node {first} is in {one} and in {two} ({n_both} nodes are in both)")

    def _check_labels(self):
        if not 0 <= self.n_classes <= MAX_CLASSES:
            raise DataError(f"{self.source}: classes: {self.n_classes}, expected 0 to {MAX_CLASSES}")
        width = targets.n_outputs(self.labels, self.task)
        if width not in (None, self.n_classes):
            raise DataError(f"{self.source}: classes: {self.n_classes}, but the labels have {width} columns")
        for start, labels in pieces(self.labels):
            splits = [part(getattr(self, name), start, start + len(labels)) for name in SPLITS]
            found = targets.wrong(labels, self.task, splits[0] | splits[1] | splits[2], self.n_classes)
            if found:
                raise DataError(f"{self.where('labels')}: node {start + found[0]} {found[1]}")


_STEP = 1 << 20  # rows, and edges, at a time
_IDS = 1 << 24  # ids whose presence is looked at at a time
_FLOAT, _INT = ("float32", "float64"), ("int32", "int64")
EXPECTED = {  # field: dimensions, dtypes
    "indptr": (1, ("int64",)),
    "indices": (1, _INT),
    "features": (2, _FLOAT),
    "labels": (1, ("int64",)),  # of classes: `targets` has the others
    "train": (1, ("bool",)),
    "val": (1, ("bool",)),
    "test": (1, ("bool",)),
    "ids": (1, _INT),
    "edge_ids": (1, _INT),
    "edge_weight": (1, _FLOAT),
    "edge_features": (2, _FLOAT),
}
NODE_ARRAYS = {"ids": "ids", **{name: name for name in ("features", "labels", *SPLITS)}}  # field: name in the native format
EDGE_ARRAYS = {"indptr": "indptr", "indices": "indices", "edge_ids": "ids", "edge_weight": "weight", "edge_features": "features"}
NODE, RELATION = "node", "node.edge.node"
FILES = {
    **{field: f"nodes/{NODE}/{name}" for field, name in NODE_ARRAYS.items()},
    **{field: f"edges/{RELATION}/{name}" for field, name in EDGE_ARRAYS.items()},
}

"""The tables of a data set: the rows of one node type, and the edges of one relation, each with its checks."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sarlite.data import targets
from sarlite.data.folders import key
from sarlite.data.mapped import dtype_name, part, pieces, widened
from sarlite.errors import DataError
from sarlite.structure import validation
from sarlite.structure.edges import row_chunks
from sarlite.structure.part_edges_csr import is_sorted
from sarlite.structure.whole_graphs import GRAPH
from sarlite.types import Array, JsonDict

Relation = tuple[str, str, str]
"""(source type, name, destination type)"""
SPLITS = ("train", "val", "test")
MAX_CLASSES = 1 << 24
NODE = "node"
RELATION: Relation = (NODE, "edge", NODE)
"""The relation of a graph of one kind, whose node type is `NODE`."""
MEMBERS: Relation = (NODE, "in", GRAPH)
"""The second relation of a set of graphs, beside `RELATION`: from each node to its graph."""

_STEP = 1 << 20  # most rows, and most edges, of a piece
_FLOAT, _INT = ("float32", "float64"), ("int32", "int64")


class _Table:
    """Base class of `NodeTable` and `EdgeTable`: arrays stored in one folder. It knows where the arrays came from, so that error
    messages can name the file or the source.
    """

    FILES: ClassVar[dict[str, str]]
    """Field -> name of its file."""
    EXPECTED: ClassVar[dict[str, tuple[int, tuple[str, ...]]]]
    """Field -> (number of dimensions, accepted dtypes)."""
    FEATURES: ClassVar[str]
    """Field of the features, whose columns `feature_names` lists."""
    TIME: ClassVar[str]
    """Field of the times."""
    source: str
    directory: str | None
    feature_names: list[str] | None
    transforms: JsonDict | None
    time_kind: str | None

    @property
    def folder(self) -> str:
        """Folder of the table's files in the native format, relative to the data set's directory."""
        raise NotImplementedError

    @property
    def label(self) -> str:
        """Text that begins messages about the table, such as "type paper: "; empty in a graph of one node type."""
        raise NotImplementedError

    def n_rows(self, name: str) -> int:
        """Return the number of rows that the array of field `name` must have."""
        raise NotImplementedError

    def where(self, name: str) -> str:
        """Return the location of the array `name` for error messages: its file in the native format, or else the data's source and
        the name.
        """
        if self.directory is None:
            return f"{self.source}: {self.label}{name}"
        return f"{self.directory}/{self.folder}/{self.FILES[name]}.npy: {name}"

    def arrays(self) -> dict[str, Array]:
        """Return {field: array} of the arrays that are not None."""
        return {name: getattr(self, name) for name in self.EXPECTED if getattr(self, name) is not None}

    @property
    def n_bytes(self) -> int:
        """Size of all arrays in bytes."""
        return sum(array.nbytes for array in self.arrays().values())

    def equals(self, other: "_Table") -> bool:
        """Return True if the table `other` has the same arrays, in values and dtypes."""
        one, two = self.arrays(), other.arrays()
        same = one.keys() == two.keys()
        return same and all(one[name].dtype == two[name].dtype and np.array_equal(one[name], two[name]) for name in one)

    def check_shapes(self) -> None:
        """Raise a DataError if an array has a wrong number of dimensions, dtype or length. The values in the arrays are not read."""
        for name, array in self.arrays().items():
            self._check_form(name, array)
        for name, array in self.arrays().items():
            if array.shape[0] != self.n_rows(name):
                raise DataError(f"{self.where(name)}: expected {self.n_rows(name)} rows, found {array.shape[0]}")

    def _check_form(self, name, array):
        dimensions, dtypes = self.EXPECTED[name]
        if array.ndim != dimensions:
            raise DataError(f"{self.where(name)}: expected {dimensions} dimension(s), found shape {array.shape}")
        if dtype_name(array.dtype) not in dtypes:
            raise DataError(f"{self.where(name)}: expected dtype {' or '.join(dtypes)}, found {array.dtype}")

    def _check_range(self, name, ids, n, entry="entry {at} is {value},"):
        """Raise a DataError for the first of `ids`, an array called `name`, outside 0 <= id < n. The message states the bad id by the
        template `entry`, with its position {at} and its {value}.
        """
        for start, piece in pieces(ids):
            validation.integers(self.where(name), piece, stop=n, entry=entry, first=start)

    def _check_finite(self, name):
        """Raise a DataError if the array `name` has a NaN or an infinite number."""
        for start, piece in pieces(getattr(self, name)):
            piece = widened(piece)
            if (at := validation.first_true(~np.isfinite(piece))) is not None:
                row, column = (at[0], f", column {at[1]}") if piece.ndim > 1 else (at, "")
                raise DataError(f"{self.where(name)}: row {start + row}{column} is {piece[at]}, expected a finite number")


@dataclass(eq=False)
class NodeTable(_Table):
    """Nodes of one type: features, labels, split masks, times and original ids, with one row per node.

    Attributes
    ----------
    node_type : str
    n_nodes : int
    features : (n_nodes, n_features) float32, float64 or `mapped.BFLOAT16`, optional
    labels : (n_nodes, ...) array, optional
        The form depends on `task`. Nodes in a split must have a label.

        - "classify": (n_nodes,) int64, -1 if unlabelled.
        - "multilabel": (n_nodes, n_labels) uint8, 0 or 1, 255 if unknown.
        - "regress": (n_nodes,) or (n_nodes, n_values) float32 or float64, NaN if unknown.
    train, val, test : (n_nodes,) bool, optional
        Disjoint masks. A node may be in no split.
    ids : (n_nodes,) int32 or int64, optional
        The original id of each row; by default the row number.
    offsets : (n_parts + 1,) int64
        Part p has the rows offsets[p] .. offsets[p + 1]; by default all rows are in one part.
    n_classes : int
        Number of outputs of a model per node: the number of classes, or of columns of the labels.
    task : {"classify", "multilabel", "regress"}
    class_names : list of str, optional
        Names of the classes, if the labels were words.
    feature_names : list of str, optional
        Names of the feature columns, if the features came from columns of a table.
    transforms : dict, optional
        The transforms that computed the features, as `tables.transforms.Fitted.to_json` returns them.
    names : dict of str to array, optional
        Mapping of the nodes' names, by name of file, as `data.names` describes it.
    time : (n_nodes,) int64, optional
        Time of each node.
    time_kind : {"dates", "integers"}, optional
        Unit of `time`: nanoseconds since 1970 UTC, or a whole number in the user's unit.
    source : str
        Name of the data in messages: a spec or, for the native format, the directory.
    directory : str, optional
        Directory in the native format that holds the arrays.
    """

    FILES: ClassVar = {"ids": "ids", **{name: name for name in ("features", "labels", *SPLITS, "time")}}
    EXPECTED: ClassVar = {"features": (2, (*_FLOAT, "bfloat16")), "labels": (1, ("int64",)),
                          **dict.fromkeys(SPLITS, (1, ("bool",))), "ids": (1, _INT), "time": (1, ("int64",))}
    FEATURES: ClassVar = "features"
    TIME: ClassVar = "time"

    node_type: str
    n_nodes: int
    features: Array | None = None
    labels: Array | None = None
    train: Array | None = None
    val: Array | None = None
    test: Array | None = None
    ids: Array | None = None
    offsets: Any = None  # an array from __post_init__ on
    n_classes: int = 0
    task: str = "classify"
    source: str = "dataset"
    directory: str | None = None
    class_names: list[str] | None = None
    feature_names: list[str] | None = None
    transforms: JsonDict | None = None
    names: dict[str, Array] | None = None
    time: Array | None = None
    time_kind: str | None = None

    def __post_init__(self) -> None:
        if self.offsets is None:
            self.offsets = np.array([0, self.n_nodes])

    @property
    def folder(self) -> str:
        return f"nodes/{key(self.node_type)}"

    @property
    def label(self) -> str:
        return "" if self.node_type == NODE else f"type {self.node_type}: "

    @property
    def n_features(self) -> int | None:
        """Number of feature columns; None without features."""
        return None if self.features is None else int(self.features.shape[1])

    @property
    def node_ids(self) -> Array:
        """The original id of every row, (n_nodes,) int32 or int64."""
        return np.arange(self.n_nodes) if self.ids is None else np.asarray(self.ids)

    def n_rows(self, name: str) -> int:
        return self.n_nodes

    def equals(self, other: _Table) -> bool:
        """Return True if the table `other` has the same classes, task and arrays, in values and dtypes."""
        same = isinstance(other, NodeTable) and (self.n_classes, self.task) == (other.n_classes, other.task)
        return same and super().equals(other)

    def check(self, allow_empty: Collection[str] = (), ids_at_once: int = 1 << 24) -> None:
        """Raise a DataError for an invalid id, label, split or feature, or for an empty split that `allow_empty` does not name. Ids
        are checked in passes of `ids_at_once` ids, to save memory.

        `check_shapes` must have passed.
        """
        self._check_ids(ids_at_once)
        if self.features is not None:
            self._check_finite("features")
        if self.labels is not None:
            self._check_splits(allow_empty)
            self._check_labels()

    def _check_form(self, name, array):
        if name == "labels":
            targets.check_form(array, self.task, self.where(name))
        else:
            super()._check_form(name, array)

    def _check_ids(self, at_once):
        if self.ids is None:
            return
        self._check_range("ids", self.ids, self.n_nodes)
        for low in range(0, self.n_nodes, at_once):
            here = np.zeros(min(at_once, self.n_nodes - low), bool)
            for _, piece in pieces(self.ids):
                here[piece[(piece >= low) & (piece < low + at_once)] - low] = True
            if (at := validation.first_true(~here)) is not None:
                raise DataError(f"{self.where('ids')}: no row has id {low + at}")

    def _check_splits(self, allow_empty):
        for name in SPLITS:
            for start, piece in pieces(getattr(self, name)):
                # a mapped file may hold bytes other than 0 and 1, with which NumPy's bool operations go wrong
                if (at := validation.first_true(piece.view(np.uint8) > 1)) is not None:
                    raise DataError(f"{self.where(name)}: entry {start + at} is neither 0 nor 1")
        empty = [name for name in SPLITS if name not in allow_empty and not any(piece.any() for _, piece in pieces(getattr(self, name)))]
        if empty:
            words = empty if len(empty) < len(SPLITS) else ["all"]
            flags = " ".join(f"--allow-empty {name}" for name in words)
            raise DataError(f"{self.where(empty[0])}: the {empty[0]} split is empty, 0 of {self.n_nodes} nodes; "
                            f"{flags} (allow_empty={empty}) accepts that")
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
            train, val, test = (part(getattr(self, name), start, start + len(labels)) for name in SPLITS)
            fault = targets.first_invalid(labels, self.task, train | val | test, self.n_classes)
            if fault:
                raise DataError(f"{self.where('labels')}: node {start + fault[0]} {fault[1]}")


@dataclass(eq=False)
class EdgeTable(_Table):
    """Edges of one relation in CSR by destination, with their weights, features, times and original positions.

    Attributes
    ----------
    relation : (source type, name, destination type)
    n_sources : int
        Number of nodes of the source type.
    indptr : (n_destinations + 1,) int64
        The sources of destination i's incoming edges are `indices[indptr[i] : indptr[i + 1]]`.
    indices : (n_edges,) int32 or int64
        Row numbers of the source type.
    edge_ids : (n_edges,) int32 or int64, optional
        The original position of each edge; by default the position in `indices`.
    edge_weight : (n_edges,) float32 or float64, optional
    edge_features : (n_edges, n_edge_features) float32 or float64, optional
    edge_time : (n_edges,) int64, optional
        Time of each edge.
    feature_names : list of str, optional
        Names of the columns of the edge features.
    transforms, source, directory, time_kind
        As for `NodeTable`.
    """

    FILES: ClassVar = {"indptr": "indptr", "indices": "indices", "edge_ids": "ids", "edge_weight": "weight",
                       "edge_features": "features", "edge_time": "time"}
    EXPECTED: ClassVar = {"indptr": (1, ("int64",)), "indices": (1, _INT), "edge_ids": (1, _INT),
                          "edge_weight": (1, _FLOAT), "edge_features": (2, _FLOAT), "edge_time": (1, ("int64",))}
    VALUES: ClassVar = ("edge_weight", "edge_features", "edge_time")
    FEATURES: ClassVar = "edge_features"
    TIME: ClassVar = "edge_time"

    relation: Relation
    n_sources: int
    indptr: Array
    indices: Array
    edge_ids: Array | None = None
    edge_weight: Array | None = None
    edge_features: Array | None = None
    source: str = "dataset"
    directory: str | None = None
    feature_names: list[str] | None = None
    transforms: JsonDict | None = None
    edge_time: Array | None = None
    time_kind: str | None = None

    @property
    def folder(self) -> str:
        return f"edges/{key(*self.relation)}"

    @property
    def label(self) -> str:
        return "" if self.relation == RELATION else f"relation {'.'.join(self.relation)}: "

    @property
    def n_destinations(self) -> int:
        return int(self.indptr.shape[0]) - 1

    @property
    def n_edges(self) -> int:
        return int(self.indices.shape[0])

    def n_rows(self, name: str) -> int:
        return self.n_destinations + 1 if name == "indptr" else self.n_edges

    def drop_values(self) -> None:
        """Remove the edge weights and edge features; edge times are kept."""
        self.edge_weight = self.edge_features = self.feature_names = self.transforms = None

    def check(self) -> None:
        """Raise a DataError for an invalid `indptr`, source or edge id, or an edge value that is not finite. `check_shapes` must
        have passed.
        """
        self.check_edges()
        if self.directory is not None and not self.sources_ascend():
            raise DataError(f"{self.where('indices')}: the sources of a row do not ascend")
        if self.edge_ids is not None:
            self._check_range("edge_ids", self.edge_ids, self.n_edges)
        for name in self.VALUES:
            if getattr(self, name) is not None:
                self._check_finite(name)

    def check_shapes(self) -> None:
        super().check_shapes()
        if self.indptr.size == 0:
            raise DataError(f"{self.where('indptr')}: expected at least one entry, found 0")

    def check_edges(self) -> None:
        """Raise a DataError unless `indptr` rises from 0 to the number of edges and every source is a row of the source type."""
        self._check_indptr()
        self._check_range("indices", self.indices, self.n_sources, "edge {at} comes from node {value},")

    def _check_indptr(self):
        first, last = int(self.indptr[0]), int(self.indptr[-1])
        if first != 0:
            raise DataError(f"{self.where('indptr')}: starts with {first}, expected 0")
        if last != self.n_edges:
            raise DataError(f"{self.where('indptr')}: ends with {last}, expected the number of edges, {self.n_edges}")
        before = 0
        for start, piece in pieces(self.indptr):
            if (at := validation.first_true(np.diff(piece, prepend=before) < 0)) is not None:
                raise DataError(f"{self.where('indptr')}: entry {start + at} is {piece[at]}, less than the entry before")
            before = piece[-1]

    def sources_ascend(self) -> bool:
        """Return True if the sources within each row ascend, as the native format requires; `check_edges` must have passed."""
        for row in range(0, self.n_destinations, _STEP):
            indptr = part(self.indptr, row, min(row + _STEP, self.n_destinations) + 1)
            for first, last in row_chunks(indptr, _STEP):
                ends = indptr[first : last + 1]
                if not is_sorted(ends - ends[0], part(self.indices, int(ends[0]), int(ends[-1]))):
                    return False
        return True

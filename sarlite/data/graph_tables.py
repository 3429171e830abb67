"""Tables that make up a data set: the rows of one node type and the edges of one relation, each with its checks."""

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
from sarlite.types import Array

Relation = tuple[str, str, str]
"""(source type, name, destination type)"""
SPLITS = ("train", "val", "test")
MAX_CLASSES = 1 << 24
NODE = "node"
RELATION: Relation = (NODE, "edge", NODE)
"""The type and the relation of a graph that names none."""
MEMBERS: Relation = (NODE, "in", GRAPH)
"""The relation, beside `RELATION`, of a set of graphs, from each node to its graph."""

_STEP = 1 << 20  # rows, and edges, at a time
_FLOAT, _INT = ("float32", "float64"), ("int32", "int64")


class _Table:
    """Arrays that stand in one folder, and where that is: what `NodeTable` and `EdgeTable` share."""

    FILES: ClassVar[dict[str, str]]
    """Field to the name of its file."""
    EXPECTED: ClassVar[dict[str, tuple[int, tuple[str, ...]]]]
    """Field to the number of dimensions and the dtypes that it may have."""
    FEATURES: ClassVar[str]
    """Field whose columns `feature_names` name."""
    TIME: ClassVar[str]
    """Field with the times."""
    source: str
    directory: str | None
    feature_names: list[str] | None
    transforms: dict[str, Any] | None
    time_kind: str | None

    @property
    def folder(self) -> str:
        """The folder of the files in a directory of the native format."""
        raise NotImplementedError

    @property
    def label(self) -> str:
        """Name of the table in messages, with a colon and a blank; empty for a graph that names no types."""
        raise NotImplementedError

    def n_rows(self, name: str) -> int:
        """Return how many rows an array must have."""
        raise NotImplementedError

    def where(self, name: str) -> str:
        """Say where an array comes from, for messages: its file in the native format, else source and field."""
        if self.directory is None:
            return f"{self.source}: {self.label}{name}"
        return f"{self.directory}/{self.folder}/{self.FILES[name]}.npy: {name}"

    def arrays(self) -> dict[str, Array]:
        """Return the arrays that are there, by field."""
        return {name: getattr(self, name) for name in self.EXPECTED if getattr(self, name) is not None}

    @property
    def n_bytes(self) -> int:
        """Size of all arrays in bytes."""
        return sum(array.nbytes for array in self.arrays().values())

    def equals(self, other: Any) -> bool:
        """Tell whether another table has the same arrays, in values and dtypes."""
        one, two = self.arrays(), other.arrays()
        same = one.keys() == two.keys()
        return same and all(one[name].dtype == two[name].dtype and np.array_equal(one[name], two[name]) for name in one)

    def check_shapes(self) -> None:
        """Raise a DataError where dimensions, dtypes or lengths disagree. Reads no array."""
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
        """Raise where one of the ids is outside 0 <= id < n."""
        for start, piece in pieces(ids):
            validation.integers(self.where(name), piece, stop=n, entry=entry, first=start)

    def _check_finite(self, name):
        for start, piece in pieces(getattr(self, name)):
            piece = widened(piece)
            if (at := validation.first_true(~np.isfinite(piece))) is not None:
                row, column = (at[0], f", column {at[1]}") if piece.ndim > 1 else (at, "")
                raise DataError(f"{self.where(name)}: row {start + row}{column} is {piece[at]}, expected a finite "
                                "number")


@dataclass(eq=False)
class NodeTable(_Table):
    """The nodes of one type, a row each.

    Attributes
    ----------
    node_type : str
    n_nodes : int
    features : (n_nodes, n_features) float32, float64 or `mapped.BFLOAT16`, optional
    labels : (n_nodes,) int64, or what the task's are, optional
        -1 where unlabelled, which only nodes outside the splits may be. Of task "multilabel" (n_nodes, n_labels) uint8,
        0 or 1, 255 where unknown; of "regress" (n_nodes,) or (n_nodes, n_values) float32 or float64, NaN where unknown.
    train, val, test : (n_nodes,) bool, optional
        Disjoint masks; a node may be in none.
    ids : (n_nodes,) int32 or int64, optional
        The original id of each row; without it, the row's number.
    offsets : (n_parts + 1,) int64
        Part p holds the rows offsets[p] .. offsets[p + 1]; by default all rows are one part.
    n_classes : int
        The numbers that a model makes of a node: of classes, or columns of the labels.
    task : {"classify", "multilabel", "regress"}
    class_names : list of str, optional
        What each class is called, of classes that were words.
    feature_names : list of str, optional
        The name of each column of the features, of features that were columns of a table.
    transforms : dict, optional
        The transforms that made the features, as `tables.transforms.Fitted.to_json` gives them.
    names : dict of str to array, optional
        The mapping of the nodes' names, by file, as `numbering.Numbering` makes it.
    time : (n_nodes,) int64, optional
        Time of each node.
    time_kind : {"dates", "integers"}, optional
        Unit of `time`: nanoseconds since 1970 UTC, or a whole number of the user's.
    source : str
        What messages name: a spec or, for the native format, the directory.
    directory : str, optional
        Of the native format.
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
    transforms: dict[str, Any] | None = None
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
        """None without features."""
        return None if self.features is None else int(self.features.shape[1])

    @property
    def node_ids(self) -> Array:
        """The original id of every row, (n_nodes,) int."""
        return np.arange(self.n_nodes) if self.ids is None else np.asarray(self.ids)

    def n_rows(self, name: str) -> int:
        return self.n_nodes

    def equals(self, other: Any) -> bool:
        """Tell whether another table has the same classes and arrays, in values and dtypes."""
        return (self.n_classes, self.task) == (other.n_classes, other.task) and super().equals(other)

    def check(self, allow_empty: Collection[str] = (), ids_at_once: int = 1 << 24) -> None:
        """Raise a DataError as `Dataset.check` for the nodes of one type, their labels and splits where there are any.

        `check_shapes` has passed. The ids are read once for each `ids_at_once` nodes.
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
                # a bool of another byte counts, and inverts, as neither
                if (at := validation.first_true(piece.view(np.uint8) > 1)) is not None:
                    raise DataError(f"{self.where(name)}: entry {start + at} is no truth value")
        empty = [name for name in SPLITS if name not in allow_empty
                 and not any(piece.any() for _, piece in pieces(getattr(self, name)))]
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
                raise DataError(f"{self.where(one)}: node {first} is in {one} and in {two} ({n_both} nodes are in "
                                "both)")

    def _check_labels(self):
        if not 0 <= self.n_classes <= MAX_CLASSES:
            raise DataError(f"{self.source}: classes: {self.n_classes}, expected 0 to {MAX_CLASSES}")
        width = targets.n_outputs(self.labels, self.task)
        if width not in (None, self.n_classes):
            raise DataError(f"{self.source}: classes: {self.n_classes}, but the labels have {width} columns")
        for start, labels in pieces(self.labels):
            train, val, test = (part(getattr(self, name), start, start + len(labels)) for name in SPLITS)
            found = targets.wrong(labels, self.task, train | val | test, self.n_classes)
            if found:
                raise DataError(f"{self.where('labels')}: node {start + found[0]} {found[1]}")


@dataclass(eq=False)
class EdgeTable(_Table):
    """The edges of one relation, as CSR by destination.

    Attributes
    ----------
    relation : (source type, name, destination type)
    n_sources : int
        Nodes of the source type.
    indptr : (n_destinations + 1,) int64
        The sources of destination i's incoming edges are `indices[indptr[i] : indptr[i + 1]]`.
    indices : (n_edges,) int32 or int64
        Row numbers of the source type.
    edge_ids : (n_edges,) int32 or int64, optional
        The original position of each edge; without it, its place.
    edge_weight : (n_edges,) float32 or float64, optional
    edge_features : (n_edges, any) float32 or float64, optional
    edge_time : (n_edges,) int64, optional
        Time of each edge.
    feature_names : list of str, optional
        The name of each column of the edge features.
    transforms, source, directory, time_kind
        As of `NodeTable`.
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
    transforms: dict[str, Any] | None = None
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
        """Forget edge weights and edge features; times stay."""
        self.edge_weight = self.edge_features = self.feature_names = self.transforms = None

    def check(self) -> None:
        """Raise a DataError as `Dataset.check` for the edges of one relation; `check_shapes` has passed."""
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
        """Raise a DataError unless `indptr` rises from 0 to the number of edges and every source is a node."""
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
                raise DataError(f"{self.where('indptr')}: entry {start + at} is {piece[at]}, less than the entry "
                                "before")
            before = piece[-1]

    def sources_ascend(self) -> bool:
        """Tell whether the sources of each row ascend, as they must on disk; `check_edges` has passed."""
        for row in range(0, self.n_destinations, _STEP):
            indptr = part(self.indptr, row, min(row + _STEP, self.n_destinations) + 1)
            for first, last in row_chunks(indptr, _STEP):
                ends = indptr[first : last + 1]
                if not is_sorted(ends - ends[0], part(self.indices, int(ends[0]), int(ends[-1]))):
                    return False
        return True

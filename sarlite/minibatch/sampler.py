"""The sampler, which picks the in-edges of a batch from the last layer to the first, and finds the rows that they need."""

import operator
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from sarlite import kernels
from sarlite.errors import ConfigError, DataError, ShapeError
from sarlite.keys import key
from sarlite.structure.part_edges_csr import InEdges, among
from sarlite.types import Array, ArrayLike, DType

KINDS = ("uniform", "replace", "full", "labor")


class EdgeSet:
    """A set of in-edges that a sampler picks from: all edges of a graph, or the edges of one relation.

    Attributes
    ----------
    edges : InEdges
        Edges whose indices are columns. The columns of each row are in ascending order of their global ids.
    first : int
        Local row of the set's first destination.
    relation, source : str
        The relation, by which picks are keyed, and the type of its sources, by which the variates of "labor" are keyed.
        Both are empty if there is only one node type.
    """

    def __init__(self, edges: InEdges, first: int = 0, relation: str = "", source: str = "") -> None:
        self.edges, self.first, self.relation, self.source = edges, first, relation, source

    def places(self, rows: Array) -> Array | slice:
        """Return the positions in `rows` of the rows that are destinations of this set's edges; `rows` are row numbers of this
        rank. The result is an array, or slice(None) if the set belongs to a whole graph.

        For a set of a whole graph these are all rows; for a relation, the rows of its destination type.
        """
        if not self.relation:
            return slice(None)
        return np.flatnonzero((rows >= self.first) & (rows < self.first + self.edges.n_dst))


class Recency(NamedTuple):
    """Settings of an edge feature, the time from each sampled edge to its seed's time: its unit and its dtype.

    Attributes
    ----------
    unit : float
        Time that counts as 1, in the unit of the times: a pick has log(1 + (seed's time - edge's time) / unit).
    dtype : dtype
        Dtype of the column for a graph without edge features.
    """

    unit: float
    dtype: DType


class Picked(NamedTuple):
    """In-edges that a sampler picked from one set of edges for a layer; each of these edges is called a pick.

    Attributes
    ----------
    indptr : (n_dst + 1,) int64
        CSR pointer over the layer's destinations that belong to the set.
    columns : (n_picks,) int
        Number of each pick's source row in the batch; a halo row has n_src + its position in `Layer.halo`.
    positions : (n_picks,) int
        Position of each pick among the set's edges, ascending within a row.
    without : (n,) int, or None
        Positions of the edges that are left out, ascending.
    degrees : (n_dst,) int64, or None
        Number of edges that the picks of each destination stand for; by default the destination's edges without
        `without`.
    times : (n_dst,) int64, or None
        Time of each destination, which is its seed's.
    recency : Recency, or None
        Last column of the picks' edge features; by default edge features are the graph's alone.
    """

    indptr: Array
    columns: Array
    positions: Array
    without: Array | None = None
    degrees: Array | None = None
    times: Array | None = None
    recency: Recency | None = None


class HaloExchange(NamedTuple):
    """Rows that the ranks send each other for a layer of a cooperative batch, where each rank computes its rows for all ranks.

    Attributes
    ----------
    needs : list by rank of (n,) int64
        Rows that each rank sends to this rank, type after type, as indices among the rows of the type in that rank's
        batch.
    asked : list by rank of (n,) int64
        Rows that this rank sends to each rank, type after type, as rows of this rank's batch.
    sizes : (size, n_types + n_types + n_sets) int64
        For each rank the numbers of the layer's source rows by type, of its destination rows by type, and of the picks
        by set of edges.
    """

    needs: list[Array]
    asked: list[Array]
    sizes: Array


class Layer(NamedTuple):
    """A sampled layer: the in-edges that the sampler picked, and the source and destination rows at their ends.

    Its destinations are the first n_dst rows of the batch. Its sources are the first n_src rows and the halo rows.

    Attributes
    ----------
    n_src, n_dst : int
        Numbers of local source and destination rows.
    sets : list of Picked
        Picks of each set of edges.
    halo : (n_halo,) int
        Columns of the picked halo rows, ascending.
    number : int
        Index of the layer, from 0.
    exchange : HaloExchange, or None
        Exchange of the halo rows, from `cooperative.Cooperative`.
    """

    n_src: int
    n_dst: int
    sets: list[Picked]
    halo: Array
    number: int
    exchange: HaloExchange | None = None

    @property
    def picked(self) -> Picked:
        """Sampled edges of this layer, for a graph with a single relation."""
        (picked,) = self.sets
        return picked


class SampleRequest(NamedTuple):
    """Request of one batch from a sampler: the training step, the edges to leave out, and the seeds' times.

    Attributes
    ----------
    step : int
        The global step.
    without : sequence of (n,) int or None
        By set, the positions of edges that are left out, ascending.
    times : (n_times,) int64
        Distinct times of the seeds of all ranks, ascending; empty if time does not matter.

    Notes
    -----
    A row of the batch is a pair of a column and a time, written as one integer: column * max(n_times, 1) + index of
    the time. Without times a row is a column.
    """

    step: int
    without: Sequence[Array | None]
    times: Array = np.empty(0, np.int64)

    @property
    def n_times(self) -> int:
        """Number of different times that a node can have in the batch, at least 1."""
        return max(len(self.times), 1)


class Sampled(NamedTuple):
    """Rows and layers that a `Sampler` returns for some seeds.

    Attributes
    ----------
    rows : (n,) int
        The part's row of each row of the batch: the distinct seeds, then each layer's new rows, ascending.
    numbers : (n_seeds,) int64
        Row in the batch of each requested seed.
    layers : list of Layer
        Layers in the order of the model.
    """

    rows: Array
    numbers: Array
    layers: list[Layer]


class Sampler:
    """Function that samples the edges of a batch: in-edges of the seeds, then in-edges of the sources of these edges, and so on,
    once for each layer.

    Parameters
    ----------
    edges : InEdges, or sequence of EdgeSet
        Edges whose indices are columns: local rows first, then halo rows, whose in-edges are never picked. The columns
        of each row are in ascending order of global ids. With several sets the fan-out applies to each set.
    fanouts : sequence of int
        Number of picks per row; the first entry is for the first layer. -1 takes all in-edges.
    kind : {"uniform", "replace", "full", "labor"}
        "uniform": min(k, degree) distinct in-edges with equal probability. "replace": k draws with replacement, none
        for a row without edges. "full": all in-edges; every fan-out is -1. "labor": the in-edges with the k smallest
        random variates of their sources. All rows of a layer use the same variates, so they share sources (LABOR-0).
    seed : int
    ids : (n_columns,) int64, optional
        Global ids of the columns, by which picks are keyed; by default the column numbers.
    n_local, n_columns : int, optional
        Number of local rows, by default the destinations of the first set; number of columns, by default `n_local`.
    targets : (n,) int, optional
        Local row of each row that may be a seed; by default all local rows may be seeds.
    one_variate : bool
        For "labor": a source has one variate in all layers of a step. Batches get smaller, but the layers are no longer
        independent, so estimates over several layers are biased.

    Raises
    ------
    ConfigError
        The kind is unknown, or a fan-out is not an integer, is 0 or below -1, or does not fit the kind.

    Notes
    -----
    A pick depends only on the seed, the step, the layer, the relation and the destination's global id (for "labor" on
    its sources' type and ids). It does not depend on ranks, threads or other rows of the batch. An added self loop is
    always picked and does not count.
    Memory: about 5 bytes per column, for "labor" 13. Time: O(picks) per batch, for "labor" O(edges of its rows).
    A lock ensures that one batch is sampled at a time.

    References
    ----------
    Hamilton, Ying and Leskovec 2017; Balin and Catalyurek 2023; DistGNN-MB, section 3.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import Graph
    >>> from sarlite.minibatch import Sampler
    >>> edges = Graph.from_edges([0, 1, 2, 3], [1, 2, 3, 0]).in_edges()
    >>> sampled = Sampler(edges, (-1, -1), "full")(np.array([0]), step=0)
    >>> sampled.rows.tolist(), [(layer.n_src, layer.n_dst) for layer in sampled.layers]
    ([0, 3, 2], [(3, 2), (2, 1)])
    """

    def __init__(self, edges: InEdges | Sequence[EdgeSet], fanouts: Sequence[int], kind: str = "uniform",
                 seed: int = 0, *, ids: Array | None = None, n_local: int | None = None, n_columns: int | None = None,
                 targets: Array | None = None, one_variate: bool = False) -> None:
        self.fanouts, self.kind = check_fanouts(fanouts, kind), kind
        self.seed, self.one_variate = operator.index(seed), one_variate
        self.sets = [EdgeSet(edges)] if isinstance(edges, InEdges) else list(edges)
        self.n_local = self.sets[0].edges.n_dst if n_local is None else n_local
        self._ids, self.targets = _unless_numbers(ids), targets
        self._most = max((int(np.diff(edge_set.edges.indptr).max(initial=0)) for edge_set in self.sets), default=0)
        dtype = self.sets[0].edges.indices.dtype if self.sets else np.dtype(np.int32)
        self._numbering = kernels.Numbering(self.n_local if n_columns is None else n_columns, dtype)
        self._lock = threading.Lock()

    def __call__(self, seeds: ArrayLike, step: int, without: Sequence[Array | None] | None = None) -> Sampled:
        """Return a Sampled (the rows and layers of a batch) for the output rows `seeds`, drawn with the random numbers of `step`.
        Edges at the positions without[k] of edge set k are not picked; None leaves out no edges.

        Parameters
        ----------
        seeds : (n_seeds,) int array
            Local rows; a row that occurs twice is expanded once.
        step : int
            Global step.
        without : list of (n,) int or None, optional
            For each set of edges the positions of edges that are not picked, ascending. A row picks among its other
            edges.

        Returns
        -------
        Sampled

        Raises
        ------
        ShapeError, DataError
            `seeds` is no list of integers, or a seed is no row.
        """
        return self._sampled(self._checked(seeds), SampleRequest(step, without or [None] * len(self.sets)))

    def _sampled(self, seeds: Array, request: SampleRequest) -> Sampled:
        """Sample the layers of a batch for the rows `seeds`, from the last layer to the first, and return them with the batch's
        rows (Sampled). `request` has the step, the edges to leave out, and the times.
        """
        with self._lock:
            try:
                return self._sample(seeds, request)
            except BaseException:
                self._numbering.clear()
                raise

    def _sample(self, seeds, request):
        layers: list[Layer] = []
        rows, numbers = self._numbering.begin(seeds)
        for layer in reversed(range(len(self.fanouts))):
            rows, sampled = self._layer(rows, layer, request)
            layers.insert(0, sampled)
        self._numbering.finish(rows)
        return Sampled(rows, numbers, layers)

    def _layer(self, rows: Array, layer: int, request: SampleRequest) -> tuple[Array, Layer]:
        """Sample in-edges of `rows` for layer number `layer`. Return (all rows, the Layer): first `rows` followed by the local
        sources that are new; then the sampled edges with the rows at their ends. `request` has the step and the edges to leave out.
        """
        n_dst = len(rows)
        picks = [self._picked(edges, rows, layer, request, left) for edges, left in zip(self.sets, request.without)]
        columns = picks[0].columns if len(picks) == 1 else np.concatenate([rows[:0], *(picked.columns for picked in picks)])
        joined = self._numbering.join(rows, columns)
        if len(picks) > 1:
            ends = np.cumsum([0, *(len(picked.columns) for picked in picks)])
            picks = [picked._replace(columns=columns[a:b]) for picked, a, b in zip(picks, ends, ends[1:])]
        n_src = len(joined)
        if self._numbering.n_columns > self.n_local:
            n_src = n_dst + int(np.searchsorted(joined[n_dst:], self.n_local * request.n_times))
            self._numbering.end(joined[n_src:])
        return joined[:n_src], Layer(n_src, n_dst, picks, joined[n_src:], layer)

    def _picked(self, edge_set: Any, rows: Array, layer: int, request: SampleRequest, without: Array | None) -> Picked:
        """Return sampled in-edges of those `rows` that are destinations of `edge_set`; edges at the positions `without` are left out
        (None: no edges). `request` has the step.
        """
        rows = rows[edge_set.places(rows)]
        rows, step = rows - rows.dtype.type(edge_set.first) if edge_set.first else rows, request.step
        if without is None:
            return Picked(*self._pick(edge_set, rows, layer, step, self._numbering))
        hit = self._drew_excluded(edge_set, rows, layer, step, without)
        picks = self._pick(edge_set, rows[~hit], layer, step, self._numbering)
        if hit.any():
            picks = merged(hit, picks, self._pick_again(edge_set, rows[hit], layer, step, without))
        return Picked(*picks, without)

    def _drew_excluded(self, edge_set: EdgeSet, rows: Array, layer: int, step: int, without: Array) -> Array:
        """Return a mask, (n_rows,), of the rows whose random draw for `layer` and `step` includes an edge at one of the positions
        `without`, which must be left out. These rows draw again.
        """
        starts, stops = (np.searchsorted(without, edge_set.edges.indptr[at]) for at in (rows, rows + 1))
        at, hit = np.flatnonzero(stops > starts), np.zeros(len(rows), bool)
        indptr, _, positions = self._pick(edge_set, rows[at], layer, step, None)
        hit[np.repeat(at, np.diff(indptr))[among(without, positions)]] = True
        return hit

    def _pick(self, edge_set: EdgeSet, rows: Array, layer: int, step: int,
              numbering: Any) -> tuple[Array, Array, Array]:
        """Return sampled in-edges of `rows` as (indptr, sources, positions in `edge_set`), drawn with the random numbers of `layer`
        and `step`. Sources that are new in the batch get the next row numbers in its `numbering` (map from nodes to row numbers),
        unless that is None.
        """
        edges, first, dst_ids = edge_set.edges, edge_set.first, self._ids
        if dst_ids is None and first:
            dst_ids = np.arange(first + edges.n_dst)
        dst_ids = None if dst_ids is None else dst_ids[first : first + edges.n_dst]
        return kernels.sample(edges.indptr, edges.indices, rows, **self._draw(edge_set, layer, step), dst_ids=dst_ids,
                              loops=edges.added_loops, src_ids=self._ids, numbering=numbering)

    def _pick_again(self, edge_set: EdgeSet, rows: Array, layer: int, step: int,
                    without: Array) -> tuple[Array, Array, Array]:
        """Sample `rows` a second time, from their in-edges that are not at the positions `without`. Return (indptr, sources, positions
        in `edge_set`). This draw is independent of the first, so that all remaining edges of a row are equally likely.
        """
        edges, first = edge_set.edges, edge_set.first
        counts = edges.indptr[rows + 1] - edges.indptr[rows]
        dst = np.repeat(np.arange(len(rows)), counts)
        positions = np.arange(len(dst)) + np.repeat(edges.indptr[rows] - np.cumsum(counts) + counts, counts)
        is_loop = np.zeros(len(dst), bool)
        if edges.added_loops is not None:
            is_loop = edges.added_loops[rows][dst] & (edges.indices[positions] == rows[dst])
        drawn, dst_ids = ~is_loop & ~among(without, positions), rows.astype(np.int64) + first
        indptr = np.concatenate([[0], np.cumsum(np.bincount(dst[drawn], minlength=len(rows)))])
        indptr, _, picked = kernels.sample(
            indptr, edges.indices[positions[drawn]], np.arange(len(rows), dtype=rows.dtype),
            **self._draw(edge_set, layer, step, " again"), dst_ids=dst_ids if self._ids is None else self._ids[dst_ids],
            src_ids=self._ids, numbering=self._numbering)
        dst = np.concatenate([np.repeat(np.arange(len(rows)), np.diff(indptr)), dst[is_loop]])
        positions = np.concatenate([positions[drawn][picked], positions[is_loop]])  # an added loop is always picked
        order = np.lexsort((positions, dst))
        indptr = np.concatenate([[0], np.cumsum(np.bincount(dst, minlength=len(rows)))])
        positions = positions[order].astype(edges.indices.dtype)
        return indptr, edges.indices[positions], positions

    def _draw(self, edge_set: EdgeSet, layer: int, step: int, purpose: str = "") -> dict[str, Any]:
        """Return the arguments k, kind and key of `kernels.sample`, as a dict, for a draw from `edge_set` in `layer` and `step`. Draws
        with different texts `purpose` are independent, unless the sampler is "labor".
        """
        k = self.fanouts[layer]
        kind = "uniform" if k < 0 else self.kind
        if kind != "replace":
            k = self._most if k < 0 else min(k, self._most)
        name, purpose = (edge_set.source, "") if kind == "labor" else (edge_set.relation, purpose)
        return {"k": k, "kind": kind,
                "key": key(self.seed, f"sample {kind}{purpose}", name, step, 0 if self.one_variate else layer)}

    def _checked(self, seeds):
        seeds = np.asarray(seeds)
        if seeds.ndim != 1 or (seeds.dtype.kind not in "iu" and len(seeds)):
            raise ShapeError(f"seeds: {seeds.dtype} {seeds.shape} are not row numbers")
        n = self.n_local if self.targets is None else len(self.targets)
        wrong = np.flatnonzero((seeds < 0) | (seeds >= n))
        if len(wrong):
            raise DataError(f"seeds[{wrong[0]}] is {seeds[wrong[0]]}, but rows are 0 .. {n - 1}")
        rows = seeds if self.targets is None else self.targets[seeds]
        return np.ascontiguousarray(rows, self._numbering.dtype)


def merged(in_other: Array, one: Sequence[Array], other: Sequence[Array]) -> Any:
    """Return one CSR, a tuple (indptr, columns, ...), whose rows are the rows of two CSRs, `one` and `other`. If in_other[i] is
    True, row i is the next unused row of `other`, else the next unused row of `one`.
    """
    counts = np.empty(len(in_other), np.int64)
    counts[~in_other], counts[in_other] = np.diff(one[0]), np.diff(other[0])
    of_other, both = np.repeat(in_other, counts), []
    for ours, theirs in zip(one[1:], other[1:]):
        array = np.empty(len(of_other), ours.dtype)
        array[~of_other], array[of_other] = ours, theirs
        both.append(array)
    return np.concatenate([[0], np.cumsum(counts)]), *both


def check_fanouts(fanouts: object, kind: str) -> tuple[int, ...]:
    """Return the fan-outs, the numbers of in-edges to sample in each layer, as a tuple of int. Raise a ConfigError if they do not suit
    the sampler `kind` ("uniform", "full", ...).
    """
    if kind not in KINDS:
        raise ConfigError(f"sampler {kind!r} is not one of {', '.join(KINDS)}")
    entries = list(fanouts) if isinstance(fanouts, (Sequence, np.ndarray)) and not isinstance(fanouts, str) else None
    if not entries or any(isinstance(k, (bool, np.bool_)) or not hasattr(k, "__index__") for k in entries):
        raise ConfigError(f"fanouts {fanouts!r}: expected whole numbers, one for each layer")
    for k in map(operator.index, entries):
        if k == 0 or k < -1:
            raise ConfigError(f"fanouts {tuple(entries)}: {k} is neither a number of picks above 0 nor -1 for all "
                              "in-edges")
        if kind == "full" and k != -1:
            raise ConfigError(f"fanouts {tuple(entries)}: sampler 'full' takes all in-edges, so each is -1")
    return tuple(map(operator.index, entries))


def _unless_numbers(ids: Array | None) -> Array | None:
    """Return the ids as contiguous int64; None if they are 0, 1, 2, ..., so that no lookup is needed, or if they are None."""
    if ids is None or not len(ids):
        return None
    if ids[0] == 0 and ids[-1] == len(ids) - 1 and np.array_equal(ids, np.arange(len(ids))):
        return None
    return np.ascontiguousarray(ids, np.int64)

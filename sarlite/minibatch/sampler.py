"""The sampler: the picked in-edges of a batch, layer by layer from the last to the first, and the rows they need."""

import operator
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from sarlite import kernels
from sarlite.errors import ConfigError, DataError, ShapeError
from sarlite.graph.part import InEdges
from sarlite.keys import key
from sarlite.types import Array

KINDS = ("uniform", "replace", "full", "labor")


class Layer(NamedTuple):
    """The picked in-edges of one layer. Its destinations are the first n_dst rows of the batch, its sources the first
    n_src and halo rows.

    Attributes
    ----------
    n_src, n_dst : int
        Local rows.
    indptr : (n_dst + 1,) int64
    columns : (n_picks,) int
        Number of each pick's source in the batch; of halo rows n_src + the place in `halo`.
    positions : (n_picks,) int
        Where each pick stands among the part's edges, ascending in a row.
    halo : (n_halo,) int
        The columns that are no local rows, ascending.
    exchange : object, or None
        What `exact.Cooperative` found for them.
    without : (n,) int, or None
        Where the edges that were left out stand among the part's edges, ascending.
    n_left_out : (n_dst,) int64, or None
        How many picks of each row were left out, with `without`.
    """

    n_src: int
    n_dst: int
    indptr: Array
    columns: Array
    positions: Array
    halo: Array
    exchange: Any = None
    without: Array | None = None
    n_left_out: Array | None = None


class Sampled(NamedTuple):
    """What `Sampler` found for some seeds.

    Attributes
    ----------
    rows : (n,) int
        The part's row of each row of the batch: the distinct seeds, then each layer's new rows, ascending.
    numbers : (n_seeds,) int64
        Of each seed, as asked, its number in the batch.
    layers : list of Layer
        In the order of the model's.
    """

    rows: Array
    numbers: Array
    layers: list[Layer]


class Sampler:
    """Picks in-edges for some rows, and for their sources, as many layers deep as a model has.

    Parameters
    ----------
    edges : InEdges
        Its indices are columns: local rows first, as many as it has destination rows; further ones are never expanded.
        Each row's stand in ascending order of `src_ids`.
    fanouts : sequence of int
        Picks a row; the first entry is the first layer's. -1 takes all.
    kind : {"uniform", "replace", "full", "labor"}
        min(k, degree) distinct in-edges, each as likely; k draws, none where there is no edge; all; those of the k
        smallest variates of the sources, which the rows of a layer share, so that they share sources (LABOR-0). With
        "full" every fan-out is -1.
    seed : int
    dst_ids, src_ids : (n_dst,), (n_columns,) int64, optional
        Global ids of the rows and of the columns, which picks go by; by default their numbers.
    n_columns : int, optional
        By default n_dst.
    one_variate : bool
        For "labor": a source has one variate in all layers of a step. Batches get smaller, but the layers are no longer
        independent, so estimates over several layers are biased.

    Raises
    ------
    ConfigError
        An unknown kind; fan-outs that are not whole numbers, 0 or below -1, or that do not go with the kind.

    Notes
    -----
    A pick depends on the seed, the step, the layer and the destination's global id (for "labor" its sources' ids)
    alone: neither on ranks or threads, nor on the other rows of the batch. An added self loop is always kept and does
    not count.
    Memory: about 5 bytes a column, for "labor" 13. Time: O(picks) a batch, for "labor" O(edges of its rows).
    One batch at a time: a lock sees to it.
    Source: Hamilton, Ying and Leskovec 2017; Balin and Catalyurek 2023; DistGNN-MB 3.
    """

    def __init__(self, edges: InEdges, fanouts: Sequence[int], kind: str = "uniform", seed: int = 0, *,
                 dst_ids: Array | None = None, src_ids: Array | None = None, n_columns: int | None = None,
                 one_variate: bool = False) -> None:
        self.fanouts, self.kind = check_fanouts(fanouts, kind), kind
        self.seed, self.one_variate = operator.index(seed), one_variate
        self.edges, self.dst_ids, self.src_ids = edges, _unless_numbers(dst_ids), _unless_numbers(src_ids)
        self._most = int(np.diff(edges.indptr).max(initial=0))
        self._numbering = kernels.Numbering(edges.n_dst if n_columns is None else n_columns, edges.indices.dtype)
        self._lock = threading.Lock()

    def __call__(self, seeds: Any, step: int, without: Array | None = None) -> Sampled:
        """Sample for seeds.

        Parameters
        ----------
        seeds : (n_seeds,) int array
            Local rows; what is there twice is expanded once.
        step : int
            The global step.
        without : (n,) int, optional
            Where edges that are left out stand among the part's edges, ascending: a pick of one brings nothing.

        Returns
        -------
        Sampled

        Raises
        ------
        ShapeError, DataError
            Seeds that are no list of whole numbers; one that is no row.
        """
        seeds = self._checked(seeds)
        with self._lock:
            try:
                return self._sample(seeds, step, without)
            except BaseException:
                self._numbering.clear()
                raise

    def _sample(self, seeds, step, without):
        layers: list[Layer] = []
        rows, numbers = self._numbering.begin(seeds)
        for layer in reversed(range(len(self.fanouts))):
            rows, found = self._layer(rows, layer, step, without)
            layers.insert(0, found)
        self._numbering.finish(rows)
        return Sampled(rows, numbers, layers)

    def _layer(self, rows, layer, step, without):
        """Pick for `rows`; return the batch's rows with the new local ones, and the layer."""
        n_dst, n_local, left_out = len(rows), self.edges.n_dst, None
        indptr, columns, positions = self._pick(rows, layer, step)
        if without is not None:
            kept = ~np.isin(positions, without)
            starts = np.concatenate([[0], np.cumsum(kept)])[indptr]
            left_out = np.diff(indptr) - np.diff(starts)
            indptr, columns, positions = starts, columns[kept], positions[kept]
        joined = self._numbering.join(rows, columns)
        n_src = len(joined)
        if self._numbering.n_columns > n_local:
            n_src = n_dst + int(np.searchsorted(joined[n_dst:], n_local))
            self._numbering.end(joined[n_src:])
        return joined[:n_src], Layer(n_src, n_dst, indptr, columns, positions, joined[n_src:], None, without, left_out)

    def _pick(self, rows, layer, step):
        k, edges = self.fanouts[layer], self.edges
        kind = "uniform" if k < 0 else self.kind
        if kind != "replace":
            k = self._most if k < 0 else min(k, self._most)
        found = key(self.seed, f"sample {kind}", "", step, 0 if self.one_variate else layer)
        return kernels.sample(edges.indptr, edges.indices, rows, k, kind=kind, key=found, loops=edges.added_loops,
                              dst_ids=self.dst_ids, src_ids=self.src_ids, numbering=self._numbering)

    def _checked(self, seeds):
        seeds = np.asarray(seeds)
        if seeds.ndim != 1 or (seeds.dtype.kind not in "iu" and len(seeds)):
            raise ShapeError(f"seeds: {seeds.dtype} {seeds.shape} are no row numbers")
        wrong = np.flatnonzero((seeds < 0) | (seeds >= self.edges.n_dst))
        if len(wrong):
            raise DataError(f"seeds[{wrong[0]}] is {seeds[wrong[0]]}, but rows are 0 .. {self.edges.n_dst - 1}")
        return np.ascontiguousarray(seeds, self.edges.indices.dtype)


def check_fanouts(fanouts: Any, kind: str) -> tuple[int, ...]:
    """Return fan-outs as a tuple of int, once they and the kind are some; see `Sampler`."""
    if kind not in KINDS:
        raise ConfigError(f"sampler {kind!r} is not one of {', '.join(KINDS)}")
    given = list(fanouts) if isinstance(fanouts, (Sequence, np.ndarray)) and not isinstance(fanouts, str) else None
    if not given or any(isinstance(k, (bool, np.bool_)) or not hasattr(k, "__index__") for k in given):
        raise ConfigError(f"fanouts {fanouts!r} are no whole numbers, one a layer")
    for k in map(operator.index, given):
        if k == 0 or k < -1:
            raise ConfigError(f"fanouts {tuple(given)}: {k} is neither a number of picks above 0 nor -1 for all "
                              "in-edges")
        if kind == "full" and k != -1:
            raise ConfigError(f"fanouts {tuple(given)}: sampler 'full' takes all in-edges, so each is -1")
    return tuple(map(operator.index, given))


def _unless_numbers(ids):
    """Ids, but None where each is its place."""
    if ids is None or not len(ids):
        return None
    if ids[0] == 0 and ids[-1] == len(ids) - 1 and np.array_equal(ids, np.arange(len(ids))):
        return None
    return np.ascontiguousarray(ids, np.int64)

"""Correct and Smooth: a model's probabilities, corrected and smoothed over the graph.

Source: Huang, He, Singh, Lim and Benson, 2021.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sarlite.comm import together
from sarlite.errors import ConfigError, DataError, ShapeError, whole
from sarlite.graph.graph import Graph
from sarlite.graph.propagation import NORMALIZATIONS, Propagation
from sarlite.numerics import reductions
from sarlite.tape.row_index import selected_rows
from sarlite.tape.tensor import as_array
from sarlite.types import Array, ArrayLike

TOLERANCE = 1e-4
"""Largest deviation from 1 of a row sum of probabilities."""
MOST_SCALE = 1000.0
"""Largest automatic scale. A row whose scale would be larger has received almost no error, and its scale is 1."""


@dataclass(frozen=True)
class CorrectAndSmooth:
    """Correct: spread the training rows' errors and add them. Smooth: put the training labels in and spread all rows.

    Z are the probabilities, Y the labels as one-hot rows, S is a normalised adjacency, and E = Y - Z on training rows,
    0 elsewhere. Both steps iterate X <- (1 - alpha) X_0 + alpha S X:

    - correct, X_0 = E: each iteration is clipped to [-1, 1]. The corrected rows are Z + scale X, where the scale of row
      i is sigma / |X_i|_1, with sigma the training rows' mean |E_i|_1 (Huang et al. Eq. 4, "autoscale"). With a fixed
      `scale` iterations are not clipped; the training rows are E again after each one (Eq. 5, "FDiff-scale").
    - smooth, X_0 = the corrected rows, with Y as training rows: each iteration is clipped to [0, 1] (Eq. 6).

    Parameters
    ----------
    correct_alpha, smooth_alpha : float in [0, 1]
    correct_iterations, smooth_iterations : int
        0 leaves the step out.
    correct_normalization, smooth_normalization : {"sym", "row", "column"}
        S, as in `Propagation`.
    scale : float, optional
        The fixed scale. By default the scale is automatic.

    Raises
    ------
    ConfigError

    Notes
    -----
    This differs from PyTorch Geometric's `CorrectAndSmooth`. A row that no error has reached has the scale 1 here, and
    NaN (0 / 0) there. A node without in-edges counts as a source with degree 1 here; its edges count 0 there. Each
    row's sum is checked here, the mean of all sums there. """

    correct_alpha: float = 0.8
    correct_iterations: int = 50
    correct_normalization: str = "sym"
    scale: float | None = None
    smooth_alpha: float = 0.8
    smooth_iterations: int = 50
    smooth_normalization: str = "sym"

    def __post_init__(self) -> None:
        for step in ("correct", "smooth"):
            alpha, normalization = getattr(self, f"{step}_alpha"), getattr(self, f"{step}_normalization")
            whole(f"{step}_iterations", getattr(self, f"{step}_iterations"))
            if not 0 <= alpha <= 1:
                raise ConfigError(f"{step}_alpha is {alpha}, but must be in [0, 1]", f"{step}_alpha")
            if normalization not in NORMALIZATIONS:
                raise ConfigError(f"{step}_normalization {normalization!r} is not one of {', '.join(NORMALIZATIONS)}")
        if self.scale is not None and not (math.isfinite(self.scale) and self.scale >= 0):
            raise ConfigError(f"scale is {self.scale}, but must be 0 or more", "scale")

    def __call__(self, graph: Graph, probabilities: ArrayLike, labels: ArrayLike, train: ArrayLike | slice,
                 edge_weight: ArrayLike | None = None) -> Array:
        """Return the smoothed scores of this rank's rows. The column of a row's largest score is its class. Collective.

        Parameters
        ----------
        graph : Graph
            Not bipartite.
        probabilities : (n_dst, n_classes) float array
            Rows that sum to 1, in the order of `graph.dst_ids`. Borrowed.
        labels : (n_dst,) array of integers
            Read in training rows alone.
        train : (n_dst,) array of bools, slice, or (k,) array of row numbers
        edge_weight : (n_edges,) float array, optional
            As in `Propagation`: degrees are weighted too.

        Returns
        -------
        (n_dst, n_classes) array of the probabilities' dtype, new

        Raises
        ------
        SarliteError
            On every rank together: shapes or dtypes that do not fit; a row that has a negative value, is not finite or
            does not sum to 1 within 1e-4 (the message names its id and its sum); a training label that is no column; no
            training row on any rank; the errors of `Propagation`.

        Notes
        -----
        Sends as much as `correct_iterations` + `smooth_iterations` aggregations n_classes wide, in the probabilities'
        dtype, and one allreduce of two numbers. Memory: four arrays of the probabilities' size beside them. Scores are
        no probabilities: rows need not sum to 1.
        """
        z, rows, y = together(graph.comm, lambda: _checked(graph, probabilities, labels, train))
        sums = np.array([reductions.share(np.abs(y - z[rows]).astype(np.float64)), len(rows)])
        total, count = graph.comm.allreduce(sums)
        if not count:
            raise DataError("correct and smooth: no rank has a training row, so there are no errors to spread")
        out = self._correct(graph, z, rows, y, total / count, edge_weight) if self.correct_iterations else z.copy()
        return self._smooth(graph, out, rows, y, edge_weight) if self.smooth_iterations else out

    def _correct(self, graph, z, rows, y, sigma, edge_weight):
        propagation, error = Propagation(graph, self.correct_normalization, edge_weight), np.zeros_like(z)
        error[rows] = y - z[rows]

        def again(x):
            x[rows] = error[rows]

        after = again if self.scale is not None else _clipped(-1, 1)
        spread = _iterated(propagation, error, self.correct_alpha, self.correct_iterations, after)
        return z + (_scales(spread, sigma) if self.scale is None else z.dtype.type(self.scale)) * spread

    def _smooth(self, graph, z, rows, y, edge_weight):
        propagation, first = Propagation(graph, self.smooth_normalization, edge_weight), z.copy()
        first[rows] = y
        return _iterated(propagation, first, self.smooth_alpha, self.smooth_iterations, _clipped(0, 1))


def _iterated(propagation: Propagation, first: Array, alpha: float, iterations: int,
              after: Callable[[Array], object]) -> Array:
    """Iterate X <- (1 - alpha) first + alpha S X from `first`; `after` changes each X in place."""
    x, kept = first, (1 - alpha) * first
    for _ in range(iterations):
        x = propagation(x)
        x *= alpha
        x += kept
        after(x)
    return x


def _clipped(low, high):
    return lambda x: np.clip(x, low, high, out=x)


def _scales(spread, sigma):
    """Return sigma / |row|_1 for each row, (n, 1); 1 if the ratio is above `MOST_SCALE` or the norm is 0."""
    norms = reductions.total(np.abs(spread), 1, keepdims=True)
    return np.where(norms * MOST_SCALE < sigma, 1, sigma / np.where(norms == 0, 1, norms)).astype(spread.dtype)


def _checked(graph, probabilities, labels, train):
    """Return the checked probabilities, the numbers of the training rows, and their labels as one-hot rows."""
    z, labels = as_array(probabilities), as_array(labels)
    if z.ndim != 2 or len(z) != graph.n_dst or z.dtype.kind != "f":
        raise ShapeError(f"probabilities: {z.dtype} of shape {z.shape}, but ({graph.n_dst}, n_classes) floats are "
                         "needed, one row a node")
    if labels.shape != (graph.n_dst,) or labels.dtype.kind not in "iu":
        raise ShapeError(f"labels: {labels.dtype} of shape {labels.shape}, but ({graph.n_dst},) integers are needed, "
                         "one a node")
    check_probabilities(z, graph.dst_ids)
    rows = selected_rows("train", train, graph.n_dst)
    wrong = rows[(labels[rows] < 0) | (labels[rows] >= z.shape[1])]
    if len(wrong):
        node, label = graph.dst_ids[wrong[0]], labels[wrong[0]]
        raise DataError(f"labels: node {node}, of the training split, has label {label}, but "
                        f"probabilities have {z.shape[1]} columns")
    y = np.zeros((len(rows), z.shape[1]), z.dtype)
    y[np.arange(len(rows)), labels[rows]] = 1
    return z, rows, y


def check_probabilities(z: Array, ids: Array, where: str = "probabilities") -> None:
    """Raise a DataError unless each row has finite, non-negative values that sum to 1.

    The error names the id of the first row that fails.

    Parameters
    ----------
    z : (n, n_classes) float array
    ids : (n,) int array
        Global id of each row, for the error.
    where : str
        Name of the probabilities in the error.
    """
    sums = z.sum(1, dtype=np.float64)
    negative = np.any(z < 0, axis=1)
    bad = np.flatnonzero(negative | ~(np.abs(sums - 1) <= TOLERANCE))  # NaN and infinities too
    if len(bad):
        least = f", the least of it {z[bad[0]].min():.6g}" if negative[bad[0]] else ""
        found = f"row {ids[bad[0]]} sums to {sums[bad[0]]:.6g}{least}"
        raise DataError(f"{where}: {found}: probabilities are 0 or more and sum to 1 within {TOLERANCE:g} "
                        f"(such rows: {len(bad)})")

"""Correct and Smooth (Huang, He, Singh, Lim and Benson, 2021): class probabilities corrected and smoothed over a graph."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sarlite.comm import together
from sarlite.errors import ConfigError, DataError, ShapeError, check_int
from sarlite.graph.graph import Graph
from sarlite.graph.propagation import NORMALIZATIONS, Propagation
from sarlite.numerics import reductions
from sarlite.tape.row_index import selected_rows
from sarlite.tape.tensor import as_array
from sarlite.types import Array, ArrayLike

__all__ = ["CorrectAndSmooth"]

TOLERANCE = 1e-4
"""Largest deviation from 1 that the sum of a row of probabilities may have."""
MOST_SCALE = 1000.0
"""Largest automatic scale. A row whose scale would be larger has received almost no error, so its scale is 1."""


@dataclass(frozen=True)
class CorrectAndSmooth:
    """Post-processing of class probabilities that spreads the errors and the labels of training rows over the graph.

    Let Z be the probabilities, Y the labels as one-hot rows, S a normalised adjacency matrix, and E = Y - Z on training
    rows and 0 elsewhere. Both steps iterate X <- (1 - alpha) X_0 + alpha S X:

    - "correct" spreads errors, X_0 = E, and clips each iteration to [-1, 1]. The corrected rows are Z + scale X. The
      scale of row i is sigma / |X_i|_1, where sigma is the mean of |E_i|_1 over training rows (Huang et al. Eq. 4,
      "autoscale"). With a fixed `scale` the iterations are not clipped, and the training rows are set to E again after
      each iteration (Eq. 5, "FDiff-scale").
    - "smooth" spreads labels: X_0 has the corrected rows, and Y in the training rows. Each iteration is clipped to
      [0, 1] (Eq. 6).

    Parameters
    ----------
    correct_alpha : float in [0, 1]
        Factor alpha of "correct".
    correct_iterations : int
        Number of iterations of "correct"; 0 leaves the step out.
    correct_normalization : {"sym", "row", "column"}
        Normalisation of S in "correct"; see `Propagation`.
    scale : float, optional
        Fixed scale; by default the scale is automatic.
    smooth_alpha : float in [0, 1]
        Factor alpha of "smooth".
    smooth_iterations : int
        Number of iterations of "smooth"; 0 leaves the step out.
    smooth_normalization : {"sym", "row", "column"}
        Normalisation of S in "smooth"; see `Propagation`.

    Raises
    ------
    ConfigError
        A number is out of its range, or a normalization is unknown.

    Notes
    -----
    Three things differ from PyTorch Geometric's `CorrectAndSmooth`. A row that no error has reached has the scale 1
    here, and NaN (0 / 0) there. A node without in-edges has degree 1 as a source here, and its edges count 0 there. The
    sum of each row is checked here, and the mean of all sums there.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import Graph
    >>> from sarlite.graph.correct_and_smooth import CorrectAndSmooth
    >>> graph = Graph.from_edges([0, 1], [1, 2], undirected=True)
    >>> probabilities, labels = np.full((3, 2), 0.5), np.array([1, 0, 0])
    >>> scores = CorrectAndSmooth()(graph, probabilities, labels, train=[0])
    >>> scores.shape, scores.argmax(1).tolist()
    ((3, 2), [1, 1, 1])
    """

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
            check_int(f"{step}_iterations", getattr(self, f"{step}_iterations"))
            if not 0 <= alpha <= 1:
                raise ConfigError(f"{step}_alpha is {alpha}, but must be in [0, 1]", f"{step}_alpha")
            if normalization not in NORMALIZATIONS:
                raise ConfigError(f"{step}_normalization {normalization!r} is not one of {', '.join(NORMALIZATIONS)}")
        if self.scale is not None and not (math.isfinite(self.scale) and self.scale >= 0):
            raise ConfigError(f"scale is {self.scale}, but must be 0 or more", "scale")

    def __call__(self, graph: Graph, probabilities: ArrayLike, labels: ArrayLike, train: ArrayLike | slice,
                 edge_weight: ArrayLike | None = None) -> Array:
        """Return scores, (n_dst, n_classes): the class `probabilities`, corrected by the errors at the rows `train`, whose `labels`
        are known, and then smoothed over the graph. `edge_weight` weights the edges (None: the graph's weights). Collective.

        Parameters
        ----------
        graph : Graph
            Graph that is not bipartite.
        probabilities : (n_dst, n_classes) float array
            Rows that sum to 1, in the order of `graph.dst_ids`. They are not changed.
        labels : (n_dst,) array of integers
            Classes; only the labels of training rows are read.
        train : (n_dst,) array of bools, slice, or (k,) array of row numbers
            Training rows.
        edge_weight : (n_edges,) float array, optional
            See `Propagation`.

        Returns
        -------
        (n_dst, n_classes) array
            New array of the probabilities' dtype. Its rows need not sum to 1.

        Raises
        ------
        SarliteError
            On every rank together: a shape or a dtype does not fit; a row has a negative value, is not finite or does
            not sum to 1 within 1e-4, and the message names its id and its sum; a training label is no column; no rank
            has a training row; or an error of `Propagation`.

        Notes
        -----
        Sends the bytes of `correct_iterations` + `smooth_iterations` aggregations of n_classes columns, in the
        probabilities' dtype, and one allreduce of two numbers. Memory: four further arrays of the probabilities' size.
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


def _iterated(propagation: Propagation, start: Array, alpha: float, iterations: int,
              after: Callable[[Array], object]) -> Array:
    """Repeat X <- (1 - alpha) start + alpha S X from X = start for a number of `iterations`; return X. propagation(X) computes S X,
    and after(X) changes X in place at the end of each iteration.
    """
    x, share = start, (1 - alpha) * start
    for _ in range(iterations):
        x = propagation(x)
        x *= alpha
        x += share
        after(x)
    return x


def _clipped(low, high):
    return lambda x: np.clip(x, low, high, out=x)


def _scales(spread: Array, sigma: float) -> Array:
    """Return the factor of each row of `spread`, (n, 1), that makes the sum of the row's absolute values `sigma`; 1 for a row of
    zeros, and for a row whose factor would exceed `MOST_SCALE`.
    """
    norms = reductions.total(np.abs(spread), 1, keepdims=True)
    return np.where(norms * MOST_SCALE < sigma, 1, sigma / np.where(norms == 0, 1, norms)).astype(spread.dtype)


def _checked(graph: Graph, probabilities: ArrayLike, labels: ArrayLike, train: ArrayLike | slice) -> tuple[Array, ...]:
    """Check the arguments of a call; return (probabilities, row numbers of the training rows `train`, one-hot labels of these rows)."""
    z, labels = as_array(probabilities), as_array(labels)
    if z.ndim != 2 or len(z) != graph.n_dst or z.dtype.kind != "f":
        raise ShapeError(f"probabilities: {z.dtype} of shape {z.shape}, but ({graph.n_dst}, n_classes) floats are "
                         "needed, one row for each node")
    if labels.shape != (graph.n_dst,) or labels.dtype.kind not in "iu":
        raise ShapeError(f"labels: {labels.dtype} of shape {labels.shape}, but ({graph.n_dst},) integers are needed, "
                         "one for each node")
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
    """Raise a DataError, naming `where` and the row's id in `ids`, unless the values of each row of `z` are 0 or more and sum to 1.

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
        text = f"row {ids[bad[0]]} sums to {sums[bad[0]]:.6g}{least}"
        raise DataError(f"{where}: {text}: probabilities are 0 or more and sum to 1 within {TOLERANCE:g} "
                        f"(such rows: {len(bad)})")

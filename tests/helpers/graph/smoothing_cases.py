"""Predictions on a small graph, and the Correct and Smooth algorithm in dense NumPy, which gives the expected values."""

import numpy as np

from sarlite.data import Dataset
from sarlite.structure.edges import csr_by_dst
from tests.helpers.graph.strategies import random_edges

EDGES = random_edges(41, 190, seed=3, n_dst=38)  # directed, with equal edges; the last nodes have no in-edges
_rng = np.random.default_rng(8)
Z = _rng.dirichlet(np.ones(3) * 0.7, EDGES.n_nodes)
LABELS = _rng.integers(0, 3, EDGES.n_nodes)
TRAIN = _rng.random(EDGES.n_nodes) < 0.4
WEIGHTS = _rng.random(EDGES.n_edges) * (_rng.random(EDGES.n_edges) < 0.9)


def dense(z, labels, train, weights=None, *, correct_alpha=0.8, correct_iterations=50, correct_normalization="sym", scale=None,
          smooth_alpha=0.8, smooth_iterations=50, smooth_normalization="sym", edges=EDGES):
    """Return the predictions `z`, (n, n_classes), after Correct and Smooth, by dense matrices; options are `CorrectAndSmooth`'s."""
    a, n = np.zeros((edges.n_nodes, edges.n_nodes)), len(z)
    for k in range(edges.n_edges):
        a[edges.dst[k], edges.src[k]] += 1 if weights is None else weights[k]
    d = np.diag([total if total else 1.0 for total in a.sum(1)])
    half, one = np.linalg.inv(np.sqrt(d)), np.linalg.inv(d)
    matrices = {"sym": half @ a @ half, "row": one @ a, "column": a @ one}
    y = np.eye(z.shape[1])[labels]
    z = z.copy()
    if correct_iterations:
        error = np.where(train[:, None], y - z, 0)
        x = error
        for _ in range(correct_iterations):
            x = (1 - correct_alpha) * error + correct_alpha * matrices[correct_normalization] @ x
            x = np.clip(x, -1, 1) if scale is None else np.where(train[:, None], error, x)
        sigma = sum(sum(abs(error[i])) for i in range(n) if train[i]) / train.sum()
        for i in range(n):
            norm = sum(abs(x[i]))
            factor = scale if scale is not None else 1 if norm == 0 or sigma / norm > 1000 else sigma / norm
            z[i] += factor * x[i]
    if smooth_iterations:
        first = np.where(train[:, None], y, z)
        z = first
        for _ in range(smooth_iterations):
            z = np.clip((1 - smooth_alpha) * first + smooth_alpha * matrices[smooth_normalization] @ z, 0, 1)
    return z


def dataset(weighted):
    """Return `EDGES` as a data set, with edge weights if `weighted`."""
    indptr, indices, order = csr_by_dst(*EDGES, edge_index=True)
    val, test = ~TRAIN & (np.arange(EDGES.n_nodes) % 2 == 0), ~TRAIN & (np.arange(EDGES.n_nodes) % 2 == 1)
    return Dataset(indptr, indices, np.ones((EDGES.n_nodes, 1), np.float32), LABELS, TRAIN, val, test, 3,
                   edge_weight=WEIGHTS[order] if weighted else None)

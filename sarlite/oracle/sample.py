"""Neighbour sampling as a distribution: which picks are allowed, and how often each edge is picked.

A sampler gives (m,) edge numbers, in any order: for each destination row of d in-edges

    without replacement  min(fanout, d) different edges, each set of so many as likely as any other
    with replacement     fanout edges, each time any of the d as likely as any other; none where d is 0

A fanout of -1 takes each edge once. Edges are what is picked: of duplicate edges each for itself. Rows are drawn independently of each other.
"""

from __future__ import annotations

import numpy as np

from sarlite.oracle.edges import EdgeList
from sarlite.types import Array


def faults(edges: EdgeList, fanout: int, replace: bool, picks: Array) -> list[str]:
    """What no sampler may give, one line each, of the first row or edge where it is; empty where the picks are allowed."""
    picks = np.asarray(picks)
    if picks.ndim != 1 or picks.dtype.kind not in "iu":
        return [f"picks are {picks.dtype} of shape {picks.shape}; they are edge numbers, (m,) integers"]
    outside = np.flatnonzero((picks < 0) | (picks >= edges.n_edges))
    if len(outside):
        return [f"pick {outside[0]} is edge {picks[outside[0]]}, of {edges.n_edges}"]
    times = np.bincount(picks.astype(np.int64), minlength=edges.n_edges)
    found = []
    again = np.flatnonzero(times > 1)
    if len(again) and not (replace and fanout >= 0):
        e = again[0]
        found.append(f"edge {e} ({edges.src[e]} -> {edges.dst[e]}) is picked {times[e]} times, without replacement")
    got, right = np.bincount(edges.dst[picks], minlength=edges.n_dst), expected_counts(edges, fanout, replace)
    for i in np.flatnonzero(got != right)[:1]:
        found.append(f"row {i} has {got[i]} picks, expected {right[i]}: it has {edges.in_degrees[i]} in-edges, the fanout is {fanout}")
    return found


def expected_counts(edges: EdgeList, fanout: int, replace: bool) -> Array:
    """(n_dst,) how many picks each row has."""
    if fanout < 0:
        return edges.in_degrees
    return np.where(edges.in_degrees > 0, fanout, 0) if replace else np.minimum(edges.in_degrees, fanout)


def moments(edges: EdgeList, fanout: int, replace: bool) -> tuple[Array, Array, Array]:
    """Of the times that an edge is picked: mean and variance, and the covariance with any other edge of its row, each (n_edges,)."""
    d, k = edges.in_degrees[edges.dst].astype(np.float64), expected_counts(edges, fanout, replace)[edges.dst].astype(np.float64)
    mean = k / d
    if replace and fanout >= 0:
        return mean, k / d * (1 - 1 / d), -k / d**2
    joint = np.where(d > 1, k * (k - 1) / np.maximum(d * (d - 1), 1), 0.0)
    return mean, mean * (1 - mean), np.where(d > 1, joint - mean**2, 0.0)

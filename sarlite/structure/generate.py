"""Seeded random graphs: a data set on which a graph network has an advantage, and graphs of a given size and shape."""

from typing import NamedTuple

import numpy as np

from sarlite.structure.draw import (
    distinct_pairs,
    generator,
    pick,
    pick_outside,
    power_law_weights,
    require,
    require_room,
    running_sums,
)
from sarlite.structure.edges import csr_by_dst

_MAX_NOISE = 1e30  # its normals are float32


class Generated(NamedTuple):
    """A generated data set: CSR by destination, features, labels and three disjoint masks."""

    indptr: np.ndarray
    indices: np.ndarray
    features: np.ndarray
    labels: np.ndarray
    train: np.ndarray
    val: np.ndarray
    test: np.ndarray
    n_classes: int


def sbm(nodes=10000, classes=8, degree=15.0, features=64, homophily=0.65, noise=1.0, exponent=3.0, train=0.1, val=0.2,
        seed=0):
    """Draw a degree-corrected stochastic block model with features that show the class only faintly.

    An edge picks one end in proportion to node weights and the other, with probability `homophily`, in the same class,
    else in another one. Features are `centre[class] + noise * normal`; with the defaults a linear model on the features
    alone is right for about 60 % of the test nodes, and with the neighbours' mean features as well for about 90 %.

    Parameters
    ----------
    nodes, classes, features : int
    degree : float
        Mean degree. The graph has round(nodes * degree / 2) edges, each stored in both directions.
    homophily : float
        Share of edges inside a class, 0 to 1.
    noise : float
        Standard deviation of the noise, where 1 is the default difficulty.
    exponent : float
        Tail exponent of the degree distribution, above 2.
    train, val : float or int
        As for `random_split`; the remaining nodes are the test nodes.
    seed : int

    Returns
    -------
    Generated
        Symmetric, no self loops, no duplicates. Node ids say nothing about classes.

    Raises
    ------
    ConfigError
        An option is outside its range, or so many edges do not fit.

    Notes
    -----
    The same options give the same arrays. Memory: 4 * nodes * features bytes and about 50 bytes an edge.
    Source: Karrer and Newman 2011, "Stochastic blockmodels and community structure in networks".
    """
    require(nodes >= 2, "nodes", nodes, "at least 2")
    require(1 <= classes <= nodes, "classes", classes, "1 to nodes")
    require(features >= 1, "features", features, "at least 1")
    fits = 0 <= homophily <= 1 and (homophily == 1 or classes > 1)
    require(fits, "homophily", homophily, "0 to 1, and 1 for a single class")
    require(degree >= 0 and np.isfinite(degree), "degree", degree, "a number of at least 0")
    require(0 <= noise <= _MAX_NOISE, "noise", noise, f"0 to {_MAX_NOISE:g}")
    require_room(nodes, nodes * degree, features)
    rng = generator(seed)
    blocks = np.arange(nodes) * classes // nodes
    bounds = np.searchsorted(blocks, np.arange(classes + 1))
    sums = running_sums(power_law_weights(rng, nodes, exponent, cap=60))
    low, high = sums[bounds[blocks]], sums[bounds[blocks + 1]]

    def draw(size):
        u = pick(rng, sums, 0.0, sums[-1], size)
        inside = pick(rng, sums, low[u], high[u], size)
        outside = pick_outside(rng, sums, low[u], high[u], size)
        return u, np.where(rng.random(size) < homophily, inside, outside)

    u, v = distinct_pairs(rng, draw, round(nodes * degree / 2), nodes)
    ids = rng.permutation(nodes)
    labels = np.empty(nodes, np.int64)
    labels[ids] = blocks
    indptr, indices = csr_by_dst(ids[u], ids[v], nodes, undirected=True)
    centres = rng.standard_normal((classes, features)) * (1.9 / np.sqrt(features))
    x = rng.standard_normal((nodes, features), dtype=np.float32) * np.float32(noise)
    x += centres.astype(np.float32)[labels]
    return Generated(indptr, indices, x, labels, *random_split(labels, train, val, rng), classes)


def rmat(nodes=None, edges=None, scale=None, a=0.57, b=0.19, c=0.19, d=None, features=64, classes=8, train=0.1, val=0.2,
         seed=0):
    """Draw an R-MAT graph with random features, labels and splits.

    Each edge falls into one quadrant of the adjacency matrix with probability a, b, c or d, and again within it.

    Parameters
    ----------
    nodes, scale : int
        One of them; `scale` stands for 2^scale nodes.
    edges : int
        Directed edges, an even number; 16 * nodes by default.
    a, b, c, d : float
        The quadrants' probabilities; `d` is what the others leave.
    features, classes, train, val, seed
        As for `sbm`. Features and labels know nothing of the graph.

    Returns
    -------
    Generated
        Symmetric, exactly `edges` edges, no self loops, no duplicates.

    Raises
    ------
    ConfigError

    Notes
    -----
    Source: Chakrabarti, Zhan and Faloutsos 2004, "R-MAT: a recursive model for graph mining".
    """
    require((nodes is None) != (scale is None), "nodes and scale", (nodes, scale), "one of the two")
    require(scale is None or 1 <= scale <= 31, "scale", scale, "1 to 31")
    nodes = 1 << scale if nodes is None else nodes
    require(nodes >= 2, "nodes", nodes, "at least 2")
    d = 1 - a - b - c if d is None else d
    shares = a, b, c, d
    require(min(shares) >= -1e-12 and abs(sum(shares) - 1) < 1e-9, "a, b, c, d", shares, "shares that sum to 1")
    edges = min(16 * nodes, nodes * (nodes - 1) // 4 * 2) if edges is None else edges
    require_room(nodes, edges, features)
    rng = generator(seed)

    def draw(size):
        u, v = np.zeros(size, np.int64), np.zeros(size, np.int64)
        for _ in range(int(nodes - 1).bit_length()):
            quadrant = np.searchsorted([a, a + b, a + b + c], rng.random(size), side="right")
            u, v = 2 * u + (quadrant >> 1), 2 * v + (quadrant & 1)
        fits = (u < nodes) & (v < nodes)
        return u[fits], v[fits]

    u, v = distinct_pairs(rng, draw, _pairs(edges), nodes)
    indptr, indices = csr_by_dst(u, v, nodes, undirected=True)
    return Generated(indptr, indices, *random_task(rng, nodes, features, classes, train, val), classes)


def power_law(nodes=100_000, edges=5_000_000, exponent=2.5, cap=60, smallest=200, largest=4000, inside=0.7, seed=0):
    """Draw a Chung-Lu graph with communities: ends are picked in proportion to power-law weights.

    Parameters
    ----------
    nodes : int
    edges : int
        Directed edges, an even number.
    exponent : float
        Tail exponent of the weights, above 2.
    cap : float
        Largest weight, as a multiple of the mean weight.
    smallest, largest : int
        Community sizes, log-uniform between the two; the last community takes what is left.
    inside : float
        Share of edges inside a community.
    seed : int

    Returns
    -------
    indptr : (nodes + 1,) int64
    indices : (edges,) int32
        Symmetric, no self loops, no duplicates, node ids in community order.

    Raises
    ------
    ConfigError

    Notes
    -----
    With the defaults degrees are about 6 / 31 / 350 / 2300 at the minimum, median, 99th percentile and maximum.
    """
    require(nodes >= 2, "nodes", nodes, "at least 2")
    require(0 <= inside <= 1, "inside", inside, "0 to 1")
    require(1 <= smallest <= largest, "smallest and largest", (smallest, largest), "1 <= smallest <= largest")
    require_room(nodes, edges, 0)
    rng = generator(seed)
    bounds = _community_bounds(rng, nodes, smallest, largest)
    sums = running_sums(power_law_weights(rng, nodes, exponent, cap))
    community = np.repeat(np.arange(bounds.size - 1), np.diff(bounds))
    low, high = sums[bounds[community]], sums[bounds[community + 1]]

    def draw_inside(size):
        u = pick(rng, sums, 0.0, sums[-1], size)
        return u, pick(rng, sums, low[u], high[u], size)

    def draw_across(size):
        u = pick(rng, sums, 0.0, sums[-1], size)
        return u, pick_outside(rng, sums, low[u], high[u], size)

    n_pairs = _pairs(edges)
    n_inside = n_pairs if bounds.size == 2 else round(inside * n_pairs)
    u, v = distinct_pairs(rng, draw_inside, n_inside, nodes)
    far_u, far_v = distinct_pairs(rng, draw_across, n_pairs - n_inside, nodes)
    return csr_by_dst(np.concatenate((u, far_u)), np.concatenate((v, far_v)), nodes, undirected=True)


def random_split(labels, train, val, rng):
    """Split the labelled nodes at random, class by class.

    Parameters
    ----------
    labels : (n_nodes,) integer array
        A node with a negative label is in no split.
    train, val : int or float
        An int is a number of nodes a class, a float a share of each class.
    rng : numpy.random.Generator or int
        Generator or seed.

    Returns
    -------
    train, val, test : (n_nodes,) bool
        Disjoint; the labelled nodes that are neither in train nor in val are in test. If `train` is a share above 0,
        every class that has a node has one in train.

    Raises
    ------
    ConfigError
        `train` or `val` is negative, or shares sum to more than 1.
    """
    for name, value in (("train", train), ("val", val)):
        fits = value >= 0 and (isinstance(value, (int, np.integer)) or value <= 1)
        require(fits, name, value, "a count, or a share of 0.0 to 1.0")
    shares = sum(value for value in (train, val) if isinstance(value, float))
    require(shares <= 1 + 1e-9, "train and val", (train, val), "shares that sum to at most 1")
    rng = generator(rng)
    order = rng.permutation(np.flatnonzero(labels >= 0))
    order = order[np.argsort(labels[order], kind="stable")]
    _, starts, sizes = np.unique(labels[order], return_index=True, return_counts=True)
    rank = np.arange(order.size) - np.repeat(starts, sizes)
    n_train = _count(train, sizes, at_least=1 if train else 0)
    n_val = _count(val, sizes, at_least=0)
    first, second = np.repeat(n_train, sizes), np.repeat(n_train + n_val, sizes)
    masks = np.zeros((3, labels.size), bool)
    for mask, chosen in zip(masks, (rank < first, (rank >= first) & (rank < second), rank >= second)):
        mask[order[chosen]] = True
    return tuple(masks)


def _count(amount, sizes, at_least):
    if isinstance(amount, float):
        return np.maximum(np.rint(amount * sizes).astype(np.int64), at_least)
    return np.full(sizes.size, min(amount, sizes.max(initial=0)), np.int64)


def random_task(rng, nodes, features, classes, train, val):
    require(features >= 1, "features", features, "at least 1")
    require(1 <= classes <= nodes, "classes", classes, "1 to nodes")
    x = rng.standard_normal((nodes, features), dtype=np.float32)
    labels = rng.integers(0, classes, nodes)
    return x, labels, *random_split(labels, train, val, rng)


def _pairs(edges):
    require(edges >= 0 and edges % 2 == 0, "edges", edges, "an even number: every edge is stored in both directions")
    return edges // 2


def _community_bounds(rng, nodes, smallest, largest):
    n_drawn = nodes // smallest + 1
    sizes = np.exp(rng.uniform(np.log(smallest), np.log(largest + 1), n_drawn)).astype(np.int64)
    ends = np.cumsum(np.clip(sizes, smallest, largest))
    return np.concatenate(([0], ends[ends < nodes], [nodes]))

"""Seeded random graphs: a classification task that needs the graph (`sbm`), and graphs of a wanted size and shape."""

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
from sarlite.types import Array

_MAX_NOISE = 1e30  # noise * normal must be a finite float32


class Generated(NamedTuple):
    """Generated data set of one node type: a graph, features, labels and splits.

    Attributes
    ----------
    indptr, indices : (n_nodes + 1,), (n_edges,) int
        CSR of the in-edges.
    features : (n_nodes, n_features) float32
    labels : (n_nodes,) int64
    train, val, test : (n_nodes,) bool
        Disjoint masks of the splits.
    n_classes : int
    """

    indptr: np.ndarray
    indices: np.ndarray
    features: np.ndarray
    labels: np.ndarray
    train: np.ndarray
    val: np.ndarray
    test: np.ndarray
    n_classes: int


def sbm(nodes: int = 10000, classes: int = 8, degree: float = 15.0, features: int = 64, homophily: float = 0.65,
        noise: float = 1.0, exponent: float = 3.0, train: float = 0.1, val: float = 0.2, seed: int = 0) -> Generated:
    """Draw a stochastic block model of mean `degree` whose features are a centre of the node's class plus normal noise of deviation
    `noise`. A share `homophily` of the edges joins nodes of one class; the degree distribution has tail exponent `exponent`.
    `train` and `val` are shares (float) or numbers of each class's nodes.

    One end of an edge is drawn in proportion to node weights. The other end is drawn in the same class with probability
    `homophily`, else in another class. Features are `centre[class] + noise * normal`. With the defaults a linear model
    of the features has a test accuracy of about 60 %, and of about 90 % with the neighbours' mean features.

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
        Share or number of training and validation nodes of each class; see `random_split`. All other nodes are test
        nodes.
    seed : int

    Returns
    -------
    Generated
        Symmetric graph without self loops and duplicates, with node ids in random order.

    Raises
    ------
    ConfigError
        An option is out of its range, or the graph cannot have so many edges.

    Notes
    -----
    The same options give the same arrays. Memory: 4 * nodes * features bytes, and about 50 bytes for each edge.

    References
    ----------
    Karrer and Newman 2011, "Stochastic blockmodels and community structure in networks".

    Examples
    --------
    >>> data = sbm(nodes=100, classes=4, degree=6.0, features=16, seed=1)
    >>> data.indices.shape, data.features.shape, data.n_classes
    ((600,), (100, 16), 4)
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


def rmat(nodes: int | None = None, edges: int | None = None, scale: int | None = None, a: float = 0.57, b: float = 0.19,
         c: float = 0.19, d: float | None = None, features: int = 64, classes: int = 8, train: float = 0.1,
         val: float = 0.2, seed: int = 0) -> Generated:
    """Draw an R-MAT graph of `nodes` (or 2^`scale`) nodes, with random features and labels. Each edge falls into a quadrant of the
    adjacency matrix with probabilities a, b, c and d, and again within the quadrant. `train` and `val` are shares (float) or
    numbers of each class's nodes.

    Parameters
    ----------
    nodes, scale : int
        Number of nodes, or its logarithm to base 2; pass one of the two.
    edges : int
        Number of directed edges, even; by default 16 * nodes.
    a, b, c, d : float
        Probabilities of the quadrants; by default d = 1 - a - b - c.
    features, classes, train, val, seed
        See `sbm`. Features and labels do not depend on the graph.

    Returns
    -------
    Generated
        Symmetric graph of exactly `edges` edges, without self loops and duplicates.

    Raises
    ------
    ConfigError
        An option is out of its range, or the graph cannot have so many edges.

    References
    ----------
    Chakrabarti, Zhan and Faloutsos 2004, "R-MAT: a recursive model for graph mining".
    """
    require((nodes is None) != (scale is None), "nodes and scale", (nodes, scale), "one of the two")
    require(scale is None or 1 <= scale <= 31, "scale", scale, "1 to 31")
    if nodes is None:
        assert scale is not None
        nodes = 1 << scale
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


def power_law(nodes: int = 100_000, edges: int = 5_000_000, exponent: float = 2.5, cap: float = 60, smallest: int = 200,
              largest: int = 4000, inside: float = 0.7, seed: int = 0) -> tuple[Array, Array]:
    """Return the CSR (indptr, indices) of a random Chung-Lu graph. Node weights have tail exponent `exponent` and are at most `cap`
    times their mean; a share `inside` of the edges joins nodes of one community of `smallest` to `largest` nodes.

    Parameters
    ----------
    nodes : int
    edges : int
        Number of directed edges, even.
    exponent : float
        Tail exponent of the weights, above 2.
    cap : float
        Largest weight, as a multiple of the mean weight.
    smallest, largest : int
        Range of community sizes, whose logarithms are uniform; the last community has the remaining nodes.
    inside : float
        Share of edges inside a community, 0 to 1.
    seed : int

    Returns
    -------
    indptr : (nodes + 1,) int64
    indices : (edges,) int32
        CSR of a symmetric graph without self loops and duplicates; the ids of a community's nodes are consecutive.

    Raises
    ------
    ConfigError
        An option is out of its range, or the graph cannot have so many edges.

    Notes
    -----
    With the defaults the minimum, median, 99th percentile and maximum of the degrees are about 6, 31, 350 and 2300.
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


def random_split(labels: Array, train: float, val: float, rng: int | np.random.Generator) -> tuple[Array, Array, Array]:
    """Return random disjoint masks (training, validation, test). `train` and `val` say how many nodes are drawn in each class of
    `labels`: a number if int, a share if float.

    Parameters
    ----------
    labels : (n_nodes,) integer array
        A node with a negative label is in no split.
    train, val : int or float
        Number of nodes of each class (int), or share of each class (float).
    rng : numpy.random.Generator or int
        Generator or seed.

    Returns
    -------
    train, val, test : (n_nodes,) bool
        Disjoint masks; labelled nodes that are neither in train nor in val are in test. If `train` is a share above 0,
        every class with a node has at least one training node.

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
    return masks[0], masks[1], masks[2]


def _count(amount: float, sizes: Array, at_least: int) -> Array:
    """Return the number of nodes to draw in each class, whose sizes are `sizes`: the number `amount` if it is an int, or that share
    of the size, but at least `at_least`, if it is a float.
    """
    if isinstance(amount, float):
        return np.maximum(np.rint(amount * sizes).astype(np.int64), at_least)
    return np.full(sizes.size, min(amount, sizes.max(initial=0)), np.int64)


def random_task(rng: np.random.Generator, nodes: int, features: int, classes: int, train: float,
                val: float) -> tuple[Array, Array, Array, Array, Array]:
    """Return (features, labels, training mask, validation mask, test mask), all random and independent of any graph. `train` and
    `val` are shares (float) or numbers of each class's nodes.
    """
    require(features >= 1, "features", features, "at least 1")
    require(1 <= classes <= nodes, "classes", classes, "1 to nodes")
    x = rng.standard_normal((nodes, features), dtype=np.float32)
    labels = rng.integers(0, classes, nodes)
    return x, labels, *random_split(labels, train, val, rng)


def _pairs(edges: int) -> int:
    """Return the number of undirected edges, half of the directed `edges`; raise a ConfigError if `edges` is odd."""
    require(edges >= 0 and edges % 2 == 0, "edges", edges, "an even number: every edge is stored in both directions")
    return edges // 2


def _community_bounds(rng: np.random.Generator, nodes: int, smallest: int, largest: int) -> Array:
    """Return the first node of each community, followed by the number of all nodes; sizes are random between `smallest` and
    `largest`, except for a smaller last community.
    """
    n_drawn = nodes // smallest + 1
    sizes = np.exp(rng.uniform(np.log(smallest), np.log(largest + 1), n_drawn)).astype(np.int64)
    ends = np.cumsum(np.clip(sizes, smallest, largest))
    return np.concatenate(([0], ends[ends < nodes], [nodes]))

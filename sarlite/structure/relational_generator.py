"""A generated graph of several node types with the proportions of ogbn-mag: papers, authors, institutions and fields."""

from typing import Any, NamedTuple

import numpy as np

from sarlite.structure.draw import generator, pick, power_law_weights, require, require_room, running_sums
from sarlite.structure.generate import random_split
from sarlite.types import Array

TYPES = {"paper": 0.38, "author": 0.585, "institution": 0.004, "field_of_study": 0.031}
"""Node type to its share of the nodes."""
RELATIONS = {("author", "writes", "paper"): 0.338, ("paper", "cites", "paper"): 0.257,
             ("paper", "has_topic", "field_of_study"): 0.355, ("author", "affiliated_with", "institution"): 0.05}
"""Relation to its share of the edges."""
TARGET = "paper"
_MAX_ROUNDS = 100


class Relational(NamedTuple):
    """Generated data set of several node types: edges by relation, features, labels and splits.

    Attributes
    ----------
    n_nodes : dict of str to int
        Number of nodes of each type.
    edges : dict of (source type, name, destination type) to (src, dst)
        Ends of the edges of each relation, followed by the reversed relations.
    features : dict of str to (n, n_features) float32
        Features of the node type `target`.
    target : str
        Node type with labels.
    labels : (n,) int64
        Labels of the nodes of type `target`.
    train, val, test : (n,) bool
        Disjoint masks of these nodes.
    n_classes : int
    task : {"classify", "multilabel", "regress"}
        Kind of the labels.
    edge_features : dict of relation to (n_edges, any) float32
        Features of the edges of some relations.
    class_names : list of str, optional
    """

    n_nodes: dict
    edges: dict
    features: dict
    target: str
    labels: np.ndarray
    train: np.ndarray
    val: np.ndarray
    test: np.ndarray
    n_classes: int
    task: str = "classify"
    edge_features: dict = {}
    class_names: list | None = None


def mag(nodes: int = 10000, edges: int | None = None, classes: int = 8, features: int = 64, homophily: float = 0.7,
        noise: float = 1.0, exponent: float = 2.5, train: float = 0.1, val: float = 0.2, seed: int = 0) -> "Relational":
    """Draw a graph of papers, authors, institutions and fields in the proportions of ogbn-mag, with `nodes` nodes in all. A share
    `homophily` of the edges joins nodes of one class; random node weights have tail exponent `exponent`. `train` and `val` are
    shares (float) or numbers of each class's papers.

    All nodes have a class. Both ends of an edge are drawn in proportion to node weights; with probability `homophily`
    the destination has the class of the source. Only papers have features, `centre[class] + noise * normal`, and
    labels. The classes of other types affect only the edges.

    Parameters
    ----------
    nodes : int
        Number of nodes of all types, divided as in ogbn-mag, with at least one node of each class and type.
    edges : int, optional
        Number of edges of all relations and their reverses, even, divided as in ogbn-mag; by default 26 * nodes.
    classes, features : int
        Number of classes; number of features of a paper.
    homophily : float
        Probability that an edge is drawn within a class, 0 to 1.
    noise : float
        Standard deviation of the noise of the features.
    exponent : float
        Tail exponent of the nodes' weights, above 2.
    train, val : float or int
        Share or number of training and validation papers of each class; see `generate.random_split`.
    seed : int

    Returns
    -------
    Relational
        Data set whose relations have no duplicate edges, with node ids in random order.

    Raises
    ------
    ConfigError
        An option is out of its range, or the graph cannot have so many edges.

    Notes
    -----
    The same options give the same arrays. Memory: 4 * features bytes for each paper, and about 50 bytes for each edge
    of the largest relation.
    """
    require(classes >= 1, "classes", classes, "at least 1")
    least = 4 * classes
    require(nodes >= least, "nodes", nodes, f"at least {least}, one of each of 4 types and {classes} classes")
    require(features >= 1, "features", features, "at least 1")
    require(0 <= homophily <= 1, "homophily", homophily, "0 to 1")
    require(0 <= noise < np.inf, "noise", noise, "at least 0")
    edges = 26 * nodes if edges is None else edges
    require(edges >= 0 and edges % 2 == 0, "edges", edges, "an even number: every relation has its reverse")
    require_room(nodes, edges, features)
    rng = generator(seed)
    n_nodes = {name: max(classes, round(share * nodes)) for name, share in TYPES.items()}
    sides = {name: _Side(rng, n, classes, exponent) for name, n in n_nodes.items()}
    drawn = {}
    for relation, share in RELATIONS.items():
        source, _, to = relation
        drawn[relation] = _draw(rng, sides[source], sides[to], round(share * (edges // 2)), homophily, relation)
    labels = sides[TARGET].labels
    centres = rng.standard_normal((classes, features)) * (1.9 / np.sqrt(features))
    x = rng.standard_normal((len(labels), features), dtype=np.float32) * np.float32(noise)
    x += centres.astype(np.float32)[labels]
    in_train, in_val, in_test = random_split(labels, train, val, rng)
    return Relational(n_nodes, with_reverses(drawn), {TARGET: x}, TARGET, labels, in_train, in_val, in_test, classes)


def with_reverses(edges: dict[Any, tuple[Array, Array]]) -> dict[Any, tuple[Array, Array]]:
    """Return {relation: (src, dst)} with the given edge lists, followed by each relation's reversed edges (dst, src)."""
    return {**edges, **{reverse(relation): (dst, src) for relation, (src, dst) in edges.items()}}


def reverse(relation: tuple[str, str, str]) -> tuple[str, str, str]:
    """Return (destination type, "rev_" + name, source type) for a relation (source type, name, destination type)."""
    source, name, to = relation
    return to, f"rev_{name}", source


class _Side:
    """Nodes of one type, from which the ends of edges are drawn: they are sorted by class, and have random weights, the running
    sums of these weights, and random ids.
    """

    def __init__(self, rng, n, classes, exponent):
        self.n, of = n, np.arange(n) * classes // n
        self.sums = running_sums(power_law_weights(rng, n, exponent, cap=60))
        self.classes, bounds = of, np.searchsorted(of, np.arange(classes + 1))
        self.low, self.high = self.sums[bounds[:-1]], self.sums[bounds[1:]]
        self.ids = rng.permutation(n)
        self.labels = np.empty(n, np.int64)
        self.labels[self.ids] = of


def _draw(rng: np.random.Generator, source: _Side, to: _Side, n_edges: int, homophily: float, relation: tuple[str, str,
          str]) -> tuple[Array, Array]:
    """Return (src, dst), the node ids of `n_edges` distinct random edges from nodes of `source` to nodes of `to`. With probability
    `homophily` both ends have the same class; errors name `relation`.
    """
    name, most = f"edges of {relation[1]}", source.n * to.n // 2
    require(n_edges <= most, name, n_edges, f"at most {most} for its nodes")
    keys = np.empty(0, np.int64)
    for _ in range(_MAX_ROUNDS):
        if keys.size >= n_edges:
            break
        size = int(1.2 * (n_edges - keys.size)) + 64
        u = pick(rng, source.sums, 0.0, source.sums[-1], size)
        same, of = rng.random(size) < homophily, source.classes[u]
        v = pick(rng, to.sums, np.where(same, to.low[of], 0.0), np.where(same, to.high[of], to.sums[-1]), size)
        keys = np.union1d(keys, u * to.n + v)
    require(keys.size >= n_edges, name, n_edges, f"about {keys.size} or fewer: so dense a relation was not found")
    keys = keys[np.sort(rng.permutation(keys.size)[:n_edges])]
    return source.ids[keys // to.n], to.ids[keys % to.n]

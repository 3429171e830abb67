"""A graph's edges as links to predict: divided into splits, with those to be predicted left out of its messages."""

from typing import Any, NamedTuple

import numpy as np

from sarlite.comm import agree, together
from sarlite.errors import ConfigError, number, raise_together, whole
from sarlite.graph.edges import destinations
from sarlite.graph.part import InEdges, owners
from sarlite.keys import key, splitmix64
from sarlite.minibatch.part_edges import share
from sarlite.nn import Random
from sarlite.nn.decoders import DECODERS, LinkPredictor
from sarlite.sar.graph.construct import make
from sarlite.sar.graph.graph import Graph
from sarlite.sar.graph.link_graph import LinkGraph
from sarlite.sar.schedule.schedule import Options
from sarlite.train.negatives import SAMPLERS, Negatives, RowNumbers
from sarlite.types import Array

TRAIN, VAL, TEST = range(3)


class LinkOptions(NamedTuple):
    """What a run makes of links.

    Attributes
    ----------
    decoder : str
        Of `nn.decoders.DECODERS`.
    width : int
        Numbers in a node's row, which the encoder makes.
    val, test, disjoint, negatives, eval_negatives, sampler
        As for `split_links`; None: 1 and "uniform", but for metrics of a link's rank 100 and "per-source".
    """

    decoder: str = "dot"
    width: int = 64
    val: float = 0.05
    test: float = 0.1
    disjoint: float = 0.0
    negatives: int = 1
    eval_negatives: int | None = None
    sampler: str | None = None

    def split(self, graph: Graph, metric: str | None, seed: int) -> "Links":
        """Return the links of a graph, to be judged by a metric of `METRICS`. Collective; raises as `split_links`."""
        n, sampler = (1, "uniform") if metric in (None, "roc-auc", "ap") else (100, "per-source")
        return split_links(graph, self.val, self.test, disjoint=self.disjoint, negatives=self.negatives,
                           eval_negatives=self.eval_negatives or n, sampler=self.sampler or sampler, seed=seed)

    def decoded(self, encoder: Any, rng: Random, dtype: str) -> LinkPredictor:
        """Return an encoder with the decoder behind it."""
        return LinkPredictor(encoder, DECODERS[self.decoder](self.width, rng=rng, dtype=np.dtype(dtype)))


class Links(NamedTuple):
    """What a `Trainer` takes of links: Trainer(links.graph, model, x, links.labels, links.train, links.val, links.test,
    task=Task("link"), ...), with model an `nn.LinkPredictor`.

    Attributes
    ----------
    graph : LinkGraph
        A row for each of this rank's links, of all splits: the link, and negatives. `graph.nodes` has the edges along
        which messages pass in evaluation. Training draws its own negatives each step.
    labels : (graph.n_dst,) int64
        Zeros: the column of the candidate that is a link.
    train, val, test : (k,) int64
        Which rows are of each split.
    heads, tails : (graph.n_dst,) int64
        Ids of the links' ends.
    undirected : bool
        Whether each edge's reverse is an edge, too: then both are one link.
    row_numbers : RowNumbers
        Of nodes by id.
    """

    graph: LinkGraph
    labels: Array
    train: Array
    val: Array
    test: Array
    heads: Array
    tails: Array
    undirected: bool
    row_numbers: RowNumbers


def split_links(graph: Graph, val: float = 0.05, test: float = 0.1, *, disjoint: float = 0.0, negatives: int = 1,
                eval_negatives: int = 1, sampler: str = "uniform", seed: int = 0) -> Links:
    """Divide a graph's edges into links to train, validate and test on, and leave the latter two out of its messages.

    Parameters
    ----------
    graph : Graph
        Whole, or this rank's part; ids are 0 .. n_nodes - 1. Neither bipartite nor with columns. Its values on edges
        stay with the edges.
    val, test : float
        The share of each. A link's split is drawn by the ids of its ends, so shares hold on average. Edges between the
        same two nodes, in either direction, are of one split, so that none tells of another. Self loops are no links.
    disjoint : float
        The share of training links that are trained on and bring no messages in training; the others bring messages
        alone. 0: each training link does both. In evaluation all training links bring messages.
    negatives, eval_negatives : int
        Negatives of each link, in training and in evaluation: pairs of nodes that are no training links, in evaluation no
        links at all. Evaluation's stay the same.
    sampler : {"uniform", "per-source"}
        Both ends of a negative are drawn uniformly of all nodes; or the tail, and the head is the link's.
    seed : int

    Returns
    -------
    Links

    Raises
    ------
    ConfigError
        On every rank: an argument is not what is said here.

    Notes
    -----
    Collective. Splits and negatives depend on the seed and on ids, so they are the same for any number of ranks and any
    division. Sends 24 bytes an edge. Memory: about 100 bytes an edge while it runs; then 24 a link, and 8 an edge.
    """
    comm = graph.comm
    arguments = together(comm, lambda: _checked(graph, val, test, disjoint, negatives, eval_negatives, sampler, seed))
    agree(comm, arguments, "val, test, disjoint, negatives, eval_negatives, sampler or seed")
    raise_together(comm, _odd_id(graph))
    with graph.profile.phase("setup"):
        return _split(graph, *arguments)


def _checked(graph, val, test, disjoint, negatives, eval_negatives, sampler, seed):
    if not isinstance(graph, Graph):
        raise ConfigError(f"links are of a Graph, but graph is a {type(graph).__name__}")
    if graph.bipartite or graph.grid is not None:
        raise ConfigError(f"links: {'bipartite graphs' if graph.bipartite else 'graphs with columns'} are not done yet")
    if graph.schedule.rows != "float32":
        raise ConfigError(f"links: graphs with rows {graph.schedule.rows} are not done yet")
    shares = [number(name, value, below=1) for name, value in (("val", val), ("test", test), ("disjoint", disjoint))]
    if shares[0] + shares[1] >= 1:
        raise ConfigError(f"val {val} and test {test} leave no links to train on")
    if sampler not in SAMPLERS:
        raise ConfigError(f"sampler {sampler!r} is not one of {', '.join(SAMPLERS)}")
    least = (("negatives", negatives, 1), ("eval_negatives", eval_negatives, 1), ("seed", seed, 0))
    return (*shares, *(whole(*given) for given in least), sampler)


def _odd_id(graph):
    wrong = graph.dst_ids[graph.dst_ids >= graph.n_nodes]
    return ConfigError(f"links: negatives are drawn of the ids 0 .. {graph.n_nodes - 1}, but a node has id {wrong[0]}") \
        if len(wrong) else None


def _split(graph, val, test, disjoint, negatives, eval_negatives, seed, sampler):
    n, ids, edges = graph.n_nodes, graph.dst_ids, graph.in_edges()
    ends = _ends(graph, edges)
    train, target = _messages(ends, seed, val, test, disjoint)
    messages = _with_edges(graph, edges, train)
    training = _with_edges(graph, edges, train & ~target) if disjoint else messages

    heads, tails, rows, undirected = _out_links(graph, edges, ends)
    split, target = _drawn(ids[heads], tails, seed, val, test, disjoint)
    known = heads * n + tails
    numbers = RowNumbers(graph.comm, ids)
    to_eval = Negatives(numbers, ids, known, sampler, seed, "link negatives of evaluation")
    to_train = Negatives(numbers, ids, known[split == TRAIN], sampler, seed, "link negatives")
    chosen = (split != TRAIN) | target
    if undirected:
        chosen &= (ids[heads] < tails) == _coin(ids[heads], tails, seed)
    heads, tails, rows, split = heads[chosen], tails[chosen], rows[chosen], split[chosen]

    def candidates(nodes, of, drawn, draw=None):
        first = heads[of] if sampler == "per-source" else \
            np.concatenate([heads[of, None] + to_train.offsets[graph.comm.rank], drawn[0]], 1)
        return LinkGraph(nodes, first, np.concatenate([rows[of, None], drawn[1]], 1), draw)

    def draw(step, of):
        return candidates(training, of, to_train(heads[of], tails[of], negatives, step))

    every = np.arange(len(heads))
    made = candidates(messages, every, to_eval(heads, tails, eval_negatives, 0), draw)
    return Links(made, np.zeros(len(heads), np.int64), *(np.flatnonzero(split == one) for one in (TRAIN, VAL, TEST)),
                 ids[heads], tails, undirected, numbers)


def without_links(graph: Graph, val: float, test: float, seed: int) -> Graph:
    """Return `split_links(graph, val, test, seed=seed).graph.nodes`, and make nothing else. Collective."""
    edges = graph.in_edges()
    return _with_edges(graph, edges, _messages(_ends(graph, edges), seed, val, test, 0.0)[0])


def _messages(ends, seed, val, test, disjoint):
    """Which edges bring messages in evaluation, and which of these are targets in training; self loops are none."""
    split, target = _drawn(*ends, seed, val, test, disjoint)
    loops = ends[0] == ends[1]
    return (split == TRAIN) | loops, target & ~loops


def _ends(graph, edges):
    """The ids of both ends of the local in-edges, in the order of the CSR."""
    sources = graph.with_edge_values().edge_src_ids  # kept by that copy alone
    return sources[_places(edges)], graph.dst_ids[destinations(edges.indptr)]


def _places(edges):
    """Where the values of the CSR's edges stand."""
    return slice(None) if edges.numbers is None else edges.numbers


def _variates(one, other, seed):
    """64 random bits for each pair of ids, in either order."""
    low, high = np.minimum(one, other).astype(np.uint64), np.maximum(one, other).astype(np.uint64)
    return splitmix64(splitmix64(low ^ np.uint64(key(seed, "links", "", 0, 0))) ^ high)


def _drawn(one, other, seed, val, test, disjoint):
    """Each pair's split, and whether it is a target if it is of training."""
    bits = _variates(one, other, seed)
    at = (bits >> np.uint64(11)) * 2.0**-53
    split = np.where(at < test, TEST, np.where(at < test + val, VAL, TRAIN))
    target = (splitmix64(bits) >> np.uint64(11)) * 2.0**-53 < (disjoint or 1)
    return split, target


def _coin(one, other, seed):
    return (_variates(one, other, seed) & np.uint64(1)).astype(bool)


def _with_edges(graph, edges, kept):
    """The graph of some of its edges. Collective."""
    there, rows = graph.schedule, destinations(edges.indptr)[kept]
    backward = "push" if there.reverse is None else "fetch" if there.reverses_attention else None
    options = Options(there.mode, there.transport.prefetch, backward)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=graph.n_dst))])
    places, part = _places(edges), InEdges(indptr, edges.indices[kept], added_loops=edges.added_loops)
    made = make(Graph, there.transport.comm, part, graph.dst_ids, None, graph.edge_ids[places][kept], None, options,
                graph.profile, graph.kept.state)
    made.mistakable, made.names = graph.mistakable, graph.names
    values = [None if array is None else array[places][kept] for array in (graph.edge_weight, graph.edge_features)]
    return made if all(array is None for array in values) else made.with_edge_values(*values)


def _out_links(graph, edges, ends):
    """The distinct edges from this rank's rows: heads as rows, tails as ids and as row numbers; and whether each
    edge's reverse is one, too. Collective."""
    comm, n = graph.comm, graph.n_nodes
    offsets = np.concatenate([[0], np.cumsum(comm.allgather(graph.n_dst))])
    first, no_loop = offsets[comm.rank], ends[0] != ends[1]
    rows = destinations(edges.indptr)[no_loop]
    found = np.stack([edges.indices[no_loop], ends[1][no_loop], rows + first], 1).astype(np.int64)
    owner = owners(found[:, 0], offsets)
    order = np.argsort(owner, kind="stable")
    found = np.concatenate(comm.alltoall(share(found[order], np.searchsorted(owner[order], np.arange(comm.size + 1)))))
    links, places = np.unique((found[:, 0] - first) * n + found[:, 1], return_index=True)
    same = np.array_equal(links, np.unique(rows * n + ends[0][no_loop]))
    return links // n, links % n, found[places, 2], all(comm.allgather(same))

"""A graph's edges as links to predict: divided into splits, with those to be predicted left out of its messages."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sarlite.comm import agree, together
from sarlite.comm.routing import send
from sarlite.errors import ConfigError, DataError, number, raise_together, whole
from sarlite.graph.edges import destinations
from sarlite.graph.part import InEdges, owners
from sarlite.keys import splitmix64
from sarlite.nn import Random
from sarlite.nn.decoders import DECODERS, LinkPredictor
from sarlite.sar.graph.construct import make
from sarlite.sar.graph.graph import Graph
from sarlite.sar.graph.link_graph import LinkGraph
from sarlite.sar.schedule.schedule import Options
from sarlite.train import link_splits
from sarlite.train.link_scores import read_pairs
from sarlite.train.link_splits import TEST, TRAIN, VAL, DrawnSplits, ToldSplits, uniform, variates
from sarlite.train.negatives import SAMPLERS, Candidates, Negatives, RowNumbers
from sarlite.types import Array


class LinkOptions(NamedTuple):
    """What a run makes of links.

    Attributes
    ----------
    decoder : str
        Of `nn.decoders.DECODERS`.
    width : int
        Numbers in a node's row, which the encoder makes.
    val, test : float or path
        As for `split_links`; a path names a file of pairs, as `link_scores.read_pairs` takes it, and a share beside a
        path is no link.
    split : str, optional
        A table that tells each edge's split or time, as of `link_splits.read`.
    disjoint, negatives, eval_negatives, filtered
        As for `split_links`; None: 1, but for metrics of a link's rank 100.
    sampler, eval_sampler : str, optional
        Of `SAMPLERS`, or a file of pairs, as `link_scores.read_pairs` takes it. None: "uniform", but for metrics of a
        link's rank "per-source"; in evaluation as in training where that draws of all nodes.
    """

    decoder: str = "dot"
    width: int = 64
    val: float | str = 0.05
    test: float | str = 0.1
    split: str | None = None
    disjoint: float = 0.0
    negatives: int = 1
    eval_negatives: int | None = None
    sampler: str | None = None
    eval_sampler: str | None = None
    filtered: bool = True

    def splits(self, graph: Graph, names: Any = None) -> tuple[Any, Any]:
        """Return `val` and `test` as `split_links` takes them: shares, or the pairs that files tell rank 0. Collective.

        Raises
        ------
        ConfigError, DataError
            On every rank: what `link_splits.read` says, whose `names` are rank 0's.
        """
        if self.split is None and not any(isinstance(given, str) for given in (self.val, self.test)):
            return self.val, self.test

        def read():
            if graph.comm.rank:
                return np.empty((0, 2), np.int64), np.empty(0, np.int64)
            return link_splits.read(self.val, self.test, self.split, graph.n_nodes, names)

        pairs, split = together(graph.comm, read)
        return pairs[split == VAL], pairs[split == TEST]

    def samplers(self, graph: Graph, metric: str | None, names: Any = None) -> list[Any]:
        """Return the samplers of training and of evaluation as `split_links` takes them, of the metric that judges.

        Collective.

        Raises
        ------
        ConfigError, DataError
            On every rank: one is no sampler and no file; what `read_pairs` says, whose `names` are rank 0's.
        """
        own = "uniform" if metric in (None, "roc-auc", "ap") else "per-source"
        to_train = self.sampler or own
        to_eval = self.eval_sampler or (to_train if to_train in SAMPLERS[:2] else own)

        def read(argument, one):
            if one in SAMPLERS:
                return one
            if not Path(one).exists():
                raise ConfigError(f"{argument} {one!r}: no such file, and none of {', '.join(SAMPLERS)}", argument)
            return read_pairs(one, graph.n_nodes, names) if graph.comm.rank == 0 else np.empty((0, 2), np.int64)

        return together(graph.comm, lambda: [read("negative_sampler", to_train), read("eval_negative_sampler", to_eval)])

    def of_graph(self, graph: Graph, splits: tuple[Any, Any], samplers: list[Any], metric: str | None,
                 seed: int) -> "Links":
        """Return the links of a graph, to be judged by a metric of `METRICS`. Collective; raises as `split_links`."""
        n = self.eval_negatives or (1 if metric in (None, "roc-auc", "ap") else 100)
        return split_links(graph, *splits, disjoint=self.disjoint, negatives=self.negatives, eval_negatives=n,
                           sampler=samplers[0], eval_sampler=samplers[1], filtered=self.filtered, seed=seed)

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


def split_links(graph: Graph, val: Any = 0.05, test: Any = 0.1, *, split: Any = None, disjoint: float = 0.0,
                negatives: int = 1, eval_negatives: int = 1, sampler: Any = "uniform", eval_sampler: Any = None,
                filtered: bool = True, seed: int = 0) -> Links:
    """Divide a graph's edges into links to train, validate and test on, and leave the latter two out of its messages.

    Parameters
    ----------
    graph : Graph
        Whole, or this rank's part; ids are 0 .. n_nodes - 1. Neither bipartite nor with columns. Its values on edges
        stay with the edges.
    val, test : float, or (k, 2) array of ids
        The share of each. A link's split is drawn by the ids of its ends, so shares hold on average. Edges between the
        same two nodes, in either direction, are of one split, so that none tells of another. Self loops are no links.
        Or the links of each, source and destination, each rank giving some of them: they are links also where they are
        no edges, and all other edges are to train on.
    split : (n_edges,) array of int, optional
        In place of `val` and `test`: 0 of an edge to train on, 1 to validate, 2 to test on, in the order of
        `graph.edge_ids`.
    disjoint : float
        The share of training links that are trained on and bring no messages in training; the others bring messages
        alone. 0: each training link does both. In evaluation all training links bring messages.
    negatives, eval_negatives : int
        Negatives of each link, in training and in evaluation: pairs of nodes that are no training links, in evaluation
        no links at all. Evaluation's stay the same.
    sampler : {"uniform", "per-source", "in-batch"}, or (k, 2) array of ids
        Both ends of a negative are drawn uniformly of all nodes. Or the head is the link's, and the tail is drawn of
        all nodes; of the tails of the step's links; or of those that hard pairs tell of the head, each rank giving some
        of the pairs: each once before one comes again, and of a head without pairs of all nodes.
    eval_sampler : as `sampler`, optional
        Of evaluation, whose one batch are the links of all splits; by default `sampler`.
    filtered : bool
        Whether evaluation's negatives are no links. Without, they may be.
    seed : int

    Returns
    -------
    Links

    Raises
    ------
    ConfigError
        On every rank: an argument is not what is said here.
    DataError
        On every rank: a listed node is none; edges between the same two nodes are of two splits.

    Notes
    -----
    Collective. Splits and negatives depend on the seed and on ids, so they are the same for any number of ranks and any
    division. Sends 24 bytes an edge. Memory: about 100 bytes an edge while it runs; then 24 a link, and 8 an edge.
    """
    comm = graph.comm
    arguments = together(comm, lambda: _checked(graph, disjoint, negatives, eval_negatives, seed, filtered))
    agree(comm, arguments, "disjoint, negatives, eval_negatives, seed or filtered")
    eval_sampler = sampler if eval_sampler is None else eval_sampler
    samplers = together(comm, lambda: [_sampler(graph, one) for one in (sampler, eval_sampler)])
    agree(comm, ["pairs" if isinstance(one, np.ndarray) else one for one in samplers], "sampler or eval_sampler")
    raise_together(comm, _odd_id(graph))
    told = together(comm, lambda: _checked_splits(graph, val, test, split))
    with graph.profile.phase("setup"):
        return _split(graph, _splits(graph, told, seed), *arguments, *samplers)


def _sampler(graph, given):
    if isinstance(given, str) and given not in SAMPLERS:
        raise ConfigError(f"sampler {given!r} is not one of {', '.join(SAMPLERS)}")
    return given if isinstance(given, str) else _pairs(graph, "sampler", given)


def _checked(graph, disjoint, negatives, eval_negatives, seed, filtered):
    if not isinstance(graph, Graph):
        raise ConfigError(f"links are of a Graph, but graph is a {type(graph).__name__}")
    if graph.bipartite or graph.grid is not None:
        raise ConfigError(f"links: {'bipartite graphs' if graph.bipartite else 'graphs with columns'} are not done yet")
    if graph.schedule.rows != "float32":
        raise ConfigError(f"links: graphs with rows {graph.schedule.rows} are not done yet")
    if not isinstance(filtered, bool):
        raise ConfigError(f"filtered is {filtered!r}, but must be True or False")
    least = (("negatives", negatives, 1), ("eval_negatives", eval_negatives, 1), ("seed", seed, 0))
    return (number("disjoint", disjoint, below=1), *(whole(*given) for given in least), filtered)


def _odd_id(graph):
    wrong = graph.dst_ids[graph.dst_ids >= graph.n_nodes]
    return ConfigError(f"links: negatives are drawn of the ids 0 .. {graph.n_nodes - 1}, but a node has id {wrong[0]}") \
        if len(wrong) else None


def _split(graph, split_of, disjoint, negatives, eval_negatives, seed, filtered, sampler, eval_sampler):
    n, ids, edges = graph.n_nodes, graph.dst_ids, graph.in_edges()
    ends, numbers = _ends(graph, edges), RowNumbers(graph.comm, ids)
    train, target = _messages(ends, split_of, seed, disjoint)
    messages = _with_edges(graph, edges, train)
    training = _with_edges(graph, edges, train & ~target) if disjoint else messages

    heads, tails, rows, undirected = _out_links(graph, edges, ends, split_of.listed()[0], numbers)
    split, target = split_of(ids[heads], tails), _targets(ids[heads], tails, seed, disjoint)
    known = heads * n + tails
    to_eval = Negatives(numbers, ids, known if filtered else known[:0], eval_sampler, seed,
                        "link negatives of evaluation")
    to_train = Negatives(numbers, ids, known[split == TRAIN], sampler, seed, "link negatives")
    chosen = (split != TRAIN) | target
    if undirected:
        chosen &= (ids[heads] < tails) == _coin(ids[heads], tails, seed)
    heads, tails, rows, split = heads[chosen], tails[chosen], rows[chosen], split[chosen]

    draw = Candidates(training, heads, tails, rows, to_train, negatives)
    pairs = Candidates(messages, heads, tails, rows, to_eval, eval_negatives).pairs(0, np.arange(len(heads)))
    made = LinkGraph(messages, *pairs, draw)
    return Links(made, np.zeros(len(heads), np.int64), *(np.flatnonzero(split == one) for one in (TRAIN, VAL, TEST)),
                 ids[heads], tails, undirected, numbers)


def without_links(graph: Graph, val: Any, test: Any, seed: int, split: Any = None) -> Graph:
    """Return `split_links(graph, val, test, seed=seed, split=split).graph.nodes`, and make nothing else. Collective."""
    edges = graph.in_edges()
    split_of = _splits(graph, together(graph.comm, lambda: _checked_splits(graph, val, test, split)), seed)
    return _with_edges(graph, edges, _messages(_ends(graph, edges), split_of, seed, 0.0)[0])


def known_links(graph: Graph, val: Any, test: Any, seed: int, split: Any = None) -> Array:
    """Return local row of the head * n_nodes + id of the tail of all links of all splits, ascending. Collective."""
    edges = graph.in_edges()
    split_of = _splits(graph, together(graph.comm, lambda: _checked_splits(graph, val, test, split)), seed)
    numbers = RowNumbers(graph.comm, graph.dst_ids)
    heads, tails, *_ = _out_links(graph, edges, _ends(graph, edges), split_of.listed()[0], numbers)
    return heads * graph.n_nodes + tails


def _checked_splits(graph, val, test, split):
    """Shares of both splits, or the pairs that this rank tells the splits of, and these."""
    if split is not None:
        found = np.asarray(split)
        whole_numbers = found.shape == (graph.n_edges,) and found.dtype.kind in "iu"
        if not whole_numbers or not np.isin(found, (TRAIN, VAL, TEST)).all():
            raise ConfigError(f"split is {found.dtype} {found.shape}, but must be one of 0 train, 1 val, 2 test for "
                              f"each of {graph.n_edges} edges, in the order of graph.edge_ids")
        return None, found
    if any(np.ndim(given) for given in (val, test)):
        pairs = [_pairs(graph, name, () if given is None or np.isscalar(given) and given == 0 else given)
                 for name, given in (("val", val), ("test", test))]
        return np.concatenate(pairs), np.repeat([VAL, TEST], [len(own) for own in pairs])
    shares = [number(name, value, below=1) for name, value in (("val", val), ("test", test))]
    if sum(shares) >= 1:
        raise ConfigError(f"val {val} and test {test} leave no links to train on")
    return shares


def _pairs(graph, name, given):
    found = np.asarray(given)
    if not found.size:
        return np.empty((0, 2), np.int64)
    if found.dtype.kind not in "iu" or found.ndim != 2 or found.shape[1] != 2:
        raise ConfigError(f"{name} is {found.dtype} {found.shape}, but pairs of ids, (n, 2), are needed here, or 0 for "
                          "none")
    bad = np.argwhere((found < 0) | (found >= graph.n_nodes))
    if len(bad):
        raise DataError(f"{name}: pair {bad[0, 0]} has node {found[tuple(bad[0])]}, outside 0 <= node < "
                        f"{graph.n_nodes}")
    return found.astype(np.int64)


def _splits(graph, told, seed):
    """What tells the split of pairs of ids, of what `_checked_splits` returned. Collective."""
    one, other = told
    listed = one is None or bool(np.ndim(one))
    if len(set(graph.comm.allgather(listed))) > 1:
        raise ConfigError("val, test or split: shares on one rank, and pairs on another")
    if not listed:
        agree(graph.comm, (one, other), "val or test")
        return DrawnSplits(one, other, seed)
    if one is None:
        edges = graph.in_edges()
        one, other = np.stack(_ends(graph, edges), 1), other[_places(edges)]
    return ToldSplits(graph.comm, graph.n_nodes, one, other.astype(np.int64))


def _messages(ends, split_of, seed, disjoint):
    """Which edges bring messages in evaluation, and which of these are targets in training; self loops are none."""
    loops = ends[0] == ends[1]
    return (split_of(*ends) == TRAIN) | loops, _targets(*ends, seed, disjoint) & ~loops


def _ends(graph, edges):
    """The ids of both ends of the local in-edges, in the order of the CSR."""
    sources = graph.with_edge_values().edge_src_ids  # kept by that copy alone
    return sources[_places(edges)], graph.dst_ids[destinations(edges.indptr)]


def _places(edges):
    """Where the values of the CSR's edges stand."""
    return slice(None) if edges.numbers is None else edges.numbers


def _targets(one, other, seed, disjoint):
    """Whether each pair is a target if it is of training."""
    return uniform(splitmix64(variates(one, other, seed))) < (disjoint or 1)


def _coin(one, other, seed):
    return (variates(one, other, seed) & np.uint64(1)).astype(bool)


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


def _out_links(graph, edges, ends, listed, numbers):
    """The distinct links from this rank's rows, edges and listed pairs: heads as rows, tails as ids and as row numbers;
    and whether each edge's reverse is one, too. Collective."""
    comm, n = graph.comm, graph.n_nodes
    offsets = np.concatenate([[0], np.cumsum(comm.allgather(graph.n_dst))])
    first, no_loop = offsets[comm.rank], ends[0] != ends[1]
    rows = destinations(edges.indptr)[no_loop]
    found = np.stack([edges.indices[no_loop], ends[1][no_loop], rows + first], 1).astype(np.int64)
    found = _to_heads(comm, offsets, found)
    same = np.array_equal(np.unique(found[:, 0] * n + found[:, 1]), np.unique(rows * n + ends[0][no_loop]))
    undirected, listed_rows = all(comm.allgather(same)), numbers(listed)
    more = np.stack([listed_rows[:, 0], listed[:, 1], listed_rows[:, 1]], 1)
    if undirected:
        more = np.concatenate([more, np.stack([listed_rows[:, 1], listed[:, 0], listed_rows[:, 0]], 1)])
    found = np.concatenate([found, _to_heads(comm, offsets, more)])
    links, places = np.unique(found[:, 0] * n + found[:, 1], return_index=True)
    return links // n, links % n, found[places, 2], undirected


def _to_heads(comm, offsets, found):
    """Send rows to the owners of the row numbers in their first column, which become local there. Collective."""
    found = send(comm, owners(found[:, 0], offsets), found)
    found[:, 0] -= offsets[comm.rank]
    return found

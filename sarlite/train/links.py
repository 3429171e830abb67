"""A graph's edges as links to predict: divided into splits, with those to be predicted left out of its messages."""

from typing import Any, NamedTuple

import numpy as np

from sarlite.comm import agree, together
from sarlite.comm.routing import send
from sarlite.errors import ConfigError, DataError, number, raise_together, whole
from sarlite.graph.edges import destinations
from sarlite.graph.part import InEdges, owners
from sarlite.keys import splitmix64
from sarlite.sar.graph.construct import make
from sarlite.sar.graph.graph import Graph
from sarlite.sar.graph.link_graph import LinkGraph
from sarlite.sar.schedule.schedule import Options
from sarlite.train.link_splits import TEST, TRAIN, VAL, DrawnSplits, ToldSplits, uniform, variates
from sarlite.train.negatives import SAMPLERS, Candidates, Negatives, RowNumbers
from sarlite.types import Array


class Links(NamedTuple):
    """What a `Trainer` takes of links: Trainer(links.graph, model, x, links.labels, links.train, links.val, links.test,
    task=Task("link"), ...), with model an `nn.LinkPredictor`.

    Attributes
    ----------
    graph : LinkGraph
        A row for each of this rank's links, of all splits: the link, and negatives. `graph.nodes` has the edges along
        which messages pass in evaluation. Training draws its own negatives each step.
    labels : (graph.n_dst, ...) array
        Zeros, (graph.n_dst,) int64: the column of the candidate that is a link; or what the links are labelled with.
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


def labelled_links(graph: Graph, pairs: Any, labels: Any, val: float = 0.05, test: float = 0.1, *, split: Any = None,
                   seed: int = 0) -> Links:
    """Divide labelled links into those to train, validate and test on. All edges of the graph bring messages.

    Parameters
    ----------
    graph : Graph
        As for `split_links`.
    pairs : (k, 2) array of ids
        Sources and destinations, each rank giving some. A pair may be there several times, and need not be an edge.
    labels : (k,) or (k, n) array
        What a `Task` takes: classes from 0; 0 or 1 of each label; numbers. Of one dtype and width on every rank.
    val, test : float
        The share of each, drawn by the ids of a pair's ends, in either order, so shares hold on average.
    split : (k,) array of int, optional
        In place of `val` and `test`: 0 of a pair to train on, 1 to validate, 2 to test on.
    seed : int

    Returns
    -------
    Links
        `Trainer(links.graph, model, x, links.labels, links.train, ..., task=Task("classify"))` takes it, with model an
        `nn.LinkPredictor` whose decoder was made with as many outputs as there are classes, labels or values.

    Raises
    ------
    ConfigError
        On every rank: an argument is not what is said here.

    Notes
    -----
    Collective. Sends 40 bytes a pair, and its label, once. Memory: then 24 bytes a pair, and the labels.
    """
    comm = graph.comm
    told = together(comm, lambda: _checked_labels(graph, pairs, labels, val, test, split, seed))
    agree(comm, (told[2] is None, told[1].dtype.str, told[1].shape[1:], val, test, seed), "labels, val, test, split or seed")
    raise_together(comm, _odd_id(graph))
    pairs, labels, split = told
    with graph.profile.phase("setup"):
        numbers = RowNumbers(comm, graph.dst_ids)
        offsets = np.concatenate([[0], np.cumsum(comm.allgather(graph.n_dst))])
        split = DrawnSplits(val, test, seed)(*pairs.T) if split is None else split
        rows = numbers(pairs)
        owner = owners(rows[:, 0], offsets)
        heads, tails, tail_rows, split = send(comm, owner, np.stack([rows[:, 0], pairs[:, 1], rows[:, 1], split], 1)).T
        labels, heads = send(comm, owner, labels), heads - offsets[comm.rank]
        made = LinkGraph(graph, heads, tail_rows[:, None], Candidates(graph, heads, tails, tail_rows))
    of = [np.flatnonzero(split == one) for one in (TRAIN, VAL, TEST)]
    return Links(made, labels, of[TRAIN], of[VAL], of[TEST], graph.dst_ids[heads], tails, False, numbers)


def _checked_labels(graph, pairs, labels, val, test, split, seed):
    _checked_graph(graph)
    whole("seed", seed, 0)
    pairs, labels = _pairs(graph, "pairs", pairs), np.asarray(labels)
    if labels.ndim not in (1, 2) or labels.dtype.kind not in "iufb":
        raise ConfigError(f"labels are {labels.dtype} {labels.shape}, but must be numbers, (k,) or (k, n)")
    if split is None:
        _checked_splits(graph, val, test, None)
    else:
        split = np.asarray(split)
    for name, given in (("labels", labels), ("split", split)):
        if given is not None and len(given) != len(pairs):
            raise ConfigError(f"{name}: {len(given)} for {len(pairs)} pairs")
    if split is not None and (split.ndim != 1 or split.dtype.kind not in "iu" or not np.isin(split, (TRAIN, VAL, TEST)).all()):
        raise ConfigError(f"split is {split.dtype} {split.shape}, but must be one of 0 train, 1 val, 2 test for each pair")
    return pairs, labels, None if split is None else split.astype(np.int64)


def _sampler(graph, given):
    if isinstance(given, str) and given not in SAMPLERS:
        raise ConfigError(f"sampler {given!r} is not one of {', '.join(SAMPLERS)}")
    return given if isinstance(given, str) else _pairs(graph, "sampler", given)


def _checked_graph(graph):
    if not isinstance(graph, Graph):
        raise ConfigError(f"links are of a Graph, but graph is a {type(graph).__name__}")
    if graph.bipartite or graph.grid is not None:
        raise ConfigError(f"links: {'bipartite graphs' if graph.bipartite else 'graphs with columns'} are not done yet")
    if graph.schedule.rows != "float32":
        raise ConfigError(f"links: graphs with rows {graph.schedule.rows} are not done yet")


def _checked(graph, disjoint, negatives, eval_negatives, seed, filtered):
    _checked_graph(graph)
    if not isinstance(filtered, bool):
        raise ConfigError(f"filtered is {filtered!r}, but must be True or False")
    least = (("negatives", negatives, 1), ("eval_negatives", eval_negatives, 1), ("seed", seed, 0))
    return (number("disjoint", disjoint, below=1), *(whole(*given) for given in least), filtered)


def _odd_id(graph):
    wrong = graph.dst_ids[graph.dst_ids >= graph.n_nodes]
    return ConfigError(f"links: ids must be 0 .. {graph.n_nodes - 1}, but a node has id {wrong[0]}") \
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

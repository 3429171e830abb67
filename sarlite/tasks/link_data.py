"""Division of a graph's edges, or of labelled node pairs, into training, validation and test links for a `Trainer`.

No message passes along validation and test links.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sarlite.comm import agree, together
from sarlite.comm.routing import send
from sarlite.errors import ConfigError, DataError, check_int, check_number, raise_together
from sarlite.graph.graph import Graph
from sarlite.graph.hetero import HeteroGraph, NodeType, Relation
from sarlite.graph.link_graph import LinkGraph, NodeRows
from sarlite.graph.weights import check_times
from sarlite.keys import splitmix64
from sarlite.structure.part_edges_csr import among, owners
from sarlite.tasks.link_edges import Ends, Linked, LinkEdges, link_edges, linked, out_links
from sarlite.tasks.link_splits import NAMES, TEST, TRAIN, VAL, DrawnSplits, ListedSplits, uniform, variates
from sarlite.tasks.negatives import AT_ONCE, SAMPLERS, Candidates, Negatives, RowNumbers
from sarlite.tasks.ranking import Ranking
from sarlite.tasks.time_split import FirstTimes, TimeSplit
from sarlite.types import Array, ArrayLike

LinkChoice = TimeSplit | ArrayLike | Mapping[Relation, ArrayLike] | None
"""A share, pairs of ids or a split by time; pairs by relation for links of several relations."""

EdgeSplit = ArrayLike | Mapping[Relation, ArrayLike] | None
"""The split of each edge, 0, 1 or 2; by relation for links of several relations."""

LinkSampling = str | ArrayLike | Mapping[Relation, str | ArrayLike]
"""Name of a sampler, or hard negatives as pairs of ids; by relation for links of several relations."""


class Links(NamedTuple):
    """Links to predict, with their targets and the row numbers of each split: result of `split_links` and `labelled_links`.

    A `Trainer` takes them as arguments:

        Trainer(links.graph, model, x, links.labels, links.train, links.val, links.test, task=LinkTask(), ...)

    The model is an `nn.LinkPredictor`.

    Parameters
    ----------
    graph : LinkGraph
        Graph with one row for each of this rank's links of all splits: the link and its negatives. `graph.nodes` has the
        edges along which messages pass in evaluation. Training draws new negatives in each step. `graph.relations` has
        the index of each link's relation, if there are several relations.
    labels : (graph.n_dst, ...) array
        Labels of the links. For link prediction zeros, (graph.n_dst,) int64: the column of the link among its candidates.
    train, val, test : (k,) int64
        Row numbers of each split.
    heads, tails : (graph.n_dst,) int64
        Ids of the links' ends, as in `graph.nodes.dst_ids`.
    undirected : bool
        True if the reverse of each edge is an edge, in all relations; an edge and its reverse are then one link. False
        without edges.
    times : (graph.n_dst,) int64, or None
        Time of each link: the time of the first edge between its ends, in either direction.

    Examples
    --------
    Each of two ranks has the links of its own nodes; messages pass only along the training links:

    >>> import numpy as np
    >>> from sarlite import Graph
    >>> from sarlite.comm import threads
    >>> from sarlite.tasks.link_data import split_links
    >>> ring = np.arange(10)
    >>> def links_of_rank(comm):
    ...     graph = Graph.from_edges(ring, (ring + 1) % 10).shard(comm, parts="contiguous")
    ...     links = split_links(graph, val=[[0, 1]], test=[[5, 6]])
    ...     return links.heads.tolist(), links.train.tolist(), links.val.tolist(), links.test.tolist(), links.graph.nodes.n_edges
    >>> threads.run(2, links_of_rank)
    [([0, 1, 2, 3, 4], [1, 2, 3, 4], [0], [], 4), ([5, 6, 7, 8, 9], [1, 2, 3, 4], [], [0], 4)]
    """

    graph: LinkGraph
    labels: Array
    train: Array
    val: Array
    test: Array
    heads: Array
    tails: Array
    undirected: bool
    times: Array | None = None


def split_links(graph: Graph | HeteroGraph, val: LinkChoice = 0.05, test: LinkChoice = 0.1, *,
                relation: Relation | list[Relation] | None = None, split: EdgeSplit = None, disjoint: float = 0.0,
                negatives: int = 1, eval_negatives: int | str = 1, sampler: LinkSampling = "uniform",
                eval_sampler: LinkSampling | None = None, filtered: bool = True, seed: int = 0) -> Links:
    """Divide a graph's edges into training, validation and test links, by `val` and `test` (shares, node pairs, or a time) or by the code
    of each edge in `split` (0 train, 1 val, 2 test); `relation` chooses the edge types. Draw `negatives` or, in evaluation,
    `eval_negatives` node pairs without a link for each link. Return `Links`. Collective.

    Messages pass only along training links and self loops.

    Parameters
    ----------
    graph : Graph or HeteroGraph
        A whole graph, or this rank's part, with ids 0 .. n_nodes - 1. Not bipartite. Edge values stay with their edges.
    val, test : float, (k, 2) array of ids, or for `val` a TimeSplit
        Shares of the validation and test links. The split of a link is drawn from the ids of its ends, so the shares hold
        on average. Edges between the same two nodes, in either direction, are in one split, so that no edge reveals
        another. Self loops are not links. Arrays list the pairs (source, destination) of each split, and each rank passes
        some of the pairs. A listed pair is a link even if it is not an edge, and all other edges are training links. With
        a `TimeSplit`, the time of the first edge between two nodes, in either direction, decides the split, and `test` is
        ignored.
    relation : (source type, name, destination type), or list of such, optional
        Relation of a `HeteroGraph` whose edges are the links; by default the only relation. Ids of pairs then count
        within the node types. If no message passes along a link, none passes along its reverse, in all relations from the
        destination type to the source type. With a list, links of several relations are predicted: the decoder is made
        with n_out, the number of relations, and arrays of `val`, `test`, `split` and `sampler` are dicts by relation.
    split : (n_edges,) array of int, optional
        In place of `val` and `test`: 0 for a training edge, 1 for validation, 2 for test, in the order of
        `graph.edge_ids`.
    disjoint : float
        Share of the training links that are only targets in training. Messages pass only along the other training links,
        which are not targets. With 0, each training link is a target, and messages pass along it. In evaluation messages
        pass along all training links.
    negatives, eval_negatives : int, or for `eval_negatives` "all"
        Number of negatives of each link, in training and in evaluation. Negatives in training are pairs that are not
        training links; negatives in evaluation are pairs that are not links, the same in every evaluation. A link whose
        source is linked to all destinations has no negatives, and is left out of all splits with a warning, unless the
        sampler is "uniform". With "all", validation and test links are ranked among all destinations (`graph.ranking`),
        and the validation loss has `negatives` negatives.
    sampler : {"uniform", "per-source", "in-batch"}, or (k, 2) array of ids
        "uniform" draws both ends of a negative from all nodes. The other samplers keep the head of the link: "per-source"
        draws the tail from all nodes, "in-batch" from the tails of the step's links. An array lists hard negatives, and
        each rank passes some of the pairs. The tails listed for a head are used in turn. A head without listed tails
        draws from all nodes.
    eval_sampler : optional
        Sampler of evaluation, with the values of `sampler`; by default `sampler`. "in-batch" draws from the links of all
        splits.
    filtered : bool
        True if negatives of evaluation must not be links.
    seed : int
        Seed of splits and negatives.

    Returns
    -------
    Links

    Raises
    ------
    ConfigError
        On every rank: an argument is wrong.
    DataError
        On every rank: a listed node does not exist, or edges between the same two nodes are in two splits.

    Notes
    -----
    Splits and negatives depend on the seed and on ids, so they are the same for any number of ranks and any division.
    Bytes sent: at most 40 for each edge, and the messages of drawing negatives. Memory: about 160 bytes for each edge
    during the call, and about 65 afterwards with one negative for each link.

    Examples
    --------
    >>> from sarlite import Graph
    >>> from sarlite.tasks.link_data import split_links
    >>> graph = Graph.from_edges([0, 1, 2, 3, 0], [1, 2, 3, 4, 4], 5)
    >>> links = split_links(graph, val=[[0, 1]], test=[[2, 3]], negatives=2, eval_negatives=2)
    >>> links.graph.n_dst, links.graph.n_candidates, links.graph.nodes.n_edges
    (5, 3, 3)
    >>> len(links.train), len(links.val), len(links.test)
    (3, 1, 1)
    """
    comm = graph.comm
    of = together(comm, lambda: linked(graph, relation))
    arguments = together(comm, lambda: _checked_options(disjoint, negatives, eval_negatives, seed, filtered))
    agree(comm, (relation, *arguments), "relation, disjoint, negatives, eval_negatives, seed or filtered")
    eval_sampler = sampler if eval_sampler is None else eval_sampler
    samplers = together(comm, lambda: [[_checked_sampler(ends, _of_relation(one, of, at)) for one in (sampler, eval_sampler)]
                                       for at, ends in enumerate(of.ends)])
    agree(comm, ["pairs" if isinstance(one, np.ndarray) else one for both in samplers for one in both],
          "sampler or eval_sampler")
    raise_together(comm, _id_error(of.nodes))
    with graph.profile.phase("setup"):
        link_sets, splits = _edges_and_splits(of, val, test, seed, split)
        return _make_links(link_sets, splits, of.several, samplers, *arguments)


def labelled_links(graph: Graph | HeteroGraph, pairs: Any, labels: Any, val: float = 0.05, test: float = 0.1, *,
                   relation: Relation | None = None, split: Any = None, seed: int = 0, times: ArrayLike | None = None) -> Links:
    """Make `Links` of the (source id, destination id) `pairs` between nodes of `relation`, with the targets `labels`. `split` has the split
    code of each pair (0 train, 1 val, 2 test); if it is None, random shares `val` and `test` of the pairs are for validation and test.
    Collective.

    Messages pass along all edges of the graph.

    Parameters
    ----------
    graph : Graph or HeteroGraph
        See `split_links`.
    pairs : (k, 2) array of ids
        Sources and destinations; each rank passes some of the pairs. A pair may occur several times, and need not be an
        edge.
    labels : (k,) or (k, n) array
        Targets of an `EdgeTask`: classes from 0, labels of 0 or 1, or numbers. The dtype and width are the same on every
        rank.
    val, test : float
        Shares of the pairs. The split of a pair is drawn from the ids of its ends, in either order, so the shares hold on
        average.
    relation : (source type, name, destination type), optional
        Relation of a `HeteroGraph`; by default the only relation. Ids of pairs count within the node types of the
        relation.
    split : (k,) array of int, optional
        In place of `val` and `test`: 0 for a training pair, 1 for validation, 2 for test.
    seed : int
        Seed of the splits.
    times : (k,) array of int, optional
        Time of each pair.

    Returns
    -------
    Links
        Arguments of `Trainer(links.graph, model, x, links.labels, links.train, ..., task=EdgeTask("classify"))`. The
        model is an `nn.LinkPredictor` whose decoder has one output for each class, label or value. Links are sorted by
        head row, tail, split, time and labels.

    Raises
    ------
    ConfigError
        On every rank: an argument is wrong.

    Notes
    -----
    Bytes sent: at most 64 for each pair, and its label. Memory: about 150 bytes for each pair during the call, and about
    65 and the labels afterwards.

    Examples
    --------
    >>> from sarlite import Graph
    >>> from sarlite.tasks.link_data import labelled_links
    >>> graph = Graph.from_edges([0, 1, 2], [1, 2, 0], 3)
    >>> links = labelled_links(graph, [[0, 1], [1, 2], [2, 0]], [1, 0, 1], split=[0, 0, 1])
    >>> links.heads.tolist(), links.tails.tolist(), links.labels.tolist(), links.train.tolist()
    ([0, 1, 2], [1, 2, 0], [1, 0, 1], [0, 1])
    """
    comm = graph.comm
    of = together(comm, lambda: linked(graph, relation))
    checked = together(comm, lambda: (*_checked_labels(of, pairs, labels, val, test, split, seed),
                                   check_times("times", times, len(pairs))))
    said = (relation, checked[2] is None, checked[1].dtype.str, checked[1].shape[1:], val, test, seed, checked[3] is None)
    agree(comm, said, "relation, labels, val, test, split, seed or times")
    (pairs, labels, split, of_pairs), nodes = checked, of.nodes
    raise_together(comm, _id_error(nodes))
    with graph.profile.phase("setup"):
        numbers = RowNumbers(comm, nodes.dst_ids)
        offsets = np.concatenate([[0], np.cumsum(comm.allgather(nodes.n_dst))])
        split = DrawnSplits(val, test, seed)(*pairs.T) if split is None else split
        rows = numbers(pairs)
        owner = owners(rows[:, 0], offsets)
        columns = rows[:, 0], pairs[:, 1], rows[:, 1], split, np.zeros(len(rows), np.int64) if of_pairs is None else of_pairs
        heads, tails, tail_rows, split, own_times = send(comm, owner, np.stack(columns, 1)).T
        labels, heads = send(comm, owner, labels), heads - offsets[comm.rank]
        # sorted, so that the order does not depend on the rank that passed a pair
        order = np.lexsort((*np.atleast_2d(labels.T), own_times, split, tails, heads))
        heads, tails, tail_rows, split, labels, own_times = (
            array[order] for array in (heads, tails, tail_rows, split, labels, own_times))
        link_graph = LinkGraph(nodes, heads, tail_rows[:, None], Candidates(nodes, heads, tails, tail_rows), at_once=AT_ONCE)
    return Links(link_graph, labels, heads=nodes.dst_ids[heads], tails=tails, undirected=False,
                 times=None if of_pairs is None else own_times, **_rows_by_split(split))


def _checked_labels(linked_graph: Linked, pairs: ArrayLike, labels: ArrayLike, val: float, test: float,
                    split: ArrayLike | None, seed: int) -> tuple[Array, Array, Array | None]:
    """Check arguments of the public function `labelled_links`, which have the same names; `linked_graph` has the graph and the one relation
    that the pairs belong to. Return (pairs of ids that are unique over all node types, labels, split codes or None) as arrays. If `split`
    is None, check the shares `val` and `test` instead.
    """
    if linked_graph.several:
        raise ConfigError("relation: labelled pairs must be of one relation", "relation")
    check_int("seed", seed, 0)
    pairs, labels = _checked_pairs(linked_graph.ends[0], "pairs", pairs), np.asarray(labels)
    if labels.ndim not in (1, 2) or labels.dtype.kind not in "iufb":
        raise ConfigError(f"labels are {labels.dtype} {labels.shape}, but must be numbers, (k,) or (k, n)")
    if split is None:
        _checked_shares(val, test)
    else:
        split = _checked_codes(split, len(pairs), "pairs")
    if len(labels) != len(pairs):
        raise ConfigError(f"labels: {len(labels)} for {len(pairs)} pairs")
    return pairs, labels, split


def _checked_codes(split: ArrayLike, n_items: int, item_name: str) -> Array:
    """Return the split codes `split` as (n_items,) int64; raise a ConfigError unless they are 0 train, 1 val or 2 test, one for each item.
    `item_name` is the word for the items in the error.
    """
    codes = np.asarray(split)
    if codes.shape != (n_items,) or codes.dtype.kind not in "iu" or not np.isin(codes, (TRAIN, VAL, TEST)).all():
        raise ConfigError(f"split is {codes.dtype} {codes.shape}, but must be 0 train, 1 val or 2 test for each "
                          f"of {n_items} {item_name}")
    return codes.astype(np.int64)


def without_links(of: Linked, val: LinkChoice, test: LinkChoice, seed: int,
                  split: EdgeSplit = None) -> Graph | NodeType:
    """Return the graph of `of` (a graph and its relations to predict) without the edges that join two ends of a validation or test link, so
    that an encoder does not see these links. The links are those that `split_links` chooses with the same `val`, `test`, `seed` and
    `split`. Collective.

    The graph is `split_links(...).graph.nodes`, but no links and no negatives are made.

    Parameters
    ----------
    of : Linked
        Graph and relations of `split_links`.
    val, test, seed, split
        Arguments of `split_links`.
    """
    link_sets, splits = _edges_and_splits(of, val, test, seed, split)
    knowns = [_link_keys(edges, split_of) if edges.others else np.empty(0, np.int64)
              for edges, split_of in zip(link_sets, splits)]
    messages, _ = _edge_masks(link_sets, splits, knowns, seed, 0.0)
    return link_sets[0].subgraph(messages)


def known_links(of: Linked, val: LinkChoice, test: LinkChoice, seed: int, split: EdgeSplit = None) -> list[Array]:
    """Return a list with the keys of all links, of every split, whose head this rank owns: for each predicted relation in `of` an ascending
    int64 array. A key is (local row of the head) * n_nodes + (id of the tail). The links are those that `split_links` makes with the same
    `val`, `test`, `seed` and `split`. Collective.

    Parameters
    ----------
    of : Linked
        Graph and relations of `split_links`.
    val, test, seed, split
        Arguments of `split_links`.

    Returns
    -------
    list of (m,) int64
        Key (local row of the head) * n_nodes + (id of the tail) of each link, ascending. Rows, ids and n_nodes are those
        of `of.nodes`.
    """
    return [_link_keys(*one) for one in zip(*_edges_and_splits(of, val, test, seed, split))]


def _edges_and_splits(linked_graph: Linked, val: LinkChoice, test: LinkChoice, seed: int,
                      split: EdgeSplit) -> tuple[list[LinkEdges], list[Any]]:
    """Return two lists with an entry for each relation that is predicted in `linked_graph`: first the relation's edges (`LinkEdges`); then
    a function (head ids, tail ids) -> split codes (0 train, 1 val, 2 test). `val`, `test`, `seed` and `split` decide the splits, as in
    `split_links`. Collective.
    """
    link_sets, arguments = link_edges(linked_graph), (val, test, split)
    checked = together(linked_graph.graph.comm, lambda: [
        _split_source(edges, *(_of_relation(one, linked_graph, at) for one in arguments)) for at, edges in enumerate(link_sets)])
    return link_sets, [_split_function(edges, checked_splits, seed) for edges, checked_splits in zip(link_sets, checked)]


def _of_relation(value: Any, linked_graph: Linked, relation_index: int) -> Any:
    """Return the part of the argument `value`, such as `val`, that is for one relation: number `relation_index` of the predicted relations
    in `linked_graph`. A dict has an entry by relation, and no entry means no pairs; any other `value` is for each relation.
    """
    if not isinstance(value, dict):
        if linked_graph.several and np.ndim(value):
            raise ConfigError("several relations: pairs and splits must be dicts by relation")
        return value
    several = linked_graph.relations if linked_graph.several else []
    wrong = [one for one in value if one not in several]
    if wrong:
        raise ConfigError(f"pairs and splits by relation: {wrong[0]!r} is not one of {several}")
    return value.get(several[relation_index], np.empty((0, 2), np.int64))


def _link_keys(edges: LinkEdges, splits: Any) -> Array:
    """Return the keys, (local row of the head) * n_nodes + (id of the tail), of all links whose head this rank owns, ascending. The links
    are the edges `edges` and, even if they are no edges, the node pairs that the split function `splits` lists. Collective.
    """
    heads, tails, *_ = out_links(edges, splits.listed()[0], RowNumbers(edges.nodes.comm, edges.nodes.dst_ids))
    return heads * edges.nodes.n_nodes + tails


def _checked_sampler(ends: Sequence[Ends], sampler: str | ArrayLike) -> str | Array:
    """Check a sampler of negatives. Return a name such as "uniform" unchanged; return a list of (head, tail) id pairs of the node types
    `ends` with ids that are unique over all types, (n, 2).
    """
    if isinstance(sampler, str) and sampler not in SAMPLERS:
        raise ConfigError(f"sampler {sampler!r} is not one of {', '.join(SAMPLERS)}")
    return sampler if isinstance(sampler, str) else _checked_pairs(ends, "sampler", sampler)


def _checked_options(disjoint: float, negatives: int, eval_negatives: int | str, seed: int,
                     filtered: bool) -> tuple[float, int, int | str, int, bool]:
    """Check arguments of `split_links`, which have the same names, and return them in this order; a ConfigError names a wrong argument."""
    if not isinstance(filtered, bool):
        raise ConfigError(f"filtered is {filtered!r}, but must be True or False")
    if isinstance(eval_negatives, str):
        if eval_negatives != "all":
            raise ConfigError(f"eval_negatives is {eval_negatives!r}, but must be a number or \"all\"", "eval_negatives")
    else:
        eval_negatives = check_int("eval_negatives", eval_negatives, 1)
    return (check_number("disjoint", disjoint, below=1), check_int("negatives", negatives, 1), eval_negatives,
            check_int("seed", seed, 0), filtered)


def _id_error(nodes: NodeRows) -> ConfigError | None:
    """Return a ConfigError if an id of this rank's nodes is above n_nodes - 1, with the first wrong id in the message; otherwise None."""
    wrong = nodes.dst_ids[nodes.dst_ids >= nodes.n_nodes]
    text = f"links: ids must be 0 .. {nodes.n_nodes - 1}, but a node has id "
    return ConfigError(f"{text}{wrong[0]}") if len(wrong) else None


def _make_links(link_sets, splits, relation_names, samplers, disjoint, negatives, eval_negatives, seed, filtered):
    """Make the `Links` of all relations. `link_sets` (edges), `splits` (functions (head ids, tail ids) -> split codes 0 train, 1 val, 2
    test), `relation_names` and `samplers` (a pair: training, evaluation) have an entry for each relation. The other arguments are arguments
    of `split_links` with the same names. Collective.
    """
    nodes = link_sets[0].nodes
    n, ids, numbers = nodes.n_nodes, nodes.dst_ids, RowNumbers(nodes.comm, nodes.dst_ids)
    links = [out_links(edges, split_of.listed()[0], numbers) for edges, split_of in zip(link_sets, splits)]
    knowns = [heads * n + tails for heads, tails, *_ in links]
    message_masks, targets = _edge_masks(link_sets, splits, knowns, seed, disjoint)
    messages = training = link_sets[0].subgraph(message_masks)
    if disjoint:
        training = link_sets[0].subgraph({one: mask & ~targets[one] for one, mask in message_masks.items()})

    rows, to_train, to_eval, n_left_out = [], [], [], np.zeros(2, np.int64)
    levels = []  # by relation: the split of each link in `knowns`
    timed = all(edges.times is not None for edges in link_sets)
    for at, (edges, split_of, ends, link_keys) in enumerate(zip(link_sets, splits, links, knowns)):
        (heads, tails, tail_rows, undirected), (sampler, eval_sampler) = ends, samplers[at]
        split, target = split_of(ids[heads], tails), _target_mask(ids[heads], tails, seed, disjoint)
        levels.append(split)
        drawn, more = (numbers, ids, edges.heads, edges.tails), f" {at}" if at else ""
        to_eval.append(Negatives(*drawn, link_keys if filtered else link_keys[:0], eval_sampler, seed,
                                 f"link negatives of evaluation{more}"))
        to_train.append(Negatives(*drawn, link_keys[split == TRAIN], sampler, seed, f"link negatives{more}"))
        chosen = (split != TRAIN) | target
        for other, of in zip(link_sets, splits):  # a link that another relation holds out in reverse is no training target
            if other.relation in edges.others and not isinstance(of, DrawnSplits):
                chosen &= (split != TRAIN) | (of(ids[heads], tails) == TRAIN)
        if undirected:
            coin = (variates(ids[heads], tails, seed) & np.uint64(1)).astype(bool)
            chosen &= (ids[heads] < tails) == coin
        has_negatives = _negatives_exist(to_eval[-1], heads) & ((split != TRAIN) | _negatives_exist(to_train[-1], heads))
        n_left_out += np.array([np.count_nonzero(chosen & ~has_negatives), np.count_nonzero(chosen)])
        chosen &= has_negatives
        times = _first_times(edges)(ids[heads[chosen]], tails[chosen]) if timed else np.zeros(np.count_nonzero(chosen), np.int64)
        rows.append(np.stack([*(column[chosen] for column in (heads, tails, tail_rows, split)),
                              np.full(np.count_nonzero(chosen), at), times]))

    _warn_left_out(nodes.comm, *nodes.comm.allreduce(n_left_out).tolist())
    heads, tails, tail_rows, split, numbers_of, times = np.concatenate(rows, 1)
    of = heads, tails, tail_rows
    relations = numbers_of if relation_names else None
    undirected = all(is_undirected for *_, is_undirected in links)
    draw = Candidates(training, *of, to_train, negatives, relations, [edges.relation for edges in link_sets], undirected)
    ranking = None
    if eval_negatives == "all":
        eval_negatives = negatives
        ranking = Ranking(messages, heads, tails, split, numbers_of, list(zip(knowns, levels)),
                          [edges.tails for edges in link_sets], bool(relation_names), filtered)
    pairs = Candidates(messages, *of, to_eval, eval_negatives, relations).pairs(0, np.arange(len(heads)))
    link_graph = LinkGraph(messages, *pairs, draw, at_once=AT_ONCE, relations=relations, ranking=ranking)
    return Links(link_graph, np.zeros(len(heads), np.int64), heads=ids[heads], tails=tails, undirected=undirected,
                 times=times if timed else None, **_rows_by_split(split))


def _negatives_exist(sampler: Negatives, heads: Array) -> Array:
    """Return a mask of the links for which `sampler` can draw a negative; `heads` are the local rows of the links' heads. The sampler
    "uniform" draws the head, too, so the mask is True for all links.
    """
    return np.ones(len(heads), bool) if sampler.of_pairs else sampler.n_left(heads) > 0


def _warn_left_out(comm, n_left_out, n_links):
    if n_left_out and not comm.rank:
        warnings.warn(f"links: {n_left_out:,} of {n_links:,} links are left out of training and evaluation, because "
                      "their sources are linked to all destinations, so they have no negatives. Messages still pass along "
                      "them",
                      RuntimeWarning, stacklevel=4)


def _rows_by_split(split: Array) -> dict[str, Array]:
    """Return {"train": row numbers, "val": row numbers, "test": row numbers} from the split code of each row: 0 train, 1 val, 2 test."""
    return {name: np.flatnonzero(split == at) for at, name in enumerate(NAMES)}


def _split_source(edges: LinkEdges, val: Any, test: Any, split: Any) -> Any:
    """Check how the links of one relation are to be split, by `val`, `test` and `split` as in `split_links`. Return [val, test] (shares),
    (node pairs, split code of each), (None, split code of each of `edges`) or (`TimeSplit`, None). A split code is 0 train, 1 val or 2
    test.
    """
    if isinstance(val, TimeSplit):
        if edges.times is None:
            of = "" if edges.relation is None else f" of {'.'.join(edges.relation)}"
            raise ConfigError(f"time_split {val}: the edges{of} have no times", "time_split")
        return val, None
    if split is not None:
        return None, _checked_codes(split, len(edges.sources), "edges, in the order of graph.edge_ids")
    if any(np.ndim(argument) for argument in (val, test)):
        ends = edges.heads, edges.tails
        pairs = [_checked_pairs(ends, name, () if argument is None or np.isscalar(argument) and argument == 0 else argument)
                 for name, argument in (("val", val), ("test", test))]
        return np.concatenate(pairs), np.repeat([VAL, TEST], [len(split_pairs) for split_pairs in pairs])
    return _checked_shares(val, test)


def _checked_shares(val: float, test: float) -> list[float]:
    """Check the shares of validation and test links: in [0, 1), and below 1 in sum; return [val, test]."""
    shares = [check_number(name, value, below=1) for name, value in (("val", val), ("test", test))]
    if sum(shares) >= 1:
        raise ConfigError(f"val {val} and test {test} leave no links to train on")
    return shares


def _checked_pairs(ends: Sequence[Ends], name: str, pairs: ArrayLike) -> Array:
    """Check (head, tail) id pairs, whose ids are within the two node types `ends`; return ids that are unique over all types, (n, 2) int64.
    `name` is the name of `pairs` in errors.
    """
    ids = np.asarray(pairs)
    if not ids.size:
        return np.empty((0, 2), np.int64)
    if ids.dtype.kind not in "iu" or ids.ndim != 2 or ids.shape[1] != 2:
        raise ConfigError(f"{name} is {ids.dtype} {ids.shape}, but must be pairs of ids, (n, 2), or 0 for "
                          "none")
    first, n = (np.array([getattr(end, name) for end in ends], np.int64) for name in ("first", "n"))
    bad = np.argwhere((ids < 0) | (ids >= n))
    if len(bad):
        at, column = bad[0]
        raise DataError(f"{name}: pair {at} has node {ids[at, column]}, outside 0 <= node < {n[column]}")
    return ids.astype(np.int64) + first


def _split_function(edges: LinkEdges, source: Any, seed: int) -> Any:
    """Return a function (head ids, tail ids) -> split codes (0 train, 1 val, 2 test) for links of one relation. The pair `source` decides
    the splits: shares [val, test] drawn with `seed`, (node pairs, their split codes), (None, split code of each of `edges`), or
    (`TimeSplit`, None). Collective.
    """
    comm, (one, other) = edges.nodes.comm, source
    if isinstance(one, TimeSplit):
        proper = edges.ends[0] != edges.ends[1]
        ends = [end[proper] for end in edges.ends]
        split = one(_first_times(edges)(*ends))
        one.check_counts(comm, split, "link")
        return ListedSplits(comm, edges.nodes.n_nodes, np.stack(ends, 1), split)
    listed = one is None or bool(np.ndim(one))
    if len(set(comm.allgather(listed))) > 1:
        raise ConfigError("val, test or split: some ranks pass shares and others pass pairs")
    if not listed:
        agree(comm, (one, other), "val or test")
        return DrawnSplits(one, other, seed)
    if one is None:
        one, other = np.stack(edges.ends, 1), other[edges.places]
    return ListedSplits(comm, edges.nodes.n_nodes, one, other)


def _first_times(edges):
    """Return a function from pairs of node ids to the time of the first edge between them, among the `edges` of all ranks. Collective."""
    return FirstTimes(edges.nodes.comm, edges.nodes.n_nodes, *edges.ends, edges.times)


def _edge_masks(link_sets, split_functions, keys_of_links, seed, disjoint):
    """Return two dicts {relation: mask of its edges}: first, edges that pass messages in evaluation; then, edges that may be training
    targets, a random share `disjoint` (0: all). The lists `link_sets` (edges), `split_functions` and `keys_of_links` have an entry for each
    predicted relation. An edge of a reverse relation is treated as the link in its opposite direction.
    """
    predicted = {edges.relation for edges in link_sets}
    messages: dict[Relation | None, Array] = {}
    targets: dict[Relation | None, Array] = {}
    for edges, split_of, link_keys in zip(link_sets, split_functions, keys_of_links):
        ids, masks_of = edges.nodes.dst_ids, {edges.relation: _pair_masks(*edges.ends, split_of, seed, disjoint)}
        for relation, (sources, rows) in edges.others.items():
            if relation in predicted and isinstance(split_of, DrawnSplits):
                continue  # its own links have the same splits, as these are drawn from ids
            brings_message, target = _pair_masks(sources, ids[rows], split_of, seed, disjoint)
            links = among(link_keys, rows * edges.nodes.n_nodes + sources)
            masks_of[relation] = brings_message | ~links, target & links
        for relation, (brings_message, target) in masks_of.items():
            messages[relation] = brings_message & messages.get(relation, True)
            targets[relation] = target | targets.get(relation, False)
    return messages, targets


def _pair_masks(one: Array, other: Array, split_of: Any, seed: int, disjoint: float) -> tuple[Array, Array]:
    """Return (message, target), two masks of the node pairs (one[i], other[i]). `message` is True for pairs whose edges carry messages in
    evaluation: self loops, and pairs that split_of(one, other) puts into the split "train". `target` is True for possible training targets,
    never self loops: a fraction `disjoint` of the pairs, drawn at random with `seed`, or all pairs if the fraction is 0.
    """
    loops = one == other
    return (split_of(one, other) == TRAIN) | loops, _target_mask(one, other, seed, disjoint) & ~loops


def _target_mask(one: Array, other: Array, seed: int, disjoint: float) -> Array:
    """Return a mask of the node pairs (one[i], other[i]) that are training targets: a random share `disjoint` of the pairs, or all pairs if
    `disjoint` is 0.
    """
    return uniform(splitmix64(variates(one, other, seed))) < (disjoint or 1)

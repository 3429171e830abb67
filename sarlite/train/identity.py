"""Identity of a data set: sizes and a digest that do not depend on the storage format or the division among ranks."""

import math

import numpy as np

from sarlite.data.part import OwnedRows
from sarlite.graph.graph_set import GraphSet
from sarlite.graph.hetero import NodeType
from sarlite.graph.weights import EdgeValues
from sarlite.keys import GAMMA, word
from sarlite.operators import fn
from sarlite.structure.edges import destinations, row_chunks
from sarlite.tape import Tensor, no_grad
from sarlite.train.load import widths_text
from sarlite.types import Array

_BYTES = 1 << 25
_N_CODES = 4
_EDGES = 1 << 20  # at a time


def identity(graph, rows, n_classes):
    """Return a dict that identifies a data set: its numbers of nodes, edges, features and classes, and a digest of its edges and of all
    `rows` (features, labels and splits). The dict is equal for any division among ranks. Collective.

    Parameters
    ----------
    graph : Graph, NodeType, or GraphSet
        This rank's part, with or without added self loops, which do not count. Edge values are part of the identity. For
        relational data, the node type that has labels.
    rows : data.part.OwnedRows
        This rank's rows, in the order of the graph.
    n_classes : int

    Returns
    -------
    dict
        "nodes", "edges", "features" and "classes", the sizes, and "digest", 32 hexadecimal digits. The result is the
        same for any number of ranks, partition and order. For relational data, nodes, edges and features are texts with
        a number for each node type or relation, in the order of the model's parameters.

    Notes
    -----
    The digest consists of two sums over nodes modulo 2^64. Each adds a hash of the node's id, features, label and
    splits, and of its in-edges. The in-edges are hashed by one aggregation of codes: 4 numbers below 2^24 for each
    source, computed from its id, whose sums are exact in float64. The digest detects mistakes, not forgeries.

    Cost: one aggregation of width 4, for relational data one for each relation, and a pass over the features. Memory: 64
    MiB, 64 bytes for each node (and each relation from its type), and 8 bytes for each edge with values. The plans of
    exchanges between relations are discarded afterwards.
    """
    of = {NodeType: _of_types, GraphSet: _of_graphs}.get(type(graph), _of_one_type)
    sizes, values = of(graph, rows)
    local_sums = [int(_hash(values + np.uint64(half)).sum(dtype=np.uint64)) for half in (0, 1)]
    digest = "".join(f"{sum(halves) % 2**64:016x}" for halves in zip(*graph.comm.allgather(local_sums)))
    return {**sizes, "classes": int(n_classes), "digest": digest}


def of_times(graph, times):
    """Return a digest, 16 hexadecimal digits, of the `times` of the nodes by node type; None if no node type has times. Collective.

    Parameters
    ----------
    graph : Graph, NodeType, or GraphSet
        This rank's part.
    times : dict of str to (n,) int64
        Times of this rank's rows by node type.
    """
    total = 0
    for name, node_times in times.items():
        ids = graph.graph.node_ids[name] if isinstance(graph, NodeType) else graph.dst_ids
        hashes = _hash(_hash(ids.astype(np.uint64) ^ np.uint64(word(name))) + node_times.view(np.uint64))
        total += int(hashes.sum(dtype=np.uint64))
    return f"{sum(graph.comm.allgather(total)) % 2**64:016x}" if times else None


def _of_one_type(graph, rows):
    """Return (sizes, hashes) of a graph with one node type: a dict with the numbers of nodes, edges and features, and a hash of each local
    node, (n_dst,) uint64. A hash covers a node's id, its in-edges, and its features, label and splits in `rows`. Collective.
    """
    with graph.profile.phase("setup"), no_grad():
        sums = graph.with_edge_values().full_precision().aggregate(fn.copy_src(Tensor(_hash_ids(graph.src_ids))), "sum").data
    values = _hash(np.asarray(graph.dst_ids).astype(np.uint64) + _hash_rows(sums))
    values = _hash(values + _hash_rows(rows.features))
    for array in (graph.edge_weight, graph.edge_features, graph.edge_values.time):
        if array is not None:
            array = array.reshape(graph.n_edges, math.prod(array.shape[1:]))
            sources = graph.with_edge_values().edge_src_ids  # the copy without values stores the ids
            values = _hash(values + _hash_in_edges(graph, sources, array))
    labels = np.asarray(rows.labels)
    if labels.dtype.kind in "iu" and labels.ndim == 1:
        labels = labels.astype(np.int64)[:, None]
    else:
        values = _hash(values + _hash_rows(_words(labels)))
        labels = np.zeros((len(labels), 1), np.int64)
    splits = np.asarray(rows.train) + 2 * np.asarray(rows.val) + 4 * np.asarray(rows.test).astype(np.int64)
    values = _hash(values + _hash_rows(np.column_stack([labels, splits.astype(np.int64)])))
    n_edges = graph.n_edges - (0 if graph.added_loops is None else int(graph.added_loops.sum()))
    n_features = int(rows.features.shape[1])
    return {"nodes": int(graph.n_nodes), "edges": sum(graph.comm.allgather(n_edges)), "features": n_features}, values


def _of_types(nodes, rows):
    """Return (sizes, hashes) of a relational graph: a dict with texts about the numbers of nodes, edges and features by type, and a hash of
    each local node of all types, uint64. A hash covers a node's id, its in-edges, and its features, label and splits in `rows`. Collective.
    """
    graph = nodes.graph.with_edge_values().full_precision()
    hashes = {name: _hash(ids.astype(np.uint64) + np.uint64(word(name))) for name, ids in graph.node_ids.items()}
    sums = {name: np.zeros(len(ids), np.uint64) for name, ids in graph.node_ids.items()}
    for source in graph.node_types:
        relations = {".".join(relation): relation for relation in graph.relations if relation[0] == source}
        with graph.profile.phase("setup"), no_grad():
            codes = {relation: _hash_ids(hashes[source] ^ np.uint64(word(name))) for name, relation in relations.items()}
            messages = {relation: fn.copy_src(Tensor(source_codes)) for relation, source_codes in codes.items()}
            for name, code_sums in graph.aggregate(messages, "sum").items():
                sums[name] += _hash_rows(code_sums.data)
            for layer in graph.out_of(source):
                values_of = nodes.graph.edge_values.get(layer.relation, EdgeValues())
                arrays = values_of.weight, values_of.features, values_of.time
                for name, array in zip(("weight", "features", "time"), arrays):
                    if array is not None:
                        array = array.reshape(layer.n_edges, math.prod(array.shape[1:]))
                        edge_hashes = _hash_in_edges(layer, layer.edge_src_ids, array)
                        sums[layer.relation[2]] += _hash(edge_hashes ^ np.uint64(word(f"{name} of {layer.relation}")))
    graph.forget()
    values = {name: _hash(hashes[name] + sums[name]) for name in graph.node_types}
    for name, x in rows.features.items():
        values[name] = _hash(values[name] + _hash_rows(x))
    splits = np.column_stack([rows.train, rows.val, rows.test]).astype(np.int32)
    targets = np.concatenate([_words(np.asarray(rows.labels)).view(np.int32), splits], 1)
    values[nodes.node_type] = _hash(values[nodes.node_type] + _hash_rows(targets))
    sizes = {"nodes": ", ".join(f"{name} {n}" for name, n in graph.n_nodes.items()),
             "edges": ", ".join(f"{'.'.join(relation)} {n}" for relation, n in graph.n_edges.items()),
             "features": widths_text(rows.features)}
    return sizes, np.concatenate([*values.values()])


def _of_graphs(graphs, rows):
    """Return (sizes, hashes) of a set of graphs: a dict with the numbers of nodes, graphs, edges and features, and a hash of each local
    node and each local graph, uint64. The hash of a graph covers its nodes, label and splits in `rows`. Collective.
    """
    nothing = np.zeros(graphs.n_src, np.int64)
    sizes, nodes = _of_one_type(graphs.nodes, OwnedRows(rows.features, *[nothing] * 4))
    _, values = _of_one_type(graphs.members, rows._replace(features=np.zeros((graphs.n_dst, 1), np.float32)))
    sizes["nodes"] = f"node {sizes['nodes']}, graph {graphs.n_nodes}"
    return sizes, np.concatenate([nodes, _hash(~values)])


def difference(expected, here):
    """Return a text that says how the identity of a run's data, `here`, differs from the identity `expected` of the data used before; None
    if they are equal.

    Parameters
    ----------
    expected, here : dict
        Identities of the data that were used before and of the data of this run.

    Examples
    --------
    >>> sizes = {"nodes": 5, "edges": 8, "features": 3, "classes": 2, "digest": "0" * 32}
    >>> difference({**sizes, "edges": 7}, sizes)
    '7 edges there and 8 here'
    >>> difference({**sizes, "digest": "1" * 32}, sizes)
    'of the same size, but other values'
    """
    names = [name for name in ("nodes", "edges", "features", "classes") if expected.get(name) != here[name]]
    if names:
        return ", ".join(f"{expected.get(name)} {name} there and {here[name]} here" for name in names)
    return next((words for name, words in _OTHERS.items() if expected.get(name) != here.get(name)), None)


_OTHERS = {"links": "files have other splits of links", "edge_labels": "the table of edge labels has other labels",
           "negatives": "files have other negatives of links", "times": "nodes have other times",
           "digest": "of the same size, but other values"}


def _hash_in_edges(graph, sources, edge_values):
    """Return a hash of the in-edges of each row, (n_dst,) uint64, that does not depend on their order. It is the sum, modulo 2^64, of a
    hash of each edge's source id and edge values, from the arrays `sources` and `edge_values`.
    """
    indptr, numbers = np.concatenate([[0], np.cumsum(graph.in_degrees)]), graph.edges_of(graph.plan.local).numbers
    out = np.zeros(graph.n_dst, np.uint64)
    for low, high in row_chunks(indptr, _EDGES):
        places = slice(int(indptr[low]), int(indptr[high])) if numbers is None else numbers[indptr[low] : indptr[high]]
        hashes = _hash(sources[places].astype(np.uint64) + _hash_rows(edge_values[places]))
        np.add.at(out, low + destinations(indptr[low : high + 1]), hashes)
    return out


def _words(labels: Array) -> Array:
    """Convert labels to a 2-D array of int32 or floats, (n, k), that can be hashed as 32-bit words. All NaNs get the same bits,
    so that equal labels have equal hashes.
    """
    labels = labels.astype(np.int32) if labels.dtype.kind in "iu" else \
        np.where(np.isnan(labels), labels.dtype.type(np.nan), labels)
    return labels if labels.ndim == 2 else labels[:, None]


def _hash(x: Array) -> Array:
    """Return a 64-bit hash of each value of x, a uint64 array: an array like x. The hash is the output function of SplitMix64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _random_bits(start: int, n: int) -> Array:
    """Return the numbers with indices start .. start + n - 1 of a sequence of random 64-bit numbers, SplitMix64, (n,) uint64."""
    return _hash(np.arange(start + 1, start + n + 1, dtype=np.uint64) * np.uint64(GAMMA))


def _hash_ids(ids: Array) -> Array:
    """Return four hashes of each node id as floats, (n, 4) float64, that an aggregation can add without rounding. The hashes are
    integers below 2^24, so float64 represents their sums exactly.
    """
    seeds = _random_bits(0, _N_CODES)
    states = np.asarray(ids).astype(np.uint64)[:, None] * np.uint64(GAMMA) + seeds
    return (_hash(states) >> np.uint64(40)).astype(np.float64)


def _hash_rows(array: Array) -> Array:
    """Return a hash of each row of `array`, (n,) uint64: the sum of the row's 32-bit words, each times an odd factor by column, modulo
    2^64.
    """
    n, out = len(array), np.empty(len(array), np.uint64)
    factors = _random_bits(_N_CODES, array.shape[1] * array.itemsize // 4) | np.uint64(1)
    step = max(1, _BYTES // max(1, 8 * factors.size))
    for at in range(0, n, step):
        words = np.ascontiguousarray(array[at : at + step]).view(np.uint32)
        out[at : at + step] = words.astype(np.uint64) @ factors
    return out

"""The edges of a `HeteroGraph`, checked, and divided among ranks by node type."""

from collections.abc import Mapping

import numpy as np

from sarlite.comm import agree, together
from sarlite.errors import ConfigError, DataError
from sarlite.graph import edges as edge_lists
from sarlite.graph import given, partition, typed
from sarlite.graph.part import InEdges, find_error, is_sorted
from sarlite.sar.graph.construct import outside
from sarlite.sar.graph.shard import on_root


def checked(edges, n_nodes):
    """Return edges and n_nodes as arrays and ints; errors name the relation."""
    if not isinstance(edges, Mapping) or not isinstance(n_nodes, Mapping):
        raise ConfigError("edges and n_nodes are dicts: {(src_type, relation, dst_type): (src, dst)} and {type: number of nodes}")
    n_nodes = {name: given.count(f"n_nodes[{name!r}]", n) for name, n in n_nodes.items()}
    found = {}
    for relation, ends in edges.items():
        check_relation(relation, n_nodes)
        try:
            src, dst = (outside(name, ids) for name, ids in zip(("src", "dst"), ends, strict=True))
            found[relation] = edge_lists.checked_ends(src, dst, n_nodes[relation[0]], n_nodes[relation[2]])
        except (DataError, TypeError, ValueError) as error:
            raise DataError(f"relation {relation!r}: {error}") from None
    return found, n_nodes


def check_relation(relation, types):
    """Raise where a relation is no triple, or names a type that is not there."""
    if not (isinstance(relation, tuple) and len(relation) == 3 and all(isinstance(word, str) for word in relation)):
        raise ConfigError(f"relation {relation!r} is no triple (source type, name, destination type)")
    for name in (relation[0], relation[2]):
        if name not in types:
            raise DataError(f"relation {relation!r}: node type {name!r} is not in n_nodes, which has {', '.join(types)}")


def divide(comm, edges, n_nodes, parts, seed):
    """Return the part of each node, by type. Collective."""
    if comm.size == 1:
        return {name: np.zeros(n, np.int32) for name, n in n_nodes.items()}
    kind = lambda found: found if isinstance(found, str) else type(found).__name__  # noqa: E731
    agree(comm, {str(name): kind(found) for name, found in parts.items()} if isinstance(parts, Mapping) else kind(parts), "parts")
    if isinstance(parts, str) and parts in partition.BALANCED:
        found = on_root(comm, lambda: np.concatenate([*typed.divide(typed.join(edges, n_nodes), comm.size, parts, balance="nodes",
                                                                    seed=seed).values()]))
        return dict(zip(n_nodes, np.split(found, np.cumsum([*n_nodes.values()])[:-1])))
    if not isinstance(parts, str) and (not isinstance(parts, Mapping) or set(parts) != set(n_nodes)):
        raise ConfigError(f"parts: a method, or a dict with a division for each of {', '.join(n_nodes)}")
    return {name: _parts(comm, parts if isinstance(parts, str) else parts[name], name, n, seed) for name, n in n_nodes.items()}


def _parts(comm, parts, name, n, seed):
    if isinstance(parts, str):
        method = parts
        if method in partition.BALANCED:
            raise ConfigError(f"{method} divides the nodes of all types together, or none")
        nothing = np.zeros(n + 1, np.int64), np.zeros(0, np.int64)
        parts = on_root(comm, lambda: partition.partition(*nothing, comm.size, method, seed=seed))
    parts = together(comm, lambda: partition.check_parts(outside("parts", parts), n, comm.size, repr(name)))
    agree(comm, parts, f"parts of {name!r}")
    return parts


def row_numbers(parts):
    """The row number of each node: by part, and in a part by the id."""
    numbers = np.empty(len(parts), edge_lists.index_dtype(len(parts)))
    numbers[np.argsort(parts, kind="stable")] = np.arange(len(parts))
    return numbers


def own_edges(relation, src, dst, parts, own, rows, rank):
    """This rank's in-edges of one relation, and where each stood."""
    source, _, to = relation
    mine = np.flatnonzero(parts[to][dst] == rank)
    local = rows[to][dst[mine]] - (rows[to][own[to][0]] if len(own[to]) else 0)
    n = max(len(rows[source]), len(own[to]), 1)
    indptr, indices, order = edge_lists.csr_by_dst(rows[source][src[mine]], local, n, edge_index=True)
    return InEdges(indptr[: len(own[to]) + 1], indices), mine[order]


def own_part(edges, node_ids, edge_ids):
    """Check what a rank gave of its part: return InEdges by relation, and the ids by type and by relation as arrays."""
    if not all(isinstance(found, Mapping) for found in (edges, node_ids, edge_ids or {})):
        raise ConfigError("edges, node_ids and edge_ids are dicts, by relation, by type and by relation")
    ids = {name: given.integers(f"node_ids[{name!r}]", outside("node_ids", found)) for name, found in node_ids.items()}
    in_edges, places = {}, {}
    for relation, csr in edges.items():
        check_relation(relation, ids)
        try:
            indptr, indices = (given.integers(name, outside(name, array)) for name, array in zip(("indptr", "indices"), csr, strict=True))
            part = InEdges(given.integers("indptr", indptr, length=len(ids[relation[2]]) + 1).astype(np.int64, copy=False), indices)
        except (DataError, TypeError, ValueError) as error:
            raise DataError(f"relation {relation!r}: {error}") from None
        found = (edge_ids or {}).get(relation)
        if found is not None:
            places[relation] = given.integers(f"edge_ids[{relation!r}]", outside("edge_ids", found), length=len(part.indices))
        in_edges[relation] = part
    return in_edges, ids, places


def check_part(in_edges, n_nodes):
    """Raise a DataError where edges of a part are no CSR, or come from a row that is not there; rows' sources must ascend."""
    for relation, part in in_edges.items():
        error = find_error(part, n_nodes[relation[0]])
        if error is None and not is_sorted(part.indptr, part.indices):
            error = DataError("the sources of a row do not ascend")
        if error is not None:
            raise DataError(f"relation {relation!r}: {error}")

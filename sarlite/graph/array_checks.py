"""Checks of the arrays of edges, ids and rows that a caller passes, for one relation or several."""

from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np

from sarlite import numerics
from sarlite.comm import Communicator
from sarlite.errors import ConfigError, DataError, raise_together
from sarlite.structure import edges as edge_lists
from sarlite.structure import validation
from sarlite.structure.part_edges_csr import InEdges, find_error, is_sorted
from sarlite.tape.tensor import Tensor, as_array
from sarlite.types import Array, ArrayLike

Relation = tuple[str, str, str]  # (source type, name, destination type)
RelationArrays = tuple[dict[Relation, InEdges], dict[str, Array], dict[Relation, Array]]  # in-edges, node ids, edge ids
TypedParts = str | Mapping[str, ArrayLike | str]  # a method, or a division of the nodes of each type
T = TypeVar("T")


def check_array(name: str, data: ArrayLike) -> Array:
    """Return `data` as an ndarray; raise a DataError that names `name` if `data` cannot be converted."""
    try:
        return validation.array(name, as_array(data))
    except (ValueError, TypeError, RuntimeError, OverflowError, BufferError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{name}: not an array: {str(error).partition(chr(10))[0]}") from error


def check_csr(indptr: ArrayLike, indices: ArrayLike, n_rows: int | None = None) -> tuple[Array, Array]:
    """Return the CSR (`indptr` as int64, `indices` as integers). Raise a DataError unless both are one-dimensional arrays of
    integers, and `indptr` has `n_rows` + 1 entries (None: any number). The order and the range of the entries are not checked.

    Parameters
    ----------
    indptr, indices : array
    n_rows : int, optional
        Number of rows that indptr must have.
    """
    starts, sources = (validation.integers(name, check_array(name, data), start=-(1 << 63)) for name, data in
                       (("indptr", indptr), ("indices", indices)))
    if n_rows is not None:
        validation.integers("indptr", starts, length=n_rows + 1)
    return starts.astype(np.int64, copy=False), sources


def check_distinct(comm: Communicator, name: str, ids: Array) -> None:
    """Raise a DataError on every rank if two rows of all ranks together have the same id; `ids` are the ids of this rank's rows.
    The error starts with `name`. Collective.

    Parameters
    ----------
    comm : Communicator
    name : str
        Name of the ids, for the error.
    ids : (n_local,) int array
        Ids of this rank's rows. Each id is sent to rank id % size, which compares.
    """
    ids = ids.astype(np.int64, copy=False)
    owner = ids % comm.size
    by_owner = ids[np.argsort(owner, kind="stable")]
    received = comm.alltoall(np.split(by_owner, np.cumsum(np.bincount(owner, minlength=comm.size))[:-1]))
    ranks, ids = np.repeat(np.arange(comm.size), [len(part) for part in received]), np.concatenate(received)
    order = np.argsort(ids, kind="stable")
    error, equal = None, np.flatnonzero(ids[order][1:] == ids[order][:-1])
    if len(equal):
        first, second = order[equal[0]], order[equal[0] + 1]
        error = DataError(f"{name}: id {ids[first]} has two rows, on ranks {ranks[first]} and {ranks[second]}")
    raise_together(comm, error)


def check_rows(name: str, x: Tensor, n_ranks: int) -> None:
    """Raise a ConfigError that names `name` if tensor `x` is placed as "replicated" (equal on all `n_ranks` ranks) although each
    rank must pass rows of its own. On one rank this is allowed, except in exact numerics.

    Parameters
    ----------
    name : str
        Name of the tensor, for the error.
    x : Tensor
    n_ranks : int
    """
    if x.placement == "replicated" and (n_ranks > 1 or numerics.name() == "exact"):
        raise ConfigError(f"{name} of shape {x.shape} is the same on every rank, but each rank needs its own rows: "
                          "give a learned table ids, as nn.Embedding does")


# ---- several relations


def check_edge_lists(edges: Mapping[Relation, tuple[ArrayLike, ArrayLike]],
                     n_nodes: Mapping[str, int]) -> tuple[dict[Relation, tuple[Array, Array]], dict[str, int]]:
    """Return (edges, n_nodes) after a check: {relation: (src, dst) arrays with valid node numbers}, and {node type: number of
    nodes}. A DataError names the relation at fault.
    """
    if not isinstance(edges, Mapping) or not isinstance(n_nodes, Mapping):
        raise ConfigError("edges and n_nodes are dicts: {(src_type, relation, dst_type): (src, dst)} "
                          "and {type: number of nodes}")
    counts = {name: validation.count(f"n_nodes[{name!r}]", n) for name, n in n_nodes.items()}

    def check_ends(relation: Relation, src: ArrayLike, dst: ArrayLike) -> tuple[Array, Array]:
        n_src, n_dst = counts[relation[0]], counts[relation[2]]
        return edge_lists.checked_ends(check_array("src", src), check_array("dst", dst), n_src, n_dst)

    return _check_each(edges, counts, check_ends), counts


def check_part_relations(edges: Mapping[Relation, tuple[ArrayLike, ArrayLike]], node_ids: Mapping[str, ArrayLike],
                        edge_ids: Mapping[Relation, ArrayLike] | None) -> RelationArrays:
    """Check the arrays of this rank's part: `edges`, {relation: CSR (indptr, indices) of in-edges}, and the ids of its nodes and
    edges. Return ({relation: InEdges}, {node type: node ids}, {relation: edge ids}); the last dict has the relations in `edge_ids`.
    """
    if not all(isinstance(argument, Mapping) for argument in (edges, node_ids, edge_ids or {})):
        raise ConfigError("edges, node_ids and edge_ids are dicts, by relation, by type and by relation")
    checked_nodes = {name: validation.integers(f"node_ids[{name!r}]", check_array("node_ids", ids))
                     for name, ids in node_ids.items()}

    def check_in_edges(relation: Relation, indptr: ArrayLike, indices: ArrayLike) -> InEdges:
        return InEdges(*check_csr(indptr, indices, len(checked_nodes[relation[2]])))

    in_edges, checked_ids = _check_each(edges, checked_nodes, check_in_edges), dict[Relation, Array]()
    for relation, part in in_edges.items():
        ids = (edge_ids or {}).get(relation)
        if ids is not None:
            ids, name = check_array("edge_ids", ids), f"edge_ids[{relation!r}]"
            checked_ids[relation] = validation.integers(name, ids, length=len(part.indices))
    return in_edges, checked_nodes, checked_ids


def check_sources(in_edges: Mapping[Relation, InEdges], n_nodes: Mapping[str, int]) -> None:
    """Raise a DataError unless the in-edges of each relation are a CSR whose rows list row numbers of sources in ascending order,
    all below the source type's number in `n_nodes`.
    """
    for relation, part in in_edges.items():
        error = find_error(part, n_nodes[relation[0]])
        if error is None and not is_sorted(part.indptr, part.indices):
            error = DataError("the sources of a row do not ascend")
        if error is not None:
            raise DataError(f"relation {relation!r}: {error}")


def check_relation(relation: object) -> None:
    """Raise a ConfigError unless `relation` is a triple (source type, name, destination type)."""
    if not (isinstance(relation, tuple) and len(relation) == 3 and all(isinstance(word, str) for word in relation)):
        raise ConfigError(f"relation {relation!r} is not a triple (source type, name, destination type)")


def _check_each(edges: Mapping[Relation, tuple[ArrayLike, ArrayLike]], types: Mapping[str, object],
                check: Callable[[Relation, ArrayLike, ArrayLike], T]) -> dict[Relation, T]:
    """Return {relation: check(relation, first array, second array)} for the pair of arrays of each relation in `edges`. A DataError
    names a relation whose node types are not in `types`, or whose check fails.
    """
    checked = {}
    for relation, arrays in edges.items():
        check_relation(relation)
        for name in (relation[0], relation[2]):
            if name not in types:
                raise DataError(f"relation {relation!r}: node type {name!r} is not in n_nodes, which has "
                                f"{', '.join(types)}")
        try:
            first, second = arrays
            checked[relation] = check(relation, first, second)
        except (DataError, TypeError, ValueError) as error:
            raise DataError(f"relation {relation!r}: {error}") from None
    return checked

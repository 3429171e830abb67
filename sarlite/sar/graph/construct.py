"""How a rank's part of a graph is made of its own rows; a whole graph is the part of one rank."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from sarlite.comm import together, wrap
from sarlite.errors import ConfigError, DataError, raise_together
from sarlite.graph import edges as edge_lists
from sarlite.graph import validation
from sarlite.graph.part import InEdges, find_error, is_sorted
from sarlite.profile import Profile
from sarlite.sar.schedule import needs, schedule
from sarlite.sar.schedule.schedule import Options
from sarlite.sar.schedule.state import Kept
from sarlite.tape.tensor import as_array
from sarlite.types import Array

if TYPE_CHECKING:
    from sarlite.sar.graph.graph import Graph


def csr(indptr, indices, n_rows=None):
    """Return both as integers; `needs.find` looks at whether they fit together."""
    indptr, indices = (validation.integers(name, outside(name, data), start=-(1 << 63)) for name, data in
                       (("indptr", indptr), ("indices", indices)))
    if n_rows is not None:
        validation.integers("indptr", indptr, length=n_rows + 1)
    return indptr.astype(np.int64, copy=False), indices


def outside(name, data):
    """Return what a caller gave as an array; a DataError names what is none."""
    try:
        return validation.array(name, as_array(data))
    except (ValueError, TypeError, RuntimeError, OverflowError, BufferError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{name}: not an array: {str(error).partition(chr(10))[0]}") from error


def from_part(cls: Any, comm: Any, indptr: Any, indices: Any, *, node_ids: Any = None, src_ids: Any = None,
              n_src: int | None = None, edge_ids: Any = None, added_loops: Any = None, mode: str = "sar",
              prefetch: int = 1, backward: str | None = None, rows: str = "float32",
              peers_at_once: int | None = None) -> "Graph":
    """Make this rank's part of a graph from its own rows. Collective.

    Rank p owns the row numbers after those of the ranks before it, as many as it has destination rows. Nothing here is
    O(n_nodes).

    Parameters
    ----------
    comm : Communicator, or an mpi4py communicator
    indptr, indices : (n_local + 1,) int64, (n_edges,) int
        In-edges of the local nodes; indices are row numbers of sources in the whole graph.
    node_ids : (n_local,) int64, optional
        Global ids of the local rows, which name them in dropout, ties and results; by default their row numbers.
    src_ids, n_src : (n_src,) int64 and int, optional
        Of a bipartite graph: global ids of the sources that this rank owns, numbered likewise by rank, and how many;
        n_src alone is enough where ids are row numbers.
    edge_ids : (n_edges,) int64, optional
        Global ids of the local in-edges, for edge values; -1 for an added loop.
    added_loops : (n_local,) bool, optional
        Whether a row's self loop was added to the data.
    mode : {"sar", "sa", "oneshot", "broadcast"}
    prefetch : int
        Peers' rows to fetch ahead, by a thread; 0 fetches when the rows are used.
    backward : {"push", "fetch"}, optional
        How the gradients of source rows come to their owners: computed by the destinations' owner and pushed; or
        computed by the sources', who fetches the destinations' gradients over the reversed edges (4 bytes an edge, none
        where the structure is symmetric). "fetch" is for `copy_src` and `linear` summed up and for `attend`; others are
        pushed. By default those of `copy_src` and `linear` are fetched in mode "broadcast", all others pushed; with
        narrow rows all are fetched that can be.
    rows : {"float32", "bfloat16"}
        As what the rows that edges gather are stored and sent: the sources' of `copy_src`, `linear`, `mul_edge` and
        `attend` (its z), float32 given, and those of their outputs' gradients. "bfloat16" rounds each value to nearest,
        ties to even, once; sums and all else stay float32. Other messages are then refused. Gradients that are pushed
        are sums, and stay float32.
    peers_at_once : int, optional
        How many peers' rows are fetched and used at once, 1 .. N - 1; by default 1, all in mode "oneshot". A rank holds
        the rows of (1 + prefetch) times as many peers. Many at once save waiting where ranks are many. Not of mode
        "broadcast".

    Returns
    -------
    Graph

    Raises
    ------
    ConfigError, DataError
        On every rank together: among them ids that are no integers, negative, too many or too few, or given to two
        rows.
    """
    comm = wrap(comm)
    options = Options(mode, prefetch, backward, rows, peers_at_once)
    options.check(comm)
    edges, ids = together(comm, lambda: _own_rows(indptr, indices, node_ids, src_ids, n_src, edge_ids, added_loops))
    if src_ids is not None and n_src is None:
        n_src = len(ids["src_ids"])
    return make(cls, comm, edges, ids["node_ids"], ids["src_ids"], ids["edge_ids"], n_src, options)


def _own_rows(indptr, indices, node_ids, src_ids, n_src, edge_ids, added_loops):
    """Check what a rank gave; return its InEdges and its ids by name."""
    indptr, indices = csr(indptr, indices)
    ids = {}
    for name, array, n, least in (("node_ids", node_ids, max(len(indptr) - 1, 0), 0), ("src_ids", src_ids, n_src, 0),
                                  ("edge_ids", edge_ids, len(indices), -1)):
        ids[name] = None if array is None else validation.integers(name, outside(name, array), length=n, start=least)
    if added_loops is not None:
        added_loops = validation.bools("added_loops", outside("added_loops", added_loops), len(indptr) - 1)
    return InEdges(indptr, indices, None, added_loops), ids


# ---- several relations


def checked_edges(edges: Any, n_nodes: Any) -> tuple[dict[Any, Any], dict[str, int]]:
    """Return edge lists by relation as arrays, and n_nodes as ints; errors name the relation."""
    if not isinstance(edges, Mapping) or not isinstance(n_nodes, Mapping):
        raise ConfigError("edges and n_nodes are dicts: {(src_type, relation, dst_type): (src, dst)} "
                          "and {type: number of nodes}")
    n_nodes = {name: validation.count(f"n_nodes[{name!r}]", n) for name, n in n_nodes.items()}

    def ends(relation, src, dst):
        n_src, n_dst = n_nodes[relation[0]], n_nodes[relation[2]]
        return edge_lists.checked_ends(outside("src", src), outside("dst", dst), n_src, n_dst)

    return _each_relation(edges, n_nodes, ends), n_nodes


def checked_part(edges: Any, node_ids: Any,
                 edge_ids: Any) -> tuple[dict[Any, InEdges], dict[str, Array], dict[Any, Array]]:
    """Check what a rank gave of its part: return InEdges by relation, and the ids by type and by relation as arrays."""
    if not all(isinstance(found, Mapping) for found in (edges, node_ids, edge_ids or {})):
        raise ConfigError("edges, node_ids and edge_ids are dicts, by relation, by type and by relation")
    ids = {name: validation.integers(f"node_ids[{name!r}]", outside("node_ids", found))
           for name, found in node_ids.items()}

    def part(relation, indptr, indices):
        return InEdges(*csr(indptr, indices, len(ids[relation[2]])))

    in_edges = _each_relation(edges, ids, part)
    places = {}
    for relation, own in in_edges.items():
        found = (edge_ids or {}).get(relation)
        if found is not None:
            n = len(own.indices)
            places[relation] = validation.integers(f"edge_ids[{relation!r}]", outside("edge_ids", found), length=n)
    return in_edges, ids, places


def check_sources(in_edges: Mapping[Any, InEdges], n_nodes: Mapping[str, int]) -> None:
    """Raise a DataError where a part's edges are no CSR of ascending sources, or come from a row that is not there."""
    for relation, part in in_edges.items():
        error = find_error(part, n_nodes[relation[0]])
        if error is None and not is_sorted(part.indptr, part.indices):
            error = DataError("the sources of a row do not ascend")
        if error is not None:
            raise DataError(f"relation {relation!r}: {error}")


def _each_relation(edges, types, check):
    """Return what `check(relation, one, other)` makes of each relation's two arrays; its errors name the relation."""
    found = {}
    for relation, pair in edges.items():
        check_triple(relation)
        for name in (relation[0], relation[2]):
            if name not in types:
                known = ", ".join(types)
                raise DataError(f"relation {relation!r}: node type {name!r} is not in n_nodes, which has {known}")
        try:
            one, other = pair
            found[relation] = check(relation, one, other)
        except (DataError, TypeError, ValueError) as error:
            raise DataError(f"relation {relation!r}: {error}") from None
    return found


def check_triple(relation: Any) -> None:
    """Raise a ConfigError where a relation is no (source type, name, destination type)."""
    if not (isinstance(relation, tuple) and len(relation) == 3 and all(isinstance(word, str) for word in relation)):
        raise ConfigError(f"relation {relation!r} is no triple (source type, name, destination type)")


# ---- what all ways end in


ALONE = Options()


def check_distinct(comm: Any, name: str, ids: Array) -> None:
    """Raise on every rank where two rows of the graph have one id. Collective; each id travels to rank id % size."""
    ids = ids.astype(np.int64, copy=False)
    owner = ids % comm.size
    by_owner = ids[np.argsort(owner, kind="stable")]
    found = comm.alltoall(np.split(by_owner, np.cumsum(np.bincount(owner, minlength=comm.size))[:-1]))
    ranks, found = np.repeat(np.arange(comm.size), [len(part) for part in found]), np.concatenate(found)
    order = np.argsort(found, kind="stable")
    error, twice = None, np.flatnonzero(found[order][1:] == found[order][:-1])
    if len(twice):
        one, other = order[twice[0]], order[twice[0] + 1]
        error = DataError(f"{name}: {found[one]} names two rows, of ranks {ranks[one]} and {ranks[other]}")
    raise_together(comm, error)


def make(cls, comm, edges, node_ids, src_ids, edge_ids, n_src, options=ALONE, profile=None, by_id=False):
    """Exchange what ranks need of each other, and make the Graph. Collective.

    `profile` is that of the graph that it serves. `by_id` says that edge ids are distinct; a rank with
    the edges 0, 1, 2, ... then takes edge values in this order.
    """
    n_dst, bipartite = edges.n_dst, n_src is not None
    facts = comm.allgather((n_dst, n_src, bipartite, node_ids is None, src_ids is None, edge_ids is None, options))
    if any(fact[2:] != facts[0][2:] for fact in facts):
        raise ConfigError("ranks disagree on what makes their graph: n_src, node_ids, src_ids, edge_ids given or not, "
                          f"{', '.join(Options._fields)}: {[(*fact[2:-1], *fact[-1]) for fact in facts]}")
    for name, ids in (("node_ids", node_ids), ("src_ids", src_ids)):
        if ids is not None:
            check_distinct(comm, name, ids)
    n_nodes, profile = sum(fact[0] for fact in facts), Profile() if profile is None else profile
    dst_ids = _named(comm.rank, [fact[0] for fact in facts], node_ids)
    own_ids = _named(comm.rank, [fact[1] for fact in facts], src_ids) if bipartite else dst_ids
    sources = (src_ids, n_src) if bipartite else (node_ids, n_dst)
    found = needs.find(comm, [edges], *sources)
    edges = found.cuts[0].edges
    if edge_ids is not None and edges.numbers is not None:  # rows were put in order
        edge_ids, edges = np.asarray(edge_ids)[edges.numbers], edges._replace(numbers=None)
    if by_id:
        edges, edge_ids = in_order_of_ids(edges, edge_ids)
    found = found._replace(cuts=[found.cuts[0]._replace(edges=edges)])
    made = schedule.make(comm, found, options, profile, dst_ids)
    return cls(comm, made, profile, Kept(made.transport.state), options=options, n_nodes=n_nodes, dst_ids=dst_ids, src_ids=own_ids,
               edge_ids=edge_ids, in_degrees=np.diff(edges.indptr), added_loops=edges.added_loops,
               bipartite=bipartite)


def in_order_of_ids(edges: InEdges, ids: Array) -> tuple[InEdges, Array | None]:
    """Return a rank's edges and their distinct ids; where these are 0, 1, 2, ... edge values follow them: no ids then.

    So values of all edges are right also where they were not indexed by the ids of a rank that has every edge.
    """
    if len(ids) and ids.max() != len(ids) - 1:
        return edges, ids
    return (edges if (np.diff(ids) == 1).all() else edges._replace(numbers=ids)), None


def _named(rank, counts, ids):
    """The ids of this rank's rows; by default their row numbers."""
    first = sum(counts[:rank])
    return np.arange(first, first + counts[rank]) if ids is None else np.asarray(ids, np.int64)

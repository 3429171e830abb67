"""Links to predict that are edges of a `Graph`, or of some relations (edge types) of a `HeteroGraph`.

Ids of nodes are unique over the node types at both ends: the ids of the second type follow the ids of the first.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sarlite.comm import Communicator
from sarlite.comm.routing import ask, send
from sarlite.data.graph_tables import NODE
from sarlite.data.names import Names
from sarlite.errors import ConfigError
from sarlite.graph.graph import Graph
from sarlite.graph.hetero import HeteroGraph, NodeType, Relation
from sarlite.structure.edges import destinations
from sarlite.structure.part_edges_csr import owners
from sarlite.types import Array, RowIndex


class Ends(NamedTuple):
    """Node type of the heads or of the tails of links, with the first id and the number of its nodes.

    Attributes
    ----------
    first, n : int
        Id of the first node, and number of nodes. The ids of the nodes are first .. first + n - 1.
    node_type : str
    names : data.names.Names, optional
        Names of the nodes.
    """

    first: int
    n: int
    node_type: str = NODE
    names: Names | None = None


class LinkEdges(NamedTuple):
    """Edges of one relation (edge type), or of a graph with one relation, that are links to predict. An instance has the edges into this
    rank's rows.

    Attributes
    ----------
    relation : Relation, or None
        Relation of the edges; None for a `Graph`.
    nodes : Graph or NodeType
        Graph that the encoder computes on. A `NodeType` contains the types at the ends of all links.
    sources : (n_edges,) int64
        Ids of the sources.
    rows : (n_edges,) int64
        Local rows of the destinations.
    places : slice or (n_edges,) int
        Positions of the edges in the order of the graph's `edge_ids`.
    heads, tails : Ends
        Nodes that can be heads and tails of links.
    others : dict of relation to (sources, rows)
        Edges of the relations from the tails' type to the heads' type, which could reveal links.
    subgraph : callable
        Function (dict from relation to a mask of edges) -> `nodes` with only the masked edges. Collective.
    """

    relation: Relation | None
    nodes: Any
    sources: Array
    rows: Array
    places: RowIndex
    heads: Ends
    tails: Ends
    others: dict[Relation, tuple[Array, Array]]
    subgraph: Callable[[dict[Relation | None, Array]], Graph | NodeType]

    @property
    def times(self) -> Array | None:
        """Times of the edges, (n_edges,) int64, or None if the edges have no times."""
        graph = self.nodes if self.relation is None else self.nodes.graph
        values = graph.edge_values if self.relation is None else graph.edge_values.get(self.relation)
        return None if values is None or values.time is None else values.time[self.places]

    @property
    def ends(self) -> tuple[Array, Array]:
        """Pair (ids of the sources, ids of the destinations) of the edges, (n_edges,) each."""
        return self.sources, self.nodes.dst_ids[self.rows]


class Linked(NamedTuple):
    """Graph, and its relations (edge types) whose edges are the links to predict.

    Attributes
    ----------
    graph : Graph or HeteroGraph
    relation : Relation, list of Relation, or None
        The argument of `linked`.
    relations : list of Relation, or [None]
        Relations that are predicted; [None] for a `Graph`.
    nodes : Graph or NodeType
        Graph that the encoder computes on.
    ends : list of (Ends, Ends)
        Nodes at the source and the destination of each relation.
    """

    graph: Graph | HeteroGraph
    relation: Relation | list[Relation] | None
    relations: Sequence[Relation | None]  # a list of None for a Graph
    nodes: Graph | NodeType
    ends: list[tuple[Ends, Ends]]

    @classmethod
    def of_nodes(cls, graph: Graph, node_type: str, names: Mapping[str, Names]) -> "Linked":
        """Return a `Linked` without links, for commands that predict nodes: it describes the nodes of the type `node_type` in `graph`.
        `names` has the names of the nodes by node type, if they have names.
        """
        ends = Ends(0, graph.n_nodes, node_type, names.get(node_type))
        return cls(graph, None, [None], graph, [(ends, ends)])

    @property
    def several(self) -> list[str] | None:
        """Names of the relations, such as "user.buys.item", if `relation` is a list of relations; None for one relation."""
        return [_dotted(one) for one in self.relations] if is_several(self.relation) else None


def is_several(relation: Relation | list[Relation] | None) -> bool:
    """Return True if `relation` is a list of relations, False for one relation or None.

    Examples
    --------
    >>> is_several(("user", "buys", "item")), is_several([("user", "buys", "item")])
    (False, True)
    """
    return relation is not None and not (len(relation) and all(isinstance(word, str) for word in relation))


def linked(graph: object, relation: Any) -> Linked:
    """Return a `Linked`, a graph with the relations whose edges are links to predict, after checks. `relation` is one relation (edge type),
    a list of relations, or None for a `Graph` or the only relation.

    Parameters
    ----------
    graph : Graph or HeteroGraph
    relation : Relation, list of Relation, or None
        None for a `Graph`, and for the only relation of a `HeteroGraph`.

    Returns
    -------
    Linked

    Raises
    ------
    ConfigError
        The graph has no such relation, or the edges of the graph cannot be links.

    Examples
    --------
    >>> linked(Graph.from_edges([0, 1], [1, 2], 3), None).ends[0][0].n
    3
    """
    if not isinstance(graph, HeteroGraph):
        if not isinstance(graph, Graph):
            raise ConfigError(f"links: graph is a {type(graph).__name__}, but must be a Graph or a HeteroGraph")
        if relation is not None:
            raise ConfigError(f"relation {_dotted(relation)}: the graph has no relations", "relation")
        if graph.bipartite:
            raise ConfigError("links: bipartite graphs are not supported")
        both = Ends(0, graph.n_nodes)
        return Linked(graph, None, [None], graph, [(both, both)])
    if relation is None and len(graph.relations) > 1:
        raise ConfigError(f"relation: the graph has several, {_names(graph.relations)}; name one to predict", "relation")
    relations = [tuple(one) for one in (graph.relations[:1] if relation is None else
                                        relation if is_several(relation) else [relation])]
    for one in relations:
        if one not in graph.relations:
            raise ConfigError(f"relation {_dotted(one)} is not one of {_names(graph.relations)}", "relation")
    if len(set(relations)) < max(len(relations), 1):
        raise ConfigError(f"relation {_names(relations) or 'none'}: list each relation once", "relation")
    nodes = graph.of(*dict.fromkeys(name for source, _, to in relations for name in (source, to)))
    ends = {name: Ends(nodes.first[name], graph.n_nodes[name], name) for name in nodes.node_types}
    return Linked(graph, relation, relations, nodes, [(ends[source], ends[to]) for source, _, to in relations])


def link_edges(of: Linked) -> list[LinkEdges]:
    """Return a list of `LinkEdges`: this rank's edges of each relation to predict. `of` has the graph and these relations. Collective."""
    if isinstance(of.graph, Graph):
        return [_of_graph(of.graph, *of.ends[0])]
    ids: dict[Relation, tuple[Array, Array]] = {}
    return [_of_relation(of.graph, of.nodes, ids, one, *ends) for one, ends in zip(of.relations, of.ends)]


def _of_graph(graph, *ends):
    edges = graph.in_edges()
    places = slice(None) if edges.numbers is None else edges.numbers
    sources = graph.with_edge_values().edge_src_ids[places]  # the copy without values stores the ids
    return LinkEdges(None, graph, sources, destinations(edges.indptr), places, *ends, {},
                     lambda masks: graph.subgraph(masks[None], edges))


def _of_relation(graph, nodes, ids, relation, *ends):
    back = [other for other in graph.relations if other != relation
            and (other[2], other[0]) == (relation[0], relation[2])]
    numbers = graph.in_edges(relation).numbers
    for one in (relation, *back):
        if one not in ids:
            ids[one] = _end_ids(graph, nodes, one)
    return LinkEdges(relation, nodes, *ids[relation], slice(None) if numbers is None else numbers, *ends,
                     {one: ids[one] for one in back}, lambda masks: graph.subgraph(masks).of(*nodes.node_types))


def _end_ids(graph: HeteroGraph, nodes: NodeType, relation: Relation) -> tuple[Array, Array]:
    """Return (source id of each edge of `relation` in `graph`, local row of its destination), both (n_edges,). The ids and rows are those
    of `nodes`, a `NodeType` that numbers the nodes of several types together. Collective.
    """
    source, _, to = relation
    comm, edges, ids = graph.comm, graph.in_edges(relation), graph.node_ids[source]
    starts = np.concatenate([[0], np.cumsum(comm.allgather(len(ids)))])
    rows, places = np.unique(edges.indices, return_inverse=True)
    source_ids = ask(comm, owners(rows, starts), rows, lambda asked: ids[asked - starts[comm.rank]])[places.reshape(-1)]
    before = nodes.node_types[: nodes.node_types.index(to)]
    return source_ids + nodes.first[source], destinations(edges.indptr) + sum(len(graph.node_ids[name]) for name in before)


def out_links(edges: LinkEdges, listed: Array, numbers: Callable[[Array], Array]) -> tuple[Array, Array, Array, bool]:
    """Make links of this rank's `edges` and of the (source id, destination id) pairs `listed`, and send each link to the rank that owns its
    head. Return (local rows of the heads, ids of the tails, row numbers of the tails, True if each edge of the graph has its reverse).
    `numbers` maps ids to row numbers over all ranks. Collective.

    Parameters
    ----------
    edges : LinkEdges
        This rank's edges. Self loops are not links.
    listed : (k, 2) int64
        Further links, (source, destination) ids. Each rank passes some of the pairs.
    numbers : callable
        Function from ids to row numbers of all ranks, a `RowNumbers`.

    Returns
    -------
    heads, tails, tail_rows : (n_links,) int64
        Local rows of the heads, ids of the tails, and row numbers of the tails.
    undirected : bool
        True if there are edges on any rank, and the reverse of each edge is an edge.
    """
    nodes, (sources, tails) = edges.nodes, edges.ends
    comm, n = nodes.comm, nodes.n_nodes
    offsets = np.concatenate([[0], np.cumsum(comm.allgather(nodes.n_dst))])
    first, no_loop = offsets[comm.rank], sources != tails
    rows = edges.rows[no_loop]
    rows_sent = np.stack([numbers(sources[no_loop]), tails[no_loop], rows + first], 1).astype(np.int64)
    rows_sent = _to_heads(comm, offsets, rows_sent)
    same = np.array_equal(_distinct(rows_sent[:, 0] * n + rows_sent[:, 1]), _distinct(rows * n + sources[no_loop]))
    ranks, listed_rows = comm.allgather((same, len(rows))), numbers(listed)
    undirected = all(same for same, _ in ranks) and any(n_links for _, n_links in ranks)
    more = np.stack([listed_rows[:, 0], listed[:, 1], listed_rows[:, 1]], 1)
    if undirected:
        more = np.concatenate([more, np.stack([listed_rows[:, 1], listed[:, 0], listed_rows[:, 0]], 1)])
    rows_sent = np.concatenate([rows_sent, _to_heads(comm, offsets, more)])
    links, places = np.unique(rows_sent[:, 0] * n + rows_sent[:, 1], return_index=True)
    return links // n, links % n, rows_sent[places, 2], undirected


def _distinct(numbers):
    """Return the distinct numbers in ascending order, in a tenth of the time of `np.unique`."""
    ascending = np.sort(numbers)
    return ascending[np.diff(ascending, prepend=-1) > 0]


def _to_heads(comm: Communicator, offsets: Array, table: Array) -> Array:
    """Send each row of `table` to the rank that owns the row number in its column 0; return the rows received, with local row numbers in
    column 0. Rank r owns the row numbers offsets[r] .. offsets[r + 1] - 1. Collective.
    """
    table = send(comm, owners(table[:, 0], offsets), table)
    table[:, 0] -= offsets[comm.rank]
    return table


def _dotted(relation):
    """Return a relation as text, such as "user.buys.item"."""
    return ".".join(map(str, relation))


def _names(relations):
    return ", ".join(map(_dotted, relations))

"""In-neighbourhoods of single nodes: gathered from all ranks, as a whole graph with the rows of its nodes."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from sarlite.comm import Communicator, Solo
from sarlite.data.graph_tables import NODE, RELATION
from sarlite.graph.array_checks import Relation
from sarlite.graph.graph import Graph
from sarlite.graph.hetero import HeteroGraph, NodeType
from sarlite.graph.layer_graph import LayerGraph
from sarlite.graph.weights import in_edge_order
from sarlite.minibatch.temporal import ALWAYS
from sarlite.types import Array


class NodeRowTable(NamedTuple):
    """Table with one row for each node of one type. An instance holds the rows that this rank owns, and their ids.

    Attributes
    ----------
    node_type : str
    ids : (n,) int64
        Global ids of the nodes.
    rows : (n, ...) array
    """

    node_type: str
    ids: Array
    rows: Array


class _InEdges(NamedTuple):
    """Edges of one relation: global ids of sources and destinations, mask of self loops that were added to the data, and edge values."""

    src: Array
    dst: Array
    added: Array
    weight: Array | None
    features: Array | None
    time: Array | None

    def at(self, index: Array) -> "_InEdges":
        values = (None if array is None else array[index] for array in self[3:])
        return _InEdges(self.src[index], self.dst[index], self.added[index], *values)

    @classmethod
    def joined(cls, parts: Iterable["_InEdges"]) -> "_InEdges":
        values: list[Any] = [None if arrays[0] is None else np.concatenate(arrays) for arrays in zip(*parts)]
        return cls(*values)


class Moment(NamedTuple):
    """Limit for the edges of a neighbourhood. It excludes edges and source nodes later than a time, and limits the number of in-edges of a
    node.

    Attributes
    ----------
    time : int
        Edges with a later time, and edges from nodes with a later time, are left out.
    most : int
        Largest number of in-edges of a node, of which the latest are in the neighbourhood; -1 for all in-edges.
    """

    time: int
    most: int = -1


class Neighborhood(NamedTuple):
    """In-neighbourhood of one node: all nodes that have a path of at most a given number of edges to it, and the edges of these paths.

    Attributes
    ----------
    graph : Graph or NodeType
        The neighbourhood as a whole graph on this rank, with edge values. Nodes, and the edges of a destination, are in
        the order of global ids.
    row : int
        Row number of the node among the rows of its type.
    node_ids : dict of str to (n,) int64
        Global ids of the nodes of each type, ascending.
    distances : dict of str to (n,) int64
        Number of hops from each node to the one node.
    ends : dict of relation to ((n_edges,), (n_edges,)) int64
        Row numbers of each edge's source and destination, in the order of edge values.
    added : dict of relation to (n_edges,) bool
        True for each self loop that was added to the data.
    rows : dict of str to array
        Rows of each `NodeRowTable`, in the order of `node_ids`.
    """

    graph: Graph | NodeType
    row: int
    node_ids: dict[str, Array]
    distances: dict[str, Array]
    ends: dict[Relation, tuple[Array, Array]]
    added: dict[Relation, Array]
    rows: dict[str, Array]

    def removable(self, hops: int) -> dict[Relation, Array]:
        """Return for each relation a mask of the edges whose removal may change the prediction for the central node. The model has `hops`
        layers, so the destination of such an edge is fewer than `hops` edges away.

        Returns
        -------
        dict of relation to (n_edges,) bool
            False for added self loops, which are not edges of the data.
        """
        return {relation: (self.distances[relation[2]][dst] < hops) & ~self.added[relation]
                for relation, (_, dst) in self.ends.items()}


class Neighborhoods:
    """Finder of the in-neighbourhood of any node of a graph that is divided among the ranks. It gathers the edges, and the nodes' rows in
    given tables, from all ranks. Calls are collective.

    Construction is collective, too.

    Parameters
    ----------
    comm : Communicator
    graph : Graph or NodeType
        This rank's part.
    tables : dict of str to NodeRowTable
        Rows to gather for each node of a neighbourhood.
    times : dict of str to NodeRowTable
        Times of the nodes by node type, for the types that have times.

    Notes
    -----
    Memory: 33 bytes for each edge of this rank, and 8 more for times.
    """

    def __init__(self, comm: Communicator, graph: Graph | NodeType, tables: Mapping[str, NodeRowTable],
                 times: Mapping[str, NodeRowTable] = MappingProxyType({})) -> None:
        self.comm, self.graph, self.tables, self.times = comm, graph, dict(tables), dict(times)
        if isinstance(graph, NodeType):
            whole = graph.graph
            graphs = {relation: relation_graph for fetch in whole.by_source(whole.relations)
                      for relation, relation_graph in fetch.items()}
            self._edges = {relation: _in_edges(graphs[relation]) for relation in whole.relations}
            self.node_types = whole.node_types
        else:
            self._edges, self.node_types = {RELATION: _in_edges(graph)}, (NODE,)

    def around(self, node_type: str, node: int, hops: int, moment: Moment | None = None) -> Neighborhood:
        """Return, on every rank, the in-neighbourhood of the node of type `node_type` with global id `node`: the nodes that reach it over
        at most `hops` edges. `moment` limits edges by time; None takes all. Collective.

        The edges are the in-edges of the nodes that are fewer than `hops` hops away.

        Parameters
        ----------
        node_type : str
        node : int
            Global id.
        hops : int
        moment : Moment, optional
            Time that decides which edges and nodes are seen. By default all in-edges are.

        Notes
        -----
        Memory on every rank: the edges and rows of the neighbourhood, up to the whole graph near a hub.
        """
        ids = {name: np.empty(0, np.int64) for name in self.node_types}
        distances = {name: np.empty(0, np.int64) for name in self.node_types}
        frontier = {node_type: np.array([node])}
        gathered: dict[Relation, list[_InEdges]] = {relation: [] for relation in self._edges}
        for distance in range(hops + 1):
            for name, new in frontier.items():
                ids[name] = np.concatenate([ids[name], new])
                distances[name] = np.concatenate([distances[name], np.full(len(new), distance)])
            if distance == hops:
                break
            parts = self.comm.allgather({relation: _edges_into(edges, frontier.get(relation[2]))
                                         for relation, edges in self._edges.items()})
            new_edges = {relation: _InEdges.joined([part[relation] for part in parts]) for relation in self._edges}
            if moment is not None:
                new_edges = {relation: self._edges_until(relation, edges, moment) for relation, edges in new_edges.items()}
            for relation, edges in new_edges.items():
                gathered[relation].append(edges)
            frontier = {name: np.setdiff1d(np.concatenate(
                [edges.src for relation, edges in new_edges.items() if relation[0] == name] or [ids[name][:0]]),
                ids[name]) for name in self.node_types}
        order = {name: np.argsort(nodes) for name, nodes in ids.items()}
        ids, distances = ({name: array[order[name]] for name, array in arrays.items()} for arrays in (ids, distances))
        rows = {name: self._gather_rows(table, ids[table.node_type]) for name, table in self.tables.items()}
        return self._neighborhood(node_type, node, ids, distances, rows, {
            relation: _InEdges.joined(parts or [_edges_into(self._edges[relation], None)]) for relation, parts in gathered.items()})

    def _edges_until(self, relation: Relation, edges: _InEdges, moment: Moment) -> _InEdges:
        """Return the items of `edges`, of one relation, within the limits of `moment`. An edge and its source must not be later than
        `moment.time`, and of each node's in-edges only the `moment.most` latest count (all if below 0). Added self loops always count.
        Collective.
        """
        times = np.full(len(edges.src), ALWAYS) if edges.time is None else edges.time
        if relation[0] in self.times:
            sources, row_index = np.unique(edges.src, return_inverse=True)
            times = np.maximum(times, self._gather_rows(self.times[relation[0]], sources)[row_index])
        seen = np.flatnonzero(~edges.added & (times <= moment.time))
        seen = seen[np.lexsort((edges.src[seen], times[seen], edges.dst[seen]))]
        if moment.most >= 0:
            dst = edges.dst[seen]
            seen = seen[np.searchsorted(dst, dst, "right") - np.arange(len(seen)) <= moment.most]
        return edges.at(np.sort(np.concatenate([np.flatnonzero(edges.added), seen])))

    def _gather_rows(self, table: NodeRowTable, wanted_ids: Array) -> Array:
        """Return the rows of `table`, gathered from all ranks, of the nodes with the global ids `wanted_ids`, which are ascending.
        Collective.
        """
        local_rows = np.flatnonzero(np.isin(table.ids, wanted_ids))
        parts = self.comm.allgather((table.ids[local_rows], np.ascontiguousarray(table.rows[local_rows])))
        rows = np.empty((len(wanted_ids), *table.rows.shape[1:]), table.rows.dtype)
        for ids, values in parts:
            rows[np.searchsorted(wanted_ids, ids)] = values
        return rows

    def _neighborhood(self, node_type, node, ids, distances, rows, edges):
        """Make the `Neighborhood` of the node of type `node_type` with global id `node`. `ids` are the ascending ids of its nodes by type,
        `distances` their hops to the node; `rows` has the gathered rows by table, and `edges` the edges by relation.
        """
        ends, in_order = {}, {}
        for relation, edges_of in edges.items():
            edges_of = edges_of.at(np.lexsort((edges_of.src, edges_of.dst)))
            ends[relation] = np.searchsorted(ids[relation[0]], edges_of.src), np.searchsorted(ids[relation[2]], edges_of.dst)
            in_order[relation] = edges_of
        csr = {relation: (_indptr(dst, len(ids[relation[2]])), src) for relation, (src, dst) in ends.items()}
        weights = {relation: edges_of.weight for relation, edges_of in in_order.items() if edges_of.weight is not None}
        features = {relation: edges_of.features for relation, edges_of in in_order.items() if edges_of.features is not None}
        if isinstance(self.graph, NodeType):
            whole = HeteroGraph.from_part(Solo(), csr, ids)
            whole = whole.with_edge_values(weights, features) if weights or features else whole
            graph: Any = whole.of(*self.graph.node_types)
        else:
            loops = np.zeros(len(ids[NODE]), bool)
            loops[ends[RELATION][1][in_order[RELATION].added]] = True
            graph = Graph.from_part(Solo(), *csr[RELATION], node_ids=ids[NODE],
                                    added_loops=loops if self.graph.added_loops is not None else None)
            if weights or features:
                graph = graph.with_edge_values(weights.get(RELATION), features.get(RELATION))
        added = {relation: edges_of.added for relation, edges_of in in_order.items()}
        return Neighborhood(graph, int(np.searchsorted(ids[node_type], node)), ids, distances, ends, added, rows)


def _in_edges(graph: LayerGraph) -> _InEdges:
    """Return the edges of `graph`, which has one relation, into this rank's rows, sorted by destination."""
    rows = in_edge_order(np.repeat(np.arange(graph.n_dst), graph.in_degrees), graph.edges_of(graph.plan.local).numbers)
    src, dst = graph.edge_src_ids, graph.dst_ids[rows]
    added = np.zeros(len(src), bool) if graph.added_loops is None else graph.added_loops[rows] & (src == dst)
    edges = _InEdges(src, dst, added, graph.edge_weight, graph.edge_features, graph.edge_values.time)
    return edges.at(np.argsort(dst, kind="stable"))


def _edges_into(edges: _InEdges, node_ids: Array | None) -> _InEdges:
    """Return the edges whose destination is one of `node_ids`, which are global ids; no edges if it is None. `edges` are sorted by
    destination.
    """
    if node_ids is None or not len(node_ids):
        return edges.at(np.empty(0, np.int64))
    low, high = (np.searchsorted(edges.dst, node_ids, side) for side in ("left", "right"))
    counts = high - low
    return edges.at(np.repeat(low - np.cumsum(counts) + counts, counts) + np.arange(counts.sum()))


def _indptr(dst: Array, n: int) -> Array:
    return np.concatenate([[0], np.cumsum(np.bincount(dst, minlength=n))])

"""HeteroParts: the data of a HeteroGraph; RelationFetch: the graphs of the relations that share one fetch of source rows."""

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import numpy as np

from sarlite.comm import Communicator, agree
from sarlite.graph.array_checks import Relation
from sarlite.graph.build import GraphParts, build_part
from sarlite.graph.graph import Graph
from sarlite.graph.weights import EdgeValues, check_values
from sarlite.operators.evaluation import Sizes
from sarlite.operators.layer_contract import EvaluationLog
from sarlite.profile import Profile
from sarlite.schedule import needs, schedule
from sarlite.schedule.schedule import Options, Schedule
from sarlite.structure.part_edges_csr import InEdges
from sarlite.types import Array, ArrayLike


class HeteroParts(NamedTuple):
    """All data that a `HeteroGraph` is built from: in-edges, ids and edge values of one rank's part, by relation or node type.

    Attributes
    ----------
    comm : Communicator
    options : Options
    profile : Profile
    node_ids : dict of str to (n,) int64
        Global ids of this rank's rows of each type.
    in_edges : dict of relation to InEdges
        In-edges of this rank's rows.
    in_degrees : dict of relation to (n_dst,) int64
    edge_ids : dict of relation to (n_edges,) int64
        Global ids of the in-edges. A relation whose ids are 0, 1, 2, ... has no entry.
    n_nodes : dict of str to int
        Number of nodes of each type, of all ranks.
    n_edges : dict of relation to int
        Number of edges of each relation, of all ranks.
    edge_values : dict of relation to EdgeValues
        Weights and features of the in-edges of the relations that have any.
    names : dict of str to (n,) array
        The caller's names of the nodes of each type, of all ranks; empty if nodes have no names.
    """

    comm: Communicator
    options: Options
    profile: Profile
    node_ids: Mapping[str, Array]
    in_edges: Mapping[Relation, InEdges]
    in_degrees: Mapping[Relation, Array]
    edge_ids: Mapping[Relation, Array]
    n_nodes: Mapping[str, int]
    n_edges: Mapping[Relation, int]
    edge_values: Mapping[Relation, EdgeValues]
    names: Mapping[str, Array]

    def ids_of(self, relation: Relation) -> Array:
        """Return the global ids of this rank's in-edges of a relation, (n_edges,) int64."""
        ids = self.edge_ids.get(relation)
        return np.arange(len(self.in_edges[relation].indices)) if ids is None else ids

    def with_values(self, weights: Mapping[Relation, ArrayLike], features: Mapping[Relation, ArrayLike],
                    times: Mapping[Relation, ArrayLike]) -> "HeteroParts":
        """Return a copy with the edge values {relation: array} in place of its own: checked weights, features and times. Collective."""
        values = {relation: check_values(self.comm, weights.get(relation), features.get(relation),
                                         partial(self.ids_of, relation), len(edges.indices), f" of {relation}", times.get(relation))
                  for relation, edges in self.in_edges.items() if any(relation in every for every in (weights, features, times))}
        return self._replace(edge_values=values)


def build_relations(comm: Communicator, options: Options, in_edges: Mapping[Relation, InEdges],
                    node_ids: Mapping[str, Array], edge_ids: Mapping[Relation, Array],
                    profile: Profile | None = None) -> HeteroParts:
    """Return the HeteroParts (all data of a HeteroGraph) of this rank's part, from its in-edges, node ids and edge ids; the numbers
    of nodes and edges are summed over all ranks. `profile` has counters to share (None: new ones). Collective.
    """
    n_nodes = comm.allreduce(np.array([len(ids) for ids in node_ids.values()], np.int64))
    n_edges = comm.allreduce(np.array([len(edges.indices) for edges in in_edges.values()], np.int64))
    in_degrees = {relation: np.diff(edges.indptr) for relation, edges in in_edges.items()}
    return HeteroParts(comm, options, profile or Profile(), node_ids, in_edges, in_degrees, edge_ids,
                       dict(zip(node_ids, map(int, n_nodes))), dict(zip(in_edges, map(int, n_edges))), {}, {})


class RelationFetch(NamedTuple):
    """Relations out of one node type that share a fetch of its rows: the schedule of the fetch, and a Graph for each relation.

    Attributes
    ----------
    schedule : Schedule
        Schedule of the fetch; its blocks have the edges of all these relations.
    n_halo : int
        Number of halo rows, summed over all ranks.
    graphs : dict of relation to Graph
    """

    schedule: Schedule
    n_halo: int
    graphs: dict[Relation, Graph]


def make_fetch(parts: HeteroParts, relations: tuple[Relation, ...], evaluation_log: EvaluationLog) -> RelationFetch:
    """Build the exchange of source rows that `relations`, out of one node type, share, and a Graph for each. `evaluation_log`
    records if a relation sums first or multiplies by its weight first. Collective.

    Parameters
    ----------
    parts : HeteroParts
    relations : tuple of relation
        Relations out of one node type; a single relation if `parts.options.separate`.
    evaluation_log : EvaluationLog
        Log that the relations share.
    """
    comm = parts.comm
    agree(comm, relations, f"relations out of {relations[0][0]!r} that are aggregated together")
    graph_parts = _separate(parts, *relations) if parts.options.separate else _joined(parts, relations)
    plan = graph_parts[0].schedule.plan
    n_halo = int(comm.allreduce(np.array([plan.n_halo], np.int64))[0])
    n_fetched, graphs = max(sum(parts.n_edges[relation] for relation in relations), 1), dict[Relation, Graph]()
    for index, (relation, each) in enumerate(zip(relations, graph_parts)):
        n_src, n_dst, n_edges = parts.n_nodes[relation[0]], parts.n_nodes[relation[2]], parts.n_edges[relation]
        graphs[relation] = Graph(each._replace(
            relation=relation, relation_index=index, edge_ids=parts.edge_ids.get(relation),
            exchanged_sizes=Sizes(n_src, n_dst, n_edges, n_halo * n_edges // n_fetched, n_dst),
            edge_values=parts.edge_values.get(relation, EdgeValues()), evaluation_log=evaluation_log))
    return RelationFetch(graph_parts[0].schedule, n_halo, graphs)


def _joined(parts: HeteroParts, relations: tuple[Relation, ...]) -> list[GraphParts]:
    """Return a list with the GraphParts (all data of a Graph) of each relation. The graphs have one schedule, whose blocks hold the
    edges of all relations, so that a single fetch of source rows serves them.
    """
    src_ids = parts.node_ids[relations[0][0]]
    edges = [parts.in_edges[relation] for relation in relations]
    halo = needs.find(parts.comm, edges, src_ids, len(src_ids))
    joined = schedule.make(parts.comm, halo, parts.options, parts.profile)
    return [GraphParts(parts.comm, joined, parts.profile, parts.options, n_nodes=parts.n_nodes[relation[2]],
                       dst_ids=parts.node_ids[relation[2]], src_ids=src_ids, edge_ids=None,
                       in_degrees=parts.in_degrees[relation], bipartite=True) for relation in relations]


def _separate(parts: HeteroParts, relation: Relation) -> list[GraphParts]:
    """Return [graph_parts] for one `relation` that does not share the fetch of its source rows with other relations. The only item is the
    `GraphParts`, the data from which the relation's Graph is built.
    """
    src_ids, dst_ids = parts.node_ids[relation[0]], parts.node_ids[relation[2]]
    return [build_part(parts.comm, parts.in_edges[relation], node_ids=dst_ids, src_ids=src_ids, n_src=len(src_ids),
                       options=parts.options, profile=parts.profile)]

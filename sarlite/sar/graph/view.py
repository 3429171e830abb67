"""One relation of a `HeteroGraph` as its operator sees it: what `Graph` is to the operators of graphs of one kind."""

import numpy as np

from sarlite.sar.graph.layer_graph import LayerGraph
from sarlite.sar.operators import relations


class View:
    """The relation `chosen[place]`, in the bundle of the relations `chosen` out of one type, whose schedule is `made`."""

    check = LayerGraph.check
    inverse_degrees, column_ids = LayerGraph.inverse_degrees, LayerGraph.column_ids

    def __init__(self, graph, chosen, place, made):
        source, _, to = self.relation = relation = chosen[place]
        self.schedule, self.place, self._kept = made, place, graph.view_arrays.setdefault((tuple(chosen), place), {})
        self.in_degrees, self.dst_ids, self.n_nodes = graph.in_degrees[relation], graph.node_ids[to], graph.n_nodes[to]
        self.n_src, self.n_dst, self.n_edges = len(graph.node_ids[source]), len(self.dst_ids), int(self.in_degrees.sum())
        self.plan = made.plan
        self.itype = relations.sets_of(made.plan.local)[0].indices.dtype

    def scales(self, reducer):
        """As `Graph.scales`; of "sym" the sources' degrees are those out of them in the relation. Collective."""
        if reducer != "sym":
            return self.inverse_degrees if reducer == "mean" else None, None
        if "sym" not in self._kept:
            degrees, profile = np.zeros((self.n_src, 1)), self.schedule.transport.profile
            with profile.phase("setup"):
                self.schedule.run_backward(None, None, self._count, [degrees])
                own = np.sqrt(1.0 / np.maximum(degrees[:, 0], 1))
                columns = self.schedule.run((own,), lambda block, rows: rows[0].copy(), keep=True)
            self._kept["sym"] = np.sqrt(self.inverse_degrees), np.concatenate(columns)
        return self._kept["sym"]

    def _count(self, block, rows, kept, d_rows):
        d_rows[0][:, 0] += np.diff(relations.sets_of(block)[self.place].transpose[0])

    @property
    def edge_src_ids(self):
        """(n_edges,) global id of each edge's source, in the order of edge values."""
        if "sources" not in self._kept:
            ids = np.empty(self.n_edges, np.int64)
            for block in self.plan.blocks:
                edges = relations.sets_of(block)[self.place]
                ids[edges.labels] = edges.src_ids[edges.indices]
            self._kept["sources"] = ids
        return self._kept["sources"]

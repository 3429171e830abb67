"""Graph: one part of a graph, or a whole one, which is a sharded graph of one part."""

from functools import cached_property
from typing import Any, cast

import numpy as np

from sarlite.comm import Communicator
from sarlite.graph.part import InEdges
from sarlite.profile import Counted, Profile
from sarlite.sar.graph import construct, frames, weights, whole
from sarlite.sar.graph.layer_graph import LayerGraph
from sarlite.sar.graph.shard import shard
from sarlite.sar.schedule.needs import Needs
from sarlite.sar.schedule.reverse import out_edges
from sarlite.sar.schedule.schedule import Options, Schedule
from sarlite.sar.schedule.state import Kept
from sarlite.types import Array


class Graph(LayerGraph):
    """One part of a graph, or of one relation of a `HeteroGraph`: its in-edges by block, and how peers' rows arrive.

    Make one with `from_edges`, `from_csr`, `from_scipy`, `from_networkx`, `from_pandas`, `from_part` or
    `shard`. It has what a `LayerGraph` has, and:

    Attributes
    ----------
    node_ids : (n_dst,) int64
        Another name for `dst_ids`. `src_ids` are the same array, but on a bipartite graph.
    ids : (n_dst,) array
        What the caller calls the local rows: nodes of `from_networkx`, ids of `from_pandas`; else `node_ids`.
    edge_ids : (n_edges,) int64
        Global ids of the local in-edges: a rank's edge values are `values[graph.edge_ids]`. Made at the first use where
        they count up.
    edge_weight, edge_features
        What `with_edge_values` gave the local in-edges, in the order of `edge_ids`.
    options : Options
        How it is computed with on several ranks.
    """

    from_edges = classmethod(whole.from_edges)
    from_csr = classmethod(whole.from_csr)
    from_scipy = classmethod(whole.from_scipy)
    from_networkx = classmethod(whole.from_networkx)
    from_pandas = classmethod(frames.from_pandas)
    from_part = classmethod(construct.from_part)
    to_scipy, to_networkx, to_pandas = frames.to_scipy, frames.to_networkx, frames.to_pandas
    shard = shard
    with_edge_values = weights.with_edge_values
    whole_edges = True
    names: Array | None = None
    """What the caller calls the nodes of the whole graph."""

    def __init__(self, comm: Communicator, schedule: Schedule, profile: Profile, kept: Kept, *,
                 options: Options, n_nodes: int, dst_ids: Array, src_ids: Array, edge_ids: Array | None,
                 in_degrees: Array, added_loops: Array | None = None, bipartite: bool = False) -> None:
        sizes = len(src_ids), len(dst_ids), int(in_degrees.sum())
        counted = cast(Communicator, Counted(comm, profile))
        super().__init__(counted, schedule, profile, kept, n_nodes, sizes, added_loops, bipartite)
        self.dst_ids, self.src_ids, self.in_degrees = dst_ids, src_ids, in_degrees
        self._edge_ids, self.options = edge_ids, options

    def __repr__(self) -> str:
        size = self.comm.size
        share = f", part {self.comm.rank} of {size}, mode {self.schedule.mode}" if size > 1 else ""
        return f"Graph(n_src={self.n_src}, n_dst={self.n_dst}, n_edges={self.n_edges}{share})"

    @property
    def mode(self) -> Any:
        """How rows travel; see `sar.schedule.modes`."""
        return self.schedule.mode

    @property
    def node_ids(self) -> Array:
        return self.dst_ids

    @property
    def ids(self) -> Array:
        return self.dst_ids if self.names is None else self.names[self.dst_ids]

    @cached_property
    def edge_ids(self) -> Array:
        return np.arange(self.n_edges) if self._edge_ids is None else self._edge_ids

    def lay_out(self, found: Needs) -> Schedule:
        """Return a schedule of edges that `needs.find` has found, in the graph's mode. Collective.

        The edges' rows are float32.
        """
        there = self.schedule
        return Schedule(there.mode.plan(found, there.transport.prefetch), there.transport, there.mode)

    def in_edges(self) -> InEdges:
        """Return this part's edges in source order, as one CSR. Collective.

        Returns
        -------
        InEdges
            Its indices are row numbers of sources in the whole graph. Arrays are shared where there is but one rank;
            else made anew, 8 bytes an edge, and a number a halo row is fetched, counted under "setup".
        """
        local, indptr = self.edges_of(self.plan.local), np.concatenate([[0], np.cumsum(self.in_degrees)])
        if self.comm.size == 1:
            return InEdges(indptr, local.indices, local.numbers, self.added_loops)
        first = sum(self.comm.allgather(self.n_src)[: self.comm.rank])
        with self.profile.phase("setup"):
            row_numbers = self.of_columns(np.arange(first, first + self.n_src))
        indices = np.empty(self.n_edges, np.int64)
        for block, numbers in zip(self.blocks, row_numbers):
            indices[slice(None) if block.positions is None else block.positions] = numbers[block.indices]
        return InEdges(indptr, indices, local.numbers, self.added_loops)

    def keeping(self, kept: Array, edges: InEdges | None = None) -> "Graph":
        """Return the graph with some of its edges, and the values on these. Collective.

        Parameters
        ----------
        kept : (n_edges,) bool
            Which edges stay, in the order of `in_edges`.
        edges : InEdges, optional
            What `in_edges` has returned.
        """
        part, numbers = (edges or self.in_edges()).some(kept)
        sources = (self.src_ids, self.n_src) if self.bipartite else (None, None)
        made = construct.make(type(self), self.schedule.transport.comm, part, self.dst_ids, sources[0],
                              self.edge_ids[numbers], sources[1], self.options, self.profile)
        made.mistakable, made.names = self.mistakable, self.names
        values = [None if array is None else array[numbers] for array in (self.edge_weight, self.edge_features)]
        return made if all(array is None for array in values) else made.with_edge_values(*values)

    def out_edges(self) -> tuple[Array, Array]:
        """Return the edges from this rank's source rows, by source. Collective.

        Returns
        -------
        indptr : (n_src + 1,) int64
        indices : (edges,) int64
            Row numbers of destinations in the whole graph, ascending in each row.

        Notes
        -----
        Memory: 40 bytes an in-edge and an out-edge while it runs; nothing is kept.
        """
        edges = out_edges(self.comm, self.in_edges(), self.n_src)
        return edges.indptr, edges.indices

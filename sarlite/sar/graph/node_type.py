"""NodeType: the nodes of one type of a HeteroGraph, or of several, as rows of one table."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from sarlite.sar.schedule.needs import Needs
from sarlite.sar.schedule.schedule import Options, Schedule, make
from sarlite.tape import Tensor, ops

if TYPE_CHECKING:
    from sarlite.sar.graph.hetero import HeteroGraph


class NodeType:
    """The nodes of one type or of several, as `nn.Activation`, `nn.BatchNorm` and a `Trainer` see them.

    That is between aggregations. The rows and ids of several types stand one type after the other, as the ends of a
    relation's links have them.

    Attributes
    ----------
    graph : HeteroGraph
    node_types : tuple of str
    node_type : str
        The types, joined by "+".
    first : dict of str to int
        The number of a type's first node among `n_nodes`.
    n_nodes : int
        Of all ranks.
    n_src, n_dst : int
        Rows of this rank.
    src_ids, dst_ids, node_ids : (n_dst,) int64
        One array: global ids of the local rows.
    comm, profile, kept
        The graph's.
    part_rows : None
        As of a `Batch`, which has some rows of the part: here the first layer reads all.
    """

    part_rows = None

    def __init__(self, graph: "HeteroGraph", *node_types: str) -> None:
        self.graph, self.node_types, self.node_type = graph, node_types, "+".join(node_types)
        ends = np.cumsum([graph.n_nodes[name] for name in node_types]).tolist()
        self.first, self.n_nodes = dict(zip(node_types, [0, *ends])), ends[-1]
        ids = [graph.node_ids[name] for name in node_types]
        self.node_ids = self.src_ids = self.dst_ids = ids[0] if len(ids) == 1 else np.concatenate(
            [own + first for own, first in zip(ids, self.first.values())])
        self.n_src = self.n_dst = len(self.node_ids)
        self.comm, self.profile, self.kept = graph.comm, graph.profile, graph.kept

    def __repr__(self) -> str:
        return f"NodeType({self.node_type!r}, {self.n_dst} of {self.n_nodes} rows)"

    @property
    def options(self) -> Options:
        """How the graph is computed with on several ranks."""
        return self.graph.options

    @property
    def mode(self) -> Any:
        """How rows travel; see `sar.schedule.modes`."""
        return self.graph.options.made_mode

    @property
    def n_edges(self) -> int:
        """This rank's in-edges of all relations."""
        return sum(map(len, self.graph.edge_ids.values()))

    @property
    def n_halo(self) -> int:
        """How many peers' rows this rank needs, of all relations out of each type. Collective at first."""
        out_of = [self.graph.out_of(name) for name in self.graph.node_types]
        return sum(graphs[0].n_halo for graphs in out_of if graphs)

    def layers(self, n: int) -> list[Any]:
        """Return the graphs that `n` layers compute on: the `HeteroGraph`, n times."""
        return [self.graph] * n

    def select(self, h: Mapping[str, Tensor]) -> Tensor:
        """Return the rows of the types, (n_dst, ...), of rows by type."""
        return h[self.node_type] if len(self.node_types) == 1 else ops.concat([h[name] for name in self.node_types])

    def lay_out(self, found: Needs) -> Schedule:
        """Return a schedule of edges that `needs.find` has found, in the graph's mode. Collective.

        The edges' rows are float32.
        """
        return make(self.graph._comm, found, self.graph.options._replace(rows="float32"), self.profile)

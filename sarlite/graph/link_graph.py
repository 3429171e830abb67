"""LinkGraph: candidate links between a graph's nodes, computed on as one more layer after the graph's layers."""

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from sarlite import kernels
from sarlite.comm import Communicator
from sarlite.errors import ConfigError, ShapeError
from sarlite.graph.graph import Graph
from sarlite.graph.hetero import NodeType
from sarlite.graph.layer_graph import LayerGraph
from sarlite.graph.shared_state import Unchanging
from sarlite.operators import fn
from sarlite.schedule import needs
from sarlite.schedule.schedule import Schedule
from sarlite.structure.part_edges_csr import InEdges
from sarlite.tape import Tensor, apply, ops
from sarlite.tape.recording import grad_enabled
from sarlite.types import Array

Draw = Callable[[int, Array], "LinkGraph"]  # (step, rows) -> those rows, with the step's negatives


class LinkGraph(Unchanging):
    """Rows of candidate links; each row has c candidates, a head and a tail node each. Construction is collective.

    The last layer of a model scores the candidates: its output has one row for each row of the `LinkGraph` and one
    column for each candidate. In training the first candidate is a link of the data, and the other candidates are
    negatives.

    Parameters
    ----------
    nodes : Graph, NodeType, or Batch
        Graph of the encoder, along whose edges messages pass; not bipartite. With relations, the node types at the
        links' ends.
    heads : (n, c) or (n, 1) int64, or (n,) int
        Row numbers over all ranks; (n, 1) if the candidates of a row share a head; (n,) for row numbers of local heads.
        The same kind on every rank.
    tails : (n, c) int64
        Row numbers over all ranks; c is the same on every rank.
    relations : (n,) int64, optional
        Relation of each row, by which a decoder selects its parameters; only for links of several relations.
    draw : callable, optional
        (step, rows) -> LinkGraph of these rows with the negatives of a training step; collective. By default all steps
        have the same negatives.
    over : Graph, optional
        Graph whose mode and transport bring remote ends, if `nodes` is a batch of the graph.
    comm : Communicator, optional
        Communicator of the construction.
    at_once : int, optional
        Number of candidates that are scored at a time without gradients, which limits the rows held; by default all.

    Attributes
    ----------
    n_src, n_dst, n_candidates : int
        Number of local rows that the encoder outputs; n; c.
    comm, profile : Communicator, Profile
        Those of `nodes`.

    Notes
    -----
    The heads and the tails are each fetched as the sources of a bipartite graph with one edge to each candidate. So the
    mode of `nodes` brings remote rows and returns their gradients, as in any layer. Construction sends 16 bytes per
    remote row, counted under "setup"; with `at_once` each call of `score` sends them again. Memory, on one rank: about
    43 bytes per candidate if a row has one head, else 72; with `at_once` 10, else 16.
    """

    def __init__(self, nodes: Any, heads: Array, tails: Array, draw: Draw | None = None, *, over: Graph | None = None,
                 comm: Communicator | None = None, at_once: int | None = None, relations: Array | None = None) -> None:
        self._graph: Any = over or nodes
        graph, comm = self._graph, comm or self._graph.comm
        if heads.ndim == 1:
            heads = heads[:, None] + sum(comm.allgather(nodes.n_dst)[: comm.rank])
        self.nodes, self.heads, self.tails, self.relations, self.draw = nodes, heads, tails, relations, draw
        self.comm, self.profile, self.memo = graph.comm, graph.profile, graph.memo
        self.n_src, self.n_dst, self.n_candidates = nodes.n_dst, len(heads), tails.shape[1]
        self._rows_at_once = self.n_dst if at_once is None else max(at_once // max(self.n_candidates, 1), 1)
        self._n_pieces = 1
        if at_once is not None:
            pieces = -(-self.n_dst // self._rows_at_once)
            self._n_pieces = max(int(comm.allreduce(np.array([pieces], np.float64), "max")[0]), 1)
        self._slots = self._make_slots(comm) if self._n_pieces == 1 else None

    def __repr__(self) -> str:
        return f"LinkGraph({self.n_dst} rows of {self.n_candidates} candidates, {self.nodes!r})"

    def layers(self, n: int) -> NoReturn:
        """Raise a ConfigError: a model of nodes scores no links."""
        raise ConfigError("a LinkGraph's rows are links: give the model of nodes a decoder, nn.LinkPredictor(model, "
                          "nn.Dot())")

    def score(self, decoder: Callable[..., Tensor], h: Tensor) -> Tensor:
        """Return the scores (n, c) that `decoder` gives the candidates. Collective.

        The decoder is called with the rows of the heads, (n, 1, width) or (n, c, width), and of the tails, (n, c,
        width). With several relations the relation of each row is a third argument.

        Parameters
        ----------
        decoder : callable
        h : (n_src, width) Tensor
            One row for each of this rank's nodes.

        Raises
        ------
        ShapeError
            h has another shape.
        """
        if h.ndim != 2 or len(h) != self.n_src:
            raise ShapeError(f"links: a row each of {self.n_src} nodes is needed, but h has shape {h.shape}")
        if self._n_pieces > 1 and not grad_enabled():
            starts = range(0, self._n_pieces * self._rows_at_once, self._rows_at_once)
            return ops.concat([self._piece(start).score(decoder, h) for start in starts])
        self._slots = self._slots or self._make_slots(self._graph.comm)
        heads, tails = (_candidate_rows(slots.aggregate(fn.copy_src(h), "sum"), rows.shape)
                        for slots, rows in zip(self._slots, (self.heads, self.tails)))
        return decoder(heads, tails) if self.relations is None else decoder(heads, tails, self.relations)

    def _piece(self, start):
        """Return the LinkGraph of the rows from `start` on that are scored at a time. Collective."""
        rows = slice(start, start + self._rows_at_once)
        relations = None if self.relations is None else self.relations[rows]
        return LinkGraph(self.nodes, self.heads[rows], self.tails[rows], over=self._graph, relations=relations)

    def _make_slots(self, comm):
        with self.nodes.profile.phase("setup"):
            return [kernels.outside_buffers(_slots_of, comm, self._graph, self.nodes.dst_ids, end.reshape(-1))
                    for end in (self.heads, self.tails)]


def _candidate_rows(rows, shape):
    """Return the rows (n * c, width) of candidates as rows of links, (n, c, width); a rank owns whole links."""
    return apply("reshape", rows, placement="rows", shape=(*shape, rows.shape[1]))


class _Slots(LayerGraph):
    """A graph with one destination row for each candidate, whose only source is an end of the candidate link."""

    has_all_edges = True

    def __init__(self, graph: Graph | NodeType, schedule: Schedule, ids: Array, n: int) -> None:
        super().__init__(graph.comm, schedule, graph.profile, graph.n_nodes, (len(ids), n, n), bipartite=True)
        self.src_ids, self.dst_ids, self.in_degrees = ids, np.arange(n), np.ones(n, np.int64)


def _slots_of(comm, graph, ids, rows):
    halo = needs.find(comm, [InEdges(np.arange(len(rows) + 1), rows)], ids, len(ids))
    return _Slots(graph, graph.schedule_of(halo), ids, len(rows))

"""LinkGraph: candidate links between a graph's nodes, whose scores are one more layer after the layers of the graph."""

from collections.abc import Callable
from typing import NoReturn, Protocol

import numpy as np

from sarlite import kernels
from sarlite.comm import Communicator
from sarlite.errors import ConfigError, ShapeError
from sarlite.graph.layer_graph import LayerGraph
from sarlite.graph.shared_state import OutputRows, Unchanging
from sarlite.operators import fn
from sarlite.profile import Profile
from sarlite.schedule import needs
from sarlite.schedule.communicator_state import Memo
from sarlite.schedule.needs import Needs
from sarlite.schedule.schedule import Schedule
from sarlite.structure.part_edges_csr import InEdges
from sarlite.tape import Tensor, apply, ops
from sarlite.tape.recording import grad_enabled
from sarlite.types import Array

Draw = Callable[[int, Array], "LinkGraph"]
"""Function (step, rows) -> the LinkGraph of these rows with the negatives of a training step."""
Ranks = Callable[[Callable[..., Tensor], Array], Array]
"""Function (decoder, rows of nodes) -> ranks of links among all destinations, as `tasks.ranking.Ranking` returns them."""


class NodeRows(OutputRows, Protocol):
    """Protocol of the nodes whose rows an encoder outputs: a `Graph`, a `NodeType` or a `Batch`."""

    @property
    def profile(self) -> Profile: ...
    @property
    def memo(self) -> Memo: ...
    @property
    def n_dst(self) -> int: ...
    @property
    def n_nodes(self) -> int: ...
    def schedule_of(self, needs: Needs) -> Schedule: ...


class LinkGraph(Unchanging):
    """Graph whose n rows are links. Each link has c candidates, pairs of nodes (head, tail), and a model outputs a score for each,
    (n, c). Construction is collective.

    The output of a link model has the shape (n, c): one row for each link and one column for each candidate. In
    training candidate 0 is a link of the data, and the other candidates are negatives.

    Parameters
    ----------
    nodes : Graph, NodeType, or Batch
        Rows of the nodes that the encoder outputs; not bipartite. With relations, the node types at the links' ends.
    heads : (n, c) or (n, 1) int64, or (n,) int
        Row numbers of all ranks; (n, 1) if the candidates of a link share the head. With shape (n,) the candidates of a
        link share a head of this rank, by its local row number. All ranks use the same form.
    tails : (n, c) int64
        Row numbers of all ranks; c is the same on every rank.
    draw : callable, optional
        Function (step, rows) -> LinkGraph of these rows with the negatives of a training step; collective. By default
        all steps have the same negatives.
    ranking : callable, optional
        Function (decoder, h) -> ranks of the rows' links among all destinations; collective. By default links are
        compared with their candidates alone.
    graph : Graph, optional
        Graph whose mode and transport bring remote ends, if `nodes` is a batch of this graph.
    comm : Communicator, optional
        Communicator that the construction uses; by default the one of `nodes`.
    at_once : int, optional
        Number of candidates that are scored at a time if no gradients are recorded, to limit the memory of their rows;
        by default all.
    relations : (n,) int64, optional
        Relation of each link, by which a decoder selects its parameters; only for links of several relations.

    Attributes
    ----------
    n_src, n_dst, n_candidates : int
        Number of local rows that the encoder outputs; n; c.
    comm, profile : Communicator, Profile
        Attributes of `nodes`.

    Notes
    -----
    The rows of the heads are fetched over a bipartite graph that has one edge from a node to each candidate, and so are
    the rows of the tails. So the mode of `nodes` brings remote rows and returns their gradients, as in any layer.
    Construction sends 16 bytes for each remote row, counted under "setup"; with `at_once` each call of `score` sends
    them again. Memory on one rank: about 43 bytes for each candidate if the candidates of a link share a head, else 72
    bytes; with `at_once` 10 and 16 bytes.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import Graph, Tensor, nn
    >>> from sarlite.graph.link_graph import LinkGraph
    >>> graph = Graph.from_edges([0, 1, 2], [1, 2, 0])
    >>> links = LinkGraph(graph, np.array([[0], [1]]), np.array([[1, 2], [2, 0]]))
    >>> links
    LinkGraph(2 rows of 2 candidates, Graph(n_src=3, n_dst=3, n_edges=3))
    >>> links.score(nn.Dot(), Tensor(np.eye(3))).shape
    (2, 2)
    """

    def __init__(self, nodes: NodeRows, heads: Array, tails: Array, draw: Draw | None = None, *, graph: NodeRows | None = None,
                 comm: Communicator | None = None, at_once: int | None = None, relations: Array | None = None,
                 ranking: Ranks | None = None) -> None:
        self._graph: NodeRows = graph or nodes
        comm = comm or self._graph.comm
        if heads.ndim == 1:
            heads = heads[:, None] + sum(comm.allgather(nodes.n_dst)[: comm.rank])
        self.nodes, self.heads, self.tails, self.relations, self.draw = nodes, heads, tails, relations, draw
        self.ranking = ranking
        self.comm, self.profile, self.memo = self._graph.comm, self._graph.profile, self._graph.memo
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
        """Raise a ConfigError, because a model that asks a graph for `n` layers outputs rows of nodes, not of links."""
        raise ConfigError("a LinkGraph's rows are links: give the model of nodes a decoder, nn.LinkPredictor(model, "
                          "nn.Dot())")

    def score(self, decoder: Callable[..., Tensor], h: Tensor) -> Tensor:
        """Return the scores of all candidates, (n, c), that the function `decoder` computes from the rows of their heads and tails.
        `h`, (n_src, width), has the rows of this rank's nodes. Collective.

        Parameters
        ----------
        decoder : callable
            Function (heads, tails) -> scores, of Tensors (n, 1, width) or (n, c, width), and (n, c, width). With
            several relations, a function (heads, tails, relations).
        h : (n_src, width) Tensor
            One row for each of this rank's nodes.

        Raises
        ------
        ShapeError
            h has another shape.
        """
        if h.ndim != 2 or len(h) != self.n_src:
            raise ShapeError(f"links: h has shape {h.shape}, but must have one row for each of {self.n_src} nodes")
        if self._n_pieces > 1 and not grad_enabled():
            starts = range(0, self._n_pieces * self._rows_at_once, self._rows_at_once)
            return ops.concat([self._piece(start).score(decoder, h) for start in starts])
        self._slots = self._slots or self._make_slots(self._graph.comm)
        heads, tails = (_candidate_rows(slots.aggregate(fn.copy_src(h), "sum"), rows.shape)
                        for slots, rows in zip(self._slots, (self.heads, self.tails)))
        return decoder(heads, tails) if self.relations is None else decoder(heads, tails, self.relations)

    def _piece(self, first_link: int) -> "LinkGraph":
        """Return the LinkGraph of the links first_link .. first_link + _rows_at_once - 1; links are scored in such pieces to limit
        memory. Collective.
        """
        rows = slice(first_link, first_link + self._rows_at_once)
        relations = None if self.relations is None else self.relations[rows]
        return LinkGraph(self.nodes, self.heads[rows], self.tails[rows], graph=self._graph, relations=relations)

    def _make_slots(self, comm):
        with self.nodes.profile.phase("setup"):
            return [kernels.outside_buffers(_candidate_ends, comm, self._graph, self.nodes.dst_ids, end.reshape(-1))
                    for end in (self.heads, self.tails)]


def _candidate_rows(rows: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Reshape `rows`, (n * c, width), to (n, c, width), where `shape` is (n, c). The result keeps the placement "rows", as each
    rank has rows of its own.
    """
    return apply("reshape", rows, placement="rows", shape=(*shape, rows.shape[1]))


class _CandidateEnds(LayerGraph):
    """Bipartite graph with one edge into each candidate link, from its head (or from its tail), so that an aggregation gathers the
    rows of the heads (or tails).
    """

    has_all_edges = True

    def __init__(self, graph: NodeRows, schedule: Schedule, ids: Array, n: int) -> None:
        super().__init__(graph.comm, schedule, graph.profile, graph.n_nodes, (len(ids), n, n), bipartite=True)
        self.src_ids, self.dst_ids, self.in_degrees = ids, np.arange(n), np.ones(n, np.int64)


def _candidate_ends(comm: Communicator, graph: NodeRows, ids: Array, rows: Array) -> "_CandidateEnds":
    """Return the bipartite graph with one edge into each candidate k, from the node with row number rows[k], counted over all
    ranks. `ids` are the global ids of this rank's nodes in `graph`. Collective.
    """
    halo = needs.find(comm, [InEdges(np.arange(len(rows) + 1), rows)], ids, len(ids))
    return _CandidateEnds(graph, graph.schedule_of(halo), ids, len(rows))

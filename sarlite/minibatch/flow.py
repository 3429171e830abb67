"""Message-flow graphs, whose layers have only the rows that chosen output rows depend on (SAR appendix B, Figure 9)."""

from collections.abc import Callable

from sarlite import kernels
from sarlite.comm import agree, together
from sarlite.errors import ConfigError, ShapeError, check_int
from sarlite.graph.graph import Graph
from sarlite.graph.hetero import NodeType
from sarlite.minibatch.batch import Batch, Features, Hidden
from sarlite.minibatch.batch_layers import BatchRows, batch_rows, layer_graph
from sarlite.minibatch.part_edges import PartEdges, check_graph, input_rows
from sarlite.minibatch.picked import PickedGraph, PickedRelations
from sarlite.minibatch.samplers import make_sampler
from sarlite.tape import Tensor
from sarlite.tape.row_index import selected_rows
from sarlite.tape.tensor import as_array
from sarlite.types import Array, ArrayLike


def message_flow(graph: Graph | NodeType, rows: ArrayLike | slice, n_layers: int, x: Features,
                 labels: ArrayLike | None = None) -> Batch:
    """Return the message-flow graph of `rows`: a batch whose `n_layers` layers compute only what these outputs depend on. Collective.

        flow = message_flow(graph, train, 3, x, labels)
        loss = ops.cross_entropy(model(flow, flow.x), flow.labels, flow.rows, flow.n_global)

    The result is a batch with all in-edges, made once and used in each epoch. Outputs and gradients equal those of the
    whole graph, except for values that depend on all rows, such as the statistics of a batch norm.

    Parameters
    ----------
    graph : Graph or NodeType
        Whole graph or this rank's part, not bipartite; for a `HeteroGraph` the node type of the rows, `graph.of(type)`.
    rows : (n_dst,) bools, slice, or (k,) row numbers
        This rank's rows whose outputs are wanted, maybe none. `Batch.rows` has the output row of each, also for a row
        that is given twice.
    n_layers : int
        Number of layers of the model.
    x : (n_src, ...) array, or for a node type a dict of arrays by type
        Features of this rank's rows. The needed rows are copied, as a constant tensor.
    labels : (n_dst, ...) array, optional

    Returns
    -------
    Batch

    Raises
    ------
    ConfigError, DataError, ShapeError
        On every rank: the graph is bipartite or fetches gradients, n_layers is below 1, x or labels do not have the
        graph's rows, or rows are not valid.

    Notes
    -----
    Rows and gradients travel by the graph's mode. Bytes sent during construction, counted as "setup": 8 per halo row of
    the graph, and 12 per halo row of each layer. Memory: about 12 bytes per edge of each layer, 4 per edge of the
    graph, and the rows of x that are read.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import Graph
    >>> from sarlite.minibatch.flow import message_flow
    >>> graph = Graph.from_edges([0, 1, 2, 3], [1, 2, 3, 0])
    >>> flow = message_flow(graph, [0], 2, np.ones((4, 8)))
    >>> flow, flow.x.shape
    (Batch(1 seeds, rows [3, 2, 1], edges [2, 1]), (3, 8))
    """
    check_graph(graph, "message-flow graphs")
    comm = graph.comm
    labels = None if labels is None else as_array(labels)
    outputs, x = together(comm, lambda: (_checked(graph, rows, n_layers, labels), input_rows(graph, x)))
    agree(comm, n_layers, "n_layers")
    with graph.profile.phase("setup"):
        of, graphs = kernels.outside_buffers(_layers, graph, outputs, n_layers)
        n_global = sum(comm.allgather(len(outputs)))
    return Batch(graph, graphs, *of, step=0, n_global=n_global, x=x, labels=labels,
                 buffers=kernels.Buffers(), lasting=True)


def _layers(graph: Graph | NodeType, rows: Array,
            n_layers: int) -> tuple[BatchRows, list[PickedGraph | PickedRelations]]:
    """Return (row numbers of the batch, graphs of its layers) for a batch whose outputs are the `rows` of `graph`. Each of the
    `n_layers` layers has all in-edges of its destinations. Collective.
    """
    part = PartEdges(graph)
    sampled = make_sampler(part, (-1,) * n_layers, "full", comm=graph.comm)(rows, 0)
    graphs = [layer_graph(part, layer, sampled.rows[: layer.n_src], lasting=True) for layer in sampled.layers]
    return batch_rows(part, sampled), graphs


def _checked(graph, rows, n_layers, labels):
    check_int("n_layers", n_layers, 1)
    if labels is not None and labels.shape[:1] != (graph.n_dst,):
        raise ShapeError(f"labels have shape {labels.shape}, but the graph has {graph.n_dst} rows")
    return selected_rows("rows", rows, graph.n_dst)


class _Asked(Exception):
    """Exception that ends a model's run when the model calls `graph.layers(n)`; its argument is n."""


class _Asks:
    """Stand-in for a graph that finds out how many layers a model has: it raises `_Asked` with n when the model calls `layers(n)`."""

    def __init__(self, graph):
        self._graph = graph

    def layers(self, n):
        raise _Asked(n)

    def aggregate(self, *_, **__):
        raise ConfigError("the model aggregates over the graph that it is given, not over those of graph.layers(n): "
                          "which rows its layers need is not known")

    def __getattr__(self, name):
        return getattr(self._graph, name)


def count_layers(model: Callable[..., Tensor], graph: Graph, x: Hidden) -> int:
    """Return the n with which the model, called as model(graph, x), calls `graph.layers(n)`. The model runs only up to that call.

    Raises
    ------
    ConfigError
        The model aggregates over the graph itself, or never calls `graph.layers`.
    """
    try:
        model(_Asks(graph), x)
    except _Asked as asked:
        return check_int("the number of layers that the model asks for", asked.args[0], 1)
    raise ConfigError("the model never asks for its layers, graph.layers(n), so which rows they need is not known")

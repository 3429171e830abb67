"""Formulas for the cost of a full-batch run by nodes, edges, widths and ranks. docs/cost.md derives the formulas."""

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

from sarlite.comm import Communicator
from sarlite.graph.graph import Graph
from sarlite.schedule.modes import MODES
from sarlite.schedule.schedule import Options
from sarlite.train.load import Shard, widths
from sarlite.train.model_loading import ModelSpec

ARRAYS = {
    # By model, the number of values that one step holds for each row, as four factors: of the number of features, of the
    # sum of the hidden widths, of the largest width, and of the number of outputs. Fitted to the peak memory of runs on
    # one rank (benchmarks/estimate_error.py).
    "gcn": (3.3, 1.1, 1.2, 0.7),
    "sage": (2.0, 1.9, 1.2, 1.9),
    "gat": (2.0, 3.4, 0.5, 2.9),
    "gatv2": (2.2, 5.3, 0.0, 5.3),
    "gin": (2.0, 5.0, 5.0, 2.2),
    "gcnii": (2.0, 2.0, 4.0, 0.0),
    "pna": (11.3, 27.0, 33.0, 2.2),
    "appnp": (2.0, 1.8, 1.3, 0.6),
    "sgc": (4.2, 0.0, 0.0, 1.7),
    "sign": (1.0, 1.8, 2.3, 1.6),
}
PROCESS_BYTES = 4 << 20
"""Bytes that the first step needs for Python modules, small arrays and threads."""
MPI_BYTES = 5 << 20
"""Bytes that MPI and its messages need on several ranks."""
EDGE_BYTES = 12
"""Bytes for each edge: the source, and in the transpose the edge number and the destination, each int32."""
MESSAGE_ARRAYS = 9.8
"""Number of arrays of messages that gatv2 holds for each edge of a piece; the tape computes its messages."""
PIECE_EDGES = 1 << 16
"""Number of edges of a piece."""
LARGEST_BLOCK = 1.25
"""Number of edges of the largest block, divided by the mean over blocks."""
REMOTE_ARRAYS = {"oneshot": 2.5, "sgc": 2.5, "sign": 0.0}
"""Number of arrays of rows, gradients and messages for each halo row in use, by mode or model; 0.9 for other ones."""


class Shape(NamedTuple):
    """Sizes of a run that determine its cost: of one rank's part of the graph, and of the model.

    Attributes
    ----------
    model : str
        A key of `ARRAYS`.
    n_in, n_out : int
    hidden : int
        Width of a hidden layer, summed over heads.
    layers, heads, hops : int
        Arguments of the model class; 1 or 0 if the class has no such argument.
    drops_input : bool
        True if dropout is applied to the features, so that the first layer's sums change in each step.
    n_rows, n_edges : int
        Number of rows and of in-edges of the part, added self loops included.
    n_halo : int
        Number of rows of peers that the part needs.
    size : int
        Number of ranks.
    mode : str
        Name of the mode.
    prefetch : int
        Number of peers whose rows are fetched ahead.
    itemsize : int
        Bytes of a value.
    """

    model: str
    n_in: int
    n_out: int
    hidden: int
    layers: int
    heads: int
    hops: int
    drops_input: bool
    n_rows: int
    n_edges: int
    n_halo: int
    size: int
    mode: str = "sar"
    prefetch: int = 0
    itemsize: int = 4

    @classmethod
    def of_model(cls, spec: ModelSpec, n_in: int, n_out: int, **part: Any) -> "Shape":
        """Return the sizes of a run of the model `spec` with `n_in` features and `n_out` outputs. The keywords `part` are the other fields
        of `Shape`, about this rank's part of the graph, such as n_rows.
        """
        values = {name: p.default for name, p in inspect.signature(spec.cls).parameters.items()}
        values |= spec.options
        dropout = values.get("input_dropout", 0.0 if spec.spec in ("sage", "gin", "pna", "sgc", "sign") else None)
        heads = int(values.get("heads", 1))
        return cls(spec.spec, n_in, n_out, int(values.get("hidden", 0)) * heads, int(values.get("layers", 1)), heads,
                   int(values.get("hops", 0)), bool(values["dropout"] if dropout is None else dropout), **part)

    @classmethod
    def of_part(cls, comm: Communicator, part: Shard, model: ModelSpec, options: Options,
                label_inputs: bool) -> "Shape | None":
        """Return the sizes of full-batch training of the model `model` on this rank's data `part`; None if no formula fits the graph, the
        model or the mode in `options`. `label_inputs` is True if labels are inputs, too.
        """
        if type(part.graph) is not Graph or model.spec not in ARRAYS or options.mode not in MODES:
            return None
        graph, n_in = part.graph, widths(part.rows)
        n_in += part.n_classes if label_inputs else 0
        return cls.of_model(model, n_in, part.n_classes, n_rows=graph.n_dst, n_edges=graph.n_edges,
                            n_halo=graph.n_halo, size=comm.size, mode=options.mode, prefetch=graph.schedule.transport.prefetch,
                            itemsize=8 if model.dtype == "float64" else 4)

    @property
    def layer_widths(self) -> list[tuple[int, int]]:
        """Numbers of input and output columns of the matrix product in each layer, [(n_in, n_out), ...]."""
        widths = [self.n_in, *[self.hidden] * (self.layers - 1), self.n_out]
        if self.model == "sgc":
            widths = [self.n_in, self.n_out]
        if self.model == "gcnii":
            widths = [self.n_in, *[self.hidden] * (self.layers + 1), self.n_out]
        if self.model == "sign":
            widths[:2] = [(self.hops + 1) * self.n_in, (self.hops + 1) * self.hidden]
        return list(zip(widths, widths[1:]))


def fetched_widths(shape: Shape, training: bool = True) -> tuple[list[int], list[int], list[int]]:
    """Return three lists that say how many values are sent for each halo row, with an entry for each aggregation of a training step, or of
    an evaluation if not `training`. They are: fetched in the forward pass, fetched again in the backward pass, and gradients pushed in the
    backward pass.

    The first layer's sums of constant features are stored in the first step, and are not counted.

    Returns
    -------
    forward : list of int
        Values fetched in the forward pass.
    again : list of int
        Values fetched again in the backward pass.
    pushed : list of int
        Values of gradients pushed in the backward pass.
    """
    layers, model = shape.layer_widths, shape.model
    if model in ("sgc", "sign"):
        return [], [], []
    if model == "appnp":
        forward = [shape.n_out] * shape.hops
    elif model == "gcnii":
        forward = [shape.hidden] * shape.layers
    elif model == "pna":
        forward = [4 * a for a, _ in layers]
    elif model == "gin":
        forward = [min(a, shape.hidden) for a, _ in layers]
    elif model in ("gat", "gatv2"):
        scores = [shape.heads] * (len(layers) - 1) + [1] if model == "gat" else [0] * len(layers)
        forward = [b + n for (_, b), n in zip(layers, scores)]
    else:
        forward = [min(a, b) for a, b in layers]
    pushed = [*forward]
    if model in ("gcn", "sage", "gin"):
        pushed = forward[1:]
        forward = forward if shape.drops_input and training else pushed
    again = forward if model in ("gat", "gatv2") and not MODES[shape.mode].keeps_rows else []
    return forward, again, pushed


def step_bytes(shape: Shape) -> dict[str, int]:
    """Return {phase: number of bytes that a rank receives in a training step} for a run with the sizes `shape`."""
    forward, again, pushed = (sum(each) for each in fetched_widths(shape))
    n_bytes = shape.n_halo * shape.itemsize
    phases = {"forward_fetch": forward * n_bytes, "backward_fetch": again * n_bytes, "backward_push": pushed * n_bytes}
    if shape.mode == "broadcast" and shape.model in ("gcn", "sage"):  # gradients are fetched over the reversed edges
        phases = phases | {"backward_fetch": phases["backward_push"], "backward_push": 0}
    return {phase: n for phase, n in phases.items() if n}


def evaluation_bytes(shape: Shape) -> int:
    """Return the number of bytes that a rank receives in an evaluation, for a run with the sizes `shape`."""
    return sum(fetched_widths(shape, training=False)[0]) * shape.n_halo * shape.itemsize


def peak_bytes(shape: Shape) -> int:
    """Return the peak memory in bytes of a rank's arrays, without Python and its libraries, for a run with the sizes `shape`."""
    of_input, of_hidden, of_widest, of_output = ARRAYS[shape.model]
    n_in, widest, depth, n_out = shape.n_in, shape.hidden, shape.layers - 1, shape.n_out
    if shape.model == "sign":
        n_in, widest = (shape.hops + 2) * n_in, (shape.hops + 1) * widest
    depth = shape.layers if shape.model == "gcnii" else depth
    widest = max(n_in, widest) if shape.model == "pna" else widest
    n_out = n_out * shape.hops if shape.model == "appnp" else n_out
    values = shape.n_rows * (of_input * n_in + of_hidden * depth * shape.hidden + of_widest * widest
                             + of_output * n_out)
    if shape.model == "gatv2":
        block = shape.n_edges if shape.size == 1 else LARGEST_BLOCK * shape.n_edges / shape.size
        values += MESSAGE_ARRAYS * shape.hidden * min(block, max(PIECE_EDGES, shape.n_rows))
    total_bytes = PROCESS_BYTES + EDGE_BYTES * shape.n_edges + shape.itemsize * values + 4 * n_parameters(shape) * 4
    if shape.size > 1:
        total_bytes += MPI_BYTES + shape.itemsize * _remote_values(shape)
    return round(total_bytes)


def _remote_values(shape: Shape) -> float:
    """Return the largest number of values that a rank holds at once for rows of other ranks: their features, gradients and messages.
    `shape` has the sizes of the run.
    """
    forward, _, pushed = fetched_widths(shape)
    width = max([*forward, *pushed, *([shape.n_in] if shape.model in ("gcn", "sage", "gin", "sgc") else [])],
                default=0)
    width = width // 2 if shape.model == "pna" else width  # the widest fetch has half of the values
    at_once = shape.size - 1 if shape.mode == "oneshot" else min(1 + shape.prefetch, shape.size - 1)
    in_use = REMOTE_ARRAYS.get(shape.model, REMOTE_ARRAYS.get(shape.mode, 0.9)) * width * at_once / (shape.size - 1)
    saved_values = sum(forward) if MODES[shape.mode].keeps_rows and shape.model in ("gat", "gatv2") else 0
    return shape.n_halo * (in_use + saved_values)


def n_parameters(shape: Shape) -> int:
    """Return the number of values of the model's parameters, without biases, for a run with the sizes `shape`."""
    times = {"sage": 2, "gatv2": 2, "pna": 13}.get(shape.model, 1)
    return times * sum(a * b for a, b in shape.layer_widths)


def step_work(shape: Shape) -> Mapping[str, float]:
    """Return the work of one rank in a training step of a run with sizes `shape`: {"flops": operations of matrix products, "edge_bytes":
    bytes that aggregations read}.
    """
    forward, again, pushed = (sum(each) for each in fetched_widths(shape))
    flops = 6 * shape.n_rows * n_parameters(shape)  # forward, for the weights, for the input
    return {"flops": flops, "edge_bytes": shape.n_edges * shape.itemsize * (forward + again + pushed)}

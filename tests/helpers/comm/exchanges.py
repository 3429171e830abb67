"""Helpers for tests of exchanges: a small dense graph, modes that divide its rows, and communicators that log messages."""

import time
from dataclasses import replace

import numpy as np
import pytest

from sarlite import Graph, Tensor, fn
from sarlite.numerics.edge_sums import FloatSum
from sarlite.schedule import modes
from tests.helpers.graph.strategies import Edges, random_edges, values

EDGES = random_edges(50, 700, seed=7)  # dense: every part needs rows of every other part
COMPLETE = Edges(*np.divmod(np.arange(2500), 50), 50)
X = values(1, 50, 4)
N_RANGES = 3
MODES = ("sar", "sa", "oneshot")  # modes that exchange only needed rows, by peer


def shard(comm, edges=EDGES, method="random", **options):
    return Graph.from_edges(*edges).shard(comm, method, **options)


def attend(graph, x):
    z = x.reshape(-1, 2, 2)
    return graph.aggregate(fn.attend(z, z.sum(-1), z[: graph.n_dst].sum(-1)), "sum")


def in_parts(mode, **sizes):
    """Return the schedule mode `mode` with a backward pass that takes a peer's rows in several parts; `sizes` replaces its fields."""
    exchange = modes.MODES[mode]
    return replace(exchange, **{"backward_rows": 1, **sizes}) if hasattr(exchange, "backward_rows") else exchange


def in_ranges(**sizes):
    """Return mode "broadcast" with stages of `N_RANGES` ranges of rows, even on a small graph; `sizes` replaces further fields."""
    return replace(modes.MODES["broadcast"], **{"most_ranges": N_RANGES, "range_edges": 1e-6, "range_rows": 1e-6, **sizes})


HOLDERS = {
    "copy_src": lambda g, x, wait: g.aggregate(fn.copy_src(x), "sum"),
    "max": lambda g, x, wait: g.aggregate(fn.copy_src(x), "max"),
    "attend": lambda g, x, wait: attend(g, x),
    "case 1": lambda g, x, wait: g.aggregate(lambda s, d, e: wait(g, s["x"] * 2.0), "sum", src={"x": x}),
    "case 2": lambda g, x, wait: g.aggregate(lambda s, d, e: wait(g, s["x"].tanh()), "max", src={"x": x}),
    "softmax": lambda g, x, wait: g.aggregate(lambda s, d, e: (wait(g, s["x"].tanh()), s["x"]), "softmax", src={"x": x}),
}


class Noting:
    """Operator that computes nothing, but logs ("forward" or "backward", number of edges) of each block.

    `under_way` is called after each backward block.
    """

    fetched, captured = ("rows",), ()

    def __init__(self, n_dst, case2, log, under_way=lambda: None):
        self.n_dst, self.case2, self.log, self.under_way = n_dst, case2, log, under_way

    def needs_rows(self, context):
        return self.case2

    def forward(self, inputs, context):
        return NotingPass(self, "forward")

    def backward(self, residuals, g, context):
        return NotingPass(self, "backward")


class NotingPass:
    def __init__(self, operator, phase):
        self.operator, self.phase = operator, phase
        self.accumulators = [FloatSum((3,), np.dtype(np.float64))]

    def sweeps(self, rows):
        yield rows

    def add(self, block, rows, accumulators=None):
        self.operator.log.append((self.phase, block.n_edges))
        if self.phase == "backward":
            self.operator.under_way()

    def finish(self):
        return (np.zeros((self.operator.n_dst, 1)), None) if self.phase == "forward" else []


class Waiting:
    """Communicator that adds each started request to the list `started` until its wait has returned, and logs each send."""

    def __init__(self, comm, log, started):
        self._comm, self._log, self._started = comm, log, started

    def __getattr__(self, name):
        return getattr(self._comm, name)

    def start_send(self, array, peer, tag=0):
        self._log.append(("push", peer))
        return self._count(self._comm.start_send(array, peer, tag))

    def start_recv(self, array, peer, tag=0):
        return self._count(self._comm.start_recv(array, peer, tag))

    def _count(self, request):
        wait = request.wait
        self._started.append(request)

        def counted(*args):
            wait(*args)
            self._started.remove(request)

        request.wait = counted
        return request


class Recorder:
    """Communicator that logs the messages it sends, and raises an error at message number `fail_at`, if that is set."""

    def __init__(self, comm, log, fail_at=None):
        self._comm, self._log, self._fail_at = comm, log, fail_at

    def __getattr__(self, name):
        return getattr(self._comm, name)

    def start_send(self, array, peer, tag=0):
        self._log.append((peer, array.nbytes))
        if len(self._log) == self._fail_at:
            raise KeyError("the network is gone")
        return self._comm.start_send(array, peer, tag)


class Breaks:
    """Message function that raises an error at the n-th block that it computes after its attribute `left` is set to n.

    Calls of the probe do not count: their edges, one or two, have one id.
    """

    def __init__(self):
        self.left = None

    def __call__(self, src, dst, edge):
        if self.left is not None and len(set(edge.ids)) > 1:
            self.left -= 1
            if self.left == 0:
                self.left = None
                raise KeyError("the cause")
        return src["x"].tanh()


def results(graph):
    """Return (output, gradient of the input x) of an attention plus a mean over `graph`, which fetch rows forward and backward."""
    x = Tensor(X[graph.node_ids], requires_grad=True)
    out = attend(graph, x).reshape(-1, 4) + graph.aggregate(Breaks(), "mean", src={"x": x})
    (out * out).sum().backward()
    return out.data, x.grad


def fail(graph, phase, block_number):
    """Aggregate with a message function that raises an error on this rank, at its block `block_number` of the pass `phase`."""
    message, x = Breaks(), Tensor(X[graph.node_ids], requires_grad=True)
    if phase == "forward":
        message.left = block_number
    with pytest.raises(KeyError, match="the cause"):
        out = graph.aggregate(message, "sum", src={"x": x})
        message.left = block_number
        out.backward(np.ones_like(out.data))
    assert message.left is None


def slowly(n_buffers):
    """Return a function (graph, message) -> message that first waits until prefetching has filled `n_buffers` buffers of peers' rows."""

    def wait(graph, message):
        end = time.monotonic() + 0.02
        while graph.profile.live_remote_buffers < n_buffers and time.monotonic() < end:
            time.sleep(0.001)
        time.sleep(0.003)
        return message

    return wait


def fails_at(number):
    """Return a message function that raises an error when it is computed for the `number`-th block."""
    calls = []

    def message(src, dst, edge):
        if len(set(edge.ids)) > 1:  # skips the calls of the probe, whose edges have one id
            calls.append(len(edge.ids))
        if len(calls) == number:
            raise KeyError("the cause")
        return src["x"] * 2.0

    return message

"""Checks of the example `sar_from_scratch.py` against the library; every rank calls a check with its communicator."""

import runpy
from types import SimpleNamespace

import numpy as np

from sarlite import Graph, Tensor, fn, nn
from sarlite.models import GAT
from sarlite.tape import ops
from tests.helpers.graph.references import EDGES, FEATURES, LABELS, N_IN, N_OUT, TRAIN
from tests.helpers.train.training_runs import ROOT

PATH = ROOT / "examples" / "sar_from_scratch.py"
TOLERANCE = 1e-12
N_HEADS, N_FEAT = 3, 5


class BufferMethods:
    """Wrapper of a sarlite communicator with the methods of an mpi4py communicator that the example calls."""

    def __init__(self, comm):
        self._comm, self.rank, self.size = comm, comm.rank, comm.size

    def alltoall(self, arrays):
        return self._comm.alltoall(arrays)

    def Sendrecv(self, sendbuf, dest, *, recvbuf, source):
        for request in (self._comm.start_send(sendbuf, dest), self._comm.start_recv(recvbuf, source)):
            request.wait()

    def Allreduce(self, sendbuf, recvbuf):
        recvbuf[...] = sendbuf
        self._comm.allreduce(recvbuf)


def example():
    """Run the example's file; return a namespace of its functions, with `names`, the dict of the functions' global names."""
    names = runpy.run_path(str(PATH))
    return SimpleNamespace(**names, names=names["fetch"].__globals__)


def owners(division, n_nodes, n_ranks):
    """Return the rank that owns each node, (n_nodes,): a random one if `division` is "random", else the last rank."""
    if division == "random":
        return np.random.default_rng(3).integers(0, n_ranks, n_nodes)
    return np.full(n_nodes, n_ranks - 1)  # "last": all other ranks are empty


def check_close(actual, expected):
    error = np.linalg.norm(actual - expected)
    assert actual.shape == expected.shape and error <= TOLERANCE * max(np.linalg.norm(expected), 1), error


def check_sum(comm, edges, division):
    """Compare the example's sum over `edges` and its gradient, for the `division` "random" or "last", with the library on one rank."""
    sar, rng = example(), np.random.default_rng(1)
    z, d_out = rng.standard_normal((2, edges.n_nodes, 4))
    x = Tensor(z, requires_grad=True)
    out = Graph.from_edges(*edges).aggregate(fn.copy_src(x), "sum")
    (out * d_out).sum().backward()

    part = sar.make_part(comm, edges.src, edges.dst, owners(division, edges.n_nodes, comm.size))
    check_close(sar.sum_forward(part, z[part.node_ids]), out.data[part.node_ids])
    check_close(sar.sum_backward(part, d_out[part.node_ids]), x.grad[part.node_ids])


def check_attention(comm, edges, division, score_scale=1.0):
    """Compare the example's attention and gradients, for the `division` "random" or "last", with the library on one rank.

    The scores are multiplied by `score_scale`.
    """
    sar, rng = example(), np.random.default_rng(2)
    z, d_out = rng.standard_normal((2, edges.n_nodes, N_HEADS, N_FEAT))
    tensors = [Tensor(a, requires_grad=True) for a in (z, *score_scale * rng.standard_normal((2, N_HEADS, N_FEAT)))]
    x, a_src, a_dst = tensors
    out = Graph.from_edges(*edges).aggregate(fn.attend(x, (x * a_src).sum(-1), (x * a_dst).sum(-1)), "sum")
    (out * d_out).sum().backward()

    part = sar.make_part(comm, edges.src, edges.dst, owners(division, edges.n_nodes, comm.size))
    ids = part.node_ids
    result, residuals = sar.attend_forward(part, z[ids], a_src.data, a_dst.data)
    check_close(result, out.data[ids])
    assert all(array.shape[0] == len(ids) for array in residuals), "residuals have one row for each local node"
    d_z, *d_parameters = sar.attend_backward(part, residuals, d_out[ids], a_src.data, a_dst.data)
    check_close(d_z, x.grad[ids])
    for share, tensor in zip(d_parameters, (a_src, a_dst)):
        check_close(sar.all_sum(comm, share), tensor.grad)


def check_gat(comm, division):
    """Compare the example's two-layer GAT, its loss and gradients, for a `division` of nodes, with `models/gat.py` on one rank."""
    sar = example()
    model = GAT(N_IN, N_OUT, hidden=N_FEAT, heads=N_HEADS, dropout=0.0, attention_dropout=0.0, rng=nn.Random(seed=4),
                dtype=np.float64)
    first, last = model.convs
    parameters = [first.linear.weight, first.attn_src, first.attn_dst, model.activations[0].bias,
                  last.linear.weight, last.attn_src, last.attn_dst, last.bias]
    for bias in parameters[3::4]:
        bias.data[...] = np.random.default_rng(5).standard_normal(bias.shape)
    labels, n_train = np.where(TRAIN, LABELS, -1), np.count_nonzero(TRAIN)
    logits = model(Graph.from_edges(*EDGES), Tensor(FEATURES))
    loss = ops.cross_entropy(logits, LABELS, TRAIN, count=n_train)
    loss.backward()

    part = sar.make_part(comm, EDGES.src, EDGES.dst, owners(division, EDGES.n_nodes, comm.size))
    ids, shapes = part.node_ids, sar.make_shapes(N_IN, N_HEADS, N_FEAT, N_OUT)
    values = [parameter.data.reshape(shape) for parameter, shape in zip(parameters, shapes)]
    share, gradients = sar.loss_and_gradients(part, values, FEATURES[ids], labels[ids], n_train)
    check_close(sar.all_sum(comm, np.array([share])), np.array([loss.item()]))
    for gradient, parameter in zip(gradients, parameters):
        check_close(sar.all_sum(comm, gradient).reshape(parameter.shape), parameter.grad)


def check_training(comm):
    """Check that the example's training loss falls, and is the same on each rank and for each division of the nodes."""
    sar = example()
    src, dst, x, labels = sar.community_graph(n_nodes=90)
    shapes = sar.make_shapes(x.shape[1], 2, 4, 4)
    runs = []
    for method in ("random", "last"):
        part = sar.make_part(comm, src, dst, owners(method, len(labels), comm.size))
        runs.append(list(sar.train(part, x[part.node_ids], labels[part.node_ids], shapes, n_epochs=8, lr=0.05)))
        assert np.allclose(runs[-1], sar.all_sum(comm, np.array(runs[-1])) / comm.size, rtol=1e-14)
    assert np.allclose(*runs, rtol=1e-9) and runs[0][-1] < 0.8 * runs[0][0]

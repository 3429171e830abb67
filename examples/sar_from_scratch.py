"""Sequential Aggregation and Rematerialization (SAR) from scratch, in NumPy and mpi4py alone.

    mpiexec -n 3 python examples/sar_from_scratch.py

A graph attention network trains on the full graph, which is divided among the ranks. Any number of ranks gives the same
losses. Each rank holds its own nodes and, at any time, the rows of one peer. The paper is Mostafa, "Sequential
Aggregation and Rematerialization" (MLSys 2022). docs/sar-from-scratch.md walks through this file.

Sizes in shapes: n_local nodes of this rank, n_halo rows that one peer sends, n_edges of one block, H heads, D features.
"""

from dataclasses import dataclass

import numpy as np

LOWEST = np.finfo(np.float64).min  # below every score; unlike -inf, LOWEST - LOWEST is a number
SLOPE = 0.2  # slope of LeakyReLU for negative scores


# ---- 1. Divide the graph (SAR 3.2)

@dataclass
class Block:
    """The edges E_pq from the nodes of peer q to the nodes of this rank p. A row with many edges arrives once."""

    src: np.ndarray  # row of the edge's source among the n_halo rows that q sends, shape (n_edges,)
    dst: np.ndarray  # local row of the edge's destination, shape (n_edges,)
    n_halo: int


@dataclass
class Part:
    """One rank's share of the graph: its nodes, all edges that end in them, and the rows that each peer needs."""

    comm: object  # an mpi4py communicator
    node_ids: np.ndarray  # global ids, ascending, shape (n_local,)
    blocks: list  # for each peer q, the Block of the edges from q
    sent_rows: list  # for each peer q, the local rows that q needs, in the order of q's block


def make_part(comm, src, dst, owner):
    """Return this rank's Part of the graph with edges src -> dst (global ids); `owner` has the rank of each node. Collective.

    One alltoall tells each peer which of its rows are needed here. `src` and `dst` have shape (n_edges,), `owner` (n_nodes,). This
    small example reads the whole graph on every rank; the code below uses the in-edges of local nodes alone.
    """
    local_row = np.empty(len(owner), np.int64)
    for rank in range(comm.size):
        ids = np.flatnonzero(owner == rank)
        local_row[ids] = np.arange(len(ids))
    is_local = owner[dst] == comm.rank
    src, dst = src[is_local], dst[is_local]
    blocks, needed_rows = [], []
    for peer in range(comm.size):
        is_from_peer = owner[src] == peer
        halo_ids, halo_row = np.unique(src[is_from_peer], return_inverse=True)
        blocks.append(Block(halo_row, local_row[dst[is_from_peer]], len(halo_ids)))
        needed_rows.append(local_row[halo_ids])
    return Part(comm, np.flatnonzero(owner == comm.rank), blocks, comm.alltoall(needed_rows))


# ---- 2. Move rows: a rank always holds the rows of one peer

def rounds(part: "Part"):
    """Yield (peer to receive from, peer to send to) for each of the N rounds. In round 0 a rank sends to itself."""
    comm = part.comm
    for shift in range(comm.size):
        yield (comm.rank + shift) % comm.size, (comm.rank - shift) % comm.size


def fetch(part: "Part", z, source, dest):
    """Return the rows Z_q->p that rank `source` sends, shape (n_halo, ...); send rank `dest` the rows of `z` that it needs."""
    z_halo = np.empty((part.blocks[source].n_halo, *z.shape[1:]))
    part.comm.Sendrecv(z[part.sent_rows[dest]], dest, recvbuf=z_halo, source=source)
    return z_halo


def push(part: "Part", d_halo, d_z, source, dest):
    """Send rank `source` the gradients `d_halo` of its rows (E_p->q); add the gradients that rank `dest` sends to `d_z` in place."""
    rows = part.sent_rows[dest]
    d_rows = np.empty((len(rows), *d_z.shape[1:]))
    part.comm.Sendrecv(d_halo, source, recvbuf=d_rows, source=dest)
    d_z[rows] += d_rows  # no row stands twice in `rows`


# ---- 3. A sum: the gradient needs no remote rows (case 1)

def sum_forward(part: "Part", z):
    """Return sum_j z_j over the in-edges of each local node, shape (n_local, ...): algorithm 1 with Eq. 2's message."""
    acc = np.zeros_like(z)
    for source, dest in rounds(part):
        block, z_halo = part.blocks[source], fetch(part, z, source, dest)
        np.add.at(acc, block.dst, z_halo[block.src])
        del z_halo  # before the next peer's rows arrive
    return acc


def sum_backward(part: "Part", d_acc):
    """Return the gradient of `z` from `d_acc`, the gradient of the sums, both (n_local, ...): algorithm 2, case 1."""
    d_z = np.zeros_like(d_acc)
    for source, dest in rounds(part):
        block = part.blocks[source]
        d_halo = np.zeros((block.n_halo, *d_acc.shape[1:]))
        np.add.at(d_halo, block.src, d_acc[block.dst])
        push(part, d_halo, d_z, source, dest)
        del d_halo
    return d_z


# ---- 4. Attention: the gradient needs the remote rows again (case 2)

def attend_forward(part: "Part", z, a_src, a_dst):
    """Return GAT's sum_j softmax_j(e_ij) z_j for local nodes (Eq. 3, algorithm 1), and the residuals that `attend_backward` takes.

    `z` and the output have shape (n_local, H, D), `a_src` and `a_dst` (H, D). The softmax over all in-edges is made
    one block at a time: whenever the maximum of a node grows, its sums are rescaled. Isolated nodes give 0.
    """
    score_dst = (z * a_dst).sum(-1)
    maximum = np.full(score_dst.shape, LOWEST)
    denominator, acc = np.zeros(score_dst.shape), np.zeros(z.shape)
    for source, dest in rounds(part):
        block, z_halo = part.blocks[source], fetch(part, z, source, dest)
        attend_block(block, z_halo, a_src, score_dst, maximum, denominator, acc)
        del z_halo
    denominator[denominator == 0] = 1
    out = acc / denominator[..., None]
    return out, (z, out, score_dst, maximum + np.log(denominator))


def attend_block(block: Block, z_halo, a_src, score_dst, maximum, denominator, acc):
    """Add the edges of one block to the running `maximum`, `denominator` and weighted sum `acc`, in place (SAR 3.4).

    The arrays per edge, (n_edges, H) and (n_edges, H, D), end with this call.
    """
    score, _ = scores(block, z_halo, a_src, score_dst)
    old_maximum = maximum.copy()
    np.maximum.at(maximum, block.dst, score)
    scale = np.exp(old_maximum - maximum)
    denominator *= scale
    acc *= scale[..., None]
    weight = np.exp(score - maximum[block.dst])
    np.add.at(denominator, block.dst, weight)
    np.add.at(acc, block.dst, weight[..., None] * z_halo[block.src])


def attend_backward(part: "Part", residuals, d_out, a_src, a_dst):
    """Return the gradients of z, a_src and a_dst from `d_out`, shape (n_local, H, D), and `residuals`: algorithm 2, case 2.

    The gradients of the parameters are this rank's share: `train` sums them over ranks.
    """
    z, out, score_dst, log_sum = residuals
    mean = (d_out * out).sum(-1)  # sum_j a_ij (d_out_i . z_j), without a loop over edges
    d_z, d_a_src, d_score_dst = np.zeros_like(z), np.zeros_like(a_src), np.zeros_like(score_dst)
    for source, dest in rounds(part):
        block, z_halo = part.blocks[source], fetch(part, z, source, dest)  # fetched again: rematerialization
        d_halo, d_theta = attend_block_backward(block, z_halo, a_src, score_dst, log_sum, d_out, mean, d_score_dst)
        del z_halo
        push(part, d_halo, d_z, source, dest)
        del d_halo
        d_a_src += d_theta
    d_z += d_score_dst[..., None] * a_dst
    return d_z, d_a_src, (d_score_dst[..., None] * z).sum(0)


def attend_block_backward(block: Block, z_halo, a_src, score_dst, log_sum, d_out, mean, d_score_dst):
    """Return the gradients that one block adds to the halo rows, shape (n_halo, H, D), and to a_src, shape (H, D).

    The gradient of the destinations' scores is added to `d_score_dst` in place. The arrays per edge end with this call.
    """
    score, slope = scores(block, z_halo, a_src, score_dst)
    attention = np.exp(score - log_sum[block.dst])  # a_ij, computed again instead of kept
    d_out_edge = d_out[block.dst]
    d_attention = (d_out_edge * z_halo[block.src]).sum(-1)
    d_score = attention * (d_attention - mean[block.dst]) * slope  # gradient of the score before LeakyReLU
    d_score_src, d_halo = np.zeros((block.n_halo, len(a_src))), np.zeros_like(z_halo)
    np.add.at(d_score_src, block.src, d_score)
    np.add.at(d_halo, block.src, attention[..., None] * d_out_edge)
    np.add.at(d_score_dst, block.dst, d_score)
    d_halo += d_score_src[..., None] * a_src
    return d_halo, (d_score_src[..., None] * z_halo).sum(0)


def scores(block: Block, z_halo, a_src, score_dst):
    """Return the scores e_ij (Eq. 3) of a block's edges, and the slope of LeakyReLU at each of them, both of shape (n_edges, H)."""
    score = (z_halo * a_src).sum(-1)[block.src] + score_dst[block.dst]  # a^T (z_i || z_j)
    slope = np.where(score > 0, 1, SLOPE)
    return slope * score, slope


# ---- 5. A GAT with two layers. All that is not attention is local to a rank.

def make_shapes(n_in, n_heads, n_hidden, n_classes):
    """Return the shapes of the parameters w, a_src, a_dst and bias of the hidden layer, then of the last layer."""
    hidden, last = (n_heads, n_hidden), (1, n_classes)
    width = n_heads * n_hidden
    return [(n_in, *hidden), hidden, hidden, (width,), (width, *last), last, last, (n_classes,)]


def views(flat, shapes):
    """Return arrays of the given shapes that share the memory of the vector `flat`."""
    ends = np.cumsum([np.prod(shape) for shape in shapes])
    return [piece.reshape(shape) for piece, shape in zip(np.split(flat, ends[:-1]), shapes)]


def gat_layer(part: "Part", h, w, a_src, a_dst, bias):
    """Return a GAT layer's output for the rows `h` (Eq. 1 and 3), before its activation, shape (n_local, H D), and the residuals."""
    out, residuals = attend_forward(part, np.tensordot(h, w, 1), a_src, a_dst)
    return out.reshape(len(h), a_src.size) + bias, (h, residuals)


def gat_layer_backward(part: "Part", residuals, d_out, w, a_src, a_dst, bias):
    """Return the gradients of h, w, a_src, a_dst and bias from `d_out`, shape (n_local, H D), and the layer's residuals."""
    h, attention_residuals = residuals
    d_z, d_a_src, d_a_dst = attend_backward(part, attention_residuals, d_out.reshape(-1, *a_src.shape), a_src, a_dst)
    return np.tensordot(d_z, w, ([1, 2], [1, 2])), np.tensordot(h.T, d_z, 1), d_a_src, d_a_dst, d_out.sum(0)


def cross_entropy(logits, labels, n_train):
    """Return this rank's share of the mean loss of all ranks' `n_train` labelled nodes, and the gradient of `logits`.

    `labels` has shape (n_local,) and is -1 for nodes that do not train. The shares of all ranks add up to the loss.
    """
    train_rows = np.flatnonzero(labels >= 0)
    log_p = logits - logits.max(1, keepdims=True)
    log_p -= np.log(np.exp(log_p).sum(1, keepdims=True))
    d_logits = np.zeros_like(logits)
    d_logits[train_rows] = np.exp(log_p[train_rows])
    d_logits[train_rows, labels[train_rows]] -= 1
    return -log_p[train_rows, labels[train_rows]].sum() / n_train, d_logits / n_train


def loss_and_gradients(part: "Part", parameters, x, labels, n_train):
    """Return this rank's shares of the loss and of the gradients of `parameters`, a list; `x` has shape (n_local, n_in)."""
    hidden, first_residuals = gat_layer(part, x, *parameters[:4])
    h = np.where(hidden > 0, hidden, np.expm1(np.minimum(hidden, 0)))  # ELU
    logits, last_residuals = gat_layer(part, h, *parameters[4:])
    loss, d_logits = cross_entropy(logits, labels, n_train)
    d_h, *d_last = gat_layer_backward(part, last_residuals, d_logits, *parameters[4:])
    d_hidden = d_h * np.where(hidden > 0, 1, h + 1)
    _, *d_first = gat_layer_backward(part, first_residuals, d_hidden, *parameters[:4])
    return loss, d_first + d_last


def all_sum(comm, x):
    """Return the sum of the array `x` over all ranks, the same on each rank."""
    total = np.empty_like(x)
    comm.Allreduce(x, total)
    return total


def train(part: "Part", x, labels, shapes, n_epochs=50, lr=0.01):
    """Train the GAT with Adam on this rank's rows of `x` and `labels`, and yield each epoch's loss, which is the same on each rank."""
    rng = np.random.default_rng(0)  # equal on all ranks, so all start with equal parameters
    flat = np.concatenate([0.3 * rng.standard_normal(np.prod(s)) * (len(s) > 1) for s in shapes])  # biases are 0
    parameters, m, v = views(flat, shapes), np.zeros_like(flat), np.zeros_like(flat)
    n_train = all_sum(part.comm, np.array([np.count_nonzero(labels >= 0)]))[0]
    for epoch in range(1, n_epochs + 1):
        loss, gradients = loss_and_gradients(part, parameters, x, labels, n_train)
        shares = np.concatenate([[loss], *(gradient.ravel() for gradient in gradients)])
        sums = all_sum(part.comm, shares)  # the last line but one of algorithm 2, once for all parameters
        loss, d_flat = sums[0], sums[1:]
        m += 0.1 * (d_flat - m)
        v += 0.001 * (d_flat**2 - v)
        flat -= lr * (m / (1 - 0.9**epoch)) / (np.sqrt(v / (1 - 0.999**epoch)) + 1e-8)
        yield loss


# ---- 6. Run

def community_graph(n_nodes=600, n_classes=4, n_features=8, degree=8, seed=0):
    """Return (src, dst, x, labels) of a random graph with self loops and mostly edges within a class. Equal on all ranks."""
    rng = np.random.default_rng(seed)
    labels = np.sort(rng.integers(0, n_classes, n_nodes))  # so a range of ids is almost a community
    src, dst = rng.integers(0, n_nodes, (2, n_classes * degree * n_nodes))
    selected = (labels[src] == labels[dst]) | (rng.random(len(src)) < 0.1)
    loops = np.arange(n_nodes)
    x = rng.standard_normal((n_nodes, n_features)) + np.eye(n_classes, n_features)[labels]
    return np.append(src[selected], loops), np.append(dst[selected], loops), x, labels


def main(comm):
    """Train the GAT on this rank's part of the graph. Rank 0 prints the loss of each epoch."""
    src, dst, x, labels = community_graph()
    owner = np.arange(len(labels)) * comm.size // len(labels)  # ranges of ids; METIS cuts fewer edges of real graphs
    part = make_part(comm, src, dst, owner)
    x, labels = x[part.node_ids], labels[part.node_ids]
    y = sum_forward(part, x)  # y = A x. The backward pass is A^T: over all ranks, y . A x equals A^T y . x.
    products = all_sum(comm, np.array([(y * y).sum(), (sum_backward(part, y) * x).sum()]))
    assert np.isclose(*products, rtol=1e-12)
    train_labels = np.where(part.node_ids % 5 == 0, labels, -1)
    shapes = make_shapes(x.shape[1], n_heads=4, n_hidden=8, n_classes=4)
    for epoch, loss in enumerate(train(part, x, train_labels, shapes), 1):
        if comm.rank == 0:
            print(f"epoch {epoch:2d}  loss {loss:.12f}")


if __name__ == "__main__":
    from mpi4py import MPI

    main(MPI.COMM_WORLD)

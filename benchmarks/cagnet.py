"""CAGNET's 1D algorithm (each rank owns a block of rows) for training GCN in PyTorch, as a process that `mg_gcn.py` runs.

The algorithm is Algorithm 1 of Tripathy, Yelick & Buluc, SC 2020, section IV-A. It is written from the paper: the
authors' code runs on GPUs alone (cuSPARSE, NCCL). Run this file by a Python that has torch, as that of SARLITE_PEERS. It
starts N processes of one thread, with blocks of rows in a random order of nodes. They communicate over gloo, which goes
through sockets on one host too:

    A H    for each j: rank j's rows of H are broadcast, into a new buffer, and multiplied by the tile (i, j); then by W
    back   the same with the gradient, A being symmetric; dW = H' (A G), summed over ranks; dH = (A G) W'

Nothing is computed while rows travel, and nothing is kept between epochs. The program prints a line of JSON as the
peers' script does; `loss` is the loss of the last step.
"""

import argparse
import json
import os
import resource
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

TRAIN_SHARE = 0.66


class Layer(torch.autograd.Function):
    """Autograd function of a GCN layer: this rank's rows of A H W, where A is the adjacency matrix, with one tile per source rank."""

    @staticmethod
    def forward(ctx, tiles, h, w):
        ctx.tiles = tiles
        ctx.save_for_backward(h, w)
        return summed(tiles, h) @ w

    @staticmethod
    def backward(ctx, g):
        h, w = ctx.saved_tensors
        ag = summed(ctx.tiles, g.contiguous())
        dw = h.T @ ag
        dist.all_reduce(dw)
        return None, ag @ w.T if ctx.needs_input_grad[1] else None, dw


def summed(tiles, local_rows):
    """Return this rank's rows of A H, where `tiles` are this rank's rows of A, one tile per rank, and `local_rows` its rows of H."""
    out = torch.zeros(tiles[0].shape[0], local_rows.shape[1])
    for root, tile in enumerate(tiles):
        rows = local_rows.clone() if root == dist.get_rank() else torch.empty(tile.shape[1], local_rows.shape[1])
        dist.broadcast(rows, root)
        out += tile @ rows
    return out


def tiles_of(file, rank, size):
    """Return (this rank's tiles of D^-1/2 (A + I) D^-1/2, one for each rank; the first row of each rank) for the graph in `file`.

    The nodes are in a random order, the same on every rank.
    """
    with np.load(file) as arrays:
        degree = np.diff(arrays["indptr"]) + 1
        n = len(degree)
        label = np.random.default_rng(1).permutation(n)
        dst = np.concatenate([np.repeat(label, degree - 1), label])
        src = np.concatenate([label[arrays["indices"]], label])
    weights = np.empty(n)
    weights[label] = degree**-0.5
    offsets = np.arange(size + 1) * n // size
    is_owned = (offsets[rank] <= dst) & (dst < offsets[rank + 1])
    dst, src, tiles = dst[is_owned], src[is_owned], []
    for low, high in zip(offsets, offsets[1:]):
        in_range = (low <= src) & (src < high)
        rows, columns = dst[in_range], src[in_range]
        at = torch.from_numpy(np.stack([rows - offsets[rank], columns - low]))
        values = torch.from_numpy(weights[rows] * weights[columns])
        shape = int(offsets[rank + 1] - offsets[rank]), int(high - low)
        tiles.append(torch.sparse_coo_tensor(at, values.float(), shape,
                                             check_invariants=True).coalesce().to_sparse_csr())
    return tiles, offsets


def work(rank, args, folder):
    """Train GCN as process `rank`; process 0 prints its step times and the largest peak memory of all processes as JSON."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=args.ranks)
    tiles, offsets = tiles_of(args.file, rank, args.ranks)
    torch.manual_seed(0)  # each rank draws all rows, so the seed gives all ranks the same data
    n, local = int(offsets[-1]), slice(int(offsets[rank]), int(offsets[rank + 1]))
    x, y = torch.randn(n, args.widths[0])[local].clone(), torch.randint(args.widths[-1], (n,))[local]
    train = torch.rand(n) < TRAIN_SHARE
    weights = [nn.Parameter(nn.init.xavier_uniform_(torch.empty(a, b))) for a, b in zip(args.widths, args.widths[1:])]
    n_train, train = int(train.sum()), train[local]
    optimizer, times, losses = torch.optim.Adam(weights, lr=0.01), [], []
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def step():
        h = x
        for k, w in enumerate(weights):
            h = nn.functional.dropout(torch.relu(h), args.dropout) if k else h
            h = Layer.apply(tiles, h, w)
        loss = nn.functional.cross_entropy(h[train], y[train], reduction="sum") / n_train
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())

    for k in range(args.repeats + 1):
        dist.barrier()
        begin = time.perf_counter()
        step()
        dist.barrier()
        times += [1e3 * (time.perf_counter() - begin)] if k else []
    peak = torch.tensor([resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before])
    dist.all_reduce(peak, dist.ReduceOp.MAX)
    dist.all_reduce(losses[-1])
    if rank == 0:
        print(json.dumps({"ms": statistics.median(times), "ms_min": min(times), "ms_max": max(times),
                          "peak_mib": peak.item() / 1024,
                          "ranks": args.ranks, "loss": losses[-1].item()}), flush=True)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="the graph, which must be symmetric")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--widths", type=lambda text: [int(n) for n in text.split(",")], default=[602, 512, 41],
                        metavar="LIST")
    parser.add_argument("--dropout", type=float, default=0.5)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
    with tempfile.TemporaryDirectory(prefix="sarlite-benchmark-") as folder:
        torch.multiprocessing.spawn(work, (args, folder), nprocs=args.ranks)


if __name__ == "__main__":
    main()

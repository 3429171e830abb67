"""Count the (local rows x width) arrays that a training step holds at once, and compare with the docs.

Every part needs all rows, as on a dense graph, which is the hardest case: a peer's rows are then as many as a rank's own.
The numbers are those of the largest rank, in arrays of its rows times `--hidden` values.

`taken` are the bytes up to the highest address that its `kernels.Buffers` reached: all of its arrays of 256 KiB and more, with receive
buffers and with gaps between arrays. `held` is the most bytes in use at once, by tracemalloc, where a rank is a process
of its own: on one rank, and with `--mpi`. `promised` is the formula of docs/architecture.md, "What a training step
holds". The ranks are threads; with `--mpi` they are N processes of mpiexec.
"""

import json
import sys
import tracemalloc

import harness
import numpy as np

from sarlite import Graph, Trainer, nn, optim
from sarlite.comm import threads
from sarlite.models.gat import GATConv
from sarlite.models.gcn import GCNConv
from sarlite.models.sage import SAGEConv
from sarlite.nn import Activation

PLACES = ["sar:0", "sar:1", "oneshot:0", "broadcast:0", "broadcast:1"]
UNEQUAL = ["256-128-64-16", "128-256-256-172", "602-512-512-41", "100-256-256-47", "128-256-40", "64-512-64"]


class Stack(nn.Module):
    """Model of convolutions, made by the class `conv`, of the given widths, with activations between them.

    Between them stand a bias or a batch norm, activation and dropout; with `residual` the input is added.
    """

    def __init__(self, conv, widths, *, residual=False, batch_norm=False, dropout=0.0, kind="relu", rng):
        last = len(widths) - 2
        self.residual = residual
        self.convs = [conv(a, b, bias=i == last, rng=rng) for i, (a, b) in enumerate(zip(widths, widths[1:]))]
        self.activations = [Activation(b, kind, batch_norm=batch_norm, dropout=dropout, rng=rng) for b in widths[1:-1]]

    def __call__(self, graph, h):
        for k, conv in enumerate(self.convs):
            out = conv(graph, h)
            h = out + h if self.residual and k and out.shape == h.shape else out
            del out
            h = self.activations[k](h, graph, overwrite=True) if k < len(self.activations) else h
        return h


def heads(n_in, n_out, **options):
    return GATConv(n_in, n_out // 4, 4, **options)


MODELS = {
    "gcn": (GCNConv, {}),
    "gcn dropout": (GCNConv, {"dropout": 0.5}),
    "gcn batch norm": (GCNConv, {"batch_norm": True}),
    "gcn residual": (GCNConv, {"residual": True}),
    "sage": (SAGEConv, {}),
    "gat": (heads, {"kind": "elu"}),
}


def promised(model: str, widths: tuple, remote: int):
    """Return how many values per local row a training step may hold, by docs/architecture.md, with `remote` peers' rows held at once.

    `widths` are those of the input and of each layer's output. Dropout is on no input, so a first layer keeps A X.
    `remote` counts the peers whose rows, or gradients of rows, are held.
    """
    most, n_stored, last = 0, widths[0], len(widths) - 1
    for k, (n_in, n_out) in enumerate(zip(widths, widths[1:]), 1):
        f = min(n_in, n_out)
        if k > 1 and n_in < n_out:
            n_stored += n_in  # A H, in a layer that aggregates first
        layer = n_out + f + (remote * f if k > 1 else 0)
        more = n_out if model == "sage" or (model == "gcn residual" and k > 1) else 0  # W_root h; the sum's gradient
        most = max(most, n_stored + layer + more, n_stored + n_in + f if k > 1 else 0)
        if k < last:
            n_stored += n_out + (n_out if model == "gcn batch norm" else 0)
    return most


def edges(n_ranks, rows_per_rank, degree):
    """Return (src, dst, n_nodes) of a graph with `rows_per_rank` nodes per rank, where each node has `degree` sources on every rank.

    So every rank needs every row of all ranks.

    Each node has `degree` sources on every rank.
    """
    part, row, k = (a.reshape(-1) for a in np.meshgrid(*map(np.arange, (n_ranks, rows_per_rank, degree)), indexing="ij"))
    src = np.concatenate([peer * rows_per_rank + (row + k) % rows_per_rank for peer in range(n_ranks)])
    return src, np.tile(part * rows_per_rank + row, n_ranks), n_ranks * rows_per_rank


def measure(comm, model: str, widths: tuple, mode: str, prefetch: int, rows_per_rank: int, degree: int, steps=2, traces_memory=False):
    """Train a few steps; return (bytes of the trainer's buffers, most bytes held, peers whose rows are held: measured, expected).

    The most bytes held are None unless `traces_memory`. Collective.
    """
    conv, options = MODELS[model]
    graph = Graph.from_edges(*edges(comm.size, rows_per_rank, degree)).shard(comm, "contiguous", mode=mode, prefetch=prefetch)
    rng, values = nn.Random(0), np.random.default_rng(1 + comm.rank)
    x = values.standard_normal((graph.n_src, widths[0]), dtype=np.float32)
    labels = values.integers(0, widths[-1], graph.n_dst)
    trainer = Trainer(graph, Stack(conv, widths, rng=rng, **options), x, labels, np.ones(graph.n_dst, bool),
                      optimizer=lambda flat: optim.Adam(flat, 0.01), rng=rng)
    if traces_memory:
        tracemalloc.start()
    for _ in range(steps):
        if traces_memory:
            tracemalloc.reset_peak()
        trainer.step()
    held = _held() if traces_memory else None
    plan = graph.plan
    came, parts = ([float(piece.share) for piece in pieces if piece.n_rows] for pieces in (plan.forward, plan.backward))
    remote = min(prefetch + (came[0] if mode == "broadcast" and came else 1), comm.size - 1)
    # outgoing and incoming gradients; with prefetch and more peers to come, also a part of the next peer's rows
    if mode == "sar" and parts:
        remote = max(remote, 2 + (parts[0] if prefetch and comm.size > 2 else 0))
    return trainer.buffers.n_bytes, held, float(graph.profile.peak_remote_buffers), remote


def _held():
    """Return the largest number of bytes that NumPy arrays took at one time during the last step.

    Other traced memory, such as imported code, is subtracted.
    """
    now, peak = tracemalloc.get_traced_memory()
    arrays = tracemalloc.take_snapshot().filter_traces([tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)])
    tracemalloc.stop()
    return peak - now + sum(trace.size for trace in arrays.traces)


def run(n_ranks, mpi, *case):
    """Run `measure(comm, *case)` on N ranks, MPI processes if `mpi`, else threads; return each item's maximum over ranks."""
    if mpi and n_ranks > 1:
        return harness.last_json(harness.mpiexec(n_ranks, __file__, "--worker", json.dumps(case)))
    by_rank = threads.run(n_ranks, lambda comm: measure(comm, *case, traces_memory=n_ranks == 1))
    return [max(part) if part[0] is not None else None for part in zip(*by_rank)]


def worker(case):
    from sarlite.comm import mpi

    comm = mpi.world()
    by_rank = comm.allgather(measure(comm, *case, traces_memory=True))
    if comm.rank == 0:
        print(json.dumps([max(part) for part in zip(*by_rank)]))


def row_of(model, widths, n_ranks, place, args):
    mode, prefetch = place.split(":")
    unit = args.rows * args.hidden * 4
    taken, held, fetched, remote = run(n_ranks, args.mpi, model, widths, mode, int(prefetch), args.rows, args.degree)
    counts = model != "gat" and mode != "oneshot"
    row = {"case": model, "widths": widths, "ranks": n_ranks, "mode": mode, "prefetch": int(prefetch),
           "layers": len(widths) - 1,
           "taken": taken / unit, "held": held and held / unit, "remote": fetched,
           "promised": promised(model, widths, remote) / args.hidden if counts else None}
    harness.note(f"{model} {widths}, {n_ranks} ranks, {place}: {row['taken']:.2f}")
    return row


def main(argv=None):
    args = arguments().parse_args(argv)
    if args.worker:
        return worker(json.loads(args.worker))
    rows = []
    cases = [(model, [args.hidden] * (n + 1)) for model in args.models for n in args.layers]
    cases += [("gcn", [int(w) * args.hidden // 256 for w in widths.split("-")]) for widths in args.unequal]
    for model, widths in cases:
        for n in args.ranks:
            rows += [row_of(model, widths, n, place, args) for place in (args.places if n > 1 else args.places[:1])]
    harness.report(f"Arrays of {args.rows:,} rows x {args.hidden} that a training step holds", rows, COLUMNS, args.json)


COLUMNS = {
    "case": lambda r: r["case"],
    "widths": lambda r: "-".join(map(str, r["widths"])) if len(set(r["widths"])) > 1
    else f"{r['layers']} x {r['widths'][0]}",
    "ranks": lambda r: r["ranks"],
    "mode": lambda r: r["mode"],
    "prefetch": lambda r: r["prefetch"],
    "taken": lambda r: f"{r['taken']:.2f}",
    "L +": lambda r: f"{r['taken'] - r['layers']:.2f}" if len(set(r["widths"])) == 1 else None,
    "held": lambda r: r["held"] and f"{r['held']:.2f}",
    "promised": lambda r: r["promised"] and f"{r['promised']:.2f}",
    "taken/promised": lambda r: r["promised"] and f"{r['taken'] / r['promised']:.2f}",
    "held/promised": lambda r: r["promised"] and r["held"] and f"{r['held'] / r['promised']:.2f}",
    "peers' rows": lambda r: r["remote"],
}


def arguments():
    parser = harness.parser(__doc__)
    parser.add_argument("--models", type=harness.words, default=list(MODELS))
    parser.add_argument("--layers", type=harness.numbers, default=[2, 4, 6, 8])
    parser.add_argument("--ranks", type=harness.numbers, default=[1, 2, 4, 8])
    parser.add_argument("--places", type=harness.words, default=PLACES, metavar="LIST", help="MODE:PREFETCH, ...")
    parser.add_argument("--unequal", type=harness.words, default=UNEQUAL, metavar="LIST",
                        help="widths of GCNs, scaled by HIDDEN / 256")
    parser.add_argument("--rows", type=int, default=4096, help="of a rank")
    parser.add_argument("--degree", type=int, default=2, help="sources of a node on each rank")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--mpi", action="store_true", help="ranks as processes")
    parser.add_argument("--worker", help="(internal) one case, as JSON, on a rank of mpiexec")
    return parser


if __name__ == "__main__":
    sys.exit(main())

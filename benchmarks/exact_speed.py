"""Measure the cost of exact numerics: epochs of GCN, GraphSAGE and GAT, exact and fast in alternation.

The graph is an RMAT graph, whose degrees follow a power law. `--ranks` are threads of this process. Times are CPU time of rank
0's thread. `arrays` and `bytes` are ratios of the memory that rank 0's arrays take and of the bytes that it sends in a step. The hash is
of the parameters after all epochs: print it on other processors and with other ranks, and compare.
"""

import hashlib
import time

import harness
import numpy as np

from sarlite import Graph, Trainer, nn, optim
from sarlite.comm import threads
from sarlite.data import load
from sarlite.minibatch import NeighborLoader
from sarlite.models import GAT, GCN, SAGE
from sarlite.train.loop import set_threads

MODELS = {
    "gcn": lambda a, b, width, rng: GCN(a, b, layers=3, hidden=width, rng=rng),
    "sage": lambda a, b, width, rng: SAGE(a, b, layers=3, hidden=width, rng=rng),
    "gat": lambda a, b, width, rng: GAT(a, b, layers=3, hidden=width // 4, heads=4, rng=rng),
}


def measure(comm, data, args, name):
    """Train model `name`; return {"fast" or "exact": (CPU s of each step, bytes sent a step, bytes of buffers, parameters' hash)}."""
    set_threads(max(args.threads // comm.size, 1))
    graph = Graph.from_csr(data.indptr, data.indices)
    seconds, trainers, graphs = {}, {}, {}
    for numerics in ("fast", "exact"):
        backward = ("fetch" if numerics == "exact" else "push") if args.backward == "default" else args.backward
        local_graph = graph.shard(comm, args.parts, mode=args.mode, backward=backward) if comm.size > 1 else graph
        ids, rng = local_graph.node_ids, nn.Random(0)
        rows = data.features[ids], data.labels[ids], data.train[ids]
        model = MODELS[name](data.features.shape[1], data.n_classes, args.hidden, rng)
        batches = NeighborLoader(local_graph, *rows, fanouts=args.fanouts, batch_size=args.batch_size) if args.batch_size else None
        trainers[numerics] = Trainer(local_graph, model, *rows, rng=rng, optimizer=lambda flat: optim.Adam(flat, 0.01), numerics=numerics,
                                     batches=batches)
        seconds[numerics], graphs[numerics] = [], local_graph
    for step in range(args.epochs + 1):
        for numerics, trainer in trainers.items():
            if step == 1:
                graphs[numerics].profile.reset()  # the first step also sends what is kept, and is not counted
            comm.barrier()
            begin = time.thread_time()
            trainer.step()
            comm.barrier()
            seconds[numerics].append(time.thread_time() - begin)
    return {numerics: (seconds[numerics][1:], sum(graphs[numerics].profile.sent_bytes.values()) / args.epochs, trainer.buffers.n_bytes,
                       hashlib.sha256(trainer.flat.data.tobytes()).hexdigest()[:16]) for numerics, trainer in trainers.items()}


def main():
    parser = harness.parser(__doc__)
    parser.add_argument("--data", default="rmat:nodes=16384,edges=262144,features=100,classes=10")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--mode", default="sar")
    parser.add_argument("--parts", default="metis")
    parser.add_argument("--backward", choices=("default", "push", "fetch"), default="default", help="as the command's, by numerics")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=5, help="or steps of minibatches")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=0)
    parser.add_argument("--fanouts", type=harness.numbers, default=[10, 10, 10])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    args = parser.parse_args()
    data, rows = load(args.data), []
    for name in args.models:
        measured = threads.run(args.ranks, measure, data, args, name)[0]
        (fast, fast_bytes, fast_memory, _), (exact, exact_bytes, exact_memory, expected) = measured["fast"], measured["exact"]
        ratios = [b / a for a, b in zip(fast, exact)]
        rows.append({"model": name, "ranks": args.ranks, "fast_ms": float(np.median(fast)) * 1e3, "exact_ms": float(np.median(exact)) * 1e3,
                     "ratio": float(np.median(exact) / np.median(fast)), "least": min(ratios), "most": max(ratios),
                     "arrays": exact_memory / fast_memory, "bytes": exact_bytes / fast_bytes if fast_bytes else None, "hash": expected})
    columns = {name: lambda row, name=name: row[name] for name in rows[0]}
    harness.report("exact numerics", rows, columns, args.json)
    return rows


if __name__ == "__main__":
    main()

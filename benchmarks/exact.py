"""What do exact numerics cost? Epochs of GCN, GraphSAGE and GAT, exact and fast in alternation, and that one hash holds.

The graph is an RMAT graph, whose degrees follow a power law. `--ranks` are threads of this process. The hash is of the
parameters after all epochs: print it on other processors and with other ranks, and compare.
"""

import hashlib
import time

import harness
import numpy as np

from sarlite import Graph, Trainer, nn, optim
from sarlite.comm import threads
from sarlite.data import load
from sarlite.models import GAT, GCN, SAGE
from sarlite.train.loop import set_threads

MODELS = {
    "gcn": lambda a, b, width, rng: GCN(a, b, layers=3, hidden=width, rng=rng),
    "sage": lambda a, b, width, rng: SAGE(a, b, layers=3, hidden=width, rng=rng),
    "gat": lambda a, b, width, rng: GAT(a, b, layers=3, hidden=width // 4, heads=4, rng=rng),
}


def measure(comm, data, args, name):
    """Return each numerics' seconds an epoch, bytes pushed and hash, on one rank."""
    set_threads(max(args.threads // comm.size, 1))
    graph = Graph.from_csr(data.indptr, data.indices)
    found, trainers = {}, {}
    for numerics in ("fast", "exact"):
        own = graph.shard(comm, "metis", mode=args.mode) if comm.size > 1 else graph
        ids, rng = own.node_ids, nn.Random(0)
        model = MODELS[name](data.features.shape[1], data.n_classes, args.hidden, rng)
        trainers[numerics] = Trainer(own, model, data.features[ids], data.labels[ids], data.train[ids], rng=rng,
                                     optimizer=lambda flat: optim.Adam(flat, 0.01), numerics=numerics)
        found[numerics] = []
    for _ in range(args.epochs + 1):
        for numerics, trainer in trainers.items():
            comm.barrier()
            begin = time.perf_counter()
            trainer.step()
            found[numerics].append(time.perf_counter() - begin)
    return {numerics: (found[numerics][1:], hashlib.sha256(trainer.flat.data.tobytes()).hexdigest()[:16])
            for numerics, trainer in trainers.items()}


def main():
    parser = harness.parser(__doc__)
    parser.add_argument("--data", default="rmat:nodes=16384,edges=262144,features=100,classes=10")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--mode", default="sar")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    args = parser.parse_args()
    data, rows = load(args.data), []
    for name in args.models:
        found = threads.run(args.ranks, measure, data, args, name)[0]
        fast, exact = (float(np.median(found[numerics][0])) for numerics in ("fast", "exact"))
        rows.append({"model": name, "ranks": args.ranks, "fast_ms": fast * 1e3, "exact_ms": exact * 1e3,
                     "ratio": exact / fast, "hash": found["exact"][1]})
    columns = {name: lambda row, name=name: row[name] for name in ("model", "ranks", "fast_ms", "exact_ms", "ratio", "hash")}
    harness.report("exact numerics", rows, columns, args.json)
    return rows


if __name__ == "__main__":
    main()

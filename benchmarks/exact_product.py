"""Check that exact numerics give one hash of the weights over ranks, threads, modes, divisions and instruction sets.

The models are GCN, GraphSAGE (batch norm, dropout), GAT (attention dropout), R-GCN (two relations) and GraphSAGE in minibatches. Each is
trained for some epochs on one rank, and then again at `--points` points drawn from the product of all the options. Ranks are threads.

The graphs are a power-law graph and one with a node of 10^4 neighbours, isolated nodes and features of mixed scale. `--data` names
further data sets. With `--processes` each model is also trained by processes, of one rank or of mpiexec, with other libraries
beneath: `LIBRARIES`. Run the program on other processors and compare the hashes. The exit status is 1 if one differs.
"""

import hashlib
import itertools
import os
import sys

import harness
import numpy as np

from sarlite import Graph, HeteroGraph, Trainer, kernels, nn, optim
from sarlite.comm import Solo, threads
from sarlite.data import load
from sarlite.minibatch import NeighborLoader
from sarlite.models import GAT, GCN, RGCN, SAGE

MODELS = {
    "gcn": lambda a, b, **more: GCN(a, b, layers=2, hidden=16, dropout=0.3, **more),
    "sage": lambda a, b, **more: SAGE(a, b, layers=3, hidden=24, dropout=0.4, batch_norm=True, **more),
    "gat": lambda a, b, **more: GAT(a, b, layers=2, hidden=6, heads=3, dropout=0.2, attention_dropout=0.4, **more),
    "rgcn": lambda a, b, nodes, **more: RGCN({"node": a}, b, nodes, layers=2, hidden=12, **more),
    "minibatch sage": lambda a, b, **more: SAGE(a, b, layers=2, hidden=24, dropout=0.3, batch_norm=True, **more),
}
RANKS, THREADS, MODES = (1, 2, 3, 4, 8), (1, 2), ("sar", "sa", "oneshot", "broadcast")
MIXED = "mixed scale"
DIVISIONS = ("metis", "random", "contiguous", "an empty part")
LIBRARIES = {  # ranks of mpiexec, the environment
    "MPI, recursive doubling": (3, {"MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": "recursive_doubling"}),
    "MPI, reduce and scatter": (4, {"MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": "reduce_scatter_allgather"}),
    "MPI, ring": (2, {"MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": "ring", "SARLITE_ISA": "portable"}),
    "OpenBLAS of SSE3, two threads": (1, {"OPENBLAS_CORETYPE": "Prescott", "OPENBLAS_NUM_THREADS": "2"}),
    "OpenBLAS of Sandy Bridge": (2, {"OPENBLAS_CORETYPE": "Sandybridge", "OPENBLAS_NUM_THREADS": "1"}),
    "NumPy and C library without AVX2 and FMA": (1, {
        "NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3 F16C", "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-AVX2_Usable,-FMA_Usable"}),
}  # fmt: skip


def mixed():
    """Return (sources, destinations, features, labels, training mask) of a graph whose sums need exact arithmetic.

    They are computed by whole numbers and products alone, and so are the same on every processor.
    """
    rng, n = np.random.default_rng(7), 12_000
    src, dst = rng.integers(0, n - 100, 30_000) * rng.integers(0, n - 100, 30_000) // (n - 100), rng.integers(0, n - 100, 30_000)
    src, dst = np.concatenate([src, rng.permutation(n - 100)[:10_000]]), np.concatenate([dst, np.full(10_000, 3)])
    x = rng.integers(-1000, 1001, (n, 12)) * np.array([1e-6, 1e-4, 1e-2, 1.0])[rng.integers(0, 4, (n, 1))]
    x[:, 1] *= 1e-20
    x[:, 2] *= 1e3
    return src, dst, x, rng.integers(0, 5, n), rng.random(n) < 0.2


def loaded(spec):
    """Return (edge sources, edge destinations, features, labels, training mask) of the data set `spec`, such as "sbm:"."""
    data = load(spec)
    dst = np.repeat(np.arange(len(data.indptr) - 1), np.diff(data.indptr))
    return np.asarray(data.indices), dst, np.asarray(data.features), np.asarray(data.labels), np.asarray(data.train)


def parts_of(division, n_nodes, n_ranks):
    """Return the argument `parts` for a `division`: its name, or for "an empty part" the part of each node; no node has the last part."""
    if division != "an empty part":
        return division
    return np.random.default_rng(1).integers(0, max(n_ranks - 1, 1), n_nodes)


def train(comm, name, arrays, dtype, epochs, n_threads=1, mode="sar", division="random"):
    """Train model `name` on this rank's part of `arrays`, see `arrays_of`, divided by `division`; return its parameters' hash.

    Collective.
    """
    kernels.set_threads(n_threads)
    src, dst, x, labels, train = arrays
    n, rng, relations = len(x), nn.Random(3), name == "rgcn"
    parts = parts_of(division, n, comm.size)
    if relations:
        edges = {("node", str(k), "node"): (src[k::2], dst[k::2]) for k in range(2)}
        parts = parts if isinstance(parts, str) and parts == "metis" else {"node": parts}
        graph = HeteroGraph.from_edges(edges, {"node": n}, comm=comm, parts=parts, mode=mode).of("node")
    else:
        if name.startswith("minibatch"):  # self loops, which sampling picks like other edges
            loops = np.setdiff1d(np.arange(n), src[src == dst])
            src, dst = np.concatenate([src, loops]), np.concatenate([dst, loops])
        graph = Graph.from_edges(src, dst, n, self_loops=name != "sage")
        graph = graph.shard(comm, parts, mode=mode) if comm.size > 1 else graph
    rows = np.ascontiguousarray(x[graph.node_ids].astype(dtype))
    relation_arguments = (graph,) if relations else ()
    model = MODELS[name](x.shape[1], int(labels.max()) + 1, *relation_arguments, rng=rng, dtype=dtype)
    targets, chosen = labels[graph.node_ids], train[graph.node_ids]
    batches = None
    if name.startswith("minibatch"):
        batches = NeighborLoader(graph, rows, targets, chosen, fanouts=(5, 5), batch_size=500, seed=2)
    trainer = Trainer(graph, model, {"node": rows} if relations else rows, targets, chosen, rng=rng, numerics="exact", batches=batches,
                      optimizer=lambda flat: optim.Adam(flat, 0.01))
    for epoch in range(epochs):
        trainer.epoch(epoch)
    return hashlib.sha256(trainer.flat.data.tobytes()).hexdigest()[:16]


def points(rng, count):
    """Return up to `count` different random combinations (ranks, threads, mode, division, instruction set)."""
    product = list(itertools.product(RANKS, THREADS, MODES, DIVISIONS, kernels.instruction_sets()))
    return [product[k] for k in rng.permutation(len(product))[:count]]


def arrays_of(spec):
    """Return (sources, destinations, features, labels, training mask) of `spec`: the graph of `mixed`, or a data set to load."""
    return mixed() if spec == MIXED else loaded(spec)


def worker(comm, args):
    """Train the model and graph that `args` names, as a rank of mpiexec or as the only rank; return the hash of the parameters."""
    (spec,), (name,) = args.data, args.models
    return train(comm, name, arrays_of(spec), np.dtype(args.worker).type, args.epochs, args.threads)


def by_processes(spec, name, dtype, epochs):
    """Repeat one training in a process for each entry of `LIBRARIES` (other BLAS, MPI ...); yield (entry's name, hash of parameters).

    Each entry sets environment variables that select another algorithm of MPI, or another variant of the BLAS, NumPy or the
    C library.
    """
    words = [__file__, "--worker", np.dtype(dtype).name, "--data", spec, "--models", name, "--epochs", epochs]
    for library, (n_ranks, environment) in LIBRARIES.items():
        launcher = (harness.find_mpiexec(), "-n", str(n_ranks)) if n_ranks > 1 else ()
        yield library, harness.last_json(harness.python(*words, launcher=launcher, env={**os.environ, **environment}))


def main():
    parser = harness.parser(__doc__)
    parser.add_argument("--data", nargs="*", default=["rmat:nodes=4096,edges=40000,features=32,classes=6"])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--points", type=int, default=20, help="of each graph, model and dtype")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", action="store_true", help="also by processes with other libraries beneath")
    parser.add_argument("--worker", metavar="DTYPE", help="as one of these processes, of one graph and model")
    parser.add_argument("--threads", type=int, default=1, help="of a worker")
    args = parser.parse_args()
    if args.worker:
        return harness.as_rank(worker, args, args.threads)
    rng, rows = np.random.default_rng(args.seed), []
    graphs = {spec: arrays_of(spec) for spec in (MIXED, *args.data)}
    for (graph, arrays), name, dtype in itertools.product(graphs.items(), args.models, (np.float32, np.float64)):
        kernels.set_instruction_set(kernels.instruction_sets()[-1])
        expected = train(Solo(), name, arrays, dtype, args.epochs)
        row = {"graph": graph, "model": name, "dtype": np.dtype(dtype).name, "points": args.points, "different": 0, "hash": expected}
        for n_ranks, n_threads, mode, division, isa in points(rng, args.points):
            kernels.set_instruction_set(isa)
            hashes = set(threads.run(n_ranks, train, name, arrays, dtype, args.epochs, n_threads, mode, division))
            if hashes != {expected}:
                row["different"] += 1
                print(f"differs: {graph}, {name}, {np.dtype(dtype)}: {n_ranks} ranks, {n_threads} threads, {mode}, {division}, {isa}",
                      flush=True)
        for library, hashes in by_processes(graph, name, dtype, args.epochs) if args.processes else ():
            row["points"] += 1
            if hashes != expected:
                row["different"] += 1
                print(f"differs: {graph}, {name}, {np.dtype(dtype)}: {library}", flush=True)
        rows.append(row)
        print(*row.values(), flush=True)
    columns = {name: lambda row, name=name: row[name] for name in ("graph", "model", "dtype", "points", "different", "hash")}
    harness.report("one hash, however a run is run", rows, columns, args.json)
    return sum(row["different"] for row in rows)


if __name__ == "__main__":
    sys.exit(1 if main() else 0)

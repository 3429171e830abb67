"""Check that logits and all gradients on N ranks equal those on one rank, in every mode.

The grid is {gcn, sage, gat, a custom message} x {sar, sa, oneshot} x N x {metis, random, contiguous} x prefetch x dtype.
The error of an array is the norm of the difference over the norm; dropout is on. Ranks are threads; --mpi runs a part
of the grid under mpiexec.
"""

import argparse
import functools
import itertools
import json
import sys
from typing import NamedTuple

import harness
import numpy as np

from sarlite import Graph, Tensor, models, nn
from sarlite.comm import threads
from sarlite.comm.launch import connect
from sarlite.tape import ops

BOUNDS = {"float64": 1e-12, "float32": 1e-5}
N_NODES, N_EDGES, N_FEATURES, N_CLASSES = 300, 3000, 12, 5


class Problem(NamedTuple):
    src: np.ndarray
    dst: np.ndarray
    x: np.ndarray
    labels: np.ndarray
    train: np.ndarray
    weight: np.ndarray


class Case(NamedTuple):
    """Combination of options whose results on N ranks are compared with the results on one rank."""

    model: str
    mode: str
    n_ranks: int
    partition: str
    prefetch: int
    dtype: str

    def __str__(self):
        return f"{self.mode}, {self.n_ranks} ranks, {self.partition}, prefetch {self.prefetch}"


@functools.cache
def problem(seed=0):
    """Return the data of the comparison: a random graph with repeated edges and nodes without in-edges, features and labels."""
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(0, N_NODES, N_EDGES), rng.integers(0, N_NODES - 9, N_EDGES)
    return Problem(src, dst, rng.standard_normal((N_NODES, N_FEATURES)), rng.integers(0, N_CLASSES, N_NODES),
                   np.flatnonzero(rng.random(N_NODES) < 0.5), rng.random(N_EDGES) + 0.5)


class CustomConv(nn.Module):
    """A convolution with a max over messages and an attention written as a message.

    The messages hold a learned matrix, an edge weight and dropout.
    """

    def __init__(self, n_in, n_out, rng, dtype):
        self.z, self.q = (nn.Linear(n_in, 6, rng=rng, dtype=dtype) for _ in range(2))
        self.score = nn.Linear(n_in, 1, rng=rng, dtype=dtype)
        self.w = nn.glorot(rng, (6, n_out), 6, n_out, dtype)
        self.dropout, self.n_out = nn.Dropout(0.3, rng), n_out

    def __call__(self, graph, h):
        def message(src, dst, edge):
            return self.dropout(((src["z"] + dst["q"]).relu() @ self.w) * edge["w"], edge.ids)

        def attend(src, dst, edge):
            return (src["s"] + dst["s"]).tanh(), (src["z"] @ self.w).reshape(-1, 1, self.n_out)

        weight = Tensor(problem().weight[graph.edge_ids][:, None].astype(h.dtype))
        z, q, s = self.z(h), self.q(h), self.score(h)
        strongest = graph.aggregate(message, "max", src={"z": z}, dst={"q": q}, edge={"w": weight})
        return strongest + graph.aggregate(attend, "softmax", src={"s": s, "z": z},
                                           dst={"s": s}).reshape(-1, self.n_out)


class Custom(nn.Module):
    """Model of two CustomConv layers."""

    def __init__(self, n_in, n_out, rng, dtype):
        self.convs = [CustomConv(n_in, 8, rng, dtype), CustomConv(8, n_out, rng, dtype)]

    def __call__(self, graph, h):
        return self.convs[1](graph, self.convs[0](graph, h).elu())


MODELS = {
    "gcn": functools.partial(models.GCN, hidden=16, dropout=0.5),
    "sage": functools.partial(models.SAGE, hidden=16, dropout=0.5, batch_norm=True),
    "gat": functools.partial(models.GAT, hidden=4, heads=3, out_heads=2, dropout=0.5, attention_dropout=0.4,
                             residual=True,
                             batch_norm=True),
    "custom": Custom,
}


def step(comm, case: Case):
    """Compute a training step's gradients in the configuration `case`; return (this rank's node ids, {name: logits or gradient})."""
    p, dtype = problem(), np.dtype(case.dtype).type
    graph = Graph.from_edges(p.src, p.dst, N_NODES)
    if comm is not None:
        graph = graph.shard(comm, case.partition, mode=case.mode, prefetch=case.prefetch)
    rng, ids = nn.Random(3), graph.node_ids
    model = MODELS[case.model](N_FEATURES, N_CLASSES, rng=rng, dtype=dtype)
    flat, rng.step = nn.flatten(model), 2
    logits = model(graph, Tensor(p.x[ids].astype(dtype)))
    ops.cross_entropy(logits, p.labels[ids], np.flatnonzero(np.isin(ids, p.train)), len(p.train)).backward()
    graph.comm.allreduce(flat.grad)
    return ids, {"logits": logits.data, **{name: parameter.grad for name, parameter in model.named_parameters()}}


@functools.cache
def one_rank(model, dtype):
    return step(None, Case(model, "sar", 1, "contiguous", 0, dtype))[1]


def errors(case: Case, rank_results: list):
    """Return {"logits" or a parameter's name: error relative to one rank's result}; `rank_results` are each rank's values of `step`."""
    expected, actual = one_rank(case.model, case.dtype), dict(rank_results[0][1])
    actual["logits"] = np.empty_like(expected["logits"])
    for ids, arrays in rank_results:
        actual["logits"][ids] = arrays["logits"]
    return {name: float(np.linalg.norm(actual[name] - want) / np.linalg.norm(want)) for name, want in expected.items()}


def row(case: Case, rank_results: list):
    """Return the result row of a case, its options and its largest error; `rank_results` are each rank's values of `step`."""
    by_array = errors(case, rank_results)
    array = max(by_array, key=lambda name: np.inf if np.isnan(by_array[name]) else by_array[name])
    return {**case._asdict(), "array": array, "error": by_array[array], "logits_error": by_array["logits"]}


def grid(args):
    return [Case(*point)
            for point in itertools.product(args.models, args.modes, args.ranks, args.partitions, args.prefetch,
                                           args.dtypes)]


def under_mpi(args):
    """Run all cases under mpiexec, with one command for each number of ranks, and return the table's rows."""
    rows = []
    for n_ranks in args.ranks:
        harness.note(f"mpiexec -n {n_ranks}")
        options = ["--models", args.models, "--modes", args.modes, "--partitions", args.partitions, "--dtypes",
                   args.dtypes,
                   "--prefetch", args.prefetch, "--ranks", [n_ranks]]
        flags = [",".join(map(str, item)) if isinstance(item, list) else item for item in options]
        rows += harness.last_json(harness.mpiexec(n_ranks, __file__, "--worker", *flags))
    return rows


def worker(args):
    """Run all cases as one rank of mpiexec; rank 0 prints the result rows as JSON."""
    comm, rows = connect(), []
    for case in grid(args):
        rows.append(row(case, comm.allgather(step(comm, case))))
    if comm.rank == 0:
        print(json.dumps(rows))


def main():
    args = arguments().parse_args()
    if args.worker:
        return worker(args)
    rows = under_mpi(args) if args.mpi else [row(case, threads.run(case.n_ranks, step, case)) for case in grid(args)]
    harness.report(f"{len(rows)} points against one rank ({'mpiexec' if args.mpi else 'threads'}): the worst of each "
                   "model and dtype",
                   worst(rows), COLUMNS)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    return None


def worst(rows):
    """Return a list with the row of the largest error for each model and dtype."""
    largest = {}
    for candidate in rows:
        key = candidate["model"], candidate["dtype"]
        if key not in largest or not candidate["error"] <= largest[key]["error"]:
            largest[key] = candidate
    return list(largest.values())


COLUMNS = {
    "model": lambda r: r["model"],
    "dtype": lambda r: r["dtype"],
    "worst": lambda r: f"{r['error']:.1e}",
    "bound": lambda r: f"{BOUNDS[r['dtype']]:.0e}",
    "": lambda r: "holds" if r["error"] <= BOUNDS[r["dtype"]] else "BROKEN",
    "array": lambda r: r["array"],
    "where": lambda r: str(Case(*(r[name] for name in Case._fields))),
}


def arguments():
    parser = harness.parser(__doc__)
    parser.add_argument("--mpi", action="store_true",
                        help="as processes of mpiexec; by default metis and prefetch 1 alone")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--models", type=harness.words, default=list(MODELS))
    parser.add_argument("--modes", type=harness.words, default=["sar", "sa", "oneshot"])
    parser.add_argument("--ranks", type=harness.numbers, default=[1, 2, 3, 4])
    mpi = "--mpi" in sys.argv
    parser.add_argument("--partitions", type=harness.words, default=["metis"] if mpi
                        else ["metis", "random", "contiguous"])
    parser.add_argument("--prefetch", type=harness.numbers, default=[1] if mpi else [0, 1, 2])
    parser.add_argument("--dtypes", type=harness.words, default=list(BOUNDS))
    return parser


if __name__ == "__main__":
    sys.exit(main())

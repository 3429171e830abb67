"""Measure epochs and neighbour sums of mode broadcast on graph R, which is like Reddit's, compared with mode sar and with one rank.

The questions: how long is an epoch; are its bytes (n - n_p) f 4 a pass; how uneven are its stages; what do random
parts gain? There are three tables.

An epoch is a training step of GCN, which keeps the first layer's A X: 602 features, 512 hidden, 41 classes, 2 and 3
layers, dropout 0.5 between the layers, Adam, float32. It runs on one rank of two threads, and on two ranks of one
thread in every mode on `--partition` parts. The ways on two ranks take turns in one job, step by step. Jobs of one
rank and of two ranks take turns, `--rounds` times. With `--before DIR`, another checkout with its compiled module, the
jobs of one rank of that checkout take turns too.

    ms         of all measured steps: the median, with minimum and maximum.
    to sar     a step's time over that of mode sar with prefetch 1 right before it: the median, minimum and maximum of
               these ratios.
    to one     likewise of a round's median over that of one rank x two threads in the same round.
    received   bytes of a step, of the rank that receives most, forward, backward and pushed; `equal` where forward and
               backward are the sum over layers that aggregate of (n - n_p) f 4 on every rank, f the smaller width of
               the layer, and nothing is pushed.

The stages' imbalance is the sum over stages of the largest tile, over edges / N. Where ranks wait for each other, all
stages together take so many times as long as with even tiles. The third table has the time of one sum over neighbours
of 512 columns in mode broadcast on two ranks, the parts in alternation.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import harness
import numpy as np
import seeded_graphs

from sarlite import Graph, Tensor, Trainer, fn, kernels, models, nn, no_grad, optim
from sarlite.structure.edges import destinations
from sarlite.structure.partition import METHODS, partition

FEATURES, CLASSES, TRAIN_SHARE = 602, 41, 0.66
PHASES = ("forward_fetch", "backward_fetch", "backward_push")
BASE = "sar 1"  # baseline of the ratios


def make_trainer(graph, layers, n_in, n_out, hidden, share=TRAIN_SHARE):
    """Return a Trainer of a GCN of `layers` layers and `hidden` width on random data; a `share` of this rank's rows is for training."""
    draw, rng = np.random.default_rng(graph.comm.rank), nn.Random(0)
    x = draw.standard_normal((graph.n_dst, n_in), dtype=np.float32)
    train = draw.random(graph.n_dst) < share
    model = models.GCN(n_in, n_out, layers=layers, hidden=hidden, dropout=0.5, input_dropout=0.0, rng=rng)
    return Trainer(graph, model, x, draw.integers(0, n_out, graph.n_dst), train,
                   optimizer=lambda flat: optim.Adam(flat, 0.01), rng=rng)


def time_in_turn(comm, calls, repeats):
    """Time the functions `calls`, {name: function}, in alternation; return {name: [milliseconds of each call]}. Collective.

    The first call of each function warms up and is not counted. Collective.
    """
    times = {name: [] for name in calls}
    for k in range(repeats + 1):
        for name, call in calls.items():
            comm.barrier()
            begin = time.perf_counter()
            call()
            comm.barrier()
            times[name] += [1e3 * (time.perf_counter() - begin)] if k else []
    return times


def configurations(modes, prefetch, n_ranks):
    """Return the configurations to measure as {"MODE PREFETCH": (mode, prefetch)}; `modes` and `prefetch` are the lists to combine.

    A single rank has no peers, so mode and prefetch make no difference there, and only one configuration is measured.
    """
    if n_ranks == 1:
        return {BASE: ("sar", 1)}
    return {f"{mode} {ahead}": (mode, ahead) for mode in modes
            for ahead in (prefetch if mode in ("sar", "broadcast") else [0])}


def train(comm, args):
    """Time GCN steps in all `configurations`; return ({name: [ms]}, {name: this rank's received and predicted bytes}). Collective."""
    whole = Graph.from_csr(*seeded_graphs.arrays_of(args.file))
    trainers = {name: make_trainer(whole.shard(comm, args.partition, mode=mode, prefetch=ahead), args.layers, FEATURES,
                                   CLASSES, args.hidden)
                for name, (mode, ahead) in configurations(args.modes, args.prefetch, comm.size).items()}
    times = time_in_turn(comm, {name: trainer.step for name, trainer in trainers.items()}, args.repeats)
    widths = [FEATURES, *[args.hidden] * (args.layers - 1), CLASSES]
    others = whole.n_nodes - next(iter(trainers.values())).graph.n_dst
    pass_bytes = 4 * others * sum(min(pair) for pair in list(zip(widths, widths[1:]))[1:])
    counted = {name: step_bytes(trainer) for name, trainer in trainers.items()}
    return times, {name: {"received": received, "predicted": [pass_bytes, pass_bytes, 0]}
                   for name, received in counted.items()}


def step_bytes(trainer: Trainer):
    """Return the bytes that this rank receives in a training step as [forward fetches, backward fetches, pushed gradients]. Collective."""
    counter = trainer.graph.profile.received_bytes
    before = [counter[phase] for phase in PHASES]
    trainer.step()
    return [counter[phase] - n for phase, n in zip(PHASES, before)]


def spmm(comm, args):
    """Return ({"METHOD PREFETCH": [milliseconds of each sum]}, {}) of sums over neighbours in mode broadcast. Collective."""
    whole, draw, ways = Graph.from_csr(*seeded_graphs.arrays_of(args.file)), np.random.default_rng(comm.rank), {}
    with kernels.Buffers(), no_grad():
        for method in args.methods:
            for ahead in args.prefetch:
                graph = whole.shard(comm, method, mode="broadcast", prefetch=ahead)
                x = Tensor(draw.standard_normal((graph.n_dst, args.hidden), dtype=np.float32))
                ways[f"{method} {ahead}"] = lambda graph=graph, x=x: graph.aggregate(fn.copy_src(x), "sum")
        return time_in_turn(comm, ways, args.repeats), {}


def work(comm, args):
    """Run `train` or `spmm`; return {"times": {name: [ms]}, "ranks": {name: bytes of every rank}}. Collective."""
    times, counted = {"train": train, "spmm": spmm}[args.worker](comm, args)
    every = comm.allgather(counted)
    return {"times": times, "ranks": {name: [rank[name] for rank in every] for name in counted}}


def job(args, job_name, n_ranks, threads, tree=None, **options):
    """Run `work` for `job_name`, "train" or "spmm", on N ranks with `options` as flags; return its result. `tree`: checkout to run."""
    words = [__file__, "--worker", job_name, "--file", seeded_graphs.path(args.graphs, args.graph).resolve(), "--threads", threads,
             "--repeats", args.repeats, "--partition", args.partition, "--modes", ",".join(args.modes),
             "--prefetch", ",".join(map(str, args.prefetch)), "--hidden", args.hidden, "--methods",
             ",".join(args.methods)]
    words += [word for name, value in options.items() for word in (f"--{name}", value)]
    path = Path(tree or Path(__file__).parents[1]).resolve()
    launcher = ("env", f"PYTHONPATH={path}", harness.find_mpiexec(), "-n", str(n_ranks))
    return harness.last_json(harness.python(*words, launcher=launcher))


def measure_epochs(args, layers):
    """Return the rows of the table of epoch times of a GCN with `layers` layers."""
    places = {"one": (1, 2, None), **({"before": (1, 2, args.before)} if args.before else {}), "two": (2, 1, None)}
    rounds = []
    for number in range(args.rounds):
        harness.note(f"round {number + 1} of {args.rounds}: GCN {layers} x {args.hidden} on {args.graph}")
        rounds.append({place: job(args, "train", *where, layers=layers) for place, where in places.items()})
    return [row(args, layers, place, name, rounds) for place in places for name in rounds[0][place]["times"]]


def row(args, layers, job_name, name, rounds):
    """Return the result row of configuration `name`, "MODE PREFETCH", in the job "one", "two" (ranks) or "before", from all rounds."""
    results = [result[job_name] for result in rounds]
    times = [ms for each in results for ms in each["times"][name]]
    ones = [statistics.median(result["one"]["times"][BASE]) for result in rounds]
    to_one = [statistics.median(each["times"][name]) / one for each, one in zip(results, ones)]
    pairs = [a / b for each in results
             for a, b in zip(each["times"][name], each["times"][BASE])] if job_name == "two" else None
    ranks = results[0]["ranks"][name]
    mode, ahead = name.split()
    return {"case": f"gcn {layers} x {args.hidden}" + (" before" if job_name == "before" else ""), "graph": args.graph,
            "ranks": len(ranks),
            "threads": 1 if job_name == "two" else 2, "mode": mode if job_name == "two" else None, "prefetch": int(ahead),
            **harness.summary(times), "peak_mib": None, "limit_fraction": None, "to_one": to_one, "to_sar": pairs,
            "received": [max(counts) for counts in zip(*(rank["received"] for rank in ranks))],
            "equal": all(rank["received"] == rank["predicted"] for rank in ranks) if mode == "broadcast" else None}


def imbalances(args):
    """Return result rows with the stage imbalance (see `stage_imbalance`) for each number of ranks and each partition method."""
    indptr, indices = seeded_graphs.arrays_of(seeded_graphs.path(args.graphs, args.graph))
    rows = []
    for n_ranks in args.parts:
        for method in args.methods:
            harness.note(f"{args.graph} in {n_ranks} {method} parts")
            rows.append({"case": "stages", "graph": args.graph, "ranks": n_ranks, "partition": method,
                         **dict.fromkeys(_TIMES),
                         "imbalance": stage_imbalance(indptr, indices, partition(indptr, indices, n_ranks, method),
                                                      n_ranks)})
    return rows


def stage_imbalance(indptr, indices, parts, n_parts):
    """Return how uneven broadcast stages are: the sum over source parts of their most edges into one part, divided by edges per part.

    `parts` is the part of each node.

    A tile holds the edges from the rows of one rank, which are broadcast in one stage, to the rows of another rank.
    The ratio is 1 if all tiles of each stage have equally many edges.
    """
    tiles = np.bincount(parts[destinations(indptr, indices.dtype)].astype(np.int64) * n_parts + parts[indices],
                        minlength=n_parts**2)
    return float(tiles.reshape(n_parts, n_parts).max(axis=0).sum() * n_parts / max(indices.size, 1))


def measure_spmm(args):
    """Return result rows of sums over neighbours on two ranks, one row for each partition method and prefetch."""
    times_by_order = {}
    for number in range(args.rounds):
        harness.note(f"round {number + 1} of {args.rounds}: sum over neighbours on 2 ranks")
        for name, times in job(args, "spmm", 2, 1)["times"].items():
            times_by_order.setdefault(name, []).extend(times)
    rows = []
    for name, times in times_by_order.items():
        method, ahead = name.split()
        pairs = [a / b for a, b in zip(times, times_by_order[f"random {ahead}"])]
        rows.append({"case": "spmm", "graph": args.graph, "ranks": 2, "threads": 1, "partition": method,
                     "prefetch": int(ahead),
                     **harness.summary(times), "peak_mib": None, "limit_fraction": None, "to_random": pairs})
    return rows


_TIMES = ("threads", "ms", "ms_min", "ms_max", "peak_mib", "limit_fraction")


def main(argv=None):
    args = arguments().parse_args(argv)
    if args.worker:
        return harness.as_rank(work, args, args.threads)
    if "sar" not in args.modes or 1 not in args.prefetch:
        raise SystemExit("--modes and --prefetch: mode sar with prefetch 1 must be there, with which the others are "
                         "compared")
    harness.note("a full run takes about 15 minutes on two free cores: 6 of GCN 2 x 512, 6 of GCN 3 x 512, 1 of METIS, "
                 "2 of sums")
    begin = time.monotonic()
    epochs = [epoch_row for layers in args.layers_list for epoch_row in measure_epochs(args, layers)]
    if epochs:
        harness.report(f"An epoch of GCN on {args.graph}, {args.partition} parts", epochs, EPOCHS)
    stages, sums = imbalances(args), measure_spmm(args)
    harness.report(f"Stages of {args.graph}: sum of the largest tiles, over edges / N", stages, STAGES)
    harness.report(f"A sum over neighbours of {args.hidden} columns on {args.graph}, mode broadcast", sums, SUMS)
    print(f"\n{(time.monotonic() - begin) / 60:.1f} minutes")
    if args.json:
        args.json.write_text(json.dumps([*epochs, *stages, *sums], indent=1) + "\n")
    return None


def _ratios(key):
    return lambda r: harness.spread(r[key]) if r[key] else None


EPOCHS = {
    **harness.named("case", "ranks", "threads", "mode"),
    "prefetch": lambda r: r["prefetch"] if r["mode"] in ("sar", "broadcast") else None,
    "ms": harness.times(),
    "to sar": _ratios("to_sar"),
    "to one": _ratios("to_one"),
    "received": lambda r: " ".join(f"{n:,}" for n in r["received"]),
    "(n - n_p) f 4": lambda r: None if r["equal"] is None else "equal" if r["equal"] else "DIFFERS",
}
STAGES = {**harness.named("ranks", "partition"), "imbalance": lambda r: f"{r['imbalance']:.3f}"}
SUMS = {**harness.named("ranks", "partition", "prefetch"), "ms": harness.times(), "to random": _ratios("to_random")}


def arguments():
    parser = harness.parser(__doc__)
    parser.add_argument("--graph", default="R", help="of seeded_graphs.py")
    harness.graphs_option(parser)
    parser.add_argument("--layers-list", type=harness.numbers, default=[2, 3], metavar="LIST", help="of GCN")
    parser.add_argument("--modes", type=harness.words, default=["sar", "broadcast", "oneshot"],
                        help="on two ranks; sar must be there")
    parser.add_argument("--prefetch", type=harness.numbers, default=[1, 0],
                        help="in modes sar and broadcast; 1 must be there")
    parser.add_argument("--partition", default="random", choices=METHODS, help="of the epochs")
    parser.add_argument("--methods", type=harness.words, default=METHODS, metavar="LIST",
                        help="partitions of stages and sums")
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--parts", type=harness.numbers, default=[2, 4, 8],
                        help="numbers of parts whose stages are looked at")
    parser.add_argument("--repeats", type=int, default=5,
                        help="measured steps of a way in a job, after one that warms up")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--before", metavar="DIR",
                        help="a checkout whose one rank is measured too, its compiled module beside it")
    for name, kind in (("worker", str), ("file", Path), ("threads", int), ("layers", int)):
        parser.add_argument(f"--{name}", type=kind, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())

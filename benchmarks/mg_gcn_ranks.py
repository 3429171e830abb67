"""Work of a rank for `mg_gcn.py`, one job of mpiexec each: `python mg_gcn_ranks.py WHAT --file GRAPH.npz ...`."""

import argparse
import sys
from pathlib import Path

import broadcast_speed
import harness
import numpy as np
import primitive_times
import seeded_graphs

from sarlite import Graph, Tensor, fn, kernels, no_grad
from sarlite.profile import Trace

ORDERS = {"original": "contiguous", "permuted": "random"}
TIMELINES = {"6": {"original order": ("contiguous", 0), "permuted": ("random", 0)},
             "8": {"no overlap": ("random", 0), "overlap": ("random", 1)}}  # way: partition, prefetch
LANES = {"block": "computation", "broadcast": "communication"}
KEPT, MADE = "A X kept", "A X each step"


def make(args, graph, way):
    """Return a Trainer of the paper's model; `way` KEPT computes A X, adjacency times features, once, and `way` MADE in each step."""
    trainer = broadcast_speed.make_trainer(graph, args.layers, *args.widths, args.hidden)
    if way == MADE:
        trainer.x = Tensor(trainer.x.data)  # not constant: a kept sum would be reused
    return trainer


def whole(args, order="original"):
    indptr, indices = seeded_graphs.arrays_of(args.file)
    return Graph.from_csr(*(seeded_graphs.shuffle(indptr, indices) if order == "permuted" else (indptr, indices)))


def parts(comm, args, order, prefetch=1):
    """Return this rank's part of the graph in mode broadcast; `order`, "original" or "permuted", is the order of the nodes."""
    if comm.size == 1:
        return whole(args, order)
    return whole(args).shard(comm, ORDERS[order], mode="broadcast", prefetch=prefetch)


def breakdown(comm, args):
    """Return {way: rows of time by primitive}; way KEPT computes A X, adjacency times features, once, and way MADE in each step."""
    breakdowns = {}
    for way in (KEPT, MADE):
        trainer = make(args, whole(args), way)
        trainer.step(0)
        breakdowns[way] = primitive_times.breakdown(trainer, args.repeats)
    return breakdowns


def orders(comm, args):
    """Time training steps with nodes in both orders; return {"original" or "permuted": [milliseconds of each step]}. Collective.

    The sum A X over the constant features is computed again in each step, as the paper's epochs do.
    """
    trainers = {order: make(args, parts(comm, args, order), MADE) for order in ORDERS}
    return broadcast_speed.time_in_turn(comm, {order: trainer.step for order, trainer in trainers.items()}, args.repeats)


def epochs(comm, args):
    """Time training; return {way: [ms of each step]}; way KEPT computes A X, adjacency times features, once, and way MADE in each step.

    On several ranks the rows are in permuted order, on a single rank in the original order.
    """
    graph = parts(comm, args, "permuted" if comm.size > 1 else "original")
    return broadcast_speed.time_in_turn(comm, {way: make(args, graph, way).step for way in (KEPT, MADE)}, args.repeats)


def timelines(comm, args):
    """Time neighbour sums; return {configuration: (ms of each sum, every rank's profile spans of the median sum)}. Collective.

    The spans are those of every rank in the sum of median time.
    """
    ways, draw = TIMELINES[args.timeline], np.random.default_rng(comm.rank)
    graphs_of = {way: whole(args).shard(comm, method, mode="broadcast", prefetch=ahead)
                 for way, (method, ahead) in ways.items()}
    times, spans = {way: [] for way in ways}, {way: [] for way in ways}
    with kernels.Buffers(), no_grad():
        x = {way: Tensor(draw.standard_normal((graph.n_dst, args.hidden), dtype=np.float32))
             for way, graph in graphs_of.items()}
        for _ in range(args.repeats + 1):
            for way, graph in graphs_of.items():
                comm.barrier()
                graph.profile.trace = trace = Trace()
                graph.aggregate(fn.copy_src(x[way]), "sum")
                comm.barrier()
                times[way].append(trace.now() / 1e6)
                graph.profile.trace = None
                spans[way].append(_timeline_spans(trace.spans))
    every = comm.allgather(spans)
    middle = {way: 1 + comm.allgather(int(np.argsort(ms[1:])[len(ms[1:]) // 2]))[0] for way, ms in times.items()}
    return {way: (times[way][1:], [rank[way][middle[way]] for rank in every]) for way in ways}


def _timeline_spans(spans):
    """Return the computations and the transfers among a profile's spans as lists [kind, stage, begin, length], for a timeline.

    The kind is "computation" or "communication"; begin and length are milliseconds.
    """
    return [[LANES[name], more.get("source", more.get("peer")), begin / 1e6, (end - begin) / 1e6]
            for name, track, begin, end, more in spans
            if (name, track) in (("block", "compute"), ("broadcast", "fetch"))]


JOBS = {"breakdown": breakdown, "orders": orders, "epochs": epochs, "timelines": timelines}


def work(comm, args):
    """Return the result of the job `args.what`, run as one MPI rank. Collective."""
    return JOBS[args.what](comm, args)


def main():
    """Run the job that the command line names as one MPI rank; rank 0 prints the result as JSON."""
    harness.as_rank(work, arguments().parse_args())


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=JOBS)
    parser.add_argument("--file", type=Path, required=True, help="the graph")
    parser.add_argument("--widths", type=harness.numbers, required=True, metavar="LIST", help="features, classes")
    parser.add_argument("--hidden", type=int, required=True)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--repeats", type=int, required=True)
    parser.add_argument("--timeline", choices=TIMELINES)
    return parser


if __name__ == "__main__":
    sys.exit(main())

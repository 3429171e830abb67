"""Count the values that each schedule mode sends per halo row in the passes of a layer, and measure the memory that it holds.

Ranks are threads of this process, so bytes and memory are of all ranks together. `linear` is the sum of rows of `--width`
numbers, `attend` attention with `--heads` of `--features`, all float32. `words` are the numbers received, over the halo
rows of mode `sar`. `rows` are, for a linear message, the rows received over the halo rows, both directions. `held MiB` is
the memory of the plan and its transposes. `pass MiB` is the most that a pass takes beside that memory and its inputs.
`plan s` is the processor time of the ranks' threads for the plan, without the division.
"""

import sys
import time
import tracemalloc

import harness
import numpy as np
import seeded_graphs

from sarlite import Tensor, fn
from sarlite.comm import threads
from sarlite.kernels import set_threads
from sarlite.structure.partition import partition

SCHEDULES = [("linear", "sar", None), ("linear", "sar", "fetch"), ("linear", "broadcast", None),
             ("attend", "sar", None), ("attend", "sar", "fetch"), ("attend", "sa", None), ("attend", "sa", "fetch"),
             ("attend", "oneshot", None), ("attend", "oneshot", "fetch"), ("attend", "broadcast", None),
             ("attend", "broadcast", "fetch")]
PHASES = ("forward_fetch", "forward_push", "backward_fetch", "backward_push")


def layer(args, graph, layer_kind):
    """Return a function without arguments that runs a layer, "linear" or "attend", forward and backward on random rows."""
    n, rng = graph.n_src, np.random.default_rng(graph.comm.rank)
    shapes = [(n, args.width)] if layer_kind == "linear" else [(n, args.heads, args.features), (n, args.heads),
                                                            (n, args.heads)]
    inputs = [Tensor(rng.standard_normal(shape, dtype=np.float32), requires_grad=True) for shape in shapes]
    g = rng.standard_normal((graph.n_dst, *shapes[0][1:]), dtype=np.float32)

    def run():
        out = graph.aggregate(fn.copy_src(inputs[0]) if layer_kind == "linear" else fn.attend(*inputs), "sum")
        out.backward(g)
        for x in inputs:
            x.grad = None

    return run


def measure_rank(comm, args, whole_graph, rank_of_node, layer_kind: str, mode: str, backward: str):
    """Run a layer on this rank; return ({phase: bytes received}, halo rows, seconds to plan, bytes held, peak bytes of a pass)."""
    set_threads(1)
    before = _held(comm)
    begin = time.thread_time()
    graph = whole_graph.shard(comm, rank_of_node, mode=mode, prefetch=args.prefetch, backward=backward)
    graph.profile.reset()
    seconds = time.thread_time() - begin
    held = _held(comm) - before
    run = layer(args, graph, layer_kind)
    before = _held(comm)
    run()
    received = {phase: graph.profile.received_bytes[phase] for phase in PHASES}
    n_held = _held(comm)
    held += n_held - before
    run()
    comm.barrier()
    peak = tracemalloc.get_traced_memory()[1]
    comm.barrier()
    return received, graph.plan.n_halo, seconds, held, peak - n_held


def _held(comm):
    """Return the bytes that tracemalloc traces in this process now, and restart the measurement of their peak. Collective."""
    comm.barrier()
    now = tracemalloc.get_traced_memory()[0]
    comm.barrier()
    if comm.rank == 0:
        tracemalloc.reset_peak()
    comm.barrier()
    return now


def measure(args, name, n_ranks, method, whole, parts, schedule):
    message, mode, backward = schedule
    tracemalloc.start()
    by_rank = threads.run(n_ranks, measure_rank, args, whole, parts, *schedule)
    tracemalloc.stop()
    received = {phase: sum(counts[phase] for counts, *_ in by_rank) for phase in PHASES}
    halo = sum(ranks[1] for ranks in by_rank)
    harness.note(f"{name}, {n_ranks} ranks, {method}: {message}, {mode}, {backward}")
    return {"graph": name, "partition": method, "ranks": n_ranks, "message": message, "mode": mode,
            "backward": backward, "halo_rows": halo,
            **received, "words": sum(received.values()) / 4 / halo,
            "rows": sum(received.values()) / 4 / args.width / halo if message == "linear" else None,
            "plan_seconds": sum(ranks[2] for ranks in by_rank), "held_bytes": by_rank[0][3], "pass_bytes": by_rank[0][4]}


def main(argv=None):
    args = arguments().parse_args(argv)
    rows = []
    for name in args.names:
        whole = seeded_graphs.whole(args.graphs, name)
        for method in args.partitions:
            for n_ranks in args.ranks:
                parts = partition(*whole.in_edges()[:2], n_ranks, method)
                rows += [measure(args, name, n_ranks, method, whole, parts, schedule) for schedule in SCHEDULES
                         if schedule[0] in args.messages and schedule[1] in args.modes]
    title = f"A pass forward and backward: linear of {args.width}, attention of {args.heads} x {args.features}"
    harness.report(title, rows, COLUMNS, args.json)


COLUMNS = {
    **harness.named("graph", "partition", "ranks", "message", "mode", "backward", "halo_rows"),
    **{phase.replace("_", " "): (lambda r, phase=phase: harness.mib(r[phase])) for phase in PHASES},
    "words": lambda r: f"{r['words']:.2f}",
    "rows": lambda r: r["rows"] and f"{r['rows']:.3f}",
    "held MiB": lambda r: harness.mib(r["held_bytes"]),
    "pass MiB": lambda r: harness.mib(r["pass_bytes"]),
    "plan s": lambda r: f"{r['plan_seconds']:.1f}",
}


def arguments():
    parser = harness.parser(__doc__)
    parser.add_argument("--names", type=harness.words, default=["S"], help="graphs of seeded_graphs.py")
    harness.graphs_option(parser)
    parser.add_argument("--partitions", type=harness.words, default=["metis"])
    parser.add_argument("--ranks", type=harness.numbers, default=[2, 4, 8])
    parser.add_argument("--messages", type=harness.words, default=["linear", "attend"])
    parser.add_argument("--modes", type=harness.words, default=["sar", "sa", "oneshot", "broadcast"])
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--features", type=int, default=32)
    parser.add_argument("--prefetch", type=int, default=0)
    return parser


if __name__ == "__main__":
    sys.exit(main())

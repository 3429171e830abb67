"""Measure an epoch of sampled minibatches compared with DGL.

GraphSAGE (3 layers of 256, batch norm, relu, dropout 0.5) or GAT (4 x 32, 4 x 32, 1 x 47; gat-paper is DistGNN-MB's
form) on 100 features and 47 classes, Adam. The seeds are a tenth of the nodes, 1,000 a batch; the fan-outs are 5, 10,
15. A run is an epoch. `--kinds` are sarlite's samplers; DGL's is uniform. Each measurement is a process, and the two
libraries take turns.

    limit = flops of the products / sgemm flops a second  +  rows gathered / their rate      (`limits.py`);
    of the limit = limit / time, to be compared with 0.75.

Flops are those of the products that the tape records on a batch, forward and backward. Rows gathered are the input
rows, and one row for each edge and layer, forward and, where the sources want a gradient, backward. They are as wide as
the rows that are summed. Norms, dropout, optimizer and sampling, which another thread does, count as nothing.

Peak memory is linear in the widths, as rows and edges of a batch are the same. The prediction is on the line through two
short runs, of a half and of a quarter of all widths.
"""

import argparse
import math
import sys

import harness
import limits
import numpy as np
import peers
import sampling_speed
import seeded_graphs

from sarlite import nn, optim
from sarlite.minibatch import NeighborLoader
from sarlite.models import GAT, SAGE
from sarlite.profile import Memory
from sarlite.tape.recording import Observer, observed
from sarlite.train.loop import set_threads
from sarlite.train.step import TrainingStep

ABLE = ("dgl",)
FANOUTS, BATCH, N_IN, N_OUT = (5, 10, 15), 1000, 100, 47
CASES = {"sage": "minibatch", "gat": "minibatch-gat", "gat-paper": "minibatch-gat"}
SHORT = 5
"""Batches of a run that only its memory is read off."""
REACH = 0.75


def make_model(name, rng, width_divisor=1):
    """Return the model `name`, "sage", "gat" or "gat-paper"; all its widths are divided by `width_divisor`."""
    n_in, n_out = N_IN // width_divisor, N_OUT // width_divisor
    if name == "sage":
        return SAGE(n_in, n_out, layers=3, hidden=256 // width_divisor, dropout=0.5, rng=rng)
    form = "paper" if name == "gat-paper" else "standard"
    return GAT(n_in, n_out, form=form, layers=3, hidden=32 // width_divisor, heads=4, dropout=0.5, input_dropout=0.0,
               attention_dropout=0.0,
               batch_norm=True, activation="relu", rng=rng)


def worker(args):
    """Print times and peak memory of one model with one sampler, measured in this process; `--part` divides the widths."""
    name, kind, threads, part = args.graphs_list[0], args.kinds[0], args.threads_list[0], args.part
    set_threads(threads)
    graph = seeded_graphs.whole(args.graphs, name)
    n, draw = graph.n_dst, np.random.default_rng(0)
    x, labels = draw.standard_normal((n, N_IN // part), dtype=np.float32), draw.integers(0, N_OUT // part, n)
    seeds = draw.permutation(n)[: max(n // 10 // BATCH, 1) * BATCH]
    if part > 1:
        seeds = seeds[: SHORT * BATCH]
    rng = nn.Random(0)
    model = make_model(args.models[0], rng, part)
    step = TrainingStep(model, optim.Adam(nn.flatten(model), 0.003), rng, graph.comm)
    loader = NeighborLoader(graph, x, labels, seeds, fanouts=FANOUTS, batch_size=BATCH, sampler=kind,
                            sample_ahead=args.sample_ahead)

    def run():
        for batch in loader:
            step(batch)

    memory = Memory()
    times, peak = harness.timed(run, args.repeats), memory.peak()  # `work` allocates memory, so the peak is read first
    harness.print_measurement(times, memory, **work(model, loader.batch(seeds[:BATCH])), batches=len(loader),
                              peak_mib=peak / 2**20)


def work(model, batch):
    """Count the work of a step of `model` on `batch`: return {"flops": ..., "gathers": [(rows read at random, bytes of a row), ...]}.

    `gathers` is a list of (number of rows, bytes of a row).
    """
    seen = Applications()
    with observed(seen):
        model(batch, batch.x)
    gathers, flops, sums = [(batch.n_src, batch.x.data[:1].nbytes)], 0, []
    for name, inputs, params, needs, result in seen.applications:
        if name in ("matmul", "matmul_by_head"):  # forward, and a product for each factor's gradient
            flops += 2 * math.prod(result.shape) * inputs[0].shape[-1] * (1 + sum(needs[: params.get("factors")]))
        elif name == "aggregate":
            sums.append((result.dtype.itemsize * math.prod(result.shape[1:]), any(needs)))
    for (row_bytes, goes_back), graph in zip(sums, batch.layers(len(sums))):
        gathers.append((graph.n_edges * (2 if goes_back else 1), row_bytes))
    return {"flops": flops, "gathers": gathers}


class Applications(Observer):
    """Observer of the tape that stores each application of a primitive (a differentiable operation)."""

    def __init__(self):
        self.applications = []

    def applied(self, application):
        self.applications.append(application)


def limit_ms(row, machine_rates: limits.Limits):
    """Return the least milliseconds of a minibatch at the machine's rates; `row` has its "flops" and "gathers", as `work` counts them."""
    return machine_rates.least_ms(0, row["flops"]) + sum(machine_rates.gather_ms(*rows) for rows in row["gathers"])


def measure(args, name, model, sampler_kind, threads, peer_commands: dict, machine_rates: limits.Limits):
    """Return the result row of minibatches of one model on graph `name`, measured with sarlite and DGL in alternation."""
    counts = ["--repeats", args.repeats]
    command = [__file__, "--worker", "--graphs", args.graphs, "--graphs-list", name, "--models", model, "--kinds", sampler_kind,
               "--threads-list", threads, "--sample-ahead", args.sample_ahead, *counts]
    peer = [CASES[model], seeded_graphs.path(args.graphs, name), "--threads", threads, *counts]
    half, quarter = (harness.last_json(harness.python(*command, "--repeats", 1, "--part", part))["peak_mib"]
                     for part in (2, 4))
    row = sampling_speed.beside({"case": model, "graph": name, "kind": sampler_kind, "threads": threads}, args.rounds, command, peer,
                          peer_commands)
    least = limit_ms(row, machine_rates)
    return {**row, "predicted_mib": quarter + 3 * (half - quarter), "limit_ms": least,
            "limit_fraction": least / row["ms"],
            "epoch_limit_ms": least * row["batches"]}


COLUMNS = {
    "predicted MiB": lambda r: r["predicted_mib"],
    "measured/predicted": lambda r: f"{r['peak_mib'] / r['predicted_mib']:.2f}",
    "limit ms a batch": lambda r: f"{r['limit_ms']:.1f}",
    "an epoch": lambda r: f"{r['epoch_limit_ms']:.0f}",
    f"at {REACH:.0%}": lambda r: f"{r['epoch_limit_ms'] / REACH:.0f}",
    "of the limit": lambda r: f"{r['limit_fraction']:.2f}",
}


def main(argv=None):
    args = arguments().parse_args(argv)
    if args.worker:
        return worker(args)
    others = peers.find(args.peers, ABLE)
    rates = {threads: limits.measure(threads, args.gib) for threads in args.threads_list}
    rows = [measure(args, name, model, kind, threads, others, rates[threads])
            for name in args.graphs_list for model in args.models for kind in args.kinds
            for threads in args.threads_list]
    columns = sampling_speed.columns("case", "peak_mib", "peer_peak_mib") | COLUMNS
    harness.report("An epoch of minibatches, time a batch", rows, columns, args.json)
    return None


def arguments():
    parser = sampling_speed.arguments(__doc__)
    parser.set_defaults(threads_list=[2])
    parser.add_argument("--models", type=harness.words, default=["sage"], metavar="LIST",
                        help="of sage, gat, gat-paper")
    parser.add_argument("--sample-ahead", type=int, default=1, help="batches that a thread samples ahead")
    parser.add_argument("--part", type=int, default=1, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())

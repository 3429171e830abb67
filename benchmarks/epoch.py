"""Measure an epoch of training compared with other libraries and with the machine's limits; `--profile` shows where it goes.

An epoch is one step of the trainer: forward, loss, backward, optimizer. float32, Adam; batch norm, ReLU and dropout 0.5
between layers.

| case | layers | features, classes, training nodes |
|---|---|---|
| `sage` | GraphSAGE, mean: 256, 256, 47 | 100, 47, a tenth |
| `gat` | GAT: 4 heads x 32, 4 x 32, 1 x 47; no dropout of attention | 100, 47, a tenth |
| `gcn` | GCN, without batch norm: 512, 41 | 602, 41, 66 % |

    limit_fraction  = (GEMM flops / sgemm flops a second  +  bytes / stream bandwidth) / time;
    gather_fraction = (GEMM flops / sgemm flops a second  +  sum of bytes gathered / gather bandwidth of their row's
                      width) / time.

A product of features and weights has 2 n_nodes n_in n_out flops; GraphSAGE has two products a layer. The weights'
gradient has the same flops again, and so has the input's gradient, which the first layer does not need.

Bytes of the limit: each layer's input and output once forward, and their gradients once backward (the features have no
gradient). The indices of the edges count once for each direction that is walked.

Bytes gathered are an estimate, which a graph with locality beats: one row an edge forward and one backward. The width
of a row is the smaller one of the layer's two widths (the sum is linear), in GAT the width of z. The first layer's sum
is that of fixed features and is kept over epochs, so it counts no bytes; GAT's depends on weights and counts.
Everything else (norms, dropout, optimizer) counts as nothing.
"""

import json
import sys
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import harness
import limits
import numpy as np
import peers
import primitive_times
import seeded_graphs

from sarlite import Trainer, models, nn, optim
from sarlite.profile import Memory
from sarlite.train.loop import set_threads

ABLE = ("dgl", "pyg", "pyg-compiled")
DEFAULT = ["sage:S", "sage:M", "gat:S", "gat:M", "gcn:R"]


class Case(NamedTuple):
    """A benchmarked model: its constructor, widths and share of training nodes, and the facts from which its cost is computed."""

    make: Callable
    widths: tuple  # widths of the input and of each layer's output
    train_share: float
    n_products: int  # products of features and weights in a layer
    keeps_first: bool  # True if the first layer's sum is the same in every epoch


CASES = {
    "sage": Case(partial(models.SAGE, layers=3, hidden=256, dropout=0.5, batch_norm=True), (100, 256, 256, 47), 0.1, 2,
                 True),
    "gat": Case(partial(models.GAT, layers=3, hidden=32, heads=4, out_heads=1, dropout=0.5, attention_dropout=0.0,
                        batch_norm=True,
                        input_dropout=0.0, activation="relu"), (100, 128, 128, 47), 0.1, 1, False),
    "gcn": Case(partial(models.GCN, layers=2, hidden=512, dropout=0.5, input_dropout=0.0), (602, 512, 41), 0.66, 1,
                True),
}


def gemm_flops(case: Case, n_nodes):
    """Return the floating-point operations of an epoch's matrix products, forward and backward."""
    layers = enumerate(zip(case.widths, case.widths[1:]))
    return sum(2.0 * n_nodes * case.n_products * n_in * n_out * (3 if i else 2) for i, (n_in, n_out) in layers)


def gathered_row_bytes(case: Case):
    """Return, for each layer, the bytes of the row that is read for each edge, once forward and once backward."""
    layers = list(zip(case.widths, case.widths[1:]))
    return [4 * min(pair) for pair in layers[1:]] if case.keeps_first else [4 * n_out for _, n_out in layers]


def least_bytes(case: Case, n_nodes, n_edges):
    """Return the bytes that an epoch moves if each array of a layer is moved once forward and once backward."""
    rows = sum(2 * (n_in + n_out) for n_in, n_out in zip(case.widths, case.widths[1:])) - case.widths[0]
    return 4 * (n_nodes * rows + 2 * n_edges * len(gathered_row_bytes(case)))


def allowed(case: Case, n_nodes, n_edges, machine_rates: limits.Limits):
    """Return the least and the estimated milliseconds of an epoch on a graph of this size, by the machine's rates, a `limits.Allowed`."""
    flops = gemm_flops(case, n_nodes)
    gathers = sum(machine_rates.gather_ms(2 * n_edges, row_bytes) for row_bytes in gathered_row_bytes(case))
    return limits.Allowed(machine_rates.least_ms(least_bytes(case, n_nodes, n_edges), flops),
                          machine_rates.least_ms(0, flops) + gathers)


def make_trainer(case: Case, graph):
    """Return a Trainer of the case's model on random features and labels of `graph`."""
    draw, rng = np.random.default_rng(1), nn.Random(0)
    x = draw.standard_normal((graph.n_nodes, case.widths[0]), dtype=np.float32)
    labels = draw.integers(0, case.widths[-1], graph.n_nodes)
    train = np.flatnonzero(draw.random(graph.n_nodes) < case.train_share)
    model = case.make(case.widths[0], case.widths[-1], rng=rng)
    return Trainer(graph, model, x, labels, train, optimizer=lambda flat: optim.Adam(flat, 0.01), rng=rng)


def worker(args):
    """Print the time of one model's epochs on one graph, measured in this process; with `--profile`, the time by primitive."""
    set_threads(args.threads)
    (name, place), = args.cases
    trainer = make_trainer(CASES[name], seeded_graphs.load(args.graphs, place))
    memory, epochs = Memory(), iter(range(args.repeats + 1))
    if args.profile:
        trainer.step(0)
        return print(json.dumps(primitive_times.breakdown(trainer, args.repeats)))
    return harness.print_measurement(harness.timed(lambda: trainer.step(next(epochs)), args.repeats), memory)


def measure(args, name, graph_name, machine_rates: limits.Limits, peer_commands):
    """Return the result rows, one per library, of epochs of model `name` on one graph; `peer_commands` is {library: command}."""
    file, (n_nodes, n_edges) = seeded_graphs.path(args.graphs, graph_name), seeded_graphs.size(args.graphs, graph_name)
    command = own_command(args, name, graph_name)
    return peers.compare(args, {"case": name, "graph": graph_name}, command, [name, file], peer_commands,
                         allowed(CASES[name], n_nodes, n_edges, machine_rates))


def own_command(args, name, graph_name):
    return [__file__, "--worker", "--graphs", args.graphs, "--cases", f"{name}:{graph_name}"]


def profile(args, name, graph_name):
    flags = ["--threads", args.threads, "--repeats", 2, "--profile"]
    primitive_times.show(f"{name} on {graph_name}", harness.last_json(harness.python(*own_command(args, name, graph_name), *flags)))


def main(argv=None):
    args = arguments().parse_args(argv)
    if args.worker:
        return worker(args)
    others, limit = peers.find(args.peers, ABLE), limits.measure(args.threads, args.gib)
    rows = [row for name, place in args.cases for row in measure(args, name, place, limit, others)]
    harness.report(f"An epoch of training, {args.threads} threads", rows, harness.suite_columns(), args.json)
    if args.profile:
        for name, place in args.cases:
            profile(args, name, place)
    return None


def cases(text):
    """Return [(case, graph), ...] from a text such as "sage:S,gcn:R"."""
    pairs = [tuple(item.split(":")) for item in text.split(",")]
    if not all(len(pair) == 2 and pair[0] in CASES for pair in pairs):
        raise ValueError(text)
    return pairs


def arguments():
    parser = harness.suite_parser(__doc__)
    parser.add_argument("--cases", type=cases, default=cases(",".join(DEFAULT)), metavar="LIST",
                        help=f"of MODEL:GRAPH (default: {','.join(DEFAULT)})")
    parser.add_argument("--profile", action="store_true", help="print the time by primitive too")
    return parser


if __name__ == "__main__":
    sys.exit(main())

"""Measure the time that message-flow graphs (only the nodes that labelled nodes need) save if few nodes are labelled.

Two training steps of one model on the same data run in alternation in one process: one over the full graph and one over
the message-flow graph of the training nodes (SAR appendix B). `share` is the time of the second over that of the first.

The models are GraphSAGE and GAT of 3 layers and `--hidden` features, with dropout 0.5, float32, Adam. They have no batch
norm, whose statistics would be over other nodes. `--labelled` is the share of training nodes, drawn at random.
`loss_difference` is the relative difference of the first steps' losses.
"""

import sys

import harness
import numpy as np
import seeded_graphs

from sarlite import Trainer, models, nn, optim
from sarlite.minibatch import message_flow
from sarlite.train.loop import set_threads

N_IN, N_OUT = 128, 172  # features and classes of ogbn-papers100M


def model(name, hidden, rng):
    if name == "gat":
        return models.GAT(N_IN, N_OUT, layers=3, hidden=hidden // 4, heads=4, dropout=0.5, attention_dropout=0.0,
                          rng=rng)
    return models.SAGE(N_IN, N_OUT, layers=3, hidden=hidden, dropout=0.5, batch_norm=False, rng=rng)


def trainer(flow, name, graph, args):
    draw, rng = np.random.default_rng(1), nn.Random(0)
    x = draw.standard_normal((graph.n_nodes, N_IN), dtype=np.float32)
    labels, train = draw.integers(0, N_OUT, graph.n_nodes), draw.random(graph.n_nodes) < args.labelled
    batches = message_flow(graph, train, 3, x, labels) if flow else None
    return Trainer(graph, model(name, args.hidden, rng), x, labels, train, batches=batches,
                   optimizer=lambda flat: optim.Adam(flat, 0.01), rng=rng)


def measure(name, graph, args):
    """Time steps of model `name` with and without message-flow graphs in alternation; return the result row."""
    full, flow = (trainer(kind, name, graph, args) for kind in (False, True))
    times = {"full": [], "flow": []}
    losses = [one.step() for one in (full, flow)]
    for _ in range(args.repeats):
        for way, one in (("full", full), ("flow", flow)):
            times[way] += harness.timed(one.step, 1)
    counted = flow.counted()["message_flow"]
    row = {"case": name, "graph": args.graph, "labelled": args.labelled,
           "loss_difference": abs(losses[0] - losses[1]) / losses[0],
           **{f"{way}_{key}": value for way, way_times in times.items() for key, value in harness.summary(way_times).items()}}
    row["share"] = row["flow_ms"] / row["full_ms"]
    for number, layer in enumerate(counted["layers"], 1):
        row |= {f"rows_{number}": layer["rows"] / counted["graph"]["rows"],
                f"edges_{number}": layer["edges"] / counted["graph"]["edges"]}
    return row


def main(argv=None):
    args = arguments().parse_args(argv)
    set_threads(args.threads)
    graph = seeded_graphs.load(args.graphs, args.graph)
    rows = [measure(name, graph, args) for name in args.cases]
    percent = lambda key: lambda row: f"{100 * row[key]:.1f} %"  # noqa: E731
    columns = {"model": lambda row: row["case"], "full graph ms": harness.times("full_"),
               "message flow ms": harness.times("flow_"), "share": percent("share")}
    for k in (1, 2, 3):
        columns |= {f"rows {k}": percent(f"rows_{k}"), f"edges {k}": percent(f"edges_{k}")}
    title = f"Message-flow graphs, {args.graph}, {100 * args.labelled:.1f} % labelled, {args.threads} threads"
    harness.report(title, rows, columns, args.json)


def arguments():
    parser = harness.parser(__doc__)
    harness.graphs_option(parser)
    parser.add_argument("--graph", default="P")
    parser.add_argument("--cases", type=harness.words, default=["sage", "gat"], metavar="LIST")
    parser.add_argument("--labelled", type=float, default=0.011, metavar="SHARE")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    return parser


if __name__ == "__main__":
    sys.exit(main())

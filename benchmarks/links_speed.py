"""Measure a step of link prediction compared with DGL.

GraphSAGE (3 layers of 256, batch norm, relu, dropout 0.5) on 100 features, dot product, binary cross entropy, Adam. A
batch has 1,000 links with one uniform negative each; the fan-outs are 5, 10, 15. A run is `--batches` batches. No message
passes along a link in its own step: sarlite leaves out the edges of both directions, DGL (`links_dgl.py`) the edges of
one direction. Each measurement is a process, and the two libraries take turns; each process builds its graph before it
measures.
"""

import sys
from pathlib import Path

import harness
import numpy as np
import peers
import sampling_speed
import seeded_graphs

from sarlite import nn, optim
from sarlite.models import SAGE
from sarlite.profile import Memory
from sarlite.tasks.link_data import split_links
from sarlite.tasks.link_loader import LinkLoader
from sarlite.tasks.link_task import LinkTask
from sarlite.train.loop import set_threads
from sarlite.train.step import TrainingStep

FANOUTS, BATCH, N_IN, WIDTH = (5, 10, 15), 1000, 100, 256


def worker(args):
    """Time steps of link prediction on the graph that `args` names, in this process; print the times and the peak memory as JSON."""
    threads, name = args.threads_list[0], args.graphs_list[0]
    set_threads(threads)
    graph = seeded_graphs.whole(args.graphs, name)
    links = split_links(graph, 0, 0, negatives=1)
    draw = np.random.default_rng(0)
    x = draw.standard_normal((graph.n_dst, N_IN), dtype=np.float32)
    train = np.sort(draw.permutation(len(links.heads))[: args.batches * BATCH])
    rng = nn.Random(0)
    model = nn.LinkPredictor(SAGE(N_IN, WIDTH, layers=3, hidden=WIDTH, dropout=0.5, rng=rng), nn.Dot())
    loss, step = LinkTask().loss, TrainingStep(model, optim.Adam(nn.flatten(model), 0.003), rng, graph.comm)
    loader = LinkLoader(links.graph, x, links.labels, train, fanouts=FANOUTS, batch_size=BATCH)

    def run():
        for batch in loader:
            step(batch, loss)

    memory = Memory()
    harness.print_measurement(harness.timed(run, args.repeats), memory, batches=len(loader))


def measure(args, name, threads, others):
    """Return the result row of link prediction on graph `name`, by sarlite and DGL in alternation; `others` is {library: command}."""
    counts = ["--repeats", args.repeats, "--batches", args.batches]
    command = [__file__, "--worker", "--graphs", args.graphs, "--graphs-list", name, "--threads-list", threads, *counts]
    peer = [seeded_graphs.path(args.graphs, name), "--threads", threads, *counts]
    return sampling_speed.beside({"case": "links", "graph": name, "kind": "uniform", "threads": threads}, args.rounds, command, peer,
                           others)


def main(argv=None):
    args = arguments().parse_args(argv)
    if args.worker:
        return worker(args)
    script = str(Path(__file__).with_name("links_dgl.py"))
    others = {name: [command[0], script] for name, command in peers.find(args.peers, sampling_speed.ABLE).items()}
    rows = [measure(args, name, threads, others) for name in args.graphs_list for threads in args.threads_list]
    harness.report("Link prediction, 1,000 links a batch, time a batch", rows, sampling_speed.columns("peak_mib", "peer_peak_mib"),
                   args.json)
    return None


def arguments():
    parser = sampling_speed.arguments(__doc__)
    parser.set_defaults(graphs_list=["S"], threads_list=[2])
    parser.add_argument("--batches", type=int, default=20, help="of 1,000 links, a run")
    return parser


if __name__ == "__main__":
    sys.exit(main())

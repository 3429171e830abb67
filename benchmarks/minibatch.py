"""How long does an epoch of sampled minibatches take, beside DGL?

GraphSAGE (3 layers of 256, batch norm, relu, dropout 0.5) or GAT (4 x 32, 4 x 32, 1 x 47; gat-paper is DistGNN-MB's form) on 100 features
and 47 classes, Adam; a tenth of the nodes as seeds, 1,000 a batch, fan-outs 5, 10, 15. A run is an epoch. `--kinds` are sarlite's samplers;
DGL's is uniform. One process a measurement, both in turn.
"""

import sys

import graphs
import harness
import numpy as np
import peers
import sampling

from sarlite import Graph, nn, optim
from sarlite.minibatch import NeighborLoader
from sarlite.models import GAT, SAGE
from sarlite.profile import Memory
from sarlite.train.loop import set_threads
from sarlite.train.step import TrainingStep

ABLE = ("dgl",)
FANOUTS, BATCH, N_IN, N_OUT = (5, 10, 15), 1000, 100, 47
CASES = {"sage": "minibatch", "gat": "minibatch-gat", "gat-paper": "minibatch-gat"}


def make_model(name, rng):
    if name == "sage":
        return SAGE(N_IN, N_OUT, layers=3, hidden=256, dropout=0.5, rng=rng)
    form = "paper" if name == "gat-paper" else "standard"
    return GAT(N_IN, N_OUT, form=form, layers=3, hidden=32, heads=4, dropout=0.5, input_dropout=0.0, attention_dropout=0.0,
               batch_norm=True, activation="relu", rng=rng)


def worker(args):
    """Measure one graph, model and kind in this process."""
    name, kind, threads = args.graphs_list[0], args.kinds[0], args.threads_list[0]
    set_threads(threads)
    with np.load(graphs.path(args.graphs, name)) as arrays:
        graph = Graph.from_csr(arrays["indptr"], arrays["indices"])
    n, draw = graph.n_dst, np.random.default_rng(0)
    x, labels = draw.standard_normal((n, N_IN), dtype=np.float32), draw.integers(0, N_OUT, n)
    seeds = draw.permutation(n)[: max(n // 10 // BATCH, 1) * BATCH]
    rng = nn.Random(0)
    model = make_model(args.models[0], rng)
    step = TrainingStep(model, optim.Adam(nn.flatten(model), 0.003), rng, graph.comm)
    loader = NeighborLoader(graph, x, labels, seeds, fanouts=FANOUTS, batch_size=BATCH, sampler=kind, sample_ahead=args.sample_ahead)

    def run():
        for batch in loader:
            step(batch, batch.x, batch.labels, batch.rows, batch.n_global)

    memory = Memory()
    harness.print_measurement(harness.timed(run, args.repeats), memory, batches=len(loader))


def measure(args, name, model, kind, threads, others):
    """Return the row of one graph, model, kind and number of threads."""
    counts = ["--repeats", args.repeats]
    own = [__file__, "--worker", "--graphs", args.graphs, "--graphs-list", name, "--models", model, "--kinds", kind,
           "--threads-list", threads, "--sample-ahead", args.sample_ahead, *counts]
    peer = [CASES[model], graphs.path(args.graphs, name), "--threads", threads, *counts]
    return sampling.beside({"case": model, "graph": name, "kind": kind, "threads": threads}, args.rounds, own, peer, others)


def main(argv=None):
    args = arguments().parse_args(argv)
    if args.worker:
        return worker(args)
    others = peers.find(args.peers, ABLE)
    rows = [measure(args, name, model, kind, threads, others) for name in args.graphs_list for model in args.models
            for kind in args.kinds for threads in args.threads_list]
    harness.report("An epoch of minibatches, time a batch", rows, sampling.columns("case", "peak_mib", "peer_peak_mib"), args.json)
    return None


def arguments():
    parser = sampling.arguments(__doc__)
    parser.set_defaults(threads_list=[2])
    parser.add_argument("--models", type=harness.words, default=["sage"], metavar="LIST", help="of sage, gat, gat-paper")
    parser.add_argument("--sample-ahead", type=int, default=1, help="batches that a thread samples ahead")
    return parser


if __name__ == "__main__":
    sys.exit(main())

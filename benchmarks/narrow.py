"""Measure rows of bfloat16 compared with float32: sums, attention, epochs, bytes, memory, accuracy.

`aggregations` and `epochs` take the two kinds of rows in turn in one process, on one graph; the time of rounding rows is counted.
An epoch is one step of `epoch.py`'s trainers. Its memory is the peak of a process of its own above the memory before the first step.
`minibatches` are an epoch of `minibatch_speed.py`'s GraphSAGE and GAT, sampled by a thread ahead, which `--cpu` counts too.
`bytes` are those that two ranks send each other in a step; the ranks are threads of this process. `accuracy` is Cora's on the public
split: the test accuracy at the best validation accuracy, with the same seeds for both kinds of rows and with `cora.py`'s settings.
"""

import json
import statistics
import time

import cora
import epoch
import harness
import minibatch_speed
import numpy as np
import seeded_graphs

from sarlite import Tensor, Trainer, fn, kernels, nn, optim
from sarlite.comm import Solo, threads
from sarlite.minibatch import NeighborLoader
from sarlite.profile import Memory
from sarlite.schedule.row_format import ROW_FORMATS
from sarlite.tape import no_grad
from sarlite.train.loop import set_threads
from sarlite.train.step import TrainingStep

PARTS = "aggregations", "epochs", "minibatches", "bytes", "accuracy"


def load(args, row_dtype, comm=None, **options):
    """Return this rank's part of the graph with rows stored as `row_dtype`, "float32" or "bfloat16", and its transpose computed."""
    graph = seeded_graphs.whole(args.graphs, args.graph).shard(comm or Solo(), row_dtype=row_dtype, **options)
    for block in graph.plan.blocks:
        block.transpose  # noqa: B018 (cached at its first use)
    return graph


def sums(graph, width):
    """Return a function without arguments that sums random rows of `width` columns over the neighbours."""
    x = Tensor(np.random.default_rng(0).standard_normal((graph.n_src, width), np.float32), requires_grad=True)

    def run():
        with no_grad():
            graph.aggregate(fn.copy_src(x), "sum")

    return run


def attention(graph, heads, n_feat):
    """Return a function without arguments that runs attention forward and backward on random rows, (heads, n_feat) each."""
    draw = np.random.default_rng(0)
    z = Tensor(draw.standard_normal((graph.n_src, heads, n_feat), np.float32), requires_grad=True)
    src, dst = (Tensor(draw.standard_normal((graph.n_src, heads), np.float32), requires_grad=True) for _ in range(2))
    g = draw.standard_normal((graph.n_dst, heads, n_feat), np.float32)

    def run():
        z.grad = src.grad = dst.grad = None
        graph.aggregate(fn.attend(z, src, dst, 0.2), "sum").backward(g)

    return run


CASES = {
    "sum of 64": (sums, 64), "sum of 128": (sums, 128), "sum of 256": (sums, 256),
    "attention 4 x 32": (attention, 4, 32), "attention 4 x 64": (attention, 4, 64), "attention 8 x 8": (attention, 8, 8),
}


def in_turn(args, runs):
    """Time the functions `runs`, {row dtype: function}, in alternation; return {row dtype: [milliseconds of each call]}."""
    clock = time.process_time if args.cpu else time.perf_counter
    times_of, buffers = {row_dtype: [] for row_dtype in runs}, {row_dtype: kernels.Buffers() for row_dtype in runs}
    for _ in range(args.repeats + 1):
        for row_dtype, run in runs.items():
            begin = clock()
            with buffers[row_dtype]:
                run()
            times_of[row_dtype].append(1e3 * (clock() - begin))
    return {row_dtype: times[1:] for row_dtype, times in times_of.items()}


def aggregations(args):
    loaded = {rows: load(args, rows) for rows in ROW_FORMATS}
    return [compared(name, args.graph, in_turn(args, {rows: make(graph, *sizes) for rows, graph in loaded.items()}))
            for name, (make, *sizes) in CASES.items()]


def epochs(args):
    table = []
    for name in args.models:
        trainers = {rows: epoch.make_trainer(epoch.CASES[name], load(args, rows)) for rows in ROW_FORMATS}
        steps = {rows: (lambda trainer=trainer: trainer.step()) for rows, trainer in trainers.items()}
        table.append(compared(f"epoch of {name}", args.graph, in_turn(args, steps)))
        del trainers, steps
        words = [__file__, "--worker", "--graphs", args.graphs, "--graph", args.graph, "--threads", args.threads, "--models", name]
        peaks = {rows: json.loads(harness.python(*words, "--rows", rows))["mib"] for rows in ROW_FORMATS}
        table.append({"case": f"peak MiB of {name}", "graph": args.graph, **peaks, "ratio": peaks["bfloat16"] / peaks["float32"]})
    return table


def minibatches(args):
    loaded = {rows: load(args, rows) for rows in ROW_FORMATS}
    return [compared(f"minibatches of {name}", args.graph,
                     in_turn(args, {rows: sampled_epoch(graph, name) for rows, graph in loaded.items()}))
            for name in args.models if name in minibatch_speed.CASES]


def sampled_epoch(graph, name):
    """Return a function without arguments that trains model `name` for one epoch of sampled minibatches."""
    draw, rng = np.random.default_rng(0), nn.Random(0)
    x, labels = draw.standard_normal((graph.n_dst, minibatch_speed.N_IN), np.float32), draw.integers(0, minibatch_speed.N_OUT, graph.n_dst)
    model = minibatch_speed.make_model(name, rng)
    step = TrainingStep(model, optim.Adam(nn.flatten(model), 0.003), rng, graph.comm)
    loader = NeighborLoader(graph, x, labels, np.arange(0, graph.n_dst, 10), fanouts=minibatch_speed.FANOUTS,
                            batch_size=minibatch_speed.BATCH)

    def run():
        for batch in loader:
            step(batch)

    return run


def worker(args):
    """Print the peak memory of three training steps, measured in this process."""
    trainer = epoch.make_trainer(epoch.CASES[args.models[0]], load(args, args.rows))
    memory = Memory()
    for _ in range(3):
        trainer.step()
    print(json.dumps({"mib": memory.peak() / 2**20}))


def sent_bytes(args):
    def step(comm, rows, name, backward):
        graph = load(args, rows, comm, parts="metis", backward=backward)
        case = epoch.CASES[name]
        x = np.ones((graph.n_src, case.widths[0]), np.float32)
        rng = nn.Random(0)
        trainer = Trainer(graph, case.make(case.widths[0], case.widths[-1], rng=rng), x, np.zeros(graph.n_src, int),
                          np.arange(graph.n_src), optimizer=lambda flat: optim.Adam(flat, 0.01), rng=rng)
        trainer.step()
        graph.profile.reset()
        trainer.step()
        return sum(n for phase, n in graph.profile.sent_bytes.items() if phase.endswith(("fetch", "push")))

    table = []
    for name in args.models:
        for backward in (None, "fetch"):  # the default of float32, and that of bfloat16
            sent = {rows: sum(threads.run(2, step, rows, name, backward)) / 2**20 for rows in ROW_FORMATS}
            title = f"sent MiB of {name}" + (", float32 fetched too" if backward else "")
            table.append({"case": title, "graph": args.graph, **sent, "ratio": sent["bfloat16"] / sent["float32"]})
    return table


def accuracy(args):
    if not (args.data / "ind.cora.x").exists():
        harness.note(f"no Cora in {args.data}: no accuracy")
        return []
    table = []
    with harness.Scratch() as scratch:
        data = scratch.convert(f"planetoid:{args.data}/cora", "cora", "--normalize-features")
        for name in [name for name in args.models if name in cora.SETTINGS]:
            test = {rows: [] for rows in ROW_FORMATS}
            for seed in range(args.seeds):
                for rows in ROW_FORMATS:
                    result = harness.train(1, data=data, seed=seed, threads=1, rows=rows, metric="accuracy",
                                           **cora.SETTINGS[name])
                    test[rows].append(100 * result["test_accuracy"])
                harness.note(f"{name}, seed {seed}: {test['float32'][-1]:.1f} %, bfloat16 {test['bfloat16'][-1]:.1f} %")
            means = {rows: statistics.mean(each) for rows, each in test.items()}
            differences = [b - a for a, b in zip(test["float32"], test["bfloat16"])]
            table.append({"case": f"accuracy of {name}, %", "graph": "Cora", **means, "difference": statistics.mean(differences),
                          "spread": statistics.stdev(differences), "test": test})
    return table


def compared(case, graph, times):
    """Return the result row of a case from `times`, {row dtype: [ms]}: the median with float32 and with bfloat16, and their ratio."""
    medians = {rows: statistics.median(each) for rows, each in times.items()}
    return {"case": case, "graph": graph, **medians, "ratio": medians["bfloat16"] / medians["float32"], "times": times}


def arguments():
    parser = cora.arguments()
    harness.graphs_option(parser)
    parser.description = __doc__
    parser.add_argument("--parts", type=harness.words, default=list(PARTS), help=f"of {','.join(PARTS)}")
    parser.add_argument("--graph", default="S", help="as of seeded_graphs.py [%(default)s]")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cpu", action="store_true", help="processor time in place of time, where other work runs beside")
    parser.add_argument("--rows", choices=tuple(ROW_FORMATS), default="float32", help="of --worker alone")
    parser.add_argument("--worker", action="store_true")
    parser.set_defaults(seeds=5, models=["sage", "gat", "gcn"])
    return parser


def main(argv=None):
    args = arguments().parse_args(argv)
    set_threads(args.threads)
    if args.worker:
        return worker(args)
    parts = {"aggregations": aggregations, "epochs": epochs, "minibatches": minibatches, "bytes": sent_bytes, "accuracy": accuracy}
    rows = [row for name in args.parts for row in parts[name](args)]
    columns = {**harness.named("case", "graph", *tuple(ROW_FORMATS), "ratio", "difference", "spread")}
    harness.report(f"Rows of bfloat16 beside float32, {args.threads} threads, ms where nothing else is said", rows, columns, args.json)
    return rows


if __name__ == "__main__":
    main()

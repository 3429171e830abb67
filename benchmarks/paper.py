"""Run the experiments of the SAR paper, scaled to one machine, compared with the paper's ratios.

The paper is Mostafa, MLSys 2022; its experiments are in section 4 and in the appendices.

| figure | what is measured |
|---|---|
| `2` | times and memory of one attention layer, 2, 4, 8 heads of 100, fused against two steps (`unfused.py`) |
| `3`, `4` | epoch time and largest peak memory of a rank, GraphSAGE (3 x 256) and GAT (3 layers, 4 heads x 32) on `M` |
| `5`, `6` | the same on `P` |
| `7` | R-GCN (3 layers, 256 hidden) on a graph of 4 node types, 4 relations and their reverses, as ogbn-mag |
| `8` | training curve of GraphSAGE with and without labels as inputs, full and message-flow graphs, 1.1 % labelled |

`M` has 400,000 nodes of mean degree 50, 8 % training nodes, 100 features, 47 classes, as ogbn-products; `P` 1 million
nodes of mean degree 29, 1.1 % labelled, 128 features, 172 classes, as ogbn-papers100M. Ranks are processes of mpiexec,
of one thread each. Parts are METIS's, divided once into the most ranks and joined for fewer.

The ways are `sar`; `sar two-step` without the fused attention, as the paper's plain SAR; `oneshot`, the paper's
domain-parallel training; and `oneshot two-step`, the paper's baseline. R-GCN's weights are inside the message, as in the
paper (case 2); `by bytes` is the default, which applies most weights after the sum.

`peak_mib` is the largest rank's resident memory above its state before it read data, `middle_mib` the median rank's, and
`rank_peaks_mib` each rank's. `memory` and `time` are multiples of `oneshot`'s on the same ranks. More ranks than cores
wait for each other: their times say little, and their memory is what N machines would take.

`--out docs/results/sar` writes the pictures and tables there, with `--part 4 --epochs 1` in about 45 minutes on two
busy cores: 4 for each of figures 3, 5 and 7, 12 for each of 4 and 6, 8 for 8, 2 for 2. At `--part 1` and 16 ranks
`oneshot` takes more than 23 GiB.
"""

import statistics
import sys
from functools import partial

import figures
import harness
import numpy as np
import seeded_graphs
import unfused
from figures import Figure, Panel

from sarlite import Tensor, fn
from sarlite.kernels import Buffers
from sarlite.profile import Memory
from sarlite.train.loop import set_threads

TWO_STEPS = f"{unfused.__file__}:GAT"
SHARED = dict(layers=3, batch_norm=True, dropout=0.5, activation="relu", lr=0.01)
SAGE = dict(model="sage", hidden=256, **SHARED)
GAT = dict(model="gat", hidden=32, heads=4, out_heads=1, input_dropout=0.0, attention_dropout=0.0, **SHARED)
RGCN = dict(model="rgcn", hidden=256, layers=3)
WAYS = {"sar": {"mode": "sar"}, "oneshot": {"mode": "oneshot"}}
UNFUSED = {"sar two-step": {"mode": "sar", "model": TWO_STEPS},
           "oneshot two-step": {"mode": "oneshot", "model": TWO_STEPS}}
BY_BYTES = {f"{way} by bytes": options for way, options in WAYS.items()}
INSIDE = {way: {**options, "relation_weights": "inside"} for way, options in WAYS.items()}
SCALINGS = {"3": ("M", SAGE, WAYS), "4": ("M", GAT, {**WAYS, **UNFUSED}), "5": ("P", SAGE, WAYS),
            "6": ("P", GAT, {**WAYS, **UNFUSED}),
            "7": ("mag", RGCN, {**INSIDE, **BY_BYTES})}  # figure: graph, model, ways
PAPER_MEMORY = {"5": "0.5 on 128", "6": "0.25 on 128", "7": "0.26 to 0.37"}  # ratios of sar to oneshot
DATA = {"M": (100, 47, 0.08), "P": (128, 172, 0.011)}  # features, classes, share of training nodes


def write_data(scratch: harness.Scratch, args, name):
    """Return the directory of the data set of graph `name`, divided into max(args.ranks) parts; write the data set unless it exists."""
    base = name.split("/")[0]
    if (scratch.path / base).exists():
        return scratch.path / base
    if base == "mag":
        part = int((name.split("/") + ["1"])[1])
        sizes = f"nodes={300_000 // part},edges={8_000_000 // part // 2 * 2},features=128,classes=64"
        data = scratch.convert(f"relational:{sizes},train=0.5,val=0.1", base)
    else:
        indptr, indices = seeded_graphs.arrays_of(seeded_graphs.path(args.graphs, name))
        (n_features, n_classes, share), n_nodes, draw = DATA[base], len(indptr) - 1, np.random.default_rng(1)
        x = draw.standard_normal((n_nodes, n_features), dtype=np.float32)
        place = draw.random(n_nodes)
        masks = place < share, (place >= share) & (place < 1.1 * share), (place >= 1.1 * share) & (place < 1.3 * share)
        data = scratch.write(base, indptr, indices, x, draw.integers(0, n_classes, n_nodes), n_classes, masks)
    harness.note(f"dividing {name} into {max(args.ranks)} parts")
    harness.python("-m", "sarlite.data", "partition", data, "--parts", max(args.ranks))
    return data


def scaling(figure, args, scratch: harness.Scratch):
    """Yield the result rows of a `figure`, "3" to "7", for one number of ranks after another, measured `--rounds` times in turn."""
    graph, model, ways = SCALINGS[figure]
    name = graph + (f"/{args.part}" if args.part > 1 else "")
    data = write_data(scratch, args, name)
    ways = {way: options for way, options in ways.items() if not args.ways or way in args.ways}
    for n_ranks in args.ranks:
        lines_of = {way: [] for way in ways}
        for _ in range(args.rounds):
            for way, options in ways.items():
                harness.note(f"figure {figure}: {n_ranks} ranks, {way}")
                lines_of[way].append(harness.train(n_ranks, data=data, threads=1, prefetch=args.prefetch,
                                                   epochs=args.epochs + 1,
                                                   eval_every=args.epochs + 1, verify=False, **{**model, **options}))
        yield _compared([_row(figure, name, model, n_ranks, way, lines) for way, lines in lines_of.items()])


def _row(figure, name, model, n_ranks, way, lines):
    sent = [sum(n for phase, n in line["sent_bytes"].items() if phase != "evaluation") for line in lines]
    times = [1e3 * seconds for line in lines for seconds in line["seconds"][1:]]
    return {"figure": figure, "case": model["model"], "graph": name, "ranks": n_ranks, "way": way,
            **harness.summary(times),
            **{f"{key}_mib": statistics.median(of(line["peak_bytes"]) for line in lines) / 2**20
               for key, of in (("peak", max), ("middle", statistics.median))},
            "rank_peaks_mib": [statistics.median(peaks) / 2**20
                               for peaks in zip(*(line["peak_bytes"] for line in lines))],
            "sent_mib": sent[0] / len(lines[0]["seconds"]) / 2**20}


def _compared(rows):
    other = next((row for row in rows if row["way"] == "oneshot"), None)
    for row in rows:
        row["memory"], row["time"] = (other and row[key] / other[key] for key in ("peak_mib", "ms"))
    return rows


def attention(args, _):
    """Yield the result rows of figure 2, fused and two-step attention by number of heads, each measured in a process of its own."""
    name = "M" + (f"/{args.part}" if args.part > 1 else "")
    file = seeded_graphs.path(args.graphs, name)
    for heads in args.heads:
        lines_of, rows = {"fused": [], "two-step": []}, []
        for _ in range(args.rounds):
            for way, lines in lines_of.items():
                harness.note(f"figure 2: {heads} heads, {way}")
                words = ["--worker", way, "--graphs", args.graphs, "--graph", name, "--heads", heads,
                         "--threads", args.threads, "--epochs", args.epochs]
                lines.append(harness.last_json(harness.python(__file__, *words)))
        for way, lines in lines_of.items():
            row = {"figure": "2", "case": "attention", "graph": file.stem, "heads": heads, "way": way}
            for key in ("forward", "backward", "both"):
                times = [ms for line in lines for ms in line[key]]
                row |= {("" if key == "both" else key + "_") + k: v for k, v in harness.summary(times).items()}
            row |= {key: statistics.median(line[key] for line in lines) for key in ("peak_mib", "forward_peak_mib")}
            rows.append(row)
        plain = rows[1]
        for row in rows:
            row |= {key.replace("ms", "speed"): plain[key] / row[key] for key in ("ms", "forward_ms", "backward_ms")}
            row["memory"] = row["forward_peak_mib"] / plain["forward_peak_mib"]
        yield rows


def attention_worker(args):
    """Time attention, fused or in two steps, with one number of heads in this process; print the times and peak memory as JSON."""
    import time

    set_threads(args.threads)
    graph, (heads,), dim = seeded_graphs.load(args.graphs, args.graph), args.heads, 100
    with Buffers():
        draw = np.random.default_rng(0)
        z, src, dst = (Tensor(draw.standard_normal((graph.n_nodes, heads, *more), dtype=np.float32), requires_grad=True)
                       for more in ((dim,), (), ()))
        memory, times, half = Memory(), {"forward": [], "backward": [], "both": []}, 0
        for number in range(args.epochs + 1):
            begin = time.perf_counter()
            out = graph.aggregate(fn.attend(z, src, dst),
                                  "sum") if args.worker == "fused" else unfused.attend(graph, z, src, dst)
            middle, half = time.perf_counter(), half or memory.peak()
            out.backward(np.ones_like(out.data))
            end = time.perf_counter()
            z.grad = src.grad = dst.grad = out = None
            for key, seconds in (("forward", middle - begin), ("backward", end - middle), ("both", end - begin)):
                times[key] += [1e3 * seconds] if number else []
    print(harness.json.dumps({**times, "peak_mib": memory.peak() / 2**20, "forward_peak_mib": half / 2**20}))


def curve(args, scratch: harness.Scratch):
    """Yield the result rows of figure 8: loss and accuracies of each epoch, for four configurations on one data set in turn."""
    n_nodes = 300_000 // args.part
    spec = f"sbm:nodes={n_nodes},degree=29,classes=40,features=128,homophily=0.6,noise=3,train=0.011,val=0.01"
    data = scratch.convert(spec, "curve")
    for labels in (None, 0.5):
        for flow in (False, True):
            way = ("labels as inputs" if labels else "plain") + (", message flow" if flow else "")
            harness.note(f"figure 8: {way}")
            more = {"label_inputs": labels} if labels else {}
            line = harness.train(1, data=data, threads=args.threads, epochs=args.curve_epochs, mfg=flow,
                                 lr_schedule="cosine", metric="accuracy",
                                 **{**SAGE, "batch_norm": False}, **more)
            yield [{"figure": "8", "case": "sage", "way": way, "epoch": epoch["epoch"], "loss": epoch["loss"],
                    "val": epoch["val_accuracy"], "test": epoch["test_accuracy"], "ms": 1e3 * epoch["seconds"]}
                   for epoch in line["epochs"]]


def main(argv=None):
    parser = arguments()
    args = parser.parse_args(argv)
    if args.worker:
        return attention_worker(args)
    with harness.Scratch() as scratch:
        figures.run(FIGURES, parser, args, scratch)
    return None


def _ratio(key):
    return lambda r: r[key] and f"{r[key]:.2f}"


def _mib(key):
    return lambda r: f"{r[key]:,.0f}"


ATTENTION = {
    **harness.named("heads", "way"), "forward ms": harness.times("forward_"), "backward ms": harness.times("backward_"),
    "forward x": _ratio("forward_speed"), "backward x": _ratio("backward_speed"), "both x": _ratio("speed"),
    "MiB after forward": _mib("forward_peak_mib"), "of two steps": _ratio("memory"), "peak MiB": _mib("peak_mib"),
}  # fmt: skip
SCALING = {
    **harness.named("case", "graph", "ranks", "way"), "epoch ms": harness.times(), "to oneshot": _ratio("time"),
    "peak MiB": _mib("peak_mib"), "to oneshot's": _ratio("memory"),
    "median rank": lambda r: r.get("middle_mib") and f"{r['middle_mib']:,.0f}",
    "paper's memory": lambda r: PAPER_MEMORY.get(r["figure"]) if r["way"] == "sar" else None,
    "MiB sent": _mib("sent_mib"),
}  # fmt: skip
CURVE = harness.named("way", "epoch", "loss", "val", "test", "ms")


def _by_ranks(title, figure, paper):
    panels = (Panel("bars", "ranks", "way", "ms", "epoch, ms"),
              Panel("bars", "ranks", "way", "peak_mib", "peak memory of a rank, MiB"))
    return Figure(title, paper, partial(scaling, figure), SCALING, panels)


FIGURES = {
    "2": Figure("one attention layer, fused and in two steps",
                "forward up to 4.5 times as fast (2 heads); backward slightly faster, equal, slower (2, 4, 8 heads); "
                "both together faster; less memory, the more so with more heads", attention, ATTENTION,
                (Panel("bars", "heads", "way", "forward_ms", "forward, ms"),
                 Panel("bars", "heads", "way", "backward_ms", "backward, ms"),
                 Panel("bars", "heads", "way", "forward_peak_mib", "memory after forward, MiB"))),
    "3": _by_ranks("GraphSAGE on a graph like ogbn-products", "3",
                   "sar needs less memory, and slightly less time on 16 machines"),
    "4": _by_ranks("GAT on a graph like ogbn-products", "4",
                   "sar with fused attention is as fast as domain-parallel training in two steps, in far less memory; "
                   "sar alone slower"),
    "5": _by_ranks("GraphSAGE on a graph like ogbn-papers100M", "5",
                   "memory about one half on 128 machines, slightly less time"),
    "6": _by_ranks("GAT on a graph like ogbn-papers100M", "6",
                   "memory about one quarter on 128 machines, more time there"),
    "7": _by_ranks("R-GCN on a graph like ogbn-mag", "7", "memory 26 to 37 %, more time"),
    "8": Figure("training curve of GraphSAGE",
                "converged after 100 epochs; an epoch with message flow 10.7 s, with labels as inputs too 20.3 s",
                curve, CURVE,
                (Panel("lines", "epoch", "way", "loss", "loss"),
                 Panel("lines", "epoch", "way", "val", "validation accuracy")),
                lambda r: r["epoch"] % 20 == 0 or r["epoch"] == 1),
}  # fmt: skip


def arguments():
    parser = figures.parser(__doc__, FIGURES, "paper")
    parser.add_argument("--ranks", type=harness.numbers, default=[2, 4, 8, 16])
    parser.add_argument("--ways", type=lambda text: text.split(","), default=None, metavar="LIST",
                        help="of figures 3 to 7 (default: all)")
    parser.add_argument("--heads", type=harness.numbers, default=[2, 4, 8], metavar="LIST", help="of figure 2")
    parser.add_argument("--prefetch", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=2, help="measured epochs of a run, after one that warms up")
    parser.add_argument("--curve-epochs", type=int, default=100, help="of figure 8")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2, help="of figures 2 and 8")
    parser.add_argument("--worker", help=harness.argparse.SUPPRESS)
    parser.add_argument("--graph", help=harness.argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())

"""The experiments of the SAR paper (Mostafa, MLSys 2022, section 4 and appendices), scaled to one machine, with the paper's ratios beside.

| figure | what is measured |
|---|---|
| `2` | forward and backward time and memory of one attention layer, 2, 4, 8 heads of 100, fused against two steps (`unfused.py`) |
| `3`, `4` | epoch time and largest peak memory of a rank, GraphSAGE (3 layers, 256 hidden) and GAT (3 layers, 4 heads x 32) on `M` |
| `5`, `6` | the same on `P` |
| `7` | R-GCN (3 layers, 256 hidden) on a graph of 4 node types, 4 relations and their reverses, as ogbn-mag |
| `8` | training curve of GraphSAGE with and without labels as inputs, on the full and on message-flow graphs, 1.1 % labelled |

`M` has 400,000 nodes of mean degree 50, 8 % training nodes, 100 features, 47 classes, as ogbn-products; `P` 1 million nodes of mean degree
29, 1.1 % labelled, 128 features, 172 classes, as ogbn-papers100M. Ranks are processes of mpiexec, of one thread each; parts are METIS's,
divided once into the most ranks and joined for fewer. `way`: `sar`; `sar two-step` without the fused attention, as the paper's plain SAR;
`oneshot`, the paper's domain-parallel training; `oneshot two-step`, what the paper compares with. R-GCN's weights are inside the message,
as in the paper (case 2); `by bytes` is the default, where most are applied after the sum. `peak_mib` is the largest rank's resident
memory above its state before it read data, `rank_peaks_mib` each one's. `memory` and `time` are multiples of `oneshot`'s on the same
ranks. More ranks than cores wait for each other: their times say little, their memory is what N machines would take.
"""

import statistics
import sys
from pathlib import Path

import graphs
import harness
import numpy as np
import unfused

from sarlite import Tensor, fn
from sarlite.kernels import Buffers
from sarlite.profile import Memory
from sarlite.train.loop import set_threads

HERE = Path(__file__).parent
TWO_STEPS = f"{unfused.__file__}:GAT"
SHARED = dict(layers=3, batch_norm=True, dropout=0.5, activation="relu", lr=0.01)
SAGE = dict(model="sage", hidden=256, **SHARED)
GAT = dict(model="gat", hidden=32, heads=4, out_heads=1, input_dropout=0.0, attention_dropout=0.0, **SHARED)
RGCN = dict(model="rgcn", hidden=256, layers=3)
WAYS = {"sar": {"mode": "sar"}, "oneshot": {"mode": "oneshot"}}
UNFUSED = {"sar two-step": {"mode": "sar", "model": TWO_STEPS}, "oneshot two-step": {"mode": "oneshot", "model": TWO_STEPS}}
BY_BYTES = {f"{way} by bytes": options for way, options in WAYS.items()}
INSIDE = {way: {**options, "relation_weights": "inside"} for way, options in WAYS.items()}
FIGURES = {  # figure: graph, model, ways, what the paper says
    "3": ("M", SAGE, WAYS, "sar needs less memory, and slightly less time on 16 machines"),
    "4": ("M", GAT, {**WAYS, **UNFUSED}, "sar with fused attention: as fast as domain-parallel training, far less memory; alone slower"),
    "5": ("P", SAGE, WAYS, "memory about one half on 128 machines"),
    "6": ("P", GAT, {**WAYS, **UNFUSED}, "memory about one quarter on 128 machines"),
    "7": ("mag", RGCN, {**INSIDE, **BY_BYTES}, "memory 26 to 37 %, time somewhat more"),
}
DATA = {"M": (100, 47, 0.08), "P": (128, 172, 0.011)}  # features, classes, share of training nodes


def write_data(scratch, args, name):
    """Write the data set of a graph in the native format, divided into the most ranks; once."""
    base = name.split("/")[0]
    if (scratch.path / base).exists():
        return scratch.path / base
    if base == "mag":
        part = int((name.split("/") + ["1"])[1])
        spec = f"relational:nodes={300_000 // part},edges={8_000_000 // part // 2 * 2},features=128,classes=64,train=0.5,val=0.1"
        data = scratch.convert(spec, base)
    else:
        with np.load(graphs.path(args.graphs, name)) as arrays:
            indptr, indices = arrays["indptr"], arrays["indices"]
        (n_features, n_classes, share), n_nodes, draw = DATA[base], len(indptr) - 1, np.random.default_rng(1)
        x = draw.standard_normal((n_nodes, n_features), dtype=np.float32)
        place = draw.random(n_nodes)
        masks = place < share, (place >= share) & (place < 1.1 * share), (place >= 1.1 * share) & (place < 1.3 * share)
        data = scratch.write(base, indptr, indices, x, draw.integers(0, n_classes, n_nodes), n_classes, masks)
    harness.note(f"dividing {name} into {max(args.ranks)} parts")
    harness.python("-m", "sarlite.data", "partition", data, "--parts", max(args.ranks))
    return data


def scaling(args, figure, scratch):
    """Return the rows of one of the figures 3 to 7: the ways take turns, `--rounds` times."""
    graph, model, ways, says = FIGURES[figure]
    name = graph + (f"/{args.part}" if args.part > 1 else "")
    data, rows = write_data(scratch, args, name), []
    ways = {way: options for way, options in ways.items() if not args.ways or way in args.ways}
    for n_ranks in args.ranks:
        found = {way: [] for way in ways}
        for _ in range(args.rounds):
            for way, options in ways.items():
                harness.note(f"figure {figure}: {n_ranks} ranks, {way}")
                found[way].append(harness.train(n_ranks, data=data, threads=1, prefetch=args.prefetch, epochs=args.epochs + 1,
                                                eval_every=args.epochs + 1, verify=False, **{**model, **options}))
        rows += [_row(figure, name, model, n_ranks, way, lines, says) for way, lines in found.items()]
    return _compared(rows)


def _row(figure, name, model, n_ranks, way, lines, says):
    sent = [sum(n for phase, n in line["sent_bytes"].items() if phase != "evaluation") for line in lines]
    times = [1e3 * seconds for line in lines for seconds in line["seconds"][1:]]
    return {"figure": figure, "case": model["model"], "graph": name, "ranks": n_ranks, "way": way, **harness.summary(times),
            "peak_mib": statistics.median(max(line["peak_bytes"]) for line in lines) / 2**20,
            "rank_peaks_mib": [statistics.median(peaks) / 2**20 for peaks in zip(*(line["peak_bytes"] for line in lines))],
            "sent_mib": sent[0] / len(lines[0]["seconds"]) / 2**20, "paper": says}


def _compared(rows):
    whole = {row["ranks"]: row for row in rows if row["way"] == "oneshot"}
    for row in rows:
        other = whole.get(row["ranks"])
        row["memory"], row["time"] = (other and row[key] / other[key] for key in ("peak_mib", "ms"))
    return rows


def attention(args):
    """Return the rows of figure 2: each way and number of heads a process of its own, in turn."""
    name, rows = "M" + (f"/{args.part}" if args.part > 1 else ""), []
    file = graphs.path(args.graphs, name)
    for heads in args.heads:
        found = {"fused": [], "two-step": []}
        for _ in range(args.rounds):
            for way, lines in found.items():
                harness.note(f"figure 2: {heads} heads, {way}")
                lines.append(harness.last_json(harness.python(__file__, "--worker", way, "--graphs", args.graphs, "--graph", name,
                                                              "--heads", heads, "--threads", args.threads, "--epochs", args.epochs)))
        for way, lines in found.items():
            row = {"figure": "2", "case": "attention", "graph": file.stem, "heads": heads, "way": way}
            for key in ("forward", "backward", "both"):
                times = [ms for line in lines for ms in line[key]]
                row |= {("" if key == "both" else key + "_") + k: v for k, v in harness.summary(times).items()}
            row |= {key: statistics.median(line[key] for line in lines) for key in ("peak_mib", "forward_peak_mib")}
            rows.append(row)
        fused, plain = rows[-2:]
        for row in (fused, plain):
            row |= {key.replace("ms", "speed"): plain[key] / row[key] for key in ("ms", "forward_ms", "backward_ms")}
            row |= {"memory": row["forward_peak_mib"] / plain["forward_peak_mib"],
                    "paper": "forward up to 4.5 times as fast (2 heads), backward slightly faster, equal, slower (2, 4, 8 heads)"}
    return rows


def attention_worker(args):
    """Measure one way and number of heads in this process."""
    import time

    set_threads(args.threads)
    graph, (heads,), dim = graphs.load(args.graphs, args.graph), args.heads, 100
    with Buffers():
        draw = np.random.default_rng(0)
        z, src, dst = (Tensor(draw.standard_normal((graph.n_nodes, heads, *more), dtype=np.float32), requires_grad=True)
                       for more in ((dim,), (), ()))
        memory, times, half = Memory(), {"forward": [], "backward": [], "both": []}, 0
        for number in range(args.epochs + 1):
            begin = time.perf_counter()
            out = graph.aggregate(fn.attend(z, src, dst), "sum") if args.worker == "fused" else unfused.attend(graph, z, src, dst)
            middle, half = time.perf_counter(), half or memory.peak()
            out.backward(np.ones_like(out.data))
            end = time.perf_counter()
            z.grad = src.grad = dst.grad = out = None
            for key, seconds in (("forward", middle - begin), ("backward", end - middle), ("both", end - begin)):
                times[key] += [1e3 * seconds] if number else []
    print(harness.json.dumps({**times, "peak_mib": memory.peak() / 2**20, "forward_peak_mib": half / 2**20}))


def curve(args, scratch):
    """Return the rows of figure 8: a line of the training curve each, four ways on one data set whose labels can be learned."""
    n_nodes = 300_000 // args.part
    data = scratch.convert(f"sbm:nodes={n_nodes},degree=29,classes=40,features=128,homophily=0.6,noise=3,train=0.011,val=0.01", "curve")
    rows = []
    for labels in (None, 0.5):
        for flow in (False, True):
            way = ("labels as inputs" if labels else "plain") + (", message flow" if flow else "")
            harness.note(f"figure 8: {way}")
            more = {"label_inputs": labels} if labels else {}
            line = harness.train(1, data=data, threads=args.threads, epochs=args.curve_epochs, mfg=flow, lr_schedule="cosine",
                                 **{**SAGE, "batch_norm": False}, **more)
            rows += [{"figure": "8", "case": "sage", "way": way, "epoch": epoch["epoch"], "loss": epoch["loss"],
                      "val": epoch["val_accuracy"], "test": epoch["test_accuracy"], "ms": 1e3 * epoch["seconds"],
                      "paper": "converged after 100 epochs; an epoch with message flow 10.7 s, with labels as inputs too 20.3 s"}
                     for epoch in line["epochs"]]
    return rows


def main(argv=None):
    args = arguments().parse_args(argv)
    if args.worker:
        return attention_worker(args)
    rows = []
    with harness.Scratch() as scratch:
        for figure in args.figures:
            if figure == "2":
                found, columns = attention(args), ATTENTION
            elif figure == "8":
                found, columns = curve(args, scratch), CURVE
            else:
                found, columns = scaling(args, figure, scratch), SCALING
            rows += found
            shown = [row for row in found if figure != "8" or row["epoch"] % 10 == 0 or row["epoch"] == 1]
            harness.report(f"Figure {figure} of the SAR paper. The paper: {found[0]['paper']}", shown, columns)
            if args.json:
                harness.write_rows(args.json, rows)
    return None


def _times(prefix=""):
    return lambda r: f"{r[prefix + 'ms']:,.0f} ({r[prefix + 'ms_min']:,.0f}..{r[prefix + 'ms_max']:,.0f})"


def _ratio(key):
    return lambda r: r[key] and f"{r[key]:.2f}"


def _mib(key):
    return lambda r: f"{r[key]:,.0f}"


ATTENTION = {
    "heads": lambda r: r["heads"], "way": lambda r: r["way"], "forward ms": _times("forward_"), "backward ms": _times("backward_"),
    "forward x": _ratio("forward_speed"), "backward x": _ratio("backward_speed"), "both x": _ratio("speed"),
    "MiB after forward": _mib("forward_peak_mib"), "of two steps": _ratio("memory"), "peak MiB": _mib("peak_mib"),
}  # fmt: skip
SCALING = {
    "case": lambda r: r["case"], "graph": lambda r: r["graph"], "ranks": lambda r: r["ranks"], "way": lambda r: r["way"],
    "epoch ms": _times(), "to oneshot": _ratio("time"), "peak MiB": _mib("peak_mib"), "to oneshot's": _ratio("memory"),
    "MiB sent": _mib("sent_mib"),
}  # fmt: skip
CURVE = {
    "way": lambda r: r["way"], "epoch": lambda r: r["epoch"], "loss": lambda r: r["loss"], "val": lambda r: r["val"],
    "test": lambda r: r["test"], "ms": lambda r: r["ms"],
}  # fmt: skip


def arguments():
    parser = harness.parser(__doc__)
    parser.add_argument("--figures", type=harness.words, default=["2", *FIGURES, "8"], metavar="LIST")
    parser.add_argument("--graphs", type=Path, default=harness.GRAPHS, metavar="DIR", help="where graphs are kept once drawn")
    parser.add_argument("--part", type=int, default=1, metavar="N", help="an N-th of the nodes and of the edges, for trial runs")
    parser.add_argument("--ranks", type=harness.numbers, default=[2, 4, 8, 16])
    parser.add_argument("--ways", type=lambda text: text.split(","), default=None, metavar="LIST", help="of figures 3 to 7 (default: all)")
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

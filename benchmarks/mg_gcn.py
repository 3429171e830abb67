"""Run the experiments of the MG-GCN paper, scaled to one machine, compared with the paper's ratios.

The paper is Balin, Sancak, Catalyurek 2021; its experiments are in section 6.

| figure | what is measured |
|---|---|
| `1` | rows x width arrays that a step of GCN holds, by layers and ranks, beside the paper's L + 3 (`live_arrays.py`) |
| `5` | where an epoch on one rank goes: sums over neighbours (SpMM), products (GeMM), activation, loss, Adam |
| `6` | timeline of one sum over neighbours on `--timeline-ranks`, original and permuted order, without overlap |
| `7` | an epoch in permuted order against the original order, by ranks, mode broadcast |
| `8` | the timeline of 6 in permuted order, with overlap (prefetch 1) and without (prefetch 0) |
| `9` | speedup of two ranks over one by mean degree, on BTER graphs (`density.py`) |
| `10` | (and 11) an epoch on 1, 2, 4 ranks beside DGL's on one thread and CAGNET's 1D algorithm (`cagnet.py`) |
| `12` | an epoch on a graph like Papers, beside neither DGL nor CAGNET: the paper's fourth model, 3 layers of 208 |

A rank has one thread and stands for a GPU. There are at most 4 ranks, not 8, and with more ranks than cores times do not
fall. Figures 12 and 13 are figures 10 and 11 on another machine; only Papers is in them alone, so only Papers is measured
here. The model is else the paper's first: GCN, 2 layers, 512 hidden, Adam, float32, here with dropout 0.5 between the
layers. The graphs have the sizes of the paper's Table 1 (`seeded_graphs.py`): cora and arxiv whole, products a 25th,
proteins a 150th, reddit a 10th, papers a 111th; of all but cora a `--part`-th.

sarlite keeps A X, the first layer's sum over its constant input. The way `A X each step` computes it in each step,
forward and, where X W is summed, backward too, as the exact gradient needs it. The paper's order of operations has three
sums; sarlite's has two, or up to four.

Ways take turns step by step in one job, and jobs take turns `--rounds` times; `ms` is the median of all steps. `--out
docs/results/mg-gcn` writes the pictures and tables there, with `SARLITE_PEERS` set.
"""

import statistics
import sys
from pathlib import Path

import broadcast_speed
import density
import figures
import harness
import live_arrays
import peers
import seeded_graphs
from figures import Figure, Panel
from mg_gcn_ranks import KEPT, ORDERS

from sarlite.structure.partition import partition

HERE = Path(__file__).parent
DATA = {"cora": ("C", 3_700, 6), "arxiv": ("A", 128, 40), "products": ("S", 104, 47), "proteins": ("B", 128, 256),
        "reddit": ("R", 602, 41), "papers": ("P", 128, 172)}  # graph, features, classes
CAGNET = "CAGNET's 1D algorithm"
KERNELS = ("SpMM", "GeMM", "activation", "loss", "Adam", "other")


def job(args, job_name, name, n_ranks, widths=None, **options):
    """Run mg_gcn_ranks.JOBS[job_name] on data set `name` with N ranks; return its result. `widths`: of input, output; `options`: flags."""
    graph, *table = DATA[name]
    words = [HERE / "mg_gcn_ranks.py", job_name, "--file", file_of(args, graph), "--widths",
             ",".join(map(str, widths or table)),
             "--hidden", options.pop("hidden", args.hidden), "--repeats", args.repeats]  # fmt: skip
    harness.note(f"{job_name}: {name}, {_ranks(n_ranks)}")
    return harness.last_json(harness.mpiexec(n_ranks, *words,
                                             *(word for key, value in options.items() for word in (f"--{key}", value))))


def file_of(args, graph):
    return seeded_graphs.path(args.graphs, graph + (f"/{args.part}" if args.part > 1 and graph != "C" else "")).resolve()


def _ranks(n):
    return f"{n} rank" + "s" * (n > 1)


def row(figure, name, n_ranks, way, times):
    return {"figure": figure, "case": name, "ranks": n_ranks, "way": way, **harness.summary(times)}


def memory(args):
    options = live_arrays.arguments().parse_args([])
    for n in (2, 4, 6, 8):
        rows = [live_arrays.row_of("gcn", [options.hidden] * (n + 1), n_ranks, "broadcast:1" if n_ranks > 1 else "sar:0",
                                options)
                for n_ranks in args.ranks]
        yield [{"figure": "1", "layers": n, "ranks": r["ranks"], "way": _ranks(r["ranks"]), "arrays": r["taken"],
                "promised": r["promised"],
                "rows": options.rows, "width": options.hidden} for r in rows]
        yield [{"figure": "1", "layers": n, "ranks": None, "way": "the paper, L + 3", "arrays": n + 3}]


def kernel_of(primitive):
    """Return the name of the MG-GCN paper's kernel, such as "SpMM", that a primitive of the tape belongs to."""
    for kernel, words in {"SpMM": ("aggregate",), "GeMM": ("linear", "matmul", "matrix"),
                          "activation": ("activat", "relu", "dropout"),
                          "loss": ("entropy", "softmax", "take"), "Adam": ("optimizer",)}.items():
        if any(word in primitive for word in words):
            return kernel
    return "other"


def decomposition(args):
    for name in args.datasets:
        for way, records in job(args, "breakdown", name, 1).items():
            ms = dict.fromkeys(KERNELS, 0.0)
            for each in records:
                ms[kernel_of(each["primitive"])] += each["ms"]
            total = sum(ms.values())
            yield [{"figure": "5", "case": name, "way": way, "graph": f"{name}, {way}", "kernel": kernel,
                    "kernel_ms": value,
                    "percent": 100 * value / total, "ms": total} for kernel, value in ms.items()]


def timeline(figure):
    def measure(args):
        recorded = job(args, "timelines", args.timeline_data, args.timeline_ranks, timeline=figure)
        first, rows = statistics.median(next(iter(recorded.values()))[0]), []
        for way, (times, ranks) in recorded.items():
            rows.append({**row(figure, args.timeline_data, args.timeline_ranks, way, times),
                         "share": statistics.median(times) / first})
            rows += [{"figure": figure, "way": way, "lane": f"{way}\nrank {rank}, {kind}", "kind": kind,
                      "stage": stage, "begin_ms": begin,
                      "length_ms": length} for rank, spans in enumerate(ranks) for kind, stage, begin, length in spans]
        yield sorted(rows, key=lambda r: r.get("lane", ""))

    return measure


def permutation(args):
    for name in args.datasets:
        rows = []
        for n_ranks in args.ranks:
            rounds = [job(args, "orders", name, n_ranks) for _ in range(args.rounds)]
            for order in ORDERS:
                times = [ms for times_by_order in rounds for ms in times_by_order[order]]
                pairs = [a / b for times_by_order in rounds for a, b in zip(times_by_order["original"], times_by_order[order])]
                rows.append({**row("7", name, n_ranks, order, times), "speed": statistics.median(pairs),
                             "speed_min": min(pairs),
                             "speed_max": max(pairs), "series": _ranks(n_ranks) if order == "permuted" else None})
        edges = seeded_graphs.arrays_of(file_of(args, DATA[name][0]))
        rows += [{"figure": "7", "case": name, "ranks": n, "way": order, "parts": f"{n} parts, {order}",
                  "imbalance": broadcast_speed.stage_imbalance(*edges, partition(*edges, n, method), n)}
                 for n in (2, 4, 8) for order, method in ORDERS.items()]
        yield rows


def degrees(args):
    words = {"nodes": density.arguments().get_default("nodes") // args.part, "rounds": args.rounds,
             "repeats": args.repeats,
             "graphs": args.graphs}  # fmt: skip
    options = density.arguments().parse_args([word for key, value in words.items()
                                              for word in (f"--{key}", str(value))])
    for scale in args.scales:
        yield [{**density_row, "figure": "9", "way": f"{density_row['case']}, {density_row['mode']}",
                "speed": statistics.median(density_row["speedup"]),
                "speed_min": min(density_row["speedup"]), "speed_max": max(density_row["speedup"])}
               for density_row in density.measure(options, scale) if density_row["ranks"] > 1]


def comparison(args):
    """Yield the result rows of one graph after another: DGL, CAGNET and sarlite by number of ranks, with the widths 602-512-41."""
    others, torch = peers.find(None, ("dgl",)), peers.find(None, ("torch",))
    for name in args.datasets:
        times_of, dgl, cagnet, rows = {}, [], {}, []
        for _ in range(args.rounds):
            dgl += [peers.run(command, ["gcn", file_of(args, DATA[name][0]), "--threads", 1, "--repeats", args.repeats])
                    for command in others.values()]
            for n_ranks in args.ranks:
                for python, *_ in torch.values():
                    words = [file_of(args, DATA[name][0]), "--ranks", n_ranks, "--widths", f"602,{args.hidden},41"]
                    words += ["--repeats", args.repeats]
                    cagnet.setdefault(n_ranks, []).append(peers.run([python, str(HERE / "cagnet.py")], words))
                for way, times in job(args, "epochs", name, n_ranks, widths=(602, 41)).items():
                    times_of.setdefault((n_ranks, way), []).extend(times)
        base = peers.pool(dgl) if dgl else {"ms": None}
        cagnet = {n_ranks: peers.pool(results) for n_ranks, results in cagnet.items()}
        for n_ranks, way, pooled in ((1, "DGL", base), *((n, CAGNET, each) for n, each in cagnet.items())):
            if pooled["ms"]:
                rows.append({"figure": "10", "case": name, "ranks": n_ranks, "way": way,
                             "speed": _ratio(base, pooled["ms"]),
                             "series": way if way == "DGL" else f"CAGNET, {_ranks(n_ranks)}",
                             **{key: pooled[key] for key in ("ms", "ms_min", "ms_max")}})
        for (n_ranks, way), times in times_of.items():
            ms = statistics.median(times)
            rows.append({**row("10", name, n_ranks, way, times), "series": _ranks(n_ranks) if way == KEPT else None,
                         "speed": _ratio(base, ms), "to_cagnet": _ratio(cagnet.get(n_ranks, {"ms": None}), ms)})
        yield rows


def _ratio(pooled, ms):
    return pooled["ms"] and pooled["ms"] / ms


def papers(args):
    """Yield the result rows of epochs of the MG-GCN paper's fourth model on a graph like ogbn-papers100M.

    Each row is for one number of ranks and one way of `mg_gcn_ranks`, with the speedup over a single rank.
    """
    times_of = {}
    for _ in range(args.rounds):
        for n_ranks in args.ranks:
            for way, times in job(args, "epochs", "papers", n_ranks, hidden=208, layers=3).items():
                times_of.setdefault((n_ranks, way), []).extend(times)
    one = {way: statistics.median(times) for (n_ranks, way), times in times_of.items() if n_ranks == 1}
    yield [{**row("12", "papers", n_ranks, way, times), "series": way,
            "speed": one.get(way) and one[way] / statistics.median(times)}
           for (n_ranks, way), times in times_of.items()]


def main(argv=None):
    parser = arguments()
    figures.run(FIGURES, parser, parser.parse_args(argv))


_ms = harness.times(digits=1)


def _speed(row):
    return row.get("speed") and f"{row['speed']:.2f}" + (f" ({row['speed_min']:.2f}..{row['speed_max']:.2f})"
                                                         if "speed_min" in row else "")


def _paper(published):
    return {"the paper's": lambda r: published.get((r["case"], r["ranks"], r["way"]))}


def _timeline(figure, title, paper):
    panels = (Panel("lanes", "lane", "kind", "length_ms", "ms"),)
    columns = {**harness.named("case", "ranks", "way"), "ms": _ms, "share": lambda r: f"{r['share']:.2f}",
               "the paper's": lambda r: PAPER_TIMELINES[r["way"]]}
    return Figure(title, paper, timeline(figure), columns, panels, lambda r: "share" in r)


PAPER_TIMELINES = {"original order": "50 ms", "permuted": "38 ms (0.76)", "no overlap": "38 ms",
                   "overlap": "30 ms (0.79)"}
PAPER_PERMUTED = {("products", 4, "permuted"): "1.5 on 8", ("reddit", 4, "permuted"): "1.5 on 8"}
PAPER_DGL = {  # V100; A100
    ("cora", 1, KEPT): "3.1; 2.2", ("arxiv", 1, KEPT): "1.76; 1.8", ("products", 1, KEPT): "1.42; 1.5",
    ("reddit", 1, KEPT): "2.72; 1.5",
    ("products", 4, KEPT): "8.5 on 8 A100", ("reddit", 4, KEPT): "8.3 on 8 A100"}  # fmt: skip
PAPER_CAGNET = {("reddit", 2, KEPT): "2.66 on 8", ("products", 2, KEPT): "8.6 on 8", ("arxiv", 2, KEPT): "2.35 on 8"}
FIGURES = {
    "1": Figure("rows x width arrays of a training step, GCN of equal widths, mode broadcast with prefetch 1",
                "L + 3; here A X, which is kept, is a further one", memory,
                {**harness.named("layers", "way"), "arrays": lambda r: f"{r['arrays']:.2f}",
                 "to L + 4": lambda r: f"{r['arrays'] / (r['layers'] + 4):.2f}",
                 "promised": lambda r: r.get("promised") and f"{r['promised']:.2f}"},
                (Panel("lines", "layers", "way", "arrays", "arrays of rows x width"),)),
    "5": Figure("where an epoch on one rank goes",
                "SpMM 60 to 94 % on Proteins, Products and Reddit, GeMM 5 to 20 %; on small graphs most is GeMM",
                decomposition,
                {**harness.named("case", "way", "kernel"), "ms": lambda r: f"{r['kernel_ms']:,.1f}",
                 "%": lambda r: f"{r['percent']:.0f}"},
                (Panel("stacked", "graph", "kernel", "percent", "% of an epoch"),)),
    "6": _timeline("6", "a sum over neighbours by order of nodes", "Products on 4 GPUs: permuted 38 ms in place of 50"),
    "7": Figure("epoch in permuted order against the original order",
                "slightly slower on few GPUs for some graphs; 1.5 times as fast on Products and Reddit with 8",
                permutation,
                {**harness.named("case", "ranks", "way"), "ms": _ms, "original / this": _speed,
                 **_paper(PAPER_PERMUTED),
                 "imbalance": lambda r: r.get("imbalance") and f"{r['imbalance']:.2f}"},
                (Panel("bars", "case", "series", "speed", "original / permuted time"),
                 Panel("bars", "case", "parts", "imbalance", "largest tiles of stages / mean"))),
    "8": _timeline("8", "a sum over neighbours with and without overlap", "Products on 4 GPUs: 30 ms in place of 38"),
    "9": Figure("speedup of 2 ranks over 1 by mean degree, BTER graphs",
                "grows with the degree; above 2 with 2 GPUs from x32 on", degrees,
                {"scale": lambda r: f"x{r['scale']}", "mean degree": lambda r: f"{r['degree']:.1f}",
                 **harness.named("case", "mode"), "ms": _ms,
                 "speedup": _speed}, (Panel("lines", "scale", "way", "speed", "one rank's time / two ranks'"),)),
    "10": Figure("(and 11) epoch beside DGL on one thread, and CAGNET's 1D algorithm on as many ranks",
                 "times as fast as DGL: on one V100 Reddit 2.72, Products 1.42, Arxiv 1.76, Cora 3.1; on one A100 "
                 "(Figures 12 and 13) "
                 "1.5, 1.5, 1.8, 2.2, on 8 of them Reddit 8.3, Products 8.5; as fast as CAGNET on 8 V100 Reddit 2.66, "
                 "Products 8.6, "
                 "Arxiv 2.35", comparison,
                 {**harness.named("case", "ranks", "way"), "ms": _ms, "DGL / this": _speed, **_paper(PAPER_DGL),
                  "CAGNET / this": lambda r: r.get("to_cagnet") and f"{r['to_cagnet']:.2f}",
                  "the paper's, of CAGNET": lambda r: PAPER_CAGNET.get((r["case"], r["ranks"], r["way"]))},
                 (Panel("bars", "case", "series", "ms", "epoch, ms"),
                  Panel("bars", "case", "series", "speed", "DGL's time / this"))),
    "12": Figure("epoch on a graph like Papers, 3 layers of 208",
                 "2.89 s on 8 A100, 12.6 times as fast as DistGNN's best", papers,
                 {**harness.named("case", "ranks", "way"), "ms": _ms, "one rank / this": _speed},
                 (Panel("bars", "ranks", "series", "ms", "epoch, ms"),)),
}  # fmt: skip


def arguments():
    parser = figures.parser(__doc__, FIGURES, "mg_gcn")
    parser.add_argument("--datasets", type=harness.words, default=[name for name in DATA if name != "papers"],
                        metavar="LIST",
                        help="of figures 5, 7 and 10")
    parser.add_argument("--ranks", type=harness.numbers, default=[1, 2, 4], help="of figures 1, 7, 10 and 12")
    parser.add_argument("--scales", type=harness.numbers, default=[1, 2, 4, 8, 16, 32], metavar="LIST",
                        help="of the mean degree in figure 9")
    parser.add_argument("--timeline-ranks", type=int, default=2, help="of figures 6 and 8: no more than cores")
    parser.add_argument("--timeline-data", default="products", choices=DATA)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=5, help="measured steps of a job, after one that warms up")
    parser.add_argument("--rounds", type=int, default=2)
    return parser


if __name__ == "__main__":
    sys.exit(main())

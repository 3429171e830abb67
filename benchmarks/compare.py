"""Compare the time and the memory of two checkouts of sarlite, measured in alternation.

    python benchmarks/compare.py --before OLD/.venv/bin/python --after NEW/.venv/bin/python [CASE ...]

A case is a small program of public names that both checkouts have. In each of `--rounds` rounds the program runs once
with each interpreter, in a process of its own: before and after, then after and before, and so on. It prints `seconds`,
the median of measured calls that take `--seconds` together. It also prints `peak_mib`: the peak of resident memory above
the memory that was resident once the inputs existed. The data are an R-MAT graph and a relational one, which the
interpreter `--before` writes once. Cases of two ranks are processes of mpiexec of one thread each; other cases have
`--threads`.

    before, after  ms: the median of the rounds, with minimum and maximum
    time           after / before of each round's two processes: the median, with minimum and maximum
    memory         after / before of the medians

Nothing else should run meanwhile. To see how large a difference is noise, pass one interpreter as both `--before` and
`--after`.
"""

import json
import os
import statistics
import sys

import harness

START = """
import json, resource, shutil, statistics, subprocess, sys, time
from pathlib import Path

size = json.loads(sys.argv[1])

def answer(seconds, peak_mib):
    print(json.dumps({"seconds": seconds, "peak_mib": peak_mib}))
"""

LIBRARY = """
import numpy as np
from sarlite import Graph, HeteroGraph, Tensor, Trainer, data, fn, kernels, models, nn, no_grad, optim
from sarlite.minibatch import NeighborLoader
from sarlite.profile import Memory

kernels.set_threads(size["threads"])
given = data.load(size["data"])
graph = Graph.from_csr(np.array(given.indptr), np.array(given.indices))
n, classes, draw, rng = graph.n_nodes, given.n_classes, np.random.default_rng(1), nn.Random(0)
x, labels, train = np.array(given.features), np.array(given.labels), np.arange(n) % 4 == 0

def rows(*shape, grad=True):
    return Tensor(draw.standard_normal((n, *shape), dtype=np.float32), requires_grad=grad)

def adam(flat):
    return optim.Adam(flat, 0.01)

def measure(call):
    memory, times = Memory(), []
    while len(times) < 4 or sum(times[1:]) < size["seconds"]:
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    answer(statistics.median(times[1:]), memory.peak() / 2**20)

def epochs(model):
    measure(Trainer(graph, model, x, labels, train, optimizer=adam, rng=rng).step)

def minibatches(model):
    loader = NeighborLoader(graph, x, labels, train, fanouts=(5, 10, 15), batch_size=1000)
    trainer = Trainer(graph, model, x, labels, train, optimizer=adam, rng=rng, batches=loader)
    measure(lambda: [trainer.step() for _ in range(len(loader))])

def sage():
    return models.SAGE(x.shape[1], classes, layers=3, hidden=128, dropout=0.5, batch_norm=True, rng=rng)

def gat():
    return models.GAT(x.shape[1], classes, layers=3, hidden=32, heads=4, out_heads=1, dropout=0.5, input_dropout=0.0,
                      attention_dropout=0.0, batch_norm=True, activation="relu", rng=rng)
"""

COMMAND = """
def command(n_ranks, *words):
    shutil.rmtree("run", ignore_errors=True)
    mpiexec = shutil.which("mpiexec", path=Path(sys.executable).parent) or "mpiexec"
    launcher = [mpiexec, "-n", str(n_ranks)] if n_ranks > 1 else []
    words = ["--threads", str(size["threads"] if n_ranks == 1 else 1), "--partition", "random", "--progress", "none",
             "--run-dir", "run", *words]
    done = subprocess.run([*launcher, sys.executable, "-m", "sarlite.train", *words], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout

def peak(output):
    return max(json.loads(output.splitlines()[-1])["peak_bytes"]) / 2**20

def epochs(*words, n_ranks=2, kind="data"):
    output = command(n_ranks, "--data", size[kind], "--epochs", "6", "--eval-every", "6", "--json", *words)
    answer(json.loads(output.splitlines()[-1])["epoch_seconds"], peak(output))

def first_epoch(n_ranks):
    begin = time.time()
    output = command(n_ranks, "--data", size["data"], "--epochs", "1", "--json")
    file = Path("run", "metrics.jsonl")
    answer(file.stat().st_mtime - begin - json.loads(file.read_text().splitlines()[0])["seconds"], peak(output))

def dry_run(n_ranks):
    begin = time.time()
    command(n_ranks, "--data", size["data"], "--dry-run")
    answer(time.time() - begin, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)

SAGE = ["--model", "sage", "--hidden", "128"]
GAT = ["--model", "gat", "--layers", "3", "--hidden", "32", "--heads", "4", "--batch-norm", "--activation", "relu",
       "--input-dropout", "0", "--attention-dropout", "0"]
GCN = ["--model", "gcn", "--hidden", "256"]
BATCHES = ["--layers", "3", "--fanouts", "5,10,15", "--batch-size", "1000"]
"""

SPMM = """
with kernels.Buffers(), no_grad():
    z = rows(128, grad=False)
    measure(lambda: graph.aggregate(fn.copy_src(z), "sum"))
"""
ATTENTION = """
with kernels.Buffers():
    z, src, dst = rows(4, 32), rows(4), rows(4)
    ones = np.ones_like(z.data)

    def both():
        graph.aggregate(fn.attend(z, src, dst), "sum").backward(ones)
        z.grad = src.grad = dst.grad = None

    measure(both)
"""
SAMPLING = """
nothing = np.empty((n, 0), np.float32)
loader = NeighborLoader(graph, nothing, None, train, fanouts=(5, 10, 15), batch_size=1000, sample_ahead=0)
measure(lambda: [batch.n_edges for batch in loader])
"""
RGCN = """
dst = np.repeat(np.arange(n), np.diff(given.indptr))
half = n // 2
src, dst = (np.array(ids) % half for ids in (given.indices, dst))      # two types of half the nodes
thirds = [slice(k, None, 3) for k in range(3)]
relations = {("paper", "cites", "paper"): thirds[0], ("author", "writes", "paper"): thirds[1],
             ("paper", "written", "author"): thirds[2]}
hetero = HeteroGraph.from_edges({name: (src[part], dst[part]) for name, part in relations.items()},
                                {"paper": half, "author": half})
papers = hetero.of("paper")
features = {name: x[place: place + half].copy() for name, place in (("paper", 0), ("author", half))}
model = models.RGCN({name: x.shape[1] for name in features}, classes, papers, hidden=128, rng=rng)
measure(Trainer(papers, model, features, labels[:half], train[:half], optimizer=adam, rng=rng).step)
"""
IMPORT = """
begin = time.perf_counter()
subprocess.run([sys.executable, "-c", "import sarlite"], check=True)
answer(time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)
"""

CASES = {
    "spmm": LIBRARY + SPMM,
    "attention": LIBRARY + ATTENTION,
    "sampling": LIBRARY + SAMPLING,
    "sage": LIBRARY + "epochs(sage())",
    "gat": LIBRARY + "epochs(gat())",
    "gcn": LIBRARY + "epochs(models.GCN(x.shape[1], classes, layers=2, hidden=256, rng=rng))",
    "rgcn": LIBRARY + RGCN,
    "minibatch-sage": LIBRARY + "minibatches(sage())",
    "minibatch-gat": LIBRARY + "minibatches(gat())",
    "sage-2": COMMAND + "epochs(*SAGE)",
    "gat-2": COMMAND + "epochs(*GAT)",
    "gcn-2": COMMAND + "epochs(*GCN)",
    "gat-2-oneshot": COMMAND + "epochs(*GAT, '--mode', 'oneshot')",
    "gcn-2-broadcast": COMMAND + "epochs(*GCN, '--mode', 'broadcast', '--prefetch', '1')",
    "rgcn-2": COMMAND + "epochs('--model', 'rgcn', '--hidden', '128', kind='relational')",
    "minibatch-sage-2": COMMAND + "epochs(*SAGE, *BATCHES)",
    "minibatch-gat-2": COMMAND + "epochs(*GAT, *BATCHES)",
    "minibatch-sage-2-hec": COMMAND + "epochs(*SAGE, *BATCHES, '--remote', 'hec')",
    "start": COMMAND + "first_epoch(1)",
    "start-2": COMMAND + "first_epoch(2)",
    "dry-run": COMMAND + "dry_run(1)",
    "dry-run-2": COMMAND + "dry_run(2)",
    "import": IMPORT,
}
"""The program of each case, behind `START`.

`-2`: on two ranks; in `sar` and on exact batches, where the name says nothing else.
"""


def measure(args, case_name, program_options, folder):
    """Run the program CASES[case_name] with both checkouts in turn; return a result row with each process's seconds and peak MiB."""
    runs = {"before": [], "after": []}
    for number in range(args.rounds):
        for side in ("before", "after") if number % 2 == 0 else ("after", "before"):
            runs[side].append(run(args, side, case_name, program_options, folder))
    seconds, memory = ({side: [one[key] for one in every] for side, every in runs.items()}
                       for key in ("seconds", "peak_mib"))
    ratios = [after / before for before, after in zip(seconds["before"], seconds["after"])]
    middle = {side: statistics.median(values) for side, values in memory.items()}
    harness.note(f"{case_name}: {statistics.median(ratios):.3f} of the time")
    return {"case": case_name, "seconds": seconds, "peak_mib": memory, "time": ratios,
            "memory": middle["after"] / max(middle["before"], 1)}


def run(args, side, case_name, program_options, folder):
    """Run the program CASES[case_name] by the Python of checkout `side`, "before" or "after"; return the JSON that it prints."""
    program = folder / f"{case_name}.py"
    program.write_text(START + CASES[case_name])
    words = [program, json.dumps({**program_options, "threads": args.threads, "seconds": args.seconds})]
    return harness.last_json(harness.python(*words, interpreter=getattr(args, side), env=environment(folder),
                                            cwd=folder))


def environment(folder):
    """Return the environment variables for the processes of both checkouts.

    Each interpreter imports the modules of its own tree; bytecode is stored in `folder`.
    """
    inherited = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")}
    return {**inherited, "PYTHONPYCACHEPREFIX": str(folder / "bytecode"), "OPENBLAS_NUM_THREADS": "1"}


def write_data(args, folder):
    """Write a homogeneous and a heterogeneous data set with the interpreter `--before`; return their paths as a dict."""
    sizes = f"nodes={args.nodes},edges={args.edges},features={args.features},classes=16"
    for kind, spec in (("data", f"rmat:{sizes},train=0.25"), ("relational", f"relational:{sizes},train=0.25")):
        words = ["-m", "sarlite.data", "convert", spec, kind]
        harness.python(*words, interpreter=args.before, env=environment(folder), cwd=folder)
    return {"data": str(folder / "data"), "relational": str(folder / "relational")}


def main(argv=None):
    args = arguments().parse_args(argv)
    unknown = [name for name in args.cases if name not in CASES]
    if unknown:
        raise SystemExit(f"{', '.join(unknown)}: not of {', '.join(CASES)}")
    rows, failed = [], []
    with harness.Scratch() as scratch:
        size = write_data(args, scratch.path)
        for side in ("before", "after"):  # this first run writes the bytecode
            run(args, side, "start", size, scratch.path)
        for name in args.cases or CASES:
            try:
                rows.append(measure(args, name, size, scratch.path))
            except SystemExit as error:  # only this case is left out
                failed.append(f"{name}: {error}")
                harness.note(failed[-1])
    title = f"{args.after} against {args.before}, {args.rounds} rounds: {args.nodes:,} nodes, {args.edges:,} edges"
    harness.report(title, rows, COLUMNS, args.json)
    if failed:
        raise SystemExit("\n\n".join(["failed:", *failed]))


COLUMNS = {
    "case": lambda r: r["case"],
    "before ms": lambda r: harness.spread(r["seconds"]["before"], 1e3, 1),
    "after ms": lambda r: harness.spread(r["seconds"]["after"], 1e3, 1),
    "time": lambda r: harness.spread(r["time"], digits=3),
    "before MiB": lambda r: f"{statistics.median(r['peak_mib']['before']):,.1f}",
    "after MiB": lambda r: f"{statistics.median(r['peak_mib']['after']):,.1f}",
    "memory": lambda r: f"{r['memory']:.3f}",
}


def arguments():
    parser = harness.parser(__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)} (default: all)")
    for side in ("before", "after"):
        parser.add_argument(f"--{side}", type=os.path.abspath, default=sys.executable, metavar="PYTHON",
                            help="the interpreter of a checkout's environment (default: this one)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0,
                        help="that the calls of a process take together, three at least")
    parser.add_argument("--threads", type=int, default=2, help="of one rank")
    parser.add_argument("--nodes", type=int, default=2**15)
    parser.add_argument("--edges", type=int, default=2_000_000)
    parser.add_argument("--features", type=int, default=128)
    return parser


if __name__ == "__main__":
    sys.exit(main())

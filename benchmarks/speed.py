"""Question 5: how long is an epoch on one rank with two threads, and where does it go?

A power-law graph of 100,000 nodes and 5 million directed edges; 3-layer GraphSAGE (100 -> 256 -> 256 -> 47) and 3-layer GAT
(4 heads x 32, twice, then one head x 47), both with batch norm, dropout 0.5 and Adam, float32. An epoch is one training step.
"""

import argparse
import json
import sys
import time
from collections import defaultdict
from functools import partial

import harness
import numpy as np

from sarlite import Graph, models, nn, optim, tape
from sarlite.graph.generate import power_law
from sarlite.profile import Memory
from sarlite.train.loop import Trainer, set_threads

N_FEATURES, N_CLASSES, FLOOR_SECONDS = 100, 47, 3.0
MODELS = {
    "sage": partial(models.SAGE, layers=3, hidden=256, dropout=0.5, batch_norm=True),
    "gat": partial(models.GAT, layers=3, hidden=32, heads=4, out_heads=1, dropout=0.5, attention_dropout=0.0, batch_norm=True),
}


class Clock:
    """Seconds in each primitive of the tape, forward and backward. Primitives do not call each other but in aggregations."""

    def __init__(self):
        self.seconds, self.calls, self.depth = defaultdict(float), defaultdict(int), 0

    def install(self):
        """Put a timer around every entry of the table of primitives."""
        for name, (forward, vjp) in list(tape.PRIMITIVES.items()):
            tape.PRIMITIVES[name] = type(tape.PRIMITIVES[name])(self.timed(name, "forward", forward), self.timed(name, "backward", vjp))

    def timed(self, name, way, function):
        def run(*args, **params):
            label = f"{name} ({type(params['operator']).__name__})" if "operator" in params else name
            return self.time((label, way), function, *args, **params)
        return run

    def time(self, place, function, /, *args, **params):
        """Call `function` and add its seconds to `place`, unless a timed one called it."""
        self.depth += 1
        begin = time.perf_counter()
        try:
            return function(*args, **params)
        finally:
            self.depth -= 1
            if not self.depth:
                self.seconds[place] += time.perf_counter() - begin
                self.calls[place] += 1


def make_trainer(graph, name, rng):
    """Return a Trainer on random features and labels; a tenth of the nodes train."""
    draw = np.random.default_rng(1)
    x = draw.standard_normal((graph.n_nodes, N_FEATURES), dtype=np.float32)
    labels = draw.integers(0, N_CLASSES, graph.n_nodes)
    model = MODELS[name](N_FEATURES, N_CLASSES, rng=rng)
    return Trainer(graph, model, x, labels, np.arange(0, graph.n_nodes, 10), optimizer=lambda flat: optim.Adam(flat, 0.01), rng=rng)


def measure(indptr, indices, name, epochs):
    """Return the row of one model: seconds of each epoch after one that warms up, and the peak memory above the start."""
    memory = Memory()
    trainer = make_trainer(Graph.from_csr(indptr, indices), name, nn.Random(0))
    times = []
    for epoch in range(epochs + 1):
        begin = time.perf_counter(), time.process_time()
        trainer.step(epoch)
        times.append((time.perf_counter() - begin[0], time.process_time() - begin[1]))
    seconds, cpu_seconds = zip(*times[1:])
    return {"model": name, "nodes": len(indptr) - 1, "edges": len(indices), "warm_up_seconds": times[0][0], "seconds": seconds,
            "cpu_seconds": cpu_seconds, "peak_bytes": memory.peak()}


def breakdown(indptr, indices, name, epochs):
    """Return rows of seconds an epoch by primitive, and what is outside of them."""
    trainer = make_trainer(Graph.from_csr(indptr, indices), name, nn.Random(0))
    trainer.step(0)
    clock = Clock()
    table = dict(tape.PRIMITIVES)
    clock.install()
    step, trainer.optimizer.step = trainer.optimizer.step, lambda *args: clock.time(("optimizer", "step"), step, *args)
    begin = time.perf_counter()
    for epoch in range(1, epochs + 1):
        trainer.step(epoch)
    total = time.perf_counter() - begin
    tape.PRIMITIVES.update(table)
    clock.seconds["(outside of primitives)", "-"] = total - sum(clock.seconds.values())
    return [{"model": name, "primitive": key[0], "way": key[1], "calls": clock.calls[key] / epochs, "seconds": value / epochs,
             "share": value / total} for key, value in sorted(clock.seconds.items(), key=lambda item: -item[1])]


def worker(args):
    """Measure one model in this process and print its rows."""
    set_threads(args.threads)
    graph = power_law(args.nodes, args.edges)
    row = measure(*graph, args.models[0], args.epochs)
    print(json.dumps([row, breakdown(*graph, args.models[0], 2) if args.profile else None]))


def main():
    args = arguments().parse_args()
    if args.worker:
        return worker(args)
    rows, breakdowns = [], []
    for name in args.models:  # a process each, so that no memory and no idle thread of one disturbs the next
        flags = ["--nodes", args.nodes, "--edges", args.edges, "--threads", args.threads, "--epochs", args.epochs]
        flags += ["--profile"] if args.profile else []
        row, found = harness.last_json(harness.python(__file__, "--worker", "--models", name, *flags))
        rows.append(row)
        breakdowns.append(found)
    columns = {
        "model": lambda r: r["model"],
        "nodes": lambda r: f"{r['nodes']:,}",
        "edges": lambda r: f"{r['edges']:,}",
        "s an epoch": lambda r: harness.spread(r["seconds"]),
        "target": lambda r: FLOOR_SECONDS,
        "processor s": lambda r: harness.spread(r["cpu_seconds"]),
        "peak MiB": lambda r: harness.mib(r["peak_bytes"]),
    }
    harness.report(f"One rank, {args.threads} threads: median (min..max) of {args.epochs} epochs", rows, columns, args.json)
    for name, found in zip(args.models, breakdowns):
        if found:
            show_breakdown(name, found)
    return None


def show_breakdown(name, rows):
    columns = {"primitive": lambda r: r["primitive"], "way": lambda r: r["way"], "calls": lambda r: r["calls"],
               "ms an epoch": lambda r: f"{1e3 * r['seconds']:.1f}", "%": lambda r: f"{100 * r['share']:.1f}"}
    harness.report(f"{name}: where an epoch goes", [row for row in rows if row["share"] > 0.002], columns)


def arguments():
    parser = harness.parser(__doc__)
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--edges", type=int, default=5_000_000)
    parser.add_argument("--models", type=harness.words, default=list(MODELS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--profile", action="store_true", help="print the time by primitive too")
    return parser


if __name__ == "__main__":
    sys.exit(main())

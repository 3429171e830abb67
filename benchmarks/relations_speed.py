"""Measure the time and the memory of an epoch of R-GCN on a graph of several node types compared with DGL.

Two layers, 128 features of every type, hidden 256, 64 classes of the first type, half of whose nodes train; float32,
Adam; ReLU and dropout 0.5 between. A layer is h_t' = W_t h_t + sum over relations r into t of the mean of W_r h. Graphs
have 4 relations and their reverses, as `graph.relational.mag` draws them. `mag` has 300,000 nodes and 8 million edges,
`mag/100` a hundredth of both.

sarlite computes in each layer the node types that the labels depend on: one type in the last layer, all types but
institutions in the first. DGL's `HeteroGraphConv` computes all types. Features never change, so sarlite keeps the first
layer's sums.

With `--batches N` a run is N minibatches of 1,000 seeds and fan-outs 10, 10 for each relation, with features gathered
from one table for each type; DGL's side is `relations_dgl.py`.

The allowed time is computed as in `epoch.py`. Flops are those of the products of roots and of relations: two passes in
the first layer, whose features have no gradient, and three in the second. A relation's rows are the fewer of its two
types'. Bytes are those of the features, of the first layer's sums and of the hidden rows, each time that they are written
or read. Gathered is a row of 64 values for each edge of the second layer, forward and backward.
"""

import os
import sys
from itertools import count
from pathlib import Path

import harness
import limits
import numpy as np
import peers
import sampling_speed

from sarlite import HeteroGraph, Trainer, nn, optim
from sarlite.minibatch import NeighborLoader
from sarlite.models import RGCN
from sarlite.models.rgcn import types_by_layer
from sarlite.operators.relation_sums import sets_of
from sarlite.profile import Memory
from sarlite.structure.relational_generator import TYPES, mag
from sarlite.train.loop import set_threads

ABLE = ("dgl",)
N_IN, HIDDEN, CLASSES, FANOUTS, BATCH = 128, 256, 64, (10, 10), 1000
SCRIPT = str(Path(__file__).with_name("relations_dgl.py"))
NODES, EDGES = 300_000, 8_000_000


def path(folder, name):
    """Return the .npz file of the graph `name`, "mag" or "mag/NUMBER"; generate the file if it does not exist."""
    base, _, part = name.partition("/")
    if base != "mag" or not (part.isdigit() or not part):
        raise SystemExit(f"graph {name!r} is not mag, with /NUMBER or without")
    file, part = Path(folder, name.replace("/", "_") + ".npz"), int(part or 1)
    if not file.exists():
        harness.note(f"drawing graph {name}")
        data = mag(NODES // part, EDGES // part // 2 * 2, classes=8, features=1)
        types = list(data.n_nodes)
        arrays = {f"{end}_{r}": ids.astype(np.int32) for r, pair in enumerate(data.edges.values())
                  for end, ids in zip(("src", "dst"), pair)}
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_suffix(f".{os.getpid()}.npz")
        np.savez(unfinished, names=np.array(list(data.edges)), n_nodes=np.array(list(data.n_nodes.values())),
                 relations=np.array([(types.index(source), types.index(to)) for source, _, to in data.edges]), **arrays)
        unfinished.replace(file)  # the file is renamed at the end, so it is either complete or missing
    return file


def load(file):
    """Return the HeteroGraph in a file, with its communication plans and transposes already computed.

    Peers also convert the graph to each of their formats before they are measured.
    """
    with np.load(file) as arrays:
        names = [tuple(map(str, name)) for name in arrays["names"]]
        graph = HeteroGraph.from_edges({name: (arrays[f"src_{r}"], arrays[f"dst_{r}"]) for r, name in enumerate(names)},
                                       dict(zip(TYPES, arrays["n_nodes"].tolist())))
    for types in types_by_layer(graph, next(iter(TYPES)), 2)[1:]:
        for plan in graph.prepare(graph.into(types)):
            for edges in sets_of(plan.local):
                edges.transpose  # noqa: B018 (cached at its first use)
    return graph


def make_trainer(graph, n_batches=0):
    draw, rng = np.random.default_rng(1), nn.Random(0)
    nodes = graph.of(next(iter(TYPES)))
    x = {name: draw.standard_normal((n, N_IN), dtype=np.float32) for name, n in graph.n_nodes.items()}
    labels, train = draw.integers(0, CLASSES, nodes.n_dst), np.flatnonzero(draw.random(nodes.n_dst) < 0.5)
    model, loader = RGCN(dict.fromkeys(x, N_IN), CLASSES, nodes, hidden=HIDDEN, rng=rng), None
    if n_batches:
        train = np.sort(draw.permutation(nodes.n_dst)[: n_batches * BATCH])
        loader = NeighborLoader(nodes, x, labels, train, fanouts=FANOUTS, batch_size=BATCH)
    return Trainer(nodes, model, x, labels, train, optimizer=lambda flat: optim.Adam(flat, 0.01), rng=rng, batches=loader)


def allowed(file, machine_rates):
    """Return a `limits.Allowed`: least and estimated ms of an epoch on the graph in `file` at the machine's rates, a `limits.Limits`."""
    with np.load(file) as arrays:
        counts = dict(zip(TYPES, arrays["n_nodes"].tolist()))
        relations = {tuple(map(str, name)): arrays[f"src_{r}"].size for r, name in enumerate(arrays["names"])}
    target = next(iter(TYPES))
    last = [r for r in relations if r[2] == target]
    types = {target, *(r[0] for r in last)}
    first = [r for r in relations if r[2] in types]
    rows = sum(counts[name] for name in types)
    flops = 4 * N_IN * HIDDEN * (rows + sum(min(counts[r[0]], counts[r[2]]) for r in first))
    flops += 6 * HIDDEN * CLASSES * (counts[target] + sum(min(counts[r[0]], counts[r[2]]) for r in last))
    sums = sum(counts[r[2]] for r in first)
    edges = sum(relations[r] for r in last)
    n_bytes = 4 * (2 * N_IN * (rows + sums) + 4 * HIDDEN * rows + 2 * CLASSES * counts[target] + 2 * edges)
    return limits.Allowed(machine_rates.least_ms(n_bytes, flops),
                          machine_rates.least_ms(0, flops) + machine_rates.gather_ms(2 * edges, 4 * CLASSES))


def worker(args):
    """Time epochs or minibatches of R-GCN in this process; print the times and peak memory as JSON."""
    set_threads(args.threads)
    (name,) = args.cases
    graph = load(path(args.graphs, name))
    trainer, epochs = make_trainer(graph, args.batches), count()
    memory = Memory()
    harness.print_measurement(harness.timed(lambda: trainer.epoch(next(epochs)), args.repeats), memory, batches=args.batches)
    for evaluation in graph.evaluations:
        harness.note(f"{evaluation.relation[1]}: {evaluation.n_in} to {evaluation.n_out}, weight {evaluation.name} "
                     f"({harness.mib(evaluation.inside_bytes)} MiB inside, {harness.mib(evaluation.first_bytes)} MiB first)")


def main(argv=None):
    args = arguments().parse_args(argv)
    if args.worker:
        return worker(args)
    others, rows = peers.find(args.peers, ABLE), []
    if args.batches:
        return batches(args, {name: [command[0], SCRIPT] for name, command in others.items()})
    limit = limits.measure(args.threads, args.gib)
    for name in args.cases:
        file, worker_command = path(args.graphs, name), [__file__, "--worker", "--graphs", args.graphs, "--cases", name]
        rows += peers.compare(args, {"case": "rgcn", "graph": name}, worker_command, ["rgcn", file], others, allowed(file, limit))
    harness.report(f"An epoch of R-GCN, {args.threads} threads", rows, harness.suite_columns(), args.json)
    return None


def batches(args, peer_commands):
    """Measure minibatches of R-GCN with sarlite and DGL in alternation, and print their table; `peer_commands` is {library: command}."""
    rows, counts = [], ["--repeats", args.repeats, "--batches", args.batches, "--threads", args.threads]
    for name in args.cases:
        file, row = path(args.graphs, name), {"case": "rgcn", "graph": name, "kind": "uniform", "threads": args.threads}
        command = [__file__, "--worker", "--graphs", args.graphs, "--cases", name, *counts]
        rows.append(sampling_speed.beside(row, args.rounds, command, [file, *counts], peer_commands))
    harness.report("R-GCN, 1,000 seeds a batch, time a batch", rows, sampling_speed.columns("peak_mib", "peer_peak_mib"), args.json)


def arguments():
    parser = harness.suite_parser(__doc__)
    parser.add_argument("--cases", type=harness.words, default=["mag"], metavar="LIST",
                        help="graphs: mag, or mag/NUMBER (default: mag)")
    parser.add_argument("--batches", type=int, default=0, metavar="N", help="measure N minibatches in place of an epoch")
    return parser


if __name__ == "__main__":
    sys.exit(main())

"""Compare the sent bytes of each phase of training with the bytes that the communication plan predicts.

GraphSAGE is case 1: a sum of remote rows, which backward does not need again. GAT is case 2: backward fetches the rows
again. Two training steps of two layers run under mpiexec. The prediction for a layer is the number of rows that each
rank needs of its peers (`graph.plan.n_halo`, summed over ranks) times the bytes of a row. It counts once for each phase
in which the rows, or their gradients, travel. GraphSAGE's first layer fetches the constant input in the first step, and
nothing after it. Its second layer's rows travel at the narrower of its two widths.
"""

import argparse
import json
import sys

import harness
import numpy as np

from sarlite import Graph, Tensor, models, nn
from sarlite.comm.launch import connect
from sarlite.structure.generate import sbm
from sarlite.tape import ops

N_FEATURES, HIDDEN, HEADS, N_CLASSES, ITEM, STEPS = 32, 64, 4, 8, 4, 2
PHASES = ("forward_fetch", "backward_fetch", "backward_push")
CASES = {"sage": 1, "gat": 2}
ROW_BYTES = {  # phases of each step
    "sage": ITEM * N_CLASSES,  # z = W h of the second layer
    "gat": ITEM * (HIDDEN + HEADS + N_CLASSES + 1),  # z, and one score a head
}
INPUT_BYTES = {"sage": ITEM * N_FEATURES, "gat": 0}  # only the first step has this phase


def make_model(name, n_in, rng):
    if name == "sage":
        return models.SAGE(n_in, N_CLASSES, layers=2, hidden=HIDDEN, batch_norm=False, rng=rng)
    return models.GAT(n_in, N_CLASSES, layers=2, hidden=HIDDEN // HEADS, heads=HEADS, rng=rng)


def predicted(model, mode, n_halo):
    """Return {phase: bytes} that a mode's plan predicts for a model with `n_halo` halo rows: forward and backward fetches, pushes.

    Rows are fetched once in each step, and gradients are pushed once. Mode `sar` fetches rows again in backward for a
    model whose gradients need them (case 2 of the SAR paper).

    A constant input is fetched once in the whole run.
    """
    once = n_halo * ROW_BYTES[model] * STEPS
    again = once if CASES[model] == 2 and mode == "sar" else 0
    return dict(zip(PHASES, (once + n_halo * INPUT_BYTES[model], again, once)))


def worker(args):
    """Train each model in each mode as one rank of mpiexec; rank 0 prints the result rows, counted and predicted bytes, as JSON."""
    comm, rows = connect(), []
    data = sbm(nodes=args.nodes, classes=N_CLASSES, features=N_FEATURES)
    graph = Graph.from_csr(data.indptr, data.indices)
    for model in args.models:
        for mode in args.modes:
            rows.append(measure(comm, graph, data, model, mode, args.partition))
    if comm.rank == 0:
        print(json.dumps(rows))


def measure(comm, graph, data, name, mode, partition):
    """Train model `name` in one mode; return the result row: bytes that all ranks sent in each phase, and predicted bytes. Collective."""
    graph = graph.shard(comm, partition, mode=mode)
    model = make_model(name, data.features.shape[1], nn.Random(0))
    ids = graph.node_ids
    x = Tensor(data.features[ids], constant=True)
    for _ in range(STEPS):
        ops.cross_entropy(model(graph, x), data.labels[ids], np.flatnonzero(data.train[ids]),
                          data.train.sum()).backward()
    counted = {"sent": dict(graph.profile.sent_bytes), "received": dict(graph.profile.received_bytes)}
    ranks = comm.allgather((counted, graph.plan.n_halo))
    n_halo = sum(rows for _, rows in ranks)
    sums = {way: {phase: sum(counts[way].get(phase, 0) for counts, _ in ranks) for phase in PHASES} for way in counted}
    return {"model": name, "case": CASES[name], "mode": mode, "ranks": comm.size, "halo_rows": n_halo,
            "row_bytes": ROW_BYTES[name],
            "predicted": predicted(name, mode, n_halo), **sums}


def main():
    args = arguments().parse_args()
    if args.worker:
        return worker(args)
    rows = []
    for n_ranks in args.ranks:
        flags = ["--models", ",".join(args.models), "--modes", ",".join(args.modes), "--partition", args.partition,
                 "--nodes", args.nodes]
        rows += harness.last_json(harness.mpiexec(n_ranks, __file__, "--worker", *flags))
    columns = harness.named("model", "case", "ranks", "mode", "halo_rows", "row_bytes")
    columns.update({phase: (lambda r, phase=phase: f"{r['sent'][phase]:,}") for phase in PHASES})
    columns["predicted"] = lambda r: " ".join(f"{r['predicted'][phase]:,}" for phase in PHASES)
    columns[""] = lambda r: "equal" if r["sent"] == r["received"] == r["predicted"] else "DIFFERS"
    columns["of sa"] = lambda r: sum(r["sent"].values()) / sum(predicted(r["model"], "sa", r["halo_rows"]).values())
    harness.report("Bytes of two training steps, all ranks together: sent, and predicted from the plan", rows, columns,
                   args.json)
    return None


def arguments():
    parser = harness.parser(__doc__)
    parser.add_argument("--ranks", type=harness.numbers, default=[2, 3, 4])
    parser.add_argument("--models", type=harness.words, default=list(CASES))
    parser.add_argument("--modes", type=harness.words, default=["sar", "sa", "oneshot"])
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--partition", default="metis")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())

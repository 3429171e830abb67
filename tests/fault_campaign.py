"""Inject faults on one rank at any message or collective: `python -m tests.fault_campaign --faults 2000 --seed 0`.

Ranks are threads. Fault number i depends on the seed and i alone. Every rank must end within seconds, with an error that
names the cause. If the graph exists already, all ranks then recover, and the next results must be those of a graph
without a fault, bit for bit.
"""

import argparse
import faulthandler
import threading
from collections import Counter

import numpy as np

from sarlite import Tensor, fn
from sarlite.comm import threads
from sarlite.errors import PeerError
from sarlite.minibatch import HEC, NeighborLoader, message_flow
from tests.helpers.comm.exchanges import EDGES, X, attend, in_ranges, shard
from tests.helpers.comm.failing_communicators import Fault, Faulty
from tests.helpers.graph import relational_graphs
from tests.helpers.graph.strategies import values

WEIGHTS = values(3, EDGES.n_edges) ** 2
SECONDS = 60  # seconds for one fault


def full_batch(graph):
    """Run kept sums and scales, case 1, case 2 and attention, forward and backward."""
    constant, x = Tensor(X[graph.node_ids], constant=True), Tensor(X[graph.node_ids], requires_grad=True)
    out = graph.aggregate(fn.copy_src(constant), "mean") + graph.aggregate(fn.copy_src(x), "sym")
    out = out + graph.aggregate(lambda s, d, e: s["x"].tanh(), "max", src={"x": x}) + attend(graph, x).reshape(-1, 4)
    (out * out).sum().backward()
    return out.data, x.grad


def by_columns(graph):
    x, weight = Tensor(X[graph.node_ids], requires_grad=True), Tensor(WEIGHTS[graph.edge_ids], constant=True)
    out = graph.aggregate(fn.mul_edge(x, weight), "sum") + graph.aggregate(fn.copy_src(x), "sym")
    out = out + attend(graph, x).reshape(-1, 4)
    (out * out).sum().backward()
    return out.data, x.grad


def relations(graph):
    x = {name: Tensor(relational_graphs.X[name][ids], requires_grad=True) for name, ids in graph.node_ids.items()}
    chosen = relational_graphs.CITES, relational_graphs.WRITES, relational_graphs.ABOUT
    out = graph.aggregate({r: fn.copy_src(x[r[0]]) for r in chosen}, "mean")["paper"]
    weight = Tensor(values(5, relational_graphs.N_IN, 3), requires_grad=True)
    out = out.sum(1) + graph.aggregate({r: fn.linear(x[r[0]], weight) for r in chosen}, "sum")["paper"].sum(1)
    (out * out).sum().backward()
    return out.data, weight.grad, x["paper"].grad


def layers(batch):
    """Run over the layers of one batch of chosen rows."""
    weight = Tensor(values(7, 4, 4), requires_grad=True)
    h = batch.x
    for graph in batch.layers(2):
        graph, h = graph.enter(h)
        h = graph.aggregate(fn.linear(h, weight), "mean") + graph.dst(h) @ weight
    (h * h).sum().backward()
    return h.data, weight.grad


def epoch(loader):
    """Run two epochs of minibatches, whose threads sample and push ahead."""
    weight = Tensor(values(7, 4, 4), requires_grad=True)
    for _ in range(2):
        for batch in loader:
            h = batch.x
            for graph in batch.layers(2):
                graph, h = graph.enter(h)
                h = graph.aggregate(fn.linear(h, weight), "sum")
            h.sum().backward()
    return (weight.grad,)


def flow(comm, **options):
    graph = shard(comm, **options)
    return message_flow(graph, np.arange(0, graph.n_dst, 3), 2, X[graph.node_ids])


def loader(comm, remote, **options):
    graph = shard(comm, **options)
    return NeighborLoader(graph, X[graph.node_ids], None, slice(None), fanouts=(3, 3), batch_size=20, remote=remote)


def recovers(holder):
    return holder.graphs[0].recover() if hasattr(holder, "graphs") else holder.recover()


STAGES = in_ranges()
KINDS = {  # name -> (make, use, numbers of ranks, options, True if it recovers)
    **{mode: (shard, full_batch, (2, 3), {"mode": mode}, True) for mode in ("sar", "sa", "oneshot", "broadcast")},
    "stages": (shard, full_batch, (2, 3), {"mode": STAGES}, True),
    "fetched gradients": (shard, full_batch, (2, 3), {"backward": "fetch"}, True),
    "relations": (lambda comm, **more: relational_graphs.make(comm, "random", **more), relations, (2, 3), {}, True),
    "message flow": (flow, layers, (2, 3), {}, True),
    "exact minibatches": (lambda comm, **more: loader(comm, "exact", **more), epoch, (2, 3), {}, False),
    "cached minibatches": (lambda comm, **more: loader(comm, HEC(lines=8, limit=4), **more), epoch, (2, 3), {}, False),
}


def attempt(seed, i):
    """Inject fault number i; return (kind, how it ended), and raise if a rank goes on wrongly."""
    dice = np.random.default_rng([seed, i])
    kind = str(dice.choice(list(KINDS)))
    make, use, sizes, options, recoverable = KINDS[kind]
    n_ranks, prefetch, share = int(dice.choice(sizes)), int(dice.integers(3)), dice.random()
    who, recover = int(dice.integers(n_ranks)), recoverable and dice.random() < 0.8
    alarm, errors = threading.Event(), {}

    def work(comm):
        faulty = Faulty(comm, alarm)
        holder = make(faulty, prefetch=prefetch, **options)
        n_made = faulty.points
        faulty.arm()
        expected = use(holder)
        comm.barrier()
        n_points = comm.bcast(faulty.points if recover else n_made + faulty.points, who)
        point = 1 + int(share * n_points) if comm.rank == who else None
        if not recover:
            faulty.arm(point)
            ends(lambda: (use(make(faulty, prefetch=prefetch, **options)), comm.barrier()))
        else:
            holder = make(faulty, prefetch=prefetch, **options)
            comm.barrier()
            faulty.arm(point)
            ends(lambda: use(holder), all_ranks=False)
            faulty.settle()
            recovers(holder)
            for value, right in zip(use(holder), expected, strict=True):
                np.testing.assert_array_equal(value, right)

    def ends(action, all_ranks=True):
        """Run `action`, which may succeed on a rank that has all it needs, or raise a fault or an error that tells of one."""
        try:
            action()
        except (Fault, PeerError) as error:
            errors[threading.current_thread().name] = str(error)
            if all_ranks:
                raise

    try:
        threads.run(n_ranks, work)
    except (Fault, PeerError):
        if recover or len(errors) != n_ranks:
            raise
    if not errors:
        raise AssertionError("no rank saw the fault")
    return kind, "recovered" if recover else "ended"


def campaign(n, seed, first=0):
    """Return the number of faults by kind and end."""
    counts = Counter()
    for i in range(first, first + n):
        try:
            counts[attempt(seed, i)] += 1
        except BaseException as error:
            raise AssertionError(f"fault {i} of seed {seed}: --seed {seed} --first {i} --faults 1") from error
    return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("faults", 2000), ("seed", 0), ("first", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    counts = Counter()
    for i in range(options.first, options.first + options.faults):
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        counts += campaign(1, options.seed, i)
    for (kind, end), n in sorted(counts.items()):
        print(f"{kind}: {n} {end}")
    print(f"{counts.total()} faults, 0 failures")


if __name__ == "__main__":
    main()

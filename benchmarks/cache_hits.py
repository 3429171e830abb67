"""Count the hits of the historical embedding cache by layer, and the rows that are pushed for these hits.

Minibatches of a graph in METIS parts, ranks as threads. The seeds are a tenth of the nodes, 1,000 a step of all ranks;
the fan-outs are 5, 10, 15. The model is a mean in each layer, since a hit does not depend on values.

Beside sarlite runs a simulation with dictionaries, which knows nothing of sarlite's cache, borders or choice of rows.
It takes from a run only the nodes of each batch's layers. Input features are cached like other rows, but never expire
(`features="cache"`). Rates are over the epochs after `--warm-up`.
"""

import sys
from collections import Counter, defaultdict
from typing import NamedTuple

import harness
import numpy as np
import seeded_graphs

from sarlite import Tensor, fn, no_grad
from sarlite.comm import threads
from sarlite.minibatch import HEC, NeighborLoader
from sarlite.structure.partition import partition
from sarlite.train.loop import set_threads

FANOUTS, PAPER = (5, 10, 15), (0.71, 0.47, 0.37)
UNLIMITED = 10**6  # as many as a cache's lines, and more than any graph here has nodes


class Settings(NamedTuple):
    """Settings of the historical embedding cache: the paper's ls (life), nc (limit) and d (delay), and the rule for pushing rows."""

    life: int
    limit: int
    delay: int
    push: str


class Nodes(NamedTuple):
    """Nodes in one layer of one rank's minibatch: ids of its own nodes (`local`), and of peers' nodes (`halo`), looked up in the cache.

    `local` are nodes whose rows the rank computes; `halo` are remote nodes that the rank looks up in its cache.
    """

    local: list[int]
    halo: list[int]


# ---- sarlite


def run(comm, whole, parts: np.ndarray, seeds: np.ndarray, settings: Settings, args):
    """Sample minibatches of `whole` from `seeds` on this rank; return (`Nodes` by epoch, step and layer; loader's counts by epoch).

    `parts` is the rank of each node. One more epoch follows, cut to the first steps that the last counted epoch looks
    ahead to.
    """
    set_threads(1)
    graph, indices = whole.shard(comm, parts), whole.in_edges().indices
    x = np.ones((graph.n_dst, 1), np.float32)
    remote = HEC(life=settings.life, limit=settings.limit, delay=settings.delay, push=settings.push, features="cache")
    loader = NeighborLoader(graph, x, None, np.isin(graph.node_ids, seeds), fanouts=FANOUTS,
                            batch_size=args.batch_size, remote=remote)
    epochs, counts = [], []
    for epoch in range(args.epochs + 1):
        steps = []
        for batch in loader:
            layers = batch.layers(len(FANOUTS))
            steps.append([nodes(g, comm.rank, parts, indices) for g in layers])
            means(layers, batch.x)
            if epoch == args.epochs and len(steps) == args.delay:
                break
        epochs.append(steps)
        counts.append({name: list(loader.counts[name]) for name in ("lookups", "hits", "rows_pushed")})
    loader.drain()
    return epochs, counts[: args.epochs]


def nodes(g, rank, parts, indices):
    """Return the `Nodes` of a minibatch layer `g`; `parts` is the MPI rank of each node, `indices` the source of each edge of the graph.

    The layer's `enter` must not have been called yet.
    """
    sources = np.unique(indices[g.edge_ids])
    return Nodes(g.src_ids[parts[g.src_ids] == rank].tolist(), sources[parts[sources] != rank].tolist())


def means(layers, h):
    with no_grad():
        for g in layers:
            g, h = g.enter(h)
            h = g.aggregate(fn.copy_src(h if isinstance(h, Tensor) else Tensor(h)), "mean")


# ---- the simulation


class Simulation:
    """Simulation of all ranks' embedding caches, with unlimited numbers of cached rows, for comparison with the real caches.

    `caches` holds for each rank and layer a dictionary from a node to the step in which the node's row was computed.
    """

    def __init__(self, indptr, indices, parts, n_ranks, settings, seed=0):
        self.settings, self.parts, self.ranks = settings, parts.tolist(), range(n_ranks)
        self.rng = np.random.default_rng(seed)
        self.degrees = np.diff(indptr)
        readers = np.repeat(parts, self.degrees)
        cut = parts[indices] != readers
        self.peers = defaultdict(list)  # other ranks that read a node
        for pair in np.unique(indices[cut].astype(np.int64) * n_ranks + readers[cut]).tolist():
            self.peers[pair // n_ranks].append(pair % n_ranks)
        self.caches, self.newest, self.sent = (defaultdict(dict) for _ in range(3))
        self.lookups, self.hits, self.pushed = Counter(), Counter(), Counter()

    def epoch(self, first, batches, following):
        """Simulate an epoch, whose first step is `first`, from batches[rank][step][layer]; `following` are the next epoch's batches.

        `following` are the batches of the next epoch, in the same form.
        """
        n_steps, under_way = len(batches[0]), {}
        for k in range(n_steps):
            later_batch = [(steps + more)[k + self.settings.delay] for steps, more in zip(batches, following)]
            for layer in range(len(batches[0][k])):
                under_way[first + k, layer] = self.push(layer, first + k, [steps[k][layer] for steps in batches], later_batch)
                self.arrive(layer, under_way.pop((first + k - self.settings.delay, layer), ()))
                self.look_up(layer, first + k, [steps[k][layer] for steps in batches])
        for (_, layer), messages in sorted(under_way.items()):
            self.arrive(layer, messages)

    def push(self, layer, step, layer_nodes, later_layers):
        """Count and return a layer's pushed messages (receiving rank, node, step that computed the row); `layer_nodes`: Nodes by rank.

        `layer_nodes` has this layer's `Nodes` of each rank, `later_layers` all layers of each rank's batch `delay` steps
        later.
        """
        by_paper = self.settings.push == "paper"
        messages = self.paper_messages(layer_nodes, step) if by_paper else self.demand_messages(layer, step, layer_nodes, later_layers)
        self.pushed[layer] += len(messages)
        return messages

    def paper_messages(self, layer_nodes, step):
        """Return [(receiving rank, node, step)] by the paper's rule, at most `limit` rows per peer; `layer_nodes` are the Nodes by rank.

        For each peer: of this step's rows that the peer reads, at most `limit`, drawn with weights (in-degree + 1).
        """
        messages = []
        for rank in self.ranks:
            read = defaultdict(list)
            for node in layer_nodes[rank].local:
                for peer in self.peers.get(node, ()):
                    read[peer].append(node)
            for peer, rows in read.items():
                if len(rows) > self.settings.limit:
                    weights = self.degrees[rows] + 1.0
                    rows = self.rng.choice(rows, self.settings.limit, replace=False, p=weights / weights.sum()).tolist()
                messages += [(peer, node, step) for node in rows]
        return messages

    def demand_messages(self, layer, step, layer_nodes, later_layers):
        """Return [(receiving rank, node, step that computed the row)] of a layer: the rows that the peers' `later_layers` will look up.

        The rows are those that the batches `delay` steps later look up, in their newest version. A row is left out if it is too
        old or if the peer has that version already. Features never expire and count as computed in step 0.
        """
        for rank in self.ranks:
            self.newest[layer].update((node, step) for node in layer_nodes[rank].local)
        messages = []
        for peer, layers in zip(self.ranks, later_layers):
            for node in layers[layer].halo:
                row_step = 0 if layer == 0 else self.newest[layer].get(node)
                young = row_step is not None and (layer == 0 or step - row_step <= self.settings.life)
                if young and self.sent[peer, layer].get(node) != row_step:
                    self.sent[peer, layer][node] = row_step
                    messages.append((peer, node, row_step))
        return messages

    def arrive(self, layer, messages):
        for peer, node, row_step in messages:
            self.caches[peer, layer][node] = row_step

    def look_up(self, layer, step, batch):
        oldest = step - self.settings.delay - self.settings.life
        for rank in self.ranks:
            cache = self.caches[rank, layer]
            self.lookups[layer] += len(batch[rank].halo)
            self.hits[layer] += sum(node in cache and (layer == 0 or cache[node] >= oldest)
                                    for node in batch[rank].halo)


def simulate(whole, parts, settings: Settings, recorded: list, warm_up: int):
    """Simulate the caches on the batches that `run` recorded; return {count's name: Counter by layer} after `warm_up` epochs."""
    edges = whole.in_edges()
    simulation, step = Simulation(edges.indptr, edges.indices, parts, len(recorded), settings), 0
    for epoch in range(len(recorded[0][1])):
        if epoch == warm_up:
            for counts in (simulation.lookups, simulation.hits, simulation.pushed):
                counts.clear()
        batches, following = ([sum(epochs[start:stop], []) for epochs, _ in recorded]
                              for start, stop in ((epoch, epoch + 1), (epoch + 1, epoch + 1 + settings.delay)))
        simulation.epoch(step, batches, following)
        step += len(batches[0])
    return {"lookups": simulation.lookups, "hits": simulation.hits, "rows_pushed": simulation.pushed}


# ---- both


def counted(run_results, name, layer, warm_up):
    """Return the sum over ranks of a layer's count `name`, such as "hits", in `run_results`, results of `run`, after `warm_up` epochs."""
    return sum(counts[-1][name][layer] - (counts[warm_up - 1][name][layer] if warm_up else 0) for _, counts in run_results)


def measure(args, whole, parts, seeds, n_ranks, settings: Settings):
    """Run and simulate training on N ranks, on the graph `whole` divided by `parts`; return the result rows, one per layer."""
    harness.note(f"{n_ranks} ranks, {settings}")
    recorded = threads.run(n_ranks, run, whole, parts, seeds, settings, args)
    simulated = simulate(whole, parts, settings, recorded, args.warm_up)
    steps = sum(len(steps) for steps in recorded[0][0][args.warm_up : args.epochs]) * n_ranks
    rows = []
    for layer in simulated["lookups"]:
        lookups, hits, pushed = (counted(recorded, name, layer, args.warm_up)
                                 for name in ("lookups", "hits", "rows_pushed"))
        rows.append({"graph": args.graph, "ranks": n_ranks, **settings._asdict(), "layer": layer,
                     "lookups": lookups / steps,
                     "simulated_lookups": simulated["lookups"][layer] / steps, "hit_rate": hits / max(lookups, 1),
                     "simulated_hit_rate": simulated["hits"][layer] / max(simulated["lookups"][layer], 1),
                     "rows_pushed": pushed / steps, "simulated_rows_pushed": simulated["rows_pushed"][layer] / steps})
    return rows


def metis_parts(folder, name, whole, n_ranks, train):
    """Return METIS's part of each node, (n_nodes,) int32, read from `folder` if stored there, else computed with balanced `train` nodes."""
    file = seeded_graphs.path(folder, name).with_name(f"{name.replace('/', '_')}-metis-{n_ranks}.npy")
    if not file.exists():
        harness.note(f"{name}: METIS, {n_ranks} parts")
        edges = whole.in_edges()
        np.save(file, partition(edges.indptr, edges.indices, n_ranks, "metis", train_mask=train))
    return np.load(file)


def by_settings(rows):
    """Group the rows of a table by settings; return a list of groups, each with the rows of all layers for one choice."""
    groups = defaultdict(list)
    for row in rows:
        groups[row["graph"], row["ranks"], row["push"], row["life"], row["limit"]].append(row)
    return list(groups.values())


def percent(key):
    return lambda layers: " / ".join(f"{100 * row[key]:.1f}" for row in layers)


def widest_gap(row):
    return abs(row["hit_rate"] - row["simulated_hit_rate"])


COLUMNS = {
    "graph": lambda layers: layers[0]["graph"],
    "N": lambda layers: layers[0]["ranks"],
    "push": lambda layers: layers[0]["push"],
    "ls": lambda layers: layers[0]["life"],
    "nc": lambda layers: "unlimited" if layers[0]["limit"] == UNLIMITED else layers[0]["limit"],
    "hits, % by layer": percent("hit_rate"),
    "simulated": percent("simulated_hit_rate"),
    "apart, points": lambda layers: f"{100 * max(map(widest_gap, layers)):.2f}",
    "rows pushed a step and rank": lambda layers: " + ".join(f"{row['rows_pushed']:.0f}" for row in layers),
    "sum": lambda layers: f"{sum(row['rows_pushed'] for row in layers):.0f}",
    "simulated sum": lambda layers: f"{sum(row['simulated_rows_pushed'] for row in layers):.0f}",
}


def main(argv=None):
    args = arguments().parse_args(argv)
    whole = seeded_graphs.whole(args.graphs, args.graph)
    seeds = np.random.default_rng(0).permutation(whole.n_dst)[: whole.n_dst // 10]
    train, rows = np.isin(np.arange(whole.n_dst), seeds), []
    for n_ranks in args.ranks:
        parts = metis_parts(args.graphs, args.graph, whole, n_ranks, train)
        for push in args.pushes:
            for life in args.lives:
                for limit in args.limits:
                    rows += measure(args, whole, parts, seeds, n_ranks, Settings(life, limit, args.delay, push))
    paper = " / ".join(f"{100 * rate:.0f}" for rate in PAPER)
    title = f"Hit rates of epochs {args.warm_up + 1} to {args.epochs}"
    title += f"; the paper's {paper} % are of papers100M on 64 ranks, ls 2, nc 2000"
    harness.report(title, by_settings(rows), COLUMNS)
    if args.json:
        args.json.write_text(harness.json.dumps(rows, indent=1) + "\n")


def arguments():
    parser = harness.parser(__doc__)
    harness.graphs_option(parser)
    parser.add_argument("--graph", default="S")
    parser.add_argument("--ranks", type=harness.numbers, default=[2, 4, 8], metavar="LIST")
    parser.add_argument("--lives", type=harness.numbers, default=[2, 10], metavar="LIST")
    parser.add_argument("--limits", type=harness.numbers, default=[2000, UNLIMITED], metavar="LIST")
    parser.add_argument("--pushes", type=harness.words, default=["paper"], metavar="LIST", help="of paper, demand")
    parser.add_argument("--delay", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=1000, help="seeds a step of all ranks")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--warm-up", type=int, default=2, help="epochs that do not count")
    return parser


if __name__ == "__main__":
    sys.exit(main())

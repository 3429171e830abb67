"""The sizes of a part of a run, and a part in small with the same proportions, for a trial (`trial`)."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from sarlite.data.part import Rows
from sarlite.graph.edges import add_self_loops
from sarlite.minibatch import HEC
from sarlite.sar.cost import Exchanged
from sarlite.sar.graph.graph import Graph
from sarlite.sar.graph.hetero import HeteroGraph
from sarlite.sar.graph.node_type import NodeType
from sarlite.train.load import Shard, widths
from sarlite.train.mirror import Mirror
from sarlite.train.sampled import Layers
from sarlite.train.settings import Settings

_SCALED = "backward_rows", "range_rows"  # of modes: the least rows of what they cut peers' rows into


class Sizes(NamedTuple):
    """A run, and the sizes of one part of it.

    Attributes
    ----------
    run : Settings
    make : callable (comm, run, part) -> Trainer
        As the run makes its own.
    part : Shard
        The part; or one without rows, for what it says of the data.
    rank, size : int
    n_rows : int
        Of the labelled type.
    splits : tuple of int
        Rows for training, validation and testing.
    exchanged : dict of Exchanged
        Of all edges "edges", by rows; of a relational graph by the relations that one fetch serves.
    reverse : Exchanged, or None
        Of the reversed edges, where these are others.
    there_bytes : int
        What the process has when the part is loaded, but for features.
    load_bytes : int
        The most that loading takes.
    batches, scored : Layers, or None
        Of minibatches and message-flow graphs; and of those that an evaluation takes.
    """

    run: Settings
    make: Callable[..., Any]
    part: Shard
    rank: int
    size: int
    n_rows: int
    splits: tuple[int, int, int]
    exchanged: Mapping[Any, Exchanged]
    reverse: Exchanged | None = None
    there_bytes: int = 0
    load_bytes: int = 0
    batches: Layers | None = None
    scored: Layers | None = None

    @property
    def relational(self) -> bool:
        """Whether the graph has several node types."""
        return isinstance(self.part.graph, NodeType)

    def batches_of(self, segment: str) -> Layers | None:
        """Return the batches of a part of a run, of `SEGMENTS`, where it has some."""
        if segment in ("start", "smoothing"):
            return None
        return self.scored if "evaluation" in segment else self.batches

    def times_smaller(self, trial_rows: int) -> float:
        """Return how many times smaller a part is that has so many rows, peers' too, of which a quarter are its own."""
        flows = [own for each in (self.batches, self.scored) if each and each.stay for own in each.layers[0]]
        n_halo = sum(own.n_halo for own in (*self.exchanged.values(), *flows))
        n_rows = sum(own.n_src for own in self.exchanged.values()) if self.relational else self.n_rows
        return max(1.0, min(n_rows + n_halo, 4 * n_rows) / trial_rows)

    def by_part(self) -> tuple[list[int], list[int]]:
        """Return the edges, and the rows that come, by the part of the sources."""
        found = self.exchanged["edges"]
        needed = [*found.n_needed]
        needed[self.rank] = 0
        return list(found.n_edges[0]), needed


def options(run: Settings, k: float) -> Settings:
    """Return the options of a trial `k` times smaller: one step an epoch, no file, and no thread that is ahead, by how
    much nobody could say.
    """
    batches = run.batches
    if batches and isinstance(batches.remote, HEC):
        fewer = {name: max(1, round(getattr(batches.remote, name) / k)) for name in ("lines", "limit")}
        batches = batches._replace(remote=dataclasses.replace(batches.remote, **fewer))
    return run._replace(graph=run.graph._replace(prefetch=0), training=run.training._replace(propagated=None),
                        batches=batches and batches._replace(size=1 << 30, sample_ahead=0))


def graph(comm: Mirror, run: Settings, sizes: Sizes, k: float) -> Any:
    """Return the graph, or of a relational one the `NodeType` that has labels, of a part `k` times smaller."""
    mode, there = run.graph.made_mode, sizes.part.graph
    cuts = {name: max(1, round(getattr(mode, name) / k)) for name in _SCALED if hasattr(mode, name)}
    asked = run.graph._replace(mode=dataclasses.replace(mode, **cuts))
    if sizes.relational:
        return _relational(comm, asked, sizes, k)
    m, loops = max(_less(sizes.n_rows, k), sum(_splits(sizes, k))), there.added_loops is not None
    n_edges, needed = (_shrunk(own, k) for own in sizes.by_part())
    if loops:
        n_edges[comm.rank] = max(0, n_edges[comm.rank] - m)
    indptr, indices = _in_edges(comm.rank, m, m, n_edges, needed)
    added = None
    if loops:
        indptr, indices, added = add_self_loops(indptr, indices, comm.rank * m)
    made = Graph.from_part(comm, indptr, indices, added_loops=added, **asked._replace(backward="push")._asdict())
    if made.comm.size > 1 and asked.reverses:  # peers need of this rank what it needs of them, so by a like plan
        reverse = made.schedule._replace(over="reverse")
        made.schedule = made.schedule._replace(reverse=reverse, reverses_attention=asked.reverses_attention)
    for block in made.plan.blocks:
        block.piece_edges = max(1, round(block.piece_edges / k))
    values = [None if a is None else np.ones((made.n_edges, *a.shape[1:]), a.dtype)
              for a in (there.edge_weight, there.edge_features)]
    return made if values[0] is values[1] else made.with_edge_values(*values)


def part(nodes: Any, run: Settings, sizes: Sizes, k: float) -> Shard:
    """Return the part of such a graph, with rows of ones."""
    of, n_rows, n_in = sizes.part, nodes.n_dst, widths(sizes.part.rows)
    if sizes.relational:
        own = nodes.graph.node_ids
        x: Any = {name: np.ones((len(own[name]), n), run.model.dtype) for name, n in n_in.items()}
    else:
        x = np.ones((n_rows, n_in), run.model.dtype)
    masks, start = [], 0
    for n in _splits(sizes, k):
        masks.append((np.arange(n_rows) - start) % n_rows < n)
        start += n
    classes, labels = np.arange(max(of.n_classes, 1) if of.task == "classify" else 2), of.rows.labels
    labels = np.resize(classes, (n_rows, *labels.shape[1:])).astype(labels.dtype)
    return of._replace(graph=nodes, rows=Rows(x, labels, *masks))


def _splits(sizes, k):
    """The splits, k times smaller, with so many training rows that some show their labels and some do not."""
    train, *others = (_less(n, k) for n in sizes.splits)
    return [max(train, 8), *others]


def _less(n, k):
    """A number of rows or edges, k times less, but not none of some."""
    return max(1, round(n / k)) if n else 0


def _shrunk(numbers, k):
    """The numbers, k times less, such that their sums are, too; of some there is one at least."""
    found = np.diff(np.rint(np.cumsum([0, *numbers]) / k)).astype(int)
    return np.maximum(found, np.minimum(numbers, 1)).tolist()


def _in_edges(rank, n_dst, n_src, n_edges, needed):
    """(indptr, indices) of `n_edges` edges from each part, of `n_src` rows each, of which `needed` are sources."""
    dst, src = [], []
    for q, (n, wanted) in enumerate(zip(n_edges, needed)):
        wanted = n_src if q == rank else min(max(wanted, 1), n_src)
        rows = np.arange(wanted) * n_src // wanted
        places = np.arange(n)
        dst.append(places * n_dst // max(n, 1))
        src.append(q * n_src + rows[5 * places % wanted if wanted % 5 else places % wanted])
    dst, src = np.concatenate(dst), np.concatenate(src)
    order = np.lexsort((src, dst))
    return np.searchsorted(dst[order], np.arange(n_dst + 1)).astype(np.int64), src[order]


class _Relational(HeteroGraph):
    """A graph in small, of which an exchange says how many rows the real graph's ranks fetch."""

    real: HeteroGraph

    def _made(self, chosen):
        graphs, _ = super()._made(chosen)
        for graph in graphs:
            graph.schedule = graph.schedule._replace(over=chosen)
        _, n_halo = self.real.exchanges.get(chosen, (None, 0))
        return graphs, n_halo


def _relational(comm, asked, sizes, k):
    real = sizes.part.graph.graph
    own = {name: max(1, _less(len(ids), k)) for name, ids in real.node_ids.items()}  # peers' rows are as many
    edges = {}
    for relation, degrees in real.in_degrees.items():
        n_edges, needed = [_less(int(degrees.sum()), k)] + [0] * (comm.size - 1), [0] * comm.size
        for chosen, found in sizes.exchanged.items():
            if relation in chosen:
                n_edges, needed = _shrunk(found.n_edges[chosen.index(relation)], k), _shrunk(found.n_needed, k)
                break
        edges[relation] = _in_edges(sizes.rank, own[relation[2]], own[relation[0]], n_edges, needed)
    ids = {name: np.arange(n) for name, n in own.items()}
    made = _Relational.from_part(comm, edges, ids, mode=asked.mode, prefetch=asked.prefetch, rows=asked.rows)
    made.n_nodes, made.n_edges, made.real = real.n_nodes, real.n_edges, real  # by which weights are evaluated
    for chosen in sizes.exchanged:
        made.exchange(chosen)
    return made.of(sizes.part.graph.node_type)

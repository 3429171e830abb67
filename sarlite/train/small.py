"""Tiny parts with a part's proportions, for trials (`trial`)."""

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sarlite.data.part import Rows
from sarlite.graph.edges import add_self_loops
from sarlite.sar.cost import Exchanged, expected
from sarlite.sar.graph.graph import Graph
from sarlite.sar.graph.hetero import HeteroGraph
from sarlite.train.load import Shard
from sarlite.train.sampled import Sampled
from sarlite.train.settings import graph_of
from sarlite.train.trial import Mirror
from sarlite.types import Array

_SCALED = "backward_rows", "range_rows"  # of modes: the least rows of what they cut peers' rows into


class Facts(NamedTuple):
    """What a data set says of a model's shapes.

    Attributes
    ----------
    n_features : int, or dict of str to int
        Of a relational graph by node type, where there are features.
    n_classes : int
    task : str
    labels : (0, ...) array
        No row of them, for their dtype and what stands behind the rows.
    loops : bool
        Whether self loops were added.
    edge_values : two of (0, ...) array, or None
        No row of the edges' weights and features; None where there are none.
    relations : Relations, or None
        Of a relational graph.
    """

    n_features: Any
    n_classes: int
    task: str = "classify"
    labels: Array = np.empty(0, np.int64)
    loops: bool = False
    edge_values: tuple[Array | None, ...] = (None, None)
    relations: Any = None

    @property
    def edge_bytes(self) -> int:
        """What the values of one edge take."""
        return sum(a.itemsize * int(np.prod(a.shape[1:])) for a in self.edge_values if a is not None)

    def targets(self, n_rows: int, splits: Sequence[int]) -> tuple[Array, ...]:
        """Return labels of so many rows, and the three splits, of so many."""
        masks, start = [], 0
        for n in splits:
            masks.append((np.arange(n_rows) - start) % n_rows < n)
            start += n
        labels = np.resize(np.arange(max(self.n_classes, 1) if self.task == "classify" else 2), (n_rows, *self.labels.shape[1:]))
        return labels.astype(self.labels.dtype), *masks


class Relations(NamedTuple):
    """A relational graph.

    Attributes
    ----------
    target : str
        The node type that has labels.
    n_nodes, n_edges : dict
        Of all ranks, by type and by relation.
    own_nodes, own_edges : dict
        Of this rank.
    n_halo : dict of int
        Rows that all ranks fetch, by the relations out of a type that one fetch serves.
    """

    target: str
    n_nodes: dict[str, int]
    n_edges: dict[tuple[str, str, str], int]
    own_nodes: dict[str, int]
    own_edges: dict[tuple[str, str, str], int]
    n_halo: dict[Any, int] = {}


class Sizes(NamedTuple):
    """The sizes of one part of a run.

    Attributes
    ----------
    rank, size : int
    n_rows : int
        Of the labelled type.
    splits : tuple of int
        Rows for training, validation and testing.
    exchanged : dict of Exchanged
        Of all edges "edges", by rows, but where the graph is on a grid of ranks of the group's rows; of a relational graph by the
        relations that one fetch serves; and of message-flow graphs by name and layer.
    group : dict of (int, int)
        "rows" and "edges" of this rank and of the ranks that share its rows; without a grid of all ranks.
    laid_out : int
        Ranks that share rows.
    layer_sizes : dict of (kind, layer) to (n_src, n_dst, n_edges)
        Of all ranks, of message-flow graphs and of the first batch.
    there_bytes : int
        What the process has when the part is loaded, but for features.
    load_bytes : int
        The most that loading takes.
    batches, scored : Sampled, or None
        Of minibatches; and of a sampled evaluation's.
    """

    rank: int
    size: int
    n_rows: int
    splits: tuple[int, int, int]
    exchanged: Mapping[Any, Exchanged]
    group: Mapping[str, tuple[int, int]] = {}
    laid_out: int = 1
    layer_sizes: Mapping[Any, tuple[int, int, int]] = {}
    there_bytes: int = 0
    load_bytes: int = 0
    batches: Sampled | None = None
    scored: Sampled | None = None

    def small_splits(self, k: float) -> list[int]:
        """Return the splits of a part k times smaller, with so many training rows that some show their labels and some do not."""
        train, *others = (_less(n, k) for n in self.splits)
        return [max(train, 8), *others]

    def by_part(self) -> tuple[list[int], list[int]]:
        """Return the edges, and the rows that come, by the part of the sources; of a rank of a group its share of the group's."""
        found, n = self.exchanged["edges"], self.laid_out
        needs = [*found.n_needed]
        needs[self.rank // n] = found.n_src if n > 1 else 0
        return [rows // n**2 for rows in found.n_edges[0] for _ in range(n)], [rows // n for rows in needs for _ in range(n)]

    def of_group(self, columns: int) -> dict[str, Exchanged]:
        """Return what the group of `columns` ranks exchanges over its edges; of a part by rows, where the group is all ranks."""
        if self.laid_out > 1:
            return {"edges": self.exchanged["edges"]}
        (_, n_rows), (_, n_edges) = self.group["rows"], self.group["edges"]
        return {"edges": expected(n_rows, n_edges, 1)}


def graph(comm: Mirror, config: argparse.Namespace, facts: Facts, sizes: Sizes, mode: Any, k: float) -> Any:
    """Return the graph, or of a relational one the `NodeType` that has labels, of a part `k` times smaller."""
    cuts = {name: max(1, round(getattr(mode, name) / k)) for name in _SCALED if hasattr(mode, name)}
    mode = dataclasses.replace(mode, **cuts)
    if facts.relations is not None:
        return _relational(comm, config, facts.relations, sizes, mode, k)
    m, (n_edges, needs) = max(_less(sizes.n_rows, k), sum(sizes.small_splits(k))), (_shrunk(own, k) for own in sizes.by_part())
    if facts.loops:
        n_edges[comm.rank] = max(0, n_edges[comm.rank] - m)
    indptr, indices = _in_edges(comm.rank, m, m, n_edges, needs)
    added = None
    if facts.loops:
        indptr, indices, added = add_self_loops(indptr, indices, comm.rank * m)
    made = Graph.from_part(comm, indptr, indices, added_loops=added, mode=mode, prefetch=config.prefetch, backward="push",
                           columns=config.columns, rows=config.rows)
    _reverse(made if made.grid is None else made.grid.graph, graph_of(config)._replace(mode=mode))
    values = [None if a is None else np.ones((made.n_edges, *a.shape[1:]), a.dtype) for a in facts.edge_values]
    made = made if values[0] is values[1] else made.with_edge_values(*values)
    for block in (made if made.grid is None else made.grid.graph).plan.blocks:
        block.piece_edges = max(1, round(block.piece_edges / k))
    return made


def _reverse(graph, options):
    """Let gradients go over reversed edges, where `options` say so: peers need of this rank what it needs of them, so by a like plan."""
    if graph.comm.size > 1 and options.reverses:
        made = graph.schedule
        turned = made._replace(plan=made.plan._replace())
        graph._schedule = made._replace(reverse=turned, reverses_attention=options.reverses_attention)


def part(nodes: Any, config: argparse.Namespace, facts: Facts, sizes: Sizes, k: float) -> Shard:
    """Return the part of such a graph, with rows of ones."""
    n_rows, splits = nodes.n_dst, sizes.small_splits(k)
    if facts.relations is None:
        rows: Any = Rows(np.ones((n_rows, facts.n_features), config.dtype), *facts.targets(n_rows, splits))
    else:
        own = nodes.graph.node_ids
        x = {name: np.ones((len(own[name]), n), config.dtype) for name, n in facts.n_features.items()}
        rows = Rows(x, *facts.targets(n_rows, splits))
    return Shard(nodes, rows, facts.n_classes, {}, None, {}, facts.task)  # type: ignore[arg-type]


def _less(n, k):
    """A number of rows or edges, k times less, but not none of some."""
    return max(1, round(n / k)) if n else 0


def _shrunk(numbers, k):
    """The numbers, k times less, such that their sums are, too; of some there is one at least."""
    found = np.diff(np.rint(np.cumsum([0, *numbers]) / k)).astype(int)
    return np.maximum(found, np.minimum(numbers, 1)).tolist()


def _in_edges(rank, n_dst, n_src, n_edges, needs):
    """(indptr, indices) of `n_edges` edges from each part, of `n_src` rows each; of each other part `needs` rows are sources."""
    dst, src = [], []
    for q, (n, wanted) in enumerate(zip(n_edges, needs)):
        wanted = n_src if q == rank else min(max(wanted, 1), n_src)
        rows = np.arange(wanted) * n_src // wanted
        places = np.arange(n)
        dst.append(places * n_dst // max(n, 1))
        src.append(q * n_src + rows[5 * places % wanted if wanted % 5 else places % wanted])
    dst, src = np.concatenate(dst), np.concatenate(src)
    order = np.lexsort((src, dst))
    return np.searchsorted(dst[order], np.arange(n_dst + 1)).astype(np.int64), src[order]


class _Relational(HeteroGraph):
    """A tiny graph that chooses how weights are evaluated by the counts of the real one."""

    told: Relations

    def _made(self, chosen):
        made, _ = super()._made(chosen)
        return made, self.told.n_halo.get(chosen, 0)


def _relational(comm, config, relations, sizes, mode, k):
    own = {name: _less(n, k) for name, n in relations.own_nodes.items()}
    edges = {}
    for relation in relations.n_edges:
        chosen, found = next(((chosen, each) for chosen, each in sizes.exchanged.items() if relation in chosen), (None, None))
        n_edges, needs = [_less(relations.own_edges[relation], k)] + [0] * (comm.size - 1), [0] * comm.size
        if found is not None:
            n_edges, needs = _shrunk(found.n_edges[chosen.index(relation)], k), _shrunk(found.n_needed, k)
        edges[relation] = _in_edges(sizes.rank, own[relation[2]], own[relation[0]], n_edges, needs)
    ids = {name: np.arange(n) for name, n in own.items()}
    made = _Relational.from_part(comm, edges, ids, mode=mode, prefetch=config.prefetch, rows=config.rows)
    made.n_nodes, made.n_edges, made.told = relations.n_nodes, relations.n_edges, relations
    for chosen in sizes.exchanged:
        made.exchange(chosen)
    return made.of(relations.target)


def options(config: argparse.Namespace) -> argparse.Namespace:
    """Return the options of a trial: one step an epoch, no file, and no thread that is ahead, by how much nobody could say."""
    changed: dict[str, Any] = {"propagated": None, "prefetch": 0}
    if config.batch_size:
        changed |= {"batch_size": 1 << 30, "sample_ahead": 0}
    return argparse.Namespace(**{**vars(config), **changed})



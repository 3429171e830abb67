"""The sizes of a part of a run, and a tiny part with its proportions, for a trial (`trial`)."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from sarlite.data.part import Rows
from sarlite.graph.edges import add_self_loops
from sarlite.minibatch import HEC
from sarlite.sar.cost import Exchanged, expected
from sarlite.sar.graph.graph import Graph
from sarlite.sar.graph.hetero import HeteroGraph
from sarlite.train.load import Shard
from sarlite.train.sampled import Sampled
from sarlite.train.settings import Settings
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
    relations: "Relations | None" = None


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
    facts : Facts
    rank, size : int
    n_rows : int
        Of the labelled type.
    splits : tuple of int
        Rows for training, validation and testing.
    exchanged : dict of Exchanged
        Of all edges "edges", by rows, but where the graph is on a grid of ranks of the group's rows; of a relational
        graph by the relations that one fetch serves; and of message-flow graphs by name and layer.
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

    facts: Facts
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

    def times_smaller(self, trial_rows: int) -> float:
        """Return how many times smaller a part is that has so many rows, peers' too, of which a quarter are its own."""
        n_halo, n_src = (sum(getattr(each, name) for each in self.exchanged.values()) for name in ("n_halo", "n_src"))
        n_rows = n_src if self.facts.relations else self.n_rows
        return max(1.0, min(n_rows + n_halo, 4 * n_rows) / trial_rows)

    def by_part(self) -> tuple[list[int], list[int]]:
        """Return the edges, and the rows that come, by the part of the sources; of a rank of a group its share of the
        group's.
        """
        found, n = self.exchanged["edges"], self.laid_out
        needed = [*found.n_needed]
        needed[self.rank // n] = found.n_src if n > 1 else 0
        edges = [rows // n**2 for rows in found.n_edges[0] for _ in range(n)]
        return edges, [rows // n for rows in needed for _ in range(n)]

    def of_group(self, columns: int) -> dict[str, Exchanged]:
        """Return what the group of `columns` ranks exchanges over its edges; of a part by rows the group is all ranks.
        """
        if self.laid_out > 1:
            return {"edges": self.exchanged["edges"]}
        (_, n_rows), (_, n_edges) = self.group["rows"], self.group["edges"]
        return {"edges": expected(n_rows, n_edges, 1)}


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
    mode, facts = run.graph.made_mode, sizes.facts
    cuts = {name: max(1, round(getattr(mode, name) / k)) for name in _SCALED if hasattr(mode, name)}
    asked = run.graph._replace(mode=dataclasses.replace(mode, **cuts))
    if facts.relations is not None:
        return _relational(comm, asked, facts.relations, sizes, k)
    m = max(_less(sizes.n_rows, k), sum(_splits(sizes, k)))
    n_edges, needed = (_shrunk(own, k) for own in sizes.by_part())
    if facts.loops:
        n_edges[comm.rank] = max(0, n_edges[comm.rank] - m)
    indptr, indices = _in_edges(comm.rank, m, m, n_edges, needed)
    added = None
    if facts.loops:
        indptr, indices, added = add_self_loops(indptr, indices, comm.rank * m)
    made = Graph.from_part(comm, indptr, indices, added_loops=added, **asked._replace(backward="push")._asdict())
    inner = made if made.grid is None else made.grid.graph
    if inner.comm.size > 1 and asked.reverses:  # peers need of this rank what it needs of them, so by a like plan
        schedule = inner.schedule
        turned = schedule._replace(plan=schedule.plan._replace())
        inner._schedule = schedule._replace(reverse=turned, reverses_attention=asked.reverses_attention)
    values = [None if a is None else np.ones((made.n_edges, *a.shape[1:]), a.dtype) for a in facts.edge_values]
    made = made if values[0] is values[1] else made.with_edge_values(*values)
    for block in (made if made.grid is None else made.grid.graph).plan.blocks:
        block.piece_edges = max(1, round(block.piece_edges / k))
    return made


def part(nodes: Any, run: Settings, sizes: Sizes, k: float) -> Shard:
    """Return the part of such a graph, with rows of ones."""
    facts, n_rows, dtype = sizes.facts, nodes.n_dst, run.model.dtype
    if facts.relations is None:
        x: Any = np.ones((n_rows, facts.n_features), dtype)
    else:
        own = nodes.graph.node_ids
        x = {name: np.ones((len(own[name]), n), dtype) for name, n in facts.n_features.items()}
    masks, start = [], 0
    for n in _splits(sizes, k):
        masks.append((np.arange(n_rows) - start) % n_rows < n)
        start += n
    classes = np.arange(max(facts.n_classes, 1) if facts.task == "classify" else 2)
    labels = np.resize(classes, (n_rows, *facts.labels.shape[1:])).astype(facts.labels.dtype)
    return Shard(nodes, Rows(x, labels, *masks), facts.n_classes, {}, None, {}, facts.task)  # type: ignore[arg-type]


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
    """A tiny graph that chooses how weights are evaluated by the counts of the real one."""

    told: Relations

    def _made(self, chosen):
        made, _ = super()._made(chosen)
        return made, self.told.n_halo.get(chosen, 0)


def _relational(comm, asked, relations, sizes, k):
    own = {name: max(1, _less(n, k)) for name, n in relations.own_nodes.items()}  # peers' rows are as many
    edges = {}
    for relation in relations.n_edges:
        n_edges, needed = [_less(relations.own_edges[relation], k)] + [0] * (comm.size - 1), [0] * comm.size
        for chosen, found in sizes.exchanged.items():
            if relation in chosen:
                n_edges, needed = _shrunk(found.n_edges[chosen.index(relation)], k), _shrunk(found.n_needed, k)
                break
        edges[relation] = _in_edges(sizes.rank, own[relation[2]], own[relation[0]], n_edges, needed)
    ids = {name: np.arange(n) for name, n in own.items()}
    made = _Relational.from_part(comm, edges, ids, mode=asked.mode, prefetch=asked.prefetch, rows=asked.rows)
    made.n_nodes, made.n_edges, made.told = relations.n_nodes, relations.n_edges, relations
    for chosen in sizes.exchanged:
        made.exchange(chosen)
    return made.of(relations.target)

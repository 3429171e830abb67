"""Conversion of a sampler's result to a batch: the graph of each layer, and the rows of the batch.

Rows and gradients travel by the mode of the graph, on a plan that is made for each layer.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from sarlite.graph.graph import Graph
from sarlite.minibatch.part_edges import PartEdges, split_by_rank
from sarlite.minibatch.picked import PickedGraph, PickedRelations, one_block
from sarlite.minibatch.sampler import Layer, Picked, Sampled
from sarlite.schedule.needs import Needs
from sarlite.schedule.schedule import Schedule
from sarlite.structure.part_edges_csr import EdgesByOwner, InEdges
from sarlite.types import Array


def layer_graph(part: PartEdges, layer: Layer, rows: Array, lasting: bool = False) -> PickedGraph | PickedRelations:
    """Return the graph that a model's layer computes on: the sampled edges of `layer`, whose local sources are the `rows` of this
    rank's `part`. `lasting` is True for a batch that serves several steps.

    For a node type the result has a graph for each relation, and relations with the same source type share a fetch.
    """
    joined = np.concatenate([rows, layer.halo]) if len(layer.halo) else rows
    typed, first, out_of = TypedRows(part, joined, layer.n_dst), 0, []
    for source, relations in enumerate(part.relations):
        sets = range(first, first := first + len(relations))
        if relations:
            out_of.append(_graphs_from(part, layer, typed, source, sets, lasting))
    if isinstance(part.graph, Graph):
        return out_of[0][0]
    local, dst = slice(len(rows)), slice(layer.n_dst)
    ids = [{name: part.ids_of(typed.of(kind, span)) for kind, name in enumerate(part.types)} for span in (local, dst)]
    return PickedRelations(part, out_of, *ids)


class BatchRows(NamedTuple):
    """Row numbers of a batch: its input and output rows among this rank's rows, and the seeds' rows among the output rows.

    Attributes
    ----------
    part_rows : (n_src,) int, or of a node type a dict of such by type
    outputs : (n_dst,) int
    rows : (n_seeds,) int64
    """

    part_rows: Array | dict[str, Array]
    outputs: Array
    rows: Array


def batch_rows(part: PartEdges, sampled: Sampled) -> BatchRows:
    """Return the row numbers of a batch in this rank's `part`, from `sampled`, the sampler's result. Outputs of several node types come
    type by type.
    """
    n_dst = sampled.layers[-1].n_dst
    if isinstance(part.graph, Graph):
        return BatchRows(sampled.rows, sampled.rows[:n_dst], sampled.numbers)
    typed, names = TypedRows(part, sampled.rows, n_dst), part.types
    part_rows = {name: typed.of(kind) - part.first[kind] for kind, name in enumerate(names)}
    wanted = [names.index(name) for name in part.graph.node_types]
    before = np.cumsum([0, *np.diff(part.first)[wanted]])  # rows of the graph before each type's
    outputs = [typed.of(kind, slice(n_dst)) - part.first[kind] + start for kind, start in zip(wanted, before)]
    starts = np.zeros(len(names), np.int64)
    starts[wanted] = np.cumsum([0, *map(len, outputs)])[:-1]
    rows = starts[part.type_of(sampled.rows[sampled.numbers])] + typed.numbers_of(sampled.numbers)
    return BatchRows(part_rows, np.concatenate(outputs), rows)


class TypedRows:
    """The rows of a layer grouped by node type; the rows of each type are numbered from 0 in the layer's order.

    Parameters
    ----------
    part : PartEdges
    rows : (n,) int
        The part's column of each row: local rows, and maybe halo rows behind them.
    n_dst : int
        The first rows, which are destinations.

    Attributes
    ----------
    n_rows, n_dst : (n_types,) int
    """

    def __init__(self, part: PartEdges, rows: Array, n_dst: int) -> None:
        self.rows, self._n_dst, self._n_types = rows, n_dst, len(part.types)
        self._types: Array | None = part.type_of(rows) if self._n_types > 1 else None
        self._numbers = None if self._types is None else self._numbered(self._types)

    def _numbered(self, types):
        n_rows, numbers = self.n_rows, np.empty(len(types), np.int64)
        order = np.argsort(types, kind="stable")
        numbers[order] = np.arange(len(types)) - np.repeat(np.cumsum(n_rows) - n_rows, n_rows)
        return numbers

    @property
    def n_rows(self) -> Array:
        return self._counts(len(self.rows))

    @property
    def n_dst(self) -> Array:
        return self._counts(self._n_dst)

    def _counts(self, n_first: int) -> Array:
        """Return the number of rows of each node type, (n_types,), among the layer's first `n_first` rows."""
        return np.array([n_first]) if self._types is None else np.bincount(self._types[:n_first], minlength=self._n_types)

    def numbers_of(self, places: Array) -> Array:
        """Return the number of each of the layer's rows at the positions `places`, counted among the layer's rows of the same node
        type.
        """
        return places if self._numbers is None else self._numbers[places].astype(places.dtype)

    def picked(self, picked: Picked) -> Picked:
        """Return the sampled edges `picked` with each source numbered among the layer's rows of its node type."""
        return picked if self._numbers is None else picked._replace(columns=self.numbers_of(picked.columns))

    def of(self, type_index: int, places: Array | slice = slice(None)) -> Array:
        """Return the rows at the layer's positions `places` that have node type number `type_index`, as row numbers of this rank's part."""
        return self.rows[places] if self._types is None else self.rows[places][self._types[places] == type_index]

    def numbers_of_type(self, type_index: int, places: Array) -> Array:
        """Return the numbers of the rows of node type number `type_index` at the layer's positions `places`, counted among the
        layer's rows of this type.
        """
        return places if self._types is None else self.numbers_of(places[self._types[places] == type_index])


def _graphs_from(part: PartEdges, layer: Layer, typed: TypedRows, source: int, relations: Sequence[int],
                 used_again: bool) -> list[PickedGraph]:
    """Return a graph of the sampled `layer` for each relation index in `relations`, whose sources have the node type number `source`
    and are fetched together. `typed` has the layer's rows by type; `used_again` is True for a batch that serves several steps.
    """
    picked = [typed.picked(layer.sets[k]) for k in relations]
    local, halo = typed.of(source, slice(layer.n_src)), typed.of(source, slice(layer.n_src, None))
    base = part.relations[source][0].schedule
    order: Any  # columns of the halo rows in the order of the plan
    if layer.exchange is None:
        plan, transport, order = one_block(part, picked, local, used_again), part.local_transport, ()
    else:
        needs = _needs(part, layer, typed, source, picked, local, halo, used_again)
        plan, transport = base.mode.plan(needs, base.transport.prefetch), base.transport
        shares = split_by_rank(halo, part.owners(halo - part.n_local))
        order = np.concatenate([shares[q] for q in needs.order])
    schedule = Schedule(plan, transport, base.mode, row_format=base.row_format)
    n, graphs = len(part.types), list[PickedGraph]()
    for index, (k, picks) in enumerate(zip(relations, picked)):
        edges, sizes = part.sets[k], None
        if layer.exchange is not None:
            total = layer.exchange.sizes.sum(0)
            sizes = int(total[source]), int(total[n + edges.to]), int(total[2 * n + k])
        dst_rows = local[: layer.n_dst] if n == 1 else typed.of(edges.to, slice(layer.n_dst))
        graphs.append(PickedGraph(edges, picks, local, dst_rows, schedule, relation_index=index, halo=halo, brought=order,
                                  sizes=sizes, lasting=used_again))
    return graphs


def _needs(part: PartEdges, layer: Layer, typed: TypedRows, source: int, picked: Sequence[Picked], local_rows: Array, halo: Array,
           used_again: bool) -> Needs:
    """Return a Needs, the rows of node type number `source` that ranks need of each other for `layer`: this rank has `local_rows`
    and needs the rows `halo`. `picked` lists the sampled edges by relation; `typed` has the layer's rows by type; `used_again` is
    True for a batch that serves several steps.
    """
    exchange: Any  # not None
    rank, exchange, starts = part.graph.comm.rank, layer.exchange, part.owners(halo - part.n_local)
    src_ids, size = split_by_rank(part.ids[halo], starts), len(exchange.sizes)
    src_ids[rank] = part.ids_of(local_rows)
    offsets = np.concatenate([[0], np.cumsum(exchange.sizes[:, source])])
    needs = exchange.needs
    if len(part.types) > 1:
        kinds, each = part.type_of(layer.halo), part.owners(layer.halo - part.n_local)
        needs = [numbers[of == source] for numbers, of in zip(needs, split_by_rank(kinds, each))]
    asked = [typed.numbers_of_type(source, numbers) for numbers in exchange.asked]
    first = len(local_rows) + np.asarray(starts)  # column of each owner's first row
    cuts = [_by_owner(numbers, first, rank, size, used_again) for numbers in picked]
    return Needs(rank, offsets, cuts, needs, asked, src_ids)


def _by_owner(picked: Picked, first: Array, rank: int, n_ranks: int, used_again: bool) -> EdgesByOwner:
    """Group the sampled edges `picked` by the rank that owns their source, and return them as EdgesByOwner. CSR columns below
    first[0] belong to this `rank`, columns from first[q] up to first[q + 1] to rank q. `used_again` is True for a batch that serves
    several steps.
    """
    owner = np.searchsorted(first, picked.columns, side="right")  # 0: local, else 1 + rank
    owner = owner.astype(np.min_scalar_type(n_ranks))
    order = np.argsort(owner, kind="stable")  # a radix sort of such small integers
    ends = np.searchsorted(owner[order], np.arange(n_ranks + 2))
    where = [order[a:b] for a, b in zip(ends[1:], ends[2:])]
    where[rank] = order[: ends[1]]
    edges = [picked.columns[places] - (0 if q == rank else first[q]) for q, places in enumerate(where)]
    return EdgesByOwner(InEdges(picked.indptr, picked.columns), where, edges, lasting=used_again, grouped=False)

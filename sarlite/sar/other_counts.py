"""How many rows and edges a part exchanges otherwise than by its in-edges, each rank for itself.

Over the reversed edges, by a vertex cover of the cut, and with the needs of a host's ranks put together.
"""

from itertools import groupby
from typing import NamedTuple

import numpy as np

from sarlite.sar.cost import SetCounts, counted, exchanging
from sarlite.sar.cover import cover
from sarlite.sar.operators.relations import sets_of
from sarlite.sar.schedule.transport import halo_slices


class _Cut(NamedTuple):
    """A part's edges from one peer. Of rows (how many, whether they follow each other)."""

    n_edges: int = 0
    n_by_rows: int = 0  # edges of the cover's sources, and how many destinations they have
    rows_by_rows: int = 0
    rows_by_sums: tuple = (0, True)  # destinations, and number of sources, of the others
    n_sources_by_sums: int = 0

    @property
    def n_by_sums(self):
        return self.n_edges - self.n_by_rows


def with_others(graph, counts, covers=True):
    """Return the `PartCounts` of a sharded graph's part with those of other edges, as `schedule.make` would find them. Collective.

    Parameters
    ----------
    graph : Graph
        Whose sources are its destinations, in any mode.
    counts : PartCounts
        Of all its edges.
    covers : bool
        Whether a cover is found, which takes SciPy's modules too.

    Notes
    -----
    Takes the time of `cover.divide`, about 40 bytes an edge from one peer, and sends 8 bytes a row that is fetched.
    """
    if counts.size == 1:
        return counts
    with graph.profile.phase("setup"):
        return _with_others(graph.comm, graph.plan, counts, covers)


def with_hosts(comm, plan, counts):
    """Return the `PartCounts` of a plan with those of mode `host`; in that mode's plan they are themselves put together. Collective."""
    if counts.size == 1:
        return counts
    sent = _sent(comm, plan)
    counts = exchanging(comm, counts, sent)
    return counts._replace(shared=_shared(comm, counts, sent, comm.hosts()))


def _sent(comm, plan):
    """By rank, the rows that go there because it needs them itself."""
    sent = plan.asked(comm.size)
    if plan.host is None:
        return sent
    used = [np.empty(0, np.int64)] * comm.size
    for step in plan.steps:
        used[step.source] = np.unique(np.concatenate([edges.indices for edges in sets_of(step.block)])).astype(np.int64)
    return [rows[columns] for rows, columns in zip(sent, comm.alltoall(used))]


def _shared(comm, counts, sent, hosts):
    """`counts` where to each rank goes what any of its host needs."""
    asked = [np.empty(0, np.int64)] * counts.size
    for host in set(hosts):
        ranks = [q for q, other in enumerate(hosts) if other == host]
        found = np.unique(np.concatenate([sent[q] for q in ranks]))
        for q in ranks:
            asked[q] = found[:0] if q == counts.rank else found
    return exchanging(comm, counts, asked)._replace(hosts=hosts)


def _with_others(comm, plan, counts, covers):
    size = counts.size
    own, columns, rows_of = [_Cut()] * size, [np.empty(0, np.int64)] * size, [np.empty(0, np.int64)] * size
    for source, rows, sources in _edges(plan):
        if len(rows):
            own[source], columns[source] = _cut(rows, sources, covers)
            rows_of[source] = np.unique(rows)
    counts = with_hosts(comm, plan, counts)
    told = [cuts[counts.rank] for cuts in comm.allgather(own)]
    turned = exchanging(comm, _turned(counts, told), rows_of)
    shared = counts.shared._replace(turned=_unless_same(comm, _shared(comm, turned, rows_of, counts.shared.hosts), counts.shared))
    cover = _covered(comm, plan, counts, own, told, columns)
    return counts._replace(turned=_unless_same(comm, turned, counts), cover=cover, shared=shared)


def _unless_same(comm, turned, counts):
    """`turned`; None where it exchanges what `counts` does, on all ranks."""
    same = (turned.needs, turned.asked, turned.sets[0].n_edges) == (counts.needs, counts.asked, counts.sets[0].n_edges)
    return None if all(comm.allgather(same)) else turned


def _edges(plan):
    """Yield for each peer (its rank, destination rows, columns) of its edges, by row."""
    if plan.steps[0].block is None:  # all are in one block
        rows, indices = plan.local.dst, plan.local.indices
        for step, place in zip(plan.steps, halo_slices(plan.n_src, plan.steps)):
            chosen = (indices >= place.start) & (indices < place.stop)
            yield step.source, rows[chosen], indices[chosen] - place.start
        return
    for source, steps in groupby(plan.steps, lambda step: step.source):
        blocks = [step.block for step in steps]
        rows = np.concatenate([block.dst for block in blocks])
        order = np.argsort(rows, kind="stable") if len(blocks) > 1 else slice(None)
        yield source, rows[order], np.concatenate([block.indices + (block.offset - blocks[0].offset) for block in blocks])[order]


def _cut(rows, sources, covers):
    """Return the `_Cut` of edges, and the sources of their cover."""
    covering = cover(sources, np.cumsum(np.diff(rows, prepend=rows[0]) > 0)) if covers else np.ones(sources.max() + 1, bool)
    chosen = covering[sources]
    found = _Cut(len(rows), int(chosen.sum()), counted(rows[chosen])[0], counted(rows[~chosen]), len(np.unique(sources[~chosen])))
    return found, np.flatnonzero(covering)


def _turned(counts, told):
    """Of the reversed edges: each peer's are those from here that reach it."""
    return _with_local(counts, [cut.n_edges for cut in told], [n for n, _ in counts.asked], [], [], _n_local(counts))


def _covered(comm, plan, counts, own, told, columns):
    """Of the edges by rows, and of the reversed ones by sums; None where there are none of these."""
    if not any(comm.allgather(any(cut.n_by_sums for cut in own))):
        return None
    wanted = comm.alltoall(columns)  # of the rows that go there
    asked = [counted(rows[chosen]) for rows, chosen in zip(plan.asked(counts.size), wanted)]
    needs = [found[counts.rank] for found in comm.allgather(asked)]
    by_rows = _with_local(counts, [cut.n_by_rows for cut in own], [cut.rows_by_rows for cut in own], needs, asked,
                          _n_local(counts))
    by_sums = _with_local(counts, [cut.n_by_sums for cut in told], [cut.n_sources_by_sums for cut in told],
                          [cut.rows_by_sums for cut in told], [cut.rows_by_sums for cut in own], 0)
    return by_rows, by_sums


def _n_local(counts):
    """How many edges are within the part."""
    return counts.sets[0].n_edges[counts.rank]


def _with_local(counts, n_edges, n_rows, needs, asked, n_local_edges):
    """Of edges from peers; those within the part are `n_local_edges`."""
    n_edges[counts.rank], n_rows[counts.rank] = n_local_edges, counts.n_local
    return counts._replace(sets=[SetCounts(counts.n_local, n_edges, n_rows)], needs=needs, asked=asked,
                           ranges=None)

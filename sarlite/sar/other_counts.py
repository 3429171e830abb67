"""How many rows and edges a part exchanges otherwise than by its in-edges, each rank for itself.

Over the reversed edges, by a vertex cover of the cut, and with the needs of a host's ranks put together.
"""

from typing import NamedTuple

import numpy as np

from sarlite.sar.cost import SetCounts
from sarlite.sar.cover import cover
from sarlite.sar.relations import sets_of
from sarlite.sar.transport import halo_slices


class _Cut(NamedTuple):
    """A part's edges from one peer. Of rows (how many, whether they follow each other)."""

    n_edges: int = 0
    rows: tuple = (0, True)  # destinations
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
    counts = _asked(comm, counts, [_counted(rows) for rows in sent])
    return counts._replace(shared=_shared(comm, counts, sent, comm.hosts()))


def _sent(comm, plan):
    """By rank, the rows that go there because it needs them itself."""
    sent = [np.empty(0, np.int64)] * comm.size
    for step in plan.steps:
        rows = step.send_rows
        sent[step.target] = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
    if plan.host is None:
        return sent
    used = [np.empty(0, np.int64)] * comm.size
    for step in plan.steps:
        used[step.source] = np.unique(np.concatenate([edges.indices for edges in sets_of(step.block)])).astype(np.int64)
    return [rows[columns] for rows, columns in zip(sent, comm.alltoall(used))]


def _asked(comm, counts, asked):
    """`counts` of a part that is asked for these rows."""
    needs = [found[counts.rank] for found in comm.allgather(asked)]
    return counts._replace(needs=needs, asked=asked)


def _shared(comm, counts, sent, hosts):
    """`counts` where to each rank goes what any of its host needs."""
    asked = [(0, True)] * counts.size
    for host in set(hosts):
        ranks = [q for q, other in enumerate(hosts) if other == host]
        found = _counted(np.unique(np.concatenate([sent[q] for q in ranks])))
        for q in ranks:
            asked[q] = (0, True) if q == counts.rank else found
    return _asked(comm, counts, asked)._replace(hosts=hosts)


def _with_others(comm, plan, counts, covers):
    size = counts.size
    own, columns, rows_of = [_Cut()] * size, [np.empty(0, np.int64)] * size, [np.empty(0, np.int64)] * size
    for step, (rows, sources) in zip(plan.steps, _edges(plan)):
        if len(rows):
            own[step.source], columns[step.source] = _cut(rows, sources, covers)
            rows_of[step.source] = np.unique(rows)
    counts = with_hosts(comm, plan, counts)
    told = [cuts[counts.rank] for cuts in comm.allgather(own)]
    turned = _turned(counts, own, told)
    shared = counts.shared._replace(turned=_unless_same(comm, _shared(comm, turned, rows_of, counts.shared.hosts), counts.shared))
    cover = _covered(comm, plan, counts, own, told, columns)
    return counts._replace(turned=_unless_same(comm, turned, counts), cover=cover, shared=shared)


def _unless_same(comm, turned, counts):
    """`turned`; None where it exchanges what `counts` does, on all ranks."""
    same = (turned.needs, turned.asked, turned.sets[0].n_edges) == (counts.needs, counts.asked, counts.sets[0].n_edges)
    return None if all(comm.allgather(same)) else turned


def _edges(plan):
    """Yield for each step (destination rows, columns) of its edges, by row."""
    if plan.steps[0].block is None:  # all are in one block
        rows, indices = plan.local.dst, plan.local.indices
        for place in halo_slices(plan.n_src, plan.steps):
            chosen = (indices >= place.start) & (indices < place.stop)
            yield rows[chosen], indices[chosen] - place.start
    else:
        for step in plan.steps:
            yield step.block.dst, step.block.indices


def _cut(rows, sources, covers):
    """Return the `_Cut` of edges, and the sources of their cover."""
    covering = cover(sources, np.cumsum(np.diff(rows, prepend=rows[0]) > 0)) if covers else np.ones(sources.max() + 1, bool)
    chosen = covering[sources]
    found = _Cut(len(rows), _counted(rows), int(chosen.sum()), _counted(rows[chosen])[0], _counted(rows[~chosen]),
                 len(np.unique(sources[~chosen])))
    return found, np.flatnonzero(covering)


def _counted(rows):
    """How many different rows there are of ascending ones, and whether they follow each other."""
    steps = np.diff(rows)
    return (0, True) if len(rows) == 0 else (1 + int(np.count_nonzero(steps)), bool(steps.max(initial=0) <= 1))


def _turned(counts, own, told):
    """Of the reversed edges: what is needed of a peer is what edges from here reach there."""
    n_edges, n_rows = [cut.n_edges for cut in told], [n for n, _ in counts.asked]
    return _with_local(counts, n_edges, n_rows, [cut.rows for cut in told], [cut.rows for cut in own], _n_local(counts))


def _covered(comm, plan, counts, own, told, columns):
    """Of the edges by rows, and of the reversed ones by sums; None where there are none of these."""
    if not any(comm.allgather(any(cut.n_by_sums for cut in own))):
        return None
    asked = [(0, True)] * counts.size
    wanted = comm.alltoall(columns)  # of the rows that go there
    for step in plan.steps:
        rows = step.send_rows
        asked[step.target] = _counted((np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows)[wanted[step.target]])
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
    return counts._replace(sets=[SetCounts(counts.n_local, n_edges, n_rows)], needs=needs, asked=asked)

"""Functions as messages with sums on grids: the message runs once, over all of a rank's edges.

So its sums over edges, as the gradients of what it learns, are sums over all ranks' rows like any other of the tape.
"""

import numpy as np

from sarlite import kernels
from sarlite.sar.operators.custom import Custom
from sarlite.sar.operators.exact import OnGrid, by_row, whole
from sarlite.sar.operators.replay import Recording
from sarlite.tape.recording import retained, set_grad


class AllEdges:
    """All edges of a rank's destination rows, by row, with what a reducer asks of `Edges`.

    Attributes
    ----------
    indptr, dst, n_edges
        As of `Edges`.
    labels : (n_edges,) int
        The index of each edge into the part's edge values.
    place : (n_edges,) int
        By that index, where the edge is here.
    """

    rows = None

    def __init__(self, numerics, n_terms, n_dst, dst, labels):
        self.numerics, self.n_terms, self.n_dst, self.dst, self.labels = numerics, n_terms, n_dst, dst, labels
        self.indices, self.n_edges = dst, len(dst)
        self.indptr = np.concatenate([[0], np.cumsum(np.bincount(dst, minlength=n_dst))])
        self.place = np.empty_like(labels)
        self.place[labels] = np.arange(len(labels), dtype=labels.dtype)

    def at_dst(self, values):
        return values[self.dst]

    def in_order(self, values):
        """Return values an edge in the order of the part's edge values."""
        return values[self.place]

    def sum_to_dst(self, values, out=None, weight=None, dst_scale=None):
        """Return the sums of (n_edges, ...) values of each row, times `dst_scale`; add them to `out` where given."""
        values = np.ascontiguousarray(values)
        factor = 1.0 if weight is None else float(self.numerics.largest(weight).max(initial=0))
        grid = self.numerics.edge_grid(values, self.n_terms, factor)
        sums = np.zeros((self.n_dst, *grid.shape))
        kernels.exact_spmm(self.indptr, None, values, sums, grid, weight=weight)
        found = whole(sums)
        found = (found if dst_scale is None else found * by_row(dst_scale, found)).astype(values.dtype)
        return found if out is None else np.add(out, found, out=out)


class ExactCustom(OnGrid, Custom):
    """`Custom` that gathers every edge's source rows before it runs the message, which is kept for backward.

    Notes
    -----
    Memory: what the message's tape holds, of all edges at once. In backward nothing is fetched.
    """

    all_edges = AllEdges

    def begin(self, needs, arrays, keep):
        self.needs, self.arrays, self.keep, self.needs_rows = needs, arrays, any(needs), False
        self.reducer.begin(len(self.dst_ids), self.templates)
        self.gathered = []

    def forward(self, block, rows):
        ids = block.src_ids[block.indices]
        self.gathered.append((block.dst, block.labels, ids, *(block.at_src(x) for x in rows)))

    def end(self):
        n_src, n_dst = len(self.names[0]), len(self.names[1])
        dst, labels, src_ids, *rows = (np.concatenate(parts) for parts in zip(*self.gathered))
        order = np.argsort(dst, kind="stable")
        self.edges = edges = self.all_edges(self.numerics, self.n_terms, len(self.dst_ids), dst[order], labels[order])
        del self.gathered
        arrays = [x[order] for x in rows]
        arrays += [edges.at_dst(a) for a in self.arrays[n_src : n_src + n_dst]]
        arrays += [np.asarray(a)[edges.labels] for a in self.arrays[n_src + n_dst :]]
        src_ids, dst_ids = src_ids[order], self.dst_ids[edges.dst]
        self.arrays = None
        with set_grad(self.keep):
            ids = src_ids, dst_ids, src_ids * self.n_nodes + dst_ids
            recording = Recording(self.message, self.names, arrays, self.needs, ids)
        self.reducer.forward(edges, [out._data for out in recording.outputs])
        self.recording = recording if self.keep else None
        return self.reducer.end()

    def begin_backward(self, g):
        self.check_unchanged()
        self.g, n_src, n_dst = np.ascontiguousarray(g), len(self.names[0]), len(self.names[1])
        self.reducer.begin_backward(self.g)
        recording = self.recording
        if not retained():
            self.recording = None
        found = recording.pull(self.reducer.backward(self.edges, [out._data for out in recording.outputs]), self.sinks)
        d_edges = [np.ascontiguousarray(found.get(id(leaf), np.zeros_like(leaf._data))) if need else None
                   for leaf, need in zip(recording.leaves, self.needs)]
        self.d_src = d_edges[:n_src]
        self.stand_on(*((0.0, 0, g.dtype) if d is None else (self.numerics.largest(d), self.n_terms, d.dtype)
                        for d in self.d_src))
        self.d_local = [None if d is None else self.edges.sum_to_dst(d) for d in d_edges[n_src : n_src + n_dst]]
        self.d_local += [None if d is None else self.edges.in_order(d) for d in d_edges[n_src + n_dst :]]
        self.d_sinks = [found.get(id(sink)) for sink in self.sinks]

    def backward(self, block, rows, kept, d_rows):
        block = block.anew()  # a CSR of some columns is made here, and freed with the rows
        places = self.edges.place[block.labels]
        t_indptr, position = block.edges_by_column
        for d, d_row, grid in zip(self.d_src, d_rows, self.grids):
            if d is not None and d_row is not None:
                kernels.exact_spmm(t_indptr, places[position].astype(position.dtype), d, d_row, grid)

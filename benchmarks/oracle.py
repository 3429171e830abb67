"""Measure how often the oracle, which checks results of kernels, names a planted wrong edge, and the time that it takes.

`locate`: one edge of 5 million is lost, counted twice, or counted for another row, in the sums and in the means of
sarlite's float32 kernel. The graph is drawn, with in-degrees of 8, 16 and 32. The oracle knows the inputs and the result,
and has to name the edge. `located` counts the trials in which edge, source and destination are right, and for a misrouted
edge the row that it is counted for. In every second mean the divisor counts the edges that are left, so the result is
rounded. Target: 100 of 100 each. `ms` is the time of decoding one result.

`levels`: the time of `check` of a correct spmm, sums and gradients, at level `probe` on the whole corpus, at level `ci`,
and at level `large`, on more than 2^31 edges times columns. Targets: under 60 s and under 20 s on two cores.
"""

import json
import sys
import time

import harness
import numpy as np

from sarlite import kernels
from sarlite.oracle import probe
from sarlite.oracle.check import check
from sarlite.oracle.corpus import SplitMixStream
from sarlite.oracle.diagnose import cause_of
from sarlite.oracle.difference import Difference
from sarlite.oracle.edge_structure import EdgeList
from sarlite.oracle.plain import BoundedArray
from sarlite.oracle.reference import Reference
from sarlite.train.loop import set_threads

KINDS = ("lost", "doubled", "misrouted")


def drawn(n_nodes):
    """Return the EdgeList of a random graph with in-degrees of 8, 16 and 32 and its edges in a random order."""
    draw = SplitMixStream("oracle benchmark")
    dst = np.repeat(np.arange(n_nodes), 8 << draw.below(3, n_nodes))
    return EdgeList(draw.below(n_nodes, len(dst)), dst[draw.permutation(len(dst))], n_nodes, n_nodes)


class Planted:
    """Results of sarlite's sum kernel with one edge of a CSR graph lost, doubled or misrouted; only that edge's rows are recomputed.

    Rows do not depend on each other, so only the rows of that edge are computed again.
    """

    def __init__(self, case, mean):
        self.x, self.mean = case.arrays["x"], mean
        self.indptr, self.indices = case.edges.indptr, case.edges.indices
        self.right = self._sums(self.indptr, self.indices, np.diff(self.indptr))

    def result(self, kind, position, row, recounts_edges):
        """Return (sums or means with CSR edge `position` "lost", "doubled" or "misrouted" to `row` by `kind`; its destination; its source).

        A mean divides by the new number of edges if `recounts_edges`, else by the old one. A misrouted edge is
        counted for `row`.
        """
        dst = int(np.searchsorted(self.indptr, position, "right")) - 1
        source, k, out = self.indices[position], position - self.indptr[dst], self.right.copy()
        mine = self._row(dst)
        if kind == "doubled":
            self._replace(out, dst, np.insert(mine, k, source), recounts_edges)
        else:
            self._replace(out, dst, np.delete(mine, k), recounts_edges)
            if kind == "misrouted":
                self._replace(out, row, np.append(self._row(row) if row != dst else np.delete(mine, k), source),
                              recounts_edges)
        return out, dst, int(source)

    def _row(self, row):
        return self.indices[self.indptr[row] : self.indptr[row + 1]]

    def _replace(self, out, row, sources, recounts_edges):
        degree = len(sources) if recounts_edges else self.indptr[row + 1] - self.indptr[row]
        out[row] = self._sums(np.array([0, len(sources)]), sources, np.array([degree]))[0]

    def _sums(self, indptr, indices, degrees):
        out = np.zeros((len(indptr) - 1, self.x.shape[1]), np.float32)
        kernels.spmm(indptr, indices, self.x, out)
        return out / np.maximum(degrees, 1).astype(np.float32)[:, None] if self.mean else out


def locate_all(args):
    """Measure how often and how fast the oracle names the wrong edge; return a table row for each reduction and kind of mistake."""
    edges, rows = drawn(args.nodes), []
    harness.note(f"{edges.n_edges:,} edges, {edges.n_dst:,} nodes")
    for reduce in args.reduce:
        reference = Reference("spmm", reduce=reduce)
        (case,) = probe.cases(reference, edges, width=args.width)
        expected, planted = probe.numbers(reference, case)["out"].value, Planted(case, reduce == "mean")
        assert np.array_equal(planted.right, expected)
        for kind in KINDS:
            draw, n_located, times = SplitMixStream(f"{reduce} {kind}"), 0, []
            for trial in range(args.trials):
                place, row = int(draw.below(edges.n_edges, 1)[0]), int(draw.below(edges.n_dst, 1)[0])
                got, dst, source = planted.result(kind, place, row, trial % 2 == 1)
                begin = time.perf_counter()
                cause, named = cause_of(Difference(reference, case, "out", BoundedArray(expected), got))
                times.append(1e3 * (time.perf_counter() - begin))
                n_located += names_edge(edges, kind, cause, named, dst, source, row)
            rows.append({"reduce": reduce, "kind": kind, "edges": edges.n_edges, "width": args.width, "located": n_located,
                         "trials": args.trials, "ms": float(np.median(times)), "example": cause})
            harness.note(f"{reduce}, {kind}: {n_located} of {args.trials}; as: {cause}")
    return rows


def names_edge(edges, kind, cause, named, dst, source, row):
    """Return True if the oracle's text `cause` tells the planted mistake `kind`, and its pairs `named` are the edge (source, dst).

    A misrouted edge must be told to count for `row`.
    """
    words = cause.split()
    right = {"lost": cause.endswith("is lost"), "doubled": cause.endswith("is counted twice"),
             "misrouted": row == dst or cause.endswith(f"is misrouted: counted for row {row}")}[kind]
    e = int(words[1]) if words[0] == "edge" else -1
    return right and named == ((source, dst),) and 0 <= e and (edges.src[e], edges.dst[e]) == (source, dst)


def spmm(case):
    """Return the sums over the edges of the oracle's test case, computed by sarlite's kernel."""
    out = np.zeros((case.n_dst, case.x.shape[1]), np.float32)
    kernels.spmm(case.indptr.astype(np.int64), case.indices, case.x, out)
    return out


def spmm_vjp(case, g):
    """Return the gradients of the sums of an oracle test case for the output's gradient `g`, by sarlite's kernel on the transpose."""
    t_indptr, t_indices, _ = kernels.transpose(case.indptr.astype(np.int64), case.indices, case.n_src, position=False)
    out = np.zeros((case.n_src, g.shape[1]), np.float32)
    kernels.spmm(t_indptr, t_indices, g, out)
    return {"x": out}


def levels():
    """Check sarlite's sum kernel at the oracle's levels "probe", "ci" and "large"; return result rows with the time of each check."""
    rows = []
    for level, target in (("probe", 60), ("ci", 20), ("large", None)):
        begin, processor = time.perf_counter(), time.process_time()
        report = check(spmm, "spmm", vjp=spmm_vjp, level=level)
        rows.append({"level": level, "seconds": time.perf_counter() - begin,
                     "processor_seconds": time.process_time() - processor,
                     "target": target, "verdict": report.verdict.name, "compared": sum(report.checked.values())})
        harness.note(str(report))
    return rows


def main():
    parser = harness.parser(__doc__)
    parser.add_argument("--nodes", type=int, default=270_000, help="the graph has about 18.7 edges a node")
    parser.add_argument("--reduce", type=harness.words, default=["sum", "mean"], metavar="LIST")
    parser.add_argument("--width", type=int, default=3)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", choices=("locate", "levels"))
    args = parser.parse_args()
    set_threads(args.threads)
    located = [] if args.only == "levels" else locate_all(args)
    timed = [] if args.only == "locate" else levels()
    columns = {
        **harness.named("reduce", "kind", "edges", "width"),
        "located": lambda r: f"{r['located']} of {r['trials']}",
        "ms": lambda r: f"{r['ms']:.0f}",
    }
    if located:
        harness.report("One wrong edge", located, columns)
    columns = {
        "level": lambda r: r["level"],
        "seconds": lambda r: f"{r['seconds']:.1f}",
        "of processor": lambda r: f"{r['processor_seconds']:.1f}",
        **harness.named("target", "compared", "verdict"),
    }
    if timed:
        harness.report("Time of a check", timed, columns)
    if args.json:
        args.json.write_text(json.dumps([*located, *timed], indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())

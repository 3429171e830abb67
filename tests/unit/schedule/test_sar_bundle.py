"""Several sets of edges over the same source rows: one fetch serves them all (threads as ranks)."""


import numpy as np
import pytest

from sarlite import Tensor
from sarlite.comm import threads
from sarlite.operators.aggregate import aggregate
from sarlite.operators.sums import Sum
from sarlite.profile import Profile
from sarlite.schedule import needs, schedule
from sarlite.structure.part_edges_csr import InEdges
from tests.helpers.comm.exchanges import MODES, in_parts
from tests.helpers.graph.strategies import values

pytestmark = pytest.mark.timeout(60)

N_SRC, WIDTH = 60, 3
ROWS = (60, 24)  # destinations of each set
MATRICES = [np.random.default_rng(k).random((n, N_SRC)) < p for k, (n, p) in enumerate(zip(ROWS, (0.02, 0.05)))]


class Sums:
    """A `Sum` over each set of edges, with the outputs one after another; with weights, one input a set, it is case 2."""

    fetched, captured = ("rows",), ()

    def __init__(self, n_dst, weighted):
        self.n_dst, self.weighted, self.sums = n_dst, weighted, [Sum(n, weighted) for n in n_dst]

    def of_sum(self, k, values):
        """Return the items of sum `k` among one item for each input: the item of the rows and, with weights, that sum's."""
        return [values[0], values[1 + k]] if self.weighted else [values[0]]

    def context(self, k, context):
        return context._replace(wants_grad=self.of_sum(k, context.wants_grad), single_block=False)

    def needs_rows(self, context):
        return any(one.needs_rows(self.context(k, context)) for k, one in enumerate(self.sums))

    def forward(self, inputs, context):
        return SumsForward([one.forward(self.of_sum(k, inputs), self.context(k, context)) for k, one in enumerate(self.sums)])

    def backward(self, residuals, g, context):
        parts = np.split(g, np.cumsum(self.n_dst)[:-1])
        return SumsBackward([one.backward(residuals[k], parts[k], self.context(k, context)) for k, one in enumerate(self.sums)])


class SumsForward:
    def __init__(self, passes):
        self.passes = passes

    def sweeps(self, rows):
        yield rows

    def add(self, block, rows):
        for edges, one in zip(block, self.passes):
            one.add(edges, rows)

    def finish(self):
        outputs, residuals = zip(*(one.finish() for one in self.passes))
        return np.concatenate(outputs), residuals


class SumsBackward:
    def __init__(self, passes):
        self.passes, self.accumulators = passes, passes[0].accumulators

    def add(self, block, rows, accumulators):
        for edges, one in zip(block, self.passes):
            one.add(edges, rows, accumulators)

    def finish(self):
        return sum((one.finish() for one in self.passes), [])


def owned_slice(comm, n):
    """Return the slice of n rows that a rank owns; later ranks own more rows."""
    cuts = n * np.arange(comm.size + 1) ** 2 // comm.size**2
    return slice(int(cuts[comm.rank]), int(cuts[comm.rank + 1]))


def edges_of(comm, k):
    """Return this rank's rows of one matrix, and the positions of its edges among all edges of the matrix."""
    local, before = MATRICES[k][owned_slice(comm, ROWS[k])], int(MATRICES[k][: owned_slice(comm, ROWS[k]).start].sum())
    indptr = np.concatenate([[0], np.cumsum(local.sum(1))])
    return InEdges(indptr, np.nonzero(local)[1]), slice(before, before + int(indptr[-1]))


def run(comm, sets, mode, prefetch, weighted):
    """Aggregate over `sets` at once; return the outputs, the gradients of x and of the weights, and the bytes received."""
    sets_of_edges = [edges_of(comm, k) for k in sets]
    rows = owned_slice(comm, N_SRC)
    exchange = needs.find(comm, [edges for edges, _ in sets_of_edges], None, rows.stop - rows.start)
    profile = Profile()
    made_schedule = schedule.make(comm, exchange, schedule.Options(in_parts(mode), prefetch), profile)
    x = Tensor(values(1, N_SRC, WIDTH)[rows], requires_grad=True)
    w = [Tensor(values(2 + k, MATRICES[k].sum())[place], requires_grad=True) for k, (_, place) in zip(sets, sets_of_edges)
         ] if weighted else []
    n_dst = [edges.n_dst for edges, _ in sets_of_edges]
    if len(sets) > 1:
        out = aggregate(made_schedule, Sums(n_dst, weighted), [x, *w])
    else:
        out = aggregate(made_schedule, Sum(n_dst[0], weighted), [x, *w])
    g = [values(4 + k, ROWS[k], WIDTH)[owned_slice(comm, ROWS[k])] for k in sets]
    out.backward(np.concatenate(g))
    return np.split(out.data, np.cumsum(n_dst)[:-1]), x.grad, [t.grad for t in w], profile.received_bytes, made_schedule.plan


@pytest.mark.sampled(19)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("prefetch", [0, 1])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("n_ranks", [1, 2, 3, 4])
def test_two_sets_of_edges_are_two_aggregations_with_one_fetch(n_ranks, mode, prefetch, weighted):

    def work(comm):
        both, one, other = (run(comm, sets, mode, prefetch, weighted) for sets in ((0, 1), (0,), (1,)))
        for actual, expected in zip((*both[0], both[1], *both[2]), (*one[0], *other[0], one[1] + other[1], *one[2], *other[2])):
            np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)
        rows = owned_slice(comm, N_SRC)
        needs = [np.setdiff1d(np.flatnonzero(matrix[owned_slice(comm, n)].any(0)), np.arange(rows.start, rows.stop))
                 for matrix, n in zip(MATRICES, ROWS)]
        union, again = len(np.union1d(*needs)), weighted and mode == "sar"
        assert both[4].n_halo == union and [one[4].n_halo, other[4].n_halo] == [len(need) for need in needs]
        for phase, times in (("forward_fetch", 1), ("backward_fetch", again)):
            assert both[3][phase] == 8 * WIDTH * union * times
            assert one[3][phase] + other[3][phase] == 8 * WIDTH * sum(map(len, needs)) * times
        assert len(both[4].backward) > len(both[4].forward) or mode != "sar" or comm.size == 1  # parts of the columns of both sets
        return union, sum(map(len, needs))

    counts = threads.run(n_ranks, work)
    assert n_ranks == 1 or sum(union for union, _ in counts) < sum(both for _, both in counts)


def test_sets_of_edges_against_their_matrices():
    (outputs, d_x, d_w, *_), = threads.run(1, run, (0, 1), "sar", 1, True)
    x, d_expected = values(1, N_SRC, WIDTH), 0
    for k, matrix in enumerate(MATRICES):
        a, g = matrix.astype(float), values(4 + k, ROWS[k], WIDTH)
        a[matrix] = values(2 + k, matrix.sum())
        np.testing.assert_allclose(outputs[k], a @ x, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(d_w[k], (g @ x.T)[matrix], rtol=1e-12, atol=1e-12)
        d_expected = d_expected + a.T @ g
    np.testing.assert_allclose(d_x, d_expected, rtol=1e-12, atol=1e-12)

"""The transpose of a CSR with enough edges that threads share it; indices that are no columns are refused."""


import numpy as np
import pytest

from sarlite import kernels
from sarlite.errors import ShapeError
from tests.helpers.kernels.kernel_references import over_threads


def test_threads_share_many_edges():
    rng = np.random.default_rng(11)
    n_dst, n_src, n_edges = 70_000, 90_000, (1 << 22) + 1000
    ends = np.sort(rng.integers(0, n_edges + 1, n_dst - 1))
    indptr, src = np.concatenate([[0], ends, [n_edges]]), (n_src * rng.random(n_edges, np.float32) ** 3).astype(np.int32)
    order = np.argsort(src, kind="stable").astype(np.int32)
    rows = np.repeat(np.arange(n_dst, dtype=np.int32), np.diff(indptr))
    for t_indptr, t_indices, position in over_threads(lambda: kernels.transpose(indptr, src, n_src), (1, 4, 7)):
        np.testing.assert_array_equal(t_indptr, np.searchsorted(src[order], np.arange(n_src + 1)))
        np.testing.assert_array_equal(position, order)
        np.testing.assert_array_equal(t_indices, rows[order])


@pytest.mark.parametrize("itype", [np.int32, np.int64])
@pytest.mark.parametrize("wrong", [-1, 5])
def test_an_index_that_is_no_column_is_refused(itype, wrong):
    indices = np.array([0, wrong, 4], itype)
    with pytest.raises(ShapeError, match=f"indices must lie in 0 .. 5; got {min(wrong, 0)} .. {max(wrong, 4)}"):
        kernels.transpose(np.array([0, 1, 3]), indices, 5)

"""Sampling of in-edges against a plain Python reference, its statistics, and the row numbers of a batch."""

import math
from itertools import combinations

import numpy as np
import pytest
from scipy.stats import chi2

from sarlite import kernels
from sarlite.errors import ShapeError
from tests.helpers.kernels.kernel_references import philox4x32

pytestmark = pytest.mark.timeout(60)

KEYS, LEAST = 20_000, 1e-4  # keys are fixed, so a statistic below this is an error, not bad luck
DEGREES, PICKS = (2, 3, 7, 64, 1000), (1, 2, 5, 15)


@pytest.fixture(autouse=True)
def put_back():
    before = kernels.threads()
    yield
    kernels.set_threads(before)


# ---- the reference: one row at a time


def words(node, third, fourth, key):
    return philox4x32([node & 0xFFFFFFFF, node >> 32, third, fourth], [key & 0xFFFFFFFF, key >> 32])


def below(n, node, key, t):
    """Return draw t of a node: an integer below n by Lemire's method."""
    attempt = 0
    while True:
        product = int(words(node, t // 4, attempt, key)[t % 4]) * n
        if product % 2**32 >= (2**32 - n) % n:
            return product >> 32
        attempt += 1


def offsets(kind, degree, k, node, key, source_ids):
    """Return the picks of a row of `degree` edges, as offsets in the row."""
    if kind == "replace":
        return sorted(below(degree, node, key, t) for t in range(k)) if degree else []
    if degree <= k:
        return list(range(degree))
    if kind == "labor":
        seen, order = {}, []
        for e, source in enumerate(source_ids):
            seen[source] = seen.get(source, -1) + 1
            first, second, *_ = words(source, seen[source], 0, key)
            order.append((int(second) << 32 | int(first), e))
        return sorted(e for _, e in sorted(order)[:k])
    chosen = set()
    for t in range(k):
        last = degree - k + t
        r = below(last + 1, node, key, t)
        chosen.add(last if r in chosen else r)
    return sorted(chosen)


def reference(indptr, indices, rows, k, kind, key, loops=None, dst_ids=None, src_ids=None):
    """Return the number of picks of each row, and the positions of all picks."""
    picks = []
    for row in rows.tolist():
        places = list(range(indptr[row], indptr[row + 1]))
        loop = [e for e in places if loops is not None and loops[row] and indices[e] == row]
        places = [e for e in places if e not in loop]
        node = row if dst_ids is None else int(dst_ids[row])
        sources = [int(indices[e]) if src_ids is None else int(src_ids[indices[e]]) for e in places]
        picks.append(sorted(loop + [places[o] for o in offsets(kind, len(places), k, node, key, sources)]))
    return [len(row) for row in picks], sum(picks, [])


def csr(itype, n=100, n_edges=1300, seed=0, ids=None):
    """Return a CSR with rows of 0 to about 150 edges by ascending ids, with parallel edges.

    Half of the nodes have an added loop, some of them nothing else.
    """
    rng = np.random.default_rng(seed)
    dst, src = (0.9 * n * rng.random(n_edges) ** 2).astype(np.int64), rng.integers(0, n, n_edges)
    keep = dst != src
    loops = rng.random(n) < 0.5
    dst, src = np.append(dst[keep], np.flatnonzero(loops)), np.append(src[keep], np.flatnonzero(loops))
    order = np.lexsort((src if ids is None else ids[src], dst))
    return np.searchsorted(dst[order], np.arange(n + 1)).astype(np.int64), src[order].astype(itype), loops


@pytest.mark.parametrize("itype", [np.int32, np.int64])
@pytest.mark.parametrize("kind", list(kernels.SAMPLERS))
def test_picks_are_those_of_the_reference(kind, itype):
    """There are cases with and without loops and ids, with few picks and many, on every number of threads."""
    rng = np.random.default_rng(1)
    ids = rng.integers(0, 2**62, 100)
    rows, (indptr, _, _) = rng.permutation(100).astype(itype), csr(itype)
    assert np.diff(indptr).min() == 0 and np.diff(indptr).max() > 70
    for k, with_loops, own_ids in [(0, True, None), (1, False, None), (2, True, ids), (5, True, None), (15, False, ids), (32, True, ids),
                                   (33, True, ids), (47, False, None), (200, True, None)]:
        indptr, indices, loops = csr(itype, ids=own_ids)
        options = {"loops": loops if with_loops else None, "dst_ids": own_ids, "src_ids": own_ids}
        key = 2**63 + 7 * k
        counts, positions = reference(indptr, indices, rows, k, kind, key, **options)
        for threads in (1, 2, 4):
            kernels.set_threads(threads)
            out_indptr, sources, picks = kernels.sample(indptr, indices, rows, k, kind=kind, key=key, **options)
            assert np.array_equal(np.diff(out_indptr), counts) and picks.tolist() == positions, (k, threads)
            assert np.array_equal(sources, indices[picks])


def test_words_that_favour_some_are_drawn_again(tmp_path):
    """A row has 1.5 * 10^9 edges, nearly none of which are read: without rejection a third of the draws would be wrong."""
    degree, file = 1_500_000_000, tmp_path / "indices"
    with open(file, "wb") as f:
        f.truncate(4 * degree)
    indices = np.asarray(np.memmap(file, np.int32, "r"))
    for kind, k, key in [(kind, k, key) for kind, k in (("uniform", 8), ("replace", 8), ("uniform", 40)) for key in range(6)]:
        _, _, picks = kernels.sample(np.array([0, degree]), indices, np.zeros(1, np.int32), k, kind=kind, key=key)
        assert picks.tolist() == offsets(kind, degree, k, 0, key, ())


# ---- statistics


def picks_of(kind, degree, k):
    """Return the picks of rows with sources of their own, as offsets, for all of KEYS."""
    indptr, indices = np.arange(KEYS + 1) * degree, np.arange(KEYS * degree, dtype=np.int32)
    out_indptr, _, positions = kernels.sample(indptr, indices, np.arange(KEYS, dtype=np.int32), k, kind=kind, key=1234567 + k)
    assert (np.diff(out_indptr) == out_indptr[1]).all()
    return (positions - np.repeat(indptr[:-1], np.diff(out_indptr))).reshape(KEYS, -1)


def p_value(counts, expected):
    return chi2.sf(float(((counts - expected) ** 2 / expected).sum()), len(counts) - 1)


@pytest.mark.parametrize("degree", DEGREES)
@pytest.mark.parametrize("kind", list(kernels.SAMPLERS))
def test_each_position_and_each_pair_is_as_likely(kind, degree):
    for k in PICKS:
        picks = picks_of(kind, degree, k)
        if kind != "replace" and k >= degree:
            assert (picks == np.arange(degree)).all()
            continue
        assert (np.diff(picks) >= (kind != "replace")).all()
        counts, expected = np.bincount(picks.ravel(), minlength=degree), KEYS * k / degree
        spread = (1 - k / degree) * degree / (degree - 1) if kind != "replace" else 1  # distinct picks vary less
        assert chi2.sf(float(((counts - expected) ** 2 / expected).sum()) / spread, degree - 1) > LEAST, k
        if k > 1:
            assert pair_p_value(picks, degree, kind == "replace") > LEAST, k
        if kind != "replace" and math.comb(degree, k) <= 100:
            number = {chosen: i for i, chosen in enumerate(combinations(range(degree), k))}
            counts = np.bincount([number[tuple(row)] for row in picks.tolist()], minlength=len(number))
            assert p_value(counts, KEYS / len(number)) > LEAST, k


def pair_p_value(picks, degree, replace, n_bins=64):
    """Return the p-value that pairs of picks are uniform.

    Two of each row's picks are chosen at random. The bins are pairs of positions, above 64 positions pairs of bins of them.
    """
    rng = np.random.default_rng(0)
    two = np.argsort(rng.random(picks.shape), axis=1)[:, :2]
    bins = np.minimum(np.arange(degree) * min(n_bins, degree) // degree, n_bins - 1)
    pairs = np.sort(bins[np.take_along_axis(picks, two, axis=1)], axis=1)
    size = np.bincount(bins, minlength=n_bins)
    likely = np.outer(size, size) - (0 if replace else np.diag(size))
    likely = np.triu(likely + likely.T - np.diag(np.diag(likely))).ravel() / likely.sum()  # probabilities of unordered pairs
    counts = np.bincount(pairs[:, 0] * n_bins + pairs[:, 1], minlength=n_bins**2)
    assert (counts[likely == 0] == 0).all()
    return p_value(counts[likely > 0], KEYS * likely[likely > 0])


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("ids", [False, True])
@pytest.mark.parametrize("k", [1, 3, 15, 40])
def test_labor_is_the_same_with_a_variate_by_column(dtype, ids, k):
    """A batch has variates by column once its rows have as many edges as there are columns.

    Parallel edges and added loops are included.
    """
    rng, n = np.random.default_rng(k), 40
    degrees = rng.integers(0, 120, n)
    parts = [np.sort(rng.integers(0, n, d)) for d in degrees]
    loops = np.arange(n) % 3 == 0
    parts = [np.sort(np.append(part, i)) if loops[i] else part for i, part in enumerate(parts)]
    indptr, indices = np.concatenate([[0], np.cumsum([len(part) for part in parts])]), np.concatenate(parts).astype(dtype)
    options = {"kind": "labor", "key": 5, "loops": loops, "src_ids": np.arange(n) * 3 + 2**33 if ids else None}
    rows, numbering = np.arange(n, dtype=dtype), kernels.Numbering(n, dtype)
    want = kernels.sample(indptr, indices, rows, k, **options)
    got = kernels.sample(indptr, indices, rows, k, **options, numbering=numbering)
    assert "variates" in vars(numbering)
    for a, b in zip(want, got):
        np.testing.assert_array_equal(a, b)


def test_rows_share_the_sources_of_labor():
    """Rows with the same sources have the same picks; uniform rows do not."""
    indptr, indices = np.arange(51) * 20, np.tile(np.arange(20, dtype=np.int32), 50)
    rows = np.arange(50, dtype=np.int32)
    _, shared, _ = kernels.sample(indptr, indices, rows, 4, kind="labor", key=3)
    _, independent, _ = kernels.sample(indptr, indices, rows, 4, key=3)
    assert len(set(shared.tolist())) == 4 and len(set(independent.tolist())) == 20


# ---- numbers


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("itype", [np.int32, np.int64])
def test_rows_of_a_batch(itype, threads):
    """Seeds come first, once each; new rows ascend; columns are the numbers of the sources; no state is left."""
    kernels.set_threads(threads)
    rng, n = np.random.default_rng(0), 20_000
    degree = rng.integers(0, 30, n)
    indptr = np.concatenate([[0], np.cumsum(degree)])
    indices = rng.integers(0, n, indptr[-1]).astype(itype)
    indices = indices[np.lexsort((indices, np.repeat(np.arange(n), degree)))]
    numbering = kernels.Numbering(n, itype)
    for batch in range(3):
        seeds = rng.integers(0, n, 700).astype(itype)
        rows, numbers = numbering.begin(seeds)
        assert np.array_equal(rows[numbers], seeds) and len(np.unique(rows)) == len(rows) < len(seeds)
        for layer in range(2):
            before = rows
            _, sources, _ = kernels.sample(indptr, indices, rows, 6, key=10 * batch + layer, numbering=numbering)
            columns = sources.copy()
            rows = numbering.join(rows, columns)
            assert np.array_equal(rows[: len(before)], before) and np.array_equal(rows[columns], sources)
            assert np.array_equal(rows[len(before) :], np.setdiff1d(sources, before))
        (numbering.finish if batch else numbering.end)(rows)
        assert not any(bits.any() for bits in (numbering.members, numbering.seen, numbering.summary))


def test_clear_forgets_a_batch():
    numbering = kernels.Numbering(100, np.int32)
    rows, _ = numbering.begin(np.arange(9, dtype=np.int32))
    kernels.sample(np.arange(101), np.arange(100, dtype=np.int32)[::-1].copy(), rows, 3, numbering=numbering)
    numbering.clear()
    assert not any(bits.any() for bits in (numbering.members, numbering.seen, numbering.summary))


def wrong_arguments():
    indptr, indices, rows, k = np.array([0, 1, 3]), np.array([0, 1, 2], np.int32), np.array([0, 1], np.int32), kernels
    yield "rows", lambda: k.sample(indptr, indices, rows.astype(np.int64), 1)
    yield "rows", lambda: k.sample(indptr, indices, rows[None], 1)
    yield "indptr", lambda: k.sample(indptr.astype(np.int32), indices, rows, 1)
    yield "indices", lambda: k.sample(indptr, indices.astype(np.int16), rows, 1)
    yield "k must", lambda: k.sample(indptr, indices, rows, -1)
    yield "kind", lambda: k.sample(indptr, indices, rows, 1, kind="all")
    yield "loops", lambda: k.sample(indptr, indices, rows, 1, loops=np.ones(2, np.uint8))
    yield "dst_ids", lambda: k.sample(indptr, indices, rows, 1, dst_ids=np.arange(3))
    yield "src_ids", lambda: k.sample(indptr, indices, rows, 1, src_ids=np.arange(3, dtype=np.int32))
    yield "seeds", lambda: k.Numbering(5, np.int32).begin(np.array([5], np.int32))
    yield "seeds", lambda: k.Numbering(5, np.int32).begin(np.array([-1], np.int32))
    yield "seeds", lambda: k.Numbering(5, np.int32).begin(np.arange(3))


@pytest.mark.parametrize("name, call", list(wrong_arguments()))
def test_wrong_arguments_are_refused_by_name(name, call):
    with pytest.raises(ShapeError, match=name):
        call()


def test_a_row_of_too_many_edges(tmp_path):
    n, file = 2**32 - 1, tmp_path / "indices"
    with open(file, "wb") as f:
        f.truncate(8 * n)
    indices = np.asarray(np.memmap(file, np.int64, "r"))
    with pytest.raises(ShapeError, match="2\\^32 - 1 edges"):
        kernels.sample(np.array([0, n]), indices, np.zeros(1, np.int64), 1)

"""BTER: random graphs of a given degree distribution and clustering by degree, and how near a graph came to them.

Source: Kolda, Pinar, Plantenga and Seshadhri 2014, "A scalable generative graph model with community structure"
(SIAM J. Sci. Comput. 36).
"""

from typing import NamedTuple

import numpy as np

from sarlite.structure.draw import generator, pick, require, require_room, running_sums
from sarlite.structure.edges import csr_by_dst, destinations, row_chunks
from sarlite.structure.generate import Generated, random_task

_ROUNDS = 64  # of drawing again the edges that were there already
_WORK = 1 << 22  # products at a time where triangles are counted


def log_normal(nodes, degree, max_degree=None, beta=2.0):
    """Return how many nodes have each degree, by the distribution exp(-(log d / alpha)^beta) of degrees d >= 1.

    With beta = 2 it is log-normal.

    Parameters
    ----------
    nodes : int
    degree : float
        The mean, which decides alpha.
    max_degree : int, optional
        By default sqrt(nodes * degree), from which on Chung-Lu's probabilities would pass 1; less than nodes.
    beta : float
        Above 0; the larger, the lighter the tail.

    Returns
    -------
    (max_degree + 1,) int64
        By degree; their sum is `nodes`. Nothing is random: these are the distribution's quantiles.

    Raises
    ------
    ConfigError
        Out of range, or no alpha gives this mean.
    """
    require(2 <= nodes, "nodes", nodes, "at least 2")
    require(np.isfinite(degree) and degree > 1, "degree", degree, "more than 1")
    require(np.isfinite(beta) and beta > 0, "beta", beta, "more than 0")
    top = min(nodes - 1, max(2, round((nodes * degree) ** 0.5))) if max_degree is None else max_degree
    require(1 <= top < nodes, "max_degree", top, f"1 to {nodes - 1}")
    mean = (top + 1) / 2
    require(degree < mean, "degree", degree, f"less than {mean:g}, the mean of degrees 1 to {top}, all as likely")
    logs, each = np.log(np.arange(1, top + 1)), np.arange(1, top + 1)
    low, high = -10.0, 20.0  # log alpha; the mean rises with it
    for _ in range(100):
        middle = (low + high) / 2
        shares = _shares(logs, np.exp(middle), beta)
        low, high = (middle, high) if shares @ each < degree else (low, middle)
    ends = np.floor(np.cumsum(shares) * nodes + 0.5).astype(np.int64)
    ends[-1] = nodes
    return np.diff(ends, prepend=[0, 0])


def _shares(logs, alpha, beta):
    with np.errstate(over="ignore", under="ignore"):
        p = np.exp(-((logs / alpha) ** beta))
    return p / p.sum()


def decaying(max_degree, cmax=0.9, xi=0.05):
    """Return the clustering coefficient by degree cmax exp(-(d - 1) xi), 0 for d < 2: (max_degree + 1,) float64."""
    require(0 <= cmax <= 1, "cmax", cmax, "0 to 1")
    require(np.isfinite(xi) and xi >= 0, "xi", xi, "at least 0")
    degrees = np.arange(max_degree + 1)
    return np.where(degrees < 2, 0.0, cmax * np.exp(-(degrees - 1.0) * xi))


class Blocks(NamedTuple):
    """Affinity blocks of nodes in the order of ascending degrees.

    Block b has the sizes[b] nodes from firsts[b] on, each two of which are joined with probability rho[b].
    """

    firsts: np.ndarray
    sizes: np.ndarray
    rho: np.ndarray


def blocks(counts, clustering):
    """Return the affinity blocks (section 3.1): d + 1 nodes whose least degree is d >= 2, with rho = cbrt(c_d)."""
    firsts, degrees = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    at = end = int(counts[:2].sum())
    for degree in range(2, len(counts)):
        end += int(counts[degree])
        here = np.arange(at, end, degree + 1)
        firsts.append(here)
        degrees.append(np.full(here.size, degree))
        at += here.size * (degree + 1)
    firsts, degrees = np.concatenate(firsts), np.concatenate(degrees)
    sizes = np.minimum(firsts + degrees + 1, end) - firsts
    return Blocks(firsts, sizes, np.cbrt(clustering[degrees]))


def bter(counts, clustering, features=64, classes=8, train=0.1, val=0.2, seed=0, chunk=1 << 20):
    """Draw a BTER graph with random features, labels and splits.

    Phase 1 joins the nodes of each affinity block at random. Phase 2 joins nodes of the whole graph in proportion to
    what phase 1 left of their degrees (Chung-Lu). Nodes of degree 1 are in phase 2 alone. An edge that is there
    already, or joins a node to itself, is drawn again.

    Parameters
    ----------
    counts : (max_degree + 1,) int64
        How many nodes have each degree.
    clustering : (max_degree + 1,) float64
        Mean local clustering coefficient by degree, 0 to 1.
    features, classes, train, val, seed
        As for `generate.sbm`. Features and labels know nothing of the graph.
    chunk : int
        Pairs drawn at a time; the graph does not depend on it.

    Returns
    -------
    Generated
        Symmetric, no self loops, no duplicates. Half the sum of the degrees as edges, each both ways, or fewer where so
        many were not found. Node ids say nothing about degrees.

    Raises
    ------
    ConfigError

    Notes
    -----
    In expectation degrees and clustering are as asked for, but for what drawing again shifts: `compare` says how near
    they came. A node's degree of phase 2 is about Poisson, so a third of the nodes of degree 1 gets no edge. Where
    degrees are high, phase 2 makes triangles too. Memory: about 40 bytes an edge, and 100 a pair of a chunk. Time: a
    random number for each pair of a block; there are about as many pairs as edges; 9 million directed edges take 4 s.
    """
    nodes, n_pairs = int(counts.sum()), int(counts @ np.arange(len(counts))) // 2
    require(nodes >= 2, "nodes", nodes, "at least 2")
    require(len(counts) <= nodes, "degrees", len(counts) - 1, f"a largest degree below the number of nodes, {nodes}")
    require_room(nodes, 2 * n_pairs, features)
    rng, groups = generator(seed), blocks(counts, clustering)
    keys = _sorted(_inside(rng, groups, nodes, chunk))
    sums = running_sums(_excess(counts, groups))
    for _ in range(_ROUNDS if sums[-1] > 0 else 0):
        if keys.size >= n_pairs:
            break
        keys = _sorted([keys, *_anywhere(rng, sums, n_pairs - keys.size, nodes, chunk)])
    ids = rng.permutation(nodes)
    indptr, indices = csr_by_dst(ids[keys // nodes], ids[keys % nodes], nodes, undirected=True)
    return Generated(indptr, indices, *random_task(rng, nodes, features, classes, train, val), classes)


def _inside(rng, groups, nodes, chunk):
    """Yield the edges of phase 1 as keys: every pair of a block with its probability."""
    ends = np.concatenate(([0], np.cumsum(groups.sizes * (groups.sizes - 1) // 2)))
    for first in range(0, int(ends[-1]), chunk):
        pairs = np.arange(first, min(first + chunk, int(ends[-1])))
        block = np.searchsorted(ends, pairs, side="right") - 1
        kept = rng.random(pairs.size) < groups.rho[block]
        block, place = block[kept], (pairs - ends[block])[kept]
        # the pair (s, l), s < l, has the place l (l - 1) / 2 + s
        larger = ((1 + np.sqrt(1.0 + 8.0 * place)) / 2).astype(np.int64)
        larger -= larger * (larger - 1) // 2 > place
        larger += larger * (larger + 1) // 2 <= place
        smaller = place - larger * (larger - 1) // 2
        yield (groups.firsts[block] + smaller) * nodes + groups.firsts[block] + larger


def _excess(counts, groups):
    """Return the expected part of each node's degree that phase 1 leaves; nodes are sorted by ascending degree."""
    degrees = np.repeat(np.arange(len(counts), dtype=np.float64), counts)
    of_block = np.repeat(groups.rho * (groups.sizes - 1), groups.sizes)
    degrees[degrees.size - of_block.size :] -= of_block
    return np.maximum(degrees, 0)


def _anywhere(rng, sums, n_pairs, nodes, chunk):
    """Yield edges of phase 2 as keys: both ends in proportion to the excess degrees."""
    for first in range(0, n_pairs, chunk):
        ends = pick(rng, sums, 0.0, sums[-1], 2 * min(chunk, n_pairs - first)).reshape(-1, 2)
        ends = ends[ends[:, 0] != ends[:, 1]]
        yield ends.min(axis=1) * nodes + ends.max(axis=1)


def _sorted(parts):
    """Return the keys of all parts, ascending, each once."""
    keys = np.concatenate([np.empty(0, np.int64), *parts])
    keys.sort(kind="stable")  # merges what is sorted
    return keys[np.diff(keys, prepend=-1) != 0]


def compare(indptr, indices, counts, clustering, sample=200, seed=0):
    """Return the asked and the found nodes and clustering of a graph, by ranges of degrees.

    Parameters
    ----------
    indptr, indices
        A symmetric graph; self loops do not count.
    counts, clustering
        As `bter` was given them.
    sample : int
        Nodes of a range whose triangles are counted, at most.

    Returns
    -------
    list of dict
        For the degrees "low" to "high" (0, 1, 2, 3 to 4, 5 to 8, ...): "nodes" and "clustering", each a pair
        (asked, found). The mean clustering is None where there is no node, or degrees are below 2.
    """
    import scipy.sparse  # heavy, and drawing does without

    dst = destinations(indptr)
    away = dst != indices
    degrees = np.bincount(dst[away], minlength=indptr.size - 1)
    ones = np.ones(np.count_nonzero(away), np.float32)
    matrix = scipy.sparse.csr_matrix((ones, (dst[away], indices[away])), shape=(degrees.size, degrees.size))
    rng, rows, high, low = np.random.default_rng(seed), [], 0, 0
    while low < max(len(counts), degrees.max(initial=0) + 1):
        asked, there = counts[low : high + 1], np.flatnonzero((degrees >= low) & (degrees <= high))
        found = local_clustering(matrix, degrees, rng.permutation(there)[:sample]) if high > 1 and there.size else None
        wanted = asked @ clustering[low : high + 1] / asked.sum() if high > 1 and asked.sum() else None
        clustering_pair = None if wanted is None else float(wanted), None if found is None else float(found.mean())
        rows.append({"low": low, "high": high, "nodes": (int(asked.sum()), there.size), "clustering": clustering_pair})
        low, high = high + 1, max(1, 2 * high)
    return rows


def local_clustering(matrix, degrees, nodes):
    """Return the share of each node's pairs of neighbours that are joined; degrees are above 1.

    Memory: 2^22 products of rows at a time.
    """
    work = np.concatenate(([0], np.cumsum((matrix[nodes] @ degrees).astype(np.int64))))
    triangles = np.empty(nodes.size)
    for first, last in row_chunks(work, _WORK):
        rows = matrix[nodes[first:last]]
        triangles[first:last] = np.asarray((rows @ matrix).multiply(rows).sum(axis=1)).ravel()
    return triangles / (degrees[nodes] * (degrees[nodes] - 1.0))

"""BTER generator: random graphs with a given degree distribution and clustering, and a check of graphs against both.

Source: Kolda, Pinar, Plantenga and Seshadhri 2014, "A scalable generative graph model with community structure"
(SIAM J. Sci. Comput. 36).
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from sarlite.structure.draw import generator, pick, require, require_room, running_sums
from sarlite.structure.edges import csr_by_dst, destinations, row_chunks
from sarlite.structure.generate import Generated, random_task
from sarlite.types import Array

_ROUNDS = 64  # largest number of times that missing edges are drawn again
_WORK = 1 << 22  # number of products that are held at a time when triangles are counted


def log_normal(nodes: int, degree: float, max_degree: int | None = None, beta: float = 2.0) -> Array:
    """Return the numbers of nodes of degree 0, 1, 2, ..., which sum to `nodes`. The number of degree d >= 1 is proportional to
    exp(-(log d / alpha)^beta), where alpha makes the mean `degree`; `max_degree` is by default sqrt(nodes * degree).

    With beta = 2 the distribution is log-normal.

    Parameters
    ----------
    nodes : int
        Number of nodes.
    degree : float
        Mean degree, which determines alpha.
    max_degree : int, optional
        Largest degree, less than `nodes`; by default sqrt(nodes * degree), above which probabilities of the Chung-Lu
        model would exceed 1.
    beta : float
        Above 0; the larger, the lighter the tail.

    Returns
    -------
    (max_degree + 1,) int64
        Number of nodes of each degree; the sum is `nodes`. The numbers are quantiles, so nothing is random.

    Raises
    ------
    ConfigError
        An argument is out of range, or no alpha gives this mean.
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


def decaying(max_degree: int, cmax: float = 0.9, xi: float = 0.05) -> Array:
    """Return a clustering coefficient for each degree d: cmax exp(-(d - 1) xi), and 0 for d < 2; (max_degree + 1,) float64."""
    require(0 <= cmax <= 1, "cmax", cmax, "0 to 1")
    require(np.isfinite(xi) and xi >= 0, "xi", xi, "at least 0")
    degrees = np.arange(max_degree + 1)
    return np.where(degrees < 2, 0.0, cmax * np.exp(-(degrees - 1.0) * xi))


class Blocks(NamedTuple):
    """Affinity blocks: sets of nodes of nearly equal degree, where each pair of nodes is joined with one probability.

    Block b has the sizes[b] nodes from node firsts[b] on. Each two of them are joined with probability rho[b].
    """

    firsts: np.ndarray
    sizes: np.ndarray
    rho: np.ndarray


def blocks(counts: Array, clustering: Array) -> Blocks:
    """Divide nodes, sorted by degree with counts[d] of degree d, into consecutive Blocks of d + 1 nodes, where d is the least
    degree in the block. Pairs in a block are joined with probability clustering[d]^(1/3), which gives the clustering coefficient
    clustering[d].
    """
    first_nodes, least_degrees = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    at = end = int(counts[:2].sum())
    for degree in range(2, len(counts)):
        end += int(counts[degree])
        here = np.arange(at, end, degree + 1)
        first_nodes.append(here)
        least_degrees.append(np.full(here.size, degree))
        at += here.size * (degree + 1)
    firsts, degrees = np.concatenate(first_nodes), np.concatenate(least_degrees)
    sizes = np.minimum(firsts + degrees + 1, end) - firsts
    return Blocks(firsts, sizes, np.cbrt(clustering[degrees]))


def bter(counts: Array, clustering: Array, features: int = 64, classes: int = 8, train: float = 0.1, val: float = 0.2,
         seed: int = 0, chunk: int = 1 << 20) -> Generated:
    """Draw a BTER graph with counts[d] nodes of degree d and mean clustering coefficient clustering[d], and random features and
    labels. `train` and `val` are shares or numbers of nodes of each class; `chunk` pairs are drawn at a time.

    Phase 1 joins nodes within each affinity block at random. Phase 2 joins nodes of the whole graph in proportion to
    the part of their degree that phase 1 left (Chung-Lu model). A self loop or an edge that exists already is drawn
    again.

    Parameters
    ----------
    counts : (max_degree + 1,) int64
        Number of nodes of each degree.
    clustering : (max_degree + 1,) float64
        Mean local clustering coefficient of the nodes of each degree, 0 to 1.
    features, classes, train, val, seed
        See `generate.sbm`. Features and labels do not depend on the graph.
    chunk : int
        Number of pairs that are drawn at a time; the graph does not depend on it.

    Returns
    -------
    Generated
        Symmetric graph without self loops and duplicates. It has half the sum of the degrees as undirected edges, or
        fewer if repeated drawing did not find as many. Node ids are in random order.

    Raises
    ------
    ConfigError
        An argument is out of range, or the graph does not fit into memory.

    Notes
    -----
    The expected degrees and clustering are the wanted ones, except for a shift by edges that are drawn again; `compare`
    measures the difference. Degrees of phase 2 are about Poisson-distributed, so a third of the nodes of degree 1 gets
    no edge. Phase 2 makes triangles too if degrees are high. Memory: about 40 bytes for each edge, and 100 bytes for
    each pair of a chunk. Time: one random number for each pair within a block, which are about as many as edges; 9
    million directed edges take 4 s.
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


def _inside(rng: np.random.Generator, affinity_blocks: Blocks, n_nodes: int, chunk: int) -> Iterator[Array]:
    """Yield arrays of edges (u, v), coded as u * n_nodes + v, within the affinity blocks. Each pair of nodes in a block is drawn
    with the block's probability rho; `chunk` pairs are tried at a time.
    """
    ends = np.concatenate(([0], np.cumsum(affinity_blocks.sizes * (affinity_blocks.sizes - 1) // 2)))
    for first in range(0, int(ends[-1]), chunk):
        pairs = np.arange(first, min(first + chunk, int(ends[-1])))
        block = np.searchsorted(ends, pairs, side="right") - 1
        drawn = rng.random(pairs.size) < affinity_blocks.rho[block]
        block, place = block[drawn], (pairs - ends[block])[drawn]
        # the pair (s, l), s < l, has the number l (l - 1) / 2 + s within its block
        larger = ((1 + np.sqrt(1.0 + 8.0 * place)) / 2).astype(np.int64)
        larger -= larger * (larger - 1) // 2 > place
        larger += larger * (larger + 1) // 2 <= place
        smaller = place - larger * (larger - 1) // 2
        yield (affinity_blocks.firsts[block] + smaller) * n_nodes + affinity_blocks.firsts[block] + larger


def _excess(counts: Array, affinity_blocks: Blocks) -> Array:
    """Return each node's wanted degree minus its expected number of edges within its block, at least 0, (n_nodes,). The nodes are
    sorted by wanted degree, with counts[d] of degree d.
    """
    degrees = np.repeat(np.arange(len(counts), dtype=np.float64), counts)
    of_block = np.repeat(affinity_blocks.rho * (affinity_blocks.sizes - 1), affinity_blocks.sizes)
    degrees[degrees.size - of_block.size :] -= of_block
    return np.maximum(degrees, 0)


def _anywhere(rng: np.random.Generator, sums: Array, n_pairs: int, n_nodes: int, chunk: int) -> Iterator[Array]:
    """Yield arrays of up to `chunk` edges (u, v), coded as u * n_nodes + v with u < v. `n_pairs` pairs are drawn in all, in
    proportion to node weights whose running sums are `sums`; self loops are then dropped.
    """
    for first in range(0, n_pairs, chunk):
        ends = pick(rng, sums, 0.0, sums[-1], 2 * min(chunk, n_pairs - first)).reshape(-1, 2)
        ends = ends[ends[:, 0] != ends[:, 1]]
        yield ends.min(axis=1) * n_nodes + ends.max(axis=1)


def _sorted(parts: Iterable[Array]) -> Array:
    """Return the distinct numbers of all arrays in `parts` as one ascending array."""
    keys = np.concatenate([np.empty(0, np.int64), *parts])
    keys.sort(kind="stable")  # a merge sort is fast for arrays that are sorted already
    return keys[np.diff(keys, prepend=-1) != 0]


def compare(indptr: Array, indices: Array, counts: Array, clustering: Array, sample: int = 200,
            seed: int = 0) -> list[dict[str, Any]]:
    """Compare a graph, given as a CSR, with the values that `bter` drew it for: `counts`, the number of nodes, and `clustering`,
    the clustering coefficient, of each degree. Return a list with a dict of pairs (wanted, actual) for each range of degrees. The
    actual clustering is a mean over at most `sample` random nodes of the range.

    Parameters
    ----------
    indptr, indices
        CSR of a symmetric graph; self loops do not count.
    counts, clustering
        Arguments of `bter`.
    sample : int
        Largest number of nodes of each range whose triangles are counted.
    seed : int
        Seed of the choice of these nodes.

    Returns
    -------
    list of dict
        One dict for each range of degrees "low" to "high" (0, 1, 2, 3 to 4, 5 to 8, ...), with "nodes" and
        "clustering", each a pair (wanted, actual). The mean clustering is None if the range has no node or only degrees
        below 2.
    """
    import scipy.sparse  # imported here because drawing a graph does not need it

    dst = destinations(indptr)
    away = dst != indices
    degrees = np.bincount(dst[away], minlength=indptr.size - 1)
    ones = np.ones(np.count_nonzero(away), np.float32)
    matrix = scipy.sparse.csr_matrix((ones, (dst[away], indices[away])), shape=(degrees.size, degrees.size))
    rng, rows, high, low = np.random.default_rng(seed), [], 0, 0
    while low < max(len(counts), degrees.max(initial=0) + 1):
        asked, nodes = counts[low : high + 1], np.flatnonzero((degrees >= low) & (degrees <= high))
        actual = local_clustering(matrix, degrees, rng.permutation(nodes)[:sample]) if high > 1 and nodes.size else None
        wanted = asked @ clustering[low : high + 1] / asked.sum() if high > 1 and asked.sum() else None
        clustering_pair = None if wanted is None else float(wanted), None if actual is None else float(actual.mean())
        rows.append({"low": low, "high": high, "nodes": (int(asked.sum()), nodes.size), "clustering": clustering_pair})
        low, high = high + 1, max(1, 2 * high)
    return rows


def local_clustering(matrix: Any, degrees: Array, nodes: Array) -> Array:
    """Return the local clustering coefficient of each of `nodes`: the share of pairs of its neighbours that are joined. `matrix` is
    the graph as a sparse matrix of ones, `degrees` has each node's degree.

    Parameters
    ----------
    matrix : scipy.sparse matrix of ones
        Symmetric graph without self loops.
    degrees : (n_nodes,) int
    nodes : (n,) int
        Nodes of degrees above 1.
    """
    work = np.concatenate(([0], np.cumsum((matrix[nodes] @ degrees).astype(np.int64))))
    triangles = np.empty(nodes.size)
    for first, last in row_chunks(work, _WORK):
        rows = matrix[nodes[first:last]]
        triangles[first:last] = np.asarray((rows @ matrix).multiply(rows).sum(axis=1)).ravel()
    return triangles / (degrees[nodes] * (degrees[nodes] - 1.0))

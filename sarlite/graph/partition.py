"""Which rank owns which node: METIS, random and contiguous partitions, a user's own, and what a partition costs."""

import warnings
from pathlib import Path

import numpy as np

from sarlite.errors import ConfigError, DataError, needs
from sarlite.graph.edges import csr_by_dst, destinations

_TRAIN_SLACK = 1.1
METHODS = ("metis", "random", "contiguous")


def partition(indptr, indices, n_parts, method="metis", *, train_mask=None, seed=0):
    """Assign every node to a part.

    Parameters
    ----------
    indptr : (n_nodes + 1,) integer array, borrowed
    indices : (n_edges,) integer array, borrowed
    n_parts : int
        May exceed the number of nodes; some parts are empty then, and only then.
    method : {"metis", "random", "contiguous"}
        "metis" cuts few edges and balances nodes plus training nodes; "random" and "contiguous" balance the nodes exactly,
        by a permutation or by ranges of node ids.
    train_mask : (n_nodes,) bool, optional
        Used by "metis" alone. pymetis balances one weight a node, and one weight for nodes and training nodes balances only
        their sum; so METIS balances the nodes, and then training nodes are swapped against others, those that cost the
        fewest cut edges first, until no part has more than 1.1 times its share (rounded up) of the training nodes.
    seed : int
        The same arguments give the same parts.

    Returns
    -------
    (n_nodes,) int32
        0 <= part < n_parts.

    Raises
    ------
    ConfigError
        Unknown method, `n_parts` below 1, a negative seed, or METIS is not there or fails.

    Notes
    -----
    Memory of "metis": about 50 bytes an edge of the symmetric graph, here and inside METIS; the others 12 bytes a node.
    Source: Karypis and Kumar 1998, "A fast and high quality multilevel scheme for partitioning irregular graphs".
    """
    n_nodes = indptr.size - 1
    if method not in METHODS:
        raise ConfigError(f"method: {method!r} is none of {', '.join(METHODS)}")
    if n_parts < 1:
        raise ConfigError(f"n_parts: {n_parts} is below 1")
    if seed < 0:
        raise ConfigError(f"seed: {seed} is below 0")
    blocks = (np.arange(n_nodes) * n_parts // max(n_nodes, 1)).astype(np.int32)
    if method == "random":
        return np.random.Generator(np.random.PCG64(seed)).permutation(blocks)
    if method == "contiguous" or n_parts == 1 or n_nodes <= n_parts:
        return blocks
    dst = destinations(indptr)
    keep = dst != indices  # METIS wants a symmetric graph without self loops
    indptr, indices = csr_by_dst(np.asarray(indices)[keep], dst[keep], n_nodes, undirected=True)
    del dst, keep
    if indices.size == 0:
        return blocks
    parts = _fill_empty(_metis(indptr, indices, n_parts, seed), n_parts)
    return parts if train_mask is None else _balance(indptr, indices, parts, n_parts, np.asarray(train_mask))


def read_parts(file, n_nodes, n_parts):
    """Read a user's partition: a .npy file of integers, or text with one part a line.

    Returns
    -------
    (n_nodes,) int32

    Raises
    ------
    DataError
        The file cannot be read, has another length than `n_nodes`, or a part outside 0 <= part < n_parts.
    """
    path = Path(file)
    try:
        parts = np.load(path, allow_pickle=False) if path.suffix == ".npy" else _read_text(path)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path}: parts: cannot be read: {error}") from error
    return check_parts(parts, n_nodes, n_parts, path)


def check_parts(parts, n_nodes, n_parts, source):
    """Return `parts` as (n_nodes,) int32, or raise a DataError that names `source` and the first bad value."""
    parts = np.asarray(parts)
    if parts.dtype.kind not in "iu":
        raise DataError(f"{source}: parts: expected an integer dtype, found {parts.dtype}")
    if parts.shape != (n_nodes,):
        raise DataError(f"{source}: parts: expected shape ({n_nodes},), one part a node, found {parts.shape}")
    bad = (parts < 0) | (parts >= n_parts)
    if bad.any():
        at = int(np.argmax(bad))
        raise DataError(f"{source}: parts: node {at} has part {parts[at]}, outside 0 <= part < {n_parts}")
    return parts.astype(np.int32)


def report(indptr, indices, parts, n_parts, train_mask=None):
    """Measure a partition.

    Returns
    -------
    dict
        "nodes", "edges" (by destination), "train_nodes" and "halo_rows" (distinct remote sources): a list of int, one a part;
        "imbalance": {"nodes", "edges", "train_nodes", "halo_rows"}: maximum over mean, 1.0 where all are 0;
        "cut_edges": int, "cut_share": float; "n_parts": int.

    Notes
    -----
    Memory: 16 bytes an edge and 24 bytes a cut edge.
    """
    parts = np.asarray(parts)
    n_nodes = indptr.size - 1
    at = parts[destinations(indptr, np.int32 if n_nodes < 2**31 else np.int64)]
    cut = at != parts[indices]
    remote = np.unique(at[cut].astype(np.int64) * n_nodes + indices[cut])
    train = np.zeros(n_nodes, bool) if train_mask is None else np.asarray(train_mask)
    counts = {
        "nodes": np.bincount(parts, minlength=n_parts),
        "edges": np.bincount(at, minlength=n_parts),
        "train_nodes": np.bincount(parts[train], minlength=n_parts),
        "halo_rows": np.bincount(remote // max(n_nodes, 1), minlength=n_parts),
    }
    n_cut = int(np.count_nonzero(cut))
    return {
        "n_parts": int(n_parts),
        **{name: count.tolist() for name, count in counts.items()},
        "imbalance": {name: _imbalance(count) for name, count in counts.items()},
        "cut_edges": n_cut,
        "cut_share": n_cut / max(cut.size, 1),
    }


def _imbalance(count):
    return float(count.max() / count.mean()) if count.any() else 1.0


def _metis(indptr, indices, n_parts, seed):
    pymetis = needs("pymetis", "method 'metis'")
    index = np.dtype(pymetis.zero_copy_dtype() if hasattr(pymetis, "zero_copy_dtype") else np.int32)
    if indices.size > np.iinfo(index).max:
        raise ConfigError(f"method: this pymetis has {index} indices, too small for {indices.size} edges; bring parts in a file")
    xadj, adjncy = indptr.astype(index, copy=False), indices.astype(index, copy=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # xadj= and adjncy=: the form that old and new pymetis take without a copy
        try:
            _, parts = pymetis.part_graph(n_parts, xadj=xadj, adjncy=adjncy, options=pymetis.Options(seed=seed % 2**31))
        except RuntimeError as error:
            raise ConfigError(f"method: METIS failed for {indptr.size - 1} nodes and {n_parts} parts: {error}") from error
    return np.array(parts, np.int32)


def _balance(indptr, indices, parts, n_parts, train):
    """Swap training nodes of parts that have too many against other nodes of parts that have too few."""
    n_train = np.count_nonzero(train)
    most = int(np.ceil(_TRAIN_SLACK * n_train / n_parts))
    for _ in range(4 * n_parts):
        counts = np.bincount(parts[train], minlength=n_parts)
        giver = int(np.argmax(counts))
        if counts[giver] <= most:
            break
        others = np.bincount(parts[~train], minlength=n_parts)
        taker = int(np.argmin(np.where(others > 0, counts, n_train)))
        n_swaps = min(counts[giver] - most, most - counts[taker], others[taker])
        if n_swaps <= 0:
            break
        there = _cheapest(indptr, indices, parts, train & (parts == giver), giver, taker, n_swaps)
        back = _cheapest(indptr, indices, parts, ~train & (parts == taker), taker, giver, n_swaps)
        parts[there], parts[back] = taker, giver
    return parts


def _cheapest(indptr, indices, parts, candidates, home, away, count):
    """Return the `count` candidates that move from `home` to `away` at the least cost in cut edges."""
    nodes = np.flatnonzero(candidates)
    lengths = indptr[nodes + 1] - indptr[nodes]
    owner = np.repeat(np.arange(nodes.size), lengths)
    first = np.cumsum(lengths) - lengths
    near = parts[indices[np.arange(owner.size) - first[owner] + indptr[nodes][owner]]]
    cost = np.bincount(owner[near == home], minlength=nodes.size) - np.bincount(owner[near == away], minlength=nodes.size)
    return nodes[np.argsort(cost, kind="stable")[:count]]


def _fill_empty(parts, n_parts):
    """Give each empty part one node of the part that is largest at that time; there are at least as many nodes as parts."""
    sizes = np.bincount(parts, minlength=n_parts)
    for empty in np.flatnonzero(sizes == 0):
        giver = int(np.argmax(sizes))
        parts[np.flatnonzero(parts == giver)[-1]] = empty
        sizes[giver] -= 1
        sizes[empty] = 1
    return parts


def _read_text(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # an empty file: the length says so
        return np.loadtxt(path, dtype=np.int64, ndmin=1)

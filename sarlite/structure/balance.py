"""Balancing of a partition's parts: the node weights that METIS balances, and moves of nodes between parts after METIS.

METIS balances one weight for each node, which mixes several counts. Where METIS leaves a count uneven, functions of
this module move or swap the nodes that cost the fewest cut edges.
"""

from collections.abc import Sequence

import numpy as np

from sarlite.errors import ConfigError
from sarlite.types import Array, JsonObject

COUNTS = ("nodes", "edges", "train")
TRAIN_SLACK = 1.1
"""Largest allowed number of a part's training nodes, as a multiple of the mean over parts."""
NODES_SLACK = 1.05
"""Largest allowed number of a part's nodes when METIS balances edges, as a multiple of the mean over parts."""
TYPE_SLACK = 1.1
"""Largest allowed number of a part's nodes of one type, as a multiple of the mean over parts, rounded up."""
UNEVEN = 1.5
"""Ratio of the largest part to the mean above which a warning is given."""
_NODES_SHARE = 0.05


def check(balance: str | Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the option `balance` as a tuple of the counts to balance, some of "nodes", "edges" and "train"; for None or "auto"
    return None, which stands for the default.

    Parameters
    ----------
    balance : str, sequence of str, or None
        None or "auto" for the default; some of "nodes", "edges" and "train", joined by commas or as a sequence.

    Raises
    ------
    ConfigError
        A name is unknown or occurs twice, or there is none.
    """
    if balance is None or balance == "auto":
        return None
    words = tuple(balance.split(",")) if isinstance(balance, str) else tuple(balance)
    if not words or len(set(words)) < len(words) or not all(word in COUNTS for word in words):
        shown = ",".join(map(str, words))
        raise ConfigError(f"balance: {shown!r} is neither auto nor some of {','.join(COUNTS)}, each once")
    return words


def chosen(balance: str | Sequence[str] | None, degrees: Array) -> tuple[str, ...]:
    """Return the names of the counts to balance between parts, some of "nodes", "edges" and "train": the option `balance`, or if it
    is None or "auto", a default that depends on the in-`degrees` of the nodes.

    By default these are nodes and training nodes, and also edges if the standard deviation of the degrees is above
    their mean.
    """
    balance = check(balance)
    if balance is not None:
        return balance
    return by_degrees(degrees.mean(), degrees.std()) if degrees.size else by_degrees(0, 0)


def by_degrees(mean: float, deviation: float) -> tuple[str, ...]:
    """Return the counts to balance by default: "nodes", "train", and also "edges" if the in-degrees' `deviation` exceeds their `mean`."""
    return COUNTS if deviation > mean else ("nodes", "train")


def weights(degrees: Array, balance: Sequence[str]) -> Array | None:
    """Return the node weights, (n_nodes,) int64, whose sums METIS makes equal in all parts: the in-degree (`degrees`), plus a
    constant if `balance` names "nodes" beside "edges". Return None, for equal weights, if `balance` does not name "edges".

    With "edges" and "nodes" in `balance` the weight is proportional to the in-degree plus a twentieth of the mean
    degree. METIS then leaves the number of nodes uneven, mostly of nodes of low degree, which `even_nodes` moves at
    little cost. With the whole mean degree in place of a twentieth neither count is even. An R-MAT graph of 200,000
    nodes and 4 million edges in 8 parts shows it: the largest part over the mean was 1.95 for nodes and 1.62 for edges.
    With a twentieth the ratios were 1.00 and 1.02, at equally many cut edges.
    """
    if "edges" not in balance:
        return None
    each = degrees / max(degrees.mean(), 1e-300) + (_NODES_SHARE if "nodes" in balance else 0)
    scale = min(1 / _NODES_SHARE, 2**30 / each.sum())  # the sum fits 32 bits
    return np.maximum(1, np.rint(each * scale)).astype(np.int64)


def fill_empty(parts: Array, n_parts: int) -> Array:
    """Move one node of the largest part into each empty part, if there is one. `parts`, the part number of each node, is changed in
    place and returned.

    At least `n_parts` nodes are needed.
    """
    sizes = np.bincount(parts, minlength=n_parts)
    for empty in np.flatnonzero(sizes == 0):
        giver = int(np.argmax(sizes))
        parts[np.flatnonzero(parts == giver)[-1]] = empty
        sizes[giver] -= 1
        sizes[empty] = 1
    return parts


def even_nodes(xadj: Array, adjncy: Array, parts: Array, n_parts: int, degrees: Array) -> Array:
    """Even out the parts' numbers of nodes: move nodes of low in-degree (`degrees`) from large to small parts. `xadj`, `adjncy` is
    the graph's CSR; `parts`, the part of each node, is changed in place and returned.

    Among the nodes of lowest degree, whose moves leave the edges even, the nodes that cost the fewest cut edges move.

    Parameters
    ----------
    xadj, adjncy : CSR of the symmetric graph
    parts : (n_nodes,) int
        The part of each node.
    n_parts : int
    degrees : (n_nodes,) int
        In-degrees.
    """
    share = parts.size / n_parts
    for _ in range(4 * n_parts):
        counts = np.bincount(parts, minlength=n_parts)
        giver, taker = int(np.argmax(counts)), int(np.argmin(counts))
        n_moves = min(counts[giver] - int(np.ceil(share)), int(share) - counts[taker])
        if counts[giver] <= np.ceil(NODES_SLACK * share) or n_moves <= 0:
            break
        nodes = np.flatnonzero(parts == giver)
        light = nodes[np.argsort(degrees[nodes], kind="stable")[: 2 * n_moves]]
        parts[cheapest(xadj, adjncy, parts, light, giver, taker, n_moves)] = taker
    return parts


def swap_training(xadj: Array, adjncy: Array, parts: Array, n_parts: int, train: Array) -> Array:
    """Even out the parts' numbers of training nodes (True in `train`): swap them with other nodes. `xadj`, `adjncy` is the graph's
    CSR; `parts`, the part of each node, is changed in place and returned.

    Training nodes of the part with the most training nodes are swapped with other nodes of the part with the fewest.
    """
    n_train = np.count_nonzero(train)
    most = int(np.ceil(TRAIN_SLACK * n_train / n_parts))
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
        to_taker = cheapest(xadj, adjncy, parts, np.flatnonzero(train & (parts == giver)), giver, taker, n_swaps)
        to_giver = cheapest(xadj, adjncy, parts, np.flatnonzero(~train & (parts == taker)), taker, giver, n_swaps)
        parts[to_taker], parts[to_giver] = taker, giver
    return parts


def even_group(xadj: Array, adjncy: Array, parts: Array, n_parts: int, nodes: Array) -> None:
    """Even out how many of `nodes`, such as all nodes of a type, each part has: move nodes to other parts. `xadj`, `adjncy` is the
    graph's CSR; `parts`, the part of each node, is changed in place.
    """
    most = int(np.ceil(TYPE_SLACK * nodes.size / n_parts))
    for _ in range(4 * n_parts):
        counts = np.bincount(parts[nodes], minlength=n_parts)
        giver, taker = int(np.argmax(counts)), int(np.argmin(counts))
        n_moves = min(counts[giver] - most, most - counts[taker])
        if n_moves <= 0:
            return
        parts[cheapest(xadj, adjncy, parts, nodes[parts[nodes] == giver], giver, taker, n_moves)] = taker


def cheapest(xadj: Array, adjncy: Array, parts: Array, nodes: Array, home: int, away: int, count: int) -> Array:
    """Return the `count` nodes of `nodes` whose moves from part `home` to part `away` each add the fewest cut edges. `xadj`,
    `adjncy` is the graph's CSR; `parts` has the part of each node.
    """
    lengths = xadj[nodes + 1] - xadj[nodes]
    owner = np.repeat(np.arange(nodes.size), lengths)
    first = np.cumsum(lengths) - lengths
    near = parts[adjncy[np.arange(owner.size) - first[owner] + xadj[nodes][owner]]]
    at_home, at_away = (np.bincount(owner[near == part], minlength=nodes.size) for part in (home, away))
    cost = at_home - at_away
    return nodes[np.argsort(cost, kind="stable")[:count]]


def warning(measures: JsonObject, method: str, balance: str | None = None) -> str | None:
    """Return a text that names the uneven counts in `measures` (result of `partition.measures`) and a remedy; None if all counts
    are even. `method` divided the nodes and was asked to balance `balance` (None: its default).

    Parameters
    ----------
    measures : dict
        Result of `partition.measures`.
    method : str
        Method that divided the nodes.
    balance : str, optional
        Counts that `method` was asked to balance; see `check`.
    """
    shown = {"nodes": "nodes", "edges": "edges", "train_nodes": "training nodes"}
    imbalance = measures["imbalance"]
    uneven = {name: word for name, word in shown.items() if imbalance.get(name, 0) > UNEVEN}
    if not uneven:
        return None
    evened = check(balance) or ("nodes", "train")  # at least, by default
    if method == "metis" and {name.removesuffix("_nodes") for name in uneven} <= set(evened):
        remedy = "METIS could not make them even, as a node with many edges is in one part; fewer parts are more even"
    else:
        remedy = "METIS with --balance nodes,edges,train makes them more even"
    ratios = ", ".join(f"{word} {imbalance[name]:.2f}" for name, word in uneven.items())
    return f"uneven parts: largest over mean is {ratios}; {remedy}"

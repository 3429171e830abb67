"""Balancing of parts.

METIS balances one weight a node. This file says which counts the weight mixes, and moves and swaps nodes where METIS
leaves a count uneven.
"""

import numpy as np

from sarlite.errors import ConfigError

COUNTS = ("nodes", "edges", "train")
TRAIN_SLACK = 1.1
"""No part has more than so many times its share of training nodes."""
NODES_SLACK = 1.05
"""No part has more than so many times its share of nodes, where METIS balances edges."""
TYPE_SLACK = 1.1
"""No part has more than so many times its share, rounded up, of a type's nodes, where METIS divides several types."""
UNEVEN = 1.5
"""Largest part over mean from which on a warning is due."""
_NODES_SHARE = 0.05


def check(balance):
    """Return the counts to balance as a tuple, or None if the degrees decide; raise a ConfigError for unknown names.

    Parameters
    ----------
    balance : "auto", None, "nodes,edges,train" or some of these words, or a sequence of them
    """
    if balance is None or balance == "auto":
        return None
    words = tuple(balance.split(",")) if isinstance(balance, str) else tuple(balance)
    if not words or len(set(words)) < len(words) or not all(word in COUNTS for word in words):
        shown = ",".join(map(str, words))
        raise ConfigError(f"balance: {shown!r} is neither auto nor some of {','.join(COUNTS)}, each once")
    return words


def chosen(balance, degrees):
    """Return the counts to balance.

    By default these are nodes and training nodes, and edges too where the degrees' standard deviation is above their
    mean. """
    balance = check(balance)
    if balance is not None:
        return balance
    return by_degrees(degrees.mean(), degrees.std()) if degrees.size else by_degrees(0, 0)


def by_degrees(mean, deviation):
    """Return the counts to balance by default, from the in-degrees' mean and standard deviation."""
    return COUNTS if deviation > mean else ("nodes", "train")


def weights(degrees, balance):
    """Return METIS's weight of each node, int64, or None if all are 1.

    A node weighs as much as its in-edges and a twentieth of the mean degree. METIS then leaves the number of nodes
    uneven, mostly of nodes of low degree, which `even_nodes` moves at little cost. Were a node as heavy as the mean
    degree, neither count would be even. R-MAT of 200,000 nodes and 4 million edges in 8 parts, largest over mean: nodes
    1.95 and edges 1.62 so, 1.00 and 1.02 with a twentieth, with as many cut edges.
    """
    if "edges" not in balance:
        return None
    each = degrees / max(degrees.mean(), 1e-300) + (_NODES_SHARE if "nodes" in balance else 0)
    scale = min(1 / _NODES_SHARE, 2**30 / each.sum())  # the sum fits 32 bits
    return np.maximum(1, np.rint(each * scale)).astype(np.int64)


def fill_empty(parts, n_parts):
    """Give each empty part one node of the part that is then the largest; there are at least as many nodes as parts."""
    sizes = np.bincount(parts, minlength=n_parts)
    for empty in np.flatnonzero(sizes == 0):
        giver = int(np.argmax(sizes))
        parts[np.flatnonzero(parts == giver)[-1]] = empty
        sizes[giver] -= 1
        sizes[empty] = 1
    return parts


def even_nodes(xadj, adjncy, parts, n_parts, degrees):
    """Move nodes from parts that have too many to parts that have few.

    The lightest nodes are looked at, which leave the edges even; the nodes among them that cut the fewest edges move.
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


def swap_training(xadj, adjncy, parts, n_parts, train):
    """Swap training nodes of parts that have too many against other nodes of parts that have too few training nodes."""
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
        there = cheapest(xadj, adjncy, parts, np.flatnonzero(train & (parts == giver)), giver, taker, n_swaps)
        back = cheapest(xadj, adjncy, parts, np.flatnonzero(~train & (parts == taker)), taker, giver, n_swaps)
        parts[there], parts[back] = taker, giver
    return parts


def even_kind(xadj, adjncy, parts, n_parts, nodes):
    """Move some of `nodes` from parts that have too many of them to parts that have the fewest."""
    most = int(np.ceil(TYPE_SLACK * nodes.size / n_parts))
    for _ in range(4 * n_parts):
        counts = np.bincount(parts[nodes], minlength=n_parts)
        giver, taker = int(np.argmax(counts)), int(np.argmin(counts))
        n_moves = min(counts[giver] - most, most - counts[taker])
        if n_moves <= 0:
            return
        parts[cheapest(xadj, adjncy, parts, nodes[parts[nodes] == giver], giver, taker, n_moves)] = taker


def cheapest(xadj, adjncy, parts, nodes, home, away, count):
    """Return the `count` of `nodes` that move from `home` to `away` at the least cost in cut edges."""
    lengths = xadj[nodes + 1] - xadj[nodes]
    owner = np.repeat(np.arange(nodes.size), lengths)
    first = np.cumsum(lengths) - lengths
    near = parts[adjncy[np.arange(owner.size) - first[owner] + xadj[nodes][owner]]]
    at_home, at_away = (np.bincount(owner[near == part], minlength=nodes.size) for part in (home, away))
    cost = at_home - at_away
    return nodes[np.argsort(cost, kind="stable")[:count]]


def warning(found, method, balance=None):
    """Return a line that names the counts of `partition.measures` that are uneven, or None.

    Parameters
    ----------
    found : dict
        What `partition.measures` returns.
    method : str
        What divided the nodes.
    balance : str, optional
        The counts that `method` was asked to make even.
    """
    shown = {"nodes": "nodes", "edges": "edges", "train_nodes": "training nodes"}
    imbalance = found["imbalance"]
    uneven = {name: word for name, word in shown.items() if imbalance.get(name, 0) > UNEVEN}
    if not uneven:
        return None
    evened = check(balance) or ("nodes", "train")  # at least, by default
    if method == "metis" and {name.removesuffix("_nodes") for name in uneven} <= set(evened):
        remedy = "METIS could not make them even, as a node with many edges is in one part; fewer parts are more even"
    else:
        remedy = "METIS with --balance nodes,edges,train makes them more even"
    told = ", ".join(f"{word} {imbalance[name]:.2f}" for name, word in uneven.items())
    return f"uneven parts: largest over mean is {told}; {remedy}"

"""Random draws for graph generators: nodes in proportion to weights, and distinct pairs of nodes."""

from collections.abc import Callable

import numpy as np

from sarlite.errors import ConfigError
from sarlite.profile import free_memory
from sarlite.structure.validation import MOST_NODES
from sarlite.types import Array

_MAX_ROUNDS = 500


def generator(seed: int | np.random.Generator) -> np.random.Generator:
    """Return a new numpy.random.Generator for a seed, an int of 0 or more; a Generator is returned unchanged."""
    if isinstance(seed, np.random.Generator):
        return seed
    require(seed >= 0, "seed", seed, "at least 0")
    return np.random.Generator(np.random.PCG64(seed))


def require(condition: object, name: str, value: object, expected: str) -> None:
    """Raise a ConfigError with the name of an argument, its value and the expected values, unless `condition` is true."""
    if not condition:
        raise ConfigError(f"{name}: {value}, expected {expected}")


def require_room(nodes: int, edges: float, features: int) -> None:
    """Raise a ConfigError if a generated graph with these numbers of nodes, edges and features would not fit into free memory."""
    require(nodes <= MOST_NODES, "nodes", nodes, f"at most {MOST_NODES}")
    needed, free = nodes * (4 * features + 60) + 50 * edges, free_memory()
    room = f"what fits into {free:.3g} free bytes; this takes {needed:.3g}"
    require(needed <= free, "nodes, edges and features", (nodes, edges, features), room)


def power_law_weights(rng: np.random.Generator, nodes: int, exponent: float, cap: float) -> Array:
    """Return random Pareto weights, (nodes,), of tail exponent `exponent`, each at most `cap` times their mean."""
    require(exponent > 2, "exponent", exponent, "more than 2")
    require(cap >= 1, "cap", cap, "at least 1")
    raw = (1 - rng.random(nodes)) ** (-1 / (exponent - 1))
    weights = raw
    for _ in range(20):  # the cap lowers the mean, which lowers the cap; this settles geometrically
        weights = np.minimum(raw, cap * weights.mean())
    return weights


def running_sums(weights: Array) -> Array:
    """Return the sums of the first 0, 1, 2, ... weights, (n + 1,); `pick` draws nodes from these sums."""
    return np.concatenate(([0.0], np.cumsum(weights)))


def pick(rng: np.random.Generator, sums: Array, low: Array | float, high: Array | float, size: int) -> Array:
    """Return `size` nodes drawn in proportion to weights, whose running sums are `sums`: node i is drawn if a number, uniform
    between `low` and `high`, is in sums[i] .. sums[i + 1].
    """
    return _locate(sums, low + rng.random(size) * (high - low))


def pick_outside(rng: np.random.Generator, sums: Array, low: Array | float, high: Array | float, size: int) -> Array:
    """Return `size` random nodes as `pick` does, but exclude the nodes between the running sums `low` and `high`: a node is drawn
    in proportion to its weight, where `sums` are the running sums of the weights.
    """
    point = rng.random(size) * (sums[-1] - (high - low))
    return _locate(sums, np.where(point < low, point, point + (high - low)))


def _locate(sums, points):
    return np.minimum(np.searchsorted(sums, points, side="right"), sums.size - 1) - 1


def distinct_pairs(rng: np.random.Generator, draw: Callable[[int], tuple[Array, Array]], n_pairs: int,
                   nodes: int) -> tuple[Array, Array]:
    """Return two arrays, the two ends of `n_pairs` distinct unordered pairs of different nodes. draw(size) returns the two ends of
    up to `size` random edges, and is called until there are enough distinct pairs; if there are too many, `rng` chooses.

    Parameters
    ----------
    rng : numpy.random.Generator
    draw : callable
        Function of a size that returns both ends of at most so many edges.
    n_pairs, nodes : int
        Number of pairs; number of nodes.

    Raises
    ------
    ConfigError
        `draw` did not return enough distinct pairs after many calls.
    """
    most = nodes * (nodes - 1)
    require(n_pairs <= most // 2, "edges", 2 * n_pairs, f"at most {most} for {nodes} nodes")
    keys, gain = np.empty(0, np.int64), 1.0
    for _ in range(_MAX_ROUNDS):
        missing = n_pairs - keys.size
        if missing <= 0:
            break
        u, v = draw(int(min(1.1 * missing / gain, 2 * n_pairs)) + 64)
        before = keys.size
        keys = np.union1d(keys, (np.minimum(u, v) * nodes + np.maximum(u, v))[u != v])
        gain = max((keys.size - before) / max(u.size, 1), 0.01)
    else:
        limit = f"about {2 * keys.size} or fewer: so dense a graph of this shape was not found"
        require(False, "edges", 2 * n_pairs, limit)
    if keys.size > n_pairs:
        keys = keys[np.sort(rng.permutation(keys.size)[:n_pairs])]
    return keys // nodes, keys % nodes

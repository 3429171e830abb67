"""Families of graphs, as functions of sizes, and the list of families and sizes that the corpus consists of."""

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from sarlite.keys import GAMMA, splitmix64, word
from sarlite.oracle.edge_structure import EdgeList
from sarlite.types import Array


class SplitMixStream:
    """Stream of pseudo-random integers, seeded by a name: SplitMix64 of a counter (Steele, Lea and Flood 2014)."""

    def __init__(self, name: str) -> None:
        self.key, self.count = word(name), 0

    def raw(self, size: int) -> Array:
        """Return the next `size` pseudo-random numbers, shape (size,), uint64."""
        counter = np.arange(self.count, self.count + size, dtype=np.uint64)
        self.count += size
        return splitmix64(counter * np.uint64(GAMMA) + np.uint64(self.key))

    def below(self, n: int, size: int) -> Array:
        """Return the next `size` integers from 0 to n - 1, shape (size,), int64; n is at most 2^31, as each integer is made of 32
        random bits.

        Each is (upper 32 bits of a number) * n / 2^32.
        """
        return ((self.raw(size) >> np.uint64(32)) * np.uint64(max(n, 1)) >> np.uint64(32)).astype(np.int64)

    def permutation(self, n: int) -> Array:
        """Return a random permutation of 0 to n - 1, shape (n,), int64."""
        return np.argsort(self.raw(n), kind="stable")


def _graph(src: npt.ArrayLike, dst: npt.ArrayLike, n: int, n_dst: int | None = None) -> EdgeList:
    return EdgeList(np.asarray(src, np.int64), np.asarray(dst, np.int64), n, n if n_dst is None else n_dst)


def _renamed(rng: SplitMixStream, edges: EdgeList) -> EdgeList:
    """Return the graph `edges` with its nodes renumbered and its edges reordered at random."""
    name, order = rng.permutation(edges.n_src), rng.permutation(edges.n_edges)
    return _graph(name[edges.src[order]], name[edges.dst[order]], edges.n_src)


def empty(rng: SplitMixStream, n_src: int, n_dst: int) -> EdgeList:
    """Return a graph of n_src sources and n_dst destinations without edges."""
    return _graph([], [], n_src, n_dst)


def single(rng: SplitMixStream, n: int, u: int, v: int) -> EdgeList:
    """Return a graph of n nodes with one edge, u -> v."""
    return _graph([u], [v], n)


def in_star(rng: SplitMixStream, leaves: int, centre: int = 0) -> EdgeList:
    """Return a graph with an edge from each of `leaves` nodes to the node `centre`."""
    ids = np.delete(np.arange(leaves + 1), centre)
    return _graph(ids, np.full(leaves, centre), leaves + 1)


def out_star(rng: SplitMixStream, leaves: int, centre: int = 0) -> EdgeList:
    """Return a graph with an edge from the node `centre` to each of `leaves` nodes."""
    return in_star(rng, leaves, centre).reversed()


def both_star(rng: SplitMixStream, leaves: int) -> EdgeList:
    """Return a graph with edges between node 0 and each of `leaves` nodes, in both directions."""
    one = in_star(rng, leaves)
    return _graph(np.concatenate([one.src, one.dst]), np.concatenate([one.dst, one.src]), leaves + 1)


def clique(rng: SplitMixStream, n: int, loops: str = "no-loops") -> EdgeList:
    """Return a graph with an edge between every ordered pair of n nodes; if `loops` is "loops", also with the self loops."""
    src, dst = np.divmod(np.arange(n * n), n)
    selected = (src != dst) | (loops == "loops")
    return _graph(src[selected], dst[selected], n)


def chain(rng: SplitMixStream, n: int, way: str = "up") -> EdgeList:
    """Return a path of n nodes. `way` says if the edges go "up" or "down" the node numbers, or if the numbers are "shuffled"."""
    ids = np.arange(n)
    if way == "shuffled":
        return _renamed(rng, _graph(ids[:-1], ids[1:], n))
    return _graph(ids[:-1], ids[1:], n) if way == "up" else _graph(ids[1:], ids[:-1], n)


def ring(rng: SplitMixStream, n: int) -> EdgeList:
    """Return a cycle of n nodes, with an edge from each node to the next."""
    ids = np.arange(n)
    return _graph(ids, (ids + 1) % n, n)


def loops(rng: SplitMixStream, n: int, times: int = 1) -> EdgeList:
    """Return a graph of n nodes with `times` self loops at each node, and no other edges."""
    ids = np.repeat(np.arange(n), times)
    return _graph(ids, ids, n)


def repeated(rng: SplitMixStream, n: int, times: int) -> EdgeList:
    """Return a graph of n nodes whose edges are `times` copies of one edge, from the last node to the first."""
    return _graph(np.full(times, n - 1), np.zeros(times), n)


def doubled(rng: SplitMixStream, n: int, edges: int) -> EdgeList:
    """Return a graph of n nodes with `edges` random edges, each twice; the second copies come after all first copies."""
    one = uniform(rng, n, edges)
    return _graph(np.tile(one.src, 2), np.tile(one.dst, 2), n)


def uniform(rng: SplitMixStream, n: int, edges: int, n_dst: int | None = None) -> EdgeList:
    """Return a graph of `edges` edges. Their sources (of n nodes) and destinations (of n_dst nodes, None: n) are uniformly
    random.
    """
    return _graph(rng.below(n, edges), rng.below(n_dst or n, edges), n, n_dst)


def bipartite(rng: SplitMixStream, n_src: int, n_dst: int, degree: int) -> EdgeList:
    """Return a bipartite graph with `degree` in-edges for each of n_dst destinations; each edge's source is a random one of n_src
    nodes.
    """
    return _graph(rng.below(n_src, n_dst * degree), np.repeat(np.arange(n_dst), degree), n_src, n_dst)


def complete(rng: SplitMixStream, n_src: int, n_dst: int) -> EdgeList:
    """Return a bipartite graph with an edge from each of n_src sources to each of n_dst destinations."""
    src, dst = np.divmod(np.arange(n_src * n_dst), n_dst)
    return _graph(src, dst, n_src, n_dst)


def isolated(rng: SplitMixStream, n: int, which: str) -> EdgeList:
    """Return a random graph of n nodes, some of which have no edges; `which` says which nodes: the "first" half, the "last" half,
    the nodes of "odd" number, or "most" (all but two).
    """
    ids = {"first": np.arange(n // 2, n), "last": np.arange(n - n // 2), "odd": np.arange(0, n, 2),
           "most": np.arange(n // 2, n // 2 + 2)}[which]
    one = uniform(rng, len(ids), 4 * len(ids))
    return _graph(ids[one.src], ids[one.dst], n)


def powers(rng: SplitMixStream, n: int, base: int, most: int) -> EdgeList:
    """Return a graph of n nodes whose in-degrees are random powers of `base` from 1 to `most`, with random sources."""
    choices = base ** np.arange(int(round(np.log(most) / np.log(base))) + 1)
    degrees = choices[rng.below(len(choices), n)]
    dst = np.repeat(np.arange(n), degrees)
    order = rng.permutation(len(dst))
    return _graph(rng.below(n, len(dst))[order], dst[order], n)


def regular(rng: SplitMixStream, n: int, degree: int) -> EdgeList:
    """Return a graph of n nodes, each with `degree` in-edges and `degree` out-edges, without self loops; n is larger than `degree`.

    Node i of a ring gets edges to the next `degree` nodes; then the nodes are permuted.
    """
    src, offset = np.divmod(np.arange(n * degree), degree)
    return _renamed(rng, _graph(src, (src + offset + 1) % n, n))


def matched(rng: SplitMixStream, n: int, *degrees: int) -> EdgeList:
    """Return a graph of n nodes whose in-degrees repeat the list `degrees`, and whose out-degrees do so, too. Which nodes get which
    degree, and which source each edge has, is random.

    Self loops and repeated edges may occur.
    """
    each = np.resize(np.array(degrees), n)
    ends = [np.repeat(rng.permutation(n), each) for _ in range(2)]
    return _graph(ends[0], ends[1][rng.permutation(len(ends[1]))], n)


def skewed(rng: SplitMixStream, n: int, edges: int, way: str) -> EdgeList:
    """Return a graph of n nodes with `edges` random edges, most of which go into a few nodes if `way` is "in", or out of a few
    nodes if "out".
    """
    few = rng.below(n, edges) * rng.below(n, edges) // max(n, 1) * rng.below(n, edges) // max(n, 1)
    even = rng.below(n, edges)
    return _renamed(rng, _graph(few, even, n) if way == "out" else _graph(even, few, n))


def grid(rng: SplitMixStream, rows: int, columns: int) -> EdgeList:
    """Return a grid of `rows` times `columns` nodes, with edges in both directions between horizontal and vertical neighbours."""
    ids = np.arange(rows * columns).reshape(rows, columns)
    pairs = [(ids[:, :-1], ids[:, 1:]), (ids[:-1], ids[1:])]
    src = np.concatenate([a.ravel() for a, _ in pairs] + [b.ravel() for _, b in pairs])
    dst = np.concatenate([b.ravel() for _, b in pairs] + [a.ravel() for a, _ in pairs])
    return _graph(src, dst, rows * columns)


def tree(rng: SplitMixStream, n: int) -> EdgeList:
    """Return a random tree: each of n nodes but node 0 has an edge to one random node of a smaller number."""
    ids = np.arange(1, n)
    parents = np.array([int(rng.below(int(k), 1)[0]) for k in ids], np.int64)
    return _graph(ids, parents, n)


def components(rng: SplitMixStream, count: int, size: int) -> EdgeList:
    """Return a graph of `count` cliques of `size` nodes, without edges between the cliques."""
    one = clique(rng, size)
    shift = np.repeat(np.arange(count) * size, one.n_edges)
    return _graph(np.tile(one.src, count) + shift, np.tile(one.dst, count) + shift, count * size)


def ordered(rng: SplitMixStream, n: int, edges: int, way: str) -> EdgeList:
    """Return a random graph of n nodes whose edges are sorted by source if `way` is "src", by destination if "dst", or by
    descending destination if "dst-down".
    """
    one = uniform(rng, n, edges)
    by_dst = np.lexsort((one.src, one.dst))
    order = {"src": np.lexsort((one.dst, one.src)), "dst": by_dst, "dst-down": by_dst[::-1]}[way]
    return _graph(one.src[order], one.dst[order], n)


def half(rng: SplitMixStream, n: int, edges: int, way: str) -> EdgeList:
    """Return a graph of n nodes with `edges` random edges into the lower half of the nodes: from any node if `way` is "into",
    from the upper half if "across".
    """
    low, high = rng.below(n // 2, edges), n // 2 + rng.below(n - n // 2, edges)
    return _graph(rng.below(n, edges) if way == "into" else high, low, n)


def sparse_ids(rng: SplitMixStream, n: int, edges: int) -> EdgeList:
    """Return a graph of n nodes of which few have edges: the first and last two, the nodes next to powers of two, and `edges`
    random nodes.
    """
    edge = np.array([0, 1, n - 1, n - 2, *[2**k + d for k in range(1, 31) for d in (-1, 0, 1) if 2**k + d < n]])
    ends = np.concatenate([edge, rng.below(n, edges)])
    return _graph(ends[rng.permutation(len(ends))], ends[rng.permutation(len(ends))], n)


FAMILIES: dict[str, Callable[..., EdgeList]] = {family.__name__.replace("_", "-"): family for family in (
    empty, single, in_star, out_star, both_star, clique, chain, ring, loops, repeated, doubled, uniform, bipartite,
    complete, isolated, powers, regular, matched, skewed, grid, tree, components, ordered, half, sparse_ids)}

_LEAVES = (1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 1023, 1024, 1025, 4096,
           65535, 65536, 65537, 100_000)
_HARD = ("negative", "ties", "scores", "masked", "unreachable", "denormal", "nan", "weights")


def graph_specs() -> Iterator[tuple[str, tuple, tuple[str, ...], dict]]:
    """Yield (family, arguments, tags, options) for each graph of the corpus. `family` is the name of a function of this module,
    such as "ring", and `arguments` are its sizes. `tags` are texts such as "self loops", and `options` is a dict.

    `options` may set `width` and `values`; otherwise `corpus` assigns widths in turn, and the values are "codes".
    """
    yield from _small()
    yield from _stars()
    yield from _exact_degrees()
    yield from _shapes()
    yield from _special_values()


def _each(family, many, *tags, **options):
    for sizes in many:
        yield family, sizes if isinstance(sizes, tuple) else (sizes,), tags, options


def _small():
    yield from _each("empty", [(0, 0)], "no nodes", "fewer nodes than parts")
    yield from _each("empty", [(1, 1), (2, 2)], "no edges", "fewer nodes than parts")
    yield from _each("empty", [(17, 17), (1000, 1000), (5, 3)], "no edges", "zero degree")
    yield from _each("empty", [(0, 5), (5, 0)], "no edges", "empty part")
    yield from _each("single", [(1, 0, 0), (2, 0, 1), (2, 1, 0), (3, 2, 2)], "fewer nodes than parts")
    yield from _each("single", [(17, 16, 0), (17, 0, 16), (1000, 999, 998)], "zero degree", "isolated nodes")
    yield from _each("loops", [1, 2, 17, 256, (5, 2), (16, 4), (3, 257)], "self loops")
    yield from _each("repeated", [(n, times) for n in (1, 2, 5) for times in (2, 3, 4, 16, 255, 256, 257, 1000)],
                     "duplicate edges")
    yield from _each("doubled", [(5, 8), (17, 64), (100, 500), (1000, 4000)], "duplicate edges")
    some = [(n, which) for n in (6, 33, 300) for which in ("first", "last", "odd", "most")]
    yield from _each("isolated", some, "isolated nodes", "zero degree")


def _stars():
    for family in ("in-star", "out-star"):
        for leaves in _LEAVES:
            high = (family, leaves) == ("in-star", 1 << 16)  # overflows 16-bit degrees; its width 1 puts it into "ci"
            yield from _each(family, [leaves], family, "zero degree", *[f"{family} above 2^16"] * high,
                             **{"width": 1} if high else {})
        yield from _each(family, [(16, 16), (17, 8), (100_000, 100_000), (65536, 32768)], family, "zero degree")
    yield from _each("both-star", [3, 16, 64, 257, 1024, 20_000], "in-star", "out-star")


def _exact_degrees():
    yield from _each("powers", [(n, 2, most) for n in (3, 16, 33, 100, 256, 257, 1000, 4096) for most in (4, 32)],
                     "powers of two")
    yield from _each("powers", [(n, 2, 1024) for n in (5, 64)] + [(20_000, 2, 8)], "powers of two")
    yield from _each("regular", [(n, d) for n in (5, 20, 33, 257) for d in (1, 4)], "powers of four")
    yield from _each("regular", [(17, 16), (100, 16), (65, 64), (300, 64), (1000, 4), (5000, 4)], "powers of four")
    less_one = [(n, d) for n in (17, 100) for d in (3, 15)] + [(100, 63), (1000, 3), (5000, 3)]
    yield from _each("regular", less_one, "powers of four with loops")
    mixed = [(8, 1, 4), (30, 1, 4, 16), (85, 1, 4, 16, 64), (300, 4, 1, 1), (1000, 1, 4, 16), (64, 0, 4),
             (300, 0, 1, 16)]
    yield from _each("matched", mixed, "powers of four", "self loops", "duplicate edges")
    less_one = [(8, 0, 3), (30, 3, 15), (85, 0, 3, 15, 63), (1000, 0, 3), (300, 3, 3, 15)]
    yield from _each("matched", less_one, "powers of four with loops")


def _shapes():
    yield from _each("clique", [2, 3, 4, 5, 9, 16, 17, 33, 65, 128], "clique")
    yield from _each("clique", [(n, "loops") for n in (2, 3, 4, 8, 16, 31, 64, 128)], "clique", "self loops")
    chains = [(n, way) for n in (2, 17, 1000) for way in ("up", "down", "shuffled")]
    yield from _each("chain", [*chains, (20_000, "shuffled")], "chain")
    yield from _each("ring", [2, 3, 17, 256, 257, 10_000], "chain")
    two_sides = [(3, 7, 2), (100, 1, 64), (1, 100, 4), (64, 300, 4), (300, 64, 16), (1000, 10, 256), (10, 1000, 8)]
    yield from _each("bipartite", two_sides, "bipartite")
    yield from _each("complete", [(1, 1), (1, 64), (64, 1), (4, 17), (17, 4), (32, 32), (100, 64)], "bipartite")
    drawn = [(3, 5), (10, 30), (17, 100), (100, 250), (100, 1000), (257, 3000), (1000, 5000), (3000, 9000),
             (50, 20_000)]
    yield from _each("uniform", drawn, "random")
    yield from _each("uniform", [(40, 100, 60), (500, 2000, 30), (30, 2000, 500)], "bipartite", "random")
    yield from _each("skewed", [(n, e, way) for n, e in ((20, 100), (300, 3000), (5000, 20_000))
                                for way in ("in", "out")], "skewed")
    yield from _each("grid", [(1, 5), (4, 4), (7, 13), (30, 30)], "grid")
    yield from _each("tree", [3, 17, 300, 1000], "tree")
    yield from _each("components", [(2, 3), (10, 5), (30, 9)], "components")
    yield from _each("ordered", [(n, e, way) for n, e in ((17, 60), (200, 2000)) for way in ("src", "dst", "dst-down")],
                     "edge order")
    halves = [(n, e, way) for n, e in ((4, 6), (50, 300), (1000, 3000)) for way in ("into", "across")]
    yield from _each("half", halves, "empty part", "zero degree")
    yield from _each("sparse-ids", [(70_000, 20)], "row numbers above 2^16", width=1)
    yield from _each("sparse-ids", [(300, 10), (33_000, 30), (140_000, 40)], "row numbers above 2^15")
    yield from _each("uniform", [(100, 130), (120, 3000), (2000, 30_000)], "edge-columns above 2^15", width=257)
    yield from _each("uniform", [(300, 60)], "row-columns above 2^16", width=257)
    yield from _each("complete", [(4096, 2048)], "edge-columns above 2^31", "large", width=257)


def _special_values():
    """Yield (family, arguments, tags, options), as `graph_specs` does, for the graphs on which inputs with special values, such as
    ties, are checked. The graphs have rows without in-edges, rows without out-edges, or a row longer than a warp (32 threads of a
    GPU).
    """
    yield from _each("in-star", [10_000], "zero degree", "a long row that ties", values="ties", width=3)
    for values in _HARD:
        yield from _each("in-star", [3, 16], "zero degree", values=values)
        yield from _each("in-star", [(100, 1)], "zero degree", f"{values} in a row longer than a warp", values=values)
        yield from _each("isolated", [(12, "odd"), (40, "first")], "isolated nodes", "zero degree", values=values)
        yield from _each("half", [(16, 64, "across"), (100, 500, "across")], "zero degree", values=values)
        yield from _each("powers", [(60, 2, 16)], "powers of two", values=values)
        yield from _each("uniform", [(100, 300)], "random", values=values)
        yield from _each("empty", [(3, 3)], "no edges", "zero degree", values=values)
        yield from _each("repeated", [(3, 4)], "duplicate edges", values=values)

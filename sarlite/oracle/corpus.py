"""About 300 hard graphs, each made from its name alone, the same on every machine and with every version of NumPy."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache, cached_property
from pathlib import Path

import numpy as np

from sarlite.errors import ConfigError, whole
from sarlite.keys import word
from sarlite.oracle import structures
from sarlite.oracle.edge_structure import EdgeList
from sarlite.oracle.structures import Draw

PUBLISHED = Path(__file__).with_name("corpus.json")
LEVELS = ("ci", "all", "large")
# Of graphs in turn, far ones next to each other: tails of every length, beside whole vectors, warps and blocks.
# Above 16 with every residue of 16.
WIDTHS = (17, 1, 64, 5, 26, 256, 2, 33, 8, 57, 127, 3, 16, 70, 65, 4, 21, 257, 7, 32, 40, 6, 128, 43, 9, 31, 18, 63, 15, 46,
          23, 99, 36, 76, 29)
NARROW = (1, 3, 2)  # of graphs of more than _NARROW edges, so that the corpus takes a minute
_NARROW = 30_000
_TELLING = 30  # edges that a graph has by which a width is judged at "ci"
VALUES = {
    "codes": "", "negative": "inputs that are all negative", "ties": "inputs that tie",
    "scores": "scores of 1e4", "masked": "rows with scores of -Inf",
    "unreachable": "NaN and Inf in rows that no edge leaves", "denormal": "denormal numbers",
    "nan": "NaN and Inf in rows that edges leave", "weights": "weights that are 0, Inf or NaN",
}
"""What is special about a graph's inputs (`special`)."""


@dataclass(frozen=True)
class Entry:
    """One graph of the corpus, and which inputs it is meant to be run with."""

    name: str  # as "in-star-100000"; seeds the graph
    build: Callable[..., EdgeList]  # of a Draw and `sizes`
    width: int  # columns of the inputs; of a softmax by edge its heads
    values: str = "codes"  # of VALUES
    tags: tuple[str, ...] = ()  # the difficulties of the graph
    sizes: tuple = ()
    further: bool = False  # True if a caller asked for this width beside the graph's own

    @property
    def square(self) -> bool:
        """True if sizes that nobody gives are equal where a layer can have them equal, as heads and features."""
        return bool(self.seed % 2)

    @property
    def seed(self) -> int:
        """64 bits, of the name."""
        return word(self.name)

    @cached_property
    def edges(self) -> EdgeList:
        return self.build(Draw(self.name), *self.sizes)

    @property
    def label(self) -> str:
        """The name, with a width that a caller asked for."""
        return f"{self.name}/width {self.width}" if self.further else self.name

    @property
    def size(self) -> int:
        """Edges and rows, times columns, without building the graph."""
        return sum(self.published[key] for key in ("n_src", "n_dst", "n_edges")) * self.width

    @property
    def most_numbers(self) -> int:
        """The numbers that a function may hold: all inputs, or a dense matrix of the graph."""
        return max(self.size, self.published["n_src"] * self.published["n_dst"])

    def fits(self, index_dtype: str) -> bool:
        """Return True if twice the rows and edges are numbers of `index_dtype`.

        Elements of graphs that fit int16 are more than its numbers: an index of elements that is made in the type of
        the rows overflows there, as an index of int32 does above 2^31, on small machines too.
        """
        return 2 * max(self.published[key] for key in ("n_src", "n_dst", "n_edges")) <= np.iinfo(index_dtype).max

    @property
    def published(self) -> dict:
        """n_src, n_dst, n_edges and sha256, as `corpus.json` has them; of a graph of one's own as they are."""
        return published().get(self.name) or described(self.edges)


def digest(edges: EdgeList) -> str:
    """Return the SHA-256 of n_src, n_dst, src and dst, in this order, as little-endian int64."""
    numbers = np.array([edges.n_src, edges.n_dst])
    parts = [part.astype("<i8").tobytes() for part in (numbers, edges.src, edges.dst)]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def described(edges: EdgeList) -> dict:
    """Return what `corpus.json` says of a graph."""
    return {"n_src": edges.n_src, "n_dst": edges.n_dst, "n_edges": edges.n_edges, "sha256": digest(edges)}


@cache
def published() -> dict[str, dict]:
    """Return name to n_src, n_dst, n_edges and sha256 of each graph."""
    return json.loads(PUBLISHED.read_text())


def corpus(level: str = "all") -> list[Entry]:
    """Return the graphs of a level, none of them built yet.

    Parameters
    ----------
    level : str
        "all"; "ci": half of the graphs, those with the fewest edges and rows, and the smallest of each tag and of each width;
        "large": those of more than 2^31 edges times columns alone, for functions that keep nothing by
        edge and column (a float32 of each would be 8 GiB).

    Raises
    ------
    ConfigError
        It is another level.
    """
    if level not in LEVELS:
        raise ConfigError(f"level is {level!r}: the corpus has {', '.join(LEVELS)}")
    entries = [e for e in _entries() if ("large" in e.tags) == (level == "large")]
    if level != "ci":
        return entries
    order = sorted(entries, key=lambda e: sum(e.published[key] for key in ("n_src", "n_dst", "n_edges")))
    first: dict[str | int, str] = {tag: e.name for e in reversed(order) for tag in e.tags}
    first |= {e.width: e.name for e in reversed(order) if e.published["n_edges"] >= _TELLING}
    kept = {e.name for e in order[: len(entries) // 2]} | set(first.values())
    return [e for e in entries if e.name in kept]


def own(name: str, edges: EdgeList, width: int) -> Entry:
    """Return a graph that is not of the corpus."""
    return Entry(name, lambda draw: edges, width)


def chosen(level: str, graphs: str | Sequence[str] | Mapping[str, EdgeList], widths: Sequence[int] | None = None
           ) -> list[Entry]:
    """Return the graphs of a level by their names, or one's own by name; and each again at one of `widths` in turn.

    Raises
    ------
    ConfigError
        No graph has such a name, a width is no whole number above 0, or a graph is no EdgeList.
    """
    more = [whole("widths", width, 1) for width in widths or ()]
    if widths is not None and not more:
        raise ConfigError("widths: there is none")
    if isinstance(graphs, Mapping):
        if odd := [name for name, edges in graphs.items() if not isinstance(edges, EdgeList)]:
            raise ConfigError(f"graphs: {odd[0]!r} is no EdgeList")
        entries = [own(name, edges, WIDTHS[k % len(WIDTHS)]) for k, (name, edges) in enumerate(graphs.items())]
    else:
        entries = named(corpus(level), graphs)
    if not entries:
        raise ConfigError(f"graphs: no graph of the corpus has a name like {graphs!r}")
    pairs = {(k % len(entries), k % len(more)) for k in range(max(len(entries), len(more)))} if more else ()
    return entries + [replace(entries[a], width=more[b], further=True) for a, b in sorted(pairs)]


def named(entries: Iterable[Entry], patterns: str | Sequence[str]) -> list[Entry]:
    """Return the graphs whose names are like a pattern, or like one of several (fnmatch)."""
    patterns = [patterns] if isinstance(patterns, str) else patterns
    return [e for e in entries if any(fnmatchcase(e.name, pattern) for pattern in patterns)]


def entry(name: str) -> Entry:
    """Return the graph of a name; ConfigError where there is none."""
    found = next((entry for entry in _entries() if entry.name == name), None)
    if found is None:
        raise ConfigError(f"the corpus has no graph {name!r}")
    return found


def publish(path: Path = PUBLISHED) -> None:
    """Write `corpus.json`: after a change of the corpus, which readers of older hashes must hear of."""
    found = {entry.name: described(entry.edges) for entry in _entries()}
    lines = (f"{json.dumps(name)}: {json.dumps(values)}" for name, values in found.items())
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _entries() -> Iterator[Entry]:
    for k, (family, sizes, tags, options) in enumerate(structures.listed()):
        make, name = structures.FAMILIES[family], "-".join(map(str, (family, *sizes)))
        values = options.get("values", "codes")
        name += "" if values == "codes" else f"-{values}"
        large = any(isinstance(size, int) and size > _NARROW for size in sizes)
        each = NARROW if large else WIDTHS
        width = options.get("width", each[k % len(each)])
        yield Entry(name, make, width, values,
                    (*tags, *(() if values == "codes" else (values,))), sizes)


if __name__ == "__main__":
    publish()

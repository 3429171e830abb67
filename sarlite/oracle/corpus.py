"""The corpus: about 370 graphs on which kernels often fail. Each is built from its name alone, the same on every machine."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache, cached_property
from pathlib import Path

import numpy as np

from sarlite.errors import ConfigError, check_int
from sarlite.keys import word
from sarlite.oracle import structures
from sarlite.oracle.edge_structure import EdgeList
from sarlite.oracle.structures import SplitMixStream

PUBLISHED = Path(__file__).with_name("corpus.json")
LEVELS = ("ci", "all", "large")
# Widths that the graphs take in turn: vectors of 16 elements with every length of tail, and whole warps and blocks.
# Widths that differ much are next to each other.
WIDTHS = (17, 1, 64, 5, 26, 256, 2, 33, 8, 57, 127, 3, 16, 70, 65, 4, 21, 257, 7, 32, 40, 6, 128, 43, 9, 31, 18, 63, 15, 46,
          23, 99, 36, 76, 29)
NARROW = (1, 3, 2)  # widths of graphs with a size above _NARROW, so that the corpus takes a minute
_NARROW = 30_000
_TELLING = 30  # level "ci" has a graph of at least this many edges for each width
VALUES = {
    "codes": "", "negative": "inputs that are all negative", "ties": "inputs that tie",
    "scores": "scores of 1e4", "masked": "rows with scores of -Inf",
    "unreachable": "NaN and Inf in rows that no edge leaves", "denormal": "denormal numbers",
    "nan": "NaN and Inf in rows that edges leave", "weights": "weights that are 0, Inf or NaN",
}
"""Kinds of values of the inputs (`values.special`), with their description in reports."""


@dataclass(frozen=True)
class Entry:
    """One graph of the corpus, with the number of columns and the kind of values of the inputs that are made on it.

    Attributes
    ----------
    name : str
        Such as "in-star-100000"; seeds the graph.
    build : (SplitMixStream, *sizes) -> EdgeList
    width : int
        Number of columns of the inputs; for a softmax by edge, the number of heads.
    values : str
        Kind of the inputs' values, a key of VALUES.
    tags : tuple of str
        Difficulties of the graph.
    sizes : tuple
        Arguments of `build`.
    extra_width : bool
        True if a caller asked for this width besides the graph's own.
    """

    name: str
    build: Callable[..., EdgeList]
    width: int
    values: str = "codes"
    tags: tuple[str, ...] = ()
    sizes: tuple = ()
    extra_width: bool = False

    @property
    def square(self) -> bool:
        """True if a case on this graph sets all sizes that the caller did not choose, such as n_heads and n_feat, to one and the
        same number. This holds for about half of the graphs, chosen by a hash of the graph's name.
        """
        return bool(self.seed % 2)

    @property
    def seed(self) -> int:
        """64-bit hash of the name, which seeds the graph."""
        return word(self.name)

    @cached_property
    def edges(self) -> EdgeList:
        """The graph, built at the first access."""
        return self.build(SplitMixStream(self.name), *self.sizes)

    @property
    def label(self) -> str:
        """Name of the graph, followed by the width if the caller asked for this width."""
        return f"{self.name}/width {self.width}" if self.extra_width else self.name

    @property
    def size(self) -> int:
        """Number of input elements, (n_src + n_dst + n_edges) * width, computed without building the graph."""
        return sum(self.published[key] for key in ("n_src", "n_dst", "n_edges")) * self.width

    @property
    def most_numbers(self) -> int:
        """Largest number of elements that a function under test may allocate: the elements of all inputs or of a dense adjacency
        matrix, whichever are more.
        """
        return max(self.size, self.published["n_src"] * self.published["n_dst"])

    def fits(self, index_dtype: str) -> bool:
        """Return True if twice the number of rows and twice the number of edges fit into the integer type `index_dtype`, so that
        neither overflows.

        Arrays on a graph that fits int16 may have more elements than int16 can count. An element's index that is
        computed in the dtype of the row numbers overflows there, as an int32 index does above 2^31 elements.
        """
        return 2 * max(self.published[key] for key in ("n_src", "n_dst", "n_edges")) <= np.iinfo(index_dtype).max

    @property
    def published(self) -> dict:
        """Dict of n_src, n_dst, n_edges and sha256 of the graph, from `corpus.json`, or computed for a graph of the caller."""
        return published().get(self.name) or graph_summary(self.edges)


def digest(edges: EdgeList) -> str:
    """Return the SHA-256 of a graph as hexadecimal text, from n_src, n_dst, src and dst, in this order, as little-endian int64."""
    numbers = np.array([edges.n_src, edges.n_dst])
    parts = [part.astype("<i8").tobytes() for part in (numbers, edges.src, edges.dst)]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def graph_summary(edges: EdgeList) -> dict:
    """Return a dict of n_src, n_dst, n_edges and sha256 of a graph, as in `corpus.json`."""
    return {"n_src": edges.n_src, "n_dst": edges.n_dst, "n_edges": edges.n_edges, "sha256": digest(edges)}


@cache
def published() -> dict[str, dict]:
    """Return the contents of `corpus.json`: {name of a graph: dict of its sizes and sha256}."""
    return json.loads(PUBLISHED.read_text())


def corpus(level: str = "all") -> list[Entry]:
    """Return the graphs of a level, "ci", "all" or "large", as `Entry` objects; each graph is built when its `edges` are first read.

    Parameters
    ----------
    level : str
        - "all": all graphs but the large one;
        - "ci": half of them, those with the fewest edges and rows, and the smallest graph of each tag and of each
        width;
        - "large": the graph with more than 2^31 edges times columns, for functions that store no array by edge and
        column
          (in float32 such an array has 8 GiB).

    Raises
    ------
    ConfigError
        An unknown level.
    """
    if level not in LEVELS:
        raise ConfigError(f"level is {level!r}: the corpus has {', '.join(LEVELS)}")
    entries = [e for e in _entries() if ("large" in e.tags) == (level == "large")]
    if level != "ci":
        return entries
    order = sorted(entries, key=lambda e: sum(e.published[key] for key in ("n_src", "n_dst", "n_edges")))
    first: dict[str | int, str] = {tag: e.name for e in reversed(order) for tag in e.tags}
    first |= {e.width: e.name for e in reversed(order) if e.published["n_edges"] >= _TELLING}
    selected = {e.name for e in order[: len(entries) // 2]} | set(first.values())
    return [e for e in entries if e.name in selected]


def custom_entry(name: str, edges: EdgeList, width: int) -> Entry:
    """Return a caller's graph as an Entry, like the graphs of the corpus, with inputs of `width` columns."""
    return Entry(name, lambda draw: edges, width)


def select_entries(level: str, graphs: str | Sequence[str] | Mapping[str, EdgeList], widths: Sequence[int] | None = None
           ) -> list[Entry]:
    """Return an Entry for each graph of `level` whose name matches a pattern in `graphs`; or, if `graphs` is a dict, for each
    graph in it. `widths` adds further entries with these numbers of columns on the same graphs; None adds none.

    Parameters
    ----------
    level : str
    graphs : str, sequence of str, or dict of str to EdgeList
        Patterns (fnmatch) of names, or other graphs by name.
    widths : sequence of int, optional
        Further widths, which the graphs take in turn.

    Raises
    ------
    ConfigError
        No graph has such a name, a width is no whole number above 0, or a graph is not an EdgeList.
    """
    more = [check_int("widths", width, 1) for width in widths or ()]
    if widths is not None and not more:
        raise ConfigError("widths: the list is empty")
    if isinstance(graphs, Mapping):
        if odd := [name for name, edges in graphs.items() if not isinstance(edges, EdgeList)]:
            raise ConfigError(f"graphs: {odd[0]!r} is not an EdgeList")
        entries = [custom_entry(name, edges, WIDTHS[k % len(WIDTHS)]) for k, (name, edges) in enumerate(graphs.items())]
    else:
        entries = matching(corpus(level), graphs)
    if not entries:
        raise ConfigError(f"graphs: no graph of the corpus has a name like {graphs!r}")
    pairs = {(k % len(entries), k % len(more)) for k in range(max(len(entries), len(more)))} if more else ()
    return entries + [replace(entries[a], width=more[b], extra_width=True) for a, b in sorted(pairs)]


def matching(entries: Iterable[Entry], patterns: str | Sequence[str]) -> list[Entry]:
    """Return the entries whose name matches at least one of the `patterns` (fnmatch)."""
    patterns = [patterns] if isinstance(patterns, str) else patterns
    return [e for e in entries if any(fnmatchcase(e.name, pattern) for pattern in patterns)]


def entry(name: str) -> Entry:
    """Return the corpus entry with this name; raise ConfigError if there is none."""
    match = next((entry for entry in _entries() if entry.name == name), None)
    if match is None:
        raise ConfigError(f"the corpus has no graph {name!r}")
    return match


def publish(path: Path = PUBLISHED) -> None:
    """Write the sizes and hashes of all graphs of the corpus to `path`, by default `corpus.json`.

    Run it after a change of the corpus, and announce the change to readers of the old hashes.
    """
    summaries = {entry.name: graph_summary(entry.edges) for entry in _entries()}
    lines = (f"{json.dumps(name)}: {json.dumps(values)}" for name, values in summaries.items())
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _entries() -> Iterator[Entry]:
    for k, (family, sizes, tags, options) in enumerate(structures.graph_specs()):
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

"""About 300 hard graphs, each made from its name alone, the same on every machine and with every version of NumPy."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, cached_property, partial
from pathlib import Path

import numpy as np

from sarlite.errors import ConfigError
from sarlite.keys import word
from sarlite.oracle import structures
from sarlite.oracle.edges import EdgeList
from sarlite.oracle.structures import Draw

PUBLISHED = Path(__file__).with_name("corpus.json")
LEVELS = ("ci", "all", "large")
WIDTHS = (17, 1, 3, 100, 257)
VALUES = ("codes", "negative", "ties", "scores", "masked", "unreachable", "denormal")
_NARROW = 30_000  # edges; from there on the width is 1 or 3, so that the corpus takes a minute


@dataclass(frozen=True)
class Entry:
    """One graph of the corpus, and which inputs it is meant to be run with.

    Attributes
    ----------
    name : str
        As "in-star-100000"; seeds the graph.
    width : int
        Columns of the inputs.
    heads : int
        Of attention and of softmax by edge.
    values : str
        Of VALUES: what is special about the inputs (`special`).
    tags : tuple of str
        What is hard about it.
    """

    name: str
    build: Callable[[Draw], EdgeList]
    width: int
    heads: int
    values: str
    tags: tuple[str, ...]

    @property
    def seed(self) -> int:
        """64 bits, of the name."""
        return word(self.name)

    @cached_property
    def edges(self) -> EdgeList:
        return self.build(Draw(self.name))

    @property
    def size(self) -> int:
        """Edges and rows, times columns, without building the graph."""
        return sum(self.published[key] for key in ("n_src", "n_dst", "n_edges")) * self.width

    def fits(self, index_dtype: str) -> bool:
        """Whether twice the rows and edges are numbers of `index_dtype`.

        Elements of graphs that fit int16 are more than its numbers: an index of elements that is made in the type of
        the rows overflows there, as an index of int32 does above 2^31, on small machines too.
        """
        return 2 * max(self.published[key] for key in ("n_src", "n_dst", "n_edges")) <= np.iinfo(index_dtype).max

    @property
    def published(self) -> dict:
        """n_src, n_dst, n_edges and sha256, as `corpus.json` has them."""
        return published()[self.name]


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
        "all"; "ci": the half with the fewest edges and rows, times columns, and the smallest of each tag; "large":
        those of more than 2^31 edges times columns alone, for functions that keep nothing by edge and column (a float32
        of each would be 8 GiB).

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
    order = sorted(entries, key=lambda e: e.size)
    first = {tag: e.name for e in reversed(order) for tag in e.tags}
    kept = {e.name for e in order[: len(entries) // 2]} | set(first.values())
    return [e for e in entries if e.name in kept]


def named(entries: Iterable[Entry], patterns: str | Sequence[str]) -> list[Entry]:
    """Return the graphs whose names are like a pattern, or like one of several (fnmatch)."""
    patterns = [patterns] if isinstance(patterns, str) else patterns
    return [e for e in entries if any(fnmatchcase(e.name, pattern) for pattern in patterns)]


def entry(name: str) -> Entry:
    """Return the graph of a name; ConfigError where there is none."""
    for found in _entries():
        if found.name == name:
            return found
    raise ConfigError(f"the corpus has no graph {name!r}")


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
        width = options.get("width", (1, 3)[k % 2] if large else WIDTHS[k % len(WIDTHS)])
        yield Entry(name, partial(_built, make, sizes), width, (1, 2, 1, 3)[k % 4], values,
                    (*tags, *(() if values == "codes" else (values,))))


def _built(make: Callable[..., EdgeList], sizes: tuple, draw: Draw) -> EdgeList:
    return make(draw, *sizes)


if __name__ == "__main__":
    publish()

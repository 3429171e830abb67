"""Seeded graphs that the benchmarks share, each drawn once and stored as a file that peers read too.

| name | nodes | directed edges | |
|---|---|---|---|
| `S` | 100,000 | 5 million | degrees 6 / 31 / 353 / 2314 at minimum, median, 99 %, maximum; ids in community order |
| `M` | 400,000 | 20 million | the same shape |
| `R` | 23,000 | 11 million | Reddit-like: weights capped at 12 times their mean |
| `P` | 1,000,000 | 29 million | of the mean degree of ogbn-papers100M, symmetric |
| `A` | 169,000 | 1.16 million | of ogbn-arxiv's size, as MG-GCN's Table 1 has it |
| `B` | 58,000 | 8.7 million | a 150th of ogbn-proteins there |
| `C` | 3,300 | 9,200 | of Cora's size |

All are symmetric, without loops or duplicates. `S-shuffled` is S relabelled at random. `S/100` is S with a hundredth of
the nodes and of the edges, for trial runs; both together: `S/100-shuffled`. Run as a program, this file draws the named
graphs and prints their sizes.
"""

import os
import re
import sys
from pathlib import Path
from typing import NamedTuple

import harness
import numpy as np

from sarlite import Graph
from sarlite.structure.edges import csr_by_dst, destinations
from sarlite.structure.generate import power_law

NAME = re.compile(r"(?P<base>[ABCMPRS])(/(?P<part>[1-9]\d*))?(?P<shuffled>-shuffled)?")


class Shape(NamedTuple):
    nodes: int
    edges: int
    cap: float  # largest weight as a multiple of the mean weight


# power_law's default exponent, 2.5, gives S the degrees of the table above.
SHAPES = {"S": Shape(100_000, 5_000_000, 60), "M": Shape(400_000, 20_000_000, 60), "R": Shape(23_000, 11_000_000, 12),
          "P": Shape(1_000_000, 29_000_000, 60), "A": Shape(169_000, 1_160_000, 60), "B": Shape(58_000, 8_700_000, 60),
          "C": Shape(3_300, 9_200, 60)}


def draw(name):
    """Return (indptr, indices) of the graph with a name such as "S" or "M-shuffled"; an unknown name raises SystemExit."""
    match = NAME.fullmatch(name)
    if not match:
        raise SystemExit(f"graph {name!r} is not A, B, C, M, P, R or S, with /NUMBER or -shuffled behind it")
    shape, part = SHAPES[match["base"]], int(match["part"] or 1)
    indptr, indices = power_law(shape.nodes // part, shape.edges // part // 2 * 2, cap=shape.cap, seed=0)
    return shuffle(indptr, indices) if match["shuffled"] else (indptr, indices)


def shuffle(indptr, indices, seed=1):
    """Return (indptr, indices) of a graph whose nodes are relabelled at random; the sources of each row ascend."""
    n_nodes = len(indptr) - 1
    label = np.random.default_rng(seed).permutation(n_nodes).astype(indices.dtype)
    return csr_by_dst(label[indices], label[destinations(indptr, indices.dtype)], n_nodes)


def path(folder, name):
    """Return the .npz file of the graph `name`, with its arrays `indptr` and `indices`; generate the graph if the file is missing.

    `indptr` is (n_nodes + 1,) int64, `indices` (n_edges,) int32.

    The graph is drawn if the file does not exist.
    """
    file = Path(folder, name.replace("/", "_") + ".npz")
    if not file.exists():
        harness.note(f"drawing graph {name}")
        indptr, indices = draw(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_suffix(f".{os.getpid()}.npz")
        np.savez(unfinished, indptr=indptr, indices=indices)
        unfinished.replace(file)  # the file is renamed at the end, so it is either complete or missing
    return file


def size(folder, name):
    """Return (number of nodes, number of edges) of the graph `name`."""
    indptr, indices = arrays_of(path(folder, name))
    return len(indptr) - 1, len(indices)


def arrays_of(file):
    """Return (indptr, indices) from a graph's file."""
    with np.load(file) as arrays:
        return arrays["indptr"], arrays["indices"]


def whole(folder, name):
    """Return the `Graph` of a name, undivided, on a single rank."""
    return Graph.from_csr(*arrays_of(path(folder, name)))


def load(folder, name):
    """Return the `Graph` of a name, undivided, on a single rank, with its transpose computed.

    Peers also convert the graph to each of their formats before they are measured.
    """
    graph = whole(folder, name)
    for block in graph.plan.blocks:
        block.transpose  # noqa: B018 (cached at its first use)
    return graph


def main(argv=None):
    parser = harness.parser(__doc__)
    parser.add_argument("names", nargs="*", default=["S", "S-shuffled", "M", "M-shuffled", "R"])
    harness.graphs_option(parser)
    args = parser.parse_args(argv)
    rows = [{"graph": name, **degrees(args.graphs, name)} for name in args.names]
    harness.report("Graphs", rows, {key: lambda r, key=key: r[key] for key in rows[0]}, args.json)


def degrees(folder, name):
    in_degrees = np.diff(arrays_of(path(folder, name))[0])
    low, middle, high, top = map(int, np.percentile(in_degrees, [0, 50, 99, 100]))
    return {"nodes": len(in_degrees), "edges": int(in_degrees.sum()), "min": low, "median": middle, "99 %": high, "max": top}


if __name__ == "__main__":
    sys.exit(main())

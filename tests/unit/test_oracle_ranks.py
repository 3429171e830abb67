"""`oracle.check_ranks`: sarlite's ranks pass, and every planted bug of a distributed run is named, with its layer, rank and row."""

import importlib
import threading

import numpy as np
import pytest
from oracle_candidates import graph_ranks, spmm

from sarlite.errors import ConfigError
from sarlite.oracle import Verdict, check_ranks, each_rank
from sarlite.oracle.ranks import PARTS, graphs, owners


@pytest.fixture
def few(monkeypatch):
    """The first graphs alone, and that with the fewest nodes."""
    module = importlib.import_module("sarlite.oracle.ranks")
    chosen = [graphs()[0], graphs()[-1]]
    monkeypatch.setattr(module, "graphs", lambda: chosen)


@pytest.mark.parametrize("name, options", [("spmm", {"reduce": "sum"}), ("spmm", {"reduce": "mean"}), ("spmm", {"reduce": "max"}),
                                           ("attention", {"kind": "gat"})])
def test_sarlite_passes_on_ranks(few, name, options):
    report = check_ranks(graph_ranks, name, ranks=(1, 3), **options).require()
    assert report.checked["ranks"] == 2 * (1 + 4) * 2 * (1 + (1 if name == "spmm" else 3)) and report.ratio <= 1


# ---- a run with bugs


def together(parts, name="x"):
    """The rows of all ranks."""
    rows = np.zeros((parts[0].n_nodes, *parts[0].arrays[name].shape[1:]), np.float32)
    for part in parts:
        rows[part.ids] = part.arrays[name]
    return rows


class Run:
    """A sum over edges on ranks, right but for `bug`."""

    def __init__(self, bug):
        self.bug, self.earlier = bug, {}

    def __call__(self, parts):
        x = together(parts)
        g = np.zeros_like(x)
        for part in parts:
            g[part.ids] = part.cotangents["out"]
        key = x.shape, len(parts), parts[0].owner.tobytes()
        before = self.earlier.get(key)
        results = [self.rank(part, len(parts), x, g, before) for part in parts]
        self.earlier[key] = x, g
        return results

    def rank(self, part, size, x, g, before):
        bug, n = self.bug, part.n_nodes
        src, dst = part.src, part.dst
        remote = part.owner[src] != part.rank
        if bug == "remote edges":
            src, dst = src[~remote], dst[~remote]
        if bug == "one edge" and remote.any():
            kept = np.arange(len(src)) != np.flatnonzero(remote)[0]
            src, dst = src[kept], dst[kept]
        if bug == "stale rows" and before is not None:
            x = np.where((part.owner != part.rank)[:, None], before[0], x)
        if bug == "zero rows" and part.rank == 1:
            x = np.where((part.owner != part.rank)[:, None], 0, x).astype(np.float32)
        out = spmm(src, dst, x, n)[part.ids]
        dx = sum(spmm(np.array(d), np.array(s), g, n) for s, d in [self.edges(part)]) if bug == "not reduced" else self.whole(part, g, before)
        if bug == "mean over ranks":
            out = out / np.float32(size)
        if bug == "sum of edges":
            out = out * np.maximum(np.bincount(part.dst, minlength=n), 1)[part.ids, None].astype(np.float32)
        if bug == "permuted":
            out = out[::-1].copy()
        if bug == "zero gradient":
            dx = np.zeros_like(x)
        if bug == "bits" and part.rank == size - 1 and size > 1:
            out = out + np.float32(1e-3) * (np.arange(out.size).reshape(out.shape) % 3 == 1)
        if bug == "too few rows":
            out = out[1:]
        return {"out": out.astype(np.float32), "gradients": {} if bug == "no gradient" else {"x": dx[part.ids]}}

    def edges(self, part):
        return part.src, part.dst

    def whole(self, part, g, before):
        """The gradient of all ranks' edges, found here from the graph that the test keeps."""
        dx = spmm(self.graph.dst, self.graph.src, g, part.n_nodes)
        if self.bug == "stale gradient" and before is not None:
            dx = dx + spmm(self.graph.dst, self.graph.src, before[1], part.n_nodes)
        return dx

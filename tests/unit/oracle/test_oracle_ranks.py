"""`oracle.check_ranks`: sarlite's ranks pass, and each planted bug of a distributed run is named.

The finding names the layer, the rank and the row.
"""

import threading

import numpy as np
import pytest

from sarlite.errors import ConfigError
from sarlite.oracle import Verdict, check_ranks, each_rank
from sarlite.oracle.rank_checks import PARTS, division_graphs, owners
from tests.helpers.oracle.oracle_candidates import graph_ranks, spmm

FOUND = division_graphs()
FEW = (FOUND[0][0], min(FOUND, key=lambda graph: graph[1].n_dst)[0])  # the first graph, and that with the fewest nodes


def check_few(run, reference, **options):
    return check_ranks(run, reference, graphs=FEW, **options)


def test_the_few_graphs_are_a_large_and_a_tiny_one():
    large, tiny = division_graphs(FEW)
    assert (large[0], tiny[0]) == FEW and large[1].n_dst > 20 and tiny[1].n_dst < 3


@pytest.mark.parametrize("name, options", [("spmm", {"reduce": "sum"}), ("spmm", {"reduce": "mean"}), ("spmm", {"reduce": "max"}),
                                           ("attention", {"kind": "gat"})])
def test_sarlite_passes_on_ranks(name, options):
    report = check_few(graph_ranks, name, ranks=[3], **options).require()
    assert report.checked["ranks"] == 2 * len(PARTS) * 2 * (2 if name == "spmm" else 4) and report.ratio <= 1


# ---- a run with bugs


def together(parts, name="x"):
    """Return the rows of all ranks."""
    rows = np.zeros((parts[0].n_nodes, *parts[0].arrays[name].shape[1:]), np.float32)
    for part in parts:
        rows[part.ids] = part.arrays[name]
    return rows


class Run:
    """A sum over edges on several ranks, right except for `bug`."""

    def __init__(self, bug):
        self.bug, self.earlier = bug, {}

    def __call__(self, parts):
        x, n = together(parts), parts[0].n_nodes
        g = np.zeros_like(x)
        for part in parts:
            g[part.ids] = part.cotangents.get("out", 0)
        key = x.shape, len(parts), parts[0].owner.tobytes()
        x0, dx0 = self.earlier.get(key, (None, None))
        whole = sum(spmm(part.dst, part.src, g, n) for part in parts)
        results = []
        for part in parts:
            dx = spmm(part.dst, part.src, g, n) if self.bug == "not reduced" else whole
            dx = dx + dx0 if self.bug == "stale gradient" and dx0 is not None else dx
            dx = dx * np.float32(self.bug != "zero gradient")
            out = self.forward(part, len(parts), x, x0)
            results.append({"out": out, "gradients": {} if self.bug == "no gradient" else {"x": dx[part.ids]}})
        self.earlier[key] = x, whole
        return results[1:] if self.bug == "too few ranks" else results

    def forward(self, part, size, x, x0):
        src, dst, bug, foreign = part.src, part.dst, self.bug, (part.owner != part.rank)[:, None]
        remote = foreign[src, 0]
        if bug in ("remote edges", "one edge") and remote.any():
            selected = ~remote if bug == "remote edges" else np.arange(len(src)) != np.flatnonzero(remote)[0]
            src, dst = src[selected], dst[selected]
        if bug == "edge twice" and remote.any():
            src, dst = np.append(src, src[remote][-1]), np.append(dst, dst[remote][-1])
        if bug == "stale rows" and x0 is not None:
            x = np.where(foreign, x0, x)
        out = spmm(src, dst, x, part.n_nodes)[part.ids]
        if bug == "mean over ranks":
            out = out / np.float32(size)
        if bug == "sum of edges":
            out = out * np.maximum(np.bincount(part.dst, minlength=part.n_nodes), 1)[part.ids, None].astype(np.float32)
        if bug == "permuted":
            out = out[::-1].copy()
        if bug == "noise" and remote.any():
            rows = np.isin(part.ids, dst[remote])
            out = out + np.float32(0.25) * (rows[:, None] & (np.arange(out.shape[1]) % 2 == 1))
        return out[1:] if bug == "too few rows" else out


@pytest.mark.parametrize("bug, output, cause", [
    ("remote edges", "out", "all edges from other ranks into rank 0 are lost"),
    ("one edge", "out", "is lost"), ("edge twice", "out", "is counted twice"),
    ("stale rows", "out", "stale buffer: rows from other ranks are those of the call before"),
    ("mean over ranks", "out", "wrong scale: a mean over 2 ranks where a sum is promised"),
    ("sum of edges", "out", "wrong scale: a sum over the edges where a mean is promised"),
    ("permuted", "out", "rows are permuted: that of node"),
    ("noise", "out", "no single cause found"),
    ("not reduced", "dx", "not reduced: the gradients that other ranks have of this rank's rows are missing"),
    ("stale gradient", "dx", "stale buffer: the gradient of the call before is still in it"),
    ("zero gradient", "dx", "all zeros"),
    ("too few rows", "out", "rank 0: out has shape"),
    ("too few ranks", "", "returned 0 results of 1 ranks"),
])  # fmt: skip
def test_bugs_are_named(bug, output, cause):
    report = check_few(Run(bug), "spmm", reduce="sum")
    bad = report.first_bad
    assert report.verdict is Verdict.WRONG and bad.output == output and cause in bad.cause, str(report)
    if bug in ("one edge", "edge twice"):
        edges = bad.case.edges
        assert bad.edges[0][1] == bad.node and bad.edges[0] in set(zip(edges.src.tolist(), edges.dst.tolist()))
    if bad.level == "ranks":
        owner = owners(bad.case.name.split("/")[2], bad.case.n_dst, 2)
        assert bad.got != bad.expected and bad.rank in (0, 1) and ("1 ranks" in bad.case.name or owner[bad.node] == bad.rank)


def test_the_right_run_passes_and_says_what_it_left_out():
    check_few(Run(None), "spmm", reduce="sum", parts=PARTS).require()
    report = check_few(Run("no gradient"), "spmm", reduce="sum").require()
    assert report.uncovered["the gradient of x, which a rank does not return"] == 36
    assert check_few(Run(None), "spmm", ranks=[1], gradients=False).coverage["not covered: gradients: not asked for"] == 1


# ---- layers and parameters


def combined(state, rows, mean):
    return (rows @ state["root.weight"] + mean @ state["neighbour.weight"] + state["root.bias"]).astype(np.float32)


def structure(parts):
    """Return all edges, and the in-degrees as divisors."""
    src, dst = (np.concatenate([getattr(part, name) for part in parts]) for name in ("src", "dst"))
    return src, dst, np.maximum(np.bincount(dst, minlength=parts[0].n_nodes), 1)[:, None].astype(np.float32)


def model(parts, bug=None):
    """Return two layers out_i = W h_i + V mean_j h_j + b with a ReLU between them.

    The reference "sage-model" defines the same layers.
    """
    h, owner, (src, dst, degree), layers = together(parts), parts[0].owner, structure(parts), []
    for k in range(2):
        state = {name.removeprefix(f"convs.{k}."): value for name, value in parts[0].state.items() if name.startswith(f"convs.{k}.")}
        selected = (owner[src] == owner[dst]) if bug == "second layer" and k == 1 else slice(None)
        layers.append(combined(state, h, spmm(src[selected], dst[selected], h, len(h)) / degree))
        h = np.maximum(layers[-1], 0)
    return [{"out": layers[1][part.ids], "layers": [layer[part.ids] for layer in layers]} for part in parts]


def test_the_first_layer_that_is_wrong_is_named():
    options = {"ranks": [2], "parts": ["random"], "gradients": False}
    check_few(model, "sage-model", **options).require()
    report = check_few(lambda parts: model(parts, "second layer"), "sage-model", **options)
    assert report.first_bad.layer == 1 and report.first_bad.output == "layers.1", str(report)
    report = check_few(lambda parts: [result["out"] for result in model(parts)], "sage-model", **options).require()
    assert report.uncovered["the layers' results, which a rank does not return"] > 0


def layer(parts, bug=None):
    """Return one such layer and its gradients, with parameters' gradients summed over ranks."""
    h, (src, dst, degree), state = together(parts), structure(parts), parts[0].state
    g = np.concatenate([part.cotangents["out"] for part in parts])[np.argsort(np.concatenate([part.ids for part in parts]))]
    mean = spmm(src, dst, h, len(h)) / degree
    dx = g @ state["root.weight"].T + spmm(dst, src, (g @ state["neighbour.weight"].T / degree).astype(np.float32), len(h))
    results = []
    for part in parts:
        rows = part.ids if bug == "not reduced" else slice(None)
        scale = 1 / len(parts) if bug == "mean over ranks" else 1
        gradients = {"x": dx[part.ids], "root.weight": h[rows].T @ g[rows] * scale, "neighbour.weight": mean[rows].T @ g[rows] * scale,
                     "root.bias": g[rows].sum(0) * scale}
        gradients = {name: np.float32(value) for name, value in gradients.items()}
        results.append({"out": combined(state, h, mean)[part.ids], "gradients": gradients})
    return results


@pytest.mark.parametrize("bug, cause", [("not reduced", "not reduced over ranks: the ranks' gradients add up to it"),
                                        ("mean over ranks", "wrong scale: a mean over 2 ranks where a sum is promised")])
def test_wrong_gradients_of_parameters_are_named(bug, cause):
    check_few(layer, "sage", ranks=[2], parts=["contiguous", "one empty"]).require()
    bad = check_few(lambda parts: layer(parts, bug), "sage", ranks=[2]).first_bad
    assert cause in bad.cause and bad.output.startswith("droot.") and bad.rank == 0, str(bad)


# ---- each_rank


def test_each_rank_calls_a_function_of_one_rank():
    def mine(rank, part, ids):
        assert rank == part.rank and ids is part.ids
        return part.arrays["x"] * 0

    assert check_few(each_rank(mine), "spmm", ranks=[2], gradients=False).first_bad.cause == "all zeros"


@pytest.mark.parametrize("error, verdict, cause", [
    (ValueError("no such buffer"), Verdict.WRONG, "on rank 1: raised ValueError: no such buffer"),
    (NotImplementedError("two"), Verdict.UNSUPPORTED, "raised NotImplementedError: two"),
])  # fmt: skip
def test_an_error_of_one_rank_ends_the_run(error, verdict, cause):
    free = threading.Event()

    def mine(rank, part, ids):
        if rank == 1:
            raise error
        free.wait(60)  # for its peer, that will not come

    try:
        report = check_few(each_rank(mine), "spmm", ranks=[2])
    finally:
        free.set()
    assert report.verdict is verdict and cause in report.findings[0].cause, str(report)


def test_a_run_that_hangs_ends_the_check():
    free = threading.Event()
    try:
        report = check_few(lambda parts: free.wait(60), "spmm", time_limit=0.1)
    finally:
        free.set()
    assert "did not return" in report.first_bad.cause and len(report.findings) == 1


# ---- parts


@pytest.mark.parametrize("kind", PARTS)
def test_every_node_has_a_rank(kind):
    for n_nodes, size in ((0, 3), (2, 5), (100, 1), (100, 3)):
        owner = owners(kind, n_nodes, size)
        assert len(owner) == n_nodes and np.all((owner >= 0) & (owner < size))
    counts = np.bincount(owners(kind, 100, 3), minlength=3)
    assert {"contiguous": counts.tolist() == [34, 33, 33], "random": counts.min() > 20, "skewed": counts.tolist() == [50, 25, 25],
            "one empty": sorted(counts) == [0, 50, 50]}[kind], counts


@pytest.mark.parametrize("options, text", [({"parts": ["metis"]}, "'metis' is not one of contiguous"), ({"ranks": [0]}, "ranks is 0"),
                                           ({"ranks": [1.5]}, "ranks is 1.5"), ({"reduce": "product"}, "product")])
def test_arguments_are_refused(options, text):
    with pytest.raises(ConfigError, match=text):
        check_ranks(Run(None), "spmm", **options)

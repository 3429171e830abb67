"""PyG's side of the benchmarks: a process that `peers.py` runs in an environment with torch and torch_geometric.

    python peers_pyg.py pyg|pyg-compiled CASE GRAPH.npz --threads 2 --repeats 3 [--width 64]

CASE is spmm, or an epoch of sage, gat or gcn with the models of `epoch.py`. Prints a line of JSON, as `peers.py`
describes. `pyg` runs eagerly on a sparse CSR tensor of torch, with which PyG's layers take `torch.sparse.mm`; on a tenth of
S a step of GraphSAGE's layer took a sixth of the time that it took on `EdgeIndex` or on pairs. `pyg-compiled` runs under
`torch.compile` on pairs of source and destination, as the compiler does not know sparse tensors; compiling is not
timed. Repeated runs end after `SECONDS`, as some cases take a minute.

There are no minibatches: PyG's `NeighborLoader` needs pyg-lib or torch-sparse.
"""

import argparse
import json
import statistics
import time
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch_geometric.nn import GATConv, GCNConv, SAGEConv

SECONDS = 30.0
"""Time after which no further run of a case starts, in seconds."""
SHAPES = {"sage": (100, 47, 0.1), "gat": (100, 47, 0.1), "gcn": (602, 41, 0.66)}
"""Features, classes and the share of training nodes of each model."""


def read(file):
    """Return (indptr, indices), int64 tensors, of the graph in a file, as a CSR matrix with a row for each destination."""
    arrays = np.load(file)
    return [torch.from_numpy(arrays[name].astype(np.int64)) for name in ("indptr", "indices")]


def pairs_of(indptr, indices):
    """Return the sources and destinations of a CSR graph's edges as one tensor, (2, n_edges), sorted by destination."""
    return torch.stack([indices, torch.repeat_interleave(torch.arange(len(indptr) - 1), indptr.diff())])


def sparse(indptr, indices, weights=None):
    """Return a CSR graph as a sparse CSR tensor with a row for each destination; by default all `weights` are 1."""
    n_nodes = len(indptr) - 1
    values = torch.ones(len(indices)) if weights is None else weights
    return torch.sparse_csr_tensor(indptr, indices, values, size=(n_nodes, n_nodes))


class Net(nn.Module):
    """Model of `epoch.py` in PyG, "sage", "gat" or "gcn": layers with batch norm (not in "gcn"), ReLU and dropout 0.5 between them."""

    def __init__(self, name, n_in, n_out):
        super().__init__()
        sage, gcn = partial(SAGEConv, aggr="mean"), partial(GCNConv, normalize=False)
        gat = partial(GATConv, add_self_loops=False)
        layers, width = {
            "sage": lambda: ([sage(n_in, 256), sage(256, 256), sage(256, n_out)], 256),
            "gat": lambda: ([gat(n_in, 32, heads=4), gat(128, 32, heads=4), gat(128, n_out)], 128),
            "gcn": lambda: ([gcn(n_in, 512), gcn(512, n_out)], None),
        }[name]()
        self.layers = nn.ModuleList(layers)
        self.norms = nn.ModuleList([nn.BatchNorm1d(width) if width else nn.Identity() for _ in layers[1:]])

    def forward(self, graph, h, weights):
        for i, layer in enumerate(self.layers):
            h = layer(h, graph) if weights is None else layer(h, graph, weights)
            if i < len(self.norms):
                h = functional.dropout(torch.relu(self.norms[i](h)), 0.5, self.training)
        return h


def spmm(args, indptr, indices):
    """Return a function without arguments that sums random rows of `args.width` columns over the neighbours in a CSR graph."""
    x = torch.randn(len(indptr) - 1, args.width)
    if not args.compiled:
        return partial(torch.sparse.mm, sparse(indptr, indices), x, "sum")
    src, dst = pairs_of(indptr, indices)

    def add(x):
        return torch.zeros_like(x).index_add_(0, dst, x[src])

    return partial(torch.compile(add), x)


def epoch(args, indptr, indices):
    """Return a function without arguments that takes a training step of the model `args.case` on the full CSR graph."""
    n_in, n_out, share = SHAPES[args.case]
    n_nodes = len(indptr) - 1
    x, labels = torch.randn(n_nodes, n_in), torch.randint(0, n_out, (n_nodes,))
    rows = (torch.rand(n_nodes) < share).nonzero().view(-1)
    pairs, weights = pairs_of(indptr, indices), None
    if args.case == "gcn":
        degree = torch.bincount(pairs[1], minlength=n_nodes).float()
        weights = (degree[pairs[0]] * degree[pairs[1]]).rsqrt()
    model = Net(args.case, n_in, n_out)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    if args.compiled:
        run = partial(torch.compile(model), pairs, x, weights)
    else:
        run = partial(model, sparse(indptr, indices, weights), x, None)

    def step():
        loss = functional.cross_entropy(run()[rows], labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def timed(run, repeats):
    """Call `run` once to warm up, then up to `repeats` times within about `SECONDS`; return the milliseconds of each of these calls."""
    begin = time.perf_counter()
    run()
    times: list[float] = []
    while not times or (len(times) < repeats and time.perf_counter() - begin < SECONDS):
        start = time.perf_counter()
        run()
        times.append(1e3 * (time.perf_counter() - start))
    return times


def resident(field):
    """Return the `field` "VmRSS" (memory now) or "VmHWM" (its peak) of /proc/self/status in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", choices=("pyg", "pyg-compiled"))
    parser.add_argument("case", choices=("spmm", *SHAPES))
    parser.add_argument("graph")
    for name, default in (("width", 256), ("threads", 2), ("repeats", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    args.compiled = args.library == "pyg-compiled"
    warnings.filterwarnings("ignore")
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    run = (spmm if args.case == "spmm" else epoch)(args, *read(args.graph))
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = resident("VmRSS")
    times = timed(run, args.repeats)
    print(json.dumps({"ms": statistics.median(times), "ms_min": min(times), "ms_max": max(times),
                      "peak_mib": resident("VmHWM") - before, "repeats": len(times)}))


if __name__ == "__main__":
    main()

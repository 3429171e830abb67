"""DGL's side of `relations_speed.py --batches N`, for an environment with dgl and torch: `python relations_dgl.py GRAPH.npz --threads 2`.

The model and the batches are those that `relations_speed.py` describes. Prints a line of JSON as `peer.py` does.
"""

import argparse
import json
import resource
import statistics
import time

import dgl
import numpy as np
import torch
from dgl.nn import GraphConv, HeteroGraphConv
from torch import nn
from torch.nn import functional

N_IN, HIDDEN, CLASSES, FANOUTS, BATCH = 128, 256, 64, [10, 10], 1000


class Layer(nn.Module):
    """R-GCN layer in DGL: each relation's mean of source rows times its matrix, summed, plus the own row times its type's matrix."""

    def __init__(self, relations, types, n_in, n_out):
        super().__init__()
        self.neighbours = HeteroGraphConv({name: GraphConv(n_in, n_out, norm="right", bias=False, allow_zero_in_degree=True)
                                           for name in relations}, aggregate="sum")
        self.roots = nn.ModuleDict({name: nn.Linear(n_in, n_out) for name in types})

    def forward(self, block, h):
        dst_rows = {name: rows[: block.num_dst_nodes(name)] for name, rows in h.items()}
        sums = self.neighbours(block, (h, dst_rows))
        return {name: self.roots[name](rows) + sums.get(name, 0) for name, rows in dst_rows.items()}


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("graph")
    for name, default in (("threads", 2), ("repeats", 3), ("batches", 20)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    data = np.load(args.graph)
    counts, ends = data["n_nodes"].tolist(), data["relations"].tolist()
    relations = [f"r{r}" for r in range(len(ends))]
    pairs = [(data[f"src_{r}"].astype(np.int64), data[f"dst_{r}"].astype(np.int64)) for r in range(len(ends))]
    graph = dgl.heterograph({(str(s), name, str(t)): pair for name, (s, t), pair in zip(relations, ends, pairs)},
                            {str(t): n for t, n in enumerate(counts)}, idtype=torch.int64)
    graph = graph.formats(["coo", "csr", "csc"])
    graph.create_formats_()
    types = [str(t) for t in range(len(counts))]
    x, y = {name: torch.randn(n, N_IN) for name, n in zip(types, counts)}, torch.randint(0, CLASSES, (counts[0],))
    seeds = {"0": torch.randperm(counts[0])[: args.batches * BATCH]}
    loader = dgl.dataloading.DataLoader(graph, seeds, dgl.dataloading.NeighborSampler(FANOUTS), batch_size=BATCH, shuffle=True)
    layers = nn.ModuleList([Layer(relations, types, N_IN, HIDDEN), Layer(relations, types, HIDDEN, CLASSES)])
    optimizer, before, times = torch.optim.Adam(layers.parameters(), lr=0.01), peak(), []
    for _ in range(args.repeats + 1):
        begin = time.perf_counter()
        for inputs, outputs, blocks in loader:
            h = layers[0](blocks[0], {name: x[name][rows] for name, rows in inputs.items()})
            h = {name: functional.dropout(torch.relu(rows), 0.5) for name, rows in h.items()}
            loss = functional.cross_entropy(layers[1](blocks[1], h)["0"], y[outputs["0"]])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        times.append(1e3 * (time.perf_counter() - begin))
    times = times[1:]  # the first run warms up
    print(json.dumps({"ms": statistics.median(times), "ms_min": min(times), "ms_max": max(times), "peak_mib": peak() - before,
                      "batches": args.batches}))


if __name__ == "__main__":
    main()

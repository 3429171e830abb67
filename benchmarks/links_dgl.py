"""DGL's side of `links_speed.py`, for an environment with dgl and torch: `python links_dgl.py GRAPH.npz --threads 2`.

The model, batches, negatives and loss are those that `links_speed.py` describes. Prints a line of JSON as `peer.py` does.
"""

import argparse
import json
import resource
import statistics
import time

import dgl
import numpy as np
import torch
from dgl.nn import SAGEConv
from torch import nn
from torch.nn import functional

FANOUTS, BATCH, N_IN, WIDTH = [5, 10, 15], 1000, 100, 256


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([SAGEConv(n_in, WIDTH, "mean") for n_in in (N_IN, WIDTH, WIDTH)])
        self.norms = nn.ModuleList([nn.BatchNorm1d(WIDTH) for _ in self.layers[1:]])

    def forward(self, blocks, h):
        for i, (layer, block) in enumerate(zip(self.layers, blocks)):
            h = layer(block, h)
            if i < len(self.norms):
                h = functional.dropout(torch.relu(self.norms[i](h)), 0.5, self.training)
        return h


def score(pairs, h):
    src, dst = pairs.edges()
    return (h[src] * h[dst]).sum(1)


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("graph")
    for name, default in (("threads", 2), ("repeats", 3), ("batches", 20)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    file = np.load(args.graph)
    indptr, indices = torch.from_numpy(file["indptr"].astype(np.int64)), torch.from_numpy(file["indices"].astype(np.int64))
    n = len(indptr) - 1
    graph = dgl.graph((indices, torch.repeat_interleave(torch.arange(n), indptr.diff())), num_nodes=n)
    graph = graph.formats(["coo", "csr", "csc"])
    graph.create_formats_()
    torch.manual_seed(0)
    x, links = torch.randn(n, N_IN), torch.randperm(graph.num_edges())[: args.batches * BATCH]
    sampler = dgl.dataloading.as_edge_prediction_sampler(
        dgl.dataloading.NeighborSampler(FANOUTS), exclude="self", negative_sampler=dgl.dataloading.negative_sampler.Uniform(1))
    loader = dgl.dataloading.DataLoader(graph, links, sampler, batch_size=BATCH, shuffle=True, drop_last=True)
    model = Encoder()
    optimizer, before, times = torch.optim.Adam(model.parameters(), lr=0.003), peak(), []
    for _ in range(args.repeats + 1):
        begin = time.perf_counter()
        for inputs, positive, negative, blocks in loader:
            h = model(blocks, x[inputs])
            logits = torch.cat([score(positive, h), score(negative, h)])
            wanted = torch.cat([torch.ones(positive.num_edges()), torch.zeros(negative.num_edges())])
            loss = functional.binary_cross_entropy_with_logits(logits, wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        times.append(1e3 * (time.perf_counter() - begin))
    times = times[1:]  # the first run warms up
    print(json.dumps({"ms": statistics.median(times), "ms_min": min(times), "ms_max": max(times), "peak_mib": peak() - before,
                      "batches": args.batches}))


if __name__ == "__main__":
    main()

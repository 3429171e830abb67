"""Check kernels in PyTorch with gradients by autograd: a weighted sum over edges, and a softmax over in-edges."""

import sys

from sarlite import oracle

try:
    import torch
except ImportError:
    sys.exit(print("skipped, so not covered: PyTorch is not installed"))


def weighted_sum(case):
    total = torch.zeros(case.n_dst, *case.x.shape[1:], dtype=case.x.dtype)
    return total.index_add(0, case.dst, case.x[case.src] * case.weight[:, None])


def softmax(case):
    scores, index = case.scores, case.dst[:, None].expand(case.scores.shape)
    top = torch.full((case.n_dst, scores.shape[1]), -torch.inf, dtype=scores.dtype)
    top = top.scatter_reduce(0, index, scores, "amax")
    top = torch.where(top == -torch.inf, 0.0, top)  # rows whose scores are all -Inf
    weights = (scores - top[case.dst]).exp()
    total = torch.zeros_like(top).index_add(0, case.dst, weights)
    return weights / torch.where(total > 0, total, 1.0)[case.dst]


for reference, kernel in ((oracle.Reference("spmm", reduce="sum", weighted=True), weighted_sum),
                          (oracle.Reference("softmax"), softmax)):
    print(oracle.check(oracle.torch_kernel(kernel), reference, graphs="[cm]*-[1-9]").require())

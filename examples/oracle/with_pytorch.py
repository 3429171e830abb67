"""Kernels in PyTorch with gradients by its autograd: a weighted sum over edges, and a softmax over the in-edges of each node."""

import sys

from sarlite import oracle

try:
    import torch
except ImportError:
    sys.exit(print("skipped, so not covered: PyTorch is not installed"))


def weighted_sum(case, x, weight):
    return torch.zeros(case.n_dst, *x.shape[1:], dtype=x.dtype).index_add(0, case.dst, x[case.src] * weight[:, None])


def softmax(case, scores):
    index = case.dst[:, None].expand(scores.shape)
    top = torch.full((case.n_dst, scores.shape[1]), -torch.inf, dtype=scores.dtype).scatter_reduce(0, index, scores, "amax")
    top = torch.where(torch.isfinite(top), top, 0.0)  # rows of which all scores are -Inf
    weights = (scores - top[case.dst]).exp()
    total = torch.zeros_like(top).index_add(0, case.dst, weights)
    return weights / torch.where(total > 0, total, 1.0)[case.dst]


def by_autograd(function, *names):
    """`run` and `vjp` of a function of a case and some of its arrays."""

    def run(case):
        return function(case, *(getattr(case, name) for name in names))

    def vjp(case, g):
        given = [getattr(case, name).requires_grad_() for name in names]
        return dict(zip(names, torch.autograd.grad(function(case, *given), given, g, allow_unused=True)))

    return {"run": run, "vjp": vjp}


for reference, kernel in ((oracle.Reference("spmm", reduce="sum", weighted=True), by_autograd(weighted_sum, "x", "weight")),
                          (oracle.Reference("softmax"), by_autograd(softmax, "scores"))):
    print(oracle.check(kernel["run"], reference, vjp=kernel["vjp"], convert=torch.from_numpy, graphs="[cm]*-[1-9]").require())

"""The backward pass: gradients on their way from seeds to leaves. What `engine` says of ownership is done here."""

import numpy as np

from sarlite import kernels
from sarlite.tape.primitives import PRIMITIVES, Node, Owned


def reachable(sinks, since=-1):
    """Return the nodes behind `sinks` that were recorded after time `since`, newest first."""
    found, todo = {}, [s for s in sinks if isinstance(s, Node)]
    while todo:
        node = todo.pop()
        if node.time > since and id(node) not in found:
            found[id(node)] = node
            todo.extend(s for s in node.sinks if isinstance(s, Node))
    return sorted(found.values(), key=lambda node: -node.time)


def pull(seeds, since=-1):
    """Carry gradients back from `seeds` and return what arrives at the ends. The tape stays as it is.

    Parameters
    ----------
    seeds : list of (Tensor, ndarray)
    since : int
        Nodes recorded at or before this time are ends too.

    Returns
    -------
    dict
        Gradient by `id` of the sink, for every end reached.
    """
    arrivals = carry(seeds, since)
    return {key: arrivals.sums[key][0] for key in arrivals.ends}


class Arrivals:
    """The sums of gradients on their way, by `id` of the sink: (array, whether it is owned)."""

    def __init__(self, since):
        self.since, self.sums, self.ends = since, {}, {}

    def add(self, sink, g, owned):
        key, g = id(sink), np.asarray(g)  # NumPy gives scalars for 0-d arrays, which cannot be added to
        before, in_place = self.sums.get(key, (None, False))
        if before is None:
            self.sums[key] = g, owned
        elif not (in_place and g is before):  # else the vjp has added to it
            self.sums[key] = _sum(before, g, in_place), True
        if not isinstance(sink, Node) or sink.time <= self.since:
            self.ends[key] = sink

    def into(self, sink):
        """What a vjp may add to."""
        g, owned = self.sums.get(id(sink), (None, False))
        return g if owned else None


def carry(seeds, since=-1, release=False):
    """Carry gradients back; return `Arrivals` with the ends. `release` frees each node's residuals once used."""
    arrivals = Arrivals(since)
    for tensor, g in seeds:
        if tensor.sink is not None:
            arrivals.add(tensor.sink, g, False)
    for node in reachable([t.sink for t, _ in seeds], since):
        if id(node) not in arrivals.sums:
            continue
        g, owned = arrivals.sums.pop(id(node))
        results = node.pull(g if owned else _read_only(g), arrivals.into)
        if release:
            node.release()
        rule = PRIMITIVES[node.name].owned
        new = owned if rule is Owned.AS_G else rule is Owned.YES
        for sink, g in zip(node.sinks, results):
            if sink is not None and g is not None:
                arrivals.add(sink, g, new)
        del results, g
    return arrivals


def _read_only(g):
    g = g.view()
    g.flags.writeable = False
    return g


def same_layout(a, b):
    """Whether two arrays are sums for `kernels.add`: of one float dtype and shape, contiguous."""
    return (a.shape == getattr(b, "shape", None) and a.dtype == b.dtype and a.dtype in (np.float32, np.float64)
            and a.flags.c_contiguous and b.flags.c_contiguous)  # fmt: skip


def _sum(a, b, in_place):
    """a + b, written over a if `in_place`."""
    if not same_layout(a, b):
        return np.add(a, b, out=a) if in_place else np.asarray(a + b)
    out = a if in_place else np.empty(a.shape, a.dtype)
    kernels.add(a, b, out)
    return out


def accumulate(leaf, g, owned):
    """Add an array to a leaf's `grad`."""
    if leaf.grad is None:
        leaf.grad = g if owned else np.array(g)
    else:
        leaf.grad += g

"""The backward pass: gradients on their way from seeds to leaves, with the ownership that `engine` explains."""

import numpy as np

from sarlite import kernels
from sarlite.tape.primitives import PRIMITIVES, Node, Owned
from sarlite.tape.row_gradient import RowGradient, as_whole


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
    return {key: as_whole(arrivals.sums[key][0]) for key in arrivals.ends}


class Holders:
    """How many sums of gradients are one array, to which nothing else refers.

    The array is owned where there is one sum.
    """

    __slots__ = ("n",)

    def __init__(self):
        self.n = 1

    @property
    def alone(self):
        return self.n == 1

    def drop(self, n=1):
        self.n -= n


class _Unknown(Holders):
    """The holders of an array to which others may refer: it is never owned."""

    alone = False

    def drop(self, n=1):
        pass


_UNKNOWN = _Unknown()


class Arrivals:
    """The sums of gradients on their way, by `id` of the sink: (array, its `Holders`)."""

    def __init__(self, since):
        self.since, self.sums, self.ends = since, {}, {}

    def add(self, sink, g, holders):
        key = id(sink)
        before, own = self.sums.get(key, (None, _UNKNOWN))
        if isinstance(before, RowGradient):
            before, own = self.sums[key] = before.whole(), Holders()
        if not isinstance(g, RowGradient):
            g = np.asarray(g)  # NumPy gives scalars for 0-d arrays, which cannot be added to
        elif before is None and getattr(sink, "takes_row_gradients", False):
            g = g.by_row()
        else:
            g, holders = g.whole(), Holders()
        owned = _owned(before, own)
        if before is None:
            self.sums[key] = g, holders
        elif owned is None:
            self.sums[key] = added(before, g), Holders()
            own.drop()
            holders.drop()
        elif g is not owned:  # else the vjp has added to it
            added(owned, g, owned)
            holders.drop()
        if not isinstance(sink, Node) or sink.time <= self.since:
            self.ends[key] = sink

    def into(self, sink):
        """The sum at this sink, which a vjp may add to; None where there is none that is owned."""
        g, holders = self.sums.get(id(sink), (None, _UNKNOWN))
        return None if isinstance(g, RowGradient) else _owned(g, holders)

    def arrived(self):
        """Yield (end, its gradient, whether the gradient is owned)."""
        for key, end in self.ends.items():
            g, holders = self.sums[key]
            yield end, g, holders.alone


def carry(seeds, since=-1, release=False):
    """Carry gradients back; return `Arrivals` with the ends. `release` frees each node's residuals once used."""
    arrivals = Arrivals(since)
    for tensor, g in seeds:
        if tensor.sink is not None:
            arrivals.add(tensor.sink, g, _UNKNOWN)
    for node in reachable([t.sink for t, _ in seeds], since):
        if id(node) in arrivals.sums:
            _pass(node, arrivals, release)
    return arrivals


def _pass(node, arrivals, release):
    """Pass one node's gradient on to its sinks."""
    g, holders = arrivals.sums.pop(id(node))
    g = _read_only(g) if _owned(g, holders) is None else g
    results = [None if sink is None else d for sink, d in zip(node.sinks, node.pull(g, arrivals.into))]
    if release:
        node.release()
    owners = _holders_of(results, PRIMITIVES[node.name].owned, g, holders)
    del g  # where the vjp used g up, a sum with what arrived before takes no memory beside it
    for sink, d, holders in zip(node.sinks, results, owners):
        if d is not None:
            arrivals.add(sink, d, holders)


def _holders_of(results, rule, g, holders):
    """The holders of each of a vjp's results; `holders` are the holders of its g."""
    if rule is Owned.NO:
        return [_UNKNOWN] * len(results)
    shares = [rule is Owned.AS_G and _shares(d, g) for d in results]
    n = sum(shares)
    if holders.alone and not (n > 1 and any(d is g for d in results)):
        return [Holders() for _ in results]  # no two of g's views overlap
    holders.drop(1 - n)
    return [holders if shared else Holders() for shared in shares]


def _shares(d, g):
    """Whether a result is g or a view of g.

    Of an empty g only a view that is read-only can be told from a new array.
    """
    return isinstance(d, np.ndarray) and (d is g or not d.flags.writeable or np.may_share_memory(d, g))


def _owned(g, holders):
    """g where it is owned, else None."""
    if not holders.alone:
        return None
    if not g.flags.writeable:  # g is a view that was made read-only while another sum held the array too
        g.flags.writeable = True
    return g


def _read_only(g):
    g = g.view()
    g.flags.writeable = False
    return g


def same_layout(a, b):
    """Whether `kernels.add` takes two arrays: contiguous, of one shape and one float dtype."""
    return (a.shape == getattr(b, "shape", None) and a.dtype == b.dtype and a.dtype in (np.float32, np.float64)
            and a.flags.c_contiguous and b.flags.c_contiguous)  # fmt: skip


def added(a, b, out=None):
    """a + b, written to `out` where given; large equal arrays on all threads."""
    if not isinstance(a, np.ndarray) or not same_layout(a, b):
        return np.asarray(np.add(a, b, out=out))
    out = np.empty(a.shape, a.dtype) if out is None else out
    kernels.add(a, b, out)
    return out


def accumulate(leaf, g, owned):
    """Add an array to a leaf's `grad`, or the gradients of some rows."""
    if isinstance(g, RowGradient):
        leaf.add_rows(g.index, g.g)
    elif leaf.grad is None:
        leaf.grad = g if owned else np.array(g)
    else:
        leaf.grad += g

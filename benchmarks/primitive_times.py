"""Functions that divide the time of an epoch among the tape's primitives (differentiable operations), forward and backward."""

import time
from collections import defaultdict
from contextlib import contextmanager

import harness

from sarlite.tape import recording


class Clock(recording.Observer):
    """Observer of the tape that adds up the milliseconds of each primitive (differentiable operation), forward and backward.

    Only aggregations call other primitives.
    """

    def __init__(self):
        self.ms, self.calls, self.depth = defaultdict(float), defaultdict(int), 0

    def forward(self, name, params):
        return self.timed((_label(name, params), "forward"))

    def backward(self, name, params):
        return self.timed((_label(name, params), "backward"))

    @contextmanager
    def timed(self, key):
        """Return a context whose time is added to `key`, (primitive, "forward" or "backward"), unless an outer context is being timed."""
        self.depth += 1
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.depth -= 1
            if not self.depth:
                self.ms[key] += 1e3 * (time.perf_counter() - begin)
                self.calls[key] += 1


def _label(name, params):
    return f"{name} ({type(params['operator']).__name__})" if "operator" in params else name


def breakdown(trainer, epochs):
    """Train `epochs` epochs by `trainer`; return rows with calls and ms per epoch of each primitive, and of the remaining time.

    The trainer has taken step 0 before.
    """
    clock = Clock()
    step = trainer.optimizer.step

    def timed_step(*args):
        with clock.timed(("optimizer", "step")):
            return step(*args)

    trainer.optimizer.step = timed_step
    with recording.observed(clock):
        begin = time.perf_counter()
        for epoch in range(1, epochs + 1):
            trainer.step(epoch)
        total = 1e3 * (time.perf_counter() - begin)
    trainer.optimizer.step = step
    clock.ms["(outside of primitives)", "-"] = total - sum(clock.ms.values())
    return [{"primitive": key[0], "way": key[1], "calls": clock.calls[key] / epochs, "ms": value / epochs,
             "share": value / total}
            for key, value in sorted(clock.ms.items(), key=lambda item: -item[1])]


def show(title, rows):
    columns = {"primitive": lambda r: r["primitive"], "way": lambda r: r["way"], "calls": lambda r: r["calls"],
               "ms an epoch": lambda r: f"{r['ms']:.1f}", "%": lambda r: f"{100 * r['share']:.1f}"}
    harness.report(f"{title}: where an epoch goes", [row for row in rows if row["share"] > 0.002], columns)

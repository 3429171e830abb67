"""Sequential aggregation whose ranks on one host share the rows that come to it, and add up the gradients that leave it."""

import numpy as np

from sarlite.sar.modes.sequential import Sequential
from sarlite.sar.rounds import Rounds, RoundsAhead, SummedPush
from sarlite.sar.transport import NoFetch


class Host(Sequential):
    """All ranks of a host visit the blocks of one part at a time, whose columns are the rows that any of them needs.

    A part's rows come to the host in one message; those of a part of the host are written by their owner. Layers of batches, whose rows are
    not put together, go as in mode `sar`.
    """

    shares = True

    def prepare(self, exchange, prefetch):
        plan = exchange.separate()
        if exchange.host is None:
            return plan
        rounds = exchange.host.rounds(plan)
        parts = tuple(part for one in rounds for part in one.cut(exchange.n_parts))
        return plan._replace(host=exchange.host, stages=rounds, backward_stages=parts)

    def run(self, schedule, arrays, visit, phase="forward"):
        """Collective. The host holds at most 1 + prefetch parts' rows.

        Without prefetch a rank visits the local block in the round of its own rows, when all others of its host have a block too.
        """
        plan, transport, found, visit = schedule.plan, schedule.transport, {}, Careful(visit)
        if plan.host is None:
            return super().run(schedule, arrays, visit.function, phase)
        with transport.chosen(Rounds, RoundsAhead)(transport, plan.host, plan.stages, arrays, phase) as fetched:
            own = None if transport.prefetch or len(plan.host.ranks) == 1 else plan.host.rank
            local = visit(plan.local, arrays) if own is None else None
            for step in plan.stages:
                rows = fetched.take(step)
                if step.block is not None:
                    found[step.source] = visit(step.block, rows)
                elif own is not None and step.source == own:
                    local = visit(plan.local, arrays)
                del rows
                fetched.release(step)
        visit.end(transport)
        return [local, *(found[step.source] for step in plan.steps)]

    def run_backward(self, schedule, arrays, kept, visit, d_arrays, phase="backward"):
        """Collective. As of mode `sar`, the gradients of a round added up over the ranks of the host before they leave it."""
        plan, transport, visit = schedule.plan, schedule.transport, Careful(visit)
        if plan.host is None:
            super().run_backward(schedule, arrays, kept, visit.function, d_arrays, phase)
            return
        rounds = plan.backward_stages
        *first, last = plan.local.halves if transport.prefetch and arrays is not None else (plan.local,)
        fetching = NoFetch() if arrays is None else transport.chosen(Rounds, RoundsAhead)(transport, plan.host, rounds, arrays, phase)
        with SummedPush(transport, plan.host, rounds, d_arrays, phase) as push, fetching as fetched:
            for block in first:
                visit(block, arrays, None, d_arrays)
            for step in rounds:
                rows, d_rows = fetched.take(step), push.rows(step)
                if step.block is not None:
                    visit(step.block, rows, None, d_rows)
                    visit.spoil(d_rows)
                del rows
                fetched.release(step)
                push.start(step)
            visit(last, arrays, None, d_arrays)
        visit.end(transport)


class Careful:
    """Calls a function until it fails, which is raised at the end: until then this rank takes part in the rounds, for which others wait."""

    def __init__(self, function):
        self.function, self.error = function, None

    def __call__(self, *args):
        if self.error is None:
            try:
                return self.function(*args)
            except BaseException as error:
                self.error = error
        return None

    def spoil(self, gradients):
        """After a failure nobody shall take gradients for whole."""
        for array in gradients if self.error is not None else ():
            if array is not None:
                array.fill(np.nan)

    def end(self, transport):
        if self.error is not None:
            transport.fail(self.error)
            raise self.error

"""Staged broadcast (MG-GCN 4.1 to 4.3): at stage j rank j broadcasts its rows, and everybody multiplies its tile with them."""

import numpy as np

from sarlite.sar.modes.sequential import Sequential
from sarlite.sar.stages import Stage, Stages, StagesAhead


class Broadcast(Sequential):
    """All ranks take the stages in the order of ranks. A rank visits its own tile in the stage in which its rows are sent, when all others
    have a tile too; with prefetch first, which hides the first broadcast.

    Backward a linear message's gradient is the same over the reversed edges (`Schedule.reverse`): the destinations' gradients are
    broadcast, and nothing is pushed. Other messages' goes by the peers' rows that are needed, as in mode `sar`.
    """

    turns = in_step = True

    def prepare(self, exchange):
        plan = exchange.separate()
        sizes = np.diff(exchange.offsets).tolist()
        needed = {step.source: (step.block, exchange.rows_needed(step.source)) for step in plan.steps}
        return plan._replace(stages=tuple(Stage(root, *_of(needed, root, n_rows)) for root, n_rows in enumerate(sizes)))

    def run(self, schedule, arrays, visit, phase="forward"):
        """Collective. Holds at most 1 + prefetch peers' rows, but for what `visit` returns."""
        plan = schedule.plan
        if not plan.steps:
            return [visit(plan.local, arrays)]
        transport, found = schedule.transport, {}
        ahead, local = transport.prefetch, None
        with transport.chosen(Stages, StagesAhead)(transport, plan.stages, arrays, phase) as stages:
            if ahead:
                local = visit(plan.local, arrays)
            for stage in plan.stages:
                rows = stages.take(stage)
                if stage.block is not None:
                    found[stage.root] = visit(stage.block, rows)
                    del rows
                elif not ahead:
                    local = visit(plan.local, arrays)
                stages.release(stage)
        return [local, *(found[step.source] for step in plan.steps)]


def _of(needed, root, n_rows):
    """What a stage has beside its root: this rank's own stage has no block."""
    block, rows = needed.get(root, (None, slice(0, 0)))
    return block, n_rows, rows
